//! Network and parallel file systems: whether each mount answers, how fast, and the counters of
//! their clients.
//!
//! A dead server blocks every process that touches its mount, this exporter too. So each mount is
//! queried by a thread of its own that may wait in the kernel for ever (`prober`), and nothing else
//! here touches a mount. Local file systems are reported by `disk`.

mod choice;
pub(crate) mod lustre;
mod nfs;
pub(crate) mod prober;
pub(crate) mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, StatVfs};
use rustix::io::Errno;
use stepwatch_kit::config::Period;
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use self::choice::{Choice, Wanted};
use self::prober::{ProbeState, Prober};
use self::table::Mount;
use super::disk;
use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::condition::Conditions;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::samples::Samples;

pub const ABOUT: &str = "network file systems: whether they answer, NFS and Lustre clients";
pub const NEEDS: &str = "/proc/self/mountinfo, /proc/self/mountstats, /sys/fs/lustre; any user; a container sees its own mounts; what an automounter unmounts when it is idle is not asked, unless collectors.mounts.include, a log or checkpoints name it";
pub const COST: &str = "one call a mount, each on a thread that may hang";

const MOUNT: &[&str] = &["mount", "fstype"];

pub static RESPONSIVE: Family = Family::gauge(
    "mount_responsive",
    "",
    MOUNT,
    "Whether the network file system answers: it does within the timeout, and not that it is gone",
);
pub static RESPONSE: Family = Family::gauge(
    "mount_response_seconds",
    "seconds",
    MOUNT,
    "How long the file system took to answer; while it does not, for how long it has not",
);
pub static SIZE: Family =
    Family::gauge("mount_size_bytes", "bytes", MOUNT, "Size of the network file system, as it last reported");
pub static FREE: Family = Family::gauge(
    "mount_free_bytes",
    "bytes",
    MOUNT,
    "Room on the network file system for programs without privileges, as it last reported",
);
pub static FREE_INODES: Family =
    Family::gauge("mount_free_inodes", "", MOUNT, "Files that the network file system has room for");
pub static READ_ONLY: Family = Family::gauge(
    "mount_read_only",
    "",
    MOUNT,
    "Whether the network file system is read-only on this node, not only where the exporter sees it",
);
pub static INFO: Family = Family::gauge(
    "mount_info",
    "",
    &["mount", "fstype", "source"],
    "Network file system and where it is mounted from; always 1",
);
pub static UNWATCHED: Family = Family::gauge(
    "mount_unwatched",
    "",
    &[],
    "Network file systems that are not asked, because they are too many or too many do not answer; without those of automounters",
);
pub static UNWATCHED_AUTOMOUNTS: Family = Family::gauge(
    "mount_unwatched_automounts",
    "",
    &[],
    "Network file systems that an automounter mounted and that are not asked: asked, they would never expire",
);

pub static FAMILIES: &[&Family] = &[
    &RESPONSIVE,
    &RESPONSE,
    &SIZE,
    &FREE,
    &FREE_INODES,
    &READ_ONLY,
    &INFO,
    &UNWATCHED,
    &UNWATCHED_AUTOMOUNTS,
    &nfs::REQUESTS,
    &nfs::RETRANSMISSIONS,
    &nfs::TIMEOUTS,
    &nfs::ERRORS,
    &nfs::SENT,
    &nfs::RECEIVED,
    &nfs::QUEUED,
    &nfs::RESPONDED,
    &nfs::EXECUTED,
    &nfs::RESPONSE_TIME,
    &lustre::HEALTHY,
    &lustre::IMPORTS,
    &lustre::IMPORT_INFO,
    &lustre::IMPORTS_LEFT_OUT,
    &lustre::READ,
    &lustre::WRITTEN,
    &lustre::OPERATIONS,
];

const STUCK: NodeCondition = NodeCondition::MountStuck;
/// The most mounts that are queried.
const MAX_MOUNTS: usize = 64;
/// How long a pass waits for answers; the next pass reads slower ones.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// A mount that has not answered for this long is stuck.
    pub timeout: Period,
    /// Patterns with `*` of file system types to query.
    pub types: Vec<String>,
    /// Mounts to query whatever their type, even if an automounter mounted them.
    pub include: Vec<String>,
    /// Patterns with `*` of mounts that are not queried.
    pub exclude: Vec<String>,
}

/// Types of network and parallel file systems, and of those served by a daemon that may hang.
const TYPES: [&str; 16] = [
    "nfs",
    "nfs4",
    "lustre",
    "cifs",
    "smb3",
    "ceph",
    "gpfs",
    "beegfs*",
    "wekafs",
    "glusterfs",
    "panfs",
    "pvfs2",
    "afs",
    "9p",
    "virtiofs",
    "fuse.*",
];
/// Types served by daemons of desktops and containers, which no training waits for.
const EXCLUDED_TYPES: [&str; 4] = ["fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "fuse.snapfuse"];

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default()
            .period("interval", self.interval)
            .period("timeout", self.timeout)
            .patterns("types", &self.types)
            .patterns("include", &self.include)
            .patterns("exclude", &self.exclude)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(5),
            timeout: Period::secs(10),
            types: TYPES.map(str::to_owned).into(),
            include: Vec::new(),
            exclude: Vec::new(),
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct MountsReader {
    config: Config,
    wanted: Wanted,
    prober: Prober<Answer>,
    nfs: nfs::Nfs,
    lustre: lustre::Lustre,
    conditions: Conditions,
}

/// The answer of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Room {
        size: u64,
        free: u64,
        inodes: Option<u64>,
    },
    /// The mount answers, but denies this process access.
    Refused,
    Gone(Errno),
}

impl Answer {
    fn from_statvfs(room: &StatVfs) -> Self {
        Self::Room {
            size: room.f_blocks.saturating_mul(room.f_frsize),
            free: room.f_bavail.saturating_mul(room.f_frsize),
            // File systems without a limit report zero inodes.
            inodes: Some(room.f_favail).filter(|_| room.f_files > 0),
        }
    }
}

/// Opens the root of a mount, which makes the client revalidate it with the server, and reads its
/// space.
fn look(path: &Path) -> Answer {
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty());
    let room = match opened {
        Ok(file) => rustix::fs::fstatvfs(&file),
        Err(Errno::ACCESS | Errno::PERM) => rustix::fs::statvfs(path),
        Err(error) => Err(error),
    };
    match room {
        Ok(room) => Answer::from_statvfs(&room),
        Err(
            error @ (Errno::IO
            | Errno::STALE
            | Errno::NOTCONN
            | Errno::TIMEDOUT
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::CONNREFUSED
            | Errno::CONNRESET
            | Errno::CONNABORTED
            | Errno::SHUTDOWN
            | Errno::NOTUNIQ
            | Errno::NODEV
            | Errno::NXIO
            | Errno::REMOTEIO),
        ) => Answer::Gone(error),
        Err(_) => Answer::Refused,
    }
}

impl MountsReader {
    pub fn new(config: &Config) -> Self {
        Self {
            wanted: Wanted::new(config),
            config: config.clone(),
            prober: Prober::new(|path: &PathBuf| look(path)),
            nfs: nfs::Nfs::default(),
            lustre: lustre::Lustre::default(),
            conditions: Conditions::default(),
        }
    }

    fn choose<'a>(&self, cx: &Context<'_>, all: &'a [Mount]) -> Choice<'a> {
        let runs = cx.hub.checkpoints();
        let logs = cx.hub.source_names("tail").into_iter().filter(|path| path.starts_with('/'));
        let used =
            disk::directories(cx, &runs).into_iter().map(|dir| dir.path).chain(logs.map(PathBuf::from));
        self.wanted.choose(all, &used.collect::<Vec<_>>())
    }

    fn judge(&mut self, cx: &Context<'_>, mount: &Mount, probe: &ProbeState<Answer>, out: &mut Samples) {
        let name = mount.name();
        let labels: &[&str] = &[&name, &mount.fstype];
        let took = probe.owed.or(probe.last.as_ref().map(|(_, took)| *took));
        out.maybe(&RESPONSE, labels, took);
        if let Some((Answer::Room { size, free, inodes }, _)) = &probe.last {
            out.set(&SIZE, labels, *size);
            out.set(&FREE, labels, *free);
            out.maybe(&FREE_INODES, labels, *inodes);
        }
        let late = probe.owed.filter(|owed| *owed >= self.config.timeout.as_duration());
        let gone = match probe.last {
            Some((Answer::Gone(error), _)) if probe.owed.is_none() => Some(error),
            _ => None,
        };
        // The first query is pending but not late, so the state is unknown.
        if probe.last.is_some() || late.is_some() {
            out.set(&RESPONSIVE, labels, late.is_none() && gone.is_none());
        }
        let holds =
            late.is_some() || gone.is_some() || probe.owed.is_some() && self.conditions.holds(STUCK, &name);
        self.conditions.report(cx, STUCK, &name, holds, || event(mount, late, gone));
    }
}

fn event(mount: &Mount, late: Option<Duration>, gone: Option<Errno>) -> Event {
    let what = format!("{} ({} from {})", mount.name(), mount.fstype, mount.source);
    let text = match (late, gone) {
        (Some(late), _) => {
            format!(
                "{what} has not answered for {:.0} s: whatever touches it waits in the kernel",
                late.as_secs_f64()
            )
        }
        (None, Some(error)) => format!("{what} is gone: {}", io::Error::from(error)),
        (None, None) => format!("{what} answers again"),
    };
    tracing::warn!(mount = mount.name(), "{text}");
    let mut event =
        Event { ts: Some(unix_now()), level: Some("error".into()), text: Some(text), ..Event::new(Kind::Hw) };
    for (key, value) in
        [("mount", mount.name()), ("fstype", mount.fstype.clone()), ("source", mount.source.clone())]
    {
        event.extra.insert(key.into(), Value::Text(value));
    }
    if let Some(late) = late {
        event.extra.insert("seconds".into(), Value::Number(late.as_secs_f64().round()));
    }
    event
}

fn forgotten(name: &str, mounted: bool) -> Event {
    let text = format!("{name} is not {} any more", if mounted { "watched" } else { "mounted" });
    let mut event = Event { ts: Some(unix_now()), text: Some(text), ..Event::new(Kind::Hw) };
    event.extra.insert("mount".into(), Value::Text(name.to_owned()));
    event
}

fn is_network(types: &[glob::Pattern], fstype: &str) -> bool {
    types.iter().any(|p| p.matches(fstype)) && !EXCLUDED_TYPES.contains(&fstype)
}

impl Config {
    /// Whether this type is a network file system, even if the configuration excludes it.
    pub(crate) fn is_network(&self, fstype: &str) -> bool {
        let types = TYPES.into_iter().chain(self.types.iter().map(String::as_str));
        is_network(&types.filter_map(|p| glob::Pattern::new(p).ok()).collect::<Vec<_>>(), fstype)
    }
}

impl Collector for MountsReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let Some(all) = table::probe(cx.roots)? else {
            return Ok(Support::Unsupported("there is no table of mounts".into()));
        };
        let Choice { mounts, left_alone, .. } = self.choose(cx, &all);
        Ok(if mounts.is_empty() && left_alone == 0 && !lustre::is_there(cx.roots) {
            Support::Unsupported("no network file system is mounted".into())
        } else {
            let named = mounts.iter().take(MAX_MOUNTS).map(|m| format!("{} ({})", m.name(), m.fstype));
            let alone = (left_alone > 0).then(|| format!("({left_alone} automounted ones are left alone)"));
            Support::Supported(named.chain(alone).collect::<Vec<_>>().join(" "))
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let all = table::read(cx.roots)?;
        let Choice { mounts, expected, left_alone } = self.choose(cx, &all);
        let asked = &mounts[..mounts.len().min(MAX_MOUNTS)];
        // Another mount at the same place is queried anew.
        let key = |mount: &Mount| format!("{} {}", mount.id, mount.name());
        let paths: Vec<_> = asked.iter().map(|m| (key(m), m.path.clone())).collect();
        let probes: BTreeMap<_, _> = self.prober.ask(&paths, PATIENCE);
        let (expected, others) = mounts.split_at(expected);
        let unwatched = |mounts: &[&Mount]| mounts.iter().filter(|m| !probes.contains_key(&key(m))).count();
        out.set(&UNWATCHED, &[], unwatched(expected));
        out.set(&UNWATCHED_AUTOMOUNTS, &[], unwatched(others) + left_alone);
        for mount in asked {
            let name = mount.name();
            out.set(&INFO, &[&name, &mount.fstype, &mount.source], 1u64);
            out.set(&READ_ONLY, &[&name, &mount.fstype], mount.read_only());
            if let Some(probe) = probes.get(&key(mount)) {
                self.judge(cx, mount, probe, out);
            }
        }
        let names: BTreeSet<String> = asked.iter().map(|m| m.name()).collect();
        for gone in self.conditions.keys(STUCK).iter().filter(|name| !names.contains(*name)) {
            let mounted = all.iter().any(|m| m.name() == **gone);
            self.conditions.report(cx, STUCK, gone, false, || forgotten(gone, mounted));
        }
        self.nfs.collect(cx.roots, &names, out);
        self.lustre.collect(cx, &mut self.conditions, Instant::now(), out);
        Ok(())
    }
}

/// Parses mount tables and files of NFS and Lustre, for the fuzzer.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(data: &[u8]) {
    assert!(table::parse(data).iter().all(|m| m.path.is_absolute()));
    let text = String::from_utf8_lossy(data);
    nfs::fuzz(&text);
    lustre::fuzz(&text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::Roots;
    use crate::testing;
    use std::sync::Mutex;
    use std::sync::mpsc;

    use crate::lock::Locked as _;

    const PATIENT: Duration = Duration::from_secs(30);

    fn tree(lines: &str) -> (tempfile::TempDir, testing::Bench) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("self")).unwrap();
        std::fs::write(dir.path().join("self/mountinfo"), lines).unwrap();
        let roots = Roots { procfs: dir.path().into(), sysfs: dir.path().join("sys"), ..Roots::default() };
        (dir, testing::Bench::new(roots))
    }

    const LINES: &str = "22 1 259:1 / / rw - ext4 /dev/sda1 rw
30 22 0:50 / /data rw - nfs4 srv:/data rw
        31 22 0:51 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch ro
32 22 0:50 / /pods/volume rw - nfs4 srv:/data rw
        33 22 0:52 / /lxcfs rw - fuse.lxcfs lxcfs rw
34 22 0:53 / /s3 rw - fuse.s3fs s3fs rw
";

    #[test]
    fn network_file_systems_each_once() {
        let (_dir, bench) = tree(LINES);
        let mut reader = MountsReader::new(&Config { exclude: vec!["/s*3".into()], ..Config::default() });
        let answer = Answer::Room { size: 1000, free: 400, inodes: None };
        reader.prober = Prober::new(move |_| answer);
        assert_eq!(
            reader.probe(&bench.context()).unwrap(),
            Support::Supported("/data (nfs4) /scratch (lustre)".into())
        );
        let settled = |page: &Samples| page.rows(&RESPONSIVE).filter(|r| r.value == 1.0).count() == 2;
        let began = Instant::now();
        let mut page = bench.collect(&mut reader);
        while !settled(&page) && began.elapsed() < PATIENT {
            page = bench.collect(&mut reader);
        }
        for (family, labels, want) in [
            (&RESPONSIVE, &["/data", "nfs4"][..], Some(1.0)),
            (&FREE, &["/scratch", "lustre"], Some(400.0)),
            (&FREE_INODES, &["/scratch", "lustre"], None),
            (&READ_ONLY, &["/scratch", "lustre"], Some(1.0)),
            (&INFO, &["/data", "nfs4", "srv:/data"], Some(1.0)),
            (&RESPONSIVE, &["/", "ext4"], None),
            (&UNWATCHED, &[], Some(0.0)),
        ] {
            assert_eq!(page.get(family, labels), want, "{} {labels:?}", family.name);
        }
        let (_dir, bench) = tree("22 1 259:1 / / rw - ext4 /dev/sda1 rw\n");
        assert!(matches!(reader.probe(&bench.context()), Ok(Support::Unsupported(_))));
    }

    #[test]
    fn automounted_homes_are_not_touched_and_keep_nothing_else_from_being_watched() {
        let lines = "22 1 259:1 / / rw - ext4 /dev/sda1 rw\n23 22 0:40 / /fsx rw - autofs systemd-1 rw,timeout=0,direct\n\
            24 23 0:41 / /fsx rw - lustre 10.0.0.1@tcp:/fsx rw\n25 22 0:42 / /home rw - autofs auto.home rw,timeout=300\n\
            26 22 0:43 / /scratch ro,relatime - nfs4 srv:/scratch rw,vers=4.2\n"
            .to_owned();
        let home = |n| format!("{n} 25 0:{n} / /home/u{n} rw - nfs4 srv:/home/u{n} rw\n");
        let lines = lines + &(100..170).map(home).collect::<Vec<_>>().concat();
        let (dir, bench) = tree(&lines);
        let mut reader = MountsReader::new(&Config::default());
        let asked = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let notes = std::sync::Arc::clone(&asked);
        reader.prober = Prober::new(move |path: &PathBuf| {
            notes.locked().insert(path.to_owned());
            Answer::Refused
        });
        assert_eq!(
            reader.probe(&bench.context()).unwrap(),
            Support::Supported("/scratch (nfs4) /fsx (lustre) (70 automounted ones are left alone)".into())
        );
        let page = bench.collect(&mut reader);
        for (family, labels, want) in [
            (&INFO, &["/scratch", "nfs4", "srv:/scratch"][..], Some(1.0)),
            (&INFO, &["/home/u100", "nfs4", "srv:/home/u100"], None),
            (&READ_ONLY, &["/scratch", "nfs4"], Some(0.0)),
            (&UNWATCHED, &[], Some(0.0)),
            (&UNWATCHED_AUTOMOUNTS, &[], Some(70.0)),
        ] {
            assert_eq!(page.get(family, labels), want, "{} {labels:?}", family.name);
        }
        assert!(asked.locked().iter().all(|path| !path.starts_with("/home")), "{:?}", asked.locked());
        // There are as many permanent mounts, and volumes of pods: the first in the order of paths
        // are not the most important.
        let fixed = lines.replace("/home/", "/cvol/a/").replace("timeout=300", "timeout=0");
        std::fs::write(dir.path().join("self/mountinfo"), fixed).unwrap();
        let page = bench.collect(&mut reader);
        assert_eq!(page.get(&INFO, &["/scratch", "nfs4", "srv:/scratch"]), Some(1.0));
        assert_eq!(page.get(&UNWATCHED, &[]), Some(7.0), "of 71, of which 64 are asked");
        assert_eq!(page.get(&UNWATCHED_AUTOMOUNTS, &[]), Some(1.0));
    }

    #[test]
    fn one_that_does_not_answer_is_reported_until_it_does() {
        let (_dir, bench) = tree(LINES);
        let mut reader = MountsReader::new(&Config { timeout: Period::millis(50), ..Config::default() });
        let (let_go, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        reader.prober = Prober::new(move |path: &PathBuf| {
            if path == Path::new("/data") {
                let _ = held.locked().recv();
            }
            Answer::Refused
        });
        let mut until = |value: f64| {
            let began = Instant::now();
            loop {
                let page = bench.collect(&mut reader);
                if page.get(&RESPONSIVE, &["/data", "nfs4"]) == Some(value)
                    && page.get(&RESPONSIVE, &["/scratch", "lustre"]) == Some(1.0)
                {
                    break page;
                }
                assert!(began.elapsed() < PATIENT);
            }
        };
        let page = until(0.0);
        assert!(page.get(&RESPONSE, &["/data", "nfs4"]).unwrap() >= 0.05);
        let [begun] = &bench.published()[..] else { panic!() };
        assert_eq!((begun.name.as_deref(), begun.code), (Some(STUCK.name()), Some(1)));
        assert_eq!(begun.extra.get("mount"), Some(&Value::Text("/data".into())));
        drop(let_go);
        until(1.0);
        let [over] = &bench.published()[..] else { panic!() };
        assert_eq!(over.text.as_deref(), Some("/data (nfs4 from srv:/data) answers again"));
    }

    #[test]
    fn one_that_is_gone_is_reported_until_it_is_unmounted() {
        let (dir, bench) = tree(LINES);
        let mut reader = MountsReader::new(&Config { types: vec!["lustre".into()], ..Config::default() });
        reader.prober = Prober::new(|_| Answer::Gone(Errno::NOTCONN));
        let began = Instant::now();
        let mut published = Vec::new();
        while published.is_empty() && began.elapsed() < PATIENT {
            bench.collect(&mut reader);
            published = bench.published();
        }
        assert!(published[0].text.as_deref().unwrap().contains("is gone"), "{published:?}");
        std::fs::write(dir.path().join("self/mountinfo"), "").unwrap();
        bench.collect(&mut reader);
        let [over] = &bench.published()[..] else { panic!() };
        assert_eq!((over.code, over.text.as_deref()), (Some(0), Some("/scratch is not mounted any more")));
    }

    #[test]
    fn a_directory_answers_and_what_is_not_there_refuses() {
        assert!(matches!(look(Path::new("/")), Answer::Room { size: 1.., .. }));
        assert_eq!(look(Path::new("/not/there")), Answer::Refused);
    }
}

//! Checks that the services of a training node run: fabric manager, persistence daemon, IMEX and
//! the container runtime.
//!
//! Files of systemd show it: the control group of a running service has processes
//! (`system.slice/NAME.service`, systemd's documentation "Control Group APIs and Delegation"), and
//! an enabled service has a link in a directory `*.wants` or `*.requires` (systemd.unit(5),
//! `WantedBy=`). Its bus gives more details, but a container with the socket of the bus can also
//! start and stop services, whereas these files can be mounted read-only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stepwatch_kit::config::Period;
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::condition::Conditions;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::link::Level;
use crate::persisted_state;
use crate::roots::{self, Roots};
use crate::samples::Samples;

pub const ABOUT: &str =
    "services that training needs: fabric manager, persistence daemon, IMEX, container runtime";
pub const NEEDS: &str = "/sys/fs/cgroup and /etc/systemd/system; any user; in a container, those of the host";
pub const COST: &str = "a small file a service";

const SERVICE: &[&str] = &["service"];

pub static ACTIVE: Family =
    Family::gauge("service_active", "", SERVICE, "Whether the service of systemd has processes");
pub static ENABLED: Family = Family::gauge(
    "service_enabled",
    "",
    SERVICE,
    "Whether systemd is to start the service; absent where its configuration cannot be read",
);
pub static STARTS: Family = Family::counter(
    "service_starts_total",
    "",
    SERVICE,
    "How often the service was started anew since this exporter first saw it",
);

pub static FAMILIES: &[&Family] = &[&ACTIVE, &ENABLED, &STARTS];

/// The name under which the collector's state is saved.
const NAME: &str = "services";
/// The most services that are checked.
const MAX_SERVICES: usize = 64;
/// The most directories of links in a directory of units.
const MAX_TARGETS: usize = 256;
const FABRIC_MANAGER: &str = "nvidia-fabricmanager";
const IMEX: &str = "nvidia-imex";
/// The directory of the NVSwitches with a driver on this node. Those of later generations are
/// managed over InfiniBand and have none.
const NVSWITCHES: &str = "driver/nvidia-nvswitch/devices";

/// The consequence if each service does not run.
const KNOWN: &[(&str, &str)] = &[
    (FABRIC_MANAGER, "without it no new program can use the GPUs of a node with NVSwitches"),
    ("nvidia-persistenced", "without it the driver may unload the state of idle GPUs"),
    (IMEX, "without it no job can use NVLink between nodes"),
    ("containerd", "without it no container can start"),
    ("docker", "without it no container can start"),
];

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// Services of systemd, without `.service`.
    pub names: Vec<String>,
    /// Services of these that must run on this node, even if systemd does not enable them.
    pub expected: Vec<String>,
    /// The directory of systemd's units on this node.
    pub units: PathBuf,
    /// How long a service must be down to be reported, so that a restart is not.
    pub grace: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        let is_name = |name: &String| !name.is_empty() && !name.contains('/') && !name.ends_with(".service");
        let names = "must be names of services without `.service`";
        let mistakes = Mistakes::default()
            .period("interval", self.interval)
            .unless(self.names.iter().all(is_name), &format!("names: {names}"))
            .unless(self.expected.iter().all(is_name), &format!("expected: {names}"));
        let many = format!("names: at most {MAX_SERVICES} with those of `expected`");
        mistakes.unless(self.names.len() + self.expected.len() <= MAX_SERVICES, &many)
    }

    fn names(&self) -> BTreeSet<&str> {
        self.names.iter().chain(&self.expected).map(String::as_str).collect()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(15),
            names: KNOWN.iter().map(|(name, _)| (*name).to_owned()).collect(),
            expected: Vec::new(),
            units: "/etc/systemd/system".into(),
            grace: Period::secs(60),
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

/// The state that survives a restart of this exporter.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Memory {
    boot: String,
    /// Services that have run since boot.
    ran: BTreeSet<String>,
}

#[derive(Debug)]
pub struct ServicesReader {
    config: Config,
    memory: Memory,
    conditions: Conditions,
    seen: BTreeMap<String, Seen>,
}

/// The observed state of one service.
#[derive(Debug, Default)]
struct Seen {
    /// The inode of the control group, which systemd creates anew at every start.
    group: Option<u64>,
    starts: u64,
    down_since: Option<Instant>,
}

/// The reason why a service has to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Configured,
    Ran,
    Enabled,
}

impl ServicesReader {
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            memory: Memory::default(),
            conditions: Conditions::default(),
            seen: BTreeMap::new(),
        }
    }

    fn wanted(&self, name: &str, enabled: Option<&BTreeSet<String>>) -> Option<Wanted> {
        match () {
            () if self.config.expected.iter().any(|expected| expected == name) => Some(Wanted::Configured),
            () if self.memory.ran.contains(name) => Some(Wanted::Ran),
            () if enabled.is_some_and(|enabled| enabled.contains(name)) => Some(Wanted::Enabled),
            () => None,
        }
    }

    /// Records the control group of a service. Returns whether this is its first run since boot.
    fn look(&mut self, name: &str, group: Option<u64>, booted: Instant, now: Instant) -> bool {
        // At the first pass, a service that is down counts as down since boot.
        let since = if self.seen.contains_key(name) { now } else { booted };
        let seen = self.seen.entry(name.to_owned()).or_default();
        if let Some(group) = group {
            seen.starts += u64::from(seen.group.is_some_and(|before| before != group));
            (seen.group, seen.down_since) = (Some(group), None);
            return self.memory.ran.insert(name.to_owned());
        }
        seen.down_since.get_or_insert(since);
        false
    }

    fn judge(&mut self, cx: &Context<'_>, name: &str, wanted: Option<Wanted>, now: Instant) {
        let down = self.seen.get(name).and_then(|seen| seen.down_since);
        let grace = Duration::from(self.config.grace);
        let late = down.is_some_and(|since| now.saturating_duration_since(since) >= grace);
        let missed = wanted.filter(|wanted| late && !is_idle_by_design(cx.roots, name, *wanted));
        let serious =
            name == FABRIC_MANAGER && has_nvswitches(cx.roots) || missed == Some(Wanted::Configured);
        self.conditions.report(cx, NodeCondition::ServiceDown, name, missed.is_some(), || {
            event(name, wanted.unwrap_or(Wanted::Ran), serious, down.is_none())
        });
    }

    fn remember(&self, cx: &Context<'_>) {
        if let Err(error) = persisted_state::save(cx.roots.state.as_deref(), NAME, &self.memory) {
            cx.hub.state_not_saved();
            tracing::warn!(%error, "cannot remember which services ran");
        }
    }
}

impl Collector for ServicesReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let slices = slices(cx.roots);
        let Some(slice) = slices.first() else {
            let root = cx.roots.sys("fs/cgroup");
            return Ok(Support::Unsupported(format!("there is no system.slice in {}", root.display())));
        };
        let boot = roots::read(&cx.roots.proc("sys/kernel/random/boot_id")).unwrap_or_default();
        let saved: Memory = persisted_state::load(cx.roots.state.as_deref(), NAME);
        self.memory = if saved.boot == boot { saved } else { Memory { boot, ..Memory::default() } };
        Ok(Support::Supported(slice.display().to_string()))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let now = Instant::now();
        let booted = now.checked_sub(uptime(cx.roots)).unwrap_or(now);
        let (slices, enabled) = (slices(cx.roots), enabled(&self.config.units));
        let config = self.config.clone();
        let mut news = false;
        for name in config.names() {
            let group = slices.iter().find_map(|slice| running(&slice.join(format!("{name}.service"))));
            news |= self.look(name, group, booted, now);
            let wanted = self.wanted(name, enabled.as_ref());
            self.judge(cx, name, wanted, now);
            // Nothing is exported for services that this node does not have.
            if wanted.is_some() {
                out.set(&ACTIVE, &[name], u64::from(group.is_some()));
                out.maybe(&ENABLED, &[name], enabled.as_ref().map(|all| u64::from(all.contains(name))));
                out.maybe(&STARTS, &[name], self.seen.get(name).map(|seen| seen.starts));
            }
        }
        if news {
            self.remember(cx);
        }
        Ok(())
    }
}

/// The slices of system services: of version 2 of control groups, or of version 1's hierarchy for
/// systemd.
fn slices(roots: &Roots) -> Vec<PathBuf> {
    let all = ["fs/cgroup/system.slice", "fs/cgroup/unified/system.slice", "fs/cgroup/systemd/system.slice"];
    all.iter().map(|path| roots.sys(path)).filter(|path| path.is_dir()).collect()
}

/// The inode of the control group, if it or a group below it has processes.
fn running(group: &Path) -> Option<u64> {
    let id = fs::metadata(group).ok()?.ino();
    let populated = match roots::read(&group.join("cgroup.events")) {
        Some(events) => events.lines().any(|line| line == "populated 1"),
        None => roots::read(&group.join("cgroup.procs")).is_some_and(|processes| !processes.is_empty()),
    };
    populated.then_some(id)
}

/// The services that systemd starts; `None` if its configuration cannot be read.
fn enabled(units: &Path) -> Option<BTreeSet<String>> {
    let targets = fs::read_dir(units).ok()?.flatten().map(|entry| entry.path()).filter(|path| {
        path.extension().is_some_and(|extension| extension == "wants" || extension == "requires")
    });
    let links = targets.take(MAX_TARGETS).filter_map(|target| fs::read_dir(target).ok()).flatten().flatten();
    let names =
        links.filter_map(|link| link.file_name().to_str()?.strip_suffix(".service").map(str::to_owned));
    Some(names.collect())
}

/// How long the node has been up; zero if unknown.
fn uptime(roots: &Roots) -> Duration {
    let seconds = roots::read(&roots.proc("uptime")).and_then(|text| text.split(' ').next()?.parse().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

fn has_nvswitches(roots: &Roots) -> bool {
    fs::read_dir(roots.proc(NVSWITCHES)).is_ok_and(|mut switches| switches.next().is_some())
}

/// Whether the service exits at once on a node without its hardware: one image is installed on all
/// nodes, and enables it on all.
fn is_idle_by_design(roots: &Roots, name: &str, wanted: Wanted) -> bool {
    let has_hardware = match name {
        FABRIC_MANAGER => has_nvswitches(roots),
        // IMEX does not run without a list of the nodes in its domain.
        IMEX => false,
        _ => true,
    };
    wanted == Wanted::Enabled && !has_hardware
}

fn event(name: &str, wanted: Wanted, serious: bool, runs: bool) -> Event {
    let why = match wanted {
        Wanted::Configured => "is expected to run on this node",
        Wanted::Ran => "ran since the boot",
        Wanted::Enabled => "is enabled",
    };
    let purpose = KNOWN.iter().find(|(known, _)| *known == name).map(|(_, purpose)| format!("; {purpose}"));
    let text = if runs {
        format!("the service {name} runs")
    } else {
        format!("the service {name} {why} and does not run{}", purpose.unwrap_or_default())
    };
    let mut event = Event {
        ts: Some(unix_now()),
        level: Some(if serious { Level::Error } else { Level::Warn }.as_str().to_owned()),
        text: Some(text),
        ..Event::new(Kind::Hw)
    };
    event.extra.insert("device".into(), Value::Text(name.to_owned()));
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bench;

    struct Tree {
        dir: tempfile::TempDir,
        config: Config,
    }

    impl Tree {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let config =
                Config { units: dir.path().join("units"), grace: Period::millis(0), ..Config::default() };
            let tree = Self { dir, config };
            tree.write("sys/fs/cgroup/system.slice/cgroup.procs", "");
            tree.write("proc/sys/kernel/random/boot_id", "boot-1");
            tree
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Gives a service a new control group with a process in it.
        fn start(&self, name: &str) {
            self.stop(name);
            let group = format!("sys/fs/cgroup/system.slice/{name}.service");
            self.write(&format!("{group}/cgroup.events"), "populated 1\nfrozen 0\n");
        }

        /// systemd removes the control group of a stopped service.
        fn stop(&self, name: &str) {
            let group = self.dir.path().join(format!("sys/fs/cgroup/system.slice/{name}.service"));
            // Keeps the old inode in use, so that the next group gets another one.
            let _ = fs::rename(&group, group.with_extension(format!("old{}", rand())));
        }

        fn enable(&self, name: &str) {
            self.write(&format!("units/multi-user.target.wants/{name}.service"), "");
        }

        fn bench(&self) -> Bench {
            let at = |part: &str| self.dir.path().join(part);
            fs::create_dir_all(at("state")).unwrap();
            Bench::new(Roots {
                sysfs: at("sys"),
                procfs: at("proc"),
                state: Some(at("state")),
                ..Roots::default()
            })
        }
    }

    fn rand() -> u128 {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
    }

    fn reader(tree: &Tree, bench: &Bench) -> ServicesReader {
        let mut reader = ServicesReader::new(&tree.config);
        assert!(matches!(reader.probe(&bench.context()), Ok(Support::Supported(_))));
        reader
    }

    fn said(bench: &Bench) -> Vec<(i64, String, String)> {
        let events = bench.published().into_iter();
        events.map(|e| (e.code.unwrap(), e.level.unwrap(), e.text.unwrap())).collect()
    }

    #[test]
    fn a_service_that_ran_and_does_not_run_any_more_is_down_until_it_runs_again() {
        let tree = Tree::new();
        let bench = tree.bench();
        tree.start("containerd");
        let mut services = reader(&tree, &bench);
        let page = bench.collect(&mut services);
        assert_eq!(page.get(&ACTIVE, &["containerd"]), Some(1.0));
        assert_eq!(page.get(&ENABLED, &["containerd"]), None, "there is no configuration to read");
        assert_eq!(page.get(&ACTIVE, &["docker"]), None, "a service that the node does not have");
        tree.stop("containerd");
        let page = bench.collect(&mut services);
        assert_eq!(page.get(&ACTIVE, &["containerd"]), Some(0.0));
        let down =
            "the service containerd ran since the boot and does not run; without it no container can start";
        assert_eq!(said(&bench), [(1, "warn".into(), down.into())]);
        // After a restart of the exporter it is still reported.
        let mut later = reader(&tree, &bench);
        bench.collect(&mut later);
        assert_eq!(said(&bench), [(1, "warn".into(), down.into())]);
        tree.start("containerd");
        let page = bench.collect(&mut services);
        assert_eq!(page.get(&STARTS, &["containerd"]), Some(1.0));
        assert_eq!(said(&bench), [(0, "info".into(), "the service containerd runs".into())]);
        // The node has rebooted.
        tree.stop("containerd");
        tree.write("proc/sys/kernel/random/boot_id", "boot-2");
        let mut rebooted = reader(&tree, &bench);
        assert_eq!(bench.collect(&mut rebooted).get(&ACTIVE, &["containerd"]), None);
    }

    #[test]
    fn fabric_manager_is_needed_where_there_are_nvswitches() {
        for switch in [false, true] {
            let tree = Tree::new();
            let bench = tree.bench();
            tree.enable(FABRIC_MANAGER);
            if switch {
                tree.write("proc/driver/nvidia-nvswitch/devices/0000:c2:00.0/information", "");
            }
            let mut services = reader(&tree, &bench);
            let page = bench.collect(&mut services);
            assert_eq!(page.get(&ENABLED, &[FABRIC_MANAGER]), Some(1.0));
            let text = "the service nvidia-fabricmanager is enabled and does not run; without it no new program can use the GPUs of a node with NVSwitches";
            let missed = vec![(1, "error".to_owned(), text.to_owned())];
            assert_eq!(said(&bench), if switch { missed } else { Vec::new() }, "one image is on all nodes");
        }
    }

    #[test]
    fn what_an_operator_expects_is_missed_and_a_restart_is_not() {
        let mut tree = Tree::new();
        tree.config.expected = vec!["slurmd".into()];
        tree.config.grace = Period::secs(60);
        tree.write("proc/uptime", "59.03 812.44\n");
        let bench = tree.bench();
        let mut services = reader(&tree, &bench);
        bench.collect(&mut services);
        assert_eq!(said(&bench), [], "the node is booting");
        // A service that was down at the first pass counts as down since boot, which is long
        // enough.
        tree.write("proc/uptime", "61.00 812.44\n");
        let mut services = reader(&tree, &bench);
        bench.collect(&mut services);
        let text = "the service slurmd is expected to run on this node and does not run";
        assert_eq!(said(&bench), [(1, "error".into(), text.into())]);
    }

    /// Version 1 of control groups has `/sys/fs/cgroup/systemd`.
    #[test]
    fn the_first_version_of_control_groups() {
        let tree = Tree::new();
        fs::remove_dir_all(tree.dir.path().join("sys/fs/cgroup/system.slice")).unwrap();
        let bench = tree.bench();
        let mut services = ServicesReader::new(&tree.config);
        assert!(matches!(services.probe(&bench.context()), Ok(Support::Unsupported(_))));
        tree.write("sys/fs/cgroup/systemd/system.slice/docker.service/cgroup.procs", "812\n830\n");
        tree.write("sys/fs/cgroup/systemd/system.slice/containerd.service/cgroup.procs", "");
        let page = bench.collect(&mut reader(&tree, &bench));
        assert_eq!(page.get(&ACTIVE, &["docker"]), Some(1.0));
        assert_eq!(page.get(&ACTIVE, &["containerd"]), None);
    }
}

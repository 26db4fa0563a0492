//! The Lustre client: its health, the state of its connections to servers, and its reads and
//! writes.
//!
//! The location of the files depends on the version: `/sys/fs/lustre`, `/proc/fs/lustre`, or
//! debugfs, which only root may read. Each is tried.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use crate::clock::unix_now;
use crate::collector::Context;
use crate::condition::Conditions;
use crate::family::Family;
use crate::roots::{self, Roots};
use crate::samples::Samples;

pub(super) static HEALTHY: Family = Family::gauge(
    "lustre_healthy",
    "",
    &[],
    "Whether the Lustre client reports that it is healthy; absent where there is none",
);
pub(super) static IMPORTS: Family = Family::gauge(
    "lustre_imports",
    "",
    &["kind", "state"],
    "Connections to targets (a server's parts of the file systems) by their state, as Lustre calls it: FULL is up, IDLE was let go for want of use, EVICTED, DISCONN, ... are not",
);
pub(super) static IMPORT_INFO: Family = Family::gauge(
    "lustre_import_down_info",
    "",
    &["target", "kind", "state"],
    "Connection to a target that is not up, of at most 64; always 1",
);
pub(super) static IMPORTS_LEFT_OUT: Family = Family::gauge(
    "lustre_imports_left_out",
    "",
    &[],
    "Connections that are not up, and that lustre_import_down_info has no room for",
);
pub(super) static READ: Family = Family::counter(
    "lustre_client_read_bytes_total",
    "bytes",
    &["filesystem"],
    "Bytes that programs of this node read from the file system",
);
pub(super) static WRITTEN: Family = Family::counter(
    "lustre_client_written_bytes_total",
    "bytes",
    &["filesystem"],
    "Bytes that programs of this node wrote to the file system",
);
pub(super) static OPERATIONS: Family = Family::counter(
    "lustre_client_operations_total",
    "",
    &["filesystem", "operation"],
    "Calls of programs of this node on the file system",
);

const UNHEALTHY: NodeCondition = NodeCondition::LustreUnhealthy;
/// How long a connection must be down to be reported; a failover takes about as long.
const GRACE: Duration = Duration::from_secs(30);
/// The kinds of connections: to object servers, metadata servers and the management server.
const KINDS: [&str; 3] = ["osc", "mdc", "mgc"];
/// The most targets; the largest file systems have some thousand.
const MAX_TARGETS: usize = 4096;
/// The most targets that have a series of their own, because they are not up.
const MAX_SHOWN: usize = 64;
const MAX_FILE_SYSTEMS: usize = 32;
const MAX_OPERATIONS: usize = 64;
const MAX_BYTES: u64 = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Lustre {
    /// When each connection went down.
    down: BTreeMap<String, Instant>,
}

struct Import {
    target: String,
    kind: &'static str,
    state: String,
}

impl Import {
    fn is_up(&self) -> bool {
        matches!(&*self.state, "FULL" | "IDLE")
    }
}

fn bases(roots: &Roots) -> [PathBuf; 3] {
    [roots.sys("fs/lustre"), roots.proc("fs/lustre"), roots.sys("kernel/debug/lustre")]
}

pub(super) fn is_there(roots: &Roots) -> bool {
    bases(roots).iter().any(|base| base.join("health_check").exists() || base.join("llite").exists())
}

/// Whether each connection is up, by its name in the kernel's log: `lustre-OST0000-osc`.
pub(crate) fn connections(roots: &Roots) -> BTreeMap<String, bool> {
    let imports = imports(&bases(roots));
    imports.into_iter().map(|i| (format!("{}-{}", i.target, i.kind), i.is_up())).collect()
}

impl Lustre {
    pub(super) fn collect(
        &mut self,
        cx: &Context<'_>,
        conditions: &mut Conditions,
        now: Instant,
        out: &mut Samples,
    ) {
        let bases = bases(cx.roots);
        let said = bases.iter().find_map(|base| roots::read(&base.join("health_check")));
        let healthy = said.as_deref().map(|text| text.trim() == "healthy");
        out.maybe(&HEALTHY, &[], healthy);
        conditions.report(cx, UNHEALTHY, "", healthy == Some(false), || {
            let text = match &said {
                Some(said) if healthy == Some(false) => format!("the Lustre client says: {said}"),
                _ => "the Lustre client is healthy again".into(),
            };
            event(text)
        });
        let imports = imports(&bases);
        for import in &imports {
            if import.is_up() {
                self.down.remove(&import.target);
            } else {
                self.down.entry(import.target.clone()).or_insert(now);
            }
        }
        self.down.retain(|target, _| imports.iter().any(|i| i.target == *target));
        write_imports(&imports, out);
        self.report(cx, conditions, &imports, now);
        clients(&bases, out);
    }

    fn report(&self, cx: &Context<'_>, conditions: &mut Conditions, imports: &[Import], now: Instant) {
        let long: BTreeSet<&str> =
            self.down.iter().filter(|(_, since)| now - **since >= GRACE).map(|(t, _)| t.as_str()).collect();
        for import in imports.iter().filter(|i| long.contains(&*i.target)) {
            conditions.report(cx, UNHEALTHY, &import.target, true, || {
                of_target(
                    format!("no connection to Lustre target {} ({})", import.target, import.state),
                    &import.target,
                )
            });
        }
        for target in conditions.keys(UNHEALTHY).iter().filter(|t| !t.is_empty() && !long.contains(&***t)) {
            conditions.report(cx, UNHEALTHY, target, false, || {
                of_target(format!("the connection to Lustre target {target} is back"), target)
            });
        }
    }
}

/// Writes the number of connections by state. A node has some thousand, so only those not up are
/// named.
fn write_imports(imports: &[Import], out: &mut Samples) {
    let mut states = BTreeMap::<(&str, &str), usize>::new();
    for import in imports {
        *states.entry((import.kind, &import.state)).or_default() += 1;
    }
    for ((kind, state), count) in states {
        out.set(&IMPORTS, &[kind, state], count);
    }
    let down: Vec<&Import> = imports.iter().filter(|import| !import.is_up()).collect();
    for import in down.iter().take(MAX_SHOWN) {
        out.set(&IMPORT_INFO, &[&import.target, import.kind, &import.state], 1u64);
    }
    if !imports.is_empty() {
        out.set(&IMPORTS_LEFT_OUT, &[], down.len().saturating_sub(MAX_SHOWN));
    }
}

fn event(text: String) -> Event {
    Event { ts: Some(unix_now()), level: Some("error".into()), text: Some(text), ..Event::new(Kind::Hw) }
}

fn of_target(text: String, target: &str) -> Event {
    let mut event = event(text);
    event.extra.insert("device".into(), Value::Text(target.to_owned()));
    event
}

/// Connections by target; a target that several directories contain is listed once.
fn imports(bases: &[PathBuf]) -> Vec<Import> {
    let mut found = BTreeMap::new();
    for (base, kind) in bases.iter().flat_map(|base| KINDS.map(|kind| (base, kind))) {
        let dir = base.join(kind);
        for name in roots::list(&dir).unwrap_or_default().into_iter().take(MAX_TARGETS) {
            let text = ["import", "state"].iter().find_map(|file| read(&dir.join(&name).join(file)));
            let Some(state) = text.and_then(|text| state(&text)) else { continue };
            // In `lustre-OST0000-osc-ffff9f1b2c3d4e00`, the end is an address in the kernel.
            let target =
                name.split_once(&format!("-{kind}-")).map_or(&*name, |(target, _)| target).to_owned();
            if found.len() < MAX_TARGETS {
                let import = Import { target, kind, state };
                // If it is mounted twice, each mount has its own connection, and the one that is
                // down counts.
                found
                    .entry((import.target.clone(), kind))
                    .and_modify(|other: &mut Import| {
                        if other.is_up() && !import.is_up() {
                            other.state.clone_from(&import.state);
                        }
                    })
                    .or_insert(import);
            }
        }
    }
    found.into_values().collect()
}

/// The state in ` state: FULL` of an import, or in `current_state: FULL` of a file of states.
fn state(text: &str) -> Option<String> {
    let value = |l: &str| {
        let rest = l.trim().strip_prefix("current_state:").or_else(|| l.trim().strip_prefix("state:"))?;
        let word = rest.trim();
        let plain = !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        plain.then(|| word.to_owned())
    };
    text.lines().find_map(value)
}

/// Writes the counters of the mounted file systems.
fn clients(bases: &[PathBuf], out: &mut Samples) {
    let mut seen = BTreeSet::new();
    for base in bases {
        let dir = base.join("llite");
        for name in roots::list(&dir).unwrap_or_default().into_iter().take(MAX_FILE_SYSTEMS) {
            // The name is like `lustre-ffff9f1b2c3d4e00`.
            let filesystem = name.rsplit_once('-').map_or(&*name, |(name, _)| name).to_owned();
            let Some(stats) = read(&dir.join(&name).join("stats")) else { continue };
            if !seen.insert(filesystem.clone()) {
                continue;
            }
            for (operation, samples, sum) in stats.lines().filter_map(counter).take(MAX_OPERATIONS) {
                match operation {
                    "read_bytes" => out.maybe(&READ, &[&filesystem], sum),
                    "write_bytes" => out.maybe(&WRITTEN, &[&filesystem], sum),
                    _ => {}
                }
                let operation = operation.strip_suffix("_bytes").unwrap_or(operation);
                out.set(&OPERATIONS, &[&filesystem, operation], samples);
            }
        }
    }
}

/// Parses `read_bytes 10 samples [bytes] 4096 1048576 10485760 ...` into name, count, and the sum
/// if there is one.
fn counter(line: &str) -> Option<(&str, u64, Option<u64>)> {
    let mut words = line.split_whitespace();
    let (name, samples) = (words.next()?, words.next()?.parse().ok()?);
    (words.next()? == "samples").then_some(())?;
    let unit = words.next()?;
    let sum = words.nth(2).filter(|_| unit == "[bytes]").and_then(|sum| sum.parse().ok());
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    // Two names would share a label value: `read` counts the same calls as `read_bytes`.
    (plain && !matches!(name, "read" | "write")).then_some((name, samples, sum))
}

fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(text: &str) {
    let _ = (state(text), text.lines().filter_map(counter).count());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const STATS: &str = "snapshot_time             1795227416.123456789 secs.nsecs\n\
        read_bytes                10 samples [bytes] 4096 1048576 10485760\n\
        write_bytes               3 samples [bytes] 1 4096 8192 99\n\
        read                      10 samples [usec] 5 50 200\n\
        open                      7 samples [usec] 12 99 400 1000\n\
        getattr                   4 samples [regs]\nbad line\n";
    const IMPORT: &str = "import:\n    name: lustre-OST0001-osc-ffff9f1b2c3d4e00\n    target: lustre-OST0001_UUID\n\
        \x20   state: FULL\n    connect_flags: [ write_grant ]\n    connection:\n       failover_nids: [ 10.0.0.2@tcp ]\n";

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn health_connections_and_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let places = Roots { sysfs: root.join("sys"), procfs: root.join("proc"), ..Roots::default() };
        assert!(!is_there(&places));
        write(root, "sys/fs/lustre/health_check", "healthy\n");
        write(root, "sys/kernel/debug/lustre/llite/lustre-ffff9f1b2c3d4e00/stats", STATS);
        write(root, "proc/fs/lustre/osc/lustre-OST0001-osc-ffff9f1b2c3d4e00/import", IMPORT);
        let state = "sys/fs/lustre/mdc/lustre-MDT0000-mdc-ffff9f1b2c3d4e00/state";
        write(root, state, "current_state: EVICTED\nstate_history:\n - [ 1795227416, FULL ]\n");
        assert!(is_there(&places));
        let up = |name: &str, up: bool| (name.to_owned(), up);
        let all = [up("lustre-MDT0000-mdc", false), up("lustre-OST0001-osc", true)];
        assert_eq!(connections(&places), BTreeMap::from(all));
        let bench = testing::Bench::new(places);
        let (mut lustre, mut conditions) = (Lustre::default(), Conditions::default());
        let start = Instant::now();
        let mut page = |seconds: u64| {
            let (cx, mut out) = (bench.context(), Samples::default());
            lustre.collect(&cx, &mut conditions, start + Duration::from_secs(seconds), &mut out);
            (out, bench.published())
        };
        let (out, published) = page(0);
        for (family, labels, want) in [
            (&HEALTHY, &[][..], Some(1.0)),
            (&IMPORTS, &["osc", "FULL"], Some(1.0)),
            (&IMPORTS, &["mdc", "EVICTED"], Some(1.0)),
            (&IMPORT_INFO, &["lustre-MDT0000", "mdc", "EVICTED"], Some(1.0)),
            (&IMPORT_INFO, &["lustre-OST0001", "osc", "FULL"], None),
            (&IMPORTS_LEFT_OUT, &[], Some(0.0)),
            (&READ, &["lustre"], Some(10_485_760.0)),
            (&WRITTEN, &["lustre"], Some(8192.0)),
            (&OPERATIONS, &["lustre", "read"], Some(10.0)),
            (&OPERATIONS, &["lustre", "getattr"], Some(4.0)),
        ] {
            assert_eq!(out.get(family, labels), want, "{} {labels:?}", family.name);
        }
        assert!(published.is_empty() && page(29).1.is_empty());
        let published = page(30).1;
        assert_eq!(
            published[0].text.as_deref(),
            Some("no connection to Lustre target lustre-MDT0000 (EVICTED)")
        );
        assert_eq!((published.len(), published[0].code), (1, Some(1)));
        write(root, state, "current_state: FULL\n");
        write(root, "sys/fs/lustre/health_check", "NOT HEALTHY\n");
        let (out, published) = page(31);
        assert_eq!(out.get(&HEALTHY, &[]), Some(0.0));
        let said: Vec<_> = published.iter().map(|e| (e.code, e.text.as_deref().unwrap())).collect();
        assert_eq!(
            said,
            [
                (Some(1), "the Lustre client says: NOT HEALTHY"),
                (Some(0), "the connection to Lustre target lustre-MDT0000 is back")
            ]
        );
    }

    #[test]
    fn thousands_of_targets_are_a_few_series() {
        let import = |nth: usize, state: &str| Import {
            target: format!("lustre-OST{nth:04x}"),
            kind: "osc",
            state: state.into(),
        };
        let imports: Vec<Import> =
            (0..3000).map(|nth| import(nth, if nth < 100 { "DISCONN" } else { "FULL" })).collect();
        let mut out = Samples::default();
        write_imports(&imports, &mut out);
        assert_eq!((out.rows(&IMPORTS).count(), out.rows(&IMPORT_INFO).count()), (2, MAX_SHOWN));
        assert_eq!(out.get(&IMPORTS, &["osc", "FULL"]), Some(2900.0));
        assert_eq!(out.get(&IMPORTS_LEFT_OUT, &[]), Some(36.0));
    }

    #[test]
    fn of_a_file_system_that_is_mounted_twice_the_connection_that_is_down_counts() {
        for (first, second) in [("FULL", "DISCONN"), ("DISCONN", "FULL")] {
            let dir = tempfile::tempdir().unwrap();
            for (mount, state) in [("ffff0000", first), ("ffff1111", second)] {
                let path = format!("sys/fs/lustre/osc/lustre-OST0001-osc-{mount}/state");
                write(dir.path(), &path, &format!("current_state: {state}\n"));
            }
            let places = Roots { sysfs: dir.path().join("sys"), ..Roots::default() };
            assert_eq!(connections(&places).get("lustre-OST0001-osc"), Some(&false), "{first} {second}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String, at in 0usize..300, with: char) {
            let _ = (state(&text), text.lines().filter_map(counter).count());
            let mutate = |text: &str| text.chars().enumerate().map(|(i, c)| if i == at { with } else { c }).collect::<String>();
            let _ = state(&mutate(IMPORT));
            proptest::prop_assert!(mutate(STATS).lines().filter_map(counter).count() <= 5);
        }
    }
}

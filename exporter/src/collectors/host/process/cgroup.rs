//! The effects of control groups on training processes: CPU throttling, memory limits, kills,
//! pressure.
//!
//! A limit is usually set some levels above the process, at the pod or the job. So each resource is
//! read from the nearest ancestor group that limits it; without one, memory is read from the
//! process's own group. Both versions of cgroups and their hybrid are supported.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use crate::clock::unix_now;
use crate::collector::Context;
use crate::condition::Conditions;
use crate::family::Family;
use crate::roots::{self, Roots};
use crate::samples::Samples;
use crate::training::TrainingProcess;

const GROUP: &[&str] = &["run", "cgroup"];

pub(super) static THROTTLED: Family = Family::counter(
    "job_cgroup_cpu_throttled_seconds_total",
    "seconds",
    GROUP,
    "Time that processes of the control group wanted to run and its CPU limit did not let them, added up over CPUs",
);
pub(super) static PERIODS: Family = Family::counter(
    "job_cgroup_cpu_periods_total",
    "",
    GROUP,
    "Periods of the CPU limit in which processes of the control group ran",
);
pub(super) static THROTTLED_PERIODS: Family = Family::counter(
    "job_cgroup_cpu_throttled_periods_total",
    "",
    GROUP,
    "Those of the periods in which the limit was reached",
);
pub(super) static MEMORY: Family = Family::gauge(
    "job_cgroup_memory_bytes",
    "bytes",
    GROUP,
    "Host memory that the control group holds, file cache included",
);
pub(super) static MEMORY_LIMIT: Family = Family::gauge(
    "job_cgroup_memory_limit_bytes",
    "bytes",
    GROUP,
    "Host memory that the control group may hold; absent without a limit",
);
pub(super) static MEMORY_HITS: Family = Family::counter(
    "job_cgroup_memory_limit_hits_total",
    "",
    GROUP,
    "How often the control group was at its memory limit and had to give something back first",
);
pub(super) static OOM_KILLS: Family = Family::counter(
    "job_cgroup_oom_kills_total",
    "",
    GROUP,
    "Processes of the control group that the kernel killed for want of memory",
);
pub(super) static PRESSURE: Family = Family::counter(
    "job_cgroup_pressure_seconds_total",
    "seconds",
    &["run", "cgroup", "resource", "of"],
    "Time in which some or all of the processes of the control group waited for the resource",
);

const CONDITION: NodeCondition = NodeCondition::CgroupThrottled;
/// The most groups that are read in one pass.
const MAX_GROUPS: usize = 64;
/// The most levels upwards that are searched for a limit.
const MAX_LEVELS: usize = 16;
/// Version 1 writes a value above this one if there is no limit.
const NO_LIMIT: u64 = 1 << 60;
/// Shares of throttled periods: throttling is reported from the first, and over below the second.
const MUCH: f64 = 0.25;
const LITTLE: f64 = 0.1;
/// How long it must last to be reported.
const GRACE: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(super) struct Cgroups {
    throttles: BTreeMap<(String, String), Throttle>,
    conditions: Conditions,
}

/// The CPU limit of a group at the last pass.
#[derive(Debug, Clone, Copy)]
struct Throttle {
    cpu: Cpu,
    /// Since when it has throttled much, and the last share of throttled periods.
    since: Option<(Instant, f64)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cpu {
    periods: u64,
    throttled: u64,
    seconds: f64,
}

/// A group of one resource: the directory of its files, and its path in its hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    dir: PathBuf,
    path: String,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Cgroups {
    pub(super) fn collect(
        &mut self,
        cx: &Context<'_>,
        processes: &[TrainingProcess],
        now: Instant,
        out: &mut Samples,
    ) {
        let (mut cpus, mut memories) = (BTreeMap::new(), BTreeMap::new());
        for process in processes {
            let path = cx.roots.proc(process.pid.to_string()).join("cgroup");
            let Some(text) = roots::read(&path) else { continue };
            for (controller, groups) in [("cpu", &mut cpus), ("memory", &mut memories)] {
                let Some(group) = limiting(cx.roots, &text, controller) else { continue };
                if groups.len() < MAX_GROUPS {
                    groups.entry((process.run.clone(), group.path.clone())).or_insert(group);
                }
            }
        }
        for ((run, _), group) in &memories {
            group.write_memory(run, out);
        }
        let mut throttles = BTreeMap::new();
        for (key, group) in cpus {
            let Some(cpu) = group.cpu() else { continue };
            let labels: &[&str] = &[&key.0, &key.1];
            out.set(&PERIODS, labels, cpu.periods);
            out.set(&THROTTLED_PERIODS, labels, cpu.throttled);
            out.set(&THROTTLED, labels, cpu.seconds);
            let since = self.throttles.get(&key).and_then(|before| before.next(&cpu, now));
            throttles.insert(key, Throttle { cpu, since });
        }
        self.throttles = throttles;
        self.report(cx, now);
    }

    fn report(&mut self, cx: &Context<'_>, now: Instant) {
        for ((run, path), throttle) in &self.throttles {
            let held = throttle.since.is_some_and(|(since, _)| now - since >= GRACE);
            let part = throttle.since.map_or(0.0, |(_, part)| part);
            self.conditions.report(cx, CONDITION, path, held, || {
                let text = if held {
                    format!(
                        "the CPU limit of {path} holds back processes of run {run} in {:.0} % of its periods",
                        part * 100.0
                    )
                } else {
                    format!("the CPU limit of {path} holds back little of run {run} any more")
                };
                event(path, text)
            });
        }
        for path in self.conditions.keys(CONDITION) {
            if self.throttles.keys().all(|(_, p)| *p != path) {
                let over = || event(&path, format!("{path} has no training process any more"));
                self.conditions.report(cx, CONDITION, &path, false, over);
            }
        }
    }
}

fn event(path: &str, text: String) -> Event {
    let mut event =
        Event { ts: Some(unix_now()), level: Some("warn".into()), text: Some(text), ..Event::new(Kind::Hw) };
    event.extra.insert("cgroup".into(), Value::Text(path.to_owned()));
    event
}

impl Throttle {
    /// The new value of `since`; `None` if the group is not throttled much now.
    fn next(&self, cpu: &Cpu, now: Instant) -> Option<(Instant, f64)> {
        let periods = cpu.periods.checked_sub(self.cpu.periods).filter(|n| *n > 0)?;
        let throttled = cpu.throttled.checked_sub(self.cpu.throttled)?;
        let part = throttled as f64 / periods as f64;
        let much = part >= if self.since.is_some() { LITTLE } else { MUCH };
        much.then(|| (self.since.map_or(now, |(since, _)| since), part))
    }
}

/// The nearest ancestor group that limits the controller's resource; for memory, else the own
/// group.
fn limiting(roots: &Roots, text: &str, controller: &str) -> Option<Group> {
    let own = of_controller(roots, text, controller)?;
    let limited = |group: &Group| match (controller, group.version) {
        ("cpu", Version::Two) => group.read("cpu.max").is_some_and(|max| !max.starts_with("max")),
        ("cpu", Version::One) => group.number("cpu.cfs_quota_us").is_some_and(|quota: i64| quota > 0),
        _ => group.memory_limit().is_some(),
    };
    let found = std::iter::successors(Some(own.clone()), Group::parent).take(MAX_LEVELS).find(limited);
    found.or_else(|| (controller == "memory").then_some(own))
}

/// Parses `4:memory:/slurm/job_1` of version 1 and `0::/slurm/job_1` of version 2.
fn of_controller(roots: &Roots, text: &str, controller: &str) -> Option<Group> {
    let base = roots.sys("fs/cgroup");
    let mut second = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        // A path that leads outside of this process's view cannot be read.
        if !Path::new(path).components().all(|c| matches!(c, Component::RootDir | Component::Normal(_))) {
            continue;
        }
        if controllers.is_empty() {
            let unified =
                if base.join("cgroup.controllers").exists() { base.clone() } else { base.join("unified") };
            second = Some(Group::new(&unified, path, Version::Two));
        } else if controllers.split(',').any(|c| c == controller) {
            let named =
                [controllers, controller].map(|name| base.join(name)).into_iter().find(|d| d.exists())?;
            return Some(Group::new(&named, path, Version::One));
        }
    }
    second.filter(|group| group.dir.exists())
}

impl Group {
    fn new(base: &Path, path: &str, version: Version) -> Self {
        Self { dir: base.join(path.trim_start_matches('/')), path: path.to_owned(), version }
    }

    fn parent(&self) -> Option<Self> {
        let path = Path::new(&self.path).parent()?.to_str()?.to_owned();
        Some(Self { dir: self.dir.parent()?.to_owned(), path, version: self.version })
    }

    fn read(&self, file: &str) -> Option<String> {
        roots::read(&self.dir.join(file))
    }

    fn number<T: std::str::FromStr>(&self, file: &str) -> Option<T> {
        roots::read_number(&self.dir.join(file))
    }

    fn memory_limit(&self) -> Option<u64> {
        match self.version {
            Version::One => self.number("memory.limit_in_bytes"),
            Version::Two => self.number("memory.max"),
        }
        .filter(|limit| *limit < NO_LIMIT)
    }

    fn cpu(&self) -> Option<Cpu> {
        let stat = self.read("cpu.stat")?;
        // Nanoseconds in version 1, microseconds in version 2.
        let seconds = match self.version {
            Version::One => keyed(&stat, "throttled_time")? as f64 / 1e9,
            Version::Two => keyed(&stat, "throttled_usec")? as f64 / 1e6,
        };
        Some(Cpu { periods: keyed(&stat, "nr_periods")?, throttled: keyed(&stat, "nr_throttled")?, seconds })
    }

    fn write_memory(&self, run: &str, out: &mut Samples) {
        let labels: &[&str] = &[run, &self.path];
        out.maybe(&MEMORY_LIMIT, labels, self.memory_limit());
        match self.version {
            Version::One => {
                out.maybe(&MEMORY, labels, self.number::<u64>("memory.usage_in_bytes"));
                out.maybe(&MEMORY_HITS, labels, self.number::<u64>("memory.failcnt"));
                let control = self.read("memory.oom_control").unwrap_or_default();
                out.maybe(&OOM_KILLS, labels, keyed(&control, "oom_kill"));
            }
            Version::Two => {
                out.maybe(&MEMORY, labels, self.number::<u64>("memory.current"));
                let events = self.read("memory.events").unwrap_or_default();
                out.maybe(&MEMORY_HITS, labels, keyed(&events, "max"));
                out.maybe(&OOM_KILLS, labels, keyed(&events, "oom_kill"));
                for resource in ["cpu", "memory", "io"] {
                    let text = self.read(&format!("{resource}.pressure")).unwrap_or_default();
                    for of in ["some", "full"] {
                        out.maybe(&PRESSURE, &[run, &self.path, resource, of], pressure(&text, of));
                    }
                }
            }
        }
    }
}

/// The value of a line such as `nr_periods 17`.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The total in seconds of `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`, which is in
/// microseconds.
fn pressure(text: &str, of: &str) -> Option<f64> {
    let line = text.lines().find_map(|l| l.strip_prefix(of)?.strip_prefix(' '))?;
    let total = line.split(' ').find_map(|word| word.strip_prefix("total="))?;
    total.parse::<u64>().ok().map(|micro| micro as f64 / 1e6)
}

#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(text: &str) {
    let _ = (keyed(text, "max"), pressure(text, "some"), of_controller(&Roots::default(), text, "cpu"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    fn process(pid: u32) -> TrainingProcess {
        TrainingProcess { pid, uid: 0, run: "r".into(), rank: pid.to_string() }
    }

    fn bench(root: &Path) -> testing::Bench {
        testing::Bench::new(Roots { procfs: root.join("proc"), sysfs: root.join("sys"), ..Roots::default() })
    }

    #[test]
    fn the_limit_of_a_pod_above_its_processes() {
        let dir = tempfile::tempdir().unwrap();
        let pod = "sys/fs/cgroup/kubepods.slice/pod1.slice";
        let file = |name: &str| format!("{pod}/{name}");
        let cpu = |throttled: u64, periods: u64| {
            let stat = format!("nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 2500000");
            write(dir.path(), &[(&file("cpu.stat"), &stat)]);
        };
        write(
            dir.path(),
            &[
                ("proc/7/cgroup", "0::/kubepods.slice/pod1.slice/c1.scope"),
                ("proc/8/cgroup", "0::/kubepods.slice/pod1.slice/c1.scope"),
                ("proc/9/cgroup", "0::/../elsewhere"),
                ("sys/fs/cgroup/cgroup.controllers", "cpu memory"),
                (&file("c1.scope/cpu.max"), "max 100000"),
                (&file("c1.scope/memory.max"), "max"),
                (&file("cpu.max"), "800000 100000"),
                (&file("memory.max"), "1000000"),
                (&file("memory.current"), "900000"),
                (&file("memory.events"), "low 0\nhigh 0\nmax 41\noom 2\noom_kill 1\noom_group_kill 0"),
                (
                    &file("memory.pressure"),
                    "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 total=500000",
                ),
            ],
        );
        cpu(0, 100);
        let (bench, mut groups) = (bench(dir.path()), Cgroups::default());
        let processes = [process(7), process(8), process(9), process(10)];
        let start = Instant::now();
        let mut page = |seconds: u64| {
            let mut out = Samples::default();
            groups.collect(&bench.context(), &processes, start + Duration::from_secs(seconds), &mut out);
            (out, bench.published())
        };
        let (out, _) = page(0);
        let labels = ["r", "/kubepods.slice/pod1.slice"];
        let all = |resource, of| ["r", labels[1], resource, of];
        for (family, labels, want) in [
            (&THROTTLED, &labels[..], Some(2.5)),
            (&PERIODS, &labels, Some(100.0)),
            (&MEMORY, &labels, Some(900_000.0)),
            (&MEMORY_LIMIT, &labels, Some(1_000_000.0)),
            (&MEMORY_HITS, &labels, Some(41.0)),
            (&OOM_KILLS, &labels, Some(1.0)),
            (&PRESSURE, &all("memory", "some"), Some(1.5)),
            (&PRESSURE, &all("memory", "full"), Some(0.5)),
            (&PRESSURE, &all("io", "some"), None),
        ] {
            assert_eq!(out.get(family, labels), want, "{} {labels:?}", family.name);
        }
        assert_eq!(out.rows(&MEMORY).count(), 1, "once for all of its processes");
        // The group is throttled in 40 % of periods for more than a minute.
        let mut published = Vec::new();
        for second in [10, 40, 69, 70] {
            cpu(second * 4, 100 + second * 10);
            published = page(second).1;
            assert!(published.is_empty() == (second < 70), "{second} {published:?}");
        }
        let text = "the CPU limit of /kubepods.slice/pod1.slice holds back processes of run r in 40 % of its periods";
        assert_eq!(published[0].text.as_deref(), Some(text));
        cpu(280, 1000);
        assert_eq!(page(80).1[0].code, Some(0));
    }

    #[test]
    fn version_one_and_a_group_without_limits() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[
                ("proc/7/cgroup", "4:memory:/slurm/job_1/step_0\n3:cpu,cpuacct:/slurm/job_1\n0::/"),
                ("sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes", "5000"),
                ("sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes", "4000"),
                ("sys/fs/cgroup/memory/slurm/job_1/memory.failcnt", "3"),
                (
                    "sys/fs/cgroup/memory/slurm/job_1/memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
                ),
                ("sys/fs/cgroup/memory/slurm/job_1/step_0/memory.limit_in_bytes", "9223372036854771712"),
                ("sys/fs/cgroup/cpu,cpuacct/slurm/job_1/cpu.cfs_quota_us", "-1"),
                (
                    "sys/fs/cgroup/cpu,cpuacct/slurm/job_1/cpu.stat",
                    "nr_periods 0\nnr_throttled 0\nthrottled_time 0",
                ),
            ],
        );
        let (bench, mut groups, mut out) = (bench(dir.path()), Cgroups::default(), Samples::default());
        groups.collect(&bench.context(), &[process(7)], Instant::now(), &mut out);
        let labels = ["r", "/slurm/job_1"];
        assert_eq!((out.get(&MEMORY, &labels), out.get(&OOM_KILLS, &labels)), (Some(4000.0), Some(2.0)));
        assert_eq!(
            (out.get(&MEMORY_HITS, &labels), out.get(&MEMORY_LIMIT, &labels)),
            (Some(3.0), Some(5000.0))
        );
        assert_eq!(out.rows(&PERIODS).count(), 0, "nothing limits its CPU");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String) {
            fuzz(&text);
        }
    }
}

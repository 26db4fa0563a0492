//! The training processes, and the facts about the node that explain why they wait or die: memory,
//! load, processes stuck in the kernel, out-of-memory kills, limits of control groups.
//!
//! Training processes are known from the ingest socket: the kernel gives their credentials, so they
//! cannot be forged. General metrics of the node are left to node_exporter.

mod blocked;
mod cgroup;

use std::path::Path;
use std::time::{Duration, Instant};

use stepwatch_kit::config::Period;

use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family::Family;
use crate::family_filter::Metrics;
#[cfg(any(test, feature = "fuzz"))]
use crate::processes::stat;
use crate::processes::stat::read_stat;
use crate::roots::{self, Roots};
use crate::samples::Samples;
use crate::training::TrainingProcess;

pub const ABOUT: &str = "training processes, memory and load of the node";
pub const NEEDS: &str = "/proc and /sys/fs/cgroup; any user, and CAP_SYS_PTRACE for some values";
pub const COST: &str = "some 10 small files a training process";

const RANK: &[&str] = &["run", "rank"];

pub static INFO: Family = Family::gauge(
    "job_process_info",
    "",
    &["run", "rank", "pid", "command"],
    "Process of the rank; always 1",
);
pub static RESIDENT: Family = Family::gauge(
    "job_process_resident_memory_bytes",
    "bytes",
    RANK,
    "Host memory that the rank's process holds",
);
pub static SWAPPED: Family = Family::gauge(
    "job_process_swapped_memory_bytes",
    "bytes",
    RANK,
    "Memory of the rank's process that is swapped out",
);
pub static CPU: Family = Family::counter(
    "job_process_cpu_seconds_total",
    "seconds",
    &["run", "rank", "mode"],
    "CPU time of the rank's process, its threads included",
);
pub static THREADS: Family = Family::gauge("job_process_threads", "", RANK, "Threads of the rank's process");
pub static UNINTERRUPTIBLE: Family = Family::gauge(
    "job_process_uninterruptible",
    "",
    RANK,
    "Whether the rank's main thread waits in the kernel and cannot be killed: a disk, a network file system, a driver",
);
pub static UNINTERRUPTIBLE_THREADS: Family = Family::gauge(
    "job_process_uninterruptible_threads",
    "",
    RANK,
    "Threads of the rank's process that wait in the kernel and cannot be killed; looked at twice a minute",
);
pub static MAJOR_FAULTS: Family = Family::counter(
    "job_process_major_page_faults_total",
    "",
    RANK,
    "Times that the rank's process waited for a page of memory to be read from a disk",
);
pub static OPEN_FILES: Family = Family::gauge(
    "job_process_open_files",
    "",
    RANK,
    "Files and sockets that the rank's process has open; absent where we may not look",
);
pub static MAX_OPEN_FILES: Family = Family::gauge(
    "job_process_max_open_files",
    "",
    RANK,
    "Files and sockets that the rank's process may have open",
);
pub static OOM_SCORE: Family = Family::gauge(
    "job_process_oom_score",
    "",
    RANK,
    "How likely the kernel is to kill the rank's process when memory runs out; above 666 it is near the top of the list",
);
pub static STARTED: Family = Family::gauge(
    "job_process_start_timestamp_seconds",
    "seconds",
    RANK,
    "Unix time at which the rank's process started",
);
pub static LOAD: Family = Family::gauge(
    "kernel_load_average",
    "",
    &["window"],
    "Processes that run or wait, averaged over the window",
);
pub static MEMORY_TOTAL: Family =
    Family::gauge("kernel_memory_total_bytes", "bytes", &[], "Memory of the node");
pub static MEMORY_AVAILABLE: Family = Family::gauge(
    "kernel_memory_available_bytes",
    "bytes",
    &[],
    "Memory that a program could still get without swapping",
);
pub static BLOCKED: Family = Family::gauge(
    "kernel_blocked_processes",
    "",
    &[],
    "Processes of the node that wait in the kernel for I/O",
);
pub static OOM_KILLS: Family =
    Family::counter("kernel_oom_kills_total", "", &[], "Processes that the kernel killed for want of memory");
pub static HUNG_TASKS: Family = Family::counter(
    "kernel_hung_tasks_total",
    "",
    &[],
    "Tasks that the kernel found to wait for minutes without moving; absent on kernels before 6.13",
);
pub static BOOTED: Family =
    Family::gauge("kernel_boot_timestamp_seconds", "seconds", &[], "Unix time at which the node booted");

pub static FAMILIES: &[&Family] = &[
    &INFO,
    &RESIDENT,
    &SWAPPED,
    &CPU,
    &THREADS,
    &UNINTERRUPTIBLE,
    &UNINTERRUPTIBLE_THREADS,
    &MAJOR_FAULTS,
    &OPEN_FILES,
    &MAX_OPEN_FILES,
    &OOM_SCORE,
    &STARTED,
    &LOAD,
    &MEMORY_TOTAL,
    &MEMORY_AVAILABLE,
    &BLOCKED,
    &OOM_KILLS,
    &HUNG_TASKS,
    &BOOTED,
    &cgroup::THROTTLED,
    &cgroup::PERIODS,
    &cgroup::THROTTLED_PERIODS,
    &cgroup::MEMORY,
    &cgroup::MEMORY_LIMIT,
    &cgroup::MEMORY_HITS,
    &cgroup::OOM_KILLS,
    &cgroup::PRESSURE,
];

const MAX_PROCESSES: usize = 1024;
/// The most open files that are counted if the kernel does not give their number.
const MAX_OPEN: usize = 65_536;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// A training process is reported if one of its threads has waited in the kernel for this long.
    pub blocked_after: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval).period("blocked_after", self.blocked_after)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(5),
            blocked_after: Period::secs(60),
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(5) }
}

#[derive(Debug)]
pub struct ProcessReader {
    blocked: blocked::Blocked,
    cgroups: cgroup::Cgroups,
}

impl ProcessReader {
    pub fn new(config: &Config) -> Self {
        let blocked = blocked::Blocked::new(config.blocked_after.into());
        Self { blocked, cgroups: cgroup::Cgroups::default() }
    }
}

impl Collector for ProcessReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let path = cx.roots.proc("stat");
        std::fs::metadata(&path).map_err(|e| CollectError::read(&path, e))?;
        Ok(Support::Supported(format!("{} training processes", cx.hub.processes(cx.roots).len())))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let path = cx.roots.proc("stat");
        let stat = std::fs::read_to_string(&path).map_err(|e| CollectError::read(&path, e))?;
        let booted = line_number(&stat, "btime ");
        write_node(cx.roots, &stat, out);
        let mut processes = cx.hub.processes(cx.roots);
        processes.truncate(MAX_PROCESSES);
        for process in &processes {
            write_process(cx.roots, process, booted, out);
        }
        let now = Instant::now();
        self.blocked.collect(cx, &processes, now, out);
        self.cgroups.collect(cx, &processes, now, out);
        Ok(())
    }
}

fn write_node(roots: &Roots, stat: &str, out: &mut Samples) {
    let load = roots::read(&roots.proc("loadavg")).unwrap_or_default();
    for (window, value) in ["1m", "5m", "15m"].iter().zip(load.split_whitespace()) {
        out.maybe(&LOAD, &[window], value.parse::<f64>().ok());
    }
    let memory = roots::read(&roots.proc("meminfo")).unwrap_or_default();
    let kib = |key| line_number(&memory, key).map(|v| v * 1024.0);
    out.maybe(&MEMORY_TOTAL, &[], kib("MemTotal:"));
    out.maybe(&MEMORY_AVAILABLE, &[], kib("MemAvailable:"));
    out.maybe(&BLOCKED, &[], line_number(stat, "procs_blocked "));
    out.maybe(&BOOTED, &[], line_number(stat, "btime "));
    let vmstat = roots::read(&roots.proc("vmstat")).unwrap_or_default();
    out.maybe(&OOM_KILLS, &[], line_number(&vmstat, "oom_kill "));
    let hung = roots.proc("sys/kernel/hung_task_detect_count");
    out.maybe(&HUNG_TASKS, &[], roots::read_number::<u64>(&hung));
}

fn write_process(roots: &Roots, process: &TrainingProcess, booted: Option<f64>, out: &mut Samples) {
    let dir = roots.proc(process.pid.to_string());
    let Some(stat) = read_stat(roots, process.pid) else { return };
    let (run, rank) = (process.run.as_str(), process.rank.as_str());
    let labels: &[&str] = &[run, rank];
    out.set(&INFO, &[run, rank, &process.pid.to_string(), &stat.command], 1u64);
    out.set(&CPU, &[run, rank, "user"], stat.user_seconds);
    out.set(&CPU, &[run, rank, "system"], stat.system_seconds);
    out.set(&THREADS, labels, stat.threads);
    out.set(&UNINTERRUPTIBLE, labels, stat.is_uninterruptible());
    out.maybe(&STARTED, labels, booted.map(|b| b + stat.started));
    out.maybe(&RESIDENT, labels, status_bytes(roots, process.pid, "VmRSS:"));
    out.maybe(&SWAPPED, labels, status_bytes(roots, process.pid, "VmSwap:"));
    out.set(&MAJOR_FAULTS, labels, stat.major_faults);
    out.maybe(&OPEN_FILES, labels, open_files(&dir.join("fd")));
    out.maybe(&MAX_OPEN_FILES, labels, roots::read(&dir.join("limits")).and_then(|l| max_open_files(&l)));
    out.maybe(&OOM_SCORE, labels, roots::read_number::<i64>(&dir.join("oom_score")));
}

/// The number of open files. From Linux 6.2 on, it is the size of the directory.
fn open_files(dir: &Path) -> Option<u64> {
    let entries = std::fs::read_dir(dir).ok()?;
    let size = std::fs::metadata(dir).ok().filter(|m| m.is_dir()).map(|m| m.len()).filter(|_| is_procfs(dir));
    size.filter(|count| *count > 0).or_else(|| Some(entries.take(MAX_OPEN).count() as u64))
}

/// Whether the directory is procfs. In other file systems the size of a directory differs in
/// meaning.
fn is_procfs(dir: &Path) -> bool {
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    rustix::fs::statfs(dir).is_ok_and(|fs| fs.f_type as u64 == PROC_SUPER_MAGIC)
}

/// Parses `Max open files 1024 524288 files` and returns the first limit.
fn max_open_files(limits: &str) -> Option<u64> {
    let rest = limits.lines().find_map(|l| l.strip_prefix("Max open files"))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// A size from `/proc/PID/status`, in bytes.
pub(crate) fn status_bytes(roots: &Roots, pid: u32, key: &str) -> Option<f64> {
    let status = roots::read(&roots.proc(pid.to_string()).join("status"))?;
    line_number(&status, key).map(|kib| kib * 1024.0)
}

/// The first number after `key` at the beginning of a line.
fn line_number(text: &str, key: &str) -> Option<f64> {
    let rest = text.lines().find_map(|l| l.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Parses the kernel's files of a process and its control groups, for the fuzzer.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = (stat::parse_stat(&text), max_open_files(&text), line_number(&text, "VmRSS:"));
    cgroup::fuzz(&text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::{Origin, Peer};
    use crate::processes::stat::parse_stat;
    use crate::testing;
    use stepwatch_wire::Event;

    const STAT: &str =
        "4242 (python3 (v) x) D 1 4242 4242 0 -1 4194560 100 0 17 0 1500 250 0 0 20 0 33 0 90000 1000 200 0";

    #[test]
    fn a_command_may_contain_anything() {
        let stat = parse_stat(STAT).unwrap();
        assert_eq!((stat.command.as_str(), stat.state, stat.threads), ("python3 (v) x", 'D', 33));
        assert_eq!((stat.user_seconds, stat.system_seconds, stat.started), (15.0, 2.5, 900.0));
    }

    #[test]
    fn training_processes_and_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("stat", "cpu 1 2 3\nbtime 1700000000\nprocs_blocked 2\n");
        write("loadavg", "1.5 0.7 0.3 2/300 999\n");
        write("meminfo", "MemTotal: 1000 kB\nMemAvailable:  400 kB\n");
        write("4242/stat", STAT);
        write("4242/status", "VmRSS:\t  2048 kB\nVmSwap:\t 0 kB\n");
        write("4242/oom_score", "700\n");
        write("4242/fd/0", "");
        write("4242/fd/1", "");
        write("4242/limits", "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  524288  files\n");
        write("sys/kernel/hung_task_detect_count", "4\n");
        let bench = testing::Bench::new(Roots { procfs: dir.path().into(), ..Roots::default() });
        for pid in [4242, 7] {
            let origin = Origin::Peer(Peer { connection: 1, pid: Some(pid), uid: 0 });
            let event = Event { rank: Some(pid), ..Event::step("r", 1) };
            bench.hub.publish(origin, event);
        }
        let page = bench.collect(&mut ProcessReader::new(&Config::default()));
        for (family, labels, want) in [
            (&RESIDENT, &["r", "4242"][..], Some(2_097_152.0)),
            (&CPU, &["r", "4242", "user"], Some(15.0)),
            (&UNINTERRUPTIBLE, &["r", "4242"], Some(1.0)),
            (&OOM_SCORE, &["r", "4242"], Some(700.0)),
            (&MAJOR_FAULTS, &["r", "4242"], Some(17.0)),
            (&OPEN_FILES, &["r", "4242"], Some(2.0)),
            (&MAX_OPEN_FILES, &["r", "4242"], Some(1024.0)),
            (&OPEN_FILES, &["r", "7"], None),
            (&HUNG_TASKS, &[], Some(4.0)),
            (&STARTED, &["r", "4242"], Some(1_700_000_900.0)),
            (&RESIDENT, &["r", "7"], None),
            (&LOAD, &["5m"], Some(0.7)),
            (&MEMORY_AVAILABLE, &[], Some(409_600.0)),
            (&BLOCKED, &[], Some(2.0)),
            (&OOM_KILLS, &[], None),
        ] {
            assert_eq!(page.get(family, labels), want, "{}", family.name);
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String, at in 0usize..60, with: char) {
            let _ = (parse_stat(&text), max_open_files(&text), line_number(&text, "a"));
            let mutated: String = STAT.chars().enumerate().map(|(i, c)| if i == at { with } else { c }).collect();
            let _ = parse_stat(&mutated);
        }
    }
}

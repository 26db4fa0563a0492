//! Detects threads of training processes that wait in the kernel without end: for a disk, a network
//! file system or a driver.
//!
//! A thread that is often found waiting may only be busy with I/O. Only a thread that was never
//! scheduled in between is reported.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use super::{UNINTERRUPTIBLE_THREADS, line_number};
use crate::clock::unix_now;
use crate::collector::Context;
use crate::condition::Conditions;
use crate::processes::stat::{Stat, parse_stat};
use crate::roots;
use crate::samples::Samples;
use crate::training::TrainingProcess;

const CONDITION: NodeCondition = NodeCondition::ProcessBlocked;
/// The most threads of one process that are inspected.
const MAX_THREADS: usize = 1024;
/// The interval between inspections, because a process has hundreds of threads.
const EVERY: Duration = Duration::from_secs(30);
/// The most bytes of the name of a kernel function.
const MAX_WCHAN: usize = 64;

#[derive(Debug)]
pub(super) struct Blocked {
    after: Duration,
    looked: Option<Instant>,
    /// The key is process and thread.
    waiting: BTreeMap<(u32, u32), Waiting>,
    /// The number of waiting threads of each rank at the last inspection.
    counts: BTreeMap<(String, String), u64>,
    conditions: Conditions,
}

/// A thread that waited at the last inspection.
#[derive(Debug, Clone)]
struct Waiting {
    since: Instant,
    /// Start time and context switches: if equal, it is the same thread and was not scheduled
    /// since.
    started: u64,
    switches: u64,
    command: String,
    wchan: String,
}

impl Blocked {
    pub(super) fn new(after: Duration) -> Self {
        Self {
            after,
            looked: None,
            waiting: BTreeMap::new(),
            counts: BTreeMap::new(),
            conditions: Conditions::default(),
        }
    }

    pub(super) fn collect(
        &mut self,
        cx: &Context<'_>,
        processes: &[TrainingProcess],
        now: Instant,
        out: &mut Samples,
    ) {
        if self.looked.is_none_or(|at| now - at >= EVERY.min(self.after / 2)) {
            self.looked = Some(now);
            self.look(cx, processes, now);
        }
        for ((run, rank), count) in &self.counts {
            out.set(&UNINTERRUPTIBLE_THREADS, &[run, rank], *count);
        }
    }

    fn look(&mut self, cx: &Context<'_>, processes: &[TrainingProcess], now: Instant) {
        let mut waiting = BTreeMap::new();
        self.counts.clear();
        for process in processes {
            let mut count = 0;
            let dir = cx.roots.proc(process.pid.to_string()).join("task");
            let Ok(threads) = std::fs::read_dir(dir) else { continue };
            let names = threads.take(MAX_THREADS).filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
            for thread in names {
                let Some(found) = thread_waiting(cx, process.pid, thread, now) else { continue };
                count += 1;
                let key = (process.pid, thread);
                let before = self.waiting.get(&key).filter(|before| before.still(&found));
                waiting.insert(key, before.cloned().unwrap_or(found));
            }
            self.counts.insert((process.run.clone(), process.rank.clone()), count);
        }
        self.waiting = waiting;
        for process in processes {
            self.report(cx, process, now);
        }
        for key in self.conditions.keys(CONDITION) {
            if processes.iter().all(|p| p.pid.to_string() != key) {
                let over = || event(key.parse().unwrap_or(0), format!("process {key} is gone"));
                self.conditions.report(cx, CONDITION, &key, false, over);
            }
        }
    }

    /// Reports a process with the thread that has waited longest.
    fn report(&mut self, cx: &Context<'_>, process: &TrainingProcess, now: Instant) {
        let of_it = self.waiting.range((process.pid, 0)..=(process.pid, u32::MAX));
        let longest = of_it.min_by_key(|(_, w)| w.since).filter(|(_, w)| now - w.since >= self.after);
        let TrainingProcess { pid, run, rank, .. } = process;
        self.conditions.report(cx, CONDITION, &pid.to_string(), longest.is_some(), || {
            let Some(((_, thread), waiting)) = longest else {
                return event(*pid, format!("process {pid} (rank {rank} of {run}) moves again"));
            };
            let seconds = (now - waiting.since).as_secs_f64();
            let within = if waiting.wchan.is_empty() { String::new() } else { format!(", in {}", waiting.wchan) };
            let which = if thread == pid { String::new() } else { format!("thread {thread} of ") };
            let mut event = event(
                *pid,
                format!("{which}process {pid} (rank {rank} of {run}) has waited in the kernel for {seconds:.0} s{within}, and cannot be killed"),
            );
            for (key, value) in [
                ("wchan", waiting.wchan.clone()),
                ("process", waiting.command.clone()),
                ("of_run", run.clone()),
                ("of_rank", rank.clone()),
            ] {
                event.extra.insert(key.into(), Value::Text(value));
            }
            event.extra.insert("seconds".into(), Value::Number(seconds.round()));
            event
        });
    }
}

impl Waiting {
    fn still(&self, now: &Self) -> bool {
        self.started == now.started && self.switches == now.switches
    }
}

fn event(pid: u32, text: String) -> Event {
    let mut event =
        Event { ts: Some(unix_now()), level: Some("error".into()), text: Some(text), ..Event::new(Kind::Hw) };
    event.extra.insert("pid".into(), Value::Number(f64::from(pid)));
    event
}

/// The kernel functions that wait for the child of a `vfork`, by kernel version.
const FORKS: [&str; 4] = ["kernel_clone", "wait_for_vfork_done", "_do_fork", "do_fork"];

fn thread_waiting(cx: &Context<'_>, pid: u32, thread: u32, now: Instant) -> Option<Waiting> {
    let dir = cx.roots.proc(pid.to_string()).join("task").join(thread.to_string());
    let stat = parse_stat(&roots::read(&dir.join("stat"))?).filter(Stat::is_uninterruptible)?;
    let status = roots::read(&dir.join("status")).unwrap_or_default();
    let switches = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
    let switches = switches.iter().filter_map(|key| line_number(&status, key)).sum::<f64>();
    // Without the right to read it, it is 0.
    let wchan = roots::read(&dir.join("wchan")).filter(|w| w != "0").unwrap_or_default();
    // The parent of a `vfork` waits as long as its child runs, and can be killed.
    if FORKS.contains(&wchan.as_str()) {
        return None;
    }
    Some(Waiting {
        since: now,
        started: stat.start_ticks(),
        switches: switches as u64,
        command: stat.command,
        wchan: wchan.chars().take(MAX_WCHAN).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::Roots;
    use crate::testing;

    #[test]
    fn a_thread_that_does_not_move_is_reported_and_one_that_is_busy_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let bench = testing::Bench::new(Roots { procfs: dir.path().into(), ..Roots::default() });
        let thread = |tid: u32, state: char, switches: u64| {
            let task = dir.path().join(format!("7/task/{tid}"));
            std::fs::create_dir_all(&task).unwrap();
            let stat = format!("{tid} (pt_ckpt) {state} 1 7 7 0 -1 0 0 0 9 0 1 1 0 0 20 0 33 0 90000 0 0 0");
            std::fs::write(task.join("stat"), stat).unwrap();
            let status =
                format!("Name:\tx\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t1\n");
            std::fs::write(task.join("status"), status).unwrap();
            std::fs::write(task.join("wchan"), "nfs_wait_bit_killable").unwrap();
        };
        let process = TrainingProcess { pid: 7, uid: 0, run: "llama".into(), rank: "3".into() };
        let mut blocked = Blocked::new(Duration::from_mins(1));
        let start = Instant::now();
        let mut at = |seconds: u64, processes: &[TrainingProcess]| {
            let mut out = Samples::default();
            blocked.collect(&bench.context(), processes, start + Duration::from_secs(seconds), &mut out);
            (out.get(&UNINTERRUPTIBLE_THREADS, &["llama", "3"]), bench.published())
        };
        let one = std::slice::from_ref(&process);
        thread(7, 'S', 5);
        thread(8, 'D', 10);
        assert_eq!(at(0, one), (Some(2.0 - 1.0), vec![]));
        thread(8, 'D', 11);
        assert!(at(30, one).1.is_empty(), "it was scheduled in between");
        assert!(at(60, one).1.is_empty());
        let (count, published) = at(90, one);
        assert_eq!(count, Some(1.0));
        let text = "thread 8 of process 7 (rank 3 of llama) has waited in the kernel for 60 s, in nfs_wait_bit_killable, and cannot be killed";
        assert_eq!((published[0].text.as_deref(), published[0].run.as_deref()), (Some(text), None));
        assert_eq!(published[0].extra.get("pid"), Some(&Value::Number(7.0)));
        thread(8, 'S', 12);
        let (count, published) = at(120, one);
        assert_eq!((count, published[0].code), (Some(0.0), Some(0)));
        thread(7, 'I', 5);
        at(150, one);
        let (_, published) = at(210, one);
        assert!(published[0].text.as_deref().unwrap().starts_with("process 7 (rank 3"), "{published:?}");
        let (count, published) = at(240, &[]);
        assert_eq!((count, published[0].text.as_deref()), (None, Some("process 7 is gone")));
    }
}

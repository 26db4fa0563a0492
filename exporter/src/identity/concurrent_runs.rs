//! Several trainings of one job at one time, as in a job that packs a sweep: each is a run.
//!
//! The rule of [`stepwatch_wire::run_name`] gives all processes of a job one name, and their ranks
//! distinguish them. The first process that declares a rank keeps the run of the job. Another that
//! declares the same rank while the first is connected, where neither started the other, gets a run
//! beside it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use stepwatch_wire::run_name::{Process, marks};

use super::chain::chain;
use crate::lock::Locked as _;
use crate::origin::Origin;
use crate::processes::stat::read_stat;
use crate::roots::Roots;

/// Processes, and sources of theirs, that are remembered.
const MAX_APART: usize = 1024;

/// Which processes and sources are of a run beside that of their job.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    /// There is one at all.
    any: AtomicBool,
    state: Mutex<State>,
    /// Processes that send `hello` are decided one after the other.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// By pid and the run that the process declares.
    processes: BTreeMap<(u32, String), Beside>,
    /// By the name of a source and the run that it declares.
    sources: BTreeMap<(String, String), String>,
}

/// A run beside that of its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Beside {
    pub(crate) run: String,
    /// For people.
    pub(crate) note: String,
}

impl Apart {
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.locked()
    }

    /// The run that a process which reports `run` belongs to, if it is another one.
    pub(crate) fn called(&self, origin: &Origin, run: &str) -> Option<String> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        if let Some(pid) = origin.pid() {
            return self.of_process(pid, run);
        }
        let key = (origin.name()?.to_string(), run.to_owned());
        self.state.locked().sources.get(&key).cloned()
    }

    /// The same of a process.
    pub(crate) fn of_process(&self, pid: u32, run: &str) -> Option<String> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let key = (pid, run.to_owned());
        self.state.locked().processes.get(&key).map(|beside| beside.run.clone())
    }

    /// A note on the run for people.
    pub(crate) fn note(&self, run: &str) -> Option<String> {
        let state = self.state.locked();
        state.processes.values().find(|beside| beside.run == run).map(|beside| beside.note.clone())
    }

    /// Another process may have the pid now.
    pub(crate) fn forget(&self, pid: u32, run: &str) {
        if self.any.load(Ordering::Acquire) {
            self.state.locked().processes.remove(&(pid, run.to_owned()));
        }
    }

    /// Puts a process with its sources to a run beside `run`; false where there is no room.
    pub(crate) fn put(&self, pid: u32, run: &str, beside: Beside) -> bool {
        let mut state = self.state.locked();
        if state.processes.len() >= MAX_APART {
            let roots = Roots::default();
            state.processes.retain(|(pid, _), _| is_running(&roots, *pid));
            let State { processes, sources } = &mut *state;
            sources.retain(|_, own| processes.values().any(|beside| beside.run == *own));
        }
        let has_room = state.processes.len() < MAX_APART;
        if has_room {
            state.processes.insert((pid, run.to_owned()), beside);
            self.any.store(true, Ordering::Release);
        }
        has_room
    }

    /// Puts sources of such a process there.
    pub(crate) fn put_sources(&self, sources: Vec<String>, run: &str, own: &str) {
        let mut state = self.state.locked();
        for source in sources {
            if state.sources.len() < MAX_APART {
                state.sources.insert((source, run.to_owned()), own.to_owned());
            }
        }
    }
}

/// Whether `other` lives and trains something else than the process: neither started the other, and
/// nothing forked both. Where a process may not be looked at, the answer is no.
pub(crate) fn is_other_training(roots: &Roots, process: &[Process], other: u32) -> bool {
    if !is_running(roots, other) {
        return false;
    }
    let other = chain(roots, other);
    let (Some(first), Some(second)) = (process.first(), other.first()) else { return false };
    let is_in = |one: &Process, of: &[Process]| of.iter().any(|p| p.mark == one.mark);
    let forked = |chain| marks(chain).map(|marks| marks.process);
    !is_in(first, &other) && !is_in(second, process) && forked(process) != forked(&other)
}

fn is_running(roots: &Roots, pid: u32) -> bool {
    read_stat(roots, pid).is_some_and(|stat| !stat.is_over())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_or_started_the_other_is_no_other_training() {
        let roots = Roots::default();
        let own = chain(&roots, std::process::id());
        assert!(!is_other_training(&roots, &own, std::process::id()), "itself");
        assert!(!is_other_training(&roots, &own, std::os::unix::process::parent_id()), "its parent");
        assert!(!is_other_training(&roots, &own, u32::MAX), "nobody");
    }

    #[test]
    fn memory_is_bounded() {
        let apart = Apart::default();
        let beside = || Beside { run: "a.1".into(), note: String::new() };
        for pid in 0..2 * MAX_APART {
            // No machine has these pids, so they give way.
            apart.put(u32::MAX - pid as u32, "a", beside());
            apart.put_sources(vec![pid.to_string()], "a", "a.1");
        }
        let state = apart.state.locked();
        assert!(state.processes.len() <= MAX_APART && state.sources.len() <= MAX_APART);
    }
}

//! Separates concurrent trainings of one job, such as a packed sweep: each is a run.
//!
//! The rule of [`stepwatch_wire::run_name`] gives all processes of a job one name, and their ranks
//! distinguish them. The first process that declares a rank keeps the run of the job. Another that
//! declares the same rank while the first is connected, where neither started the other, gets a run
//! beside it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use stepwatch_wire::run_name::{Process, marks};

use super::chain::chain_until;
use crate::drops::{Drops, Reason};
use crate::lock::Locked as _;
use crate::origin::Origin;
use crate::principal::Principal;
use crate::processes::stat::read_stat;
use crate::roots::Roots;

/// The most processes, and the most of their sources, that are kept. Above it, the user with the
/// most loses one to another user.
const MAX_APART: usize = 1024;

/// The processes and sources that belong to a run beside that of their job.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    /// Whether any process was ever set apart. It spares the lock in the usual case.
    any: AtomicBool,
    state: Mutex<State>,
    /// Held while the run of a process that sends `hello` is decided, so that decisions do not
    /// overlap.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The key is the pid and the run that the process declares.
    processes: BTreeMap<(u32, String), (Principal, Beside)>,
    /// The key is the name of a source and the run that it declares.
    sources: BTreeMap<(String, String), (Principal, String)>,
}

/// A run beside that of its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Beside {
    pub(crate) run: String,
    /// An explanation for people.
    pub(crate) note: String,
}

impl Apart {
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.locked()
    }

    /// The run to which a sender that reports `run` belongs, if it is a different one.
    pub(crate) fn called(&self, origin: &Origin, run: &str) -> Option<String> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        if let Some(pid) = origin.pid() {
            return self.of_process(pid, run);
        }
        let key = (origin.name()?.to_string(), run.to_owned());
        self.state.locked().sources.get(&key).map(|(_, own)| own.clone())
    }

    /// The run to which a process that reports `run` belongs, if it is a different one.
    pub(crate) fn of_process(&self, pid: u32, run: &str) -> Option<String> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let key = (pid, run.to_owned());
        self.state.locked().processes.get(&key).map(|(_, beside)| beside.run.clone())
    }

    /// The explanation of the run for people.
    pub(crate) fn note(&self, run: &str) -> Option<String> {
        let state = self.state.locked();
        let mut all = state.processes.values().map(|(_, beside)| beside);
        all.find(|beside| beside.run == run).map(|beside| beside.note.clone())
    }

    /// Forgets a process, because another one may have its pid now.
    pub(crate) fn forget(&self, pid: u32, run: &str) {
        if self.any.load(Ordering::Acquire) {
            self.state.locked().processes.remove(&(pid, run.to_owned()));
        }
    }

    /// Puts a process of a user into a run beside `run`. Without room, the user with the most loses
    /// an entry, which is counted. Returns false if that is this user.
    pub(crate) fn put(&self, whose: Principal, pid: u32, run: &str, beside: Beside, drops: &Drops) -> bool {
        let mut state = self.state.locked();
        let loser = if state.processes.len() < MAX_APART { None } else { state.make_room(whose) };
        loser.iter().for_each(|loser| drops.refuse(Reason::Sources, *loser, 1));
        let has_room = loser != Some(whose);
        if has_room {
            state.processes.insert((pid, run.to_owned()), (whose, beside));
            self.any.store(true, Ordering::Release);
        }
        has_room
    }

    /// Assigns sources of such a process to its run. Where there is no room, the user with the most
    /// has one less, which is counted.
    pub(crate) fn put_sources(
        &self,
        whose: Principal,
        sources: Vec<String>,
        (run, own): (&str, &str),
        drops: &Drops,
    ) {
        let mut state = self.state.locked();
        if state.sources.len() >= MAX_APART {
            state.forget_ended();
        }
        for source in sources {
            let all = &mut state.sources;
            let is_new = !all.contains_key(&(source.clone(), run.to_owned()));
            let loser =
                (is_new && all.len() >= MAX_APART).then(|| loser(all.values().map(|(of, _)| *of), whose));
            loser.iter().for_each(|loser| drops.refuse(Reason::Sources, *loser, 1));
            if loser == Some(whose) {
                continue;
            }
            let first = all.iter().find(|(_, (of, _))| Some(*of) == loser).map(|(key, _)| key.clone());
            first.iter().for_each(|first| drop(all.remove(first)));
            all.insert((source, run.to_owned()), (whose, own.to_owned()));
        }
    }
}

/// The user with the most of these; `newcomer` unless another has more.
fn loser(all: impl Iterator<Item = Principal>, newcomer: Principal) -> Principal {
    let mut of_user = BTreeMap::<Principal, usize>::new();
    all.for_each(|whose| *of_user.entry(whose).or_default() += 1);
    let own = of_user.get(&newcomer).copied().unwrap_or_default();
    let most = of_user.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > own);
    most.map_or(newcomer, |(most, _)| most)
}

impl State {
    /// Forgets processes that have ended, and the sources of runs without a process.
    fn forget_ended(&mut self) {
        let roots = Roots::default();
        self.processes.retain(|(pid, _), _| is_running(&roots, *pid));
        let Self { processes, sources } = self;
        sources.retain(|_, (_, own)| processes.values().any(|(_, beside)| beside.run == *own));
    }

    /// Removes processes that have ended, or else one of the user with the most, and returns that
    /// user. If `newcomer` has the most, no entry is removed.
    fn make_room(&mut self, newcomer: Principal) -> Option<Principal> {
        self.forget_ended();
        let mut lost = None;
        if self.processes.len() >= MAX_APART {
            let most = loser(self.processes.values().map(|(whose, _)| *whose), newcomer);
            lost = Some(most);
            let theirs = |whose: &Principal| *whose == most && most != newcomer;
            let first = self.processes.iter().find(|(_, (whose, _))| theirs(whose));
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                self.processes.remove(&first);
            }
        }
        lost
    }
}

/// Whether `other` is alive and belongs to another training than the process: neither started the
/// other, and they were not forked from one process. False if a process may not be inspected.
///
/// After the deadline nothing of the other is read any more, and it is none.
pub(crate) fn is_other_training(roots: &Roots, process: &[Process], other: u32, deadline: Instant) -> bool {
    if !is_running(roots, other) {
        return false;
    }
    let other = chain_until(roots, other, Some(deadline));
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
    use super::super::chain::chain;
    use super::*;

    #[test]
    fn what_has_ended_or_started_the_other_is_no_other_training() {
        let roots = Roots::default();
        let own = chain(&roots, std::process::id());
        let later = Instant::now() + std::time::Duration::from_mins(1);
        assert!(!is_other_training(&roots, &own, std::process::id(), later), "itself");
        assert!(!is_other_training(&roots, &own, std::os::unix::process::parent_id(), later), "its parent");
        assert!(!is_other_training(&roots, &own, u32::MAX, later), "nobody");
    }

    #[test]
    fn memory_is_bounded() {
        let apart = Apart::default();
        let beside = || Beside { run: "a.1".into(), note: String::new() };
        for pid in 0..2 * MAX_APART {
            // No machine has these pids, so their entries are removed first.
            apart.put(Principal::User(1), u32::MAX - pid as u32, "a", beside(), &Drops::default());
            apart.put_sources(Principal::User(1), vec![pid.to_string()], ("a", "a.1"), &Drops::default());
        }
        let state = apart.state.locked();
        assert!(state.processes.len() <= MAX_APART && state.sources.len() <= MAX_APART);
    }

    #[test]
    fn a_user_that_fills_it_makes_room_for_another_and_not_for_itself() {
        let (apart, drops) = (Apart::default(), Drops::default());
        let own = std::process::id();
        let put = |user, run: &str| {
            let beside = Beside { run: format!("{run}.1"), note: String::new() };
            apart.put(Principal::User(user), own, run, beside, &drops)
        };
        assert!((0..MAX_APART).all(|n| put(1, &format!("evil-{n:04}"))));
        assert!(!put(1, "evil-more"));
        assert!(put(2, "sweep") && put(2, "sweep-2"));
        assert_eq!(apart.of_process(own, "sweep").as_deref(), Some("sweep.1"));
        assert_eq!(apart.state.locked().processes.len(), MAX_APART);
        assert_eq!(drops.get(Reason::Sources), 3, "one was refused, and two gave way");
        let many = |name: &str, n: usize| (0..n).map(|at| format!("{name}-{at}")).collect::<Vec<_>>();
        apart.put_sources(Principal::User(1), many("evil", MAX_APART + 5), ("x", "evil-0500.1"), &drops);
        apart.put_sources(Principal::User(2), many("good", 2), ("sweep", "sweep.1"), &drops);
        let of_good =
            apart.state.locked().sources.values().filter(|(of, _)| *of == Principal::User(2)).count();
        assert_eq!((of_good, drops.get(Reason::Sources)), (2, 3 + 5 + 2));
    }
}

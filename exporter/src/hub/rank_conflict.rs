//! Gives a process that claims an occupied rank a run of its own. This happens only if the run is
//! named after a job or a launch, because one of those can hold several trainings.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use stepwatch_wire::names::hello;
use stepwatch_wire::run_name::{self, By, Process};
use stepwatch_wire::{Event, Kind, Value};

use super::Hub;
use crate::identity::{self, Beside, Claim, is_other_training};
use crate::lock::Locked as _;
use crate::origin::{Origin, Peer};
use crate::roots::Roots;

/// The note of a run beside that of its job, if the original note is lost.
const KEPT: &str = "it was a run of its own before, beside that of its job";

/// The most processes that a claimant is compared with: a user can name runs in which each rank is
/// held.
const MAX_COMPARED: usize = 32;
/// How long a claimant is compared, while the claimants of all users wait. The files of a holder
/// may be slow to read.
const MAX_COMPARING: Duration = Duration::from_secs(1);

/// A process that declares a rank.
struct Claimant {
    roots: Roots,
    rank: u32,
    /// The process and its ancestors.
    chain: Vec<Process>,
    /// For each process compared with: whether it belongs to another training.
    compared: RefCell<BTreeMap<u32, bool>>,
    /// When the first comparison began.
    since: OnceCell<Instant>,
}

impl Claimant {
    fn new(pid: u32, rank: u32) -> Self {
        let roots = Roots::default();
        let chain = identity::chain(&roots, pid);
        Self { rank, chain, roots, compared: RefCell::default(), since: OnceCell::new() }
    }

    fn is_other_than(&self, holder: u32) -> bool {
        let mut compared = self.compared.borrow_mut();
        if let Some(known) = compared.get(&holder) {
            return *known;
        }
        let is_other = compared.len() < MAX_COMPARED
            && !self.chain.is_empty()
            && is_other_training(&self.roots, &self.chain, holder, self.deadline());
        compared.insert(holder, is_other);
        is_other
    }
}

impl Claimant {
    fn deadline(&self) -> Instant {
        *self.since.get_or_init(Instant::now) + MAX_COMPARING
    }
}

impl Hub {
    /// Sets the run of an event to the one that its process or source was set apart to.
    pub(crate) fn set_apart(&self, origin: &Origin, event: &mut Event) {
        let own = event.run.as_deref().and_then(|run| self.0.apart.called(origin, run));
        event.run = own.or(event.run.take());
    }

    /// The run to which a process that declares `run` belongs.
    pub(crate) fn run_of_process(&self, pid: u32, run: &str) -> String {
        let own = self.0.apart.of_process(pid, run);
        self.canonical(own.as_deref().unwrap_or(run)).into_owned()
    }

    /// Sets the run of a claim to the one that its process was set apart to.
    pub(super) fn claimed_apart(&self, claim: &mut Claim) {
        let Some(pid) = claim.pid else { return };
        let own = claim.unnamed.as_deref().and_then(|unnamed| self.0.apart.of_process(pid, unnamed));
        if let Some(own) = own {
            if claim.by != Some(By::Name) {
                claim.run.clone_from(&own);
            }
            claim.unnamed = Some(own);
        }
    }

    /// Decides which run the sender of a `hello` belongs to. The returned guard delays the next
    /// decision until this process has its rank.
    pub(super) fn greet(&self, now: f64, origin: &Origin, event: &mut Event) -> Option<MutexGuard<'_, ()>> {
        let Origin::Peer(Peer { pid: Some(pid), .. }) = origin else { return None };
        let pid = *pid;
        let by = event.extra.get(hello::RUN_BY).and_then(Value::as_str).and_then(By::parse);
        let is_contested = |event: &Event| match by {
            Some(By::Job | By::Launch) => self.rank_holders(now, origin, pid, event).is_some(),
            Some(By::Name) => self.holders_of_job(pid, event).is_some(),
            _ => false,
        };
        // The files of the claimant are read outside of its turn: only its own user waits for them.
        let claimant = |event: &Event| Claimant::new(pid, event.rank.unwrap_or(0));
        let mut claimant_before = is_contested(event).then(|| claimant(event));
        let mut turn = self.0.apart.turn();
        if claimant_before.is_none() && is_contested(event) {
            drop(turn);
            claimant_before = Some(claimant(event));
            turn = self.0.apart.turn();
        }
        let claimant = claimant_before;
        match by {
            Some(By::Job | By::Launch) => self.judge(now, origin, pid, event, claimant),
            Some(By::Name) => self.keep_job_unnamed(pid, event, claimant),
            _ => {}
        }
        Some(turn)
    }

    /// Processes that hold the rank which a process declares. `None` if the run may not be its own,
    /// or there is nothing to compare it with.
    fn rank_holders(&self, now: f64, origin: &Origin, pid: u32, event: &Event) -> Option<Vec<u32>> {
        let (run, rank) = (event.run.as_deref()?, event.rank.unwrap_or(0));
        let called = self.called(origin.principal(), run).into_owned();
        let restarts = event.extra.get(hello::RESTARTS).and_then(Value::as_f64).map(|n| n as u32);
        let training = self.0.training.locked();
        let stays = training.not_theirs(&called, origin.principal(), Kind::Hello, now).is_some()
            || training.pid_of(&called, rank) == Some(pid);
        let held = training.holders(&called, rank, restarts);
        (!stays && (!held.is_empty() || training.has_beside(run))).then_some(held)
    }

    fn judge(&self, now: f64, origin: &Origin, pid: u32, event: &mut Event, claimant: Option<Claimant>) {
        let Some(run) = event.run.clone() else { return };
        self.0.apart.forget(pid, &run);
        let Some(held) = self.rank_holders(now, origin, pid, event) else { return };
        let rank = event.rank.unwrap_or(0);
        let called = self.called(origin.principal(), &run).into_owned();
        let claimant = claimant.unwrap_or_else(|| Claimant::new(pid, rank));
        let known = self.known_beside(&run, &claimant);
        let other = held.iter().copied().find(|other| claimant.is_other_than(*other));
        let beside = known.or_else(|| {
            let own = self.new_beside(&run, &claimant, other?)?;
            let note = format!(
                "pid {pid} said that it is rank {rank} of {called} while pid {} was: a run of its own",
                other?
            );
            Some(Beside { run: own, note })
        });
        if let Some(beside) = beside {
            self.put_beside(origin, pid, beside, event);
        }
    }

    fn put_beside(&self, origin: &Origin, pid: u32, beside: Beside, event: &mut Event) {
        let Some(run) = event.run.as_deref() else { return };
        let (own, principal) = (beside.run.clone(), origin.principal());
        if !self.0.apart.put(principal, pid, run, beside, &self.0.drops) {
            return;
        }
        tracing::info!(
            run,
            own,
            pid,
            "another training of the job or launch has this rank; a run of its own"
        );
        let sources = self.0.identity.set_apart(pid, run, &own);
        self.0.apart.put_sources(principal, sources, (run, &own), &self.0.drops);
        event.extra.insert(hello::RUN_UNNAMED.into(), Value::Text(own.clone()));
        event.run = Some(own);
    }

    /// The run beside `run` to which the process or an ancestor (a launcher) belongs already.
    fn known_beside(&self, run: &str, claimant: &Claimant) -> Option<Beside> {
        let chain = &claimant.chain;
        let marks = (0..chain.len()).filter_map(|at| run_name::marks(&chain[at..]));
        let mut names = marks.flat_map(|m| [m.process, m.ranks].map(|mark| run_name::beside(run, &mark)));
        let own = names.find(|name| self.0.training.locked().knows(name) && !self.is_held(name, claimant))?;
        let note = self.0.apart.note(&own).unwrap_or_else(|| KEPT.to_owned());
        Some(Beside { run: own, note })
    }

    /// The name of a new run. All ranks of one launcher share it, unless it started `other` as
    /// well.
    fn new_beside(&self, run: &str, claimant: &Claimant, other: u32) -> Option<String> {
        let ours = run_name::marks(&claimant.chain)?;
        let theirs = identity::chain_until(&claimant.roots, other, Some(claimant.deadline()));
        let theirs = run_name::marks(&theirs);
        let shared = run_name::beside(run, &ours.ranks);
        let one = theirs.is_some_and(|theirs| theirs.ranks == ours.ranks);
        let own = one || self.is_held(&shared, claimant);
        Some(if own { run_name::beside(run, &ours.process) } else { shared })
    }

    fn is_held(&self, run: &str, claimant: &Claimant) -> bool {
        let held = self.0.training.locked().holders(run, claimant.rank, None);
        held.into_iter().any(|other| claimant.is_other_than(other))
    }

    /// Drops the job's name from a `hello` whose rank another training of the job holds: the given
    /// name of one training must not rename the other.
    fn keep_job_unnamed(&self, pid: u32, event: &mut Event, claimant: Option<Claimant>) {
        let Some(held) = self.holders_of_job(pid, event) else { return };
        let claimant = claimant.unwrap_or_else(|| Claimant::new(pid, event.rank.unwrap_or(0)));
        if held.into_iter().any(|other| claimant.is_other_than(other)) {
            event.extra.remove(hello::RUN_UNNAMED);
        }
    }

    /// Processes that hold the rank in the run of the job, if it has no given name and the process
    /// is none of them.
    fn holders_of_job(&self, pid: u32, event: &Event) -> Option<Vec<u32>> {
        let unnamed = event.extra.get(hello::RUN_UNNAMED).and_then(Value::as_str)?;
        if self.canonical(unnamed) != unnamed {
            return None;
        }
        let held = self.0.training.locked().holders(unnamed, event.rank.unwrap_or(0), None);
        (!held.is_empty() && !held.contains(&pid)).then_some(held)
    }
}

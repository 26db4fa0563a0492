//! How an attempt comes to its first step: each part of the time from the submission of its job on,
//! and which ranks are there.
//!
//! The parts exclude each other and add up. A run starts when its last rank does, so a part that
//! ranks go through at different times lasts until the last of them is through. Where several parts
//! are known of one moment, the first of [`StartPhase`] counts. Time of which nothing is known is
//! `Unknown`, and never guessed.
//!
//! Of an attempt that follows another, all that was before the last step of the other is left out.

mod of_run;
mod parts;
mod usual;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stepwatch_model::time::{Span, Ts};
use stepwatch_wire::names::start;
use stepwatch_wire::{Edge, Event, Value};

use super::ledger::Declared;
use super::phase_names::declared;
pub use usual::StartUsual;

/// Longest time that a job waits from its submission to its first process. Times further back are
/// those of a clock that is not set.
const LONGEST: Span = Span::secs(30 * 86_400);
/// Ranks from this one on are not told apart.
const MAX_RANK: u32 = 65_536;
/// How far ahead the clock of another host may be.
const SKEW: Span = Span::secs(60);

/// A part of a start. Of two at the same moment, the first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StartPhase {
    /// From the submission of the job until it was given its nodes.
    Queue,
    /// The launchers of the nodes wait for each other.
    Rendezvous,
    /// From the allocation until the last process began: prolog, image, mounts, launcher.
    Launch,
    /// From then until the last process said hello: imports, and all else before that.
    Imports,
    Load,
    Compile,
    /// The ranks make their process group or communicator.
    Init,
    /// It compiles too, where no phase declares that.
    FirstStep,
    Unknown,
}

/// A row of the table of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartPart {
    pub phase: StartPhase,
    /// Its first and its last moment, by the clock of the trainer.
    pub began: Ts,
    pub ended: Ts,
    /// Milliseconds of it: fewer than between the two, if other parts lie within.
    pub ms: i64,
}

/// A start that came to its first step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartUp {
    /// At most one of a phase, in the order in which they began.
    pub parts: Vec<StartPart>,
    /// Milliseconds from the first `hello` to the first step, by our clock: what a start that goes
    /// on is compared by.
    pub greeted_ms: i64,
    /// The ranks that said hello.
    pub ranks: u32,
}

/// A process of a rank says hello.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Greeting {
    /// By our clock, and by that of the trainer.
    pub(crate) now: Ts,
    pub(crate) at: Ts,
    pub(crate) rank: u32,
    pub(crate) submitted: Option<f64>,
    pub(crate) allocated: Option<f64>,
    pub(crate) started: Option<f64>,
}

/// What is known of the process that says hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Greeter {
    /// It has described itself before.
    Known,
    /// Another process of this rank did.
    New,
    Unsure,
}

/// A start that has not come to its first step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Starting {
    /// When it was first heard of, by our clock, and by that of the trainer.
    pub since: Ts,
    first_at: Ts,
    /// The last step of the attempt before it, by the clock of the trainer.
    after: Option<Ts>,
    submitted: Option<Ts>,
    allocated: Option<Ts>,
    /// When the last process began, and when the last one said hello.
    process: Option<Ts>,
    hello: Option<Ts>,
    declared: BTreeMap<StartPhase, Stretch>,
    /// The ranks that said hello, and those that began and completed the process group.
    ranks: BTreeSet<u32>,
    in_init: BTreeSet<u32>,
    after_init: BTreeSet<u32>,
    /// When more than half of the ranks had said hello, by our clock.
    pub majority_at: Option<Ts>,
}

/// From the first beginning of a declared phase to its last end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stretch {
    began: Ts,
    ended: Option<Ts>,
}

impl StartPhase {
    /// The part that a declared phase is.
    fn of_name(name: &str) -> Option<Self> {
        match name {
            start::RENDEZVOUS => Some(Self::Rendezvous),
            start::INIT => Some(Self::Init),
            start::FIRST_STEP => Some(Self::FirstStep),
            _ if declared(name) == Some(Declared::Loading) => Some(Self::Load),
            _ if name.to_ascii_lowercase().contains("compil") => Some(Self::Compile),
            _ => None,
        }
    }

    /// Whether the phase has no meaning after the first step.
    pub(crate) fn is_only_of_start(e: &Event) -> bool {
        e.name.as_deref().is_some_and(|name| start::ALL.contains(&name))
    }
}

impl Greeting {
    /// The time, if a job of the sender can have it.
    pub(crate) fn plausible(self, secs: Option<f64>) -> Option<Ts> {
        let at = Ts::from_secs_f64(secs.filter(|secs| secs.is_finite())?);
        let ago = self.at - at;
        (ago <= LONGEST && ago.0 >= -SKEW.0).then(|| at.min(self.at))
    }
}

impl Starting {
    pub(crate) fn new(now: Ts, at: Ts, after: Option<Ts>) -> Self {
        Self {
            since: now,
            first_at: at,
            after,
            submitted: None,
            allocated: None,
            process: None,
            hello: None,
            declared: BTreeMap::new(),
            ranks: BTreeSet::new(),
            in_init: BTreeSet::new(),
            after_init: BTreeSet::new(),
            majority_at: None,
        }
    }

    /// Another start, because this one came to no step.
    pub(crate) fn again(&self, now: Ts, at: Ts) -> Self {
        Self::new(now, at, self.hello.or(self.after))
    }

    pub(crate) fn has(&self, rank: u32) -> bool {
        self.ranks.contains(&rank)
    }

    /// The ranks that said hello.
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Whether a step at this time is not of the attempt before it.
    pub(crate) fn is_before(&self, step: Ts) -> bool {
        step > self.first_at
    }

    pub(crate) fn greeted(&mut self, g: &Greeting, world: Option<u32>) {
        let is_later = |at: &Ts| self.after.is_none_or(|after| *at > after);
        let allocated = g.plausible(g.allocated).filter(is_later);
        let process = g.plausible(g.started).filter(is_later);
        // A job that was requeued waits since its attempt before.
        let submitted = g.plausible(g.submitted).filter(|_| allocated.is_some() || self.after.is_none());
        let submitted = submitted.map(|at| self.after.map_or(at, |after| at.max(after)));
        self.allocated = self.allocated.max(allocated);
        self.submitted = self.submitted.max(submitted);
        if g.rank >= MAX_RANK || !self.ranks.insert(g.rank) {
            return;
        }
        self.process = self.process.max(process);
        self.hello = self.hello.max(Some(g.at));
        self.first_at = self.first_at.min(g.at);
        if world.is_some_and(|world| 2 * self.ranks.len() > world as usize) {
            self.majority_at.get_or_insert(g.now);
        }
    }

    /// A rank begins or ends a phase. False if the phase is no part of a start.
    pub(crate) fn phase(&mut self, at: Ts, rank: u32, e: &Event) -> bool {
        let phase = e.name.as_deref().and_then(StartPhase::of_name);
        let (Some(phase), Some(edge)) = (phase, e.edge) else { return false };
        self.goes_through(phase, edge, at, e.extra.get("seconds").and_then(Value::as_f64));
        if phase == StartPhase::Init && rank < MAX_RANK {
            let failed = matches!(e.extra.get("failed"), Some(Value::Bool(true)));
            match edge {
                Edge::Begin => self.in_init.insert(rank),
                // It waits for nobody any more, and met nobody.
                Edge::End if failed => self.in_init.remove(&rank),
                Edge::End => self.after_init.insert(rank),
            };
        }
        true
    }

    /// A load began or ended, or another part of the start.
    pub(crate) fn goes_through(&mut self, phase: StartPhase, edge: Edge, at: Ts, secs: Option<f64>) {
        let lasted = secs.filter(|secs| (0.0..=LONGEST.as_secs_f64()).contains(secs));
        match self.declared.get_mut(&phase) {
            Some(had) if edge == Edge::Begin => had.began = had.began.min(at),
            Some(had) => had.ended = had.ended.max(Some(at)),
            None if edge == Edge::Begin => {
                self.declared.insert(phase, Stretch { began: at, ended: None });
            }
            None => {
                if let Some(lasted) = lasted.map(Span::from_secs_f64) {
                    self.declared.insert(phase, Stretch { began: at.earlier(lasted), ended: Some(at) });
                }
            }
        }
    }

    /// The part that it is in, and since when, as far as a phase declares it.
    pub fn stands_in(&self) -> Option<(StartPhase, Ts)> {
        let open = self.declared.iter().filter(|(phase, one)| one.ended.is_none() || self.is_within(**phase));
        open.map(|(phase, one)| (*phase, one.began)).max_by_key(|(_, began)| *began)
    }

    /// Some ranks have completed the process group, and others are still in it.
    fn is_within(&self, phase: StartPhase) -> bool {
        phase == StartPhase::Init && self.in_init.len() > self.after_init.len()
    }

    /// Whether ranks wait for others in the process group, which none has completed.
    pub fn waits_in_init(&self) -> bool {
        !self.in_init.is_empty() && self.after_init.is_empty()
    }

    /// Whether a rank is past what all ranks take part in.
    pub fn has_met(&self) -> bool {
        !self.after_init.is_empty()
    }

    /// The ranks of `all` that have not said hello.
    pub fn without_hello(&self, all: impl Iterator<Item = u32>) -> impl Iterator<Item = u32> {
        all.filter(move |rank| !self.ranks.contains(rank))
    }

    /// The few ranks that said hello and have not begun the process group in which the others wait,
    /// or have not completed the one that the others have.
    pub fn behind_in_init(&self) -> BTreeSet<u32> {
        let few = |late: &BTreeSet<u32>| !late.is_empty() && 2 * late.len() < self.ranks.len();
        let after: BTreeSet<u32> = self.in_init.difference(&self.after_init).copied().collect();
        if self.has_met() {
            return if few(&after) { after } else { BTreeSet::new() };
        }
        let late: BTreeSet<u32> = self.ranks.difference(&self.in_init).copied().collect();
        if !self.in_init.is_empty() && few(&late) { late } else { BTreeSet::new() }
    }

    /// Whether ranks are missing while most are there. Some trainers report from some ranks only:
    /// then those that an earlier start had are all.
    pub(crate) fn lacks(&self, world: u32, usual: Option<&StartUsual>) -> bool {
        let expected = usual.map_or(world, |usual| usual.ranks.min(world)) as usize;
        self.ranks.len() < expected && 2 * self.ranks.len() > expected
    }
}

#[cfg(test)]
mod tests;

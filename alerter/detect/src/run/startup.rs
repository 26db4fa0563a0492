//! How an attempt comes to its first step: each part of the time from the submission of its job on,
//! and which ranks are there.
//!
//! The parts exclude each other and add up. A run starts when its last rank does, so a part that
//! ranks go through at different times lasts until the last of them is through. Where several parts
//! are known of one moment, the first of [`StartPhase`] counts. Time of which nothing is known is
//! `Unknown`, and never guessed.
//!
//! Of an attempt that follows another, all that was before the last step of the other is left out.
//! A start that dies is left out of the next one: it is over once more than half of its processes
//! have ended or were replaced, and another says hello.

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
/// The most nodes whose logs are followed.
const MAX_NODES: usize = 4096;
/// How far ahead the clock of another host may be.
const SKEW: Span = Span::secs(60);

/// A part of a start. Of two at the same moment, the first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StartPhase {
    /// From the submission of the job until it was given its nodes.
    Queue,
    /// The launchers of the nodes wait for each other.
    Rendezvous,
    /// From the allocation until the last container started, where a cluster says so: the image and
    /// the mounts.
    Image,
    /// From then, or from the allocation, until the last process began: prolog, image, mounts,
    /// launcher.
    Launch,
    /// From then until the last process said hello: imports, and all else that comes before its
    /// `hello`, perhaps a load or the process group.
    UntilHello,
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
    /// Milliseconds from the first `hello` to the first step: what a start that goes on is compared
    /// by. Of our clock and that of the trainer, the one that says more: what arrives after an
    /// outage arrives at once.
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
    /// An exporter found the process, which has not spoken itself.
    pub(crate) found: bool,
    /// The process says so itself, and so would tell of its process group.
    pub(crate) tells: bool,
    /// The process has made its process group already.
    pub(crate) initialised: bool,
    pub(crate) submitted: Option<f64>,
    pub(crate) allocated: Option<f64>,
    pub(crate) started: Option<f64>,
}

/// The times of a pod, in Unix seconds, as far as its cluster knows them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) submitted: Option<f64>,
    pub(crate) allocated: Option<f64>,
    pub(crate) containers: Option<f64>,
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
    /// When the last container started.
    containers: Option<Ts>,
    declared: BTreeMap<StartPhase, Stretch>,
    /// The ranks that said hello, how many of them have ended or were replaced, and when the first
    /// of these was, by our clock.
    ranks: BTreeMap<u32, Greeted>,
    gone: usize,
    gone_at: Option<Ts>,
    /// When a rank said hello that had not, by our clock.
    last_hello: Ts,
    /// A process has said hello itself.
    spoken: bool,
    /// The ranks that wait in the process group, and those that are through.
    in_init: BTreeSet<u32>,
    after_init: BTreeSet<u32>,
    /// The nodes whose logs show ranks in it, without saying which.
    nodes_in_init: BTreeSet<String>,
    /// A communicator of all ranks is complete.
    met: bool,
    /// More than half of the ranks have said hello.
    has_most: bool,
    /// How long starts before it took.
    usual: Option<StartUsual>,
    /// The setup and size by which starts of other runs were last looked for.
    asked: Option<(Option<Ts>, u32)>,
}

/// The process of a rank that said hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Greeted {
    /// By our clock, and by that of the trainer.
    now: Ts,
    at: Ts,
    /// When it began.
    process: Option<Ts>,
    found: bool,
    tells: bool,
    /// It came after another one of this rank.
    again: bool,
    ended: bool,
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
        plausible(self.at, secs)
    }
}

/// The time, if a job that is heard of at `now` can have it.
pub(crate) fn plausible(now: Ts, secs: Option<f64>) -> Option<Ts> {
    let at = Ts::from_secs_f64(secs.filter(|secs| secs.is_finite())?);
    let ago = now - at;
    (ago <= LONGEST && ago.0 >= -SKEW.0).then(|| at.min(now))
}

impl Starting {
    pub(crate) fn new(now: Ts, at: Ts, after: Option<Ts>, usual: Option<StartUsual>) -> Self {
        Self {
            since: now,
            first_at: at,
            after,
            submitted: None,
            allocated: None,
            containers: None,
            declared: BTreeMap::new(),
            ranks: BTreeMap::new(),
            gone: 0,
            gone_at: None,
            last_hello: now,
            spoken: false,
            in_init: BTreeSet::new(),
            after_init: BTreeSet::new(),
            nodes_in_init: BTreeSet::new(),
            met: false,
            has_most: false,
            usual,
            asked: None,
        }
    }

    /// The start after this one, which died: with the processes that came after the first end.
    fn again(&self, now: Ts, at: Ts) -> Self {
        let is_kept = |one: &Greeted| !one.ended && self.gone_at.is_some_and(|gone| one.now >= gone);
        let kept = || self.ranks.iter().filter(move |(_, one)| is_kept(one));
        let left = self.ranks.values().filter(|one| !is_kept(one)).map(|one| one.at).max();
        let after = left.max(self.after);
        let since = kept().map(|(_, one)| one.now).min().map_or(now, |first| first.min(now));
        let first_at = kept().map(|(_, one)| one.at).min().map_or(at, |first| first.min(at));
        let allocated = self.allocated.filter(|at| after.is_none_or(|after| *at > after));
        let submitted = self.submitted.filter(|_| allocated.is_some());
        let mut next = Self {
            containers: self.containers.filter(|at| after.is_none_or(|after| *at > after)),
            allocated,
            submitted: submitted.max(after.filter(|_| submitted.is_some())),
            ranks: kept().map(|(rank, one)| (*rank, Greeted { again: false, ..*one })).collect(),
            spoken: kept().any(|(_, one)| !one.found),
            asked: self.asked,
            ..Self::new(since, first_at, after, self.usual.clone())
        };
        let is_of_next = |rank: &&u32| next.ranks.contains_key(*rank);
        next.in_init = self.in_init.iter().filter(is_of_next).copied().collect();
        next.after_init = self.after_init.iter().filter(is_of_next).copied().collect();
        if !next.in_init.is_empty() {
            next.goes_through(StartPhase::Init, Edge::Begin, first_at, None);
        }
        next
    }

    /// Whether another start has begun: processes of this one have ended, or were replaced.
    fn is_over(&self) -> bool {
        2 * self.gone > self.ranks.len()
    }

    /// The ranks that said hello.
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    pub(crate) fn has(&self, rank: u32) -> bool {
        self.ranks.contains_key(&rank)
    }

    /// Whether the rank has completed the process group.
    pub(crate) fn is_through(&self, rank: u32) -> bool {
        self.after_init.contains(&rank)
    }

    /// Whether a part of it is under way. In a start that takes longer than others did, they lacked
    /// that part or had it shorter.
    pub(crate) fn is_in_part(&self) -> bool {
        self.stands_in().is_some()
    }

    pub(crate) fn greeted_ranks(&self) -> impl Iterator<Item = u32> {
        self.ranks.keys().copied()
    }

    /// Whether exporters have found its processes, and none has spoken: then nobody knows whether
    /// they train.
    pub(crate) fn is_only_found(&self) -> bool {
        !self.ranks.is_empty() && !self.spoken
    }

    /// Whether a step at this time may be its first: it is not of the attempt before it.
    pub(crate) fn comes_before(&self, step: Ts) -> bool {
        step > self.first_at
    }

    /// How long starts before it took; `None` if none is known.
    pub fn usual(&self) -> Option<&StartUsual> {
        self.usual.as_ref()
    }

    pub(crate) fn greeted(&mut self, g: &Greeting, greeter: Greeter, world: Option<u32>) {
        if g.rank < MAX_RANK {
            if greeter == Greeter::New {
                self.replaces(g);
            }
            if self.is_over() {
                *self = self.again(g.now, g.at);
            }
        }
        let is_later = |at: &Ts| self.after.is_none_or(|after| *at > after);
        let allocated = g.plausible(g.allocated).filter(is_later);
        let process = g.plausible(g.started).filter(is_later);
        // A job that was requeued waits since its attempt before.
        let submitted = g.plausible(g.submitted).filter(|_| allocated.is_some() || self.after.is_none());
        let submitted = submitted.map(|at| self.after.map_or(at, |after| at.max(after)));
        self.allocated = self.allocated.max(allocated);
        self.submitted = self.submitted.max(submitted);
        if g.rank >= MAX_RANK {
            return;
        }
        let (now, at, found, tells) = (g.now, g.at, g.found, g.tells);
        let one = Greeted { now, at, process, found, tells, again: false, ended: false };
        match self.ranks.get_mut(&g.rank) {
            None => {
                self.ranks.insert(g.rank, one);
                self.last_hello = now;
            }
            Some(had) if had.ended && greeter != Greeter::Known => *had = Greeted { again: true, ..one },
            // The process itself knows better than who found it.
            Some(had) if had.found && !found => *had = Greeted { again: had.again, ended: had.ended, ..one },
            Some(had) => had.tells |= tells,
        }
        self.first_at = self.first_at.min(at);
        self.spoken |= !found;
        if g.initialised {
            self.after_init.insert(g.rank);
        }
        self.count_most(world);
    }

    /// The cluster says when it gave a pod of the run its node, and when that ran it.
    pub(crate) fn placed(&mut self, now: Ts, p: Placed) {
        let after = self.after;
        let later = |secs| plausible(now, secs).filter(|at| after.is_none_or(|after| *at > after));
        let (allocated, containers) = (later(p.allocated), later(p.containers));
        let submitted = plausible(now, p.submitted).filter(|_| allocated.is_some());
        let submitted = submitted.map(|at| after.map_or(at, |after| at.max(after)));
        self.submitted = self.submitted.max(submitted);
        self.allocated = self.allocated.max(allocated);
        self.containers = self.containers.max(containers);
    }

    /// Another process of a rank that is there says hello.
    fn replaces(&mut self, g: &Greeting) {
        let (now, at, found, tells) = (g.now, g.at, g.found, g.tells);
        if self.ranks.get(&g.rank).is_none_or(|had| had.found && !found) {
            return;
        }
        self.lose(g.rank, now);
        let process = g.plausible(g.started).filter(|at| self.after.is_none_or(|after| *at > after));
        self.ranks.insert(g.rank, Greeted { now, at, process, found, tells, again: true, ended: false });
    }

    /// The process of a rank ended at `at`, by the clock of who saw it; of all ranks without one.
    pub(crate) fn ends(&mut self, now: Ts, rank: Option<u32>, at: Ts) {
        let ended = |one: &Greeted| !one.ended && one.at <= at;
        let Some(rank) = rank else {
            let all: Vec<u32> = self.ranks.iter().filter(|(_, one)| ended(one)).map(|(n, _)| *n).collect();
            all.into_iter().for_each(|rank| self.ends(now, Some(rank), at));
            return;
        };
        if self.ranks.get(&rank).is_some_and(ended) {
            self.lose(rank, now);
            if let Some(one) = self.ranks.get_mut(&rank) {
                one.ended = true;
            }
        }
    }

    fn lose(&mut self, rank: u32, now: Ts) {
        let is_counted = self.ranks.get(&rank).is_none_or(|one| one.ended || one.again);
        self.gone += usize::from(!is_counted);
        self.gone_at.get_or_insert(now);
        self.in_init.remove(&rank);
        self.after_init.remove(&rank);
    }

    fn count_most(&mut self, world: Option<u32>) {
        self.has_most |= world.is_some_and(|world| 2 * self.ranks.len() > self.expected(world));
    }

    /// The ranks that are waited for. Some trainers report from some ranks only: then those that
    /// an earlier start had are all.
    fn expected(&self, world: u32) -> usize {
        self.usual.as_ref().map_or(world, |usual| usual.ranks.min(world)) as usize
    }

    /// A phase begins or ends. A line of a log may not say which rank wrote it: then it shows
    /// something of its node.
    pub(crate) fn phase(&mut self, at: Ts, e: &Event, world: Option<u32>) {
        let phase = e.name.as_deref().and_then(StartPhase::of_name);
        let (Some(phase), Some(edge)) = (phase, e.edge) else { return };
        self.goes_through(phase, edge, at, e.extra.get("seconds").and_then(Value::as_f64));
        if phase == StartPhase::Init {
            self.init(edge, e, world);
        }
    }

    fn init(&mut self, edge: Edge, e: &Event, world: Option<u32>) {
        let failed = matches!(e.extra.get("failed"), Some(Value::Bool(true)));
        // Whoever leaves `init_process_group` may have waited for nobody. A communicator is not
        // complete without all of its ranks.
        let ranks = e.extra.get(start::RANKS).and_then(Value::as_f64);
        self.met |= edge == Edge::End && world.is_some_and(|world| ranks == Some(f64::from(world)));
        match (e.rank, edge) {
            (Some(rank), _) if rank >= MAX_RANK => {}
            (Some(rank), Edge::Begin) => {
                self.lives_on(rank, world);
                self.after_init.remove(&rank);
                self.in_init.insert(rank);
            }
            (Some(rank), Edge::End) => {
                self.in_init.remove(&rank);
                if !failed {
                    self.after_init.insert(rank);
                }
            }
            (None, Edge::Begin) if self.nodes_in_init.len() < MAX_NODES => {
                self.nodes_in_init.insert(e.node.clone().unwrap_or_default());
            }
            (None, Edge::Begin) => {}
            (None, Edge::End) => {
                self.nodes_in_init.remove(e.node.as_deref().unwrap_or_default());
            }
        }
    }

    /// A rank comes to the process group that has not said hello beside those that have: it lived
    /// on when most others were replaced, and is not missing.
    fn lives_on(&mut self, rank: u32, world: Option<u32>) {
        let is_of_run = world.is_none_or(|world| rank < world);
        if !self.spoken || !is_of_run || self.ranks.contains_key(&rank) {
            return;
        }
        let (now, at) = (self.since, self.first_at);
        // Its hello may come later, and is then of the same process.
        let one = Greeted { now, at, process: None, found: true, tells: true, again: false, ended: false };
        self.ranks.insert(rank, one);
        self.count_most(world);
    }

    /// Whether a launcher meets the others again, although it had met them, and no rank came.
    fn meets_again(&self, at: Ts) -> bool {
        let met = self.declared.get(&StartPhase::Rendezvous).and_then(|one| one.ended);
        self.ranks.is_empty() && met.is_some_and(|met| met < at)
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
        phase == StartPhase::Init && self.waits_in_init()
    }

    /// Whether ranks wait in the process group.
    pub fn waits_in_init(&self) -> bool {
        !self.in_init.is_empty() || !self.nodes_in_init.is_empty()
    }

    /// Whether all ranks have met.
    pub fn has_met(&self) -> bool {
        self.met
    }

    /// The few ranks that said hello and have not begun the process group in which others wait.
    /// A rank that is still in it, after others have left, may only be the one that serves them.
    pub(crate) fn late_for_init(&self, node_of: impl Fn(u32) -> Option<String>) -> Vec<u32> {
        let has_begun = |rank: &u32| self.in_init.contains(rank) || self.after_init.contains(rank);
        if self.met
            || !self.waits_in_init()
            || 2 * (self.in_init.len() + self.after_init.len()) <= self.ranks()
        {
            return Vec::new();
        }
        // A process that others tell of may have begun before, or have no client that would say so.
        let tells = self.ranks.iter().filter(|(_, one)| one.tells && !one.ended).map(|(rank, _)| *rank);
        let late = tells.filter(|rank| !has_begun(rank));
        let is_in_log = |rank: u32| node_of(rank).is_some_and(|node| self.nodes_in_init.contains(&node));
        late.filter(|rank| !is_in_log(*rank)).collect()
    }

    /// Since when most ranks are there and some are not, by our clock: since the last that came.
    /// So many are `unheard`, and may be there.
    pub(crate) fn lacks_since(&self, world: u32, unheard: usize) -> Option<Ts> {
        let (there, expected) = (self.ranks.len(), self.expected(world).saturating_sub(unheard));
        (self.has_most && there < expected && 2 * there > expected).then_some(self.last_hello)
    }
}

#[cfg(test)]
mod tests;

//! The start of a run: which `hello` and which phases are part of it, and which step ends it.

use std::collections::{BTreeMap, BTreeSet};

use stepwatch_wire::names::start;
use stepwatch_wire::{Edge, Event};

use crate::run::startup::{Greeter, Greeting, StartPhase, StartUp, Starting};
use crate::run::{MAX_RANKS, Rank, RunState};
use crate::sample::StepSample;
use stepwatch_model::time::{Span, Ts};

/// Two readings of when a process began differ by less, because the clock of a node is corrected.
const SAME_START: Span = Span::secs(5);

impl RunState {
    /// Records which process of a rank says hello, by the pid that it gives itself and by when it
    /// began. The processes of containers have the same few pids, and an exporter that found a
    /// process gives it another pid than the process itself.
    pub(crate) fn greeter(&mut self, rank: u32, pid: Option<u32>, started: Option<Ts>) -> Greeter {
        let Some(r) = self.ranks.get_mut(&rank) else { return Greeter::Unsure };
        let is_same = r.started.zip(started).map(|(had, new)| (had - new).0.abs() <= SAME_START.0);
        let has_pid = r.pid.zip(pid).map(|(had, new)| had == new);
        let greeter = match is_same.or(has_pid) {
            Some(true) => Greeter::Known,
            Some(false) => Greeter::New,
            None => Greeter::Unsure,
        };
        if greeter == Greeter::New {
            (r.pid, r.started) = (pid, started);
        } else {
            (r.pid, r.started) = (pid.or(r.pid), started.or(r.started));
        }
        greeter
    }

    /// Records a `hello` in the start that it is part of. A process that describes itself again, or
    /// that is only new to us, begins none in a run that makes steps.
    pub(crate) fn starts(&mut self, g: &Greeting, greeter: Greeter) {
        let begins = match greeter {
            Greeter::Known => false,
            Greeter::New => true,
            Greeter::Unsure => self.may_start(),
        };
        if !begins && self.starting.is_none() {
            return;
        }
        let left = self.attempts.left.as_ref().map(|ended| ended.at);
        let world = self.world;
        // What launchers did before the run ended is of a start that died.
        let died = |s: &Starting| s.ranks() == 0 && left.is_some_and(|at| at >= s.since);
        if self.starting.as_deref().is_none_or(died) {
            self.begin_start(g.now, g.at);
        }
        if let Some(s) = &mut self.starting {
            s.greeted(g, greeter, world);
        }
    }

    fn begin_start(&mut self, now: Ts, at: Ts) {
        // The ends of the phases of processes that are gone do not come.
        if self.attempts.left.is_some() {
            self.close_phases();
        }
        let usual = self.attempts.usual_next_start();
        self.starting = Some(Box::new(Starting::new(now, at, self.last_step_at, usual)));
    }

    /// A process of a rank ended, or of all ranks.
    pub(in crate::run) fn start_loses(&mut self, now: Ts, rank: Option<u32>, at: Ts) {
        if let Some(s) = &mut self.starting {
            s.ends(now, rank, at);
        }
    }

    /// Records a phase of a start. A launcher declares its rendezvous before any process of a rank
    /// says hello, and only when none runs.
    pub(crate) fn phase_of_start(&mut self, now: Ts, at: Ts, e: &Event) {
        let is_only_of_start = StartPhase::is_only_of_start(e);
        let meets = e.name.as_deref() == Some(start::RENDEZVOUS) && e.edge == Some(Edge::Begin);
        let begins = match &self.starting {
            None => meets || is_only_of_start && self.may_start(),
            Some(s) => meets && s.meets_again(at),
        };
        if begins {
            self.begin_start(now, at);
        }
        let world = self.world;
        if let Some(s) = &mut self.starting {
            s.phase(at, e, world);
        }
    }

    /// Whether starts of runs like it are to be looked for: its first start goes on, and its setup
    /// or size has changed since.
    pub(crate) fn wants_starts(&self) -> bool {
        let asked = (self.config_groups.changed_at, self.ranks_known());
        let is_new = |s: &Starting| s.asked != Some(asked);
        self.total_steps == 0
            && self.attempts.starts_before.is_empty()
            && self.starting.as_deref().is_some_and(is_new)
    }

    /// Compares its first start with those of runs like it, as far as some are known.
    pub(crate) fn compare_start(&mut self, starts: &[StartUp]) {
        self.attempts.starts_before = starts.to_vec();
        let usual = self.attempts.usual_next_start();
        let (asked, world) = ((self.config_groups.changed_at, self.ranks_known()), self.world);
        if let Some(s) = &mut self.starting {
            (s.usual, s.asked) = (usual, Some(asked));
            s.count_most(world);
        }
    }

    /// The nodes from which ranks said hello in this start, and how many.
    pub(crate) fn nodes_in_start(&self, s: &Starting) -> BTreeMap<&str, usize> {
        let mut nodes = BTreeMap::new();
        let node_of = |rank: u32| self.ranks.get(&rank)?.node.as_deref();
        for node in s.greeted_ranks().filter_map(node_of) {
            *nodes.entry(node).or_default() += 1;
        }
        nodes
    }

    /// Since when most ranks are there and some are not.
    pub(crate) fn lacks_ranks_since(&self, s: &Starting) -> Option<Ts> {
        let world = self.world.filter(|_| !s.has_met())?;
        s.lacks_since(world, self.ranks_of_lost(s).count())
    }

    /// The ranks that have not said hello while most have. Those that never reported are not
    /// expected where starts before it had fewer; those of a lost node may be there.
    pub fn missing_ranks(&self) -> Vec<u32> {
        let Some(s) = self.run_starts() else { return Vec::new() };
        let Some(world) = self.world.filter(|_| self.lacks_ranks_since(s).is_some()) else {
            return Vec::new();
        };
        let most = u32::try_from(MAX_RANKS).unwrap_or(u32::MAX);
        let all_report = s.usual().is_none_or(|usual| usual.ranks >= world);
        let lost: BTreeSet<u32> = self.ranks_of_lost(s).map(|(rank, _)| rank).collect();
        let is_missing = |rank: &u32| {
            !s.has(*rank) && !lost.contains(rank) && (all_report || self.ranks.contains_key(rank))
        };
        (0..world.min(most)).filter(is_missing).collect()
    }

    /// The ranks that have not said hello and were last on a node that cannot be reached, and that
    /// node.
    pub(crate) fn ranks_of_lost<'a>(&'a self, s: &'a Starting) -> impl Iterator<Item = (u32, &'a str)> {
        let lost = if self.lost.is_empty() { BTreeSet::new() } else { self.out_of_reach() };
        // Most runs have no lost node.
        let end = if lost.is_empty() { 0 } else { self.world.unwrap_or(0) };
        let of_rank = move |(rank, r): (&u32, &'a Rank)| {
            let node = r.node.as_deref().filter(|node| !s.has(*rank) && lost.contains(node))?;
            Some((*rank, node))
        };
        self.ranks.range(..end).filter_map(of_rank)
    }

    /// Whether no attempt goes on: none has made a step, or processes of the last one have ended
    /// since its last step.
    pub(in crate::run) fn may_start(&self) -> bool {
        let is_left = || self.attempts.left.is_some() || self.attempts.ends.count() > 0;
        self.total_steps == 0 || self.ended.is_some() || is_left()
    }

    /// The start, if it is that of the run and not of a rank that is replaced while others go on.
    pub fn run_starts(&self) -> Option<&Starting> {
        let of_most = |s: &Starting| 2 * s.ranks() > self.members().count();
        let of_run = |s: &Starting| self.may_start() || of_most(s);
        self.starting.as_deref().filter(|s| of_run(s))
    }

    /// A step was made: the first of the attempt ends its start.
    pub(in crate::run) fn start_ends(&mut self, now: Ts, s: &StepSample) {
        let Some(starting) = self.starting.take() else { return };
        if self.attempt_steps == 0 {
            let step_time = s.step_time.filter(|_| s.interval <= 1);
            self.attempts.start = Some(Box::new(starting.finish(now, s.ts, step_time)));
        } else if !starting.comes_before(s.ts) {
            // The step is of the attempt that was left.
            self.starting = Some(starting);
        }
    }
}

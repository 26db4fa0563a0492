//! The start of a run: which `hello` and which phases are part of it, and which step ends it.

use crate::run::RunState;
use crate::run::startup::{Greeter, Greeting, Starting};
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
        let (after, world) = (self.last_step_at, self.world);
        let s = self.starting.get_or_insert_with(|| Box::new(Starting::new(g.now, g.at, after)));
        if greeter == Greeter::New && s.has(g.rank) {
            **s = s.again(g.now, g.at);
        }
        s.greeted(g, world);
    }

    /// The start that a phase may belong to. A launcher declares its rendezvous before any process
    /// of a rank says hello.
    pub(crate) fn start_of_phase(&mut self, now: Ts, at: Ts) -> Option<&mut Starting> {
        if self.starting.is_none() && self.may_start() {
            self.starting = Some(Box::new(Starting::new(now, at, self.last_step_at)));
        }
        self.starting.as_deref_mut()
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
        } else if !starting.is_before(s.ts) {
            // The step is of the attempt that was left.
            self.starting = Some(starting);
        }
    }
}

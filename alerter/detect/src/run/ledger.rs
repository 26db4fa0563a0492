//! Where the time of a run went: every moment has one state, and the states add up to the time that
//! is accounted.
//!
//! A step gets the time that steps usually take. What it takes beyond goes to what happened
//! meanwhile: to declared loads, saves and evaluations for as long as they took, then to what the
//! step was marked with. The rest is slow, or stalled if it is long. Time is accounted once it is
//! known what it was, so no count ever goes back.
//!
//! Until it is known how long steps usually take, one counts for as long as it took, unless it took
//! far longer than all before it.
//!
//! Times are those of the events, so a record that arrives late counts for when it happened.

mod energy;
mod held;
mod hours;
mod totals;
mod usual_step;

use serde::{Deserialize, Serialize};

pub use self::energy::{Energy, EnergyConfig};
use self::held::LONGEST_LAUNCH;
use self::hours::Hours;
pub use self::hours::{HOUR, HourTotals, RunHour};
pub use self::totals::{Counts, TimeState, Totals};
use self::usual_step::UsualStep;
use crate::sample::StepClass;
use stepwatch_model::time::{Span, Ts};

/// A step that is not over after this, and after so many times the usual one, stands still. Both
/// are engineering limits.
const STALL: Span = Span::secs(60);
const STALL_STEPS: f64 = 5.0;
/// Share by which a step may be longer than the usual one without being slow: an engineering limit.
const NOISE: f64 = 0.02;

/// The accounts of a run that is forgotten, and since when it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptAccounts {
    pub(crate) accounts: Box<Accounts>,
    pub(crate) since: Ts,
}

/// What is accounted of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Accounts {
    /// Time that is accounted and not that of GPUs, until their number is known.
    unsized_time: Vec<(TimeState, i64)>,
    hours: Hours,
    /// Of a run that is forgotten: all before is accounted.
    until: Option<Ts>,
}

/// What a run costs while it lasts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Size {
    pub(crate) gpus: Option<u32>,
    pub(crate) dollars_per_gpu_hour: Option<f64>,
}

/// A line of steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steps {
    pub(crate) at: Ts,
    /// The last of them.
    pub(crate) last: i64,
    pub(crate) count: i64,
    pub(crate) class: StepClass,
    /// Of one step, where the trainer reports them.
    pub(crate) tokens: Option<f64>,
    /// Milliseconds of one step, where the trainer reports them.
    pub(crate) reported: Option<f64>,
    /// Everything since the line before was received.
    pub(crate) watched: bool,
}

/// What a trainer declares that it does instead of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declared {
    Loading,
    Saving,
    Evaluating,
}

/// How an attempt was left, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Left {
    Died(Ts),
    Over(Ts),
    /// Nobody is left who could report it, and nobody said how it ended.
    Silent(Ts),
}

impl Left {
    fn at(self) -> Ts {
        match self {
            Self::Died(at) | Self::Over(at) | Self::Silent(at) => at,
        }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// When the last line of steps or, before the first of an attempt, its first report happened.
    at: Option<Ts>,
    /// The attempt has made no step.
    starting: bool,
    /// Milliseconds since `at` of loading, saving and evaluating.
    declared: [i64; 3],
    usual: UsualStep,
    /// The steps of the last line, and the tokens of one.
    line: Option<(i64, Option<f64>)>,
    /// The last step that was ever made.
    furthest: Option<i64>,
    left: Option<Left>,
    /// The time until it was left is accounted: no rank of it is there any more.
    closed: bool,
    /// First report of a new process since `at`.
    greeted: Option<Ts>,
    /// The job was seen to leave a node then.
    released: Option<Ts>,
    /// It was seen to leave the last of its nodes.
    freed: bool,
    /// Another run began in its job: nobody knows which of them has the GPUs from then on.
    passed: bool,
    /// Time right before the attempt that is not accounted, because no GPUs are known to be held.
    /// It has no beginning if no attempt was before.
    gap: Option<(Option<Ts>, Ts)>,
    /// The job of the attempt, and that of the process that greeted last.
    job: Option<String>,
    next_job: Option<String>,
    /// Of the attempt.
    gpus: Option<u32>,
    /// Milliseconds beyond the usual of the last line, and what they are unless the next lines show
    /// that several were written at once.
    beyond: Option<(TimeState, i64)>,
    /// None while no time is accounted: most of the runs that a flood invents have none.
    accounts: Option<Box<Accounts>>,
}

impl Accounts {
    /// The hours of which something is accounted and that were not taken, and then the open one.
    pub(crate) fn take_hours(&mut self) -> impl Iterator<Item = HourTotals> {
        self.hours.take().into_iter().chain(self.hours.open())
    }

    fn add(&mut self, state: TimeState, ms: i64, size: Size) {
        let Some(gpus) = size.gpus else {
            self.count(state, ms, 0, 0.0);
            return self.keep_unsized(state, ms);
        };
        let gpu_time = |ms: i64| {
            let rate = size.dollars_per_gpu_hour.unwrap_or_default();
            (ms.saturating_mul(i64::from(gpus)), ms as f64 * f64::from(gpus) * rate / 3.6e6)
        };
        let (gpu_ms, dollars) = gpu_time(ms);
        self.count(state, ms, gpu_ms, dollars);
        for (state, ms) in core::mem::take(&mut self.unsized_time) {
            let (gpu_ms, dollars) = gpu_time(ms);
            self.count(state, 0, gpu_ms, dollars);
        }
    }

    fn keep_unsized(&mut self, state: TimeState, ms: i64) {
        match self.unsized_time.iter_mut().find(|(of, _)| *of == state) {
            Some((_, sum)) => *sum += ms,
            None => self.unsized_time.push((state, ms)),
        }
    }

    fn count(&mut self, state: TimeState, ms: i64, gpu_ms: i64, dollars: f64) {
        self.hours.interval().add(state, ms, gpu_ms, dollars);
    }

    fn count_events(&mut self, counts: Counts) {
        self.hours.interval().counts.join(&counts);
    }

    fn started(&mut self) {
        self.count_events(Counts { starts: 1, ..Counts::default() });
    }

    fn interrupted(&mut self) {
        self.count_events(Counts { interruptions: 1, ..Counts::default() });
    }
}

impl Ledger {
    /// What is accounted of the whole life of the run.
    pub fn totals(&self) -> Totals {
        self.accounts.as_ref().map(|accounts| accounts.hours.total()).unwrap_or_default()
    }

    /// What is accounted of the hour that is not over, if it began; the others are taken.
    pub fn open_hour(&self) -> Option<HourTotals> {
        self.accounts.as_ref().and_then(|accounts| accounts.hours.open())
    }

    /// Hours that are over, and were not taken before.
    pub(crate) fn take_hours(&mut self) -> Vec<HourTotals> {
        self.accounts.as_mut().map(|accounts| accounts.hours.take()).unwrap_or_default()
    }

    /// What is accounted, if anything is: nothing more comes.
    pub(crate) fn take_accounts(&mut self, size: Size) -> Option<Box<Accounts>> {
        if let Some(released) = self.released {
            self.left.get_or_insert(Left::Died(released));
        }
        if !self.closed {
            self.close(size);
        }
        self.settle_beyond(size);
        let at = self.at;
        let mut accounts = self.accounts.take()?;
        accounts.hours.settle(at, at);
        accounts.until = accounts.until.max(at);
        // Whoever comes back may have other GPUs.
        accounts.unsized_time.clear();
        Some(accounts)
    }

    /// Counts on from what was accounted before.
    pub(crate) fn go_on_from(&mut self, accounts: Box<Accounts>) {
        self.accounts = Some(accounts);
    }

    /// GPUs of the run used energy.
    pub(crate) fn used(&mut self, energy: Energy) {
        if self.at.is_some() {
            let accounts = self.accounts.get_or_insert_default();
            accounts.count_events(Counts { energy, ..Counts::default() });
        }
    }

    fn add(&mut self, state: TimeState, ms: i64, size: Size) {
        if ms > 0 {
            self.accounts.get_or_insert_default().add(state, ms, size);
        }
    }

    /// A process of the run reports for the first time. What happened before the last step was of
    /// its attempt: exporters repeat what they said, and clocks differ. `given` is when its job got
    /// its GPUs, if that is known.
    pub(crate) fn greeted(&mut self, at: Ts, job: Option<&str>, given: Option<Ts>, size: Size) {
        let given = given.filter(|given| *given <= at && at - *given <= LONGEST_LAUNCH);
        if let Some(given) = given {
            self.was_given(given, job, size);
        }
        // A job leaves a node a little later than is seen, and the next one may be there by then.
        let is_closed_by = |left: Left| self.closed && left.at() <= at;
        if self.is_before(at) && !self.left.is_some_and(is_closed_by) {
            return;
        }
        let other_job = self.job.as_deref().zip(job).is_some_and(|(had, new)| had != new);
        self.next_job = job.map(str::to_owned).or(self.next_job.take());
        if self.at.is_none() {
            let until = self.accounts.as_ref().and_then(|accounts| accounts.until);
            let begun = given.filter(|given| until.is_none_or(|until| *given >= until)).unwrap_or(at);
            (self.at, self.starting, self.job) = (Some(begun), true, self.next_job.clone());
            (self.gap, self.gpus) = (Some((until, begun)), size.gpus);
            return;
        }
        if self.starting && self.left.is_none() && self.job.is_none() {
            // A log greets before whoever knows of which job it is.
            self.job.clone_from(&self.next_job);
        }
        let greeted = *self.greeted.get_or_insert(at);
        let given = given.filter(|given| other_job || self.is_given_anew(*given));
        if given.is_some() || other_job || self.left.is_some() && self.starting {
            // Another job may have waited with its GPUs until the attempt before it ended.
            let left = self.left.map(|left| left.at().min(at));
            let begun = given.map_or(greeted, |given| given.max(left.unwrap_or(given)));
            self.leave(begun, given.is_some(), size);
            self.starting = true;
        }
    }

    /// A rank, or the run, ended before its end.
    pub(crate) fn died(&mut self, at: Ts) {
        self.ends(Left::Died(at), at);
    }

    /// The run came to its end.
    pub(crate) fn over(&mut self, at: Ts) {
        self.ends(Left::Over(at), at);
    }

    /// The log of the run ended, without a word.
    pub(crate) fn fell_silent(&mut self, at: Ts) {
        self.ends(Left::Silent(at), at);
    }

    fn ends(&mut self, how: Left, at: Ts) {
        if self.is_before(at) {
            return;
        }
        // Whoever greeted before was of the attempt that ended.
        if self.greeted.is_some_and(|greeted| greeted <= at) {
            self.greeted = None;
            if self.left.is_some() {
                // It made no step, so it loaded nothing for the next one.
                self.declared[Declared::Loading as usize] = 0;
            }
        }
        self.left.get_or_insert(how);
    }

    /// All ranks have ended: accounts the time since the last step.
    pub(crate) fn close(&mut self, size: Size) {
        if let Some(left) = self.left {
            self.close_at(left.at(), size);
            self.closed = true;
            if let Some(released) = self.released {
                self.hold(released, size);
            }
        }
    }

    /// Something other than steps took so long, until `at`.
    pub(crate) fn declared(&mut self, what: Declared, at: Ts, lasted: Span) {
        // Whatever else an attempt does before its first step is of its start.
        let is_wanted = what == Declared::Loading || !self.is_start(at);
        if is_wanted && !self.is_before(at) {
            let ms = &mut self.declared[what as usize];
            // Each rank of a save says how long it took.
            *ms = (*ms).max(lasted.0);
        }
    }

    /// What happened then may be of an attempt that made no step yet. If it is not, because only a
    /// rank was replaced, the class of the next step says what that waited for.
    fn is_start(&self, at: Ts) -> bool {
        let is_after = |end: Ts| at > end;
        self.starting || self.greeted.is_some_and(is_after) || self.left.map(Left::at).is_some_and(is_after)
    }

    fn has_declared(&self, what: Declared) -> bool {
        self.declared[what as usize] > 0
    }

    fn is_before(&self, at: Ts) -> bool {
        self.at.is_some_and(|last| at < last)
    }

    /// Milliseconds that the steps of the last line usually take.
    fn expected(&self) -> Option<f64> {
        self.line.and_then(|(count, tokens)| self.usual.expected(count, tokens))
    }

    pub(crate) fn steps(&mut self, s: Steps, size: Size) {
        if self.at.is_none() {
            self.begin(s.at);
        }
        let from = self.at.unwrap_or(s.at);
        self.usual.comes((s.at - from).0.max(0));
        // A rank that is replaced in a run that goes on greets too.
        let paused = || (s.at - from).0 >= self.expected().map_or(0, stall_limit);
        let is_new = self.left.is_some() && self.greeted.is_some();
        // A log goes on behind its last step without a greeting.
        let usual = || self.usual.expected(s.count, s.tokens).unwrap_or(0.0);
        let is_back = self.closed && (s.at - from).0 >= stall_limit(usual());
        if !self.starting && (s.class == StepClass::First || is_new && paused() || is_back) {
            // A load since is of the new attempt, and a save or an evaluation of the one before.
            let loading = core::mem::take(&mut self.declared[Declared::Loading as usize]);
            let greeted = self.greeted;
            self.leave(greeted.unwrap_or(s.at), false, size);
            self.declared[Declared::Loading as usize] = loading;
            self.starting = greeted.is_some();
        }
        let from = self.at.unwrap_or(s.at);
        if let Some(accounts) = &mut self.accounts {
            accounts.hours.spans(from, s.at);
        }
        let open = (s.at - from).0.max(0);
        if self.starting {
            let loading = self.declared[Declared::Loading as usize].min(open);
            self.add(TimeState::Loading, loading, size);
            self.add(TimeState::Starting, open - loading, size);
            self.usual.take(open, &s, false, size.gpus);
            if let Some(accounts) = &mut self.accounts {
                accounts.started();
            }
        } else {
            self.step(&s, open, size);
        }
        let tokens = s.tokens.filter(|t| t.is_finite()).unwrap_or_default() * self.new_steps(&s) as f64;
        if let Some(accounts) = &mut self.accounts {
            accounts.hours.interval().counts.tokens += tokens.max(0.0);
        }
        self.begin(s.at.max(from));
        (self.starting, self.gpus) = (false, size.gpus);
        self.line = Some((s.count, s.tokens));
        self.furthest = self.furthest.max(Some(s.last));
        // Whoever named it after its first step named the job of this attempt.
        let named = self.next_job.take();
        self.job = self.job.take().or(named);
    }

    /// All before `at` is accounted.
    fn begin(&mut self, at: Ts) {
        self.settle_hours(at);
        (self.at, self.declared) = (Some(at), [0; 3]);
        (self.left, self.closed, self.greeted, self.released) = (None, false, None, None);
        self.freed = false;
    }

    /// What was accounted since the last time is of the time from then on.
    fn settle_hours(&mut self, to: Ts) {
        if let Some(accounts) = &mut self.accounts {
            accounts.hours.settle(self.at, Some(to));
        }
    }

    /// Accounts the time from the last step of the attempt that was left to the beginning of the
    /// next one, to whose job GPUs were `given` then, if that is known.
    fn leave(&mut self, begun: Ts, given: bool, size: Size) {
        self.usual.settle();
        let begun = begun.max(self.at.unwrap_or(begun));
        if let Some(released) = self.released {
            // Whoever let the job go without a word has not ended well.
            self.left.get_or_insert(Left::Died(released));
        }
        let is_over = matches!(self.left, Some(Left::Over(_)));
        // The GPUs were those of the attempt that was left.
        let size_before = Size { gpus: self.gpus.or(size.gpus), ..size };
        let between = match self.left {
            Some(left) => {
                self.close_at(left.at().min(begun), size);
                self.hold(begun, size);
                (begun - self.at.unwrap_or(begun)).0.max(0)
            }
            // Of the time after its last step only that is known which it declared.
            None => self.add_declared((begun - self.at.unwrap_or(begun)).0, size_before),
        };
        if let (None, Some(accounts)) = (self.left, &mut self.accounts) {
            accounts.interrupted();
        }
        // The GPUs were given back, and may have been used by others.
        let is_free = is_over || given;
        let held = if is_free { None } else { self.held_between(Span(between)) };
        // Nobody knows of what is not accounted here whether it was held, until the job says so.
        let end = Ts(begun.0.saturating_sub(between));
        self.gap = held.is_none().then_some((Some(end), begun));
        if let Some(state) = held {
            self.add(state, between, size_before);
        }
        (self.job, self.gpus, self.passed) = (self.next_job.take(), size.gpus, false);
        self.begin(begun);
    }

    /// Accounts the time from the last step to the end of the attempt.
    fn close_at(&mut self, at: Ts, size: Size) {
        let size = Size { gpus: self.gpus.or(size.gpus), ..size };
        self.settle_beyond(size);
        self.usual.settle();
        let from = self.at.unwrap_or(at);
        let gone = at.max(from);
        let is_over = matches!(self.left, Some(Left::Over(_) | Left::Silent(_)));
        let open = self.add_declared((gone - from).0, size);
        let waits = !self.starting && !is_over;
        let longest = || self.line.and_then(|(count, _)| self.usual.longest(count));
        let usual = self.expected().or_else(longest);
        let stalled = usual.filter(|usual| waits && open >= stall_limit(*usual));
        let stalled = stalled.map_or(0, |usual| open - usual as i64);
        self.add(TimeState::Stalled, stalled, size);
        let last = match is_over {
            _ if self.starting => TimeState::Starting,
            true => TimeState::Idle,
            // What a step had done that did not end is done again.
            false => TimeState::Down,
        };
        self.add(last, open - stalled, size);
        let died = matches!(self.left, Some(Left::Died(_)));
        if died
            && !self.closed
            && let Some(accounts) = &mut self.accounts
        {
            accounts.interrupted();
        }
        self.settle_hours(gone);
        (self.at, self.declared, self.line) = (Some(gone), [0; 3], None);
    }

    /// Accounts what was declared, and returns what is left of the time.
    fn add_declared(&mut self, open: i64, size: Size) -> i64 {
        let states = [TimeState::Loading, TimeState::Saving, TimeState::Evaluating];
        let mut rest = open;
        for (state, declared) in states.into_iter().zip(self.declared) {
            let part = declared.min(rest);
            self.add(state, part, size);
            rest -= part;
        }
        rest
    }

    fn step(&mut self, s: &Steps, open: i64, size: Size) {
        let declared: i64 = self.declared.iter().sum();
        let known = self.usual.expected(s.count, s.tokens);
        let usual = known.or_else(|| self.usual.longest(s.count));
        // Of a clock of whole seconds no gap is known better.
        let is_coarse = s.at.0 % 1000 == 0 && self.at.is_some_and(|at| at.0 % 1000 == 0);
        let noise = (usual.unwrap_or(0.0) * NOISE).max(if is_coarse { 1000.0 } else { 0.0 });
        let early = usual.map_or(0, |usual| usual as i64 - open);
        let before = self.take_beyond(early, open, size);
        let taken = (open - declared).max(0);
        let expected = match usual {
            Some(longest) if known.is_none() && taken < stall_limit(longest) => taken,
            Some(usual) if open as f64 > usual + noise => usual as i64,
            Some(_) => open,
            None => taken,
        };
        let steps = expected + before;
        let (new, all) = (self.new_steps(s), s.count.max(1));
        let productive = if new == all { steps } else { share(steps, new, all) };
        self.add(TimeState::Productive, productive, size);
        self.add(TimeState::Recomputing, steps - productive, size);
        let rest = self.add_declared(open - expected, size);
        let is_long = usual.is_some_and(|usual| rest + usual as i64 >= stall_limit(usual));
        let state = match s.class {
            StepClass::Checkpoint if !self.has_declared(Declared::Saving) => TimeState::Saving,
            StepClass::Eval if !self.has_declared(Declared::Evaluating) => TimeState::Evaluating,
            _ if !s.watched => TimeState::Unknown,
            _ if is_long => TimeState::Stalled,
            _ => TimeState::Slowed,
        };
        if rest > 0 {
            self.beyond = Some((state, rest));
        }
        let plain = s.class == StepClass::Train && declared == 0 && s.watched;
        self.usual.take(open, s, plain, size.gpus);
    }

    /// How many of them the run had not made before.
    fn new_steps(&self, s: &Steps) -> i64 {
        s.last.saturating_sub(self.furthest.unwrap_or(i64::MIN)).clamp(0, s.count.max(1))
    }

    /// Of what earlier lines took beyond the usual, as much as this line came too early: a log that
    /// is written through a buffer has many lines at once, and then none for long. A line that took
    /// its time shows that the earlier ones did too.
    fn take_beyond(&mut self, early: i64, open: i64, size: Size) -> i64 {
        if early <= open {
            self.settle_beyond(size);
            return 0;
        }
        let Some((state, ms)) = self.beyond.take() else { return 0 };
        let (taken, usual) = (early.min(ms), early + open);
        let left = ms - taken;
        // What is left of it by now would be no standstill.
        let is_short = state == TimeState::Stalled && left + usual < stall_limit(usual as f64);
        let state = if is_short { TimeState::Slowed } else { state };
        self.beyond = Some((state, left)).filter(|(_, left)| *left > 0);
        taken
    }

    /// Nothing more comes that was written at once with the last line.
    fn settle_beyond(&mut self, size: Size) {
        if let Some((state, ms)) = self.beyond.take() {
            self.add(state, ms, size);
        }
    }
}

/// So much of it as `part` is of `whole`.
fn share(ms: i64, part: i64, whole: i64) -> i64 {
    (ms as f64 * part as f64 / whole as f64).round() as i64
}

fn stall_limit(usual: f64) -> i64 {
    STALL.0.max((STALL_STEPS * usual) as i64)
}

#[cfg(test)]
mod tests;

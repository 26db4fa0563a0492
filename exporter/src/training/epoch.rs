//! Decides which attempt of the job a step belongs to.
//!
//! A job that dies resumes from its last checkpoint, so its steps go backwards. A detector must not
//! compare losses across that. The rule: if a source of a rank goes backwards, or a new process
//! takes over a rank, a new attempt of the whole run begins, and the other ranks and sources join
//! it.
//!
//! Several sources may report the same rank, each at its own pace: a TensorBoard file is two
//! minutes behind, a log line arrives at once. So every source has its own position in the run. A
//! restart is counted when the first source shows it; later reports about the previous attempt are
//! recognised by their time. While the trainer itself reports, only it begins an attempt, because
//! its reports are never late and never read twice.

use crate::origin::Priority;
use std::sync::Arc;

/// A source without reports for this long no longer leads; the next most exact one does.
const LEAD_SECONDS: f64 = 300.0;
/// Packets of the previous attempt may still arrive for this long after the first one of the new.
const IN_FLIGHT_SECONDS: f64 = 5.0;
/// The greatest difference between the clocks of two sources: some write whole seconds.
const CLOCK_SECONDS: f64 = 1.0;
/// Seconds without reports after which another source of its kind may have replaced a source.
const REPLACED_SECONDS: f64 = 5.0;
/// The most sources of a rank; above it, the one without reports for longest is dropped.
const MAX_SOURCES: usize = 8;

/// A step further ahead than this is ignored until the next one confirms it: it may be a number
/// from elsewhere, or damaged.
pub(super) const MAX_STEP_JUMP: i64 = 100_000;

/// Whether a step is too far ahead of the previous one.
pub(super) fn is_jump(before: i64, step: i64) -> bool {
    step.saturating_sub(before) > MAX_STEP_JUMP
}

/// The current attempt of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RunEpoch {
    pub(super) attempt: u32,
    began: f64,
    /// The time of its first step, if the source gives one.
    began_at: Option<f64>,
    first_step: i64,
}

/// The progress of a rank, and its attempt.
#[derive(Debug, Clone)]
pub(super) struct RankEpoch {
    pub(super) attempt: u32,
    pub(super) last: Option<i64>,
    lead: Option<(Priority, f64)>,
    sources: Vec<SourceProgress>,
    /// The pid of the new process that sent `hello` for this rank and has not stepped yet.
    newborn: Option<u32>,
    /// The last step that was too far ahead to be accepted alone.
    doubted: Option<i64>,
    /// Whether the launcher declared that the next step belongs to the run's attempt.
    certain: bool,
}

/// The reporter of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speaker<'a> {
    pub(super) priority: Priority,
    /// The name of the source; `None` is the trainer itself.
    pub(super) name: Option<&'a Arc<str>>,
    /// The step's Unix time in seconds, if the source gives one.
    pub(super) ts: Option<f64>,
    pub(super) now: f64,
}

/// A source of a rank, and its progress.
#[derive(Debug, Clone)]
struct SourceProgress {
    priority: Priority,
    name: Option<Arc<str>>,
    attempt: u32,
    last: Option<i64>,
    last_ts: Option<f64>,
    heard: f64,
    /// A step that went back, which is not yet accepted as a restart.
    back: Option<i64>,
    /// The source announced a new writer that has not stepped yet.
    reborn: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Observed {
    /// The step belongs to an earlier attempt of the run.
    Past,
    Step {
        /// Steps that the rank advanced by; 0 for more metrics of a step already reported.
        advanced: i64,
        /// The last step before the restart, if this step began a new attempt.
        restarted_from: Option<i64>,
        /// Whether the value comes from the most exact active source.
        leads: bool,
    },
}

impl RunEpoch {
    pub(super) fn new(attempt: u32, now: f64) -> Self {
        Self { attempt, began: now, began_at: None, first_step: i64::MIN }
    }

    fn restart(&mut self, step: i64, who: Speaker<'_>) {
        let attempt = self.attempt.saturating_add(1);
        *self = Self { attempt, began: who.now, began_at: who.ts, first_step: step };
    }

    /// Whether a step may belong to the previous attempt: the first step of the new one, from
    /// another rank, can overtake it.
    fn is_in_flight(&self, step: i64, now: f64) -> bool {
        now - self.began < IN_FLIGHT_SECONDS && step > self.first_step
    }

    /// Whether a step happened before this attempt began. A wrong clock excludes a source only for
    /// [`LEAD_SECONDS`].
    fn is_past(&self, who: Speaker<'_>) -> bool {
        let before = self.began_at.zip(who.ts).is_some_and(|(began, ts)| ts < began - CLOCK_SECONDS);
        before && who.priority != Priority::Client && who.now - self.began < LEAD_SECONDS
    }

    /// Whether a source that has not shown the restart still reports the previous attempt.
    fn is_left_by(&self, step: i64, who: Speaker<'_>) -> bool {
        if who.priority == Priority::Client || who.ts.is_none() || self.began_at.is_none() {
            return self.is_in_flight(step, who.now);
        }
        self.is_past(who)
    }

    /// Moves to an attempt that the launcher counted, if it is later. Returns whether it is.
    pub(super) fn raise(&mut self, attempt: u32, step: i64, who: Speaker<'_>) -> bool {
        let later = attempt > self.attempt;
        if later {
            *self = Self { attempt, began: who.now, began_at: who.ts, first_step: step };
        }
        later
    }
}

impl SourceProgress {
    fn new(who: Speaker<'_>, attempt: u32) -> Self {
        Self {
            priority: who.priority,
            name: who.name.cloned(),
            attempt,
            last: None,
            last_ts: None,
            heard: who.now,
            back: None,
            reborn: false,
        }
    }

    fn is(&self, who: Speaker<'_>) -> bool {
        self.priority == who.priority && self.name.as_ref() == who.name
    }

    /// Whether a step was written after the last one; true if a time is unknown.
    fn is_later(&self, ts: Option<f64>) -> bool {
        self.last_ts.zip(ts).is_none_or(|(before, ts)| ts > before)
    }

    /// Whether the source goes back. In a file with several loggers, one step may be written late.
    /// There it counts only if the next step continues from it.
    fn goes_back(&mut self, step: i64, ts: Option<f64>) -> bool {
        let back = self.last.is_some_and(|last| step < last)
            && (self.priority == Priority::Client || self.is_later(ts));
        let before = core::mem::replace(&mut self.back, back.then_some(step));
        back && (self.priority != Priority::File || before.is_some_and(|before| step > before))
    }

    fn join(&mut self, attempt: u32) {
        (self.attempt, self.last, self.last_ts, self.back) = (attempt, None, None, None);
    }

    fn moved(&mut self, step: i64, ts: Option<f64>) {
        if self.last.is_none_or(|last| step >= last) {
            (self.last, self.last_ts) = (Some(step), ts);
        }
    }
}

impl RankEpoch {
    pub(super) fn new(attempt: u32, last: Option<i64>) -> Self {
        Self { attempt, last, lead: None, sources: Vec::new(), newborn: None, doubted: None, certain: false }
    }

    /// The state before a restart of this exporter.
    pub(super) fn restored(attempt: u32, last: i64, lead: Priority, now: f64) -> Self {
        let who = Speaker { priority: lead, name: None, ts: None, now };
        let source = SourceProgress { last: Some(last), ..SourceProgress::new(who, attempt) };
        Self { lead: Some((lead, now)), sources: vec![source], ..Self::new(attempt, Some(last)) }
    }

    pub(super) fn lead(&self) -> Option<Priority> {
        self.lead.map(|(source, _)| source)
    }

    pub(super) fn reborn(&mut self, pid: u32) {
        self.newborn = Some(pid);
    }

    /// Records that a source announced a new process; its later reports are of that one.
    pub(super) fn source_reborn(&mut self, who: Speaker<'_>, run: &RunEpoch) {
        let at = self.source_index(who, None, run);
        if let Some(source) = self.sources.get_mut(at) {
            source.reborn = true;
        }
    }

    /// Records that the next step comes from this process. A child that sent `hello` for its
    /// parent's rank, such as a data loader's worker, does not step.
    pub(super) fn stepped_by(&mut self, pid: Option<u32>) {
        if pid.is_some() && self.newborn != pid {
            self.newborn = None;
        }
    }

    /// Records that the next step certainly belongs to the run's current attempt.
    pub(super) fn counted_by_launcher(&mut self) {
        self.certain = true;
    }

    /// Whether a step is so far ahead that it is not accepted alone: of the rank's last step, or of
    /// the run's step `here` if the rank has none. It is accepted if the next step continues from
    /// it.
    pub(super) fn doubts(&mut self, step: i64, here: Option<i64>) -> bool {
        let jumped = self.last.or(here).is_some_and(|before| is_jump(before, step));
        let before = core::mem::replace(&mut self.doubted, jumped.then_some(step));
        let confirmed = before.is_some_and(|before| step > before && !is_jump(before, step));
        if confirmed {
            self.doubted = None;
        }
        jumped && !confirmed
    }

    pub(super) fn observe(&mut self, run: &mut RunEpoch, step: i64, who: Speaker<'_>) -> Observed {
        let leads = self.leads(who);
        let at = self.source_index(who, Some(step), run);
        let is_client = who.priority == Priority::Client;
        let newborn = is_client && self.newborn.take().is_some();
        let certain = core::mem::take(&mut self.certain);
        let Some(source) = self.sources.get_mut(at) else { return Observed::Past };
        let newborn = newborn || core::mem::take(&mut source.reborn);
        let back = source.goes_back(step, who.ts);
        source.heard = who.now;
        let mut restarted_from = None;
        if source.attempt == run.attempt {
            if run.is_past(who) {
                return Observed::Past;
            }
            let news = back && (leads || !self.client_leads(who.now));
            if news || (newborn && self.last.is_some()) {
                restarted_from = self.last;
                run.restart(step, who);
                self.join(at, run);
            }
        } else if back || newborn || certain || !run.is_left_by(step, who) {
            self.join(at, run);
        } else if !is_client || self.attempt == run.attempt {
            return Observed::Past;
        }
        let advanced = match self.last {
            None => 1,
            Some(last) if is_jump(last, step) => 1,
            Some(last) => step.saturating_sub(last).max(0),
        };
        self.last = self.last.max(Some(step));
        if let Some(source) = self.sources.get_mut(at) {
            source.moved(step, who.ts);
        }
        Observed::Step { advanced, restarted_from, leads }
    }

    fn leads(&mut self, who: Speaker<'_>) -> bool {
        let leads = self.lead.is_none_or(|(lead, at)| who.priority <= lead || who.now - at > LEAD_SECONDS);
        if leads {
            self.lead = Some((who.priority, who.now));
        }
        leads
    }

    fn client_leads(&self, now: f64) -> bool {
        self.lead.is_some_and(|(lead, at)| lead == Priority::Client && now - at <= LEAD_SECONDS)
    }

    /// The index of the source; a new one is added. A new file replaces one that ended, if it
    /// reports an earlier step at a later time.
    fn source_index(&mut self, who: Speaker<'_>, step: Option<i64>, run: &RunEpoch) -> usize {
        if let Some(at) = self.sources.iter().position(|t| t.is(who)) {
            return at;
        }
        let replaced = |t: &SourceProgress| {
            let silence = t.last_ts.zip(who.ts).map_or(0.0, |(last, ts)| ts - last).max(who.now - t.heard);
            let goes_back = t.last.zip(step).is_some_and(|(last, step)| step < last);
            t.name.is_none() || (goes_back && silence > REPLACED_SECONDS && t.is_later(who.ts))
        };
        let kin = self.sources.iter().enumerate().filter(|(_, t)| t.priority == who.priority && replaced(t));
        if let Some((at, _)) = kin.max_by_key(|(_, t)| t.last) {
            self.sources[at].name = who.name.cloned();
            return at;
        }
        if self.sources.len() >= MAX_SOURCES {
            let silent = (0..self.sources.len())
                .min_by(|a, b| self.sources[*a].heard.total_cmp(&self.sources[*b].heard));
            if let Some(at) = silent {
                self.sources.swap_remove(at);
            }
        }
        // The trainer's own first report belongs to the rank's attempt, because it never reports
        // the past.
        let attempt = if who.priority == Priority::Client { self.attempt } else { run.attempt };
        let last = if who.priority == Priority::Client && self.sources.is_empty() { self.last } else { None };
        self.sources.push(SourceProgress { last, ..SourceProgress::new(who, attempt) });
        self.sources.len() - 1
    }

    /// Moves a source and its rank to the run's attempt.
    fn join(&mut self, at: usize, run: &RunEpoch) {
        if let Some(source) = self.sources.get_mut(at) {
            source.join(run.attempt);
        }
        if self.attempt != run.attempt {
            self.attempt = run.attempt;
            self.last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Client, File, Log};

    fn by(priority: Priority, now: f64) -> Speaker<'static> {
        Speaker { priority, name: None, ts: None, now }
    }

    fn step(advanced: i64) -> Observed {
        Observed::Step { advanced, restarted_from: None, leads: true }
    }

    fn adds(advanced: i64) -> Observed {
        Observed::Step { advanced, restarted_from: None, leads: false }
    }

    fn restart(from: i64) -> Observed {
        Observed::Step { advanced: 1, restarted_from: Some(from), leads: true }
    }

    #[test]
    fn steps_advance_and_going_back_begins_an_attempt() {
        let (mut run, mut rank) = (RunEpoch::new(0, 0.0), RankEpoch::new(0, None));
        assert_eq!(rank.observe(&mut run, 10, by(Client, 0.0)), step(1));
        assert_eq!(rank.observe(&mut run, 20, by(Client, 1.0)), step(10));
        assert_eq!(rank.observe(&mut run, 20, by(Client, 1.1)), step(0), "more about the same step");
        assert_eq!(rank.observe(&mut run, 15, by(Client, 60.0)), restart(20));
        assert_eq!((run.attempt, rank.attempt), (1, 1));
        assert_eq!(rank.observe(&mut run, 16, by(Client, 61.0)), step(1));
    }

    #[test]
    fn one_restart_of_eight_ranks_is_one_attempt() {
        let mut run = RunEpoch::new(0, 0.0);
        let mut ranks = vec![RankEpoch::new(0, None); 8];
        for s in [100, 101, 102] {
            for rank in &mut ranks {
                rank.observe(&mut run, s, by(Client, 0.0));
            }
        }
        let late = ranks[7].observe(&mut run, 103, by(Client, 0.0));
        assert_eq!(late, step(1));
        assert_eq!(ranks[0].observe(&mut run, 100, by(Client, 50.0)), restart(102));
        // A packet of the previous attempt is in flight. Afterwards the rank joins.
        assert_eq!(ranks[7].observe(&mut run, 104, by(Client, 50.1)), step(1));
        assert_eq!(ranks[7].attempt, 0);
        for rank in &mut ranks[1..] {
            assert_eq!(rank.observe(&mut run, 100, by(Client, 51.0)), step(1));
        }
        assert_eq!(run.attempt, 1);
        assert!(ranks.iter().all(|r| r.attempt == 1));
    }

    #[test]
    fn a_new_process_that_resumes_exactly_where_the_old_one_died_is_a_restart() {
        let (mut run, mut rank) = (RunEpoch::new(0, 0.0), RankEpoch::new(0, Some(149)));
        rank.reborn(7);
        rank.stepped_by(Some(7));
        assert_eq!(rank.observe(&mut run, 150, by(Client, 0.0)), restart(149));
        assert_eq!(rank.observe(&mut run, 151, by(Client, 1.0)), step(1));
        assert_eq!(run.attempt, 1);
    }

    #[test]
    fn a_child_that_says_hello_for_its_parent_restarts_nothing() {
        let (mut run, mut rank) = (RunEpoch::new(0, 0.0), RankEpoch::new(0, Some(149)));
        rank.reborn(8);
        rank.stepped_by(Some(7));
        assert_eq!(rank.observe(&mut run, 150, by(Client, 0.0)), step(1));
    }

    #[test]
    fn a_lagging_log_restarts_nothing_while_the_client_speaks() {
        let (mut run, mut rank) = (RunEpoch::new(0, 0.0), RankEpoch::new(0, None));
        for s in 1..=20 {
            rank.observe(&mut run, s, by(Client, 0.0));
        }
        assert_eq!(rank.observe(&mut run, 18, by(Log, 1.0)), adds(0));
        assert_eq!(rank.observe(&mut run, 21, by(Log, 1.0)), adds(1), "only the log has it so far");
        assert_eq!(rank.observe(&mut run, 21, by(Client, 1.0)), step(0));
        assert_eq!(rank.observe(&mut run, 3, by(Log, 2.0)), adds(0), "read again");
        assert_eq!(run.attempt, 0);
        // The client has not reported for long, so the log leads and may begin an attempt.
        assert_eq!(rank.observe(&mut run, 22, by(Log, 400.0)), step(1));
        assert_eq!(rank.observe(&mut run, 5, by(Log, 401.0)), restart(22));
    }

    /// A report at `now` of a step with the time `ts`.
    fn speaker(priority: Priority, name: &Arc<str>, ts: f64, now: f64) -> Speaker<'_> {
        Speaker { priority, name: Some(name), ts: Some(ts), now }
    }

    #[test]
    fn a_file_minutes_behind_follows_a_restart_that_the_log_showed_first() {
        let (log, old, new) = ("run.log".into(), "events.1".into(), "events.2".into());
        let (mut run, mut rank) = (RunEpoch::new(0, 0.0), RankEpoch::new(0, None));
        let ts = |s: i64| s as f64 * 10.0;
        for s in 1..=150 {
            rank.observe(&mut run, s, speaker(Log, &log, ts(s), ts(s)));
            if s > 12 {
                rank.observe(&mut run, s - 12, speaker(File, &old, ts(s - 12), ts(s)));
            }
        }
        // The job is killed after step 150 and resumes from 100 two minutes later.
        let again = |s: i64| 1620.0 + (s - 100) as f64 * 10.0;
        let shown = rank.observe(&mut run, 100, speaker(Log, &log, again(100), again(100)));
        assert_eq!(shown, Observed::Step { advanced: 1, restarted_from: Some(150), leads: false });
        for s in 139..=150 {
            let late = rank.observe(&mut run, s, speaker(File, &old, ts(s), again(101)));
            assert_eq!(late, Observed::Past, "{s}");
        }
        for s in 101..=130 {
            rank.observe(&mut run, s, speaker(Log, &log, again(s), again(s)));
        }
        for s in 100..=118 {
            rank.observe(&mut run, s, speaker(File, &new, again(s), again(130)));
        }
        assert_eq!((run.attempt, rank.attempt, rank.last), (1, 1, Some(130)));
    }

    #[test]
    fn a_new_file_with_earlier_steps_at_later_times_is_a_restart_and_one_beside_it_is_not() {
        let (a, b, c) = ("events.1".into(), "events.1.val".into(), "events.2".into());
        let (mut run, mut rank) = (RunEpoch::new(0, 0.0), RankEpoch::new(0, None));
        for s in 1..=50 {
            rank.observe(&mut run, s, speaker(File, &a, s as f64, 60.0));
        }
        // Another writer of the same process, whose file is read after the first one.
        for s in 1..=50 {
            rank.observe(&mut run, s, speaker(File, &b, s as f64 + 0.1, 60.0));
        }
        assert_eq!(run.attempt, 0);
        // One step that is written late is no restart.
        rank.observe(&mut run, 49, speaker(File, &a, 51.0, 61.0));
        rank.observe(&mut run, 51, speaker(File, &a, 51.5, 61.5));
        assert_eq!(run.attempt, 0);
        for s in 40..=60 {
            rank.observe(&mut run, s, speaker(File, &c, s as f64 + 100.0, 170.0));
        }
        assert_eq!(run.attempt, 1);
    }

    #[test]
    fn a_file_that_says_it_was_resumed_is_a_new_process() {
        let name = "run.wandb".into();
        let (mut run, mut rank) = (RunEpoch::new(0, 0.0), RankEpoch::new(0, None));
        rank.observe(&mut run, 10, speaker(File, &name, 10.0, 10.0));
        rank.source_reborn(speaker(File, &name, 20.0, 20.0), &run);
        assert_eq!(rank.observe(&mut run, 11, speaker(File, &name, 30.0, 30.0)), restart(10));
        assert_eq!(rank.observe(&mut run, 12, speaker(File, &name, 31.0, 31.0)), step(1));
    }

    #[test]
    fn a_wild_step_is_believed_when_the_next_one_goes_on_from_there() {
        let mut rank = RankEpoch::new(0, Some(10));
        assert!(rank.doubts(i64::MAX, None));
        assert!(!rank.doubts(11, None));
        assert!(rank.doubts(900_000, None) && rank.doubts(900_000, None), "twice the same confirms nothing");
        assert!(!rank.doubts(900_001, None));
        let mut new = RankEpoch::new(0, None);
        assert!(!new.clone().doubts(900_000, None), "a run may begin anywhere");
        assert!(new.doubts(900_000, Some(10)), "a rank begins where its run is");
    }

    #[test]
    fn a_launcher_that_counts_attempts_is_believed_upwards() {
        let mut run = RunEpoch::new(1, 0.0);
        assert!(!run.raise(1, 5, by(Client, 0.0)));
        assert!(run.raise(3, 5, by(Client, 0.0)));
        assert_eq!(run.attempt, 3);
    }

    proptest::proptest! {
        #[test]
        fn attempts_never_go_back(steps in proptest::collection::vec((0i64..50, 0usize..3, 0usize..4), 1..200)) {
            let mut run = RunEpoch::new(0, 0.0);
            let mut ranks = vec![RankEpoch::new(0, None); 4];
            let mut last = 0;
            for (i, (s, source, rank)) in steps.into_iter().enumerate() {
                ranks[rank].observe(&mut run, s, by([Client, File, Log][source], i as f64));
                proptest::prop_assert!(run.attempt >= last && ranks[rank].attempt <= run.attempt);
                last = run.attempt;
            }
        }
    }
}

//! Which life of the job a step belongs to.
//!
//! A job that dies resumes from its last checkpoint, so its steps go backwards; to a detector that looks like a
//! loss that jumped and must not be compared across. The rule here: the leading source of a rank going backwards, or
//! a new process taking over a rank, begins a new attempt of the whole run, and the other ranks join it as their own
//! steps arrive. Several sources may tell of the same rank; the most exact one leads and the others only fill in.

use std::collections::VecDeque;

/// How exact a source is: when two tell of the same step, the smaller wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// The trainer itself, by socket or HTTP.
    Client,
    /// A file of records, which keeps every digit: JSONL, TensorBoard, W&B, CSV.
    #[serde(alias = "jsonl")]
    File,
    /// What the trainer measures for others, as of an interval: OTLP, statsd, a Prometheus endpoint.
    Telemetry,
    /// A log for people.
    Log,
}

/// A source that is silent for this long no longer leads: the next exact one does.
const LEAD_SECONDS: f64 = 300.0;
/// Packets of the earlier attempt may still arrive for this long after the first one of the new.
const IN_FLIGHT_SECONDS: f64 = 5.0;
/// Steps remembered to recognise a second source telling of the same ones.
const RECENT: usize = 256;

/// A step that is further ahead than this is a mistake until the next one confirms it: a number from elsewhere, or damage.
pub(super) const MAX_STEP_JUMP: i64 = 100_000;

/// Whether a step is too far ahead of the one before.
pub(super) fn is_jump(before: i64, step: i64) -> bool {
    step.saturating_sub(before) > MAX_STEP_JUMP
}

/// The run's side: which attempt it is in.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RunEpoch {
    pub(super) attempt: u32,
    began: f64,
    first_step: i64,
}

/// A rank's side: how far it got, and in which attempt.
#[derive(Debug, Clone)]
pub(super) struct RankEpoch {
    pub(super) attempt: u32,
    pub(super) last: Option<i64>,
    lead: Option<(Priority, f64)>,
    recent: VecDeque<(i64, Priority)>,
    /// The new process that said hello for this rank and has not stepped yet.
    newborn: Option<u32>,
    /// A step that was too far ahead to be believed alone.
    doubted: Option<i64>,
    /// The launcher itself said that the next step is of the run's attempt.
    certain: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Observed {
    /// Another source already told of this step, and better.
    Duplicate,
    Step {
        /// Steps that the rank advanced by; 0 for more about a step already seen.
        advanced: i64,
        /// The last step before the run went back, when this step began a new attempt.
        restarted_from: Option<i64>,
    },
}

impl RunEpoch {
    pub(super) fn new(attempt: u32, now: f64) -> Self {
        Self { attempt, began: now, first_step: i64::MIN }
    }

    fn restart(&mut self, step: i64, now: f64) {
        *self = Self { attempt: self.attempt.saturating_add(1), began: now, first_step: step };
    }

    /// Whether a step may be of the attempt before, overtaken by another rank's first step of this one.
    fn is_in_flight(&self, step: i64, now: f64) -> bool {
        now - self.began < IN_FLIGHT_SECONDS && step > self.first_step
    }

    /// Moves to an attempt that the trainer's launcher counted, if it is a later one.
    pub(super) fn raise(&mut self, attempt: u32, step: i64, now: f64) -> bool {
        let later = attempt > self.attempt;
        if later {
            *self = Self { attempt, began: now, first_step: step };
        }
        later
    }
}

impl RankEpoch {
    pub(super) fn new(attempt: u32, last: Option<i64>) -> Self {
        Self {
            attempt,
            last,
            lead: None,
            recent: VecDeque::new(),
            newborn: None,
            doubted: None,
            certain: false,
        }
    }

    /// As it was before this exporter was restarted.
    pub(super) fn restored(attempt: u32, last: i64, lead: Priority, now: f64) -> Self {
        Self { lead: Some((lead, now)), ..Self::new(attempt, Some(last)) }
    }

    pub(super) fn lead(&self) -> Option<Priority> {
        self.lead.map(|(source, _)| source)
    }

    pub(super) fn reborn(&mut self, pid: u32) {
        self.newborn = Some(pid);
    }

    /// The next step comes from this process. A child that said hello for its parent's rank, as a data loader's worker
    /// might, is not the one that steps.
    pub(super) fn stepped_by(&mut self, pid: Option<u32>) {
        if pid.is_some() && self.newborn != pid {
            self.newborn = None;
        }
    }

    /// The next step is of the run's current attempt for certain.
    pub(super) fn counted_by_launcher(&mut self) {
        self.certain = true;
    }

    /// Whether a step is so far ahead of the rank's last, or of the run's `here` when the rank has none, that it is not
    /// believed. The one after it is, if it goes on from there.
    pub(super) fn doubts(&mut self, step: i64, here: Option<i64>) -> bool {
        let jumped = self.last.or(here).is_some_and(|before| is_jump(before, step));
        let before = core::mem::replace(&mut self.doubted, jumped.then_some(step));
        let confirmed = before.is_some_and(|before| step > before && !is_jump(before, step));
        if confirmed {
            self.doubted = None;
        }
        jumped && !confirmed
    }

    pub(super) fn observe(&mut self, run: &mut RunEpoch, step: i64, source: Priority, now: f64) -> Observed {
        let leads = self.lead.is_none_or(|(lead, at)| source <= lead || now - at > LEAD_SECONDS);
        if !leads {
            return self.fill_in(step, source);
        }
        self.lead = Some((source, now));
        let newborn = self.newborn.take().is_some();
        let certain = core::mem::take(&mut self.certain);
        let back = self.last.is_some_and(|last| step < last);
        let mut restarted_from = None;
        if self.attempt == run.attempt {
            if back || (newborn && self.last.is_some()) {
                restarted_from = self.last;
                run.restart(step, now);
                self.join(run);
            }
        } else if newborn || back || certain || !run.is_in_flight(step, now) {
            self.join(run);
        }
        let advanced = match self.last {
            None => 1,
            Some(last) if is_jump(last, step) => 1,
            Some(last) => step.saturating_sub(last).max(0),
        };
        self.last = Some(step);
        self.remember(step, source);
        Observed::Step { advanced, restarted_from }
    }

    fn join(&mut self, run: &RunEpoch) {
        self.attempt = run.attempt;
        self.last = None;
        self.recent.clear();
    }

    fn fill_in(&mut self, step: i64, source: Priority) -> Observed {
        let known = self.recent.iter().any(|(s, by)| *s == step && *by < source);
        let too_old = self.recent.front().is_some_and(|(oldest, _)| step < *oldest);
        if known || too_old {
            return Observed::Duplicate;
        }
        self.remember(step, source);
        Observed::Step { advanced: 0, restarted_from: None }
    }

    fn remember(&mut self, step: i64, source: Priority) {
        if self.recent.back() == Some(&(step, source)) {
            return;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((step, source));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Client, File, Log};

    fn step(advanced: i64) -> Observed {
        Observed::Step { advanced, restarted_from: None }
    }

    fn restart(from: i64) -> Observed {
        Observed::Step { advanced: 1, restarted_from: Some(from) }
    }

    #[test]
    fn steps_advance_and_going_back_begins_an_attempt() {
        let (mut run, mut rank) = (RunEpoch::new(0, 0.0), RankEpoch::new(0, None));
        assert_eq!(rank.observe(&mut run, 10, Client, 0.0), step(1));
        assert_eq!(rank.observe(&mut run, 20, Client, 1.0), step(10));
        assert_eq!(rank.observe(&mut run, 20, Client, 1.1), step(0), "more about the same step");
        assert_eq!(rank.observe(&mut run, 15, Client, 60.0), restart(20));
        assert_eq!((run.attempt, rank.attempt), (1, 1));
        assert_eq!(rank.observe(&mut run, 16, Client, 61.0), step(1));
    }

    #[test]
    fn one_restart_of_eight_ranks_is_one_attempt() {
        let mut run = RunEpoch::new(0, 0.0);
        let mut ranks = vec![RankEpoch::new(0, None); 8];
        for s in [100, 101, 102] {
            for rank in &mut ranks {
                rank.observe(&mut run, s, Client, 0.0);
            }
        }
        let late = ranks[7].observe(&mut run, 103, Client, 0.0);
        assert_eq!(late, step(1));
        assert_eq!(ranks[0].observe(&mut run, 100, Client, 50.0), restart(102));
        // Still on its way from the attempt that ended, then the rank comes along.
        assert_eq!(ranks[7].observe(&mut run, 104, Client, 50.1), step(1));
        assert_eq!(ranks[7].attempt, 0);
        for rank in &mut ranks[1..] {
            assert_eq!(rank.observe(&mut run, 100, Client, 51.0), step(1));
        }
        assert_eq!(run.attempt, 1);
        assert!(ranks.iter().all(|r| r.attempt == 1));
    }

    #[test]
    fn a_new_process_that_resumes_exactly_where_the_old_one_died_is_a_restart() {
        let (mut run, mut rank) = (RunEpoch::new(0, 0.0), RankEpoch::new(0, Some(149)));
        rank.reborn(7);
        rank.stepped_by(Some(7));
        assert_eq!(rank.observe(&mut run, 150, Client, 0.0), restart(149));
        assert_eq!(rank.observe(&mut run, 151, Client, 1.0), step(1));
        assert_eq!(run.attempt, 1);
    }

    #[test]
    fn a_child_that_says_hello_for_its_parent_restarts_nothing() {
        let (mut run, mut rank) = (RunEpoch::new(0, 0.0), RankEpoch::new(0, Some(149)));
        rank.reborn(8);
        rank.stepped_by(Some(7));
        assert_eq!(rank.observe(&mut run, 150, Client, 0.0), step(1));
    }

    #[test]
    fn a_lagging_log_neither_repeats_nor_restarts_what_the_client_told() {
        let (mut run, mut rank) = (RunEpoch::new(0, 0.0), RankEpoch::new(0, None));
        for s in 1..=20 {
            rank.observe(&mut run, s, Client, 0.0);
        }
        assert_eq!(rank.observe(&mut run, 18, Log, 1.0), Observed::Duplicate);
        assert_eq!(rank.observe(&mut run, 18, File, 1.0), Observed::Duplicate);
        assert_eq!(rank.observe(&mut run, 21, Log, 1.0), step(0), "only the log has it so far");
        assert_eq!(rank.observe(&mut run, 21, Client, 1.0), step(1));
        assert_eq!(run.attempt, 0);
        // The client has been silent for long: the log leads, and may restart.
        assert_eq!(rank.observe(&mut run, 22, Log, 400.0), step(1));
        assert_eq!(rank.observe(&mut run, 5, Log, 401.0), restart(22));
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
        assert!(!run.raise(1, 5, 0.0));
        assert!(run.raise(3, 5, 0.0));
        assert_eq!(run.attempt, 3);
    }

    proptest::proptest! {
        #[test]
        fn attempts_never_go_back(steps in proptest::collection::vec((0i64..50, 0usize..3, 0usize..4), 1..200)) {
            let mut run = RunEpoch::new(0, 0.0);
            let mut ranks = vec![RankEpoch::new(0, None); 4];
            let mut last = 0;
            for (i, (s, source, rank)) in steps.into_iter().enumerate() {
                ranks[rank].observe(&mut run, s, [Client, File, Log][source], i as f64);
                proptest::prop_assert!(run.attempt >= last && ranks[rank].attempt <= run.attempt);
                last = run.attempt;
            }
        }
    }
}

//! Detects that checkpoints become durable later than they are saved: the work since the last
//! durable one is lost in a crash, however many were saved after it.
//!
//! Only for runs that showed a stage after the blocking save (`run/durable.rs`). It is a ticket
//! when the oldest checkpoint that was saved and is not durable has waited for longer than `times`
//! the usual time between two saves, and for `floor` at least. It is one too when more checkpoints
//! waited after each of `saves` saves in a row than after the one before, or when the trainer says
//! of so many that it began them before the last one was written. It is over when none waits, or
//! when fewer wait and the last one was durable in time, and the trainer no longer says that. Time
//! in which a source of the run did not answer is no time of waiting.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Measured;
use crate::detector::{ClockDetector, RunAt};
use crate::run::RunState;
use crate::stats::latch::Latch;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{
    Change, Clause, Fact, Finding, Kind, Observation, Sentence, Severity, Storage, Suspect, Target, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The shortest wait that is reported.
    pub floor: Span,
    /// Multiple of the usual time between two saves: an engineering limit.
    pub times: f64,
    /// The number of saves in a row after which more checkpoints wait, or that the trainer began
    /// too early.
    pub saves: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, floor: Span::secs(600), times: 1.0, saves: 3 }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CkptUpload {
    latch: Latch,
    /// The most checkpoints that waited since the ticket.
    most: u32,
}

impl CkptUpload {
    /// How long a checkpoint may wait. None while it is unknown how often the run saves.
    fn limit(c: &Config, f: &RunState) -> Option<Span> {
        let usual = Span::from_secs_f64(c.times * f.checkpoints.usual_gap()?);
        Some(usual.max(c.floor))
    }

    /// Since when the oldest checkpoint waits, and its step.
    fn oldest(f: &RunState) -> Option<(i64, Ts)> {
        let oldest = f.checkpoints.stages()?.waiting().next()?;
        Some((oldest.step, oldest.saved_at?.max(f.live_since)))
    }

    /// When the oldest checkpoint will have waited too long.
    fn due(c: &Config, f: &RunState) -> Option<Ts> {
        if !c.enabled || f.ended.is_some() || !f.lost.is_empty() {
            return None;
        }
        Some(Self::oldest(f)?.1 + Self::limit(c, f)?)
    }

    fn clear(&mut self, view: RunAt<'_>, m: Measured, why: Clause, out: &mut Vec<Finding>) {
        if self.latch.clear() {
            let why = Sentence::from(why).and_perhaps(last_durable(view.run));
            out.push(finding(view, Change::Clear, m, why));
        }
    }

    fn judge(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        let Some(stages) = f.checkpoints.stages().filter(|stages| stages.is_asynchronous()) else { return };
        let waiting = stages.waiting().count() as u32;
        let is_late = Self::due(c, f).is_some_and(|due| now >= due);
        let grows = waiting > 0 && f.lost.is_empty() && stages.grew(c.saves.max(1));
        let is_behind = is_behind(c, f);
        let limit = Self::limit(c, f).unwrap_or(c.floor);
        let waits = Self::oldest(f).map_or(0.0, |(_, since)| (now - since).as_secs_f64());
        let measured = Measured { value: waits, expected: limit.as_secs_f64() };
        if is_late || grows || is_behind {
            self.most = self.most.max(waiting);
            if self.latch.raise(Severity::Ticket) {
                self.most = waiting;
                out.push(finding(view, Change::Raise, measured, sentence(c, view, is_late, waiting)));
            }
            return;
        }
        let in_time = stages.last_lag().is_none_or(|lag| lag <= limit.as_secs_f64());
        if waiting == 0 {
            self.clear(view, measured, clause!("no checkpoint waits to become durable any more"), out);
        } else if waiting < self.most && in_time {
            self.clear(view, measured, clause!("fewer checkpoints wait to become durable"), out);
        }
        self.most = self.most.max(waiting);
    }
}

impl ClockDetector for CkptUpload {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        if !c.enabled {
            return;
        }
        if view.run.ended.is_some() {
            let none = Measured { value: 0.0, expected: 0.0 };
            self.clear(view, none, clause!("the run ended"), out);
            return;
        }
        self.judge(c, view, out);
    }

    fn deadline(&self, c: &Config, f: &RunState) -> Option<Ts> {
        Self::due(c, f).filter(|_| !self.latch.is_raised())
    }
}

fn sentence(c: &Config, view: RunAt<'_>, is_late: bool, waiting: u32) -> Sentence {
    let RunAt { now, run: f } = view;
    let late = CkptUpload::oldest(f).filter(|_| is_late).map(|(step, since)| {
        clause!(
            "the checkpoint of step {step} is not durable {waits} after its save",
            step = Fact::Step(step),
            waits = now - since,
        )
    });
    let grows = || {
        if is_behind(c, f) {
            return clause!(
                "the trainer began each of the last {saves} saves before the one before it was written",
                saves = f.checkpoints.begun_behind()
            );
        }
        clause!(
            "after each of the last {saves} saves more checkpoints waited to become durable",
            saves = c.saves
        )
    };
    let wait = if waiting == 1 { "waits" } else { "wait" };
    let back = last_durable(f)
        .map(|durable| clause!("{durable}, and a crash now goes back to it", durable))
        .unwrap_or_else(|| clause!("no checkpoint is known to be durable: a crash now loses all work"));
    let at_risk = Span::from_secs_f64(f.checkpoints.work);
    Sentence::from(late.unwrap_or_else(grows))
        .and_perhaps((waiting > 0).then(|| clause!("{waiting} {wait}", waiting, wait)))
        .and(back)
        .and(clause!("{at_risk} of work would be lost", at_risk))
}

/// Whether the trainer says that it saves faster than it writes.
fn is_behind(c: &Config, f: &RunState) -> bool {
    f.checkpoints.begun_behind() >= c.saves.max(1)
}

fn last_durable(f: &RunState) -> Option<Clause> {
    let step = f.checkpoints.last_step?;
    Some(clause!("step {step} is the last durable one", step = Fact::Step(step)))
}

fn finding(view: RunAt<'_>, change: Change, m: Measured, why: impl Into<Sentence>) -> Finding {
    let f = view.run;
    let storage = Suspect::new(Target::Storage(Storage::OfCheckpoints), Observation::CheckpointOpen);
    let raises = change == Change::Raise;
    let oldest = CkptUpload::oldest(f).map(|(step, _)| step);
    Finding {
        start_step: oldest.or(f.checkpoints.last_step).or(f.last_step).unwrap_or(0),
        suspects: if raises { vec![storage] } else { Vec::new() },
        ..view.ticket(Kind::CkptUpload, "upload_lag", (change, m), why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{AttemptBounds, Stage, StageReport};
    use CkptPhase::{End, Fail, Start};
    use stepwatch_wire::CkptPhase;

    /// A run whose checkpoints are reported minute by minute.
    struct Bench {
        f: RunState,
        detector: CkptUpload,
        minute: i64,
        out: Vec<Finding>,
    }

    impl Bench {
        fn new() -> Self {
            let f = RunState::new("r", Ts(0));
            Self { f, detector: CkptUpload::default(), minute: 0, out: Vec::new() }
        }

        fn say(&mut self, stage: Stage, phase: CkptPhase, step: i64) -> &mut Self {
            let at = Ts(60_000 * self.minute);
            let (rank, step, secs, bytes) = (0, Some(step), None, None);
            let r = StageReport { stage, phase, step, rank, now: at, at, secs, bytes, seen: false };
            match (stage, phase) {
                (Stage::Save, Start) => self.f.checkpoints.save_began(&r),
                (Stage::Save, _) => self.f.checkpoints.save_ended(&r),
                _ => {
                    let attempt = AttemptBounds { is_after: false, first_step: Some(1) };
                    self.f.checkpoints.later_stage(&r, attempt, "no space");
                }
            }
            self.look()
        }

        fn look(&mut self) -> &mut Self {
            let now = Ts(60_000 * self.minute);
            self.detector.look(&Config::default(), RunAt { now, run: &self.f }, &mut self.out);
            self
        }

        fn pass(&mut self, minutes: i64) -> &mut Self {
            self.minute += minutes;
            self.f.checkpoints.worked(60.0 * minutes as f64);
            self.look()
        }

        /// Saves of these steps every 30 minutes, each durable five minutes later.
        fn healthy(&mut self, steps: core::ops::Range<i64>) -> &mut Self {
            for step in steps {
                self.say(Stage::Save, End, step).pass(5).say(Stage::Durable, End, step).pass(25);
            }
            self
        }

        fn found(&self) -> Vec<(Change, String)> {
            self.out.iter().map(|v| (v.change, v.why.to_string())).collect()
        }
    }

    #[test]
    fn a_checkpoint_that_waits_longer_than_the_next_save_takes_to_come_is_a_ticket() {
        let mut b = Bench::new();
        b.healthy(1..5).say(Stage::Save, End, 5);
        let due = b.detector.deadline(&Config::default(), &b.f);
        assert_eq!(due, Some(Ts(60_000 * (b.minute + 30))));
        b.pass(29);
        assert!(b.out.is_empty(), "{:?}", b.found());
        b.pass(1);
        assert_eq!(
            b.found()[0].1,
            "the checkpoint of step 5 is not durable 30m after its save; 1 waits; step 4 is the last durable \
             one, and a crash now goes back to it; 1h of work would be lost"
        );
        assert_eq!(b.detector.deadline(&Config::default(), &b.f), None);
        b.say(Stage::Save, End, 6).pass(1).say(Stage::Durable, End, 5);
        assert_eq!(b.out.len(), 1, "the last one was late, and another waits");
        b.say(Stage::Durable, End, 6);
        let last = (
            Change::Clear,
            "no checkpoint waits to become durable any more; step 6 is the last durable one".to_owned(),
        );
        assert_eq!(b.found()[1..], [last]);
    }

    #[test]
    fn a_backlog_that_grows_is_a_ticket_until_it_falls() {
        let mut b = Bench::new();
        b.healthy(1..4);
        for step in 4..8 {
            assert!(b.out.is_empty(), "{:?}", b.found());
            b.say(Stage::Save, End, step).pass(2);
        }
        let said = &b.found()[0];
        let begin =
            "after each of the last 3 saves more checkpoints waited to become durable; 4 wait; step 3 is";
        assert!(said.0 == Change::Raise && said.1.starts_with(begin), "{}", said.1);
        b.say(Stage::Durable, End, 4);
        assert_eq!(
            b.found()[1].1,
            "fewer checkpoints wait to become durable; step 4 is the last durable one"
        );
        b.say(Stage::Durable, End, 7).healthy(8..20);
        assert_eq!(b.out.len(), 2);
    }

    #[test]
    fn a_trainer_that_says_that_it_saves_too_often_is_a_ticket_until_it_no_longer_does() {
        let mut b = Bench::new();
        let save = |b: &mut Bench, step: i64, is_behind: bool| {
            if is_behind {
                b.f.checkpoints.begins_behind();
            }
            b.say(Stage::Save, End, step).pass(2).say(Stage::Durable, End, step).pass(3);
        };
        for (step, is_behind) in [(1, false), (2, true), (3, true), (4, false), (5, true), (6, true)] {
            save(&mut b, step, is_behind);
        }
        assert!(b.out.is_empty(), "two in a row: {:?}", b.found());
        save(&mut b, 7, true);
        let said = &b.found()[0];
        let begin = "the trainer began each of the last 3 saves before the one before it was written; 1 waits; \
                     step 6 is the last durable one, and a crash now goes back to it; ";
        assert!(said.0 == Change::Raise && said.1.starts_with(begin), "{}", said.1);
        save(&mut b, 8, true);
        assert_eq!(b.out.len(), 1, "it still does: {:?}", b.found());
        save(&mut b, 9, false);
        assert_eq!((b.out.len(), b.out[1].change), (2, Change::Clear), "{:?}", b.found());
    }

    #[test]
    fn a_failed_upload_waits_no_longer_and_neither_does_a_run_with_saves_only() {
        let mut b = Bench::new();
        for step in 1..9 {
            b.say(Stage::Save, End, step).pass(300);
        }
        assert_eq!(b.f.checkpoints.last_step, Some(8));
        b.say(Stage::Save, End, 9).say(Stage::Upload, Fail, 9).pass(3000);
        assert!(b.out.is_empty(), "{:?}", b.found());
        assert_eq!(b.f.checkpoints.last_step, Some(8), "it never counts");
    }

    #[test]
    fn nothing_is_late_while_a_source_does_not_answer() {
        let mut b = Bench::new();
        b.healthy(1..5).say(Stage::Save, Start, 5).say(Stage::Save, End, 5);
        b.f.source_down(Ts(60_000 * b.minute), "n1:9765", None, "refused");
        b.pass(300);
        assert_eq!(b.detector.deadline(&Config::default(), &b.f), None);
        b.f.source_up(Ts(60_000 * b.minute), "n1:9765");
        b.pass(29);
        assert!(b.out.is_empty(), "{:?}", b.found());
        b.pass(1);
        assert_eq!(b.out.len(), 1);
    }
}

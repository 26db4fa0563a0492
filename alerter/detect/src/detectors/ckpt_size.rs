//! Detects a checkpoint that is complete by its report and smaller than those before it, or that
//! never became complete although later ones did: a restart from it would fail.
//!
//! Sizes are compared within one attempt, stage, world size and kind of path, and the sizes that
//! recur are learned (`run/sizes.rs`): a run may write full checkpoints and models alone by turns.
//! A ticket needs a size that was never seen and is smaller than the next larger one that recurs by
//! more than `share`, once four checkpoints of sizes that recur are known. A new kind of checkpoint
//! under the same path is such a size the first time, and usual from the second time on. Many runs
//! write the model alone at their end, under the same path: so the ticket comes only once the run
//! has made as many steps more as between two checkpoints, or not at all if the next one of the
//! sort has a usual size before that. It is over when a checkpoint of the same sort has another,
//! usual size, or when three had the small one.
//!
//! One that two later ones overtook is incomplete, if the run completes nearly all. It is over when
//! it becomes complete after all, or when five later ones are. A checkpoint of which a stage was
//! reported to fail is left to [`super::ckpt_stale`]. One that began before a source of the run was
//! lost is not judged: its end may have gone unheard.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Measured;
use crate::detector::{ClockDetector, RunAt};
use crate::run::{Judged, RunState, Stage, Staged, are_alike};
use crate::stats::latch::Latch;
use stepwatch_model::time::Ts;
use stepwatch_model::{
    Change, Clause, Fact, Finding, Kind, Observation, Sentence, Severity, Suspect, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Share of the usual size that must be missing: an engineering limit, beyond what compression
    /// varies. Less than a tenth is never reported.
    pub share: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, share: 0.1 }
    }
}

/// Checkpoints of a small size after which it is the usual one: an engineering limit.
const USUAL: u32 = 3;
/// The most ranks named.
const NAMED: usize = 3;

/// None until a size was known or a checkpoint was overtaken.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CkptSize(Option<Box<Found>>);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Found {
    latch: Latch,
    attempt: u32,
    /// Sort and step of the checkpoint whose size was judged last.
    judged: Option<(u64, i64)>,
    /// A small one that may be the last of the run.
    held: Option<Judged>,
    /// Sort and size of the small one that is reported, and the step of the incomplete one.
    small: Option<(u64, f64)>,
    incomplete: Option<i64>,
}

impl Found {
    /// Ends the incident if nothing else keeps it open.
    fn clear(&mut self, view: RunAt<'_>, m: Measured, why: Clause, out: &mut Vec<Finding>) {
        let is_over = self.small.is_none() && self.incomplete.is_none();
        if is_over && self.latch.clear() {
            out.push(finding(view, Change::Clear, m, why));
        }
    }

    /// Reports the small one once the run has gone on as usual.
    fn held(&mut self, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let f = view.run;
        let Some((judged, usual)) = self.held.and_then(|judged| Some((judged, judged.usual?))) else {
            return;
        };
        let steps = f.checkpoints.usual_steps().unwrap_or(0.0).max(1.0) as i64;
        if f.last_step.is_none_or(|last| last < judged.step.saturating_add(steps)) {
            return;
        }
        self.held = None;
        if staged(f, judged.step).is_some_and(Staged::has_failed) {
            return;
        }
        self.small = Some((judged.sort, judged.bytes));
        self.latch.raise(Severity::Ticket);
        let measured = Measured { value: judged.bytes / usual, expected: 1.0 };
        let mut v = finding(view, Change::Raise, measured, smaller(f, &judged, usual));
        v.start_step = judged.step;
        out.push(v);
    }

    fn size(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        self.held(view, out);
        let f = view.run;
        let Some(judged) = f.checkpoints.sort().and_then(|sort| sort.judged()) else { return };
        if self.judged == Some((judged.sort, judged.step)) {
            return;
        }
        self.judged = Some((judged.sort, judged.step));
        let failed = staged(f, judged.step).is_some_and(Staged::has_failed);
        if !failed && judged.usual.is_some_and(|usual| judged.bytes < (1.0 - c.share) * usual) {
            self.held = Some(*judged);
            return;
        }
        self.held = self.held.filter(|held| held.sort != judged.sort);
        let ends = |(sort, bytes): (u64, f64)| {
            sort == judged.sort && (!are_alike(bytes, judged.bytes) || judged.seen >= USUAL)
        };
        if self.small.is_some_and(ends) {
            self.small = None;
            let step = Fact::Step(judged.step);
            let measured = Measured { value: 1.0, expected: 1.0 };
            self.clear(view, measured, clause!("the checkpoint of step {step} has a usual size", step), out);
        }
    }

    fn overtaken(&mut self, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let f = view.run;
        let Some(stages) = f.checkpoints.stages() else { return };
        let none = Measured { value: 0.0, expected: 1.0 };
        match stages.overtaken() {
            Some((one, _)) if self.incomplete == Some(one.step) => {}
            // What ended meanwhile was not heard.
            Some((one, _)) if !f.lost.is_empty() || one.first_sign().is_none_or(|at| at < f.live_since) => {}
            Some((one, later)) => {
                self.incomplete = Some(one.step);
                self.latch.raise(Severity::Ticket);
                let mut v = finding(view, Change::Raise, none, incomplete(one, later, stages.reaches()));
                let ranks = one.open_ranks().take(NAMED);
                let suspect = |rank| Suspect::new(f.rank_target(rank), Observation::CheckpointOpen);
                (v.start_step, v.suspects) = (one.step, ranks.map(suspect).collect());
                out.push(v);
            }
            None => {
                let Some(step) = self.incomplete.take() else { return };
                let is_complete = staged(f, step).is_some_and(Staged::is_counted);
                let step = Fact::Step(step);
                let why = if is_complete {
                    clause!("the checkpoint of step {step} became complete", step)
                } else {
                    clause!("the checkpoints after that of step {step} are complete", step)
                };
                self.clear(view, none, why, out);
            }
        }
    }

    /// Sizes are learned anew, and what the last attempt left incomplete stays so.
    fn restart(&mut self, view: RunAt<'_>, out: &mut Vec<Finding>) {
        (self.attempt, self.judged, self.held) = (view.run.attempt, None, None);
        (self.small, self.incomplete) = (None, None);
        self.clear(view, Measured { value: 1.0, expected: 1.0 }, clause!("the run restarted"), out);
    }
}

fn staged(f: &RunState, step: i64) -> Option<&Staged> {
    f.checkpoints.stages()?.find(step)
}

fn smaller(f: &RunState, judged: &Judged, usual: f64) -> Sentence {
    let [size, usual_size] = [judged.bytes, usual].map(|bytes| bytes / 1e9);
    let statement = clause!(
        "the checkpoint of step {step} has {gigabytes} GB, {usual} GB are usual: {missing} % is missing",
        step = Fact::Step(judged.step),
        gigabytes = size,
        usual = usual_size,
        missing = Fact::percent(1.0 - judged.bytes / usual, 0),
    );
    let by_ranks = (judged.ranks > 1)
        .then(|| clause!("this is the sum of what {ranks} ranks report", ranks = judged.ranks));
    let before = f.checkpoints.steps.iter().rev().find(|step| **step < judged.step);
    let before =
        before.map(|step| clause!("the one before it is of step {before}", before = Fact::Step(*step)));
    Sentence::from(statement)
        .and_perhaps(by_ranks)
        .and(clause!("look at whether it is whole before anything restarts from it"))
        .and_perhaps(before)
}

fn incomplete(one: &Staged, later: usize, reaches: Stage) -> Sentence {
    let open = one.open_ranks().count();
    let why = match open {
        0 => clause!("its {stage} was never reported to end", stage = reaches.as_str()),
        1 => clause!("one rank began to write it and did not end"),
        _ => clause!("{ranks} ranks began to write it and did not end", ranks = open),
    };
    Sentence::from(clause!(
        "the checkpoint of step {step} is not complete, and {later} later ones are",
        step = Fact::Step(one.step),
        later,
    ))
    .and(why)
    .and(clause!("do not restart from it"))
}

impl ClockDetector for CkptSize {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let f = view.run;
        let is_known = f.checkpoints.sort().is_some_and(|sort| sort.judged().is_some())
            || f.checkpoints.stages().is_some_and(|stages| stages.overtaken().is_some());
        if !c.enabled || self.0.is_none() && !is_known {
            return;
        }
        let found = self.0.get_or_insert_with(|| Box::new(Found { attempt: f.attempt, ..Found::default() }));
        if f.ended.is_some() {
            (found.held, found.small, found.incomplete) = (None, None, None);
            found.clear(view, Measured { value: 1.0, expected: 1.0 }, clause!("the run ended"), out);
            return;
        }
        if found.attempt != f.attempt {
            found.restart(view, out);
        }
        found.size(c, view, out);
        found.overtaken(view, out);
    }

    fn deadline(&self, _: &Config, _: &RunState) -> Option<Ts> {
        None // each report of a checkpoint makes it look
    }
}

fn finding(view: RunAt<'_>, change: Change, m: Measured, why: impl Into<Sentence>) -> Finding {
    Finding { score: 1.0, ..view.ticket(Kind::CkptSize, "checkpoint_size", (change, m), why) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::Saver;

    fn trainer() -> Saver {
        Saver::new(Kind::CkptSize)
    }

    impl Saver {
        /// The next checkpoints have so many GB, under this path.
        fn saves_to(&mut self, path: &str, sizes: &[f64]) -> &mut Self {
            for size in sizes {
                let step = self.moves().step;
                let bytes = size * 1e9;
                self.say(&format!(
                    r#""k":"ckpt","phase":"end","step":{step},"path":"{path}{step}","bytes":{bytes}"#
                ));
            }
            self
        }

        fn saves(&mut self, sizes: &[f64]) -> &mut Self {
            self.saves_to("/ckpt/step_", sizes)
        }

        fn stage(&mut self, stage: &str, phase: &str, step: i64, rank: u32) {
            self.say(&format!(
                r#""k":"ckpt","stage":"{stage}","phase":"{phase}","step":{step},"rank":{rank}"#
            ));
        }
    }

    #[test]
    fn a_smaller_one_is_a_ticket_until_one_has_the_usual_size() {
        let mut t = trainer();
        t.saves(&[1220.0, 1220.0, 1220.0, 1220.0, 610.0]);
        assert!(t.found().is_empty(), "it may be the last one: {:?}", t.found());
        t.moves();
        let found = t.found();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            found[0],
            (
                Change::Raise,
                "the checkpoint of step 500 has 610 GB, 1220 GB are usual: 50 % is missing; look at whether it \
                 is whole before anything restarts from it; the one before it is of step 400"
                    .to_owned()
            )
        );
        let v = t.out.iter().find(|v| v.kind == Kind::CkptSize).unwrap();
        assert_eq!((v.severity, v.start_step, v.value, v.expected), (Severity::Ticket, 500, 0.5, 1.0));
        t.saves(&[1220.0]);
        let clear = (Change::Clear, "the checkpoint of step 700 has a usual size".to_owned());
        assert_eq!(t.found()[1..], [clear]);
    }

    #[test]
    fn the_model_alone_at_the_end_of_the_run_is_no_ticket() {
        let mut t = trainer();
        t.saves(&[1220.0, 1220.0, 1220.0, 1220.0, 407.0]);
        t.run.look(Ts(1_000_000), &mut t.out);
        t.say(r#""k":"hb""#);
        t.say(r#""k":"bye","code":0"#);
        assert!(t.found().is_empty(), "{:?}", t.found());
    }

    #[test]
    fn sizes_that_recur_or_vary_a_little_are_fine() {
        let mut t = trainer();
        t.saves(&[100.0, 14.0, 100.0, 14.0, 100.0, 14.0, 97.0, 14.5, 104.0, 100.0]);
        t.saves_to("/ckpt/model_only_", &[7.0, 7.0]).saves(&[150.0]);
        assert!(t.found().is_empty(), "{:?}", t.found());
    }

    #[test]
    fn a_small_size_that_stays_is_usual_from_the_third_on() {
        let mut t = trainer();
        t.saves(&[100.0, 100.0, 100.0, 100.0, 50.0]).moves();
        t.saves(&[50.0]);
        assert_eq!(t.found().len(), 1);
        t.saves(&[50.0]);
        assert_eq!(t.found()[1].0, Change::Clear);
        t.saves(&[50.0, 100.0, 50.0]).moves();
        assert_eq!(t.found().len(), 2, "{:?}", t.found());
    }

    #[test]
    fn another_world_and_another_attempt_are_learned_anew() {
        let mut t = trainer();
        t.saves(&[100.0, 100.0, 100.0, 100.0]).say(r#""k":"hello","world":4"#);
        t.saves(&[50.0, 50.0]);
        assert!(t.found().is_empty(), "{:?}", t.found());
        let mut t = trainer();
        t.saves(&[100.0, 100.0, 100.0, 100.0, 50.0]).moves();
        t.step = 200;
        t.moves();
        let clear = (Change::Clear, "the run restarted".to_owned());
        assert_eq!(t.found()[1..], [clear]);
        t.saves(&[20.0, 20.0]);
        assert_eq!(t.found().len(), 2);
    }

    #[test]
    fn one_that_failed_is_not_reported_twice() {
        let mut t = trainer();
        t.saves(&[100.0, 100.0, 100.0, 100.0]);
        let step = t.moves().step;
        t.stage("save", "fail", step, 0);
        t.say(&format!(r#""k":"ckpt","phase":"end","step":{step},"path":"/ckpt/step_{step}","bytes":1e9"#));
        assert!(t.found().is_empty(), "{:?}", t.found());
        assert!(t.out.iter().any(|v| v.kind == Kind::CkptStale));
    }

    #[test]
    fn one_whose_end_may_have_gone_unheard_is_not_incomplete() {
        let mut t = trainer();
        for _ in 0..3 {
            let step = t.moves().step;
            ["start", "end"].iter().for_each(|phase| t.stage("durable", phase, step, 0));
        }
        let step = t.moves().step;
        t.stage("durable", "start", step, 0);
        t.run.state.source_down(Ts(1000 * step), "n:2", None, "refused");
        t.stage("save", "end", step, 0);
        t.run.state.source_up(Ts(1000 * step + 1000), "n:2");
        for _ in 0..3 {
            let step = t.moves().step;
            ["start", "end"].iter().for_each(|phase| t.stage("durable", phase, step, 0));
        }
        assert!(t.found().is_empty(), "{:?}", t.found());
    }

    #[test]
    fn one_that_later_ones_overtook_is_a_ticket_with_the_rank_that_did_not_end() {
        let mut t = trainer();
        let durable = |t: &mut Saver, ends: bool| {
            let step = t.moves().step;
            t.stage("save", "end", step, 0);
            for rank in 0..2 {
                t.stage("durable", "start", step, rank);
            }
            let ended = if ends { 2 } else { 1 };
            for rank in 0..ended {
                t.stage("durable", "end", step, rank);
            }
        };
        for ends in [true, true, true, false, true] {
            durable(&mut t, ends);
        }
        assert!(t.found().is_empty(), "{:?}", t.found());
        durable(&mut t, true);
        assert_eq!(
            t.found(),
            [(
                Change::Raise,
                "the checkpoint of step 400 is not complete, and 2 later ones are; one rank began to write it \
                 and did not end; do not restart from it"
                    .to_owned()
            )]
        );
        let v = t.out.iter().find(|v| v.kind == Kind::CkptSize).unwrap();
        assert_eq!((v.start_step, v.suspects[0].what()), (400, "rank 1".to_owned()));
        t.stage("durable", "end", 400, 1);
        let clear = (Change::Clear, "the checkpoint of step 400 became complete".to_owned());
        assert_eq!(t.found()[1..], [clear]);
    }

    #[test]
    fn it_ends_with_the_run() {
        let mut t = trainer();
        t.saves(&[100.0, 100.0, 100.0, 100.0, 50.0]).moves();
        t.say(r#""k":"bye","code":0"#);
        assert_eq!(t.found()[1], (Change::Clear, "the run ended".to_owned()));
    }
}

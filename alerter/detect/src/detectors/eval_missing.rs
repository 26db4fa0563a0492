//! Detects that evaluations stop coming while the run makes steps: the process that evaluates its
//! checkpoints is gone, or the evaluation was left out.
//!
//! Each evaluation set has its own rhythm, in steps (`run/evals.rs`). An evaluation is missing when
//! `missing` of the longest of the last 8 intervals have passed without one, and half an interval
//! more, after as many steps as the run was ahead of the earlier ones when they arrived, except for
//! the one that came latest. So a rhythm that becomes up to three times slower is learned before it
//! is missed. Three intervals must be known, and the silence must be `floor` of the run's own time
//! at least: a script may evaluate a few times at its start to try whether it can.
//!
//! A restart keeps the rhythm, and counts from its first step. Nothing is judged while a source of
//! the run does not answer, and until `floor` after it does: another source may have the
//! evaluations. It is over when the set that it names is evaluated again, which a restart alone
//! does not do, and it never pages: the run goes on.

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::{EvalSet, RunState};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Change, Clause, Fact, Finding, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// How many evaluations must be missing: an engineering limit.
    pub missing: f64,
    /// The shortest silence that is reported, in the time that its steps usually take.
    pub floor: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, missing: 3.0, floor: Span::secs(600) }
    }
}

/// Share of an interval that an evaluation may come late: an engineering limit.
const LATE: f64 = 0.5;
/// The most sets named.
const NAMED: usize = 4;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EvalMissing {
    /// None unless evaluations are missing.
    reported: Option<Box<Reported>>,
}

/// The set that is named, and its last evaluation then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Reported {
    name: String,
    attempt: u32,
    step: i64,
}

impl Reported {
    fn new(set: &EvalSet) -> Self {
        Self { name: set.name.clone(), attempt: set.attempt, step: set.step }
    }

    /// Whether it has not been evaluated since. A set that is followed no more says nothing.
    fn is_silent(&self, f: &RunState) -> bool {
        let mut sets = f.evals.iter().flat_map(|evals| evals.sets());
        sets.any(|set| set.name == self.name && (set.attempt, set.step) == (self.attempt, self.step))
    }
}

/// A set that is not evaluated any more.
#[derive(Debug, Clone, Copy)]
struct Silent<'a> {
    set: &'a EvalSet,
    interval: i64,
    /// Steps since its last evaluation, or since the restart.
    steps: i64,
}

/// The sets that miss evaluations, the one that misses most first.
fn silent<'a>(c: &Config, f: &'a RunState) -> Vec<Silent<'a>> {
    let Some((evals, last)) = f.evals.as_deref().zip(f.last_step) else { return Vec::new() };
    let is_missed = |one: &Silent<'_>| {
        let late = (c.missing + LATE) * one.interval as f64;
        let steps = one.steps.saturating_sub(one.set.ahead()).saturating_sub(f.interval);
        steps as f64 >= late && f.takes(one.steps) >= c.floor.as_secs_f64()
    };
    let of = |set: &'a EvalSet| {
        let from = if set.attempt == f.attempt { Some(set.step) } else { f.attempts.first_step };
        Some(Silent { set, interval: set.interval()?, steps: last.saturating_sub(from?) })
    };
    let mut silent: Vec<Silent<'a>> = evals.sets().filter_map(of).filter(is_missed).collect();
    let missed = |one: &Silent<'_>| one.steps / one.interval.max(1);
    silent.sort_by_key(|one| core::cmp::Reverse(missed(one)));
    silent
}

fn sentence(f: &RunState, first: Silent<'_>, others: &[Silent<'_>]) -> Sentence {
    let restarted = first.set.attempt != f.attempt;
    let since = if restarted {
        let first_step = f.attempts.first_step.unwrap_or(0);
        clause!("since the restart at step {step}", step = Fact::Step(first_step))
    } else {
        clause!("since step {step}", step = Fact::Step(first.set.step))
    };
    let statement = clause!(
        "no evaluation {evaluation} {since}: one every {interval} steps is usual, and {missing} are missing",
        evaluation = first.set.name.clone(),
        since,
        interval = first.interval,
        missing = first.steps / first.interval.max(1),
    );
    let names = others.iter().take(NAMED).map(|one| one.set.name.clone()).collect::<Vec<String>>();
    let others = (!names.is_empty()).then(|| clause!("also missing: {names}", names));
    Sentence::from(statement)
        .and_perhaps(others)
        .and(trained(f, first))
        .and(clause!("look at the process that evaluates, or at the setting of the evaluation"))
}

fn trained(f: &RunState, one: Silent<'_>) -> Clause {
    let secs = f.takes(one.steps);
    let lasts = Span::from_secs_f64(secs);
    match f.gpus() {
        Some(gpus) => clause!(
            "{lasts} of training are not evaluated, {gpu_hours} GPU hours",
            lasts,
            gpu_hours = Fact::decimal(f64::from(gpus) * secs / 3600.0, 0),
        ),
        None => clause!("{lasts} of training are not evaluated", lasts),
    }
}

impl ClockDetector for EvalMissing {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        if !c.enabled || f.evals.is_none() {
            return;
        }
        if f.ended.is_some() {
            if self.reported.take().is_some() {
                out.push(finding(view, Change::Clear, None, clause!("the run ended").into()));
            }
            return;
        }
        // After a restart nothing is known before its first step.
        let held = |reported: &Reported| f.last_step.is_none() || reported.is_silent(f);
        if self.reported.as_deref().is_some_and(held) {
            return;
        }
        let silent = silent(c, f);
        let Some((first, others)) = silent.split_first() else {
            if self.reported.take().is_some() {
                out.push(finding(view, Change::Clear, None, clause!("the run is evaluated again").into()));
            }
            return;
        };
        if self.reported.is_some() {
            self.reported = Some(Box::new(Reported::new(first.set))); // another set keeps it open
        } else if f.lost.is_empty() && now - f.live_since >= c.floor {
            self.reported = Some(Box::new(Reported::new(first.set)));
            out.push(finding(view, Change::Raise, Some(*first), sentence(f, *first, others)));
        }
    }

    fn deadline(&self, _: &Config, _: &RunState) -> Option<Ts> {
        None // the steps make it look
    }
}

fn finding(view: RunAt<'_>, change: Change, silent: Option<Silent<'_>>, why: Sentence) -> Finding {
    let severity = if change == Change::Raise { Severity::Ticket } else { Severity::Info };
    let mut v = Finding { why, ..view.finding(Kind::EvalMissing, "eval_steps", change, severity) };
    if let Some(one) = silent {
        (v.value, v.expected) = (one.steps as f64, one.interval as f64);
        v.score = v.value / v.expected.max(1.0);
        v.start_step = v.step.saturating_sub(one.steps);
    }
    v
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Run;
    use stepwatch_wire::Event;

    /// A trainer that logs every tenth step, each of two seconds.
    struct Trainer {
        run: Run,
        now: i64,
        step: i64,
        out: Vec<Finding>,
    }

    impl Trainer {
        fn new() -> Self {
            let run = Run::new("r", Ts(0), &Arc::default());
            let mut trainer = Self { run, now: 0, step: 0, out: Vec::new() };
            trainer.say(r#""k":"hello","world":64"#);
            trainer
        }

        fn say(&mut self, what: &str) {
            let mut e = Event::parse(format!(r#"{{"run":"r","rank":0,{what}}}"#).as_bytes()).unwrap();
            e.ts = Some(self.now as f64);
            self.run.event(Ts(1000 * self.now), "n:1", &e, &mut self.out);
        }

        fn eval(&mut self, set: &str, step: i64) {
            self.say(&format!(r#""k":"eval","name":"{set}","step":{step},"m":{{"loss":2.0}}"#));
        }

        /// Trains up to a step. At each multiple of `every`, the run is evaluated.
        fn until(&mut self, step: i64, every: i64) -> &mut Self {
            self.trains(step, |trainer, now| {
                if now % every == 0 {
                    trainer.eval("val", now);
                }
            })
        }

        fn trains(&mut self, step: i64, then: impl Fn(&mut Self, i64)) -> &mut Self {
            while self.step < step {
                (self.step, self.now) = (self.step + 10, self.now + 20);
                self.say(&format!(r#""k":"step","step":{},"m":{{"loss":2.0}}"#, self.step));
                let now = self.step;
                then(self, now);
            }
            self
        }

        fn found(&self) -> Vec<(Change, i64, String)> {
            let found = self.out.iter().filter(|v| v.kind == Kind::EvalMissing);
            found.map(|v| (v.change, v.step, v.why.to_string())).collect()
        }
    }

    const NEVER: i64 = i64::MAX;

    #[test]
    fn three_that_are_missing_are_a_ticket_until_one_comes() {
        let mut t = Trainer::new();
        t.until(2000, 500).until(3750, NEVER);
        assert!(t.found().is_empty(), "{:?}", t.found());
        t.until(3790, NEVER);
        let found = t.found();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!((3760..=3790).contains(&found[0].1), "{found:?}");
        assert!(
            found[0].2.starts_with(
                "no evaluation val since step 2000: one every 500 steps is usual, and 3 are missing; "
            ),
            "{}",
            found[0].2
        );
        assert!(found[0].2.contains(" of training are not evaluated, "), "{}", found[0].2);
        let v = t.out.iter().find(|v| v.kind == Kind::EvalMissing).unwrap();
        assert_eq!((v.severity, v.start_step, v.expected), (Severity::Ticket, 2000, 500.0));
        t.until(6000, NEVER).until(6500, 500).until(7500, 500);
        let clear = (Change::Clear, "the run is evaluated again".to_owned());
        let after: Vec<_> = t.found()[1..].iter().map(|(change, _, why)| (*change, why.clone())).collect();
        assert_eq!(after, [clear]);
    }

    #[test]
    fn a_rhythm_is_learned_from_three_intervals_and_lasts_ten_minutes() {
        let mut t = Trainer::new();
        t.until(1500, 500).until(9000, NEVER);
        assert!(t.found().is_empty(), "two intervals: {:?}", t.found());
        let mut t = Trainer::new();
        t.until(80, 20).until(240, NEVER);
        assert!(t.found().is_empty(), "it tried whether it can: {:?}", t.found());
    }

    #[test]
    fn a_slower_rhythm_is_learned_without_a_word() {
        let mut t = Trainer::new();
        t.until(2000, 500).until(8000, 1000).until(20_000, 3000).until(30_000, 500);
        assert!(t.found().is_empty(), "{:?}", t.found());
        let mut t = Trainer::new();
        t.trains(70_000, |trainer, now| {
            if now % 1000 == 0 && (now / 1000).count_ones() == 1 {
                trainer.eval("val", now);
            }
        });
        assert!(t.found().is_empty(), "it doubles each time: {:?}", t.found());
    }

    #[test]
    fn evaluations_by_another_process_come_later() {
        let mut t = Trainer::new();
        let behind = |trainer: &mut Trainer, now: i64| {
            if now % 500 == 0 && now > 2500 {
                trainer.eval("lm_harness", now - 2500);
            }
        };
        t.trains(6000, behind);
        t.until(7740, NEVER);
        assert!(t.found().is_empty(), "{:?}", t.found());
        t.until(7820, NEVER);
        assert_eq!(t.found().len(), 1, "{:?}", t.found());
    }

    #[test]
    fn each_set_has_its_own_rhythm() {
        let mut t = Trainer::new();
        let both = |trainer: &mut Trainer, now: i64| {
            if now % 100 == 0 {
                trainer.eval("val", now);
            }
            if now % 1000 == 0 && now <= 5000 {
                trainer.eval("math", now);
            }
        };
        t.trains(8400, both);
        assert!(t.found().is_empty(), "{:?}", t.found());
        t.trains(8600, both);
        assert!(t.found()[0].2.starts_with("no evaluation math since step 5000"), "{:?}", t.found());
        t.until(12_000, NEVER);
        assert_eq!(t.found().len(), 1, "one ticket for all: {:?}", t.found());
    }

    #[test]
    fn a_restart_keeps_the_rhythm() {
        let mut t = Trainer::new();
        t.until(3000, 500).step = 2500;
        t.until(4200, NEVER);
        assert!(t.found().is_empty(), "{:?}", t.found());
        t.until(4320, NEVER);
        let found = t.found();
        assert!(found[0].2.starts_with("no evaluation val since the restart at step 2510"), "{found:?}");
        let mut t = Trainer::new();
        t.until(3000, 500).step = 2000;
        t.until(9000, 500);
        assert!(t.found().is_empty(), "{:?}", t.found());
    }

    #[test]
    fn a_restart_is_no_evaluation() {
        let mut t = Trainer::new();
        t.until(2000, 500).until(4000, NEVER);
        assert_eq!(t.found().len(), 1, "{:?}", t.found());
        for _ in 0..2 {
            t.step = 3000;
            t.until(6000, NEVER);
            assert_eq!(t.found().len(), 1, "it is not evaluated: {:?}", t.found());
        }
        t.until(6500, 500);
        assert_eq!(t.found()[1].2, "the run is evaluated again");
        assert_eq!(t.found().len(), 2, "{:?}", t.found());
    }

    #[test]
    fn a_lost_source_may_have_the_evaluations_and_an_ended_run_has_none() {
        let mut t = Trainer::new();
        t.until(2000, 500).run.state.source_down(Ts(4_000_000), "n:2", None, "refused");
        t.until(6000, NEVER);
        let now = Ts(1000 * t.now);
        t.run.state.source_up(now, "n:2");
        t.until(6200, NEVER);
        assert!(t.found().is_empty(), "{:?}", t.found());
        t.until(6400, NEVER);
        assert_eq!(t.found().len(), 1, "{:?}", t.found());
        t.say(r#""k":"bye","code":0"#);
        assert_eq!(t.found()[1].2, "the run ended");
    }
}

//! Detects training that improves while the evaluation does not: overfitting, data that leaked or
//! ran out, or an evaluation that broke.
//!
//! Each evaluation set is judged by itself. Its level is the median of its last three losses.
//! Its noise is that of the changes from one evaluation to the next beyond what the train loss
//! explains, Δ(eval − train), as a bounded-influence scale. A ticket needs a level above the
//! lowest level ever by more than 4 times the noise and 1 % of the loss, for 3 evaluations in a
//! row, while the train loss fell. For white noise the level strays 0.5 of that scale, and the
//! lowest of hundreds lies 1.3 below the mean: 4 is out of its reach. A sudden jump of an
//! evaluation is detected the same way, two evaluations later. It never pages, because an
//! earlier checkpoint still has everything.
//!
//! An evaluation whose loss is not a number is reported at once.

use serde::{Deserialize, Serialize};

use crate::detector::shared::{PRINTED, Shared};
use crate::detector::{JudgedStep, StepDetector};
use crate::sample::{Eval, Extra};
use crate::stats::latch::Latch;
use crate::stats::median::Window;
use crate::stats::robust::Robust;
use stepwatch_model::{
    Change, Clause, Fact, Finding, Kind, Observation, Sentence, Severity, Suspect, Target, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Rise of the evaluation's level above its lowest: in its own noise, and as a share of the
    /// loss. The beginning of this file derives the 4 from white noise: there they are 5.7 standard
    /// deviations of the level, above which 6·10⁻⁹ of a normal distribution lie. The share is an
    /// engineering limit.
    pub sigmas: f64,
    pub share: f64,
    /// Evaluations in a row that must show it: an engineering limit.
    pub evals: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, sigmas: 4.0, share: 0.01, evals: 3 }
    }
}

/// The number of evaluations in a level.
const LEVEL: usize = 3;
/// Changes that start the noise, and the weight of one in the long run.
const WARM: usize = 8;
const RATE: f64 = 1.0 / 32.0;
/// Weight of a train loss in the mean that an evaluation is held against.
const TRAIN_RATE: f64 = 1.0 / 64.0;
/// Share of the rise that may be left when it ends.
const CLEAR: f64 = 0.4;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EvalGap {
    train: f64,
    trained: u32,
    /// The evaluation sets, at most as many as the run's signals.
    sets: Vec<Set>,
}

/// One evaluation set.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Set {
    id: u16,
    name: String,
    attempt: u32,
    recent: Window<LEVEL>,
    noise: Robust<WARM>,
    /// The last evaluation, with the train loss at that time.
    before: Option<(f64, f64)>,
    best: Option<Best>,
    over: u32,
    onset: i64,
    latch: Latch,
    broken: Latch,
}

/// The lowest level, and the state of the run then.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Best {
    level: f64,
    train: f64,
    step: i64,
}

impl Set {
    fn new(e: &Eval<'_>) -> Self {
        Self {
            id: e.id,
            name: e.set.to_owned(),
            attempt: e.attempt,
            recent: Window::default(),
            noise: Robust::default(),
            before: None,
            best: None,
            over: 0,
            onset: e.step,
            latch: Latch::default(),
            broken: Latch::default(),
        }
    }

    /// Resets everything but the best level after a restart, because the steps in between are
    /// trained again.
    fn restarted(&mut self, e: &Eval<'_>, out: &mut Vec<Finding>) {
        self.attempt = e.attempt;
        (self.before, self.over) = (None, 0);
        self.recent.clear();
        if self.latch.clear() {
            out.push(self.finding(e, Change::Clear, f64::NAN, clause!("the run restarted")));
        }
    }

    fn learn(&mut self, e: &Eval<'_>, train: f64) {
        if let Some((loss, trained)) = self.before.replace((e.loss, train)) {
            let change = (e.loss - loss) - (train - trained);
            self.noise.update(change, RATE, 1e-3 * e.loss.abs() + e.quantum);
        }
        self.recent.push(e.loss);
    }

    fn judge(&mut self, e: &Eval<'_>, train: f64, c: &Config, out: &mut Vec<Finding>) {
        if !self.recent.is_full() {
            return;
        }
        let level = self.recent.median();
        let Some(best) = self.best.filter(|best| level >= best.level) else {
            self.best = Some(Best { level, train, step: e.step });
            self.over = 0;
            return self.settle(e, level, "at its lowest", out);
        };
        if !self.noise.is_warm() {
            return;
        }
        let rise = level - best.level;
        let least = (c.sigmas * self.noise.scale()).max(c.share * best.level.abs()).max(PRINTED * e.quantum);
        let over = rise > least && train < best.train;
        if over && self.over == 0 {
            self.onset = best.step;
        }
        self.over = if over { self.over + 1 } else { 0 };
        if self.over >= c.evals && self.latch.raise(Severity::Ticket) {
            let why = self.sentence(level, best, train);
            let mut v = self.finding(e, Change::Raise, best.level, why);
            (v.value, v.score) = (level, rise / self.noise.scale());
            out.push(v);
        } else if rise < CLEAR * least {
            self.settle(e, level, "near its lowest again", out);
        }
    }

    fn sentence(&self, level: f64, best: Best, train: f64) -> Clause {
        clause!(
            "the loss of evaluation {evaluation} is {now}, {over} above its lowest {lowest} at step {lowest_step}, while the \
             train loss fell from {train_before} to {train}: the gap went from {gap_before} to {gap}",
            evaluation = self.name.clone(),
            now = level,
            over = level - best.level,
            lowest = best.level,
            lowest_step = Fact::Step(best.step),
            train_before = best.train,
            train,
            gap_before = best.level - best.train,
            gap = level - train,
        )
    }

    fn settle(&mut self, e: &Eval<'_>, level: f64, what: &'static str, out: &mut Vec<Finding>) {
        if self.latch.clear() {
            let name = self.name.clone();
            let why = clause!(
                "the loss of evaluation {evaluation} is {now}, {what}",
                evaluation = name,
                now = level,
                what
            );
            out.push(self.finding(e, Change::Clear, f64::NAN, why));
        }
    }

    fn not_a_number(&mut self, e: &Eval<'_>, out: &mut Vec<Finding>) {
        if self.broken.raise(Severity::Ticket) {
            self.onset = e.step;
            let name = self.name.clone();
            let why =
                clause!("the loss of evaluation {evaluation} is {now}", evaluation = name, now = e.loss);
            out.push(self.finding(e, Change::Raise, self.before.map_or(f64::NAN, |b| b.0), why));
        }
    }

    fn finding(&self, e: &Eval<'_>, change: Change, expected: f64, why: impl Into<Sentence>) -> Finding {
        let suspects = match (change, self.best) {
            (Change::Raise, Some(best)) => vec![Suspect::new(
                Target::Checkpoint { step: best.step },
                Observation::LowestEvaluation { name: self.name.clone() },
            )],
            _ => Vec::new(),
        };
        Finding {
            change,
            kind: Kind::EvalGap,
            severity: if change == Change::Raise { Severity::Ticket } else { Severity::Info },
            signal: "eval_loss".into(),
            step: e.step,
            ts: e.ts,
            start_step: self.onset,
            value: e.loss,
            expected,
            score: 1.0,
            why: why.into(),
            suspects,
        }
    }
}

impl EvalGap {
    fn eval(&mut self, c: &Config, e: &Eval<'_>, out: &mut Vec<Finding>) {
        let known = self.sets.iter().position(|s| s.id == e.id);
        let at = known.unwrap_or_else(|| {
            self.sets.push(Set::new(e));
            self.sets.len() - 1
        });
        // A raise and a clear of one kind belong to one incident: another set that is still raised
        // keeps it open.
        let raised = |sets: &[Set]| sets.iter().any(|s| s.latch.is_raised() || s.broken.is_raised());
        let mut said = Vec::new();
        let (train, trained) = (self.train, self.trained > 0);
        let set = &mut self.sets[at];
        if set.attempt != e.attempt {
            set.restarted(e, &mut said);
        }
        if !e.loss.is_finite() {
            set.not_a_number(e, &mut said);
        } else {
            if set.broken.clear() {
                let name = set.name.clone();
                let why = clause!("the loss of evaluation {evaluation} is a number again", evaluation = name);
                said.push(set.finding(e, Change::Clear, f64::NAN, why));
            }
            if trained {
                set.learn(e, train);
                set.judge(e, train, c, &mut said);
            }
        }
        let held = raised(&self.sets);
        out.extend(said.into_iter().filter(|v| v.change != Change::Clear || !held));
    }
}

impl StepDetector for EvalGap {
    type Config = Config;

    fn step(&mut self, _: &Config, step: &mut JudgedStep<'_>, _: &mut Shared) {
        let Some(loss) = step.sample.loss.filter(|v| v.is_finite()) else { return };
        self.trained = self.trained.saturating_add(1);
        self.train += (loss - self.train) * TRAIN_RATE.max(1.0 / f64::from(self.trained));
    }

    fn extra(&mut self, c: &Config, e: &Extra<'_>, _: &Shared, out: &mut Vec<Finding>) {
        if let Extra::Eval(e) = e {
            if c.enabled {
                self.eval(c, e, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Detectors;
    use crate::detectors::testing::{Noise, healthy, open, raised};
    use proptest::prelude::*;

    /// A run of `n` steps, evaluated every 100 with these losses beyond those of its training.
    fn evaluated(seed: u64, n: i64, gap: impl Fn(i64) -> f64) -> Vec<Finding> {
        let mut detectors = Detectors::default();
        let (mut noise, mut out) = (Noise::new(seed), Vec::new());
        for s in healthy(seed, n) {
            detectors.step(&s, &mut out);
            if s.step % 100 == 0 {
                let loss = 2.25 + 6.0 / (s.step as f64 + 20.0).sqrt() + 0.01 * noise.normal() + gap(s.step);
                let eval = Eval { id: 0, set: "val", step: s.step, ts: s.ts, attempt: 0, loss, quantum: 0.0 };
                detectors.extra(&Extra::Eval(eval), &mut out);
            }
        }
        out
    }

    #[test]
    fn overfitting_is_a_ticket_that_names_the_best_checkpoint() {
        let findings = evaluated(3, 9000, |step| 4e-5 * (step - 4000).max(0) as f64);
        let found = raised(&findings);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].0, found[0].1), (Kind::EvalGap, Severity::Ticket));
        assert!((4500..7000).contains(&found[0].2), "{found:?}");
        let v = findings.iter().find(|v| v.change == Change::Raise).unwrap();
        assert!(v.why.to_string().contains("while the train loss fell from"), "{}", v.why);
        let best: i64 = v.suspects[0].what().trim_start_matches("the checkpoint of step ").parse().unwrap();
        assert!((3500..4500).contains(&best), "{v:?}");
    }

    #[test]
    fn an_evaluation_that_breaks_and_recovers_is_one_ticket() {
        let findings = evaluated(5, 9000, |step| if (4000..6000).contains(&step) { 0.5 } else { 0.0 });
        assert_eq!(raised(&findings).len(), 1);
        assert!(open(&findings).is_empty());
        let nan = evaluated(5, 3000, |step| if step == 2000 { f64::NAN } else { 0.0 });
        assert_eq!(raised(&nan), [(Kind::EvalGap, Severity::Ticket, 2000)]);
        assert!(open(&nan).is_empty());
    }

    #[test]
    fn a_loss_that_rises_with_the_train_loss_is_none_of_this() {
        let mut detectors = Detectors::default();
        let mut out = Vec::new();
        for mut s in healthy(7, 6000) {
            let extra = 2e-4 * (s.step - 3000).max(0) as f64;
            s.loss = s.loss.map(|v| v + extra);
            detectors.step(&s, &mut out);
            if s.step % 100 == 0 {
                let loss = s.loss.unwrap();
                let eval = Eval { id: 0, set: "val", step: s.step, ts: s.ts, attempt: 0, loss, quantum: 0.0 };
                detectors.extra(&Extra::Eval(eval), &mut out);
            }
        }
        assert!(raised(&out).iter().all(|(kind, ..)| *kind != Kind::EvalGap), "{out:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn noise_raises_nothing(seed: u64) {
            let findings = evaluated(seed, 20_000, |_| 0.0);
            prop_assert!(findings.iter().all(|v| v.kind != Kind::EvalGap), "{:?}", findings);
        }
    }
}

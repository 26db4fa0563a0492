//! Detects a run that started over from scratch: its progress is lost, and each step is spent
//! again.
//!
//! The loss is back at the beginning of the run, and falls as it did then
//! ([`crate::detector::beginning`]). It is a page if the step counter goes on, because nobody sees
//! that the trainer found no checkpoint, and `page_after` of the run is lost. If the steps are
//! counted anew, or less is lost, it is a ticket. It ends when the loss is back where it was, or
//! with the next attempt.

use serde::{Deserialize, Serialize};

use crate::detector::beginning::StartedOver;
use crate::detector::draft::Draft;
use crate::detector::shared::Shared;
use crate::detector::{JudgedStep, StepDetector};
use stepwatch_model::{Clause, Fact, Kind, Sentence, Severity, Span, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Time of the run that must be lost for a page: an engineering limit, as long as a slow-down
    /// may cost before it is one.
    pub page_after: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, page_after: Span::secs(600) }
    }
}

/// Weight of a line in the current loss, and how far above what it was it may end, relatively.
const RATE: f64 = 1.0 / 3.0;
const BACK: f64 = 1.05;

/// `None` unless the run started over.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LostProgress(Option<Box<Regain>>);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Regain {
    step: i64,
    lost: f64,
    level: f64,
    attempt: u32,
}

impl Regain {
    fn finding(&self, value: f64, score: f64, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind: Kind::LostProgress,
            signal: "loss",
            start_step: self.step,
            value,
            expected: self.lost,
            score,
            why: why.into(),
        }
    }

    fn begin(c: &Config, step: &mut JudgedStep<'_>, over: &StartedOver, dollars_per_hour: f64) -> Self {
        let level = step.sample.loss.unwrap_or(over.loss);
        let regain = Self { step: over.step, lost: over.lost, level, attempt: step.sample.attempt };
        let is_page = !over.recounts && over.took >= c.page_after;
        let severity = if is_page { Severity::Page } else { Severity::Ticket };
        let mut why = Sentence::from(clause!(
            "the run started over from scratch at step {step}: its loss went from {before} to {now} and falls as it did \
             over the first {lines} lines of the run",
            step = Fact::Step(over.step),
            before = over.lost,
            now = over.loss,
            lines = over.lines,
        ));
        why.add(clause!("{steps} steps in {lost} are lost", steps = over.steps, lost = over.took));
        let hours = over.took.as_secs_f64() / 3600.0;
        if dollars_per_hour > 0.0 {
            why.add(clause!("they cost ${dollars}", dollars = Fact::decimal(hours * dollars_per_hour, 0)));
        }
        let fall = (over.loss / over.lost).ln();
        step.raise(regain.finding(over.loss, fall, why), severity);
        regain
    }

    /// Why it is over; `None` if it is not.
    fn end(&mut self, step: &JudgedStep<'_>) -> Option<Clause> {
        if step.sample.attempt != self.attempt {
            return Some(clause!("the run restarted"));
        }
        let loss = step.sample.loss.filter(|loss| loss.is_finite())?;
        self.level += RATE * (loss - self.level);
        (self.level <= BACK * self.lost)
            .then(|| clause!("the loss is where it was before the run started over"))
    }
}

impl StepDetector for LostProgress {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        if !c.enabled {
            return shared.beginning.ignore();
        }
        if let Some(over) = shared.started_over() {
            let regain = Regain::begin(c, step, &over, shared.speed.dollars_per_hour);
            self.0 = Some(Box::new(regain));
        } else if let Some(regain) = &mut self.0
            && let Some(why) = regain.end(step)
        {
            step.clear(regain.finding(regain.level, 0.0, why));
            self.0 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{healthy, judge, open, pages, raised};
    use crate::detectors::{Detectors, DetectorsConfig};
    use crate::sample::StepSample;
    use stepwatch_model::time::Ts;

    /// A run that starts over, `lost` steps after its start.
    fn twice(lost: i64, recounts: bool) -> Vec<StepSample> {
        let fall = |s: &StepSample| Some(s.loss? + 7.0 * (-(s.step as f64) / 60.0).exp());
        let begin = |seed, n| healthy(seed, n).into_iter().map(|s| StepSample { loss: fall(&s), ..s });
        let mut run: Vec<StepSample> = begin(1, lost).collect();
        let moved = |s: StepSample| StepSample {
            step: if recounts { s.step } else { s.step + lost },
            ts: Ts(s.ts.0 + 2000 * lost),
            attempt: u32::from(recounts),
            ..s
        };
        run.extend(begin(2, 4 * lost).map(moved));
        run
    }

    #[test]
    fn what_started_over_says_what_is_lost_and_ends_when_it_is_regained() {
        let findings = judge(&twice(900, false));
        let of = |kind| findings.iter().find(|v| v.kind == kind).unwrap();
        assert!(pages(&findings).iter().any(|(kind, _)| *kind == Kind::LostProgress), "{findings:?}");
        let why = of(Kind::LostProgress).why.to_string();
        assert!(why.contains("at step 901") && why.contains("899 steps in 29m"), "{why}");
        assert!(!raised(&findings).iter().any(|(kind, ..)| *kind == Kind::Divergence), "{findings:?}");
        assert!(open(&findings).is_empty(), "{findings:?}");
    }

    /// The page of the loss is not taken back for an incident that nobody wants.
    #[test]
    fn without_this_detector_it_is_a_divergence() {
        let mut config = DetectorsConfig::default();
        config.lost_progress.enabled = false;
        let mut detectors = Detectors::new(&config.into());
        let mut out = Vec::new();
        twice(900, false).iter().for_each(|s| detectors.step(s, &mut out));
        assert!(pages(&out).iter().any(|(kind, _)| *kind == Kind::Divergence), "{out:?}");
    }

    #[test]
    fn a_counter_that_begins_anew_and_a_short_run_are_tickets() {
        for (lost, recounts) in [(900, true), (200, false)] {
            let findings = judge(&twice(lost, recounts));
            let of = raised(&findings).into_iter().find(|(kind, ..)| *kind == Kind::LostProgress);
            assert_eq!(of.unwrap().1, Severity::Ticket, "{lost}");
        }
    }
}

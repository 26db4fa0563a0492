//! Detects NaN, infinities, and their indirect signs: a loss that is missing from its line, is zero
//! or never changes, a loss scale that keeps falling, steps that are skipped.
//!
//! * A non-finite loss pages at once; so does a line without the loss it should carry (Megatron
//!   prints no loss when it is NaN). Under dynamic loss scaling a skipped iteration explains one
//!   such line, so two in a row are needed then.
//! * A non-finite gradient norm pages when 2 of the last 8 samples have one. Alone it is what fp16
//!   training does every few thousand steps (Micikevicius et al., "Mixed Precision Training", ICLR
//!   2018): a note.
//! * The loss scale halves once every few thousand steps in health. With an exponential memory of
//!   200 samples, 4 halvings are a ticket, 8 a page. The first steps, in which the scale is found,
//!   do not count.
//! * Where steps are skipped and no loss scale explains it, 5 % of them, by a memory of 64 samples,
//!   are a ticket and 30 % a page: a scale that is right costs one step in a thousand or two.
//! * Three zeros in a row page when the loss was never zero in 50 samples and stood well above what
//!   its printer rounds to zero: a mask that covers every token, or a sum over no data.
//! * A loss repeated n times is dead when `n ≥ 50` and `pⁿ < 1e-9`, p being the share of repeats so
//!   far: printing with two decimals makes repeats, and so do losses that are truly zero. A loss
//!   that usually moves by no more than two steps of its printer is not judged: it may move without
//!   a visible change.

use serde::{Deserialize, Serialize};

use crate::detector::draft::{Draft, Measured};
use crate::detector::shared::Shared;
use crate::detector::{JudgedStep, StepDetector};
use crate::sample::StepSample;
use crate::stats::hit_window::HitWindow;
use crate::stats::latch::Latch;
use stepwatch_model::{Clause, Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Samples of the last 8 with a non-finite gradient norm that page. Where fp16 overflows once
    /// in 2,000 steps, 7·10⁻⁶ of the windows hold 2.
    pub grad_samples: u32,
    /// Halvings of the loss scale within about 200 samples: 5 whole ones for 4, because they fade.
    /// With one halving in 2,000 steps a Poisson count has 5 with a chance of 8·10⁻⁸.
    pub halvings_ticket: f64,
    pub halvings_page: f64,
    /// Share of the steps that are skipped. One step in 64 is 1.6 %, so 5 % are 4 of them: with one
    /// skipped step in 1,000 a Poisson count has 4 of 64 with a chance of 7·10⁻⁷. The 30 % are an
    /// engineering limit: a third of the computation is lost.
    pub skipped_ticket: f64,
    pub skipped_page: f64,
    /// Identical losses in a row, at least.
    pub constant_samples: u32,
    /// Losses of exactly zero in a row: an engineering limit. A single one may be a batch whose
    /// tokens are all masked.
    pub zero_samples: u32,
    /// Finite samples in a row that end the incident.
    pub clear_after: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            grad_samples: 2,
            halvings_ticket: 4.0,
            halvings_page: 8.0,
            skipped_ticket: 0.05,
            skipped_page: 0.3,
            constant_samples: 50,
            zero_samples: 3,
            clear_after: 16,
        }
    }
}

/// Samples in which non-finite gradient norms are counted.
const GRAD_WINDOW: u32 = 8;
/// Samples of an attempt in which the loss scale is being found.
const SCALE_SEARCH: u32 = 50;
/// Memory of the halvings, in samples.
const SCALE_MEMORY: f64 = 200.0;
/// Weight of a sample in the share of skipped steps.
const SKIPPED_RATE: f64 = 1.0 / 64.0;
/// Steps of the printer that a loss stood above zero, at least, for a zero to be news.
const ABOVE_ZERO: f64 = 16.0;
/// Weight of a sample in how far the loss usually moves.
const MOVES_RATE: f64 = 1.0 / 256.0;
/// Probability, below which a series of equal losses is not taken for chance.
const CONSTANT_CHANCE: f64 = 1e-9;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Nonfinite {
    latch: Latch,
    /// The incident has reported the non-finite loss, not only the gradient.
    loss_reported: bool,
    onset: i64,
    bad_grads: HitWindow,
    /// Step of an isolated non-finite gradient that is not reported yet.
    isolated: Option<i64>,
    bad_losses: u32,
    finite: u32,
    samples: u32,
    last_loss: Option<f64>,
    equal: u32,
    repeats: u32,
    losses: u32,
    /// How far the loss usually moves from one sample to the next.
    moves: f64,
    scale: Option<f64>,
    halvings: f64,
    /// Share of the steps that were skipped lately.
    skipped: f64,
    /// Zeros in a row, whether there were any before, and the usual loss.
    zeros: u32,
    was_zero: bool,
    level: f64,
}

/// The most severe fault of a sample.
struct Trouble {
    severity: Severity,
    signal: &'static str,
    measured: Measured,
    score: f64,
    what: What,
}

/// The values of a fault's sentence, which is only made when the fault is reported.
#[derive(Clone, Copy)]
enum What {
    Loss { value: Option<f64>, samples: u32, last: Option<f64> },
    Grad { value: f64, samples: u32 },
    Scale { scale: f64, halvings: f64 },
    Skipped { share: f64 },
    Zero { samples: u32, level: f64 },
    Constant { loss: f64, samples: u32 },
}

impl What {
    fn sentence(&self) -> Sentence {
        let what = Sentence::from(self.clause());
        let Self::Loss { last, .. } = *self else { return what };
        what.and_perhaps(last.map(|last| clause!("the last finite loss was {last}", last))).and(clause!(
            "every further step is wasted until the loss is finite again or the run is rolled back"
        ))
    }

    fn clause(&self) -> Clause {
        match *self {
            Self::Loss { value, samples, .. } => {
                let lasts = (samples > 1).then(|| clause!(" for {samples} samples", samples));
                match value {
                    Some(now) if now.is_nan() => clause!("loss is {now}{lasts}", now, lasts),
                    Some(_) => clause!("loss is infinite{lasts}", lasts),
                    None => clause!(
                        "the trainer gives no number for the loss, as trainers do when it is not finite{lasts}",
                        lasts
                    ),
                }
            }
            Self::Grad { value, samples } => clause!(
                "gradient norm is {now} in {samples} of the last {window} samples: the optimizer is about to write, or has \
                 written, garbage",
                now = value,
                samples,
                window = GRAD_WINDOW,
            ),
            Self::Scale { scale, halvings } => clause!(
                "loss scale fell to {scale}, halved {halvings} times in a few hundred samples: gradients overflow again and \
                 again, and those steps are skipped",
                scale,
                halvings = Fact::decimal(halvings, 0),
            ),
            Self::Skipped { share } => clause!(
                "{skipped} % of the steps are skipped: their gradients are not finite, and the model learns nothing from \
                 their data",
                skipped = Fact::percent(share, 0),
            ),
            Self::Zero { samples, level } => clause!(
                "loss is exactly 0 for {samples} samples and was about {usual}: every token is masked, or there is no data",
                samples,
                usual = level,
            ),
            Self::Constant { loss, samples } => clause!(
                "loss has been exactly {now} for {samples} samples: nothing is being learned, or the number is stale",
                now = loss,
                samples,
            ),
        }
    }
}

impl Nonfinite {
    fn loss(&mut self, s: &StepSample) -> Option<Trouble> {
        let bad = s.loss_missing || s.loss.is_some_and(|v| !v.is_finite());
        if !bad {
            if s.loss.is_some() {
                self.bad_losses = 0;
            }
            return None;
        }
        self.bad_losses += 1;
        // A skipped step has no loss. Without loss scaling, only a finite gradient shows that the
        // step was skipped.
        let sound = s.loss.is_none() && s.grad_norm.is_some_and(f64::is_finite);
        let explained = (s.loss_scale.is_some() || sound) && s.skipped.is_some_and(|n| n > 0.0);
        if explained && self.bad_losses < 2 {
            return None;
        }
        Some(Trouble {
            severity: Severity::Page,
            signal: "loss",
            measured: Measured {
                value: s.loss.unwrap_or(f64::NAN),
                expected: self.last_loss.unwrap_or(f64::NAN),
            },
            score: f64::from(self.bad_losses),
            what: What::Loss {
                value: s.loss.filter(|v| !v.is_finite()),
                samples: self.bad_losses,
                last: self.last_loss,
            },
        })
    }

    fn grad(&mut self, c: &Config, s: &StepSample) -> Option<Trouble> {
        let g = s.grad_norm?;
        let bad = !g.is_finite();
        if s.interval > 0 {
            self.bad_grads.push(bad);
        }
        let count = self.bad_grads.count_last(GRAD_WINDOW);
        // Dynamic loss scaling recovers by itself; its failure shows in the scale.
        let scaled = s.loss_scale.is_some_and(|v| v > 1.0);
        if !bad || scaled {
            return None;
        }
        if count < c.grad_samples {
            self.isolated = Some(s.step);
            return None;
        }
        Some(Trouble {
            severity: Severity::Page,
            signal: "grad_norm",
            measured: Measured { value: g, expected: f64::NAN },
            score: f64::from(count),
            what: What::Grad { value: g, samples: count },
        })
    }

    fn loss_scale(&mut self, c: &Config, s: &StepSample) -> Option<Trouble> {
        let scale = s.loss_scale.filter(|v| v.is_finite() && *v > 0.0)?;
        let before = self.scale.replace(scale)?;
        self.halvings *= 1.0 - 1.0 / SCALE_MEMORY;
        if scale < before && self.samples > SCALE_SEARCH {
            self.halvings += (before / scale).log2();
        }
        let severity = if self.halvings >= c.halvings_page {
            Severity::Page
        } else if self.halvings >= c.halvings_ticket {
            Severity::Ticket
        } else {
            return None;
        };
        Some(Trouble {
            severity,
            signal: "loss_scale",
            measured: Measured { value: scale, expected: scale * self.halvings.exp2() },
            score: self.halvings,
            what: What::Scale { scale, halvings: self.halvings },
        })
    }

    fn skipped(&mut self, c: &Config, s: &StepSample) -> Option<Trouble> {
        let skipped = s.skipped.filter(|n| n.is_finite() && *n >= 0.0)?;
        let share = (skipped / s.interval.max(1) as f64).min(1.0);
        if self.samples <= SCALE_SEARCH {
            return None;
        }
        self.skipped += (share - self.skipped) * SKIPPED_RATE;
        let severity = if self.skipped >= c.skipped_page {
            Severity::Page
        } else if self.skipped >= c.skipped_ticket {
            Severity::Ticket
        } else {
            return None;
        };
        Some(Trouble {
            severity,
            signal: "skipped_iterations",
            measured: Measured { value: self.skipped, expected: 0.0 },
            score: self.skipped / c.skipped_ticket,
            what: What::Skipped { share: self.skipped },
        })
    }

    fn zero(&mut self, c: &Config, s: &StepSample) -> Option<Trouble> {
        let loss = s.loss.filter(|v| v.is_finite())?;
        if loss != 0.0 {
            self.was_zero |= core::mem::take(&mut self.zeros) > 0;
            let rate = MOVES_RATE.max(1.0 / (f64::from(self.losses) + 1.0));
            // A loss that approaches zero must be judged by its present level.
            self.level = self.level.min(8.0 * loss.abs());
            self.level += (loss.abs() - self.level) * rate;
            return None;
        }
        self.zeros = self.zeros.saturating_add(1);
        let known = self.losses >= c.constant_samples && !self.was_zero;
        (known && self.zeros >= c.zero_samples && self.level > ABOVE_ZERO * s.q.loss).then(|| Trouble {
            severity: Severity::Page,
            signal: "loss",
            measured: Measured { value: loss, expected: self.level },
            score: f64::from(self.zeros),
            what: What::Zero { samples: self.zeros, level: self.level },
        })
    }

    fn constant(&mut self, c: &Config, s: &StepSample) -> Option<Trouble> {
        let loss = s.loss.filter(|v| v.is_finite())?;
        let same = self.last_loss == Some(loss);
        let moved = self.last_loss.map_or(0.0, |last| (loss - last).abs());
        self.equal = if same { self.equal.saturating_add(1) } else { 1 };
        let n = self.equal;
        if n < c.constant_samples {
            // Repeats inside a long series do not count for how often losses repeat by chance.
            self.losses = self.losses.saturating_add(1);
            self.repeats = self.repeats.saturating_add(u32::from(same));
            let rate = MOVES_RATE.max(1.0 / f64::from(self.losses));
            // A single spike does not change how far the loss usually moves.
            let usual =
                if self.losses < GRAD_WINDOW { moved } else { moved.min(8.0 * self.moves + s.q.loss) };
            self.moves += (usual - self.moves) * rate;
            return None;
        }
        if self.moves <= 2.0 * s.q.loss || loss.abs() < ABOVE_ZERO * s.q.loss {
            return None;
        }
        let before = f64::from(self.losses.saturating_sub(c.constant_samples)) + 2.0;
        let repeats = f64::from(self.repeats.saturating_sub(c.constant_samples)) + 1.0;
        let log_chance = f64::from(n) * (repeats / before).ln();
        (before > f64::from(c.constant_samples) && log_chance < CONSTANT_CHANCE.ln()).then(|| Trouble {
            severity: Severity::Page,
            signal: "loss",
            measured: Measured { value: loss, expected: f64::NAN },
            score: -log_chance,
            what: What::Constant { loss, samples: n },
        })
    }

    fn publish(&mut self, step: &mut JudgedStep<'_>, t: Trouble) {
        let loss_news = t.signal == "loss" && self.latch.is_raised() && !self.loss_reported;
        if !self.latch.is_raised() {
            self.onset = self.isolated.unwrap_or(step.sample.step);
        }
        self.isolated = None;
        self.loss_reported |= t.signal == "loss";
        if self.latch.raise(t.severity) || loss_news {
            step.raise(self.finding(t.signal, t.measured, t.score, t.what.sentence()), t.severity);
        }
    }

    fn finding(&self, signal: &'static str, m: Measured, score: f64, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind: Kind::Nonfinite,
            signal,
            start_step: self.onset,
            value: m.value,
            expected: m.expected,
            score,
            why: why.into(),
        }
    }

    fn settle(&mut self, c: &Config, step: &mut JudgedStep<'_>) {
        if self.finite >= c.clear_after && self.latch.clear() {
            self.loss_reported = false;
            let samples = self.finite;
            let why = clause!("loss and gradients finite again for {samples} samples", samples);
            let m = Measured { value: step.sample.loss.unwrap_or(f64::NAN), expected: f64::NAN };
            step.clear(self.finding("loss", m, 0.0, why));
        }
        if let Some(at) = self.isolated.filter(|_| self.finite >= GRAD_WINDOW) {
            self.isolated = None;
            self.onset = at;
            let why = clause!("one non-finite gradient norm at step {step}", step = Fact::Step(at));
            let since = clause!("the {samples} samples after it are finite", samples = GRAD_WINDOW);
            let why = Sentence::from(why).and(since);
            let m = Measured { value: f64::INFINITY, expected: f64::NAN };
            step.note(self.finding("grad_norm", m, 1.0, why));
        }
    }
}

impl StepDetector for Nonfinite {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let s = step.sample;
        if !c.enabled {
            return;
        }
        if shared.restarted {
            self.samples = 0;
            self.halvings = 0.0;
            self.scale = None;
            self.skipped = 0.0;
            self.equal = 0;
            // A new attempt ends what was raised before it.
            self.finite = c.clear_after;
            self.settle(c, step);
            self.finite = 0;
        }
        self.samples = self.samples.saturating_add(u32::from(!s.adds));
        let troubles = [
            self.loss(s),
            self.grad(c, s),
            self.loss_scale(c, s),
            self.skipped(c, s),
            self.zero(c, s),
            self.constant(c, s),
        ];
        if let Some(v) = s.loss.filter(|v| v.is_finite()) {
            self.last_loss = Some(v);
        }
        let bad = s.loss_missing || [s.loss, s.grad_norm].into_iter().flatten().any(|v| !v.is_finite());
        let has_trouble = troubles.iter().any(Option::is_some);
        let worst = || troubles.into_iter().flatten().max_by_key(|t| t.severity);
        match if has_trouble { worst() } else { None } {
            Some(t) => {
                self.finite = 0;
                self.publish(step, t);
            }
            None if bad => self.finite = 0,
            None if s.interval > 0 && !s.adds => self.finite = self.finite.saturating_add(1),
            None => {}
        }
        self.settle(c, step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{healthy, judge, open, pages, raised};
    use proptest::prelude::*;
    use stepwatch_model::Change;

    #[test]
    fn one_nan_loss_pages_at_once_and_recovery_clears() {
        let mut run = healthy(1, 200);
        run[100].loss = Some(f64::NAN);
        let findings = judge(&run);
        assert_eq!(pages(&findings), [(Kind::Nonfinite, 101)]);
        assert!(
            findings[0].why.to_string().starts_with("loss is NaN; the last finite loss was 2."),
            "{}",
            findings[0].why
        );
        assert!(open(&findings).is_empty());
    }

    #[test]
    fn a_run_born_with_nan_pages_at_its_first_step() {
        let mut run = healthy(2, 20);
        run.iter_mut().for_each(|s| (s.loss, s.grad_norm) = (Some(f64::NAN), Some(f64::NAN)));
        let findings = judge(&run);
        assert_eq!(raised(&findings), [(Kind::Nonfinite, Severity::Page, 1)]);
    }

    #[test]
    fn a_line_without_its_loss_counts_as_nan() {
        let mut run = healthy(3, 100);
        (run[50].loss, run[50].loss_missing) = (None, true);
        assert_eq!(pages(&judge(&run)), [(Kind::Nonfinite, 51)]);
    }

    #[test]
    fn isolated_infinite_gradients_are_notes_and_two_of_eight_a_page() {
        let mut run = healthy(4, 400);
        for at in [100, 200, 300] {
            run[at].grad_norm = Some(f64::INFINITY);
        }
        let findings = judge(&run);
        assert!(raised(&findings).is_empty(), "{findings:?}");
        assert_eq!(findings.iter().filter(|v| v.change == Change::Note).count(), 3);
        run[303].grad_norm = Some(f64::NAN);
        assert_eq!(pages(&judge(&run)), [(Kind::Nonfinite, 304)]);
    }

    #[test]
    fn a_skipped_iteration_under_loss_scaling_explains_one_bad_line() {
        let mut run = healthy(5, 300);
        for s in &mut run {
            s.loss_scale = Some(65536.0);
        }
        for at in [100, 200, 201] {
            (run[at].loss, run[at].grad_norm, run[at].skipped) =
                (Some(f64::INFINITY), Some(f64::INFINITY), Some(1.0));
        }
        assert_eq!(pages(&judge(&run)), [(Kind::Nonfinite, 202)], "two in a row are not explained");
    }

    #[test]
    fn a_loss_scale_in_free_fall_is_a_ticket_then_a_page() {
        let mut run = healthy(6, 300);
        for (i, s) in run.iter_mut().enumerate() {
            s.loss_scale = Some(65536.0 / f64::from(1 << (i.saturating_sub(150) / 5).min(10) as u32));
        }
        let severities: Vec<_> = raised(&judge(&run)).into_iter().map(|(_, s, _)| s).collect();
        assert_eq!(severities, [Severity::Ticket, Severity::Page]);
    }

    #[test]
    fn skipped_steps_are_a_ticket_and_then_a_page() {
        let mut run = healthy(9, 600);
        run.iter_mut().for_each(|s| s.skipped = Some(0.0));
        for at in [80, 200, 320] {
            run[at].skipped = Some(1.0);
        }
        assert!(raised(&judge(&run)).is_empty(), "now and then is how a loss scale is kept");
        run[400..].iter_mut().for_each(|s| s.skipped = Some(f64::from(u8::from(s.step % 2 == 0))));
        let found = raised(&judge(&run));
        assert!(
            matches!(found[..], [(_, Severity::Ticket, 404..410), (_, Severity::Page, 440..480)]),
            "{found:?}"
        );
    }

    #[test]
    fn a_loss_of_zero_pages_at_the_third_unless_zeros_are_usual() {
        let mut run = healthy(10, 300);
        run[200].loss = Some(0.0);
        assert!(pages(&judge(&run)).is_empty(), "one of them is a batch without a token");
        run[200..].iter_mut().for_each(|s| s.loss = Some(0.0));
        assert_eq!(pages(&judge(&run)), [(Kind::Nonfinite, 203)]);
        run[100].loss = Some(0.0);
        assert!(!pages(&judge(&run)).contains(&(Kind::Nonfinite, 203)));
        // Memorised, and printed with two decimals.
        let mut fine_tune = healthy(11, 400);
        for s in &mut fine_tune {
            s.q.loss = 0.01;
            s.loss = s.loss.map(|v| (100.0 * v * (-(s.step as f64) / 60.0).exp()).round() / 100.0);
        }
        let found = raised(&judge(&fine_tune));
        assert!(found.iter().all(|(k, ..)| *k != Kind::Nonfinite), "{found:?}");
    }

    #[test]
    fn a_constant_loss_pages_unless_repeats_are_how_it_is_printed() {
        let mut run = healthy(7, 400);
        let stuck = run[299].loss;
        run[300..].iter_mut().for_each(|s| s.loss = stuck);
        assert_eq!(pages(&judge(&run)), [(Kind::Nonfinite, 349)]);
        // Printed with one decimal, and converged.
        run.iter_mut().for_each(|s| s.loss = Some(if s.step % 40 == 0 { 0.3 } else { 0.2 }));
        run[300..].iter_mut().for_each(|s| s.loss = Some(0.2));
        assert!(pages(&judge(&run)).is_empty());
    }

    #[test]
    fn another_rank_may_bring_the_news() {
        let mut run = healthy(8, 100);
        let mut other = run[60].clone();
        (other.interval, other.loss, other.grad_norm) = (0, Some(f64::NAN), None);
        run.insert(61, other);
        assert_eq!(pages(&judge(&run)), [(Kind::Nonfinite, 61)]);
    }

    proptest! {
        #[test]
        fn nan_poisons_nothing(seed: u64, at in proptest::collection::vec(0usize..600, 0..40)) {
            let mut run = healthy(seed, 800);
            for at in at {
                (run[at].loss, run[at].grad_norm, run[at].step_time) = (Some(f64::NAN), Some(f64::INFINITY), Some(f64::NAN));
            }
            // Whatever happened before, the loss jump at 700 is seen within a few steps.
            run[700..].iter_mut().for_each(|s| s.loss = s.loss.map(|v| v + 2.0));
            let found = pages(&judge(&run));
            prop_assert!(found.iter().any(|(k, step)| *k == Kind::LossSpike && (701..705).contains(step)), "{found:?}");
        }
    }
}

//! Detects a loss that is higher than before and stays so, in a run too noisy for single samples to
//! show it.
//!
//! Medians of 8 samples against a baseline that follows them down at once and up only slowly, and a
//! CUSUM on their scores (Page 1954):
//! ```text
//! d = b − m,  z = d/s
//! m += clip(d, −∞, 2.5s)·(1/2 downwards, 1/32 upwards, 1/320 while suspicious)
//! s += (min(|d|, 2.5s)/0.787 − s)/32,   S = clip(S + clip(z, ±6) − 2, 0, 3h),  h = 8
//! alarm: S > h and the lower of the last two blocks above m by the rise and by 4s
//! ```
//! A smaller rise that lasts counts as well: 2.5 % of the level and 5s above it, in 8 blocks in a
//! row, are a ticket, and in 14 blocks a page, from 0.1 nats on. Once such a rise is under way, 0.6
//! of it suffices. It must exceed the loss within the last 12 to 24 blocks, because some losses
//! wander.
//!
//! A rise of 0.15 ([`LossScale::nat`]) is a ticket, one of 0.4 a page, as in [`super::loss_spike`],
//! which is faster if the noise permits. Up to half of a block may be single outliers.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::{LossScale, PRINTED, Shared};
use crate::detector::{JudgedStep, StepDetector};
use crate::sample::rounding;
use crate::stats::block::{Block, Blocks};
use crate::stats::cadence::Cadence;
use crate::stats::cusum::Cusum;
use crate::stats::latch::Latch;
use stepwatch_model::{Clause, Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Bound of the CUSUM, in sigmas of a block. By Siegmund's formula independent normal blocks
    /// pass 8 once in 10¹⁵ blocks; the margin is for losses that wander.
    pub h: f64,
    /// Rises above the baseline, in nats (see [`LossScale::nat`]): the engineering limits of
    /// [`super::loss_spike`], with a page a little lower, because a median of 8 samples errs less.
    pub ticket_rise: f64,
    pub page_rise: f64,
    /// The same in sigmas of a block: 3·10⁻⁵ of a normal distribution lies above 4.
    pub sigmas: f64,
    /// Blocks after which the level is accepted.
    pub accept_after: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, h: 8.0, ticket_rise: 0.15, page_rise: 0.4, sigmas: 4.0, accept_after: 250 }
    }
}

/// Weight of a block below the baseline, and of one above it.
const DOWN: f64 = 0.5;
const UP: f64 = 1.0 / 32.0;
/// Weight of a block in its scale, and of a change in the scale of the changes.
const SCALE_RATE: f64 = 1.0 / 32.0;
const CHANGE_RATE: f64 = 1.0 / 16.0;
/// CUSUM drift, and the largest score of one block, in sigmas: with h = 8 three blocks must be out.
const DRIFT: f64 = 2.0;
const CAP: f64 = 6.0;
/// Smallest scale, relative to the level.
const FLOOR: f64 = 0.001;
/// First scale, relative to the level.
const FIRST_SCALE: f64 = 0.02;
/// Blocks before the first judgement.
const QUIET: u32 = 8;
/// A smaller rise, as a share of the level, that counts where it is certain and lasts: sigmas of a
/// block (3·10⁻⁷ of a normal distribution lies above 5), and blocks in a row for a ticket and for a
/// page. The share and the blocks are engineering limits: one such block is certain enough for
/// chance, and the rest is there for a loss that wanders.
const SMALL: f64 = 0.025;
const SMALL_SIGMAS: f64 = 5.0;
const SMALL_TICKET: u8 = 8;
const SMALL_PAGE: u8 = 14;
/// Blocks whose highest a small rise must exceed, once or twice as many: a loss that wanders comes
/// back to where it was a while ago. This and the next two are engineering limits: the sigmas above
/// exclude chance.
const WANDERS: u32 = 12;
/// The share of the rise at which it is still under way.
const UNDER_WAY: f64 = 0.6;
/// The least rise, in nats, of such a page.
const SMALL_NATS: f64 = 0.1;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LossShift {
    latch: Latch,
    blocks: Blocks,
    cadence: Cadence,
    n: u32,
    m: f64,
    s: f64,
    last: f64,
    /// Scale of a block by the changes from one to the next, which a falling loss does not widen.
    changes: f32,
    /// Blocks in a row that are above the baseline by little, and for certain.
    lasting: u8,
    /// The highest blocks of the last [`WANDERS`] and of as many before, and of both when the rise
    /// began.
    highest: [f32; 2],
    ceiling: f32,
    cusum: Cusum,
    onset: i64,
    expected: f64,
    open_for: u32,
}

impl LossShift {
    fn block(&mut self, c: &Config, step: &mut JudgedStep<'_>, b: Block, scale: &LossScale) {
        self.n = self.n.saturating_add(1);
        if self.n == 1 {
            (self.m, self.last, self.s) = (b.median, b.median, FIRST_SCALE * b.median.abs());
            self.highest = [b.median as f32; 2];
            return;
        }
        let d = b.median - self.m;
        self.cusum.add(b.first, (d / self.s).clamp(-CAP, CAP), DRIFT, 3.0 * c.h);
        if self.n > QUIET {
            self.judge(c, step, b.median, scale);
        }
        if self.n.is_multiple_of(WANDERS) {
            self.highest = [f32::MIN, self.highest[0]];
        }
        self.highest[0] = self.highest[0].max(b.median as f32);
        let change = (b.median - self.last).abs() / core::f64::consts::SQRT_2;
        self.last = b.median;
        self.learn(c, d, change, step.sample.q.loss);
    }

    fn learn(&mut self, c: &Config, d: f64, change: f64, quantum: f64) {
        let suspicious = self.latch.is_raised() || self.cusum.value() > 0.5 * c.h;
        let floor = (FLOOR * self.m.abs()).max(rounding(quantum)).max(f64::MIN_POSITIVE);
        let rate = CHANGE_RATE.max(1.0 / f64::from(self.n - 1));
        let changes = f64::from(self.changes);
        let change = if self.n > QUIET { change.min(4.0 * changes) } else { change };
        self.changes = (changes + rate * (change / 0.787 - changes)).max(floor) as f32;
        let cut = 2.5 * self.s;
        self.m += match d {
            d if d < 0.0 => DOWN * d,
            d if suspicious => 0.1 * UP * d.min(cut),
            d => UP * d.min(cut),
        };
        if !suspicious || d < 0.0 {
            let rate = SCALE_RATE.max(1.0 / f64::from(self.n));
            self.s = (self.s + rate * (d.abs().min(cut) / 0.787 - self.s)).max(floor);
        }
    }

    fn judge(&mut self, c: &Config, step: &mut JudgedStep<'_>, b: f64, scale: &LossScale) {
        let held = b.min(self.last) - self.m;
        let printed = PRINTED * step.sample.q.loss;
        let nat = scale.nat(self.m);
        let least = |rise: f64| (rise * nat).max(c.sigmas * self.s).max(printed);
        let small =
            (SMALL * self.m.abs()).max(SMALL_SIGMAS * self.s.min(f64::from(self.changes))).max(printed);
        if self.lasting == 0 {
            self.ceiling = self.highest[0].max(self.highest[1]);
        }
        let enough = if self.lasting > 0 { UNDER_WAY * small } else { small };
        let rises = b - self.m > enough && b > f64::from(self.ceiling);
        self.lasting = if rises && !scale.is_signed() { self.lasting.saturating_add(1) } else { 0 };
        let severity = if self.lasting >= SMALL_PAGE && held > SMALL_NATS * nat {
            Some(Severity::Page)
        } else if self.lasting >= SMALL_TICKET {
            Some(Severity::Ticket)
        } else if self.cusum.value() <= c.h || held < least(c.ticket_rise) {
            None
        } else if held < least(c.page_rise) {
            Some(Severity::Ticket)
        } else {
            Some(Severity::Page)
        };
        if self.latch.is_raised() {
            return self.follow(c, step, b, severity, nat);
        }
        let Some(severity) = severity.filter(|s| self.latch.raise(*s)) else { return };
        (self.onset, self.expected, self.open_for) = (self.cusum.onset(), self.m, 0);
        step.raise(self.finding(b, self.sentence(b)), severity);
    }

    fn follow(
        &mut self,
        c: &Config,
        step: &mut JudgedStep<'_>,
        b: f64,
        severity: Option<Severity>,
        nat: f64,
    ) {
        self.open_for += 1;
        let near =
            (0.5 * c.ticket_rise * nat).min(0.5 * SMALL * self.m.abs()).max(PRINTED * step.sample.q.loss);
        let back = b.max(self.last) - self.expected < near;
        let accepted = self.open_for >= c.accept_after;
        if back || accepted {
            let why =
                if back { "loss is back at" } else { "loss stays where it is, taken as the new level:" };
            self.latch.clear();
            self.cusum.reset();
            self.m = b;
            step.clear(self.finding(b, clause!("{what} {now}", what = why, now = b)));
        } else if severity.is_some_and(|s| self.latch.raise(s)) {
            step.raise(self.finding(b, self.sentence(b)), Severity::Page);
        }
    }

    fn sentence(&self, b: f64) -> Clause {
        clause!(
            "loss has settled at {now}, {over} above the {before} it had before step {since_step}",
            now = b,
            over = b - self.expected,
            before = self.expected,
            since_step = Fact::Step(self.onset),
        )
    }

    fn finding(&self, b: f64, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind: Kind::LossShift,
            signal: "loss",
            start_step: self.onset,
            value: b,
            expected: self.expected,
            score: (b - self.expected) / self.s,
            why: why.into(),
        }
    }
}

impl StepDetector for LossShift {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let s = step.sample;
        let Some(loss) = s.loss.filter(|v| v.is_finite()) else { return };
        if !c.enabled || s.interval == 0 {
            return;
        }
        // Steps that are done again have the loss that they had then, which was higher.
        let anew = self.cadence.add(s.step, s.interval).changed || shared.rewound;
        if anew && !self.latch.is_raised() {
            self.n = 0;
            self.blocks.clear();
            self.cusum.reset();
        }
        if let Some(b) = self.blocks.add(s.step, loss) {
            self.block(c, step, b, &shared.loss);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{Noise, healthy, judge, open, raised};
    use crate::sample::StepSample;

    /// A small batch: heavy noise, and a blip every few hundred steps.
    fn noisy(seed: u64, n: i64, rise: f64) -> Vec<StepSample> {
        let mut noise = Noise::new(seed);
        let mut run = healthy(seed, n);
        for s in &mut run {
            let blip = if noise.uniform() < 0.004 { 1.5 } else { 0.0 };
            let shift = if s.step > n / 2 { rise } else { 0.0 };
            s.loss = s.loss.map(|v| v + 0.2 * noise.normal() + blip + shift);
        }
        run
    }

    #[test]
    fn a_shift_under_the_noise_is_found() {
        let findings = judge(&noisy(61, 2000, 0.6));
        let found = raised(&findings);
        assert!(
            found.iter().any(|(k, s, step)| *k == Kind::LossShift && *s == Severity::Page && *step <= 1048),
            "{found:?}"
        );
    }

    #[test]
    fn noise_alone_raises_nothing() {
        for seed in 0..10 {
            let findings = judge(&noisy(seed, 4000, 0.0));
            let found: Vec<_> =
                raised(&findings).into_iter().filter(|(k, ..)| *k == Kind::LossShift).collect();
            assert!(found.is_empty(), "{seed}: {found:?}");
        }
    }

    #[test]
    fn it_ends_when_the_loss_is_back() {
        let mut run = noisy(62, 2000, 0.6);
        run[1200..].iter_mut().for_each(|s| s.loss = s.loss.map(|v| v - 0.6));
        assert!(open(&judge(&run)).is_empty());
    }
}

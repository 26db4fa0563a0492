//! Detects a few slow steps that become ever slower while the usual step stays as it is:
//! unsynchronised garbage collection, a growing cache, a loader that rescans. No median and no p50
//! alert can show it.
//!
//! A slow step is 8 % or more above the usual one. A ticket when the excesses over the usual step
//! rise steadily and by half or more in all, and the slow steps cost at least 0.5 % of the time. A
//! tail may grow within hundreds of steps or many thousands, so two trends are looked at: that
//! of the last 32 slow steps, and that of 16 medians of 8 slow steps each, by which the growth is
//! measured too. Either must reach a Kendall's S of five standard deviations without a trend,
//! `√(n(n−1)(2n+5)/18)`: 308 of 496, and 111 of 120; as medians of 8 hardly err, 80 do.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::{PRINTED, Shared, Source};
use crate::detector::{JudgedStep, StepDetector};
use crate::stats::block::{BLOCK, Blocks};
use crate::stats::latch::Latch;
use crate::stats::median::Window;
use crate::stats::trend::kendall;
use stepwatch_model::{Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Share above the usual step that makes a step slow.
    pub slow: f64,
    /// Growth of the excess, and the share of time it must cost: engineering limits.
    pub growth: f64,
    pub cost: f64,
    /// Kendall's S of 32 slow steps, 496 if every one is slower than all before it; and of 16
    /// medians, 120. Without a trend S is nearly normal: 308 is 5.0 of its standard deviation
    /// (3·10⁻⁷ lies above), 80 of the medians 3.6 (1.6·10⁻⁴).
    pub kendall: i32,
    pub kendall_medians: i32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, slow: 0.08, growth: 0.5, cost: 0.005, kendall: 308, kendall_medians: 80 }
    }
}

/// The number of slow steps, and of medians of 8 of them, in a trend.
const RECENT: usize = 32;
const MEDIANS: usize = 16;
/// The number of blocks below its beginning that end the incident.
const FLAT: u32 = 4;
/// The weight of a sample in the cost.
const COST_RATE: f64 = 1.0 / 256.0;
/// A step this many times the usual one is a stall, and left to [`super::stall`]: an engineering
/// limit.
const STALL: f64 = 4.0;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GcTail {
    latch: Latch,
    flat: u32,
    cost: f64,
    /// `None` until a step was slow.
    tail: Option<Box<Tail>>,
}

/// The slow steps.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Tail {
    recent: Window<RECENT>,
    block: Blocks,
    /// Medians of the excess, and the steps at which their blocks began.
    medians: Window<MEDIANS>,
    first: [i64; MEDIANS],
}

impl Tail {
    /// Records the excess of a slow step. Returns the growth at the end of a block, if there is
    /// any.
    fn add(&mut self, c: &Config, step: i64, excess: f64) -> Option<Growth> {
        self.recent.push(excess);
        let block = self.block.add(step, excess)?;
        self.medians.push(block.median);
        self.first.rotate_left(1);
        self.first[MEDIANS - 1] = block.first;
        self.growth(c)
    }

    /// The growth, if there is any: of the medians of many slow steps, or of the last ones.
    fn growth(&self, c: &Config) -> Option<Growth> {
        let medians = self.medians.iter().collect::<Vec<_>>();
        let over = |blocks: usize, steady: bool| {
            let from = medians.len().checked_sub(blocks)?;
            let since = self.first[MEDIANS - blocks];
            Some(Growth { from: medians[from], to: *medians.last()?, since, steady })
        };
        let grown = |g: &Growth| g.steady && g.to > g.from * (1.0 + c.growth);
        let long = over(MEDIANS, kendall(&medians) >= c.kendall_medians);
        let recent = self.recent.iter().collect::<Vec<_>>();
        long.filter(grown).or_else(|| over(RECENT / BLOCK, kendall(&recent) >= c.kendall))
    }
}

impl GcTail {
    fn judge(&mut self, c: &Config, step: &mut JudgedStep<'_>, g: &Growth, usual: f64) {
        let grown = g.steady && g.to > g.from * (1.0 + c.growth) && self.cost > c.cost;
        if grown && self.latch.raise(Severity::Ticket) {
            let why = clause!(
                "slow steps grow slower: {before} % above the usual step at step {since_step}, {now} % now, while the usual \
                 step stays at {usual_seconds} s",
                before = Fact::percent(g.from, 0),
                since_step = Fact::Step(g.since),
                now = Fact::percent(g.to, 0),
                usual_seconds = usual,
            );
            let cost = clause!("they cost {cost} % of the time", cost = Fact::percent(self.cost, 1));
            let why = Sentence::from(why).and(cost);
            step.raise(finding(g, usual, why), Severity::Ticket);
        }
        // Growth slows down long before it ends: only a fall ends the incident.
        self.flat = if g.to < g.from { self.flat.saturating_add(1) } else { 0 };
        if self.flat >= FLAT && self.latch.clear() {
            let why =
                clause!("slow steps are {now} % above the usual one again", now = Fact::percent(g.to, 0));
            step.clear(finding(g, usual, why));
        }
    }
}

/// The growth from one excess to another, and the step since which it grows.
struct Growth {
    from: f64,
    to: f64,
    since: i64,
    steady: bool,
}

fn finding(g: &Growth, usual: f64, why: impl Into<Sentence>) -> Draft {
    Draft {
        kind: Kind::GcTail,
        signal: "step_time",
        start_step: g.since,
        value: usual * (1.0 + g.to),
        expected: usual * (1.0 + g.from),
        score: g.to / g.from,
        why: why.into(),
    }
}

impl StepDetector for GcTail {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let enabled = c.enabled && shared.speed.source() == Source::StepTime;
        let Some(timing) = shared.speed.now.filter(|_| enabled) else { return };
        let Some(ratio) = timing.ratio.filter(|r| *r < STALL) else { return };
        let slow = ratio > 1.0 + c.slow.max(PRINTED * timing.grain);
        self.cost += (if slow { ratio - 1.0 } else { 0.0 } - self.cost) * COST_RATE;
        if !slow || timing.expected_pause {
            return;
        }
        if let Some(growth) = self.tail.get_or_insert_default().add(c, step.sample.step, ratio - 1.0) {
            self.judge(c, step, &growth, timing.seconds / ratio);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{Noise, healthy, judge, raised};
    use crate::sample::StepSample;

    /// A slow step every 10 to 20, `excess(step)` above the usual.
    fn tail(excess: impl Fn(f64) -> f64) -> Vec<StepSample> {
        let mut noise = Noise::new(101);
        let mut run = healthy(101, 6000);
        let mut next = 10;
        for s in &mut run {
            if s.step == next {
                let slow = 1.0 + excess(s.step as f64) * (1.0 + 0.1 * noise.normal());
                s.step_time = s.step_time.map(|t| t * slow);
                next += 10 + (10.0 * noise.uniform()) as i64;
            }
        }
        run
    }

    #[test]
    fn slow_steps_that_grow_are_found_and_steady_ones_are_not() {
        let found = raised(&judge(&tail(|step| 0.1 + step * 1e-4)));
        assert!(matches!(found[..], [(Kind::GcTail, Severity::Ticket, 500..2000)]), "{found:?}");
        assert!(raised(&judge(&tail(|_| 0.3))).is_empty());
    }
}

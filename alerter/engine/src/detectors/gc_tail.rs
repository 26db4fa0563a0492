//! A few slow steps that grow slower and slower while the usual step stays as it is: unsynchronised garbage collection, a growing
//! cache, a loader that rescans. No median and no p50 alert can see it.
//!
//! A slow step is 8 % or more above the usual one. The excess over the usual step is taken in medians of 8 slow
//! steps; a ticket when 16 such medians rise steadily (Kendall's S ≥ 80 of 120), by half or more in all, and
//! the slow steps cost at least 0.5 % of the time.

use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::shared::{PRINTED, Shared, Source};
use crate::detector::StepDetector;
use crate::message::number;
use crate::sample::StepSample;
use crate::stats::block::Blocks;
use crate::stats::latch::Latch;
use crate::stats::median::Window;
use crate::stats::trend::kendall;
use crate::verdict::{Kind, Severity, Verdict};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Share above the usual step that makes a step slow.
    pub slow: f64,
    /// Growth of the excess, and the share of time it must cost.
    pub growth: f64,
    pub cost: f64,
    /// Kendall's S of 16 medians: 120 if every one is above all before it.
    pub kendall: i32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, slow: 0.08, growth: 0.5, cost: 0.005, kendall: 80 }
    }
}

const MEDIANS: usize = 16;
/// Memory of the cost, in samples.
const COST_RATE: f64 = 1.0 / 256.0;
/// A step this many times the usual one is a stall, another story.
const STALL: f64 = 4.0;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GcTail {
    config: Config,
    latch: Latch,
    block: Blocks,
    /// Medians of the excess, and the step at which the oldest began.
    medians: Window<MEDIANS>,
    first: [i64; MEDIANS],
    cost: f64,
    flat: u32,
}

impl GcTail {
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            latch: Latch::default(),
            block: Blocks::default(),
            medians: Window::default(),
            first: [0; MEDIANS],
            cost: 0.0,
            flat: 0,
        }
    }

    pub fn configure(&mut self, config: &Config) {
        self.config = config.clone();
    }

    fn judge(&mut self, s: &StepSample, usual: f64, out: &mut Vec<Verdict>) {
        if !self.medians.is_full() {
            return;
        }
        let medians: Vec<f64> = self.medians.iter().collect();
        let (oldest, newest) = (medians[0], medians[MEDIANS - 1]);
        let growing = kendall(&medians) >= self.config.kendall;
        let grown = growing && newest > oldest * (1.0 + self.config.growth) && self.cost > self.config.cost;
        if grown && self.latch.raise(Severity::Ticket) {
            let why = format!(
                "slow steps grow slower: {:.0} % above the usual step at step {}, {:.0} % now, while the usual step stays at {} s; they cost {:.1} % of the time",
                100.0 * oldest,
                self.first[0],
                100.0 * newest,
                number(usual),
                100.0 * self.cost
            );
            out.push(finding(self.first[0], usual, oldest, newest, why).raise(s, Severity::Ticket));
        }
        // Growth slows down long before it ends: only a fall ends the incident.
        self.flat = if newest < oldest { self.flat + 1 } else { 0 };
        if self.flat >= 4 && self.latch.clear() {
            let why = format!("slow steps are {:.0} % above the usual one again", 100.0 * newest);
            out.push(finding(self.first[0], usual, oldest, newest, why).clear(s));
        }
    }
}

fn finding(start_step: i64, usual: f64, oldest: f64, newest: f64, why: String) -> Finding {
    Finding {
        kind: Kind::GcTail,
        signal: "step_time",
        start_step,
        value: usual * (1.0 + newest),
        expected: usual * (1.0 + oldest),
        score: newest / oldest,
        why,
    }
}

impl StepDetector for GcTail {
    fn step(&mut self, s: &StepSample, shared: &mut Shared, out: &mut Vec<Verdict>) {
        let enabled = self.config.enabled && shared.speed.source() == Source::StepTime;
        let Some(timing) = shared.speed.now.filter(|_| enabled) else { return };
        let Some(ratio) = timing.ratio.filter(|r| *r < STALL) else { return };
        let slow = ratio > 1.0 + self.config.slow.max(PRINTED * timing.grain);
        self.cost += (if slow { ratio - 1.0 } else { 0.0 } - self.cost) * COST_RATE;
        if !slow || timing.expected_pause {
            return;
        }
        if let Some(block) = self.block.add(s.step, ratio - 1.0) {
            self.medians.push(block.median);
            self.first.rotate_left(1);
            self.first[MEDIANS - 1] = block.first;
            self.judge(s, timing.seconds / ratio, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{Noise, healthy, judge, raised};

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
        assert!(matches!(found[..], [(Kind::GcTail, Severity::Ticket, 1000..4000)]), "{found:?}");
        assert!(raised(&judge(&tail(|_| 0.3))).is_empty());
    }
}

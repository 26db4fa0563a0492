//! How many steps apart a signal is logged, and when that changes for good.
//!
//! Trainers log every step at first and every 500th later, or only when they evaluate: statistics
//! of one cadence do not hold for another.

use serde::{Deserialize, Serialize};

/// A cadence is another one when it differs by this factor (an engineering limit: a line that is
/// lost doubles the interval),
const FACTOR: i64 = 3;
/// and has done so for this many samples.
const SAMPLES: u8 = 3;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Cadence {
    last: Option<i64>,
    usual: i64,
    off: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// Steps since the last sample.
    pub interval: i64,
    /// The signal now comes at another cadence than it used to.
    pub changed: bool,
}

impl Cadence {
    /// Takes the step of a sample that carries the signal; `interval` is used where there is none
    /// before it.
    pub fn add(&mut self, step: i64, interval: i64) -> Beat {
        let interval = self.last.map_or(interval, |last| step.saturating_sub(last)).max(1);
        self.last = Some(step);
        if self.usual == 0 {
            self.usual = interval;
        }
        let off =
            interval >= self.usual.saturating_mul(FACTOR) || interval.saturating_mul(FACTOR) <= self.usual;
        self.off = if off { self.off + 1 } else { 0 };
        let changed = self.off >= SAMPLES;
        if changed {
            self.usual = interval;
            self.off = 0;
        }
        Beat { interval, changed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_not_a_change() {
        let mut c = Cadence::default();
        let steps = (0..50).chain([500, 501, 502]).chain((1000..5000).step_by(500));
        let changed: Vec<i64> = steps.filter(|step| c.add(*step, 1).changed).collect();
        assert_eq!(changed, [2000], "the third of the 500s");
        assert_eq!(c.add(5000, 1), Beat { interval: 500, changed: false });
    }
}

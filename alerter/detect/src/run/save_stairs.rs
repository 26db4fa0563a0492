//! Whether each save makes the steps that follow slower: a leak, or memory that gets fragmented.
//!
//! A tread is the level between two saves: the median of the first 16 and of the last 16 steps
//! outside of windows, after 3 steps of warm-up. Stairs are at least 4 saves in a row at each of
//! which the level rose by more than 2.5 of its standard error, and by 2 % in all, while the level
//! between the saves changed by no more than half of that. A slope that grows between the saves is
//! no stairs, and neither is a rise from which the run recovers before the next save.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::save_windows::{FLOOR, OF_MEDIAN, keep, location_scale};

/// Steps after a save that do not count.
const WARM_UP: u8 = 3;
/// Steps of each end of a tread.
const HALF: usize = 16;
/// The most treads kept.
const TREADS: usize = 9;
/// Rises in a row.
const RISES: u32 = 4;
/// A rise, in standard errors of the difference of two medians. By chance 0.6 % of a normal
/// distribution lie above, and 4 in a row in 1.5·10⁻⁹.
const RISE: f64 = 2.5;
/// All rises together, and the share of them that may be of the time between: engineering limits.
const TOTAL: f64 = 0.02;
const BETWEEN: f64 = 0.5;

/// The level between two saves, in seconds of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Tread {
    first: f32,
    last: f32,
    /// Standard deviation of a step, as a share of the level.
    sigma: f32,
}

/// The levels between the last saves of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stairs {
    skipped: u8,
    first: VecDeque<f32>,
    last: VecDeque<f32>,
    treads: VecDeque<Tread>,
}

/// What the last saves did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rises {
    pub(crate) saves: u32,
    /// Seconds of a step before the first and after the last of them.
    pub(crate) before: f64,
    pub(crate) now: f64,
}

impl Tread {
    /// Logarithm of the rise from this one to the next.
    fn rise_to(&self, next: &Self) -> f64 {
        (f64::from(next.first) / f64::from(self.last)).ln()
    }

    fn is_below(&self, next: &Self) -> bool {
        let sigma = f64::from(self.sigma.max(next.sigma)).max(FLOOR);
        self.rise_to(next) > RISE * OF_MEDIAN * sigma * (2.0 / HALF as f64).sqrt()
    }
}

impl Stairs {
    /// Takes a step outside of windows.
    pub(super) fn step(&mut self, secs: f64) {
        if self.skipped < WARM_UP {
            self.skipped += 1;
        } else if self.first.len() < HALF {
            self.first.push_back(secs as f32);
        } else {
            keep(&mut self.last, secs as f32, HALF);
        }
    }

    /// A save ended. One that follows the save before too soon is no tread.
    pub(super) fn saved(&mut self) {
        if self.last.len() == HALF {
            let tread = self.tread(&self.last);
            keep(&mut self.treads, tread, TREADS);
        }
        self.skipped = 0;
        self.first.clear();
        self.last.clear();
    }

    fn tread(&self, last: &VecDeque<f32>) -> Tread {
        let ((first, a), (last, b)) = (location_scale(&self.first), location_scale(last));
        Tread { first: first as f32, last: last as f32, sigma: (a / first).max(b / last) as f32 }
    }

    /// The rises of the last saves, if each save made the steps slower.
    pub(crate) fn rises(&self) -> Option<Rises> {
        // The level after the last save is known with its first steps.
        let open = (self.first.len() == HALF).then(|| self.tread(&self.first));
        let treads: Vec<Tread> = self.treads.iter().copied().chain(open).collect();
        let (mut saves, mut risen, mut oldest) = (0, 0.0, None);
        for pair in treads.windows(2).rev() {
            let [a, b] = pair else { continue };
            if !a.is_below(b) {
                break;
            }
            (saves, risen, oldest) = (saves + 1, risen + a.rise_to(b), Some(a));
        }
        let (from, to) = oldest.zip(treads.last()).filter(|_| saves >= RISES)?;
        let total = from.rise_to(to);
        let is_flat = (total - risen).abs() <= BETWEEN * risen;
        let (before, now) = (f64::from(from.last), f64::from(to.first));
        (is_flat && total >= TOTAL.ln_1p()).then_some(Rises { saves, before, now })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Saves after every 60 steps, between which `secs` of the save and the place is a step's time.
    fn run(saves: usize, secs: impl Fn(usize, f64) -> f64) -> Stairs {
        let (mut stairs, mut seed) = (Stairs::default(), 11_u64);
        for save in 0..saves {
            for step in 0..60 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let noise = (seed >> 33) as f64 / f64::from(1u32 << 30) - 1.0;
                stairs.step(secs(save, f64::from(step) / 60.0) * (1.0 + 0.004 * noise));
            }
            stairs.saved();
        }
        stairs
    }

    #[test]
    fn a_level_that_rises_with_each_save_is_stairs() {
        let step = |save: usize, _: f64| 2.0 * 1.01_f64.powi(save as i32);
        assert_eq!(run(4, step).rises(), None, "three saves lie between four levels");
        let found = run(5, step).rises().expect("four rises");
        assert!(found.saves == 4 && (found.now / found.before - 1.0406).abs() < 0.003, "{found:?}");
        assert_eq!(run(30, step).rises().map(|found| found.saves), Some(8), "so many are kept");
    }

    #[test]
    fn a_slope_a_recovery_noise_and_a_jump_are_no_stairs() {
        assert_eq!(run(9, |save, place| 2.0 * 1.01_f64.powf(save as f64 + place)).rises(), None, "a slope");
        assert_eq!(run(9, |_, place| 2.0 + 0.1 * (1.0 - place)).rises(), None, "it recovers");
        assert_eq!(run(200, |_, _| 2.0).rises(), None, "noise");
        assert_eq!(run(9, |save, _| if save < 5 { 2.0 } else { 2.4 }).rises(), None, "a jump");
        let odd = |save: usize, _: f64| 2.0 * 1.01_f64.powi(save as i32) * if save == 7 { 0.97 } else { 1.0 };
        assert_eq!(run(9, odd).rises(), None, "the row was broken by the last save but one");
    }

    #[test]
    fn saves_that_follow_each_other_at_once_have_no_level_between() {
        let mut stairs = Stairs::default();
        for save in 0..50 {
            (0..20).for_each(|_| stairs.step(2.0 + f64::from(save)));
            stairs.saved();
        }
        assert_eq!((stairs.treads.len(), stairs.rises()), (0, None));
    }
}

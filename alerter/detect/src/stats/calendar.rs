//! Estimates the parts of a value that depend on the hour of the day and the day of the week: load
//! that comes with the working day, a cool night.
//!
//! By the wall clock (UTC: the hours of a place are always the same distance from it, but for
//! summer time, which is learned within days). The mean of each hour is held against a slow mean of
//! a week; its excess is split into a share of the hour and one of the weekday. It counts only once
//! it has proved itself: two days known, and an error of forecasts below 0.7 of that without it.

use serde::{Deserialize, Serialize};

use stepwatch_model::time::Ts;

const HOURS: usize = 24;
const DAYS: usize = 7;
const HOUR_MS: i64 = 3_600_000;
/// Weight of an hour in the weekly mean, in its own bin, and in the errors.
const MEAN_RATE: f64 = 1.0 / 168.0;
const BIN_RATE: f64 = 0.3;
const ERROR_RATE: f64 = 1.0 / 48.0;
/// Hours after which it may count, and what it must gain: engineering limits. Two days show every
/// hour twice.
const PROVEN_HOURS: u32 = 48;
const GAIN: f64 = 0.7;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Calendar {
    hours: [f32; HOURS],
    days: [f32; DAYS],
    mean: f64,
    learned: u32,
    error_with: f64,
    error_without: f64,
    /// The hour that is summed up now.
    hour: Option<i64>,
    sum: f64,
    n: u32,
}

impl Calendar {
    pub fn add(&mut self, ts: Ts, value: f64) {
        if !value.is_finite() {
            return;
        }
        let hour = ts.0.div_euclid(HOUR_MS);
        if self.hour.is_some_and(|had| had != hour) {
            self.learn();
        }
        self.hour = Some(hour);
        self.sum += value;
        self.n = self.n.saturating_add(1);
    }

    /// The part of a value at `ts` that is due to the hour and the day; 0 until that is certain.
    pub fn share(&self, ts: Ts) -> f64 {
        if self.learned < PROVEN_HOURS || self.error_with >= GAIN * self.error_without {
            return 0.0;
        }
        // Between the middles of two hours.
        let at = ts.0.saturating_sub(HOUR_MS / 2);
        let (hour, part) = (at.div_euclid(HOUR_MS), at.rem_euclid(HOUR_MS) as f64 / HOUR_MS as f64);
        (1.0 - part) * self.bin(hour) + part * self.bin(hour + 1)
    }

    /// How far [`Calendar::share`] may be off at `ts`: where the hours bend, the moment at which
    /// they do is not known.
    pub fn doubt(&self, ts: Ts) -> f64 {
        let hour = ts.0.saturating_sub(HOUR_MS / 2).div_euclid(HOUR_MS);
        let bend = |h: i64| (self.bin(h - 1) - 2.0 * self.bin(h) + self.bin(h + 1)).abs();
        0.5 * bend(hour).max(bend(hour + 1))
    }

    fn bin(&self, hour: i64) -> f64 {
        let (h, d) = places(hour);
        f64::from(self.hours[h]) + f64::from(self.days[d])
    }

    fn learn(&mut self) {
        let (Some(hour), true) = (self.hour, self.n > 0) else { return };
        let mean = self.sum / f64::from(self.n);
        (self.sum, self.n) = (0.0, 0);
        self.learned = self.learned.saturating_add(1);
        self.mean += (mean - self.mean) * MEAN_RATE.max(1.0 / f64::from(self.learned));
        let excess = mean - self.mean;
        let rest = excess - self.bin(hour);
        // The first round of a day fills the bins; it forecasts nothing.
        if self.learned > HOURS as u32 {
            self.error_with += (rest.abs() - self.error_with) * ERROR_RATE;
            self.error_without += (excess.abs() - self.error_without) * ERROR_RATE;
        }
        let (h, d) = places(hour);
        let rate = if self.learned <= HOURS as u32 { 1.0 } else { BIN_RATE };
        self.hours[h] += (rate * rest) as f32;
        self.days[d] += (rate * rest / HOURS as f64) as f32;
    }
}

/// Hour of the day, and day of the week.
fn places(hour: i64) -> (usize, usize) {
    let day = hour.div_euclid(HOURS as i64);
    (hour.rem_euclid(HOURS as i64) as usize, day.rem_euclid(DAYS as i64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::Noise;

    fn rest(days: i64, value: impl Fn(i64) -> f64) -> f64 {
        let (mut c, mut noise) = (Calendar::default(), Noise::new(1));
        let mut error = 0.0;
        for i in 0..days * 24 * 12 {
            let ts = Ts(1_795_219_200_000 + i * 300_000);
            let x = value(i / 12) + 0.1 * noise.normal();
            if i >= (days - 7) * 24 * 12 {
                error += (x - c.share(ts) - 50.0).abs() / (7.0 * 24.0 * 12.0);
            }
            c.add(ts, x);
        }
        error
    }

    #[test]
    fn learns_days_and_weeks_and_leaves_noise_alone() {
        let daily = |hour: i64| 50.0 + if (8..18).contains(&(hour % 24)) { 10.0 } else { -50.0 / 7.0 };
        assert!(rest(21, daily) < 1.5, "{}", rest(21, daily));
        let weekly = |hour: i64| daily(hour) + if hour / 24 % 7 < 5 { 2.0 } else { -5.0 };
        assert!(rest(56, weekly) < 2.5, "{}", rest(56, weekly));
        assert!(rest(21, |_| 50.0) < 0.12);
    }
}

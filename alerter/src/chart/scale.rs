//! Maps values to positions on an axis, and finds round numbers for its labels.

/// The ratios of highest to lowest value from which an axis is logarithmic: always, and if most
/// values would be compressed at the lower end.
const LOG_FROM: f64 = 100.0;
const LOG_PRESSED: f64 = 4.0;
/// Values are compressed if this share of them is within that share of the range.
const MOST: f64 = 0.95;
const PRESSED: f64 = 0.2;
/// The share of the range that is left free at each end.
const PAD: f64 = 0.06;
/// The largest value, so that the difference of two values does not overflow.
const LARGEST: f64 = 1e300;
/// The most ticks of one axis.
const MAX_TICKS: usize = 16;
/// Suffixes of large numbers on an axis.
const LARGE: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// The bounds as they are drawn: logarithms if `log`.
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// A scale that covers all finite values.
    pub fn over(values: impl IntoIterator<Item = f64>) -> Self {
        let finite = values.into_iter().filter(|v| v.is_finite());
        let mut values: Vec<f64> = finite.map(|v| v.clamp(-LARGEST, LARGEST)).collect();
        values.sort_by(f64::total_cmp);
        let (Some(mut low), Some(mut high)) = (values.first().copied(), values.last().copied()) else {
            return Self { low: 0.0, high: 1.0, log: false };
        };
        let most = values[((values.len() - 1) as f64 * MOST) as usize];
        let pressed = most - low < PRESSED * (high - low);
        let log = low > 0.0 && (high / low >= LOG_FROM || pressed && high / low >= LOG_PRESSED);
        if log {
            (low, high) = (low.log10(), high.log10());
        }
        let pad = PAD * (high - low);
        // A constant line is drawn in the middle.
        let pad = if pad > high.abs() * 1e-9 { pad } else { (high.abs() * 0.05).max(f64::MIN_POSITIVE) };
        Self { low: low - pad, high: high + pad, log }
    }

    /// The axis of steps: integers, without padding.
    pub fn steps(from: f64, to: f64) -> Self {
        Self { low: from, high: to.max(from + 1.0), log: false }
    }

    pub fn is_log(&self) -> bool {
        self.log
    }

    /// The position of any value, from 0 at the bottom to 1 at the top.
    pub fn at(&self, v: f64) -> f64 {
        let v = match self.log {
            true if v > 0.0 => v.log10(),
            true => self.low,
            false => v.clamp(-LARGEST, LARGEST),
        };
        let share = (v - self.low) / (self.high - self.low);
        if share.is_nan() { 0.5 } else { share.clamp(0.0, 1.0) }
    }

    /// About `about` round values within the scale, each with its label.
    pub fn ticks(&self, about: usize) -> Vec<(f64, String)> {
        let ticks = if self.log { self.decades(about) } else { self.multiples(about) };
        ticks.into_iter().filter(|(v, _)| v.is_finite()).take(MAX_TICKS).collect()
    }

    fn multiples(&self, about: usize) -> Vec<(f64, String)> {
        // Rounding up the step reduces the number of ticks.
        let step = nice((self.high - self.low) / (about + 2) as f64);
        if !(step.is_normal() && step > 0.0) {
            return Vec::new();
        }
        let first = (self.low / step).ceil();
        (0..=MAX_TICKS)
            .map(|i| (first + i as f64) * step)
            .take_while(|v| *v <= self.high)
            .map(|v| (v, label(v, step)))
            .collect()
    }

    /// Powers of ten, with twice and five times each if there are few.
    fn decades(&self, about: usize) -> Vec<(f64, String)> {
        let (first, last) = (self.low.ceil() as i32, self.high.floor() as i32);
        let every = ((last - first) as usize / about.max(1) + 1).min(MAX_TICKS * 64);
        let tick = |v: f64| (v, label(v, v));
        if last - first >= 2 {
            return (first..=last).step_by(every).map(|e| tick(10f64.powi(e))).collect();
        }
        let fine = (first - 1..=last).flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e)));
        fine.filter(|v| (self.low..=self.high).contains(&v.log10())).map(tick).collect()
    }
}

/// The smallest 1, 2 or 5 times a power of ten that is not below `v`.
fn nice(v: f64) -> f64 {
    let power = 10f64.powi(v.log10().floor().clamp(-320.0, 300.0) as i32);
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= v).unwrap_or(10.0 * power)
}

/// A value with enough digits to distinguish it from one that is `step` away.
pub fn label(v: f64, step: f64) -> String {
    let step = step.abs();
    if v.abs() < step / 2.0 {
        return "0".into();
    }
    if v.abs() >= 1e15 || v.abs() < 1e-4 {
        return format!("{v:.0e}");
    }
    let (unit, suffix) = if v.abs() >= 1e5 {
        LARGE.into_iter().find(|(unit, _)| v.abs() >= *unit).unwrap_or((1.0, ""))
    } else {
        (1.0, "")
    };
    let digits = (-(step / unit).log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{:.digits$}{suffix}", v / unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(values: &[f64], about: usize) -> Vec<String> {
        Scale::over(values.iter().copied()).ticks(about).into_iter().map(|(_, l)| l).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(&[2.31, 2.74], 4), ["2.3", "2.4", "2.5", "2.6", "2.7"]);
        assert_eq!(labels(&[0.0, 1_250_000.0], 3), ["0", "500k", "1.0M"]);
        assert_eq!(labels(&[0.01, 3000.0], 4), ["0.01", "1", "100"]);
        assert_eq!(labels(&[0.9, 95.0, 90.0], 4), ["1", "10", "100"]);
        assert_eq!(
            labels(
                &[
                    6.9, 7.1, 7.0, 30.0, 7.0, 7.1, 7.0, 6.9, 7.0, 7.1, 7.2, 7.0, 7.1, 7.0, 7.0, 6.9, 7.0,
                    7.1, 7.0, 7.1, 7.0
                ],
                4
            ),
            ["10", "20"]
        );
        assert_eq!(labels(&[3e-5, 9e-5], 2), ["4e-5", "6e-5", "8e-5"]);
    }

    #[test]
    fn a_flat_line_stands_in_the_middle() {
        for v in [0.0, 2.5, -7.0, 1e300, 5e-324] {
            let at = Scale::over([v]).at(v);
            assert!((at - 0.5).abs() < 0.01, "{v}: {at}");
        }
        assert_eq!(Scale::over([f64::NAN]).at(f64::NAN), 0.5);
    }

    proptest! {
        #[test]
        fn every_value_has_a_place_in_order(values in prop::collection::vec(any::<f64>(), 0..40), about in 0usize..9) {
            let scale = Scale::over(values.iter().copied());
            let mut finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
            finite.sort_by(f64::total_cmp);
            let places: Vec<f64> = finite.iter().map(|v| scale.at(*v)).collect();
            prop_assert!(places.iter().all(|p| (0.0..=1.0).contains(p)), "{places:?}");
            prop_assert!(places.windows(2).all(|w| w[0] <= w[1]), "{places:?}");
            for v in values {
                prop_assert!((0.0..=1.0).contains(&scale.at(v)));
            }
            prop_assert!(scale.ticks(about).len() <= MAX_TICKS);
        }
    }
}

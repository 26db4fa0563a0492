//! Compares the values of one rank's series with those of the previous report.

use std::collections::BTreeMap;
use std::hash::{Hash as _, Hasher};

/// The most series of one rank.
pub(super) const MAX_SERIES: usize = 512;

/// A quantity as a protocol reports it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value {
    /// The current value; it is unknown when it was set.
    Gauge(f64),
    /// A value that was measured for this report.
    Measured(f64),
    /// A sum since `start` (Unix seconds, if known).
    Total { total: f64, start: Option<f64> },
    /// The growth of a sum.
    Increment(f64),
    /// The number and the sum of measurements, since `start` or since the last report.
    Durations { count: f64, sum: f64, cumulative: bool, start: Option<f64> },
}

/// A value compared with the previous one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Gained {
    /// The gauge, the total, or the mean of the measurements since the last report.
    pub(crate) value: f64,
    /// The growth of a total.
    pub(crate) growth: f64,
    /// The growth per second, once there are two reports.
    pub(crate) rate: Option<f64>,
    /// The number of measurements since the last report.
    pub(crate) count: f64,
    pub(crate) changed: bool,
    /// Whether the total is from before this exporter started, so that its growth is unknown.
    pub(crate) unknown: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Series {
    last: BTreeMap<Box<str>, Last>,
    bytes: usize,
}

/// The approximate bytes of a series besides its name.
const SERIES_BYTES: usize = 96;

#[derive(Debug, Clone, Copy, Default)]
struct Last {
    value: f64,
    count: f64,
    time: f64,
    start: Option<f64>,
}

impl Value {
    /// Hashes the value, so that NaN equals NaN.
    pub(crate) fn fingerprint(&self, hasher: &mut impl Hasher) {
        match self {
            Self::Gauge(v) | Self::Measured(v) | Self::Increment(v) => v.to_bits().hash(hasher),
            Self::Total { total, .. } => total.to_bits().hash(hasher),
            Self::Durations { count, sum, .. } => (count.to_bits(), sum.to_bits()).hash(hasher),
        }
    }

    /// The number of a quantity that is a plain one, such as a step or a time.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Self::Gauge(v) | Self::Measured(v) | Self::Total { total: v, .. } => Some(*v),
            Self::Increment(_) | Self::Durations { .. } => None,
        }
    }
}

impl Value {
    /// Joins two values of the same report, of which `new` is the later one.
    pub(crate) fn joined(self, new: Self) -> Self {
        match (self, new) {
            (Self::Increment(a), Self::Increment(b)) => Self::Increment(a + b),
            (
                Self::Durations { count, sum, cumulative: false, start },
                Self::Durations { count: more, sum: further, cumulative: false, .. },
            ) => Self::Durations { count: count + more, sum: sum + further, cumulative: false, start },
            (_, new) => new,
        }
    }
}

impl Series {
    /// The approximate number of bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.last.len()
    }

    /// Compares a value with the last one of its series and stores it; `None` if there is no room
    /// for another series.
    pub(crate) fn gain(&mut self, name: &str, value: &Value, time: f64, since: f64) -> Option<Gained> {
        let before = self.last.get(name).copied();
        if before.is_none() && self.last.len() >= MAX_SERIES {
            return None;
        }
        let (gained, now) = match *value {
            Value::Gauge(v) => (gauge(before, v), Last { value: v, ..Last::default() }),
            Value::Measured(v) => {
                (Gained { changed: true, ..gauge(before, v) }, Last { value: v, ..Last::default() })
            }
            Value::Total { total, start } => (
                total_gain(before, total, start, time, since),
                Last { value: total, count: 0.0, time, start },
            ),
            Value::Increment(by) => {
                let old = before.unwrap_or_default();
                let rate = before.and_then(|b| rate(by, time - b.time));
                let value = old.value + by;
                let gained = Gained { value, growth: by, rate, changed: by != 0.0, ..Gained::default() };
                (gained, Last { value, time, ..old })
            }
            Value::Durations { count, sum, cumulative, start } => {
                let now = Last { value: sum, count, time, start };
                (durations(before, now, cumulative, since), now)
            }
        };
        if let Some(last) = self.last.get_mut(name) {
            *last = now;
        } else {
            self.bytes += SERIES_BYTES + name.len();
            self.last.insert(name.into(), now);
        }
        Some(gained)
    }
}

fn gauge(before: Option<Last>, v: f64) -> Gained {
    // Bits are compared, so that NaN equals itself.
    let changed = before.is_none_or(|b| b.value.to_bits() != v.to_bits());
    Gained { value: v, changed, ..Gained::default() }
}

/// Whether a total restarted at zero: it fell, or has a later start.
fn is_reset(before: &Last, value: f64, start: Option<f64>) -> bool {
    let later = before.start.zip(start).is_some_and(|(old, new)| new > old);
    later || value < before.value
}

fn total_gain(before: Option<Last>, total: f64, start: Option<f64>, time: f64, since: f64) -> Gained {
    let plain = Gained { value: total, ..Gained::default() };
    match before {
        Some(b) if is_reset(&b, total, start) => Gained { growth: total, changed: true, ..plain },
        Some(b) => {
            let growth = total - b.value;
            Gained { growth, rate: rate(growth, time - b.time), changed: growth != 0.0, ..plain }
        }
        // All of it counts if it began after this exporter started.
        None if start.is_some_and(|start| start >= since) => Gained { growth: total, changed: true, ..plain },
        None => Gained { changed: true, ..plain },
    }
}

fn durations(before: Option<Last>, now: Last, cumulative: bool, since: f64) -> Gained {
    let (count, sum) = match before {
        _ if !cumulative => (now.count, now.value),
        Some(b) if is_reset(&Last { value: b.count, ..b }, now.count, now.start) => (now.count, now.value),
        Some(b) => (now.count - b.count, now.value - b.value),
        None if now.start.is_some_and(|start| start >= since) => (now.count, now.value),
        None => return Gained { changed: now.count > 0.0, unknown: true, ..Gained::default() },
    };
    if count <= 0.0 {
        return Gained::default();
    }
    Gained { value: sum / count, count, changed: true, ..Gained::default() }
}

fn rate(growth: f64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then_some(growth / seconds).filter(|r| r.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gain(series: &mut Series, value: Value, time: f64) -> Gained {
        series.gain("x", &value, time, 100.0).unwrap()
    }

    #[test]
    fn totals_grow_and_begin_anew() {
        let mut s = Series::default();
        let total = |total, start| Value::Total { total, start };
        let first = gain(&mut s, total(50.0, Some(90.0)), 110.0);
        assert_eq!((first.growth, first.rate, first.value), (0.0, None, 50.0), "began before we listened");
        let more = gain(&mut s, total(70.0, Some(90.0)), 120.0);
        assert_eq!((more.growth, more.rate), (20.0, Some(2.0)));
        assert!(!gain(&mut s, total(70.0, Some(90.0)), 130.0).changed);
        let fell = gain(&mut s, total(5.0, None), 140.0);
        assert_eq!((fell.growth, fell.rate), (5.0, None));
        let anew = gain(&mut s, total(9.0, Some(150.0)), 150.0);
        assert_eq!(anew.growth, 4.0, "no start was known before");
        assert_eq!(gain(&mut s, total(12.0, Some(155.0)), 160.0).growth, 12.0);
        assert_eq!(gain(&mut Series::default(), total(7.0, Some(101.0)), 110.0).growth, 7.0);
    }

    #[test]
    fn durations_give_the_mean_since_the_last_report() {
        let mut s = Series::default();
        let d = |count, sum, start| Value::Durations { count, sum, cumulative: true, start };
        assert!(gain(&mut s, d(100.0, 500.0, Some(1.0)), 110.0).unknown);
        let g = gain(&mut s, d(102.0, 506.0, Some(1.0)), 120.0);
        assert_eq!((g.value, g.count, g.changed), (3.0, 2.0, true));
        assert!(!gain(&mut s, d(102.0, 506.0, Some(1.0)), 130.0).changed);
        assert_eq!(gain(&mut s, d(1.0, 4.0, Some(125.0)), 140.0).value, 4.0, "began anew");
        let delta = Value::Durations { count: 2.0, sum: 8.0, cumulative: false, start: None };
        assert_eq!(gain(&mut Series::default(), delta, 1.0).value, 4.0);
    }

    #[test]
    fn increments_add_up() {
        let mut s = Series::default();
        gain(&mut s, Value::Increment(3.0), 1.0);
        let g = gain(&mut s, Value::Increment(4.0), 3.0);
        assert_eq!((g.value, g.growth, g.rate), (7.0, 4.0, Some(2.0)));
    }

    #[test]
    fn series_are_bounded() {
        let mut s = Series::default();
        for i in 0..MAX_SERIES {
            assert!(s.gain(&i.to_string(), &Value::Gauge(1.0), 0.0, 0.0).is_some());
        }
        assert_eq!(s.gain("more", &Value::Gauge(1.0), 0.0, 0.0), None);
        assert!(s.gain("0", &Value::Gauge(2.0), 0.0, 0.0).is_some());
    }
}

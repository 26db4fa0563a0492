//! The numbers of a chart that are kept with an incident: a few curves of limited size, as JSON
//! that later versions of the program can read.

use serde::{Deserialize, Serialize};

use super::track::Point;

/// The most points of a curve.
pub const MAX_POINTS: usize = 512;
/// The most curves of a chart: the signal of the incident, and others of its run.
pub const MAX_CURVES: usize = 3;
/// The most marks of a chart.
pub const MAX_MARKS: usize = 24;

/// The observations of a run around an incident.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// The curves, with the signal of the incident first.
    pub curves: Vec<Curve>,
    /// The run's own events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Deed>,
}

/// A signal over a range of steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// The name of the signal, as in `alerter/model/src/signal.rs`.
    pub signal: String,
    /// The points in the order of steps; each restart begins an attempt.
    pub points: Vec<CurvePoint>,
    /// The usual range by step; empty if it is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub band: Vec<BandPoint>,
}

/// A group of neighbouring samples. The numbers are `None` if no sample was finite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Packed", into = "Packed")]
pub struct CurvePoint {
    /// The first and last step.
    pub from: i64,
    pub to: i64,
    pub attempt: u32,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub last: Option<f64>,
    /// The number of samples that were NaN or infinite.
    pub nonfinite: u32,
}

/// A point as a short array.
type Packed = (i64, i64, u32, Option<f64>, Option<f64>, Option<f64>, u32);

/// The usual range at a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "(i64, f64, f64)", into = "(i64, f64, f64)")]
pub struct BandPoint {
    pub step: i64,
    pub low: f64,
    pub high: f64,
}

/// An event of a run at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deed {
    pub step: i64,
    pub what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    Restart,
    Checkpoint,
    Evaluation,
}

impl What {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Checkpoint => "checkpoint",
            Self::Evaluation => "evaluation",
        }
    }
}

impl From<Packed> for CurvePoint {
    fn from((from, to, attempt, min, max, last, nonfinite): Packed) -> Self {
        Self { from, to, attempt, min, max, last, nonfinite }
    }
}

impl From<CurvePoint> for Packed {
    fn from(p: CurvePoint) -> Self {
        (p.from, p.to, p.attempt, p.min, p.max, p.last, p.nonfinite)
    }
}

impl From<(i64, f64, f64)> for BandPoint {
    fn from((step, low, high): (i64, f64, f64)) -> Self {
        Self { step, low, high }
    }
}

impl From<BandPoint> for (i64, f64, f64) {
    fn from(p: BandPoint) -> Self {
        (p.step, p.low, p.high)
    }
}

impl From<&CurvePoint> for Point {
    fn from(p: &CurvePoint) -> Self {
        let finite = |v: Option<f64>| v.filter(|v| v.is_finite());
        let (min, max) = match (finite(p.min), finite(p.max)) {
            (Some(min), Some(max)) => (min, max),
            _ => (f64::INFINITY, f64::NEG_INFINITY),
        };
        Self {
            from: p.from,
            to: p.to.max(p.from),
            attempt: p.attempt,
            low: min,
            high: max,
            last: finite(p.last).unwrap_or(f64::NAN),
            samples: u32::from(min <= max).saturating_add(p.nonfinite),
            nonfinite: p.nonfinite,
        }
    }
}

impl Curve {
    /// The points for the panels of a chart.
    pub(super) fn track(&self) -> Vec<Point> {
        self.points.iter().map(Point::from).collect()
    }
}

impl Seen {
    /// Whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        self.curves.iter().all(|curve| curve.points.is_empty())
    }

    /// Drops what exceeds the limits: the oldest points of a curve, the last curves and marks.
    pub fn within_limits(mut self) -> Self {
        self.curves.truncate(MAX_CURVES);
        for curve in &mut self.curves {
            curve.points.drain(..curve.points.len().saturating_sub(MAX_POINTS));
            curve.band.drain(..curve.band.len().saturating_sub(MAX_POINTS));
            curve.band.retain(|b| b.low.is_finite() && b.high.is_finite());
        }
        self.marks.truncate(MAX_MARKS);
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn point(step: i64, v: f64) -> CurvePoint {
        CurvePoint {
            from: step,
            to: step,
            min: Some(v),
            max: Some(v),
            last: Some(v),
            ..CurvePoint::default()
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_stays_the_same() {
        let points = (0..2000).map(|i| point(i, 2.345_678_901_234 + i as f64)).collect();
        let band = (0..2000).map(|step| BandPoint { step, low: 1.0, high: f64::NAN }).collect();
        let curve = Curve { signal: "loss".into(), points, band };
        let marks = vec![Deed { step: 5, what: What::Restart }; 100];
        let seen = Seen { curves: vec![curve; 9], marks }.within_limits();
        assert_eq!((seen.curves.len(), seen.curves[0].points.len(), seen.marks.len()), (3, 512, 24));
        assert_eq!(seen.curves[0].points[511].from, 1999, "the newest stay");
        let text = serde_json::to_string(&seen).unwrap();
        assert!(text.len() < 128 * 1024, "{}", text.len());
        assert_eq!(serde_json::from_str::<Seen>(&text).unwrap(), seen);
    }

    #[test]
    fn a_point_without_a_number_has_none() {
        let nan = CurvePoint { from: 7, to: 7, nonfinite: 2, ..CurvePoint::default() };
        let p = Point::from(&nan);
        assert!(p.low > p.high && p.last.is_nan());
        assert_eq!((p.samples, p.nonfinite), (2, 2));
    }

    proptest! {
        #[test]
        fn any_kept_text_is_read_or_refused(text in ".{0,80}") {
            let _ = serde_json::from_str::<Seen>(&text);
        }
    }
}

//! Converts the kept series of runs to the curves of charts.

use super::Curves;
use crate::chart::curve::{BandPoint, Curve, CurvePoint, Deed, What};
use crate::series::{Mark, MarkKind, SeriesPoint, SeriesTable};

impl Curves for SeriesTable {
    fn window(
        &self,
        run: &str,
        signal: &str,
        from: Option<i64>,
        to: Option<i64>,
        points: usize,
    ) -> Option<(Curve, Vec<Deed>)> {
        let window = SeriesTable::window(self, run, signal, from, to, points)?;
        let next = window.points.iter().skip(1).map(|p| p.step - 1).chain([i64::MAX]);
        let curve = Curve {
            signal: window.signal,
            points: window.points.iter().zip(next).map(|(p, last)| point(p, last)).collect(),
            band: band(&window.points),
        };
        Some((curve, window.marks.iter().map(deed).collect()))
    }
}

/// Converts a point. `last` is the last step before the next point.
fn point(p: &SeriesPoint, last: i64) -> CurvePoint {
    let samples = i64::from(p.count) + i64::from(p.nonfinite);
    CurvePoint {
        from: p.step,
        to: p.step.saturating_add(samples.max(1) - 1).min(last).max(p.step),
        // A repeated step replaces the earlier one.
        attempt: 0,
        min: p.values.map(|v| short(v.min)),
        max: p.values.map(|v| short(v.max)),
        last: p.values.map(|v| short(v.last)),
        nonfinite: p.nonfinite,
    }
}

/// The points where the band changes, and its end.
fn band(points: &[SeriesPoint]) -> Vec<BandPoint> {
    let mut band: Vec<BandPoint> = Vec::new();
    let mut pending = None;
    for (p, e) in points.iter().filter_map(|p| Some((p, p.band?))) {
        let here = BandPoint { step: p.step, low: e.low, high: e.high };
        let same = band.last().is_some_and(|last| (last.low, last.high) == (here.low, here.high));
        if same {
            pending = Some(here);
        } else {
            band.extend(pending.take());
            band.push(here);
        }
    }
    band.extend(pending);
    band
}

/// The shortest decimal number for this value, because it is stored as text.
fn short(v: f32) -> f64 {
    v.to_string().parse().unwrap_or(f64::from(v))
}

fn deed(mark: &Mark) -> Deed {
    let what = match mark.kind {
        MarkKind::Restart => What::Restart,
        MarkKind::Checkpoint => What::Checkpoint,
        MarkKind::Evaluation => What::Evaluation,
    };
    Deed { step: mark.step, what }
}

#[cfg(test)]
mod tests {
    use stepwatch_detect::Expectation;
    use stepwatch_model::time::Ts;

    use super::*;
    use crate::series::{Recorded, Value};

    fn record(table: &SeriesTable, step: i64, attempt: u32, value: f64, mark: Option<MarkKind>) {
        let expectation = Some(Expectation { expected: 2.3, low: 2.0, high: 2.6 });
        let values = [Value { signal: "loss", value, expectation }];
        let at = Ts(1_795_227_405_000 + step * 1000);
        table.record(&Recorded { run: "r", now: at, attempt, step, at, mark, values: &values });
    }

    #[test]
    fn a_series_is_a_curve_with_its_band_and_what_the_run_did() {
        let table = SeriesTable::default();
        for step in 0..40 {
            let mark = (step == 20).then_some(MarkKind::Checkpoint);
            record(&table, step, 0, if step == 30 { f64::NAN } else { 2.31 }, mark);
        }
        let (curve, deeds) = Curves::window(&table, "r", "loss", Some(10), None, 300).unwrap();
        assert!(curve.points.iter().all(|p| p.min.is_none_or(|v| v == 2.31)), "{:?}", curve.points);
        let bad: Vec<i64> = curve.points.iter().filter(|p| p.nonfinite > 0).map(|p| p.from).collect();
        assert_eq!(bad, [30]);
        assert!(curve.points.windows(2).all(|w| w[0].to < w[1].from), "{:?}", curve.points);
        assert!((1..=4).contains(&curve.band.len()), "a band that stays is two points: {:?}", curve.band);
        assert_eq!(deeds, [Deed { step: 20, what: What::Checkpoint }]);
        assert!(Curves::window(&table, "other", "loss", None, None, 9).is_none());
    }
}

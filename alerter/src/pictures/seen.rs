//! Selects the steps and signals that are stored for the chart of an incident.

use stepwatch_respond::incident::IncidentRecord;
use stepwatch_wire::names::metric;

use super::Curves;
use crate::chart::curve::{MAX_CURVES, Seen};
use crate::chart::incident::visible_in;

/// The number of points of the main signal, and of each other one.
const POINTS: usize = 300;
const POINTS_BESIDE: usize = 150;
/// The least number of steps before the onset and after the end.
const BEFORE: i64 = 120;
const AFTER: i64 = 40;
/// The number of steps after which an open incident is cut off, because its beginning would become
/// too small.
const FOLLOWED: i64 = 400;
/// The least number of points before the onset: a run may report only every hundredth step.
const POINTS_BEFORE: usize = 20;
/// The factor by which the range of steps grows until it has enough points, and the number of
/// tries.
const WIDER: i64 = 10;
const WIDENED: u32 = 3;
/// The signals shown with the main one, the most informative first.
const BESIDE: [&str; 4] = [metric::LOSS, metric::GRAD_NORM, metric::STEP_TIME, metric::MFU];

/// The present observations of an incident; empty if its run is unknown.
pub(super) fn of_incident(r: &IncidentRecord, curves: &dyn Curves) -> Seen {
    let (signal, _) = visible_in(&r.signal);
    let lead = [signal].into_iter().chain(BESIDE).find_map(|signal| around(r, curves, signal));
    let Some((seen, (from, to))) = lead else { return Seen::default() };
    let mut seen = seen;
    let name = seen.curves[0].signal.clone();
    for other in BESIDE.into_iter().filter(|other| *other != name) {
        if seen.curves.len() == MAX_CURVES {
            break;
        }
        let window = curves.window(&r.run, other, Some(from), Some(to), POINTS_BESIDE);
        seen.curves.extend(window.map(|(curve, _)| curve).filter(|curve| !curve.points.is_empty()));
    }
    seen.within_limits()
}

/// A signal around the incident, and the requested steps. The range is counted in points, because a
/// run may report every step or every hundredth.
fn around(r: &IncidentRecord, curves: &dyn Curves, signal: &str) -> Option<(Seen, (i64, i64))> {
    let decided = r.detected_step.max(r.start_step);
    let length = r.end_step.unwrap_or(decided).saturating_sub(r.start_step).max(0);
    let mut best = None;
    for wider in (0..WIDENED).map(|n| WIDER.pow(n)) {
        let before = BEFORE.saturating_mul(wider).max(length / 2);
        let after = AFTER.saturating_mul(wider).max(length / 4);
        let followed = decided.saturating_add(FOLLOWED.saturating_mul(wider).max(length.saturating_mul(3)));
        let from = r.start_step.saturating_sub(before);
        let to = r.end_step.map_or(followed, |end| end.saturating_add(after).min(followed.max(end)));
        let Some((curve, marks)) = curves.window(&r.run, signal, Some(from), Some(to), POINTS) else { break };
        let earlier = curve.points.iter().filter(|p| p.to < r.start_step).count();
        if !curve.points.is_empty() {
            best = Some((Seen { curves: vec![curve], marks }, (from, to)));
        }
        if earlier >= POINTS_BEFORE {
            break;
        }
    }
    best
}

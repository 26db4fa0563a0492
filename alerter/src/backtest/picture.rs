//! Selects the signals of a run or an incident to draw, and the steps.

use stepwatch_model::Severity;
use stepwatch_respond::incident::IncidentRecord;

use super::replay::Replay;
use super::signals::Signals;
use crate::chart::incident::{chart, panel, tone};
use crate::chart::track::Point;
use crate::chart::{Chart, Expected, Mark, Panel, Span};

/// The most panels of one chart.
const MAX_PANELS: usize = 5;
const MAX_OVERVIEW: usize = 3;
/// The least number of points before the onset and after the end.
const BEFORE: usize = 60;
const AFTER: usize = 24;
/// The number of points after which an incident is cut off, because its beginning would become too
/// small.
const FOLLOWED: usize = 400;
/// The number of points before the onset that give the usual range, and the fewest that suffice.
const USUAL: usize = 200;
const USUAL_AT_LEAST: usize = 20;
/// The share of these points below the band, and the share above it.
const TAIL: f64 = 0.05;

/// A chart of the whole run with a flag for every incident; `link` returns the link of a flag.
pub(super) fn overview<'a>(
    name: &str,
    replay: &'a Replay,
    signals: &'a Signals,
    link: &dyn Fn(usize) -> String,
) -> Option<Chart<'a>> {
    let mut panels: Vec<Panel<'_>> = signals.beside().take(MAX_OVERVIEW).map(|(n, p)| panel(n, p)).collect();
    panels.first_mut()?.leads = true;
    let all = panels.iter().flat_map(|p| p.points.iter());
    let steps = (all.clone().map(|p| p.from).min()?, all.map(|p| p.to).max()?);
    let mut marks = Vec::new();
    let mut spans = Vec::new();
    for (i, r) in replay.incidents().enumerate().filter(|(_, r)| r.severity > Severity::Info) {
        let (label, href) = (format!("{} {}", i + 1, r.kind.title()), Some(format!("#{}", link(i))));
        marks.push(Mark { step: r.detected_step, label, tone: tone(r.severity), href });
        spans.push(Span { from: r.start_step, to: r.end_step.unwrap_or(steps.1), tone: tone(r.severity) });
    }
    let count = |s: Severity| replay.incidents().filter(|r| r.severity == s).count();
    let description = format!(
        "Steps {} to {} of {name}: {} pages, {} tickets.",
        steps.0,
        steps.1,
        count(Severity::Page),
        count(Severity::Ticket)
    );
    let title = format!("All of {name}");
    Some(Chart { heading: None, title, description, steps, panels, marks, spans, bars: Vec::new() })
}

/// A chart of one incident: its signal on top, the others aligned below. `None` if the file has no
/// signal to show.
pub(super) fn incident<'a>(r: &'a IncidentRecord, signals: &'a Signals) -> Option<Chart<'a>> {
    let lead = signals.for_signal(&r.signal).or_else(|| signals.beside().next())?;
    let (steps, shown) = window(lead.1, r)?;
    let others = signals.beside().filter(|(name, _)| *name != lead.0);
    let mut panels: Vec<Panel<'_>> = std::iter::once(lead)
        .chain(others.filter(|(_, points)| points.iter().any(|p| within(p, steps))))
        .take(MAX_PANELS)
        .map(|(name, points)| Panel { usual: usual(points, r.start_step), ..panel(name, points) })
        .collect();
    if let Some(first) = panels.first_mut() {
        first.leads = true;
        // An incident without a visible signal, such as a hang, has numbers of another quantity.
        let seen = signals.for_signal(&r.signal).is_some() && r.expected.is_finite();
        first.expected = seen.then_some(Expected { value: r.expected, from: r.start_step });
    }
    // The surrounding page has the sentence and the suspects.
    let mut chart = Chart { heading: None, bars: Vec::new(), ..chart(r, panels, steps, r.end_step) };
    if let Some(span) = chart.spans.first_mut().filter(|_| shown) {
        span.to = r.end_step.unwrap_or(steps.1);
    }
    Some(chart)
}

fn within(p: &Point, steps: (i64, i64)) -> bool {
    p.to >= steps.0 && p.from <= steps.1
}

/// The steps to show, and whether the end is among them. The window is counted in points, because a
/// run may log every step or every hundredth.
fn window(points: &[Point], r: &IncidentRecord) -> Option<((i64, i64), bool)> {
    let last = points.len().checked_sub(1)?;
    let at = |step: i64| points.iter().position(|p| p.to >= step).unwrap_or(last);
    let (start, decided) = (at(r.start_step), at(r.detected_step.max(r.start_step)));
    let end = r.end_step.map_or(last, at).max(decided);
    let followed = decided + FOLLOWED.max(3 * (decided - start));
    let stop = end.min(followed);
    let length = stop.saturating_sub(start);
    let (from, to) = (start.saturating_sub(BEFORE.max(length / 2)), (stop + AFTER.max(length / 4)).min(last));
    let shown = points.get(from..=to)?;
    let steps = (shown.iter().map(|p| p.from).min()?, shown.iter().map(|p| p.to).max()?);
    // The picture must include the sample at detection, even if this signal was missing then.
    let steps = (steps.0.min(r.start_step), steps.1.max(r.detected_step));
    Some((steps, end <= to))
}

/// The range of most samples before the onset.
fn usual(points: &[Point], onset: i64) -> Option<(f64, f64)> {
    let end = points.iter().position(|p| p.to >= onset).unwrap_or(points.len());
    let before = &points[end.saturating_sub(USUAL)..end];
    let mut values: Vec<f64> = before.iter().map(|p| p.last).filter(|v| v.is_finite()).collect();
    if values.len() < USUAL_AT_LEAST {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let tail = (values.len() as f64 * TAIL) as usize;
    Some((values[tail], values[values.len() - 1 - tail]))
}

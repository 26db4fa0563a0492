//! Which signals of a run and of an incident are drawn, and over which steps.

use stepwatch_model::Severity;
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_respond::message::number;

use super::replay::Replay;
use super::signals::Signals;
use crate::chart::track::Point;
use crate::chart::{Chart, Expected, Mark, Panel, Span, Tone};

/// Panels of one chart.
const MAX_PANELS: usize = 5;
const MAX_OVERVIEW: usize = 3;
/// Points before the onset and behind the end, at least.
const BEFORE: usize = 60;
const AFTER: usize = 24;
/// Points after which an incident is no longer followed: its beginning would shrink to nothing.
const FOLLOWED: usize = 400;
/// Points before the onset from which the usual range is taken, and the fewest that suffice.
const USUAL: usize = 200;
const USUAL_AT_LEAST: usize = 20;
/// Share of them that lies below the band, and above it.
const TAIL: f64 = 0.05;

pub(super) fn tone(severity: Severity) -> Tone {
    match severity {
        Severity::Info => Tone::Info,
        Severity::Ticket => Tone::Ticket,
        Severity::Page => Tone::Page,
    }
}

/// The whole run, with a flag for every incident; `link` says where one leads.
pub(super) fn overview<'a>(
    name: &str,
    replay: &'a Replay,
    signals: &'a Signals,
    link: &dyn Fn(usize) -> String,
) -> Option<Chart<'a>> {
    let mut panels: Vec<Panel<'_>> = signals.beside().take(MAX_OVERVIEW).map(|(n, p)| panel(n, p)).collect();
    panels.first_mut()?.leads = true;
    let all = panels.iter().flat_map(|p| p.points);
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
    Some(Chart { title: format!("All of {name}"), description, steps, panels, marks, spans })
}

/// One incident: its signal on top, the others aligned beneath; `None` if the file has no signal to
/// show.
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
        // An incident without a visible signal, as a hang, has numbers of something else.
        let seen = signals.for_signal(&r.signal).is_some() && r.expected.is_finite();
        first.expected = seen.then_some(Expected { value: r.expected, from: r.start_step });
    }
    let end = r.end_step.filter(|end| *end <= steps.1);
    let description = description(lead.0, steps, r);
    let spans = vec![Span {
        from: r.start_step,
        to: end.unwrap_or(if shown { r.end_step.unwrap_or(steps.1) } else { steps.1 }),
        tone: tone(r.severity),
    }];
    let title = format!("{} at step {}", r.kind.title(), r.detected_step);
    Some(Chart { title, description, steps, panels, marks: marks(r, end), spans })
}

/// The picture in words.
fn description(lead: &str, steps: (i64, i64), r: &IncidentRecord) -> String {
    let expected =
        if r.expected.is_finite() { format!(", expected {}", number(r.expected)) } else { String::new() };
    format!(
        "{lead} from step {} to {}; {} was {}{expected}. Onset at step {}, {} at step {}, {}.",
        steps.0,
        steps.1,
        r.signal,
        number(r.value),
        r.start_step,
        r.severity.as_str(),
        r.detected_step,
        r.end_step.map_or("still open at the end".to_owned(), |end| format!("over at step {end}")),
    )
}

/// Words of one step share a line.
fn marks(r: &IncidentRecord, end: Option<i64>) -> Vec<Mark> {
    let mut moments = vec![(r.start_step, "onset".to_owned(), Tone::Onset)];
    let first = match r.severity {
        Severity::Page if r.opened_step != r.detected_step => (r.opened_step, "ticket", Tone::Ticket),
        severity => (r.opened_step, severity.as_str(), tone(severity)),
    };
    moments.push((first.0, first.1.to_owned(), first.2));
    if r.detected_step != r.opened_step {
        moments.push((r.detected_step, r.severity.as_str().to_owned(), tone(r.severity)));
    }
    moments.extend(end.map(|end| (end, "over".to_owned(), Tone::Over)));
    let mut marks: Vec<Mark> = Vec::new();
    for (step, word, tone) in moments {
        match marks.iter_mut().find(|m| m.step == step) {
            Some(mark) => {
                mark.label = format!("{}, {word}", mark.label);
                mark.tone = tone;
            }
            None => marks.push(Mark { step, label: word, tone, href: None }),
        }
    }
    for mark in &mut marks {
        mark.label = format!("{} {}", mark.label, mark.step);
    }
    marks
}

fn panel<'a>(name: &str, points: &'a [Point]) -> Panel<'a> {
    Panel { label: name.to_owned(), points, usual: None, expected: None, leads: false }
}

fn within(p: &Point, steps: (i64, i64)) -> bool {
    p.to >= steps.0 && p.from <= steps.1
}

/// The steps to show, and whether the end is among them. Counted in points: a run may log every
/// step or every hundredth.
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
    // The sample that decided must be in the picture, even if this signal was missing then.
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

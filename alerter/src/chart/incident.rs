//! Decides what the chart of an incident shows: its steps, marks and suspects, for any source of
//! curves.

use std::borrow::Cow;

use stepwatch_model::{Severity, Signal, SignalUnit, number};
use stepwatch_respond::incident::{IncidentRecord, State};
use stepwatch_wire::names::metric;

use super::curve::{BandPoint, Curve, Deed, Seen, What};
use super::track::Point;
use super::{Bar, Chart, Expected, Heading, Mark, Panel, Span, Tone};

/// The signal name of incidents that are about missing steps.
pub(crate) const SILENCE: &str = "step";
/// The most characters of the name of a run.
const RUN_MAX: usize = 48;
/// Units of measures that cannot be shown as the length of a bar.
const NO_LENGTH: [&str; 2] = ["step", "nodes"];

pub(crate) fn tone(severity: Severity) -> Tone {
    match severity {
        Severity::Info => Tone::Info,
        Severity::Ticket => Tone::Ticket,
        Severity::Page => Tone::Page,
    }
}

/// The signal in which an incident is visible, and whether the incident's value belongs to it.
/// Silence is measured in seconds, like the step that ends it. Events of a node or between ranks
/// are visible in the step time.
pub fn visible_in(signal: &str) -> (&str, bool) {
    match signal {
        SILENCE => (metric::STEP_TIME, true),
        "compute_time" | "data_wait" | "sm_clock" | "ecc" | "gpu_waste" | "unsaved_work"
        | "checkpoint_time" | "checkpoint_share" | "upload_lag" | "checkpoint_size" | "checkpoint_room"
        | "load_time" | "eval_steps" => (metric::STEP_TIME, false),
        other => match Signal::find(other).map(|signal| signal.unit) {
            Some(SignalUnit::Event) => (metric::STEP_TIME, false),
            _ => (other, true),
        },
    }
}

/// The chart of an incident from the observations of its run; `None` if there is nothing to draw.
pub fn of_seen(r: &IncidentRecord, seen: &Seen) -> Option<Chart<'static>> {
    let (signal, own) = visible_in(&r.signal);
    let curves = || seen.curves.iter().filter(|curve| !curve.points.is_empty());
    let lead = curves().find(|curve| curve.signal == signal).or_else(|| curves().next())?;
    let own = own && lead.signal == signal && r.expected.is_finite();
    let points = || lead.points.iter();
    // The picture must include the sample at detection, even if this signal was missing then.
    let from = points().map(|p| p.from).min()?.min(r.start_step);
    let to = points().map(|p| p.to.max(p.from)).max()?.max(r.detected_step);
    let mut panels = vec![panel_of(lead, own.then_some(r.expected), r.start_step)];
    let others = curves().filter(|curve| curve.signal != lead.signal);
    panels.extend(others.map(|curve| panel_of(curve, None, r.start_step)));
    panels[0].leads = true;
    let mut chart = chart(r, panels, (from, to), r.end_step);
    chart.marks.extend(deeds(r, &seen.marks));
    Some(chart)
}

fn panel_of(curve: &Curve, expected: Option<f64>, from: i64) -> Panel<'static> {
    let unit = Signal::find(&curve.signal).map_or(SignalUnit::Number, |signal| signal.unit);
    let (factor, unit) = match unit {
        SignalUnit::Share => (100.0, " (%)"),
        SignalUnit::Seconds | SignalUnit::Duration => (1.0, " (s)"),
        SignalUnit::Hertz => (1e-9, " (GHz)"),
        SignalUnit::Number | SignalUnit::Event => (1.0, ""),
    };
    let name = Signal::find(&curve.signal).map_or(curve.signal.as_str(), |signal| signal.label);
    let mut points = curve.track();
    for p in &mut points {
        (p.low, p.high, p.last) = (factor * p.low, factor * p.high, factor * p.last);
    }
    let band = |b: &BandPoint| BandPoint { step: b.step, low: factor * b.low, high: factor * b.high };
    Panel {
        label: format!("{name}{unit}"),
        points: Cow::Owned(points),
        usual: None,
        band: Cow::Owned(curve.band.iter().map(band).collect()),
        expected: expected.map(|value| Expected { value: factor * value, from }),
        leads: false,
    }
}

/// The chart of an incident with these panels, the main signal first. `end` is drawn if it is among
/// the steps.
pub(crate) fn chart<'a>(
    r: &IncidentRecord,
    panels: Vec<Panel<'a>>,
    steps: (i64, i64),
    end: Option<i64>,
) -> Chart<'a> {
    let end = end.filter(|end| *end <= steps.1);
    let lead = panels.first().map_or("", |panel| panel.label.as_str());
    let description = description(lead, steps, r);
    let spans = vec![Span { from: r.start_step, to: end.unwrap_or(steps.1), tone: tone(r.severity) }];
    Chart {
        heading: Some(heading(r)),
        title: format!("{} at step {}", r.kind.title(), r.detected_step),
        description,
        steps,
        panels,
        marks: marks(r, end),
        spans,
        bars: bars(r),
    }
}

fn heading(r: &IncidentRecord) -> Heading {
    let over = r.state == State::Resolved;
    let severity = r.severity.as_str().to_uppercase();
    let standing = if over { format!("RESOLVED {}", r.severity.as_str()) } else { severity };
    let mut place: String = r.place().chars().take(RUN_MAX).collect();
    if !place.is_empty() {
        place = format!(" · {place}");
    }
    let tone = if over { Tone::Over } else { tone(r.severity) };
    Heading { tag: format!("{standing} · {}{place}", r.title()), tone, sentence: r.summary.to_string() }
}

/// The text alternative of the chart.
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

/// The marks of an incident. Labels of the same step are joined.
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

/// The marks of the run's own events. Of the checkpoints, only the last before the onset is shown,
/// because a person could go back to it.
fn deeds(r: &IncidentRecord, all: &[Deed]) -> Vec<Mark> {
    let is_checkpoint = |deed: &&Deed| deed.what == What::Checkpoint;
    let good = all.iter().filter(is_checkpoint).filter(|d| d.step < r.start_step).max_by_key(|d| d.step);
    let others = all.iter().filter(|deed| !is_checkpoint(deed));
    let mark = |d: &Deed| Mark {
        step: d.step,
        label: format!("{} {}", d.what.word(), d.step),
        tone: Tone::Note,
        href: None,
    };
    good.into_iter().chain(others).map(mark).collect()
}

/// The suspects with a measured and an expected value.
fn bars(r: &IncidentRecord) -> Vec<Bar> {
    let bar = |s: &stepwatch_model::Suspect| {
        let measures = s.evidence.iter().filter_map(|e| e.observation.measure());
        measures.filter(|m| !NO_LENGTH.contains(&m.unit)).find_map(|m| {
            let (value, expected) = (m.value.0, m.expected?.0);
            let positive = value > 0.0 && expected > 0.0 && value.is_finite() && expected.is_finite();
            let unit = if m.unit == "ratio" { " times" } else { "" };
            positive.then(|| Bar {
                label: s.what(),
                text: format!("{}{unit}, expected {}", number(value), number(expected)),
                // Suspects of different units share one axis.
                value: value / expected,
                expected: 1.0,
            })
        })
    };
    r.suspects.iter().filter_map(bar).collect()
}

/// A panel of borrowed points.
pub(crate) fn panel<'a>(name: &str, points: &'a [Point]) -> Panel<'a> {
    Panel {
        label: name.to_owned(),
        points: Cow::Borrowed(points),
        usual: None,
        band: Cow::Borrowed(&[]),
        expected: None,
        leads: false,
    }
}

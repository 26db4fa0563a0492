//! Text about facts of a replay, shared by the terminal report and the HTML report.

use stepwatch_model::Severity;
use stepwatch_model::time::Span;
use stepwatch_respond::config::{Level, ResponderConfig};
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_respond::message::number;
use stepwatch_respond::route::{Router, Way, WayName};

use super::replay::Replay;

const WEEK: f64 = 7.0 * 86_400.0;

pub(super) fn plural<'a>(n: usize, one: &'a str, many: &'a str) -> &'a str {
    if n == 1 { one } else { many }
}

pub(super) fn weeks(lasted: impl Iterator<Item = Span>) -> f64 {
    lasted.map(Span::as_secs_f64).sum::<f64>() / WEEK
}

/// A duration that is given in weeks.
pub(super) fn length(weeks: f64) -> String {
    Span::from_secs_f64(weeks * WEEK).to_string()
}

pub(super) fn lasted(replay: &Replay) -> String {
    format!("{}{}", if replay.is_timed() { "" } else { "about " }, replay.lasted())
}

/// The course of an incident from the onset to the end.
pub(super) fn course(r: &IncidentRecord) -> String {
    let at = |severity: Severity, step: i64| {
        let after = match step.saturating_sub(r.start_step) {
            0 => "at once".to_owned(),
            1 => "1 step later".to_owned(),
            n => format!("{n} steps later"),
        };
        format!("{} at {step} ({after})", severity.as_str())
    };
    let mut parts = vec![format!("began at step {}", r.start_step)];
    if r.severity == Severity::Page && r.opened_step != r.detected_step {
        parts.push(at(Severity::Ticket, r.opened_step));
    }
    parts.push(at(r.severity, r.detected_step));
    match (r.end_step, r.resolved_at) {
        (Some(end), Some(at)) if r.severity > Severity::Info => {
            parts.push(format!("over at {end}, resolved after {}", at - r.opened_at));
        }
        (Some(end), _) => parts.push(format!("over at {end}")),
        (None, _) => parts.push("still open at the end of the file".into()),
    }
    parts.join(", ")
}

pub(super) fn value(r: &IncidentRecord) -> String {
    let expected =
        if r.expected.is_finite() { format!(" (expected {})", number(r.expected)) } else { String::new() };
    format!("{} is {}{expected}", r.signal, number(r.value))
}

/// The route that an incident takes, and its receivers.
pub(super) fn rule(config: &ResponderConfig, router: &Router, r: &IncidentRecord) -> String {
    router.ways(config, &r.labels).iter().map(|w| way(config, w)).collect::<Vec<_>>().join("; and ")
}

fn way(config: &ResponderConfig, way: &Way) -> String {
    let levels = way.levels.iter().map(|l| level(config, l)).collect::<Vec<_>>().join("; ");
    let levels = if levels.is_empty() { "nobody".to_owned() } else { levels };
    let policy = way.policy.as_ref().map_or(String::new(), |p| format!("policy {p}: "));
    if let WayName::Route(place) = &way.name {
        format!("{place}, {} -> {policy}{levels}", way.because)
    } else {
        format!("{}: page and ticket -> {policy}{levels}", way.because)
    }
}

fn level(config: &ResponderConfig, level: &Level) -> String {
    let when =
        if level.after == Span::ZERO { "at once".to_owned() } else { format!("after {}", level.after) };
    let who = if level.notify.is_empty() { "nobody".into() } else { level.notify.join(", ") };
    format!("{who} {when}{}", config.again(level))
}

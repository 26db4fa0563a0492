//! The post-mortem of an incident, as a Markdown template: known facts are filled in, and there are
//! questions that only people can answer.
//!
//! The post-mortem is a pure function of stored data: the record, its history, and the messages,
//! which contain the size of the run and its last checkpoint at the time. Every estimate shows its
//! calculation.

mod impact;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::{Action, TimelineEntry};
use stepwatch_respond::incident::{IncidentRecord, State};
use stepwatch_respond::message::{self, Details, Message, UNKNOWN_SIZE, place};

use crate::markdown::{Table, escape};
use crate::store::{Delivery, DeliveryState};
pub use impact::{Cost, Impact, Loss};

/// The most lines of history: an incident that flaps for a week has thousands.
const TIMELINE_MAX: usize = 500;

/// All stored data of one incident.
#[derive(Debug, Clone)]
pub struct Account<'a> {
    pub record: &'a IncidentRecord,
    pub timeline: &'a [TimelineEntry],
    pub deliveries: &'a [Delivery],
    /// The chart as SVG, if the run was observed.
    pub chart: Option<&'a str>,
    /// The time of the request, at which an open incident ends here.
    pub now: Ts,
}

/// The costs of an incident.
pub fn impact(a: &Account<'_>) -> Impact {
    Impact::from_account(a)
}

/// Renders the whole document.
pub fn render(a: &Account<'_>) -> String {
    let mut out = String::new();
    heading(&mut out, a);
    let _ = writeln!(out, "## Summary\n\n{}\n", escape(&sentence(&a.record.summary.to_string())));
    if let Some(advice) = a.first().and_then(|d| d.advice.as_deref()) {
        let _ = writeln!(out, "What was advised then: {}\n", escape(&sentence(advice)));
    }
    if let Some(svg) = a.chart {
        // The chart is embedded, so that it remains when the alerter has deleted it.
        let (alt, data) = (escape(&a.record.title()), STANDARD.encode(svg));
        let _ = writeln!(out, "![Chart: {alt}](data:image/svg+xml;base64,{data})\n");
    }
    impact::write(&mut out, a);
    times(&mut out, a);
    timeline(&mut out, a);
    evidence(&mut out, a);
    notifications(&mut out, a);
    out.push_str(TO_FILL_IN);
    out
}

/// The questions that only people can answer.
const TO_FILL_IN: &str = "\
## Root cause

<!-- What had to be so for this to happen? Which of the suspects above was it, and how is that known? -->

## What was done

<!-- In which order, by whom, and what each step changed. Was the run rolled back, to which step, and what of it was trained again? -->

## What went well, and what did not

<!-- Was it found soon enough? Did the right person hear of it, and did the message say what was needed? -->

## Action items

| what | who | until |
|---|---|---|
|  |  |  |
";

impl<'a> Account<'a> {
    pub(crate) fn end(&self) -> Ts {
        self.record.resolved_at.unwrap_or(self.now)
    }

    pub(crate) fn lasted(&self) -> Span {
        Span((self.end() - self.record.opened_at).0.max(0))
    }

    fn messages(&self) -> impl DoubleEndedIterator<Item = &'a Message> {
        self.deliveries.iter().filter_map(|d| d.message.as_deref())
    }

    /// The state of the run in the first message about it.
    pub(crate) fn first(&self) -> Option<&'a Details> {
        self.messages().map(|m| &m.details).find(|d| is_about_run(d))
    }

    pub(crate) fn last(&self) -> Option<&'a Details> {
        self.messages().rev().map(|m| &m.details).find(|d| is_about_run(d))
    }
}

/// Whether a message has the state of a run that is watched. A run that only an alert or a series
/// names has none.
fn is_about_run(d: &Details) -> bool {
    d.run.known_gpus().is_some() || d.run.nodes > 0 || d.run.last_step.is_some()
}

fn heading(out: &mut String, a: &Account<'_>) {
    let r = a.record;
    let about = r.place();
    let of = if about.is_empty() { String::new() } else { format!(" of {}", escape(&about)) };
    let _ = writeln!(out, "# Post-mortem: {}{of}\n", escape(&r.title()));
    let mut t = Table::new(&["", ""]);
    t.row(["Incident", &r.id]);
    t.row(["Severity", r.severity.as_str()]);
    t.row(["State", &state(a)]);
    t.row(["About", &place(&r.run, &r.nodes)]);
    if let Some(run) = a.last().map(|d| &d.run) {
        let gpus = run.known_gpus().map_or_else(|| UNKNOWN_SIZE.to_owned(), |gpus| count(gpus, "GPU"));
        t.row(["Size", &format!("{gpus} on {}, attempt {}", count(run.nodes, "node"), run.attempt)]);
    }
    if r.flaps > 0 {
        t.row(["Came back", &count(r.flaps, "time")]);
    }
    for (name, value) in &r.labels {
        if !["alertname", "severity", "kind", "cause", "run", "node", "signal"].contains(&name.as_str())
            && !value.is_empty()
        {
            t.row([name, value]);
        }
    }
    t.write(out);
}

fn state(a: &Account<'_>) -> String {
    let r = a.record;
    match (r.state, &r.acked_by) {
        (State::Resolved, _) => {
            let how = r.end.as_ref().map(|end| end.words()).unwrap_or_default();
            let back = r.reopens_at().map_or_else(String::new, |at| {
                format!("; it still fires: comes back at {at} unless it is over by then")
            });
            format!("resolved at {}{how}{back}", a.end())
        }
        (State::Acknowledged, Some(by)) => {
            format!("acknowledged by {by}, not over: figures are as of {}", a.now)
        }
        _ => format!("open, not over: figures are as of {}", a.now),
    }
}

/// The times of an incident.
fn times(out: &mut String, a: &Account<'_>) {
    let r = a.record;
    out.push_str("## Times\n\n");
    let mut t = Table::new(&["", "after", "at"]);
    if let Some(silent) = impact::unseen(a) {
        t.row(["Detected", &silent, &r.opened_at.to_string()]);
    }
    let delivered = |d: &&Delivery| d.state == DeliveryState::Delivered && d.action == Action::Trigger;
    let first =
        a.deliveries.iter().filter(delivered).filter_map(|d| Some((done(d)?, d))).min_by_key(|(at, _)| *at);
    match first {
        Some((at, d)) => {
            t.row([&format!("Notified ({})", d.receiver), &(at - r.opened_at).to_string(), &at.to_string()]);
        }
        None => t.row(["Notified", "nobody was notified", ""]),
    }
    match (r.acked_at, &r.acked_by) {
        (Some(at), Some(by)) => {
            t.row([&format!("Acknowledged by {by}"), &(at - r.opened_at).to_string(), &at.to_string()]);
        }
        _ => t.row(["Acknowledged", "by nobody", ""]),
    }
    match r.resolved_at {
        Some(at) => {
            let how = if r.is_stale() { "Stale: not heard of any more" } else { "Resolved" };
            t.row([how, &a.lasted().to_string(), &at.to_string()]);
        }
        None => t.row(["Resolved", "not yet", ""]),
    }
    t.write(out);
    out.push_str("Counted from the moment it was announced, except the detection, which is counted from the onset.\n\n");
}

fn timeline(out: &mut String, a: &Account<'_>) {
    out.push_str("## Timeline\n\n");
    let mut t = Table::new(&["at", "after", "who", "what"]);
    // If the history is too long, its beginning is more informative than its end.
    for entry in a.timeline.iter().take(TIMELINE_MAX) {
        let after = Span((entry.at - a.record.opened_at).0.max(0)).to_string();
        t.row([&entry.at.to_string(), &after, &entry.actor, &entry.what]);
    }
    t.write(out);
    if let Some(more) = a.timeline.len().checked_sub(TIMELINE_MAX).filter(|n| *n > 0) {
        let _ = writeln!(out, "{more} more lines are in `stepwatch-alerter explain {}`.\n", a.record.id);
    }
}

fn evidence(out: &mut String, a: &Account<'_>) {
    let r = a.record;
    out.push_str("## Evidence\n\n");
    let mut t = Table::new(&["", ""]);
    t.row(["Signal", &r.signal]);
    let text = a.first().map(|d| d.evidence.text.as_str()).filter(|text| !text.is_empty());
    if let Some(text) = text {
        t.row(["Value", text]);
    } else if r.value.is_finite() || r.expected.is_finite() {
        t.row(["Value", &format!("{}, expected {}", message::number(r.value), message::number(r.expected))]);
    }
    if r.score.is_finite() {
        t.row(["Score", &message::number(r.score)]);
    }
    if r.has_steps() {
        let end = r.end_step.map(|s| format!(", over at {s}")).unwrap_or_default();
        t.row(["Steps", &format!("began {}, first reported {}{end}", r.start_step, r.opened_step)]);
    }
    if let Some(m) = a.messages().next_back() {
        for link in &m.links {
            if crate::notify::text::web_link(&link.href, 2000).is_some() {
                t.row([&link.text, &link.href]);
            }
        }
    }
    t.write(out);
    out.push_str("## Suspects\n\n");
    if r.suspects.is_empty() {
        out.push_str("Nobody and nothing was suspected.\n\n");
        return;
    }
    for (n, s) in r.suspects.iter().enumerate() {
        let _ = writeln!(out, "{}. **{}**: {}", n + 1, escape(&s.what()), escape(&s.why()));
    }
    out.push('\n');
}

fn notifications(out: &mut String, a: &Account<'_>) {
    out.push_str("## Who was notified\n\n");
    if a.deliveries.is_empty() {
        out.push_str("Nobody.\n\n");
        return;
    }
    let mut t = Table::new(&["at", "by", "whom", "what", "because", "outcome"]);
    for d in a.deliveries {
        let (at, outcome) = match (d.state, done(d)) {
            (DeliveryState::Delivered, Some(at)) => (at, format!("delivered after {}", at - d.created_at)),
            (DeliveryState::Superseded, _) => {
                let why = d.error.as_deref().unwrap_or("a later message said it better");
                (d.created_at, format!("not sent: {why}"))
            }
            (DeliveryState::Failed, _) => (d.created_at, "failed for good".to_owned()),
            _ => (d.created_at, "not delivered yet".to_owned()),
        };
        let tries = if d.attempts > 1 { format!(", {} attempts", d.attempts) } else { String::new() };
        let error = d.error.as_deref().filter(|_| d.state != DeliveryState::Superseded);
        let error = error.map(|e| format!("; last error: {e}")).unwrap_or_default();
        let whom = if d.users.is_empty() { "everybody there".to_owned() } else { d.users.join(", ") };
        let because = d.message.as_ref().map_or("", |m| m.reason.as_str());
        t.row([
            &at.to_string(),
            &d.receiver,
            &whom,
            d.action.as_str(),
            because,
            &format!("{outcome}{tries}{error}"),
        ]);
    }
    t.write(out);
}

fn done(d: &Delivery) -> Option<Ts> {
    let at: jiff::Timestamp = d.done_at.as_deref()?.parse().ok()?;
    Some(Ts(at.as_millisecond()))
}

/// A number with a noun, such as `1 GPU` or `2 GPUs`.
fn count(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn sentence(text: &str) -> String {
    let mut chars = text.trim().chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    let text = first + chars.as_str();
    if text.ends_with(['.', '!', '?']) { text } else { text + "." }
}

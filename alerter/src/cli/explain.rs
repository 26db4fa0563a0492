//! `explain`: the history of an incident, and for every message the reason for its receiver,
//! channel and time.

use std::io::{self, Write};

use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::Action;

use super::incidents::facts;
use super::table::{Table, plain};
use crate::api::view::{DeliveryView, IncidentDetail, PathView, TimelineView};
use crate::notify::Ring;
use crate::notify::pagerduty::key;
use crate::store::DeliveryState;

/// Writes the facts, then all events in order, then who was notified and why.
pub(super) fn story(d: &IncidentDetail, now: Ts, out: &mut dyn Write) -> io::Result<()> {
    facts(d, now, out)?;
    writeln!(out, "\nwhat happened")?;
    let mut t = Table::facts().indented(2);
    for entry in &d.timeline {
        t.row([since(d, entry.at.0).as_str(), &entry.at.0.to_string(), &entry.actor, &entry.what]);
    }
    t.write(out)?;
    writeln!(out, "\nwho was notified, and why")?;
    if d.deliveries.is_empty() {
        writeln!(out, "  nobody")?;
    }
    let mut before = d.incident.opened_at.0;
    for delivery in &d.deliveries {
        let at = delivery.created_at.0;
        message(d, delivery, before, out)?;
        before = at;
    }
    if let Some(suppression) = &d.incident.suppression {
        writeln!(out, "  now notifies nobody: {} ({})", plain(&suppression.words), plain(&suppression.by))?;
    }
    Ok(())
}

fn since(d: &IncidentDetail, at: Ts) -> String {
    format!("+{}", Span((at - d.incident.opened_at.0).0.max(0)))
}

fn message(d: &IncidentDetail, m: &DeliveryView, before: Ts, out: &mut dyn Write) -> io::Result<()> {
    let at = m.created_at.0;
    let whom = if m.users.is_empty() { "everybody there".to_owned() } else { m.users.join(", ") };
    let page = if m.page && m.action == Action::Trigger { " (page)" } else { "" };
    let word = m.action.as_str();
    writeln!(out, "  {} {at}  {} by {}: {word}{page}", since(d, at), plain(&whom), plain(&m.receiver))?;
    let mut t = Table::facts().indented(4);
    if let Some(title) = &m.title {
        t.row(["said", title]);
    }
    if let Some(reason) = &m.reason {
        let code = m.because.map(|b| format!(" ({})", b.as_str())).unwrap_or_default();
        t.row(["because", &format!("{reason}{code}")]);
    }
    match &m.path {
        Some(path) => way(path, &mut t),
        None => t.row(["chosen", "it was notified of the incident before: it gets every later message too"]),
    }
    for entry in d.timeline.iter().filter(|e| e.suppressed.is_some() && e.at.0 >= before && e.at.0 <= at) {
        t.row(["held back", &held(entry)]);
    }
    if let Some(who) = &m.left_to {
        t.row(["rings", &format!("nobody anew: {who} repeats")]);
    } else if let Some(number) = m.ring {
        t.row(["rings", &format!("PagerDuty as {}", key(&d.incident.id, Ring { number, page: m.page }))]);
    }
    t.row(["outcome", &fate(m)]);
    t.write(out)
}

/// The path of a message from the route to the person.
fn way(path: &PathView, t: &mut Table) {
    if !path.route.is_empty() {
        let matched =
            if path.matched.is_empty() { "not in the configuration any more" } else { path.matched.as_str() };
        t.row(["route", &format!("{} ({matched})", path.route)]);
    }
    if path.level > 0 {
        let policy = path.policy.as_ref().map(|p| format!(" of policy {p}")).unwrap_or_default();
        let again = if path.again > 0 { format!(", notified again ({})", path.again) } else { String::new() };
        t.row(["level", &format!("{}{policy}{again}", path.level)]);
    }
    for words in &path.chosen {
        t.row(["chosen", words]);
    }
    for words in &path.asked {
        t.row(["asked", words]);
    }
}

fn held(entry: &TimelineView) -> String {
    format!("since {}: {}", entry.at.0, entry.suppressed.as_deref().unwrap_or(&entry.what))
}

/// The outcome of a delivery, and the number of attempts.
fn fate(d: &DeliveryView) -> String {
    let done = d.done_at.as_deref().unwrap_or_default();
    let took = done.parse::<jiff::Timestamp>().ok().map(|t| Ts(t.as_millisecond()) - d.created_at.0);
    let mut parts = vec![match (d.state, took) {
        (DeliveryState::Delivered, Some(took)) => format!("delivered after {took}, at {done}"),
        (DeliveryState::Delivered, None) => "delivered".into(),
        (DeliveryState::Failed, _) => format!("given up at {done}"),
        (DeliveryState::Superseded, _) => "not sent: overtaken".into(),
        (DeliveryState::Pending, _) => "waits to be sent".into(),
        (DeliveryState::Attempting, _) => "is being sent".into(),
        (DeliveryState::Ambiguous, _) => {
            "may have arrived: it is looked for, or sent again under the same key".into()
        }
    }];
    if d.attempts > 1 {
        parts.push(format!("{} attempts", d.attempts));
    }
    parts.extend(d.next_at.map(|at| format!("next try {}", at.0)));
    parts.extend(d.error.as_ref().map(|e| match d.state {
        DeliveryState::Superseded => e.clone(),
        _ => format!("last error: {e}"),
    }));
    parts.join(", ")
}

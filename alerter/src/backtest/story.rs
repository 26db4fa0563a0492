//! The history of one incident of a replay: what was decided at which step, and who would have been
//! notified.

use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Action, Effect, Notification, TimelineEntry};
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_respond::message::Message;

/// The most history lines and message rounds kept for an incident: nobody answers in a replay, so a
/// page is repeated as long as it lasts.
const MAX_LINES: usize = 40;

#[derive(Debug)]
pub(super) struct Story {
    pub(super) record: IncidentRecord,
    pub(super) lines: Vec<Line>,
    pub(super) notified: Vec<Notified>,
    /// The number of lines and messages beyond the limit.
    pub(super) dropped_lines: u64,
    pub(super) dropped_notified: u64,
    /// The first message of the kind and severity that the incident reached.
    pub(super) message: Option<Message>,
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) step: i64,
    pub(super) at: Ts,
    pub(super) what: String,
}

/// A message that would have been sent.
#[derive(Debug)]
pub(super) struct Notified {
    pub(super) step: i64,
    pub(super) at: Ts,
    pub(super) receiver: String,
    pub(super) reason: String,
}

impl Story {
    pub(super) fn new(record: IncidentRecord) -> Self {
        Self {
            record,
            lines: Vec::new(),
            notified: Vec::new(),
            dropped_lines: 0,
            dropped_notified: 0,
            message: None,
        }
    }

    /// The summary of that message, or else of the incident.
    pub(super) fn summary(&self) -> String {
        self.message.as_ref().map_or_else(|| self.record.summary.to_string(), |m| m.summary.clone())
    }

    /// Adds an effect. `step` is the last one that the engine received.
    pub(super) fn add(&mut self, step: i64, effect: Effect) {
        match effect {
            Effect::Incident(record) => self.record = *record,
            Effect::Timeline(entry) => self.line(step, entry),
            Effect::Notify(n) => self.notify(step, *n),
            // These effects belong to no incident.
            Effect::Silence(_) | Effect::Override(_) | Effect::Alert(_) | Effect::AlertOver(_) => {}
        }
    }

    fn line(&mut self, step: i64, entry: TimelineEntry) {
        if self.lines.len() < MAX_LINES {
            self.lines.push(Line { step, at: entry.at, what: entry.what });
        } else {
            self.dropped_lines += 1;
        }
    }

    fn notify(&mut self, step: i64, n: Notification) {
        let worse = self.message.as_ref().is_none_or(|m| {
            n.message.severity > m.severity || n.message.severity == m.severity && n.message.kind != m.kind
        });
        if n.action == Action::Trigger {
            if self.notified.len() < MAX_LINES {
                let (at, reason) = (n.message.at, n.message.reason.clone());
                self.notified.push(Notified { step, at, receiver: n.receiver, reason });
            } else {
                self.dropped_notified += 1;
            }
        }
        if worse {
            self.message = Some(n.message);
        }
    }
}

/// The incident to which an effect belongs.
pub(super) fn id_of(effect: &Effect) -> &str {
    match effect {
        Effect::Silence(_) | Effect::Override(_) | Effect::Alert(_) | Effect::AlertOver(_) => "",
        Effect::Incident(record) => &record.id,
        Effect::Timeline(entry) => &entry.incident,
        Effect::Notify(n) => &n.incident,
    }
}

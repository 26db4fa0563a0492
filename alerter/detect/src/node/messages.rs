//! Kernel messages of a node that its exporter had never seen there, and that match no known
//! pattern.

use serde::{Deserialize, Serialize};
use stepwatch_model::time::{Span, Ts};
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::names::hw;
use stepwatch_wire::{Event, Kind, Value};

/// The most messages kept for a node; the oldest is dropped.
const MAX_MESSAGES: usize = 64;
/// How long a message counts as seen on the fleet.
pub(crate) const REMEMBER: Span = Span::secs(86_400);
/// A message is evaluated after this time: by then the other nodes have it too if a new driver logs
/// it, or if it hits a whole job.
pub(crate) const SETTLE: Span = Span::secs(120);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Message {
    /// The message without the parts that vary between occurrences.
    pub(crate) template: String,
    text: String,
    pub(crate) at: Ts,
    judged: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Messages(Vec<Message>);

impl Messages {
    /// Whether the event is such a message, which is not a condition yet.
    pub(crate) fn is_one(e: &Event) -> bool {
        e.kind == Kind::Hw && e.name.as_deref() == Some(NodeCondition::KernelMessage.name())
    }

    pub(crate) fn take(&mut self, now: Ts, e: &Event) {
        let Some(template) = e.extra.get(hw::TEMPLATE).and_then(Value::as_str) else { return };
        if self.0.iter().any(|message| message.template == template) {
            return;
        }
        self.forget(now);
        if self.0.len() >= MAX_MESSAGES {
            self.0.remove(0);
        }
        let text = e.text.clone().unwrap_or_default();
        self.0.push(Message { template: template.to_owned(), text, at: now, judged: false });
    }

    pub(crate) fn forget(&mut self, now: Ts) {
        self.0.retain(|message| !message.judged || now - message.at < REMEMBER);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Message> {
        self.0.iter()
    }

    /// When the next message must be evaluated.
    pub(crate) fn deadline(&self) -> Option<Ts> {
        self.0.iter().filter(|message| !message.judged).map(|message| message.at + SETTLE).min()
    }

    /// The messages that must be evaluated now, each once.
    pub(crate) fn due(&mut self, now: Ts) -> Vec<Message> {
        let due = self.0.iter_mut().filter(|message| !message.judged && now >= message.at + SETTLE);
        due.map(|message| {
            message.judged = true;
            message.clone()
        })
        .collect()
    }
}

impl Message {
    /// The message as a condition of the node.
    pub(crate) fn event(&self) -> Event {
        let mut event = Event {
            ts: Some(self.at.as_secs_f64()),
            name: Some(NodeCondition::KernelMessage.name().to_owned()),
            level: Some("warn".to_owned()),
            code: Some(1),
            text: Some(self.text.clone()),
            ..Event::new(Kind::Hw)
        };
        event.extra.insert("once".to_owned(), Value::Bool(true));
        event.extra.insert("device".to_owned(), Value::Text(self.template.clone()));
        event
    }
}

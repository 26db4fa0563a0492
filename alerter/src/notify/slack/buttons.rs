//! Buttons: actions on an incident without leaving the channel.

use serde_json::{Value, json};
use stepwatch_respond::message::{Message, Status};

/// The action of a click.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Ack,
    Resolve,
    Escalate,
    Silence,
}

impl Deed {
    const ALL: &[Self] = &[Self::Ack, Self::Escalate, Self::Silence, Self::Resolve];

    /// The `action_id` of the button.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Ack => "stepwatch_ack",
            Self::Resolve => "stepwatch_resolve",
            Self::Escalate => "stepwatch_escalate",
            Self::Silence => "stepwatch_silence",
        }
    }

    pub(crate) fn of_id(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|deed| deed.id() == id)
    }

    /// Whether an incident in this state has the button.
    fn fits(self, status: Status) -> bool {
        match self {
            Self::Ack => status == Status::Firing,
            Self::Escalate | Self::Silence | Self::Resolve => status != Status::Resolved,
        }
    }

    fn button(self, incident: &str) -> Value {
        let (text, style) = match self {
            Self::Ack => ("Acknowledge", Some("primary")),
            Self::Escalate => ("Escalate", None),
            Self::Silence => ("Silence 1 h", None),
            Self::Resolve => ("Resolve", Some("danger")),
        };
        let text = json!({"type": "plain_text", "text": text, "emoji": false});
        let mut button = json!({"type": "button", "action_id": self.id(), "value": incident, "text": text});
        if let Some(style) = style {
            button["style"] = style.into();
        }
        if self == Self::Resolve {
            button["confirm"] = confirmation();
        }
        button
    }
}

/// The confirmation dialog for resolving, because a wrong resolve hides a real problem.
fn confirmation() -> Value {
    let plain = |text: &str| json!({"type": "plain_text", "text": text, "emoji": false});
    let why = "It is closed for everybody. If it still fires, it is reopened after a while (10 minutes by default). Silence it to keep it quiet.";
    json!({
        "title": plain("Resolve this incident?"), "text": plain(why),
        "confirm": plain("Resolve"), "deny": plain("Not yet"), "style": "danger",
    })
}

/// The buttons of an incident in its present state.
pub(super) fn for_message(m: &Message) -> impl Iterator<Item = Value> + '_ {
    Deed::ALL.iter().filter(|deed| deed.fits(m.status)).map(|deed| deed.button(&m.incident))
}

//! What goes in and what comes out of the responder.

use serde::{Deserialize, Serialize};

use crate::external::{Firing, PostedAlert};
use crate::incident_record::{IncidentRecord, Verdict};
use crate::message::{Message, Reason};
use crate::silence::{Plan, Silence};
use stepwatch_model::{Severity, Span, Ts};

/// Everything the responder reacts to beside what is detected. A journal of inputs replays to the
/// same state.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A person did something with an incident.
    Act { incident: &'a str, by: &'a str, action: &'a IncidentAction },
    /// The alerter looked at a part of itself: what is wrong with it, in words, or nothing.
    Own { check: &'a str, severity: Severity, fault: Option<&'a str> },
    /// Why the store takes nothing, or nothing if it does. `recorded` is the time of what it took
    /// last: a fault has the same id by it after a crash, of which the store knows nothing.
    Store { fault: Option<&'a str>, recorded: Option<Ts> },
    /// What the calendar of a schedule says now; without a text, that it says what it said before.
    Calendar { schedule: &'a str, text: Option<&'a str> },
    /// A receiver took a notification.
    Delivered { incident: &'a str, receiver: &'a str, action: Action },
    /// A receiver has not taken a call for a person for so long, and is still asked to.
    Unreached { incident: &'a str, receiver: &'a str, waited: Span, error: &'a str },
    /// No page waits any more for a receiver that did not take it.
    AllReached,
    /// A receiver that is well takes no call for so long, by its own word: others are called
    /// meanwhile.
    PutOff { incident: &'a str, receiver: &'a str, wait: Span, error: &'a str },
    /// A receiver will never take a notification (permanent error): the engine goes to the next
    /// level at once.
    Failed { incident: &'a str, receiver: &'a str, action: Action, error: &'a str },
    /// Somebody asked for a silence, and [`crate::Responder::plan_silence`] allowed it.
    Silence { plan: &'a Plan },
    /// Somebody ended a silence.
    ExpireSilence { id: &'a str },
    /// Another program posted alerts that fire, or are over.
    Alerts { posted: &'a [PostedAlert] },
}

/// What a person does with an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncidentAction {
    /// The person took it: escalation stops.
    Ack,
    /// Whoever took it does not have it any more: escalation goes on where it stopped.
    Unack,
    Resolve,
    /// The same, and what it was.
    ResolveAs(Verdict),
    /// The next level is notified now, also of an acknowledged incident.
    Escalate,
    /// Of what a person resolved and still fires.
    Reopen,
    /// A word that changes nothing but its history.
    Note(String),
}

impl IncidentAction {
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Unack => "unack",
            Self::Resolve | Self::ResolveAs(_) => "resolve",
            Self::Escalate => "escalate",
            Self::Reopen => "reopen",
            Self::Note(_) => "note",
        }
    }
}

/// What the runtime must do. It persists all effects of a batch, and the state they came from, in
/// one transaction before it sends anything.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// The incident as it now is: insert or replace its row.
    Incident(Box<IncidentRecord>),
    /// One line of an incident's history.
    Timeline(TimelineEntry),
    /// Put into the outbox.
    Notify(Box<Notification>),
    /// The silence as it now is: insert or replace its row.
    Silence(Box<Silence>),
    /// An alert of another program that fires, as it was last posted: insert or replace its row.
    Alert(Firing),
    /// The alert with this fingerprint is over: remove its row.
    AlertOver(u64),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimelineEntry {
    pub incident: String,
    pub at: Ts,
    /// `engine`, `cli:alice`, `api:bob`, `slack:U123 (alice)`, a receiver name.
    pub actor: String,
    pub what: String,
    /// Why nobody is notified from then on, where the entry is about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suppressed: Option<String>,
}

impl TimelineEntry {
    pub fn new(incident: &str, at: Ts, actor: &str, what: String) -> Self {
        Self { incident: incident.to_owned(), at, actor: actor.to_owned(), what, suppressed: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// First word to this receiver, and every repeat of a page that nobody answered.
    Trigger,
    /// News of an incident that the receiver knows. Later updates replace undelivered earlier ones.
    Update,
    Ack,
    Resolve,
}

impl Action {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trigger => "trigger",
            Self::Update => "update",
            Self::Ack => "ack",
            Self::Resolve => "resolve",
        }
    }
}

/// One message to one receiver. Delivered in `seq` order within a lane (incident, receiver), at
/// least once, under a key that makes a second delivery harmless.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Notification {
    pub incident: String,
    pub receiver: String,
    /// Order within the lane, from 1.
    pub seq: u32,
    pub action: Action,
    /// `<incident>/<receiver>/<seq>`: frozen, so that a resend is recognised.
    pub idem_key: String,
    /// Page-class notifications are never given up while the incident is open and unacknowledged.
    pub page: bool,
    /// Whom it is for, where the receiver is shared: names of `users`.
    #[serde(default)]
    pub users: Vec<String>,
    /// What Slack calls them; only of those of whom it is known.
    #[serde(default)]
    pub slack_ids: Vec<String>,
    /// How it came to this receiver; `None` in a message to those notified before.
    #[serde(default)]
    pub path: Option<Path>,
    /// The incident is suppressed and is notified all the same: a person asked for it, or it is an
    /// acknowledgement or an end.
    #[serde(default)]
    pub despite_suppression: bool,
    /// Who goes on about the call that was made before, in words: this one rings nobody anew.
    #[serde(default)]
    pub left_to: Option<String>,
    /// Who reported the incident: the exporter or the sender of alerts, and the user there. What
    /// waits for a receiver is sent in turn.
    #[serde(default)]
    pub source: String,
    #[serde(default)]
    pub reporter: String,
    pub message: Message,
}

impl Notification {
    /// Whether it is to rouse somebody, also those notified before. An update of an incident that
    /// nobody has any more is such a call too.
    pub fn calls(&self) -> bool {
        self.action == Action::Trigger || self.message.because == Reason::Unacknowledged
    }
}

/// Why this receiver, now: for whoever asks why the phone rang.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Path {
    /// Where the route is in the configuration, and which of its words chose it.
    pub route: String,
    pub matched: String,
    pub policy: Option<String>,
    /// From 1; 0 for a receiver that is notified because another one could not be.
    pub level: u32,
    /// How often this level had been notified before.
    pub again: u32,
    /// Which items of the level led here, and how: `schedule primary: alice (weekly) by pd`.
    pub chosen: Vec<String>,
    /// Conditions that were asked and held, and silences that were looked at.
    pub asked: Vec<String>,
}

/// One moment, and what must be done because of what happened in it.
#[derive(Debug)]
pub struct Tx<'a> {
    pub now: Ts,
    pub out: &'a mut Vec<Effect>,
}

impl<'a> Tx<'a> {
    pub fn new(now: Ts, out: &'a mut Vec<Effect>) -> Self {
        Self { now, out }
    }
}

pub(crate) fn timeline(at: Ts, incident: &str, what: String) -> Effect {
    by_actor(at, incident, "engine", what)
}

pub(crate) fn by_actor(at: Ts, incident: &str, actor: &str, what: String) -> Effect {
    Effect::Timeline(TimelineEntry::new(incident, at, actor, what))
}

//! The inputs and the effects of the responder.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::external::{Firing, PostedAlert};
use crate::incident_record::{IncidentRecord, Verdict};
use crate::message::{Message, Reason};
use crate::oncall::OverrideRecord;
use crate::silence::{Plan, Silence};
use stepwatch_model::{Severity, Span, Ts};

/// All inputs of the responder besides findings. A journal of inputs replays to the same state.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A person acted on an incident.
    Act { incident: &'a str, by: &'a str, action: &'a IncidentAction },
    /// The result of a self-check of the alerter. `fault` says what is wrong; `None` if nothing is.
    Own { check: &'a str, severity: Severity, fault: Option<&'a str> },
    /// The state of the store. `fault` says why it accepts no writes; `None` if it does. `recorded`
    /// is the time of its last write: a fault that could not be stored has the same id after a
    /// crash.
    Store { fault: Option<&'a str>, recorded: Option<Ts> },
    /// Replicas that have differed from the leader for long; none if all agree.
    Replicas { differing: &'a [Differing] },
    /// The text of a schedule's calendar as it was just read; `None` if it has not changed.
    Calendar { schedule: &'a str, text: Option<&'a str> },
    /// A receiver accepted a notification.
    Delivered { incident: &'a str, receiver: &'a str, action: Action },
    /// A receiver has not accepted a call for `waited`, and the delivery is still tried.
    Unreached { incident: &'a str, receiver: &'a str, waited: Span, error: &'a str },
    /// No page waits any more for a receiver that did not accept it.
    AllReached,
    /// A receiver without a fault asks not to be called for `wait`; others are called meanwhile.
    PutOff { incident: &'a str, receiver: &'a str, wait: Span, error: &'a str },
    /// A receiver will never accept a notification (permanent error): the next level is due at
    /// once.
    Failed { incident: &'a str, receiver: &'a str, action: Action, error: &'a str },
    /// A person asked for a silence, and [`crate::Responder::plan_silence`] allowed it.
    Silence { plan: &'a Plan },
    /// A person ended a silence.
    ExpireSilence { id: &'a str },
    /// A person made an override of an on-call schedule, and [`crate::oncall::OnCall`] allowed it;
    /// or removed one.
    Override { record: &'a Arc<OverrideRecord> },
    /// Another program posted alerts that fire, or are over.
    Alerts { posted: &'a [PostedAlert] },
}

/// A replica that runs and differs from the one that leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differing {
    pub address: String,
    /// Its version, if that differs.
    pub version: Option<String>,
    /// Whether its configuration differs.
    pub configuration: bool,
}

/// An action of a person on an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncidentAction {
    /// Acknowledges the incident: escalation stops.
    Ack,
    /// Removes the acknowledgement: escalation resumes where it stopped.
    Unack,
    Resolve,
    /// Resolves the incident, and says what it was.
    ResolveAs(Verdict),
    /// Notifies the next level now, also if the incident is acknowledged.
    Escalate,
    /// Reopens an incident that a person resolved and that still fires.
    Reopen,
    /// Adds a remark to the timeline and changes nothing else.
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
    /// The override of an on-call schedule as it now is: insert or replace its row.
    Override(Arc<OverrideRecord>),
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
    /// Why nobody is notified from then on, if the entry is about a suppression.
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
    /// The first notification to this receiver, and every repeat of a page that nobody answered.
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
    /// A page is tried for as long as the incident is open and unacknowledged.
    pub page: bool,
    /// The names of the `users` that it is for, if the receiver is shared.
    #[serde(default)]
    pub users: Vec<String>,
    /// The Slack ids of those users for whom one is configured.
    #[serde(default)]
    pub slack_ids: Vec<String>,
    /// How this receiver was chosen; `None` in a message to receivers that were notified before.
    #[serde(default)]
    pub path: Option<Path>,
    /// The incident is suppressed but is notified all the same: a person asked for it, or it is an
    /// acknowledgement or an end.
    #[serde(default)]
    pub despite_suppression: bool,
    /// The service that repeats the earlier call by itself, in words. This notification then calls
    /// nobody anew.
    #[serde(default)]
    pub left_to: Option<String>,
    /// The exporter, or the sender of alerts, that reported the incident. Notifications that wait
    /// for a receiver are sent in turn by source. `reporter` names the user there too.
    #[serde(default)]
    pub source: String,
    #[serde(default)]
    pub reporter: String,
    pub message: Message,
}

impl Notification {
    /// Whether it must call somebody, also those notified before. An update after an
    /// acknowledgement was removed is such a call too.
    pub fn calls(&self) -> bool {
        self.action == Action::Trigger || self.message.because == Reason::Unacknowledged
    }
}

/// Why this receiver is notified now: the answer to why the phone rang.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Path {
    /// The place of the route in the configuration; `matched` has the matchers that chose it.
    pub route: String,
    pub matched: String,
    pub policy: Option<String>,
    /// The level, from 1; 0 for a receiver that is notified because another one could not be.
    pub level: u32,
    /// How often this level had been notified before.
    pub again: u32,
    /// Which items of the level led here, and how: `schedule primary: alice (weekly) by pd`.
    pub chosen: Vec<String>,
    /// Conditions that were checked and held, and silences that were looked at.
    pub asked: Vec<String>,
}

/// The time of an input, and the effects that it has.
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

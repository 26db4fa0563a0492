//! The record of an incident that is stored, listed and shown: what it is, who acknowledged it, and
//! how it ended.

use serde::{Deserialize, Serialize};
use stepwatch_model::{Cause, Kind, Sentence, Severity, Span, Suspect, Ts};

use crate::labels;
use crate::matcher::Labels;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Open,
    Acknowledged,
    Resolved,
}

/// How an incident ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// A person resolved it.
    Person,
    /// The sender of the alert reported its end.
    Sender,
    /// Measurements show that it is over.
    Clear,
    /// Its reports stopped: it counts as over, and may still hold.
    Stale,
    /// The run came to its end.
    RunEnded,
    /// Another incident reports it from then on.
    Replaced,
}

/// What an incident was, in the words of the person who resolved it. The text forms are a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Something was wrong, and it was worth a message.
    Real,
    /// It was as the message said, and not worth one.
    Noise,
    /// It was not as the message said.
    False,
}

/// The end of an incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub how: Ended,
    /// The person who resolved it.
    #[serde(default)]
    pub by: Option<String>,
    /// When a stale incident was last reported.
    #[serde(default)]
    pub silent_since: Option<Ts>,
    /// When an incident that a person resolved reopens, unless it is over by then.
    #[serde(default)]
    pub reopens_at: Option<Ts>,
    /// What the person who resolved it says that it was.
    #[serde(default)]
    pub verdict: Option<Verdict>,
}

/// The title of an incident when it was acknowledged, and the number of alerts or faults that the
/// title does not name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub title: String,
    /// Alerts, or faults, that were acknowledged later.
    pub more: u32,
    /// Alerts, or faults, that nobody has acknowledged yet.
    pub new: u32,
}

/// What suppresses an open incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuppressionReason {
    /// A silence that a person or the configuration made.
    Silenced,
    /// An incident that explains it.
    Inhibited,
    /// The incident that many are rolled up into.
    RolledUp,
}

/// Why an open incident notifies nobody, and until when. The incident is still kept, shown and
/// counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suppression {
    pub why: SuppressionReason,
    /// The id of the silence or incident.
    pub by: String,
    /// When the suppression ends, if that is known.
    pub until: Option<Ts>,
    /// For people: `silenced by alice until 2026-11-21T02:16:56Z: new switch`.
    pub words: String,
}

/// How long the run of an incident has stood still. An incident of a GPU that failed stays open
/// until the GPU is repaired, long after its run has gone on elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standstill {
    /// Of what is over.
    pub before: Span,
    /// Since when it stands still now.
    pub since: Option<Ts>,
}

impl Standstill {
    pub(crate) fn begin(&mut self, now: Ts) {
        self.since.get_or_insert(now);
    }

    pub(crate) fn end(&mut self, now: Ts) {
        if let Some(since) = self.since.take() {
            self.before = Span(self.before.0 + (now - since).0.max(0));
        }
    }

    /// In all, until `end`, when the incident was resolved or is looked at.
    pub fn lasted(&self, end: Ts) -> Span {
        let now = self.since.map_or(0, |since| (end - since).0.max(0));
        Span(self.before.0 + now)
    }
}

/// An incident as stored, listed and shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IncidentRecord {
    pub id: String,
    /// The run that it hits; empty for a node that no run uses.
    pub run: String,
    /// Nodes that are faulty themselves, the first suspect first.
    #[serde(default)]
    pub nodes: Vec<String>,
    pub cause: Cause,
    /// The kind of the most severe finding.
    pub kind: Kind,
    /// The highest severity it reached.
    pub severity: Severity,
    pub state: State,
    pub signal: String,
    /// Estimated onset.
    pub start_step: i64,
    /// The last step fed when it was first announced (ticket or page); of an annotation, when it
    /// was seen.
    pub opened_step: i64,
    /// The last step fed when it reached its severity.
    pub detected_step: i64,
    pub end_step: Option<i64>,
    #[serde(with = "stepwatch_wire::num::any")]
    pub value: f64,
    #[serde(with = "stepwatch_wire::num::any")]
    pub expected: f64,
    #[serde(with = "stepwatch_wire::num::any")]
    pub score: f64,
    pub summary: Sentence,
    pub suspects: Vec<Suspect>,
    pub opened_at: Ts,
    pub resolved_at: Option<Ts>,
    pub acked_by: Option<String>,
    pub acked_at: Option<Ts>,
    /// Escalation level reached, from 1; 0 before anyone was notified.
    pub level: u32,
    /// When the next escalation is due.
    pub next_at: Option<Ts>,
    /// How often it came back within the hold time.
    pub flaps: u32,
    #[serde(default)]
    pub labels: Labels,
    /// Why it notifies nobody; `None` if it is not suppressed.
    #[serde(default)]
    pub suppression: Option<Suppression>,
    #[serde(default)]
    pub end: Option<End>,
    #[serde(default)]
    pub named: Option<Named>,
    /// When it last grew beyond what earlier answers cover: it became a page, or came back.
    #[serde(default)]
    pub asked_anew_at: Option<Ts>,
    /// `None` if its run never stood still.
    #[serde(default)]
    pub standstill: Option<Standstill>,
}

impl Verdict {
    pub const ALL: [Self; 3] = [Self::Real, Self::Noise, Self::False];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Noise => "noise",
            Self::False => "false",
        }
    }

    /// The words that follow `resolved by alice`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Real => " as real",
            Self::Noise => " as noise",
            Self::False => " as a false alarm",
        }
    }
}

impl End {
    pub(crate) fn of(how: Ended) -> Self {
        Self { how, by: None, silent_since: None, reopens_at: None, verdict: None }
    }

    pub(crate) fn stale(since: Ts) -> Self {
        Self { silent_since: Some(since), ..Self::of(Ended::Stale) }
    }

    /// The words that follow `resolved`: `by alice`, `: its sender said so`.
    pub fn words(&self) -> String {
        match (self.how, &self.by, self.silent_since) {
            (Ended::Person, Some(by), _) => {
                format!(" by {by}{}", self.verdict.map(Verdict::words).unwrap_or_default())
            }
            (Ended::Sender, ..) => ": its sender said that it is over".into(),
            (Ended::Stale, _, Some(at)) => format!(" as stale: nothing has been heard of it since {at}"),
            (Ended::Stale, ..) => " as stale".into(),
            (Ended::RunEnded, ..) => ": the run ended".into(),
            (Ended::Replaced, ..) => ": part of another incident".into(),
            (Ended::Person | Ended::Clear, ..) => String::new(),
        }
    }
}

impl End {
    /// The words of a message about an end that was not measured.
    pub(crate) fn after(&self, lasted: Span) -> String {
        match (self.how, self.silent_since) {
            (Ended::Stale, Some(at)) => {
                format!("stale after {lasted}: nothing has been heard of it since {at}; it may still hold")
            }
            (Ended::RunEnded, _) => format!("resolved after {lasted}: the run ended and nobody answered"),
            _ => format!("resolved after {lasted}: its sender said that it is over"),
        }
    }
}

impl Named {
    fn words(&self) -> String {
        let more = if self.more > 0 { format!(" and {} more", self.more) } else { String::new() };
        let new = if self.new > 0 { format!(" +{} new", self.new) } else { String::new() };
        format!("{}{more}{new}", self.title)
    }
}

impl IncidentRecord {
    /// What is wrong, in a word or two: `hang`, or the name of an external alert.
    pub fn title(&self) -> String {
        if let Some(named) = &self.named {
            return named.words();
        }
        match self.alert() {
            Some(name) if self.kind.is_external() => name.split_whitespace().collect::<Vec<_>>().join(" "),
            _ => self.kind.title().to_owned(),
        }
    }

    /// When it reopens unless it is over by then, if a person resolved it while it still fired.
    pub fn reopens_at(&self) -> Option<Ts> {
        self.end.as_ref()?.reopens_at
    }

    /// Its suppression, if it has one for this reason.
    pub fn suppressed_as(&self, why: SuppressionReason) -> Option<&Suppression> {
        self.suppression.as_ref().filter(|suppression| suppression.why == why)
    }

    /// Whether it counts as over because its reports stopped.
    pub fn is_stale(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.how == Ended::Stale)
    }

    /// Whether it hits a run, to which it can cost time and money.
    pub fn hits_a_run(&self) -> bool {
        !self.run.is_empty() && self.run != stepwatch_model::NO_RUN
    }

    /// Whether its messages contain the state and the cost of the run. Those of external alerts do
    /// not: only the program that reports them knows what they cost.
    pub fn costs_a_run(&self) -> bool {
        self.hits_a_run() && !self.kind.is_external()
    }

    /// Whether it has a position in the steps of a run. An external alert has one only if Stepwatch
    /// watches that run.
    pub fn has_steps(&self) -> bool {
        let unwatched = self.alert().is_some() && self.start_step == 0 && self.opened_step == 0;
        !self.run.is_empty() && !matches!(self.cause, Cause::Telemetry | Cause::External) && !unwatched
    }

    /// The name of its external alerts, if all of them have the same name.
    pub fn alert(&self) -> Option<&str> {
        let name = self.labels.get(labels::ALERTNAME).filter(|name| !name.trim().is_empty())?;
        (*name != labels::alertname(self.kind)).then_some(name.as_str())
    }

    /// What it is about, in a word or two: `llama-70b`, `gpu-042`, `llama-70b on gpu-042`.
    pub fn place(&self) -> String {
        match self.kind {
            Kind::AlertStorm => {
                self.labels.get(labels::ORIGIN).map_or("many places", String::as_str).to_owned()
            }
            Kind::AlerterFault => "this alerter".into(),
            // Of replicas, and of no run.
            Kind::ConfigDrift if self.run.is_empty() && self.nodes.is_empty() => "this alerter".into(),
            // A series of no run and no node has only its metric.
            _ => match stepwatch_model::place(&self.run, &self.nodes) {
                place if place.is_empty() => self.labels.get(labels::METRIC).cloned().unwrap_or_default(),
                place => place,
            },
        }
    }
}

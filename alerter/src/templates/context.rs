//! The variables of a template: a contract that `docs/incidents.md` describes. Names are added, but
//! never changed or removed.

use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr, Serde};
use serde::Serialize;
use stepwatch_model::{Cause, Kind, Suspect};
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::incident::Ended;
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::message::{
    Details, Evidence, Fact, Link, LinkRole, Message, RunDetails, Status, place,
};

/// The reason for this message.
#[derive(Serialize)]
struct Why<'a> {
    code: &'static str,
    text: &'a str,
}

#[derive(Serialize)]
struct Incident<'a> {
    id: &'a str,
    kind: &'static str,
    /// The name of the kind for people.
    name: &'static str,
    cause: Option<Cause>,
    severity: &'static str,
    status: Status,
    ended: Option<Ended>,
    /// The subject, such as `llama-70b on gpu-042`.
    place: String,
    run: &'a str,
    nodes: &'a [String],
    started_at: String,
    age_seconds: f64,
    level: u32,
    returns: u32,
    acknowledged_by: Option<&'a str>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    receiver: &'a str,
    action: Action,
    page: bool,
    users: &'a [String],
    seq: u32,
    at: String,
}

#[derive(Serialize)]
struct Checkpoint {
    step: Option<i64>,
    at: String,
    age_seconds: f64,
    after_onset: bool,
    good_step: Option<i64>,
    unsaved_seconds: f64,
}

pub(super) fn for_notification(n: &Notification) -> Value {
    let (m, d) = (&n.message, &n.message.details);
    let runbook = m.links.iter().find(|l| l.role == LinkRole::Runbook).map(|l| l.href.as_str());
    let checkpoint = d.checkpoint.as_ref().map(|c| Checkpoint {
        step: c.step,
        at: c.at.to_string(),
        age_seconds: c.age_seconds,
        after_onset: c.after_onset,
        good_step: c.good_step,
        unsaved_seconds: c.unsaved_seconds,
    });
    let (evidence, run, suspects): (&Evidence, &RunDetails, &[Suspect]) = (&d.evidence, &d.run, &d.suspects);
    let (facts, links): (&[Fact], &[Link]) = (&m.facts, &m.links);
    Value::from_pairs([
        ("advice", known(d.advice.as_ref())),
        ("checkpoint", known(checkpoint.as_ref())),
        ("cost", known(d.cost.as_ref())),
        ("evidence", value(evidence)),
        ("facts", value(facts)),
        ("incident", value(incident(m, d))),
        ("labels", Value::from_object(AnyLabels(m.labels.clone()))),
        ("links", value(links)),
        ("message", value(envelope(n))),
        ("plan", known(d.plan.as_ref())),
        ("reason", value(Why { code: m.because.as_str(), text: &m.reason })),
        ("run", value(run)),
        ("runbook", known(runbook)),
        ("summary", Value::from(m.summary.as_str())),
        ("suspects", value(suspects)),
        ("title", Value::from(m.title.as_str())),
    ])
}

fn value(v: impl Serialize) -> Value {
    Value::from(Serde(v))
}

/// A value of the context. An absent one is undefined, and so are its members.
fn known(v: Option<impl Serialize>) -> Value {
    v.map_or(Value::UNDEFINED, value)
}

fn incident<'a>(m: &'a Message, d: &'a Details) -> Incident<'a> {
    Incident {
        id: &m.incident,
        kind: m.kind.as_str(),
        name: Kind::title(m.kind),
        cause: d.cause,
        severity: m.severity.as_str(),
        status: m.status,
        ended: m.ended,
        place: place(&m.run, &m.nodes),
        run: &m.run,
        nodes: &m.nodes,
        started_at: m.started_at.to_string(),
        age_seconds: (m.at - m.started_at).as_secs_f64(),
        level: d.level,
        returns: d.returns,
        acknowledged_by: d.acknowledged_by.as_deref(),
    }
}

fn envelope(n: &Notification) -> Envelope<'_> {
    Envelope {
        receiver: &n.receiver,
        action: n.action,
        page: n.page,
        users: &n.users,
        seq: n.seq,
        at: n.message.at.to_string(),
    }
}

/// Labels by name; an absent label is empty, as for a matcher.
#[derive(Debug)]
struct AnyLabels(Labels);

impl Object for AnyLabels {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        Some(Value::from(key.as_str().and_then(|name| self.0.get(name)).map_or("", String::as_str)))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.keys().map(|name| Value::from(name.as_str())).collect())
    }
}

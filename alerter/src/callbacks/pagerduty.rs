//! The PagerDuty endpoint: v3 webhooks of a subscription.
//!
//! They arrive at least once, in any order, and their signature contains no time. So a webhook is
//! applied once by its id, is dropped if it is old, and never reverts a later one. An incident is
//! found by our key, or, if the service groups alerts under its own keys, by the id in an earlier
//! webhook with our key.
//!
//! If a person merges incidents, the alerts of one move to the other, which may belong to another
//! program, and the first is resolved; that is not a person's answer. From then on, webhooks about
//! the other apply to both.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use stepwatch_model::Severity;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::incident::{IncidentRecord, State as Standing};

use super::signature::{self, Forged};
use super::{Callbacks, Heard, Outcome, Wish};
use crate::api::auth::Caller;
use crate::notify::pagerduty::{Hook, actor, key, ring_of, with_open};
use crate::notify::{CallbackConfig, Ring, line};
use crate::runtime::IncidentAction;
use crate::signed_paths::PAGERDUTY as PATH;
use crate::store::{Counterpart, Store, StoreError};

const SERVICE: &str = "pagerduty";

/// The age from which webhooks are dropped, because older ones could be replays whose ids are no
/// longer kept. It is longer than any redelivery.
const BELIEVED: Span = Span::secs(86_400);
const NAME_MAX: usize = 80;
const NOTE_MAX: usize = 300;
const ID_MAX: usize = 255;

/// The relevant fields of an event.
#[derive(Debug, Clone, PartialEq)]
struct Said {
    id: String,
    /// The event type, without `incident.`
    what: String,
    at: Ts,
    /// The person who caused it; `None` if no person did.
    person: Option<String>,
    /// Whether the service caused it by itself.
    by_itself: bool,
    /// PagerDuty's id of the incident.
    incident: String,
    key: Option<String>,
    assignees: Vec<String>,
    /// The merge, if the incident was resolved because a person merged it.
    merged: Option<Merged>,
}

impl Said {
    fn who(&self) -> &str {
        self.person.as_deref().unwrap_or("PagerDuty")
    }
}

/// The PagerDuty incident into which another was merged, if the service names it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Merged {
    id: Option<String>,
    name: Option<String>,
}

/// The origin of the event.
#[derive(Debug)]
struct Voice {
    /// The receivers with this secret: a subscription for a whole account has one for all of its
    /// services.
    receivers: Vec<String>,
    hooks: Vec<Arc<Hook>>,
}

/// The meaning of an event for our incident.
#[derive(Debug, PartialEq)]
enum Meaning {
    Act(IncidentAction),
    /// A person takes the acknowledgement back.
    Reopen,
    /// The event only contributes the incident's id.
    Nothing,
}

/// Answers of people in PagerDuty: webhooks, version 3.
#[utoipa::path(
    post,
    path = PATH,
    operation_id = "pagerdutyWebhook",
    tag = "callbacks",
    security(("pagerdutySignature" = [])),
    request_body(content = Value, content_type = "application/json", description = "An event of PagerDuty"),
    responses(
        (status = 200, description = "Heard, also when it changed nothing", body = String, content_type = "text/plain"),
        (status = 400, description = "Malformed", body = String, content_type = "text/plain"),
        (status = 403, description = "Not signed by PagerDuty", body = String, content_type = "text/plain"),
        (status = 404, description = "No receiver has a webhook secret", body = String, content_type = "text/plain"),
        (status = 413, description = "The body is too large", body = String, content_type = "text/plain"),
        (status = 503, description = "Not durable: send it again", body = String, content_type = "text/plain"),
    )
)]
pub(super) async fn webhook(
    State(callbacks): State<Callbacks>,
    caller: Caller,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let callbacks = callbacks.entered_by(caller);
    let hooks: Vec<_> = callbacks
        .callback_configs()
        .into_iter()
        .filter_map(|(name, callback_config)| match callback_config {
            CallbackConfig::PagerDuty(hook) => Some((name, hook)),
            CallbackConfig::Slack(_) => None,
        })
        .collect();
    if hooks.is_empty() {
        return (StatusCode::NOT_FOUND, "no receiver has a webhook_secret_file\n").into_response();
    }
    let given: Vec<_> =
        headers.get_all("x-pagerduty-signature").iter().filter_map(|v| v.to_str().ok()).collect();
    let given = (!given.is_empty()).then(|| given.join(","));
    let check = |secret| signature::pagerduty(secret, given.as_deref(), &body);
    let signed: Vec<_> = hooks.iter().filter(|(_, hook)| check(&hook.secret).is_ok()).cloned().collect();
    if signed.is_empty() {
        callbacks.inner.metrics.count(SERVICE, "refused");
        let malformed = hooks.iter().any(|(_, hook)| check(&hook.secret) == Err(Forged::Malformed));
        if let Some(count) = callbacks.inner.forged_pagerduty.count(1) {
            tracing::warn!(count, malformed, "a request to {PATH} is not from PagerDuty: refused");
        }
        // After a 403 the service does not repeat the request.
        let status = if malformed { StatusCode::BAD_REQUEST } else { StatusCode::FORBIDDEN };
        return (status, "not signed by PagerDuty\n").into_response();
    }
    let (receivers, hooks) = signed.into_iter().unzip();
    let voice = Voice { receivers, hooks };
    let (result, status) = hear(&callbacks, &body, &voice).await;
    callbacks.inner.metrics.count(SERVICE, result);
    (status, format!("{result}\n")).into_response()
}

async fn hear(callbacks: &Callbacks, body: &[u8], voice: &Voice) -> (&'static str, StatusCode) {
    let Some(event) = event(body) else { return ("malformed", StatusCode::BAD_REQUEST) };
    if event["event_type"] == "pagey.ping" {
        tracing::info!("PagerDuty's webhook subscription reaches us");
        return ("nothing", StatusCode::OK);
    }
    let Some(said) = said(&event) else { return ("nothing", StatusCode::OK) };
    let now = (callbacks.inner.clock)();
    // A signed event from the future is accepted, because our clock may be slow and a person has
    // answered.
    if said.at + BELIEVED < now {
        tracing::warn!(event = said.id, at = %said.at, "a word from PagerDuty is too old: passed over");
        return ("nothing", StatusCode::OK);
    }
    match callbacks.once(SERVICE, &said.id, act(callbacks, &said, voice)).await {
        Heard::Before => ("repeated", StatusCode::OK),
        Heard::Now(Outcome::Done) => ("acted", StatusCode::OK),
        Heard::Now(Outcome::Failed(why)) | Heard::Unclear(why) => {
            tracing::warn!(
                event = said.id,
                why,
                "a word from PagerDuty could not be acted upon; it comes again"
            );
            ("failed", StatusCode::SERVICE_UNAVAILABLE)
        }
        Heard::Now(_) => ("nothing", StatusCode::OK),
    }
}

/// The result, and whether the event is done.
async fn act(callbacks: &Callbacks, said: &Said, voice: &Voice) -> (Outcome, bool) {
    let failed = || (Outcome::Failed("the store does not answer".into()), false);
    let Ok((known, about)) = about(&callbacks.inner.store, said).await else { return failed() };
    if about.is_empty() {
        let outcome = match one_of_ours(said).zip(word(said)) {
            Some((id, action)) => callbacks.not_found(id, &actor(said.who(), None), action).await,
            None => Outcome::Unknown,
        };
        let done = !matches!(outcome, Outcome::Failed(_));
        return (outcome, done);
    }
    let late = known.is_some_and(|c| said.at < c.spoke_at);
    let mut came_to = Outcome::Unknown;
    for incident in &about {
        let opened = ring(said, incident).filter(|_| said.what == "triggered");
        if let Some(ring) = opened
            && callbacks.inner.store.confirm(incident, ring).await.is_err()
        {
            return failed();
        }
        let Ok(outcome) = answer(callbacks, said, voice, incident, late).await else { return failed() };
        match outcome {
            Outcome::Failed(_) => return (outcome, false),
            Outcome::Done => came_to = outcome,
            _ if came_to != Outcome::Done => came_to = outcome,
            _ => {}
        }
    }
    // An event without an effect must not make a later one count as late.
    let spoke_at = if matches!(came_to, Outcome::Done | Outcome::Already(_)) { said.at } else { Ts(0) };
    match remember(&callbacks.inner.store, said, about, spoke_at).await {
        Ok(()) => (came_to, true),
        Err(_) => failed(),
    }
}

/// Applies an event to one incident. If it is `late`, a later event stays in force.
async fn answer(
    callbacks: &Callbacks,
    said: &Said,
    voice: &Voice,
    incident: &str,
    late: bool,
) -> Result<Outcome, StoreError> {
    let record = match callbacks.inner.store.incident(incident).await {
        Ok(Some(record)) if record.id == incident => record,
        Ok(_) => {
            let by = actor(said.who(), None);
            return Ok(match word(said) {
                Some(action) => callbacks.not_found(incident, &by, action).await,
                None => Outcome::Unknown,
            });
        }
        Err(err) => return Err(err),
    };
    let receiver = receiver(&callbacks.inner.store, said, voice, incident).await?;
    let by = actor(said.who(), receiver.as_deref());
    let answers = |action: &IncidentAction| {
        matches!(action, IncidentAction::Ack | IncidentAction::Unack | IncidentAction::Resolve)
    };
    let action = match meaning(said) {
        Meaning::Reopen if !late => return reopen(callbacks, said, voice, &record, &by).await,
        Meaning::Reopen | Meaning::Nothing => return Ok(Outcome::Unknown),
        Meaning::Act(action) if answers(&action) && is_outdated(callbacks, said, &record).await? => {
            let what = format!("{} in PagerDuty before it became a page or came back", said.what);
            IncidentAction::Note(line(&format!("{what}: no answer to what it is now"), NOTE_MAX))
        }
        Meaning::Act(action) => action,
    };
    if late && !matches!(action, IncidentAction::Resolve | IncidentAction::Note(_)) {
        return Ok(Outcome::Unknown);
    }
    Ok(callbacks.act(incident, &by, Wish::Act(action)).await)
}

/// Our alert of this incident that the event names; `None` if it names none.
fn ring(said: &Said, incident: &str) -> Option<Ring> {
    said.key.as_deref().map(ring_of).filter(|(id, _)| *id == incident).map(|(_, ring)| ring)
}

/// The receiver whose service sent the event. If several have the secret, it is the one whose call
/// the event names. A service that groups alerts names none; then it is the only receiver that was
/// called.
async fn receiver(
    store: &Store,
    said: &Said,
    voice: &Voice,
    incident: &str,
) -> Result<Option<String>, StoreError> {
    if let [one] = voice.receivers.as_slice() {
        return Ok(Some(one.clone()));
    }
    let mut called = match ring(said, incident) {
        Some(ring) => store.called_by(incident, ring).await?.into_iter().collect(),
        None => store.called(incident).await?,
    };
    called.retain(|name| voice.receivers.contains(name));
    Ok(called.pop().filter(|_| called.is_empty()))
}

/// Whether the event is about an earlier state of the incident: the ticket that became a page, or a
/// time before the incident recurred.
async fn is_outdated(
    callbacks: &Callbacks,
    said: &Said,
    record: &IncidentRecord,
) -> Result<bool, StoreError> {
    let ring = ring(said, &record.id);
    if record.severity == Severity::Page && ring.is_some_and(|ring| !ring.page) {
        return Ok(true);
    }
    let Some(asked) = record.asked_anew_at.filter(|asked| said.at < *asked) else { return Ok(false) };
    // PagerDuty's clock may be slow: an event that names a later call is an answer to it.
    let called = match ring {
        Some(ring) => callbacks.inner.store.called_at(&record.id, ring).await?,
        None => None,
    };
    Ok(called.is_none_or(|at| at < asked))
}

/// A person reopened an alert in PagerDuty. If the incident still fires it is reopened here too,
/// and the alert ends with it. If it is over, the alert is resolved again, because nothing else
/// would end it.
async fn reopen(
    callbacks: &Callbacks,
    said: &Said,
    voice: &Voice,
    record: &IncidentRecord,
    by: &str,
) -> Result<Outcome, StoreError> {
    let (store, now) = (&callbacks.inner.store, (callbacks.inner.clock)());
    let rings = match ring(said, &record.id) {
        Some(ring) => vec![ring],
        None => store.rings_of(&record.id).await?,
    };
    let note = |what: &str| Wish::Act(IncidentAction::Note(what.to_owned()));
    let closed = record.state == Standing::Resolved;
    if !closed || record.reopens_at().is_some() {
        if !store.remember_rings(&record.id, &rings, with_open, now).await? {
            return Ok(Outcome::Failed("a message of the incident is being sent".into()));
        }
        let wish = if closed { Wish::Act(IncidentAction::Reopen) } else { note("reopened in PagerDuty") };
        let outcome = callbacks.act(&record.id, by, wish).await;
        if !matches!(outcome, Outcome::Over(_)) {
            return Ok(outcome);
        }
    }
    for hook in &voice.hooks {
        for ring in &rings {
            if let Err(failure) = hook.resolve(&key(&record.id, *ring)).await {
                return Ok(Outcome::Failed(failure.error));
            }
        }
    }
    let what = "reopened in PagerDuty; it does not fire any more, so that it was resolved there again";
    Ok(callbacks.act(&record.id, by, note(what)).await)
}

/// The incident that the key names, if the key has our format: a subscription for a whole account
/// also delivers other incidents.
fn one_of_ours(said: &Said) -> Option<&str> {
    const CHARS: usize = 16;
    let id = said.key.as_deref().map(|key| ring_of(key).0)?;
    let like_ours = |b: u8| b.is_ascii_digit() || b.is_ascii_uppercase();
    (id.len() == CHARS && id.bytes().all(like_ours)).then_some(id)
}

/// The action of the person who caused the event.
fn word(said: &Said) -> Option<IncidentAction> {
    match meaning(said) {
        Meaning::Act(action) => Some(action),
        Meaning::Reopen => Some(IncidentAction::Reopen),
        Meaning::Nothing => None,
    }
}

/// Our incidents that an event is about, and the stored counterpart in PagerDuty.
async fn about(store: &Store, said: &Said) -> Result<(Option<Counterpart>, Vec<String>), StoreError> {
    let known = store.counterpart(SERVICE, &said.incident).await?;
    let mut about = Vec::new();
    if let Some(id) = said.key.as_deref().map(|key| ring_of(key).0)
        && matches!(store.incident(id).await, Ok(Some(r)) if r.id == id)
    {
        about.push(id.to_owned());
    } else if let Some(known) = &known {
        about.push(known.incident.clone());
    }
    for merged in store.merged_into(SERVICE, &said.incident).await? {
        if !about.contains(&merged) {
            about.push(merged);
        }
    }
    Ok((known, about))
}

async fn remember(store: &Store, said: &Said, about: Vec<String>, spoke_at: Ts) -> Result<(), StoreError> {
    let Some(incident) = about.into_iter().next() else { return Ok(()) };
    if let Some(into) = said.merged.as_ref().and_then(|merged| merged.id.as_deref()) {
        store.keep_merge(SERVICE, &said.incident, into, &incident).await?;
    }
    store.keep_counterpart(SERVICE, &said.incident, &Counterpart { incident, spoke_at }).await
}

/// Only a person's answer counts, because this program and timeouts also close alerts there. A lost
/// acknowledgement counts regardless of the cause.
fn meaning(said: &Said) -> Meaning {
    let person = said.person.as_deref();
    // A ticket under its own key is closed there when it becomes a page.
    let ticket = said.key.as_deref().is_some_and(|key| !ring_of(key).1.page);
    let note = |what: String| Meaning::Act(IncidentAction::Note(line(&what, NOTE_MAX)));
    if let Some(Merged { id, name }) = &said.merged {
        let into = name.as_ref().or(id.as_ref()).map_or("another incident", String::as_str);
        return note(format!("merged in PagerDuty into {into}"));
    }
    match (said.what.as_str(), person) {
        ("acknowledged", Some(_)) => Meaning::Act(IncidentAction::Ack),
        ("resolved", Some(_)) => Meaning::Act(IncidentAction::Resolve),
        ("resolved", None) if said.by_itself => {
            note("resolved in PagerDuty by its automatic resolution, not by a person".to_owned())
        }
        ("unacknowledged", _) if !ticket => Meaning::Act(IncidentAction::Unack),
        ("reassigned" | "delegated" | "escalated", _) => {
            let to =
                if said.assignees.is_empty() { "somebody".to_owned() } else { said.assignees.join(", ") };
            note(format!("{} in PagerDuty to {to}", said.what))
        }
        ("reopened", Some(_)) => Meaning::Reopen,
        ("reopened" | "priority_updated", _) => note(format!("{} in PagerDuty", said.what.replace('_', " "))),
        _ => Meaning::Nothing,
    }
}

/// The body of a webhook.
#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(body: &[u8]) {
    if let Some(said) = event(body).as_ref().and_then(said) {
        meaning(&said);
    }
}

/// The event in a body; `None` if it is not JSON.
fn event(body: &[u8]) -> Option<Value> {
    let mut body: Value = serde_json::from_slice(body).ok()?;
    Some(body.get_mut("event").map(Value::take).unwrap_or_default())
}

/// The relevant fields; `None` if the event is not about an incident.
fn said(event: &Value) -> Option<Said> {
    let short = |v: &Value| v.as_str().filter(|s| (1..=ID_MAX).contains(&s.len())).map(str::to_owned);
    let data = &event["data"];
    if data["type"] != "incident" {
        return None;
    }
    let at: jiff::Timestamp = event["occurred_at"].as_str()?.parse().ok()?;
    let agent = &event["agent"];
    let person = (agent["type"] == "user_reference")
        .then(|| agent["summary"].as_str().map(|name| line(name, NAME_MAX)))
        .flatten()
        .filter(|name| !name.is_empty());
    let assignees = data["assignees"].as_array().map(Vec::as_slice).unwrap_or_default();
    let into = &data["resolve_reason"];
    let merged = (into["type"] == "merge_resolve_reason").then(|| Merged {
        id: short(&into["incident"]["id"]),
        name: into["incident"]["summary"].as_str().map(|name| line(name, NAME_MAX)).filter(|n| !n.is_empty()),
    });
    Some(Said {
        id: short(&event["id"])?,
        what: event["event_type"].as_str()?.strip_prefix("incident.")?.to_owned(),
        at: Ts(at.as_millisecond()),
        person,
        by_itself: agent.is_null(),
        incident: short(&data["id"])?,
        key: short(&data["incident_key"]),
        assignees: assignees.iter().filter_map(|a| Some(line(a["summary"].as_str()?, NAME_MAX))).collect(),
        merged,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn event(what: &str, agent: Value) -> Value {
        json!({
            "id": "01DEN", "event_type": format!("incident.{what}"), "resource_type": "incident",
            "occurred_at": "2026-11-21T02:16:56.000Z", "agent": agent,
            "data": {"id": "PT4KHLK", "type": "incident", "status": "acknowledged", "incident_key": "01J9ZC",
                "assignees": [{"summary": "Bob", "type": "user_reference"}]},
        })
    }

    #[test]
    fn only_people_answer() {
        let jane = json!({"id": "PLH1HKV", "summary": "Jane", "type": "user_reference"});
        let ours = json!({"id": "P1", "summary": "Stepwatch", "type": "events_api_v2_inbound_integration_reference"});
        let of = |what: &str, agent: &Value| meaning(&said(&event(what, agent.clone())).unwrap());
        assert_eq!(of("acknowledged", &jane), Meaning::Act(IncidentAction::Ack));
        assert_eq!(of("resolved", &jane), Meaning::Act(IncidentAction::Resolve));
        assert_eq!(of("acknowledged", &ours), Meaning::Nothing);
        assert_eq!(of("resolved", &ours), Meaning::Nothing);
        let noted = |what: &str| Meaning::Act(IncidentAction::Note(what.into()));
        let automatic = "resolved in PagerDuty by its automatic resolution, not by a person";
        assert_eq!(of("resolved", &Value::Null), noted(automatic));
        assert_eq!(of("unacknowledged", &Value::Null), Meaning::Act(IncidentAction::Unack));
        assert_eq!(of("reassigned", &jane), noted("reassigned in PagerDuty to Bob"));
        assert_eq!(of("reopened", &jane), Meaning::Reopen);
        assert_eq!(of("reopened", &ours), noted("reopened in PagerDuty"));
        assert_eq!(of("triggered", &ours), Meaning::Nothing);
        assert_eq!(of("made_up_tomorrow", &jane), Meaning::Nothing);
    }

    #[test]
    fn what_is_not_about_an_incident_is_passed_over() {
        let mut service = event("acknowledged", Value::Null);
        service["data"]["type"] = "service".into();
        assert_eq!(said(&service), None);
        let mut no_time = event("acknowledged", Value::Null);
        no_time["occurred_at"] = Value::Null;
        assert_eq!(said(&no_time), None);
        let mut grouped = event("acknowledged", Value::Null);
        grouped["data"]["incident_key"] = Value::Null;
        assert_eq!(said(&grouped).unwrap().key, None);
    }

    proptest! {
        #[test]
        fn never_panics(at in 0usize..500, byte: u8) {
            let mut text = event("acknowledged", json!({"summary": "x", "type": "user_reference"})).to_string().into_bytes();
            let at = at % text.len();
            text[at] = byte;
            if let Some(said) = serde_json::from_slice(&text).ok().as_ref().and_then(said) {
                meaning(&said);
            }
        }
    }
}

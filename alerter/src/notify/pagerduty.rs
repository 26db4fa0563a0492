//! The PagerDuty receiver, with the Events API v2.
//!
//! PagerDuty notifies people once per alert, so each call of a policy is a separate alert (in
//! `lane`). Its deduplication key is the incident's id with the number of the call, which is never
//! reused: a repeated call that may have arrived updates the open alert instead of waking people
//! twice. An answer to any alert applies to all: they are acknowledged and resolved together.
//! Updates go to the last alert. A trigger after a resolve opens another alert, which notifies
//! people when an incident that a person resolved recurs. No other event can arrive that late,
//! because the outbox sends the messages of an incident to a receiver one at a time and in order,
//! and because no update goes to an alert that the service may have resolved by itself
//! (`auto_resolve`).
//!
//! Tickets have separate keys, and a page closes them. When the person who acknowledged the
//! incident gives it up, the alerts with that acknowledgement are closed before the next call.

mod lane;

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use stepwatch_detect::changes::RunChange;
use stepwatch_kit::config::Secret;
use stepwatch_model::Severity;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::message::{LinkRole, Message, Status};

pub use self::lane::Repeats;
use self::lane::{Intent, Lane, Step};
pub(crate) use self::lane::{key, ring_of, with_open};
use super::attempt::{Attempt, Failure, FailureClass, Receipt, Ring};
use super::http::{Http, base_url};
use super::kind::ReceiverKind;
use super::mistake::Mistake;
use super::notifier::{CallbackConfig, Notifier};
use super::secret::SecretSource;
use super::text::{clean, line, shorten, web_link};

/// Limits of the service, in characters.
const SUMMARY_MAX: usize = 1024;
const ROUTING_KEY_CHARS: usize = 32;
const FIELD_MAX: usize = 255;
/// Our own limit, because details are read on a phone.
const DETAIL_MAX: usize = 4096;
const LINKS_MAX: usize = 20;
const HREF_MAX: usize = 2048;

/// The meaning of a missing webhook about an opened incident, and what acceptance does not prove
/// ("Why Incidents Fail to Trigger" in PagerDuty's knowledge base).
const UNOPENED: &str =
    "PagerDuty accepted the event but opened no incident: is the service disabled or in maintenance?";
const UNPROVEN: &str = "PagerDuty accepted the event, which does not mean that anybody was called: a service that is disabled, in \
    maintenance or suppresses alerts accepts events too. Look there whether an incident was opened";

/// The most bytes of an event.
const EVENT_MAX: usize = 512_000;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// A file with the integration key of a service ("Events API v2").
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_key_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_key_env: Option<String>,
    /// A file with the secret of a webhook subscription (v3) that posts to `/pagerduty/webhook`:
    /// actions of people in PagerDuty are then applied here too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_secret_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_secret_env: Option<String>,
    /// Whether starts, restarts, step-backs and configuration changes of runs are shown with the
    /// incidents (change events).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub change_events: bool,
    /// Whether each call of a policy notifies people, or only the first, which the service's own
    /// escalation policy repeats.
    pub repeats: Repeats,
    /// The time after which the service resolves an incident by itself; 0s if never. An update to
    /// an older alert would open another one and notify people again.
    pub auto_resolve: Span,
    /// An alternative address, for the European service region or a proxy.
    pub events_url: String,
}

impl Default for Config {
    fn default() -> Self {
        let events_url = "https://events.pagerduty.com".to_owned();
        Self {
            routing_key_file: None,
            routing_key_env: None,
            webhook_secret_file: None,
            webhook_secret_env: None,
            change_events: false,
            repeats: Repeats::default(),
            auto_resolve: Span::secs(4 * 3600),
            events_url,
        }
    }
}

#[derive(Debug)]
pub struct PagerDuty {
    events: Arc<Events>,
    /// The address for changes, if they are sent.
    change_url: Option<String>,
    repeats: Repeats,
    auto_resolve: Span,
    hook: Option<Arc<Hook>>,
}

/// The client for the events of one integration.
#[derive(Debug)]
struct Events {
    http: Http,
    url: String,
    routing_key: Secret,
}

/// The secret and client for callbacks, which are webhooks of a subscription.
#[derive(Debug)]
pub struct Hook {
    pub(crate) secret: Secret,
    events: Arc<Events>,
}

impl Hook {
    /// Resolves an alert that a person reopened although its incident is over.
    pub(crate) async fn resolve(&self, key: &str) -> Result<(), Failure> {
        let routing_key = self.events.routing_key.expose();
        let event = Event { routing_key, event_action: "resolve", dedup_key: key, trigger: None };
        self.events.post(serde_json::to_vec(&event)).await
    }
}

impl Events {
    async fn post(&self, event: serde_json::Result<Vec<u8>>) -> Result<(), Failure> {
        let event =
            event.map_err(|err| self.http.failure(FailureClass::Permanent, false, &err.to_string()))?;
        let request = self.http.client().post(&self.url).header("Content-Type", "application/json");
        let answer = self.http.send(request.body(event)).await?;
        if answer.status.is_success() { Ok(()) } else { Err(self.http.refused(&answer)) }
    }
}

#[derive(Debug, Serialize)]
struct Event<'a> {
    routing_key: &'a str,
    event_action: &'static str,
    dedup_key: &'a str,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    trigger: Option<Trigger>,
}

#[derive(Debug, Serialize)]
struct Trigger {
    client: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_url: Option<String>,
    payload: Payload,
    links: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<Value>,
}

#[derive(Debug, Serialize)]
struct Payload {
    summary: String,
    source: String,
    severity: &'static str,
    timestamp: String,
    group: String,
    class: &'static str,
    #[serde(serialize_with = "in_order")]
    custom_details: Vec<(String, String)>,
}

impl ReceiverKind for Config {
    fn wakes(&self) -> bool {
        true
    }

    fn repeated_by(&self) -> Option<&'static str> {
        (self.repeats == Repeats::Service).then_some("PagerDuty's own escalation policy")
    }

    fn shows_no_reports(&self) -> Option<&'static str> {
        Some("PagerDuty calls people")
    }
}

impl Config {
    pub(super) fn build(&self) -> Result<PagerDuty, Mistake> {
        let file = self.routing_key_file.as_ref();
        let source = SecretSource::needed("routing_key", file, self.routing_key_env.as_ref())?;
        let routing_key = source.read()?;
        check_key(&source, &routing_key)?;
        let base = base_url("events_url", &self.events_url)?;
        let change_url = self.change_events.then(|| format!("{base}/v2/change/enqueue"));
        let (file, env) = (self.webhook_secret_file.as_ref(), self.webhook_secret_env.as_ref());
        let secret = SecretSource::from_keys("webhook_secret", file, env)?.map(|s| s.read()).transpose()?;
        let http = Http::new("pagerduty", vec![routing_key.clone()])?;
        let events = Arc::new(Events { http, url: format!("{base}/v2/enqueue"), routing_key });
        let hook = secret.map(|secret| Arc::new(Hook { secret, events: Arc::clone(&events) }));
        let (repeats, auto_resolve) = (self.repeats, self.auto_resolve);
        Ok(PagerDuty { events, change_url, repeats, auto_resolve, hook })
    }
}

/// Checks the form of an integration key. Errors do not contain the key.
fn check_key(source: &SecretSource, key: &Secret) -> Result<(), Mistake> {
    let key = key.expose();
    let (length, expected) = (key.chars().count(), "the integration key of an Events API v2 integration");
    if length != ROUTING_KEY_CHARS {
        return Err(source.mistake(format!(
            "{source} holds {length} characters, expected the {ROUTING_KEY_CHARS} of {expected}"
        )));
    }
    if !key.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(source.mistake(format!(
            "{source} holds other characters than letters and digits, expected {expected}"
        )));
    }
    Ok(())
}

impl Notifier for PagerDuty {
    fn kind(&self) -> &'static str {
        "pagerduty"
    }

    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>> {
        self.send_event(attempt).boxed()
    }

    fn wakes(&self) -> bool {
        true
    }

    fn rings(&self) -> bool {
        true
    }

    fn confirms(&self) -> Option<&'static str> {
        (self.hook.is_some() && self.repeats == Repeats::Rings).then_some(UNOPENED)
    }

    fn unproven(&self) -> Option<&'static str> {
        Some(UNPROVEN)
    }

    fn account(&self) -> Vec<Secret> {
        vec![Secret::new(self.events.url.clone()), self.events.routing_key.clone()]
    }

    fn wants_changes(&self) -> bool {
        self.change_url.is_some()
    }

    fn change<'a>(&'a self, change: &'a RunChange) -> BoxFuture<'a, Result<(), Failure>> {
        self.send_change(change).boxed()
    }

    fn callback_config(&self) -> Option<CallbackConfig> {
        self.hook.clone().map(CallbackConfig::PagerDuty)
    }
}

impl PagerDuty {
    async fn send_event(&self, attempt: Attempt<'_>) -> Result<Receipt, Failure> {
        let n = attempt.notification;
        let (steps, now) = plan(attempt, self.repeats, self.auto_resolve);
        for Step { action, ring } in steps {
            self.enqueue(n, action, &key(&n.incident, ring)).await?;
        }
        Ok(Receipt { memory: Some(now.to_string()) })
    }

    async fn send_change(&self, change: &RunChange) -> Result<(), Failure> {
        let Some(url) = &self.change_url else { return Ok(()) };
        let body = json!({
            "routing_key": self.events.routing_key.expose(),
            "payload": {
                "summary": non_empty(line(&change.text(), SUMMARY_MAX)),
                "source": non_empty(line(&change.run, FIELD_MAX)),
                "timestamp": rfc3339(change.at),
                "custom_details": {"run": line(&change.run, FIELD_MAX), "step": change.step},
            },
        });
        let http = &self.events.http;
        let answer = http.send(http.client().post(url).json(&body)).await?;
        if answer.status.is_success() { Ok(()) } else { Err(http.refused(&answer)) }
    }

    async fn enqueue(&self, n: &Notification, action: &'static str, key: &str) -> Result<(), Failure> {
        self.events.post(render(n, action, key, self.events.routing_key.expose())).await
    }
}

fn plan(attempt: Attempt<'_>, repeats: Repeats, auto_resolve: Span) -> (Vec<Step>, Lane) {
    let n = attempt.notification;
    let lane = Lane::read(attempt.memory).at(attempt.at, auto_resolve);
    // A message without a call number from the outbox (a test of the receiver) is the only one of
    // its incident.
    let alone = Ring { number: 1, page: n.message.severity == Severity::Page };
    let is_alone = attempt.memory.is_none() && attempt.unsure.is_empty() && attempt.ring.is_none();
    let ring = attempt.ring.or(is_alone.then_some(alone));
    let mut unsure = if is_alone { vec![alone] } else { attempt.unsure.to_vec() };
    if is_late(n) {
        // An earlier attempt may have arrived.
        unsure.extend(ring);
    }
    lane.after(intent(n, ring), repeats, &unsure)
}

/// Whether the incident ended before the message could be sent, so that nobody is called.
fn is_late(n: &Notification) -> bool {
    n.action == Action::Trigger && n.message.status == Status::Resolved
}

/// The effect of a message on this service; `ring` is the number that it may use.
fn intent(n: &Notification, ring: Option<Ring>) -> Intent {
    let back = taken_back_there(n);
    match (n.action, ring) {
        (Action::Trigger, _) if is_late(n) => Intent::Resolve,
        (Action::Trigger, Some(ring)) => Intent::Call(ring),
        // After an acknowledgement or a close there, an update could notify people again.
        (Action::Update, _) if n.message.status != Status::Firing => Intent::Nothing,
        (Action::Update, Some(ring)) if n.calls() && !back => Intent::Call(ring),
        (Action::Update | Action::Trigger, own) => Intent::News { own, back },
        (Action::Ack, _) => Intent::Ack { there: acknowledged_there(n) },
        (Action::Resolve, _) => Intent::Resolve,
    }
}

/// The name of a PagerDuty actor at the service of `receiver`. Without a receiver, services are not
/// distinguished.
pub(crate) fn actor(person: &str, receiver: Option<&str>) -> String {
    let receiver = receiver.map(|r| format!(" ({r})")).unwrap_or_default();
    format!("{ACTOR}{person}{receiver}")
}

const ACTOR: &str = "pagerduty:";

/// Whether the acknowledgement was given in the service to which it would be sent.
fn acknowledged_there(n: &Notification) -> bool {
    n.message.details.acknowledged_by.as_ref().is_some_and(|by| is_from_there(n, by))
}

fn is_from_there(n: &Notification, by: &str) -> bool {
    by.starts_with(ACTOR) && by.ends_with(&format!(" ({})", n.receiver))
}

/// Whether the acknowledgement was taken back in the service to which the message would be sent,
/// which then notifies people again by itself.
pub(crate) fn taken_back_there(n: &Notification) -> bool {
    n.message.details.unacknowledged_by.as_ref().is_some_and(|by| is_from_there(n, by))
}

fn render(
    n: &Notification,
    event_action: &'static str,
    dedup_key: &str,
    routing_key: &str,
) -> serde_json::Result<Vec<u8>> {
    // The log of a resolved alert shows how it ended, as in Alertmanager.
    let has_details = event_action == "trigger" || n.action == Action::Resolve;
    let trigger = has_details.then(|| trigger(&n.message));
    let mut event = Event { routing_key, event_action, dedup_key, trigger };
    let body = serde_json::to_vec(&event)?;
    if body.len() > EVENT_MAX {
        if let Some(trigger) = &mut event.trigger {
            let error =
                format!("details left out: the event had {} bytes, the limit is {EVENT_MAX}", body.len());
            trigger.payload.custom_details = vec![("error".to_owned(), error)];
            trigger.links.clear();
            return serde_json::to_vec(&event);
        }
    }
    Ok(body)
}

fn trigger(m: &Message) -> Trigger {
    let links: Vec<(&str, String)> = m
        .links
        .iter()
        .filter_map(|link| Some((web_link(&link.href, HREF_MAX)?, line(&link.text, FIELD_MAX))))
        .take(LINKS_MAX)
        .collect();
    let own = m.links.iter().find(|link| link.role == LinkRole::Incident);
    let client_url = own.and_then(|link| web_link(&link.href, HREF_MAX)).map(str::to_owned);
    let words = if m.status == Status::Resolved { &m.reason } else { &m.summary };
    let summary = format!("{}. {}", clean(&m.title), clean(words));
    let facts = m.facts.iter().map(|fact| (fact.label.as_str(), fact.text.as_str()));
    let nodes = m.nodes.join(", ");
    let about =
        [("Run", m.run.as_str()), ("Node", nodes.as_str())].into_iter().filter(|(_, text)| !text.is_empty());
    let last = [("Why you were notified", m.reason.as_str()), ("Incident", m.incident.as_str())];
    let details = [("What", m.summary.as_str())].into_iter().chain(facts).chain(about).chain(last);
    let details =
        details.map(|(label, text)| (line(label, FIELD_MAX), shorten(clean(text).trim(), DETAIL_MAX)));
    Trigger {
        client: "Stepwatch",
        client_url,
        links: links.into_iter().map(|(href, text)| json!({"href": href, "text": text})).collect(),
        images: lane::images(m),
        payload: Payload {
            summary: line(&summary, SUMMARY_MAX),
            source: non_empty(line(m.nodes.first().unwrap_or(&m.run), FIELD_MAX)),
            severity: severity(m.severity),
            timestamp: rfc3339(m.started_at),
            group: non_empty(line(if m.run.is_empty() { &nodes } else { &m.run }, FIELD_MAX)),
            class: m.kind.as_str(),
            custom_details: details.collect(),
        },
    }
}

/// Serializes the details in order of importance, because the service keeps the order of the JSON.
fn in_order<S: Serializer>(details: &[(String, String)], s: S) -> Result<S::Ok, S::Error> {
    s.collect_map(details.iter().map(|(label, text)| (label, text)))
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Page => "critical",
        Severity::Ticket => "warning",
        Severity::Info => "info",
    }
}

/// The service refuses an event with an empty source.
fn non_empty(text: String) -> String {
    if text.is_empty() { "unnamed run".to_owned() } else { text }
}

fn rfc3339(ts: Ts) -> String {
    ts.to_string()
}

#[cfg(test)]
mod tests;

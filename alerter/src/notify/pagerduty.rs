//! PagerDuty by its Events API v2.
//!
//! The deduplication key is the incident's id, which is never used again: a repeated trigger adds to the open alert instead of
//! waking somebody twice. A trigger after a resolve opens another alert, which is what rings when an incident that a person
//! resolved is back; no other comes so late, because the outbox sends one message of an incident at a time, in order.
//!
//! An alert that is open rings no more, so that an incident that began as a ticket and became a page needs a second one. What
//! is only a ticket goes under a key of its own, and the page closes it. Nor does one that was acknowledged: when whoever took
//! the incident does not have it any more, that alert is closed and the next generation of the key rings (in `lane`).

mod lane;
#[cfg(test)]
mod rings;

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use stepwatch_engine::changes::RunChange;
use stepwatch_engine::effect::{Action, Notification};
use stepwatch_engine::message::{Message, Reason, Status};
use stepwatch_engine::time::Ts;
use stepwatch_engine::verdict::Severity;
use stepwatch_kit::config::Secret;

use self::lane::Lane;
pub(crate) use self::lane::incident_of;
use super::http::{Http, base_url};
use super::text::{clean, line, shorten, web_link};
use super::{Attempt, Ear, Failure, FailureClass, Notifier, Receipt, SecretSource};

/// Limits of the service, in characters.
const SUMMARY_MAX: usize = 1024;
const FIELD_MAX: usize = 255;
/// Ours: a detail is read on a phone.
const DETAIL_MAX: usize = 4096;
const LINKS_MAX: usize = 20;
const HREF_MAX: usize = 2048;

/// Of a whole event, in bytes.
const EVENT_MAX: usize = 512_000;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Holds the integration key of a service ("Events API v2").
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_key_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_key_env: Option<String>,
    /// Holds the secret of a webhook subscription (v3) that posts to `/pagerduty/webhook`: what people do in PagerDuty is
    /// then done here too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_secret_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_secret_env: Option<String>,
    /// Whether runs that start, restart, step back or are configured anew are shown beside the incidents (change events).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub change_events: bool,
    /// Another one for the service region in Europe, or a proxy.
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
            events_url,
        }
    }
}

#[derive(Debug)]
pub struct PagerDuty {
    http: Http,
    enqueue_url: String,
    /// Where changes go, if they do.
    change_url: Option<String>,
    routing_key: Secret,
    hook: Option<Arc<Hook>>,
}

/// The way back: webhooks of a subscription.
#[derive(Debug)]
pub struct Hook {
    pub(crate) secret: Secret,
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

impl Config {
    pub(super) fn build(&self) -> Result<PagerDuty, String> {
        let file = self.routing_key_file.as_ref();
        let routing_key = SecretSource::needed("routing_key", file, self.routing_key_env.as_ref())?.read()?;
        let base = base_url("events_url", &self.events_url)?;
        let enqueue_url = format!("{base}/v2/enqueue");
        let change_url = self.change_events.then(|| format!("{base}/v2/change/enqueue"));
        let (file, env) = (self.webhook_secret_file.as_ref(), self.webhook_secret_env.as_ref());
        let secret = SecretSource::of("webhook_secret", file, env)?.map(|s| s.read()).transpose()?;
        let http = Http::new("pagerduty", vec![routing_key.clone()])?;
        let hook = secret.map(|secret| Arc::new(Hook { secret }));
        Ok(PagerDuty { http, enqueue_url, change_url, routing_key, hook })
    }
}

impl Notifier for PagerDuty {
    fn kind(&self) -> &'static str {
        "pagerduty"
    }

    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>> {
        self.tell(attempt).boxed()
    }

    fn wakes(&self) -> bool {
        true
    }

    fn account(&self) -> Vec<Secret> {
        vec![Secret::new(self.enqueue_url.clone()), self.routing_key.clone()]
    }

    fn wants_changes(&self) -> bool {
        self.change_url.is_some()
    }

    fn change<'a>(&'a self, change: &'a RunChange) -> BoxFuture<'a, Result<(), Failure>> {
        self.tell_change(change).boxed()
    }

    fn ear(&self) -> Option<Ear> {
        self.hook.clone().map(Ear::PagerDuty)
    }
}

impl PagerDuty {
    async fn tell(&self, attempt: Attempt<'_>) -> Result<Receipt, Failure> {
        let n = attempt.notification;
        let had = Lane::read(attempt.memory);
        let ticket = n.message.severity != Severity::Page;
        let Some(action) = event_action(n) else {
            // Acknowledged there, of which nobody needs to be told.
            let now = if n.action == Action::Ack { had.acknowledged(ticket) } else { had };
            return Ok(Receipt { memory: Some(now.to_string()) });
        };
        let rings_anew =
            action == "trigger" && had.is_acknowledged(ticket) && calls(n) && !taken_back_there(n);
        let generation = if rings_anew { had.generation.saturating_add(1) } else { had.generation };
        if rings_anew {
            // First: a service that groups alerts would take the new one into the incident that somebody has.
            self.enqueue(n, "resolve", &key(n, ticket, had.generation)).await?;
        }
        // The alert that rings goes before the ticket; should the other fail, repeating both does no harm.
        self.enqueue(n, action, &key(n, ticket, generation)).await?;
        if had.ticket && !ticket {
            let action = if action == "trigger" { "resolve" } else { action };
            self.enqueue(n, action, &key(n, true, had.generation)).await?;
        }
        let open = if ticket { action != "resolve" } else { had.ticket && action == "acknowledge" };
        let now = Lane { ticket: open, generation, ..had };
        let now = match action {
            "acknowledge" => now.acknowledged(ticket),
            "trigger" if calls(n) => now.rings(),
            _ => now,
        };
        Ok(Receipt { memory: Some(now.to_string()) })
    }

    async fn tell_change(&self, change: &RunChange) -> Result<(), Failure> {
        let Some(url) = &self.change_url else { return Ok(()) };
        let body = json!({
            "routing_key": self.routing_key.expose(),
            "payload": {
                "summary": non_empty(line(&change.text(), SUMMARY_MAX)),
                "source": non_empty(line(&change.run, FIELD_MAX)),
                "timestamp": rfc3339(change.at),
                "custom_details": {"run": line(&change.run, FIELD_MAX), "step": change.step},
            },
        });
        let answer = self.http.send(self.http.client().post(url).json(&body)).await?;
        if answer.status.is_success() { Ok(()) } else { Err(self.http.refused(&answer)) }
    }

    async fn enqueue(&self, n: &Notification, action: &'static str, key: &str) -> Result<(), Failure> {
        let body = render(n, action, key, self.routing_key.expose())
            .map_err(|err| self.http.failure(FailureClass::Permanent, false, &err.to_string()))?;
        let request = self.http.client().post(&self.enqueue_url).header("Content-Type", "application/json");
        let answer = self.http.send(request.body(body)).await?;
        if answer.status.is_success() { Ok(()) } else { Err(self.http.refused(&answer)) }
    }
}

/// `None` if there is nothing to tell this service.
fn event_action(n: &Notification) -> Option<&'static str> {
    match n.action {
        Action::Trigger => Some("trigger"),
        // News reach an open alert as one more trigger. Once it was acknowledged or closed there, that could ring again.
        Action::Update => (n.message.status == Status::Firing).then_some("trigger"),
        // Whoever acknowledged it there may have changed their mind since.
        Action::Ack => (!acknowledged_there(n)).then_some("acknowledge"),
        Action::Resolve => Some("resolve"),
    }
}

/// Whether it is to ring, even if somebody had taken it before; news of what nobody has any more are no such call.
fn calls(n: &Notification) -> bool {
    n.action == Action::Trigger || n.message.because == Reason::Unacknowledged
}

fn key(n: &Notification, ticket: bool, generation: u32) -> String {
    lane::key(&n.incident, ticket, generation)
}

/// Who did something in PagerDuty, of the service behind `receiver`; several services are told apart by nobody.
pub(crate) fn actor(person: &str, receiver: Option<&str>) -> String {
    let receiver = receiver.map(|r| format!(" ({r})")).unwrap_or_default();
    format!("{ACTOR}{person}{receiver}")
}

const ACTOR: &str = "pagerduty:";

/// Whether the acknowledgement came from the very service that it would be sent to.
fn acknowledged_there(n: &Notification) -> bool {
    n.message.facts.iter().any(|fact| fact.label == "Acknowledged by" && is_from_there(n, &fact.text))
}

fn is_from_there(n: &Notification, by: &str) -> bool {
    by.starts_with(ACTOR) && by.ends_with(&format!(" ({})", n.receiver))
}

/// Whether it was taken back in the very service that it would be sent to, where it rings again by itself.
fn taken_back_there(n: &Notification) -> bool {
    let by = n.message.reason.split_once('(').and_then(|(_, by)| by.strip_suffix(')'));
    n.message.because == Reason::Unacknowledged && by.is_some_and(|by| is_from_there(n, by))
}

fn render(
    n: &Notification,
    event_action: &'static str,
    dedup_key: &str,
    routing_key: &str,
) -> serde_json::Result<Vec<u8>> {
    // Of an end the log of the alert shows how it ended, as it does of Alertmanager's.
    let tells = event_action == "trigger" || n.action == Action::Resolve;
    let trigger = tells.then(|| trigger(&n.message));
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
    let own = m.links.iter().find(|link| link.text.to_lowercase().contains("incident"));
    let client_url = own.and_then(|link| web_link(&link.href, HREF_MAX)).map(str::to_owned);
    let words = if m.status == Status::Resolved { &m.reason } else { &m.summary };
    let summary = format!("{}. {}", clean(&m.title), clean(words));
    let facts = m.facts.iter().map(|fact| (fact.label.as_str(), fact.text.as_str()));
    let nodes = m.nodes.join(", ");
    let about =
        [("Run", m.run.as_str()), ("Node", nodes.as_str())].into_iter().filter(|(_, text)| !text.is_empty());
    let last = [("Why you were told", m.reason.as_str()), ("Incident", m.incident.as_str())];
    let details = [("What", m.summary.as_str())].into_iter().chain(facts).chain(about).chain(last);
    let details =
        details.map(|(label, text)| (line(label, FIELD_MAX), shorten(clean(text).trim(), DETAIL_MAX)));
    Trigger {
        client: "Stepwatch",
        client_url,
        links: links.into_iter().map(|(href, text)| json!({"href": href, "text": text})).collect(),
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

/// As an object whose keys stand in the order of interest; the service shows them as they come.
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

/// The service refuses an event whose source is empty.
fn non_empty(text: String) -> String {
    if text.is_empty() { "unnamed run".to_owned() } else { text }
}

fn rfc3339(ts: Ts) -> String {
    ts.to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stepwatch_fakes::{FakePagerDuty, PagerDuty as Service};

    use super::*;
    use crate::notify::conformance::{gpu_fault, message};
    use crate::notify::test_notification;

    fn event(n: &Notification) -> Value {
        serde_json::from_slice(&raw(n)).unwrap()
    }

    fn raw(n: &Notification) -> Vec<u8> {
        render(n, event_action(n).unwrap(), &key(n, false, 1), "R0UTE").unwrap()
    }

    pub(super) fn page(action: Action) -> Notification {
        let mut n = test_notification("pd", "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C", Ts(1_795_227_416_980));
        n.action = action;
        n.message = message();
        n
    }

    #[test]
    fn a_page_as_the_phone_shows_it() {
        // Not through a `Value`, which would sort the details.
        let text = String::from_utf8(raw(&page(Action::Trigger))).unwrap();
        insta::assert_snapshot!(text.replace(",\"", ",\n\"").replace('{', "{\n"));
    }

    #[tokio::test]
    async fn a_change_is_shown_and_wakes_nobody() {
        use stepwatch_engine::changes::Change;
        let fake = FakePagerDuty::start().await;
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, Service::ROUTING_KEY).unwrap();
        let config = Config {
            routing_key_file: Some(key),
            events_url: fake.url(),
            change_events: true,
            ..Config::default()
        };
        let pagerduty = config.build().unwrap();
        let at = Ts(1_795_227_416_980);
        for what in
            [Change::Started, Change::Restarted { attempt: 2, reached: Some(120) }, Change::Configured]
        {
            let change = RunChange { run: "llama-70b<!>\u{202e}".into(), at, what, step: Some(100) };
            pagerduty.change(&change).await.unwrap();
        }
        let told = |c: &Value| c["payload"]["summary"].as_str().unwrap().to_owned();
        let (changes, pages) = fake.with(|pd| (pd.changes.clone(), pd.pages.len()));
        assert_eq!(
            changes.iter().map(told).collect::<Vec<_>>(),
            [
                "llama-70b<!> started at step 100",
                "llama-70b<!> restarted (attempt 2), back from step 120 to 100",
                "llama-70b<!> has another configuration at step 100",
            ]
        );
        assert_eq!(changes[2]["payload"]["custom_details"]["step"], 100);
        assert_eq!(pages, 0);
    }

    #[test]
    fn a_sick_node_is_where_it_comes_from() {
        for (under_a_run, group) in [(true, "llama-70b"), (false, "gpu-042")] {
            let n = gpu_fault(under_a_run);
            let event = event(&n);
            let payload = &event["payload"];
            assert_eq!(payload["source"], "gpu-042");
            assert_eq!(payload["group"], group);
            assert_eq!(payload["class"], "gpu_fault");
            assert_eq!(payload["custom_details"]["Node"], "gpu-042");
            assert_eq!(payload["custom_details"]["Run"].as_str(), under_a_run.then_some("llama-70b"));
        }
    }

    #[test]
    fn an_acknowledgement_carries_the_key_and_nothing_else() {
        let expected = json!({
            "routing_key": "R0UTE", "event_action": "acknowledge", "dedup_key": "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C"
        });
        assert_eq!(event(&page(Action::Ack)), expected);
    }

    #[test]
    fn an_end_says_how_it_ended() {
        let mut n = page(Action::Resolve);
        n.message.status = Status::Resolved;
        n.message.title = "STALE llama-70b: gradient spike".into();
        n.message.reason = "stale after 12m: nothing has been heard of it since T; it may still hold".into();
        let event = event(&n);
        assert_eq!(event["event_action"], "resolve");
        let said = event["payload"]["summary"].as_str().unwrap();
        assert!(said.starts_with("STALE llama-70b") && said.ends_with("it may still hold"), "{said}");
        assert_eq!(event["payload"]["custom_details"]["Why you were told"], n.message.reason);
    }

    #[test]
    fn news_never_ring_an_acknowledged_alert() {
        let mut n = page(Action::Update);
        assert_eq!(event_action(&n), Some("trigger"));
        n.message.status = Status::Acknowledged;
        assert_eq!(event_action(&n), None);
    }

    #[test]
    fn an_acknowledgement_does_not_go_back_to_where_it_came_from() {
        let mut n = page(Action::Ack);
        let by = |receiver| stepwatch_engine::message::Fact {
            label: "Acknowledged by".into(),
            text: actor("Jane", receiver),
        };
        n.receiver = "primary".into();
        n.message.facts.push(by(Some("primary")));
        assert_eq!(event_action(&n), None);
        n.receiver = "secondary".into();
        assert_eq!(event_action(&n), Some("acknowledge"));
        n.message.facts = vec![by(None)];
        assert_eq!(event_action(&n), Some("acknowledge"));
    }

    #[test]
    fn an_event_that_is_too_large_loses_its_details() {
        let mut n = page(Action::Trigger);
        for i in 0..200 {
            let fact =
                stepwatch_engine::message::Fact { label: format!("label {i}"), text: "x".repeat(10_000) };
            n.message.facts.push(fact);
        }
        assert!(raw(&n).len() <= EVENT_MAX);
        let error = event(&n)["payload"]["custom_details"]["error"].as_str().map(str::to_owned);
        assert!(error.is_some_and(|e| e.contains("limit is 512000")));
    }

    proptest! {
        #[test]
        fn the_limits_hold_for_any_text(title: String, summary: String, run: String, label: String, href: String) {
            let mut n = page(Action::Trigger);
            n.message.title = title;
            n.message.summary = summary.repeat(50);
            n.message.run = run;
            n.message.facts[0].label = label;
            n.message.links[0].href = href;
            let event = event(&n);
            let text = |v: &Value| v.as_str().map_or(0, |s| s.chars().count());
            let payload = &event["payload"];
            prop_assert!((1..=SUMMARY_MAX).contains(&text(&payload["summary"])));
            prop_assert!((1..=FIELD_MAX).contains(&text(&payload["source"])));
            for link in event["links"].as_array().unwrap() {
                prop_assert!(link["href"].as_str().is_some_and(|href| href.starts_with("http")));
            }
        }
    }
}

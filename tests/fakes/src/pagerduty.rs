//! A fake of PagerDuty's Events API v2: alerts with a `dedup_key`, and the pages that they cause.
//!
//! These semantics matter. A trigger for an open key is appended and pages nobody, even if the
//! alert was acknowledged. After a resolve, the same key opens a new alert and pages again, so that
//! a late trigger is a false page. An acknowledgement that is taken back or times out pages again,
//! under the same key. All integration keys belong to one integration; the real service has a
//! separate set of deduplication keys for each. A service that groups alerts adds each further
//! alert to the open incident, and pages nobody for it. A person may merge an incident into another
//! one: its alerts keep their keys and move there, and the incident is resolved, which subscribers
//! get with a reason. Events resolve an incident when all of its alerts are resolved. A service
//! that is disabled, has a maintenance window or suppresses alerts answers 202 to every event and
//! pages nobody ("Why Incidents Fail to Trigger", "Maintenance Windows" and "Event Orchestration"
//! in PagerDuty's knowledge base).

mod page;
mod person;

use std::time::Instant;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::server::{Received, Reply, Service};

pub use person::pagerduty_signature;

const MAX_EVENT_BYTES: usize = 512_000;
const ROUTING_KEY_CHARS: usize = 32;
const MAX_DEDUP_KEY: usize = 255;
const MAX_SUMMARY: usize = 1024;
const SEVERITIES: &[&str] = &["critical", "error", "warning", "info"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlertState {
    Triggered,
    Acknowledged,
    Resolved,
}

/// The state of a service, which determines how it handles events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Standing {
    #[default]
    Active,
    /// Events are accepted and dropped; open incidents no longer notify anybody.
    Disabled,
    /// Events are accepted and dropped, including resolutions; open incidents continue to notify.
    InMaintenance,
    /// An orchestration suppresses each new alert, which gets no incident.
    Suppressing,
}

impl AlertState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Triggered => "triggered",
            Self::Acknowledged => "acknowledged",
            Self::Resolved => "resolved",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct LogEntry {
    pub at: Instant,
    pub time: Timestamp,
    pub what: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Alert {
    pub dedup_key: String,
    pub state: AlertState,
    pub summary: String,
    pub source: String,
    pub severity: String,
    /// The event that opened the alert.
    pub event: Value,
    /// The first alert of its incident: itself, unless the service groups alerts or a person merged
    /// its incident into another.
    pub head: usize,
    pub log: Vec<LogEntry>,
}

/// A call that woke a person.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    pub at: Instant,
    pub time: Timestamp,
    pub dedup_key: String,
    pub summary: String,
}

#[derive(Debug, Clone)]
pub struct PagerDuty {
    pub routing_keys: Vec<String>,
    /// The alerts in the order in which they opened; a key may recur after its resolution.
    pub alerts: Vec<Alert>,
    pub pages: Vec<Page>,
    pub changes: Vec<Value>,
    /// Webhooks that wait for delivery to subscribers, in order.
    pub hooks: Vec<Value>,
    /// Whether all open alerts are one incident with a key of its own, so that webhooks do not have
    /// the alert's key.
    pub groups_alerts: bool,
    pub standing: Standing,
    /// The keys of suppressed alerts.
    pub suppressed: Vec<String>,
    pub requests: Vec<Received>,
}

impl Default for PagerDuty {
    fn default() -> Self {
        Self {
            routing_keys: vec![Self::ROUTING_KEY.into()],
            alerts: Vec::new(),
            pages: Vec::new(),
            changes: Vec::new(),
            hooks: Vec::new(),
            groups_alerts: false,
            standing: Standing::Active,
            suppressed: Vec::new(),
            requests: Vec::new(),
        }
    }
}

impl PagerDuty {
    /// The accepted integration key.
    pub const ROUTING_KEY: &str = "0123456789abcdef0123456789abcdef";

    pub fn alerts_of<'a>(&'a self, dedup_key: &'a str) -> impl Iterator<Item = &'a Alert> {
        self.alerts.iter().filter(move |a| a.dedup_key == dedup_key)
    }

    /// The alerts of an incident: under its id, and under the keys of its further calls (`<id>-2`).
    pub fn alerts_about<'a>(&'a self, incident: &'a str) -> impl Iterator<Item = &'a Alert> {
        self.alerts.iter().filter(move |a| is_about(&a.dedup_key, incident))
    }

    /// The unresolved alert with this key.
    pub fn open(&self, dedup_key: &str) -> Option<&Alert> {
        self.alerts.iter().find(|a| a.dedup_key == dedup_key && a.state != AlertState::Resolved)
    }

    fn enqueue(&mut self, req: &Received, event: &Value) -> String {
        let key = match event["dedup_key"].as_str() {
            Some(key) if !key.is_empty() => key.to_owned(),
            _ => format!("generated-{}", self.alerts.len()),
        };
        let action = event["event_action"].as_str().unwrap_or_default();
        match self.standing {
            Standing::Disabled | Standing::InMaintenance => return key,
            Standing::Suppressing if action == "trigger" && self.open(&key).is_none() => {
                self.suppressed.push(key.clone());
                return key;
            }
            Standing::Suppressing | Standing::Active => {}
        }
        let entry = |what: String| LogEntry { at: req.at, time: req.time, what };
        let mut said = None;
        let group = self.alerts.iter().find(|a| self.groups_alerts && a.state != AlertState::Resolved);
        let group = group.map(|a| (a.head, a.state));
        let open = self.alerts.iter_mut().find(|a| a.dedup_key == key && a.state != AlertState::Resolved);
        match (action, open) {
            ("trigger", Some(alert)) => alert.log.push(entry("triggered again: nobody paged".into())),
            ("trigger", None) => {
                let field = |name: &str| event["payload"][name].as_str().unwrap_or_default().to_owned();
                let what = if group.is_none() {
                    said = Some("triggered");
                    self.pages.push(Page {
                        at: req.at,
                        time: req.time,
                        dedup_key: key.clone(),
                        summary: field("summary"),
                    });
                    "triggered: on-call paged"
                } else {
                    "triggered: grouped, nobody paged"
                };
                let (head, state) = group.unwrap_or((self.alerts.len(), AlertState::Triggered));
                self.alerts.push(Alert {
                    dedup_key: key.clone(),
                    state,
                    summary: field("summary"),
                    source: field("source"),
                    severity: field("severity"),
                    event: event.clone(),
                    head,
                    log: vec![entry(what.into())],
                });
            }
            ("acknowledge", Some(alert)) => {
                said = (alert.state != AlertState::Acknowledged).then_some("acknowledged");
                alert.log.push(entry("acknowledged".into()));
                let head = alert.head;
                self.becomes(head, AlertState::Acknowledged);
            }
            ("resolve", Some(alert)) => {
                alert.state = AlertState::Resolved;
                alert.log.push(entry("resolved".into()));
                let head = alert.head;
                said = self.is_over(head).then_some("resolved");
            }
            // Accepted without effect, as in the real service.
            _ => {}
        }
        if let Some(what) = said {
            self.by_event(&key, what, req);
        }
        key
    }

    /// Sets the state of all open alerts of an incident, as a person's action or an acknowledgement
    /// does.
    fn becomes(&mut self, head: usize, state: AlertState) {
        let open = self.alerts.iter_mut().filter(|a| a.head == head && a.state != AlertState::Resolved);
        open.for_each(|a| a.state = state);
    }

    /// Whether all alerts of an incident are resolved.
    fn is_over(&self, head: usize) -> bool {
        self.alerts.iter().all(|a| a.head != head || a.state == AlertState::Resolved)
    }

    /// The alerts that continue to notify: they are unacknowledged, and the service's own
    /// escalation policy continues.
    pub fn triggered(&self) -> impl Iterator<Item = &Alert> {
        let disabled = self.standing == Standing::Disabled;
        self.alerts.iter().filter(move |a| a.state == AlertState::Triggered && !disabled)
    }

    fn checked(&self, req: &Received, change: bool) -> Result<Value, Vec<String>> {
        if req.body.len() > MAX_EVENT_BYTES {
            return Err(vec![format!("Event is {} bytes, the limit is {MAX_EVENT_BYTES}", req.body.len())]);
        }
        let event: Value =
            serde_json::from_slice(&req.body).map_err(|e| vec![format!("Invalid JSON: {e}")])?;
        let mut errors = Vec::new();
        match event["routing_key"].as_str() {
            None | Some("") => errors.push("'routing_key' is missing or blank".to_owned()),
            Some(k) if k.len() != ROUTING_KEY_CHARS => {
                errors.push(format!(
                    "Length of 'routing_key' is incorrect (should be {ROUTING_KEY_CHARS} characters)"
                ));
            }
            Some(k) if !self.routing_keys.iter().any(|known| known == k) => {
                errors.push("Invalid routing key".to_owned());
            }
            Some(_) => {}
        }
        if change {
            check_summary(&event, &mut errors);
        } else {
            check_event(&event, &mut errors);
        }
        if errors.is_empty() { Ok(event) } else { Err(errors) }
    }
}

/// Whether a key belongs to an alert of this incident.
pub fn is_about(dedup_key: &str, incident: &str) -> bool {
    dedup_key.strip_prefix(incident).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

impl Service for PagerDuty {
    fn endpoint(request: &Received) -> Option<String> {
        match request.path.as_str() {
            "/v2/enqueue" => Some("enqueue".into()),
            "/v2/change/enqueue" => Some("change".into()),
            _ => None,
        }
    }

    fn serve(&mut self, req: &Received) -> Reply {
        let change = match (req.path.as_str(), req.method.as_str()) {
            ("/", _) => return Reply::html(page::render(self)),
            ("/v2/enqueue", "POST") => false,
            ("/v2/change/enqueue", "POST") => true,
            _ => return Reply::text(404, "not found"),
        };
        let event = match self.checked(req, change) {
            Ok(event) => event,
            Err(errors) => return invalid(&errors),
        };
        if change {
            self.changes.push(event);
            return Reply::json(202, &json!({"status": "success", "message": "Change event processed"}));
        }
        let key = self.enqueue(req, &event);
        Reply::json(202, &json!({"status": "success", "message": "Event processed", "dedup_key": key}))
    }

    fn refuse(status: u16, error: &str) -> Reply {
        match status {
            400 => invalid(&[error.to_owned()]),
            429 => Reply::json(
                429,
                &json!({"status": "throttle exceeded",
                "message": "Requests for this service are arriving too quickly. Please retry later."}),
            ),
            _ => Reply::json(status, &json!({"status": "error", "message": error})),
        }
    }

    fn received(&mut self) -> &mut Vec<Received> {
        &mut self.requests
    }
}

fn invalid(errors: &[String]) -> Reply {
    let body = json!({"status": "invalid event", "message": "Event object is invalid", "errors": errors});
    Reply::json(400, &body)
}

fn check_event(event: &Value, errors: &mut Vec<String>) {
    let key = event["dedup_key"].as_str().unwrap_or_default();
    if key.chars().count() > MAX_DEDUP_KEY {
        errors.push(format!("'dedup_key' is longer than {MAX_DEDUP_KEY} characters"));
    }
    match event["event_action"].as_str() {
        Some("trigger") => {
            check_summary(event, errors);
            let payload = &event["payload"];
            if payload["source"].as_str().is_none_or(str::is_empty) {
                errors.push("'payload.source' is missing or blank".into());
            }
            match payload["severity"].as_str() {
                None | Some("") => errors.push("'payload.severity' is missing or blank".into()),
                Some(s) if !SEVERITIES.contains(&s) => {
                    errors.push(format!("'payload.severity' is invalid (must be one of {SEVERITIES:?})"));
                }
                Some(_) => {}
            }
            if let Some(t) = payload["timestamp"].as_str().filter(|t| t.parse::<Timestamp>().is_err()) {
                errors.push(format!("'payload.timestamp' is not an ISO 8601 time: {t:?}"));
            }
            check_context(event, errors);
        }
        Some("acknowledge" | "resolve") => {
            if key.is_empty() {
                errors.push("'dedup_key' is missing or blank".into());
            }
        }
        Some(other) => errors.push(format!("'event_action' is invalid: {other:?}")),
        None => errors.push("'event_action' is missing or blank".into()),
    }
}

fn check_summary(event: &Value, errors: &mut Vec<String>) {
    match event["payload"]["summary"].as_str() {
        None | Some("") => errors.push("'payload.summary' is missing or blank".into()),
        Some(s) if s.chars().count() > MAX_SUMMARY => {
            errors.push(format!("'payload.summary' is longer than {MAX_SUMMARY} characters"));
        }
        Some(_) => {}
    }
}

fn check_context(event: &Value, errors: &mut Vec<String>) {
    for link in event["links"].as_array().into_iter().flatten() {
        if link["href"].as_str().is_none_or(|h| !h.starts_with("http")) {
            errors.push("'links[].href' must be a URL".into());
        }
    }
    for image in event["images"].as_array().into_iter().flatten() {
        if image["src"].as_str().is_none_or(|s| !s.starts_with("https://")) {
            errors.push("'images[].src' must be an HTTPS URL".into());
        }
    }
}

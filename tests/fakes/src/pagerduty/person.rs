//! People in PagerDuty, and the webhooks (v3) that notify subscribers of what was done.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use super::{Alert, AlertState, LogEntry, Page, PagerDuty};
use crate::server::Received;

impl PagerDuty {
    /// The secret of the webhook subscription.
    pub const WEBHOOK_SECRET: &str = "fake-pagerduty-webhook-secret";

    /// Somebody acknowledges, un-acknowledges, resolves or reopens an alert in the console or on a
    /// phone. The webhook waits in `hooks`.
    pub fn by_person(&mut self, dedup_key: &str, what: &str, person: &str) -> Result<(), String> {
        if what == "reopened" {
            return self.reopen(dedup_key, person);
        }
        let i = self.index(dedup_key).ok_or("there is no such open alert")?;
        let to = match (what, self.alerts[i].state) {
            ("acknowledged", _) => AlertState::Acknowledged,
            ("unacknowledged", AlertState::Acknowledged) => AlertState::Triggered,
            ("resolved", _) => AlertState::Resolved,
            (what, state) => return Err(format!("an alert that is {} cannot be {what}", state.as_str())),
        };
        self.becomes(self.alerts[i].head, to);
        self.log(i, format!("{what} by {person}"));
        if what == "unacknowledged" {
            self.page_again(i);
        }
        self.notify(i, what, agent(person), Value::Null);
        Ok(())
    }

    /// Nobody has confirmed the acknowledgement of an alert's incident for as long as the service
    /// allows. No person did it.
    pub fn ack_times_out(&mut self, dedup_key: &str) -> Result<(), String> {
        let acknowledged = |i: &usize| self.alerts[*i].state == AlertState::Acknowledged;
        let i = self.index(dedup_key).filter(acknowledged).ok_or("there is no such acknowledged alert")?;
        self.becomes(self.alerts[i].head, AlertState::Triggered);
        self.log(i, "the acknowledgement timed out".into());
        self.page_again(i);
        self.notify(i, "unacknowledged", Value::Null, Value::Null);
        Ok(())
    }

    /// Nobody has an incident any more: people are notified of it again.
    fn page_again(&mut self, i: usize) {
        let head = &self.alerts[self.alerts[i].head];
        let (dedup_key, summary) = (head.dedup_key.clone(), head.summary.clone());
        let (at, time) = (std::time::Instant::now(), jiff::Timestamp::now());
        self.pages.push(Page { at, time, dedup_key, summary });
    }

    /// An incident that is resolved is open again, with its alerts, and acknowledged by nobody.
    fn reopen(&mut self, dedup_key: &str, person: &str) -> Result<(), String> {
        if self.index(dedup_key).is_some() {
            return Err("another incident has this key".into());
        }
        let last = self.alerts.iter().rposition(|a| a.dedup_key == dedup_key);
        let i = last.ok_or("there is no such alert")?;
        let head = self.alerts[i].head;
        self.alerts.iter_mut().filter(|a| a.head == head).for_each(|a| a.state = AlertState::Triggered);
        self.log(i, format!("reopened by {person}"));
        self.notify(i, "reopened", agent(person), Value::Null);
        Ok(())
    }

    /// Somebody merges the incident of one alert into that of another. Its alerts move there with
    /// their keys; it is resolved, and the webhook about it names the person and the other
    /// incident.
    pub fn merge(&mut self, source: &str, target: &str, person: &str) -> Result<(), String> {
        let open = |key: &str| self.index(key).ok_or(format!("{key} has no open alert"));
        let (from, to) = (self.alerts[open(source)?].head, self.alerts[open(target)?].head);
        if from == to {
            return Err("an incident is not merged into itself".into());
        }
        let state = self.state_of(to);
        for alert in self.alerts.iter_mut().filter(|a| a.head == from && a.state != AlertState::Resolved) {
            (alert.head, alert.state) = (to, state);
        }
        self.log(from, format!("merged into #{} by {person}", to + 1));
        let into = json!({"id": incident_id(to), "type": "incident_reference",
            "summary": format!("[#{}] {}", to + 1, self.alerts[to].summary),
            "html_url": format!("https://fake.pagerduty.com/incidents/{}", incident_id(to))});
        let reason = json!({"type": "merge_resolve_reason", "incident": into});
        self.notify_of(from, AlertState::Resolved, "resolved", (agent(person), reason));
        Ok(())
    }

    /// An incident that another program opened in the same service.
    pub fn of_another_program(&mut self, dedup_key: &str, summary: &str) {
        let head = self.alerts.len();
        self.alerts.push(Alert {
            dedup_key: dedup_key.into(),
            state: AlertState::Triggered,
            summary: summary.into(),
            source: "another program".into(),
            severity: "critical".into(),
            event: Value::Null,
            head,
            log: Vec::new(),
        });
    }

    /// The service resolves by itself what has been open for too long, by its setting
    /// `auto_resolve_timeout`: 4 hours unless switched off. No person did it.
    pub fn auto_resolve(&mut self) {
        for i in 0..self.alerts.len() {
            if self.alerts[i].state == AlertState::Resolved {
                continue;
            }
            self.becomes(self.alerts[i].head, AlertState::Resolved);
            self.log(i, "resolved automatically".into());
            self.notify(i, "resolved", Value::Null, Value::Null);
        }
    }

    /// The webhook about what an event of an integration did.
    pub(super) fn by_event(&mut self, dedup_key: &str, what: &str, _req: &Received) {
        let found = self.alerts.iter().rposition(|a| a.dedup_key == dedup_key);
        let agent = json!({"id": "PINTEG", "type": "events_api_v2_inbound_integration_reference", "summary": "Stepwatch"});
        if let Some(i) = found {
            self.notify(i, what, agent, Value::Null);
        }
    }

    fn log(&mut self, i: usize, what: String) {
        let log = &mut self.alerts[i].log;
        let at = log.last().map_or_else(std::time::Instant::now, |l| l.at);
        log.push(LogEntry { at, time: jiff::Timestamp::now(), what });
    }

    /// Of an incident: that of any of its alerts that is open.
    fn state_of(&self, head: usize) -> AlertState {
        let mut open = self.alerts.iter().filter(|a| a.head == head && a.state != AlertState::Resolved);
        open.next().map_or(AlertState::Resolved, |a| a.state)
    }

    fn index(&self, dedup_key: &str) -> Option<usize> {
        self.alerts.iter().position(|a| a.dedup_key == dedup_key && a.state != AlertState::Resolved)
    }

    /// Notifies subscribers of what became of the incident of an alert.
    fn notify(&mut self, i: usize, what: &str, agent: Value, reason: Value) {
        let head = self.alerts[i].head;
        self.notify_of(head, self.state_of(head), what, (agent, reason));
    }

    fn notify_of(&mut self, head: usize, state: AlertState, what: &str, (agent, reason): (Value, Value)) {
        let (n, first) = (self.hooks.len(), &self.alerts[head]);
        // The key of an incident is that of the alert that opened it.
        let key = if self.groups_alerts { Value::Null } else { first.dedup_key.as_str().into() };
        self.hooks.push(json!({"event": {
            "id": format!("01FAKE{n:06}"), "event_type": format!("incident.{what}"), "resource_type": "incident",
            "occurred_at": jiff::Timestamp::now().to_string(), "agent": agent, "client": null,
            "data": {"id": incident_id(head), "type": "incident", "number": head + 1, "status": state.as_str(),
                "incident_key": key, "title": first.summary, "resolve_reason": reason,
                "assignees": [{"summary": "On call", "type": "user_reference"}],
                "service": {"id": "PSERVICE", "summary": "Training", "type": "service_reference"}},
        }}));
    }
}

fn agent(person: &str) -> Value {
    json!({"id": "PERSON", "type": "user_reference", "summary": person, "html_url": "https://fake.pagerduty.com/users/PERSON"})
}

fn incident_id(head: usize) -> String {
    format!("PFAKE{head}")
}

/// The value of `X-PagerDuty-Signature` for a body, under the secrets that are valid.
pub fn pagerduty_signature(secrets: &[&str], body: &[u8]) -> String {
    let sign = |secret: &&str| {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
        mac.update(body);
        format!("v1={}", hex::encode(mac.finalize().into_bytes()))
    };
    secrets.iter().map(sign).collect::<Vec<_>>().join(",")
}

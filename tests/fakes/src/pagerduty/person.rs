//! Actions of people in PagerDuty, and the webhooks (v3) that report them to subscribers.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use super::{Alert, AlertState, LogEntry, Page, PagerDuty};
use crate::server::Received;

impl PagerDuty {
    /// The secret of the webhook subscription.
    pub const WEBHOOK_SECRET: &str = "fake-pagerduty-webhook-secret";

    /// A person acknowledges, unacknowledges, resolves or reopens an alert in the console or on a
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

    /// The acknowledgement of an alert's incident times out; no person did it.
    pub fn ack_times_out(&mut self, dedup_key: &str) -> Result<(), String> {
        let acknowledged = |i: &usize| self.alerts[*i].state == AlertState::Acknowledged;
        let i = self.index(dedup_key).filter(acknowledged).ok_or("there is no such acknowledged alert")?;
        self.becomes(self.alerts[i].head, AlertState::Triggered);
        self.log(i, "the acknowledgement timed out".into());
        self.page_again(i);
        self.notify(i, "unacknowledged", Value::Null, Value::Null);
        Ok(())
    }

    /// Notifies people again of an incident whose acknowledgement was lost.
    fn page_again(&mut self, i: usize) {
        let head = &self.alerts[self.alerts[i].head];
        let (dedup_key, summary) = (head.dedup_key.clone(), head.summary.clone());
        let (at, time) = (std::time::Instant::now(), jiff::Timestamp::now());
        self.pages.push(Page { at, time, dedup_key, summary });
    }

    /// Reopens a resolved incident with its alerts, unacknowledged.
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

    /// A person merges the incident of one alert into that of another. Its alerts move there with
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

    /// Opens an incident of another program in the same service.
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

    /// The service resolves incidents that were open for too long, by its setting
    /// `auto_resolve_timeout`: 4 hours by default. No person did it.
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

    /// Adds the webhook about the effect of an integration's event.
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

    /// The state of an incident, which is that of any of its open alerts.
    fn state_of(&self, head: usize) -> AlertState {
        let mut open = self.alerts.iter().filter(|a| a.head == head && a.state != AlertState::Resolved);
        open.next().map_or(AlertState::Resolved, |a| a.state)
    }

    fn index(&self, dedup_key: &str) -> Option<usize> {
        self.alerts.iter().position(|a| a.dedup_key == dedup_key && a.state != AlertState::Resolved)
    }

    /// Adds a webhook about a change of an alert's incident.
    fn notify(&mut self, i: usize, what: &str, agent: Value, reason: Value) {
        let head = self.alerts[i].head;
        self.notify_of(head, self.state_of(head), what, (agent, reason));
    }

    fn notify_of(&mut self, head: usize, state: AlertState, what: &str, (agent, reason): (Value, Value)) {
        let (n, first) = (self.hooks.len(), &self.alerts[head]);
        // An incident has the key of the alert that opened it.
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

/// The value of `X-PagerDuty-Signature` for a body, with all valid secrets.
pub fn pagerduty_signature(secrets: &[&str], body: &[u8]) -> String {
    let sign = |secret: &&str| {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
        mac.update(body);
        format!("v1={}", hex::encode(mac.finalize().into_bytes()))
    };
    secrets.iter().map(sign).collect::<Vec<_>>().join(",")
}

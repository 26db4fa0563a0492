//! People in PagerDuty, and the webhooks (v3) that tell subscribers what was done.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use super::{AlertState, LogEntry, PagerDuty};
use crate::server::Received;

impl PagerDuty {
    /// The secret of the webhook subscription.
    pub const WEBHOOK_SECRET: &str = "fake-pagerduty-webhook-secret";

    /// Somebody acknowledges, un-acknowledges or resolves an alert in the console or on a phone.
    /// The webhook waits in `hooks`.
    pub fn by_person(&mut self, dedup_key: &str, what: &str, person: &str) -> Result<(), String> {
        let agent = json!({"id": "PERSON", "type": "user_reference", "summary": person, "html_url": "https://fake.pagerduty.com/users/PERSON"});
        let i = self.index(dedup_key).ok_or("there is no such open alert")?;
        let to = match (what, self.alerts[i].state) {
            ("acknowledged", _) => AlertState::Acknowledged,
            ("unacknowledged", AlertState::Acknowledged) => AlertState::Triggered,
            ("resolved", _) => AlertState::Resolved,
            (what, state) => return Err(format!("an alert that is {} cannot be {what}", state.as_str())),
        };
        self.becomes(self.alerts[i].head, to);
        let alert = &mut self.alerts[i];
        let at = alert.log.last().map_or_else(std::time::Instant::now, |l| l.at);
        alert.log.push(LogEntry { at, time: jiff::Timestamp::now(), what: format!("{what} by {person}") });
        self.tell(i, what, agent);
        Ok(())
    }

    /// The service resolves by itself what has been open for too long, as its setting
    /// `auto_resolve_timeout` says: 4 hours unless switched off. No person did it.
    pub fn auto_resolve(&mut self) {
        for i in 0..self.alerts.len() {
            if self.alerts[i].state == AlertState::Resolved {
                continue;
            }
            self.becomes(self.alerts[i].head, AlertState::Resolved);
            let at = std::time::Instant::now();
            let what = "resolved automatically".into();
            self.alerts[i].log.push(LogEntry { at, time: jiff::Timestamp::now(), what });
            self.tell(i, "resolved", Value::Null);
        }
    }

    /// The webhook about what an event of an integration did.
    pub(super) fn by_event(&mut self, dedup_key: &str, what: &str, _req: &Received) {
        let found = self.alerts.iter().rposition(|a| a.dedup_key == dedup_key);
        let agent = json!({"id": "PINTEG", "type": "events_api_v2_inbound_integration_reference", "summary": "Stepwatch"});
        if let Some(i) = found {
            self.tell(i, what, agent);
        }
    }

    fn index(&self, dedup_key: &str) -> Option<usize> {
        self.alerts.iter().position(|a| a.dedup_key == dedup_key && a.state != AlertState::Resolved)
    }

    fn tell(&mut self, i: usize, what: &str, agent: Value) {
        let alert = &self.alerts[i];
        let key = if self.groups_alerts { Value::Null } else { alert.dedup_key.as_str().into() };
        let (n, head) = (self.hooks.len(), alert.head);
        self.hooks.push(json!({"event": {
            "id": format!("01FAKE{n:06}"), "event_type": format!("incident.{what}"), "resource_type": "incident",
            "occurred_at": jiff::Timestamp::now().to_string(), "agent": agent, "client": null,
            "data": {"id": format!("PFAKE{head}"), "type": "incident", "number": head + 1, "status": alert.state.as_str(),
                "incident_key": key, "title": alert.summary, "assignees": [{"summary": "On call", "type": "user_reference"}],
                "service": {"id": "PSERVICE", "summary": "Training", "type": "service_reference"}},
        }}));
    }
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

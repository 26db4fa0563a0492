//! The outside: people with a shell, with Slack and with PagerDuty, and a Prometheus. They may find
//! the alerter down.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use stepwatch_fakes::{
    FakePagerDuty, FakeSlack, PagerDuty, Post, Slack, interaction_body, pagerduty_signature, slack_signature,
};
use stepwatch_tests::http;

pub(super) const ANN: &str = "ann";
pub(super) const JANE: &str = "Jane Doe";

/// How long anybody waits for an answer: longer than the alerter takes to answer that it cannot.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long an alert fires without being sent again.
const ALERT_LASTS: SignedDuration = SignedDuration::from_secs(300);

/// The alerter's answer, if there was one: without an answer it is unknown whether it took the
/// request.
pub(super) type Said = Option<(u16, Value)>;

/// The way to one alerter.
#[derive(Debug)]
pub(super) struct People {
    pub(super) url: String,
    /// By how much its wall clock is ahead: Prometheus agrees with it, and so does Slack, which
    /// nobody believes otherwise.
    pub(super) ahead: AtomicI64,
    /// Webhooks of PagerDuty that were taken.
    pumped: std::sync::atomic::AtomicUsize,
}

impl People {
    pub(super) fn new(url: String) -> Self {
        Self { url, ahead: AtomicI64::new(0), pumped: 0.into() }
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::now() + SignedDuration::from_secs(self.ahead.load(Ordering::SeqCst))
    }

    async fn said(request: reqwest::RequestBuilder) -> Said {
        let answer = request.timeout(PATIENCE).send().await.ok()?;
        let status = answer.status().as_u16();
        let text = answer.text().await.ok()?;
        Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Said {
        Self::said(http::client().post(format!("{}{path}", self.url)).json(body)).await
    }

    pub(super) async fn delete(&self, path: &str) -> Said {
        Self::said(http::client().delete(format!("{}{path}", self.url))).await
    }

    pub(super) async fn get(&self, path: &str) -> Option<Value> {
        let said = Self::said(http::client().get(format!("{}{path}", self.url))).await?;
        (said.0 == 200).then_some(said.1)
    }

    /// Posts as Prometheus does that this alert fires, or is over.
    pub(super) async fn alert(&self, run: &str, fires: bool) -> Said {
        let (starts, ends) = (self.now() - ALERT_LASTS, self.now() + ALERT_LASTS);
        let ends = if fires { ends } else { self.now() };
        let labels =
            json!({"alertname": "GpuHot", "severity": "critical", "run": run, "instance": "gpu-1:9400"});
        let alert =
            json!({"labels": labels, "startsAt": starts, "endsAt": ends, "annotations": {"summary": "hot"}});
        self.post("/api/v2/alerts", &json!([alert])).await
    }

    /// A click on a button of the message about a run; `None` also if there is no such button (any
    /// more).
    pub(super) async fn click(&self, slack: &FakeSlack, run: &str, button: &str) -> Said {
        let post = slack.with(|s| message(s, run).map(|p| p.ts.clone()))?;
        let payload = slack.change(|s| s.click(&slack.url(), &post, button, ("U0ANN", ANN))).ok()?;
        let (body, at) = (interaction_body(&payload), self.now().as_second());
        let request = http::client()
            .post(format!("{}/slack/interactions", self.url))
            .header("content-type", "application/x-www-form-urlencoded")
            .header("x-slack-request-timestamp", at.to_string())
            .header("x-slack-signature", slack_signature(Slack::SIGNING_SECRET, at, body.as_bytes()));
        Self::said(request.body(body)).await
    }

    /// PagerDuty sends what was done there, in order and by its own clock, until one is not taken;
    /// returns whether all were.
    pub(super) async fn pump(&self, pagerduty: &FakePagerDuty) -> bool {
        loop {
            let next = self.pumped.load(Ordering::SeqCst);
            let Some(hook) = pagerduty.with(|pd| pd.hooks.get(next).cloned()) else { return true };
            let body = hook.to_string();
            let request = http::client()
                .post(format!("{}/pagerduty/webhook", self.url))
                .header("content-type", "application/json")
                .header(
                    "x-pagerduty-signature",
                    pagerduty_signature(&[PagerDuty::WEBHOOK_SECRET], body.as_bytes()),
                );
            match Self::said(request.body(body)).await {
                Some((200, _)) => self.pumped.store(next + 1, Ordering::SeqCst),
                _ => return false,
            }
        }
    }
}

/// The message about a run.
pub(super) fn message<'a>(slack: &'a Slack, run: &str) -> Option<&'a Post> {
    slack.top().find(|p| p.visible_text().contains(run))
}

//! The webhook receiver, for any program that accepts JSON by HTTP POST.
//!
//! The body ([`Body`]) is a contract: fields may be added but are never changed or removed.
//! `Idempotency-Key` is the same for every repetition of a message; a receiver answers a known key
//! with 2xx and does nothing. With a secret, a receiver checks `X-Stepwatch-Signature: v1=<hex>`
//! against HMAC-SHA256 of the secret over `<X-Stepwatch-Timestamp>.<body>`, and refuses old
//! timestamps. During a secret rotation there are two signatures, `v1=<hex>,v1=<hex>`, of which one
//! must match.

use std::path::PathBuf;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;
use stepwatch_kit::config::Secret;
use stepwatch_model::time::Ts;
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::incident::Ended;
use stepwatch_respond::message::{Fact, Link, Message, Reason, Status};

use super::attempt::{Attempt, Failure, FailureClass, Receipt};
use super::http::{Http, url_secrets};
use super::kind::ReceiverKind;
use super::mistake::Mistake;
use super::notifier::Notifier;
use super::report::ScheduledReport;
use super::secret::{self, SecretSource};
use super::text::hex;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The address of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A file with the address, if it is a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_env: Option<String>,
    /// A file with the secret that signs every request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
    /// A file with the previous secret during a rotation: requests have a signature by each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_secret_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_secret_env: Option<String>,
}

#[derive(Debug)]
pub struct Webhook {
    http: Http,
    url: Secret,
    /// The secrets, newest first.
    secrets: Vec<Secret>,
}

/// The body of a request.
#[derive(Debug, Serialize)]
pub struct Body<'a> {
    /// The version of this format.
    pub version: &'static str,
    pub idempotency_key: &'a str,
    /// `trigger`, `update`, `ack` or `resolve`.
    pub action: Action,
    /// A number that rises by at least one with each message of an incident.
    pub seq: u32,
    /// Whether this message should wake a person: a trigger of a page that is not acknowledged.
    pub page: bool,
    pub receiver: &'a str,
    pub incident: Incident<'a>,
}

#[derive(Debug, Serialize)]
pub struct Incident<'a> {
    pub id: &'a str,
    /// The run; empty for a node that no run uses.
    pub run: &'a str,
    /// Faulty nodes, with the first suspect first.
    pub nodes: &'a [String],
    pub kind: Kind,
    pub severity: Severity,
    /// `firing`, `acknowledged` or `resolved`. A trigger with `resolved` is about an incident that
    /// ended before its first message could be sent.
    pub status: Status,
    /// How the incident ended: `person`, `sender`, `clear`, `stale`, `run_ended` or `replaced`.
    /// Absent while it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    pub title: &'a str,
    pub summary: &'a str,
    pub facts: &'a [Fact],
    /// The reason for this message: for programs, and as text.
    pub because: Reason,
    pub reason: &'a str,
    pub links: &'a [Link],
    /// The address of the chart as PNG, or with `.svg` as SVG. Present if `external_url` is set and
    /// the incident has steps. It needs a token if the API does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chart: Option<&'a str>,
    /// RFC 3339, in UTC.
    pub started_at: String,
    /// The time of this message.
    pub at: String,
}

/// The body of a request with a scheduled report.
#[derive(Debug, Serialize)]
pub(crate) struct ReportBody<'a> {
    /// The version of this format.
    version: &'static str,
    /// Always `report`. The body of an incident has no type.
    r#type: &'static str,
    idempotency_key: &'a str,
    receiver: &'a str,
    /// The name of the schedule.
    schedule: &'a str,
    title: &'a str,
    /// The address of the report for people, if `external_url` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    /// The report as `GET /api/v1/report` returns it.
    report: &'a Value,
}

impl<'a> ReportBody<'a> {
    pub(crate) fn of(n: &'a Notification, report: &'a ScheduledReport) -> Self {
        Self {
            version: "1",
            r#type: "report",
            idempotency_key: &n.idem_key,
            receiver: &n.receiver,
            schedule: &report.schedule,
            title: &report.title,
            url: report.url.as_deref(),
            report: &report.data,
        }
    }
}

impl ReceiverKind for Config {}

impl Config {
    pub(super) fn build(&self) -> Result<Webhook, Mistake> {
        let url = secret::url_of(self.url.as_ref(), self.url_file.as_ref(), self.url_env.as_ref())?;
        let url = url.ok_or("url (or url_file, or url_env) is missing")?;
        let secret = SecretSource::from_keys("secret", self.secret_file.as_ref(), self.secret_env.as_ref())?;
        let secret = secret.map(|source| source.read()).transpose()?;
        let (file, env) = (self.previous_secret_file.as_ref(), self.previous_secret_env.as_ref());
        let previous =
            SecretSource::from_keys("previous_secret", file, env)?.map(|s| s.read()).transpose()?;
        if previous.is_some() && secret.is_none() {
            return Err(Mistake::at("previous_secret_file", "is set without secret_file"));
        }
        let secrets: Vec<Secret> = secret.into_iter().chain(previous).collect();
        let mut hidden = url_secrets(&url);
        hidden.extend(secrets.iter().cloned());
        Ok(Webhook { http: Http::new("webhook", hidden)?, url, secrets })
    }
}

impl Notifier for Webhook {
    fn kind(&self) -> &'static str {
        "webhook"
    }

    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>> {
        let n = attempt.notification;
        let body = match attempt.report {
            Some(report) => serde_json::to_vec(&ReportBody::of(n, report)),
            None => serde_json::to_vec(&body(n)),
        };
        async move { self.post(n, body).await }.boxed()
    }

    fn account(&self) -> Vec<Secret> {
        let url = core::iter::once(&self.url);
        url.chain(&self.secrets).cloned().collect()
    }

    /// The program behind the webhook may wake people.
    fn wakes(&self) -> bool {
        true
    }
}

impl Webhook {
    async fn post(&self, n: &Notification, body: serde_json::Result<Vec<u8>>) -> Result<Receipt, Failure> {
        let body = body.map_err(|err| self.http.failure(FailureClass::Permanent, false, &err.to_string()))?;
        let timestamp = (jiff::Timestamp::now().as_second()).to_string();
        let mut request = self
            .http
            .client()
            .post(self.url.expose())
            .header("Content-Type", "application/json")
            .header("Idempotency-Key", header_value(&n.idem_key))
            .header("X-Stepwatch-Timestamp", &timestamp);
        if !self.secrets.is_empty() {
            let sign = |secret: &Secret| signature(secret.expose().as_bytes(), &timestamp, &body);
            let signatures: Vec<String> = self.secrets.iter().map(sign).collect();
            request = request.header("X-Stepwatch-Signature", signatures.join(","));
        }
        let answer = self.http.send(request.body(body)).await?;
        if answer.status.is_success() { Ok(Receipt::default()) } else { Err(self.http.refused(&answer)) }
    }
}

fn body(n: &Notification) -> Body<'_> {
    let m: &Message = &n.message;
    let incident = Incident {
        id: &m.incident,
        run: &m.run,
        nodes: &m.nodes,
        kind: m.kind,
        severity: m.severity,
        status: m.status,
        ended: m.ended,
        title: &m.title,
        summary: &m.summary,
        facts: &m.facts,
        because: m.because,
        reason: &m.reason,
        links: &m.links,
        chart: m.chart.as_deref(),
        started_at: rfc3339(m.started_at),
        at: rfc3339(m.at),
    };
    Body {
        version: "1",
        idempotency_key: &n.idem_key,
        action: n.action,
        seq: n.seq,
        page: n.page && n.action == Action::Trigger && m.status == Status::Firing,
        receiver: &n.receiver,
        incident,
    }
}

/// Percent-encodes characters that are not printable ASCII: receiver names are free text, but
/// header values are not.
fn header_value(text: &str) -> String {
    let encode = |b: u8| match b {
        b'%' => "%25".to_owned(),
        b if b.is_ascii_graphic() => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    };
    text.bytes().map(encode).collect()
}

fn rfc3339(ts: Ts) -> String {
    ts.to_string()
}

/// `v1=<hex>`: HMAC-SHA256 over `<timestamp>.<body>`.
fn signature(secret: &[u8], timestamp: &str, body: &[u8]) -> String {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else {
        // HMAC accepts keys of any length. Without a signature the request would be refused, which
        // is the safe failure.
        return "v1=".to_owned();
    };
    mac.update(timestamp.as_bytes());
    mac.update(b".");
    mac.update(body);
    format!("v1={}", hex(&mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::test_notification;

    #[test]
    fn the_body_is_a_contract() {
        let n = test_notification("hook", "01J9ZC", Ts(1_795_227_416_980));
        insta::assert_snapshot!(serde_json::to_string_pretty(&body(&n)).unwrap());
    }

    #[test]
    fn a_report_says_that_it_is_one() {
        let report = super::super::report::tests::weekly(true);
        let n = report.notification("report/weekly/2026-11-23", "hook", Ts(1_795_227_416_980));
        let mut sent = serde_json::to_value(ReportBody::of(&n, &report)).unwrap();
        assert_eq!(sent["report"].take(), report.data);
        assert_eq!(
            sent,
            serde_json::json!({
                "version": "1",
                "type": "report",
                "idempotency_key": "report/weekly/2026-11-23/hook/1",
                "receiver": "hook",
                "schedule": "weekly",
                "title": "Weekly report, 2026-11-16 to 2026-11-22",
                "url": "https://stepwatch.example.com/report?since=2026-11-15T23%3A00%3A00Z&until=2026-11-22T23%3A00%3A00Z",
                "report": null,
            })
        );
    }

    #[test]
    fn only_what_calls_somebody_says_so() {
        let page = |action, status| {
            let mut n = test_notification("hook", "01J9ZC", Ts(1_795_227_416_980));
            (n.page, n.action, n.message.status) = (true, action, status);
            body(&n).page
        };
        assert!(page(Action::Trigger, Status::Firing));
        assert!(!page(Action::Trigger, Status::Resolved), "fired and resolved");
        assert!(!page(Action::Update, Status::Firing));
        assert!(!page(Action::Ack, Status::Acknowledged));
        assert!(!page(Action::Resolve, Status::Resolved));
    }

    #[test]
    fn signs_the_timestamp_and_the_body() {
        // printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac secret
        assert_eq!(
            signature(b"secret", "1700000000", br#"{"a":1}"#),
            "v1=49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686"
        );
    }

    #[test]
    fn a_wrong_configuration_says_what_is_wrong() {
        let error = |config: Config| config.build().unwrap_err().to_string();
        let url = |url: &str| error(Config { url: Some(url.into()), ..Config::default() });
        assert!(url("ftp://x.org").contains("https://"));
        assert!(url("x.org").starts_with("url: "));
        assert!(error(Config::default()).contains("is missing"));
        let both = Config { url: Some("http://x".into()), url_env: Some("X".into()), ..Config::default() };
        assert!(error(both).contains("both set"));
        assert!(url("https://me:canary@x.org").contains("url_file"));
    }

    #[test]
    fn any_receiver_name_fits_into_a_header() {
        assert_eq!(header_value("01J9/ops chat/1"), "01J9/ops%20chat/1");
        assert_eq!(header_value("é%\r\n"), "%C3%A9%25%0D%0A");
    }
}

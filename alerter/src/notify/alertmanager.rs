//! The Alertmanager receiver: incidents become alerts there, for teams that have their silences,
//! dashboards and receivers in it.
//!
//! An alert in Alertmanager expires if it is not repeated, so every firing alert is sent again well
//! before. Its identity is its labels, which have the stable parts of an incident; if one changes,
//! the same request ends the old alert. All instances of a cluster get every alert, without a load
//! balancer. One that accepts suffices, because the next resend reaches the others.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stepwatch_kit::config::Secret;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::Notification;
use stepwatch_respond::message::{LinkRole, Status};

use super::attempt::{Attempt, Failure, FailureClass, Receipt};
use super::http::{Http, base_url};
use super::kind::ReceiverKind;
use super::mistake::Mistake;
use super::notifier::Notifier;
use super::secret::SecretSource;
use super::text::{clean, line, shorten, web_link};

/// The number of missed resends after which an alert expires.
const RESENDS_MISSED: i64 = 4;
const RESEND_MIN: Span = Span::secs(5);
const RESEND_MAX: Span = Span::secs(600);
const LABEL_MAX: usize = 255;
const ANNOTATION_MAX: usize = 4096;
const HREF_MAX: usize = 2048;
const URLS_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The URLs of all instances, such as `http://alertmanager-0:9093`, with the path prefix if
    /// there is one.
    pub urls: Vec<String>,
    /// The interval at which firing alerts are sent again; an alert expires after four missed
    /// resends.
    pub resend_every: Span,
    /// Labels that are added to every alert.
    pub labels: std::collections::BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_env: Option<String>,
    /// A bearer token, in place of a user and a password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer_token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer_token_env: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            resend_every: Span::secs(60),
            labels: std::collections::BTreeMap::new(),
            username: None,
            password_file: None,
            password_env: None,
            bearer_token_file: None,
            bearer_token_env: None,
        }
    }
}

#[derive(Debug)]
pub struct Alertmanager {
    http: Http,
    urls: Vec<String>,
    resend_every: Span,
    labels: std::collections::BTreeMap<String, String>,
    user: Option<(String, Secret)>,
    bearer: Option<Secret>,
}

type Labels = Map<String, Value>;

impl ReceiverKind for Config {
    fn repeated_by(&self) -> Option<&'static str> {
        Some("the Alertmanager's own route")
    }

    fn shows_no_reports(&self) -> Option<&'static str> {
        Some("an Alertmanager takes only alerts")
    }
}

impl Config {
    pub(super) fn build(&self) -> Result<Alertmanager, Mistake> {
        if self.urls.is_empty() || self.urls.len() > URLS_MAX {
            return Err(Mistake::at("urls", format!("needs 1 to {URLS_MAX} addresses")));
        }
        let urls: Vec<String> =
            self.urls.iter().map(|url| base_url("urls", url)).collect::<Result<_, _>>()?;
        let has_password = |url: &String| url::Url::parse(url).is_ok_and(|u| u.password().is_some());
        if urls.iter().any(has_password) {
            return Err(Mistake::at("urls", "has a password in it, which belongs into password_file"));
        }
        if self.resend_every < RESEND_MIN || self.resend_every > RESEND_MAX {
            return Err(Mistake::at("resend_every", format!("must be from {RESEND_MIN} to {RESEND_MAX}")));
        }
        if let Some(name) = self.labels.keys().find(|name| !is_label(name)) {
            return Err(Mistake::at("labels", format!("{name:?} is not a label's name")));
        }
        let password =
            SecretSource::from_keys("password", self.password_file.as_ref(), self.password_env.as_ref())?;
        let password = password.map(|s| s.read()).transpose()?;
        let bearer = SecretSource::from_keys(
            "bearer_token",
            self.bearer_token_file.as_ref(),
            self.bearer_token_env.as_ref(),
        )?;
        let bearer = bearer.map(|s| s.read()).transpose()?;
        let user = match (self.username.clone(), password) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            _ => return Err("username and password_file (or password_env) go together".into()),
        };
        if user.is_some() && bearer.is_some() {
            return Err("username and bearer_token_file are both set, one is enough".into());
        }
        let secrets = user.iter().map(|(_, password)| password).chain(&bearer).cloned().collect();
        let http = Http::new("alertmanager", secrets)?;
        let (resend_every, labels) = (self.resend_every, self.labels.clone());
        Ok(Alertmanager { http, urls, resend_every, labels, user, bearer })
    }
}

impl Notifier for Alertmanager {
    fn kind(&self) -> &'static str {
        "alertmanager"
    }

    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>> {
        async move {
            let (n, now) = (attempt.notification, crate::clock::wall());
            let labels = self.labels_of(n);
            let before = attempt.memory.and_then(|m| serde_json::from_str::<Labels>(m).ok());
            let mut alerts = vec![self.alert(n, &labels, now)];
            // Otherwise the alert with the old labels would fire until it expires.
            if let Some(before) = before.filter(|before| *before != labels) {
                alerts.push(
                    json!({"labels": before, "startsAt": time(n.message.started_at), "endsAt": time(now)}),
                );
            }
            self.post(&alerts).await?;
            Ok(Receipt { memory: serde_json::to_string(&labels).ok() })
        }
        .boxed()
    }

    fn account(&self) -> Vec<Secret> {
        let secret = self.user.as_ref().map(|(_, password)| password).or(self.bearer.as_ref());
        self.urls.iter().cloned().map(Secret::new).chain(secret.cloned()).collect()
    }

    fn remind_every(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.resend_every.0.unsigned_abs()))
    }

    fn remind<'a>(&'a self, standing: &'a [Notification]) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let now = crate::clock::wall();
            let alerts: Vec<Value> =
                standing.iter().map(|n| self.alert(n, &self.labels_of(n), now)).collect();
            self.post(&alerts).await
        }
        .boxed()
    }
}

impl Alertmanager {
    async fn post(&self, alerts: &[Value]) -> Result<(), Failure> {
        let body = serde_json::to_vec(alerts)
            .map_err(|err| self.http.failure(FailureClass::Permanent, false, &err.to_string()))?;
        let all = join_all(self.urls.iter().map(|url| self.post_to(url, body.clone()))).await;
        let mut failure = None;
        let mut delivered = false;
        for (url, result) in self.urls.iter().zip(all) {
            match result {
                Ok(()) => delivered = true,
                Err(err) => {
                    if self.urls.len() > 1 {
                        tracing::warn!(url, error = err.error, "an Alertmanager did not accept the alerts");
                    }
                    // Another instance may accept what this one refuses, so a retry is the safe
                    // choice.
                    let worse = failure.as_ref().is_none_or(|f: &Failure| f.class == FailureClass::Permanent);
                    if worse {
                        failure = Some(err);
                    }
                }
            }
        }
        match failure {
            Some(failure) if !delivered => Err(failure),
            _ => Ok(()),
        }
    }

    async fn post_to(&self, url: &str, body: Vec<u8>) -> Result<(), Failure> {
        let mut request = self.http.client().post(format!("{url}/api/v2/alerts"));
        request = request.header("Content-Type", "application/json");
        if let Some((user, password)) = &self.user {
            request = request.basic_auth(user, Some(password.expose()));
        }
        if let Some(token) = &self.bearer {
            request = request.bearer_auth(token.expose());
        }
        let answer = self.http.send(request.body(body)).await?;
        if answer.status.is_success() { Ok(()) } else { Err(self.http.refused(&answer)) }
    }

    /// The labels that identify an alert.
    fn labels_of(&self, n: &Notification) -> Labels {
        let m = &n.message;
        let own = [
            ("alertname", alert_name(m.kind.as_str())),
            ("severity", m.severity.as_str().to_owned()),
            ("kind", m.kind.as_str().to_owned()),
            ("run", m.run.clone()),
            ("node", m.nodes.first().cloned().unwrap_or_default()),
            ("incident", m.incident.clone()),
        ];
        let fixed = self.labels.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let all = fixed.chain(own).map(|(name, value)| (name.to_owned(), line(&value, LABEL_MAX)));
        // A label without a value counts as absent.
        all.filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name, value.into())).collect()
    }

    fn alert(&self, n: &Notification, labels: &Labels, now: Ts) -> Value {
        let m = &n.message;
        let tidy = |text: &str| shorten(clean(text).trim(), ANNOTATION_MAX);
        let mut annotations = Map::new();
        let mut annotate = |name: &str, text: String| {
            if !text.is_empty() {
                annotations.insert(name.to_owned(), text.into());
            }
        };
        annotate("summary", line(&m.title, ANNOTATION_MAX));
        annotate("description", tidy(&m.summary));
        annotate("reason", tidy(&m.reason));
        let facts: Vec<String> =
            m.facts.iter().map(|f| format!("{}: {}", line(&f.label, LABEL_MAX), tidy(&f.text))).collect();
        annotate("facts", tidy(&facts.join("\n")));
        if m.status == Status::Acknowledged {
            annotate("acknowledged", "true".into());
        }
        let link = |role: LinkRole| {
            let found = m.links.iter().find(|link| link.role == role);
            found.and_then(|l| web_link(&l.href, HREF_MAX)).unwrap_or_default().to_owned()
        };
        annotate("runbook_url", link(LinkRole::Runbook));
        let ends =
            if m.status == Status::Resolved { now } else { now + Span(self.resend_every.0 * RESENDS_MISSED) };
        let starts = m.started_at.min(ends);
        json!({
            "labels": labels, "annotations": annotations, "startsAt": time(starts), "endsAt": time(ends),
            "generatorURL": link(LinkRole::Incident),
        })
    }
}

/// The alert name of a kind: `grad_spike` becomes `StepwatchGradSpike`.
fn alert_name(kind: &str) -> String {
    let word = |word: &str| {
        let mut chars = word.chars();
        chars.next().map(|first| first.to_uppercase().chain(chars).collect::<String>()).unwrap_or_default()
    };
    format!("Stepwatch{}", kind.split('_').map(word).collect::<String>())
}

fn is_label(name: &str) -> bool {
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    first && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn time(ts: Ts) -> String {
    jiff::Timestamp::from_millisecond(ts.0)
        .map_or_else(|_| ts.to_string(), |t| t.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::tests::{gpu_fault, hostile, page};
    use stepwatch_respond::effect::Action;

    fn receiver() -> Alertmanager {
        let labels =
            [("cluster".to_owned(), "a".to_owned()), ("severity".to_owned(), "lost".to_owned())].into();
        Config { urls: vec!["http://127.0.0.1:1".into()], labels, ..Config::default() }.build().unwrap()
    }

    #[test]
    fn an_alert_as_it_stands_there() {
        let (am, n) = (receiver(), page("am", 1, Action::Trigger));
        let alert = am.alert(&n, &am.labels_of(&n), n.message.at);
        assert_eq!(alert["labels"]["alertname"], "StepwatchGradSpike");
        assert_eq!(alert["labels"]["severity"], "page", "ours wins");
        assert_eq!(
            (alert["labels"]["run"].as_str(), alert["labels"]["cluster"].as_str()),
            (Some("llama-70b"), Some("a"))
        );
        assert_eq!(alert["labels"].get("node"), None, "an empty label is none");
        assert_eq!(alert["endsAt"], "2026-11-21T02:20:56.980Z");
        assert_eq!(am.labels_of(&gpu_fault(true))["node"], "gpu-042");
        let mut over = n.clone();
        over.message.status = Status::Resolved;
        assert_eq!(am.alert(&over, &am.labels_of(&over), n.message.at)["endsAt"], "2026-11-21T02:16:56.980Z");
    }

    #[test]
    fn labels_hold_no_hidden_text_and_links_are_web_links() {
        let (am, n) = (receiver(), hostile(page("am", 1, Action::Trigger)));
        let text = am.alert(&n, &am.labels_of(&n), n.message.at).to_string();
        assert!(!text.contains('\u{202e}') && !text.contains("javascript:alert"), "{text}");
    }

    #[test]
    fn a_wrong_configuration_says_what_is_wrong() {
        let good = || Config { urls: vec!["http://am:9093".into()], ..Config::default() };
        assert!(good().build().is_ok());
        let error = |config: Config| config.build().unwrap_err().to_string();
        assert!(error(Config { urls: vec![], ..good() }).contains("urls: needs"));
        assert!(error(Config { urls: vec!["am:9093".into()], ..good() }).contains("https://"));
        assert!(
            error(Config { urls: vec!["http://me:canary@am".into()], ..good() }).contains("password_file")
        );
        assert!(error(Config { resend_every: Span::secs(1), ..good() }).contains("resend_every"));
        assert!(error(Config { labels: [("a-b".into(), "x".into())].into(), ..good() }).contains("a-b"));
        assert!(error(Config { username: Some("x".into()), ..good() }).contains("go together"));
    }
}

//! The Slack receiver: one message per incident with its present state, and a thread with its
//! history.
//!
//! With a bot token, the first message is posted, and each later one edits it and adds a reply to
//! its thread, so that a channel has one message per incident. An incoming webhook can neither edit
//! nor reply in a thread, so every message is posted.
//!
//! Slack has no idempotency keys. Every message has a key in its metadata, and a message that may
//! have arrived is searched for before it is sent again.

mod answer;
mod app;
mod blocks;
mod buttons;
mod channel;
mod config;
mod files;
mod look;
mod people;
mod report;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepwatch_kit::config::Secret;
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::message::Status;

use self::answer::Refusal;
use super::attempt::{Attempt, Failure, FailureClass, Receipt};
use super::http::{Http, base_url, url_secrets};
use super::kind::ReceiverKind;
use super::mistake::Mistake;
use super::notifier::{CallbackConfig, Gallery, Notifier, Pace};
use super::secret::SecretSource;

pub use app::App;
pub(crate) use blocks::{escape, inert, is_user_id};
pub(crate) use buttons::Deed;
pub use config::Config;
pub use people::Answers;
pub(crate) use people::Origin;

/// Slack accepts about one message per second and channel, and short bursts.
const PACE: Pace = Pace { per_second: 1.0, burst: 3.0 };

/// The event type of our metadata.
const EVENT_TYPE: &str = "stepwatch";

#[derive(Debug)]
pub struct Slack {
    http: Http,
    way: Way,
    /// The app, if clicks can be received.
    app: Option<Arc<App>>,
}

#[derive(Debug)]
enum Way {
    Bot { api_url: String, token: Secret, channel: String },
    Webhook { url: Secret },
}

/// The message of an incident: the memory of its lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Top {
    /// The channel's id, because only ids can be edited and read.
    channel: String,
    ts: String,
    /// The configured name of the channel when the message was posted.
    named: String,
    /// The idempotency key of the message.
    key: String,
    /// Whether the message already shows that the incident is over.
    over: bool,
}

impl ReceiverKind for Config {
    /// A webhook can only post.
    fn is_thread(&self) -> bool {
        self.webhook_url_file.is_none() && self.webhook_url_env.is_none()
    }
}

impl Config {
    pub(super) fn build(&self) -> Result<Slack, Mistake> {
        let webhook = SecretSource::from_keys(
            "webhook_url",
            self.webhook_url_file.as_ref(),
            self.webhook_url_env.as_ref(),
        )?;
        let Some(webhook) = webhook else { return self.build_bot() };
        let of_a_bot = [&self.channel, &self.token_env, &self.signing_secret_env, &self.app_token_env];
        let files_of_a_bot = [&self.token_file, &self.signing_secret_file, &self.app_token_file];
        if of_a_bot.iter().any(|key| key.is_some()) || files_of_a_bot.iter().any(|key| key.is_some()) {
            return Err("webhook_url_file excludes channel, token_file, signing_secret_file and \
                        app_token_file: a webhook has its own channel and no buttons"
                .into());
        }
        let url = webhook.read()?;
        base_url("webhook_url", url.expose())
            .map_err(|_| webhook.mistake(format!("{webhook} does not hold an https:// address")))?;
        // A message by webhook belongs to no app that could receive a click.
        Ok(Slack { http: Http::new("slack", url_secrets(&url))?, way: Way::Webhook { url }, app: None })
    }

    fn build_bot(&self) -> Result<Slack, Mistake> {
        let token = SecretSource::from_keys("token", self.token_file.as_ref(), self.token_env.as_ref())?;
        let source = token.ok_or("token_file (or token_env) is missing, or webhook_url_file instead")?;
        let token = source.read()?;
        channel::check_token(&source, &token)?;
        let channel = self.channel.clone().filter(|c| !c.trim().is_empty());
        let channel = channel.ok_or("channel is missing: #name or id")?;
        channel::check(&channel).map_err(|why| Mistake::at("channel", why))?;
        let api_url = base_url("api_url", &self.api_url)?;
        let http = Http::new("slack", vec![token.clone()])?;
        let app = App::from_config(self, &api_url, &token)?.map(Arc::new);
        Ok(Slack { http, way: Way::Bot { api_url, token, channel }, app })
    }
}

impl Notifier for Slack {
    fn kind(&self) -> &'static str {
        "slack"
    }

    fn send<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Receipt, Failure>> {
        match &self.way {
            Way::Bot { api_url, token, channel } => {
                let bot = Bot { http: &self.http, api_url, token, channel, deeds: self.app.is_some() };
                async move { bot.post(attempt).await }.boxed()
            }
            Way::Webhook { url } => self.post_to_webhook(url, attempt).boxed(),
        }
    }

    fn look_back<'a>(&'a self, n: &'a Notification) -> BoxFuture<'a, Result<(), String>> {
        match &self.way {
            Way::Bot { api_url, token, channel } => {
                let bot = Bot { http: &self.http, api_url, token, channel, deeds: self.app.is_some() };
                async move { bot.look_back(n).await }.boxed()
            }
            Way::Webhook { .. } => Box::pin(std::future::ready(Ok(()))),
        }
    }

    fn account(&self) -> Vec<Secret> {
        match &self.way {
            Way::Bot { api_url, token, .. } => vec![Secret::new(api_url.clone()), token.clone()],
            Way::Webhook { url } => vec![url.clone()],
        }
    }

    fn pace(&self) -> Option<Pace> {
        Some(PACE)
    }

    fn callback_config(&self) -> Option<CallbackConfig> {
        self.app.clone().map(CallbackConfig::Slack)
    }

    fn gallery(&self) -> Option<&dyn Gallery> {
        matches!(self.way, Way::Bot { .. }).then_some(self)
    }
}

impl Slack {
    async fn post_to_webhook(&self, url: &Secret, attempt: Attempt<'_>) -> Result<Receipt, Failure> {
        let n = attempt.notification;
        if attempt.ambiguous && matches!(n.action, Action::Update | Action::Ack) {
            // A webhook message cannot be looked up. A second copy is acceptable for a page, but
            // not for an update.
            return Ok(Receipt::default());
        }
        let (text, blocks) = layout(attempt, false);
        let mut body = json!({"text": text, "blocks": blocks});
        blocks::add_options(&mut body);
        let request = self.http.client().post(url.expose()).json(&body);
        let answer = self.http.send(request).await?;
        if answer.status.is_success() { Ok(Receipt::default()) } else { Err(self.http.refused(&answer)) }
    }
}

/// The Web API client for one message.
struct Bot<'a> {
    http: &'a Http,
    api_url: &'a str,
    token: &'a Secret,
    channel: &'a str,
    /// Whether the messages have buttons.
    deeds: bool,
}

impl Bot<'_> {
    async fn post(&self, attempt: Attempt<'_>) -> Result<Receipt, Failure> {
        let n = attempt.notification;
        let known = attempt.memory.and_then(|m| serde_json::from_str::<Top>(m).ok());
        let Some(mut top) = known else { return self.begin(attempt).await };
        if self.is_elsewhere(&top, attempt).await {
            let begun = self.begin(attempt).await?;
            self.leave(&top, n).await;
            return Ok(begun);
        }
        self.channel.clone_into(&mut top.named);
        match self.edit(&top, n).await {
            Ok(()) => {}
            // A person deleted the message, so it is posted again with its full content.
            Err(Refusal { error, .. }) if error == "message_not_found" => return self.begin(attempt).await,
            // The workspace forbids edits, or edits after some time: the reply in the thread is
            // still posted.
            Err(refusal) if answer::EDIT_IMPOSSIBLE.contains(&refusal.error.as_str()) => {}
            Err(refusal) => return Err(refusal.failure),
        }
        let already_over = top.over && n.action == Action::Resolve;
        let arrived = attempt.ambiguous && look::unless_blind(self.find_reply(&top, n).await)?.is_some();
        if !already_over && !arrived {
            self.reply(&top, n).await?;
        }
        top.over = n.message.status == Status::Resolved;
        Ok(receipt(&top))
    }

    /// Whether the configuration now names another channel than that of the message. The readers of
    /// the new one do not see the old one, which may have been archived.
    async fn is_elsewhere(&self, top: &Top, attempt: Attempt<'_>) -> bool {
        if top.named == self.channel || top.channel == self.channel {
            return false;
        }
        // It may be the same channel under another name. If that is unknown, a second message is
        // better than one in a channel without readers.
        self.channel_id(attempt).await.map_or(true, |id| id != top.channel)
    }

    /// Removes the buttons from a message that is no longer updated, and links to the new channel.
    /// Its readers were notified of the incident, so a failure here is not retried.
    async fn leave(&self, top: &Top, n: &Notification) {
        let body = json!({
            "channel": top.channel, "ts": top.ts, "text": blocks::moved_fallback(n, self.channel),
            "blocks": blocks::moved(n, self.channel), "metadata": metadata(n, &top.key),
        });
        if let Err(Refusal { error, .. }) = self.write("chat.update", body).await {
            tracing::debug!(
                incident = n.incident,
                error,
                "the message in the previous channel stays as it is"
            );
        }
    }

    /// Posts the message of the incident, unless an earlier attempt arrived.
    async fn begin(&self, attempt: Attempt<'_>) -> Result<Receipt, Failure> {
        let found = if attempt.ambiguous { look::unless_blind(self.find_top(attempt).await)? } else { None };
        match found {
            Some(top) => Ok(receipt(&top)),
            None => self.post_top(attempt).await.map(|top| receipt(&top)),
        }
    }

    async fn post_top(&self, attempt: Attempt<'_>) -> Result<Top, Failure> {
        let n = attempt.notification;
        let (text, blocks) = layout(attempt, self.deeds);
        let mut body = json!({
            "channel": self.channel, "text": text, "blocks": blocks, "metadata": metadata(n, &n.idem_key),
        });
        blocks::add_options(&mut body);
        let reply = self.write("chat.postMessage", body).await.map_err(|refusal| refusal.failure)?;
        let text = |key: &str| reply[key].as_str().map(str::to_owned);
        match (text("channel"), text("ts")) {
            (Some(channel), Some(ts)) => Ok(self.top(channel, ts, n)),
            // The request was accepted, but the answer is not Slack's.
            _ => Err(self.http.failure(FailureClass::Transient, true, "the answer names no channel and ts")),
        }
    }

    async fn edit(&self, top: &Top, n: &Notification) -> Result<(), Refusal> {
        let body = json!({
            "channel": top.channel, "ts": top.ts, "text": blocks::fallback(n), "blocks": blocks::message(n, self.deeds),
            "metadata": metadata(n, &top.key),
        });
        self.write("chat.update", body).await.map(drop)
    }

    async fn reply(&self, top: &Top, n: &Notification) -> Result<(), Failure> {
        let mut body = json!({
            "channel": top.channel, "thread_ts": top.ts, "text": blocks::news_fallback(n), "blocks": blocks::news(n),
            // A repeated page, or a ticket that became a page, must be visible outside the thread.
            "reply_broadcast": n.action == Action::Trigger,
            "metadata": metadata(n, &n.idem_key),
        });
        blocks::add_options(&mut body);
        match self.write("chat.postMessage", body).await {
            Ok(_) => Ok(()),
            // The message and its thread were deleted. The edit has just succeeded, so a new
            // message is not needed.
            Err(refusal) if refusal.error == "thread_not_found" => Ok(()),
            Err(refusal) => Err(refusal.failure),
        }
    }

    /// Calls a method that writes. If Slack refuses the layout, the plain text is sent instead, so
    /// that a message is never lost because of its layout.
    async fn write(&self, method: &str, mut body: Value) -> Result<Value, Refusal> {
        match self.call(method, &body).await {
            Err(refusal) if answer::LAYOUT_REFUSED.contains(&refusal.error.as_str()) => {
                tracing::error!(
                    method,
                    error = refusal.error,
                    "Slack refuses the layout; sending the plain text"
                );
                if let Some(fields) = body.as_object_mut() {
                    fields.remove("blocks");
                }
                self.call(method, &body).await
            }
            other => other,
        }
    }

    async fn call(&self, method: &str, body: &Value) -> Result<Value, Refusal> {
        let url = format!("{}/{method}", self.api_url);
        let request = self.http.client().post(url).bearer_auth(self.token.expose()).json(body);
        answer::read(self.http, method, self.http.send(request).await)
    }

    async fn get(&self, method: &str, query: &[(&str, &str)]) -> Result<Value, Refusal> {
        let pairs = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        let url = format!("{}/{method}?{pairs}", self.api_url);
        let request = self.http.client().get(url).bearer_auth(self.token.expose());
        answer::read(self.http, method, self.http.send(request).await)
    }

    fn top(&self, channel: String, ts: String, n: &Notification) -> Top {
        let over = n.message.status == Status::Resolved;
        Top { channel, ts, named: self.channel.to_owned(), key: n.idem_key.clone(), over }
    }
}

/// The text and the blocks of the first message of an incident, or of a report.
fn layout(attempt: Attempt<'_>, deeds: bool) -> (String, Value) {
    let n = attempt.notification;
    match attempt.report {
        Some(report) => (report::fallback(report), report::message(report)),
        None => (blocks::fallback(n), blocks::message(n, deeds)),
    }
}

fn receipt(top: &Top) -> Receipt {
    Receipt { memory: serde_json::to_string(top).ok() }
}

fn metadata(n: &Notification, key: &str) -> Value {
    let payload = json!({"incident": n.incident, "idem_key": key, "action": n.action.as_str()});
    json!({"event_type": EVENT_TYPE, "event_payload": payload})
}

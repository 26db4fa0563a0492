//! Looks for a message that may have arrived.
//!
//! This needs the channel's id, which was in the lost answer to the first message. A name is looked
//! up among public channels first: each type of channel needs its own scope (channels:read,
//! groups:read), and a request for both types needs both scopes, which a bot of a public channel
//! lacks.
//!
//! An app that is distributed outside Slack's Marketplace can read 15 messages per request, with
//! one request a minute (Slack's changelog of May 2025). The newest messages are read first, so
//! that a second page is rarely needed, and it is not waited for.

use serde_json::Value;
use stepwatch_respond::effect::Notification;

use super::{Bot, Top, channel};
use crate::notify::attempt::{Attempt, Failure, FailureClass};

/// The listing of messages. If a channel has more messages between two attempts than are read, a
/// second copy is sent.
const MESSAGES: Listing = Listing { key: "messages", page: "200", pages_max: 5, waits: false };

/// The listing of channels. In a workspace with more channels, only an id is found.
const CHANNELS: Listing = Listing { key: "channels", page: "999", pages_max: 20, waits: true };

/// The most seconds by which a copy may be dated before the message's own time. Clocks differ, ours
/// by hours if it was set wrongly, and a copy that is not found is posted twice. The number of
/// pages limits the reading.
const HISTORY_MARGIN_SECONDS: f64 = 86_400.0;

/// A time after all messages. Without one, Slack may begin with the oldest messages, but the wanted
/// one is among the newest.
const LATEST: &str = "9999999999.999999";

/// A paginated list of Slack.
#[derive(Clone, Copy)]
struct Listing {
    /// The key of the items in an answer.
    key: &'static str,
    /// The number of items per page.
    page: &'static str,
    pages_max: usize,
    /// Whether to wait for a rate limit after the first page. Otherwise the pages so far count as
    /// all, because the next search would stop at the same page.
    waits: bool,
}

/// If the token may not search, the message counts as not found, because a second copy is better
/// than none. After a temporary failure the search is repeated later.
pub(super) fn unless_blind<T>(looked: Result<Option<T>, Failure>) -> Result<Option<T>, Failure> {
    match looked {
        Err(failure) if failure.class == FailureClass::Permanent => {
            tracing::warn!(error = failure.error, "cannot look whether a message arrived; sending it again");
            Ok(None)
        }
        looked => looked.map_err(|failure| Failure { ambiguous: true, ..failure }),
    }
}

impl Bot<'_> {
    /// Checks whether a message that was just posted is found with the configuration alone.
    pub(super) async fn look_back(&self, n: &Notification) -> Result<(), String> {
        match self.find_top(Attempt::first(n)).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("slack: the message that was just sent is not in the channel's history".into()),
            Err(failure) => Err(failure.error),
        }
    }

    /// The first message of the incident, if an earlier attempt to post it arrived.
    pub(super) async fn find_top(&self, attempt: Attempt<'_>) -> Result<Option<Top>, Failure> {
        let n = attempt.notification;
        let channel = self.channel_id(attempt).await?;
        let oldest = format!("{:.3}", n.message.at.as_secs_f64() - HISTORY_MARGIN_SECONDS);
        let query = [("channel", channel.as_str()), ("oldest", &oldest), ("latest", LATEST)];
        let ts = self.find_message("conversations.history", &query, &n.idem_key).await?;
        Ok(ts.map(|ts| self.top(channel, ts, n)))
    }

    pub(super) async fn find_reply(&self, top: &Top, n: &Notification) -> Result<Option<String>, Failure> {
        let query = [("channel", top.channel.as_str()), ("ts", &top.ts)];
        self.find_message("conversations.replies", &query, &n.idem_key).await
    }

    /// The timestamp of the message with `key`.
    async fn find_message(
        &self,
        method: &str,
        query: &[(&str, &str)],
        key: &str,
    ) -> Result<Option<String>, Failure> {
        let mut query = query.to_vec();
        query.push(("include_all_metadata", "true"));
        let ours = |m: &Value| m["metadata"]["event_payload"]["idem_key"].as_str() == Some(key);
        let found = self.find(method, &query, MESSAGES, ours).await?;
        Ok(found.and_then(|m| m["ts"].as_str().map(str::to_owned)))
    }

    /// The id of the configured channel: configured, known from another incident, or looked up in
    /// Slack.
    pub(super) async fn channel_id(&self, attempt: Attempt<'_>) -> Result<String, Failure> {
        if channel::is_id(self.channel) {
            return Ok(self.channel.to_owned());
        }
        let known = [attempt.memory, attempt.neighbour].into_iter().flatten();
        let mut known = known.filter_map(|m| serde_json::from_str::<Top>(m).ok());
        if let Some(top) = known.find(|top| top.named == self.channel) {
            return Ok(top.channel);
        }
        let name = self.channel.trim_start_matches('#');
        let mut refused = Vec::new();
        for kind in ["public_channel", "private_channel"] {
            let query = [("types", kind), ("exclude_archived", "true")];
            let named = |c: &Value| c["name"].as_str() == Some(name);
            match self.find("conversations.list", &query, CHANNELS, named).await {
                Ok(found) => {
                    if let Some(id) = found.and_then(|c| c["id"].as_str().map(str::to_owned)) {
                        return Ok(id);
                    }
                }
                Err(failure) if failure.class == FailureClass::Permanent => refused.push(failure.error),
                Err(failure) => return Err(failure),
            }
        }
        let why = if refused.is_empty() { "Slack lists no such channel".into() } else { refused.join("; ") };
        let text = format!(
            "the id of channel {:?} is not known, configure it instead of the name: {why}",
            self.channel
        );
        Err(self.http.failure(FailureClass::Permanent, false, &text))
    }

    /// The first item of a paginated list for which `wanted` is true.
    async fn find(
        &self,
        method: &str,
        query: &[(&str, &str)],
        list: Listing,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Option<Value>, Failure> {
        let mut cursor = String::new();
        for page in 0..list.pages_max {
            let mut query = [query, &[("limit", list.page)]].concat();
            if !cursor.is_empty() {
                query.push(("cursor", &cursor));
            }
            let page = match self.get(method, &query).await {
                Ok(found) => found,
                Err(refusal) => {
                    let limited = matches!(refusal.failure.class, FailureClass::RateLimited { .. });
                    if list.waits || page == 0 || !limited {
                        return Err(refusal.failure);
                    }
                    tracing::warn!(method, page, "Slack lets nobody read on for now: not found so far");
                    break;
                }
            };
            let items = page[list.key].as_array().map(Vec::as_slice).unwrap_or_default();
            if let Some(found) = items.iter().find(|item| wanted(item)) {
                return Ok(Some(found.clone()));
            }
            page["response_metadata"]["next_cursor"].as_str().unwrap_or_default().clone_into(&mut cursor);
            if cursor.is_empty() {
                break;
            }
        }
        Ok(None)
    }
}

//! A fake of Slack: `chat.postMessage`, `chat.update`, `conversations.history`,
//! `conversations.replies`, `auth.test`, files, and incoming webhooks, with the rules of the real
//! service.
//!
//! Facts from Slack's published API specification and its SDKs: HTTP 200 with `ok: false` for every
//! refusal but the rate limit; a channel may be named by `#name` when posting but only by id when
//! updating or reading; no idempotency key; a method asks for the scope of its reference page,
//! which for reading is that of the kind of channel; a history that is read from `oldest` on,
//! without `latest`, begins with the oldest messages; an app that is distributed outside Slack's
//! Marketplace reads 15 messages of a channel or thread a request, and makes one request a minute
//! (changelog of May 2025, "Rate limit changes for non-Marketplace apps").

mod args;
mod blocks;
mod channels;
mod files;
mod page;
mod person;
mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::args::{Content, cursor, flag, in_window, json_args, limit, next_cursor, read_args};
use self::person::ResponseUrl;
use crate::server::{Received, Reply, Service};

pub use channels::Channel;
pub use files::File;
pub use person::{Whisper, interaction_body, slack_signature};
pub use socket::SlackSocket;

/// The most characters of a text. Slack truncates longer ones, and a sender that relies on this
/// loses the end of its message.
const MAX_TEXT: usize = 40_000;
/// The most characters of a text for `chat.update`.
const MAX_UPDATE_TEXT: usize = 4_000;

const MINUTE: Duration = Duration::from_mins(1);

/// A message, or a reply in a thread.
#[derive(Debug, Clone, PartialEq)]
pub struct Post {
    pub channel: String,
    pub ts: String,
    pub thread_ts: Option<String>,
    pub text: String,
    pub blocks: Vec<Value>,
    pub attachments: Vec<Value>,
    pub metadata: Option<Value>,
    pub at: Instant,
    /// Whether the reply is also shown in the channel.
    pub broadcast: bool,
    /// The earlier texts, oldest first.
    pub edits: Vec<String>,
    /// The id of the file that the message shares.
    pub file: Option<String>,
}

impl Post {
    /// Whether the message is in the channel and not in a thread.
    pub fn is_top(&self) -> bool {
        self.thread_ts.is_none()
    }

    /// All texts that a reader of the message sees: fallback text, blocks, attachments.
    pub fn visible_text(&self) -> String {
        let mut out = self.text.clone();
        for v in self.blocks.iter().chain(&self.attachments) {
            blocks::collect_text(v, &mut out);
        }
        out
    }
}

/// A token bucket per channel.
#[derive(Debug, Clone, Copy)]
pub struct RateLimit {
    pub per_second: f64,
    pub burst: f64,
}

/// The limit of reading channels and threads.
#[derive(Debug, Clone, Copy)]
pub struct HistoryLimit {
    /// The most requests per minute and method.
    pub per_minute: usize,
    /// The most messages per request, whatever it asks for.
    pub max: usize,
}

#[derive(Debug, Clone)]
pub struct Slack {
    pub token: String,
    /// The scopes of the token. The default is what `docs/receivers.md` requires for a public
    /// channel.
    pub scopes: BTreeSet<String>,
    pub channels: Vec<Channel>,
    /// The path of each incoming webhook, and its channel.
    pub webhooks: BTreeMap<String, String>,
    /// The rate limit; `None` accepts any rate.
    pub rate: Option<RateLimit>,
    /// The history limit; `None`, as for a workspace's own app, accepts any number of requests.
    pub history: Option<HistoryLimit>,
    pub posts: Vec<Post>,
    pub files: Vec<File>,
    /// The lifetime of an upload address.
    pub upload_life: Duration,
    /// Messages that only one person sees, in answer to a click.
    pub whispers: Vec<Whisper>,
    pub requests: Vec<Received>,
    /// People of other workspaces in a shared channel: their id, and their own team.
    pub guests: BTreeMap<String, String>,
    /// The organisation of the workspace.
    pub enterprise: Option<String>,
    responses: BTreeMap<String, ResponseUrl>,
    clicks: u32,
    /// The address of sockets, if the app has Socket Mode.
    socket_url: Option<String>,
    tickets: BTreeSet<String>,
    buckets: BTreeMap<String, (f64, Instant)>,
    /// When channels and threads were read, by method.
    reads: BTreeMap<String, Vec<Instant>>,
    last_ts: i64,
}

impl Default for Slack {
    fn default() -> Self {
        Self {
            token: Self::TOKEN.into(),
            scopes: Self::SCOPES.iter().map(|&scope| scope.to_owned()).collect(),
            channels: channels::all(),
            webhooks: BTreeMap::from([(Self::WEBHOOK.into(), "C0TRAINING".into())]),
            rate: None,
            history: None,
            posts: Vec::new(),
            files: Vec::new(),
            upload_life: files::UPLOAD_LIFE,
            whispers: Vec::new(),
            requests: Vec::new(),
            guests: BTreeMap::new(),
            enterprise: None,
            responses: BTreeMap::new(),
            clicks: 0,
            socket_url: None,
            tickets: BTreeSet::new(),
            buckets: BTreeMap::new(),
            reads: BTreeMap::new(),
            last_ts: 0,
        }
    }
}

/// A refusal: Slack's error name and additional fields.
struct No {
    error: &'static str,
    messages: Vec<String>,
    /// The required scopes, none of which the token has.
    needed: Option<String>,
}

impl From<&'static str> for No {
    fn from(error: &'static str) -> Self {
        Self { error, messages: Vec::new(), needed: None }
    }
}

impl Slack {
    /// The only bot token that is accepted.
    pub const TOKEN: &str = "xoxb-stepwatch-fake-token";
    /// The default scopes of the token.
    pub const SCOPES: [&str; 3] = ["chat:write", "channels:history", "channels:read"];
    /// The scope of files, which is not among the defaults.
    pub const FILES: &str = files::SCOPE;
    /// The workspace in which the app is installed.
    pub const TEAM: &str = "T0FAKE";
    /// The app's signing secret, and its app-level token.
    pub const SIGNING_SECRET: &str = "fake-slack-signing-secret";
    pub const APP_TOKEN: &str = "xapp-stepwatch-fake-app-token";
    /// The path of the incoming webhook that posts to `#training`.
    pub const WEBHOOK: &str = "/services/T0FAKE/B0FAKE/stepwatchfakewebhook";

    /// The messages in channels, without replies.
    pub fn top(&self) -> impl Iterator<Item = &Post> {
        self.posts.iter().filter(|p| p.is_top())
    }

    pub fn replies(&self, ts: &str) -> impl Iterator<Item = &Post> {
        self.posts.iter().filter(move |p| p.thread_ts.as_deref() == Some(ts))
    }

    fn method(&mut self, method: &str, req: &Received) -> Result<Value, No> {
        if method == "apps.connections.open" {
            return self.open_socket(req);
        }
        match req.header("authorization").and_then(|v| v.strip_prefix("Bearer ")) {
            None => return Err("not_authed".into()),
            Some(token) if token != self.token => return Err("invalid_auth".into()),
            Some(_) => {}
        }
        match (method, req.method.as_str()) {
            ("auth.test", _) => {
                let mut who = json!({"url": "https://fake.slack.com/", "team": "Fake", "user": "stepwatch",
                "team_id": Self::TEAM, "user_id": "U0STEPWATCH", "bot_id": "B0STEPWATCH"});
                if let Some(id) = &self.enterprise {
                    who["enterprise_id"] = id.as_str().into();
                }
                Ok(who)
            }
            ("chat.postMessage", "POST") => self.post_message(req, &json_args(req)?),
            ("chat.update", "POST") => self.update(&json_args(req)?),
            ("conversations.history", _) => self.history(&read_args(req)),
            ("conversations.replies", _) => self.thread(&read_args(req)),
            ("conversations.list", _) => self.list(&read_args(req)),
            ("files.getUploadURLExternal", _) => self.announce(req),
            ("files.completeUploadExternal", "POST") => self.complete(req, &json_args(req)?),
            ("files.delete", "POST") => self.delete_file(&json_args(req)?),
            ("chat.postMessage" | "chat.update" | "files.completeUploadExternal" | "files.delete", _) => {
                Err("method_not_supported_for_http_verb".into())
            }
            _ => Err("unknown_method".into()),
        }
    }

    fn open_socket(&mut self, req: &Received) -> Result<Value, No> {
        match req.header("authorization").and_then(|v| v.strip_prefix("Bearer ")) {
            None => return Err("not_authed".into()),
            Some(token) if token != Self::APP_TOKEN => return Err("not_allowed_token_type".into()),
            Some(_) => {}
        }
        let url = self.socket_url.clone().ok_or(No::from("socket_mode_not_enabled"))?;
        let ticket = format!("ticket-{}", self.requests.len());
        let url = format!("{url}?ticket={ticket}");
        self.tickets.insert(ticket);
        Ok(json!({ "url": url }))
    }

    fn post_message(&mut self, req: &Received, args: &Value) -> Result<Value, No> {
        self.need("chat:write")?;
        let channel = self.writable(args["channel"].as_str().unwrap_or_default())?;
        let post = self.checked(req, &channel, args)?;
        let (ts, message) = (post.ts.clone(), shown(&post, true));
        self.posts.push(post);
        Ok(json!({"channel": channel, "ts": ts, "message": message}))
    }

    /// A message that has passed all checks, before it is posted.
    fn checked(&mut self, req: &Received, channel: &str, args: &Value) -> Result<Post, No> {
        let content = Content::read(args, MAX_TEXT)?;
        let thread_ts = args["thread_ts"].as_str().map(str::to_owned);
        if let Some(parent) = &thread_ts {
            let known = self.posts.iter().any(|p| p.channel == channel && p.ts == *parent && p.is_top());
            if !known {
                return Err("thread_not_found".into());
            }
        }
        Ok(Post {
            channel: channel.to_owned(),
            ts: self.next_ts(req),
            thread_ts,
            text: content.text.unwrap_or_default(),
            blocks: content.blocks.unwrap_or_default(),
            attachments: content.attachments.unwrap_or_default(),
            metadata: content.metadata,
            at: req.at,
            broadcast: args["reply_broadcast"].as_bool().unwrap_or(false),
            edits: Vec::new(),
            file: None,
        })
    }

    fn update(&mut self, args: &Value) -> Result<Value, No> {
        self.need("chat:write")?;
        let channel = self.editable(args["channel"].as_str().unwrap_or_default())?;
        let content = Content::read(args, MAX_UPDATE_TEXT)?;
        let ts = args["ts"].as_str().unwrap_or_default();
        let found = self.posts.iter_mut().find(|p| p.channel == channel && p.ts == ts);
        let post = found.ok_or(No::from("message_not_found"))?;
        post.edits.push(post.text.clone());
        // Absent parts stay, except that a text without blocks removes the blocks.
        if let Some(text) = content.text {
            post.text = text;
            post.blocks.clear();
        }
        post.blocks = content.blocks.unwrap_or_else(|| std::mem::take(&mut post.blocks));
        post.attachments = content.attachments.unwrap_or_else(|| std::mem::take(&mut post.attachments));
        post.metadata = content.metadata.or_else(|| post.metadata.take());
        Ok(json!({"channel": channel, "ts": ts, "text": post.text, "message": shown(post, true)}))
    }

    fn history(&self, args: &BTreeMap<String, String>) -> Result<Value, No> {
        let channel = self.readable(args.get("channel").map_or("", |s| s))?;
        let limit = self.at_most(limit(args)?);
        let in_channel = |p: &&Post| p.channel == channel && (p.is_top() || p.broadcast);
        let mut found: Vec<_> =
            self.posts.iter().filter(in_channel).filter(|p| in_window(&p.ts, args)).collect();
        // As in the reference of the predecessor of this method: with `oldest` alone, the pages
        // begin there and continue forward. Within a page, the newest message is first.
        let forward = args.contains_key("oldest") && !args.contains_key("latest");
        if !forward {
            found.reverse();
        }
        let mut page = listing(found, limit, args);
        if let Some(messages) = page["messages"].as_array_mut().filter(|_| forward) {
            messages.reverse();
        }
        Ok(page)
    }

    fn thread(&self, args: &BTreeMap<String, String>) -> Result<Value, No> {
        let channel = self.readable(args.get("channel").map_or("", |s| s))?;
        let limit = self.at_most(limit(args)?);
        let ts = args.get("ts").map_or("", |s| s);
        let parent = self.posts.iter().find(|p| p.channel == channel && p.ts == ts);
        let parent = parent.ok_or(No::from("thread_not_found"))?;
        let replies = self.replies(ts).filter(|p| in_window(&p.ts, args));
        Ok(listing(std::iter::once(parent).chain(replies).collect(), limit, args))
    }

    fn at_most(&self, limit: usize) -> usize {
        self.history.map_or(limit, |history| limit.min(history.max))
    }

    /// Whether this method was called too often within a minute.
    fn has_read_enough(&mut self, method: &str, now: Instant) -> bool {
        let Some(history) = self.history else { return false };
        let reads = self.reads.entry(method.to_owned()).or_default();
        reads.retain(|at| now.saturating_duration_since(*at) < MINUTE);
        if reads.len() >= history.per_minute {
            return true;
        }
        reads.push(now);
        false
    }

    /// A new message timestamp. Timestamps are ids: unique in their channel, and rising.
    fn next_ts(&mut self, req: &Received) -> String {
        self.last_ts = req.time.as_microsecond().max(self.last_ts + 1);
        format!("{}.{:06}", self.last_ts / 1_000_000, self.last_ts % 1_000_000)
    }

    /// Takes a token of the channel's bucket; true if there is none and the request must be
    /// refused.
    fn over_rate(&mut self, channel: &str, now: Instant) -> bool {
        let Some(rate) = self.rate else { return false };
        let (tokens, last) = self.buckets.entry(channel.to_owned()).or_insert((rate.burst, now));
        let refill = now.saturating_duration_since(*last).as_secs_f64() * rate.per_second;
        *tokens = (*tokens + refill).min(rate.burst);
        *last = now;
        if *tokens < 1.0 {
            return true;
        }
        *tokens -= 1.0;
        false
    }

    fn incoming(&mut self, req: &Received) -> Reply {
        let Some(channel) = self.webhooks.get(&req.path).cloned() else {
            return Reply::text(404, "no_service");
        };
        if self.over_rate(&channel, req.at) {
            return too_many();
        }
        let args: Value = match serde_json::from_slice(&req.body) {
            Ok(v @ Value::Object(_)) => v,
            _ => return Reply::text(400, "invalid_payload"),
        };
        // A webhook needs neither a scope nor an invitation, because it belongs to this channel.
        match self.at_work(&channel).and_then(|id| self.checked(req, &id, &args)) {
            Ok(post) => {
                self.posts.push(post);
                Reply::text(200, "ok")
            }
            Err(No { error: "is_archived", .. }) => Reply::text(410, "channel_is_archived"),
            Err(No { error, .. }) => Reply::text(400, error),
        }
    }
}

impl Service for Slack {
    fn endpoint(request: &Received) -> Option<String> {
        match request.path.strip_prefix("/api/") {
            Some(method) => Some(method.to_owned()),
            None if request.path.starts_with("/response/") => Some("response".to_owned()),
            None if request.path.starts_with(files::UPLOADS) => Some("upload".to_owned()),
            None => request.path.starts_with("/services/").then(|| "webhook".to_owned()),
        }
    }

    fn serve(&mut self, req: &Received) -> Reply {
        let Some(method) = req.path.strip_prefix("/api/") else {
            return match req.path.as_str() {
                "/" => Reply::html(page::render(self)),
                p if p.starts_with("/services/") && req.method == "POST" => self.incoming(req),
                p if p.starts_with("/response/") && req.method == "POST" => self.respond(req),
                p if p.starts_with(files::UPLOADS) && req.method == "POST" => self.upload(req),
                _ => Reply::text(404, "not found"),
            };
        };
        if matches!(method, "chat.postMessage" | "chat.update") {
            let wanted = req.json()["channel"].as_str().unwrap_or_default().to_owned();
            let bucket = self.known(&wanted, true).map(|c| c.id.clone()).unwrap_or(wanted);
            if self.over_rate(&bucket, req.at) {
                return too_many();
            }
        }
        if matches!(method, "conversations.history" | "conversations.replies")
            && self.has_read_enough(method, req.at)
        {
            return too_many();
        }
        match self.method(method, req) {
            Ok(mut body) => {
                body["ok"] = true.into();
                Reply::json(200, &body)
            }
            Err(no) => Reply::json(200, &self.refusal(&no)),
        }
    }

    fn refuse(status: u16, error: &str) -> Reply {
        Reply::json(status, &json!({"ok": false, "error": error}))
    }

    fn not_ok(error: &str) -> Reply {
        Self::refuse(200, error)
    }

    fn received(&mut self) -> &mut Vec<Received> {
        &mut self.requests
    }
}

fn too_many() -> Reply {
    let mut reply = Slack::refuse(429, "ratelimited");
    reply.headers.push(("retry-after", "1".into()));
    reply
}

fn listing(posts: Vec<&Post>, limit: usize, args: &BTreeMap<String, String>) -> Value {
    let (all, skip, metadata) = (posts.len(), cursor(args), flag(args, "include_all_metadata"));
    let messages: Vec<_> = posts.into_iter().skip(skip).take(limit).map(|p| shown(p, metadata)).collect();
    let next = next_cursor(all, skip + limit);
    json!({"messages": messages, "has_more": !next.is_empty(), "response_metadata": {"next_cursor": next}})
}

fn shown(p: &Post, with_metadata: bool) -> Value {
    let mut v = json!({"type": "message", "user": "U0STEPWATCH", "bot_id": "B0STEPWATCH", "ts": p.ts, "text": p.text,
        "blocks": p.blocks, "attachments": p.attachments});
    if let Some(parent) = &p.thread_ts {
        v["thread_ts"] = parent.as_str().into();
    }
    if let (true, Some(m)) = (with_metadata, &p.metadata) {
        v["metadata"] = m.clone();
    }
    if !p.edits.is_empty() {
        v["edited"] = json!({"user": "U0STEPWATCH", "ts": p.ts});
    }
    v
}

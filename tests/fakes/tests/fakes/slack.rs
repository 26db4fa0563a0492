//! The fake Slack refuses what Slack refuses.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use stepwatch_fakes::{Answer, FakeSlack, Fault, HistoryLimit, RateLimit, Slack};

struct Caller {
    http: Client,
    base: String,
}

impl Caller {
    fn for_fake(fake: &FakeSlack) -> Self {
        Self { http: Client::new(), base: fake.url() }
    }

    async fn send(&self, method: &str, body: Value) -> reqwest::Result<(StatusCode, Value)> {
        let request = self.http.post(format!("{}/api/{method}", self.base)).bearer_auth(Slack::TOKEN);
        let response = request.json(&body).send().await?;
        Ok((response.status(), response.json().await?))
    }

    async fn ok(&self, method: &str, body: Value) -> Value {
        let (status, reply) = self.send(method, body).await.unwrap();
        assert_eq!((status, &reply["ok"]), (StatusCode::OK, &Value::Bool(true)), "{reply}");
        reply
    }

    async fn error(&self, method: &str, body: Value) -> String {
        let (status, reply) = self.send(method, body).await.unwrap();
        assert_eq!((status, &reply["ok"]), (StatusCode::OK, &Value::Bool(false)), "{reply}");
        reply["error"].as_str().unwrap().to_owned()
    }

    async fn read(&self, method: &str, query: &[(&str, &str)]) -> Value {
        let url = url::Url::parse_with_params(&format!("{}/api/{method}", self.base), query).unwrap();
        self.http.get(url).bearer_auth(Slack::TOKEN).send().await.unwrap().json().await.unwrap()
    }
}

impl Caller {
    /// Announces a file, and returns the address for its bytes and its id.
    async fn announce(&self, length: usize) -> (String, String) {
        let form = [("filename", "chart.png".to_owned()), ("length", length.to_string())];
        let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let url = format!("{}/api/files.getUploadURLExternal", self.base);
        let request = self.http.post(url).bearer_auth(Slack::TOKEN);
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(form);
        let reply: Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!(reply["ok"], true, "{reply}");
        let text = |key: &str| reply[key].as_str().unwrap().to_owned();
        (text("upload_url"), text("file_id"))
    }

    async fn upload(&self, url: &str, bytes: &'static [u8]) -> StatusCode {
        self.http.post(url).body(bytes).send().await.unwrap().status()
    }
}

fn with_files() -> Slack {
    let mut slack = Slack::default();
    slack.scopes.insert(Slack::FILES.into());
    slack
}

#[tokio::test]
async fn a_file_is_seen_once_it_is_completed_and_until_it_is_deleted() {
    let fake = FakeSlack::start_with(with_files()).await;
    let slack = Caller::for_fake(&fake);
    let top = slack.ok("chat.postMessage", json!({"channel": "#training", "text": "a"})).await;
    let ts = top["ts"].as_str().unwrap();
    let (url, id) = slack.announce(4).await;
    let share = json!({"files": [{"id": id, "title": "chart"}], "channel_id": "C0TRAINING", "thread_ts": ts});
    assert_eq!(
        slack.error("files.completeUploadExternal", share.clone()).await,
        "file_not_found",
        "no bytes yet"
    );
    assert_eq!(slack.upload(&url, b"four").await, StatusCode::OK);
    assert_eq!(fake.with(|s| s.replies(ts).count()), 0, "nobody sees it yet");
    slack.ok("files.completeUploadExternal", share.clone()).await;
    assert_eq!(fake.with(|s| (s.replies(ts).count(), s.shown_files().count())), (1, 1));
    assert_eq!(slack.error("files.completeUploadExternal", share).await, "file_not_found", "only once");
    slack.ok("files.delete", json!({"file": id})).await;
    assert_eq!(fake.with(|s| (s.replies(ts).count(), s.shown_files().count())), (0, 0));
    assert_eq!(slack.error("files.delete", json!({"file": id})).await, "file_deleted");
    assert_eq!(slack.error("files.delete", json!({"file": "F0UNKNOWN0"})).await, "file_not_found");
}

#[tokio::test]
async fn an_upload_has_its_length_its_address_and_its_time() {
    let fake = FakeSlack::start_with(with_files()).await;
    let slack = Caller::for_fake(&fake);
    let (url, _) = slack.announce(4).await;
    assert_eq!(slack.upload(&url, b"fives").await, StatusCode::BAD_REQUEST);
    assert_eq!(slack.upload(&url, b"four").await, StatusCode::OK);
    assert_eq!(slack.upload(&url, b"four").await, StatusCode::GONE, "an address is used once");
    assert_eq!(slack.upload(&format!("{url}0"), b"four").await, StatusCode::NOT_FOUND);
    fake.change(|s| s.upload_life = Duration::ZERO);
    let (url, _) = slack.announce(4).await;
    assert_eq!(slack.upload(&url, b"four").await, StatusCode::GONE, "and not for ever");
    let json = slack.error("files.getUploadURLExternal", json!({"filename": "a", "length": 4})).await;
    assert_eq!(json, "invalid_arguments", "a form, not JSON");
}

#[tokio::test]
async fn a_file_is_refused_where_a_message_would_be_and_by_name() {
    let fake = FakeSlack::start_with(with_files()).await;
    let slack = Caller::for_fake(&fake);
    let top = slack.ok("chat.postMessage", json!({"channel": "#oncall", "text": "a"})).await;
    let (url, id) = slack.announce(4).await;
    slack.upload(&url, b"four").await;
    let share = async |channel: &str, ts: Option<&Value>| {
        let body = json!({"files": [{"id": id}], "channel_id": channel, "thread_ts": ts});
        slack.error("files.completeUploadExternal", body).await
    };
    assert_eq!(share("#training", None).await, "invalid_arguments", "by its id alone");
    assert_eq!(share("C0LOBBY000", None).await, "not_in_channel");
    assert_eq!(share("C0SECRET00", None).await, "channel_not_found");
    assert_eq!(share("C0ARCHIVED", None).await, "is_archived");
    assert_eq!(
        share("C0TRAINING", Some(&top["ts"])).await,
        "thread_not_found",
        "a thread of another channel"
    );
    fake.change(|s| s.scopes.remove(Slack::FILES));
    assert_eq!(share("C0ONCALL00", Some(&top["ts"])).await, "missing_scope");
    assert_eq!(slack.error("files.delete", json!({"file": id})).await, "missing_scope");
    assert_eq!(fake.with(|s| s.shown_files().count()), 0);
}

#[tokio::test]
async fn a_thread_is_posted_edited_and_read_back() {
    let fake = FakeSlack::start().await;
    let slack = Caller::for_fake(&fake);
    let meta = json!({"event_type": "stepwatch", "event_payload": {"key": "inc/chat/1"}});
    let top =
        slack.ok("chat.postMessage", json!({"channel": "#training", "text": "a", "metadata": meta})).await;
    let (channel, ts) = (top["channel"].as_str().unwrap(), top["ts"].as_str().unwrap());
    assert_eq!(channel, "C0TRAINING");
    slack.ok("chat.postMessage", json!({"channel": channel, "text": "b", "thread_ts": ts})).await;
    slack.ok("chat.update", json!({"channel": channel, "ts": ts, "text": "a2"})).await;

    let history = slack.read("conversations.history", &[("channel", channel)]).await;
    assert_eq!(history["messages"].as_array().unwrap().len(), 1, "replies are not in the history");
    assert_eq!(history["messages"][0]["text"], "a2");
    assert!(history["messages"][0]["metadata"].is_null(), "only on request");
    let query = [("channel", channel), ("ts", ts), ("include_all_metadata", "true")];
    let thread = slack.read("conversations.replies", &query).await;
    assert_eq!(thread["messages"][0]["metadata"], meta);
    assert_eq!(thread["messages"][1]["text"], "b");

    let state = fake.state();
    assert_eq!((state.top().count(), state.replies(ts).count()), (1, 1));
    assert_eq!(state.posts[0].edits, ["a"]);
}

#[tokio::test]
async fn refusals_carry_slacks_own_error_names() {
    let fake = FakeSlack::start().await;
    let slack = Caller::for_fake(&fake);
    let post = |channel: &str, text: &str| json!({"channel": channel, "text": text});
    assert_eq!(slack.error("chat.postMessage", post("#nowhere", "x")).await, "channel_not_found");
    assert_eq!(slack.error("chat.postMessage", post("#archived", "x")).await, "is_archived");
    assert_eq!(slack.error("chat.postMessage", post("#lobby", "x")).await, "not_in_channel");
    assert_eq!(
        slack.error("chat.postMessage", post("#secret", "x")).await,
        "channel_not_found",
        "not for us"
    );
    assert_eq!(slack.error("chat.postMessage", post("#training", "")).await, "no_text");
    assert_eq!(slack.error("chat.postMessage", post("#training", &"x".repeat(40_001))).await, "msg_too_long");
    let in_thread = json!({"channel": "#training", "text": "x", "thread_ts": "1.000001"});
    assert_eq!(slack.error("chat.postMessage", in_thread).await, "thread_not_found");
    let update = |channel: &str| json!({"channel": channel, "ts": "1.000001", "text": "x"});
    assert_eq!(slack.error("chat.update", update("C0TRAINING")).await, "message_not_found");
    assert_eq!(slack.error("chat.update", update("#training")).await, "channel_not_found");
    assert_eq!(slack.error("chat.delete", json!({})).await, "unknown_method");
    let blocks = json!({"channel": "#training", "text": "x", "blocks": [{"type": "nonsense"}]});
    assert_eq!(slack.error("chat.postMessage", blocks).await, "invalid_blocks");
    assert!(fake.state().posts.is_empty());

    let url = format!("{}/api/auth.test", fake.url());
    for (token, error) in [(None, "not_authed"), (Some("xoxb-other"), "invalid_auth")] {
        let mut request = slack.http.post(&url);
        if let Some(t) = token {
            request = request.bearer_auth(t);
        }
        let reply: Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!(reply["error"], error);
    }
}

/// `needed` of a refusal for want of a scope.
fn needed(reply: &Value) -> &str {
    assert_eq!((&reply["ok"], &reply["error"]), (&json!(false), &json!("missing_scope")), "{reply}");
    assert!(reply["provided"].is_string(), "{reply}");
    reply["needed"].as_str().unwrap()
}

#[tokio::test]
async fn every_method_asks_for_the_scope_of_its_reference() {
    let fake = FakeSlack::start().await;
    let slack = Caller::for_fake(&fake);
    let grant = |scopes: &[&str]| {
        fake.change(|s| s.scopes = scopes.iter().map(|&scope| scope.to_owned()).collect());
    };
    let post = |channel: &str| json!({"channel": channel, "text": "x"});
    let ts = slack.ok("chat.postMessage", post("#war-room")).await["ts"].clone();
    let reading = [("channel", "C0WARROOM0"), ("ts", ts.as_str().unwrap())];

    grant(&[]);
    assert_eq!(needed(&slack.send("chat.postMessage", post("#training")).await.unwrap().1), "chat:write");
    let edit = json!({"channel": "C0WARROOM0", "ts": ts, "text": "y"});
    assert_eq!(needed(&slack.send("chat.update", edit).await.unwrap().1), "chat:write");
    slack.ok("auth.test", json!({})).await;
    for method in ["conversations.history", "conversations.replies"] {
        let any = "channels:history,groups:history,mpim:history,im:history";
        assert_eq!(needed(&slack.read(method, &reading).await), any);
    }
    grant(&["channels:history", "channels:read", "chat:write"]);
    for method in ["conversations.history", "conversations.replies"] {
        assert_eq!(needed(&slack.read(method, &reading).await), "groups:history");
    }
    assert_eq!(
        slack.read("conversations.history", &[("channel", "C0LOBBY000")]).await["error"],
        "not_in_channel"
    );
    assert_eq!(
        slack.read("conversations.history", &[("channel", "C0SECRET00")]).await["error"],
        "channel_not_found"
    );
    assert_eq!(slack.read("conversations.history", &[("channel", "C0ARCHIVED")]).await["ok"], true);
    grant(&["groups:history", "chat:write.public", "chat:write"]);
    assert_eq!(slack.read("conversations.history", &reading).await["ok"], true);
    slack.ok("chat.postMessage", post("#lobby")).await;
    assert_eq!(slack.error("chat.postMessage", post("#secret")).await, "channel_not_found");
}

#[tokio::test]
async fn a_list_of_channels_takes_a_scope_for_each_kind() {
    let fake = FakeSlack::start().await;
    let slack = Caller::for_fake(&fake);
    let names = |reply: &Value| {
        let names =
            reply["channels"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let public = ["training", "oncall", "archived", "lobby"];
    assert_eq!(names(&slack.read("conversations.list", &[]).await), public);
    let both = [("types", "public_channel,private_channel"), ("exclude_archived", "true")];
    assert_eq!(needed(&slack.read("conversations.list", &both).await), "groups:read");
    fake.change(|s| s.scopes.extend(["groups:read".to_owned()]));
    assert_eq!(
        names(&slack.read("conversations.list", &both).await),
        ["training", "oncall", "lobby", "war-room"]
    );
    fake.change(|s| s.scopes.retain(|scope| scope != "channels:read"));
    assert_eq!(needed(&slack.read("conversations.list", &[]).await), "channels:read");
    assert_eq!(slack.read("conversations.list", &[("types", "nonsense")]).await["error"], "invalid_types");
}

#[tokio::test]
async fn incoming_webhooks_answer_in_plain_text() {
    let fake = FakeSlack::start().await;
    let post = async |path: &str, body: &str| {
        let url = format!("{}{path}", fake.url());
        let response = Client::new().post(url).body(body.to_owned()).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    assert_eq!(post(Slack::WEBHOOK, r#"{"text":"hello"}"#).await, (200, "ok".into()));
    assert_eq!(post(Slack::WEBHOOK, "hello").await, (400, "invalid_payload".into()));
    assert_eq!(post(Slack::WEBHOOK, "{}").await, (400, "no_text".into()));
    assert_eq!(post("/services/T/B/unknown", r#"{"text":"x"}"#).await, (404, "no_service".into()));
    assert_eq!(fake.state().posts.len(), 1);
}

#[tokio::test]
async fn faults_come_in_order_and_say_whether_the_message_was_taken() {
    let fake = FakeSlack::start().await;
    let slack = Caller::for_fake(&fake);
    let body = json!({"channel": "#training", "text": "x"});
    let after = Duration::from_secs(7);
    fake.script()
        .push("chat.postMessage", Fault::TooMany(after))
        .push("chat.postMessage", Fault::Status(503))
        .push("chat.postMessage", Fault::NotOk("fatal_error".into()))
        .push("chat.postMessage", Fault::Reset)
        .push("chat.postMessage", Fault::TakenThenReset);

    let request = slack.http.post(format!("{}/api/chat.postMessage", fake.url())).bearer_auth(Slack::TOKEN);
    let limited = request.json(&body).send().await.unwrap();
    assert_eq!((limited.status().as_u16(), &limited.headers()["retry-after"]), (429, &"7".parse().unwrap()));
    assert_eq!(slack.send("chat.postMessage", body.clone()).await.unwrap().0.as_u16(), 503);
    assert_eq!(slack.error("chat.postMessage", body.clone()).await, "fatal_error");
    assert!(slack.send("chat.postMessage", body.clone()).await.unwrap_err().is_request());
    assert_eq!(fake.state().posts.len(), 0);
    assert!(slack.send("chat.postMessage", body.clone()).await.unwrap_err().is_request());
    assert_eq!(fake.state().posts.len(), 1, "taken, though the sender saw an error");
    slack.ok("chat.postMessage", body).await;

    let answers: Vec<_> = fake.with(|s| s.requests.iter().map(|r| r.answer).collect());
    let status = Answer::Status;
    assert_eq!(answers, [status(429), status(503), status(200), Answer::Reset, Answer::Reset, status(200)]);
    assert_eq!(fake.script().pending(), 0);
}

#[tokio::test]
async fn a_hanging_answer_can_have_been_taken() {
    let fake = FakeSlack::start().await;
    fake.script().push("chat.postMessage", Fault::TakenThenHang);
    let slack = Caller::for_fake(&fake);
    let sending = slack.send("chat.postMessage", json!({"channel": "#training", "text": "x"}));
    tokio::select! {
        reply = sending => panic!("answered: {reply:?}"),
        state = fake.wait_for(|s| s.posts.len() == 1, Duration::from_secs(10)) => {
            assert_eq!(state.unwrap().requests[0].answer, Answer::Silence);
        }
    }
}

#[tokio::test]
async fn the_rate_limit_is_per_channel() {
    let fake = FakeSlack::start().await;
    fake.change(|s| s.rate = Some(RateLimit { per_second: 0.001, burst: 2.0 }));
    let slack = Caller::for_fake(&fake);
    let post = |channel: &str| json!({"channel": channel, "text": "x"});
    slack.ok("chat.postMessage", post("#training")).await;
    slack.ok("chat.postMessage", post("C0TRAINING")).await;
    assert_eq!(slack.send("chat.postMessage", post("#training")).await.unwrap().0.as_u16(), 429);
    slack.ok("chat.postMessage", post("#oncall")).await;
}

#[tokio::test]
async fn the_page_shows_what_was_said_and_escapes_it() {
    let fake = FakeSlack::start().await;
    let slack = Caller::for_fake(&fake);
    let top =
        slack.ok("chat.postMessage", json!({"channel": "#training", "text": "<b>loud</b> & *clear*"})).await;
    slack
        .ok("chat.postMessage", json!({"channel": "C0TRAINING", "text": "reply", "thread_ts": top["ts"]}))
        .await;
    let html = reqwest::get(fake.url()).await.unwrap().text().await.unwrap();
    assert!(html.contains("<b>clear</b>") && html.contains("reply"), "{html}");
    assert!(!html.contains("<b>loud"), "{html}");
    assert_eq!(fake.with(|s| s.requests.len()), 2, "looking is not recorded");
}

/// Of an app that is distributed outside the Marketplace.
#[tokio::test]
async fn little_is_read_of_a_channel_and_once_a_minute() {
    let fake = FakeSlack::start().await;
    fake.change(|s| s.history = Some(HistoryLimit { per_minute: 1, max: 15 }));
    let slack = Caller::for_fake(&fake);
    for n in 0..20 {
        slack.ok("chat.postMessage", json!({"channel": "#training", "text": format!("message {n}")})).await;
    }
    let reading = [("channel", "C0TRAINING"), ("limit", "200")];
    let history = slack.read("conversations.history", &reading).await;
    assert_eq!(history["messages"].as_array().unwrap().len(), 15);
    assert_eq!(history["has_more"], true);
    assert_eq!(slack.read("conversations.history", &reading).await["error"], "ratelimited");
    let ts = history["messages"][0]["ts"].as_str().unwrap().to_owned();
    let thread = slack.read("conversations.replies", &[("channel", "C0TRAINING"), ("ts", &ts)]).await;
    assert_eq!(thread["ok"], true, "each method by itself: {thread}");
}

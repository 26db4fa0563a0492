//! Tests the final contents of the channel against a fake that refuses what Slack refuses.

use std::time::Duration;

use stepwatch_fakes::{Fake, FakeSlack, Fault, HistoryLimit, Post, Slack as Service};
use tempfile::TempDir;

use super::*;
use crate::notify::tests::page;

struct Bench {
    fake: FakeSlack,
    slack: Slack,
    dir: TempDir,
}

impl Bench {
    async fn new() -> Self {
        Self::with(|config| config).await
    }

    async fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let (fake, dir): (FakeSlack, _) = (Fake::start().await, tempfile::tempdir().unwrap());
        let token = dir.path().join("token");
        std::fs::write(&token, Service::TOKEN).unwrap();
        let config = Config {
            channel: Some("#training".into()),
            token_file: Some(token),
            api_url: format!("{}/api", fake.url()),
            ..Config::default()
        };
        let slack = change(config).build().unwrap();
        Self { fake, slack, dir }
    }

    async fn webhook() -> Self {
        let (fake, dir): (FakeSlack, _) = (Fake::start().await, tempfile::tempdir().unwrap());
        let url = dir.path().join("url");
        std::fs::write(&url, format!("{}{}", fake.url(), Service::WEBHOOK)).unwrap();
        let slack = Config { webhook_url_file: Some(url), ..Config::default() }.build().unwrap();
        Self { fake, slack, dir }
    }

    async fn try_send(
        &self,
        n: &Notification,
        memory: Option<&str>,
        ambiguous: bool,
    ) -> Result<Receipt, Failure> {
        self.slack.send(Attempt { ambiguous, memory, ..Attempt::first(n) }).await
    }

    /// The same app, with another channel configured.
    fn moved_to(&self, channel: &str) -> Slack {
        let config = Config {
            channel: Some(channel.into()),
            token_file: Some(self.dir.path().join("token")),
            api_url: format!("{}/api", self.fake.url()),
            ..Config::default()
        };
        config.build().unwrap()
    }

    /// Sends a message and returns the memory.
    async fn send(&self, n: &Notification, memory: Option<&str>) -> String {
        self.try_send(n, memory, false).await.unwrap().memory.unwrap()
    }

    fn top(&self) -> Post {
        let tops: Vec<Post> = self.fake.with(|s| s.top().cloned().collect());
        assert_eq!(tops.len(), 1, "messages in the channel");
        tops.into_iter().next().unwrap()
    }

    fn thread(&self) -> Vec<String> {
        let ts = self.top().ts;
        self.fake.with(|s| s.replies(&ts).map(|p| p.text.clone()).collect())
    }

    fn calls(&self) -> Vec<String> {
        self.fake.with(|s| s.requests.iter().map(|r| r.path.replace("/api/", "")).collect())
    }
}

fn word(seq: u32, action: Action, status: Status, reason: &str) -> Notification {
    let mut n = page("chat", seq, action);
    n.message.status = status;
    reason.clone_into(&mut n.message.reason);
    n
}

#[tokio::test]
async fn one_message_that_shows_how_things_stand_and_a_thread_of_news() {
    let bench = Bench::new().await;
    let memory = bench.send(&word(1, Action::Trigger, Status::Firing, "first"), None).await;
    assert_eq!(serde_json::from_str::<Top>(&memory).unwrap().channel, "C0TRAINING", "the id, not the name");
    let memory = bench
        .send(&word(2, Action::Update, Status::Firing, "gradient spike became NaN"), Some(&memory))
        .await;
    let memory = bench
        .send(&word(3, Action::Trigger, Status::Firing, "level 2: no answer for 5m"), Some(&memory))
        .await;
    let memory =
        bench.send(&word(4, Action::Ack, Status::Acknowledged, "acknowledged by alice"), Some(&memory)).await;
    bench
        .send(&word(5, Action::Resolve, Status::Resolved, "resolved by itself after 12m"), Some(&memory))
        .await;

    let top = bench.top();
    assert!(top.blocks[0]["text"]["text"].as_str().unwrap().starts_with('✅'), "{}", top.blocks[0]);
    assert_eq!(top.edits.len(), 4);
    assert_eq!(
        top.metadata.unwrap()["event_payload"]["idem_key"],
        word(1, Action::Trigger, Status::Firing, "").idem_key
    );
    let thread = bench.thread();
    assert_eq!(thread.len(), 4);
    for (text, reason) in thread.iter().zip(["became NaN", "level 2", "by alice", "resolved by itself"]) {
        assert!(text.contains(reason), "{text}");
    }
    // Only the repeated page is also shown in the channel.
    let broadcast: Vec<bool> =
        bench.fake.with(|s| s.posts.iter().filter(|p| !p.is_top()).map(|p| p.broadcast).collect());
    assert_eq!(broadcast, [false, true, false, false]);
}

#[tokio::test]
async fn a_first_message_that_arrived_is_found_again_by_name_id_or_neighbour() {
    let channel_id = |config| Config { channel: Some("C0TRAINING".into()), ..config };
    for by_id in [false, true] {
        let bench = if by_id { Bench::with(channel_id).await } else { Bench::new().await };
        bench.fake.script().push("chat.postMessage", Fault::TakenThenReset);
        let n = word(1, Action::Trigger, Status::Firing, "first");
        assert!(bench.try_send(&n, None, false).await.unwrap_err().ambiguous);
        let receipt = bench.try_send(&n, None, true).await.unwrap();
        let top: Top = serde_json::from_str(&receipt.memory.unwrap()).unwrap();
        assert_eq!((top.channel.as_str(), &top.ts), ("C0TRAINING", &bench.top().ts));
        assert_eq!(bench.calls().iter().any(|c| c == "conversations.list"), !by_id);
    }
    // Another incident already has the id.
    let bench = Bench::new().await;
    let neighbour = bench.send(&word(1, Action::Trigger, Status::Firing, "first"), None).await;
    let mut other = word(1, Action::Trigger, Status::Firing, "first");
    other.idem_key = "01OTHER/chat/1".into();
    let attempt = Attempt { neighbour: Some(&neighbour), ambiguous: true, ..Attempt::first(&other) };
    bench.slack.send(attempt).await.unwrap();
    assert_eq!(bench.fake.with(|s| s.top().count()), 2, "it had not arrived, so it is posted");
    assert!(!bench.calls().iter().any(|c| c == "conversations.list"));
}

fn grant(bench: &Bench, scopes: &[&str]) {
    bench.fake.change(|s| s.scopes = scopes.iter().map(|&scope| scope.to_owned()).collect());
}

#[tokio::test]
async fn no_other_scope_is_asked_for_than_the_documented_ones() {
    let documents =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/receivers.md")).unwrap();
    let public = ["chat:write", "channels:history", "channels:read"];
    let private = ["chat:write", "groups:history", "groups:read"];
    for scope in public.iter().chain(&private) {
        assert!(documents.contains(&format!("`{scope}`")), "{scope} is documented");
    }
    for (channel, scopes) in [("#training", public), ("#war-room", private)] {
        let bench = Bench::with(|config| Config { channel: Some(channel.into()), ..config }).await;
        grant(&bench, &scopes);
        bench.fake.script().push("chat.postMessage", Fault::TakenThenReset);
        let n = word(1, Action::Trigger, Status::Firing, "first");
        assert!(bench.try_send(&n, None, false).await.unwrap_err().ambiguous);
        let memory = bench.try_send(&n, None, true).await.unwrap().memory.unwrap();
        assert_eq!(serde_json::from_str::<Top>(&memory).unwrap().ts, bench.top().ts, "{channel}");
        assert_eq!(bench.slack.look_back(&n).await, Ok(()), "{channel}");
    }
}

#[tokio::test]
async fn what_the_token_lacks_is_reported_in_slacks_words() {
    let n = word(1, Action::Trigger, Status::Firing, "first");
    let bench = Bench::new().await;
    grant(&bench, &["channels:history"]);
    let failure = bench.try_send(&n, None, false).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Permanent);
    let words = "it needs chat:write, and the token has channels:history";
    assert!(failure.error.contains(words), "{}", failure.error);
    // A private channel by name, with the scopes of a public one: the message is posted but cannot
    // be found.
    let bench = Bench::with(|config| Config { channel: Some("#war-room".into()), ..config }).await;
    bench.send(&n, None).await;
    let blind = bench.slack.look_back(&n).await.unwrap_err();
    assert!(blind.contains("it needs groups:read") && blind.contains("configure it instead"), "{blind}");
    // With its id, the list of channels is not needed, but the history is.
    let bench = Bench::with(|config| Config { channel: Some("C0WARROOM0".into()), ..config }).await;
    bench.send(&n, None).await;
    let blind = bench.slack.look_back(&n).await.unwrap_err();
    assert!(blind.contains("conversations.history") && blind.contains("it needs groups:history"), "{blind}");
    // A second copy is better than none.
    bench.try_send(&n, None, true).await.unwrap();
    assert_eq!(bench.fake.with(|s| s.top().count()), 2);
}

#[tokio::test]
async fn a_line_of_the_thread_that_arrived_is_not_repeated() {
    let bench = Bench::new().await;
    let memory = bench.send(&word(1, Action::Trigger, Status::Firing, "first"), None).await;
    let n = word(2, Action::Ack, Status::Acknowledged, "acknowledged by alice");
    for fault in [Fault::TakenThenReset, Fault::TakenThenStatus(502)] {
        bench.fake.script().push("chat.postMessage", fault);
    }
    assert!(bench.try_send(&n, Some(&memory), false).await.unwrap_err().ambiguous);
    bench.try_send(&n, Some(&memory), true).await.unwrap();
    assert_eq!(bench.thread().len(), 1);
    // A message that had not arrived would have been sent.
    bench.fake.script().clear();
    let n = word(3, Action::Resolve, Status::Resolved, "resolved");
    bench.try_send(&n, Some(&memory), true).await.unwrap();
    assert_eq!(bench.thread().len(), 2);
}

#[tokio::test]
async fn not_being_allowed_to_look_back_means_rather_twice_than_never() {
    let bench = Bench::new().await;
    bench.fake.script().push("chat.postMessage", Fault::TakenThenReset);
    bench.fake.script().always("conversations.history", Fault::NotOk("missing_scope".into()));
    let n = word(1, Action::Trigger, Status::Firing, "first");
    bench.try_send(&n, None, false).await.unwrap_err();
    bench.try_send(&n, None, true).await.unwrap();
    assert_eq!(bench.fake.with(|s| s.top().count()), 2);
    // After a temporary failure of the lookup nothing is posted; the lookup is repeated later.
    bench.fake.script().always("conversations.history", Fault::Status(503));
    let failure = bench.try_send(&n, None, true).await.unwrap_err();
    assert!(failure.ambiguous && failure.class == FailureClass::Transient, "{failure:?}");
    bench.fake.script().always("conversations.history", Fault::TooMany(Duration::from_secs(2)));
    assert!(bench.try_send(&n, None, true).await.unwrap_err().ambiguous);
    assert_eq!(bench.fake.with(|s| s.top().count()), 2);
}

#[tokio::test]
async fn a_message_that_somebody_deleted_is_posted_anew() {
    let bench = Bench::new().await;
    let memory = bench.send(&word(1, Action::Trigger, Status::Firing, "first"), None).await;
    bench.fake.change(|s| s.posts.clear());
    let n = word(2, Action::Resolve, Status::Resolved, "resolved");
    let memory = bench.send(&n, Some(&memory)).await;
    assert_eq!(bench.top().ts, serde_json::from_str::<Top>(&memory).unwrap().ts);
}

/// The new channel is given by name or by id; the old one is archived or not.
#[tokio::test]
async fn another_channel_gets_a_new_message() {
    for (to, archived) in [("#oncall", true), ("#oncall", false), ("C0ONCALL00", true)] {
        let bench = Bench::new().await;
        let memory = bench.send(&word(1, Action::Trigger, Status::Firing, "first"), None).await;
        let old = |s: &mut Service| s.channels.iter_mut().for_each(|c| c.archived |= c.name == "training");
        if archived {
            bench.fake.change(old);
        }
        let moved = bench.moved_to(to);
        let send = async |n: &Notification, memory: &str| {
            let attempt = Attempt { memory: Some(memory), ..Attempt::first(n) };
            moved.send(attempt).await.unwrap().memory.unwrap()
        };
        let memory = send(&word(2, Action::Trigger, Status::Firing, "level 2"), &memory).await;
        send(&word(3, Action::Ack, Status::Acknowledged, "acknowledged by alice"), &memory).await;
        let posts = bench.fake.with(|s| s.posts.clone());
        let new: Vec<_> = posts.iter().filter(|p| p.channel == "C0ONCALL00").collect();
        let tops: Vec<_> = new.iter().filter(|p| p.is_top()).collect();
        assert_eq!((tops.len(), tops[0].edits.len(), new.len()), (1, 1, 2), "{to}: {posts:#?}");
        let old = posts.iter().find(|p| p.channel != "C0ONCALL00").unwrap();
        if archived {
            assert_eq!(old.edits.len(), 0, "{to}: {old:#?}");
        } else {
            assert!(old.visible_text().contains(&format!("continues in {to}")), "{old:#?}");
        }
    }
}

#[tokio::test]
async fn the_same_channel_by_another_name_keeps_its_message() {
    for (to, is_renamed) in [("#train", true), ("C0TRAINING", false), ("training", false)] {
        let bench = Bench::new().await;
        let memory = bench.send(&word(1, Action::Trigger, Status::Firing, "first"), None).await;
        if is_renamed {
            bench.fake.change(|s| s.channels[0].name = "train".into());
        }
        let moved = bench.moved_to(to);
        let n = word(2, Action::Ack, Status::Acknowledged, "acknowledged by alice");
        let attempt = Attempt { memory: Some(&memory), ..Attempt::first(&n) };
        let memory = moved.send(attempt).await.unwrap().memory.unwrap();
        assert_eq!((bench.top().edits.len(), bench.thread().len()), (1, 1), "{to}");
        assert_eq!(serde_json::from_str::<Top>(&memory).unwrap().named, to);
    }
}

#[tokio::test]
async fn an_archived_channel_that_is_still_configured_says_what_to_do() {
    let bench = Bench::new().await;
    let memory = bench.send(&word(1, Action::Trigger, Status::Firing, "first"), None).await;
    bench.fake.change(|s| s.channels[0].archived = true);
    let n = word(2, Action::Trigger, Status::Firing, "level 2");
    let failure = bench.try_send(&n, Some(&memory), false).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Permanent);
    assert!(failure.error.contains("is_inactive (the channel is archived"), "{}", failure.error);
}

/// The wanted message is among the newest of a busy channel.
#[tokio::test]
async fn a_message_is_found_in_a_channel_with_more_messages_than_are_read() {
    let bench = Bench::new().await;
    let n = word(1, Action::Trigger, Status::Firing, "first");
    bench.send(&word(7, Action::Trigger, Status::Firing, "of another incident"), None).await;
    let other = bench.top();
    bench.fake.change(|s| {
        // Another app's messages of the same day.
        let older = (1..=1200).map(|i| Post { ts: older(&other.ts, i), metadata: None, ..other.clone() });
        s.posts = older.rev().collect();
    });
    bench.send(&n, None).await;
    bench.try_send(&n, None, true).await.unwrap();
    let ours = |p: &&Post| p.metadata.is_some();
    assert_eq!(bench.fake.with(|s| s.top().filter(ours).count()), 1);
}

/// An app outside the Marketplace: a message that is not among the newest is posted again, and not
/// searched for repeatedly.
#[tokio::test]
async fn a_channel_that_cannot_be_read_to_the_end_means_rather_twice_than_never() {
    for (newer, posts) in [(10, 1), (20, 2)] {
        let bench = Bench::new().await;
        bench.fake.change(|s| s.history = Some(HistoryLimit { per_minute: 1, max: 15 }));
        bench.fake.script().push("chat.postMessage", Fault::TakenThenReset);
        let n = word(1, Action::Trigger, Status::Firing, "first");
        assert!(bench.try_send(&n, None, false).await.unwrap_err().ambiguous);
        for seq in 0..newer {
            let mut other = word(1, Action::Trigger, Status::Firing, "another");
            other.idem_key = format!("another/chat/{seq}");
            bench.send(&other, None).await;
        }
        bench.try_send(&n, None, true).await.unwrap();
        let ours = |p: &&Post| {
            p.metadata.as_ref().is_some_and(|m| m["event_payload"]["idem_key"] == n.idem_key.as_str())
        };
        assert_eq!(bench.fake.with(|s| s.top().filter(ours).count()), posts, "{newer} newer messages");
    }
}

/// A timestamp `secs` seconds earlier.
fn older(ts: &str, secs: i64) -> String {
    let (whole, rest) = ts.split_once('.').unwrap();
    format!("{}.{rest}", whole.parse::<i64>().unwrap() - secs)
}

#[tokio::test]
async fn where_edits_are_forbidden_the_thread_is_still_written() {
    let bench = Bench::new().await;
    let memory = bench.send(&word(1, Action::Trigger, Status::Firing, "first"), None).await;
    bench.fake.script().always("chat.update", Fault::NotOk("edit_window_closed".into()));
    bench.send(&word(2, Action::Resolve, Status::Resolved, "resolved"), Some(&memory)).await;
    assert_eq!((bench.top().edits.len(), bench.thread().len()), (0, 1));
}

#[tokio::test]
async fn a_refused_layout_falls_back_to_plain_text() {
    let bench = Bench::new().await;
    bench.fake.script().push("chat.postMessage", Fault::NotOk("invalid_blocks".into()));
    bench.send(&word(1, Action::Trigger, Status::Firing, "first"), None).await;
    let top = bench.top();
    assert!(top.blocks.is_empty());
    assert!(top.text.contains("PAGE llama-70b: gradient spike at step 31215"), "{}", top.text);
}

#[tokio::test]
async fn fired_and_resolved_is_one_message() {
    let bench = Bench::new().await;
    let combined = word(1, Action::Trigger, Status::Resolved, "both sent now");
    let memory = bench.send(&combined, None).await;
    bench.send(&word(2, Action::Resolve, Status::Resolved, "resolved"), Some(&memory)).await;
    assert_eq!(bench.thread(), Vec::<String>::new(), "the thread has nothing to add");
}

#[tokio::test]
async fn an_incoming_webhook_posts_each_word_and_repeats_only_what_matters() {
    let bench = Bench::webhook().await;
    for (seq, action) in (1..).zip([Action::Trigger, Action::Update, Action::Ack, Action::Resolve]) {
        bench.try_send(&word(seq, action, Status::Firing, "x"), None, false).await.unwrap();
        bench.try_send(&word(seq, action, Status::Firing, "x"), None, true).await.unwrap();
    }
    assert_eq!(bench.fake.with(|s| s.top().count()), 6, "trigger and resolve twice, update and ack once");
    bench.fake.script().push("webhook", Fault::Status(404));
    let n = word(5, Action::Trigger, Status::Firing, "x");
    let failure = bench.try_send(&n, None, false).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Permanent);
    assert!(!failure.error.contains("stepwatchfakewebhook"), "{}", failure.error);
}

#[tokio::test]
async fn what_a_person_has_to_mend_is_permanent_and_says_how() {
    let all =
        [("#nowhere", "/invite"), ("#lobby", "/invite"), ("#secret", "/invite"), ("#archived", "archived")];
    for (channel, hint) in all {
        let bench = Bench::with(|config| Config { channel: Some(channel.into()), ..config }).await;
        let n = word(1, Action::Trigger, Status::Firing, "first");
        let failure = bench.try_send(&n, None, false).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::Permanent, "{channel}");
        assert!(failure.error.contains(hint), "{}", failure.error);
    }
}

#[test]
fn a_wrong_configuration_says_what_is_wrong() {
    let error = |config: Config| config.build().unwrap_err().to_string();
    assert!(error(Config::default()).contains("token_file"));
    let env = || Some("PATH".to_owned());
    let dir = tempfile::tempdir().unwrap();
    let bot = |token: &str, channel: &str| {
        let file = dir.path().join("token");
        std::fs::write(&file, token).unwrap();
        Config { token_file: Some(file), channel: Some(channel.into()), ..Config::default() }
    };
    assert!(bot("xoxb-1-2-abc\n", "#training").build().is_ok());
    assert!(error(Config { channel: None, ..bot("xoxb-1", "") }).contains("channel is missing"));
    let both = Config { token_env: env(), webhook_url_env: env(), ..Config::default() };
    assert!(error(both).contains("excludes"));
    let no_address = Config { webhook_url_env: env(), ..Config::default() };
    assert!(error(no_address).contains("does not hold"));
    let canary = "5bd1e995";
    for (token, what) in [
        (format!("xapp-1-{canary}"), "an app-level token, which belongs into app_token_file"),
        (format!("xoxp-1-{canary}"), "a user's token"),
        (format!("https://hooks.slack.com/services/{canary}"), "which belongs into webhook_url_file"),
        (canary.to_owned(), "holds something else, expected the app's bot token (xoxb-...)"),
        (format!("xoxb-{canary} {canary}"), "something else behind xoxb-"),
        ("xoxb-".to_owned(), "something else behind xoxb-"),
    ] {
        let refusal = error(bot(&token, "#training"));
        assert!(
            refusal.contains(what) && refusal.contains("/token ") && !refusal.contains(canary),
            "{refusal}"
        );
    }
    let signing = dir.path().join("signing");
    std::fs::write(&signing, format!("xoxb-{canary}")).unwrap();
    let mixed = Config { signing_secret_file: Some(signing), ..bot("xoxb-1", "#training") };
    assert!(error(mixed).contains("/signing holds a token, expected the app's signing secret"));
}

#[test]
fn a_channel_that_cannot_be_is_refused() {
    for good in ["#training", "training", "C0TRAINING", "#gpu_ops-2", "#alarme-für-alle", &"x".repeat(80)] {
        assert_eq!(channel::check(good), Ok(()), "{good}");
    }
    for (bad, why) in [
        ("#gpu alerts", "has spaces"),
        ("training ", "has spaces"),
        ("#Training", "has capital letters, and no channel's name has any (#training)"),
        ("#", "1 to 80 characters"),
        (&"x".repeat(81), "1 to 80 characters"),
        ("##training", "has a '#'"),
        ("@alice", "has a '@'"),
        ("a.b", "has a '.'"),
        ("U012AB3CD", "is a person"),
    ] {
        let refusal = channel::check(bad).unwrap_err();
        assert!(
            refusal.contains(why) && refusal.ends_with("expected #name or an id as in C0123ABCD"),
            "{bad}: {refusal}"
        );
    }
}

#[test]
fn ids_are_distinguished_from_names() {
    for id in ["C0TRAINING", "C01ABCDEF", "G0123456789"] {
        assert!(channel::is_id(id), "{id}");
    }
    for name in ["#training", "training", "C-ops", "Channel123", "C0"] {
        assert!(!channel::is_id(name), "{name}");
    }
}

#[tokio::test]
async fn what_comes_back_after_it_was_resolved_is_the_same_message_and_thread() {
    let bench = Bench::new().await;
    let memory = bench.send(&word(1, Action::Trigger, Status::Firing, "first"), None).await;
    let resolved = word(2, Action::Resolve, Status::Resolved, "resolved by alice; still firing");
    let memory = bench.send(&resolved, Some(&memory)).await;
    let back = word(3, Action::Trigger, Status::Firing, "reopened: still firing 10m after alice resolved it");
    bench.send(&back, Some(&memory)).await;
    assert_eq!(bench.fake.with(|s| s.top().count()), 1);
    let header = bench.top().blocks[0]["text"]["text"].as_str().unwrap().to_owned();
    assert!(header.starts_with('🚨'), "{header}");
    let thread = bench.thread();
    assert!(
        thread.len() == 2 && thread[1].contains("still firing 10m after alice resolved it"),
        "{thread:?}"
    );
    let broadcast: Vec<bool> =
        bench.fake.with(|s| s.posts.iter().filter(|p| !p.is_top()).map(|p| p.broadcast).collect());
    assert_eq!(broadcast, [false, true], "the channel sees that it is back");
}

#[test]
fn what_is_stale_does_not_count_as_resolved() {
    let mut n = word(2, Action::Resolve, Status::Resolved, "stale after 12m: nothing has been heard of it");
    n.message.ended = Some(stepwatch_respond::incident::Ended::Stale);
    let text = blocks::news_fallback(&n);
    assert!(text.starts_with('❔') && !text.contains('✅'), "{text}");
}

#[tokio::test]
async fn a_report_is_one_message_by_a_bot_and_by_a_webhook() {
    let report = crate::notify::report::tests::weekly(true);
    let n = report.notification("report/weekly/2026-11-23", "chat", stepwatch_model::time::Ts(0));
    for bench in [Bench::new().await, Bench::webhook().await] {
        let attempt = Attempt { report: Some(&report), ..Attempt::first(&n) };
        bench.slack.send(attempt).await.unwrap();
        let top = bench.top();
        assert!(top.text.starts_with("📊 Weekly report"), "{}", top.text);
        assert_eq!(top.blocks.last().unwrap()["type"], "context", "the layout is accepted");
    }
}

#[tokio::test]
async fn a_report_that_arrived_is_found_again() {
    let bench = Bench::new().await;
    bench.fake.script().push("chat.postMessage", Fault::TakenThenReset);
    let report = crate::notify::report::tests::weekly(false);
    let n = report.notification("report/weekly/2026-11-23", "chat", crate::clock::wall());
    let attempt = Attempt { report: Some(&report), ..Attempt::first(&n) };
    assert!(bench.slack.send(attempt).await.unwrap_err().ambiguous);
    bench.slack.send(Attempt { ambiguous: true, ..attempt }).await.unwrap();
    assert_eq!(bench.top().metadata.unwrap()["event_payload"]["idem_key"], n.idem_key);
}

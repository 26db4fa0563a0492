//! What people do in Slack and PagerDuty, through the real alerter: it stops escalation, reaches
//! the other service, and an answer that is repeated, replayed or forged changes nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use serde_json::Value;
use stepwatch_fakes::{
    AlertState, Fault, PagerDuty, Slack, interaction_body, pagerduty_signature, slack_signature,
};
use stepwatch_tests::http::{self, get_json};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Inbound, Stack, StackOptions, poll_until};

/// What she calls herself there; the configuration has a name for her id.
const ANN: (&str, &str) = ("U0ANN", "the boss");
const USERS: &str = "users: [{name: ann, slack_id: U0ANN}]\n";
const BOB: (&str, &str) = ("U0BOB", "bob");
/// Of another company, in a channel that is shared with it.
const EVE: (&str, &str) = ("U0EVE", "eve");
/// Slack's own patience with an answer.
const SLACK_WAITS: Duration = Duration::from_secs(3);

/// A page that both services have; its id and the message in Slack.
async fn paged(inbound: &[Inbound]) -> (Stack, String, String) {
    paged_with(inbound, "").await
}

/// With more keys of the Slack receiver.
async fn paged_with(inbound: &[Inbound], keys: &str) -> (Stack, String, String) {
    let (inbound, slack_keys) = (inbound.to_vec(), keys.to_owned());
    let options = StackOptions { inbound, slack_keys, alerter: USERS.into(), ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let rank = stack.warm_run("clicked", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    let pd = stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
    let slack = stack.slack.wait_for(|s| s.top().count() == 1, PATIENCE).await.unwrap();
    let ts = slack.top().next().unwrap().ts.clone();
    (stack, pd.pages[0].dedup_key.clone(), ts)
}

fn click(stack: &Stack, ts: &str, action: &str, user: (&str, &str)) -> Result<Value, String> {
    stack.slack.change(|s| s.click(&stack.slack.url(), ts, action, user))
}

fn now() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64
}

/// Posts a payload as Slack does, signed at `at` with `secret`; the status.
async fn post_slack(stack: &Stack, payload: &Value, at: i64, secret: &str) -> u16 {
    let body = interaction_body(payload);
    let request = http::client()
        .post(format!("{}/slack/interactions", stack.alerter.url()))
        .header("content-type", "application/x-www-form-urlencoded")
        .header("x-slack-request-timestamp", at.to_string())
        .header("x-slack-signature", slack_signature(secret, at, body.as_bytes()));
    request.body(body).timeout(PATIENCE).send().await.unwrap().status().as_u16()
}

async fn post_pagerduty(stack: &Stack, hook: &Value, secrets: &[&str]) -> u16 {
    let body = hook.to_string();
    let request = http::client()
        .post(format!("{}/pagerduty/webhook", stack.alerter.url()))
        .header("content-type", "application/json")
        .header("x-pagerduty-signature", pagerduty_signature(secrets, body.as_bytes()));
    request.body(body).timeout(PATIENCE).send().await.unwrap().status().as_u16()
}

/// Delivers every webhook that waits, in order, and returns the statuses.
async fn pump(stack: &Stack, from: usize) -> Vec<u16> {
    let hooks = stack.pagerduty.with(|pd| pd.hooks[from..].to_vec());
    let mut out = Vec::new();
    for hook in &hooks {
        out.push(post_pagerduty(stack, hook, &[PagerDuty::WEBHOOK_SECRET]).await);
    }
    out
}

async fn state(stack: &Stack) -> String {
    stack.alerter.incidents().await.unwrap()[0]["state"].as_str().unwrap().to_owned()
}

async fn becomes(stack: &Stack, wanted: &str) {
    let seen = async || (state(stack).await == wanted).then_some(());
    poll_until(wanted, PATIENCE, seen).await.unwrap();
}

/// Who did what by this door, the first one first, and what came of it.
async fn audited(stack: &Stack, door: &str) -> Vec<String> {
    let log = get_json(&format!("{}/api/v1/audit?door={door}", stack.alerter.url())).await.unwrap();
    let row = |entry: &Value| {
        ["actor", "action", "outcome"].map(|key| entry[key].as_str().unwrap().to_owned()).join(", ")
    };
    log["entries"].as_array().unwrap().iter().rev().map(row).collect()
}

fn top_text(s: &Slack) -> String {
    s.top().next().map(stepwatch_fakes::Post::visible_text).unwrap_or_default()
}

/// The acknowledgement by ann shows everywhere: PagerDuty does not notify any more, and the message
/// names her and has no such button any more.
async fn ann_has_it(stack: &Stack, key: &str) {
    assert_eq!(state(stack).await, "acknowledged", "durable before Slack is answered");
    let acked = |pd: &PagerDuty| pd.open(key).is_some_and(|a| a.state == AlertState::Acknowledged);
    stack.pagerduty.wait_for(acked, PATIENCE).await.unwrap();
    let slack = stack.slack.wait_for(|s| top_text(s).contains("ann"), PATIENCE).await.unwrap();
    assert_eq!(slack.top().count(), 1, "edited in place");
    let incident = &stack.alerter.incidents().await.unwrap()[0];
    assert_eq!(incident["acked_by"], "slack:U0ANN (ann)");
    assert!(
        incident["next_escalation_at"].is_null() && incident["level"] == 1,
        "escalation stopped: {incident}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_click_takes_the_incident_everywhere_and_once() {
    let (stack, key, ts) = paged(&[Inbound::Slack]).await;
    let ack = click(&stack, &ts, "stepwatch_ack", ANN).unwrap();
    for (at, secret) in
        [(now() - 400, Slack::SIGNING_SECRET), (now() + 4000, Slack::SIGNING_SECRET), (now(), "forged")]
    {
        assert_eq!(post_slack(&stack, &ack, at, secret).await, 401);
    }
    assert_eq!(state(&stack).await, "open", "a forged click does nothing");
    let started = tokio::time::Instant::now();
    assert_eq!(post_slack(&stack, &ack, now(), Slack::SIGNING_SECRET).await, 200);
    assert!(started.elapsed() < SLACK_WAITS);
    ann_has_it(&stack, &key).await;
    assert!(click(&stack, &ts, "stepwatch_ack", BOB).is_err(), "the button is gone");

    // The same bytes once more, and a colleague who had not seen the message change.
    let acks =
        |pd: &PagerDuty| pd.requests.iter().filter(|r| r.json()["event_action"] == "acknowledge").count();
    assert_eq!(post_slack(&stack, &ack, now(), Slack::SIGNING_SECRET).await, 200);
    let mut late = ack.clone();
    late["user"] = serde_json::json!({"id": BOB.0, "username": BOB.1});
    assert_eq!(post_slack(&stack, &late, now(), Slack::SIGNING_SECRET).await, 200);
    let slack = stack.slack.wait_for(|s| !s.whispers.is_empty(), PATIENCE).await.unwrap();
    assert!(slack.whispers[0].text.contains("has it already"), "{:?}", slack.whispers);

    let escalate = click(&stack, &ts, "stepwatch_escalate", ANN).unwrap();
    assert_eq!(post_slack(&stack, &escalate, now(), Slack::SIGNING_SECRET).await, 200);
    let incident = &stack.alerter.incidents().await.unwrap()[0];
    assert_eq!((incident["state"].as_str(), incident["level"].as_i64()), (Some("open"), Some(2)));
    // It is unacknowledged again: an alert that was acknowledged does not notify any more, and so
    // there is another one in its place.
    let again = format!("{key}-2");
    let paged = |pd: &PagerDuty| pd.open(&again).is_some_and(|a| a.state == AlertState::Triggered);
    let pd = stack.pagerduty.wait_for(paged, PATIENCE).await.unwrap();
    assert!(pd.open(&key).is_none() && pd.pages.len() == 2, "{:?}", pd.pages);
    // A replay of the first click does not take it again.
    assert_eq!(post_slack(&stack, &ack, now(), Slack::SIGNING_SECRET).await, 200);
    assert_eq!(state(&stack).await, "open");

    let silence = click(&stack, &ts, "stepwatch_silence", ANN).unwrap();
    let before = stack.slack.with(|s| s.whispers.len());
    for _ in 0..2 {
        assert_eq!(post_slack(&stack, &silence, now(), Slack::SIGNING_SECRET).await, 200);
    }
    let slack = stack.slack.wait_for(|s| s.whispers.len() > before, PATIENCE).await.unwrap();
    let whisper = &slack.whispers[before].text;
    assert!(whisper.contains(r#"kind="nonfinite", run="clicked""#), "{whisper}");
    let silences = get_json(&format!("{}/api/v1/silences", stack.alerter.url())).await.unwrap();
    let silences = silences["silences"].as_array().unwrap();
    assert_eq!((silences.len(), silences[0]["created_by"].as_str()), (1, Some("slack:U0ANN (ann)")), "once");

    let resolve = click(&stack, &ts, "stepwatch_resolve", ANN).unwrap();
    assert_eq!(post_slack(&stack, &resolve, now(), Slack::SIGNING_SECRET).await, 200);
    assert_eq!(state(&stack).await, "resolved");
    stack.pagerduty.wait_for(|pd| pd.open(&again).is_none(), PATIENCE).await.unwrap();
    let before = stack.slack.with(|s| s.whispers.len());
    let mut over = resolve.clone();
    over["actions"][0]["action_ts"] = "1700000001.5".into();
    assert_eq!(post_slack(&stack, &over, now(), Slack::SIGNING_SECRET).await, 200);
    let slack = stack.slack.wait_for(|s| s.whispers.len() > before, PATIENCE).await.unwrap();
    assert!(slack.whispers[before].text.contains("was resolved"), "{:?}", slack.whispers);
    stack.pagerduty.with(|pd| assert_eq!((acks(pd), pd.pages.len()), (1, 2)));
    let ann =
        ["ack", "escalate", "silence", "resolve"].map(|word| format!("slack:U0ANN (ann), {word}, done"));
    let forged = vec![", callback, refused".to_owned(); 3];
    assert_eq!(audited(&stack, "slack").await, [forged, ann.to_vec()].concat(), "once each");
}

fn eve_is_a_guest(stack: &Stack) {
    stack.slack.change(|s| s.guests.insert(EVE.0.into(), "T0OTHER".into()));
}

/// What was whispered to one of them.
fn whispers(s: &Slack, to: (&str, &str)) -> Vec<String> {
    s.whispers.iter().filter(|w| w.to == to.0).map(|w| w.text.clone()).collect()
}

async fn silences(stack: &Stack) -> usize {
    let all = get_json(&format!("{}/api/v1/silences", stack.alerter.url())).await.unwrap();
    all["silences"].as_array().unwrap().len()
}

/// Eve's clicks change nothing and are answered with the reason; the same bytes once more get the
/// same answer.
async fn eve_is_refused(stack: &Stack, words: &[&str]) {
    let slack = stack.slack.wait_for(|s| whispers(s, EVE).len() == words.len(), PATIENCE).await.unwrap();
    for whisper in whispers(&slack, EVE) {
        assert!(whisper.contains("Not done: you are of another workspace"), "{whisper}");
    }
    assert_eq!((state(stack).await.as_str(), silences(stack).await), ("open", 0));
    let refused: Vec<String> =
        words.iter().map(|word| format!("slack:U0EVE (eve), {word}, refused")).collect();
    assert_eq!(audited(stack, "slack").await, refused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_click_of_another_workspace_is_refused_aloud() {
    let (stack, key, ts) = paged(&[Inbound::Slack]).await;
    eve_is_a_guest(&stack);
    for action in ["stepwatch_ack", "stepwatch_silence", "stepwatch_resolve"] {
        let clicked = click(&stack, &ts, action, EVE).unwrap();
        for _ in 0..2 {
            assert_eq!(post_slack(&stack, &clicked, now(), Slack::SIGNING_SECRET).await, 200);
        }
    }
    eve_is_refused(&stack, &["ack", "silence", "resolve"]).await;
    let page = stack.alerter.metrics().await.unwrap();
    let labels = [("service", "slack"), ("result", "stranger")];
    let strangers = stepwatch_tests::exposition::value(&page, "stepwatch_alerter_callbacks_total", &labels);
    assert_eq!(strangers, Some(3.0));
    let ack = click(&stack, &ts, "stepwatch_ack", ANN).unwrap();
    assert_eq!(post_slack(&stack, &ack, now(), Slack::SIGNING_SECRET).await, 200);
    ann_has_it(&stack, &key).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_asks_for_the_workspace_too_and_slack_need_not_be_well_for_our_people() {
    let options =
        StackOptions { inbound: vec![Inbound::SlackSocket], blind: true, ..StackOptions::default() };
    let mut stack = Stack::start_with(options).await.unwrap();
    // A process in which Slack never answers which workspace is ours.
    stack.slack.script().always("auth.test", Fault::Status(503));
    stack.alerter.daemon.kill().await.unwrap();
    stack.alerter.restart(None).await.unwrap();
    stack.alerter.ready().await.unwrap();
    eve_is_a_guest(&stack);
    post_alerts(&stack, &[serde_json::json!({"alertname": "DiskFull", "severity": "critical"})]).await;
    let slack = stack.slack.wait_for(|s| s.top().count() == 1, PATIENCE).await.unwrap();
    let ts = slack.top().next().unwrap().ts.clone();
    let sockets = stack.sockets.as_ref().unwrap();
    sockets.opened(2, PATIENCE).await.unwrap();
    sockets.send(&click(&stack, &ts, "stepwatch_ack", EVE).unwrap(), PATIENCE).await.unwrap();
    eve_is_refused(&stack, &["ack"]).await;
    let bob = click(&stack, &ts, "stepwatch_ack", BOB).unwrap();
    sockets.send(&bob, PATIENCE).await.unwrap();
    becomes(&stack, "acknowledged").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_named_users_answer_where_that_is_asked_for_and_everybody_where_that_is() {
    let (stack, key, ts) = paged_with(&[Inbound::Slack], ", answers: known_users").await;
    let bob = click(&stack, &ts, "stepwatch_ack", BOB).unwrap();
    assert_eq!(post_slack(&stack, &bob, now(), Slack::SIGNING_SECRET).await, 200);
    let slack = stack.slack.wait_for(|s| !whispers(s, BOB).is_empty(), PATIENCE).await.unwrap();
    let whisper = &whispers(&slack, BOB)[0];
    assert!(whisper.contains("U0BOB is not among its `users`"), "{whisper}");
    assert_eq!(state(&stack).await, "open");
    let ann = click(&stack, &ts, "stepwatch_ack", ANN).unwrap();
    assert_eq!(post_slack(&stack, &ann, now(), Slack::SIGNING_SECRET).await, 200);
    ann_has_it(&stack, &key).await;

    let (stack, _, ts) = paged_with(&[Inbound::Slack], ", answers: anyone").await;
    eve_is_a_guest(&stack);
    let eve = click(&stack, &ts, "stepwatch_ack", EVE).unwrap();
    assert_eq!(post_slack(&stack, &eve, now(), Slack::SIGNING_SECRET).await, 200);
    assert_eq!(state(&stack).await, "acknowledged");
}

/// Alerts that other programs send, all of which page.
async fn post_alerts(stack: &Stack, labels: &[Value]) {
    let alerts: Vec<_> = labels.iter().map(|labels| serde_json::json!({ "labels": labels })).collect();
    let url = format!("{}/api/v2/alerts", stack.alerter.url());
    let answer = http::client().post(url).json(&alerts).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_click_on_an_alert_silences_that_alert_and_one_without_a_name_is_refused() {
    let options = StackOptions { inbound: vec![Inbound::Slack], blind: true, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let alert = |name: &str| serde_json::json!({"alertname": name, "severity": "critical"});
    let posted = async |n: usize| stack.slack.wait_for(|s| s.top().count() == n, PATIENCE).await.unwrap();
    post_alerts(&stack, &[alert("DiskFull")]).await;
    let ts = posted(1).await.top().next().unwrap().ts.clone();
    let silence = click(&stack, &ts, "stepwatch_silence", ANN).unwrap();
    assert_eq!(post_slack(&stack, &silence, now(), Slack::SIGNING_SECRET).await, 200);
    let slack = stack.slack.wait_for(|s| s.whispers.len() == 1, PATIENCE).await.unwrap();
    let whisper = &slack.whispers[0].text;
    assert!(whisper.contains(r#"`kind="prometheus_alert", alertname="DiskFull"`"#), "{whisper}");

    // Another trouble, of no run either, is notified as usual; and this one has nothing that it
    // could be identified by.
    post_alerts(&stack, &[alert("FanStopped")]).await;
    posted(2).await;
    post_alerts(&stack, &[serde_json::json!({"severity": "critical"})]).await;
    let ts = posted(3).await.top().last().unwrap().ts.clone();
    let silence = click(&stack, &ts, "stepwatch_silence", ANN).unwrap();
    assert_eq!(post_slack(&stack, &silence, now(), Slack::SIGNING_SECRET).await, 200);
    let slack = stack.slack.wait_for(|s| s.whispers.len() == 2, PATIENCE).await.unwrap();
    let whisper = &slack.whispers[1].text;
    assert!(whisper.contains("Not done: neither a run") && !whisper.contains("try again"), "{whisper}");
    let silences = get_json(&format!("{}/api/v1/silences", stack.alerter.url())).await.unwrap();
    assert_eq!(silences["silences"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_click_that_finds_no_room_is_refused_and_not_swallowed() {
    let (stack, _, ts) = paged(&[Inbound::Slack]).await;
    let ack = click(&stack, &ts, "stepwatch_ack", ANN).unwrap();
    let clicks: Vec<Value> = (0..250)
        .map(|n| {
            let mut one = ack.clone();
            one["actions"][0]["action_ts"] = format!("1700000000.{n}").into();
            one
        })
        .collect();
    let posted = clicks.iter().map(|one| post_slack(&stack, one, now(), Slack::SIGNING_SECRET));
    let statuses = futures_util::future::join_all(posted).await;
    let refused = statuses.iter().filter(|status| **status == 503).count();
    assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    let page = stack.alerter.metrics().await.unwrap();
    let busy = [("service", "slack"), ("result", "busy")];
    let busy = stepwatch_tests::exposition::value(&page, "stepwatch_alerter_callbacks_total", &busy);
    assert_eq!(busy.unwrap_or_default(), refused as f64, "whoever clicked gets a reply");
    assert_eq!(state(&stack).await, "acknowledged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_hears_the_same_and_is_replaced_when_slack_says_so() {
    let (stack, key, ts) = paged(&[Inbound::SlackSocket]).await;
    let sockets = stack.sockets.as_ref().unwrap();
    sockets.opened(1, PATIENCE).await.unwrap();
    sockets.disconnect();
    sockets.opened(2, PATIENCE).await.unwrap();
    sockets.hang_up();
    sockets.opened(3, PATIENCE).await.unwrap();
    let ack = click(&stack, &ts, "stepwatch_ack", ANN).unwrap();
    sockets.send(&ack, PATIENCE).await.unwrap();
    ann_has_it(&stack, &key).await;
    // An envelope whose acknowledgement was lost comes again.
    sockets.send(&ack, PATIENCE).await.unwrap();
    assert_eq!(stack.slack.with(|s| s.whispers.len()), 0);
    assert_eq!(audited(&stack, "slack").await, ["slack:U0ANN (ann), ack, done"]);
    assert_eq!(post_slack(&stack, &ack, now(), "anything").await, 404, "no secret, no door");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_pagerduty_counts_here_and_is_not_sent_back() {
    let (stack, key, _) = paged(&[Inbound::Slack, Inbound::PagerDuty]).await;
    stack.pagerduty.change(|pd| pd.by_person(&key, "acknowledged", "Jane Doe")).unwrap();
    let hook = stack.pagerduty.with(|pd| pd.hooks.last().cloned()).unwrap();
    assert_eq!(post_pagerduty(&stack, &hook, &["wrong"]).await, 403);
    assert_eq!(state(&stack).await, "open");
    // The subscription's secret is being replaced: two signatures, of which one is ours.
    assert_eq!(post_pagerduty(&stack, &hook, &["newer", PagerDuty::WEBHOOK_SECRET]).await, 200);
    assert_eq!(state(&stack).await, "acknowledged");
    stack.slack.wait_for(|s| top_text(s).contains("Jane Doe"), PATIENCE).await.unwrap();
    let sent = stack.pagerduty.with(|pd| pd.requests.len());

    // It comes again, and so does everything else; nothing changes.
    assert_eq!(pump(&stack, 0).await, vec![200; stack.pagerduty.with(|pd| pd.hooks.len())]);
    assert_eq!(state(&stack).await, "acknowledged");

    stack.pagerduty.change(|pd| pd.by_person(&key, "unacknowledged", "Jane Doe")).unwrap();
    let n = stack.pagerduty.with(|pd| pd.hooks.len()) - 1;
    assert_eq!(pump(&stack, n).await, [200]);
    becomes(&stack, "open").await;
    // The first answer once more under another id, as a service that cannot count might send it: a
    // later answer counts.
    let mut late = hook.clone();
    late["event"]["id"] = "01FAKELATE".into();
    assert_eq!(post_pagerduty(&stack, &late, &[PagerDuty::WEBHOOK_SECRET]).await, 200);
    assert_eq!(state(&stack).await, "open");
    let mut old = hook.clone();
    (old["event"]["id"], old["event"]["occurred_at"]) = ("01FAKEOLD".into(), "2020-01-01T00:00:00Z".into());
    assert_eq!(post_pagerduty(&stack, &old, &[PagerDuty::WEBHOOK_SECRET]).await, 200);
    assert_eq!(state(&stack).await, "open");

    stack
        .pagerduty
        .change(|pd| {
            // Since then the service groups alerts under keys of its own: the incident is known by
            // its id.
            pd.groups_alerts = true;
            pd.by_person(&key, "resolved", "Jane Doe")
        })
        .unwrap();
    let n = stack.pagerduty.with(|pd| pd.hooks.len()) - 1;
    assert_eq!(pump(&stack, n).await, [200]);
    assert_eq!(state(&stack).await, "resolved");
    let acks = stack
        .pagerduty
        .with(|pd| pd.requests[sent..].iter().filter(|r| r.json()["event_action"] == "acknowledge").count());
    assert_eq!(acks, 0, "an answer that came from there is not sent there");
    let rung = stack.pagerduty.with(|pd| pd.pages.iter().map(|p| p.dedup_key.clone()).collect::<Vec<_>>());
    assert_eq!(rung, [key.clone(), key], "PagerDuty by itself, when nobody had it any more");
    let jane = ["ack", "unack", "resolve"].map(|word| format!("pagerduty:Jane Doe (primary), {word}, done"));
    let forged = vec![", callback, refused".to_owned()];
    assert_eq!(audited(&stack, "pagerduty").await, [forged, jane.to_vec()].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_resolved_in_pagerduty_and_still_fires_comes_back_and_rings() {
    let options = StackOptions {
        inbound: vec![Inbound::PagerDuty],
        alerter: format!("{USERS}incidents: {{reopen_after: 10s}}\n"),
        ..StackOptions::default()
    };
    let mut stack = Stack::start_with(options).await.unwrap();
    let rank = stack.warm_run("resolved", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    let pd = stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
    let key = pd.pages[0].dedup_key.clone();
    stack.slack.wait_for(|s| s.top().count() == 1, PATIENCE).await.unwrap();
    stack.pagerduty.change(|pd| pd.by_person(&key, "resolved", "Jane Doe")).unwrap();
    let n = stack.pagerduty.with(|pd| pd.hooks.len()) - 1;
    assert_eq!(pump(&stack, n).await, [200]);
    let closed = stack.alerter.incidents().await.unwrap()[0].clone();
    assert_eq!((&closed["state"], &closed["ended"]), (&"resolved".into(), &"person".into()), "{closed}");
    assert_eq!(closed["resolved_by"], "pagerduty:Jane Doe (primary)");
    assert!(closed["reopens_at"].is_string(), "{closed}");
    let listed = stack.alerter.cli(&["incidents", "list"]).await.unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("resolved by hand, still firing") && listed.contains("back in"), "{listed}");
    let counted = async || {
        let page = stack.alerter.metrics().await.ok()?;
        let line = r#"stepwatch_alerter_incidents_resolved_still_firing{severity="page"} 1"#;
        page.contains(line).then_some(())
    };
    poll_until("the metric", PATIENCE, counted).await.unwrap();
    stack.slack.wait_for(|s| top_text(s).contains("RESOLVED"), PATIENCE).await.unwrap();
    // The time at which it comes back outlives the process.
    stack.alerter.daemon.kill().await.unwrap();
    stack.alerter.restart(None).await.unwrap();
    stack.alerter.ready().await.unwrap();
    let pd = stack.pagerduty.wait_for(|pd| pd.pages.len() == 2, PATIENCE).await.unwrap();
    assert!(pd.pages[1].dedup_key.starts_with(&key), "{:?}", pd.pages);
    let back = stack.alerter.incidents().await.unwrap()[0].clone();
    assert_eq!((&back["id"], &back["state"]), (&closed["id"], &"open".into()), "{back}");
    let slack = stack.slack.wait_for(|s| top_text(s).contains("PAGE"), PATIENCE).await.unwrap();
    assert_eq!(slack.top().count(), 1, "the same message");
    let id = back["id"].as_str().unwrap();
    let story = stack.alerter.cli(&["explain", id]).await.unwrap();
    let story = String::from_utf8_lossy(&story.stdout).into_owned();
    assert!(
        story.contains("reopened: still firing 10s after pagerduty:Jane Doe (primary) resolved it"),
        "{story}"
    );
    // By the command line: it prints what becomes of it.
    let said = stack.alerter.cli(&["incidents", "resolve", id, "--by", "sam"]).await.unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("still firing: comes back at") && said.contains("silence it"), "{said}");
}

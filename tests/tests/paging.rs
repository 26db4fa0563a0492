//! Every page of a policy is one in PagerDuty, and one answer answers all.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use stepwatch_fakes::{AlertState, Fault, PagerDuty, Slack, is_about, pagerduty_signature};
use stepwatch_tests::bins;
use stepwatch_tests::http::{self, get_json};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::trainer::healthy;
use stepwatch_tests::{Inbound, Stack, StackOptions, poll_until};

/// The levels of a policy that pages twice, then a second receiver of the same service.
const LEVELS: &str =
    "      - {after: 1s, notify: [chat, primary], repeat: 1}\n      - {after: 1s, notify: [twin]}\n";

/// An alerter whose policy has these levels; `twin` is of the service that `primary` is of.
async fn stack(levels: &str, keys: &str) -> Stack {
    let options = StackOptions {
        blind: true,
        inbound: vec![Inbound::PagerDuty],
        levels: Some(levels.to_owned()),
        pagerduty_keys: keys.to_owned(),
        twin: true,
        alerter: "resolve_after: 200ms\n".into(),
        ..StackOptions::default()
    };
    Stack::start_with(options).await.unwrap()
}

async fn post_alert(stack: &Stack, ends: Option<&str>) {
    post_named(stack, "DiskFull", ends).await;
}

async fn post_named(stack: &Stack, name: &str, ends: Option<&str>) {
    post_with_severity(stack, name, "critical", ends).await;
}

async fn post_with_severity(stack: &Stack, name: &str, severity: &str, ends: Option<&str>) {
    let alert =
        json!([{"labels": {"alertname": name, "severity": severity, "run": "llama"}, "endsAt": ends}]);
    let url = format!("{}/api/v2/alerts", stack.alerter.url());
    let answer = http::client().post(url).json(&alert).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
}

fn keys(pd: &PagerDuty) -> BTreeSet<&str> {
    pd.pages.iter().map(|p| p.dedup_key.as_str()).collect()
}

/// Waits until there were so many pages; returns the incident.
async fn paged(stack: &Stack, times: usize) -> String {
    let pd = stack.pagerduty.wait_for(|pd| pd.pages.len() >= times, PATIENCE).await.unwrap();
    let incident = stack.alerter.incidents().await.unwrap()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(keys(&pd).len(), pd.pages.len(), "a key notifies once: {:?}", pd.pages);
    assert!(pd.pages.iter().all(|p| is_about(&p.dedup_key, &incident)), "{:?}", pd.pages);
    incident
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_and_repeats_all_ring_and_an_answer_here_stills_them() {
    let stack = stack(LEVELS, "").await;
    post_alert(&stack, None).await;
    // The level, its repeat, and the other receiver of the service.
    let incident = paged(&stack, 3).await;
    assert!(stack.alerter.ack(&incident, "ann").await.unwrap().status.success());
    let pd = stack.pagerduty.wait_for(|pd| pd.triggered().next().is_none(), PATIENCE).await.unwrap();
    assert!(pd.alerts.iter().all(|a| a.state == AlertState::Acknowledged), "{:?}", pd.alerts);
    post_alert(&stack, OVER).await;
    let over = |pd: &PagerDuty| pd.alerts.iter().all(|a| a.state == AlertState::Resolved);
    let ended = stack.pagerduty.wait_for(over, PATIENCE).await.unwrap();
    assert_eq!(ended.pages.len(), pd.pages.len(), "nothing notifies after the answer");
}

/// What `simulate` prints of the first minute.
async fn simulated(stack: &Stack) -> String {
    let mut program = tokio::process::Command::new(bins::path(bins::ALERTER).unwrap());
    program.args(["simulate", "--for", "1m", "--config"]).arg(stack.dir.path().join("alerter/alerter.yml"));
    let said = tokio::time::timeout(PATIENCE, program.kill_on_drop(true).output()).await.unwrap().unwrap();
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// Delivers every webhook that waits, in order.
async fn pump(stack: &Stack, from: usize) {
    for hook in stack.pagerduty.with(|pd| pd.hooks[from..].to_vec()) {
        deliver(stack, &hook).await;
    }
}

/// Delivers a webhook, and again for as long as the answer to PagerDuty is that it could not be
/// acted upon.
async fn deliver(stack: &Stack, hook: &Value) {
    let body = hook.to_string();
    let signature = pagerduty_signature(&[PagerDuty::WEBHOOK_SECRET], body.as_bytes());
    let taken = async || {
        let request = http::client().post(format!("{}/pagerduty/webhook", stack.alerter.url()));
        let request = request.header("x-pagerduty-signature", &signature).body(body.clone());
        let status = request.send().await.unwrap().status().as_u16();
        assert!([200, 503].contains(&status), "{status}");
        (status == 200).then_some(())
    };
    poll_until("the webhook to be acted upon", PATIENCE, taken).await.unwrap();
}

/// A person does something in PagerDuty; the webhook about it.
fn done_by_jane(stack: &Stack, key: &str, what: &str) -> Value {
    stack.pagerduty.change(|pd| pd.by_person(key, what, "Jane Doe")).unwrap();
    stack.pagerduty.with(|pd| pd.hooks.last().cloned()).unwrap()
}

/// The same, and it is delivered here.
async fn by_jane(stack: &Stack, key: &str, what: &str) {
    deliver(stack, &done_by_jane(stack, key, what)).await;
}

/// Another webhook like this one.
fn another(hook: &Value, id: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut other = hook.clone();
    other["event"]["id"] = id.into();
    change(&mut other["event"]);
    other
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_any_ring_in_pagerduty_answers_all() {
    let stack = stack(LEVELS, "").await;
    post_alert(&stack, None).await;
    paged(&stack, 3).await;
    let (second, from) = stack.pagerduty.with(|pd| (pd.pages[1].dedup_key.clone(), pd.hooks.len()));
    stack.pagerduty.change(|pd| pd.by_person(&second, "acknowledged", "Jane Doe")).unwrap();
    assert_eq!(stack.pagerduty.with(|pd| pd.triggered().count()), 2);
    pump(&stack, from).await;
    stack.pagerduty.wait_for(|pd| pd.triggered().next().is_none(), PATIENCE).await.unwrap();
    let (first, from) = stack.pagerduty.with(|pd| (pd.pages[0].dedup_key.clone(), pd.hooks.len()));
    stack.pagerduty.change(|pd| pd.by_person(&first, "resolved", "Jane Doe")).unwrap();
    pump(&stack, from).await;
    let over = |pd: &PagerDuty| pd.alerts.iter().all(|a| a.state == AlertState::Resolved);
    let pd = stack.pagerduty.wait_for(over, PATIENCE).await.unwrap();
    assert_eq!(pd.pages.len(), 3);
    assert_eq!(stack.alerter.incidents().await.unwrap()[0]["state"], "resolved");
}

/// What `explain` prints of an incident.
async fn story(stack: &Stack, incident: &str) -> String {
    let out = stack.alerter.cli(&["explain", incident]).await.unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The state of an incident.
async fn state(stack: &Stack, incident: &str) -> String {
    let all = stack.alerter.incidents().await.unwrap();
    let of_it = all.iter().find(|i| i["id"] == incident).unwrap();
    of_it["state"].as_str().unwrap().to_owned()
}

/// Each page is an incident of its own in PagerDuty, and people tidy up.
#[tokio::test(flavor = "multi_thread")]
async fn rings_that_are_merged_in_pagerduty_are_not_answered_by_that() {
    let stack = stack(LEVELS, "").await;
    post_alert(&stack, None).await;
    let incident = paged(&stack, 3).await;
    let keys = stack.pagerduty.with(|pd| pd.pages.iter().map(|p| p.dedup_key.clone()).collect::<Vec<_>>());
    let from = stack.pagerduty.with(|pd| pd.hooks.len());
    stack.pagerduty.change(|pd| pd.merge(&keys[0], &keys[1], "Jane Doe")).unwrap();
    pump(&stack, from).await;
    assert_eq!(state(&stack, &incident).await, "open");
    let text = story(&stack, &incident).await;
    assert!(text.contains("merged in PagerDuty into [#2]"), "{text}");
    let from = stack.pagerduty.with(|pd| pd.hooks.len());
    stack.pagerduty.change(|pd| pd.by_person(&keys[1], "acknowledged", "Jane Doe")).unwrap();
    pump(&stack, from).await;
    assert_eq!(state(&stack, &incident).await, "acknowledged");
    stack.pagerduty.wait_for(|pd| pd.triggered().next().is_none(), PATIENCE).await.unwrap();
    post_alert(&stack, OVER).await;
    let over = |pd: &PagerDuty| pd.alerts.iter().all(|a| a.state == AlertState::Resolved);
    let pd = stack.pagerduty.wait_for(over, PATIENCE).await.unwrap();
    assert_eq!(pd.pages.len(), 3, "{:?}", pd.pages);
}

/// Into an incident of another program, and that into one of ours: an answer to what is left
/// answers each, and our end resolves our alerts and no others.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_what_others_were_merged_into_answers_each() {
    let stack = stack(AT_ONCE, "").await;
    post_named(&stack, "DiskFull", None).await;
    stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
    post_named(&stack, "FanStopped", None).await;
    let pd = stack.pagerduty.wait_for(|pd| pd.pages.len() == 2, PATIENCE).await.unwrap();
    let [disk, fan] = [0, 1].map(|n| pd.pages[n].dedup_key.clone());
    let person = async |what: &dyn Fn(&mut PagerDuty) -> Result<(), String>| {
        let from = stack.pagerduty.with(|pd| pd.hooks.len());
        stack.pagerduty.change(|pd| what(pd)).unwrap();
        pump(&stack, from).await;
    };
    stack.pagerduty.change(|pd| pd.of_another_program("rack-7", "Power of rack 7"));
    person(&|pd| pd.merge(&disk, "rack-7", "Jane Doe")).await;
    assert_eq!(state(&stack, &disk).await, "open");
    person(&|pd| pd.by_person("rack-7", "acknowledged", "Jane Doe")).await;
    assert_eq!([state(&stack, &disk).await, state(&stack, &fan).await], ["acknowledged", "open"]);
    person(&|pd| pd.merge("rack-7", &fan, "Jane Doe")).await;
    person(&|pd| pd.by_person(&fan, "acknowledged", "Jane Doe")).await;
    assert_eq!([state(&stack, &disk).await, state(&stack, &fan).await], ["acknowledged", "acknowledged"]);
    post_named(&stack, "DiskFull", OVER).await;
    stack.pagerduty.wait_for(|pd| pd.open(&disk).is_none(), PATIENCE).await.unwrap();
    assert!(stack.pagerduty.with(|pd| pd.open("rack-7").is_some() && pd.open(&fan).is_some()));
    person(&|pd| pd.by_person(&fan, "resolved", "Jane Doe")).await;
    assert_eq!([state(&stack, &disk).await, state(&stack, &fan).await], ["resolved", "resolved"]);
}

const AT_ONCE: &str = "      - {after: 0s, notify: [chat, primary]}\n";
const OVER: Option<&str> = Some("2020-01-01T00:00:00Z");

/// It comes back as one incident whose end ends all of its alerts, the one that was opened again
/// too.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_reopened_in_pagerduty_and_still_fires_is_back_at_once() {
    let stack = stack(AT_ONCE, "").await;
    post_alert(&stack, None).await;
    let incident = paged(&stack, 1).await;
    by_jane(&stack, &incident, "resolved").await;
    assert_eq!(state(&stack, &incident).await, "resolved");
    let ours = |pd: &PagerDuty| pd.requests.iter().any(|r| r.json()["event_action"] == "resolve");
    stack.pagerduty.wait_for(ours, PATIENCE).await.unwrap();
    by_jane(&stack, &incident, "reopened").await;
    assert_eq!(state(&stack, &incident).await, "open");
    paged(&stack, 2).await;
    assert_eq!(stack.pagerduty.with(|pd| pd.triggered().count()), 2);
    let text = story(&stack, &incident).await;
    assert!(text.contains("pagerduty:Jane Doe (primary)") && text.contains("reopened: it still"), "{text}");
    post_alert(&stack, OVER).await;
    let over = |pd: &PagerDuty| pd.alerts.iter().all(|a| a.state == AlertState::Resolved);
    let pd = stack.pagerduty.wait_for(over, PATIENCE).await.unwrap();
    assert_eq!(pd.pages.len(), 2, "{:?}", pd.pages);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_reopened_in_pagerduty_and_fires_no_more_is_resolved_there_again() {
    let stack = stack(AT_ONCE, "").await;
    post_alert(&stack, None).await;
    let incident = paged(&stack, 1).await;
    post_alert(&stack, OVER).await;
    stack.pagerduty.wait_for(|pd| pd.open(&incident).is_none(), PATIENCE).await.unwrap();
    by_jane(&stack, &incident, "reopened").await;
    assert!(stack.pagerduty.with(|pd| pd.open(&incident).is_none()), "resolved before PagerDuty is answered");
    assert_eq!(state(&stack, &incident).await, "resolved");
    let text = story(&stack, &incident).await;
    assert!(text.contains("it does not fire any more"), "{text}");
}

/// Somebody acknowledged the ticket, and the webhook came late: it does not count for the page.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_the_ticket_does_not_answer_the_page_that_it_became() {
    let stack = stack(AT_ONCE, "").await;
    post_with_severity(&stack, "DiskFull", "warning", None).await;
    stack.slack.wait_for(|s| s.top().count() == 1, PATIENCE).await.unwrap();
    // Two clocks agree to the second at best.
    let before = jiff::Timestamp::now() - Duration::from_mins(1);
    post_alert(&stack, None).await;
    let incident = paged(&stack, 1).await;
    assert_eq!(stack.alerter.incidents().await.unwrap().len(), 1, "the ticket became the page");
    pump(&stack, 0).await;
    let said = done_by_jane(&stack, &incident, "acknowledged");
    let ticket = another(&said, "01TICKET", |event| {
        event["data"]["id"] = "PTICKET".into();
        event["data"]["incident_key"] = format!("{incident}-ticket").into();
    });
    // The service groups alerts, so that their incident is known by its id.
    let late = another(&said, "01LATE", |event| {
        event["occurred_at"] = before.to_string().into();
        event["data"]["incident_key"] = Value::Null;
    });
    for word in [&ticket, &late] {
        for what in ["incident.acknowledged", "incident.resolved"] {
            let id = format!("{}-{what}", word["event"]["id"].as_str().unwrap());
            deliver(&stack, &another(word, &id, |event| event["event_type"] = what.into())).await;
            assert_eq!(state(&stack, &incident).await, "open", "{what}");
        }
    }
    let text = story(&stack, &incident).await;
    assert!(text.contains("acknowledged in PagerDuty before it became a page or came back"), "{text}");
    // Their clock is slow, and the key is that of the page.
    let slow = another(&said, "01SLOW", |event| event["occurred_at"] = before.to_string().into());
    deliver(&stack, &slow).await;
    assert_eq!(state(&stack, &incident).await, "acknowledged");
}

/// Two alerts of it were resolved there; the webhook about the second comes when the incident is
/// back.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_second_resolution_does_not_end_what_came_back() {
    let stack = stack(LEVELS, "").await;
    post_alert(&stack, None).await;
    let incident = paged(&stack, 2).await;
    let keys = stack.pagerduty.with(|pd| pd.pages.iter().map(|p| p.dedup_key.clone()).collect::<Vec<_>>());
    let second = done_by_jane(&stack, &keys[1], "resolved");
    by_jane(&stack, &keys[0], "resolved").await;
    assert_eq!(state(&stack, &incident).await, "resolved");
    by_jane(&stack, &keys[0], "reopened").await;
    assert_eq!(state(&stack, &incident).await, "open");
    deliver(&stack, &second).await;
    assert_eq!(state(&stack, &incident).await, "open");
}

/// A page whose answer never came may have arrived: it is not repeated under another key, and it is
/// answered with the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_ring_that_may_have_arrived_is_the_same_ring_after_a_kill() {
    let mut stack = stack(LEVELS, "").await;
    stack.pagerduty.script().push("enqueue", Fault::TakenThenStatus(502)).always("enqueue", Fault::Hang);
    post_alert(&stack, None).await;
    let incident = paged(&stack, 1).await;
    stack.pagerduty.wait_for(|pd| pd.requests.len() >= 2, PATIENCE).await.unwrap();
    stack.alerter.daemon.kill().await.unwrap();
    stack.pagerduty.script().clear();
    stack.alerter.restart(None).await.unwrap();
    stack.alerter.ready().await.unwrap();
    assert!(stack.alerter.ack(&incident, "ann").await.unwrap().status.success());
    let pd = stack.pagerduty.wait_for(|pd| pd.triggered().next().is_none(), PATIENCE).await.unwrap();
    assert_eq!(keys(&pd).len(), pd.pages.len(), "{:?}", pd.pages);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_service_repeats_it_rings_once_and_every_text_says_so() {
    let words = "PagerDuty's own escalation policy repeats";
    let stack = stack(LEVELS, ", repeats: service").await;
    post_alert(&stack, None).await;
    // The other receiver is called after the repeat.
    let incident = paged(&stack, 2).await;
    stack.pagerduty.with(|pd| {
        assert!(keys(pd).contains(incident.as_str()) && pd.pages.len() == 2, "{:?}", pd.pages);
        let contains = |said: &Value| said["payload"]["custom_details"].to_string().contains(words);
        assert!(pd.requests.iter().any(|r| contains(&r.json())), "{:?}", pd.requests);
    });
    let out = stack.alerter.cli(&["explain", &incident]).await.unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains(words), "{text}");
    let text = simulated(&stack).await;
    assert!(text.contains(words) && text.contains("primary rings 1 time"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_rings_is_counted_before_it_happens_and_shown_afterwards() {
    let stack = stack(LEVELS, "").await;
    let text = simulated(&stack).await;
    assert!(text.contains("primary rings 2 times") && text.contains("twin rings 1 time"), "{text}");
    post_alert(&stack, None).await;
    let incident = paged(&stack, 3).await;
    let out = stack.alerter.cli(&["explain", &incident]).await.unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    for key in stack.pagerduty.with(|pd| pd.pages.iter().map(|p| p.dedup_key.clone()).collect::<Vec<_>>()) {
        assert!(text.contains(&format!("PagerDuty as {key}\n")), "{key}: {text}");
    }
    let detail = get_json(&format!("{}/api/v1/incidents/{incident}", stack.alerter.url())).await.unwrap();
    let rings = |d: &Value| d["ring"].as_i64();
    let mut rings: Vec<i64> = detail["deliveries"].as_array().unwrap().iter().filter_map(rings).collect();
    rings.sort_unstable();
    assert_eq!(rings, [1, 2, 3]);
}

fn thread(s: &Slack) -> String {
    let Some(top) = s.top().next() else { return String::new() };
    s.replies(&top.ts).map(|p| p.visible_text()).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_thread_shows_every_escalation_also_of_levels_that_the_chat_is_not_on() {
    let levels = "      - {after: 0s, notify: [chat]}\n      - {after: 1s, notify: [primary]}\n      \
                  - {after: 4s, notify: [twin]}\n";
    let stack = stack(levels, "").await;
    post_alert(&stack, None).await;
    let both = |s: &Slack| {
        let text = thread(s).to_lowercase();
        text.contains("escalated to level 2")
            && text.contains("escalated to level 3")
            && text.contains("twin")
    };
    let slack = stack.slack.wait_for(both, PATIENCE).await.unwrap();
    assert_eq!(slack.top().count(), 1);
    let broadcast = slack.posts.iter().filter(|p| p.broadcast).count();
    assert_eq!(broadcast, 0, "the channel is not mentioned for a page to others");
    let text = slack.top().next().unwrap().visible_text() + &thread(&slack);
    for word in ["Cost", "GPU", "checkpoint"] {
        assert!(!text.contains(word), "an alert of others says nothing of {word}: {text}");
    }
}

/// A message that waited for its receiver contains the state when it is sent, not the earlier one.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waited_contains_the_present_state() {
    let options = StackOptions { alerter: "resolve_after: 1h\n".into(), ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    stack.slack.script().always("chat.postMessage", Fault::Status(503));
    let rank = stack.warm_run("mended", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    let pd = stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
    assert!(pd.pages[0].summary.contains("every further step is wasted"), "{}", pd.pages[0].summary);
    for step in 5..25 {
        let (loss, grad_norm) = healthy(step);
        rank.step(step, &[("loss", loss), ("grad_norm", grad_norm)]).unwrap();
    }
    let incident = pd.pages[0].dedup_key.clone();
    let cleared = async || {
        let shown = stack.alerter.cli(&["explain", &incident]).await.ok()?;
        String::from_utf8_lossy(&shown.stdout).contains("resolves if it stays so").then_some(())
    };
    poll_until("the loss to be finite again", PATIENCE, cleared).await.unwrap();
    stack.slack.script().clear();
    let slack = stack.slack.wait_for(|s| s.top().count() == 1, PATIENCE).await.unwrap();
    let text = slack.top().next().unwrap().visible_text();
    assert!(!text.contains("every further step is wasted"), "{text}");
    assert!(text.contains("Over since step 20; it was: loss is NaN."), "{text}");
}

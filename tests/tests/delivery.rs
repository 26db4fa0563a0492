//! Receivers that are down, faulty or lying: a page is late, never lost and never doubled.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use stepwatch_fakes::{AlertState, Answer, Delivery, Fault};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::trainer::healthy;
use stepwatch_tests::{Inbound, Stack, StackOptions, http, poll_until};

async fn stack(webhook: bool) -> Stack {
    let alerter = "resolve_after: 200ms\n".into();
    Stack::start_with(StackOptions { alerter, webhook, ..StackOptions::default() }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_receiver_gets_the_whole_story() {
    let stack = stack(true).await;
    let rank = stack.warm_run("story", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
    for step in 5..40 {
        let (loss, grad_norm) = healthy(step);
        rank.step(step, &[("loss", loss), ("grad_norm", grad_norm)]).unwrap();
    }
    stack.pagerduty.wait_for(|pd| pd.alerts[0].state == AlertState::Resolved, PATIENCE).await.unwrap();
    let resolved = |text: &str| text.to_lowercase().contains("resolved");
    let slack =
        stack.slack.wait_for(|s| s.top().any(|p| resolved(&p.visible_text())), PATIENCE).await.unwrap();
    assert_eq!(slack.top().count(), 1, "edited in place");
    let top = slack.top().next().unwrap();
    // The thread contains what happened since, after the message was edited.
    stack.slack.wait_for(|s| s.replies(&top.ts).count() >= 1, PATIENCE).await.unwrap();
    for part in ["story", "NaN", "step 4"] {
        assert!(top.visible_text().contains(part), "no {part:?} in {}", top.visible_text());
    }
    let hook = stack
        .webhook
        .wait_for(|w| w.deliveries.iter().any(|d| resolved(&d.body.to_string())), PATIENCE)
        .await
        .unwrap();
    assert_eq!(hook.refused, Vec::<String>::new(), "signed as the receiver expects");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incident_that_ends_during_an_outage_is_still_notified() {
    let stack = stack(false).await;
    stack.slack.script().always("chat.postMessage", Fault::Status(503));
    let rank = stack.warm_run("outage", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
    for step in 5..40 {
        let (loss, grad_norm) = healthy(step);
        rank.step(step, &[("loss", loss), ("grad_norm", grad_norm)]).unwrap();
    }
    stack.pagerduty.wait_for(|pd| pd.alerts[0].state == AlertState::Resolved, PATIENCE).await.unwrap();
    assert_eq!(stack.slack.with(|s| s.posts.len()), 0, "Slack is down");
    stack.slack.script().clear();
    let notified =
        |s: &stepwatch_fakes::Slack| s.top().any(|p| p.visible_text().to_lowercase().contains("resolved"));
    let slack = stack.slack.wait_for(notified, Duration::from_mins(1)).await.unwrap();
    assert_eq!(slack.top().count(), 1, "{:#?}", slack.posts);
}

/// Behind a webhook may be anything that pages: once somebody has the page, the webhook gets that
/// and not the page.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_called_by_webhook_after_the_answer() {
    let stack = stack(true).await;
    stack.webhook.script().always("hook", Fault::Status(503));
    let rank = stack.warm_run("answered", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    let pd = stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
    stack.webhook.wait_for(|w| !w.requests.is_empty(), PATIENCE).await.unwrap();
    let said = stack.alerter.ack(&pd.pages[0].dedup_key, "ann").await.unwrap();
    assert!(said.status.success(), "{said:?}");
    stack.webhook.script().clear();
    let is_ack = |d: &Delivery| d.body["action"] == "ack";
    let hook = stack.webhook.wait_for(|w| w.deliveries.iter().any(is_ack), PATIENCE).await.unwrap();
    // A try that was under way when the answer came has the words of after it.
    assert!(hook.deliveries.iter().all(|d| d.body["page"] == false), "{:#?}", hook.deliveries);
    assert!(hook.deliveries.len() <= 2, "{:#?}", hook.deliveries);
}

/// A silence was set while the page was waiting for its receiver: it goes on waiting, and is
/// notified when the silence ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_waits_is_not_sent_in_a_silence_made_meanwhile() {
    let stack = stack(true).await;
    stack.webhook.script().always("hook", Fault::Status(500));
    let rank = stack.warm_run("quiet-run", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    stack.webhook.wait_for(|w| !w.requests.is_empty(), PATIENCE).await.unwrap();
    let silences = format!("{}/api/v1/silences", stack.alerter.url());
    let wish = serde_json::json!({"matchers": ["run=\"quiet-run\""], "duration": "1h", "created_by": "ann", "comment": "known"});
    let said = http::client().post(&silences).json(&wish).send().await.unwrap();
    assert_eq!(said.status(), 200);
    let silence: serde_json::Value = said.json().await.unwrap();
    // Another page shows that the receiver is back; the one that has waited longer would have come
    // before it.
    stack.webhook.script().clear();
    let loud = stack.warm_run("loud", 3).unwrap();
    loud.step(4, &[("loss", f64::NAN)]).unwrap();
    let of = |w: &stepwatch_fakes::WebhookSink, run: &str| {
        w.deliveries.iter().filter(|d| d.body.to_string().contains(run)).count()
    };
    let hook = stack.webhook.wait_for(|w| of(w, "loud") > 0, PATIENCE).await.unwrap();
    assert_eq!(of(&hook, "quiet-run"), 0, "{:#?}", hook.deliveries);
    let id = silence["id"].as_str().unwrap();
    let said = http::client().delete(format!("{silences}/{id}")).send().await.unwrap();
    assert_eq!(said.status(), 200);
    let hook = stack.webhook.wait_for(|w| of(w, "quiet-run") > 0, PATIENCE).await.unwrap();
    assert_eq!(of(&hook, "quiet-run"), 1, "{:#?}", hook.deliveries);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limited_receiver_is_left_alone_for_as_long_as_it_asks() {
    let stack = stack(false).await;
    let pause = Duration::from_secs(2);
    stack.slack.script().push("chat.postMessage", Fault::TooMany(pause));
    stack.pagerduty.script().push("enqueue", Fault::TooMany(pause));
    let rank = stack.warm_run("limited", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
    stack.slack.wait_for(|s| s.top().count() == 1, PATIENCE).await.unwrap();
    let pd = stack.pagerduty.with(|pd| pd.requests.clone());
    let slack = stack.slack.with(|s| s.requests.clone());
    for requests in [pd, slack] {
        let refused = requests.iter().position(|r| r.answer == Answer::Status(429)).unwrap();
        let gap = requests[refused + 1].at - requests[refused].at;
        assert!(gap >= pause, "asked again after {gap:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_never_came_do_not_double_a_message() {
    let stack = stack(false).await;
    stack.slack.script().push("chat.postMessage", Fault::TakenThenReset);
    stack
        .pagerduty
        .script()
        .push("enqueue", Fault::TakenThenReset)
        .push("enqueue", Fault::TakenThenStatus(502));
    let rank = stack.warm_run("ambiguous", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    let again = |pd: &stepwatch_fakes::PagerDuty| pd.requests.iter().any(|r| r.answer == Answer::Status(202));
    stack.pagerduty.wait_for(again, PATIENCE).await.unwrap();
    assert_eq!(stack.pagerduty.with(|pd| (pd.alerts.len(), pd.pages.len())), (1, 1));
    // Slack has no idempotency key: the message is found by reading back.
    let settled = async || {
        let shown = stack.alerter.cli(&["incidents", "list", "--format", "json"]).await.ok()?;
        let read = stack.slack.with(|s| s.requests.iter().any(|r| r.path.contains("conversations.")));
        (shown.status.success() && read).then_some(())
    };
    poll_until("the message to be looked for", PATIENCE, settled).await.unwrap();
    assert_eq!(stack.slack.with(|s| s.top().count()), 1);
}

/// Posts an alert of this severity, as Prometheus does.
async fn alert(stack: &Stack, name: &str, severity: &str) {
    let alert =
        serde_json::json!([{"labels": {"alertname": name, "severity": severity, "instance": "gpu-1:9100"}}]);
    let url = format!("{}/api/v2/alerts", stack.alerter.url());
    let said = http::client().post(url).json(&alert).send().await.unwrap();
    assert_eq!(said.status(), 200);
}

/// The history of the incident of the alert with this name, as `explain` prints it.
async fn explain(stack: &Stack, name: &str) -> Option<String> {
    let all = stack.alerter.incidents().await.ok()?;
    let about = |i: &&serde_json::Value| i["summary"].as_str().is_some_and(|s| s.contains(name));
    let id = all.iter().find(about)?["id"].as_str()?.to_owned();
    let said = stack.alerter.cli(&["explain", &id]).await.ok()?;
    Some(String::from_utf8_lossy(&said.stdout).into_owned())
}

fn archive(stack: &Stack, archived: bool) {
    stack.slack.change(|s| s.channels.iter_mut().for_each(|c| c.archived = archived));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_whose_chat_is_archived_rings_no_pager_and_waits_for_the_chat() {
    let options = StackOptions { blind: true, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    archive(&stack, true);
    alert(&stack, "SlowDisk", "warning").await;
    let waits = async || explain(&stack, "SlowDisk").await.filter(|said| said.contains("it waits for chat"));
    let said = poll_until("where it waits", PATIENCE, waits).await.unwrap();
    assert!(said.contains("primary wakes somebody, which only a page may"), "{said}");
    assert_eq!(stack.pagerduty.with(|pd| pd.requests.len()), 0, "not a word to the pager");
    // A page of the same alerter does notify.
    alert(&stack, "DeadDisk", "critical").await;
    stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
    // The channel is back: a reload tries it at once.
    archive(&stack, false);
    let reload = http::client().post(format!("{}/-/reload", stack.alerter.url())).send().await.unwrap();
    assert_eq!(reload.status(), 200);
    let notified = |s: &stepwatch_fakes::Slack| s.top().any(|p| p.visible_text().contains("SlowDisk"));
    stack.slack.wait_for(notified, PATIENCE).await.unwrap();
    assert_eq!(stack.pagerduty.with(|pd| pd.pages.len()), 1);
}

/// Its incident goes on in the channel that is configured now.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_given_another_channel_posts_open_incidents_there() {
    let options = StackOptions { blind: true, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    alert(&stack, "DeadDisk", "critical").await;
    stack.slack.wait_for(|s| s.top().count() == 1, PATIENCE).await.unwrap();
    stack.slack.change(|s| s.channels.iter_mut().for_each(|c| c.archived |= c.name == "training"));
    let path = stack.dir.path().join("alerter/alerter.yml");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, config.replace("#training", "#oncall")).unwrap();
    let reload = http::client().post(format!("{}/-/reload", stack.alerter.url())).send().await.unwrap();
    assert_eq!(reload.status(), 200);
    let incident = stack.alerter.incidents().await.unwrap()[0]["id"].as_str().unwrap().to_owned();
    assert!(
        stack.alerter.cli(&["incidents", "ack", &incident, "--by", "ann"]).await.unwrap().status.success()
    );
    let notified = |s: &stepwatch_fakes::Slack| s.top().any(|p| p.channel == "C0ONCALL00");
    let slack = stack.slack.wait_for(notified, PATIENCE).await.unwrap();
    let new: Vec<_> = slack.top().filter(|p| p.channel == "C0ONCALL00").collect();
    assert!(new.len() == 1 && new[0].visible_text().contains("ann"), "{new:#?}");
}

/// Accepted is not called: PagerDuty opens no incident while its service is in maintenance, and its
/// webhooks show that.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_which_pagerduty_calls_nobody_goes_to_others_too() {
    use stepwatch_fakes::{FakeWebhook, PagerDuty, Standing, WebhookSink, pagerduty_signature};
    let phone = FakeWebhook::start().await;
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, WebhookSink::SECRET).unwrap();
    let (url, secret) = (phone.url(), secret.display());
    let options = StackOptions {
        alerter: "watchdog: {page_age: 10s}\n".into(),
        receivers: format!(
            "  - {{name: phone, wakes: true, webhook: {{url: \"{url}\", secret_file: {secret}}}}}\n"
        ),
        inbound: vec![Inbound::PagerDuty],
        blind: true,
        ..StackOptions::default()
    };
    let stack = Stack::start_with(options).await.unwrap();
    alert(&stack, "DeadDisk", "critical").await;
    let pd = stack.pagerduty.wait_for(|pd| pd.hooks.len() == 1, PATIENCE).await.unwrap();
    let body = pd.hooks[0].to_string();
    let request = http::client()
        .post(format!("{}/pagerduty/webhook", stack.alerter.url()))
        .header("content-type", "application/json")
        .header("x-pagerduty-signature", pagerduty_signature(&[PagerDuty::WEBHOOK_SECRET], body.as_bytes()));
    assert_eq!(request.body(body).send().await.unwrap().status(), 200);

    stack.pagerduty.change(|pd| pd.standing = Standing::InMaintenance);
    alert(&stack, "DeadNode", "critical").await;
    let phone = phone
        .wait_for(|w| w.deliveries.iter().any(|d| d.body.to_string().contains("DeadNode")), PATIENCE)
        .await
        .unwrap();
    assert!(phone.deliveries.iter().all(|d| !d.body.to_string().contains("DeadDisk")), "it called somebody");
    let why =
        "PagerDuty accepted the event but opened no incident: is the service disabled or in maintenance?";
    let said = explain(&stack, "DeadNode").await.unwrap();
    assert!(said.contains(why), "{said}");
    stack.slack.wait_for(|s| s.posts.iter().any(|p| p.visible_text().contains(why)), PATIENCE).await.unwrap();
    let calls = stack.pagerduty.with(|pd| {
        let about =
            |r: &&stepwatch_fakes::Received| r.json()["payload"]["summary"].to_string().contains("DeadNode");
        let calls = pd.requests.iter().filter(about).filter(|r| r.json()["event_action"] == "trigger");
        calls.map(|r| r.json()["dedup_key"].to_string()).collect::<std::collections::BTreeSet<_>>()
    });
    assert_eq!(calls.len(), 1, "the service itself is not called again: {calls:?}");
}

/// Two teams on one alerter: when nobody of one can be notified, the other one is not woken with
/// its data.
#[tokio::test(flavor = "multi_thread")]
async fn the_outage_of_one_team_stays_within_it_and_then_goes_to_whom_the_operator_named() {
    use stepwatch_fakes::{FakeWebhook, WebhookSink};
    let hooks = [FakeWebhook::start().await, FakeWebhook::start().await, FakeWebhook::start().await];
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, WebhookSink::SECRET).unwrap();
    let names = ["a-lead", "b-pager", "ops"];
    let receivers = names.iter().zip(&hooks).map(|(name, hook)| {
        let (url, secret) = (hook.url(), secret.display());
        format!("  - {{name: {name}, wakes: true, webhook: {{url: \"{url}\", secret_file: {secret}}}}}\n")
    });
    let alerter = "resolve_after: 200ms\nteams:\n  - {name: a, match: ['run=~\"a-.*\"'], notify: [primary], fallback: [a-lead]}\n  \
                   - {name: b, match: ['run=~\"b-.*\"'], notify: [b-pager]}\nfallback: [ops]\n";
    let options = StackOptions {
        alerter: alerter.into(),
        receivers: receivers.collect(),
        levels: Some("      - {after: 0s, notify: [chat, primary]}\n".into()),
        ..StackOptions::default()
    };
    let stack = Stack::start_with(options).await.unwrap();
    archive(&stack, true);
    stack.pagerduty.script().always("enqueue", Fault::NotOk("Invalid routing key".into()));
    let [lead, b, ops] = &hooks;
    let rank = stack.warm_run("a-1", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    lead.wait_for(|w| !w.deliveries.is_empty(), PATIENCE).await.unwrap();
    assert_eq!(ops.with(|w| w.requests.len()), 0, "whoever is nearest was notified");
    // Neither is there anybody left in the team.
    lead.script().always("hook", Fault::NotOk("gone".into()));
    let rank = stack.warm_run("a-2", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    ops.wait_for(|w| w.deliveries.iter().any(|d| d.body.to_string().contains("a-2")), PATIENCE)
        .await
        .unwrap();
    assert_eq!(b.with(|w| w.requests.len()), 0, "not a word to the other team");
}

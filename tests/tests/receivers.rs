//! Receivers besides Slack and PagerDuty, and who watches the watcher, through the real alerter.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use serde_json::Value;
use stepwatch_fakes::{FakePulse, FakeSmtp, Fault, PagerDuty, Pulse, Slack};
use stepwatch_tests::peers::{self, Alertmanager};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::trainer::{Rank, healthy};
use stepwatch_tests::{Inbound, Stack, StackOptions, http, poll_until};

fn fire(stack: &Stack, run: &str) -> Rank {
    let rank = stack.warm_run(run, 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    rank
}

fn recover(rank: &Rank) {
    for step in 5..40 {
        let (loss, grad_norm) = healthy(step);
        rank.step(step, &[("loss", loss), ("grad_norm", grad_norm)]).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mailbox_shows_one_conversation() {
    let (relay, dir) = (FakeSmtp::start().await, tempfile::tempdir().unwrap());
    let password = dir.path().join("password");
    std::fs::write(&password, FakeSmtp::PASSWORD).unwrap();
    let receivers = format!(
        "  - name: mail\n    email: {{to: [oncall@example.com], from: stepwatch@example.com, smarthost: \"{}\", tls: none, \
         username: {}, password_file: {}}}\n",
        relay.addr(),
        FakeSmtp::USER,
        password.display()
    );
    let alerter = "resolve_after: 200ms\n".into();
    let options = StackOptions { alerter, receivers, also: vec!["mail".into()], ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let rank = fire(&stack, "mailed");
    relay.wait_for(|s| !s.mails.is_empty(), PATIENCE).await.unwrap();
    recover(&rank);
    let over = |s: &stepwatch_fakes::Smtp| s.mails.last().is_some_and(|m| m.text.starts_with("RESOLVED"));
    let seen = relay.wait_for(over, PATIENCE).await.unwrap();
    assert_eq!(seen.refused, Vec::<String>::new());
    let first = &seen.mails[0];
    assert!(first.header("subject").contains("mailed") && first.text.starts_with("PAGE"), "{first:#?}");
    assert!(seen.mails[1..].iter().all(|m| m.header("references") == first.id()));
}

/// The channel is given by name, and the app has the scopes of `docs/receivers.md` and no others.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_post_to_slack_whose_answer_is_lost_stands_once() {
    let public = ["chat:write", "channels:history", "channels:read"];
    let private = ["chat:write", "groups:history", "groups:read"];
    for (is_private, scopes) in [(false, public), (true, private)] {
        let alerter = "resolve_after: 200ms\n".into();
        let stack = Stack::start_with(StackOptions { alerter, ..StackOptions::default() }).await.unwrap();
        stack.slack.change(|s| {
            s.scopes = scopes.iter().map(|&scope| scope.to_owned()).collect();
            s.channels.iter_mut().for_each(|c| c.private = is_private);
        });
        stack.slack.script().push("chat.postMessage", Fault::TakenThenReset);
        let rank = fire(&stack, "lost");
        recover(&rank);
        let over = |s: &Slack| s.top().any(|p| p.visible_text().contains("RESOLVED"));
        let seen = stack.slack.wait_for(over, PATIENCE).await.unwrap();
        assert_eq!(stack.slack.script().pending(), 0, "the first answer was lost");
        let texts: Vec<_> = seen.top().map(|p| p.text.clone()).collect();
        assert_eq!(texts.len(), 1, "private: {is_private}: {texts:#?}");
    }
}

/// Templates of the operator reach a chat and a mailbox, each escaped as it must be; for one that
/// fails the built-in text is sent.
#[tokio::test(flavor = "multi_thread")]
async fn own_words_arrive_escaped_and_a_failing_template_silences_nobody() {
    let (relay, dir) = (FakeSmtp::start().await, tempfile::tempdir().unwrap());
    let password = dir.path().join("password");
    std::fs::write(&password, FakeSmtp::PASSWORD).unwrap();
    let receivers = format!(
        "  - name: mail\n    templates: {{title: \"{{{{ 1 // (run.name == 'test-run')|int }}}}\"}}\n    email: {{to: [oncall@example.com], \
         from: stepwatch@example.com, smarthost: \"{}\", tls: none, username: {}, password_file: {}}}\n",
        relay.addr(),
        FakeSmtp::USER,
        password.display()
    );
    let alerter = r#"templates:
  title: "{{ incident.name }} <!channel> of <b>{{ incident.place }}</b>"
  summary: "{{ summary }} *Reason*: {{ reason.code }}."
  links: [{text: Board, href: "https://grafana.example.com/?run={{ run.name|urlencode }}"}]
"#;
    let options = StackOptions {
        alerter: alerter.into(),
        receivers,
        also: vec!["mail".into()],
        ..StackOptions::default()
    };
    let stack = Stack::start_with(options).await.unwrap();
    let _rank = fire(&stack, "worded");
    let seen = stack.slack.wait_for(|s| s.top().next().is_some(), PATIENCE).await.unwrap();
    let post = seen.top().next().unwrap();
    let sent = format!("{:?}", post.blocks);
    assert!(post.visible_text().contains("*Reason*: first."), "{sent}");
    assert!(sent.contains("https://grafana.example.com/?run=worded"), "{sent}");
    assert!(!format!("{sent}{}", post.text).contains("<!channel>"), "{sent}");
    let mails = relay.wait_for(|s| !s.mails.is_empty(), PATIENCE).await.unwrap().mails;
    assert!(mails[0].header("subject").starts_with("PAGE worded: "), "our own title: {:#?}", mails[0]);
    assert!(mails[0].text.contains("*Reason*: first."), "{:#?}", mails[0]);
    let all = stack.alerter.incidents().await.unwrap();
    let url = format!("{}/api/v1/incidents/{}", stack.alerter.url(), all[0]["id"].as_str().unwrap());
    let detail = http::get_json(&url).await.unwrap();
    let failed = "templates.title failed, so that the built-in text is sent";
    let timeline = detail["timeline"].as_array().unwrap();
    assert!(timeline.iter().any(|e| e["what"].as_str().unwrap().contains(failed)), "{timeline:#?}");
}

/// The alert of `run` in a real Alertmanager.
async fn alert(am: &Alertmanager, run: &str) -> Option<Value> {
    let all = http::get_json(&am.alerts_url()).await.ok()?;
    all.as_array()?.iter().find(|a| a["labels"]["run"] == run).cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_alertmanager_keeps_the_alert_for_as_long_as_it_stands() {
    let Some(program) = peers::alertmanager() else { return };
    let dir = tempfile::tempdir().unwrap();
    let am = Alertmanager::start(&program, dir.path()).await.unwrap();
    // The second instance is down: the first gets it all the same.
    let receivers = format!(
        "  - name: am\n    alertmanager: {{urls: [\"http://127.0.0.1:1\", \"http://{}\"], resend_every: 5s, labels: {{cluster: a}}}}\n",
        am.addr
    );
    let alerter = "resolve_after: 200ms\n".into();
    let options = StackOptions { alerter, receivers, also: vec!["am".into()], ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let rank = fire(&stack, "forwarded");
    let first = poll_until("the alert", PATIENCE, async || alert(&am, "forwarded").await).await.unwrap();
    assert_eq!(first["labels"]["alertname"], "StepwatchNonfinite");
    assert_eq!(
        (first["labels"]["severity"].as_str(), first["labels"]["cluster"].as_str()),
        (Some("page"), Some("a"))
    );
    assert_eq!(first["status"]["state"], "active");
    let longer =
        async || alert(&am, "forwarded").await.filter(|a| a["endsAt"].as_str() > first["endsAt"].as_str());
    let again = poll_until("the alert sent again", PATIENCE, longer).await.unwrap();
    assert_eq!(again["startsAt"], first["startsAt"]);
    recover(&rank);
    let gone = async || alert(&am, "forwarded").await.is_none().then_some(());
    poll_until("the alert to end", PATIENCE, gone).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heart_beats_while_messages_can_be_sent() {
    let (switch, dir) = (FakePulse::start().await, tempfile::tempdir().unwrap());
    let url = dir.path().join("url");
    std::fs::write(&url, format!("{}{}", switch.url(), Pulse::PATH)).unwrap();
    let alerter = format!("watchdog: {{url_file: {}, interval: 5s}}\n", url.display());
    let stack = Stack::start_with(StackOptions { alerter, ..StackOptions::default() }).await.unwrap();
    let beats = |s: &Pulse| s.beats.len();
    switch.wait_for(|s| beats(s) >= 2, PATIENCE).await.unwrap();
    // Stopped as a machine that hangs is: the last beat that was on its way may arrive.
    stack.alerter.daemon.freeze().unwrap();
    let before = switch.with(beats);
    assert!(switch.wait_for(|s| beats(s) > before + 1, Duration::from_secs(8)).await.is_err());
    stack.alerter.daemon.thaw().unwrap();
    let now = switch.with(beats);
    switch.wait_for(|s| beats(s) > now, PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_not_taken_is_sent_by_all_others_and_no_secret_is_seen() {
    let inbound = vec![Inbound::Slack, Inbound::PagerDuty];
    let alerter = "watchdog: {page_age: 10s}\n".into();
    let stack =
        Stack::start_with(StackOptions { alerter, inbound, ..StackOptions::default() }).await.unwrap();
    stack.pagerduty.script().always("enqueue", Fault::Status(503));
    let _rank = fire(&stack, "stuck");
    // An incident of the alerter itself, by the receivers that work.
    let notified = |s: &Slack| s.posts.iter().any(|p| p.visible_text().contains("has not taken a page"));
    let slack = stack.slack.wait_for(notified, PATIENCE).await.unwrap();
    assert_eq!(slack.top().count(), 2, "the page itself, and that PagerDuty does not take it");
    stack.pagerduty.script().clear();
    stack
        .pagerduty
        .wait_for(|pd| pd.pages.iter().any(|p| p.summary.contains("stuck")), PATIENCE)
        .await
        .unwrap();
    let shown = stack.alerter.cli(&["incidents", "list", "--format", "json"]).await.unwrap();
    let seen = [
        stack.alerter.daemon.log().join("\n"),
        stack.alerter.metrics().await.unwrap(),
        String::from_utf8_lossy(&shown.stdout).into_owned(),
        http::get(&format!("{}/api/v1/status", stack.alerter.url())).await.unwrap(),
    ];
    let secrets = [Slack::TOKEN, Slack::SIGNING_SECRET, PagerDuty::ROUTING_KEY, PagerDuty::WEBHOOK_SECRET];
    for secret in secrets {
        assert!(seen.iter().all(|text| !text.contains(secret)), "{secret}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_and_restarts_are_shown_beside_incidents_and_wake_nobody() {
    let stack = Stack::start_with(StackOptions {
        inbound: vec![Inbound::PagerDutyChanges],
        ..StackOptions::default()
    })
    .await
    .unwrap();
    let rank = stack.warm_run("changed", 30).unwrap();
    let notified = |pd: &PagerDuty, text: &str| {
        pd.changes.iter().any(|c| c["payload"]["summary"].as_str().is_some_and(|s| s.contains(text)))
    };
    stack.pagerduty.wait_for(|pd| notified(pd, "changed started at step"), PATIENCE).await.unwrap();
    rank.send_raw(br#"{"v":1,"k":"step","run":"changed","rank":0,"attempt":1,"step":10,"m":{"loss":2.5}}"#)
        .unwrap();
    stack
        .pagerduty
        .wait_for(|pd| notified(pd, "changed restarted (attempt 1), back from step"), PATIENCE)
        .await
        .unwrap();
    assert_eq!(stack.pagerduty.with(|pd| pd.pages.len()), 0);
}

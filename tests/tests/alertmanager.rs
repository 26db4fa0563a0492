//! As their Alertmanager: a real Prometheus fires the rules of this project through us, a real
//! amtool lists and silences.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use serde_json::{Value, json};
use stepwatch_fakes::PagerDuty;
use stepwatch_tests::peers::{self, Prometheus, PrometheusOptions};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, Stack, StackOptions, daemon, http, poll_until, trainer};

/// What amtool answers, as JSON where that is asked for.
async fn amtool(program: &Path, url: &str, args: &[&str]) -> String {
    let mut amtool = daemon::command(program);
    // Not the configuration of the user who runs this.
    amtool.env("HOME", "/nonexistent").arg(format!("--alertmanager.url={url}")).args(args).kill_on_drop(true);
    let out = tokio::time::timeout(PATIENCE, amtool.output()).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

async fn post_alerts(url: &str, alerts: &Value) {
    let answer = http::client().post(format!("{url}/api/v2/alerts")).json(alerts).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
}

fn names(alerts: &str) -> Vec<String> {
    let alerts: Value = serde_json::from_str(alerts).unwrap();
    let name = |a: &Value| a["labels"]["alertname"].as_str().unwrap().to_owned();
    alerts.as_array().unwrap().iter().map(name).collect()
}

fn pages_about<'a>(pd: &'a PagerDuty, what: &str) -> Vec<&'a str> {
    pd.pages.iter().map(|p| p.summary.as_str()).filter(|s| s.contains(what)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn amtool_lists_silences_and_sets_their_end() {
    let Some(program) = peers::amtool() else { return };
    let stack = Stack::start().await.unwrap();
    let url = stack.alerter.url();
    let alert = |name: &str| {
        json!([{"labels": {"alertname": name, "severity": "critical", "instance": "gpu-1:9100"},
                                     "annotations": {"summary": "90 % full"}}])
    };

    // Silenced before it fires: kept, shown as such, notified to nobody.
    let id = amtool(
        &program,
        &url,
        &[
            "silence",
            "add",
            "alertname=DiskFull",
            "instance=~gpu-.*",
            "-c",
            "new disks",
            "-a",
            "alice",
            "-d",
            "1h",
        ],
    )
    .await;
    let id = id.trim();
    post_alerts(&url, &alert("DiskFull")).await;
    post_alerts(&url, &alert("FanStopped")).await;
    stack.pagerduty.wait_for(|pd| !pages_about(pd, "FanStopped").is_empty(), PATIENCE).await.unwrap();
    let silences = amtool(&program, &url, &["silence", "query", "-o", "json"]).await;
    let silences: Value = serde_json::from_str(&silences).unwrap();
    assert_eq!((&silences[0]["id"], &silences[0]["createdBy"]), (&json!(id), &json!("alice")));
    assert_eq!(names(&amtool(&program, &url, &["alert", "query", "-o", "json"]).await), ["FanStopped"]);
    let quiet = amtool(&program, &url, &["alert", "query", "--silenced", "-o", "json"]).await;
    assert_eq!(names(&quiet), ["DiskFull"]);
    let one =
        amtool(&program, &url, &["alert", "query", "--silenced", "instance=~\"gpu-.*\"", "-o", "extended"])
            .await;
    assert!(one.contains("DiskFull") && one.contains("suppressed"), "{one}");
    for table in [["alert", "query"], ["silence", "query"], ["config", "show"]] {
        assert!(!amtool(&program, &url, &table).await.is_empty(), "{table:?}");
    }
    let shown = stack.alerter.cli(&["silences", "list"]).await.unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(id) && shown.contains("1 open") && shown.contains("new disks"), "{shown}");
    assert_eq!(stack.pagerduty.with(|pd| pages_about(pd, "DiskFull").len()), 0);

    // It ends while the alert fires: now it is notified, once.
    amtool(&program, &url, &["silence", "expire", id]).await;
    stack.pagerduty.wait_for(|pd| !pages_about(pd, "DiskFull").is_empty(), PATIENCE).await.unwrap();
    let over = amtool(&program, &url, &["silence", "query", "--expired", "-o", "json"]).await;
    assert!(over.contains(id), "{over}");
    assert_eq!(stack.pagerduty.with(|pd| pd.pages.len()), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn amtool_tests_routes_and_names_all_receivers() {
    let Some(program) = peers::amtool() else { return };
    let alerter = r#"
teams:
  - {name: research, match: ['run=~"llama-.*"'], notify: [chat]}
  - {name: infra, match: ['node=~"gpu.+"'], policy: default}
  - {name: idle, match: ['run="toy"']}
"#;
    let options = StackOptions { alerter: alerter.into(), blind: true, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let url = stack.alerter.url();
    // The policy of pages notifies both at once, and the second again.
    for (labels, receivers) in [
        (&["severity=page"][..], "chat,primary"),
        (&["severity=page", "run=llama-1"], "chat,primary"),
        (&["severity=ticket", "team=infra"], "chat"),
        (&["severity=info"], "nobody"),
        (&["severity=none", "run=llama-1"], "chat"),
        (&["severity=none", "run=llama-1", "team=infra"], "chat,primary"),
        (&["severity=none", "run=toy", "node=gpu-1"], "chat,primary"),
        (&["severity=none"], "chat,primary"),
    ] {
        let args = [&["config", "routes", "test"], labels].concat();
        assert_eq!(amtool(&program, &url, &args).await.trim(), receivers, "{labels:?}");
    }
    // What a route has taken is not left to the rest, also if that route has `continue`.
    let config = stack.alerter.config_file();
    let text = std::fs::read_to_string(&config).unwrap();
    let log = "routes:\n  - {match: ['kind=\"hang\"', 'run!=\"toy\"'], notify: [chat], continue: true}";
    std::fs::write(&config, text.replace("routes:", log)).unwrap();
    let reload = http::client().post(format!("{url}/-/reload")).send().await.unwrap();
    assert_eq!(reload.status().as_u16(), 200);
    for (labels, receivers) in [
        (&["severity=page", "kind=hang"][..], "chat,chat,primary"),
        (&["severity=none", "kind=hang", "team=infra"], "chat"),
        (&["severity=none", "kind=hang", "team=infra", "run=toy"], "chat,primary"),
        (&["severity=none", "kind=stall", "team=research"], "chat"),
    ] {
        let args = [&["config", "routes", "test"], labels].concat();
        assert_eq!(amtool(&program, &url, &args).await.trim(), receivers, "{labels:?}");
    }
    let verify = ["config", "routes", "test", "--verify.receivers=chat,primary", "severity=page"];
    amtool(&program, &url, &verify).await;
    let tree = amtool(&program, &url, &["config", "routes", "show"]).await;
    assert!(tree.contains("chat,primary") && tree.contains("severity=\"ticket\""), "{tree}");
}

/// Prometheus has us as its Alertmanager. The rules are for runs that no alerter follows, so ours
/// reads no exporter.
#[tokio::test(flavor = "multi_thread")]
async fn prometheus_fires_our_rules_through_our_escalation() {
    let Some(program) = peers::prometheus() else { return };
    let options = StackOptions { blind: true, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let exporter: &Exporter = &stack.exporter;
    let dir = stack.dir.path().join("prometheus");
    std::fs::create_dir(&dir).unwrap();
    let peers_of =
        PrometheusOptions { rules: true, alertmanager: Some(stack.alerter.addr), ..Default::default() };
    let prometheus = Prometheus::start_with(&program, &dir, &[exporter.addr], "1s", peers_of).await.unwrap();
    let rank = trainer::warm_run(&exporter.ingest(), "busy", 50).unwrap();
    rank.step(51, &[("loss", f64::NAN)]).unwrap();
    prometheus.wait_for(r#"train_nonfinite_total{run="busy"} > 0"#).await.unwrap();
    // An increase is between two scrapes.
    rank.step(52, &[("loss", f64::NAN)]).unwrap();
    let incident = poll_until("an incident of the alert", PATIENCE, async || {
        stack.alerter.incidents().await.ok()?.into_iter().find(|i| i["run"] == "busy")
    })
    .await
    .unwrap();
    assert_eq!(
        (&incident["kind"], &incident["severity"]),
        (&json!("nonfinite"), &json!("page")),
        "{incident}"
    );
    let pd = stack.pagerduty.wait_for(|pd| !pages_about(pd, "busy").is_empty(), PATIENCE).await.unwrap();
    assert_eq!(pages_about(&pd, "busy").len(), 1, "{:?}", pd.pages);
    // Prometheus sends it again and again; it stays one page. Each of these is a round of its own.
    let received = async || {
        let page = stack.alerter.metrics().await.ok()?;
        stepwatch_tests::exposition::value(&page, "stepwatch_alerter_alerts_received_total", &[])
    };
    let before = received().await.unwrap();
    poll_until("Prometheus to send it again", PATIENCE, async || received().await.filter(|n| *n > before))
        .await
        .unwrap();
    assert_eq!(stack.pagerduty.with(|pd| pages_about(pd, "busy").len()), 1);
}

fn full(service: &str, more: &Value) -> Value {
    let mut alert = json!({
        "labels": {"alertname": "DiskFull", "severity": "critical", "service": service},
        "annotations": {"summary": "90 % full"},
    });
    alert.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!([alert])
}

async fn ended(stack: &Stack) -> Value {
    poll_until("an end", PATIENCE, async || {
        stack.alerter.incidents().await.ok()?.into_iter().find(|i| i["state"] == "resolved")
    })
    .await
    .unwrap()
}

/// How it ended, in every text: the list, the message, the history, the account.
#[tokio::test(flavor = "multi_thread")]
async fn whether_the_sender_ended_it_or_stopped_sending_is_shown() {
    for silent in [false, true] {
        let alerter = "resolve_after: 1s\nalerts: {resolve_timeout: 10s}\n".to_owned();
        let stack = Stack::start_with(StackOptions { blind: true, alerter, ..StackOptions::default() })
            .await
            .unwrap();
        let url = stack.alerter.url();
        let day = json!({"endsAt": "2099-01-01T00:00:00Z"});
        let first = if silent { json!({}) } else { day };
        post_alerts(&url, &full("pay", &first)).await;
        stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
        if !silent {
            post_alerts(&url, &full("pay", &json!({"endsAt": "2020-01-01T00:00:00Z"}))).await;
        }
        let incident = ended(&stack).await;
        let (word, title, said) = if silent {
            ("stale", "STALE", "nothing has been heard of it since")
        } else {
            ("sender", "RESOLVED", "its sender said that it is over")
        };
        assert_eq!(incident["ended"], word, "{incident}");
        assert_eq!(incident["silent_since"].is_string(), silent, "{incident}");
        let is_posted = |s: &stepwatch_fakes::Slack| s.posts.iter().any(|p| p.visible_text().contains(title));
        let slack = stack.slack.wait_for(is_posted, PATIENCE).await.unwrap();
        assert!(slack.posts.iter().any(|p| p.visible_text().contains(said)), "{:?}", slack.posts);
        let is_over = |pd: &PagerDuty| pd.requests.iter().any(|r| r.json()["event_action"] == "resolve");
        let pd = stack.pagerduty.wait_for(is_over, PATIENCE).await.unwrap();
        let last = pd.requests.iter().rfind(|r| r.json()["event_action"] == "resolve").unwrap().json();
        let summary = last["payload"]["summary"].as_str().unwrap();
        assert!(summary.starts_with(title) && summary.contains(said), "{summary}");
        let id = incident["id"].as_str().unwrap();
        for args in [["explain", id].as_slice(), &["incidents", "postmortem", id], &["incidents", "show", id]]
        {
            let text = stack.alerter.cli(args).await.unwrap();
            let text = String::from_utf8_lossy(&text.stdout).into_owned();
            assert!(text.contains(said), "{args:?}: {text}");
        }
    }
}

/// Two services have the same trouble: who acknowledged the first is notified of the second.
#[tokio::test(flavor = "multi_thread")]
async fn another_outage_in_an_acknowledged_group_rings() {
    let stack = Stack::start_with(StackOptions { blind: true, ..StackOptions::default() }).await.unwrap();
    let (url, day) = (stack.alerter.url(), json!({"endsAt": "2099-01-01T00:00:00Z"}));
    post_alerts(&url, &full("checkout", &day)).await;
    stack.pagerduty.wait_for(|pd| pd.pages.len() == 1, PATIENCE).await.unwrap();
    let id = stack.alerter.incidents().await.unwrap()[0]["id"].as_str().unwrap().to_owned();
    stack.alerter.cli(&["incidents", "ack", &id, "--by", "sam"]).await.unwrap();
    post_alerts(&url, &full("checkout", &day)).await;
    post_alerts(&url, &full("pay", &day)).await;
    let pd = stack.pagerduty.wait_for(|pd| pd.pages.len() == 2, PATIENCE).await.unwrap();
    let summary = &pd.pages[1].summary;
    assert!(summary.contains("DiskFull +1 new"), "{summary}");
    let incidents = stack.alerter.incidents().await.unwrap();
    assert_eq!((incidents.len(), &incidents[0]["state"]), (1, &json!("open")), "{incidents:?}");
}

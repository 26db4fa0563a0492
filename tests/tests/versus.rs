//! Four ways in which Alertmanager loses or doubles what people rely on, each done to a real one
//! and to us: the same requests, the same receivers, the same moment of death. It fails, we do not.
//!
//! Both sides are asserted. An Alertmanager that does not fail any more fails the test, because the
//! claim about it would be untrue.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use stepwatch_fakes::{FakePagerDuty, FakeSlack, Fault, PagerDuty, Slack};
use stepwatch_tests::peers::{self, Alertmanager};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Stack, StackOptions, exposition, http, poll_until, say};
use tempfile::TempDir;

/// The shortest wait that Alertmanager can be configured to; what it has notified is not notified
/// again while the test runs.
const QUICK: &str = "group_wait: 0s, group_interval: 1s, repeat_interval: 1h";
/// As it comes, but for the wait before the first message.
const DEFAULT: &str = "group_wait: 0s, group_interval: 5m, repeat_interval: 4h";
/// Slack's incoming webhook and PagerDuty, and nobody else.
const LEVELS: &str = "      - {after: 0s, notify: [hook, primary]}\n";

/// One of the two, and whom it notifies.
struct Side {
    who: Who,
    slack: FakeSlack,
    pagerduty: FakePagerDuty,
    _dir: TempDir,
}

enum Who {
    Alertmanager(Box<Alertmanager>),
    Us(Box<Stack>),
}

/// What both were asked to do and did.
struct Row {
    failure: &'static str,
    theirs: String,
    ours: String,
}

impl Side {
    async fn alertmanager(program: &Path, timing: &str) -> Self {
        let (slack, pagerduty) = (FakeSlack::start().await, FakePagerDuty::start().await);
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "route: {{receiver: all, group_by: [alertname], {timing}}}\nreceivers:\n  - name: all\n    slack_configs:\n      \
             - {{api_url: \"{}{}\", channel: \"#training\", send_resolved: true}}\n    pagerduty_configs:\n      \
             - {{routing_key: {}, url: \"{}/v2/enqueue\", send_resolved: true}}\n",
            slack.url(),
            Slack::WEBHOOK,
            PagerDuty::ROUTING_KEY,
            pagerduty.url(),
        );
        let who = Alertmanager::start_with(program, dir.path(), &config).await.unwrap();
        let who = Who::Alertmanager(Box::new(who));
        Self { who, slack, pagerduty, _dir: dir }
    }

    async fn us() -> Self {
        let slack = FakeSlack::start().await;
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("url");
        std::fs::write(&url, format!("{}{}", slack.url(), Slack::WEBHOOK)).unwrap();
        let options = StackOptions {
            blind: true,
            alerter: "resolve_after: 0s\n".into(),
            levels: Some(LEVELS.into()),
            receivers: format!("  - name: hook\n    slack: {{webhook_url_file: {}}}\n", url.display()),
            ..StackOptions::default()
        };
        let mut stack = Stack::start_with(options).await.unwrap();
        let pagerduty = core::mem::replace(&mut stack.pagerduty, FakePagerDuty::start().await);
        Self { who: Who::Us(Box::new(stack)), slack, pagerduty, _dir: dir }
    }

    fn url(&self) -> String {
        match &self.who {
            Who::Alertmanager(am) => am.url(),
            Who::Us(stack) => stack.alerter.url(),
        }
    }

    /// `kill -9`, and another life on the same disk.
    async fn kill(&mut self) {
        match &mut self.who {
            Who::Alertmanager(am) => am.kill_and_restart().await.unwrap(),
            Who::Us(stack) => {
                stack.alerter.daemon.kill().await.unwrap();
                stack.alerter.restart(None).await.unwrap();
                stack.alerter.ready().await.unwrap();
            }
        }
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let answer = http::client().post(format!("{}{path}", self.url())).json(body).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default()
    }

    /// As Prometheus posts it.
    async fn post_alert(&self, name: &str, fires: bool) {
        let now = jiff::Timestamp::now();
        let minutes = |n: i64| now + jiff::SignedDuration::from_mins(n);
        let alert = json!({
            "labels": {"alertname": name, "severity": "critical", "instance": "gpu-7:9100"},
            "annotations": {"summary": format!("{name} on gpu-7")},
            "startsAt": minutes(-1), "endsAt": if fires { minutes(5) } else { now },
        });
        self.post("/api/v2/alerts", &json!([alert])).await;
    }

    async fn silences(&self) -> usize {
        let all = http::get_json(&format!("{}/api/v2/silences", self.url())).await.unwrap();
        all.as_array().unwrap().iter().filter(|s| s["status"]["state"] == "active").count()
    }

    fn messages(&self, about: &str) -> usize {
        self.slack.with(|s| s.top().filter(|p| p.visible_text().contains(about)).count())
    }

    fn pages(&self, about: &str) -> usize {
        self.pagerduty.with(|pd| pd.pages.iter().filter(|p| p.summary.contains(about)).count())
    }

    async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        poll_until(what, PATIENCE, async || done(self).then_some(())).await.unwrap();
    }

    /// Another alert gets through: whatever was due before it has been notified, too.
    async fn gets_through(&self, name: &str) {
        self.post_alert(name, true).await;
        self.until(name, |s| s.messages(name) > 0 && s.pages(name) > 0).await;
    }
}

/// A silence that was confirmed, and a crash.
async fn a_silence(mut side: Side) -> usize {
    let now = jiff::Timestamp::now();
    let matcher = json!({"name": "alertname", "value": "Disk", "isRegex": false, "isEqual": true});
    let wish = json!({"matchers": [matcher], "startsAt": now, "endsAt": now + jiff::SignedDuration::from_hours(1),
                      "createdBy": "ann", "comment": "new disks"});
    let said = side.post("/api/v2/silences", &wish).await;
    assert!(said["silenceID"].is_string(), "{said}");
    assert_eq!(side.silences().await, 1);
    side.kill().await;
    let left = side.silences().await;
    side.post_alert("Disk", true).await;
    side.gets_through("Other").await;
    if left == 0 {
        side.until("the page that nobody wanted", |s| s.pages("Disk") == 1).await;
    } else {
        assert_eq!((side.messages("Disk"), side.pages("Disk")), (0, 0));
    }
    left
}

/// A message that was delivered, a crash, and the alert sent again.
async fn a_message(mut side: Side) -> usize {
    side.gets_through("Fan").await;
    if let Who::Us(stack) = &side.who {
        // It has to learn that it arrived.
        let delivered = async || {
            let incident = stack.alerter.incidents().await.ok()?.into_iter().next()?;
            let url = format!("{}/api/v1/incidents/{}", stack.alerter.url(), incident["id"].as_str()?);
            let all = http::get_json(&url).await.ok()?["deliveries"].as_array()?.clone();
            all.iter().all(|d| d["state"] == "delivered").then_some(())
        };
        poll_until("the receipts", PATIENCE, delivered).await.unwrap();
    }
    side.kill().await;
    side.post_alert("Fan", true).await;
    if matches!(side.who, Who::Alertmanager(_)) {
        let twice =
            poll_until("a second message", PATIENCE, async || (side.messages("Fan") == 2).then_some(()));
        let _ = twice.await;
    }
    side.gets_through("Other").await;
    side.messages("Fan")
}

/// It has ended its attempts to notify Slack of something.
async fn gave_up(am: &Alertmanager) -> Option<f64> {
    let page = http::get(&format!("{}/metrics", am.url())).await.ok()?;
    let name = "alertmanager_notifications_failed_total";
    exposition::value(&page, name, &[("integration", "slack")]).filter(|n| *n > 0.0)
}

/// A chat that fails until the alert is over.
async fn an_outage(side: Side) -> usize {
    side.slack.script().always("webhook", Fault::Status(500));
    side.post_alert("Brief", true).await;
    side.until("attempts", |s| s.slack.with(|slack| slack.requests.len()) >= 2).await;
    side.post_alert("Brief", false).await;
    let over = async || match &side.who {
        Who::Alertmanager(am) => {
            // While it still tries, an alert that is over is sent when the receiver comes back: for
            // the 10 s of its shortest limit. An outage of a minute is longer than that.
            gave_up(am).await?;
            let groups = http::get_json(&format!("{}/groups", am.alerts_url())).await.ok()?;
            groups.as_array()?.is_empty().then_some(())
        }
        Who::Us(stack) => {
            let all = stack.alerter.incidents().await.ok()?;
            all.iter().all(|i| i["state"] == "resolved").then_some(())
        }
    };
    poll_until("the alert to be over", PATIENCE, over).await.unwrap();
    side.slack.script().clear();
    side.gets_through("Other").await;
    if matches!(side.who, Who::Us(_)) {
        side.until("the message that was owed", |s| s.messages("Brief") > 0).await;
    }
    usize::from(side.messages("Brief") > 0)
}

/// A receiver that asks for a pause of a second.
async fn a_pause(side: Side) -> (usize, Option<f64>) {
    side.slack.script().push("webhook", Fault::TooMany(std::time::Duration::from_secs(1)));
    side.post_alert("Hot", true).await;
    match &side.who {
        Who::Alertmanager(am) => {
            let _ = poll_until("it to give up", PATIENCE, async || gave_up(am).await).await;
        }
        Who::Us(_) => side.until("the message", |s| s.messages("Hot") == 1).await,
    }
    let gap = side.slack.with(|s| {
        let at = |n: usize| s.requests.get(n).map(|r| r.at);
        at(1).zip(at(0)).map(|(second, first)| (second - first).as_secs_f64())
    });
    (side.messages("Hot"), gap)
}

fn version(program: &Path) -> String {
    let out = Command::new(program).arg("--version").output().unwrap();
    let text = [out.stdout, out.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.split_whitespace()
        .skip_while(|w| *w != "version")
        .nth(1)
        .unwrap_or("?")
        .trim_end_matches(',')
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn where_alertmanager_fails_we_do_not() {
    let Some(program) = peers::alertmanager() else { return };
    let version = version(&program);
    let mended =
        |what: &str| format!("Alertmanager {version} {what}: what is said of it is not true any more");
    let started = Instant::now();
    let silence = async {
        let (theirs, ours) =
            tokio::join!(async { a_silence(Side::alertmanager(&program, QUICK).await).await }, async {
                a_silence(Side::us().await).await
            });
        assert_eq!(ours, 1, "our silence is lost");
        assert_eq!(theirs, 0, "{}", mended("keeps a silence over a crash"));
        let row = |n: usize| format!("{n} of 1 silences left");
        Row { failure: "E1 silence confirmed, kill -9", theirs: row(theirs), ours: row(ours) }
    };
    let message = async {
        let (theirs, ours) =
            tokio::join!(async { a_message(Side::alertmanager(&program, QUICK).await).await }, async {
                a_message(Side::us().await).await
            });
        assert_eq!(ours, 1, "we notify it twice");
        assert_eq!(theirs, 2, "{}", mended("remembers after a crash what it has notified"));
        let row = |n: usize| format!("notified {n} times");
        Row {
            failure: "E2 notified, kill -9, sent again by Prometheus",
            theirs: row(theirs),
            ours: row(ours),
        }
    };
    let outage = async {
        let (theirs, ours) =
            tokio::join!(async { an_outage(Side::alertmanager(&program, QUICK).await).await }, async {
                an_outage(Side::us().await).await
            });
        assert_eq!(ours, 1, "we owe a message");
        assert_eq!(theirs, 0, "{}", mended("notifies what was over before the receiver was back"));
        let row = |n: usize| format!("{n} of 1 shown");
        Row { failure: "E3 chat down until it is over", theirs: row(theirs), ours: row(ours) }
    };
    let pause = async {
        let (theirs, ours) =
            tokio::join!(async { a_pause(Side::alertmanager(&program, DEFAULT).await).await }, async {
                a_pause(Side::us().await).await
            });
        assert_eq!(ours.0, 1, "we do not come again after a pause");
        assert!(ours.1.is_some_and(|gap| gap >= 1.0), "we do not keep the pause: {ours:?}");
        assert_eq!(theirs, (0, None), "{}", mended("comes again when a receiver asks for a pause"));
        let row = |(n, gap): (usize, Option<f64>)| match gap {
            Some(gap) => format!("{n} of 1 delivered, after {gap:.1} s"),
            None => format!("{n} of 1 delivered; not tried again before group_interval (5m)"),
        };
        Row { failure: "E4 429, Retry-After: 1", theirs: row(theirs), ours: row(ours) }
    };
    let rows: [Row; 4] = tokio::join!(silence, message, outage, pause).into();
    say::figure(&format!("{:<44} {:<58} us", "what was done", format!("Alertmanager {version}")));
    for row in rows {
        say::figure(&format!("{:<44} {:<58} {}", row.failure, row.theirs, row.ours));
    }
    say::line(&format!("all four in {:?}", started.elapsed()));
}

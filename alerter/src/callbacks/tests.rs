use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex};

use serde_json::Value;
use stepwatch_fakes::{
    FakePagerDuty, FakeSlack, PagerDuty, Slack, interaction_body, pagerduty_signature, slack_signature,
};

use crate::signed_paths;
use crate::testing::{TestApp, wait_for};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The log of this process. There is one subscriber, because the interest in a callsite is cached
/// once per process.
static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    log
});

/// Receivers with one endpoint each for Slack and PagerDuty.
const DOORS: &str = r##"  - name: chat
    slack: {channel: "#t", token_file: bot, signing_secret_file: signing}
  - name: primary
    pagerduty: {routing_key_file: key, webhook_secret_file: hook}
"##;

#[tokio::test]
async fn a_flood_of_forged_callbacks_is_one_line_of_the_log_for_each_service() {
    let log = LazyLock::force(&LOG);
    let secrets = [
        ("bot", "xoxb-1234567890"),
        ("signing", "8f742231b10e8888abcd99yyyzzz85a5"),
        ("key", "R0123456789012345678901234567890"),
        ("hook", "hookhookhookhookhookhookhook1234"),
    ];
    let app = TestApp::start_with(DOORS, &secrets.map(|(name, text)| (name, text.to_owned()))).await;
    let client = reqwest::Client::new();
    for (path, header, status) in [
        (signed_paths::SLACK, ("x-slack-signature", "v0=00"), 401),
        (signed_paths::SLACK, ("x-nothing", "v0=00"), 400),
        (signed_paths::PAGERDUTY, ("x-pagerduty-signature", "v1=00"), 403),
        (signed_paths::PAGERDUTY, ("x-nothing", "v1=00"), 400),
    ] {
        for _ in 0..50 {
            let now = crate::clock::wall().0 / 1000;
            let request = client
                .post(format!("{}{path}", app.url))
                .header(header.0, header.1)
                .header("x-slack-request-timestamp", now.to_string());
            assert_eq!(request.body("payload=%7B%7D").send().await.unwrap().status(), status, "{path}");
        }
    }
    let said = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    for line in ["is not from Slack", "is not from PagerDuty"] {
        assert_eq!(said.matches(line).count(), 1, "{line}");
    }
    // All requests are counted.
    let metrics = app.get("/metrics").await.1;
    for service in ["slack", "pagerduty"] {
        let counted =
            metrics.lines().find(|l| l.contains(service) && l.contains("refused")).unwrap_or_default();
        assert!(counted.ends_with(" 100"), "{service}: {counted}");
    }
}

/// Delivers the last webhook, signed with the secret of the subscription.
async fn deliver_last(app: &TestApp, pagerduty: &FakePagerDuty) {
    let body = pagerduty.with(|pd| pd.hooks.last().unwrap().to_string());
    let signature = pagerduty_signature(&[PagerDuty::WEBHOOK_SECRET], body.as_bytes());
    let request = reqwest::Client::new().post(format!("{}{}", app.url, signed_paths::PAGERDUTY));
    let request = request.header("x-pagerduty-signature", signature).body(body);
    assert_eq!(request.send().await.unwrap().text().await.unwrap(), "acted\n");
}

/// A subscription for a whole account has one secret. PagerDuty itself notifies people again when
/// an acknowledgement times out; only the other service is called from here.
#[tokio::test]
async fn an_acknowledgement_that_times_out_rings_once_where_services_share_a_secret() {
    let pagerduty = FakePagerDuty::start().await;
    let receiver = |name: &str| {
        format!(
            "  - name: {name}\n    pagerduty: {{routing_key_file: key, webhook_secret_file: hook, events_url: \"{}\"}}\n",
            pagerduty.url()
        )
    };
    let more = receiver("primary")
        + &receiver("second")
        + "policies: [{name: both, levels: [{after: 0s, notify: [primary, second]}]}]\n\
           routes: [{match: ['severity=\"page\"'], policy: both}]\n";
    let secrets = [("key", PagerDuty::ROUTING_KEY), ("hook", PagerDuty::WEBHOOK_SECRET)];
    let app = TestApp::start_with(&more, &secrets.map(|(name, text)| (name, text.to_owned()))).await;
    let id = app.page("llama").await;
    // Waits until `count` messages of this kind were delivered, and returns the number for each
    // receiver.
    let delivered = async |action: &str, count: usize| {
        wait_for(action, async || {
            let detail = app.json(&format!("/api/v1/incidents/{id}")).await;
            let all = detail["deliveries"].as_array().unwrap().iter();
            let of_it = |d: &&Value| d["action"] == action && d["state"] == "delivered";
            let found =
                all.filter(of_it).map(|d| (d["receiver"].as_str().unwrap().to_owned(), d["ring"].as_u64()));
            let found: Vec<_> = found.collect();
            (found.len() == count).then_some(found)
        })
        .await
    };
    let key = |ring: u64| if ring == 1 { id.clone() } else { format!("{id}-{ring}") };
    let called = delivered("trigger", 2).await;
    let of_primary = called.iter().find(|(receiver, _)| receiver == "primary").unwrap().1.unwrap();
    pagerduty.change(|pd| pd.by_person(&key(of_primary), "acknowledged", "Jane Doe")).unwrap();
    deliver_last(&app, &pagerduty).await;
    delivered("ack", 2).await;
    pagerduty.change(|pd| pd.ack_times_out(&key(of_primary))).unwrap();
    deliver_last(&app, &pagerduty).await;
    let mut again = delivered("update", 2).await;
    again.sort();
    assert_eq!(again, [("primary".to_owned(), None), ("second".to_owned(), Some(3))]);
    let rung = pagerduty.with(|pd| pd.pages.iter().map(|p| p.dedup_key.clone()).collect::<Vec<_>>());
    assert_eq!(rung[2..], [key(of_primary), key(3)]);
    let stands = pagerduty.with(|pd| pd.open(&key(of_primary)).is_some());
    assert!(stands, "what PagerDuty notified people of again is not closed");
}

/// While the store refuses writes, pages are sent from memory. PagerDuty repeats an event after a
/// 503, but not after a 200.
#[tokio::test]
async fn an_answer_to_what_is_not_recorded_yet_is_asked_for_again() {
    let pagerduty = FakePagerDuty::start().await;
    let more = format!(
        "  - name: primary\n    pagerduty: {{routing_key_file: key, webhook_secret_file: hook, events_url: \"{}\"}}\n",
        pagerduty.url()
    );
    let secrets = [("key", PagerDuty::ROUTING_KEY), ("hook", PagerDuty::WEBHOOK_SECRET)];
    let app = TestApp::start_with(&more, &secrets.map(|(name, text)| (name, text.to_owned()))).await;
    let id = app.page("llama").await;
    wait_for("the page", async || pagerduty.with(|pd| pd.open(&id).is_some()).then_some(())).await;
    pagerduty.change(|pd| pd.by_person(&id, "acknowledged", "Jane Doe")).unwrap();
    let body = pagerduty.with(|pd| pd.hooks.last().unwrap().to_string());
    let unknown = format!("{}{}", &id[..id.len() - 1], if id.ends_with('0') { "1" } else { "0" });
    let body = body.replace(&id, &unknown);
    let signature = pagerduty_signature(&[PagerDuty::WEBHOOK_SECRET], body.as_bytes());
    let post = async || {
        let request = reqwest::Client::new().post(format!("{}{}", app.url, signed_paths::PAGERDUTY));
        let request = request.header("x-pagerduty-signature", &signature).body(body.clone());
        request.send().await.unwrap().status().as_u16()
    };
    let ready = async |status: u16| {
        wait_for("readiness", async || (app.get("/-/ready").await.0 == status).then_some(())).await;
    };
    let (database, aside) = (app.dir.path().join("alerter.db"), app.dir.path().join("aside.db"));
    std::fs::rename(&database, &aside).unwrap();
    ready(503).await;
    assert_eq!(post().await, 503);
    std::fs::rename(&aside, &database).unwrap();
    ready(200).await;
    assert_eq!(post().await, 200);
}

/// Slack repeats no click: the person is asked to click again, and does not read that the incident
/// is unknown.
#[tokio::test]
async fn a_click_on_what_is_not_recorded_yet_is_to_be_repeated() {
    let slack = FakeSlack::start().await;
    let more = format!(
        "  - name: chat\n    slack: {{channel: \"#training\", token_file: bot, signing_secret_file: signing, \
         api_url: \"{}/api\"}}\n",
        slack.url()
    );
    let secrets = [("bot", Slack::TOKEN), ("signing", Slack::SIGNING_SECRET)];
    let app = TestApp::start_with(&more, &secrets.map(|(name, text)| (name, text.to_owned()))).await;
    let id = app.page("llama").await;
    let shown = async || slack.with(|s| s.top().next().map(|post| post.ts.clone()));
    let ts = wait_for("the message", shown).await;
    let unknown = format!("{}{}", &id[..id.len() - 1], if id.ends_with('0') { "1" } else { "0" });
    let click = async || {
        let mut click =
            slack.change(|s| s.click(&slack.url(), &ts, "stepwatch_ack", ("U0ANN", "ann"))).unwrap();
        click["actions"][0]["value"] = unknown.as_str().into();
        let (body, at) = (interaction_body(&click), crate::clock::wall().0 / 1000);
        let request = reqwest::Client::new().post(format!("{}{}", app.url, signed_paths::SLACK));
        let request = request
            .header("content-type", "application/x-www-form-urlencoded")
            .header("x-slack-request-timestamp", at.to_string())
            .header("x-slack-signature", slack_signature(Slack::SIGNING_SECRET, at, body.as_bytes()));
        assert_eq!(request.body(body).send().await.unwrap().status().as_u16(), 200);
    };
    let whisper = async |part: &str| {
        wait_for(part, async || slack.with(|s| s.whispers.last()?.text.contains(part).then_some(()))).await;
    };
    let (database, aside) = (app.dir.path().join("alerter.db"), app.dir.path().join("aside.db"));
    std::fs::rename(&database, &aside).unwrap();
    // The alerter may also be not ready for another reason, while its store accepts writes.
    let refuses = async || app.get("/-/ready").await.1.contains("the database was removed").then_some(());
    wait_for("a refusal", refuses).await;
    click().await;
    // The reply says that the incident may not be recorded yet, or on a busy machine that it is not
    // durable yet.
    whisper("Please try again").await;
    std::fs::rename(&aside, &database).unwrap();
    wait_for("readiness", async || (app.get("/-/ready").await.0 == 200).then_some(())).await;
    click().await;
    whisper("The alerter does not know this incident").await;
}

/// A service that groups alerts names no key in its webhooks, so the incident is found by its id.
#[tokio::test]
async fn an_acknowledgement_that_times_out_at_a_service_that_groups_alerts_rings_once() {
    let pagerduty = FakePagerDuty::start().await;
    let receiver = |name: &str| {
        format!(
            "  - name: {name}\n    pagerduty: {{routing_key_file: key, webhook_secret_file: hook, events_url: \"{}\"}}\n",
            pagerduty.url()
        )
    };
    let more = receiver("primary")
        + &receiver("second")
        + "routes: [{match: ['severity=\"page\"'], notify: [primary]}]\n";
    let secrets = [("key", PagerDuty::ROUTING_KEY), ("hook", PagerDuty::WEBHOOK_SECRET)];
    let app = TestApp::start_with(&more, &secrets.map(|(name, text)| (name, text.to_owned()))).await;
    let id = app.page("llama").await;
    let delivered = async |action: &str| {
        wait_for(action, async || {
            let detail = app.json(&format!("/api/v1/incidents/{id}")).await;
            let mut all = detail["deliveries"].as_array().unwrap().iter();
            all.find(|d| d["action"] == action && d["state"] == "delivered").cloned()
        })
        .await
    };
    delivered("trigger").await;
    pagerduty.change(|pd| pd.by_person(&id, "acknowledged", "Jane Doe")).unwrap();
    deliver_last(&app, &pagerduty).await;
    delivered("ack").await;
    let times_out = |pd: &mut PagerDuty| {
        pd.groups_alerts = true;
        pd.ack_times_out(&id)
    };
    pagerduty.change(times_out).unwrap();
    deliver_last(&app, &pagerduty).await;
    let again = delivered("update").await;
    assert!(again["ring"].is_null(), "PagerDuty notifies people again by itself: {again}");
}

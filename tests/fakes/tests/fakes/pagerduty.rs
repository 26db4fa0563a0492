//! The fake PagerDuty pages when PagerDuty pages.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use reqwest::Client;
use serde_json::{Value, json};
use stepwatch_fakes::{AlertState, FakePagerDuty, Fault, PagerDuty, Standing};

fn trigger(key: &str) -> Value {
    json!({"routing_key": PagerDuty::ROUTING_KEY, "event_action": "trigger", "dedup_key": key,
        "payload": {"summary": "loss is NaN", "source": "llama-70b", "severity": "critical",
            "custom_details": {"step": 7, "<i>": "</table>"}}})
}

fn action(action: &str, key: &str) -> Value {
    json!({"routing_key": PagerDuty::ROUTING_KEY, "event_action": action, "dedup_key": key})
}

async fn send(fake: &FakePagerDuty, path: &str, body: &Value) -> (u16, Value) {
    let response = Client::new().post(format!("{}{path}", fake.url())).json(body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn enqueue(fake: &FakePagerDuty, body: &Value) -> (u16, Value) {
    send(fake, "/v2/enqueue", body).await
}

#[tokio::test]
async fn an_open_key_pages_once_and_a_resolved_one_again() {
    let fake = FakePagerDuty::start().await;
    let (status, reply) = enqueue(&fake, &trigger("inc-1")).await;
    assert_eq!(
        (status, reply["status"].as_str(), reply["dedup_key"].as_str()),
        (202, Some("success"), Some("inc-1"))
    );
    enqueue(&fake, &trigger("inc-1")).await;
    assert_eq!(fake.with(|s| s.pages.len()), 1, "still open: appended");
    enqueue(&fake, &action("acknowledge", "inc-1")).await;
    assert_eq!(fake.with(|s| s.open("inc-1").map(|a| a.state)), Some(AlertState::Acknowledged));
    enqueue(&fake, &trigger("inc-1")).await;
    assert_eq!(fake.with(|s| s.pages.len()), 1, "acknowledged: appended");
    enqueue(&fake, &action("resolve", "inc-1")).await;
    assert!(fake.with(|s| s.open("inc-1").is_none()));
    enqueue(&fake, &trigger("inc-1")).await;
    assert_eq!(
        fake.with(|s| (s.pages.len(), s.alerts_of("inc-1").count())),
        (2, 2),
        "a late trigger is a new page"
    );
}

/// Accepted is not paged: the answer is the same, and neither a page nor a webhook follows.
#[tokio::test]
async fn a_service_that_pages_nobody_accepts_every_event() {
    let fake = FakePagerDuty::start().await;
    enqueue(&fake, &trigger("before")).await;
    let hooks = fake.with(|s| s.hooks.len());
    for standing in [Standing::Disabled, Standing::InMaintenance, Standing::Suppressing] {
        fake.change(|s| s.standing = standing);
        let (status, reply) = enqueue(&fake, &trigger("later")).await;
        assert_eq!((status, reply["status"].as_str()), (202, Some("success")), "{standing:?}");
        let notifying = fake.with(|s| {
            assert_eq!((s.pages.len(), s.hooks.len()), (1, hooks), "{standing:?}");
            assert!(s.open("later").is_none(), "{standing:?}");
            s.triggered().count()
        });
        assert_eq!(notifying, usize::from(standing != Standing::Disabled), "{standing:?}");
    }
    fake.change(|s| s.standing = Standing::InMaintenance);
    assert_eq!(enqueue(&fake, &action("resolve", "before")).await.0, 202);
    assert!(fake.with(|s| s.open("before").is_some()), "resolutions are dropped too");
    fake.change(|s| s.standing = Standing::Active);
    enqueue(&fake, &action("resolve", "before")).await;
    assert!(fake.with(|s| s.open("before").is_none()));
}

#[tokio::test]
async fn what_nobody_has_any_more_pages_again() {
    let fake = FakePagerDuty::start().await;
    enqueue(&fake, &trigger("inc-1")).await;
    assert!(fake.change(|s| s.ack_times_out("inc-1")).is_err(), "nobody has it");
    for (n, by_itself) in [(2, true), (3, false)] {
        fake.change(|s| s.by_person("inc-1", "acknowledged", "Jane Doe")).unwrap();
        fake.change(|s| {
            if by_itself {
                s.ack_times_out("inc-1")
            } else {
                s.by_person("inc-1", "unacknowledged", "Jane Doe")
            }
        })
        .unwrap();
        fake.with(|s| {
            assert_eq!(s.pages.iter().filter(|p| p.dedup_key == "inc-1").count(), n);
            assert_eq!(s.open("inc-1").map(|a| a.state), Some(AlertState::Triggered));
            let event = &s.hooks.last().unwrap()["event"];
            assert_eq!(event["event_type"], "incident.unacknowledged");
            assert_eq!(event["agent"].is_null(), by_itself);
        });
    }
}

#[tokio::test]
async fn invalid_events_are_refused_with_reasons() {
    let fake = FakePagerDuty::start().await;
    let mut cases = vec![
        (json!({"event_action": "trigger"}), "routing_key"),
        (action("resolve", ""), "dedup_key"),
        (action("close", "k"), "event_action"),
        (action("trigger", "k"), "payload.summary"),
    ];
    for (pointer, value, field) in [
        ("/routing_key", json!("short"), "routing_key"),
        ("/routing_key", json!("f".repeat(32)), "Invalid routing key"),
        ("/dedup_key", json!("k".repeat(256)), "dedup_key"),
        ("/payload/summary", json!("s".repeat(1025)), "payload.summary"),
        ("/payload/source", json!(""), "payload.source"),
        ("/payload/severity", json!("page"), "payload.severity"),
        ("/payload/custom_details", json!("x".repeat(512_000)), "bytes"),
    ] {
        let mut event = trigger("k");
        *event.pointer_mut(pointer).unwrap() = value;
        cases.push((event, field));
    }
    for (event, field) in cases {
        let (status, reply) = enqueue(&fake, &event).await;
        assert_eq!((status, reply["status"].as_str()), (400, Some("invalid event")), "{field}");
        assert!(reply["errors"][0].as_str().unwrap().contains(field), "{field}: {reply}");
    }
    assert!(fake.with(|s| s.alerts.is_empty() && s.pages.is_empty()));
}

#[tokio::test]
async fn an_event_can_be_taken_and_answered_with_an_error() {
    let fake = FakePagerDuty::start().await;
    fake.script().push("enqueue", Fault::TakenThenStatus(500)).push("enqueue", Fault::NotOk("no".into()));
    assert_eq!(enqueue(&fake, &trigger("k")).await.0, 500);
    assert_eq!(enqueue(&fake, &trigger("k")).await.0, 400);
    assert_eq!(fake.with(|s| s.pages.len()), 1);
}

#[tokio::test]
async fn change_events_page_nobody() {
    let fake = FakePagerDuty::start().await;
    let change = json!({"routing_key": PagerDuty::ROUTING_KEY, "payload": {"summary": "restarted"}});
    assert_eq!(send(&fake, "/v2/change/enqueue", &change).await.0, 202);
    assert_eq!(fake.with(|s| (s.changes.len(), s.pages.len())), (1, 0));
}

#[tokio::test]
async fn the_page_shows_alerts_and_escapes_them() {
    let fake = FakePagerDuty::start().await;
    enqueue(&fake, &trigger("k")).await;
    let html = reqwest::get(fake.url()).await.unwrap().text().await.unwrap();
    assert!(html.contains("loss is NaN") && html.contains("on-call paged"), "{html}");
    assert!(html.contains("&lt;/table&gt;"), "{html}");
}

//! Tests the events, and the limits that PagerDuty's documentation states.

mod rings;

use proptest::prelude::*;
use stepwatch_fakes::{FakePagerDuty, PagerDuty as Service};

use super::*;
use crate::notify::test_notification;
use crate::notify::tests::{gpu_fault, message};

fn event(n: &Notification) -> Value {
    serde_json::from_slice(&raw(n)).unwrap()
}

fn raw(n: &Notification) -> Vec<u8> {
    let (steps, _) = plan(Attempt::first(n), Repeats::Rings, Span::ZERO);
    let [Step { action, ring }] = steps[..] else { panic!("one event and not {steps:?}") };
    render(n, action, &key(&n.incident, ring), "R0UTE").unwrap()
}

fn actions(n: &Notification) -> Vec<&'static str> {
    plan(Attempt::first(n), Repeats::Rings, Span::ZERO).0.iter().map(|step| step.action).collect()
}

pub(super) fn page(action: Action) -> Notification {
    let mut n = test_notification("pd", "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C", Ts(1_795_227_416_980));
    n.action = action;
    n.message = message();
    n
}

#[test]
fn an_invalid_key_is_refused_and_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    let build = |key: &str| {
        std::fs::write(&file, key).unwrap();
        Config { routing_key_file: Some(file.clone()), ..Config::default() }.build().map(drop)
    };
    assert_eq!(build(stepwatch_fakes::PagerDuty::ROUTING_KEY), Ok(()));
    assert_eq!(build("R015CRQYZABCDEFGHIJKLMNOPQRSTUVW\n"), Ok(()));
    for (key, part) in [
        ("5bd1e995".repeat(4) + "f", "holds 33 characters, expected the 32 of the integration key"),
        ("5bd1e995".to_owned(), "holds 8 characters"),
        ("5bd1e995".repeat(4) + "\r\n\n", "holds 34 characters"),
        ("5bd1e99-".repeat(4), "holds other characters than letters and digits"),
    ] {
        let error = build(&key).unwrap_err().to_string();
        let shown = error.contains(part) && error.contains("/key ") && !error.contains("5bd1e99");
        assert!(shown, "{error}");
    }
}

#[test]
fn a_page_as_the_phone_shows_it() {
    // A `Value` would sort the details.
    let text = String::from_utf8(raw(&page(Action::Trigger))).unwrap();
    insta::assert_snapshot!(text.replace(",\"", ",\n\"").replace('{', "{\n"));
}

#[tokio::test]
async fn a_change_is_shown_and_wakes_nobody() {
    use stepwatch_detect::changes::Change;
    let fake = FakePagerDuty::start().await;
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, Service::ROUTING_KEY).unwrap();
    let config = Config {
        routing_key_file: Some(key),
        events_url: fake.url(),
        change_events: true,
        ..Config::default()
    };
    let pagerduty = config.build().unwrap();
    let at = Ts(1_795_227_416_980);
    for what in [Change::Started, Change::Restarted { attempt: 2, reached: Some(120) }, Change::Configured] {
        let change = RunChange { run: "llama-70b<!>\u{202e}".into(), at, what, step: Some(100) };
        pagerduty.change(&change).await.unwrap();
    }
    let summary = |c: &Value| c["payload"]["summary"].as_str().unwrap().to_owned();
    let (changes, pages) = fake.with(|pd| (pd.changes.clone(), pd.pages.len()));
    assert_eq!(
        changes.iter().map(summary).collect::<Vec<_>>(),
        [
            "llama-70b<!> started at step 100",
            "llama-70b<!> restarted (attempt 2), back from step 120 to 100",
            "llama-70b<!> has another configuration at step 100",
        ]
    );
    assert_eq!(changes[2]["payload"]["custom_details"]["step"], 100);
    assert_eq!(pages, 0);
}

#[test]
fn a_faulty_node_is_where_it_comes_from() {
    for (under_a_run, group) in [(true, "llama-70b"), (false, "gpu-042")] {
        let n = gpu_fault(under_a_run);
        let event = event(&n);
        let payload = &event["payload"];
        assert_eq!(payload["source"], "gpu-042");
        assert_eq!(payload["group"], group);
        assert_eq!(payload["class"], "gpu_fault");
        assert_eq!(payload["custom_details"]["Node"], "gpu-042");
        assert_eq!(payload["custom_details"]["Run"].as_str(), under_a_run.then_some("llama-70b"));
    }
}

#[test]
fn an_acknowledgement_carries_the_key_and_nothing_else() {
    let expected = json!({
        "routing_key": "R0UTE", "event_action": "acknowledge", "dedup_key": "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C"
    });
    assert_eq!(event(&page(Action::Ack)), expected);
}

#[test]
fn an_end_says_how_it_ended() {
    let mut n = page(Action::Resolve);
    n.message.status = Status::Resolved;
    n.message.title = "STALE llama-70b: gradient spike".into();
    n.message.reason = "stale after 12m: nothing has been heard of it since T; it may still hold".into();
    let event = event(&n);
    assert_eq!(event["event_action"], "resolve");
    let said = event["payload"]["summary"].as_str().unwrap();
    assert!(said.starts_with("STALE llama-70b") && said.ends_with("it may still hold"), "{said}");
    assert_eq!(event["payload"]["custom_details"]["Why you were notified"], n.message.reason);
}

#[test]
fn news_never_ring_an_acknowledged_alert() {
    let mut n = page(Action::Update);
    assert_eq!(actions(&n), ["trigger"]);
    n.message.status = Status::Acknowledged;
    assert_eq!(actions(&n), [""; 0]);
}

#[test]
fn an_acknowledgement_does_not_go_back_to_where_it_came_from() {
    let mut n = page(Action::Ack);
    let by = |receiver| Some(actor("Jane", receiver));
    n.receiver = "primary".into();
    n.message.details.acknowledged_by = by(Some("primary"));
    assert_eq!(actions(&n), [""; 0]);
    n.receiver = "secondary".into();
    assert_eq!(actions(&n), ["acknowledge"]);
    n.message.details.acknowledged_by = by(None);
    assert_eq!(actions(&n), ["acknowledge"]);
}

#[test]
fn an_event_that_is_too_large_loses_its_details() {
    let mut n = page(Action::Trigger);
    for i in 0..200 {
        let fact = stepwatch_respond::message::Fact { label: format!("label {i}"), text: "x".repeat(10_000) };
        n.message.facts.push(fact);
    }
    assert!(raw(&n).len() <= EVENT_MAX);
    let error = event(&n)["payload"]["custom_details"]["error"].as_str().map(str::to_owned);
    assert!(error.is_some_and(|e| e.contains("limit is 512000")));
}

proptest! {
    #[test]
    fn the_limits_hold_for_any_text(title: String, summary: String, run: String, label: String, href: String) {
        let mut n = page(Action::Trigger);
        n.message.title = title;
        n.message.summary = summary.repeat(50);
        n.message.run = run;
        n.message.facts[0].label = label;
        n.message.links[0].href = href;
        let event = event(&n);
        let text = |v: &Value| v.as_str().map_or(0, |s| s.chars().count());
        let payload = &event["payload"];
        prop_assert!((1..=SUMMARY_MAX).contains(&text(&payload["summary"])));
        prop_assert!((1..=FIELD_MAX).contains(&text(&payload["source"])));
        for link in event["links"].as_array().unwrap() {
            prop_assert!(link["href"].as_str().is_some_and(|href| href.starts_with("http")));
        }
    }
}

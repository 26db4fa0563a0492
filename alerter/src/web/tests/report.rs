//! Tests of reports on the page, by the API and as files.

use serde_json::json;

use super::Browser;
use crate::testing::{TestApp, wait_for};

/// A run of eight GPUs that began three hours ago, made a step a minute for two hours, died, was
/// restarted after ten minutes, and continued from its last step.
fn three_hours() -> String {
    let now = jiff::Timestamp::now().as_millisecond() as f64 / 1000.0;
    let (mut text, mut at, mut seq) = (String::new(), now - 3.0 * 3600.0, 1_u64);
    let mut say = |mut record: serde_json::Value| {
        record["c"] = format!("b1:{seq}").into();
        (record["node"], record["run"], record["rank"]) = ("n1".into(), "llama".into(), 0.into());
        seq += 1;
        text.push_str(&record.to_string());
        text.push('\n');
    };
    for (attempt, steps) in [(0, 0..120), (1, 120..160)] {
        let hello = json!({"k": "hello", "ts": at, "job": "4711", "world": 8, "attempt": attempt});
        say(hello);
        for step in steps {
            at += 60.0;
            say(json!({"k": "step", "ts": at, "attempt": attempt, "step": step, "m": {"loss": 2.0}}));
        }
        if attempt == 0 {
            say(json!({"k": "bye", "ts": at, "attempt": 0, "code": 1, "text": "RuntimeError: lost"}));
            at += 600.0;
        }
    }
    text
}

#[tokio::test]
async fn a_report_has_all_hours_also_those_that_are_over() {
    let more = "cost_per_gpu_hour: 2.0\n";
    let app = TestApp::start_with(more, &[]).await;
    app.exporter.say(&three_hours()).await;
    let report = wait_for("three hours", async || {
        let report = app.json("/api/v1/report").await;
        (report["total"]["seconds"].as_f64()? > 10_199.0).then_some(report)
    })
    .await;
    let total = &report["total"];
    // 158 steps of a minute each, and ten minutes between the attempts.
    let seconds = |state: &str| {
        let times = total["time"].as_array().unwrap();
        times.iter().find(|t| t["state"] == state).map_or(0.0, |t| t["seconds"].as_f64().unwrap())
    };
    assert_eq!((seconds("productive"), seconds("down"), seconds("starting")), (158.0 * 60.0, 600.0, 120.0));
    assert_eq!((&total["interruptions"], &total["starts"]), (&json!(1), &json!(2)));
    assert_eq!(total["seconds_to_first_step"], json!(60.0));
    let hours = total["gpu_hours"].as_f64().unwrap();
    let dollars = total["dollars"].as_f64().unwrap();
    assert!((hours - 8.0 * 10_200.0 / 3600.0).abs() < 1e-3, "{hours}");
    assert!((dollars - 2.0 * hours).abs() < 0.01, "{dollars}");
    // More than the hour that is not over: the rest is in the store.
    let alone = app.json("/api/v1/report?run=llama").await;
    assert_eq!(alone["total"]["seconds"], total["seconds"]);
    assert_eq!(app.json("/api/v1/report?run=other").await["total"]["seconds"], json!(0.0));
    let (_, markdown) = app.get("/api/v1/report?format=markdown").await;
    assert!(markdown.contains("| llama | 22.7 | $45.33 |"), "{markdown}");
    let (_, html) = app.get("/api/v1/report?format=html").await;
    assert!(html.contains("<th scope=\"row\">llama</th>"), "{html}");
    let browser = Browser::of(&app);
    let seen = browser.get("/report?days=1").await;
    assert!(
        seen.has("Where the time went") && seen.has("$45.33") && seen.has("/report?days=30"),
        "{}",
        seen.html
    );
    let seen = browser.get("/report?run=other").await;
    assert!(seen.has("No time of any run is accounted"), "{}", seen.html);
    let seen = browser.get("/report?since=2026-01-01T00:00:00Z&until=2026-01-08T00:00:00Z").await;
    assert!(seen.has("From 2026-01-01T00:00:00Z to 2026-01-08T00:00:00Z."), "{}", seen.html);
    for (query, part) in [
        ("/report?since=2026-01-01T00:00:00Z", "since, until: go together"),
        ("/report?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "since: must be before until"),
        ("/report?days=2", "days: must be one of"),
        (
            "/api/v1/report?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z",
            "since: must be before until",
        ),
    ] {
        let (status, body) = app.get(query).await;
        assert!(status == 400 && body.contains(part), "{query}: {body}");
    }
}

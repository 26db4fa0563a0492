use serde_json::{Value, json};

use crate::testing::{DEADLINE, TestApp, wait_for};

const JSON: &str = "application/json";

/// The message of an error.
fn error(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("not JSON: {body}"));
    body["error"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_incident_is_notified_listed_acknowledged_and_resolved() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    app.hook.wait_for(|s| s.deliveries.len() == 1, DEADLINE).await.unwrap();

    // Any unique prefix is accepted.
    let one = app.json(&format!("/api/v1/incidents/{}", &id[..id.len() - 2])).await;
    assert_eq!((&one["id"], &one["run"], &one["kind"]), (&json!(id), &json!("llama"), &json!("rank_dead")));
    assert_eq!((&one["severity"], &one["state"], &one["level"]), (&json!("page"), &json!("open"), &json!(1)));
    assert!(one["opened_at"].as_str().unwrap().ends_with('Z'), "{}", one["opened_at"]);
    assert!(!one["timeline"].as_array().unwrap().is_empty());
    assert_eq!(one["deliveries"][0]["receiver"], "hook");

    let ack = format!("/api/v1/incidents/{id}/ack");
    let (status, body) = app.post(&ack, JSON, r#"{"by":"alice"}"#).await;
    let acked: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &acked["state"], &acked["acked_by"]), (200, &json!("acknowledged"), &json!("alice")));
    // A second acknowledgement changes nothing, and the answer names the first person.
    let (status, body) = app.post(&ack, JSON, r#"{"by":"bob"}"#).await;
    let again: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &again["acked_by"]), (200, &json!("alice")));
    assert_eq!((&acked["signed"], &again["signed"]), (&json!("alice"), &json!("bob")));

    let resolve = format!("/api/v1/incidents/{id}/resolve");
    for _ in 0..2 {
        let (status, body) = app.post(&resolve, JSON, r#"{"by":"alice"}"#).await;
        let resolved: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &resolved["state"]), (200, &json!("resolved")));
        let end = ["ended", "resolved_by"].map(|key| resolved[key].as_str().unwrap());
        assert!(end == ["person", "alice"] && resolved["reopens_at"].is_string(), "{resolved}");
    }
    let (status, body) = app.post(&ack, JSON, r#"{"by":"alice"}"#).await;
    assert_eq!(status, 409);
    assert!(error(&body).contains("was resolved at 2"), "{body}");
    assert!(error(&body).contains("it still fires, and comes back at 2"), "{body}");

    let count = async |query: &str| {
        app.json(&format!("/api/v1/incidents{query}")).await["incidents"].as_array().unwrap().len()
    };
    assert_eq!(count("").await, 1);
    assert_eq!(count("?state=resolved&severity=page&run=llama&limit=5").await, 1);
    assert_eq!(count("?state=unresolved").await, 1, "it still fires");
    assert_eq!(count("?state=open").await, 0);
    assert_eq!(count("?run=other").await, 0);
    let actions = app.hook.wait_for(|s| s.deliveries.len() == 3, DEADLINE).await.unwrap();
    assert_eq!(actions.refused, Vec::<String>::new());
}

#[tokio::test]
async fn wrong_requests_are_answered_with_a_reason() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    for (path, status, part) in [
        (
            "/api/v1/incidents?state=burning",
            400,
            "state: unknown variant `burning`, expected one of `open`, `acknowledged`, `resolved`",
        ),
        (
            "/api/v1/incidents?severity=high",
            400,
            "severity: unknown variant `high`, expected one of `info`, `ticket`, `page`",
        ),
        ("/api/v1/incidents?limit=0", 400, "limit: must be a number from 1 to 1000"),
        ("/api/v1/incidents?colour=red", 400, "colour"),
        ("/api/v1/incidents/nonsense", 404, "there is no incident \"nonsense\""),
        ("/api/v1/nonsense", 404, "there is nothing at /api/v1/nonsense"),
        (&format!("/api/v1/incidents/{id}/ack"), 405, "does not take GET"),
    ] {
        let (got, body) = app.get(path).await;
        assert_eq!(got, status, "{path}: {body}");
        assert!(error(&body).contains(part), "{path}: {body}");
    }
    let ack = format!("/api/v1/incidents/{id}/ack");
    for (content_type, body, status, part) in [
        ("text/plain", r#"{"by":"alice"}"#, 415, "content-type: application/json"),
        (JSON, "", 400, "the body does not read"),
        (JSON, "{}", 400, "missing field `by`"),
        (JSON, r#"{"by":""}"#, 400, "must be a name"),
        (JSON, r#"{"by":"a\nb"}"#, 400, "must be a name"),
        (JSON, r#"{"by":"a","at":1}"#, 400, "unknown field"),
    ] {
        let (got, answer) = app.post(&ack, content_type, body).await;
        assert_eq!(got, status, "{body}: {answer}");
        assert!(error(&answer).contains(part), "{body}: {answer}");
    }
    let (status, _) = app.post("/api/v1/incidents/nonsense/ack", JSON, r#"{"by":"alice"}"#).await;
    assert_eq!(status, 404);
    assert_eq!(app.json(&format!("/api/v1/incidents/{id}")).await["state"], "open");
}

#[tokio::test]
async fn runs_sources_status_and_metrics_say_what_is_watched() {
    let app = TestApp::start().await;
    app.page("llama").await;
    let runs = wait_for("the run to be shown", async || {
        Some(app.json("/api/v1/runs").await).filter(|r| r["runs"][0]["last_step"] == 41)
    })
    .await;
    let run = &runs["runs"][0];
    // The dead rank is included.
    assert_eq!((&run["run"], &run["world"], &run["ranks"]), (&json!("llama"), &json!(8), &json!(2)));
    assert!(run["last_step_age_seconds"].as_f64().unwrap() < DEADLINE.as_secs_f64());
    assert_eq!(run["sources"][0], app.exporter.name());

    let sources = app.json("/api/v1/sources").await;
    let source = &sources["sources"][0];
    assert_eq!((&source["source"], &source["up"]), (&json!(app.exporter.name()), &json!(true)));
    assert_eq!((&source["records"], &source["cursor"]), (&json!(2), &json!("b1:2")));

    let status = app.json("/api/v1/status").await;
    assert_eq!(
        (&status["sources_up"], &status["runs"], &status["store"]),
        (&json!(1), &json!(1), &json!("ok"))
    );

    let replicas = app.json("/api/v1/replicas").await;
    assert_eq!(replicas["replicas"], json!([]), "there is one alerter");

    let metrics = wait_for("the metrics", async || {
        let (_, page) = app.get("/metrics").await;
        page.contains("stepwatch_alerter_incidents{state=\"open\",severity=\"page\"} 1").then_some(page)
    })
    .await;
    for line in [
        "stepwatch_alerter_events_total{kind=\"step\"} 1",
        "stepwatch_alerter_steps_total 1",
        "stepwatch_alerter_incidents_opened_total{kind=\"rank_dead\",severity=\"page\"} 1",
        "stepwatch_alerter_config_last_reload_successful 1",
        "stepwatch_alerter_build_info{",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    let up = format!("stepwatch_alerter_source_up{{source=\"{}\"}} 1", app.exporter.name());
    assert!(metrics.contains(&up), "{metrics}");
    assert_eq!(app.get("/-/ready").await.0, 200);
}

#[tokio::test]
async fn a_restart_remembers_and_reads_on() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    app.hook.wait_for(|s| s.deliveries.len() == 1, DEADLINE).await.unwrap();
    let app = app.restart().await;
    assert_eq!(app.json(&format!("/api/v1/incidents/{id}")).await["state"], "open");
    let cursor =
        wait_for("the second connection", async || Some(app.exporter.requests().get(1)?.query.clone())).await;
    assert_eq!(cursor.as_deref(), Some("after=b1:2"));
    let (status, _) = app.post(&format!("/api/v1/incidents/{id}/ack"), JSON, r#"{"by":"alice"}"#).await;
    assert_eq!(status, 200);
    let notified = app.hook.wait_for(|s| s.deliveries.len() == 2, DEADLINE).await.unwrap();
    assert_eq!(notified.duplicates, 0);
}

#[tokio::test]
async fn a_reload_takes_everything_or_changes_nothing() {
    let app = TestApp::start().await;
    let other = crate::testing::FakeExporter::start([]).await;
    let reload = async || app.post("/-/reload", "text/plain", "").await;

    app.reconfigure("routes:\n  - {notify: [nobody]}\n");
    let (status, why) = reload().await;
    assert_eq!(status, 500);
    assert!(why.contains("there is no receiver \"nobody\""), "{why}");
    let (_, metrics) = app.get("/metrics").await;
    assert!(metrics.contains("stepwatch_alerter_config_last_reload_successful 0"), "{metrics}");

    app.reconfigure("");
    let path = app.dir.path().join("alerter.yml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("127.0.0.1:0", "127.0.0.1:1").replace("alerter.db", "b.db")).unwrap();
    let (status, why) = reload().await;
    assert_eq!(status, 500);
    assert!(why.contains("listen and storage changed, which takes a restart; nothing was reloaded"), "{why}");

    // Another source, and no receivers.
    let mut text =
        text.replace("routes:", "").replace("receivers:", "  - exporters: {static: [OTHER]}\nreceivers:");
    text = text.replace("OTHER", &format!("\"{}\"", other.name())) + "routes: [{match: ['run=\"llama\"']}]\n";
    std::fs::write(&path, text).unwrap();
    assert_eq!(reload().await, (200, "reloaded\n".into()));
    wait_for("the other exporter to be read", async || (!other.requests().is_empty()).then_some(())).await;
    let id = app.page("llama").await;
    let one = app.json(&format!("/api/v1/incidents/{id}")).await;
    assert_eq!(one["deliveries"], json!([]));
    // The unchanged stream was not interrupted.
    assert_eq!(app.exporter.requests().len(), 1);
}

#[tokio::test]
async fn who_is_on_call_comes_from_the_calendar_file() {
    let app = TestApp::start().await;
    let calendar = |who: &str| {
        format!(
            "BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:1\nDTSTART:20260101T000000\nDTEND:20360101T000000\nSUMMARY:{who}\nEND:VEVENT\nEND:VCALENDAR\n"
        )
    };
    let shifts = app.dir.path().join("shifts.ics");
    std::fs::write(&shifts, calendar("alice")).unwrap();
    app.reconfigure(
        "users: [{name: alice, notify: [hook]}, {name: robert, notify: [hook]}]\n\
         schedules: [{name: primary, time_zone: Europe/Berlin, ical: {file: shifts.ics}}]\n",
    );
    let (status, body) = app.post("/-/reload", "text/plain", "").await;
    assert_eq!(status, 200, "{body}");
    let on_call = async |who: &str| {
        wait_for("the calendar", async || {
            let answer = app.json("/api/v1/oncall?at=2026-12-24T09:00&days=2").await;
            Some(answer["schedules"][0].clone()).filter(|s| s["on_call"][0]["user"] == who)
        })
        .await
    };
    let schedule = on_call("alice").await;
    assert_eq!(schedule["at"], "2026-12-24T08:00:00.000Z");
    assert_eq!(
        (schedule["by"].as_str(), schedule["calendar"]["stale"].as_bool()),
        (Some("calendar"), Some(false))
    );
    let metrics = app.get("/metrics").await.1;
    assert!(
        metrics.contains("stepwatch_alerter_calendar_read_timestamp_seconds{schedule=\"primary\"} 1"),
        "{metrics}"
    );
    // An invalid calendar changes nothing; a changed file is read again.
    std::fs::write(&shifts, "<html>").unwrap();
    wait_for("the failure to be counted", async || {
        let metrics = app.get("/metrics").await.1;
        metrics.contains("calendar_failures_total{schedule=\"primary\"} 1").then_some(())
    })
    .await;
    on_call("alice").await;
    std::fs::write(&shifts, calendar("Robert")).unwrap();
    on_call("robert").await;
    let (status, _) = app.get("/api/v1/oncall?schedule=secondary").await;
    assert_eq!(status, 404);
    for bad in ["at=soon", "days=0", "days=x", "colour=red"] {
        let (status, body) = app.get(&format!("/api/v1/oncall?{bad}")).await;
        assert_eq!(status, 400, "{bad}: {body}");
    }
}

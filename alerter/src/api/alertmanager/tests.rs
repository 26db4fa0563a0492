use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::wire::{MatcherView, PostableAlert, PostableSilence};
use crate::testing::{DEADLINE, TestApp, wait_for};

const JSON: &str = "application/json";

/// An alert as Prometheus 2.42 sends it: its end is four minutes ahead.
fn alert(name: &str, more: &[(&str, &str)]) -> Value {
    let mut labels = json!({"alertname": name, "severity": "critical"});
    for (n, v) in more {
        labels[*n] = json!(v);
    }
    let ends = crate::api::view::When(crate::clock::wall() + stepwatch_model::time::Span::secs(240));
    json!({"labels": labels, "annotations": {"summary": format!("{name} is on")}, "startsAt": "2026-11-20T10:00:00.123Z",
           "endsAt": ends, "generatorURL": "http://prometheus/graph?g0.expr=up"})
}

async fn post(app: &TestApp, alerts: &[Value]) -> (u16, String) {
    app.post("/api/v2/alerts", JSON, &Value::from(alerts.to_vec()).to_string()).await
}

/// The names of the alerts that an answer shows.
fn names(alerts: &Value) -> Vec<String> {
    let mut names: Vec<String> = alerts
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["labels"]["alertname"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn alerts_are_accepted_listed_and_notified() {
    let app = TestApp::start().await;
    assert_eq!(post(&app, &[alert("DiskFull", &[("instance", "gpu-1:9100")])]).await, (200, String::new()));
    let shown = app.json("/api/v2/alerts").await;
    let one = &shown[0];
    assert_eq!(one["labels"]["alertname"], "DiskFull");
    assert_eq!(one["annotations"], json!({"summary": "DiskFull is on"}));
    assert_eq!(one["startsAt"], "2026-11-20T10:00:00.123Z");
    assert_eq!(one["generatorURL"], "http://prometheus/graph?g0.expr=up");
    assert_eq!(one["receivers"], json!([{"name": "hook"}]));
    assert_eq!(one["status"], json!({"state": "active", "silencedBy": [], "inhibitedBy": [], "mutedBy": []}));
    assert_eq!(one["fingerprint"].as_str().unwrap().len(), 16);
    assert!(one["endsAt"].is_string() && one["updatedAt"].is_string());
    let got = app.hook.wait_for(|s| s.deliveries.len() == 1, DEADLINE).await.unwrap();
    let text = format!("{:?}", got.deliveries);
    assert!(text.contains("DiskFull is on"), "{text}");
    // An alert that is sent again changes nothing; with an end in the past it ends.
    assert_eq!(post(&app, &[alert("DiskFull", &[("instance", "gpu-1:9100")])]).await.0, 200);
    let mut over = alert("DiskFull", &[("instance", "gpu-1:9100")]);
    over["endsAt"] = json!("2026-11-20T11:00:00Z");
    assert_eq!(post(&app, &[over]).await.0, 200);
    assert_eq!(app.json("/api/v2/alerts").await, json!([]));
    let incidents = app.json("/api/v1/incidents").await;
    assert_eq!(incidents["incidents"].as_array().unwrap().len(), 1, "{incidents}");
    assert_eq!(incidents["incidents"][0]["kind"], "prometheus_alert");
}

#[tokio::test]
async fn an_incident_of_an_alert_is_shown_in_the_words_of_its_rule() {
    let app = TestApp::start().await;
    let disk = |name: &str| {
        let mut alert = alert(name, &[("instance", "gpu-1:9100")]);
        alert["annotations"] = json!({"summary": "/data is 98 % full", "description": "Move the checkpoints.",
            "runbook_url": "https://wiki.example.com/disk"});
        alert
    };
    // The second alert notifies nobody, so no message contains its name.
    let silence = json!({"matchers": [r#"alertname="DiskSlow""#], "duration": "1h", "created_by": "ann", "comment": "known"});
    assert_eq!(app.post("/api/v1/silences", JSON, &silence.to_string()).await.0, 200);
    assert_eq!(post(&app, &[disk("DiskFull")]).await.0, 200);
    app.hook.wait_for(|s| s.deliveries.len() == 1, DEADLINE).await.unwrap();
    assert_eq!(post(&app, &[disk("DiskSlow")]).await.0, 200);
    let listed = app.json("/api/v1/incidents").await;
    for name in ["DiskFull", "DiskSlow"] {
        let one = listed["incidents"].as_array().unwrap().iter().find(|i| i["title"] == name).unwrap();
        let shown = app.json(&format!("/api/v1/incidents/{}", one["id"].as_str().unwrap())).await;
        assert_eq!(shown["description"], "Move the checkpoints.", "{shown}");
        assert_eq!(shown["links"][0], json!({"text": "Runbook", "href": "https://wiki.example.com/disk"}));
        assert_eq!(
            shown["suppression"]["why"].as_str(),
            (name == "DiskSlow").then_some("silenced"),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn an_incident_is_never_described_in_the_words_of_another_runs_alert() {
    let app = TestApp::start().await;
    let silence = json!({"matchers": [r#"alertname="DiskFull""#], "duration": "1h", "created_by": "ann", "comment": "known"});
    assert_eq!(app.post("/api/v1/silences", JSON, &silence.to_string()).await.0, 200);
    let of = |run: &str| {
        let mut alert = alert("DiskFull", &[("run", run)]);
        alert["annotations"] = json!({"summary": "full", "description": format!("Checkpoints of {run}.")});
        alert
    };
    assert_eq!(post(&app, &[of("llama"), of("mistral")]).await.0, 200);
    let listed = app.json("/api/v1/incidents").await;
    let listed = listed["incidents"].as_array().unwrap();
    assert_eq!(listed.len(), 2, "{listed:?}");
    for one in listed {
        let shown = app.json(&format!("/api/v1/incidents/{}", one["id"].as_str().unwrap())).await;
        let run = one["run"].as_str().unwrap();
        assert_eq!(shown["description"], format!("Checkpoints of {run}."), "{shown}");
    }
}

#[tokio::test]
async fn what_is_valid_is_taken_beside_what_is_not() {
    let app = TestApp::start().await;
    let mut backwards = alert("Backwards", &[]);
    backwards["endsAt"] = json!("2026-11-20T09:00:00Z");
    let nameless = json!({"labels": {"a": ""}});
    let (status, body) = post(&app, &[alert("Good", &[]), backwards, nameless]).await;
    assert_eq!(status, 400);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        body,
        "start time must be before end time (alert 2 \"Backwards\"); at least one label pair required (alert 3)"
    );
    assert_eq!(names(&app.json("/api/v2/alerts").await), ["Good"]);
    let mut odd = alert("Odd", &[]);
    odd["startsAt"] = json!("now");
    let (status, body) = post(&app, &[odd, alert("Fine", &[]), json!({"labels": {"a": 1}}), json!(7)]).await;
    assert_eq!(status, 400, "{body}");
    assert!(body.contains("(alert 1 \\\"Odd\\\")") && body.contains("(alert 4)"), "{body}");
    assert_eq!(names(&app.json("/api/v2/alerts").await), ["Fine", "Good"]);
    for (kind, body, status) in [
        (JSON, "{", 400),
        (JSON, r#"[{"labels":{"a":1}}]"#, 400),
        (JSON, r#"[{"labels":{"a":"b"},"startsAt":"now"}]"#, 400),
        ("text/plain", "[]", 415),
        (JSON, "[]", 200),
        (JSON, r#"[{"labels":{"a":"never over"},"endsAt":"9999-12-31T23:59:59.999Z"}]"#, 200),
        (JSON, r#"[{"labels":{"a":"b"},"endsAt":"9999-12-32T00:00:00Z"}]"#, 400),
        (
            JSON,
            r#"[{"labels":{"a":"b"},"annotations":null,"startsAt":"0001-01-01T00:00:00Z","endsAt":null}]"#,
            200,
        ),
    ] {
        assert_eq!(app.post("/api/v2/alerts", kind, body).await.0, status, "{body}");
    }
    let metrics = app.get("/metrics").await.1;
    assert!(metrics.contains("stepwatch_alerter_alerts_invalid_total 8"), "{metrics}");
}

#[tokio::test]
async fn whoever_says_more_than_is_kept_is_heard() {
    let app = TestApp::start().await;
    let long = "path ".repeat(300);
    let mut wordy = alert("Wordy", &[("path", &format!("{long}1"))]);
    wordy["annotations"]["description"] = json!("so ".repeat(1400));
    let twin = alert("Wordy", &[("path", &format!("{long}2"))]);
    let many: Vec<(String, String)> = (0..80).map(|n| (format!("l{n}"), "x".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let alerts = [wordy, twin, alert("Many", &many)];
    assert_eq!(post(&app, &alerts).await, (200, String::new()));
    // The alerts that Prometheus sends again are the same.
    assert_eq!(post(&app, &alerts).await.0, 200);
    let shown = app.json("/api/v2/alerts").await;
    assert_eq!(names(&shown), ["Many", "Wordy", "Wordy"]);
    let texts = shown.to_string();
    assert!(texts.contains("so so …\"") && texts.contains("labels_left_out"), "{texts}");
    let incidents = app.json("/api/v1/incidents").await;
    assert_eq!(incidents["incidents"].as_array().unwrap().len(), 2, "{incidents}");
    app.hook.wait_for(|s| s.deliveries.len() == 2, DEADLINE).await.unwrap();
    let metrics = app.get("/metrics").await.1;
    assert!(metrics.contains("stepwatch_alerter_alerts_cut_total 6"), "{metrics}");
    assert!(metrics.contains("stepwatch_alerter_alerts_invalid_total 0"), "{metrics}");
}

#[tokio::test]
async fn a_request_has_room_for_all_that_prometheus_sends_at_once() {
    let app = TestApp::start().await;
    // Padding with spaces, which a test build parses faster than alerts.
    let padded = |bytes: usize| format!("{}{}", " ".repeat(bytes), json!([alert("DiskFull", &[])]));
    assert_eq!(app.post("/api/v2/alerts", JSON, &padded(5 << 20)).await, (200, String::new()));
    assert_eq!(app.json("/api/v2/alerts").await.as_array().unwrap().len(), 1);
    // The server answers before it receives the body.
    let mut stream = tokio::net::TcpStream::connect(app.url.trim_start_matches("http://")).await.unwrap();
    let head = format!(
        "POST /api/v2/alerts HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\ncontent-length: {}\r\n\r\n",
        (8 << 20) + 1
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    for path in ["/api/v2/silences", "/api/v1/silences"] {
        let silence = json!({"matchers": [], "comment": "x".repeat(2 << 20)}).to_string();
        assert_eq!(app.post(path, JSON, &silence).await.0, 413, "{path}");
    }
}

#[tokio::test]
async fn whoever_hides_an_alert_is_named_as_it_is_shown() {
    let app = TestApp::start().await;
    app.reconfigure(
        "inhibit_rules: [{source_matchers: ['alertname=\"NodeDown\"'], target_matchers: ['alertname=\"DiskFull\"']}]\n",
    );
    assert_eq!(app.post("/-/reload", JSON, "").await.0, 200);
    assert_eq!(post(&app, &[alert("NodeDown", &[("instance", "a")])]).await.0, 200);
    assert_eq!(post(&app, &[alert("DiskFull", &[("instance", "a")])]).await.0, 200);
    let shown = app.json("/api/v2/alerts").await;
    let of = |name: &str| {
        shown.as_array().unwrap().iter().find(|a| a["labels"]["alertname"] == name).cloned().unwrap()
    };
    assert_eq!(of("NodeDown")["status"]["state"], "active");
    let inhibited = of("DiskFull");
    assert_eq!(inhibited["status"]["state"], "suppressed", "{inhibited}");
    assert_eq!(inhibited["status"]["inhibitedBy"], json!([of("NodeDown")["fingerprint"]]));
    assert_eq!(names(&app.json("/api/v2/alerts?inhibited=false").await), ["NodeDown"]);
}

#[tokio::test]
async fn the_configuration_is_shown_without_what_opens_doors() {
    let app = TestApp::start().await;
    let original = |status: Value| status["config"]["original"].as_str().unwrap().to_owned();
    let text = original(app.json("/api/v2/status").await);
    assert!(text.starts_with("route:\n  receiver: \"hook\"\nreceivers:\n- name: \"hook\"\n"), "{text}");
    assert!(
        text.contains("#         \"page_after\": \"0s\"") || text.contains("\"page_after\": \"0s\""),
        "{text}"
    );
    assert!(text.contains("/<secret>\"") && !text.contains("/hook\""), "an address may be a secret: {text}");
    app.reconfigure("cost_per_gpu_hour: 2.25\n");
    assert_eq!(app.post("/-/reload", JSON, "").await.0, 200);
    assert!(original(app.json("/api/v2/status").await).contains("\"cost_per_gpu_hour\": 2.25"));
}

/// An alert that is not a page reaches no pager, neither by a fallback nor by a level for pages.
#[tokio::test]
async fn a_ticket_is_shown_to_reach_no_pager() {
    let routes = r#"
  - {name: chat, stdout: {}}
  - {name: pager, wakes: true, stdout: {}}
fallback: [chat, pager]
teams:
  - {name: idle, match: ['run="toy"'], fallback: [pager]}
  - {name: busy, match: ['run="big"'], policy: steps}
policies: [{name: steps, levels: [{after: 0s, notify: [chat]}, {after: 5m, notify: [pager], if: {severity: page}}]}]
"#;
    let app = TestApp::start_with(routes, &[]).await;
    let status: Value =
        reqwest::get(format!("{}/api/v2/status", app.url)).await.unwrap().json().await.unwrap();
    let text = status["config"]["original"].as_str().unwrap();
    insta::assert_snapshot!(text.split(super::OURS).next().unwrap());
}

#[tokio::test]
async fn the_routes_are_shown_in_alertmanagers_language() {
    let routes = r#"
users: [{name: ann, notify: [hook]}, {name: bob, notify: [hook]}]
teams:
  - {name: research, match: ['run=~"llama-.*"'], notify: ['user:ann']}
  - {name: idle, match: ['node=~"n\d+"']}
policies: [{name: steps, levels: [{after: 0s, notify: ['user:ann']}, {after: 5m, notify: [hook, 'user:ann']}]}]
routes:
  - {match: ['run=~"scratch-.*"']}
  - {match: ['kind="hang"'], notify: ['user:bob'], continue: true}
  - match: ['severity="page"']
    policy: steps
    routes: [{match: ['cause="hardware"', 'node!=""'], notify: [hook]}, {match: ['node=~"n\d+"']}]
api:
  tokens:
    - {name: all, token_file: all, scopes: [read]}
    - {name: llama, token_file: llama, scopes: [read], runs: ["llama-*"]}
"#;
    let files = ["all", "llama"].map(|name| (name, format!("0123456789abcdef-{name}")));
    let app = TestApp::start_with(routes, &files).await;
    let original = async |token: &str| {
        let request = reqwest::Client::new().get(format!("{}/api/v2/status", app.url));
        let request = request.bearer_auth(format!("0123456789abcdef-{token}"));
        let status: Value = request.send().await.unwrap().json().await.unwrap();
        let text = status["config"]["original"].as_str().unwrap().to_owned();
        text.split(super::OURS).next().unwrap().to_owned()
    };
    insta::assert_snapshot!(original("all").await);
    let limited = original("llama").await;
    assert!(limited.contains("receiver: \"routes-are-shown-to-tokens-without-limits\""), "{limited}");
    assert!(!limited.contains("scratch") && !limited.contains("n\\d"), "{limited}");
}

#[tokio::test]
async fn filters_and_groups() {
    let app = TestApp::start().await;
    let alerts =
        [alert("A", &[("run", "x")]), alert("A", &[("run", "x"), ("gpu", "1")]), alert("B", &[("run", "y")])];
    assert_eq!(post(&app, &alerts).await.0, 200);
    let show = async |query: &str| names(&app.json(&format!("/api/v2/alerts?{query}")).await);
    assert_eq!(show("").await, ["A", "A", "B"]);
    assert_eq!(show("filter=alertname%3D%22A%22&filter=gpu%3D%221%22").await, ["A"]);
    assert_eq!(show("filter=%7Brun%3D~%22x%7Cy%22,gpu%3D%22%22%7D").await, ["A", "B"]);
    assert_eq!(show("active=false").await, [""; 0]);
    assert_eq!(show("silenced=false&inhibited=false&unprocessed=false").await.len(), 3);
    assert_eq!(show("receiver=ho.%2B").await.len(), 3);
    assert_eq!(show("receiver=h").await.len(), 0);
    for bad in ["filter=a", "active=maybe", "receiver=(", "filter=a%3D~%22(%22"] {
        assert_eq!(app.get(&format!("/api/v2/alerts?{bad}")).await.0, 400, "{bad}");
    }
    let groups = app.json("/api/v2/alerts/groups").await;
    let of: Vec<_> =
        groups.as_array().unwrap().iter().map(|g| (g["labels"].clone(), names(&g["alerts"]))).collect();
    assert_eq!(
        of,
        [
            (json!({"alertname": "A", "run": "x"}), vec!["A".to_owned(), "A".to_owned()]),
            (json!({"alertname": "B", "run": "y"}), vec!["B".to_owned()]),
        ]
    );
    assert_eq!(groups[0]["receiver"], json!({"name": "hook"}));
}

#[tokio::test]
async fn silences_are_made_changed_shown_and_ended() {
    let app = TestApp::start().await;
    let at =
        |seconds| crate::api::view::When(crate::clock::wall() + stepwatch_model::time::Span::secs(seconds));
    let wish = |value: &str, ends: i64| {
        json!({"matchers": [{"name": "run", "value": value, "isRegex": true, "isEqual": true}],
               "startsAt": at(0), "endsAt": at(ends), "createdBy": "alice", "comment": "new switch"})
    };
    let (status, body) = app.post("/api/v2/silences", JSON, &wish("x|y", 600).to_string()).await;
    assert_eq!(status, 200, "{body}");
    let id = serde_json::from_str::<Value>(&body).unwrap()["silenceID"].as_str().unwrap().to_owned();
    assert!(id.len() == 36 && id.as_bytes()[14] == b'4', "{id}");
    assert_eq!(post(&app, &[alert("A", &[("run", "x")]), alert("B", &[("run", "z")])]).await.0, 200);
    let shown = app.json("/api/v2/alerts?filter=run%3Dx").await;
    assert_eq!(shown[0]["status"]["state"], "suppressed");
    assert_eq!(shown[0]["status"]["silencedBy"], json!([id]));
    assert_eq!(names(&app.json("/api/v2/alerts?silenced=false").await), ["B"]);
    app.hook.wait_for(|s| s.deliveries.len() == 1, DEADLINE).await.unwrap();

    let one = app.json(&format!("/api/v2/silence/{id}")).await;
    assert_eq!(one["status"], json!({"state": "active"}));
    assert_eq!(one["matchers"], json!([{"isEqual": true, "isRegex": true, "name": "run", "value": "x|y"}]));
    assert_eq!((&one["createdBy"], &one["comment"]), (&json!("alice"), &json!("new switch")));
    let ours = app.json("/api/v1/silences").await;
    assert_eq!((&ours["silences"][0]["id"], &ours["silences"][0]["state"]), (&json!(id), &json!("active")));
    assert_eq!(ours["silences"][0]["incidents"].as_array().unwrap().len(), 1);

    let mut changed = one.clone();
    changed["endsAt"] = json!(at(900));
    let (_, body) = app.post("/api/v2/silences", JSON, &changed.to_string()).await;
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["silenceID"], json!(id), "in place");
    let count =
        async |query: &str| app.json(&format!("/api/v2/silences?{query}")).await.as_array().unwrap().len();
    assert_eq!((count("").await, count("filter=run%3D%22x%7Cy%22").await), (1, 1));
    assert_eq!((count("filter=run%3Dz").await, count("filter=node%3Da").await), (0, 0));

    let delete = reqwest::Client::new().delete(format!("{}/api/v2/silence/{id}", app.url));
    assert_eq!(delete.send().await.unwrap().status().as_u16(), 200);
    assert_eq!(app.json(&format!("/api/v2/silence/{id}")).await["status"]["state"], "expired");
    app.hook.wait_for(|s| s.deliveries.len() == 2, DEADLINE).await.unwrap();
    let none = reqwest::Client::new().delete(format!("{}/api/v2/silence/none", app.url));
    assert_eq!(none.send().await.unwrap().status().as_u16(), 404);
    assert_eq!(app.get("/api/v2/silence/none").await.0, 404);
}

#[tokio::test]
async fn silences_that_are_refused() {
    let app = TestApp::start().await;
    let ends = crate::api::view::When(crate::clock::wall() + stepwatch_model::time::Span::secs(600));
    let good = json!({"matchers": [{"name": "a", "value": "b", "isRegex": false}], "startsAt": "2026-11-20T00:00:00Z",
                      "endsAt": ends, "createdBy": "alice", "comment": "c"});
    for (key, value, status, part) in [
        ("endsAt", json!("2999-01-01T00:00:00Z"), 400, "silences.max_duration"),
        ("endsAt", json!("9999-12-31T23:59:59Z"), 400, "silences.max_duration"),
        ("endsAt", json!("2026-11-20T00:00:01Z"), 400, "in the past"),
        ("comment", json!(""), 400, "comment"),
        ("matchers", json!([]), 400, "matchers"),
        ("matchers", json!([{"name": "a", "value": "", "isRegex": false}]), 400, "empty string"),
        ("matchers", json!([{"name": "a", "value": "(", "isRegex": true}]), 400, "regular expression"),
        ("id", json!("none"), 404, "there is no silence"),
        ("endsAt", json!(1), 400, "does not read"),
    ] {
        let mut wish = good.clone();
        wish[key] = value;
        let (got, body) = app.post("/api/v2/silences", JSON, &wish.to_string()).await;
        assert!(got == status && body.contains(part), "{key}: {got} {body}");
        assert!(serde_json::from_str::<String>(&body).is_ok(), "an error is a JSON string: {body}");
    }
}

/// Such a silence would suppress nothing, or with `!=` everything.
#[tokio::test]
async fn a_silence_of_a_mistyped_label_is_refused() {
    let app = TestApp::start_with("labels: [owner]\n", &[]).await;
    let ask = async |label: &str| {
        let wish = json!({"matchers": [format!("{label}=\"page\"")], "duration": "1h",
                          "created_by": "bob", "comment": "c"});
        let (status, body) = app.post("/api/v1/silences", JSON, &wish.to_string()).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        (status, [&body["error"], &body["warnings"]].map(ToString::to_string).join(" "))
    };
    for (label, meant) in [("severty", "severity"), ("alertnme", "alertname"), ("ownr", "owner")] {
        let (status, said) = ask(label).await;
        assert!(status == 400 && said.contains(&format!("one may have is \\\"{meant}\\\"")), "{said}");
    }
    let ends = crate::api::view::When(crate::clock::wall() + stepwatch_model::time::Span::secs(600));
    let wish = json!({"matchers": [{"name": "severty", "value": "page", "isRegex": false}], "endsAt": ends,
                      "startsAt": "2026-11-20T00:00:00Z", "createdBy": "alice", "comment": "c"});
    let (status, body) = app.post("/api/v2/silences", JSON, &wish.to_string()).await;
    assert!(status == 400 && body.contains("severity"), "{body}");
    for label in ["severity", "owner", "instance", "mode"] {
        let (status, said) = ask(label).await;
        assert!(status == 200 && (label == "mode") == said.contains("mode"), "{label}: {said}");
    }
    // No alert has this label yet, but a later one may.
    let (status, said) = ask("datacentre").await;
    assert!(status == 200 && said.contains("has had the label \\\"datacentre\\\" yet"), "{said}");
    // An alert has it.
    assert_eq!(post(&app, &[alert("A", &[("severty", "x"), ("datacentre", "b")])]).await.0, 200);
    for label in ["severty", "datacentre"] {
        let (status, said) = ask(label).await;
        assert!(status == 200 && !said.contains("label"), "{label}: {said}");
    }
}

/// An alert is shown with the receivers of its incident.
#[tokio::test]
async fn an_alert_reaches_its_team() {
    let more = r#"
  - {name: pd-a, stdout: {}}
  - {name: pd-b, stdout: {}}
teams:
  - {name: a, match: ['alertname=~"A.*"'], notify: [pd-a]}
  - {name: b, match: ['run=~"big-.*"', 'cause="external"'], notify: [pd-b]}
"#;
    let app = TestApp::start_with(more, &[]).await;
    let big = [("run_name", "big-1")];
    assert_eq!(post(&app, &[alert("A1", &[]), alert("B1", &big)]).await.0, 200);
    let of = async |receiver: &str| names(&app.json(&format!("/api/v2/alerts?receiver={receiver}")).await);
    assert_eq!((of("pd-a").await, of("pd-b").await), (vec!["A1".to_owned()], vec!["B1".to_owned()]));
}

#[tokio::test]
async fn both_survive_a_restart() {
    let app = TestApp::start().await;
    let wish =
        r#"{"matchers":["run=x"],"duration":"1h","created_by":"bob","comment":"c","expire_on_resolve":true}"#;
    let (status, body) = app.post("/api/v1/silences", JSON, wish).await;
    assert_eq!(status, 200, "{body}");
    let id = serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned();
    assert_eq!(post(&app, &[alert("A", &[("run", "x")])]).await.0, 200);
    let before = (app.json("/api/v2/alerts").await, app.json(&format!("/api/v1/silences/{id}")).await);
    let app = app.restart().await;
    let mut after = (app.json("/api/v2/alerts").await, app.json(&format!("/api/v1/silences/{id}")).await);
    // The sender gets the time at which to send it again.
    after.0[0]["endsAt"] = before.0[0]["endsAt"].clone();
    assert_eq!(after, before);
    assert_eq!(app.hook.wait_for(|_| true, DEADLINE).await.unwrap().deliveries.len(), 0);
}

#[tokio::test]
async fn our_incidents_are_alerts_too() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    let shown = wait_for("the incident among the alerts", async || {
        let shown = app.json("/api/v2/alerts").await;
        (shown != json!([])).then_some(shown)
    })
    .await;
    assert_eq!(shown[0]["labels"]["alertname"], "StepwatchRankDead");
    assert_eq!(
        (&shown[0]["labels"]["run"], &shown[0]["labels"]["severity"]),
        (&json!("llama"), &json!("page"))
    );
    assert_eq!(shown[0]["annotations"]["incident"], json!(id));
    // A listed alert can be silenced by all of its labels, as other programs do.
    let labels = shown[0]["labels"].as_object().unwrap();
    let matchers: Vec<Value> = labels
        .iter()
        .map(|(n, v)| json!({"name": n, "value": v, "isRegex": false, "isEqual": true}))
        .collect();
    let ends = crate::api::view::When(crate::clock::wall() + stepwatch_model::time::Span::secs(600));
    let wish = json!({"matchers": matchers, "startsAt": "0001-01-01T00:00:00Z", "endsAt": ends, "createdBy": "karma",
                      "comment": "c"});
    let (status, body) = app.post("/api/v2/silences", JSON, &wish.to_string()).await;
    assert_eq!(status, 200, "{body}");
    let shown = app.json("/api/v2/alerts").await;
    assert_eq!(shown[0]["status"]["state"], "suppressed", "{shown}");
    let incident = app.json(&format!("/api/v1/incidents/{id}")).await;
    assert!(incident["timeline"].to_string().contains("silenced by karma"), "{incident}");
}

#[tokio::test]
async fn who_we_are() {
    let app = TestApp::start().await;
    let status = app.json("/api/v2/status").await;
    assert_eq!(status["cluster"], json!({"name": "", "status": "disabled", "peers": []}));
    assert!(status["config"]["original"].as_str().unwrap().contains("receiver: \"hook\""), "{status}");
    for key in ["branch", "buildDate", "buildUser", "goVersion", "revision", "version"] {
        assert!(status["versionInfo"][key].is_string(), "{key}");
    }
    assert!(status["uptime"].is_string());
    assert_eq!(app.json("/api/v2/receivers").await, json!([{"name": "hook"}]));
}

#[tokio::test]
async fn a_preview_says_what_would_be_silenced() {
    let app = TestApp::start().await;
    let id = app.page("llama").await;
    assert_eq!(post(&app, &[alert("A", &[("run", "x")])]).await.0, 200);
    let preview = async |matcher: &str| {
        let wish = json!({"matchers": [matcher]}).to_string();
        let (status, body) = app.post("/api/v1/silences/preview", JSON, &wish).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let p = preview("run=llama").await;
    assert_eq!((&p["open"][0]["id"], p["alerts"].as_array().unwrap().len()), (&json!(id), 0));
    let p = preview("alertname=A").await;
    assert_eq!((p["open"].as_array().unwrap().len(), p["alerts"].as_array().unwrap().len()), (1, 1));
    assert_eq!(preview("run=none").await["open"], json!([]));
    assert_eq!(app.post("/api/v1/silences/preview", JSON, r#"{"matchers":["x"]}"#).await.0, 400);
}

proptest! {
    #[test]
    fn what_comes_from_outside_never_panics(text in "\\PC{0,60}", name in "\\PC{0,10}", value in "\\PC{0,10}") {
        let _ = serde_json::from_str::<Vec<PostableAlert>>(&text);
        let _ = serde_json::from_str::<PostableSilence>(&text);
        let _ = super::filter::Filter::parse(&text);
        let labels = json!([{"labels": {name.clone(): value.clone()}, "endsAt": value}]).to_string();
        let _ = serde_json::from_str::<Vec<PostableAlert>>(&labels);
        let _ = serde_json::from_str::<MatcherView>(&json!({"name": name, "value": value, "isRegex": true}).to_string());
    }
}

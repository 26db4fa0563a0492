//! Every route of the alerter, asked by a fuzzer that has read its OpenAPI document: whatever is
//! sent, the answer is one that the document promises. What should be accepted is, what should be
//! refused is, and nothing is an error of the server.
//!
//! It runs where `STEPWATCH_SCHEMATHESIS` names the program, as `cargo verify --full` does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::stack::Inbound;
use stepwatch_tests::trainer::healthy;
use stepwatch_tests::{Stack, StackOptions, daemon, http, poll_until, say};
use tempfile::NamedTempFile;

const PROGRAM: &str = "STEPWATCH_SCHEMATHESIS";
/// Far beyond what it takes: it is bounded by the number of its questions.
const WITHIN: Duration = Duration::from_mins(20);
/// Questions to each operation of each kind.
const EXAMPLES: u32 = 50;

/// Two people who take turns, and incidents that end soon.
const CONFIG: &str = "\
resolve_after: 200ms
users: [{name: alice, notify: [chat]}, {name: bob, notify: [primary]}]
schedules:
  - name: primary
    time_zone: Europe/Berlin
    layers: [{name: weekly, users: [alice, bob], start: 2026-01-05T09:00, rotation: weekly}]
    fallback: [chat]
";

/// A token with every scope: that one is required is one of the things that are checked.
const TOKEN: &str = "a-token-of-the-fuzzer-and-nobody-else";

/// Ids of what there is.
#[derive(Debug)]
struct Known {
    incidents: Vec<String>,
    silences: Vec<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answers_are_those_of_the_document() {
    let Some(program) = std::env::var_os(PROGRAM).map(PathBuf::from) else {
        say::loud(&format!("NOT TESTED: {PROGRAM} names no program (cargo verify --full installs one)"));
        return;
    };
    let token = NamedTempFile::new().unwrap();
    std::fs::write(token.path(), TOKEN).unwrap();
    let stack = Stack::start_with(StackOptions {
        alerter: format!(
            "{CONFIG}api: {{tokens: [{{name: fuzzer, token_file: {}, scopes: [admin]}}]}}\n",
            token.path().display()
        ),
        inbound: vec![Inbound::Slack, Inbound::PagerDuty],
        webhook: true,
        ..StackOptions::default()
    })
    .await
    .unwrap();
    let known = populate(&stack).await;
    let (passed, output) = fuzz(&program, &stack, &known).await;
    assert!(passed, "{output}");
    for line in output.lines().filter(|l| l.contains("generated,")) {
        say::figure(&format!("api fuzz: {}", line.trim()));
    }
    // Whatever was asked: it still watches.
    let rank = stack.warm_run("after", 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    incident(&stack, "after", "open").await;
}

/// The body of an answer, or null without a body; it is a success.
async fn ask(stack: &Stack, method: &str, path: &str, body: &Value) -> Option<Value> {
    let url = format!("{}{path}", stack.alerter.url());
    let request = http::client().request(method.parse().unwrap(), url).bearer_auth(TOKEN);
    let answer = request.json(body).send().await.ok()?;
    assert!(answer.status().is_success(), "{method} {path}: {}", answer.status());
    answer.json().await.ok()
}

/// One incident of each state, alerts of another program, a silence in force and one that is over.
async fn populate(stack: &Stack) -> Known {
    let mut incidents = Vec::new();
    for run in ["open", "taken", "settled"] {
        let rank = stack.warm_run(run, 3).unwrap();
        rank.step(4, &[("loss", f64::NAN)]).unwrap();
        incidents.push(incident(stack, run, "open").await);
        if run == "settled" {
            for step in 5..40 {
                let (loss, grad_norm) = healthy(step);
                rank.step(step, &[("loss", loss), ("grad_norm", grad_norm)]).unwrap();
            }
            incident(stack, run, "resolved").await;
        }
    }
    ask(stack, "POST", &format!("/api/v1/incidents/{}/ack", incidents[1]), &json!({"by": "alice"}))
        .await
        .unwrap();
    let alerts = json!([
        {"labels": {"alertname": "DiskFull", "severity": "critical", "instance": "gpu-1:9100"}},
        {"labels": {"alertname": "FanStopped", "severity": "warning", "instance": "gpu-2:9100"},
         "annotations": {"summary": "no air"}, "generatorURL": "http://prometheus/graph"},
    ]);
    ask(stack, "POST", "/api/v2/alerts", &alerts).await;
    let mut silences = Vec::new();
    for node in ["gpu-7", "gpu-8"] {
        let wish = json!({"matchers": [format!("node={node}")], "duration": "1h", "created_by": "alice", "comment": "new disks"});
        let made = ask(stack, "POST", "/api/v1/silences", &wish).await.unwrap();
        silences.push(made["id"].as_str().unwrap().to_owned());
    }
    ask(stack, "DELETE", &format!("/api/v1/silences/{}", silences[1]), &Value::Null).await.unwrap();
    Known { incidents, silences }
}

/// Waits until the incident of `run` has this state.
async fn incident(stack: &Stack, run: &str, state: &str) -> String {
    let found = async || {
        let list = ask(stack, "GET", "/api/v1/incidents", &Value::Null).await?;
        list["incidents"].as_array()?.iter().find(|i| i["run"] == run && i["state"] == state).cloned()
    };
    let incident = poll_until("an incident", PATIENCE, found).await.unwrap();
    incident["id"].as_str().unwrap().to_owned()
}

/// Whether it passed, and its whole output.
async fn fuzz(program: &Path, stack: &Stack, known: &Known) -> (bool, String) {
    let dir = stack.dir.path();
    let config = dir.join("schemathesis.toml");
    std::fs::write(&config, settings(known)).unwrap();
    let served = ask(stack, "GET", "/api/v1/openapi.json", &Value::Null).await.unwrap();
    let document = dir.join("openapi.json");
    std::fs::write(&document, served.to_string()).unwrap();
    let mut schemathesis = daemon::command(program);
    schemathesis
        .current_dir(dir)
        .env("NO_COLOR", "1")
        .arg(format!("--config-file={}", config.display()))
        .arg("run")
        .arg(&document)
        .arg(format!("--url={}", stack.alerter.url()))
        .arg(format!("--max-examples={EXAMPLES}"))
        .args(["--phases=examples,coverage,fuzzing,stateful", "--workers=1", "--no-color"])
        .args(["--generation-deterministic", "--continue-on-failure"])
        .kill_on_drop(true);
    let out = tokio::time::timeout(WITHIN, schemathesis.output()).await.expect("it never ends").unwrap();
    let output = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    (out.status.success(), output)
}

/// Half the ids in the requests exist. Some requests that are right by the document are wrong all
/// the same, for rules that no schema expresses: that a regular expression is one, that a time
/// exists, that an end comes after its start, that a user is one, that a signature is right. And a
/// silence that was ended is shown for some days.
fn settings(known: &Known) -> String {
    const BY_THE_DOCUMENT: &str = "
[[operations]]
include-operation-id = [
    'getOnCall', 'createOverride', 'swapShifts', 'createSilence', 'previewSilence', 'alertmanagerPostAlerts', 'alertmanagerPostSilence',
    'alertmanagerListAlerts', 'alertmanagerListAlertGroups', 'alertmanagerListSilences', 'pagerdutyWebhook', 'slackInteractions',
]
[operations.checks]
positive_data_acceptance.expected-statuses = ['2xx', '400', '401', '403', '404', '409', '429']
";
    let ids = |operations: &str, name: &str, ids: &[String]| {
        let values = serde_json::to_string(ids).unwrap();
        let bound =
            format!("[operations.parameters]\n'path.id' = {{ dictionary = '{name}', probability = 0.5 }}\n");
        (
            format!("[dictionaries.{name}]\nvalues = {values}\n"),
            format!("[[operations]]\ninclude-path-regex = '{operations}'\n{bound}"),
        )
    };
    let (incidents, of_incidents) = ids("^/api/v1/incidents/", "incidents", &known.incidents);
    let (silences, of_silences) = ids("^/api/v[12]/silences?/", "silences", &known.silences);
    let who = format!(
        "request-timeout = 20\n[auth.openapi]\nbearerToken = {{ bearer = '{TOKEN}' }}\n[checks]\nuse_after_free.enabled = false\n"
    );
    [&who, &incidents, &silences, &of_incidents, &of_silences, BY_THE_DOCUMENT].concat()
}

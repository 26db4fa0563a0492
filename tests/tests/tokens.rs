//! Tokens as the programs that people have send them: a real Prometheus, a real amtool and our own
//! command line. And what the browser of somebody without one may do for a page of another site.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stepwatch_tests::peers::{self, Prometheus, PrometheusOptions};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Stack, StackOptions, daemon, http, poll_until};
use tempfile::TempDir;

const TOKENS: [(&str, &str); 4] =
    [("prometheus", "ingest"), ("amtool", "silence"), ("oncall", "ack"), ("ops", "admin")];

/// A stack that requires tokens, and the files that they are in.
async fn start() -> (Stack, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut alerter = "api:\n  tokens:\n".to_owned();
    for (name, scope) in TOKENS {
        let file = file(&dir, name);
        std::fs::write(&file, format!("0123456789abcdef-{name}\n")).unwrap();
        let file = file.display().to_string();
        alerter.extend(["    - {name: ", name, ", token_file: ", &file, ", scopes: [", scope, "]}\n"]);
    }
    let stack = Stack::start_with(StackOptions { alerter, blind: true, ..StackOptions::default() }).await;
    (stack.unwrap(), dir)
}

fn file(dir: &TempDir, name: &str) -> PathBuf {
    dir.path().join(name)
}

/// What a request with one of the tokens is answered.
async fn ask(stack: &Stack, dir: &TempDir, name: &str, path: &str) -> Value {
    let token = std::fs::read_to_string(file(dir, name)).unwrap();
    let url = format!("{}{path}", stack.alerter.url());
    let answer = http::client().get(url).bearer_auth(token.trim()).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    answer.json().await.unwrap()
}

async fn amtool(program: &Path, stack: &Stack, config: &Path, args: &[&str]) -> Result<String, String> {
    let mut amtool = daemon::command(program);
    amtool.env("HOME", "/nonexistent").arg(format!("--alertmanager.url={}", stack.alerter.url()));
    amtool.arg(format!("--http.config.file={}", config.display())).args(args).kill_on_drop(true);
    let out = tokio::time::timeout(PATIENCE, amtool.output()).await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_amtool_silences_with_its_token_and_without_it_does_not() {
    let Some(program) = peers::amtool() else { return };
    let (stack, dir) = start().await;
    let config = |name: &str| {
        let path = dir.path().join(format!("{name}.yml"));
        let credentials = file(&dir, name);
        std::fs::write(&path, format!("authorization: {{credentials_file: {}}}\n", credentials.display()))
            .unwrap();
        path
    };
    let add = ["silence", "add", "run=llama", "-c", "new disks", "-a", "alice", "-d", "1h"];
    let id = amtool(&program, &stack, &config("amtool"), &add).await.unwrap();
    let list =
        amtool(&program, &stack, &config("amtool"), &["silence", "query", "-o", "json"]).await.unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list[0]["id"], &list[0]["createdBy"]), (&json!(id.trim()), &json!("api:amtool (alice)")));
    for table in [["alert", "query"], ["silence", "query"], ["config", "show"]] {
        amtool(&program, &stack, &config("amtool"), &table).await.unwrap();
    }
    // It brings alerts, and nothing else; and an unknown token permits nothing at all.
    std::fs::write(file(&dir, "nobody"), "a token of somebody").unwrap();
    for name in ["prometheus", "oncall", "nobody"] {
        assert!(amtool(&program, &stack, &config(name), &add).await.is_err(), "{name}");
    }
    amtool(&program, &stack, &config("amtool"), &["silence", "expire", id.trim()]).await.unwrap();
    let log = ask(&stack, &dir, "ops", "/api/v1/audit?door=alertmanager").await;
    let rows: Vec<_> = log["entries"].as_array().unwrap().iter().rev().collect();
    let audit: Vec<_> =
        rows.iter().map(|e| ["actor", "action", "outcome"].map(|k| e[k].as_str().unwrap())).collect();
    assert_eq!(audit[0], ["api:amtool (alice)", "silence", "done"]);
    assert_eq!(audit[1], ["api:prometheus", "silence", "refused"]);
    assert_eq!(audit[2], ["api:oncall", "silence", "refused"]);
    assert_eq!(audit[3], ["", "silence", "refused"]);
    assert_eq!(audit[4], ["api:amtool", "expire", "done"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_brings_alerts_with_its_token_and_a_person_takes_one_with_theirs() {
    let Some(program) = peers::prometheus() else { return };
    let (stack, dir) = start().await;
    let home = dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let rules = home.join("rules.yml");
    let rule =
        "groups: [{name: g, rules: [{alert: DiskFull, expr: vector(1), labels: {severity: critical}}]}]\n";
    std::fs::write(&rules, rule).unwrap();
    let options = PrometheusOptions {
        alertmanager: Some(stack.alerter.addr),
        credentials: Some(file(&dir, "prometheus")),
        more: format!("rule_files: ['{}']\n", rules.display()),
        ..PrometheusOptions::default()
    };
    let _prometheus = Prometheus::start_with(&program, &home, &[], "1s", options).await.unwrap();
    stack
        .pagerduty
        .wait_for(|pd| pd.pages.iter().any(|p| p.summary.contains("DiskFull")), PATIENCE)
        .await
        .unwrap();

    let with = |name: &str| file(&dir, name).display().to_string();
    let list =
        stack.alerter.cli(&["incidents", "list", "--format", "json", "--token-file", &with("oncall")]).await;
    let list: Value = serde_json::from_slice(&list.unwrap().stdout).unwrap();
    let id = list["incidents"][0]["id"].as_str().unwrap().to_owned();
    let ack = async |name: &str| {
        let token = with(name);
        let args = ["incidents", "ack", &id, "--by", "alice", "--token-file", &token];
        let out = stack.alerter.cli(&args).await.unwrap();
        let text =
            format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        (out.status.success(), text)
    };
    let (done, text) = ack("amtool").await;
    assert!(
        !done && text.contains("this needs a token with the scope ack, which api:amtool does not have"),
        "{text}"
    );
    for _ in 0..2 {
        let (done, text) = ack("oncall").await;
        assert!(done && text.contains("acknowledged by alice") && !text.contains("already"), "{text}");
    }
    let out = stack.alerter.cli(&["incidents", "list"]).await.unwrap();
    let (done, text) = (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned());
    assert!(!done && text.contains("give --token-file (or STEPWATCH_TOKEN_FILE)"), "{text}");
    let shown = stack.alerter.cli(&["audit", "--target", &id, "--token-file", &with("ops")]).await.unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let row = shown.lines().find(|l| l.contains("api:oncall (alice)")).unwrap_or_default();
    assert!(row.contains("cli") && row.contains("127.0.0.1") && row.contains("done"), "{shown}");
    // What is repeated is written once.
    let count = async || {
        let page = http::client().get(format!("{}/metrics", stack.alerter.url()));
        let token = std::fs::read_to_string(file(&dir, "ops")).unwrap();
        let page = page.bearer_auth(token.trim()).send().await.ok()?.text().await.ok()?;
        stepwatch_tests::exposition::value(&page, "stepwatch_alerter_alerts_received_total", &[])
    };
    let before = count().await.unwrap();
    poll_until("Prometheus to send it again", PATIENCE, async || count().await.filter(|n| *n > before))
        .await
        .unwrap();
    let log = ask(&stack, &dir, "ops", "/api/v1/audit?action=alerts").await;
    assert_eq!(log["entries"].as_array().unwrap().len(), 1, "{log}");
    assert_eq!(log["entries"][0]["actor"], "api:prometheus");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_and_other_names_of_the_host_reach_nothing() {
    let stack = Stack::start_with(StackOptions { blind: true, ..StackOptions::default() }).await.unwrap();
    let silence =
        json!({"matchers": ["run=\"llama\""], "duration": "1h", "created_by": "mallory", "comment": "x"});
    let alerts = json!([{"labels": {"alertname": "Disk", "severity": "page"}}]);
    let ask = async |method: reqwest::Method, path: &str, headers: &[(&str, &str)], body: String| {
        let mut request = http::client().request(method, format!("{}{path}", stack.alerter.url()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(body).send().await.unwrap().status().as_u16()
    };
    let (get, post) = (reqwest::Method::GET, reqwest::Method::POST);
    for headers in [
        &[("origin", "https://evil.example"), ("content-type", "text/plain")][..],
        &[("sec-fetch-site", "cross-site"), ("content-type", "application/json")],
        &[("host", "evil.example"), ("origin", "http://evil.example"), ("content-type", "application/json")],
    ] {
        for (path, body) in [
            ("/api/v1/silences", silence.to_string()),
            ("/api/v2/alerts", alerts.to_string()),
            ("/api/v1/write", String::new()),
            ("/-/reload", String::new()),
        ] {
            assert_eq!(ask(post.clone(), path, headers, body).await, 403, "{path} {headers:?}");
        }
    }
    for path in ["/", "/api/v1/incidents", "/metrics"] {
        let headers = [("host", "evil.example"), ("sec-fetch-site", "same-origin")];
        assert_eq!(ask(get.clone(), path, &headers, String::new()).await, 403, "{path}");
        assert_eq!(ask(get.clone(), path, &[], String::new()).await, 200, "{path}");
    }
    let url = format!("{}/api/v1/silences", stack.alerter.url());
    assert_eq!(http::get_json(&url).await.unwrap()["silences"], json!([]), "nothing was silenced");
    let own = stack.alerter.url();
    let headers = [("origin", own.as_str()), ("content-type", "application/json")];
    let status = ask(post, "/api/v1/silences", &headers, silence.to_string()).await;
    assert!((200..300).contains(&status), "{status}");
    let page = stack.alerter.metrics().await.unwrap();
    assert!(page.contains("stepwatch_alerter_http_requests_foreign_total 15"), "{page}");
}

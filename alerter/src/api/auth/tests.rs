use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::COOKIE;
use reqwest::Method;
use serde_json::{Value, json};
use stepwatch_model::time::Span;

use super::Gate;
use crate::access::sessions::Credential;
use crate::access::{Keyring, Scope, Scopes, TokenScope};
use crate::audit::{AuditConfig, AuditLog, AuditMetrics};
use crate::clock::wall;
use crate::metrics::GateMetrics;
use crate::oidc::{Oidc, Role, Settings};
use crate::store::Store;
use crate::testing::{TestApp, rank_dead, step, wait_for};

/// A token of each scope, named after it, and one that is limited to some runs.
const TOKENS: &str = r#"
api:
  tokens:
    - {name: ingest, token_file: ingest, scopes: [ingest]}
    - {name: read, token_file: read, scopes: [read]}
    - {name: ack, token_file: ack, scopes: [ack]}
    - {name: silence, token_file: silence, scopes: [silence]}
    - {name: admin, token_file: admin, scopes: [admin]}
    - {name: llama, token_file: llama, scopes: [ack, silence, ingest], runs: ["llama-*"]}
    - {name: research, token_file: research, scopes: [read], teams: [research]}
teams:
  - {name: research, match: ['run=~"llama-.*"']}
"#;

fn token(name: &str) -> String {
    format!("0123456789abcdef-{name}")
}

async fn start(web: Option<&str>) -> TestApp {
    let names = ["ingest", "read", "ack", "silence", "admin", "llama", "research"];
    let mut files: Vec<_> = names.iter().map(|name| (*name, token(name))).collect();
    files.extend(web.map(|text| ("web.yml", text.to_owned())));
    TestApp::start_with(TOKENS, &files).await
}

struct Sent {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Sent {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }
}

/// Sends a request with the token of this name.
async fn send(app: &TestApp, as_who: &str, method: &str, path: &str, body: Option<Value>) -> Sent {
    let method: Method = method.to_uppercase().parse().unwrap();
    let mut request = reqwest::Client::new().request(method, format!("{}{path}", app.url));
    if !as_who.is_empty() {
        request = request.bearer_auth(token(as_who));
    }
    if let Some(body) = body {
        request = request.json(&body);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    // A stream of events does not end.
    let endless = headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
    let text = if endless { String::new() } else { response.text().await.unwrap() };
    Sent { status, headers, text }
}

async fn get(app: &TestApp, as_who: &str, path: &str) -> Sent {
    send(app, as_who, "get", path, None).await
}

/// Opens a page for each run, and returns their ids.
async fn pages(app: &TestApp, runs: &[&str]) -> BTreeMap<String, String> {
    for (seq, run) in (0..).step_by(2).zip(runs) {
        app.exporter.say(&(step(seq + 1, run, 41) + &rank_dead(seq + 2, run, 3))).await;
    }
    wait_for("the incidents", async || {
        let all = get(app, "admin", "/api/v1/incidents").await.json();
        let all = all["incidents"].as_array().unwrap().clone();
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        (all.len() == runs.len()).then(|| all.iter().map(|i| (text(&i["run"]), text(&i["id"]))).collect())
    })
    .await
}

/// Every route of the document requires its scope, so that none is forgotten.
#[tokio::test]
async fn every_route_asks_for_a_token_and_then_for_its_scope() {
    let app = start(None).await;
    let document = serde_json::to_value(crate::openapi::document()).unwrap();
    let mut routes = vec![
        ("get".to_owned(), "/".to_owned(), Scope::Read),
        ("get".into(), "/incidents/nonsense".into(), Scope::Read),
        ("post".into(), "/incidents/ack".into(), Scope::Ack),
        ("post".into(), "/incidents/nonsense/escalate".into(), Scope::Ack),
        ("get".into(), "/-/log-level".into(), Scope::Admin),
        ("put".into(), "/-/log-level".into(), Scope::Admin),
        ("post".into(), "/-/reload".into(), Scope::Admin),
        ("post".into(), "/-/nonsense".into(), Scope::Admin),
    ];
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let needed = operation["security"][0]["bearerToken"][0].as_str();
            let scope = Scope::ALL.into_iter().find(|s| Some(s.as_str()) == needed);
            if let Some(scope) = scope {
                routes.push((method.clone(), path.replace("{id}", "nonsense"), scope));
            } else {
                assert!(crate::signed_paths::ALL.contains(&path.as_str()), "{method} {path} needs nothing");
            }
        }
    }
    assert!(routes.len() > 20, "{routes:?}");
    for (method, path, scope) in &routes {
        for unknown in ["", "unknown"] {
            let sent = send(&app, unknown, method, path, None).await;
            assert_eq!(sent.status, 401, "{method} {path}");
            assert_eq!(sent.headers.get_all("www-authenticate").iter().count(), 2);
        }
        for held in Scope::ALL {
            let sent = send(&app, held.as_str(), method, path, None).await;
            let allowed = Scopes::from_granted(&[held]).has(*scope);
            assert_eq!(
                !matches!(sent.status, 401 | 403),
                allowed,
                "{method} {path} with {held}: {}",
                sent.text
            );
            let named = format!("the scope {scope}, which api:{held} does not have");
            assert!(allowed || sent.text.contains(&named), "{}", sent.text);
        }
    }
    assert_eq!(get(&app, "", "/nonsense").await.status, 401);
    assert_eq!(get(&app, "read", "/nonsense").await.status, 404);
    for open in ["/-/healthy", "/-/ready"] {
        assert_eq!(get(&app, "", open).await.status, 200);
    }
    let metrics = get(&app, "read", "/metrics").await.text;
    assert!(metrics.contains("stepwatch_alerter_api_token_requests_total{token=\"admin\"}"), "{metrics}");
    assert!(metrics.contains("stepwatch_alerter_api_refused_total{reason=\"unknown\"}"), "{metrics}");
}

#[tokio::test]
async fn a_browser_sends_the_token_as_a_password_and_other_sites_may_not_use_it() {
    let app = start(None).await;
    let client = reqwest::Client::new();
    let page = client.get(format!("{}/", app.url));
    let page = page.basic_auth("anybody", Some(token("admin"))).send().await.unwrap();
    assert_eq!(page.status(), 200);
    let refused = get(&app, "", "/").await;
    assert!(
        refused.headers.contains_key("content-security-policy")
            && refused.text.starts_with("<!doctype html>")
    );
    for (site, status) in [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)] {
        let reload = client.post(format!("{}/-/reload", app.url)).header("sec-fetch-site", site);
        let reload = reload.basic_auth("anybody", Some(token("admin"))).send().await.unwrap();
        assert_eq!(reload.status(), status, "{site}");
    }
}

#[tokio::test]
async fn who_it_is_known_to_be_stands_before_who_it_says_it_is() {
    let app = start(None).await;
    let id = pages(&app, &["llama-1"]).await.remove("llama-1").unwrap();
    let path = format!("/api/v1/incidents/{id}");
    let acked = send(&app, "ack", "post", &format!("{path}/ack"), Some(json!({"by": "alice"}))).await;
    assert_eq!((acked.status, &acked.json()["acked_by"]), (200, &json!("api:ack (alice)")));
    let timeline = get(&app, "read", &path).await.json()["timeline"].clone();
    let actors: Vec<_> = timeline.as_array().unwrap().iter().map(|t| t["actor"].as_str().unwrap()).collect();
    assert!(actors.contains(&"api:ack (alice)"), "{actors:?}");
    let wish =
        json!({"matchers": ["run=llama-1"], "duration": "1h", "created_by": "silence", "comment": "why"});
    let silence = send(&app, "silence", "post", "/api/v1/silences", Some(wish)).await.json();
    assert_eq!(silence["created_by"], "api:silence");
    // The Alertmanager API, with the body that amtool sends to change a silence.
    let mut posted =
        get(&app, "read", &format!("/api/v2/silence/{}", silence["id"].as_str().unwrap())).await.json();
    posted["comment"] = json!("why not");
    let changed = send(&app, "silence", "post", "/api/v2/silences", Some(posted)).await;
    assert_eq!(changed.status, 200, "{}", changed.text);
    let id = changed.json()["silenceID"].as_str().unwrap().to_owned();
    let silence = get(&app, "read", &format!("/api/v1/silences/{id}")).await.json();
    assert_eq!((&silence["created_by"], &silence["comment"]), (&json!("api:silence"), &json!("why not")));
}

#[tokio::test]
async fn a_limited_token_knows_of_its_own_runs_and_no_others() {
    let app = start(None).await;
    let ids = pages(&app, &["llama-1", "mistral"]).await;
    let (own, foreign) = (&ids["llama-1"], &ids["mistral"]);
    for who in ["llama", "research"] {
        let list = get(&app, who, "/api/v1/incidents?limit=1").await.json();
        assert_eq!(list["incidents"].as_array().unwrap().len(), 1);
        assert_eq!(list["incidents"][0]["id"], json!(own));
        assert_eq!(get(&app, who, &format!("/api/v1/incidents/{own}")).await.status, 200);
        // The answer is as if it did not exist, also for a prefix that both ids share.
        let shared = own.chars().zip(foreign.chars()).take_while(|(a, b)| a == b).count();
        for id in [foreign.as_str(), &foreign[..foreign.len() - 2], &own[..shared]] {
            let sent = get(&app, who, &format!("/api/v1/incidents/{id}")).await;
            assert_eq!(
                (sent.status, sent.text.contains("there is no incident")),
                (404, true),
                "{}",
                sent.text
            );
            assert_eq!(get(&app, who, &format!("/incidents/{id}")).await.status, 404);
        }
        let runs = wait_for("the runs", async || {
            Some(get(&app, who, "/api/v1/runs").await.json()).filter(|r| r["runs"][0]["run"] == "llama-1")
        })
        .await;
        assert_eq!(runs["runs"].as_array().unwrap().len(), 1);
        for path in ["/", "/api/v2/alerts", "/api/v2/alerts/groups"] {
            let seen = get(&app, who, path).await.text;
            assert!(seen.contains("llama-1") && !seen.contains("mistral"), "{path}: {seen}");
        }
        for path in ["/metrics", "/api/v1/sources", "/api/v1/replicas"] {
            let sent = get(&app, who, path).await;
            assert_eq!((sent.status, sent.text.contains("limited to")), (403, true), "{path} {}", sent.text);
        }
    }
    for verb in ["ack", "resolve"] {
        let path = |id| format!("/api/v1/incidents/{id}/{verb}");
        let by = || Some(json!({"by": "x"}));
        assert_eq!(send(&app, "llama", "post", &path(foreign), by()).await.status, 404);
        assert_eq!(send(&app, "llama", "post", &path(own), by()).await.status, 200);
    }
    assert_eq!(get(&app, "admin", &format!("/api/v1/incidents/{foreign}")).await.json()["state"], "open");
}

#[tokio::test]
async fn a_limited_token_counts_what_it_may_see() {
    let app = start(None).await;
    pages(&app, &["llama-1", "mistral", "mistral-2"]).await;
    let all = wait_for("the runs and their incidents", async || {
        let all = get(&app, "read", "/api/v1/status").await.json();
        Some(all).filter(|all| all["runs"] == 3 && all["open_incidents"] == 3)
    })
    .await;
    assert_eq!((&all["sources"], &all["sources_up"]), (&json!(1), &json!(1)));
    for who in ["llama", "research"] {
        let own = get(&app, who, "/api/v1/status").await.json();
        assert_eq!(
            (&own["runs"], &own["open_incidents"], &own["store"]),
            (&json!(1), &json!(1), &json!("ok")),
            "{own}"
        );
        for of_all in ["sources", "sources_up", "pending_effects", "next_deadline_at", "next_deadline"] {
            assert!(own[of_all].is_null(), "{of_all}: {own}");
        }
        let page = get(&app, who, "/").await.text;
        assert!(page.contains("1 to 1 of 1<") && page.contains("<title>(1) "), "{page}");
        assert!(page.contains("1 run followed") && !page.contains("exporters"), "{page}");
    }
    let page = get(&app, "read", "/").await.text;
    assert!(page.contains("1 to 3 of 3<") && page.contains("3 runs followed"), "{page}");
    assert!(page.contains("1 of 1 exporters answer"), "{page}");
}

#[tokio::test]
async fn a_limited_token_silences_its_own_runs_and_no_others() {
    let app = start(None).await;
    let wish =
        |matcher: &str| json!({"matchers": [matcher], "duration": "1h", "created_by": "x", "comment": "why"});
    let make = async |who: &str, matcher: &str| {
        send(&app, who, "post", "/api/v1/silences", Some(wish(matcher))).await
    };
    for matcher in ["run=mistral", "kind=hang", r#"run=~".*""#] {
        let sent = make("llama", matcher).await;
        assert_eq!(
            (sent.status, sent.text.contains("limited to runs llama-*")),
            (403, true),
            "{}",
            sent.text
        );
    }
    let own = make("llama", r#"run=~"llama-.*""#).await.json()["id"].as_str().unwrap().to_owned();
    let foreign = make("admin", "run=mistral").await.json()["id"].as_str().unwrap().to_owned();
    for path in ["/api/v1/silences", "/api/v2/silences"] {
        let list = get(&app, "llama", path).await.text;
        assert!(list.contains(&own) && !list.contains(&foreign), "{list}");
    }
    for path in [format!("/api/v1/silences/{foreign}"), format!("/api/v2/silence/{foreign}")] {
        assert_eq!(get(&app, "llama", &path).await.status, 404, "{path}");
        assert_eq!(send(&app, "llama", "delete", &path, None).await.status, 404, "{path}");
    }
    // It cannot take over another silence either, or widen its own.
    for (id, matcher, status) in [(&foreign, "run=llama-1", 404), (&own, "kind=hang", 403)] {
        let mut wish = wish(matcher);
        wish["id"] = json!(id);
        assert_eq!(send(&app, "llama", "post", "/api/v1/silences", Some(wish)).await.status, status);
    }
    assert_eq!(get(&app, "admin", &format!("/api/v1/silences/{foreign}")).await.json()["state"], "active");
    let preview = json!({"matchers": ["kind=rank_dead"]});
    pages(&app, &["llama-1", "mistral"]).await;
    let seen = send(&app, "llama", "post", "/api/v1/silences/preview", Some(preview)).await.text;
    assert!(seen.contains("llama-1") && !seen.contains("mistral"), "{seen}");
    assert_eq!(send(&app, "llama", "delete", &format!("/api/v2/silence/{own}"), None).await.status, 200);
}

#[tokio::test]
async fn a_limited_token_brings_alerts_of_its_own_runs_and_no_others() {
    let app = start(None).await;
    let alert = |run: &str| json!({"labels": {"alertname": "DiskFull", "run": run}});
    let bring = async |alerts: Value| send(&app, "llama", "post", "/api/v2/alerts", Some(alerts)).await;
    assert_eq!(bring(json!([alert("llama-1")])).await.status, 200);
    let mixed =
        bring(json!([alert("llama-2"), alert("mistral"), {"labels": {"alertname": "DiskFull"}}])).await;
    assert_eq!(mixed.status, 403);
    assert_eq!(
        mixed.json(),
        "2 alerts refused: this token is limited to runs llama-*, by the labels run and team"
    );
    let alerts = get(&app, "admin", "/api/v2/alerts").await.json();
    let mut runs: Vec<_> =
        alerts.as_array().unwrap().iter().map(|a| a["labels"]["run"].as_str().unwrap().to_owned()).collect();
    runs.sort();
    assert_eq!(runs, ["llama-1", "llama-2"], "what is its own is taken all the same");
    assert_eq!(get(&app, "ingest", "/api/v2/alerts").await.status, 403, "it brings and does not look");
}

/// A dead node explains the faults of its GPUs, except if it was reported with a token that is
/// limited to one run.
#[tokio::test]
async fn a_limited_token_suppresses_nothing_that_is_not_its_own() {
    let app = start(None).await;
    let alert = |kind: &str, severity: &str, run: &str| json!([{"labels": {"alertname": kind, "kind": kind, "severity": severity, "run": run, "node": "n5"}}]);
    let bring = async |token: &str, alerts: Value| {
        assert_eq!(send(&app, token, "post", "/api/v2/alerts", Some(alerts)).await.status, 200);
    };
    bring("llama", alert("node_fault", "critical", "llama-9")).await;
    for run in ["mistral", "llama-9"] {
        bring("admin", alert("gpu_fault", "warning", run)).await;
    }
    let list = get(&app, "admin", "/api/v1/incidents").await.json();
    let mut suppressed: Vec<_> = list["incidents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| {
            format!(
                "{} of {}: {}",
                i["kind"].as_str().unwrap(),
                i["run"].as_str().unwrap(),
                !i["suppression"].is_null()
            )
        })
        .collect();
    suppressed.sort();
    assert_eq!(
        suppressed,
        ["gpu_fault of llama-9: true", "gpu_fault of mistral: false", "node_fault of llama-9: false"]
    );
}

#[tokio::test]
async fn a_reload_takes_tokens_away_and_brings_new_ones() {
    let app = start(None).await;
    assert_eq!(get(&app, "read", "/api/v1/status").await.status, 200);
    std::fs::write(app.dir.path().join("read"), token("another")).unwrap();
    app.reconfigure(TOKENS);
    assert_eq!(get(&app, "read", "/api/v1/status").await.status, 200, "not before the reload");
    assert_eq!(send(&app, "admin", "post", "/-/reload", None).await.status, 200);
    assert_eq!(get(&app, "read", "/api/v1/status").await.status, 401);
    assert_eq!(get(&app, "another", "/api/v1/status").await.status, 200);
    // An invalid file changes nothing.
    std::fs::write(app.dir.path().join("read"), "short").unwrap();
    assert_eq!(send(&app, "admin", "post", "/-/reload", None).await.status, 500);
    assert_eq!(get(&app, "another", "/api/v1/status").await.status, 200);
}

/// A provider whose people have sessions of this length.
#[allow(clippy::unnecessary_wraps, reason = "the gate takes an optional one")]
fn provider(session: Span) -> Option<Arc<Oidc>> {
    let scopes = Scopes::from_granted(&[Scope::Ack]);
    let role = Role { group: "ml-oncall".into(), scopes, token_scope: TokenScope::default() };
    let settings = Settings {
        issuer: "https://id.example.org".into(),
        client_id: "stepwatch".into(),
        client_secret: None,
        redirect_uri: "https://stepwatch.example.org/login/oidc/callback".into(),
        scopes: Vec::new(),
        groups_claim: "groups".into(),
        session,
        label: "Keycloak".into(),
        roles: vec![role],
    };
    Some(Arc::new(Oidc::new(settings).unwrap()))
}

#[tokio::test]
async fn a_reload_that_shortens_sessions_ends_those_of_people_that_are_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("a.db")).await.unwrap();
    let audit = AuditLog::new(store, AuditConfig::default(), AuditMetrics::default());
    let hour = Span::secs(3600);
    let gate = Gate::new(Keyring::default(), provider(hour), audit, GateMetrics::default(), None, None);
    let begin = |minutes_ago: i64| -> HeaderMap {
        let ann = Credential::Person {
            issuer: "https://id.example.org".into(),
            client_id: "stepwatch".into(),
            subject: "00u1".into(),
            name: "ann".into(),
            groups: vec!["ml-oncall".into()],
        };
        let id = gate.sessions().begin_for(ann, hour, wall() + Span::secs(-60 * minutes_ago)).unwrap();
        HeaderMap::from_iter([(COOKIE, format!("stepwatch={}", id.expose()).parse().unwrap())])
    };
    let (young, old) = (begin(1), begin(10));
    assert!(gate.session_of(&young).is_some() && gate.session_of(&old).is_some());
    gate.replace(Keyring::default(), provider(Span::secs(300)), None);
    assert!(gate.session_of(&young).is_some() && gate.session_of(&old).is_none());
    gate.replace(Keyring::default(), provider(hour), None);
    assert!(gate.session_of(&old).is_none(), "it has ended");
}

/// The password is `wonderland`.
const WEB: &str =
    "basic_auth_users: {alice: \"$2b$04$abcdefghijklmnopqrstuujZkTwHUiJ9XdZPwKfcfDo7dMp5DjlTu\"}\n";

#[tokio::test]
async fn users_of_the_web_configuration_may_do_everything_beside_the_tokens() {
    let app = start(Some(WEB)).await;
    let client = reqwest::Client::new();
    let id = pages(&app, &["llama-1"]).await.remove("llama-1").unwrap();
    let ack = client.post(format!("{}/api/v1/incidents/{id}/ack", app.url)).json(&json!({"by": "al"}));
    let acked = ack.basic_auth("alice", Some("wonderland")).send().await.unwrap();
    assert_eq!(acked.json::<Value>().await.unwrap()["acked_by"], "user:alice (al)");
    let guess = client.get(format!("{}/api/v1/status", app.url)).basic_auth("alice", Some("guess"));
    assert_eq!(guess.send().await.unwrap().status(), 401);
    assert_eq!(get(&app, "read", "/api/v1/status").await.status, 200);
    assert_eq!(get(&app, "unknown", "/api/v1/status").await.status, 401);
    assert_eq!(send(&app, "read", "post", "/-/reload", None).await.status, 403);
}

#[tokio::test]
async fn the_log_has_who_did_what_and_who_was_refused() {
    let app = start(None).await;
    let id = pages(&app, &["llama-1"]).await.remove("llama-1").unwrap();
    let ack = format!("/api/v1/incidents/{id}/ack");
    let by = || Some(json!({"by": "alice"}));
    for (who, status) in [("", 401), ("read", 403), ("ack", 200)] {
        assert_eq!(send(&app, who, "post", &ack, by()).await.status, status);
    }
    send(&app, "llama", "post", "/api/v1/incidents/nonsense/resolve", by()).await;
    send(&app, "admin", "put", "/-/log-level", None).await;
    app.reconfigure("routes: [{notify: [nobody]}]\n");
    send(&app, "admin", "post", "/-/reload", None).await;
    assert_eq!(get(&app, "read", "/api/v1/audit").await.status, 403);
    let log = get(&app, "admin", "/api/v1/audit").await.json();
    let rows: Vec<_> = log["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| {
            assert_eq!(e["remote"], "127.0.0.1");
            ["actor", "door", "action", "outcome", "detail"].map(|key| e[key].as_str().unwrap().to_owned())
        })
        .collect();
    let row = |at: usize| rows[at].each_ref().map(String::as_str);
    assert_eq!(rows.len(), 6, "{rows:#?}");
    assert_eq!(row(0)[..4], ["api:admin", "operator", "reload", "failed"]);
    assert_eq!(row(1)[..4], ["api:admin", "operator", "log-level", "refused"]);
    assert_eq!(row(2), ["api:llama", "api", "resolve", "refused", "404: there is no incident \"nonsense\""]);
    assert_eq!(row(3), ["api:ack (alice)", "api", "ack", "done", ""]);
    assert_eq!(row(4)[..4], ["api:read", "api", "ack", "refused"]);
    assert!(row(4)[4].starts_with("403: this needs a token with the scope ack"), "{:?}", row(4));
    assert_eq!(row(5)[..4], ["", "api", "ack", "refused"]);
    let mine = get(&app, "admin", "/api/v1/audit?actor=api:ack%20(alice)&limit=5").await.json();
    assert_eq!(mine["entries"][0]["target"], json!(id));
    for bad in ["limit=0", "door=window", "since=soon", "colour=red"] {
        assert_eq!(get(&app, "admin", &format!("/api/v1/audit?{bad}")).await.status, 400, "{bad}");
    }
}

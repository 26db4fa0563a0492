use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};
use stepwatch_model::time::Span;

use crate::store::busy::Busy;
use crate::testing::{DEADLINE, TestApp, wait_for};

const JSON: &str = "application/json";
const OVERRIDES: &str = "/api/v1/oncall/overrides";
/// Alice is on call by the configuration, and a page rings whoever is.
const ON_CALL: &str = r#"
users: [{name: alice, notify: [hook]}, {name: bob, notify: [hook]}, {name: carol, notify: []}]
schedules:
  - name: primary
    time_zone: Europe/Berlin
    layers: [{name: weekly, users: [alice], start: 2026-01-05T09:00, rotation: weekly}]
policies:
  - name: climb
    levels: [{after: 0s, notify: ["schedule:primary"]}]
routes: [{policy: climb}]
"#;

/// Posts a body; returns the status and the answer.
async fn post(app: &TestApp, path: &str, body: Value) -> (u16, Value) {
    let (status, text) = app.post(path, JSON, &body.to_string()).await;
    (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text}")))
}

async fn remove(app: &TestApp, id: &str) -> (u16, Value) {
    let sent = reqwest::Client::new().delete(format!("{}{OVERRIDES}/{id}", app.url)).send().await.unwrap();
    (sent.status().as_u16(), sent.json().await.unwrap())
}

/// A time so many hours from now.
fn hours(n: i64) -> String {
    (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(n)).to_string()
}

fn wish(user: &str, until: &str) -> Value {
    json!({"schedule": "primary", "user": user, "until": until, "created_by": "ann", "note": "dentist"})
}

async fn on_call(app: &TestApp) -> Value {
    app.json("/api/v1/oncall?schedule=primary").await["schedules"][0].clone()
}

async fn listed(app: &TestApp, query: &str) -> Vec<Value> {
    app.json(&format!("{OVERRIDES}{query}")).await["overrides"].as_array().unwrap().clone()
}

/// Waits until so many overrides are counted in a state, and returns all metrics.
async fn counted(app: &TestApp, state: &str, count: usize) -> String {
    let line = format!("stepwatch_alerter_oncall_overrides{{state=\"{state}\"}} {count}\n");
    wait_for("the metrics", async || {
        let (_, page) = app.get("/metrics").await;
        page.contains(&line).then_some(page)
    })
    .await
}

#[tokio::test]
async fn one_is_in_force_when_it_is_answered_and_after_a_restart() {
    let app = TestApp::start_with(ON_CALL, &[]).await;
    assert_eq!(on_call(&app).await["on_call"][0]["user"], "alice");
    let (status, made) = post(&app, OVERRIDES, wish("bob", &hours(2))).await;
    assert_eq!(status, 200, "{made}");
    assert_eq!((&made["state"], &made["created_by"]), (&json!("active"), &json!("ann")));
    assert_eq!(made["covers"][0]["user"], "bob");
    assert_eq!(made["covers"][0]["replaces"], Value::Null);
    // The plan that is read next has it.
    let plan = on_call(&app).await;
    assert_eq!(plan["on_call"][0]["user"], "bob");
    assert_eq!(plan["by"], "override by ann: dentist");
    assert_eq!(plan["shifts"][1]["users"], json!(["alice"]));

    // A page rings the one who took over.
    let id = app.page("llama").await;
    app.hook.wait_for(|s| s.deliveries.len() == 1, DEADLINE).await.unwrap();
    let detail = app.json(&format!("/api/v1/incidents/{id}")).await;
    let told = detail["timeline"].to_string();
    assert!(told.contains("schedule primary: bob (override by ann: dentist) by hook"), "{told}");

    let app = app.restart_with(ON_CALL).await;
    assert_eq!(on_call(&app).await["on_call"][0]["user"], "bob");
    let all = listed(&app, "").await;
    assert_eq!((all.len(), &all[0]["id"]), (1, &made["id"]));

    counted(&app, "active", 1).await;
    let id = made["id"].as_str().unwrap();
    let (status, over) = remove(&app, &id[..8]).await;
    assert_eq!((status, &over["state"]), (200, &json!("over")));
    assert!(over["removed_at"].is_string(), "{over}");
    assert_eq!(on_call(&app).await["on_call"][0]["user"], "alice");
    assert!(listed(&app, "").await.is_empty());
    assert_eq!(listed(&app, "?state=over&schedule=primary").await.len(), 1);
    assert!(listed(&app, "?state=all&schedule=office").await.is_empty());
    // Once more changes nothing.
    let (status, again) = remove(&app, id).await;
    assert_eq!((status, &again["removed_at"]), (200, &over["removed_at"]));
    assert_eq!(remove(&app, "nonsense").await.0, 404);

    let audit = app.json("/api/v1/audit").await;
    let entries = audit["entries"].as_array().unwrap();
    let seen: Vec<_> = entries.iter().map(|e| (e["action"].clone(), e["outcome"].clone())).collect();
    for (action, outcome) in [("override", "done"), ("expire", "done"), ("expire", "unchanged")] {
        assert!(seen.contains(&(json!(action), json!(outcome))), "{action} {outcome}: {audit}");
    }
    let told = entries.iter().find(|e| e["action"] == "override").unwrap()["detail"].to_string();
    assert!(told.contains("schedule primary: bob from now until ") && told.contains("dentist"), "{told}");
    let metrics = counted(&app, "active", 0).await;
    assert!(metrics.contains("stepwatch_alerter_oncall_overrides_forgotten_total 0"), "{metrics}");
}

#[tokio::test]
async fn where_two_overlap_the_answer_says_which_decides() {
    let app = TestApp::start_with(ON_CALL, &[]).await;
    let (_, first) = post(&app, OVERRIDES, wish("bob", &hours(2))).await;
    let (_, second) = post(&app, OVERRIDES, wish("alice", &hours(1))).await;
    assert_eq!(second["overlaps"], json!([first["id"]]));
    assert_eq!(first.get("overlaps"), None);
    assert_eq!(on_call(&app).await["by"], "override by ann: dentist");
    assert_eq!(on_call(&app).await["on_call"][0]["user"], "alice");
    assert_eq!(on_call(&app).await["shifts"][1]["users"], json!(["bob"]));
}

#[tokio::test]
async fn two_people_swap_and_are_one_entry() {
    let app = TestApp::start_with(ON_CALL, &[]).await;
    // Bob has two hours from now on, and alice what follows.
    let (_, made) = post(&app, OVERRIDES, wish("bob", &hours(2))).await;
    assert_eq!(made["state"], "active");
    let swap = json!({
        "schedule": "primary", "created_by": "ann",
        "first": {"user": "bob", "until": hours(2)}, "second": {"user": "alice", "from": hours(3), "until": hours(4)},
    });
    let path = format!("{OVERRIDES}/swap");
    let (status, made) = post(&app, &path, swap.clone()).await;
    assert_eq!(status, 200, "{made}");
    let covers = made["covers"].as_array().unwrap();
    assert_eq!((&covers[0]["user"], &covers[0]["replaces"]), (&json!("alice"), &json!("bob")));
    assert_eq!((&covers[1]["user"], &covers[1]["replaces"]), (&json!("bob"), &json!("alice")));
    assert_eq!(on_call(&app).await["by"], "swap by ann");
    assert_eq!(on_call(&app).await["on_call"][0]["user"], "alice");
    // The same request is the same swap.
    let (status, again) = post(&app, &path, swap.clone()).await;
    assert_eq!((status, &again["id"]), (200, &made["id"]));
    let mut other = swap;
    other["note"] = json!("back");
    let (status, refused) = post(&app, &path, other).await;
    assert_eq!(status, 400);
    assert!(
        refused["error"].as_str().unwrap().starts_with("bob is not on call by schedule primary"),
        "{refused}"
    );
}

#[tokio::test]
async fn what_is_refused_is_refused_with_a_reason() {
    let app = TestApp::start_with(ON_CALL, &[]).await;
    let with = |key: &str, value: Value| {
        let mut wish = wish("bob", &hours(2));
        wish[key] = value;
        wish
    };
    for (body, part) in [
        (with("schedule", json!("office")), "there is no schedule \"office\"; those that exist: primary"),
        (with("user", json!("zoe")), "there is no user \"zoe\"; those that exist: alice, bob, carol"),
        (with("user", json!("carol")), "no receiver reaches \"carol\""),
        (with("until", json!("soon")), "until: \"soon\" is not a time"),
        (with("from", json!("soon")), "from: \"soon\" is not a time"),
        (with("until", json!(hours(-1))), "the end must be after the start"),
        (with("until", json!(hours(32 * 24))), "at most 31 days"),
        (with("note", json!("x".repeat(201))), "note: at most 200 characters"),
        (with("created_by", json!(" ")), "author: must be a name"),
        (with("colour", json!("red")), "unknown field"),
    ] {
        let (status, answer) = post(&app, OVERRIDES, body).await;
        let why = answer["error"].as_str().unwrap();
        assert!(status == 400 && why.contains(part), "{part}: {status} {answer}");
    }
    assert_eq!(app.get(&format!("{OVERRIDES}?state=burning")).await.0, 400);
    assert!(listed(&app, "?state=all").await.is_empty());
}

/// Bob has only a chat, which wakes nobody. Pages go to one of the two schedules.
const PAGERS: &str = r#"  - {name: pager, wakes: true, stdout: {}}
users: [{name: alice, notify: [pager]}, {name: bob, notify: [hook]}, {name: cem, notify: [hook, pager]}]
schedules:
  - {name: primary, time_zone: UTC, layers: [{users: [alice], start: 2026-01-05T09:00}]}
  - {name: office, time_zone: UTC, layers: [{users: [alice], start: 2026-01-05T09:00}]}
policies: [{name: climb, levels: [{after: 0s, notify: ["schedule:primary"]}]}]
routes:
  - {match: ['severity="ticket"'], notify: ["schedule:office"]}
  - {policy: climb}
"#;

#[tokio::test]
async fn nobody_takes_over_pages_whom_nothing_wakes() {
    let app = TestApp::start_with(PAGERS, &[]).await;
    let (status, refused) = post(&app, OVERRIDES, wish("bob", &hours(2))).await;
    let why = "pages go to schedule primary (routes[1]), and none of the receivers of \"bob\" wakes anybody; \
               those that do: pager";
    assert_eq!((status, &refused["error"]), (400, &json!(why)));
    let swap = json!({
        "schedule": "primary", "created_by": "ann",
        "first": {"user": "alice", "until": hours(2)}, "second": {"user": "bob", "until": hours(2)},
    });
    let (status, refused) = post(&app, &format!("{OVERRIDES}/swap"), swap).await;
    assert!(status == 400 && refused["error"].as_str().unwrap().starts_with("pages go to"), "{refused}");
    assert!(listed(&app, "?state=all").await.is_empty());
    // One receiver of several is enough, and a schedule that only tickets reach need not wake.
    assert_eq!(post(&app, OVERRIDES, wish("cem", &hours(2))).await.0, 200);
    let mut office = wish("bob", &hours(2));
    office["schedule"] = json!("office");
    let (status, made) = post(&app, OVERRIDES, office).await;
    assert_eq!(status, 200, "{made}");
}

#[tokio::test]
async fn one_whose_person_lost_the_pager_is_shown_to_wake_nobody() {
    let app = TestApp::start_with(PAGERS, &[]).await;
    assert_eq!(post(&app, OVERRIDES, wish("cem", &hours(2))).await.0, 200);
    let (_, page) = app.get("/oncall").await;
    assert!(page.contains("tag active") && !page.contains(">wakes nobody</span>"), "{page}");
    app.reconfigure(&PAGERS.replace("notify: [hook, pager]", "notify: [hook]"));
    assert_eq!(app.post("/-/reload", JSON, "").await.0, 200);
    let (_, page) = app.get("/oncall").await;
    assert!(page.contains(">wakes nobody</span>"), "{page}");
}

#[tokio::test]
async fn one_whose_person_is_gone_is_shown_as_void() {
    let app = TestApp::start_with(ON_CALL, &[]).await;
    let (_, made) = post(&app, OVERRIDES, wish("bob", &hours(2))).await;
    assert_eq!((&made["effective"], &made["stored"]), (&json!(true), &json!(true)));
    let app = app.restart_with(&ON_CALL.replace("{name: bob, notify: [hook]}, ", "")).await;
    let all = listed(&app, "").await;
    assert_eq!((&all[0]["state"], &all[0]["effective"]), (&json!("active"), &json!(false)));
    assert_eq!(on_call(&app).await["on_call"][0]["user"], "alice");
    let (_, page) = app.get("/oncall").await;
    assert!(page.contains(">no effect</span>") && !page.contains("tag active"), "{page}");
    counted(&app, "void", 1).await;
    counted(&app, "active", 0).await;
    // A reload brings the person back.
    app.reconfigure(ON_CALL);
    assert_eq!(app.post("/-/reload", JSON, "").await.0, 200);
    wait_for("the reload", async || (listed(&app, "").await[0]["effective"] == true).then_some(())).await;
    counted(&app, "void", 0).await;
    assert_eq!(on_call(&app).await["on_call"][0]["user"], "bob");
}

async fn by_hand(app: &TestApp, sql: &'static str) {
    let _busy = Busy::now();
    let path = app.dir.path().join("alerter.db");
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
}

#[tokio::test]
async fn one_that_is_not_yet_stored_is_shown_because_it_decides() {
    let app = TestApp::start_with(ON_CALL, &[]).await;
    by_hand(&app, "ALTER TABLE oncall_overrides RENAME TO away").await;
    let body = wish("bob", &hours(2));
    let seen = async {
        let found = wait_for("the override", async || listed(&app, "").await.pop()).await;
        assert_eq!((&found["state"], &found["stored"]), (&json!("active"), &json!(false)));
        assert_eq!(on_call(&app).await["on_call"][0]["user"], "bob");
        let (_, page) = app.get("/oncall").await;
        assert!(page.contains("not yet stored"), "{page}");
        by_hand(&app, "ALTER TABLE away RENAME TO oncall_overrides").await;
        found
    };
    let ((status, made), found) = tokio::join!(post(&app, OVERRIDES, body.clone()), seen);
    assert_eq!((status, &made["id"], &made["stored"]), (200, &found["id"], &json!(true)), "{made}");
    // Whoever asks again because no answer came makes no second one.
    let (status, again) = post(&app, OVERRIDES, body).await;
    assert_eq!((status, &again["id"]), (200, &made["id"]));
    assert_eq!(listed(&app, "?state=all").await.len(), 1);
}

/// The engine's clock is ahead, because the wall clock was set back: pages are decided by it.
#[tokio::test]
async fn who_is_on_call_is_shown_by_the_clock_that_decides() {
    let app = TestApp::start_ahead(ON_CALL, Span::secs(3 * 3600)).await;
    let (status, refused) = post(&app, OVERRIDES, wish("bob", &hours(2))).await;
    assert!(status == 400 && refused["error"].as_str().unwrap().contains("must be after"), "{refused}");
    // It begins in two hours of the wall clock, and has begun by the engine's.
    let mut body = wish("bob", &hours(4));
    body["from"] = json!(hours(2));
    let (status, made) = post(&app, OVERRIDES, body).await;
    assert_eq!((status, &made["state"]), (200, &json!("active")), "{made}");
    assert_eq!(listed(&app, "?state=active").await.len(), 1);
    assert_eq!(on_call(&app).await["on_call"][0]["user"], "bob");
    let (_, page) = app.get("/oncall").await;
    assert!(page.contains("<b>bob</b>") && page.contains("tag active"), "{page}");
}

fn token(name: &str) -> String {
    format!("0123456789abcdef-{name}")
}

/// A schedule that only one team's incidents reach, and one that all reach.
const TEAMS: &str = r#"
api:
  tokens:
    - {name: read, token_file: read, scopes: [read]}
    - {name: ack, token_file: ack, scopes: [ack]}
    - {name: silence, token_file: silence, scopes: [silence]}
    - {name: research, token_file: research, scopes: [silence], teams: [research]}
teams:
  - {name: research, match: ['run=~"llama-.*"'], notify: ["schedule:research"]}
users: [{name: alice, notify: [hook]}, {name: bob, notify: [hook]}]
schedules:
  - {name: primary, time_zone: UTC, layers: [{users: [alice], start: 2026-01-05T09:00}]}
  - {name: research, time_zone: UTC, layers: [{users: [alice], start: 2026-01-05T09:00}]}
  - {name: unused, time_zone: UTC, layers: [{users: [alice], start: 2026-01-05T09:00}]}
routes: [{match: ['severity="page"'], notify: ["schedule:primary"]}]
"#;

#[tokio::test]
async fn a_token_needs_the_scope_and_stays_within_its_teams() {
    let files: Vec<_> =
        ["read", "ack", "silence", "research"].into_iter().map(|name| (name, token(name))).collect();
    let app = TestApp::start_with(TEAMS, &files).await;
    let client = reqwest::Client::new();
    let make = async |who: &str, schedule: &str| {
        let mut body = wish("bob", &hours(2));
        body["schedule"] = json!(schedule);
        let request = client.post(format!("{}{OVERRIDES}", app.url)).bearer_auth(token(who));
        let sent = request.json(&body).send().await.unwrap();
        (sent.status().as_u16(), sent.json::<Value>().await.unwrap())
    };
    for who in ["read", "ack"] {
        assert_eq!(make(who, "primary").await.0, 403, "{who}");
    }
    let (status, made) = make("silence", "primary").await;
    assert_eq!((status, &made["created_by"]), (200, &json!("api:silence (ann)")));
    assert_eq!(make("research", "research").await.0, 200);
    for schedule in ["primary", "unused"] {
        let (status, answer) = make("research", schedule).await;
        assert_eq!(status, 403, "{schedule}");
        assert!(answer["error"].as_str().unwrap().contains("may decide for others"), "{answer}");
    }
    // Whoever may not make one may not remove it either.
    let path = format!("{}{OVERRIDES}/{}", app.url, made["id"].as_str().unwrap());
    for (who, status) in [("read", 403), ("research", 403), ("silence", 200)] {
        let sent = client.delete(&path).bearer_auth(token(who)).send().await.unwrap();
        assert_eq!(sent.status().as_u16(), status, "{who}");
    }
    let list = client.get(format!("{}{OVERRIDES}?state=over", app.url)).bearer_auth(token("read"));
    let list: Value = list.send().await.unwrap().json().await.unwrap();
    assert_eq!(list["overrides"][0]["removed_by"], "api:silence");
}

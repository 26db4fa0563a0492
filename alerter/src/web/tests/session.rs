//! Tests of the login, and of the rights and the end of a session.

use reqwest::header::{ACCEPT, CONTENT_TYPE, REFERER};

use super::{Browser, Seen};
use crate::testing::{TestApp, rank_dead, step, wait_for};

const CONFIG: &str = r#"
api:
  tokens:
    - {name: admin, token_file: admin, scopes: [admin]}
    - {name: reader, token_file: reader, scopes: [read]}
    - {name: llama, token_file: llama, scopes: [ack, silence], runs: ["llama-*"]}
"#;
/// The password is `wonderland`.
const USERS: &str =
    "basic_auth_users: {alice: \"$2b$04$abcdefghijklmnopqrstuujZkTwHUiJ9XdZPwKfcfDo7dMp5DjlTu\"}\n";

fn token(name: &str) -> String {
    format!("0123456789abcdef-{name}")
}

async fn start(users: bool) -> TestApp {
    let mut files: Vec<_> = ["admin", "reader", "llama"].map(|name| (name, token(name))).into();
    files.extend(users.then(|| ("web.yml", USERS.to_owned())));
    TestApp::start_with(CONFIG, &files).await
}

/// Opens a page for a run, and returns its id.
async fn open(app: &TestApp, seq: u64, run: &str) -> String {
    app.exporter.say(&(step(seq, run, 41) + &rank_dead(seq + 1, run, 3))).await;
    let url = format!("{}/api/v1/incidents?run={run}&state=open", app.url);
    wait_for("the incident", async || {
        let list = reqwest::Client::new().get(&url).bearer_auth(token("admin")).send().await.unwrap();
        let list: serde_json::Value = list.json().await.unwrap();
        list["incidents"][0]["id"].as_str().map(str::to_owned)
    })
    .await
}

async fn log_in<'a>(app: &'a TestApp, name: &str, secret: &str) -> (Browser<'a>, Seen) {
    let mut browser = Browser::of(app);
    let fields = [("name", name), ("password", secret), ("next", "/?state=all")];
    let seen = browser.post("/login", &fields).await;
    browser.session = seen.cookie.as_ref().map(|cookie| cookie.split(';').next().unwrap().to_owned());
    (browser, seen)
}

/// The CSRF token in the forms of a page.
fn csrf(seen: &Seen) -> String {
    let (_, rest) = seen.html.split_once("name=\"csrf\" value=\"").expect("a form");
    rest.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_browser_is_led_to_the_login_and_back() {
    for users in [false, true] {
        let app = start(users).await;
        let stranger = Browser::of(&app);
        let seen = stranger.get("/incidents/abc?x=1").await;
        assert_eq!((seen.status, seen.to.as_deref()), (303, Some("/login?next=%2Fincidents%2Fabc%3Fx%3D1")));
        let seen = stranger.get(seen.to.as_deref().unwrap()).await;
        assert!(seen.status == 200 && seen.has("value=\"/incidents/abc?x=1\""), "{}", seen.html);
        for path in seen.html.split('"').filter(|part| part.starts_with("/assets/")) {
            assert_eq!(stranger.get(path).await.status, 200, "{path}");
        }
        assert_eq!(stranger.post("/incidents/ack", &[]).await.status, 401, "a program is led nowhere");
        assert_eq!(app.get("/").await.0, 401);
        // The session of whoever pressed this button has ended.
        let form = stranger.client.post(format!("{}/incidents/abc/ack", app.url)).body("csrf=x");
        let form = form.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let form = form.header(ACCEPT, "text/html,*/*").header(REFERER, format!("{}/incidents/abc", app.url));
        let seen = stranger.send(form).await;
        let login = "/login?next=%2Fincidents%2Fabc&unsent=yes";
        assert_eq!((seen.status, seen.to.as_deref()), (303, Some(login)), "{}", seen.html);
        let seen = stranger.get(login).await;
        assert!(
            seen.has("what you sent was not done") && seen.has("value=\"/incidents/abc\""),
            "{}",
            seen.html
        );

        let (browser, seen) = log_in(&app, "", &token("admin")).await;
        assert_eq!((seen.status, seen.to.as_deref()), (303, Some("/?state=all")), "{}", seen.html);
        let cookie = seen.cookie.unwrap();
        assert!(cookie.starts_with("stepwatch=") && cookie.ends_with("; Path=/; HttpOnly; SameSite=Lax"));
        let seen = browser.get("/").await;
        assert!(seen.status == 200 && seen.has("api:admin") && seen.has("Log out"), "{}", seen.html);
        assert_eq!(browser.get("/login?next=/silences").await.to.as_deref(), Some("/silences"));
    }
    let app = start(true).await;
    let (browser, _) = log_in(&app, "alice", "wonderland").await;
    assert!(browser.get("/").await.has("user:alice"));
}

#[tokio::test]
async fn all_refused_logins_say_the_same_and_are_limited_and_recorded() {
    let app = start(true).await;
    let mut said = std::collections::BTreeSet::new();
    for (name, secret) in [("alice", "wrong"), ("nobody", "wonderland"), ("", "wrong"), ("alice", "")] {
        let (browser, seen) = log_in(&app, name, secret).await;
        assert_eq!((seen.status, browser.session), (401, None), "{name}");
        let alarm = seen.html.split("role=\"alert\">").nth(1).unwrap().split('<').next().unwrap();
        said.insert(alarm.to_owned());
    }
    assert_eq!(said.len(), 1, "{said:?}");
    let mut last = 401;
    for _ in 0..10 {
        last = log_in(&app, "alice", "wrong").await.1.status;
    }
    assert_eq!(last, 429);
    let (_, seen) = log_in(&app, "alice", "wonderland").await;
    assert!(seen.status == 429 && seen.has("Try again in "), "{}", seen.html);
    let url = format!("{}/api/v1/audit?action=login&outcome=refused", app.url);
    let log = reqwest::Client::new().get(url).bearer_auth(token("admin")).send().await.unwrap();
    let log: serde_json::Value = log.json().await.unwrap();
    let detail = log["entries"].as_array().unwrap().last().unwrap()["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("401: login of \"alice\""), "{detail}");
    assert!(!log.to_string().contains("wonderland"), "{log}");
}

#[tokio::test]
async fn a_session_changes_nothing_without_what_its_forms_carry() {
    let app = start(false).await;
    let id = open(&app, 1, "llama-1").await;
    let (browser, _) = log_in(&app, "", &token("admin")).await;
    let (other, _) = log_in(&app, "", &token("admin")).await;
    let path = format!("/incidents/{id}/ack");
    let of_another = csrf(&other.get("/").await);
    for fields in [vec![], vec![("csrf", "")], vec![("csrf", of_another.as_str())]] {
        let seen = browser.post(&path, &fields).await;
        assert!(seen.status == 403 && seen.has("load the page again"), "{fields:?}: {}", seen.html);
    }
    // The API accepts it only in a header, and reads need none.
    let api = |method: reqwest::Method, path: &str| {
        let request = browser.client.request(method, format!("{}/api/v1/{path}", app.url));
        request.header("cookie", browser.session.clone().unwrap())
    };
    let list = api(reqwest::Method::GET, "incidents?state=open").send().await.unwrap();
    assert!(list.status() == 200 && list.text().await.unwrap().contains(&id));
    let ack =
        || api(reqwest::Method::POST, &format!("incidents/{id}/ack")).json(&serde_json::json!({"by": "x"}));
    assert_eq!(ack().send().await.unwrap().status(), 403);
    assert_eq!(ack().header("x-csrf-token", &of_another).send().await.unwrap().status(), 403);
    let own = csrf(&browser.get("/").await);
    let seen = browser.post(&path, &[("csrf", &own)]).await;
    assert_eq!(seen.status, 303, "{}", seen.html);
    let acked = ack().header("x-csrf-token", &own).send().await.unwrap();
    let acked: serde_json::Value = acked.json().await.unwrap();
    assert_eq!(acked["acked_by"], "api:admin", "the name of the session, whatever the form says");
}

#[tokio::test]
async fn a_limited_session_sees_its_own_and_is_told_which_scope_it_lacks() {
    let app = start(false).await;
    let own = open(&app, 1, "llama-1").await;
    let foreign = open(&app, 3, "mistral").await;
    let (browser, _) = log_in(&app, "", &token("llama")).await;
    let seen = browser.get("/").await;
    assert!(seen.has(&own) && !seen.has(&foreign) && !seen.has("mistral"), "{}", seen.html);
    assert!(seen.has("<title>(1) "), "{}", seen.html);
    assert_eq!(browser.get(&format!("/incidents/{foreign}")).await.status, 404);
    let csrf_own = csrf(&seen);
    let seen = browser.post(&format!("/incidents/{foreign}/ack"), &[("csrf", &csrf_own)]).await;
    assert_eq!(seen.status, 404);
    let seen = browser.get("/receivers").await;
    assert!(seen.status == 403 && seen.has("limited to runs llama-*"), "{}", seen.html);

    let (reader, _) = log_in(&app, "", &token("reader")).await;
    let seen = reader.get(&format!("/incidents/{own}")).await;
    for button in [">Acknowledge</button>", ">Silence</button>", ">Note</button>"] {
        assert!(!seen.has(button), "no button that does nothing: {}", seen.html);
    }
    let seen = reader.post(&format!("/incidents/{own}/ack"), &[("csrf", &csrf(&seen))]).await;
    assert!(seen.status == 403 && seen.has("the scope ack, which api:reader does not have"), "{}", seen.html);
}

#[tokio::test]
async fn a_session_ends_by_logging_out_and_with_its_token_or_password() {
    let app = start(true).await;
    let (browser, _) = log_in(&app, "", &token("admin")).await;
    let seen = browser.post("/logout", &[("csrf", &csrf(&browser.get("/").await))]).await;
    assert_eq!(seen.to.as_deref(), Some("/login"));
    assert!(seen.cookie.unwrap().starts_with("stepwatch=; Path=/; Max-Age=0"));
    assert_eq!(browser.get("/").await.status, 303, "the old value is worth nothing");

    let (reader, _) = log_in(&app, "", &token("reader")).await;
    let (admin, _) = log_in(&app, "", &token("admin")).await;
    let (alice, _) = log_in(&app, "alice", "wonderland").await;
    std::fs::write(app.dir.path().join("reader"), token("another")).unwrap();
    let reload = reqwest::Client::new().post(format!("{}/-/reload", app.url)).bearer_auth(token("admin"));
    assert_eq!(reload.send().await.unwrap().status(), 200);
    assert_eq!(reader.get("/").await.status, 303, "its token is gone");
    assert_eq!((admin.get("/").await.status, alice.get("/").await.status), (200, 200));
    let other = USERS.replace("DjlTu", "Djlua");
    std::fs::write(app.dir.path().join("web.yml"), other).unwrap();
    assert_eq!(alice.get("/").await.status, 303, "her password is another one");
    assert_eq!(admin.get("/").await.status, 200);
}

#[tokio::test]
async fn a_made_up_session_and_one_beside_a_wrong_token_are_nobody() {
    let app = start(false).await;
    let mut browser = Browser::of(&app);
    for made_up in ["stepwatch=".to_owned() + &"0".repeat(64), "stepwatch=x".into(), "stepwatch=".into()] {
        browser.session = Some(made_up);
        assert_eq!(browser.get("/").await.status, 303);
    }
    let (browser, _) = log_in(&app, "", &token("admin")).await;
    let both = browser.client.get(format!("{}/api/v1/status", app.url)).bearer_auth("wrong");
    assert_eq!(browser.send(both).await.status, 401);
}

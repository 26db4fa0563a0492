//! Login by OpenID Connect in a browser, with the whole service and a provider.

use reqwest::header::{COOKIE, HOST, RETRY_AFTER, SET_COOKIE};
use serde_json::{Value, json};
use stepwatch_fakes::{FakeOidc, Fault, OidcProvider};

use super::{Browser, Seen};
use crate::testing::{TestApp, rank_dead, step, wait_for};

const ADMIN: &str = "0123456789abcdef-admin";
/// Where people reach the alerter, if somebody asks the provider.
const EXTERNAL: &str = "http://stepwatch.localhost";

fn config(provider: &FakeOidc, roles: &str, tokens: bool) -> String {
    let tokens = if tokens { "  tokens: [{name: admin, token_file: admin, scopes: [admin]}]\n" } else { "" };
    format!(
        "external_url: {EXTERNAL}\napi:\n{tokens}  oidc:\n    issuer: {}\n    client_id: stepwatch\n    \
         client_secret_file: client\n    label: Keycloak\n    roles: [{roles}]\n",
        provider.url()
    )
}

const ROLES: &str = "{group: ml-oncall, scopes: [ack]}, {group: research, scopes: [read], runs: ['llama-*']}";

async fn start(provider: &FakeOidc, tokens: bool) -> TestApp {
    let files = [("client", OidcProvider::SECRET.to_owned()), ("admin", ADMIN.to_owned())];
    TestApp::start_with(&config(provider, ROLES, tokens), &files).await
}

fn pair(cookie: &str) -> String {
    cookie.split(';').next().unwrap().to_owned()
}

/// Goes to the provider, and returns the path to which it leads back.
async fn visit(browser: &mut Browser<'_>, next: &str) -> String {
    let seen = browser.get(&format!("/login/oidc?next={next}")).await;
    assert_eq!(seen.status, 303, "{}", seen.html);
    let cookie = seen.cookie.unwrap();
    assert!(cookie.ends_with("; Path=/; Max-Age=600; HttpOnly; SameSite=Lax"), "{cookie}");
    browser.session = Some(pair(&cookie));
    let answer = browser.client.get(seen.to.unwrap()).send().await.unwrap();
    let back = answer.headers()["location"].to_str().unwrap().to_owned();
    back.strip_prefix(EXTERNAL).unwrap().to_owned()
}

async fn log_in<'a>(app: &'a TestApp, next: &str) -> (Browser<'a>, Seen) {
    let mut browser = Browser::of(app);
    let back = visit(&mut browser, next).await;
    let seen = browser.get(&back).await;
    browser.session = seen.cookie.as_deref().map(pair);
    (browser, seen)
}

/// The CSRF token in the forms of a page.
fn csrf(seen: &Seen) -> String {
    let (_, rest) = seen.html.split_once("name=\"csrf\" value=\"").expect("a form");
    rest.split('"').next().unwrap().to_owned()
}

async fn audit(app: &TestApp) -> Vec<Value> {
    entries(app, "login").await
}

/// The audit log's entries of an action, the latest first.
async fn entries(app: &TestApp, action: &str) -> Vec<Value> {
    let url = format!("{}/api/v1/audit?action={action}", app.url);
    let log = reqwest::Client::new().get(url).bearer_auth(ADMIN).send().await.unwrap();
    log.json::<Value>().await.unwrap()["entries"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_person_logs_in_at_the_provider_and_is_known_by_name() {
    let provider = FakeOidc::start().await;
    let app = start(&provider, true).await;
    let stranger = Browser::of(&app);
    assert_eq!(stranger.get("/").await.status, 303, "nobody is let in without a login");
    let seen = stranger.get("/login?next=/silences").await;
    assert!(seen.has("href=\"/login/oidc?next=%2Fsilences\">Log in with Keycloak</a>"), "{}", seen.html);
    assert!(seen.has("name=\"password\""), "tokens are a way in as well");

    let (browser, seen) = log_in(&app, "/silences").await;
    assert_eq!((seen.status, seen.to.as_deref()), (303, Some("/silences")), "{}", seen.html);
    let cookie = seen.cookie.unwrap();
    assert!(cookie.starts_with("stepwatch=") && cookie.ends_with("; Path=/; HttpOnly; SameSite=Lax"));
    let seen = browser.get("/").await;
    assert!(seen.status == 200 && seen.has("oidc:ann") && seen.has("Log out"), "{}", seen.html);
    assert_eq!(browser.get("/receivers").await.status, 200);
    let reload = browser.client.post(format!("{}/-/reload", app.url)).header("x-csrf-token", csrf(&seen));
    let refused = browser.send(reload).await;
    assert!(refused.status == 403 && refused.has("the scope admin"), "{}", refused.html);
    let entry = entries(&app, "reload").await.remove(0);
    assert_eq!((&entry["actor"], &entry["outcome"]), (&json!("oidc:ann"), &json!("refused")));
    let detail = entry["detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("subject {}: 403: ", OidcProvider::SUBJECT)), "{detail}");
    for elsewhere in ["https://evil.example", "//evil.example", "/login"] {
        assert_eq!(log_in(&app, elsewhere).await.1.to.as_deref(), Some("/"), "{elsewhere}");
    }
    let entry = audit(&app).await.pop().unwrap();
    assert_eq!((&entry["actor"], &entry["outcome"]), (&json!("oidc:ann"), &json!("done")));
    assert_eq!(entry["detail"], format!("subject {}", OidcProvider::SUBJECT));
}

#[tokio::test]
async fn an_answer_that_this_browser_did_not_ask_for_begins_nothing() {
    let provider = FakeOidc::start().await;
    let app = start(&provider, true).await;
    let mut browser = Browser::of(&app);
    let back = visit(&mut browser, "/").await;
    // The address alone, as another site would lead here with the code of its own login.
    let victim = Browser::of(&app);
    assert_eq!(victim.get(&back).await.status, 400);
    let mut other = Browser::of(&app);
    let own = visit(&mut other, "/").await;
    let seen = other.get(&back).await;
    assert!(seen.status == 400 && seen.has("This browser has begun no login"), "{}", seen.html);
    assert_eq!(seen.cookie, None, "its own login goes on");
    assert_eq!(provider.with(|p| p.exchanged), 0);
    assert_eq!(other.get(&own).await.status, 303);
    // A refusal of the provider is shown, and nothing else that stands in the address.
    let state = back.split('&').find(|part| part.starts_with("state=")).unwrap();
    let denied = format!("/login/oidc/callback?error=access_denied&error_description=call+me&{state}");
    let seen = browser.get(&denied).await;
    assert!(seen.status == 403 && seen.has("access_denied") && !seen.has("call me"), "{}", seen.html);
    // A code that the provider does not take, and then the right one.
    let wrong = format!("/login/oidc/callback?code=x&iss={}&{state}", provider.url());
    assert_eq!(browser.get(&wrong).await.status, 403);
    assert_eq!(browser.get(&back).await.status, 303);
    let seen = browser.get(&back).await;
    assert_eq!(seen.status, 403, "a code is good once: {}", seen.html);
    assert!(!audit(&app).await.iter().any(|e| e.to_string().contains("canary")));
}

#[tokio::test]
async fn without_a_role_nobody_comes_in_and_is_told_why() {
    let provider = FakeOidc::start().await;
    let app = start(&provider, true).await;
    provider.change(|p| p.claims = json!({"preferred_username": "eve", "groups": ["secret-group", "b"]}));
    let (_, seen) = log_in(&app, "/").await;
    assert!(seen.status == 403 && seen.has("You are eve") && seen.has("listed 2"), "{}", seen.html);
    assert!(!seen.has("secret-group") && seen.cookie.unwrap().starts_with("stepwatch-login=;"));
    let entry = audit(&app).await.remove(0);
    assert_eq!((&entry["actor"], &entry["outcome"]), (&json!(""), &json!("refused")));
    let detail = entry["detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("subject {}: You are eve", OidcProvider::SUBJECT)), "{detail}");

    provider.change(|p| p.claims = json!({"preferred_username": "bob", "groups": ["research"]}));
    let (browser, _) = log_in(&app, "/").await;
    assert!(browser.get("/").await.has("oidc:bob"));
    let seen = browser.get("/receivers").await;
    assert!(seen.status == 403 && seen.has("limited to runs llama-*"), "{}", seen.html);
}

/// Some providers send no name, and long identifiers.
#[tokio::test]
async fn a_person_with_a_long_identifier_may_answer_for_an_incident() {
    let provider = FakeOidc::start().await;
    let app = start(&provider, true).await;
    app.exporter.say(&(step(1, "llama", 41) + &rank_dead(2, "llama", 3))).await;
    let list = format!("{}/api/v1/incidents?run=llama", app.url);
    let id = wait_for("the incident", async || {
        let list = reqwest::Client::new().get(&list).bearer_auth(ADMIN).send().await.unwrap();
        let list: Value = list.json().await.unwrap();
        list["incidents"][0]["id"].as_str().map(str::to_owned)
    })
    .await;
    for length in [90, 91, 100] {
        let subject = "x".repeat(length);
        provider.change(|p| {
            p.claims = json!({"sub": subject, "groups": ["ml-oncall"]});
            p.userinfo = json!({"sub": subject});
        });
        let (browser, seen) = log_in(&app, "/").await;
        assert_eq!(seen.status, 303, "{}", seen.html);
        let csrf = csrf(&browser.get("/").await);
        let fields = [("csrf", csrf.as_str()), ("note", "hello")];
        let seen = browser.post(&format!("/incidents/{id}/notes"), &fields).await;
        assert_eq!(seen.status, 303, "{length}: {}", seen.html);
    }
}

#[tokio::test]
async fn a_provider_that_is_down_keeps_nobody_else_out() {
    let provider = FakeOidc::start().await;
    let app = start(&provider, true).await;
    provider.script().push("configuration", Fault::Status(500));
    let browser = Browser::of(&app);
    let seen = browser.get("/login/oidc?next=/silences").await;
    assert!(seen.status == 502 && seen.has("does not answer as it should"), "{}", seen.html);
    assert!(seen.has("value=\"/silences\"") && seen.cookie.is_none());
    assert!(seen.has("A token or a name with its password still works."), "{}", seen.html);
    let form = [("name", ""), ("password", ADMIN), ("next", "/silences")];
    assert_eq!(browser.post("/login", &form).await.to.as_deref(), Some("/silences"));
}

#[tokio::test]
async fn a_session_ends_with_its_role_and_by_logging_out() {
    let provider = FakeOidc::start().await;
    let app = start(&provider, true).await;
    let (ann, _) = log_in(&app, "/").await;
    provider.change(|p| p.claims = json!({"preferred_username": "bob", "groups": ["research"]}));
    let (bob, _) = log_in(&app, "/").await;
    app.reconfigure(&config(&provider, "{group: research, scopes: [read]}", true));
    let reload = reqwest::Client::new().post(format!("{}/-/reload", app.url)).bearer_auth(ADMIN);
    assert_eq!(reload.send().await.unwrap().status(), 200);
    assert_eq!(ann.get("/").await.status, 303, "her role is gone");
    let seen = bob.get("/receivers").await;
    assert_eq!(seen.status, 200, "and his has no limits any more: {}", seen.html);
    let seen = bob.get("/").await;
    let seen = bob.post("/logout", &[("csrf", csrf(&seen).as_str())]).await;
    assert_eq!(seen.to.as_deref(), Some("/login"));
    assert_eq!(bob.get("/").await.status, 303);
}

#[tokio::test]
async fn the_provider_may_be_the_only_way_in() {
    let provider = FakeOidc::start().await;
    let app = start(&provider, false).await;
    assert_eq!(app.get("/api/v1/status").await.0, 401);
    let seen = Browser::of(&app).get("/login").await;
    assert!(seen.has("Log in with Keycloak") && !seen.has("name=\"password\""), "{}", seen.html);
    provider.script().push("configuration", Fault::Status(500));
    let seen = Browser::of(&app).get("/login/oidc").await;
    assert!(seen.status == 502 && !seen.has("still works"), "there is no other way in: {}", seen.html);
    wait_for("the provider", async || {
        (Browser::of(&app).get("/login/oidc").await.status == 303).then_some(())
    })
    .await;
    let (browser, _) = log_in(&app, "/").await;
    assert!(browser.get("/").await.has("oidc:ann"));
}

async fn reload(app: &TestApp) {
    let reload = reqwest::Client::new().post(format!("{}/-/reload", app.url)).bearer_auth(ADMIN);
    assert_eq!(reload.send().await.unwrap().status(), 200);
}

/// The cookie of a login that is begun under the name of the address that people use.
async fn begun(app: &TestApp) -> String {
    let browser = Browser::of(app);
    let begin = browser.client.get(format!("{}/login/oidc", app.url)).header(HOST, "stepwatch.localhost");
    let begun = begin.send().await.unwrap();
    assert_eq!(begun.status(), 303);
    begun.headers()[SET_COOKIE].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_reload_changes_what_cookies_browsers_get() {
    let provider = FakeOidc::start().await;
    let app = start(&provider, true).await;
    let plain = begun(&app).await;
    assert!(plain.starts_with("stepwatch-login=") && !plain.contains("Secure"), "{plain}");
    let config = config(&provider, ROLES, true);
    for address in ["https://stepwatch.localhost", "https://stepwatch.localhost:443"] {
        app.reconfigure(&config.replace(EXTERNAL, address));
        reload(&app).await;
        let cookie = begun(&app).await;
        assert!(cookie.starts_with("__Host-stepwatch-login="), "{cookie}");
        assert!(cookie.ends_with("; Path=/; Max-Age=600; Secure; HttpOnly; SameSite=Lax"), "{cookie}");
    }
    let browser = Browser::of(&app);
    let login = browser.client.post(format!("{}/login", app.url)).header(HOST, "stepwatch.localhost");
    let login = login.header("content-type", "application/x-www-form-urlencoded");
    let login = login.body(format!("name=&password={ADMIN}")).send().await.unwrap();
    let cookie = login.headers()[SET_COOKIE].to_str().unwrap();
    assert!(cookie.starts_with("__Host-stepwatch=") && cookie.contains("; Secure;"), "{cookie}");
}

#[tokio::test]
async fn a_login_that_was_begun_at_another_provider_or_client_does_not_go_on() {
    let provider = FakeOidc::start().await;
    let app = start(&provider, true).await;
    let mut browser = Browser::of(&app);
    let back = visit(&mut browser, "/").await;
    let config = config(&provider, ROLES, true);
    app.reconfigure(&config.replace("client_id: stepwatch", "client_id: another"));
    reload(&app).await;
    let seen = browser.get(&back).await;
    assert!(seen.status == 400 && seen.has("This browser has begun no login"), "{}", seen.html);
    assert_eq!(provider.with(|p| p.exchanged), 0);
    app.reconfigure(&config);
    reload(&app).await;
    assert_eq!(browser.get(&back).await.status, 303, "a reload alone ends no login");
}

#[tokio::test]
async fn codes_that_are_refused_are_limited_by_address() {
    let provider = FakeOidc::start().await;
    let app = start(&provider, true).await;
    let mut browser = Browser::of(&app);
    let back = visit(&mut browser, "/").await;
    let state = back.split(['?', '&']).find(|part| part.starts_with("state=")).unwrap();
    let wrong = format!("/login/oidc/callback?code=x&iss={}&{state}", provider.url());
    // As some providers refuse a code.
    provider.change(|p| p.refusal = 403);
    for _ in 0..10 {
        assert_eq!(browser.get(&wrong).await.status, 403);
    }
    let request = browser.client.get(format!("{}{back}", app.url));
    let seen = request.header(COOKIE, browser.session.clone().unwrap()).send().await.unwrap();
    assert_eq!(seen.status(), 429);
    let seconds: u64 = seen.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap();
    assert!((1..=61).contains(&seconds), "{seconds}");
    assert_eq!(provider.with(|p| p.exchanged), 0, "the right code is not tried either");
    let refused = audit(&app).await;
    assert_eq!(refused.len(), 10, "{refused:?}");
    let detail = refused[0]["detail"].as_str().unwrap();
    assert!(refused[0]["outcome"] == "refused" && detail.contains("invalid_grant"), "{detail}");
}

//! Login by OpenID Connect in a browser, with the whole service and a provider.

use serde_json::{Value, json};
use stepwatch_fakes::{FakeOidc, Fault, OidcProvider};

use super::{Browser, Seen};
use crate::testing::TestApp;

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

async fn audit(app: &TestApp) -> Vec<Value> {
    let url = format!("{}/api/v1/audit?action=login", app.url);
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
    let reload = browser.client.post(format!("{}/-/reload", app.url));
    assert_eq!(browser.send(reload).await.status, 403, "the role is not admin, and there is no CSRF token");
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
    visit(&mut other, "/").await;
    let seen = other.get(&back).await;
    assert!(seen.status == 400 && seen.has("This browser has begun no login"), "{}", seen.html);
    assert!(seen.cookie.unwrap().starts_with("stepwatch-login=; Path=/; Max-Age=0"));
    assert_eq!(provider.with(|p| p.exchanged), 0);
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

    provider.change(|p| p.claims = json!({"preferred_username": "bob", "groups": ["research"]}));
    let (browser, _) = log_in(&app, "/").await;
    assert!(browser.get("/").await.has("oidc:bob"));
    let seen = browser.get("/receivers").await;
    assert!(seen.status == 403 && seen.has("limited to runs llama-*"), "{}", seen.html);
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
    let csrf = bob.get("/").await;
    let (_, rest) = csrf.html.split_once("name=\"csrf\" value=\"").expect("a form");
    let seen = bob.post("/logout", &[("csrf", rest.split('"').next().unwrap())]).await;
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
    let (browser, _) = log_in(&app, "/").await;
    assert!(browser.get("/").await.has("oidc:ann"));
}

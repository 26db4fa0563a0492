use reqwest::redirect::Policy;
use serde_json::{Value, json};
use stepwatch_fakes::{FakeOidc, Fault, OidcProvider, Signing};
use url::Url;

use super::*;
use crate::access::{Glob, Scope};
use crate::clock::wall;
use crate::testing::wait_for;

fn role(group: &str, scope: Scope, runs: &[&str]) -> Role {
    let runs = runs.iter().map(|run| Glob::try_from((*run).to_owned()).unwrap()).collect();
    let token_scope = TokenScope { runs, teams: Vec::new() };
    Role { group: group.to_owned(), scopes: Scopes::from_granted(&[scope]), token_scope }
}

fn settings(issuer: &str) -> Settings {
    Settings {
        issuer: issuer.to_owned(),
        client_id: OidcProvider::CLIENT.to_owned(),
        client_secret: Some(Secret::new(OidcProvider::SECRET.to_owned())),
        redirect_uri: "https://stepwatch.example.org/login/oidc/callback".to_owned(),
        scopes: vec!["openid".to_owned(), "email".to_owned()],
        groups_claim: "groups".to_owned(),
        session: Span::secs(3600),
        label: "Keycloak".to_owned(),
        roles: vec![role("ml-oncall", Scope::Ack, &[]), role("research", Scope::Read, &["llama-*"])],
    }
}

fn oidc(provider: &FakeOidc) -> Oidc {
    Oidc::new(settings(&provider.url())).unwrap()
}

fn attempt() -> Attempt {
    Attempts::new().begin("/", wall()).unwrap()
}

/// Goes to the provider as a browser does, and returns the code and the issuer of its answer.
async fn visit(oidc: &Oidc, attempt: &Attempt) -> Result<(String, String), LoginError> {
    let url = oidc.authorization_url(attempt).await?;
    let client = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
    let response = client.get(url).send().await.unwrap();
    assert_eq!(response.status(), 302);
    let to = Url::parse(response.headers()["location"].to_str().unwrap()).unwrap();
    assert!(to.as_str().starts_with("https://stepwatch.example.org/login/oidc/callback?"));
    let of = |name: &str| to.query_pairs().find(|(key, _)| key == name).unwrap().1.into_owned();
    assert!(attempt.is_answered_by(&of("state")));
    Ok((of("code"), of("iss")))
}

async fn log_in(oidc: &Oidc) -> Result<Person, LoginError> {
    let attempt = attempt();
    let (code, issuer) = visit(oidc, &attempt).await?;
    oidc.person(&code, Some(&issuer), &attempt).await
}

fn refused(result: Result<Person, LoginError>) -> String {
    match result {
        Err(LoginError::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn seconds() -> i64 {
    wall().0 / 1000
}

#[tokio::test]
async fn a_person_has_the_rights_of_the_first_role_of_its_groups() {
    let provider = FakeOidc::start().await;
    let oidc = oidc(&provider);
    let ann = log_in(&oidc).await.unwrap();
    assert_eq!((ann.name.as_str(), ann.subject.as_str()), ("ann", OidcProvider::SUBJECT));
    let grant = oidc.rights(&oidc.credential(&ann)).unwrap();
    assert!(grant.scopes.has(Scope::Ack) && grant.token_scope.is_everything());

    let both = json!(["other", "research", "ml-oncall"]);
    provider.change(|p| p.claims = json!({"preferred_username": "bob", "groups": both}));
    let bob = log_in(&oidc).await.unwrap();
    assert_eq!(bob.groups, ["ml-oncall", "research"], "and nothing else is kept");
    assert!(oidc.rights(&oidc.credential(&bob)).unwrap().scopes.has(Scope::Ack));
    provider.change(|p| p.claims = json!({"preferred_username": "cat", "groups": "research"}));
    let cat = log_in(&oidc).await.unwrap();
    let grant = oidc.rights(&oidc.credential(&cat)).unwrap();
    assert!(!grant.scopes.has(Scope::Ack) && grant.token_scope.to_string() == "runs llama-*");

    // After a reload: a role is gone, or the provider is another.
    let mut fewer = settings(&provider.url());
    fewer.roles.truncate(1);
    let fewer = Oidc::new(fewer).unwrap();
    assert!(fewer.rights(&oidc.credential(&bob)).is_some());
    assert!(fewer.rights(&oidc.credential(&cat)).is_none());
    let other = Oidc::new(settings("https://other.example.org")).unwrap();
    assert!(other.rights(&oidc.credential(&ann)).is_none());
}

#[tokio::test]
async fn an_id_token_that_is_not_ours_begins_nothing() {
    let provider = FakeOidc::start().await;
    let oidc = oidc(&provider);
    for signing in [Signing::Nothing, Signing::Secret, Signing::PublicKey, Signing::Stranger] {
        provider.change(|p| p.signing = signing);
        let why = refused(log_in(&oidc).await);
        assert!(why.contains("ID token"), "{signing:?}: {why}");
    }
    provider.change(|p| p.signing = Signing::Right);
    let groups = |mut claims: Value| {
        claims["groups"] = json!(["ml-oncall"]);
        claims
    };
    let now = seconds();
    for claims in [
        json!({"exp": now - 120}),
        json!({"exp": null}),
        json!({"nbf": now + 120}),
        json!({"iat": now + 120}),
        json!({"iat": null}),
        json!({"nonce": "0".repeat(64)}),
        json!({"nonce": null}),
        json!({"aud": "another"}),
        json!({"aud": null}),
        json!({"aud": ["another"]}),
        json!({"aud": ["stepwatch", "another"]}),
        json!({"aud": ["stepwatch", "another"], "azp": "another"}),
        json!({"azp": "another"}),
        json!({"azp": 1}),
        json!({"iss": "https://evil.example.org"}),
        json!({"iss": [provider.url(), "https://evil.example.org"]}),
        json!({"sub": null}),
        json!({"sub": ""}),
        json!({"sub": "x".repeat(1025)}),
    ] {
        provider.change(|p| p.claims = groups(claims.clone()));
        let why = refused(log_in(&oidc).await);
        assert!(why.contains("ID token"), "{claims}: {why}");
    }
    for claims in [
        json!({"exp": now - 30}),
        json!({"nbf": now + 30}),
        json!({"iat": now + 30}),
        json!({"aud": ["stepwatch"]}),
        json!({"aud": ["stepwatch", "another"], "azp": "stepwatch"}),
    ] {
        provider.change(|p| p.claims = groups(claims.clone()));
        assert!(log_in(&oidc).await.is_ok(), "{claims}");
    }
}

#[tokio::test]
async fn keys_that_the_provider_changed_are_fetched() {
    let provider = FakeOidc::start().await;
    let oidc = oidc(&provider);
    log_in(&oidc).await.unwrap();
    log_in(&oidc).await.unwrap();
    let fetched = || provider.with(|p| p.requests.iter().filter(|r| r.path == "/jwks").count());
    assert_eq!(fetched(), 1);
    provider.change(OidcProvider::rotate);
    log_in(&oidc).await.unwrap();
    assert_eq!(fetched(), 2);
    // Tokens of unknown keys do not make us ask each time.
    provider.change(|p| p.signing = Signing::Stranger);
    for _ in 0..3 {
        refused(log_in(&oidc).await);
    }
    assert_eq!(fetched(), 2);
}

#[tokio::test]
async fn keys_are_used_on_while_they_cannot_be_renewed() {
    let provider = FakeOidc::start().await;
    let oidc = oidc(&provider);
    log_in(&oidc).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_hours(1)).await;
    tokio::time::resume();
    provider.script().push("jwks", Fault::Status(503));
    assert_eq!(log_in(&oidc).await.unwrap().name, "ann");
    // The signature of a key that is not among them is still not believed.
    provider.change(OidcProvider::rotate);
    provider.script().push("jwks", Fault::Status(503));
    let Err(LoginError::Provider(why)) = log_in(&oidc).await else { panic!("no key made this signature") };
    assert!(why.contains("its keys: HTTP 503"), "{why}");
}

#[tokio::test]
async fn keys_that_are_slow_to_come_keep_nobody_from_beginning_a_login() {
    let provider = FakeOidc::start().await;
    let oidc = oidc(&provider);
    let first = attempt();
    let (code, issuer) = visit(&oidc, &first).await.unwrap();
    provider.script().push("jwks", Fault::Hang);
    let waits = oidc.person(&code, Some(&issuer), &first);
    let begins = async {
        let asked = || provider.with(|p| p.requests.iter().any(|r| r.path == "/jwks"));
        wait_for("the request for the keys", async || asked().then_some(())).await;
        oidc.authorization_url(&attempt()).await
    };
    tokio::select! {
        ended = waits => panic!("{ended:?}"),
        begun = begins => assert!(begun.is_ok(), "{begun:?}"),
    }
}

#[tokio::test]
async fn a_code_is_of_one_login_and_one_provider() {
    let provider = FakeOidc::start().await;
    let oidc = oidc(&provider);
    let (first, other) = (attempt(), attempt());
    let (code, issuer) = visit(&oidc, &first).await.unwrap();
    let why = refused(oidc.person(&code, Some("https://evil.example.org"), &first).await);
    assert!(why.contains("issuer"), "{why}");
    let why = refused(oidc.person(&code, None, &first).await);
    assert!(why.contains("issuer"), "this provider names itself: {why}");
    assert_eq!(provider.with(|p| p.exchanged), 0, "it was not sent anywhere");
    assert!(oidc.person(&code, Some(&issuer), &first).await.is_ok());
    assert!(refused(oidc.person(&code, Some(&issuer), &first).await).contains("invalid_grant"), "twice");
    let (code, issuer) = visit(&oidc, &first).await.unwrap();
    let why = refused(oidc.person(&code, Some(&issuer), &other).await);
    assert!(why.contains("invalid_grant"), "the verifier of another browser: {why}");
    assert_eq!(provider.with(|p| p.exchanged), 1);
}

#[tokio::test]
async fn a_code_may_be_refused_with_another_status() {
    let provider = FakeOidc::start().await;
    let oidc = oidc(&provider);
    provider.change(|p| p.refusal = 403);
    let attempt = attempt();
    let (_, issuer) = visit(&oidc, &attempt).await.unwrap();
    let why = refused(oidc.person("x", Some(&issuer), &attempt).await);
    assert!(why.contains("invalid_grant"), "{why}");
    provider.change(|p| p.refusal = 500);
    let failed = oidc.person("x", Some(&issuer), &attempt).await;
    assert!(matches!(failed, Err(LoginError::Provider(_))), "a fault of the provider: {failed:?}");
}

#[tokio::test]
async fn a_redirect_of_the_exchange_is_not_followed() {
    let provider = FakeOidc::start().await;
    let oidc = oidc(&provider);
    provider.change(|p| p.redirects = true);
    let Err(LoginError::Provider(why)) = log_in(&oidc).await else { panic!("it redirects") };
    assert!(why.contains("the exchange of a code") && why.contains("redirects are not followed"), "{why}");
    let elsewhere = provider.with(|p| p.requests.iter().filter(|r| r.path == "/elsewhere").count());
    assert_eq!(elsewhere, 0);
}

#[tokio::test]
async fn a_configuration_of_another_provider_is_not_believed() {
    for (document, wanted) in [
        (json!({"issuer": "https://evil.example.org"}), "it calls itself \"https://evil.example.org\""),
        (json!({"token_endpoint": "http://10.0.0.5/token"}), "its token_endpoint does not begin with https"),
        (json!({"jwks_uri": "http://id.example.org/jwks"}), "its jwks_uri does not begin with https"),
    ] {
        let provider = FakeOidc::start().await;
        provider.change(|p| p.document = document);
        let Err(LoginError::Provider(why)) = log_in(&oidc(&provider)).await else { panic!("{wanted}") };
        assert!(why.contains(wanted), "{why}");
        assert_eq!(provider.with(|p| p.exchanged), 0);
    }
}

#[test]
fn only_a_provider_on_this_machine_has_addresses_without_https_and_only_there() {
    let (far, here) = ("https://id.example.org", "http://127.0.0.1:8080");
    let allows = |issuer: &str, text: &str| provider::endpoint(issuer, "token_endpoint", text).is_ok();
    assert!(allows(far, "https://id.example.org/token") && allows(here, "https://10.0.0.5/token"));
    for local in ["http://127.0.0.1:8080/token", "http://localhost:9/token", "http://[::1]/token"] {
        assert!(allows(here, local), "{local}");
        assert!(!allows(far, local), "{local} of a provider with https");
    }
    for plain in ["http://10.0.0.5/token", "http://id.example.org/token", "ftp://127.0.0.1/token", "token"] {
        assert!(!allows(here, plain) && !allows(far, plain), "{plain}");
    }
}

#[tokio::test]
async fn a_provider_need_not_name_itself_in_its_answer() {
    let provider = FakeOidc::start().await;
    let silent = json!({"authorization_response_iss_parameter_supported": null});
    provider.change(|p| p.document = silent);
    let oidc = oidc(&provider);
    let attempt = attempt();
    let (code, _) = visit(&oidc, &attempt).await.unwrap();
    let why = refused(oidc.person(&code, Some("https://evil.example.org"), &attempt).await);
    assert!(why.contains("issuer"), "another name is refused all the same: {why}");
    assert_eq!(oidc.person(&code, None, &attempt).await.unwrap().name, "ann");
}

#[tokio::test]
async fn groups_may_be_beside_the_token_or_left_out() {
    let provider = FakeOidc::start().await;
    let oidc = oidc(&provider);
    provider.change(|p| {
        p.claims = json!({"email": "ann@x.org", "email_verified": true});
        p.userinfo = json!({"groups": ["research"], "preferred_username": "ann"});
    });
    let ann = log_in(&oidc).await.unwrap();
    assert_eq!((ann.name.as_str(), ann.groups.len()), ("ann", 1));
    provider.change(|p| p.userinfo = json!({"groups": ["ml-oncall"], "sub": "another"}));
    assert!(refused(log_in(&oidc).await).contains("another person"));

    provider.change(|p| {
        p.claims = json!({"preferred_username": "ann", "_claim_names": {"groups": "src1"}});
        p.userinfo = json!({"groups": ["ml-oncall"]});
    });
    let subject = OidcProvider::SUBJECT.to_owned();
    let left_out =
        LoginError::NoRole { name: "ann".to_owned(), subject: subject.clone(), listed: 0, unlisted: true };
    assert_eq!(log_in(&oidc).await.unwrap_err(), left_out);
    let many: Vec<_> = (0..250).map(|i| format!("group-{i}")).collect();
    provider.change(|p| p.claims = json!({"groups": many}));
    let err = log_in(&oidc).await.unwrap_err();
    let name = "sub:00u1ab%7C2".to_owned();
    assert_eq!(err, LoginError::NoRole { name, subject, listed: 250, unlisted: false });
    assert!(!err.to_string().contains("group-"), "{err}");
}

#[tokio::test]
async fn real_providers_differ_in_their_names_and_in_how_they_take_the_secret() {
    for (slash, method) in [(true, "client_secret_basic"), (false, "client_secret_post")] {
        let provider = FakeOidc::start().await;
        provider.change(|p| (p.slash, p.method) = (slash, method));
        assert!(log_in(&oidc(&provider)).await.is_ok(), "{slash} {method}");
        // The address in the configuration may have the slash, too.
        let with_slash = Oidc::new(settings(&format!("{}/", provider.url()))).unwrap();
        assert!(log_in(&with_slash).await.is_ok(), "{slash} {method}");
    }
}

#[tokio::test]
async fn a_provider_that_is_down_is_asked_again_later_and_its_words_are_not_shown() {
    let provider = FakeOidc::start().await;
    let oidc = oidc(&provider);
    provider.script().push("configuration", Fault::Status(503));
    let Err(LoginError::Provider(why)) = log_in(&oidc).await else { panic!("it is down") };
    assert!(why.contains("its configuration: HTTP 503"), "{why}");
    wait_for("the provider", async || log_in(&oidc).await.ok()).await;
    for (endpoint, words) in [("token", "the exchange of a code"), ("userinfo", "its userinfo")] {
        provider.change(|p| p.claims = json!({}));
        provider.script().push(endpoint, Fault::Status(500));
        let Err(LoginError::Provider(why)) = log_in(&oidc).await else { panic!("{endpoint} is down") };
        assert!(why.contains(words) && !why.contains("canary") && !why.contains("access-1"), "{why}");
    }
}

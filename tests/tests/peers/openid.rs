//! A login at a real OpenID provider: `oidc-provider`, which is certified by the OpenID Foundation.

use std::collections::BTreeMap;
use std::path::Path;

use reqwest::header::{ACCEPT, CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Url};
use stepwatch_tests::daemon::{Daemon, command};
use stepwatch_tests::{Stack, StackOptions, bins, peers};

/// Where people reach the alerter, if somebody asks the provider.
const EXTERNAL: &str = "http://stepwatch.localhost";
const SECRET: &str = "a secret: of the client/+";
/// The most redirects and forms of a login.
const MAX_STEPS: usize = 20;

/// A browser without scripts, with a jar of cookies for each site.
struct Browser {
    client: Client,
    jars: BTreeMap<String, BTreeMap<String, String>>,
}

struct Seen {
    status: u16,
    to: Option<String>,
    html: String,
}

impl Browser {
    fn new() -> Self {
        let client = Client::builder().redirect(Policy::none()).no_proxy().build().unwrap();
        Self { client, jars: BTreeMap::new() }
    }

    async fn get(&mut self, url: &Url) -> Seen {
        let request = self.client.get(url.clone());
        self.send(url, request).await
    }

    async fn post(&mut self, url: &Url, form: &str) -> Seen {
        let request = self.client.post(url.clone()).body(form.to_owned());
        self.send(url, request.header(CONTENT_TYPE, "application/x-www-form-urlencoded")).await
    }

    async fn send(&mut self, url: &Url, request: RequestBuilder) -> Seen {
        let site = format!("{:?}:{:?}", url.host_str(), url.port());
        let jar = self.jars.entry(site).or_default();
        let cookies: Vec<_> = jar.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut request = request.header(ACCEPT, "text/html");
        if !cookies.is_empty() {
            request = request.header(COOKIE, cookies.join("; "));
        }
        let response = request.send().await.unwrap();
        for line in response.headers().get_all(SET_COOKIE) {
            let (name, value) = line.to_str().unwrap().split(';').next().unwrap().split_once('=').unwrap();
            if value.is_empty() {
                jar.remove(name);
            } else {
                jar.insert(name.to_owned(), value.to_owned());
            }
        }
        let to = response.headers().get(LOCATION).map(|to| to.to_str().unwrap().to_owned());
        Seen { status: response.status().as_u16(), to, html: response.text().await.unwrap() }
    }
}

/// The value of the first attribute that follows `before`.
fn attribute<'a>(html: &'a str, before: &str) -> &'a str {
    let (_, rest) = html.split_once(before).unwrap_or_else(|| panic!("no {before} in {html}"));
    rest.split('"').next().unwrap()
}

async fn provider(modules: &Path, groups: &str) -> (Daemon, String) {
    let node = peers::find(&["node"]).unwrap();
    let mut provider = command(node);
    provider.arg(bins::root().join("tests/tests/peers/openid/provider.mjs")).arg(modules);
    let back = format!("{EXTERNAL}/login/oidc/callback");
    provider.args([back.as_str(), SECRET, groups]);
    let mut daemon = Daemon::spawn("oidc-provider", &mut provider).unwrap();
    let line = daemon.logged(|line| line.starts_with("listening at ")).await.unwrap();
    (daemon, line.trim_start_matches("listening at ").to_owned())
}

/// Goes through the provider's forms, of the login and of the consent, until the alerter shows a
/// page.
async fn log_in(stack: &Stack, browser: &mut Browser) -> Seen {
    let mut url = Url::parse(&format!("{}/login/oidc?next=/silences", stack.alerter.url())).unwrap();
    for _ in 0..MAX_STEPS {
        let mut seen = browser.get(&url).await;
        if seen.html.contains("name=\"prompt\"") {
            let action = url.join(attribute(&seen.html, "action=\"")).unwrap();
            let prompt = attribute(&seen.html, "name=\"prompt\" value=\"").to_owned();
            seen = browser.post(&action, &format!("prompt={prompt}&login=ann&password=any")).await;
        }
        let Some(to) = &seen.to else { return seen };
        // The name under which the provider knows the alerter.
        url = url.join(&to.replace(EXTERNAL, &stack.alerter.url())).unwrap();
    }
    panic!("the login does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_logs_in_at_a_real_provider() {
    let Some(modules) = peers::openid_provider() else { return };
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, SECRET).unwrap();
    for (groups, status) in [("b,ml-oncall", 200), ("b", 403)] {
        let (_provider, issuer) = provider(&modules, groups).await;
        let alerter = format!(
            "external_url: {EXTERNAL}\napi:\n  oidc:\n    issuer: {issuer}\n    client_id: stepwatch\n    \
             client_secret_file: {}\n    scopes: [profile]\n    roles:\n      - {{group: ml-oncall, scopes: [ack]}}\n",
            secret.display()
        );
        let options = StackOptions { alerter, blind: true, ..StackOptions::default() };
        let stack = Stack::start_with(options).await.unwrap();
        let mut browser = Browser::new();
        let seen = log_in(&stack, &mut browser).await;
        assert_eq!(seen.status, status, "{}", seen.html);
        let says = if status == 200 { "oidc:ann" } else { "none of your groups has a role here" };
        assert!(seen.html.contains(says), "{}", seen.html);
    }
}

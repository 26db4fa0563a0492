//! No secret is visible anywhere. Every secret that a configuration can name is a text of its own
//! here, every service repeats what it is sent in whatever it answers, and everything goes wrong
//! once. Then all that the real alerter has sent, shown and stored is searched for each of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stepwatch_fakes::{Echo, FakeEcho, FakeSmtp, interaction_body, slack_signature};
use stepwatch_tests::daemon::{Daemon, command};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{bins, http, poll_until};
use tempfile::TempDir;

/// What a broken service may answer; the sixth leads elsewhere.
const STATUSES: [u16; 7] = [401, 500, 403, 404, 200, 302, 429];
/// Receivers at the echo, by a part of the paths that they ask.
const RECEIVERS: [&str; 6] =
    ["chat.postMessage", "/services/", "/v2/enqueue", "/hook/", "/am-user/", "/am-token/"];
/// What else is asked there.
const OTHERS: [&str; 5] = ["apps.connections.open", "/sd", "/v1/stream", "/calendar/", "/beat/"];

/// Salt and hash of a password, as bcrypt writes them.
const HASH: &str = "abcdefghijklmnopqrstuujZkTwHUiJ9XdZPwKfcfDo7dMp5DjlTu";

struct Rig {
    dir: TempDir,
    echo: FakeEcho,
    relay: FakeSmtp,
    daemon: Daemon,
    addr: SocketAddr,
    /// Everything that anybody could read.
    seen: Vec<(String, String)>,
}

/// An integration key, which may have no other form.
const ROUTING_KEY: &str = "canary0routing05bd1e9950abcdefgh";

/// A secret that is recognised wherever it turns up.
fn canary(name: &str) -> String {
    format!("canary-{name}-5bd1e995")
}

/// The files with secrets: name and content.
fn secrets(echo: &str) -> Vec<(&'static str, String)> {
    let host = echo.trim_start_matches("http://");
    vec![
        ("admin", canary("admin")),
        ("reader", canary("reader")),
        ("slack", format!("xoxb-{}", canary("slack"))),
        ("slack-app", format!("xapp-{}", canary("slackapp"))),
        ("slack-signing", canary("signing")),
        ("slack-webhook", format!("{echo}/services/T0/B0/{}", canary("slackhook"))),
        // Thirty-two letters and digits, as every integration key has.
        ("pagerduty", ROUTING_KEY.to_owned()),
        ("pagerduty-webhook", canary("pdhook")),
        ("smtp", canary("smtp")),
        (
            "webhook-url",
            format!(
                "http://me:{}@{host}/hook/{}?key={}",
                canary("hookpass"),
                canary("hookpath"),
                canary("hookkey")
            ),
        ),
        ("webhook-secret", canary("hooksecret")),
        ("webhook-secret-old", canary("hookold")),
        ("am-password", canary("ampass")),
        ("am-token", canary("amtoken")),
        ("exporter-password", canary("exporter")),
        (
            "calendar-url",
            format!(
                "http://me:{}@{host}/calendar/{}?key={}",
                canary("icalpass"),
                canary("icalpath"),
                canary("icalkey")
            ),
        ),
        ("watchdog-url", format!("{echo}/beat/{}?key={}", canary("beatpath"), canary("beatkey"))),
    ]
}

/// Every secret, of files and of addresses in the configuration, and as they travel in Basic.
fn canaries() -> Vec<String> {
    let names = [
        "admin",
        "reader",
        "slack",
        "slackapp",
        "signing",
        "slackhook",
        "pdhook",
        "smtp",
        "hookpass",
        "hookpath",
        "hookkey",
        "hooksecret",
        "hookold",
        "ampass",
        "amtoken",
        "exporter",
        "icalpass",
        "icalpath",
        "icalkey",
        "beatpath",
        "beatkey",
        "sdpass",
        "sdkey",
        "inline",
        "clipass",
        "guess",
    ];
    let mut plain: Vec<String> = names.iter().map(|name| canary(name)).collect();
    plain.extend([HASH.into(), ROUTING_KEY.into()]);
    // Of a pair, what stands after the user in any of the three alignments.
    let basic = plain.iter().flat_map(|secret| {
        (0..3).map(move |pad| {
            let text = STANDARD.encode(format!("{}{secret}", "x".repeat(pad)));
            text[8..text.len() - 4].to_owned()
        })
    });
    plain.iter().cloned().chain(basic).collect()
}

fn config(dir: &Path, echo: &FakeEcho, relay: &FakeSmtp) -> String {
    let (url, addr, dir) = (echo.url(), echo.addr(), dir.display());
    format!(
        r##"
listen: "127.0.0.1:0"
storage: {{sqlite: {dir}/alerter.db}}
api:
  tokens:
    - {{name: admin, token_file: admin, scopes: [admin]}}
    - {{name: reader, token_file: reader, scopes: [read], runs: ["llama-*"]}}
sources:
  - exporters:
      static: ["{addr}"]
      http_sd: ["http://me:{sdpass}@{addr}/sd?key={sdkey}"]
      refresh: 1s
      basic_auth: {{username: me, password_file: exporter-password}}
receivers:
  - name: chat
    slack: {{channel: "#x", token_file: slack, api_url: "{url}/api", app_token_file: slack-app, signing_secret_file: slack-signing}}
  - name: chat-simple
    slack: {{webhook_url_file: slack-webhook}}
  - name: primary
    pagerduty: {{routing_key_file: pagerduty, events_url: "{url}", webhook_secret_file: pagerduty-webhook}}
  - name: mail
    email: {{to: [oncall@example.com], from: me@example.com, smarthost: "{relay}", tls: none, username: stepwatch, password_file: smtp}}
  - name: automation
    webhook: {{url_file: webhook-url, secret_file: webhook-secret, previous_secret_file: webhook-secret-old}}
  - name: am-user
    alertmanager: {{urls: ["{url}/am-user"], username: me, password_file: am-password}}
  - name: am-token
    alertmanager: {{urls: ["{url}/am-token"], bearer_token_file: am-token}}
users: [{{name: alice, notify: [primary]}}]
schedules: [{{name: primary, time_zone: UTC, ical: {{url_file: calendar-url, refresh: 30s, stale_after: 1h}}}}]
watchdog: {{url_file: watchdog-url, interval: 5s}}
update_min_interval: 0s
"##,
        sdpass = canary("sdpass"),
        sdkey = canary("sdkey"),
        relay = relay.addr(),
    )
}

impl Rig {
    async fn start() -> Self {
        let (dir, echo, relay) =
            (tempfile::tempdir().unwrap(), FakeEcho::start().await, FakeSmtp::start().await);
        for (name, text) in secrets(&echo.url()) {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        // A hash is a secret too: it is what guesses are made against.
        let web = format!("basic_auth_users: {{alice: \"$2b$04${HASH}\"}}\n");
        std::fs::write(dir.path().join("web.yml"), web).unwrap();
        std::fs::write(dir.path().join("alerter.yml"), config(dir.path(), &echo, &relay)).unwrap();
        let mut program = command(bins::path(bins::ALERTER).unwrap());
        program.arg("run").arg("--config").arg(dir.path().join("alerter.yml"));
        program.arg("--web.config.file").arg(dir.path().join("web.yml")).env("RUST_LOG", "debug");
        let mut daemon = Daemon::spawn(bins::ALERTER, &mut program).unwrap();
        let addr = daemon.listening().await.unwrap();
        Self { dir, echo, relay, daemon, addr, seen: Vec::new() }
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    fn read(&mut self, what: impl Into<String>, text: impl Into<String>) {
        self.seen.push((what.into(), text.into()));
    }

    /// Sends a request, and keeps what was answered: the status, every header and the body.
    async fn ask(&mut self, request: reqwest::RequestBuilder) -> (u16, String) {
        let request = request.build().unwrap();
        let what = format!("{} {}", request.method(), request.url().path());
        let mut response = http::client().execute(request).await.unwrap();
        let (status, headers) = (response.status().as_u16(), format!("{:?}", response.headers()));
        // Of a stream of events, which has no end, what comes first.
        let endless = response.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let body = if endless {
            let first = tokio::time::timeout(PATIENCE, response.chunk()).await.unwrap().unwrap();
            String::from_utf8_lossy(&first.unwrap_or_default()).into_owned()
        } else {
            response.text().await.unwrap()
        };
        self.read(format!("answer to {what}"), format!("{status} {headers} {body}"));
        (status, body)
    }

    async fn get(&mut self, path: &str, token: &str) -> (u16, String) {
        let request = http::client().get(format!("{}{path}", self.url())).bearer_auth(token);
        self.ask(request).await
    }

    async fn post(&mut self, path: &str, body: &Value) -> u16 {
        let request = http::client().post(format!("{}{path}", self.url())).bearer_auth(canary("admin"));
        self.ask(request.json(body)).await.0
    }

    /// The command line, with whatever it prints.
    async fn cli(&mut self, args: &[&str], env: &[(&str, &str)]) -> bool {
        let mut cli = command(bins::path(bins::ALERTER).unwrap());
        cli.args(args).envs(env.iter().copied()).env("RUST_LOG", "debug").kill_on_drop(true);
        let out = tokio::time::timeout(PATIENCE, cli.output()).await.unwrap().unwrap();
        let text =
            format!("{}\n{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(!text.contains("panicked"), "{args:?}: {text}");
        self.read(format!("stepwatch-alerter {}", args.join(" ")), text);
        out.status.success()
    }

    /// Every receiver is notified of something new while every service answers with `status`.
    async fn go_wrong(&mut self, status: u16) {
        self.echo.change(|e| e.status = status);
        let before: Vec<usize> = self.echo.with(|e| RECEIVERS.iter().map(|r| e.count(r)).collect());
        let alert = json!([{"labels": {"alertname": format!("Broken{status}"), "severity": "critical", "run": "llama-1"}}]);
        assert_eq!(self.post("/api/v2/alerts", &alert).await, 200);
        let notified = |e: &Echo| RECEIVERS.iter().zip(&before).all(|(r, n)| e.count(r) > *n);
        let waited = self.echo.wait_for(notified, 2 * PATIENCE).await;
        let now = self.echo.with(|e| RECEIVERS.iter().map(|r| e.count(r)).collect::<Vec<_>>());
        assert!(waited.is_ok(), "{status}: {RECEIVERS:?} {before:?} {now:?}");
    }

    async fn reload(&mut self) -> u16 {
        let request = http::client().post(format!("{}/-/reload", self.url())).bearer_auth(canary("admin"));
        self.ask(request).await.0
    }

    /// Files that hold secrets where none belong, or not what they should: each is refused, aloud.
    async fn bad_reloads(&mut self) {
        let good = std::fs::read_to_string(self.dir.path().join("alerter.yml")).unwrap();
        let inline = canary("inline");
        let mut bad: Vec<String> = vec![
            format!("  - {{name: x, slack: {{channel: \"#x\", token: {inline}}}}}\n"),
            format!("  - {{name: x, slack: {{webhook_url: \"http://x/{inline}\"}}}}\n"),
            format!("  - {{name: x, pagerduty: {{routing_key: {inline}}}}}\n"),
            format!("  - {{name: x, webhook: {{url: \"http://me:{inline}@x/\", colour: red}}}}\n"),
            format!("  - {{name: x, webhook: {{url: \"http://me:{inline}@x/\"}}}}\n"),
            format!(
                "  - {{name: x, email: {{to: [a@b.c], from: a@b.c, smarthost: \"x:25\", password: {inline}}}}}\n"
            ),
            format!(
                "  - {{name: x, alertmanager: {{urls: [\"http://me:{inline}@x:1\"], bearer_token: \"{inline}\"}}}}\n"
            ),
            "  - {name: x, pagerduty: {routing_key_file: nowhere}}\n".into(),
            // Secrets that are none of the kind.
            "  - {name: x, pagerduty: {routing_key_file: smtp}}\n".into(),
            "  - {name: x, slack: {channel: \"#x\", token_file: slack-app}}\n".into(),
            "  - {name: x, slack: {channel: \"#x\", token_file: slack, signing_secret_file: slack}}\n".into(),
        ];
        bad = bad.into_iter().map(|more| good.replace("users: [{", &format!("{more}users: [{{"))).collect();
        bad.push(good.replace("watchdog: {", &format!("watchdog: {{url: \"{inline}\", ")));
        bad.push(good.replace("url_file: calendar-url", &format!("url: \"ftp://me:{inline}@x/\"")));
        bad.push(good.replace("token_file: reader", &format!("token: {inline}")));
        bad.push(good.replace("token_file: reader", "token_file: admin"));
        for (i, text) in bad.iter().enumerate() {
            std::fs::write(self.dir.path().join("alerter.yml"), text).unwrap();
            assert_eq!(self.reload().await, 500, "{i}: {text}");
            let path = self.dir.path().join("alerter.yml").display().to_string();
            assert!(!self.cli(&["config", "check", &path], &[]).await, "{i}");
        }
        // By signal, too: the log reports it.
        let pid = Pid::from_raw(i32::try_from(self.daemon.pid().unwrap()).unwrap()).unwrap();
        let before = self.daemon.log().len();
        kill_process(pid, Signal::HUP).unwrap();
        poll_until("the signal's reload", PATIENCE, async || {
            self.daemon.has_logged(before, |l| l.contains("reload failed")).then_some(())
        })
        .await
        .unwrap();
        std::fs::write(self.dir.path().join("alerter.yml"), good).unwrap();
        assert_eq!(self.reload().await, 200);
    }

    /// Everything that can be read by HTTP, with permission and without.
    async fn browse(&mut self) {
        let (_, document) = self.get("/api/v1/openapi.json", &canary("admin")).await;
        let document: Value = serde_json::from_str(&document).unwrap();
        let (_, incidents) = self.get("/api/v1/incidents", &canary("admin")).await;
        let incidents: Value = serde_json::from_str(&incidents).unwrap();
        let id = incidents["incidents"][0]["id"].as_str().unwrap().to_owned();
        let paths = document["paths"].as_object().unwrap();
        let reading = paths.iter().filter(|(_, operations)| operations.get("get").is_some());
        let mut all: Vec<_> = reading.map(|(path, _)| path.replace("{id}", &id)).collect();
        all.extend(["/".to_owned(), format!("/incidents/{id}"), "/-/log-level".into(), "/nonsense".into()]);
        for path in all {
            for token in [canary("admin"), canary("reader"), canary("guess")] {
                self.get(&path, &token).await;
            }
            let url = format!("{}{path}?access_token={}", self.url(), canary("guess"));
            self.ask(http::client().get(url).basic_auth("alice", Some(canary("guess")))).await;
        }
        for body in ["{", "[]", r#"{"by": 1}"#] {
            let path = format!("{}/api/v1/incidents/{id}/ack", self.url());
            let request = http::client()
                .post(path)
                .bearer_auth(canary("admin"))
                .header("content-type", "application/json");
            self.ask(request.body(body)).await;
        }
    }

    /// What services post: signed well, badly and not at all.
    async fn call_back(&mut self) {
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        let payload = json!({"type": "block_actions", "user": {"id": "U1", "username": "ann"}, "response_url": "http://169.254.169.254/x",
            "actions": [{"action_id": "stepwatch_ack", "value": "01J9ZC", "action_ts": "1.1"}]});
        let body = interaction_body(&payload);
        for secret in [canary("signing"), canary("guess")] {
            let request = http::client().post(format!("{}/slack/interactions", self.url()));
            let request = request.header("x-slack-request-timestamp", now.to_string());
            let request = request.header("x-slack-signature", slack_signature(&secret, now, body.as_bytes()));
            let request =
                request.header("content-type", "application/x-www-form-urlencoded").body(body.clone());
            self.ask(request).await;
        }
        let request = http::client().post(format!("{}/pagerduty/webhook", self.url()));
        self.ask(request.header("x-pagerduty-signature", format!("v1={}", canary("guess"))).body("{}")).await;
    }

    async fn type_commands(&mut self) {
        let (url, dir) = (self.url(), self.dir.path().display().to_string());
        let (config, admin) = (format!("{dir}/alerter.yml"), format!("{dir}/admin"));
        let wrong = format!("{dir}/smtp");
        assert!(self.cli(&["config", "check", &config], &[]).await);
        assert!(!self.cli(&["notify", "test", "--config", &config], &[]).await, "nobody takes it");
        self.cli(&["simulate", "--config", &config, "--severity", "page"], &[]).await;
        for args in [
            vec!["incidents", "list"],
            vec!["silences", "list"],
            vec!["audit", "--limit", "1000"],
            vec!["audit", "--format", "json"],
            vec!["oncall"],
        ] {
            let with = |token: &str| -> Vec<String> {
                let own = ["--url", &url, "--token-file", token].map(str::to_owned);
                args.iter().map(|a| (*a).to_owned()).chain(own).collect()
            };
            for (token, good) in [(&admin, true), (&wrong, false), (&format!("{dir}/nowhere"), false)] {
                let args = with(token);
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                assert_eq!(self.cli(&args, &[]).await, good, "{args:?}: {:?}", self.seen.last());
            }
            let env = [("STEPWATCH_USER", "alice"), ("STEPWATCH_PASSWORD", &canary("clipass"))];
            let args: Vec<&str> = args.iter().copied().chain(["--url", &url]).collect();
            assert!(!self.cli(&args, &env).await);
        }
        // Whatever answers there.
        let echo = self.echo.url();
        self.cli(&["incidents", "list", "--url", &echo, "--token-file", &admin], &[]).await;
        let with_password = format!("http://me:{}@127.0.0.1:1", canary("clipass"));
        self.cli(&["incidents", "list", "--url", &with_password], &[]).await;
        self.cli(&["incidents", "list", "--url", &format!("ftp://me:{}@x", canary("clipass"))], &[]).await;
    }

    /// Everything on disk beside the files that hold the secrets, and the log.
    fn look_at_what_is_left(&mut self) {
        let mut stored = 0;
        for entry in std::fs::read_dir(self.dir.path()).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("alerter.db") {
                stored += 1;
                let bytes = std::fs::read(entry.path()).unwrap();
                self.read(name, String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        assert!(stored > 0);
        let log = self.daemon.log().join("\n");
        self.read("the log", log);
    }

    fn leaks(&self) -> String {
        let canaries = canaries();
        let mut report = String::new();
        for (what, text) in &self.seen {
            for secret in canaries.iter().filter(|c| text.contains(c.as_str())) {
                let at = text.find(secret.as_str()).unwrap_or_default();
                let from = text[..at].char_indices().rev().nth(300).map_or(0, |(i, _)| i);
                let _ = writeln!(report, "{secret} in {what}: ...{}\n", &text[from..at + secret.len()]);
            }
        }
        report
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_logged_answered_shown_printed_or_stored() {
    let mut rig = Rig::start().await;
    for status in STATUSES {
        rig.go_wrong(status).await;
    }
    let asked = rig.echo.wait_for(|e| OTHERS.iter().all(|o| e.count(o) > 0), PATIENCE).await;
    assert!(asked.is_ok(), "{OTHERS:?}: {:?}", rig.echo.with(|e| OTHERS.map(|o| e.count(o))));
    let mails = rig.relay.wait_for(|s| s.in_the_clear.iter().any(|word| word == "AUTH"), PATIENCE).await;
    assert!(mails.is_ok(), "the relay was asked with a wrong password");
    assert_eq!(rig.echo.with(|e| e.count(Echo::ELSEWHERE)), 0, "a redirect was followed");
    rig.bad_reloads().await;
    rig.browse().await;
    rig.call_back().await;
    rig.type_commands().await;
    // Everything at its most talkative, and then nobody there at all.
    let level = http::client().put(format!("{}/-/log-level", rig.url())).bearer_auth(canary("admin"));
    assert_eq!(rig.ask(level.body("trace")).await.0, 200);
    rig.go_wrong(401).await;
    let (addr, failures) = (rig.echo.addr(), rig.daemon.log().len());
    rig.echo = FakeEcho::start().await;
    // Somebody must be asked: what was refused for good is not tried again.
    let alert = json!([{"labels": {"alertname": "Gone", "severity": "critical", "run": "llama-1"}}]);
    assert_eq!(rig.post("/api/v2/alerts", &alert).await, 200);
    let down = |l: &str| l.contains("Connection refused") || l.contains("cannot connect");
    poll_until("somebody to miss the echo", 2 * PATIENCE, async || {
        rig.daemon.has_logged(failures, down).then_some(())
    })
    .await
    .unwrap_or_else(|e| panic!("{addr}: {e}"));
    rig.browse().await;
    rig.look_at_what_is_left();
    rig.daemon.terminate().await.unwrap();
    rig.look_at_what_is_left();
    let leaks = rig.leaks();
    assert!(leaks.is_empty(), "{leaks}");
}

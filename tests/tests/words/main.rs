//! Words from outside, by every way in and out. One hostile text stands in every field that anybody
//! may fill; then all that both programs have sent, shown, printed and logged is searched for what
//! steers a terminal, turns text round, hides, or is markup.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod forms;
mod found;
mod outputs;
mod ras;
mod rows;
mod written;

use found::{FOUND, Found};
use outputs::{
    Followed, REPORT_ZONE, Services, out_of_alerter, out_of_exporter, out_of_reports, out_of_services, stream,
};
use reqwest::Method;
use serde_json::{Value, json};
use stepwatch_fakes::{
    AlertmanagerApi, Fake, FakeSmtp, PagerDuty, Slack, interaction_body, pagerduty_signature, slack_signature,
};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{FakeLibc, Inbound, Stack, StackOptions, http, poll_until};
use stepwatch_wire::words;
use tokio::io::AsyncWriteExt as _;
use written::WRITTEN;

const HOSTILE: &str = "*b* <!channel> <@U1> \r\n\x1b[31m\u{202e}\u{200b}<script>`x` [l](http://e)";

/// Ways into the exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Packet,
    Datagram,
    Http,
    Tail,
    Otlp,
    Spans,
    Statsd,
    Kubeflow,
}

/// Every text field of every input of the exporter: its name, the way, and what is sent, in which
/// `H` is the hostile text with the name before it. What makes a run of its own is then followed
/// under one name.
const EXPORTER: &[(&str, Way, &str)] = &[
    ("run", Way::Packet, r#"{"k":"step","run":"H","step":1,"m":{"loss":2.5}}"#),
    ("datagram", Way::Datagram, r#"{"k":"step","run":"H","step":1}"#),
    ("posted", Way::Http, r#"{"k":"step","run":"H","step":1}"#),
    ("tailed", Way::Tail, r#"{"k":"step","run":"H","step":1}"#),
    (
        "service",
        Way::Otlp,
        r#"{"resourceMetrics":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"H"}},
            {"key":"stepwatch.run","value":{"stringValue":"H"}}]},"scopeMetrics":[{"metrics":[
            {"name":"train.loss","gauge":{"dataPoints":[{"asDouble":2.5,"attributes":[{"key":"step","value":{"intValue":"1"}}]}]}}]}]}]}"#,
    ),
    (
        "attribute",
        Way::Otlp,
        r#"{"resourceMetrics":[{"resource":{"attributes":[{"key":"stepwatch.run","value":{"stringValue":"victim"}},
            {"key":"service.version","value":{"stringValue":"H"}},{"key":"host.name","value":{"stringValue":"H"}},
            {"key":"service.instance.id","value":{"stringValue":"H"}},{"key":"slurm.job.id","value":{"stringValue":"H"}},
            {"key":"slurm.job.name","value":{"stringValue":"H"}},{"key":"H","value":{"stringValue":"H"}}]},
            "scopeMetrics":[{"metrics":[{"name":"H","unit":"H","description":"H","gauge":{"dataPoints":[{"asDouble":1.5,
            "attributes":[{"key":"step","value":{"intValue":"1"}},{"key":"H","value":{"stringValue":"H"}}]}]}}]}]}]}"#,
    ),
    (
        "span",
        Way::Spans,
        r#"{"resourceSpans":[{"resource":{"attributes":[{"key":"nv.dl.job.uuid","value":{"stringValue":"H"}},
            {"key":"H","value":{"stringValue":"H"}}]},"scopeSpans":[{"scope":{"name":"H"},"spans":[{"name":"H","events":[
            {"name":"nv.dl.training.objective","attributes":[{"key":"nv.dl.training.step","value":{"intValue":"1"}},
            {"key":"nv.dl.training.objective.name","value":{"stringValue":"H"}},{"key":"H","value":{"stringValue":"H"}},
            {"key":"nv.dl.training.objective.value","value":{"doubleValue":2.5}}]}],"status":{"code":2,"message":"H"}}]}]}]}"#,
    ),
    ("gauge", Way::Statsd, "loss:2.5|g|#run:H,step:1"),
    ("statistic", Way::Statsd, "N:2.5|g|#run:statsd,step:1,tag:H"),
    ("job", Way::Kubeflow, "H"),
    ("node", Way::Packet, r#"{"k":"hb","run":"victim","node":"H"}"#),
    (
        "framework",
        Way::Packet,
        r#"{"k":"hello","run":"victim","framework":"H","version":"H","dtype":"H","gpu":"H"}"#,
    ),
    ("job", Way::Packet, r#"{"k":"hello","run":"victim","job":"H","role":"H","hostname":"H","run_why":"H"}"#),
    (
        "model",
        Way::Packet,
        r#"{"k":"hello","run":"victim","model":{"name":"H","n_params":1e9},"H":{"H":["H"]}}"#,
    ),
    (
        "introduced",
        Way::Packet,
        r#"{"k":"hello","run":"victim","run_by":"H","run_unnamed":"H","source":"H","attempt_hint":"H","env":{"H":"H"}}"#,
    ),
    ("bye", Way::Packet, r#"{"k":"bye","run":"gone","code":1,"text":"H","level":"H"}"#),
    ("phase", Way::Packet, r#"{"k":"phase","run":"victim","name":"H","phase":"begin"}"#),
    ("metric", Way::Packet, r#"{"k":"step","run":"victim","step":1,"m":{"H":1,"loss":2},"t":{"H":1}}"#),
    ("eval", Way::Packet, r#"{"k":"eval","run":"victim","step":1,"name":"H","m":{"loss":2,"H":1}}"#),
    ("event", Way::Packet, r#"{"k":"event","run":"victim","name":"H","text":"H","level":"H","lines":"H"}"#),
    (
        "alert",
        Way::Packet,
        r#"{"k":"event","run":"victim","name":"alert","level":"error","text":"H","title":"H"}"#,
    ),
    (
        "checkpoint",
        Way::Packet,
        r#"{"k":"ckpt","run":"victim","step":1,"phase":"fail","path":"H","text":"H"}"#,
    ),
    ("line", Way::Packet, r#"{"k":"event","run":"victim","name":"output","stream":"H","lines":["H"]}"#),
    ("kind", Way::Packet, r#"{"k":"H","run":"victim"}"#),
    ("number", Way::Http, r#"{"k":"step","run":"victim","step":"H"}"#),
];

/// Every text field of every input of the alerter beside the stream: its name, the path, and what
/// is sent there.
const ALERTER: &[(&str, &str, &str)] = &[
    (
        "alert",
        "/api/v2/alerts",
        r#"[{"labels":{"alertname":"H","severity":"page","team":"H","run":"H","node":"H","instance":"H"},
            "annotations":{"summary":"H","description":"H","runbook_url":"http://e/H"},"generatorURL":"H"}]"#,
    ),
    ("preview", "/api/v1/silences/preview", r#"{"matchers":["other=\"H\""]}"#),
    ("note", "/api/v1/incidents/ID/notes", r#"{"by":"H","note":"H"}"#),
    (
        "silence",
        "/api/v1/silences",
        r#"{"matchers":["other=\"H\""],"duration":"1h","created_by":"H","comment":"H"}"#,
    ),
    (
        "amtool",
        "/api/v2/silences",
        r#"{"matchers":[{"name":"other","value":"H","isRegex":false}],"startsAt":"2026-01-01T00:00:00Z",
            "endsAt":"SOON","createdBy":"H","comment":"H"}"#,
    ),
    (
        "override",
        "/api/v1/oncall/overrides",
        r#"{"schedule":"primary","user":"bob","until":"SOON","created_by":"H","note":"H"}"#,
    ),
    (
        "swap",
        "/api/v1/oncall/overrides/swap",
        r#"{"schedule":"primary","first":{"user":"bob","until":"SOON"},
            "second":{"user":"alice","from":"SOON","until":"LATER"},"created_by":"H","note":"H"}"#,
    ),
    ("ack", "/api/v1/incidents/ID/ack", r#"{"by":"H"}"#),
    ("unack", "/api/v1/incidents/ID/unack", r#"{"by":"H"}"#),
    ("escalate", "/api/v1/incidents/ID/escalate", r#"{"by":"H"}"#),
];
/// The same for an incident that is not looked at any more.
const RESOLVE: (&str, &str, &str) = ("resolve", "/api/v1/incidents/ID/resolve", r#"{"by":"H"}"#);

fn hostile(name: &str) -> String {
    format!("{name} {HOSTILE}")
}

/// The text in the place of each `H` that stands alone or behind an address.
fn filled(what: &str, text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap();
    let inner = &quoted[1..quoted.len() - 1];
    let inside = serde_json::to_string(inner).unwrap();
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let later = soon + jiff::SignedDuration::from_hours(1);
    what.replace("SOON", &soon.to_string())
        .replace("LATER", &later.to_string())
        .replace(r#"\"H\""#, &format!(r#"\"{}\""#, &inside[1..inside.len() - 1]))
        .replace(r#""H""#, &quoted)
        .replace("http://e/H", &format!("http://e/{inner}"))
}

/// What was found in one place, and whether its own markup was there.
struct Seen(Vec<(String, String)>);

impl Seen {
    fn text(&mut self, place: &str, text: impl Into<String>) {
        self.0.push((place.to_owned(), text.into()));
    }

    /// Every text of a document, keys too.
    fn json(&mut self, place: &str, value: &Value) {
        match value {
            Value::String(text) => self.text(place, text),
            Value::Array(items) => items.iter().for_each(|item| self.json(place, item)),
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                self.text(place, key);
                self.json(place, value);
            }),
            _ => {}
        }
    }

    /// Nothing that steers, turns or hides is in any of it.
    fn is_plain(&self) {
        for (place, text) in &self.0 {
            let odd: String =
                text.chars().filter(|c| *c != '\n' && words::clean(&c.to_string()).is_empty()).collect();
            assert!(odd.is_empty() && !text.contains('\t'), "{odd:?} in {place}: {text:?}");
        }
    }

    fn lacks(&self, place: &str, markup: &[&str]) {
        let all: Vec<_> = self.0.iter().filter(|(at, _)| at == place).collect();
        assert!(!all.is_empty(), "nothing was seen of {place}");
        for (_, text) in all {
            for markup in markup {
                assert!(!text.contains(markup), "{markup} in {place}: {text}");
            }
        }
    }
}

async fn into_exporter(stack: &Stack, files: &Files) {
    let rank = stepwatch_tests::trainer::Rank::join(&stack.ingest(), "victim", 0, 1).unwrap();
    let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let mut tailed = String::new();
    for (name, way, what) in EXPORTER {
        let sent = filled(what, &hostile(name));
        let post = async |path: &str, body: String| {
            let url = format!("{}{path}", stack.exporter.url());
            let request = http::client().post(url).header("content-type", "application/json").body(body);
            request.timeout(PATIENCE).send().await.unwrap().text().await.unwrap()
        };
        match way {
            Way::Packet => rank.send_raw(sent.as_bytes()).unwrap(),
            Way::Datagram => {
                datagrams
                    .send_to(sent.as_bytes(), stack.ingest().with_file_name("ingest.dgram"))
                    .map(drop)
                    .unwrap();
            }
            Way::Http => {
                let answer = post("/v1/events", sent).await;
                let mut seen = Seen(Vec::new());
                seen.json("answer", &serde_json::from_str(&answer).unwrap());
                seen.is_plain();
            }
            Way::Tail => tailed.push_str(&(sent + "\n")),
            Way::Otlp => drop(post("/v1/metrics", sent).await),
            Way::Spans => drop(post("/v1/traces", sent).await),
            Way::Statsd => {
                // One line: what breaks it is no part of a name there.
                let text = hostile(name).replace("\r\n", " ").replace(['|', ','], "");
                let what = what.replace("N:", &format!("{}:", text.replace(':', "")));
                datagrams
                    .send_to(what.replace('H', &text).as_bytes(), files.path("statsd.sock"))
                    .map(drop)
                    .unwrap();
            }
            Way::Kubeflow => {
                let encoded = hostile(name).bytes().map(|b| format!("%{b:02X}")).collect::<Vec<_>>().concat();
                let status = json!({"trainerStatus": {"metrics": [{"name": hostile("measure"), "value": "1"}, {"name": "loss", "value": "2.5"}, {"name": "step", "value": "1"}],
                    "progressPercentage": 1, "lastUpdatedTime": "2026-01-01T00:00:00Z"}});
                drop(post(&format!("/v1/kubeflow/{encoded}"), status.to_string()).await);
            }
        }
    }
    std::fs::write(files.path("draft"), tailed).unwrap();
    std::fs::rename(files.path("draft"), files.path("hostile.jsonl")).unwrap();
    // Whoever is paged reads the name of the run.
    let run = hostile("paged");
    let rank = stack.warm_run(&run, 3).unwrap();
    rank.step(4, &[("loss", f64::NAN)]).unwrap();
    let mut bye = rank.event(stepwatch_wire::Kind::Bye);
    (bye.code, bye.text) = (Some(1), Some(hostile("goodbye")));
    rank.send(&bye).unwrap();
}

/// Runs of every way are followed, each under the one name that is fit to be shown.
async fn is_followed(stack: &Stack) {
    let quoted = |name: &str| words::line(&hostile(name)).replace('\\', "\\\\").replace('"', "\\\"");
    for name in ["run", "datagram", "posted", "tailed", "service", "gauge", "scraped", "paged"] {
        let series = format!("train_step{{run=\"{}\"}}", quoted(name));
        let shown = async || stack.exporter.metrics().await.ok().filter(|page| page.contains(&series));
        if poll_until(&series, PATIENCE, shown).await.is_err() {
            let page = stack.exporter.metrics().await.unwrap();
            let runs: Vec<_> = page.lines().filter(|l| l.starts_with("train_step{")).collect();
            panic!("{series} is not among {runs:#?}");
        }
    }
    let series = r#"hostile_text{label="textfile "#.to_owned();
    let shown = async || stack.exporter.metrics().await.ok().filter(|page| page.contains(&series));
    if poll_until(&series, PATIENCE, shown).await.is_err() {
        let page = stack.exporter.metrics().await.unwrap();
        let lines: Vec<_> = page.lines().filter(|l| l.contains("hostile")).collect();
        panic!("{series} is not among {lines:#?}");
    }
}

/// What is found is on the stream or on the page.
async fn is_found(stack: &Stack) {
    let missing = async || {
        let records = stream(stack).await.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
        let said = records + &stack.exporter.metrics().await.unwrap();
        let is_missing = |name: &&&str| !said.contains(&format!("{name} *b* <!channel>"));
        FOUND.iter().filter(is_missing).copied().collect::<Vec<_>>()
    };
    let found = async || missing().await.is_empty().then_some(());
    let all = poll_until("what is read by itself", PATIENCE, found).await.is_ok();
    assert!(all, "{:?} went nowhere", missing().await);
}

/// What is read from files and endpoints that the configuration names.
struct Files {
    dir: tempfile::TempDir,
    scraped: std::net::SocketAddr,
    /// A list of targets.
    listed: std::net::SocketAddr,
    ras: std::net::SocketAddr,
}

/// Answers everybody with the same.
async fn serve(content_type: &str, text: String) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nconnection: close\r\n");
    let answer = format!("{head}content-length: {}\r\n\r\n{text}", text.len());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            // A client that went away has read enough.
            let _ = client.write_all(answer.as_bytes()).await;
        }
    });
    addr
}

impl Files {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("# HELP train_loss {0}\ntrain_loss{{run=\"{0}\"}} 2.5\n", label("scraped"));
        let scraped = serve("text/plain; version=0.0.4", text).await;
        let target = hostile("listed");
        let targets = json!([{"targets": [target], "labels": {"rack": target, target.clone(): target}}]);
        let listed = serve("application/json", targets.to_string()).await;
        let textfile =
            format!("# HELP hostile_text {0}\nhostile_text{{label=\"{0}\"}} 1\n", label("textfile"));
        std::fs::create_dir(dir.path().join("textfile")).unwrap();
        std::fs::write(dir.path().join("textfile/hostile.prom"), textfile).unwrap();
        // It is refused, and the log names it.
        let named = hostile("refused").replace('/', "") + ".prom";
        std::fs::write(dir.path().join("textfile").join(named), "no series {").unwrap();
        std::fs::write(dir.path().join("kmsg"), "").unwrap();
        Self { dir, scraped, listed, ras: ras::serve().await }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn of_exporter(&self, more: &str) -> String {
        format!(
            "sources:\n{more}  - tail: {{path: '{}', from: start}}\n  - statsd: {{listen: 'unix:{}'}}\n  \
             - scrape: {{url: 'http://{}/metrics', interval: 100ms}}\nexposition: {{interval: 20ms}}\n\
             collectors:\n  textfile: {{interval: 1s, directories: ['{}']}}\n  kernel: {{interval: 20ms}}\n  \
             ras: {{addresses: ['{}'], interval: 100ms, stuck_after: 1s}}\n",
            self.path("hostile.jsonl"),
            self.path("statsd.sock"),
            self.scraped,
            self.path("textfile"),
            self.ras,
        )
    }

    fn of_alerter(&self) -> String {
        std::fs::write(self.path("shifts.ics"), calendar()).unwrap();
        format!(
            "sources:\n  - exporters: {{file_sd: ['{}'], http_sd: ['http://{}/']}}\n\
             users: [{{name: alice, notify: [mail], email: alice@example.org}}, {{name: bob, notify: [mail]}}]\n\
             schedules: [{{name: primary, time_zone: UTC, ical: {{file: '{}'}}, fallback: [mail]}}]\n",
            self.path("targets.json"),
            self.listed,
            self.path("shifts.ics"),
        )
    }

    /// Where the alerter finds the exporter.
    fn name_target(&self, addr: std::net::SocketAddr) {
        let labels = json!({"rack": hostile("rack"), hostile("name"): "x"});
        let targets = json!([{"targets": [addr.to_string()], "labels": labels}]);
        std::fs::write(self.path("draft"), targets.to_string()).unwrap();
        std::fs::rename(self.path("draft"), self.path("targets.json")).unwrap();
    }

    /// An XID as the kernel writes it, with the name of a process in it.
    fn write_kernel_log(&self) {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let escaped = |text: &str| {
            let escape = |b: u8| match b {
                b' '..=b'[' | b']'..=b'~' => char::from(b).to_string(),
                _ => format!("\\x{b:02x}"),
            };
            text.bytes().map(escape).collect::<String>()
        };
        let xid =
            format!("NVRM: Xid (PCI:0000:9b:00): 79, pid=7, name={0}, {0}", escaped(&hostile("kernel")));
        let record = format!("4,1,{},-;{xid}\n", (seconds * 1e6) as u64);
        std::fs::write(self.path("kmsg"), record).unwrap();
    }
}

fn reports() -> String {
    format!(
        "reports:\n  - {{name: daily, every: day, at: '00:00', time_zone: {}, notify: [chat, mail, lines]}}\n",
        *REPORT_ZONE
    )
}

/// A shift that is now, of somebody who is known and of somebody who is not.
fn calendar() -> String {
    let shift = hostile("shift").replace("\r\n", "\\n").replace(',', "\\,");
    let stranger = hostile("stranger").replace(['\r', '\n', '"'], " ");
    format!(
        "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nBEGIN:VEVENT\r\nUID:{shift}\r\nDTSTART:20260101T000000Z\r\nDTEND:20400101T000000Z\r\n\
         SUMMARY:{shift}\r\nDESCRIPTION:{shift}\r\nATTENDEE;CN=\"{stranger}\":mailto:stranger@example.org\r\n\
         ATTENDEE;CN=\"{stranger}\":mailto:alice@example.org\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
}

/// As the value of a label in Prometheus's text format.
fn label(name: &str) -> String {
    hostile(name).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

async fn post(stack: &Stack, (name, path, what): (&str, &str, &str), id: &str) {
    let url = format!("{}{}", stack.alerter.url(), path.replace("ID", id));
    let request = http::client().request(Method::POST, url).header("content-type", "application/json");
    let again = request.try_clone().unwrap();
    let mut answer = request.body(filled(what, &hostile(name))).timeout(PATIENCE).send().await.unwrap();
    if path.starts_with("/api/v1/incidents/") {
        // These are a line, and whoever breaks it gets an error.
        assert_eq!(answer.status(), 400, "{name}");
        let line = hostile(name).replace(char::is_control, "");
        answer = again.body(filled(what, &line)).timeout(PATIENCE).send().await.unwrap();
    }
    let status = answer.status();
    assert!(status.is_success(), "{name}: {status} {}", answer.text().await.unwrap());
}

/// Presses a button in Slack as somebody with a hostile name.
async fn click(stack: &Stack) {
    let slack = stack.slack.wait_for(|s| s.top().count() > 0, PATIENCE).await.unwrap();
    let user = hostile("clicker");
    let click =
        |ts: &str| stack.slack.change(|s| s.click(&stack.slack.url(), ts, "stepwatch_ack", ("U1", &user)));
    let body = interaction_body(&slack.top().find_map(|post| click(&post.ts).ok()).unwrap());
    let at = jiff::Timestamp::now().as_second();
    let request = http::client()
        .post(format!("{}/slack/interactions", stack.alerter.url()))
        .header("content-type", "application/x-www-form-urlencoded")
        .header("x-slack-request-timestamp", at.to_string())
        .header("x-slack-signature", slack_signature(Slack::SIGNING_SECRET, at, body.as_bytes()));
    assert!(request.body(body).timeout(PATIENCE).send().await.unwrap().status().is_success());
}

/// Sends each text to the alerter.
async fn into_alerter(stack: &Stack, seen: &mut Seen) {
    // Of the run and of the GPU.
    let paged = async || stack.alerter.incidents().await.ok().filter(|all| all.len() > 1);
    let all = poll_until("incidents", PATIENCE, paged).await.unwrap();
    let ids: Vec<_> = all.iter().map(|incident| incident["id"].as_str().unwrap()).collect();
    click(stack).await;
    for of in ALERTER {
        post(stack, *of, ids[0]).await;
    }
    forms::fill_in(stack, ids[0], seen).await;
    post(stack, RESOLVE, ids[1]).await;
    let pd =
        stack.pagerduty.wait_for(|pd| !pd.hooks.is_empty() || !pd.pages.is_empty(), PATIENCE).await.unwrap();
    let key = &pd.pages[0].dedup_key;
    for what in ["acknowledged", "reassigned", "resolved"] {
        let hook = json!({"event": {"id": format!("01{what}"), "event_type": format!("incident.{what}"),
            "resource_type": "incident", "occurred_at": jiff::Timestamp::now().to_string(),
            "agent": {"id": "P1", "type": "user_reference", "summary": hostile("agent")},
            "data": {"id": "Q1", "type": "incident", "incident_key": key, "title": hostile("title"),
                "assignees": [{"summary": hostile("assignee"), "type": "user_reference"}],
                "resolve_reason": (what == "resolved").then(|| json!({"type": "merge_resolve_reason",
                    "incident": {"id": "Q2", "summary": hostile("merged")}}))}}});
        let request = http::client()
            .post(format!("{}/pagerduty/webhook", stack.alerter.url()))
            .header("content-type", "application/json")
            .header(
                "x-pagerduty-signature",
                pagerduty_signature(&[PagerDuty::WEBHOOK_SECRET], hook.to_string().as_bytes()),
            );
        assert!(request.body(hook.to_string()).timeout(PATIENCE).send().await.unwrap().status().is_success());
    }
    let listed = async || stack.alerter.incidents().await.ok().filter(|all| all.len() > 2);
    poll_until("the alert", PATIENCE, listed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_word_from_outside_steers_hides_or_is_markup_anywhere() {
    let (relay, files) = (FakeSmtp::start().await, Files::new().await);
    let services = Services { relay, other: Fake::<AlertmanagerApi>::start().await };
    let found = Found::new(files.dir.path());
    std::fs::write(files.path("password"), FakeSmtp::PASSWORD).unwrap();
    let mail = format!(
        "  - name: mail\n    email: {{to: [oncall@example.com], from: stepwatch@example.com, smarthost: \"{}\", tls: none, \
         username: {}, password_file: {}}}\n",
        services.relay.addr(),
        FakeSmtp::USER,
        files.path("password")
    );
    std::fs::write(files.path("token"), AlertmanagerApi::TOKEN).unwrap();
    let others = format!(
        "  - {{name: other, alertmanager: {{urls: ['{}'], bearer_token_file: '{}'}}}}\n  \
         - {{name: terminal, stdout: {{}}}}\n  - {{name: lines, stdout: {{format: json}}}}\n",
        services.other.url(),
        files.path("token")
    );
    let clock = FakeLibc::new(files.dir.path()).unwrap();
    let mut machine = found.machine();
    machine.args.extend(["--path.kmsg".into(), files.path("kmsg").into()]);
    let options = StackOptions {
        exporter: files.of_exporter(&found.sources()),
        machine,
        blind: true,
        alerter: files.of_alerter() + written::CONFIG + &reports(),
        libc: Some(clock.clone()),
        webhook: true,
        inbound: vec![Inbound::PagerDuty, Inbound::Slack],
        receivers: mail + &others,
        also: ["mail", "other", "terminal", "lines"].map(String::from).into(),
        ..StackOptions::default()
    };
    let mut stack = Stack::start_with(options).await.unwrap();
    let followed = Followed::begin(&stack).await;
    files.name_target(stack.exporter.addr);
    into_exporter(&stack, &files).await;
    files.write_kernel_log();
    is_followed(&stack).await;
    is_found(&stack).await;
    let mut seen = Seen(Vec::new());
    into_alerter(&stack, &mut seen).await;
    let ids = written::write(&stack, &mut seen).await;
    out_of_services(&stack, &services, 2, &mut seen).await;
    out_of_exporter(&stack, &mut seen).await;
    out_of_alerter(&stack, &ids, &mut seen).await;
    followed.read(&mut seen).await;
    out_of_reports(&mut stack, &clock, &services, &mut seen).await;
    seen.is_plain();
    seen.lacks("slack markup", &["*b*", "<!channel", "<@U1", "`x`", "<script", "<http"]);
    // A page loads scripts of its own, by their address.
    for (html, script) in [("ui", "<script>"), ("mail html", "<script"), ("chart", "<script")] {
        seen.lacks(html, &[script, "<!channel", "<@U1"]);
    }
    for markdown in ["postmortem", "mail report"] {
        seen.lacks(markdown, &["*b*", "<!channel", "`x`", "[l](", "<script"]);
    }
    // What is data keeps its characters.
    for place in [
        "webhook",
        "cli",
        "mail text",
        "pagerduty",
        "alertmanager",
        "stdout",
        "stdout json",
        "stream",
        "events",
        "printed report",
    ] {
        assert!(seen.0.iter().any(|(at, text)| at == place && text.contains("*b* <!channel>")), "{place}");
    }
    // What was answered and written came as far as somebody reads it.
    for name in ["assignee", "merged"].iter().chain(WRITTEN) {
        let words = format!("{name} *b* <!channel>");
        assert!(seen.0.iter().any(|(_, text)| text.contains(&words)), "{name} went nowhere");
    }
}

//! What both programs have said: to services, on their pages, in their logs, on a terminal.

use std::sync::{Arc, LazyLock, Mutex};

use serde_json::Value;
use stepwatch_fakes::{AlertmanagerApi, Fake, FakeSmtp, Mail};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{FakeLibc, Stack, bins, daemon, http, poll_until};

use crate::{Seen, hostile};

/// How long the stream is read on after the last record.
const QUIET: std::time::Duration = std::time::Duration::from_millis(300);
/// The pages of the web interface, as `alerter/src/web.rs` serves them; of what is in braces, each
/// that there is.
pub(crate) const PAGES: &[&str] = &[
    "/",
    "/incidents/{id}",
    "/incidents/{id}/chart.svg",
    "/oncall",
    "/runbooks",
    "/runbooks/{kind}",
    "/silences",
    "/silences/new",
    "/runs",
    "/runs/{run}",
    "/report",
    "/nodes",
    "/nodes/{node}",
    "/receivers",
    "/detectors",
];
/// Of the schedule of reports: a zone in which it is not midnight during this test.
pub(crate) static REPORT_ZONE: LazyLock<&str> = LazyLock::new(|| {
    let hour = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).hour();
    if (2..22).contains(&hour) { "UTC" } else { "Asia/Tokyo" }
});
/// After midnight, when the last hour of the day before is settled.
const REPORT_SETTLED: jiff::SignedDuration = jiff::SignedDuration::from_mins(10);
/// Lists of the API, of which the parts are read as well.
const LISTS: &[&str] = &[
    "/api/v1/incidents",
    "/api/v1/runs",
    "/api/v1/report",
    "/api/v1/nodes",
    "/api/v1/silences",
    "/api/v1/audit",
    "/api/v1/oncall",
    "/api/v1/oncall/overrides",
    "/api/v1/sources",
    "/api/v1/replicas",
    "/api/v1/status",
    "/api/v2/alerts",
    "/api/v2/alerts/groups",
    "/api/v2/silences",
    "/api/v2/status",
];

/// What the alerter publishes from now on, as a browser receives it.
pub(crate) struct Followed(Arc<Mutex<Vec<u8>>>);

impl Followed {
    pub(crate) async fn begin(stack: &Stack) -> Self {
        let url = format!("{}/api/v1/events", stack.alerter.url());
        let mut answer = http::client().get(url).send().await.unwrap().error_for_status().unwrap();
        let followed = Arc::new(Mutex::new(Vec::new()));
        let text = Arc::clone(&followed);
        tokio::spawn(async move {
            // Until the alerter ends.
            while let Ok(Some(chunk)) = answer.chunk().await {
                text.lock().unwrap().extend_from_slice(&chunk);
            }
        });
        Self(followed)
    }

    /// Whole events, each in its lines.
    fn events(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
        let whole = text.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
        whole.split("\n\n").map(str::to_owned).collect()
    }

    pub(crate) async fn read(&self, seen: &mut Seen) {
        let has = |kind: &str| self.events().iter().any(|e| e.lines().any(|l| l == format!("event: {kind}")));
        let all = async || ["incident", "step", "node"].into_iter().all(has).then(|| self.events());
        for event in poll_until("an event of each kind", PATIENCE, all).await.unwrap() {
            let data = event.lines().find_map(|line| line.strip_prefix("data: "));
            data.into_iter().for_each(|data| seen.json("events", &serde_json::from_str(data).unwrap()));
        }
    }
}

/// All records that the stream has.
pub(crate) async fn stream(stack: &Stack) -> Vec<Value> {
    let url = format!("{}/v1/stream", stack.exporter.url());
    let mut answer = http::client().get(url).send().await.unwrap().error_for_status().unwrap();
    let mut text = Vec::new();
    while let Ok(chunk) = tokio::time::timeout(QUIET, answer.chunk()).await {
        text.extend_from_slice(&chunk.unwrap().unwrap());
    }
    let lines = text.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

pub(crate) async fn out_of_exporter(stack: &Stack, seen: &mut Seen) {
    seen.text("exporter /metrics", stack.exporter.metrics().await.unwrap());
    stream(stack).await.iter().for_each(|record| seen.json("stream", record));
    seen.json("runs", &http::get_json(&format!("{}/v1/runs", stack.exporter.url())).await.unwrap());
    let mut runs = daemon::command(bins::path(bins::EXPORTER).unwrap());
    let printed = runs.args(["runs", "--url", &stack.exporter.url()]).output().await.unwrap();
    seen.text("exporter runs", String::from_utf8(printed.stdout).unwrap());
    for line in stack.exporter.daemon.log() {
        seen.text("exporter log", &line);
        seen.json("exporter log", &serde_json::from_str(&line).unwrap());
    }
}

/// The values of `key` in a list of the API.
async fn names(stack: &Stack, list: &str, key: &str) -> Vec<String> {
    let all = http::get_json(&format!("{}/api/v1/{list}", stack.alerter.url())).await.unwrap();
    let items = all[list].as_array().unwrap_or_else(|| panic!("{list}: {all}"));
    items.iter().map(|item| item[key].as_str().unwrap().to_owned()).collect()
}

async fn pages(stack: &Stack, ids: &[String], seen: &mut Seen) {
    let (runs, nodes) = (names(stack, "runs", "run").await, names(stack, "nodes", "node").await);
    assert!(runs.iter().any(|run| run.starts_with("paged ")) && !nodes.is_empty(), "{runs:?} {nodes:?}");
    let (kinds, once) = (["nonfinite".to_owned(), "gpu_fault".to_owned()], [String::new()]);
    for page in PAGES {
        let (part, each) = match page.split_once('{') {
            None => ("", &once[..]),
            Some((_, rest)) if rest.starts_with("id}") => ("{id}", ids),
            Some((_, rest)) if rest.starts_with("run}") => ("{run}", &runs[..]),
            Some((_, rest)) if rest.starts_with("node}") => ("{node}", &nodes[..]),
            Some(_) => ("{kind}", &kinds[..]),
        };
        for name in each {
            let path = if part.is_empty() { (*page).to_owned() } else { page.replace(part, &encoded(name)) };
            let answer = http::get(&format!("{}{path}", stack.alerter.url())).await;
            if page.contains("/chart.") {
                // An alert of another program has none.
                answer.into_iter().for_each(|chart| seen.text("chart", chart));
            } else {
                seen.text("ui", answer.unwrap_or_else(|error| panic!("{path}: {error}")));
            }
        }
    }
}

pub(crate) fn encoded(name: &str) -> String {
    name.bytes().flat_map(|b| ["%".to_owned(), format!("{b:02X}")]).collect()
}

pub(crate) async fn out_of_alerter(stack: &Stack, ids: &[String], seen: &mut Seen) {
    let url = stack.alerter.url();
    seen.text("alerter /metrics", stack.alerter.metrics().await.unwrap());
    for path in LISTS {
        let answer = http::get_json(&format!("{url}{path}")).await;
        seen.json("api", &answer.unwrap_or_else(|error| panic!("{path}: {error}")));
    }
    pages(stack, ids, seen).await;
    let mut commands = vec![
        vec!["incidents", "list"],
        vec!["silences", "list"],
        vec!["audit"],
        vec!["runs"],
        vec!["report"],
        vec!["report", "--format", "html"],
        vec!["sources"],
        vec!["oncall", "primary"],
        vec!["oncall", "override", "list"],
    ];
    for id in ids {
        seen.json("api", &http::get_json(&format!("{url}/api/v1/incidents/{id}")).await.unwrap());
        let account =
            http::get(&format!("{url}/api/v1/incidents/{id}/postmortem?format=markdown")).await.unwrap();
        seen.text("postmortem", unescaped(&account));
        commands.extend([vec!["incidents", "show", id], vec!["explain", id]]);
    }
    let runs = names(stack, "runs", "run").await;
    let of_runs =
        runs.iter().flat_map(|run| ["attempts", "ranks"].map(|part| format!("runs/{}/{part}", encoded(run))));
    let nodes = names(stack, "nodes", "node").await;
    for path in of_runs.chain(nodes.iter().map(|node| format!("nodes/{}", encoded(node)))) {
        let answer = http::get_json(&format!("{url}/api/v1/{path}")).await;
        seen.json("api", &answer.unwrap_or_else(|error| panic!("{path}: {error}")));
    }
    let mut with_loss = 0;
    for run in &runs {
        let path = format!("{url}/api/v1/runs/{}/series?signal=loss", encoded(run));
        // Not every run has a loss.
        if let Ok(series) = http::get_json(&path).await {
            seen.json("api", &series);
            with_loss += 1;
        }
    }
    assert!(with_loss > 1, "{runs:?}");
    if let [a, b, ..] = runs.as_slice() {
        commands.push(vec!["runs", "diff", a, b]);
    }
    for command in commands {
        let printed = stack.alerter.cli(&command).await.unwrap();
        assert!(printed.status.success(), "{command:?}: {}", String::from_utf8_lossy(&printed.stderr));
        seen.text("cli", String::from_utf8(printed.stdout).unwrap());
    }
    without_alerter(stack, seen).await;
    for line in stack.alerter.daemon.log() {
        seen.text("alerter log", &line);
        seen.json("alerter log", &serde_json::from_str(&line).unwrap());
    }
}

/// What the commands say that ask the configuration alone, of texts that somebody pasted.
async fn without_alerter(stack: &Stack, seen: &mut Seen) {
    let file = stack.alerter.config_file().display().to_string();
    let (run, node) = (hostile("simulated"), hostile("node"));
    for args in [
        &["config", "check", &file][..],
        &["simulate", "--config", &file, "--run", &run, "--node", &node],
        &["simulate", "--config", &file, "--run", &run, "--format", "json"],
    ] {
        let mut command = daemon::command(bins::path(bins::ALERTER).unwrap());
        let printed = command.args(args).output().await.unwrap();
        assert!(printed.status.success(), "{args:?}: {}", String::from_utf8_lossy(&printed.stderr));
        seen.text("cli", String::from_utf8(printed.stdout).unwrap());
        seen.text("cli", String::from_utf8(printed.stderr).unwrap());
    }
}

/// The services beside those of every stack.
pub(crate) struct Services {
    pub(crate) relay: FakeSmtp,
    pub(crate) other: Fake<AlertmanagerApi>,
}

/// What the services have got: of Slack apart what it shows with markup.
pub(crate) async fn out_of_services(stack: &Stack, services: &Services, count: usize, seen: &mut Seen) {
    let slack = stack.slack.wait_for(|s| s.top().count() >= count, PATIENCE).await.unwrap();
    for post in &slack.posts {
        seen.text("slack markup", &post.text);
        for block in post.blocks.iter().chain(&post.attachments) {
            seen.json("slack", block);
            markup(block, &mut |text| seen.text("slack markup", text));
        }
    }
    let pagerduty = stack.pagerduty.wait_for(|pd| pd.alerts.len() >= count, PATIENCE).await.unwrap();
    pagerduty.alerts.iter().for_each(|alert| seen.json("pagerduty", &alert.event));
    let hook = stack.webhook.wait_for(|hook| hook.deliveries.len() >= count, PATIENCE).await.unwrap();
    hook.deliveries.iter().for_each(|delivery| seen.json("webhook", &delivery.body));
    let mails = services.relay.wait_for(|relay| relay.mails.len() >= count, PATIENCE).await.unwrap().mails;
    for mail in &mails {
        mail.headers.iter().for_each(|(_, value)| seen.text("mail header", value));
        seen.text("mail text", mail.text.replace('\r', ""));
        seen.text("mail html", mail.html.replace('\r', ""));
    }
    let other = services.other.wait_for(|other| other.alerts.len() >= count, PATIENCE).await.unwrap();
    other.alerts.values().for_each(|alert| seen.json("alertmanager", alert));
    for line in stack.alerter.daemon.printed() {
        // Of two receivers, one writes JSON.
        if let Ok(notification) = serde_json::from_str(&line) {
            seen.json("stdout json", &notification);
        }
        seen.text("stdout", line);
    }
}

/// The report of the day, as each receiver got it: the next day comes.
pub(crate) async fn out_of_reports(
    stack: &mut Stack,
    machine: &FakeLibc,
    services: &Services,
    seen: &mut Seen,
) {
    stack.alerter.daemon.terminate().await.unwrap();
    let now = jiff::Timestamp::now().in_tz(&REPORT_ZONE).unwrap();
    let night = now.tomorrow().unwrap().start_of_day().unwrap() + REPORT_SETTLED;
    machine.set_clock(now.duration_until(&night).as_secs()).unwrap();
    stack.alerter.restart(None).await.unwrap();
    let titled = |text: &str| text.contains("Daily report");
    let slack = stack.slack.wait_for(|s| s.posts.iter().any(|p| titled(&p.text)), PATIENCE).await.unwrap();
    for post in slack.posts.iter().filter(|post| titled(&post.text)) {
        seen.text("slack markup", &post.text);
        for block in post.blocks.iter().chain(&post.attachments) {
            seen.json("slack report", block);
            markup(block, &mut |text| seen.text("slack markup", text));
        }
    }
    let of_report = |mail: &&Mail| titled(mail.header("subject"));
    let mails = services.relay.wait_for(|relay| relay.mails.iter().any(|m| of_report(&m)), PATIENCE).await;
    for mail in mails.unwrap().mails.iter().filter(of_report) {
        assert!(mail.text.contains("paged "), "the run whose name is hostile is in it: {}", mail.text);
        seen.text("mail report", unescaped(&mail.text.replace('\r', "")));
        seen.text("mail html", mail.html.replace('\r', ""));
    }
    // A webhook would refuse a signature of tomorrow.
    let printed = async || {
        let lines = stack.alerter.daemon.printed();
        let report =
            lines.iter().filter(|line| titled(line)).find_map(|line| serde_json::from_str(line).ok());
        report as Option<Value>
    };
    seen.json("printed report", &poll_until("the report in JSON", PATIENCE, printed).await.unwrap());
}

/// Markdown without what is escaped in it.
fn unescaped(markdown: &str) -> String {
    let mut chars = markdown.chars();
    let mut out = String::new();
    while let Some(c) = chars.next() {
        if c == '\\' {
            chars.next();
        } else {
            out.push(c);
        }
    }
    out
}

fn markup(value: &Value, out: &mut dyn FnMut(&str)) {
    if let (Some("mrkdwn"), Some(text)) = (value["type"].as_str(), value["text"].as_str()) {
        out(text);
    }
    match value {
        Value::Array(items) => items.iter().for_each(|item| markup(item, out)),
        Value::Object(map) => map.values().for_each(|value| markup(value, out)),
        _ => {}
    }
}

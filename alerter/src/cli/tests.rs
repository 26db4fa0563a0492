mod answers;
mod following;
mod help;
mod replicas;

use clap::{CommandFactory, Parser};
use insta::assert_snapshot;
use stepwatch_fakes::{FakeSlack, Slack};
use stepwatch_model::time::Ts;
use stepwatch_model::{Cause, Kind, Observation, Severity, Suspect, Target};
use stepwatch_respond::effect::Action;
use stepwatch_respond::incident::{Ended, State, SuppressionReason};
use stepwatch_respond::message::Reason;

use super::*;
use crate::api::doc::examples;
use crate::api::view::{
    DeliveryView, Facts, IncidentDetail, IncidentView, LeaderView, LinkView, PathView, RunList, RunView,
    SourceView, Status, SuppressionView, TimelineView, When,
};
use crate::postmortem::Cost;
use crate::store::DeliveryState;
use crate::testing::{DEADLINE, TestApp, wait_for};

const OPENED: i64 = 1_795_227_416_980;

fn suspect(target: Target, words: &str) -> Suspect {
    Suspect::new(target, Observation::Stated { words: words.into() })
}

fn at(seconds: i64) -> When {
    When(Ts(OPENED + seconds * 1000))
}

fn incident() -> IncidentView {
    IncidentView {
        id: "01KAHTZ7".into(),
        run: "llama-70b".into(),
        nodes: Vec::new(),
        kind: Kind::GradSpike,
        cause: Cause::Numerics,
        severity: Severity::Page,
        state: State::Open,
        signal: "grad_norm".into(),
        title: "gradient spike".into(),
        summary: "grad_norm rose to 27.3 within 4 steps, 31 robust sigmas above 0.87".into(),
        facts: Facts::new(),
        start_step: 12340,
        opened_step: 12343,
        detected_step: 12345,
        end_step: None,
        value: 27.3,
        expected: 0.87,
        score: 31.2,
        suspects: vec![suspect(Target::rank(17, None), "first to show it")],
        opened_at: at(0),
        resolved_at: None,
        acked_by: None,
        acked_at: None,
        level: 1,
        next_escalation_at: Some(at(300)),
        flaps: 0,
        labels: BTreeMap::new(),
        suppression: None,
        ended: None,
        resolved_by: None,
        resolved_as: None,
        silent_since: None,
        reopens_at: None,
        signed: None,
    }
}

/// A fault of a node that no run uses.
fn gpu_fault() -> IncidentView {
    IncidentView {
        id: "01KAHTZ8".into(),
        run: String::new(),
        nodes: vec!["gpu-042".into()],
        kind: Kind::GpuFault,
        cause: Cause::Hardware,
        severity: Severity::Ticket,
        signal: "gpu".into(),
        title: "GPU fault".into(),
        summary: "XID 79 on GPU 3 of gpu-042: GPU has fallen off the bus".into(),
        start_step: 0,
        suspects: vec![suspect(Target::Part { node: "gpu-042".into(), name: "GPU 3".into() }, "XID 79")],
        ..incident()
    }
}

fn delivery(seq: u32, receiver: &str, state: DeliveryState, created: i64) -> DeliveryView {
    DeliveryView {
        ring: None,
        left_to: None,
        key: "k".into(),
        receiver: receiver.into(),
        seq,
        action: Action::Trigger,
        page: true,
        state,
        attempts: 1,
        created_at: at(created),
        next_at: None,
        done_at: None,
        error: None,
        users: Vec::new(),
        title: Some("PAGE llama-70b: gradient spike at step 12340".into()),
        because: Some(Reason::First),
        reason: Some("new incident".into()),
        path: Some(PathView {
            route: "routes[0]".into(),
            matched: "severity=\"page\"".into(),
            policy: Some("default".into()),
            level: 1,
            again: 0,
            chosen: vec![receiver.into()],
            asked: vec!["silences that do not match: 1".into()],
        }),
    }
}

/// An incident that was silenced at first, notified when the silence ended, escalated to the person
/// on call, and acknowledged.
fn detail() -> IncidentDetail {
    let entry = |s, actor: &str, what: &str| TimelineView {
        at: at(s),
        actor: actor.into(),
        what: what.into(),
        suppressed: None,
    };
    let ended = "still firing: silence 5f0c ended";
    let (chat, mut primary) =
        (delivery(1, "chat", DeliveryState::Delivered, 60), delivery(1, "pd", DeliveryState::Pending, 360));
    let chat = DeliveryView {
        done_at: Some("2026-11-21T02:17:57.100Z".into()),
        because: Some(Reason::SilenceEnded),
        reason: Some(ended.into()),
        ..chat
    };
    primary.path = primary.path.map(|path| PathView {
        level: 2,
        chosen: vec!["schedule primary: alice (override by bob until 2026-11-21T09:00Z) by pd".into()],
        asked: vec!["outside office-hours".into()],
        ..path
    });
    let primary = DeliveryView {
        attempts: 3,
        next_at: Some(at(400)),
        error: Some("503 from \u{1b}[31mthe service".into()),
        users: vec!["alice".into()],
        because: Some(Reason::Escalated),
        reason: Some("escalated to level 2: no answer for 6m".into()),
        ..primary
    };
    let answer = DeliveryView {
        seq: 2,
        action: Action::Ack,
        created_at: at(425),
        title: Some("ACK llama-70b: gradient spike at step 12340".into()),
        because: Some(Reason::Acknowledged),
        reason: Some("acknowledged by alice after 7m 5s".into()),
        path: None,
        ..chat.clone()
    };
    let mut superseded = delivery(2, "pd", DeliveryState::Superseded, 420);
    superseded.error = Some("already acknowledged".into());
    let incident = IncidentView {
        state: State::Acknowledged,
        acked_by: Some("alice".into()),
        acked_at: Some(at(425)),
        next_escalation_at: None,
        ..incident()
    };
    IncidentDetail {
        timeline: vec![
            entry(0, "engine", "route: routes[0] (severity=\"page\"), levels: 2"),
            TimelineView {
                suppressed: Some("silenced by bob until 2026-11-21T02:17:56Z: new switch (5f0c)".into()),
                ..entry(
                    0,
                    "engine",
                    "nobody is notified: silenced by bob until 2026-11-21T02:17:56Z: new switch (5f0c)",
                )
            },
            entry(60, "engine", ended),
            entry(60, "engine", "level 1 notified (chat): still firing: silence 5f0c ended"),
            entry(61, "chat", "trigger delivered"),
            entry(425, "alice", "acknowledged after 7m 5s; escalation stops"),
        ],
        deliveries: vec![chat, primary, superseded, answer],
        cost: Some(Cost { gpus: 512, dollars_per_hour: 1280.0, dollars: 151.25 }),
        ..facts_of(incident)
    }
}

fn facts_of(incident: IncidentView) -> IncidentDetail {
    let (description, links, timeline, deliveries) = (None, Vec::new(), Vec::new(), Vec::new());
    let (advice, plan, cost) = (None, None, None);
    IncidentDetail { incident, description, links, advice, plan, cost, timeline, deliveries }
}

fn suppressed(why: SuppressionReason, by: &str) -> SuppressionView {
    SuppressionView { why, by: by.into(), until: None, words: format!("as {by} says") }
}

fn text(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    stripped(out)
}

/// The output without escape sequences, as on a standard output that is not a terminal.
pub(super) fn stripped(out: Vec<u8>) -> String {
    anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string()
}

/// Runs a command; returns the status, standard output and standard error.
async fn cli(args: &[&str]) -> (u8, String, String) {
    let cli = Cli::try_parse_from(["stepwatch-alerter"].iter().chain(args)).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = cli.run_with(LogControl::detached, &mut out, &mut err).await;
    (status, stripped(out), String::from_utf8(err).unwrap())
}

#[test]
fn a_thread_that_never_ends_does_not_keep_the_process() {
    let (keep, stuck) = std::sync::mpsc::channel::<()>();
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let status = to_its_end(runtime, async { tokio::task::spawn_blocking(move || stuck.recv()).id() });
        sender.send(status)
    });
    assert!(ended.recv_timeout(DEADLINE).is_ok());
    drop(keep);
}

#[test]
fn how_it_ended_and_whether_it_comes_back_is_said() {
    let now = Ts(OPENED + 250_000);
    let over = IncidentView { state: State::Resolved, resolved_at: Some(at(100)), ..incident() };
    let by_hand = IncidentView {
        ended: Some(Ended::Person),
        resolved_by: Some("ann".into()),
        reopens_at: Some(at(700)),
        ..over.clone()
    };
    let stale = IncidentView { ended: Some(Ended::Stale), silent_since: Some(at(40)), ..over.clone() };
    let sender = IncidentView { ended: Some(Ended::Sender), ..over.clone() };
    let table = text(|out| incidents::listing(&[by_hand.clone(), stale.clone()], now, out));
    for part in ["resolved by hand, still firing", "back in 7m 30s", " stale "] {
        assert!(table.contains(part), "{table}");
    }
    let state = |incident: &IncidentView| {
        let detail = IncidentDetail { incident: incident.clone(), ..detail() };
        let shown = text(|out| incidents::facts(&detail, now, out));
        shown.lines().find(|line| line.contains("state")).unwrap().trim().to_owned()
    };
    let said = [by_hand, stale, sender, over].map(|i| state(&i));
    assert!(
        said[0]
            .ends_with(" by ann; still firing: comes back at 2026-11-21T02:28:36Z unless it is over by then"),
        "{said:?}"
    );
    assert!(
        said[1].ends_with(" as stale: nothing has been heard of it since 2026-11-21T02:17:36Z"),
        "{said:?}"
    );
    assert!(said[2].ends_with(": its sender said that it is over"), "{said:?}");
    assert!(said[3].ends_with("after 1m 40s"), "{said:?}");
}

/// Every call shows its key, also an update that calls a person.
#[test]
fn the_key_of_every_call_is_shown() {
    let trigger = DeliveryView { ring: Some(1), ..delivery(1, "pd", DeliveryState::Delivered, 0) };
    let news = DeliveryView { ring: Some(3), seq: 3, action: Action::Update, ..trigger.clone() };
    let detail = IncidentDetail { deliveries: vec![trigger, news], ..detail() };
    let shown = text(|out| explain::story(&detail, Ts(OPENED + 250_000), out));
    let keys: Vec<&str> = shown.lines().filter_map(|line| line.trim().strip_prefix("rings ")).collect();
    assert_eq!(keys.len(), 2, "{shown}");
    assert!(keys[1].ends_with(&format!("PagerDuty as {}-3", detail.incident.id)), "{keys:?}");
}

#[test]
fn listing() {
    let quiet = IncidentView {
        id: "01KAHSAA".into(),
        kind: Kind::Nonfinite,
        severity: Severity::Info,
        state: State::Resolved,
        value: f64::NAN,
        summary: "one\nNaN".into(),
        ..incident()
    };
    let node = gpu_fault();
    let both = IncidentView { id: "01KAHTZ9".into(), run: "llama-70b".into(), ..gpu_fault() };
    let now = Ts(OPENED + 250_000);
    // A suppressed incident, and one of which nobody has been notified yet.
    let silenced =
        IncidentView { suppression: Some(suppressed(SuppressionReason::Silenced, "5f0c")), ..incident() };
    let inhibited = IncidentView {
        suppression: Some(suppressed(SuppressionReason::Inhibited, "01KAHTZ8")),
        ..incident()
    };
    let rolled_up = IncidentView {
        suppression: Some(suppressed(SuppressionReason::RolledUp, "01KAHTZX")),
        ..gpu_fault()
    };
    let taken = IncidentView { state: State::Acknowledged, acked_by: Some("alice".into()), ..incident() };
    let waits = IncidentView { level: 0, ..incident() };
    let never = IncidentView { level: 0, next_escalation_at: None, ..gpu_fault() };
    let all = [incident(), quiet, node, both, silenced, inhibited, rolled_up, taken, waits, never];
    assert_snapshot!(text(|out| {
        incidents::listing(&all, now, out)?;
        incidents::unheard(&all, out)
    }));
    assert_eq!(text(|out| incidents::unheard(&[incident()], out)), "");
    assert_eq!(text(|out| incidents::listing(&[], now, out)), "no incidents\n");
}

#[test]
fn facts() {
    let now = Ts(OPENED + 250_000);
    let resolved = IncidentView {
        state: State::Resolved,
        resolved_at: Some(at(700)),
        end_step: Some(12400),
        value: f64::NAN,
        expected: 3.2e-5,
        flaps: 2,
        ..incident()
    };
    let alert = IncidentView {
        kind: Kind::PrometheusAlert,
        cause: Cause::External,
        title: "DiskFull".into(),
        signal: "DiskFull".into(),
        summary: "DiskFull: /data is 98 % full".into(),
        suppression: Some(suppressed(SuppressionReason::Silenced, "5f0c")),
        ..gpu_fault()
    };
    let link = |text: &str, href: &str| LinkView { text: text.into(), href: href.into() };
    let alert = IncidentDetail {
        description: Some("It fills up within the hour.\nMove the checkpoints.".into()),
        links: vec![
            link("Runbook", "https://wiki.example.com/disk"),
            link("Incident", "https://stepwatch.example.com/i"),
        ],
        ..facts_of(alert)
    };
    let all = [facts_of(incident()), facts_of(resolved), facts_of(gpu_fault()), alert];
    assert_snapshot!(all.map(|d| text(|out| incidents::facts(&d, now, out))).join("\n"));
}

#[test]
fn story() {
    assert_snapshot!(text(|out| explain::story(&detail(), Ts(OPENED + 250_000), out)));
}

#[test]
fn whoever_answers_has_a_name() {
    let name = |set: &'static [(&str, &str)]| {
        incidents::whoami(|key| set.iter().find(|(k, _)| *k == key).map(|(_, v)| (*v).to_owned()))
    };
    assert_eq!(name(&[("USER", "alice"), ("LOGNAME", "bob")]), "alice");
    assert_eq!(name(&[("USER", ""), ("LOGNAME", "bob")]), "bob");
    assert_eq!(name(&[]), format!("uid {}", rustix::process::getuid().as_raw()));
}

#[test]
fn a_configuration_is_needed_to_run_and_nothing_else() {
    let status = |args: &[&str]| {
        let all = ["stepwatch-alerter"].iter().chain(args);
        Cli::try_parse_from(all).map(drop).map_err(|e| e.exit_code())
    };
    assert_eq!(status(&[]), Err(2));
    assert_eq!(status(&["run"]), Err(2));
    assert_eq!(
        status(&["--config", "a.yml", "--listen", "127.0.0.1:0", "--web.config.file", "web.yml"]),
        Ok(())
    );
    assert_eq!(status(&["run", "--config", "a.yml"]), Ok(()));
    assert_eq!(status(&["config", "check", "a.yml"]), Ok(()));
    assert_eq!(status(&["--listen", "nowhere"]), Err(2));
}

#[tokio::test]
async fn a_bad_configuration_leaves_with_64() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.yml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, "listen: here\n").unwrap();
    for args in
        [["config", "check", path].as_slice(), &["--config", path], &["notify", "test", "--config", path]]
    {
        let (status, out, err) = cli(args).await;
        assert_eq!((status, out.as_str()), (64, ""), "{args:?}");
        assert!(err.contains("a.yml:1:9") && err.contains('^'), "{err}");
    }
    std::fs::write(&file, "receivers: [{name: out, stdout: {}}]\n").unwrap();
    let (status, out, err) = cli(&["config", "check", path]).await;
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(out.contains("receivers  out: stdout"), "{out}");
    let (status, out, err) = cli(&["config", "check", path, "--format", "json"]).await;
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, err.as_str(), &said["good"]), (0, "", &true.into()));
    assert_eq!(said["understood"]["receivers"][0], "out: stdout");
    assert!(said["warnings"][0].as_str().unwrap().starts_with("sources: is empty"), "{said}");
    std::fs::write(&file, "resolve_after: 1m\nlisten: here\n").unwrap();
    let (status, out, err) = cli(&["config", "check", path, "--format", "json"]).await;
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, err.as_str(), &said["good"]), (64, "", &false.into()));
    let mistake = &said["mistakes"][0];
    assert_eq!((&mistake["line"], &mistake["column"]), (&2.into(), &9.into()), "{said}");
    assert_eq!(cli(&["config", "check", "/nonexistent.yml"]).await.0, 64);
}

#[tokio::test]
async fn one_store_serves_one_alerter() {
    let app = TestApp::start().await;
    let path = app.dir.path().join("alerter.yml");
    let (status, _, err) = cli(&["--config", path.to_str().unwrap()]).await;
    assert_eq!(status, 1);
    let want = "the alerter does not start: the store does not open:";
    assert!(err.starts_with(want) && err.contains("in use by another"), "{err}");
}

#[tokio::test]
async fn receivers_are_tried_for_real() {
    let app = TestApp::start().await;
    let path = app.dir.path().join("alerter.yml");
    let (status, out, err) = cli(&["notify", "test", "--config", path.to_str().unwrap()]).await;
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("hook") && out.contains("delivered"), "{out}");
    let got = app.hook.wait_for(|s| s.deliveries.len() == 2, DEADLINE).await.unwrap();
    assert!(got.deliveries[0].body.to_string().contains("TEST"), "{:?}", got.deliveries[0]);

    // A template cannot hide that the message is a test.
    app.reconfigure("templates: {title: 'on fire: {{ run.name }}', summary: 'own words'}\n");
    let (status, out, _) = cli(&["notify", "test", "--config", path.to_str().unwrap()]).await;
    assert!(status == 0 && out.contains("hook says:\n  TEST: on fire: test-run\n  own words\n"), "{out}");
    let got = app.hook.wait_for(|s| s.deliveries.len() == 4, DEADLINE).await.unwrap();
    assert_eq!(got.deliveries[2].body["incident"]["title"], "TEST: on fire: test-run");

    app.hook.change(|s| s.secret = "another".into());
    let (status, out, _) =
        cli(&["notify", "test", "--config", path.to_str().unwrap(), "--format", "json"]).await;
    let outcomes: serde_json::Value = serde_json::from_str(&out).unwrap();
    let hook = &outcomes[0];
    assert_eq!((status, &hook["receiver"], &hook["delivered"]), (1, &"hook".into(), &false.into()));
    let (status, out, _) =
        cli(&["notify", "test", "--config", path.to_str().unwrap(), "--receiver", "hook"]).await;
    assert_eq!(status, 1);
    assert!(out.contains("refused"), "{out}");
    let (status, _, err) =
        cli(&["notify", "test", "--config", path.to_str().unwrap(), "--receiver", "x"]).await;
    assert_eq!((status, err.contains("those that exist: hook")), (1, true), "{err}");
}

#[tokio::test]
async fn a_message_that_would_be_sent_twice_is_reported_by_the_test() {
    let (fake, dir) = (FakeSlack::start().await, tempfile::tempdir().unwrap());
    std::fs::write(dir.path().join("token"), Slack::TOKEN).unwrap();
    let file = dir.path().join("alerter.yml");
    let path = file.to_str().unwrap();
    let test = async |channel: &str| {
        let api = format!("{}/api", fake.url());
        let slack = format!("{{channel: '{channel}', token_file: token, api_url: '{api}'}}");
        std::fs::write(&file, format!("receivers: [{{name: chat, slack: {slack}}}]\n")).unwrap();
        let (status, out, err) = cli(&["notify", "test", "--config", path]).await;
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        out
    };
    let output = test("#training").await;
    assert!(!output.contains("warning"), "{output}");
    let why = "note: chat: messages will have no chart: slack: files.getUploadURLExternal: missing_scope";
    assert!(output.contains(why), "{output}");
    fake.change(|s| s.scopes.insert(Slack::FILES.into()));
    assert!(!test("#training").await.contains("no chart"));
    let shown = fake.with(|s| s.shown_files().count());
    assert_eq!(shown, 0, "a test shows no picture");
    let output = test("#war-room").await;
    assert!(output.contains("warning: chat: a message whose answer is lost would be sent twice"), "{output}");
    assert!(
        output.contains(
            "it needs groups:read, and the token has channels:history,channels:read,chat:write,files:write"
        ),
        "{output}"
    );
}

#[tokio::test]
async fn what_is_watched_and_how_we_are() {
    let app = TestApp::start().await;
    app.page("llama").await;
    let url = ["--url", app.url.as_str()];
    let source = app.exporter.name();
    for (args, table, json) in [
        ("runs", "llama", "/runs/0/run"),
        ("sources", source.as_str(), "/sources/0/source"),
        ("status", "1 of 1 up", "/sources_up"),
    ] {
        let shown = wait_for("the views", async || {
            let (status, out, err) = cli(&[&[args], &url[..]].concat()).await;
            assert_eq!((status, err.as_str()), (0, ""));
            out.contains(table).then_some(out)
        });
        assert!(!shown.await.contains('{'));
        let (status, out, _) = cli(&[&[args, "--format", "json"], &url[..]].concat()).await;
        let out: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(status == 0 && out.pointer(json).is_some(), "{out}");
    }
    for args in ["runs", "sources", "status"] {
        let (status, _, err) = cli(&[args, "--url", "http://127.0.0.1:1"]).await;
        assert!(status == 1 && err.contains("cannot reach the alerter"), "{err}");
    }
}

#[tokio::test]
async fn runs_are_put_side_by_side_and_an_unknown_one_is_told_with_the_nearest_name() {
    let app = TestApp::start().await;
    app.page("llama").await;
    let url = ["--url", app.url.as_str()];
    let diff = async |args: &[&str]| cli(&[&["runs", "diff"][..], args, &url[..]].concat()).await;
    let out = wait_for("the run", async || {
        let (_, out, _) = diff(&["llama", "llama", "--format", "json"]).await;
        let out: serde_json::Value = serde_json::from_str(&out).ok()?;
        (out["b"]["watched"] == true).then_some(out)
    });
    assert_eq!(out.await["a"]["run"], "llama");
    let (status, out, _) = diff(&["llama", "llama"]).await;
    assert!(status == 0 && out.contains("no known difference in how they are set up"), "{out}");
    let (status, _, err) = diff(&["llama", "lama"]).await;
    assert!(status == 1 && err.contains("there is no run \"lama\"; did you mean \"llama\"?"), "{err}");
}

#[test]
fn the_state_of_an_alerter() {
    let now = Ts(OPENED + 250_000);
    let run: RunView = serde_json::from_value(examples::run()).unwrap();
    let ended = RunView { run: "gpt-2".into(), ended: Some(1), world: None, ..run.clone() };
    let new = RunView {
        run: "new".into(),
        last_step: None,
        last_step_age_seconds: None,
        last_checkpoint_step: None,
        ..run.clone()
    };
    let lost = RunView { lost_sources: vec!["gpu-001:9765".into()], ..run.clone() };
    let runs = RunList { runs: vec![run, ended, new, lost], hidden: 3 };
    let source: SourceView = serde_json::from_value(examples::source()).unwrap();
    let down = SourceView {
        up: false,
        error: Some("connection refused\u{1b}".into()),
        last_record_at: None,
        ..source.clone()
    };
    let status = serde_json::from_value(examples::status()).unwrap();
    let all = [
        text(|out| state::run_table(&runs, now, out)),
        text(|out| state::run_table(&RunList { runs: Vec::new(), hidden: 0 }, now, out)),
        text(|out| state::source_table(&[source, down], now, out)),
        text(|out| state::source_table(&[], now, out)),
        text(|out| state::facts(&status, now, out)),
    ];
    assert_snapshot!(all.join("\n"));
}

#[tokio::test]
async fn the_document_is_printed() {
    let (status, out, err) = cli(&["openapi"]).await;
    assert_eq!((status, err.as_str()), (0, ""));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap()["openapi"], "3.1.0");
}

#[test]
fn an_audit_log() {
    let entry =
        |seq, actor: &str, outcome, remote: Option<&str>, detail: &str| crate::api::audit::AuditView {
            seq,
            at: When(Ts(1_795_227_404_000 + seq * 1000)),
            actor: actor.into(),
            door: crate::audit::Door::Cli,
            action: "ack".into(),
            target: "01J9ZC".into(),
            outcome,
            remote: remote.map(str::to_owned),
            detail: detail.into(),
        };
    use crate::audit::Outcome::{Done, Refused};
    let entries = [
        entry(2, "api:ops (alice)", Done, Some("10.0.0.7"), ""),
        entry(1, "", Refused, None, "401: no token was sent"),
    ];
    assert_snapshot!(text(|out| audit::table(&entries, out)));
    assert_eq!(text(|out| audit::table(&[], out)), "no entries\n");
}

//! The common tests of all notifiers: the classification of answers, the accepted pauses, secrets
//! in output, and messages that may or may not have arrived. It also has sample messages.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepwatch_engine::{Engine, SourceInput};
use stepwatch_fakes::{
    AlertmanagerApi, Fake, FakeSmtp, Fault, PagerDuty, Service, Slack, SmtpFault, WebhookSink,
};
use stepwatch_model::time::Ts;
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Action, Effect, Notification};
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::message::{Fact, Link, LinkRole, Message, Reason, Status};
use stepwatch_wire::Event;
use tempfile::TempDir;

use super::{
    Attempt, Failure, FailureClass, Notifier, ReceiverConfig, alertmanager, email, pagerduty, slack, webhook,
};

const DEADLINE: Duration = Duration::from_secs(20);

/// A gradient spike in a large run, as the engine renders it.
pub(crate) fn message() -> Message {
    let fact = |label: &str, text: &str| Fact { label: label.into(), text: text.into() };
    let link = |role, text: &str, href: &str| Link { role, text: text.into(), href: href.into() };
    Message {
        incident: "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C".into(),
        run: "llama-70b".into(),
        nodes: Vec::new(),
        kind: Kind::GradSpike,
        severity: Severity::Page,
        status: Status::Firing,
        ended: None,
        title: "PAGE llama-70b: gradient spike at step 31215".into(),
        summary: "Gradient norm rose to 27.3 within 4 steps, 38 robust sigmas above 0.91, and the loss followed to 3.4."
            .into(),
        marked_up: false,
        facts: vec![
            fact("Since step", "31215 (12s ago, seen at step 31218)"),
            fact("Gradient norm", "27.3 (expected 0.91)"),
            fact("Suspect", "rank 17 on gpu-042: its norm rose two steps before the others'\nstep 31215: the first bad batch"),
            fact("Last good checkpoint", "step 31000, 15m ago"),
            fact("Cost", "$1280.00/h (512 GPUs at $2.50), $4.27 since it opened"),
        ],
        details: super::sample::details(Ts(1_795_227_416_980)),
        because: Reason::First,
        reason: "first".into(),
        links: vec![
            link(LinkRole::Runbook, "Runbook", "https://example.com/runbooks/grad_spike.md"),
            link(LinkRole::Incident, "Incident", "https://stepwatch.example.com/api/v1/incidents/01J9ZC7Q3F8D2V4X6Y8Z0A2B4C"),
        ],
        chart: None,
        labels: Labels::new(),
        started_at: Ts(1_795_227_404_000),
        at: Ts(1_795_227_416_980),
    }
}

pub(crate) fn page(receiver: &str, seq: u32, action: Action) -> Notification {
    let message = message();
    Notification {
        incident: message.incident.clone(),
        receiver: receiver.to_owned(),
        seq,
        action,
        idem_key: format!("{}/{receiver}/{seq}", message.incident),
        page: true,
        users: Vec::new(),
        slack_ids: Vec::new(),
        path: None,
        despite_suppression: false,
        left_to: None,
        source: String::new(),
        reporter: String::new(),
        message,
    }
}

/// A lost GPU as the engine reports it: in a run, and on an idle node.
pub(crate) fn gpu_fault(under_a_run: bool) -> Notification {
    let config = ResponderConfig { receivers: vec!["chat".into()], ..ResponderConfig::default() };
    let (mut engine, mut out) = (Engine::new(config), Vec::new());
    let mut feed = |line: &str| {
        let event = Event::parse(line.as_bytes()).unwrap();
        let input = SourceInput::Event { source: "gpu-042:9765", event: &event };
        engine.handle(Ts(1_795_227_416_980), input, &mut out);
    };
    if under_a_run {
        feed(
            r#"{"k":"step","run":"llama-70b","rank":17,"world":512,"node":"gpu-042","step":31215,"m":{"loss":2.1}}"#,
        );
    }
    let gpu = r#""node":"gpu-042","gpu":"GPU-2f3c9a51-7d1e-4c55-9a0b-3b0000000003","pci":"0000:3b:00.0""#;
    feed(&format!(r#"{{"k":"health","name":"gpu","index":3,{gpu}}}"#));
    let known_as = "GPU has fallen off the bus";
    let hint = "Drain the node, power-cycle it; if it returns, reseat or replace the board";
    let text = format!("XID 79 ({known_as}) of GPU 0000:3b:00.0: {hint}");
    feed(&format!(
        r#"{{"k":"xid","name":"xid","code":79,"level":"error","action":"reboot_node","known_as":"{known_as}","hint":"{hint}","text":"{text}",{gpu}}}"#
    ));
    let notification = out.into_iter().find_map(|effect| match effect {
        Effect::Notify(n) => Some(*n),
        _ => None,
    });
    notification.unwrap()
}

/// Replaces every text that a run can set with malicious text.
pub(crate) fn hostile(mut n: Notification) -> Notification {
    let evil = "<!channel> <!here> <@U0BOSS> <http://evil|click> & \u{202e}txt\u{1b}[2J\u{7}\n`*_~\"'\\\u{0}";
    let m = &mut n.message;
    for text in [&mut m.run, &mut m.title, &mut m.summary, &mut m.reason] {
        *text = format!("{evil} {text}");
    }
    for fact in &mut m.facts {
        (fact.label, fact.text) = (format!("{evil}{}", fact.label), format!("{evil}{}", fact.text));
    }
    for href in ["javascript:alert(1)", "http://x/ <!channel>", "data:text/html,x"] {
        m.links.insert(0, Link { role: LinkRole::Other, text: evil.into(), href: href.into() });
    }
    n
}

/// A notifier and its fake.
struct Subject {
    notifier: Arc<dyn Notifier>,
    service: Box<dyn Under>,
    /// Secrets that must not appear in an error or in debug output.
    canaries: Vec<String>,
    _dir: TempDir,
}

/// The interface of all fakes for these tests.
trait Under: Send + Sync {
    fn fault(&self, fault: Fault);
    /// The messages that a person got, by key.
    fn arrived(&self) -> Vec<String>;
    fn requests(&self) -> usize;

    /// The error statuses of the service, with the class of each and whether the message may have
    /// arrived.
    fn refusals(&self) -> Vec<(u16, FailureClass, bool)> {
        use FailureClass::{Permanent, Transient};
        let refused = [301, 307, 400, 401, 403, 404, 410, 413].map(|status| (status, Permanent, false));
        let unclear = [408, 500, 502, 503, 504].map(|status| (status, Transient, true));
        refused.into_iter().chain(unclear).collect()
    }

    /// Faults in which a message arrives although the answer is lost.
    fn taken(&self) -> Vec<Fault> {
        vec![Fault::TakenThenReset, Fault::TakenThenStatus(500)]
    }

    /// Whether the service can ask for a pause.
    fn asks_for_pauses(&self) -> bool {
        true
    }

    /// Whether a second copy of a message is recognised or can be looked up.
    fn recognises(&self) -> bool {
        true
    }

    /// The text of the error if nothing listens.
    fn unreachable(&self) -> &'static str {
        "cannot connect"
    }
}

/// Slack with an incoming webhook, which has no memory.
struct Incoming(Fake<Slack>);

impl Under for Incoming {
    fn fault(&self, fault: Fault) {
        self.0.script().push("webhook", fault);
    }
    fn arrived(&self) -> Vec<String> {
        self.0.with(|s| s.posts.iter().map(|_| page("r", 1, Action::Trigger).idem_key).collect())
    }
    fn requests(&self) -> usize {
        self.0.with(|s| s.requests.len())
    }
    fn recognises(&self) -> bool {
        false
    }
}

impl Under for Fake<AlertmanagerApi> {
    fn fault(&self, fault: Fault) {
        self.script().push("alerts", fault);
    }
    fn arrived(&self) -> Vec<String> {
        let key =
            |a: &serde_json::Value| format!("{}/r/1", a["labels"]["incident"].as_str().unwrap_or_default());
        self.with(|s| s.alerts.values().map(key).collect())
    }
    fn requests(&self) -> usize {
        self.with(|s| s.requests.len())
    }
}

impl Under for FakeSmtp {
    fn fault(&self, fault: Fault) {
        let fault = match fault {
            Fault::Status(code) => SmtpFault::Data(code),
            Fault::Reset => SmtpFault::Reset,
            Fault::TakenThenReset => SmtpFault::TakenThenReset,
            Fault::Hang => SmtpFault::Hang,
            other => panic!("no relay does {other:?}"),
        };
        self.change(|s| s.faults.push_back(fault));
    }
    fn arrived(&self) -> Vec<String> {
        self.with(|s| s.mails.iter().map(|m| format!("{}/r/1", m.header("x-stepwatch-incident"))).collect())
    }
    fn requests(&self) -> usize {
        self.with(|s| s.connections)
    }
    fn refusals(&self) -> Vec<(u16, FailureClass, bool)> {
        use FailureClass::{Permanent, Transient};
        let later = [421, 450, 451, 452].map(|code| (code, Transient, false));
        let never = [521, 550, 552, 554].map(|code| (code, Permanent, false));
        later.into_iter().chain(never).collect()
    }
    fn taken(&self) -> Vec<Fault> {
        vec![Fault::TakenThenReset]
    }
    fn asks_for_pauses(&self) -> bool {
        false
    }
    fn unreachable(&self) -> &'static str {
        "onnection"
    }
}

impl Under for Fake<Slack> {
    fn fault(&self, fault: Fault) {
        self.script().push("chat.postMessage", fault);
    }
    fn arrived(&self) -> Vec<String> {
        let key = |m: &serde_json::Value| m["event_payload"]["idem_key"].as_str().map(str::to_owned);
        self.with(|s| s.posts.iter().filter_map(|p| key(p.metadata.as_ref()?)).collect())
    }
    fn requests(&self) -> usize {
        self.with(|s| s.requests.len())
    }
}

impl Under for Fake<PagerDuty> {
    fn fault(&self, fault: Fault) {
        self.script().push("enqueue", fault);
    }
    fn arrived(&self) -> Vec<String> {
        self.with(|s| s.pages.iter().map(|p| format!("{}/r/1", p.dedup_key)).collect())
    }
    fn requests(&self) -> usize {
        self.with(|s| s.requests.len())
    }
}

impl Under for Fake<WebhookSink> {
    fn fault(&self, fault: Fault) {
        self.script().push("hook", fault);
    }
    fn arrived(&self) -> Vec<String> {
        self.with(|s| s.deliveries.iter().map(|d| d.key.clone()).collect())
    }
    fn requests(&self) -> usize {
        self.with(|s| s.requests.len())
    }
}

fn secret_file(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, format!("{text}\n")).unwrap();
    path
}

async fn start<S: Service>() -> Fake<S> {
    Fake::start().await
}

fn receiver() -> ReceiverConfig {
    ReceiverConfig { name: "r".into(), ..ReceiverConfig::default() }
}

async fn slack_subject() -> Subject {
    let (dir, fake) = (tempfile::tempdir().unwrap(), start::<Slack>().await);
    let config = slack::Config {
        channel: Some("#training".into()),
        token_file: Some(secret_file(&dir, "token", Slack::TOKEN)),
        api_url: format!("{}/api", fake.url()),
        ..slack::Config::default()
    };
    let notifier = ReceiverConfig { slack: Some(config), ..receiver() }.build().unwrap();
    Subject { notifier, service: Box::new(fake), canaries: vec![Slack::TOKEN.into()], _dir: dir }
}

async fn pagerduty_subject() -> Subject {
    let (dir, fake) = (tempfile::tempdir().unwrap(), start::<PagerDuty>().await);
    let config = pagerduty::Config {
        routing_key_file: Some(secret_file(&dir, "key", PagerDuty::ROUTING_KEY)),
        events_url: fake.url(),
        ..pagerduty::Config::default()
    };
    let notifier = ReceiverConfig { pagerduty: Some(config), ..receiver() }.build().unwrap();
    Subject { notifier, service: Box::new(fake), canaries: vec![PagerDuty::ROUTING_KEY.into()], _dir: dir }
}

async fn webhook_subject() -> Subject {
    let (dir, fake) = (tempfile::tempdir().unwrap(), start::<WebhookSink>().await);
    let url = format!("{}/hooks/canary-in-the-path?key=canary-too", fake.url());
    let config = webhook::Config {
        url_file: Some(secret_file(&dir, "url", &url)),
        secret_file: Some(secret_file(&dir, "secret", WebhookSink::SECRET)),
        ..webhook::Config::default()
    };
    let notifier = ReceiverConfig { webhook: Some(config), ..receiver() }.build().unwrap();
    let canaries = vec![WebhookSink::SECRET.into(), "canary-in-the-path".into(), "canary-too".into()];
    Subject { notifier, service: Box::new(fake), canaries, _dir: dir }
}

async fn incoming_subject() -> Subject {
    let (dir, fake) = (tempfile::tempdir().unwrap(), start::<Slack>().await);
    let url = secret_file(&dir, "url", &format!("{}{}", fake.url(), Slack::WEBHOOK));
    let config = slack::Config { webhook_url_file: Some(url), ..slack::Config::default() };
    let notifier = ReceiverConfig { slack: Some(config), ..receiver() }.build().unwrap();
    let canaries = vec!["stepwatchfakewebhook".into(), "B0FAKE".into()];
    Subject { notifier, service: Box::new(Incoming(fake)), canaries, _dir: dir }
}

async fn alertmanager_subject() -> Subject {
    let (dir, fake) = (tempfile::tempdir().unwrap(), start::<AlertmanagerApi>().await);
    let config = alertmanager::Config {
        urls: vec![fake.url()],
        bearer_token_file: Some(secret_file(&dir, "token", AlertmanagerApi::TOKEN)),
        ..alertmanager::Config::default()
    };
    let notifier = ReceiverConfig { alertmanager: Some(config), ..receiver() }.build().unwrap();
    Subject { notifier, service: Box::new(fake), canaries: vec![AlertmanagerApi::TOKEN.into()], _dir: dir }
}

async fn email_subject() -> Subject {
    let (dir, relay) = (tempfile::tempdir().unwrap(), FakeSmtp::start().await);
    let config = email::Config {
        to: vec!["oncall@example.com".into()],
        from: "stepwatch@example.com".into(),
        smarthost: relay.addr().to_string(),
        tls: email::TlsMode::None,
        username: Some(FakeSmtp::USER.into()),
        password_file: Some(secret_file(&dir, "password", FakeSmtp::PASSWORD)),
        ..email::Config::default()
    };
    let notifier = ReceiverConfig { email: Some(config), ..receiver() }.build().unwrap();
    Subject { notifier, service: Box::new(relay), canaries: vec![FakeSmtp::PASSWORD.into()], _dir: dir }
}

async fn subjects() -> [Subject; 6] {
    [
        slack_subject().await,
        incoming_subject().await,
        pagerduty_subject().await,
        webhook_subject().await,
        alertmanager_subject().await,
        email_subject().await,
    ]
}

impl Subject {
    async fn send(&self, attempt: Attempt<'_>) -> Result<super::Receipt, Failure> {
        tokio::time::timeout(DEADLINE, self.notifier.send(attempt)).await.expect("a notifier has a limit")
    }

    async fn fail(&self, fault: Fault) -> Failure {
        self.service.fault(fault.clone());
        let n = page("r", 1, Action::Trigger);
        let failure = self.send(Attempt::first(&n)).await.expect_err(&format!("{fault:?}"));
        for canary in &self.canaries {
            assert!(!failure.error.contains(canary), "{}: {}", self.notifier.kind(), failure.error);
        }
        assert!(!failure.error.is_empty());
        failure
    }
}

#[tokio::test]
async fn every_refusal_means_the_same_everywhere() {
    for subject in subjects().await {
        let kind = subject.notifier.kind();
        for (status, class, ambiguous) in subject.service.refusals() {
            let failure = subject.fail(Fault::Status(status)).await;
            assert_eq!(
                (failure.class, failure.ambiguous),
                (class, ambiguous),
                "{kind} {status}: {failure:?}"
            );
            assert!(failure.error.contains(&status.to_string()), "{kind}: {}", failure.error);
        }
        assert_eq!(subject.service.arrived(), Vec::<String>::new(), "{kind}");
    }
}

#[tokio::test]
async fn a_rate_limit_says_for_how_long() {
    for subject in subjects().await.into_iter().filter(|s| s.service.asks_for_pauses()) {
        let failure = subject.fail(Fault::TooMany(Duration::from_secs(7))).await;
        let expected = FailureClass::RateLimited { retry_after: Some(Duration::from_secs(7)) };
        assert_eq!((failure.class, failure.ambiguous), (expected, false), "{}", subject.notifier.kind());
    }
}

#[tokio::test]
async fn a_broken_connection_may_have_delivered() {
    for subject in subjects().await {
        let kind = subject.notifier.kind();
        let failure = subject.fail(Fault::Reset).await;
        assert_eq!((failure.class, failure.ambiguous), (FailureClass::Transient, true), "{kind}");
        assert_eq!(subject.service.arrived().len(), 0);
    }
}

#[tokio::test]
async fn what_may_have_arrived_arrives_once() {
    for (i, subject) in subjects().await.into_iter().enumerate() {
        for fault in subject.service.taken() {
            // A new service, without messages of earlier tests.
            let subject = subjects().await.into_iter().nth(i).unwrap();
            let failure = subject.fail(fault.clone()).await;
            assert!(failure.ambiguous);
            assert_eq!(subject.service.arrived().len(), 1, "{fault:?} was taken");
            let n = page("r", 1, Action::Trigger);
            subject.send(Attempt { ambiguous: true, ..Attempt::first(&n) }).await.unwrap();
            // Without recognition, a page is sent twice rather than not at all, and an update is
            // not repeated.
            let copies = if subject.service.recognises() { 1 } else { 2 };
            let kind = subject.notifier.kind();
            assert_eq!(subject.service.arrived(), vec![n.idem_key.clone(); copies], "{kind} {fault:?}");
            let n = page("r", 1, Action::Update);
            if !subject.service.recognises() {
                subject.send(Attempt { ambiguous: true, ..Attempt::first(&n) }).await.unwrap();
                assert_eq!(subject.service.arrived().len(), copies, "{kind}");
            }
        }
    }
}

#[tokio::test]
async fn nobody_listens() {
    for subject in subjects().await {
        let Subject { notifier, service, canaries, _dir } = subject;
        let words = service.unreachable();
        drop(service);
        let n = page("r", 1, Action::Trigger);
        let deadline = tokio::time::Instant::now() + DEADLINE;
        // The fake closes its socket with a delay.
        let failure = loop {
            let result = tokio::time::timeout_at(deadline, notifier.send(Attempt::first(&n))).await.unwrap();
            match result {
                Err(failure) if !failure.ambiguous => break failure,
                _ => tokio::task::yield_now().await,
            }
        };
        assert_eq!(failure.class, FailureClass::Transient, "{failure:?}");
        assert!(failure.error.contains(words), "{}", failure.error);
        assert!(canaries.iter().all(|c| !failure.error.contains(c)), "{}", failure.error);
    }
}

#[tokio::test]
async fn a_dropped_attempt_lets_go_of_its_connection() {
    for subject in subjects().await {
        subject.service.fault(Fault::Hang);
        let n = page("r", 1, Action::Trigger);
        let waited =
            tokio::time::timeout(Duration::from_millis(200), subject.notifier.send(Attempt::first(&n)));
        assert!(waited.await.is_err(), "{} gave up early", subject.notifier.kind());
        // The next message does not wait for it.
        subject.send(Attempt::first(&n)).await.unwrap();
        assert_eq!(subject.service.requests(), 2);
    }
}

#[tokio::test]
async fn hostile_text_is_taken_and_shown_harmless() {
    for subject in subjects().await {
        let n = hostile(page("r", 1, Action::Trigger));
        subject.send(Attempt::first(&n)).await.unwrap();
        assert_eq!(subject.service.arrived().len(), 1, "{}", subject.notifier.kind());
    }
}

#[tokio::test]
async fn secrets_do_not_print() {
    for subject in subjects().await {
        let debug = format!("{:?}", subject.notifier);
        for canary in &subject.canaries {
            assert!(!debug.contains(canary), "{debug}");
        }
    }
}

#[tokio::test]
async fn the_life_of_an_incident_in_order() {
    for subject in subjects().await {
        let mut memory = None;
        let words = [Action::Trigger, Action::Update, Action::Ack, Action::Resolve];
        for (seq, action) in (1..).zip(words) {
            let n = page("r", seq, action);
            let receipt =
                subject.send(Attempt { memory: memory.as_deref(), ..Attempt::first(&n) }).await.unwrap();
            memory = receipt.memory.or(memory);
        }
        assert!(!subject.service.arrived().is_empty());
    }
}

#[test]
fn a_receiver_is_of_one_kind() {
    let error = |yaml: &str| {
        let config: Result<ReceiverConfig, _> = stepwatch_kit::config::parse("test.yml", yaml);
        config
            .map_err(|err| err.to_string())
            .and_then(|c| c.build().map(drop).map_err(|m| m.to_string()))
            .unwrap_err()
    };
    let none = error("name: x\n");
    assert!(
        none.contains("exactly one of: slack, pagerduty, email, webhook, alertmanager, stdout"),
        "{none}"
    );
    let two = error("name: x\nstdout: {}\nwebhook: {url: \"http://localhost/\"}\n");
    assert!(two.contains("has 2 kinds"), "{two}");
    let typo = error("name: x\nslack: {chanel: \"#a\"}\n");
    assert!(typo.contains("chanel") && typo.contains("channel"), "{typo}");
    let secret = error("name: x\npagerduty: {}\n");
    assert!(secret.contains("routing_key_file"), "{secret}");
}

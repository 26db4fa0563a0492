//! A real process is killed with SIGKILL at every commit point, with real HTTP to fakes of Slack,
//! PagerDuty and a webhook receiver: after a restart, a person has got each message exactly once.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use stepwatch_fakes::{Fake, FakePagerDuty, FakeSlack, FakeWebhook, PagerDuty, Slack, WebhookSink};
use tokio::process::Command;

use super::*;
use crate::notify::{ReceiverConfig, pagerduty, slack, webhook};

const CHILD: &str = "STEPWATCH_TEST_OUTBOX_CHILD";
const ID: &str = "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C";
const POINTS: [&str; 5] = [
    "store.before_commit",
    "store.after_commit",
    "outbox.before_send",
    "outbox.after_send",
    "outbox.after_mark",
];
const PATIENCE: Duration = Duration::from_mins(1);

struct Fakes {
    slack: FakeSlack,
    pagerduty: FakePagerDuty,
    webhook: FakeWebhook,
}

fn config(name: &str) -> ReceiverConfig {
    ReceiverConfig { name: name.into(), ..ReceiverConfig::default() }
}

fn receivers(dir: &Path) -> Receivers {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    let file = |name: &str| Some(dir.join(name));
    let chat = slack::Config {
        channel: Some("#training".into()),
        token_file: file("token"),
        api_url: format!("{}/api", read("slack")),
        ..slack::Config::default()
    };
    let pager = pagerduty::Config {
        routing_key_file: file("key"),
        events_url: read("pagerduty"),
        ..pagerduty::Config::default()
    };
    let hook = webhook::Config {
        url: Some(read("webhook")),
        secret_file: file("secret"),
        ..webhook::Config::default()
    };
    let all = [
        ReceiverConfig { slack: Some(chat), ..config("chat") },
        ReceiverConfig { pagerduty: Some(pager), ..config("pager") },
        ReceiverConfig { webhook: Some(hook), ..config("hook") },
    ];
    all.iter().map(|c| (c.name.clone(), c.build().unwrap())).collect()
}

impl Fakes {
    async fn start(dir: &Path) -> Self {
        let fakes =
            Self { slack: Fake::start().await, pagerduty: Fake::start().await, webhook: Fake::start().await };
        for (name, text) in [
            ("slack", fakes.slack.url()),
            ("pagerduty", fakes.pagerduty.url()),
            ("webhook", fakes.webhook.url()),
            ("token", Slack::TOKEN.to_owned()),
            ("key", PagerDuty::ROUTING_KEY.to_owned()),
            ("secret", WebhookSink::SECRET.to_owned()),
        ] {
            std::fs::write(dir.join(name), text).unwrap();
        }
        fakes
    }

    fn each_exactly_once(&self, context: &str) {
        self.slack.with(|s| {
            assert_eq!(s.top().count(), 1, "{context}: messages in the channel");
            let ts = s.top().next().unwrap().ts.clone();
            assert_eq!(s.replies(&ts).count(), 1, "{context}: lines in the thread");
        });
        self.pagerduty.with(|s| {
            assert_eq!(s.pages.len(), 1, "{context}: somebody was woken");
            assert_eq!(s.alerts.len(), 1, "{context}");
            assert!(s.open(ID).is_none(), "{context}: the alert is closed");
        });
        self.webhook.with(|s| {
            let keys: Vec<&str> = s.deliveries.iter().map(|d| d.key.as_str()).collect();
            assert_eq!(keys, [format!("{ID}/hook/1"), format!("{ID}/hook/2")], "{context}");
            assert_eq!(s.refused, Vec::<String>::new());
        });
    }
}

/// The child process; it does nothing unless the test below starts it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(deliver_everything(Path::new(&dir)));
}

async fn deliver_everything(dir: &Path) {
    let store = reopen(&dir.join("alerter.db")).await;
    let (sender, mut feedback) = mpsc::channel(16);
    let (_trigger, shutdown) = Shutdown::manual();
    let _handle = Outbox::start(store.clone(), receivers(dir), sender, shutdown);
    // As in the engine, what was committed is not decided again.
    for (seq, action, state) in [(1, Action::Trigger, State::Open), (2, Action::Resolve, State::Resolved)] {
        let known = store.deliveries(ID).await.unwrap();
        if !known.iter().any(|d| d.seq == seq) {
            let words = ["chat", "hook", "pager"].map(|receiver| {
                let mut n = page(receiver, seq, action);
                n.message.status = if seq == 1 { Status::Firing } else { Status::Resolved };
                Effect::Notify(Box::new(n))
            });
            let record = Effect::Incident(Box::new(incident(ID, state)));
            let effects = [record].into_iter().chain(words).collect();
            let at = Ts(jiff::Timestamp::now().as_millisecond());
            store.commit(&Commit { effects, at, ..Commit::default() }).await.unwrap();
        }
        let delivered = async || {
            let all = store.deliveries(ID).await.unwrap();
            all.iter().filter(|d| d.seq == seq).all(|d| d.state == DeliveryState::Delivered)
        };
        while !delivered().await {
            let feedback = feedback.recv().await.unwrap();
            let reported = vec![feedback.idem_key];
            store.commit(&Commit { reported, ..Commit::default() }).await.unwrap();
        }
    }
}

async fn run_child(dir: &Path, crash_point: Option<&str>) -> std::process::ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "outbox::tests::kill::child", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, dir).kill_on_drop(true).stdout(std::process::Stdio::null());
    if let Some(point) = crash_point {
        command.env("STEPWATCH_CRASH_POINT", point);
    }
    tokio::time::timeout(PATIENCE, command.status()).await.expect("the child ends in time").unwrap()
}

#[tokio::test]
async fn killed_anywhere_each_message_arrives_once() {
    for point in POINTS {
        for nth in 1..=4 {
            let dir = tempfile::tempdir().unwrap();
            let fakes = Fakes::start(dir.path()).await;
            let point = format!("{point}:{nth}");
            let status = run_child(dir.path(), Some(&point)).await;
            assert!(status.signal() == Some(9) || nth > 2 && status.success(), "{point}: {status}");
            let status = run_child(dir.path(), None).await;
            assert!(status.success(), "{point}: {status}");
            fakes.each_exactly_once(&point);
        }
    }
}

//! A real process is killed with SIGKILL between any two steps of a due report, with real HTTP to
//! fakes of Slack and a webhook receiver: each gets the report once.

use std::os::unix::process::ExitStatusExt as _;

use tokio::process::Command;
use tokio::sync::mpsc;

use super::*;
use crate::notify::{ReceiverConfig, slack, webhook};
use crate::outbox::{Outbox, Receivers};
use crate::store::Commit;

const CHILD: &str = "STEPWATCH_TEST_REPORTER_CHILD";
const POINTS: [&str; 5] = [
    "store.before_commit",
    "store.after_commit",
    "outbox.before_send",
    "outbox.after_send",
    "outbox.after_mark",
];
const PATIENCE: Duration = Duration::from_mins(1);

fn receivers(dir: &Path) -> Receivers {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    let file = |name: &str| Some(dir.join(name));
    let chat = slack::Config {
        channel: Some("#training".into()),
        token_file: file("token"),
        api_url: format!("{}/api", read("slack")),
        ..slack::Config::default()
    };
    let hook = webhook::Config {
        url: Some(read("webhook")),
        secret_file: file("secret"),
        ..webhook::Config::default()
    };
    let all = [
        ReceiverConfig { name: "chat".into(), slack: Some(chat), ..ReceiverConfig::default() },
        ReceiverConfig { name: "hook".into(), webhook: Some(hook), ..ReceiverConfig::default() },
    ];
    all.iter().map(|c| (c.name.clone(), c.build().unwrap())).collect()
}

/// The child process; it does nothing unless the test below starts it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(report(Path::new(&dir)));
}

async fn report(dir: &Path) {
    let r = reporter(&dir.join("alerter.db")).await;
    let (sender, mut feedback) = mpsc::channel(16);
    let (_trigger, shutdown) = Shutdown::manual();
    let _outbox = Outbox::start(r.store.clone(), receivers(dir), sender, shutdown);
    let daily = Schedule {
        every: Every::Day,
        at: TimeOfDay::parse(&std::fs::read_to_string(dir.join("at")).unwrap()).unwrap(),
        time_zone: stepwatch_respond::oncall::Zone::default(),
        notify: vec!["chat".into(), "hook".into()],
        ..schedule(None)
    };
    let id = id(&daily, &daily.latest(wall()).unwrap());
    r.send_due(&plan(vec![daily]), wall()).await.unwrap();
    let delivered = async || {
        let all = r.store.deliveries(&id).await.unwrap();
        all.len() == 2 && all.iter().all(|d| d.state == DeliveryState::Delivered)
    };
    while !delivered().await {
        let reported = vec![feedback.recv().await.unwrap().idem_key];
        r.store.commit(&Commit { reported, ..Commit::default() }).await.unwrap();
    }
}

async fn run_child(dir: &Path, crash_point: Option<&str>) -> std::process::ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "reporter::tests::kill::child", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, dir).kill_on_drop(true).stdout(std::process::Stdio::null());
    if let Some(point) = crash_point {
        command.env("STEPWATCH_CRASH_POINT", point);
    }
    tokio::time::timeout(PATIENCE, command.status()).await.expect("the child ends in time").unwrap()
}

#[tokio::test]
async fn killed_anywhere_a_report_arrives_once() {
    for point in POINTS {
        for nth in 1..=2 {
            let dir = tempfile::tempdir().unwrap();
            let (chat, hook): (FakeSlack, _) = (Fake::start().await, FakeWebhook::start().await);
            for (name, text) in [
                ("slack", chat.url()),
                ("webhook", hook.url()),
                ("token", Slack::TOKEN.to_owned()),
                ("secret", WebhookSink::SECRET.to_owned()),
                ("at", far_time_of_day()),
            ] {
                std::fs::write(dir.path().join(name), text).unwrap();
            }
            away_for_days(&dir.path().join("alerter.db"), "weekly").await;
            let point = format!("{point}:{nth}");
            let status = run_child(dir.path(), Some(&point)).await;
            assert!(status.signal() == Some(9) || nth > 1 && status.success(), "{point}: {status}");
            let status = run_child(dir.path(), None).await;
            assert!(status.success(), "{point}: {status}");
            assert_eq!(chat.with(|s| s.posts.len()), 1, "{point}: messages in the channel");
            hook.with(|s| {
                assert_eq!(s.deliveries.len(), 1, "{point}: {:?}", s.deliveries);
                assert_eq!(s.refused, Vec::<String>::new());
            });
        }
    }
}

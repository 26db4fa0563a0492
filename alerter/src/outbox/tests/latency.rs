//! Measures the time from the commit to the request at the receiver in real time, with a disk and a
//! socket.

use stepwatch_fakes::{Fake, FakeWebhook, WebhookSink};

use super::*;
use crate::notify::{ReceiverConfig, webhook};

const ROUNDS: u32 = 50;

/// Ten times the value on a busy laptop, and far below any polling interval.
const MEDIAN_MAX: Duration = Duration::from_millis(100);

#[tokio::test]
async fn from_commit_to_request() {
    let (fake, dir): (FakeWebhook, _) = (Fake::start().await, tempfile::tempdir().unwrap());
    let secret = dir.path().join("secret");
    std::fs::write(&secret, WebhookSink::SECRET).unwrap();
    let config =
        webhook::Config { url: Some(fake.url()), secret_file: Some(secret), ..webhook::Config::default() };
    let name = "hook".to_owned();
    let hook = ReceiverConfig { name: name.clone(), webhook: Some(config), ..ReceiverConfig::default() };
    let store = Store::open(dir.path().join("alerter.db")).await.unwrap();
    let (sender, mut feedback) = mpsc::channel(16);
    let (_trigger, shutdown) = Shutdown::manual();
    let receivers = Receivers::from([(name, hook.build().unwrap())]);
    let _handle = Outbox::start(store.clone(), receivers, sender, shutdown);

    let mut waits = Vec::new();
    for seq in 1..=ROUNDS {
        let at = Ts(jiff::Timestamp::now().as_millisecond());
        let effects = vec![Effect::Notify(Box::new(page("hook", seq, Action::Ack)))];
        store.commit(&Commit { effects, at, ..Commit::default() }).await.unwrap();
        let committed = std::time::Instant::now();
        feedback.recv().await.unwrap();
        let arrived = fake.with(|s| s.deliveries.last().map(|d| d.at)).unwrap();
        waits.push(arrived.saturating_duration_since(committed));
    }
    waits.sort();
    let (median, worst) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    println!("commit to request: median {median:?}, worst of {ROUNDS} {worst:?}");
    assert!(median < MEDIAN_MAX, "median {median:?}");
}

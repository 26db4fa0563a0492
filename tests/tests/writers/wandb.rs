//! wandb, offline: the same log that it writes online.

use stepwatch_tests::Exporter;
use stepwatch_wire::Kind;

use crate::seen::Seen;
use crate::writer::{Writer, has, python};

const RUN: &str = "of-the-rule";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_arrives_once_over_a_kill_with_its_alert_and_its_exit_code() {
    if !has(&["wandb"]).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = format!("sources:\n  - tail: {{path: \"{}/wandb/*/*.wandb\"}}\n", dir.path().display());
    let mut exporter = Exporter::start(&dir.path().join("exporter"), &source).await.unwrap();
    let seen = Seen::default();
    seen.follow(&exporter);
    let mut script = python("wandb_writer.py", dir.path());
    script.env("WANDB_MODE", "offline").env("HOME", dir.path());
    // What it calls itself in the tracker is for people.
    script.env("STEPWATCH_RUN", RUN);
    let mut writer = Writer::start(script).unwrap();
    writer.send("steps 1 11").await.unwrap();
    // What is in the last block is still with the client.
    seen.steps(RUN, "loss", 5).await;
    exporter.daemon.kill().await.unwrap();
    writer.send("steps 11 21").await.unwrap();
    writer.send("alert").await.unwrap();
    exporter.restart().await.unwrap();
    seen.follow(&exporter);
    writer.send("steps 21 31").await.unwrap();
    writer.send("exit 3").await.unwrap();
    writer.end().await.unwrap();
    let bye = seen.event(Kind::Bye, RUN, |_| true).await;
    assert_eq!((bye.code, bye.step), (Some(3), Some(300)));
    let loss = |n: i64| match n {
        7 => f64::NAN,
        8 => f64::INFINITY,
        _ => 10.0 / n as f64,
    };
    let want: Vec<_> = (1..31).map(|n| (n * 10, loss(n))).collect();
    assert_eq!(format!("{:?}", seen.column(RUN, "loss")), format!("{want:?}"));
    assert_eq!(seen.column(RUN, "mfu_reported"), (1..31).map(|n| (n * 10, 0.41)).collect::<Vec<_>>());
    let alert = seen.event(Kind::Event, RUN, |e| e.name.as_deref() == Some("wandb_alert")).await;
    assert_eq!((alert.level.as_deref(), alert.step), (Some("warn"), Some(200)));
    assert_eq!(alert.text.as_deref(), Some("Low accuracy: 0.1 is below 0.5"));
    let hello = seen.event(Kind::Hello, RUN, |_| true).await;
    assert_eq!(hello.extra["dtype"].as_str(), Some("bf16"));
    assert!(!hello.to_json().contains("secret"), "{hello:?}");
}

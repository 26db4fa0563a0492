//! tensorboardX: old style, shorter file names, buffered until it is flushed.

use stepwatch_tests::Exporter;

use crate::seen::Seen;
use crate::writer::{Writer, has, python};

const RUN: &str = "tbx";

#[tokio::test(flavor = "multi_thread")]
async fn scalars_arrive_once_over_a_kill() {
    if !has(&["tensorboardX"]).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    std::fs::create_dir(&runs).unwrap();
    let source = format!("sources:\n  - tail: {{path: \"{}/events.*\", run: {RUN}}}\n", runs.display());
    let mut exporter = Exporter::start(&dir.path().join("exporter"), &source).await.unwrap();
    let seen = Seen::default();
    seen.follow(&exporter);
    let mut writer = Writer::start(python("tensorboardx_writer.py", &runs)).unwrap();
    writer.send("steps 1 11").await.unwrap();
    let losses = seen.steps(RUN, "loss", 10).await;
    assert!(losses[6].0 == 7 && losses[6].1.is_nan(), "{losses:?}");
    exporter.daemon.kill().await.unwrap();
    writer.send("steps 11 21").await.unwrap();
    exporter.restart().await.unwrap();
    seen.follow(&exporter);
    writer.send("steps 21 31").await.unwrap();
    assert_eq!(writer.end().await.unwrap(), Some(0));
    let losses = seen.steps(RUN, "loss", 30).await;
    assert_eq!(losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(), (1..31).collect::<Vec<_>>());
    assert_eq!(
        (losses[2].1, losses[29].1),
        (3.3333333, 0.33333334),
        "the shortest decimal of the 32-bit float"
    );
    assert_eq!(seen.column(RUN, "lr").len(), 30);
    // Numbers of other names, and what is no number at all, are not mistaken for training.
    assert_eq!(seen.column(RUN, "weights").len() + seen.column(RUN, "note").len(), 0);
}

//! Lightning's `CSVLogger`, in a real training.

use stepwatch_tests::Exporter;
use stepwatch_wire::Kind;

use crate::seen::Seen;
use crate::writer::{Writer, has_torch, torch_python};

const RUN: &str = "lightning";

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_written_anew_is_published_once() {
    if !has_torch(&["torch", "lightning"]).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source =
        format!("sources:\n  - tail: {{path: \"{}/run/metrics.csv\", run: {RUN}}}\n", dir.path().display());
    let exporter = Exporter::start(&dir.path().join("exporter"), &source).await.unwrap();
    let seen = Seen::default();
    seen.follow(&exporter);
    let mut writer = Writer::start(torch_python("lightning_writer.py", dir.path())).unwrap();
    writer.send("fit").await.unwrap();
    writer.end().await.unwrap();
    // Thirty batches, logged every fifth.
    let losses = seen.steps(RUN, "loss", 6).await;
    assert_eq!(losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [4, 9, 14, 19, 24, 29]);
    assert!(losses[5].1 < losses[0].1 / 10.0, "it learns: {losses:?}");
    seen.event(Kind::Eval, RUN, |e| e.step == Some(29)).await;
    let evals = seen.events(Kind::Eval, RUN);
    assert_eq!(evals.iter().filter_map(|e| e.step).collect::<Vec<_>>(), [9, 19, 29]);
    assert!(evals.iter().all(|e| e.name.as_deref() == Some("val") && e.m.get("loss").is_some()));
    assert!(seen.column(RUN, "lr").iter().all(|(_, lr)| *lr == 0.1), "{:?}", seen.column(RUN, "lr"));
    assert_eq!(seen.column(RUN, "train_loss_epoch").len(), 3);
    assert!(seen.events(Kind::Step, RUN).iter().all(|e| e.attempt == Some(0)), "no step went back");
}

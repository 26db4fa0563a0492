//! The callback by which Transformers 5 reports to Kubeflow, unmodified, with the exporter in
//! Kubeflow's place.

use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, exposition, poll_until};
use stepwatch_wire::Kind;

use crate::seen::Seen;
use crate::writer::{Writer, has, python};

#[tokio::test(flavor = "multi_thread")]
async fn a_training_reports_by_itself() {
    if !has(&["transformers.integrations.integration_utils"]).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let behind = Exporter::start(&dir.path().join("behind"), "").await.unwrap();
    let forward = format!("kubeflow: {{forward: \"{}/v1/kubeflow/passed-{{run}}\"}}", behind.url());
    let exporter = Exporter::start_with(&dir.path().join("exporter"), &forward, "").await.unwrap();
    let (seen, passed) = (Seen::default(), Seen::default());
    seen.follow(&exporter);
    passed.follow(&behind);
    let token = dir.path().join("token");
    std::fs::write(&token, "any").unwrap();
    let mut script = python("kubeflow_writer.py", dir.path());
    script
        .env("KUBEFLOW_TRAINER_SERVER_URL", format!("{}/v1/kubeflow/qwen%20sft", exporter.url()))
        .env("KUBEFLOW_TRAINER_SERVER_TOKEN", &token);
    let mut writer = Writer::start(script).unwrap();
    for line in ["begin 100", "log 10 2.5", "step 15", "log 20 nan", "log 100 1.5", "end"] {
        writer.send(line).await.unwrap();
    }
    assert_eq!(writer.end().await.unwrap(), Some(0));
    let bye = seen.event(Kind::Bye, "qwen sft", |_| true).await;
    assert_eq!(bye.rank, Some(0));
    let losses = seen.column("qwen sft", "loss");
    assert_eq!(losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [10, 20, 100], "{losses:?}");
    assert!(losses[0].1 == 2.5 && losses[1].1.is_nan() && losses[2].1 == 1.5, "{losses:?}");
    let steps: Vec<_> = seen.events(Kind::Step, "qwen sft").iter().filter_map(|e| e.step).collect();
    assert_eq!(steps, [10, 15, 20, 100]);
    // What was passed on is what was sent.
    passed.event(Kind::Bye, "passed-qwen sft", |_| true).await;
    assert_eq!(passed.column("passed-qwen sft", "lr"), seen.column("qwen sft", "lr"));
    poll_until("nothing dropped", PATIENCE, async || {
        let page = exporter.metrics().await.ok()?;
        let up = exposition::value(&page, "train_source_up", &[("kind", "kubeflow")]);
        let dropped = exposition::value(&page, "train_source_dropped_total", &[("kind", "kubeflow")]);
        (up == Some(1.0) && dropped.is_none()).then_some(())
    })
    .await
    .unwrap();
}

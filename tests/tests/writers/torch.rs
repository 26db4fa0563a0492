//! `torch.utils.tensorboard`, with everything that can stand between the scalars.

use stepwatch_tests::Exporter;
use stepwatch_wire::Kind;

use crate::seen::Seen;
use crate::writer::{Writer, has_torch, torch_python};

const RUN: &str = "torch";

#[tokio::test(flavor = "multi_thread")]
async fn both_styles_and_a_purge() {
    if !has_torch(&["torch", "tensorboard", "torch.utils.tensorboard"]).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    std::fs::create_dir(&runs).unwrap();
    let source = format!("sources:\n  - tail: {{path: \"{}/**/events.*\", run: {RUN}}}\n", runs.display());
    let exporter = Exporter::start(&dir.path().join("exporter"), &source).await.unwrap();
    let seen = Seen::default();
    seen.follow(&exporter);
    let mut writer = Writer::start(torch_python("torch_writer.py", &runs)).unwrap();
    writer.send("steps 1 11").await.unwrap();
    let losses = seen.steps(RUN, "loss", 10).await;
    let loss = |n: i64| (n, (10.0f32 / n as f32).to_string().parse::<f64>().unwrap());
    assert_eq!(losses, (1..11).map(loss).collect::<Vec<_>>());
    assert_eq!(seen.column(RUN, "grad_norm")[9], (10, 1.0 / 3.0), "in double precision");
    writer.send("purge 8").await.unwrap();
    writer.send("steps 8 13").await.unwrap();
    let losses = seen.steps(RUN, "loss", 15).await;
    assert_eq!(losses[10..], (8..13).map(loss).collect::<Vec<_>>());
    let attempts: Vec<_> = seen.events(Kind::Step, RUN).iter().map(|e| e.attempt.unwrap()).collect();
    assert_eq!((attempts[9], attempts.last()), (attempts[0], Some(&(attempts[0] + 1))));
    let steps = seen.events(Kind::Step, RUN);
    assert!(steps.iter().all(|e| e.m.len() <= 3 && e.step > Some(0)), "nothing but the scalars of training");
    writer.end().await.unwrap();
}

//! The state that Transformers' `Trainer` writes into every checkpoint.

use stepwatch_tests::Exporter;
use stepwatch_wire::{CkptPhase, Kind};

use crate::seen::Seen;
use crate::writer::{Writer, has_torch, torch_python};

const RUN: &str = "hf";

#[tokio::test(flavor = "multi_thread")]
async fn every_checkpoint_repeats_the_history_and_nothing_is_published_twice() {
    if !has_torch(&["transformers", "transformers.trainer_callback"]).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pattern = dir.path().join("checkpoint-*/trainer_state.json");
    let source = format!("sources:\n  - tail: {{path: \"{}\", run: {RUN}}}\n", pattern.display());
    let exporter = Exporter::start(&dir.path().join("exporter"), &source).await.unwrap();
    let seen = Seen::default();
    seen.follow(&exporter);
    let mut writer = Writer::start(torch_python("transformers_writer.py", dir.path())).unwrap();
    writer.send("steps 10 60").await.unwrap();
    seen.event(Kind::Ckpt, RUN, |e| e.step == Some(50)).await;
    writer.send("steps 60 110").await.unwrap();
    let ckpt = seen.event(Kind::Ckpt, RUN, |e| e.step == Some(100)).await;
    assert_eq!(ckpt.ckpt, Some(CkptPhase::End));
    writer.end().await.unwrap();
    let losses = seen.steps(RUN, "loss", 10).await;
    assert_eq!(
        losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
        (10..110).step_by(10).collect::<Vec<_>>()
    );
    assert!(losses[3].1.is_nan() && losses[2].1 == 0.3333, "{losses:?}");
    let evals: Vec<_> = seen.events(Kind::Eval, RUN).iter().map(|e| (e.step, e.m.get("loss"))).collect();
    assert_eq!(evals, [(Some(50), Some(1.5)), (Some(100), Some(1.5))]);
}

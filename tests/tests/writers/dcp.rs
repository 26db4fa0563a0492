//! A PyTorch trainer that saves while it makes steps, from its first save to the alerter's page of
//! the run.

use serde_json::Value;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Stack, http, poll_until, trainer};

use crate::writer::{Writer, has_torch, script};

/// The checkpoint of a step with its stages, once they are as wanted.
async fn checkpoint(stack: &Stack, step: i64, wanted: impl Fn(&[Value]) -> bool) -> Value {
    poll_until("the stages of a checkpoint", PATIENCE, async || {
        let url = format!("{}/api/v1/runs/dcp/attempts", stack.alerter.url());
        let history = http::get_json(&url).await.ok()?;
        let all = history["stages"].as_array()?;
        let one = all.iter().find(|one| one["step"].as_i64() == Some(step))?;
        wanted(one["stages"].as_array()?).then(|| one.clone())
    })
    .await
    .unwrap()
}

fn names(one: &Value) -> Vec<&str> {
    let stages = one["stages"].as_array().unwrap();
    stages.iter().filter_map(|stage| stage["stage"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_stage_of_an_asynchronous_save_is_shown() {
    if !has_torch(&["torch", "torch.distributed.checkpoint"]).await {
        return;
    }
    let stack = Stack::start().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut python = trainer::python_client_with(&trainer::torch_python(), &stack.ingest());
    python.arg(script("dcp_writer.py")).arg(dir.path());
    let mut writer = Writer::start(python).unwrap();
    for step in [20, 40] {
        writer.send(&format!("save {step}")).await.unwrap();
        let have_ended = |all: &[Value]| all.len() == 4 && all.iter().all(|one| one["ended_at"].is_string());
        let one = checkpoint(&stack, step, have_ended).await;
        assert_eq!(names(&one), ["save", "write", "upload", "durable"]);
        let path = dir.path().join(format!("step-{step}"));
        assert_eq!(one["path"].as_str(), path.to_str());
        let files = std::fs::read_dir(&path).unwrap();
        let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert_eq!(one["bytes"].as_f64(), Some(bytes as f64), "{one}");
        assert_eq!(one["counts"], true, "{one}");
        for stage in one["stages"].as_array().unwrap() {
            assert_eq!(stage["failed"], false, "{one}");
            let is_timed = stage["started_at"].is_string() && stage["seconds"].is_number();
            assert!(is_timed || stage["stage"] == "durable", "{one}");
        }
    }
    writer.send("load 40").await.unwrap();
    writer.send("fail 60").await.unwrap();
    let failed = checkpoint(&stack, 60, |all| all.iter().any(|one| one["failed"] == true)).await;
    assert_eq!((names(&failed), &failed["counts"]), (vec!["save", "write"], &Value::Bool(false)));
    assert_eq!(failed["stages"][1]["failed"], true, "{failed}");
    let history = http::get_json(&format!("{}/api/v1/runs/dcp/attempts", stack.alerter.url())).await.unwrap();
    let load = &history["load"];
    assert_eq!((load["step"].as_i64(), &load["stages"][0]["stage"]), (Some(40), &Value::from("load")));
    let run = http::get_json(&format!("{}/api/v1/runs", stack.alerter.url())).await.unwrap();
    let run = run["runs"].as_array().unwrap().iter().find(|run| run["run"] == "dcp").unwrap().clone();
    assert_eq!(run["last_checkpoint_step"].as_i64(), Some(40), "a save that failed is none: {run}");
    let page = http::get(&format!("{}/runs/dcp", stack.alerter.url())).await.unwrap();
    for part in ["Stages of the last checkpoints", "whole</span>", "after the save", "step-40"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(writer.end().await.unwrap(), Some(0));
}

//! A trainer of a deleted model still computes.

use serde_json::json;
use stepwatch_model::Kind;
use stepwatch_model::time::Span;

use super::{Scene, Step, Story};

/// So many times ten seconds in which the trainer steps and its GPUs compute.
fn trains(scene: &mut Scene, gpus: &[String], tens_of_seconds: usize) {
    for _ in 0..tens_of_seconds {
        scene.steps(2, |_| Step { seconds: 5.0, compute: 4.2 });
        for (index, gpu) in gpus.iter().enumerate() {
            let m = json!({"utilization_ratio": 0.95, "power_watts": 580.0});
            scene.node_says(0, json!({"k": "health", "name": "gpu", "gpu": gpu, "index": index, "m": m}));
        }
    }
}

pub(super) fn tell() -> Story {
    let mut scene = Scene::new("llama-8b", 1, 8);
    let gpus: Vec<String> = (0..8).map(|gpu| format!("GPU-{gpu}")).collect();
    let job = |key: &str, value: serde_json::Value| {
        let mut job = json!({"k": "health", "name": "job", "code": 1, "job": "4712", "user": "ann",
            "scheduler": "slurm", "gpus": gpus, "runs": ["llama-8b"]});
        job[key] = value;
        job
    };
    scene.node_says(0, job("attested", true.into()));
    scene.begins(&json!({}));
    trains(&mut scene, &gpus, 60);
    // The model is deleted, and with it its job; the workers that left its process group live on,
    // and report.
    let onset = scene.now;
    let pids: Vec<u32> = (41_210..41_218).collect();
    for minutes in 0.. {
        if scene.has_told(Kind::GpuWaste) {
            break;
        }
        assert!(minutes < 120, "nobody was told");
        let mut over = job("over", true.into());
        over["pids"] = json!(pids);
        scene.node_says(0, over);
        trains(&mut scene, &gpus, 6);
    }
    scene.ends(Kind::GpuWaste, |told| Story {
        title: "A trainer of a deleted model that still computes",
        what: "A model is deleted and its job ends, but its workers left the process group of the job: they train on \
               and report their steps, on eight GPUs that the scheduler believes to be free.",
        onset,
        message: told.message,
        told: told.told,
        names: &["no job holds them", "41210", "of ann", "job 4712 is over", "gpu-001", "GPU hours, $10."],
        within: Span::secs(2400),
    })
}

//! A trainer of a deleted model still computes.

use serde_json::json;
use stepwatch_model::Kind;
use stepwatch_model::time::Span;

use super::{Scene, Story};

pub(super) fn tell() -> Story {
    let mut scene = Scene::new("", 2, 8);
    let job = |nth: usize, holds: u8, gpus: &[String]| {
        json!({"k": "health", "name": "job", "code": holds, "job": if nth == 0 { "4711" } else { "4712" },
            "user": "ann", "scheduler": "slurm", "gpus": gpus, "runs": []})
    };
    let gpus = |nth: usize| (0..8).map(|gpu| format!("GPU-{nth}-{gpu}")).collect::<Vec<_>>();
    for nth in scene.nodes() {
        scene.node_says(nth, job(nth, 1, &gpus(nth)));
    }
    let readings = |scene: &mut Scene, busy: f64| {
        for nth in scene.nodes() {
            for (index, gpu) in gpus(nth).iter().enumerate() {
                scene.node_says(
                    nth,
                    json!({"k": "health", "name": "gpu", "gpu": gpu, "index": index,
                        "m": {"utilization_ratio": busy, "power_watts": 200.0 + 400.0 * busy}}),
                );
            }
        }
        scene.wait(10.0);
    };
    for _ in 0..60 {
        readings(&mut scene, 0.95);
    }
    // The model is deleted, and with it its job; a worker that left its process group lives on.
    let onset = scene.now;
    scene.node_says(1, job(1, 0, &gpus(1)));
    for minute in 0.. {
        if scene.has_told(Kind::GpuWaste) {
            break;
        }
        assert!(minute < 120, "nobody was told");
        scene.node_says(0, job(0, 1, &gpus(0)));
        (0..6).for_each(|_| readings(&mut scene, 0.95));
    }
    scene.ends(Kind::GpuWaste, |told| Story {
        title: "A trainer of a deleted model that still computes",
        what: "A model is deleted and its job ends, but its workers left the process group of the job: they train on, \
               on eight GPUs that the scheduler believes to be free.",
        onset,
        message: told.message,
        told: told.told,
        names: &["no job holds them", "gpu-002", "GPU hours"],
        within: Span::secs(2400),
    })
}

//! Half of the nodes have another driver.

use serde_json::json;
use stepwatch_model::Kind;
use stepwatch_model::time::Span;

use super::{Scene, Step, Story};

pub(super) fn tell() -> Story {
    let mut scene = Scene::new("llama-70b", 8, 8);
    for nth in scene.nodes() {
        let driver = if nth < 4 { "570.124.06" } else { "550.54.15" };
        let setup = json!({"k": "health", "name": "config", "fingerprint": driver, "part": 1, "parts": 1,
            "driver": driver, "nccl": "2.27.3", "kernel": "6.8.0-60"});
        scene.node_says(nth, setup);
    }
    scene.begins(&json!({}));
    let onset = scene.now;
    while !scene.has_told(Kind::ConfigDrift) {
        assert!(scene.step < 1000, "nobody was told");
        // The step waits for the slow half.
        scene.steps(1, |rank| Step { seconds: 4.0, compute: if rank < 32 { 2.8 } else { 3.3 } });
    }
    scene.steps(60, |rank| Step { seconds: 4.0, compute: if rank < 32 { 2.8 } else { 3.3 } });
    scene.ends(Kind::ConfigDrift, |told| Story {
        title: "Half a cluster with another driver",
        what: "Four of the eight nodes of a run were installed anew, with an older driver. Their GPUs compute 18 % \
               longer, and every step waits for them. No node is an odd one out, and the run was never faster.",
        onset,
        message: told.message,
        told: told.told,
        names: &["570.124.06", "550.54.15", "3.30 s", "2.80 s"],
        within: Span::secs(600),
    })
}

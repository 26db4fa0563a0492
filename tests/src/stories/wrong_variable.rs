//! One wrong variable for a week.

use serde_json::{Value, json};
use stepwatch_model::Kind;
use stepwatch_model::time::Span;

use super::{Scene, Step, Story};

/// The set-up of the processes of a node, as its exporter reports it.
fn setup(scene: &mut Scene, p2p_disable: Option<&str>) {
    for nth in scene.nodes() {
        let mut setup = json!({"k": "health", "name": "config", "run": scene.run, "fingerprint": p2p_disable.unwrap_or("0"),
            "part": 1, "parts": 1, "driver": "570.124.06", "nccl": "2.27.3", "arg.seq_length": "8192",
            "arg.hidden_size": "4096", "arg.num_layers": "32", "visible_gpus": "8"});
        if let Some(value) = p2p_disable {
            setup["env.NCCL_P2P_DISABLE"] = Value::from(value);
        }
        scene.node_says(nth, setup);
    }
}

pub(super) fn tell() -> Story {
    let mut scene = Scene::new("llama-8b-seed1", 4, 8);
    for next in ["llama-8b-seed2", "llama-8b-seed3", "llama-8b-seed4"] {
        scene.begins(&json!({}));
        setup(&mut scene, None);
        scene.steps(600, |_| Step { seconds: 4.0, compute: 3.2 });
        scene.next_run(next);
    }
    scene.begins(&json!({}));
    setup(&mut scene, Some("1"));
    let onset = scene.now;
    while !scene.has_told(Kind::SlowStart) {
        assert!(scene.step < 1000, "nobody was told");
        scene.steps(1, |_| Step { seconds: 5.2, compute: 3.2 });
    }
    scene.ends(Kind::SlowStart, |told| Story {
        title: "One wrong variable for a week",
        what: "Somebody set NCCL_P2P_DISABLE=1 to debug a hang, and the line stayed in the script that starts the \
               next runs. Every one of them is 30 % slower from its first step on.",
        onset,
        message: told.message,
        told: told.told,
        names: &["NCCL_P2P_DISABLE", "30.1 % slower"],
        within: Span::secs(1800),
    })
}

//! A hundred hosts that save at once.

use serde_json::json;
use stepwatch_model::Kind;
use stepwatch_model::time::Span;

use super::{Scene, Step, Story};

/// What an interface of each host sends: 50 GB/s at most.
const SPEED: f64 = 50e9;

/// Steps of five seconds at most, and what an interface of each host sends meanwhile.
fn steps(scene: &mut Scene, sent: &mut f64, n: usize, seconds: f64, share: f64) {
    for _ in 0..n / 6 {
        scene.steps(6, |_| Step { seconds, compute: 3.0 });
        *sent += 6.0 * seconds * share * SPEED;
        for nth in scene.nodes() {
            let m = json!({"rate_bytes_per_second": SPEED, "transmit_bytes": *sent});
            scene.node_says(nth, json!({"k": "health", "name": "nic", "device": "eth0", "m": m}));
        }
    }
}

pub(super) fn tell() -> Story {
    let mut scene = Scene::new("llama-70b", 100, 1);
    let mut sent = 0.0;
    scene.begins(&json!({}));
    steps(&mut scene, &mut sent, 402, 4.0, 0.3);
    let onset = scene.now;
    while !scene.has_told(Kind::CkptCost) {
        assert!(scene.step < 9000, "nobody was told");
        steps(&mut scene, &mut sent, 84, 4.0, 0.3);
        let saved = scene.step;
        scene.save(2.0, 20e9);
        for rank in scene.ranks() {
            scene.checkpoint(rank, saved, "write", "start", 20e9);
        }
        steps(&mut scene, &mut sent, 36, 5.0, 0.95);
        for rank in scene.ranks() {
            scene.checkpoint(rank, saved, "write", "end", 20e9);
        }
        scene.checkpoint(0, saved, "durable", "end", 2e12);
    }
    scene.ends(Kind::CkptCost, |told| Story {
        title: "A hundred hosts that save at once",
        what: "A hundred hosts write their checkpoints to the shared file system, all in the same three minutes. Their \
               interfaces are full, and the collectives that share them slow the steps down by a quarter.",
        onset,
        message: told.message,
        told: told.told,
        names: &["longer while it is written", "GPU hours a day", "while 100 nodes save at once", "fewer at once"],
        within: Span::secs(90 * 60),
    })
}

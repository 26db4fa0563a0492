//! A save that was slow from the first day.

use serde_json::json;
use stepwatch_model::Kind;
use stepwatch_model::time::Span;

use super::{Scene, Step, Story};

pub(super) fn tell() -> Story {
    let mut scene = Scene::new("llama-70b", 8, 8);
    scene.begins(&json!({}));
    let onset = scene.now;
    while !scene.has_told(Kind::CkptCost) {
        assert!(scene.step < 3000, "nobody was told");
        scene.steps(100, |_| Step { seconds: 4.0, compute: 3.2 });
        scene.save(75.0, 840e9);
    }
    scene.ends(Kind::CkptCost, |told| Story {
        title: "A save that was slow from the first day",
        what: "A run on 64 GPUs saves every 100 steps of 4 s, and each save stops it for 75 s. No save is slower \
               than those before, so nothing that looks for a change can find it. The run loses a sixth of its time.",
        onset,
        message: told.message,
        told: told.told,
        names: &["15.7 %", "GPU hours", "save"],
        within: Span::secs(3600),
    })
}

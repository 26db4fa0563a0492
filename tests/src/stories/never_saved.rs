//! A run that never saved.

use serde_json::json;
use stepwatch_model::Kind;
use stepwatch_model::time::Span;

use super::{Scene, Step, Story};

pub(super) fn tell() -> Story {
    let mut scene = Scene::new("llama-70b", 64, 8);
    scene.begins(&json!({}));
    let onset = scene.now;
    while !scene.has_told(Kind::CkptStale) {
        assert!(scene.step < 1000, "nobody was told");
        scene.steps(1, |_| Step { seconds: 20.0, compute: 17.0 });
        if scene.step == 30 {
            scene.checkpoint(0, scene.step, "save", "start", 0.0);
            scene.checkpoint(0, scene.step, "save", "fail", 0.0);
        }
    }
    scene.ends(Kind::CkptStale, |told| Story {
        title: "A run that never saved",
        what: "The first save of a run on 512 GPUs fails: the path of the new storage is wrong. The trainer logs a \
               warning and goes on. It has not saved often enough to have a rhythm that could be missed.",
        onset,
        message: told.message,
        told: told.told,
        names: &["GPU hours", "checkpoint"],
        within: Span::secs(3600),
    })
}

//! A hundred hosts that save at once.

use serde_json::json;
use stepwatch_model::Kind;
use stepwatch_model::time::Span;

use super::{Scene, Step, Story};

pub(super) fn tell() -> Story {
    let mut scene = Scene::new("llama-70b", 100, 1);
    scene.begins(&json!({}));
    scene.steps(400, |_| Step { seconds: 4.0, compute: 3.0 });
    let onset = scene.now;
    while !scene.has_told(Kind::CkptCost) {
        assert!(scene.step < 9000, "nobody was told");
        scene.steps(80, |_| Step { seconds: 4.0, compute: 3.0 });
        let saved = scene.step;
        scene.save(2.0, 20e9);
        for rank in scene.ranks() {
            scene.checkpoint(rank, saved, "write", "start", 20e9);
        }
        scene.steps(30, |_| Step { seconds: 5.0, compute: 3.0 });
        for rank in scene.ranks() {
            scene.checkpoint(rank, saved, "write", "end", 20e9);
        }
        scene.checkpoint(0, saved, "durable", "end", 2e12);
    }
    scene.ends(Kind::CkptCost, |told| Story {
        title: "A hundred hosts that save at once",
        what: "Each of a hundred hosts writes its 20 GB to the shared file system, all in the same two minutes and a \
               half. The file system gives each of them a hundredth of its rate, and the steps slow down meanwhile.",
        onset,
        message: told.message,
        told: told.told,
        names: &["100 nodes", "at once"],
        within: Span::secs(90 * 60),
    })
}

//! A run that never saved.

use serde_json::json;
use stepwatch_model::Kind;
use stepwatch_model::time::Span;

use super::{Scene, Step, Story};

pub(super) fn tell() -> Story {
    let mut scene = Scene::new("llama-70b", 8, 8);
    scene.begins(&json!({"client": "stepwatch-python/0.1.0"}));
    let onset = scene.now;
    while !scene.has_paged(Kind::CkptStale) {
        assert!(scene.step < 1000, "nobody was paged");
        scene.steps(1, |_| Step { seconds: 60.0, compute: 51.0 });
        let has_lost = scene.now - onset >= Span::secs(3 * 3600 + 15 * 60);
        assert!(!has_lost || scene.has_told(Kind::CkptStale), "there was no ticket first");
    }
    let told = scene.now;
    scene.ends(Kind::CkptStale, |all| Story {
        title: "A run that never saved",
        what: "A new script for 64 GPUs has no line that saves. It makes steps and reports no save at all, neither \
               one that ends nor one that fails, so there is no rhythm that could be missed. After three hours, \
               when 200 GPU hours would be lost, there is a ticket, which nobody reads. At 1,000 GPU hours somebody \
               is woken.",
        onset,
        message: all.message,
        told,
        names: &["GPU hours", "checkpoint"],
        within: Span::secs(16 * 3600),
    })
}

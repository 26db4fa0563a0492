//! Uploads that choked NCCL.

use serde_json::json;
use stepwatch_model::Kind;
use stepwatch_model::time::Span;

use super::{Scene, Step, Story};

pub(super) fn tell() -> Story {
    let mut scene = Scene::new("llama-70b", 4, 8);
    scene.begins(&json!({}));
    scene.steps(400, |_| Step { seconds: 4.0, compute: 3.0 });
    let onset = scene.now;
    while !scene.has_told(Kind::CkptCost) {
        assert!(scene.step < 9000, "nobody was told");
        scene.steps(80, |_| Step { seconds: 4.0, compute: 3.0 });
        scene.save(3.0, 840e9);
        let saved = scene.step;
        scene.checkpoint(0, saved, "upload", "start", 840e9);
        // The collectives share the network with the upload.
        scene.steps(40, |_| Step { seconds: 5.2, compute: 3.0 });
        scene.checkpoint(0, saved, "upload", "end", 840e9);
        scene.checkpoint(0, saved, "durable", "end", 840e9);
    }
    scene.ends(Kind::CkptCost, |told| Story {
        title: "Uploads that choked NCCL",
        what: "A save itself stops the run for 3 s only. But its upload to the object store takes the network of the \
               collectives for another three minutes and a half, and the steps take 30 % longer meanwhile. It was so \
               from the first day on, so that the usual step time looks like the speed of this model.",
        onset,
        message: told.message,
        told: told.told,
        names: &["uploaded", "30.0 %", "GPU hours a day"],
        within: Span::secs(90 * 60),
    })
}

//! A load of three terabytes that takes an hour on two hosts.

use serde_json::json;
use stepwatch_model::Kind;
use stepwatch_model::time::Span;

use super::{Scene, Story};

pub(super) fn tell() -> Story {
    let mut scene = Scene::new("llama-405b", 16, 8);
    scene.begins(&json!({}));
    let onset = scene.now;
    let bytes = 3e12 / 16.0;
    for rank in scene.ranks().step_by(8) {
        scene.checkpoint(rank, 12_000, "load", "start", bytes);
    }
    scene.wait(300.0);
    for rank in scene.ranks().step_by(8).take(14) {
        scene.checkpoint(rank, 12_000, "load", "end", bytes);
    }
    for minute in 0.. {
        if scene.has_told(Kind::LoadSlow) {
            break;
        }
        assert!(minute < 60, "nobody was told");
        for rank in scene.ranks() {
            scene.says(rank, json!({"k": "hb"}));
        }
        scene.wait(60.0);
    }
    scene.ends(Kind::LoadSlow, |told| Story {
        title: "A load of three terabytes that takes an hour on two hosts",
        what: "Sixteen hosts load a checkpoint of 3 TB. Fourteen of them have their part after five minutes; two, whose \
               network came up at a tenth of its rate, need an hour, and everybody waits for them without a word.",
        onset,
        message: told.message,
        told: told.told,
        names: &["gpu-015", "gpu-016", "at most 0.3125 GB/s so far"],
        within: Span::secs(20 * 60),
    })
}

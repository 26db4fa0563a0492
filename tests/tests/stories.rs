//! Stories that cost teams days: each is told in time, with its cause and its arithmetic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use serde_json::json;
use stepwatch_model::Kind;
use stepwatch_tests::stories::{self, Scene, Step};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/stories.md");

#[test]
fn each_story_is_told_in_time_with_its_cause_and_its_figures() {
    let stories: Vec<_> = stories::ALL.iter().map(|tell| tell()).collect();
    for story in &stories {
        let text = story.text();
        for name in story.names {
            assert!(text.contains(name), "{}: {name:?} is not in\n{text}", story.title);
        }
        assert!(story.delay() <= story.within, "{}: told after {}", story.title, story.delay());
    }
    let document = stories::document(&stories);
    if std::env::var_os("STEPWATCH_BLESS").is_some() {
        std::fs::write(Path::new(PAGE), &document).unwrap();
    }
    assert_eq!(std::fs::read_to_string(PAGE).unwrap(), document, "STEPWATCH_BLESS=1 writes {PAGE}");
}

#[test]
fn a_first_save_that_fails_is_told_at_once() {
    let mut scene = Scene::new("llama-70b", 8, 8);
    scene.begins(&json!({}));
    scene.steps(30, |_| Step { seconds: 20.0, compute: 17.0 });
    scene.checkpoint(0, scene.step, "save", "start", 0.0);
    assert!(!scene.has_told(Kind::CkptStale));
    scene.checkpoint(0, scene.step, "save", "fail", 0.0);
    scene.steps(1, |_| Step { seconds: 20.0, compute: 17.0 });
    assert!(scene.has_told(Kind::CkptStale) && !scene.has_paged(Kind::CkptStale));
}

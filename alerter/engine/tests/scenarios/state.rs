//! What is stored of an engine, and when.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use stepwatch_wire::Event;

use stepwatch_engine::{Engine, IncidentAction, Input, SourceInput, StatePart};
use stepwatch_model::{Span, Ts};
use stepwatch_respond::config::ResponderConfig;

#[test]
fn a_part_of_another_version_is_named_and_left_out() {
    let (_, id, mut parts) = paged();
    for (_, part) in &mut parts {
        part.iter_mut().for_each(|bytes| bytes[0] -= 1);
    }
    let named: Vec<String> = parts.iter().map(|(name, _)| name.clone()).collect();
    let parts = parts.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
    let (restored, unusable) = Engine::restore(ResponderConfig::default(), parts);
    assert_eq!((restored.open_count(), unusable == named), (0, true), "{id}: {unusable:?}");
}

const NOW: Ts = Ts(1_795_227_416_000);

fn names(parts: &[StatePart], of: &str) -> usize {
    parts.iter().filter(|(name, _)| name.starts_with(of)).count()
}

/// A page of a run, and all of it stored.
fn paged() -> (Engine, String, Vec<StatePart>) {
    let mut engine =
        Engine::new(ResponderConfig { receivers: vec!["chat".into()], ..ResponderConfig::default() });
    step(&mut engine, "r", 1, "2.5");
    step(&mut engine, "r", 2, r#""NaN""#);
    let id = engine.open_incidents().next().unwrap().id.clone();
    let parts = engine.take_dirty();
    (engine, id, parts)
}

fn step(engine: &mut Engine, run: &str, step: i64, loss: &str) {
    let line =
        format!(r#"{{"k":"step","run":"{run}","rank":0,"world":8,"step":{step},"m":{{"loss":{loss}}}}}"#);
    let event = Event::parse(line.as_bytes()).unwrap();
    engine.handle(NOW, SourceInput::Event { source: "n:1", event: &event }, &mut Vec::new());
}

#[test]
fn an_answer_is_stored_without_what_the_streams_said_since() {
    let (mut engine, id, _) = paged();
    step(&mut engine, "other", 1, "2.5");
    engine.handle(
        NOW,
        Input::Act { incident: &id, by: "ann", action: &IncidentAction::Ack },
        &mut Vec::new(),
    );
    let answers = engine.take_dirty_answers();
    assert_eq!(
        (names(&answers, "incident/"), names(&answers, "run/"), names(&answers, "source/")),
        (1, 0, 0)
    );
    let rest = engine.take_dirty();
    assert_eq!((names(&rest, "incident/"), names(&rest, "run/other"), names(&rest, "source/")), (0, 1, 1));
}

#[test]
fn each_memory_is_a_part_of_its_own_and_goes_when_it_is_old() {
    let (mut engine, id, mut stored) = paged();
    engine.handle(
        NOW,
        Input::Act { incident: &id, by: "ann", action: &IncidentAction::Resolve },
        &mut Vec::new(),
    );
    stored.extend(engine.take_dirty());
    let name = "memory/run/numerics/r";
    assert_eq!(names(&stored, name), 1);
    // The later word on a part counts.
    let parts: BTreeMap<String, Option<Vec<u8>>> = stored.into_iter().collect();
    let parts = parts.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
    let (mut restored, unusable) = Engine::restore(ResponderConfig::default(), parts);
    assert_eq!(unusable, [""; 0]);
    step(&mut restored, "r", 3, r#""NaN""#);
    assert_eq!(restored.open_count(), 0, "a person closed it");
    // It clears, an hour goes by, and another incident opens: the first one is forgotten.
    step(&mut restored, "r", 4, "2.5");
    restored.take_dirty();
    let mut out = Vec::new();
    restored.tick(NOW + Span::secs(30 * 86_400), &mut out);
    let later = Event::parse(br#"{"k":"step","run":"new","rank":0,"step":1,"m":{"loss":"NaN"}}"#).unwrap();
    let input = SourceInput::Event { source: "n:1", event: &later };
    restored.handle(NOW + Span::secs(30 * 86_400), input, &mut out);
    let gone = restored.take_dirty().into_iter().find(|(part, _)| part == name);
    assert_eq!(gone, Some((name.to_owned(), None)));
}

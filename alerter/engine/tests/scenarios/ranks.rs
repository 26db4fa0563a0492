//! Ranks and sources that report the same step.

use stepwatch_engine::{Engine, SourceInput};
use stepwatch_model::time::Ts;
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::Effect;
use stepwatch_wire::Event;

/// Feeds `events` one a second and returns the kinds and severities of all incidents.
fn incidents(events: impl IntoIterator<Item = Event>) -> Vec<(Kind, Severity)> {
    let mut engine = Engine::new(ResponderConfig::default());
    let mut out = Vec::new();
    let mut now = Ts(1_795_227_416_000);
    for e in events {
        now = Ts(now.0 + 1);
        engine.handle(now, SourceInput::Event { source: "n:1", event: &e }, &mut out);
    }
    let mut found: Vec<(String, Kind, Severity)> = Vec::new();
    for e in out {
        if let Effect::Incident(r) = e {
            found.retain(|had| had.0 != r.id);
            found.push((r.id.clone(), r.kind, r.severity));
        }
    }
    found.into_iter().map(|(_, kind, severity)| (kind, severity)).collect()
}

fn step(rank: u32, step: i64, metrics: &[(&str, f64)]) -> Event {
    let mut e = Event::step("r", step);
    (e.rank, e.attempt) = (Some(rank), Some(0));
    for (name, v) in metrics {
        e.m.set(name, *v);
    }
    e
}

#[test]
fn a_nan_of_any_rank_counts_and_once() {
    let healthy =
        (1..100).flat_map(|s| (0..4).map(move |r| step(r, s, &[("loss", 2.0), ("step_time", 1.0)])));
    let faulty = (100..103).flat_map(|s| {
        (0..4).map(move |r| step(r, s, &[("loss", if r == 2 { f64::NAN } else { 2.0 }), ("step_time", 1.0)]))
    });
    assert_eq!(incidents(healthy.chain(faulty)), [(Kind::Nonfinite, Severity::Page)]);
}

#[test]
fn a_log_adds_the_loss_that_the_client_does_not_send() {
    let at = |s: i64| if s < 100 { 2.0 } else { f64::NAN };
    let both = (1..105).flat_map(|s| [step(0, s, &[("step_time", 1.0)]), step(0, s, &[("loss", at(s))])]);
    assert_eq!(incidents(both), [(Kind::Nonfinite, Severity::Page)]);
}

#[test]
fn another_rank_leads_when_the_leader_goes_quiet() {
    let loss = |s: i64| if s < 150 { 2.0 } else { f64::NAN };
    let events = (1..160).flat_map(|s| {
        let leader = (s < 100).then(|| step(0, s, &[("loss", loss(s))]));
        leader.into_iter().chain([step(1, s, &[("loss", loss(s))])])
    });
    assert_eq!(incidents(events), [(Kind::Nonfinite, Severity::Page)]);
}

#[test]
fn late_joiners_and_resends_are_not_restarts() {
    let events = (1..200).flat_map(|s| {
        let late = (s > 100).then(|| step(1, s - 50, &[("step_time", 1.0)]));
        [step(0, s, &[("loss", 2.0)]), step(0, s, &[("loss", 2.0)])].into_iter().chain(late)
    });
    let mut engine = Engine::new(ResponderConfig::default());
    let mut out = Vec::new();
    for e in events {
        engine.handle(Ts(1_795_227_416_000), SourceInput::Event { source: "n:1", event: &e }, &mut out);
    }
    let run = engine.runs().next().unwrap();
    assert_eq!((run.state.attempt, run.counters.steps), (0, 199));
    assert_eq!(run.counters.duplicates, 199);
}

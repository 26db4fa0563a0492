//! One fault of a run is one incident, however it shows, however late or often its reports come.

use proptest::prelude::*;
use stepwatch_engine::{Engine, SourceInput};
use stepwatch_model::time::Ts;
use stepwatch_model::{Cause, Severity};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::Effect;
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_wire::Event;

use crate::noise::wobble;

const START: i64 = 1_795_227_416_000;
const STEPS: i64 = 1200;

/// Gradients explode for a while, the loss follows, and a NaN may end it.
#[derive(Debug, Clone, Copy)]
struct Episode {
    from: i64,
    length: i64,
    factor: f64,
    rise: f64,
    nan: bool,
}

fn episode() -> impl Strategy<Value = Episode> {
    (400i64..800, 1i64..60, 5.0f64..1e4, 0.0f64..6.0, any::<bool>())
        .prop_map(|(from, length, factor, rise, nan)| Episode { from, length, factor, rise, nan })
}

fn report(step: i64, rank: u32, e: &Episode) -> Event {
    let faulty = (e.from..e.from + e.length).contains(&step);
    let (grad, rise) = if faulty { (e.factor, e.rise) } else { (1.0, 0.0) };
    let mut event = Event::step("r", step);
    (event.rank, event.world, event.attempt) = (Some(rank), Some(4), Some(0));
    event.ts = Some((START + 2000 * step) as f64 / 1000.0);
    if rank == 0 {
        let nan = e.nan && step == e.from + e.length - 1;
        let loss = 2.2 + 6.0 / (step as f64 + 20.0).sqrt() + 0.03 * wobble(step, 1) + rise;
        event.m.set("loss", if nan { f64::NAN } else { loss });
        event.m.set("grad_norm", 0.25 * (0.1 * wobble(step, 2)).exp() * grad);
    }
    event.m.set("step_time", 2.0 + 0.01 * wobble(step, 3));
    event
}

/// What became of the reports, each at the time it arrives, in units of a step.
fn incidents(reports: impl IntoIterator<Item = (i64, Event)>) -> Vec<IncidentRecord> {
    let mut engine = Engine::new(ResponderConfig::default());
    let (mut out, mut now) = (Vec::new(), Ts(START));
    for (at, event) in reports {
        now = now.max(Ts(START + 2000 * at));
        while engine.next_deadline().is_some_and(|(due, _)| due <= now) {
            engine.tick(now, &mut out);
        }
        engine.handle(now, SourceInput::Event { source: "n:1", event: &event }, &mut out);
    }
    let mut found: Vec<IncidentRecord> = Vec::new();
    for e in out {
        let Effect::Incident(r) = e else { continue };
        match found.iter_mut().find(|had| had.id == r.id) {
            Some(had) => *had = *r,
            None => found.push(*r),
        }
    }
    found
}

fn loud(found: &[IncidentRecord]) -> Vec<(Cause, Severity)> {
    found.iter().filter(|r| r.severity > Severity::Info).map(|r| (r.cause, r.severity)).collect()
}

/// The part of incidents that does not depend on when a report arrived.
fn brief(found: &[IncidentRecord]) -> Vec<(&'static str, Severity, i64, i64)> {
    found.iter().map(|r| (r.kind.as_str(), r.severity, r.start_step, r.detected_step)).collect()
}

fn in_order(e: Episode) -> impl Iterator<Item = (i64, Event)> {
    (1..=STEPS).flat_map(move |s| (0..4).map(move |rank| (s, report(s, rank, &e))))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn an_episode_is_one_incident(e in episode()) {
        let found = loud(&incidents(in_order(e)));
        prop_assert!(found.len() <= 1, "{:?}", found);
        prop_assert!(found.iter().all(|(cause, _)| *cause == Cause::Numerics));
        prop_assert!(e.length > 1 || e.nan || found.iter().all(|(_, s)| *s < Severity::Page) || e.rise > 0.0, "{:?}", found);
    }

    /// Every report comes twice or three times, at once and again a few steps later.
    #[test]
    fn duplicates_change_nothing(e in episode(), again in 1i64..20) {
        let twice = in_order(e).flat_map(|(at, event)| {
            let step = at - again;
            let late = (step >= 1).then(|| (at, report(step, event.rank.unwrap_or(0), &e)));
            [(at, event.clone()), (at, event)].into_iter().chain(late)
        });
        let (once, twice) = (incidents(in_order(e)), incidents(twice));
        prop_assert_eq!(brief(&once), brief(&twice));
    }

    /// Ranks other than the one that reports the loss are late, early or missing for a while.
    #[test]
    fn missing_and_late_ranks_change_nothing(e in episode(), gone in 1u32..4, from in 100i64..900, late in 0i64..12) {
        let ragged = (1..=STEPS).flat_map(|s| (0..4u32).filter_map(move |rank| {
            let step = if rank == gone { s - late } else { s };
            let there = rank != gone || !(from..from + 100).contains(&s);
            (there && step >= 1).then(|| (s, report(step, rank, &e)))
        }));
        prop_assert_eq!(brief(&incidents(in_order(e))), brief(&incidents(ragged)));
    }

    /// A run that is restarted a few steps back is judged as one that never was, once the first
    /// samples are through.
    #[test]
    fn a_rewind_is_no_fault(back in 1i64..200, at in 300i64..900) {
        let calm = Episode { from: 0, length: 0, factor: 1.0, rise: 0.0, nan: false };
        let rewound = (1..=STEPS).flat_map(|i| (0..4).map(move |rank| {
            let (step, attempt) = if i > at { (i - back, 1) } else { (i, 0) };
            let mut event = report(step, rank, &calm);
            event.attempt = Some(attempt);
            event.ts = Some((START + 2000 * i) as f64 / 1000.0);
            (i, event)
        }));
        prop_assert!(loud(&incidents(rewound)).is_empty());
    }
}

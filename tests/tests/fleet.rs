//! A small fleet, an hour or two of it, and what the engine must make of it: who did it, how soon,
//! and who was woken for nothing.
//!
//! The limits are what it reaches today with some room; `BENCHMARKS.md` has the figures of large
//! fleets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use stepwatch_tests::fleet::{self, Kind, Mix, Options};

fn small() -> Options {
    Options { nodes: 64, hours: 2.0, seed: 7, step_seconds: 2.0, ..Options::default() }
}

#[test]
fn who_did_it_is_named_soon_and_nobody_is_woken_for_nothing() {
    let score = fleet::score(&small());
    let mistakes = score.mistakes();
    assert!(score.found.len() >= 15, "{score}");
    assert!(score.noticed() >= 0.9, "{score}\n{mistakes}");
    assert!(score.top(1) >= 0.6 && score.top(3) >= 0.65, "{score}\n{mistakes}");
    assert!(score.delay(0.5).unwrap() <= 10.0, "{score}\n{mistakes}");
    assert!(score.false_pages.is_empty(), "{score}\n{mistakes}");
}

#[test]
fn the_same_seed_is_the_same_fleet_to_the_byte() {
    let options = Options { nodes: 24, hours: 0.75, fault_minutes: 6.0, mix: Mix::Even, ..small() };
    let run = |seed| {
        let score = fleet::score(&Options { seed, ..options.clone() });
        format!("{score}{}{:?}", score.mistakes(), score.found)
    };
    let first = run(3);
    assert_eq!(first, run(3));
    assert_ne!(first, run(4));
}

#[test]
fn a_quiet_fleet_pages_nobody() {
    let options = Options { nodes: 32, hours: 1.0, mix: Mix::Quiet, ..small() };
    let score = fleet::score(&options);
    assert!(score.found.is_empty() && score.false_pages.is_empty(), "{score}\n{}", score.mistakes());
}

/// A fleet that nothing but this befalls, and the share of it whose culprit is named first.
fn named_first(kind: Kind, step_seconds: f64) -> (f64, String) {
    let mix = Mix::Only(kind);
    let score = fleet::score(&Options { nodes: 24, hours: 1.5, mix, step_seconds, ..small() });
    assert!(score.found.len() >= 4 && score.noticed() >= 0.99, "{score}");
    (score.top(1), format!("{score}{}", score.mistakes()))
}

#[test]
fn in_a_standstill_the_gpu_that_did_not_come_to_the_collective_is_named() {
    // A run's first evaluation may take half an hour: one that hangs is ended by NCCL's own timeout
    // before that.
    for (kind, least) in [(Kind::LoaderDeadlock, 0.9), (Kind::EvalDeadlock, 0.5)] {
        let (first, report) = named_first(kind, 2.0);
        assert!(first >= least, "{report}");
    }
}

#[test]
fn links_that_go_down_together_are_the_switch_and_one_alone_is_its_node() {
    let (first, report) = named_first(Kind::Network, 2.0);
    assert!(first >= 0.9, "{report}");
}

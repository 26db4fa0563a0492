//! Findings about ranks whose compute times follow a plan.

use super::*;
use crate::detectors::testing::Noise;
use crate::monitor::Run;
use proptest::prelude::*;
use std::sync::Arc;
use stepwatch_wire::{Event, Value};

/// The stage of a rank in a step, its seconds of computation, and how much of them is garbage
/// collection; `None` if it does not report.
type Plan<'a> = &'a dyn Fn(i64, u32, &mut Noise) -> Option<(u32, f64, f64)>;

fn judge(ranks: u32, steps: i64, name: &dyn Fn(u32) -> u32, plan: Plan<'_>) -> Vec<Finding> {
    let mut run = Run::new("r", Ts(0), &Arc::default());
    let mut noise = Noise::new(7);
    let mut out = Vec::new();
    for step in 1..=steps {
        for rank in 0..ranks {
            let Some((stage, secs, gc)) = plan(step, rank, &mut noise) else { continue };
            let mut e = Event::step("r", step);
            (e.rank, e.attempt, e.ts) = (Some(name(rank)), Some(0), Some(2.0 * step as f64));
            e.extra.insert("stage".into(), Value::Number(stage.into()));
            e.t.set("fwd_bwd", secs);
            e.t.set("gc", gc);
            run.event(Ts(2000 * step), "n:1", &e, &mut out);
        }
    }
    out.retain(|v| v.kind == Kind::Straggler);
    out
}

fn first(findings: &[Finding]) -> (i64, String, String) {
    let v = findings.iter().find(|v| v.change != Change::Clear).unwrap_or_else(|| panic!("nothing was said"));
    (v.step, v.suspects.first().map(Suspect::what).unwrap_or_default(), v.why.to_string())
}

#[expect(clippy::unnecessary_wraps, reason = "it is a plan, of which others leave ranks out")]
fn even(_: i64, _: u32, noise: &mut Noise) -> Option<(u32, f64, f64)> {
    Some((0, 1.0 + 0.01 * noise.normal(), 0.0))
}

#[test]
fn even_ranks_are_silent() {
    assert!(judge(64, 400, &|r| r, &even).is_empty());
}

#[test]
fn one_slow_rank_is_named_in_eight_steps_and_pages_when_it_lasts() {
    let slow = |step, rank, noise: &mut Noise| {
        let (stage, secs, gc) = even(step, rank, noise)?;
        Some((stage, if rank == 3 && step > 100 { 1.2 * secs } else { secs }, gc))
    };
    let found = judge(16, 500, &|r| r, &slow);
    let (step, what, why) = first(&found);
    assert!(step <= 116 && what == "rank 3", "{found:#?}");
    assert!(why.contains("every step waits for it"), "{why}");
    assert!(found[0].start_step.abs_diff(100) <= 2, "{found:#?}");
    let severities: Vec<Severity> = found.iter().map(|v| v.severity).collect();
    assert_eq!(severities, [Severity::Ticket, Severity::Page]);
}

#[test]
fn a_rank_that_becomes_three_per_cent_slower_is_named_and_one_that_always_was_is_not() {
    let slow = |step, rank, noise: &mut Noise| {
        let (_, secs, gc) = even(step, rank, noise)?;
        let own = if rank == 5 { 1.03 } else { 1.0 };
        let fault = if rank == 3 && step > 100 { 1.035 } else { 1.0 };
        Some((rank / 4, own * fault * secs, gc))
    };
    let found = judge(8, 160, &|r| r, &slow);
    let (step, what, why) = first(&found);
    assert!(step <= 150 && what == "rank 3" && why.contains("every step waits for it"), "{found:#?}");
    assert!(found[0].start_step.abs_diff(100) <= 4, "{found:#?}");
    assert_eq!(found.len(), 1, "{found:#?}");
    let always = |step, rank, noise: &mut Noise| {
        let (stage, secs, gc) = even(step, rank, noise)?;
        Some((stage, if rank == 5 { 1.03 * secs } else { secs }, gc))
    };
    assert!(judge(8, 400, &|r| r, &always).is_empty());
}

#[test]
fn a_rise_of_four_per_cent_pages_when_it_lasts_as_a_droop_does() {
    let slow = |step, rank, noise: &mut Noise| {
        let (stage, secs, gc) = even(step, rank, noise)?;
        Some((stage, if rank == 3 && step > 100 { 1.06 * secs } else { secs }, gc))
    };
    let found = judge(16, 500, &|r| r, &slow);
    let severities: Vec<Severity> = found.iter().map(|v| v.severity).collect();
    assert_eq!(severities, [Severity::Ticket, Severity::Page], "{found:#?}");
}

#[test]
fn waits_that_begin_to_rotate_are_reported_from_five_per_cent_on() {
    let round = |step: i64, rank, noise: &mut Noise| {
        let (_, secs, gc) = even(step, rank, noise)?;
        let turn = step > 100 && (step * 5 + step / 7) % 8 == i64::from(rank);
        Some((rank / 4, if turn { 1.05 * secs } else { secs }, gc))
    };
    let found = judge(8, 240, &|r| r, &round);
    let (step, what, why) = first(&found);
    assert!(step <= 150 && what == "no single rank" && !why.contains("of stage"), "{found:#?}");
}

#[test]
fn ranks_that_are_missing_or_report_now_and_then_hide_nobody() {
    let slow = |step: i64, rank, noise: &mut Noise| {
        let reports = rank != 7 && (rank != 5 || step % 4 == 0) && (rank != 6 || step < 50);
        let (stage, secs, gc) = even(step, rank, noise)?;
        reports.then_some((stage, if rank == 3 { 1.3 * secs } else { secs }, gc))
    };
    let found = judge(16, 100, &|r| r, &slow);
    assert!(first(&found).0 <= 12 && first(&found).1 == "rank 3", "{found:#?}");
}

#[test]
fn garbage_collection_and_uneven_work_are_distinguished_and_blame_nobody() {
    let pauses = |step: i64, rank, noise: &mut Noise| {
        let (stage, secs, _) = even(step, rank, noise)?;
        Some(if (step * 5 + i64::from(rank) * 11) % 16 == 0 {
            (stage, secs + 0.3, 0.0)
        } else {
            (stage, secs, 0.0)
        })
    };
    let found = judge(16, 64, &|r| r, &pauses);
    let (_, what, why) = first(&found);
    assert!(what == "no single rank" && why.contains("garbage collection"), "{why}");
    let uneven = |_: i64, _: u32, noise: &mut Noise| Some((0, (0.15 * noise.normal()).exp(), 0.0));
    let found = judge(32, 64, &|r| r, &uneven);
    let (_, what, why) = first(&found);
    assert!(what == "no single rank" && why.contains("sequences of uneven length"), "{why}");
}

#[test]
fn a_stage_that_computes_longer_is_no_rank() {
    let stages = |step, rank: u32, noise: &mut Noise| {
        let (_, secs, gc) = even(step, rank, noise)?;
        let stage = rank / 4;
        Some((stage, if stage == 3 { 1.6 * secs } else { secs }, gc))
    };
    let found = judge(16, 100, &|r| r, &stages);
    assert_eq!((found.len(), first(&found).1.as_str()), (1, "stage 3"), "{found:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn permuting_ranks_changes_nothing_but_names(by in 1u32..8, slow in 0u32..8) {
        let plan = move |step, rank, noise: &mut Noise| {
            let (stage, secs, gc) = even(step, rank, noise)?;
            Some((stage, if rank == slow { 1.4 * secs } else { secs }, gc))
        };
        let name = move |rank: u32| (rank + by) % 8;
        let (straight, turned) = (judge(8, 60, &|r| r, &plan), judge(8, 60, &name, &plan));
        prop_assert_eq!(straight.len(), turned.len());
        for (a, b) in straight.iter().zip(&turned) {
            prop_assert_eq!((a.step, a.severity, a.value, a.start_step), (b.step, b.severity, b.value, b.start_step));
            prop_assert_eq!(a.suspects[0].what(), format!("rank {slow}"));
            prop_assert_eq!(b.suspects[0].what(), format!("rank {}", name(slow)));
        }
    }

    #[test]
    fn the_unit_of_time_says_nothing(scale in 1e-3f64..1e3) {
        let plan = move |step, rank, noise: &mut Noise| {
            let (stage, secs, gc) = even(step, rank, noise)?;
            Some((stage, scale * if rank == 2 { 1.4 * secs } else { secs }, gc))
        };
        let found = judge(8, 30, &|r| r, &plan);
        prop_assert_eq!(first(&found).1, "rank 2");
    }
}

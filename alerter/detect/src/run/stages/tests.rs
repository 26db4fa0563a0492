use super::*;
use CkptPhase::{End, Fail, Start};

fn report(stage: Stage, phase: CkptPhase, step: Option<i64>, rank: u32, at: i64) -> StageReport {
    let at = Ts(1000 * at);
    StageReport { stage, phase, step, rank, now: at, at, secs: None, bytes: None, seen: false }
}

#[test]
fn a_stage_ends_with_the_last_rank_that_began_it() {
    let mut one = Staged::new(100);
    for (phase, rank) in [(Start, 0), (Start, 1), (End, 0)] {
        one.take(&report(Stage::Write, phase, Some(100), rank, 5));
    }
    assert!(!one.is_complete(Stage::Write));
    one.take(&report(Stage::Write, End, Some(100), 1, 9));
    assert!(one.is_complete(Stage::Write) && !one.is_complete(Stage::Durable));
    assert_eq!(one.took(Ts(9000)), Some(4.0));
    one.take(&report(Stage::Upload, Fail, Some(100), 0, 10));
    assert!(one.has_failed() && !one.is_complete(Stage::Write));
}

#[test]
fn a_stage_of_many_ranks_ends_with_the_last_of_them() {
    let mut stages = Stages::default();
    for (phase, ranks) in [(Start, 0..3000), (End, 0..2999)] {
        for rank in ranks {
            stages.take(100, &report(Stage::Write, phase, Some(100), rank, 5));
        }
    }
    let is_complete = |stages: &Stages| stages.find(100).is_some_and(|one| one.is_complete(Stage::Write));
    assert!(!is_complete(&stages));
    stages.take(100, &report(Stage::Write, End, Some(100), 2999, 9));
    assert!(is_complete(&stages));
    for step in 0..100 {
        for rank in 0..500 {
            stages.take(step, &report(Stage::Upload, Start, Some(step), rank, 10));
        }
    }
    assert!(stages.steps.iter().map(Staged::open).sum::<usize>() <= OPEN_KEPT);
}

#[test]
fn ranks_that_are_too_many_to_follow_are_waited_for_too() {
    let many = 2 * RANKS_KEPT as u32;
    let mut stages = Stages::default();
    let mut take = |step, phase, ranks: core::ops::Range<u32>| {
        for rank in ranks {
            stages.take(step, &report(Stage::Write, phase, Some(step), rank, 5));
        }
        stages.find(step).is_some_and(|one| one.is_complete(Stage::Write))
    };
    take(100, Start, 0..many);
    assert!(!take(100, End, 0..many - 1) && take(100, End, many - 1..many));
    // Three in which nobody ends take all the room.
    (1..4).for_each(|step| _ = take(step, Start, 0..RANKS_KEPT as u32));
    take(200, Start, 0..2);
    assert!(!take(200, End, 0..1) && take(200, End, 1..2));
}

#[test]
fn a_load_fails_however_late_the_other_ranks_are_heard() {
    let mut stages = Stages::default();
    let mut load = |phase, rank, at| {
        stages.take_load(&report(Stage::Load, phase, Some(500), rank, at));
        stages.failed_load()
    };
    load(Start, 0, 10);
    assert_eq!(load(Fail, 0, 20), Some(500));
    assert_eq!((load(Start, 1, 10), load(End, 1, 30)), (Some(500), Some(500)), "of another node");
    assert_eq!(load(Start, 1, 90), None, "it is loaded again");
}

#[test]
fn only_so_many_steps_are_kept_and_the_oldest_that_waits_is_one() {
    let mut stages = Stages { reaches: Stage::Durable, ..Stages::default() };
    stages.of_step(0).counted = true;
    for step in 1..100 {
        stages.of_step(step).saved_at = Some(Ts(step));
        assert!(stages.steps.len() <= STEPS_KEPT);
    }
    let waiting: Vec<i64> = stages.waiting().map(|one| one.step).collect();
    assert_eq!((waiting.len(), waiting[0], waiting.last()), (STEPS_KEPT - 1, 1, Some(&99)));
    stages.of_step(50).counted = true;
    assert!(stages.waiting().all(|one| one.step > 50), "a later one counts");
    assert!(Stages { reaches: Stage::Save, ..stages }.waiting().next().is_none());
}

#[test]
fn a_report_without_a_step_is_about_the_oldest_that_waits_for_it() {
    let mut stages = Stages { reaches: Stage::Write, ..Stages::default() };
    for step in [10, 20] {
        stages.of_step(step).saved_at = Some(Ts(step));
    }
    let (start, end) = (report(Stage::Write, Start, None, 0, 1), report(Stage::Write, End, None, 0, 2));
    assert_eq!(stages.meant(&start), Some(10));
    stages.of_step(10).take(&start);
    assert_eq!((stages.meant(&start), stages.meant(&end)), (Some(20), Some(10)));
}

#[test]
fn one_that_two_later_ones_overtook_is_incomplete_unless_many_are() {
    let of = |counted: &[bool]| {
        let mut stages = Stages { reaches: Stage::Durable, ..Stages::default() };
        for (step, counted) in (1..).zip(counted) {
            let one = stages.of_step(step);
            (one.saved_at, one.counted) = (Some(Ts(step)), *counted);
        }
        stages.overtaken().map(|(one, later)| (one.step, later))
    };
    assert_eq!(of(&[true, true, false, true]), None, "the next one may have been faster");
    assert_eq!(of(&[true, true, false, true, true]), Some((3, 2)));
    assert_eq!(of(&[true, false, true, true]), None, "four complete ones are needed");
    assert_eq!(of(&[true, true, false, true, true, true, true, true]), None, "five are complete since");
    let tenth: Vec<bool> = (1..16).map(|step| step % 3 == 0).collect();
    assert_eq!(of(&tenth), None, "only some are to become durable");
}

#[test]
fn each_rank_of_a_load_has_its_own_time() {
    let mut stages = Stages::default();
    let mut load = |phase, rank, at| stages.take_load(&report(Stage::Load, phase, None, rank, at));
    assert_eq!((load(Start, 0, 0), load(Start, 1, 10)), (None, None));
    assert_eq!((load(End, 0, 30), load(End, 1, 90)), (Some(Span::secs(30)), Some(Span::secs(80))));
    assert_eq!(load(End, 1, 900), None, "it did not begin");
    assert_eq!((load(Start, 0, 1000), load(Start, 0, 2000)), (None, None));
    assert_eq!(load(Fail, 0, 2060), Some(Span::secs(60)), "the first was interrupted");
}

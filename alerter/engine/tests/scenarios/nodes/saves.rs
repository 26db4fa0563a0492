//! Work is saved before hardware that fails stops the run, unless what is saved would be of no use.

use stepwatch_model::Severity;
use stepwatch_wire::{CkptPhase, Event, Kind as EventKind, Value};

use super::bench::{Bench, UUID, hw, xid};

const NODES: [&str; 2] = ["n1", "n2"];

/// A checkpoint of this step, whose save took five seconds, ends.
fn saved(b: &mut Bench, step: i64, phase: CkptPhase) {
    let mut e = Event {
        run: Some("llama".into()),
        rank: Some(0),
        node: Some("n1".into()),
        step: Some(step),
        ckpt: Some(phase),
        ..Event::new(EventKind::Ckpt)
    };
    e.extra.insert("seconds".into(), Value::Number(5.0));
    b.feed(e);
}

/// A run that has saved, and worked for 200 s since.
fn with_unsaved_work() -> Bench {
    let mut b = Bench::with_run("llama", &NODES);
    saved(&mut b, 100, CkptPhase::End);
    b.steps("llama", &NODES, 100);
    b
}

fn fails(b: &mut Bench) -> String {
    b.feed(xid("n1", 48, "error", "drain_reset", "Double-bit ECC error"));
    assert_eq!(b.last().severity, Severity::Page);
    let message = &b.notifications.last().unwrap_or_else(|| panic!("nobody was notified")).message;
    message.details.advice.clone().unwrap_or_default()
}

#[test]
fn unsaved_work_is_saved_first() {
    let want = format!(
        "save now: 3m 20s of the run are not saved, and a save costs 5s of the run, then drain n1 at the next checkpoint \
         (the last is 100), then reset {UUID}"
    );
    assert_eq!(fails(&mut with_unsaved_work()), want);
}

#[test]
fn what_has_just_been_saved_is_not_saved_again() {
    let mut b = with_unsaved_work();
    saved(&mut b, 200, CkptPhase::End);
    b.steps("llama", &NODES, 2);
    let want = format!("drain n1 at the next checkpoint (the last is 200), then reset {UUID}");
    assert_eq!(fails(&mut b), want);
}

#[test]
fn a_run_whose_saves_fail_is_not_told_to_save() {
    let mut b = with_unsaved_work();
    saved(&mut b, 200, CkptPhase::Fail);
    b.steps("llama", &NODES, 2);
    let said = fails(&mut b);
    assert!(!said.contains("save now"), "{said}");
}

#[test]
fn a_run_that_stands_is_not_told_to_save() {
    let mut b = with_unsaved_work();
    b.wait(60);
    let said = fails(&mut b);
    assert!(!said.contains("save now"), "{said}");
}

#[test]
fn numbers_that_are_not_finite_are_not_saved() {
    let mut b = with_unsaved_work();
    for step in 201..206 {
        b.wait(2);
        for (rank, node) in NODES.iter().enumerate() {
            let mut e = Event::step("llama", step);
            (e.rank, e.attempt, e.node) = (Some(rank as u32), Some(0), Some((*node).to_owned()));
            e.m.set("loss", f64::NAN);
            b.feed(e);
        }
    }
    let said = fails(&mut b);
    assert!(!said.contains("save now"), "{said}");
}

#[test]
fn a_run_that_has_just_ended_is_told_neither_to_save_nor_to_restart() {
    let mut b = with_unsaved_work();
    for (rank, node) in NODES.iter().enumerate() {
        let mut e = Event { run: Some("llama".into()), code: Some(0), ..Event::new(EventKind::Bye) };
        (e.rank, e.node) = (Some(rank as u32), Some((*node).to_owned()));
        b.feed(e);
    }
    b.feed(xid("n1", 48, "error", "drain_reset", "Double-bit ECC error"));
    let advice: Vec<&str> =
        b.notifications.iter().filter_map(|n| n.message.details.advice.as_deref()).collect();
    assert!(!b.notifications.is_empty());
    assert!(!advice.iter().any(|said| said.contains("save now") || said.contains("restart")), "{advice:?}");
}

#[test]
fn a_run_whose_file_system_hangs_is_not_told_to_save() {
    let mut b = with_unsaved_work();
    b.feed(hw("n2", "mount_stuck", true, "warn", "/data does not answer", &[("mount", "/data")]));
    let said = fails(&mut b);
    assert!(!said.contains("save now"), "{said}");
}

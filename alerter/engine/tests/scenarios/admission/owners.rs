//! Whose a run is, where `hello` is missing, late, or of another user than the steps.

use super::*;

/// While a source has as many runs as it may, `hello` may be refused a moment before another run
/// makes room and a step is not.
#[test]
fn a_run_whose_hello_is_lost_counts_against_its_user() {
    let mut w = World::new();
    for i in 0..120 {
        let run = format!("flood-{i}");
        if i % 2 == 0 {
            w.say(NODE1, &format!(r#""k":"hello","run":"{run}","rank":0,"world":1,"uid":1001"#));
        }
        for (step, loss) in [(1, "2.5"), (2, r#""NaN""#)] {
            let of_rank = format!(r#""k":"step","run":"{run}","rank":0,"uid":1001"#);
            w.say(NODE1, &format!(r#"{of_rank},"step":{step},"m":{{"loss":{loss}}}"#));
        }
    }
    let pages = w.pages();
    assert!(pages.len() <= 11, "{pages:#?}");
    assert!(has(&pages, "PAGE user 1001 of exporter node001:9765: alert storm"), "{pages:#?}");
}

/// A launcher of root opens a run, and the user's steps follow.
#[test]
fn a_run_that_root_opened_pages_for_the_user_who_trains() {
    let mut w = World::new();
    w.say(NODE1, r#""k":"hello","run":"r","rank":0,"world":1,"uid":0"#);
    w.say(NODE1, r#""k":"hello","run":"r","rank":0,"world":1,"uid":1001"#);
    for (step, loss) in [(1, "2.5"), (2, r#""NaN""#)] {
        let of_rank = r#""k":"step","run":"r","rank":0,"uid":1001"#;
        w.say(NODE1, &format!(r#"{of_rank},"step":{step},"m":{{"loss":{loss}}}"#));
    }
    assert!(has(&w.pages(), "r:"));
}

/// Root plans maintenance of a run that is not known yet, on another node than that of its trainer.
#[test]
fn what_is_no_step_gives_a_run_to_nobody() {
    let mut w = World::new();
    w.say(NODE2, r#""k":"event","run":"r","rank":1,"name":"maintenance","seconds":60,"uid":0"#);
    w.say(NODE1, r#""k":"hello","run":"r","rank":0,"world":2,"uid":1001"#);
    w.step(NODE1, "r", 0, 1, "2.5");
    w.nan(NODE1, "r", 0, 2);
    assert_eq!(w.refused(NODE1, Refusal::OtherUser), 0);
    assert!(has(&w.pages(), "r:"));
}

/// A flood that begins each run with a heartbeat is one user's all the same.
#[test]
fn a_run_that_begins_with_a_heartbeat_counts_against_its_user() {
    let mut w = World::new();
    for i in 0..120 {
        w.say(NODE1, &format!(r#""k":"hb","run":"flood-{i}","rank":0,"uid":1001"#));
        if i % 2 == 0 {
            w.say(NODE1, &format!(r#""k":"hello","run":"flood-{i}","rank":0,"uid":1001"#));
        }
        let of_rank = format!(r#""k":"step","run":"flood-{i}","rank":0,"uid":1001"#);
        w.say(NODE1, &format!(r#"{of_rank},"step":1,"m":{{"loss":"NaN"}}"#));
    }
    let pages = w.pages();
    assert!(pages.len() <= 11 && has(&pages, "user 1001"), "{pages:#?}");
}

/// Somebody else goes on with the name of a run that is over, without a `hello`.
#[test]
fn steps_of_another_user_after_the_end_are_of_a_new_run() {
    let mut w = World::new();
    w.say(NODE1, r#""k":"hello","run":"r","rank":0,"world":1,"uid":1000"#);
    w.go_on("r", &[(NODE1, 0)], 0, 660);
    w.say(NODE1, r#""k":"bye","run":"r","rank":0,"code":0"#);
    for i in 0..30 {
        w.invent(NODE1, &format!("flood-{i}"), r#","uid":1001"#);
    }
    w.pages();
    for (step, loss) in [(100, "2.5"), (101, r#""NaN""#)] {
        let of_rank = r#""k":"step","run":"r","rank":0,"uid":1001"#;
        w.say(NODE1, &format!(r#"{of_rank},"step":{step},"m":{{"loss":{loss}}}"#));
    }
    assert!(!has(&w.pages(), "r:"), "it is young, and part of that user's flood");
}

/// The source that named a run first, without a user, cannot give the run to one once another
/// source's ranks were admitted.
#[test]
fn a_user_that_is_declared_later_takes_no_run_from_those_who_report_it() {
    let mut w = World::new();
    w.say("evil:1", r#""k":"hb","run":"r","rank":9"#);
    w.train("r", NODE1, 0, 660);
    w.say("evil:1", r#""k":"hello","run":"r","rank":9,"world":10,"uid":7"#);
    w.say(NODE1, r#""k":"hello","run":"r","rank":0,"world":2,"uid":1000"#);
    let refused = w.refused(NODE1, Refusal::OtherUser);
    w.nan(NODE1, "r", 0, 100);
    assert_eq!((refused, w.refused(NODE1, Refusal::OtherUser)), (0, 0));
    assert!(has(&w.pages(), "r:"));
}

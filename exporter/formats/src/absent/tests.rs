use super::*;
use proptest::prelude::*;

/// A line: its step, its numbers, and what has no value.
type Line = (i64, Vec<&'static str>, Vec<&'static str>);

fn missing(lines: &[Line]) -> Vec<(i64, Vec<String>)> {
    let mut absent = Absent::default();
    let mut found = Vec::new();
    for (step, numbers, nothing) in lines {
        let mut e = Event { step: Some(*step), ..Event::new(Kind::Step) };
        for name in numbers {
            e.m.set(name, 1.0);
        }
        let nothing: Vec<_> = nothing.iter().map(|n| ((*n).to_owned(), Nothing::Null)).collect();
        absent.judge(&mut e, &nothing);
        found.extend((!e.missing.is_empty()).then_some((*step, e.missing)));
    }
    found
}

fn full(steps: impl Iterator<Item = i64>) -> impl Iterator<Item = Line> {
    steps.map(|s| (s, vec!["loss", "grad_norm", "lr", "step_time"], vec![]))
}

fn only(name: &str, steps: &[i64]) -> Vec<(i64, Vec<String>)> {
    steps.iter().map(|s| (*s, vec![name.to_owned()])).collect()
}

#[test]
fn a_number_that_turns_null_is_missing() {
    let null = |s| (s, vec!["grad_norm", "lr", "step_time"], vec!["loss"]);
    let lines: Vec<_> = full(1..3).chain([null(3), null(4)]).chain(full(5..6)).chain([null(6)]).collect();
    assert_eq!(missing(&lines), only("loss", &[3, 4]), "what comes back must be known again");
    let lines: Vec<_> = full(1..2).chain([null(2)]).collect();
    assert_eq!(missing(&lines), [], "one line is not enough");
    let lines: Vec<_> = full(1..2).chain((2..200).map(null)).collect();
    let late: Vec<_> = (130..200).collect();
    assert_eq!(missing(&lines), only("loss", &late), "and not for ever");
    let both = (3, vec!["lr", "step_time"], vec!["loss", "grad_norm"]);
    let lines: Vec<_> = full(1..3).chain([both]).collect();
    assert_eq!(missing(&lines), [(3, vec!["loss".to_owned(), "grad_norm".to_owned()])]);
}

#[test]
fn a_number_that_is_null_after_a_restart_is_missing() {
    let null = |s| (s, vec!["lr", "step_time"], vec!["loss", "grad_norm"]);
    let both = |s| (s, vec!["loss".to_owned(), "grad_norm".to_owned()]);
    let lines: Vec<_> = full(1..400).chain((100..103).map(null)).collect();
    assert_eq!(missing(&lines), [both(100), both(101), both(102)]);
    let lines: Vec<_> = full(1..400).chain(full(100..101)).chain([null(101)]).collect();
    assert_eq!(missing(&lines), [both(101)]);
    let lines: Vec<_> = full(1..400).chain((380..400).map(null)).chain((100..103).map(null)).collect();
    assert_eq!(missing(&lines).len(), 23, "and so if it was null before");
}

#[test]
fn another_run_need_not_have_what_the_one_before_had() {
    let second = |s| (s, vec!["loss", "lr", "step_time"], vec!["grad_norm"]);
    let lines: Vec<_> = full(1..400).chain((1..400).map(second)).collect();
    assert_eq!(missing(&lines), []);
    let short: Vec<_> = full(1..4).chain((1..40).map(second)).collect();
    assert_eq!(missing(&short), []);
    let without = |s| (s, vec!["loss", "lr", "step_time"], vec![]);
    let lines: Vec<_> = full(1..400).chain((1..400).map(without)).collect();
    assert_eq!(missing(&lines), []);
    let reward = |s, there: bool| {
        (
            s,
            if there { vec!["loss", "reward"] } else { vec!["loss"] },
            if there { vec![] } else { vec!["reward"] },
        )
    };
    let other = |s| (s, vec!["loss"], vec!["reward", "acc"]);
    let first = |s| (s, vec!["loss", "reward", "acc"], vec![]);
    let lines: Vec<_> = (1..100).map(first).chain((1..100).map(other)).collect();
    assert_eq!(missing(&lines), [], "metrics of its own");
    let lines: Vec<_> =
        (1..100).map(|s| reward(s, s < 50)).chain((1..100).map(|s| reward(s, false))).collect();
    assert!(missing(&lines).iter().all(|(s, _)| *s >= 50), "nor what was null in it");
    let broken = |s| (s, vec!["grad_norm", "lr", "step_time"], vec!["loss"]);
    let lines: Vec<_> = full(1..400).chain((1..4).map(broken)).collect();
    assert_eq!(missing(&lines), only("loss", &[1, 2, 3]), "a loss it has");
}

#[test]
fn every_known_metric_that_turns_null_is_missing() {
    let null = |s| (s, vec!["loss", "grad_norm", "step_time"], vec!["lr", "accuracy"]);
    let first = (1, vec!["loss", "grad_norm", "lr", "step_time", "accuracy"], vec![]);
    let full = |s| (s, first.1.clone(), vec![]);
    let lines = [first.clone(), full(2), null(3), null(4), full(5), null(6), full(7), full(8), null(9)];
    assert_eq!(missing(&lines), only("lr", &[3, 4, 9]), "two numbers of its own metrics mean nothing");
    let lines: Vec<_> = (1..40).map(null).collect();
    assert_eq!(missing(&lines), [], "one that never was a number");
    let skipped = (3, vec!["loss", "skipped"], vec!["lr"]);
    assert_eq!(missing(&[full(1), full(2), skipped]), [], "on lines of another kind");
}

#[test]
fn a_metric_of_its_own_that_turns_null_is_missing_after_twenty_numbers() {
    let line = |s, numbers: &[&'static str], nothing: &[&'static str]| {
        (s, [&["loss", "lr"], numbers].concat(), nothing.to_vec())
    };
    let full = |steps: core::ops::Range<i64>| steps.map(move |s| line(s, &["reward", "kl"], &[]));
    let null = |s| line(s, &["kl"], &["reward"]);
    let lines: Vec<_> =
        full(1..21).chain([null(21), null(22)]).chain(full(23..43)).chain([null(43)]).collect();
    assert_eq!(missing(&lines), only("reward", &[21, 22, 43]));
    let lines: Vec<_> = full(1..20).chain([null(20)]).collect();
    assert_eq!(missing(&lines), [], "too few");
    let lines: Vec<_> = full(1..30).chain((30..60).map(|s| line(s, &["kl"], &[]))).collect();
    assert_eq!(missing(&lines), [], "left out");
    let seldom = |s| if s % 5 == 0 { line(s, &["reward", "kl"], &[]) } else { null(s) };
    assert_eq!(missing(&(1..200).map(seldom).collect::<Vec<_>>()), [], "a number now and then");
}

#[test]
fn a_number_that_is_always_there_is_missed() {
    let without = |s| (s, vec!["lr", "step_time"], vec![]);
    let lines: Vec<_> =
        full(1..21).chain((21..24).map(without)).chain(full(24..25)).chain([without(25)]).collect();
    let both = vec!["loss".to_owned(), "grad_norm".to_owned()];
    assert_eq!(missing(&lines), (21..24).map(|s| (s, both.clone())).collect::<Vec<_>>());
    let lines: Vec<_> = full(1..20).chain([without(20)]).collect();
    assert_eq!(missing(&lines), [], "too few lines");
}

#[test]
fn lines_of_another_kind_miss_nothing() {
    let eval = |s| (s, vec!["acc", "runtime"], vec!["loss"]);
    let summary = |s| (s, vec!["train_runtime", "samples_per_second", "total_flos"], vec![]);
    let short = |s| (s, vec!["lr"], vec![]); // a schedule
    let lines: Vec<_> = full(1..50).chain([eval(50), summary(50), short(51)]).collect();
    assert_eq!(missing(&lines), []);
    let skipped = (50, vec!["lr", "step_time", "skipped"], vec![]);
    let usual = (1..50).map(|s| (s, vec!["loss", "lr", "step_time", "skipped"], vec![]));
    assert_eq!(missing(&usual.chain([skipped]).collect::<Vec<_>>()), [], "a skipped step has no loss");
    let restarted: Vec<_> = full(100..150).chain([(50, vec!["lr", "step_time"], vec![])]).collect();
    assert_eq!(missing(&restarted), [], "a new attempt may log something else");
}

proptest! {
    /// A number of every k-th line is never missed, however the others look.
    #[test]
    fn what_is_logged_seldom_is_not_missed(every in 2i64..40, first in 0i64..19, nulls: bool, lines in 50i64..300) {
        let line = |s: i64| -> Line {
            let there = s < first.min(if nulls { 1 } else { 19 }) || s % every == 0;
            let mut numbers = vec!["lr", "step_time", "tokens"];
            numbers.extend(there.then_some("loss"));
            (s, numbers, if nulls && !there { vec!["loss"] } else { vec![] })
        };
        let lines: Vec<_> = (0..lines).map(line).collect();
        prop_assert_eq!(missing(&lines), vec![]);
    }

    /// After enough whole lines the first line without the number is reported, and none before.
    #[test]
    fn a_missing_loss_is_reported_at_once(whole in 20i64..200, gone in 1i64..50, nulls: bool) {
        let without = (whole..whole + gone).map(|s| (s, vec!["lr", "grad_norm", "step_time"], if nulls { vec!["loss"] } else { vec![] }));
        let lines: Vec<Line> = full(0..whole).chain(without).collect();
        let steps: Vec<_> = missing(&lines).into_iter().map(|(s, _)| s).collect();
        prop_assert_eq!(steps, (whole..whole + gone).collect::<Vec<_>>());
    }

    #[test]
    fn never_panics(lines in proptest::collection::vec((any::<i64>(), any::<u8>(), any::<u8>()), 0..60)) {
        let names = ["loss", "grad_norm", "lr", "skipped", "a", "b", "c", "d"];
        let pick = |bits: u8| names.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, n)| *n).collect::<Vec<_>>();
        let lines: Vec<Line> = lines.into_iter().map(|(s, n, m)| (s, pick(n), pick(m & !n))).collect();
        for (step, missing) in missing(&lines) {
            let line = lines.iter().find(|(s, ..)| *s == step);
            prop_assert!(line.is_some() && !missing.is_empty());
        }
    }
}

/// What lines of a step and nothing else miss, in a log whose other lines have a loss.
fn bare(lines: &[(i64, bool)]) -> Vec<i64> {
    let mut absent = Absent::default();
    let mut missing = Vec::new();
    for (step, whole) in lines {
        let mut e = Event { step: Some(*step), ..Event::new(Kind::Step) };
        let found = if *whole {
            e.m.set("loss", 1.0);
            let before = absent.proven_by(*step);
            absent.judge(&mut e, &[]);
            before.into_iter().chain([e]).collect()
        } else {
            absent.bare(e).unwrap_or_default()
        };
        missing.extend(found.iter().filter(|e| e.missing == ["loss"]).filter_map(|e| e.step));
    }
    missing
}

fn whole(steps: impl Iterator<Item = i64>) -> Vec<(i64, bool)> {
    steps.map(|s| (s, true)).collect()
}

#[test]
fn a_step_and_nothing_else_counts_where_the_next_line_proves_it() {
    let then = |steps: &[(i64, bool)]| bare(&[whole(1..41), steps.to_vec()].concat());
    assert_eq!(then(&[(41, false)]), [0; 0], "it may say that the run is done");
    assert_eq!(then(&[(41, false), (42, false), (43, false)]), [41, 42, 43]);
    assert_eq!(then(&[(41, false), (42, true), (43, true)]), [41]);
    assert_eq!(then(&[(41, false), (41, true), (42, true), (43, false), (44, false)]), [0; 0], "announced");
    assert_eq!(then(&[(40, false), (41, true), (42, false), (43, true)]), [0; 0], "saved, and once more");
    assert_eq!(then(&[(50, false), (51, false)]), [0; 0], "steps jump");
    assert_eq!(then(&[(41, false), (42, false), (43, true), (44, false), (45, false)]), [41, 42]);
    let again = [vec![(41, false), (42, false)], whole(43..64), vec![(64, false), (65, false)]].concat();
    assert_eq!(then(&again), [41, 42, 64, 65]);
    assert_eq!(bare(&[whole(1..20), vec![(20, false), (21, false)]].concat()), [0; 0], "too few lines");
    let tens = [whole((0..400).step_by(10)), vec![(400, false), (410, false)]].concat();
    assert_eq!(bare(&tens), [400, 410]);
    let seldom: Vec<_> = (0..200).map(|s| (s, s % 30 != 0)).collect();
    assert_eq!(bare(&seldom), [0; 0], "such lines were there before");
}

#[test]
fn an_evaluation_in_between_takes_a_bare_line_for_its_own() {
    let mut absent = Absent::default();
    for (step, whole) in whole(1..41).into_iter().chain([(41, false)]) {
        let mut e = Event { step: Some(step), ..Event::new(Kind::Step) };
        if whole {
            e.m.set("loss", 1.0);
            absent.proven_by(step);
            absent.judge(&mut e, &[]);
        } else {
            assert_eq!(absent.bare(e), Some(vec![]));
        }
    }
    absent.interrupt();
    assert_eq!(absent.proven_by(42), None);
}

#[test]
fn an_empty_row_of_a_table_counts() {
    let mut absent = Absent::of_rows();
    let mut row = |step: i64, loss: bool| {
        let mut e = Event { step: Some(step), ..Event::new(Kind::Step) };
        if loss {
            e.m.set("loss", 1.0);
        }
        absent.judge(&mut e, &[]);
        !e.missing.is_empty()
    };
    assert!((1..41).all(|s| !row(s, true)));
    assert!(!row(40, false), "a second row of a step is of something else");
    assert!(row(41, false) && row(42, false) && !row(43, true));
    assert!((44..90).all(|s| !row(s, s % 3 == 0)), "logged seldom");
}

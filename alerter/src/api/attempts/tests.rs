use stepwatch_detect::{Input, Monitor};
use stepwatch_model::time::{Span, Ts};
use stepwatch_wire::Event;

use super::*;

const START: Ts = Ts(1_795_227_416_000);

fn say(monitor: &mut Monitor, at: Ts, line: &str) {
    let mut event = Event::parse(line.as_bytes()).unwrap();
    (event.ts, event.node) = (Some(at.as_secs_f64()), Some("n1".into()));
    monitor.handle(at, Input::Event { source: "n1:9765", event: &event }, &mut Vec::new());
}

/// Makes steps of two seconds, and returns when the last one was made.
fn steps(monitor: &mut Monitor, attempt: u32, from: Ts, steps: core::ops::Range<i64>) -> Ts {
    let mut at = from;
    for step in steps {
        at = at + Span::secs(2);
        let loss = 2.0 + 0.01 * (step % 7) as f64;
        let line = format!(
            r#"{{"k":"step","run":"r","rank":0,"attempt":{attempt},"step":{step},"m":{{"loss":{loss}}}}}"#
        );
        say(monitor, at, &line);
    }
    at
}

#[test]
fn how_attempts_came_to_their_first_step_and_how_far_the_next_has_come() {
    let mut monitor = Monitor::default();
    let hello = |monitor: &mut Monitor, at: Ts, rank: u32, began: Span| {
        let started = (at.0 - began.0) / 1000;
        let line = format!(
            r#"{{"k":"hello","run":"r","rank":{rank},"world":4,"started":{started},"pid":{started}}}"#
        );
        say(monitor, at, &line);
    };
    (0..4).for_each(|rank| hello(&mut monitor, START, rank, Span::secs(20)));
    let at = steps(&mut monitor, 0, START, 1..30);
    for rank in 0..4 {
        say(&mut monitor, at, &format!(r#"{{"k":"bye","run":"r","rank":{rank},"code":1}}"#));
    }
    let again = at + Span::secs(100);
    (0..3).for_each(|rank| hello(&mut monitor, again, rank, Span::secs(30)));
    let view = HistoryView::new("r", &RunHistory::from_run(monitor.run("r").unwrap()));
    let part = &view.attempts[0].start[0];
    assert_eq!((part.phase, part.seconds), (StartPhaseView::UntilHello, 20.0));
    let starting = view.starting.unwrap();
    assert_eq!((starting.since, starting.ranks, starting.world), (When(again), 3, Some(4)));
    assert_eq!(starting.missing, [3]);
    let part = &starting.start[0];
    assert_eq!((part.phase, part.seconds), (StartPhaseView::UntilHello, 30.0));
    assert_eq!(part.usual_seconds, Some(20.0));
}

#[test]
fn what_differs_from_the_last_good_attempt_and_what_is_left_of_a_forgotten_run() {
    let mut monitor = Monitor::default();
    let hello = |lr: &str| {
        format!(
            r#"{{"k":"hello","run":"r","rank":0,"world":1,"lr":{lr},"seed":7,"api_key":"canary","model":{{"n_layers":32}}}}"#
        )
    };
    say(&mut monitor, START, &hello("0.0001"));
    let at = steps(&mut monitor, 0, START, 0..300);
    say(&mut monitor, at + Span::secs(60), &hello("0.0003"));
    let at = steps(&mut monitor, 1, at + Span::secs(60), 300..400);
    let history = RunHistory::from_run(monitor.run("r").unwrap());
    let view = HistoryView::new("r", &history);
    let since = view.since_good.unwrap();
    let lr = ChangeView {
        of: AspectView::Declared,
        name: "lr".into(),
        before: Some("0.0001".into()),
        after: Some("0.0003".into()),
    };
    assert_eq!((since.run.as_str(), since.attempt, since.changes), ("r", Some(0), vec![lr]));
    assert_eq!(view.forgotten, None);

    say(&mut monitor, at, r#"{"k":"bye","run":"r","rank":0,"code":0}"#);
    let later = at + Span::secs(31 * 86_400);
    while monitor.tick_one(later, &mut Vec::new()) {}
    assert!(monitor.run("r").is_none());
    let kept: Vec<_> = monitor.kept_setups().collect();
    let view = HistoryView::forgotten(kept[0]);
    let stood = view.forgotten.as_ref().unwrap();
    assert_eq!((stood.attempt, stood.last_step, stood.steps), (1, Some(399), 400));
    let of = |name: &str| view.setup.iter().find(|s| s.name == name).map(|s| s.value.as_str());
    let values = ["lr", "seed", "model.n_layers", "processes"].map(of);
    assert_eq!(values, [Some("0.0003"), Some("7"), Some("32"), Some("1")]);
    assert!(!format!("{view:?}").contains("canary"), "{view:?}");
}

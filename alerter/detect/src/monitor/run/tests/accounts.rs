//! The accounts of a run's time, from the events of its trainer.

use super::*;
use crate::run::TimeState;

/// A trainer whose events arrive as they happen.
struct Trainer {
    run: Run,
    now: i64,
}

impl Trainer {
    fn new() -> Self {
        Self { run: Run::new("r", Ts(START), &Arc::default()), now: START }
    }

    fn pass(&mut self, secs: i64) -> &mut Self {
        self.now += 1000 * secs;
        self
    }

    fn say(&mut self, event: &str) -> &mut Self {
        let mut e = Event::parse(event.as_bytes()).unwrap();
        e.ts = Some(self.now as f64 / 1000.0);
        e.rank = e.rank.or(Some(0));
        self.run.event(Ts(self.now), "n:1", &e, &mut Vec::new());
        self
    }

    fn step(&mut self, step: i64) -> &mut Self {
        self.say(&format!(r#"{{"k":"step","run":"r","step":{step},"m":{{"loss":2.0}}}}"#))
    }

    fn steps(&mut self, steps: core::ops::RangeInclusive<i64>) -> &mut Self {
        for step in steps {
            self.pass(10).step(step);
        }
        self
    }

    fn seconds(&self, state: TimeState) -> f64 {
        self.run.state.ledger.totals().seconds(state)
    }

    /// The seconds of all states that took any.
    fn all(&self) -> Vec<(&'static str, f64)> {
        let all = TimeState::ALL.map(|state| (state.as_str(), self.seconds(state)));
        all.into_iter().filter(|(_, seconds)| *seconds > 0.0).collect()
    }
}

const HELLO: &str = r#"{"k":"hello","run":"r","world":8,"job":"77"}"#;

#[test]
fn a_life_from_load_to_end() {
    let mut t = Trainer::new();
    t.say(HELLO).pass(90).say(r#"{"k":"ckpt","phase":"end","stage":"load","seconds":60,"run":"r","step":0}"#);
    t.pass(30).step(1).steps(2..=40);
    assert_eq!(t.run.state.checkpoints.last_step, None, "a load saves nothing");
    t.say(r#"{"k":"phase","name":"eval","edge":"begin","run":"r"}"#).pass(120);
    t.say(r#"{"k":"phase","name":"eval","edge":"end","run":"r"}"#).steps(41..=60);
    t.say(r#"{"k":"ckpt","phase":"start","run":"r","step":60}"#).pass(25);
    t.say(r#"{"k":"ckpt","phase":"end","run":"r","step":60}"#).steps(61..=70);
    t.say(r#"{"k":"ckpt","phase":"end","stage":"write","seconds":90,"run":"r","step":60}"#).steps(71..=80);
    t.pass(4).say(r#"{"k":"event","name":"rank_dead","run":"r"}"#).pass(50).say(HELLO).pass(80).step(61);
    t.steps(62..=90).pass(6).say(r#"{"k":"bye","code":0,"run":"r"}"#);
    let want = [
        ("productive", 790.0 + 100.0),
        ("saving", 25.0),
        ("loading", 60.0),
        ("starting", 60.0 + 80.0),
        ("evaluating", 120.0),
        ("recomputing", 190.0),
        ("down", 54.0),
        ("idle", 6.0),
    ];
    assert_eq!(t.all(), want);
    let accounts = t.run.state.ledger.totals();
    assert_eq!(accounts.gpu_seconds(TimeState::Productive), Some(8.0 * 890.0));
    assert_eq!(accounts.goodput(), Some(890.0 / 1485.0));
}

#[test]
fn a_run_that_hung_stalled_until_it_was_killed() {
    let mut t = Trainer::new();
    t.say(HELLO).pass(60).step(1).steps(2..=40).pass(3600);
    assert_eq!(t.seconds(TimeState::Stalled), 0.0, "it may be an evaluation that nobody declared");
    t.say(r#"{"k":"bye","code":1,"run":"r"}"#).pass(30).say(HELLO).pass(60).step(41);
    assert_eq!((t.seconds(TimeState::Stalled), t.seconds(TimeState::Down)), (3590.0, 40.0));
}

#[test]
fn a_save_that_is_received_late_is_no_older_than_the_step_before_it() {
    let mut t = Trainer::new();
    let arrives = Ts(START + 7_200_000);
    let late = |t: &mut Trainer, event: &str| {
        let mut e = Event::parse(event.as_bytes()).unwrap();
        (e.ts, e.rank) = (Some(t.now as f64 / 1000.0), Some(0));
        t.run.event(arrives, "n:1", &e, &mut Vec::new());
    };
    late(&mut t, HELLO);
    for step in 1..=40 {
        t.pass(10);
        late(&mut t, &format!(r#"{{"k":"step","run":"r","step":{step},"m":{{"loss":2.0}}}}"#));
    }
    t.pass(30);
    late(&mut t, r#"{"k":"ckpt","phase":"end","run":"r","step":40,"seconds":30}"#);
    t.pass(10);
    late(&mut t, r#"{"k":"step","run":"r","step":41,"m":{"loss":2.0}}"#);
    assert_eq!(t.seconds(TimeState::Saving), 30.0);
    assert_eq!(t.run.state.checkpoints.saves.len(), 1);
}

const SILENT_END: &str = r#"{"k":"bye","source":"tail","run":"r"}"#;

#[test]
fn a_log_that_ended_without_a_word_and_goes_on_stalled_nowhere() {
    let mut t = Trainer::new();
    t.say(HELLO).pass(60).step(1).steps(2..=40).pass(30).say(SILENT_END);
    t.pass(7200).step(41).steps(42..=50);
    assert_eq!((t.seconds(TimeState::Stalled), t.seconds(TimeState::Unknown)), (0.0, 7200.0));
    assert_eq!((t.seconds(TimeState::Productive), t.seconds(TimeState::Idle)), (480.0, 30.0));
}

#[test]
fn what_ended_without_a_word_in_a_job_that_goes_on_is_down_until_it_starts() {
    let mut t = Trainer::new();
    t.say(HELLO).pass(60).step(1).steps(2..=40).pass(30).say(SILENT_END);
    t.pass(600).say(HELLO).pass(90).step(41).steps(42..=50);
    assert_eq!((t.seconds(TimeState::Down), t.seconds(TimeState::Starting)), (600.0, 60.0 + 90.0));
}

#[test]
fn a_log_whose_end_was_seen_too_early_goes_on() {
    let mut t = Trainer::new();
    t.say(HELLO).pass(60).step(1).steps(2..=40).pass(5).say(SILENT_END).pass(5).step(41).steps(42..=50);
    let states = [TimeState::Productive, TimeState::Idle, TimeState::Unknown].map(|s| t.seconds(s));
    assert_eq!(states, [485.0, 5.0, 0.0]);
}

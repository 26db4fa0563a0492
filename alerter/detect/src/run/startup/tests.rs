use stepwatch_wire::Kind;

use super::*;
use crate::Input;
use crate::Monitor;
use crate::run::RunState;

/// When the job begins, in seconds.
const T: i64 = 1_795_227_416;

/// One run, told of by the clock of its trainer, which is ours.
#[derive(Default)]
struct Scene(Monitor);

impl Scene {
    fn say(&mut self, at: i64, line: &str) {
        let mut e = Event::parse(format!(r#"{{"run":"r","node":"n1",{line}}}"#).as_bytes()).unwrap();
        e.ts = Some((T + at) as f64);
        let now = Ts((T + at) * 1000);
        self.0.handle(now, Input::Event { source: "n1:9765", event: &e }, &mut Vec::new());
    }

    fn hello(&mut self, at: i64, rank: u32, more: &str) {
        self.say(at, &format!(r#""k":"hello","rank":{rank},"world":2{more}"#));
    }

    fn step(&mut self, at: i64, attempt: u32, step: i64) {
        self.say(at, &format!(r#""k":"step","rank":0,"attempt":{attempt},"step":{step},"m":{{"loss":2}}"#));
    }

    fn phase(&mut self, at: i64, rank: u32, name: &str, edge: &str) {
        self.say(at, &format!(r#""k":"phase","rank":{rank},"name":"{name}","phase":"{edge}""#));
    }

    fn state(&self) -> &RunState {
        &self.0.run("r").unwrap().state
    }

    /// The rows of the table of the current attempt, in seconds.
    fn parts(&self) -> Vec<(StartPhase, i64, i64, i64)> {
        let start = self.state().attempts.start.as_ref().unwrap();
        let secs = |at: Ts| at.0 / 1000 - T;
        start.parts.iter().map(|p| (p.phase, secs(p.began), secs(p.ended), p.ms / 1000)).collect()
    }
}

/// The keys of a job that was submitted, given its nodes and started at these times.
fn job(submitted: i64, allocated: i64, started: i64, pid: u32) -> String {
    let (a, b, c) = (T + submitted, T + allocated, T + started);
    format!(r#","submitted":{a},"allocated":{b},"started":{c},"pid":{pid}"#)
}

#[test]
fn every_second_from_the_submission_to_the_first_step_has_one_part() {
    use StartPhase::{FirstStep, Imports, Init, Launch, Load, Queue, Unknown};
    let mut s = Scene::default();
    s.hello(400, 0, &job(0, 300, 350, 7));
    // The last rank counts.
    s.hello(420, 1, &job(0, 300, 370, 8));
    for rank in 0..2 {
        s.phase(425, rank, "init", "begin");
        s.phase(440, rank, "init", "end");
    }
    s.say(450, r#""k":"ckpt","rank":0,"stage":"load","phase":"start""#);
    s.say(500, r#""k":"ckpt","rank":0,"stage":"load","phase":"end""#);
    s.phase(510, 0, "first_step", "begin");
    s.step(530, 0, 1);
    s.step(532, 0, 2);
    assert!(s.state().starting.is_none());
    assert_eq!(
        s.parts(),
        [
            (Queue, 0, 300, 300),
            (Launch, 300, 370, 70),
            (Imports, 370, 420, 50),
            // 420 to 425, 440 to 450, 500 to 510.
            (Unknown, 420, 510, 25),
            (Init, 425, 440, 15),
            (Load, 450, 500, 50),
            (FirstStep, 510, 530, 20),
        ]
    );
    let start = s.state().attempts.start.as_ref().unwrap();
    assert_eq!((start.greeted_ms, start.ranks), (130_000, 2));
    assert!(!s.state().phases.contains_key("init") && !s.state().phases.contains_key("first_step"));
}

#[test]
fn a_restart_within_the_job_does_not_count_the_queue_again() {
    let mut s = Scene::default();
    s.hello(100, 0, &job(0, 50, 60, 7));
    s.step(200, 0, 1);
    s.step(202, 0, 2);
    s.say(300, r#""k":"bye","rank":0,"code":1"#);
    s.hello(330, 0, &job(0, 50, 310, 9));
    assert!(s.state().starting.is_some());
    s.step(390, 1, 1);
    s.step(392, 1, 2);
    let parts: Vec<_> = s.parts().into_iter().map(|(phase, _, _, secs)| (phase, secs)).collect();
    assert_eq!(parts, [(StartPhase::Imports, 20), (StartPhase::Unknown, 60)]);
    // The first is kept with its attempt, and says what is usual.
    let attempts = &s.state().attempts;
    assert_eq!(attempts.past[0].start.as_ref().and_then(|one| one.ms_of(StartPhase::Launch)), Some(10_000));
    let usual = attempts.usual_start(1).unwrap();
    assert_eq!((usual.starts, usual.ms_of(StartPhase::Queue)), (1, Some(50_000)));
    assert_eq!(attempts.usual_start(0), None);
}

#[test]
fn a_job_that_was_requeued_waits_since_its_attempt_before() {
    let mut s = Scene::default();
    s.hello(100, 0, &job(0, 50, 60, 7));
    s.step(200, 0, 1);
    s.step(210, 0, 2);
    s.say(210, r#""k":"bye","rank":0,"code":1"#);
    s.hello(1000, 0, &job(0, 900, 950, 7));
    s.step(1010, 1, 1);
    s.step(1012, 1, 2);
    assert_eq!(s.parts()[0], (StartPhase::Queue, 210, 900, 690));
    // In a container its processes have the same pid: only their beginning differs.
    assert_eq!(s.parts()[1], (StartPhase::Launch, 900, 950, 50));
}

#[test]
fn times_that_no_job_has_are_left_out() {
    for (key, secs) in [
        ("allocated", (T + 4000) as f64),
        ("started", 0.0),
        ("submitted", f64::NAN),
        ("allocated", -1e30),
        ("started", (T - 40 * 86_400) as f64),
    ] {
        let mut s = Scene::default();
        s.hello(0, 0, &format!(r#","{key}":{secs}"#));
        s.step(10, 0, 1);
        s.step(12, 0, 2);
        assert_eq!(s.parts(), [(StartPhase::Unknown, 0, 10, 10)], "{key} {secs}");
    }
}

#[test]
fn a_process_that_describes_itself_again_begins_no_start() {
    let mut s = Scene::default();
    s.hello(0, 0, &job(-9, -5, -2, 7));
    s.step(10, 0, 1);
    s.step(12, 0, 2);
    s.hello(14, 0, &job(-9, -5, -2, 7));
    assert!(s.state().starting.is_none());
    // Another process does, unless the others go on.
    s.hello(15, 0, &job(-9, -5, 13, 8));
    assert!(s.state().starting.is_some());
    s.step(16, 0, 3);
    assert!(s.state().starting.is_none());
}

#[test]
fn a_start_that_dies_is_not_part_of_the_next() {
    let mut s = Scene::default();
    s.hello(0, 0, &job(-90, -50, -20, 7));
    s.phase(1, 0, "init", "begin");
    s.hello(60, 0, &job(-90, -50, 50, 8));
    s.step(70, 0, 1);
    s.step(72, 0, 2);
    let parts: Vec<_> = s.parts().into_iter().map(|(phase, _, _, secs)| (phase, secs)).collect();
    assert_eq!(parts, [(StartPhase::Imports, 10), (StartPhase::Unknown, 10)]);
}

#[test]
fn one_start_that_hung_does_not_make_the_next_wait() {
    let took = |secs: i64| StartUp { greeted_ms: secs * 1000, ranks: 8, ..StartUp::default() };
    let starts = [took(300), took(310), took(9000), took(290)];
    let usual = StartUsual::of(&starts.iter().collect::<Vec<_>>()).unwrap();
    // Three times the upper median of 310 s.
    assert_eq!(usual.greeted_ms, 930_000);
    assert_eq!(usual.limit(Span::secs(600)), Span::secs(1860));
    let short = StartUsual::of(&[&took(20)]).unwrap();
    assert_eq!(short.limit(Span::secs(600)), Span::secs(600));
}

#[test]
fn ranks_that_are_behind_are_the_few() {
    let mut s = Starting::new(Ts(0), Ts(0), None);
    let greeting =
        |rank| Greeting { now: Ts(5), at: Ts(5), rank, submitted: None, allocated: None, started: None };
    let phase = |edge| Event { name: Some("init".into()), edge: Some(edge), ..Event::new(Kind::Phase) };
    (0..7).for_each(|rank| s.greeted(&greeting(rank), Some(8)));
    assert_eq!(s.majority_at, Some(Ts(5)));
    assert!(s.lacks(8, None));
    assert_eq!(s.without_hello(0..8).collect::<Vec<_>>(), [7]);
    assert!(s.behind_in_init().is_empty());
    (0..5).for_each(|rank| assert!(s.phase(Ts(6), rank, &phase(Edge::Begin))));
    assert!(s.waits_in_init() && s.stands_in() == Some((StartPhase::Init, Ts(6))));
    assert_eq!(s.behind_in_init(), BTreeSet::from([5, 6]));
    (5..7).for_each(|rank| assert!(s.phase(Ts(7), rank, &phase(Edge::Begin))));
    let mut failed = phase(Edge::End);
    failed.extra.insert("failed".into(), Value::Bool(true));
    assert!(s.phase(Ts(7), 6, &failed) && !s.has_met());
    assert!(s.phase(Ts(7), 6, &phase(Edge::Begin)));
    (0..6).for_each(|rank| assert!(s.phase(Ts(8), rank, &phase(Edge::End))));
    assert!(s.has_met() && s.behind_in_init() == BTreeSet::from([6]));
}

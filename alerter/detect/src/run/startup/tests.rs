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
    use StartPhase::{FirstStep, Init, Launch, Load, Queue, Unknown, UntilHello};
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
            (UntilHello, 370, 420, 50),
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
    assert_eq!(parts, [(StartPhase::UntilHello, 20), (StartPhase::Unknown, 60)]);
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
fn a_process_that_is_replaced_before_the_first_step_is_part_of_the_wait() {
    let mut s = Scene::default();
    s.hello(0, 0, &job(-90, -50, -20, 7));
    s.phase(1, 0, "init", "begin");
    s.hello(60, 0, &job(-90, -50, 50, 8));
    s.step(70, 0, 1);
    s.step(72, 0, 2);
    let parts: Vec<_> = s.parts().into_iter().map(|(phase, _, _, secs)| (phase, secs)).collect();
    let expected = [
        (StartPhase::Queue, 40),
        (StartPhase::Launch, 100),
        (StartPhase::UntilHello, 10),
        (StartPhase::Unknown, 10),
    ];
    assert_eq!(parts, expected);
}

#[test]
fn one_start_that_hung_does_not_make_the_next_wait() {
    let took = |secs: i64| StartUp { greeted_ms: secs * 1000, ranks: 8, ..StartUp::default() };
    let usual = |starts: &[i64]| {
        let starts: Vec<StartUp> = starts.iter().map(|secs| took(*secs)).collect();
        StartUsual::of(&starts.iter().collect::<Vec<_>>()).unwrap()
    };
    let one = usual(&[300, 310, 9000, 290]);
    // The longest counts as three times the median of 310 s: 0.95 * 3 is 2.85, and so 85 % of the
    // way from 310 to 930.
    assert_eq!((one.greeted_ms, one.median_ms, one.longest_ms), (837_000, 310_000, 9_000_000));
    assert_eq!(one.limit(Span::secs(600)), Span::secs(1674));
    // Two are usual: 0.95 * 4 is 3.8.
    let two = usual(&[120, 120, 120, 2400, 2500]);
    assert_eq!((two.greeted_ms, two.longest_ms), (2_400_000, 2_500_000));
    assert_eq!(usual(&[20]).limit(Span::secs(600)), Span::secs(600));
}

#[test]
fn the_cluster_tells_how_long_a_pod_waited_and_for_its_image() {
    use StartPhase::{Image, Launch, Queue};
    for (is_trusted, containers) in [(true, 370), (false, 370), (true, 405)] {
        let mut s = Scene::default();
        s.say(390, r#""k":"health","name":"job","code":1,"job":"ml/llama-0","runs":["r"]"#);
        let up = Input::SourceUp { source: "cluster:9765", many_nodes: is_trusted };
        s.0.handle(Ts((T + 390) * 1000), up, &mut Vec::new());
        (0..2).for_each(|rank| s.hello(400, rank, &format!(r#","started":{},"pid":{rank}"#, T + 395)));
        let (allocated, started) = (T + 300, T + containers);
        let told = format!(
            r#"{{"k":"health","node":"head","name":"pod","about":"n1","pod":"ml/llama-0","submitted":{T},"allocated":{allocated},"containers_started":{started}}}"#
        );
        let e = Event::parse(told.as_bytes()).unwrap();
        let now = Ts((T + 410) * 1000);
        s.0.handle(now, Input::Event { source: "cluster:9765", event: &e }, &mut Vec::new());
        s.step(430, 0, 1);
        s.step(432, 0, 2);
        let placed: Vec<_> =
            s.parts().into_iter().filter(|(phase, ..)| [Queue, Image, Launch].contains(phase)).collect();
        let want = match containers {
            _ if !is_trusted => Vec::new(),
            370 => vec![(Queue, 0, 300, 300), (Image, 300, 370, 70), (Launch, 370, 395, 25)],
            // One of them was begun again when the ranks were there.
            _ => vec![(Queue, 0, 300, 300), (Image, 300, 395, 95)],
        };
        assert_eq!(placed, want);
    }
}

fn starting() -> Starting {
    Starting::new(Ts(0), Ts(0), None, None)
}

fn greeting(at: i64, rank: u32) -> Greeting {
    Greeting {
        now: Ts(at),
        at: Ts(at),
        rank,
        found: false,
        tells: true,
        initialised: false,
        submitted: None,
        allocated: None,
        started: None,
    }
}

fn init(rank: Option<u32>, edge: Edge) -> Event {
    let node = Some("n1".to_owned());
    Event { name: Some("init".into()), edge: Some(edge), rank, node, ..Event::new(Kind::Phase) }
}

#[test]
fn whoever_has_not_come_to_init_is_late_and_whoever_is_left_in_it_is_not() {
    let mut s = starting();
    (0..7).for_each(|rank| s.greeted(&greeting(5, rank), Greeter::New, Some(8)));
    assert_eq!((s.lacks_since(8, 0), s.lacks_since(8, 1)), (Some(Ts(5)), None));
    let late = |s: &Starting| s.late_for_init(|_| Some("n1".to_owned()));
    assert!(late(&s).is_empty());
    (0..5).for_each(|rank| s.phase(Ts(6), &init(Some(rank), Edge::Begin), Some(8)));
    assert_eq!(s.stands_in(), Some((StartPhase::Init, Ts(6))));
    assert_eq!(late(&s), [5, 6]);
    // Rank 0 serves the others, which do not wait for each other.
    (1..5).for_each(|rank| s.phase(Ts(8), &init(Some(rank), Edge::End), Some(8)));
    assert!(s.waits_in_init() && !s.has_met());
    assert_eq!(late(&s), [5, 6]);
    // The log of their node shows them in it, without saying which.
    s.phase(Ts(9), &init(None, Edge::Begin), Some(8));
    assert!(late(&s).is_empty());
    s.phase(Ts(9), &init(None, Edge::End), Some(8));
    (5..7).for_each(|rank| s.phase(Ts(9), &init(Some(rank), Edge::Begin), Some(8)));
    (5..7).for_each(|rank| s.phase(Ts(9), &init(Some(rank), Edge::End), Some(8)));
    assert!(late(&s).is_empty(), "rank 0 only");
    assert!(s.waits_in_init());
    let mut failed = init(Some(0), Edge::End);
    failed.extra.insert("failed".into(), Value::Bool(true));
    s.phase(Ts(9), &failed, Some(8));
    assert!(!s.waits_in_init());
}

#[test]
fn ranks_have_met_once_a_communicator_of_all_is_complete() {
    for (ranks, has_met) in [(4.0, false), (8.0, true), (f64::NAN, false)] {
        let mut s = starting();
        let mut end = init(None, Edge::End);
        end.extra.insert("nranks".into(), Value::Number(ranks));
        s.phase(Ts(5), &end, Some(8));
        assert_eq!(s.has_met(), has_met, "{ranks}");
    }
}

#[test]
fn a_rank_that_comes_with_its_group_made_is_not_late_for_it() {
    let mut s = starting();
    (0..4).for_each(|rank| s.greeted(&greeting(5, rank), Greeter::New, Some(4)));
    (0..2).for_each(|rank| s.phase(Ts(6), &init(Some(rank), Edge::Begin), Some(4)));
    s.greeted(&Greeting { initialised: true, ..greeting(7, 2) }, Greeter::Known, Some(4));
    assert_eq!(s.late_for_init(|_| None), [3]);
}

#[test]
fn a_rank_whose_hello_comes_after_its_group_is_the_same_process() {
    let mut s = starting();
    s.greeted(&greeting(5, 0), Greeter::New, Some(4));
    (0..4).for_each(|rank| s.phase(Ts(6), &init(Some(rank), Edge::Begin), Some(4)));
    (1..4).for_each(|rank| s.greeted(&greeting(7, rank), Greeter::New, Some(4)));
    assert_eq!((s.since, s.ranks(), s.late_for_init(|_| None)), (Ts(0), 4, vec![]));
    s.phase(Ts(8), &init(Some(4), Edge::Begin), Some(4));
    assert_eq!(s.ranks(), 4, "there is no rank 4");
}

#[test]
fn most_are_there_when_as_many_report_as_before() {
    let usual = StartUsual::of(&[&StartUp { ranks: 4, ..StartUp::default() }]);
    let mut s = Starting::new(Ts(0), Ts(0), None, usual);
    (0..3).for_each(|rank| s.greeted(&greeting(5, rank), Greeter::New, Some(64)));
    assert_eq!(s.lacks_since(64, 0), Some(Ts(5)));
    s.greeted(&greeting(6, 3), Greeter::New, Some(64));
    assert_eq!(s.lacks_since(64, 0), None);
}

#[test]
fn one_process_that_is_replaced_does_not_begin_another_start() {
    let mut s = starting();
    (0..4).for_each(|rank| s.greeted(&greeting(5, rank), Greeter::New, Some(4)));
    (0..4).for_each(|rank| s.phase(Ts(6), &init(Some(rank), Edge::Begin), Some(4)));
    s.greeted(&greeting(900, 3), Greeter::New, Some(4));
    assert_eq!((s.since, s.ranks()), (Ts(0), 4));
    assert_eq!(s.late_for_init(|_| None), [3], "the new one has not come to it");
    // Those of two others do: it begins with the first that came after an end.
    s.ends(Ts(950), Some(1), Ts(950));
    s.ends(Ts(960), Some(2), Ts(960));
    assert_eq!(s.since, Ts(0));
    s.greeted(&greeting(1000, 0), Greeter::New, Some(4));
    assert_eq!((s.since, s.ranks(), s.waits_in_init()), (Ts(900), 2, false));
}

#[test]
fn an_end_that_arrives_late_is_not_that_of_the_next_process() {
    let mut s = starting();
    (0..2).for_each(|rank| s.greeted(&greeting(100, rank), Greeter::New, Some(2)));
    (0..2).for_each(|rank| s.ends(Ts(110), Some(rank), Ts(90)));
    s.greeted(&greeting(120, 2), Greeter::New, Some(2));
    assert_eq!((s.since, s.ranks()), (Ts(0), 3));
}

#[test]
fn whoever_says_hello_after_the_ends_begins_the_next_start() {
    let mut s = Scene::default();
    s.hello(0, 0, &job(-90, -50, -20, 7));
    s.say(10, r#""k":"ckpt","rank":0,"stage":"load","phase":"start""#);
    s.say(40, r#""k":"bye","rank":0,"code":1"#);
    s.hello(60, 1, &job(-90, -50, 50, 8));
    s.step(90, 0, 1);
    s.step(92, 0, 2);
    let parts: Vec<_> = s.parts().into_iter().map(|(phase, _, _, secs)| (phase, secs)).collect();
    assert_eq!(parts, [(StartPhase::UntilHello, 10), (StartPhase::Unknown, 30)]);
}

#[test]
fn the_process_itself_says_when_it_says_hello_and_not_who_found_it() {
    let mut s = Scene::default();
    s.hello(0, 0, &format!(r#"{},"source":"discover""#, job(-90, -50, -20, 7)));
    assert!(s.state().starting.as_ref().unwrap().is_only_found());
    s.hello(40, 0, &job(-90, -50, -20, 7));
    assert!(!s.state().starting.as_ref().unwrap().is_only_found());
    s.step(90, 0, 1);
    s.step(92, 0, 2);
    assert_eq!(s.parts()[2], (StartPhase::UntilHello, -20, 40, 60));
}

#[test]
fn what_arrives_at_once_after_an_outage_took_as_long_as_the_trainer_says() {
    let mut s = Scene::default();
    let now = Ts((T + 5000) * 1000);
    for (at, line) in [
        (0, r#""k":"hello","rank":0,"world":1"#),
        (1500, r#""k":"step","rank":0,"attempt":0,"step":1"#),
        (1502, r#""k":"step","rank":0,"attempt":0,"step":2"#),
    ] {
        let mut e =
            Event::parse(format!(r#"{{"run":"r","node":"n1",{line},"m":{{"loss":2}}}}"#).as_bytes()).unwrap();
        e.ts = Some((T + at) as f64);
        s.0.handle(now, Input::Event { source: "n1:9765", event: &e }, &mut Vec::new());
    }
    assert_eq!(s.state().attempts.start.as_ref().unwrap().greeted_ms, 1_500_000);
}

#[test]
fn communicators_of_a_run_that_makes_steps_are_no_phases_it_declares() {
    let mut s = Scene::default();
    s.hello(0, 0, &job(-9, -5, -2, 7));
    (1..5).for_each(|step| s.step(10 * step, 0, step));
    s.phase(50, 0, "init", "begin");
    s.phase(50, 0, "rendezvous", "end");
    assert!(s.state().phases.is_empty() && !s.state().declares && s.state().starting.is_none());
    // A launcher that meets the others anew has ended its ranks. A step shows that it has not.
    s.phase(60, 0, "rendezvous", "begin");
    assert!(s.state().starting.is_some() && s.state().run_starts().is_none());
    s.step(70, 0, 5);
    assert!(s.state().starting.is_none() && s.state().phases.is_empty());
}

#[test]
fn launchers_that_meet_again_begin_another_start() {
    let mut s = Scene::default();
    for (at, edge) in [(0, "begin"), (30, "end"), (900, "begin")] {
        s.say(at, &format!(r#""k":"phase","name":"rendezvous","phase":"{edge}""#));
    }
    assert_eq!(s.state().starting.as_ref().unwrap().since, Ts((T + 900) * 1000));
}

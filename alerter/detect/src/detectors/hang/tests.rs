//! Starts that do not come to their first step.

mod meetings;

use stepwatch_wire::Event;

use super::*;
use crate::{Input, Monitor};
use stepwatch_model::Detected;

/// When the first process says hello, in seconds.
const T: i64 = 1_795_227_416;
const WORLD: u32 = 16;

/// A run of sixteen ranks on four nodes.
#[derive(Default)]
struct Scene {
    monitor: Monitor,
    out: Vec<Detected>,
}

impl Scene {
    fn say(&mut self, at: i64, rank: u32, line: &str) {
        self.wait(at);
        let node = format!("n{}", 1 + rank / 4);
        let json = format!(r#"{{"run":"r","node":"{node}","rank":{rank},{line}}}"#);
        let mut e = Event::parse(json.as_bytes()).unwrap();
        e.ts = Some((T + at) as f64);
        let source = format!("{node}:9765");
        let now = Ts((T + at) * 1000);
        self.monitor.handle(now, Input::Event { source: &source, event: &e }, &mut self.out);
    }

    fn hello(&mut self, at: i64, ranks: core::ops::Range<u32>, attempt: u32) {
        for rank in ranks {
            let pid = 1000 * (attempt + 1) + rank;
            self.say(at, rank, &format!(r#""k":"hello","world":{WORLD},"pid":{pid}"#));
        }
    }

    fn init(&mut self, at: i64, ranks: core::ops::Range<u32>, edge: &str) {
        for rank in ranks {
            self.say(at, rank, &format!(r#""k":"phase","name":"init","phase":"{edge}""#));
        }
    }

    fn step(&mut self, at: i64, attempt: u32, step: i64) {
        for rank in 0..WORLD {
            self.say(
                at,
                rank,
                &format!(r#""k":"step","attempt":{attempt},"step":{step},"m":{{"loss":2.5}}"#),
            );
        }
    }

    /// Runs what is due until then.
    fn wait(&mut self, at: i64) {
        while let Some((due, _)) = self.monitor.next_deadline().filter(|(due, _)| due.0 <= (T + at) * 1000) {
            self.monitor.tick_one(due, &mut self.out);
        }
    }

    /// The hangs that were raised: the second, the severity, and what is said.
    fn hangs(&self) -> Vec<(i64, Severity, &Finding)> {
        let findings = self.out.iter().filter_map(|one| match one {
            Detected::Finding { finding, .. } => Some(&**finding),
            _ => None,
        });
        let raised = findings.filter(|v| v.kind == Kind::Hang && v.change == Change::Raise);
        raised.map(|v| (v.ts.0 / 1000 - T, v.severity, v)).collect()
    }

    fn times(&self) -> Vec<(i64, Severity)> {
        self.hangs().into_iter().map(|(at, severity, _)| (at, severity)).collect()
    }
}

fn suspects(v: &Finding) -> Vec<String> {
    v.suspects.iter().map(|s| format!("{}: {}", s.what(), s.why())).collect()
}

#[test]
fn a_start_of_which_nothing_is_known_is_a_ticket_and_then_a_page() {
    let mut s = Scene::default();
    s.hello(0, 0..WORLD, 0);
    s.wait(1799);
    assert!(s.times().is_empty(), "{:?}", s.times());
    s.wait(4000);
    assert_eq!(s.times(), [(1800, Severity::Ticket), (3600, Severity::Page)]);
    let why = s.hangs()[1].2.why.to_string();
    assert!(why.starts_with("no first step for 1h since its first hello"), "{why}");
}

#[test]
fn ranks_that_the_others_wait_for_are_a_page_that_names_them() {
    let mut s = Scene::default();
    s.hello(0, 0..14, 0);
    s.init(5, 0..14, "begin");
    s.wait(599);
    assert!(s.times().is_empty(), "{:?}", s.times());
    s.wait(5000);
    assert_eq!(s.times(), [(600, Severity::Page)]);
    let v = s.hangs()[0].2;
    let why = v.why.to_string();
    assert!(why.contains("in the process group since 2026-"), "{why}");
    assert!(why.contains("no hello came from 2 of 16 ranks: 14, 15; "), "{why}");
    let named = suspects(v);
    for (one, rank) in named.iter().zip(14..WORLD) {
        assert!(
            one.starts_with(&format!("rank {rank}: has not said hello, while 14 ranks have")),
            "{named:?}"
        );
    }
    assert_eq!(named.len(), 2);
}

#[test]
fn ranks_that_may_only_be_unheard_are_a_ticket() {
    let mut s = Scene::default();
    s.hello(0, 0..14, 0);
    s.wait(5000);
    assert_eq!(s.times(), [(600, Severity::Ticket), (3600, Severity::Page)]);
    let why = |i: usize| s.hangs()[i].2.why.to_string();
    assert!(why(0).contains("10m was allowed for the other ranks to come"), "{}", why(0));
    assert!(why(1).contains("1h was allowed to start"), "{}", why(1));
}

#[test]
fn ranks_that_still_come_are_waited_for() {
    let mut s = Scene::default();
    s.hello(0, 0..12, 0);
    s.init(5, 0..12, "begin");
    s.hello(500, 12..14, 0);
    s.wait(5000);
    assert_eq!(s.times(), [(1100, Severity::Page)]);
}

#[test]
fn a_rank_that_serves_the_others_is_not_accused() {
    let mut s = Scene::default();
    s.hello(0, 0..14, 0);
    s.init(5, 0..14, "begin");
    s.init(6, 1..14, "end");
    s.wait(5000);
    assert_eq!(s.times(), [(600, Severity::Page)]);
    let named = suspects(s.hangs()[0].2);
    assert!(
        named.iter().all(|one| one.starts_with("rank 14: ") || one.starts_with("rank 15: ")),
        "{named:?}"
    );
}

#[test]
fn once_the_ranks_have_met_none_is_missing() {
    let mut s = Scene::default();
    s.hello(0, 0..14, 0);
    s.init(5, 0..14, "begin");
    s.say(9, 0, r#""k":"phase","name":"init","phase":"end","nranks":16"#);
    s.wait(1808);
    assert!(s.times().is_empty(), "{:?}", s.times());
    // Half an hour since the last sign of progress.
    s.wait(1809);
    assert_eq!(s.times(), [(1809, Severity::Ticket)]);
    assert!(!s.hangs()[0].2.why.to_string().contains("no hello came"));
}

#[test]
fn a_trainer_that_reports_from_one_rank_misses_none() {
    let mut s = Scene::default();
    s.hello(0, 0..1, 0);
    s.init(5, 0..1, "begin");
    s.wait(1804);
    assert!(s.times().is_empty(), "{:?}", s.times());
}

/// A run that came to its first step after so long each time, and starts again at the second that
/// is returned.
fn started(times: &[i64]) -> (Scene, i64) {
    let (mut s, mut at) = (Scene::default(), 0);
    for (attempt, took) in (0..).zip(times) {
        s.hello(at, 0..WORLD, attempt);
        s.step(at + took, attempt, 1);
        (2..40).for_each(|step| s.step(at + took + step - 2, attempt, step));
        (0..WORLD).for_each(|rank| s.say(at + took + 50, rank, r#""k":"bye","code":1"#));
        at += took + 100;
    }
    s.out.clear();
    s.hello(at, 0..WORLD, times.len() as u32);
    (s, at)
}

#[test]
fn one_short_start_does_not_show_how_long_the_next_may_take() {
    let (mut s, at) = started(&[180]);
    s.say(at + 10, 0, r#""k":"ckpt","stage":"load","phase":"start""#);
    s.wait(at + 1809);
    assert!(s.times().is_empty(), "{:?}", s.times());
    s.wait(at + 5000);
    assert_eq!(s.times(), [(at + 1810, Severity::Ticket), (at + 3610, Severity::Page)]);
    let why = s.hangs()[0].2.why.to_string();
    assert!(why.contains("it is attempt 2, after one that came to step 39"), "{why}");
    assert!(why.contains("the start before took 3m"), "{why}");
}

#[test]
fn a_start_is_compared_with_several_starts_before() {
    let (mut s, at) = started(&[400, 400, 410, 400]);
    s.wait(at + 800);
    assert!(s.times().is_empty(), "{:?}", s.times());
    s.wait(at + 5000);
    // 0.95 * 3 is 2.85: 85 % of the way from 400 s to 410 s, twice.
    assert_eq!(s.times(), [(at + 817, Severity::Ticket), (at + 3600, Severity::Page)]);
    let why = s.hangs()[0].2.why.to_string();
    assert!(why.contains("4 starts before took 6m 50s at most, and half of them 6m 40s at most"), "{why}");
    assert!(s.hangs()[1].2.why.to_string().contains("1h was allowed to start"));
}

#[test]
fn a_load_in_a_run_that_starts_fast_is_waited_for() {
    let (mut s, at) = started(&[120, 120, 120, 120, 120]);
    s.say(at + 10, 0, r#""k":"ckpt","stage":"load","phase":"start""#);
    s.wait(at + 1809);
    assert!(s.times().is_empty(), "{:?}", s.times());
}

#[test]
fn a_declared_phase_is_waited_for() {
    let mut s = Scene::default();
    s.hello(0, 0..WORLD, 0);
    s.say(10, 0, r#""k":"phase","name":"prepare","phase":"begin""#);
    s.say(1500, 0, r#""k":"phase","name":"prepare","phase":"end""#);
    s.say(1510, 0, r#""k":"phase","name":"prepare","phase":"begin""#);
    // Three times the 1490 s that it took.
    s.wait(1510 + 4469);
    assert!(s.times().is_empty(), "{:?}", s.times());
    s.wait(1510 + 4470);
    assert_eq!(s.times(), [(1510 + 4470, Severity::Ticket)]);
}

#[test]
fn a_process_that_is_alone_and_never_made_a_step_is_no_page() {
    let mut s = Scene::default();
    s.say(0, 0, r#""k":"hello","world":1,"pid":7"#);
    s.wait(40_000);
    assert_eq!(s.times(), [(1800, Severity::Ticket)]);
    let mut s = Scene::default();
    s.say(0, 0, r#""k":"hello","role":"launcher","pid":7"#);
    s.wait(40_000);
    assert_eq!(s.times(), [(1800, Severity::Ticket)]);
}

#[test]
fn processes_that_are_only_found_may_be_no_training() {
    let mut s = Scene::default();
    for rank in 0..14 {
        s.say(0, rank, r#""k":"hello","world":16,"source":"discover""#);
    }
    s.wait(40_000);
    assert!(s.times().is_empty(), "{:?}", s.times());
    // Those of a run that has made steps are looked at.
    let mut s = Scene::default();
    s.hello(0, 0..WORLD, 0);
    s.step(100, 0, 1);
    s.step(102, 0, 2);
    (0..WORLD).for_each(|rank| s.say(110, rank, r#""k":"bye","code":1"#));
    (0..WORLD).for_each(|rank| s.say(200, rank, r#""k":"hello","world":16,"source":"discover""#));
    s.wait(40_000);
    assert_eq!(s.times(), [(2000, Severity::Ticket)]);
}

#[test]
fn an_evaluation_after_the_end_of_its_run_is_no_page() {
    let (mut s, at) = started(&[180]);
    (0..WORLD).for_each(|rank| s.say(at + 10, rank, r#""k":"bye","code":0"#));
    s.say(at + 100, 0, r#""k":"hello","world":1,"pid":9999"#);
    s.say(at + 101, 0, r#""k":"phase","name":"eval","phase":"begin""#);
    s.wait(at + 40_000);
    assert!(s.times().iter().all(|(_, severity)| *severity == Severity::Ticket), "{:?}", s.times());
}

#[test]
fn the_log_of_a_launcher_shows_that_a_run_starts() {
    let mut s = Scene::default();
    let json = r#"{"k":"phase","run":"r","node":"n1","name":"rendezvous","phase":"begin"}"#;
    let e = Event::parse(json.as_bytes()).unwrap();
    s.monitor.handle(Ts(T * 1000), Input::Event { source: "n1:9765", event: &e }, &mut s.out);
    s.wait(40_000);
    assert_eq!(s.times(), [(1800, Severity::Ticket)]);
    let why = s.hangs()[0].2.why.to_string();
    assert!(why.starts_with("no first step for 30m since its launcher began"), "{why}");
}

/// A run that has made steps starts again, and only these ranks come.
fn restart(ranks: core::ops::Range<u32>) -> Scene {
    let mut s = Scene::default();
    s.hello(0, 0..WORLD, 0);
    s.step(100, 0, 1);
    s.step(102, 0, 2);
    s.say(110, 0, r#""k":"bye","code":1"#);
    s.hello(200, ranks.clone(), 1);
    s.init(201, ranks, "begin");
    s.wait(4000);
    // Ten minutes since most of them were there.
    assert_eq!(s.times(), [(800, Severity::Page)]);
    s
}

#[test]
fn a_node_of_the_attempt_before_is_named_only_if_the_job_still_has_it() {
    let named = suspects(restart(0..12).hangs()[0].2);
    let rank = "rank 12: has not said hello, while 12 ranks have";
    assert!(named.iter().any(|one| one.starts_with(rank)), "{named:?}");
    assert!(named.iter().all(|one| !one.contains("n4")), "{named:?}");
    // Another rank said hello from there.
    let named = suspects(restart(0..13).hangs()[0].2);
    let rank = "rank 13 on n4: has not said hello, while 13 ranks have";
    assert!(named.iter().any(|one| one.starts_with(rank)), "{named:?}");
}

#[test]
fn a_node_that_cannot_be_reached_is_said_and_its_ranks_are_not_missing() {
    for (ranks, times) in [(0..12, 1801), (0..11, 600)] {
        let mut s = Scene::default();
        s.hello(0, 0..WORLD, 0);
        s.step(100, 0, 1);
        s.step(102, 0, 2);
        s.say(110, 0, r#""k":"bye","code":1"#);
        let down = Input::SourceDown { source: "n4:9765", reason: "connection refused" };
        s.monitor.handle(Ts((T + 120) * 1000), down, &mut s.out);
        s.out.clear();
        s.hello(200, ranks.clone(), 1);
        s.init(201, ranks, "begin");
        s.wait(200 + times - 1);
        assert!(s.times().is_empty(), "{:?}", s.times());
        s.wait(200 + times);
        let v = s.hangs()[0].2;
        let why = v.why.to_string();
        assert!(why.contains("4 ranks without a hello were on nodes whose exporters are lost: n4"), "{why}");
        assert_eq!(why.contains("no hello came from 1 of 16 ranks: 11; "), times == 600, "{why}");
    }
}

#[test]
fn a_step_ends_it() {
    let mut s = Scene::default();
    s.hello(0, 0..14, 0);
    s.init(5, 0..14, "begin");
    s.wait(700);
    s.hello(700, 14..WORLD, 0);
    s.step(720, 0, 1);
    let last = s.out.iter().rev().find_map(|one| match one {
        Detected::Finding { finding, .. } if finding.kind == Kind::Hang => Some(finding.change),
        _ => None,
    });
    assert_eq!(last, Some(Change::Clear));
}

/// The job `7` of the run has a node.
fn job(s: &mut Scene, at: i64, node: &str) {
    let json = format!(
        r#"{{"k":"health","name":"job","node":"{node}","code":1,"job":"7","runs":["r"],"gpus":["GPU-{node}"]}}"#
    );
    let mut e = Event::parse(json.as_bytes()).unwrap();
    e.ts = Some((T + at) as f64);
    let source = format!("{node}:9765");
    let now = Ts((T + at) * 1000);
    s.monitor.handle(now, Input::Event { source: &source, event: &e }, &mut s.out);
}

/// A run that has made steps starts again in a job of these nodes, and only these ranks come.
fn requeued(nodes: &[&str], ranks: core::ops::Range<u32>) -> Vec<String> {
    let mut s = Scene::default();
    s.hello(0, 0..WORLD, 0);
    s.step(100, 0, 1);
    s.step(102, 0, 2);
    s.say(110, 0, r#""k":"bye","code":1"#);
    nodes.iter().for_each(|node| job(&mut s, 190, node));
    s.hello(200, ranks.clone(), 1);
    s.init(201, ranks, "begin");
    s.wait(800);
    assert_eq!(s.times(), [(800, Severity::Page)]);
    suspects(s.hangs()[0].2)
}

#[test]
fn a_node_of_the_job_that_has_no_rank_is_named() {
    let named = requeued(&["n1", "n2", "n3", "n4"], 0..12);
    let held = "node n4: its 4 ranks have not said hello, while 12 others have";
    assert!(named.iter().any(|one| one.starts_with(held)), "{named:?}");
    // The job has another node in its place.
    let named = requeued(&["n1", "n2", "n3", "n5"], 0..12);
    assert!(named.iter().any(|one| one.starts_with("node n5: ")), "{named:?}");
    assert!(named.iter().all(|one| !one.contains("n4")), "{named:?}");
}

#[test]
fn a_spare_node_of_the_job_is_not_named() {
    let named = requeued(&["n1", "n2", "n3", "n4", "n5"], 0..15);
    assert!(named.iter().any(|one| one.starts_with("rank 15 on n4: ")), "{named:?}");
    assert!(named.iter().all(|one| !one.contains("n5")), "{named:?}");
}

#[test]
fn a_run_that_goes_on_with_fewer_ranks_misses_none() {
    let mut s = Scene::default();
    s.hello(0, 0..WORLD, 0);
    s.step(100, 0, 1);
    s.step(102, 0, 2);
    (0..WORLD).for_each(|rank| s.say(110, rank, r#""k":"bye","code":1"#));
    for rank in 0..12 {
        s.say(200, rank, &format!(r#""k":"hello","world":12,"pid":{}"#, 5000 + rank));
    }
    s.init(201, 0..12, "begin");
    s.wait(2000);
    assert!(s.times().is_empty(), "{:?}", s.times());
}

#[test]
fn a_start_goes_on_over_a_restart_of_ours() {
    let mut s = Scene::default();
    s.hello(0, 0..14, 0);
    s.init(5, 0..14, "begin");
    s.wait(300);
    let parts: Vec<_> =
        s.monitor.take_dirty().into_iter().filter_map(|(key, part)| Some((key, part?))).collect();
    let (monitor, unusable) = Monitor::restore(std::sync::Arc::default(), parts);
    assert!(unusable.is_empty(), "{unusable:?}");
    let run = monitor.run("r").unwrap();
    assert_eq!(run.state.missing_ranks(), [14, 15]);
    assert!(run.state.run_starts().is_some_and(|s| s.waits_in_init() && s.since == Ts(T * 1000)));
}

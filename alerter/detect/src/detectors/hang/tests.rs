//! Starts that do not come to their first step.

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
    assert_eq!(s.times(), [(600, Severity::Ticket), (1800, Severity::Page)]);
}

#[test]
fn once_the_ranks_have_met_none_is_missing() {
    let mut s = Scene::default();
    s.hello(0, 0..14, 0);
    s.init(5, 0..14, "begin");
    s.init(9, 0..14, "end");
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

#[test]
fn a_start_is_compared_with_the_starts_before() {
    let mut s = Scene::default();
    s.hello(0, 0..WORLD, 0);
    s.step(400, 0, 1);
    (2..40).for_each(|step| s.step(398 + step, 0, step));
    s.say(440, 0, r#""k":"bye","code":1"#);
    // A start does not hang by the pace of the attempt before.
    s.hello(500, 0..WORLD, 1);
    s.wait(500 + 799);
    assert!(s.times().is_empty(), "{:?}", s.times());
    s.wait(4000);
    assert_eq!(s.times(), [(500 + 800, Severity::Ticket), (500 + 1600, Severity::Page)]);
    let v = s.hangs()[0].2;
    let why = v.why.to_string();
    assert!(why.contains("the start before took 6m 40s"), "{why}");
    assert_eq!((v.value, v.expected), (800.0, 800.0));
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
fn a_node_that_lacks_all_its_ranks_is_named_as_a_node() {
    let named = suspects(restart(0..12).hangs()[0].2);
    let node = "node n4: its 4 ranks have not said hello, while 12 others have";
    assert!(named.iter().any(|one| one.starts_with(node)), "{named:?}");
    let named = suspects(restart(0..13).hangs()[0].2);
    let rank = "rank 13 on n4: has not said hello, while 13 ranks have";
    assert!(named.iter().any(|one| one.starts_with(rank)), "{named:?}");
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

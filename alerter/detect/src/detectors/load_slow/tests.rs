//! A run of four nodes that loads its checkpoint.

use std::sync::Arc;

use super::*;
use crate::Run;
use stepwatch_wire::Event;

const START: i64 = 1_795_227_416_000;

/// Four nodes of two ranks each, that load from second 0 on.
struct Job {
    run: Run,
    secs: i64,
    out: Vec<Finding>,
}

impl Job {
    fn new() -> Self {
        let mut job = Self { run: Run::new("r", Ts(START), &Arc::default()), secs: 0, out: Vec::new() };
        for rank in 0..8 {
            job.say(rank, r#""k":"hello","world":8"#).load(rank, "start", "");
        }
        job
    }

    fn say(&mut self, rank: u32, what: &str) -> &mut Self {
        let node = rank / 2;
        let event = format!(r#"{{"run":"r","rank":{rank},"node":"n{node}",{what}}}"#);
        let mut e = Event::parse(event.as_bytes()).unwrap();
        let now = Ts(START + 1000 * self.secs);
        e.ts = Some(now.as_secs_f64());
        self.run.event(now, "n:1", &e, &mut self.out);
        self
    }

    fn load(&mut self, rank: u32, phase: &str, more: &str) -> &mut Self {
        self.say(rank, &format!(r#""k":"ckpt","stage":"load","phase":"{phase}"{more}"#))
    }

    /// These ranks end their loads of so many GB at this second.
    fn end(&mut self, ranks: core::ops::Range<u32>, secs: i64, gigabytes: f64) -> &mut Self {
        self.secs = secs;
        for rank in ranks {
            let bytes = gigabytes * 1e9;
            self.load(rank, "end", &format!(r#","bytes":{bytes}"#));
        }
        self
    }

    fn at(&mut self, secs: i64) -> &mut Self {
        self.secs = secs;
        self.run.look(Ts(START + 1000 * secs), &mut self.out);
        self
    }

    /// When a detector that looks at this second looks again.
    fn due(&self) -> Option<i64> {
        let (mut detector, c) = (LoadSlow::default(), Config::default());
        let view = RunAt { now: Ts(START + 1000 * self.secs), run: &self.run.state };
        detector.look(&c, view, &mut Vec::new());
        detector.deadline(&c, &self.run.state).map(|at| at.0 - START)
    }

    fn steps(&mut self) {
        for step in 1..=5 {
            self.secs += 10;
            (0..8).for_each(|rank| {
                self.say(rank, &format!(r#""k":"step","step":{step},"m":{{"loss":2.0}}"#));
            });
        }
    }

    fn found(&self) -> Vec<&Finding> {
        self.out.iter().filter(|v| v.kind == Kind::LoadSlow).collect()
    }

    fn changes(&self) -> Vec<(Change, Severity)> {
        self.found().into_iter().map(|v| (v.change, v.severity)).collect()
    }
}

const TICKET: (Change, Severity) = (Change::Raise, Severity::Ticket);
const PAGE: (Change, Severity) = (Change::Raise, Severity::Page);
const CLEAR: (Change, Severity) = (Change::Clear, Severity::Info);

#[test]
fn a_node_that_still_loads_is_a_ticket_and_then_a_page() {
    let mut job = Job::new();
    assert_eq!(job.due(), None);
    job.end(0..6, 300, 45.0);
    assert_eq!(job.due(), Some(420_000));
    job.at(420);
    assert_eq!(job.due(), Some(600_001));
    job.at(599);
    assert!(job.found().is_empty(), "{:?}", job.found());
    job.at(601);
    assert_eq!(job.changes(), [TICKET]);
    assert_eq!(
        job.found()[0].why,
        "node n3 has been loading the checkpoint for 10m 1s (at most 0.1498 GB/s so far), 5m at 0.3 GB/s is \
         usual among 4; all 8 GPUs wait for it, 5m 1s so far: 0.7 GPU hours"
    );
    let suspect = &job.found()[0].suspects[0];
    assert_eq!(
        (suspect.what(), suspect.why()),
        (
            "node n3".to_owned(),
            "has been loading the checkpoint for 10m 1s, 5m is usual: at most 0.1498 GB/s so far, usually 0.3 GB/s"
                .to_owned()
        )
    );
    job.at(899).at(901);
    assert_eq!(job.changes(), [TICKET, PAGE]);
    job.end(6..8, 3600, 45.0);
    assert_eq!(job.changes(), [TICKET, PAGE]);
    job.steps();
    assert_eq!(job.changes(), [TICKET, PAGE, CLEAR]);
    assert_eq!(
        job.found()[2].why,
        "the load of the checkpoint is over; all 8 GPUs waited 55m for it: 7.3 GPU hours"
    );
}

#[test]
fn a_node_that_still_loads_has_no_rate_where_nobody_reports_sizes() {
    let mut job = Job::new();
    job.secs = 300;
    for rank in 0..6 {
        job.load(rank, "end", "");
    }
    job.at(601);
    let ticket = job.found()[0];
    let start = "node n3 has been loading the checkpoint for 10m 1s, 5m is usual among 4; ";
    assert!(ticket.why.to_string().starts_with(start), "{}", ticket.why);
    assert_eq!(ticket.suspects[0].why(), "has been loading the checkpoint for 10m 1s, 5m is usual");
}

#[test]
fn the_rate_of_a_node_that_still_loads_is_bounded_by_the_largest_part_of_the_others() {
    let mut job = Job::new();
    job.end(0..2, 300, 30.0).end(2..4, 300, 45.0).end(4..6, 300, 60.0).at(601);
    let why = job.found()[0].why.to_string();
    assert!(why.contains("10m 1s (at most 0.1997 GB/s so far), 5m at 0.3 GB/s is usual"), "{why}");
}

#[test]
fn two_hosts_that_took_an_hour_are_named_with_their_rates() {
    let mut job = Job::new();
    job.end(0..4, 360, 360.0).end(4..8, 3600, 360.0);
    let page = job.found()[0];
    assert_eq!((page.severity, page.value, page.expected), (Severity::Page, 3600.0, 360.0));
    let mut job = Job::new();
    job.run.state.source_down(Ts(START), "n:2", None, "refused");
    job.end(0..4, 360, 360.0).end(4..8, 3600, 360.0);
    assert_eq!(job.changes(), [PAGE], "nobody knew before");
    assert_eq!(
        job.found()[0].why,
        "node n2 loaded the checkpoint in 1h (720 GB at 0.2 GB/s), 6m at 2 GB/s is usual among 4; also slow: \
         node n3 1h (720 GB at 0.2 GB/s); all 8 GPUs wait for it, 54m so far: 7.2 GPU hours"
    );
    let suspects: Vec<String> = job.found()[0].suspects.iter().map(|s| s.why()).collect();
    assert_eq!(suspects, ["loaded the checkpoint in 1h, 6m is usual: 0.2 GB/s, usually 2 GB/s"; 2]);
}

#[test]
fn what_is_alike_or_reads_more_is_fine() {
    let mut job = Job::new();
    job.end(0..2, 100, 45.0).end(2..4, 150, 45.0).end(4..6, 190, 45.0).end(6..8, 219, 45.0);
    assert!(job.found().is_empty(), "{:?}", job.found());
    let mut job = Job::new();
    job.end(2..8, 100, 10.0).end(0..1, 110, 10.0).end(1..2, 200, 50.0);
    job.steps();
    assert!(job.found().is_empty(), "less than two minutes: {:?}", job.found());
    let mut job = Job::new();
    job.run.state.source_down(Ts(START), "n:2", None, "refused");
    job.end(2..8, 100, 10.0).end(0..2, 500, 50.0);
    assert!(job.found().is_empty(), "five times as much: {:?}", job.found());
    let mut job = Job::new();
    job.end(0..2, 60, 10.0).end(2..8, 3600, 10.0);
    assert!(job.found().is_empty(), "most are slow: {:?}", job.found());
}

#[test]
fn nothing_is_known_of_a_load_while_the_run_goes_on_or_a_source_is_lost() {
    let mut job = Job::new();
    job.end(0..6, 60, 10.0).steps();
    job.at(2000);
    assert!(job.found().is_empty() && job.due().is_none(), "its end was lost: {:?}", job.found());
    let mut job = Job::new();
    job.end(0..6, 60, 10.0).run.state.source_down(Ts(START), "n:2", None, "refused");
    job.at(2000);
    assert!(job.found().is_empty() && job.due().is_none(), "{:?}", job.found());
    job.run.state.source_up(Ts(START + 2_000_000), "n:2");
    assert_eq!(job.due(), Some(2_180_001), "from then on");
    job.at(2179);
    assert!(job.found().is_empty(), "{:?}", job.found());
    job.at(2181);
    assert_eq!(job.changes(), [TICKET], "it may have ended unheard");
}

#[test]
fn ranks_that_end_together_are_as_slow_as_the_last_that_begins() {
    let mut job = Job { run: Run::new("r", Ts(START), &Arc::default()), secs: 0, out: Vec::new() };
    for (ranks, secs) in [(0..4, 0), (4..8, 660)] {
        job.secs = secs;
        for rank in ranks {
            job.load(rank, "start", "");
        }
    }
    job.end(0..8, 780, 10.0).at(2000);
    assert!(job.found().is_empty() && job.due().is_none(), "{:?}", job.found());
    // The last one only begins late.
    let mut job = Job { run: Run::new("r", Ts(START), &Arc::default()), secs: 0, out: Vec::new() };
    for rank in 0..6 {
        job.load(rank, "start", "");
    }
    job.end(0..6, 300, 10.0).secs = 600;
    for rank in 6..8 {
        job.load(rank, "start", "");
    }
    job.at(890).end(6..8, 900, 10.0).at(2000);
    assert!(job.found().is_empty(), "{:?}", job.found());
}

#[test]
fn ranks_of_another_start_or_world_are_no_places() {
    let mut job = Job::new();
    for rank in 0..8 {
        job.say(rank, r#""k":"hello","world":8,"pid":1"#);
    }
    job.end(0..6, 300, 45.0).secs = 400;
    for rank in 0..6 {
        job.say(rank, r#""k":"hello","world":8,"pid":7"#);
    }
    job.at(1500);
    assert!(job.found().is_empty(), "what loaded is gone: {:?}", job.found());
    for rank in 0..6 {
        job.load(rank, "start", "");
    }
    job.end(0..6, 1800, 45.0).at(5000);
    assert!(job.found().is_empty(), "two ranks are left out: {:?}", job.found());
    let mut job = Job::new();
    job.end(0..6, 300, 45.0).run.state.world = Some(6);
    job.at(5000);
    assert!(job.found().is_empty(), "{:?}", job.found());
}

#[test]
fn another_load_of_the_same_start_is_compared_with_its_like() {
    let mut job = Job::new();
    job.end(0..8, 300, 45.0).load(0, "start", "").at(3000);
    assert!(job.found().is_empty(), "one node loads more: {:?}", job.found());
    job.end(0..1, 3600, 45.0).at(5000);
    assert!(job.found().is_empty(), "{:?}", job.found());
}

#[test]
fn what_does_not_change_is_not_gone_through_again() {
    let mut job = Job::new();
    job.end(0..6, 300, 45.0).at(420);
    let (mut detector, c) = (LoadSlow::default(), Config::default());
    let mut look = |job: &Job, secs: i64| {
        let mut out = Vec::new();
        let now = Ts(START + 1000 * secs);
        detector.look(&c, RunAt { now, run: &job.run.state }, &mut out);
        (out.len(), detector.reported.as_ref().and_then(|r| r.watch.as_ref()?.due).map(|due| due.0 - START))
    };
    assert_eq!(look(&job, 420), (0, Some(600_001)));
    job.run.state.world = Some(2);
    assert_eq!(look(&job, 500), (0, Some(600_001)), "it is not due");
    assert_eq!(look(&job, 601), (0, None), "one node is too few");
}

/// A run of so many nodes with one rank each that is restarted again and again.
struct Restarts {
    run: Run,
    secs: i64,
    nodes: u32,
    step: i64,
    out: Vec<Finding>,
}

impl Restarts {
    fn new(nodes: u32) -> Self {
        Self { run: Run::new("r", Ts(START), &Arc::default()), secs: 0, nodes, step: 0, out: Vec::new() }
    }

    fn say(&mut self, rank: u32, what: &str) {
        let event = format!(r#"{{"run":"r","rank":{rank},"node":"n{rank}",{what}}}"#);
        let mut e = Event::parse(event.as_bytes()).unwrap();
        let now = Ts(START + 1000 * self.secs);
        e.ts = Some(now.as_secs_f64());
        self.run.event(now, "n:1", &e, &mut self.out);
    }

    fn begin(&mut self) {
        let (pid, world) = (1000 + self.secs, self.nodes);
        self.secs += 100;
        for rank in 0..self.nodes {
            self.say(rank, &format!(r#""k":"hello","world":{world},"pid":{pid}"#));
        }
        for rank in 0..self.nodes {
            self.say(rank, r#""k":"ckpt","stage":"load","phase":"start""#);
        }
    }

    fn end(&mut self, secs: i64, gigabytes: Option<f64>) {
        self.secs += secs;
        let bytes = gigabytes.map(|gigabytes| format!(r#","bytes":{}"#, gigabytes * 1e9)).unwrap_or_default();
        for rank in 0..self.nodes {
            self.say(rank, &format!(r#""k":"ckpt","stage":"load","phase":"end"{bytes}"#));
        }
    }

    fn steps(&mut self) {
        for _ in 0..5 {
            self.secs += 10;
            self.step += 1;
            let step = self.step;
            for rank in 0..self.nodes {
                self.say(rank, &format!(r#""k":"step","step":{step},"m":{{"loss":2.0}}"#));
            }
        }
    }

    /// A start whose load takes so long.
    fn start(&mut self, secs: i64, gigabytes: Option<f64>) -> &mut Self {
        self.begin();
        self.end(secs, gigabytes);
        self.steps();
        self
    }

    fn wait(&mut self, secs: i64) {
        self.secs += secs;
        self.run.look(Ts(START + 1000 * self.secs), &mut self.out);
    }

    fn found(&self) -> Vec<(Change, Severity, String)> {
        let of_kind = self.out.iter().filter(|v| v.kind == Kind::LoadSlow);
        of_kind.map(|v| (v.change, v.severity, v.why.to_string())).collect()
    }
}

#[test]
fn a_run_of_one_or_two_hosts_is_compared_with_its_earlier_loads() {
    let mut r = Restarts::new(1);
    r.start(300, Some(600.0)).start(320, Some(600.0));
    assert!(r.found().is_empty(), "{:?}", r.found());
    r.start(3600, Some(600.0));
    let found = r.found();
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!((found[0].0, found[0].1, found[1].0), (Change::Raise, Severity::Page, Change::Clear));
    let begin = "node n0 loaded the checkpoint in 1h (600 GB at 0.1667 GB/s), 5m 20s at 2 GB/s is usual in 2 earlier \
                 loads of the run; ";
    assert!(found[0].2.starts_with(begin), "{}", found[0].2);

    let mut r = Restarts::new(2);
    r.start(300, None).start(300, None).begin();
    r.wait(599);
    assert!(r.found().is_empty(), "{:?}", r.found());
    r.wait(2);
    let found = r.found();
    let begin = "2 of 2 nodes have been loading the checkpoint for 10m 1s, 5m is usual in 2 earlier loads of the run; \
                 all are slow: look at the storage that it is read from; ";
    assert!(found.len() == 1 && found[0].1 == Severity::Ticket && found[0].2.starts_with(begin), "{found:?}");
    r.wait(400);
    assert_eq!(r.found().last().map(|v| v.1), Some(Severity::Page));
}

#[test]
fn hosts_that_are_all_equally_slow_are_told_by_the_earlier_loads() {
    let mut r = Restarts::new(4);
    r.start(300, Some(45.0)).start(300, Some(45.0)).start(1000, Some(45.0));
    let found = r.found();
    let begin =
        "4 of 4 nodes loaded the checkpoint in 16m 40s (45 GB at 0.045 GB/s), 5m at 0.15 GB/s is usual";
    assert!(found.len() == 2 && found[0].2.starts_with(begin), "{found:?}");
    assert!(r.out.iter().filter(|v| v.kind == Kind::LoadSlow).all(|v| v.suspects.is_empty()));
}

#[test]
fn a_load_is_not_compared_with_too_few_or_with_others() {
    let quiet = |r: &Restarts, why: &str| assert!(r.found().is_empty(), "{why}: {:?}", r.found());
    let mut r = Restarts::new(2);
    r.start(300, Some(45.0)).start(3600, Some(45.0));
    quiet(&r, "one earlier load");
    let mut r = Restarts::new(2);
    r.start(300, Some(45.0)).start(300, Some(45.0)).start(3600, Some(450.0));
    quiet(&r, "ten times as much");
    let mut r = Restarts::new(2);
    r.start(20, Some(45.0)).start(20, Some(45.0)).start(130, Some(45.0));
    quiet(&r, "less than two minutes");
    let mut r = Restarts::new(2);
    r.start(300, None).start(300, None);
    r.nodes = 1;
    r.start(3600, None);
    quiet(&r, "another number of nodes");
}

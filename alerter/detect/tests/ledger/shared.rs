//! For which run the time of an allocation counts, and until when: jobs with several runs, jobs
//! that are over, pods, and runs without a job.

use std::sync::Arc;

use stepwatch_detect::run::{TimeState, Totals};
use stepwatch_detect::{Input, Monitor};
use stepwatch_model::time::Ts;
use stepwatch_wire::Event;

/// Second 0.
const BEGAN: i64 = 1_700_000_000;
const DAY: i64 = 86_400;

struct Cluster {
    monitor: Monitor,
    /// The number of steps that were made.
    steps: i64,
}

impl Cluster {
    fn new() -> Self {
        Self { monitor: Monitor::new(Arc::default()), steps: 0 }
    }

    fn take(&mut self, secs: i64, source: &str, event: &Event) {
        let now = Ts((BEGAN + secs) * 1000);
        while self.monitor.tick_one(now, &mut Vec::new()) {}
        self.monitor.handle(now, Input::Event { source, event }, &mut Vec::new());
    }

    /// An event of a node, and of a rank if it is one of a run.
    fn say(&mut self, secs: i64, (node, rank): (&str, u32), event: &str) {
        let mut event = Event::parse(format!("{{{event}}}").as_bytes()).unwrap();
        (event.ts, event.node) = (Some((BEGAN + secs) as f64), Some(node.to_owned()));
        event.rank = event.run.as_ref().map(|_| rank);
        self.take(secs, &format!("{node}:9765"), &event);
    }

    fn job(&mut self, secs: i64, node: &str, rest: &str) {
        self.say(secs, (node, 0), &format!(r#""k":"health","name":"job",{rest}"#));
    }

    fn hello(&mut self, secs: i64, run: &str, rest: &str) {
        self.say(secs, ("n1", 0), &format!(r#""k":"hello","run":"{run}","world":1,"devices":8{rest}"#));
    }

    /// Ten steps, one every ten seconds.
    fn steps(&mut self, secs: i64, run: &str) {
        (0..=10).for_each(|n| self.step(secs + 10 * n, run));
    }

    fn step(&mut self, secs: i64, run: &str) {
        let event = self.next_step(run);
        self.say(secs, ("n1", 0), &event);
    }

    fn next_step(&mut self, run: &str) -> String {
        self.steps += 1;
        format!(r#""k":"step","run":"{run}","step":{},"m":{{"loss":2.0}}"#, self.steps)
    }

    fn bye(&mut self, secs: i64, run: &str, code: i64) {
        self.say(secs, ("n1", 0), &format!(r#""k":"bye","run":"{run}","code":{code}"#));
    }

    fn totals(&self, run: &str) -> Totals {
        self.monitor.run(run).map(|run| run.state.ledger.totals()).unwrap_or_default()
    }

    /// The seconds of all GPUs in all states.
    fn gpu_seconds(&self, run: &str) -> i64 {
        let totals = self.totals(run);
        TimeState::ALL.into_iter().map(|state| totals.gpu_millis(state)).sum::<i64>() / 1000
    }
}

fn allocated(secs: i64) -> String {
    format!(r#","job":"7","allocated":{}"#, BEGAN + secs)
}

const HELD: &str = r#""job":"7","code":1,"attested":true"#;
const LEFT: &str = r#""job":"7","code":0,"attested":true"#;

#[test]
fn of_runs_that_follow_each_other_in_a_job_no_time_counts_twice() {
    let mut c = Cluster::new();
    c.hello(100, "a", &allocated(0));
    c.job(101, "n1", HELD);
    c.steps(200, "a");
    c.bye(310, "a", 0);
    c.hello(350, "b", &allocated(0));
    c.steps(400, "b");
    c.bye(510, "b", 0);
    c.hello(520, "c", &allocated(0));
    c.steps(530, "c");
    c.bye(640, "c", 1);
    c.job(700, "n1", LEFT);
    let each = ["a", "b", "c"].map(|run| c.gpu_seconds(run));
    assert_eq!(each, [8 * 350, 8 * 170, 8 * 180], "all together are the 700 s of the job");
}

#[test]
fn a_run_of_a_job_counts_for_no_more_once_another_one_runs_beside_it() {
    let mut c = Cluster::new();
    c.hello(100, "a", &allocated(0));
    c.job(101, "n1", HELD);
    c.hello(110, "b", &allocated(0));
    for n in 0..=10 {
        c.step(200 + 10 * n, "a");
        c.step(205 + 10 * n, "b");
    }
    c.bye(310, "b", 0);
    c.bye(410, "a", 0);
    c.job(700, "n1", LEFT);
    assert_eq!((c.gpu_seconds("a"), c.gpu_seconds("b")), (8 * 410, 8 * (700 - 110)));
}

#[test]
fn a_job_that_is_over_holds_nothing_whatever_survives_it() {
    let mut c = Cluster::new();
    c.hello(100, "a", &allocated(0));
    c.job(101, "n1", HELD);
    c.steps(200, "a");
    c.bye(310, "a", 1);
    c.job(400, "n1", r#""job":"7","code":1,"over":true,"pids":[4711]"#);
    c.job(3000, "n1", LEFT);
    assert_eq!(c.gpu_seconds("a"), 8 * 400);
}

#[test]
fn a_requeue_is_not_counted_if_the_job_was_seen_to_leave_all_its_nodes() {
    for (attested, between) in [(true, 0), (false, 4000)] {
        let say = |text: &str| if attested { text.to_owned() } else { text.replace("attested", "other") };
        let mut c = Cluster::new();
        c.hello(100, "a", &allocated(0));
        c.job(101, "n1", &say(HELD));
        c.steps(200, "a");
        c.bye(310, "a", 1);
        c.job(320, "n1", &say(LEFT));
        c.hello(4320, "a", r#","job":"7""#);
        c.steps(4400, "a");
        c.bye(4520, "a", 0);
        assert_eq!(c.gpu_seconds("a"), 8 * (320 + between + 200), "{attested}");
    }
}

#[test]
fn a_process_that_connects_long_after_it_began_may_have_trained_meanwhile() {
    for (started, begun) in [(17_900, 0), (60, 18_000)] {
        let mut c = Cluster::new();
        c.hello(18_000, "a", &format!(r#"{},"started":{}"#, allocated(0), BEGAN + started));
        c.steps(18_100, "a");
        c.bye(18_200, "a", 0);
        assert_eq!(c.gpu_seconds("a"), 8 * (18_200 - begun), "{started}");
    }
}

#[test]
fn without_a_job_a_long_time_between_attempts_has_no_price() {
    for (away, counted) in [(600, 600), (2 * DAY, 0)] {
        let mut c = Cluster::new();
        c.hello(100, "a", "");
        c.steps(200, "a");
        c.bye(310, "a", 1);
        c.hello(310 + away, "a", "");
        c.steps(400 + away, "a");
        c.bye(510 + away, "a", 0);
        assert_eq!(c.totals("a").seconds(TimeState::Unknown), counted as f64);
        assert_eq!(c.gpu_seconds("a"), 8 * (210 + counted + 200));
    }
}

#[test]
fn a_run_that_names_no_job_has_that_in_which_its_node_sees_it() {
    let mut c = Cluster::new();
    c.hello(100, "a", "");
    c.job(101, "n1", r#""job":"7","code":1,"attested":true,"runs":["a"]"#);
    c.steps(200, "a");
    c.bye(310, "a", 0);
    c.job(320, "n1", r#""job":"7","code":1,"attested":true"#);
    c.job(500, "n1", LEFT);
    assert_eq!(c.gpu_seconds("a"), 8 * 400);
}

/// A run of two ranks, in a pod on each of two nodes.
struct Pods(Cluster);

impl Pods {
    fn new() -> Self {
        let mut c = Cluster::new();
        let up = Input::SourceUp { source: "cluster:9765", many_nodes: true };
        c.monitor.handle(Ts(BEGAN * 1000), up, &mut Vec::new());
        Self(c)
    }

    fn each(&mut self, secs: i64, event: &str) {
        (0..2).for_each(|rank| self.0.say(secs, (["n1", "n2"][rank], rank as u32), event));
    }

    fn kubelet(&mut self, secs: i64, n: usize, code: i64, runs: &str) {
        let node = ["n1", "n2"][n];
        let rest = format!(
            r#""job":"ml/r-{n}","code":{code},"scheduler":"kubernetes","gpus":["GPU-{n}"],"runs":[{runs}]"#
        );
        self.0.job(secs, node, &rest);
    }

    /// What the cluster says of a pod, as at each of its passes.
    fn told(&mut self, secs: i64, n: usize, given: i64) {
        let text = format!(
            r#"{{"k":"health","node":"head","name":"pod","about":"{}","pod":"ml/r-{n}","allocated":{}}}"#,
            ["n1", "n2"][n],
            BEGAN + given
        );
        let mut event = Event::parse(text.as_bytes()).unwrap();
        event.ts = Some((BEGAN + secs) as f64);
        self.0.take(secs, "cluster:9765", &event);
    }

    fn step(&mut self, secs: i64) {
        let event = self.0.next_step("r");
        self.each(secs, &event);
    }

    /// An attempt whose pods get their nodes at 50 s and 80 s, and leave them at 320 s and 330 s.
    fn attempt(&mut self, from: i64, code: i64) {
        self.each(from + 100, r#""k":"hello","run":"r","world":2"#);
        (0..2).for_each(|n| self.kubelet(from + 105, n, 1, r#""r""#));
        self.told(from + 110, 0, from + 50);
        (0..=10).for_each(|n| self.step(from + 200 + 10 * n));
        self.told(from + 301, 0, from + 50);
        self.told(from + 301, 1, from + 80);
        self.each(from + 310, &format!(r#""k":"bye","run":"r","code":{code}"#));
        self.kubelet(from + 315, 0, 1, "");
        self.kubelet(from + 320, 0, 0, "");
        self.kubelet(from + 330, 1, 0, "");
    }
}

#[test]
fn pods_count_from_when_the_last_has_its_node_until_the_last_has_left_it() {
    let mut pods = Pods::new();
    pods.attempt(0, 1);
    pods.attempt(2000, 0);
    // And not from one to the other.
    assert_eq!(pods.0.gpu_seconds("r"), 2 * 2 * (330 - 80));
    assert_eq!(pods.0.totals("r").seconds(TimeState::Starting), 2.0 * 120.0);
}

#[test]
fn pods_of_which_one_is_not_told_of_count_from_the_first_report() {
    let mut pods = Pods::new();
    pods.each(100, r#""k":"hello","run":"r","world":2"#);
    (0..2).for_each(|n| pods.kubelet(105, n, 1, r#""r""#));
    pods.told(110, 0, 50);
    pods.step(200);
    pods.step(210);
    assert_eq!(pods.0.gpu_seconds("r"), 2 * 110);
    pods.told(230, 1, 80);
    assert_eq!(pods.0.gpu_seconds("r"), 2 * 130, "and now both are told of");
}

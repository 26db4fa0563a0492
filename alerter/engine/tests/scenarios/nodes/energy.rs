//! The energy of GPUs is that of the run that has them.

use stepwatch_detect::run::Counts;
use stepwatch_wire::{Event, Kind as EventKind, Value};

use super::bench::{Bench, reading};

const WATTS: f64 = 500.0;

fn gpu(node: &str, index: u32) -> String {
    format!("GPU-{node}-{index}")
}

/// A run of so many GPUs whose node has eight, each of which draws as much.
struct Node {
    b: Bench,
    joules: f64,
}

impl Node {
    fn with_world(world: u32) -> Self {
        Self::of(Event { world: Some(world), ..Event::new(EventKind::Hello) })
    }

    fn of(hello: Event) -> Self {
        let mut b = Bench::new();
        b.feed(Event { run: Some("llama".into()), rank: Some(0), node: Some("n1".into()), ..hello });
        let mut node = Self { b, joules: 1e9 };
        node.b.steps("llama", &["n1"], 20);
        node.read();
        node
    }

    fn read(&mut self) {
        for index in 0..8 {
            self.b.feed(reading("n1", index, &[("power_watts", WATTS), ("energy_joules", self.joules)]));
        }
    }

    fn wait(&mut self, secs: i64) {
        self.b.steps("llama", &["n1"], secs / 2);
        self.joules += WATTS * secs as f64;
        self.read();
    }

    fn job(&mut self, id: &str, gpus: std::ops::Range<u32>, runs: &[&str]) {
        self.job_with_unnamed(id, gpus, runs, 0.0);
    }

    fn job_with_unnamed(&mut self, id: &str, gpus: std::ops::Range<u32>, runs: &[&str], unnamed: f64) {
        let mut e = Event { name: Some("job".into()), code: Some(1), ..Event::new(EventKind::Health) };
        let list = |names: Vec<String>| Value::List(names.into_iter().map(Value::Text).collect());
        e.node = Some("n1".into());
        e.extra.insert("job".into(), Value::Text(id.into()));
        e.extra.insert("gpus".into(), list(gpus.map(|index| gpu("n1", index)).collect()));
        e.extra.insert("runs".into(), list(runs.iter().map(|run| (*run).to_owned()).collect()));
        e.extra.insert("unnamed_gpus".into(), Value::Number(unnamed));
        self.b.feed(e);
    }

    fn gpus(&self) -> Option<u32> {
        self.b.engine.runs().find(|r| r.state.name == "llama").and_then(|run| run.state.gpus())
    }

    /// Joules that are counted, and the seconds of GPUs that they are of.
    fn used(&self, run: &str) -> (f64, i64) {
        let Some(run) = self.b.engine.runs().find(|r| r.state.name == run) else { panic!("no run {run}") };
        let Counts { energy, .. } = *run.state.ledger.totals().counts();
        (energy.joules, energy.gpu_ms / 1000)
    }
}

#[test]
fn a_run_that_has_the_whole_node_used_its_energy() {
    let mut node = Node::with_world(8);
    node.wait(10);
    node.wait(20);
    assert_eq!(node.used("llama"), (8.0 * 30.0 * WATTS, 240));
}

#[test]
fn nobody_knows_which_gpus_a_smaller_run_has_unless_its_job_says_so() {
    let mut node = Node::with_world(4);
    node.wait(10);
    assert_eq!(node.used("llama"), (0.0, 0));
    node.job("7", 0..4, &["llama"]);
    node.job("8", 4..8, &["another"]);
    node.wait(10);
    assert_eq!(node.used("llama"), (4.0 * 10.0 * WATTS, 40));
}

#[test]
fn a_process_has_the_gpus_that_it_declares_or_else_those_that_its_job_holds_for_it_alone() {
    let mut hello = Event { world: Some(1), ..Event::new(EventKind::Hello) };
    hello.extra.insert("devices".into(), Value::Number(8.0));
    let mut node = Node::of(hello);
    node.wait(10);
    assert_eq!((node.gpus(), node.used("llama")), (Some(8), (8.0 * 10.0 * WATTS, 80)));

    let mut node = Node::with_world(1);
    assert_eq!(node.gpus(), None, "nobody says how many it has");
    node.job("7", 0..4, &["llama"]);
    assert_eq!(node.gpus(), Some(4));
    node.b.restart();
    assert_eq!(node.gpus(), Some(4));
    node.job("7", 0..4, &["llama", "another"]);
    assert_eq!(node.gpus(), None, "another run has some of them");
    node.job_with_unnamed("7", 0..4, &["llama"], 1.0);
    assert_eq!(node.gpus(), None, "it holds more than its node knows");
}

#[test]
fn a_counter_that_begins_anew_or_leaps_and_a_time_without_readings_count_nothing() {
    let mut node = Node::with_world(8);
    node.joules = 5.0;
    node.wait(10);
    assert_eq!(node.used("llama"), (0.0, 0), "the driver was loaded anew");
    node.joules += 1e9;
    node.wait(10);
    assert_eq!(node.used("llama"), (0.0, 0), "no GPU draws a hundred megawatts");
    node.wait(700);
    assert_eq!(node.used("llama"), (0.0, 0), "others may have had the node meanwhile");
    node.wait(10);
    assert_eq!(node.used("llama"), (8.0 * 10.0 * WATTS, 80));
}

#[test]
fn what_a_run_used_outlives_the_program() {
    let mut node = Node::with_world(8);
    node.wait(60);
    node.wait(30);
    node.b.restart();
    assert_eq!(node.used("llama"), (8.0 * 90.0 * WATTS, 720));
    node.wait(10);
    assert_eq!(node.used("llama"), (8.0 * 90.0 * WATTS, 720), "the first reading has none before it");
    node.wait(10);
    assert_eq!(node.used("llama"), (8.0 * 100.0 * WATTS, 800));
}

#[test]
fn a_late_reading_counts_nothing_twice() {
    let mut node = Node::with_world(8);
    node.wait(10);
    let joules = node.joules;
    node.joules -= WATTS * 15.0;
    node.read();
    node.joules = joules;
    node.wait(10);
    assert_eq!(node.used("llama"), (8.0 * 20.0 * WATTS, 160));
}

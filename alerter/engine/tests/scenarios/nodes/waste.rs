//! GPUs that are held and do nothing, and GPUs that compute for nobody.

use stepwatch_engine::SourceInput;
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::incident::State;
use stepwatch_wire::{Event, Kind as EventKind, Value};

use super::bench::{Bench, reading};

fn job(id: &str, node: &str, code: i64, runs: &[&str]) -> Event {
    let mut e = Event { name: Some("job".into()), code: Some(code), ..Event::new(EventKind::Health) };
    let list = |names: Vec<String>| Value::List(names.into_iter().map(Value::Text).collect());
    e.node = Some(node.into());
    for (key, text) in [("job", id), ("user", "bob"), ("scheduler", "slurm")] {
        e.extra.insert(key.into(), Value::Text(text.into()));
    }
    e.extra.insert("gpus".into(), list((0..2).map(|index| format!("GPU-{node}-{index}")).collect()));
    e.extra.insert("runs".into(), list(runs.iter().map(|run| (*run).to_owned()).collect()));
    e
}

/// So many minutes in which each of two GPUs of the nodes is as busy as this. The exporters repeat
/// which jobs there are.
fn minutes(b: &mut Bench, nodes: &[&str], jobs: &[Event], busy: f64, minutes: i64) {
    for nth in 0..6 * minutes {
        if nth % 30 == 0 {
            jobs.iter().for_each(|job| b.feed(job.clone()));
        }
        for node in nodes {
            for index in 0..2 {
                b.feed(reading(node, index, &[("utilization_ratio", busy)]));
            }
        }
        b.wait(10);
    }
}

#[test]
fn a_job_that_computes_nothing_for_half_an_hour_is_one_ticket_with_all_its_nodes() {
    let mut b = Bench::new();
    let nodes = ["n1", "n2", "n3"];
    let jobs = nodes.map(|node| job("7", node, 1, &[]));
    minutes(&mut b, &nodes, &jobs, 0.9, 5);
    minutes(&mut b, &nodes, &jobs, 0.0, 29);
    assert_eq!(b.summary(), []);
    minutes(&mut b, &nodes, &jobs, 0.0, 2);
    assert_eq!(b.summary(), [(Kind::GpuWaste, Severity::Ticket, State::Open)]);
    let said = b.last().summary.to_string();
    let start = "job 7 of bob on slurm holds 6 GPUs on 3 nodes, and none has computed for 30m: 3.0 GPU hours";
    assert!(said.starts_with(start), "{said}");
    minutes(&mut b, &nodes, &jobs, 0.9, 15);
    assert_eq!(b.summary(), [(Kind::GpuWaste, Severity::Ticket, State::Resolved)]);
}

#[test]
fn nodes_that_notice_the_end_of_a_job_one_after_the_other_make_one_ticket() {
    let mut b = Bench::new();
    let nodes = ["n1", "n2", "n3"];
    let jobs = nodes.map(|node| job("7", node, 1, &[]));
    minutes(&mut b, &nodes, &jobs, 0.0, 35);
    assert_eq!(b.summary(), [(Kind::GpuWaste, Severity::Ticket, State::Open)]);
    for node in nodes {
        b.feed(job("7", node, 0, &[]));
        for _ in 0..3 {
            for node in nodes {
                b.feed(reading(node, 0, &[("utilization_ratio", 0.0)]));
            }
            b.wait(10);
        }
    }
    minutes(&mut b, &nodes, &[], 0.0, 15);
    assert_eq!(b.summary(), [(Kind::GpuWaste, Severity::Ticket, State::Resolved)]);
}

#[test]
fn a_run_of_an_earlier_job_is_none_of_this_one() {
    let mut b = Bench::new();
    b.steps("llama", &["n1"], 30);
    let bye = Event { run: Some("llama".into()), rank: Some(0), code: Some(1), ..Event::new(EventKind::Bye) };
    b.feed(Event { node: Some("n1".into()), ..bye });
    minutes(&mut b, &["n1"], &[], 0.0, 60);
    let had = b.summary().len();
    minutes(&mut b, &["n1"], &[job("8", "n1", 1, &[])], 0.0, 20);
    assert_eq!(b.summary().len(), had, "it copies its data: {:?}", b.summary());
}

#[test]
fn a_job_of_which_one_node_computes_or_is_not_read_is_no_waste() {
    let mut b = Bench::new();
    let jobs = ["n1", "n2"].map(|node| job("7", node, 1, &[]));
    minutes(&mut b, &["n1"], &jobs, 0.0, 60);
    assert_eq!(b.summary(), [], "n2 is not read");
    for _ in 0..60 {
        minutes(&mut b, &["n2"], &jobs, 0.5, 1);
        minutes(&mut b, &["n1"], &jobs, 0.0, 1);
    }
    assert_eq!(b.summary(), []);
}

#[test]
fn a_job_that_keeps_its_gpus_after_its_run_has_ended_is_noticed_sooner() {
    let mut b = Bench::new();
    let jobs = [job("7", "n1", 1, &["llama"])];
    b.steps("llama", &["n1"], 30);
    minutes(&mut b, &["n1"], &jobs, 0.9, 1);
    b.feed(Event {
        run: Some("llama".into()),
        node: Some("n1".into()),
        rank: Some(0),
        code: Some(0),
        ..Event::new(EventKind::Bye)
    });
    minutes(&mut b, &["n1"], &jobs, 0.0, 10);
    assert_eq!(b.summary(), []);
    minutes(&mut b, &["n1"], &jobs, 0.0, 1);
    assert_eq!(b.summary(), [(Kind::GpuWaste, Severity::Ticket, State::Open)]);
    let said = b.last().summary.to_string();
    assert!(said.contains("; its run llama ended 10m ago"), "{said}");
    b.feed(job("7", "n1", 0, &["llama"]));
    minutes(&mut b, &["n1"], &[], 0.0, 10);
    assert_eq!(b.summary(), [(Kind::GpuWaste, Severity::Ticket, State::Resolved)]);
}

#[test]
fn a_run_that_goes_on_is_left_to_its_own_detectors() {
    let mut b = Bench::new();
    b.feed(job("7", "n1", 1, &["llama"]));
    for _ in 0..40 {
        b.steps("llama", &["n1"], 30);
        for index in 0..2 {
            b.feed(reading("n1", index, &[("utilization_ratio", 0.0)]));
        }
    }
    assert_eq!(b.summary(), []);
}

#[test]
fn a_gpu_that_computes_for_no_job_is_named_where_jobs_get_gpus() {
    let mut b = Bench::new();
    minutes(&mut b, &["n1"], &[], 0.9, 60);
    assert_eq!(b.summary(), [], "there is no scheduler, as far as anybody knows");
    minutes(&mut b, &["n1"], &[job("7", "n1", 1, &[])], 0.9, 5);
    b.feed(job("7", "n1", 0, &[]));
    minutes(&mut b, &["n1"], &[], 0.9, 29);
    assert_eq!(b.summary(), []);
    minutes(&mut b, &["n1"], &[], 0.9, 2);
    assert_eq!(b.summary(), [(Kind::GpuWaste, Severity::Ticket, State::Open)]);
    let said = b.last().summary.to_string();
    let first = "2 GPUs of n1 have computed for 30m, and no job holds them: 1.0 GPU hours";
    assert!(said.starts_with(first), "{said}");
}

/// What the exporter says of a job once only the environments of its processes name it.
fn over(id: &str, node: &str, runs: &[&str]) -> Event {
    let mut e = job(id, node, 1, runs);
    e.extra.insert("over".into(), Value::Bool(true));
    e.extra.insert("pids".into(), Value::List([41.0, 42.0].map(Value::Number).to_vec()));
    e
}

/// So many minutes in which the run steps on a node whose GPUs compute.
fn trains(b: &mut Bench, jobs: &[Event], many: i64) {
    for _ in 0..many {
        b.steps("llama", &["n1"], 5);
        minutes(b, &["n1"], jobs, 0.9, 1);
    }
}

fn wasted(b: &Bench) -> bool {
    b.summary().iter().any(|(kind, ..)| *kind == Kind::GpuWaste)
}

#[test]
fn a_run_that_outlives_its_job_is_named_with_its_processes() {
    let mut b = Bench::new();
    trains(&mut b, &[job("7", "n1", 1, &["llama"])], 5);
    trains(&mut b, &[over("7", "n1", &["llama"])], 25);
    assert!(!wasted(&b), "{:?}", b.summary());
    // An exporter that was started again does not know that the job is over.
    trains(&mut b, &[job("7", "n1", 1, &["llama"])], 2);
    trains(&mut b, &[over("7", "n1", &["llama"])], 15);
    assert!(wasted(&b), "{:?}", b.summary());
    let said = b.incidents.iter().find(|r| r.kind == Kind::GpuWaste).unwrap().summary.to_string();
    let names =
        ["no job holds them: ", "processes 41, 42 of bob still run, though job 7 is over on this node"];
    assert!(names.iter().all(|name| said.contains(name)), "{said}");
}

#[test]
fn a_run_with_another_job_here_or_of_no_known_job_holds_its_gpus() {
    for jobs in [
        // The other job holds no GPU that is known, such as on a node without NVML.
        vec![over("7", "n1", &["llama"]), without_gpus(job("8", "n1", 1, &["llama"]))],
        vec![over("7", "n1", &["other"])],
    ] {
        let mut b = Bench::new();
        trains(&mut b, &jobs, 45);
        assert!(!wasted(&b), "{:?}", b.summary());
    }
}

#[test]
fn processes_that_are_left_beside_the_next_job_are_named() {
    let mut b = Bench::new();
    let next = job("8", "n1", 1, &[]);
    minutes(&mut b, &["n1"], &[over("7", "n1", &["llama"]), next.clone()], 0.9, 28);
    assert_eq!(b.summary(), []);
    minutes(&mut b, &["n1"], &[over("7", "n1", &["llama"]), next.clone()], 0.9, 4);
    assert_eq!(b.summary(), [(Kind::GpuWaste, Severity::Ticket, State::Open)]);
    let said = b.last().summary.to_string();
    let first = "processes 41, 42 of bob still run, though job 7 is over on this node; job 8 of bob on slurm holds its GPUs now";
    assert!(said.starts_with(first), "{said}");
    b.feed(job("7", "n1", 0, &[]));
    minutes(&mut b, &["n1"], &[next], 0.9, 15);
    assert_eq!(b.summary(), [(Kind::GpuWaste, Severity::Ticket, State::Resolved)]);
}

#[test]
fn processes_that_are_left_and_compute_nothing_are_named() {
    let mut b = Bench::new();
    let left = [over("7", "n1", &["llama"])];
    minutes(&mut b, &["n1"], &left, 0.0, 28);
    assert_eq!(b.summary(), []);
    minutes(&mut b, &["n1"], &left, 0.0, 4);
    assert_eq!(b.summary(), [(Kind::GpuWaste, Severity::Ticket, State::Open)]);
    let said = b.last().summary.to_string();
    let first = "processes 41, 42 of bob still run, though job 7 is over on this node; its GPUs have computed nothing for ";
    assert!(said.starts_with(first), "{said}");
}

fn without_gpus(mut e: Event) -> Event {
    e.extra.remove("gpus");
    e
}

#[test]
fn an_exporter_that_was_away_proves_nothing() {
    let mut b = Bench::new();
    let jobs = [job("7", "n1", 1, &[])];
    minutes(&mut b, &["n1"], &jobs, 0.0, 5);
    let source = "n1:9765";
    b.answer(SourceInput::SourceDown { source, reason: "the connection broke" });
    b.wait(3600);
    b.answer(SourceInput::SourceUp { source, many_nodes: false });
    minutes(&mut b, &["n1"], &jobs, 0.0, 25);
    assert!(b.summary().iter().all(|(kind, ..)| *kind != Kind::GpuWaste), "{:?}", b.summary());
}

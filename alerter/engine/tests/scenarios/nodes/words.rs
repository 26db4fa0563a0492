//! Sentences about nodes name the job that runs there, and the GPU that is there.

use stepwatch_model::{Kind, Severity};
use stepwatch_wire::{Event, Kind as EventKind};

use super::bench::{Bench, fell_off, gpu_lost, reading, said, with, xid};

fn job(id: &str, user: &str) -> Event {
    let e = with(
        said(EventKind::Health, "n1", "job", "info", ""),
        &[("job", id), ("user", user), ("scheduler", "slurm")],
    );
    Event { code: Some(1), ..e }
}

/// The exporter publishes its GPU and, every ten minutes, these jobs.
fn speak(b: &mut Bench, secs: i64, jobs: &[(&str, &str)]) {
    for at in (0..secs).step_by(30) {
        if at % 600 == 0 {
            jobs.iter().for_each(|(id, user)| b.feed(with(job(id, user), &[("again", "true")])));
        }
        b.feed(reading("n1", 0, &[("utilization_ratio", 0.9)]));
        b.wait(30);
    }
}

/// The summary of a fault there.
fn fault(mut b: Bench) -> String {
    b.feed(gpu_lost("n1", true));
    assert_eq!((b.last().kind, b.last().severity), (Kind::GpuFault, Severity::Ticket));
    b.last().summary.to_string()
}

#[test]
fn a_job_that_ended_while_its_exporter_was_away_is_not_named() {
    let mut b = Bench::new();
    speak(&mut b, 1800, &[("4711", "bob")]);
    b.reboot("b");
    speak(&mut b, 400, &[]);
    b.feed(job("5000", "eve"));
    let why = fault(b);
    assert!(why.contains("but job 5000 of eve on slurm does"), "{why}");
    // A job is over, too, if the same exporter never reported its end.
    let mut b = Bench::new();
    speak(&mut b, 1800, &[("4711", "bob")]);
    speak(&mut b, 1500, &[("5000", "eve")]);
    let why = fault(b);
    assert!(why.contains("but job 5000 of eve on slurm does"), "{why}");
}

#[test]
fn a_job_is_named_while_it_is_published_and_those_that_are_over_take_no_room() {
    let mut b = Bench::new();
    speak(&mut b, 7200, &[("4711", "bob")]);
    b.reboot("b");
    speak(&mut b, 7200, &[("4711", "bob")]);
    let why = fault(b);
    assert!(why.contains("but job 4711 of bob on slurm does"), "{why}");
    let mut b = Bench::new();
    (0..40).for_each(|i| b.feed(job(&format!("2{i}"), "bob")));
    speak(&mut b, 1560, &[]);
    b.feed(job("5000", "eve"));
    let why = fault(b);
    assert!(why.contains("but job 5000 of eve on slurm does"), "{why}");
}

#[test]
fn an_xid_at_an_address_is_of_the_gpu_that_is_there_now() {
    let mut b = Bench::new();
    let read = |uuid: &str| {
        let e = reading("n1", 3, &[("utilization_ratio", 0.9)]);
        with(e, &[("gpu", uuid), ("pci", "0000:1b:00.0")])
    };
    b.feed(read("GPU-11111111-old"));
    b.wait(86_400);
    b.reboot("b");
    b.feed(read("GPU-99999999-new"));
    let mut e = fell_off("n1");
    e.extra.remove("gpu");
    b.feed(e);
    let why = &b.last().summary;
    assert!(why.to_string().starts_with("XID 79 on GPU 3 (GPU-99999999-new) of n1"), "{why}");
}

#[test]
fn runs_that_failed_on_a_gpu_the_day_before_do_not_make_it_suspect() {
    let mut b = Bench::new();
    let fail = |b: &mut Bench, run: &str| {
        b.steps(run, &["n1"], 20);
        b.feed(xid("n1", 31, "info", "restart_app", "MMU fault"));
        let (run, node) = (Some(run.into()), Some("n1".into()));
        b.feed(Event { run, node, rank: Some(0), code: Some(0), ..Event::new(EventKind::Bye) });
        b.wait(200);
    };
    ["a", "b"].iter().for_each(|run| fail(&mut b, run));
    b.wait(43_200);
    fail(&mut b, "c");
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Ticket, stepwatch_respond::incident::State::Open)]);
    b.wait(64_800);
    // The first two are more than a day old, the third is not.
    b.feed(xid("n1", 31, "info", "restart_app", "MMU fault"));
    b.wait(5);
    assert_eq!(b.open(), [], "{:#?}", b.incidents);
}

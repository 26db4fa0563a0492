//! Lines of DeepSpeed from 2020 to today.

use super::*;
use crate::LogReader;
use crate::line_formats::samples::{PLAIN, Sampled, Written};

impl Sampled for DeepSpeed {
    const LOGS: &'static [&'static str] = &[
        include_str!("../../../tests/data/deepspeed_2020_cifar.log"),
        "worker-0: [2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[4.99e-05], mom=[(0.9, 0.95)]\nworker-0: [2023-11-07 01:55:23,811] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.03, CurrSamplesPerSec=25.70, MemAllocated=4.32GB, MaxMemAllocated=38.49GB\n",
    ];
    const WRITTEN: &'static [Written] =
        &[Written { line: "steps: §⟨ loss: ¤⟩ iter time (s): 145.206 samples/sec: 7.052", ..PLAIN }];
}

fn read(lines: &[&str]) -> (Vec<Event>, LogReader) {
    let mut r = LogReader::new(Some("deepspeed")).unwrap();
    let mut out = Vec::new();
    for l in lines {
        r.line(l, &mut out);
    }
    (out, r)
}

fn metrics(e: &Event) -> Vec<(&str, f64)> {
    e.m.iter().collect()
}

const P: &str = "worker-0: [2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] [Rank 0]";

#[test]
fn steps_and_what_was_skipped() {
    let (e, r) = read(&[
        &format!("{P} step=10, skipped=4, lr=[4.99e-05, 4.98e-05], mom=[(0.9, 0.95), (0.9, 0.95)]"),
        "[2023-11-07 01:55:24,711] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 128, reducing to 64",
        &format!("{P} Overflow detected. Skipping step. Attempted loss scale: 64, reducing to 32.0"),
        &format!("{P} step=20, skipped=6, lr=[4.9e-05], mom=[(0.9, 0.95)]"),
        &format!("{P} step=5, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]"),
    ]);
    assert_eq!((e[0].kind, e[0].step, e[0].ts), (Kind::Step, Some(10), Some(1699322123.711)));
    assert_eq!(metrics(&e[0]), [("lr", 4.99e-5)], "how many of the four were in these steps is not known");
    assert_eq!(metrics(&e[1]), [("lr", 4.9e-5), ("skipped", 2.0), ("loss_scale", 32.0)]);
    assert_eq!(metrics(&e[2]), [("lr", 1e-5), ("skipped", 0.0)], "a restart");
    assert!(e.iter().all(|e| e.missing.is_empty()), "these lines never carry a loss");
    assert_eq!((e.len(), r.counters().ignored), (3, 2));
}

#[test]
fn throughput_of_old_and_new() {
    let (e, _) = read(&[
        "[2023-11-07 01:55:23,711] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.03, CurrSamplesPerSec=25.70, MemAllocated=4.32GB, MaxMemAllocated=38.49GB",
        "worker-0: [INFO 2020-02-06 19:53:56] 0/50, SamplesPerSec=1292.6411179579866",
    ]);
    assert_eq!((e[0].kind, e[0].step), (Kind::Step, Some(10)));
    assert_eq!(metrics(&e[0]), [("samples_per_second", 25.7), ("memory_gib", 38.49)]);
    assert_eq!((e[1].kind, e[1].step), (Kind::Hb, None));
    assert_eq!(metrics(&e[1]), [("samples_per_second", 1292.6411179579866)]);
}

#[test]
fn the_pipeline_and_its_timers() {
    let (e, r) = read(&[
        "[2023-06-03 00:10:23,345] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 1.0",
        "steps: 2 loss: 12.8004 iter time (s): 145.206 samples/sec: 7.052",
        "steps: 3 loss: nan iter time (s): 145.206 samples/sec: 7.052",
        "[2023-06-03 00:10:23,345] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | fwd: 1330.50 | bwd: 4766.50 | bwd_inner: 4410.89 | bwd_allreduce: 355.95 | step: 4.50",
        "[2023-06-03 00:10:23,345] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | forward_microstep: 1330.05",
    ]);
    assert_eq!(
        (e[0].step, metrics(&e[0])),
        (Some(2), vec![("loss", 12.8004), ("step_time", 145.206), ("samples_per_second", 7.052)])
    );
    assert!(e[1].m.get("loss").unwrap().is_nan());
    assert_eq!((e[2].step, e[2].m.is_empty()), (Some(3), true));
    assert_eq!(
        e[2].t.iter().collect::<Vec<_>>(),
        [("forward", 1.3305), ("backward", 4.7665), ("comm", 0.35595), ("optimizer", 0.0045)]
    );
    assert_eq!((e.len(), r.counters().ignored), (3, 2));
}

#[test]
fn checkpoints() {
    let (e, _) = read(&[
        &format!("{P} [Torch] Checkpoint global_step1000 is about to be saved!"),
        "[2023-11-07 01:56:23,711] [INFO] [torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint global_step1000 is ready now!",
    ]);
    let seen: Vec<_> = e.iter().map(|e| (e.step, e.ckpt)).collect();
    assert_eq!(seen, [(Some(1000), Some(CkptPhase::Start)), (Some(1000), Some(CkptPhase::End))]);
}

/// Composed after the format strings of `torch_checkpoint_engine.py`.
#[test]
fn loads() {
    let path = "/ckpt/global_step1000/mp_rank_00_model_states.pt";
    let (e, _) = read(&[
        &format!("{P} [Torch] Begin Load checkpoint from {path}..."),
        &format!("{P} [Torch] End Load checkpoint from {path}..."),
        &format!("{P} [Torch] Begin Load checkpoint from /ckpt/best/mp_rank_00_model_states.pt..."),
    ]);
    let (start, end) = (CkptPhase::Start, CkptPhase::End);
    assert_eq!(
        crate::background::stages(&e),
        [(start, "load", Some(1000)), (end, "load", Some(1000)), (start, "load", None)]
    );
    assert_eq!(e[1].extra["path"].as_str(), Some(path));
}

#[test]
fn a_checkpoint_whose_end_is_not_printed_ends_with_the_next_step() {
    let saves = format!("{P} [Torch] Checkpoint global_step1000 is about to be saved!");
    let step = |n: i64| format!("{P} step={n}, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]");
    let seen =
        |lines: &[&str]| -> Vec<_> { read(lines).0.iter().map(|e| (e.kind, e.step, e.ckpt)).collect() };
    let (start, end) = (Some(CkptPhase::Start), Some(CkptPhase::End));
    assert_eq!(
        seen(&[&step(1000), &saves, &step(1010), &step(1020)]),
        [
            (Kind::Step, Some(1000), None),
            (Kind::Ckpt, Some(1000), start),
            (Kind::Ckpt, Some(1000), end),
            (Kind::Step, Some(1010), None),
            (Kind::Step, Some(1020), None),
        ]
    );
    let again = [(Kind::Ckpt, Some(1000), start), (Kind::Step, Some(500), None)];
    assert_eq!(seen(&[&saves, &step(500)]), again, "the process that saved it is gone");
    let ready = "[2023-11-07 01:56:23,711] [INFO] [torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint global_step1000 is ready now!";
    let expected =
        [(Kind::Ckpt, Some(1000), start), (Kind::Ckpt, Some(1000), end), (Kind::Step, Some(1010), None)];
    assert_eq!(seen(&[&saves, ready, &step(1010)]), expected, "its end is published once");
}

#[test]
fn what_is_no_line_of_the_engine() {
    for text in [
        "step=10",
        "step=x, skipped=0",
        "steps: 5",
        "0/50, x",
        "[Rank 0] done",
        "steps: 2 loss: x iter time (s): 1",
    ] {
        assert!(read(&[text]).0.is_empty(), "{text}");
    }
}

#[test]
fn a_pipelines_loss_of_none_is_missing() {
    let line = |n: u32, loss: &str| format!("steps: {n} loss: {loss} iter time (s): 1.5 samples/sec: 7.052");
    let mut r = LogReader::new(Some("deepspeed")).unwrap();
    let mut e = Vec::new();
    for l in [line(1, "12.8"), line(2, "12.7"), line(3, "None")] {
        r.line(&l, &mut e);
    }
    let seen: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.missing.len())).collect();
    assert_eq!(seen, [(1, 0), (2, 0), (3, 1)]);
    assert_eq!((e[2].missing[0].as_str(), e[2].m.get("step_time")), ("loss", Some(1.5)));
}

//! Faults that a row of numbers cannot express: of single ranks, of phases of a step, of
//! evaluations and checkpoints.
//!
//! The healthy part is made up; it is what the client sends, in the shape that `backtest` reads.

use serde_json::{Value, json};

use super::fault::{EventLines, Fault, Make, NEVER};
use crate::random::Random;
use crate::synthetic::Traits;

/// Ranks, half of them in each of two pipeline stages.
const RANKS: usize = 8;
/// Steps of a run of many ranks, and the first that is wrong.
const SHORT: i64 = 240;
const ONSET: i64 = 100;
/// The same of a run of one rank.
const LONG: i64 = 2000;
const LATE_ONSET: i64 = 800;
/// Steps between evaluations, and between checkpoints.
const EVAL_EVERY: i64 = 50;
const SAVE_EVERY: i64 = 100;
/// The time at which a run begins, in Unix seconds.
const EPOCH: f64 = 1.7e9;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "straggler",
        about: "one of 8 ranks computes longer from here on, and all wait for it",
        unit: "%",
        sizes: &[1.0, 3.0, 5.0, 10.0, 20.0, 50.0, 135.0],
        warn: 3.0,
        page: 5.0,
        class: "straggler",
        make: Make::Events(one_rank),
    },
    Fault {
        name: "straggler_rotating",
        about: "in each step from here on another rank computes longer",
        unit: "%",
        sizes: &[3.0, 5.0, 10.0, 20.0, 50.0],
        warn: 5.0,
        page: 10.0,
        class: "straggler",
        make: Make::Events(rotating),
    },
    Fault {
        name: "straggler_stage",
        about: "the second pipeline stage computes longer, from the beginning",
        unit: "%",
        sizes: &[5.0, 10.0, 30.0, 60.0],
        warn: 30.0,
        page: NEVER,
        class: "straggler",
        make: Make::Events(stage),
    },
    Fault {
        name: "data_wait",
        about: "every step waits for data, by so much of its time",
        unit: "%",
        sizes: &[1.0, 3.0, 5.0, 10.0, 20.0, 40.0],
        warn: 3.0,
        page: 5.0,
        class: "data_wait",
        make: Make::Events(data_wait),
    },
    Fault {
        name: "eval_gap",
        about: "the loss of evaluations rises from here on while that of training falls",
        unit: "nats per 10 evaluations",
        sizes: &[0.02, 0.05, 0.1, 0.3, 1.0],
        warn: 0.1,
        page: NEVER,
        class: "overfit",
        make: Make::Events(eval_gap),
    },
    Fault {
        name: "slow_checkpoint",
        about: "one checkpoint takes longer than usual (40 to 90 seconds)",
        unit: "times",
        sizes: &[1.3, 2.0, 3.0, 5.0, 10.0, 30.0],
        warn: 3.0,
        page: NEVER,
        class: "slow_checkpoint",
        make: Make::Events(slow_checkpoint),
    },
];

/// A run of several ranks; `slow` is the factor of a rank's compute time in a step.
fn ranks(random: &mut Random, mut slow: impl FnMut(i64, usize, &mut Random) -> f64) -> Vec<String> {
    let traits = Traits::draw(random);
    let own: Vec<f64> = (0..RANKS).map(|_| 1.0 + 0.003 * random.normal()).collect();
    let mut now = EPOCH;
    let mut lines: Vec<String> = (0..RANKS)
        .map(|rank| {
            let stage = rank * 2 / RANKS;
            line(json!({"k": "hello", "ts": now, "rank": rank, "world": RANKS, "stage": stage}))
        })
        .collect();
    for step in 1..=SHORT {
        let noise = traits.step_noise.min(0.01);
        let computes: Vec<f64> = (0..RANKS)
            .map(|rank| {
                traits.step_time * own[rank] * (noise * random.normal()).exp() * slow(step, rank, random)
            })
            .collect();
        let took = computes.iter().copied().fold(0.0, f64::max) + 0.1 * traits.step_time;
        now += took;
        let loss = traits.floor + traits.height * (traits.age + step as f64).powf(-traits.power);
        for (rank, compute) in computes.iter().enumerate() {
            let stage = rank * 2 / RANKS;
            let mut event = json!({
                "k": "step", "ts": round(now, 3), "rank": rank, "world": RANKS, "stage": stage, "step": step,
                "m": {"step_time": round(took, 4)},
                "t": {"fwd_bwd": round(*compute, 4), "data": 0.005, "optim": round(0.02 * traits.step_time, 4)},
            });
            if rank == 0 {
                event["m"]["loss"] = json!(round(loss + traits.loss_noise * random.normal(), 4));
            }
            lines.push(line(event));
        }
    }
    lines
}

fn one_rank(size: f64, random: &mut Random) -> EventLines {
    let which = random.below(RANKS);
    let lines =
        ranks(random, |step, rank, _| if rank == which && step >= ONSET { 1.0 + size / 100.0 } else { 1.0 });
    EventLines { lines, start: ONSET, end: SHORT }
}

fn rotating(size: f64, random: &mut Random) -> EventLines {
    let mut slowest = 0;
    let lines = ranks(random, |step, rank, random| {
        if rank == 0 {
            slowest = (slowest + 1 + random.below(RANKS - 1)) % RANKS;
        }
        if rank == slowest && step >= ONSET { 1.0 + size / 100.0 } else { 1.0 }
    });
    EventLines { lines, start: ONSET, end: SHORT }
}

fn stage(size: f64, random: &mut Random) -> EventLines {
    let lines = ranks(random, |_, rank, _| if rank * 2 / RANKS == 1 { 1.0 + size / 100.0 } else { 1.0 });
    EventLines { lines, start: 1, end: SHORT }
}

/// A run of one rank. `at` is called before each step with its loss: it may write lines of its own,
/// may let time pass, and gives the wait for data as a share of the step.
fn single(
    random: &mut Random,
    mut at: impl FnMut(i64, f64, &mut f64, &mut Vec<String>, &mut Random) -> f64,
) -> Vec<String> {
    let traits = Traits { evals: None, ..Traits::draw(random) };
    let run = traits.record(LONG as usize, random);
    let mut now = EPOCH;
    let mut lines = vec![line(json!({"k": "hello", "ts": now, "rank": 0, "world": 1}))];
    for (row, step) in run.steps.iter().enumerate() {
        let [loss, grad, took] = [0, 1, 2].map(|column| run.columns[column].cells[row].unwrap_or(1.0));
        let wait = at(*step, loss, &mut now, &mut lines, random);
        let took = took * (1.0 + wait);
        now += took;
        lines.push(line(json!({
            "k": "step", "ts": round(now, 3), "rank": 0, "world": 1, "step": step,
            "m": {"loss": round(loss, 4), "grad_norm": round(grad, 4), "step_time": round(took, 4)},
            "t": {"data": round(took * wait / (1.0 + wait), 4)},
        })));
    }
    lines
}

fn data_wait(size: f64, random: &mut Random) -> EventLines {
    let lines = single(random, |step, _, _, _, random| {
        let more = if step >= LATE_ONSET { size / 100.0 } else { 0.0 };
        (0.01 + more) * random.between(0.7, 1.3)
    });
    EventLines { lines, start: LATE_ONSET, end: LONG }
}

fn eval_gap(size: f64, random: &mut Random) -> EventLines {
    let noise = random.between(0.003, 0.01);
    let lines = single(random, |step, loss, now, lines, random| {
        if step % EVAL_EVERY == 0 {
            let since = (step - LATE_ONSET).max(0) as f64 / (10 * EVAL_EVERY) as f64;
            // An evaluation sees many batches: its noise is its own, not that of one of training.
            let value = loss + 0.05 + size * since + noise * random.normal();
            lines.push(line(json!({
                "k": "eval", "ts": round(*now, 3), "step": step, "name": "val", "m": {"loss": round(value, 4)},
            })));
        }
        0.01
    });
    EventLines { lines, start: LATE_ONSET, end: LONG }
}

fn slow_checkpoint(size: f64, random: &mut Random) -> EventLines {
    let usual = random.between(40.0, 90.0);
    let lines = single(random, |step, _, now, lines, random| {
        if step % SAVE_EVERY == 0 {
            let longer = if step == LATE_ONSET { size } else { 1.0 };
            let took = usual * longer * random.between(0.9, 1.1);
            for (phase, ts) in [("start", *now), ("end", *now + took)] {
                lines.push(line(json!({"k": "ckpt", "ts": round(ts, 3), "step": step, "phase": phase})));
            }
            *now += took;
        }
        0.01
    });
    EventLines { lines, start: LATE_ONSET, end: LATE_ONSET + 1 }
}

fn line(mut event: Value) -> String {
    event["v"] = json!(1);
    event.to_string()
}

fn round(v: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (v * scale).round() / scale
}

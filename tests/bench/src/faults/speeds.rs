//! Faults of the step time.

use std::ops::Range;

use super::fault::{Fault, Make, NEVER};
use crate::random::Random;
use crate::recording::{Column, Recording, STEP_TIME, TIMESTAMP};

/// Rows of a fault that goes on.
const LONG: usize = 1000;
/// A sawtooth's teeth, and rows of one.
const TEETH: usize = 6;
const TOOTH: usize = 160;
/// Rows of a burst of noise.
const BURST: usize = 400;
/// The time at which a recording with a clock begins, in Unix seconds.
const EPOCH: f64 = 1.7e9;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "step_change",
        about: "steps take longer for 1000 samples",
        unit: "%",
        sizes: &[1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0],
        warn: 2.0,
        page: 10.0,
        class: "throughput_shift",
        make: Make::Table { signals: &[STEP_TIME], rows: 1500, inject: change },
    },
    Fault {
        name: "droop",
        about: "steps take longer and longer, for 1000 samples",
        unit: "% per 1000 samples",
        sizes: &[1.0, 3.0, 5.0, 10.0, 20.0, 40.0],
        warn: 3.0,
        page: 10.0,
        class: "droop",
        make: Make::Table { signals: &[STEP_TIME], rows: 1500, inject: droop },
    },
    Fault {
        name: "sawtooth",
        about: "the same within 160 samples, six times, each time cured at once",
        unit: "% a tooth",
        sizes: &[2.0, 3.0, 5.0, 10.0, 20.0],
        warn: 3.0,
        page: 10.0,
        class: "sawtooth_droop",
        make: Make::Table { signals: &[STEP_TIME], rows: 1500, inject: sawtooth },
    },
    Fault {
        name: "gc_tail",
        about: "every 7th to 24th step is slow, by 5 % at first and by so much after 1000 samples",
        unit: "%",
        sizes: &[10.0, 20.0, 50.0, 100.0, 200.0],
        warn: 20.0,
        page: NEVER,
        class: "gc_tail_growth",
        make: Make::Table { signals: &[STEP_TIME], rows: 1500, inject: gc_tail },
    },
    Fault {
        name: "jitter",
        // Not in multiples of the usual noise: a step that is steady to 0.3 % loses 1 % of the time
        // at ten times that, and nobody should be notified of it.
        about: "step times swing so much that this share of the time is lost, for 400 samples",
        unit: "%",
        sizes: &[1.0, 2.0, 5.0, 10.0, 20.0],
        warn: 5.0,
        page: NEVER,
        class: "variance_burst",
        make: Make::Table { signals: &[STEP_TIME], rows: 1500, inject: jitter },
    },
    Fault {
        name: "stall",
        about: "one step takes so much longer, and at least four times as long",
        unit: "seconds",
        sizes: &[5.0, 15.0, 30.0, 60.0, 200.0, 600.0],
        warn: 15.0,
        page: NEVER,
        class: "stall",
        make: Make::Table { signals: &[STEP_TIME], rows: 1500, inject: stall },
    },
    Fault {
        name: "stalls",
        about: "four such steps within 600, equally long to 1 %: a timeout",
        unit: "seconds",
        sizes: &[5.0, 15.0, 30.0, 60.0, 200.0, 600.0],
        warn: 15.0,
        page: NEVER,
        class: "stall",
        make: Make::Table { signals: &[STEP_TIME], rows: 1500, inject: stalls },
    },
    Fault {
        name: "hang",
        // By the clock, as people and NCCL count: its own timeout is 10 minutes, and what outlasts
        // that is ended by nobody.
        about: "nothing is logged for so many minutes, and for at least ten steps' time, then the run goes on",
        unit: "minutes",
        sizes: &[1.0, 2.0, 5.0, 15.0, 30.0, 60.0],
        warn: 5.0,
        page: 15.0,
        class: "hang",
        make: Make::Table { signals: &[STEP_TIME], rows: 1500, inject: hang },
    },
];

fn change(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    let rows = at..(at + LONG).min(r.len());
    r.change(STEP_TIME, rows.clone(), |_, v| v * (1.0 + size / 100.0));
    rows
}

fn droop(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    let rows = at..(at + LONG).min(r.len());
    r.change(STEP_TIME, rows.clone(), |i, v| v * (1.0 + size / 100.0 * (i + 1) as f64 / LONG as f64));
    rows
}

fn sawtooth(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    let rows = at..(at + TEETH * TOOTH).min(r.len());
    r.change(STEP_TIME, rows.clone(), |i, v| {
        v * (1.0 + size / 100.0 * (i % TOOTH + 1) as f64 / TOOTH as f64)
    });
    rows
}

fn gc_tail(r: &mut Recording, at: usize, size: f64, random: &mut Random) -> Range<usize> {
    let rows = at..(at + LONG).min(r.len());
    let mut next = 0;
    r.change(STEP_TIME, rows.clone(), |i, v| {
        if i < next {
            return v;
        }
        next = i + 7 + random.below(18);
        v * (1.0 + (5.0 + (size - 5.0) * i as f64 / LONG as f64) / 100.0)
    });
    rows
}

/// Only what is slower than usual loses time: of a log-normal with this spread, a mean of
/// `spread/√(2π)` to first order.
fn jitter(r: &mut Recording, at: usize, size: f64, random: &mut Random) -> Range<usize> {
    let rows = at..(at + BURST).min(r.len());
    let spread = size / 100.0 * (2.0 * std::f64::consts::PI).sqrt();
    r.change(STEP_TIME, rows.clone(), |_, v| v * (spread * random.normal()).exp());
    rows
}

fn stall(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    r.change(STEP_TIME, at..at + 1, |_, v| (v + size).max(4.0 * v));
    at..at + 1
}

fn stalls(r: &mut Recording, at: usize, size: f64, random: &mut Random) -> Range<usize> {
    const APART: usize = 200;
    let mut last = at;
    for i in 0..4 {
        last = at + i * APART + if i == 0 { 0 } else { random.below(APART / 2) };
        let exact = random.between(0.995, 1.005);
        r.change(STEP_TIME, last..last + 1, |_, v| (v + size * exact).max(4.0 * v));
    }
    at..last + 1
}

/// The rows before and after the gap: there are none in it.
fn hang(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    let times = r.column(STEP_TIME).map_or(&[][..], |c| &c.cells).to_vec();
    let mut usual: Vec<f64> = times[..at].iter().flatten().copied().collect();
    usual.sort_unstable_by(f64::total_cmp);
    let gap = (60.0 * size).max(10.0 * usual.get(usual.len() / 2).copied().unwrap_or(1.0));
    let mut now = EPOCH;
    let mut clock = Vec::with_capacity(times.len());
    for (row, took) in times.iter().enumerate() {
        let steps = if row == 0 { 1 } else { r.steps[row] - r.steps[row - 1] };
        now += took.unwrap_or(1.0) * steps.max(1) as f64 + if row == at { gap } else { 0.0 };
        clock.push(Some(now));
    }
    r.columns.push(Column { name: TIMESTAMP.into(), cells: clock });
    at.saturating_sub(1)..at + 1
}

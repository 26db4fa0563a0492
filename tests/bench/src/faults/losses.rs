//! Faults of the loss.

use std::ops::Range;

use super::fault::{Fault, Make, NEVER};
use crate::random::Random;
use crate::recording::{LOSS, Recording};

/// Rows over which a trend is taken.
const SMOOTH: usize = 100;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "loss_single",
        about: "one sample of the loss, higher",
        unit: "nats",
        sizes: &[0.2, 0.5, 1.0, 2.0, 5.0],
        warn: 0.9,
        page: NEVER,
        class: "loss_spike",
        make: Make::Table { signals: &[LOSS], rows: 600, inject: single },
    },
    Fault {
        name: "loss_spike",
        about: "the loss rises over 3 samples, stays for 20 and falls back over 40",
        unit: "nats",
        sizes: &[0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0],
        warn: 0.4,
        page: 0.4,
        class: "loss_spike",
        make: Make::Table { signals: &[LOSS], rows: 600, inject: spike },
    },
    Fault {
        name: "divergence",
        about: "the loss rises from here on, to 8 nats at most",
        unit: "nats per 100 samples",
        sizes: &[0.1, 0.3, 1.0, 3.0, 10.0],
        warn: 0.0,
        page: 0.0,
        class: "divergence",
        make: Make::Table { signals: &[LOSS], rows: 1500, inject: divergence },
    },
    Fault {
        name: "loss_shift",
        about: "the loss is higher from here on",
        unit: "nats",
        sizes: &[0.03, 0.05, 0.1, 0.2, 0.4, 0.8],
        warn: 0.1,
        page: 0.4,
        class: "loss_shift",
        make: Make::Table { signals: &[LOSS], rows: 1500, inject: shift },
    },
    Fault {
        name: "plateau",
        about: "of the fall of the loss so much stops",
        unit: "%",
        sizes: &[50.0, 80.0, 100.0],
        warn: 80.0,
        page: NEVER,
        class: "plateau",
        make: Make::Table { signals: &[LOSS], rows: 1500, inject: plateau },
    },
    Fault {
        name: "nan",
        about: "the loss is NaN for so many samples",
        unit: "samples",
        sizes: &[1.0, 2.0, 5.0, 50.0],
        warn: 1.0,
        page: 2.0,
        class: "nan",
        make: Make::Table { signals: &[LOSS], rows: 600, inject: nan },
    },
    Fault {
        name: "constant_loss",
        about: "the loss is the same number for so many samples",
        unit: "samples",
        sizes: &[5.0, 20.0, 50.0, 100.0, 300.0],
        warn: 50.0,
        page: 50.0,
        class: "constant_loss",
        make: Make::Table { signals: &[LOSS], rows: 1500, inject: constant },
    },
];

fn single(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    r.change(LOSS, at..at + 1, |_, v| v + size);
    at..at + 1
}

fn spike(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    const LONG: usize = 63;
    r.change(LOSS, at..at + LONG, |i, v| {
        let share = match i {
            0..3 => (i + 1) as f64 / 3.0,
            3..23 => 1.0,
            _ => (-((i - 22) as f64) / 15.0).exp(),
        };
        v + size * share
    });
    at..at + LONG
}

fn divergence(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    r.change(LOSS, at..r.len(), |i, v| v + (size * (i + 1) as f64 / 100.0).min(8.0));
    at..r.len()
}

fn shift(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    r.change(LOSS, at..r.len(), |_, v| v + size);
    at..r.len()
}

fn plateau(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    let trend = trend(r);
    r.change(LOSS, at..r.len(), |i, v| v + size / 100.0 * (trend[at] - trend[at + i]));
    at..r.len()
}

/// The loss without its noise: the mean of the rows around each.
fn trend(r: &Recording) -> Vec<f64> {
    let cells = r.column(LOSS).map_or(&[][..], |c| &c.cells);
    let mean = |at: usize| {
        let half = (SMOOTH / 2).min(at).min(cells.len() - 1 - at);
        let around = cells[at - half..=at + half].iter().flatten();
        around.clone().sum::<f64>() / around.count().max(1) as f64
    };
    (0..cells.len()).map(mean).collect()
}

fn nan(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    let rows = at..at + size as usize;
    r.change(LOSS, rows.clone(), |_, _| f64::NAN);
    rows
}

fn constant(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    let rows = at..at + size as usize;
    let mut held = None;
    r.change(LOSS, rows.clone(), |_, v| *held.get_or_insert(v));
    rows
}

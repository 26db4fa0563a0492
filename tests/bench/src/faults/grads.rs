//! Faults of the gradient norm.

use std::ops::Range;

use super::fault::{Fault, Make, NEVER};
use crate::random::Random;
use crate::recording::{GRAD_NORM, LOSS, Recording};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "grad_single",
        about: "one sample of the gradient norm, multiplied: normal in healthy runs",
        unit: "times",
        sizes: &[2.0, 5.0, 10.0, 100.0, 1000.0],
        warn: NEVER,
        page: NEVER,
        class: "grad_spike",
        make: Make::Table { signals: &[GRAD_NORM], rows: 600, inject: single },
    },
    Fault {
        name: "grad_burst",
        about: "every third sample of 48, at random, multiplied",
        unit: "times",
        sizes: &[2.0, 3.0, 5.0, 10.0, 30.0, 100.0],
        warn: 3.0,
        page: 10.0,
        class: "grad_explosion",
        make: Make::Table { signals: &[GRAD_NORM], rows: 600, inject: burst },
    },
    Fault {
        name: "grad_runup",
        about: "eight steps, each so many times the last, then 40 at that height; the loss jumps by 1 nat at the sixth",
        unit: "times a step",
        sizes: &[1.2, 1.5, 2.0, 3.0, 5.0],
        warn: 1.2,
        page: 1.5,
        class: "grad_runup",
        make: Make::Table { signals: &[GRAD_NORM, LOSS], rows: 600, inject: runup },
    },
    Fault {
        name: "grad_level",
        about: "the gradient norm, multiplied from here on",
        unit: "times",
        sizes: &[1.2, 1.5, 2.0, 3.0, 5.0, 10.0],
        warn: 2.0,
        page: NEVER,
        class: "grad_regime",
        make: Make::Table { signals: &[GRAD_NORM], rows: 600, inject: level },
    },
];

fn single(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    r.change(GRAD_NORM, at..at + 1, |_, v| v * size);
    at..at + 1
}

fn burst(r: &mut Recording, at: usize, size: f64, random: &mut Random) -> Range<usize> {
    const LONG: usize = 48;
    r.change(GRAD_NORM, at..at + LONG, |i, v| {
        if i == 0 || random.unit() < 1.0 / 3.0 { v * size * random.between(0.8, 1.25) } else { v }
    });
    at..at + LONG
}

fn runup(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    const RISES: usize = 8;
    const LONG: usize = RISES + 40;
    r.change(GRAD_NORM, at..at + LONG, |i, v| v * size.powi((i + 1).min(RISES) as i32));
    r.change(LOSS, at + 5..at + LONG, |_, v| v + 1.0);
    at..at + LONG
}

fn level(r: &mut Recording, at: usize, size: f64, _: &mut Random) -> Range<usize> {
    r.change(GRAD_NORM, at..r.len(), |_, v| v * size);
    at..r.len()
}

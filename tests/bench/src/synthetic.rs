//! Clean series made up: what a healthy run looks like, with every trait drawn anew for a seed.
//!
//! The loss falls as a power of the step, with noise that has memory; the gradient norm is
//! log-normal about a level that falls too; step times are log-normal, with pauses for evaluation
//! in half of the runs and a rare slow step in all of them. Ranges are those of the real runs
//! beside.

use crate::random::{Ar1, Random};
use crate::recording::{Column, GRAD_NORM, LOSS, Recording, STEP_TIME};

/// The traits of one run.
#[derive(Debug, Clone)]
pub struct Traits {
    /// Loss that it falls to, the height above it at the first step, and the power by which that
    /// shrinks.
    pub floor: f64,
    pub height: f64,
    pub power: f64,
    /// Steps behind it when the series begins.
    pub age: f64,
    /// Standard deviation of the loss, in nats.
    pub loss_noise: f64,
    pub loss_memory: f64,
    pub grad: f64,
    /// Standard deviation of the logarithm.
    pub grad_noise: f64,
    pub grad_memory: f64,
    pub step_time: f64,
    /// Standard deviation of the logarithm.
    pub step_noise: f64,
    pub step_memory: f64,
    /// Steps between evaluations, and how many times longer such a step takes.
    pub evals: Option<(usize, f64)>,
    /// Chance of a slow step.
    pub hiccups: f64,
}

impl Traits {
    pub fn draw(random: &mut Random) -> Self {
        let evals = (random.unit() < 0.5).then(|| {
            let every = [100, 200, 250, 500][random.below(4)];
            (every, random.between(2.0, 20.0))
        });
        Self {
            floor: random.between(1.5, 2.8),
            height: random.between(4.0, 12.0),
            power: random.between(0.25, 0.5),
            age: random.between(100.0, 5000.0),
            loss_noise: random.between(0.005, 0.05),
            loss_memory: random.between(0.0, 0.6),
            grad: random.between(0.1, 2.0),
            grad_noise: random.between(0.03, 0.2),
            grad_memory: random.between(0.0, 0.7),
            step_time: random.between(0.5, 15.0),
            step_noise: random.between(0.002, 0.03),
            step_memory: random.between(0.0, 0.5),
            evals,
            hiccups: random.between(0.0, 0.002),
        }
    }

    pub fn record(&self, rows: usize, random: &mut Random) -> Recording {
        let mut noise =
            [self.loss_memory, self.grad_memory, self.step_memory].map(|phi| Ar1::new(phi, random));
        let mut cells = [const { Vec::new() }; 3];
        for row in 0..rows {
            let t = self.age + row as f64;
            let [l, g, s] = &mut noise;
            let loss = self.floor + self.height * t.powf(-self.power) + self.loss_noise * l.next(random);
            let fall = (t / self.age).powf(-0.1);
            let grad = self.grad * fall * (self.grad_noise * g.next(random)).exp();
            let mut step = self.step_time * (self.step_noise * s.next(random)).exp();
            if self.evals.is_some_and(|(every, _)| row % every == every - 1) {
                step *= self.evals.map_or(1.0, |(_, longer)| longer);
            } else if random.unit() < self.hiccups {
                step *= random.between(1.2, 2.0);
            }
            for (cells, v) in cells.iter_mut().zip([loss, grad, step]) {
                cells.push(Some(v));
            }
        }
        let names = [LOSS, GRAD_NORM, STEP_TIME];
        let columns = names.into_iter().zip(cells).map(|(n, cells)| Column { name: n.into(), cells });
        Recording { steps: (1..=rows as i64).collect(), columns: columns.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_run_and_it_is_healthy() {
        let make = |seed| {
            let mut random = Random::for_name("synthetic", seed);
            Traits::draw(&mut random).record(2000, &mut random)
        };
        assert_eq!(make(3), make(3));
        assert_ne!(make(3), make(4));
        for seed in 0..20 {
            let run = make(seed);
            let loss = &run.column(LOSS).unwrap().cells;
            let mean = |r: std::ops::Range<usize>| {
                let n = r.len() as f64;
                loss[r].iter().flatten().sum::<f64>() / n
            };
            assert!(mean(0..200) > mean(1800..2000), "it learns");
            assert!(run.columns.iter().all(|c| c.cells.iter().flatten().all(|v| v.is_finite() && *v > 0.0)));
        }
    }
}

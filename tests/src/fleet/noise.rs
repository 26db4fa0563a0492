//! Random distributions that resemble machines.

use crate::random::Random;

#[derive(Debug, Clone)]
pub(super) struct Noise(Random);

impl Noise {
    pub(super) fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// An independent stream of the same seed.
    pub(super) fn fork(&mut self) -> Self {
        Self::new(self.0.bits())
    }

    /// A standard normal value from four uniforms of one draw: tails end at 3.5 sigma, and outliers
    /// are a separate process.
    pub(super) fn normal(&mut self) -> f64 {
        let bits = self.0.bits();
        let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xFFFF).sum();
        (sum as f64 / 65_536.0 - 2.0) * 1.732
    }

    pub(super) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    pub(super) fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.0.unit()
    }

    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.0.unit()).ln()
    }

    pub(super) fn chance(&mut self, p: f64) -> bool {
        self.0.unit() < p
    }

    /// A random index below `n`.
    pub(super) fn index(&mut self, n: usize) -> usize {
        self.0.range(0, n as u64) as usize
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    /// A random choice by weight.
    pub(super) fn weighted<T: Copy>(&mut self, from: &[(T, f64)]) -> Option<T> {
        let total: f64 = from.iter().map(|(_, w)| w).sum();
        let mut left = total * self.0.unit();
        for (item, weight) in from {
            left -= weight;
            if left < 0.0 {
                return Some(*item);
            }
        }
        from.last().map(|(item, _)| *item)
    }
}

//! How long to wait before trying again: exponential with full jitter, so that a thousand readers
//! of a restarted switch do not come back in step.

use core::time::Duration;

#[derive(Debug, Clone, Copy)]
pub(crate) struct BackoffLimits {
    pub base: Duration,
    pub cap: Duration,
}

#[derive(Debug)]
pub(crate) struct Backoff {
    limits: BackoffLimits,
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(limits: BackoffLimits) -> Self {
        Self { limits, failures: 0 }
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn next(&mut self) -> Duration {
        // Without randomness there is no jitter, and everything else still works.
        let random = getrandom::u32().unwrap_or(u32::MAX);
        self.next_with(f64::from(random) / f64::from(u32::MAX))
    }

    fn next_with(&mut self, unit: f64) -> Duration {
        let ceiling = self.limits.base.saturating_mul(1 << self.failures.min(16)).min(self.limits.cap);
        self.failures = self.failures.saturating_add(1);
        // Not from zero: a peer that accepts and hangs up must not be hammered.
        let floor = self.limits.base.min(ceiling) / 4;
        floor + ceiling.saturating_sub(floor).mul_f64(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_cap_and_starts_over() {
        let ms = Duration::from_millis;
        let mut b = Backoff::new(BackoffLimits { base: ms(200), cap: ms(15_000) });
        let ceilings: Vec<_> = (0..9).map(|_| b.next_with(1.0).as_millis()).collect();
        assert_eq!(ceilings, [200, 400, 800, 1600, 3200, 6400, 12_800, 15_000, 15_000]);
        assert_eq!(b.next_with(0.0), ms(50));
        b.reset();
        assert_eq!(b.next_with(1.0), ms(200));
        for _ in 0..1000 {
            assert!(b.next() <= ms(15_000));
        }
    }
}

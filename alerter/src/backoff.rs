//! The wait before the next attempt: exponential with full jitter, so that many readers of a
//! restarted switch, or many failed lanes, do not retry at the same time.

use std::time::Duration;

/// The upper bounds of the wait after the first failure, and after any later one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

/// The backoff for messages to a receiver.
pub(crate) const DELIVERY: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_mins(5) };

/// The backoff for a page. It limits how long a receiver's recovery remains unnoticed while a
/// person should be woken.
pub(crate) const PAGE: Backoff = Backoff { longest: Duration::from_secs(30), ..DELIVERY };

/// The shortest wait, so that an immediate repeated failure does not spin or overload the peer.
const SHORTEST: Duration = Duration::from_millis(50);

/// The longest `Retry-After` that is honoured.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_hours(24);

/// The longest pause of a page: five minutes plus a tenth. A page does not wait longer because of a
/// header; it is retried, and other receivers are called meanwhile.
pub(crate) const PAGE_PAUSE_MAX: Duration = Duration::from_secs(330);

/// The wait if a receiver gave no `Retry-After`.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

/// Returns a random number in `0.0..1.0`.
pub(crate) type Random = fn() -> f64;

impl Backoff {
    /// The wait after `failures` failures, counted from 1.
    pub(crate) fn after(self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        let ceiling = self.first.saturating_mul(1 << doublings).min(self.longest);
        ceiling.mul_f64(random).max(SHORTEST.min(ceiling))
    }
}

/// The wait that the receiver asked for plus up to a tenth, never less.
pub(crate) fn retry_after(asked: Option<Duration>, random: f64) -> Duration {
    let wait = asked.unwrap_or(RETRY_AFTER_DEFAULT).min(RETRY_AFTER_MAX);
    wait.max(SHORTEST).mul_f64(1.0 + random / 10.0)
}

/// A random number from the kernel; 0.5 if that fails, which only loses the jitter.
pub(crate) fn random() -> f64 {
    getrandom::u32().map_or(0.5, |n| f64::from(n) / (f64::from(u32::MAX) + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_longest_wait_and_stays() {
        let longest = |n| DELIVERY.after(n, 0.999_999_9).as_millis();
        assert!((990..=1000).contains(&longest(1)), "{}", longest(1));
        assert!((1990..=2000).contains(&longest(2)));
        assert!((255_900..=256_000).contains(&longest(9)));
        for n in [10, 11, 64, u32::MAX] {
            assert!((299_900..=300_000).contains(&longest(n)), "{n}");
        }
        assert!((29_900..=30_000).contains(&PAGE.after(64, 0.999_999_9).as_millis()));
        assert_eq!(DELIVERY.after(5, 0.0), SHORTEST);
        let short = Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(20) };
        assert_eq!(short.after(64, 0.5), short.longest, "a longest wait below the shortest holds");
    }

    #[test]
    fn a_retry_after_is_honoured_and_capped() {
        let secs = Duration::from_secs;
        assert_eq!(retry_after(Some(secs(30)), 0.0), secs(30));
        assert_eq!(retry_after(Some(secs(30)), 1.0), secs(33));
        assert_eq!(retry_after(Some(secs(7200)), 0.0), secs(7200));
        assert_eq!(retry_after(Some(secs(864_000)), 0.0), RETRY_AFTER_MAX);
        assert_eq!(retry_after(Some(secs(0)), 0.0), SHORTEST);
        assert_eq!(retry_after(None, 0.0), secs(1));
        assert!((0..100).map(|_| random()).all(|r| (0.0..1.0).contains(&r)));
    }
}

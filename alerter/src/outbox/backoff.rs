//! How long to wait before the next attempt.

use std::time::Duration;

use stepwatch_model::time::Span;

/// Longest wait after the first failure.
const BASE: Span = Span::secs(1);

/// Longest wait after any failure.
const BACKOFF_MAX: Span = Span::secs(300);

/// The same for a page: how long a receiver that came back may stay unnoticed while somebody should
/// be woken.
const PAGE_BACKOFF_MAX: Span = Span::secs(30);

/// Shortest wait: a failure that repeats at once must not spin.
const BACKOFF_MIN: Span = Span::millis(50);

/// A receiver that asks for more is asked again after a day.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_hours(24);

/// Five minutes, and the tenth that is added. A page does not wait longer on one header: it is
/// tried again, and others are called meanwhile.
pub(crate) const PAGE_PAUSE_MAX: Duration = Duration::from_secs(330);

/// Asked for nothing in particular.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

/// A number in `0.0..1.0`.
pub(crate) type Random = fn() -> f64;

/// Exponential with full jitter, so that many lanes that failed together do not come back together.
/// `failures` counts from 1.
pub(crate) fn backoff(failures: u32, page: bool, random: f64) -> Span {
    let doublings = failures.saturating_sub(1).min(20);
    let cap = (BASE.0 << doublings).min(if page { PAGE_BACKOFF_MAX.0 } else { BACKOFF_MAX.0 });
    Span(((cap as f64 * random) as i64).max(BACKOFF_MIN.0))
}

/// What the receiver asked for and up to a tenth more, never less.
pub(crate) fn retry_after(asked: Option<Duration>, random: f64) -> Duration {
    let wait = asked.unwrap_or(RETRY_AFTER_DEFAULT).min(RETRY_AFTER_MAX);
    wait.max(BACKOFF_MIN_DURATION).mul_f64(1.0 + random / 10.0)
}

const BACKOFF_MIN_DURATION: Duration = Duration::from_millis(BACKOFF_MIN.0 as u64);

/// From the kernel; in the middle if it has none to give, which only costs jitter.
pub(crate) fn random() -> f64 {
    getrandom::u32().map_or(0.5, |n| f64::from(n) / (f64::from(u32::MAX) + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_five_minutes_and_stays() {
        let longest = |n| backoff(n, false, 0.999_999_9).0;
        assert!((990..=1000).contains(&longest(1)), "{}", longest(1));
        assert!((1990..=2000).contains(&longest(2)));
        assert!((255_900..=256_000).contains(&longest(9)));
        for n in [10, 11, 64, u32::MAX] {
            assert!((299_900..=300_000).contains(&longest(n)), "{n}");
        }
        assert!((29_900..=30_000).contains(&backoff(64, true, 0.999_999_9).0));
        assert_eq!(backoff(5, true, 0.0), BACKOFF_MIN);
    }

    #[test]
    fn a_retry_after_is_honoured_and_capped() {
        let secs = Duration::from_secs;
        assert_eq!(retry_after(Some(secs(30)), 0.0), secs(30));
        assert_eq!(retry_after(Some(secs(30)), 1.0), secs(33));
        assert_eq!(retry_after(Some(secs(7200)), 0.0), secs(7200));
        assert_eq!(retry_after(Some(secs(864_000)), 0.0), RETRY_AFTER_MAX);
        assert_eq!(retry_after(Some(secs(0)), 0.0), BACKOFF_MIN_DURATION);
        assert_eq!(retry_after(None, 0.0), secs(1));
        assert!((0..100).map(|_| random()).all(|r| (0.0..1.0).contains(&r)));
    }
}

//! The rate limit of requests: the token bucket of the exporter toolkit.
//!
//! One bucket serves all clients and all paths except the probes. It is checked before
//! authentication, so a refused request costs neither a password hash nor a handler.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use tokio::time::Instant;

/// Go's units of durations in seconds; a longer name before its own prefix.
const UNITS: [(&str, f64); 7] =
    [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
/// The least `Retry-After` in seconds; the header has no fractions.
const WAIT_MIN: u64 = 1;

/// One request per `interval`, and up to `burst` at once after a pause. An interval of 0 means no
/// limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub(super) struct RateLimit {
    interval: Duration,
    burst: u32,
}

/// The value in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, deserialize_with = "go_duration")]
    interval: Duration,
    #[serde(default)]
    burst: u32,
}

/// A token bucket: each request takes a token, and each interval adds one.
#[derive(Debug)]
pub(super) struct Bucket {
    limit: RateLimit,
    began: Instant,
    /// The time since `began` at which the bucket will be full.
    full_at: Mutex<Duration>,
}

impl TryFrom<Written> for RateLimit {
    type Error = String;

    fn try_from(Written { interval, burst }: Written) -> Result<Self, String> {
        if burst == 0 && !interval.is_zero() {
            return Err("burst: must be at least 1, or every request would be refused".into());
        }
        Ok(Self { interval, burst })
    }
}

impl Bucket {
    /// Creates a full bucket; `None` if there is no limit.
    pub(super) fn full(limit: RateLimit) -> Option<Self> {
        (!limit.interval.is_zero()).then(|| Self { limit, began: Instant::now(), full_at: Mutex::default() })
    }

    pub(super) fn limit(&self) -> RateLimit {
        self.limit
    }

    /// Takes a token, or returns the seconds until there is one.
    pub(super) fn take(&self) -> Result<(), u64> {
        let RateLimit { interval, burst } = self.limit;
        let now = self.began.elapsed();
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let then_full_at = full_at.max(now).saturating_add(interval);
        let room = interval.saturating_mul(burst);
        match then_full_at.saturating_sub(now).checked_sub(room).filter(|over| !over.is_zero()) {
            None => {
                *full_at = then_full_at;
                Ok(())
            }
            Some(wait) => {
                Err(wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(WAIT_MIN))
            }
        }
    }
}

/// Parses `1s`, `250ms`, `1m30s`; 0 needs no unit.
fn go_duration<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(d)?;
    parse(&text).ok_or_else(|| {
        serde::de::Error::custom(format!(
            "a duration is written as in 100ms, 1s or 1m30s (units ns us ms s m h); got {text:?}"
        ))
    })
}

fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let name = tail.find(|c: char| c.is_ascii_digit()).map_or(tail, |end| &tail[..end]);
        let (_, scale) = UNITS.iter().find(|(unit, _)| *unit == name)?;
        seconds += number.parse::<f64>().ok()? * scale;
        rest = &tail[name.len()..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bucket(interval: &str, burst: u32) -> Bucket {
        Bucket::full(RateLimit { interval: parse(interval).unwrap(), burst }).unwrap()
    }

    /// The number of requests that are admitted of `asked` at once.
    fn taken(bucket: &Bucket, asked: u32) -> u32 {
        (0..asked).filter(|_| bucket.take().is_ok()).count() as u32
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_taken_and_then_one_an_interval() {
        let bucket = bucket("1s", 3);
        assert_eq!(taken(&bucket, 10), 3);
        assert_eq!(bucket.take(), Err(1));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert_eq!(taken(&bucket, 10), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(taken(&bucket, 10), 1);
        tokio::time::advance(Duration::from_millis(2500)).await;
        assert_eq!(taken(&bucket, 10), 2);
        // A refused request takes no token, and a long pause adds no more than the burst.
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(taken(&bucket, 10), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_says_when_to_come_again() {
        let bucket = bucket("1m30s", 1);
        assert_eq!(bucket.take(), Ok(()));
        assert_eq!(bucket.take(), Err(90));
        tokio::time::advance(Duration::from_millis(89_500)).await;
        assert_eq!(bucket.take(), Err(1));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(bucket.take(), Ok(()));
    }

    #[test]
    fn no_interval_is_no_limit() {
        assert!(Bucket::full(RateLimit::default()).is_none());
        assert!(Bucket::full(RateLimit { interval: Duration::ZERO, burst: 5 }).is_none());
    }

    #[test]
    fn durations_are_those_of_go() {
        let millis = |text: &str| parse(text).map(|d| d.as_micros());
        assert_eq!(millis("0"), Some(0));
        assert_eq!(millis("1s"), Some(1_000_000));
        assert_eq!(millis("100us"), Some(100));
        assert_eq!(millis("100µs"), Some(100));
        assert_eq!(millis("1m30.5s"), Some(90_500_000));
        assert_eq!(millis("1.5h"), Some(5_400_000_000));
        for bad in ["", "1", "s", "1d", "1s2", "-1s", "1 s", ".s", "1..0s", "1e9s", "99999999999999999999h"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "[0-9.a-zµ ]{0,12}") {
            let _ = parse(&text);
        }

        /// In any time, at most the burst plus one request per interval is admitted, and a request
        /// after a whole interval is always admitted.
        #[test]
        fn no_more_are_taken_than_the_limit_says(burst in 1u32..6, pauses in prop::collection::vec(0u64..3000, 1..60)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let (taken, millis) = runtime.block_on(async {
                let bucket = bucket("1s", burst);
                let (mut taken, mut millis) = (0, 0);
                for pause in &pauses {
                    tokio::time::advance(Duration::from_millis(*pause)).await;
                    millis += pause;
                    let good = bucket.take().is_ok();
                    assert!(good || *pause < 1000, "a second's pause always earns one");
                    taken += u64::from(good);
                }
                (taken, millis)
            });
            prop_assert!(taken <= u64::from(burst) + millis / 1000);
        }
    }
}

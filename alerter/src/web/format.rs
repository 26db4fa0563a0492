//! Formats of times and durations on pages.

use stepwatch_model::time::{Span, Ts};

/// A past time, such as `3m 10s ago`.
pub(super) fn ago(now: Ts, at: Ts) -> String {
    format!("{} ago", Span((now - at).0.max(0)))
}

/// A future time, such as `in 4m`, or `now` if it is due.
pub(super) fn until(now: Ts, at: Ts) -> String {
    if at <= now { "now".to_owned() } else { format!("in {}", at - now) }
}

/// A time such as `2026-11-28 06:05:12 UTC`.
pub(super) fn clock(at: Ts) -> String {
    match jiff::Timestamp::from_millisecond(at.0) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => at.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after() {
        let now = Ts(1_795_227_416_980);
        assert_eq!(ago(now, Ts(now.0 - 190_000)), "3m 10s ago");
        assert_eq!(ago(now, Ts(now.0 + 5)), "0s ago", "clocks differ");
        assert_eq!((until(now, now), until(now, Ts(now.0 + 240_000))), ("now".into(), "in 4m".into()));
        assert_eq!(clock(now), "2026-11-21 02:16:56 UTC");
    }
}

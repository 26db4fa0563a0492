//! How pages write times, durations and money.

use stepwatch_model::time::{Span, Ts};

/// `3m 10s ago`
pub(super) fn ago(now: Ts, at: Ts) -> String {
    format!("{} ago", Span((now - at).0.max(0)))
}

/// `in 4m`, or `now` if it is due.
pub(super) fn until(now: Ts, at: Ts) -> String {
    if at <= now { "now".to_owned() } else { format!("in {}", at - now) }
}

/// `2026-11-28 06:05:12 UTC`
pub(super) fn clock(at: Ts) -> String {
    match jiff::Timestamp::from_millisecond(at.0) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => at.to_string(),
    }
}

/// In dollars, with cents where they count: `$4.20`, `$1,240`.
pub(super) fn money(dollars: f64) -> String {
    if dollars < 100.0 {
        return format!("${dollars:.2}");
    }
    let digits = format!("{dollars:.0}");
    let mut out = String::from("$");
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_read_at_a_glance() {
        for (dollars, text) in [
            (0.0, "$0.00"),
            (4.2, "$4.20"),
            (99.994, "$99.99"),
            (1240.4, "$1,240"),
            (999.6, "$1,000"),
            (1_234_567.0, "$1,234,567"),
        ] {
            assert_eq!(money(dollars), text);
        }
    }

    #[test]
    fn times_before_and_after() {
        let now = Ts(1_795_227_416_980);
        assert_eq!(ago(now, Ts(now.0 - 190_000)), "3m 10s ago");
        assert_eq!(ago(now, Ts(now.0 + 5)), "0s ago", "clocks differ");
        assert_eq!((until(now, now), until(now, Ts(now.0 + 240_000))), ("now".into(), "in 4m".into()));
        assert_eq!(clock(now), "2026-11-21 02:16:56 UTC");
    }
}

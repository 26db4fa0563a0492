//! Corrects values that no trainer can mean, before they are taken in. One clock in milliseconds or
//! one bad counter must not spoil gauges and totals, which cannot be set back.

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

/// Seconds ahead of this node's clock above which a time is wrong or in another unit.
const MAX_AHEAD_SECONDS: f64 = 600.0;
/// 2000-01-01 in Unix seconds: no event is older.
const EARLIEST: f64 = 946_684_800.0;
/// The most tokens of a step: a hundred times the largest batch in use.
const MAX_TOKENS: f64 = 1e12;

/// How many times and values were removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Repaired {
    pub(super) times: u64,
    pub(super) values: u64,
}

/// Removes impossible values. An event without a time later gets the time of its arrival.
pub(super) fn repair(event: &mut Event, now: f64) -> Repaired {
    let mut repaired = Repaired::default();
    if event.ts.is_some_and(|ts| !(EARLIEST..=now + MAX_AHEAD_SECONDS).contains(&ts)) {
        event.ts = None;
        repaired.times = 1;
    }
    if event.kind == Kind::Step {
        for (name, most) in [(metric::TOKENS, MAX_TOKENS), (metric::GRAD_NORM, f64::INFINITY)] {
            let absurd = |v: f64| v < 0.0 || v.is_finite() && v > most;
            if event.m.get(name).is_some_and(absurd) {
                event.m.remove(name);
                repaired.values += 1;
            }
        }
    }
    repaired
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_taken_away_and_the_rest_stands() {
        let now = 1_800_000_000.0;
        let repaired = |text: &str| {
            let mut event = Event::parse(text.as_bytes()).unwrap();
            let repaired = repair(&mut event, now);
            ((repaired.times, repaired.values), event)
        };
        for ts in ["1800000601", "1800000000000", "-5", "0", "946684799"] {
            let (count, event) = repaired(&format!(r#"{{"k":"step","step":1,"ts":{ts},"loss":2}}"#));
            assert_eq!((count, event.ts, event.m.get("loss")), ((1, 0), None, Some(2.0)), "{ts}");
        }
        let (count, event) =
            repaired(r#"{"k":"step","step":1,"ts":1799990000,"tokens":1e300,"grad_norm":-1,"loss":-3}"#);
        assert_eq!((count, event.ts), ((0, 2), Some(1_799_990_000.0)));
        assert_eq!(event.m.iter().collect::<Vec<_>>(), [("loss", -3.0)]);
        let (count, event) = repaired(r#"{"k":"step","step":1,"grad_norm":Infinity,"tokens":5}"#);
        assert_eq!((count, event.m.len()), ((0, 0), 2), "not a number is for the detectors");
    }
}

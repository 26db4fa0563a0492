//! Detects gauges that still show a number that is no longer true.
//!
//! OpenTelemetry's SDKs drop a measurement that is not finite, and the gauge keeps its last value.
//! So a run that trains on NaN looks like one whose loss is constant to the last digit. A value
//! that is exported again is no sample. One that stays for far longer than it ever did, while the
//! steps go on, is missing.

use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

/// The number of changes after which a gauge's usual interval is known.
const KNOWN: u32 = 8;
/// The number of further steps for which a value may stay the same is at least `PATIENCE`, and
/// `TIMES` its longest interval so far.
const PATIENCE: u32 = 10;
const TIMES: u32 = 3;

const WATCHED: [&str; 2] = [metric::LOSS, metric::GRAD_NORM];

#[derive(Debug, Clone, Default)]
pub(super) struct Stale {
    step: Option<i64>,
    gauges: [Held; WATCHED.len()],
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    value: Option<f64>,
    changes: u32,
    unchanged: u32,
    longest: u32,
}

impl Stale {
    /// Removes values that are not new from a report, and marks those that stay too long as
    /// missing.
    pub(super) fn look(&mut self, event: &mut Event) {
        let advanced = self.step < event.step;
        self.step = event.step;
        for (name, held) in WATCHED.iter().zip(&mut self.gauges) {
            let Some(value) = event.m.get(name) else { continue };
            if held.value != Some(value) {
                let longest = held.longest.max(held.unchanged);
                *held = Held {
                    value: Some(value),
                    changes: held.changes.saturating_add(1),
                    unchanged: 0,
                    longest,
                };
                continue;
            }
            event.m.remove(name);
            held.unchanged = held.unchanged.saturating_add(u32::from(advanced));
            let patience = PATIENCE.max(held.longest.saturating_mul(TIMES));
            let missing = held.changes >= KNOWN && held.unchanged > patience;
            if missing && event.missing.iter().all(|m| m != name) {
                event.missing.push((*name).to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps at which the loss was new, and those at which it was missing.
    fn watch(losses: impl IntoIterator<Item = f64>) -> (Vec<i64>, Vec<i64>) {
        let (mut stale, mut new, mut missing) = (Stale::default(), Vec::new(), Vec::new());
        for (step, loss) in (0..).zip(losses) {
            let mut e = Event::step("r", step);
            e.m.set(metric::LOSS, loss);
            stale.look(&mut e);
            new.extend(e.m.get(metric::LOSS).map(|_| step));
            missing.extend((!e.missing.is_empty()).then_some(step));
        }
        (new, missing)
    }

    #[test]
    fn a_loss_that_stops_changing_is_missing() {
        let (new, missing) = watch((0..40).map(|i| f64::from(i.min(20))));
        assert_eq!((new.last(), missing.first()), (Some(&20), Some(&31)));
    }

    #[test]
    fn a_gauge_set_every_tenth_step_is_only_slow() {
        let (new, missing) = watch((0..400).map(|i| f64::from(i / 10)));
        assert!(missing.is_empty());
        assert_eq!(new.len(), 40);
        let (_, missing) = watch((0..400).map(|i| f64::from((i / 10).min(20))));
        assert_eq!(missing.first(), Some(&228), "after three times its usual stay");
    }
}

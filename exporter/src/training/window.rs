//! The maximum of the last minutes, which a gauge scraped every 15 seconds does not show.

const SLOTS: usize = 30;

/// The maximum over a sliding window, kept in slots of a thirtieth of the window: memory is
/// constant, and a value leaves the window at most one slot late.
///
/// Values that are not finite are ignored. They are counted elsewhere, and would hide all others
/// here.
#[derive(Debug, Clone)]
pub(super) struct WindowMax {
    slot_seconds: f64,
    slots: [(i64, f64); SLOTS],
}

impl WindowMax {
    pub(super) fn new(window_seconds: f64) -> Self {
        Self { slot_seconds: window_seconds / SLOTS as f64, slots: [(i64::MIN, 0.0); SLOTS] }
    }

    pub(super) fn record(&mut self, value: f64, now: f64) {
        if !value.is_finite() {
            return;
        }
        let id = self.id(now);
        let slot = &mut self.slots[id.rem_euclid(SLOTS as i64) as usize];
        if slot.0 == id {
            slot.1 = slot.1.max(value);
        } else if slot.0 < id {
            *slot = (id, value);
        }
    }

    /// The maximum of the window that ends at `now`; `None` if it is empty.
    pub(super) fn get(&self, now: f64) -> Option<f64> {
        let oldest = self.id(now).saturating_sub(SLOTS as i64);
        self.slots.iter().filter(|(id, _)| *id > oldest).map(|(_, v)| *v).reduce(f64::max)
    }

    fn id(&self, now: f64) -> i64 {
        (now / self.slot_seconds).floor() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_spike_stays_for_the_window_and_then_leaves() {
        let mut w = WindowMax::new(60.0);
        w.record(2.0, 1000.0);
        w.record(9.0, 1001.0);
        w.record(f64::NAN, 1002.0);
        w.record(f64::INFINITY, 1002.0);
        w.record(2.1, 1040.0);
        assert_eq!(w.get(1058.0), Some(9.0));
        assert_eq!(w.get(1070.0), Some(2.1));
        assert_eq!(w.get(1200.0), None);
    }

    proptest! {
        #[test]
        fn is_the_maximum_within_one_slot(values in proptest::collection::vec((0.0f64..200.0, -5.0f64..5.0), 1..100)) {
            let mut w = WindowMax::new(60.0);
            let mut at = 0.0;
            let mut all = Vec::new();
            for (gap, v) in values {
                at += gap / 20.0;
                w.record(v, at);
                all.push((at, v));
            }
            let got = w.get(at).unwrap();
            let max = |seconds: f64| all.iter().filter(|(t, _)| *t > at - seconds).map(|(_, v)| *v).fold(f64::MIN, f64::max);
            prop_assert!(got >= max(58.0) && got <= max(60.001), "{got} {} {}", max(58.0), max(60.0));
        }
    }
}

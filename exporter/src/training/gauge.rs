//! The last value of a metric of the whole run. Several ranks and sources may report different
//! ones.

/// Seconds without reports of a rank after which a higher rank may replace its value.
const STALE_SECONDS: f64 = 60.0;

/// The origin of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct At {
    pub(super) attempt: u32,
    pub(super) step: i64,
    pub(super) rank: u32,
    pub(super) now: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gauge {
    pub(super) value: f64,
    at: At,
}

impl Gauge {
    /// Whether a value from `at` represents the run: only that of the lowest reporting rank does,
    /// in the order of its steps.
    pub(super) fn accepts(slot: Option<&Self>, at: At) -> bool {
        let Some(Self { at: held, .. }) = slot else { return true };
        let leads = at.rank <= held.rank || at.now - held.now > STALE_SECONDS;
        leads && (at.attempt, at.step) >= (held.attempt, held.step)
    }

    /// Stores a finite value that represents the run. Returns whether it was stored.
    pub(super) fn offer(slot: &mut Option<Self>, value: f64, at: At) -> bool {
        let takes = value.is_finite() && Self::accepts(slot.as_ref(), at);
        if takes {
            *slot = Some(Self { value, at });
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rank_that_reports_speaks_for_the_run() {
        let at = |attempt, step, rank, now| At { attempt, step, rank, now };
        let mut slot = None;
        assert!(Gauge::offer(&mut slot, 2.0, at(0, 5, 3, 0.0)));
        assert!(!Gauge::offer(&mut slot, 9.0, at(0, 6, 4, 0.0)), "a higher rank");
        assert!(Gauge::offer(&mut slot, 1.9, at(0, 6, 0, 1.0)));
        assert!(!Gauge::offer(&mut slot, 9.0, at(0, 4, 0, 1.0)), "an earlier step");
        assert!(!Gauge::offer(&mut slot, f64::NAN, at(0, 7, 0, 2.0)));
        assert!(Gauge::offer(&mut slot, 2.5, at(1, 3, 0, 3.0)), "an earlier step of a later attempt");
        assert!(Gauge::offer(&mut slot, 2.4, at(1, 9, 7, 100.0)), "the lower rank fell silent");
        assert_eq!(slot.map(|g| g.value), Some(2.4));
    }
}

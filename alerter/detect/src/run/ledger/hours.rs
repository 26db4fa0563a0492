//! What was accounted of each hour: the rows that are kept for ever.
//!
//! Time is accounted when it is known what it was, which may be hours later, as that of a run that
//! stood still. So what is accounted at once is spread over the hours that it lasted.

use serde::{Deserialize, Serialize};

use super::totals::Totals;
use stepwatch_model::time::{Span, Ts};

pub const HOUR: Span = Span::secs(3600);
/// Hours over which a time is spread. A longer one, whose beginning no clock of ours gave, is in
/// the last of them.
const MAX_SPREAD: i64 = 1000;

/// What is accounted of an hour of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HourTotals {
    /// Hours from 1970 on to its beginning.
    pub hour: i64,
    pub totals: Totals,
}

/// The same, and of which run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunHour {
    pub run: String,
    pub hour: HourTotals,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Hours {
    /// Accounted since the last [`Self::settle`].
    interval: Totals,
    /// All time until the next [`Self::settle`] is within the open hour, and is added to it.
    #[serde(skip)]
    is_within: bool,
    open: Option<HourTotals>,
    /// Of all hours that are over.
    before: Totals,
    /// Those that are over and were not taken.
    over: Vec<HourTotals>,
}

impl Hours {
    /// What is accounted of the time that is settled next.
    pub(super) fn interval(&mut self) -> &mut Totals {
        match &mut self.open {
            Some(open) if self.is_within => &mut open.totals,
            _ => &mut self.interval,
        }
    }

    /// The time that is settled next is between the two: nearly always within one hour.
    pub(super) fn spans(&mut self, from: Ts, to: Ts) {
        let is_open = |open: &HourTotals| hour_of(from) == open.hour && hour_of(Ts(to.0 - 1)) == open.hour;
        self.is_within = from < to && self.open.as_ref().is_some_and(is_open);
    }

    /// All that is accounted.
    pub(super) fn total(&self) -> Totals {
        let mut total = self.before.clone();
        self.open.iter().for_each(|open| total.join(&open.totals));
        total.join(&self.interval);
        total
    }

    pub(super) fn open(&self) -> Option<HourTotals> {
        self.open.clone()
    }

    pub(super) fn take(&mut self) -> Vec<HourTotals> {
        core::mem::take(&mut self.over)
    }

    /// What was accounted since the last time was of the time between the two.
    pub(super) fn settle(&mut self, from: Option<Ts>, to: Option<Ts>) {
        self.is_within = false;
        let (Some(from), Some(to)) = (from.or(to), to.or(from)) else { return };
        if self.interval.is_empty() {
            return;
        }
        let mut rest = core::mem::take(&mut self.interval);
        // The end of an hour is of it.
        let end = Ts(to.0 - 1).max(from);
        let last = hour_of(end).max(self.open.as_ref().map_or(i64::MIN, |open| open.hour));
        let first = hour_of(from).clamp(last.saturating_sub(MAX_SPREAD), last);
        let mut begun = from.0.max(first * HOUR.0);
        for hour in first..last {
            let end = (hour + 1) * HOUR.0;
            let share = (end - begun) as f64 / (to.0 - begun).max(1) as f64;
            self.add(hour, &rest.take_part(share.clamp(0.0, 1.0)));
            begun = end;
        }
        self.add(last, &rest);
        rest.clear();
        self.interval = rest;
    }

    fn add(&mut self, hour: i64, totals: &Totals) {
        match &mut self.open {
            // A clock that was set back does not open an hour again.
            Some(open) if open.hour >= hour => open.totals.join(totals),
            open => {
                if let Some(over) = open.replace(HourTotals { hour, totals: totals.clone() }) {
                    self.before.join(&over.totals);
                    self.over.push(over);
                }
            }
        }
    }
}

fn hour_of(at: Ts) -> i64 {
    at.0.div_euclid(HOUR.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::totals::TimeState;
    use super::*;

    fn at(hours: f64) -> Ts {
        Ts((hours * HOUR.0 as f64) as i64)
    }

    fn hours(of: &mut Hours) -> Vec<(i64, f64)> {
        let mut all = of.take();
        all.extend(of.open());
        all.iter().map(|h| (h.hour, h.totals.seconds(TimeState::Stalled) / 3600.0)).collect()
    }

    #[test]
    fn what_lasts_for_hours_is_in_each_of_them() {
        let mut all = Hours::default();
        all.interval().add(TimeState::Stalled, 9_000_000, 0, 0.0);
        all.settle(Some(at(10.25)), Some(at(12.75)));
        assert_eq!(hours(&mut all), [(10, 0.75), (11, 1.0), (12, 0.75)]);
        all.interval().add(TimeState::Stalled, 900_000, 0, 0.0);
        all.settle(Some(at(12.75)), Some(at(13.0)));
        assert_eq!(hours(&mut all), [(12, 1.0)]);
        all.interval().add(TimeState::Stalled, 1, 0, 0.0);
        all.settle(Some(Ts(0)), Some(at(500_000.5)));
        let spread = hours(&mut all);
        assert_eq!((spread[1].0, spread.len()), (499_000, 1002), "a clock that began in 1970");
    }

    proptest! {
        /// Hours never go back, and nothing gets lost between them.
        #[test]
        fn the_hours_are_the_whole(steps in prop::collection::vec((0i64..20_000_000, 0i64..9_000_000, 0u32..600), 1..40)) {
            let (mut all, mut now, mut total) = (Hours::default(), at(480_000.3), Totals::default());
            let mut rows: Vec<HourTotals> = Vec::new();
            for (lasts, ms, gpus) in steps {
                let gpu_ms = ms * i64::from(gpus);
                for sums in [all.interval(), &mut total] {
                    sums.add(TimeState::Productive, ms, gpu_ms, 0.0);
                    sums.counts.interruptions += 1;
                }
                all.settle(Some(now), Some(Ts(now.0 + lasts)));
                now = Ts(now.0 + lasts);
                rows.extend(all.take());
            }
            rows.extend(all.open());
            prop_assert!(rows.is_sorted_by(|a, b| a.hour < b.hour));
            let mut sum = Totals::default();
            rows.iter().for_each(|row| sum.join(&row.totals));
            prop_assert_eq!(sum, total);
        }
    }
}

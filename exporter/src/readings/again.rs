//! Points that say which step they are of, and are exported again and again.
//!
//! An SDK keeps a series for every set of attributes it was ever given and exports all of them each
//! time: with the step among the attributes each export begins at the first step. What was told
//! before is taken out here; what is told by a process that began anew, at steps that went back, is
//! not.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::{Readings, Report, Value, Who};

/// Steps that are recognised when the newest of an export is older than the last that was told.
const MAX_RECENT: usize = 8;

/// Steps told last, with what they said.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<(i64, u64)>);

impl Recent {
    pub(super) fn note(&mut self, report: &Report<'_>) {
        let Some(told) = fingerprint(report) else { return };
        if !self.0.contains(&told) {
            if self.0.len() >= MAX_RECENT {
                self.0.pop_front();
            }
            self.0.push_back(told);
        }
    }

    fn knows(&self, report: &Report<'_>) -> bool {
        fingerprint(report).is_some_and(|told| self.0.contains(&told))
    }
}

impl Readings {
    /// Takes out of one export the steps that were told before. `known` is the last step that is
    /// known of a rank.
    pub(crate) fn sift<'a>(
        &self,
        told: Vec<(Who, Report<'a>)>,
        known: impl Fn(&Who) -> Option<i64>,
    ) -> Vec<(Who, Report<'a>)> {
        let mut newest: BTreeMap<(String, u32), (i64, bool)> = BTreeMap::new();
        for (who, report) in &told {
            let key = (who.run.clone(), who.rank);
            let Some(step) = report.step else { continue };
            if newest.get(&key).is_none_or(|(before, _)| *before <= step) {
                let repeated = self.ranks.get(&key).is_some_and(|rank| rank.recent.knows(report));
                newest.insert(key, (step, repeated));
            }
        }
        let from = |who: &Who, (newest, repeated): (i64, bool)| {
            let rank = self.ranks.get(&(who.run.clone(), who.rank)).filter(|rank| rank.told);
            let last = rank.map_or_else(|| known(who), |rank| rank.step)?;
            // It went back, to steps that are new.
            (newest >= last || repeated).then_some(last)
        };
        let floors: BTreeMap<_, _> = told
            .iter()
            .filter_map(|(who, _)| {
                let key = (who.run.clone(), who.rank);
                let newest = *newest.get(&key)?;
                Some((key, from(who, newest)?))
            })
            .collect();
        let is_new = |(who, report): &(Who, Report<'_>)| {
            let floor = floors.get(&(who.run.clone(), who.rank));
            report.step.zip(floor).is_none_or(|(step, floor)| step >= *floor)
        };
        told.into_iter().filter(is_new).collect()
    }
}

/// A step and what is said of it.
fn fingerprint(report: &Report<'_>) -> Option<(i64, u64)> {
    let mut hasher = DefaultHasher::new();
    for reading in &report.readings {
        match reading.value {
            Value::Gauge(v) | Value::Measured(v) | Value::Increment(v) => v.to_bits().hash(&mut hasher),
            Value::Total { total, .. } => total.to_bits().hash(&mut hasher),
            Value::Durations { count, sum, .. } => (count.to_bits(), sum.to_bits()).hash(&mut hasher),
        }
    }
    Some((report.step?, hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readings::Names;

    fn who() -> Who {
        Who { run: "r".into(), certain: true, ..Who::default() }
    }

    /// Steps that are taken of an export of a loss a step.
    fn export(readings: &mut Readings, steps: &[i64], known: Option<i64>) -> Vec<i64> {
        let names = Names::default();
        let report = |step: &i64| {
            let readings = vec![names.reading("loss", "", Value::Gauge(*step as f64 / 7.0))];
            (who(), Report { step: Some(*step), readings, ..Report::default() })
        };
        let told = readings.sift(steps.iter().map(report).collect(), |_| known);
        let mut taken = Vec::new();
        for (who, report) in told {
            let events = readings.take(&who, report, known, 0.0).events;
            taken.extend(events.iter().filter_map(|e| e.step));
        }
        taken
    }

    #[test]
    fn steps_are_told_once_however_often_they_are_exported() {
        let mut readings = Readings::new(0.0);
        assert_eq!(export(&mut readings, &[100], None), [100]);
        assert_eq!(export(&mut readings, &[100, 110, 120], Some(100)), [110, 120]);
        assert_eq!(export(&mut readings, &[100, 110, 120], Some(120)), [0i64; 0]);
        assert_eq!(export(&mut readings, &[100, 110, 120, 130], Some(120)), [130]);
        // Another signal of the same process is further already.
        assert_eq!(export(&mut readings, &[100, 110], Some(130)), [0i64; 0]);
    }

    #[test]
    fn a_process_that_begins_anew_is_heard() {
        let mut readings = Readings::new(0.0);
        export(&mut readings, &[100, 110, 120], None);
        assert_eq!(export(&mut readings, &[50], Some(120)), [50]);
        assert_eq!(export(&mut readings, &[50, 60], Some(120)), [60]);
    }

    #[test]
    fn nothing_is_told_again_after_a_restart_of_ours() {
        let mut readings = Readings::new(0.0);
        assert_eq!(export(&mut readings, &[100, 110, 120], Some(110)), [120]);
    }
}

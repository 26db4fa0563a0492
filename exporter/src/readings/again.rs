//! Removes points with steps that are exported repeatedly.
//!
//! An SDK keeps a series for every set of attributes and exports all of them each time: with the
//! step among the attributes, each export begins at the first step. Points that were reported
//! before are removed here. Points of a restarted process, whose steps went back, are kept.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hasher as _};

use super::{Readings, Report, Who};

/// The most steps by which a repetition is recognised if an export ends before the last reported
/// step.
const MAX_RECENT: usize = 8;

/// The last reported steps, each with a fingerprint of its values.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<(i64, u64)>);

impl Recent {
    pub(super) fn note(&mut self, report: &Report<'_>) {
        let Some(print) = fingerprint(report) else { return };
        if !self.0.contains(&print) {
            if self.0.len() >= MAX_RECENT {
                self.0.pop_front();
            }
            self.0.push_back(print);
        }
    }

    fn knows(&self, report: &Report<'_>) -> bool {
        fingerprint(report).is_some_and(|print| self.0.contains(&print))
    }
}

impl Readings {
    /// Removes the steps from an export that were reported before. `known` gives the last known
    /// step of a rank.
    pub(crate) fn sift<'a>(
        &self,
        reports: Vec<(Who, Report<'a>)>,
        known: impl Fn(&Who) -> Option<i64>,
    ) -> Vec<(Who, Report<'a>)> {
        let mut newest: BTreeMap<(String, u32), (i64, bool)> = BTreeMap::new();
        for (who, report) in &reports {
            let key = (who.run.clone(), who.rank);
            let Some(step) = report.step else { continue };
            if newest.get(&key).is_none_or(|(before, _)| *before <= step) {
                let repeated = self.ranks.get(&key).is_some_and(|rank| rank.recent.knows(report));
                newest.insert(key, (step, repeated));
            }
        }
        let from = |who: &Who, (newest, repeated): (i64, bool)| {
            let rank = self.ranks.get(&(who.run.clone(), who.rank)).filter(|rank| rank.gives_steps);
            let last = rank.map_or_else(|| known(who), |rank| rank.step)?;
            // Otherwise it went back to steps that are new.
            (newest >= last || repeated).then_some(last)
        };
        let floors: BTreeMap<_, _> = reports
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
        reports.into_iter().filter(is_new).collect()
    }
}

/// A fingerprint of a step and its values.
fn fingerprint(report: &Report<'_>) -> Option<(i64, u64)> {
    let mut hasher = DefaultHasher::new();
    for reading in &report.readings {
        reading.value.fingerprint(&mut hasher);
    }
    Some((report.step?, hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readings::{Names, Value};

    fn who() -> Who {
        Who { run: "r".into(), certain: true, ..Who::default() }
    }

    /// The steps that are accepted of an export with one loss a step.
    fn export(readings: &mut Readings, steps: &[i64], known: Option<i64>) -> Vec<i64> {
        let names = Names::default();
        let report = |step: &i64| {
            let readings = vec![names.reading("loss", "", Value::Gauge(*step as f64 / 7.0))];
            (who(), Report { step: Some(*step), readings, ..Report::default() })
        };
        let new = readings.sift(steps.iter().map(report).collect(), |_| known);
        let mut taken = Vec::new();
        for (who, report) in new {
            let events = readings.take(&who, report, known, 0.0).events;
            taken.extend(events.iter().filter_map(|e| e.step));
        }
        taken
    }

    #[test]
    fn steps_are_published_once_however_often_they_are_exported() {
        let mut readings = Readings::new(0.0);
        assert_eq!(export(&mut readings, &[100], None), [100]);
        assert_eq!(export(&mut readings, &[100, 110, 120], Some(100)), [110, 120]);
        assert_eq!(export(&mut readings, &[100, 110, 120], Some(120)), [0i64; 0]);
        assert_eq!(export(&mut readings, &[100, 110, 120, 130], Some(120)), [130]);
        // Another signal of the same process is already further.
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
    fn nothing_is_published_again_after_a_restart_of_ours() {
        let mut readings = Readings::new(0.0);
        assert_eq!(export(&mut readings, &[100, 110, 120], Some(110)), [120]);
    }
}

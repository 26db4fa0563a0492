//! The labels that all alerts of a group have in common, without a scan of the group at each
//! change.
//!
//! One alert of the group is the measure: for each of its labels, the number of alerts with the
//! same value is kept. The group is scanned only when the measure itself is removed. Its successor
//! does not depend on the order in which alerts are removed.

use std::sync::Arc;

use super::alert::Alert;
use crate::matcher::Labels;

#[derive(Debug, Clone, Default)]
pub(super) struct Common {
    measure: Option<Arc<Alert>>,
    /// For each label of the measure, in order, how many alerts have the same value.
    alike: Vec<usize>,
    count: usize,
}

impl Common {
    pub(super) fn add(&mut self, alert: &Arc<Alert>) {
        if self.measure.is_none() {
            self.alike = vec![0; alert.labels.iter().count()];
            self.measure = Some(Arc::clone(alert));
        }
        self.count += 1;
        self.each_alike(alert, |n| n + 1);
    }

    /// Removes an alert. `left` are those that still fire.
    pub(super) fn remove<'a>(&mut self, alert: &Alert, left: impl Iterator<Item = &'a Arc<Alert>>) {
        if self.measure.as_ref().is_some_and(|m| m.fingerprint == alert.fingerprint) {
            *self = Self::default();
            return left.for_each(|other| self.add(other));
        }
        self.count = self.count.saturating_sub(1);
        self.each_alike(alert, |n| n.saturating_sub(1));
    }

    /// The labels that all alerts have in common.
    pub(super) fn labels(&self) -> Labels {
        let labels = self.measure.iter().flat_map(|m| m.labels.iter()).zip(&self.alike);
        let common = labels.filter(|(_, alike)| **alike == self.count);
        common.map(|((name, value), _)| (name.to_owned(), value.to_owned())).collect()
    }

    fn each_alike(&mut self, alert: &Alert, change: impl Fn(usize) -> usize) {
        let Some(measure) = &self.measure else { return };
        for ((name, value), alike) in measure.labels.iter().zip(&mut self.alike) {
            if alert.labels.get(name) == Some(value) {
                *alike = change(*alike);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::{LabelSet, Limits};
    use super::*;
    use stepwatch_model::Ts;

    fn alert(labels: &BTreeMap<u8, u8>) -> Arc<Alert> {
        let pair = |(name, value): (&u8, &u8)| (format!("l{name}").into(), format!("v{value}").into());
        let labels: LabelSet = labels.iter().map(pair).collect();
        Arc::new(Alert::new(labels, LabelSet::default(), Ts(0), "", &Limits::default()).unwrap())
    }

    proptest! {
        #[test]
        fn it_is_what_all_of_them_have_alike(
            steps in prop::collection::vec((any::<bool>(), prop::collection::btree_map(0_u8..4, 0_u8..3, 1..4)), 1..60)
        ) {
            let mut firing: BTreeMap<u64, Arc<Alert>> = BTreeMap::new();
            let mut common = Common::default();
            for (comes, labels) in steps {
                let alert = alert(&labels);
                if comes && firing.insert(alert.fingerprint, Arc::clone(&alert)).is_none() {
                    common.add(&alert);
                } else if !comes && firing.remove(&alert.fingerprint).is_some() {
                    common.remove(&alert, firing.values());
                }
                let mut all = firing.values().map(|a| a.labels.to_labels());
                let mut want = all.next().unwrap_or_default();
                for other in all {
                    want.retain(|name, value| other.get(name) == Some(value));
                }
                prop_assert_eq!(common.labels(), want);
            }
        }
    }
}

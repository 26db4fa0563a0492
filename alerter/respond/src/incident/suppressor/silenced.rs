//! Finds the silence that suppresses an incident.

use std::sync::Arc;

use super::Suppressor;
use crate::external::Alert;
use crate::incident::labels::OURS;
use crate::incident::open::Incident;
use crate::incident::report::View;
use crate::silence::SilencedBy;
use stepwatch_model::Scope;

impl Suppressor {
    /// The silence that suppresses an incident now.
    ///
    /// External alerts are silenced one by one, as in Alertmanager. Their incident is silenced if
    /// every alert that fires is.
    pub(super) fn silenced(&self, view: View<'_>, i: &Incident) -> Option<SilencedBy> {
        if self.silences.is_idle(view.now) {
            return None;
        }
        let alerts: Vec<&Arc<Alert>> = i
            .raised
            .keys()
            .filter_map(
                |(subject, _)| if let Scope::Alert(of) = &subject.scope { Some(&of.key) } else { None },
            )
            .flat_map(|key| view.external.members(key))
            .collect();
        let only_alerts = i.raised.keys().all(|(subject, _)| matches!(subject.scope, Scope::Alert(_)));
        if alerts.is_empty() || !only_alerts {
            return self.silences.silenced(&i.record.labels, view.now);
        }
        let mut first: Option<SilencedBy> = None;
        for alert in alerts {
            // The alert's own severity may have another name than ours: a silence may match either.
            let (mut theirs, mut ours) = (i.record.labels.clone(), alert.labels.to_labels());
            theirs.extend(ours.clone());
            for name in OURS {
                ours.extend(i.record.labels.get(*name).map(|value| ((*name).to_owned(), value.clone())));
            }
            let silenced = |labels| self.silences.silenced(labels, view.now);
            let silenced_by = silenced(&theirs).or_else(|| silenced(&ours))?;
            if first.as_ref().is_none_or(|f| silenced_by.until < f.until) {
                first = Some(silenced_by);
            }
        }
        first
    }
}

//! Silences, seen from the incidents that they keep quiet.

use crate::effect::Tx;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::labels::OURS;
use super::manager::Manager;
use super::open::Incident;
use super::targets::Recipient;
use crate::effect::Action;
use crate::effect::by_actor;
use crate::external::Alert;
use crate::message::Why;
use crate::silence::SilencedBy;
use stepwatch_model::{Cause, Kind, Scope, Subject, Ts};

/// Incidents of one silence about whose end somebody is reminded; the others have it in their
/// history.
const MAX_REMINDERS: usize = 20;

impl Manager {
    /// The silence that keeps an incident quiet at `now`.
    ///
    /// Alerts of other programs are silenced one by one, as Alertmanager does it: what they make
    /// together is quiet when each of them that fires is.
    pub(super) fn silenced(&self, now: Ts, i: &Incident) -> Option<SilencedBy> {
        if self.silences.is_idle(now) {
            return None;
        }
        let alerts: Vec<&Arc<Alert>> = i
            .raised
            .keys()
            .filter_map(|(subject, _)| if let Scope::Alert(key) = &subject.scope { Some(key) } else { None })
            .flat_map(|key| self.external.members(key))
            .collect();
        let only_alerts = i.raised.keys().all(|(subject, _)| matches!(subject.scope, Scope::Alert(_)));
        if alerts.is_empty() || !only_alerts {
            return self.silences.silenced(&i.record.labels, now);
        }
        let mut first: Option<SilencedBy> = None;
        for alert in alerts {
            // Its own severity may have another name than ours: a silence may use either.
            let (mut theirs, mut ours) = (i.record.labels.clone(), alert.labels.to_labels());
            theirs.extend(ours.clone());
            for name in OURS {
                ours.extend(i.record.labels.get(*name).map(|value| ((*name).to_owned(), value.clone())));
            }
            let hush = self.silences.silenced(&theirs, now).or_else(|| self.silences.silenced(&ours, now))?;
            if first.as_ref().is_none_or(|f| hush.until < f.until) {
                first = Some(hush);
            }
        }
        first
    }

    /// The alerts that were ever in the incident of a group, by what makes each one; none if it has
    /// none.
    pub(crate) fn alerts_of(&self, group: &Scope, kind: Kind) -> Option<&BTreeSet<u64>> {
        let subject = Subject { scope: group.clone(), cause: kind.cause() };
        let open = self.correlator.find(&subject).and_then(|id| self.open.get(&id));
        let closed = || self.closed.find(&subject).and_then(|id| self.closed.get(&id));
        open.or_else(closed).map(|i| &i.alerts)
    }

    /// Other alerts fire than before: what was silenced may not be any more.
    pub(crate) fn alerts_changed(&mut self, tx: &mut Tx<'_>, group: &str, cause: Cause) {
        let subject = Subject { scope: Scope::Alert(group.to_owned()), cause };
        let Some(id) = self.correlator.find(&subject) else { return };
        if self.open.get(&id).is_some_and(|i| i.record.quiet.is_some()) {
            self.reevaluate_suppression(tx, &id);
        }
    }

    /// Tells those who rely on a silence that it is about to end; false if it keeps nothing quiet.
    pub(crate) fn remind_of_silence(&mut self, tx: &mut Tx<'_>, silence: &str) -> bool {
        let now = tx.now;
        let Some(s) = self.silences.get(silence) else { return false };
        let (left, by) = (s.ends_at - now, s.created_by.clone());
        let chosen = self.silences.config().remind.clone();
        let hidden = self.hidden_by(silence);
        for (n, id) in hidden.iter().enumerate() {
            let Some(i) = self.open.get(id) else { continue };
            // Whoever has heard nothing yet hears of the incident as such when the silence ends,
            // not of its silence first.
            let knows = |receiver: &&String| chosen.is_empty() || chosen.contains(receiver);
            let receivers: Vec<String> = i.lanes.keys().filter(knows).cloned().collect();
            let words = format!("still firing, and the silence of {by} ends in {left}: it will be told then");
            let whom =
                if receivers.is_empty() { "nobody had been told".into() } else { receivers.join(", ") };
            tx.out.push(by_actor(now, id, "engine", format!("reminder ({whom}): {words}")));
            for receiver in receivers.into_iter().filter(|_| n < MAX_REMINDERS) {
                let to = Recipient::known(receiver, Vec::new());
                self.send(tx, id, to, Action::Update, &Why::from(words.clone()));
            }
            self.finish(id, tx.out);
        }
        !hidden.is_empty()
    }
}

//! Notes the recovery after a start.

use super::Runtime;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Effect, Input, TimelineEntry};

impl Runtime {
    /// Adds a line to the history of every open incident: it survived a stop of the alerter of this
    /// length.
    pub(super) async fn note_recovery(&mut self) {
        let now = self.clock.now();
        let alive = self.store.alive_at().await.unwrap_or_default();
        let away = alive.map(|at| format!(" after at most {}", now - at)).unwrap_or_default();
        let records: Vec<(String, Option<Ts>, bool)> = self
            .engine
            .open_incidents()
            .map(|r| (r.id.clone(), r.next_at, r.suppression.is_some()))
            .collect();
        if !records.is_empty() {
            tracing::warn!(
                open = records.len(),
                away,
                "started with open incidents: their escalation goes on"
            );
        }
        // Whether pages are accepted is determined again.
        self.engine.handle(now, Input::AllReached, &mut self.pending.effects);
        for (incident, next, suppressed) in records {
            let next = match next {
                _ if suppressed => "it notifies nobody for now".to_owned(),
                None => "nothing is due".to_owned(),
                Some(at) => format!("the next level is due at {at}"),
            };
            let what = format!("the alerter started again{away}: recovered, {next}");
            let entry = TimelineEntry::new(&incident, now, "alerter", what);
            self.pending.effects.push(Effect::Timeline(entry));
        }
    }
}

//! The next deadline of an incident.

use super::manager::Manager;
use super::open::Incident;
use crate::config::ResponderConfig;
use stepwatch_model::Ts;

impl Incident {
    /// When an acknowledgement expires: `ack_timeout` after it was given.
    pub(super) fn ack_ends(&self, config: &ResponderConfig) -> Option<Ts> {
        Some(self.record.acked_at? + config.ack_timeout?)
    }

    /// When the acknowledgement of an incident that still fires expires; `None` if nothing fires.
    pub(super) fn ack_expires(&self, config: &ResponderConfig) -> Option<Ts> {
        self.ack_ends(config).filter(|_| !self.raised.is_empty())
    }
}

impl Manager {
    pub(crate) fn deadline(&self, id: &str) -> Option<(Ts, &'static str)> {
        let Some(i) = self.open.get(id) else {
            return self.closed.get(id)?.record.reopens_at().map(|at| (at, "resolved by hand"));
        };
        let resolve = i.resolve_at.map(|at| (at, "resolve hold"));
        let climb = i.record.next_at.map(|at| (at, "escalation"));
        let news = i.news.as_ref().filter(|_| i.record.suppression.is_none()).map(|news| (news.at, "news"));
        let ack = i.ack_expires(&self.config).map(|at| (at, "acknowledgement"));
        [resolve, climb, news, ack].into_iter().flatten().min()
    }
}

//! When an incident is to be looked at next.

use super::manager::Manager;
use super::open::Incident;
use crate::config::ResponderConfig;
use stepwatch_model::Ts;

impl Incident {
    /// How long an acknowledgement is worth something.
    pub(super) fn ack_ends(&self, config: &ResponderConfig) -> Option<Ts> {
        Some(self.record.acked_at? + config.ack_timeout?)
    }

    /// When an acknowledgement that led to no end is worth nothing any more; what is over at last
    /// needs none.
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

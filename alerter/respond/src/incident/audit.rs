//! Audits the invariants of open incidents, and repairs an incident that violates one.
//!
//! If no timer keeps the deadline of an escalation, its page is never repeated, and nothing shows
//! that. So the tests audit after every input, and the live alerter audits once a minute. The audit
//! also finds deadlines that are too far off: the wall clock may have been wrong by years when a
//! deadline was set.

use super::manager::Manager;
use super::open::Incident;
use super::suppressor::leads_to;
use super::{State, SuppressionReason};
use stepwatch_model::{Severity, Span, Ts};

/// How late a deadline may be handled: a process that was stopped needs time to catch up.
const LATE: Span = Span::secs(120);

/// The longest pause between notifications that a setting can cause, apart from policy levels.
const REACH: Span = Span::secs(86_400);

/// A violated invariant of an incident, because of which nobody may be notified of it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    pub incident: String,
    pub what: String,
}

impl Manager {
    /// Returns all flaws. `armed` gives the deadline that a timer keeps for an incident.
    pub(crate) fn audit(&self, now: Ts, armed: impl Fn(&str) -> Option<Ts>) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        for (id, i) in &self.open {
            let mut flaw = |what: &str| flaws.push(Flaw { incident: id.clone(), what: what.to_owned() });
            let deadline = self.deadline(id).map(|(at, _)| at);
            if armed(id) != deadline {
                flaw("nobody keeps its deadline");
            }
            if deadline.is_some_and(|at| at + LATE < now) {
                flaw("its deadline is long past");
            }
            if i.is_out_of_reach(now) {
                flaw("its deadline is further off than any pause");
            }
            if i.raised.is_empty() && i.resolve_at.is_none() {
                flaw("nothing holds it open and nothing resolves it");
            }
            if i.lacks_deadline() {
                flaw("nobody has answered and nobody will be notified");
            }
            let by_incident = i.record.suppression.as_ref().filter(|s| s.why != SuppressionReason::Silenced);
            if by_incident.is_some_and(|s| !self.open.contains_key(&s.by)) {
                flaw("what suppresses it is over");
            }
            let inhibited = i.record.suppressed_as(SuppressionReason::Inhibited);
            let inhibitor = inhibited.and_then(|s| self.open.get(&s.by));
            let stays = i.resolve_at.is_none_or(|at| at > now);
            if stays && inhibitor.is_some_and(|by| self.suppressor.explains_nothing(self.view(now), by)) {
                flaw("what suppresses it is silenced, and nobody has that");
            }
            if inhibitor.is_some_and(|by| leads_to(&self.open, &by.record.id, id)) {
                flaw("it suppresses what suppresses it");
            }
            if !self.correlator.is_alone(id, i) {
                flaw("another incident is open of the same thing");
            }
        }
        for (id, i) in self.closed.iter() {
            let mut flaw = |what: &str| flaws.push(Flaw { incident: id.clone(), what: what.to_owned() });
            let back = i.record.reopens_at();
            if back.is_none() || armed(id) != back {
                flaw("it still fires and nobody keeps the time at which it comes back");
            }
            if i.raised.is_empty() {
                flaw("it waits to come back and does not fire");
            }
        }
        flaws
    }

    /// Repairs an incident that has a flaw. It gets an end if nothing holds it open, and a level is
    /// due now if nobody would be notified otherwise.
    pub(crate) fn mend(&mut self, now: Ts, id: &str) {
        self.touched.push(id.to_owned());
        let Some(i) = self.open.get_mut(id) else { return };
        if i.raised.is_empty() && i.resolve_at.is_none() {
            i.resolve_at = Some(now + self.config.resolve_after);
        }
        let unheard =
            |i: &Incident| i.lacks_deadline() || i.record.suppression.is_some() || i.is_out_of_reach(now);
        let notifies_nobody = self.open.get(id).is_some_and(unheard);
        if let Some(i) = self.open.get_mut(id).filter(|_| notifies_nobody) {
            if !i.ladders.hurry(now) {
                i.ladders.force(now);
            }
            i.record.next_at = Some(now);
        }
    }
}

impl Incident {
    /// Whether its next deadline is further off than any setting or level of its policy allows.
    fn is_out_of_reach(&self, now: Ts) -> bool {
        let reach = now + self.ladders.longest_pause().max(REACH) + LATE;
        self.record.state == State::Open && self.record.next_at.is_some_and(|at| at > reach)
    }

    /// Whether somebody must be notified of it, and no deadline is set for that.
    fn lacks_deadline(&self) -> bool {
        let wanted = match self.record.severity {
            Severity::Page => true,
            // A ticket that every level passed over waits in the list of incidents.
            Severity::Ticket => {
                self.record.level == 0 && !self.raised.is_empty() && !self.ladders.is_exhausted()
            }
            Severity::Info => false,
        };
        let waits = self.record.next_at.is_some();
        // The incident is over, and ended before anyone was notified.
        let over = self.raised.is_empty() && self.record.level == 0;
        wanted
            && self.record.state == State::Open
            && !self.calm
            && !waits
            && !over
            && !self.ladders.is_empty()
    }
}

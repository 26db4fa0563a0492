//! What must hold of every open incident at any moment, and what to do if it does not.
//!
//! An escalation that waits for a deadline which nobody keeps is a page that is never repeated, and
//! nothing shows it. So it is looked for: by the tests after every input, and live once a minute.
//! So is one whose deadline is out of reach: the wall clock may have been wrong by years when it
//! was set.

use super::manager::Manager;
use super::open::Incident;
use super::suppressor::leads_to;
use super::{State, SuppressionReason};
use stepwatch_model::{Severity, Span, Ts};

/// How late a deadline may be kept: a program that was stopped catches up.
const LATE: Span = Span::secs(120);

/// No setting makes anybody wait longer for the next word, the levels of the policy aside.
const REACH: Span = Span::secs(86_400);

/// An open incident that nobody would ever be notified of again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    pub incident: String,
    pub what: String,
}

impl Manager {
    /// `armed`: the deadline that is kept for an incident.
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

    /// Whatever went wrong with it, its people are notified again.
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
    /// Nothing that was said when it was set makes anybody wait so long.
    fn is_out_of_reach(&self, now: Ts) -> bool {
        let reach = now + self.ladders.longest_pause().max(REACH) + LATE;
        self.record.state == State::Open && self.record.next_at.is_some_and(|at| at > reach)
    }

    /// Somebody should be notified of it, and nothing is due that will.
    fn lacks_deadline(&self) -> bool {
        let wanted = match self.record.severity {
            Severity::Page => true,
            // One that every level passed over waits for whoever looks.
            Severity::Ticket => {
                self.record.level == 0 && !self.raised.is_empty() && !self.ladders.is_exhausted()
            }
            Severity::Info => false,
        };
        let waits = self.record.next_at.is_some();
        // It is over, and ended before anyone was notified.
        let over = self.raised.is_empty() && self.record.level == 0;
        wanted
            && self.record.state == State::Open
            && !self.calm
            && !waits
            && !over
            && !self.ladders.is_empty()
    }
}

//! Faults of the alerter itself. They are incidents like any other, for the people whom a page
//! reaches.

use crate::effect::{Effect, Tx};
use std::collections::BTreeSet;

use super::State;
use super::manager::Manager;
use crate::route::STORE;
use stepwatch_model::{
    Change, Clause, Context, Finding, Kind, RunSummary, Scope, Severity, Subject, Ts, clause,
};

/// The name of the delivery check of a receiver begins with this prefix.
const DELIVERY: &str = "delivery to ";

impl Manager {
    /// Raises a fault of the alerter because a receiver accepts no pages. Other receivers are
    /// notified.
    pub(super) fn does_not_take(&mut self, tx: &mut Tx<'_>, receiver: &str, fault: &str) {
        self.own(tx, &format!("{DELIVERY}{receiver}"), Severity::Page, Some(fault));
    }

    /// Records that a receiver accepted a notification, which ends its delivery fault.
    pub(crate) fn taken(&mut self, tx: &mut Tx<'_>, id: &str, receiver: &str) {
        if let Some(lane) = self.open.get_mut(id).and_then(|i| i.lanes.get_mut(receiver))
            && lane.untaken.take().is_some()
        {
            self.touched.push(id.to_owned());
        }
        self.own(tx, &format!("{DELIVERY}{receiver}"), Severity::Page, None);
    }

    /// Ends the faults of receivers for which no page waits any more.
    pub(crate) fn all_reached(&mut self, tx: &mut Tx<'_>) {
        let faults = self.correlator.own(DELIVERY);
        if faults.is_empty() {
            return;
        }
        let failing = self.failing();
        for check in faults {
            if !check.strip_prefix(DELIVERY).is_some_and(|receiver| failing.contains(receiver)) {
                self.own(tx, &check, Severity::Page, None);
            }
        }
    }

    /// As `all_reached`, if the effects since `from` acknowledge or resolve an incident.
    pub(crate) fn note_answers(&mut self, tx: &mut Tx<'_>, from: usize) {
        let answered = |e: &Effect| matches!(e, Effect::Incident(r) if r.state != State::Open);
        if tx.out.iter().skip(from).any(answered) {
            self.all_reached(tx);
        }
    }

    /// The receivers that refuse notifications of an open incident that nobody has acknowledged.
    pub(super) fn failing(&self) -> BTreeSet<String> {
        let open = self.open.values().filter(|i| i.record.state == State::Open);
        let lanes = open.flat_map(|i| &i.lanes).filter(|(_, lane)| lane.untaken.is_some());
        lanes.map(|(receiver, _)| receiver.clone()).collect()
    }

    /// Raises or clears the fault that the store accepts no writes.
    pub(crate) fn store(&mut self, tx: &mut Tx<'_>, fault: Option<&str>, recorded: Option<Ts>) {
        self.recorded = recorded;
        self.own(tx, STORE, Severity::Page, fault);
    }

    /// Handles the result of a self-check. A fault that is already known changes nothing.
    pub(crate) fn own(&mut self, tx: &mut Tx<'_>, check: &str, severity: Severity, fault: Option<&str>) {
        let now = tx.now;
        let scope = Scope::Own(check.to_owned());
        let subject = Subject { scope: scope.clone(), cause: Kind::AlerterFault.cause() };
        let known =
            self.correlator.find(&subject).and_then(|id| self.open.get(&id)).filter(|i| !i.raised.is_empty());
        let known = known.is_some() || self.closed.find(&subject).is_some();
        let change = match fault {
            Some(_) if known => return,
            None if !known => return,
            Some(_) => Change::Raise,
            None => Change::Clear,
        };
        let context = Context::new(scope, RunSummary::default(), BTreeSet::new(), now);
        let finding = Finding {
            change,
            kind: Kind::AlerterFault,
            severity,
            signal: if check == STORE { STORE } else { "alerter" }.into(),
            step: 0,
            ts: now,
            start_step: 0,
            value: f64::NAN,
            expected: f64::NAN,
            score: f64::NAN,
            why: fault.map_or_else(|| clause!("it is well again"), Clause::words).into(),
            suspects: Vec::new(),
        };
        self.finding(tx, &context, &finding);
    }
}

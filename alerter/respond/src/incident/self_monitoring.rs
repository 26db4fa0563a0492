//! Faults of the alerter itself. They are incidents like any other, for the people whom a page
//! reaches.

use crate::effect::{Differing, Effect, Tx};
use std::collections::BTreeSet;

use super::State;
use super::manager::Manager;
use crate::route::STORE;
use stepwatch_model::{
    Change, Clause, Context, Fact, Finding, Kind, RunSummary, Scope, Severity, Subject, Ts, clause,
};

/// The name of the delivery check of a receiver begins with this prefix.
const DELIVERY: &str = "delivery to ";

/// The name of the check whether all replicas are alike, and its signal.
const REPLICAS: &str = "replicas";
/// The most replicas that a message names.
const REPLICAS_NAMED: usize = 4;

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

    /// Raises or clears the finding that replicas differ from the one that leads.
    pub(crate) fn replicas(&mut self, tx: &mut Tx<'_>, differing: &[Differing]) {
        let check =
            Check { name: REPLICAS, kind: Kind::ConfigDrift, severity: Severity::Ticket, signal: REPLICAS };
        self.check(tx, check, (!differing.is_empty()).then(|| difference(differing)));
    }

    /// Handles the result of a self-check.
    pub(crate) fn own(&mut self, tx: &mut Tx<'_>, check: &str, severity: Severity, fault: Option<&str>) {
        let signal = if check == STORE { STORE } else { "alerter" };
        let check = Check { name: check, kind: Kind::AlerterFault, severity, signal };
        self.check(tx, check, fault.map(Clause::words));
    }

    /// Raises or clears a finding about this alerter. A fault that is already known changes
    /// nothing.
    fn check(&mut self, tx: &mut Tx<'_>, check: Check<'_>, fault: Option<Clause>) {
        let now = tx.now;
        let Check { name, kind, severity, signal } = check;
        let scope = Scope::Own(name.to_owned());
        let subject = Subject { scope: scope.clone(), cause: kind.cause() };
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
            kind,
            severity,
            signal: signal.into(),
            step: 0,
            ts: now,
            start_step: 0,
            value: f64::NAN,
            expected: f64::NAN,
            score: f64::NAN,
            why: fault.unwrap_or_else(|| clause!("it is well again")).into(),
            suspects: Vec::new(),
        };
        self.finding(tx, &context, &finding);
    }
}

/// A check of this alerter by itself.
#[derive(Debug, Clone, Copy)]
struct Check<'a> {
    name: &'a str,
    kind: Kind,
    severity: Severity,
    signal: &'static str,
}

/// What differs between replicas.
fn difference(differing: &[Differing]) -> Clause {
    let parts = differing.iter().take(REPLICAS_NAMED).map(|replica| {
        let address = Fact::text(replica.address.as_str());
        match &replica.version {
            Some(version) if replica.configuration => clause!(
                "{address} has another configuration and the version {version}",
                address,
                version = Fact::text(version.as_str())
            ),
            Some(version) => {
                clause!(
                    "{address} has the version {version}",
                    address,
                    version = Fact::text(version.as_str())
                )
            }
            None => clause!("{address} has another configuration", address),
        }
    });
    let parts = Fact::joined(parts.collect(), ", ");
    match differing.len().saturating_sub(REPLICAS_NAMED) {
        0 => clause!("replicas differ from the one that leads: {parts}", parts),
        more => clause!("replicas differ from the one that leads: {parts}, and {more} more", parts, more),
    }
}

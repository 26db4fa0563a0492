//! What is wrong with this alerter itself: an incident like any other, for the people whom a page
//! reaches.

use crate::effect::Tx;
use std::collections::BTreeSet;

use super::manager::Manager;
use crate::route::STORE;
use stepwatch_model::{Change, Context, Finding, Kind, RunSummary, Scope, Severity, Subject};

impl Manager {
    /// One check of ours, and what it found; the same fault found again is no news.
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
            why: fault.unwrap_or("it is well again").into(),
            suspects: Vec::new(),
        };
        self.finding(tx, &context, &finding);
    }
}

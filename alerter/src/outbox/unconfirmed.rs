//! Pages that a service accepted without notifying anybody, for example because it is disabled or
//! in maintenance.
//!
//! This is known only if the service confirms each call, and has done so before. Such a page then
//! counts as not accepted. It stays with its service, and others are notified, but not another
//! receiver of the same service, which may only have confirmed late.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::Action;

use super::destination::Destination;
use super::feedback::{Feedback, Outcome};
use super::schedule::Scheduler;
use crate::store::Result;

/// Older calls are not checked.
const LOOKED_AT: Span = Span::secs(3600);

/// The state of confirmations.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    /// Since when confirmations could be stored: not while the store refuses writes, and not before
    /// the start.
    kept_since: Option<Ts>,
    /// The keys of the pages that were reported.
    reported: BTreeSet<String>,
}

impl Confirmations {
    /// Reports to the engine, once, every page that its service did not confirm within `wait`.
    pub(super) async fn report(&mut self, scheduler: &mut Scheduler, wait: Span, clock: Ts) -> Result<()> {
        let Scheduler { courier, destinations, tasks, .. } = scheduler;
        let store = courier.store.clone();
        let since = match self.kept_since {
            Some(since) if store.refused_for().is_none() => since,
            _ => *self.kept_since.insert(clock),
        };
        let after = since.max(Ts(clock.0 - LOOKED_AT.0));
        let mut found = BTreeSet::new();
        for (receiver, destination) in &*destinations {
            let Some(error) = destination.notifier.confirms() else { continue };
            let account = destination.notifier.account();
            let shares =
                |(other, to): (&String, &Destination)| other != receiver && to.notifier.account() == account;
            if destinations.iter().any(shares) {
                continue;
            }
            for call in store.unconfirmed(receiver, after, Ts(clock.0 - wait.0)).await? {
                found.insert(call.idem_key.clone());
                if self.reported.contains(&call.idem_key) {
                    continue;
                }
                tracing::error!(
                    incident = call.incident,
                    receiver,
                    error,
                    "a page was accepted and called nobody"
                );
                let outcome = Outcome::Unreached { waited: clock - call.since, error: error.to_owned() };
                let feedback = Feedback {
                    idem_key: call.idem_key,
                    incident: call.incident,
                    receiver: receiver.clone(),
                    action: Action::Trigger,
                    outcome,
                };
                let courier = Arc::clone(courier);
                tasks.spawn(async move { courier.pass_on(feedback).await });
            }
        }
        self.reported = found;
        Ok(())
    }
}

//! Sends changes of runs to services that show them with an incident.
//!
//! Changes are context and not messages: they are kept in memory, retried a few times, and then
//! dropped and counted. No notification of a person is sent this way.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use stepwatch_detect::changes::RunChange;
use stepwatch_kit::shutdown::Shutdown;
use tokio::sync::{mpsc, watch};

use crate::backoff::{self, random, retry_after};
use crate::notify::{FailureClass, Notifier};
use crate::outbox::Receivers;
use crate::store::Store;

/// The most changes that wait.
pub const QUEUE: usize = 256;
const ATTEMPTS_MAX: u32 = 5;
const SEND_MAX: Duration = Duration::from_secs(15);

/// Sends changes to every receiver that accepts them, until `shutdown`.
pub async fn deliver(
    store: Store,
    mut queue: mpsc::Receiver<RunChange>,
    receivers: watch::Receiver<Receivers>,
    dropped: Counter,
    shutdown: Shutdown,
) {
    loop {
        let change = tokio::select! {
            () = shutdown.wait() => return,
            change = queue.recv() => match change {
                Some(change) => change,
                None => return,
            },
        };
        let wanting: Vec<(String, Arc<dyn Notifier>)> = receivers
            .borrow()
            .iter()
            .filter(|(_, n)| n.wants_changes())
            .map(|(name, n)| (name.clone(), Arc::clone(n)))
            .collect();
        for (receiver, notifier) in wanting {
            tokio::select! {
                () = shutdown.wait() => return,
                sent = send(&store, &receiver, &*notifier, &change) => if !sent {
                    dropped.inc();
                },
            }
        }
    }
}

/// The longest wait that a service may request; after a longer one the change is dropped.
const PAUSE_MAX: Duration = Duration::from_mins(6);

async fn send(store: &Store, receiver: &str, notifier: &dyn Notifier, change: &RunChange) -> bool {
    for attempt in 1..=ATTEMPTS_MAX {
        let sending = store.while_may_send(notifier.change(change));
        let failure = match tokio::time::timeout(SEND_MAX, sending).await {
            Ok(Ok(Ok(()))) => return true,
            Ok(Ok(Err(failure))) => Some(failure),
            Ok(Err(stopped)) => Some(stopped.into()),
            Err(_) => None,
        };
        let class = failure.as_ref().map_or(FailureClass::Transient, |f| f.class);
        let error = failure.map_or_else(|| "no answer in time".to_owned(), |f| f.error);
        let wait = match class {
            FailureClass::Permanent => {
                tracing::warn!(receiver, error, "a change of a run is refused");
                return false;
            }
            FailureClass::Transient | FailureClass::Partly => backoff::DELIVERY.after(attempt, random()),
            FailureClass::RateLimited { retry_after: asked } => match retry_after(asked, random()) {
                // Other changes wait for this one.
                wait if wait > PAUSE_MAX => return false,
                wait => wait,
            },
        };
        tracing::debug!(receiver, error, attempt, "a change of a run was not taken");
        tokio::time::sleep(wait).await;
    }
    false
}

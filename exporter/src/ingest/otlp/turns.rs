//! Decides whose request is decoded next. Each client has at most one in the queue, and sends its
//! own in order. So many requests of one client delay another client by one of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use stepwatch_kit::serve::Client;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::lock::Locked as _;

/// The most requests that are decompressed and decoded at a time; the others wait as they arrived.
/// A request takes five times its bytes if these are small attributes.
pub(super) const MAX_DECODING: usize = 1;

#[derive(Debug)]
pub(super) struct Turns {
    decoding: Arc<Semaphore>,
    /// The queues of the clients that have requests; `None` is the key of unknown clients.
    clients: Mutex<BTreeMap<Option<Client>, Arc<tokio::sync::Mutex<()>>>>,
}

/// The right to decode a request, which ends on drop.
#[derive(Debug)]
pub(super) struct Turn {
    _decoding: Option<OwnedSemaphorePermit>,
    _of_client: OwnedMutexGuard<()>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { decoding: Arc::new(Semaphore::new(MAX_DECODING)), clients: Mutex::default() }
    }
}

impl Turns {
    pub(super) async fn take(&self, client: Option<Client>) -> Turn {
        let of_client = self.line_of(client).lock_owned().await;
        // The semaphore is never closed.
        let decoding = Arc::clone(&self.decoding).acquire_owned().await.ok();
        Turn { _decoding: decoding, _of_client: of_client }
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.decoding.available_permits()
    }

    fn line_of(&self, client: Option<Client>) -> Arc<tokio::sync::Mutex<()>> {
        let mut clients = self.clients.locked();
        // Connections are few, and so are the clients that wait.
        clients.retain(|_, line| Arc::strong_count(line) > 1);
        Arc::clone(clients.entry(client).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt as _;

    use super::*;

    fn nth(n: u8) -> Client {
        Client::from(IpAddr::from([10, 0, 0, n]))
    }

    #[tokio::test]
    async fn a_client_with_one_request_is_second_whoever_has_many() {
        let turns = Turns::default();
        let first = turns.take(Some(nth(1))).await;
        let mut many: Vec<_> = (0..100).map(|_| Box::pin(turns.take(Some(nth(1))))).collect();
        assert!(many.iter_mut().all(|one| one.now_or_never().is_none()));
        let mut other = Box::pin(turns.take(Some(nth(2))));
        assert!(other.as_mut().now_or_never().is_none());
        drop(first);
        assert!(many[0].as_mut().now_or_never().is_none(), "it had one");
        assert!(other.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn requests_of_a_client_are_decoded_in_their_order_and_it_is_forgotten() {
        let turns = Turns::default();
        let first = turns.take(Some(nth(1))).await;
        let (mut second, mut third) =
            (Box::pin(turns.take(Some(nth(1)))), Box::pin(turns.take(Some(nth(1)))));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.as_mut().now_or_never().is_none());
        drop(second.await);
        drop(third.await);
        drop(turns.take(Some(nth(2))).await);
        assert_eq!(turns.clients.locked().keys().copied().collect::<Vec<_>>(), [Some(nth(2))]);
    }
}

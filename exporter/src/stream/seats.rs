//! Who follows the stream, and who gives way: the alerter must get in however many strangers ask
//! for the stream.
//!
//! A reader is trusted that showed a password or a certificate, or whose address followed for a
//! while before. Where no place is free, it takes that of the stranger who came last. Strangers of
//! one address get a few places each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stepwatch_kit::serve::Client;
use tokio_util::sync::CancellationToken;

use crate::lock::Locked as _;

/// An address that followed for this long is known from then on.
const KNOWN_AFTER: Duration = Duration::from_mins(5);
/// Addresses that are remembered.
const MAX_KNOWN: usize = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct Seats(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    taken: BTreeMap<u64, Taken>,
    /// By when they were last seen to have followed.
    known: BTreeMap<Client, u64>,
}

#[derive(Debug)]
struct Taken {
    client: Option<Client>,
    authenticated: bool,
    since: Instant,
    cut: CancellationToken,
}

/// One place, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    id: u64,
    cut: CancellationToken,
}

impl Seats {
    pub(super) fn taken(&self) -> usize {
        self.0.locked().taken.len()
    }

    /// A place for a reader; `limits` are those of all readers and of one address.
    pub(super) fn take(
        &self,
        client: Option<Client>,
        authenticated: bool,
        (all, per_address): (usize, usize),
    ) -> Option<Seat> {
        let mut state = self.0.locked();
        state.learn(Instant::now());
        let of_client = state.taken.values().filter(|t| !t.authenticated && t.client == client).count();
        if !authenticated && of_client >= per_address {
            return None;
        }
        if state.taken.len() >= all {
            let trusted = authenticated || client.is_some_and(|c| state.known.contains_key(&c));
            let victim = trusted.then(|| state.last_stranger()).flatten()?;
            if let Some(stranger) = state.taken.remove(&victim) {
                stranger.cut.cancel();
            }
        }
        let id = state.next;
        state.next += 1;
        let cut = CancellationToken::new();
        let since = Instant::now();
        state.taken.insert(id, Taken { client, authenticated, since, cut: cut.clone() });
        Some(Seat { seats: self.clone(), id, cut })
    }
}

impl State {
    /// Remembers who follows for long by now.
    fn learn(&mut self, now: Instant) {
        for (id, taken) in &self.taken {
            let long = now.saturating_duration_since(taken.since) >= KNOWN_AFTER;
            if let Some(client) = taken.client.filter(|_| long) {
                self.known.insert(client, *id);
            }
        }
        while self.known.len() > MAX_KNOWN {
            let oldest = self.known.iter().min_by_key(|(_, id)| **id).map(|(client, _)| *client);
            oldest.map(|client| self.known.remove(&client));
        }
    }

    fn last_stranger(&self) -> Option<u64> {
        let stranger = |t: &&Taken| !t.authenticated && t.client.is_none_or(|c| !self.known.contains_key(&c));
        self.taken.iter().rev().find(|(_, t)| stranger(t)).map(|(id, _)| *id)
    }
}

impl Seat {
    /// Ends when somebody else takes the place.
    pub(super) async fn evicted(&self) {
        self.cut.cancelled().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.seats.0.locked();
        state.learn(Instant::now());
        state.taken.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "as a place is asked for")]
    fn client(n: u8) -> Option<Client> {
        Some(Client::of([10, 0, 0, n].into(), [192, 0, 2, 1].into()))
    }

    #[test]
    fn strangers_of_one_address_get_a_few_places() {
        let seats = Seats::default();
        let taken: Vec<_> = (0..3).filter_map(|_| seats.take(client(1), false, (8, 2))).collect();
        assert_eq!(taken.len(), 2);
        assert!(seats.take(client(2), false, (8, 2)).is_some());
        assert!(seats.take(client(1), true, (8, 2)).is_some(), "who is known by a password is not counted");
        drop(taken);
        assert_eq!(seats.taken(), 0);
    }

    #[test]
    fn who_followed_before_or_shows_a_password_takes_the_place_of_the_last_stranger() {
        let seats = Seats::default();
        let alerter = seats.take(client(1), false, (3, 3)).unwrap();
        let long_ago = Instant::now().checked_sub(KNOWN_AFTER).unwrap();
        seats.0.locked().taken.get_mut(&alerter.id).unwrap().since = long_ago;
        drop(alerter);
        let strangers: Vec<_> = (2..5).map(|n| seats.take(client(n), false, (3, 3)).unwrap()).collect();
        assert!(seats.take(client(5), false, (3, 3)).is_none());
        let back = seats.take(client(1), false, (3, 3)).unwrap();
        assert!(strangers[2].cut.is_cancelled() && !strangers[1].cut.is_cancelled());
        let user = seats.take(client(6), true, (3, 3)).unwrap();
        assert!(strangers[1].cut.is_cancelled() && !back.cut.is_cancelled());
        let _another = seats.take(client(7), true, (3, 3)).unwrap();
        assert!(strangers[0].cut.is_cancelled());
        assert!(seats.take(client(8), true, (3, 3)).is_none(), "no stranger is left");
        assert!(!user.cut.is_cancelled());
        assert_eq!(seats.taken(), 3);
    }
}

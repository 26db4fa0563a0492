//! Counts the connections of the ingest socket by user and process, and chooses the one to close
//! when a newcomer finds no room.
//!
//! While there is room, every connection is accepted: a launcher may hold a connection for each of
//! a thousand ranks. Without room, the user with the most connections loses one to a user with
//! fewer. Among a user's own connections, the process with the most loses one to a process with
//! fewer. A process first loses a connection that never sent anything.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use crate::lock::Locked as _;
use crate::origin::Peer;
use crate::samples::Samples;

/// A holder of at most one in so many of all connections loses none, except to a holder of [`FEW`].
const SHARE: usize = 4;
/// A holder of fewer than one in so many of all connections takes one from any holder of more.
/// Otherwise a few users with a share each would hold all.
const FEW: usize = 64;

#[derive(Debug, Default)]
pub struct Counts {
    /// See [`super::THROTTLED`].
    throttled: Arc<AtomicU64>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// The key rises with age, so the oldest is first.
    by_id: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    pid: Option<u32>,
    uid: u32,
    spoke: Arc<AtomicBool>,
    cut: CancellationToken,
}

/// The user and process of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    pub(super) uid: u32,
    pub(super) pid: Option<u32>,
}

/// The place of one connection, which is freed on drop.
#[derive(Debug)]
pub(super) struct Seat {
    counts: Arc<Counts>,
    id: u64,
    spoke: Arc<AtomicBool>,
    /// Cancelled when the connection has to be closed to make room.
    pub(super) cut: CancellationToken,
    /// The holder of the connection that was closed for this one.
    pub(super) evicted: Option<Holder>,
}

impl Counts {
    pub(super) fn new(throttled: Arc<AtomicU64>) -> Self {
        Self { throttled, open: Mutex::default() }
    }

    pub fn write(&self, out: &mut Samples) {
        out.set(&super::CONNECTIONS, &[], self.open.locked().by_id.len());
        out.set(&super::THROTTLED, &[], self.throttled.load(Ordering::Relaxed));
    }
}

impl Seat {
    /// Takes one of `max` places; `None` if no holder has to give one up.
    pub(super) fn take(counts: &Arc<Counts>, peer: &Peer, max: usize) -> Option<Self> {
        let mut open = counts.open.locked();
        let mut evicted = None;
        if open.by_id.len() >= max {
            let victim = open.victim(peer, max)?;
            if let Some(held) = open.by_id.remove(&victim) {
                held.cut.cancel();
                evicted = Some(Holder { uid: held.uid, pid: held.pid });
            }
        }
        let id = open.next;
        open.next += 1;
        let (spoke, cut) = (Arc::<AtomicBool>::default(), CancellationToken::new());
        let held = Held { pid: peer.pid, uid: peer.uid, spoke: Arc::clone(&spoke), cut: cut.clone() };
        open.by_id.insert(id, held);
        drop(open);
        Some(Self { counts: Arc::clone(counts), id, spoke, cut, evicted })
    }

    /// Records that the connection has sent something.
    pub(super) fn spoke(&self) {
        self.spoke.store(true, Ordering::Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.counts.open.locked().by_id.remove(&self.id);
    }
}

impl Open {
    /// The connection to close for a new one of `peer`.
    ///
    /// The user is chosen first: one with many processes of a connection each has more than a
    /// launcher that has one for each of its ranks.
    fn victim(&self, peer: &Peer, max: usize) -> Option<u64> {
        let users = self.by_id.values().map(|held| held.uid);
        let uid = greediest(users, peer.uid, max).or_else(|| {
            let processes = self.of(peer.uid).map(|(_, held)| held.pid);
            greediest(processes, peer.pid, max).map(|_| peer.uid)
        })?;
        let mut of_process = BTreeMap::<Option<u32>, usize>::new();
        self.of(uid).for_each(|(_, held)| *of_process.entry(held.pid).or_default() += 1);
        // The newest connections are the ones that crowded the others out.
        let worth = |(id, held): &(u64, &Held)| {
            (of_process.get(&held.pid).copied(), !held.spoke.load(Ordering::Relaxed), *id)
        };
        self.of(uid).max_by_key(worth).map(|(id, _)| id)
    }

    fn of(&self, uid: u32) -> impl Iterator<Item = (u64, &Held)> {
        self.by_id.iter().filter(move |(_, held)| held.uid == uid).map(|(id, held)| (*id, held))
    }
}

/// The holder with the most, if it has enough more than the newcomer.
fn greediest<T: Ord>(holders: impl Iterator<Item = T>, newcomer: T, max: usize) -> Option<T> {
    let mut held = BTreeMap::<T, usize>::new();
    holders.for_each(|who| *held.entry(who).or_default() += 1);
    let own = held.get(&newcomer).copied().unwrap_or_default();
    let (greediest, count) = held.into_iter().max_by_key(|(_, count)| *count)?;
    let is_less = if own < max / FEW { count > own + 1 } else { count > max / SHARE && count > own };
    is_less.then_some(greediest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(pid: u32, uid: u32) -> Peer {
        Peer { connection: 0, pid: Some(pid), uid }
    }

    fn take(counts: &Arc<Counts>, pid: u32, uid: u32) -> Option<Seat> {
        Seat::take(counts, &peer(pid, uid), 8)
    }

    #[test]
    fn a_few_users_with_a_share_each_leave_room_for_another() {
        let counts = Arc::<Counts>::default();
        let take = |pid, uid| Seat::take(&counts, &peer(pid, uid), 128);
        let held: Vec<_> = (0..128).map(|n| take(n, 1000 + n / 32).unwrap()).collect();
        held.iter().for_each(Seat::spoke);
        let _first = take(200, 2000).unwrap();
        let _second = take(201, 2000).unwrap();
        assert_eq!(held.iter().filter(|seat| seat.cut.is_cancelled()).count(), 2);
        assert!(take(202, 2000).is_none(), "the others have no more than a share");
    }

    #[test]
    fn one_process_may_have_all_until_another_comes() {
        let counts = Arc::<Counts>::default();
        let launcher: Vec<_> = (0..8).map(|_| take(&counts, 1, 1000).unwrap()).collect();
        launcher.iter().skip(1).for_each(Seat::spoke);
        assert!(take(&counts, 1, 1000).is_none(), "one's own are not exchanged");
        let rank = take(&counts, 2, 1001).unwrap();
        assert!(rank.evicted.is_some() && launcher[0].cut.is_cancelled(), "the one that is silent");
        let next = take(&counts, 3, 1001).unwrap();
        assert!(launcher[7].cut.is_cancelled() && !launcher[1].cut.is_cancelled(), "then the newest");
        drop((launcher, rank, next));
        assert_eq!(counts.open.locked().by_id.len(), 0, "each place is freed once");
    }

    #[test]
    fn many_processes_of_one_user_give_way_too() {
        let counts = Arc::<Counts>::default();
        let of_one: Vec<_> = (0..8).map(|pid| take(&counts, pid, 1000).unwrap()).collect();
        assert!(take(&counts, 20, 1000).is_none());
        assert!(take(&counts, 21, 1001).is_some_and(|seat| seat.evicted.is_some()));
        assert!(of_one[7].cut.is_cancelled());
    }

    #[test]
    fn a_launcher_of_many_ranks_keeps_them_from_a_user_of_many_processes() {
        let counts = Arc::<Counts>::default();
        let take = |pid, uid| Seat::take(&counts, &peer(pid, uid), 128);
        let launcher: Vec<_> = (0..24).map(|_| take(1, 1600).unwrap()).collect();
        let others: Vec<_> = (0..150).filter_map(|n| take(1000 + n, 1500)).collect();
        assert_eq!(others.len(), 104, "what is free");
        assert!(launcher.iter().all(|seat| !seat.cut.is_cancelled()));
        let next = take(1, 1600).unwrap();
        assert_eq!(next.evicted.map(|holder| holder.uid), Some(1500));
        // The user with the most loses those of the process with the most.
        let greedy: Vec<_> = (0..30).map(|_| take(7, 1600).unwrap()).collect();
        greedy.iter().chain(&launcher).for_each(Seat::spoke);
        assert!((0..40).filter_map(|_| take(9, 1700)).count() >= 30);
        assert!(launcher.iter().all(|seat| !seat.cut.is_cancelled()));
    }

    #[test]
    fn nobody_gives_up_a_fair_share() {
        let counts = Arc::<Counts>::default();
        let seats: Vec<_> = (0..8).map(|n| take(&counts, n, n / 2).unwrap()).collect();
        assert!(take(&counts, 20, 20).is_none());
        assert!(seats.iter().all(|seat| !seat.cut.is_cancelled()));
    }
}

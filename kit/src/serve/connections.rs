//! Which connections are open, and which one is closed when a newcomer finds no room.
//!
//! Whoever opens sockets and says nothing must not keep a liveness probe, a scrape or the alerter
//! out. So at the limit an idle connection is closed for the newcomer, first one that never made a
//! request. A peer that sends its request at once is answered before its own turn to be closed
//! comes, however fast somebody else opens further connections.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// A peer that holds more than this share of all connections loses busy ones too, to a peer that
/// holds fewer.
const GREEDY_SHARE: usize = 4;

/// Whom a limit counts as one: an IPv4 address, an IPv6 network of 64 bits (whoever has one address
/// of it has all), or this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client(IpAddr);

impl Client {
    pub fn of(ip: IpAddr) -> Self {
        let ip = ip.to_canonical();
        if ip.is_loopback() {
            return Self(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        match ip {
            IpAddr::V4(_) => Self(ip),
            IpAddr::V6(v6) => Self(IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)))),
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The open connections of one server.
#[derive(Debug)]
pub(super) struct Connections {
    limit: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// By age, the oldest first.
    by_id: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    client: Client,
    busy: Arc<Busy>,
    cut: CancellationToken,
}

/// A place of its own for one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    connections: Arc<Connections>,
    id: u64,
    pub(super) busy: Arc<Busy>,
    /// Cancelled when the connection has to make room.
    pub(super) cut: CancellationToken,
    /// Whose connection was closed for this one.
    pub(super) evicted: Option<Client>,
}

/// The requests of one connection: how many are being answered, how many ever were.
#[derive(Debug, Default)]
pub(super) struct Busy {
    now: AtomicUsize,
    begun: AtomicUsize,
}

/// One request, until the last byte of its answer is on its way.
#[derive(Debug)]
pub(super) struct Entered(Arc<Busy>);

impl Busy {
    pub(super) fn enter(self: &Arc<Self>) -> Entered {
        self.now.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        Entered(Arc::clone(self))
    }

    pub(super) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connections {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, open: Mutex::default() })
    }

    /// A place for a connection from `ip`; nothing where every other one has more right to stay.
    pub(super) fn admit(self: &Arc<Self>, ip: IpAddr) -> Option<Seat> {
        let client = Client::of(ip);
        let mut open = self.locked();
        let mut evicted = None;
        if open.by_id.len() >= self.limit {
            let victim = open.victim(client, self.limit)?;
            if let Some(entry) = open.by_id.remove(&victim) {
                entry.cut.cancel();
                evicted = Some(entry.client);
            }
        }
        let id = open.next;
        open.next += 1;
        let (busy, cut) = (Arc::<Busy>::default(), CancellationToken::new());
        open.by_id.insert(id, Entry { client, busy: Arc::clone(&busy), cut: cut.clone() });
        Some(Seat { connections: Arc::clone(self), id, busy, cut, evicted })
    }

    fn locked(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Which connection makes room for one of `newcomer`.
    fn victim(&self, newcomer: Client, limit: usize) -> Option<u64> {
        let mut held = BTreeMap::<Client, usize>::new();
        for entry in self.by_id.values() {
            *held.entry(entry.client).or_default() += 1;
        }
        let count = |entry: &Entry| held.get(&entry.client).copied().unwrap_or_default();
        // Of the client with the most connections first; of those, one that never made a request,
        // then the oldest.
        let idle = self.by_id.iter().filter(|(_, e)| e.busy.now() == 0);
        let idle = idle.min_by_key(|(id, e)| (usize::MAX - count(e), e.busy.begun() > 0, **id));
        if let Some((id, _)) = idle {
            return Some(*id);
        }
        let (id, greedy) = self.by_id.iter().min_by_key(|(id, e)| (usize::MAX - count(e), **id))?;
        let most = count(greedy);
        (most > limit / GREEDY_SHARE && most > held.get(&newcomer).copied().unwrap_or_default())
            .then_some(*id)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.locked().by_id.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn clients_are_counted_together_where_one_has_all_addresses() {
        assert_eq!(Client::of(ip("127.0.0.1")), Client::of(ip("127.9.9.9")));
        assert_eq!(Client::of(ip("127.0.0.1")), Client::of(ip("::1")));
        assert_eq!(Client::of(ip("10.0.0.1")), Client::of(ip("::ffff:10.0.0.1")));
        assert_ne!(Client::of(ip("10.0.0.1")), Client::of(ip("10.0.0.2")));
        assert_eq!(Client::of(ip("2001:db8::1")), Client::of(ip("2001:db8::ffff:1")));
        assert_ne!(Client::of(ip("2001:db8::1")), Client::of(ip("2001:db8:0:1::1")));
    }

    #[test]
    fn the_idle_make_room_and_first_those_that_never_asked() {
        let connections = Connections::new(3);
        let asked = connections.admit(ip("10.0.0.1")).unwrap();
        drop(asked.busy.enter());
        let silent = connections.admit(ip("10.0.0.1")).unwrap();
        let busy = connections.admit(ip("10.0.0.1")).unwrap();
        let _request = busy.busy.enter();
        let newcomer = connections.admit(ip("10.0.0.1")).unwrap();
        assert!(newcomer.evicted.is_some() && silent.cut.is_cancelled());
        assert!(!asked.cut.is_cancelled() && !busy.cut.is_cancelled());
        let _request_too = newcomer.busy.enter();
        let next = connections.admit(ip("10.0.0.1")).unwrap();
        assert!(asked.cut.is_cancelled() && !next.cut.is_cancelled());
        drop(silent);
        drop(asked);
        assert_eq!(connections.locked().by_id.len(), 3, "a place is freed once");
    }

    #[test]
    fn the_idle_of_whoever_holds_most_go_first() {
        let connections = Connections::new(3);
        let alone = connections.admit(ip("10.0.0.1")).unwrap();
        let many = [connections.admit(ip("10.0.0.2")).unwrap(), connections.admit(ip("10.0.0.2")).unwrap()];
        assert!(connections.admit(ip("10.0.0.3")).is_some());
        assert!(many[0].cut.is_cancelled() && !many[1].cut.is_cancelled() && !alone.cut.is_cancelled());
    }

    #[test]
    fn where_all_are_busy_only_the_greedy_give_way() {
        let connections = Connections::new(4);
        let mut held: Vec<_> = (0..3).map(|_| connections.admit(ip("10.0.0.1")).unwrap()).collect();
        held.push(connections.admit(ip("10.0.0.2")).unwrap());
        let _requests: Vec<_> = held.iter().map(|s| s.busy.enter()).collect();
        assert!(connections.admit(ip("10.0.0.1")).is_none(), "one's own are not exchanged");
        let other = connections.admit(ip("10.0.0.2")).unwrap();
        assert!(held[0].cut.is_cancelled() && !held[3].cut.is_cancelled());
        let _request = other.busy.enter();
        drop(held.remove(0));
        let third = connections.admit(ip("10.0.0.3")).unwrap();
        assert!(third.evicted.is_some(), "two of four are more than a share");
    }
}

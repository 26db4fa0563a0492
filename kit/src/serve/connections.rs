//! Which connections are open, which of them have a request, and which one is closed when another
//! finds no room.
//!
//! Whoever opens sockets and says nothing, sends the head of a request without its body, or leaves
//! an answer unread must not keep a liveness probe, a scrape or the alerter out. So few places are
//! kept for connections without a request, and a newcomer always gets one of them: of the client
//! with the most connections, the one that was active longest ago is closed for it. All other
//! places are for requests. Where these are taken, a further request takes the place of one that
//! waits for its own client; probes need no place.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ServeMetrics;
use super::rarely::Rarely;

/// A client that has requests on this share of all connections loses one that is being answered,
/// too, to a client with fewer.
const GREEDY_SHARE: usize = 4;
/// One place in so many, and at least one, is kept for connections without a request.
const RESERVED_PART: usize = 8;
/// A connection has this long to say what it wants before it is closed for another.
const FIRST_WORD: Duration = Duration::from_millis(25);
/// After which it is looked again whether what it said was read.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// A connection of which something is still unread then will have to bear it: it may send without
/// end.
const HEARD_AT_LAST: Duration = Duration::from_millis(250);
/// Requests beyond the first of their connection (HTTP/2), on all connections: the headers of each
/// stay in memory until it is answered, and a sender may hold its body back for long.
pub(super) const MAX_FURTHER_REQUESTS: usize = 512;

/// A port, for a socket that is connected and never sends.
const DISCARD: u16 = 9;

/// Whom a limit counts as one: an IPv4 address, an IPv6 network of 64 bits (whoever has one address
/// of it has all), or this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client(IpAddr);

impl Client {
    /// Of a connection from `peer` to our address `local`. Every address of this machine is one
    /// client.
    pub fn of(peer: IpAddr, local: IpAddr) -> Self {
        let (ip, local) = (peer.to_canonical(), local.to_canonical());
        if ip.is_loopback() || ip == local || is_of_this_machine(ip) {
            return Self(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        match ip {
            IpAddr::V4(_) => Self(ip),
            IpAddr::V6(v6) => Self(IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)))),
        }
    }
}

/// Whether the kernel would speak to an address from that address. Nothing is sent.
fn is_of_this_machine(ip: IpAddr) -> bool {
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let asked = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((ip, DISCARD))?;
        socket.local_addr()
    });
    asked.is_ok_and(|own| own.ip() == ip)
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
    /// Bytes of answers that are not sent yet, of all connections.
    answers: usize,
    /// How many there are, also of connections that are about to be closed for others.
    unsent: AtomicUsize,
    metrics: ServeMetrics,
    evictions: Rarely,
    refusals: Rarely,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    by_id: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    client: Client,
    since: Instant,
    /// Grows with each connection and each request: whose is lowest was active longest ago.
    turn: u64,
    busy: Arc<Busy>,
    cut: CancellationToken,
}

/// A place of its own for one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    connections: Arc<Connections>,
    id: u64,
    pub(super) client: Client,
    pub(super) busy: Arc<Busy>,
    /// Cancelled when the connection has to make room.
    pub(super) cut: CancellationToken,
}

/// The requests of one connection: how many are open, how many of these wait for the client, and
/// how many there ever were.
#[derive(Debug, Default)]
pub(super) struct Busy {
    now: AtomicUsize,
    waiting: AtomicUsize,
    begun: AtomicUsize,
    heard: AtomicBool,
    /// Bytes of answers that were not sent yet.
    unsent: AtomicUsize,
}

/// One request, until the last byte of its answer is on its way.
#[derive(Debug)]
pub(super) struct Entered {
    seat: Arc<Seat>,
    waits: AtomicBool,
}

impl Busy {
    fn enter(&self) {
        self.now.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// How many requests there are beyond the first.
    fn further(&self) -> usize {
        self.now().saturating_sub(1)
    }

    /// Notes that all that the client had sent was read.
    pub(super) fn was_heard(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether nothing is to be done here before the client does something.
    fn waits_for_client(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= self.now()
    }
}

impl Entered {
    /// Counts bytes of the answer until they are sent. Where those of all connections are too many,
    /// others are closed that leave theirs unread.
    pub(super) fn answers(&self, bytes: usize) {
        let all = self.seat.connections.unsent.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if all > self.seat.connections.answers {
            self.seat.connections.make_room_for_answer(self.seat.id, bytes);
        }
        self.seat.busy.unsent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes were sent, or will never be.
    pub(super) fn sent(&self, bytes: usize) {
        self.seat.busy.unsent.fetch_sub(bytes, Ordering::Relaxed);
        self.seat.connections.unsent.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Says whether it is the client that has to go on: to send the body or to take the answer.
    pub(super) fn waits_for_client(&self, waits: bool) {
        match (self.waits.swap(waits, Ordering::Relaxed), waits) {
            (false, true) => _ = self.seat.busy.waiting.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.seat.busy.waiting.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.waits_for_client(false);
        self.seat.busy.now.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connections {
    /// With `limit` places, and room for so many bytes of answers.
    pub(super) fn new(limit: usize, answers: usize, metrics: ServeMetrics) -> Arc<Self> {
        let (evictions, refusals) = (Rarely::default(), Rarely::default());
        Arc::new(Self {
            limit,
            answers,
            unsent: AtomicUsize::new(0),
            metrics,
            evictions,
            refusals,
            open: Mutex::default(),
        })
    }

    /// A place for a connection of `client`.
    pub(super) fn admit(self: &Arc<Self>, client: Client) -> Arc<Seat> {
        let mut open = self.locked();
        // Requests leave a part of the places free, so there is one to close.
        if open.by_id.len() >= self.limit
            && let Some(id) = open.idlest()
        {
            self.evict(&mut open, id);
        }
        let id = open.turn();
        let (busy, cut) = (Arc::<Busy>::default(), CancellationToken::new());
        open.by_id.insert(
            id,
            Entry { client, since: Instant::now(), turn: id, busy: Arc::clone(&busy), cut: cut.clone() },
        );
        Arc::new(Seat { connections: Arc::clone(self), id, client, busy, cut })
    }

    /// How long the next connection has to wait before the one that makes room for it has had its
    /// time. Or else whoever connects fastest would keep out all who connect and then speak, and a
    /// request that came would be closed before a busy program had read it.
    pub(super) fn pause(&self) -> Duration {
        let open = self.locked();
        if open.by_id.len() < self.limit {
            return Duration::ZERO;
        }
        let next = open.idlest().and_then(|id| open.by_id.get(&id));
        next.map_or(Duration::ZERO, |next| {
            let left = FIRST_WORD.saturating_sub(next.since.elapsed());
            if next.was_heard() { left } else { left.max(LOOK_AGAIN) }
        })
    }

    /// How many connections may have a request at once.
    fn places(&self) -> usize {
        (self.limit - (self.limit / RESERVED_PART).max(1).min(self.limit)).max(1)
    }

    /// Whether a request of `client` finds a place among those of others, or is given one.
    fn has_place(&self, open: &mut Open, client: Client) -> bool {
        let asking = open.by_id.values().filter(|e| e.busy.now() > 0).count();
        if asking < self.places() {
            return true;
        }
        let victim = open.least_entitled(client, self.limit / GREEDY_SHARE);
        self.give_way(open, victim, client)
    }

    /// The same for a further request of connection `id`.
    fn has_further_place(&self, open: &mut Open, id: u64, client: Client) -> bool {
        let further = open.by_id.values().map(|e| e.busy.further()).sum::<usize>();
        if further < MAX_FURTHER_REQUESTS {
            return true;
        }
        let victim = open.most_further(id, client);
        self.give_way(open, victim, client)
    }

    /// Before `bytes` of an answer are held for connection `id`.
    fn make_room_for_answer(&self, id: u64, bytes: usize) {
        let mut open = self.locked();
        let all = |open: &Open| open.by_id.values().map(|e| e.busy.unsent()).sum::<usize>();
        while all(&open).saturating_add(bytes) > self.answers {
            let Some(victim) = open.most_unsent(id) else { return };
            self.evict(&mut open, victim);
        }
    }

    /// Closes `victim` for a request of `client`, or says that nothing gives way to it.
    fn give_way(&self, open: &mut Open, victim: Option<u64>, client: Client) -> bool {
        if let Some(id) = victim {
            self.evict(open, id);
        } else {
            self.metrics.refused_over_capacity();
            if self.refusals.is_due() {
                tracing::warn!(%client, "every place for a request is taken: one of this client was refused");
            }
        }
        victim.is_some()
    }

    fn evict(&self, open: &mut Open, id: u64) {
        let Some(Entry { client, cut, .. }) = open.by_id.remove(&id) else { return };
        cut.cancel();
        self.metrics.evicted();
        if self.evictions.is_due() {
            tracing::warn!(%client, "every connection is taken: one of this client was closed");
        }
    }

    fn locked(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Whether all that the client had sent was read.
    fn was_heard(&self) -> bool {
        self.busy.heard.load(Ordering::Relaxed) || self.since.elapsed() >= HEARD_AT_LAST
    }
}

impl Open {
    fn turn(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Which connection makes room for another: of those that have nothing unread, those without a request, or else of those that
    /// wait for their client, one of the client with the most connections.
    fn idlest(&self) -> Option<u64> {
        let held = per_client(self.by_id.values());
        let idle = self.by_id.iter().filter(|(_, e)| e.busy.waits_for_client());
        let key = |e: &Entry| (!e.was_heard(), e.busy.now() > 0, usize::MAX - held[&e.client], e.turn);
        idle.min_by_key(|(_, e)| key(e)).map(|(id, _)| *id)
    }

    /// Which request makes room for one of `newcomer`: one that waits for its client, if the
    /// newcomer has no more than that client, or else one of a client with a whole share.
    fn least_entitled(&self, newcomer: Client, share: usize) -> Option<u64> {
        let asking = || self.by_id.iter().filter(|(_, e)| e.busy.now() > 0);
        let held = per_client(asking().map(|(_, e)| e));
        let own = held.get(&newcomer).copied().unwrap_or_default();
        let ranked = asking().filter_map(|(id, e)| {
            let (most, waits) = (held[&e.client], e.busy.waits_for_client());
            let gives_way = if waits { most >= own } else { most >= share && most > own };
            gives_way.then_some((!waits, usize::MAX - most, e.turn, *id))
        });
        ranked.min().map(|(.., id)| id)
    }

    /// Which connection is closed where too much is unsent, other than `except`: of the client that
    /// leaves most unread, the one that was active longest ago.
    fn most_unsent(&self, except: u64) -> Option<u64> {
        let mut held = BTreeMap::<Client, usize>::new();
        for entry in self.by_id.values() {
            *held.entry(entry.client).or_default() += entry.busy.unsent();
        }
        let unread = self.by_id.iter().filter(|(id, e)| **id != except && e.busy.unsent() > 0);
        unread.min_by_key(|(_, e)| (usize::MAX - held[&e.client], e.turn)).map(|(id, _)| *id)
    }

    /// Which connection with several requests makes room for one more of `newcomer` on connection
    /// `except`: one whose requests all wait for their client, if the newcomer has no more of them
    /// than that client.
    fn most_further(&self, except: u64, newcomer: Client) -> Option<u64> {
        let mut held = BTreeMap::<Client, usize>::new();
        for entry in self.by_id.values() {
            *held.entry(entry.client).or_default() += entry.busy.further();
        }
        let own = held.get(&newcomer).copied().unwrap_or_default();
        let gives_way = |id: u64, e: &Entry| {
            id != except && e.busy.further() > 0 && e.busy.waits_for_client() && held[&e.client] >= own
        };
        let ranked = self.by_id.iter().filter(|(id, e)| gives_way(**id, e));
        ranked.min_by_key(|(_, e)| (usize::MAX - held[&e.client], e.turn)).map(|(id, _)| *id)
    }
}

fn per_client<'a>(entries: impl Iterator<Item = &'a Entry>) -> BTreeMap<Client, usize> {
    let mut held = BTreeMap::new();
    for entry in entries {
        *held.entry(entry.client).or_default() += 1;
    }
    held
}

impl Seat {
    /// Begins a request; nothing where there is no place for it. A probe needs none.
    pub(super) fn enter(self: &Arc<Self>, is_probe: bool) -> Option<Entered> {
        let mut open = self.connections.locked();
        let has_place = match self.busy.now() {
            _ if is_probe => true,
            0 => self.connections.has_place(&mut open, self.client),
            _ => self.connections.has_further_place(&mut open, self.id, self.client),
        };
        if !has_place {
            return None;
        }
        let turn = open.turn();
        if let Some(entry) = open.by_id.get_mut(&self.id) {
            entry.turn = turn;
        }
        drop(open);
        self.busy.enter();
        Some(Entered { seat: Arc::clone(self), waits: AtomicBool::new(false) })
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

    fn client(text: &str) -> Client {
        Client::of(text.parse().unwrap(), [192, 0, 2, 1].into())
    }

    fn nth(n: u8) -> Client {
        Client::of([10, 0, 0, n].into(), [192, 0, 2, 1].into())
    }

    fn connections(limit: usize) -> Arc<Connections> {
        Connections::new(limit, 1 << 20, ServeMetrics::default())
    }

    /// A connection with a request that waits for its client or is being answered.
    fn asking(connections: &Arc<Connections>, n: u8, waits: bool) -> (Arc<Seat>, Entered) {
        let seat = connections.admit(nth(n));
        let entered = seat.enter(false).unwrap();
        entered.waits_for_client(waits);
        (seat, entered)
    }

    #[test]
    fn clients_are_counted_together_where_one_has_all_addresses() {
        assert_eq!(client("127.0.0.1"), client("127.9.9.9"));
        assert_eq!(client("127.0.0.1"), client("::1"));
        assert_eq!(client("10.0.0.1"), client("::ffff:10.0.0.1"));
        assert_ne!(client("10.0.0.1"), client("10.0.0.2"));
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:1"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
    }

    #[test]
    fn a_peer_with_our_own_address_is_this_machine() {
        assert_eq!(client("192.0.2.1"), client("127.0.0.1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("127.0.0.1"));
        assert!(is_of_this_machine([127, 0, 0, 1].into()) && !is_of_this_machine([192, 0, 2, 1].into()));
        let six = "2001:db8::1".parse().unwrap();
        assert_eq!(Client::of(six, six), client("127.0.0.1"));
    }

    #[test]
    fn a_newcomer_takes_the_place_of_what_was_active_longest_ago() {
        let connections = connections(3);
        let asked = connections.admit(nth(1));
        let silent = connections.admit(nth(1));
        drop(asked.enter(false));
        let busy = connections.admit(nth(1));
        let _request = busy.enter(false).unwrap();
        let _newcomer = connections.admit(nth(1));
        assert!(silent.cut.is_cancelled());
        assert!(!asked.cut.is_cancelled() && !busy.cut.is_cancelled());
        let next = connections.admit(nth(1));
        assert!(asked.cut.is_cancelled() && !next.cut.is_cancelled());
        drop((silent, asked));
        assert_eq!(connections.locked().by_id.len(), 3, "a place is freed once");
    }

    #[test]
    fn the_idle_of_whoever_holds_most_go_first() {
        let connections = connections(3);
        let alone = connections.admit(nth(1));
        let many = [connections.admit(nth(2)), connections.admit(nth(2))];
        let _third = connections.admit(nth(3));
        assert!(many[0].cut.is_cancelled() && !many[1].cut.is_cancelled() && !alone.cut.is_cancelled());
    }

    #[test]
    fn requests_that_wait_for_their_client_make_room_and_the_oldest_first() {
        let connections = connections(512);
        let held: Vec<_> = (0..512).map(|_| asking(&connections, 1, true)).collect();
        let cut = |n: usize| held[n].0.cut.is_cancelled();
        assert!((0..64).all(cut) && !cut(64), "as many as are kept free");
        let newcomer = connections.admit(nth(1));
        assert!(!cut(64), "a place is free for the head");
        let request = newcomer.enter(false).unwrap();
        assert!(cut(64) && !cut(65) && !newcomer.cut.is_cancelled());
        request.waits_for_client(true);
        let _later: Vec<_> = (0..400).map(|_| asking(&connections, 1, true)).collect();
        assert!(!newcomer.cut.is_cancelled(), "its turn comes after those that waited before");
    }

    #[test]
    fn full_shares_of_four_clients_make_room_for_a_fifth() {
        let connections = connections(512);
        let _held: Vec<_> = (0..512).map(|i| asking(&connections, (i % 4) as u8, true)).collect();
        let fifth = connections.admit(nth(9));
        assert!(fifth.enter(false).is_some());
    }

    #[test]
    fn whoever_is_answered_on_a_full_share_gives_one_up() {
        let connections = connections(64);
        let places = connections.places();
        let _held: Vec<_> = (0..places).map(|i| asking(&connections, (i / 16) as u8, false)).collect();
        let other = connections.admit(nth(9));
        assert!(other.enter(false).is_some(), "16 of 64 are a full share");
    }

    #[test]
    fn of_many_clients_with_one_each_the_longest_waiting_makes_room() {
        let connections = connections(128);
        let held: Vec<_> = (0..connections.places()).map(|n| asking(&connections, n as u8, true)).collect();
        let newcomer = connections.admit(nth(200));
        assert!(newcomer.enter(false).is_some());
        assert!(held[0].0.cut.is_cancelled() && !held[1].0.cut.is_cancelled());
    }

    #[test]
    fn a_client_with_more_requests_takes_no_place_of_one_with_fewer() {
        let connections = connections(4);
        let slow = asking(&connections, 1, true);
        let busy = [asking(&connections, 2, false), asking(&connections, 2, false)];
        let further = connections.admit(nth(2));
        assert!(further.enter(false).is_none());
        assert!(!slow.0.cut.is_cancelled() && !further.cut.is_cancelled());
        let third = connections.admit(nth(3));
        assert!(third.enter(false).is_some() && slow.0.cut.is_cancelled());
        assert!(!busy[0].0.cut.is_cancelled());
    }

    /// A connection with many requests, which wait for their client or are being answered.
    fn asking_at_once(connections: &Arc<Connections>, n: u8, waits: bool) -> (Arc<Seat>, Vec<Entered>) {
        let seat = connections.admit(nth(n));
        let entered: Vec<_> = (0..65).map(|_| seat.enter(false).unwrap()).collect();
        entered.iter().for_each(|e| e.waits_for_client(waits));
        (seat, entered)
    }

    #[test]
    fn a_connection_whose_requests_all_wait_makes_room_for_a_further_one() {
        let connections = connections(512);
        let held: Vec<_> = (0..8).map(|_| asking_at_once(&connections, 1, true)).collect();
        let newcomer = connections.admit(nth(1));
        let (first, second) = (newcomer.enter(false), newcomer.enter(false));
        assert!(first.is_some() && second.is_some());
        assert!(held[0].0.cut.is_cancelled() && !held[1].0.cut.is_cancelled());
        assert!(!newcomer.cut.is_cancelled());
    }

    #[test]
    fn requests_that_are_being_answered_are_bounded_and_not_broken_off() {
        let connections = connections(512);
        let held: Vec<_> = (0..8).map(|_| asking_at_once(&connections, 1, false)).collect();
        let newcomer = connections.admit(nth(2));
        let _first = newcomer.enter(false).unwrap();
        assert!(newcomer.enter(false).is_none() && newcomer.enter(true).is_some());
        assert!(held.iter().all(|(seat, _)| !seat.cut.is_cancelled()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_waits_until_the_one_before_could_speak() {
        let connections = connections(2);
        let first = connections.admit(nth(1));
        assert_eq!(connections.pause(), Duration::ZERO, "there is room");
        tokio::time::advance(Duration::from_millis(10)).await;
        let second = connections.admit(nth(1));
        assert_eq!(connections.pause(), Duration::from_millis(15));
        tokio::time::advance(Duration::from_millis(15)).await;
        assert_eq!(connections.pause(), LOOK_AGAIN, "nobody has looked what it says");
        second.busy.was_heard();
        assert_eq!(connections.pause(), Duration::from_millis(10), "the second has nothing to say");
        first.busy.was_heard();
        assert_eq!(connections.pause(), Duration::ZERO);
        let _third = connections.admit(nth(1));
        assert_eq!(connections.pause(), Duration::from_millis(10), "the second is the oldest now");
    }

    #[test]
    fn answers_that_are_left_unread_make_room_for_others_and_the_oldest_of_most_first() {
        let connections = connections(512);
        let held: Vec<_> = (0..8).map(|_| asking(&connections, 1, true)).collect();
        let other = asking(&connections, 2, true);
        other.1.answers(100 << 10);
        held.iter().for_each(|(_, entered)| entered.answers(100 << 10));
        let cut = |n: usize| held[n].0.cut.is_cancelled();
        assert!(!cut(0));
        let next = asking(&connections, 1, false);
        next.1.answers(300 << 10);
        assert!(cut(0) && cut(1) && !cut(2) && !other.0.cut.is_cancelled());
        next.1.sent(300 << 10);
        held[2].1.answers(100 << 10);
        assert!(!cut(3), "what was sent takes no room");
        next.1.answers(64 << 20);
        assert!(cut(7) && other.0.cut.is_cancelled(), "one alone may be larger than that");
        assert!(!next.0.cut.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_more_than_is_read_keeps_nobody_waiting_for_long() {
        let connections = connections(1);
        let _unread = connections.admit(nth(1));
        tokio::time::advance(HEARD_AT_LAST - LOOK_AGAIN).await;
        assert_eq!(connections.pause(), LOOK_AGAIN);
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(connections.pause(), Duration::ZERO);
    }

    #[test]
    fn a_probe_is_answered_while_every_place_is_taken() {
        let connections = connections(64);
        let held: Vec<_> = (0..connections.places()).map(|_| asking(&connections, 1, false)).collect();
        for _ in 0..100 {
            let probe = connections.admit(nth(1));
            assert!(probe.enter(false).is_none(), "one's own are not exchanged");
            assert!(probe.enter(true).is_some());
        }
        assert!(held.iter().all(|(seat, _)| !seat.cut.is_cancelled()));
    }
}

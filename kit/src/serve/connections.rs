//! Which connections are open, which of them have a request, and which one is closed when another
//! finds no room.
//!
//! A client that opens sockets and sends nothing, sends the head of a request without its body, or
//! leaves an answer unread must not keep a liveness probe, a scrape or the alerter out. So few
//! places are kept for connections without a request, and a newcomer always gets one of them: of
//! the client with the most connections, the one that was active longest ago is closed for it. All
//! other places are for requests. Where these are taken, a further request takes the place of one
//! that waits for its own client; probes need no place.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ServeMetrics;
use crate::log_throttle::LogThrottle;

/// A client that has requests on this share of all connections loses one that is being answered,
/// too, to a client with fewer.
const GREEDY_SHARE: usize = 4;
/// One place in so many, and at least one, is kept for connections without a request.
const RESERVED_PART: usize = 4;
/// A connection has this long to send its request before it is closed for another.
const FIRST_WORD: Duration = Duration::from_millis(50);
/// A connection with an unread answer has been served, and has this long in total. Otherwise
/// clients that do not read would be let in so slowly that others are not let in at all.
const FIRST_ANSWER: Duration = Duration::from_millis(10);
/// Where every place is taken, connections are let in at an even pace, and may be so far ahead of
/// it. Let in by bursts, the next would wait for long while the kernel's queue fills, and the
/// kernel tries a probe that finds its queue full again after a second.
const AHEAD: Duration = Duration::from_millis(1);
/// After this it is checked again whether the answer was read.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// A connection of which something is still unread then will have to bear it: it may send without
/// end.
const HEARD_AT_LAST: Duration = Duration::from_millis(250);
/// Requests beyond the first of their connection (HTTP/2), on all connections: the headers of each
/// stay in memory until it is answered, and a sender may hold its body back for long.
pub(super) const MAX_FURTHER_REQUESTS: usize = 512;

/// Connections of HTTP/2, one in so many of all: each holds the headers and the beginnings of many
/// requests before any of these has a place.
const HTTP2_PART: usize = 8;

/// A port, for a socket that is connected and never sends.
const DISCARD: u16 = 9;

/// What a limit counts as one client: an IPv4 address, an IPv6 network of 64 bits (the holder of
/// one address of it has all), this machine, or a user of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "IpAddr", into = "IpAddr")]
pub struct Client {
    address: IpAddr,
    /// Not stored: a user may have another connection next time.
    user: Option<u32>,
}

impl From<IpAddr> for Client {
    fn from(address: IpAddr) -> Self {
        Self { address, user: None }
    }
}

impl From<Client> for IpAddr {
    fn from(client: Client) -> Self {
        client.address
    }
}

impl Client {
    /// Of a connection from `peer` to our address `local`. Every address of this machine is one
    /// client.
    pub fn from_addresses(peer: IpAddr, local: IpAddr) -> Self {
        let (ip, local) = (peer.to_canonical(), local.to_canonical());
        if ip.is_loopback() || ip == local || is_of_this_machine(ip) {
            return Self::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        Self::from(match ip {
            IpAddr::V4(_) => ip,
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
        })
    }

    /// One of the users of this machine, where that is known.
    #[must_use]
    pub fn of_user(self, user: impl FnOnce() -> Option<u32>) -> Self {
        let user = if self.elsewhere().is_none() { user() } else { None };
        Self { user, ..self }
    }

    /// The same, whichever user it is.
    #[must_use]
    pub fn of_any_user(self) -> Self {
        Self { user: None, ..self }
    }

    /// The address, or the first one of the network; `None` for this machine.
    pub fn elsewhere(self) -> Option<IpAddr> {
        Some(self.address).filter(|ip| !ip.is_loopback())
    }
}

/// Whether the kernel would send to an address from that address. Nothing is sent.
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
        self.address.fmt(f)?;
        self.user.map_or(Ok(()), |uid| write!(f, " (uid {uid})"))
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
    /// How many connections have a request, and how many requests there are beyond the first of
    /// their connection, each until the connection that was closed for another is really gone.
    asking: AtomicUsize,
    further: AtomicUsize,
    /// Places of HTTP/2 connections, each taken until its connection is really gone.
    http2: Arc<Semaphore>,
    metrics: ServeMetrics,
    evictions: LogThrottle,
    refusals: LogThrottle,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// When the next connection would be let in at an even pace.
    paced: Option<Instant>,
    by_id: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    client: Client,
    since: Instant,
    /// Grows with each connection and each request: whose is lowest was active longest ago.
    turn: u64,
    http2: bool,
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
    /// Whether it is the only request of its connection.
    fn enter(&self) -> bool {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.now.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Whether it was the only one.
    fn leave(&self) -> bool {
        self.now.fetch_sub(1, Ordering::Relaxed) == 1
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

    /// Returns whether it is the client that has to go on: to send the body or to take the answer.
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
        let only = self.seat.busy.leave();
        self.seat.connections.counts(only).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connections {
    /// With `limit` places, and room for so many bytes of answers.
    pub(super) fn new(limit: usize, answers: usize, metrics: ServeMetrics) -> Arc<Self> {
        let (evictions, refusals) = (LogThrottle::default(), LogThrottle::default());
        Arc::new(Self {
            limit,
            answers,
            unsent: AtomicUsize::new(0),
            asking: AtomicUsize::new(0),
            further: AtomicUsize::new(0),
            http2: Arc::new(Semaphore::new((limit / HTTP2_PART).max(1))),
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
        if open.by_id.len() >= self.limit {
            let now = Instant::now();
            open.paced = Some(open.paced.unwrap_or(now).max(now) + self.pace());
            if let Some(id) = open.idlest(|_| true) {
                self.evict(&mut open, id);
            }
        }
        let id = open.turn();
        let (busy, cut) = (Arc::<Busy>::default(), CancellationToken::new());
        let (since, turn) = (Instant::now(), id);
        let entry = Entry { client, since, turn, http2: false, busy: Arc::clone(&busy), cut: cut.clone() };
        open.by_id.insert(id, entry);
        Arc::new(Seat { connections: Arc::clone(self), id, client, busy, cut })
    }

    /// How long the next connection has to wait before the one that makes room for it has had its
    /// time. Otherwise the clients that connect fastest would keep out all that connect and then
    /// send, and a request that came would be closed before a busy program had read it.
    pub(super) fn pause(&self) -> Duration {
        let open = self.locked();
        if open.by_id.len() < self.limit {
            return Duration::ZERO;
        }
        let next = open.idlest(|_| true).and_then(|id| open.by_id.get(&id));
        let left = next.map_or(Duration::ZERO, |next| {
            let time = if next.busy.unsent() > 0 { FIRST_ANSWER } else { FIRST_WORD };
            let left = time.saturating_sub(next.since.elapsed());
            if next.was_heard() { left } else { left.max(LOOK_AGAIN) }
        });
        let ahead = open.paced.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        left.max(ahead.saturating_sub(AHEAD.max(self.pace())))
    }

    /// How far apart connections are let in where every place is taken.
    fn pace(&self) -> Duration {
        FIRST_WORD / u32::try_from(self.limit).unwrap_or(u32::MAX).max(1)
    }

    /// What counts a request: the only one of its connection, or a further one.
    fn counts(&self, only: bool) -> &AtomicUsize {
        if only { &self.asking } else { &self.further }
    }

    /// How many connections may have a request at once.
    fn places(&self) -> usize {
        (self.limit - (self.limit / RESERVED_PART).max(1).min(self.limit)).max(1)
    }

    /// Whether a request of `client` finds a place among those of others, or is given one.
    fn has_place(&self, open: &mut Open, client: Client) -> bool {
        if self.asking.load(Ordering::Relaxed) < self.places() {
            return true;
        }
        let victim = open.least_entitled(client, self.limit / GREEDY_SHARE);
        self.give_way(open, victim, client)
    }

    /// The same for a further request of connection `id`.
    fn has_further_place(&self, open: &mut Open, id: u64, client: Client) -> bool {
        if self.further.load(Ordering::Relaxed) < MAX_FURTHER_REQUESTS {
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

    /// Closes `victim` for a request of `client`, or returns that nothing gives way to it.
    fn give_way(&self, open: &mut Open, victim: Option<u64>, client: Client) -> bool {
        if let Some(id) = victim {
            self.evict(open, id);
        } else {
            self.metrics.refused_over_capacity();
            if let Some(count) = self.refusals.count(1) {
                tracing::warn!(count, %client, "every place for a request is taken: one of this client was refused");
            }
        }
        victim.is_some()
    }

    fn evict(&self, open: &mut Open, id: u64) {
        let Some(Entry { client, cut, .. }) = open.by_id.remove(&id) else { return };
        cut.cancel();
        self.metrics.evicted();
        if let Some(count) = self.evictions.count(1) {
            tracing::warn!(count, %client, "every connection is taken: one of this client was closed");
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

    /// Which connection makes room for another: of those that have nothing unread, those without a
    /// request, or else of those that wait for their client, one of the client with the most
    /// connections. Only those count that `are` such.
    fn idlest(&self, are: impl Fn(&Entry) -> bool) -> Option<u64> {
        let held = per_client(self.by_id.values().filter(|e| are(e)));
        let idle = self.by_id.iter().filter(|(_, e)| are(e) && e.busy.waits_for_client());
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
    /// A place for an HTTP/2 connection, until it is dropped. Where there is none, one of these
    /// connections is closed, and its place is waited for.
    pub(super) async fn http2_place(&self) -> Option<OwnedSemaphorePermit> {
        let places = Arc::clone(&self.connections.http2);
        if places.available_permits() == 0 {
            // A connection that waits here has sent its first bytes, and makes room before those
            // that have not.
            self.busy.was_heard();
            let mut open = self.connections.locked();
            if let Some(id) = open.idlest(|e| e.http2) {
                self.connections.evict(&mut open, id);
            }
        }
        let place = places.acquire_owned().await.ok()?;
        if let Some(entry) = self.connections.locked().by_id.get_mut(&self.id) {
            entry.http2 = true;
        }
        Some(place)
    }

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
        // Within the lock, so that two that come at once see one another.
        let only = self.busy.enter();
        self.connections.counts(only).fetch_add(1, Ordering::Relaxed);
        drop(open);
        Some(Entered { seat: Arc::clone(self), waits: AtomicBool::new(false) })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.locked().by_id.remove(&self.id);
    }
}

#[cfg(test)]
mod tests;

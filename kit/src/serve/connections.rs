//! Tracks the open connections and their requests, and chooses the one to close when a new one
//! finds no room.
//!
//! A client that opens sockets and sends nothing, sends the head of a request without its body, or
//! leaves an answer unread must not keep a liveness probe, a scrape or the alerter out. So a few
//! places are reserved for connections without a request, and a new connection always gets one: of
//! the client with the most connections, the least recently active one is closed. All other places
//! are for requests. If these are taken, a further request replaces one that waits for its own
//! client. Probes need no place.

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

/// The divisor of all connections that gives a large share. A client with that many requests loses
/// even one that is being answered to a client with fewer.
const GREEDY_SHARE: usize = 4;
/// The divisor of all places that gives those reserved for connections without a request.
const RESERVED_PART: usize = 4;
/// The time that a connection has for its request before it may be closed for another.
const FIRST_WORD: Duration = Duration::from_millis(50);
/// The total time of a connection with an unread answer, which has been served. With more time,
/// clients that do not read would slow the accepting down until others are not accepted at all.
const FIRST_ANSWER: Duration = Duration::from_millis(10);
/// With all places taken, connections are accepted at an even pace; this is how far they may be
/// ahead of it. After a burst, the next one would wait long while the kernel's queue fills, and the
/// kernel retries a probe that finds its queue full only after a second.
const AHEAD: Duration = Duration::from_millis(1);
/// The interval at which an unread answer is checked again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// The time after which a connection with unread input counts as read, because it may send without
/// end.
const HEARD_AT_LAST: Duration = Duration::from_millis(250);
/// The most requests beyond the first of their connection (HTTP/2), on all connections: the headers
/// of each stay in memory until it is answered, and a sender may hold its body back for long.
pub(super) const MAX_FURTHER_REQUESTS: usize = 512;

/// The divisor of all connections that gives the most HTTP/2 connections. Each holds the headers
/// and first bytes of many requests before any of these has a place.
const HTTP2_PART: usize = 8;

/// The port of a socket that is connected and never sends.
const DISCARD: u16 = 9;

/// The unit to which limits apply: an IPv4 address, an IPv6 network of 64 bits (the holder of one
/// address has all), this machine, or a user of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "IpAddr", into = "IpAddr")]
pub struct Client {
    address: IpAddr,
    /// Not serialised, because a user may have another connection next time.
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
    /// The client of a connection from `peer` to the local address `local`. All addresses of this
    /// machine are one client.
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

    /// The same client narrowed to a user of this machine, if the user is known.
    #[must_use]
    pub fn of_user(self, user: impl FnOnce() -> Option<u32>) -> Self {
        let user = if self.elsewhere().is_none() { user() } else { None };
        Self { user, ..self }
    }

    pub(super) fn user(self) -> Option<u32> {
        self.user
    }

    /// The same client without the user.
    #[must_use]
    pub fn of_any_user(self) -> Self {
        Self { user: None, ..self }
    }

    /// The address, or the first address of the network; `None` for this machine.
    pub fn elsewhere(self) -> Option<IpAddr> {
        Some(self.address).filter(|ip| !ip.is_loopback())
    }
}

/// Whether the address is local: the kernel would use it to send to itself. Nothing is sent.
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
    /// The most bytes of answers that are not sent yet, of all connections.
    answers: usize,
    /// Unsent bytes, also of connections that are about to be closed.
    unsent: AtomicUsize,
    /// Connections with a request, and requests beyond the first of their connection. A request of
    /// an evicted connection counts until that connection has ended.
    asking: AtomicUsize,
    further: AtomicUsize,
    /// Permits of HTTP/2 connections, each held until its connection has ended.
    http2: Arc<Semaphore>,
    metrics: ServeMetrics,
    evictions: LogThrottle,
    refusals: LogThrottle,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// The time at which the next connection is due at an even pace.
    paced: Option<Instant>,
    by_id: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    client: Client,
    since: Instant,
    /// Grows with each connection and request; the lowest belongs to the least recently active one.
    turn: u64,
    http2: bool,
    busy: Arc<Busy>,
    cut: CancellationToken,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    connections: Arc<Connections>,
    id: u64,
    pub(super) client: Client,
    pub(super) busy: Arc<Busy>,
    /// Cancelled when the connection is closed for another.
    pub(super) cut: CancellationToken,
}

/// The requests of one connection: those open, those of them that wait for the client, and all so
/// far.
#[derive(Debug, Default)]
pub(super) struct Busy {
    now: AtomicUsize,
    waiting: AtomicUsize,
    begun: AtomicUsize,
    heard: AtomicBool,
    /// Bytes of answers that are not sent yet.
    unsent: AtomicUsize,
}

/// One request, until the last byte of its answer is sent.
#[derive(Debug)]
pub(super) struct Entered {
    seat: Arc<Seat>,
    waits: AtomicBool,
}

impl Busy {
    /// Begins a request. Returns whether it is the only one of its connection.
    fn enter(&self) -> bool {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.now.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Ends a request. Returns whether it was the only one.
    fn leave(&self) -> bool {
        self.now.fetch_sub(1, Ordering::Relaxed) == 1
    }

    pub(super) fn now(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// The number of requests beyond the first.
    fn further(&self) -> usize {
        self.now().saturating_sub(1)
    }

    /// Notes that all input of the client so far was read.
    pub(super) fn was_heard(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether every open request waits for the client.
    fn waits_for_client(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= self.now()
    }
}

impl Entered {
    /// Counts bytes of the answer until they are sent. If all connections have too many, others
    /// that leave their answers unread are closed.
    pub(super) fn answers(&self, bytes: usize) {
        let all = self.seat.connections.unsent.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if all > self.seat.connections.answers {
            self.seat.connections.make_room_for_answer(self.seat.id, bytes);
        }
        self.seat.busy.unsent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that bytes were sent, or will never be sent.
    pub(super) fn sent(&self, bytes: usize) {
        self.seat.busy.unsent.fetch_sub(bytes, Ordering::Relaxed);
        self.seat.connections.unsent.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Sets whether the request waits for the client, to send the body or to read the answer.
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
    /// Creates `limit` places, and a budget of `answers` bytes for unsent answers.
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

    /// Takes a place for a connection of `client`, and closes another connection if all are taken.
    pub(super) fn admit(self: &Arc<Self>, client: Client) -> Arc<Seat> {
        let mut open = self.locked();
        // Requests never use all places, so there is an idle connection to close.
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

    /// The time until the next connection can be accepted: until the one to be closed for it has
    /// had its time. Otherwise the fastest clients would keep out those that connect and then send,
    /// and a busy program would close a request before it has read it.
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

    /// The interval at which connections are accepted while every place is taken.
    fn pace(&self) -> Duration {
        FIRST_WORD / u32::try_from(self.limit).unwrap_or(u32::MAX).max(1)
    }

    /// The counter of a request: of the only one of its connection, or of a further one.
    fn counts(&self, only: bool) -> &AtomicUsize {
        if only { &self.asking } else { &self.further }
    }

    /// The most connections that may have a request at once.
    fn places(&self) -> usize {
        (self.limit - (self.limit / RESERVED_PART).max(1).min(self.limit)).max(1)
    }

    /// Whether a request of `client` has a place, or gets one by closing another.
    fn has_place(&self, open: &mut Open, client: Client) -> bool {
        if self.asking.load(Ordering::Relaxed) < self.places() {
            return true;
        }
        let victim = open.least_entitled(client, self.limit / GREEDY_SHARE);
        self.give_way(open, victim, client)
    }

    /// As [`Self::has_place`], but for a further request of connection `id`.
    fn has_further_place(&self, open: &mut Open, id: u64, client: Client) -> bool {
        if self.further.load(Ordering::Relaxed) < MAX_FURTHER_REQUESTS {
            return true;
        }
        let victim = open.most_further(id, client);
        self.give_way(open, victim, client)
    }

    /// Closes connections until `bytes` of an answer of connection `id` fit.
    fn make_room_for_answer(&self, id: u64, bytes: usize) {
        let mut open = self.locked();
        let all = |open: &Open| open.by_id.values().map(|e| e.busy.unsent()).sum::<usize>();
        while all(&open).saturating_add(bytes) > self.answers {
            let Some(victim) = open.most_unsent(id) else { return };
            self.evict(&mut open, victim);
        }
    }

    /// Closes `victim` for a request of `client`. Returns false and counts a refusal if it is
    /// `None`.
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
    /// Whether all input of the client so far was read.
    fn was_heard(&self) -> bool {
        self.busy.heard.load(Ordering::Relaxed) || self.since.elapsed() >= HEARD_AT_LAST
    }
}

impl Open {
    fn turn(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Chooses the connection to close for a new one, among those that `are` selects and that wait
    /// for their client. It prefers those without unread input, then those without a request, then
    /// those of the client with the most connections.
    fn idlest(&self, are: impl Fn(&Entry) -> bool) -> Option<u64> {
        let held = per_client(self.by_id.values().filter(|e| are(e)));
        let idle = self.by_id.iter().filter(|(_, e)| are(e) && e.busy.waits_for_client());
        let key = |e: &Entry| (!e.was_heard(), e.busy.now() > 0, usize::MAX - held[&e.client], e.turn);
        idle.min_by_key(|(_, e)| key(e)).map(|(id, _)| *id)
    }

    /// Chooses the request to end for one of `newcomer`: one that waits for its client, if that
    /// client has no fewer than the newcomer, or else one of a client with a large share.
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

    /// Chooses the connection to close when too much is unsent, other than `except`: the least
    /// recently active one of the client that leaves most unread.
    fn most_unsent(&self, except: u64) -> Option<u64> {
        let mut held = BTreeMap::<Client, usize>::new();
        for entry in self.by_id.values() {
            *held.entry(entry.client).or_default() += entry.busy.unsent();
        }
        let unread = self.by_id.iter().filter(|(id, e)| **id != except && e.busy.unsent() > 0);
        unread.min_by_key(|(_, e)| (usize::MAX - held[&e.client], e.turn)).map(|(id, _)| *id)
    }

    /// Chooses the connection with several requests to close for one more of `newcomer` on
    /// connection `except`: one whose requests all wait for their client, if that client has no
    /// fewer of them than the newcomer.
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
    /// Takes a place for an HTTP/2 connection, until it is dropped. If there is none, closes one of
    /// these connections and waits for its place.
    pub(super) async fn http2_place(&self) -> Option<OwnedSemaphorePermit> {
        let places = Arc::clone(&self.connections.http2);
        if places.available_permits() == 0 {
            // A connection that waits here has sent its first bytes, so it is closed before those
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

    /// Begins a request; `None` if there is no place for it. A probe needs no place.
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
        // Inside the lock, so that two requests at the same time see each other.
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

//! Limits how fast each user may send events. All connections and datagrams of a user count
//! together, because a connection costs a sender nothing.
//!
//! The limit is on the processor time of events: a packet may bring one step, two hundred lines of
//! a log, or a `hello` for which processes are looked up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{MutexGuard, Semaphore, SemaphorePermit};

use crate::lock::Locked as _;
use crate::principal::Principal;
use crate::processes::time_elsewhere;

/// The least time between two events of a user, which are read one at a time. Ten thousand a second
/// are a thousand times what the steps of a node need.
const INTERVAL: Duration = Duration::from_micros(100);
/// An event that takes longer counts as this many times its time: a user has half of a core.
const SHARE: u32 = 2;
/// The most unused time that a user saves: a burst may use all intervals of this time.
const BURST: Duration = Duration::from_millis(100);
/// The most requests of a user that are read at a time, because their bodies are held meanwhile.
const MAX_REQUESTS: usize = 8;
/// Above this number of users, those that are not connected and need not wait are forgotten.
const MAX_USERS: usize = 1_024;

/// The most that are read at a time, of all users. Each blocks a thread.
const MAX_HELLOS: usize = 8;

/// The rate of every user.
#[derive(Debug)]
pub(crate) struct EventRates {
    users: Mutex<BTreeMap<Principal, Arc<EventRate>>>,
    hellos: Arc<Semaphore>,
    throttled: Arc<AtomicU64>,
}

impl Default for EventRates {
    fn default() -> Self {
        Self {
            users: Mutex::default(),
            hellos: Arc::new(Semaphore::new(MAX_HELLOS)),
            throttled: Arc::default(),
        }
    }
}

/// The right to have a `hello` read.
pub(super) struct HelloTurn<'a> {
    _own: MutexGuard<'a, ()>,
    _place: Option<SemaphorePermit<'a>>,
}

/// The rate of one user (a generic cell rate algorithm).
#[derive(Debug)]
pub(crate) struct EventRate {
    /// When all counted events have used up their time.
    due: Mutex<Instant>,
    /// Held while an event of the user is read; the others queue for it.
    turn: tokio::sync::Mutex<()>,
    /// Held while a `hello` of the user is read. It may read files of a hung process, so one at a
    /// time.
    hello: tokio::sync::Mutex<()>,
    hellos: Arc<Semaphore>,
    requests: Semaphore,
    /// The waits of all users.
    throttled: Arc<AtomicU64>,
}

impl EventRates {
    /// How many times an event had to wait because its user sent too fast.
    pub(super) fn throttled(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.throttled)
    }

    pub(crate) fn of(&self, principal: Principal, now: Instant) -> Arc<EventRate> {
        let mut users = self.users.locked();
        if users.len() >= MAX_USERS && !users.contains_key(&principal) {
            users.retain(|_, rate| Arc::strong_count(rate) > 1 || *rate.due.locked() > now);
        }
        let new = || Arc::new(EventRate::new(now, self));
        Arc::clone(users.entry(principal).or_insert_with(new))
    }
}

impl EventRate {
    fn new(now: Instant, all: &EventRates) -> Self {
        Self {
            due: Mutex::new(now),
            turn: tokio::sync::Mutex::default(),
            hello: tokio::sync::Mutex::default(),
            hellos: Arc::clone(&all.hellos),
            requests: Semaphore::new(MAX_REQUESTS),
            throttled: all.throttled(),
        }
    }

    /// Waits until no other event of this user is read, and then until the next one may be. Waiters
    /// are served in their order.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        let turn = self.turn.lock().await;
        let wait = self.wait(Instant::now());
        if !wait.is_zero() {
            self.throttled.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(wait).await;
        }
        turn
    }

    /// Waits until no other `hello` of this user is read, and few of others are.
    pub(super) async fn hello(&self) -> HelloTurn<'_> {
        let own = self.hello.lock().await;
        HelloTurn { _own: own, _place: self.hellos.acquire().await.ok() }
    }

    /// As [`Self::hello`], for one that cannot wait.
    pub(super) fn hello_now(&self) -> Option<HelloTurn<'_>> {
        let own = self.hello.try_lock().ok()?;
        Some(HelloTurn { _own: own, _place: Some(self.hellos.try_acquire().ok()?) })
    }

    /// A place for one more request; `None` at the limit.
    pub(super) fn request(&self) -> Option<SemaphorePermit<'_>> {
        self.requests.try_acquire().ok()
    }

    /// Whether an event that cannot wait comes too early. It may use a second [`BURST`], because
    /// events that can wait use up the first.
    pub(super) fn is_too_early(&self, now: Instant) -> bool {
        self.wait(now) > BURST
    }

    /// The time until the next event may be read.
    fn wait(&self, now: Instant) -> Duration {
        self.due.locked().saturating_duration_since(now + BURST)
    }

    /// Runs `work` for this user and counts its processor time.
    pub(super) fn measure<T>(&self, work: impl FnOnce() -> T) -> T {
        let (done, took) = timed(work);
        self.count(Instant::now(), took);
        done
    }

    /// Counts an event that took this processor time.
    pub(super) fn count(&self, now: Instant, took: Duration) {
        let mut due = self.due.locked();
        *due = (*due).max(now) + INTERVAL.max(took * SHARE);
    }
}

/// The result of `work` and the processor time that it took.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = time_spent();
    let done = work();
    (done, time_spent().saturating_sub(start))
}

/// The processor time of this thread and of those that read for it. Waiting for a lock or for a
/// turn takes none.
fn time_spent() -> Duration {
    let own = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(own).unwrap_or_default() + time_elsewhere()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const USER: Principal = Principal::User(1);

    /// How many of 5,000 events are read at `now`.
    fn read(rate: &EventRate, now: Instant, took: Duration) -> usize {
        let admitted = |_: &usize| {
            let is_in_time = rate.wait(now).is_zero();
            if is_in_time {
                rate.count(now, took);
            }
            is_in_time
        };
        (0..5_000).filter(admitted).count()
    }

    #[test]
    fn a_user_may_send_a_burst_and_then_so_many_a_second() {
        let (rates, start) = (EventRates::default(), Instant::now());
        let rate = rates.of(USER, start);
        assert_eq!(read(&rate, start, Duration::ZERO), 1_001);
        assert_eq!(read(&rate, start + Duration::from_millis(10), Duration::ZERO), 100);
        assert_eq!(read(&rates.of(USER, start), start, Duration::ZERO), 0, "by whatever way");
        assert_eq!(
            read(&rate, start + Duration::from_mins(1), Duration::ZERO),
            1_001,
            "no more than a burst"
        );
        assert!(rates.of(Principal::User(2), start).wait(start).is_zero(), "each user has its own");
    }

    #[test]
    fn what_takes_longer_counts_as_more() {
        let (rates, start) = (EventRates::default(), Instant::now());
        let rate = rates.of(USER, start);
        assert_eq!(read(&rate, start, Duration::from_millis(10)), 6);
        assert_eq!(rate.wait(start), Duration::from_millis(20));
    }

    #[tokio::test]
    async fn connections_of_a_user_take_turns() {
        let (rates, start) = (EventRates::default(), Instant::now());
        let rate = rates.of(USER, start);
        let first = rate.turn().await;
        let mut second = Box::pin(rate.turn());
        assert!(second.as_mut().now_or_never().is_none());
        let mut third = Box::pin(rate.turn());
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.as_mut().now_or_never().is_none(), "it came later");
        assert!(second.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn few_hellos_are_read_at_a_time_and_one_of_each_user() {
        let (rates, start) = (EventRates::default(), Instant::now());
        let users: Vec<_> =
            (0..=MAX_HELLOS as u32).map(|uid| rates.of(Principal::User(uid), start)).collect();
        let (last, first) = users.split_last().unwrap();
        let mut read: Vec<_> = first.iter().filter_map(|rate| rate.hello_now()).collect();
        assert_eq!(read.len(), MAX_HELLOS);
        let mut waits = Box::pin(last.hello());
        assert!(waits.as_mut().now_or_never().is_none() && last.hello_now().is_none());
        read.pop();
        drop(waits.await);
        assert!(first[0].hello_now().is_none(), "its user has one");
    }

    #[test]
    fn users_that_are_gone_are_forgotten() {
        let (rates, start) = (EventRates::default(), Instant::now());
        let connected = rates.of(Principal::User(1), start);
        let all = 0..u32::try_from(MAX_USERS).unwrap();
        all.for_each(|uid| rates.of(Principal::User(uid), start).count(start, Duration::ZERO));
        rates.of(Principal::User(7), start).count(start, Duration::from_secs(1));
        rates.of(Principal::User(5_000), start + Duration::from_secs(1));
        let left: Vec<_> = rates.users.locked().keys().copied().collect();
        assert_eq!(left, [1, 7, 5_000].map(Principal::User));
        assert!(Arc::ptr_eq(&connected, &rates.of(Principal::User(1), start)));
    }
}

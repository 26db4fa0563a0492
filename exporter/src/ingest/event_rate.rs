//! How fast each user may send events: those of all its connections and datagrams count together,
//! because a connection costs a sender nothing.
//!
//! What is limited is the processor time that events take here: a packet may bring one step, two
//! hundred lines of a log, or a `hello` for which processes are looked up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{MutexGuard, Semaphore, SemaphorePermit};

use crate::lock::Locked as _;
use crate::principal::Principal;

/// Between two events of a user, which are read one at a time. Ten thousand a second are a thousand
/// times what the steps of a node need.
const INTERVAL: Duration = Duration::from_micros(100);
/// An event that takes longer counts as twice its time: a user has half of a core.
const SHARE: u32 = 2;
/// Of intervals that were not used, as many count as begin in this time.
const BURST: Duration = Duration::from_millis(100);
/// Requests of a user that are read at a time: their bodies are held meanwhile.
const MAX_REQUESTS: usize = 8;
/// Users above which those that neither are connected nor have to wait are forgotten.
const MAX_USERS: usize = 1_024;

/// The rate of every user.
#[derive(Debug, Default)]
pub(crate) struct EventRates(Mutex<BTreeMap<Principal, Arc<EventRate>>>);

/// The rate of one user (a generic cell rate algorithm).
#[derive(Debug)]
pub(crate) struct EventRate {
    /// When everything that was counted has had its time.
    due: Mutex<Instant>,
    /// Whatever has something to read stands in line here.
    turn: tokio::sync::Mutex<()>,
    /// A `hello` may read files of a process that hangs, so that no user has two at a time.
    hello: tokio::sync::Mutex<()>,
    requests: Semaphore,
}

impl EventRates {
    pub(crate) fn of(&self, principal: Principal, now: Instant) -> Arc<EventRate> {
        let mut users = self.0.locked();
        if users.len() >= MAX_USERS && !users.contains_key(&principal) {
            users.retain(|_, rate| Arc::strong_count(rate) > 1 || *rate.due.locked() > now);
        }
        Arc::clone(users.entry(principal).or_insert_with(|| Arc::new(EventRate::new(now))))
    }
}

impl EventRate {
    fn new(now: Instant) -> Self {
        Self {
            due: Mutex::new(now),
            turn: tokio::sync::Mutex::default(),
            hello: tokio::sync::Mutex::default(),
            requests: Semaphore::new(MAX_REQUESTS),
        }
    }

    /// Waits until nothing else of this user is read, and then until the next event may be. Who
    /// asked first is first. Returns whether it had to wait for its time.
    pub(crate) async fn turn(&self) -> (MutexGuard<'_, ()>, bool) {
        let turn = self.turn.lock().await;
        let wait = self.wait(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        (turn, !wait.is_zero())
    }

    /// Waits until no other `hello` of this user is read.
    pub(super) async fn hello(&self) -> MutexGuard<'_, ()> {
        self.hello.lock().await
    }

    /// A place for one more request; `None` while as many are read as may be.
    pub(super) fn request(&self) -> Option<SemaphorePermit<'_>> {
        self.requests.try_acquire().ok()
    }

    /// Whether an event that cannot wait is too early: those that can wait leave it as much time
    /// again as they have.
    pub(super) fn is_too_early(&self, now: Instant) -> bool {
        self.wait(now) > BURST
    }

    /// Until the next event may be read.
    fn wait(&self, now: Instant) -> Duration {
        self.due.locked().saturating_duration_since(now + BURST)
    }

    /// Does something for this user, and counts it.
    pub(super) fn measure<T>(&self, work: impl FnOnce() -> T) -> T {
        let (done, took) = timed(work);
        self.count(Instant::now(), took);
        done
    }

    /// Counts an event that took so long.
    pub(super) fn count(&self, now: Instant, took: Duration) {
        let mut due = self.due.locked();
        *due = (*due).max(now) + INTERVAL.max(took * SHARE);
    }
}

/// What was done, and the processor time that it took.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = thread_time();
    let done = work();
    (done, thread_time().saturating_sub(start))
}

/// Processor time of this thread: what waits for a lock or for its turn costs nobody anything.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const USER: Principal = Principal::User(1);

    /// Events that are read at `now`, of 5,000.
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

    #[test]
    fn users_that_are_gone_are_forgotten() {
        let (rates, start) = (EventRates::default(), Instant::now());
        let connected = rates.of(Principal::User(1), start);
        let all = 0..u32::try_from(MAX_USERS).unwrap();
        all.for_each(|uid| rates.of(Principal::User(uid), start).count(start, Duration::ZERO));
        rates.of(Principal::User(7), start).count(start, Duration::from_secs(1));
        rates.of(Principal::User(5_000), start + Duration::from_secs(1));
        let left: Vec<_> = rates.0.locked().keys().copied().collect();
        assert_eq!(left, [1, 7, 5_000].map(Principal::User));
        assert!(Arc::ptr_eq(&connected, &rates.of(Principal::User(1), start)));
    }
}

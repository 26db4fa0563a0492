//! One receiver and its limits: concurrency, rate, and health.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::{self, PAGE_PAUSE_MAX, Random};
use crate::notify::{Budget, Notifier, Pace};

/// The most messages in flight to one receiver; the same number is reserved for lanes with a page.
pub(crate) const IN_FLIGHT_MAX: usize = 8;

/// The number of consecutive failures after which the receiver counts as down and is only probed,
/// one message at a time.
const BREAKER_FAILURES: u32 = 5;

/// The receivers of the configuration, by name.
pub type Receivers = BTreeMap<String, Arc<dyn Notifier>>;

#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) notifier: Arc<dyn Notifier>,
    bucket: Option<Bucket>,
    in_flight: usize,
    /// The number of consecutive transient failures.
    failures: u32,
    /// Nothing is sent before this time, because the receiver asked for a pause or is down.
    closed_until: Option<Instant>,
    /// Whether the receiver asked for that pause. A page may not shorten it.
    asked: bool,
    /// The end of that pause for pages, which do not wait for a long pause.
    pages_wait: Option<Instant>,
    /// The time of the next reminder, if the receiver's alerts expire.
    pub(crate) remind_at: Option<Instant>,
    spent: Option<Spent>,
    random: Random,
}

/// The used part of a budget.
#[derive(Debug)]
struct Spent {
    budget: Budget,
    /// The start of the window.
    since: Instant,
    used: u32,
    /// The number of omitted messages that no summary has counted yet.
    left_out: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Now,
    /// Not before this time.
    At(Instant),
    /// Not before a message in flight has ended.
    Full,
}

/// What the result of a message shows about the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The receiver answered, even if it refused this message.
    Alive,
    Unwell,
    Pause(Duration),
    /// Nothing was sent.
    None,
}

impl Destination {
    pub(crate) fn new(notifier: Arc<dyn Notifier>, now: Instant, random: Random) -> Self {
        let bucket = notifier.pace().map(|pace| Bucket::new(pace, now));
        let remind_at = notifier.remind_every().map(|_| now);
        let spent = notifier.budget().map(|budget| Spent { budget, since: now, used: 0, left_out: 0 });
        Self {
            notifier,
            bucket,
            in_flight: 0,
            failures: 0,
            closed_until: None,
            asked: false,
            pages_wait: None,
            remind_at,
            spent,
            random,
        }
    }

    /// Applies a new configuration of the same name: past failures do not count. A pause that the
    /// receiver asked for stays, unless the account is another one.
    pub(crate) fn reconfigure(&mut self, notifier: Arc<dyn Notifier>, now: Instant) {
        let pause = self.pause(now).filter(|_| self.notifier.account() == notifier.account());
        let (in_flight, mut fresh) = (self.in_flight, Self::new(notifier, now, self.random));
        fresh.left_out(self.spent.as_ref().map_or(0, |s| s.left_out));
        *self = Self { in_flight, ..fresh };
        if let Some(pause) = pause {
            self.asked_for(pause, now);
        }
    }

    /// The rest of the pause that the receiver asked for.
    pub(crate) fn pause(&self, now: Instant) -> Option<Duration> {
        let until = self.closed_until.filter(|until| self.asked && *until > now)?;
        Some(until - now)
    }

    /// Notes that the receiver asked for a pause.
    pub(crate) fn asked_for(&mut self, pause: Duration, now: Instant) {
        self.asked = true;
        let until = now + pause;
        if pause <= PAGE_PAUSE_MAX {
            self.pages_wait = Some(self.pages_wait.map_or(until, |old| old.max(until)));
        }
        self.close(until);
    }

    pub(crate) fn is_down(&self) -> bool {
        self.failures >= BREAKER_FAILURES
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Whether the budget of messages that wake nobody is used up.
    pub(crate) fn is_spent(&mut self, now: Instant) -> bool {
        let Some(spent) = &mut self.spent else { return false };
        // Omitted messages are reported before the next window begins.
        if now >= spent.since + spent.budget.window() && spent.left_out == 0 {
            (spent.since, spent.used) = (now, 0);
        }
        spent.used >= spent.budget.messages
    }

    /// Counts a message against the budget; pages are free.
    pub(crate) fn spend(&mut self, page: bool) {
        if let Some(spent) = self.spent.as_mut().filter(|_| !page) {
            spent.used += 1;
        }
    }

    /// Counts a message in flight that was not admitted.
    pub(crate) fn begin(&mut self) {
        self.in_flight += 1;
    }

    pub(crate) fn left_out(&mut self, messages: u64) {
        if let Some(spent) = &mut self.spent {
            spent.left_out += messages;
        }
    }

    /// Restores the count of a summary that was not accepted, for the next window.
    pub(crate) fn put_back(&mut self, messages: u64, now: Instant) {
        if let Some(spent) = &mut self.spent {
            spent.left_out += messages;
            (spent.since, spent.used) = (now, 0);
        }
    }

    /// The number of omitted messages of an ended window, or the time when the present window ends.
    pub(crate) fn take_left_out(&mut self, now: Instant) -> Option<Result<(Budget, u64), Instant>> {
        let spent = self.spent.as_mut().filter(|s| s.left_out > 0)?;
        let end = spent.since + spent.budget.window();
        Some(if end <= now { Ok((spent.budget, std::mem::take(&mut spent.left_out))) } else { Err(end) })
    }

    /// How many more messages may be in flight, if all are pages.
    pub(crate) fn spare(&self) -> usize {
        (2 * IN_FLIGHT_MAX).saturating_sub(self.in_flight)
    }

    /// Whether a message may be sent now; if so, it counts as in flight.
    pub(crate) fn admit(&mut self, now: Instant, page: bool) -> Admission {
        let limit = match (self.is_down(), page) {
            (true, _) => 1,
            (false, true) => 2 * IN_FLIGHT_MAX,
            (false, false) => IN_FLIGHT_MAX,
        };
        if self.in_flight >= limit {
            return Admission::Full;
        }
        let closed = if page && self.asked { self.pages_wait } else { self.closed_until };
        if let Some(until) = closed.filter(|until| *until > now) {
            // A page can serve as a probe, and cannot wait for the next one.
            let probe = page && self.is_down() && !self.asked && self.in_flight == 0;
            if !probe {
                return Admission::At(until);
            }
        }
        if let Some(bucket) = &mut self.bucket {
            if let Err(at) = bucket.take(now, page) {
                return Admission::At(at);
            }
        }
        self.in_flight += 1;
        Admission::Now
    }

    /// Records the result of an admitted message. True if the receiver was down and has recovered.
    pub(crate) fn record(&mut self, sign: Sign, now: Instant) -> bool {
        self.in_flight = self.in_flight.saturating_sub(1);
        let was_down = self.is_down();
        match sign {
            Sign::None => {}
            Sign::Alive => {
                if was_down {
                    (self.closed_until, self.asked) = (None, false);
                }
                self.failures = 0;
            }
            Sign::Unwell => {
                self.failures = self.failures.saturating_add(1);
                if self.is_down() {
                    let wait = backoff::PAGE.after(self.failures - BREAKER_FAILURES + 1, (self.random)());
                    self.asked &= self.closed_until.is_some_and(|until| until > now);
                    self.close(now + wait);
                }
            }
            Sign::Pause(wait) => {
                self.failures = 0;
                self.asked_for(wait, now);
            }
        }
        was_down && !self.is_down()
    }

    fn close(&mut self, until: Instant) {
        self.closed_until = Some(self.closed_until.map_or(until, |old| old.max(until)));
    }
}

#[derive(Debug)]
struct Bucket {
    pace: Pace,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn new(pace: Pace, now: Instant) -> Self {
        Self { pace, tokens: pace.burst, at: now }
    }

    /// Takes a token, or returns the time when there is one. The last token of a burst is reserved
    /// for a page.
    fn take(&mut self, now: Instant, page: bool) -> Result<(), Instant> {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * self.pace.per_second).min(self.pace.burst);
        self.at = now;
        let needed = if page || self.pace.burst < 2.0 { 1.0 } else { 2.0 };
        if self.tokens >= needed {
            self.tokens -= 1.0;
            return Ok(());
        }
        // One millisecond more, so that rounding cannot make the caller return too early forever.
        let wait = (needed - self.tokens) / self.pace.per_second + 0.001;
        Err(now + Duration::from_secs_f64(wait.clamp(0.001, 60.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::tests::{Answer, Scripted};

    fn destination(pace: Option<Pace>) -> (Destination, Instant) {
        let now = Instant::now();
        (Destination::new(Arc::new(Scripted::paced(pace, |_| Answer::Take)), now, || 0.999), now)
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_crowd_of_tickets_leaves_room_for_pages() {
        let (mut d, now) = destination(None);
        for _ in 0..IN_FLIGHT_MAX {
            assert_eq!(d.admit(now, false), Admission::Now);
        }
        assert_eq!(d.admit(now, false), Admission::Full);
        for _ in 0..IN_FLIGHT_MAX {
            assert_eq!(d.admit(now, true), Admission::Now);
        }
        assert_eq!(d.admit(now, true), Admission::Full);
        d.record(Sign::Alive, now);
        assert_eq!(d.admit(now, true), Admission::Now);
    }

    #[test]
    fn the_last_token_is_for_a_page() {
        let (mut d, now) = destination(Some(Pace { per_second: 1.0, burst: 3.0 }));
        assert_eq!(d.admit(now, false), Admission::Now);
        assert_eq!(d.admit(now, false), Admission::Now);
        let Admission::At(ticket) = d.admit(now, false) else { panic!("a third ticket at once") };
        assert_eq!(d.admit(now, true), Admission::Now);
        assert!(matches!(d.admit(now, true), Admission::At(at) if at <= now + ms(1001)));
        assert_eq!(d.admit(now + ms(1001), true), Admission::Now);
        assert!(ticket > now + ms(900));
        // Idle time fills the bucket only up to the burst.
        let later = now + Duration::from_hours(1);
        let taken = (0..10).filter(|_| d.admit(later, true) == Admission::Now).count();
        assert_eq!(taken, 3);
    }

    #[test]
    fn a_dead_receiver_is_probed_one_at_a_time() {
        let (mut d, mut now) = destination(None);
        for _ in 0..BREAKER_FAILURES {
            assert_eq!(d.admit(now, true), Admission::Now);
            assert!(!d.record(Sign::Unwell, now));
        }
        assert!(d.is_down());
        assert_eq!(d.admit(now, true), Admission::Now, "a page is a probe");
        assert_eq!(d.admit(now, true), Admission::Full, "one at a time");
        d.record(Sign::Unwell, now);
        for _ in 0..20 {
            let Admission::At(at) = d.admit(now, false) else { panic!("not closed") };
            assert!(at <= now + Duration::from_secs(30));
            now = at;
            assert_eq!(d.admit(now, true), Admission::Now);
            assert_eq!(d.admit(now, true), Admission::Full);
            d.record(Sign::Unwell, now);
        }
        now += Duration::from_secs(30);
        assert_eq!(d.admit(now, false), Admission::Now);
        assert!(d.record(Sign::Alive, now), "the recovery is reported once");
        assert_eq!(d.admit(now, true), Admission::Now);
        assert!(!d.record(Sign::Alive, now));
    }

    #[test]
    fn a_pause_is_kept_whatever_else_arrives() {
        let (mut d, now) = destination(None);
        for _ in 0..3 {
            assert_eq!(d.admit(now, true), Admission::Now);
        }
        d.record(Sign::Pause(ms(5000)), now);
        d.record(Sign::Pause(ms(100)), now);
        d.record(Sign::Alive, now);
        assert_eq!(d.admit(now, true), Admission::At(now + ms(5000)));
        assert_eq!(d.admit(now + ms(5000), true), Admission::Now);
    }

    #[test]
    fn a_new_configuration_keeps_the_pause_that_was_asked_for() {
        let (mut d, now) = destination(None);
        assert_eq!(d.admit(now, true), Admission::Now);
        d.record(Sign::Pause(ms(5000)), now);
        let receiver = Scripted::paced(None, |_| Answer::Take);
        d.reconfigure(Arc::new(receiver.clone()), now + ms(1000));
        assert_eq!(d.pause(now + ms(1000)), Some(ms(4000)));
        assert_eq!(d.admit(now + ms(1000), true), Admission::At(now + ms(5000)));
        d.reconfigure(Arc::new(receiver.known_by("another token")), now + ms(2000));
        assert_eq!(d.admit(now + ms(2000), true), Admission::Now, "another may begin at once");
    }

    #[test]
    fn a_new_configuration_starts_afresh() {
        let (mut d, now) = destination(None);
        for _ in 0..BREAKER_FAILURES {
            assert_eq!(d.admit(now, true), Admission::Now);
            d.record(Sign::Unwell, now);
        }
        let spare = d.spare();
        d.reconfigure(Arc::new(Scripted::paced(None, |_| Answer::Take)), now);
        assert_eq!((d.is_down(), d.spare()), (false, spare));
        assert_eq!(d.admit(now, true), Admission::Now);
    }
}

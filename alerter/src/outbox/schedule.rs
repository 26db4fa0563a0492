//! Decides which message is sent when: the receivers and their limits, the order of lanes, and
//! retries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stepwatch_model::time::{Span, Ts};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::deliver::{Courier, Done};
use super::destination::{Admission, Destination, IN_FLIGHT_MAX, Receivers, Sign};
use super::feedback::Feedback;
use crate::backoff::Random;
use crate::store::Result;

/// The interval of retries for a page that was permanently refused and reached nobody.
const REFUSED_AGAIN: Duration = Duration::from_mins(2);
/// The same interval for a ticket, which is not urgent.
const TICKET_REFUSED_AGAIN: Duration = Duration::from_mins(30);
/// How long a message waits for a receiver that is not configured, because a reload replaces
/// receivers and routes one after the other.
const UNKNOWN_GRACE: Span = Span::secs(30);

pub(super) struct Scheduler {
    pub(super) courier: Arc<Courier>,
    pub(super) destinations: BTreeMap<String, Destination>,
    /// Lanes with a message in flight: receiver, incident.
    pub(super) busy: BTreeSet<(String, String)>,
    pub(super) tasks: JoinSet<Done>,
    /// The time of the next pass if nothing happens.
    pub(super) next_look: Instant,
    revive_at: Instant,
    random: Random,
}

impl Scheduler {
    pub(super) fn new(courier: Courier) -> Self {
        Self {
            random: courier.random,
            courier: Arc::new(courier),
            destinations: BTreeMap::new(),
            busy: BTreeSet::new(),
            tasks: JoinSet::new(),
            next_look: Instant::now(),
            revive_at: Instant::now(),
        }
    }

    /// Runs the next pass no later than `at`.
    pub(super) fn look_by(&mut self, at: Instant) {
        self.next_look = self.next_look.min(at);
    }

    /// Reports an outcome to the engine.
    pub(super) fn report(&mut self, feedback: Feedback) {
        let courier = Arc::clone(&self.courier);
        self.tasks.spawn(async move { courier.pass_on(feedback).await });
    }

    /// Applies new receivers.
    pub(super) async fn take_receivers(&mut self, receivers: Receivers) {
        let now = Instant::now();
        self.destinations.retain(|name, _| receivers.contains_key(name));
        for (name, notifier) in receivers {
            if let Some(known) = self.destinations.get_mut(&name) {
                known.reconfigure(notifier, now);
                // The cause of past failures may be gone.
                self.release(&name, now).await;
                let clock = (self.courier.clock)();
                if let Err(err) = self.courier.store.revive(&name, clock, clock).await {
                    self.courier.store_error("try refused pages again", &err);
                }
            } else {
                self.destinations.insert(name, Destination::new(notifier, now, self.random));
            }
        }
    }

    /// Restores pauses that receivers asked for before the restart.
    pub(super) async fn keep_pauses(&mut self) {
        let clock = (self.courier.clock)();
        match self.courier.store.pauses(clock).await {
            Ok(pauses) => {
                for (receiver, until) in pauses {
                    if let Some(destination) = self.destinations.get_mut(&receiver) {
                        let pause = Duration::from_millis((until - clock).0.unsigned_abs());
                        destination.asked_for(pause, Instant::now());
                    }
                }
            }
            Err(err) => self.courier.store_error("read who asked for a pause", &err),
        }
    }

    /// Retries messages that were permanently refused and reached nobody: a channel may have been
    /// created, or a key renewed.
    pub(super) async fn revive(&mut self, clock: Ts, now: Instant) -> Result<()> {
        if self.revive_at <= now {
            self.revive_at = now + REFUSED_AGAIN;
            let ago = |time: Duration| Ts(clock.0 - time.as_millis() as i64);
            let (pages, tickets) = (ago(REFUSED_AGAIN), ago(TICKET_REFUSED_AGAIN));
            for receiver in self.destinations.keys() {
                self.courier.store.revive(receiver, pages, tickets).await?;
            }
        }
        self.look_by(self.revive_at);
        Ok(())
    }

    /// Starts reminders to receivers whose alerts expire. They are outside the lanes, because they
    /// contain nothing new.
    pub(super) fn start_reminders(&mut self, now: Instant) {
        for (name, destination) in &mut self.destinations {
            let Some((at, every)) = destination.remind_at.zip(destination.notifier.remind_every()) else {
                continue;
            };
            if at <= now && destination.is_idle() {
                // The next reminder is scheduled when this one has ended.
                destination.remind_at = None;
                let (courier, notifier) = (Arc::clone(&self.courier), Arc::clone(&destination.notifier));
                let receiver = name.clone();
                self.tasks.spawn(async move { courier.remind(notifier, receiver, every).await });
            } else {
                self.next_look = self.next_look.min(at);
            }
        }
    }

    /// Starts the summary of messages that a budget omitted, once its window is over.
    pub(super) fn start_summaries(&mut self, clock: Ts, now: Instant) {
        for (name, destination) in &mut self.destinations {
            match destination.take_left_out(now) {
                None => {}
                Some(Err(end)) => self.next_look = self.next_look.min(end),
                Some(Ok((budget, left_out))) => {
                    let summary = budget.summary(name, left_out, clock);
                    let (courier, notifier) = (Arc::clone(&self.courier), Arc::clone(&destination.notifier));
                    let receiver = name.clone();
                    let sending =
                        async move { courier.summarise(notifier, receiver, summary, left_out).await };
                    self.tasks.spawn(sending);
                }
            }
        }
    }

    /// Starts the due messages of the receivers, in the order of their lanes, as far as the
    /// receivers admit them.
    pub(super) async fn start_waiting(&mut self, clock: Ts, now: Instant) -> Result<()> {
        let store = self.courier.store.clone();
        for receiver in store.waiting_receivers().await? {
            if self.destinations.contains_key(&receiver) {
                self.start_lanes(&receiver, clock, now).await?;
            } else {
                self.refuse_unknown(&receiver, clock).await?;
            }
        }
        if let Some(due) = store.next_due(clock).await? {
            let wait = Duration::from_millis((due - clock).0.max(0).unsigned_abs());
            self.look_by(now + wait);
        }
        Ok(())
    }

    async fn start_lanes(&mut self, receiver: &str, clock: Ts, now: Instant) -> Result<()> {
        let Some(destination) = self.destinations.get_mut(receiver) else { return Ok(()) };
        // A reminder that is being sent must not be overtaken by a new message.
        let reminded = destination.notifier.remind_every().is_some() && destination.remind_at.is_none();
        let spare = destination.spare();
        if spare == 0 || reminded {
            return Ok(());
        }
        // A lane that was started but has not claimed its row yet still looks due.
        let limit = spare + self.busy.len();
        for lane in self.courier.store.due_lanes(receiver, clock, limit).await? {
            let key = (receiver.to_owned(), lane.incident.clone());
            if self.busy.contains(&key) || self.courier.store.holds(&key.0, &key.1) {
                continue;
            }
            if !lane.page && destination.is_spent(now) {
                destination.begin();
                self.busy.insert(key);
                let (notifier, courier) = (Arc::clone(&destination.notifier), Arc::clone(&self.courier));
                let receiver = receiver.to_owned();
                let left_out =
                    async move { Box::pin(courier.leave_out(notifier, receiver, lane.incident)).await };
                self.tasks.spawn(left_out);
                continue;
            }
            match destination.admit(now, lane.page) {
                Admission::Now => {
                    destination.spend(lane.page);
                    self.busy.insert(key);
                    let notifier = Arc::clone(&destination.notifier);
                    let courier = Arc::clone(&self.courier);
                    let receiver = receiver.to_owned();
                    let delivery =
                        async move { Box::pin(courier.deliver(notifier, receiver, lane.incident)).await };
                    self.tasks.spawn(delivery);
                }
                Admission::At(at) => {
                    self.next_look = self.next_look.min(at);
                    // Pages come first in the list, so later messages would not be admitted either.
                    break;
                }
                Admission::Full => break,
            }
        }
        Ok(())
    }

    /// Gives up messages to a receiver that is not configured, so that the engine escalates to the
    /// next level.
    async fn refuse_unknown(&mut self, receiver: &str, clock: Ts) -> Result<()> {
        for lane in self.courier.store.due_lanes(receiver, clock, IN_FLIGHT_MAX).await? {
            let key = (receiver.to_owned(), lane.incident.clone());
            if lane.since + UNKNOWN_GRACE > clock || !self.busy.insert(key) {
                continue;
            }
            let courier = Arc::clone(&self.courier);
            let receiver = receiver.to_owned();
            self.tasks.spawn(async move { courier.refuse(receiver, lane.incident).await });
        }
        Ok(())
    }

    pub(super) async fn finish(&mut self, done: std::result::Result<Done, JoinError>) {
        let done = match done {
            Ok(Done::Lane(done)) => done,
            Ok(Done::Reported) => return,
            Ok(Done::NotSummarised { receiver, left_out }) => {
                if let Some(destination) = self.destinations.get_mut(&receiver) {
                    destination.put_back(left_out, Instant::now());
                }
                return;
            }
            Ok(Done::Reminded { receiver, again }) => {
                if let Some(destination) = self.destinations.get_mut(&receiver) {
                    destination.remind_at = Some(Instant::now() + again);
                }
                return;
            }
            // The courier does not panic, and catches panics of notifiers. If it did, its lane
            // would rest until the next start.
            Err(err) => {
                return tracing::error!(%err, "a delivery ended badly; it is repeated after a restart");
            }
        };
        self.busy.remove(&(done.receiver.clone(), done.incident));
        let Some(destination) = self.destinations.get_mut(&done.receiver) else { return };
        destination.left_out(u64::from(done.left_out));
        let recovered = destination.record(done.sign, Instant::now());
        let down = destination.is_down();
        self.courier.metrics.down(&done.receiver, down);
        if recovered {
            tracing::info!(receiver = done.receiver, "the receiver answers again");
            self.release(&done.receiver, Instant::now()).await;
        } else if down && done.sign == Sign::Unwell {
            tracing::warn!(
                receiver = done.receiver,
                "the receiver fails every attempt; it is probed until it answers"
            );
        }
    }

    /// Ends the wait of queued messages, except for a pause that the receiver asked for.
    async fn release(&self, receiver: &str, now: Instant) {
        let pause = self.destinations.get(receiver).and_then(|d| d.pause(now));
        let until = pause.map(|pause| (self.courier.clock)() + Span::millis(pause.as_millis() as i64));
        if let Err(err) = self.courier.store.release(receiver, until).await {
            self.courier.store_error("release a receiver", &err);
        }
    }
}

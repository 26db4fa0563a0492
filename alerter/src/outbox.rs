//! From the store to the receivers: whatever was committed is sent, in order, once.
//!
//! A reconciler: it looks for what is due, sends it and marks it, woken by every commit and, in
//! case a wake-up was missed, by the clock. It keeps nothing that matters in memory: a crash costs
//! at most a second copy, which the receiver recognises by its key:
//!
//! 1. *claim*: the row is marked as being sent, and that is on disk before the first byte leaves;
//! 2. *send*: once, by the receiver's notifier;
//! 3. *mark*: delivered, given up, or to be tried again at a stated time.
//!
//! A row found claimed at a start may have arrived: the notifier looks (Slack) or repeats it under
//! its key (PagerDuty, webhooks).
//!
//! Order holds within a lane, which is one incident to one receiver: one message of a lane at a
//! time, and a lane that waits holds up no other. A receiver is one destination
//! (`outbox::destination`): its concurrency, pace and health. No receiver slows another, and in
//! each of them pages go first and have room of their own.

mod deliver;
mod destination;
mod feedback;
mod metrics;
#[cfg(test)]
pub(crate) mod tests;
mod unconfirmed;
pub(crate) mod unopened;
mod unrecorded;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::Action;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use self::deliver::{Courier, Done, STORE_RETRY};
use self::destination::{Admission, Destination, Sign};
use self::unconfirmed::Confirmations;
use crate::backoff::{Random, random};
use crate::notify::Notifier;
use crate::store::{Result, Store, StoreError};
use crate::watchdog::Watchdog;

pub use self::deliver::{DrawChart, Reword};
pub use feedback::{Feedback, Outcome};
pub use metrics::OutboxMetrics;

/// A page that was refused permanently and reached nobody is tried again this often.
const REFUSED_AGAIN: Duration = Duration::from_mins(2);
/// The same of a ticket, which is not urgent.
const TICKET_REFUSED_AGAIN: Duration = Duration::from_mins(30);
/// The longest time between two looks without a wake-up.
const SWEEP: Duration = Duration::from_secs(5);
/// How long one look may take: a disk may hang, and what is sent from memory does not wait for it.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// How long messages on their way may take to arrive when the program stops.
const DRAIN_MAX: Duration = Duration::from_secs(12);

/// How long a message to a receiver that is not configured waits for one: a reload replaces
/// receivers and routes one after the other.
const UNKNOWN_GRACE: Span = Span::secs(30);

pub type Receivers = BTreeMap<String, Arc<dyn Notifier>>;

/// The outbox's dependencies besides the messages.
#[derive(Clone)]
pub struct Options {
    pub clock: Arc<dyn Fn() -> Ts + Send + Sync>,
    /// Numbers in `0.0..1.0`, for jitter.
    pub random: fn() -> f64,
    pub watchdog: Arc<Watchdog>,
    /// Whether the engine's loop answers.
    pub alive: Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>,
    /// Asks the engine's loop for the present text of a message that waited.
    pub reword: Reword,
    pub draw_chart: DrawChart,
}

#[derive(Debug)]
pub struct Outbox;

/// Dropping it leaves the outbox running until its shutdown.
#[derive(Debug)]
pub struct OutboxHandle {
    pub metrics: OutboxMetrics,
    store: Store,
    receivers: watch::Sender<Receivers>,
    watchdog: watch::Sender<Arc<Watchdog>>,
    task: JoinHandle<()>,
}

struct Scheduler {
    courier: Arc<Courier>,
    destinations: BTreeMap<String, Destination>,
    /// Lanes with a message on its way: receiver, incident.
    busy: BTreeSet<(String, String)>,
    tasks: JoinSet<Done>,
    receivers: watch::Receiver<Receivers>,
    watchdog: watch::Receiver<Arc<Watchdog>>,
    beat_at: Instant,
    revive_at: Instant,
    /// A page has waited too long and no receiver has accepted it.
    nobody_notified: bool,
    /// Keys of pages whose age was reported.
    unreached: BTreeSet<String>,
    confirmations: Confirmations,
    /// The last report to the engine was that no page waits too long.
    all_reached: bool,
    shutdown: Shutdown,
    random: Random,
    /// When to look again if nothing happens.
    next_look: Instant,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(|| Ts(jiff::Timestamp::now().as_millisecond())),
            random,
            watchdog: Arc::default(),
            alive: Arc::new(|| Box::pin(std::future::ready(true))),
            reword: Arc::new(|_| Box::pin(std::future::ready(None))),
            draw_chart: Arc::new(|_| Box::pin(std::future::ready(None))),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").finish_non_exhaustive()
    }
}

impl Outbox {
    /// Starts delivering; a task until `shutdown`.
    pub fn start(
        store: Store,
        receivers: Receivers,
        feedback: mpsc::Sender<Feedback>,
        shutdown: Shutdown,
    ) -> OutboxHandle {
        Self::start_with(store, receivers, feedback, shutdown, Options::default())
    }

    pub fn start_with(
        store: Store,
        receivers: Receivers,
        feedback: mpsc::Sender<Feedback>,
        shutdown: Shutdown,
        options: Options,
    ) -> OutboxHandle {
        let metrics = OutboxMetrics::default();
        let (sender, receivers) = watch::channel(receivers);
        let (guard, watchdog) = watch::channel(options.watchdog);
        let courier = Courier {
            store: store.clone(),
            feedback,
            metrics: metrics.clone(),
            shutdown: shutdown.clone(),
            clock: options.clock,
            random: options.random,
            alive: options.alive,
            reword: options.reword,
            draw_chart: options.draw_chart,
            said: Mutex::default(),
        };
        let scheduler = Scheduler {
            courier: Arc::new(courier),
            destinations: BTreeMap::new(),
            busy: BTreeSet::new(),
            tasks: JoinSet::new(),
            receivers,
            watchdog,
            beat_at: Instant::now(),
            revive_at: Instant::now(),
            nobody_notified: false,
            unreached: BTreeSet::new(),
            confirmations: Confirmations::default(),
            all_reached: true,
            shutdown,
            random: options.random,
            next_look: Instant::now(),
        };
        let task = tokio::spawn(scheduler.run());
        OutboxHandle { metrics, store, receivers: sender, watchdog: guard, task }
    }
}

impl OutboxHandle {
    /// Looks now. A commit does this by itself.
    pub fn wake(&self) {
        self.store.post();
    }

    /// Replaces the receivers. Messages that wait for a name that stays go through the new
    /// receiver, at once. To be called before the engine gets the new configuration.
    pub fn replace(&self, receivers: Receivers) {
        self.receivers.send_replace(receivers);
    }

    /// Replaces the heartbeat.
    pub fn watch(&self, watchdog: Arc<Watchdog>) {
        self.watchdog.send_replace(watchdog);
    }

    /// The receivers in force, as they change.
    pub fn receivers(&self) -> watch::Receiver<Receivers> {
        self.receivers.subscribe()
    }

    /// Waits until all that was on its way has arrived, or long enough; to be called after the
    /// shutdown was raised.
    pub async fn stopped(self) {
        if let Err(err) = self.task.await {
            tracing::error!(%err, "the outbox ended badly");
        }
    }
}

impl Scheduler {
    async fn run(mut self) {
        self.take_receivers().await;
        self.recover().await;
        self.keep_pauses().await;
        while !self.shutdown.is_set() {
            self.look().await;
            tokio::select! {
                () = self.shutdown.wait() => {}
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => self.finish(done).await,
                () = self.courier.store.posted() => {}
                Ok(()) = self.receivers.changed() => self.take_receivers().await,
                () = tokio::time::sleep_until(self.next_look) => {}
            }
            // One look for all that ended together, and none before a receiver's request for a
            // pause is applied.
            while let Some(done) = self.tasks.try_join_next() {
                self.finish(done).await;
            }
        }
        self.drain().await;
    }

    /// Before anything is sent, and again until the store has it: what was on its way at the last
    /// stop may have arrived.
    async fn recover(&mut self) {
        while !self.shutdown.is_set() {
            match self.courier.store.recover_attempts().await {
                Ok(0) => break,
                Ok(count) => {
                    tracing::warn!(
                        count,
                        "messages were being sent when the alerter stopped: reconciling them"
                    );
                    break;
                }
                Err(err) => {
                    self.courier.store_error("recover", &err);
                    self.send_unrecorded(Instant::now()).await;
                    self.pause().await;
                    while let Some(done) = self.tasks.try_join_next() {
                        self.finish(done).await;
                    }
                }
            }
        }
        let courier = Arc::clone(&self.courier);
        self.tasks.spawn(async move { courier.report_again().await });
    }

    async fn take_receivers(&mut self) {
        let receivers = self.receivers.borrow_and_update().clone();
        let now = Instant::now();
        self.destinations.retain(|name, _| receivers.contains_key(name));
        for (name, notifier) in receivers {
            if let Some(known) = self.destinations.get_mut(&name) {
                known.reconfigure(notifier, now);
                // The cause of its failures may be gone.
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

    /// A receiver's request for a pause outlives this process.
    async fn keep_pauses(&mut self) {
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

    /// Starts whatever may start, and decides when to look again.
    async fn look(&mut self) {
        let now = Instant::now();
        self.next_look = now + SWEEP;
        self.send_unrecorded(now).await;
        let clock = (self.courier.clock)();
        if let Err(err) = self.revive(clock, now).await {
            self.courier.store_error("try refused pages again", &err);
        }
        let path = self.courier.store.path().to_owned();
        let started = tokio::time::timeout(LOOK_MAX, self.start_due(clock, now)).await;
        let started = started.unwrap_or(Err(StoreError::Stalled { path }));
        self.courier.store.note_read(started.as_ref().err());
        match started {
            Ok(()) => self.beat(now),
            Err(err) => {
                self.courier.store_error("look for due messages", &err);
                self.next_look = self.next_look.min(now + STORE_RETRY);
            }
        }
    }

    /// One more sign of life, if one is due.
    fn beat(&mut self, now: Instant) {
        let watchdog = self.watchdog.borrow_and_update().clone();
        let interval = watchdog.interval();
        if self.courier.store.refusal().is_some() {
            // Checks soon whether the store works, also when there is nothing else to write.
            self.beat_at = self.beat_at.min(now + SWEEP);
        }
        if self.beat_at <= now {
            self.beat_at = now + interval;
            let (courier, notified) = (Arc::clone(&self.courier), !self.nobody_notified);
            self.tasks.spawn(async move { courier.beat(&watchdog, notified).await });
        }
        self.next_look = self.next_look.min(self.beat_at);
    }

    /// Reports to the engine, once, that no page waits too long any more.
    fn report_reached(&mut self) {
        self.unreached.clear();
        self.nobody_notified = false;
        if std::mem::replace(&mut self.all_reached, true) {
            return;
        }
        let feedback = Feedback {
            idem_key: String::new(),
            incident: String::new(),
            receiver: String::new(),
            action: Action::Trigger,
            outcome: Outcome::AllReached,
        };
        let courier = Arc::clone(&self.courier);
        self.tasks.spawn(async move { courier.pass_on(feedback).await });
    }

    /// Reports to the engine, once, every page that has waited too long.
    async fn report_unreached(&mut self, clock: Ts) -> Result<()> {
        let page_age = self.watchdog.borrow().page_age();
        let old = self.courier.store.unreached(Ts(clock.0 - page_age.0)).await?;
        if old.is_empty() {
            self.report_reached();
            return Ok(());
        }
        self.all_reached = false;
        self.nobody_notified = old.iter().any(|page| page.nobody);
        self.unreached.retain(|key| old.iter().any(|page| page.idem_key == *key));
        for page in old {
            if !self.unreached.insert(page.idem_key.clone()) {
                continue;
            }
            let outcome = Outcome::Unreached { waited: clock - page.since, error: page.error };
            let (idem_key, incident, receiver) = (page.idem_key, page.incident, page.receiver);
            tracing::error!(incident, receiver, "a page is not accepted; all other receivers are notified");
            let feedback = Feedback { idem_key, incident, receiver, action: Action::Trigger, outcome };
            let courier = Arc::clone(&self.courier);
            self.tasks.spawn(async move { courier.pass_on(feedback).await });
        }
        Ok(())
    }

    async fn start_due(&mut self, clock: Ts, now: Instant) -> Result<()> {
        let store = self.courier.store.clone();
        self.start_reminders(now);
        self.start_summaries(clock, now);
        let depth = store.queue_depth().await?;
        let age = depth.oldest_page.map_or(0.0, |since| (clock - since).as_secs_f64());
        self.courier.metrics.queue(depth.undone, age);
        let page_age = self.watchdog.borrow().page_age();
        if depth.oldest_page.is_none_or(|since| clock - since < page_age) {
            self.report_reached();
        } else {
            self.report_unreached(clock).await?;
        }
        self.report_unconfirmed(clock).await?;
        if depth.undone == 0 {
            return Ok(());
        }
        for receiver in store.waiting_receivers().await? {
            if self.destinations.contains_key(&receiver) {
                self.start_lanes(&receiver, clock, now).await?;
            } else {
                self.refuse_unknown(&receiver, clock).await?;
            }
        }
        if let Some(due) = store.next_due(clock).await? {
            let wait = Duration::from_millis((due - clock).0.max(0).unsigned_abs());
            self.next_look = self.next_look.min(now + wait);
        }
        Ok(())
    }

    /// Tries again what was refused permanently and reached nobody: a channel may have been
    /// created, a key renewed.
    async fn revive(&mut self, clock: Ts, now: Instant) -> Result<()> {
        if self.revive_at <= now {
            self.revive_at = now + REFUSED_AGAIN;
            let ago = |time: Duration| Ts(clock.0 - time.as_millis() as i64);
            let (pages, tickets) = (ago(REFUSED_AGAIN), ago(TICKET_REFUSED_AGAIN));
            for receiver in self.destinations.keys() {
                self.courier.store.revive(receiver, pages, tickets).await?;
            }
        }
        self.next_look = self.next_look.min(self.revive_at);
        Ok(())
    }

    /// Sends the open incidents again to receivers that forget them, beside the lanes: it is
    /// nothing new.
    fn start_reminders(&mut self, now: Instant) {
        for (name, destination) in &mut self.destinations {
            let Some((at, every)) = destination.remind_at.zip(destination.notifier.remind_every()) else {
                continue;
            };
            if at <= now && destination.is_idle() {
                // The next one begins when this one has ended.
                destination.remind_at = None;
                let (courier, notifier) = (Arc::clone(&self.courier), Arc::clone(&destination.notifier));
                let receiver = name.clone();
                self.tasks.spawn(async move { courier.remind(notifier, receiver, every).await });
            } else {
                self.next_look = self.next_look.min(at);
            }
        }
    }

    /// Sends the number of messages that a budget left out, once its window is over.
    fn start_summaries(&mut self, clock: Ts, now: Instant) {
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

    async fn start_lanes(&mut self, receiver: &str, clock: Ts, now: Instant) -> Result<()> {
        let Some(destination) = self.destinations.get_mut(receiver) else { return Ok(()) };
        // A reminder that is being sent now must not overtake what is new.
        let reminded = destination.notifier.remind_every().is_some() && destination.remind_at.is_none();
        let spare = destination.spare();
        if spare == 0 || reminded {
            return Ok(());
        }
        // A lane that was started and has not marked its row yet still looks due.
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
                    self.tasks.spawn(async move { courier.deliver(notifier, receiver, lane.incident).await });
                }
                Admission::At(at) => {
                    self.next_look = self.next_look.min(at);
                    // Pages come first in the list, and later messages would wait longer.
                    break;
                }
                Admission::Full => break,
            }
        }
        Ok(())
    }

    /// Messages to a name that is not configured: given up, which sends the engine to the next
    /// level.
    async fn refuse_unknown(&mut self, receiver: &str, clock: Ts) -> Result<()> {
        for lane in self.courier.store.due_lanes(receiver, clock, destination::IN_FLIGHT_MAX).await? {
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

    async fn finish(&mut self, done: std::result::Result<Done, tokio::task::JoinError>) {
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
            // A courier does not panic, and catches notifiers that do. If one did, its lane rests
            // until the next start.
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

    /// Messages in the queue wait no longer than the receiver's own pause.
    async fn release(&self, receiver: &str, now: Instant) {
        let pause = self.destinations.get(receiver).and_then(|d| d.pause(now));
        let until = pause.map(|pause| (self.courier.clock)() + Span::millis(pause.as_millis() as i64));
        if let Err(err) = self.courier.store.release(receiver, until).await {
            self.courier.store_error("release a receiver", &err);
        }
    }

    /// What is on its way arrives; what takes too long is found claimed at the next start and
    /// reconciled.
    async fn drain(&mut self) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_MAX, all).await.is_err() {
            let left = self.tasks.len();
            tracing::warn!(left, "messages are still on their way; the next start reconciles them");
            self.tasks.shutdown().await;
        }
    }

    async fn pause(&self) {
        tokio::select! {
            () = self.shutdown.wait() => {}
            () = tokio::time::sleep(SWEEP) => {}
        }
    }
}

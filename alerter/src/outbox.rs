//! Sends every committed message from the store to its receiver, in order and once.
//!
//! The outbox is a reconciler: it reads what is due, sends it and marks it. Every commit wakes it,
//! and the clock does in case a wake-up was missed. It keeps no essential state in memory: a crash
//! causes at most a second copy, which the receiver recognises by its key:
//!
//! 1. *claim*: the row is marked as being sent, and this is on disk before the first byte is sent;
//! 2. *send*: once, by the receiver's notifier;
//! 3. *mark*: the row is marked as delivered, given up, or due for a retry at a given time.
//!
//! A row that is claimed at the start may have arrived: the notifier searches for it (Slack) or
//! repeats it under its key (PagerDuty, webhooks).
//!
//! Messages are in order within a lane, which is one incident at one receiver: one message of a
//! lane is sent at a time, and a waiting lane does not block others. A receiver is one destination
//! (`outbox::destination`) with its concurrency, pace and health. No receiver delays another, and
//! at each of them pages come first and have reserved capacity.

mod deliver;
mod destination;
mod feedback;
mod metrics;
mod schedule;
#[cfg(test)]
pub(crate) mod tests;
mod unconfirmed;
pub(crate) mod unopened;
mod unrecorded;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Action;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::deliver::{Courier, STORE_RETRY};
use self::schedule::Scheduler;
use self::unconfirmed::Confirmations;
use crate::backoff::random;
use crate::store::{Result, Store, StoreError};
use crate::watchdog::Watchdog;

pub use self::deliver::{DrawChart, Reword};
pub use destination::Receivers;
pub use feedback::{Feedback, Outcome};
pub use metrics::OutboxMetrics;

/// The longest interval between two passes without a wake-up.
const SWEEP: Duration = Duration::from_secs(5);
/// The time limit of one pass: a disk may hang, and messages from memory must not wait for it.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// The time limit for messages in flight when the program stops.
const DRAIN_MAX: Duration = Duration::from_secs(12);

/// The dependencies of the outbox.
#[derive(Clone)]
pub struct Options {
    pub clock: Arc<dyn Fn() -> Ts + Send + Sync>,
    /// Returns numbers in `0.0..1.0`, for jitter.
    pub random: fn() -> f64,
    pub watchdog: Arc<Watchdog>,
    /// Whether the engine's loop responds.
    pub alive: Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>,
    /// Asks the engine's loop for the current text of a message that waited.
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

/// The loop, which starts what is due and reports pages that reach nobody.
struct Worker {
    scheduler: Scheduler,
    receivers: watch::Receiver<Receivers>,
    watchdog: watch::Receiver<Arc<Watchdog>>,
    beat_at: Instant,
    /// A page has waited too long, and no receiver has accepted it.
    nobody_notified: bool,
    /// The keys of pages whose age was reported.
    unreached: BTreeSet<String>,
    confirmations: Confirmations,
    /// Whether the last report to the engine was that no page waits too long.
    all_reached: bool,
    shutdown: Shutdown,
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
    /// Starts the delivery task, which runs until `shutdown`.
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
        let worker = Worker {
            scheduler: Scheduler::new(courier),
            receivers,
            watchdog,
            beat_at: Instant::now(),
            nobody_notified: false,
            unreached: BTreeSet::new(),
            confirmations: Confirmations::default(),
            all_reached: true,
            shutdown,
        };
        let task = tokio::spawn(worker.run());
        OutboxHandle { metrics, store, receivers: sender, watchdog: guard, task }
    }
}

impl OutboxHandle {
    /// Starts a pass now. A commit does this by itself.
    pub fn wake(&self) {
        self.store.post();
    }

    /// Replaces the receivers. Waiting messages go at once through the new receiver of the same
    /// name. Must be called before the engine gets the new configuration.
    pub fn replace(&self, receivers: Receivers) {
        self.receivers.send_replace(receivers);
    }

    /// Replaces the heartbeat.
    pub fn watch(&self, watchdog: Arc<Watchdog>) {
        self.watchdog.send_replace(watchdog);
    }

    /// The current receivers, as a channel of changes.
    pub fn receivers(&self) -> watch::Receiver<Receivers> {
        self.receivers.subscribe()
    }

    /// Waits for the messages in flight, up to a time limit. Must be called after the shutdown.
    pub async fn stopped(self) {
        if let Err(err) = self.task.await {
            tracing::error!(%err, "the outbox ended badly");
        }
    }
}

impl Worker {
    async fn run(mut self) {
        self.take_receivers().await;
        self.recover().await;
        self.scheduler.keep_pauses().await;
        while !self.shutdown.is_set() {
            self.look().await;
            tokio::select! {
                () = self.shutdown.wait() => {}
                Some(done) = self.scheduler.tasks.join_next(), if !self.scheduler.tasks.is_empty() => {
                    self.scheduler.finish(done).await;
                }
                () = self.scheduler.courier.store.posted() => {}
                Ok(()) = self.receivers.changed() => self.take_receivers().await,
                () = tokio::time::sleep_until(self.scheduler.next_look) => {}
            }
            // One pass for all that ended together, and none before a pause that a receiver asked
            // for is applied.
            while let Some(done) = self.scheduler.tasks.try_join_next() {
                self.scheduler.finish(done).await;
            }
        }
        self.drain().await;
    }

    /// Marks the messages that were in flight at the last stop as possibly arrived. It runs before
    /// anything is sent, and is repeated until the store accepts it.
    async fn recover(&mut self) {
        while !self.shutdown.is_set() {
            match self.scheduler.courier.store.recover_attempts().await {
                Ok(0) => break,
                Ok(count) => {
                    tracing::warn!(
                        count,
                        "messages were being sent when the alerter stopped: reconciling them"
                    );
                    break;
                }
                Err(err) => {
                    self.scheduler.courier.store_error("recover", &err);
                    self.scheduler.send_unrecorded(Instant::now()).await;
                    self.pause().await;
                    while let Some(done) = self.scheduler.tasks.try_join_next() {
                        self.scheduler.finish(done).await;
                    }
                }
            }
        }
        let courier = Arc::clone(&self.scheduler.courier);
        self.scheduler.tasks.spawn(async move { courier.report_again().await });
    }

    async fn take_receivers(&mut self) {
        let receivers = self.receivers.borrow_and_update().clone();
        self.scheduler.take_receivers(receivers).await;
    }

    /// Runs one pass: starts what is due, and sets the time of the next pass.
    async fn look(&mut self) {
        let now = Instant::now();
        self.scheduler.next_look = now + SWEEP;
        self.scheduler.send_unrecorded(now).await;
        let clock = (self.scheduler.courier.clock)();
        if let Err(err) = self.scheduler.revive(clock, now).await {
            self.scheduler.courier.store_error("try refused pages again", &err);
        }
        let path = self.scheduler.courier.store.path().to_owned();
        let started = tokio::time::timeout(LOOK_MAX, self.start_due(clock, now)).await;
        let started = started.unwrap_or(Err(StoreError::Stalled { path }));
        self.scheduler.courier.store.note_read(started.as_ref().err());
        match started {
            Ok(()) => self.beat(now),
            Err(err) => {
                self.scheduler.courier.store_error("look for due messages", &err);
                self.scheduler.look_by(now + STORE_RETRY);
            }
        }
    }

    /// Starts a heartbeat, if one is due.
    fn beat(&mut self, now: Instant) {
        let watchdog = self.watchdog.borrow_and_update().clone();
        let interval = watchdog.interval();
        if self.scheduler.courier.store.refusal().is_some() {
            // Checks soon whether the store works, even without other writes.
            self.beat_at = self.beat_at.min(now + SWEEP);
        }
        if self.beat_at <= now {
            self.beat_at = now + interval;
            let (courier, notified) = (Arc::clone(&self.scheduler.courier), !self.nobody_notified);
            self.scheduler.tasks.spawn(async move { courier.beat(&watchdog, notified).await });
        }
        self.scheduler.look_by(self.beat_at);
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
        self.scheduler.report(feedback);
    }

    /// Reports to the engine, once, every page that has waited too long.
    async fn report_unreached(&mut self, clock: Ts) -> Result<()> {
        let page_age = self.watchdog.borrow().page_age();
        let old = self.scheduler.courier.store.unreached(Ts(clock.0 - page_age.0)).await?;
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
            self.scheduler.report(feedback);
        }
        Ok(())
    }

    async fn start_due(&mut self, clock: Ts, now: Instant) -> Result<()> {
        let store = self.scheduler.courier.store.clone();
        self.scheduler.start_reminders(now);
        self.scheduler.start_summaries(clock, now);
        let depth = store.queue_depth().await?;
        let age = depth.oldest_page.map_or(0.0, |since| (clock - since).as_secs_f64());
        self.scheduler.courier.metrics.queue(depth.undone, age);
        let page_age = self.watchdog.borrow().page_age();
        if depth.oldest_page.is_none_or(|since| clock - since < page_age) {
            self.report_reached();
        } else {
            self.report_unreached(clock).await?;
        }
        self.confirmations.report(&mut self.scheduler, page_age, clock).await?;
        if depth.undone == 0 { Ok(()) } else { self.scheduler.start_waiting(clock, now).await }
    }

    /// Waits for the messages in flight; one that takes too long is found claimed at the next start
    /// and reconciled.
    async fn drain(&mut self) {
        let all = async { while self.scheduler.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_MAX, all).await.is_err() {
            let left = self.scheduler.tasks.len();
            tracing::warn!(left, "messages are still on their way; the next start reconciles them");
            self.scheduler.tasks.shutdown().await;
        }
    }

    async fn pause(&self) {
        tokio::select! {
            () = self.shutdown.wait() => {}
            () = tokio::time::sleep(SWEEP) => {}
        }
    }
}

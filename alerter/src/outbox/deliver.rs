//! Delivers one message, from claim to mark.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use stepwatch_kit::crash;
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::message::Message;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::destination::Sign;
use super::feedback::{Feedback, Outcome};
use super::metrics::OutboxMetrics;
use crate::backoff::{self, PAGE_PAUSE_MAX, Random, retry_after};
use crate::errors::chain;
use crate::notify::{Attempt, Failure, FailureClass, Notifier, Picture, Receipt, ScheduledReport};
use crate::store::{Claim, DeliveryOutcome, Means, Store, StoreError};
use crate::watchdog::Watchdog;

/// The time limit of an attempt. A notifier may make several requests, each with its own limit.
const SEND_MAX: Duration = Duration::from_secs(30);

/// The number of attempts after which a message is given up, about half a day. A page without an
/// answer is never given up.
const ATTEMPTS_MAX: u32 = 300;

/// A message that waited this long, or was tried before, is rendered again with the present state.
const STALE: Span = Span::secs(5);

/// The time limit for the new text; after it, the old text is sent.
const REWORD_MAX: Duration = Duration::from_secs(1);

/// The time limit for the chart that a message embeds; after it, the message is sent without.
const CHART_MAX: Duration = Duration::from_millis(500);

/// The time limit for the engine's loop to respond.
const ALIVE_MAX: Duration = Duration::from_secs(5);

/// A failed reminder is repeated after this fraction of its interval.
const REMIND_SOONER: u32 = 4;

/// The most incidents in one portion of a reminder.
const REMIND_AT_ONCE: usize = 64;

/// The wait before a failed write to the store is repeated.
pub(super) const STORE_RETRY: Duration = Duration::from_secs(1);

/// The interval at which the same error of the store is logged again.
const SAID_AGAIN: Duration = Duration::from_mins(1);

/// Renders the current text of a message; `None` if the stored text stays.
pub type Reword = Arc<dyn Fn(Notification) -> BoxFuture<'static, Option<Message>> + Send + Sync>;

/// Draws the chart of an incident for its message; `None` if there is none.
pub type DrawChart = Arc<dyn Fn(String) -> BoxFuture<'static, Option<Picture>> + Send + Sync>;

/// The state that all deliveries share.
pub(super) struct Courier {
    pub(super) store: Store,
    pub(super) feedback: mpsc::Sender<Feedback>,
    pub(super) metrics: OutboxMetrics,
    pub(super) shutdown: Shutdown,
    pub(super) clock: Arc<dyn Fn() -> Ts + Send + Sync>,
    pub(super) random: Random,
    pub(super) alive: Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>,
    pub(super) reword: Reword,
    pub(super) draw_chart: DrawChart,
    /// The last logged error of the store, and its time.
    pub(super) said: Mutex<Option<(Instant, String)>>,
}

/// The result of a task of the outbox.
pub(super) enum Done {
    Lane(LaneDone),
    Reported,
    Reminded {
        receiver: String,
        again: Duration,
    },
    /// The summary of omitted messages was not delivered; `left_out` is their number.
    NotSummarised {
        receiver: String,
        left_out: u64,
    },
}

pub(super) struct LaneDone {
    pub(super) receiver: String,
    pub(super) incident: String,
    pub(super) sign: Sign,
    /// Whether a budget omitted the message.
    pub(super) left_out: bool,
}

impl Courier {
    /// Delivers the first message of a lane.
    pub(super) async fn deliver(
        &self,
        notifier: Arc<dyn Notifier>,
        receiver: String,
        incident: String,
    ) -> Done {
        let now = (self.clock)();
        let means = Means { wakes: notifier.wakes(), numbered: notifier.rings() };
        let claim = self.store.claim_by(&incident, &receiver, means, now);
        let sign = match self.unless_stalled(claim).await {
            Ok(Some(claim)) => {
                let claim = self.reworded(claim, now).await;
                let chart = self.chart(&*notifier, &claim).await;
                crash::point("outbox.before_send");
                let attempted = Box::pin(attempt(&*notifier, &claim, chart.as_ref(), (self.clock)()));
                let attempted = self.store.while_may_send(attempted).await;
                crash::point("outbox.after_send");
                // A lease that ended says nothing about the receiver. If nobody has taken over, the
                // message is tried again; a replica that has finds the row claimed.
                let sign = attempted.as_ref().map_or(Sign::None, |result| sign(result, self.random));
                let result = attempted.unwrap_or_else(|stopped| Err(stopped.into()));
                self.conclude(&claim, result).await;
                sign
            }
            Ok(None) => Sign::None,
            Err(err) => {
                self.store_error("claim a message", &err);
                if self.store.fails_open() {
                    self.hold_lane(&incident, &receiver).await;
                }
                self.rest().await;
                Sign::None
            }
        };
        Done::Lane(LaneDone { receiver, incident, sign, left_out: false })
    }

    /// Abandons a transaction when the store's disk hangs: its lane continues from memory, and what
    /// that records counts, even if the transaction succeeds later.
    async fn unless_stalled<T>(
        &self,
        transaction: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let stalled = async {
            // Each wait for PostgreSQL ends, and nothing would send a message of an abandoned
            // claim.
            while !(self.store.is_stalled() && self.store.fails_open()) {
                tokio::time::sleep(STORE_RETRY).await;
            }
        };
        tokio::select! {
            biased;
            done = transaction => done,
            () = stalled => Err(StoreError::Stalled { path: self.store.path().to_owned() }),
        }
    }

    /// Moves the pages of a lane to memory, from where they are sent.
    async fn hold_lane(&self, incident: &str, receiver: &str) {
        if let Err(err) = self.store.hold_lane(incident, receiver).await {
            self.store_error("read a page that cannot be claimed", &err);
        }
    }

    /// Renders a message that waited with the present state. The history shows the text that is
    /// sent.
    async fn reworded(&self, mut claim: Claim, now: Ts) -> Claim {
        if let Some(message) = self.present_words(&claim, now).await {
            claim.notification.message = message;
            if let Err(err) = self.store.reword(&claim.notification).await {
                self.store_error("keep the words of a message", &err);
            }
        }
        claim
    }

    /// The current text of a message that waited or was tried before.
    pub(super) async fn present_words(&self, claim: &Claim, now: Ts) -> Option<Message> {
        let tried = claim.attempts > 0 || claim.ambiguous;
        if !tried && now - claim.created_at < STALE {
            return None;
        }
        let fresh = tokio::time::timeout(REWORD_MAX, (self.reword)(claim.notification.clone())).await;
        fresh.ok().flatten()
    }

    /// The chart for a message that embeds it, if it is drawn in time.
    async fn chart(&self, notifier: &dyn Notifier, claim: &Claim) -> Option<Picture> {
        if !notifier.embeds_chart() || claim.notification.action == Action::Ack {
            return None;
        }
        let drawn = (self.draw_chart)(claim.notification.incident.clone());
        tokio::time::timeout(CHART_MAX, drawn).await.ok().flatten()
    }

    /// Omits the first message of a lane if it wakes nobody. Acknowledgements and resolutions of
    /// delivered messages are always sent.
    pub(super) async fn leave_out(
        &self,
        notifier: Arc<dyn Notifier>,
        receiver: String,
        incident: String,
    ) -> Done {
        match self.store.leave_out(&incident, &receiver, (self.clock)()).await {
            Ok(false) => Box::pin(self.deliver(notifier, receiver, incident)).await,
            Ok(true) => {
                self.metrics.left_out(&receiver);
                Done::Lane(LaneDone { receiver, incident, sign: Sign::None, left_out: true })
            }
            Err(err) => {
                self.store_error("leave out a message", &err);
                self.rest().await;
                Done::Lane(LaneDone { receiver, incident, sign: Sign::None, left_out: false })
            }
        }
    }

    /// Sends the number of omitted messages.
    pub(super) async fn summarise(
        &self,
        notifier: Arc<dyn Notifier>,
        receiver: String,
        summary: Notification,
        left_out: u64,
    ) -> Done {
        let sent = async { notifier.send(Attempt::first(&summary)).await };
        let sent =
            async { self.store.while_may_send(sent).await.unwrap_or_else(|stopped| Err(stopped.into())) };
        let sent = AssertUnwindSafe(sent).catch_unwind();
        match tokio::time::timeout(SEND_MAX, sent).await {
            Ok(Ok(Ok(_))) => Done::Reported,
            Ok(Ok(Err(failure))) => {
                tracing::warn!(receiver, left_out, error = failure.error, "a summary was not taken");
                Done::NotSummarised { receiver, left_out }
            }
            _ => Done::NotSummarised { receiver, left_out },
        }
    }

    /// Gives up the first message of a lane to a receiver that is not configured.
    pub(super) async fn refuse(&self, receiver: String, incident: String) -> Done {
        match self.store.claim(&incident, &receiver, false, (self.clock)()).await {
            Ok(Some(claim)) => {
                let err = Failure::permanent("the receiver is not in the configuration any more");
                self.conclude(&claim, Err(err)).await;
            }
            Ok(None) => {}
            Err(err) => {
                self.store_error("claim a message", &err);
                self.rest().await;
            }
        }
        Done::Lane(LaneDone { receiver, incident, sign: Sign::None, left_out: false })
    }

    /// Reports the outcomes to the engine that it may have missed at the last stop.
    pub(super) async fn report_again(&self) -> Done {
        let missed = loop {
            match self.store.unreported().await {
                Ok(missed) => break missed,
                Err(err) => self.store_error("read unreported outcomes", &err),
            }
            self.rest().await;
            if self.shutdown.is_set() {
                return Done::Reported;
            }
        };
        for row in missed {
            let outcome = row.failed.map_or(Outcome::Delivered, |error| Outcome::Failed { error });
            let (idem_key, incident) = (row.idem_key, row.incident);
            self.report(Feedback { idem_key, incident, receiver: row.receiver, action: row.action, outcome })
                .await;
        }
        Done::Reported
    }

    /// Reports an outcome to the engine.
    pub(super) async fn pass_on(&self, feedback: Feedback) -> Done {
        self.report(feedback).await;
        Done::Reported
    }

    /// Sends a heartbeat if the alerter works: the store accepts a write, including pending ones,
    /// the engine's loop responds, and people are `notified` of every page.
    pub(super) async fn beat(&self, watchdog: &Watchdog, notified: bool) -> Done {
        let result = match self.store.touch((self.clock)()).await {
            Err(err) => {
                self.store_error("write a sign of life", &err);
                "withheld"
            }
            Ok(()) if !watchdog.beats() => return Done::Reported,
            Ok(()) if let Some(why) = self.store.refusal() => {
                tracing::error!(why, "the store refuses a commit: no heartbeat");
                "withheld"
            }
            Ok(()) if !notified => {
                tracing::error!("a page has reached nobody: no heartbeat");
                "withheld"
            }
            Ok(()) if tokio::time::timeout(ALIVE_MAX, (self.alive)()).await != Ok(true) => {
                tracing::error!("the engine's loop does not answer: no heartbeat");
                "withheld"
            }
            Ok(()) => match self.store.while_may_send(watchdog.beat()).await {
                Ok(Ok(())) => "sent",
                Ok(Err(error)) => {
                    tracing::warn!(error, "the heartbeat did not arrive");
                    "failed"
                }
                Err(_) => {
                    tracing::error!("another replica may have taken over: no heartbeat");
                    "withheld"
                }
            },
        };
        self.metrics.beat(result);
        Done::Reported
    }

    /// Sends the open incidents again to a receiver whose alerts expire. After a failure, the retry
    /// is much sooner.
    pub(super) async fn remind(
        &self,
        notifier: Arc<dyn Notifier>,
        receiver: String,
        every: Duration,
    ) -> Done {
        let reminded = self.store.while_may_send(self.remind_all(&*notifier, &receiver));
        let reminded = async { reminded.await.unwrap_or_else(|stopped| Err(Failure::from(stopped).error)) };
        let error = match tokio::time::timeout(SEND_MAX, reminded).await {
            Ok(Ok(())) => return Done::Reminded { receiver, again: every },
            Ok(Err(error)) => error,
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::warn!(receiver, error, "could not send the open incidents again");
        self.metrics.retried(&receiver, "reminder");
        Done::Reminded { receiver, again: every / REMIND_SOONER }
    }

    /// Sends a reminder in portions. Each is read after the previous one was sent, so that an
    /// incident that has ended by then is not revived.
    async fn remind_all(&self, notifier: &dyn Notifier, receiver: &str) -> Result<(), String> {
        let mut last = String::new();
        loop {
            let rows = match self.store.standing(receiver, &last, REMIND_AT_ONCE).await {
                Ok(rows) => rows,
                Err(err) => {
                    self.store_error("read the open incidents", &err);
                    return Err(chain(&err));
                }
            };
            let Some((id, _)) = rows.last() else { return Ok(()) };
            last.clone_from(id);
            let standing: Vec<Notification> = rows.into_iter().filter_map(|(_, n)| n).collect();
            if standing.is_empty() {
                continue;
            }
            match AssertUnwindSafe(async { notifier.remind(&standing).await }).catch_unwind().await {
                Ok(sent) => sent.map_err(|failure| failure.error)?,
                Err(_) => return Err("the notifier panicked".to_owned()),
            }
        }
    }

    async fn conclude(&self, claim: &Claim, result: Result<Receipt, Failure>) {
        let n = &claim.notification;
        // The write is repeated as long as the store refuses it.
        let at = (self.clock)();
        let (outcome, memory) = self.weigh(claim, result).await;
        while let Err(err) = self.unless_stalled(self.store.settle(n, &outcome, memory.as_deref(), at)).await
        {
            self.store_error("mark a message", &err);
            // The row stays claimed. Later messages of the lane need not wait for it, and a page
            // that did not arrive is retried.
            if self.store.fails_open()
                && n.page
                && self.store.hold_outcome(claim, &outcome, memory.as_deref(), at)
            {
                break;
            }
            self.rest().await;
            if self.shutdown.is_set() {
                // The row is found claimed at the next start and reconciled.
                return;
            }
        }
        crash::point("outbox.after_mark");
        self.settle(claim, outcome).await;
    }

    /// The result of an attempt, and the notifier's new memory.
    pub(super) async fn weigh(
        &self,
        claim: &Claim,
        result: Result<Receipt, Failure>,
    ) -> (DeliveryOutcome, Option<String>) {
        match result {
            Ok(receipt) => (DeliveryOutcome::Delivered, receipt.memory),
            Err(failure) => {
                let memory = failure.memory.clone();
                (self.judge(claim, failure).await, memory)
            }
        }
    }

    /// Counts a finished message, and reports its outcome to the engine.
    pub(super) async fn settle(&self, claim: &Claim, outcome: DeliveryOutcome) {
        let n = &claim.notification;
        let outcome = match outcome {
            DeliveryOutcome::Retry { pause: Some(until), error, .. }
                if n.page && n.action == Action::Trigger =>
            {
                let wait = until - (self.clock)();
                if wait.0 > PAGE_PAUSE_MAX.as_millis() as i64 {
                    self.report(feedback(n, Outcome::PutOff { wait, error })).await;
                }
                return;
            }
            DeliveryOutcome::Retry { .. } => return,
            DeliveryOutcome::Delivered => {
                let took = (self.clock)() - claim.created_at;
                self.metrics.sent(&n.receiver, n.action, took.as_secs_f64());
                Outcome::Delivered
            }
            DeliveryOutcome::Failed { error } => {
                tracing::error!(
                    incident = n.incident,
                    receiver = n.receiver,
                    action = n.action.as_str(),
                    page = n.page,
                    error,
                    "message given up"
                );
                self.metrics.failed(&n.receiver, n.action);
                Outcome::Failed { error }
            }
        };
        self.report(feedback(n, outcome)).await;
    }

    /// Whether a failure is final, or when the message is retried.
    async fn judge(&self, claim: &Claim, failure: Failure) -> DeliveryOutcome {
        let n = &claim.notification;
        let Failure { class, error, ambiguous, .. } = failure;
        // If an earlier attempt may have arrived, a later one that certainly did not arrive does
        // not change that.
        let ambiguous = ambiguous || claim.ambiguous;
        let mut pause = None;
        let (wait, reason) = match class {
            FailureClass::Permanent => return DeliveryOutcome::Failed { error },
            FailureClass::RateLimited { retry_after: asked } => {
                let asked = retry_after(asked, (self.random)());
                pause = Some((self.clock)() + Span::millis(asked.as_millis() as i64));
                let wait = if n.page { asked.min(PAGE_PAUSE_MAX) } else { asked };
                (Span::millis(wait.as_millis() as i64), "rate_limited")
            }
            FailureClass::Partly => (self.backoff(claim.attempts + 1, n.page), "partly"),
            FailureClass::Transient => {
                let failures = claim.attempts + 1;
                if failures >= ATTEMPTS_MAX && !self.promised(n).await {
                    return DeliveryOutcome::Failed { error: format!("{error} (after {failures} attempts)") };
                }
                let reason = if ambiguous { "ambiguous" } else { "transient" };
                (self.backoff(failures, n.page), reason)
            }
        };
        self.metrics.retried(&n.receiver, reason);
        let wait_ms = wait.0;
        tracing::warn!(
            incident = n.incident,
            receiver = n.receiver,
            action = n.action.as_str(),
            page = n.page,
            wait_ms,
            error,
            "message not delivered, will be tried again"
        );
        DeliveryOutcome::Retry { next: (self.clock)() + wait, ambiguous, pause, error }
    }

    fn backoff(&self, failures: u32, page: bool) -> Span {
        let limits = if page { backoff::PAGE } else { backoff::DELIVERY };
        Span::millis(limits.after(failures, (self.random)()).as_millis() as i64)
    }

    /// Whether a page must still be retried: as long as its incident is open and unanswered. If the
    /// store cannot answer, it must.
    async fn promised(&self, n: &Notification) -> bool {
        n.page && !self.store.answered(&n.incident).await.unwrap_or(false)
    }

    async fn report(&self, feedback: Feedback) {
        tokio::select! {
            () = self.shutdown.wait() => {}
            // An error means that the runtime has stopped; the outcome is in the store and is
            // reported at the next start.
            _ = self.feedback.send(feedback) => {}
        }
    }

    /// Waits before the next access to the store, because a refused lane is due at once.
    async fn rest(&self) {
        tokio::select! {
            () = self.shutdown.wait() => {}
            () = tokio::time::sleep(STORE_RETRY) => {}
        }
    }

    /// Counts an error of the store, and logs it if it differs from the last one, because every
    /// lane gets the same error repeatedly.
    pub(super) fn store_error(&self, doing: &str, err: &StoreError) {
        self.metrics.store_error();
        let err = chain(err);
        let said = format!("{doing}: {err}");
        let mut last = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(at, last)| *last != said || at.elapsed() > SAID_AGAIN) {
            tracing::error!(err, "the outbox could not {doing}");
            *last = Some((Instant::now(), said));
        }
    }
}

fn feedback(n: &Notification, outcome: Outcome) -> Feedback {
    Feedback {
        idem_key: n.idem_key.clone(),
        incident: n.incident.clone(),
        receiver: n.receiver.clone(),
        action: n.action,
        outcome,
    }
}

/// Makes one attempt, with a time limit and a guard against panics.
pub(super) async fn attempt(
    notifier: &dyn Notifier,
    claim: &Claim,
    chart: Option<&Picture>,
    at: Ts,
) -> Result<Receipt, Failure> {
    let report = claim.report.as_deref().and_then(read_report);
    let attempt = Attempt {
        notification: &claim.notification,
        ambiguous: claim.ambiguous,
        memory: claim.memory.as_deref(),
        neighbour: claim.neighbour.as_deref(),
        ring: claim.ring,
        unsure: &claim.unsure,
        chart,
        report: report.as_ref(),
        at,
    };
    // The call itself is inside the guard, because a notifier may panic before its first await.
    let send = AssertUnwindSafe(async { notifier.send(attempt).await }).catch_unwind();
    match tokio::time::timeout(SEND_MAX, send).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(Failure::transient(format!("the {} notifier panicked", notifier.kind()), true)),
        Err(_) => Err(Failure::transient(format!("no answer within {} s", SEND_MAX.as_secs()), true)),
    }
}

/// Parses a stored report. An unreadable one is sent with the text of its message.
fn read_report(text: &str) -> Option<ScheduledReport> {
    let read = serde_json::from_str(text);
    read.inspect_err(|err| tracing::error!(%err, "a report in the store does not read: sent as text")).ok()
}

/// What the result shows about the receiver.
pub(super) fn sign(result: &Result<Receipt, Failure>, random: Random) -> Sign {
    match result.as_ref().map_err(|failure| failure.class) {
        Ok(_) | Err(FailureClass::Permanent | FailureClass::Partly) => Sign::Alive,
        Err(FailureClass::Transient) => Sign::Unwell,
        Err(FailureClass::RateLimited { retry_after: asked }) => Sign::Pause(retry_after(asked, random())),
    }
}

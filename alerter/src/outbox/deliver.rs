//! One message from claim to mark.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use stepwatch_engine::effect::Notification;
use stepwatch_engine::time::{Span, Ts};
use stepwatch_kit::crash;
use stepwatch_kit::shutdown::Shutdown;
use tokio::sync::mpsc;

use super::backoff::{Random, backoff, retry_after};
use super::destination::Sign;
use super::{Feedback, OutboxMetrics, Outcome};
use crate::notify::{Attempt, Failure, FailureClass, Notifier, Receipt};
use crate::store::{Claim, DeliveryOutcome, Store, StoreError};

/// The whole of one attempt. A notifier may make several requests, each with a limit of its own.
const SEND_MAX: Duration = Duration::from_secs(30);

/// Attempts after which a message is given up, half a day into an outage; a page that nobody answered never is.
const ATTEMPTS_MAX: u32 = 300;

/// How long to wait before telling the store again what it could not write down.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// What every delivery shares.
pub(super) struct Courier {
    pub(super) store: Store,
    pub(super) feedback: mpsc::Sender<Feedback>,
    pub(super) metrics: OutboxMetrics,
    pub(super) shutdown: Shutdown,
    pub(super) clock: Arc<dyn Fn() -> Ts + Send + Sync>,
    pub(super) random: Random,
}

/// What a task of the outbox did.
pub(super) enum Done {
    Lane(LaneDone),
    Reported,
}

pub(super) struct LaneDone {
    pub(super) receiver: String,
    pub(super) incident: String,
    pub(super) sign: Sign,
}

impl Courier {
    /// Delivers the head of a lane.
    pub(super) async fn deliver(
        &self,
        notifier: Arc<dyn Notifier>,
        receiver: String,
        incident: String,
    ) -> Done {
        let now = (self.clock)();
        let sign = match self.store.claim(&incident, &receiver, notifier.wakes(), now).await {
            Ok(Some(claim)) => {
                crash::point("outbox.before_send");
                let result = attempt(&*notifier, &claim).await;
                crash::point("outbox.after_send");
                let sign = sign(&result, self.random);
                self.conclude(&claim, result).await;
                sign
            }
            Ok(None) => Sign::None,
            Err(err) => {
                self.store_error("claim a message", &err);
                Sign::None
            }
        };
        Done::Lane(LaneDone { receiver, incident, sign })
    }

    /// Gives up the head of a lane to a receiver that is not configured.
    pub(super) async fn refuse(&self, receiver: String, incident: String) -> Done {
        match self.store.claim(&incident, &receiver, false, (self.clock)()).await {
            Ok(Some(claim)) => {
                let err = Failure::permanent("the receiver is not in the configuration any more");
                self.conclude(&claim, Err(err)).await;
            }
            Ok(None) => {}
            Err(err) => self.store_error("claim a message", &err),
        }
        Done::Lane(LaneDone { receiver, incident, sign: Sign::None })
    }

    /// Tells the engine the outcomes it may have missed at the last stop.
    pub(super) async fn report_again(&self) -> Done {
        let missed = match self.store.unreported().await {
            Ok(missed) => missed,
            Err(err) => {
                self.store_error("read unreported outcomes", &err);
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

    async fn conclude(&self, claim: &Claim, result: Result<Receipt, Failure>) {
        let n = &claim.notification;
        let (outcome, memory) = match result {
            Ok(receipt) => (DeliveryOutcome::Delivered, receipt.memory),
            Err(failure) => {
                let memory = failure.memory.clone();
                (self.judge(claim, failure).await, memory)
            }
        };
        let now = (self.clock)();
        while let Err(err) = self.store.settle(n, &outcome, memory.as_deref(), now).await {
            self.store_error("mark a message", &err);
            tokio::select! {
                // Found claimed at the next start, and reconciled.
                () = self.shutdown.wait() => return,
                () = tokio::time::sleep(STORE_RETRY) => {}
            }
        }
        crash::point("outbox.after_mark");
        let outcome = match outcome {
            DeliveryOutcome::Retry { .. } => return,
            DeliveryOutcome::Delivered => {
                self.metrics.sent(&n.receiver, n.action, (now - claim.created_at).as_secs_f64());
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

    /// Whether a failure is the end of the message or when it is tried again.
    async fn judge(&self, claim: &Claim, failure: Failure) -> DeliveryOutcome {
        let n = &claim.notification;
        let Failure { class, error, ambiguous, .. } = failure;
        // Once it may have arrived, a later attempt that surely did not arrive takes nothing of that back.
        let ambiguous = ambiguous || claim.ambiguous;
        let (wait, counts, reason) = match class {
            FailureClass::Permanent => return DeliveryOutcome::Failed { error },
            FailureClass::RateLimited { retry_after: asked } => {
                let wait = retry_after(asked, (self.random)());
                (Span::millis(wait.as_millis() as i64), false, "rate_limited")
            }
            FailureClass::Transient => {
                let failures = claim.attempts + 1;
                if failures >= ATTEMPTS_MAX && !self.promised(n).await {
                    return DeliveryOutcome::Failed { error: format!("{error} (after {failures} attempts)") };
                }
                let reason = if ambiguous { "ambiguous" } else { "transient" };
                (backoff(failures, n.page, (self.random)()), true, reason)
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
        DeliveryOutcome::Retry { next: (self.clock)() + wait, ambiguous, counts, error }
    }

    /// A page is tried for as long as its incident is open and nobody has it. When the store cannot say, it is promised.
    async fn promised(&self, n: &Notification) -> bool {
        n.page && !self.store.answered(&n.incident).await.unwrap_or(false)
    }

    async fn report(&self, feedback: Feedback) {
        tokio::select! {
            () = self.shutdown.wait() => {}
            // An error means that the runtime has gone; the outcome is in the store and comes again at the next start.
            _ = self.feedback.send(feedback) => {}
        }
    }

    pub(super) fn store_error(&self, doing: &str, err: &StoreError) {
        self.metrics.store_error();
        let cause = std::error::Error::source(err).map(ToString::to_string);
        tracing::error!(%err, cause, "the outbox could not {doing}");
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

/// One attempt, whatever the notifier does.
async fn attempt(notifier: &dyn Notifier, claim: &Claim) -> Result<Receipt, Failure> {
    let attempt = Attempt {
        notification: &claim.notification,
        ambiguous: claim.ambiguous,
        memory: claim.memory.as_deref(),
        neighbour: claim.neighbour.as_deref(),
    };
    // The call itself is inside, too: a notifier may panic before its first await.
    let send = AssertUnwindSafe(async { notifier.send(attempt).await }).catch_unwind();
    match tokio::time::timeout(SEND_MAX, send).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(Failure::transient(format!("the {} notifier panicked", notifier.kind()), true)),
        Err(_) => Err(Failure::transient(format!("no answer within {} s", SEND_MAX.as_secs()), true)),
    }
}

/// What the result says about the receiver.
fn sign(result: &Result<Receipt, Failure>, random: Random) -> Sign {
    match result.as_ref().map_err(|failure| failure.class) {
        Ok(_) | Err(FailureClass::Permanent) => Sign::Alive,
        Err(FailureClass::Transient) => Sign::Unwell,
        Err(FailureClass::RateLimited { retry_after: asked }) => Sign::Pause(retry_after(asked, random())),
    }
}

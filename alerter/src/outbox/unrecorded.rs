//! Fail open: pages that the store refuses are sent from memory.

use std::sync::Arc;
use std::time::Duration;

use stepwatch_model::time::Span;
use tokio::time::Instant;

use super::deliver::{Courier, Done, LaneDone, attempt, sign};
use super::destination::{Admission, Sign};
use super::schedule::Scheduler;
use crate::notify::{Failure, Notifier};
use crate::store::unrecorded::{Begun, say_not_recorded};
use crate::store::{Claim, FAIL_OPEN_AFTER, Means};

impl Scheduler {
    /// Sends held pages while the store refuses writes, and records the outcomes when it works
    /// again.
    pub(super) async fn send_unrecorded(&mut self, now: Instant) {
        let courier = Arc::clone(&self.courier);
        let clock = (courier.clock)();
        match courier.store.refused_for() {
            None => {
                if let Err(err) = courier.store.reconcile().await {
                    courier.store_error("write down what was sent while the store refused", &err);
                }
                return;
            }
            Some(time) if time < FAIL_OPEN_AFTER => {
                self.look_by(now + FAIL_OPEN_AFTER.saturating_sub(time));
                return;
            }
            Some(_) => {}
        }
        courier.metrics.unrecorded_left_out(courier.store.unrecorded_left_out());
        let (due, later) = courier.store.unrecorded_due(clock);
        for lane in due {
            if self.busy.contains(&lane) {
                continue;
            }
            let notifier = match self.destinations.get_mut(&lane.0) {
                None => None,
                Some(destination) => match destination.admit(now, true) {
                    Admission::Now => Some(Arc::clone(&destination.notifier)),
                    Admission::At(at) => {
                        self.look_by(at);
                        continue;
                    }
                    Admission::Full => continue,
                },
            };
            self.busy.insert(lane.clone());
            let courier = Arc::clone(&courier);
            self.tasks.spawn(async move { courier.deliver_unrecorded(notifier, lane).await });
        }
        if let Some(at) = later {
            let wait = Duration::from_millis((at - clock).0.max(0).unsigned_abs());
            self.look_by(now + wait);
        }
    }
}

impl Courier {
    /// Sends the next held message of a lane. If the receiver is not configured, the message is
    /// given up.
    async fn deliver_unrecorded(&self, notifier: Option<Arc<dyn Notifier>>, lane: (String, String)) -> Done {
        let mut came = Sign::None;
        let (wakes, numbered) =
            notifier.as_ref().map_or((false, false), |notifier| (notifier.wakes(), notifier.rings()));
        let means = Means { wakes, numbered };
        if let Some(begun) = self.store.begin_unrecorded(&lane, means, (self.clock)()).await {
            let Begun { held, memory, words } = begun;
            let (ring, unsure) =
                if numbered { self.store.number_unrecorded(&held).await } else { (None, Vec::new()) };
            let recorded = held.is_recorded();
            let mut claim = Claim {
                notification: held.notification,
                ambiguous: held.ambiguous,
                attempts: held.attempts,
                created_at: held.created_at,
                memory,
                neighbour: None,
                ring,
                unsure,
                report: None,
            };
            match words {
                Some(words) => claim.notification.message = words,
                None => self.reword_unrecorded(&mut claim, recorded).await,
            }
            let result = match &notifier {
                Some(notifier) => {
                    let result = attempt(&**notifier, &claim, None, (self.clock)()).await;
                    came = sign(&result, self.random);
                    result
                }
                None => Err(Failure::permanent("the receiver is not in the configuration any more")),
            };
            let at = (self.clock)();
            let (outcome, memory) = self.weigh(&claim, result).await;
            self.store.end_unrecorded(&claim.notification, &outcome, memory.as_deref(), at);
            self.metrics.unrecorded(&claim.notification.receiver);
            self.settle(&claim, outcome).await;
        }
        let (receiver, incident) = lane;
        Done::Lane(LaneDone { receiver, incident, sign: came, left_out: false })
    }

    /// Renders a message with the present state; its record has the text that was sent.
    async fn reword_unrecorded(&self, claim: &mut Claim, recorded: bool) {
        let now = (self.clock)();
        let Some(mut message) = self.present_words(claim, now).await else { return };
        if !recorded {
            let refused = self.store.refused_for().unwrap_or_default();
            say_not_recorded(&mut message, now + Span::millis(-(refused.as_millis() as i64)));
        }
        claim.notification.message = message;
        self.store.reword_unrecorded(&claim.notification);
    }
}

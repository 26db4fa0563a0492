//! Shows charts in the conversations of receivers.
//!
//! A conversation has one chart, for the present stage of its incident (severity, signal, whether
//! it is over). A new chart is shown before the old one is removed. Each step is on disk before
//! anybody can see it, so that nobody sees two charts after a crash: a file that may have been
//! shown is removed, and the chart is shown again.
//!
//! A receiver whose account must not show images is skipped until the configuration is reloaded;
//! this is logged once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stepwatch_kit::crash;
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_model::time::{Span, Ts};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::metrics::PictureMetrics;
use super::{Charts, DrawError};
use crate::backoff::{DELIVERY, random, retry_after};
use crate::errors::chain;
use crate::notify::{Failure, FailureClass, Gallery, Notifier, PictureError};
use crate::outbox::Receivers;
use crate::store::{DuePicture, PictureRow, Store, StoreError};

/// The most charts for one receiver in one pass.
const AT_ONCE: usize = 8;
/// The wait between two charts for one receiver: a chat accepts about one message per second, and
/// messages come first.
const PACE: Duration = Duration::from_secs(2);
/// The most attempts at one chart; the next stage of the incident has another.
const ATTEMPTS_MAX: u32 = 6;
/// The time limit of one request to the service.
const REQUEST_MAX: Duration = Duration::from_secs(20);
/// The longest interval between two passes.
const SWEEP: Duration = Duration::from_secs(30);
/// The time since the last message of a conversation after which it gets no chart.
const RECENT: Span = Span::secs(3600);

type Clock = Arc<dyn Fn() -> Ts + Send + Sync>;

/// The state of the task that shows charts.
pub(super) struct Shower {
    store: Store,
    charts: Charts,
    clock: Clock,
    metrics: PictureMetrics,
    /// Receivers whose account must not show images, with their notifier.
    forbidden: BTreeMap<String, Arc<dyn Notifier>>,
    pace: Duration,
}

/// The error that ended an attempt.
#[derive(Debug, PartialEq)]
enum Stop {
    Store(String),
    Picture(PictureError),
}

impl From<StoreError> for Stop {
    fn from(err: StoreError) -> Self {
        Self::Store(chain(&err))
    }
}

impl From<DrawError> for Stop {
    fn from(err: DrawError) -> Self {
        match err {
            DrawError::Store(err) => err.into(),
            DrawError::Render(err) => {
                let why = format!("cannot draw the chart: {err}");
                Self::Picture(PictureError::Failed(Failure::transient(why, false)))
            }
        }
    }
}

impl From<PictureError> for Stop {
    fn from(err: PictureError) -> Self {
        Self::Picture(err)
    }
}

/// Shows the charts of incidents until `shutdown`, whenever `taken` is notified.
pub async fn show(
    charts: Charts,
    mut receivers: watch::Receiver<Receivers>,
    clock: Clock,
    taken: Arc<Notify>,
    shutdown: Shutdown,
) {
    let (store, metrics) = (charts.store.clone(), charts.metrics.clone());
    let mut shower = Shower { store, charts, clock, metrics, forbidden: BTreeMap::new(), pace: PACE };
    loop {
        let known = receivers.borrow_and_update().clone();
        let looked = async {
            shower.look(&known).await;
            let _ = timeout(SWEEP, taken.notified()).await;
        };
        tokio::select! {
            () = shutdown.wait() => return,
            () = looked => {}
            // The missing scope may have been granted.
            Ok(()) = receivers.changed() => {}
        }
    }
}

impl Shower {
    /// An instance that does not wait between two charts.
    #[cfg(test)]
    pub(super) fn for_tests(charts: Charts, clock: Clock) -> Self {
        let (store, metrics) = (charts.store.clone(), charts.metrics.clone());
        Self { store, charts, clock, metrics, forbidden: BTreeMap::new(), pace: Duration::ZERO }
    }

    /// Shows the due charts at every receiver with a gallery.
    pub(super) async fn look(&mut self, receivers: &Receivers) {
        // A new configuration of the receiver is tried again.
        self.forbidden.retain(|name, was| receivers.get(name).is_some_and(|now| Arc::ptr_eq(was, now)));
        let now = (self.clock)();
        let pauses = match self.store.pauses(now).await {
            Ok(pauses) => pauses,
            Err(err) => return tracing::warn!(err = chain(&err), "cannot look for charts to show"),
        };
        for (name, notifier) in receivers {
            let Some(gallery) = notifier.gallery() else { continue };
            if self.forbidden.contains_key(name) || pauses.iter().any(|(paused, _)| paused == name) {
                continue;
            }
            let since = Ts(now.0 - RECENT.0);
            match self.store.pictures_due(name, since, now, AT_ONCE).await {
                Err(err) => tracing::warn!(err = chain(&err), "cannot look for charts to show"),
                Ok(due) => {
                    for due in due {
                        if !self.show_one(name, notifier, gallery, due).await {
                            break;
                        }
                        tokio::time::sleep(self.pace).await;
                    }
                }
            }
        }
    }

    /// Shows one chart; false if the receiver must not be tried further for now.
    async fn show_one(
        &mut self,
        receiver: &str,
        notifier: &Arc<dyn Notifier>,
        gallery: &dyn Gallery,
        due: DuePicture,
    ) -> bool {
        let DuePicture { incident, memory, stage, mut row } = due;
        let at = Place { incident: &incident, receiver, memory: &memory, stage: &stage, gallery };
        let failure = match self.bring_up_to_date(at, &mut row).await {
            Ok(()) => {
                self.metrics.shown(receiver, "shown");
                return true;
            }
            Err(Stop::Store(err)) => {
                tracing::warn!(receiver, incident, err, "cannot store what became of a chart");
                return false;
            }
            Err(Stop::Picture(PictureError::Forbidden(why))) => {
                tracing::warn!(receiver, why, "this receiver shows no charts; its messages are not affected");
                self.metrics.shown(receiver, "forbidden");
                self.forbidden.insert(receiver.to_owned(), Arc::clone(notifier));
                return false;
            }
            Err(Stop::Picture(PictureError::Failed(failure))) => failure,
        };
        let limited = matches!(failure.class, FailureClass::RateLimited { .. });
        self.fail(&mut row, &stage, receiver, failure);
        if let Err(err) = self.store.put_picture(&incident, receiver, &row).await {
            tracing::warn!(receiver, incident, err = chain(&err), "cannot store what became of a chart");
            return false;
        }
        !limited
    }

    /// Decides whether and when a failed chart is retried.
    fn fail(&self, row: &mut PictureRow, stage: &str, receiver: &str, failure: Failure) {
        let Failure { class, error, .. } = failure;
        row.attempts += 1;
        let wait = match class {
            FailureClass::RateLimited { retry_after: asked } => retry_after(asked, random()),
            _ => DELIVERY.after(row.attempts, random()),
        };
        row.next = (self.clock)() + Span::millis(wait.as_millis() as i64);
        let given_up = class == FailureClass::Permanent || row.attempts >= ATTEMPTS_MAX;
        if given_up {
            tracing::warn!(receiver, error, "a chart is not shown");
            // A file that may be visible and cannot be removed counts as shown, so that there is no
            // second chart.
            row.stale = if row.coming.is_some() { row.shown.take() } else { None };
            row.shown = row.coming.take().or(row.shown.take());
            (row.stage, row.attempts) = (stage.to_owned(), 0);
        } else {
            tracing::debug!(receiver, error, "a chart was not shown, will be tried again");
        }
        row.error = Some(error);
        self.metrics.shown(receiver, if given_up { "given_up" } else { "retried" });
    }

    async fn bring_up_to_date(&self, at: Place<'_>, row: &mut PictureRow) -> Result<(), Stop> {
        if let Some(file) = row.coming.clone() {
            self.limited(at.gallery.take_away(&file)).await?;
            row.coming = None;
            self.put(at, row).await?;
        }
        if row.stage != at.stage {
            self.replace(at, row).await?;
        }
        if let Some(file) = row.stale.clone() {
            self.limited(at.gallery.take_away(&file)).await?;
            row.stale = None;
            self.put(at, row).await?;
        }
        Ok(())
    }

    async fn replace(&self, at: Place<'_>, row: &mut PictureRow) -> Result<(), Stop> {
        let Some((picture, title)) = self.charts.drawn(at.incident).await? else {
            at.stage.clone_into(&mut row.stage);
            return self.put(at, row).await;
        };
        let file = self.limited(at.gallery.bring(&picture)).await?;
        row.coming = Some(file.clone());
        self.put(at, row).await?;
        crash::point("pictures.before_show");
        let shown = self.limited(at.gallery.show(&file, &title, at.memory)).await;
        crash::point("pictures.after_show");
        if let Err(PictureError::Failed(failure)) = &shown {
            if !failure.ambiguous {
                // The file was certainly not shown, and the service drops such files.
                row.coming = None;
            }
        }
        shown?;
        (row.stale, row.shown) = (row.shown.take(), row.coming.take());
        at.stage.clone_into(&mut row.stage);
        (row.attempts, row.next, row.error) = (0, Ts(0), None);
        self.put(at, row).await
    }

    /// Makes one request to the service, with a time limit, while this process may send.
    async fn limited<T>(
        &self,
        request: impl Future<Output = Result<T, PictureError>>,
    ) -> Result<T, PictureError> {
        let late = || PictureError::Failed(Failure::transient("no answer in time", true));
        let answer = self.store.while_may_send(timeout(REQUEST_MAX, request)).await;
        let answer = answer.map_err(|stopped| PictureError::Failed(stopped.into()))?;
        answer.unwrap_or_else(|_| Err(late()))
    }

    async fn put(&self, at: Place<'_>, row: &PictureRow) -> Result<(), Stop> {
        Ok(self.store.put_picture(at.incident, at.receiver, row).await?)
    }
}

/// A conversation, and its present chart.
#[derive(Clone, Copy)]
struct Place<'a> {
    incident: &'a str,
    receiver: &'a str,
    memory: &'a str,
    stage: &'a str,
    gallery: &'a dyn Gallery,
}

//! Creates reports, and sends those that are due by a schedule.
//!
//! A due report is stored with its messages in one transaction (`store/report_schedules.rs`). The
//! outbox then sends it like any message: once, as soon as each receiver accepts it.

mod gather;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use stepwatch_kit::shutdown::Shutdown;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Notification;
use tokio::sync::watch;

use crate::errors::chain;
use crate::report::message::scheduled;
use crate::report::schedule::{Schedule, Slot};
use crate::runtime::Views;
use crate::store::{DueReport, REPORT, Result, Store, StoreError};

pub(crate) use gather::gather;

/// The longest interval between two checks, because the clock may be set.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// The wait before another attempt while the store refuses writes.
const AGAIN_AFTER: Duration = Duration::from_secs(15);

/// The schedules of the reports.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    pub(crate) schedules: Vec<Schedule>,
    /// The address of this alerter for people.
    pub(crate) external_url: Option<String>,
}

/// Creates reports from the alerter's data.
#[derive(Debug, Clone)]
pub(crate) struct Reporter {
    pub(crate) store: Store,
    pub(crate) views: Arc<Views>,
}

/// Sends every report when it is due, until `shutdown`.
pub(crate) async fn keep(
    reporter: Reporter,
    mut plans: watch::Receiver<Arc<Plan>>,
    clock: Arc<dyn Fn() -> Ts + Send + Sync>,
    shutdown: Shutdown,
) {
    loop {
        let plan = Arc::clone(&plans.borrow_and_update());
        let pause = match reporter.send_due(&plan, clock()).await {
            Ok(next) => next.map_or(LOOK_EVERY, |at| until(at, clock()).min(LOOK_EVERY)),
            Err(err) => {
                tracing::error!(err = chain(&err), "a report on schedule could not be made; trying again");
                AGAIN_AFTER
            }
        };
        tokio::select! {
            () = shutdown.wait() => return,
            changed = plans.changed() => if changed.is_err() {
                return;
            },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The id of the report of a schedule on a day, which takes the place of an incident's id.
fn id(s: &Schedule, slot: &Slot) -> String {
    format!("{REPORT}{}/{}", s.name, slot.day)
}

fn until(at: Ts, now: Ts) -> Duration {
    Duration::from_millis((at - now).0.max(0).unsigned_abs())
}

impl Reporter {
    /// Sends the due reports; returns when the next one is due. A report that cannot be created
    /// does not delay others.
    pub(crate) async fn send_due(&self, plan: &Plan, now: Ts) -> Result<Option<Ts>> {
        let names: Vec<&str> = plan.schedules.iter().map(|s| s.name.as_str()).collect();
        let settled = self.store.report_schedules(&names, now).await?;
        let mut failed = None;
        for schedule in &plan.schedules {
            let since = settled.get(&schedule.name).copied().unwrap_or(now);
            let Some(slot) = schedule.due(since, now) else { continue };
            let sent = self.send(schedule, &slot, plan.external_url.as_deref(), now).await;
            failed = sent.err().or(failed);
        }
        match failed {
            Some(err) => Err(err),
            None => Ok(plan.schedules.iter().filter_map(|s| s.next(now)).map(|slot| slot.at).min()),
        }
    }

    async fn send(&self, s: &Schedule, slot: &Slot, external_url: Option<&str>, now: Ts) -> Result<()> {
        let view = gather(&self.store, &self.views, slot.period, s.run.clone(), |_| true, now).await?;
        let damaged = |source| StoreError::Damaged { what: "a report".to_owned(), source };
        let (id, report) = (id(s, slot), scheduled(s, slot, external_url, &view).map_err(damaged)?);
        let posts: Vec<Notification> =
            s.notify.iter().map(|receiver| report.notification(&id, receiver, now)).collect();
        let text = serde_json::to_string(&report).map_err(damaged)?;
        let due = DueReport { id: &id, schedule: &s.name, due: slot.at, report: &text, posts: &posts };
        self.store.put_report(due, now).await?;
        tracing::info!(schedule = s.name, day = %slot.day, receivers = posts.len(), "sending a report");
        Ok(())
    }
}

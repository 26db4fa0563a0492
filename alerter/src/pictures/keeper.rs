//! Keeps what is seen of a run with its incident: the series of a run do not last as long.

use std::sync::Arc;
use std::time::Duration;

use stepwatch_kit::shutdown::Shutdown;
use stepwatch_model::time::{Span, Ts};
use tokio::sync::Notify;

use super::{Charts, Curves, seen};
use crate::errors::chain;
use crate::store::{Result, Store};

/// Charts of one look.
const AT_ONCE: usize = 32;
/// How long after a change: several often come together.
const SETTLES: Duration = Duration::from_millis(250);
/// The longest time between two looks.
const SWEEP: Duration = Duration::from_secs(30);
/// An incident that opened and ended before anybody looked is found within this time.
const RECENT: Span = Span::secs(3600);

/// Takes the chart of every incident when it opens, changes and ends, until `shutdown`. Raises
/// `taken` whenever there is a new one.
pub async fn keep(
    charts: Charts,
    clock: Arc<dyn Fn() -> Ts + Send + Sync>,
    taken: Arc<Notify>,
    shutdown: Shutdown,
) {
    let Charts { store, curves, .. } = charts;
    loop {
        let more = match take(&store, &*curves, clock()).await {
            Ok(count) => {
                if count > 0 {
                    taken.notify_one();
                }
                count == AT_ONCE
            }
            Err(err) => {
                tracing::warn!(err = chain(&err), "cannot keep the charts of incidents; trying again later");
                false
            }
        };
        let wait = async {
            if !more {
                let _ = tokio::time::timeout(SWEEP, store.changed()).await;
                // A conversation may have begun that has no picture yet.
                taken.notify_one();
            }
            tokio::time::sleep(SETTLES).await;
        };
        tokio::select! {
            () = shutdown.wait() => return,
            () = wait => {}
        }
    }
}

/// Takes what is due; returns how many.
pub(super) async fn take(store: &Store, curves: &dyn Curves, now: Ts) -> Result<usize> {
    let due = store.charts_due(Ts(now.0 - RECENT.0), AT_ONCE).await?;
    for chart in &due {
        store.keep_chart(chart, &seen::of_incident(&chart.record, curves), now).await?;
    }
    Ok(due.len())
}

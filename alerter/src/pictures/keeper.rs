//! Stores the observations of a run with its incident, because the series of a run are kept for a
//! shorter time.

use std::sync::Arc;
use std::time::Duration;

use stepwatch_kit::shutdown::Shutdown;
use stepwatch_model::time::{Span, Ts};
use tokio::sync::Notify;

use super::{Charts, Curves, seen};
use crate::errors::chain;
use crate::store::{Result, Store};

/// The most charts of one pass.
const AT_ONCE: usize = 32;
/// The delay after a change, because several changes often come together.
const SETTLES: Duration = Duration::from_millis(250);
/// The longest interval between two passes.
const SWEEP: Duration = Duration::from_secs(30);
/// The time within which an incident that opened and ended between two passes is found.
const RECENT: Span = Span::secs(3600);

/// Stores the chart of every incident when it opens, changes and ends, until `shutdown`. Notifies
/// `taken` of every new one.
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
                // A new conversation may not have its chart yet.
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

/// Stores the due charts; returns their number.
pub(super) async fn take(store: &Store, curves: &dyn Curves, now: Ts) -> Result<usize> {
    let due = store.charts_due(Ts(now.0 - RECENT.0), AT_ONCE).await?;
    for chart in &due {
        store.keep_chart(chart, &seen::of_incident(&chart.record, curves), now).await?;
    }
    Ok(due.len())
}

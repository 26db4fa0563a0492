//! Keeps the series across restarts: writes changed parts at intervals, a few at a time, and reads
//! them at the start.

use std::sync::Arc;
use std::time::Duration;

use stepwatch_kit::shutdown::Shutdown;
use stepwatch_model::time::{Span, Ts};
use tokio::time::Instant;

use super::{KEEP, SeriesTable};
use crate::clock::Clock;
use crate::errors::chain;
use crate::store::{self, Store};

/// The shortest interval between two writes of a part, which a crash loses.
const WRITE_EVERY: Span = Span::secs(10);
/// The most parts of one transaction, 256 KiB, so that a page waits only for a short transaction.
const PARTS: usize = 4;
/// The pause between two transactions. It limits writes to 1 MiB per second for any number of runs;
/// with many runs, each part is written less often.
const PAUSE: Duration = Duration::from_millis(250);
/// The interval between two searches for runs to drop.
const FORGET_EVERY: Duration = Duration::from_hours(1);
/// The time limit for the last writes at a stop.
const LAST_WRITES_MAX: Duration = Duration::from_secs(5);

/// The stored series. Unreadable parts are dropped, because they only affect charts.
pub async fn restore(store: &Store) -> store::Result<Arc<SeriesTable>> {
    let (table, mut left_out) = (SeriesTable::default(), 0);
    store.load_series(|part| left_out += table.restore(&[part])).await?;
    if left_out > 0 {
        tracing::warn!(left_out, "stored series of another version, damaged, or too many: they begin anew");
    }
    tracing::info!(series = table.len(), bytes = table.bytes(), "series restored");
    Ok(Arc::new(table))
}

/// Writes until `stopping`.
pub async fn keep(store: Store, table: Arc<SeriesTable>, clock: Clock, stopping: Shutdown) {
    let mut forget_due = Instant::now();
    loop {
        tokio::select! {
            () = stopping.wait() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
        // While the store refuses writes, other data is more important.
        if store.refusal().is_some() {
            continue;
        }
        let now = clock.now();
        write_some(&store, &table, now, WRITE_EVERY).await;
        if Instant::now() >= forget_due {
            forget_due = Instant::now() + FORGET_EVERY;
            table.forget_idle(now);
            if let Err(err) = store.forget_series(now.earlier(KEEP)).await {
                tracing::warn!(err = chain(&err), "cannot forget old series; trying again later");
            }
        }
    }
}

/// Writes the remaining parts before the end of the process.
pub async fn write_all(store: &Store, table: &SeriesTable, now: Ts) {
    let deadline = Instant::now() + LAST_WRITES_MAX;
    let all = async { while write_some(store, table, now, Span::ZERO).await {} };
    if store.refusal().is_none() && tokio::time::timeout_at(deadline, all).await.is_err() {
        tracing::warn!("not all series could be written in time; their pictures miss the last steps");
    }
}

/// Writes a few parts; false if there was nothing to write, or the store refused it.
async fn write_some(store: &Store, table: &SeriesTable, now: Ts, every: Span) -> bool {
    let parts = table.take_parts(now, every, PARTS);
    if parts.is_empty() {
        return false;
    }
    if let Err(err) = store.write_series(&parts).await {
        table.unwritten(&parts);
        tracing::debug!(err = chain(&err), "the store did not take series; they are written later");
        return false;
    }
    true
}

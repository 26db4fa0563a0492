//! Keeps the series over a restart: writes what changed now and then, a few parts at a time, and
//! reads it back at the start.

use std::sync::Arc;
use std::time::Duration;

use stepwatch_kit::shutdown::Shutdown;
use stepwatch_model::time::{Span, Ts};
use tokio::time::Instant;

use super::{KEEP, SeriesTable};
use crate::clock::Clock;
use crate::errors::chain;
use crate::store::{self, Store};

/// A part is written this often at most: what a crash costs its picture.
const WRITE_EVERY: Span = Span::secs(10);
/// Parts of one transaction, 256 KiB at most: a page waits no longer than such a transaction takes.
const PARTS: usize = 4;
/// Between two transactions. With it, at most 1 MiB a second is written, however many runs there
/// are; of many runs each part is written less often.
const PAUSE: Duration = Duration::from_millis(250);
/// Between two searches for runs to forget.
const FORGET_EVERY: Duration = Duration::from_hours(1);
/// How long a stop takes to write what is left.
const LAST_WRITES_MAX: Duration = Duration::from_secs(5);

/// The stored series. What cannot be read is left out: it is only pictures.
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
        // While the store refuses, it has more important things to take first.
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

/// Writes what is left before the end of the process.
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

//! Stores the series of runs. They are only for charts, so no decision waits for them.

use futures_util::TryStreamExt as _;
use stepwatch_model::time::Ts;

use super::error::Result;
use super::handle::Store;
use super::sql::query;
use super::writer::Who;

/// A part of a run's series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesPart {
    pub run: String,
    /// The signal; empty for the part that all signals of the run share.
    pub signal: String,
    /// When a step was last recorded, by the alerter's clock.
    pub at: Ts,
    pub data: Vec<u8>,
}

impl Store {
    /// Writes parts of series in a separate transaction. It must be short, because the next writer
    /// waits for it.
    pub(crate) async fn write_series(&self, parts: &[SeriesPart]) -> Result<()> {
        let sql = "INSERT INTO series (run, signal, at_ms, data) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (run, signal) DO UPDATE SET at_ms = excluded.at_ms, data = excluded.data";
        self.write(Who::InTurn, async |tx| {
            for part in parts {
                let query = query(sql).bind(&part.run).bind(&part.signal).bind(part.at.0);
                query.bind(&part.data).execute(&mut *tx).await?;
            }
            Ok(())
        })
        .await
    }

    /// Passes every stored part to `take`, the latest runs first.
    pub(crate) async fn load_series(&self, mut take: impl FnMut(SeriesPart)) -> Result<()> {
        let sql = "SELECT run, signal, at_ms, data FROM series ORDER BY at_ms DESC, run, signal";
        let reader = self.reader()?;
        let mut rows = query(sql).fetch(&reader);
        while let Some(row) = rows.try_next().await? {
            take(SeriesPart {
                run: row.try_get("run")?,
                signal: row.try_get("signal")?,
                at: Ts(row.try_get("at_ms")?),
                data: row.try_get("data")?,
            });
        }
        Ok(())
    }

    /// Deletes the series of runs that have not stepped since `before`. Returns the number of
    /// parts.
    pub(crate) async fn forget_series(&self, before: Ts) -> Result<u64> {
        self.write(Who::InTurn, async |tx| {
            let gone = query("DELETE FROM series WHERE at_ms < $1").bind(before.0).execute(tx).await?;
            Ok(gone.rows_affected())
        })
        .await
    }
}

//! Writes the records of messages that were sent without one.

use crate::store::delivery;
use crate::store::error::Result;
use crate::store::held::{Progress, Written};
use crate::store::outcome::DeliveryOutcome;
use crate::store::rows::{json, text_of};
use crate::store::sql::{Connection, query, query_scalar};

/// Gives rows the state of their messages: the creation time, the number of attempts and the end,
/// independent of when the row was written.
pub(in crate::store) async fn put_written(tx: &mut Connection, all: &[Written]) -> Result<()> {
    for written in all {
        let (receiver, incident) = &written.lane;
        let idem_key = &written.idem_key;
        match &written.progress {
            Progress::Sending => {
                let sql = "UPDATE outbox SET state = 'attempting' WHERE idem_key = $1";
                query(sql).bind(idem_key).execute(&mut *tx).await?;
            }
            Progress::Done(ended) | Progress::Waits { last: Some(ended), .. } => {
                // A message that a later one has superseded is not sent again.
                let sql = "SELECT state FROM outbox WHERE idem_key = $1";
                let state: Option<String> = query_scalar(sql).bind(idem_key).fetch_optional(&mut *tx).await?;
                let again = matches!(ended.outcome, DeliveryOutcome::Retry { .. });
                if !(again && state.as_deref() == Some("superseded")) {
                    let row = delivery::RowKey { incident, receiver, idem_key };
                    delivery::settle_row(tx, row, &ended.outcome, written.memory.as_deref(), ended.at)
                        .await?;
                }
            }
            Progress::Superseded { why, at } => {
                let sql = "UPDATE outbox SET state = 'superseded', done_at = $2, error = $3 WHERE idem_key = $1 \
                           AND state IN ('pending', 'attempting', 'ambiguous')";
                let update = query(sql).bind(idem_key).bind(text_of(*at)).bind(*why);
                update.execute(&mut *tx).await?;
            }
            // Claimed while the store refused; it was sent from memory, or not at all.
            Progress::Waits { last: None, .. } => {
                let sql = "UPDATE outbox SET state = 'pending' WHERE idem_key = $1 AND state = 'attempting'";
                query(sql).bind(idem_key).execute(&mut *tx).await?;
            }
        }
        put_story(tx, written).await?;
    }
    Ok(())
}

/// Writes the creation time of a message, its number of attempts (of which the row has counted the
/// last one at most), its call number, and the text that was sent.
async fn put_story(tx: &mut Connection, written: &Written) -> Result<()> {
    let sql =
        "UPDATE outbox SET created_ms = $2, attempts = $3, ring = COALESCE($4, ring) WHERE idem_key = $1";
    query(sql)
        .bind(&written.idem_key)
        .bind(written.created_at.0)
        .bind(i64::from(written.attempts))
        .bind(written.ring.map(|ring| i64::from(ring.number)))
        .execute(&mut *tx)
        .await?;
    if let Some(words) = &written.words {
        let sql = "UPDATE outbox SET notification = $2 WHERE idem_key = $1";
        let update = query(sql).bind(&written.idem_key).bind(json("notification", words)?);
        update.execute(&mut *tx).await?;
    }
    if written.waits_unsuppressed {
        // The wait counts from the creation, and not from the record.
        let sql = "UPDATE incidents SET unsuppressed_ms = $2 WHERE id = $1 AND unsuppressed_ms > $2";
        query(sql).bind(&written.lane.1).bind(written.created_at.0).execute(tx).await?;
    }
    Ok(())
}

//! Stores the progress of report schedules, and due reports.
//!
//! A report, its messages and the progress of its schedule are one transaction. So after a kill at
//! any moment, the report is either not created yet or waits in the outbox, and is never created
//! twice.

use std::collections::BTreeMap;

use stepwatch_kit::crash;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::Notification;

use super::commit::insert_posts;
use super::error::Result;
use super::handle::Store;
use super::rows::portions;
use super::sql::{Connection, query, query_as};
use super::writer::Who;

/// The time ahead of now from which the progress of a schedule is ignored, because the clock was
/// wrong.
const AHEAD_MAX: Span = Span::secs(86_400);

/// A report that is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DueReport<'a> {
    pub(crate) id: &'a str,
    pub(crate) schedule: &'a str,
    /// When it was due.
    pub(crate) due: Ts,
    /// The report as JSON.
    pub(crate) report: &'a str,
    pub(crate) posts: &'a [Notification],
}

impl Store {
    /// The progress of each of these schedules; a new one begins now, and schedules that are not
    /// named are deleted.
    pub(crate) async fn report_schedules(&self, names: &[&str], now: Ts) -> Result<BTreeMap<String, Ts>> {
        let sql = "SELECT name, settled_ms FROM report_schedules";
        let known: Vec<(String, i64)> = query_as(sql).fetch_all(&*self.reader()?).await?;
        let mut known: BTreeMap<String, Ts> =
            known.into_iter().map(|(name, settled)| (name, Ts(settled))).collect();
        let is_good = |name: &str, settled: Ts| names.contains(&name) && settled - now <= AHEAD_MAX;
        let gone: Vec<String> =
            known.iter().filter(|(name, at)| !is_good(name, **at)).map(|(name, _)| name.clone()).collect();
        known.retain(|name, settled| is_good(name, *settled));
        let fresh: Vec<&str> = names.iter().copied().filter(|name| !known.contains_key(*name)).collect();
        if !gone.is_empty() || !fresh.is_empty() {
            self.write(Who::InTurn, async |tx| {
                for name in &gone {
                    let sql = "DELETE FROM report_schedules WHERE name = $1";
                    query(sql).bind(name).execute(&mut *tx).await?;
                }
                for name in &fresh {
                    settle(tx, name, now).await?;
                }
                Ok(())
            })
            .await?;
        }
        known.extend(fresh.into_iter().map(|name| (name.to_owned(), now)));
        Ok(known)
    }

    /// Stores a report and its messages, unless the report of this day is stored.
    pub(crate) async fn put_report(&self, due: DueReport<'_>, at: Ts) -> Result<()> {
        self.write(Who::InTurn, async |tx| {
            let sql =
                "INSERT INTO reports (id, report, made_ms) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING";
            let insert = query(sql).bind(due.id).bind(due.report).bind(at.0);
            if insert.execute(&mut *tx).await?.rows_affected() > 0 {
                let posts: Vec<&Notification> = due.posts.iter().collect();
                for some in portions(&posts) {
                    insert_posts(tx, some, at).await?;
                }
            }
            settle(tx, due.schedule, due.due).await?;
            crash::point("store.before_commit");
            Ok(())
        })
        .await?;
        crash::point("store.after_commit");
        self.post();
        Ok(())
    }
}

async fn settle(tx: &mut Connection, schedule: &str, at: Ts) -> Result<()> {
    let sql = "INSERT INTO report_schedules (name, settled_ms) VALUES ($1, $2) \
               ON CONFLICT (name) DO UPDATE SET settled_ms = excluded.settled_ms";
    query(sql).bind(schedule).bind(at.0).execute(tx).await?;
    Ok(())
}

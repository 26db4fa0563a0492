//! The right to write to PostgreSQL, which one replica has at a time.
//!
//! The right is a row of `leases`. A replica takes it over once it has expired, and thereby raises
//! its epoch. The first statement of every commit updates the row under the epoch of the writer:
//! this renews the lease, waits for a take-over that is under way, and changes nothing once another
//! replica has taken over. So a process that was stopped for an hour and continues can commit
//! nothing. Messages are not in the database, so their senders ask [`Lease::holds`] right before
//! they send. It compares a clock of this machine that also runs while the process is stopped.
//!
//! The row also counts the commits under the lease. If the count is not the one that this process
//! knows, the lease counts as lost, because the database is not what this process remembers. Either
//! a commit whose answer was lost has happened, and would be repeated, or a crash or a failover of
//! the database has taken commits back. The next leader continues with what the database has.
//!
//! When a lease expires is decided by the clock of the database alone.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use super::error::{Result, StoreError};
use super::sql::{Connection, Pool, query, query_as, query_scalar};

/// How long a lease lasts without a renewal. A dead replica is replaced that much later.
pub(crate) const LEASE: Duration = Duration::from_secs(6);
/// How long before the end of its lease a replica stops to send.
const MARGIN: Duration = Duration::from_secs(2);

/// The name of the only lease. Leases on shards would have other names.
const NAME: &str = "alerter";

/// The clock of the database in Unix milliseconds.
macro_rules! now_ms {
    () => {
        "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"
    };
}
pub(super) use now_ms;

/// A lease that this process took.
#[derive(Debug)]
pub(crate) struct Lease {
    holder: String,
    epoch: i64,
    /// Until when this process may send, in milliseconds of [`boot_ms`].
    until: AtomicI64,
    commits: Mutex<Commits>,
    lost: AtomicBool,
    /// Notified when it is lost.
    losing: Notify,
}

/// The commits under a lease.
#[derive(Debug, Default)]
struct Commits {
    /// The number of those that succeeded.
    known: i64,
    /// Whether the caller of the last one gave up before its end. Nobody repeats it, so it may have
    /// happened or not.
    abandoned: bool,
}

impl Commits {
    /// Whether the database has the commits that this process knows of.
    fn agree(&mut self, found: i64) -> bool {
        let agree = found == self.known || self.abandoned && found == self.known + 1;
        if agree {
            *self = Self { known: found, abandoned: false };
        }
        agree
    }
}

/// A renewal, which counts once its transaction is committed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Renewal {
    until: i64,
    /// The number of this commit.
    number: i64,
}

/// The replica that has the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leader {
    pub holder: String,
    pub address: String,
    pub epoch: i64,
    /// Whether its lease has expired.
    pub expired: bool,
}

/// Milliseconds since the machine started. This clock also runs while the machine is suspended.
fn boot_ms() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

/// Until when a process may send that asked for the lease at `asked`.
fn until(asked: i64) -> i64 {
    asked + LEASE.saturating_sub(MARGIN).as_millis() as i64
}

impl Lease {
    /// Takes the lease, if nobody has it or it has expired.
    pub(super) async fn take(pool: &Pool, holder: &str, address: &str) -> Result<Option<Self>> {
        let asked = boot_ms();
        let sql = concat!(
            "INSERT INTO leases (name, epoch, holder, address, commits, expires_ms) VALUES ($1, 1, $2, $3, 0, ",
            now_ms!(),
            " + $4) ON CONFLICT (name) DO UPDATE SET epoch = leases.epoch + 1, holder = excluded.holder, \
             address = excluded.address, commits = 0, expires_ms = excluded.expires_ms WHERE leases.expires_ms <= ",
            now_ms!(),
            " RETURNING epoch"
        );
        let taken = query_scalar(sql).bind(NAME).bind(holder).bind(address).bind(LEASE.as_millis() as i64);
        let epoch: Option<i64> = taken.fetch_optional(pool).await?;
        Ok(epoch.map(|epoch| Self {
            holder: holder.to_owned(),
            epoch,
            until: AtomicI64::new(until(asked)),
            commits: Mutex::default(),
            lost: AtomicBool::new(false),
            losing: Notify::new(),
        }))
    }

    /// Who has the lease.
    pub(super) async fn leader(pool: &Pool) -> Result<Option<Leader>> {
        let sql = concat!(
            "SELECT holder, address, epoch, expires_ms <= ",
            now_ms!(),
            " FROM leases WHERE name = $1"
        );
        let found: Option<(String, String, i64, bool)> =
            query_as(sql).bind(NAME).fetch_optional(pool).await?;
        Ok(found.map(|(holder, address, epoch, expired)| Leader { holder, address, epoch, expired }))
    }

    pub(crate) fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Whether this process may send: nobody can have taken over yet.
    pub(crate) fn holds(&self) -> bool {
        !self.lost.load(Ordering::Relaxed) && boot_ms() < self.until.load(Ordering::Relaxed)
    }

    /// Resolves once another replica has taken over.
    pub(crate) async fn lost(&self) {
        while !self.lost.load(Ordering::Relaxed) {
            let losing = self.losing.notified();
            if !self.lost.load(Ordering::Relaxed) {
                losing.await;
            }
        }
    }

    /// Must be the first statement of a transaction: fails if another replica has taken over.
    pub(super) async fn fence(&self, tx: &mut Connection) -> Result<Renewal> {
        if self.lost.load(Ordering::Relaxed) {
            return Err(StoreError::LeaseLost);
        }
        let asked = boot_ms();
        let sql = concat!(
            "UPDATE leases SET commits = commits + 1, expires_ms = ",
            now_ms!(),
            " + $4 WHERE name = $1 AND epoch = $2 AND holder = $3 RETURNING commits"
        );
        let update = query_scalar(sql).bind(NAME).bind(self.epoch).bind(&self.holder);
        let number: Option<i64> = update.bind(LEASE.as_millis() as i64).fetch_optional(&mut *tx).await?;
        let Some(number) = number else {
            self.lose();
            return Err(StoreError::LeaseLost);
        };
        let known = {
            let mut commits = self.commits();
            if commits.agree(number - 1) {
                return Ok(Renewal { until: until(asked), number });
            }
            commits.known
        };
        tracing::error!(
            known,
            found = number - 1,
            "the database has other commits than this replica knows: it lost some, or the answer to one"
        );
        // Nothing is sent from now on, and whoever leads next need not wait. If this fails, the
        // lease expires. The process ends at the notification, so that comes last.
        self.lost.store(true, Ordering::Relaxed);
        if self.give_up(&mut *tx).await.is_ok() {
            let _ = query("COMMIT").execute(tx).await;
        }
        self.lose();
        Err(StoreError::LeaseLost)
    }

    fn commits(&self) -> std::sync::MutexGuard<'_, Commits> {
        self.commits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
        self.losing.notify_waiters();
    }

    /// Must be called right before the commit of the transaction.
    pub(super) fn committing(&self) {
        self.commits().abandoned = true;
    }

    /// Must be called after the commit of the transaction. A failed one is repeated by its caller,
    /// so the next [`Self::fence`] must find that it has not happened.
    pub(super) fn committed(&self, renewal: Renewal, done: bool) {
        let mut commits = self.commits();
        commits.abandoned = false;
        if done {
            commits.known = renewal.number;
            self.until.fetch_max(renewal.until, Ordering::Relaxed);
        }
    }

    /// Gives the lease up, so that another replica takes over at once.
    pub(super) async fn release(&self, connection: &mut Connection) -> Result<()> {
        self.lose();
        self.give_up(connection).await
    }

    async fn give_up(&self, connection: &mut Connection) -> Result<()> {
        let sql = "UPDATE leases SET expires_ms = 0 WHERE name = $1 AND epoch = $2 AND holder = $3";
        query(sql).bind(NAME).bind(self.epoch).bind(&self.holder).execute(connection).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_that_the_database_lost_or_made_without_an_answer_end_the_lease() {
        let commits = |known, abandoned| Commits { known, abandoned };
        for (mut commits, found, agree) in [
            (commits(7, false), 7, true),
            // The answer to a commit was lost, and its caller repeats it.
            (commits(7, false), 8, false),
            // A standby of the database was promoted that lacks a commit.
            (commits(7, false), 6, false),
            (commits(7, true), 7, true),
            (commits(7, true), 8, true),
            (commits(7, true), 9, false),
            (commits(7, true), 6, false),
        ] {
            assert_eq!(commits.agree(found), agree, "{commits:?} {found}");
            assert!(!agree || (commits.known, commits.abandoned) == (found, false));
        }
    }
}

//! The single path for writes: a whole transaction on the one writing connection.
//!
//! The state after a failed transaction depends on the failure and its time: a full disk may have
//! ended the transaction, or left it open, so that every later "commit" is part of one that never
//! ends. So a connection is only kept after a successful transaction. After anything else,
//! including a cancelled caller, it is closed, which rolls back, and the next transaction opens
//! another.
//!
//! Every heartbeat must be proven, and on SQLite also the first transaction after a failure:
//! another connection must read what it wrote. The store refuses writes ([`Store::refusal`]) until
//! then, while a transaction does not end, and while the messages to send cannot be read.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::busy::Busy;
use super::error::{Result, StoreError};
use super::handle::Store;
use super::identity::Identity;
use super::sql::{Connection, query, query_scalar};
use super::writer::{Durability, FAIL_OPEN_AFTER, Open, Refusal, Who, Writer};
use crate::errors::innermost;

/// The error of a store whose disk hangs.
const STALLED: &str = "a transaction has been under way for more than 10 s";

/// A transaction in progress. If it takes too long and is then given up, it counts as failed.
struct Began<'a>(&'a Store);

impl<'a> Began<'a> {
    fn now(store: &'a Store) -> Self {
        let mut began = store.inner.transaction_began.lock().unwrap_or_else(PoisonError::into_inner);
        *began = Some(Instant::now());
        drop(began);
        Self(store)
    }

    fn ended(self) {
        *self.0.inner.transaction_began.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for Began<'_> {
    fn drop(&mut self) {
        let stalled = self.0.stalled_for();
        let began = self.0.inner.transaction_began.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(since), Some(_)) = (began, stalled) {
            let mut refusal = self.0.inner.refusal.lock().unwrap_or_else(PoisonError::into_inner);
            let (why, in_public) = (STALLED.into(), STALLED.into());
            let seen = Instant::now();
            refusal.get_or_insert(Refusal { why, in_public, since, seen, engine: false });
        }
    }
}

impl Store {
    /// The reason why the store refuses writes: from a failed transaction until the next success,
    /// or while one does not end. `None` if it does not.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refused(|refusal| &refusal.why)
    }

    /// The reason without the path of the database, for callers that must not see it.
    pub(crate) fn refusal_in_public(&self) -> Option<String> {
        self.refused(|refusal| &refusal.in_public)
    }

    fn refused(&self, words: impl Fn(&Refusal) -> &String) -> Option<String> {
        let of = |slot: &Mutex<Option<Refusal>>| {
            slot.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|refusal| words(refusal).clone())
        };
        let failed = of(&self.inner.refusal).or_else(|| of(&self.inner.unreadable));
        failed.or_else(|| self.stalled_for().map(|_| STALLED.to_owned()))
    }

    /// Checks that the file is in its place, and starts the rest of [`Self::look`] on another task,
    /// because a hanging disk must not block the caller.
    pub(crate) fn look_soon(&self) {
        if let Err(err) = self.files_in_place(None) {
            return self.note_missing(&err);
        }
        if !self.inner.looking.swap(true, Ordering::Relaxed) {
            let store = self.clone();
            tokio::spawn(async move {
                store.look().await;
                store.inner.looking.store(false, Ordering::Relaxed);
            });
        }
    }

    /// Checks that the file is still in its place, because nothing else does without writes. If it
    /// is not, the store refuses writes from now on.
    pub(super) async fn look(&self) {
        let looked = if let Ok(mut writer) = self.inner.writer.try_lock() {
            // Writers wait during this check, so it counts as a transaction that does not end.
            let began = Began::now(self);
            let mut looked = self.in_place(Some(writer.kept.is_some())).await;
            if let (Ok(()), Some(Connection::Sqlite(connection)), Some(identity)) =
                (&looked, writer.kept(), &self.inner.identity)
            {
                looked = identity.contents.check(connection, &self.inner.path).await;
            }
            began.ended();
            looked
        } else {
            // A transaction is in progress, which made its check when it began.
            self.in_place(None).await
        };
        if let Err(err) = looked {
            self.note_missing(&err);
        }
    }

    fn note_missing(&self, err: &StoreError) {
        if self.refusal().is_none() {
            tracing::error!(%err, "the database is not in its place: nothing is recorded until it is");
        }
        self.note_failure(Who::Prompt, err);
    }

    /// How long the store has refused writes.
    pub(crate) fn refused_for(&self) -> Option<Duration> {
        let of = |slot: &Mutex<Option<Refusal>>| {
            let refusal = slot.lock().unwrap_or_else(PoisonError::into_inner);
            refusal.as_ref().map(|refusal| refusal.since.elapsed())
        };
        of(&self.inner.refusal).max(of(&self.inner.unreadable)).max(self.stalled_for())
    }

    /// Notes the result of reading the messages to send. While they are unreadable, the engine
    /// cannot write: a page would be recorded and reach nobody.
    pub(crate) fn note_read(&self, failed: Option<&StoreError>) {
        let mut unreadable = self.inner.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        *unreadable = failed.map(|err| {
            let since = unreadable.as_ref().map_or_else(Instant::now, |refusal| refusal.since);
            let (why, in_public) = (innermost(err), err.in_public());
            let says = |why: String| format!("it cannot be read: {why}");
            let seen = Instant::now();
            Refusal { why: says(why), in_public: says(in_public), since, seen, engine: false }
        });
    }

    /// Whether SQLite can be used without a crash of this process. Once it cannot, it never can
    /// again.
    pub(super) fn usable(&self) -> Result<()> {
        let Some(identity) = &self.inner.identity else { return Ok(()) };
        identity.index.check_length().inspect_err(|err| self.abandon(err))
    }

    /// Whether reading cannot crash this process.
    pub(super) fn may_read(&self) -> Result<()> {
        let usable = self.usable();
        if usable.is_ok() {
            return usable;
        }
        let why = self.inner.identity.as_ref().map_or(Ok(()), Identity::check).and(usable);
        why.inspect_err(|err| self.note_failure(Who::Prompt, err))
    }

    /// Whether a transaction does not end.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled_for().is_some()
    }

    /// How long the present transaction has taken, if that is too long: a disk may hang instead of
    /// failing.
    fn stalled_for(&self) -> Option<Duration> {
        let begun = *self.inner.transaction_began.lock().unwrap_or_else(PoisonError::into_inner);
        begun.map(|begun| begun.elapsed()).filter(|time| *time >= FAIL_OPEN_AFTER)
    }

    /// Runs `work` in one transaction. If this returns a value, it is committed; on an error,
    /// nothing readable is.
    pub(super) async fn write<T>(
        &self,
        who: Who,
        work: impl AsyncFnOnce(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let _first = match who {
            Who::InTurn => Some(self.inner.line.lock().await),
            _ => None,
        };
        let mut writer = self.inner.writer.lock().await;
        let _busy = Busy::now();
        let (began, since) = (Began::now(self), Instant::now());
        let done = self.transaction(&mut writer, who, work).await;
        began.ended();
        match &done {
            Ok(_) => self.note_success(who, since),
            Err(err) => self.note_failure(who, err),
        }
        done
    }

    async fn transaction<T>(
        &self,
        writer: &mut Writer,
        who: Who,
        work: impl AsyncFnOnce(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        self.in_place(Some(writer.kept.is_some())).await?;
        if matches!(who, Who::Engine(_)) {
            self.readable()?;
        }
        let mut open = match writer.kept.take() {
            Some(open) => open,
            None => Open::new(&writer.options).await?,
        };
        let done = self.whole(&mut open, who, work).await;
        if done.is_ok() {
            writer.kept = Some(open);
        } else if self.usable().is_err() {
            // Closing the connection would use SQLite.
            std::mem::forget(open);
        }
        done
    }

    async fn whole<T>(
        &self,
        open: &mut Open,
        who: Who,
        work: impl AsyncFnOnce(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let durability = if let Who::Engine(durability) = who { durability } else { Durability::Power };
        open.begin(durability).await?;
        let (tx, identity) = (&mut open.connection, self.inner.identity.as_ref());
        let renewed = match &self.inner.lease {
            Some(lease) => Some((lease, lease.fence(&mut *tx).await?)),
            None => None,
        };
        if let (Connection::Sqlite(connection), Some(identity)) = (&mut *tx, identity) {
            identity.contents.check(connection, &self.inner.path).await?;
        }
        let value = work(&mut *tx).await?;
        // A file may have been replaced while it failed; a server of PostgreSQL was not.
        let proves = who == Who::Heart || identity.is_some() && self.refusal().is_some();
        let counts = durability == Durability::Power && identity.is_some_and(Identity::wants_count);
        let proof = if proves || counts { Some(prove(tx).await?) } else { None };
        if let Some((lease, _)) = renewed {
            lease.committing();
        }
        let committed = query("COMMIT").execute(&mut *tx).await;
        if let Some((lease, renewal)) = renewed {
            lease.committed(renewal, committed.is_ok());
        }
        committed?;
        if let (Some(number), Some(identity)) = (proof, identity) {
            identity.contents.committed(number);
        }
        if proves && proof != self.proof().await? {
            return Err(StoreError::Unseen { path: self.inner.path.clone() });
        }
        if let (Some(number), Some(identity)) = (proof.filter(|_| counts), identity) {
            identity.count(number).await;
        }
        Ok(value)
    }

    /// Checks that the files are in their place. `open` is whether the writer has its connection;
    /// `None` if that is unknown. The check reads files on another thread, so that a hanging disk
    /// delays only this transaction.
    async fn in_place(&self, open: Option<bool>) -> Result<()> {
        let Some(identity) = &self.inner.identity else { return Ok(()) };
        let store = self.clone();
        let looked = tokio::task::spawn_blocking(move || store.files_in_place(open)).await;
        looked.map_err(|err| StoreError::Io {
            action: "look at",
            path: self.inner.path.clone(),
            source: io::Error::other(err),
        })??;
        match open {
            Some(_) => identity.contents.check_main(&self.inner.path).await,
            None => Ok(()),
        }
    }

    fn files_in_place(&self, open: Option<bool>) -> Result<()> {
        let Some(identity) = &self.inner.identity else { return Ok(()) };
        let usable = self.usable();
        identity.check().and(usable)?;
        let Some(open) = open else { return Ok(()) };
        if open {
            identity.index.check().inspect_err(|err| self.abandon(err))?;
            return identity.check_log();
        }
        identity.forget_log();
        if self.inner.readers.size() == 0 && self.inner.finders.size() == 0 {
            identity.index.forget();
        }
        Ok(())
    }

    fn readable(&self) -> Result<()> {
        let unreadable = self.inner.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        match unreadable.as_ref() {
            None => Ok(()),
            Some(refusal) => {
                Err(StoreError::Unreadable { path: self.inner.path.clone(), why: refusal.in_public.clone() })
            }
        }
    }

    fn note_failure(&self, who: Who, err: &StoreError) {
        let engine = matches!(who, Who::Engine(_));
        if !engine && !err.is_refusal() {
            return;
        }
        let mut refusal = self.inner.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = refusal.as_ref().is_some_and(|refusal| refusal.engine);
        let seen = Instant::now();
        let since = refusal.as_ref().map_or(seen, |refusal| refusal.since);
        let (why, in_public) = (innermost(err), err.in_public());
        *refusal = Some(Refusal { why, in_public, since, seen, engine: engine || waits });
    }

    /// Notes a success. `began` is the start of the transaction, which checked the files then and
    /// proves nothing about later changes.
    fn note_success(&self, who: Who, began: Instant) {
        let mut refusal = self.inner.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = matches!(who, Who::Engine(_));
        refusal.take_if(|refusal| refusal.seen <= began && (engine || !refusal.engine));
    }

    /// The last number of [`prove`], as other connections read it.
    async fn proof(&self) -> Result<Option<i64>> {
        let sql = "SELECT CAST(value AS BIGINT) FROM meta WHERE key = 'proof'";
        Ok(query_scalar(sql).fetch_optional(&*self.finder()?).await?)
    }
}

/// Writes a number that was never written before, as a proof.
async fn prove(tx: &mut Connection) -> Result<i64> {
    let sql = "INSERT INTO meta (key, value) VALUES ('proof', '1') \
               ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(meta.value AS BIGINT) + 1 AS TEXT) \
               RETURNING CAST(value AS BIGINT)";
    Ok(query_scalar(sql).fetch_one(tx).await?)
}

//! Pages that are sent before they can be recorded: the store refuses writes, but people must be
//! woken.
//!
//! The runtime passes such a page here when the store has refused for [`FAIL_OPEN_AFTER`]. The
//! outbox sends it from memory, in the order of its lane and under the key of its later row. The
//! commit that records it also records its outcome, so that it is not sent again: sent, in flight
//! (as if claimed), or still to be sent. A page that a crash loses here was never recorded: it is
//! decided again from the streams, and may call once more.

mod written;

use std::sync::PoisonError;
use std::time::Duration;

use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::message::Message;

pub(super) use self::written::put_written;

use super::delivery::{self, heard};
use super::error::Result;
use super::handle::Store;
use super::held::{Held, Progress, Unrecorded, Written};
use super::outcome::DeliveryOutcome;
use super::rings::{Means, begun, rings};
use super::sql::{query_as, query_scalar};
use super::writer::{FAIL_OPEN_AFTER, Who};
use crate::notify::Ring;

/// A message from memory that is being sent.
#[derive(Debug)]
pub(crate) struct Begun {
    pub held: Held,
    /// The notifier's memory of the lane.
    pub memory: Option<String>,
    /// A text that replaces the stored one, if the incident is already over.
    pub words: Option<Message>,
}

/// The time limit for reading the stored state of the lane of a page from memory.
const READ_MAX: Duration = Duration::from_secs(2);

impl Store {
    fn unrecorded<T>(&self, act: impl FnOnce(&mut Unrecorded) -> T) -> T {
        act(&mut self.inner.unrecorded.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the store has refused writes for long.
    pub(crate) fn refuses_long(&self) -> bool {
        self.refused_for().is_some_and(|time| time >= FAIL_OPEN_AFTER)
    }

    /// Whether the store has refused for so long that pages are sent from memory. On PostgreSQL
    /// none is: another replica may reach the database and send it too.
    pub(crate) fn fails_open(&self) -> bool {
        self.inner.lease.is_none() && self.refuses_long()
    }

    /// Resolves once another replica has taken over; never on SQLite.
    pub(crate) async fn superseded(&self) {
        match &self.inner.lease {
            Some(lease) => lease.lost().await,
            None => core::future::pending().await,
        }
    }

    /// The number of the lease on PostgreSQL, which each take-over raises.
    pub(crate) fn epoch(&self) -> Option<i64> {
        self.inner.lease.as_ref().map(|lease| lease.epoch())
    }

    /// Renews the lease, if there is one.
    pub(crate) async fn renew(&self) -> Result<()> {
        if self.inner.lease.is_some() {
            self.write(Who::Prompt, async |_| Ok(())).await?;
        }
        Ok(())
    }

    /// What is sent while the store refuses writes, for the log.
    pub(crate) fn sends_while_it_refuses(&self) -> &'static str {
        match self.inner.lease {
            None => "nothing new is sent for 10 s, and then only pages, from memory",
            Some(_) => "nothing new is sent until it takes commits, here or at another replica",
        }
    }

    /// Holds a message without a row, to be sent from memory; false if there are too many.
    pub(crate) fn hold(&self, n: Notification, created_at: Ts) -> bool {
        let held = self.unrecorded(|all| all.hold(Held::new(n, created_at)));
        self.post();
        held
    }

    /// Whether a message of this lane was sent, or will be, without a record.
    pub(crate) fn holds(&self, receiver: &str, incident: &str) -> bool {
        self.unrecorded(|all| all.lanes.contains_key(&(receiver.to_owned(), incident.to_owned())))
    }

    /// Holds the pages of a lane that cannot be claimed.
    pub(crate) async fn hold_lane(&self, incident: &str, receiver: &str) -> Result<()> {
        for held in self.waiting_pages(incident, receiver).await? {
            self.unrecorded(|all| all.hold(held));
        }
        self.post();
        Ok(())
    }

    /// Holds the outcome at `at` of a message whose row is claimed.
    pub(crate) fn hold_outcome(
        &self,
        claim: &delivery::Claim,
        outcome: &DeliveryOutcome,
        memory: Option<&str>,
        at: Ts,
    ) -> bool {
        let n = &claim.notification;
        let held = Held::recorded(n.clone(), claim.created_at, claim.ambiguous, claim.attempts, claim.ring);
        self.unrecorded(|all| {
            let held = Held { progress: Progress::Sending, ..held };
            let taken = all.hold(held);
            all.end(n, outcome.clone(), memory.map(str::to_owned), at);
            taken
        })
    }

    pub(crate) fn unrecorded_due(&self, now: Ts) -> (Vec<(String, String)>, Option<Ts>) {
        self.unrecorded(|all| all.due(now))
    }

    /// Takes the next message of a lane, with the notifier's memory. Nobody is called for an
    /// incident that is answered or over by now.
    pub(crate) async fn begin_unrecorded(
        &self,
        lane: &(String, String),
        means: Means,
        now: Ts,
    ) -> Option<Begun> {
        let mut words = None;
        if let Some(begun) = self.unrecorded(|all| all.ends(lane)) {
            // If this is unreadable, a message may have arrived; an unnecessary resolution is
            // harmless.
            let heard = begun || soon(self.may_have_heard(&lane.1, &lane.0)).await.unwrap_or(true);
            words = self.unrecorded(|all| all.pass_over(lane, means, heard, now));
        }
        let (held, memory) = self.unrecorded(|all| all.begin(lane, now))?;
        let memory = match memory {
            // An unreadable memory counts as unknown.
            None => soon(self.memory_of(&lane.1, &lane.0)).await.flatten(),
            known => known,
        };
        Some(Begun { held, memory, words })
    }

    /// Replaces the text of a held message.
    pub(crate) fn reword_unrecorded(&self, n: &Notification) {
        self.unrecorded(|all| all.reword(n));
    }

    /// The call number of a message that was begun, and the calls of its lane that may not have
    /// arrived.
    pub(crate) async fn number_unrecorded(&self, held: &Held) -> (Option<Ring>, Vec<Ring>) {
        let n = &held.notification;
        // Unreadable rows count as unknown. The number is then that of a first call, or the next
        // one after those assigned since the start.
        let first = n.calls().then_some(Ring { number: 1, page: n.page });
        let had = held.ring.map(|ring| ring.number);
        let (of_rows, mut unsure) = soon(self.rings_of_rows(n, had)).await.unwrap_or((first, Vec::new()));
        let (ring, of_held) = self.unrecorded(|all| all.number(n, of_rows));
        unsure.extend(of_held.into_iter().filter(|ring| !unsure.contains(ring)).collect::<Vec<_>>());
        (ring, unsure)
    }

    /// Notes the call number of a row, so that a message without readable rows gets another one.
    pub(super) fn note_ring(&self, incident: &str, ring: Ring) {
        self.unrecorded(|all| all.note_ring(incident, ring));
    }

    /// Notes the outcome at `at` of a message that was begun.
    pub(crate) fn end_unrecorded(
        &self,
        n: &Notification,
        outcome: &DeliveryOutcome,
        memory: Option<&str>,
        at: Ts,
    ) {
        self.unrecorded(|all| all.end(n, outcome.clone(), memory.map(str::to_owned), at));
    }

    /// The number of messages that were dropped for lack of room.
    pub(crate) fn unrecorded_left_out(&self) -> u64 {
        self.unrecorded(|all| all.left_out)
    }

    pub(super) fn begin_writing(&self, posts: &[&Notification]) -> Vec<Written> {
        self.unrecorded(|all| {
            if all.lanes.is_empty() {
                return Vec::new();
            }
            let keys: std::collections::BTreeSet<&str> = posts.iter().map(|n| n.idem_key.as_str()).collect();
            all.begin_writing(|held| !held.recorded && keys.contains(held.notification.idem_key.as_str()))
        })
    }

    /// A slow commit has finally ended: messages that were held in the meantime have rows now.
    pub(super) fn now_recorded(&self, posts: &[&Notification]) {
        self.unrecorded(|all| {
            if all.lanes.is_empty() {
                return;
            }
            for n in posts {
                let lane = all.lanes.get_mut(&(n.receiver.clone(), n.incident.clone()));
                if let Some(held) = lane.and_then(|lane| lane.queue.get_mut(&n.seq)) {
                    held.recorded = true;
                }
            }
        });
    }

    pub(super) fn end_writing(&self, all: &[Written], kept: bool) {
        if !all.is_empty() {
            self.unrecorded(|held| held.end_writing(all, kept));
        }
    }

    /// The calls that wait in a lane, of an incident that is unanswered and not suppressed.
    async fn waiting_pages(&self, incident: &str, receiver: &str) -> Result<Vec<Held>> {
        let sql = "SELECT o.notification, o.state, o.attempts, o.created_ms, o.ring FROM outbox o \
                   JOIN incidents i ON i.id = o.incident WHERE o.incident = $1 AND o.receiver = $2 AND o.page = 1 \
                   AND o.action = 'trigger' AND o.state IN ('pending', 'ambiguous') AND i.state = 'open' \
                   AND (i.unsuppressed_ms IS NOT NULL OR o.despite_suppression = 1) ORDER BY o.seq";
        let rows: Vec<(String, String, i64, i64, Option<i64>)> =
            query_as(sql).bind(incident).bind(receiver).fetch_all(&*self.reader()?).await?;
        let held = |(text, state, attempts, created, ring): (String, String, i64, i64, Option<i64>)| {
            let notification: Notification = serde_json::from_str(&text).ok()?;
            let (ambiguous, attempts) = (state == "ambiguous", attempts as u32);
            let ring = ring.map(|number| Ring { number: number as u32, page: notification.page });
            Some(Held::recorded(notification, Ts(created), ambiguous, attempts, ring))
        };
        Ok(rows.into_iter().filter_map(held).collect())
    }

    /// The result of `rings` for committed rows.
    async fn rings_of_rows(&self, n: &Notification, had: Option<u32>) -> Result<(Option<Ring>, Vec<Ring>)> {
        let reader = self.reader()?;
        rings((&*reader).into(), n, had).await
    }

    /// Whether the receiver has, or may have, a message of the incident, by committed rows.
    async fn may_have_heard(&self, incident: &str, receiver: &str) -> Result<bool> {
        let reader = self.reader()?;
        Ok(heard((&*reader).into(), incident, receiver).await?
            || begun((&*reader).into(), incident, receiver).await?)
    }

    /// The notifier's memory of a lane.
    async fn memory_of(&self, incident: &str, receiver: &str) -> Result<Option<String>> {
        let sql = "SELECT memory FROM lanes WHERE incident = $1 AND receiver = $2";
        Ok(query_scalar(sql).bind(incident).bind(receiver).fetch_optional(&*self.finder()?).await?)
    }

    /// Records the outcomes of rows from while the store refused.
    pub(crate) async fn reconcile(&self) -> Result<()> {
        let all = self
            .unrecorded(|all| all.begin_writing(|held| held.recorded && held.progress != Progress::Sending));
        if all.is_empty() {
            return Ok(());
        }
        let done = self.write(Who::InTurn, async |tx| put_written(tx, &all).await).await;
        self.end_writing(&all, done.is_ok());
        done
    }
}

/// The result of a read within a time limit, because a page must not wait for a hanging disk.
async fn soon<T>(read: impl Future<Output = Result<T>>) -> Option<T> {
    tokio::time::timeout(READ_MAX, read).await.ok()?.ok()
}

/// Adds a note to a message that it has no record.
pub(crate) fn say_not_recorded(message: &mut Message, since: Ts) {
    let why = format!("Not recorded: the store refuses writes since {since}.");
    message.summary = format!("{} {why}", message.summary).trim_start().into();
}

/// Whether a message wakes a person, or is the acknowledgement or resolution of one that does.
pub(crate) fn may_precede_its_record(n: &Notification) -> bool {
    n.page && matches!(n.action, Action::Trigger | Action::Ack | Action::Resolve)
}

#[cfg(test)]
mod tests {
    use stepwatch_respond::effect::Effect;
    use stepwatch_respond::incident::State;

    use super::*;
    use crate::outbox::tests::notification;
    use crate::store::Commit;
    use crate::store::tests::{incident, reopen};

    const ID: &str = "01J9ZC7Q3F8D2V4X6Y8Z0A2B4C";
    const MEANS: Means = Means { wakes: true, numbered: true };

    /// A reused key would call nobody, so no number is assigned twice, also if the row of a call is
    /// unreadable, before or after a restart.
    #[tokio::test]
    async fn a_call_while_no_row_can_be_read_has_a_number_of_its_own() {
        for restarted in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("alerter.db");
            let mut store = reopen(&path).await;
            let first = notification("pager", 1, Action::Trigger);
            let effects = vec![
                Effect::Incident(Box::new(incident(ID, State::Open))),
                Effect::Notify(Box::new(first.clone())),
            ];
            store.commit(&Commit { effects, ..Commit::default() }).await.unwrap();
            let claim = store.claim_by(ID, "pager", MEANS, Ts(1)).await.unwrap().unwrap();
            assert_eq!(claim.ring.map(|ring| ring.number), Some(1));
            store.settle(&first, &DeliveryOutcome::Delivered, None, Ts(1)).await.unwrap();
            if restarted {
                drop(store);
                store = reopen(&path).await;
                store.recover_attempts().await.unwrap();
            }
            store.inner.readers.close().await;
            store.inner.finders.close().await;
            // For the next level, another receiver, and the same receiver again.
            for (receiver, seq, number) in [("pager", 2, 2), ("twin", 1, 3), ("pager", 3, 4)] {
                let n = notification(receiver, seq, Action::Trigger);
                assert!(store.hold(n.clone(), Ts(2)));
                let lane = (receiver.to_owned(), ID.to_owned());
                let Begun { held, .. } = store.begin_unrecorded(&lane, MEANS, Ts(2)).await.unwrap();
                let (ring, _) = store.number_unrecorded(&held).await;
                assert_eq!(ring.map(|ring| ring.number), Some(number), "{receiver}, restarted: {restarted}");
                store.end_unrecorded(&n, &DeliveryOutcome::Delivered, None, Ts(3));
            }
        }
    }
}

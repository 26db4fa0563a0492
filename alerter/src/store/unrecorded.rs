//! Pages that are sent before they can be recorded: the store refuses, and somebody has to be woken
//! all the same.
//!
//! Whoever decides a page hands it in when the store has refused for [`FAIL_OPEN_AFTER`]; the
//! outbox sends it from here, in the order of its lane and under the key that its row will have.
//! The commit that records it at last records also what came of it, so that it is not sent again:
//! sent, on its way (as if it had been claimed), or still to be sent, which is the outbox's from
//! then on. What a crash takes from here was never recorded: it is decided anew from the streams,
//! and may ring once more.

mod written;

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Action, Notification};

pub(super) use self::written::put_written;
use super::delivery;
use super::outcome::DeliveryOutcome;
use super::{Result, Store, Who};
use crate::notify::Ring;

/// A refusal that lasts no longer only delays pages.
pub(crate) const FAIL_OPEN_AFTER: Duration = Duration::from_secs(10);

/// Messages that are held at once.
const MAX_HELD: usize = 10_000;

/// One message.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub notification: Notification,
    pub created_at: Ts,
    pub ambiguous: bool,
    /// As its row counts them.
    pub attempts: u32,
    /// Its number, from the first attempt on, if its receiver rings once a number.
    pub ring: Option<Ring>,
    progress: Progress,
    /// Its row is in the store.
    recorded: bool,
    /// A transaction that is under way writes it down: it is not begun meanwhile.
    writing: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Progress {
    /// To be sent from then on, and what came of the last attempt.
    Waits {
        next: Ts,
        last: Option<Ended>,
    },
    Sending,
    Done(Ended),
}

/// An attempt that is over.
#[derive(Debug, Clone, PartialEq)]
struct Ended {
    outcome: DeliveryOutcome,
    at: Ts,
}

#[derive(Debug, Default)]
struct Lane {
    /// By their place in it.
    queue: BTreeMap<u32, Held>,
    /// Of the notifier.
    memory: Option<String>,
}

/// By receiver and incident.
#[derive(Debug, Default)]
pub(super) struct Unrecorded {
    lanes: BTreeMap<(String, String), Lane>,
    /// The last number of a call, by incident and whether it is a page's: no row has it yet.
    rings: BTreeMap<(String, bool), u32>,
    left_out: u64,
}

/// What one transaction writes down of a message: as it was, whenever that transaction is.
#[derive(Debug)]
pub(super) struct Written {
    lane: (String, String),
    seq: u32,
    idem_key: String,
    created_at: Ts,
    attempts: u32,
    /// It is for somebody to be woken, of an incident that nothing hid when it was created.
    waits_loud: bool,
    ring: Option<Ring>,
    progress: Progress,
    memory: Option<String>,
}

impl Held {
    pub(crate) fn new(notification: Notification, created_at: Ts) -> Self {
        let progress = Progress::Waits { next: Ts(0), last: None };
        let (ambiguous, recorded, writing) = (false, false, false);
        Self { notification, created_at, ambiguous, attempts: 0, ring: None, progress, recorded, writing }
    }

    /// One whose row is in the store.
    pub(super) fn recorded(
        notification: Notification,
        created_at: Ts,
        ambiguous: bool,
        attempts: u32,
        ring: Option<Ring>,
    ) -> Self {
        Self { ambiguous, attempts, ring, recorded: true, ..Self::new(notification, created_at) }
    }
}

impl Unrecorded {
    fn hold(&mut self, held: Held) -> bool {
        let count: usize = self.lanes.values().map(|lane| lane.queue.len()).sum();
        if count >= MAX_HELD {
            self.left_out += 1;
            return false;
        }
        let n = &held.notification;
        let lane = self.lanes.entry((n.receiver.clone(), n.incident.clone())).or_default();
        lane.queue.entry(n.seq).or_insert(held);
        true
    }

    /// Lanes whose next message may be sent now, and when the next one may.
    fn due(&self, now: Ts) -> (Vec<(String, String)>, Option<Ts>) {
        let (mut due, mut later) = (Vec::new(), None::<Ts>);
        for (key, lane) in &self.lanes {
            match lane.head().filter(|head| !head.writing).map(|head| &head.progress) {
                Some(Progress::Waits { next, .. }) if *next <= now => due.push(key.clone()),
                Some(Progress::Waits { next, .. }) => later = Some(later.map_or(*next, |at| at.min(*next))),
                _ => {}
            }
        }
        (due, later)
    }

    fn begin(&mut self, key: &(String, String), now: Ts) -> Option<(Held, Option<String>)> {
        let lane = self.lanes.get_mut(key)?;
        let memory = lane.memory.clone();
        let seq = lane.head()?.notification.seq;
        let head = lane.queue.get_mut(&seq).filter(|head| !head.writing)?;
        if !matches!(head.progress, Progress::Waits { next, .. } if next <= now) {
            return None;
        }
        head.progress = Progress::Sending;
        Some((head.clone(), memory))
    }

    fn end(&mut self, n: &Notification, outcome: DeliveryOutcome, memory: Option<String>, at: Ts) {
        let Some(lane) = self.lanes.get_mut(&(n.receiver.clone(), n.incident.clone())) else { return };
        lane.memory = memory.or(lane.memory.take());
        let Some(held) = lane.queue.get_mut(&n.seq) else { return };
        held.attempts += u32::from(outcome.counts());
        held.progress = match outcome {
            DeliveryOutcome::Retry { next, ambiguous, .. } => {
                held.ambiguous = ambiguous;
                Progress::Waits { next, last: Some(Ended { outcome, at }) }
            }
            outcome => Progress::Done(Ended { outcome, at }),
        };
    }

    fn begin_writing(&mut self, wanted: impl Fn(&Held) -> bool) -> Vec<Written> {
        let mut all = Vec::new();
        for (key, lane) in &mut self.lanes {
            for (seq, held) in lane.queue.iter_mut().filter(|(_, held)| !held.writing && wanted(held)) {
                held.writing = true;
                let n = &held.notification;
                all.push(Written {
                    lane: key.clone(),
                    seq: *seq,
                    idem_key: n.idem_key.clone(),
                    created_at: held.created_at,
                    attempts: held.attempts,
                    waits_loud: n.action == Action::Trigger && !n.despite_quiet,
                    ring: held.ring,
                    progress: held.progress.clone(),
                    memory: lane.memory.clone(),
                });
            }
        }
        all
    }

    fn end_writing(&mut self, all: &[Written], kept: bool) {
        for written in all {
            let Some(lane) = self.lanes.get_mut(&written.lane) else { continue };
            let Some(held) = lane.queue.get_mut(&written.seq) else { continue };
            held.writing = false;
            if kept && written.progress == Progress::Sending {
                held.recorded = true;
            } else if kept {
                lane.queue.remove(&written.seq);
            }
        }
        self.lanes.retain(|_, lane| !lane.queue.is_empty());
        if self.lanes.is_empty() {
            // Rows have all of them by now.
            self.rings.clear();
        }
    }

    /// Gives a call its number: after that of every row and of every other call that is held. Also
    /// the calls of its lane of which it is not known that they arrived.
    fn number(&mut self, n: &Notification, of_rows: Option<Ring>) -> (Option<Ring>, Vec<Ring>) {
        let Some(lane) = self.lanes.get_mut(&(n.receiver.clone(), n.incident.clone())) else {
            return (of_rows, Vec::new());
        };
        let Some(held) = lane.queue.get_mut(&n.seq) else { return (of_rows, Vec::new()) };
        if held.ring.is_none()
            && let Some(ring) = of_rows
        {
            let last = self.rings.entry((n.incident.clone(), ring.page)).or_default();
            *last = (*last + 1).max(ring.number);
            held.ring = Some(Ring { number: *last, ..ring });
        }
        let ring = held.ring;
        let arrived = |held: &Held| matches!(&held.progress, Progress::Done(e) if e.outcome == DeliveryOutcome::Delivered);
        let others = lane.queue.values().filter(|other| other.notification.seq != n.seq && !arrived(other));
        (ring, others.filter_map(|other| other.ring).collect())
    }
}

impl Lane {
    /// The first that is not done.
    fn head(&self) -> Option<&Held> {
        self.queue.values().find(|held| !matches!(held.progress, Progress::Done(_)))
    }
}

impl Store {
    fn unrecorded<T>(&self, act: impl FnOnce(&mut Unrecorded) -> T) -> T {
        act(&mut self.inner.unrecorded.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the store has refused for so long that pages go out all the same.
    pub(crate) fn fails_open(&self) -> bool {
        self.refused_for().is_some_and(|time| time >= FAIL_OPEN_AFTER)
    }

    /// A message that no row tells of yet, to be sent all the same; false if there are too many.
    pub(crate) fn hold(&self, n: Notification, created_at: Ts) -> bool {
        let held = self.unrecorded(|all| all.hold(Held::new(n, created_at)));
        self.post();
        held
    }

    /// Whether something of this lane was sent, or is to be, without being recorded.
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

    /// What came, at `at`, of a message whose row says that it is being sent.
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

    /// The next message of a lane, from now on on its way, and what its notifier remembers of the
    /// lane.
    pub(crate) async fn begin_unrecorded(
        &self,
        lane: &(String, String),
        now: Ts,
    ) -> Option<(Held, Option<String>)> {
        let (held, memory) = self.unrecorded(|all| all.begin(lane, now))?;
        let memory = match memory {
            // What cannot be read is not known.
            None => self.memory_of(&lane.1, &lane.0).await.unwrap_or_default(),
            known => known,
        };
        Some((held, memory))
    }

    /// The number of a message that was begun, and the calls of its lane of which it is not known
    /// that they arrived.
    pub(crate) async fn number_unrecorded(&self, held: &Held) -> (Option<Ring>, Vec<Ring>) {
        let n = &held.notification;
        // What cannot be read is not known. The number that comes of it is that of a first call.
        let first = n.calls().then_some(Ring { number: 1, page: n.page });
        let had = held.ring.map(|ring| ring.number);
        let (of_rows, mut unsure) = self.rings_of_rows(n, had).await.unwrap_or((first, Vec::new()));
        let (ring, of_held) = self.unrecorded(|all| all.number(n, of_rows));
        unsure.extend(of_held.into_iter().filter(|ring| !unsure.contains(ring)).collect::<Vec<_>>());
        (ring, unsure)
    }

    /// What came, at `at`, of a message that was begun.
    pub(crate) fn end_unrecorded(
        &self,
        n: &Notification,
        outcome: &DeliveryOutcome,
        memory: Option<&str>,
        at: Ts,
    ) {
        self.unrecorded(|all| all.end(n, outcome.clone(), memory.map(str::to_owned), at));
    }

    /// Messages that found no room here.
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

    /// A commit that took long has ended at last: what was handed in meanwhile has its rows.
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

    /// The calls for a person that wait in a lane, of an incident that nobody has and nothing
    /// hides.
    async fn waiting_pages(&self, incident: &str, receiver: &str) -> Result<Vec<Held>> {
        let sql = "SELECT o.notification, o.state, o.attempts, o.created_ms, o.ring FROM outbox o \
                   JOIN incidents i ON i.id = o.incident WHERE o.incident = $1 AND o.receiver = $2 AND o.page = 1 \
                   AND o.action = 'trigger' AND o.state IN ('pending', 'ambiguous') AND i.state = 'open' \
                   AND (i.loud_ms IS NOT NULL OR o.despite_quiet = 1) ORDER BY o.seq";
        let rows: Vec<(String, String, i64, i64, Option<i64>)> =
            sqlx::query_as(sql).bind(incident).bind(receiver).fetch_all(&*self.reader()).await?;
        let held = |(text, state, attempts, created, ring): (String, String, i64, i64, Option<i64>)| {
            let notification: Notification = serde_json::from_str(&text).ok()?;
            let (ambiguous, attempts) = (state == "ambiguous", attempts as u32);
            let ring = ring.map(|number| Ring { number: number as u32, page: notification.page });
            Some(Held::recorded(notification, Ts(created), ambiguous, attempts, ring))
        };
        Ok(rows.into_iter().filter_map(held).collect())
    }

    /// As `rings`, of what is committed.
    async fn rings_of_rows(&self, n: &Notification, had: Option<u32>) -> Result<(Option<Ring>, Vec<Ring>)> {
        let mut connection = self.reader().acquire().await?;
        delivery::rings(&mut connection, n, had).await
    }

    /// What the notifier remembers of a lane.
    async fn memory_of(&self, incident: &str, receiver: &str) -> Result<Option<String>> {
        let sql = "SELECT memory FROM lanes WHERE incident = $1 AND receiver = $2";
        Ok(sqlx::query_scalar(sql).bind(incident).bind(receiver).fetch_optional(&*self.finder()).await?)
    }

    /// Writes down what became of rows while the store refused.
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

/// Whether a message is one that wakes somebody, or tells of the answer to or the end of what did.
pub(crate) fn may_precede_its_record(n: &Notification) -> bool {
    n.page && matches!(n.action, Action::Trigger | Action::Ack | Action::Resolve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::tests::notification;

    fn lane() -> (String, String) {
        let n = notification("pd", 1, Action::Trigger);
        (n.receiver, n.incident)
    }

    fn held(seqs: &[u32]) -> Unrecorded {
        let mut all = Unrecorded::default();
        for seq in seqs {
            assert!(all.hold(Held::new(notification("pd", *seq, Action::Trigger), Ts(0))));
        }
        all
    }

    fn retry(next: Ts) -> DeliveryOutcome {
        DeliveryOutcome::Retry { next, ambiguous: true, pause: None, error: "503".into() }
    }

    #[test]
    fn a_lane_goes_in_order_and_each_message_once() {
        let mut all = held(&[1, 2, 2]);
        let (first, _) = all.begin(&lane(), Ts(0)).unwrap();
        assert_eq!(first.notification.seq, 1);
        assert!(all.begin(&lane(), Ts(0)).is_none(), "one at a time");
        all.end(&first.notification, DeliveryOutcome::Delivered, Some("memory".into()), Ts(1));
        let (second, memory) = all.begin(&lane(), Ts(0)).unwrap();
        assert_eq!((second.notification.seq, memory.as_deref()), (2, Some("memory")));
        all.end(&second.notification, retry(Ts(5)), None, Ts(2));
        assert_eq!(all.due(Ts(4)), (vec![], Some(Ts(5))));
        let (again, _) = all.begin(&lane(), Ts(5)).unwrap();
        assert_eq!((again.ambiguous, again.attempts), (true, 1));
    }

    #[test]
    fn what_is_being_written_down_is_not_begun_and_what_was_is_not_sent() {
        let mut all = held(&[1, 2]);
        let written = all.begin_writing(|_| true);
        assert_eq!(written.len(), 2);
        assert!(all.begin(&lane(), Ts(0)).is_none());
        all.end_writing(&written, false);
        let (first, _) = all.begin(&lane(), Ts(0)).unwrap();
        // Recorded while it is on its way: what comes of it is written down after that.
        let written = all.begin_writing(|held| !held.recorded);
        all.end(&first.notification, DeliveryOutcome::Delivered, None, Ts(7));
        all.end_writing(&written, true);
        let rest = all.begin_writing(|held| held.recorded && held.progress != Progress::Sending);
        assert_eq!(rest.len(), 1);
        let ended = Ended { outcome: DeliveryOutcome::Delivered, at: Ts(7) };
        assert_eq!((rest[0].seq, &rest[0].progress), (1, &Progress::Done(ended)));
        all.end_writing(&rest, true);
        assert!(all.lanes.is_empty());
    }

    #[test]
    fn there_is_an_end_to_what_is_held() {
        let mut all = Unrecorded::default();
        for seq in 1..=MAX_HELD as u32 {
            all.hold(Held::new(notification("pd", seq, Action::Trigger), Ts(0)));
        }
        assert!(!all.hold(Held::new(notification("pd", 0, Action::Trigger), Ts(0))));
        assert_eq!(all.left_out, 1);
    }
}

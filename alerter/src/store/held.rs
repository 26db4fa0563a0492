//! Pages that are sent before they can be recorded, by lane: the messages, their outcomes, and what
//! must still be recorded.

use std::collections::BTreeMap;

use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::incident::State;
use stepwatch_respond::message::Message;

use super::outcome::DeliveryOutcome;
use super::plan::{LaneRow, plan, too_late};
use super::rings::Means;
use crate::notify::Ring;

/// The most messages that are held at once.
const MAX_HELD: usize = 10_000;

/// The most incidents whose last call number is kept; the oldest is dropped first.
const MAX_RINGS: usize = 20_000;

/// A held message.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub notification: Notification,
    pub created_at: Ts,
    pub ambiguous: bool,
    /// The number of attempts, as its row counts them.
    pub attempts: u32,
    /// The call number, from the first attempt on, if the receiver's calls are numbered.
    pub ring: Option<Ring>,
    pub(super) progress: Progress,
    /// Whether the message has a row in the store.
    pub(super) recorded: bool,
    /// Whether a transaction in progress records the message, during which it must not be sent.
    pub(super) writing: bool,
    /// Whether the text was rendered again, so that the row must show it.
    pub(super) reworded: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Progress {
    /// The message waits until `next`, after the outcome `last`.
    Waits {
        next: Ts,
        last: Option<Ended>,
    },
    Sending,
    Done(Ended),
    /// The message was superseded before it could be sent, for the reason `why`.
    Superseded {
        why: &'static str,
        at: Ts,
    },
}

/// A completed attempt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ended {
    pub(super) outcome: DeliveryOutcome,
    pub(super) at: Ts,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    /// The messages by their position in the lane.
    pub(super) queue: BTreeMap<u32, Held>,
    /// The notifier's memory of the lane.
    memory: Option<String>,
}

/// The held lanes, by receiver and incident.
#[derive(Debug, Default)]
pub(super) struct Unrecorded {
    pub(super) lanes: BTreeMap<(String, String), Lane>,
    /// The last call number by incident and class (page or not), of rows and of held messages. A
    /// reused number would call nobody, also while no row can be read.
    rings: BTreeMap<(String, bool), u32>,
    pub(super) left_out: u64,
}

/// The data of a message that one transaction records. The times are those of the message, not of
/// the transaction.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) lane: (String, String),
    pub(super) seq: u32,
    pub(super) idem_key: String,
    pub(super) created_at: Ts,
    pub(super) attempts: u32,
    /// Whether the message is a call that the suppression of its incident would have held, and none
    /// did when it was created.
    pub(super) waits_unsuppressed: bool,
    pub(super) ring: Option<Ring>,
    /// The text that was sent, if it differs from the decided one.
    pub(super) words: Option<Box<Notification>>,
    pub(super) progress: Progress,
    pub(super) memory: Option<String>,
}

impl Held {
    pub(crate) fn new(notification: Notification, created_at: Ts) -> Self {
        let progress = Progress::Waits { next: Ts(0), last: None };
        Self {
            notification,
            created_at,
            ambiguous: false,
            attempts: 0,
            ring: None,
            progress,
            recorded: false,
            writing: false,
            reworded: false,
        }
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// Whether the message is done.
    fn is_over(&self) -> bool {
        matches!(self.progress, Progress::Done(_) | Progress::Superseded { .. })
    }

    /// Whether the receiver may have the message.
    fn was_begun(&self) -> bool {
        self.ambiguous || self.ring.is_some() || matches!(self.progress, Progress::Done(_))
    }

    fn lane_row(&self) -> LaneRow {
        let notification = self.notification.clone();
        LaneRow { notification, ambiguous: self.ambiguous, failed: self.attempts > 0, held: false }
    }

    /// A held message with a row in the store.
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
    pub(super) fn hold(&mut self, held: Held) -> bool {
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

    /// The lanes whose next message may be sent now, and the time of the next one.
    pub(super) fn due(&self, now: Ts) -> (Vec<(String, String)>, Option<Ts>) {
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

    pub(super) fn begin(&mut self, key: &(String, String), now: Ts) -> Option<(Held, Option<String>)> {
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

    /// Whether an acknowledgement or a resolution waits in a lane behind another message; if so,
    /// whether the receiver may already have a message of the lane.
    pub(super) fn ends(&self, key: &(String, String)) -> Option<bool> {
        let lane = self.lanes.get(key)?;
        let ends = |held: &Held| matches!(held.notification.action, Action::Ack | Action::Resolve);
        let waits = lane.queue.values().filter(|held| !held.is_over()).skip(1).any(ends);
        let begun = lane.memory.is_some() || lane.queue.values().any(Held::was_begun);
        waits.then_some(begun)
    }

    /// Supersedes messages that are pointless by now, as is done with rows. Returns the text of the
    /// next message if it must report both the fault and its end. `heard`: the receiver may have a
    /// message of the incident.
    pub(super) fn pass_over(
        &mut self,
        key: &(String, String),
        means: Means,
        heard: bool,
        now: Ts,
    ) -> Option<Message> {
        let lane = self.lanes.get_mut(key)?;
        let mut waiting: Vec<&mut Held> = lane.queue.values_mut().filter(|held| !held.is_over()).collect();
        if waiting.iter().any(|held| held.writing || held.progress == Progress::Sending) {
            return None;
        }
        let rows: Vec<LaneRow> = waiting.iter().map(|held| held.lane_row()).collect();
        // Only the lane shows the later state of the incident here.
        let late = if means.numbered { too_late(&rows, State::Open, heard) } else { 0 };
        let plan = plan(&rows[late..], State::Open, means.wakes, heard);
        for (i, held) in waiting.iter_mut().take(late + plan.superseded).enumerate() {
            let why = if i < late { "over before it could be sent" } else { "already acknowledged" };
            held.progress = Progress::Superseded { why, at: now };
        }
        plan.words
    }

    /// Replaces the text of a message.
    pub(super) fn reword(&mut self, n: &Notification) {
        let lane = self.lanes.get_mut(&(n.receiver.clone(), n.incident.clone()));
        if let Some(held) = lane.and_then(|lane| lane.queue.get_mut(&n.seq)) {
            held.notification.message = n.message.clone();
            held.reworded = true;
        }
    }

    pub(super) fn end(&mut self, n: &Notification, outcome: DeliveryOutcome, memory: Option<String>, at: Ts) {
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

    pub(super) fn begin_writing(&mut self, wanted: impl Fn(&Held) -> bool) -> Vec<Written> {
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
                    waits_unsuppressed: n.action == Action::Trigger && !n.despite_suppression,
                    ring: held.ring,
                    words: held.reworded.then(|| Box::new(n.clone())),
                    progress: held.progress.clone(),
                    memory: lane.memory.clone(),
                });
            }
        }
        all
    }

    pub(super) fn end_writing(&mut self, all: &[Written], kept: bool) {
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
    }

    /// Notes the number of a call.
    pub(super) fn note_ring(&mut self, incident: &str, ring: Ring) {
        let last = self.rings.entry((incident.to_owned(), ring.page)).or_default();
        *last = ring.number.max(*last);
        // Ids of incidents are in chronological order.
        while self.rings.len() > MAX_RINGS {
            self.rings.pop_first();
        }
    }

    /// Assigns a number to a call: after that of every row and of every other held call. Also
    /// returns the calls of its lane that may not have arrived.
    pub(super) fn number(&mut self, n: &Notification, of_rows: Option<Ring>) -> (Option<Ring>, Vec<Ring>) {
        let Some(lane) = self.lanes.get_mut(&(n.receiver.clone(), n.incident.clone())) else {
            return (of_rows, Vec::new());
        };
        let Some(held) = lane.queue.get_mut(&n.seq) else { return (of_rows, Vec::new()) };
        if held.ring.is_none()
            && let Some(ring) = of_rows
        {
            let last = self.rings.get(&(n.incident.clone(), ring.page)).copied().unwrap_or_default();
            held.ring = Some(Ring { number: (last + 1).max(ring.number), ..ring });
        }
        let ring = held.ring;
        let arrived = |held: &Held| matches!(&held.progress, Progress::Done(e) if e.outcome == DeliveryOutcome::Delivered);
        let others = lane.queue.values().filter(|other| other.notification.seq != n.seq && !arrived(other));
        let others = others.filter_map(|other| other.ring).collect();
        if let Some(ring) = ring {
            self.note_ring(&n.incident, ring);
        }
        (ring, others)
    }
}

impl Lane {
    /// The first message that is not done.
    fn head(&self) -> Option<&Held> {
        self.queue.values().find(|held| !held.is_over())
    }
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
        // Recorded while it is in flight, so its outcome is recorded later.
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

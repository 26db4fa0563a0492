//! Decides what to do with a lane, as a pure function of its rows.
//!
//! A lane has all messages that must still be sent to one receiver about one incident, in order.
//! The store supersedes messages when a new one is added; this module decides what is known only at
//! the moment of sending.

use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::incident::State;
use stepwatch_respond::message::{Message, Status};

/// The longest title of a [`Message`], in characters.
const TITLE_MAX: usize = 150;

/// A row of a lane that is not done.
#[derive(Debug, Clone)]
pub(crate) struct LaneRow {
    pub notification: Notification,
    /// An earlier attempt may have arrived.
    pub ambiguous: bool,
    /// The message waits, because its incident is suppressed.
    pub failed: bool,
    /// The incident is suppressed, and this waits until it is no more.
    pub held: bool,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    /// The number of rows at the front that are superseded.
    pub superseded: usize,
    /// A text that replaces the stored one of the next row.
    pub words: Option<Message>,
}

impl LaneRow {
    /// Whether the message is a call or an update that a suppression of the incident holds, because
    /// no person asked for it.
    pub(crate) fn may_be_held(&self) -> bool {
        matches!(self.notification.action, Action::Trigger | Action::Update)
            && !self.notification.despite_suppression
    }

    fn is_asked_for(&self) -> bool {
        self.notification.action == Action::Trigger && !self.held
    }
}

/// Whether the lane must wait because its incident is suppressed and not over. `heard`: the
/// receiver has, or may have, a message of the incident; it is then notified at once when a person
/// acknowledges it.
pub(crate) fn is_held(rows: &[LaneRow], heard: bool) -> bool {
    let any = |of: fn(&LaneRow) -> bool| rows.iter().any(of);
    let answer = heard && any(|row| row.notification.action == Action::Ack);
    any(|row| row.held) && !any(LaneRow::is_asked_for) && !answer
}

/// Plans a lane that is not held. `standing` is the state of the incident, `wakes` whether the
/// receiver wakes a person, `heard` as in [`is_held`].
pub(crate) fn plan(rows: &[LaneRow], standing: State, wakes: bool, heard: bool) -> Plan {
    let over = standing == State::Resolved;
    if over && !heard && rows.iter().any(|row| row.held) && !rows.iter().any(LaneRow::is_asked_for) {
        // The incident ended while it was suppressed, before this receiver got a message, so it
        // need not get the end either.
        return Plan { superseded: rows.len(), words: None };
    }
    let pointless = |i: usize| {
        let row = &rows[i];
        let trigger = row.notification.action == Action::Trigger;
        let ack = follows(rows, i, Action::Ack).is_some();
        // The incident is acknowledged, so nobody is woken. If an earlier attempt arrived, the
        // following acknowledgement ends the call.
        let answered = trigger && wakes && (standing == State::Acknowledged || ack);
        // Suppressed until another message is due. A message that may have arrived is repeated, so
        // that a chat can find it.
        let asked = rows[i + 1..].iter().any(LaneRow::is_asked_for);
        answered || row.held && (over || ack || asked) && (!row.ambiguous || trigger && wakes)
    };
    let superseded = (0..rows.len()).take_while(|i| pointless(*i)).count();
    let words = rows.get(superseded).and_then(|head| {
        // A message that may have arrived must be repeated unchanged, so that the receiver can
        // recognise it.
        let fresh = head.notification.action == Action::Trigger && !head.ambiguous;
        let resolve = follows(rows, superseded, Action::Resolve).filter(|_| fresh)?;
        let (fired, resolved) = (&head.notification.message, &resolve.notification.message);
        Some(fired_and_resolved(fired, resolved, head.failed))
    });
    Plan { superseded, words }
}

/// The number of rows at the front that are not sent to a receiver that notifies people once per
/// key, because their incident is over. `begun`: a call may have arrived, which the resolution
/// ends.
pub(crate) fn too_late(rows: &[LaneRow], standing: State, begun: bool) -> usize {
    let is = |row: &LaneRow, action| row.notification.action == action;
    let ended = match standing {
        State::Resolved => rows.len(),
        // The incident may have recurred since.
        _ => rows.iter().rposition(|row| is(row, Action::Resolve)).map_or(0, |last| last + 1),
    };
    let calls = |row: &&LaneRow| is(row, Action::Trigger) || is(row, Action::Update);
    if begun { rows[..ended].iter().take_while(calls).count() } else { ended }
}

fn follows(rows: &[LaneRow], i: usize, action: Action) -> Option<&LaneRow> {
    rows[i + 1..].iter().find(|row| row.notification.action == action)
}

/// The message about an incident that ended before its first message was sent. It reports both, so
/// that nobody looks for an ended fault, and nobody misses it.
fn fired_and_resolved(fired: &Message, resolved: &Message, failed: bool) -> Message {
    let why =
        if failed { "; both sent now because this receiver could not be reached in between" } else { "" };
    let title = format!("Fired and resolved: {}", fired.title);
    Message {
        title: title.chars().take(TITLE_MAX).collect(),
        status: Status::Resolved,
        reason: format!("fired at {}, {}{why}", fired.at, resolved.reason),
        severity: fired.severity,
        ..resolved.clone()
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_model::time::Ts;

    use super::*;
    use crate::outbox::tests::notification;

    fn lane(actions: &[Action]) -> Vec<LaneRow> {
        let rows = actions.iter().enumerate();
        rows.map(|(i, action)| LaneRow {
            notification: notification("pd", i as u32 + 1, *action),
            ambiguous: false,
            failed: false,
            held: false,
        })
        .collect()
    }

    #[test]
    fn a_trigger_that_missed_its_incident_reports_both() {
        let rows = lane(&[Action::Trigger, Action::Resolve]);
        let plan = plan(&rows, State::Resolved, true, true);
        assert_eq!(plan.superseded, 0);
        let words = plan.words.unwrap();
        assert!(words.title.starts_with("Fired and resolved: "), "{}", words.title);
        assert!(words.title.chars().count() <= TITLE_MAX);
        assert_eq!(words.status, Status::Resolved);
        assert!(words.reason.contains("2026-11-21T02:16:56Z"), "{}", words.reason);
    }

    #[test]
    fn nobody_is_rung_for_what_is_over() {
        use Action::{Ack, Resolve, Trigger, Update};
        let late = |actions: &[Action], standing, begun| too_late(&lane(actions), standing, begun);
        assert_eq!(late(&[Trigger, Update, Resolve], State::Resolved, true), 2);
        assert_eq!(late(&[Trigger, Ack, Trigger, Resolve], State::Resolved, true), 1, "in order");
        assert_eq!(late(&[Trigger, Resolve], State::Resolved, false), 2, "there is nothing to end");
        // The incident ended and recurred.
        assert_eq!(late(&[Trigger, Resolve, Trigger], State::Open, true), 1);
        assert_eq!(late(&[Trigger, Resolve, Trigger], State::Open, false), 2);
        for begun in [true, false] {
            assert_eq!(late(&[Trigger, Update], State::Open, begun), 0);
        }
    }

    #[test]
    fn an_outage_is_named_only_if_there_was_one() {
        let mut rows = lane(&[Action::Trigger, Action::Resolve]);
        let reason = |rows: &[LaneRow]| plan(rows, State::Resolved, true, true).words.unwrap().reason;
        assert!(!reason(&rows).contains("could not be reached"), "{}", reason(&rows));
        rows[0].failed = true;
        assert!(
            reason(&rows).ends_with("this receiver could not be reached in between"),
            "{}",
            reason(&rows)
        );
    }

    #[test]
    fn what_may_have_arrived_is_repeated_word_for_word() {
        let mut rows = lane(&[Action::Trigger, Action::Resolve]);
        rows[0].ambiguous = true;
        assert_eq!(plan(&rows, State::Resolved, true, true), Plan { superseded: 0, words: None });
    }

    #[test]
    fn nobody_is_woken_after_an_answer() {
        let rows = lane(&[Action::Trigger, Action::Ack]);
        assert_eq!(plan(&rows, State::Acknowledged, true, true).superseded, 1);
        assert_eq!(plan(&rows[..1], State::Acknowledged, true, true).superseded, 1);
        // Acknowledged and then resolved: nobody needs to be woken.
        let rows = lane(&[Action::Trigger, Action::Ack, Action::Resolve]);
        assert_eq!(plan(&rows, State::Resolved, true, true).superseded, 1);
        // A chat still shows it.
        assert_eq!(plan(&rows, State::Resolved, false, true).superseded, 0);
    }

    /// The lane of a suppressed incident, of which the first `held` messages wait.
    fn suppressed(actions: &[Action], held: usize) -> Vec<LaneRow> {
        let mut rows = lane(actions);
        rows.iter_mut().take(held).for_each(|row| row.held = true);
        rows
    }

    #[test]
    fn what_is_suppressed_waits_unless_a_person_wants_it_or_has_it() {
        use Action::{Ack, Trigger, Update};
        assert!(is_held(&suppressed(&[Trigger], 1), true));
        assert!(is_held(&suppressed(&[Update], 1), true), "news wait too");
        // A reminder of the silence is not a first message.
        assert!(is_held(&suppressed(&[Trigger, Update], 1), false));
        assert!(!is_held(&suppressed(&[Update], 0), true));
        let asked = suppressed(&[Trigger, Trigger], 1);
        assert!(!is_held(&asked, false));
        assert_eq!(plan(&asked, State::Open, false, false).superseded, 1, "the later call says it all");
        let taken = suppressed(&[Trigger, Ack], 1);
        assert!(!is_held(&taken, true), "whoever was called before hears that somebody has it");
        assert_eq!(plan(&taken, State::Acknowledged, false, true).superseded, 1);
        assert!(is_held(&taken, false));
    }

    #[test]
    fn what_ended_suppressed_is_as_if_it_had_never_been() {
        use Action::{Ack, Resolve, Trigger};
        for wakes in [true, false] {
            let rows = suppressed(&[Trigger, Resolve], 1);
            assert_eq!(plan(&rows, State::Resolved, wakes, false), Plan { superseded: 2, words: None });
            let rows = suppressed(&[Trigger, Ack, Resolve], 1);
            assert_eq!(plan(&rows, State::Resolved, wakes, false).superseded, 3);
            // A person had asked for this message.
            let rows = suppressed(&[Trigger, Resolve], 0);
            assert!(plan(&rows, State::Resolved, wakes, false).words.is_some());
            // A receiver that has a message gets the resolution, and is not called before it.
            let mut rows = suppressed(&[Trigger, Resolve], 1);
            assert_eq!(plan(&rows, State::Resolved, wakes, true), Plan { superseded: 1, words: None });
            // A chat message that may have arrived is searched for.
            rows[0].ambiguous = true;
            assert_eq!(plan(&rows, State::Resolved, wakes, true).superseded, usize::from(wakes));
        }
    }

    #[test]
    fn the_rest_goes_in_order() {
        for action in [Action::Update, Action::Ack, Action::Resolve] {
            let rows = lane(&[action, Action::Resolve]);
            assert_eq!(plan(&rows, State::Open, true, true), Plan { superseded: 0, words: None });
        }
        assert_eq!(plan(&[], State::Open, true, true), Plan { superseded: 0, words: None });
        assert_eq!(Ts(1_795_227_416_000).to_string(), "2026-11-21T02:16:56Z");
    }
}

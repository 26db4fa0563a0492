//! What to do with a lane: a pure function of its rows.
//!
//! A lane is everything still to be told to one receiver about one incident, in order. Putting a message in already drops
//! what it makes pointless (see the store); here is decided what can only be known at the moment of sending.

use stepwatch_engine::effect::{Action, Notification};
use stepwatch_engine::incident::State;
use stepwatch_engine::message::{Message, Status};

/// Longest title of a [`Message`], in characters.
const TITLE_MAX: usize = 150;

/// A row of a lane that is not done.
#[derive(Debug, Clone)]
pub(crate) struct LaneRow {
    pub notification: Notification,
    /// An earlier attempt may have arrived.
    pub ambiguous: bool,
    /// An attempt has failed.
    pub failed: bool,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    /// How many rows from the front are pointless.
    pub superseded: usize,
    /// The row after those is to be sent, as it stands or in these words.
    pub words: Option<Message>,
}

/// `standing` is the state of the incident, `wakes` whether the receiver rouses a person.
pub(crate) fn plan(rows: &[LaneRow], standing: State, wakes: bool) -> Plan {
    let pointless = |i: usize| {
        let trigger = rows[i].notification.action == Action::Trigger;
        let answered = standing == State::Acknowledged || follows(rows, i, Action::Ack).is_some();
        // Somebody has it already: nobody is woken any more. If an earlier attempt did arrive, the Ack behind it quiets it.
        trigger && wakes && answered
    };
    let superseded = (0..rows.len()).take_while(|i| pointless(*i)).count();
    let words = rows.get(superseded).and_then(|head| {
        // What may have arrived must be repeated as it was, or a receiver could not recognise it.
        let fresh = head.notification.action == Action::Trigger && !head.ambiguous;
        let resolve = follows(rows, superseded, Action::Resolve).filter(|_| fresh)?;
        let (fired, resolved) = (&head.notification.message, &resolve.notification.message);
        Some(fired_and_resolved(fired, resolved, head.failed))
    });
    Plan { superseded, words }
}

fn follows(rows: &[LaneRow], i: usize, action: Action) -> Option<&LaneRow> {
    rows[i + 1..].iter().find(|row| row.notification.action == action)
}

/// The incident ended before its first message got out: one message tells both, so that nobody hunts a fire that is out and
/// nobody misses that it burnt.
fn fired_and_resolved(fired: &Message, resolved: &Message, failed: bool) -> Message {
    let why =
        if failed { "; both told now because this receiver could not be reached in between" } else { "" };
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
    use stepwatch_engine::time::Ts;

    use super::*;
    use crate::outbox::tests::notification;

    fn lane(actions: &[Action]) -> Vec<LaneRow> {
        let rows = actions.iter().enumerate();
        rows.map(|(i, action)| LaneRow {
            notification: notification("pd", i as u32 + 1, *action),
            ambiguous: false,
            failed: false,
        })
        .collect()
    }

    #[test]
    fn a_trigger_that_missed_its_incident_tells_both() {
        let rows = lane(&[Action::Trigger, Action::Resolve]);
        let plan = plan(&rows, State::Resolved, true);
        assert_eq!(plan.superseded, 0);
        let words = plan.words.unwrap();
        assert!(words.title.starts_with("Fired and resolved: "), "{}", words.title);
        assert!(words.title.chars().count() <= TITLE_MAX);
        assert_eq!(words.status, Status::Resolved);
        assert!(words.reason.contains("2026-11-21T02:16:56Z"), "{}", words.reason);
    }

    #[test]
    fn an_outage_is_named_only_if_there_was_one() {
        let mut rows = lane(&[Action::Trigger, Action::Resolve]);
        let reason = |rows: &[LaneRow]| plan(rows, State::Resolved, true).words.unwrap().reason;
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
        assert_eq!(plan(&rows, State::Resolved, true), Plan { superseded: 0, words: None });
    }

    #[test]
    fn nobody_is_woken_after_an_answer() {
        let rows = lane(&[Action::Trigger, Action::Ack]);
        assert_eq!(plan(&rows, State::Acknowledged, true).superseded, 1);
        assert_eq!(plan(&rows[..1], State::Acknowledged, true).superseded, 1);
        // Answered and since resolved: still nobody to wake.
        let rows = lane(&[Action::Trigger, Action::Ack, Action::Resolve]);
        assert_eq!(plan(&rows, State::Resolved, true).superseded, 1);
        // A chat shows it all the same.
        assert_eq!(plan(&rows, State::Resolved, false).superseded, 0);
    }

    #[test]
    fn the_rest_goes_in_order() {
        for action in [Action::Update, Action::Ack, Action::Resolve] {
            let rows = lane(&[action, Action::Resolve]);
            assert_eq!(plan(&rows, State::Open, true), Plan { superseded: 0, words: None });
        }
        assert_eq!(plan(&[], State::Open, true), Plan { superseded: 0, words: None });
        assert_eq!(Ts(1_795_227_416_000).to_string(), "2026-11-21T02:16:56Z");
    }
}

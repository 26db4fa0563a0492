//! The text of a call, the threads that show it, and who is called in place of others.

use super::fallback::names;
use super::*;
use Action::{Ack, Resolve, Trigger, Update};
use Change::Clear;
use Severity::Page;

/// The chat shows the updates of an incident in a thread.
fn with_thread() -> ResponderConfig {
    ResponderConfig { threads: vec!["chat".into()], ..two_levels() }
}

fn reasons(w: &mut World) -> Vec<(String, Action, String)> {
    core::mem::take(&mut w.sent).into_iter().map(|n| (n.receiver, n.action, n.message.reason)).collect()
}

#[test]
fn a_thread_shows_the_calls_of_every_level() {
    let mut w = World::new(with_thread());
    let id = w.raise("r", Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
    w.forward(Span::secs(300));
    let words = "escalated to level 2: no answer for 5m";
    let notified = |to: &str, action, words: String| (to.to_owned(), action, words);
    let want = [
        notified("phone", Trigger, words.into()),
        notified("chat", Update, format!("{words}; notified now: phone")),
    ];
    assert_eq!(reasons(&mut w), want);
    w.forward(Span::secs(300));
    w.expect(&[("phone", Trigger, Reason::Repeated), ("chat", Update, Reason::Repeated)]);
    w.input(Input::Act { incident: &id, by: "ann", action: &IncidentAction::Escalate });
    w.expect(&[("phone", Trigger, Reason::Escalated), ("chat", Update, Reason::Escalated)]);
}

/// A receiver whose own service repeats a call is called once, and the text of each further call
/// names that service.
#[test]
fn what_goes_on_by_itself_is_said_to() {
    let repeated_by = [("phone".to_owned(), "its policy".to_owned())].into_iter().collect();
    let mut w = World::new(ResponderConfig { repeated_by, ..with_thread() });
    let id = w.raise("r", Kind::Hang, Page);
    w.forward(Span::secs(300));
    let left = |w: &mut World| {
        let phone: Vec<_> =
            core::mem::take(&mut w.sent).into_iter().filter(|n| n.receiver == "phone").collect();
        phone
            .into_iter()
            .map(|n| (n.left_to.is_some(), n.message.reason.contains("; its policy repeats")))
            .collect()
    };
    let one: Vec<(bool, bool)> = left(&mut w);
    assert_eq!(one, [(false, false)]);
    w.forward(Span::secs(300));
    assert_eq!(left(&mut w), [(true, true)]);
    assert!(w.has_said("no answer for 10m; phone: its policy repeats"), "{:#?}", w.history);
    // An answer has stopped that service, so that the next call rings again.
    w.input(Input::Act { incident: &id, by: "ann", action: &IncidentAction::Ack });
    w.input(Input::Act { incident: &id, by: "ann", action: &IncidentAction::Escalate });
    let after: Vec<(bool, bool)> = left(&mut w);
    assert_eq!(after.last(), Some(&(false, false)));
}

#[test]
fn whoever_takes_no_call_for_long_lets_the_next_level_be_called_once() {
    let mut w = World::new(two_levels());
    let incident = w.raise("r", Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
    let put_off =
        || Input::PutOff { incident: &incident, receiver: "chat", wait: Span::secs(7200), error: "429" };
    w.input(put_off());
    w.expect(&[("phone", Trigger, Reason::ReceiverFailed)]);
    w.input(put_off());
    w.expect(&[]);
    assert!(w.has_said("wants no call for 2h"), "{:#?}", w.history);
}

/// A page that woke somebody need not escalate sooner because the chat accepts no call now.
#[test]
fn a_chat_that_takes_no_call_hurries_nobody_where_a_pager_rang() {
    let receivers = names("chat pager phone");
    let mut config = ResponderConfig { receivers, waking: names("pager phone"), ..two_levels() };
    config.policies[0].levels[0].notify = names("chat pager");
    let mut w = World::new(config);
    let incident = w.raise("r", Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First), ("pager", Trigger, Reason::First)]);
    let put_off =
        |receiver| Input::PutOff { incident: &incident, receiver, wait: Span::secs(400), error: "429" };
    w.input(put_off("chat"));
    w.expect(&[]);
    assert!(w.has_said("wants no call for 6m 40s: 429"), "{:#?}", w.history);
    w.input(put_off("pager"));
    w.expect(&[("phone", Trigger, Reason::ReceiverFailed)]);
}

/// An incident that is over is reported in the past tense, without its consequences.
#[test]
fn what_is_over_is_reported_in_the_past_tense() {
    let mut w = World::new(ResponderConfig { resolve_after: Span::secs(3600), ..two_levels() });
    let incident = w.raise("r", Kind::Hang, Page);
    let first = core::mem::take(&mut w.sent).remove(0);
    assert_eq!(first.message.summary, "Why.");
    w.said("r", Clear, Kind::Hang, Page);
    let now = w.engine.reword(w.now, &first).unwrap();
    assert_eq!(
        (now.summary.as_str(), now.reason.as_str()),
        ("Over since step 1; it was: why.", "new incident")
    );
    w.input(Input::Act { incident: &incident, by: "ann", action: &IncidentAction::Ack });
    let now = w.engine.reword(w.now, &first).unwrap();
    assert!(now.title.starts_with("ACK"), "{}", now.title);
    w.sent.clear();
    w.forward(Span::secs(3600));
    assert_eq!(w.sent[0].action, Resolve);
    assert!(w.sent[0].message.summary.starts_with("Over since"), "{}", w.sent[0].message.summary);
    assert!(w.engine.reword(w.now, &first).is_none(), "it is over");
    let answer = Notification { action: Ack, ..first };
    assert!(w.engine.reword(w.now, &answer).is_none());
}

//! The suppression of an incident is over: who is notified then, when and why.

use super::*;
use Action::{Ack, Trigger, Update};
use Change::{Clear, Raise};
use Severity::{Page, Ticket};

#[test]
fn a_silence_taken_back_leaves_the_next_level_when_it_was() {
    let mut w = World::new(two_levels());
    w.raise("r", Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
    w.forward(Span::secs(100));
    let silence = w.silence("run=\"r\"", Span::secs(1000));
    w.forward(Span::secs(50));
    w.input(Input::ExpireSilence { id: &silence });
    w.forward(Span::secs(149));
    w.expect(&[]);
    w.forward(Span::secs(1));
    w.expect(&[("phone", Trigger, Reason::Escalated)]);
}

#[test]
fn a_silence_that_ends_as_the_next_level_is_due_is_why_it_notifies() {
    let mut w = World::new(two_levels());
    w.raise("r", Kind::Hang, Page);
    w.forward(Span::secs(100));
    w.silence("run=\"r\"", Span::secs(200));
    w.news();
    w.forward(Span::secs(200));
    w.expect(&[("phone", Trigger, Reason::SilenceEnded)]);
    w.forward(Span::secs(299));
    w.expect(&[]);
}

#[test]
fn a_ticket_that_leaves_its_silence_as_a_page_is_reported_as_worse() {
    let mut w = World::new(two_levels());
    w.silence("severity=\"ticket\"", Span::secs(3600));
    w.raise("r", Kind::Straggler, Ticket);
    w.expect(&[]);
    w.raise("r", Kind::ThroughputDrop, Page);
    w.expect(&[("chat", Trigger, Reason::Raised)]);
}

#[test]
fn the_silence_that_lasts_longest_counts() {
    let mut w = World::new(two_levels());
    w.silence("run=\"r\"", Span::secs(1000));
    w.silence("severity=\"page\"", Span::secs(2000));
    w.raise("r", Kind::Hang, Page);
    w.forward(Span::secs(1999));
    w.expect(&[]);
    w.forward(Span::secs(1));
    w.expect(&[("chat", Trigger, Reason::SilenceEnded)]);
}

#[test]
fn a_silence_that_is_gone_without_a_word_hides_nothing_for_long() {
    let mut w = World::new(two_levels());
    let silence = w.silence("run=\"r\"", Span::secs(86_400));
    w.raise("r", Kind::Hang, Page);
    w.engine.manager().suppressor.silences_mut().forget(&silence);
    w.forward(Span::secs(299));
    w.expect(&[]);
    w.forward(Span::secs(1));
    w.expect(&[("chat", Trigger, Reason::SilenceEnded)]);
}

#[test]
fn updates_of_a_silenced_incident_are_sent_when_the_silence_is_taken_back() {
    let mut w = World::new(ResponderConfig { update_min_interval: Span::secs(100), ..two_levels() });
    let id = w.raise("r", Kind::Hang, Page);
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
    w.expect(&[("chat", Trigger, Reason::First), ("chat", Ack, Reason::Acknowledged)]);
    let silence = w.silence("run=\"r\"", Span::secs(36_000));
    w.said("r", Clear, Kind::Hang, Page);
    w.forward(Span::secs(30));
    w.said("r", Raise, Kind::Hang, Page);
    w.forward(Span::secs(7200));
    w.said("r", Clear, Kind::Hang, Page);
    w.said("r", Raise, Kind::Hang, Page);
    w.forward(Span::secs(7200));
    w.expect(&[]);
    w.input(Input::ExpireSilence { id: &silence });
    w.expect(&[("chat", Update, Reason::CameBack)]);
    w.forward(Span::secs(7200));
    w.expect(&[]);
}

#[test]
fn what_suppresses_an_incident_may_be_followed_by_another() {
    let mut w = World::new(two_levels());
    let slow = w.raise("r", Kind::Straggler, Ticket);
    w.expect(&[("chat", Trigger, Reason::First)]);
    let hang = w.raise("r", Kind::Hang, Page);
    w.silence("run=\"r\", kind=\"straggler\"", Span::secs(7200));
    w.said("r", Clear, Kind::Hang, Page);
    w.forward(Span::secs(60));
    assert_eq!(w.records[&hang].state, State::Resolved);
    assert_eq!(w.records[&slow].suppression.as_ref().map(|q| q.by.as_str()), Some("s0"));
    w.news();
    w.forward(Span::secs(86_400));
    w.expect(&[]);
    assert_eq!(w.records[&slow].suppression, None, "a ticket that was notified once is not notified again");
}

#[test]
fn what_is_over_when_its_reason_ends_is_no_longer_suppressed_and_notifies_nobody() {
    let mut w = World::new(two_levels());
    let hang = w.raise("r", Kind::Hang, Page);
    let slow = w.raise("r", Kind::Straggler, Ticket);
    w.said("r", Clear, Kind::Hang, Page);
    w.forward(Span::secs(30));
    w.said("r", Clear, Kind::Straggler, Ticket);
    w.news();
    w.forward(Span::secs(30));
    assert_eq!((w.records[&hang].state, w.records[&slow].state), (State::Resolved, State::Open));
    assert_eq!(w.records[&slow].suppression, None);
    w.expect(&[("chat", Action::Resolve, Reason::Resolved)]);
    // The condition returns before the incident resolves, and is notified as a first message.
    w.said("r", Raise, Kind::Straggler, Ticket);
    w.expect(&[("chat", Trigger, Reason::First)]);
}

#[test]
fn a_silence_that_is_gone_without_a_word_is_noticed_before_the_next_level_is_due() {
    let mut config = two_levels();
    config.policies[0].levels[1].after = Span::secs(3600);
    let mut w = World::new(config);
    let id = w.raise("r", Kind::Hang, Page);
    let silence = w.silence("run=\"r\"", Span::secs(86_400));
    w.engine.manager().suppressor.silences_mut().forget(&silence);
    w.forward(Span::secs(300));
    assert_eq!(w.records[&id].suppression, None, "{:#?}", w.history);
    assert_eq!(w.records[&id].next_at, Some(START + Span::secs(3600)));
}

//! Answers of people, and receivers that do not accept a call.

use super::*;
use crate::oncall::{OnCallConfig, User};
use Action::{Ack, Resolve, Trigger, Update};
use Change::{Clear, Raise};
use Severity::{Page, Ticket};

fn failed(w: &mut World, incident: &str, receiver: &str, action: Action) {
    w.input(Input::Failed { incident, receiver, action, error: "gone" });
}

#[test]
fn a_call_that_fails_for_good_is_the_next_levels_and_counts_as_one() {
    let mut w = World::new(two_levels());
    let id = w.raise("r", Kind::Hang, Page);
    w.news();
    failed(&mut w, &id, "chat", Trigger);
    w.expect(&[("phone", Trigger, Reason::ReceiverFailed)]);
    w.forward(Span::secs(299));
    w.expect(&[]);
    w.forward(Span::secs(1));
    w.expect(&[("phone", Trigger, Reason::Repeated)]);
}

#[test]
fn where_no_level_is_left_those_not_notified_are() {
    let mut w = World::new(two_levels());
    let id = w.raise("r", Kind::Straggler, Ticket);
    w.news();
    failed(&mut w, &id, "chat", Trigger);
    w.expect(&[("phone", Trigger, Reason::ReceiverFailed)]);
    failed(&mut w, &id, "phone", Trigger);
    w.expect(&[]);
}

#[test]
fn news_that_fail_for_good_wake_nobody() {
    let mut w = World::new(two_levels());
    let id = w.raise("r", Kind::Hang, Page);
    w.news();
    for action in [Update, Ack, Resolve] {
        failed(&mut w, &id, "chat", action);
        w.expect(&[]);
    }
}

#[test]
fn an_acknowledgement_sends_the_updates_that_waited() {
    let mut w = World::new(ResponderConfig { update_min_interval: Span::secs(100), ..two_levels() });
    let id = w.raise("r", Kind::GradSpike, Page);
    w.said("r", Raise, Kind::LossSpike, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
    w.expect(&[("chat", Ack, Reason::Acknowledged)]);
    w.forward(Span::secs(7200));
    w.expect(&[]);
}

#[test]
fn what_nobody_answers_after_the_answer_expired_escalates_anew() {
    let mut w = World::new(ResponderConfig { ack_timeout: Some(Span::secs(7200)), ..two_levels() });
    let id = w.raise("r", Kind::Hang, Page);
    w.forward(Span::secs(300));
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
    w.news();
    w.forward(Span::secs(7200));
    w.expect(&[("chat", Trigger, Reason::AckExpired)]);
    assert_eq!(w.records[&id].level, 2, "the highest that was reached");
    w.forward(Span::secs(300));
    w.expect(&[("phone", Trigger, Reason::Escalated)]);
}

#[test]
fn an_answer_does_not_expire_while_it_is_over() {
    let mut w = World::new(ResponderConfig { ack_timeout: Some(Span::secs(100)), ..two_levels() });
    let id = w.raise("r", Kind::Hang, Page);
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
    w.forward(Span::secs(50));
    w.said("r", Clear, Kind::Hang, Page);
    w.news();
    w.forward(Span::secs(60));
    w.expect(&[("chat", Resolve, Reason::Resolved)]);
}

#[test]
fn whom_a_call_was_for_is_whom_its_answer_is_for() {
    let mut config = two_levels();
    let ann = User { name: "ann".into(), notify: vec!["phone".into()], ..User::default() };
    config.oncall = OnCallConfig { users: vec![ann], ..OnCallConfig::default() };
    config.policies[0].levels[0].notify = vec!["user:ann".into()];
    let mut w = World::new(config);
    let id = w.raise("r", Kind::Hang, Page);
    w.input(Input::Act { incident: &id, by: "bob", action: &IncidentAction::Ack });
    let notified: Vec<_> =
        w.sent.iter().map(|n| (n.receiver.as_str(), n.action, n.users.as_slice())).collect();
    let ann = ["ann".to_owned()];
    assert_eq!(notified, [("phone", Trigger, &ann[..]), ("phone", Ack, &ann[..])]);
}

#[test]
fn who_took_what_nobody_was_notified_of_is_not_woken_when_it_is_back() {
    let mut w = World::new(two_levels());
    let silence = w.silence("run=\"r\"", Span::secs(3600));
    let id = w.raise("r", Kind::Hang, Page);
    w.said("r", Clear, Kind::Hang, Page);
    w.input(Input::ExpireSilence { id: &silence });
    assert!(w.has_said("over before anyone was notified"), "{:#?}", w.history);
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
    w.said("r", Raise, Kind::Hang, Page);
    w.forward(Span::secs(7200));
    w.expect(&[]);
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Unack });
    w.forward(Span::ZERO);
    w.expect(&[("chat", Trigger, Reason::First)]);
}

//! Who is notified in place of receivers that refuse a notification: never a pager for less than a
//! page, and never another team.

use super::*;
use crate::config::Team;
use Action::Trigger;
use Severity::{Page, Ticket};

pub(super) fn names(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn team(name: &str, notify: &str, fallback: &str) -> Team {
    Team {
        name: name.into(),
        matchers: vec![format!("run=~\"{name}-.*\"")],
        notify: names(notify),
        fallback: names(fallback),
        ..Team::default()
    }
}

/// Two teams with a chat and a pager each, and an operator of both.
fn two_teams(fallback_of_a: &str, fallback: &str) -> ResponderConfig {
    ResponderConfig {
        receivers: names("a-chat a-pager a-lead b-chat b-pager ops"),
        waking: names("a-pager a-lead b-pager ops"),
        fallback: names(fallback),
        teams: vec![team("a", "a-chat a-pager", fallback_of_a), team("b", "b-chat b-pager", "")],
        policies: Vec::new(),
        routes: Vec::new(),
        ..two_levels()
    }
}

fn refuse(w: &mut World, incident: &str, receiver: &str) {
    w.input(Input::Failed { incident, receiver, action: Trigger, error: "is_archived" });
}

/// The receivers that were notified since the last call.
fn notified(w: &mut World) -> Vec<String> {
    w.news().into_iter().map(|(to, _, _)| to).collect()
}

/// As `notified`, without the incidents about receivers that fail.
fn paged(w: &mut World) -> Vec<String> {
    w.sent.retain(|n| n.message.kind != Kind::AlerterFault);
    notified(w)
}

#[test]
fn a_ticket_that_its_chat_refuses_rings_nobody_and_says_where_it_waits() {
    let mut w = World::new(ResponderConfig { waking: names("phone"), ..two_levels() });
    let id = w.raise("r", Kind::Straggler, Ticket);
    w.expect(&[("chat", Trigger, Reason::First)]);
    refuse(&mut w, &id, "chat");
    w.expect(&[]);
    assert!(w.has_said("phone wakes somebody, which only a page may: it waits for chat"), "{:#?}", w.history);
    // A page of the same alerter does ring.
    let id = w.raise("s", Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
    refuse(&mut w, &id, "chat");
    w.expect(&[("phone", Trigger, Reason::ReceiverFailed)]);
}

/// Without routes, a pager gets only pages. If there are only pagers, a ticket waits.
#[test]
fn a_ticket_that_no_route_matches_rings_nobody_and_says_where_it_waits() {
    let config = ResponderConfig { waking: names("phone"), routes: Vec::new(), ..two_levels() };
    let mut w = World::new(config.clone());
    w.raise("r", Kind::Straggler, Ticket);
    w.expect(&[("chat", Trigger, Reason::First)]);
    w.raise("s", Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First), ("phone", Trigger, Reason::First)]);
    let mut w = World::new(ResponderConfig { receivers: names("phone"), ..config });
    w.raise("r", Kind::Straggler, Ticket);
    w.expect(&[]);
    assert!(w.has_said("nobody is notified, it waits in the list of incidents"), "{:#?}", w.history);
    // Once it is a page, it rings.
    w.raise("r", Kind::Straggler, Page);
    assert_eq!(notified(&mut w), ["phone"]);
}

#[test]
fn a_ticket_falls_back_to_whoever_sleeps_on() {
    let mut config = two_levels();
    (config.receivers, config.waking) = (names("chat phone mail"), names("phone"));
    let mut w = World::new(config);
    let id = w.raise("r", Kind::Straggler, Ticket);
    w.expect(&[("chat", Trigger, Reason::First)]);
    refuse(&mut w, &id, "chat");
    w.expect(&[("mail", Trigger, Reason::ReceiverFailed)]);
    refuse(&mut w, &id, "mail");
    w.expect(&[]);
    assert!(w.has_said("it waits for mail"), "{:#?}", w.history);
}

/// A policy reaches the pager at its own time. A chat that fails does not make a ticket escalate
/// sooner.
#[test]
fn a_ticket_does_not_hurry_to_the_pager_of_its_policy() {
    let mut config = ResponderConfig { waking: names("phone"), ..two_levels() };
    config.routes = vec![Route { policy: Some("p".into()), ..Route::default() }];
    let mut w = World::new(config);
    let id = w.raise("r", Kind::Straggler, Ticket);
    w.expect(&[("chat", Trigger, Reason::First)]);
    refuse(&mut w, &id, "chat");
    w.expect(&[]);
}

#[test]
fn a_ticket_whose_level_means_nobody_wakes_nobody() {
    let mut config = ResponderConfig { waking: names("phone"), ..two_levels() };
    config.routes[1].notify = names("schedule:primary");
    let mut w = World::new(config);
    w.raise("r", Kind::Straggler, Ticket);
    w.expect(&[("chat", Trigger, Reason::First)]);
}

#[test]
fn a_page_stays_within_its_team_then_goes_to_whom_the_operator_named() {
    let mut w = World::new(two_teams("a-lead", "ops"));
    let id = w.raise("a-1", Kind::Hang, Page);
    assert_eq!(paged(&mut w), ["a-chat", "a-pager"]);
    // The pager was called, so that nobody else is woken because the chat fails.
    refuse(&mut w, &id, "a-chat");
    assert_eq!(paged(&mut w), [""; 0]);
    refuse(&mut w, &id, "a-pager");
    assert_eq!(paged(&mut w), ["a-lead"]);
    refuse(&mut w, &id, "a-lead");
    assert_eq!(paged(&mut w), ["ops"]);
    refuse(&mut w, &id, "ops");
    assert_eq!(paged(&mut w), [""; 0], "team b is not asked");
    assert!(w.has_said("nobody is left who may be notified of it: it waits for ops"), "{:#?}", w.history);
}

#[test]
fn a_page_that_is_not_taken_stays_within_its_team_too() {
    let mut w = World::new(two_teams("a-lead", "ops"));
    let id = w.raise("a-1", Kind::Hang, Page);
    w.news();
    let unreached = |w: &mut World, receiver| {
        w.input(Input::Unreached { incident: &id, receiver, waited: Span::secs(120), error: "503" });
        paged(w)
    };
    assert_eq!(unreached(&mut w, "a-pager"), ["a-lead"]);
    assert_eq!(unreached(&mut w, "a-lead"), ["ops"]);
    assert_eq!(unreached(&mut w, "ops"), [""; 0]);
}

/// Many configurations have teams only as routes with a matcher over `team`, without `teams`.
#[test]
fn receivers_that_a_route_gives_to_a_team_are_that_teams() {
    let route = |team: &str, notify: &str| Route {
        matchers: vec![format!("team=\"{team}\"")],
        notify: names(notify),
        ..Route::default()
    };
    let mut config = two_teams("", "");
    config.routes = vec![route("a", "a-pager"), route("b", "b-pager")];
    config.teams.clear();
    let mut w = World::new(config);
    let run = RunSummary {
        name: "a-1".into(),
        gpus: Some(8),
        labels: [("team".to_owned(), "a".to_owned())].into(),
        ..RunSummary::default()
    };
    let context = Context::new(Scope::Run("a-1".into()), run, BTreeSet::new(), w.now);
    w.said_by(&context, Change::Raise, Kind::Hang, Page);
    let id = w.id("a-1", Kind::Hang);
    assert_eq!(paged(&mut w), ["a-pager"]);
    refuse(&mut w, &id, "a-pager");
    assert_eq!(paged(&mut w), [""; 0]);
}

#[test]
fn a_level_of_one_team_that_means_nobody_notifies_no_other_team() {
    let mut config = two_teams("a-lead", "ops");
    config.teams[0].notify = names("schedule:a");
    let mut w = World::new(config);
    w.raise("a-1", Kind::Hang, Page);
    assert_eq!(notified(&mut w), ["a-lead"]);
}

/// One team has no receivers, and another has some.
#[test]
fn a_team_without_receivers_is_no_reason_to_wake_another() {
    let notified_of = |fallback_of_a: &str, fallback: &str, severity| {
        let mut config = two_teams(fallback_of_a, fallback);
        config.teams[0].notify.clear();
        let mut w = World::new(config);
        w.raise("a-1", Kind::Hang, severity);
        (notified(&mut w), w.engine.homeless())
    };
    let none = Vec::<String>::new();
    assert_eq!(notified_of("a-lead", "ops", Page), (names("a-lead"), none.clone()));
    assert_eq!(notified_of("", "ops", Page), (names("ops"), none.clone()));
    assert_eq!(notified_of("", "ops", Ticket), (none.clone(), none.clone()), "a ticket waits in the list");
    let (notified, homeless) = notified_of("", "", Page);
    assert_eq!(notified, none);
    assert_eq!(homeless.len(), 1, "which is a fault that is reported to the operator");
}

#[test]
fn a_fault_of_ours_rings_once_and_not_once_a_team() {
    let rung = |config: ResponderConfig| {
        let mut w = World::new(config);
        w.input(Input::Own { check: "delivery", severity: Page, fault: Some("a-pager does not take pages") });
        notified(&mut w)
    };
    assert_eq!(rung(two_teams("a-lead", "ops")), ["ops"]);
    // No receiver is configured for it: receivers of no team that wake are notified, or else one
    // pager.
    let mut config = two_teams("a-lead", "");
    assert_eq!(rung(config.clone()), ["ops"]);
    config.receivers.retain(|name| name != "ops");
    assert_eq!(rung(config.clone()), ["a-pager"]);
    // The receivers that a route names for it.
    let cause = vec!["cause=\"alerting\"".into()];
    config.routes = vec![Route { matchers: cause, notify: names("b-chat"), ..Route::default() }];
    assert_eq!(rung(config), ["b-chat"]);
}

/// The fault of a pager calls another pager, and goes on until one accepts the call.
#[test]
fn the_fault_of_a_receiver_rings_elsewhere() {
    let mut config = two_teams("", "");
    config.receivers.retain(|name| name != "ops");
    config.receivers.push("c-pager".into());
    config.waking.push("c-pager".into());
    config.teams.push(team("c", "c-pager", ""));
    config.receivers.retain(|name| name != "a-lead");
    let mut w = World::new(config);
    let id = w.raise("a-1", Kind::Hang, Page);
    w.news();
    let (waited, error) = (Span::secs(120), "503");
    w.input(Input::Unreached { incident: &id, receiver: "a-pager", waited, error });
    assert_eq!(notified(&mut w), ["b-pager"]);
    let fault = w.records.values().find(|r| r.kind == Kind::AlerterFault).unwrap().id.clone();
    // The fault is notified once, even if other pages are not accepted either.
    let other = w.raise("a-2", Kind::Hang, Page);
    w.news();
    w.input(Input::Unreached { incident: &other, receiver: "a-pager", waited, error });
    assert_eq!(notified(&mut w), [""; 0]);
    w.input(Input::Unreached { incident: &fault, receiver: "b-pager", waited, error });
    assert_eq!(notified(&mut w), ["c-pager"]);
    refuse(&mut w, &fault, "c-pager");
    assert_eq!(notified(&mut w), ["a-pager"], "and the one that it is about, last of all");
    // The fault is over when the pager accepts a notification.
    w.input(Input::Delivered { incident: &id, receiver: "a-pager", action: Trigger });
    w.forward(Span::secs(60));
    assert_eq!(w.records[&fault].state, State::Resolved);
}

/// No page waits for the receiver any more.
#[test]
fn the_fault_of_a_receiver_is_over_when_somebody_has_answered() {
    let mut w = World::new(two_teams("", ""));
    let id = w.raise("a-1", Kind::Hang, Page);
    w.input(Input::Unreached { incident: &id, receiver: "a-pager", waited: Span::secs(120), error: "503" });
    let fault = w.records.values().find(|r| r.kind == Kind::AlerterFault).unwrap().id.clone();
    w.input(Input::AllReached);
    w.forward(Span::secs(60));
    assert_eq!(w.records[&fault].state, State::Open, "that one still has not taken it");
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
    w.forward(Span::secs(60));
    assert_eq!(w.records[&fault].state, State::Resolved);
}

/// The receiver that fails is the operator's `fallback`.
#[test]
fn the_fault_of_the_fallback_rings_at_others() {
    let mut w = World::new(two_teams("", "a-pager"));
    let id = w.raise("a-1", Kind::Hang, Page);
    w.news();
    w.input(Input::Unreached { incident: &id, receiver: "a-pager", waited: Span::secs(120), error: "503" });
    assert_eq!(notified(&mut w), ["a-pager", "a-lead"]);
}

/// The key of a receiver was revoked. Nobody is woken, and somebody has to be notified of that.
#[test]
fn a_page_that_nobody_takes_who_can_be_woken_is_a_fault_at_once() {
    let mut config = two_teams("", "");
    config.receivers.retain(|name| name != "ops");
    config.threads = names("a-chat");
    config.teams[0].fallback = names("hook");
    config.receivers.push("hook".into());
    config.policies = vec![Policy {
        name: "pa".into(),
        levels: vec![
            Level { notify: names("a-chat a-pager"), ..Level::default() },
            Level { after: Span::secs(10), notify: names("a-pager"), repeat: 1, ..Level::default() },
        ],
    }];
    (config.teams[0].policy, config.teams[0].notify) = (Some("pa".into()), Vec::new());
    let words = |w: &mut World| {
        let sent = core::mem::take(&mut w.sent);
        let of = sent.into_iter().filter(|n| n.receiver == "a-chat");
        of.map(|n| n.message.reason).collect::<Vec<_>>()
    };
    let all = |w: &mut World| w.sent.iter().map(|n| n.receiver.clone()).collect::<Vec<_>>();
    let mut w = World::new(config.clone());
    let id = w.raise("a-1", Kind::Hang, Page);
    w.news();
    refuse(&mut w, &id, "a-pager");
    assert_eq!(all(&mut w), ["a-pager", "a-chat", "hook", "a-chat", "a-lead"]);
    assert_eq!(
        words(&mut w),
        [
            "a-pager could not be reached: is_archived; cannot be notified: a-pager (is_archived)",
            "a-pager could not be reached: is_archived; notified now: hook",
        ]
    );
    let fault = w.records.values().find(|r| r.kind == Kind::AlerterFault).unwrap();
    assert!(fault.summary.to_string().starts_with("a-pager does not take a page"), "{}", fault.summary);
    // The receiver is tried again, and not reported as notified.
    w.forward(Span::secs(10));
    assert_eq!(
        words(&mut w),
        ["level 2 again (1): no answer for 10s; cannot be notified: a-pager (is_archived)"]
    );
    // Once the receiver accepts a notification, it counts as notified.
    w.input(Input::Delivered { incident: &id, receiver: "a-pager", action: Trigger });
    w.forward(Span::secs(1800));
    assert_eq!(words(&mut w), ["level 2 again (2): no answer for 30m 10s; notified now: a-pager"]);
    // The same for a receiver that asks for a long pause.
    let mut w = World::new(config);
    let id = w.raise("a-1", Kind::Hang, Page);
    w.news();
    let wait = Span::secs(3780);
    w.input(Input::PutOff { incident: &id, receiver: "a-pager", wait, error: "429" });
    assert_eq!(all(&mut w), ["a-pager", "a-chat", "hook", "a-chat", "a-lead"]);
    assert!(words(&mut w).iter().all(|words| !words.contains("notified now: a-pager")));
}

/// An incident of no team goes to everybody unless the operator configured a `fallback`, so that
/// every incident notifies somebody.
#[test]
fn what_belongs_to_no_team_notifies_all_the_same() {
    let of = |config: ResponderConfig| {
        let mut w = World::new(config);
        w.raise("c-1", Kind::Hang, Page);
        notified(&mut w)
    };
    assert_eq!(of(two_teams("", "ops")), ["ops"]);
    assert_eq!(of(two_teams("", "")), ["a-lead", "ops"], "receivers of no team");
    let mut config = two_teams("a-lead", "");
    config.receivers.retain(|name| name != "ops");
    assert_eq!(BTreeSet::from_iter(of(config.clone())), BTreeSet::from_iter(config.receivers));
}

/// One alerter serves several teams: a storm of one team contains nothing of another's.
#[test]
fn a_storm_is_of_one_team() {
    let mut config = two_teams("", "");
    config.routes = vec![Route { notify: names("ops"), ..Route::default() }];
    config.storm = crate::config::Storm { incidents: 1, within: Span::secs(300), ..Default::default() };
    let mut w = World::new(config);
    for run in ["a-1", "b-1", "a-2", "b-2"] {
        w.raise(run, Kind::Hang, Page);
    }
    let storms: Vec<_> = w.records.values().filter(|r| r.kind == Kind::AlertStorm).collect();
    let teams: BTreeSet<_> = storms.iter().map(|r| r.labels["team"].as_str()).collect();
    assert_eq!(teams, BTreeSet::from(["a", "b"]));
    assert!(storms.iter().all(|r| r.suspects.iter().all(|s| s.what().starts_with(&r.labels["team"]))));
}

//! Ladders, answers and timing.

use super::*;
use crate::config::Condition;
use crate::effect::Tx;
use Action::{Ack, Resolve, Trigger, Update};
use Change::{Clear, Raise};
use Severity::{Page, Ticket};

const HALF_AN_HOUR: Span = Span::secs(1800);

#[test]
fn a_page_climbs_is_repeated_and_never_given_up() {
    let mut w = World::new(two_levels());
    let id = w.raise("r", Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
    w.forward(Span::secs(299));
    w.expect(&[]);
    w.forward(Span::secs(1));
    w.expect(&[("phone", Trigger, Reason::Escalated)]);
    w.forward(Span::secs(300));
    w.expect(&[("phone", Trigger, Reason::Repeated)]);
    for _ in 0..10 {
        w.forward(HALF_AN_HOUR);
        w.expect(&[("phone", Trigger, Reason::StillFiring)]);
    }
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
    w.expect(&[("chat", Ack, Reason::Acknowledged), ("phone", Ack, Reason::Acknowledged)]);
    w.forward(Span::secs(86_400));
    w.expect(&[]);
    w.said("r", Clear, Kind::Hang, Page);
    w.forward(HALF_AN_HOUR);
    w.expect(&[("chat", Resolve, Reason::Resolved), ("phone", Resolve, Reason::Resolved)]);
    for part in ["route: routes[0] (severity=\"page\"), levels: 2", "level 2 notified (phone): escalated"] {
        assert!(w.has_said(part), "{part}: {:#?}", w.history);
    }
}

#[test]
fn whoever_stands_in_and_does_not_exist_calls_nobody_twice() {
    let mut config = two_levels();
    config.receivers.push("gone".into());
    let mut w = World::new(config);
    let incident = w.raise("r", Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
    w.forward(Span::secs(120));
    let (incident, waited) = (incident.as_str(), Span::secs(120));
    w.input(Input::Unreached { incident, receiver: "chat", waited, error: "503" });
    w.sent.retain(|n| n.message.kind != Kind::AlerterFault);
    w.expect(&[("phone", Trigger, Reason::ReceiverFailed), ("gone", Trigger, Reason::ReceiverFailed)]);
    w.input(Input::Failed { incident, receiver: "gone", action: Trigger, error: "550" });
    w.expect(&[]);
    // The next level is due at its own time, also if its receiver cannot be notified.
    w.forward(Span::secs(179));
    w.expect(&[]);
    w.forward(Span::secs(1));
    w.expect(&[("phone", Trigger, Reason::Escalated)]);
    let mut w = World::new(two_levels());
    let incident = w.raise("r", Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
    w.input(Input::Failed { incident: &incident, receiver: "chat", action: Trigger, error: "550" });
    w.expect(&[("phone", Trigger, Reason::ReceiverFailed)]);
}

#[test]
fn a_level_that_names_nobody_notifies_everybody_and_says_so() {
    let mut config = two_levels();
    config.policies[0].levels[0].notify = vec!["schedule:primary".into()];
    let mut w = World::new(config);
    w.raise("r", Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First), ("phone", Trigger, Reason::First)]);
    assert!(
        w.has_said("level 1 notified (there is no schedule primary, so every receiver)"),
        "{:#?}",
        w.history
    );
}

#[test]
fn tickets_are_gathered_and_pages_are_not() {
    let mut w = World::new(ResponderConfig { batch_window: Span::secs(60), ..two_levels() });
    w.raise("r", Kind::Straggler, Ticket);
    w.forward(Span::secs(59));
    w.expect(&[]);
    w.forward(Span::secs(1));
    w.expect(&[("chat", Trigger, Reason::First)]);
    // An incident that was over within the window notifies nobody; one that returns does.
    w.raise("s", Kind::Straggler, Ticket);
    w.said("s", Clear, Kind::Straggler, Ticket);
    w.forward(Span::secs(59));
    w.expect(&[]);
    w.forward(Span::secs(1000));
    w.expect(&[]);
    w.raise("t", Kind::Straggler, Ticket);
    w.raise("t", Kind::ThroughputDrop, Page);
    w.expect(&[("chat", Trigger, Reason::Raised)]);
}

#[test]
fn what_was_over_before_anybody_was_notified_and_is_back_notifies() {
    let config = ResponderConfig { batch_window: Span::secs(30), ..two_levels() };
    let mut w = World::new(config);
    w.raise("r", Kind::Straggler, Ticket);
    w.said("r", Clear, Kind::Straggler, Ticket);
    w.forward(Span::secs(40));
    w.expect(&[]);
    w.said("r", Raise, Kind::Straggler, Ticket);
    w.forward(Span::secs(30));
    w.expect(&[("chat", Trigger, Reason::First)]);
}

#[test]
fn updates_keep_their_distance_and_are_sent_together() {
    let mut w = World::new(ResponderConfig { update_min_interval: Span::secs(100), ..two_levels() });
    w.raise("r", Kind::GradSpike, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
    w.said("r", Raise, Kind::LossSpike, Page);
    w.forward(Span::secs(50));
    w.said("r", Raise, Kind::Divergence, Page);
    w.expect(&[]);
    w.forward(Span::secs(50));
    w.expect(&[("chat", Update, Reason::Changed)]);
    w.forward(Span::secs(199));
    w.expect(&[]);
}

#[test]
fn an_acknowledgement_may_expire() {
    let mut w = World::new(ResponderConfig { ack_timeout: Some(Span::secs(7200)), ..two_levels() });
    let id = w.raise("r", Kind::Hang, Page);
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
    w.news();
    w.forward(Span::secs(7199));
    w.expect(&[]);
    w.forward(Span::secs(1));
    w.expect(&[("chat", Trigger, Reason::AckExpired)]);
    w.forward(Span::secs(300));
    w.expect(&[("phone", Trigger, Reason::Escalated)]);
}

#[test]
fn what_comes_and_goes_is_reported_as_flapping_once() {
    let mut w = World::new(ResponderConfig { update_min_interval: Span::ZERO, ..two_levels() });
    let id = w.raise("r", Kind::Hang, Page);
    w.input(Input::Act { incident: &id, by: "alice", action: &IncidentAction::Ack });
    w.news();
    let mut notified = Vec::new();
    for _ in 0..8 {
        w.said("r", Clear, Kind::Hang, Page);
        w.forward(Span::secs(30));
        w.said("r", Raise, Kind::Hang, Page);
        notified.extend(w.news().into_iter().map(|(_, _, why)| why));
    }
    assert_eq!(notified, [Reason::CameBack, Reason::CameBack, Reason::CameBack, Reason::Flapping]);
}

fn conditions(conditions: &[(i64, &str, Condition)]) -> ResponderConfig {
    let mut config = two_levels();
    let level = |(after, to, condition): &(i64, &str, Condition)| Level {
        after: Span::secs(*after),
        notify: vec![(*to).to_owned()],
        condition: condition.clone(),
        ..Level::default()
    };
    config.policies[0].levels = conditions.iter().map(level).collect();
    config
}

#[test]
fn a_level_whose_condition_does_not_hold_is_passed_over() {
    let burn = |over| Condition { burn_over: Some(over), ..Condition::default() };
    let levels = [(0, "chat", burn(100.0)), (0, "phone", burn(10.0))];
    // Eight GPUs at two dollars and a half.
    let mut w = World::new(ResponderConfig { cost_per_gpu_hour: Some(2.5), ..conditions(&levels) });
    w.raise("r", Kind::Hang, Page);
    w.expect(&[("phone", Trigger, Reason::First)]);
    assert!(w.has_said("level 1 of routes[0] passed over: not burns more than $100/h"), "{:#?}", w.history);
    // Without a price, the condition holds, so that nobody is left out.
    let mut w = World::new(conditions(&levels));
    w.raise("r", Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First), ("phone", Trigger, Reason::First)]);
    // Nor is there a cost without a number of GPUs.
    let mut w = World::new(ResponderConfig { cost_per_gpu_hour: Some(2.5), ..conditions(&levels) });
    let run = RunSummary { name: "r".into(), ..RunSummary::default() };
    let context = Context::new(Scope::Run("r".into()), run, BTreeSet::new(), w.now);
    w.said_by(&context, Raise, Kind::Hang, Page);
    w.expect(&[("chat", Trigger, Reason::First), ("phone", Trigger, Reason::First)]);
}

#[test]
fn a_page_that_every_condition_refuses_notifies_all_the_same() {
    let never = || Condition { severity: Some(Ticket), ..Condition::default() };
    let mut w = World::new(conditions(&[(0, "chat", never()), (60, "phone", never())]));
    w.raise("r", Kind::Hang, Page);
    w.forward(Span::secs(59));
    w.expect(&[]);
    w.forward(Span::secs(1));
    w.expect(&[("phone", Trigger, Reason::First)]);
    w.forward(Span::secs(1800));
    w.expect(&[("phone", Trigger, Reason::StillFiring)]);
}

#[test]
fn an_incident_may_take_several_ways() {
    let mut config = two_levels();
    config.receivers.push("audit".into());
    let audit = Route { notify: vec!["audit".into()], go_on: true, ..Route::default() };
    config.routes.insert(0, audit);
    let mut w = World::new(config);
    let id = w.raise("r", Kind::Hang, Page);
    w.expect(&[("audit", Trigger, Reason::First), ("chat", Trigger, Reason::First)]);
    w.forward(Span::secs(300));
    w.expect(&[("phone", Trigger, Reason::Escalated)]);
    w.input(Input::Failed { incident: &id, receiver: "phone", action: Trigger, error: "gone" });
    w.expect(&[]);
    w.forward(Span::secs(300));
    w.expect(&[("phone", Trigger, Reason::Repeated)]);
}

#[test]
fn an_incident_is_found_that_nobody_would_hear_of_again() {
    let mut w = World::new(two_levels());
    let id = w.raise("r", Kind::Hang, Page);
    w.news();
    let lost = w.engine.manager().open.get_mut(&id).unwrap();
    lost.stop();
    let flaws = w.engine.audit(w.now);
    assert!(flaws.iter().any(|f| f.what.contains("nobody will be notified")), "{flaws:?}");
    w.engine.mend(w.now, &flaws);
    w.forward(Span::secs(1));
    w.expect(&[("phone", Trigger, Reason::Escalated)]);
}

#[test]
fn a_deadline_that_a_wrong_clock_set_is_not_waited_for() {
    let mut w = World::new(two_levels());
    let id = w.raise("r", Kind::Hang, Page);
    w.silence("run=\"s\"", Span::secs(86_400));
    let suppressed = w.raise("s", Kind::Hang, Page);
    w.news();
    // The clock was a year ahead, and is set right.
    w.now = Ts(w.now.0 - 365 * 86_400_000);
    let flaws = w.engine.audit(w.now);
    let found: Vec<_> =
        flaws.iter().filter(|f| f.what.contains("further off")).map(|f| f.incident.clone()).collect();
    assert_eq!(BTreeSet::from_iter(found), BTreeSet::from([id, suppressed]), "{flaws:?}");
    w.engine.mend(w.now, &flaws);
    w.forward(Span::secs(1));
    assert!(w.news().contains(&("phone".into(), Trigger, Reason::Escalated)), "{:#?}", w.history);
}

#[test]
fn a_fault_of_ours_is_an_incident_and_notifies_once() {
    let mut w = World::new(two_levels());
    for _ in 0..3 {
        w.input(Input::Own { check: "outbox", severity: Page, fault: Some("the oldest page has waited 5m") });
    }
    w.expect(&[("chat", Trigger, Reason::First)]);
    let record = w.records.values().next().unwrap();
    assert_eq!((record.kind, record.place().as_str()), (Kind::AlerterFault, "this alerter"));
    w.input(Input::Own { check: "outbox", severity: Page, fault: None });
    w.forward(Span::secs(60));
    w.expect(&[("chat", Resolve, Reason::Resolved)]);
}

#[test]
fn a_person_who_stops_the_run_is_not_called_about_its_node() {
    for by_hand in [true, false] {
        let mut w = World::new(two_levels());
        for (scope, kind) in
            [(Scope::Node("n5".into()), Kind::NodeFault), (Scope::Run("r".into()), Kind::Hang)]
        {
            let run = RunSummary { name: "r".into(), ..RunSummary::default() };
            let context = Context::new(scope, run, BTreeSet::from(["n5".into()]), w.now);
            w.said_by(&context, Raise, kind, Page);
        }
        assert_eq!(w.records.len(), 1, "one fault: {:#?}", w.history);
        w.news();
        let (now, mut out) = (w.now, Vec::new());
        w.engine.manager().run_ended(&mut Tx::new(now, &mut out), "r", by_hand, &BTreeMap::new());
        w.input(Input::Act {
            incident: "none",
            by: "nobody",
            action: &IncidentAction::Note("arms the deadlines".into()),
        });
        w.absorb(out);
        w.forward(Span::secs(300));
        let calls = w.news().into_iter().filter(|(_, action, _)| *action == Trigger).count();
        assert_eq!(calls, usize::from(!by_hand), "{:#?}", w.history);
    }
}

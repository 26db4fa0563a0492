//! Incidents that notify nobody for a while: silenced, inhibited, or rolled up into a storm.

use super::*;
use crate::config::{InhibitRule, Storm};
use crate::incident::SuppressionReason;
use Action::{Ack, Resolve, Trigger, Update};
use Change::{Clear, Raise};
use Severity::{Page, Ticket};

fn suppressed_as(w: &World, id: &str) -> Option<SuppressionReason> {
    w.records[id].suppression.as_ref().map(|q| q.why)
}

#[test]
fn a_silence_suppresses_and_its_end_notifies() {
    let mut w = World::new(two_levels());
    w.silence("run=\"r\"", Span::secs(3600));
    let id = w.raise("r", Kind::Hang, Page);
    w.forward(Span::secs(3599));
    w.expect(&[]);
    assert_eq!(suppressed_as(&w, &id), Some(SuppressionReason::Silenced));
    assert!(w.has_said("nobody is notified: silenced by alice until"), "{:#?}", w.history);
    w.forward(Span::secs(1));
    w.expect(&[("chat", Trigger, Reason::SilenceEnded)]);
    assert_eq!(suppressed_as(&w, &id), None);
    w.forward(Span::secs(300));
    w.expect(&[("phone", Trigger, Reason::Escalated)]);
}

#[test]
fn a_silence_stops_a_page_that_climbs() {
    let mut w = World::new(two_levels());
    w.raise("r", Kind::Hang, Page);
    w.news();
    w.silence("run=\"r\"", Span::secs(3600));
    w.forward(Span::secs(3599));
    w.expect(&[]);
    w.forward(Span::secs(1));
    w.expect(&[("phone", Trigger, Reason::SilenceEnded)]);
}

#[test]
fn a_person_who_asks_for_more_is_heard_in_a_silence() {
    let mut w = World::new(two_levels());
    w.silence("run=\"r\"", Span::secs(3600));
    let id = w.raise("r", Kind::Hang, Page);
    w.input(Input::Act { incident: &id, by: "bob", action: &IncidentAction::Escalate });
    w.expect(&[("chat", Trigger, Reason::Escalated)]);
}

#[test]
fn a_hang_hides_the_slowness_it_causes() {
    let mut w = World::new(two_levels());
    let hang = w.raise("r", Kind::Hang, Page);
    let slow = w.raise("r", Kind::Straggler, Ticket);
    let other = w.raise("s", Kind::Straggler, Ticket);
    w.expect(&[("chat", Trigger, Reason::First), ("chat", Trigger, Reason::First)]);
    assert_eq!(
        (suppressed_as(&w, &slow), suppressed_as(&w, &other)),
        (Some(SuppressionReason::Inhibited), None)
    );
    assert_eq!(w.records[&slow].suppression.as_ref().map(|q| q.by.clone()), Some(hang.clone()));
    w.input(Input::Act { incident: &hang, by: "alice", action: &IncidentAction::Ack });
    w.news();
    // The hang is over, and the run is still slow.
    w.said("r", Clear, Kind::Hang, Page);
    w.forward(Span::secs(60));
    w.expect(&[("chat", Resolve, Reason::Resolved), ("chat", Trigger, Reason::InhibitionEnded)]);
}

#[test]
fn what_nobody_was_notified_of_comes_back_worse_and_notifies_once() {
    let mut w = World::new(two_levels());
    let hang = w.raise("r", Kind::Hang, Page);
    w.raise("r", Kind::Straggler, Ticket);
    w.said("r", Clear, Kind::Straggler, Ticket);
    w.input(Input::Act { incident: &hang, by: "alice", action: &IncidentAction::Resolve });
    w.news();
    w.raise("r", Kind::Straggler, Page);
    w.expect(&[("chat", Trigger, Reason::Raised)]);
}

/// Feeds a finding about a node that no run uses, and returns its incident.
fn faulty(w: &mut World, node: &str, kind: Kind, severity: Severity) -> String {
    w.said_of(Scope::Node(node.into()), "", Raise, kind, severity);
    let is = |r: &&IncidentRecord| r.nodes == [node] && r.cause == kind.cause() && r.state != State::Resolved;
    w.records.values().find(is).map(|r| r.id.clone()).unwrap_or_default()
}

/// A hang explains that there is no checkpoint; both are pages.
fn hang_and_no_checkpoint(w: &mut World) -> (String, String) {
    let rule = InhibitRule {
        name: "no-checkpoint-while-it-hangs".into(),
        source_matchers: vec!["kind=\"hang\"".into()],
        target_matchers: vec!["cause=\"checkpoint\"".into()],
        equal: vec!["run".into()],
    };
    w.config.inhibit_rules = vec![rule];
    w.reload();
    (w.raise("r", Kind::Hang, Page), w.raise("r", Kind::CkptStale, Page))
}

#[test]
fn what_is_silenced_explains_nothing_unless_somebody_has_it() {
    let mut w = World::new(two_levels());
    w.silence("kind=\"hang\"", Span::secs(36_000));
    let (source, target) = hang_and_no_checkpoint(&mut w);
    w.expect(&[("chat", Trigger, Reason::First)]);
    assert_eq!(
        (suppressed_as(&w, &source), suppressed_as(&w, &target)),
        (Some(SuppressionReason::Silenced), None)
    );
    w.forward(Span::secs(300));
    w.expect(&[("phone", Trigger, Reason::Escalated)]);
    // A person acknowledges it while it is silenced.
    w.input(Input::Act { incident: &source, by: "alice", action: &IncidentAction::Ack });
    w.forward(Span::secs(7200));
    w.expect(&[]);
    assert_eq!(suppressed_as(&w, &target), Some(SuppressionReason::Inhibited));
    // The acknowledgement is removed.
    w.input(Input::Act { incident: &source, by: "alice", action: &IncidentAction::Unack });
    w.expect(&[("phone", Trigger, Reason::InhibitionEnded)]);
    assert!(w.has_said("does not explain it any more"), "{:#?}", w.history);
}

#[test]
fn a_silence_shows_what_its_incident_explained() {
    for answered in [false, true] {
        let mut w = World::new(two_levels());
        let (source, target) = hang_and_no_checkpoint(&mut w);
        w.expect(&[("chat", Trigger, Reason::First)]);
        if answered {
            w.input(Input::Act { incident: &source, by: "alice", action: &IncidentAction::Ack });
        }
        w.news();
        let silence = w.silence("kind=\"hang\"", Span::secs(36_000));
        if answered {
            w.forward(Span::secs(7200));
            w.expect(&[]);
            continue;
        }
        w.expect(&[("chat", Trigger, Reason::InhibitionEnded)]);
        assert_eq!(
            (suppressed_as(&w, &source), suppressed_as(&w, &target)),
            (Some(SuppressionReason::Silenced), None)
        );
        // It notifies people again, and explains the target again.
        w.input(Input::ExpireSilence { id: &silence });
        assert_eq!(
            (suppressed_as(&w, &source), suppressed_as(&w, &target)),
            (None, Some(SuppressionReason::Inhibited))
        );
    }
}

#[test]
fn a_noisy_node_that_is_silenced_does_not_suppress_its_gpus() {
    let mut w = World::new(two_levels());
    w.silence("kind=\"node_fault\"", Span::secs(36_000));
    let node = faulty(&mut w, "n5", Kind::NodeFault, Page);
    w.expect(&[]);
    let gpu = faulty(&mut w, "n5", Kind::GpuFault, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
    assert_eq!(
        (suppressed_as(&w, &node), suppressed_as(&w, &gpu)),
        (Some(SuppressionReason::Silenced), None)
    );
}

#[test]
fn a_ticket_that_is_part_of_a_page_explains_no_page() {
    let mut w = World::new(two_levels());
    w.said_of(Scope::Node("n5".into()), "r", Raise, Kind::NodeFault, Ticket);
    let run = RunSummary { name: "r".into(), gpus: Some(8), ..RunSummary::default() };
    let context = Context::new(Scope::Run("r".into()), run, ["n5".to_owned()].into(), w.now);
    w.said_by(&context, Raise, Kind::Hang, Page);
    assert_eq!(w.records.len(), 1, "{:#?}", w.history);
    w.news();
    // Another run on the node.
    w.said_of(Scope::Node("n5".into()), "s", Raise, Kind::GpuFault, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
}

#[test]
fn what_is_silenced_as_one_of_many_explains_nothing() {
    let mut w = World::new(ResponderConfig { batch_window: Span::secs(30), ..storms(2) });
    let slow = w.raise("r2", Kind::Straggler, Ticket);
    assert_eq!(suppressed_as(&w, &slow), None);
    (0..3).for_each(|i| drop(w.raise(&format!("r{i}"), Kind::Hang, Page)));
    w.forward(Span::secs(30));
    let hang = w.id("r2", Kind::Hang);
    assert_eq!(
        (suppressed_as(&w, &hang), suppressed_as(&w, &slow)),
        (Some(SuppressionReason::RolledUp), Some(SuppressionReason::Inhibited))
    );
    w.news();
    w.silence("kind=\"alert_storm\"", Span::secs(3600));
    w.expect(&[("chat", Trigger, Reason::InhibitionEnded)]);
    assert_eq!(suppressed_as(&w, &slow), None);
}

#[test]
fn what_explains_is_looked_at_no_sooner_for_a_restart() {
    let play = |restart: bool| {
        let mut w = World::new(ResponderConfig { batch_window: Span::secs(60), ..two_levels() });
        w.raise("r", Kind::Hang, Page);
        let slow = w.raise("r", Kind::Straggler, Ticket);
        if restart {
            w.restore();
        }
        w.said("r", Clear, Kind::Hang, Page);
        w.forward(Span::secs(60));
        (w.records[&slow].suppression.clone(), w.sent, w.history)
    };
    assert_eq!(play(true), play(false));
}

#[test]
fn what_is_over_before_its_reason_notifies_nobody() {
    let mut w = World::new(two_levels());
    let hang = w.raise("r", Kind::Hang, Page);
    w.raise("r", Kind::Straggler, Ticket);
    w.input(Input::Act { incident: &hang, by: "alice", action: &IncidentAction::Ack });
    w.said("r", Clear, Kind::Straggler, Ticket);
    w.forward(Span::secs(100));
    w.said("r", Clear, Kind::Hang, Page);
    w.news();
    w.forward(Span::secs(7200));
    w.expect(&[("chat", Resolve, Reason::Resolved)]);
}

#[test]
fn a_ticket_never_hides_a_page_and_two_never_hide_each_other() {
    let rule = |source: &str, target: &str| InhibitRule {
        name: format!("{source} over {target}"),
        source_matchers: vec![format!("cause=\"{source}\"")],
        target_matchers: vec![format!("cause=\"{target}\"")],
        equal: vec!["run".into()],
    };
    let inhibit_rules = vec![rule("numerics", "checkpoint"), rule("checkpoint", "numerics")];
    let mut w = World::new(ResponderConfig { inhibit_rules, ..two_levels() });
    w.raise("r", Kind::LossSpike, Ticket);
    w.news();
    w.raise("r", Kind::CkptStale, Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
    let (loss, ckpt) = (w.id("r", Kind::LossSpike), w.id("r", Kind::CkptStale));
    assert_eq!(
        (suppressed_as(&w, &loss), suppressed_as(&w, &ckpt)),
        (Some(SuppressionReason::Inhibited), None)
    );
    w.raise("r", Kind::Divergence, Page);
    w.forward(Span::secs(600));
    assert!(suppressed_as(&w, &loss).is_none() || suppressed_as(&w, &ckpt).is_none());
}

fn storms(incidents: u32) -> ResponderConfig {
    let storm = Storm { incidents, within: Span::secs(60), ..Storm::default() };
    ResponderConfig { storm, update_min_interval: Span::secs(30), ..two_levels() }
}

#[test]
fn a_storm_pages_once_and_keeps_everything() {
    let mut w = World::new(storms(3));
    for i in 0..20 {
        w.raise(&format!("r{i}"), Kind::Hang, Page);
        w.forward(Span::millis(100));
    }
    let mut want = vec![("chat", Trigger, Reason::First); 4];
    w.expect(&want);
    w.forward(Span::secs(29));
    w.expect(&[("chat", Update, Reason::StormGrew)]);
    let storm = w.records.values().find(|r| r.kind == Kind::AlertStorm).cloned().unwrap();
    assert_eq!((storm.severity, storm.value, w.records.len()), (Page, 17.0, 21));
    assert!(storm.summary.to_string().contains("17 × hang"), "{}", storm.summary);
    w.forward(Span::secs(300));
    want = vec![("phone", Trigger, Reason::Escalated); 4];
    w.expect(&want);
    // An acknowledgement of the storm covers its members.
    w.input(Input::Act { incident: &storm.id, by: "alice", action: &IncidentAction::Ack });
    w.expect(&[("chat", Ack, Reason::Acknowledged), ("phone", Ack, Reason::Acknowledged)]);
    let open = w.records.values().filter(|r| r.state == State::Open).count();
    assert_eq!(open, 3, "the ones that were notified by themselves");
    (3..20).for_each(|i| w.said(&format!("r{i}"), Clear, Kind::Hang, Page));
    w.forward(Span::secs(130));
    assert_eq!(w.records[&storm.id].state, State::Resolved);
}

#[test]
fn what_gets_worse_leaves_the_storm_and_what_comes_later_notifies() {
    let mut w = World::new(storms(2));
    for i in 0..5 {
        w.raise(&format!("r{i}"), Kind::Straggler, Ticket);
    }
    w.expect(&[("chat", Trigger, Reason::First); 3]);
    w.raise("r4", Kind::ThroughputDrop, Page);
    w.expect(&[("chat", Trigger, Reason::Raised)]);
    w.forward(Span::secs(61));
    w.news();
    w.raise("late", Kind::Straggler, Ticket);
    w.expect(&[("chat", Trigger, Reason::First)]);
}

#[test]
fn an_acknowledged_storm_that_is_back_rings_again() {
    let mut w = World::new(storms(2));
    let burst = |w: &mut World, name: &str| {
        for i in 0..6 {
            w.raise(&format!("{name}{i}"), Kind::Hang, Page);
        }
    };
    burst(&mut w, "a");
    let storm = w.records.values().find(|r| r.kind == Kind::AlertStorm).map(|r| r.id.clone()).unwrap();
    w.input(Input::Act { incident: &storm, by: "alice", action: &IncidentAction::Ack });
    w.news();
    w.forward(Span::secs(200));
    burst(&mut w, "b");
    let notified = w.news();
    let again = |n: &&(String, Action, Reason)| n.1 == Trigger && n.2 == Reason::StormGrew;
    assert_eq!(notified.iter().filter(again).count(), 1, "{notified:?}");
}

#[test]
fn grouping_by_labels_makes_one_of_several_causes() {
    let mut w = World::new(ResponderConfig { group_by: vec!["run".into()], ..two_levels() });
    w.raise("r", Kind::LossSpike, Ticket);
    w.said("r", Raise, Kind::Straggler, Ticket);
    w.said("r", Raise, Kind::CkptStale, Page);
    w.said("s", Raise, Kind::CkptStale, Page);
    assert_eq!(w.records.len(), 2, "{:#?}", w.history);
}

//! Incidents that a person resolves while they still fire.

use super::*;
use crate::effect::Tx;
use crate::external::{Alert, Limits, PostedAlert};
use crate::incident::Ended;
use Action::{Resolve, Trigger};
use Change::{Clear, Raise};
use Severity::{Page, Ticket};

fn resolve(w: &mut World, id: &str) {
    w.input(Input::Act { incident: id, by: "cli:alice", action: &IncidentAction::Resolve });
}

fn state(w: &World, id: &str) -> (State, Option<Ts>) {
    (w.records[id].state, w.records[id].reopens_at())
}

/// A hang that was paged, escalated to its last level and resolved by hand.
fn closed() -> (World, String) {
    let mut w = World::new(two_levels());
    let id = w.raise("r", Kind::Hang, Page);
    w.forward(Span::secs(300));
    w.news();
    resolve(&mut w, &id);
    (w, id)
}

#[test]
fn it_comes_back_as_the_same_incident_and_rings_by_its_policy() {
    let (mut w, id) = closed();
    let back = w.now + Span::secs(600);
    let last = w.sent.last().unwrap().message.clone();
    let want = format!(
        "resolved by cli:alice; still firing: comes back at {back} unless it is over by then; silence it to keep it quiet"
    );
    assert_eq!((last.reason, last.ended), (want, Some(Ended::Person)));
    w.expect(&[("chat", Resolve, Reason::Resolved), ("phone", Resolve, Reason::Resolved)]);
    assert_eq!(state(&w, &id), (State::Resolved, Some(back)));
    assert_eq!(w.engine.open_count(), 0);
    // The finding is repeated, which that person knows of, and the process is killed.
    w.said("r", Raise, Kind::Hang, Page);
    w.restore();
    w.forward(Span::secs(599));
    w.expect(&[]);
    w.forward(Span::secs(1));
    assert_eq!(w.sent[0].message.reason, "reopened: still firing 10m after cli:alice resolved it");
    let (seq, status) = (w.sent[0].seq, w.sent[0].message.status);
    assert_eq!((seq, status), (3, crate::message::Status::Firing), "after its first word and its end");
    w.expect(&[("chat", Trigger, Reason::Reopened)]);
    assert_eq!(state(&w, &id), (State::Open, None));
    assert_eq!(w.records[&id].level, 1, "level 2 has not been notified since");
    assert_eq!((w.records.len(), w.records[&id].resolved_at), (1, None));
    assert!(w.has_said("reopened: still firing 10m after cli:alice resolved it"));
    w.forward(Span::secs(300));
    assert_eq!(w.sent[0].message.reason, "escalated to level 2: no answer for 5m", "since it came back");
    w.expect(&[("phone", Trigger, Reason::Escalated)]);
    w.forward(Span::secs(300));
    assert_eq!(w.sent[0].message.reason, "level 2 again (1): no answer for 10m", "since it came back");
    w.news();
    // And once more.
    resolve(&mut w, &id);
    w.news();
    w.forward(Span::secs(600));
    w.expect(&[("chat", Trigger, Reason::Reopened)]);
}

#[test]
fn somebody_wants_it_back_at_once() {
    let (mut w, id) = closed();
    w.news();
    w.forward(Span::secs(60));
    let by = "pagerduty:Jane (primary)";
    w.input(Input::Act { incident: &id, by, action: &IncidentAction::Reopen });
    assert_eq!(w.sent[0].message.reason, "reopened: by pagerduty:Jane (primary)");
    w.expect(&[("chat", Trigger, Reason::Reopened)]);
    assert_eq!((state(&w, &id), w.records[&id].asked_anew_at), ((State::Open, None), Some(w.now)));
    // Reopening changes neither an open incident, nor one that is over.
    w.input(Input::Act { incident: &id, by, action: &IncidentAction::Reopen });
    w.expect(&[]);
    resolve(&mut w, &id);
    w.said("r", Clear, Kind::Hang, Page);
    w.news();
    w.input(Input::Act { incident: &id, by, action: &IncidentAction::Reopen });
    w.expect(&[]);
    assert_eq!(state(&w, &id), (State::Resolved, None));
}

#[test]
fn what_an_earlier_answer_did_not_know_of_is_asked_anew() {
    let mut w = World::new(two_levels());
    let id = w.raise("r", Kind::LossSpike, Ticket);
    assert_eq!(w.records[&id].asked_anew_at, None);
    w.forward(Span::secs(60));
    w.said("r", Raise, Kind::LossSpike, Page);
    let raised = w.now;
    assert_eq!(w.records[&id].asked_anew_at, Some(raised));
    w.input(Input::Act { incident: &id, by: "ann", action: &IncidentAction::Ack });
    w.forward(Span::secs(60));
    w.input(Input::Act { incident: &id, by: "ann", action: &IncidentAction::Unack });
    assert_eq!(w.records[&id].asked_anew_at, Some(raised), "it is what it was");
    w.input(Input::Act { incident: &id, by: "ann", action: &IncidentAction::Ack });
    w.said("r", Raise, Kind::Divergence, Page);
    assert_eq!((w.records[&id].state, w.records[&id].asked_anew_at), (State::Open, Some(w.now)));
}

#[test]
fn what_is_over_by_then_stays_resolved() {
    let (mut w, id) = closed();
    w.news();
    w.forward(Span::secs(300));
    let resolved = w.records[&id].resolved_at;
    w.said("r", Clear, Kind::Hang, Page);
    assert_eq!(state(&w, &id), (State::Resolved, None));
    assert_eq!(w.records[&id].resolved_at, resolved);
    assert!(w.has_said("it does not fire any more: stays resolved"));
    w.restore();
    w.forward(Span::secs(7200));
    w.expect(&[]);
    // A later finding opens another incident.
    let next = w.raise("r", Kind::Hang, Page);
    assert_ne!(next, id);
    w.expect(&[("chat", Trigger, Reason::First)]);
}

#[test]
fn what_is_worse_or_of_another_nature_does_not_wait() {
    let mut w = World::new(two_levels());
    let id = w.raise("r", Kind::LossSpike, Ticket);
    resolve(&mut w, &id);
    w.news();
    w.said("r", Raise, Kind::LossSpike, Page);
    w.expect(&[("chat", Trigger, Reason::Raised)]);
    assert_eq!((w.id("r", Kind::LossSpike), w.records.len()), (id.clone(), 1));
    resolve(&mut w, &id);
    w.news();
    // A ticket beside a page reopens with it.
    w.said("r", Raise, Kind::LossShift, Ticket);
    w.expect(&[]);
    w.said("r", Raise, Kind::Divergence, Page);
    w.expect(&[("chat", Trigger, Reason::Reopened)]);
    assert_eq!(w.records.len(), 1, "{:#?}", w.history);
}

#[test]
fn what_is_left_is_less_than_a_page_and_comes_back_as_that() {
    let mut w = World::new(two_levels());
    let id = w.raise("r", Kind::Divergence, Page);
    w.said("r", Raise, Kind::LossShift, Ticket);
    resolve(&mut w, &id);
    w.said("r", Clear, Kind::Divergence, Page);
    assert_eq!(state(&w, &id).1, Some(START + Span::secs(600)), "the ticket is left");
    w.news();
    w.forward(Span::secs(600));
    let left = w.id("r", Kind::LossShift);
    assert_eq!((w.records[&left].severity, left == id), (Ticket, false));
    assert!(w.news().iter().any(|(to, action, _)| to == "chat" && *action == Trigger));
    assert_eq!(w.records[&id].state, State::Resolved);
}

#[test]
fn a_silence_suppresses_it_and_lasts_while_it_fires() {
    let (mut w, id) = closed();
    w.news();
    let silence = w.silence("run=\"r\"", Span::secs(3600));
    w.forward(Span::secs(600));
    w.expect(&[]);
    assert!(w.records[&id].state == State::Open && w.records[&id].suppression.is_some());
    w.input(Input::ExpireSilence { id: &silence });
    assert_eq!(w.news().len(), 1);
}

#[test]
fn it_goes_with_its_run() {
    let (mut w, id) = closed();
    w.news();
    let mut out = Vec::new();
    w.engine.manager().run_ended(&mut Tx::new(w.now, &mut out), "r", false, &BTreeMap::new());
    w.engine.reconsider(w.now, &mut out);
    w.absorb(out);
    assert_eq!(state(&w, &id), (State::Resolved, None));
}

#[test]
fn what_was_in_a_storm_that_is_resolved_comes_back_without_it() {
    let mut config = two_levels();
    config.storm.incidents = 1;
    let mut w = World::new(config);
    let by_name = w.raise("r1", Kind::Hang, Page);
    let member = w.raise("r2", Kind::Hang, Page);
    let over = w.raise("r3", Kind::Hang, Page);
    let storm = w.records.values().find(|r| r.kind == Kind::AlertStorm).unwrap().id.clone();
    resolve(&mut w, &storm);
    w.input(Input::Act { incident: &by_name, by: "alice", action: &IncidentAction::Ack });
    let back = Some(w.now + Span::secs(600));
    assert_eq!(state(&w, &storm), (State::Resolved, None));
    assert_eq!((state(&w, &member), state(&w, &over)), ((State::Resolved, back), (State::Resolved, back)));
    w.said("r3", Clear, Kind::Hang, Page);
    w.restore();
    w.news();
    w.forward(Span::secs(599));
    w.expect(&[]);
    w.forward(Span::secs(1));
    assert_eq!(w.sent[0].message.reason, "reopened: still firing 10m after cli:alice resolved it");
    w.expect(&[("chat", Trigger, Reason::Reopened)]);
    assert_eq!((state(&w, &member), state(&w, &over)), ((State::Open, None), (State::Resolved, None)));
}

#[test]
fn an_own_fault_that_is_mended_while_it_is_closed_is_notified_anew_when_it_is_back() {
    let mut w = World::new(two_levels());
    let fault = |w: &mut World, fault| w.input(Input::Own { check: "disk", severity: Page, fault });
    fault(&mut w, Some("full"));
    let id = w.records.keys().next().unwrap().clone();
    resolve(&mut w, &id);
    fault(&mut w, None);
    assert_eq!(state(&w, &id), (State::Resolved, None));
    w.news();
    fault(&mut w, Some("full"));
    assert_eq!(w.news().len(), 1);
}

#[test]
fn an_alert_comes_back_too_and_a_new_one_beside_it_at_once() {
    let post = |w: &mut World, service: &str, lasts: Span| {
        let labels = [("alertname", "DiskFull"), ("severity", "critical"), ("service", service)];
        let labels = labels.iter().map(|(n, v)| (Box::from(*n), Box::from(*v))).collect();
        let alert = Alert::new(labels, [].into_iter().collect(), w.now, "", &Limits::default()).unwrap();
        w.input(Input::Alerts {
            posted: &[PostedAlert { alert: alert.into(), ends_at: Some(w.now + lasts) }],
        });
    };
    let day = Span::secs(86_400);
    for other in [false, true] {
        let mut w = World::new(two_levels());
        post(&mut w, "pay", day);
        let id = w.records.keys().next().unwrap().clone();
        resolve(&mut w, &id);
        w.news();
        w.forward(Span::secs(60));
        post(&mut w, "pay", day);
        w.expect(&[]);
        if other {
            post(&mut w, "cart", day);
        } else {
            w.forward(Span::secs(540));
        }
        w.expect(&[("chat", Trigger, Reason::Reopened)]);
        assert_eq!((state(&w, &id).0, w.records.len()), (State::Open, 1));
    }
    let mut w = World::new(two_levels());
    post(&mut w, "pay", day);
    let id = w.records.keys().next().unwrap().clone();
    resolve(&mut w, &id);
    post(&mut w, "pay", Span::ZERO);
    assert_eq!(state(&w, &id), (State::Resolved, None));
}

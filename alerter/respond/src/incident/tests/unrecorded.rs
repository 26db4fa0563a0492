//! Decisions that are made again after a crash before they were stored. Their notifications may
//! have been sent, so they must have the same keys.

use super::*;
use Severity::{Page, Ticket};

/// Decides something, crashes before anything is stored, and decides it again 20 s later. Returns
/// the keys of what was sent both times.
fn twice(decide: impl Fn(&mut World)) -> (Vec<String>, Vec<String>) {
    let mut w = World::new(two_levels());
    let keys = |w: &mut World| {
        decide(w);
        core::mem::take(&mut w.sent).into_iter().map(|n| n.idem_key).collect::<Vec<_>>()
    };
    let first = keys(&mut w);
    w.parts.clear();
    w.restore();
    w.records.clear();
    w.now = w.now + Span::secs(20);
    // Another incident opens first now.
    w.raise("other", Kind::MfuDroop, Ticket);
    w.news();
    (first, keys(&mut w))
}

#[test]
fn a_finding_of_a_step_has_the_same_keys() {
    let found = |w: &mut World| {
        let run = RunSummary { name: "r".into(), gpus: Some(8), ..RunSummary::default() };
        let context = Context::new(Scope::Run("r".into()), run, BTreeSet::new(), w.now);
        let mut out = Vec::new();
        w.engine.judge(w.now, &context, &raised(Ts(START.0 - 1_000), Kind::Nonfinite, Page), &mut out);
        w.absorb(out);
    };
    let (first, again) = twice(found);
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(first, again);
}

#[test]
fn a_fault_of_the_store_has_the_same_keys() {
    let full = Input::Store { fault: Some("full"), recorded: Some(Ts(START.0 - 9_000)) };
    let (first, again) = twice(|w| w.input(full));
    assert!(!first.is_empty());
    assert_eq!(first, again);
}

#[test]
fn the_next_of_its_kind_has_another() {
    let mut w = World::new(two_levels());
    let ids = (0..3).map(|_| {
        w.said("r", Change::Raise, Kind::Nonfinite, Page);
        let id = w.id("r", Kind::Nonfinite);
        w.input(Input::Act { incident: &id, by: "cli:alice", action: &IncidentAction::Resolve });
        w.said("r", Change::Clear, Kind::Nonfinite, Page);
        id
    });
    assert_eq!(ids.collect::<BTreeSet<_>>().len(), 3, "all within one millisecond");
    let faults = (0..3).map(|n| {
        let recorded = Some(START + Span::secs(n));
        w.input(Input::Store { fault: Some("full"), recorded });
        let open = |r: &&IncidentRecord| r.kind == Kind::AlerterFault && r.state == State::Open;
        let id = w.records.values().find(open).unwrap().id.clone();
        w.input(Input::Store { fault: None, recorded });
        w.forward(Span::secs(600));
        id
    });
    assert_eq!(faults.collect::<BTreeSet<_>>().len(), 3);
}

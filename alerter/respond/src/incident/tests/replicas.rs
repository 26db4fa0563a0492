//! Replicas of the alerter that differ from the one that leads.

use super::*;
use crate::effect::Differing;

fn other(version: Option<&str>, configuration: bool) -> Differing {
    Differing { address: "http://b:9766".into(), version: version.map(str::to_owned), configuration }
}

#[test]
fn a_difference_is_one_ticket_until_all_agree() {
    let mut w = World::new(two_levels());
    w.input(Input::Replicas { differing: &[] });
    assert!(w.records.is_empty());
    w.input(Input::Replicas { differing: &[other(Some("0.2.0"), true)] });
    let record = w.records.values().next().unwrap().clone();
    assert_eq!((record.kind, record.severity), (Kind::ConfigDrift, Severity::Ticket));
    assert_eq!(record.place(), "this alerter");
    assert_eq!(
        record.summary.to_string(),
        "replicas differ from the one that leads: http://b:9766 has another configuration and the \
         version 0.2.0"
    );
    w.input(Input::Replicas { differing: &[other(None, true)] });
    assert_eq!(w.records.len(), 1);
    w.input(Input::Replicas { differing: &[] });
    w.forward(Span::secs(600));
    assert_eq!(w.records[&record.id].state, State::Resolved);
}

#[test]
fn a_message_names_a_few_replicas() {
    let mut w = World::new(two_levels());
    w.input(Input::Replicas { differing: &vec![other(Some("0.2.0"), false); 6] });
    let record = w.records.values().next().unwrap();
    let summary = record.summary.to_string();
    assert_eq!(summary.matches("http://b:9766 has the version 0.2.0").count(), 4, "{summary}");
    assert!(summary.ends_with(", and 2 more"), "{summary}");
}

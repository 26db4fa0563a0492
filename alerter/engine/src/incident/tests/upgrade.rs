//! What the version before stored of its incidents: a page that waits for an answer, one that somebody took, one closed by hand.

use super::*;
use Action::{Ack, Trigger};

const TAKEN: (&str, &str) = (
    "incident/01M7XY8XE00ETMVX",
    "041030314d375859385845303045544d56580574616b656e0000000201046c6f737304040400000000000000f87f0000000000000440000000000000f03f646c6f7373206973204e614e3b20746865206c6173742066696e697465206c6f73732077617320322e353b206576657279206675727468657220737465702069732077617374656420756e74696c207468652072756e20697320726f6c6c6564206261636b0080d7a3bebf68000109636c693a616c69636501c080abbebf680100000574616b656e08000001040000000000000000000000000000000000000000000000000000000001000574616b656e0001000574616b656e00000200000001046368617402",
);
const WAITS: (&str, &str) = (
    "incident/01M7XY8XE0X38TKN",
    "041030314d37585938584530583338544b4e0577616974730000000200046c6f737304040400000000000000f87f0000000000000440000000000000f03f646c6f7373206973204e614e3b20746865206c6173742066696e697465206c6f73732077617320322e353b206576657279206675727468657220737465702069732077617374656420756e74696c207468652072756e20697320726f6c6c6564206261636b0080d7a3bebf680000000101c0a6c8bebf68000577616974730800000104000000000000000000000000000000000000000000000000000000000100057761697473000100057761697473000002000001020001046368617400c0cf24010570686f6e6502010001c0a6c8bebf680001046368617401",
);
const LEDGER: (&str, &str) = ("ledger", "0403010006636c6f73656400c080abbebf6800010002");

fn upgraded() -> World {
    let bytes = |hex: &str| {
        let digits: Vec<u8> = hex.chars().map(|c| c.to_digit(16).unwrap() as u8).collect();
        digits.chunks(2).map(|pair| 16 * pair[0] + pair[1]).collect::<Vec<u8>>()
    };
    let mut w = World::new(two_levels());
    w.parts = [WAITS, TAKEN, LEDGER].map(|(key, hex)| (key.to_owned(), bytes(hex))).into();
    w.restore();
    for record in w.engine.open_incidents().cloned().collect::<Vec<_>>() {
        w.records.insert(record.id.clone(), record);
    }
    w
}

#[test]
fn a_page_goes_on_climbing_and_an_answer_stands() {
    let mut w = upgraded();
    let state = |w: &World, run: &str| w.records.values().find(|r| r.run == run).map(|r| (r.state, r.level));
    assert_eq!(state(&w, "waits"), Some((State::Open, 1)));
    assert_eq!(state(&w, "taken"), Some((State::Acknowledged, 1)));
    w.forward(Span::secs(299));
    w.expect(&[]);
    w.forward(Span::secs(1));
    w.expect(&[("phone", Trigger, Reason::Escalated)]);
    w.forward(Span::secs(86_400));
    let pages = w.news().iter().filter(|n| n.1 == Trigger).count();
    assert!(pages > 40, "{pages}");
    let waits = w.id("waits", Kind::Nonfinite);
    w.input(Input::Ack { incident: &waits, by: "alice" });
    w.expect(&[("chat", Ack, Reason::Acknowledged), ("phone", Ack, Reason::Acknowledged)]);
}

#[test]
fn who_passes_on_what_was_taken_before_is_heard() {
    let mut w = upgraded();
    let taken = w.id("taken", Kind::Nonfinite);
    w.input(Input::Escalate { incident: &taken, by: "alice" });
    w.expect(&[("chat", Trigger, Reason::Escalated)]);
}

#[test]
fn what_a_person_closed_for_ever_is_heard_of_when_it_is_told_again() {
    let mut w = upgraded();
    w.said("closed", Change::Raise, Kind::Nonfinite, Severity::Page);
    w.expect(&[("chat", Trigger, Reason::First)]);
}

//! Which findings are one incident.

use std::collections::BTreeSet;

use super::raised;
use crate::config::ResponderConfig;
use crate::effect::Tx;
use crate::incident::manager::Manager;
use stepwatch_model::{
    Cause, Change, Context, Finding, Kind, Num, Observation, RunSummary, Scope, Severity, Span, Subject,
    Suspect, Target, Ts,
};

/// A finding: seconds after the beginning, its context, and what it is.
type Reported = (i64, Context, Kind, Severity);

fn at(seconds: i64) -> Ts {
    Ts(1_795_227_416_000) + Span::secs(seconds)
}

fn named(name: &str) -> RunSummary {
    RunSummary { name: name.into(), ..RunSummary::default() }
}

fn set(nodes: &[&str]) -> BTreeSet<String> {
    nodes.iter().map(|n| (*n).to_owned()).collect()
}

/// A run on `n1` and `n2` that was last healthy at this second.
fn run(name: &str, well: i64) -> Context {
    Context::new(Scope::Run(name.into()), named(name), set(&["n1", "n2"]), at(well))
}

/// A node, and the run that uses it, if any.
fn node(name: &str, run: &str) -> Context {
    Context::new(Scope::Node(name.into()), named(run), set(&[name]), at(0))
}

fn finding((seconds, _, kind, severity): &Reported) -> Finding {
    raised(at(*seconds), *kind, *severity)
}

fn book(story: &[Reported]) -> Manager {
    let mut book = Manager::new(ResponderConfig::default());
    for reported in story {
        book.finding(&mut Tx::new(at(reported.0), &mut Vec::new()), &reported.1, &finding(reported));
    }
    book
}

const TICKET: Severity = Severity::Ticket;
const PAGE: Severity = Severity::Page;

/// Whether two findings are one incident.
fn one(first: Reported, second: Reported) -> bool {
    book(&[first, second]).open.len() == 1
}

#[test]
fn a_run_that_stops_or_slows_down_on_a_node_that_was_faulty_shortly_before() {
    let faulty = |of: &str| (0, node("n1", of), Kind::GpuFault, TICKET);
    let hang = |well| (well + 300, run("a", well), Kind::Hang, PAGE);
    assert!(one(faulty(""), hang(600)) && !one(faulty(""), hang(601)));
    let slow = |well| (well + 60, run("a", well), Kind::ThroughputDrop, TICKET);
    assert!(one(faulty(""), slow(1800)) && !one(faulty(""), slow(1801)));
    assert!(one(faulty("a"), hang(600)) && !one(faulty("b"), hang(600)), "it is another run's");
    assert!(!one(faulty(""), (10, run("a", 5), Kind::LossSpike, PAGE)), "no GPU makes the loss jump");
    assert!(!one((0, node("n9", ""), Kind::GpuFault, TICKET), hang(60)), "a node of none of its ranks");
    assert!(!one((0, node("n1", ""), Kind::ConfigDrift, TICKET), hang(60)), "that stops no run");
}

#[test]
fn a_node_that_is_faulty_under_a_run_that_stopped_or_slowed_down_shortly_before() {
    let faulty = |seconds, kind, of: &str| (seconds, node("n1", of), kind, TICKET);
    let hang = || (0, run("a", -300), Kind::Hang, PAGE);
    assert!(one(hang(), faulty(5000, Kind::GpuFault, "a")), "it still stands");
    assert!(one(hang(), faulty(5000, Kind::NodeFault, "a")));
    assert!(!one(hang(), faulty(5, Kind::GpuFault, "b")) && !one(hang(), faulty(5, Kind::GpuFault, "")));
    assert!(!one(hang(), faulty(5, Kind::ConfigDrift, "a")));
    let slow = || (0, run("a", -60), Kind::ThroughputDrop, TICKET);
    assert!(
        one(slow(), faulty(1800, Kind::Throttle, "a")) && !one(slow(), faulty(1801, Kind::Throttle, "a"))
    );
    assert!(!one(slow(), faulty(5, Kind::NodeFault, "a")), "a host has troubles that slow nothing down");
}

#[test]
fn a_run_that_is_slow_because_its_nodes_are_set_up_differently() {
    let setting = || {
        let longer = Observation::SettingComputesLonger {
            key: "driver".into(),
            value: "550".into(),
            expected: "570".into(),
            nodes: 4,
            others: 4,
            seconds: Num(3.3),
            usual: Num(2.8),
            step: None,
        };
        vec![Suspect::new(Target::Setting { key: "driver".into() }, longer)]
    };
    let slow = |kind, suspects| Finding { suspects, ..raised(at(10), kind, TICKET) };
    let drift_of = |key: &str| {
        let (value, expected) = ("550".into(), "570".into());
        let differs = Observation::Setting { key: key.into(), value, expected, on: None };
        let suspects = vec![Suspect::new(Target::node("n1"), differs)];
        Finding { suspects, value: 1.0, ..raised(at(60), Kind::ConfigDrift, TICKET) }
    };
    let drift = || drift_of("driver");
    let book = |story: &[Finding]| {
        let mut book = Manager::new(ResponderConfig::default());
        for v in story {
            book.finding(&mut Tx::new(v.ts, &mut Vec::new()), &run("a", 0), v);
        }
        book
    };
    let kinds = |book: &Manager| book.open.values().map(|i| i.record.kind).collect::<Vec<_>>();
    for story in [[slow(Kind::Straggler, setting()), drift()], [drift(), slow(Kind::MfuDroop, setting())]] {
        let mut both = book(&story);
        assert_eq!(kinds(&both), [Kind::ConfigDrift], "the cause names it, whichever comes first");
        let over = story.iter().find(|v| v.kind != Kind::ConfigDrift).map(|v| v.kind).unwrap();
        let over = Finding { change: Change::Clear, ..raised(at(90), over, Severity::Info) };
        both.finding(&mut Tx::new(at(90), &mut Vec::new()), &run("a", 0), &over);
        let left: Vec<Kind> =
            both.open.values().flat_map(|i| i.raised.keys().map(|(_, kind)| *kind)).collect();
        assert_eq!(left, [Kind::ConfigDrift], "the drift stands");
    }
    let apart = [slow(Kind::Straggler, Vec::new()), drift()];
    assert_eq!(book(&apart).open.len(), 2, "nothing says that the drift makes it slow");
    assert_eq!(book(&[slow(Kind::LossSpike, setting()), drift()]).open.len(), 2);
    let other = || drift_of("env.NCCL_ALGO");
    assert_eq!(book(&[slow(Kind::MfuDroop, setting()), other()]).open.len(), 2, "another setting differs");
    assert_eq!(book(&[other(), slow(Kind::MfuDroop, setting())]).open.len(), 2);
    let many = || Finding { value: 2.0, ..other() };
    assert_eq!(book(&[many(), slow(Kind::MfuDroop, setting())]).open.len(), 1, "not all are named");
    // A drift neither hides a page nor names it.
    let page = || Finding { severity: Severity::Page, ..slow(Kind::MfuDroop, setting()) };
    for story in [[drift(), page()], [page(), drift()]] {
        let both = book(&story);
        let led: Vec<_> = both.open.values().map(|i| (i.record.kind, i.record.severity)).collect();
        assert_eq!(led, [(Kind::MfuDroop, Severity::Page)]);
    }
}

#[test]
fn nodes_of_one_run_that_become_faulty_together() {
    let faulty = |seconds, name: &str, of: &str| (seconds, node(name, of), Kind::GpuFault, TICKET);
    assert!(
        one(faulty(0, "n1", "a"), faulty(600, "n2", "a"))
            && !one(faulty(0, "n1", "a"), faulty(601, "n2", "a"))
    );
    assert!(
        !one(faulty(0, "n1", "a"), faulty(5, "n2", "b")) && !one(faulty(0, "n1", ""), faulty(5, "n2", ""))
    );
    assert!(!one((0, node("n1", "a"), Kind::ConfigDrift, TICKET), faulty(5, "n2", "a")));
}

#[test]
fn links_that_go_down_together_whoever_uses_them() {
    let of = |name: &str, fabric: &[&str]| Context { fabric: set(fabric), ..node(name, "") };
    let all = ["n1", "n2", "n3"];
    let first = || (0, of("n1", &[]), Kind::LinkFault, TICKET);
    let then = |seconds, fabric, severity| (seconds, of("n3", fabric), Kind::LinkFault, severity);
    assert!(one(first(), then(60, &all, TICKET)) && !one(first(), then(61, &all, TICKET)));
    assert!(!one(first(), then(5, &[], TICKET)), "that both are down is chance");
    assert!(!one(first(), then(5, &["n2", "n3", "n4"], TICKET)), "others went down with it");
    assert!(!one(first(), then(5, &all, Severity::Info)));
    assert!(!one((0, node("n1", ""), Kind::GpuFault, TICKET), then(5, &all, TICKET)));
}

#[test]
fn what_was_reported_separately_becomes_one_unless_somebody_has_it() {
    let of = |name: &str, fabric: &[&str]| Context { fabric: set(fabric), ..node(name, "") };
    let down = |seconds, context, severity| (seconds, context, Kind::LinkFault, severity);
    let third = || down(2, of("n3", &["n1", "n2", "n3"]), TICKET);
    let story = |how| vec![down(0, of("n1", &[]), how), down(1, of("n2", &[]), how)];
    let nodes = |book: &Manager| book.open.values().map(|i| i.record.nodes.join(" ")).collect::<Vec<_>>();
    let mut book = Manager::new(ResponderConfig::default());
    let report = |book: &mut Manager, reported: Reported| {
        book.finding(&mut Tx::new(at(reported.0), &mut Vec::new()), &reported.1, &finding(&reported));
    };
    story(TICKET).into_iter().chain([third()]).for_each(|reported| report(&mut book, reported));
    assert_eq!(nodes(&book), ["n1 n3 n2"]);
    let mut book = Manager::new(ResponderConfig::default());
    story(TICKET).into_iter().for_each(|reported| report(&mut book, reported));
    let second = book.open.keys().last().cloned().unwrap_or_default();
    book.ack(&mut Tx::new(at(1), &mut Vec::new()), &second, "alice");
    report(&mut book, third());
    assert_eq!(book.open.len(), 2);
    let mut book = Manager::new(ResponderConfig::default());
    story(PAGE).into_iter().chain([third()]).for_each(|reported| report(&mut book, reported));
    let mut open = nodes(&book);
    open.sort();
    assert_eq!(open, ["n1 n3", "n2"], "what has paged stays, and the next joins the first");
}

#[test]
fn a_node_that_fell_silent_and_the_run_that_stopped_as_it_did() {
    let dark = |nodes: &[&str]| Context { lost: set(&["n1"]), dark: set(nodes), ..run("a", 0) };
    let lost = |nodes| (60, dark(nodes), Kind::SourceLost, TICKET);
    let hang = |nodes| (180, dark(nodes), Kind::Hang, PAGE);
    assert!(one(lost(&["n1"]), hang(&["n1"])) && one(hang(&["n1"]), lost(&["n1"])));
    assert!(!one(lost(&[]), hang(&[])) && !one(hang(&[]), lost(&[])), "an exporter alone");
    assert!(!one(lost(&["n1"]), hang(&["n2"])), "another exporter was away before");
    assert!(!one(lost(&["n1"]), (180, dark(&["n1"]), Kind::LossSpike, PAGE)));
    let faulty = |name: &str, of: &str| (0, node(name, of), Kind::GpuFault, PAGE);
    assert!(one(faulty("n1", "a"), lost(&["n1"])) && !one(faulty("n1", "a"), lost(&[])));
    assert!(!one(faulty("n2", "a"), lost(&["n1"])) && !one(faulty("n1", "b"), lost(&["n1"])));
}

#[test]
fn of_several_the_worst_then_the_oldest() {
    let ecc = |seconds, name: &str| (seconds, node(name, "a"), Kind::EccTrend, TICKET);
    let lost = (601, node("n2", "a"), Kind::GpuFault, PAGE);
    let hang = |well| (1500, run("a", well), Kind::Hang, PAGE);
    for (story, heir) in
        [(vec![ecc(0, "n1"), lost, hang(600)], "n2"), (vec![ecc(0, "n1"), ecc(601, "n2"), hang(600)], "n1")]
    {
        let book = book(&story);
        assert_eq!(book.open.len(), 2);
        let hang = Subject { scope: Scope::Run("a".into()), cause: Cause::Progress };
        let heirs: Vec<_> = book.open.values().filter(|i| i.subjects.contains(&hang)).collect();
        assert_eq!(heirs.len(), 1);
        assert!(heirs[0].record.nodes.contains(&heir.to_owned()), "{:?}", heirs[0].record);
    }
}

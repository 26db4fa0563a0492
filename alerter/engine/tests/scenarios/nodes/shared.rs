//! Nodes that several users share: to whom a fault is attributed, and whom alerts of other programs
//! reach.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use stepwatch_model::time::Span;
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::effect::Input;
use stepwatch_respond::external::{Alert, LabelSet, Limits, PostedAlert};
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_wire::{Event, Kind as EventKind, Value};

use super::bench::{Bench, fell_off, said, with};

const GENUINE: u32 = 1000;
const STRANGER: u32 = 12345;

/// A run of a user begins on the node with so many ranks, and declares this of itself.
fn begins(b: &mut Bench, run: &str, uid: Option<u32>, ranks: usize, declared: &[(&str, &str)]) {
    let hello = Event { run: Some(run.into()), node: Some("n1".into()), ..Event::new(EventKind::Hello) };
    b.feed(Event { rank: Some(0), uid, ..with(hello, declared) });
    b.steps(run, &vec!["n1"; ranks], 20);
}

fn ends(b: &mut Bench, run: &str) {
    let bye = Event { run: Some(run.into()), node: Some("n1".into()), ..Event::new(EventKind::Bye) };
    b.feed(Event { code: Some(0), rank: Some(0), ..bye });
}

fn shared(uid: Option<u32>) -> Bench {
    let mut b = Bench::new();
    begins(&mut b, "llama", Some(GENUINE), 1, &[("team", "llama")]);
    let own = [("team", "nobody"), ("owner", "nobody"), ("job", "snmp"), ("alertname", "X")];
    begins(&mut b, "scratch-x", uid, 40, &own);
    b.steps("llama", &["n1"], 1);
    b
}

fn label<'a>(i: &'a IncidentRecord, name: &str) -> &'a str {
    i.labels.get(name).map_or("", String::as_str)
}

fn fault(b: &Bench) -> &IncidentRecord {
    b.incidents.iter().find(|i| i.kind == Kind::GpuFault).unwrap()
}

#[test]
fn a_fault_of_a_node_of_several_users_is_of_none_of_their_runs() {
    // Nor does a run without a declared user pass for a run of any user.
    for uid in [Some(STRANGER), None] {
        let mut b = shared(uid);
        b.feed(fell_off("n1"));
        let i = fault(&b);
        assert_eq!((i.severity, i.run.as_str()), (Severity::Page, ""), "{i:#?}");
        assert_eq!([label(i, "run"), label(i, "team"), label(i, "owner")], [""; 3]);
        assert_eq!(label(i, "alertname"), "StepwatchGpuFault");
        assert!(
            i.summary.to_string().contains("scratch-x") && i.summary.to_string().contains("llama"),
            "{}",
            i.summary
        );
        // A run that stands then, or is alone then, has it no more than before.
        ends(&mut b, "llama");
        b.wait(2000);
        b.feed(with(fell_off("n1"), &[("again", "true")]));
        assert_eq!([label(fault(&b), "run"), label(fault(&b), "team")], [""; 2], "{:#?}", b.timeline);
        let hang = b.incidents.iter().find(|i| i.kind == Kind::Hang);
        assert_eq!(hang.map(|i| i.run.as_str()), Some("scratch-x"), "{:#?}", b.timeline);
    }
}

#[test]
fn a_fault_of_a_node_of_one_user_is_of_the_run_but_not_of_its_labels() {
    let mut b = Bench::new();
    begins(&mut b, "llama", Some(GENUINE), 1, &[("team", "llama")]);
    begins(&mut b, "eval", Some(GENUINE), 2, &[("team", "eval")]);
    b.steps("llama", &["n1"], 1);
    b.feed(fell_off("n1"));
    assert_eq!((fault(&b).run.as_str(), label(fault(&b), "team")), ("eval", ""));
    assert!(fault(&b).summary.to_string().contains("; llama too"), "{}", fault(&b).summary);
}

#[test]
fn a_fault_is_not_handed_to_the_run_of_another_user() {
    let mut b = Bench::new();
    begins(&mut b, "llama", Some(GENUINE), 1, &[]);
    b.feed(fell_off("n1"));
    assert_eq!((fault(&b).run.as_str(), b.pages()), ("llama", 1));
    begins(&mut b, "scratch-x", Some(STRANGER), 40, &[("team", "nobody")]);
    ends(&mut b, "llama");
    let i = fault(&b);
    assert_eq!([i.run.as_str(), label(i, "run"), label(i, "team")], [""; 3], "{:#?}", b.timeline);
    assert!(b.timeline.iter().any(|t| t.contains("runs of other users are on the node too")));
}

fn send_alert(b: &mut Bench, labels: &[(&str, &str)]) -> IncidentRecord {
    let page = labels.iter().chain(&[("severity", "page")]);
    let labels: LabelSet = page.map(|(n, v)| (Box::from(*n), Box::from(*v))).collect();
    let alert = Alert::new(labels, LabelSet::default(), b.now, "", &Limits::default()).unwrap();
    let posted = [PostedAlert { alert: alert.into(), ends_at: Some(b.now + Span::secs(3600)) }];
    b.answer(Input::Alerts { posted: &posted });
    b.incidents.last().unwrap().clone()
}

/// The exporter of a node sees a run in a job.
fn job(node: &str, id: &str, uid: Option<u32>, run: &str) -> Event {
    let mut e = Event { uid, ..said(EventKind::Health, node, "job", "info", "") };
    e.extra.insert("job".into(), Value::Text(id.into()));
    e.extra.insert("runs".into(), Value::List(vec![Value::Text(run.into())]));
    e
}

fn attested(mut e: Event) -> Event {
    e.extra.insert("attested".into(), Value::Bool(true));
    e
}

fn run_of_job(b: &mut Bench, name: &str, id: &str) -> String {
    send_alert(b, &[("alertname", name), ("slurm_job_id", id)]).run.clone()
}

#[test]
fn an_alert_of_a_job_is_of_the_user_whose_job_it_is() {
    let mut b = shared(Some(STRANGER));
    // Another user names the job in an environment, on a node whose name sorts before.
    b.feed(job("n0", "4711", Some(STRANGER), "scratch-x"));
    assert_eq!(run_of_job(&mut b, "Named", "4711"), "scratch-x", "nobody else does");
    b.feed(attested(job("n1", "4711", Some(GENUINE), "llama")));
    assert_eq!(run_of_job(&mut b, "Attested", "4711"), "llama");
    b.feed(attested(job("n2", "4711", Some(STRANGER), "scratch-x")));
    assert_eq!(run_of_job(&mut b, "Both", "4711"), "", "two clusters have a job of that number");
    // Without control groups it is the first user's.
    b.feed(job("n1", "4712", Some(GENUINE), "llama"));
    b.wait(60);
    b.feed(job("n0", "4712", Some(STRANGER), "scratch-x"));
    b.feed(job("n1", "4712", Some(GENUINE), "llama"));
    assert_eq!(run_of_job(&mut b, "First", "4712"), "llama");
}

#[test]
fn whoever_names_many_jobs_takes_no_place_of_others() {
    let mut b = shared(Some(STRANGER));
    (0..40).for_each(|i| b.feed(job("n1", &format!("1{i:02}"), Some(STRANGER), "scratch-x")));
    b.feed(job("n1", "4711", Some(GENUINE), "llama"));
    assert_eq!(run_of_job(&mut b, "Full", "4711"), "llama");
}

#[test]
fn an_alert_of_others_reaches_whom_its_own_labels_name() {
    let mut b = shared(Some(STRANGER));
    b.feed(job("n1", "4711", None, "llama"));
    for (name, labels, run) in [
        ("SwitchDown", [("job", "snmp"), ("instance", "switch-7:161")], ""),
        ("ScrapeDown", [("exported_job", "snmp"), ("team", "net")], ""),
        ("JobLost", [("job_id", "4711"), ("cluster", "a")], "llama"),
        ("DiskFull", [("node", "n1"), ("cluster", "a")], ""),
        ("Named", [("run", "scratch-x"), ("team", "net")], "scratch-x"),
    ] {
        let i = send_alert(&mut b, &[&[("alertname", name)] as &[_], &labels].concat());
        let team = labels.iter().find(|(n, _)| *n == "team").map_or("", |(_, team)| *team);
        assert_eq!((i.run.as_str(), label(&i, "run"), label(&i, "team")), (run, run, team), "{name}: {i:#?}");
        assert_eq!((label(&i, "alertname"), label(&i, "owner")), (name, ""), "{i:#?}");
        assert_eq!(i.severity, Severity::Page);
    }
}

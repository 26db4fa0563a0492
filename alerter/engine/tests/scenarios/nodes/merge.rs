//! A faulty node and the run that it stops are one incident, whichever is reported first.

use proptest::prelude::*;
use stepwatch_model::{Kind, Severity, Span};
use stepwatch_respond::incident::State;
use stepwatch_wire::{Event, Kind as EventKind, Value};

use super::bench::{Bench, dead, fell_off, gpu_lost, hw, link, xid};

#[test]
fn the_rank_dies_of_the_gpu() {
    let mut b = Bench::with_run("llama", &["gpu-7", "gpu-8"]);
    b.feed(fell_off("gpu-7"));
    b.wait(4);
    b.feed(dead("llama", 0, "gpu-7"));
    b.wait(1500);
    assert_eq!((b.summary(), b.pages()), (vec![(Kind::GpuFault, Severity::Page, State::Open)], 1));
    assert!(b.timeline.iter().any(|t| t.starts_with("also dead rank")), "{:#?}", b.timeline);
    assert!(b.last().standstill.is_some_and(|s| s.since.is_some()), "the GPU fault stopped a run");
}

#[test]
fn the_gpu_explains_the_rank_that_died_before_it_was_known() {
    let mut b = Bench::with_run("llama", &["gpu-7", "gpu-8"]);
    b.feed(dead("llama", 0, "gpu-7"));
    b.wait(40);
    assert_eq!(b.summary(), [(Kind::RankDead, Severity::Page, State::Open)]);
    b.feed(fell_off("gpu-7"));
    assert_eq!((b.summary(), b.pages()), (vec![(Kind::GpuFault, Severity::Page, State::Open)], 1));
    let i = b.last();
    assert!(i.suspects[0].what().starts_with("node gpu-7"), "{:?}", i.suspects);
    let news = b.notifications.last().unwrap();
    assert_eq!(news.reason_of(), "dead rank became GPU fault");
    assert!(news.message.summary.contains("XID 79"), "{}", news.message.summary);
}

trait Reason {
    fn reason_of(&self) -> &str;
}

impl Reason for stepwatch_respond::effect::Notification {
    fn reason_of(&self) -> &str {
        &self.message.reason
    }
}

#[test]
fn a_link_that_went_down_is_the_first_suspect_of_the_hang() {
    let mut b = Bench::with_run("llama", &["n1", "n2", "n3"]);
    b.feed(link("n2", "mlx5_3/1", false));
    b.wait(1300);
    assert_eq!((b.summary(), b.pages()), (vec![(Kind::LinkFault, Severity::Page, State::Open)], 1));
    assert!(b.timeline.iter().any(|t| t == "hang of llama: one fault"), "{:#?}", b.timeline);
    // The run moves and the link is up: over.
    b.feed(link("n2", "mlx5_3/1", true));
    b.steps("llama", &["n1", "n2", "n3"], 60);
    assert_eq!(b.summary(), [(Kind::LinkFault, Severity::Page, State::Resolved)]);
    let stood = b.last().standstill.unwrap();
    assert!(stood.since.is_none() && stood.before > Span::secs(60), "{stood:?}");
}

#[test]
fn what_is_no_incident_by_itself_is_still_evidence() {
    let mut b = Bench::with_run("llama", &["gpu-7", "gpu-8"]);
    b.feed(xid("gpu-8", 31, "info", "restart_app", "MMU fault, an illegal address"));
    b.feed(dead("llama", 1, "gpu-8"));
    b.wait(40);
    let i = b.last();
    assert_eq!((b.summary(), i.nodes.len()), (vec![(Kind::RankDead, Severity::Page, State::Open)], 0));
    assert!(i.suspects[0].why().contains("XID 31, MMU fault, an illegal address: look"), "{:?}", i.suspects);
}

#[test]
fn ranks_that_did_not_join_are_suspects_of_the_hang() {
    let mut b = Bench::with_run("llama", &["gpu-7", "gpu-8"]);
    let text = "rank 1 did not join AllReduce 4711 of communicator 0x1, 1 other waits";
    let mut e = hw("gpu-8", "ras_stuck", true, "error", text, &[]);
    e.extra.insert("ranks".into(), Value::List(vec![Value::Number(1.0), Value::Number(3.0)]));
    e.extra.insert("hosts".into(), Value::List(vec![Value::Text("gpu-7".into())]));
    b.feed(e);
    b.wait(1300);
    assert_eq!((b.summary().len(), b.pages()), (1, 1));
    let i = b.last();
    assert_eq!((i.kind, i.severity), (Kind::Hang, Severity::Page));
    assert_eq!(i.suspects[0].what(), "ranks 1, 3 on gpu-7");
    assert!(i.suspects[0].why().contains("rank 1 did not join"), "{:?}", i.suspects);
    assert!(i.summary.to_string().contains("rank 1 did not join"), "{}", i.summary);
}

#[test]
fn what_ras_says_of_the_runs_of_one_user_is_no_evidence_for_others() {
    let mut b = Bench::with_run("llama", &["gpu-7", "gpu-8"]);
    let mut e = hw("gpu-8", "ras_stuck", true, "error", "rank 1 did not join AllReduce 4711", &[]);
    e.extra.insert("ranks".into(), Value::List(vec![Value::Number(1.0)]));
    e.extra.insert("hosts".into(), Value::List(vec![Value::Text("gpu-7".into())]));
    e.extra.insert("runs".into(), Value::List(vec![Value::Text("other".into())]));
    b.feed(e);
    b.wait(300);
    let hangs = vec![(Kind::Hang, Severity::Ticket, State::Open)];
    assert_eq!(b.summary(), hangs, "its patience is its own, and the node has no trouble");
    b.wait(4000);
    let i = b.incidents.iter().find(|i| i.kind == Kind::Hang).unwrap();
    assert_eq!(i.severity, Severity::Page);
    assert!(i.suspects.iter().all(|s| !s.what().contains("gpu-7")), "{:?}", i.suspects);
    assert!(!i.summary.to_string().contains("did not join"), "{}", i.summary);
}

#[test]
fn nodes_of_other_runs_have_nothing_to_do_with_it() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.steps("other", &["gpu-9"], 100);
    b.feed(fell_off("gpu-9"));
    b.steps("other", &["gpu-9"], 1);
    b.feed(dead("llama", 0, "gpu-7"));
    b.wait(40);
    let mut kinds: Vec<_> = b.incidents.iter().map(|i| (i.run.as_str(), i.kind)).collect();
    kinds.sort();
    assert!(
        kinds.contains(&("other", Kind::GpuFault)) && kinds.contains(&("llama", Kind::RankDead)),
        "{kinds:?}"
    );
}

#[test]
fn a_fault_of_yesterday_does_not_explain_the_hang_of_today() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.feed(hw("gpu-7", "row_remap_pending", true, "warn", "a row waits to be remapped", &[("gpu", "GPU-x")]));
    for _ in 0..10 {
        b.steps("llama", &["gpu-7"], 300);
        b.feed(hw("gpu-7", "row_remap_pending", true, "warn", "", &[("gpu", "GPU-x"), ("again", "true")]));
    }
    b.wait(1300);
    assert_eq!(
        b.summary(),
        [(Kind::GpuFault, Severity::Ticket, State::Open), (Kind::Hang, Severity::Page, State::Open)]
    );
    assert!(b.last().suspects.iter().any(|s| s.what().starts_with("node gpu-7")), "but it is worth a look");
}

#[test]
fn the_run_ends_and_the_node_stays_faulty() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.feed(gpu_lost("gpu-7", true));
    let node = Some("gpu-7".to_owned());
    b.feed(Event { run: Some("llama".into()), code: Some(143), node, ..Event::new(EventKind::Bye) });
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Page, State::Open)]);
    assert_eq!(b.last().next_at, None, "whoever stopped the run knows");
    b.feed(gpu_lost("gpu-7", false));
    b.wait(61);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Page, State::Resolved)]);
}

#[test]
fn what_a_person_closed_stays_closed_for_both() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.feed(fell_off("gpu-7"));
    b.wait(5);
    b.feed(dead("llama", 0, "gpu-7"));
    b.wait(40);
    let id = b.last().id.clone();
    let mut out = Vec::new();
    use stepwatch_respond::effect::{IncidentAction, Input};
    let input = Input::Act { incident: &id, by: "alice", action: &IncidentAction::Resolve };
    b.engine.handle(b.now, input, &mut out);
    b.feed(fell_off("gpu-7"));
    b.wait(300);
    let others = b.summary().into_iter().filter(|i| i.0 != Kind::Hang && i.2 == State::Open).count();
    assert_eq!(others, 1, "the record as it was before the word of alice: {:?}", b.incidents);
    assert_eq!(b.engine.open_incidents().filter(|i| i.kind != Kind::Hang).count(), 0);
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Sign {
    FellOff,
    Lost,
    Cleanup,
    RankDead,
    LinkDown,
    OtherLinkDown,
    Mount,
}

const SIGNS: [Sign; 7] = [
    Sign::FellOff,
    Sign::Lost,
    Sign::Cleanup,
    Sign::RankDead,
    Sign::LinkDown,
    Sign::OtherLinkDown,
    Sign::Mount,
];

fn event(sign: Sign) -> Event {
    match sign {
        Sign::FellOff => fell_off("n1"),
        Sign::Lost => gpu_lost("n1", true),
        Sign::Cleanup => xid("n1", 45, "info", "none", "cleanup"),
        Sign::RankDead => dead("llama", 0, "n1"),
        Sign::LinkDown => link("n1", "mlx5_0/1", false),
        Sign::OtherLinkDown => link("n2", "mlx5_0/1", false),
        Sign::Mount => hw("n1", "mount_stuck", true, "error", "/data does not answer", &[("mount", "/data")]),
    }
}

fn story(order: &[(Sign, i64)], restart_at: Option<usize>) -> Bench {
    let mut b = Bench::with_run("llama", &["n1", "n2", "n3"]);
    // A hang is paged sooner of a run that was watched for an hour.
    b.steps_every(40, "llama", &["n1", "n2", "n3"], 90);
    for (nth, (sign, pause)) in order.iter().enumerate() {
        if restart_at == Some(nth) {
            b.restart();
        }
        b.feed(event(*sign));
        b.wait(*pause);
    }
    // Long enough for a hang, too short for a page without an answer to be repeated.
    b.wait(1000);
    b
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn in_any_order_of_reports_there_is_one_page(
        order in Just(SIGNS.to_vec()).prop_shuffle(),
        n in 1usize..=7,
        pauses in proptest::collection::vec(0i64..60, 7),
        restart in proptest::option::of(0usize..7),
    ) {
        let order: Vec<(Sign, i64)> = order.into_iter().take(n).zip(pauses).collect();
        let b = story(&order, restart);
        // A run that stands for a quarter of an hour pages in any case.
        prop_assert_eq!(b.pages(), 1, "{:#?}\n{:#?}", order, b.timeline);
        let pages = b.summary().iter().filter(|i| i.1 == Severity::Page).count();
        prop_assert_eq!(pages, 1);
        let page = b.incidents.iter().find(|i| i.severity == Severity::Page).unwrap();
        prop_assert_eq!(page.run.as_str(), "llama");
        let faulty = order.iter().any(|(s, _)| !matches!(s, Sign::RankDead | Sign::Cleanup | Sign::OtherLinkDown));
        prop_assert!(!faulty || page.nodes.contains(&"n1".to_owned()), "{:?}", page);
        // Restarting the program in between changes no message.
        prop_assert_eq!(story(&order, None).notifications, b.notifications);
    }
}

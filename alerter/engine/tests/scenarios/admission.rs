//! The limits of what a hostile exporter, or a hostile user of one, can do, and what an honest one
//! may still do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod owners;

use std::collections::{BTreeMap, BTreeSet};

use stepwatch_engine::{Engine, Refusal, SourceInput};
use stepwatch_model::{Kind, Severity, Span, Ts};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Action, Effect, Notification};
use stepwatch_wire::Event;

/// The limits of a source, as they are documented.
const HELD: Span = Span::secs(120);
const MOVES: usize = 3;
const RUNS_OF_SOURCE: usize = 512;
const RANKS_OF_SOURCE: u32 = 4096;
const SILENT: Span = Span::secs(60);

const NODE1: &str = "node001:9765";
const NODE2: &str = "node002:9765";

struct World {
    engine: Engine,
    now: Ts,
    notifications: Vec<Notification>,
    parts: BTreeMap<String, Vec<u8>>,
}

fn config() -> ResponderConfig {
    ResponderConfig { receivers: vec!["phone".into()], ..ResponderConfig::default() }
}

impl World {
    fn new() -> Self {
        Self {
            engine: Engine::new(config()),
            now: Ts(1_795_227_416_000),
            notifications: Vec::new(),
            parts: BTreeMap::new(),
        }
    }

    fn input<'a>(&mut self, input: impl Into<stepwatch_engine::AnyInput<'a>>) {
        let mut out = Vec::new();
        self.engine.handle(self.now, input, &mut out);
        self.absorb(out);
    }

    fn absorb(&mut self, effects: Vec<Effect>) {
        self.notifications.extend(effects.into_iter().filter_map(|effect| match effect {
            Effect::Notify(n) => Some(*n),
            _ => None,
        }));
        for (name, part) in self.engine.take_dirty() {
            match part {
                Some(bytes) => drop(self.parts.insert(name, bytes)),
                None => drop(self.parts.remove(&name)),
            }
        }
        assert_eq!(self.engine.audit(self.now), []);
    }

    /// An event of a source, without its braces; of the source's own node unless it names another.
    fn say(&mut self, source: &str, event: &str) {
        let node = source.split(':').next().unwrap_or_default();
        let own = if event.contains("\"node\"") { String::new() } else { format!(r#","node":"{node}""#) };
        let mut event = Event::parse(format!("{{{event}{own}}}").as_bytes()).unwrap();
        event.ts = Some(self.now.as_secs_f64());
        self.input(SourceInput::Event { source, event: &event });
    }

    fn step(&mut self, source: &str, run: &str, rank: u32, step: i64, loss: &str) {
        self.say(
            source,
            &format!(r#""k":"step","run":"{run}","rank":{rank},"step":{step},"m":{{"loss":{loss}}}"#),
        );
    }

    fn nan(&mut self, source: &str, run: &str, rank: u32, step: i64) {
        self.step(source, run, rank, step, r#""NaN""#);
    }

    fn forward(&mut self, by: Span) {
        let until = self.now + by;
        while let Some((at, _)) = self.engine.next_deadline().filter(|(at, _)| *at <= until) {
            self.now = self.now.max(at);
            let mut out = Vec::new();
            self.engine.tick(self.now, &mut out);
            self.absorb(out);
        }
        self.now = until;
    }

    /// A rank of a run of two that makes a step every ten seconds for so long.
    fn train(&mut self, run: &str, source: &str, rank: u32, seconds: i64) {
        self.say(source, &format!(r#""k":"hello","run":"{run}","rank":{rank},"world":2,"uid":1000"#));
        self.go_on(run, &[(source, rank)], 0, seconds);
    }

    fn go_on(&mut self, run: &str, ranks: &[(&str, u32)], from: i64, seconds: i64) {
        for i in 0..seconds / 10 {
            self.forward(Span::secs(10));
            for (source, rank) in ranks {
                self.step(source, run, *rank, from + i, "2.5");
            }
        }
    }

    /// A run that did not exist before fails at its second step and sends a `bye`.
    fn invent(&mut self, source: &str, run: &str, uid: &str) {
        self.say(source, &format!(r#""k":"hello","run":"{run}","rank":0,"world":1{uid}"#));
        self.step(source, run, 0, 1, "2.5");
        self.nan(source, run, 0, 2);
        self.say(source, &format!(r#""k":"bye","run":"{run}","rank":0,"code":1"#));
    }

    fn restart(&mut self) {
        let (engine, unusable) = Engine::restore(config(), self.parts.clone());
        assert_eq!(unusable, [""; 0]);
        self.engine = engine;
        let mut out = Vec::new();
        self.engine.resume(self.now, &mut out);
        self.absorb(out);
    }

    /// Titles of the pages since the last call, each incident once.
    fn pages(&mut self) -> Vec<String> {
        let sent = core::mem::take(&mut self.notifications);
        let page = |n: &&Notification| n.action == Action::Trigger && n.message.severity == Severity::Page;
        let pages: BTreeMap<_, _> =
            sent.iter().filter(page).map(|n| (n.incident.clone(), n.message.title.clone())).collect();
        pages.into_values().collect()
    }

    fn refused(&self, source: &str, why: Refusal) -> u64 {
        self.engine
            .refused()
            .find(|(name, _)| *name == source)
            .map_or(0, |(_, refused)| refused.count_of(why))
    }

    fn runs(&self) -> BTreeSet<&str> {
        self.engine.runs().map(|run| run.state.name.as_str()).collect()
    }
}

fn has(titles: &[String], part: &str) -> bool {
    titles.iter().any(|title| title.contains(part))
}

#[test]
fn a_flood_of_one_user_hides_neither_a_known_run_nor_anybody_else() {
    for restart in [false, true] {
        let mut w = World::new();
        w.train("genuine", NODE1, 0, 660);
        for i in 0..120 {
            w.invent(NODE1, &format!("flood-{i}"), r#","uid":1001"#);
        }
        let pages = w.pages();
        assert!(pages.len() <= 11, "{pages:#?}");
        assert!(has(&pages, "PAGE user 1001 of exporter node001:9765: alert storm"), "{pages:#?}");
        if restart {
            w.restart();
        }
        w.nan(NODE1, "genuine", 0, 100);
        assert!(has(&w.pages(), "genuine"), "a run that has long been known");
        // Young runs of somebody else, there and elsewhere.
        w.invent(NODE1, "mine", r#","uid":1002"#);
        w.invent(NODE2, "other", r#","uid":1001"#);
        let pages = w.pages();
        assert!(has(&pages, "mine") && has(&pages, "other"), "{pages:#?}");
    }
}

#[test]
fn a_sweep_that_fails_at_once_is_one_page_and_a_few_by_name() {
    let mut w = World::new();
    for i in 0..200 {
        w.invent(NODE1, &format!("sweep-{i}"), "");
    }
    let pages = w.pages();
    assert_eq!(pages.len(), 11, "{pages:#?}");
    assert!(has(&pages, "PAGE exporter node001:9765: alert storm"), "{pages:#?}");
}

#[test]
fn users_that_an_exporter_invents_are_reported_together() {
    let mut w = World::new();
    for i in 0..500 {
        w.invent(NODE1, &format!("run-{i}"), &format!(r#","uid":{i}"#));
        w.forward(Span::millis(20));
    }
    let pages = w.pages();
    assert!(pages.len() <= 31 && has(&pages, "users of exporter node001:9765"), "{pages:#?}");
}

#[test]
fn a_run_that_gets_worse_when_it_is_known_leaves_the_storm_of_its_youth() {
    let mut w = World::new();
    w.train("old", NODE2, 0, 590);
    for i in 0..20 {
        w.invent(NODE2, &format!("flood-{i}"), r#","uid":1000"#);
    }
    w.nan(NODE2, "old", 0, 100);
    assert!(!has(&w.pages(), "old"), "it is younger than ten minutes");
    w.step(NODE2, "old", 0, 101, "2.5");
    w.forward(Span::secs(3700));
    w.nan(NODE2, "old", 0, 102);
    assert!(has(&w.pages(), "old"));
}

/// A strange run beside it, and a neighbour's that lives longer, take nothing from it.
#[test]
fn a_fault_of_the_node_of_a_known_run_notifies_by_name_in_a_flood() {
    for neighbour in [false, true] {
        let mut w = World::new();
        w.train("genuine", NODE1, 0, 660);
        for i in 0..130 {
            // Of no user, as through TCP from elsewhere: of one origin with what a node reports.
            w.invent(&format!("node{:03}:9765", 1 + i / 12), &format!("flood-{i}"), "");
        }
        assert!(w.pages().len() > 100);
        if neighbour {
            w.train("strange", NODE1, 0, 20);
            w.say(NODE1, r#""k":"bye","run":"genuine","rank":0,"code":1"#);
        }
        w.say(NODE1, &fell_off("node001"));
        w.say(NODE2, &fell_off("node002"));
        let pages = w.pages();
        assert!(has(&pages, "GPU fault") && has(&pages, "node001"), "{neighbour}: {pages:#?}");
        assert!(!has(&pages, "node002"), "nobody trains there for ten minutes: {pages:#?}");
    }
}

/// Faults of one run's nodes that come together are one incident.
#[test]
fn nodes_of_a_run_that_an_exporter_keeps_alive_page_once() {
    let mut w = World::new();
    w.input(SourceInput::SourceUp { source: "evil:1", many_nodes: true });
    w.train("kept", "evil:1", 0, 660);
    w.pages();
    for i in 0..60 {
        let node = format!("n{i}");
        w.say("evil:1", &format!(r#""k":"step","run":"kept","rank":1,"step":{},"node":"{node}""#, 70 + i));
        w.say("evil:1", &fell_off(&node));
    }
    let pages = w.pages();
    assert!(pages.len() == 1 && has(&pages, "PAGE kept on n0: GPU fault"), "{pages:#?}");
}

fn fell_off(node: &str) -> String {
    format!(
        r#""k":"xid","node":"{node}","code":79,"level":"error","name":"reset_gpu","text":"fell off the bus""#
    )
}

#[test]
fn a_node_is_its_exporters_own() {
    let mut w = World::new();
    w.say(NODE1, &fell_off("node001"));
    w.input(SourceInput::SourceUp { source: "evil:1", many_nodes: false });
    w.say("evil:1", r#""k":"hb","node":"evil""#);
    for i in 0..500 {
        w.say("evil:1", &fell_off(&format!("invented-{i}")));
    }
    w.say("evil:1", &fell_off("node001"));
    let nodes: Vec<_> = w.engine.nodes().map(|node| node.state.name.clone()).collect();
    assert_eq!(nodes, ["node001"]);
    assert_eq!(w.refused("evil:1", Refusal::OtherNode), 501);
    // Each time it answers anew it may be another machine: a few times a day.
    for i in 0..10 {
        w.input(SourceInput::SourceUp { source: "evil:1", many_nodes: false });
        w.say("evil:1", &fell_off(&format!("moved-{i}")));
    }
    assert_eq!(w.engine.nodes().count(), 1 + MOVES);
}

#[test]
fn a_node_moves_when_its_owner_is_silent_or_gone() {
    let hw = r#""k":"hb","node":"n""#;
    let taken = |act: &dyn Fn(&mut World)| {
        let mut w = World::new();
        w.say("10.0.0.1:1", hw);
        act(&mut w);
        w.say("10.0.0.2:1", hw);
        w.refused("10.0.0.2:1", Refusal::NodeTaken) == 0
    };
    assert!(!taken(&|_| {}), "it speaks");
    assert!(!taken(&|w| w.restart()), "and is known after a restart");
    assert!(
        !taken(&|w| w.input(SourceInput::SourceDown { source: "10.0.0.1:1", reason: "gone" })),
        "just now"
    );
    assert!(taken(&|w| w.forward(HELD)));
    assert!(taken(&|w| w.input(SourceInput::SourceGone { source: "10.0.0.1:1" })));
    // The same exporter under another address has the same boot.
    let over = |down: bool| {
        let mut w = World::new();
        w.say("10.0.0.1:1", r#""k":"hb","node":"n","c":"b1:1""#);
        if down {
            w.input(SourceInput::SourceDown { source: "10.0.0.1:1", reason: "gone" });
        }
        w.say("10.0.0.2:1", r#""k":"hb","node":"n","c":"b1:2""#);
        w.refused("10.0.0.2:1", Refusal::NodeTaken)
    };
    assert_eq!((over(true), over(false)), (0, 1));
    // The name that the operator gave the source decides who owns the node.
    let mut w = World::new();
    w.say("evil:1", r#""k":"hb","node":"node001""#);
    w.say(NODE1, r#""k":"hb","node":"node001""#);
    w.say("evil:1", r#""k":"hb","node":"node001""#);
    assert_eq!((w.refused(NODE1, Refusal::NodeTaken), w.refused("evil:1", Refusal::NodeTaken)), (0, 1));
}

#[test]
fn a_source_that_others_send_to_speaks_for_all_of_them() {
    let mut w = World::new();
    w.input(SourceInput::SourceUp { source: "gate:1", many_nodes: true });
    for i in 0..50 {
        w.say("gate:1", &format!(r#""k":"hw","node":"n{i}","name":"x","m":{{"on":1}}"#));
        w.say("gate:1", &format!(r#""k":"step","node":"n{i}","run":"r","rank":{i},"world":50,"step":1"#));
    }
    assert_eq!((w.engine.nodes().count(), w.engine.refused().count()), (50, 0));
    // Another collector beside it receives the same.
    w.input(SourceInput::SourceUp { source: "gate:2", many_nodes: true });
    w.say("gate:2", r#""k":"step","node":"n7","run":"r","rank":7,"world":50,"step":2"#);
    assert_eq!(w.engine.refused().count(), 0);
}

#[test]
fn a_rank_is_its_sources_own_and_a_stranger_speaks_for_no_run() {
    let mut w = World::new();
    w.say(NODE2, r#""k":"hello","run":"r","rank":1,"world":2,"uid":1000"#);
    w.train("r", NODE1, 0, 660);
    w.step(NODE2, "r", 1, 65, "2.5");
    w.say("evil:1", r#""k":"hb""#);
    w.nan("evil:1", "r", 0, 66);
    w.say("evil:1", r#""k":"step","run":"r","step":66,"m":{"loss":"NaN"}"#);
    w.nan("evil:1", "r", 2, 66);
    w.say("evil:1", r#""k":"hello","run":"r","rank":7,"world":64"#);
    w.say("evil:1", r#""k":"bye","run":"r","code":1"#);
    w.say("evil:1", r#""k":"event","run":"r","name":"rank_dead","rank":0"#);
    assert_eq!((w.refused("evil:1", Refusal::RankTaken), w.refused("evil:1", Refusal::RankUnknown)), (3, 2));
    assert_eq!(w.refused("evil:1", Refusal::NotOfRun), 1);
    assert_eq!(w.pages(), [""; 0]);
    // The report of the run itself counts.
    w.say(NODE2, r#""k":"bye","run":"r","code":0"#);
    assert_eq!(w.refused(NODE2, Refusal::NotOfRun), 0);
}

#[test]
fn a_rank_moves_when_it_is_gone_where_it_was() {
    let moved = |act: &dyn Fn(&mut World)| {
        let mut w = World::new();
        w.say(NODE1, r#""k":"hello","run":"r","rank":0,"world":2"#);
        w.say(NODE2, r#""k":"hello","run":"r","rank":1,"world":2"#);
        w.go_on("r", &[(NODE1, 0), (NODE2, 1)], 1, 300);
        act(&mut w);
        w.step("spare:1", "r", 1, 31, "2.5");
        w.refused("spare:1", Refusal::RankTaken) == 0
    };
    assert!(!moved(&|_| {}));
    assert!(!moved(&|w| w.input(SourceInput::SourceDown { source: NODE2, reason: "gone" })), "just now");
    assert!(moved(&|w| w.go_on("r", &[(NODE1, 0)], 31, 130)), "silent");
    assert!(moved(&|w| w.say(NODE2, r#""k":"bye","run":"r","rank":1,"code":1"#)), "requeued");
    assert!(moved(&|w| w.say(NODE2, r#""k":"event","run":"r","name":"rank_dead","rank":1"#)), "dead");
    // An elastic restart: the first rank begins anew, and the others are expected to follow from
    // anywhere.
    assert!(moved(&|w| {
        w.say(NODE1, r#""k":"step","run":"r","rank":0,"step":5,"world":2,"m":{"loss":2.5}"#);
    }));
}

#[test]
fn sources_of_one_exporter_may_speak_of_one_rank() {
    let mut w = World::new();
    w.step(NODE1, "r", 0, 1, "2.5");
    // Its log reports the same, and more.
    w.say(NODE1, r#""k":"hello","run":"r","source":"tail""#);
    w.say(NODE1, r#""k":"step","run":"r","step":1,"m":{"loss":2.5,"lr":0.1}"#);
    w.say(NODE1, r#""k":"ckpt","run":"r","phase":"end""#);
    assert_eq!(w.engine.refused().count(), 0);
}

#[test]
fn a_run_that_crashed_is_the_first_users_for_an_hour() {
    let mut w = World::new();
    w.train("r", NODE1, 0, 60);
    let mine = r#""k":"hello","run":"r","rank":1,"world":2,"uid":1001"#;
    w.say(NODE2, mine);
    w.nan(NODE2, "r", 1, 10);
    assert_eq!(w.refused(NODE2, Refusal::OtherUser), 2);
    assert_eq!(w.pages(), [""; 0]);
    w.restart();
    w.say(NODE2, mine);
    assert_eq!(w.refused(NODE2, Refusal::OtherUser), 1, "it is known after a restart");
    w.say(NODE1, r#""k":"bye","run":"r","rank":0,"code":1"#);
    w.say(NODE2, mine);
    assert_eq!(w.refused(NODE2, Refusal::OtherUser), 2, "it may be started again");
    w.forward(Span::secs(3599));
    assert!(w.pages().iter().all(|page| page.contains("dead rank")), "its own end");
    w.nan(NODE2, "r", 1, 10);
    assert_eq!((w.refused(NODE2, Refusal::OtherUser), w.pages()), (3, vec![]));
    w.forward(Span::secs(1));
    w.say(NODE2, mine);
    w.nan(NODE2, "r", 1, 11);
    assert_eq!(w.refused(NODE2, Refusal::OtherUser), 3, "the name is free");
    assert!(has(&w.pages(), "r:"));
}

#[test]
fn a_run_that_completed_is_free_at_once() {
    let mut w = World::new();
    w.train("r", NODE1, 0, 60);
    w.say(NODE1, r#""k":"bye","run":"r","rank":0,"code":0"#);
    w.say(NODE2, r#""k":"hello","run":"r","rank":0,"world":1,"uid":1001"#);
    assert_eq!(w.refused(NODE2, Refusal::OtherUser), 0);
}

#[test]
fn a_run_that_was_only_named_is_free_when_it_is_over() {
    let mut w = World::new();
    w.say("evil:1", r#""k":"hello","run":"r","rank":0,"world":1,"uid":7"#);
    w.say("evil:1", r#""k":"bye","run":"r","rank":0,"code":0"#);
    w.say(NODE1, r#""k":"hello","run":"r","rank":0,"world":1,"uid":1000"#);
    w.step(NODE1, "r", 0, 1, "2.5");
    w.nan(NODE1, "r", 0, 2);
    assert_eq!(w.refused(NODE1, Refusal::OtherUser), 0);
    assert!(has(&w.pages(), "r:"));
}

/// The first user that declares a run owns it. A person is notified, once, that reports of the
/// other user are refused.
#[test]
fn two_users_of_one_run_are_a_ticket_and_not_one_for_each_record() {
    let mut w = World::new();
    w.say("evil:1", r#""k":"hello","run":"llama","rank":0,"world":1,"uid":7"#);
    w.step("evil:1", "llama", 0, 1, "2.5");
    w.say(NODE1, r#""k":"hello","run":"llama","rank":0,"world":1,"uid":1000"#);
    assert_eq!(w.notifications.len(), 0, "a name alone is nobody's loss");
    for step in 1..20 {
        w.step(NODE1, "llama", 0, step, "2.5");
        w.step("evil:1", "llama", 0, 1 + step, "2.5");
        w.forward(Span::secs(10));
        if step == 10 {
            w.restart();
        }
    }
    w.nan(NODE1, "llama", 0, 20);
    let sent = core::mem::take(&mut w.notifications);
    let tickets: Vec<_> = sent.iter().filter(|n| n.action == Action::Trigger).collect();
    assert_eq!(tickets.len(), 1, "{sent:#?}");
    let message = &tickets[0].message;
    assert_eq!((message.severity, tickets[0].page), (Severity::Ticket, false));
    for part in
        ["wo users report the run llama", "user 7 through evil:1", "user 1000 reports through node001:9765"]
    {
        assert!(message.summary.contains(part), "{}", message.summary);
    }
    // The false owner falls silent, and the name is free: reports of the other count at once.
    w.forward(Span::secs(600));
    w.nan(NODE1, "llama", 0, 21);
    let pages = w.pages();
    assert!(has(&pages, "llama"), "{pages:#?}");
    w.forward(Span::secs(600));
    let open: Vec<_> = w.engine.open_incidents().filter(|i| i.kind == Kind::AlerterFault).collect();
    assert_eq!(open.len(), 0, "{open:#?}");
}

#[test]
fn a_source_that_disputes_every_run_makes_only_a_few_tickets() {
    let mut w = World::new();
    for i in 0..50 {
        w.say(NODE1, &format!(r#""k":"hello","run":"r{i}","rank":0,"uid":1000"#));
        w.step(NODE1, &format!("r{i}"), 0, 1, "2.5");
        w.say("evil:1", &format!(r#""k":"hello","run":"r{i}","rank":0,"uid":7"#));
        w.step("evil:1", &format!("r{i}"), 0, 1, "2.5");
    }
    let tickets = w.notifications.iter().filter(|n| n.action == Action::Trigger).count();
    assert!((1..=8).contains(&tickets), "{tickets}");
    assert_eq!(w.pages(), [""; 0]);
}

#[test]
fn runs_of_one_source_are_bounded_and_displace_nobodys() {
    let mut w = World::new();
    w.train("elsewhere", NODE2, 0, 660);
    w.train("genuine", NODE1, 0, 60);
    for i in 0..2_000 {
        w.say(NODE1, &format!(r#""k":"hello","run":"x{i}","rank":0"#));
    }
    assert_eq!(w.engine.runs().count(), RUNS_OF_SOURCE + 1);
    assert!(w.refused(NODE1, Refusal::TooManyRuns) > 1_000);
    w.forward(SILENT);
    w.step(NODE1, "genuine", 0, 7, "2.5");
    // What was only named makes room.
    w.step(NODE1, "late", 0, 1, "2.5");
    assert!(w.runs().is_superset(&["genuine", "elsewhere", "late"].into()));
    assert_eq!(w.engine.runs().count(), RUNS_OF_SOURCE + 1);
}

#[test]
fn ranks_of_one_source_are_bounded() {
    let mut w = World::new();
    for rank in 0..6_000 {
        w.say(NODE1, &format!(r#""k":"hello","run":"r","rank":{rank}"#));
    }
    assert_eq!(w.refused(NODE1, Refusal::TooManyRanks), 6_000 - u64::from(RANKS_OF_SOURCE));
}

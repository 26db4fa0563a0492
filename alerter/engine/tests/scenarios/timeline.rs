//! The life of incidents on virtual time: who is notified of what, and when.

mod world;

use stepwatch_engine::SourceInput;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Action, IncidentAction, Input};
use stepwatch_respond::incident::State;
use stepwatch_respond::message::Reason;
use stepwatch_wire::{CkptPhase, Event, Kind as EventKind};

use world::{SOURCE, World, step_of, two_levels};

#[test]
fn a_hang_pages_climbs_and_stops_at_the_ack() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 8);
    w.forward(Span::secs(59));
    assert!(w.sent.is_empty(), "{:?}", w.actions());
    w.forward(Span::secs(2));
    let r = w.only();
    assert_eq!((r.kind, r.severity, r.state), (Kind::Hang, Severity::Page, State::Open));
    assert_eq!(w.actions(), [("chat", Action::Trigger, 1)]);
    let text = w.sent[0].1.message.clone();
    assert_eq!(text.title, "PAGE llama: hang at step 40");
    assert!(
        text.summary.starts_with("No step for 1m after step 40; a step usually takes"),
        "{}",
        text.summary
    );
    assert_eq!(text.reason, "new incident");
    assert!(
        text.facts.iter().any(|f| f.label == "Cost" && f.text.starts_with("$20.00/h (8 GPUs at $2.50)")),
        "{text:?}"
    );

    w.forward(Span::secs(300));
    assert_eq!(w.actions()[1..], [("primary", Action::Trigger, 1)]);
    assert_eq!(w.sent[1].1.message.reason, "escalated to level 2: no answer for 5m");
    w.forward(Span::secs(300));
    assert_eq!(w.actions()[2..], [("primary", Action::Trigger, 2)]);

    let id = w.only().id.clone();
    w.input(Input::Act { incident: &id, by: "cli:alice", action: &IncidentAction::Ack });
    assert_eq!(w.actions()[3..], [("chat", Action::Ack, 2), ("primary", Action::Ack, 3)]);
    w.forward(Span::secs(7200));
    assert_eq!(w.sent.len(), 5, "nothing after the ack: {:?}", w.actions());

    w.train(41, 1, 8);
    w.forward(Span::secs(61));
    assert_eq!(w.only().state, State::Resolved);
    assert_eq!(w.actions()[5..], [("chat", Action::Resolve, 3), ("primary", Action::Resolve, 4)]);
}

#[test]
fn an_unanswered_page_is_never_given_up() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 1);
    w.forward(Span::secs(6 * 3600));
    let last = w.sent.last().unwrap();
    assert!(w.now - last.0 <= Span::secs(1800), "silent since {}", w.now - last.0);
}

#[test]
fn the_rank_that_stopped_first_is_named() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 8);
    w.forward(Span::secs(1));
    for rank in (0..8).filter(|r| *r != 5) {
        w.event(step_of(rank, 41));
    }
    w.forward(Span::secs(70));
    let suspect = &w.only().suspects[0];
    assert_eq!(suspect.what(), "rank 5 on node002");
    assert!(suspect.why().starts_with("stopped at step 40, the others reached 41"), "{suspect:?}");
}

/// A pause of 400 s between these two is none, and the next may take three times as long.
fn pauses(begin: &Event, end: &Event) -> World {
    let mut w = World::new(two_levels());
    w.train(1, 40, 1);
    w.event(begin.clone());
    w.forward(Span::secs(400));
    w.event(end.clone());
    w.train(41, 30, 1);
    let hung = |w: &World| w.records.iter().any(|r| r.kind == Kind::Hang);
    // A save may be a hang or not, and may cost too much in either case.
    assert!(!hung(&w) && w.sent.iter().all(|(_, n)| n.message.kind == Kind::CkptCost), "{:?}", w.history);
    w.event(begin.clone());
    w.forward(Span::secs(1190));
    assert!(!hung(&w), "three times the longest is allowed: {:?}", w.history);
    w.forward(Span::secs(20));
    assert!(hung(&w), "{:?}", w.history);
    w
}

#[test]
fn a_declared_evaluation_or_save_is_not_a_hang_and_a_hung_one_is() {
    let event = |kind, name: Option<&str>, edge, ckpt| {
        let mut e = Event::new(kind);
        (e.run, e.rank, e.step) = (Some("llama".into()), Some(0), Some(40));
        Event { name: name.map(str::to_owned), edge, ckpt, ..e }
    };
    let eval = |edge| event(EventKind::Phase, Some("eval"), Some(edge), None);
    let w = pauses(&eval(stepwatch_wire::Edge::Begin), &eval(stepwatch_wire::Edge::End));
    assert!(w.sent[0].1.message.summary.contains("in phase eval"), "{}", w.sent[0].1.message.summary);
    let save = |phase| event(EventKind::Ckpt, None, None, Some(phase));
    pauses(&save(CkptPhase::Start), &save(CkptPhase::End));
}

/// A log that has a step a second from this one on, and then nothing for so long.
fn bare_log(from: i64, silent: i64) -> World {
    let mut w = World::new(two_levels());
    for step in from..from + 60 {
        w.forward(Span::secs(1));
        w.event(step_of(0, step));
    }
    w.forward(Span::secs(170));
    assert!(w.sent.is_empty(), "it may be an evaluation: {:?}", w.history);
    w.forward(Span::secs(20));
    assert_eq!(w.only().severity, Severity::Ticket);
    w.forward(Span::secs(silent - 190));
    w
}

#[test]
fn a_bare_log_gets_a_ticket_before_the_page() {
    assert_eq!(bare_log(1, 1790).only().severity, Severity::Ticket, "its next line may be 2,000 steps away");
    let w = bare_log(1, 1810);
    assert_eq!(w.only().severity, Severity::Page, "nobody evaluates for longer than has been trained");
    assert_eq!(w.only().detected_step, 60);
    let resumed = |silent| bare_log(50_000, silent).only().severity;
    assert_eq!(resumed(1790), Severity::Ticket, "its first evaluation may be a long one");
    assert_eq!(resumed(1810), Severity::Page);
}

#[test]
fn a_bare_log_that_was_watched_for_an_hour_is_paged_sooner() {
    let mut w = World::new(two_levels());
    for step in 1..200 {
        w.forward(Span::secs(20));
        w.event(step_of(0, step));
    }
    w.forward(Span::secs(590));
    assert_eq!(w.only().severity, Severity::Ticket);
    w.forward(Span::secs(20));
    assert_eq!(w.only().severity, Severity::Page);
}

#[test]
fn a_pause_that_was_survived_is_no_surprise_the_second_time() {
    let mut w = World::new(two_levels());
    for line in 1..=200 {
        w.forward(Span::secs(if line % 20 == 0 { 1030 } else { 350 }));
        w.event(step_of(0, 5 * line));
    }
    let pages = w.records.iter().filter(|r| r.severity == Severity::Page).count();
    assert!(pages <= 1, "{:?}", w.history);
}

#[test]
fn lines_that_come_ever_farther_apart_are_no_hang() {
    let mut w = World::new(two_levels());
    let (mut step, mut sent) = (0, 0);
    for every in [1, 1, 1, 500, 500, 500, 500] {
        w.forward(Span::secs(4 * every));
        step += every;
        w.event(step_of(0, step));
        sent = w.sent.len();
    }
    assert!(sent <= 2, "once, when the pace was not known, and once for its end: {:?}", w.history);
    assert!(w.records.iter().all(|r| r.severity < Severity::Page), "{:?}", w.history);
}

#[test]
fn a_dead_rank_is_a_ticket_and_a_page_if_the_run_stands_still() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 8);
    let mut dead = Event::new(EventKind::Event);
    (dead.run, dead.rank, dead.name) = (Some("llama".into()), Some(3), Some("rank_dead".into()));
    dead.text = Some("pid 4242 closed its socket without bye".into());
    w.event(dead.clone());
    assert_eq!((w.only().kind, w.only().severity), (Kind::RankDead, Severity::Ticket));
    w.forward(Span::secs(31));
    assert_eq!(w.only().severity, Severity::Page);
    let summary = &w.sent.last().unwrap().1.message.summary;
    assert!(summary.contains("Rank 3 on node001 died: pid 4242"), "{summary}");
    // The launcher restarts it from a checkpoint: one incident, resolved, and no second page for
    // the restart.
    for step in 30..60 {
        w.forward(Span::secs(1));
        for rank in 0..8 {
            let mut e = step_of(rank, step);
            e.attempt = Some(1);
            w.event(e);
        }
    }
    w.forward(Span::secs(40));
    assert_eq!(w.only().state, State::Resolved);
    assert_eq!(w.engine.runs().next().unwrap().state.attempt, 1);
}

#[test]
fn a_lost_source_is_a_ticket_then_a_page_and_hides_the_hang() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 2);
    w.input(SourceInput::SourceDown { source: SOURCE, reason: "connection refused" });
    w.forward(Span::secs(61));
    assert_eq!((w.only().kind, w.only().severity), (Kind::SourceLost, Severity::Ticket));
    w.forward(Span::secs(240));
    assert_eq!(w.only().severity, Severity::Page);
    w.input(SourceInput::SourceUp { source: SOURCE, many_nodes: true });
    w.train(41, 70, 2);
    assert_eq!(w.only().state, State::Resolved, "{:?}", w.history);
}

#[test]
fn a_source_that_feeds_nothing_is_watched_too() {
    let mut w = World::new(two_levels());
    w.input(SourceInput::SourceDown { source: "node999:9765", reason: "no route to host" });
    w.forward(Span::secs(90));
    assert_eq!((w.only().run.as_str(), w.only().severity), ("-", Severity::Ticket));
    assert_eq!(w.sent[0].1.message.title, "TICKET no run: source lost");
    w.input(SourceInput::SourceGone { source: "node999:9765" });
    w.forward(Span::secs(61));
    assert_eq!(w.only().state, State::Resolved);
}

#[test]
fn a_stale_checkpoint_is_reported_once_a_step() {
    let mut w = World::new(two_levels());
    for round in 0..4 {
        w.train(1 + round * 400, 400, 1);
        let mut c = Event::new(EventKind::Ckpt);
        (c.run, c.step, c.ckpt) = (Some("llama".into()), Some(400 * (round + 1)), Some(CkptPhase::End));
        w.event(c);
    }
    w.train(1601, 590, 1);
    assert!(w.sent.is_empty(), "{:?}", w.history);
    w.train(2191, 20, 1);
    assert_eq!((w.only().kind, w.only().severity), (Kind::CkptStale, Severity::Ticket));
    w.train(2211, 700, 1);
    assert_eq!(w.only().severity, Severity::Page);
    let fact =
        w.sent.last().unwrap().1.message.facts.iter().find(|f| f.label == "Last good checkpoint").cloned();
    assert!(fact.unwrap().text.starts_with("step 1600, "));
}

#[test]
fn what_was_closed_by_hand_comes_back_unless_it_clears() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 1);
    w.forward(Span::secs(61));
    let id = w.only().id.clone();
    w.input(Input::Act { incident: &id, by: "cli:bob", action: &IncidentAction::Resolve });
    w.forward(Span::secs(599));
    assert_eq!(w.sent.last().unwrap().1.action, Action::Resolve);
    w.forward(Span::secs(1));
    assert_eq!(w.records.len(), 1);
    let last = &w.sent.last().unwrap().1;
    assert_eq!((last.action, last.message.because), (Action::Trigger, Reason::Reopened), "{:?}", w.history);
    // Closed once more, it moves, and hangs again: that is another.
    w.input(Input::Act { incident: &id, by: "cli:bob", action: &IncidentAction::Resolve });
    w.train(41, 30, 1);
    w.forward(Span::secs(7200));
    assert_eq!(w.records.len(), 2, "{:?}", w.history);
}

#[test]
fn a_receiver_that_fails_for_good_hands_over_at_once() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 1);
    w.forward(Span::secs(61));
    let id = w.only().id.clone();
    let error = "channel_not_found";
    w.input(Input::Failed { incident: &id, receiver: "chat", action: Action::Trigger, error });
    assert_eq!(w.actions(), [("chat", Action::Trigger, 1), ("primary", Action::Trigger, 1)]);
    let m = &w.sent.last().unwrap().1.message;
    assert_eq!(m.because, Reason::ReceiverFailed);
    assert_eq!(m.reason, "chat could not be reached: channel_not_found");
}

#[test]
fn without_routes_everyone_hears_of_pages_and_nobody_of_annotations() {
    let mut w =
        World::new(ResponderConfig { receivers: vec!["a".into(), "b".into()], ..ResponderConfig::default() });
    w.train(1, 40, 1);
    w.forward(Span::secs(61));
    assert_eq!(w.actions(), [("a", Action::Trigger, 1), ("b", Action::Trigger, 1)]);
}

#[test]
fn a_restart_of_ours_neither_forgets_nor_invents() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 8);
    w.kill_and_restore(Span::secs(3600));
    w.input(SourceInput::SourceUp { source: SOURCE, many_nodes: true });
    w.forward(Span::secs(30));
    w.train(41, 40, 8);
    assert!(w.sent.is_empty(), "{:?}", w.history);
    w.forward(Span::secs(61));
    assert_eq!(w.only().kind, Kind::Hang, "the pace is still known");
    let before = w.sent.len();
    w.kill_and_restore(Span::secs(10));
    w.forward(Span::secs(300));
    assert_eq!(w.actions()[before..], [("primary", Action::Trigger, 1)], "escalation goes on where it was");
}

#[test]
fn the_end_of_a_run_closes_its_incidents() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 1);
    w.forward(Span::secs(61));
    let mut bye = Event::new(EventKind::Bye);
    (bye.run, bye.rank, bye.code) = (Some("llama".into()), Some(0), Some(0));
    w.event(bye);
    assert_eq!(w.only().state, State::Open, "nobody has answered the page yet");
    w.forward(Span::secs(901));
    assert_eq!(w.only().state, State::Resolved);
    w.forward(Span::secs(7200));
    assert_eq!(w.engine.runs().count(), 0, "forgotten an hour after its end");
}

#[test]
fn a_crashed_trainer_says_its_last_words() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 1);
    let mut bye = Event::new(EventKind::Bye);
    (bye.run, bye.rank, bye.code) = (Some("llama".into()), Some(0), Some(1));
    bye.text = Some("RuntimeError: CUDA out of memory".into());
    w.event(bye);
    w.forward(Span::secs(31));
    assert_eq!((w.only().kind, w.only().severity), (Kind::RankDead, Severity::Page));
    assert!(
        w.only().summary.to_string().contains("exited with code 1: RuntimeError: CUDA out of memory"),
        "{}",
        w.only().summary
    );
}

#[test]
fn a_condition_that_comes_and_goes_is_one_incident() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 1);
    let mut step = 41;
    for _ in 0..6 {
        w.input(SourceInput::SourceDown { source: SOURCE, reason: "timeout" });
        w.forward(Span::secs(65));
        w.input(SourceInput::SourceUp { source: SOURCE, many_nodes: true });
        w.train(step, 20, 1);
        step += 20;
    }
    // The first outage is over before the second begins; from then on the hold is longer than the
    // quiet between them.
    assert_eq!(w.records.len(), 2, "{:?}", w.history);
    assert_eq!(w.records[1].flaps, 5);
    assert_eq!(w.sent.len(), 3, "{:?}", w.actions());
}

fn bye(rank: u32, code: i64) -> Event {
    let mut bye = Event::new(EventKind::Bye);
    (bye.run, bye.rank, bye.code) = (Some("llama".into()), Some(rank), Some(code));
    bye
}

#[test]
fn every_crash_is_notified_not_only_the_first() {
    let mut w = World::new(two_levels());
    for life in 0..3 {
        w.train(1 + 100 * life, 100, 1);
        w.event(bye(0, 1));
        w.forward(Span::secs(40));
        // The next life goes on where this one ended.
    }
    let pages =
        w.sent.iter().filter(|(_, n)| n.page && n.receiver == "chat" && n.action == Action::Trigger).count();
    // The third comes while the second is still held open: one incident, which is not acknowledged
    // and goes on escalating.
    assert_eq!(pages, 2, "{:?}", w.history);
    assert!(w.history.iter().any(|h| h.starts_with("came back: rank 0 on node001 died")), "{:?}", w.history);
}

#[test]
fn a_hang_before_the_first_step_is_reported() {
    let mut w = World::new(two_levels());
    for rank in 0..2 {
        let mut hello = Event::new(EventKind::Hello);
        (hello.run, hello.rank) = (Some("llama".into()), Some(rank));
        w.event(hello);
    }
    w.forward(Span::secs(1790));
    assert!(w.sent.is_empty());
    w.forward(Span::secs(20));
    assert_eq!((w.only().kind, w.only().severity), (Kind::Hang, Severity::Ticket));
    w.forward(Span::secs(1800));
    assert_eq!((w.only().kind, w.only().severity), (Kind::Hang, Severity::Page));
}

#[test]
fn a_crash_nobody_answered_stays_open() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 1);
    w.event(bye(0, 1));
    w.forward(Span::secs(12 * 3600));
    assert_eq!(w.only().state, State::Open);
}

#[test]
fn one_rank_that_fails_makes_the_run_fail() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 4);
    w.event(bye(3, 1));
    for rank in 0..3 {
        w.event(bye(rank, 0));
    }
    w.forward(Span::secs(31));
    assert_eq!(
        (w.only().kind, w.only().severity, w.only().state),
        (Kind::RankDead, Severity::Page, State::Open)
    );
}

#[test]
fn a_run_stopped_by_hand_or_by_the_scheduler_is_nobodys_page() {
    for code in [130, 143] {
        let mut w = World::new(two_levels());
        w.train(1, 40, 4);
        for rank in 0..4 {
            w.event(bye(rank, code));
        }
        w.forward(Span::secs(7200));
        assert!(w.sent.is_empty(), "{code}: {:?}", w.history);
    }
}

#[test]
fn a_restart_with_fewer_ranks_ends_well() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 8);
    for step in 30..60 {
        w.forward(Span::secs(1));
        for rank in 0..4 {
            let mut e = step_of(rank, step);
            (e.attempt, e.world) = (Some(1), Some(4));
            w.event(e);
        }
    }
    for rank in 0..4 {
        w.event(bye(rank, 0));
    }
    w.forward(Span::secs(3000));
    assert!(w.sent.is_empty(), "{:?}", w.history);
}

#[test]
fn neither_a_queue_nor_a_rollback_nor_a_pause_makes_a_checkpoint_stale() {
    let mut w = World::new(two_levels());
    let saved = |w: &mut World, step| {
        let mut c = Event::new(EventKind::Ckpt);
        (c.run, c.step, c.ckpt) = (Some("llama".into()), Some(step), Some(CkptPhase::End));
        w.event(c);
    };
    for round in 0..4 {
        w.train(1 + round * 400, 400, 1);
        saved(&mut w, 400 * (round + 1));
    }
    w.event(bye(0, 143));
    // Five hours in the queue, then on from an earlier checkpoint, which is saved anew.
    w.forward(Span::secs(5 * 3600));
    for step in 1201..1700 {
        w.forward(Span::secs(1));
        let mut e = step_of(0, step);
        e.attempt = Some(1);
        w.event(e);
        if step == 1600 {
            saved(&mut w, 1600);
        }
    }
    assert!(w.sent.is_empty(), "{:?}", w.history);
    assert_eq!(w.engine.runs().next().unwrap().state.checkpoints.last_step, Some(1600));
}

#[test]
fn a_backlog_that_contains_its_own_end_wakes_nobody() {
    let mut w = World::new(two_levels());
    let old = w.now;
    w.now = w.now + Span::secs(3600);
    let feed = |w: &mut World, i: i64, mut e: Event| {
        e.ts = Some(Ts(old.0 + 1000 * i).as_secs_f64());
        w.input(SourceInput::Event { source: SOURCE, event: &e });
    };
    for step in 1..300 {
        let mut e = step_of(0, step);
        e.m.set(
            "loss",
            if (200..205).contains(&step) { f64::NAN } else { 2.0 + 0.001 * f64::from(step as i32 % 7) },
        );
        feed(&mut w, step, e);
    }
    feed(&mut w, 300, bye(0, 0));
    w.forward(Span::secs(3600));
    assert!(w.sent.is_empty(), "{:?}", w.history);
}

#[test]
fn draining_a_node_that_the_run_has_left_is_not_a_loss() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 1);
    // The run moves to another node.
    let there = |w: &mut World, step| {
        w.forward(Span::secs(1));
        let (ts, node) = (Some(w.now.as_secs_f64()), Some("node002".into()));
        let e = Event { ts, node, ..step_of(0, step) };
        w.input(SourceInput::Event { source: "node002:9765", event: &e });
    };
    let mut bye = Event { run: Some("llama".into()), rank: Some(0), ..Event::new(EventKind::Bye) };
    bye.code = Some(143);
    w.event(bye);
    let hello = Event { run: Some("llama".into()), rank: Some(0), ..Event::new(EventKind::Hello) };
    w.input(SourceInput::Event { source: "node002:9765", event: &hello });
    (41..1100).for_each(|step| there(&mut w, step));
    w.input(SourceInput::SourceDown { source: SOURCE, reason: "refused" });
    (1100..1190).for_each(|step| there(&mut w, step));
    assert_eq!(w.records.len(), 1);
    assert!(w.records.iter().all(|r| r.run != "llama"), "{:?}", w.history);
}

#[test]
fn every_message_knows_how_it_found_its_receiver() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 8);
    w.forward(Span::secs(61 + 300 + 300));
    let id = w.only().id.clone();
    w.input(Input::Act { incident: &id, by: "cli:alice", action: &IncidentAction::Ack });
    let ways: Vec<String> = w
        .sent
        .iter()
        .map(|(_, n)| match &n.path {
            Some(p) => format!(
                "{} {}: {} ({}), {}, level {}, again {}, by {}",
                n.receiver,
                n.action.as_str(),
                p.route,
                p.matched,
                p.policy.as_deref().unwrap_or("-"),
                p.level,
                p.again,
                p.chosen.join("; ")
            ),
            None => format!("{} {}: known", n.receiver, n.action.as_str()),
        })
        .collect();
    assert_eq!(
        ways,
        [
            "chat trigger: routes[0] (severity=\"page\"), default, level 1, again 0, by chat",
            "primary trigger: routes[0] (severity=\"page\"), default, level 2, again 0, by primary",
            "primary trigger: routes[0] (severity=\"page\"), default, level 2, again 1, by primary",
            "chat ack: known",
            "primary ack: known",
        ]
    );
}

#[test]
fn whoever_stands_in_for_a_receiver_that_failed_knows_that() {
    let mut w = World::new(two_levels());
    w.train(1, 40, 8);
    w.forward(Span::secs(61 + 300));
    let id = w.only().id.clone();
    w.config.receivers.push("spare".into());
    w.engine.reconfigure(w.config.clone());
    let failed =
        Input::Unreached { incident: &id, receiver: "primary", waited: Span::secs(120), error: "503" };
    w.input(failed);
    let (_, n) = w.sent.last().unwrap();
    assert_eq!((n.receiver.as_str(), n.message.because), ("spare", Reason::ReceiverFailed));
    let path = n.path.as_ref().unwrap();
    assert_eq!(
        (path.level, path.chosen.as_slice()),
        (0, &["everybody who had not been notified".to_owned()][..])
    );
}

//! Reports about a run as text, and how a run ends.

use stepwatch_engine::{Engine, SourceInput};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::Effect;
use stepwatch_respond::incident::{IncidentRecord, State};
use stepwatch_wire::{Event, Kind as EventKind, Value};

const START: Ts = Ts(1_795_227_416_000);

/// An engine, its clock, and every incident as it last was.
struct Bench {
    engine: Engine,
    now: Ts,
    step: i64,
    incidents: Vec<IncidentRecord>,
}

impl Bench {
    fn new() -> Self {
        let engine = Engine::new(ResponderConfig::default());
        let mut b = Self { engine, now: START, step: 0, incidents: Vec::new() };
        b.steps(100);
        b
    }

    fn feed(&mut self, event: &Event) {
        let mut out = Vec::new();
        self.engine.handle(self.now, SourceInput::Event { source: "n:1", event }, &mut out);
        self.absorb(out);
    }

    fn absorb(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::Incident(r) = effect {
                self.incidents.retain(|had| had.id != r.id);
                self.incidents.push(*r);
            }
        }
    }

    fn steps(&mut self, n: i64) {
        for _ in 0..n {
            self.step += 1;
            self.wait(2);
            let mut e = Event::step("r", self.step);
            (e.rank, e.attempt) = (Some(0), Some(0));
            e.m.set("loss", 2.0 + 0.01 * ((self.step * 7) % 11) as f64);
            self.feed(&e);
        }
    }

    fn wait(&mut self, secs: i64) {
        let until = self.now + Span::secs(secs);
        while let Some((due, _)) = self.engine.next_deadline().filter(|(due, _)| *due <= until) {
            self.now = self.now.max(due);
            let mut out = Vec::new();
            self.engine.tick(self.now, &mut out);
            self.absorb(out);
        }
        self.now = until;
    }

    fn said(&mut self, name: &str, level: &str, text: &str) {
        self.feed(&said(name, level, text));
    }

    fn summary(&self) -> Vec<(Kind, Severity, State)> {
        self.incidents.iter().map(|i| (i.kind, i.severity, i.state)).collect()
    }
}

fn said(name: &str, level: &str, text: &str) -> Event {
    Event {
        run: Some("r".into()),
        name: Some(name.into()),
        level: Some(level.into()),
        text: Some(text.into()),
        node: Some("gpu-7".into()),
        ..Event::new(EventKind::Event)
    }
}

/// The end of a rank as the tailed log reports it.
fn bye(code: Option<i64>, text: Option<&str>) -> Event {
    let mut e = Event {
        run: Some("r".into()),
        rank: Some(0),
        code,
        text: text.map(Into::into),
        ..Event::new(EventKind::Bye)
    };
    e.extra.insert("source".into(), Value::Text("tail".into()));
    e
}

#[test]
fn an_alert_of_the_script_is_a_ticket_with_its_text_and_ends_by_itself() {
    let mut b = Bench::new();
    b.said("wandb_alert", "info", "epoch 3 begins");
    b.said("wandb_alert", "WARN", "Low accuracy: below 0.4");
    b.wait(1);
    b.said("wandb_alert", "error", "Lower still");
    assert_eq!(b.incidents.last().unwrap().summary, "Lower still");
    b.steps(400);
    b.wait(1800);
    let user: Vec<_> = b.summary().into_iter().filter(|i| i.0 == Kind::UserAlert).collect();
    let over = State::Resolved;
    assert_eq!(user, [(Kind::UserAlert, Severity::Info, over), (Kind::UserAlert, Severity::Ticket, over)]);
}

#[test]
fn an_error_file_alone_is_a_ticket_that_ends_when_the_run_goes_on() {
    let mut b = Bench::new();
    let mut e = said("torchelastic_error", "error", "RuntimeError: CUDA error: device-side assert");
    e.extra.insert("local_rank".into(), Value::Number(3.0));
    b.feed(&e);
    assert_eq!(b.summary(), [(Kind::TorchelasticError, Severity::Ticket, State::Open)]);
    let i = &b.incidents[0];
    assert_eq!(i.suspects[0].what(), "local rank 3 on gpu-7");
    assert!(
        i.summary.to_string().ends_with("device-side assert; the run stands at step 100"),
        "{}",
        i.summary
    );
    b.steps(400);
    assert_eq!(b.summary(), [(Kind::TorchelasticError, Severity::Ticket, State::Resolved)]);
}

#[test]
fn an_error_file_is_evidence_in_the_incident_of_a_dead_rank() {
    for first in [true, false] {
        let mut b = Bench::new();
        let error = said("torchelastic_error", "error", "RuntimeError: NCCL error");
        if first {
            b.feed(&error);
        }
        let mut dead = said("rank_dead", "error", "process 42 closed its socket");
        dead.rank = Some(0);
        b.feed(&dead);
        if !first {
            b.feed(&error);
        }
        b.wait(120);
        assert_eq!(b.summary(), [(Kind::RankDead, Severity::Page, State::Open)], "{first}");
        let suspects = &b.incidents[0].suspects;
        assert!(suspects.iter().any(|s| s.why().contains("RuntimeError: NCCL error")), "{suspects:?}");
    }
}

#[test]
fn a_dump_is_evidence_of_a_hang() {
    let mut b = Bench::new();
    let mut dump = said("flight_recorder_dump", "error", "a collective did not end");
    dump.rank = Some(5);
    b.feed(&dump);
    b.wait(1200);
    assert_eq!(b.summary(), [(Kind::Hang, Severity::Page, State::Open)]);
    assert!(b.incidents[0].suspects.iter().any(|s| s.what() == "rank 5 on gpu-7"));
}

#[test]
fn a_dead_launcher_is_a_ticket() {
    let mut b = Bench::new();
    b.said("launcher_dead", "error", "what started rank 0 closed its socket");
    assert_eq!(b.summary(), [(Kind::LauncherDead, Severity::Ticket, State::Open)]);
    b.steps(400);
    assert_eq!(b.summary(), [(Kind::LauncherDead, Severity::Ticket, State::Resolved)]);
}

#[test]
fn a_log_that_ends_without_a_word_is_over_and_no_hang() {
    let mut b = Bench::new();
    b.feed(&bye(None, None));
    b.wait(3000);
    assert_eq!(b.summary(), [(Kind::RankDead, Severity::Info, State::Resolved)]);
    let why = "the log of the run ended after step 100 without a word: it is taken for over";
    assert_eq!(b.incidents[0].summary, why);
}

#[test]
fn a_hang_that_was_reported_is_not_over_because_the_log_ended() {
    let mut b = Bench::new();
    b.wait(2400);
    b.feed(&bye(None, None));
    b.wait(600);
    let hang: Vec<_> = b.summary().into_iter().filter(|i| i.0 == Kind::Hang).collect();
    assert_eq!(hang, [(Kind::Hang, Severity::Page, State::Open)]);
}

#[test]
fn a_log_that_ended_with_last_words_is_a_crash_and_a_silent_end_takes_nothing_back() {
    let mut b = Bench::new();
    b.feed(&bye(Some(1), Some("torch.OutOfMemoryError: CUDA out of memory")));
    b.feed(&bye(None, None));
    b.wait(120);
    assert_eq!(b.summary(), [(Kind::RankDead, Severity::Page, State::Open)]);
    let why = "exited with code 1: torch.OutOfMemoryError: CUDA out of memory";
    assert!(b.incidents[0].summary.to_string().contains(why), "{}", b.incidents[0].summary);
}

#[test]
fn how_a_process_ended_is_reported_when_it_is_known() {
    let mut b = Bench::new();
    let mut dead = said("rank_dead", "error", "process 42 closed its socket without a goodbye");
    dead.rank = Some(0);
    b.feed(&dead);
    b.feed(&bye(Some(137), Some("Killed")));
    b.wait(60);
    assert!(
        b.incidents[0].summary.to_string().contains("exited with code 137: Killed"),
        "{}",
        b.incidents[0].summary
    );
}

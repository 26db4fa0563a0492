//! Silences, and the alerts of other programs, on virtual time: who is notified of what, and when.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use stepwatch_engine::{AnyInput, Engine, EngineConfig, SourceInput};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Action, Effect, IncidentAction, Input, Notification};
use stepwatch_respond::external::{Alert, LabelSet, Limits, PostedAlert};
use stepwatch_respond::incident::{IncidentRecord, State, SuppressionReason};
use stepwatch_respond::matcher::Matcher;
use stepwatch_respond::silence::{Maintenance, Phase, Silence, SilenceConfig, Wanted};
use stepwatch_wire::{Event, Kind as EventKind, Value};

/// 2026-11-21T02:16:56Z.
const T0: Ts = Ts(1_795_227_416_000);
const SOURCE: &str = "node001:9765";

struct World {
    engine: Engine,
    now: Ts,
    sent: Vec<(i64, Notification)>,
    records: Vec<IncidentRecord>,
    silences: Vec<Silence>,
    history: Vec<String>,
}

impl World {
    fn new(config: ResponderConfig) -> Self {
        let receivers = vec!["chat".to_owned(), "phone".to_owned()];
        let mut config = EngineConfig::from(ResponderConfig { receivers, ..config });
        Arc::make_mut(&mut config.detectors).rank_dead.page_after = Span::ZERO;
        let engine = Engine::new(config);
        let mut w =
            Self { engine, now: T0, sent: vec![], records: vec![], silences: vec![], history: vec![] };
        w.input(SourceInput::SourceUp { source: SOURCE, many_nodes: false });
        w
    }

    fn input<'a>(&mut self, input: impl Into<AnyInput<'a>>) {
        let mut out = Vec::new();
        self.engine.handle(self.now, input, &mut out);
        self.absorb(out);
    }

    fn absorb(&mut self, effects: Vec<Effect>) {
        for e in effects {
            match e {
                Effect::Notify(n) => self.sent.push(((self.now - T0).0 / 1000, *n)),
                Effect::Incident(r) => {
                    self.records.retain(|had| had.id != r.id);
                    self.records.push(*r);
                }
                Effect::Timeline(t) => self.history.push(t.what),
                Effect::Silence(s) => {
                    self.silences.retain(|had| had.id != s.id);
                    self.silences.push(*s);
                }
                Effect::Override(_) | Effect::Alert(_) | Effect::AlertOver(_) => {}
            }
        }
    }

    fn forward(&mut self, seconds: i64) {
        let until = self.now + Span::secs(seconds);
        while let Some((at, _)) = self.engine.next_deadline().filter(|(at, _)| *at <= until) {
            self.now = at.max(self.now);
            let mut out = Vec::new();
            self.engine.tick(self.now, &mut out);
            self.absorb(out);
        }
        self.now = until;
    }

    fn event(&mut self, kind: EventKind, make: impl FnOnce(&mut Event)) {
        let mut e = Event::new(kind);
        (e.run, e.rank, e.ts, e.world) =
            (Some("llama".into()), Some(0), Some(self.now.as_secs_f64()), Some(2));
        e.node = Some("gpu-1".into());
        e.attempt = Some(0);
        make(&mut e);
        self.input(SourceInput::Event { source: SOURCE, event: &e });
    }

    fn step(&mut self, step: i64, loss: f64) {
        self.event(EventKind::Step, |e| {
            e.step = Some(step);
            e.m.set("loss", loss);
        });
    }

    fn rank_dies(&mut self) {
        self.event(EventKind::Event, |e| {
            (e.name, e.rank, e.text) = (Some("rank_dead".into()), Some(1), Some("closed its socket".into()));
        });
    }

    fn silence(&mut self, matchers: &[&str], length: i64, expire_on_resolve: bool) -> String {
        let wanted = Wanted {
            id: None,
            matchers: matchers.iter().map(|m| Matcher::parse(m).unwrap()).collect(),
            starts_at: None,
            ends_at: self.now + Span::secs(length),
            created_by: "alice".into(),
            comment: "new switch".into(),
            expire_on_resolve,
        };
        let fresh = format!("s{}", self.silences.len());
        let plan = self.engine.plan_silence(self.now, wanted, &fresh).unwrap();
        self.input(Input::Silence { plan: &plan });
        plan.silence.id
    }

    fn send_alert(&mut self, labels: &[(&str, &str)], ends_in: Option<i64>) {
        let set = |pairs: &[(&str, &str)]| -> LabelSet {
            pairs.iter().map(|(n, v)| (Box::from(*n), Box::from(*v))).collect()
        };
        let alert =
            Alert::new(set(labels), set(&[("summary", "it is full")]), self.now, "", &Limits::default())
                .unwrap();
        let posted =
            [PostedAlert { alert: alert.into(), ends_at: ends_in.map(|s| self.now + Span::secs(s)) }];
        self.input(Input::Alerts { posted: &posted });
    }

    /// Seconds and actions of the notifications to `phone`.
    fn phone(&self) -> Vec<(i64, Action)> {
        self.sent.iter().filter(|(_, n)| n.receiver == "phone").map(|(t, n)| (*t, n.action)).collect()
    }

    fn only(&self) -> &IncidentRecord {
        assert_eq!(self.records.len(), 1, "{:#?}", self.history);
        &self.records[0]
    }
}

fn running() -> World {
    let mut w = World::new(ResponderConfig::default());
    for step in 0..5 {
        w.step(step, 2.5);
        w.forward(1);
    }
    w
}

#[test]
fn what_is_silenced_is_kept_and_notified_when_the_silence_ends() {
    let mut w = running();
    w.silence(&["run=llama"], 600, false);
    w.rank_dies();
    assert_eq!(w.phone(), []);
    let suppression = w.only().suppression.clone().unwrap();
    assert_eq!(suppression.why, SuppressionReason::Silenced);
    assert!(
        suppression.words.contains("silenced by alice until 2026-11-21T02:27:01Z: new switch"),
        "{}",
        suppression.words
    );
    assert_eq!((w.only().state, w.only().severity), (State::Open, Severity::Page));
    w.forward(599);
    assert_eq!(w.phone(), []);
    w.forward(2);
    let sent = w.phone();
    assert_eq!(sent, [(605, Action::Trigger)], "{:#?}", w.history);
    let reason = &w.sent[0].1.message.reason;
    assert!(reason.contains("silence"), "{reason}");
    assert_eq!(w.only().suppression, None);
}

#[test]
fn nobody_is_notified_of_what_is_over_before_the_silence_ends() {
    let mut w = running();
    w.silence(&["run=llama"], 3600, false);
    let labels = [("alertname", "DiskFull"), ("run", "llama"), ("severity", "critical")];
    w.send_alert(&labels, Some(86_400));
    let id = w.only().id.clone();
    w.forward(60);
    w.send_alert(&labels, Some(0));
    w.forward(4000);
    assert_eq!(w.sent.iter().filter(|(_, n)| n.incident == id).count(), 0, "{:#?}", w.history);
}

#[test]
fn a_receiver_that_was_notified_is_notified_of_the_end_and_of_nothing_else() {
    let mut w = running();
    w.rank_dies();
    assert_eq!(w.phone(), [(5, Action::Trigger)]);
    let silence = w.silence(&["run=llama"], 7200, false);
    w.forward(6000);
    assert_eq!(w.phone().len(), 1, "no reminder of a page while it is silenced: {:#?}", w.history);
    w.input(Input::ExpireSilence { id: &silence });
    assert_eq!(w.phone(), [(5, Action::Trigger), (6005, Action::Trigger)], "{:#?}", w.history);
    let id = w.records.iter().find(|r| r.kind == Kind::RankDead).unwrap().id.clone();
    w.silence(&["run=llama"], 7200, false);
    w.input(Input::Act { incident: &id, by: "bob", action: &IncidentAction::Resolve });
    assert_eq!(w.phone().last(), Some(&(6005, Action::Resolve)), "{:#?}", w.history);
}

#[test]
fn a_silence_may_be_of_one_incident() {
    let mut w = running();
    let silence = w.silence(&["run=llama"], 7200, true);
    let labels = [("alertname", "DiskFull"), ("run", "llama"), ("severity", "critical")];
    w.send_alert(&labels, Some(86_400));
    let id = w.only().id.clone();
    w.forward(30);
    w.input(Input::Act { incident: &id, by: "bob", action: &IncidentAction::Resolve });
    let phase = |w: &World| w.silences.iter().find(|s| s.id == silence).unwrap().phase(w.now);
    assert_eq!(phase(&w), Phase::Active, "it still fires");
    w.forward(600);
    assert!(w.only().suppression.is_some() && w.only().state == State::Open, "it is back, and silenced");
    w.input(Input::Act { incident: &id, by: "bob", action: &IncidentAction::Resolve });
    w.send_alert(&labels, Some(0));
    assert_eq!(phase(&w), Phase::Expired);
}

#[test]
fn who_relies_on_it_is_reminded_before_it_ends() {
    let remind = SilenceConfig { remind: vec!["chat".into()], ..SilenceConfig::default() };
    let mut w = World::new(ResponderConfig { silences: remind, ..ResponderConfig::default() });
    w.step(1, 2.5);
    w.rank_dies();
    let before = w.sent.len();
    assert!(w.sent.iter().any(|(_, n)| n.receiver == "chat"), "{:?}", w.sent);
    w.silence(&["run=llama"], 3600, false);
    w.forward(2699);
    assert_eq!(w.sent.len(), before, "{:?}", w.sent);
    w.forward(2);
    let reminders: Vec<_> = w.sent[before..].iter().map(|(_, n)| (n.receiver.as_str(), n.action)).collect();
    assert!(
        !reminders.is_empty() && reminders.iter().all(|r| *r == ("chat", Action::Update)),
        "{reminders:?}"
    );
    assert!(w.sent[before].1.message.reason.contains("ends in 15m"), "{}", w.sent[before].1.message.reason);
    assert!(w.silences[0].reminded);
}

#[test]
fn a_reminder_is_nobodys_first_word() {
    let remind = SilenceConfig { remind: vec!["chat".into()], ..SilenceConfig::default() };
    let mut w = World::new(ResponderConfig { silences: remind, ..ResponderConfig::default() });
    w.step(1, 2.5);
    w.silence(&["run=llama"], 3600, false);
    w.rank_dies();
    w.forward(2701);
    assert_eq!(w.sent.len(), 0, "{:?}", w.sent);
    let said = |what: &String| what.starts_with("reminder (nobody had been notified): still firing");
    assert!(w.history.iter().any(said), "{:#?}", w.history);
    w.forward(2000);
    assert!(w.phone().iter().any(|(t, a)| *t == 3600 && *a == Action::Trigger), "{:?}", w.phone());
    let first = |receiver: &str| w.sent.iter().find(|(_, n)| n.receiver == receiver).map(|(_, n)| n.action);
    assert_eq!(first("chat"), Some(Action::Trigger));
}

#[test]
fn a_restart_that_a_run_plans_is_suppressed_and_nothing_else_is() {
    let mut w = running();
    w.event(EventKind::Event, |e| {
        (e.name, e.text) = (Some("maintenance".into()), Some("new kernel".into()));
        e.extra.insert("seconds".into(), Value::Number(1800.0));
    });
    assert_eq!(w.silences[0].created_by, "run llama");
    assert_eq!(w.silences[0].ends_at - w.now, Span::secs(1800));
    w.rank_dies();
    assert_eq!(w.phone(), []);
    w.step(6, f64::NAN);
    w.step(7, f64::NAN);
    assert!(!w.phone().is_empty(), "a NaN is no restart: {:#?}", w.history);
    // Back: a new attempt that makes steps.
    w.forward(60);
    for step in 5..9 {
        w.event(EventKind::Step, |e| {
            (e.step, e.attempt) = (Some(step), Some(1));
            e.m.set("loss", 2.5);
        });
        w.forward(1);
    }
    assert_eq!(w.silences[0].phase(w.now), Phase::Expired, "{:#?}", w.silences);
}

#[test]
fn a_maintenance_window_comes_again() {
    // From 02:00 to 03:00 every day.
    let window: Maintenance = serde_json::from_str(
        r#"{"name": "nightly", "reason": "backups", "match": ["node=gpu-1"],
            "time_intervals": [{"times": [{"start_time": "02:00", "end_time": "03:00"}]}]}"#,
    )
    .unwrap();
    let mut w = World::new(ResponderConfig { maintenance: vec![window], ..ResponderConfig::default() });
    w.send_alert(&[("alertname", "DiskFull"), ("severity", "page"), ("node", "gpu-1")], Some(100_000));
    assert_eq!(w.phone(), [], "{:#?}", w.history);
    assert!(
        w.only().suppression.as_ref().unwrap().words.contains("maintenance window nightly"),
        "{:?}",
        w.only().suppression
    );
    // T0 is 02:16:56.
    w.forward(43 * 60 + 3);
    assert_eq!(w.phone(), []);
    w.forward(61);
    assert_eq!(w.phone().len(), 1, "{:#?}", w.history);
}

#[test]
fn alerts_of_one_rule_and_run_are_one_incident() {
    let mut w = running();
    let alert =
        |node| [("alertname", "DiskFull"), ("severity", "critical"), ("node", node), ("team", "storage")];
    w.send_alert(&alert("gpu-1"), None);
    w.send_alert(&alert("gpu-1"), None);
    w.forward(1);
    assert_eq!(w.phone(), [(5, Action::Trigger)]);
    let r = w.only();
    assert_eq!((r.kind, r.severity, r.run.as_str()), (Kind::PrometheusAlert, Severity::Page, "llama"));
    assert_eq!(r.labels.get("team").map(String::as_str), Some("storage"));
    assert_eq!(r.labels.get("alertname").map(String::as_str), Some("DiskFull"));
    assert!(r.summary.to_string().contains("DiskFull: it is full"), "{}", r.summary);
    assert_eq!(r.nodes, ["gpu-1"]);
    w.send_alert(&alert("gpu-1"), Some(0));
    w.forward(100);
    assert_eq!(w.only().state, State::Resolved);
    assert_eq!(w.phone().last().map(|p| p.1), Some(Action::Resolve));
}

#[test]
fn an_alert_that_is_not_sent_any_more_is_over() {
    let mut w = World::new(ResponderConfig::default());
    for _ in 0..10 {
        w.send_alert(&[("alertname", "Probe"), ("instance", "https://x/y")], None);
        w.forward(60);
    }
    assert_eq!((w.only().state, w.only().severity), (State::Open, Severity::Ticket));
    assert_eq!(w.only().nodes, [""; 0]);
    w.forward(320);
    assert_eq!(w.only().state, State::Resolved, "{:#?}", w.history);
}

#[test]
fn what_our_own_detectors_reported_already_is_not_notified_twice() {
    let alert =
        [("alertname", "TrainRankDead"), ("severity", "page"), ("run", "llama"), ("kind", "rank_dead")];
    let mut w = running();
    w.rank_dies();
    w.send_alert(&alert, None);
    assert_eq!((w.records.len(), w.phone().len()), (1, 1), "{:#?}", w.history);
    // The other way round.
    let mut w = running();
    w.send_alert(&alert, None);
    w.rank_dies();
    let triggers = w.phone().iter().filter(|p| p.1 == Action::Trigger).count();
    assert_eq!((w.records.len(), triggers), (1, 1), "{:#?}", w.history);
}

#[test]
fn alerts_are_silenced_one_by_one() {
    let mut w = World::new(ResponderConfig::default());
    w.silence(&["alertname=DiskFull", "instance=~\"a.*\""], 3600, false);
    let alert = |instance| [("alertname", "DiskFull"), ("severity", "page"), ("instance", instance)];
    w.send_alert(&alert("a1:9100"), Some(7200));
    w.send_alert(&alert("a2:9100"), Some(7200));
    w.forward(1);
    assert_eq!(w.phone(), [], "{:#?}", w.history);
    w.send_alert(&alert("b1:9100"), Some(7200));
    assert_eq!(w.phone().len(), 1, "one of them is not silenced: {:#?}", w.history);
}

#[test]
fn an_info_and_a_watchdog_wake_nobody() {
    let mut w = World::new(ResponderConfig::default());
    w.send_alert(&[("alertname", "Watchdog"), ("severity", "none")], None);
    w.send_alert(&[("alertname", "Note"), ("severity", "info")], None);
    w.forward(400);
    assert_eq!(w.sent.len(), 0);
    assert!(w.records.iter().all(|r| r.severity == Severity::Info));
}

#[test]
fn an_alert_is_silenced_by_either_name_of_its_severity() {
    let alert = [("alertname", "DiskFull"), ("severity", "critical"), ("instance", "a1:9100")];
    for severity in ["critical", "page"] {
        let mut w = World::new(ResponderConfig::default());
        w.silence(&["alertname=DiskFull", &format!("severity={severity}")], 3600, false);
        w.send_alert(&alert, Some(7200));
        w.forward(60);
        assert_eq!(w.phone(), [], "{severity}: {:#?}", w.history);
        assert_eq!(w.only().suppression.as_ref().map(|q| q.why), Some(SuppressionReason::Silenced));
    }
}

#[test]
fn of_alerts_with_silences_of_their_own_the_first_to_end_counts() {
    for lengths in [[3600, 600], [600, 3600]] {
        let mut w = World::new(ResponderConfig::default());
        for (instance, length) in ["a1:9100", "b1:9100"].into_iter().zip(lengths) {
            w.silence(&[&format!("instance=\"{instance}\"")], length, false);
            w.send_alert(
                &[("alertname", "DiskFull"), ("severity", "page"), ("instance", instance)],
                Some(7200),
            );
        }
        let until = w.only().suppression.as_ref().and_then(|q| q.until);
        assert_eq!(until, Some(w.now + Span::secs(600)), "{:#?}", w.history);
        w.forward(599);
        assert_eq!(w.phone(), []);
        w.forward(1);
        assert_eq!(w.phone(), [(600, Action::Trigger)]);
    }
}

#[test]
fn a_silence_of_alerts_suppresses_nothing_that_our_own_detectors_report() {
    let mut w = running();
    w.silence(&["severity=critical"], 3600, false);
    w.rank_dies();
    let alert =
        [("alertname", "TrainRankDead"), ("severity", "critical"), ("run", "llama"), ("kind", "rank_dead")];
    w.send_alert(&alert, None);
    w.forward(60);
    // Nor when the silences are looked at again.
    w.silence(&["run=other"], 60, false);
    assert_eq!(w.only().suppression, None, "{:#?}", w.history);
    assert_eq!(w.phone(), [(5, Action::Trigger), (35, Action::Update)], "the alert is news of it");
}

use insta::assert_snapshot;
use stepwatch_engine::{AnyInput, Engine, SourceInput};
use stepwatch_model::{Clause, Kind, Observation, Suspect, Target};
use stepwatch_respond::config::{Level, Policy, ResponderConfig, Route};
use stepwatch_respond::effect::{Effect, IncidentAction, Input, Notification};
use stepwatch_wire::Event;

use super::*;

const BEGIN: Ts = Ts(1_795_227_416_000);
const SECOND: Span = Span::secs(1);

/// An engine, its clock, and all its effects.
struct World {
    engine: Engine,
    now: Ts,
    record: Option<IncidentRecord>,
    timeline: Vec<TimelineEntry>,
    deliveries: Vec<Delivery>,
}

impl World {
    fn new() -> Self {
        let level = |after, to: &str, repeat| Level {
            after: Span::secs(after),
            notify: vec![to.into()],
            repeat,
            ..Level::default()
        };
        let policy =
            Policy { name: "default".into(), levels: vec![level(0, "chat", 0), level(300, "pd", 1)] };
        let config = ResponderConfig {
            receivers: vec!["chat".into(), "pd".into()],
            cost_per_gpu_hour: Some(2.5),
            external_url: Some("https://stepwatch.example.com".into()),
            policies: vec![policy],
            routes: vec![Route { policy: Some("default".into()), ..Route::default() }],
            ..ResponderConfig::default()
        };
        let (engine, timeline, deliveries) = (Engine::new(config), Vec::new(), Vec::new());
        Self { engine, now: BEGIN, record: None, timeline, deliveries }
    }

    fn absorb(&mut self, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Incident(r) => self.record = Some(*r),
                Effect::Timeline(t) => self.timeline.push(t),
                Effect::Notify(n) => self.deliveries.push(delivered(self.now, *n)),
                _ => {}
            }
        }
    }

    fn input<'a>(&mut self, input: impl Into<AnyInput<'a>>) {
        let mut out = Vec::new();
        self.engine.handle(self.now, input, &mut out);
        self.absorb(out);
    }

    fn say(&mut self, line: &str) {
        let mut event = Event::parse(line.as_bytes()).unwrap();
        event.ts = Some(self.now.as_secs_f64());
        self.input(SourceInput::Event { source: "node001:9765", event: &event });
    }

    fn forward(&mut self, by: Span) {
        let until = self.now + by;
        while let Some((at, _)) = self.engine.next_deadline().filter(|(at, _)| *at <= until) {
            self.now = at.max(self.now);
            let mut out = Vec::new();
            self.engine.tick(self.now, &mut out);
            self.absorb(out);
        }
        self.now = until;
    }

    fn train(&mut self, from: i64, to: i64, attempt: u32) {
        for step in from..=to {
            self.forward(SECOND);
            self.say(&format!(
                r#"{{"k":"step","run":"llama-70b","rank":0,"world":512,"node":"gpu-001","attempt":{attempt},"step":{step},"m":{{"loss":2.1,"step_time":1.0}}}}"#
            ));
        }
    }

    fn id(&self) -> String {
        self.record.as_ref().unwrap().id.clone()
    }

    fn account(&self) -> String {
        self.account_with(None)
    }

    fn account_with(&self, chart: Option<&str>) -> String {
        let record = self.record.as_ref().unwrap();
        let (timeline, deliveries) = (self.timeline.as_slice(), self.deliveries.as_slice());
        render(&Account { record, timeline, deliveries, chart, now: self.now })
    }
}

/// A delivery that is accepted a second and a half later.
fn delivered(at: Ts, n: Notification) -> Delivery {
    Delivery {
        ring: None,
        left_to: None,
        idem_key: n.idem_key,
        receiver: n.receiver,
        seq: n.seq,
        action: n.action,
        page: n.page,
        state: DeliveryState::Delivered,
        attempts: 1,
        created_at: at,
        next_at: None,
        done_at: jiff::Timestamp::from_millisecond(at.0 + 1500).ok().map(|t| t.to_string()),
        error: None,
        users: n.users,
        path: n.path,
        message: Some(Box::new(n.message)),
    }
}

/// A hang that is acknowledged after the second level, a restart from the checkpoint, and the end.
fn hang() -> World {
    let mut w = World::new();
    w.train(1, 100, 0);
    w.say(r#"{"k":"ckpt","run":"llama-70b","rank":0,"attempt":0,"step":100,"phase":"end"}"#);
    w.train(101, 160, 0);
    w.forward(Span::secs(900));
    let id = w.id();
    w.input(Input::Act { incident: &id, by: "slack:U0ALICE (alice)", action: &IncidentAction::Ack });
    w.forward(Span::secs(600));
    w.train(101, 200, 1);
    w.forward(Span::secs(30));
    w
}

#[test]
fn a_hang_from_onset_to_end() {
    let w = hang();
    assert_eq!(w.record.as_ref().unwrap().state, State::Resolved);
    assert_snapshot!(w.account());
}

#[test]
fn what_is_not_over_says_so() {
    let mut w = World::new();
    w.train(1, 60, 0);
    w.say(r#"{"k":"step","run":"llama-70b","rank":0,"world":512,"node":"gpu-001","attempt":0,"step":61,"m":{"loss":"NaN"}}"#);
    w.forward(Span::secs(60));
    w.deliveries[0].state = DeliveryState::Pending;
    w.deliveries[0].done_at = None;
    w.deliveries[0].attempts = 4;
    w.deliveries[0].error = Some("503 Service Unavailable".into());
    assert_snapshot!(w.account());
}

#[test]
fn hostile_text_stays_text() {
    let mut w = hang();
    let evil = "</td><script>alert(1)</script> | ![x](http://evil) `rm -rf` @everyone\n# Heading";
    let r = w.record.as_mut().unwrap();
    (r.run, r.summary, r.signal) = (evil.into(), Clause::words(evil).into(), evil.into());
    r.acked_by = Some(evil.into());
    r.suspects =
        vec![Suspect::new(Target::Signal { name: evil.into() }, Observation::Stated { words: evil.into() })];
    r.labels.insert(evil.into(), evil.into());
    for entry in &mut w.timeline {
        (entry.actor, entry.what) = (evil.into(), evil.into());
    }
    for d in &mut w.deliveries {
        (d.receiver, d.users, d.error) = (evil.into(), vec![evil.into()], Some(evil.into()));
        let m = d.message.as_mut().unwrap();
        m.reason = evil.into();
        m.details.advice = Some(evil.into());
        m.links[0].text = evil.into();
        m.links[0].href = "javascript:alert(1)".into();
    }
    let account = w.account();
    for mark in ["<script", "![x]", "`rm", "javascript:"] {
        let shown = account.replace("\\<", "").replace("\\[", "").replace("\\`", "");
        assert!(!shown.contains(mark), "{mark} in {account}");
    }
    assert!(!account.lines().any(|l| l.starts_with("# Heading")), "{account}");
}

#[test]
fn nobody_was_notified_and_no_run_was_on_it() {
    let mut w = hang();
    w.deliveries.clear();
    let account = w.account();
    assert!(
        account.contains("Nobody was notified of it, so that it is not recorded how many GPUs"),
        "{account}"
    );
    assert!(account.contains("| Notified | nobody was notified |"), "{account}");
    w.record.as_mut().unwrap().run.clear();
    assert!(w.account().contains("No run was on it"), "{}", w.account());
}

#[test]
fn somebody_was_notified_of_a_run_of_unknown_size() {
    let mut w = hang();
    for d in &mut w.deliveries {
        let details = &mut d.message.as_mut().unwrap().details;
        (details.run.gpus, details.cost, details.advice) = (None, None, None);
    }
    let account = w.account();
    assert!(account.contains("The size of the run was not known, so that it is not recorded"), "{account}");
    assert!(account.contains("| Size | unknown number of GPUs on 1 node, attempt 1 |"), "{account}");
    assert!(account.contains("| Stalled | 26m 1s of the run: no step was made"), "{account}");
    let impact = account.split_once("## Impact").unwrap().1.split_once("## Times").unwrap().0;
    assert!(!impact.contains('$') && !impact.contains("GPU hours"), "{impact}");
    assert!(!account.to_lowercase().contains("nobody was notified"), "{account}");
    w.deliveries.clear();
    let r = w.record.as_mut().unwrap();
    r.labels.insert("alertname".into(), "DiskFull".into());
    (r.kind, r.cause) = (Kind::PrometheusAlert, Kind::PrometheusAlert.cause());
    let account = w.account();
    assert!(
        account.starts_with("# Post-mortem: DiskFull of ") && !account.contains("| Steps |"),
        "{account}"
    );
}

#[test]
fn what_it_takes_from_a_run() {
    let mut w = hang();
    let first = w.deliveries[0].message.clone().unwrap().details;
    let r = w.record.as_mut().unwrap();
    assert_eq!(impact::loss(r, &first), impact::Way::Stalled);
    r.cause = stepwatch_model::Cause::Speed;
    r.kind = Kind::SlowStart;
    let slow = |signal: &str, value: f64, expected: f64| {
        let mut d = first.clone();
        (d.evidence.signal, d.evidence.value, d.evidence.expected) =
            (signal.into(), Some(value), Some(expected));
        d
    };
    assert_eq!(impact::loss(r, &slow("step_time", 4.0, 3.0)), impact::Way::Slowed(0.25));
    assert_eq!(impact::loss(r, &slow("mfu", 0.3, 0.4)), impact::Way::Slowed(1.0 - 0.3 / 0.4));
    assert_eq!(impact::loss(r, &slow("step_time", 3.0, 4.0)), impact::Way::None);
    assert_eq!(impact::loss(r, &slow("peers", 3.0, 4.0)), impact::Way::None);
}

#[test]
fn the_chart_is_in_the_document() {
    let w = hang();
    assert!(!w.account().contains("!["));
    let account = w.account_with(Some("<svg/>"));
    assert!(account.contains("](data:image/svg+xml;base64,PHN2Zy8+)"), "{account}");
}

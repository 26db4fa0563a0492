//! Overrides of on-call schedules on virtual time: whom a page rings as it climbs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use stepwatch_engine::{DryRun, Engine, EngineConfig};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Labels, Severity};
use stepwatch_respond::config::{Level, Policy, ResponderConfig, Route};
use stepwatch_respond::effect::{Action, Effect, Input};
use stepwatch_respond::oncall::{
    Layer, Moment, OnCallConfig, OverrideRecord, OverrideWanted, People, Rotation, Schedule, Turn, User,
    WantedCover,
};

/// 2026-11-21T02:16:56Z, in a week of ann.
const T0: Ts = Ts(1_795_227_416_000);

struct World {
    config: EngineConfig,
    engine: Engine,
    now: Ts,
    /// Seconds, receiver and reason of each call.
    rung: Vec<(i64, String, String)>,
    parts: BTreeMap<String, Vec<u8>>,
    /// As the store has them.
    overrides: BTreeMap<String, OverrideRecord>,
}

/// The schedule is notified at once, after five minutes and after ten.
fn config() -> EngineConfig {
    let user =
        |name: &str| User { name: name.into(), notify: vec![format!("{name}-phone")], ..User::default() };
    let layer = Layer {
        name: "weekly".into(),
        users: ["ann", "bob"].map(|name| People(vec![name.into()])).into(),
        start: "2026-11-16T00:00".parse().unwrap(),
        until: None,
        rotation: Rotation::default(),
        restrictions: Vec::new(),
    };
    let schedule = Schedule { name: "primary".into(), layers: vec![layer], ..Schedule::default() };
    let notify = vec!["schedule:primary".to_owned()];
    let level = Level { after: Span::secs(300), notify, repeat: 1, ..Level::default() };
    let levels = vec![Level { after: Span::ZERO, repeat: 0, ..level.clone() }, level];
    ResponderConfig {
        receivers: vec!["ann-phone".into(), "bob-phone".into()],
        policies: vec![Policy { name: "climb".into(), levels }],
        routes: vec![Route { policy: Some("climb".into()), ..Route::default() }],
        oncall: OnCallConfig {
            users: ["ann", "bob"].map(user).into(),
            schedules: vec![schedule],
            ..OnCallConfig::default()
        },
        ..ResponderConfig::default()
    }
    .into()
}

impl World {
    fn new() -> Self {
        let config = config();
        let engine = Engine::new(config.clone());
        Self { config, engine, now: T0, rung: vec![], parts: BTreeMap::new(), overrides: BTreeMap::new() }
    }

    fn absorb(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Notify(n) if n.action == Action::Trigger => {
                    let why = n.path.map(|path| path.chosen.join(", ")).unwrap_or_default();
                    self.rung.push(((self.now - T0).0 / 1000, n.receiver, why));
                }
                Effect::Override(record) => {
                    self.overrides.insert(record.id.clone(), (*record).clone());
                }
                _ => {}
            }
        }
        for (key, bytes) in self.engine.take_dirty() {
            match bytes {
                Some(bytes) => drop(self.parts.insert(key, bytes)),
                None => drop(self.parts.remove(&key)),
            }
        }
    }

    fn page(&mut self) {
        let (kind, severity, labels) = (Kind::Hang, Severity::Page, Labels::new());
        let what = DryRun { run: "llama", node: None, kind, severity, gpus: Some(8), labels: &labels };
        let mut out = Vec::new();
        self.engine.dry_run(self.now, &what, &mut out);
        self.absorb(out);
    }

    fn put(&mut self, record: OverrideRecord) {
        let mut out = Vec::new();
        self.engine.handle(self.now, Input::Override { record: &Arc::new(record) }, &mut out);
        self.absorb(out);
    }

    fn take_over(&mut self, wanted: OverrideWanted) -> String {
        let fresh = format!("o{}", self.overrides.len());
        let record = self.engine.oncall().plan_override(wanted, &fresh, self.now).unwrap();
        self.put(record);
        fresh
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

    /// Another process with the same store.
    fn restart(&mut self) {
        let (engine, unusable) = Engine::restore(self.config.clone(), self.parts.clone());
        assert_eq!(unusable, [""; 0]);
        self.engine = engine;
        self.engine.restore_overrides(self.now, self.overrides.values().cloned());
    }

    fn receivers(&self) -> Vec<(i64, &str)> {
        self.rung.iter().map(|(at, receiver, _)| (*at, receiver.as_str())).collect()
    }
}

fn bob_until(seconds: i64) -> OverrideWanted {
    let until = Moment::At(T0 + Span::secs(seconds));
    let cover = WantedCover { user: "bob".into(), replaces: None, from: None, until };
    let (schedule, created_by) = ("primary".to_owned(), "ann".to_owned());
    OverrideWanted { schedule, covers: vec![cover], created_by, note: "dentist".into() }
}

#[test]
fn a_page_climbs_to_whoever_is_on_call_then_also_after_a_restart() {
    let mut w = World::new();
    w.page();
    assert_eq!(w.receivers(), [(0, "ann-phone")]);
    w.forward(60);
    // From now on for seven minutes, which covers the second call and not the third.
    w.take_over(bob_until(480));
    assert_eq!(w.receivers().len(), 1, "nobody is rung because of the override alone");
    w.restart();
    w.forward(240);
    assert_eq!(w.receivers(), [(0, "ann-phone"), (300, "bob-phone")]);
    assert_eq!(w.rung[1].2, "schedule primary: bob (override by ann: dentist) by bob-phone");
    w.forward(300);
    assert_eq!(w.receivers()[2], (600, "ann-phone"));
}

#[test]
fn after_it_is_removed_the_page_climbs_to_whoever_was_on_call_before() {
    let mut w = World::new();
    let id = w.take_over(bob_until(86_400));
    w.page();
    assert_eq!(w.receivers(), [(0, "bob-phone")]);
    w.forward(10);
    let removed = w.overrides[&id].removed_by("bob", w.now);
    w.put(removed);
    w.restart();
    w.forward(300);
    assert_eq!(w.receivers(), [(0, "bob-phone"), (300, "ann-phone")]);
}

#[test]
fn a_swap_rings_each_in_the_week_of_the_other() {
    let mut w = World::new();
    let turn = |user: &str, from: &str, until: &str| Turn {
        user: user.into(),
        from: Some(Moment::parse(from).unwrap()),
        until: Moment::parse(until).unwrap(),
    };
    let (first, second) = (
        turn("ann", "2026-11-16T00:00", "2026-11-23T00:00"),
        turn("bob", "2026-11-23T00:00", "2026-11-30T00:00"),
    );
    w.take_over(OverrideWanted::swap("primary".into(), first, second, "ann".into(), String::new()));
    w.page();
    assert_eq!(w.rung[0].1, "bob-phone");
    assert_eq!(w.rung[0].2, "schedule primary: bob (swap by ann) by bob-phone");
    let oncall = w.engine.oncall();
    let on = |days: i64| oncall.duty("primary", T0 + Span::secs(days * 86_400)).unwrap().users;
    assert_eq!(
        (on(0), on(3), on(10)),
        (vec!["bob".to_owned()], vec!["ann".to_owned()], vec!["ann".to_owned()])
    );
}

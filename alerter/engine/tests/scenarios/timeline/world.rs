//! What the tests move: time.

use stepwatch_engine::{AnyInput, Engine, SourceInput, StatePart};
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::config::{Level, Policy, ResponderConfig, Route};
use stepwatch_respond::effect::{Action, Effect, Notification};
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_wire::{Event, Kind as EventKind};

/// An engine, a clock that only tests move, and everything that came out.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) config: ResponderConfig,
    pub(crate) now: Ts,
    pub(crate) sent: Vec<(Ts, Notification)>,
    pub(crate) records: Vec<IncidentRecord>,
    pub(crate) history: Vec<String>,
    pub(crate) parts: std::collections::BTreeMap<String, Vec<u8>>,
}

pub(crate) const SOURCE: &str = "node001:9765";

impl World {
    pub(crate) fn new(config: ResponderConfig) -> Self {
        let engine = Engine::new(config.clone());
        let now = Ts(1_795_227_416_000);
        let mut w = Self {
            engine,
            config,
            now,
            sent: vec![],
            records: vec![],
            history: vec![],
            parts: std::collections::BTreeMap::default(),
        };
        w.input(SourceInput::SourceUp { source: SOURCE, many_nodes: true });
        w
    }

    pub(crate) fn input<'a>(&mut self, input: impl Into<AnyInput<'a>>) {
        let mut out = Vec::new();
        self.engine.handle(self.now, input, &mut out);
        self.absorb(out);
    }

    pub(crate) fn event(&mut self, mut e: Event) {
        e.ts = Some(self.now.as_secs_f64());
        self.input(SourceInput::Event { source: SOURCE, event: &e });
    }

    pub(crate) fn absorb(&mut self, effects: Vec<Effect>) {
        for e in effects {
            match e {
                Effect::Notify(n) => self.sent.push((self.now, *n)),
                Effect::Incident(r) => {
                    self.records.retain(|had| had.id != r.id);
                    self.records.push(*r);
                }
                Effect::Timeline(t) => self.history.push(t.what),
                Effect::Silence(_) | Effect::Override(_) | Effect::Alert(_) | Effect::AlertOver(_) => {}
            }
        }
        for (key, bytes) in self.engine.take_dirty() {
            match bytes {
                Some(b) => self.parts.insert(key, b),
                None => self.parts.remove(&key),
            };
        }
    }

    /// Runs every deadline on the way.
    pub(crate) fn forward(&mut self, by: Span) {
        let until = self.now + by;
        while let Some((at, _)) = self.engine.next_deadline().filter(|(at, _)| *at <= until) {
            self.now = at.max(self.now);
            let mut out = Vec::new();
            self.engine.tick(self.now, &mut out);
            self.absorb(out);
        }
        self.now = until;
    }

    /// `n` steps of every rank, one a second, by a trainer that declares its evaluations and sends
    /// heartbeats.
    pub(crate) fn train(&mut self, from: i64, n: i64, ranks: u32) {
        let mut eval = Event::new(EventKind::Eval);
        eval.run = Some("llama".into());
        self.event(eval);
        for step in from..from + n {
            self.forward(Span::secs(1));
            for rank in 0..ranks {
                self.event(step_of(rank, step));
            }
        }
        let mut hb = Event::new(EventKind::Hb);
        (hb.run, hb.rank) = (Some("llama".into()), Some(0));
        self.event(hb);
    }

    /// Kills the process: only what was stored survives.
    pub(crate) fn kill_and_restore(&mut self, down: Span) {
        self.now = self.now + down;
        let parts: Vec<StatePart> = self.parts.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
        let parts = parts.into_iter().filter_map(|(k, v)| Some((k, v?)));
        let (engine, unusable) = Engine::restore(self.config.clone(), parts);
        assert_eq!(unusable, Vec::<String>::new());
        self.engine = engine;
        let mut out = Vec::new();
        self.engine.resume(self.now, &mut out);
        self.absorb(out);
    }

    pub(crate) fn actions(&self) -> Vec<(&str, Action, u32)> {
        self.sent.iter().map(|(_, n)| (n.receiver.as_str(), n.action, n.seq)).collect()
    }

    pub(crate) fn only(&self) -> &IncidentRecord {
        assert_eq!(self.records.len(), 1, "{:#?}", self.history);
        &self.records[0]
    }
}

pub(crate) fn step_of(rank: u32, step: i64) -> Event {
    let mut e = Event::step("llama", step);
    (e.rank, e.world, e.node) = (Some(rank), Some(8), Some(format!("node{:03}", rank / 4 + 1)));
    e.attempt = Some(0);
    e.m.set("step_time", 1.0);
    if rank == 0 {
        e.m.set("loss", 2.0);
    }
    e
}

pub(crate) fn two_levels() -> ResponderConfig {
    let levels = vec![
        Level { notify: vec!["chat".into()], ..Level::default() },
        Level { after: Span::secs(300), notify: vec!["primary".into()], repeat: 2, ..Level::default() },
    ];
    let severity = |s: &str| vec![format!("severity=\"{s}\"")];
    ResponderConfig {
        receivers: vec!["chat".into(), "primary".into()],
        cost_per_gpu_hour: Some(2.5),
        policies: vec![Policy { name: "default".into(), levels }],
        routes: vec![
            Route { matchers: severity("page"), policy: Some("default".into()), ..Route::default() },
            Route { matchers: severity("ticket"), notify: vec!["chat".into()], ..Route::default() },
        ],
        ..ResponderConfig::default()
    }
}

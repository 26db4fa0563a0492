//! An engine with its clock, runs that step and nodes that report.

use std::collections::BTreeMap;

use stepwatch_engine::{AnyInput, Engine, SourceInput};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Action, Effect, IncidentAction, Input, Notification};
use stepwatch_respond::incident::{IncidentRecord, State};
use stepwatch_wire::{Cursor, Event, Kind as EventKind, Value};

pub(crate) const START: Ts = Ts(1_795_227_416_000);
/// The version of a form of runs and nodes that is not read any more.
const OTHER_FORM: u8 = 9;
pub(crate) const UUID: &str = "GPU-2f3c9a51-0000-0000-0000-000000000003";

pub(crate) struct Bench {
    pub(crate) engine: Engine,
    pub(crate) now: Ts,
    pub(crate) incidents: Vec<IncidentRecord>,
    pub(crate) notifications: Vec<Notification>,
    pub(crate) timeline: Vec<String>,
    pub(crate) parts: BTreeMap<String, Vec<u8>>,
    steps: BTreeMap<String, i64>,
    boot: String,
}

pub(crate) fn config() -> ResponderConfig {
    // Updates are sent at once: these tests are about their content, not their time.
    ResponderConfig {
        receivers: vec!["chat".into()],
        update_min_interval: Span::ZERO,
        ..ResponderConfig::default()
    }
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self {
            engine: Engine::new(config()),
            now: START,
            incidents: Vec::new(),
            notifications: Vec::new(),
            timeline: Vec::new(),
            parts: BTreeMap::new(),
            steps: BTreeMap::new(),
            boot: "a".into(),
        }
    }

    /// A run with one rank on each of these nodes, 100 steps old.
    pub(crate) fn with_run(run: &str, nodes: &[&str]) -> Self {
        let mut b = Self::new();
        b.steps(run, nodes, 100);
        b
    }

    pub(crate) fn feed(&mut self, event: Event) {
        let source = address(event.node.as_deref().unwrap_or_default());
        self.feed_over(&source, event);
    }

    pub(crate) fn feed_over(&mut self, source: &str, mut event: Event) {
        event.cursor = Some(Cursor { boot: self.boot.clone(), seq: 1 });
        event.ts.get_or_insert(self.now.as_secs_f64());
        let mut out = Vec::new();
        self.engine.handle(self.now, SourceInput::Event { source, event: &event }, &mut out);
        self.absorb(out);
    }

    /// The exporters start anew.
    pub(crate) fn reboot(&mut self, boot: &str) {
        boot.clone_into(&mut self.boot);
    }

    fn absorb(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Incident(r) => match self.incidents.iter_mut().find(|had| had.id == r.id) {
                    Some(had) => *had = *r,
                    None => self.incidents.push(*r),
                },
                Effect::Notify(n) => self.notifications.push(*n),
                Effect::Silence(_) | Effect::Override(_) | Effect::Alert(_) | Effect::AlertOver(_) => {}
                Effect::Timeline(t) => self.timeline.push(t.what),
            }
        }
        for (name, part) in self.engine.take_dirty() {
            match part {
                Some(bytes) => drop(self.parts.insert(name, bytes)),
                None => drop(self.parts.remove(&name)),
            }
        }
    }

    /// A person acknowledges the last incident, or resolves it.
    pub(crate) fn ack(&mut self, by: &str) {
        let id = self.last().id.clone();
        self.answer(Input::Act { incident: &id, by, action: &IncidentAction::Ack });
    }

    pub(crate) fn resolve(&mut self, by: &str) {
        let id = self.last().id.clone();
        self.answer(Input::Act { incident: &id, by, action: &IncidentAction::Resolve });
    }

    pub(crate) fn answer<'a>(&mut self, answer: impl Into<AnyInput<'a>>) {
        let mut out = Vec::new();
        self.engine.handle(self.now, answer, &mut out);
        self.absorb(out);
    }

    /// The exporter of a node does not answer any more, or does again.
    pub(crate) fn lose(&mut self, node: &str) {
        self.answer(SourceInput::SourceDown { source: &address(node), reason: "the connection broke" });
    }

    pub(crate) fn find(&mut self, node: &str) {
        self.find_at(&address(node));
    }

    pub(crate) fn find_at(&mut self, source: &str) {
        self.answer(SourceInput::SourceUp { source, many_nodes: false });
    }

    /// Stops the program and starts it again.
    pub(crate) fn restart(&mut self) {
        let (engine, unusable) = Engine::restore(config(), self.parts.clone());
        assert!(unusable.is_empty(), "{unusable:?}");
        self.engine = engine;
    }

    /// Nobody listens for so long.
    pub(crate) fn stop_for(&mut self, secs: i64) {
        self.now = self.now + Span::secs(secs);
        self.restart();
        self.resume();
    }

    /// The program is replaced by one that stores runs and nodes in another form.
    pub(crate) fn upgrade(&mut self) {
        let is_learned = |name: &str| name.starts_with("run/") || name.starts_with("node/");
        self.parts.iter_mut().filter(|(name, _)| is_learned(name)).for_each(|(_, part)| part[0] = OTHER_FORM);
        let (engine, unusable) = Engine::restore(config(), self.parts.clone());
        assert!(!unusable.is_empty() && unusable.iter().all(|name| is_learned(name)), "{unusable:?}");
        self.engine = engine;
        self.parts.retain(|name, _| !is_learned(name));
        self.resume();
    }

    fn resume(&mut self) {
        let mut out = Vec::new();
        self.engine.resume(self.now, &mut out);
        self.absorb(out);
    }

    pub(crate) fn steps(&mut self, run: &str, nodes: &[&str], n: i64) {
        self.steps_every(2, run, nodes, n);
    }

    pub(crate) fn steps_every(&mut self, secs: i64, run: &str, nodes: &[&str], n: i64) {
        for _ in 0..n {
            self.wait(secs);
            let step = self.steps.entry(run.to_owned()).or_default();
            *step += 1;
            let step = *step;
            for (rank, node) in nodes.iter().enumerate() {
                self.step(run, rank as u32, node, step);
            }
        }
    }

    pub(crate) fn step(&mut self, run: &str, rank: u32, node: &str, step: i64) {
        let mut e = Event::step(run, step);
        (e.rank, e.attempt, e.node) = (Some(rank), Some(0), Some(node.to_owned()));
        e.m.set("loss", 2.0 + 0.01 * ((step * 7) % 11) as f64);
        self.feed(e);
    }

    pub(crate) fn wait(&mut self, secs: i64) {
        let until = self.now + Span::secs(secs);
        let mut looks = 0;
        while let Some((due, _)) = self.engine.next_deadline().filter(|(due, _)| *due <= until) {
            self.now = self.now.max(due);
            let mut out = Vec::new();
            self.engine.tick(self.now, &mut out);
            self.absorb(out);
            looks += 1;
            assert!(looks < 10_000, "a clock that never rests: {:?}", self.engine.next_deadline());
        }
        self.now = until;
    }

    /// What counts: the incidents that are more than annotations.
    pub(crate) fn summary(&self) -> Vec<(Kind, Severity, State)> {
        let loud = self.incidents.iter().filter(|i| i.severity > Severity::Info);
        loud.map(|i| (i.kind, i.severity, i.state)).collect()
    }

    pub(crate) fn notes(&self) -> usize {
        self.incidents.iter().filter(|i| i.severity == Severity::Info).count()
    }

    pub(crate) fn last(&self) -> &IncidentRecord {
        let loud = self.incidents.iter().rfind(|i| i.severity > Severity::Info);
        loud.unwrap_or_else(|| panic!("no incident"))
    }

    /// Of what is open: kind, severity, run and nodes.
    pub(crate) fn open(&self) -> Vec<(Kind, Severity, &str, Vec<&str>)> {
        let open = self.incidents.iter().filter(|i| i.state != State::Resolved);
        open.map(|i| {
            let nodes = i.nodes.iter().map(String::as_str).collect();
            (i.kind, i.severity, i.run.as_str(), nodes)
        })
        .collect()
    }

    /// Number of pages: triggers, first ones and raises, that page a person.
    pub(crate) fn pages(&self) -> usize {
        self.notifications.iter().filter(|n| n.page && n.action == Action::Trigger).count()
    }
}

/// Where the exporter of a node is read: discovery gives addresses, which are nothing like the
/// names that nodes have for themselves.
pub(crate) fn address(node: &str) -> String {
    let port = node.bytes().fold(0, |port: u32, b| (port * 31 + u32::from(b)) % 60_000);
    format!("192.0.2.1:{port}")
}

/// An event of a node.
pub(crate) fn said(kind: EventKind, node: &str, name: &str, level: &str, text: &str) -> Event {
    Event {
        node: Some(node.into()),
        name: Some(name.into()),
        level: Some(level.into()),
        text: Some(text.into()),
        ..Event::new(kind)
    }
}

pub(crate) fn with(mut e: Event, extra: &[(&str, &str)]) -> Event {
    for (key, value) in extra {
        let value = match *value {
            "true" => Value::Bool(true),
            text => Value::Text(text.into()),
        };
        e.extra.insert((*key).into(), value);
    }
    e
}

pub(crate) fn xid(node: &str, number: i64, level: &str, action: &str, known_as: &str) -> Event {
    let hint = "look at it";
    let text = format!("XID {number} ({known_as}) of GPU 0000:1b:00.0: {hint}");
    let e = said(EventKind::Xid, node, "xid", level, &text);
    let e = with(e, &[("known_as", known_as), ("hint", hint)]);
    let e = with(e, &[("gpu", UUID), ("pci", "0000:1b:00.0"), ("action", action)]);
    Event { code: Some(number), ..e }
}

pub(crate) fn fell_off(node: &str) -> Event {
    xid(node, 79, "error", "reboot_node", "GPU has fallen off the bus")
}

pub(crate) fn hw(
    node: &str,
    name: &str,
    holds: bool,
    level: &str,
    text: &str,
    extra: &[(&str, &str)],
) -> Event {
    let e = with(said(EventKind::Hw, node, name, level, text), extra);
    Event { code: Some(i64::from(holds)), ..e }
}

pub(crate) fn gpu_lost(node: &str, holds: bool) -> Event {
    hw(node, "gpu_lost", holds, "error", "the driver cannot reach the GPU", &[("gpu", UUID)])
}

/// The event that exporters publish of a port that was just found down, or up again.
pub(crate) fn link(node: &str, device: &str, up: bool) -> Event {
    let state = if up { "up" } else { "down" };
    let level = if up { "info" } else { "warn" };
    let e = said(EventKind::Link, node, device, level, &format!("InfiniBand port {device} went {state}"));
    Event { code: Some(i64::from(up)), ..with(e, &[("medium", "infiniband"), ("state", state)]) }
}

/// A reading of one GPU of a node.
pub(crate) fn reading(node: &str, index: u32, metrics: &[(&str, f64)]) -> Event {
    let mut e = Event { node: Some(node.into()), name: Some("gpu".into()), ..Event::new(EventKind::Health) };
    e.extra.insert("gpu".into(), Value::Text(format!("GPU-{node}-{index}")));
    e.extra.insert("index".into(), Value::Number(f64::from(index)));
    for (name, v) in metrics {
        e.m.set(name, *v);
    }
    e
}

pub(crate) fn dead(run: &str, rank: u32, node: &str) -> Event {
    let e = said(EventKind::Event, node, "rank_dead", "error", "process 42 closed its socket");
    Event { run: Some(run.into()), rank: Some(rank), ..e }
}

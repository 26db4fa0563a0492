//! A cluster with one run, its clock, the engine that follows it, and what people are told.
#![allow(clippy::panic, reason = "a story that is not told fails its test")]

use core::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};
use stepwatch_engine::{Engine, EngineConfig, SourceInput};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Effect, Notification};
use stepwatch_wire::{Cursor, Event};

use super::Story;
use crate::random::Random;

const START: Ts = Ts(1_795_227_416_000);
/// A hundredth of a second to and fro, as steps have it.
const JITTER: f64 = 0.01;

/// How long a step took: for the whole job, and for the computation of a rank.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub seconds: f64,
    pub compute: f64,
}

#[derive(Debug)]
pub struct Scene {
    engine: Engine,
    pub now: Ts,
    random: Random,
    pub run: String,
    nodes: usize,
    gpus: usize,
    attempt: u32,
    pub step: i64,
    notifications: Vec<(Ts, Notification)>,
}

impl Scene {
    /// A run with so many nodes of so many GPUs, and a rank on each GPU.
    pub fn new(run: &str, nodes: usize, gpus: usize) -> Self {
        let responder = ResponderConfig {
            receivers: vec!["chat".into()],
            cost_per_gpu_hour: Some(2.5),
            ..ResponderConfig::default()
        };
        let mut config = EngineConfig::from(responder);
        Arc::make_mut(&mut config.detectors).cost_per_gpu_hour = config.responder.cost_per_gpu_hour;
        Self {
            engine: Engine::new(config),
            now: START,
            random: Random::new(1),
            run: run.to_owned(),
            nodes,
            gpus,
            attempt: 0,
            step: 0,
            notifications: Vec::new(),
        }
    }

    pub fn node(&self, nth: usize) -> String {
        format!("gpu-{:03}", nth + 1)
    }

    pub fn ranks(&self) -> Range<usize> {
        0..self.nodes * self.gpus
    }

    pub fn nodes(&self) -> Range<usize> {
        0..self.nodes
    }

    /// The exporter of a node reports an event.
    pub fn node_says(&mut self, nth: usize, mut event: Value) {
        let node = self.node(nth);
        event["v"] = 1.into();
        event["node"] = node.as_str().into();
        if event.get("ts").is_none() {
            event["ts"] = self.now.as_secs_f64().into();
        }
        let mut event = Event::parse(event.to_string().as_bytes()).unwrap_or_else(|e| panic!("{event}: {e}"));
        event.cursor = Some(Cursor { boot: "a".into(), seq: 1 });
        let mut out = Vec::new();
        self.engine.handle(self.now, SourceInput::Event { source: &node, event: &event }, &mut out);
        self.absorb(out);
    }

    /// A rank of the run reports an event.
    pub fn says(&mut self, rank: usize, mut event: Value) {
        event["run"] = self.run.as_str().into();
        event["rank"] = rank.into();
        event["attempt"] = self.attempt.into();
        self.node_says(rank / self.gpus, event);
    }

    /// Every rank says hello, with these keys.
    pub fn begins(&mut self, keys: &Value) {
        for rank in self.ranks() {
            let mut hello = json!({"k": "hello", "world": self.ranks().len(), "framework": "torchtitan"});
            for (key, value) in keys.as_object().into_iter().flatten() {
                hello[key] = value.clone();
            }
            self.says(rank, hello);
        }
    }

    /// Makes steps. `step` gives the times of a rank.
    pub fn steps(&mut self, n: usize, mut step: impl FnMut(usize) -> Step) {
        for _ in 0..n {
            self.step += 1;
            let jitter = 1.0 + JITTER * (self.random.unit() - 0.5);
            let seconds = jitter * step(0).seconds;
            self.wait(seconds);
            let loss = 1.7 + 6.0 * (self.step as f64).powf(-0.35) + 0.01 * (self.random.unit() - 0.5);
            for rank in self.ranks() {
                let Step { compute, .. } = step(rank);
                let compute = jitter * compute;
                let event = json!({
                    "k": "step", "step": self.step,
                    "m": {"loss": loss, "grad_norm": 0.4, "step_time": seconds, "tokens": 4_194_304},
                    "t": {"data": 0.02, "compute": compute, "comm": (seconds - compute - 0.02).max(0.0)},
                });
                self.says(rank, event);
            }
        }
    }

    /// Rank 0 saves a checkpoint, which blocks the run.
    pub fn save(&mut self, seconds: f64, bytes: f64) {
        self.checkpoint(0, self.step, "save", "start", bytes);
        self.wait(seconds);
        self.checkpoint(0, self.step, "save", "end", bytes);
    }

    pub fn checkpoint(&mut self, rank: usize, step: i64, stage: &str, phase: &str, bytes: f64) {
        let path = format!("/ckpt/{}/step-{step}", self.run);
        self.says(
            rank,
            json!({"k": "ckpt", "step": step, "stage": stage, "phase": phase, "bytes": bytes, "path": path}),
        );
    }

    /// The run ends well, and another one begins on the same nodes.
    pub fn next_run(&mut self, run: &str) {
        for rank in self.ranks() {
            self.says(rank, json!({"k": "bye", "code": 0}));
        }
        run.clone_into(&mut self.run);
        self.step = 0;
    }

    pub fn wait(&mut self, seconds: f64) {
        let until = self.now + Span::millis((1000.0 * seconds) as i64);
        while let Some((due, _)) = self.engine.next_deadline().filter(|(due, _)| *due <= until) {
            self.now = self.now.max(due);
            let mut out = Vec::new();
            self.engine.tick(self.now, &mut out);
            self.absorb(out);
        }
        self.now = until;
    }

    fn absorb(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::Notify(n) = effect {
                self.notifications.push((self.now, *n));
            }
        }
    }

    /// Whether people were told about an incident of this kind.
    pub fn has_told(&self, kind: Kind) -> bool {
        self.notifications.iter().any(|(_, n)| n.message.kind == kind)
    }

    /// Whether people were woken by such an incident.
    pub fn has_paged(&self, kind: Kind) -> bool {
        let pages = |n: &Notification| n.message.kind == kind && n.message.severity == Severity::Page;
        self.notifications.iter().any(|(_, n)| pages(n))
    }

    /// Ends the story. What people were told of the kind is its message; it panics if they were
    /// told nothing of it, or of anything else.
    pub fn ends(self, kind: Kind, story: impl FnOnce(Told) -> Story) -> Story {
        let heard =
            |(at, n): &(Ts, Notification)| format!("{at} {}: {}\n", n.message.title, n.message.summary);
        let all: String = self.notifications.iter().map(heard).collect();
        let last = self.notifications.iter().rfind(|(_, n)| n.message.kind == kind);
        let Some((_, last)) = last else { panic!("nobody was told of {kind:?}, but:\n{all}") };
        let mut of_it = self.notifications.iter().filter(|(_, n)| n.incident == last.incident);
        let Some((told, _)) = of_it.next() else { panic!("a notification without an incident") };
        let others = self.notifications.iter().filter(|(_, n)| n.incident != last.incident);
        assert_eq!(others.count(), 0, "people were told of something else:\n{all}");
        story(Told { message: last.message.clone(), told: *told })
    }
}

/// What people were told.
#[derive(Debug)]
pub struct Told {
    pub message: stepwatch_respond::message::Message,
    pub told: Ts,
}

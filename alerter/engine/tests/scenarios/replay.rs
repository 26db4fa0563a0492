//! Properties of the whole engine on random histories: storing and restoring it at any point
//! changes nothing, the order of ranks within a step changes nothing, and nothing panics.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stepwatch_engine::{Engine, SourceInput};
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Effect, IncidentAction, Input};
use stepwatch_wire::{CkptPhase, Edge, Event, Kind};

const RANKS: u32 = 4;

#[derive(Debug, Clone)]
enum Op {
    Step { loss: f64, grad: f64, secs: f64 },
    Wait(i64),
    Phase(Edge),
    Checkpoint,
    Restart(i64),
    Dead(u32),
    Down,
    Up,
    AckAll,
    Bye(i64),
}

fn op() -> impl Strategy<Value = Op> {
    let loss =
        prop_oneof![20 => 1.9f64..2.1, 1 => 2.0f64..50.0, 1 => Just(f64::NAN), 1 => Just(f64::INFINITY)];
    let grad = prop_oneof![20 => 0.2f64..0.4, 2 => 0.5f64..1e4, 1 => Just(f64::NAN), 1 => Just(0.0)];
    prop_oneof![
        60 => (loss, grad, 0.9f64..1.3).prop_map(|(loss, grad, secs)| Op::Step { loss, grad, secs }),
        3 => (1i64..4000).prop_map(Op::Wait),
        1 => Just(Op::Phase(Edge::Begin)),
        1 => Just(Op::Phase(Edge::End)),
        1 => Just(Op::Checkpoint),
        1 => (1i64..30).prop_map(Op::Restart),
        1 => (0..RANKS).prop_map(Op::Dead),
        1 => Just(Op::Down),
        2 => Just(Op::Up),
        1 => Just(Op::AckAll),
        1 => (0i64..2).prop_map(Op::Bye),
    ]
}

struct Sim {
    engine: Engine,
    now: Ts,
    step: i64,
    attempt: u32,
    parts: BTreeMap<String, Vec<u8>>,
    out: Vec<Effect>,
    reversed: bool,
}

fn config() -> ResponderConfig {
    ResponderConfig { receivers: vec!["a".into(), "b".into()], ..ResponderConfig::default() }
}

impl Sim {
    fn new() -> Self {
        let now = Ts(1_795_227_416_000);
        Self {
            engine: Engine::new(config()),
            now,
            step: 0,
            attempt: 0,
            parts: BTreeMap::new(),
            out: vec![],
            reversed: false,
        }
    }

    fn wait(&mut self, by: Span) {
        let until = self.now + by;
        while let Some((at, _)) = self.engine.next_deadline().filter(|(at, _)| *at <= until) {
            self.now = at.max(self.now);
            self.engine.tick(self.now, &mut self.out);
        }
        self.now = until;
    }

    fn event(&mut self, rank: u32, mut e: Event) {
        (e.run, e.rank, e.world) = (Some("r".into()), Some(rank), Some(RANKS));
        e.ts = Some(self.now.as_secs_f64());
        e.attempt = Some(self.attempt);
        self.engine.handle(self.now, SourceInput::Event { source: "n:1", event: &e }, &mut self.out);
    }

    fn step(&mut self, loss: f64, grad: f64, secs: f64) {
        self.step += 1;
        self.wait(Span::from_secs_f64(secs));
        let mut ranks: Vec<u32> = (0..RANKS).collect();
        if self.reversed {
            ranks[1..].reverse();
        }
        for rank in ranks {
            let mut e = Event::step("r", self.step);
            e.m.set("step_time", secs);
            if rank == 0 {
                e.m.set("loss", loss);
                e.m.set("grad_norm", grad);
            }
            self.event(rank, e);
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Step { loss, grad, secs } => self.step(*loss, *grad, *secs),
            Op::Wait(s) => self.wait(Span::secs(*s)),
            Op::Phase(edge) => {
                let mut e = Event::new(Kind::Phase);
                (e.name, e.edge) = (Some("eval".into()), Some(*edge));
                self.event(0, e);
            }
            Op::Checkpoint => {
                let mut e = Event::new(Kind::Ckpt);
                (e.step, e.ckpt) = (Some(self.step), Some(CkptPhase::End));
                self.event(0, e);
            }
            Op::Restart(back) => {
                self.step = (self.step - back).max(0);
                self.attempt += 1;
            }
            Op::Dead(rank) => {
                let mut e = Event::new(Kind::Event);
                (e.name, e.text) = (Some("rank_dead".into()), Some("gone".into()));
                self.event(*rank, e);
            }
            Op::Down => {
                let input = SourceInput::SourceDown { source: "n:1", reason: "refused" };
                self.engine.handle(self.now, input, &mut self.out);
            }
            Op::Up => self.engine.handle(
                self.now,
                SourceInput::SourceUp { source: "n:1", many_nodes: false },
                &mut self.out,
            ),
            Op::AckAll => {
                let ids: Vec<String> = self.engine.open_incidents().map(|r| r.id.clone()).collect();
                for id in ids {
                    self.engine.handle(
                        self.now,
                        Input::Act { incident: &id, by: "p", action: &IncidentAction::Ack },
                        &mut self.out,
                    );
                }
            }
            Op::Bye(code) => {
                for rank in 0..RANKS {
                    let mut e = Event::new(Kind::Bye);
                    e.code = Some(*code);
                    self.event(rank, e);
                }
            }
        }
        for (key, bytes) in self.engine.take_dirty() {
            match bytes {
                Some(b) => self.parts.insert(key, b),
                None => self.parts.remove(&key),
            };
        }
    }

    fn store_and_restore(&mut self) {
        let (engine, unusable) = Engine::restore(config(), self.parts.clone());
        assert!(unusable.is_empty(), "{unusable:?}");
        self.engine = engine;
    }
}

/// Debug text, because NaN is not equal to itself.
fn text(out: &[Effect]) -> Vec<String> {
    out.iter().map(|e| format!("{e:?}")).collect()
}

/// Healthy steps first: most of what can go wrong needs a baseline to go wrong from.
fn warm() -> Vec<Op> {
    (0..150)
        .map(|i| {
            let wave = f64::from(i % 7) * 0.01;
            Op::Step { loss: 2.0 + wave, grad: 0.3 + wave, secs: 1.0 + wave }
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn restoring_at_any_point_changes_nothing(ops in proptest::collection::vec(op(), 1..250), at in 0usize..400) {
        let (mut a, mut b) = (Sim::new(), Sim::new());
        for (i, op) in warm().iter().chain(&ops).enumerate() {
            a.apply(op);
            b.apply(op);
            if i == at {
                b.store_and_restore();
            }
        }
        a.wait(Span::secs(7200));
        b.wait(Span::secs(7200));
        prop_assert_eq!(text(&a.out), text(&b.out));
    }

    #[test]
    fn the_order_of_ranks_changes_nothing(ops in proptest::collection::vec(op(), 1..150)) {
        let (mut a, mut b) = (Sim::new(), Sim::new());
        b.reversed = true;
        for op in warm().iter().chain(&ops) {
            a.apply(op);
            b.apply(op);
        }
        prop_assert_eq!(text(&a.out), text(&b.out));
    }
}

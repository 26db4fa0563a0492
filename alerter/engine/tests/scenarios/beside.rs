//! What a run reports beside its samples, from the event of a client to the incident: evaluations,
//! parts of steps, statistics of layers, other numbers, checkpoints; and what spikes of several
//! runs have in common.
#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proptest::prelude::*;
use stepwatch_engine::{Engine, SourceInput};
use stepwatch_model::time::Ts;
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::Effect;
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_wire::Event;

use crate::noise::wobble;

const START: i64 = 1_795_227_416_000;

/// Lines as a client sends them, and what came of them.
struct World {
    engine: Engine,
    now: Ts,
    out: Vec<Effect>,
    parts: BTreeMap<String, Vec<u8>>,
}

impl World {
    fn new() -> Self {
        let config = ResponderConfig { cost_per_gpu_hour: Some(2.0), ..config() };
        Self { engine: Engine::new(config), now: Ts(START), out: Vec::new(), parts: BTreeMap::new() }
    }

    fn say(&mut self, at: i64, line: &str) {
        self.now = self.now.max(Ts(START + at));
        while self.engine.next_deadline().is_some_and(|(due, _)| due <= self.now) {
            self.engine.tick(self.now, &mut self.out);
        }
        let event = Event::parse(line.as_bytes()).unwrap_or_else(|e| panic!("{e}: {line}"));
        self.engine.handle(self.now, SourceInput::Event { source: "n:1", event: &event }, &mut self.out);
        for (key, bytes) in self.engine.take_dirty() {
            match bytes {
                Some(b) => self.parts.insert(key, b),
                None => self.parts.remove(&key),
            };
        }
    }

    fn store_and_restore(&mut self) {
        let config = ResponderConfig { cost_per_gpu_hour: Some(2.0), ..config() };
        let (engine, unusable) = Engine::restore(config, self.parts.clone());
        assert!(unusable.is_empty(), "{unusable:?}");
        self.engine = engine;
    }

    /// The incidents as they were last, in the order they began.
    fn incidents(&self) -> Vec<IncidentRecord> {
        let mut found: Vec<IncidentRecord> = Vec::new();
        for e in &self.out {
            let Effect::Incident(r) = e else { continue };
            match found.iter_mut().find(|had| had.id == r.id) {
                Some(had) => *had = (**r).clone(),
                None => found.push((**r).clone()),
            }
        }
        found
    }

    fn reported(&self) -> Vec<(Kind, Severity)> {
        let loud = |r: &&IncidentRecord| r.severity > Severity::Info;
        self.incidents().iter().filter(loud).map(|r| (r.kind, r.severity)).collect()
    }

    fn only(&self, kind: Kind) -> IncidentRecord {
        let mut found: Vec<_> =
            self.incidents().into_iter().filter(|r| r.severity > Severity::Info).collect();
        assert!(found.len() == 1 && found[0].kind == kind, "{kind:?} of {found:#?}");
        found.swap_remove(0)
    }
}

fn config() -> ResponderConfig {
    ResponderConfig { receivers: vec!["a".into()], ..ResponderConfig::default() }
}

/// A step of a run, with `m` and `t` beside the usual.
fn step(run: &str, rank: u32, step: i64, grad: f64, m: &str, t: &str) -> String {
    let loss = 2.2 + 6.0 / (step as f64 + 20.0).sqrt() + 0.03 * wobble(step, 1);
    let grad = grad * 0.25 * (0.1 * wobble(step, 2)).exp();
    let main = if rank == 0 { format!("\"loss\":{loss},\"grad_norm\":{grad},") } else { String::new() };
    let ts = (START + 2000 * step) as f64 / 1000.0;
    format!(
        "{{\"v\":1,\"k\":\"step\",\"ts\":{ts},\"run\":\"{run}\",\"rank\":{rank},\"world\":4,\"attempt\":0,\"step\":{step},\"m\":{{{main}\"step_time\":2.0{m}}},\"t\":{{{t}}}}}"
    )
}

#[test]
fn an_evaluation_that_gets_worse_is_one_ticket_whoever_reports_it() {
    let mut w = World::new();
    for s in 1..=8000 {
        w.say(2000 * s, &step("r", 0, s, 1.0, "", ""));
        if s % 100 == 0 {
            let loss =
                2.3 + 6.0 / (s as f64 + 20.0).sqrt() + 0.01 * wobble(s, 3) + 6e-5 * (s - 4000).max(0) as f64;
            for rank in 0..4 {
                w.say(2000 * s, &format!("{{\"k\":\"eval\",\"run\":\"r\",\"rank\":{rank},\"step\":{s},\"name\":\"c4\",\"m\":{{\"loss\":{loss}}}}}"));
            }
        }
    }
    let r = w.only(Kind::EvalGap);
    assert!(r.severity == Severity::Ticket && r.summary.to_string().contains("evaluation c4"), "{r:?}");
    assert!(r.suspects[0].what().starts_with("the checkpoint of step"), "{r:?}");
}

#[test]
fn a_wait_for_data_joins_the_slow_down_that_it_makes() {
    let mut w = World::new();
    for s in 1..=900 {
        for rank in 0..4 {
            let data = if s > 500 && rank == 3 { 0.7 } else { 0.02 };
            w.say(2000 * s, &step("r", rank, s, 1.0, "", &format!("\"data\":{data},\"fwd_bwd\":1.2")));
        }
    }
    let r = w.only(Kind::DataWait);
    assert!(r.signal == "data_wait" && r.summary.to_string().contains("rank 3 waits longest"), "{r:?}");
}

/// One report of twelve layers, as the client's helper sends it: beside the last step reported.
fn layers(s: i64, factor: impl Fn(usize) -> f64) -> String {
    let mut m = String::new();
    for i in 0..12 {
        let norm = 0.05 * (0.1 * wobble(s, 10 + i as i64)).exp() * factor(i);
        let _ = write!(m, "{}\"grad_norm/model.layers.{i}\":{norm}", if i == 0 { "" } else { "," });
    }
    format!("{{\"v\":1,\"k\":\"step\",\"run\":\"r\",\"rank\":0,\"attempt\":0,\"step\":{s},\"m\":{{{m}}}}}")
}

#[test]
fn the_layer_that_exploded_first_is_in_the_page() {
    let mut w = World::new();
    for s in 1..=1500 {
        let grad = if (1203..1240).contains(&s) { 60.0 } else { 1.0 };
        w.say(2000 * s, &step("r", 0, s, grad, "", ""));
        if s % 10 == 0 {
            let factor =
                |i| if (1190..1240).contains(&s) && i == 7 || s == 1200 && i > 3 { 30.0 } else { 1.0 };
            w.say(2000 * s, &layers(s, factor));
        }
    }
    let r = w.only(Kind::GradSpike);
    assert_eq!(
        (r.severity, r.suspects[0].what().as_str()),
        (Severity::Page, "layer model.layers.7"),
        "{r:?}"
    );
    assert_eq!(w.engine.runs().next().unwrap().counters.duplicates, 0, "a report of layers repeats nothing");
}

#[test]
fn other_numbers_make_one_ticket_with_their_name() {
    let mut w = World::new();
    for s in 1..=1500 {
        let fell = if s > 1000 { 0.4 } else { 0.0 };
        let (reward, kl) = (0.6 - fell + 0.02 * wobble(s, 4), 0.05 + 0.1 * fell + 0.004 * wobble(s, 5));
        let own = format!(",\"rollout/reward\":{reward},\"kl\":{kl},\"consumed_samples\":{}", s * 512);
        for rank in 0..4 {
            w.say(2000 * s, &step("r", rank, s, 1.0, &own, ""));
        }
    }
    let r = w.only(Kind::Generic);
    assert!(["rollout/reward", "kl"].contains(&r.signal.as_str()) && r.severity == Severity::Ticket, "{r:?}");
    assert!((990..=1001).contains(&r.start_step), "{r:?}");
}

#[test]
fn a_slow_save_states_what_is_at_risk_in_dollars() {
    let mut w = World::new();
    for s in 1..=3000 {
        w.say(2000 * s, &step("r", 0, s, 1.0, "", ""));
        if s % 400 == 0 {
            let secs = if s == 2400 { 600.0 } else { 40.0 };
            w.say(2000 * s, &format!("{{\"k\":\"ckpt\",\"run\":\"r\",\"rank\":0,\"step\":{s},\"phase\":\"end\",\"seconds\":{secs},\"bytes\":4e11}}"));
        }
    }
    let r = w.only(Kind::CkptSlow);
    assert_eq!(
        r.summary,
        "a checkpoint took 10m, 40s is usual (400 GB at 0.6667 GB/s, 10 GB/s before); one is written every 13m 20s of work"
    );
    let message = w.out.iter().find_map(|e| match e {
        Effect::Notify(n) if n.message.kind == Kind::CkptSlow => Some(n.message.clone()),
        _ => None,
    });
    let at_risk = message.unwrap().facts.into_iter().find(|f| f.label == "Work at risk").unwrap();
    assert_eq!(
        at_risk.text,
        "0s of 4 GPUs = 0 GPU hours = $0.00; up to 23m 20s before the next checkpoint = 1.556 GPU hours = $3.11"
    );
}

#[test]
fn a_batch_that_made_other_runs_spike_is_reported_as_that() {
    let mut w = World::new();
    let spiking = |s: i64| if s == 700 { 12.0 } else { 1.0 };
    for run in ["alice", "bob"] {
        for s in 1..=800 {
            w.say(2000 * s, &step(run, 0, s, spiking(s), ",\"samples\":512", ""));
        }
        w.say(1_600_000, &format!("{{\"k\":\"bye\",\"run\":\"{run}\",\"rank\":0,\"code\":0}}"));
    }
    assert_eq!(w.engine.spiked_elsewhere("bob", 700).words(), "1 other run (alice)");
    assert!(w.engine.spiked_elsewhere("bob", 701).is_empty());
    w.store_and_restore();
    for s in 1..=1600 {
        // Half the batch size: it comes to the same data at twice the step. There it does not come
        // back at once.
        let grad = if (1400..1410).contains(&s) { 20.0 } else { 1.0 };
        w.say(2000 * s, &step("carol", 0, s, grad, ",\"samples\":256", ""));
    }
    let r = w.only(Kind::GradSpike);
    assert_eq!((r.run.as_str(), r.severity), ("carol", Severity::Page));
    assert_eq!(r.suspects[0].what(), "data batch of step 1400");
    assert_eq!(r.suspects[0].why(), "2 other runs (alice, bob) spiked at the same place in the data");
}

/// A step of every signal there is, of two ranks, at an attempt.
fn everything(s: i64, attempt: u32, seed: i64) -> Vec<String> {
    let own = format!(
        ",\"reward\":{},\"samples\":64{}",
        0.5 + 0.02 * wobble(s, seed) + if s % 900 > 600 { 0.5 } else { 0.0 },
        if s % 97 == 0 { ",\"kl\":NaN" } else { ",\"kl\":0.1" },
    );
    let wait = if s % 700 > 500 { 0.8 } else { 0.02 };
    let grad = if s % 400 == 0 { 20.0 } else { 1.0 };
    let parts = format!("\"data\":{wait}");
    let mut lines: Vec<String> = (0..2).map(|rank| step("r", rank, s, grad, &own, &parts)).collect();
    if s % 20 == 0 {
        lines.push(layers(s, |i| if s % 500 > 400 && i == 3 { 25.0 } else { 1.0 }));
        let loss = 2.3 + 0.01 * wobble(s, 6) + 1e-3 * (s - 600).max(0) as f64;
        lines.push(format!(
            "{{\"k\":\"eval\",\"run\":\"r\",\"rank\":0,\"step\":{s},\"m\":{{\"loss\":{loss},\"acc\":0.5}}}}"
        ));
    }
    lines.iter().map(|l| l.replace("\"attempt\":0", &format!("\"attempt\":{attempt}"))).collect()
}

fn text(out: &[Effect]) -> Vec<String> {
    out.iter().map(|e| format!("{e:?}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn restoring_at_any_point_changes_nothing(seed in 0i64..1000, at in 1i64..1400, back in 1i64..300) {
        let (mut a, mut b) = (World::new(), World::new());
        for i in 1..=1400 {
            let (s, attempt) = if i > 900 { (i - back, 1) } else { (i, 0) };
            for line in everything(s, attempt, seed) {
                a.say(2000 * i, &line);
                b.say(2000 * i, &line);
            }
            if i == at {
                b.store_and_restore();
            }
        }
        prop_assert_eq!(text(&a.out), text(&b.out));
        prop_assert!(a.reported().len() >= 2, "{:?}", a.reported());
    }

    /// Every line twice, and those of a step in any order: what is reported beside the samples is
    /// judged once.
    #[test]
    fn resends_change_nothing(seed in 0i64..1000, late in 1usize..40) {
        let (mut a, mut b) = (World::new(), World::new());
        let mut sent: Vec<String> = Vec::new();
        for s in 1..=1000 {
            for line in everything(s, 0, seed) {
                a.say(2000 * s, &line);
                b.say(2000 * s, &line);
                sent.push(line);
            }
            if sent.len() > late {
                let again = sent[sent.len() - late].clone();
                b.say(2000 * s, &again);
            }
        }
        let brief = |w: &World| w.incidents().iter().map(|r| (r.kind, r.severity, r.start_step, r.opened_step)).collect::<Vec<_>>();
        prop_assert_eq!(brief(&a), brief(&b));
    }
}

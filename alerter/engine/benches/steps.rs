//! What a step costs: `cargo bench -p stepwatch-engine --bench steps`.
//!
//! A step carries six signals (loss, gradient norm, learning rate, step time, tokens per second, MFU) and counts as six samples. Two ways
//! in are measured, in seconds of a core and not of the wall, so that a busy machine measures the same: the detectors alone, and the engine with everything around them (ranks, facts, timers, what is to be
//! stored). State is counted as it lies in memory and as it is stored, divided by the six series. Histories of several lengths show
//! whether the cost depends on them.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement needs a clock and says what it found; the engine itself has neither"
)]

use core::hint::black_box;
use std::fs;

use stepwatch_engine::Engine;
use stepwatch_engine::config::EngineConfig;
use stepwatch_engine::detector::{Detectors, DetectorsConfig};
use stepwatch_engine::effect::{Effect, Input};
use stepwatch_engine::run::Run;
use stepwatch_engine::sample::StepSample;
use stepwatch_engine::time::Ts;
use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

const SIGNALS: f64 = 6.0;
/// Steps that are made before the clock starts, and are fed again and again with their numbers moved on.
const TAPE: usize = 4096;
/// Steps a figure is the mean of.
const STEPS: usize = 500_000;
/// Lengths of the history before a measurement.
const HISTORIES: [usize; 3] = [0, 100_000, 1_000_000];
const START_MS: i64 = 1_795_227_416_000;

/// A small generator: the same numbers every time.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// A healthy run of a language model, from its first step on.
fn tape() -> Vec<StepSample> {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    (0..TAPE as i64)
        .map(|i| {
            let step_time = 2.0 * (0.004 * noise.normal()).exp();
            StepSample {
                interval: 1,
                loss: Some(2.2 + 6.0 / (i as f64 + 20.0).sqrt() + 0.02 * noise.normal()),
                grad_norm: Some(0.25 * (0.08 * noise.normal()).exp()),
                lr: Some(3e-4 * (i as f64 / 50.0).min(1.0)),
                step_time: Some(step_time),
                tokens_per_second: Some(4e6 / step_time),
                mfu: Some(0.9 / step_time),
                ..StepSample::default()
            }
        })
        .collect()
}

/// The tape begins anew at its middle: a run has one beginning.
fn at(i: usize) -> usize {
    if i < TAPE { i } else { TAPE / 2 + i % (TAPE / 2) }
}

fn move_to(s: &mut StepSample, i: usize) {
    s.step = i as i64 + 1;
    s.ts = Ts(START_MS + 2000 * s.step);
}

/// Nanoseconds that this thread has had a core.
fn on_core() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(f64::NAN)
}

fn detectors_alone(tape: &mut [StepSample], history: usize) -> f64 {
    let mut detectors = Detectors::new(&DetectorsConfig::default());
    let mut out = Vec::new();
    let mut feed = |range: core::ops::Range<usize>| {
        for i in range {
            let s = &mut tape[at(i)];
            move_to(s, i);
            detectors.step(black_box(s), &mut out);
        }
        out.clear();
    };
    feed(0..history);
    let start = on_core();
    feed(history..history + STEPS);
    (on_core() - start) * 1e-9 / STEPS as f64
}

fn events(tape: &[StepSample]) -> Vec<Event> {
    let event = |s: &StepSample| {
        let mut e = Event::step("llama-70b", 0);
        e.rank = Some(0);
        let signals = [
            (metric::LOSS, s.loss),
            (metric::GRAD_NORM, s.grad_norm),
            (metric::LR, s.lr),
            (metric::STEP_TIME, s.step_time),
            (metric::TOKENS_PER_SECOND, s.tokens_per_second),
            (metric::MFU, s.mfu),
        ];
        for (name, value) in signals {
            assert!(value.is_none_or(|v| e.m.set(name, v)), "{name} is not taken");
        }
        e
    };
    tape.iter().map(event).collect()
}

/// Seconds a step, and bytes of the run as it is stored.
fn whole_engine(events: &mut [Event], history: usize) -> (f64, usize) {
    let mut engine = Engine::new(EngineConfig::default());
    let mut out: Vec<Effect> = Vec::new();
    let mut feed = |range: core::ops::Range<usize>| {
        for i in range {
            let event = &mut events[at(i)];
            let now = Ts(START_MS + 2000 * (i as i64 + 1));
            (event.step, event.ts) = (Some(i as i64 + 1), Some(now.as_secs_f64()));
            engine.handle(now, Input::Event { source: "node001:9765", event }, &mut out);
        }
        out.clear();
    };
    feed(0..history);
    let start = on_core();
    feed(history..history + STEPS);
    let took = (on_core() - start) * 1e-9 / STEPS as f64;
    let stored = engine.take_dirty().into_iter().filter(|(key, _)| key.starts_with("run/"));
    (took, stored.filter_map(|(_, bytes)| bytes).map(|bytes| bytes.len()).sum())
}

fn main() {
    let mut tape = tape();
    let mut events = events(&tape);
    println!("{:<22}{:>12}{:>12}{:>22}", "", "history", "ns a step", "M samples/s a core");
    let line = |what: &str, history: usize, secs: f64| {
        println!("{what:<22}{history:>12}{:>12.0}{:>22.2}", secs * 1e9, SIGNALS / secs / 1e6);
    };
    let mut stored = 0;
    for history in HISTORIES {
        line("detectors alone", history, detectors_alone(&mut tape, history));
        let (secs, bytes) = whole_engine(&mut events, history);
        line("whole engine", history, secs);
        stored = bytes;
    }
    let a_series = |bytes: usize| bytes as f64 / SIGNALS;
    let (detectors, run) = (size_of::<Detectors>(), size_of::<Run>());
    println!(
        "bytes a series: {:.0} in memory in the detectors, {:.0} in memory of the run, {:.0} stored",
        a_series(detectors),
        a_series(run),
        a_series(stored)
    );
}

//! What a step costs: `cargo bench -p stepwatch-engine --bench steps`; an argument chooses the
//! lines that hold it.
//!
//! A series is one signal of one run, as the detectors watch it. A step carries six (loss, gradient
//! norm, learning rate, step time, tokens per second, MFU) and counts as six samples, reported by
//! one rank. Where many ranks report the same signals each number counts as a sample, and a series
//! is still one signal of the run, because that is what is watched. Each time is the least of
//! many, so that a busy machine measures the same. Two things are measured: the
//! detectors alone, and the engine with everything around them (ranks, facts, timers, what is to be
//! stored), for one run, for many that take turns, and for one with many ranks. Histories of
//! several lengths show whether the cost depends on them.
//!
//! State is counted as it lies in memory, heap included (what a thousand copies of a run add to the
//! process), and as it is stored, divided by the six series.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    reason = "a measurement needs a clock and says what it found; the engine itself has neither"
)]

use core::hint::black_box;
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use stepwatch_detect::Run;
use stepwatch_detect::detectors::Detectors;
use stepwatch_detect::sample::StepSample;
use stepwatch_engine::{Engine, SourceInput};
use stepwatch_model::time::Ts;
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::Effect;
use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

const SIGNALS: f64 = 6.0;
/// Steps that are made before the clock starts, and are fed again and again with their numbers
/// moved on.
const TAPE: usize = 4096;
/// Steps that are timed at once, and how often. The least time counts: what else the machine does
/// only adds to it.
const STEPS: usize = 10_000;
const TIMES: usize = 50;
/// Lengths of the history before a measurement.
const HISTORIES: [usize; 4] = [0, 1000, 100_000, 1_000_000];
/// Runs that take turns, and ranks of one run that report loss and step time.
const RUNS: usize = 128;
const RANKS: usize = 512;
/// Of a node, which has an exporter of its own.
const GPUS: usize = 8;
/// Copies of a run whose memory is measured.
const COPIES: usize = 1000;
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

fn detectors_alone(tape: &mut [StepSample], history: usize) -> f64 {
    let mut detectors = Detectors::default();
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
    least(history, feed)
}

/// Seconds a step, after so many.
fn least(history: usize, mut feed: impl FnMut(core::ops::Range<usize>)) -> f64 {
    let mut timed = |n: usize| {
        let first = history + n * STEPS;
        let start = Instant::now();
        feed(first..first + STEPS);
        start.elapsed().as_secs_f64() / STEPS as f64
    };
    (0..TIMES).map(&mut timed).fold(f64::INFINITY, f64::min)
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

/// Seconds an event, and bytes of the runs as they are stored. `turn`: how many events have the
/// same step.
fn whole_engine(events: &mut [Event], turn: usize, history: usize) -> (f64, usize) {
    let mut engine = Engine::new(ResponderConfig::default());
    let sources: Vec<String> = (0..turn).map(|i| format!("node{:03}:9765", i / GPUS)).collect();
    let mut out: Vec<Effect> = Vec::new();
    let mut feed = |range: core::ops::Range<usize>| {
        for i in range {
            let event = &mut events[at(i)];
            let step = (i / turn) as i64 + 1;
            let now = Ts(START_MS + 2000 * step);
            (event.step, event.ts) = (Some(step), Some(now.as_secs_f64()));
            engine.handle(now, SourceInput::Event { source: &sources[i % turn], event }, &mut out);
        }
        out.clear();
    };
    feed(0..history);
    let took = least(history, feed);
    let stored = engine.take_dirty().into_iter().filter(|(key, _)| key.starts_with("run/"));
    (took, stored.filter_map(|(_, bytes)| bytes).map(|bytes| bytes.len()).sum())
}

/// The events of many runs, one after the other.
fn in_turns(mut events: Vec<Event>) -> Vec<Event> {
    for (i, e) in events.iter_mut().enumerate() {
        e.run = Some(format!("llama-70b-{:03}", i % RUNS));
    }
    events
}

/// The events of many ranks, one after the other: each reports its own loss and step time.
fn of_ranks(mut events: Vec<Event>) -> Vec<Event> {
    for (i, e) in events.iter_mut().enumerate() {
        (e.rank, e.world) = (Some((i % RANKS) as u32), Some(RANKS as u32));
        e.node = Some(format!("node{:03}", i % RANKS / GPUS));
        for name in [metric::GRAD_NORM, metric::LR, metric::TOKENS_PER_SECOND, metric::MFU] {
            e.m.remove(name);
        }
    }
    events
}

/// Bytes that the process has in memory.
fn resident() -> f64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
        .map_or(f64::NAN, |kb| 1024.0 * kb)
}

/// A run after some thousand steps with pauses, slow steps and spikes: what it keeps only then is
/// there.
fn eventful(mut events: Vec<Event>) -> Run {
    let mut run = Run::new("llama-70b", Ts(START_MS), &Arc::default());
    let (mut now, mut out) = (Ts(START_MS), Vec::new());
    for (i, event) in events.iter_mut().enumerate() {
        let usual = event.m.get(metric::STEP_TIME).unwrap_or(2.0);
        let grad = event.m.get(metric::GRAD_NORM).unwrap_or(0.25);
        let times = match i {
            i if i % 250 == 249 => 10.0,
            i if i % 40 == 0 => 1.2,
            _ => 1.0,
        };
        now = Ts(now.0 + (1000.0 * usual * times) as i64);
        (event.step, event.ts) = (Some(i as i64 + 1), Some(now.as_secs_f64()));
        event.m.set(metric::STEP_TIME, usual * times);
        event.m.set(metric::GRAD_NORM, if i % 500 < 3 { 20.0 * grad } else { grad });
        run.event(now, "node001:9765", event, &mut out);
    }
    run
}

/// A run of many ranks after some steps.
fn wide(mut events: Vec<Event>) -> Run {
    let mut run = Run::new("llama-70b", Ts(START_MS), &Arc::default());
    let mut out = Vec::new();
    for (i, event) in events.iter_mut().enumerate() {
        let step = (i / RANKS) as i64 + 1;
        let now = Ts(START_MS + 2000 * step);
        (event.step, event.ts) = (Some(step), Some(now.as_secs_f64()));
        run.event(now, event.node.as_deref().unwrap_or_default(), event, &mut out);
    }
    run
}

/// Bytes of memory that a run takes.
fn held(run: Run, copies: usize) -> f64 {
    let before = resident();
    let copies = black_box(vec![run; copies]);
    (resident() - before) / copies.len() as f64
}

fn main() {
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let mut tape = tape();
    let mut events = events(&tape);
    // First, before there is memory to be used again.
    let in_memory = held(eventful(events.clone()), COPIES);
    let (mut turns, mut ranks) = (in_turns(events.clone()), of_ranks(events.clone()));
    let with_ranks = held(wide(ranks.clone()), COPIES / 10);
    println!("{:<28}{:>12}{:>14}{:>22}", "", "history", "ns an event", "M samples/s a core");
    let line = |what: &str, history: usize, samples: f64, secs: f64| {
        println!("{what:<28}{history:>12}{:>14.0}{:>22.2}", secs * 1e9, samples / secs / 1e6);
    };
    let wants = |what: &str| what.contains(&only);
    let mut stored = 0;
    for history in HISTORIES {
        if wants("detectors alone") {
            line("detectors alone", history, SIGNALS, detectors_alone(&mut tape, history));
        }
        if wants("whole engine") {
            let (secs, bytes) = whole_engine(&mut events, 1, history);
            line("whole engine", history, SIGNALS, secs);
            stored = bytes;
        }
        if wants("128 runs in turns") {
            line("128 runs in turns", history, SIGNALS, whole_engine(&mut turns, RUNS, history).0);
        }
        if wants("512 ranks of one run") {
            line("512 ranks of one run", history, 2.0, whole_engine(&mut ranks, RANKS, history).0);
        }
    }
    if !wants("bytes") {
        return;
    }
    for (name, bytes) in Detectors::sizes() {
        println!("{name:<28}{bytes:>12} bytes a run");
    }
    let a_series = |bytes: f64| bytes / SIGNALS;
    println!(
        "bytes a series: {:.0} in the detectors, {:.0} in the run, {:.0} with all of its heap, {:.0} stored",
        a_series(size_of::<Detectors>() as f64),
        a_series(size_of::<Run>() as f64),
        a_series(in_memory),
        a_series(stored as f64)
    );
    println!(
        "bytes a rank's series, of {RANKS} ranks that report loss and step time: {:.0}",
        with_ranks / (2 * RANKS) as f64
    );
}

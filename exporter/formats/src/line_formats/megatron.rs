//! Megatron and its family: Megatron-LM (2020 to today), Megatron-Bridge, Megatron-DeepSpeed,
//! GPT-NeoX, BLOOM, ROCm.
//!
//! They share one step line, `iteration N/ TOTAL | key: value | …`, and differ in its keys and
//! units. All but GPT-NeoX print a loss only if it compares as positive, so a NaN loss is a field
//! that is not there: this is where [`stepwatch_wire::Event::missing`] comes from. A window whose
//! iterations were all skipped (fp16 overflow) has no loss either, and is no accident.

mod arguments;
mod side;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use stepwatch_wire::names::{ckpt, metric};
use stepwatch_wire::{CkptPhase, Event};

use crate::background::{self, Background};
use crate::format::{self, Format, Line, Out, Outcome};
use crate::line_formats::deepspeed;
use crate::number;
use crate::pause::{Evaluation, Saving};
use arguments::Arguments;
use side::{Said, Timers, What};

/// Losses of one log that are remembered to notice their absence.
const MAX_LOSSES: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Megatron {
    /// The step line before this one.
    before: Option<Before>,
    /// Metric names of the losses seen so far.
    losses: Vec<String>,
    /// The key that is this log's `loss`, where it is none of the usual names.
    main_loss: Option<String>,
    /// TFLOP/s that were printed for the next step line.
    tflops: Option<f64>,
    /// It prints its checkpoints itself, so what its engine prints of them is a duplicate.
    own_checkpoints: bool,
    /// What its engine is saving.
    saving: Saving,
    /// What it is saving itself, and what it writes while it makes steps.
    announced: Option<i64>,
    background: Background,
    timers: Timers,
    arguments: Arguments,
    pause: Evaluation,
}

#[derive(Debug, Clone, Copy)]
struct Before {
    step: i64,
    consumed_tokens: Option<f64>,
}

/// What a key of the step line means.
enum Meaning {
    /// The number divided by this.
    Metric(&'static str, f64),
    Loss,
    Custom,
}

impl Format for Megatron {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let last_step = self.before.map(|b| b.step);
        if let Some((step, fields)) = step_line(line.text) {
            self.timers.close(out);
            self.pause.step(last_step, step, line, out);
            self.saving.step(step, line, out);
            if let Some(hello) = self.arguments.hello(line) {
                out.push(hello);
            }
            let event = self.step(step, fields, line, out);
            out.push(event);
            return Outcome::Matched;
        }
        if self.arguments.take(line.text) {
            // The first rank prints them, and the last one the steps, maybe to another file.
            let Some(hello) = self.arguments.described(line) else { return Outcome::Ignored };
            out.push(hello);
            return Outcome::Matched;
        }
        if self.timers.take(line, last_step, out) {
            return if last_step.is_some() { Outcome::Matched } else { Outcome::Ignored };
        }
        self.timers.close(out);
        if let Some(event) = self.beside(last_step, line, out) {
            out.push(event);
            return Outcome::Matched;
        }
        if let Some(rate) = side::bridge(line.text) {
            self.tflops = Some(rate);
        } else if line.text.starts_with("Evaluating on ") || line.text.starts_with("Evaluating iter ") {
            self.pause.begin(last_step, line, out);
            return Outcome::Ignored;
        }
        if noise(line.text) || deepspeed::is_ours(line.text) { Outcome::Ignored } else { Outcome::Unmatched }
    }

    fn rest(&mut self, out: &mut Out<'_>) {
        self.timers.close(out);
    }
}

/// The step number and the whole line, if it is a step line. GPT-NeoX puts `samples/sec` before the
/// iteration.
fn step_line(text: &str) -> Option<(i64, core::str::Split<'_, char>)> {
    let head = text.split('|').take(2).find_map(|f| f.trim().strip_prefix("iteration"))?;
    let (step, rest) = number::integer(head)?;
    number::integer(rest.trim_start().strip_prefix('/')?)?;
    text.contains('|').then(|| (step, text.split('|')))
}

/// A field as Megatron printed them in 2019: `lm loss 9.786600E+00`.
fn without_colon(field: &str) -> Option<(&str, &str)> {
    let (key, value) = field.trim().rsplit_once(' ')?;
    let is_value = value.parse::<f64>().is_ok() && !key.starts_with("iteration");
    is_value.then_some((key, value))
}

impl Megatron {
    /// A line about something else than a step.
    fn beside(&mut self, last_step: Option<i64>, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
        if let Some(event) = side::validation(line, out) {
            self.pause.end(last_step, line, out);
            return Some(event);
        }
        if let Some(said) = side::checkpoint(line.text) {
            return Some(self.checkpoint(&said, line, out));
        }
        if let Some(event) = side::engine_checkpoint(line).filter(|_| !self.own_checkpoints) {
            self.saving.seen(&event);
            return Some(event);
        }
        side::end(line, last_step)
            .or_else(|| side::behind(line, last_step))
            .or_else(|| side::rerun(line, last_step))
            .or_else(|| side::straggler(line, last_step, out))
    }

    /// A checkpoint that it saves or loads itself. When it says that one is saved, this is durable
    /// if it was written while it made steps, and the end of the save if not.
    fn checkpoint(&mut self, said: &Said<'_>, line: &Line<'_>, out: &mut Out<'_>) -> Event {
        let Said { what, step, path } = *said;
        let saves = step.filter(|_| !matches!(what, What::Loading | What::Loaded));
        if saves.is_some() {
            (self.own_checkpoints, self.saving) = (true, Saving::default());
        }
        let mut event = match (what, saves) {
            (What::Loading, _) => line.stage(ckpt::LOAD, CkptPhase::Start, step),
            (What::Loaded, _) => line.stage(ckpt::LOAD, CkptPhase::End, step),
            (What::Scheduled, Some(step)) => {
                self.announced = None;
                out.push(line.checkpoint(CkptPhase::End, Some(step)));
                self.background.begin(step, line)
            }
            (What::Saved, Some(step)) => {
                let is_announced = self.announced.take() == Some(step);
                if self.background.end(step, line, out) {
                    background::durable(step, line)
                } else if is_announced {
                    line.checkpoint(CkptPhase::End, Some(step))
                } else {
                    background::whole(step, line)
                }
            }
            _ => {
                self.announced = step;
                line.checkpoint(CkptPhase::Start, step)
            }
        };
        path.into_iter().for_each(|path| format::at(&mut event, path));
        event
    }

    fn step(
        &mut self,
        step: i64,
        fields: core::str::Split<'_, char>,
        line: &Line<'_>,
        out: &mut Out<'_>,
    ) -> Event {
        let mut e = line.step(step);
        for field in fields {
            let Some((key, value)) = field.rsplit_once(':').or_else(|| without_colon(field)) else {
                continue;
            };
            let key = normal(key);
            match meaning(&key, value) {
                Meaning::Metric(name, divisor) => {
                    out.metric(&mut e, name, value, divisor);
                }
                Meaning::Loss => self.loss(&key, value, &mut e, out),
                Meaning::Custom => {
                    out.metric(&mut e, &base(&key).replace(' ', "_"), value, 1.0);
                }
            }
        }
        // A loss scale of -1 is how the DeepSpeed fork prints that there is none.
        if e.m.get(metric::LOSS_SCALE).is_some_and(|v| v <= 0.0) {
            e.m.remove(metric::LOSS_SCALE);
        }
        if let Some(rate) = self.tflops.take().filter(|_| e.m.get(metric::TFLOPS_REPORTED).is_none()) {
            out.value(&mut e, metric::TFLOPS_REPORTED, rate);
        }
        self.settle_losses(step, &mut e);
        self.tokens(step, &mut e);
        self.before = Some(Before { step, consumed_tokens: e.m.get("consumed_tokens") });
        e
    }

    fn loss(&mut self, key: &str, value: &str, e: &mut Event, out: &mut Out<'_>) {
        let usual = matches!(key, "lm loss" | "loss" | "total loss");
        if !usual
            && self.main_loss.is_none()
            && !auxiliary(key)
            && !self.losses.iter().any(|l| l == metric::LOSS)
        {
            self.main_loss = Some(key.to_owned());
        }
        let custom;
        let name = if usual || self.main_loss.as_deref() == Some(key) {
            metric::LOSS
        } else {
            custom = key.replace(' ', "_");
            &custom
        };
        if out.metric(e, name, value, 1.0).is_some()
            && self.losses.len() < MAX_LOSSES
            && !self.losses.iter().any(|l| l == name)
        {
            self.losses.push(name.to_owned());
        }
    }

    /// Sets which losses the line should have had.
    fn settle_losses(&self, step: i64, e: &mut Event) {
        let skipped = e.m.get(metric::SKIPPED).unwrap_or(0.0);
        let window = self.before.map(|b| step - b.step).filter(|w| *w > 0);
        // Without an earlier line the window is unknown: any skipped iteration may have been all of
        // it.
        let all_skipped = skipped > 0.0 && window.is_none_or(|w| skipped >= w as f64);
        if all_skipped {
            // Recent versions print the sum over no iterations: 0.
            for name in &self.losses {
                if e.m.get(name) == Some(0.0) {
                    e.m.remove(name);
                }
            }
            return;
        }
        if e.m.get(metric::LOSS).is_none() {
            e.missing.push(metric::LOSS.to_owned());
        }
        for name in self.losses.iter().filter(|l| *l != metric::LOSS) {
            if e.m.get(name).is_none() {
                e.missing.push(name.clone());
            }
        }
    }

    /// Tokens of one step, from the numbers of the line.
    fn tokens(&self, step: i64, e: &mut Event) {
        let by_counter = self.before.and_then(|b| {
            let (now, then) = (e.m.get("consumed_tokens")?, b.consumed_tokens?);
            let steps = step - b.step;
            (steps > 0 && now > then).then(|| (now - then) / steps as f64)
        });
        let by_length = || Some(e.m.get("actual_seqlen")? * e.m.get(metric::SAMPLES)?);
        if let Some(tokens) = by_counter.or_else(by_length) {
            e.m.set(metric::TOKENS, tokens);
        }
    }
}

/// Lower case, single spaces for any of space, `-` and `_`, as the forks do not agree on them.
fn normal(key: &str) -> Cow<'_, str> {
    let key = key.trim();
    let odd = |pair: &[u8]| matches!(pair, [b'-' | b'_' | b'\t' | b'A'..=b'Z' | 0x80.., _] | b"  ");
    if !key.as_bytes().windows(2).any(odd) && !key.ends_with(|c: char| !c.is_ascii_lowercase() && c != ')') {
        return Cow::Borrowed(key);
    }
    let mut out = String::with_capacity(key.len());
    for word in key.split(|c: char| c.is_whitespace() || c == '-' || c == '_').filter(|w| !w.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out.make_ascii_lowercase();
    Cow::Owned(out)
}

/// The key without a unit in parentheses behind it.
fn base(key: &str) -> &str {
    unit(key).0
}

/// A key, and the unit in parentheses behind it.
fn unit(key: &str) -> (&str, &str) {
    let Some(at) = memchr::memchr(b'(', key.as_bytes()) else { return (key, "") };
    match key[..at].strip_suffix(' ') {
        Some(base) => (base, key[at + 1..].trim_end_matches(')')),
        None => (key, ""),
    }
}

fn meaning(key: &str, value: &str) -> Meaning {
    let (base, unit) = unit(key);
    let suffix = || number::lex(value).map_or("", |n| n.rest.trim());
    let percent = || if suffix().starts_with('%') { 100.0 } else { 1.0 };
    match base {
        "elapsed time per iteration" => {
            Meaning::Metric(metric::STEP_TIME, if unit == "s" { 1.0 } else { 1000.0 })
        }
        "learning rate" => Meaning::Metric(metric::LR, 1.0),
        "global batch size" | "batch size" => Meaning::Metric(metric::SAMPLES, 1.0),
        "loss scale" => Meaning::Metric(metric::LOSS_SCALE, 1.0),
        "grad norm" => Meaning::Metric(metric::GRAD_NORM, 1.0),
        "num zeros" => Meaning::Metric(metric::NUM_ZEROS, 1.0),
        "params norm" => Meaning::Metric(metric::PARAMS_NORM, 1.0),
        "number of skipped iterations" => Meaning::Metric(metric::SKIPPED, 1.0),
        "number of nan iterations" => Meaning::Metric(metric::NAN_ITERATIONS, 1.0),
        "throughput per gpu" | "tflops" | "compute per gpu" | "approx flops per gpu" => {
            Meaning::Metric(metric::TFLOPS_REPORTED, teras(suffix()))
        }
        "tokens per gpu"
        | "tokens per gpu per second"
        | "tokens per second per gpu"
        | "tokens per sec per gpu"
        | "tokens/sec/gpu"
        | "tokens/s/gpu" => Meaning::Metric(metric::TOKENS_PER_SECOND_PER_GPU, 1.0),
        "tokens per second" | "tokens per sec" | "tokens/sec" => {
            Meaning::Metric(metric::TOKENS_PER_SECOND, 1.0)
        }
        "samples per second" | "samples/sec" => Meaning::Metric("samples_per_second", 1.0),
        "mfu" => Meaning::Metric(metric::MFU_REPORTED, percent()),
        "hfu" => Meaning::Metric("hfu_reported", percent()),
        "lm loss" | "loss" => Meaning::Loss,
        k if k.ends_with(" loss") => Meaning::Loss,
        _ => Meaning::Custom,
    }
}

/// What a printed flop rate must be divided by to be in TFLOP/s.
fn teras(unit: &str) -> f64 {
    match unit.as_bytes().first() {
        Some(b'E') => 1e-6,
        Some(b'P') => 1e-3,
        Some(b'G') => 1e3,
        Some(b'M') => 1e6,
        Some(b'K') => 1e9,
        _ => 1.0,
    }
}

/// Losses that are added to the main one.
fn auxiliary(key: &str) -> bool {
    ["load balancing", "mtp", "z loss", "aux", "moe", "router", "indexer", "sop", "balance"]
        .iter()
        .any(|part| key.contains(part))
}

/// Lines that only this family prints and that have no step.
fn noise(text: &str) -> bool {
    const PREFIXES: &[&str] = &[
        "[Rank ",
        "Step Time :",
        "training ...",
        "done with setup",
        "[after dataloaders are built]",
        "[before the start of training step]",
        "saving checkpoint",
        "successfully loaded checkpoint",
        "INFO:megatron.",
        "> finished creating",
    ];
    PREFIXES.iter().any(|p| text.starts_with(p)) || (text.len() > 20 && text.bytes().all(|b| b == b'-'))
}

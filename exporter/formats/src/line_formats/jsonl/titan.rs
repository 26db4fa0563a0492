//! torchtitan's structured log, `training.global_rank_<R>.<stamp>.jsonl`: one record for each
//! beginning and end of a span, on every rank.
//!
//! The end of `step` is a step of its rank. The spans directly in it (`fetching_batch`, `fwd_bwd`,
//! `optim`, …) are its parts; the spans in those are counted with them. Evaluations and checkpoints
//! are published as such and are not part of the step's time. The span `checkpoint_save` is there
//! every step, and is a checkpoint only if it is tagged as one or took long; with asynchronous
//! checkpointing it ends when the copy is staged. The log has no loss: that is in the console or in
//! TensorBoard.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use stepwatch_wire::names::metric;
use stepwatch_wire::{CkptPhase, Edge, Event, Kind, MAX_TEXT, Metrics, Value};

use super::integer;
use crate::format::{Out, Outcome};
use crate::{tags, time};

/// Ranks in one file: there is one, unless somebody put several together.
const MAX_RANKS: usize = 1024;
/// Spans within spans.
const MAX_DEPTH: usize = 32;
/// Where older versions do not tag the checkpoint, a save that did nothing takes less.
const CHECKPOINT_MS: f64 = 1000.0;
const TAG: &str = "checkpoint_save";
/// Spans that keep the next step waiting and are announced.
const PHASES: &[&str] = &["eval", "checkpoint_load", "torch_distributed_init", "model_parallelism_init"];
/// Parts of a step by the names that others have for them.
const PARTS: &[(&str, &str)] = &[("fetching_batch", "data"), ("gc_collect", "gc")];
/// The text with which torchtitan logs that the data is over.
const EXHAUSTED: &str = "DataloaderExhausted";

/// Bytes of the name of a span; one with a longer name is passed over.
const MAX_SPAN: usize = 128;
/// About what a number of a step takes.
const NUMBER_BYTES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Titan {
    ranks: BTreeMap<u32, Open>,
    /// Bytes held for steps that have not ended yet.
    bytes: usize,
}

/// What is going on in one rank.
#[derive(Debug, Default)]
struct Open {
    /// Spans that began and did not end, the innermost last.
    spans: Vec<String>,
    parts: Metrics,
    numbers: Metrics,
    /// Milliseconds of the step that are published as something else.
    apart: f64,
    /// The step ended in an exception.
    failed: bool,
    /// The beginning of a checkpoint was published.
    saving: bool,
}

/// One line of the log.
pub(super) struct Record<'v> {
    /// Span with `_start`, `_end` or `_error` behind it, or the kind of an instant.
    name: &'v str,
    rank: u32,
    step: Option<i64>,
    ts: Option<f64>,
    value: Option<f64>,
    of: &'v Value,
}

impl<'v> Record<'v> {
    pub(super) fn from_value(v: &'v Value) -> Option<Self> {
        let name = v.get("log_type_name")?.as_str()?;
        v.get("log_type")?;
        Some(Self {
            name,
            rank: u32::try_from(integer(v.get("rank")?)?).ok()?,
            step: v.get("step").and_then(integer),
            ts: v.get("time_us").and_then(Value::as_f64).and_then(time::epoch),
            value: v.get("value").and_then(Value::as_f64),
            of: v,
        })
    }

    fn event(&self, kind: Kind) -> Event {
        Event { ts: self.ts, rank: Some(self.rank), step: self.step, ..Event::new(kind) }
    }

    fn tagged(&self) -> bool {
        let Some(Value::List(tags)) = self.of.get("step_tags") else { return false };
        tags.iter().any(|t| t.as_str() == Some(TAG))
    }
}

impl Titan {
    pub(super) fn read(&mut self, r: &Record<'_>, out: &mut Out<'_>) -> Outcome {
        // Spans of tasks that run at the same time do not nest.
        let task = r.of.get("task_name").is_some_and(|t| *t != Value::Null);
        if task || !self.ranks.contains_key(&r.rank) && self.ranks.len() >= MAX_RANKS {
            return Outcome::Ignored;
        }
        let before = self.ranks.get(&r.rank).map_or(0, Open::bytes);
        let outcome = self.ranks.entry(r.rank).or_default().read(r, out);
        self.bytes = (self.bytes + self.ranks.get(&r.rank).map_or(0, Open::bytes)).saturating_sub(before);
        outcome
    }

    /// Memory that unfinished steps take.
    pub(super) fn pending_bytes(&self) -> usize {
        self.bytes
    }

    /// Passes over the steps that are unfinished.
    pub(super) fn give_up_pending(&mut self) {
        *self = Self::default();
    }
}

impl Open {
    fn read(&mut self, r: &Record<'_>, out: &mut Out<'_>) -> Outcome {
        let open = self;
        if open.spans.iter().any(|s| s == TAG) && !open.saving && r.tagged() {
            open.saving = true;
            out.push(Event { ckpt: Some(CkptPhase::Start), ..r.event(Kind::Ckpt) });
        }
        if let Some(span) = r.name.strip_suffix("_start") {
            open.begin(span, r, out);
        } else if let Some(span) = r.name.strip_suffix("_end") {
            return open.end(span, r, out);
        } else if let Some(span) = r.name.strip_suffix("_error") {
            open.error(span, r, out);
        } else if let (Some(name), Some(value)) = (r.of.get("event_name").and_then(Value::as_str), r.value) {
            open.number(name, value);
            return Outcome::Ignored;
        } else {
            return Outcome::Ignored;
        }
        Outcome::Matched
    }

    fn bytes(&self) -> usize {
        let names =
            |numbers: &Metrics| numbers.iter().map(|(name, _)| name.len() + NUMBER_BYTES).sum::<usize>();
        let spans: usize = self.spans.iter().map(|span| span.len() + NUMBER_BYTES).sum();
        size_of::<Self>() + NUMBER_BYTES + spans + names(&self.parts) + names(&self.numbers)
    }

    fn begin(&mut self, span: &str, r: &Record<'_>, out: &mut Out<'_>) {
        if span == "step" {
            *self = Self::default(); // whatever was left open died with the process before
        }
        if self.spans.len() < MAX_DEPTH && span.len() <= MAX_SPAN {
            self.spans.push(span.to_owned());
        }
        if PHASES.contains(&span) {
            out.push(phase(span, Edge::Begin, r));
        }
    }

    fn end(&mut self, span: &str, r: &Record<'_>, out: &mut Out<'_>) -> Outcome {
        let Some(at) = self.spans.iter().rposition(|s| s == span) else { return Outcome::Ignored };
        self.spans.truncate(at);
        let millis = r.value.filter(|v| v.is_finite() && *v >= 0.0).unwrap_or(0.0);
        let directly = self.spans.len() == 1 && self.spans[0] == "step";
        if PHASES.contains(&span) {
            self.apart += if directly { millis } else { 0.0 };
            out.push(phase(span, Edge::End, r));
        } else if span == TAG && (self.saving || r.tagged() || millis >= CHECKPOINT_MS) {
            self.apart += if directly { millis } else { 0.0 };
            self.saved(millis, r, out);
        } else if span == "step" {
            return self.step(millis, r, out);
        } else if directly {
            let part = PARTS.iter().find(|(theirs, _)| *theirs == span).map_or(span, |(_, ours)| ours);
            let before = self.parts.get(part).unwrap_or(0.0);
            self.parts.set(part, before + millis / 1000.0);
        }
        Outcome::Matched
    }

    fn step(&mut self, millis: f64, r: &Record<'_>, out: &mut Out<'_>) -> Outcome {
        let open = core::mem::take(self);
        if open.failed || r.step.is_none() || r.value.is_none() {
            return Outcome::Ignored;
        }
        let mut e = Event { m: open.numbers, t: open.parts, ..r.event(Kind::Step) };
        out.value(&mut e, metric::STEP_TIME, (millis - open.apart).max(0.0) / 1000.0);
        out.push(e);
        Outcome::Matched
    }

    fn saved(&mut self, millis: f64, r: &Record<'_>, out: &mut Out<'_>) {
        if !core::mem::take(&mut self.saving) {
            let ts = r.ts.map(|end| end - millis / 1000.0);
            out.push(Event { ts, ckpt: Some(CkptPhase::Start), ..r.event(Kind::Ckpt) });
        }
        let ckpt = if self.failed { CkptPhase::Fail } else { CkptPhase::End };
        let mut e = Event { ckpt: Some(ckpt), ..r.event(Kind::Ckpt) };
        e.extra.insert("seconds".into(), Value::Number(millis / 1000.0));
        out.push(e);
    }

    /// An exception passes through every span that is open; it is published once.
    fn error(&mut self, span: &str, r: &Record<'_>, out: &mut Out<'_>) {
        if core::mem::replace(&mut self.failed, true) {
            return;
        }
        let message = r.of.get("message").and_then(Value::as_str).unwrap_or(r.name);
        let text = message.split_once("_error: ").map_or(message, |(_, text)| text);
        let level = if text.contains(EXHAUSTED) { "info" } else { "error" };
        out.push(Event {
            name: Some(format!("{span}_error")),
            level: Some(level.to_owned()),
            text: Some(text.chars().take(MAX_TEXT).collect()),
            ..r.event(Kind::Event)
        });
    }

    /// A scalar that somebody logged within the step.
    fn number(&mut self, name: &str, value: f64) {
        let key = name.replace('.', "/");
        let (name, divisor) = tags::canonical(&key).unwrap_or((name, 1.0));
        self.numbers.set(name, value / divisor);
    }
}

fn phase(span: &str, edge: Edge, r: &Record<'_>) -> Event {
    Event { name: Some(span.to_owned()), edge: Some(edge), ..r.event(Kind::Phase) }
}

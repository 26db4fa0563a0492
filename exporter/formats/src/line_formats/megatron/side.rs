//! What the family prints beside its step lines: evaluations, checkpoints, timers, stragglers, the
//! end.

use stepwatch_wire::names::{ckpt, metric};
use stepwatch_wire::{Event, Kind};

use super::normal;
use crate::format::{Line, Out};
use crate::line_formats::deepspeed;
use crate::number;

/// `validation loss at iteration 7000 | lm loss value: 7.174200E+00 | lm loss PPL: 1.305315E+03 |`
pub(super) fn validation(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let mut fields = line.text.split('|');
    let head = fields.next()?;
    let (name, at) = head.split_once(" loss at ").or_else(|| head.split_once(" results at "))?;
    let step = at.split_once("iteration").and_then(|(_, n)| number::integer(n)).map(|(n, _)| n);
    let mut e = line.eval(step, name.trim());
    for field in fields {
        let Some((key, value)) = field.rsplit_once(':') else { continue };
        let key = normal(key);
        match key.strip_suffix(" value").unwrap_or(&key) {
            "lm loss" | "loss" => out.metric(&mut e, metric::LOSS, value, 1.0),
            other => out.metric(&mut e, &other.replace(' ', "_"), value, 1.0),
        };
    }
    (!e.m.is_empty()).then_some(e)
}

/// What the trainer says of a checkpoint that it saves or loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Saving,
    /// The rest is written while it makes steps.
    Scheduled,
    Saved,
    Loading,
    Loaded,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Said<'a> {
    pub(super) what: What,
    /// Only of a load it may be unknown.
    pub(super) step: Option<i64>,
    pub(super) path: Option<&'a str>,
}

/// `saving checkpoint at iteration 1000 to DIR in torch_dist format`, `scheduled an async
/// checkpoint save at iteration 1000 to DIR`, `successfully saved checkpoint from iteration 1000 to
/// DIR`, `loading distributed checkpoint from DIR at iteration 1000`, `successfully loaded
/// checkpoint from DIR [ t 1/8, p 1/1 ] at iteration 1000`.
pub(super) fn checkpoint(text: &str) -> Option<Said<'_>> {
    const SAVES: &[(&str, What)] = &[
        ("saving checkpoint at iteration", What::Saving),
        ("scheduled an async checkpoint save at iteration", What::Scheduled),
        ("successfully saved checkpoint from iteration", What::Saved),
        ("successfully saved checkpoint at iteration", What::Saved),
        ("successfully saved local checkpoint from iteration", What::Saved),
    ];
    const LOADS: &[(&str, What)] = &[
        ("loading distributed checkpoint from ", What::Loading),
        ("loading checkpoint from ", What::Loading),
        ("successfully loaded checkpoint from ", What::Loaded),
    ];
    let behind = |&(words, what): &(&str, What)| Some((what, text.strip_prefix(words)?));
    if let Some((what, rest)) = SAVES.iter().find_map(behind) {
        let (step, rest) = number::integer(rest)?;
        let path = rest.trim_start().strip_prefix("to ").and_then(|r| r.split_whitespace().next());
        return Some(Said { what, step: Some(step), path });
    }
    let (what, rest) = LOADS.iter().find_map(behind)?;
    let (path, step) = rest.rsplit_once(" at iteration ")?;
    let step = number::integer(step).map(|(step, _)| step);
    Some(Said { what, step, path: path.split_whitespace().next() })
}

/// The run saves more often than its checkpoints can be written.
pub(super) fn behind(line: &Line<'_>, last_step: Option<i64>) -> Option<Event> {
    let said = line.text.contains("Starting a checkpoint save before previous has finished");
    said.then(|| warning(ckpt::BACKLOG, line, last_step))
}

fn warning(name: &str, line: &Line<'_>, last_step: Option<i64>) -> Event {
    Event {
        name: Some(name.into()),
        level: Some("warning".into()),
        text: Some(line.text.chars().take(stepwatch_wire::MAX_TEXT).collect()),
        ..line.event(Kind::Event, last_step)
    }
}

/// GPT-NeoX saves through DeepSpeed and prints nothing of it itself.
pub(super) fn engine_checkpoint(line: &Line<'_>) -> Option<Event> {
    deepspeed::is_ours(line.text).then(|| deepspeed::checkpoint(deepspeed::message(line.text), line))?
}

/// The job ends because it wants to: silence after this is no hang.
pub(super) fn end(line: &Line<'_>, last_step: Option<i64>) -> Option<Event> {
    const WORDS: &[&str] =
        &["[after training is done]", "[exiting program", "exiting program", "Exiting during evaluation"];
    WORDS.iter().any(|w| line.text.starts_with(w)).then(|| line.done(last_step))
}

/// The rerun state machine found that the same input gave another result: silent data corruption
/// shows like this.
pub(super) fn rerun(line: &Line<'_>, last_step: Option<i64>) -> Option<Event> {
    let said =
        ["Possible transient error!", "Possible persistent error!"].iter().any(|w| line.text.contains(w));
    said.then(|| warning("rerun_mismatch", line, last_step))
}

/// `Step Time : 4.21s GPU utilization: 412.3MODEL_TFLOP/s/GPU`, which Megatron-Bridge prints just
/// before the step line: the TFLOP/s.
pub(super) fn bridge(text: &str) -> Option<f64> {
    let (_, rate) = text.strip_prefix("Step Time :")?.split_once("GPU utilization:")?;
    number::lex(rate).filter(|n| n.rest.starts_with("MODEL_TFLOP")).map(|n| n.value)
}

/// The straggler detector's line, `… | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | … |
/// MnEtpt/Rnk: 296.02TF/0 | …`: the fastest and the slowest rank, as metrics of the last step.
pub(super) fn straggler(line: &Line<'_>, last_step: Option<i64>, out: &mut Out<'_>) -> Option<Event> {
    const KEYS: &[(&str, &str, f64)] = &[
        ("MnRtt/Rnk", "straggler_time_min", 1000.0),
        ("MxRtt/Rnk", "straggler_time_max", 1000.0),
        ("MxDRtt/Rnk", "straggler_data_time_max", 1000.0),
        ("MnEtpt/Rnk", "straggler_tflops_min", 1.0),
        ("MxEtpt/Rnk", "straggler_tflops_max", 1.0),
    ];
    if !line.text.contains("MnRtt/Rnk:") {
        return None;
    }
    let mut e = line.step(last_step?);
    for (key, value) in line.text.split('|').filter_map(|f| f.split_once(':')) {
        let Some((_, name, divisor)) = KEYS.iter().find(|(k, ..)| *k == key.trim()) else { continue };
        out.metric(&mut e, name, value, *divisor);
        if let Some((_, rank)) = value.rsplit_once('/') {
            out.metric(&mut e, &format!("{name}_rank"), rank, 1.0);
        }
    }
    (!e.m.is_empty()).then_some(e)
}

/// A block of timers, a line each, or all of them on one.
#[derive(Debug, Default)]
pub(super) struct Timers {
    open: Option<Event>,
    /// The timer whose ranks are listed below it.
    ranks_of: Option<&'static str>,
}

impl Timers {
    /// Takes a line if it is of a block. `time (ms) | forward: 1.0 | …` is a block of its own.
    pub(super) fn take(&mut self, line: &Line<'_>, last_step: Option<i64>, out: &mut Out<'_>) -> bool {
        let text = line.text;
        if let Some(timers) = text.strip_prefix("time (ms) |") {
            self.close(out);
            if let Some(step) = last_step {
                let mut e = line.step(step);
                timers.split('|').filter_map(|f| f.rsplit_once(':')).for_each(|(k, v)| set(&mut e, k, v));
                self.open = Some(e);
            }
            self.close(out);
            return true;
        }
        let ours =
            ["(min, max) time across ranks (ms)", "max time across ranks (ms)", "times across ranks (ms)"];
        if ours.iter().any(|o| text.starts_with(o)) {
            self.close(out);
            self.open = last_step.map(|step| line.step(step));
            return true;
        }
        self.one(text)
    }

    /// `forward-backward ....: (123.45, 130.20)`, `optimizer ....: 5.5`, or `forward-compute:` and
    /// then `rank  7: 12.34`, ….
    fn one(&mut self, text: &str) -> bool {
        if let Some((_, value)) = text.strip_prefix("rank ").and_then(|t| t.split_once(':')) {
            if let (Some(part), Some(e), Some(n)) = (self.ranks_of, &mut self.open, number::lex(value)) {
                let seconds = (n.value / 1000.0).max(e.t.get(part).unwrap_or(0.0));
                e.t.set(part, seconds);
            }
            return self.open.is_some();
        }
        let Some((key, value)) = text.rsplit_once(':') else { return false };
        let dotted = key.trim_end_matches('.').len() + 2 < key.len();
        if !dotted {
            self.ranks_of = part(key).filter(|_| value.is_empty());
            return value.is_empty() && self.open.is_some();
        }
        if let Some(e) = &mut self.open {
            // Of the fastest and the slowest rank, the slowest is what the others wait for.
            let slowest = value.trim().trim_matches(['(', ')']).rsplit(',').next().unwrap_or("");
            set(e, key.trim_end_matches(['.', ' ']), slowest);
        }
        true
    }

    /// Publishes the block that was being read.
    pub(super) fn close(&mut self, out: &mut Out<'_>) {
        self.ranks_of = None;
        if let Some(e) = self.open.take().filter(|e| !e.t.is_empty()) {
            out.push(e);
        }
    }
}

fn set(e: &mut Event, timer: &str, millis: &str) {
    if let (Some(part), Some(n)) = (part(timer), number::lex(millis)) {
        e.t.set(part, n.value / 1000.0);
    }
}

/// The part of a step that a timer measures; those inside others are left out, as their sum would
/// count twice.
fn part(timer: &str) -> Option<&'static str> {
    Some(match &*normal(timer) {
        "forward backward" => "fwd_bwd",
        "forward" | "forward compute" => "forward",
        "backward" | "backward compute" => "backward",
        "optimizer" => "optimizer",
        "batch generator" => "data",
        "all grads sync" | "backward params all reduce" | "grads all reduce" => "comm",
        _ => return None,
    })
}

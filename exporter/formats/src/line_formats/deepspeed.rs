//! DeepSpeed's engine: `[INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=4, lr=[4.99e-05],
//! mom=[(0.9, 0.95)]`, `epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.03, …`,
//! overflows of fp16, and its pipeline's `steps: 2 loss: 12.8004 iter time (s): 145.206
//! samples/sec: 7.052`.
//!
//! It is an engine and not a trainer: it prints beside the trainer that uses it and, but for the
//! pipeline, has no loss. So it reads a log only while no trainer's own lines are found in it.
//! Since late 2025 it prints nothing of this unless it is configured to.

#[cfg(test)]
mod tests;

use stepwatch_wire::names::{ckpt, metric};
use stepwatch_wire::{CkptPhase, Event, Kind};

use crate::format::{self, Format, Line, Out, Outcome};
use crate::number::{self, after};
use crate::pause::Saving;

#[derive(Debug, Default)]
pub(crate) struct DeepSpeed {
    last_step: Option<i64>,
    /// Steps skipped since the engine started, as of the last line that had the number.
    skipped: Option<f64>,
    /// What the loss scale was reduced to since then.
    loss_scale: Option<f64>,
    saving: Saving,
}

impl Format for DeepSpeed {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let text = message(line.text);
        if let Some(scale) = overflow(text) {
            self.loss_scale = Some(scale);
            return Outcome::Ignored;
        }
        let event = self
            .engine(text, line, out)
            .or_else(|| throughput(text, line, out))
            .or_else(|| pipeline(text, line, out))
            .or_else(|| self.breakdown(text, line))
            .or_else(|| checkpoint(text, line));
        let Some(event) = event else {
            return if is_ours(line.text) { Outcome::Ignored } else { Outcome::Unmatched };
        };
        match (event.kind, event.step) {
            (Kind::Step, Some(step)) => {
                self.saving.step(step, line, out);
                self.last_step = Some(step);
            }
            (Kind::Ckpt, _) => self.saving.seen(&event),
            _ => {}
        }
        out.push(event);
        Outcome::Matched
    }
}

impl DeepSpeed {
    /// `step=10, skipped=4, lr=[4.99e-05, 4.99e-05], mom=[…]`.
    fn engine(&mut self, text: &str, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
        let (step, rest) = number::integer(text.strip_prefix("step=")?)?;
        let skipped = number::lex(rest.strip_prefix(", skipped=")?)?;
        let mut e = line.step(step);
        if let Some((_, rates)) = rest.split_once("lr=[") {
            out.metric(&mut e, metric::LR, rates, 1.0);
        }
        let before = self.skipped.replace(skipped.value).filter(|b| *b <= skipped.value);
        let new = before.map(|b| skipped.value - b).or((skipped.value == 0.0).then_some(0.0));
        if let Some(new) = new {
            out.value(&mut e, metric::SKIPPED, new);
        }
        if let Some(scale) = self.loss_scale.take() {
            out.value(&mut e, metric::LOSS_SCALE, scale);
        }
        Some(e)
    }

    /// `time (ms) | fwd: 12.3 | bwd: 20.1 | step: 4.5`: means over the steps since it was last
    /// printed. The timers of micro-steps are only parts of a step and are left out.
    fn breakdown(&self, text: &str, line: &Line<'_>) -> Option<Event> {
        let (_, timers) = text.split_once("time (ms) | ")?;
        let mut e = line.step(self.last_step?);
        for (key, value) in timers.split(" | ").filter_map(|f| f.split_once(": ")) {
            let part = match key {
                "fwd" | "forward" => "forward",
                "bwd" | "backward" => "backward",
                "bwd_allreduce" | "backward_allreduce" => "comm",
                "step" => "optimizer",
                _ => continue,
            };
            if let Some(n) = number::lex(value) {
                e.t.set(part, n.value / 1000.0);
            }
        }
        (!e.t.is_empty()).then_some(e)
    }
}

/// Whether a line is of DeepSpeed's logger.
pub(crate) fn is_ours(text: &str) -> bool {
    let logged = ["[INFO] [", "[WARNING] [", "[DEBUG] ["].iter().any(|p| text.starts_with(p));
    (logged && text.contains(".py:")) || text.starts_with("[deepspeed]") || text.starts_with("steps: ")
}

/// The text after `[INFO] [logging.py:96:log_dist] [Rank 0] rank=0 `.
pub(crate) fn message(text: &str) -> &str {
    let mut rest = text;
    while let Some((_, behind)) = rest.strip_prefix('[').and_then(|t| t.split_once(']')) {
        rest = behind.trim_start();
    }
    let behind = rest.strip_prefix("rank=").and_then(|t| t.split_once(' '));
    behind.map_or(rest, |(_, message)| message)
}

/// `OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768` in its several
/// wordings: the new scale.
fn overflow(text: &str) -> Option<f64> {
    let (_, scale) = text.split_once("Attempted loss scale: ")?.1.split_once("reducing to ")?;
    number::lex(scale).map(|n| n.value)
}

/// `epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.03, CurrSamplesPerSec=25.70,
/// MemAllocated=4.32GB, …`. Versions before 2022 print `0/40` in front: an epoch and its
/// micro-steps, which number no step.
fn throughput(text: &str, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let (head, rest) = text.split_once(", ")?;
    let mut e = if let Some((_, step)) = head.split_once("/global_step=") {
        line.step(number::integer(step)?.0)
    } else {
        let (_, micro) = number::integer(head)?;
        let (_, "") = number::integer(micro.strip_prefix('/')?)? else { return None };
        line.event(Kind::Hb, None)
    };
    let rates = ["CurrSamplesPerSec=", "SamplesPerSec="];
    let rate = rates.iter().find_map(|k| after(rest, k))?;
    out.metric(&mut e, "samples_per_second", rate, 1.0)?;
    if let Some(memory) = after(rest, "MaxMemAllocated=") {
        out.metric(&mut e, "memory_gib", memory, 1.0);
    }
    Some(e)
}

fn pipeline(text: &str, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let (step, rest) = number::integer(text.strip_prefix("steps: ")?)?;
    let seconds = after(rest, "iter time (s):")?;
    let mut e = line.step(step);
    if let Some(loss) = after(rest, "loss:") {
        out.metric(&mut e, metric::LOSS, loss, 1.0);
    }
    if !out.may_lack_loss(&e) {
        return None;
    }
    out.metric(&mut e, metric::STEP_TIME, seconds, 1.0);
    if let Some(rate) = after(rest, "samples/sec:") {
        out.metric(&mut e, "samples_per_second", rate, 1.0);
    }
    Some(e)
}

/// `[Torch] Checkpoint global_step1000 is about to be saved!`, and until June 2025 `… is ready
/// now!`: since then the next step is the end of it, for the engine saves before it goes on. And
/// `[Torch] Begin Load checkpoint from ckpt/global_step1000/mp_rank_00_model_states.pt...`, once
/// for each file, and `End Load`.
pub(crate) fn checkpoint(text: &str, line: &Line<'_>) -> Option<Event> {
    let loads =
        [("Begin Load checkpoint from ", CkptPhase::Start), ("End Load checkpoint from ", CkptPhase::End)];
    let load = loads.iter().find_map(|&(words, phase)| Some((text.split_once(words)?.1, phase)));
    if let Some((path, phase)) = load {
        let path = path.trim_end_matches('.');
        let step = path.split_once("global_step").and_then(|(_, step)| number::integer(step));
        let mut e = line.stage(ckpt::LOAD, phase, step.map(|(step, _)| step));
        format::at(&mut e, path);
        return Some(e);
    }
    let (_, rest) = text.split_once("Checkpoint global_step")?;
    let (step, rest) = number::integer(rest)?;
    let phase = if rest.starts_with(" is about to be saved") {
        CkptPhase::Start
    } else if rest.starts_with(" is ready now") {
        CkptPhase::End
    } else {
        return None;
    };
    Some(line.checkpoint(phase, Some(step)))
}

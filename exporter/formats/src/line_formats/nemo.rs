//! NeMo. Version 2 prints through its `ProgressPrinter`,
//! `Training epoch 0, iteration 9/99 | lr: 0.0003 | global_step: 9 | reduced_train_loss: 10.93 |
//! train_step_timing in s: 1.234 | …`, with four significant digits that are means over its log
//! interval. Automodel prints `step 13 | epoch 0 | loss 0.6407 | grad_norm 1.1754 | lr 1.00e-05 |
//! mem 31.55 GiB | tps 6574.51(821.81/gpu) | num_label_tokens 26779`.
//!
//! `val_loss` stays on every line after the first evaluation: only a new value is an evaluation.

pub(super) mod s3;
#[cfg(test)]
mod tests;

use stepwatch_wire::names::{ckpt, metric};
use stepwatch_wire::{CkptPhase, Event};

use crate::background::{self, Background};
use crate::format::{self, Format, Line, Out, Outcome};
use crate::pause::Evaluation;
use crate::{number, tags};

/// What Python's `:.4` leaves of a float.
const DIGITS: i32 = 4;

#[derive(Debug, Default)]
pub(crate) struct Nemo {
    last_step: Option<i64>,
    val_loss: Option<f64>,
    pause: Evaluation,
    /// The step whose save the steps waited for last.
    saved: Option<i64>,
    background: Background,
    uploads: s3::Uploads,
}

impl Format for Nemo {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some(outcome) = self.progress(line, out) {
            return outcome;
        }
        let event = automodel(line, out).or_else(|| self.checkpoint(line, out));
        if let Some(event) = event.or_else(|| self.uploads.read(line, |step| step)) {
            out.push(event);
            return Outcome::Matched;
        }
        let text = line.text;
        if ["Validation: iteration ", "Testing: iteration "].iter().any(|p| text.contains(p)) {
            if !text.starts_with("Sanity") {
                self.pause.begin(self.last_step, line, out);
            }
            return Outcome::Ignored;
        }
        if text.starts_with("[NeMo ") { Outcome::Ignored } else { Outcome::Unmatched }
    }
}

impl Nemo {
    /// `Global Checkpoint Save : Rank: 0 : Iteration: 24 : … : Save duration: 25.537s` is the end
    /// of what the steps wait for. An asynchronous save goes on from `Scheduled async checkpoint
    /// save for /ckpt/step=24.ckpt`, and ends with `Successfully saved checkpoint from iteration 24
    /// to /ckpt/step=24.ckpt`. NeMo then removes the mark beside it, and says so with another step.
    fn checkpoint(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
        if let Some(rest) = behind(line, "Global Checkpoint Save : Rank: 0 : Iteration: ") {
            let (step, rest) = number::integer(rest)?;
            self.saved = Some(step);
            let mut e = line.checkpoint(CkptPhase::End, Some(step));
            let seconds = rest.split_once("Save duration: ").map(|(_, seconds)| seconds);
            seconds.into_iter().for_each(|seconds| format::took(&mut e, seconds));
            return Some(e);
        }
        if behind(line, "] Scheduled async checkpoint save for ").is_some() {
            return self.saved.map(|step| self.background.begin(step, line));
        }
        if let Some(rest) = behind(line, "] Successfully saved checkpoint from iteration ") {
            let (step, rest) = number::integer(rest)?;
            self.background.end(step, line, out);
            let mut e = background::durable(step, line);
            let path = rest.trim_start().strip_prefix("to ").and_then(|r| r.split_whitespace().next());
            path.into_iter().for_each(|path| format::at(&mut e, path));
            return Some(e);
        }
        let rest = behind(line, "Global Checkpoint Load : Rank : 0 : ")?;
        let mut e = line.stage(ckpt::LOAD, CkptPhase::End, None);
        format::took(&mut e, rest.split_once("Time spent in load_checkpoint: ")?.1);
        Some(e)
    }

    /// A line of the `ProgressPrinter`.
    fn progress(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Option<Outcome> {
        let (head, rest) = line.text.split_once("Training epoch ")?.1.split_once(" | ")?;
        let (epoch, iteration) = head.split_once(", iteration ")?;
        let (iteration, total) = number::integer(iteration)?;
        number::integer(total.strip_prefix('/')?)?;
        let fields = || rest.split(" | ").filter_map(|f| f.split_once(": "));
        let global_step = fields().find(|(k, _)| *k == "global_step").and_then(|(_, v)| number::integer(v));
        let step = global_step.map_or(iteration, |(n, _)| n);
        let mut e = line.step(step);
        out.metric(&mut e, metric::EPOCH, epoch, 1.0);
        let mut val_loss = None;
        for (key, value) in fields() {
            match key {
                "global_step" => {}
                "val_loss" => val_loss = number::lex(value).map(|n| n.value),
                "global_batch_size" => printed(&mut e, metric::SAMPLES, value, 1.0, out),
                _ => {
                    let (name, divisor) = tags::canonical(key).unwrap_or((key, 1.0));
                    printed(&mut e, name, value, divisor, out);
                }
            }
        }
        self.pause.step(self.last_step, step, line, out);
        if let Some(loss) = val_loss.filter(|v| self.val_loss.map(f64::to_bits) != Some(v.to_bits())) {
            let mut eval = line.eval(self.last_step.or(Some(step)), "val");
            out.number(&mut eval, metric::LOSS, loss, number::quantum_of_digits(loss, DIGITS));
            out.push(eval);
            self.val_loss = val_loss;
        }
        self.last_step = Some(step);
        out.push(e);
        Some(Outcome::Matched)
    }
}

/// A line of Automodel, of training or (with `[val]` in front) of an evaluation.
fn automodel(line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
    let at = line.text.find("step ").filter(|at| {
        let before = line.text[..*at].trim_end();
        before.is_empty() || before.ends_with(['|', ']'])
    })?;
    let (before, text) = line.text.split_at(at);
    let mut fields = text.split(" | ");
    let (step, "") = number::integer(fields.next()?.strip_prefix("step ")?)? else { return None };
    let epoch = fields.next()?.strip_prefix("epoch ")?;
    let mut e = match before.split_once("[val]") {
        Some((_, name)) => {
            let name = name.trim_matches([' ', '|']).trim_start_matches("name ").trim_matches('"');
            line.eval(Some(step), if name.is_empty() { "val" } else { name })
        }
        None => line.step(step),
    };
    out.metric(&mut e, metric::EPOCH, epoch, 1.0);
    for (key, value) in fields.filter_map(|f| f.split_once(' ')) {
        match key {
            "mem" => out.metric(&mut e, "memory_gib", value, 1.0),
            "tps" => {
                if let Some((_, each)) = value.split_once('(').filter(|(_, each)| each.contains("/gpu")) {
                    out.metric(&mut e, metric::TOKENS_PER_SECOND_PER_GPU, each, 1.0);
                }
                out.metric(&mut e, metric::TOKENS_PER_SECOND, value, 1.0)
            }
            "mfu" => {
                out.metric(&mut e, metric::MFU_REPORTED, value, if value.contains('%') { 100.0 } else { 1.0 })
            }
            _ => out.metric(&mut e, key, value, 1.0),
        };
    }
    let whole = e.m.get(metric::TOKENS_PER_SECOND).is_some() && out.may_lack_loss(&e);
    (whole || out.reports_loss(&e)).then_some(e)
}

/// A number with four significant digits, or a whole one with all of its digits.
fn printed(e: &mut Event, name: &str, text: &str, divisor: f64, out: &mut Out<'_>) {
    let Some(n) = number::lex(text) else { return out.no_number(name, text) };
    let whole = n.value.fract() == 0.0;
    let quantum = if whole { n.quantum } else { number::quantum_of_digits(n.value, DIGITS) };
    out.number(e, name, n.value / divisor, quantum.map(|q| q / divisor));
}

/// What is behind some words of the log of NeMo.
fn behind<'a>(line: &Line<'a>, words: &str) -> Option<&'a str> {
    line.text.split_once(words).map(|(_, rest)| rest)
}

//! OLMo-core and OLMo: a header `[step=10/1000,epoch=1,eta=1:02:03]` behind a logger's prefix, then
//! `train/CE loss=2.345`, `optim/total grad norm=0.4312`, … on lines of their own. Steps that
//! collect no metrics are headers alone.
//!
//! Nothing marks the end of a record: it is published when something else is printed, or when the
//! log rests. Numbers have four decimals below one and fewer above; no step of theirs is hidden by
//! dropped zeros. OLMo logs the beginning of an upload and not its end, and uploads before it says
//! that a checkpoint is saved, so only uploads of OLMo-core are a stage.

#[cfg(test)]
mod tests;

use stepwatch_wire::names::{ckpt, metric};
use stepwatch_wire::{CkptPhase, Event};

use crate::absent::{self, Nothing};
use crate::background::{self, Background};
use crate::format::{self, Format, Line, Out, Outcome};
use crate::number::{self, Number};
use crate::pause::Evaluation;
use crate::tags;
use crate::tokens::TokenCounter;

/// Evaluation sets in one record.
const MAX_SETS: usize = 64;
/// A rate printed more coarsely than this gives the time of a step less exactly than the stamps of
/// the lines do.
const COARSE: f64 = 0.01;

#[derive(Debug, Default)]
pub(crate) struct Olmo {
    last_step: Option<i64>,
    open: Option<Record>,
    tokens: TokenCounter,
    pause: Evaluation,
    /// The step that is being saved, and whether that goes on in the background.
    saving: Option<(i64, bool)>,
    background: Background,
    /// The step whose files are uploaded, and the last one whose files are.
    uploading: Option<i64>,
    uploaded: Option<i64>,
    /// A checkpoint was written behind the steps, so that those count which are said to be durable.
    is_written: bool,
    /// The step of the checkpoint that is being loaded.
    loading: Option<i64>,
}

/// A record whose lines are being read.
#[derive(Debug)]
enum Record {
    Step(Box<Step>),
    Eval(Sets),
}

#[derive(Debug)]
struct Step {
    event: Event,
    /// Names whose value is `None`.
    nothing: Vec<&'static str>,
    /// It was published already: then only what came after is published.
    given: bool,
}

/// The sets of one evaluation.
#[derive(Debug)]
struct Sets {
    step: Option<i64>,
    /// What the evaluation as a whole is called.
    whole: String,
    /// One for each set.
    events: Vec<Event>,
}

impl Step {
    fn open(event: Event, given: bool) -> Record {
        Record::Step(Box::new(Self { event, nothing: Vec::new(), given }))
    }

    /// Takes a value that is nothing.
    fn nothing(&mut self, key: &str) {
        let named = tags::canonical(key).map(|(name, _)| name);
        self.nothing.extend(named.filter(|name| !self.nothing.contains(name)));
    }
}

impl Sets {
    fn open(step: Option<i64>, whole: String) -> Record {
        Record::Eval(Self { step, whole, events: Vec::new() })
    }

    /// Takes `c4_en-validation/CE loss`, `eval/pile-validation/CrossEntropyLoss`, `hellaswag
    /// (length-normalized accuracy)`.
    fn take(&mut self, key: &str, n: Number<'_>, line: &Line<'_>, out: &mut Out<'_>) {
        let key = key.strip_prefix("eval/").unwrap_or(key);
        let (set, name) = key.rsplit_once('/').unwrap_or((&self.whole, key));
        let at = self.events.iter().position(|e| e.name.as_deref() == Some(set));
        let at = at.unwrap_or_else(|| {
            if self.events.len() < MAX_SETS {
                self.events.push(line.eval(self.step, set));
            }
            self.events.len() - 1
        });
        let name = tags::canonical(name).map_or(name, |(ours, _)| ours);
        out.value(&mut self.events[at], name, n.value);
    }
}

impl Format for Olmo {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let text = message(line.text);
        if let Some(step) = header(text) {
            let gave = self.close(out);
            self.pause.step(self.last_step, step, line, out);
            let goes_on = self.goes_on(step, line, out);
            self.last_step = Some(step);
            self.open = Some(Step::open(line.step(step), false));
            return if gave || goes_on { Outcome::Matched } else { Outcome::Ignored };
        }
        if let Some((key, n)) = value(text).filter(|_| text == line.text) {
            if self.value(key, n, line, out) {
                return Outcome::Matched;
            }
        }
        let gave = self.close(out);
        match self.other(text, line, out) {
            Outcome::Unmatched if gave => {
                out.only_ends();
                Outcome::Matched
            }
            outcome => outcome,
        }
    }

    fn rest(&mut self, out: &mut Out<'_>) {
        let again = match &self.open {
            Some(Record::Step(s)) => {
                Some(Event { ts: s.event.ts, step: s.event.step, ..Event::new(s.event.kind) })
            }
            _ => None,
        };
        self.close(out);
        // Should the record go on after all, what follows is of the same step.
        self.open = again.map(|e| Step::open(e, true));
    }
}

impl Olmo {
    /// Takes a line of a record; false if none is open that it could belong to.
    fn value(&mut self, key: &str, n: Option<Number<'_>>, line: &Line<'_>, out: &mut Out<'_>) -> bool {
        if key.starts_with("eval/")
            && self.last_step.is_some()
            && !matches!(self.open, Some(Record::Eval(..)))
        {
            self.close(out);
            self.open = Some(Sets::open(self.last_step, String::new()));
        }
        match (&mut self.open, n) {
            (Some(Record::Step(s)), Some(n)) => of_step(key, n, &mut s.event, out),
            (Some(Record::Step(s)), None) => s.nothing(key),
            (Some(Record::Eval(sets)), Some(n)) => sets.take(key, n, line, out),
            (Some(Record::Eval(..)), None) => {}
            (None, _) => return false,
        }
        true
    }

    /// Publishes the record that was being read; false if there was none.
    fn close(&mut self, out: &mut Out<'_>) -> bool {
        match self.open.take() {
            Some(Record::Step(step)) => {
                let Step { event: mut e, nothing, given } = *step;
                let news = !given || !e.m.is_empty();
                self.tokens(&mut e);
                if news {
                    nothing.iter().for_each(|name| out.nothing(name, Nothing::Null));
                    out.record(e, given);
                }
                news
            }
            Some(Record::Eval(Sets { events, .. })) => {
                let some = !events.is_empty();
                events.into_iter().for_each(|e| out.push(e));
                some
            }
            None => false,
        }
    }

    /// Tokens of one step, from the counter of all.
    fn tokens(&mut self, e: &mut Event) {
        let (Some(step), Some(now)) = (e.step, e.m.get("total_tokens")) else { return };
        if let Some(tokens) = self.tokens.of_step(step, now) {
            e.m.set(metric::TOKENS, tokens);
        }
    }

    /// A checkpoint that is saved or loaded. No line says when the steps no longer wait for an
    /// asynchronous one: the next step shows it.
    fn checkpoint(&mut self, text: &str, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
        let behind = |words: &str| text.strip_prefix(words);
        if let Some((step, rest)) = behind("Saving checkpoint for step ").and_then(number::integer) {
            self.saving = Some((step, rest.ends_with("asynchronously...")));
            // If it was uploaded already, the process that did so is gone.
            self.uploading = self.uploading.filter(|open| *open != step);
            self.uploaded = None;
            return Some(placed(line.checkpoint(CkptPhase::Start, Some(step)), rest));
        }
        let saved = behind("Checkpoint for step ").filter(|_| text.contains(" saved"));
        if let Some((step, _)) = saved.and_then(number::integer) {
            if self.saving.take_if(|(saving, _)| *saving == step).is_some() {
                out.push(line.checkpoint(CkptPhase::End, Some(step)));
            }
            self.background.end(step, line, out);
            self.is_written = true;
            self.end_upload(step, line).into_iter().for_each(|e| out.push(e));
            return Some(background::durable(step, line));
        }
        if let Some(event) = self.upload(text, line) {
            return Some(event);
        }
        if let Some(path) = behind("Loading checkpoint from ") {
            let step = step_dir(path.trim_end_matches(['.', '\'']));
            self.loading = step;
            return Some(placed(line.stage(ckpt::LOAD, CkptPhase::Start, step), path));
        }
        if text == "Checkpoint successfully loaded" {
            return Some(line.stage(ckpt::LOAD, CkptPhase::End, self.loading.take()));
        }
        if text.starts_with("Saving ") && text.ends_with("checkpoint...") {
            return Some(line.checkpoint(CkptPhase::Start, self.last_step));
        }
        let ends = text == "Checkpoint saved"
            || text.starts_with("Checkpoint saved to ")
            || text.starts_with("Unsharded checkpoint saved to ");
        if !ends {
            return None;
        }
        let step = self.saving.take().map(|(step, _)| step).or(self.last_step);
        let end = line.checkpoint(CkptPhase::End, step);
        // In a run whose others count when they are written, this one counts now.
        let Some(step) = step.filter(|_| self.is_written) else { return Some(end) };
        out.push(end);
        Some(background::durable(step, line))
    }

    /// A checkpoint that is written behind the steps, to a bucket: `Uploading 1.2GiB from '/tmp/x'
    /// to 's3://b/run/step10/model_and_optim/__0_0.distcp'...`. Rank 0 uploads `.metadata` beside
    /// them when all ranks have uploaded theirs. `.metadata.json` proves nothing: it is uploaded
    /// after a save that failed, too. The sizes are of single files, of ranks that log.
    fn upload(&mut self, text: &str, line: &Line<'_>) -> Option<Event> {
        if let Some(rest) = text.strip_prefix("Uploading ") {
            let (_, target) = rest.split_once("' to '")?;
            let (head, _) = target.rsplit_once("/model_and_optim/")?;
            let step = step_dir(head)?;
            let goes_on = self.saving == Some((step, true)) || self.background.is_open(step);
            if !goes_on || self.uploading == Some(step) || self.uploaded == Some(step) {
                return None;
            }
            self.uploading = Some(step);
            let mut e = line.stage(ckpt::UPLOAD, CkptPhase::Start, Some(step));
            format::at(&mut e, head);
            return Some(e);
        }
        let (_, target) = text.strip_prefix("Uploaded ")?.split_once(" to '")?;
        let step = step_dir(target.strip_suffix("/model_and_optim/.metadata'")?)?;
        self.end_upload(step, line)
    }

    /// All files of a checkpoint are uploaded.
    fn end_upload(&mut self, step: i64, line: &Line<'_>) -> Option<Event> {
        self.uploading.take_if(|open| *open == step)?;
        self.uploaded = Some(step);
        Some(line.stage(ckpt::UPLOAD, CkptPhase::End, Some(step)))
    }

    /// A step came. One after that of an asynchronous save waits for it no longer; one before it is
    /// of another process. Returns whether an event was published.
    fn goes_on(&mut self, step: i64, line: &Line<'_>, out: &mut Out<'_>) -> bool {
        let over = self.saving.take_if(|(saved, asynchronous)| *asynchronous && *saved != step);
        let Some((saved, _)) = over.filter(|(saved, _)| *saved < step) else { return false };
        out.push(line.checkpoint(CkptPhase::End, Some(saved)));
        let goes_on = self.background.begin(saved, line);
        out.push(goes_on);
        true
    }

    /// Evaluations, checkpoints and the end.
    fn other(&mut self, text: &str, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some(event) = self.checkpoint(text, line, out) {
            out.push(event);
            return Outcome::Matched;
        }
        if text.starts_with("Training complete") || text.starts_with("Training loop complete") {
            out.push(line.done(self.last_step));
            return Outcome::Matched;
        }
        if let Some(name) = text.strip_prefix("Finished ").and_then(|t| t.split_once(" evals in ")) {
            self.pause.end(self.last_step, line, out);
            self.open = Some(Sets::open(self.last_step, name.0.to_owned()));
            return Outcome::Ignored;
        }
        let begins = text.starts_with("Running evaluation for '")
            || text.strip_prefix("Running ").is_some_and(|t| t.ends_with(" evals..."));
        if begins {
            self.pause.begin(self.last_step, line, out);
            return Outcome::Ignored;
        }
        if text.starts_with("[eval_step=") || text.starts_with("[eval=") {
            Outcome::Ignored
        } else {
            Outcome::Unmatched
        }
    }
}

/// The step in the path of a checkpoint: `/save/step10`.
fn step_dir(path: &str) -> Option<i64> {
    let (step, rest) = number::integer(path.rsplit_once("/step")?.1)?;
    rest.is_empty().then_some(step)
}

/// Sets where the checkpoint is: `to '/save/step10'...`, `'/save/step10'...`.
fn placed(mut event: Event, text: &str) -> Event {
    let path = text.split('\'').nth(1);
    path.into_iter().for_each(|path| format::at(&mut event, path));
    event
}

/// The text after the logger's prefix (`HOST:0\tolmo_core.train.trainer:62\tINFO\t`, `INFO
/// [olmo.train:816, rank=0] `).
fn message(text: &str) -> &str {
    if let Some((_, message)) = text.split_once("\tINFO\t") {
        return message;
    }
    match text.strip_prefix("INFO ").and_then(|t| t.split_once("] ")) {
        Some((head, message)) if head.trim_start().starts_with('[') => message.trim_start(),
        _ => text,
    }
}

/// `[step=10/1000,epoch=1,eta=1:02:03]`, `[step=75/739328]`, `[step=10/???,epoch=1]`.
fn header(text: &str) -> Option<i64> {
    let (step, rest) = number::integer(text.strip_prefix("[step=")?.strip_suffix(']')?)?;
    rest.starts_with('/').then_some(step)
}

/// `train/CE loss=2.345`, `train/CE loss=None`.
fn value(text: &str) -> Option<(&str, Option<Number<'_>>)> {
    let (key, value) = text.rsplit_once('=')?;
    let n = number::human(value).filter(|n| n.rest.trim().is_empty());
    if n.is_none() && !absent::WORDS.contains(&value.trim()) {
        return None;
    }
    (!key.is_empty() && !key.contains('=')).then_some((key, n))
}

fn of_step(key: &str, n: Number<'_>, e: &mut Event, out: &mut Out<'_>) {
    if let Some(part) = tags::part(key) {
        e.t.set(part, n.value);
        return;
    }
    match key {
        "throughput/device/BPS" | "throughput/device/batches_per_second" => {
            let quantum = n.quantum.filter(|q| n.value > 0.0 && *q < COARSE * n.value);
            if let Some(quantum) = quantum {
                out.number(e, metric::STEP_TIME, 1.0 / n.value, Some(quantum / (n.value * n.value)));
            }
        }
        "throughput/total tokens" | "throughput/total_tokens" => {
            out.number(e, "total_tokens", n.value, n.quantum);
        }
        "optim/step skipped" => {
            out.number(e, metric::SKIPPED, n.value, n.quantum);
        }
        "gpu_memory/GPU active mem (GiB)" => {
            out.number(e, "memory_gib", n.value, n.quantum);
        }
        _ => {
            // Every parameter group has its rate; the first one is taken.
            let tag = tags::canonical(key).filter(|(name, _)| e.m.get(name).is_none());
            let (name, divisor) = tag.unwrap_or((key, 1.0));
            out.number(e, name, n.value / divisor, n.quantum.map(|q| q / divisor));
        }
    }
}

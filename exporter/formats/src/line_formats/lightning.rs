//! PyTorch Lightning. Its bar, `Epoch 0:  12%|█▏ | 12/100 [00:03<00:25, 3.50it/s, v_num=0,
//! train_loss=2.34]`, or that of Rich, is read as any other (`generic.rs`), and is known by
//! `v_num`, the version of the logger.
//!
//! `ModelCheckpoint` prints a save only with `verbose=True` and a metric to watch: `Epoch 0, global
//! step 1563: 'val_loss' reached 0.49430 (best 0.49430), saving model to '/ckpt/a.ckpt' as top 3`,
//! before it saves. It ends when the bar moves on. What it prints when it loads one is always
//! there. Fabric prints none of all this.
//!
//! The bar counts batches, and the save counts steps of optimizers. Where the two differ, a save is
//! of the last batch that was drawn: the run has one count.

#[cfg(test)]
mod tests;

use stepwatch_wire::names::ckpt;
use stepwatch_wire::{CkptPhase, Event};

use super::generic::Generic;
use super::nemo::s3::Uploads;
use crate::format::{self, Format, Line, Out, Outcome};
use crate::number::{self, Resolution};
use crate::pause::{Evaluation, Saving};
use crate::{tags, tqdm};

/// The words before the path of a checkpoint that is loaded.
const LOADS: &str = "Restoring states from the checkpoint path at ";
const LOADED: [&str; 2] =
    ["Restored all states from the checkpoint at ", "Loaded model weights from the checkpoint at "];
/// The end of a training, unless a person or a callback ended it.
const STOPPED: &str = "`Trainer.fit` stopped: `max_";
/// Longer metrics of a bar are not compared with the next ones.
const MAX_SHOWN: usize = 2048;

#[derive(Debug, Default)]
pub(crate) struct Lightning {
    bars: Generic,
    /// Epoch and batch of the last drawing, and the metrics behind it.
    drawn: Option<(i64, i64)>,
    shown: String,
    /// Steps between the last two that were published.
    stride: i64,
    /// A line that Lightning alone prints was read: bars without `v_num` are its own, too.
    is_sure: bool,
    /// The run was evaluated since the last drawing of the bar of training.
    evaluated: bool,
    pause: Evaluation,
    saving: Saving,
    /// Those of NeMo 1.
    uploads: Uploads,
}

/// A drawing of a bar of training.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Drawing<'t> {
    epoch: i64,
    n: i64,
    /// The batches of an epoch, if they are known.
    total: Option<i64>,
    /// The metrics behind the bar; none of a bar of Rich.
    shown: Option<&'t str>,
}

/// A line of `ModelCheckpoint`.
#[derive(Debug, PartialEq)]
struct Monitored<'t> {
    /// A bar that it was printed behind.
    bar: &'t str,
    step: i64,
    /// Where the checkpoint is saved, if it is.
    path: Option<&'t str>,
}

impl Format for Lightning {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if let Some(found) = monitored(line.text) {
            return self.monitored(&found, line, out);
        }
        if let Some(drawing) = drawing(line.text) {
            return self.bar(&drawing, line, out);
        }
        let (text, last) = (line.text, self.bars.last_step());
        if let Some(event) = load(line) {
            self.is_sure = true;
            if event.ckpt == Some(CkptPhase::Start) {
                self.forget_pauses();
            }
            out.push(event);
            return Outcome::Matched;
        }
        if let Some(event) = self.upload(line) {
            out.push(event);
            return Outcome::Matched;
        }
        if self.is_sure && evaluates(text) {
            self.evaluated = last.is_some();
            self.pause.begin(last, line, out);
            return Outcome::Ignored;
        }
        if text.starts_with(STOPPED) && text.ends_with(" reached.") && self.is_sure && last.is_some() {
            self.end_pauses(line, out);
            out.push(line.done(last));
            return Outcome::Matched;
        }
        Outcome::Unmatched
    }

    fn resume(&mut self, last_step: i64) {
        self.bars.resume(last_step);
    }

    fn rest(&mut self, out: &mut Out<'_>) {
        self.bars.rest(out);
    }
}

impl Lightning {
    fn monitored(&mut self, found: &Monitored<'_>, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        self.is_sure = true;
        let before = out.len();
        if let Some(drawing) = drawing(found.bar) {
            self.bar(&drawing, &Line { text: found.bar, ..*line }, out);
        }
        if let Some((path, last)) = found.path.zip(self.bars.last_step()) {
            let step = counted(found.step, last, self.stride);
            let mut e = line.checkpoint(CkptPhase::Start, Some(step));
            format::at(&mut e, path);
            self.saving.seen(&e);
            out.push(e);
        }
        if out.len() > before { Outcome::Matched } else { Outcome::Ignored }
    }

    /// An upload of a run whose steps are read.
    fn upload(&mut self, line: &Line<'_>) -> Option<Event> {
        let (last, stride) = (self.bars.last_step().filter(|_| self.is_sure)?, self.stride);
        self.uploads.read(line, |step| counted(step, last, stride))
    }

    fn bar(&mut self, drawing: &Drawing<'_>, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        self.is_sure |= line.text.contains("v_num=") || line.text.contains("v_num: ");
        let place = (drawing.epoch, drawing.n);
        let goes_on = self.drawn.is_none_or(|had| place >= had);
        if drawing.n == 0 {
            // It is drawn anew for an epoch with the metrics of the last one, by a new process
            // without any. That of Rich begins at 0 with the new epoch.
            if drawing.shown.is_some_and(|shown| shown.contains('=')) || goes_on {
                self.end_pauses(line, out);
            } else {
                self.forget_pauses();
            }
            return if self.is_sure { Outcome::Ignored } else { Outcome::Unmatched };
        }
        if !goes_on {
            self.forget_pauses();
        } else if self.drawn == Some(place) {
            // A process that dies while it saves draws its bar once more.
            self.pause.end(self.bars.last_step(), line, out);
        } else {
            self.end_pauses(line, out);
        }
        if let Some(total) = drawing.total.filter(|_| self.drawn.is_none()) {
            self.bars.begins_after(drawing.epoch.saturating_mul(total));
        }
        let is_new = self.drawn.replace(place) != Some(place);
        let Some(shown) = drawing.shown else { return self.read(line, out) };
        // Before its first metrics, nothing is missing.
        let is_stale = shown.is_empty() || is_new && shown == self.shown;
        if core::mem::take(&mut self.evaluated) && goes_on {
            evaluation(shown, self.bars.last_step(), line, out);
        }
        self.shown = if shown.len() <= MAX_SHOWN { shown.to_owned() } else { String::new() };
        // A batch is counted before its metrics are there.
        if is_stale {
            return if self.is_sure { Outcome::Ignored } else { Outcome::Unmatched };
        }
        let trains = |field: &&str| !is_of_evaluation(field);
        let kept: Vec<&str> = shown.split(", ").filter(trains).collect();
        let text = line.text.replacen(shown, &kept.join(", "), 1);
        self.read(&Line { text: &text, ..*line }, out)
    }

    fn read(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if !self.is_sure {
            // Its epochs are counted, so that the steps go on if it turns out to be Lightning.
            let (mut unread, mut resolution) = (Vec::new(), Resolution::default());
            self.bars.line(line, &mut Out::new(&mut unread, &mut resolution, None));
            return Outcome::Unmatched;
        }
        let before = self.bars.last_step();
        let outcome = self.bars.line(line, out);
        let steps = self.bars.last_step().zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        if steps != 0 {
            self.stride = steps.max(0);
        }
        if outcome == Outcome::Unmatched { Outcome::Ignored } else { outcome }
    }

    /// The run trains again.
    fn end_pauses(&mut self, line: &Line<'_>, out: &mut Out<'_>) {
        self.pause.end(self.bars.last_step(), line, out);
        self.saving.step(i64::MAX, line, out);
    }

    /// The process that paused is gone: how long it was away is not how long it saves.
    fn forget_pauses(&mut self) {
        (self.pause, self.saving, self.evaluated) = (Evaluation::default(), Saving::default(), false);
        self.uploads.forget();
    }
}

/// The step of a checkpoint as the bar counts, which may be drawn `stride` steps late.
fn counted(step: i64, last: i64, stride: i64) -> i64 {
    let is_drawn_late = (last..=last.saturating_add(stride)).contains(&step);
    if is_drawn_late { step } else { last }
}

/// `Epoch 3:  12%|█▏ | 12/100 […]`, `Epoch 3/9 ━━━ 12/100 …`.
fn drawing(text: &str) -> Option<Drawing<'_>> {
    let (epoch, rest) = number::integer(text.strip_prefix("Epoch ")?)?;
    if let Some(bar) = tqdm::bar(text).filter(|_| rest.starts_with(':') && epoch >= 0) {
        let total = Some(bar.total).filter(|total| *total > 0);
        return Some(Drawing { epoch, n: bar.n, total, shown: Some(bar.postfix) });
    }
    // That of Rich is drawn with lines.
    let (_, counts) = rest.strip_prefix('/')?.rsplit_once(['━', '╸', '╺'])?;
    let (n, rest) = number::integer(counts)?;
    rest.starts_with('/').then_some(Drawing { epoch, n, total: None, shown: None })
}

/// Whether it is a bar of an evaluation.
fn evaluates(text: &str) -> bool {
    let bar = text.strip_prefix("Validation");
    bar.is_some_and(|rest| rest.starts_with(": ") || rest.starts_with(" DataLoader ") || rest.contains('━'))
}

/// Whether a metric of a bar is of the last evaluation: it is shown until the next one.
fn is_of_evaluation(field: &str) -> bool {
    field.starts_with("val_") || field.starts_with("val/")
}

/// The metrics of the evaluation that is over, as the bar shows them.
fn evaluation(shown: &str, step: Option<i64>, line: &Line<'_>, out: &mut Out<'_>) {
    let mut e = line.eval(step, "val");
    let fields = shown.split(", ").filter(|field| is_of_evaluation(field));
    for (key, value) in fields.filter_map(|field| field.split_once('=')) {
        let Some(key) = key.get("val_".len()..).filter(|key| !key.is_empty()) else { continue };
        let (name, divisor) = tags::canonical(key).unwrap_or((key, 1.0));
        out.metric(&mut e, name, value, divisor);
    }
    if !e.m.is_empty() {
        out.push(e);
    }
}

fn monitored(text: &str) -> Option<Monitored<'_>> {
    let (head, rest) = text.split_once(", global step ")?;
    let (bar, epoch) = head.rsplit_once("Epoch ")?;
    let (_, "") = number::integer(epoch)? else { return None };
    let (step, rest) = number::integer(rest)?;
    let rest = rest.strip_prefix(": ")?;
    let saved = rest.split_once(", saving model to ").and_then(|(_, path)| path.rsplit_once(" as top "));
    let path = saved.map(|(path, _)| path.trim_matches(['\'', '"']));
    (path.is_some() || rest.contains(" was not in top ")).then_some(Monitored { bar: bar.trim(), step, path })
}

/// Lightning begins to load a checkpoint, or has loaded it.
fn load(line: &Line<'_>) -> Option<Event> {
    let behind = |words: &str| line.text.split_once(words).map(|(_, path)| path.trim());
    let (phase, path) = match behind(LOADS) {
        Some(path) => (CkptPhase::Start, path),
        None => (CkptPhase::End, LOADED.into_iter().find_map(behind)?),
    };
    let mut e = line.stage(ckpt::LOAD, phase, None);
    format::at(&mut e, path);
    Some(e)
}

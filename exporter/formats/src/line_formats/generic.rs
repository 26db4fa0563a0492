//! Whatever else prints steps: any line with a step number and a number of training beside it.
//!
//! This is the last resort. It reads a line only if no framework's own grammar does, and
//! [`crate::LogReader`] believes it only when two lines with rising steps agree on what they carry.
//! `step` may be an iteration, an update or a batch, `12/100` or `[12/100]` behind it or alone, or
//! a progress bar with numbers behind it. Names are those of `tags.rs`, so that `gnorm`,
//! `grad-norm` and `train/grad_norm` are one; any other named number becomes a custom metric.
//! Seconds, ratios and counts come out, whichever of `ms`, `%` or `K` they were printed in.
//!
//! A step may also head lines of one number each, or a table (`blocks.rs`).
//!
//! A step that starts again with each epoch is counted on, as far as the lines contain epochs, or a
//! line of its own before them does (`Epoch 2/5`). One that is printed in thousands (LeRobot's
//! `step:12K`) is only about right: of several lines with the same one, the first counts, and
//! behind it those that have lost a number.

mod batches;
mod blocks;
mod epochs;
mod fields;
mod line_values;
mod settle;
mod shape;
#[cfg(test)]
mod tests;
mod values_first;

use core::cell::Cell;

use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

use crate::absent::Nothing;
use crate::format::{Format, Line, Out, Outcome};
use crate::own_loss::{OwnLoss, own_loss};
use crate::tokens::Tokens;
use crate::word_meaning::{self, Meaning};
use crate::{number, tqdm};
use blocks::Block;
use fields::{Field, Unit};
use line_values::{LineValues, MAX_STEP, Numbers};
use shape::{lacks_words, shape};

/// Longer lines are no steps.
const MAX_LINE: usize = 8 * 1024;
/// Characters that may separate two fields.
const SEPARATORS: [char; 6] = [' ', ',', ';', '|', '-', ':'];

#[derive(Debug, Default)]
pub(crate) struct Generic {
    /// Step and epoch of the last line, as it printed them.
    before: Option<Position>,
    /// Steps of the epochs before this one, if each starts at 0.
    offset: i64,
    /// The highest step published.
    last_step: Option<i64>,
    /// Total of the fractions that have no name.
    total: Option<i64>,
    own_loss: OwnLoss,
    tokens: Tokens,
    /// The last loss was no number.
    lost: bool,
    /// The last line that had a loss had a step without a name.
    nameless: bool,
    /// The last line that had a loss, without its digits.
    shape: String,
    /// The epoch of the last heading, for lines that name none.
    heading: Option<f64>,
    /// A step of 0 was printed.
    from_zero: bool,
    /// A record of several lines, and whether there was any.
    block: Option<Block>,
    has_blocks: bool,
}

#[derive(Debug, Clone, Copy)]
struct Position {
    step: i64,
    of: Option<i64>,
    epoch: Option<f64>,
}

impl Format for Generic {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let before = out.len();
        let outcome = self.block(line, out).unwrap_or_else(|| self.read(line, out));
        if outcome != Outcome::Unmatched || out.len() == before {
            return if out.len() > before { Outcome::Matched } else { outcome };
        }
        out.only_ends();
        Outcome::Matched
    }

    fn rest(&mut self, out: &mut Out<'_>) {
        let inner = Cell::new(None);
        let line = Line { text: "", raw: "", ts: None, utc_offset: 0.0, inner: &inner };
        self.go_on(&line, out);
    }

    fn resume(&mut self, last_step: i64) {
        // Read of the log before: how far it had counted on.
        if let Some(last) = self.last_step.filter(|last| *last < last_step) {
            if self.before.is_some_and(|b| b.epoch.is_some()) {
                self.offset += last_step - last;
            }
        }
        self.last_step = Some(last_step);
    }
}

impl Generic {
    /// The step that was published last.
    pub(crate) fn last_step(&self) -> Option<i64> {
        self.last_step
    }

    /// The log begins after so many steps of epochs that it does not show.
    pub(crate) fn begins_after(&mut self, steps: i64) {
        if self.before.is_none() {
            self.offset = steps.clamp(0, MAX_STEP);
        }
    }

    /// Reads a line by itself.
    fn read(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if line.text.len() > MAX_LINE || !line.text.bytes().any(|b| b.is_ascii_digit()) {
            return Outcome::Unmatched;
        }
        if let Some(epoch) = epochs::heading(line.text) {
            self.heading = Some(epoch);
            return Outcome::Unmatched;
        }
        let mut values = LineValues::default();
        let evaluates = if let Some(bar) = tqdm::bar(line.text).or_else(|| tqdm::endless(line.text)) {
            let total = Some(bar.total).filter(|t| *t > 0);
            let seen = |n: i64| self.before.is_some_and(|b| b.step == n && b.of == total);
            // Lightning draws it anew at 0, under the old epoch and then the new one.
            if bar.n == 0 && total.is_some_and(seen) {
                return Outcome::Ignored;
            }
            let again = seen(bar.n) || self.lost && seen(bar.n.saturating_add(1));
            // A bar is drawn with the loss of a step before it counts that step.
            let lost = again && !self.lost && loss_is_lost(&bar);
            if again && !lost {
                return Outcome::Ignored;
            }
            values.step = Some((0, bar.n.saturating_add(i64::from(lost)), total));
            values.bar = true;
            for text in [bar.description, bar.postfix, bar.rest] {
                values.read(fields::scan(text).unwrap_or_default().iter());
            }
            word_meaning::evaluates(bar.description)
        } else if let Some(batches) = batches::of(line.text) {
            let ts = batches.stamp.map(|stamp| line.unix(stamp));
            values.step = Some((0, batches.last, None));
            values.epoch = Some(batches.epoch as f64);
            values.read(fields::scan(batches.rest).unwrap_or_default().iter());
            values.settle_batches();
            return self.give(values, batches.evaluates, &Line { ts: line.ts.or(ts), ..*line }, out);
        } else {
            let (text, logged) = without_logger(line.text);
            let Some(mut fields) = fields::scan(text) else { return Outcome::Unmatched };
            if let Some(line) = values_first::scan(text) {
                (fields, values.nothings, values.values_first) = (line.fields, line.nothings, true);
            }
            values.read(fields.iter());
            self.alone(&fields, text, logged, &mut values);
            word_meaning::evaluates(text)
        };
        self.give(values, evaluates, line, out)
    }

    /// A step without a name: `[12/100]`, `12/100` at the start, `[2, 12000]` for epoch and step.
    fn alone(&mut self, fields: &[Field<'_>], text: &str, logged: bool, values: &mut LineValues) {
        let has_loss = values.train.iter().any(|(n, ..)| n == metric::LOSS);
        if values.step.is_some() {
            self.nameless &= !has_loss;
            return;
        }
        if let Some(step) = self.leading(fields, text, logged, values) {
            values.step = Some((0, step, None));
            return;
        }
        if let [first, second, ..] = fields {
            let pair = first.leads && first.name.is_empty() && second.name.is_empty();
            let pair = pair && second.unit == Unit::None;
            if let (true, None, None) = (pair, first.of, second.of) {
                if let Some(step) = number::whole(second.number.value) {
                    (values.epoch, values.step) = (Some(first.number.value), Some((0, step, None)));
                    return;
                }
            }
        }
        let counts = |f: &Field<'_>| f.of.is_some() && f.unit == Unit::None && (f.leads || is_headed(f));
        let fraction = fields.iter().position(counts);
        let found =
            fraction.and_then(|at| Some((at, number::whole(fields[at].number.value)?, fields[at].of?)));
        let Some((at, step, total)) = found else { return };
        values.epoch_before(&fields[..at], text);
        if *self.total.get_or_insert(total) == total && step <= total {
            values.step = Some((0, step, Some(total)));
        } else {
            self.total = None;
        }
    }

    /// `12: Loss 10.94 | Grad Norm 16.8`, `[12] loss 2.5, lr 0.1`, `[12 | 60.50] loss=2.5` with the
    /// seconds since the start; and where the lines before were such, one that goes on and lacks
    /// the loss.
    fn leading(
        &mut self,
        fields: &[Field<'_>],
        text: &str,
        logged: bool,
        values: &LineValues,
    ) -> Option<i64> {
        let first = fields.first()?;
        let ends = first.number.rest.trim_start().starts_with([':', ']', '|', ')']) || values.values_first;
        let counts = first.leads && first.name.is_empty() && first.of.is_none() && ends;
        let clock = usize::from(fields.get(1).is_some_and(|second| is_clock(text, first, second)));
        if !counts || first.unit != Unit::None || fields[1 + clock..].iter().any(|f| f.leads) {
            return None;
        }
        let step = number::whole(first.number.value)?;
        let has_loss = values.train.iter().any(|(n, ..)| n == metric::LOSS);
        let goes_on = !has_loss && self.nameless && self.before.is_some_and(|b| step > b.step);
        let own = |name: &str| self.own_loss.is(name);
        let nothings = if goes_on { word_meaning::nothings(text, own) } else { Vec::new() };
        let trains =
            values.norm.is_some() || values.train.iter().any(|(n, ..)| word_meaning::is_of_training(n));
        let named = fields.len() - clock + nothings.len();
        let enough = named >= if logged || clock > 0 { 2 } else { 3 };
        self.nameless |= has_loss && enough;
        let known = has_loss || goes_on && (trains || nothings.contains(&metric::LOSS) || self.is_cut(text));
        (enough && known).then_some(step)
    }

    /// Whether a line is as the last one with a loss was, but for what stood behind its number.
    fn is_cut(&self, text: &str) -> bool {
        let shape = shape(text);
        let behind = shape.split_once(SEPARATORS).map_or("", |(_, rest)| rest.trim_start_matches(SEPARATORS));
        !behind.is_empty() && self.shape.ends_with(behind)
    }

    fn give(
        &mut self,
        mut values: LineValues,
        evaluates: bool,
        line: &Line<'_>,
        out: &mut Out<'_>,
    ) -> Outcome {
        let Some((_, step, of)) = values.step.filter(|(_, step, _)| *step >= 0) else {
            return Outcome::Unmatched;
        };
        values.settle();
        values.epoch = values.epoch.or(self.heading);
        let now = Position { step, of, epoch: values.epoch };
        if !evaluates {
            self.own_loss.moves(self.offset_at(now, values.rounded).saturating_add(step));
        }
        let own = |name: &str| self.own_loss.is(name);
        let mut nothings = if evaluates { Vec::new() } else { word_meaning::nothings(line.text, own) };
        nothings.extend(values.nothings.drain(..).filter(|_| !evaluates));
        nothings.iter().for_each(|name| out.nothing(name, Nothing::Certain));
        let none = nothings.contains(&metric::LOSS);
        if evaluates {
            values.eval.append(&mut values.train);
        }
        let usual = values.has(metric::LOSS);
        if !usual && !none {
            values.own_loss_stands(&mut self.own_loss);
        }
        let loss = values.train.iter().find(|(name, ..)| name == metric::LOSS).map(|(_, value, _)| *value);
        let trains = none && (self.own_loss.is_known() || out.had_loss())
            || values.train.iter().any(|(name, ..)| word_meaning::is_of_training(name))
            || !evaluates && (values.has_lost(line, out) || self.lacks_loss(&values, now, line, out));
        if !trains && !values.eval.iter().any(|(name, ..)| word_meaning::is_of_training(name)) {
            let bare = values.train.is_empty() && values.eval.is_empty() && nothings.is_empty();
            return if bare && !evaluates { self.bare(&values, step, line, out) } else { Outcome::Unmatched };
        }
        let Some(step) = self.step_of(&values, now, evaluates, line, out) else { return Outcome::Ignored };
        if usual {
            self.own_loss.saw_usual();
        }
        if loss.is_some() && !evaluates && !values.bar {
            self.shape = shape(line.text);
        }
        if trains && !evaluates {
            self.lost = loss.is_some_and(|v| !v.is_finite());
        }
        let rank = values.rank;
        let push = |mut e: Event, numbers: Numbers, out: &mut Out<'_>| {
            e.rank = rank;
            for (name, value, quantum) in numbers {
                out.number(&mut e, &name, value, quantum);
            }
            out.push(e);
        };
        if trains {
            values.settle_tokens(step, &mut self.tokens);
            values.train.extend(values.epoch.map(|epoch| (metric::EPOCH.to_owned(), epoch, None)));
            push(line.step(step), values.train, out);
        }
        if !values.eval.is_empty() {
            push(line.eval(Some(step), values.eval_name.as_deref().unwrap_or("eval")), values.eval, out);
        }
        Outcome::Matched
    }

    /// The step that a line is published under; `None` where it is not.
    fn step_of(
        &mut self,
        values: &LineValues,
        now: Position,
        evaluates: bool,
        line: &Line<'_>,
        out: &Out<'_>,
    ) -> Option<i64> {
        if evaluates {
            let Some(before) = self.before else { return Some(now.step) };
            // The batches of an evaluation are counted from 0 again.
            return (now.step >= before.step).then(|| self.offset.saturating_add(now.step).min(MAX_STEP));
        }
        // The numbers of a step that was published stay as they are.
        let again = values.rounded && self.before.is_some_and(|b| b.step == now.step);
        if again && !values.is_lost(line, out) {
            return None;
        }
        Some(self.counted(now, values.rounded).saturating_add(i64::from(again)))
    }

    /// Whether a line of a single number, which may be of a schedule, is as the lines with a loss
    /// were but for the loss, and is the next.
    fn lacks_loss(&self, values: &LineValues, now: Position, line: &Line<'_>, out: &mut Out<'_>) -> bool {
        let alone = values.train.len() == 1 && values.eval.is_empty() && !values.bar;
        if !alone || !lacks_words(&self.shape, &shape(line.text)) {
            return false;
        }
        let step = self.offset_at(now, values.rounded).saturating_add(now.step);
        out.has_lost_alone(&Event { step: Some(step), ..values.event(line) })
    }

    /// A line that is as the others were, and ends where their numbers began: `step: 41`.
    fn bare(&mut self, values: &LineValues, step: i64, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        let same_epoch = self.before.is_some_and(|before| before.epoch == values.epoch);
        let shape = shape(line.text);
        let behind = self.shape.strip_prefix(shape.trim_end_matches(SEPARATORS));
        let cut = behind.is_some_and(|b| b.trim_start_matches(SEPARATORS).starts_with(char::is_alphabetic))
            && behind.is_some_and(|b| b.starts_with(SEPARATORS));
        if values.bar || !same_epoch || !cut {
            return Outcome::Unmatched;
        }
        let mut e = line.step(self.offset.saturating_add(step).min(MAX_STEP));
        e.rank = values.rank;
        if let Some(epoch) = values.epoch {
            e.m.set(metric::EPOCH, epoch);
        }
        out.bare(e)
    }
}

/// Whether the second number is the seconds since the start, in the brackets of the step: `[12 |
/// 60.50]`.
fn is_clock(text: &str, step: &Field<'_>, clock: &Field<'_>) -> bool {
    let between = step.number.rest.trim_start().strip_prefix('|').map(str::trim_start);
    let follows = between.is_some_and(|rest| rest.ends_with(clock.number.rest) && clock.leads);
    let parted = clock.number.quantum.is_some_and(|quantum| quantum < 1.0);
    text.starts_with('[') && follows && parted && clock.number.rest.trim_start().starts_with(']')
}

/// Whether a fraction stands behind the header that a trainer gives to the `MetricLogger` of MAE
/// and DINO: `Training  [  10/125000]  eta: 0:10:00`. `Test: ` and the like are no such word.
fn is_headed(f: &Field<'_>) -> bool {
    let trains = ["train", "training"].iter().any(|w| w.eq_ignore_ascii_case(f.name));
    let behind = f.number.rest.split_once(']').map_or("", |(_, behind)| behind.trim_start());
    let header = !f.assigned && matches!(word_meaning::meaning(f.name, false), Meaning::Custom(_));
    header && (trains || behind.starts_with("eta: "))
}

/// The text without what a logger puts before it, and whether there was any: a date that has no
/// year (`05/29 03:52:45 - `), or the prefix of absl and DINOv2
/// (`I0706 16:50:26.230209 140110937163584 train.py:12] `).
pub(crate) fn without_logger(text: &str) -> (&str, bool) {
    let digits = |from: usize, len: usize| {
        text.as_bytes().get(from..from + len).is_some_and(|b| b.iter().all(u8::is_ascii_digit))
    };
    let clock = |at: usize| {
        digits(at, 2) && digits(at + 3, 2) && digits(at + 6, 2) && text.get(at + 2..at + 3) == Some(":")
    };
    let dated = digits(1, 4) && (clock(6) || digits(5, 4) && clock(10));
    if text.starts_with(['I', 'W', 'E', 'F']) && dated {
        return text.split_once("] ").map_or((text, false), |(_, rest)| (rest, true));
    }
    let date = digits(0, 2) && digits(3, 2) && matches!(text.get(2..3), Some("/" | "-")) && clock(6);
    let rest = date.then(|| text.get(14..)).flatten();
    rest.map_or((text, false), |rest| {
        (rest.trim_start_matches(|c: char| c.is_ascii_digit() || " .,-|:".contains(c)), true)
    })
}

/// Whether a bar of training has a loss that is no number.
pub(crate) fn loss_is_lost(bar: &tqdm::Bar<'_>) -> bool {
    if word_meaning::evaluates(bar.description) {
        return false;
    }
    let lost = |f: &Field<'_>| {
        let loss = match word_meaning::meaning(f.name, f.assigned) {
            Meaning::Metric(name, _) => name == metric::LOSS,
            Meaning::Custom(name) => own_loss(&name).is_some(),
            _ => false,
        };
        loss && !f.number.value.is_finite()
    };
    [bar.description, bar.postfix, bar.rest].into_iter().filter_map(fields::scan).flatten().any(|f| lost(&f))
}

/// What a number is divided by for the unit that is printed behind it, if that is more specific
/// than its name.
pub(crate) fn unit_behind(rest: &str, name: &str) -> Option<f64> {
    let word =
        &rest[..rest.find(|c: char| !(c.is_alphabetic() || c == '%' || c == '/')).unwrap_or(rest.len())];
    match fields::unit(word)? {
        Unit::Time(by) | Unit::StepTime(by) => Some(by),
        Unit::Percent if name == metric::MFU_REPORTED => Some(100.0),
        _ => None,
    }
}

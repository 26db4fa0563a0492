//! Records of one number a line: `step: 100`, and then `loss: 3.5`, `gradient norm: 0.5`; or a
//! heading that names the step, and then a table of names and values.
//!
//! Nothing marks the end: such a record is published when something else is printed, or when the
//! log rests.

use super::Generic;
use super::fields::{self, Field, Unit};
use super::line_values::LineValues;
use crate::format::{Line, Out, Outcome};
use crate::word_meaning::{Meaning, meaning};
use crate::{absent, number, tags};
use stepwatch_wire::names::metric;

/// Longer lines are no part of a record.
const MAX_LINE: usize = 512;
/// Words in a heading, with those of a logger.
const MAX_WORDS: usize = 10;
/// Lines between a heading and its first number.
const MAX_BETWEEN: u8 = 4;
/// Numbers of a record.
const MAX_NUMBERS: usize = 128;
/// Parts of a name in a table that are of another model than the one that is trained.
const OTHER_MODELS: &[&str] = &["critic", "value", "ref", "reference", "reward", "teacher"];

/// What the words of an evaluation begin with.
const EVALUATIONS: &[&str] = &["eval", "valid", "test"];
/// What a heading has one of.
const COUNTERS: &[&str] = &["step", "Step", "iter", "Iter", "update", "Update", "STEP", "ITER"];

/// A record whose lines are being read.
#[derive(Debug)]
pub(super) struct Block {
    values: LineValues,
    ts: Option<f64>,
    /// Lines that may stand before its first number.
    between: u8,
    /// Lines that were read of it.
    lines: usize,
}

/// What a line is to the record before it.
enum Part {
    Numbers,
    /// It is blank but for the drawing of a table.
    Nothing,
    Other,
}

impl Generic {
    /// Reads a line as a part of a record; `None` of any other line, before which an open record is
    /// published.
    pub(super) fn block(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Option<Outcome> {
        if let Some(block) = &mut self.block {
            match block.add(line.text) {
                Part::Numbers => return Some(Outcome::Ignored),
                Part::Nothing => return None,
                Part::Other if block.lines == 0 && block.between > 1 && !names_evaluation(line.text) => {
                    block.between -= 1;
                }
                Part::Other => self.close(line, out),
            }
        }
        let values = heading(line.text)?;
        self.close(line, out);
        self.block = Some(Block { values, ts: line.ts, between: MAX_BETWEEN, lines: 0 });
        // Where records are so, a heading is no line from which the rest was left out.
        self.has_blocks.then_some(Outcome::Ignored)
    }

    /// Publishes the record that was being read.
    pub(super) fn close(&mut self, line: &Line<'_>, out: &mut Out<'_>) {
        let Some(block) = self.block.take().filter(|block| block.lines > 0) else { return };
        let line = Line { text: "", ts: block.ts.or(line.ts), ..*line };
        let published = self.give(block.values, false, &line, out) == Outcome::Matched;
        self.has_blocks |= published;
    }

    /// What comes after the log has rested is of the same step.
    pub(super) fn go_on(&mut self, step: &Line<'_>, out: &mut Out<'_>) {
        let Some(block) = &self.block else { return };
        let values = LineValues {
            step: block.values.step,
            epoch: block.values.epoch,
            rank: block.values.rank,
            ..LineValues::default()
        };
        let again = Block { values, ts: block.ts, between: block.between, lines: 0 };
        self.close(step, out);
        self.block = Some(again);
    }
}

impl Block {
    fn add(&mut self, text: &str) -> Part {
        if text.chars().all(is_drawn) {
            return Part::Nothing;
        }
        if text.len() > MAX_LINE || self.lines >= MAX_NUMBERS {
            return Part::Other;
        }
        let read = self.row(text) || self.entry(text);
        self.lines += usize::from(read);
        if read { Part::Numbers } else { Part::Other }
    }

    /// `loss: 3.5` and nothing else.
    fn entry(&mut self, text: &str) -> bool {
        if let Some((name, value)) = text.split_once([':', '=']) {
            if absent::WORDS.contains(&value.trim()) {
                return self.nothing(name.trim());
            }
        }
        let Some(fields) = fields::scan(text) else { return false };
        let [field] = &fields[..] else { return false };
        let ends = match field.unit {
            Unit::None => field.number.rest.trim().is_empty(),
            _ => field.number.rest.split_whitespace().count() <= 2,
        };
        let alone = !field.name.is_empty() && text.starts_with(field.name) && field.assigned && ends;
        let counts = matches!(meaning(field.name, true), Meaning::Step(_));
        if !alone || counts {
            return false;
        }
        self.values.read(fields.iter());
        true
    }

    /// `│ ppo_actor/loss/avg │ 0.1 │ ppo_actor/grad_norm │ 0.5 │`.
    fn row(&mut self, text: &str) -> bool {
        let edge = |c: char| matches!(c, '│' | '┃' | '║');
        let Some(inner) = text.strip_prefix(edge).and_then(|t| t.strip_suffix(edge)) else { return false };
        let cells: Vec<&str> = inner.split(edge).map(str::trim).collect();
        let pairs = || cells.chunks(2).filter(|pair| pair.iter().any(|cell| !cell.is_empty()));
        let fits = |pair: &[&str]| matches!(pair, [name, value] if is_key(name) && is_value(value));
        if pairs().next().is_none() || !pairs().all(fits) {
            return false;
        }
        for pair in pairs() {
            let [name, value] = pair else { continue };
            let name = of_model(name).unwrap_or(name);
            match number::lex(value) {
                Some(number) => {
                    let unit = Unit::None;
                    let field = Field { name, number, of: None, unit, assigned: true, leads: false };
                    self.values.read(core::iter::once(&field));
                }
                None => drop(self.nothing(name)),
            }
        }
        true
    }

    /// Notes a name without a value; whether it is one that is known.
    fn nothing(&mut self, name: &str) -> bool {
        let known = match meaning(name, true) {
            Meaning::Metric(name, _) => name,
            Meaning::Norm(_) => metric::GRAD_NORM,
            _ => return false,
        };
        self.values.nothings.push(known);
        true
    }
}

/// The step of a line that names it and nothing else: `step: 100`, `Epoch 1/10 Step 5/100 Train
/// step 5/1000 done.`
fn heading(text: &str) -> Option<LineValues> {
    let has = |words: &[&str]| words.iter().any(|word| number::find(text, word).is_some());
    let words = text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
    let fits = text.len() <= MAX_LINE && words.count() <= MAX_WORDS;
    if !fits || !has(COUNTERS) || has(&["loss", "Loss"]) || names_evaluation(text) {
        return None;
    }
    // `Train step 5/1000 done. Time consumption: 12.1` says more in another sentence.
    let text = text.split_once(". ").map_or(text, |(said, _)| said);
    let fields = fields::scan(text)?;
    let counts = |f: &Field<'_>| {
        matches!(meaning(f.name, f.assigned), Meaning::Step(_) | Meaning::Epoch | Meaning::Rank)
    };
    let mut values = LineValues::default();
    values.read(fields.iter().filter(|f| f.unit == Unit::None));
    let alone = fields.iter().all(counts) && !fields.iter().any(|f| f.name.contains("batch"));
    values.step.filter(|(quality, ..)| alone && *quality > 0)?;
    Some(values)
}

/// Whether any word of a line is of an evaluation.
fn names_evaluation(text: &str) -> bool {
    let begins = |word: &str, by: &str| word.get(..by.len()).is_some_and(|w| w.eq_ignore_ascii_case(by));
    let words = || text.split(|c: char| !c.is_alphabetic());
    words().any(|word| EVALUATIONS.iter().any(|by| begins(word, by)) || word.eq_ignore_ascii_case("dev"))
}

/// Whether a character is of the drawing of a table.
fn is_drawn(c: char) -> bool {
    ('\u{2500}'..='\u{257f}').contains(&c) || c.is_whitespace()
}

fn is_key(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_alphabetic()) && cell.len() <= 64 && !cell.contains("  ")
}

fn is_value(cell: &str) -> bool {
    let number = number::lex(cell).is_some_and(|n| n.rest.trim().is_empty());
    number || absent::WORDS.contains(&cell)
}

/// The last part of a path that is the gradient norm or the rate of the model that is trained:
/// `ppo_actor/update/grad_norm`.
fn of_model(name: &str) -> Option<&str> {
    let (path, last) = name.rsplit_once('/')?;
    let other = path.split(['/', '_']).any(|part| OTHER_MODELS.contains(&part));
    let (known, _) = tags::canonical(last)?;
    (!other && matches!(known, metric::GRAD_NORM | metric::LR)).then_some(last)
}

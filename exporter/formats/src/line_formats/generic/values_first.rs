//! Lines on which each value stands before its name: `Step 3/1000 - 4.90 loss - 0.30 grad norm`.

use stepwatch_wire::names::metric;

use super::fields::{self, Field, Unit};
use crate::absent;
use crate::number::{self, Number};
use crate::word_meaning::{Meaning, meaning};

/// What may stand between two values.
const SEPARATORS: &[&str] = &[" - ", ", ", "; ", "|", ": ", "] ", "\t"];

/// What such a line contains.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) fields: Vec<Field<'a>>,
    /// Names whose value is a word for nothing.
    pub(super) nothings: Vec<&'static str>,
}

/// A part of the line.
enum Part<'a> {
    Value(Number<'a>, &'a str),
    /// A name whose value is a word for nothing.
    Nothing(&'a str),
    Other(Vec<Field<'a>>),
}

/// The fields of such a line; `None` of any other. One of its values is the loss. A part that is
/// a number alone, or has none, may be half of a name and its value: `lr - 0.1 loss - 2.5`.
pub(super) fn scan(text: &str) -> Option<Line<'_>> {
    [" loss", " Loss"].iter().find_map(|word| number::find(text, word))?;
    let texts = parts(text);
    let mut line = Line { fields: Vec::new(), nothings: Vec::new() };
    let mut has_loss = false;
    for (at, text) in texts.iter().enumerate() {
        match part(text)? {
            Part::Value(number, name) => {
                has_loss |= known(name) == Some(metric::LOSS);
                let field = Field { name, number, of: None, unit: Unit::None, assigned: true, leads: false };
                line.fields.push(field);
            }
            Part::Nothing(name) => {
                has_loss |= known(name) == Some(metric::LOSS);
                line.nothings.extend(known(name));
            }
            Part::Other(fields) => {
                let is_number = number::lex(text).is_some_and(|n| n.rest.trim().is_empty());
                if fields.is_empty() || is_number && at > 0 {
                    return None;
                }
                line.fields.extend(fields.into_iter().map(|f| Field { leads: f.leads && at == 0, ..f }));
            }
        }
    }
    has_loss.then_some(line)
}

/// The parts of a line that are not blank.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = vec![text];
    for separator in SEPARATORS {
        parts = parts.into_iter().flat_map(|part| part.split(separator)).collect();
    }
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn part(text: &str) -> Option<Part<'_>> {
    if let Some(number) = number::lex(text) {
        let name = number.rest.strip_prefix(' ').map(str::trim_start);
        if let Some(name) = name.filter(|name| known(name).is_some()) {
            return Some(Part::Value(number, name));
        }
    }
    if let Some((_, name)) = text.split_once(' ').filter(|(word, _)| absent::is_nothing(word)) {
        if known(name).is_some() {
            return Some(Part::Nothing(name));
        }
    }
    fields::scan(text).map(Part::Other)
}

/// The metric of a name that has no number in it.
fn known(name: &str) -> Option<&'static str> {
    if name.bytes().any(|b| b.is_ascii_digit()) {
        return None;
    }
    match meaning(name, true) {
        Meaning::Metric(name, _) => Some(name),
        Meaning::Norm(_) => Some(metric::GRAD_NORM),
        _ => None,
    }
}

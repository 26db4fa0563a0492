//! An exception of any class whose message says that a loss or a gradient is no number.
//!
//! People name these exceptions and word them as they like: `Exception: loss is not a number`,
//! `DivergedError: train_loss at step 12 has become infinite`. So this reads the words: what it is
//! about, and what became of it, with nothing between them but when it happened.

use super::speaker::{Speech, raises};
use super::{CLOSING, EVALUATIONS, MAYBE, SKIPPING, What, has};

/// Between what it is about and what became of it.
const BETWEEN: &[&str] = &[
    "is",
    "are",
    "was",
    "were",
    "be",
    "became",
    "become",
    "becomes",
    "has",
    "have",
    "turned",
    "went",
    "got",
    "into",
    "to",
    "value",
    "values",
    "norm",
    "norms",
    "at",
    "in",
    "on",
    "of",
    "for",
    "the",
    "a",
    "step",
    "iteration",
    "iter",
    "update",
    "batch",
    "epoch",
    "rank",
    "contains",
    "contain",
    "equals",
    "now",
    "produced",
];
/// And in the other order: `infinite values in the training loss`.
const BEFORE: &[&str] = &[
    "value", "values", "in", "for", "of", "the", "or", "training", "train", "total", "detected", "found",
    "joint", "finite",
];
/// Words between the two.
const MAX_BETWEEN: usize = 8;

/// A word, and where it is.
#[derive(Debug, Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    end: usize,
}

/// What the line, in lower case, says to be lost.
pub(super) fn lost(speech: &Speech<'_>, lower: &str) -> Option<What> {
    let message = lower.get(speech.message..)?;
    // What is advised after it is no condition of it.
    let said = message.split([';', '.']).next().unwrap_or(message);
    if !raises(message) || has(said, MAYBE) || has(message, SKIPPING) {
        return None;
    }
    let words = words(message);
    (0..words.len()).find_map(|at| {
        let what = subject(&words, at)?;
        let (first, behind) = forwards(&words, at).or_else(|| backwards(&words, at))?;
        let trainers = speech.is_trainers(speech.message + words.get(first)?.end.saturating_sub(1));
        let ends = is_end(message, words.get(behind.checked_sub(1)?)?, words.get(behind));
        let evaluates = words.get(..first.min(at))?.iter().any(|w| EVALUATIONS.contains(&w.text));
        let what = if evaluates && what == What::Loss { What::Evaluation } else { what };
        (trainers && ends).then_some(what)
    })
}

fn words(message: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut at = 0;
    for part in message.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let text = part.trim_end_matches(|c: char| !c.is_alphanumeric());
        if !text.is_empty() {
            words.push(Word { text, end: at + text.len() });
        }
        at += part.len();
    }
    words
}

fn subject(words: &[Word<'_>], at: usize) -> Option<What> {
    match words.get(at)?.text {
        "loss" | "losses" => Some(What::Loss),
        "grad" | "grads" | "gradient" | "gradients" | "gnorm" => Some(What::Gradient),
        _ => None,
    }
}

/// How many words from `at` on say that something is no number.
fn predicate(words: &[Word<'_>], at: usize) -> Option<usize> {
    let word = |i: usize| words.get(at + i).map_or("", |w| w.text);
    let long = match (word(0), word(1), word(2)) {
        ("nan" | "nans" | "inf" | "infinite" | "infinity" | "nonfinite", ..) => 1,
        ("not" | "non", "finite", _) => 2,
        ("not", "a", "number") => 3,
        _ => return None,
    };
    let more = usize::from(words.get(at + long).is_some_and(|w| w.text == "or"));
    Some(long + predicate(words, at + long + more).map_or(0, |next| more + next))
}

/// Where the sentence begins and the word behind it: `loss at step 12 is nan`.
fn forwards(words: &[Word<'_>], at: usize) -> Option<(usize, usize)> {
    for i in (at + 1..words.len()).take(MAX_BETWEEN) {
        if let Some(long) = predicate(words, i) {
            return Some((at, i + long));
        }
        let text = words.get(i)?.text;
        if !BETWEEN.contains(&text) && !text.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
    }
    None
}

/// The same, in the other order: `infinite gradient norm`.
fn backwards(words: &[Word<'_>], at: usize) -> Option<(usize, usize)> {
    let norm = words.get(at + 1).is_some_and(|w| w.text == "norm" || w.text == "norms");
    for first in (0..at).rev().take(MAX_BETWEEN) {
        if predicate(words, first).is_some_and(|long| first + long <= at) {
            return Some((first, at + 1 + usize::from(norm)));
        }
        if !BEFORE.contains(&words.get(first)?.text) && predicate(words, first).is_none() {
            return None;
        }
    }
    None
}

/// Whether a sentence may end with a word: the next begins another, or says when it happened.
fn is_end(message: &str, last: &Word<'_>, next: Option<&Word<'_>>) -> bool {
    let behind = message.get(last.end..).unwrap_or("");
    let joined = behind.starts_with(['_', '-', '/']);
    let stops = behind.trim_start().starts_with(|c: char| !c.is_alphanumeric());
    !joined && (stops || next.is_none_or(|w| CLOSING.contains(&w.text)))
}

//! Texts over several lines that no quote holds together: what stands between two lines of dashes
//! behind a heading, in `<think>` and `</think>`, and what goes on below `Generated text: Once`.

use super::speaker::{TRACEBACK, is_labelled, message};
use crate::{clean, tqdm};

/// Lines that a text has at most whose end is marked: it may be cut off.
const MAX_MARKED: u16 = 512;
/// And one whose end nothing marks.
const MAX_UNMARKED: u16 = 64;
/// Tags of what a model thinks, besides those that are labels.
const THOUGHTS: &[&str] = &["think", "thinking", "scratchpad"];
/// Headings of a text between dashes, besides those that are labels.
const HEADINGS: &[&str] = &["generating", "sampling"];
/// The last word of a label of what a model has generated, as a rule before its number.
const GENERATED: &[&str] = &[
    "completion",
    "continuation",
    "generated",
    "generation",
    "hypothesis",
    "output",
    "prediction",
    "reply",
    "response",
    "rollout",
    "sample",
    "sequence",
    "text",
];
/// Words in such a label.
const MAX_WORDS: usize = 5;
/// Characters of a line that is only drawn.
const RULES: [char; 8] = ['-', '=', '*', '#', '_', '~', '\u{2500}', '\u{2501}'];

/// A text that goes on with the next line.
#[derive(Debug)]
pub(super) struct Passage {
    end: End,
    left: u16,
}

#[derive(Debug)]
enum End {
    /// A tag that closes it.
    Tag(String),
    /// A line of such characters.
    Rule(char),
    /// Whatever a model does not write: a bar, or a line of a logger.
    Unmarked,
}

impl Passage {
    fn new(end: End) -> Self {
        let left = if matches!(end, End::Unmarked) { MAX_UNMARKED } else { MAX_MARKED };
        Self { end, left }
    }

    /// Whether a line still belongs to it, and it goes on behind that line.
    pub(super) fn has(&mut self, text: &str) -> (bool, bool) {
        self.left = self.left.saturating_sub(1);
        let open = self.left > 0;
        match &self.end {
            End::Tag(tag) => (open, open && !text.contains(tag)),
            End::Rule(c) => (open, open && rule(text) != Some(*c)),
            End::Unmarked => {
                let bar = tqdm::bar(text).or_else(|| tqdm::endless(text)).is_some();
                let own = bar || clean::behind_logger(text).is_some();
                (open && !own, open && !own && rule(text).is_none())
            }
        }
    }

    /// The text that a line begins, of which `message` is what the trainer wrote. `headed`: the
    /// line before is a heading.
    pub(super) fn begins(message: &str, headed: bool) -> Option<Self> {
        let drawn = rule(message).filter(|_| headed).or_else(|| banner(message));
        let end = if let Some(c) = drawn {
            End::Rule(c)
        } else if let Some((_, tag)) = open_tag(message) {
            End::Tag(format!("</{tag}>"))
        } else if message.starts_with("<|") || goes_on(message) {
            End::Unmarked
        } else {
            return None;
        };
        Some(Self::new(end))
    }
}

/// Which of some lines a model wrote, as far as it is marked where its text ends: one that is cut
/// off is not known from what the trainer says last.
pub fn written_by_models(lines: &[&str]) -> Vec<bool> {
    let mut written = vec![false; lines.len()];
    let mut open: Option<(usize, Passage)> = None;
    let mut headed = false;
    for (at, text) in lines.iter().enumerate() {
        if message(text).starts_with(TRACEBACK) {
            open = None;
        }
        if let Some((from, mut passage)) = open.take() {
            let (has, goes_on) = passage.has(text);
            if goes_on {
                open = Some((from, passage));
            } else if passage.left > 0 {
                written[from..at + usize::from(has)].fill(true);
            }
            if has {
                continue;
            }
        }
        let message = message(text);
        open = Passage::begins(message, headed).map(|passage| (at, passage));
        headed = is_heading(message);
    }
    written
}

/// Whether a line is a heading of a text that may stand between dashes: `generating:`.
pub(super) fn is_heading(message: &str) -> bool {
    let Some(head) = message.trim_end().strip_suffix(':') else { return false };
    is_labelled(head) || HEADINGS.iter().any(|word| word.eq_ignore_ascii_case(head.trim()))
}

/// The tag of a text that a line opens and does not close, and where it is.
pub(super) fn open_tag(text: &str) -> Option<(usize, &str)> {
    let (at, _) = text.match_indices('<').next_back().filter(|(at, _)| !text[*at..].starts_with("</"))?;
    let (tag, _) = text[at + 1..].split_once('>')?;
    let word = !tag.is_empty() && tag.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    (word && (THOUGHTS.contains(&tag) || is_labelled(tag))).then_some((at, tag))
}

/// The character of which a line is drawn.
fn rule(text: &str) -> Option<char> {
    let text = text.trim();
    let c = text.chars().next().filter(|c| RULES.contains(c))?;
    (text.chars().count() >= 3 && text.chars().all(|other| other == c)).then_some(c)
}

/// The character round a heading: `=== Sample ===`.
fn banner(text: &str) -> Option<char> {
    let c = text.chars().next().filter(|c| RULES.contains(c))?;
    let inner = text.trim_matches(c);
    let framed = [text.trim_end_matches(c), text.trim_start_matches(c)];
    let framed = framed.iter().all(|cut| text.chars().count() >= cut.chars().count() + 3);
    (framed && is_labelled(inner)).then_some(c)
}

/// Whether a text begins behind its label, and may go on below: `Generated text (3): Once`, `rank 0
/// sample 0: Hello`.
fn goes_on(message: &str) -> bool {
    let Some((head, text)) = message.split_once(": ") else { return false };
    let words = head.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(str::to_ascii_lowercase).collect();
    // `sequence is: Once`.
    let last = words.iter().rfind(|word| *word != "is").map(|word| word.strip_suffix('s').unwrap_or(word));
    let labelled = words.len() <= MAX_WORDS && last.is_some_and(|word| GENERATED.contains(&word));
    labelled && !head.contains(['"', '\'', '=']) && text.trim_start().starts_with(char::is_alphabetic)
}

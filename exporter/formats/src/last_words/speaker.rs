//! Who says a line: the trainer, or a model whose samples the trainer prints.
//!
//! A model that is trained on logs writes their sentences, too. What it wrote stands in quotes,
//! also over several lines; behind a label such as `completion:`, and on the lines below it;
//! between tags or dashes (`passage.rs`); in a record, which quotes it; or as markup. The message
//! of a logger's record is the trainer's (`record.rs`). An exception is the trainer's own only at
//! the start of the line: whoever raised it put nothing before it but what launchers and loggers
//! do.

use super::passage::{self, Passage};
use super::record;
use crate::clean;
use crate::line_formats::generic;

/// Words in the label of a text that a model wrote or was given.
const TEXTS: &[&str] = &[
    "answer",
    "assistant",
    "caption",
    "chat",
    "chosen",
    "completion",
    "content",
    "continuation",
    "conversation",
    "decoded",
    "document",
    "example",
    "generated",
    "generation",
    "gold",
    "human",
    "hypothesis",
    "input",
    "instruction",
    "output",
    "pred",
    "predicted",
    "prediction",
    "prompt",
    "query",
    "question",
    "reasoning",
    "reference",
    "rejected",
    "reply",
    "response",
    "rollout",
    "sample",
    "solution",
    "summary",
    "target",
    "text",
    "thought",
    "trajectory",
    "transcript",
    "translation",
    "truth",
    "user",
];
/// What ends a label.
const LABELS: [char; 7] = [':', '=', '>', ']', '|', '\t', '→'];
/// What begins a line of markup: a quotation, a list, a heading, a tag.
const MARKUP: &[&str] = &[">", "- ", "* ", "• ", "# ", "## ", "### ", "<"];
/// Behind these a program quotes what it says itself: Megatron, and an assertion on the device.
const OWN: &[&str] = &["(message=", "Assertion "];
/// Begins and ends code, over several lines.
const FENCE: &str = "```";
/// A trainer's last lines begin so.
pub(super) const TRACEBACK: &str = "Traceback (most recent call last)";
/// Lines that one text has at most: a quote that is open for longer was none.
const MAX_QUOTED: u16 = 512;
/// Lines behind a label that has nothing beside it.
const LABELLED: u16 = 16;

/// The text over several lines that the log is within.
#[derive(Debug, Default)]
pub(super) struct Speaker {
    /// What ends it.
    close: Option<&'static str>,
    /// Lines that may be left of it.
    left: u16,
    /// The next tag ends it.
    tagged: bool,
    /// A text without quotes.
    passage: Option<Passage>,
    /// The line before is a heading of one.
    headed: bool,
}

/// A line, and which parts of it are not the trainer's.
#[derive(Debug)]
pub(super) struct Speech<'a> {
    pub(super) text: &'a str,
    /// Where the message begins, behind what launchers and loggers put there.
    pub(super) message: usize,
    quoted: Vec<core::ops::Range<usize>>,
    /// All of it is a model's.
    foreign: bool,
}

impl Speaker {
    /// The log reported a step, which no model did.
    pub(super) fn trains(&mut self) {
        *self = Self::default();
    }

    pub(super) fn hears<'a>(&mut self, text: &'a str) -> Speech<'a> {
        let logged = logged(text);
        // A model that is cut off closes nothing, and a trainer that dies makes no further step.
        if logged.starts_with(TRACEBACK) || self.tagged && tag(logged).is_some() {
            *self = Self::default();
        }
        if let Some(mut passage) = self.passage.take() {
            let (has, goes_on) = passage.has(text);
            self.passage = Some(passage).filter(|_| goes_on);
            if has {
                return Speech { text, message: 0, quoted: Vec::new(), foreign: true };
            }
        }
        let before = self.close.filter(|_| self.left > 1);
        let (mut quoted, open) = quotes(text, before);
        let mut message = text.len() - message(text).len();
        if before.is_none() && open.is_none() {
            message = unquote(text, message, &mut quoted).unwrap_or(message);
        }
        let labelled = self.left > 0 && self.close.is_none();
        self.left = self.left.saturating_sub(1);
        let foreign = labelled && self.left > 0 || is_markup(&text[message..]);
        self.close = None;
        if let Some(close) = open {
            (self.close, self.left) = (Some(close), if before.is_some() { self.left } else { MAX_QUOTED });
        } else if before.is_some() {
            self.left = 0;
        }
        let heads = text.trim_end().ends_with(LABELS);
        if self.close.is_none() && heads && quoted.is_empty() && is_of_text(&text[message..]) {
            self.left = LABELLED;
        } else if self.close.is_none() && tag(logged).is_some_and(is_labelled) {
            (self.left, self.tagged) = (MAX_QUOTED, true);
        }
        let headed = core::mem::replace(&mut self.headed, passage::is_heading(&text[message..]));
        if self.close.is_none() && quoted.is_empty() {
            self.passage = Passage::begins(&text[message..], headed);
            // It knows better where the text behind its label ends.
            self.left = if self.passage.is_some() && !self.tagged { 0 } else { self.left };
            quoted.extend(passage::open_tag(text).map(|(at, _)| at..text.len()));
        }
        Speech { text, message, quoted, foreign }
    }
}

impl Speech<'_> {
    /// Whether what begins at `at` is the trainer's.
    pub(super) fn is_trainers(&self, at: usize) -> bool {
        // Where the prefixes say it themselves, nothing stands before it.
        let head = self.text.get(self.message..at).unwrap_or("");
        let said = self.text.get(at..).and_then(|said| said.split_inclusive(' ').next()).unwrap_or("");
        let mentions = mentions_exception(head) || !head.is_empty() && mentions_exception(said);
        !self.foreign
            && self.quoted.iter().all(|quoted| !quoted.contains(&at))
            && (raises(head) || !is_of_text(head) && !mentions)
    }

    /// Whether a bar is the trainer's whose values begin at `at`.
    pub(super) fn is_bar_of_trainer(&self, at: usize, description: &str) -> bool {
        let quoted = self.quoted.iter().any(|quoted| quoted.contains(&at));
        !self.foreign && !quoted && !is_of_text(&format!("{description}:"))
    }
}

/// Whether a text begins with an exception: `RuntimeError: `, `ray.exceptions.RayTaskError(…): `.
pub(super) fn raises(message: &str) -> bool {
    let name = message.split([':', ' ', '(']).next().unwrap_or("");
    let rest = message.get(name.len()..).unwrap_or("");
    let class = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    let ends = rest.starts_with([':', '(']) || rest.trim().is_empty();
    ends && ["error", "exception"].iter().any(|kind| class.ends_with(kind))
}

/// Whether a text names an exception that was raised: `RuntimeError:`, and not a logger's level.
pub(super) fn mentions_exception(text: &str) -> bool {
    text.split_whitespace().filter_map(|w| w.strip_suffix(':')).any(|w| {
        let w = w.to_ascii_lowercase();
        let error = w.strip_suffix("error").is_some_and(|kind| kind.ends_with(|c: char| c.is_alphabetic()));
        error || w.ends_with("exception")
    })
}

/// The text behind what launchers and loggers put before it.
fn logged(text: &str) -> &str {
    // MLRun puts `> ` before the time.
    let is_time = |text: &&str| text.starts_with(|c: char| c.is_ascii_digit()) && text.get(4..5) == Some("-");
    let text = text.strip_prefix("> ").filter(is_time).unwrap_or(text);
    let Some(inner) = clean::behind_logger(text) else { return generic::without_logger(text).0 };
    // The last word of a name says what it is: `sample_trainer`, and not `generated_text`.
    let speaks = |name: &str| !is_labelled(name.rsplit(['_', '.']).next().unwrap_or(name));
    let module = clean::behind_module(inner.text).filter(|(name, _)| speaks(name));
    generic::without_logger(module.map_or(inner.text, |(_, message)| message)).0
}

/// The same, and behind words in brackets.
pub(super) fn message(text: &str) -> &str {
    let mut text = logged(text);
    while let Some((inner, rest)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        if inner.len() > 80 || is_of_text(inner) || is_labelled(inner) || rest.trim().is_empty() {
            break;
        }
        text = rest.trim_start_matches([' ', ':']);
    }
    text
}

/// What verl puts before each part of a sample, where a line begins with it: `[response] `,
/// `[score] `. A text goes on until the next.
fn tag(text: &str) -> Option<&str> {
    let (word, _) = text.strip_prefix('[')?.split_once("] ")?;
    word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_').then_some(word)
}

/// Whether a line begins like one of a marked-up text.
fn is_markup(text: &str) -> bool {
    MARKUP.iter().any(|m| text.starts_with(m))
}

/// Whether a label in front of something is that of a model's text.
fn is_of_text(head: &str) -> bool {
    head.rfind(LABELS).and_then(|end| head.get(..end)).is_some_and(is_labelled)
}

pub(super) fn is_labelled(label: &str) -> bool {
    let places = |word: &str| word.contains(".py") || word.contains('/') && word.contains('.');
    let words = label.split([' ', ':', ',', ';', '(', ')', '[']).filter(|word| !places(word));
    words.flat_map(|word| word.split(|c: char| !c.is_alphabetic())).any(|word| {
        let word = word.to_ascii_lowercase();
        TEXTS.contains(&word.as_str()) || word.strip_suffix('s').is_some_and(|one| TEXTS.contains(&one))
    })
}

/// Takes the message of a logger's record out of what is quoted, and says where it begins. What
/// stands in quotes in it stays quoted.
fn unquote(text: &str, from: usize, quoted: &mut Vec<core::ops::Range<usize>>) -> Option<usize> {
    let part = quoted.remove(record::message(text, from, quoted)?);
    let said = text.get(part.start..part.end.saturating_sub(1))?;
    // As long as it was: places in the text stay what they are.
    let (within, _) = quotes(&said.replace("\\\"", " \""), None);
    quoted.extend(within.iter().map(|q| part.start + q.start..part.start + q.end));
    Some(part.start + said.len() - message(said).len())
}

/// The parts of a line that stand in quotes, of which the first may have begun on a line before,
/// and what closes the last if it goes on.
fn quotes(text: &str, before: Option<&'static str>) -> (Vec<core::ops::Range<usize>>, Option<&'static str>) {
    let mut quoted = Vec::new();
    let mut at = 0;
    if let Some(close) = before {
        let end = closing(text, 0, close);
        quoted.push(0..end.unwrap_or(text.len()));
        let Some(end) = end else { return (quoted, before) };
        at = end;
    }
    while let Some(from) = text[at..].find(['"', '\'', '`', '\u{201c}', '\u{ab}']).map(|i| at + i) {
        let (rest, head) = (&text[from..], &text[..from]);
        let first = rest.chars().next().map_or(1, char::len_utf8);
        let (open, close, goes_on) = match rest {
            _ if rest.starts_with(FENCE) => (FENCE.len(), FENCE, true),
            _ if rest.starts_with("\"\"\"") => (3, "\"\"\"", true),
            _ if rest.starts_with("'''") => (3, "'''", true),
            _ if rest.starts_with('"') => (1, "\"", true),
            _ if rest.starts_with('\'') => (1, "'", false),
            _ if rest.starts_with('`') => (1, "`", false),
            _ if rest.starts_with('\u{201c}') => (first, "\u{201d}", true),
            _ => (first, "\u{bb}", true),
        };
        // `don't`, `5"`: they do not begin anything.
        let none = open == 1 && head.ends_with(char::is_alphanumeric);
        if none || OWN.iter().any(|own| head.ends_with(own)) {
            at = from + open;
            continue;
        }
        match closing(text, from + open, close) {
            Some(end) => {
                quoted.push(from + open..end);
                at = end;
            }
            None if goes_on => {
                quoted.push(from + open..text.len());
                return (quoted, Some(close));
            }
            None => at = from + open,
        }
    }
    (quoted, None)
}

/// Where a quote ends that began before `from`.
fn closing(text: &str, from: usize, close: &str) -> Option<usize> {
    let mut at = from;
    while let Some(end) = text.get(at..)?.find(close).map(|i| at + i) {
        let escapes = text[from..end].bytes().rev().take_while(|b| *b == b'\\').count();
        let behind = end + close.len();
        // `isn't` goes on.
        let goes_on = close == "'" && text[behind..].starts_with(char::is_alphanumeric);
        if escapes % 2 == 0 && !goes_on {
            return Some(behind);
        }
        at = behind;
    }
    None
}

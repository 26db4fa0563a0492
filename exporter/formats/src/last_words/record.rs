//! What a logger says in a record: in JSON, as a dict of Python, or in logfmt.
//!
//! The record quotes its message, which is the trainer's word all the same. A record of samples
//! has a field of that name too, beside the role or the text of a model.

use core::ops::Range;

use super::speaker::is_labelled;

/// Fields that hold what a logger was told.
const MESSAGES: &[&str] = &["msg", "message", "event", "log"];
/// Fields that only a logger writes.
const LEVELS: &[&str] = &["level", "lvl", "levelname", "log_level", "loglevel", "severity"];
/// A field of a conversation that [`is_labelled`] does not know.
const ROLE: &str = "role";

/// Which of the quoted parts of a text is the message of a logger; the record begins at `from`.
pub(super) fn message(text: &str, from: usize, quoted: &[Range<usize>]) -> Option<usize> {
    let record = text.get(from..)?;
    let braces = record.starts_with('{');
    quoted.iter().position(|part| {
        let at = part.start.saturating_sub(1);
        let own = if braces { is_value(text, from, at, quoted) } else { is_logfmt(text, from, at, quoted) };
        own && is_loggers(text, part, quoted)
    })
}

/// Whether the quote at `at` opens the message of a record in braces, and not of one inside it.
fn is_value(text: &str, from: usize, at: usize, quoted: &[Range<usize>]) -> bool {
    let bare = bare(text, from..at, quoted);
    let count = |open: &[char]| bare.matches(open).count();
    let outside = count(&['{', '[']).checked_sub(count(&['}', ']'])) == Some(1);
    let key = quoted.iter().rfind(|key| key.end <= at).filter(|key| is_colon(text, key.end..at));
    outside && key.is_some_and(|key| MESSAGES.contains(&inner(text, key)))
}

/// Whether the quote at `at` opens the message of `time=… level=error msg="…"`.
fn is_logfmt(text: &str, from: usize, at: usize, quoted: &[Range<usize>]) -> bool {
    let bare = bare(text, from..at, quoted);
    let key = bare.strip_suffix('=').and_then(|head| head.split_whitespace().next_back());
    key.is_some_and(|key| MESSAGES.contains(&key)) && bare.split_whitespace().all(|pair| pair.contains('='))
}

/// Whether nothing else in the record says that it holds what a model wrote.
fn is_loggers(text: &str, part: &Range<usize>, quoted: &[Range<usize>]) -> bool {
    let level = |key: &Range<usize>| {
        LEVELS.contains(&inner(text, key)) && text[key.end..].trim_start().starts_with(':')
    };
    let pair = |word: &str| word.split_once('=').is_some_and(|(key, _)| LEVELS.contains(&key));
    let around = [&text[..part.start], &text[part.end..]];
    let foreign = |text: &&str| {
        is_labelled(text) || text.split(|c: char| !c.is_alphanumeric()).any(|word| word == ROLE)
    };
    quoted.iter().any(level) || around[0].split_whitespace().any(pair) || !around.iter().any(foreign)
}

/// What of a text is not in quotes.
fn bare(text: &str, of: Range<usize>, quoted: &[Range<usize>]) -> String {
    let (mut bare, mut at) = (String::new(), of.start);
    for part in quoted.iter().filter(|part| part.start >= of.start && part.end <= of.end) {
        bare.push_str(text.get(at..part.start).unwrap_or(""));
        at = part.end;
    }
    bare.push_str(text.get(at..of.end).unwrap_or(""));
    bare
}

/// A quoted part without the quote that closes it.
fn inner<'a>(text: &'a str, part: &Range<usize>) -> &'a str {
    text.get(part.start..part.end.saturating_sub(1)).unwrap_or("")
}

fn is_colon(text: &str, between: Range<usize>) -> bool {
    text.get(between).is_some_and(|between| between.trim() == ":")
}

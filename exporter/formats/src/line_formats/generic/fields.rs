//! Named numbers in a line of text, whatever separates them.
//!
//! A field is a number with the words directly before it. Between the two may be blanks and any of
//! `: = | , [ ( ' "`; a number that is part of something else (a clock, a date, a version, an
//! address, a path) is none.

#[cfg(test)]
mod tests;

use crate::absent;
use crate::number::{self, Number};

/// Fields of one line; the rest is not looked at.
const MAX_FIELDS: usize = 64;
/// Words that belong to no number, after which a line is a text.
const MAX_LOOSE_WORDS: u32 = 16;
/// Words of sentences about steps and losses.
const PROSE: &[&str] = &[
    "the",
    "was",
    "were",
    "because",
    "than",
    "which",
    "that",
    "should",
    "expected",
    "resumed",
    "resuming",
    "restored",
    "restoring",
    "loaded",
    "restarting",
    "traceback",
    "raised",
    "exception",
];
/// Words that, at the start of a line, mean that what follows is about something else than the step
/// that was just done.
const ASIDES: &[&str] = &[
    "saved",
    "saving",
    "checkpoint",
    "best",
    "finished",
    "done",
    "loading",
    "downloading",
    "downloaded",
    "uploading",
];
/// Counters that are printed without anything between the name and the number: `step12`, `iter_12`.
const GLUED: &[&str] = &["step", "iter", "iteration", "it", "update", "batch", "epoch"];
/// Calls that Python prints round a number.
const WRAPPERS: &[&str] =
    &["tensor", "array", "Array", "float", "np.float16", "np.float32", "np.float64", "numpy.float32"];
/// Characters that may separate a name from its number.
const BETWEEN: &str = " \t:=|,[('\"-";
/// Characters that bars of Rich are drawn with.
const BARS: [char; 3] = ['━', '╸', '╺'];

#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'a> {
    /// The words before the number, unchanged; empty of a number without a name.
    pub(super) name: &'a str,
    pub(super) number: Number<'a>,
    /// What the number was written with: `12/100` is 12 of 100.
    pub(super) of: Option<i64>,
    pub(super) unit: Unit,
    /// A `:` or `=` separates the name from the number.
    pub(super) assigned: bool,
    /// Nothing but a bracket precedes it.
    pub(super) leads: bool,
}

/// What follows a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Unit {
    None,
    Percent,
    /// So many of it are a second.
    Time(f64),
    /// Time of one step.
    StepTime(f64),
    /// The number is in so many.
    Scale(f64),
    TokensPerSecond(f64),
    /// Trillions of operations per second.
    Teras(f64),
    /// A percentage of the peak.
    Mfu,
    /// Of something that is taken as it is printed: memory, power, a rate.
    Other,
}

/// The fields of a line; `None` of a text.
pub(super) fn scan(text: &str) -> Option<Vec<Field<'_>>> {
    let mut s = Scanner { text, at: 0, name: None, from: 0, words: 0, loose: 0, fields: Vec::new() };
    while let Some(c) = s.rest().chars().next().filter(|_| s.fields.len() < MAX_FIELDS) {
        if s.number() {
            continue;
        }
        if c.is_alphabetic() || c == '_' {
            s.word()?;
        } else if let Some(len) = s.entry() {
            s.at += len;
            s.from = s.at;
        } else {
            s.at += c.len_utf8();
        }
    }
    (s.loose <= MAX_LOOSE_WORDS).then_some(s.fields)
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// Span of the words that may be the name of the next number.
    name: Option<(usize, usize)>,
    /// Where the separators behind the name begin.
    from: usize,
    words: u32,
    loose: u32,
    fields: Vec<Field<'a>>,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn before(&self) -> Option<char> {
        self.text[..self.at].chars().next_back()
    }

    /// Up to the value of a dict with one entry, of which the number is what the dict is called:
    /// `grad_norm={'0_default': 1.5}`.
    fn entry(&self) -> Option<usize> {
        let (key, rest) = self.rest().strip_prefix("{'")?.split_once("': ")?;
        let (value, _) = rest.split_once('}')?;
        let alone = !key.contains(['\'', '{', '}']) && !value.contains([',', '{']);
        let named = self.name.is_some() && self.text[self.from..self.at].trim() == "=";
        (alone && named).then(|| "{'".len() + key.len() + "': ".len())
    }

    /// Steps over a word; `None` if it shows that the line is a text.
    fn word(&mut self) -> Option<()> {
        let rest = self.rest();
        let mut len = run(rest, |c| c.is_alphanumeric() || "_/-.@#%".contains(c));
        len = rest[..len].trim_end_matches(['/', '-', '.']).len().max(1);
        let word = &rest[..len];
        let is = |list: &[&str]| list.iter().any(|w| w.eq_ignore_ascii_case(word));
        if is(PROSE) || self.words == 0 && is(ASIDES) {
            return None;
        }
        if WRAPPERS.contains(&word) && rest[len..].starts_with('(') && self.name.is_some() {
            self.at += len + 1;
            self.from = self.at;
            return Some(());
        }
        if self.name.is_some() && absent::WORDS.contains(&word) {
            self.at += len;
            self.name = None; // it has no number
            return Some(());
        }
        if self.before().is_some_and(|c| "?&".contains(c)) {
            self.at += len;
            self.name = None; // of an address
            return Some(());
        }
        if word == "is" && self.is_told(&rest[len..]) {
            (self.at, self.from) = (self.at + len, self.at + len);
            return Some(());
        }
        self.words += 1;
        let start = self.at;
        let counter = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let name = counter.trim_end_matches(['_', '-']);
        if counter.len() < len && GLUED.iter().any(|g| g.eq_ignore_ascii_case(name)) {
            self.at += counter.len();
            (self.name, self.from) = (Some((start, start + name.len())), self.at);
            self.count();
            return Some(());
        }
        self.at += len + attached(&rest[len..]);
        match self.name {
            Some((first, end)) if self.text.get(end..start) == Some(" ") => {
                self.name = Some((first, self.at))
            }
            dropped => {
                self.loose += u32::from(dropped.is_some());
                self.name = Some((start, self.at));
            }
        }
        self.at += abbreviation(self.rest());
        self.from = self.at;
        Some(())
    }

    /// Whether the name before an `is` has its number behind it, and the step before it: `epoch: 1
    /// step: 60, loss is 2.3`. Elsewhere it is of a sentence.
    fn is_told(&self, behind: &str) -> bool {
        let named = self.name.filter(|(start, _)| self.text[..*start].trim_end().ends_with(','));
        named.is_some() && !self.fields.is_empty() && number::lex(behind).is_some()
    }

    /// Steps over what begins with a digit or a sign, and keeps it if it is a number by itself.
    fn number(&mut self) -> bool {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return false };
        let word = first.is_alphabetic();
        let signed = matches!(first, '-' | '+' | '.');
        let apart = self.before().is_none_or(|c| c.is_whitespace() || ":=([,|'\"{;".contains(c));
        if !(first.is_ascii_digit() || signed && apart || word && self.name.is_some()) {
            return false;
        }
        let Some(n) = number::lex(rest) else { return false };
        if word && n.rest.starts_with(|c: char| c.is_alphanumeric() || "_-/.".contains(c)) {
            return false;
        }
        if self.before().is_some_and(|c| "/\\#@$~.".contains(c) || c.is_alphanumeric()) {
            self.name = None;
            self.take(n);
        } else {
            self.keep(n);
        }
        true
    }

    /// The number of a counter that is glued to its name.
    fn count(&mut self) {
        if let Some(n) = number::lex(self.rest()) {
            self.keep(n);
        }
    }

    /// Steps over a number and keeps it, unless it is part of something else.
    fn keep(&mut self, n: Number<'a>) {
        let (start, name) = (self.at, self.name.take());
        let place = name.is_some_and(|(from, to)| self.is_place(from, to, start, n.rest));
        if let Some((of, unit)) = self.take(n).filter(|_| !place) {
            let gap = self.text.get(self.from..start).unwrap_or("");
            let name = name.filter(|_| gap.chars().all(|c| BETWEEN.contains(c)));
            self.fields.push(Field {
                name: name.map_or("", |(from, to)| &self.text[from..to]),
                number: n,
                of,
                unit,
                assigned: gap.contains([':', '=']),
                leads: name.is_none() && self.leads(start),
            });
        }
    }

    /// Whether a number is the line of the code that spoke: `__main__:train:41 - `, as loguru
    /// begins its lines.
    fn is_place(&self, from: usize, to: usize, start: usize, behind: &str) -> bool {
        let module = self.text[..from].strip_suffix(':');
        behind.starts_with(" - ")
            && self.text.get(to..start) == Some(":")
            && module.is_some_and(|m| m.ends_with(|c: char| c.is_alphabetic() || c == '_'))
    }

    fn leads(&self, start: usize) -> bool {
        let before = self.text[..start].trim_end();
        before.is_empty() || before.ends_with(['[', '(', '|']) || before.ends_with(BARS)
    }

    /// Moves behind a number, its total and its unit; `None` if it is part of something else, all
    /// of which is passed.
    fn take(&mut self, n: Number<'a>) -> Option<(Option<i64>, Unit)> {
        self.at = self.text.len() - n.rest.len();
        let digit = |s: &str| s.starts_with(|c: char| c.is_ascii_digit());
        let mut of = None;
        let total = n.rest.trim_start_matches(' ').strip_prefix('/').map(str::trim_start);
        if let Some(total) = total.filter(|t| digit(t)) {
            let (total, rest) = number::integer(total)?;
            (of, self.at) = (Some(total), self.text.len() - rest.len());
        }
        let rest = self.rest();
        // `2,15` may be a fraction or two numbers: it is ambiguous.
        let comma = of.is_none() && rest.strip_prefix(',').is_some_and(digit);
        let part = comma
            || rest.strip_prefix([':', '-', '/', '.', '_']).is_some_and(digit)
            || rest.strip_prefix('.').is_some_and(|r| r.starts_with(char::is_alphanumeric))
            || rest.starts_with(['_', '@', '\\']);
        if part {
            self.at += run(rest, |c| c.is_alphanumeric() || ":-/._+@".contains(c));
            return None;
        }
        let len = run(rest, |c| c.is_alphanumeric() || c == '%' || c == '/');
        self.at += len;
        let unit = if len > 0 { unit(&rest[..len])? } else { Unit::None };
        let unit = if len == 0 || unit == Unit::Percent { self.unit_word(unit) } else { unit };
        self.skip_aside();
        Some((of, unit))
    }

    /// A unit as a word of its own, unless it is the name of a number that follows: `12 ms`, but
    /// not the `ms` of `step 12 ms 5.0`.
    fn unit_word(&mut self, attached: Unit) -> Unit {
        let rest = self.rest();
        if attached == Unit::Percent {
            let mfu = rest.split([',', '|', ';', ':', '=']).next().unwrap_or("");
            if mfu.len() < 24 && mfu.trim_end().to_ascii_lowercase().ends_with("mfu") {
                self.at += mfu.len();
                return Unit::Mfu;
            }
            return attached;
        }
        let Some(word) = rest.strip_prefix(' ').map(|r| &r[..run(r, |c| c.is_alphabetic() || c == '/')])
        else {
            return attached;
        };
        let behind = rest[1 + word.len()..].trim_start_matches([' ', ':', '=']);
        match unit(word) {
            Some(unit) if (word.len() > 1 || word == "s") && number::lex(behind).is_none() => {
                self.at += 1 + word.len();
                unit
            }
            _ => attached,
        }
    }

    /// Steps over a mean or a change in parentheses behind a number.
    fn skip_aside(&mut self) {
        let rest = self.rest();
        let Some(inner) = rest.trim_start_matches(' ').strip_prefix('(') else { return };
        let aside = inner.starts_with(|c: char| c.is_ascii_digit() || "+-.±".contains(c))
            || ["avg", "mean", "max", "min", "std", "med"].iter().any(|w| inner.starts_with(w));
        if let Some(end) = inner.find(')').filter(|end| aside && *end < 48) {
            self.at = self.text.len() - inner.len() + end + 1;
        }
    }
}

/// The longest short form of a name.
const MAX_ABBREVIATION: usize = 6;
/// The longest unit in parentheses, `tokens/gpu/second`.
const MAX_UNIT: usize = 17;

/// Length of a unit in parentheses that belongs to a name: `mfu(%)`, `time (ms)`.
fn attached(rest: &str) -> usize {
    let spaces = run(rest, |c| c == ' ').min(1);
    let Some(inner) = rest[spaces..].strip_prefix('(') else { return 0 };
    let end = run(inner, |c| c.is_alphabetic() || c == '/' || c == '%');
    let fits =
        (1..=MAX_UNIT).contains(&end) && inner[end..].starts_with(')') && unit(&inner[..end]).is_some();
    if fits { spaces + end + 2 } else { 0 }
}

/// Length of the short form of a name in parentheses behind it: `Cross Entropy Loss (NLL)`.
fn abbreviation(rest: &str) -> usize {
    let Some(inner) = rest.strip_prefix(" (") else { return 0 };
    let end = run(inner, |c| c.is_ascii_uppercase());
    let fits = (2..=MAX_ABBREVIATION).contains(&end) && inner[end..].starts_with("):");
    if fits { end + " ()".len() } else { 0 }
}

/// Bytes of the characters at the start of `text` that are of a kind.
fn run(text: &str, of: impl Fn(char) -> bool) -> usize {
    text.find(|c| !of(c)).unwrap_or(text.len())
}

/// The meaning of a unit; `None` of letters that are none, so that `3rd` and `0x1f` are no numbers.
pub(super) fn unit(word: &str) -> Option<Unit> {
    Some(match word {
        "%" => Unit::Percent,
        "s" | "sec" | "secs" | "second" | "seconds" => Unit::Time(1.0),
        "ms" | "msec" | "millis" => Unit::Time(1e3),
        "us" | "µs" | "usec" => Unit::Time(1e6),
        "ns" => Unit::Time(1e9),
        "min" | "mins" | "minutes" => Unit::Time(1.0 / 60.0),
        "h" | "hours" => Unit::Time(1.0 / 3600.0),
        "s/it" | "s/iter" | "s/step" | "s/batch" | "sec/it" | "sec/iter" | "sec/step" | "sec/batch" => {
            Unit::StepTime(1.0)
        }
        "ms/it" | "ms/iter" | "ms/step" | "ms/batch" => Unit::StepTime(1e3),
        "k" | "K" => Unit::Scale(1e3),
        "M" => Unit::Scale(1e6),
        "B" | "G" => Unit::Scale(1e9),
        "T" => Unit::Scale(1e12),
        "tok/s" | "toks/s" | "tokens/s" | "tok/sec" | "toks/sec" | "tokens/sec" => Unit::TokensPerSecond(1.0),
        "ktok/s" | "Ktok/s" | "ktokens/s" | "Ktokens/s" => Unit::TokensPerSecond(1e3),
        "Mtok/s" | "Mtokens/s" => Unit::TokensPerSecond(1e6),
        "TFLOPS" | "TFLOPs" | "TFLOP/s" | "TFLOPs/s" | "tflops" | "TFlops" => Unit::Teras(1.0),
        "PFLOPS" | "PFLOPs" | "PFLOP/s" => Unit::Teras(1e3),
        "GFLOPS" | "GFLOPs" | "GFLOP/s" => Unit::Teras(1e-3),
        "B/s" | "KB" | "KiB" | "MB" | "MiB" | "GB" | "GiB" | "TB" | "TiB" | "GB/s" | "MB/s" | "W" | "J"
        | "C" | "x" | "it/s" | "iter/s" | "its/s" | "steps/s" | "batch/s" | "samples/s" | "samples/sec"
        | "seq/s" | "K/s" | "k/s" | "M/s" | "/s" | "/gpu" | "tokens/gpu/second" => Unit::Other,
        _ => return None,
    })
}

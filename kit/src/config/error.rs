//! Errors of a configuration file, in the form `file:line:column: what`, then the line and a caret.

use std::fmt;

use serde::Serialize;
use serde_saphyr::{Location, RenderOptions, SnippetMode, UserMessageFormatter};

use super::places::Places;

/// All mistakes in one configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    problems: Vec<Problem>,
}

/// One mistake, in a form for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mistake {
    pub message: String,
    /// The line, counted from 1; `None` if the mistake has no place.
    pub line: Option<u64>,
    /// The column in characters, counted from 1.
    pub column: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Problem {
    message: String,
    place: Option<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// The line, counted from 1.
    line: u64,
    /// The column in characters, counted from 1.
    column: u64,
    source_line: String,
    /// The length of the caret line in characters.
    width: usize,
}

impl ConfigError {
    /// Creates an error of one mistake without a place in the file.
    pub fn new(file: impl Into<String>, message: impl Into<String>) -> Self {
        Self::many(file, vec![message.into()])
    }

    /// Creates an error of several mistakes without places, so that all are shown at once.
    pub fn many(file: impl Into<String>, messages: Vec<String>) -> Self {
        let problems = messages.into_iter().map(|message| Problem { message, place: None }).collect();
        Self { file: file.into(), problems }
    }

    /// Creates an error of several mistakes in a text that parses. Each message begins with the
    /// path of its value (`routes[1].notify: ...`) and is shown at that place.
    pub fn at_paths(file: impl Into<String>, text: &str, messages: Vec<String>) -> Self {
        let places = Places::read(text);
        let place = |message: &str| {
            let (path, _) = message.split_once(": ")?;
            Place::find(text, places.as_ref()?.find(path)?)
        };
        let problem = |message: String| Problem { place: place(&message), message };
        Self { file: file.into(), problems: messages.into_iter().map(problem).collect() }
    }

    pub fn mistakes(&self) -> Vec<Mistake> {
        let mistake = |problem: &Problem| Mistake {
            message: problem.message.clone(),
            line: problem.place.as_ref().map(|place| place.line),
            column: problem.place.as_ref().map(|place| place.column),
        };
        self.problems.iter().map(mistake).collect()
    }

    /// The messages without their places.
    pub(super) fn message(&self) -> String {
        self.problems.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>().join("\n")
    }

    pub(super) fn at_caret(file: &str, text: &str, err: &serde_saphyr::Error) -> Self {
        let mut options = RenderOptions::new(&UserMessageFormatter);
        options.snippets = SnippetMode::Off;
        let mut message = err.without_snippet().render_with_options(options);
        if let Some(location) = err.location() {
            // The renderer appends the place in words, which [`fmt::Display`] already shows in
            // front.
            let suffix = format!(" at line {}, column {}", location.line(), location.column());
            message.truncate(message.strip_suffix(&suffix).unwrap_or(&message).len());
        }
        let place = err.location().and_then(|location| Place::find(text, location));
        Self { file: file.into(), problems: vec![Problem { message: in_plain_words(message), place }] }
    }

    /// Hides the values on the lines shown, for files in which any value may be a password.
    pub(crate) fn without_values(mut self) -> Self {
        for place in self.problems.iter_mut().filter_map(|problem| problem.place.as_mut()) {
            if let Some((key, value)) = place.source_line.split_once(':') {
                place.source_line = format!("{key}:{}", mask(value));
            }
        }
        self
    }
}

/// Replaces the parser's terms, such as scalar and Rust types, with those of YAML.
fn in_plain_words(message: String) -> String {
    let plain = match message.as_str() {
        "expected mapping start" => "expected a mapping: `key: value` lines, or {key: value}",
        "expected sequence start" => "expected a list: `- item` lines, or [item, item]",
        "expected string scalar" => "expected text",
        "invalid f64" | "invalid f32" => "expected a number",
        "invalid u16" => "expected a whole number from 0 to 65535",
        "invalid u32" => "expected a whole number from 0 to 4294967295",
        "invalid u64" | "invalid usize" => "expected a whole number, 0 or more",
        "invalid i64" | "invalid i32" => "expected a whole number",
        "invalid boolean (true or false expected)" => "expected true or false",
        _ => return message,
    };
    plain.to_owned()
}

/// Keys whose values are secrets unless they name a file. Their values are never shown, even if the
/// mistake is next to them.
const SECRET_KEYS: [&str; 5] = ["token", "secret", "password", "routing_key", "webhook_url"];

/// Hides the values of secret keys in a source line, keeping every column where it was.
fn redact(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(colon) = rest.find(':') {
        let (before, value) = rest.split_at(colon + 1);
        out.push_str(before);
        let key = before.trim_end_matches([':', ' ', '"', '\'']);
        rest = value;
        let end = value_end(value);
        // A `url` value without `://` may be a token in the wrong place.
        let lost = key.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next() == Some("url")
            && !value[..end].contains("://");
        if lost || SECRET_KEYS.iter().any(|secret| key.ends_with(secret)) {
            out.push_str(&mask(&value[..end]));
            rest = &value[end..];
        }
    }
    mask_addresses(&(out + rest))
}

/// Hides the secrets that a URL may contain: the user with a password, and the query.
fn mask_addresses(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, address) = rest.split_at(at + 3);
        out.push_str(before);
        let end = address.find(|c: char| c.is_whitespace() || "\"'".contains(c)).unwrap_or(address.len());
        let (address, after) = address.split_at(end);
        let host = address.find(['/', '?', '#']).unwrap_or(address.len());
        let user = address[..host].rfind('@').unwrap_or(0);
        let asked = address.find('?').map_or(address.len(), |at| at + 1);
        out.push_str(&mask(&address[..user]));
        out.push_str(&address[user..asked]);
        out.push_str(&mask(&address[asked..]));
        rest = after;
    }
    out + rest
}

/// The end of a value: its closing quote, or the next separator of a flow collection.
fn value_end(value: &str) -> usize {
    let trimmed = value.trim_start();
    let start = value.len() - trimmed.len();
    let closing = |quote: char| trimmed[1..].find(quote).map_or(value.len(), |at| start + 1 + at + 1);
    match trimmed.chars().next() {
        Some(quote @ ('"' | '\'')) => closing(quote),
        _ => value.find([',', '}']).unwrap_or(value.len()),
    }
}

fn mask(value: &str) -> String {
    value.chars().map(|c| if c.is_whitespace() { c } else { '*' }).collect()
}

impl Place {
    fn find(text: &str, location: Location) -> Option<Self> {
        let wanted = usize::try_from(location.line()).ok()?.checked_sub(1)?;
        let Some(line) = text.lines().nth(wanted) else { return Self::end_of(text) };
        let source_line = redact(line);
        let room = source_line.chars().count().saturating_sub(location.column().saturating_sub(1) as usize);
        let width = (location.span().len() as usize).clamp(1, room.max(1));
        Some(Self { line: location.line(), column: location.column(), source_line, width })
    }

    /// The end of the last line, for something that is missing at the end of the file.
    fn end_of(text: &str) -> Option<Self> {
        let (index, line) = text.lines().enumerate().last()?;
        let column = line.chars().count() as u64 + 1;
        Some(Self { line: index as u64 + 1, column, source_line: redact(line), width: 1 })
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            match &problem.place {
                None => write!(f, "{}: {}", self.file, problem.message)?,
                Some(place) => write!(f, "{}:{place}", self.file, place = Placed(place, &problem.message))?,
            }
        }
        Ok(())
    }
}

struct Placed<'a>(&'a Place, &'a str);

impl fmt::Display for Placed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Place { line, column, source_line, width }, message) = self;
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        // Tabs before the caret are kept, so that it is under its column at any tab width.
        let indent: String = source_line
            .chars()
            .take(column.saturating_sub(1) as usize)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        writeln!(f, "{line}:{column}: {message}")?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{number} | {source_line}")?;
        write!(f, "{margin} | {indent}{}", "^".repeat(*width))
    }
}

impl std::error::Error for ConfigError {}

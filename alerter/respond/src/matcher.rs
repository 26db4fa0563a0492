//! Labels, and matchers over them in Prometheus' syntax. Routes, inhibition, silences and the
//! Alertmanager API select by them.
//!
//! A missing label has the empty value, as in Prometheus and Alertmanager, so that `team=""` and
//! `team!="infra"` hold without a team. Regular expressions match the whole value.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;

use regex_lite::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use stepwatch_wire::words;

/// Label names to values, of an incident or an alert.
pub type Labels = BTreeMap<String, String>;

/// The most characters of a matcher's value.
const MAX_VALUE: usize = 2048;
/// The most characters of a label's name.
const MAX_NAME: usize = 256;
/// The most bytes of one compiled regular expression. Its cost is the least doubling of
/// `LEAST_REGEX_BYTES` in which it fits.
const MAX_REGEX_BYTES: usize = 64 * 1024;
const LEAST_REGEX_BYTES: usize = 512;
/// Characters with a meaning in a regular expression.
const META: &[char] = &['\\', '.', '+', '*', '?', '(', ')', '|', '[', ']', '{', '}', '^', '$'];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    Equal,
    NotEqual,
    Regex,
    NotRegex,
}

/// `label="value"`, or with `!=`, `=~`, `!~`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Matcher {
    label: String,
    op: Op,
    value: String,
    test: Test,
}

/// How a value is compared.
#[derive(Debug, Clone)]
enum Test {
    /// As a whole, with `=` or `!=`.
    Same,
    /// With each of `a|b|c.*`: nearly every regular expression that people write is one of these,
    /// and needs no memory.
    Alternatives,
    Compiled {
        regex: Regex,
        cost: usize,
    },
    /// A regular expression that is compiled for each use, because it is rarely used any more.
    Unloaded,
}

impl Op {
    pub const ALL: [Self; 4] = [Self::Equal, Self::NotEqual, Self::Regex, Self::NotRegex];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Regex => "=~",
            Self::NotRegex => "!~",
        }
    }

    pub fn is_regex(self) -> bool {
        matches!(self, Self::Regex | Self::NotRegex)
    }

    /// True for `=` and `=~`, false for `!=` and `!~`.
    pub fn is_positive(self) -> bool {
        matches!(self, Self::Equal | Self::Regex)
    }

    /// From the two flags of the Alertmanager API.
    pub fn of(regex: bool, positive: bool) -> Self {
        match (regex, positive) {
            (false, true) => Self::Equal,
            (false, false) => Self::NotEqual,
            (true, true) => Self::Regex,
            (true, false) => Self::NotRegex,
        }
    }
}

impl Matcher {
    pub fn new(label: impl Into<String>, op: Op, value: impl Into<String>) -> Result<Self, String> {
        // Cleaned like the labels that it is compared with.
        let (label, value) = (words::into_line(label.into()), words::into_line(value.into()));
        if label.is_empty() || label.chars().count() > MAX_NAME {
            return Err(format!("a label's name is 1 to {MAX_NAME} printable characters, got {label:?}"));
        }
        if value.chars().count() > MAX_VALUE {
            return Err(format!("the value of a matcher is at most {MAX_VALUE} characters"));
        }
        let plain = |part: &str| !part_of(part).0.contains(META);
        let test = if !op.is_regex() {
            Test::Same
        } else if value.split('|').all(plain) {
            Test::Alternatives
        } else {
            let (regex, cost) = compile(&value)?;
            Test::Compiled { regex, cost }
        };
        Ok(Self { label, op, value, test })
    }

    /// Its bytes in memory, without the compiled expression.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.label.len() + self.value.len()
    }

    /// Parses `label="value"`. The value needs quotes only if it has special characters, and the
    /// label may have quotes.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("matcher {text:?}: {why}");
        let shape = || bad("expected label=\"value\" with one of = != =~ !~");
        let trimmed = text.trim();
        let (label, rest) = if trimmed.starts_with('"') {
            let (label, rest) = quoted(trimmed).ok_or_else(|| bad("the quotes do not close"))?;
            (label, rest.trim_start())
        } else {
            let at = trimmed.find(['=', '!']).ok_or_else(shape)?;
            (trimmed[..at].trim().to_owned(), &trimmed[at..])
        };
        let (op, value) = [Op::Regex, Op::NotRegex, Op::NotEqual, Op::Equal]
            .into_iter()
            .find_map(|op| Some((op, rest.strip_prefix(op.as_str())?.trim())))
            .ok_or_else(|| bad("expected one of = != =~ !~"))?;
        let value = match value.strip_prefix('"') {
            None => value.to_owned(),
            Some(_) => match quoted(value) {
                Some((value, "")) => value,
                _ => return Err(bad("the quotes do not close, or something follows them")),
            },
        };
        Self::new(label, op, value).map_err(|e| bad(&e))
    }

    /// Parses a list in the form of Alertmanager's API: one matcher, or several between commas,
    /// with or without braces.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let inner = text.trim();
        let inner = inner.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(inner);
        split(inner).into_iter().filter(|part| !part.trim().is_empty()).map(Self::parse).collect()
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    pub fn op(&self) -> Op {
        self.op
    }

    pub fn value(&self) -> &str {
        &self.value
    }

    /// Whether it matches a value. The empty value stands for a missing label.
    pub fn holds_of(&self, value: &str) -> bool {
        let same = match &self.test {
            Test::Same => self.value == value,
            Test::Alternatives => self.value.split('|').any(|part| is_alike(part, value)),
            Test::Compiled { regex, .. } => regex.is_match(value),
            Test::Unloaded => compile(&self.value).is_ok_and(|(regex, _)| regex.is_match(value)),
        };
        same == self.op.is_positive()
    }

    /// Bytes of its compiled expression; 0 for plain alternatives.
    pub fn cost(&self) -> usize {
        if let Test::Compiled { cost, .. } = self.test { cost } else { 0 }
    }

    /// Drops the compiled expression of a matcher that is rarely used any more.
    pub fn unload(&mut self) {
        if let Test::Compiled { .. } = self.test {
            self.test = Test::Unloaded;
        }
    }

    pub fn holds(&self, labels: &Labels) -> bool {
        self.holds_of(labels.get(&self.label).map_or("", String::as_str))
    }

    /// Whether it matches a missing label. Such a matcher alone selects nearly everything.
    pub fn holds_of_nothing(&self) -> bool {
        self.holds_of("")
    }
}

/// Compiles a regular expression over the whole value. Returns it with its cost in bytes.
fn compile(value: &str) -> Result<(Regex, usize), String> {
    // Compiled alone first: a value that closes the group around it would match more than the
    // whole.
    let most = |text: &str, bytes: usize| RegexBuilder::new(text).size_limit(bytes).build();
    let whole = format!("^(?:{value})$");
    most(value, MAX_REGEX_BYTES)
        .and_then(|_| most(&whole, MAX_REGEX_BYTES))
        .map_err(|e| format!("{value:?} is not a regular expression: {e}"))
        .map(|largest| {
            let sizes = core::iter::successors(Some(LEAST_REGEX_BYTES), |bytes| Some(bytes * 2));
            let mut sizes = sizes.take_while(|bytes| *bytes < MAX_REGEX_BYTES);
            let found = sizes.find_map(|bytes| Some((most(&whole, bytes).ok()?, bytes)));
            found.unwrap_or((largest, MAX_REGEX_BYTES))
        })
}

/// Splits an alternative into its text and whether it is a prefix (`text.*`).
fn part_of(part: &str) -> (&str, bool) {
    part.strip_suffix(".*").map_or((part, false), |begin| (begin, true))
}

fn is_alike(part: &str, value: &str) -> bool {
    match part_of(part) {
        (whole, false) => whole == value,
        (begin, true) => value.strip_prefix(begin).is_some_and(|rest| !rest.contains('\n')),
    }
}

/// Whether all matchers match the labels.
pub fn all_hold(matchers: &[Matcher], labels: &Labels) -> bool {
    matchers.iter().all(|m| m.holds(labels))
}

/// Splits a text that begins with a quote into the quoted part and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.strip_prefix('"')?.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 2..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                c @ ('"' | '\\') => value.push(c),
                // A backslash of a regular expression.
                c => value.extend(['\\', c]),
            },
            c => value.push(c),
        }
    }
    None
}

/// Splits a list at the commas outside quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut from, mut inside, mut escaped) = (Vec::new(), 0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if inside => escaped = true,
            '"' => inside = !inside,
            ',' if !inside => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

impl PartialEq for Matcher {
    fn eq(&self, other: &Self) -> bool {
        (&self.label, self.op, &self.value) == (&other.label, other.op, &other.value)
    }
}

impl Eq for Matcher {}

impl fmt::Display for Matcher {
    /// Writes the form that [`Matcher::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | ':' | '/');
        let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        if self.label.chars().all(plain) {
            write!(f, "{}", self.label)?;
        } else {
            write!(f, "\"{}\"", escape(&self.label))?;
        }
        write!(f, "{}\"{}\"", self.op.as_str(), escape(&self.value))
    }
}

impl FromStr for Matcher {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Matcher {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<Matcher> for String {
    fn from(matcher: Matcher) -> Self {
        matcher.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn as_alertmanager_reads_them() {
        let of = labels(&[("run", "llama-70b"), ("node", "gpu-042"), ("odd", "a\"b\\c")]);
        for (text, holds) in [
            ("run=llama-70b", true),
            (" run = \"llama-70b\" ", true),
            ("run!=\"llama-70b\"", false),
            ("node=~\"gpu-.*\"", true),
            ("node=~\"gpu\"", false),
            ("node!~\"gpu\"", true),
            ("node=~\"gpu-\\d+\"", true),
            ("team=\"\"", true),
            ("team!=\"infra\"", true),
            ("team=~\".+\"", false),
            ("odd=\"a\\\"b\\\\c\"", true),
            ("\"odd\"=~\"a.*\"", true),
        ] {
            assert_eq!(Matcher::parse(text).unwrap().holds(&of), holds, "{text}");
        }
        let list = Matcher::parse_list("{run=\"a,b\", node=~\"x|y\",}").unwrap();
        assert_eq!(
            list.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["run=\"a,b\"", "node=~\"x|y\""]
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("severity", "expected label"),
            ("kind=~\"(\"", "not a regular expression"),
            ("kind=~\"hang)|(.*\"", "not a regular expression"),
            ("kind!\"x\"", "expected one of"),
            ("=\"x\"", "a label's name"),
            ("run=\"x", "quotes do not close"),
            ("run=\"x\"y", "something follows"),
            ("run=~\"(a{1000}){1000}\"", "not a regular expression"),
        ] {
            assert!(Matcher::parse(text).unwrap_err().contains(part), "{text}: {:?}", Matcher::parse(text));
        }
    }

    #[test]
    fn only_what_is_more_than_alternatives_costs_anything() {
        let cost = |text: &str| Matcher::parse(text).unwrap().cost();
        for text in ["run=a", "run=~\"a|b|c-1\"", "run=~\"llama-.*\"", "run=~\"\"", "run=~\".*\""] {
            assert_eq!(cost(text), 0, "{text}");
        }
        let many = format!("run!~\"{}\"", ["llama-70b"; 200].join("|"));
        assert_eq!(cost(&many), 0, "however many");
        let (small, large) = (cost("run=~\"gpu-[0-9]+\""), cost("run=~\"([a-z]?){300}\""));
        assert!((LEAST_REGEX_BYTES..=2048).contains(&small), "{small}");
        assert!(large > 8 * small && large <= MAX_REGEX_BYTES, "{large}");
        let mut matcher = Matcher::parse("run=~\"gpu-[0-9]+\"").unwrap();
        matcher.unload();
        assert!(matcher.cost() == 0 && matcher.holds_of("gpu-7") && !matcher.holds_of("gpu-"));
    }

    proptest! {
        #[test]
        fn alternatives_are_what_the_expression_means(
            text in "[ab|é.*-]{0,8}", value in "[abé\n|.-]{0,5}"
        ) {
            if let Ok(matcher) = Matcher::new("l", Op::Regex, text.as_str()) {
                let whole = Regex::new(&format!("^(?:{text})$")).unwrap();
                prop_assert_eq!(matcher.holds_of(&value), whole.is_match(&value));
            }
        }

        #[test]
        fn never_panics(text in "\\PC{0,40}") {
            let _ = Matcher::parse(&text);
            let _ = Matcher::parse_list(&text);
        }

        /// A matcher that is written reads back as the same, with the same meaning.
        #[test]
        fn round_trips(label in "[a-zA-Z_][a-zA-Z0-9_ =!]{0,12}", value in "[ -~\\n]{0,20}", negated: bool, other in "[a-c]{0,3}") {
            let label = label.trim_end().to_owned();
            let op = Op::of(false, !negated);
            let matcher = Matcher::new(label.clone(), op, value.clone()).unwrap();
            let again = Matcher::parse(&matcher.to_string()).unwrap();
            prop_assert_eq!(&again, &matcher);
            for value in [&value, &other] {
                prop_assert_eq!(again.holds_of(value), (*value == matcher.value) != negated);
            }
            let listed = Matcher::parse_list(&format!("{{{matcher},{matcher}}}")).unwrap();
            prop_assert_eq!(listed, vec![again.clone(), again]);
        }

        #[test]
        fn a_negation_is_the_opposite(pattern in "[a-c.*|]{0,6}", value in "[a-c]{0,4}", regex: bool) {
            if let (Ok(yes), Ok(no)) = (
                Matcher::new("x", Op::of(regex, true), pattern.clone()),
                Matcher::new("x", Op::of(regex, false), pattern),
            ) {
                prop_assert_ne!(yes.holds_of(&value), no.holds_of(&value));
            }
        }
    }
}

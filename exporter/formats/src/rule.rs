//! A rule of the configuration for lines that no format reads: a regular expression with named
//! groups, or the keys of logfmt.
//!
//! ```yaml
//! rule:
//!   regex: 'it (?P<step>\d+)/\d+ \| L=(?P<loss>\S+) \| (?P<step_time>\S+)'
//!   units: {step_time: ms}
//! rule: {logfmt: {step: global_step, loss: train.loss}}
//! ```
//!
//! Groups and keys have our names (`step`, `ts`, `rank`, `run`, `loss`, `grad_norm`, `lr`, …) or a
//! framework's from `tags.rs`; any other name is a custom metric. The expression is searched for in
//! the line as it is in the file, colours aside, and then in what is left without the prefixes of
//! launchers. It runs in linear time and its size is limited, so that no rule can hold up a tail.

mod logfmt;
#[cfg(test)]
mod tests;

use core::fmt;
use std::borrow::Cow;
use std::collections::BTreeMap;

use regex::{Captures, Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use stepwatch_wire::names::metric;
use stepwatch_wire::{CkptPhase, Event, Kind, MAX_TEXT, Value};

use crate::absent::Nothing;
use crate::format::{Format, Line, Out, Outcome};
use crate::line_formats::generic::unit_behind;
use crate::{number, tags, time};

/// What a reader with a rule calls itself.
pub(crate) const NAME: &str = "rule";
/// Rules of one log.
const MAX_RULES: usize = 16;
/// Characters of an expression, and bytes of what it is compiled to.
const MAX_REGEX: usize = 4096;
const MAX_COMPILED: usize = 512 * 1024;
/// Longer lines are not searched.
const MAX_LINE: usize = 16 * 1024;
/// Names of one rule.
const MAX_NAMES: usize = 64;
/// Names that are no metrics.
const RESERVED: &[&str] = &["step", "ts", "rank", "run", "name", "phase", "path"];

/// How to read one kind of line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// A regular expression whose named groups are the values of the line: `(?P<loss>\S+)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// Or, for `key=value` lines, our names to their keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logfmt: Option<BTreeMap<String, String>>,
    /// What such a line is.
    #[serde(default)]
    pub kind: RuleKind,
    /// The name of an evaluation, if the line does not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Units of numbers that are not printed in seconds, ratios and ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub units: BTreeMap<String, Unit>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleKind {
    #[default]
    Step,
    Eval,
    Ckpt,
}

/// What a number is printed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "ms")]
    Millis,
    #[serde(rename = "us")]
    Micros,
    #[serde(rename = "ns")]
    Nanos,
    #[serde(rename = "min")]
    Minutes,
    #[serde(rename = "h")]
    Hours,
    #[serde(rename = "percent", alias = "%")]
    Percent,
    #[serde(rename = "ratio")]
    Ratio,
    #[serde(rename = "K", alias = "k")]
    Thousands,
    #[serde(rename = "M")]
    Millions,
    #[serde(rename = "B", alias = "G")]
    Billions,
}

/// A mistake in a rule: the field, and what it accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    pub field: String,
    pub reason: String,
}

/// The rules of one log.
#[derive(Debug)]
pub(crate) struct Rules(Vec<Compiled>);

#[derive(Debug)]
struct Compiled {
    find: Find,
    kind: RuleKind,
    eval: String,
    units: BTreeMap<String, Unit>,
}

#[derive(Debug)]
enum Find {
    Regex(Regex),
    Logfmt(BTreeMap<String, String>),
}

impl Unit {
    fn divisor(self) -> f64 {
        match self {
            Self::Seconds | Self::Ratio => 1.0,
            Self::Millis => 1e3,
            Self::Micros => 1e6,
            Self::Nanos => 1e9,
            Self::Minutes => 1.0 / 60.0,
            Self::Hours => 1.0 / 3600.0,
            Self::Percent => 100.0,
            Self::Thousands => 1e-3,
            Self::Millions => 1e-6,
            Self::Billions => 1e-9,
        }
    }
}

impl RuleError {
    fn new(field: &str, reason: impl Into<String>) -> Self {
        Self { field: field.to_owned(), reason: reason.into() }
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl core::error::Error for RuleError {}

impl Rules {
    pub(crate) fn new(rules: &[Rule]) -> Result<Self, RuleError> {
        if rules.is_empty() || rules.len() > MAX_RULES {
            return Err(RuleError::new(
                "rule",
                format!("there must be 1 to {MAX_RULES} rules, not {}", rules.len()),
            ));
        }
        rules.iter().map(Compiled::new).collect::<Result<_, _>>().map(Self)
    }
}

impl Format for Rules {
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome {
        if line.raw.len() > MAX_LINE {
            return Outcome::Unmatched;
        }
        let event = self.0.iter().find_map(|rule| rule.read(line, out));
        event.map_or(Outcome::Unmatched, |event| {
            out.push(event);
            Outcome::Matched
        })
    }
}

impl Compiled {
    fn new(rule: &Rule) -> Result<Self, RuleError> {
        let find = match (&rule.regex, &rule.logfmt) {
            (Some(regex), None) => Find::Regex(compile(regex)?),
            (None, Some(keys)) => Find::Logfmt(keys.clone()),
            _ => return Err(RuleError::new("rule", "needs regex or logfmt, and not both")),
        };
        let rule = Self {
            find,
            kind: rule.kind,
            eval: rule.name.clone().unwrap_or_else(|| "eval".to_owned()),
            units: rule.units.clone(),
        };
        rule.check()?;
        Ok(rule)
    }

    fn field(&self) -> &'static str {
        match self.find {
            Find::Regex(_) => "regex",
            Find::Logfmt(_) => "logfmt",
        }
    }

    fn names(&self) -> Vec<&str> {
        match &self.find {
            Find::Regex(regex) => regex.capture_names().flatten().collect(),
            Find::Logfmt(keys) => keys.keys().map(String::as_str).collect(),
        }
    }

    fn check(&self) -> Result<(), RuleError> {
        let names = self.names();
        let wrong = |reason: String| Err(RuleError::new(self.field(), reason));
        let what = if self.field() == "regex" { "a group (?P<NAME>...)" } else { "a key NAME: THEIRS" };
        let has = names.join(", ");
        if names.is_empty() || names.len() > MAX_NAMES {
            return wrong(format!("needs 1 to {MAX_NAMES} names, each {what}; it has {}", names.len()));
        }
        if self.kind == RuleKind::Step && !names.contains(&"step") {
            return wrong(format!("must give the step by {what} with the name step; it has {has}"));
        }
        let metrics: Vec<_> = names.iter().copied().filter(|n| !RESERVED.contains(n)).collect();
        if self.kind != RuleKind::Ckpt && metrics.is_empty() {
            return wrong(format!(
                "must give a metric by {what}: loss, grad_norm, lr, step_time, ...; it has {has}"
            ));
        }
        for name in self.units.keys() {
            if !metrics.contains(&name.as_str()) {
                let reason = format!("is no metric of this rule, which has {}", metrics.join(", "));
                return Err(RuleError::new(&format!("units.{name}"), reason));
            }
        }
        Ok(())
    }

    fn read(&self, line: &Line<'_>, out: &mut Out<'_>) -> Option<Event> {
        match &self.find {
            Find::Regex(regex) => {
                let captures = regex.captures(line.raw).or_else(|| {
                    Some(line.text).filter(|t| t.len() < line.raw.len()).and_then(|t| regex.captures(t))
                })?;
                self.event(line, out, &|name| group(&captures, name))
            }
            Find::Logfmt(keys) => {
                let pairs = logfmt::pairs(line.text);
                self.event(line, out, &|name| {
                    let key = keys.get(name)?;
                    pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
                })
            }
        }
    }

    fn event<'v>(
        &self,
        line: &Line<'_>,
        out: &mut Out<'_>,
        get: &dyn Fn(&str) -> Option<Cow<'v, str>>,
    ) -> Option<Event> {
        let step = get("step").and_then(|t| whole(&t));
        let mut e = match self.kind {
            RuleKind::Step => line.step(step?),
            RuleKind::Eval => line.eval(step, &self.eval),
            RuleKind::Ckpt => line.checkpoint(phase(get("phase").as_deref())?, step),
        };
        e.ts = get("ts").and_then(|t| instant(&t, line)).or(e.ts);
        e.rank = get("rank").and_then(|t| u32::try_from(whole(&t)?).ok());
        e.run = get("run").map(|t| clip(&t)).filter(|t| !t.is_empty());
        if let Some(name) = get("name") {
            e.name = Some(clip(&name));
        }
        if let Some(path) = get("path") {
            e.extra.insert("path".into(), Value::Text(clip(&path)));
        }
        for name in self.names().into_iter().filter(|n| !RESERVED.contains(n)) {
            if let Some(text) = get(name) {
                self.metric(name, &text, &mut e, out);
            }
        }
        let has_content = !e.m.is_empty() || !e.missing.is_empty() || e.kind == Kind::Ckpt;
        has_content.then_some(e)
    }

    fn metric(&self, name: &str, text: &str, e: &mut Event, out: &mut Out<'_>) {
        let (ours, divisor) = tags::canonical(name).unwrap_or((name, 1.0));
        let Some(n) = number::human(text) else {
            // How a NaN is printed by a program without a spelling for it.
            let nothing =
                ["null", "none", "n/a", "-", ""].iter().any(|w| text.trim().eq_ignore_ascii_case(w));
            if nothing && ours == metric::LOSS && e.kind == Kind::Step {
                // The rule declares it as the loss, so that even the first line should have it.
                e.missing.push(metric::LOSS.to_owned());
            } else if nothing && e.kind == Kind::Step {
                out.nothing(ours, Nothing::Certain);
            }
            return;
        };
        let divisor = match self.units.get(name) {
            Some(unit) => unit.divisor(),
            None => unit_behind(n.rest, ours).unwrap_or(divisor),
        };
        out.number(e, ours, n.value / divisor, n.quantum.map(|q| q / divisor));
    }
}

fn compile(pattern: &str) -> Result<Regex, RuleError> {
    if pattern.len() > MAX_REGEX {
        let reason = format!("{} bytes, the limit is {MAX_REGEX}", pattern.len());
        return Err(RuleError::new("regex", reason));
    }
    let built = RegexBuilder::new(pattern)
        .size_limit(MAX_COMPILED)
        .dfa_size_limit(MAX_COMPILED)
        .nest_limit(64)
        .build();
    built.map_err(|err| RuleError::new("regex", err.to_string()))
}

fn group<'v>(captures: &Captures<'v>, name: &str) -> Option<Cow<'v, str>> {
    captures.name(name).map(|m| Cow::Borrowed(m.as_str()))
}

/// A step or a rank: `12`, `1,200`, `12/500`, `12.0`.
fn whole(text: &str) -> Option<i64> {
    let n = number::lex(text)?;
    let alone = !n.rest.starts_with(|c: char| c.is_alphanumeric() || c == '.');
    number::whole(n.value).filter(|n| alone && *n >= 0)
}

fn phase(word: Option<&str>) -> Option<CkptPhase> {
    let Some(word) = word else { return Some(CkptPhase::End) };
    let starts =
        |with: &[&str]| with.iter().any(|w| word.get(..w.len()).is_some_and(|p| p.eq_ignore_ascii_case(w)));
    if starts(&["start", "begin", "saving", "writing"]) {
        Some(CkptPhase::Start)
    } else if starts(&["end", "done", "success", "saved", "finish", "complete", "wrote"]) {
        Some(CkptPhase::End)
    } else {
        starts(&["fail", "error", "abort"]).then_some(CkptPhase::Fail)
    }
}

/// Unix seconds, milliseconds or finer, recognised by their size, or a date.
fn instant(text: &str, line: &Line<'_>) -> Option<f64> {
    match time::lead(text.trim()) {
        Some((stamp, _)) => Some(line.unix(stamp)),
        None => time::epoch(number::lex(text)?.value),
    }
}

fn clip(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

//! The facts of a clause: typed values that programs read and `render` puts into words.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::Clause;
use crate::evidence::{Evidence, Observation};
use crate::number::Num;
use crate::remedy::Remedy;
use crate::target::Target;
use crate::time::{Span, Ts};

/// One fact. Its text is its [`Display`](core::fmt::Display).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// Shown with four significant digits.
    Number(Num),
    /// Seconds of about one step: shown as milliseconds, hundredths of a second or seconds.
    Seconds(Num),
    /// Seconds of a long duration: shown as seconds, minutes or hours.
    Hours(Num),
    /// Shown with this number of digits after the decimal point.
    Decimal(Num, u8),
    /// A share, shown in percent with this number of decimal digits. The form has the percent sign.
    Percent(Num, u8),
    Count(i64),
    Counts(Vec<i64>),
    Step(i64),
    Span(#[serde(with = "millis")] Span),
    Time(Ts),
    /// A word from the source code that the form depends on: a verb, the name of a signal.
    Word(Cow<'static, str>),
    /// Text of other programs and names, unchanged.
    Text(String),
    /// Names, all of which are shown.
    Names(Vec<String>),
    /// Nodes, of which only the first few are shown.
    Nodes(Vec<String>),
    /// A target with its node, for readers who do not know the node.
    Target(Target),
    Targets(Vec<Target>),
    /// A target without its node, which the form already has.
    Device(Target),
    Observation(Box<Observation>),
    Evidence(Vec<Evidence>),
    Remedy(Box<Remedy>),
    /// A part of the sentence that has facts of its own.
    Clause(Box<Clause>),
    /// Parts of the sentence, and the separator between them.
    Clauses(Vec<Clause>, Cow<'static, str>),
}

impl Fact {
    /// Text of other programs, or a name.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A number with `digits` digits after the decimal point.
    pub fn decimal(value: f64, digits: u8) -> Self {
        Self::Decimal(Num(value), digits)
    }

    /// A share in percent, with `digits` digits after the decimal point.
    pub fn percent(share: f64, digits: u8) -> Self {
        Self::Percent(Num(share), digits)
    }

    /// Parts that are separated by `between`.
    pub fn joined(parts: Vec<Clause>, between: &'static str) -> Self {
        Self::Clauses(parts, between.into())
    }
}

impl From<f64> for Fact {
    fn from(value: f64) -> Self {
        Self::Number(Num(value))
    }
}

impl From<Num> for Fact {
    fn from(value: Num) -> Self {
        Self::Number(value)
    }
}

impl From<i64> for Fact {
    fn from(count: i64) -> Self {
        Self::Count(count)
    }
}

impl From<u32> for Fact {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

impl From<i32> for Fact {
    fn from(count: i32) -> Self {
        Self::Count(count.into())
    }
}

impl From<u64> for Fact {
    fn from(count: u64) -> Self {
        Self::Count(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Fact {
    fn from(count: usize) -> Self {
        Self::Count(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

impl From<Span> for Fact {
    fn from(span: Span) -> Self {
        Self::Span(span)
    }
}

impl From<Ts> for Fact {
    fn from(at: Ts) -> Self {
        Self::Time(at)
    }
}

/// Only literals of the source become words. Text that is made at run time is [`Fact::text`].
impl From<&'static str> for Fact {
    fn from(word: &'static str) -> Self {
        Self::Word(word.into())
    }
}

impl From<String> for Fact {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<String>> for Fact {
    fn from(names: Vec<String>) -> Self {
        Self::Names(names)
    }
}

impl From<Target> for Fact {
    fn from(target: Target) -> Self {
        Self::Target(target)
    }
}

impl From<&Observation> for Fact {
    fn from(observation: &Observation) -> Self {
        Self::Observation(Box::new(observation.clone()))
    }
}

impl From<Clause> for Fact {
    fn from(clause: Clause) -> Self {
        Self::Clause(Box::new(clause))
    }
}

/// An absent part is an empty clause.
impl From<Option<Clause>> for Fact {
    fn from(clause: Option<Clause>) -> Self {
        clause.unwrap_or_default().into()
    }
}

/// The stored form of a span: signed milliseconds, because two clocks may disagree.
mod millis {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::time::Span;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(span: &Span, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_i64(span.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Span, D::Error> {
        i64::deserialize(d).map(Span)
    }
}

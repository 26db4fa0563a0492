//! The facts of a clause: what was found, typed, for programs to read and for `render` to put into
//! words.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::clause::Clause;
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
    /// Seconds of one step or so: shown as milliseconds, hundredths of a second or seconds.
    Seconds(Num),
    /// Seconds of a long time: shown as seconds, minutes or hours.
    Hours(Num),
    /// Shown with so many digits behind the point.
    Decimal(Num, u8),
    /// A share, shown in percent with so many digits behind the point. The form has the sign.
    Percent(Num, u8),
    Count(i64),
    Counts(Vec<i64>),
    Step(i64),
    Span(#[serde(with = "millis")] Span),
    Time(Ts),
    /// A word of ours that the form depends on: a verb, the name of a signal.
    Word(Cow<'static, str>),
    /// Text of other programs and names, as they came.
    Text(String),
    /// Names, all of which are shown.
    Names(Vec<String>),
    /// Nodes, of which the first few are shown.
    Nodes(Vec<String>),
    /// As whoever does not know its node needs it.
    Target(Target),
    Targets(Vec<Target>),
    /// Without its node, which the form has.
    Device(Target),
    Observation(Box<Observation>),
    Evidence(Vec<Evidence>),
    Remedy(Box<Remedy>),
    /// A part of the sentence that has facts of its own.
    Clause(Box<Clause>),
    /// Such parts, and what stands between them.
    Clauses(Vec<Clause>, Cow<'static, str>),
}

impl Fact {
    /// Text of other programs, or a name.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A number with so many digits behind the point.
    pub fn decimal(value: f64, digits: u8) -> Self {
        Self::Decimal(Num(value), digits)
    }

    /// A share in percent, with so many digits behind the point.
    pub fn percent(share: f64, digits: u8) -> Self {
        Self::Percent(Num(share), digits)
    }

    /// Parts with `between` between them.
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

/// Only what is written in the source is a word: text that is made at run time is [`Fact::text`].
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

/// A part that a sentence may lack.
impl From<Option<Clause>> for Fact {
    fn from(clause: Option<Clause>) -> Self {
        clause.unwrap_or_default().into()
    }
}

/// In the stored form a span is a number of milliseconds, of either sign: two clocks may disagree.
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

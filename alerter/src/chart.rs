//! Pictures of a run as SVG: a pure function from numbers to text, so that a report, a message and
//! a page show the same.
//!
//! Panels are drawn below each other over one axis of steps, the signal in question on top; marks
//! go through all of them. Colours are attributes, which any renderer supports and a style sheet
//! may override by class; there is no script, no style attribute and no font to load.
//!
//! [`incident`] decides what is drawn of an incident, [`png`] makes pixels of it.

pub mod curve;
pub mod incident;
mod line;
mod look;
mod marks;
pub mod png;
pub mod scale;
pub mod scatter;
mod svg;
#[cfg(test)]
mod tests;
pub mod track;

use std::borrow::Cow;

pub use look::{Look, Size, Theme, Tone};
pub use svg::svg;

use curve::BandPoint;
use track::Point;

#[derive(Debug, Clone)]
pub struct Chart<'a> {
    /// What a picture that stands alone says above the panels.
    pub heading: Option<Heading>,
    pub title: String,
    /// The picture as text, for readers who cannot see it.
    pub description: String,
    /// First and last step.
    pub steps: (i64, i64),
    pub panels: Vec<Panel<'a>>,
    pub marks: Vec<Mark>,
    pub spans: Vec<Span>,
    /// Suspects beside what was expected of them.
    pub bars: Vec<Bar>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heading {
    /// A few words, in the colour of `tone`.
    pub tag: String,
    pub tone: Tone,
    pub sentence: String,
}

#[derive(Debug, Clone)]
pub struct Panel<'a> {
    pub label: String,
    pub points: Cow<'a, [Point]>,
    /// Lowest and highest of what is usual.
    pub usual: Option<(f64, f64)>,
    /// The same, where it is known step by step; drawn instead.
    pub band: Cow<'a, [BandPoint]>,
    pub expected: Option<Expected>,
    /// Higher than the others.
    pub leads: bool,
}

/// What a detector expected, from one step on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    pub value: f64,
    pub from: i64,
}

/// A moment: a line through all panels, with a caption above.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    pub step: i64,
    pub label: String,
    pub tone: Tone,
    /// Where a click leads.
    pub href: Option<String>,
}

/// A stretch of steps, shaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub from: i64,
    pub to: i64,
    pub tone: Tone,
}

/// A value of one suspect against what was expected of it, both positive.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    pub label: String,
    /// The value in words.
    pub text: String,
    pub value: f64,
    pub expected: f64,
}

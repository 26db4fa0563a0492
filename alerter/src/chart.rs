//! Charts of a run as SVG: a pure function from numbers to text, so that a report, a message and a
//! page show the same.
//!
//! Panels are stacked over one axis of steps, with the main signal on top; marks extend through all
//! of them. Colours are attributes, which all renderers support and a style sheet may override by
//! class. There is no script, style attribute or font to load.
//!
//! [`incident`] decides what the chart of an incident shows; [`png`] renders pixels.

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
    /// The heading of a stand-alone chart, above the panels.
    pub heading: Option<Heading>,
    pub title: String,
    /// A text alternative for readers who cannot see the chart.
    pub description: String,
    /// The first and last step.
    pub steps: (i64, i64),
    pub panels: Vec<Panel<'a>>,
    pub marks: Vec<Mark>,
    pub spans: Vec<Span>,
    /// Suspects with their expected values.
    pub bars: Vec<Bar>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heading {
    /// A short text in the colour of `tone`.
    pub tag: String,
    pub tone: Tone,
    pub sentence: String,
}

#[derive(Debug, Clone)]
pub struct Panel<'a> {
    pub label: String,
    pub points: Cow<'a, [Point]>,
    /// The lower and upper bound of the usual range.
    pub usual: Option<(f64, f64)>,
    /// The usual range by step; if it is known, it is drawn instead.
    pub band: Cow<'a, [BandPoint]>,
    pub expected: Option<Expected>,
    /// Whether the panel is higher than the others.
    pub leads: bool,
}

/// The value that a detector expected from a step on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    pub value: f64,
    pub from: i64,
}

/// A mark: a line through all panels, with a caption above.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    pub step: i64,
    pub label: String,
    pub tone: Tone,
    /// The link of the mark.
    pub href: Option<String>,
}

/// A shaded range of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub from: i64,
    pub to: i64,
    pub tone: Tone,
}

/// The value of a suspect and its expected value, both positive.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    pub label: String,
    /// The value as text.
    pub text: String,
    pub value: f64,
    pub expected: f64,
}

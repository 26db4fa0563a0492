//! Pictures of a run as SVG: a pure function from numbers to text, so that a report, a message and
//! a page show the same.
//!
//! Panels are drawn below each other over one axis of steps, the signal in question on top; marks
//! go through all of them. Colours are attributes, which any renderer supports and a style sheet
//! may override by class; there is no script, no style attribute and no font to load. Which signals
//! and marks are drawn, and what they mean, is decided in [`crate::backtest`].

pub mod scale;
pub mod scatter;
mod svg;
#[cfg(test)]
mod tests;
pub mod track;

pub use svg::svg;

use track::Point;

#[derive(Debug, Clone)]
pub struct Chart<'a> {
    pub title: String,
    /// The picture as text, for readers who cannot see it.
    pub description: String,
    /// First and last step.
    pub steps: (i64, i64),
    pub panels: Vec<Panel<'a>>,
    pub marks: Vec<Mark>,
    pub spans: Vec<Span>,
}

#[derive(Debug, Clone)]
pub struct Panel<'a> {
    pub label: String,
    pub points: &'a [Point],
    /// Lowest and highest of what is usual.
    pub usual: Option<(f64, f64)>,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Onset,
    Info,
    Ticket,
    Page,
    Over,
}

impl Tone {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Onset => "onset",
            Self::Info => "info",
            Self::Ticket => "ticket",
            Self::Page => "page",
            Self::Over => "over",
        }
    }

    /// On white, each at least 4.5 : 1.
    fn colour(self) -> &'static str {
        match self {
            Self::Onset => "#6a3fb5",
            Self::Info => "#55636e",
            Self::Ticket => "#9a5b00",
            Self::Page => "#c62828",
            Self::Over => "#2a7531",
        }
    }
}

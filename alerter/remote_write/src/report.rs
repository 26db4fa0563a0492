//! The input and output types of the code that assembles scrapes.

use std::sync::Arc;

use stepwatch_wire::Event;

/// A report of an instance.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    Event(Box<Event>),
    /// The instance answers scrapes.
    Up,
    Down {
        reason: &'static str,
    },
}

/// A report, and the address of its instance.
pub type Reported = (Arc<str>, Report);

/// One sample of a series that has a meaning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scraped {
    pub(crate) ts_ms: i64,
    pub(crate) value: f64,
    pub(crate) stale: bool,
}

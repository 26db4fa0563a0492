//! What goes in and out of the parts that put scrapes together.

use std::sync::Arc;

use stepwatch_wire::Event;

/// What an instance reports, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    Event(Box<Event>),
    /// It answers the scrapes.
    Up,
    Down {
        reason: &'static str,
    },
}

/// A report, and the address of the instance.
pub type Reported = (Arc<str>, Report);

/// One sample of a series that means something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scraped {
    pub(crate) ts_ms: i64,
    pub(crate) value: f64,
    pub(crate) stale: bool,
}

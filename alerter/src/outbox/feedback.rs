//! Outcomes of messages for the engine.

use stepwatch_model::time::Span;
use stepwatch_respond::effect::Action;

/// The outcome of a message, for the engine. The runtime lists `idem_key` in
/// [`crate::store::Commit::reported`] of the commit with the engine's reaction; until then it is
/// reported again after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feedback {
    pub idem_key: String,
    pub incident: String,
    pub receiver: String,
    pub action: Action,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Delivered,
    /// The receiver permanently refused the message.
    Failed {
        error: String,
    },
    /// The receiver has not accepted a page for this long; it is still retried.
    Unreached {
        waited: Span,
        error: String,
    },
    /// The receiver asks to send a call only after this time; it is still retried.
    PutOff {
        wait: Span,
        error: String,
    },
    /// No page waits too long any more.
    AllReached,
}

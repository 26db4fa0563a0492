//! Outcomes of messages, for the engine.

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
    /// The receiver refused it permanently.
    Failed {
        error: String,
    },
    /// A page that the receiver has not accepted for so long; it is still tried.
    Unreached {
        waited: Span,
        error: String,
    },
    /// A call for a person that the receiver asks to send only after so long; it is still tried.
    PutOff {
        wait: Span,
        error: String,
    },
    /// No page waits that long any more.
    AllReached,
}

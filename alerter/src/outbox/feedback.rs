//! What became of a message, for the engine.

use stepwatch_model::time::Span;
use stepwatch_respond::effect::Action;

/// The outcome of a message, for the engine. The runtime lists `idem_key` in
/// [`crate::store::Commit::reported`] of the commit that holds what the engine made of it; until
/// then it comes again after a restart.
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
    /// The receiver will never take it.
    Failed {
        error: String,
    },
    /// A call for a person that the receiver has not taken for so long; it is still tried.
    Unreached {
        waited: Span,
        error: String,
    },
    /// A call for a person that the receiver takes only after so long, by its own word; it is still
    /// tried.
    PutOff {
        wait: Span,
        error: String,
    },
    /// No call for a person waits that long any more.
    AllReached,
}

//! What one receiver was sent of an incident, and what it has still to be sent.

use crate::message::Why;
use serde::{Deserialize, Serialize};
use stepwatch_model::Ts;

/// What one receiver has been sent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::incident) struct Lane {
    pub(in crate::incident) seq: u32,
    /// Whom it was for.
    pub(in crate::incident) users: Vec<String>,
    /// It was called for this incident by its name, as for a page.
    pub(in crate::incident) paged: bool,
    /// Somebody has answered since it was last called. Not stored: after a restart, whoever was
    /// called is taken to be called still.
    #[serde(skip)]
    pub(in crate::incident) answered: bool,
    /// The last word that was put off when it went on without this receiver.
    #[serde(skip)]
    pub(in crate::incident) put_off: u32,
    /// Why its last call is not taken, in the receiver's words, until it takes a word again.
    pub(in crate::incident) untaken: Option<String>,
}

/// News that waits for its turn.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::incident) struct News {
    pub(in crate::incident) at: Ts,
    pub(in crate::incident) why: Why,
}

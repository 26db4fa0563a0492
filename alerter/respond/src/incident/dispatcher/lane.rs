//! The notifications of one incident to one receiver: those sent, and an update that still waits.

use crate::message::Why;
use serde::{Deserialize, Serialize};
use stepwatch_model::Ts;

/// What one receiver has been sent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::incident) struct Lane {
    pub(in crate::incident) seq: u32,
    /// The users that the notifications are for.
    pub(in crate::incident) users: Vec<String>,
    /// The receiver was paged about this incident.
    pub(in crate::incident) paged: bool,
    /// Somebody has answered since the last call. Not stored: after a restart, a call counts as
    /// unanswered.
    #[serde(skip)]
    pub(in crate::incident) answered: bool,
    /// `seq` of the last call that the receiver put off, and for which others were called.
    #[serde(skip)]
    pub(in crate::incident) put_off: u32,
    /// The receiver's error for its last call, until it accepts a notification again.
    pub(in crate::incident) untaken: Option<String>,
}

/// An update that is sent at `at`, or later if the incident is suppressed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::incident) struct News {
    pub(in crate::incident) at: Ts,
    pub(in crate::incident) why: Why,
}

//! The outcome of an attempt to send a message.

use stepwatch_model::time::Ts;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum DeliveryOutcome {
    Delivered,
    Failed {
        error: String,
    },
    Retry {
        next: Ts,
        ambiguous: bool,
        /// The end of a pause that a working receiver asked for. Such an attempt does not count
        /// towards the limit of attempts.
        pause: Option<Ts>,
        error: String,
    },
}

impl DeliveryOutcome {
    /// Whether the attempt counts towards the limit of attempts.
    pub(super) fn counts(&self) -> bool {
        !matches!(self, Self::Retry { pause: Some(_), .. })
    }
}

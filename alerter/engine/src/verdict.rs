//! What a detector says, in the vocabulary that incidents, messages and `backtest` share.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
pub use stepwatch_model::{Cause, Evidence, Kind, Observation, Sentence, Severity, Suspect, Target, Unit};

use crate::time::Ts;

/// What happened to a condition that a detector watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// It holds: opens an incident, or updates one (a higher severity raises it).
    Raise,
    /// It holds of something else too, of which whoever knows what was said before knows nothing:
    /// another GPU, another port.
    Another,
    /// There is more of the same, which is worth a word and no second call.
    More,
    /// It no longer holds.
    Clear,
    /// It happened and is already over: an incident that opens and resolves at once.
    Note,
    /// Nothing has been heard of it since [`Verdict::ts`], so that it counts as over; nobody said
    /// that it is.
    Lapse,
}

impl Change {
    /// It holds.
    pub fn raises(self) -> bool {
        self == Self::Raise || self.says_more()
    }

    /// It does not hold any more, as far as is known.
    pub fn ends(self) -> bool {
        matches!(self, Self::Clear | Self::Lapse)
    }

    /// It held before, of less.
    pub fn says_more(self) -> bool {
        matches!(self, Self::Another | Self::More)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub change: Change,
    pub kind: Kind,
    pub severity: Severity,
    /// The signal it was seen in: `loss`, `grad_norm`, `step_time`, ...
    pub signal: Cow<'static, str>,
    /// The last step the detector had been fed.
    pub step: i64,
    pub ts: Ts,
    /// Estimated onset.
    pub start_step: i64,
    pub value: f64,
    pub expected: f64,
    /// How far out, in the detector's own unit (mostly robust sigmas or CUSUM over its bound).
    pub score: f64,
    /// One sentence a person can act on, with numbers; it knows what it is about and whom it names.
    pub why: Sentence,
    pub suspects: Vec<Suspect>,
}

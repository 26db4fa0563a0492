//! The findings of detectors.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{Kind, Sentence, Severity, Suspect, Ts};

/// What happened to a condition that a detector watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It holds: opens an incident, or updates one (a higher severity raises it).
    Raise,
    /// It also holds of another GPU or port, which a person who acknowledged the incident has not
    /// seen.
    Another,
    /// There is more of the same, which is worth an update and no second call.
    More,
    /// It no longer holds.
    Clear,
    /// It happened and is already over: an incident that opens and resolves at once.
    Note,
    /// It was not reported again since [`Finding::ts`], so that it counts as over, although its end
    /// was not reported.
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

/// What a detector found of a run or a node, or an alert of another program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
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
    #[serde(with = "stepwatch_wire::num::any")]
    pub value: f64,
    #[serde(with = "stepwatch_wire::num::any")]
    pub expected: f64,
    /// How far out, in the detector's own unit (mostly robust sigmas or CUSUM over its bound).
    #[serde(with = "stepwatch_wire::num::any")]
    pub score: f64,
    /// One sentence a person can act on, with numbers. It keeps the targets that it names.
    pub why: Sentence,
    pub suspects: Vec<Suspect>,
}

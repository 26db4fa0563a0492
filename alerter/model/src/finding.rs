//! The findings of detectors.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{Kind, Sentence, Severity, Suspect, Ts};

/// A transition of a condition that a detector watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The condition holds. Opens an incident or updates it; a higher severity raises it.
    Raise,
    /// The condition also holds for another GPU or port, which a person who acknowledged the
    /// incident has not seen.
    Another,
    /// The condition has grown: this causes an update but no second call.
    More,
    /// The condition no longer holds.
    Clear,
    /// The condition began and already ended: the incident opens and resolves at once.
    Note,
    /// The condition was not reported again since [`Finding::ts`]. It counts as over, although its
    /// end was not reported.
    Lapse,
}

impl Change {
    /// Whether the condition holds.
    pub fn raises(self) -> bool {
        self == Self::Raise || self.says_more()
    }

    /// Whether the condition does not hold any more, as far as is known.
    pub fn ends(self) -> bool {
        matches!(self, Self::Clear | Self::Lapse)
    }

    /// Whether the condition already held, to a smaller extent.
    pub fn says_more(self) -> bool {
        matches!(self, Self::Another | Self::More)
    }
}

/// How many times as long a step is as expected, by a signal of the speed of a run: a time, or a
/// rate. NaN or infinite where nothing is expected.
pub fn slow_down(signal: &str, value: f64, expected: f64) -> f64 {
    if matches!(signal, "step_time" | "compute_time") { value / expected } else { expected / value }
}

/// A detector's result about a run or a node, or an alert of another program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub change: Change,
    pub kind: Kind,
    pub severity: Severity,
    /// The signal in which it was detected: `loss`, `grad_norm`, `step_time`, ...
    pub signal: Cow<'static, str>,
    /// The last step that the detector had received.
    pub step: i64,
    pub ts: Ts,
    /// The estimated step of the onset.
    pub start_step: i64,
    #[serde(with = "stepwatch_wire::num::any")]
    pub value: f64,
    #[serde(with = "stepwatch_wire::num::any")]
    pub expected: f64,
    /// The size of the deviation in the detector's own unit, mostly robust sigmas or CUSUM over its
    /// bound.
    #[serde(with = "stepwatch_wire::num::any")]
    pub score: f64,
    /// One sentence with numbers on which a person can act. It keeps the targets that it names.
    pub why: Sentence,
    pub suspects: Vec<Suspect>,
}

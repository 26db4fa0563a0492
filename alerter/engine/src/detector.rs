//! The detectors of a run's steps, and the one list that registers them.

use serde::{Deserialize, Serialize};

use crate::sample::StepSample;
use crate::verdict::Verdict;

/// A detector of one run's steps. O(1) state, no clock: everything it knows is in `self` and in the samples.
pub trait StepDetector {
    /// Takes the next sample of the run. Steps rise within an attempt; a new attempt may start lower.
    fn step(&mut self, s: &StepSample, out: &mut Vec<Verdict>);
}

/// One line a detector: its module under `detectors/` holds `Config` (serde, `Default`), and the detector itself (serde state),
/// built by `new(&Config)`.
macro_rules! detectors {
    ($($field:ident: $module:ident::$ty:ident,)*) => {
        /// Settings of every detector; every key has a default.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct DetectorsConfig { $(pub $field: crate::detectors::$module::Config,)* }

        /// The state of every step detector of one run.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        pub struct Detectors { $($field: crate::detectors::$module::$ty,)* }

        impl Detectors {
            pub fn new(config: &DetectorsConfig) -> Self {
                Self { $($field: crate::detectors::$module::$ty::new(&config.$field),)* }
            }

            pub fn step(&mut self, s: &StepSample, out: &mut Vec<Verdict>) {
                $(self.$field.step(s, out);)*
            }
        }
    };
}

detectors! {}

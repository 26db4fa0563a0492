//! The states in which the time of a run is counted, and counts of a time.

use serde::{Deserialize, Serialize};

macro_rules! states {
    ($($name:ident $text:literal $about:literal;)*) => {
        /// What the GPUs of a run do at a time. The text forms are a contract: they are the label
        /// `state` of the metrics.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum TimeState { $(#[doc = $about] $name),* }

        impl TimeState {
            pub const ALL: [Self; STATES] = [$(Self::$name),*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// What the state means, for people.
            pub fn about(self) -> &'static str {
                match self { $(Self::$name => $about),* }
            }
        }
    };
}

pub(super) const STATES: usize = 11;

states! {
    Productive "productive" "Steps, for as long as they usually take.";
    Slowed "slowed" "The part of steps beyond the usual.";
    Stalled "stalled" "No step, and nothing declared that explains it.";
    Saving "saving" "Steps waited for a checkpoint to be saved.";
    Loading "loading" "A checkpoint was loaded.";
    Starting "starting" "From the first report of an attempt to its first step.";
    Evaluating "evaluating" "Steps waited for an evaluation.";
    Recomputing "recomputing" "Steps that the run had made before a restart.";
    Down "down" "Between two attempts of one job, and the step that the first did not end.";
    Idle "idle" "From the last step of an attempt to its end.";
    Unknown "unknown" "Nothing was received, or it is not known whether the job held its GPUs.";
}

/// Counts of a time, each by [`TimeState`] in its order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Milliseconds.
    pub(super) time: [i64; STATES],
    /// The same times the GPUs of the run.
    pub(super) gpu_time: [i64; STATES],
    /// Where a price is configured.
    pub(super) dollars: [f64; STATES],
    /// Attempts whose start was seen and that made a step.
    pub(super) starts: u32,
    /// Attempts that ended before their end.
    pub(super) interruptions: u32,
}

impl Totals {
    /// The milliseconds, those of the GPUs, and the dollars of a state.
    pub fn from_states(
        counts: impl IntoIterator<Item = (TimeState, [i64; 2], f64)>,
        starts: u32,
        interruptions: u32,
    ) -> Self {
        let mut totals = Self { starts, interruptions, ..Self::default() };
        for (state, [ms, gpu_ms], dollars) in counts {
            totals.add(state, ms, gpu_ms, dollars);
        }
        totals
    }

    pub(super) fn add(&mut self, state: TimeState, ms: i64, gpu_ms: i64, dollars: f64) {
        let at = state as usize;
        self.time[at] = self.time[at].saturating_add(ms);
        self.gpu_time[at] = self.gpu_time[at].saturating_add(gpu_ms);
        self.dollars[at] += dollars;
    }

    /// Adds all of another.
    pub fn join(&mut self, other: &Self) {
        for state in TimeState::ALL {
            self.add(state, other.millis(state), other.gpu_millis(state), other.dollars[state as usize]);
        }
        self.starts = self.starts.saturating_add(other.starts);
        self.interruptions = self.interruptions.saturating_add(other.interruptions);
    }

    pub fn millis(&self, state: TimeState) -> i64 {
        self.time[state as usize]
    }

    pub fn gpu_millis(&self, state: TimeState) -> i64 {
        self.gpu_time[state as usize]
    }

    pub fn seconds(&self, state: TimeState) -> f64 {
        self.millis(state) as f64 / 1e3
    }

    /// None while the number of GPUs was never known.
    pub fn gpu_seconds(&self, state: TimeState) -> Option<f64> {
        let known = self.gpu_time.iter().any(|ms| *ms > 0);
        known.then(|| self.gpu_millis(state) as f64 / 1e3)
    }

    /// None without a configured price.
    pub fn dollars(&self, state: TimeState) -> Option<f64> {
        let priced = self.dollars.iter().any(|dollars| *dollars > 0.0);
        priced.then(|| self.dollars[state as usize])
    }

    /// Seconds of all states.
    pub fn total(&self) -> f64 {
        self.time.iter().sum::<i64>() as f64 / 1e3
    }

    /// The share of the time in which the run made steps that it keeps, at its usual speed.
    pub fn goodput(&self) -> Option<f64> {
        let total = self.total();
        (total > 0.0).then(|| self.seconds(TimeState::Productive) / total)
    }

    /// Attempts whose start was seen and that made a step.
    pub fn starts(&self) -> u32 {
        self.starts
    }

    /// Attempts that ended before their end.
    pub fn interruptions(&self) -> u32 {
        self.interruptions
    }
}

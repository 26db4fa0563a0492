//! The states in which the time of a run is counted, and counts of a time.

use serde::{Deserialize, Serialize};

use super::energy::Energy;

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
    pub(super) counts: Counts,
}

/// What is counted of a time, whatever its states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Attempts whose start was seen and that made a step.
    pub starts: u32,
    /// Attempts that ended before their end.
    pub interruptions: u32,
    /// Of steps that the run keeps, where the trainer reports them.
    pub tokens: f64,
    pub energy: Energy,
}

impl Counts {
    pub(super) fn join(&mut self, other: &Self) {
        self.starts = self.starts.saturating_add(other.starts);
        self.interruptions = self.interruptions.saturating_add(other.interruptions);
        self.tokens += other.tokens;
        self.energy.join(&other.energy);
    }

    /// Takes a share of what can be divided.
    pub(super) fn take_part(&mut self, share: f64) -> Self {
        let tokens = self.tokens * share;
        self.tokens -= tokens;
        Self { tokens, energy: self.energy.take_part(share), ..Self::default() }
    }
}

/// The least share of a time that must be measured before a ratio of it is given.
const MEASURED: f64 = 0.95;

impl Totals {
    /// The milliseconds, those of the GPUs, and the dollars of a state.
    pub fn from_states(states: impl IntoIterator<Item = (TimeState, [i64; 2], f64)>, counts: Counts) -> Self {
        let mut totals = Self { counts, ..Self::default() };
        for (state, [ms, gpu_ms], dollars) in states {
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
        self.counts.join(&other.counts);
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    pub fn millis(&self, state: TimeState) -> i64 {
        self.time[state as usize]
    }

    pub fn gpu_millis(&self, state: TimeState) -> i64 {
        self.gpu_time[state as usize]
    }

    /// The number of GPUs that all of it had, if that was one; 0 while it was not known.
    pub fn gpus(&self) -> Option<i64> {
        let first = self.gpu_time.iter().zip(self.time).find(|(_, ms)| *ms > 0);
        let gpus = first.map_or(0, |(gpu_ms, ms)| gpu_ms / ms);
        let is_one =
            self.gpu_time.iter().zip(self.time).all(|(gpu_ms, ms)| ms.checked_mul(gpus) == Some(*gpu_ms));
        is_one.then_some(gpus)
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
        self.time.iter().map(|ms| *ms as f64).sum::<f64>() / 1e3
    }

    /// The share of the time in which the run made steps that it keeps, at its usual speed.
    pub fn goodput(&self) -> Option<f64> {
        let total = self.total();
        (total > 0.0).then(|| self.seconds(TimeState::Productive) / total)
    }

    /// The share of the time in which steps were made that count for the run, however slow: the
    /// effective training time ratio.
    pub fn effective_training_time(&self) -> Option<f64> {
        let (total, slowed) = (self.total(), self.seconds(TimeState::Slowed));
        self.goodput().map(|goodput| goodput + slowed / total)
    }

    /// The share of the time of the GPUs of which their energy was measured.
    pub fn energy_measured(&self) -> Option<f64> {
        let all: f64 = self.gpu_time.iter().map(|ms| *ms as f64).sum();
        (all > 0.0).then(|| (self.counts.energy.gpu_ms as f64 / all).min(1.0))
    }

    /// None unless the energy of nearly all GPUs was measured.
    pub fn tokens_per_joule(&self) -> Option<f64> {
        let is_known = self.energy_measured().is_some_and(|share| share >= MEASURED);
        let Counts { tokens, energy, .. } = &self.counts;
        (is_known && *tokens > 0.0 && energy.joules > 0.0).then(|| tokens / energy.joules)
    }

    /// None without a configured price.
    pub fn tokens_per_dollar(&self) -> Option<f64> {
        let (tokens, dollars) = (self.counts.tokens, self.dollars.iter().sum::<f64>());
        (tokens > 0.0 && dollars > 0.0).then(|| tokens / dollars)
    }
}

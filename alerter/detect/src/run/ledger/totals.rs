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

const STATES: usize = 11;

states! {
    Productive "productive" "Steps, for as long as they usually take.";
    Slowed "slowed" "The part of steps beyond the usual.";
    Stalled "stalled" "No step, and nothing declared that explains it.";
    Saving "saving" "Steps waited for a checkpoint to be saved.";
    Loading "loading" "A checkpoint was loaded.";
    Starting "starting" "From the allocation of an attempt, or its first report, to its first step.";
    Evaluating "evaluating" "Steps waited for an evaluation.";
    Recomputing "recomputing" "Steps that the run had made before a restart.";
    Down "down" "Between two attempts of one job, and the step that the first did not end.";
    Idle "idle" "From the last step of an attempt to its end, and until its GPUs are given back.";
    Unknown "unknown" "Nothing was received, or it is not known whether the job held its GPUs.";
}

/// Counts of a time, by [`TimeState`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// In the order of the states, without those that had no time: most runs have two or three.
    amounts: Vec<Amount>,
    pub(super) counts: Counts,
}

/// The time of one state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Amount {
    state: TimeState,
    ms: i64,
    /// `ms` times the GPUs of the run.
    gpu_ms: i64,
    /// Zero unless a price is configured.
    dollars: f64,
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
        let at = self.amounts.iter().position(|amount| amount.state >= state);
        let at = at.unwrap_or(self.amounts.len());
        match self.amounts.get_mut(at) {
            Some(amount) if amount.state == state => {
                amount.ms = amount.ms.saturating_add(ms);
                amount.gpu_ms = amount.gpu_ms.saturating_add(gpu_ms);
                amount.dollars += dollars;
            }
            _ => self.amounts.insert(at, Amount { state, ms, gpu_ms, dollars }),
        }
    }

    /// Adds all of another.
    pub fn join(&mut self, other: &Self) {
        for amount in &other.amounts {
            self.add(amount.state, amount.ms, amount.gpu_ms, amount.dollars);
        }
        self.counts.join(&other.counts);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.amounts.is_empty() && self.counts == Counts::default()
    }

    /// Forgets all of it, and keeps the room for as many states.
    pub(super) fn clear(&mut self) {
        self.amounts.clear();
        self.counts = Counts::default();
    }

    /// Takes a share of all that can be divided. What is counted by ones stays.
    pub(super) fn take_part(&mut self, share: f64) -> Self {
        let part = |ms: i64| (ms as f64 * share).round() as i64;
        let take = |of: &mut Amount| {
            let ms = part(of.ms);
            // What had one number of GPUs still has it.
            let has_one = of.ms > 0 && of.gpu_ms % of.ms == 0;
            let gpu_ms = if has_one { ms * (of.gpu_ms / of.ms) } else { part(of.gpu_ms) };
            let taken = Amount { state: of.state, ms, gpu_ms, dollars: of.dollars * share };
            of.ms -= taken.ms;
            of.gpu_ms -= taken.gpu_ms;
            of.dollars -= taken.dollars;
            taken
        };
        let amounts = self.amounts.iter_mut().map(take).collect();
        Self { amounts, counts: self.counts.take_part(share) }
    }

    fn amount(&self, state: TimeState) -> Option<&Amount> {
        self.amounts.iter().find(|amount| amount.state == state)
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    pub fn millis(&self, state: TimeState) -> i64 {
        self.amount(state).map_or(0, |amount| amount.ms)
    }

    pub fn gpu_millis(&self, state: TimeState) -> i64 {
        self.amount(state).map_or(0, |amount| amount.gpu_ms)
    }

    /// The number of GPUs that all of it had, if that was one; 0 while it was not known.
    pub fn gpus(&self) -> Option<i64> {
        let first = self.amounts.iter().find(|amount| amount.ms > 0);
        let gpus = first.map_or(0, |amount| amount.gpu_ms / amount.ms);
        let is_one = self.amounts.iter().all(|amount| amount.ms.checked_mul(gpus) == Some(amount.gpu_ms));
        is_one.then_some(gpus)
    }

    pub fn seconds(&self, state: TimeState) -> f64 {
        self.millis(state) as f64 / 1e3
    }

    /// None while the number of GPUs was never known.
    pub fn gpu_seconds(&self, state: TimeState) -> Option<f64> {
        let known = self.amounts.iter().any(|amount| amount.gpu_ms > 0);
        known.then(|| self.gpu_millis(state) as f64 / 1e3)
    }

    /// None without a configured price.
    pub fn dollars(&self, state: TimeState) -> Option<f64> {
        let priced = self.amounts.iter().any(|amount| amount.dollars > 0.0);
        priced.then(|| self.amount(state).map_or(0.0, |amount| amount.dollars))
    }

    /// Seconds of all states.
    pub fn total(&self) -> f64 {
        self.amounts.iter().map(|amount| amount.ms as f64).sum::<f64>() / 1e3
    }

    /// Whether the number of GPUs was known at all times.
    pub fn is_sized(&self) -> bool {
        let mut used = self.amounts.iter().filter(|amount| amount.ms > 0).peekable();
        used.peek().is_some() && used.all(|amount| amount.gpu_ms > 0)
    }

    /// The share of the time of the GPUs in these states; of the time of the run where the number
    /// of GPUs was not known at all times.
    pub fn share(&self, states: &[TimeState]) -> Option<f64> {
        let is_sized = self.is_sized();
        let weight = |amount: &Amount| if is_sized { amount.gpu_ms as f64 } else { amount.ms as f64 };
        let all: f64 = self.amounts.iter().map(weight).sum();
        let part: f64 = self.amounts.iter().filter(|amount| states.contains(&amount.state)).map(weight).sum();
        (all > 0.0).then(|| part / all)
    }

    /// The share of the time in which the run made steps that it keeps, at its usual speed.
    pub fn goodput(&self) -> Option<f64> {
        self.share(&[TimeState::Productive])
    }

    /// The share of the time in which steps were made that count for the run, however slow: the
    /// effective training time ratio.
    pub fn effective_training_time(&self) -> Option<f64> {
        self.share(&[TimeState::Productive, TimeState::Slowed])
    }

    /// The share of the time of the GPUs of which their energy was measured.
    pub fn energy_measured(&self) -> Option<f64> {
        let all: f64 = self.amounts.iter().map(|amount| amount.gpu_ms as f64).sum();
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
        let dollars: f64 = self.amounts.iter().map(|amount| amount.dollars).sum();
        let tokens = self.counts.tokens;
        (tokens > 0.0 && dollars > 0.0).then(|| tokens / dollars)
    }
}

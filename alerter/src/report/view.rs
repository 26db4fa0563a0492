//! A report as numbers.

use serde::{Deserialize, Serialize};
use stepwatch_detect::run::{Counts, TimeState, Totals};
use utoipa::ToSchema;

use crate::save_interval::SaveIntervalView;
use crate::state_time::StateTime;
use crate::when::When;

/// Where the GPU time of a period went, what it cost, and what interrupted it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ReportView {
    /// Whole hours, from the first on and before the second.
    pub since: When,
    pub until: When,
    /// Only this run.
    pub run: Option<String>,
    /// All runs together; its name is empty.
    pub total: RunReport,
    /// Those with the most GPU time first.
    pub runs: Vec<RunReport>,
    /// Runs beyond the limit of those that are listed.
    pub runs_hidden: usize,
    /// Runs whose number of GPUs was not known at some time: the shares of all runs together are
    /// without them, unless there is no other.
    #[serde(default)]
    pub runs_unsized: usize,
    /// What interrupted runs, the most frequent first.
    pub interruptions: Vec<InterruptionView>,
    /// The incidents that lost most GPU hours, without those that a person called false.
    pub costliest: Vec<CostlyView>,
    /// How often the runs that go on save, and how often they should, those first that would save
    /// most.
    #[serde(default)]
    pub saves: Vec<SavesView>,
    /// Pages and tickets of the period.
    pub incidents: usize,
}

/// A run in a period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RunReport {
    pub run: String,
    /// Of the run, whatever it did.
    pub seconds: f64,
    /// Of its GPUs; `null` while their number was not known.
    pub gpu_hours: Option<f64>,
    /// What these cost, where a price is configured.
    pub dollars: Option<f64>,
    /// The share of the time of its GPUs in which it made steps that it keeps, at its usual speed.
    /// Of its own time where the number of its GPUs was not known.
    pub goodput: Option<f64>,
    /// The same if it did so in the time of which nothing is known.
    pub goodput_at_most: Option<f64>,
    /// Attempts that ended before their end.
    pub interruptions: u32,
    /// The mean time between two of them; `null` without one.
    pub seconds_between_interruptions: Option<f64>,
    /// Attempts whose start was seen and that made a step.
    pub starts: u32,
    /// The mean time from the allocation of such an attempt, or else its first report, to its first
    /// step, loading included.
    pub seconds_to_first_step: Option<f64>,
    /// The share of its time in which steps waited for checkpoints to be saved.
    pub save_share: Option<f64>,
    /// Of steps that it keeps, where its trainer reports them.
    pub tokens: Option<f64>,
    /// Kilowatt-hours of its nodes; `null` where no GPU reports its energy.
    pub energy_kwh: Option<f64>,
    /// The share of the time of its GPUs of which their energy was measured.
    pub energy_measured: Option<f64>,
    /// Kilograms of CO2 equivalent, where an intensity is configured.
    pub carbon_kg: Option<f64>,
    /// `null` unless the energy of nearly all GPUs was measured.
    pub tokens_per_joule: Option<f64>,
    pub tokens_per_dollar: Option<f64>,
    /// Its time by state.
    pub time: Vec<StateTime>,
}

/// The saves of a run that goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct SavesView {
    pub run: String,
    pub interval: SaveIntervalView,
}

/// How often runs were interrupted by one thing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct InterruptionView {
    /// What is suspected first: `GPU`, `network`, `node`, ...
    pub component: String,
    /// `hardware`, `software` or `unknown`.
    pub class: String,
    /// The title of the incidents.
    pub what: String,
    pub count: u32,
    /// Of all interruptions.
    pub share: f64,
    /// None if the size of one of the runs was not known.
    pub lost_gpu_hours: Option<f64>,
    /// None without a configured price too.
    pub lost_dollars: Option<f64>,
    /// The mean time between two of them, of the time of all runs together.
    pub seconds_between: f64,
}

/// An incident and what it lost for certain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct CostlyView {
    pub id: String,
    pub run: String,
    pub title: String,
    pub summary: String,
    pub opened_at: When,
    pub lasted_seconds: f64,
    /// None if the size of the run was not known.
    pub lost_gpu_hours: Option<f64>,
    pub lost_dollars: Option<f64>,
}

impl RunReport {
    pub(super) fn new(run: &str, totals: &Totals) -> Self {
        let seconds = totals.total();
        let known: Option<f64> = TimeState::ALL.into_iter().map(|state| totals.gpu_seconds(state)).sum();
        let dollars: Option<f64> = TimeState::ALL.into_iter().map(|state| totals.dollars(state)).sum();
        let Counts { starts, interruptions, tokens, energy } = *totals.counts();
        let positive = |value: f64| (value > 0.0).then_some(value);
        let mean = |time: f64, count: u32| (count > 0).then(|| time / f64::from(count));
        let [starting, loading] =
            [TimeState::Starting, TimeState::Loading].map(|state| totals.seconds(state));
        let mut report = Self {
            run: run.to_owned(),
            seconds,
            gpu_hours: known.map(|seconds| seconds / 3600.0),
            dollars,
            goodput: None,
            goodput_at_most: None,
            interruptions,
            seconds_between_interruptions: mean(seconds, interruptions),
            starts,
            seconds_to_first_step: mean(starting + loading, starts),
            save_share: None,
            tokens: positive(tokens),
            energy_kwh: positive(energy.joules / 3.6e6),
            energy_measured: totals.energy_measured().filter(|_| energy.joules > 0.0),
            carbon_kg: positive(energy.carbon_grams / 1e3),
            tokens_per_joule: totals.tokens_per_joule(),
            tokens_per_dollar: totals.tokens_per_dollar(),
            time: StateTime::all(totals),
        };
        report.take_shares(totals);
        report
    }

    /// Takes over how the time of runs was used, in shares.
    pub(super) fn take_shares(&mut self, totals: &Totals) {
        self.goodput = totals.goodput();
        self.goodput_at_most = totals.share(&[TimeState::Productive, TimeState::Unknown]);
        self.save_share = totals.share(&[TimeState::Saving]);
    }
}

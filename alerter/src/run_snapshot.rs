//! A copy of one run's state from the engine, for the API and the read model.

use stepwatch_detect::Run;
use stepwatch_detect::run::{HourTotals, RunState, Totals};
use stepwatch_model::SaveInterval;
use stepwatch_model::time::Ts;
use stepwatch_respond::matcher::Labels;

use crate::save_interval::SaveIntervalView;

/// The state of a run. Times are those of the alerter's clock.
#[derive(Debug, Clone)]
pub struct RunSnapshot {
    pub run: String,
    /// The labels that the run declared.
    pub labels: Labels,
    pub attempt: u32,
    pub last_step: Option<i64>,
    /// When the last step arrived, by our clock.
    pub last_step_at: Option<Ts>,
    pub last_heard: Ts,
    pub steps: u64,
    pub world: Option<u32>,
    pub ranks: usize,
    /// The sources that feed the run now, and those that were lost.
    pub sources: Vec<String>,
    pub lost_sources: Vec<String>,
    pub last_checkpoint_step: Option<i64>,
    /// The number of step records that repeated one of the same rank and attempt.
    pub duplicates: u64,
    /// The number of step records of ranks that have not followed a restart.
    pub stale: u64,
    /// The exit code, once the run is over.
    pub ended: Option<i64>,
    /// How the run's time was used, and the time of the hour that is not over.
    pub totals: Totals,
    /// The same as of the last commit: no restart goes back behind it.
    pub stored_totals: Totals,
    pub open_hour: Option<HourTotals>,
    /// The number of its GPUs, if it is known, and the price of one.
    pub gpus: Option<u32>,
    pub dollars_per_gpu_hour: Option<f64>,
    /// How often it saves, and how often it should.
    pub save_interval: Option<SaveInterval>,
}

impl RunSnapshot {
    /// How often it saves, and how often it should, for people.
    pub(crate) fn save_interval_view(&self) -> Option<SaveIntervalView> {
        let interval = self.save_interval.as_ref()?;
        Some(SaveIntervalView::new(interval, self.gpus, self.dollars_per_gpu_hour))
    }

    pub(crate) fn from_run(run: &Run, save_interval: Option<SaveInterval>) -> Self {
        let f: &RunState = &run.state;
        Self {
            run: f.name.clone(),
            labels: f.labels.clone(),
            attempt: f.attempt,
            last_step: f.last_step,
            last_step_at: f.last_step.map(|_| f.last_progress),
            last_heard: f.last_heard,
            steps: f.total_steps,
            world: f.world,
            ranks: f.ranks.len(),
            sources: f.live.keys().cloned().collect(),
            lost_sources: f.lost.keys().cloned().collect(),
            last_checkpoint_step: f.checkpoints.last_step,
            duplicates: run.counters.duplicates,
            stale: run.counters.stale,
            ended: f.ended.as_ref().map(|e| e.code),
            totals: f.ledger.totals(),
            stored_totals: Totals::default(),
            open_hour: f.ledger.open_hour(),
            gpus: f.gpus(),
            dollars_per_gpu_hour: run.dollars_per_gpu_hour(),
            save_interval,
        }
    }
}

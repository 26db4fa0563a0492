//! How often a run saves, and how often it should, as the API and reports show it.

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Span;
use stepwatch_model::{FailureSource, IntervalBound, SaveInterval, number};
use utoipa::ToSchema;

/// The interval of a run's saves, and the one that costs least (Young and Daly).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SaveIntervalView {
    /// Seconds that a save costs: those for which it blocks the steps and, if that is sure, those
    /// that steps take longer while it is written.
    pub save_seconds: f64,
    /// Seconds of work between two saves, and the steps in them.
    pub interval_seconds: f64,
    pub interval_steps: Option<i64>,
    pub best_seconds: f64,
    pub best_steps: Option<i64>,
    /// `shortest` or `longest`, if the best interval is bounded by what is advised at all.
    pub bound: Option<String>,
    /// The mean seconds between two failures of the run.
    pub seconds_between_failures: f64,
    /// Where that is from: `own` failures, those of the whole `fleet`, or `assumed` as with Llama
    /// 3.
    pub failures_from: String,
    /// How many failures that were, unless it is assumed.
    pub failures: Option<u64>,
    /// The shares of the time that saves and lost work cost, with either interval.
    pub cost: f64,
    pub best_cost: f64,
    /// Whether the best interval is advised: the present one is far from it, and costs more.
    pub advised: bool,
    /// What the best interval saves in a day; `null` while the number of GPUs is unknown.
    pub saved_gpu_hours_a_day: Option<f64>,
    /// The same, where a price is configured.
    pub saved_dollars_a_day: Option<f64>,
}

impl SaveIntervalView {
    pub(crate) fn new(i: &SaveInterval, gpus: Option<u32>, dollars_per_gpu_hour: Option<f64>) -> Self {
        let (failures_from, failures) = match i.failures.source {
            FailureSource::Own { failures } => ("own", Some(failures)),
            FailureSource::Fleet { failures, .. } => ("fleet", Some(failures)),
            FailureSource::Assumed { .. } => ("assumed", None),
        };
        let bound = i.bound.map(|bound| match bound {
            IntervalBound::Shortest => "shortest",
            IntervalBound::Longest => "longest",
        });
        let saved = gpus.map(|gpus| i.gpu_hours_a_day(gpus));
        Self {
            save_seconds: i.save_seconds,
            interval_seconds: i.interval_seconds,
            interval_steps: i.interval_steps,
            best_seconds: i.best_seconds,
            best_steps: i.best_steps,
            bound: bound.map(str::to_owned),
            seconds_between_failures: i.failures.seconds_between,
            failures_from: failures_from.to_owned(),
            failures,
            cost: i.cost,
            best_cost: i.best_cost,
            advised: i.is_far_off(),
            saved_gpu_hours_a_day: saved,
            saved_dollars_a_day: saved.zip(dollars_per_gpu_hour).map(|(hours, rate)| hours * rate),
        }
    }

    /// `every 125 steps (8m 20s)`
    pub(crate) fn interval(&self) -> String {
        every(self.interval_steps, self.interval_seconds)
    }

    /// The best interval, or that the present one is fine.
    pub(crate) fn best(&self) -> String {
        if self.advised { every(self.best_steps, self.best_seconds) } else { "as it is".to_owned() }
    }

    /// `6h, from 5 failures of the run`
    pub(crate) fn failures(&self) -> String {
        let between = Span::from_secs_f64(self.seconds_between_failures);
        match (self.failures_from.as_str(), self.failures) {
            ("own", Some(failures)) => format!("{between}, from {failures} of the run"),
            ("fleet", Some(failures)) => format!("{between}, from {failures} of all runs"),
            _ => format!("{between}, assumed"),
        }
    }

    /// What the best interval saves in a day, where it is advised and its size is known.
    pub(crate) fn saved(&self) -> Option<String> {
        let hours = self.saved_gpu_hours_a_day.filter(|_| self.advised)?;
        let dollars = self.saved_dollars_a_day.map(|dollars| format!(" (${dollars:.2})"));
        Some(format!("{} GPU hours{}", number(hours), dollars.unwrap_or_default()))
    }
}

fn every(steps: Option<i64>, seconds: f64) -> String {
    let span = Span::from_secs_f64(seconds);
    match steps {
        Some(1) => format!("every step ({span})"),
        Some(steps) => format!("every {steps} steps ({span})"),
        None => format!("every {span}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use stepwatch_model::{FailureRate, SaveCost};

    use super::*;

    /// A run that saves for 30 s every 500 s, and failed five times, each after 6 hours.
    pub(crate) fn often() -> SaveInterval {
        let saves = SaveCost {
            seconds: 30.0,
            measured: 8,
            interval: 500.0,
            lag: 0.0,
            saves_counted: 1.0,
            step_seconds: Some(4.0),
        };
        let source = FailureSource::Own { failures: 5 };
        SaveInterval::of(saves, FailureRate { seconds_between: 21_600.0, source }).unwrap()
    }

    #[test]
    fn it_is_shown_with_what_it_saves_where_the_size_is_known() {
        let view = SaveIntervalView::new(&often(), Some(512), Some(2.5));
        assert_eq!(
            (view.interval(), view.best()),
            ("every 125 steps (8m 20s)".into(), "every 280 steps (18m 38s)".into())
        );
        assert_eq!(view.failures(), "6h, from 5 of the run");
        assert_eq!(view.saved().as_deref(), Some("198.9 GPU hours ($497.26)"));
        let unknown = SaveIntervalView::new(&often(), None, Some(2.5));
        assert_eq!((unknown.saved(), unknown.saved_dollars_a_day), (None, None));
    }

    #[test]
    fn an_interval_near_the_best_stays() {
        let saves = SaveCost {
            seconds: 30.0,
            measured: 8,
            interval: 900.0,
            lag: 0.0,
            saves_counted: 1.0,
            step_seconds: None,
        };
        let source = FailureSource::Assumed { nodes: 500 };
        let near = SaveInterval::of(saves, FailureRate { seconds_between: 21_600.0, source }).unwrap();
        let view = SaveIntervalView::new(&near, Some(512), Some(2.5));
        assert_eq!((view.interval(), view.best()), ("every 15m".into(), "as it is".into()));
        assert_eq!((view.failures(), view.saved()), ("6h, assumed".into(), None));
    }
}

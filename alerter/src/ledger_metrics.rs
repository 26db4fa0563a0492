//! Metrics of how the time of each run was used, and its cost.
//!
//! They are those of the last commit. What is newer is counted again after a kill, and Prometheus
//! takes a counter that goes back for one that began at zero.

use core::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use stepwatch_detect::run::{TimeState, Totals};

use crate::run_snapshot::RunSnapshot;
use crate::runtime::Views;

/// The most runs whose time is exposed: each has up to 28 series.
const MAX_EXPOSED: usize = 500;

#[derive(Debug)]
pub(crate) struct LedgerMetrics(Arc<Views>);

impl LedgerMetrics {
    /// Adds the families to a registry.
    pub(crate) fn register(views: Arc<Views>, registry: &mut Registry) {
        registry.register_collector(Box::new(Self(views)));
    }
}

/// A family with one series per state: its name, its help text, and the value of a state.
struct PerState {
    name: &'static str,
    help: &'static str,
    count: fn(&Totals, TimeState) -> Option<f64>,
}

const PER_STATE: [PerState; 2] = [
    PerState {
        name: "train_gpu_seconds",
        help: "Time of the GPUs of a run by what they did, each moment in one state; absent while the number of GPUs is not known",
        count: Totals::gpu_seconds,
    },
    PerState {
        name: "train_cost_dollars",
        help: "What that time cost at cost_per_gpu_hour; absent where no price is configured",
        count: Totals::dollars,
    },
];

/// A family with one number per run.
struct PerRun {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    value: fn(&Totals) -> Option<f64>,
}

const PER_RUN: [PerRun; 6] = [
    PerRun {
        name: "train_goodput_ratio",
        help: "Share of the time of a run in which it made steps that it keeps, at its usual speed",
        kind: MetricType::Gauge,
        value: Totals::goodput,
    },
    PerRun {
        name: "train_effective_training_time_ratio",
        help: "Share of the time of a run in which it made steps that it keeps, at whatever speed",
        kind: MetricType::Gauge,
        value: Totals::effective_training_time,
    },
    PerRun {
        name: "train_energy_joules",
        help: "Energy that the GPUs of a run used by their own counters, times energy.node_ratio; absent where none is read",
        kind: MetricType::Counter,
        value: |totals| Some(totals.counts().energy.joules).filter(|joules| *joules > 0.0),
    },
    PerRun {
        name: "train_carbon_grams",
        help: "CO2 equivalent that was emitted for that energy, by energy.pue and energy.carbon_g_per_kwh; absent unless configured",
        kind: MetricType::Counter,
        value: |totals| Some(totals.counts().energy.carbon_grams).filter(|grams| *grams > 0.0),
    },
    PerRun {
        name: "train_tokens_per_joule",
        help: "Tokens of the steps that a run keeps for each joule; absent unless the energy of 95 % of its GPU time was measured",
        kind: MetricType::Gauge,
        value: Totals::tokens_per_joule,
    },
    PerRun {
        name: "train_tokens_per_dollar",
        help: "Tokens of the steps that a run keeps for each dollar; absent where no price is configured",
        kind: MetricType::Gauge,
        value: Totals::tokens_per_dollar,
    },
];

impl Collector for LedgerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let view = self.0.get();
        let reported = |run: &&RunSnapshot| run.stored_totals.total() > 0.0;
        let mut runs: Vec<&RunSnapshot> = view.runs.iter().filter(reported).collect();
        let hidden = runs.len().saturating_sub(MAX_EXPOSED);
        runs.truncate(MAX_EXPOSED);
        for PerState { name, help, count } in PER_STATE {
            // A family without samples is left out, because readers expect some.
            if runs.iter().all(|run| count(&run.stored_totals, TimeState::Productive).is_none()) {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for run in &runs {
                for state in TimeState::ALL {
                    let Some(count) = count(&run.stored_totals, state) else { continue };
                    let labels = [("run", run.run.as_str()), ("state", state.as_str())];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        for PerRun { name, help, kind, value } in PER_RUN {
            let mut valued = runs.iter().filter_map(|run| Some((run, value(&run.stored_totals)?))).peekable();
            if valued.peek().is_none() {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (run, value) in valued {
                let labels = [("run", run.run.as_str())];
                let sample = family.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => ConstCounter::new(value).encode(sample)?,
                    _ => ConstGauge::new(value).encode(sample)?,
                }
            }
        }
        let help = "Runs beyond the limit of those whose time is exposed";
        let family =
            encoder.encode_descriptor("stepwatch_alerter_ledgers_hidden", help, None, MetricType::Gauge)?;
        ConstGauge::new(hidden as f64).encode(family)
    }
}

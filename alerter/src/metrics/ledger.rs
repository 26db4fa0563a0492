//! Where the time of each run went, and what it cost.

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

/// Runs whose time is exposed: 23 series each.
const MAX_EXPOSED: usize = 500;

#[derive(Debug)]
pub struct LedgerMetrics(Arc<Views>);

impl LedgerMetrics {
    /// Adds the families to a registry.
    pub fn register(views: Arc<Views>, registry: &mut Registry) {
        registry.register_collector(Box::new(Self(views)));
    }
}

/// The name and the help text of a family, and the count of one state.
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

impl Collector for LedgerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let view = self.0.get();
        let reported = |run: &&RunSnapshot| run.totals.total() > 0.0;
        let mut runs: Vec<&RunSnapshot> = view.runs.iter().filter(reported).collect();
        let hidden = runs.len().saturating_sub(MAX_EXPOSED);
        runs.truncate(MAX_EXPOSED);
        for PerState { name, help, count } in PER_STATE {
            // No family without a sample: whoever finds its name there expects some.
            if runs.iter().all(|run| count(&run.totals, TimeState::Productive).is_none()) {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for run in &runs {
                for state in TimeState::ALL {
                    let Some(count) = count(&run.totals, state) else { continue };
                    let labels = [("run", run.run.as_str()), ("state", state.as_str())];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let help = "Share of the time of a run in which it made steps that it keeps, at its usual speed";
        if !runs.is_empty() {
            let mut family =
                encoder.encode_descriptor("train_goodput_ratio", help, None, MetricType::Gauge)?;
            for run in &runs {
                let Some(goodput) = run.totals.goodput() else { continue };
                let labels = [("run", run.run.as_str())];
                ConstGauge::new(goodput).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Runs beyond the limit of those whose time is exposed";
        let family =
            encoder.encode_descriptor("stepwatch_alerter_ledgers_hidden", help, None, MetricType::Gauge)?;
        ConstGauge::new(hidden as f64).encode(family)
    }
}

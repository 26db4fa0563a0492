//! The activity of a GPU's units between two passes, from two samples of its counters. Available
//! from Hopper on.
//!
//! The counters are the driver's own, so this does not compete with a profiler for the hardware, as
//! DCGM's fields do. On a partitioned GPU, each instance is sampled.

use std::time::{Duration, Instant};

use stepwatch_sys::nvml::{Device, metric};

use super::decode;
use super::families::{
    DRAM, GRAPHICS, MIG_DRAM, MIG_OCCUPANCY, MIG_SM, MIG_TENSOR, NVLINK_RX_RATE, NVLINK_TX_RATE, OCCUPANCY,
    PCIE_RX_RATE, PCIE_TX_RATE, PIPE, SM, TENSOR,
};
use crate::family::Family;
use crate::nvml::Gpu;
use crate::samples::Samples;

/// According to NVML, samples closer together have no meaning.
const MIN_APART: Duration = Duration::from_millis(100);
/// After a longer time, counters may have wrapped, or the GPU may have been reset.
const MAX_APART: Duration = Duration::from_mins(2);

const MIB: f64 = 1_048_576.0;
/// The upper bound of a plausible rate, in MiB/s.
const MAX_RATE: f64 = 1e8;

/// A metric, its family with the value of the second label, and whether it is a ratio or a rate.
struct Row {
    metric: u32,
    family: &'static Family,
    label: Option<&'static str>,
    ratio: bool,
}

const fn ratio(metric: u32, family: &'static Family) -> Row {
    Row { metric, family, label: None, ratio: true }
}

const fn pipe(metric: u32, pipe: &'static str) -> Row {
    Row { metric, family: &PIPE, label: Some(pipe), ratio: true }
}

const fn rate(metric: u32, family: &'static Family) -> Row {
    Row { metric, family, label: None, ratio: false }
}

/// The metrics of a whole GPU.
static WHOLE: &[Row] = &[
    ratio(metric::GRAPHICS, &GRAPHICS),
    ratio(metric::SM, &SM),
    ratio(metric::OCCUPANCY, &OCCUPANCY),
    ratio(metric::TENSOR, &TENSOR),
    ratio(metric::DRAM, &DRAM),
    pipe(metric::FP64, "fp64"),
    pipe(metric::FP32, "fp32"),
    pipe(metric::FP16, "fp16"),
    pipe(metric::INTEGER, "integer"),
    rate(metric::PCIE_TX, &PCIE_TX_RATE),
    rate(metric::PCIE_RX, &PCIE_RX_RATE),
    rate(metric::NVLINK_TX, &NVLINK_TX_RATE),
    rate(metric::NVLINK_RX, &NVLINK_RX_RATE),
];

/// The metrics of a MIG instance.
static INSTANCE: &[Row] = &[
    ratio(metric::SM, &MIG_SM),
    ratio(metric::OCCUPANCY, &MIG_OCCUPANCY),
    ratio(metric::TENSOR, &MIG_TENSOR),
    ratio(metric::DRAM, &MIG_DRAM),
];

pub(super) fn read(gpu: &mut Gpu, out: &mut Samples) {
    if gpu.ask("gpm support", 0, Device::gpm_supported) != Some(true) {
        return;
    }
    let mut instances: Vec<u32> = gpu.instances.iter().map(|i| i.gpu_instance).collect();
    instances.dedup();
    let whole = instances.is_empty();
    gpu.samples.retain(|instance, _| instance.map_or(whole, |i| instances.contains(&i)));
    if whole {
        sample(gpu, None, WHOLE, out);
    }
    for instance in instances {
        sample(gpu, Some(instance), INSTANCE, out);
    }
}

/// Samples the counters. The time is taken with each sample, because its place within a pass
/// varies.
fn sample(gpu: &mut Gpu, instance: Option<u32>, rows: &[Row], out: &mut Samples) {
    let apart = gpu.samples.get(&instance).map(|(at, _)| at.elapsed());
    if apart.is_some_and(|apart| apart < MIN_APART) {
        return;
    }
    let which = instance.map_or(0, |i| i + 1);
    let Some(after) = gpu.ask("gpm sample", which, |g| g.gpm_sample(instance)) else { return };
    let now = Instant::now();
    let before = gpu.samples.remove(&instance).filter(|_| apart.is_some_and(|apart| apart <= MAX_APART));
    if let Some((_, before)) = before {
        let metrics: Vec<u32> = rows.iter().map(|r| r.metric).collect();
        let values = gpu.ask("gpm metrics", which, |g| g.gpm_metrics(&before, &after, &metrics));
        let id = gpu.id.clone();
        let instance = instance.map(|i| i.to_string());
        for (row, value) in rows.iter().zip(values.into_iter().flatten()) {
            let value = value.ok().and_then(|v| scaled(row, v));
            match instance.as_deref().or(row.label) {
                Some(label) => out.maybe(row.family, &[&id.uuid, label], value),
                None => out.maybe(row.family, &[&id.uuid], value),
            }
        }
    }
    gpu.samples.insert(instance, (now, after));
}

fn scaled(row: &Row, value: f64) -> Option<f64> {
    if row.ratio { decode::ratio(value) } else { (0.0..MAX_RATE).contains(&value).then_some(value * MIB) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fit_their_families() {
        for (rows, labels) in [(WHOLE, 1), (INSTANCE, 2)] {
            for row in rows {
                let own = usize::from(row.label.is_some());
                assert_eq!(row.family.labels.len(), labels + own, "{}", row.family.name);
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_but_ratios_and_rates(value in proptest::prelude::any::<f64>()) {
            for row in WHOLE {
                let most = if row.ratio { 1.0 } else { MAX_RATE * MIB };
                proptest::prop_assert!(scaled(row, value).is_none_or(|v| (0.0..=most).contains(&v)));
            }
        }
    }
}

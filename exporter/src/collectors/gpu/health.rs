//! Streams samples of each GPU, so that the alerter can compare GPUs with their peers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stepwatch_wire::{Event, Kind, Value};

use super::families::values_of;
use super::families::{
    CLOCK, CLOCK_MAX, ECC, ENERGY, MARGIN, NVLINK_ERRORS, PCIE_ERRORS, POWER, POWER_LIMIT, REMAPPED, SM,
    TEMPERATURE, TENSOR, THROTTLE, THROTTLED, UTILIZATION,
};
use super::pass::{GpuReading, Reading};
use crate::collector::Context;
use crate::family::Family;
use crate::origin::Origin;
use crate::samples::{Labels, Samples};

const EVERY: Duration = Duration::from_secs(10);

/// Names in the stream with their series: the family, and the values of its labels besides the GPU.
static PLAIN: &[(&str, &Family, &[&str])] = &[
    ("sm_clock_hertz", &CLOCK, &["sm"]),
    ("sm_clock_max_hertz", &CLOCK_MAX, &["sm"]),
    ("memory_clock_hertz", &CLOCK, &["memory"]),
    ("memory_clock_max_hertz", &CLOCK_MAX, &["memory"]),
    ("power_watts", &POWER, &[]),
    ("power_limit_watts", &POWER_LIMIT, &[]),
    ("energy_joules", &ENERGY, &[]),
    ("temperature_celsius", &TEMPERATURE, &["gpu"]),
    ("memory_temperature_celsius", &TEMPERATURE, &["memory"]),
    ("temperature_margin_celsius", &MARGIN, &[]),
    ("utilization_ratio", &UTILIZATION, &[]),
    ("sm_active_ratio", &SM, &[]),
    ("tensor_active_ratio", &TENSOR, &[]),
    ("remapped_rows_correctable", &REMAPPED, &["correctable"]),
    ("remapped_rows_uncorrectable", &REMAPPED, &["uncorrectable"]),
    ("pcie_replays", &PCIE_ERRORS, &["replay"]),
];

#[derive(Debug, Default)]
pub(super) struct Health(Option<Instant>);

impl Health {
    pub(super) fn report(&mut self, cx: &Context<'_>, reading: &Reading, slow: &BTreeMap<String, Samples>) {
        if self.0.is_some_and(|published| published.elapsed() < EVERY) {
            return;
        }
        self.0 = Some(Instant::now());
        for gpu in reading.gpus.iter().filter(|gpu| gpu.is_read()) {
            cx.hub.publish(Origin::Node, sample(gpu, slow.get(&gpu.id.uuid), reading.time));
        }
    }
}

/// The sample of one GPU.
pub(super) fn sample(gpu: &GpuReading, slow: Option<&Samples>, time: f64) -> Event {
    let mut event = Event { ts: Some(time), name: Some("gpu".into()), ..Event::new(Kind::Health) };
    event.extra.insert("gpu".into(), Value::Text(gpu.id.uuid.clone()));
    event.extra.insert("index".into(), Value::Number(gpu.id.index.into()));
    event.extra.insert("pci".into(), Value::Text(gpu.id.pci.clone()));
    let sources = || [Some(&gpu.fast), slow].into_iter().flatten();
    for (name, family, labels) in PLAIN {
        let labels: Vec<&str> = std::iter::once(gpu.id.uuid.as_str()).chain(labels.iter().copied()).collect();
        if let Some(value) = sources().find_map(|s| s.get(family, &labels)) {
            event.m.set(name, value);
        }
    }
    for (labels, value) in values_of(&gpu.fast, &THROTTLE) {
        event.m.set(&format!("throttle_{}", labels.get(1)), value);
    }
    for (labels, value) in values_of(&gpu.fast, &THROTTLED) {
        event.m.set(&format!("throttled_{}_seconds", labels.get(1)), value);
    }
    if let Some(slow) = slow {
        for severity in ["corrected", "uncorrected"] {
            let counted = |labels: &Labels| labels.get(1) == severity && labels.get(2) == "volatile";
            sum(&mut event, &format!("ecc_{severity}"), values_of(slow, &ECC).filter(|(l, _)| counted(l)));
        }
        sum(&mut event, "nvlink_errors", values_of(slow, &NVLINK_ERRORS));
    }
    event
}

/// Adds the sum of the values; nothing if there are none.
fn sum<'a>(event: &mut Event, name: &str, values: impl Iterator<Item = (&'a Labels, f64)>) {
    let total = values.fold(None, |total: Option<f64>, (_, value)| Some(total.unwrap_or(0.0) + value));
    if let Some(total) = total {
        event.m.set(name, total);
    }
}

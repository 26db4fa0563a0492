//! The meaning of a series, which is decided once, when the series first arrives.
//!
//! Series of our own exporters, of NVIDIA's DCGM exporter and of node_exporter are known by their
//! names (`table.rs`); rules of the operator take precedence. An unknown series is counted, and
//! only its key is kept.

mod table;

use std::sync::Arc;

use stepwatch_detect::SCRAPED;
use stepwatch_wire::words;

use crate::config::{Config, RunRule};
use crate::selector::{NAME, value_of};
use crate::signal::{DeviceName, Generic, Instance, Meaning, Signal, XidSeries};
use table::{DEVICES, Device, OTHER_RUN_LABELS, OTHERS, OURS, PREFIXES, RUN_LABELS};

/// Labels of the replica in a pair of Prometheus servers. Both replicas send the same series.
const REPLICA: [&str; 2] = ["__replica__", "prometheus_replica"];
/// Labels that name a node, in order of precedence.
const NODE_LABELS: [&str; 6] =
    ["node", "Hostname", "hostname", "nodename", "kubernetes_node", "exported_instance"];
/// The most bytes kept of a series' selector.
const MAX_TEXT: usize = 1024;

/// The sorted labels of a series, without the replica labels.
pub(crate) fn identity<'a>(labels: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    labels.iter().copied().filter(|(name, _)| !REPLICA.contains(name)).collect()
}

/// The selector of a series for people: its name and all labels but the replica labels.
pub(crate) fn text_of(labels: &[(&str, &str)]) -> String {
    let mut text = words::line(value_of(labels, NAME)).into_owned();
    for (i, (name, value)) in labels.iter().filter(|(name, _)| *name != NAME).enumerate() {
        let (open, value) = (if i == 0 { "{" } else { "," }, words::line(value));
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        let more = format!("{open}{}=\"{value}\"", words::line(name));
        if text.len() + more.len() > MAX_TEXT {
            text.push_str(if i == 0 { "{…" } else { ",…" });
            break;
        }
        text.push_str(&more);
    }
    if labels.iter().any(|(name, _)| *name != NAME) {
        text.push('}');
    }
    text
}

/// The meaning of a series; `None` if it is only counted. The labels are sorted.
pub(crate) fn of(labels: &[(&str, &str)], config: &Config) -> Option<Meaning> {
    if config.drop.iter().any(|s| s.selects(labels)) {
        return None;
    }
    if let Some(rule) = config.runs.iter().find(|rule| rule.series.selects(labels)) {
        return by_rule(rule, labels);
    }
    if config.generic.iter().any(|s| s.selects(labels)) {
        return Some(Meaning::Generic(Box::new(generic(labels))));
    }
    let name = value_of(labels, NAME);
    if name == "up" {
        return Some(Meaning::Up { instance: instance(labels) });
    }
    let known = ours(name, labels).or_else(|| device(name, labels)).or_else(|| xid(name, labels));
    known.or_else(|| others(name, labels))
}

fn word(text: &str) -> Arc<str> {
    words::line(text).chars().take(stepwatch_wire::MAX_TEXT).collect::<String>().into()
}

fn instance(labels: &[(&str, &str)]) -> Instance {
    let address = value_of(labels, "instance");
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let node = NODE_LABELS.iter().map(|name| value_of(labels, name)).find(|value| !value.is_empty());
    Instance { address: word(&format!("{SCRAPED}{address}")), node: word(node.unwrap_or(host)) }
}

fn run(labels: &[(&str, &str)], run: &str, rank: &str, signal: Signal) -> Option<Meaning> {
    let run = word(value_of(labels, run));
    // Trimmed as on every other input, so that no two runs differ only by blanks at the ends.
    let run = run.trim();
    if run.is_empty() {
        return None;
    }
    let rank = value_of(labels, rank).parse().ok();
    Some(Meaning::Run { instance: instance(labels), run: run.into(), rank, signal })
}

fn by_rule(rule: &RunRule, labels: &[(&str, &str)]) -> Option<Meaning> {
    let scale = rule.scale;
    let signal = match rule.signal.as_str() {
        "step" => Signal::Step,
        name => Signal::Metric { name: word(name), scale },
    };
    run(labels, &rule.run, &rule.rank, signal)
}

/// The meaning of a series of our own exporter.
fn ours(name: &str, labels: &[(&str, &str)]) -> Option<Meaning> {
    let signal = match name {
        "train_mfu_ratio" => Signal::Mfu { convention: word(value_of(labels, "convention")) },
        "train_custom" => Signal::Metric { name: word(value_of(labels, "name")), scale: 1.0 },
        "train_nonfinite_total" => Signal::NonFinite { name: word(value_of(labels, "what")) },
        "train_eval_loss" => Signal::EvalLoss { dataset: word(value_of(labels, "dataset")) },
        _ => OURS.iter().find(|(known, _)| *known == name).map(|(_, signal)| signal())?,
    };
    run(labels, "run", "rank", signal)
}

/// The meaning of a well-known name of other programs. An ambiguous name needs a label that names a
/// run.
fn others(name: &str, labels: &[(&str, &str)]) -> Option<Meaning> {
    let prefix = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    let base = prefix.unwrap_or(name);
    let (_, signal, scale) = OTHERS.iter().find(|(names, ..)| names.contains(&base))?;
    let labels_of_run = if prefix.is_some() { OTHER_RUN_LABELS } else { RUN_LABELS };
    let label = labels_of_run.iter().find(|label| !value_of(labels, label).is_empty())?;
    let signal = match *signal {
        "step" => Signal::Step,
        name => Signal::Metric { name: name.into(), scale: *scale },
    };
    run(labels, label, "rank", signal)
}

fn device(name: &str, labels: &[(&str, &str)]) -> Option<Meaning> {
    let row = DEVICES.iter().find(|row| {
        row.family == name && row.label.is_none_or(|(label, value)| value_of(labels, label) == value)
    })?;
    let device = match row.device {
        Device::Gpu => DeviceName::Gpu { uuid: uuid(labels)? },
        Device::Port => DeviceName::Port {
            device: word(value_of(labels, "device")),
            port: word(value_of(labels, "port")),
        },
    };
    let instance = instance(labels);
    (!instance.node.is_empty()).then_some(Meaning::Device {
        instance,
        device,
        name: row.reading,
        scale: row.scale,
    })
}

fn uuid(labels: &[(&str, &str)]) -> Option<Arc<str>> {
    let labels = ["UUID", "gpu", "uuid"].map(|label| value_of(labels, label));
    labels.into_iter().find(|uuid| uuid.starts_with("GPU-")).map(word)
}

/// The meaning of a series of XIDs.
fn xid(name: &str, labels: &[(&str, &str)]) -> Option<Meaning> {
    // Our exporter counts XIDs beyond its limit of codes as `other`; their code is unknown.
    let counter = |harmless| {
        let code = value_of(labels, "xid").parse().ok()?;
        Some((word(value_of(labels, "gpu")), XidSeries::Counter { code, harmless }))
    };
    let (gpu, series) = match name {
        "gpu_xid_errors_total" => counter(false)?,
        // The other family includes them, and only this one separates them from errors that stop a
        // run.
        "gpu_xid_nonfatal_errors_total" => counter(true)?,
        "DCGM_FI_DEV_XID_ERRORS" => (uuid(labels)?, XidSeries::LastCode),
        // From the page of an exporter that reads the kernel log, or that gets XIDs from NVML.
        "kernel_log_records_total" | "gpu_nvml_event_failures_total" => ("".into(), XidSeries::Read),
        _ => return None,
    };
    let instance = instance(labels);
    (!instance.node.is_empty()).then_some(Meaning::Xid { instance, gpu, series })
}

fn generic(labels: &[(&str, &str)]) -> Generic {
    let metric = value_of(labels, NAME);
    let run = RUN_LABELS.iter().map(|label| value_of(labels, label)).find(|value| !value.is_empty());
    let counter = ["_total", "_count", "_sum", "_bucket"].iter().any(|end| metric.ends_with(end));
    let node = NODE_LABELS.iter().map(|name| value_of(labels, name)).find(|value| !value.is_empty());
    let owned = |text: &str| word(text).to_string();
    Generic {
        text: text_of(labels),
        metric: owned(metric),
        job: owned(value_of(labels, "job")),
        run: owned(run.unwrap_or_default()).trim().to_owned(),
        node: owned(node.unwrap_or_default()),
        counter,
    }
}

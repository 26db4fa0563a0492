//! `metrics`: the reference of every family, from the constants that the exposition uses.
//!
//! Dashboards, rules and documentation are checked against it, so a family that is missing here
//! does not exist.

mod sources;

use std::fmt::Write as _;

use serde::Serialize;

pub use self::sources::{OMISSIONS, Omission};
use crate::collectors::{COLLECTORS, CollectorsConfig, Entry as Collector};
use crate::family::{Family, Shown};
use crate::{drops, exposition, hub, ingest, schedule, source, stream, training};

/// A family and its source.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Entry {
    #[serde(flatten)]
    pub family: &'static Family,
    pub source: &'static str,
}

/// Families that the service kit registers, without a [`Family`].
static KIT: &[Family] = &[
    Family::gauge(
        "stepwatch_exporter_build_info",
        "",
        &["version", "revision"],
        "The running build, as labels of a constant 1",
    ),
    Family::gauge("stepwatch_exporter_http_connections", "", &[], "Open HTTP connections"),
    Family::counter(
        "stepwatch_exporter_http_connections_refused_total",
        "",
        &["reason"],
        "Connections closed before a request: over the limit (capacity), idle and closed for a newcomer at the limit (evicted), failed TLS handshake, failed accept",
    ),
    Family::counter(
        "stepwatch_exporter_http_requests_rate_limited_total",
        "",
        &[],
        "HTTP requests answered 429 by the rate_limit of the web configuration",
    ),
    Family::counter(
        "stepwatch_exporter_http_bodies_refused_total",
        "",
        &[],
        "Request bodies broken off or not read: no room beside those of other requests, or too slow",
    ),
    Family::counter(
        "stepwatch_exporter_http_requests_foreign_total",
        "",
        &[],
        "Requests of browsers that were refused: for a page of another site, or by a name that is not in web.hosts",
    ),
    Family::counter(
        "stepwatch_exporter_http_requests_total",
        "",
        &["code"],
        "HTTP requests answered, by status code",
    ),
];

/// Every family of every source, in the order of sources.
pub fn entries() -> Vec<Entry> {
    let own: [(&str, &[&Family]); 8] = [
        ("training", training::FAMILIES),
        ("training", source::FAMILIES),
        ("ingest", hub::FAMILIES),
        ("ingest", drops::FAMILIES),
        ("ingest", ingest::FAMILIES),
        ("stream", stream::FAMILIES),
        ("scheduler", schedule::FAMILIES),
        ("page", exposition::FAMILIES),
    ];
    fn all(source: &'static str, families: &[&'static Family]) -> Vec<Entry> {
        families.iter().map(|family| Entry { family, source }).collect()
    }
    let mut entries: Vec<Entry> = own.into_iter().flat_map(|(source, f)| all(source, f)).collect();
    entries.extend(crate::sources::FAMILIES.iter().flat_map(|families| all("sources", families)));
    entries.extend(COLLECTORS.iter().flat_map(|c| all(c.name, c.families)));
    entries.extend(KIT.iter().map(|family| Entry { family, source: "service" }));
    entries
}

/// All families without their sources.
pub fn families() -> Vec<&'static Family> {
    entries().into_iter().map(|entry| entry.family).collect()
}

pub fn text() -> String {
    let mut out = String::new();
    for Entry { family, source } in entries() {
        let labels = family.labels.join(",");
        let unit = if family.unit.is_empty() { "-" } else { family.unit };
        let _ = write!(
            out,
            "{}{{{labels}}} {} {unit} ({source})\n    {}.\n",
            family.name,
            family.kind.as_str(),
            family.help
        );
        if let Some(shown) = shown(family.shown) {
            let _ = writeln!(out, "    {shown}.");
        }
    }
    out.push_str("\nCollectors\n");
    for Row { collector: Collector { name, about, needs, cost, .. }, every } in rows() {
        let _ = write!(out, "{name} ({every}): {about}\n    Needs {needs}.\n    Costs {cost}.\n");
    }
    out.push_str("\nNot exported, and why\n");
    for Omission { what, why } in OMISSIONS {
        let _ = write!(out, "{what}\n    {why}.\n");
    }
    out
}

/// How a family is left out by default; `None` if it is not.
fn shown(shown: Shown) -> Option<&'static str> {
    match shown {
        Shown::Always => None,
        Shown::UnlessZero => {
            Some("Series that are zero are left out, unless collectors.X.metrics.include names the family")
        }
        Shown::OnRequest => Some("Not on the page, unless collectors.X.metrics.include names the family"),
    }
}

/// A collector in the reference.
struct Row {
    collector: &'static Collector,
    every: String,
}

fn rows() -> impl Iterator<Item = Row> {
    COLLECTORS.iter().map(|entry| {
        let built = (entry.build)(&CollectorsConfig::default());
        let every = built.map_or_else(
            || "off by default".to_owned(),
            |(_, rhythm)| format!("every {} s", rhythm.interval.as_secs_f64()),
        );
        Row { collector: entry, every }
    })
}

pub fn json() -> String {
    let lines = entries();
    serde_json::to_string_pretty(&lines).unwrap_or_default() + "\n"
}

pub fn markdown() -> String {
    let mut out =
        String::from("| Name | Type | Unit | Labels | Source | Help |\n|---|---|---|---|---|---|\n");
    for Entry { family, source } in entries() {
        let labels = family.labels.join(", ");
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {labels} | {source} | {} |",
            family.name,
            family.kind.as_str(),
            family.unit,
            [Some(family.help), shown(family.shown)]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(". ")
                .replace('|', "\\|")
        );
    }
    out.push_str("\n| Collector | Reads | By default | Needs | Costs |\n|---|---|---|---|---|\n");
    for Row { collector: Collector { name, about, needs, cost, .. }, every } in rows() {
        let _ = writeln!(out, "| `{name}` | {about} | {every} | {needs} | {cost} |");
    }
    out.push_str("\n| Not exported | Why |\n|---|---|\n");
    for Omission { what, why } in OMISSIONS {
        let _ = writeln!(out, "| {what} | {why} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::FamilyType;
    use std::collections::BTreeSet;

    #[test]
    fn every_family_keeps_the_rules_of_names() {
        let mut seen = BTreeSet::new();
        let prefixes = [
            "train_",
            "gpu_",
            "rdma_",
            "nic_",
            "pci_",
            "kernel_",
            "job_",
            "stepwatch_exporter_",
            "edac_",
            "clock_",
            "config_",
            "mount_",
            "lustre_",
            "nfs_",
            "disk_",
            "nccl_ras_",
            "service_",
            "slurm_",
            "kubernetes_",
            "node_test_",
        ];
        for Entry { family: f, source } in entries() {
            assert!(seen.insert(f.name), "{} is declared twice", f.name);
            assert!(prefixes.iter().any(|p| f.name.starts_with(p)), "{}", f.name);
            assert_eq!(f.name.ends_with("_total"), f.kind == FamilyType::Counter, "{}", f.name);
            let plain = f.name.strip_suffix("_total").unwrap_or(f.name);
            assert!(plain.ends_with(f.unit), "{} is not in {}", f.name, f.unit);
            assert!(!f.help.is_empty() && !f.help.ends_with('.') && !f.help.contains('\n'), "{}", f.name);
            // Prometheus adds its own `job` label to everything. Only families about jobs may keep
            // theirs (honor_labels).
            let reserved = |label: &&str| *label == "le" || *label == "job" && source != "job";
            assert!(!f.labels.iter().any(reserved), "{}", f.name);
        }
        // Dashboards, rules and users rely on these names.
        for name in [
            "train_loss",
            "train_grad_norm",
            "train_learning_rate",
            "train_step",
            "train_steps_total",
            "train_step_duration_seconds",
            "train_tokens_total",
            "train_tokens_per_second",
            "train_mfu_ratio",
            "train_nonfinite_total",
            "train_last_step_timestamp_seconds",
            "train_checkpoint_last_success_timestamp_seconds",
            "train_grad_norm_max",
            "train_loss_max",
        ] {
            assert!(seen.contains(name), "{name}");
        }
    }

    #[test]
    fn the_reference_reads_well() {
        let text = text();
        insta::assert_snapshot!(text.lines().take(4).collect::<Vec<_>>().join("\n"));
        let tables = entries().len() + COLLECTORS.len() + OMISSIONS.len();
        assert_eq!(
            markdown().lines().count(),
            tables + 3 * 2 + 2,
            "three tables with their heads, and two lines between"
        );
        assert!(text.contains("\nclock (every 10 s): the clock"), "{text}");
        let parsed: serde_json::Value = serde_json::from_str(&json()).unwrap();
        assert_eq!(parsed[0]["name"], "train_run_info");
    }

    #[test]
    fn every_collector_says_what_it_needs() {
        let plain = |text: &str| !text.is_empty() && !text.ends_with('.') && !text.contains(['|', '\n']);
        assert!(COLLECTORS.iter().all(|c| plain(c.needs) && plain(c.cost)));
        assert!(OMISSIONS.iter().all(|o| plain(o.what) && plain(o.why)));
        // The replacement that an omission names exists.
        let names: BTreeSet<&str> = entries().iter().map(|e| e.family.name).collect();
        let words =
            OMISSIONS.iter().flat_map(|o| o.why.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')));
        for word in
            words.filter(|w| ["gpu_", "rdma_", "nic_", "job_", "kernel_"].iter().any(|p| w.starts_with(p)))
        {
            assert!(names.contains(word), "{word}");
        }
    }

    /// Values that the sources of hardware offer, by their names here.
    #[test]
    fn what_can_be_known_of_the_hardware_is_exported() {
        let names: BTreeSet<&str> = entries().iter().map(|e| e.family.name).collect();
        let wanted = "gpu_info gpu_utilization_ratio gpu_memory_controller_utilization_ratio gpu_memory_used_bytes gpu_memory_free_bytes \
            gpu_memory_reserved_bytes gpu_memory_total_bytes gpu_temperature_celsius gpu_temperature_margin_celsius \
            gpu_temperature_threshold_celsius gpu_power_watts gpu_power_instant_watts gpu_energy_joules_total gpu_power_limit_watts \
            gpu_clock_hertz gpu_clock_max_hertz gpu_throttle_active gpu_throttled_seconds_total gpu_performance_state gpu_ecc_errors_total \
            gpu_sram_ecc_errors_total gpu_sram_ecc_threshold_exceeded gpu_remapped_rows gpu_row_remap_pending gpu_row_remap_failed \
            gpu_row_remap_banks gpu_retired_pages gpu_recovery_action gpu_pcie_link_generation gpu_pcie_link_width \
            gpu_pcie_link_max_generation gpu_pcie_link_max_width gpu_pcie_errors_total gpu_pcie_transmit_bytes_per_second \
            gpu_pcie_receive_bytes_per_second gpu_nvlink_up gpu_nvlink_speed_bytes_per_second gpu_nvlink_transmit_bytes_total \
            gpu_nvlink_receive_bytes_total gpu_nvlink_errors_total gpu_nvlink_symbol_ber gpu_fabric_state gpu_fabric_health gpu_fabric_info \
            gpu_sm_active_ratio gpu_sm_occupancy_ratio gpu_tensor_active_ratio gpu_dram_active_ratio gpu_processes gpu_mig_info \
            gpu_persistence_mode gpu_xid_errors_total rdma_info rdma_port_state rdma_port_physical_state rdma_port_up \
            rdma_port_rate_bytes_per_second rdma_port_transmit_bytes_total rdma_port_receive_bytes_total rdma_port_errors_total \
            rdma_port_link_downed_total rdma_port_transmit_wait_ticks_total rdma_hw_counter_total nic_up nic_speed_bytes_per_second \
            nic_carrier_changes_total nic_ethtool_total pci_link_speed_transfers_per_second pci_link_width \
            pci_link_max_speed_transfers_per_second pci_link_max_width pci_aer_errors_total edac_errors_total kernel_hung_tasks_total \
            clock_synced clock_offset_seconds clock_max_error_seconds kernel_oom_kills_total mount_responsive lustre_healthy \
            kernel_events_total job_info gpu_job_info gpu_pod_info";
        let absent: Vec<_> = wanted.split_whitespace().filter(|name| !names.contains(name)).collect();
        assert!(absent.is_empty(), "neither exported nor explained: {absent:?}");
    }
}

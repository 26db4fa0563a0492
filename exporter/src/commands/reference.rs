//! `metrics`: the reference of every family, made from the constants that the page is made from.
//!
//! Dashboards, rules and documentation are checked against it, so a family that is not here does not exist.

use std::fmt::Write as _;

use serde::Serialize;

use crate::collectors::COLLECTORS;
use crate::family::Family;
use crate::{drops, hub, ingest, page, schedule, source, sources, state, stream, training};

/// A family and where it comes from.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Entry {
    #[serde(flatten)]
    pub family: &'static Family,
    pub source: &'static str,
}

/// Registered by the service kit, which knows no [`Family`].
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
        "Connections closed before a request: over the cap, failed TLS handshake, failed accept",
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
    let own: [(&str, &[&Family]); 9] = [
        ("training", training::FAMILIES),
        ("training", source::FAMILIES),
        ("ingest", hub::FAMILIES),
        ("state", state::FAMILIES),
        ("ingest", drops::FAMILIES),
        ("ingest", ingest::FAMILIES),
        ("stream", stream::FAMILIES),
        ("scheduler", schedule::FAMILIES),
        ("page", page::FAMILIES),
    ];
    fn all(source: &'static str, families: &[&'static Family]) -> Vec<Entry> {
        families.iter().map(|family| Entry { family, source }).collect()
    }
    let mut entries: Vec<Entry> = own.into_iter().flat_map(|(source, f)| all(source, f)).collect();
    entries.extend(sources::FAMILIES.iter().flat_map(|families| all("sources", families)));
    entries.extend(COLLECTORS.iter().flat_map(|c| all(c.name, c.families)));
    entries.extend(KIT.iter().map(|family| Entry { family, source: "service" }));
    entries
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
    }
    out
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
            family.help.replace('|', "\\|")
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Kind;
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
            "mount_",
            "lustre_",
            "nfs_",
            "disk_",
            "nccl_ras_",
        ];
        for Entry { family: f, .. } in entries() {
            assert!(seen.insert(f.name), "{} is declared twice", f.name);
            assert!(prefixes.iter().any(|p| f.name.starts_with(p)), "{}", f.name);
            assert_eq!(f.name.ends_with("_total"), f.kind == Kind::Counter, "{}", f.name);
            let plain = f.name.strip_suffix("_total").unwrap_or(f.name);
            assert!(plain.ends_with(f.unit), "{} is not in {}", f.name, f.unit);
            assert!(!f.help.is_empty() && !f.help.ends_with('.') && !f.help.contains('\n'), "{}", f.name);
            assert!(f.labels.iter().all(|l| *l != "le" && *l != "job"), "{}", f.name);
        }
        // Names that dashboards, rules and people outside rely on.
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
        assert_eq!(markdown().lines().count(), entries().len() + 2);
        let parsed: serde_json::Value = serde_json::from_str(&json()).unwrap();
        assert_eq!(parsed[0]["name"], "train_run_info");
    }
}

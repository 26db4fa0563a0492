//! Pages of metrics that have everything: each family of the reference, with its labels, in four
//! series, so that what is well and what is not are there at once. Labels are those of the real
//! programs; values are made up.

use std::fmt::Write as _;

use stepwatch_tests::families::Family;

/// Series of each family.
const SERIES: usize = 4;

/// Values of labels that queries choose by; all others are called `label-0` and `label-1`.
const VALUES: &[(&str, &[&str])] = &[
    ("action", &["reset", "none"]),
    ("availability", &["none", "low"]),
    ("counter", &["np_cnp_sent"]),
    ("domain", &["sm"]),
    ("errors", &["3"]),
    ("event", &["gpu_xid", "mlx5_health"]),
    ("how", &["value"]),
    ("job", &["4711"]),
    ("lifetime", &["volatile"]),
    ("path", &["pix"]),
    ("phase", &["data", "ckpt"]),
    ("reason", &["hw_slowdown", "not_owner"]),
    ("run", &["a"]),
    ("sensor", &["gpu", "memory"]),
    ("severity", &["corrected", "uncorrected", "page", "ticket"]),
    ("signal", &["loss", "grad_norm"]),
    ("stage", &["save", "write"]),
    ("window", &["1m"]),
];

/// Gauges that are not 1 and 0 in turn: what should be there, what has just changed.
const EXPECTED: &[&str] = &["gpu_expected_count", "rdma_ports_expected"];
const MOVING: &[&str] = &["train_attempt", "train_checkpoint_last_step"];

/// What the alerter registers that is no counter without labels: kind and labels.
const OF_ALERTER: &[(&str, &str, &[&str])] = &[
    ("alerts", "gauge", &[]),
    ("api_refused", "counter", &["reason"]),
    ("api_token_requests", "counter", &["token"]),
    ("audit_entries", "counter", &["door", "outcome"]),
    ("audit_unwritten", "counter", &["reason"]),
    ("build_info", "gauge", &["version", "revision"]),
    ("calendar_events_skipped", "gauge", &["schedule"]),
    ("calendar_failures", "counter", &["schedule"]),
    ("calendar_read_timestamp_seconds", "gauge", &["schedule"]),
    ("callbacks", "counter", &["service", "result"]),
    ("clock_behind_seconds", "gauge", &[]),
    ("commit_seconds", "histogram", &[]),
    ("config_last_reload_success_timestamp_seconds", "gauge", &[]),
    ("config_last_reload_successful", "gauge", &[]),
    ("discovery_failures", "counter", &["mechanism"]),
    ("engine_seconds", "histogram", &[]),
    ("events", "counter", &["kind"]),
    ("expectations_hidden", "gauge", &[]),
    ("flawed_incidents", "gauge", &[]),
    ("heartbeats", "counter", &["result"]),
    ("http_connections", "gauge", &[]),
    ("http_connections_refused", "counter", &["reason"]),
    ("http_requests", "counter", &["code"]),
    ("incidents", "gauge", &["state", "severity"]),
    ("incidents_opened", "counter", &["kind", "severity"]),
    ("incidents_resolved_still_firing", "gauge", &["severity"]),
    ("incidents_silenced", "gauge", &[]),
    ("leader", "gauge", &[]),
    ("lease_epoch", "gauge", &[]),
    ("ledger_rows_dropped", "counter", &[]),
    ("ledgers_hidden", "gauge", &[]),
    ("malformed_records", "counter", &["reason"]),
    ("notification_latency_seconds", "histogram", &["receiver"]),
    ("notification_retries", "counter", &["receiver", "reason"]),
    ("notifications_failed", "counter", &["receiver", "action"]),
    ("notifications_left_out", "counter", &["receiver"]),
    ("notifications_sent", "counter", &["receiver", "action"]),
    ("notifications_unrecorded", "counter", &["receiver"]),
    ("outbox_depth", "gauge", &[]),
    ("outbox_oldest_page_age_seconds", "gauge", &[]),
    ("pending_effects", "gauge", &[]),
    ("receiver_down", "gauge", &["receiver"]),
    ("oncall_overrides", "gauge", &["state"]),
    ("oncall_overrides_forgotten", "counter", &[]),
    ("remote_write_dropped_samples", "counter", &["reason"]),
    ("remote_write_requests", "counter", &["code"]),
    ("remote_write_samples", "counter", &[]),
    ("remote_write_series", "gauge", &[]),
    ("remote_write_watched_samples", "counter", &[]),
    ("remote_write_watched_series", "gauge", &[]),
    ("replicas", "gauge", &[]),
    ("replicas_differing", "gauge", &[]),
    ("requests_shed", "counter", &["pool", "reason"]),
    ("runs", "gauge", &[]),
    ("series", "gauge", &[]),
    ("series_bytes", "gauge", &[]),
    ("series_dropped", "counter", &["what"]),
    ("silences", "gauge", &["state"]),
    ("slack_sockets", "gauge", &[]),
    ("source_refused", "counter", &["source", "reason"]),
    ("source_up", "gauge", &["source"]),
    ("sources", "gauge", &[]),
    ("template_failures", "counter", &["receiver"]),
    ("train_anomaly_score", "gauge", &["run", "signal"]),
    ("train_carbon_grams", "counter", &["run"]),
    ("train_cost_dollars", "counter", &["run", "state"]),
    ("train_effective_training_time_ratio", "gauge", &["run"]),
    ("train_energy_joules", "counter", &["run"]),
    ("train_expected", "gauge", &["run", "signal", "bound"]),
    ("train_goodput_ratio", "gauge", &["run"]),
    ("train_gpu_seconds", "counter", &["run", "state"]),
    ("train_tokens_per_dollar", "gauge", &["run"]),
    ("train_tokens_per_joule", "gauge", &["run"]),
];

/// A family of the alerter by the name that it is registered with.
pub(crate) fn of_alerter(registered: &str) -> Family {
    let short = registered.strip_prefix("stepwatch_alerter_").unwrap_or(registered);
    let row = OF_ALERTER.iter().find(|(name, ..)| *name == short);
    let (kind, labels) = row.map_or(("counter", &[][..]), |(_, kind, labels)| (*kind, *labels));
    let total = if kind == "counter" { "_total" } else { "" };
    Family {
        name: format!("{registered}{total}"),
        kind: kind.to_owned(),
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
    }
}

/// The page as it is at the `scrape`th time, `now` in Unix seconds.
pub(crate) fn render(families: &[Family], scrape: u64, now: f64) -> String {
    let mut page = String::new();
    for family in families {
        let mut before = Vec::new();
        for i in 0..SERIES {
            let labels = labels(family, i);
            if !before.contains(&labels) {
                series(&mut page, family, &labels, i, scrape, now);
                before.push(labels);
            }
        }
    }
    page
}

/// The pages of as many nodes in one, whose series name their node.
pub(crate) fn of_nodes(page: &str, nodes: usize) -> String {
    let mut all = String::new();
    for (node, line) in (0..nodes).flat_map(|node| page.lines().map(move |line| (node, line))) {
        let (name, rest) = line.split_once('{').unwrap_or((line, "}"));
        let comma = if rest.starts_with('}') { "" } else { "," };
        // Writing to a String does not fail.
        let _ = writeln!(all, "{name}{{instance=\"n{node}:9765\"{comma}{rest}");
    }
    all
}

fn series(page: &mut String, family: &Family, labels: &str, i: usize, scrape: u64, now: f64) {
    let name = &family.name;
    // Writing to a String does not fail.
    let _ = match family.kind.as_str() {
        "counter" => writeln!(page, "{name}{{{labels}}} {}", scrape * (i as u64 + 1)),
        "histogram" => {
            let comma = if labels.is_empty() { "" } else { "," };
            for le in ["0.1", "1", "+Inf"] {
                let _ = writeln!(page, "{name}_bucket{{{labels}{comma}le=\"{le}\"}} {scrape}");
            }
            writeln!(page, "{name}_sum{{{labels}}} {scrape}\n{name}_count{{{labels}}} {scrape}")
        }
        _ => writeln!(page, "{name}{{{labels}}} {}", gauge(name, i, scrape, now)),
    };
}

fn gauge(name: &str, i: usize, scrape: u64, now: f64) -> f64 {
    if name.contains("timestamp") {
        now - 60.0
    } else if EXPECTED.contains(&name) {
        8.0
    } else if MOVING.contains(&name) {
        scrape as f64
    } else {
        (1 - i % 2) as f64
    }
}

fn labels(family: &Family, i: usize) -> String {
    let text = |label: &String| format!("{label}=\"{}\"", value(&family.name, label, i));
    family.labels.iter().map(text).collect::<Vec<_>>().join(",")
}

fn value(family: &str, label: &str, i: usize) -> String {
    let values: &[&str] = match (family, label) {
        // Settings with an empty run are those of the node itself.
        ("config_fingerprint_info" | "config_value_info", "run") => &["a", ""],
        // Both severities that somebody is told of, in both states.
        ("stepwatch_alerter_incidents", "severity") => &["page", "ticket"],
        ("stepwatch_alerter_incidents", "state") => &["open", "open", "acknowledged", "acknowledged"],
        _ => VALUES.iter().find(|(name, _)| *name == label).map_or(&[], |(_, values)| values),
    };
    match values {
        [] => format!("{label}-{}", i % 2),
        _ => values[i % values.len()].to_owned(),
    }
}

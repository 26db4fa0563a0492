//! Every metric that a dashboard, a rule or a page of the documentation names exists.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stepwatch_model::Kind;
use stepwatch_tests::{bins, families};
use stepwatch_wire::conditions::NodeCondition;

/// How metric names of ours begin.
const PREFIXES: &[&str] = &[
    "train_",
    "gpu_",
    "rdma_",
    "nic_",
    "pci_",
    "kernel_",
    "mount_",
    "disk_",
    "clock_",
    "edac_",
    "job_",
    "node_",
    "stepwatch_exporter_",
    "stepwatch_alerter_",
];
/// Words whose names begin like those of metrics, beside kinds of incidents and conditions of
/// nodes.
const NO_METRICS: &[&str] = &["node_name", "gpu_uuid", "node_ratio", "node_taken"];
/// What the text format appends to the name of a family.
const SUFFIXES: &[&str] = &["_bucket", "_sum", "_count", "_total", "_info", "_created"];

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':')).filter(|w| !w.is_empty())
}

fn looks_like_ours(word: &str) -> bool {
    let is_kind = Kind::ALL.iter().any(|kind| kind.as_str() == word);
    let other = is_kind || NO_METRICS.contains(&word) || NodeCondition::parse(word).is_some();
    !other && PREFIXES.iter().any(|p| word.starts_with(p) && word.len() > p.len())
}

/// Words of PromQL that could be metrics: not labels, not label values, not recording rules.
fn metrics_in(promql: &str) -> BTreeSet<String> {
    let mut outside = String::new();
    let (mut depth, mut quoted) = (0, false);
    for c in promql.chars() {
        match c {
            '"' => quoted = !quoted,
            '{' if !quoted => depth += 1,
            '}' if !quoted => depth -= 1,
            c if depth == 0 && !quoted => outside.push(c),
            _ => {}
        }
        if depth == 0 && (c == '}' || c == '"') {
            outside.push(' ');
        }
    }
    words(&outside).filter(|w| looks_like_ours(w) && !w.contains(':')).map(str::to_owned).collect()
}

struct Known(BTreeSet<String>);

impl Known {
    async fn load() -> Self {
        let all = families::exporter_reference("text").await.unwrap();
        let mut known: BTreeSet<_> = words(&all).filter(|w| looks_like_ours(w)).map(str::to_owned).collect();
        known.extend(families::alerter());
        Self(known)
    }

    fn has(&self, name: &str) -> bool {
        let family = SUFFIXES.iter().find_map(|s| name.strip_suffix(s));
        self.0.contains(name) || family.is_some_and(|f| self.0.contains(f))
    }

    fn check(&self, found: BTreeSet<String>, file: &Path) {
        let unknown: Vec<_> = found.into_iter().filter(|n| !self.has(n)).collect();
        assert!(unknown.is_empty(), "{} names metrics that do not exist: {unknown:?}", file.display());
    }
}

fn files(dir: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(bins::root().join(dir)).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            let inner = path.strip_prefix(bins::root()).unwrap().to_string_lossy().into_owned();
            found.extend(files(&inner, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found
}

/// Every string under an `expr` or `query` key.
fn expressions(v: &Value, out: &mut Vec<String>) {
    match v {
        Value::Array(items) => items.iter().for_each(|i| expressions(i, out)),
        Value::Object(map) => {
            for (key, v) in map {
                match v {
                    Value::String(s) if matches!(key.as_str(), "expr" | "query" | "definition") => {
                        out.push(s.clone())
                    }
                    v => expressions(v, out),
                }
            }
        }
        _ => {}
    }
}

#[tokio::test]
async fn dashboards_query_metrics_that_exist() {
    let known = Known::load().await;
    let dashboards = files("dashboards", "json");
    assert!(!dashboards.is_empty(), "dashboards/ holds none");
    for path in dashboards {
        let mut found = Vec::new();
        expressions(&serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap(), &mut found);
        let names: BTreeSet<_> = found.iter().flat_map(|e| metrics_in(e)).collect();
        assert!(!names.is_empty(), "{} queries nothing of ours", path.display());
        known.check(names, &path);
    }
}

#[tokio::test]
async fn rules_use_metrics_that_exist() {
    let known = Known::load().await;
    let rules = files("rules", "yml");
    assert!(!rules.is_empty(), "rules/ holds none");
    for path in rules {
        // An expression may go on over indented lines; the words of the other keys are no metrics
        // of ours.
        let text = std::fs::read_to_string(&path).unwrap();
        let code: Vec<_> = text.lines().filter(|l| !l.trim_start().starts_with('#')).collect();
        known.check(metrics_in(&code.join("\n")), &path);
    }
}

#[tokio::test]
async fn the_documentation_names_metrics_that_exist() {
    let known = Known::load().await;
    let mut pages = files("docs", "md");
    pages.extend(files("deploy", "md"));
    pages.extend(["README.md", "ARCHITECTURE.md"].map(|f| bins::root().join(f)));
    for path in pages {
        let text = std::fs::read_to_string(&path).unwrap();
        // In running text only `code` names a metric; a wildcard (`train_*`) names a group, and
        // `.rs` ends the name of a file.
        let is_file = |code: &str| Path::new(code).extension().is_some_and(|end| end == "rs");
        let is_name = |code: &&str| !code.contains('*') && !is_file(code);
        let code = text.split('`').skip(1).step_by(2).filter(is_name).collect::<Vec<_>>().join("\n");
        known.check(metrics_in(&code), &path);
    }
}

/// Whoever is notified of a condition is led to its runbook, and looks for its name.
#[test]
fn runbooks_name_every_condition_of_a_node() {
    use stepwatch_wire::conditions::{Incident, NodeCondition};
    for condition in NodeCondition::ALL {
        let row = condition.row();
        let runbook = match row.incident {
            Incident::GpuFault => "gpu_fault",
            Incident::Throttle => "throttle",
            Incident::NodeFault => "node_fault",
        };
        let path = bins::root().join(format!("docs/runbooks/{runbook}.md"));
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(&format!("`{}`", row.name)), "docs/runbooks/{runbook}.md lacks {}", row.name);
    }
}

#[test]
fn metrics_are_distinguished_from_labels_and_values() {
    let found = metrics_in(
        r#"sum by (run) (rate(train_steps_total{job_name="gpu_x"}[5m])) / job:train_steps:rate5m"#,
    );
    assert_eq!(found, BTreeSet::from(["train_steps_total".to_owned()]));
}

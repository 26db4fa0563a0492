//! Each alert has tests of promtool in which it fires and in which it stays silent, keeps clusters
//! apart, and links to a runbook that exists. That the tests pass is what `cargo verify rules` asks
//! promtool.

use std::collections::BTreeSet;

use stepwatch_dashboards::rules::{Parameters, RUNBOOKS, generated};
use stepwatch_dashboards::{promql, root};

use crate::prometheus::files;

/// Alerts that are never silent, and why.
const NEVER_SILENT: &[(&str, &str)] =
    &[("StepwatchWatchdog", "it always fires, so that somebody notices when it stops coming")];

fn text(dir: &str) -> String {
    let mut paths = files(dir, "yml");
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// Each alert of the rules: its name, and its text up to the next.
fn alerts(rules: &str) -> Vec<(&str, &str)> {
    let alerts = rules.split("- alert: ").skip(1);
    alerts.map(|alert| (alert.lines().next().unwrap_or_default().trim(), alert)).collect()
}

/// Alerts that the tests expect to fire, and alerts that they expect not to.
fn expected(tests: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let (mut fire, mut silent) = (BTreeSet::new(), BTreeSet::new());
    // One test of an alert: `alertname: Name`, then `exp_alerts: []` or a list.
    for test in tests.split("alertname: ").skip(1) {
        let name = test.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let expectation = test.split_once("exp_alerts:").map_or("", |(_, rest)| rest.trim_start());
        if expectation.starts_with("[]") {
            silent.insert(name)
        } else {
            fire.insert(name)
        };
    }
    // A test of the series ALERTS: every sample that it expects is an alert that fires.
    for sample in tests.split("alertname=\"").skip(1) {
        fire.extend(sample.split('"').next());
    }
    (fire, silent)
}

#[test]
fn each_alert_fires_and_each_stays_silent() {
    let (rules, tests) = (text("rules"), text("rules/tests"));
    let (fire, silent) = expected(&tests);
    let alerts = alerts(&rules);
    assert!(alerts.len() > 60, "only {} alerts", alerts.len());
    let names: Vec<_> = alerts.iter().map(|(name, _)| *name).collect();
    let never = |name: &&str| NEVER_SILENT.iter().any(|(of, _)| of == name);
    let unfired: Vec<_> = names.iter().filter(|name| !fire.contains(**name)).collect();
    let unsilenced: Vec<_> = names.iter().filter(|name| !silent.contains(**name) && !never(name)).collect();
    assert!(unfired.is_empty(), "no test in which these fire: {unfired:?}");
    assert!(unsilenced.is_empty(), "no test in which these stay silent: {unsilenced:?}");
    let known: BTreeSet<_> = names.iter().copied().collect();
    let unknown: Vec<_> = fire.union(&silent).filter(|name| !known.contains(**name)).collect();
    assert!(unknown.is_empty(), "tests of alerts that do not exist: {unknown:?}");
}

#[test]
fn each_alert_has_a_severity_and_texts() {
    for (name, alert) in alerts(&text("rules")) {
        for part in ["labels: {severity: ", "summary: ", "description: >-", "runbook_url: "] {
            assert_eq!(alert.matches(part).count(), 1, "{name}: {part}");
        }
        assert!(alert.contains(RUNBOOKS), "{name} has no runbook at the base of all");
    }
}

/// What stands in parentheses behind `by` and `on` in an expression, over line breaks.
fn label_lists(rules: &str) -> Vec<String> {
    let code: Vec<_> = rules.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let code = code.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    let lists = [" by (", " on ("].iter().flat_map(|keyword| {
        code.split(keyword)
            .skip(1)
            .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
            .collect::<Vec<_>>()
    });
    lists.collect()
}

#[test]
fn every_list_of_labels_has_the_cluster() {
    let rules = text("rules");
    let lists = label_lists(&rules);
    assert!(lists.len() > 100, "only {}", lists.len());
    for list in &lists {
        assert!(list == "cluster" || list.starts_with("cluster, "), "({list})");
    }
    // An aggregation over everything would mix clusters.
    for call in ["count(", "sum(", "max(", "min(", "avg(", "topk(", "quantile("] {
        let whole = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        let mut code = rules.lines().filter(|line| !line.trim_start().starts_with('#'));
        let mixes = code.find(|line| line.match_indices(call).any(|(at, _)| line[..at].ends_with(whole)));
        assert_eq!(mixes, None, "{call} without `by`");
    }
}

#[test]
fn the_manifest_has_every_rule() {
    let files = generated(&Parameters::read(None).unwrap()).unwrap();
    let (path, manifest) = files.last().unwrap();
    assert_eq!(path.extension().unwrap(), "yml");
    let document: serde_json::Value = serde_saphyr::from_str(manifest).unwrap();
    assert_eq!(document["kind"], "PrometheusRule");
    let in_manifest: Vec<serde_json::Value> = document["spec"]["groups"].as_array().unwrap().clone();
    let mut plain = Vec::new();
    for (path, text) in &files[..files.len() - 1] {
        let of_file: serde_json::Value = serde_saphyr::from_str(text).unwrap();
        assert!(root().join(path).exists(), "{}", path.display());
        plain.extend(of_file["groups"].as_array().unwrap().clone());
    }
    assert_eq!(in_manifest, plain);
    assert!(plain.len() >= 7, "only {} groups", plain.len());
}

#[test]
fn expressions_of_rules_name_metrics() {
    let files = generated(&Parameters::read(None).unwrap()).unwrap();
    for (path, text) in &files[..files.len() - 1] {
        let of_file: serde_json::Value = serde_saphyr::from_str(text).unwrap();
        for rule in of_file["groups"].as_array().unwrap().iter().flat_map(|g| g["rules"].as_array().unwrap())
        {
            let expr = rule["expr"].as_str().unwrap();
            let always = rule["alert"] == "StepwatchWatchdog";
            assert!(always || !promql::metrics(expr).is_empty(), "{}: {expr}", path.display());
        }
    }
}

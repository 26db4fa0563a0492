//! The rules of Grafana's dashboard linter, restated over the committed JSON: a dashboard that
//! passes them works with any data source, any scrape interval and any number of jobs.
//!
//! The names are those of github.com/grafana/dashboard-linter (version 0.2.0, `lint/rule_*.go`).
//! Its two rules about LogQL have nothing to say here: `target-logql-rule` and
//! `target-logql-auto-rule` hold because no target asks a Loki, which `panel-datasource-rule`
//! checks. That queries parse (`target-promql-rule`) is what `dashboards_parse` asks promtool.

use std::collections::BTreeSet;

use serde_json::Value;
use stepwatch_dashboards::promql;

/// What a rule does not hold for, and why: rule, beginning of the metric, reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "target-job-rule",
        "stepwatch_alerter_",
        "on a board about exporters $job is theirs; no other program has these metrics",
    ),
    (
        "target-instance-rule",
        "stepwatch_alerter_",
        "on a board about exporters $instance is theirs; no other program has these metrics",
    ),
    ("target-job-rule", "train_expected", "a metric of the alerter"),
    ("target-instance-rule", "train_expected", "a metric of the alerter"),
    ("target-job-rule", "train_anomaly_score", "a metric of the alerter"),
    ("target-instance-rule", "train_anomaly_score", "a metric of the alerter"),
    ("target-job-rule", "train_cost_dollars", "a metric of the alerter"),
    ("target-instance-rule", "train_cost_dollars", "a metric of the alerter"),
    ("target-job-rule", "train_energy_joules", "a metric of the alerter"),
    ("target-instance-rule", "train_energy_joules", "a metric of the alerter"),
    ("target-job-rule", "train_carbon_grams", "a metric of the alerter"),
    ("target-instance-rule", "train_carbon_grams", "a metric of the alerter"),
    ("target-job-rule", "train_tokens_per_joule", "a metric of the alerter"),
    ("target-instance-rule", "train_tokens_per_joule", "a metric of the alerter"),
    ("target-job-rule", "train_tokens_per_dollar", "a metric of the alerter"),
    ("target-instance-rule", "train_tokens_per_dollar", "a metric of the alerter"),
    ("target-job-rule", "train_effective_training_time", "a metric of the alerter"),
    ("target-instance-rule", "train_effective_training_time", "a metric of the alerter"),
    ("target-job-rule", "train_goodput", "a metric of the alerter"),
    ("target-instance-rule", "train_goodput", "a metric of the alerter"),
    ("target-job-rule", "train_gpu_seconds", "a metric of the alerter"),
    ("target-instance-rule", "train_gpu_seconds", "a metric of the alerter"),
    ("target-job-rule", "job_info", "its label job is the scheduler's job; $scheduled chooses it"),
    ("target-job-rule", "gpu_job_info", "its label job is the scheduler's job; $scheduled chooses it"),
    ("target-job-rule", "train_job_info", "its label job is the scheduler's job; $scheduled chooses it"),
    ("target-job-rule", "job_start_timestamp_seconds", "its label job is the scheduler's job"),
    ("target-job-rule", "job_time_limit_timestamp_seconds", "its label job is the scheduler's job"),
    ("target-job-rule", "job_processes", "its label job is the scheduler's job"),
    ("target-job-rule", "job_gpus", "its label job is the scheduler's job"),
];

/// Those of Grafana's units that the linter knows and these dashboards use
/// (`lint/rule_panel_units.go`).
const UNITS: &[&str] = &[
    "none",
    "short",
    "sci",
    "s",
    "bytes",
    "percentunit",
    "cps",
    "Bps",
    "hertz",
    "watt",
    "celsius",
    "amp",
    "volt",
    "pps",
    "flops",
    "dateTimeFromNow",
];

/// Panels that the linter looks at; it leaves tables, timelines and heat maps alone, which are held
/// to the same rules here.
const PANELS: &[&str] = &["stat", "timeseries", "table", "state-timeline", "heatmap"];

fn boards() -> Vec<(String, Value)> {
    let boards = stepwatch_dashboards::all();
    let read = |file: &str| std::fs::read_to_string(stepwatch_dashboards::directory().join(file)).unwrap();
    boards.iter().map(|(file, _)| ((*file).to_owned(), serde_json::from_str(&read(file)).unwrap())).collect()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// The panels of a board, those in folded rows included, without the rows.
fn panels(board: &Value) -> Vec<&Value> {
    let all =
        list(board, "panels").iter().flat_map(|panel| std::iter::once(panel).chain(list(panel, "panels")));
    all.filter(|panel| panel["type"] != "row").collect()
}

fn variable<'a>(board: &'a Value, name: &str) -> &'a Value {
    list(&board["templating"], "list").iter().find(|v| v["name"] == name).unwrap_or(&Value::Null)
}

/// Name and matchers of each selector of an expression.
fn selectors(expr: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for name in promql::metrics(expr) {
        for (at, _) in expr.match_indices(name) {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            let (before, after) = (&expr[..at], &expr[at + name.len()..]);
            if before.ends_with(word) || after.starts_with(word) || before.ends_with('"') {
                continue;
            }
            let matchers =
                after.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(in_, _)| in_);
            found.push((name.to_owned(), matchers.to_owned()));
        }
    }
    found
}

fn excepted(rule: &str, metric: &str) -> bool {
    EXCEPTIONS.iter().any(|(of, prefix, _)| *of == rule && metric.starts_with(prefix))
}

fn lint_head(board: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut rule = |name: &str, holds: bool| {
        if !holds {
            wrong.push(name.to_owned());
        }
    };
    let datasource = variable(board, "datasource");
    rule(
        "template-datasource-rule",
        datasource["type"] == "datasource"
            && datasource["query"] == "prometheus"
            && datasource["label"] == "Data source",
    );
    for (name, label) in [("job", "Job"), ("instance", "Instance")] {
        let v = variable(board, name);
        let right = v["type"] == "query"
            && v["label"] == label
            && v["datasource"]["uid"] == "${datasource}"
            && v["multi"] == true
            && v["allValue"] == ".+";
        rule(&format!("template-{name}-rule"), right);
    }
    for v in list(&board["templating"], "list").iter().filter(|v| v["type"] == "query") {
        let query = v["query"].as_str().unwrap();
        rule("template-label-promql-rule", query.starts_with("label_values(") && query.ends_with(')'));
        rule("template-on-time-change-reload-rule", v["refresh"] == 2);
    }
    rule("uneditable-dashboard", board["editable"] == false);
    wrong
}

fn lint_panel(panel: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut rule = |name: &str, holds: bool| {
        if !holds {
            wrong.push(format!("{name}: {}", panel["title"]));
        }
    };
    let text = |key: &str| panel[key].as_str().is_some_and(|text| !text.is_empty());
    rule("a panel of a kind that these rules know", PANELS.iter().any(|kind| panel["type"] == *kind));
    rule("panel-datasource-rule", panel["datasource"]["uid"] == "${datasource}");
    rule("panel-title-description-rule", text("title") && text("description"));
    rule("panel-no-targets-rule", !list(panel, "targets").is_empty());
    let defaults = &panel["fieldConfig"]["defaults"];
    rule(
        "panel-units-rule",
        UNITS.iter().any(|unit| defaults["unit"] == *unit) || !list(defaults, "mappings").is_empty(),
    );
    wrong
}

fn lint_expr(expr: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, matchers) in selectors(expr) {
        for label in ["job", "instance"] {
            let rule = format!("target-{label}-rule");
            if !matchers.contains(&format!(r#"{label}=~"${label}""#)) && !excepted(&rule, &name) {
                wrong.push(format!("{rule}: {name} in {expr}"));
            }
        }
        // Not one of the linter's: its own boards of several clusters have it.
        if !matchers.contains(r#"cluster=~"$cluster""#) {
            wrong.push(format!("cluster: {name} in {expr}"));
        }
        let start = format!("{name}{{");
        let counters = expr.match_indices(&start).filter(|_| name.ends_with("_total"));
        for (at, _) in counters {
            let within = ["rate(", "irate(", "increase("].iter().any(|call| expr[..at].ends_with(call));
            // A series that has just begun counts as a whole (`Series::new_in`).
            let behind = expr[at..].split_once('}').map_or("", |(_, rest)| rest);
            let begun = behind.starts_with(" unless ") || behind.starts_with(" offset ");
            if !within && !begun {
                wrong.push(format!("target-counter-agg-rule: {name} in {expr}"));
            }
        }
    }
    for call in ["rate(", "irate("] {
        for (at, _) in expr.match_indices(call) {
            let argument = expr[at + call.len()..].split(']').next().unwrap_or_default();
            let window = argument.rsplit('[').next().unwrap_or_default();
            if window != "$__rate_interval" {
                wrong.push(format!("target-rate-interval-rule: {expr}"));
            }
        }
    }
    wrong
}

#[test]
fn dashboards_pass_the_linter() {
    let mut wrong = Vec::new();
    let mut queries = 0;
    for (file, board) in boards() {
        let mut found = lint_head(&board);
        for panel in panels(&board) {
            found.extend(lint_panel(panel));
            for target in list(panel, "targets") {
                found.extend(lint_expr(target["expr"].as_str().unwrap()));
                queries += 1;
            }
        }
        wrong.extend(found.into_iter().map(|what| format!("{file}: {what}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(queries > 300, "only {queries} queries");
}

#[test]
fn the_linter_finds_what_it_is_for() {
    let selector = r#"x_total{cluster=~"$cluster", job=~"$job", instance=~"$instance"}"#;
    for (expr, rule) in [
        (format!("rate({selector}[5m])"), "target-rate-interval-rule"),
        (format!("sum({selector})"), "target-counter-agg-rule"),
        (r#"y{cluster=~"$cluster", job=~"$job"}"#.to_owned(), "target-instance-rule"),
        (r#"y{cluster=~"$cluster", instance=~"$instance"}"#.to_owned(), "target-job-rule"),
        ("y".to_owned(), "cluster"),
    ] {
        assert!(lint_expr(&expr).iter().any(|wrong| wrong.starts_with(rule)), "{rule}: {expr}");
    }
    assert_eq!(lint_expr(&format!("rate({selector}[$__rate_interval])")), Vec::<String>::new());
}

/// The dashboards that show what all nodes do, of which there may be a thousand.
const OF_ALL_NODES: &[&str] = &["fleet.json", "training.json", "jobs.json", "stepwatch.json"];
/// What there are many of.
const MANY: &[&str] = &["instance", "gpu", "device", "port", "rank", "pci", "mount", "link", "cgroup"];

/// Whether an expression gives few series, however many nodes there are.
fn is_bounded(expr: &str) -> bool {
    let inner = expr.trim_start_matches('(').trim_start_matches("label_replace(").trim_start_matches('(');
    if ["topk(20", "bottomk(20", "sum(", "count(", "histogram_quantile("]
        .iter()
        .any(|start| inner.starts_with(start))
    {
        return true;
    }
    let labels =
        expr.split_once("by (").and_then(|(_, rest)| rest.split_once(')')).map_or("", |(labels, _)| labels);
    // There are a few alerters at most.
    let few =
        expr.contains('{') && promql::metrics(expr).iter().all(|name| name.starts_with("stepwatch_alerter_"));
    few || labels.split(", ").all(|label| !MANY.contains(&label))
}

#[test]
fn a_thousand_nodes_are_not_a_thousand_lines() {
    for (file, board) in boards() {
        let instance = variable(&board, "instance");
        if !OF_ALL_NODES.contains(&file.as_str()) {
            assert!(
                instance["includeAll"] == false || file == "incidents.json",
                "{file} can be opened for all nodes at once"
            );
            continue;
        }
        for panel in panels(&board) {
            for target in list(panel, "targets") {
                let expr = target["expr"].as_str().unwrap();
                assert!(is_bounded(expr), "{file}: {}: {expr}", panel["title"]);
            }
        }
    }
}

#[test]
fn a_line_a_node_is_found() {
    assert!(!is_bounded("max by (cluster, instance) (x{})"));
    assert!(!is_bounded("time() - max by (cluster, run, rank) (x{})"));
    assert!(is_bounded("topk(20, max by (cluster, instance) (x{}))"));
    assert!(is_bounded("sum by (cluster, reason) (max by (cluster, instance, reason) (x{}))"));
}

/// Every `$name` and `${name}` of a text.
fn variables_in(text: &str) -> BTreeSet<&str> {
    let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let names = text.split('$').skip(1).map(|rest| rest.trim_start_matches('{'));
    names.map(|name| name.split(ends).next().unwrap_or_default()).filter(|n| !n.starts_with("__")).collect()
}

#[test]
fn variables_are_declared_and_links_lead_to_dashboards() {
    let boards = boards();
    let uids: BTreeSet<_> = boards.iter().map(|(_, board)| board["uid"].as_str().unwrap()).collect();
    assert_eq!(uids.len(), boards.len(), "two dashboards have one uid");
    for (file, board) in &boards {
        let text = board.to_string();
        for name in variables_in(&text).into_iter().filter(|name| !name.is_empty() && *name != "1") {
            assert!(!variable(board, name).is_null(), "{file} has no variable {name}");
        }
        for target in text.split("/d/").skip(1) {
            let uid = target.split(['?', '"']).next().unwrap_or_default();
            assert!(uids.contains(uid), "{file} links to {uid}");
        }
        assert!(!variable(board, "alerter_url").is_null() && text.contains("${alerter_url}/"), "{file}");
    }
}

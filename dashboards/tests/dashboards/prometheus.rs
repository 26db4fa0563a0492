//! Every expression that people are given parses in a real Prometheus: those of the dashboards and
//! those of the runbooks, each lot as one rule file for `promtool`. And every link from a rule to a
//! runbook leads somewhere.
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use stepwatch_dashboards::promql::{of_everything, without_variables};

/// Set where an absent peer is a failure, not a reason to skip.
const REQUIRE: &str = "STEPWATCH_REQUIRE_PEERS";
const RUNBOOK_URL: &str = "runbook_url: https://github.com/stepwatch/stepwatch/blob/main/";

fn root() -> &'static Path {
    stepwatch_dashboards::directory().parent().unwrap()
}

pub(crate) fn files(dir: &str, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(dir)).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
}

/// Whether promtool is absent, which it must not be where [`REQUIRE`] is set.
fn absent() -> bool {
    let absent = Command::new("promtool").arg("--version").output().is_err();
    if absent {
        assert!(std::env::var_os(REQUIRE).is_none(), "promtool is not installed");
        println!("SKIPPED: promtool is not installed (Debian package prometheus)");
    }
    absent
}

/// Fails with what promtool says.
fn promtool(args: &[&str], file: &Path) {
    let out = Command::new("promtool").args(args).arg(file).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}\n{}", std::fs::read_to_string(file).unwrap());
}

fn parses(expressions: &[String]) {
    if absent() {
        return;
    }
    let mut rules = "groups:\n- name: all\n  rules:\n".to_owned();
    for (i, expr) in expressions.iter().enumerate() {
        writeln!(rules, "  - record: e{i}\n    expr: {}", serde_json::to_string(expr).unwrap()).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), rules).unwrap();
    promtool(&["check", "rules"], file.path());
}

#[test]
fn dashboards_parse() {
    let boards = stepwatch_dashboards::all();
    let expressions = boards.iter().flat_map(|(_, board)| board.expressions());
    let expressions: Vec<_> = expressions.map(|expr| without_variables(&expr)).collect();
    assert!(expressions.len() > 30, "only {} expressions", expressions.len());
    parses(&expressions);
}

/// The first incident of a kind is marked although its counter begins with it, a restart of
/// Prometheus marks nothing, and info is nobody's business.
#[test]
fn incidents_are_marked_when_they_open() {
    if absent() {
        return;
    }
    let (_, board) = stepwatch_dashboards::all().swap_remove(0);
    let mark = (board.annotations)().into_iter().find(|mark| mark.name == "Incident").unwrap();
    let expr = of_everything(&mark.expr, "1m");
    let series = |labels: &str, values: &str| {
        let name = "stepwatch_alerter_incidents_opened_total";
        format!("      - {{series: '{name}{{job=\"a\",instance=\"a\",{labels}}}', values: '{values}'}}\n")
    };
    // Scraped every 15 s; the alerter is seen from 2 minutes on, the first incident opens at 10.
    let input = [
        "      - {series: 'stepwatch_alerter_build_info{job=\"a\",instance=\"a\"}', values: '_x8 1x72'}\n"
            .to_owned(),
        series(r#"kind="hang",severity="page""#, "_x40 1x40"),
        series(r#"kind="stall",severity="ticket""#, "_x8 3x40 4x32"),
        series(r#"kind="plateau",severity="info""#, "_x40 1x40"),
    ];
    let opened = |kind: &str, severity: &str| format!("{{kind=\"{kind}\", severity=\"{severity}\"}}");
    let mut tests = String::new();
    for (time, marked) in [
        ("2m30s", None),
        ("9m45s", None),
        ("10m30s", Some(opened("hang", "page"))),
        ("12m", None),
        ("12m45s", Some(opened("stall", "ticket"))),
        ("15m", None),
    ] {
        let samples =
            marked.map_or_else(|| "[]".to_owned(), |labels| format!("[{{labels: '{labels}', value: 1}}]"));
        let expr = serde_json::to_string(&format!("({expr}) > bool 0")).unwrap();
        writeln!(tests, "      - {{expr: {expr}, eval_time: {time}, exp_samples: {samples}}}").unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let test = format!(
        "rule_files: []\nevaluation_interval: 15s\ntests:\n  - interval: 15s\n    input_series:\n{}    promql_expr_test:\n{tests}",
        input.concat()
    );
    std::fs::write(file.path(), test).unwrap();
    promtool(&["test", "rules"], file.path());
}

#[test]
fn runbooks_parse() {
    let mut expressions = Vec::new();
    for path in files("docs/runbooks", "md") {
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split('`').skip(1).step_by(2);
        let ours = code.filter(|c| c.contains("train_") || c.contains("stepwatch_"));
        expressions.extend(ours.map(|c| c.replace('\n', " ").replace("RUN", "a")));
    }
    assert!(expressions.len() > 30, "only {} expressions", expressions.len());
    parses(&expressions);
}

#[test]
fn rules_link_to_runbooks_that_exist() {
    let mut links = 0;
    for path in files("rules", "yml") {
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("- alert:").count(), text.matches(RUNBOOK_URL).count(), "{}", path.display());
        for link in text.lines().filter_map(|line| line.trim().strip_prefix(RUNBOOK_URL)) {
            let (page, heading) = link.split_once('#').unwrap_or((link, ""));
            let page =
                std::fs::read_to_string(root().join(page)).unwrap_or_else(|err| panic!("{link}: {err}"));
            let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
            let mut anchors = headings.map(|heading| heading.to_lowercase().replace(' ', "-"));
            assert!(heading.is_empty() || anchors.any(|anchor| anchor == heading), "{link}");
            links += 1;
        }
    }
    assert!(links > 20, "only {links} links");
}

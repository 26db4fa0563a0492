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

/// The annotation of a board, over everything.
fn mark(file: &str, name: &str) -> String {
    let (_, board) = stepwatch_dashboards::all().into_iter().find(|(of, _)| *of == file).unwrap();
    let mark = (board.annotations)().into_iter().find(|mark| mark.name == name).unwrap();
    of_everything(&mark.expr, "1m")
}

/// Asks promtool whether a mark stands where it should: at each time, the labels of the one that
/// does. Series are scraped every 15 s.
fn marks(expr: &str, series: &[(&str, &str)], expected: &[(&str, Option<&str>)]) {
    if absent() {
        return;
    }
    let mut test =
        "rule_files: []\nevaluation_interval: 15s\ntests:\n  - interval: 15s\n    input_series:\n".to_owned();
    for (series, values) in series {
        writeln!(test, "      - {{series: '{series}', values: '{values}'}}").unwrap();
    }
    test.push_str("    promql_expr_test:\n");
    let expr = serde_json::to_string(&format!("({expr}) > bool 0")).unwrap();
    for (time, labels) in expected {
        let samples = labels
            .map_or_else(|| "[]".to_owned(), |labels| format!("[{{labels: '{{{labels}}}', value: 1}}]"));
        writeln!(test, "      - {{expr: {expr}, eval_time: {time}, exp_samples: {samples}}}").unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), test).unwrap();
    promtool(&["test", "rules"], file.path());
}

/// The first incident of a kind is marked although its counter begins with it, an alerter that is
/// seen for the first time marks nothing, and info is nobody's business.
#[test]
fn incidents_are_marked_when_they_open() {
    let opened = "stepwatch_alerter_incidents_opened_total";
    let series = |labels: &str| format!("{opened}{{job=\"a\",instance=\"a\",{labels}}}");
    marks(
        &mark("fleet.json", "Incident"),
        &[
            (r#"stepwatch_alerter_build_info{job="a",instance="a"}"#, "_x8 1x72"),
            (&series(r#"kind="hang",severity="page""#), "_x40 1x40"),
            (&series(r#"kind="stall",severity="ticket""#), "_x8 3x40 4x32"),
            (&series(r#"kind="plateau",severity="info""#), "_x40 1x40"),
        ],
        &[
            ("2m30s", None),
            ("9m45s", None),
            ("10m30s", Some(r#"kind="hang", severity="page""#)),
            ("12m", None),
            ("12m45s", Some(r#"kind="stall", severity="ticket""#)),
            ("15m", None),
        ],
    );
}

/// The first XID of a code is marked, and so is one of a GPU of which nothing else is known; those
/// from before the exporter was seen are not.
#[test]
fn xids_are_marked_when_they_happen() {
    let xid = |gpu: &str, xid: &str| {
        format!("gpu_xid_errors_total{{job=\"x\",instance=\"n\",gpu=\"{gpu}\",xid=\"{xid}\"}}")
    };
    marks(
        &mark("node.json", "XID"),
        &[
            (r#"stepwatch_exporter_build_info{job="x",instance="n"}"#, "_x8 1x72"),
            (r#"gpu_info{job="x",instance="n",gpu="GPU-1",index="3",pci="0000:1b:00.0"}"#, "_x8 1x72"),
            (&xid("GPU-1", "13"), "_x8 5x72"),
            (&xid("GPU-1", "79"), "_x40 1x40"),
            (&xid("GPU-2", "48"), "_x56 1x40"),
        ],
        &[
            ("2m30s", None),
            ("9m45s", None),
            ("10m30s", Some(r#"instance="n", gpu="GPU-1", index="3", pci="0000:1b:00.0", xid="79""#)),
            ("12m", None),
            ("14m30s", Some(r#"instance="n", gpu="GPU-2", xid="48""#)),
        ],
    );
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

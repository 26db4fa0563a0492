//! Every expression that people are given parses in a real Prometheus: those of the dashboards and
//! those of the runbooks, each lot as one rule file for `promtool`. And every link from a rule to a
//! runbook leads somewhere.
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use stepwatch_dashboards::promql::without_variables;

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

/// Fails with what promtool says, unless it is absent and may be.
fn parses(expressions: &[String]) {
    if Command::new("promtool").arg("--version").output().is_err() {
        assert!(std::env::var_os(REQUIRE).is_none(), "promtool is not installed");
        println!(
            "SKIPPED: promtool is not installed (Debian package prometheus); expressions were not parsed"
        );
        return;
    }
    let mut rules = "groups:\n- name: all\n  rules:\n".to_owned();
    for (i, expr) in expressions.iter().enumerate() {
        writeln!(rules, "  - record: e{i}\n    expr: {}", serde_json::to_string(expr).unwrap()).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), rules).unwrap();
    let out = Command::new("promtool").args(["check", "rules"]).arg(file.path()).output().unwrap();
    assert!(out.status.success(), "{}\n{expressions:#?}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn dashboards_parse() {
    let boards = stepwatch_dashboards::all();
    let expressions = boards.iter().flat_map(|(_, board)| board.expressions());
    let expressions: Vec<_> = expressions.map(|expr| without_variables(&expr)).collect();
    assert!(expressions.len() > 30, "only {} expressions", expressions.len());
    parses(&expressions);
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

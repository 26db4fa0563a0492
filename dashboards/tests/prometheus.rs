//! Every expression parses in a real Prometheus: all of them as one rule file for `promtool`.

use std::fmt::Write as _;
use std::process::Command;

use stepwatch_dashboards::promql::without_variables;

/// Set where an absent peer is a failure, not a reason to skip.
const REQUIRE: &str = "STEPWATCH_REQUIRE_PEERS";

#[test]
fn promtool_parses_every_expression() {
    if Command::new("promtool").arg("--version").output().is_err() {
        assert!(std::env::var_os(REQUIRE).is_none(), "promtool is not installed");
        println!(
            "SKIPPED: promtool is not installed (Debian package prometheus); expressions were not parsed"
        );
        return;
    }
    let mut rules = "groups:\n- name: dashboards\n  rules:\n".to_owned();
    let boards = stepwatch_dashboards::all();
    let expressions: Vec<_> = boards.iter().flat_map(|(_, board)| board.expressions()).collect();
    assert!(expressions.len() > 30, "only {} expressions", expressions.len());
    for (i, expr) in expressions.iter().enumerate() {
        let expr = serde_json::to_string(&without_variables(expr)).unwrap();
        writeln!(rules, "  - record: e{i}\n    expr: {expr}").unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), rules).unwrap();
    let out = Command::new("promtool").args(["check", "rules"]).arg(file.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

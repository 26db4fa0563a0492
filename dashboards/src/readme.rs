//! The README: which question is answered where, and from which metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::layout::{Board, Chart};
use crate::promql;

const HEAD: &str = "# Dashboards

Import the JSON files into Grafana 10 or later (Dashboards, New, Import), or provision this
directory. They need no recording rules. Each panel answers one question; its description in Grafana
is that question.

These files are generated from `src/` by `cargo run -p stepwatch-dashboards`. Tests check that they
are up to date, that every expression parses in Prometheus and that every metric exists.
";

pub(crate) fn render(boards: &[(&'static str, Board)]) -> String {
    let mut out = HEAD.to_owned();
    for (file, board) in boards {
        // Writing to a String does not fail.
        let _ = write!(out, "\n## {} (`{file}`)\n\n{}\n", board.title, board.description);
        for row in &board.rows {
            let _ = write!(out, "\n### {}\n\n| panel | question | metrics |\n|---|---|---|\n", row.title);
            for chart in &row.charts {
                let metrics = names(chart).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                let _ = writeln!(out, "| {} | {} | {metrics} |", chart.title, chart.question);
            }
        }
    }
    out + &by_metric(boards)
}

fn by_metric(boards: &[(&'static str, Board)]) -> String {
    let mut panels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for chart in boards.iter().flat_map(|(_, board)| &board.rows).flat_map(|row| &row.charts) {
        for name in names(chart) {
            panels.entry(name).or_default().insert(chart.title);
        }
    }
    let mut out = "\n## Metrics\n\n| metric | panels |\n|---|---|\n".to_owned();
    for (name, titles) in panels {
        let titles = titles.into_iter().collect::<Vec<_>>().join(", ");
        let _ = writeln!(out, "| `{name}` | {titles} |");
    }
    out
}

fn names(chart: &Chart) -> impl Iterator<Item = &str> {
    let all: BTreeSet<&str> =
        chart.queries.iter().flat_map(|query| promql::metrics(&query.expr)).map(promql::family).collect();
    all.into_iter()
}

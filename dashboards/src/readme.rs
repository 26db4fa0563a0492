//! The README: which question is answered where, and from which metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::coverage;
use crate::layout::{Board, Chart};
use crate::promql;

const HEAD: &str = "# Dashboards

Import the JSON files into Grafana 10 or later (Dashboards, New, Import), or provision this
directory. They need no recording rules. Each panel answers one question; its description in Grafana
is that question.

* **Data source, Cluster, Job, Instance** choose what is shown. Two jobs may scrape one node, and
  several clusters may share a Prometheus, if their series have a label `cluster`. Without the label,
  Cluster stays at All.
* **Alerter** is the address of the alerter's pages, as your browser reaches it. Links lead there
  from runs, nodes and incidents. Change its default before you import:
  `sed -i s,http://alerter:9766,https://stepwatch.example.com, *.json`.
* The boards of nodes show the nodes that you pick. The others show counts, distributions and the
  twenty worst, so a thousand nodes fit.
* The board of jobs needs `honor_labels: true`, as in `deploy/prometheus.yml`: `job` is there the
  job of the scheduler.
* A purple mark is an incident that somebody was notified of, of any run or node: the alerter's metrics
  have its kind, and its page says whose it is.

There are no panels of goodput, cost and energy of runs: no metrics of them are exported yet.

These files are generated from `src/` by `cargo run -p stepwatch-dashboards`. Tests check that they
are up to date, pass the rules of Grafana's dashboard linter, name only metrics that exist, show
every family or give a reason, and that a real Prometheus answers every query about two jobs in two
clusters.
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
    out + &by_metric(boards) + &left_out()
}

fn left_out() -> String {
    let mut out = "\n## On no panel\n\n| metric | why |\n|---|---|\n".to_owned();
    for (name, why) in coverage::LEFT_OUT {
        let _ = writeln!(out, "| `{name}` | {why} |");
    }
    out
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

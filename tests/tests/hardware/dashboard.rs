//! The node's dashboard on a real Prometheus that scrapes a node with everything: no panel is empty
//! for want of a label.

use stepwatch_dashboards::promql;
use stepwatch_fake_nvml::{Script, Stage, library};
use stepwatch_tests::peers::{self, Prometheus};
use stepwatch_tests::{Exporter, exposition, trainer};

use crate::tree::{FLEET, Tree};

/// What the node of this test does not have: a mounted file system of the network, a job with RAS,
/// a disk of checkpoints, and what NVML gives only after a second look.
const ABSENT: &[&str] = &["mount_", "nccl_ras_", "disk_", "gpu_nvml_call_running_seconds"];

/// A panel may show nothing because nothing is wrong.
fn shows_trouble_only(expr: &str) -> bool {
    expr.ends_with("> 0") || expr.ends_with("== 0")
}

/// Those that stand for themselves in a legend.
fn labels(legend: &str) -> impl Iterator<Item = &str> {
    legend.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_has_something_to_show() {
    let Some(program) = peers::prometheus() else { return };
    let dir = tempfile::tempdir().unwrap();
    let stage = Stage::new(dir.path(), &Script::for_fleet(FLEET)).unwrap();
    let mut machine = Tree::new(&dir.path().join("tree")).machine();
    machine.args.extend(["--nvml-library".into(), library().unwrap().into()]);
    machine.env.push((stepwatch_fake_nvml::SCRIPT.to_owned(), stage.path().into()));
    let exporter = Exporter::start_on(machine, &dir.path().join("exporter"), "", "").await.unwrap();
    let rank = trainer::warm_run(&exporter.ingest(), "busy", 50).unwrap();
    let prometheus = Prometheus::start(&program, dir.path(), &[exporter.addr], "1s").await.unwrap();
    // A rate needs two scrapes of what the slow cadence publishes.
    prometheus.wait_for("count_over_time(gpu_ecc_errors_total[1m]) >= 3").await.unwrap();

    let page = exporter.metrics().await.unwrap();
    let families = exposition::families(&page);
    let has_one = |m: &str| families.contains(m) || families.contains(promql::family(m));
    let has = |expr: &str| promql::metrics(expr).iter().all(|m| has_one(m));
    let boards = stepwatch_dashboards::all();
    let (_, board) = boards.iter().find(|(file, _)| *file == "node.json").unwrap();
    let (mut shown, mut wrong) = (0, Vec::new());
    for expr in board.expressions() {
        let query = promql::of_everything(&expr);
        let result = prometheus.query(&query).await.unwrap();
        if has(&expr) {
            shown += usize::from(!result.is_empty());
            if result.is_empty() && !shows_trouble_only(&expr) {
                wrong.push(format!("shows nothing: {query}"));
            }
        } else if !promql::metrics(&expr).iter().any(|m| ABSENT.iter().any(|a| m.starts_with(a))) {
            wrong.push(format!("not on the page: {query}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(shown > 40, "only {shown} of the panels' queries gave something");
    let charts = board.rows.iter().flat_map(|row| &row.charts);
    for query in charts.flat_map(|chart| &chart.queries) {
        for series in prometheus.query(&promql::of_everything(&query.expr)).await.unwrap() {
            let unnamed = labels(query.legend).find(|label| !series["metric"][label].is_string());
            assert_eq!(unnamed, None, "a label of the legend {} of {}", query.legend, query.expr);
        }
    }
    drop(rank);
}

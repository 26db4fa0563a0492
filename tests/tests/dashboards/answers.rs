//! Every query of every dashboard gives something, and has the labels that its legend names.

use stepwatch_dashboards::promql::of_everything;

use crate::scene::{MAY_BE_ABSENT, Scene, WINDOW, labels_of};

/// Queries that give nothing on pages that have everything, by their beginning, and why.
const EMPTY: &[(&str, &str)] = &[];

#[tokio::test(flavor = "multi_thread")]
async fn every_query_is_answered_about_two_jobs_and_two_clusters() {
    let Some(scene) = Scene::start().await else { return };
    let (mut wrong, mut asked) = (Vec::new(), 0);
    for (file, board) in stepwatch_dashboards::all() {
        for (expr, legend) in board.queries() {
            let query = of_everything(&expr, WINDOW);
            asked += 1;
            match scene.prometheus.query(&query).await {
                Err(why) => wrong.push(format!("{file}: {why:#}: {query}")),
                Ok(series) if series.is_empty() => {
                    if !EMPTY.iter().any(|(start, _)| expr.starts_with(start)) {
                        wrong.push(format!("{file}: gives nothing: {query}"));
                    }
                }
                Ok(series) => {
                    let unnamed = |label: &&str| {
                        !MAY_BE_ABSENT.contains(label)
                            && !series.iter().any(|one| one["metric"][*label].is_string())
                    };
                    if let Some(label) = labels_of(legend).find(unnamed) {
                        wrong.push(format!("{file}: no label {label} for {legend}: {query}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(asked > 500, "only {asked} queries");
}

/// The scene is unfriendly enough: joins without care fail in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_join_that_forgets_jobs_or_clusters_fails() {
    let Some(scene) = Scene::start().await else { return };
    for careless in [
        "gpu_power_watts * on (gpu) group_left (index, pci) gpu_info",
        "gpu_power_watts * on (instance, gpu) group_left (index, pci) gpu_info",
        "gpu_power_watts * on (instance, gpu) group_left (index) max by (cluster, instance, gpu, index) (gpu_info)",
    ] {
        let answer = scene.prometheus.query(careless).await;
        assert!(answer.is_err(), "{careless}: {answer:?}");
    }
    // Nodes of one name are counted once a cluster, not once a job.
    let nodes = "count by (cluster) (max by (cluster, instance) (stepwatch_exporter_build_info{instance=\"n1:9765\"}))";
    let answer = scene.prometheus.query(nodes).await.unwrap();
    assert_eq!(answer.len(), 2, "{answer:?}");
    assert!(answer.iter().all(|one| one["value"][1] == "1"), "{answer:?}");
}

/// The dashboards that are opened for all nodes.
const OF_ALL_NODES: &[&str] = &["fleet.json", "training.json", "jobs.json", "stepwatch.json"];
/// Lines or rows of a panel: the twenty that it is limited to, and sums that are no more.
const MOST: usize = 20;

/// A panel that had a line a node would have more.
#[tokio::test(flavor = "multi_thread")]
async fn more_nodes_are_not_more_lines() {
    let Some(scene) = Scene::of_nodes(MOST + 5).await else { return };
    let (mut wrong, mut shown) = (Vec::new(), 0);
    for (file, board) in stepwatch_dashboards::all() {
        if !OF_ALL_NODES.contains(&file) {
            continue;
        }
        for (expr, _) in board.queries() {
            let query = of_everything(&expr, "30s");
            let series = scene.prometheus.query(&query).await.unwrap().len();
            shown += usize::from(series > 0);
            if series > MOST {
                wrong.push(format!("{file}: {series} series: {query}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(shown > 200, "only {shown} queries gave something");
    let each = scene.prometheus.query("max by (cluster, instance) (gpu_count)").await.unwrap();
    assert_eq!(each.len(), MOST + 5);
}

//! Every query that a runbook tells people to ask gives something.

use std::path::Path;

use stepwatch_dashboards::promql;
use stepwatch_tests::bins;

use crate::scene::Scene;

/// Queries that give nothing on pages that have everything, by a part of them, and why.
const EMPTY: &[(&str, &str)] = &[("[2h:1m])", "counts spikes over hours, and the pages have none")];

/// The queries of a page, in `code`: those that choose a metric or compute something of one.
fn queries(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let blocks = text.split("```").enumerate().filter(|(i, _)| i % 2 == 0).map(|(_, prose)| prose);
    let prose = blocks.collect::<Vec<_>>().join("\n");
    let code = prose.split('`').skip(1).step_by(2).map(|code| code.replace('\n', " "));
    let ours = |code: &String| {
        code.contains(['{', '('])
            && promql::metrics(code).iter().any(|name| name.contains('_'))
            && [
                "train_",
                "stepwatch_",
                "gpu_",
                "rdma_",
                "nic_",
                "disk_",
                "mount_",
                "kernel_",
                "clock_",
                "edac_",
                "nccl_",
            ]
            .iter()
            .any(|prefix| code.contains(prefix))
    };
    code.filter(ours).map(|code| code.replace("RUN", "a").replace("NODE", "n1")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_a_runbook_is_answered() {
    let Some(scene) = Scene::start().await else { return };
    let (mut wrong, mut asked) = (Vec::new(), 0);
    for entry in std::fs::read_dir(bins::root().join("docs/runbooks")).unwrap() {
        let page = entry.unwrap().path();
        for query in queries(&page) {
            asked += 1;
            let name = page.file_name().unwrap().to_string_lossy().into_owned();
            match scene.prometheus.query(&query).await {
                Err(why) => wrong.push(format!("{name}: {why:#}: {query}")),
                Ok(series) if series.is_empty() && !EMPTY.iter().any(|(part, _)| query.contains(part)) => {
                    wrong.push(format!("{name}: gives nothing: {query}"));
                }
                Ok(series) => {
                    let grouped = query.split_once("by (").and_then(|(_, rest)| rest.split_once(')'));
                    let labels = grouped.map_or("", |(labels, _)| labels).split(", ");
                    let absent = |label: &&str| {
                        !label.is_empty()
                            && *label != "le"
                            && series.iter().all(|one| one["metric"][*label].is_null())
                    };
                    if let Some(label) = labels.filter(|_| !series.is_empty()).find(absent) {
                        wrong.push(format!("{name}: nothing has the label {label}: {query}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(asked > 40, "only {asked} queries");
}

//! Other people's programs accept the output of ours.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod openid;
mod remote_write;
mod slurm;

use std::path::Path;
use std::process::Stdio;

use stepwatch_tests::peers::{self, Alertmanager, Prometheus};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, Stack, daemon, exposition, http, poll_until, trainer};
use tokio::io::AsyncWriteExt as _;

/// A stack that has something to show: a run with every usual metric, and an incident.
async fn busy_stack() -> Stack {
    let stack = Stack::start().await.unwrap();
    let rank = stack.warm_run("busy", 50).unwrap();
    rank.send_raw(br#"{"v":1,"k":"ckpt","run":"busy","rank":0,"phase":"start","step":50}"#).unwrap();
    rank.send_raw(br#"{"v":1,"k":"ckpt","run":"busy","rank":0,"phase":"end","step":50,"bytes":1000}"#)
        .unwrap();
    rank.send_raw(
        br#"{"v":1,"k":"eval","run":"busy","rank":0,"name":"wikitext","step":50,"m":{"loss":3.1}}"#,
    )
    .unwrap();
    let metrics = [("loss", f64::NAN), ("grad_norm", 0.2), ("tokens", 4096.0), ("step_time", 0.5)];
    rank.step(51, &metrics).unwrap();
    // What every run may bring, and a name that the page must survive.
    rank.send_raw(
        br#"{"v":1,"k":"step","run":"q\"uo\\te\n","rank":0,"step":1,"m":{"loss":1,"my metric":2}}"#,
    )
    .unwrap();
    stack.pagerduty.wait_for(|pd| !pd.pages.is_empty(), PATIENCE).await.unwrap();
    std::mem::forget(rank);
    stack
}

async fn promtool_check(promtool: &Path, page: &str) -> String {
    let mut check = daemon::command(promtool);
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = check.spawn().unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).await.unwrap();
    let out = child.wait_with_output().await.unwrap();
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_finds_nothing_wrong_with_our_pages() {
    let Some(promtool) = peers::promtool() else { return };
    let stack = busy_stack().await;
    for page in [stack.exporter.metrics().await.unwrap(), stack.alerter.metrics().await.unwrap()] {
        assert!(exposition::families(&page).len() > 5, "{page}");
        assert_eq!(promtool_check(&promtool, &page).await, "", "{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_scrapes_both_programs() {
    let Some(program) = peers::prometheus() else { return };
    let stack = busy_stack().await;
    let targets = [stack.exporter.addr, stack.alerter.addr];
    let prometheus = Prometheus::start(&program, stack.dir.path(), &targets, "1s").await.unwrap();
    prometheus.wait_for("count(up == 1) == 2").await.unwrap();
    let step = prometheus.wait_for(r#"train_step{run="busy"}"#).await.unwrap();
    assert_eq!(step[0]["value"][1], "51");
    let nonfinite = prometheus.wait_for(r#"train_nonfinite_total{run="busy"} > 0"#).await.unwrap();
    assert_eq!(nonfinite[0]["value"][1], "1");
    // A histogram that Prometheus can take quantiles of.
    prometheus
        .wait_for(r#"histogram_quantile(0.5, train_step_duration_seconds_bucket{run="busy"}) > 0"#)
        .await
        .unwrap();
}

/// The rules that we ship fire in a real Prometheus and arrive at a real Alertmanager. They are for
/// runs that no alerter follows, so there is none.
#[tokio::test(flavor = "multi_thread")]
async fn our_rules_fire() {
    let (Some(program), Some(alertmanager)) = (peers::prometheus(), peers::alertmanager()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(&dir.path().join("exporter"), "").await.unwrap();
    let alertmanager = Alertmanager::start(&alertmanager, dir.path()).await.unwrap();
    let options =
        peers::PrometheusOptions { rules: true, alertmanager: Some(alertmanager.addr), ..Default::default() };
    let prometheus =
        Prometheus::start_with(&program, dir.path(), &[exporter.addr], "1s", options).await.unwrap();
    let rank = trainer::warm_run(&exporter.ingest(), "busy", 50).unwrap();
    rank.step(51, &[("loss", f64::NAN)]).unwrap();
    prometheus.wait_for(r#"train_nonfinite_total{run="busy"} > 0"#).await.unwrap();
    // An increase is between two scrapes.
    rank.step(52, &[("loss", f64::NAN)]).unwrap();
    let arrived = async || {
        let alerts = http::get_json(&alertmanager.alerts_url()).await.ok()?;
        alerts.as_array()?.iter().find(|a| a["labels"]["run"] == "busy").cloned()
    };
    let alert = poll_until("an alert about the run", PATIENCE, arrived).await.unwrap();
    assert!(alert["annotations"]["summary"].as_str().is_some_and(|s| s.contains("busy")), "{alert}");
}

//! Pushes of other programs to the real binary: OpenTelemetry and Kubeflow's reports.

use std::net::TcpListener;

use crate::support::{Exporter, binary};

const JSON: &str = "content-type: application/json\r\n";
const METRICS: &str = r#"{"resourceMetrics":[{"resource":{"attributes":[{"key":"stepwatch.run","value":{"stringValue":"pushed"}}]},
"scopeMetrics":[{"metrics":[{"name":"train.loss","gauge":{"dataPoints":[{"asDouble":2.5,"attributes":[{"key":"step","value":{"intValue":"7"}}]}]}}]}]}]}"#;

#[test]
fn telemetry_and_reports_are_on_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), "exposition: {interval: 20ms}\n");
    let answer = exporter.request_with("POST", "/v1/metrics", JSON, METRICS);
    assert_eq!((answer.status, answer.text().as_str()), (200, "{}"));
    exporter.wait_for(r#"train_loss{run="pushed"}"#, 2.5);
    assert_eq!(exporter.request_with("POST", "/v1/metrics", JSON, "{").status, 400);
    assert_eq!(exporter.request_with("POST", "/v1/metrics", "content-type: text/plain\r\n", "x").status, 415);
    assert_eq!(exporter.request("GET", "/v1/metrics", "").status, 405);
    let report = include_str!("../data/kubeflow_trainer_status_post.json");
    assert_eq!(exporter.request_with("POST", "/v1/kubeflow/sft", JSON, report).status, 200);
    exporter.wait_for(r#"train_nonfinite_total{run="sft",what="loss",how="value"}"#, 1.0);
    exporter.wait_for(r#"train_step{run="sft"}"#, 3.0);
    let page = exporter.page();
    for source in [r#"source="otlp",kind="otlp""#, r#"source="/v1/kubeflow",kind="kubeflow""#] {
        assert_eq!(page.get(&format!("train_source_up{{{source}}}")), Some(1.0), "{source}");
    }
    assert_eq!(
        page.get(r#"stepwatch_exporter_ingest_events_total{via="otlp"}"#),
        Some(2.0),
        "a hello and a step"
    );
    assert_eq!(
        page.get(r#"train_source_dropped_total{source="otlp",kind="otlp",reason="malformed"}"#),
        Some(1.0)
    );
}

#[test]
fn a_port_that_a_collector_has_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let config = dir.path().join("exporter.yml");
    let text = format!(
        "listen: '127.0.0.1:0'\ningest: {{socket: '{0}/i.sock', otlp: ['127.0.0.1:{port}']}}\nstate_dir: '{0}'\n",
        dir.path().display()
    );
    std::fs::write(&config, text).unwrap();
    let ended = binary().arg("--config").arg(&config).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success());
    for part in ["ingest.otlp[0]", "collector", &port.to_string(), "in use"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

//! The DaemonSet of `deploy/kubernetes/`: what it may do on a node, and how Prometheus finds it.

use serde_json::Value;
use stepwatch_tests::peers;

use crate::deploy::{DAEMON_SET, confined, deploy, documents, pod, runs, strings, text};

/// Nothing else makes a runtime let a container open the device.
#[test]
fn the_daemon_set_may_read_the_kernel_log() {
    let set = documents(DAEMON_SET).pop().unwrap();
    let pod = pod(&set);
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"]["privileged"], true);
    let list = |of: &Value, key: &str| of[key].as_array().cloned().unwrap_or_default();
    let volume = list(pod, "volumes").into_iter().find(|v| v["hostPath"]["path"] == "/dev/kmsg").unwrap();
    let mounts = list(container, "volumeMounts");
    assert!(
        mounts.iter().any(|m| m["name"] == volume["name"] && m["mountPath"] == "/dev/kmsg"),
        "{mounts:?}"
    );
    let annotations = &set["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(*annotations, Value::Null, "those of a pod reach neither its containers nor the right jobs");
}

/// The lines that are commented out, taken in: what there is without privileges, and what may be
/// added.
#[test]
fn what_is_left_out_of_the_daemon_set_fits_in() {
    let whole = std::fs::read_to_string(deploy(DAEMON_SET)).unwrap();
    let taken_in = |line: &str| match line.trim_start().strip_prefix('#') {
        Some(text) if !text.is_empty() && !text.starts_with(' ') => line.replacen('#', "", 1),
        _ => line.to_owned(),
    };
    let lines = whole.lines().filter(|line| line.trim() != "privileged: true").map(taken_in);
    let whole = lines.collect::<Vec<_>>().join("\n");
    let (_, set) = whole.split_once("\n---\n").unwrap();
    let set = stepwatch_kit::config::parse::<Value>(DAEMON_SET, set).unwrap_or_else(|e| panic!("{e}"));
    let container = &pod(&set)["containers"][0];
    confined(&container["securityContext"]);
    let given = strings(&container["securityContext"]["capabilities"]["add"]);
    assert!(given.contains(&"SYSLOG") && !given.contains(&"SYS_ADMIN"), "{given:?}");
    let plugin = format!("devices.nri.io/container.{}", container["name"].as_str().unwrap());
    let devices = set["spec"]["template"]["metadata"]["annotations"][plugin].as_str().unwrap();
    let devices = stepwatch_kit::config::parse::<Value>("annotation", devices).unwrap();
    let kmsg = serde_json::json!([{"path": "/dev/kmsg", "type": "c", "major": 1, "minor": 11}]);
    assert_eq!(devices, kmsg);
}

/// A pod as Prometheus discovers it before it relabels.
fn discovered(addr: &str, port: &str, phase: &str) -> Value {
    let of = |name: &str| format!("__meta_kubernetes_pod_{name}");
    let labels = [
        (of("container_port_name"), port),
        (of("phase"), phase),
        (of("node_name"), "gpu-042"),
        (of("name"), "stepwatch-exporter-x7k2p"),
    ];
    serde_json::json!({"targets": [addr], "labels": std::collections::BTreeMap::from(labels)})
}

#[tokio::test]
async fn prometheus_calls_what_it_finds_by_the_name_of_its_node() {
    let set = documents(DAEMON_SET).pop().unwrap();
    let (name, pods) = ("stepwatch-exporter", &set["spec"]["template"]["metadata"]["labels"]);
    let ports = pod(&set)["containers"][0]["ports"].as_array().unwrap();
    let config = documents("kubernetes/prometheus.yml").pop().unwrap();
    let job = &config["scrape_configs"][0];
    assert_eq!((&job["job_name"], &job["honor_labels"]), (&name.into(), &true.into()));
    let search = &job["kubernetes_sd_configs"][0];
    assert_eq!((&search["role"], &search["selectors"][0]["role"]), (&"pod".into(), &"pod".into()));
    let (label, value) = search["selectors"][0]["label"].as_str().unwrap().split_once('=').unwrap();
    assert_eq!(pods[label], value);
    let monitor = documents("kubernetes/podmonitor.yml").pop().unwrap();
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], *pods);
    assert_eq!(pods[monitor["spec"]["jobLabel"].as_str().unwrap()], name);
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!((&endpoint["port"], &endpoint["honorLabels"]), (&ports[0]["name"], &true.into()));
    let renamed = &endpoint["relabelings"][0];
    assert_eq!(renamed["sourceLabels"][0], "__meta_kubernetes_pod_node_name");
    assert_eq!(renamed["targetLabel"], "instance");

    let Some(promtool) = peers::promtool() else { return };
    let mut job = job.clone();
    job.as_object_mut().unwrap().remove("kubernetes_sd_configs");
    let port = ports[0]["name"].as_str().unwrap();
    job["static_configs"] = serde_json::json!([
        discovered("10.0.0.1:9765", port, "Running"),
        discovered("10.0.0.1:9999", "another", "Running"),
        discovered("10.0.0.2:9765", port, "Failed"),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prometheus.yml");
    std::fs::write(&file, serde_json::json!({ "scrape_configs": [job] }).to_string()).unwrap();
    let args = ["check", "service-discovery", "--timeout=2s", file.to_str().unwrap(), name];
    let output = runs(&promtool, &args).await;
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
    let kept: Vec<_> =
        found.as_array().unwrap().iter().filter(|t| t["labels"].get("job").is_some()).collect();
    let [kept] = kept[..] else { panic!("{found:#}") };
    let labels = &kept["labels"];
    assert_eq!((&labels["instance"], &labels["job"]), (&"gpu-042".into(), &name.into()), "{labels}");
    assert_eq!(labels["__address__"], "10.0.0.1:9765");
}

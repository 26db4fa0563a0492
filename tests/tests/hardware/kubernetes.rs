//! The DaemonSet of `deploy/kubernetes/`: what it may do on a node, and how Prometheus finds it.

use serde_json::Value;
use stepwatch_fake_nvml::{NvmlEvent, Script, library};
use stepwatch_tests::{bins, exposition, peers};

use crate::deploy::{DAEMON_SET, confined, documents, pod, runs, strings, text};
use crate::node::Node;
use crate::tree::FLEET;

/// What it has beside that of any container is what it works with; each right is explained in
/// `docs/security.md`.
#[test]
fn the_daemon_set_has_the_least_that_works() {
    let set = documents(DAEMON_SET).pop().unwrap();
    let container = &pod(&set)["containers"][0];
    let security = &container["securityContext"];
    confined(security);
    assert_eq!(security["privileged"], Value::Null);
    assert_eq!(strings(&security["capabilities"]["add"]), ["SYS_PTRACE", "DAC_READ_SEARCH"]);
    assert!(!set.to_string().contains("kmsg"), "it could not be opened");
    let annotations = &set["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(*annotations, Value::Null, "those of a pod reach neither its containers nor the right jobs");
    let written: Vec<_> =
        list(container, "volumeMounts").into_iter().filter(|m| m["readOnly"] != true).collect();
    let written: Vec<_> = written.iter().filter_map(|m| m["mountPath"].as_str()).collect();
    assert_eq!(written, ["/run/stepwatch", "/var/lib/stepwatch-exporter"]);
    let documented = std::fs::read_to_string(bins::root().join("docs/security.md")).unwrap();
    for right in ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_NET_ADMIN"] {
        assert!(documented.contains(right), "{right}");
    }
}

fn list(of: &Value, key: &str) -> Vec<Value> {
    of[key].as_array().cloned().unwrap_or_default()
}

/// As `kubectl patch` merges: lists by the key of their kind, and `null` takes a value away.
fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (name, value) in patch {
                if value.is_null() {
                    into.remove(name);
                } else {
                    merge(into.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(into), Value::Array(patch)) => {
            for item in patch {
                let key = if item["mountPath"].is_null() { "name" } else { "mountPath" };
                match into.iter_mut().find(|old| old[key] == item[key]) {
                    Some(old) => merge(old, item),
                    None => into.push(item.clone()),
                }
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

/// Nothing else makes a runtime let a container open the device.
#[test]
fn the_kernel_log_is_one_patch_away() {
    let mut set = documents(DAEMON_SET).pop().unwrap();
    let patch = documents("kubernetes/kernel-log.yml").pop().unwrap();
    assert_eq!((&patch["kind"], &patch["metadata"]["name"]), (&set["kind"], &set["metadata"]["name"]));
    merge(&mut set, &patch);
    let pod = pod(&set);
    let [container] = &list(pod, "containers")[..] else { panic!("{pod:#}") };
    let security = &container["securityContext"];
    // Together they are refused.
    assert_eq!(
        (&security["privileged"], &security["allowPrivilegeEscalation"]),
        (&true.into(), &Value::Null)
    );
    assert_eq!((&security["runAsUser"], &security["readOnlyRootFilesystem"]), (&0.into(), &true.into()));
    let volume = list(pod, "volumes").into_iter().find(|v| v["hostPath"]["path"] == "/dev/kmsg").unwrap();
    let mounts = list(container, "volumeMounts");
    let mount = mounts.iter().find(|m| m["mountPath"] == "/dev/kmsg").unwrap();
    assert_eq!((&mount["name"], &mount["readOnly"]), (&volume["name"], &true.into()));
    assert!(mounts.len() > 5, "the others stay: {mounts:?}");
}

/// The default manifest has no kernel log, and XIDs are what it would be read for.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_kernel_log_xids_come_from_the_driver() {
    let mut script = Script { count: Some(2), ..Script::for_fleet(FLEET) };
    let config = "collectors: {gpu: {metrics: {include: ['*']}, interval: 100ms, slow_interval: 500ms}}\n";
    let node = Node::start_without_log(&script, &library().unwrap(), config).await;
    let counted = |page: &str, xid: &str| {
        exposition::value(page, "gpu_xid_errors_total", &[("gpu", &FLEET.uuid(1)), ("xid", xid)])
    };
    node.page_where("the driver is heard", |page| counted(page, "79") == Some(0.0)).await;
    script.events.push(NvmlEvent::xid(1, 79));
    node.stage.set(&script).unwrap();
    node.page_where("the XID", |page| counted(page, "79") == Some(1.0)).await;
    node.event("the XID on the stream", |e| e["k"] == "xid" && e["code"] == 79).await;
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
    let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
    assert!(!wanted.is_empty() && wanted.iter().all(|(label, value)| pods[label] == *value), "{wanted:?}");
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

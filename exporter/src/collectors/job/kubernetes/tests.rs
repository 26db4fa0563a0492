//! Tests with a fake API that pages, forgets, refuses, throttles, is slow, or is something else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{Response, StatusCode};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use stepwatch_wire::names::hw;

use super::*;
use crate::roots::Roots;
use crate::scheduler::Waiter;
use crate::testing::Bench;

/// A part of a body that never comes.
type Never = Result<&'static str, std::io::Error>;
/// A question: the path with the parameters of the query.
type Asked = (String, BTreeMap<String, String>);
type Answers = Box<dyn FnMut(&Asked) -> Response<Body> + Send>;

/// A fake API that serves until dropped.
struct Fake {
    config: Config,
    asked: Arc<Mutex<Vec<Asked>>>,
    runtime: Option<Runtime>,
    dir: tempfile::TempDir,
}

impl Fake {
    fn serve(answers: impl FnMut(&Asked) -> Response<Body> + Send + 'static) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let answers: Answers = Box::new(answers);
        let (log, answers) = (Arc::clone(&asked), Arc::new(Mutex::new(answers)));
        let router = Router::new().fallback(move |request: Request| {
            let (log, answers) = (Arc::clone(&log), Arc::clone(&answers));
            async move {
                let url = reqwest::Url::parse(&format!("http://x{}", request.uri())).unwrap();
                let query = url.query_pairs().into_owned().collect();
                let asked = (url.path().to_owned(), query);
                let token = request.headers().get("authorization").and_then(|v| v.to_str().ok());
                assert_eq!(token, Some("Bearer s3cret"));
                log.lock().unwrap().push(asked.clone());
                let mut answers = answers.lock().unwrap();
                answers(&asked)
            }
        });
        runtime.spawn(async move { axum::serve(listener, router).await });
        let dir = tempfile::tempdir().unwrap();
        let token_file = dir.path().join("token");
        std::fs::write(&token_file, "s3cret\n").unwrap();
        let config = Config {
            enabled: true,
            url: Some(url),
            token_file: Some(token_file),
            silent_after: Period::millis(0),
            ..Config::default()
        };
        Self { config, asked, runtime: Some(runtime), dir }
    }

    fn reader(&self) -> KubernetesReader {
        KubernetesReader::new(&self.config)
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(|runtime| runtime.shutdown_background());
    }
}

fn answer(status: u16, body: impl Into<Body>) -> Response<Body> {
    Response::builder().status(StatusCode::from_u16(status).unwrap()).body(body.into()).unwrap()
}

fn refuses(status: u16, message: &str) -> Response<Body> {
    answer(status, json!({"kind": "Status", "status": "Failure", "message": message}).to_string())
}

fn list(kind: &str, items: &[Value]) -> Response<Body> {
    answer(200, json!({"kind": kind, "metadata": {}, "items": items}).to_string())
}

/// A node with eight GPUs.
fn node(name: &str, more: Value) -> Value {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"pool": "h100"}},
        "spec": {},
        "status": {
            "capacity": {"cpu": "96", "nvidia.com/gpu": "8"},
            "allocatable": {"cpu": "95", "nvidia.com/gpu": "8"},
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": "True", "reason": "KubeletReady"},
            ],
        },
    });
    merge(&mut node, more);
    node
}

fn pod(gpus: u32, more: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "p", "creationTimestamp": "2026-11-30T17:08:14Z"},
        "spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": gpus.to_string()}}}]},
        "status": {},
    });
    merge(&mut pod, more);
    pod
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

fn unschedulable(gpus: u32) -> Value {
    let refused = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    pod(gpus, json!({"status": {"conditions": refused}}))
}

fn nodes() -> Vec<Value> {
    let down = json!([{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "lastTransitionTime": "2026-11-30T17:08:14Z"}]);
    let sick = json!([{"type": "Ready", "status": "True"}, {"type": "GpuUnhealthy", "status": "True"}]);
    vec![
        node("n1", json!({})),
        node("n2", json!({"spec": {"unschedulable": true}})),
        node("n3", json!({"status": {"conditions": down}})),
        node("n4", json!({"status": {"conditions": sick, "allocatable": {"nvidia.com/gpu": "7"}}})),
        json!({"metadata": {"name": "cpu1"}, "status": {"capacity": {"cpu": "8"}}}),
    ]
}

/// The lists of a cluster, one object a page.
fn cluster(asked: &Asked) -> Response<Body> {
    let (path, query) = asked;
    assert_eq!(query["limit"], "500");
    // Pods that wait come from the memory of the server, and what follows a page has its version.
    let is_cached = !query.contains_key("continue") && query.values().any(|v| v == "status.phase=Pending");
    assert_eq!(query.get("resourceVersion").map(String::as_str), is_cached.then_some("0"));
    let waiting = |reason: &str| {
        let status = json!({"containerStatuses": [{"state": {"waiting": {"reason": reason}}}]});
        pod(2, json!({"spec": {"nodeName": "n1"}, "status": status}))
    };
    let (kind, items) = match (path.as_str(), query.get("fieldSelector").map(String::as_str)) {
        ("/api/v1/nodes", None) => ("NodeList", nodes()),
        ("/api/v1/pods", Some("status.phase=Pending")) => {
            let items =
                vec![unschedulable(8), waiting("ImagePullBackOff"), pod(0, json!({})), pod(1, json!({}))];
            ("PodList", items)
        }
        ("/api/v1/pods", Some("status.phase=Running")) => {
            let on = |node: &str, gpus| pod(gpus, json!({"spec": {"nodeName": node}}));
            ("PodList", vec![on("n1", 4), on("n2", 1), on("n4", 3), on("gone", 8)])
        }
        other => panic!("{other:?}"),
    };
    let at: usize = query.get("continue").map_or(0, |at| at.parse().unwrap());
    let next = if at + 1 < items.len() { (at + 1).to_string() } else { String::new() };
    let page =
        json!({"kind": kind, "metadata": {"continue": next, "resourceVersion": "9"}, "items": [items[at]]});
    answer(200, page.to_string())
}

#[test]
fn nodes_and_pods_page_by_page() {
    let fake = Fake::serve(cluster);
    let bench = Bench::new(Roots::default());
    let mut reader = fake.reader();
    let page = bench.collect(&mut reader);
    let get = |family, labels: &[&str]| page.get(family, labels);
    assert_eq!((get(&UP, &[]), get(&SILENT, &[])), (Some(1.0), Some(0.0)));
    for (state, count) in [("ready", 2.0), ("cordoned", 1.0), ("not_ready", 1.0)] {
        assert_eq!(get(&NODES, &[state]), Some(count), "{state}");
    }
    assert_eq!((get(&PROBLEMS, &["Ready"]), get(&PROBLEMS, &["GpuUnhealthy"])), (Some(1.0), Some(1.0)));
    assert_eq!(get(&PROBLEMS, &["MemoryPressure"]), None);
    // n1 has 4 of pods that run and 2 of one that is created; n2 has 1, n4 3 of 7.
    for (state, count) in [("allocated", 10.0), ("idle", 6.0), ("unavailable", 16.0)] {
        assert_eq!(get(&GPUS, &[state]), Some(count), "{state}");
    }
    assert_eq!((get(&CAPACITY, &[]), get(&ALLOCATABLE, &[])), (Some(32.0), Some(31.0)));
    for (reason, pods, gpus) in
        [("unschedulable", 1.0, 8.0), ("image", 1.0, 2.0), ("unscheduled", 1.0, 1.0), ("creating", 0.0, 0.0)]
    {
        assert_eq!(get(&PENDING_PODS, &[reason]), Some(pods), "{reason}");
        assert_eq!(get(&PENDING_GPUS, &[reason]), Some(gpus), "{reason}");
    }
    assert_eq!(get(&FITTING, &[]), Some(0.0), "no node has eight");
    assert_eq!(get(&OUT, &["n3", "not_ready", "NodeStatusUnknown"]), Some(1_796_058_494.0));
    assert!(get(&OUT, &["n2", "cordoned", ""]).is_some());
    let events = bench.published();
    let said: Vec<_> =
        events.iter().map(|e| (e.extra.get(hw::ABOUT).unwrap().as_str(), e.text.as_deref())).collect();
    assert_eq!(
        said,
        [
            (Some("n2"), Some("Kubernetes: cordoned")),
            (Some("n3"), Some("Kubernetes: not ready (NodeStatusUnknown)"))
        ]
    );
    // The pods that run are not listed each time.
    assert_eq!(fake.asked(), 5 + 4 + 4);
    let page = bench.collect(&mut reader);
    assert_eq!((page.get(&GPUS, &["allocated"]), fake.asked()), (Some(10.0), 13 + 5 + 4));
}

/// A pass that fails; what is reported of it.
fn fails(fake: &Fake, list: &str, reason: &str) -> String {
    let bench = Bench::new(Roots::default());
    let page = bench.collect(&mut fake.reader());
    assert_eq!(page.get(&FAILURES, &[list, reason]), Some(1.0), "{list}: {reason}");
    assert_eq!((page.get(&UP, &[]), page.get(&GPUS, &["idle"])), (Some(0.0), None), "not half of it");
    bench.published().into_iter().map(|e| e.text.unwrap()).collect::<Vec<_>>().concat()
}

#[test]
fn refusals_say_what_is_missing() {
    let unreadable = "Kubernetes may work, but could not be read for 0 min";
    let fake = Fake::serve(|_| refuses(401, "Unauthorized"));
    let text = fails(&fake, "nodes", "unauthorized");
    assert_eq!(text, format!("{unreadable}: nodes: the token is not accepted (401): Unauthorized"));
    let page = Bench::new(Roots::default()).collect(&mut fake.reader());
    assert_eq!((page.get(&SILENT, &[]), page.get(&UNREADABLE, &[])), (Some(0.0), Some(0.0)));
    let fake = Fake::serve(|asked| match asked.0.as_str() {
        "/api/v1/nodes" => list("NodeList", &[]),
        _ => refuses(403, "pods is forbidden: User \"system:serviceaccount:x:y\" cannot list"),
    });
    let text = fails(&fake, "pending", "forbidden");
    assert!(text.contains("pending: the account may not (403): pods is forbidden: User"), "{text}");
    let fake = Fake::serve(|_| refuses(500, "\u{1b}[31metcd\nis slow"));
    assert!(fails(&fake, "nodes", "status").ends_with("500 Internal Server Error: [31metcd is slow"));
    // Whoever is sent elsewhere would take the token along.
    let away =
        || Response::builder().status(302).header("location", "http://127.0.0.1:1/").body(Body::empty());
    let fake = Fake::serve(move |_| away().unwrap());
    fails(&fake, "nodes", "status");
}

#[test]
fn a_list_that_became_too_old_is_begun_anew() {
    let mut gone = false;
    let fake = Fake::serve(move |asked| {
        let in_the_middle = asked.1.get("continue").is_some_and(|at| at == "2");
        if in_the_middle && !std::mem::replace(&mut gone, true) {
            return refuses(410, "The provided continue parameter is too old");
        }
        cluster(asked)
    });
    let bench = Bench::new(Roots::default());
    let page = bench.collect(&mut fake.reader());
    assert_eq!(page.get(&UP, &[]), Some(1.0));
    let nodes: f64 = page.rows(&NODES).map(|row| row.value).sum();
    assert_eq!((nodes, fake.asked()), (4.0, 13 + 3), "no node counts twice");
    let fake = Fake::serve(|_| refuses(410, "expired"));
    fails(&fake, "nodes", "gone");
    assert_eq!(fake.asked(), BEGINNINGS);
}

#[test]
fn a_server_that_asks_for_patience_is_not_asked_meanwhile() {
    let fake = Fake::serve(|_| {
        let throttled = Response::builder().status(429).header("retry-after", "120");
        throttled.body(Body::from("slow down")).unwrap()
    });
    let bench = Bench::new(Roots::default());
    let mut reader = fake.reader();
    for pass in 1..=3 {
        let page = bench.collect(&mut reader);
        assert_eq!(page.get(&FAILURES, &["nodes", "throttled"]), Some(f64::from(pass)));
        assert_eq!(fake.asked(), 1);
    }
    let text = bench.published().remove(0).text.unwrap();
    assert!(text.ends_with("nodes: it asks to be left alone for 120s"), "{text}");
    // For a moment it waits, and goes on where it was.
    let mut moments = 2;
    let fake = Fake::serve(move |asked| {
        if asked.1.contains_key("continue") && moments > 0 {
            moments -= 1;
            let busy = Response::builder().status(429).header("retry-after", "0");
            return busy.body(Body::from("slow down")).unwrap();
        }
        cluster(asked)
    });
    let page = Bench::new(Roots::default()).collect(&mut fake.reader());
    assert_eq!((page.get(&UP, &[]), fake.asked()), (Some(1.0), 13 + 2));
    // Not for ever.
    let busy = || Response::builder().status(503).header("retry-after", "0").body(Body::empty());
    let fake = Fake::serve(move |_| busy().unwrap());
    fails(&fake, "nodes", "throttled");
    assert_eq!(fake.asked(), 5);
    // Without a time, the next pass asks again.
    let fake = Fake::serve(|_| answer(429, ""));
    let mut reader = fake.reader();
    bench.collect(&mut reader);
    bench.collect(&mut reader);
    assert_eq!(fake.asked(), 2);
}

#[test]
fn a_body_that_does_not_end_is_given_up() {
    let mut fake = Fake::serve(|_| {
        let begins = stream::iter([Ok::<_, std::io::Error>("{\"kind\":\"NodeList\",\"items\":[")]);
        answer(200, Body::from_stream(begins.chain(stream::pending())))
    });
    fake.config.timeout = Period::millis(300);
    let text = fails(&fake, "nodes", "timeout");
    assert_eq!(text, "Kubernetes has not answered for 0 min: nodes: no answer within 300ms");
}

#[test]
fn without_the_pods_that_run_nodes_and_queue_are_known() {
    let mut fake = Fake::serve(|asked| match asked.1.get("fieldSelector").map(String::as_str) {
        Some("status.phase=Running") => answer(200, Body::from_stream(stream::pending::<Never>())),
        _ => cluster(asked),
    });
    fake.config.timeout = Period::secs(1);
    let bench = Bench::new(Roots::default());
    let mut reader = fake.reader();
    let page = bench.collect(&mut reader);
    assert_eq!((page.get(&UP, &[]), page.get(&SILENT, &[])), (Some(0.0), Some(0.0)));
    assert_eq!(page.get(&FAILURES, &["running", "timeout"]), Some(1.0));
    assert_eq!((page.get(&NODES, &["ready"]), page.get(&CAPACITY, &[])), (Some(2.0), Some(32.0)));
    assert_eq!(page.get(&PENDING_PODS, &["unschedulable"]), Some(1.0));
    assert_eq!((page.get(&GPUS, &["idle"]), page.get(&FITTING, &[])), (None, None));
    let texts: Vec<_> = bench.published().into_iter().map(|e| e.text.unwrap()).collect();
    let unreadable = "Kubernetes may work, but could not be read for 0 min: running: no answer within 3s";
    assert_eq!(texts, [unreadable, "Kubernetes: cordoned", "Kubernetes: not ready (NodeStatusUnknown)"]);
    // A slow server has less to do then: they are not listed again at once, and are missing still.
    let asked = fake.asked();
    let page = bench.collect(&mut reader);
    assert_eq!(fake.asked(), asked + 5 + 4, "nodes and pods that wait");
    assert_eq!((page.get(&UP, &[]), page.get(&GPUS, &["idle"])), (Some(0.0), None));
    assert_eq!(page.get(&FAILURES, &["running", "timeout"]), Some(1.0));
    assert!(page.get(&UNREADABLE, &[]).is_some_and(|seconds| seconds > 0.0));
}

#[test]
fn a_server_whose_store_does_not_answer_is_silent() {
    let fake = Fake::serve(|_| refuses(500, "etcdserver: request timed out"));
    let text = fails(&fake, "nodes", "status");
    assert!(text.starts_with("Kubernetes has not answered for 0 min: nodes: it answered 500"), "{text}");
}

#[test]
fn more_waiting_pods_than_one_answer_has_are_read_page_by_page() {
    let fake = Fake::serve(|asked| match asked.1.get("resourceVersion") {
        Some(_) => answer(200, vec![b' '; client::MAX_PAGE_BYTES + 1]),
        None if asked.1.values().any(|value| value == "status.phase=Pending") => {
            list("PodList", &[unschedulable(8)])
        }
        None => cluster(asked),
    });
    let bench = Bench::new(Roots::default());
    let mut reader = fake.reader();
    for asked in [5 + 2 + 4, 5 + 2 + 4 + 5 + 1] {
        let page = bench.collect(&mut reader);
        assert_eq!((page.get(&UP, &[]), fake.asked()), (Some(1.0), asked), "it is asked once");
        assert_eq!(page.get(&PENDING_PODS, &["unschedulable"]), Some(1.0));
    }
}

#[test]
fn other_bodies_are_no_lists() {
    for body in [
        "",
        "<html>sign in</html>",
        "{\"kind\":\"NodeList\",\"items\":[{\"metadata\":",
        "{\"kind\":\"Status\",\"items\":[]}",
        "{\"kind\":\"NodeList\",\"items\":{}}",
        "[]",
    ] {
        let fake = Fake::serve(move |_| answer(200, body));
        let text = fails(&fake, "nodes", "malformed");
        assert!(text.contains("nodes: not a list of Kubernetes"), "{text}");
    }
    let fake = Fake::serve(|_| answer(200, vec![b' '; client::MAX_PAGE_BYTES + 1]));
    fails(&fake, "nodes", "too_large");
    // A list that never ends.
    let page = json!({"kind": "NodeList", "metadata": {"continue": "1"}, "items": null}).to_string();
    let fake = Fake::serve(move |_| answer(200, page.clone()));
    fails(&fake, "nodes", "too_large");
    assert_eq!(fake.asked(), 400);
    let null = json!({"kind": "PodList", "metadata": {}, "items": null}).to_string();
    let fake = Fake::serve(move |_| answer(200, null.clone()));
    assert_eq!(Bench::new(Roots::default()).collect(&mut fake.reader()).get(&UP, &[]), Some(1.0));
}

#[test]
fn files_and_addresses_that_are_not_there() {
    let mut fake = Fake::serve(cluster);
    let url = fake.config.url.replace("http://127.0.0.1:1".into());
    assert!(fails(&fake, "nodes", "connect").contains("refused"));
    fake.config.url = url;
    for (name, content) in [("empty", Some("")), ("missing", None), ("junk", Some("no certificates"))] {
        let path = fake.dir.path().join(name);
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        fake.config.ca_file = Some(path);
        assert!(fails(&fake, "nodes", "file").contains(name), "{name}");
    }
    assert_eq!(fake.asked(), 0, "nothing is asked without the certificates");
}

/// How many pods fit on one idle node that says this.
fn fitting(of_node: Value, of_pod: Value) -> u64 {
    let gpus = GpuResources::new(&Config::default().resources);
    let (mut nodes, mut queue) = (Nodes::default(), Queue::default());
    let mut wanted = unschedulable(8);
    merge(&mut wanted, of_pod);
    nodes.take(&gpus, serde_json::from_value(node("n1", of_node)).unwrap());
    queue.take(&gpus, serde_json::from_value(wanted).unwrap());
    queue.fitting(&nodes, &Held::default()).len() as u64
}

#[test]
fn a_pod_fits_where_it_may_and_the_gpus_are_idle() {
    let none = || json!({});
    assert_eq!(fitting(none(), none()), 1);
    assert_eq!(fitting(json!({"spec": {"unschedulable": true}}), none()), 0);
    assert_eq!(fitting(json!({"status": {"allocatable": {"nvidia.com/gpu": "7"}}}), none()), 0);
    assert_eq!(fitting(none(), json!({"spec": {"nodeSelector": {"pool": "h100"}}})), 1);
    assert_eq!(fitting(none(), json!({"spec": {"nodeSelector": {"pool": "a100"}}})), 0);
    let taint = |effect: &str| json!({"spec": {"taints": [{"key": "team", "value": "a", "effect": effect}]}});
    assert_eq!(fitting(taint("NoSchedule"), none()), 0);
    assert_eq!(fitting(taint("PreferNoSchedule"), none()), 1);
    let tolerates = json!({"spec": {"tolerations": [{"key": "team", "operator": "Exists"}]}});
    assert_eq!(fitting(taint("NoSchedule"), tolerates), 1);
    // What else it may want is not known.
    assert_eq!(fitting(none(), json!({"spec": {"affinity": {"podAffinity": {}}}})), 0);
    // It would start only with the others of its group.
    assert_eq!(fitting(none(), json!({"spec": {"schedulerName": "volcano"}})), 0);
    let in_group = json!({"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}});
    assert_eq!(fitting(none(), in_group), 0);
}

#[test]
fn resources_are_compared_name_by_name() {
    let requests = |requests: Value| json!({"spec": {"containers": [{"resources": {"requests": requests}}]}});
    let none = || json!({});
    for (asked, fits) in [
        (json!({"nvidia.com/gpu": "8", "cpu": "95"}), 1),
        (json!({"nvidia.com/gpu": "8", "cpu": "95100m"}), 0),
        (json!({"nvidia.com/gpu": "1", "memory": "1Gi"}), 0),
        (json!({"nvidia.com/mig-1g.10gb": "1"}), 0),
        (json!({"nvidia.com/gpu": "1", "nvidia.com/hostdev": "1"}), 0),
    ] {
        assert_eq!(fitting(none(), requests(asked.clone())), fits, "{asked}");
    }
    // Seven free network cards and a free slice are no eighth GPU.
    let other = json!({"nvidia.com/gpu": "7", "nvidia.com/hostdev": "7", "nvidia.com/mig-1g.10gb": "7"});
    let of_node = json!({"status": {"allocatable": other}});
    assert_eq!(fitting(of_node.clone(), none()), 0);
    assert_eq!(fitting(of_node, requests(json!({"nvidia.com/mig-1g.10gb": "7"}))), 1);
    let memory = json!({"status": {"allocatable": {"memory": "2Ti"}}});
    assert_eq!(fitting(memory, requests(json!({"nvidia.com/gpu": "8", "memory": "2048Gi"}))), 1);
}

#[test]
fn network_cards_are_no_gpus() {
    let gpus = GpuResources::new(&Config::default().resources);
    let names = |more: Value| json!({"status": {"capacity": more.clone(), "allocatable": more}});
    let cards = json!({"nvidia.com/hostdev": "8", "nvidia.com/rdma_shared_device_a": "63"});
    let shared = json!({"nvidia.com/gpu.shared": "4", "nvidia.com/hostdev": "8"});
    let mut nodes = Nodes::default();
    for (name, more) in [("n1", names(cards.clone())), ("n2", names(shared))] {
        nodes.take(&gpus, serde_json::from_value(node(name, more)).unwrap());
    }
    let only_cards = json!({"metadata": {"name": "n3"}, "status": {"capacity": cards}});
    nodes.take(&gpus, serde_json::from_value(only_cards).unwrap());
    // Eight GPUs each, and four shares.
    assert_eq!((nodes.there(), nodes.by_standing(NodeStanding::Ready)), ((20, 20), 2));
    assert_eq!(nodes.gpus(&Held::default()).idle, 20);
}

#[test]
fn what_one_pod_would_use_is_none_of_the_next() {
    let gpus = GpuResources::new(&Config::default().resources);
    let (mut nodes, mut queue, mut held) = (Nodes::default(), Queue::default(), Held::default());
    for name in ["n1", "n2"] {
        nodes.take(&gpus, serde_json::from_value(node(name, json!({}))).unwrap());
    }
    for (name, day) in [("c", 3), ("a", 1), ("b", 2)] {
        let created = format!("2026-11-0{day}T00:00:00Z");
        let mut wanted = unschedulable(8);
        let meta = json!({"name": name, "namespace": "team", "uid": name, "creationTimestamp": created});
        merge(&mut wanted, json!({"metadata": meta}));
        queue.take(&gpus, serde_json::from_value(wanted).unwrap());
    }
    let waiter = |name: &str| Waiter::new(name, &format!("pod team/{name}"));
    assert_eq!(queue.fitting(&nodes, &held), [waiter("a"), waiter("b")], "the oldest");
    // A pod without GPUs holds processors, here all of them.
    let cpu = json!([{"resources": {"requests": {"cpu": "95"}}}]);
    let beside = json!({"spec": {"nodeName": "n2", "containers": cpu}});
    held.take(&serde_json::from_value(beside).unwrap());
    assert_eq!(queue.fitting(&nodes, &held), [waiter("a"), waiter("b")], "they ask for no processors");
    held.take(&serde_json::from_value(pod(1, json!({"spec": {"nodeName": "n2"}}))).unwrap());
    assert_eq!(queue.fitting(&nodes, &held), [waiter("a")]);
}

#[test]
fn pods_are_compared_only_with_a_new_list_of_those_that_run() {
    let serve = || {
        let mut passes = 0;
        let mut fake = Fake::serve(move |asked| {
            match (asked.0.as_str(), asked.1.get("fieldSelector").map(String::as_str)) {
                ("/api/v1/nodes", _) => {
                    passes += 1;
                    list("NodeList", &[node("n1", json!({}))])
                }
                (_, Some("status.phase=Pending")) if passes > 1 => list("PodList", &[unschedulable(8)]),
                _ => list("PodList", &[]),
            }
        });
        fake.config.idle_after = Period::millis(0);
        fake
    };
    let bench = Bench::new(Roots::default());
    let mut fake = serve();
    let mut reader = fake.reader();
    let fitting = [bench.collect(&mut reader), bench.collect(&mut reader)].map(|p| p.get(&FITTING, &[]));
    assert_eq!(fitting, [Some(0.0), Some(0.0)], "another may run on the node since");
    fake = serve();
    fake.config.running_interval = Period::millis(0);
    let mut reader = fake.reader();
    let fitting = [bench.collect(&mut reader), bench.collect(&mut reader)].map(|p| p.get(&FITTING, &[]));
    assert_eq!(fitting, [Some(0.0), Some(1.0)]);
    let texts: Vec<_> = bench.published().into_iter().map(|e| e.text.unwrap()).collect();
    assert_eq!(texts, ["Kubernetes: pod /p has waited for 0 min beside as many idle GPUs"]);
}

#[test]
fn where_the_api_is() {
    let env = |vars: &'static [(&'static str, &'static str)]| {
        move |name: &str| vars.iter().find(|(var, _)| *var == name).map(|(_, value)| (*value).to_owned())
    };
    let inside = env(&[("KUBERNETES_SERVICE_HOST", "fd00::1"), ("KUBERNETES_SERVICE_PORT", "6443")]);
    let place = Config::default().place(inside).unwrap();
    assert_eq!(place.url.as_str(), "https://[fd00::1]:6443/");
    assert_eq!(place.token_file, Some(PathBuf::from(ACCOUNT).join("token")));
    assert_eq!(place.ca_file, Some(PathBuf::from(ACCOUNT).join("ca.crt")));
    assert_eq!(Config::default().place(env(&[])), None);
    let bench = Bench::new(Roots::default());
    let outside = Config { url: Some("https://api.example:6443".into()), ..Config::default() };
    // The pod's account is of another cluster.
    assert_eq!(outside.place(inside).unwrap().token_file, None);
    let found = KubernetesReader::new(&outside).probe(&bench.context()).unwrap();
    assert_eq!(found, Support::Supported("https://api.example:6443".into()));
}

#[test]
fn settings_have_limits() {
    let check = |text: &str| {
        let config: Config = stepwatch_kit::config::parse("x", text).unwrap();
        config.check().under("kubernetes").collect::<Vec<_>>()
    };
    assert_eq!(check("{enabled: true, url: 'https://api:6443', token_file: /t, ca_file: /c}"), [""; 0]);
    assert_eq!(
        check("{url: 'http://api:8080', token_file: /t, running_interval: 1ms}"),
        [
            "kubernetes.running_interval: must be at least 10ms",
            "kubernetes.url: must be https, because a token is sent"
        ]
    );
    assert_eq!(check("{resources: ['[']}").len(), 1);
    assert!(!Config::default().enabled, "one exporter of a cluster asks");
}

//! Whose job it is and how it is set up, by the real exporter: a node of Slurm, one of Kubernetes
//! with a kubelet that is slow, and secrets that stay.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use stepwatch_fake_nvml::{Fleet, Script, library};
use stepwatch_tests::exposition::value;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::trainer::Rank;
use stepwatch_tests::{Exporter, Machine, http, poll_until};
use tempfile::TempDir;

const RUN: &str = "llama-70b";
const CANARY: &str = "canary-5d1f";
const QUICK: &str = "collectors: {gpu: {enabled: false}, job: {interval: 50ms, kubelet: {socket: KUBELET, timeout: 200ms}}, config_drift: {interval: 50ms}}\n";

/// A node with two GPUs as a tree of files, and an exporter that looks at it.
struct Node {
    dir: TempDir,
    exporter: Exporter,
    /// All events of the stream.
    events: Arc<Mutex<Vec<Value>>>,
}

fn uuid(n: u32) -> String {
    format!("GPU-00000000-0000-0000-0000-00000000000{n}")
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

impl Node {
    async fn start(prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
        let root = dir.path();
        write(root, "proc/stat", "cpu 1 2 3 4\nbtime 1700000000\nprocs_blocked 0\n");
        write(root, "proc/sys/kernel/osrelease", "6.8.0-51-generic\n");
        write(
            root,
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20\n",
        );
        std::fs::create_dir_all(root.join("sys")).unwrap();
        write(root, "kmsg", "");
        for i in 0..2 {
            let text = format!(
                "Model: H100\nGPU UUID: {}\nBus Location: 0000:1{i}:00.0\nDevice Minor: {i}\n",
                uuid(i)
            );
            write(root, &format!("proc/driver/nvidia/gpus/0000:1{i}:00.0/information"), &text);
        }
        prepare(root);
        let mut args = Vec::new();
        for (option, part) in [("--path.sysfs", "sys"), ("--path.procfs", "proc"), ("--path.kmsg", "kmsg")] {
            args.extend([option.into(), root.join(part).into_os_string()]);
        }
        let extra = QUICK.replace("KUBELET", &root.join("kubelet.sock").display().to_string());
        let machine = Machine { args, env: Vec::new() };
        let exporter = Exporter::start_on(machine, &root.join("exporter"), "", &extra).await.unwrap();
        let events = Arc::default();
        tokio::spawn(listen(format!("{}/v1/stream", exporter.url()), Arc::clone(&events)));
        Self { dir, exporter, events }
    }

    async fn page_where(&self, what: &str, so: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let found = poll_until(what, PATIENCE, async || {
            last = self.exporter.metrics().await.ok()?;
            so(&last).then(|| last.clone())
        });
        let found = found.await;
        found.unwrap_or_else(|error| panic!("{error}; the page is\n{last}"))
    }

    async fn event(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let find = async || self.events.lock().unwrap().iter().find(|e| is(e)).cloned();
        poll_until(what, PATIENCE, find).await.unwrap()
    }

    /// This process, as the tree shows it: the sender on the socket is identified by its pid.
    fn process(root: &Path, group: &str, environ: &[&str]) {
        let pid = std::process::id();
        let stat = format!("{pid} (python3) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 50000 1 1 0");
        write(root, &format!("proc/{pid}/stat"), &stat);
        write(root, &format!("proc/{pid}/environ"), &environ.join("\0"));
        write(root, &format!("proc/{pid}/cgroup"), &format!("0::{group}\n"));
        write(root, &format!("proc/{pid}/cmdline"), "python3\0-u\0/conf/none.py");
        write(root, &format!("proc/{pid}/maps"), "7f1c-7f1d r-xp 0 08:02 9 /usr/lib/libnccl.so.2.21.5\n");
    }
}

async fn listen(url: String, events: Arc<Mutex<Vec<Value>>>) {
    let mut answer = http::client().get(url).send().await.unwrap();
    let mut text = Vec::new();
    while let Ok(Some(chunk)) = answer.chunk().await {
        text.extend_from_slice(&chunk);
        while let Some(end) = text.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            events.lock().unwrap().extend(serde_json::from_slice::<Value>(&line).ok());
        }
    }
}

#[tokio::test]
async fn a_job_of_slurm() {
    let group = "/system.slice/slurmstepd.scope/job_1207/step_0/user/task_0";
    let secrets =
        [format!("WANDB_API_KEY={CANARY}"), format!("NCCL_SECRET_TOKEN={CANARY}"), format!("HOME=/{CANARY}")];
    let node = Node::start(|root| {
        let environ: Vec<&str> =
            ["SLURM_JOB_ID=1207", "SLURM_JOB_NAME=llama", "SLURM_JOB_USER=ada", "SLURM_STEP_GPUS=0,1"]
                .into_iter()
                .chain(["NCCL_IB_HCA=mlx5", "NCCL_DEBUG=WARN"])
                .chain(secrets.iter().map(String::as_str))
                .collect();
        Node::process(root, group, &environ);
        write(root, &format!("sys/fs/cgroup{group}/cgroup.procs"), &std::process::id().to_string());
    })
    .await;
    let rank = Rank::join(&node.exporter.ingest(), RUN, 0, 16).unwrap();
    rank.step(1, &[("loss", 2.0)]).unwrap();
    let page = node
        .page_where("the job of the run", |page| value(page, "train_job_info", &[("run", RUN)]).is_some());
    let page = page.await;
    let job = [("job", "1207"), ("name", "llama"), ("user", "ada"), ("scheduler", "slurm")];
    assert_eq!(value(&page, "job_info", &job), Some(1.0), "{page}");
    assert_eq!(value(&page, "job_start_timestamp_seconds", &[("job", "1207")]), Some(1_700_000_500.0));
    for i in 0..2 {
        assert_eq!(value(&page, "gpu_job_info", &[("gpu", &uuid(i)), ("job", "1207")]), Some(1.0));
    }
    let page = node.page_where("the run's setup", |page| {
        value(page, "config_value_info", &[("run", RUN), ("key", "nccl"), ("value", "2.21.5")]).is_some()
    });
    let page = page.await;
    assert_eq!(value(&page, "config_value_info", &[("run", RUN), ("key", "env.NCCL_IB_HCA")]), Some(1.0));
    assert_eq!(
        value(&page, "config_value_info", &[("run", ""), ("key", "driver"), ("value", "570.133.20")]),
        Some(1.0)
    );

    let job = node.event("the job in the stream", |e| e["name"] == "job" && !e["runs"].is_null()).await;
    assert_eq!(
        (&job["job"], &job["user"], &job["gpus"][1]),
        (&"1207".into(), &"ada".into(), &uuid(1).into())
    );
    let setup = node.event("the node's setup", |e| e["name"] == "config" && e["run"].is_null()).await;
    assert_eq!((&setup["kernel"], &setup["driver"]), (&"6.8.0-51-generic".into(), &"570.133.20".into()));
    let setup = node.event("the run's setup", |e| e["name"] == "config" && e["run"] == RUN).await;
    assert_eq!((&setup["env.NCCL_DEBUG"], &setup["rank"]), (&"WARN".into(), &0.into()));

    // The job ends.
    std::fs::remove_dir_all(node.dir.path().join("sys/fs/cgroup/system.slice/slurmstepd.scope/job_1207"))
        .unwrap();
    rank.bye().unwrap();
    let page = node.page_where("no job", |page| value(page, "gpu_job_info", &[]).is_none()).await;
    assert_eq!(value(&page, "job_info", &[]), None);
    node.event("the end of the job", |e| e["name"] == "job" && e["code"] == 0).await;
    let text = format!("{page} {:?}", node.events.lock().unwrap());
    assert!(!text.contains(CANARY), "a secret went out");
}

/// A kubelet that keeps its callers waiting while it is `slow`.
fn kubelet(socket: PathBuf, slow: Arc<AtomicBool>) {
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let slow = Arc::clone(&slow);
            let service = hyper::service::service_fn(move |request| list(request, Arc::clone(&slow)));
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
}

type Body = http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>;

async fn list(
    request: Request<Incoming>,
    slow: Arc<AtomicBool>,
) -> Result<Response<Body>, std::convert::Infallible> {
    assert_eq!(request.uri().path(), "/v1.PodResourcesLister/List");
    if slow.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
    let devices =
        [field(1, b"nvidia.com/gpu"), field(2, uuid(0).as_bytes()), field(2, uuid(1).as_bytes())].concat();
    let container = [field(1, b"trainer"), field(2, &devices)].concat();
    let pod = [field(1, b"llama-0"), field(2, b"ml"), field(3, &container)].concat();
    let answer = field(1, &pod);
    let framed = [&[0], &(answer.len() as u32).to_be_bytes()[..], &answer].concat();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", 0.into());
    let body = Full::from(framed).with_trailers(std::future::ready(Some(Ok(trailers))));
    Ok(Response::builder().header("content-type", "application/grpc").body(body.boxed()).unwrap())
}

/// A field of a protobuf message, with a length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let (low, high) = ((content.len() % 128) as u8 | 128, (content.len() / 128) as u8);
    [&[number << 3 | 2, low, high][..], content].concat()
}

#[tokio::test]
async fn a_pod_whose_kubelet_is_slow() {
    let slow = Arc::new(AtomicBool::new(true));
    let node = Node::start(|root| {
        Node::process(root, "/", &["HOSTNAME=llama-0"]);
        kubelet(root.join("kubelet.sock"), Arc::clone(&slow));
    })
    .await;
    let rank = Rank::join(&node.exporter.ingest(), RUN, 0, 16).unwrap();
    let reasons = [("source", "kubelet"), ("reason", "deadline")];
    let page = node.page_where("a call that came to nothing", |page| {
        value(page, "job_source_failures_total", &reasons).is_some_and(|n| n >= 1.0)
    });
    let page = page.await;
    assert_eq!(value(&page, "job_source_up", &[("source", "kubelet")]), Some(0.0));
    assert_eq!(value(&page, "gpu_pod_info", &[]), None);
    let asked = Instant::now();
    rank.step(1, &[("loss", 2.0)]).unwrap();
    node.page_where("the step", |page| value(page, "train_step", &[("run", RUN)]) == Some(1.0)).await;
    assert!(asked.elapsed() < Duration::from_secs(10), "the page does not wait for a kubelet");

    slow.store(false, Ordering::Relaxed);
    let pod = [("namespace", "ml"), ("pod", "llama-0"), ("container", "trainer")];
    let page = node.page_where("the pod", |page| value(page, "gpu_pod_info", &pod).is_some()).await;
    assert_eq!(value(&page, "gpu_job_info", &[("gpu", &uuid(1)), ("job", "ml/llama-0")]), Some(1.0));
    assert_eq!(value(&page, "train_job_info", &[("run", RUN), ("job", "ml/llama-0")]), Some(1.0));
    assert_eq!(value(&page, "job_source_up", &[("source", "kubelet")]), Some(1.0));
}

#[tokio::test]
async fn a_job_on_a_part_of_a_gpu() {
    // A directory of a prolog makes it look from the beginning: on a node without a scheduler it
    // tries again only after a minute.
    let quick = "collectors: {job: {interval: 50ms, prolog_dir: /nonexistent/prolog}}\n";
    let script = Script::for_fleet(Fleet::H200Mig);
    let node = crate::node::Node::start_with(&script, &library().unwrap(), quick).await;
    let mig = "MIG-00000000-0000-5000-8000-000000000002";
    let info = [("gi", "2"), ("mig_uuid", mig)];
    node.page_where("the instances", |page| value(page, "gpu_mig_info", &info).is_some()).await;
    let visible = format!("CUDA_VISIBLE_DEVICES={mig}");
    let group = "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0";
    Node::process(node.dir.path(), group, &["SLURM_JOB_ID=7", "SLURM_JOB_GPUS=5", &visible]);
    let rank = Rank::join(&node.exporter.ingest(), RUN, 0, 1).unwrap();
    rank.step(1, &[("loss", 2.0)]).unwrap();
    let (gpu, whole) = (Fleet::H200Mig.uuid(0), Fleet::H200Mig.uuid(5));
    let labels = [("gpu", gpu.as_str()), ("gi", "2"), ("job", "7")];
    let page = node.page_where("the job", |page| value(page, "gpu_job_info", &labels).is_some()).await;
    assert_eq!(
        value(&page, "gpu_job_info", &[("gpu", &whole)]),
        None,
        "the scheduler counts instances, not GPUs"
    );
    assert_eq!(value(&page, "job_gpus", &[("job", "7")]), Some(1.0));
}

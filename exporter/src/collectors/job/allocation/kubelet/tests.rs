//! Tests with a fake kubelet that checks requests, and answers as configured: well, slowly, not at
//! all or wrongly.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt as _;

use super::super::devices::tests::{eight, uuid};
use super::super::proto::{CdiDevice, ClaimResource, ContainerDevices, PodResources};
use super::*;

/// The fake kubelet's reaction to a call.
#[derive(Debug, Clone)]
pub(in super::super) enum Answer {
    Pods(ListResponse),
    /// Bytes in place of a framed message.
    Raw(Vec<u8>),
    /// Only a status.
    Refuse(u32),
    Silence,
    /// Bytes that are not HTTP/2.
    Garbage,
    HangUp,
}

/// A fake kubelet that serves its socket until dropped.
pub(in super::super) struct Fake {
    pub(in super::super) answer: Arc<Mutex<Answer>>,
    pub(in super::super) calls: Arc<AtomicUsize>,
    wrong: Arc<Mutex<Vec<String>>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Fake {
    pub(in super::super) fn serve(socket: &Path, answer: Answer) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = {
            let _within = runtime.enter();
            tokio::net::UnixListener::bind(socket).unwrap()
        };
        let mut fake = Self {
            answer: Arc::new(Mutex::new(answer)),
            calls: Arc::default(),
            wrong: Arc::default(),
            runtime: None,
        };
        let (answer, calls, wrong) =
            (Arc::clone(&fake.answer), Arc::clone(&fake.calls), Arc::clone(&fake.wrong));
        runtime.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                calls.fetch_add(1, Ordering::Relaxed);
                let answer = answer.lock().unwrap().clone();
                let wrong = Arc::clone(&wrong);
                tokio::spawn(async move {
                    match answer {
                        Answer::Garbage => drop(stream.write_all(b"220 mail.example ESMTP\r\n").await),
                        Answer::HangUp => drop(stream),
                        answer => {
                            let service = hyper::service::service_fn(move |request| {
                                reply(request, answer.clone(), Arc::clone(&wrong))
                            });
                            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                            let _ = http.serve_connection(TokioIo::new(stream), service).await;
                        }
                    }
                });
            }
        });
        fake.runtime = Some(runtime);
        fake
    }

    pub(in super::super) fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(|runtime| runtime.shutdown_background());
        let wrong = self.wrong.lock().unwrap();
        assert!(wrong.is_empty() || std::thread::panicking(), "it was asked wrongly: {wrong:?}");
    }
}

type Body = http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>;

async fn reply(
    request: Request<Incoming>,
    answer: Answer,
    wrong: Arc<Mutex<Vec<String>>>,
) -> Result<Response<Body>, std::convert::Infallible> {
    let (head, body) = request.into_parts();
    let header =
        |name: &str| head.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let body = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    for (what, is, want) in [
        ("method", head.method.as_str(), "POST"),
        ("path", head.uri.path(), LIST),
        ("content-type", &header("content-type"), "application/grpc"),
        ("te", &header("te"), "trailers"),
    ] {
        if is != want {
            wrong.lock().unwrap().push(format!("{what} {is}"));
        }
    }
    if body != [0; 5][..] || !header("grpc-timeout").ends_with('m') {
        wrong.lock().unwrap().push(format!("a request of {body:?} within {:?}", header("grpc-timeout")));
    }
    let mut trailers = HeaderMap::new();
    let message = match answer {
        Answer::Pods(pods) => {
            let message = pods.encode_to_vec();
            [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat()
        }
        Answer::Raw(bytes) => bytes,
        Answer::Refuse(code) => {
            let refused = Response::builder()
                .header("content-type", "application/grpc")
                .header("grpc-status", code)
                .header("grpc-message", "not today")
                .body(Full::default().boxed());
            return Ok(refused.unwrap());
        }
        Answer::Silence | Answer::Garbage | Answer::HangUp => std::future::pending().await,
    };
    trailers.insert("grpc-status", 0.into());
    let body = Full::from(message).with_trailers(std::future::ready(Some(Ok(trailers))));
    Ok(Response::builder().header("content-type", "application/grpc").body(body.boxed()).unwrap())
}

pub(in super::super) fn pod(namespace: &str, name: &str, resource: &str, ids: &[&str]) -> PodResources {
    let devices = ContainerDevices {
        resource_name: resource.into(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    let container =
        ContainerResources { name: "trainer".into(), devices: vec![devices], dynamic_resources: Vec::new() };
    PodResources { name: name.into(), namespace: namespace.into(), containers: vec![container] }
}

fn claim(driver: &str, device: &str, cdi: &str) -> PodResources {
    let resource = ClaimResource {
        cdi_devices: vec![CdiDevice { name: cdi.into() }],
        driver_name: driver.into(),
        pool_name: "n1".into(),
        device_name: device.into(),
    };
    let mut pod = pod("ml", &format!("claims-{device}"), "cpu", &["0"]);
    pod.containers[0].dynamic_resources = vec![DynamicResource {
        claim_name: "gpu".into(),
        claim_namespace: "ml".into(),
        claim_resources: vec![resource],
    }];
    pod
}

pub(in super::super) fn pods(pods: Vec<PodResources>) -> Answer {
    Answer::Pods(ListResponse { pod_resources: pods })
}

struct Setup {
    _dir: tempfile::TempDir,
    fake: Fake,
    kubelet: Kubelet,
    now: Instant,
}

impl Setup {
    fn new(answer: Answer, deadline: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("kubelet.sock");
        let fake = Fake::serve(&socket, answer);
        let kubelet = kubelet(socket, deadline);
        Self { _dir: dir, fake, kubelet, now: Instant::now() }
    }

    /// Advances the clock and refreshes. Returns the number of calls.
    fn after(&mut self, wait: Duration) -> usize {
        self.now += wait;
        self.kubelet.refresh(self.now);
        self.kubelet.containers_at(self.now).len()
    }
}

fn kubelet(socket: PathBuf, deadline: Duration) -> Kubelet {
    let timeout = stepwatch_kit::config::Period::millis(deadline.as_millis() as u64);
    Kubelet::new(&KubeletConfig { socket, timeout, ..KubeletConfig::default() }, BACK_OFF)
}

const BACK_OFF: Duration = Duration::from_secs(15);
const PATIENT: Duration = Duration::from_secs(30);

#[test]
fn pods_and_what_they_hold() {
    let answer = pods(vec![
        pod("ml", "llama-0", "nvidia.com/gpu", &[&uuid(0), &uuid(1)]),
        pod(
            "ml",
            "shared",
            "nvidia.com/gpu.shared",
            &[&format!("{}::0", uuid(2)), &format!("{}::3", uuid(2))],
        ),
        pod("ml", "mig", "nvidia.com/mig-1g.10gb", &["MIG-11111111-2222-3333-4444-555555555555"]),
        pod("ml", "gke", "nvidia.com/gpu", &["nvidia4/gi1"]),
        pod("ml", "unknown", "nvidia.com/gpu", &["something"]),
        pod("web", "shop", "example.com/fpga", &[&uuid(5)]),
        pod("net", "rdma", "nvidia.com/hostdev", &["0000:3b:00.2", "0000:3b:00.3"]),
        pod("vm", "kubevirt", "nvidia.com/GH100_H100_SXM5", &["5"]),
        claim("gpu.nvidia.com", "gpu-6", "k8s.gpu.nvidia.com/claim=abc-gpu-6"),
        claim(
            "gpu.nvidia.com",
            "gpu-4-mig-1g10gb-19-0",
            "k8s.gpu.nvidia.com/claim=abc-gpu-4-mig-1g10gb-19-0",
        ),
        claim("", "", &format!("nvidia.com/gpu={}", uuid(7))),
        claim("compute-domain.nvidia.com", "channel-0", "k8s.compute-domain.nvidia.com/claim=abc-gpu-5"),
    ]);
    let mut s = Setup::new(answer, PATIENT);
    assert_eq!(s.after(Duration::ZERO), 9);
    let known = eight();
    let resolve = |c: &Container| (c.pod.clone(), c.resolve(&known));
    let found: Vec<_> = s.kubelet.containers_at(s.now).iter().map(resolve).collect();
    let whole = |n| Device { gpu: uuid(n), gi: None };
    let part = |n, gi| Device { gpu: uuid(n), gi: Some(gi) };
    let want = [
        ("llama-0", (vec![whole(0), whole(1)], 0)),
        ("shared", (vec![whole(2)], 0)),
        ("mig", (vec![part(2, 7)], 0)),
        ("gke", (vec![part(4, 1)], 0)),
        ("unknown", (vec![], 1)),
        ("kubevirt", (vec![], 1)),
        ("claims-gpu-6", (vec![whole(6)], 0)),
        ("claims-gpu-4-mig-1g10gb-19-0", (vec![whole(4)], 0)),
        ("claims-", (vec![whole(7)], 0)),
    ];
    assert_eq!(found, want.map(|(pod, found)| (pod.to_owned(), found)));
    s.fake.set(pods(vec![]));
    assert_eq!(s.after(Duration::from_secs(15)), 0, "they ended");
    assert!(s.kubelet.is_up());
}

/// A name that the API server would refuse, but another program behind the socket may send.
#[test]
fn names_of_pods_are_plain_words() {
    let name = "evil\u{1b}[31m\u{202e}\r\n\u{200b}pod";
    let mut pod = pod(name, name, "nvidia.com/gpu", &["0"]);
    pod.containers[0].name = name.into();
    let mut s = Setup::new(pods(vec![pod]), PATIENT);
    assert_eq!(s.after(Duration::ZERO), 1);
    let found = s.kubelet.containers_at(s.now);
    for word in [&found[0].namespace, &found[0].pod, &found[0].container] {
        assert!(word.starts_with("evil"), "{word:?}");
        assert_eq!(words::line(word), word.as_str(), "nothing is left to clean");
    }
}

#[test]
fn a_kubelet_that_restarts_costs_nothing_and_is_not_pestered() {
    let mut s = Setup::new(pods(vec![pod("ml", "a", "nvidia.com/gpu", &["0"])]), PATIENT);
    assert_eq!(s.after(Duration::ZERO), 1);
    s.fake.set(Answer::HangUp);
    assert_eq!(s.after(Duration::from_secs(15)), 1, "the last answer stays");
    assert!(!s.kubelet.is_up());
    assert_eq!(s.kubelet.calls.failed.iter().sum::<u64>(), 1);
    let asked = s.fake.calls.load(Ordering::Relaxed);
    assert_eq!(s.after(BACK_OFF / 2), 1);
    assert_eq!(s.fake.calls.load(Ordering::Relaxed), asked, "it is left alone for a while");
    assert_eq!(s.after(KEEP), 0, "too old");
    s.fake.set(pods(vec![pod("ml", "a", "nvidia.com/gpu", &["0"])]));
    assert_eq!(s.after(LONGEST_BACK_OFF), 1);
    assert!(s.kubelet.is_up());
}

#[test]
fn wrong_answers_are_counted_and_not_used() {
    let frame =
        |message: &[u8]| Answer::Raw([&[0], &(message.len() as u32).to_be_bytes()[..], message].concat());
    for (answer, reason) in [
        (Answer::Refuse(12), "refused"),
        (Answer::Garbage, "malformed"),
        (Answer::Raw(b"\0\0\0\0".to_vec()), "malformed"),
        (Answer::Raw(b"\0\0\0\0\x09short".to_vec()), "malformed"),
        (Answer::Raw(b"\x01\0\0\0\x01x".to_vec()), "malformed"),
        (Answer::Raw(vec![0; 17 * 1024 * 1024]), "malformed"),
        (frame(b"\x0a\xff\xff\xff\xff\x0f"), "malformed"),
    ] {
        let name = format!("{answer:?}");
        let mut s = Setup::new(answer, PATIENT);
        assert_eq!(s.after(Duration::ZERO), 0);
        let at = REASONS.iter().position(|r| *r == reason).unwrap();
        assert_eq!(s.kubelet.calls.failed[at], 1, "{:?} of {}", s.kubelet.calls, &name[..name.len().min(60)]);
        assert!(!s.kubelet.is_up() && s.kubelet.is_here());
    }
}

#[test]
fn one_that_is_silent_has_a_deadline() {
    let mut s = Setup::new(Answer::Silence, Duration::from_millis(50));
    assert_eq!(s.after(Duration::ZERO), 0);
    assert_eq!(s.kubelet.calls.failed[1], 1, "{:?}", s.kubelet.calls);
}

#[test]
fn one_that_is_gone_is_a_failure_and_one_that_never_was_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kubelet.sock");
    let mut kubelet = kubelet(socket.clone(), PATIENT);
    kubelet.refresh(Instant::now());
    assert!(!kubelet.is_here() && kubelet.calls == Calls::default());
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    kubelet.refresh(Instant::now());
    assert_eq!(kubelet.calls.failed[0], 1, "no server listens");
    assert!(kubelet.is_here() && !kubelet.is_up());
}

#[test]
fn a_big_answer_is_read_and_limited() {
    let many = (0..MAX_CONTAINERS + 10).map(|i| pod("ml", &format!("p{i}"), "nvidia.com/gpu", &["0"; 40]));
    let mut s = Setup::new(pods(many.collect()), PATIENT);
    assert_eq!(s.after(Duration::ZERO), MAX_CONTAINERS);
    assert_eq!(s.kubelet.calls.dropped, 10);
}

proptest::proptest! {
    #[test]
    fn never_panics(bytes: Vec<u8>) {
        fuzz(&bytes);
    }

    #[test]
    fn a_changed_byte_never_panics(at in 0usize..400, byte: u8) {
        let answer = ListResponse {
            pod_resources: vec![
                pod("ml", "llama-0", "nvidia.com/gpu", &[&uuid(0), &uuid(1)]),
                pod("net", "rdma", "nvidia.com/hostdev", &["0000:3b:00.2"]),
                claim("gpu.nvidia.com", "gpu-4-mig-1g10gb-19-0", "k8s.gpu.nvidia.com/claim=abc-gpu-4-mig-1g10gb-19-0"),
            ],
        };
        let mut bytes = answer.encode_to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        fuzz(&bytes);
    }
}

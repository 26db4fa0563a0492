use std::sync::Mutex;

use axum::body::Body as HttpBody;
use axum::http::Request;
use serde_json::json;
use stepwatch_kit::serve::{self, Limits};
use stepwatch_kit::shutdown::Trigger;
use stepwatch_wire::{Event, Kind};
use tower::ServiceExt as _;

use super::*;
use crate::testing::{hub, published};

/// A body that the callback sent, with NaN in its numbers.
const SAMPLE: &str = include_str!("../../../tests/data/kubeflow_trainer_status_post.json");

struct Bench {
    hub: Hub,
    router: Router,
    _trigger: Trigger,
}

impl Bench {
    fn new(config: &KubeflowConfig) -> Self {
        let hub = hub();
        let (trigger, shutdown) = Shutdown::manual();
        let router =
            Kubeflow::new(config).unwrap().routes(&hub, &Roots::default(), &BTreeMap::new(), &shutdown);
        Self { hub, router, _trigger: trigger }
    }

    async fn post(&self, path: &str, token: &str, body: impl Into<HttpBody>) -> StatusCode {
        let request = Request::post(path)
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {token}"))
            .body(body.into())
            .unwrap();
        self.router.clone().oneshot(request).await.unwrap().status()
    }

    /// Waits until this number of events was published.
    async fn events(&self, count: usize) -> Vec<Event> {
        for _ in 0..10_000 {
            let all = published(&self.hub);
            if all.len() >= count {
                return all;
            }
            tokio::task::yield_now().await;
        }
        panic!("{:?}", published(&self.hub));
    }
}

/// A report at some second of the minute.
fn status(second: u32, progress: i64, metrics: serde_json::Value) -> String {
    let metrics: Vec<_> = metrics
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value.as_str().map_or(value.to_string(), str::to_owned)}))
        .collect();
    let updated = format!("2026-11-21T02:16:{second:02}.007550+00:00");
    json!({"trainerStatus": {"lastUpdatedTime": updated, "progressPercentage": progress, "metrics": metrics}})
        .to_string()
}

#[tokio::test]
async fn a_report_as_transformers_sends_it() {
    let b = Bench::new(&KubeflowConfig::default());
    assert_eq!(b.post("/v1/kubeflow/qwen-sft", "any", SAMPLE).await, StatusCode::OK);
    let events = b.events(2).await;
    let step = events.last().unwrap();
    assert_eq!((step.run.as_deref(), step.rank, step.step), (Some("qwen-sft"), Some(0), Some(3)));
    assert_eq!(step.ts, Some(1_795_227_411.007));
    assert!(step.m.get("loss").unwrap().is_nan() && step.m.get("grad_norm").unwrap().is_nan());
    assert_eq!((step.m.get("lr"), step.m.get("epoch"), step.m.len()), (Some(1e-4), Some(0.01), 4));
}

#[tokio::test]
async fn a_whole_training() {
    let b = Bench::new(&KubeflowConfig::default());
    let reports = [
        status(0, 0, json!({"total_steps": 100})),
        status(
            5,
            10,
            json!({"loss": 2.5, "epoch": 0.1, "current_step": 10, "total_steps": 100, "current_epoch": 0.1}),
        ),
        status(
            10,
            15,
            json!({"loss": 2.5, "epoch": 0.1, "current_step": 15, "total_steps": 100, "current_epoch": 0.15}),
        ),
        status(
            15,
            99,
            json!({"loss": 1.5, "epoch": 1.0, "eval_loss": 1.75, "current_step": 100, "total_steps": 100}),
        ),
        status(
            20,
            100,
            json!({"loss": 1.5, "epoch": 1.0, "eval_loss": 1.75, "train_loss": 2.0, "train_runtime": 12.5}),
        ),
    ];
    for report in reports {
        assert_eq!(b.post("/v1/kubeflow/r/status", "t", report).await, StatusCode::OK);
    }
    let events = b.events(6).await;
    let found: Vec<_> = events.iter().map(|e| (e.kind, e.step, e.m.get("loss"))).collect();
    assert_eq!(
        found,
        [
            (Kind::Hello, None, None),
            (Kind::Step, Some(10), Some(2.5)),
            (Kind::Step, Some(15), None),
            (Kind::Step, Some(100), Some(1.5)),
            (Kind::Eval, Some(100), Some(1.75)),
            (Kind::Bye, None, None),
        ],
        "a loss is published once, and the mean of all losses is none"
    );
}

#[tokio::test]
async fn a_run_that_begins_again_publishes_everything_again() {
    let b = Bench::new(&KubeflowConfig::default());
    let step = |second, n: i64| status(second, 1, json!({"loss": n, "lr": 0.5, "current_step": n}));
    for report in [step(5, 10), status(10, 0, json!({})), step(15, 2)] {
        b.post("/v1/kubeflow/r", "t", report).await;
    }
    let events = b.events(5).await;
    let last = events.last().unwrap();
    assert_eq!((last.step, last.m.get("loss"), last.m.get("lr")), (Some(2), Some(2.0), Some(0.5)));
    assert_eq!(last.attempt, Some(1));
}

#[tokio::test]
async fn a_run_that_resumes_where_it_died_is_another_attempt() {
    let b = Bench::new(&KubeflowConfig::default());
    let step = |second, n: i64| status(second, 1, json!({"loss": n, "current_step": n}));
    for report in [step(5, 10), status(10, 0, json!({})), step(15, 11)] {
        b.post("/v1/kubeflow/r", "t", report).await;
    }
    assert_eq!(b.events(5).await.last().unwrap().attempt, Some(1));
}

#[tokio::test]
async fn tokens_are_checked_where_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, "s3cret\n").unwrap();
    let b = Bench::new(&KubeflowConfig { token_file: Some(token_file), ..KubeflowConfig::default() });
    assert_eq!(b.post("/v1/kubeflow/r", "wrong", SAMPLE).await, StatusCode::UNAUTHORIZED);
    assert_eq!(b.post("/v1/kubeflow/r", "s3cret", SAMPLE).await, StatusCode::OK);
    b.events(2).await;
}

/// The trainer waits for the answer, so the answer must not wait for a holder of the hub's lock.
#[tokio::test]
async fn answers_come_at_once_and_the_queue_is_bounded() {
    let hub = hub();
    let (trigger, _) = Shutdown::manual();
    let (queue, _nobody_reads) = channel(2);
    let health = Health(Arc::new((hub.clone(), OnceLock::new())));
    let door = Door { queue, token: None, health, roots: Arc::default() };
    let router = Router::new().route("/v1/kubeflow/{run}", post(take)).with_state(door);
    let b = Bench { hub, router, _trigger: trigger };
    for _ in 0..5 {
        assert_eq!(b.post("/v1/kubeflow/r", "t", SAMPLE).await, StatusCode::OK);
    }
    let mut page = crate::samples::Samples::default();
    b.hub.write(&mut page);
    let labels = ["/v1/kubeflow", "kubeflow", "queue_limit"];
    assert_eq!(page.get(&crate::source::DROPPED, &labels), Some(3.0));
}

#[tokio::test]
async fn nonsense_is_answered_and_counted() {
    let b = Bench::new(&KubeflowConfig::default());
    for body in ["", "[]", "{}", "{\"trainerStatus\": 1}"] {
        assert_eq!(b.post("/v1/kubeflow/r", "t", body).await, StatusCode::OK);
    }
    assert_eq!(
        b.post("/v1/kubeflow/r", "t", vec![b' '; MAX_BODY_BYTES + 1]).await,
        StatusCode::PAYLOAD_TOO_LARGE
    );
    b.post("/v1/kubeflow/r", "t", SAMPLE).await;
    b.events(2).await;
    let mut page = crate::samples::Samples::default();
    b.hub.write(&mut page);
    assert_eq!(page.get(&crate::source::DROPPED, &["/v1/kubeflow", "kubeflow", "malformed"]), Some(4.0));
}

#[tokio::test]
async fn reports_are_passed_on() {
    type Seen = Arc<Mutex<Vec<(String, String, String)>>>;
    let seen = Seen::default();
    let take = |State(seen): State<Seen>, Path(run): Path<String>, headers: HeaderMap, body: String| async move {
        let token = headers[AUTHORIZATION].to_str().unwrap().to_owned();
        seen.lock().unwrap().push((run, token, body));
    };
    let router = Router::new().route("/jobs/{run}/status", post(take)).with_state(Arc::clone(&seen));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (_trigger, shutdown) = Shutdown::manual();
    tokio::spawn(serve::serve(listener, router, Limits::default(), None, shutdown));
    let forward = Some(format!("http://{addr}/jobs/{{run}}/status"));
    let b = Bench::new(&KubeflowConfig { forward, ..KubeflowConfig::default() });
    assert_eq!(b.post("/v1/kubeflow/a", "tok", SAMPLE).await, StatusCode::OK);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while seen.lock().unwrap().is_empty() {
        assert!(std::time::Instant::now() < deadline, "nothing was passed on");
        tokio::task::yield_now().await;
    }
    assert_eq!(seen.lock().unwrap()[0], ("a".into(), "Bearer tok".into(), SAMPLE.into()));
}

#[test]
fn configurations() {
    let config = |text: &str| stepwatch_kit::config::parse::<KubeflowConfig>("x", text).unwrap().check();
    assert!(config("forward: 'https://k/{run}'\nca_file: /x").is_empty());
    assert_eq!(config("ca_file: /x").len(), 1);
    assert_eq!(config("forward: nowhere").len(), 1);
    let missing = KubeflowConfig { token_file: Some("/nowhere".into()), ..KubeflowConfig::default() };
    assert!(Kubeflow::new(&missing).unwrap_err().to_string().starts_with("ingest.kubeflow.token_file: "));
}

proptest::proptest! {
    #[test]
    fn never_panics(body in "(?s).{0,100}", at in 0usize..423, byte: u8) {
        let mut damaged = SAMPLE.as_bytes().to_vec();
        let at = at % damaged.len();
        damaged[at] = byte;
        for body in [body.as_bytes(), &damaged] {
            if let Ok(status) = Status::parse(body) {
                let mut readings = Readings::new(0.0);
                let who = Who { run: "r".into(), certain: true, ..Who::default() };
                status.events(who, &Names::default(), &mut readings, None, 0.0);
            }
        }
    }
}

//! The progress reports of Kubeflow Trainer, which Transformers 5 sends by itself if
//! `KUBEFLOW_TRAINER_SERVER_URL` is set. `POST /v1/kubeflow/<run>` takes them without a line of
//! code in the training script.
//!
//! The callback waits for its answer inside the training loop, for up to five seconds. So a report
//! is answered when it arrives, before it is parsed: it goes into a queue, and if that is full, it
//! is counted and dropped. In a cluster with a real Kubeflow Trainer, each report can be forwarded
//! to it.

mod forward;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use stepwatch_kit::config::Secret;
use stepwatch_kit::serve::{BodyShare, Ends};
use stepwatch_kit::shutdown::Shutdown;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::clock::unix_now;
use crate::hub::Hub;
use crate::identity::peer;
use crate::origin::Priority;
use crate::origin::{Origin, Via};
use crate::principal::Principal;
use crate::readings::{Names, Readings, Who};
use crate::reply;
use crate::roots::Roots;
use crate::source::SourceHandle;
use forward::Forward;
use report::Status;

/// A report has about a dozen numbers.
const MAX_BODY_BYTES: usize = 256 << 10;
/// The most reports that wait to be read; each job sends one in five seconds.
const MAX_QUEUED: usize = 256;
/// The most characters of the name of a run.
const MAX_RUN: usize = 128;

/// `kubeflow: {forward: "https://…/trainjobs/{run}/status", ca_file: …, token_file: …}`
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KubeflowConfig {
    /// The URL that reports are forwarded to; `{run}` in it stands for the name of the run.
    pub forward: Option<String>,
    /// The certificate of the authority that signed that server's certificate.
    pub ca_file: Option<PathBuf>,
    /// The bearer token that reports must have. Without it, any token is accepted.
    pub token_file: Option<PathBuf>,
}

/// The receiver of reports, made before the first one may arrive.
#[derive(Debug)]
pub struct Kubeflow {
    token: Option<Secret>,
    forward: Option<Forward>,
}

#[derive(Debug, Clone)]
struct Door {
    queue: Sender<Report>,
    /// The digest of the required `Authorization` header.
    token: Option<Arc<[u8; 32]>>,
    health: Health,
    roots: Arc<Roots>,
}

/// Registers the source at the first report.
#[derive(Debug, Clone)]
struct Health(Arc<(Hub, OnceLock<SourceHandle>)>);

/// A report as it arrived.
#[derive(Debug)]
struct Report {
    run: String,
    /// The sender, who must be allowed to report the run.
    principal: Principal,
    authorization: Option<HeaderValue>,
    body: Bytes,
    /// The body's share of memory. It outlives the answer, which is sent before the body is read.
    _share: Option<BodyShare>,
}

impl KubeflowConfig {
    /// The errors of the configuration, each as `key: reason`.
    pub(super) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if let Some(url) = &self.forward {
            if let Err(why) = forward::check(url) {
                wrong.push(format!("kubeflow.forward: {why}"));
            }
        } else if self.ca_file.is_some() {
            wrong.push("kubeflow.ca_file: is for forward, which is not set".to_owned());
        }
        wrong
    }
}

impl Kubeflow {
    /// Reads the files that the configuration names.
    pub fn new(config: &KubeflowConfig) -> anyhow::Result<Self> {
        let token = config.token_file.as_deref().map(Secret::read).transpose();
        let token = token.map_err(|why| anyhow::anyhow!("ingest.kubeflow.token_file: {why}"))?;
        let forward = match &config.forward {
            Some(url) => Some(Forward::new(url, config.ca_file.as_deref())?),
            None => None,
        };
        Ok(Self { token, forward })
    }

    /// The routes. This also starts the task that reads the queued reports.
    pub fn routes(
        self,
        hub: &Hub,
        roots: &Roots,
        metrics: &BTreeMap<String, String>,
        shutdown: &Shutdown,
    ) -> Router {
        let (queue, reports) = channel(MAX_QUEUED);
        let health = Health(Arc::new((hub.clone(), OnceLock::new())));
        let wanted = self.token.map(|t| Arc::new(digest(format!("Bearer {}", t.expose()).as_bytes())));
        let door = Door { queue, token: wanted, health: health.clone(), roots: Arc::new(roots.clone()) };
        let reader = ReportReader::new(hub.clone(), health.clone(), metrics);
        let forward = self.forward.map(|f| f.start(health, shutdown.clone()));
        tokio::spawn(reader.run(reports, forward, shutdown.clone()));
        Router::new()
            .route("/v1/kubeflow/{run}", post(take))
            .route("/v1/kubeflow/{run}/{*rest}", post(take_below))
            .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
            .with_state(door)
    }
}

impl Health {
    fn get(&self) -> &SourceHandle {
        let (hub, handle) = &*self.0;
        handle.get_or_init(|| hub.source("/v1/kubeflow", "kubeflow"))
    }
}

type Body = Result<Bytes, BytesRejection>;
/// The ends of the connection, and the body's share of the memory for bodies.
type Arrival = (Option<Extension<Ends>>, Option<Extension<BodyShare>>);

async fn take(
    State(door): State<Door>,
    Path(run): Path<String>,
    arrival: Arrival,
    headers: HeaderMap,
    body: Body,
) -> Response {
    door.take(run, arrival, &headers, body).await
}

async fn take_below(
    State(door): State<Door>,
    Path((run, _)): Path<(String, String)>,
    arrival: Arrival,
    headers: HeaderMap,
    body: Body,
) -> Response {
    door.take(run, arrival, &headers, body).await
}

impl Door {
    /// Answers a report. It neither waits for the reading of reports nor takes a lock that it
    /// holds.
    async fn take(&self, run: String, (ends, share): Arrival, headers: &HeaderMap, body: Body) -> Response {
        let authorization = headers.get(AUTHORIZATION);
        if let Some(wanted) = &self.token {
            // Compares digests, so that the time it takes reveals nothing about the token.
            if authorization.is_none_or(|a| digest(a.as_bytes()) != **wanted) {
                self.health.get().dropped("unauthorized", 1);
                return reply::error(
                    StatusCode::UNAUTHORIZED,
                    "send the bearer token of ingest.kubeflow.token_file",
                );
            }
        }
        let body = match body {
            Ok(body) => body,
            Err(error) => {
                self.health.get().dropped("too_large", 1);
                return reply::error(error.status(), &error.body_text());
            }
        };
        let run = run.chars().take(MAX_RUN).collect();
        // The operator gave the token to every sender that has it.
        let principal = match &self.token {
            Some(_) => Principal::Exporter,
            None => peer::voice_of(&self.roots, ends.map(|Extension(ends)| ends)).await,
        };
        let share = share.map(|Extension(share)| share);
        let report = Report { run, principal, authorization: authorization.cloned(), body, _share: share };
        if self.queue.try_send(report).is_err() {
            self.health.get().dropped("queue_limit", 1);
        }
        reply::json(StatusCode::OK, &serde_json::json!({}))
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The events of a single report.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(body: &[u8]) -> Vec<stepwatch_wire::Event> {
    let Ok(status) = Status::parse(body) else { return Vec::new() };
    let who = Who { run: "r".into(), certain: true, ..Who::default() };
    status.events(who, &Names::default(), &mut Readings::new(0.0), None, 0.0).0
}

/// Reads the queued reports, one after the other.
#[derive(Debug)]
struct ReportReader {
    hub: Hub,
    health: Health,
    names: Names,
    name: Arc<str>,
    readings: Readings,
}

impl ReportReader {
    fn new(hub: Hub, health: Health, metrics: &BTreeMap<String, String>) -> Self {
        let names = Names::new(&report::names(metrics));
        Self { hub, health, names, name: "kubeflow".into(), readings: Readings::new(unix_now()) }
    }

    async fn run(
        mut self,
        mut reports: Receiver<Report>,
        forward: Option<Sender<Report>>,
        shutdown: Shutdown,
    ) {
        loop {
            let report = tokio::select! {
                () = shutdown.wait() => return,
                report = reports.recv() => report,
            };
            let Some(report) = report else { return };
            self.read(&report, unix_now());
            if let Some(forward) = &forward
                && forward.try_send(report).is_err()
            {
                self.health.get().dropped("forward_queue_limit", 1);
            }
        }
    }

    fn read(&mut self, report: &Report, now: f64) {
        let health = self.health.get();
        let status = match Status::parse(&report.body) {
            Ok(status) => status,
            Err(error) => {
                tracing::debug!(run = report.run, %error, "not a report of a trainer");
                return health.dropped("malformed", 1);
            }
        };
        health.up(true);
        if let Some(updated) = status.updated {
            health.lag_seconds(now - updated);
        }
        if !self.hub.hears(report.principal, &report.run) {
            return health.dropped("not_owner", 1);
        }
        let known = self.hub.last_step(&report.run, 0);
        let who =
            Who { run: report.run.clone(), principal: report.principal, certain: true, ..Who::default() };
        let (events, dropped) = status.events(who, &self.names, &mut self.readings, known, now);
        if dropped > 0 {
            health.dropped("series_limit", dropped);
        }
        for event in events {
            let origin = Origin::said_by(Via::Kubeflow, &self.name, Priority::Telemetry, report.principal);
            self.hub.publish(origin, event);
        }
    }
}

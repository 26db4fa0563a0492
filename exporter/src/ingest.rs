//! The entry points for events: a packet socket that trainers keep open, a datagram socket for
//! one-liners, and HTTP, in this program's own form and in those of OpenTelemetry.
//!
//! Any process of the node may send: the sockets are world-writable, as `/dev/log` is. So all input
//! is bounded and counted, and a malformed packet costs its sender only that packet.

mod bind;
mod connection_limit;
pub(crate) mod datagram;
mod event_rate;
mod http;
pub mod kubeflow;
mod launcher;
pub mod otlp;
mod seqpacket;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
pub use bind::{BindError, Sockets};
pub use connection_limit::Counts;
pub(crate) use launcher::Intake;

use stepwatch_kit::serve::ListenAddr;
use stepwatch_kit::shutdown::Shutdown;

use crate::family::Family;
use crate::readings;
use crate::roots::Roots;
use kubeflow::KubeflowConfig;
use otlp::Otlp;

pub static CONNECTIONS: Family =
    Family::gauge("stepwatch_exporter_ingest_connections", "", &[], "Open connections of the ingest socket");
pub static THROTTLED: Family = Family::counter(
    "stepwatch_exporter_ingest_throttled_total",
    "",
    &[],
    "Pauses in reading what a user sends too fast; its sender waits or drops",
);

pub static FAMILIES: &[&Family] = &[&CONNECTIONS, &THROTTLED];

/// Where trainers look for the socket, unless `STEPWATCH_SOCKET` gives another path.
pub const DEFAULT_SOCKET: &str = "/run/stepwatch/ingest.sock";

#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IngestConfig {
    /// Path of the packet socket; datagrams are taken at `ingest.dgram` beside it.
    pub socket: Option<PathBuf>,
    pub max_connections: usize,
    /// Further ports that take OTLP over HTTP and gRPC: SDKs look for a collector there.
    pub otlp: Vec<ListenAddr>,
    /// The meanings of pushed metrics: from their names to ours.
    pub metrics: BTreeMap<String, String>,
    pub kubeflow: KubeflowConfig,
}

/// The most further ports.
const MAX_PORTS: usize = 8;

impl Default for IngestConfig {
    fn default() -> Self {
        Self {
            socket: None,
            max_connections: 1024,
            otlp: Vec::new(),
            metrics: BTreeMap::new(),
            kubeflow: KubeflowConfig::default(),
        }
    }
}

impl IngestConfig {
    /// The errors of the configuration, each as `key: reason`.
    pub fn check(&self) -> Vec<String> {
        let mut wrong = readings::check(&self.metrics);
        wrong.extend(self.kubeflow.check());
        if self.otlp.len() > MAX_PORTS {
            wrong.push(format!("otlp: {} ports, the limit is {MAX_PORTS}", self.otlp.len()));
        }
        wrong
    }

    /// The configured path, else that of `STEPWATCH_SOCKET`, else the default.
    pub fn path(&self) -> PathBuf {
        let from_env = || std::env::var_os("STEPWATCH_SOCKET").filter(|p| !p.is_empty()).map(PathBuf::from);
        self.socket.clone().or_else(from_env).unwrap_or_else(|| DEFAULT_SOCKET.into())
    }
}

/// Serves both sockets until `shutdown`.
pub(crate) fn serve(
    sockets: Sockets,
    intake: &Intake,
    max_connections: usize,
    shutdown: &Shutdown,
) -> Arc<Counts> {
    let counts = Arc::new(Counts::new(intake.rates.throttled()));
    tokio::spawn(datagram::serve(sockets.datagram, intake.clone(), shutdown.clone()));
    tokio::spawn(seqpacket::serve(
        sockets.seqpacket,
        intake.clone(),
        Arc::clone(&counts),
        max_connections,
        shutdown.clone(),
    ));
    counts
}

/// The routes that take events in over HTTP on the exporter's own port.
pub(crate) fn routes(intake: Intake, otlp: Otlp, roots: &Roots) -> Router {
    http::routes(intake, roots.clone()).merge(otlp::routes(otlp))
}

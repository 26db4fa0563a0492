//! The ways in for events: a packet socket that trainers keep open, a datagram socket for one-liners, and HTTP.
//!
//! Anyone on the node may speak (the sockets are world-writable, as `/dev/log` is), so everything that comes in is bounded and
//! counted, and a malformed packet costs its sender that packet and nothing else.

mod bind;
mod datagram;
mod http;
mod seqpacket;

use std::path::PathBuf;
use std::sync::Arc;

pub use bind::{BindError, Sockets};
pub use http::routes;
pub use seqpacket::Counts;

use stepwatch_kit::shutdown::Shutdown;

use crate::family::Family;
use crate::hub::Hub;

pub static CONNECTIONS: Family =
    Family::gauge("stepwatch_exporter_ingest_connections", "", &[], "Open connections of the ingest socket");
pub static THROTTLED: Family = Family::counter(
    "stepwatch_exporter_ingest_throttled_total",
    "",
    &[],
    "Pauses in reading a connection that sent too fast; its sender waits or drops, nothing is lost here",
);

pub static FAMILIES: &[&Family] = &[&CONNECTIONS, &THROTTLED];

/// Where trainers look for the socket, unless `STEPWATCH_SOCKET` says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/stepwatch/ingest.sock";

#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IngestConfig {
    /// Path of the packet socket; datagrams are taken at `ingest.dgram` beside it.
    pub socket: Option<PathBuf>,
    pub max_connections: usize,
}

impl Default for IngestConfig {
    fn default() -> Self {
        Self { socket: None, max_connections: 1024 }
    }
}

impl IngestConfig {
    /// The configured path, that of the environment, or the default.
    pub fn path(&self) -> PathBuf {
        let from_env = || std::env::var_os("STEPWATCH_SOCKET").filter(|p| !p.is_empty()).map(PathBuf::from);
        self.socket.clone().or_else(from_env).unwrap_or_else(|| DEFAULT_SOCKET.into())
    }
}

/// Serves both sockets until `shutdown`.
pub fn serve(sockets: Sockets, hub: &Hub, max_connections: usize, shutdown: &Shutdown) -> Arc<Counts> {
    let counts = Arc::new(Counts::default());
    tokio::spawn(datagram::serve(sockets.datagram, hub.clone(), shutdown.clone()));
    tokio::spawn(seqpacket::serve(
        sockets.seqpacket,
        hub.clone(),
        Arc::clone(&counts),
        max_connections,
        shutdown.clone(),
    ));
    counts
}

//! The state that the handlers of all routes share: the store, the runtime, and copies of published
//! data.

use std::sync::Arc;

use axum::body::Bytes;
use prometheus_client::registry::Registry;
use stepwatch_kit::log_throttle::LogThrottle;
use stepwatch_model::time::Ts;

use crate::clock::wall;
use crate::ingest::SourceTable;
use crate::pictures::Charts;
use crate::remote_write::RemoteWrite;
use crate::runtime::RuntimeHandle;
use crate::store::{Roster, Store};

/// The state that all handlers share.
#[derive(Debug, Clone)]
pub struct Api {
    pub store: Store,
    pub runtime: RuntimeHandle,
    pub sources: SourceTable,
    pub charts: Charts,
    pub remote_write: RemoteWrite,
    pub registry: Arc<Registry>,
    pub(crate) roster: Roster,
    pub started: Ts,
    /// Counts refused alerts, and limits the log lines about them.
    pub refused_alerts: Arc<LogThrottle>,
    /// Counts alerts that were refused for lack of room, and limits the log lines about them.
    pub full_alerts: Arc<LogThrottle>,
    /// The OpenAPI document of this API and of the other routes of the server.
    pub document: Bytes,
}

impl Api {
    pub fn new(
        store: Store,
        runtime: RuntimeHandle,
        sources: SourceTable,
        charts: Charts,
        remote_write: RemoteWrite,
        registry: Registry,
        document: String,
    ) -> Self {
        Self {
            store,
            runtime,
            sources,
            charts,
            remote_write,
            registry: Arc::new(registry),
            roster: Roster::default(),
            started: wall(),
            refused_alerts: Arc::new(LogThrottle::default()),
            full_alerts: Arc::new(LogThrottle::default()),
            document: document.into(),
        }
    }
    /// With the list of replicas on one PostgreSQL.
    pub(crate) fn with_roster(self, roster: Roster) -> Self {
        Self { roster, ..self }
    }
}

//! `GET /api/v1/replicas`: the alerters on one PostgreSQL.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;

use super::Api;
use super::auth::Caller;
use super::error::ApiError;
use super::view::{LeaderView, ReplicaList, ReplicaView, When};

impl Api {
    /// The leader in a line, for the status; `None` with SQLite.
    pub(super) fn leader(&self) -> Option<LeaderView> {
        let (epoch, all) = (self.store.epoch()?, self.roster.all());
        let leader = all.iter().find(|seen| seen.leads);
        let running = || all.iter().filter(|seen| seen.announced.running);
        Some(LeaderView {
            address: leader.map(|seen| seen.announced.replica.address.clone()).unwrap_or_default(),
            epoch,
            replicas: running().count(),
            differing: running().filter(|seen| seen.differs).count(),
        })
    }
}

/// The replicas of this alerter on one PostgreSQL: who leads, who else runs, and who differs from
/// the leader; none with SQLite.
#[utoipa::path(
    get,
    path = "/api/v1/replicas",
    operation_id = "listReplicas",
    tag = "state",
    responses((status = 200, description = "The replicas, as the leader sees them", body = ReplicaList))
)]
pub(super) async fn list(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<ReplicaList>, ApiError> {
    caller.require_everything()?;
    let replicas = api.roster.all().into_iter().map(ReplicaView::from).collect();
    Ok(Json(ReplicaList { epoch: api.store.epoch(), leads_since: When(api.started), replicas }))
}

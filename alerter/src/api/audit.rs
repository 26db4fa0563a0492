//! The audit log by HTTP.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::doc::errors::{BadRequest, Broken};
use super::error::ApiError;
use super::extract::Asked;
use super::state::Api;
use super::view::When;
use crate::audit::{Door, Entry, Outcome};
use crate::store::{AuditFilter, Audited};

/// The default and maximum number of entries in one answer.
const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 10_000;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    /// The latest first.
    pub entries: Vec<AuditView>,
}

/// A change that somebody made, or tried to make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    /// Its number, which only rises.
    pub seq: i64,
    pub at: When,
    /// `api:NAME` of a token, `user:NAME` of a user, `oidc:NAME` of a person who logged in at the
    /// OpenID provider, `slack:U123 (name)`; otherwise the name that the request gave.
    pub actor: String,
    pub door: Door,
    pub action: String,
    /// The id of an incident or silence, or a path.
    pub target: String,
    pub outcome: Outcome,
    /// The address of the client.
    pub remote: Option<String>,
    pub detail: String,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditQuery {
    actor: Option<String>,
    action: Option<String>,
    target: Option<String>,
    door: Option<Door>,
    outcome: Option<Outcome>,
    /// Entries of this time or later.
    since: Option<When>,
    /// Entries with lower numbers: for the next page.
    before: Option<i64>,
    /// The largest number of entries.
    #[param(minimum = 1, maximum = 10000, default = 100)]
    limit: Option<u32>,
}

/// Who changed what, or tried to; the latest first.
#[utoipa::path(
    get,
    path = "/api/v1/audit",
    operation_id = "listAudit",
    tag = "state",
    params(AuditQuery),
    responses((status = 200, description = "Entries of the audit log", body = AuditList), BadRequest, Broken)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Asked(q): Asked<AuditQuery>,
) -> Result<Json<AuditList>, ApiError> {
    let limit = q.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(ApiError::bad_request(format!(
            "limit: must be a number from 1 to {LIMIT_MAX}, got {limit}"
        )));
    }
    let given = |v: Option<String>| v.filter(|v| !v.is_empty());
    let filter = AuditFilter {
        actor: given(q.actor),
        action: given(q.action),
        target: given(q.target),
        door: q.door.map(|d| d.as_str().to_owned()),
        outcome: q.outcome.map(|o| o.as_str().to_owned()),
        since: q.since.map(|at| at.0),
        before: q.before,
        limit: Some(limit),
    };
    let entries = api.store.audit(&filter).await?;
    Ok(Json(AuditList { entries: entries.into_iter().map(AuditView::from).collect() }))
}

impl From<Audited> for AuditView {
    fn from(Audited { seq, entry }: Audited) -> Self {
        let Entry { at, actor, door, action, target, outcome, remote, detail } = entry;
        let remote = remote.map(|ip| ip.to_string());
        Self { seq, at: When(at), actor, door, action, target, outcome, remote, detail }
    }
}

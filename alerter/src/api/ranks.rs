//! The ranks of a run by HTTP: the compute time of each, now and in the last minutes.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Caller;
use super::doc::errors::{BadRequest, NotFound};
use super::doc::examples;
use super::error::ApiError;
use super::extract::{Asked, Named};
use super::state::Api;
use super::view::When;
use crate::rank_table::{RankSnapshot, RankTable};

/// The default and maximum number of ranks in one answer.
const LIMIT_DEFAULT: u32 = 512;
const LIMIT_MAX: u32 = 4096;

type Result<T> = core::result::Result<T, ApiError>;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RanksQuery {
    /// The largest number of ranks; of more, those that differ most from their peers.
    #[param(minimum = 1, maximum = 4096, default = 512)]
    limit: Option<u32>,
}

/// The ranks of a run, by number; and the last looks at them, a column each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::ranks))]
pub struct RanksView {
    pub run: String,
    pub ranks: Vec<RankView>,
    /// Ranks beyond the limit.
    pub hidden: usize,
    /// The step of each column, and when the alerter looked.
    pub steps: Vec<i64>,
    pub at: Vec<When>,
    /// A row a rank, as in `ranks`: how much longer it computed than its peers, as a share; `null`
    /// where it did not report how long it computes.
    pub excess: Vec<Vec<Option<f64>>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RankView {
    pub rank: u32,
    pub node: Option<String>,
    /// Its number among the ranks of its node.
    pub local_rank: Option<u32>,
    /// Stage of the pipeline that it computes.
    pub stage: Option<u32>,
    pub last_step: Option<i64>,
    pub last_seen_at: When,
    /// It has not followed a restart.
    pub stale: bool,
    pub done: bool,
    /// How much longer it computes than the ranks that do the same work, as a share; lately, and
    /// beyond what is usual for it.
    pub excess: Option<f64>,
    pub rise: Option<f64>,
    /// Seconds that it computes in a step.
    pub compute_seconds: Option<f64>,
}

/// The ranks of a run, and how long each computes beside its peers.
///
/// Ten minutes of looks, one every five seconds. Only ranks whose trainer reports the parts of a
/// step have an excess.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{run}/ranks",
    operation_id = "listRanks",
    tag = "state",
    params(("run" = String, Path, description = "The name of the run"), RanksQuery),
    responses((status = 200, description = "The ranks", body = RanksView), BadRequest, NotFound)
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(run): Named,
    Asked(query): Asked<RanksQuery>,
) -> Result<Json<RanksView>> {
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        let limits = format!("limit: must be a number from 1 to {LIMIT_MAX}, got {limit}");
        return Err(ApiError::bad_request(limits));
    }
    api.require_run(&caller, &run)?;
    let table = api.runtime.views.get().ranks.get(&run).cloned().unwrap_or_default();
    Ok(Json(RanksView::new(run, &table, limit as usize)))
}

impl RanksView {
    pub(crate) fn new(run: String, table: &RankTable, limit: usize) -> Self {
        let mut ranks: Vec<&RankSnapshot> = table.ranks.iter().collect();
        let hidden = ranks.len().saturating_sub(limit);
        if hidden > 0 {
            let apart = |r: &RankSnapshot| r.excess.map_or(0.0, f64::abs);
            ranks.sort_by(|a, b| apart(b).total_cmp(&apart(a)).then(a.rank.cmp(&b.rank)));
            ranks.truncate(limit);
            ranks.sort_by_key(|r| r.rank);
        }
        let columns = &table.columns;
        let row = |r: &&RankSnapshot| columns.iter().map(|c| c.excess(r.rank)).collect();
        Self {
            run,
            hidden,
            steps: columns.iter().map(|c| c.step).collect(),
            at: columns.iter().map(|c| When(c.at)).collect(),
            excess: ranks.iter().map(row).collect(),
            ranks: ranks.into_iter().map(RankView::from).collect(),
        }
    }
}

impl From<&RankSnapshot> for RankView {
    fn from(r: &RankSnapshot) -> Self {
        Self {
            rank: r.rank,
            node: r.node.clone(),
            local_rank: r.local_rank,
            stage: r.stage,
            last_step: r.last_step,
            last_seen_at: When(r.last_seen),
            stale: r.stale,
            done: r.done,
            excess: r.excess,
            rise: r.rise,
            compute_seconds: r.compute_seconds,
        }
    }
}

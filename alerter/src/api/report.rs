//! Reports by HTTP: how the GPU time of a period was used, and what interrupted it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Json, Response};
use serde::Deserialize;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::incident::IncidentRecord;
use utoipa::ToSchema;

use super::auth::Caller;
use super::doc::errors::{BadRequest, Broken, NotFound};
use super::error::ApiError;
use super::extract::Asked;
use super::incidents::MARKDOWN;
use super::state::Api;
use super::view::When;
use crate::clock::wall;
use crate::report::view::ReportView;
use crate::report::{self, Period};
use crate::reporter::gather;

const SINCE_DEFAULT: Span = Span::secs(7 * 86_400);
const HTML: &str = "text/html; charset=utf-8";

type Result<T> = core::result::Result<T, ApiError>;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReportQuery {
    /// From the hour of this time on; seven days ago unless given.
    since: Option<When>,
    /// Up to the hour of this time; now unless given.
    until: Option<When>,
    /// Only this run.
    run: Option<String>,
    #[serde(default)]
    #[param(inline)]
    format: ReportFormat,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ReportFormat {
    #[default]
    Json,
    Markdown,
    /// A page that is a file: it loads nothing.
    Html,
}

/// Where the GPU time of a period went, what it cost, and what interrupted it.
///
/// The ledger keeps a row of each run and hour for ever; the hour that is not over is in it as far
/// as it is accounted. A token that is limited to some runs must name one of them.
#[utoipa::path(
    get,
    path = "/api/v1/report",
    operation_id = "getReport",
    tag = "state",
    params(ReportQuery),
    responses(
        (
            status = 200,
            description = "The report",
            content((ReportView = "application/json"), (String = "text/markdown"), (String = "text/html"))
        ),
        BadRequest, NotFound, Broken
    )
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Asked(query): Asked<ReportQuery>,
) -> Result<Response> {
    let now = wall();
    let until = query.until.map_or(now, |at| at.0);
    let since = query.since.map_or(until.earlier(SINCE_DEFAULT), |at| at.0);
    if since >= until {
        return Err(ApiError::bad_request("since: must be before until".to_owned()));
    }
    let run = query.run.filter(|run| !run.is_empty());
    let view = api.report(&caller, Period::around(since, until), run, now).await?;
    Ok(match query.format {
        ReportFormat::Json => Json(view).into_response(),
        ReportFormat::Markdown => {
            ([(header::CONTENT_TYPE, MARKDOWN)], report::markdown::render(&view)).into_response()
        }
        ReportFormat::Html => ([(header::CONTENT_TYPE, HTML)], report::html::render(&view)).into_response(),
    })
}

impl Api {
    pub(crate) async fn report(
        &self,
        caller: &Caller,
        period: Period,
        run: Option<String>,
        now: Ts,
    ) -> Result<ReportView> {
        self.may_report(caller, run.as_deref())?;
        let sees = |record: &IncidentRecord| caller.sees(&record.labels);
        Ok(gather(&self.store, &self.runtime.views, period, run, sees, now).await?)
    }

    /// Refuses a limited caller, because the labels of a run that is no longer watched are unknown.
    fn may_report(&self, caller: &Caller, run: Option<&str>) -> Result<()> {
        let Some(scope) = caller.token_scope() else { return Ok(()) };
        let Some(run) = run else { return caller.require_everything() };
        let (view, routing) = (self.runtime.views.get(), self.runtime.read_model.routing());
        let is_seen = view.runs.iter().any(|r| r.run == run && scope.admits(&routing.labels(r)));
        if is_seen { Ok(()) } else { Err(ApiError::not_found(format!("there is no run {run:?}"))) }
    }
}

//! Reports by HTTP: where the GPU time of a period went, and what interrupted it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Json, Response};
use serde::Deserialize;
use stepwatch_detect::run::HOUR;
use stepwatch_model::Cause;
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
use crate::postmortem::{self, Account};
use crate::report::view::ReportView;
use crate::report::{self, Costed, Period};
use crate::store::RunTotals;

const SINCE_DEFAULT: Span = Span::secs(7 * 86_400);
/// Incidents of a period that are looked at, the latest first, and those of them, the longest
/// first, of which the costs are computed: that reads their messages.
const INCIDENTS_SCANNED: u32 = 5_000;
const INCIDENTS_COSTED: usize = 300;
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
        let mut totals = self.store.accounted(period.since, period.until, run.as_deref()).await?;
        self.add_open_hours(&mut totals, period, run.as_deref());
        let records = self
            .store
            .incidents_between(period.since, period.until, run.as_deref(), INCIDENTS_SCANNED)
            .await?;
        let seen = records.into_iter().filter(|record| caller.sees(&record.labels)).collect();
        let incidents = self.costed(seen, period, now).await?;
        Ok(report::view(period, run, &totals, &incidents))
    }

    /// What the labels of a run are that is not watched any more, nobody knows.
    fn may_report(&self, caller: &Caller, run: Option<&str>) -> Result<()> {
        let Some(scope) = caller.token_scope() else { return Ok(()) };
        let Some(run) = run else { return caller.require_everything() };
        let (view, routing) = (self.runtime.views.get(), self.runtime.read_model.routing());
        let is_seen = view.runs.iter().any(|r| r.run == run && scope.admits(&routing.labels(r)));
        if is_seen { Ok(()) } else { Err(ApiError::not_found(format!("there is no run {run:?}"))) }
    }

    /// Adds what is accounted of hours that are not over.
    fn add_open_hours(&self, totals: &mut Vec<RunTotals>, period: Period, run: Option<&str>) {
        let hours = period.since.0 / HOUR.0..period.until.0 / HOUR.0;
        for snapshot in &self.runtime.views.get().runs {
            let Some(open) = snapshot.open_hour.as_ref().filter(|open| hours.contains(&open.hour)) else {
                continue;
            };
            if run.is_some_and(|run| run != snapshot.run) {
                continue;
            }
            match totals.iter_mut().find(|known| known.run == snapshot.run) {
                Some(known) => known.totals.join(&open.totals),
                None => totals.push(RunTotals { run: snapshot.run.clone(), totals: open.totals.clone() }),
            }
        }
    }

    /// With what each lost, where that is computed.
    async fn costed(&self, records: Vec<IncidentRecord>, period: Period, now: Ts) -> Result<Vec<Costed>> {
        let mut all: Vec<Costed> =
            records.into_iter().map(|record| Costed { record, impact: None }).collect();
        all.sort_by_key(|c| core::cmp::Reverse(period.share_of(&c.record, now)));
        let may_cost = |c: &&mut Costed| {
            let speed_or_progress =
                matches!(c.record.cause, Cause::Progress | Cause::Speed | Cause::Numerics);
            !c.record.run.is_empty() && speed_or_progress
        };
        for costed in all.iter_mut().filter(may_cost).take(INCIDENTS_COSTED) {
            let deliveries = self.store.deliveries(&costed.record.id).await?;
            let account =
                Account { record: &costed.record, timeline: &[], deliveries: &deliveries, chart: None, now };
            costed.impact = Some(postmortem::impact(&account));
        }
        Ok(all)
    }
}

//! The signals of a run by HTTP, as columns for a chart.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Json, Response};
use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::incident::{IncidentRecord, State as IncidentState};
use stepwatch_respond::matcher::Labels;
use utoipa::ToSchema;

use super::auth::Caller;
use super::doc::errors::{BadRequest, Broken, NotFound};
use super::doc::{examples, schema};
use super::error::ApiError;
use super::extract::{Asked, Named};
use super::state::Api;
use super::view::When;
use crate::label_names::nearest;
use crate::series::{Mark, MarkKind, SeriesPoint, SeriesWindow};
use crate::store::Filter;

/// The default and maximum number of points in one answer.
const POINTS_DEFAULT: u32 = 1024;
const POINTS_MAX: u32 = 4096;
/// The most incidents with a signal, latest first.
const INCIDENTS_MAX: u32 = 200;
/// The most names in the error about an unknown signal.
const NAMES_SHOWN: usize = 12;

type Result<T> = core::result::Result<T, ApiError>;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SeriesQuery {
    /// As in events: `loss`, `grad_norm`, `step_time`, `mfu`, `tokens_per_second`, `lr`.
    signal: String,
    /// The first step; the first of the run unless given.
    from: Option<i64>,
    /// The last step; the last of the run unless given.
    to: Option<i64>,
    /// The largest number of points: the width of the chart in pixels, for instance.
    #[param(minimum = 1, maximum = 4096, default = 1024)]
    points: Option<u32>,
}

/// A signal of a run. Each list has one element a point, in the order of steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::series))]
pub struct SeriesView {
    pub run: String,
    pub signal: String,
    /// Grows with every step of the run.
    pub sequence: u64,
    /// The first step of the point. It goes on to the next point.
    pub step: Vec<i64>,
    /// When that step was, in Unix seconds.
    pub time: Vec<Option<f64>>,
    /// Of the finite values; `null` if there was none.
    pub min: Vec<Option<f32>>,
    pub max: Vec<Option<f32>>,
    pub last: Vec<Option<f32>>,
    pub mean: Vec<Option<f32>>,
    /// Values that were finite, and values that were NaN or infinite.
    pub count: Vec<u32>,
    pub nonfinite: Vec<u32>,
    /// What the detectors expected, and the band beyond which a value counts towards an incident;
    /// `null` where they had not learned that.
    pub expected: Vec<Option<f64>>,
    pub low: Vec<Option<f64>>,
    pub high: Vec<Option<f64>>,
    /// The incidents of the run about this signal.
    pub incidents: Vec<SeriesIncident>,
    pub marks: Vec<MarkView>,
}

/// An incident beside a signal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesIncident {
    pub id: String,
    #[schema(value_type = schema::Kind)]
    pub kind: Kind,
    #[schema(value_type = schema::Severity)]
    pub severity: Severity,
    #[schema(value_type = schema::IncidentState)]
    pub state: IncidentState,
    pub title: String,
    pub signal: String,
    pub start_step: i64,
    pub end_step: Option<i64>,
    pub opened_at: When,
}

/// Something that happened at a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MarkView {
    pub step: i64,
    pub at: When,
    pub kind: MarkWord,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MarkWord {
    /// The first step of a later attempt.
    Restart,
    /// A checkpoint was written during the step.
    Checkpoint,
    /// An evaluation ran during the step.
    Evaluation,
}

/// A signal of a run, as columns for a chart.
///
/// Every step of the last 4,096; before that, points of several steps with their lowest and highest
/// value, back to the first step. `ETag` changes with every step and incident.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{run}/series",
    operation_id = "getSeries",
    tag = "state",
    params(("run" = String, Path, description = "The name of the run"), SeriesQuery),
    responses(
        (status = 200, description = "The signal", body = SeriesView),
        (status = 304, description = "It is what `If-None-Match` names"),
        BadRequest, NotFound, Broken
    )
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(run): Named,
    Asked(query): Asked<SeriesQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let points = query.points.unwrap_or(POINTS_DEFAULT);
    if !(1..=POINTS_MAX).contains(&points) {
        let limits = format!("points: must be a number from 1 to {POINTS_MAX}, got {points}");
        return Err(ApiError::bad_request(limits));
    }
    api.require_run(&caller, &run)?;
    let series = &api.runtime.series;
    let window = series.window(&run, &query.signal, query.from, query.to, points as usize);
    let window = window.ok_or_else(|| no_signal(&run, &query.signal, &series.signals(&run)))?;
    let incidents = api.incidents_of(&caller, &run).await?;
    let (from, to) = (query.from.unwrap_or(i64::MIN), query.to.unwrap_or(i64::MAX));
    let beside = incidents.into_iter().filter(|r| {
        r.signal == query.signal && r.start_step <= to && r.end_step.is_none_or(|end| end >= from)
    });
    let view = SeriesView::new(window, beside);
    let tag = api.tag_of(&view, points);
    let known = headers.get(header::IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let cached = [(header::ETAG, tag.as_str()), (header::CACHE_CONTROL, "no-cache")];
    if known.is_some_and(|tags| tags.split(',').any(|known| known.trim().trim_start_matches("W/") == tag)) {
        return Ok((StatusCode::NOT_MODIFIED, cached).into_response());
    }
    Ok((cached, Json(view)).into_response())
}

fn no_signal(run: &str, wanted: &str, signals: &[String]) -> ApiError {
    if signals.is_empty() {
        return ApiError::not_found(format!("nothing is kept of the signals of run {run:?}"));
    }
    ApiError::not_found(format!("run {run:?} has no signal {wanted:?}; {}", suggestion(wanted, signals)))
}

/// A suggestion for an unknown name: `did you mean "loss"? There are grad_norm, loss`.
fn suggestion(wanted: &str, names: &[String]) -> String {
    let near = nearest(wanted, names.iter().map(String::as_str));
    let near = near.map_or_else(String::new, |near| format!("did you mean {near:?}? "));
    let shown: Vec<&str> = names.iter().take(NAMES_SHOWN).map(String::as_str).collect();
    let more = names.len() - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{near}there are {}{more}", shown.join(", "))
}

impl Api {
    /// The labels of a run; if it is no longer watched, the labels that follow from its name.
    pub(crate) fn labels_of(&self, run: &str) -> Labels {
        let routing = self.runtime.read_model.routing();
        let view = self.runtime.views.get();
        let found = view.runs.iter().find(|r| r.run == run);
        let by_name = || routing.with_team(Labels::from([("run".to_owned(), run.to_owned())]));
        found.map_or_else(by_name, |run| routing.labels(run))
    }

    /// Fails if the run does not exist or the caller may not see it.
    pub(crate) fn require_run(&self, caller: &Caller, run: &str) -> Result<()> {
        let view = self.runtime.views.get();
        let watched = view.runs.iter().any(|r| r.run == run);
        let is_kept = view.kept_setups.contains_key(run);
        let known = watched || is_kept || self.runtime.series.sequence(run).is_some();
        if known && caller.sees(&self.labels_of(run)) {
            return Ok(());
        }
        // A limited caller must not learn the names of other runs.
        let mut seen: Vec<String> = self.run_views(caller).runs.into_iter().map(|r| r.run).collect();
        seen.extend(view.kept_setups.keys().filter(|kept| caller.sees(&self.labels_of(kept))).cloned());
        let near = nearest(run, seen.iter().map(String::as_str));
        let near = near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
        Err(ApiError::not_found(format!("there is no run {run:?}{near}")))
    }

    /// The latest incidents of a run that the caller may see.
    pub(crate) async fn incidents_of(&self, caller: &Caller, run: &str) -> Result<Vec<IncidentRecord>> {
        let filter = Filter { run: Some(run.to_owned()), limit: Some(INCIDENTS_MAX), ..Filter::default() };
        self.incidents(caller, filter).await
    }

    /// The entity tag of the answer. It differs after a restart of the alerter, which counts steps
    /// anew.
    fn tag_of(&self, view: &SeriesView, points: u32) -> String {
        let mut hasher = DefaultHasher::new();
        (self.started, points, &view.run, &view.signal, view.sequence).hash(&mut hasher);
        (view.step.first(), view.step.last(), view.step.len()).hash(&mut hasher);
        for incident in &view.incidents {
            (&incident.id, incident.end_step, incident.severity.as_str()).hash(&mut hasher);
            (incident.state as u8).hash(&mut hasher);
        }
        format!("\"{:016x}\"", hasher.finish())
    }
}

impl SeriesView {
    fn new(window: SeriesWindow, incidents: impl Iterator<Item = IncidentRecord>) -> Self {
        let SeriesWindow { run, signal, sequence, points, marks } = window;
        fn column<T>(points: &[SeriesPoint], of: impl Fn(&SeriesPoint) -> T) -> Vec<T> {
            points.iter().map(of).collect()
        }
        let p = points.as_slice();
        Self {
            run,
            signal,
            sequence,
            step: column(p, |p| p.step),
            time: column(p, |p| p.at.map(Ts::as_secs_f64)),
            min: column(p, |p| p.values.map(|v| v.min)),
            max: column(p, |p| p.values.map(|v| v.max)),
            last: column(p, |p| p.values.map(|v| v.last)),
            mean: column(p, |p| p.values.map(|v| v.mean)),
            count: column(p, |p| p.count),
            nonfinite: column(p, |p| p.nonfinite),
            expected: column(p, |p| p.band.map(|b| b.expected)),
            low: column(p, |p| p.band.map(|b| b.low)),
            high: column(p, |p| p.band.map(|b| b.high)),
            incidents: incidents.map(SeriesIncident::from).collect(),
            marks: marks.into_iter().map(MarkView::from).collect(),
        }
    }
}

impl From<IncidentRecord> for SeriesIncident {
    fn from(r: IncidentRecord) -> Self {
        Self {
            title: r.title(),
            id: r.id,
            kind: r.kind,
            severity: r.severity,
            state: r.state,
            signal: r.signal,
            start_step: r.start_step,
            end_step: r.end_step,
            opened_at: When(r.opened_at),
        }
    }
}

impl From<Mark> for MarkView {
    fn from(mark: Mark) -> Self {
        let kind = match mark.kind {
            MarkKind::Restart => MarkWord::Restart,
            MarkKind::Checkpoint => MarkWord::Checkpoint,
            MarkKind::Evaluation => MarkWord::Evaluation,
        };
        Self { step: mark.step, at: When(mark.at), kind }
    }
}

#[cfg(test)]
mod tests;

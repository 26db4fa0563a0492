//! The on-call schedules by HTTP; the command line uses the same answer.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::oncall::{Moment, OnCall, Schedule};
use utoipa::ToSchema;

use super::doc::errors::{BadRequest, NotFound};
use super::doc::{examples, schema};
use super::error::ApiError;
use super::extract::Asked;
use super::state::Api;
use super::view::When;

/// The default and maximum number of days of a plan.
pub const DAYS_DEFAULT: u32 = 7;
pub const DAYS_MAX: u32 = 366;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OnCallView {
    pub schedules: Vec<ScheduleView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::schedule))]
pub struct ScheduleView {
    pub schedule: String,
    pub time_zone: String,
    /// The time of the query.
    pub at: When,
    /// Nobody if empty; then `fallback` is notified.
    pub on_call: Vec<PersonView>,
    /// What puts the person on call: `layer nights`, `calendar`, `override: holiday`, or `override
    /// by ann: dentist` for one that was made at run time.
    pub by: String,
    /// When that changes, if it does within the plan.
    pub until: Option<When>,
    pub fallback: Vec<String>,
    pub calendar: Option<CalendarView>,
    /// Without holes; a gap is a shift without a person.
    pub shifts: Vec<ShiftView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PersonView {
    pub user: String,
    pub receivers: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CalendarView {
    /// Null if there is no copy.
    pub read_at: Option<When>,
    pub stale: bool,
    pub events: usize,
    /// Events that could not be parsed, and the titles of future events that name no user.
    pub skipped: usize,
    pub strangers: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShiftView {
    pub from: When,
    pub to: When,
    pub users: Vec<String>,
    pub by: String,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OnCallQuery {
    /// Only this one.
    schedule: Option<String>,
    /// The time; now unless given. In RFC 3339, or without a zone: then on the clock of each
    /// schedule.
    #[param(value_type = Option<schema::Moment>, inline)]
    at: Option<String>,
    /// The length of the plan.
    #[param(minimum = 1, maximum = 366, default = 7)]
    days: Option<u32>,
}

/// Who is on call, and who will be.
#[utoipa::path(
    get,
    path = "/api/v1/oncall",
    operation_id = "getOnCall",
    tag = "on call",
    params(OnCallQuery),
    responses(
        (status = 200, description = "Each schedule with its plan", body = OnCallView),
        BadRequest, NotFound
    )
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Asked(query): Asked<OnCallQuery>,
) -> Result<Json<OnCallView>, ApiError> {
    let given = |v: Option<String>| v.filter(|v| !v.is_empty());
    let at = query.at.map(|at| Moment::parse(&at)).transpose();
    let at = at.map_err(|e| ApiError::bad_request(format!("at: {e}")))?;
    let days = query.days.unwrap_or(DAYS_DEFAULT);
    if !(1..=DAYS_MAX).contains(&days) {
        let why = format!("days: must be a number from 1 to {DAYS_MAX}, got {days}");
        return Err(ApiError::bad_request(why));
    }
    let (oncall, schedule) = (api.oncall(), given(query.schedule));
    // Pages are decided by the engine's clock.
    let now = api.runtime.clock.now();
    let answer = OnCallView::from_on_call(&oncall, schedule.as_deref(), at, days, now);
    answer.map(Json).map_err(ApiError::not_found)
}

impl OnCallView {
    /// The answer for every schedule, or for one. A time without a zone is in the zone of each
    /// schedule.
    pub fn from_on_call(
        oncall: &OnCall,
        schedule: Option<&str>,
        at: Option<Moment>,
        days: u32,
        now: Ts,
    ) -> Result<Self, String> {
        let all = &oncall.config().schedules;
        if let Some(name) = schedule.filter(|name| oncall.schedule(name).is_none()) {
            let names = all.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ");
            let names = if names.is_empty() { "none".into() } else { names };
            return Err(format!("there is no schedule {name:?}; those that exist: {names}"));
        }
        let asked = all.iter().filter(|s| schedule.is_none_or(|name| s.name == name));
        let views = asked
            .map(|s| ScheduleView::from_schedule(oncall, s, at.map_or(now, |at| at.at(&s.zone)), days, now));
        Ok(Self { schedules: views.collect() })
    }
}

impl ScheduleView {
    fn from_schedule(oncall: &OnCall, s: &Schedule, at: Ts, days: u32, now: Ts) -> Self {
        let to = at + Span::secs(i64::from(days) * 86_400);
        let duty = oncall.duty(&s.name, at).unwrap_or_default();
        let shifts = oncall.shifts(&s.name, at, to);
        let person = |user: &String| PersonView {
            user: user.clone(),
            receivers: oncall.user(user).map(|u| u.notify.clone()).unwrap_or_default(),
        };
        Self {
            schedule: s.name.clone(),
            time_zone: s.zone.name().to_owned(),
            at: When(at),
            on_call: duty.users.iter().map(person).collect(),
            by: duty.by,
            until: shifts.first().filter(|first| first.to < to).map(|first| When(first.to)),
            fallback: s.fallback.clone(),
            calendar: s
                .calendar
                .map(|stale_after| CalendarView::from_schedule(oncall, &s.name, stale_after, now)),
            shifts: shifts
                .into_iter()
                .map(|x| ShiftView { from: When(x.from), to: When(x.to), users: x.users, by: x.by })
                .collect(),
        }
    }
}

impl CalendarView {
    fn from_schedule(oncall: &OnCall, schedule: &str, stale_after: Span, now: Ts) -> Self {
        let Some(state) = oncall.calendar(schedule) else {
            return Self { read_at: None, stale: true, events: 0, skipped: 0, strangers: Vec::new() };
        };
        Self {
            read_at: Some(When(state.read_at)),
            stale: now - state.read_at > stale_after,
            events: state.events,
            skipped: state.skipped,
            strangers: state.strangers.iter().map(|s| (*s).to_owned()).collect(),
        }
    }
}

//! The on-call schedules, now and next, and the simulation of an incident.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::effect::Effect;
use stepwatch_respond::oncall::Moment;

use super::format::{clock, until};
use super::layout::{Frame, Place};
use super::page::{Result, page, shown};
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::extract::Asked;
use crate::api::oncall::{OnCallView, ScheduleView};
use crate::clock::wall;
use crate::simulation::{Simulated, simulate};

/// The days of a plan, and the most shifts that are shown per schedule.
const DAYS: u32 = 14;
const MAX_SHIFTS: usize = 8;
/// The duration of a simulation, and the most entries that are shown.
const LASTS: Span = Span::secs(2 * 3600);
const MAX_ENTRIES: usize = 60;
const MAX_NAME: usize = 200;

#[derive(Debug)]
struct ScheduleRow {
    name: String,
    zone: String,
    now: String,
    by: String,
    until: Option<String>,
    fallback: String,
    stale: bool,
    shifts: Vec<ShiftRow>,
}

#[derive(Debug)]
struct ShiftRow {
    from: String,
    to: String,
    users: String,
    by: String,
}

#[derive(Debug)]
struct Step {
    after: String,
    at: String,
    /// The receiver and the users for whom it is; empty for a decision.
    whom: String,
    what: String,
}

/// The parameters of a simulation.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Asks {
    severity: String,
    kind: String,
    run: String,
    node: String,
    at: String,
}

#[derive(Debug, Template)]
#[template(path = "oncall.html")]
struct OnCallPage {
    frame: Frame,
    schedules: Vec<ScheduleRow>,
    asks: Asks,
    kinds: Vec<&'static str>,
    /// `None` until a simulation is requested.
    steps: Option<Vec<Step>>,
}

/// `GET /oncall`
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Asked(asks): Asked<Asks>,
) -> Result<Response> {
    let now = wall();
    let oncall = Arc::clone(&api.runtime.views.get().oncall);
    let plan = OnCallView::from_on_call(&oncall, None, None, DAYS, now).map_err(ApiError::not_found)?;
    let simulated = if asks.severity.is_empty() { Ok(None) } else { asks.simulate(&api, now).map(Some) };
    let frame = Frame::new(&api, &caller, Place::OnCall, "On call", "/oncall").await?.typed();
    let (status, reason, steps) = match simulated {
        Ok(steps) => (StatusCode::OK, None, steps),
        Err(why) => (why.status, Some(why.message), None),
    };
    let shown_page = OnCallPage {
        frame: Frame { alarm: reason.clone(), renews: false, ..frame },
        schedules: plan.schedules.into_iter().map(|s| ScheduleRow::of(s, now)).collect(),
        asks,
        kinds: Kind::ALL.iter().map(|kind| kind.as_str()).collect(),
        steps,
    };
    Ok(shown(page(status, &shown_page), reason))
}

impl Asks {
    /// Runs the real engine in virtual time; no message is sent.
    fn simulate(&self, api: &Api, now: Ts) -> Result<Vec<Step>> {
        let bad = |field: &str, why: String| ApiError::bad_request(format!("{field}: {why}"));
        let severity = match self.severity.as_str() {
            "page" => Severity::Page,
            "ticket" => Severity::Ticket,
            other => return Err(bad("severity", format!("must be page or ticket, got {other:?}"))),
        };
        let kind = if self.kind.is_empty() { "hang" } else { &self.kind };
        let kind = Kind::ALL.iter().find(|k| k.as_str() == kind).copied();
        let kind = kind.ok_or_else(|| bad("kind", format!("there is no kind {:?}", self.kind)))?;
        let at = match self.at.trim() {
            "" => now,
            text => {
                Moment::parse(text).map_err(|e| bad("at", e))?.at(&stepwatch_respond::oncall::Zone::default())
            }
        };
        for (field, name) in [("run", &self.run), ("node", &self.node)] {
            if name.chars().count() > MAX_NAME {
                return Err(bad(field, format!("at most {MAX_NAME} characters")));
            }
        }
        let routing = api.runtime.read_model.routing();
        let run = if self.run.is_empty() { "simulated-run" } else { &self.run };
        let simulated = Simulated {
            run,
            node: Some(self.node.as_str()).filter(|node| !node.is_empty()),
            kind,
            severity,
            begin: at,
            ack: None,
            lasts: LASTS,
        };
        let oncall = Arc::clone(&api.runtime.views.get().oncall);
        let mut steps = Vec::new();
        simulate(&routing.config, &oncall, &simulated, |when, effects| {
            steps.extend(effects.drain(..).filter_map(|effect| Step::of(at, when, effect)));
        });
        steps.truncate(MAX_ENTRIES);
        Ok(steps)
    }
}

impl Step {
    fn of(begin: Ts, at: Ts, effect: Effect) -> Option<Self> {
        let (whom, what) = match effect {
            Effect::Timeline(entry) => (String::new(), entry.what),
            Effect::Notify(n) => {
                let users =
                    if n.users.is_empty() { String::new() } else { format!(" for {}", n.users.join(", ")) };
                (format!("{}{users}", n.receiver), format!("{} ({})", n.message.title, n.message.reason))
            }
            _ => return None,
        };
        Some(Self { after: (at - begin).to_string(), at: clock(at), whom, what })
    }
}

impl ScheduleRow {
    fn of(schedule: ScheduleView, now: Ts) -> Self {
        let names = |users: &[String]| users.join(", ");
        let shift = |s: &crate::api::oncall::ShiftView| ShiftRow {
            from: clock(s.from.0),
            to: clock(s.to.0),
            users: names(&s.users),
            by: s.by.clone(),
        };
        Self {
            now: schedule.on_call.iter().map(|p| p.user.as_str()).collect::<Vec<_>>().join(", "),
            until: schedule.until.map(|at| format!("{} ({})", clock(at.0), until(now, at.0))),
            stale: schedule.calendar.as_ref().is_some_and(|calendar| calendar.stale),
            shifts: schedule.shifts.iter().skip(1).take(MAX_SHIFTS).map(shift).collect(),
            fallback: names(&schedule.fallback),
            name: schedule.schedule,
            zone: schedule.time_zone,
            by: schedule.by,
        }
    }
}

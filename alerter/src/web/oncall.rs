//! The on-call schedules, now and next, with the form to take over and the overrides that people
//! made, and the simulation of an incident.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Kind, Severity};
use stepwatch_respond::effect::Effect;
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::oncall::{Moment, OnCall, OverridePhase, OverrideWanted, WantedCover, Zone};

use super::form::{Fields, remember, see};
use super::format::{clock, until};
use super::layout::{Frame, Place};
use super::page::{Result, page, shown};
use crate::access::Scope;
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::extract::Asked;
use crate::api::oncall::{OnCallView, ScheduleView};
use crate::api::oncall_overrides::{sleeps_through, times};
use crate::api::view::{CoverView, OverrideView};
use crate::read_model::Routing;
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
    /// The overrides that are not over, in the order of their begins.
    overrides: Vec<OverrideRow>,
    /// The fields of the form to take over.
    takeover: Takeover,
    /// Whether that form was refused, and is shown with what was typed.
    typed: bool,
}

#[derive(Debug)]
struct OverrideRow {
    id: String,
    /// Who, in whose place and when; two lines for a swap.
    covers: Vec<CoverRow>,
    by: String,
    note: String,
    active: bool,
    /// It has no effect in this configuration.
    void: bool,
    /// A page that goes to the schedule would not wake a person of it.
    sleeps: bool,
    stored: bool,
}

#[derive(Debug)]
struct CoverRow {
    who: String,
    from: String,
    until: String,
}

/// The form to take over a schedule.
#[derive(Debug, Clone, Default)]
struct Takeover {
    schedule: String,
    user: String,
    from: String,
    until: String,
    note: String,
    by: String,
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
    /// The users who can take over.
    people: Vec<String>,
    may_override: bool,
    asks: Asks,
    kinds: Vec<&'static str>,
    /// `None` until a simulation is requested.
    steps: Option<Vec<Step>>,
}

/// `GET /oncall`
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Asked(asks): Asked<Asks>,
) -> Result<Response> {
    let simulated = if asks.severity.is_empty() {
        Ok(None)
    } else {
        asks.simulate(&api, &caller, api.runtime.clock.now()).map(Some)
    };
    let (steps, alarm) = match simulated {
        Ok(steps) => (steps, None),
        Err(why) => (None, Some(why)),
    };
    let content = Content { asks, steps, ..Content::default() };
    whole(&api, &caller, &headers, content, alarm).await
}

/// `POST /oncall/overrides`
pub(super) async fn take_over(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response> {
    let takeover = Takeover::of(&fields);
    let made = async {
        let (from, until) = times(Some(&takeover.from), &takeover.until)?;
        let cover = WantedCover { user: takeover.user.clone(), replaces: None, from, until };
        let wanted = OverrideWanted {
            schedule: takeover.schedule.clone(),
            covers: vec![cover],
            created_by: fields.person(&caller),
            note: takeover.note.clone(),
        };
        api.override_schedule(&caller, wanted).await
    };
    match made.await {
        Ok(_) => Ok(remember(see("/oncall"), &caller, &fields)),
        Err(why) => {
            let content = Content { takeover: Some(takeover), ..Content::default() };
            whole(&api, &caller, &headers, content, Some(why)).await
        }
    }
}

/// `POST /oncall/overrides/{id}/remove`
pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Path(id): Path<String>,
    fields: Fields,
) -> Result<Response> {
    match api.end_override(&caller, &fields.person(&caller), &id).await {
        Ok(_) => Ok(remember(see("/oncall"), &caller, &fields)),
        Err(why) => whole(&api, &caller, &headers, Content::default(), Some(why)).await,
    }
}

/// What differs between the answers to requests of this page.
#[derive(Debug, Default)]
struct Content {
    asks: Asks,
    steps: Option<Vec<Step>>,
    /// The form that was refused.
    takeover: Option<Takeover>,
}

async fn whole(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    content: Content,
    alarm: Option<ApiError>,
) -> Result<Response> {
    // Pages are decided by the engine's clock.
    let (now, oncall) = (api.runtime.clock.now(), api.oncall());
    let plan = OnCallView::from_on_call(&oncall, None, None, DAYS, now).map_err(ApiError::not_found)?;
    let frame = Frame::new(api, caller, Place::OnCall, "On call", "/oncall").await?.of(headers).typed();
    let (status, reason) = alarm.map_or((StatusCode::OK, None), |why| (why.status, Some(why.message)));
    let Content { asks, steps, takeover } = content;
    let overrides = api.overrides();
    let routing = api.runtime.read_model.routing();
    let row = |schedule| {
        ScheduleRow::of(schedule, &oncall, (overrides.as_slice(), routing.as_ref()), takeover.as_ref(), now)
    };
    let able = oncall.config().users.iter().filter(|user| !user.notify.is_empty());
    let shown_page = OnCallPage {
        schedules: plan.schedules.into_iter().map(row).collect(),
        people: able.map(|user| user.name.clone()).collect(),
        may_override: caller.scopes().has(Scope::Silence),
        frame: Frame { alarm: reason.clone(), renews: false, ..frame },
        asks,
        kinds: Kind::ALL.iter().map(|kind| kind.as_str()).collect(),
        steps,
    };
    Ok(shown(page(status, &shown_page), reason))
}

impl Asks {
    /// Runs the real engine in virtual time; no message is sent.
    fn simulate(&self, api: &Api, caller: &Caller, now: Ts) -> Result<Vec<Step>> {
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
            text => Moment::parse(text).map_err(|e| bad("at", e))?.at(&Zone::default()),
        };
        for (field, name) in [("run", &self.run), ("node", &self.node)] {
            if name.chars().count() > MAX_NAME {
                return Err(bad(field, format!("at most {MAX_NAME} characters")));
            }
        }
        let routing = api.runtime.read_model.routing();
        let run = if self.run.is_empty() { "simulated-run" } else { &self.run };
        // What a run declared decides its way, and its cost the levels.
        let view = api.runtime.views.get();
        let known = view.runs.iter().find(|known| known.run == *run);
        let named = || routing.with_team(Labels::from([("run".to_owned(), run.to_owned())]));
        let own = known.map_or_else(named, |run| routing.labels(run));
        if let Some(limits) = caller.token_scope().filter(|limits| !limits.admits(&own)) {
            let message = format!("this token is limited to {limits}: name a run of those");
            return Err(ApiError { status: StatusCode::FORBIDDEN, message });
        }
        let (gpus, labels) =
            known.map_or_else(|| (Some(1), Labels::new()), |run| (run.gpus, run.labels.clone()));
        let simulated = Simulated {
            run,
            node: Some(self.node.as_str()).filter(|node| !node.is_empty()),
            kind,
            severity,
            gpus,
            labels: &labels,
            begin: at,
            ack: None,
            lasts: LASTS,
        };
        let oncall = api.oncall();
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
    fn of(
        schedule: ScheduleView,
        oncall: &OnCall,
        (overrides, routing): (&[OverrideView], &Routing),
        refused: Option<&Takeover>,
        now: Ts,
    ) -> Self {
        let names = |users: &[String]| users.join(", ");
        let shift = |s: &crate::api::oncall::ShiftView| ShiftRow {
            from: clock(s.from.0),
            to: clock(s.to.0),
            users: names(&s.users),
            by: s.by.clone(),
        };
        let zone = oncall.schedule(&schedule.schedule).map(|s| s.zone.clone()).unwrap_or_default();
        let mine = overrides.iter().filter(|o| o.schedule == schedule.schedule);
        let unended = mine.filter(|o| o.state != OverridePhase::Over);
        let refused = refused.filter(|takeover| takeover.schedule == schedule.schedule);
        // The rest of the shift is what people take over most.
        let usual = || Takeover {
            schedule: schedule.schedule.clone(),
            until: schedule.until.map(|at| typed(&zone, at.0)).unwrap_or_default(),
            ..Takeover::default()
        };
        Self {
            now: schedule.on_call.iter().map(|p| p.user.as_str()).collect::<Vec<_>>().join(", "),
            until: schedule.until.map(|at| format!("{} ({})", clock(at.0), until(now, at.0))),
            stale: schedule.calendar.as_ref().is_some_and(|calendar| calendar.stale),
            shifts: schedule.shifts.iter().skip(1).take(MAX_SHIFTS).map(shift).collect(),
            overrides: unended.map(|o| OverrideRow::of(o, &zone, routing)).collect(),
            takeover: refused.cloned().unwrap_or_else(usual),
            typed: refused.is_some(),
            fallback: names(&schedule.fallback),
            name: schedule.schedule,
            zone: schedule.time_zone,
            by: schedule.by,
        }
    }
}

impl OverrideRow {
    fn of(o: &OverrideView, zone: &Zone, routing: &Routing) -> Self {
        let cover = |cover: &CoverView| CoverRow {
            who: match &cover.replaces {
                Some(name) => format!("{} for {name}", cover.user),
                None => cover.user.clone(),
            },
            from: zone.show(cover.from.0),
            until: zone.show(cover.until.0),
        };
        Self {
            id: o.id.clone(),
            covers: o.covers.iter().map(cover).collect(),
            by: o.created_by.clone(),
            note: o.note.clone(),
            active: o.state == OverridePhase::Active && o.effective,
            void: !o.effective,
            sleeps: o.covers.iter().any(|c| sleeps_through(routing, &o.schedule, &c.user).is_some()),
            stored: o.stored,
        }
    }
}

impl Takeover {
    fn of(fields: &Fields) -> Self {
        let text = |name: &str| fields.get(name).to_owned();
        Self {
            schedule: text("schedule"),
            user: text("user"),
            from: text("from"),
            until: text("until"),
            note: text("note"),
            by: text("by"),
        }
    }
}

/// A time as the field of a form has it, on the clock of the schedule. One that was there twice is
/// read as the first.
fn typed(zone: &Zone, at: Ts) -> String {
    zone.civil(at).strftime("%Y-%m-%dT%H:%M").to_string()
}

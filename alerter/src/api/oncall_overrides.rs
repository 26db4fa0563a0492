//! Overrides of on-call schedules by HTTP: make, swap, list and remove them.

mod reach;

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Json;
use serde::Deserialize;
use stepwatch_model::time::Ts;
use stepwatch_respond::oncall::{
    Moment, OnCall, OverridePhase, OverrideRecord, OverrideRefusal, OverrideWanted, Turn, WantedCover,
};
use stepwatch_respond::route::WayName;
use stepwatch_wire::words;
use utoipa::ToSchema;

use super::auth::Caller;
use super::doc::errors::{BadRequest, Broken, Full, NotFound, NotJson, TooLarge};
use super::error::ApiError;
use super::extract::{Asked, Named, Sent};
use super::made;
use super::state::Api;
use super::view::{CoverView, OverrideList, OverrideView, OverrideWish, SwapWish, TurnWish, When};
use crate::config::wakes_not;
use crate::read_model::Routing;
use crate::runtime::{Command, OverrideCommand};

type Result<T> = core::result::Result<T, ApiError>;

const KIND: &str = "override";

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OverridesQuery {
    /// Only those of this schedule.
    schedule: Option<String>,
    /// Only overrides in this state; those that are not over unless given.
    #[param(inline)]
    state: Option<OverridesWanted>,
}

/// Which overrides.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum OverridesWanted {
    Coming,
    Active,
    Over,
    /// Coming or active.
    #[default]
    Unended,
    All,
}

impl OverridesWanted {
    fn wants(self, phase: OverridePhase) -> bool {
        match self {
            Self::Coming => phase == OverridePhase::Coming,
            Self::Active => phase == OverridePhase::Active,
            Self::Over => phase == OverridePhase::Over,
            Self::Unended => phase != OverridePhase::Over,
            Self::All => true,
        }
    }
}

/// Overrides that people made at run time, in the order of their begins. Those that are over are
/// listed for thirty days.
#[utoipa::path(
    get,
    path = "/api/v1/oncall/overrides",
    operation_id = "listOverrides",
    tag = "on call",
    params(OverridesQuery),
    responses((status = 200, description = "The overrides", body = OverrideList), BadRequest)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Asked(query): Asked<OverridesQuery>,
) -> Json<OverrideList> {
    let state = query.state.unwrap_or_default();
    let schedule = query.schedule.filter(|schedule| !schedule.is_empty());
    let mut overrides = api.overrides();
    overrides
        .retain(|o| state.wants(o.state) && schedule.as_ref().is_none_or(|schedule| o.schedule == *schedule));
    Json(OverrideList { overrides })
}

/// Puts somebody on call instead of those whom a schedule names. Durable when it is answered.
#[utoipa::path(
    post,
    path = "/api/v1/oncall/overrides",
    operation_id = "createOverride",
    tag = "on call",
    request_body = OverrideWish,
    responses(
        (status = 200, description = "The override", body = OverrideView),
        BadRequest, TooLarge, NotJson, Full, Broken
    )
)]
pub(super) async fn add(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Sent(wish): Sent<OverrideWish>,
) -> Result<Json<OverrideView>> {
    let (from, until) = times(wish.from.as_deref(), &wish.until)?;
    let cover = WantedCover { user: wish.user, replaces: wish.replaces, from, until };
    let wanted = OverrideWanted {
        schedule: wish.schedule,
        covers: vec![cover],
        created_by: wish.created_by,
        note: wish.note,
    };
    api.override_schedule(&caller, wanted).await.map(Json)
}

/// Swaps the shifts of two people. Durable when it is answered.
#[utoipa::path(
    post,
    path = "/api/v1/oncall/overrides/swap",
    operation_id = "swapShifts",
    tag = "on call",
    request_body = SwapWish,
    responses(
        (status = 200, description = "The override, which has a cover for each", body = OverrideView),
        BadRequest, TooLarge, NotJson, Full, Broken
    )
)]
pub(super) async fn swap(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Sent(wish): Sent<SwapWish>,
) -> Result<Json<OverrideView>> {
    let turn = |of: TurnWish| {
        let (from, until) = times(of.from.as_deref(), &of.until)?;
        Ok::<_, ApiError>(Turn { user: of.user, from, until })
    };
    let (first, second) = (turn(wish.first)?, turn(wish.second)?);
    let wanted = OverrideWanted::swap(wish.schedule, first, second, wish.created_by, wish.note);
    api.override_schedule(&caller, wanted).await.map(Json)
}

/// Ends an override now, or before it begins. What it decided so far stays. Durable when it is
/// answered.
#[utoipa::path(
    delete,
    path = "/api/v1/oncall/overrides/{id}",
    operation_id = "removeOverride",
    tag = "on call",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    responses((status = 200, description = "As it is now", body = OverrideView), BadRequest, NotFound, Broken)
)]
pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
) -> Result<Json<OverrideView>> {
    let id = made::named(KIND, &id, api.overrides().iter().map(|o| o.id.as_str()))?;
    api.end_override(&caller, "", &id).await.map(Json)
}

/// The times of a request.
pub(crate) fn times(from: Option<&str>, until: &str) -> Result<(Option<Moment>, Moment)> {
    let moment = |field: &str, text: &str| {
        Moment::parse(text).map_err(|e| ApiError::bad_request(format!("{field}: {e}")))
    };
    let from = from.filter(|text| !text.is_empty()).map(|text| moment("from", text)).transpose()?;
    Ok((from, moment("until", until)?))
}

/// The way of pages to a schedule that wakes its people, if it would not wake this user. `None`
/// also for whoever has no receiver at all, because an override by such a user has no effect.
pub(crate) fn sleeps_through(routing: &Routing, schedule: &str, user: &str) -> Option<WayName> {
    let reached = routing.config.oncall.users.iter().any(|u| u.name == user && !u.notify.is_empty());
    if reached { wakes_not(&routing.config, &routing.router, schedule, user) } else { None }
}

impl Api {
    /// Who is on call when, by what decides pages: the published state may lack an override whose
    /// author already has the answer.
    pub(crate) fn oncall(&self) -> OnCall {
        self.runtime.views.get().oncall.with_overrides(self.runtime.read_model.overrides())
    }

    /// The overrides that are not forgotten, in the order of their begins.
    pub(crate) fn overrides(&self) -> Vec<OverrideView> {
        let (oncall, now) = (self.oncall(), self.runtime.clock.now());
        let mut all: Vec<_> = oncall.overrides().all().filter(|o| !o.is_forgotten(now)).collect();
        all.sort_by_key(|o| (o.begins_at(), o.seq));
        all.into_iter().map(|o| self.shown(o, &oncall, now)).collect()
    }

    fn shown(&self, o: &OverrideRecord, oncall: &OnCall, now: Ts) -> OverrideView {
        OverrideView::from_record(o, oncall.is_effective(o), self.runtime.read_model.is_stored(o), now)
    }

    /// Makes an override, and waits until it is durable.
    pub(crate) async fn override_schedule(
        &self,
        caller: &Caller,
        mut wanted: OverrideWanted,
    ) -> Result<OverrideView> {
        self.may_decide(caller, &wanted.schedule)?;
        self.must_wake(&wanted)?;
        wanted.created_by = made::author(wanted.created_by)?;
        wanted.note = words::into_line(wanted.note);
        wanted.note = wanted.note.trim().into();
        let fresh = made::fresh()?;
        let action = if wanted.covers.len() > 1 { "swap" } else { "override" };
        let entry = caller.audit(&wanted.created_by, action, &fresh).saying(&described(&wanted));
        wanted.created_by = caller.signs(&wanted.created_by);
        tracing::info!(by = wanted.created_by, schedule = wanted.schedule, action, "on-call override");
        let wanted = Box::new(wanted);
        let command = |reply| Command::Override(OverrideCommand::Make { wanted, fresh, reply });
        let made = self.runtime.ask(entry, command).await?.map_err(|refusal| match refusal {
            OverrideRefusal::Invalid(why) => ApiError::bad_request(why),
            OverrideRefusal::Full(why) => ApiError::full(why),
        })?;
        let (oncall, now) = (self.oncall(), self.runtime.clock.now());
        let overlaps = oncall.overrides().beneath(&made, now).map(|o| o.id.clone()).collect();
        Ok(OverrideView { overlaps, ..self.shown(&made, &oncall, now) })
    }

    /// Refuses an override by which a page would wake nobody.
    fn must_wake(&self, wanted: &OverrideWanted) -> Result<()> {
        let routing = self.runtime.read_model.routing();
        let schedule = &wanted.schedule;
        for user in wanted.covers.iter().map(|cover| &cover.user) {
            if let Some(way) = sleeps_through(&routing, schedule, user) {
                let pagers = routing.config.waking.join(" and ");
                return Err(ApiError::bad_request(format!(
                    "pages go to schedule {schedule} ({way}), and none of the receivers of {user:?} wakes anybody; \
                     those that do: {pagers}"
                )));
            }
        }
        Ok(())
    }

    /// Ends an override, and waits until that is durable.
    pub(crate) async fn end_override(&self, caller: &Caller, by: &str, id: &str) -> Result<OverrideView> {
        let overrides = self.runtime.read_model.overrides();
        let had = overrides.get(id).ok_or_else(|| made::unknown(KIND, id))?;
        self.may_decide(caller, &had.schedule)?;
        let entry = caller.audit(by, "expire", id).saying(&format!("override of schedule {}", had.schedule));
        let by = entry.actor.clone();
        tracing::info!(id, by, "remove an on-call override");
        let command = |reply| Command::Override(OverrideCommand::Remove { id: id.to_owned(), by, reply });
        let after = self.runtime.ask(entry, command).await?.ok_or_else(|| made::unknown(KIND, id))?;
        Ok(self.shown(&after, &self.oncall(), self.runtime.clock.now()))
    }

    /// Whether everything that a schedule decides is within the caller's limits.
    fn may_decide(&self, caller: &Caller, schedule: &str) -> Result<()> {
        let Some(limits) = caller.token_scope() else { return Ok(()) };
        let reaching = reach::reaching(&self.runtime.read_model.routing().config, schedule);
        if !reaching.is_empty() && reaching.iter().all(|matchers| limits.holds(matchers).is_ok()) {
            return Ok(());
        }
        let message = format!(
            "this token is limited to {limits}, and schedule {schedule:?} may decide for others: \
             it needs a token without limits, or routes that lead only those to the schedule"
        );
        Err(ApiError { status: StatusCode::FORBIDDEN, message })
    }
}

/// What is asked for, for the audit log.
fn described(wanted: &OverrideWanted) -> String {
    let covers = wanted.covers.iter().map(|cover| {
        let place = cover.replaces.as_ref().map_or_else(String::new, |name| format!(" for {name}"));
        let from = cover.from.map_or_else(|| "now".to_owned(), |from| from.to_string());
        format!("{}{place} from {from} until {}", cover.user, cover.until)
    });
    let covers = covers.collect::<Vec<_>>().join(", ");
    let note = if wanted.note.is_empty() { String::new() } else { format!(": {}", wanted.note) };
    format!("schedule {}: {covers}{note}", wanted.schedule)
}

impl OverrideView {
    fn from_record(o: &OverrideRecord, effective: bool, stored: bool, now: Ts) -> Self {
        let covers = o.covers.iter().map(|cover| CoverView {
            user: cover.user.clone(),
            replaces: cover.replaces.clone(),
            from: When(cover.from),
            until: When(cover.until),
        });
        Self {
            id: o.id.clone(),
            state: o.phase(now),
            effective,
            stored,
            schedule: o.schedule.clone(),
            covers: covers.collect(),
            created_by: o.created_by.clone(),
            note: o.note.clone(),
            created_at: When(o.created_at),
            // Nobody is known where requests need no token and name nobody.
            removed_by: o.removed.as_ref().map(|removed| removed.by.clone()).filter(|by| !by.is_empty()),
            removed_at: o.removed.as_ref().map(|removed| When(removed.at)),
            overlaps: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;

//! Silences by HTTP: create, list and end them, and preview what one would suppress.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::Deserialize;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::matcher::{Labels, Matcher, all_hold};
use stepwatch_respond::silence::{Phase, Refusal, Silence, Wanted};
use stepwatch_wire::words;
use utoipa::ToSchema;

use super::auth::Caller;
use super::doc::errors::{BadRequest, Broken, Full, NotFound, NotJson, TooLarge};
use super::doc::{examples, schema};
use super::error::ApiError;
use super::extract::{Asked, Named, Sent};
use super::made;
use super::state::Api;
use super::view::{IncidentView, PreviewView, SilenceList, SilenceView, When, WishView};
use crate::clock::wall;
use crate::label_names::{Asked as AskedFor, asked};
use crate::runtime::{Command, Outside};
use crate::store::Filter;

/// The default and maximum number of days that a preview looks back.
const PREVIEW_DAYS: u32 = 7;
const PREVIEW_DAYS_MAX: u32 = 90;
const KIND: &str = "silence";
/// The most incidents that a preview examines.
const PREVIEW_INCIDENTS: u32 = 5000;

type Result<T> = core::result::Result<T, ApiError>;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only silences in this state; unexpired ones unless given.
    #[param(inline)]
    state: Option<StateWanted>,
}

/// Which silences.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum StateWanted {
    Active,
    Pending,
    Expired,
    /// Active or pending.
    #[default]
    Unexpired,
    All,
}

impl StateWanted {
    fn wants(self, phase: Phase) -> bool {
        match self {
            Self::Active => phase == Phase::Active,
            Self::Pending => phase == Phase::Pending,
            Self::Expired => phase == Phase::Expired,
            Self::Unexpired => phase != Phase::Expired,
            Self::All => true,
        }
    }
}

/// The matchers of a possible silence.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(examples::preview_wish))]
pub(super) struct PreviewWish {
    /// All of them must hold.
    #[schema(value_type = Vec<schema::Matcher>, min_items = 1)]
    matchers: Vec<Matcher>,
    /// Days to look back; 7 unless given.
    #[schema(maximum = 90)]
    days: Option<u32>,
}

/// Silences, those that are over last.
#[utoipa::path(
    get,
    path = "/api/v1/silences",
    operation_id = "listSilences",
    tag = "silences",
    params(ListQuery),
    responses((status = 200, description = "The silences", body = SilenceList), BadRequest, Broken)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<SilenceList>> {
    let now = wall();
    let wanted = query.state.unwrap_or_default();
    let mut silences = api.runtime.read_model.silences(now);
    silences.retain(|s| wanted.wants(s.phase(now)) && caller.may_silence(&s.matchers).is_ok());
    silences.sort_by_key(|s| (s.phase(now) == Phase::Expired, s.ends_at));
    let suppressed = api.suppressed().await?;
    let view = |s: &Arc<Silence>| SilenceView::from_silence(s, now, &suppressed);
    Ok(Json(SilenceList { silences: silences.iter().map(view).collect() }))
}

/// A silence.
#[utoipa::path(
    get,
    path = "/api/v1/silences/{id}",
    operation_id = "getSilence",
    tag = "silences",
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, description = "The silence", body = SilenceView), BadRequest, NotFound, Broken)
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
) -> Result<Json<SilenceView>> {
    let found = api.own_silence(&caller, &id)?;
    Ok(Json(SilenceView::from_silence(&found, wall(), &api.suppressed().await?)))
}

/// Creates a silence, or changes one. Durable when it is answered.
#[utoipa::path(
    post,
    path = "/api/v1/silences",
    operation_id = "createSilence",
    tag = "silences",
    request_body = WishView,
    responses(
        (
            status = 200,
            description = "The silence; one that was changed may have got another id",
            body = SilenceView,
            links(
                ("get" = (operation_id = "getSilence", parameters(("id" = "$response.body#/id")))),
                ("expire" = (operation_id = "expireSilence", parameters(("id" = "$response.body#/id"))))
            )
        ),
        BadRequest, NotFound, TooLarge, NotJson, Full, Broken
    )
)]
pub(super) async fn add(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Sent(wish): Sent<WishView>,
) -> Result<Json<SilenceView>> {
    let now = wall();
    let starts_at = wish.starts_at.map(|at| at.0);
    let ends_at = match (wish.ends_at, wish.duration) {
        (Some(at), None) => at.0,
        (None, Some(length)) => starts_at.unwrap_or(now) + length,
        _ => return Err(ApiError::bad_request("give one of ends_at and duration")),
    };
    let wanted = Wanted {
        id: wish.id,
        matchers: wish.matchers,
        starts_at,
        ends_at,
        created_by: wish.created_by,
        comment: wish.comment,
        expire_on_resolve: wish.expire_on_resolve,
    };
    let (silence, warnings) = api.silence(&caller, wanted).await?;
    Ok(Json(SilenceView {
        warnings,
        ..SilenceView::from_silence(&silence, wall(), &api.suppressed().await?)
    }))
}

/// Ends a silence now: its receivers are notified of every incident that it suppressed and that is
/// still open. Durable when it is answered.
#[utoipa::path(
    delete,
    path = "/api/v1/silences/{id}",
    operation_id = "expireSilence",
    tag = "silences",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    responses((status = 200, description = "As it is now", body = SilenceView), BadRequest, NotFound, Broken)
)]
pub(super) async fn expire(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
) -> Result<Json<SilenceView>> {
    let id = api.silence_named(&caller, &id)?;
    api.expire(&caller, &id).await?;
    let now = api.runtime.read_model.silence(&id).ok_or_else(|| made::unknown(KIND, &id))?;
    Ok(Json(SilenceView::from_silence(&now, wall(), &[])))
}

/// The incidents that a silence with these matchers would suppress, and would have suppressed.
#[utoipa::path(
    post,
    path = "/api/v1/silences/preview",
    operation_id = "previewSilence",
    tag = "silences",
    request_body = PreviewWish,
    responses(
        (status = 200, description = "What matches", body = PreviewView),
        BadRequest, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn preview(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Sent(wish): Sent<PreviewWish>,
) -> Result<Json<PreviewView>> {
    let days = wish.days.unwrap_or(PREVIEW_DAYS);
    Ok(Json(api.preview(&caller, &wish.matchers, days).await?))
}

impl Api {
    /// The incidents that a silence of these matchers would suppress now, and would have suppressed
    /// in the last `days`.
    pub(crate) async fn preview(
        &self,
        caller: &Caller,
        matchers: &[Matcher],
        days: u32,
    ) -> Result<PreviewView> {
        if days > PREVIEW_DAYS_MAX {
            return Err(ApiError::bad_request(format!("days: at most {PREVIEW_DAYS_MAX}, got {days}")));
        }
        if matchers.is_empty() {
            return Err(ApiError::bad_request("matchers: give at least one"));
        }
        let since = Ts(wall().0.saturating_sub(Span::secs(i64::from(days) * 86_400).0));
        let filter = Filter { limit: Some(PREVIEW_INCIDENTS), ..Filter::default() };
        let records = self.incidents(caller, filter).await?;
        let complete = records.len() < PREVIEW_INCIDENTS as usize
            || records.last().is_some_and(|oldest| oldest.opened_at < since);
        let matching = records.into_iter().filter(|r| r.resolved_at.is_none() || r.opened_at >= since);
        let matching = matching.filter(|r| all_hold(matchers, &r.labels));
        let (open, recent): (Vec<_>, Vec<_>) = matching.partition(|r| r.resolved_at.is_none());
        let alerts = self.runtime.read_model.alerts(wall());
        let seen = |l: &Labels| all_hold(matchers, l) && caller.sees(l);
        let alerts: Vec<Labels> = alerts.iter().map(|f| f.alert.labels.to_labels()).filter(seen).collect();
        Ok(PreviewView {
            open: open.into_iter().map(IncidentView::from).collect(),
            recent: recent.into_iter().map(IncidentView::from).collect(),
            alerts,
            days,
            complete,
        })
    }

    /// Refuses matchers on labels that nothing has and that are similar to ours: they would
    /// suppress nothing, or with `!=` everything. Other unknown labels give warnings, because a
    /// later alert or run may have them.
    async fn doubts(&self, matchers: &[Matcher]) -> Result<Vec<String>> {
        let routing = self.runtime.read_model.routing();
        let asked = matchers.iter().map(Matcher::label).map(|label| (label, asked(label, &routing.config)));
        let mut doubtful: Vec<_> = asked.filter(|(_, asked)| *asked != AskedFor::Known).collect();
        if doubtful.is_empty() {
            return Ok(Vec::new());
        }
        let (view, alerts) = (self.runtime.views.get(), self.runtime.read_model.alerts(wall()));
        let filter = Filter { limit: Some(PREVIEW_INCIDENTS), ..Filter::default() };
        let records = self.store.incidents(&filter).await?;
        doubtful.retain(|(label, _)| {
            let by_alert = alerts.iter().any(|firing| firing.alert.labels.get(label).is_some());
            let by_run = view.runs.iter().any(|run| run.labels.contains_key(*label));
            !by_alert && !by_run && !records.iter().any(|record| record.labels.contains_key(*label))
        });
        let mut warnings = Vec::new();
        for (label, asked) in doubtful {
            if let AskedFor::Slip(meant) = asked {
                return Err(ApiError::bad_request(format!(
                    "no incident, alert or run has the label {label:?}; the nearest that one may have is \
                     {meant:?}; if {label:?} is meant, name it in `labels`"
                )));
            }
            warnings.push(format!("no incident, alert or run has had the label {label:?} yet"));
        }
        Ok(warnings)
    }

    /// Creates a silence, and waits until it is durable; returns it with warnings.
    pub(crate) async fn silence(
        &self,
        caller: &Caller,
        mut wanted: Wanted,
    ) -> Result<(Box<Silence>, Vec<String>)> {
        if let Some(id) = &wanted.id {
            self.own_silence(caller, id)?;
        }
        caller.may_silence(&wanted.matchers)?;
        let warnings = self.doubts(&wanted.matchers).await?;
        wanted.created_by = made::author(wanted.created_by)?;
        wanted.comment = words::into_clean(wanted.comment);
        let fresh = made::fresh()?;
        let id = wanted.id.as_ref().unwrap_or(&fresh);
        let entry = caller.audit(&wanted.created_by, "silence", id);
        let selector = wanted.matchers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let entry = entry.saying(&format!("{selector} until {}: {}", wanted.ends_at, wanted.comment));
        wanted.created_by = caller.signs(&wanted.created_by);
        tracing::info!(by = wanted.created_by, comment = wanted.comment, "silence");
        let wanted = Box::new(wanted);
        let silenced = self
            .runtime
            .ask(entry, |reply| Command::Outside(Outside::Silence { wanted, fresh, reply }))
            .await?;
        let silenced = silenced.map_err(|refusal| match refusal {
            Refusal::Unknown(why) => ApiError::not_found(why),
            Refusal::Invalid(why) => ApiError::bad_request(why),
            Refusal::Full(why) => ApiError::full(why),
        });
        Ok((silenced?, warnings))
    }

    /// Ends a silence, and waits until that is durable.
    pub(crate) async fn expire(&self, caller: &Caller, id: &str) -> Result<Box<Silence>> {
        let selector = self.own_silence(caller, id)?.selector();
        let entry = caller.audit("", "expire", id).saying(&selector);
        tracing::info!(id, by = entry.actor, "end a silence");
        let had = self
            .runtime
            .ask(entry, |reply| Command::Outside(Outside::Expire { id: id.to_owned(), reply }))
            .await?;
        had.ok_or_else(|| made::unknown(KIND, id))
    }

    /// The silence of this id, if the caller may see it.
    pub(crate) fn own_silence(&self, caller: &Caller, id: &str) -> Result<Arc<Silence>> {
        let found = self.runtime.read_model.silence(id).filter(|s| caller.may_silence(&s.matchers).is_ok());
        found.ok_or_else(|| made::unknown(KIND, id))
    }

    /// The silence with this id, or with this unique prefix of an id.
    fn silence_named(&self, caller: &Caller, id: &str) -> Result<String> {
        let mut all = self.runtime.read_model.silences(wall());
        all.retain(|s| caller.may_silence(&s.matchers).is_ok());
        made::named(KIND, id, all.iter().map(|s| s.id.as_str()))
    }

    /// Pairs of suppressor and incident, for all suppressed incidents.
    pub(crate) async fn suppressed(&self) -> Result<Vec<(String, String)>> {
        let filter = Filter { unresolved: true, limit: Some(PREVIEW_INCIDENTS), ..Filter::default() };
        let open = self.store.incidents(&filter).await?;
        Ok(open.into_iter().filter_map(|r| Some((r.suppression?.by, r.id))).collect())
    }
}

impl SilenceView {
    fn from_silence(s: &Silence, now: Ts, suppressed: &[(String, String)]) -> Self {
        Self {
            id: s.id.clone(),
            state: s.phase(now),
            matchers: s.matchers.clone(),
            starts_at: When(s.starts_at),
            ends_at: When(s.ends_at),
            created_by: s.created_by.clone(),
            comment: s.comment.clone(),
            updated_at: When(s.updated_at),
            expire_on_resolve: s.expire_on_resolve,
            planned_by: s.planned_by.clone(),
            warnings: Vec::new(),
            incidents: suppressed.iter().filter(|(by, _)| *by == s.id).map(|(_, id)| id.clone()).collect(),
        }
    }
}

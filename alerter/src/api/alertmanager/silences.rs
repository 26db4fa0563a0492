//! Silences in the format of Alertmanager's API.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Json;
use stepwatch_model::time::Ts;
use stepwatch_respond::matcher::{Matcher, Op};
use stepwatch_respond::silence::{Phase, Silence, Wanted};

use super::errors::{BadRequest, Broken, Full, NotFound, NotJson, Refused, Result, TooLarge};
use super::filter::{Filter, SilencesQuery};
use super::wire::{GettableSilence, MatcherView, PostableSilence, SilenceId, SilenceStatus};
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::extract::{Named, Sent};
use crate::api::state::Api;
use crate::api::view::When;
use crate::clock::wall;

/// Silences.
///
/// Active ones first, the one that ends soonest first; then those to come, then those that are
/// over, the latest first.
#[utoipa::path(
    get,
    path = "/api/v2/silences",
    operation_id = "alertmanagerListSilences",
    tag = "alertmanager",
    params(SilencesQuery),
    responses((status = 200, description = "The silences", body = Vec<GettableSilence>), BadRequest)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<GettableSilence>>> {
    let filter = Filter::parse(&query.unwrap_or_default())?;
    let now = wall();
    let mut silences = api.runtime.read_model.silences(now);
    silences.retain(|s| filter.matchers.iter().all(|m| is_about(s, m)));
    silences.retain(|s| caller.may_silence(&s.matchers).is_ok());
    silences.sort_by_key(|s| match s.phase(now) {
        Phase::Active => (0, s.ends_at.0, Reverse(0)),
        Phase::Pending => (1, s.starts_at.0, Reverse(0)),
        Phase::Expired => (2, 0, Reverse(s.ends_at.0)),
    });
    Ok(Json(silences.iter().map(|s| view(s, now)).collect()))
}

/// Whether the silence has this matcher. The text of the matchers is compared, not what they match.
fn is_about(s: &Silence, filter: &Matcher) -> bool {
    let mut same = s.matchers.iter().filter(|m| m.label() == filter.label()).peekable();
    if same.peek().is_none() {
        return filter.holds_of_nothing();
    }
    same.any(|m| filter.holds_of(m.value()))
}

/// A silence.
#[utoipa::path(
    get,
    path = "/api/v2/silence/{id}",
    operation_id = "alertmanagerGetSilence",
    tag = "alertmanager",
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, description = "The silence", body = GettableSilence), BadRequest, NotFound)
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    id: core::result::Result<Named, ApiError>,
) -> Result<Json<GettableSilence>> {
    let Named(id) = id?;
    let found = api.own_silence(&caller, &id);
    let found = found.map_err(|_| Refused(StatusCode::NOT_FOUND, format!("silence {id} not found")))?;
    Ok(Json(view(&found, wall())))
}

/// Creates a silence, or changes one. Durable when it is answered.
#[utoipa::path(
    post,
    path = "/api/v2/silences",
    operation_id = "alertmanagerPostSilence",
    tag = "alertmanager",
    request_body = PostableSilence,
    responses(
        (
            status = 200,
            description = "Its id; one that was changed may have got another",
            body = SilenceId,
            links(
                ("get" = (operation_id = "alertmanagerGetSilence", parameters(("id" = "$response.body#/silenceID")))),
                ("expire" = (operation_id = "alertmanagerDeleteSilence", parameters(("id" = "$response.body#/silenceID"))))
            )
        ),
        BadRequest, NotFound, TooLarge, NotJson, Full, Broken
    )
)]
pub(super) async fn put(
    State(api): State<Arc<Api>>,
    caller: Caller,
    posted: core::result::Result<Sent<PostableSilence>, ApiError>,
) -> Result<Json<SilenceId>> {
    let Sent(posted) = posted?;
    let (silence, _) = api.silence(&caller, wanted(posted)?).await?;
    Ok(Json(SilenceId { silence_id: silence.id.clone() }))
}

/// A posted silence, in our own types.
pub(super) fn wanted(posted: PostableSilence) -> Result<Wanted> {
    let matchers: core::result::Result<Vec<Matcher>, String> = posted
        .matchers
        .into_iter()
        .map(|m| Matcher::new(m.name, Op::of(m.is_regex, m.is_equal), m.value))
        .collect();
    let ends_at = posted.ends_at.0.ok_or_else(|| Refused::bad("endsAt in body is required"))?;
    Ok(Wanted {
        id: Some(posted.id).filter(|id| !id.is_empty()),
        matchers: matchers.map_err(Refused::bad)?,
        starts_at: posted.starts_at.0,
        ends_at,
        created_by: posted.created_by,
        comment: posted.comment,
        expire_on_resolve: false,
    })
}

/// Ends a silence. Durable when it is answered.
#[utoipa::path(
    delete,
    path = "/api/v2/silence/{id}",
    operation_id = "alertmanagerDeleteSilence",
    tag = "alertmanager",
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, description = "It is over"), BadRequest, NotFound, Broken)
)]
pub(super) async fn expire(
    State(api): State<Arc<Api>>,
    caller: Caller,
    id: core::result::Result<Named, ApiError>,
) -> Result<StatusCode> {
    let Named(id) = id?;
    api.expire(&caller, &id).await?;
    Ok(StatusCode::OK)
}

fn view(s: &Silence, now: Ts) -> GettableSilence {
    let matcher = |m: &Matcher| MatcherView {
        is_equal: m.op().is_positive(),
        is_regex: m.op().is_regex(),
        name: m.label().to_owned(),
        value: m.value().to_owned(),
    };
    GettableSilence {
        id: s.id.clone(),
        status: SilenceStatus { state: s.phase(now) },
        updated_at: When(s.updated_at),
        comment: s.comment.clone(),
        created_by: s.created_by.clone(),
        ends_at: When(s.ends_at),
        matchers: s.matchers.iter().map(matcher).collect(),
        starts_at: When(s.starts_at),
    }
}

//! Silences, in Alertmanager's words.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Json;
use stepwatch_engine::matcher::{Matcher, Op};
use stepwatch_engine::silence::{Phase, Silence, Wanted};
use stepwatch_engine::time::Ts;

use super::filter::Filter;
use super::wire::{GettableSilence, MatcherView, PostableSilence, SilenceId, SilenceStatus};
use super::{Refused, Result};
use crate::api::Api;
use crate::api::silences::json_body;
use crate::api::view::When;
use crate::clock::wall;

/// Active ones first, the one that ends soonest first; then those to come, then those that are over, the latest first.
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<GettableSilence>>> {
    let filter = Filter::parse(&query.unwrap_or_default())?;
    let now = wall();
    let mut silences = api.runtime.board.silences(now);
    silences.retain(|s| filter.matchers.iter().all(|m| is_about(s, m)));
    silences.sort_by_key(|s| match s.phase(now) {
        Phase::Active => (0, s.ends_at.0, Reverse(0)),
        Phase::Pending => (1, s.starts_at.0, Reverse(0)),
        Phase::Expired => (2, 0, Reverse(s.ends_at.0)),
    });
    Ok(Json(silences.iter().map(|s| view(s, now)).collect()))
}

/// A filter is compared with what a silence's matchers say, not with what they match.
fn is_about(s: &Silence, filter: &Matcher) -> bool {
    let mut same = s.matchers.iter().filter(|m| m.label() == filter.label()).peekable();
    if same.peek().is_none() {
        return filter.holds_of_nothing();
    }
    same.any(|m| filter.holds_of(m.value()))
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
) -> Result<Json<GettableSilence>> {
    let found = api.runtime.board.silence(&id);
    let found = found.ok_or_else(|| Refused(StatusCode::NOT_FOUND, format!("silence {id} not found")))?;
    Ok(Json(view(&found, wall())))
}

pub(super) async fn put(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<SilenceId>> {
    let posted: PostableSilence = json_body(&headers, &body)?;
    let matchers: core::result::Result<Vec<Matcher>, String> = posted
        .matchers
        .into_iter()
        .map(|m| Matcher::new(m.name, Op::of(m.is_regex, m.is_equal), m.value))
        .collect();
    let ends_at = posted.ends_at.0.ok_or_else(|| Refused::bad("endsAt in body is required"))?;
    let wanted = Wanted {
        id: Some(posted.id).filter(|id| !id.is_empty()),
        matchers: matchers.map_err(Refused::bad)?,
        starts_at: posted.starts_at.0,
        ends_at,
        created_by: posted.created_by,
        comment: posted.comment,
        expire_on_resolve: false,
    };
    let silence = api.silence(wanted).await?;
    Ok(Json(SilenceId { silence_id: silence.id.clone() }))
}

pub(super) async fn expire(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<StatusCode> {
    api.expire(&id).await?;
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

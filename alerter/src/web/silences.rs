//! Silences: the present ones with author, reason, end and effect, and the form for a new one with
//! a preview.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::matcher::Matcher;
use stepwatch_respond::silence::{Phase, Silence, Wanted};
use url::form_urlencoded;

use super::form::{Fields, remember, see};
use super::format::{ago, clock, until};
use super::incidents::Row;
use super::layout::{Frame, Place};
use super::page::{Result, page, shown};
use crate::access::Scope;
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::extract::Asked;
use crate::callbacks::silencing::selector;
use crate::clock::wall;
use crate::store::Filter;

/// How long ended silences are listed.
const ENDED_FOR: Span = Span::secs(86_400);
/// The most silences of each part of the list.
const MAX_SHOWN: usize = 200;
/// The most incidents of a preview that are listed; all are counted.
const MAX_PREVIEWED: usize = 20;
/// The days that a preview looks back.
const PREVIEW_DAYS: u32 = 7;
const LENGTHS: &[(&str, &str)] =
    &[("1h", "1 hour"), ("4h", "4 hours"), ("12h", "12 hours"), ("1d", "1 day"), ("7d", "7 days")];
const DEFAULT_LENGTH: &str = "4h";

#[derive(Debug)]
struct SilenceRow {
    id: String,
    matchers: Vec<String>,
    author: String,
    comment: String,
    starts: String,
    ends: String,
    ends_at: String,
    /// Open incidents that the silence suppresses.
    hits: Vec<String>,
    /// The link to the form with the same values.
    again: String,
    with_last: bool,
}

#[derive(Debug, Template)]
#[template(path = "silences.html")]
struct ListPage {
    frame: Frame,
    active: Vec<SilenceRow>,
    pending: Vec<SilenceRow>,
    ended: Vec<SilenceRow>,
    may_silence: bool,
}

/// The effect of a silence.
#[derive(Debug)]
struct Preview {
    open: Vec<Row>,
    hits: usize,
    recent: usize,
    alerts: usize,
    /// The number of all open incidents.
    of: usize,
    complete: bool,
}

#[derive(Debug, Template)]
#[template(path = "silence.html")]
struct FormPage {
    frame: Frame,
    wish: Wish,
    lengths: &'static [(&'static str, &'static str)],
    /// The preview, or the reason why the matchers are invalid; `None` if there are none yet.
    preview: Option<core::result::Result<Preview, String>>,
    may_silence: bool,
}

/// The fields of the form, which a URL may have too.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Wish {
    /// The matchers, one per line.
    matchers: String,
    duration: String,
    comment: String,
    by: String,
    /// Whether the silence ends with the last incident that it matches.
    with_last: String,
    /// The incident from which the matchers come, and to which the form returns.
    incident: String,
}

/// `GET /silences`
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response> {
    list(&api, &caller, &headers, None).await
}

/// `GET /silences/new`: the form, with a preview of its effect.
pub(super) async fn form(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Asked(mut wish): Asked<Wish>,
) -> Result<Response> {
    if wish.matchers.is_empty() && !wish.incident.is_empty() {
        let record = api.find(&caller, &wish.incident).await?;
        let routing = api.runtime.read_model.routing();
        if let Some(pairs) = selector(&record, &routing.config.alerts.group_by) {
            let line = |(label, value): (String, String)| format!("{label}={value:?}");
            wish.matchers = pairs.into_iter().map(line).collect::<Vec<_>>().join("\n");
        }
    }
    fill_in(&api, &caller, &headers, wish, None).await
}

/// `POST /silences/preview`: the filled-in form, with a preview of its effect. It is no `GET`,
/// because forms of a session have a token that must not be in a URL.
pub(super) async fn try_out(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response> {
    fill_in(&api, &caller, &headers, Wish::of(&fields), None).await
}

/// `POST /silences`
pub(super) async fn create(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response> {
    let wish = Wish::of(&fields);
    let made = async {
        let matchers = wish.matchers().map_err(ApiError::bad_request)?;
        let length =
            Span::parse(&wish.duration).map_err(|e| ApiError::bad_request(format!("duration: {e}")))?;
        let wanted = Wanted {
            id: None,
            matchers,
            starts_at: None,
            ends_at: wall() + length,
            created_by: fields.person(&caller),
            comment: wish.comment.clone(),
            expire_on_resolve: !wish.with_last.is_empty(),
        };
        api.silence(&caller, wanted).await
    };
    match made.await {
        Ok(_) => {
            let incident = form_urlencoded::byte_serialize(wish.incident.as_bytes()).collect::<String>();
            let to =
                if incident.is_empty() { "/silences".to_owned() } else { format!("/incidents/{incident}") };
            Ok(remember(see(&to), &caller, &fields))
        }
        Err(why) => fill_in(&api, &caller, &headers, wish, Some(why)).await,
    }
}

/// `POST /silences/{id}/{action}`: `extend` by a duration from now on, or `expire`.
pub(super) async fn act(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Path((id, action)): Path<(String, String)>,
    fields: Fields,
) -> Result<Response> {
    let done = async {
        match action.as_str() {
            "expire" => api.expire(&caller, &id).await.map(drop),
            "extend" => extend(&api, &caller, &id, &fields).await,
            _ => Err(ApiError::not_found(format!("a silence has no button {action:?}"))),
        }
    };
    match done.await {
        Ok(()) => Ok(remember(see("/silences"), &caller, &fields)),
        Err(why) => list(&api, &caller, &headers, Some(why)).await,
    }
}

async fn extend(api: &Api, caller: &Caller, id: &str, fields: &Fields) -> Result<()> {
    let length = Span::parse(fields.get("duration"));
    let length = length.map_err(|e| ApiError::bad_request(format!("duration: {e}")))?;
    let old = api.own_silence(caller, id)?;
    let wanted = Wanted {
        id: Some(old.id.clone()),
        matchers: old.matchers.clone(),
        starts_at: Some(old.starts_at),
        ends_at: wall().max(old.ends_at) + length,
        created_by: old.created_by.clone(),
        comment: old.comment.clone(),
        expire_on_resolve: old.expire_on_resolve,
    };
    api.silence(caller, wanted).await.map(drop)
}

async fn list(api: &Api, caller: &Caller, headers: &HeaderMap, alarm: Option<ApiError>) -> Result<Response> {
    let now = wall();
    let suppressed = api.suppressed().await?;
    let mut all = api.runtime.read_model.silences(now);
    all.retain(|s| caller.may_silence(&s.matchers).is_ok());
    all.sort_by_key(|s| s.ends_at);
    let of = |phase: Phase| {
        let shown = all.iter().filter(|s| s.phase(now) == phase);
        let recent = shown.filter(|s| phase != Phase::Expired || now - s.ends_at < ENDED_FOR);
        recent.take(MAX_SHOWN).map(|s| SilenceRow::of(s, now, &suppressed)).collect::<Vec<_>>()
    };
    let frame = Frame::new(api, caller, Place::Silences, "Silences", "/silences").await?.of(headers).typed();
    let (status, reason) = alarm.map_or((StatusCode::OK, None), |why| (why.status, Some(why.message)));
    let list = ListPage {
        frame: Frame { alarm: reason.clone(), ..frame },
        active: of(Phase::Active),
        pending: of(Phase::Pending),
        ended: of(Phase::Expired),
        may_silence: caller.scopes().has(Scope::Silence),
    };
    Ok(shown(page(status, &list), reason))
}

async fn fill_in(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    wish: Wish,
    alarm: Option<ApiError>,
) -> Result<Response> {
    let preview = match wish.matchers() {
        _ if wish.matchers.trim().is_empty() => None,
        Err(why) => Some(Err(why)),
        Ok(matchers) => Some(Ok(preview(api, caller, &matchers).await?)),
    };
    let frame = Frame::new(api, caller, Place::Silences, "New silence", "/silences/new").await?;
    let (status, reason) = alarm.map_or((StatusCode::OK, None), |why| (why.status, Some(why.message)));
    let form = FormPage {
        frame: Frame { alarm: reason.clone(), renews: false, ..frame.of(headers).typed() },
        wish: Wish { duration: wish.length().to_owned(), ..wish },
        lengths: LENGTHS,
        preview,
        may_silence: caller.scopes().has(Scope::Silence),
    };
    Ok(shown(page(status, &form), reason))
}

async fn preview(api: &Api, caller: &Caller, matchers: &[Matcher]) -> Result<Preview> {
    let found = api.preview(caller, matchers, PREVIEW_DAYS).await?;
    let (now, hits) = (wall(), found.open.len());
    let all = Filter { unresolved: true, ..Filter::default() };
    Ok(Preview {
        hits,
        recent: found.recent.len(),
        alerts: found.alerts.len(),
        of: api.count(caller, &all).await?,
        complete: found.complete,
        open: found
            .open
            .into_iter()
            .take(MAX_PREVIEWED)
            .map(|view| Row::from_view(caller, view, now))
            .collect(),
    })
}

impl Wish {
    fn of(fields: &Fields) -> Self {
        let text = |name: &str| fields.get(name).to_owned();
        Self {
            matchers: text("matchers"),
            duration: text("duration"),
            comment: text("comment"),
            by: text("by"),
            with_last: text("with_last"),
            incident: text("incident"),
        }
    }

    fn length(&self) -> &str {
        if self.duration.is_empty() { DEFAULT_LENGTH } else { &self.duration }
    }

    fn matchers(&self) -> core::result::Result<Vec<Matcher>, String> {
        let lines = self.matchers.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(Matcher::parse).collect()
    }
}

impl Preview {
    /// Whether the silence would suppress nothing, now or recently.
    fn is_empty(&self) -> bool {
        self.hits == 0 && self.recent == 0 && self.alerts == 0
    }

    fn is_everything(&self) -> bool {
        self.hits > 1 && self.hits >= self.of
    }
}

impl SilenceRow {
    fn of(silence: &Silence, now: Ts, suppressed: &[(String, String)]) -> Self {
        let matchers: Vec<_> = silence.matchers.iter().map(ToString::to_string).collect();
        let mut again = form_urlencoded::Serializer::new(String::new());
        again.append_pair("matchers", &matchers.join("\n")).append_pair("comment", &silence.comment);
        let over = silence.phase(now) == Phase::Expired;
        Self {
            again: format!("/silences/new?{}", again.finish()),
            matchers,
            author: silence.created_by.clone(),
            comment: silence.comment.clone(),
            starts: if silence.starts_at > now {
                until(now, silence.starts_at)
            } else {
                ago(now, silence.starts_at)
            },
            ends: if over { ago(now, silence.ends_at) } else { until(now, silence.ends_at) },
            ends_at: clock(silence.ends_at),
            hits: suppressed.iter().filter(|(by, _)| *by == silence.id).map(|(_, id)| id.clone()).collect(),
            with_last: silence.expire_on_resolve,
            id: silence.id.clone(),
        }
    }
}

//! Alerts: taken from Prometheus, shown to whoever asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Json;
use stepwatch_engine::external::{Alert, AlertError, Limits, Told};
use stepwatch_engine::time::Ts;

use super::errors::{BadRequest, Broken, Full, NotJson, TooLarge};
use super::filter::{AlertsQuery, Filter};
use super::shown::{self as looks, Looker, Shown};
use super::wire::{AlertGroup, GettableAlert, Name, PostableAlert};
use super::{Refused, Result};
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::extract::Sent;
use crate::clock::wall;
use crate::runtime::Outside;
use crate::store;

/// Incidents shown as alerts.
const MAX_INCIDENTS: u32 = 100_000;
/// Mistakes told of one request.
const MAX_MISTAKES: usize = 10;

/// Takes alerts that fire, or are over. Durable when it is answered.
///
/// As Alertmanager: what is valid is taken, also if something else in the request is not.
#[utoipa::path(
    post,
    path = "/api/v2/alerts",
    operation_id = "alertmanagerPostAlerts",
    tag = "alertmanager",
    request_body = Vec<PostableAlert>,
    responses(
        (status = 200, description = "All of them are taken"),
        BadRequest, TooLarge, NotJson, Full, Broken
    )
)]
pub(super) async fn take(
    State(api): State<Arc<Api>>,
    caller: Caller,
    posted: core::result::Result<Sent<Vec<PostableAlert>>, ApiError>,
) -> Result<StatusCode> {
    let Sent(posted) = posted?;
    let (now, limits) = (wall(), Limits::default());
    let mut mistakes = Vec::new();
    let mut told = Vec::with_capacity(posted.len());
    let (mut invalid, mut foreign) = (0, 0u64);
    let routing = api.runtime.board.routing();
    let is_own = |one: &Told| {
        caller.reach().is_none_or(|reach| reach.admits(&routing.with_team(one.alert.labels.to_labels())))
    };
    for alert in posted {
        match read(alert, now, &limits) {
            Ok(one) if !is_own(&one) => foreign += 1,
            Ok(one) => told.push(one),
            Err(e) => {
                invalid += 1;
                if mistakes.len() < MAX_MISTAKES {
                    mistakes.push(e.to_string());
                }
            }
        }
    }
    api.runtime.metrics.alerts_invalid.inc_by(invalid + foreign);
    let heard = if told.is_empty() {
        crate::runtime::Heard::default()
    } else {
        let entry = caller.audit("", "alerts", &format!("{} alerts", told.len()));
        api.outside(entry, |reply| Outside::Alerts { told, reply }).await?
    };
    if let Some(reach) = caller.reach().filter(|_| foreign > 0) {
        let why =
            format!("{foreign} alerts refused: this token is limited to {reach}, by the labels run and team");
        return Err(Refused(StatusCode::FORBIDDEN, why));
    }
    if !mistakes.is_empty() {
        return Err(Refused::bad(mistakes.join("; ")));
    }
    if heard.refused > 0 {
        let why = format!("{} alerts refused: alerts.max_alerts fire already", heard.refused);
        return Err(Refused(StatusCode::TOO_MANY_REQUESTS, why));
    }
    Ok(StatusCode::OK)
}

fn read(posted: PostableAlert, now: Ts, limits: &Limits) -> core::result::Result<Told, AlertError> {
    let (starts_at, ends_at) = (posted.starts_at.0, posted.ends_at.0);
    let starts_at = starts_at.or(ends_at).unwrap_or(now);
    if ends_at.is_some_and(|at| at < starts_at) {
        return Err(AlertError::EndsBeforeStart);
    }
    let url = posted.generator_url.as_deref().unwrap_or_default();
    let alert = Alert::new(posted.labels, posted.annotations.unwrap_or_default(), starts_at, url, limits)?;
    Ok(Told { alert, ends_at })
}

/// What fires: those alerts, and our own incidents.
#[utoipa::path(
    get,
    path = "/api/v2/alerts",
    operation_id = "alertmanagerListAlerts",
    tag = "alertmanager",
    params(AlertsQuery),
    responses((status = 200, description = "What fires", body = Vec<GettableAlert>), BadRequest, Broken)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<GettableAlert>>> {
    let filter = Filter::parse(&query.unwrap_or_default())?;
    let shown = shown(&api, &caller, &filter).await?;
    let mut alerts: Vec<GettableAlert> = shown.into_iter().map(|s| s.alert).collect();
    alerts.sort_by(|a, b| a.fingerprint.cmp(&b.fingerprint));
    Ok(Json(alerts))
}

/// What fires, by receiver and by what the alerts of a group have in common.
#[utoipa::path(
    get,
    path = "/api/v2/alerts/groups",
    operation_id = "alertmanagerListAlertGroups",
    tag = "alertmanager",
    params(AlertsQuery),
    responses((status = 200, description = "The groups", body = Vec<AlertGroup>), BadRequest, Broken)
)]
pub(super) async fn groups(
    State(api): State<Arc<Api>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<AlertGroup>>> {
    let filter = Filter::parse(&query.unwrap_or_default())?;
    let mut groups: BTreeMap<_, Vec<GettableAlert>> = BTreeMap::new();
    for Shown { alert, group, receivers } in shown(&api, &caller, &filter).await? {
        for receiver in receivers.into_iter().filter(|name| filter.wants_receiver(name)) {
            groups.entry((group.clone(), receiver)).or_default().push(alert.clone());
        }
    }
    let group =
        |((labels, receiver), mut alerts): ((BTreeMap<String, String>, String), Vec<GettableAlert>)| {
            alerts.sort_by(|a, b| a.fingerprint.cmp(&b.fingerprint));
            let labels = labels.into_iter().map(|(n, v)| (n.into(), v.into())).collect();
            AlertGroup { alerts, labels, receiver: Name { name: receiver } }
        };
    Ok(Json(groups.into_iter().map(group).collect()))
}

async fn shown(api: &Api, caller: &Caller, filter: &Filter) -> Result<Vec<Shown>> {
    let now = wall();
    let (routing, silences) = (api.runtime.board.routing(), api.runtime.board.active(now));
    let mut firing = api.runtime.board.alerts(now);
    if let Some(reach) = caller.reach() {
        firing.retain(|firing| reach.admits(&routing.with_team(firing.alert.labels.to_labels())));
    }
    let open = store::Filter { unresolved: true, limit: Some(MAX_INCIDENTS), ..store::Filter::default() };
    let incidents = api.incidents(caller, open).await?;
    let hidden = incidents.iter().filter(|r| r.quiet.is_some() && looks::of_alerts(r)).collect();
    let (filter, routing, silences, incidents) = (filter, &*routing, &*silences, incidents.as_slice());
    let looker = Looker { filter, routing, silences, incidents, firing: &firing, hidden, now };
    let mut all: Vec<Shown> = firing.iter().filter_map(|firing| looker.alert(firing)).collect();
    all.extend(incidents.iter().filter_map(|record| looker.incident(record)));
    Ok(all)
}

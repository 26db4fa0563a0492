//! Alerts: taken from Prometheus, shown to whoever asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Json;
use stepwatch_engine::external::{Alert, AlertError, Limits, Told};
use stepwatch_engine::time::Ts;

use super::filter::Filter;
use super::shown::{Looker, Shown};
use super::wire::{AlertGroup, GettableAlert, Name, PostableAlert};
use super::{Refused, Result};
use crate::api::Api;
use crate::api::silences::json_body;
use crate::clock::wall;
use crate::runtime::Outside;
use crate::store;

/// Incidents shown as alerts.
const MAX_INCIDENTS: u32 = 100_000;
/// Mistakes told of one request.
const MAX_MISTAKES: usize = 10;

/// As Alertmanager: what is valid is taken, also if something else in the request is not.
pub(super) async fn take(State(api): State<Arc<Api>>, headers: HeaderMap, body: Bytes) -> Result<StatusCode> {
    let posted: Vec<PostableAlert> = json_body(&headers, &body)?;
    let (now, limits) = (wall(), Limits::default());
    let mut mistakes = Vec::new();
    let mut told = Vec::with_capacity(posted.len());
    let mut invalid = 0;
    for alert in posted {
        match read(alert, now, &limits) {
            Ok(one) => told.push(one),
            Err(e) => {
                invalid += 1;
                if mistakes.len() < MAX_MISTAKES {
                    mistakes.push(e.to_string());
                }
            }
        }
    }
    api.runtime.metrics.alerts_invalid.inc_by(invalid);
    let heard = if told.is_empty() {
        crate::runtime::Heard::default()
    } else {
        api.outside(|reply| Outside::Alerts { told, reply }).await?
    };
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

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<GettableAlert>>> {
    let filter = Filter::parse(&query.unwrap_or_default())?;
    let mut alerts: Vec<GettableAlert> = shown(&api, &filter).await?.into_iter().map(|s| s.alert).collect();
    alerts.sort_by(|a, b| a.fingerprint.cmp(&b.fingerprint));
    Ok(Json(alerts))
}

/// By receiver, and by what the alerts of a group have in common.
pub(super) async fn groups(
    State(api): State<Arc<Api>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<AlertGroup>>> {
    let filter = Filter::parse(&query.unwrap_or_default())?;
    let mut groups: BTreeMap<_, Vec<GettableAlert>> = BTreeMap::new();
    for Shown { alert, group, receivers } in shown(&api, &filter).await? {
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

async fn shown(api: &Api, filter: &Filter) -> Result<Vec<Shown>> {
    let now = wall();
    let (routing, silences) = (api.runtime.board.routing(), api.runtime.board.active(now));
    let looker = Looker { filter, routing: &routing, silences: &silences, now };
    let mut all: Vec<Shown> =
        api.runtime.board.alerts(now).iter().filter_map(|firing| looker.alert(firing)).collect();
    let open = store::Filter { unresolved: true, limit: Some(MAX_INCIDENTS), ..store::Filter::default() };
    let incidents = api.store.incidents(&open).await.map_err(crate::api::error::ApiError::from)?;
    all.extend(incidents.iter().filter_map(|record| looker.incident(record)));
    Ok(all)
}

//! Alerts of the Alertmanager API: posted by Prometheus, listed for any client.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use stepwatch_model::time::Ts;
use stepwatch_respond::external::{Alert, AlertError, Firing, Limits, PostedAlert};
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::silence::Silence;

use super::errors::{BadRequest, Broken, Full, NotJson, TooLarge};
use super::filter::{AlertsQuery, Filter};
use super::hiding::Hiding;
use super::shown::{Looker, Shown};
use super::wire::{AlertGroup, GettableAlert, Name, PostableAlert};
use super::{Refused, Result};
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::extract::Each;
use crate::clock::wall;
use crate::notify::line;
use crate::read_model::Routing;
use crate::runtime::{Heard, Unanswered};
use crate::store;

/// Incidents shown as alerts.
const MAX_INCIDENTS: u32 = 100_000;
/// Mistakes quoted from one request.
const MAX_MISTAKES: usize = 10;
/// Characters of the name of an alert in one of them.
const MAX_NAME: usize = 100;

/// A parsed value, or the value that is invalid and the reason.
type Posted = core::result::Result<PostableAlert, (serde_json::Value, serde_json::Error)>;

/// Takes alerts that fire, or are over. Durable when it is answered.
///
/// As in Alertmanager, valid alerts are accepted even if others in the request are invalid. Texts
/// that are too long are accepted, and cut.
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
    posted: core::result::Result<Each<PostableAlert>, ApiError>,
) -> Result<StatusCode> {
    let Each(posted) = posted?;
    let Read { accepted, cut, invalid, mistakes, foreign } =
        Read::from_posted(posted, &caller, &api.runtime.read_model.routing(), wall());
    api.runtime.metrics.alerts_invalid.inc_by(invalid + foreign);
    api.runtime.metrics.alerts_cut.inc_by(cut);
    let beyond = caller.token_scope().filter(|_| foreign > 0).map(|token_scope| {
        format!(
            "{foreign} alerts refused: this token is limited to {token_scope}, by the labels run and team"
        )
    });
    let mistakes = mistakes.join("; ");
    if let Some(refused) = api.refused_alerts.count(invalid + foreign) {
        let why = if mistakes.is_empty() { beyond.as_deref().unwrap_or_default() } else { &mistakes };
        tracing::warn!(refused, why, "alerts were refused: nobody is notified of them");
    }
    let heard = if accepted.is_empty() {
        Heard::default()
    } else {
        let entry = caller.audit("", "alerts", &format!("{} alerts", accepted.len()));
        api.runtime.post_alerts(accepted, entry).await.map_err(|why| match why {
            Unanswered::NotDurable => ApiError::unavailable(
                "taken, but not yet durable: the store is slow or refuses; send them again",
            ),
            Unanswered::Stopping => why.into(),
        })?
    };
    if let Some(why) = beyond {
        return Err(Refused(StatusCode::FORBIDDEN, why));
    }
    if !mistakes.is_empty() {
        return Err(Refused::bad(mistakes));
    }
    if heard.refused > 0 {
        let whose = match caller.limited_token() {
            "" => String::new(),
            token => format!(" of the share of token {token}"),
        };
        let why = format!(
            "{} alerts refused: alerts.max_alerts, or alerts.max_bytes of them, fire already{whose}",
            heard.refused
        );
        if let Some(refused) = api.full_alerts.count(heard.refused) {
            tracing::warn!(refused, why, "alerts were refused: nobody is notified of them");
        }
        return Err(Refused(StatusCode::TOO_MANY_REQUESTS, why));
    }
    Ok(StatusCode::OK)
}

/// The accepted and the refused alerts of a request.
#[derive(Default)]
struct Read {
    accepted: Vec<PostedAlert>,
    /// The number of accepted alerts with a text that was cut.
    cut: u64,
    invalid: u64,
    /// The mistakes in the first of the invalid ones.
    mistakes: Vec<String>,
    /// Outside the limits of the sender's token.
    foreign: u64,
}

/// The alerts that would be accepted from a body. The mistakes are rendered as well.
#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(body: &[u8], now: Ts) -> Vec<PostedAlert> {
    let Ok(Each(posted)) = Each::<PostableAlert>::read(body) else { return Vec::new() };
    let caller = Caller::service(crate::audit::Door::Alertmanager);
    Read::from_posted(posted, &caller, &Routing::default(), now).accepted
}

impl Read {
    fn from_posted(posted: Vec<Posted>, caller: &Caller, routing: &Routing, now: Ts) -> Self {
        let limits = Limits::default();
        let mut all = Self { accepted: Vec::with_capacity(posted.len()), ..Self::default() };
        for (number, posted) in (1..).zip(posted) {
            let posted = match posted {
                Ok(posted) => posted,
                Err((value, why)) => {
                    all.mistake(&why, value["labels"]["alertname"].as_str(), number);
                    continue;
                }
            };
            let name = posted.labels.get("alertname").map(str::to_owned);
            match read(posted, now, &limits) {
                Ok((alert, ends_at, cut)) => {
                    all.cut += u64::from(cut > 0);
                    match within(caller, routing, alert) {
                        Some(alert) => all.accepted.push(PostedAlert { alert: alert.into(), ends_at }),
                        None => all.foreign += 1,
                    }
                }
                Err(why) => all.mistake(&why, name.as_deref(), number),
            }
        }
        all
    }

    fn mistake(&mut self, why: &dyn core::fmt::Display, name: Option<&str>, number: usize) {
        self.invalid += 1;
        if self.mistakes.len() < MAX_MISTAKES {
            let name = name.map(|name| format!(" {:?}", line(name, MAX_NAME))).unwrap_or_default();
            self.mistakes.push(format!("{why} (alert {number}{name})"));
        }
    }
}

/// An alert of a caller, with the limits of the caller's token; `None` if it is outside them.
fn within(caller: &Caller, routing: &Routing, alert: Alert) -> Option<Alert> {
    let Some(token_scope) = caller.token_scope() else { return Some(alert) };
    let labels = routing.with_team(alert.labels.to_labels());
    let limits = token_scope.limits_of(&labels);
    token_scope.admits(&labels).then(|| alert.within(limits).sent_by(caller.limited_token()))
}

/// An alert, when it ends, and how many of its texts were cut.
fn read(
    posted: PostableAlert,
    now: Ts,
    limits: &Limits,
) -> core::result::Result<(Alert, Option<Ts>, u64), AlertError> {
    let (starts_at, ends_at) = (posted.starts_at.0, posted.ends_at.0);
    let starts_at = starts_at.or(ends_at).unwrap_or(now);
    if ends_at.is_some_and(|at| at < starts_at) {
        return Err(AlertError::EndsBeforeStart);
    }
    let (annotations, url) =
        (posted.annotations.unwrap_or_default(), posted.generator_url.unwrap_or_default());
    let (alert, cut) = Alert::fitted(posted.labels, annotations, starts_at, url, limits)?;
    Ok((alert, ends_at, cut))
}

/// Everything that fires: alerts of other programs, and our own incidents.
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
) -> Result<Response> {
    let filter = Filter::parse(&query.unwrap_or_default())?;
    let write = |stand: &Stand| {
        let mut alerts: Vec<GettableAlert> = stand.shown().into_iter().map(|s| s.alert).collect();
        alerts.sort_by(|a, b| a.fingerprint.cmp(&b.fingerprint));
        serde_json::to_vec(&alerts)
    };
    Stand::load(&api, &caller, filter).await?.answer(write).await
}

/// Everything that fires, by receiver and by the common labels of a group.
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
) -> Result<Response> {
    let filter = Filter::parse(&query.unwrap_or_default())?;
    Stand::load(&api, &caller, filter).await?.answer(|stand| serde_json::to_vec(&stand.groups())).await
}

/// Everything that fires, with what its rendering needs.
struct Stand {
    filter: Filter,
    now: Ts,
    routing: Arc<Routing>,
    silences: Vec<Arc<Silence>>,
    alerts: Vec<Firing>,
    incidents: Vec<IncidentRecord>,
}

impl Stand {
    async fn load(api: &Api, caller: &Caller, filter: Filter) -> Result<Self> {
        let open = store::Filter { unresolved: true, limit: Some(MAX_INCIDENTS), ..store::Filter::default() };
        let incidents = api.incidents(caller, open).await?;
        let (now, read_model) = (wall(), &api.runtime.read_model);
        let (routing, silences, mut alerts) =
            (read_model.routing(), read_model.active(now), read_model.alerts(now));
        if let Some(token_scope) = caller.token_scope() {
            alerts.retain(|firing| token_scope.admits(&routing.with_team(firing.alert.labels.to_labels())));
        }
        Ok(Self { filter, now, routing, silences, alerts, incidents })
    }

    fn shown(&self) -> Vec<Shown> {
        let Self { filter, now, routing, silences, alerts, incidents } = self;
        let hiding = Hiding::new(&routing.config.alerts.group_by, incidents, alerts);
        let looker = Looker { filter, routing, silences, hiding, now: *now };
        let alerts = alerts.iter().filter_map(|firing| looker.alert(firing));
        alerts.chain(incidents.iter().filter_map(|record| looker.incident(record))).collect()
    }

    fn groups(&self) -> Vec<AlertGroup> {
        let mut groups: BTreeMap<_, Vec<GettableAlert>> = BTreeMap::new();
        for Shown { alert, group, receivers } in self.shown() {
            for receiver in receivers.into_iter().filter(|name| self.filter.wants_receiver(name)) {
                groups.entry((group.clone(), receiver)).or_default().push(alert.clone());
            }
        }
        let group = |((labels, receiver), mut alerts): ((Labels, String), Vec<GettableAlert>)| {
            alerts.sort_by(|a, b| a.fingerprint.cmp(&b.fingerprint));
            let labels = labels.into_iter().map(|(n, v)| (n.into(), v.into())).collect();
            AlertGroup { alerts, labels, receiver: Name { name: receiver } }
        };
        groups.into_iter().map(group).collect()
    }

    /// Serialising tens of thousands takes so long that it would delay other requests: it is done
    /// on a blocking thread.
    async fn answer(
        self,
        write: impl FnOnce(&Self) -> serde_json::Result<Vec<u8>> + Send + 'static,
    ) -> Result<Response> {
        let failed = |err: &dyn core::fmt::Display| {
            tracing::error!(%err, "cannot show the alerts");
            let message = "the alerts cannot be shown; see the alerter's log".into();
            Refused::from(ApiError { status: StatusCode::INTERNAL_SERVER_ERROR, message })
        };
        let written = tokio::task::spawn_blocking(move || write(&self)).await.map_err(|e| failed(&e))?;
        let body = written.map_err(|e| failed(&e))?;
        Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
    }
}

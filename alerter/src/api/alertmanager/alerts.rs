//! Alerts of the Alertmanager API: Prometheus posts them, and any client can list them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Serialize, Serializer};
use stepwatch_model::time::Ts;
use stepwatch_respond::external::{Alert, AlertError, Firing, Limits, PostedAlert};
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::silence::Silence;
use utoipa::ToSchema;

use super::errors::{BadRequest, Broken, Full, NotJson, Refused, Result, TooLarge};
use super::filter::{AlertsQuery, Filter};
use super::inhibited::Inhibited;
use super::listed;
use super::shown::{Looker, Shown};
use super::wire::{GettableAlert, Name, PostableAlert};
use crate::api::auth::Caller;
use crate::api::doc::schema;
use crate::api::error::ApiError;
use crate::api::extract::Each;
use crate::api::state::Api;
use crate::clock::wall;
use crate::notify::line;
use crate::read_model::Routing;
use crate::runtime::{Heard, Unanswered};
use crate::store;

/// The most incidents that are shown as alerts.
const MAX_INCIDENTS: u32 = 100_000;
/// The most mistakes that the answer to one request quotes.
const MAX_MISTAKES: usize = 10;
/// The most characters of an alert's name in a quoted mistake.
const MAX_NAME: usize = 100;

/// A parsed alert, or the invalid value and the reason.
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
    /// The number of accepted alerts with a truncated text.
    cut: u64,
    invalid: u64,
    /// The mistakes in the first invalid alerts.
    mistakes: Vec<String>,
    /// The number of alerts outside the limits of the sender's token.
    foreign: u64,
}

/// The accepted alerts of a body. The mistakes are rendered too.
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

/// An alert, its end, and the number of its truncated texts.
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
    let stand = Stand::load(&api, &caller, filter).await?;
    Ok(listed::answer(move |out| stand.write_list(out)))
}

/// Everything that fires, by receiver and by the common labels of a group.
#[utoipa::path(
    get,
    path = "/api/v2/alerts/groups",
    operation_id = "alertmanagerListAlertGroups",
    tag = "alertmanager",
    params(AlertsQuery),
    responses((status = 200, description = "The groups", body = Vec<Group<'static>>), BadRequest, Broken)
)]
pub(super) async fn groups(
    State(api): State<Arc<Api>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Response> {
    let filter = Filter::parse(&query.unwrap_or_default())?;
    let stand = Stand::load(&api, &caller, filter).await?;
    Ok(listed::answer(move |out| stand.write_groups(out)))
}

/// All firing alerts, with the data that their rendering needs.
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

    fn looker(&self) -> Looker<'_> {
        let Self { filter, now, routing, silences, alerts, incidents } = self;
        let inhibited = Inhibited::new(&routing.config.alerts.group_by, incidents, alerts);
        Looker { filter, routing, silences, inhibited, now: *now }
    }

    fn everything(&self) -> impl Iterator<Item = Which> {
        (0..self.alerts.len()).map(Which::Alert).chain((0..self.incidents.len()).map(Which::Incident))
    }

    fn show(&self, looker: &Looker<'_>, which: Which) -> Option<Shown> {
        match which {
            Which::Alert(i) => looker.alert(self.alerts.get(i)?),
            Which::Incident(i) => looker.incident(self.incidents.get(i)?),
        }
    }

    fn write_list(&self, out: &mut impl Write) -> io::Result<()> {
        let looker = self.looker();
        let shown = |which| Some((self.show(&looker, which)?.alert.fingerprint, which));
        let mut listed: Vec<_> = self.everything().filter_map(shown).collect();
        listed.sort_unstable();
        Ok(serde_json::to_writer(out, &Alerts { stand: self, looker: &looker, listed: &listed })?)
    }

    fn write_groups(&self, out: &mut impl Write) -> io::Result<()> {
        let looker = self.looker();
        let mut groups: BTreeMap<(Labels, String), Vec<(String, Which)>> = BTreeMap::new();
        for which in self.everything() {
            let Some(Shown { alert, group, receivers }) = self.show(&looker, which) else { continue };
            for receiver in receivers.into_iter().filter(|name| self.filter.wants_receiver(name)) {
                let listed = groups.entry((group.clone(), receiver)).or_default();
                listed.push((alert.fingerprint.clone(), which));
            }
        }
        groups.values_mut().for_each(|listed| listed.sort_unstable());
        let mut all = serde_json::Serializer::new(out);
        all.collect_seq(groups.iter().map(|((labels, receiver), listed)| Group {
            alerts: Alerts { stand: self, looker: &looker, listed },
            labels,
            receiver: Name { name: receiver.clone() },
        }))?;
        Ok(())
    }
}

/// An entry of a [`Stand`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    Alert(usize),
    Incident(usize),
}

/// Alerts in the order of their fingerprints. Each is created only when it is written.
struct Alerts<'a> {
    stand: &'a Stand,
    looker: &'a Looker<'a>,
    listed: &'a [(String, Which)],
}

/// Alerts of one receiver with the same labels to group by.
#[derive(Serialize, ToSchema)]
#[schema(as = AlertGroup)]
struct Group<'a> {
    #[schema(value_type = Vec<GettableAlert>)]
    alerts: Alerts<'a>,
    #[schema(value_type = schema::Labels)]
    labels: &'a Labels,
    receiver: Name,
}

impl Serialize for Alerts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> core::result::Result<S::Ok, S::Error> {
        let shown = self.listed.iter().filter_map(|(_, which)| self.stand.show(self.looker, *which));
        serializer.collect_seq(shown.map(|shown| shown.alert))
    }
}

//! The page of one incident: the fault, the suspects, the advice, the cost, the notified people,
//! and the buttons.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use stepwatch_model::time::Ts;
use stepwatch_model::{Evidence, Signal, SignalUnit};
use stepwatch_respond::effect::TimelineEntry;
use stepwatch_respond::incident::{IncidentRecord, State as IncidentState, Verdict};
use stepwatch_respond::message::Message;

use super::form::{Fields, remember, see};
use super::format::{ago, clock, until};
use super::incidents::Row;
use super::layout::{Frame, Place};
use super::page::{Result, page, shown};
use crate::access::Scope;
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::incident_actions::Said;
use crate::api::view::{DeliveryView, LinkView};
use crate::clock::wall;
use crate::money::money;
use crate::notify::text::web_link;
use crate::postmortem::{self, Account};
use crate::runtime::IncidentAction;
use crate::store::{Delivery, DeliveryState};

/// The most entries of the history and messages that are shown, latest first: an incident that
/// flaps for a week has thousands.
const MAX_ENTRIES: usize = 200;
const MAX_DELIVERIES: usize = 100;
/// The most upcoming levels that are shown.
const MAX_NEXT: usize = 5;
/// The most characters of a link.
const HREF_MAX: usize = 2000;

/// A suspect with its evidence.
#[derive(Debug)]
struct SuspectView {
    what: String,
    evidence: Vec<EvidenceView>,
}

#[derive(Debug)]
struct EvidenceView {
    text: String,
    since: Option<String>,
    /// The weight of the evidence.
    strength: Option<String>,
}

/// A measured value, and the expected one.
#[derive(Debug)]
struct Measured {
    label: String,
    value: String,
    expected: Option<String>,
}

#[derive(Debug)]
struct Money {
    per_hour: String,
    so_far: String,
    gpus: u32,
}

#[derive(Debug)]
struct EntryView {
    at: String,
    actor: String,
    what: String,
}

#[derive(Debug)]
struct SentView {
    at: String,
    receiver: String,
    users: String,
    state: &'static str,
    title: String,
    why: String,
    error: String,
    attempts: u32,
}

/// An upcoming level of the policy.
#[derive(Debug)]
struct NextView {
    when: String,
    whom: String,
}

#[derive(Debug, Template)]
#[template(path = "incident.html")]
struct Page {
    frame: Frame,
    row: Row,
    description: Option<String>,
    measured: Option<Measured>,
    suspects: Vec<SuspectView>,
    plan: Vec<String>,
    advice: Option<String>,
    steps: Option<String>,
    checkpoint: Option<String>,
    cost: Option<Money>,
    at_risk: Option<String>,
    ended: Option<String>,
    reopens: Option<String>,
    acked: Option<String>,
    next: Vec<NextView>,
    timeline: Vec<EntryView>,
    earlier: usize,
    sent: Vec<SentView>,
    failed: usize,
    labels: Vec<(String, String)>,
    links: Vec<LinkView>,
    over: bool,
    may_answer: bool,
    may_silence: bool,
}

/// `GET /incidents/{id}`
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Response> {
    render(&api, &caller, &headers, &id, None).await
}

/// `POST /incidents/{id}/{action}`: applies the action, and shows the incident afterwards. An
/// action that is impossible is reported above the incident.
pub(super) async fn act(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Path((id, action)): Path<(String, String)>,
    fields: Fields,
) -> Result<Response> {
    let done = async {
        let by = fields.person(&caller);
        let said = match action.as_str() {
            "ack" => Said::new(IncidentAction::Ack, by),
            "unack" => Said::new(IncidentAction::Unack, by),
            "escalate" => Said::new(IncidentAction::Escalate, by),
            "resolve" => Said::resolution(verdict(fields.get("as"))?, by),
            "notes" => Said::note(fields.get("note"), by),
            _ => Err(ApiError::not_found(format!("an incident has no button {action:?}"))),
        }?;
        api.answer(&caller, &id, said).await
    };
    match done.await {
        Ok(incident) => Ok(remember(see(&format!("/incidents/{}", incident.id)), &caller, &fields)),
        Err(why) => render(&api, &caller, &headers, &id, Some(why)).await,
    }
}

/// Parses the verdict of a person who resolves; `None` for an empty field.
fn verdict(text: &str) -> Result<Option<Verdict>> {
    if text.is_empty() {
        return Ok(None);
    }
    let found = Verdict::ALL.into_iter().find(|verdict| verdict.as_str() == text);
    let unknown = || ApiError::bad_request(format!("as: must be real, noise or false, got {text:?}"));
    found.map(Some).ok_or_else(unknown)
}

async fn render(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    id: &str,
    alarm: Option<ApiError>,
) -> Result<Response> {
    let record = api.find(caller, id).await?;
    let timeline = api.store.timeline(&record.id).await?;
    let deliveries = api.store.deliveries(&record.id).await?;
    let now = wall();
    let url = format!("/incidents/{}", record.id);
    let title = format!("{} {}", record.title(), record.place());
    let frame = Frame::new(api, caller, Place::Incidents, &title, &url).await?.of(headers).typed();
    let (status, frame) = match alarm {
        None => (StatusCode::OK, frame),
        Some(why) => (why.status, Frame { alarm: Some(why.message), ..frame }),
    };
    let alarm = frame.alarm.clone();
    let page = page(status, &Page::new(api, caller, frame, record, (&timeline, &deliveries), now));
    Ok(shown(page, alarm))
}

impl Page {
    fn new(
        api: &Api,
        caller: &Caller,
        frame: Frame,
        record: IncidentRecord,
        (timeline, deliveries): (&[TimelineEntry], &[Delivery]),
        now: Ts,
    ) -> Self {
        let account = Account { record: &record, timeline, deliveries, chart: None, now };
        let impact = postmortem::impact(&account);
        let said = api.last_sent(&record, deliveries);
        let last = deliveries.iter().rev().find_map(|d| d.message.as_deref());
        let over = record.state == IncidentState::Resolved;
        let web = |link: &LinkView| web_link(&link.href, HREF_MAX).is_some();
        let links = said.links.into_iter().map(|link| LinkView { text: link.text, href: link.href });
        Self {
            frame,
            description: said.description,
            measured: Measured::of(&record),
            suspects: record.suspects.iter().map(|s| SuspectView::of(s, now)).collect(),
            plan: said.plan.iter().flat_map(|p| &p.remedies).map(ToString::to_string).collect(),
            advice: said.advice,
            steps: record.has_steps().then(|| steps(&record)),
            checkpoint: last.and_then(|m| checkpoint(m, now)),
            cost: impact.cost(&record).map(|cost| Money {
                per_hour: money(cost.dollars_per_hour),
                so_far: money(cost.dollars),
                gpus: cost.gpus,
            }),
            at_risk: impact.at_risk,
            ended: record.resolved_at.map(|at| format!("{}{}", clock(at), how(&record))),
            reopens: record.reopens_at().map(|at| until(now, at)),
            acked: record.acked_at.map(|at| ago(now, at)),
            next: next(api, &record, now),
            earlier: timeline.len().saturating_sub(MAX_ENTRIES),
            timeline: timeline.iter().rev().take(MAX_ENTRIES).map(EntryView::of).collect(),
            failed: deliveries.iter().filter(|d| d.state == DeliveryState::Failed).count(),
            sent: deliveries.iter().rev().take(MAX_DELIVERIES).cloned().map(SentView::of).collect(),
            labels: record.labels.clone().into_iter().collect(),
            links: links.filter(web).collect(),
            over,
            may_silence: caller.scopes().has(Scope::Silence),
            may_answer: caller.scopes().has(Scope::Ack),
            row: Row::from_record(api, caller, record, now),
        }
    }
}

impl SuspectView {
    fn of(suspect: &stepwatch_model::Suspect, now: Ts) -> Self {
        let evidence = |e: &Evidence| EvidenceView {
            text: e.to_string(),
            since: e.since.map(|at| ago(now, at)),
            strength: e.strength.filter(|s| s.0.is_finite()).map(|s| format!("{:.1}", s.0)),
        };
        Self { what: suspect.what(), evidence: suspect.evidence.iter().map(evidence).collect() }
    }
}

impl Measured {
    /// `None` if an alert of another program or an event has no value.
    fn of(record: &IncidentRecord) -> Option<Self> {
        if record.kind.is_external() {
            return None;
        }
        let known = Signal::find(&record.signal);
        let unit = known.map_or(SignalUnit::Number, |signal| signal.unit);
        Some(Self {
            label: known.map_or_else(|| record.signal.replace('_', " "), |signal| signal.label.to_owned()),
            value: unit.text(record.value)?,
            expected: Some(record.expected).filter(|v| v.is_finite()).and_then(|v| unit.text(v)),
        })
    }
}

impl EntryView {
    fn of(entry: &TimelineEntry) -> Self {
        Self { at: clock(entry.at), actor: entry.actor.clone(), what: entry.what.clone() }
    }
}

impl SentView {
    fn of(delivery: Delivery) -> Self {
        let view = DeliveryView::from(delivery);
        Self {
            at: clock(view.created_at.0),
            receiver: view.receiver,
            users: view.users.join(", "),
            state: match view.state {
                DeliveryState::Pending => "pending",
                DeliveryState::Attempting => "attempting",
                DeliveryState::Ambiguous => "ambiguous",
                DeliveryState::Delivered => "delivered",
                DeliveryState::Failed => "failed",
                DeliveryState::Superseded => "superseded",
            },
            title: view.title.unwrap_or_else(|| view.action.as_str().to_owned()),
            why: view.reason.unwrap_or_default(),
            error: view.error.unwrap_or_default(),
            attempts: view.attempts,
        }
    }
}

fn steps(record: &IncidentRecord) -> String {
    let mut parts = vec![format!("since step {}", record.start_step)];
    if record.opened_step != record.start_step {
        parts.push(format!("first reported at step {}", record.opened_step));
    }
    parts.extend(record.end_step.map(|end| format!("over at step {end}")));
    parts.join(", ")
}

/// The checkpoint of the last message, with its present age.
fn checkpoint(message: &Message, now: Ts) -> Option<String> {
    let checkpoint = message.details.checkpoint.as_ref()?;
    let step = checkpoint.step.map(|step| format!("step {step}, ")).unwrap_or_default();
    let doubt = match checkpoint.good_step {
        Some(good) if Some(good) != checkpoint.step => format!("; go back to step {good} instead"),
        _ if checkpoint.after_onset => "; it is from after the onset: use an earlier one".to_owned(),
        _ => String::new(),
    };
    Some(format!("{step}{}{doubt}", ago(now, checkpoint.at)))
}

fn how(record: &IncidentRecord) -> String {
    record.end.as_ref().map(|end| end.words()).unwrap_or_default()
}

/// The levels that were not notified yet, while the incident is open and escalates.
fn next(api: &Api, record: &IncidentRecord, now: Ts) -> Vec<NextView> {
    let Some(at) =
        record.next_at.filter(|_| record.state == IncidentState::Open && record.suppression.is_none())
    else {
        return Vec::new();
    };
    let (routing, oncall) = (api.runtime.read_model.routing(), api.oncall());
    let mut next = Vec::new();
    for way in routing.router.ways(&routing.config, &record.labels) {
        let mut due = at;
        for (i, level) in way.levels.iter().enumerate().skip(record.level as usize) {
            if i > record.level as usize {
                due = due + level.after;
            }
            let target = |item: &String| {
                let targets = oncall.targets(item, due);
                let names = targets.into_iter().map(|t| match t.user {
                    Some(user) => format!("{user} by {}", t.receiver),
                    None => t.receiver,
                });
                let names = names.collect::<Vec<_>>().join(", ");
                if names.is_empty() { format!("nobody ({item})") } else { names }
            };
            let whom = level.notify.iter().map(target).collect::<Vec<_>>().join(", ");
            next.push((due, NextView { when: until(now, due), whom }));
        }
    }
    next.sort_by_key(|(due, _)| *due);
    next.into_iter().take(MAX_NEXT).map(|(_, view)| view).collect()
}

//! The events of runs, incidents and nodes as Server-Sent Events.

use core::convert::Infallible;
use core::time::Duration;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::Stream;
use serde::{Deserialize, Serialize};
use stepwatch_detect::node::Level;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::auth::Caller;
use super::doc::errors::Full;
use super::error::ApiError;
use super::nodes::NodeStateView;
use super::state::Api;
use super::view::{IncidentView, SignalValue, When};
use crate::events::{Change, Events, Happened, Next, What};

/// The interval of comments on an idle stream, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The longest duration of a stream. The reader reconnects, because its token may have been
/// revoked.
const LONGEST: Duration = Duration::from_hours(1);

/// The data of an event `incident`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IncidentEvent {
    pub change: ChangeWord,
    pub incident: IncidentView,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeWord {
    Opened,
    Changed,
    Resolved,
}

/// The data of an event `step`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepEvent {
    pub run: String,
    pub attempt: u32,
    pub step: i64,
    pub at: Option<When>,
    /// The last value of each signal.
    pub signals: Vec<SignalValue>,
}

/// The data of an event `node`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeEvent {
    pub node: String,
    pub state: NodeStateView,
    pub runs: Vec<String>,
}

/// What happens, as it happens.
///
/// Server-Sent Events: `incident` when one opens, changes or is resolved, `step` of each run at
/// most once a second, `node` when its state changes, with the objects `IncidentEvent`, `StepEvent`
/// and `NodeEvent` as data. A reader that comes back with `Last-Event-ID` gets what it missed. If
/// that is not kept any more it gets `reset`, and has to read everything anew. A stream ends after
/// an hour.
#[utoipa::path(
    get,
    path = "/api/v1/events",
    operation_id = "followEvents",
    tag = "state",
    params(("Last-Event-ID" = Option<String>, Header, description = "The id of the last event read")),
    responses(
        (
            status = 200,
            description = "The events",
            content(
                (IncidentEvent = "text/event-stream"),
                (StepEvent = "text/event-stream; event=step"),
                (NodeEvent = "text/event-stream; event=node")
            )
        ),
        Full
    )
)]
pub(super) async fn follow(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let events = Arc::clone(&api.runtime.events);
    let Some(place) = events.admit() else {
        return Err(ApiError::full("too many readers follow the events; try again later"));
    };
    let asked = headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default().to_owned());
    let (at, reset) = match asked {
        None => (events.last(), false),
        Some(id) => match number_of(&events, &id).filter(|number| events.can_resume(*number)) {
            Some(number) => (number, false),
            None => (events.last(), true),
        },
    };
    let changes = events.watch();
    let reader =
        EventReader { events, caller, at, reset, changes, ends: Instant::now() + LONGEST, _place: place };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(reader.into_stream()).keep_alive(keep_alive).into_response())
}

/// The event number of an id, if the id is from this process.
fn number_of(events: &Events, id: &str) -> Option<u64> {
    let (boot, number) = id.split_once('-')?;
    (boot == format!("{:x}", events.boot)).then(|| number.parse().ok())?
}

struct EventReader {
    events: Arc<Events>,
    caller: Caller,
    /// The number of the last event read.
    at: u64,
    /// Whether the reader must read everything again.
    reset: bool,
    changes: watch::Receiver<u64>,
    ends: Instant,
    _place: OwnedSemaphorePermit,
}

impl EventReader {
    fn into_stream(self) -> impl Stream<Item = Result<Event, Infallible>> {
        futures_util::stream::unfold(self, async |mut reader| {
            let event = reader.next().await?;
            Some((Ok(event), reader))
        })
    }

    /// The next event that the caller may see; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Event> {
        if core::mem::take(&mut self.reset) {
            return Some(self.id(Event::default().event("reset").data("{}")));
        }
        loop {
            match self.events.after(self.at) {
                Next::Event(happened) => {
                    self.at = happened.number;
                    if sees(&self.caller, &happened.what)
                        && let Some(event) = shown(&self.caller, &happened)
                    {
                        return Some(self.id(event));
                    }
                }
                Next::Wait => tokio::select! {
                    changed = self.changes.changed() => changed.ok()?,
                    () = tokio::time::sleep_until(self.ends) => return None,
                },
                Next::Lagged | Next::Closed => return None,
            }
        }
    }

    fn id(&self, event: Event) -> Event {
        event.id(format!("{:x}-{}", self.events.boot, self.at))
    }
}

fn sees(caller: &Caller, what: &What) -> bool {
    match what {
        What::Incident { record, .. } => caller.sees(&record.labels),
        What::Step(step) => caller.sees(&step.labels),
        What::Node(node) => {
            caller.token_scope().is_none() || node.labels.iter().any(|labels| caller.sees(labels))
        }
    }
}

/// The event in the format of the stream; `None` if it is not valid JSON, which cannot happen.
fn shown(caller: &Caller, happened: &Happened) -> Option<Event> {
    let event = Event::default();
    let event = match &happened.what {
        What::Incident { change, record } => {
            let change = match change {
                Change::Opened => ChangeWord::Opened,
                Change::Changed => ChangeWord::Changed,
                Change::Resolved => ChangeWord::Resolved,
            };
            let incident = IncidentView::from((**record).clone());
            event.event("incident").json_data(IncidentEvent { change, incident })
        }
        What::Step(news) => event.event("step").json_data(StepEvent {
            run: news.run.clone(),
            attempt: news.attempt,
            step: news.step,
            at: news.at.map(When),
            signals: news.signals.iter().cloned().map(SignalValue::from).collect(),
        }),
        What::Node(news) => {
            let state = match news.worst {
                _ if news.silent => NodeStateView::Silent,
                Some(Level::Error) => NodeStateView::Faulty,
                Some(Level::Warn) => NodeStateView::Suspect,
                _ => NodeStateView::Healthy,
            };
            let own = news.runs.iter().zip(&news.labels).filter(|(_, labels)| caller.sees(labels));
            let (node, runs) = (news.node.clone(), own.map(|(run, _)| run.clone()).collect());
            event.event("node").json_data(NodeEvent { node, state, runs })
        }
    };
    event.ok()
}

#[cfg(test)]
mod tests;

//! Actions of people on an incident by HTTP: acknowledge, take the acknowledgement back, resolve,
//! escalate, add a note.
//!
//! All actions take the same steps: look up the incident, check the action against its state, pass
//! it to the runtime with the person's name, and answer when it is durable.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use stepwatch_respond::incident::{IncidentRecord, State as IncidentState, Verdict};
use stepwatch_wire::words;
use utoipa::ToSchema;

use super::auth::Caller;
use super::doc::errors::{BadRequest, Broken, Conflict, NotFound, NotJson, TooLarge};
use super::doc::{examples, schema};
use super::error::ApiError;
use super::extract::{Named, Sent};
use super::state::Api;
use super::view::{By, IncidentView, Resolution};
use crate::runtime::{Answer, Command, IncidentAction};

/// The most characters of a note, and of a person's name.
const MAX_NOTE: usize = 1000;
const MAX_BY: usize = 100;

type Result<T> = core::result::Result<T, ApiError>;

/// A note for the incident's history, and its author.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(examples::note))]
pub struct Note {
    #[schema(value_type = schema::Person)]
    pub by: String,
    #[schema(value_type = schema::Line)]
    pub note: String,
}

/// An action on an incident, and the name of the person.
#[derive(Debug)]
pub(crate) struct Said {
    action: IncidentAction,
    by: String,
}

/// Acknowledges an incident: its escalation stops. Durable when it is answered.
#[utoipa::path(
    post,
    path = "/api/v1/incidents/{id}/ack",
    operation_id = "acknowledgeIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    request_body = By,
    responses(
        (status = 200, description = "As it is now; `acked_by` is the first person", body = IncidentView),
        BadRequest, NotFound, Conflict, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn ack(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Sent(body): Sent<By>,
) -> Result<Json<IncidentView>> {
    Ok(Json(api.answer(&caller, &id, Said::new(IncidentAction::Ack, body.by)?).await?))
}

/// Takes an acknowledgement back: the escalation begins again. Durable when it is answered; an
/// incident that nobody acknowledged stays as it is.
#[utoipa::path(
    post,
    path = "/api/v1/incidents/{id}/unack",
    operation_id = "unacknowledgeIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    request_body = By,
    responses(
        (status = 200, description = "As it is now", body = IncidentView),
        BadRequest, NotFound, Conflict, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn unack(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Sent(body): Sent<By>,
) -> Result<Json<IncidentView>> {
    Ok(Json(api.answer(&caller, &id, Said::new(IncidentAction::Unack, body.by)?).await?))
}

/// Closes an incident by hand. Durable when it is answered.
///
/// One that still fires opens again at `reopens_at`, unless it is over by then: only a silence
/// suppresses it for longer.
#[utoipa::path(
    post,
    path = "/api/v1/incidents/{id}/resolve",
    operation_id = "resolveIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    request_body = Resolution,
    responses(
        (status = 200, description = "As it is now; 409 where it ended before it was said what it was", body = IncidentView),
        BadRequest, NotFound, Conflict, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn resolve(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Sent(Resolution { by, verdict }): Sent<Resolution>,
) -> Result<Json<IncidentView>> {
    Ok(Json(api.answer(&caller, &id, Said::resolution(verdict, by)?).await?))
}

/// Notifies the next level of an incident's policy now. Durable when it is answered.
#[utoipa::path(
    post,
    path = "/api/v1/incidents/{id}/escalate",
    operation_id = "escalateIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    request_body = By,
    responses(
        (status = 200, description = "As it is now; `level` is the one that is notified", body = IncidentView),
        BadRequest, NotFound, Conflict, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn escalate(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Sent(body): Sent<By>,
) -> Result<Json<IncidentView>> {
    Ok(Json(api.answer(&caller, &id, Said::new(IncidentAction::Escalate, body.by)?).await?))
}

/// Adds a note to an incident's history, also after its end, when the post-mortem is written.
/// Durable when it is answered.
#[utoipa::path(
    post,
    path = "/api/v1/incidents/{id}/notes",
    operation_id = "noteIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    request_body = Note,
    responses(
        (status = 200, description = "The incident", body = IncidentView),
        BadRequest, NotFound, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn note(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Sent(Note { by, note }): Sent<Note>,
) -> Result<Json<IncidentView>> {
    Ok(Json(api.answer(&caller, &id, Said::note(&note, by)?).await?))
}

/// The name of the person.
fn signature(by: String) -> Result<String> {
    let control = by.chars().any(char::is_control);
    let by = words::into_line(by);
    if by.trim().is_empty() || by.chars().count() > MAX_BY || control {
        return Err(ApiError::bad_request(format!("by: must be a name of 1 to {MAX_BY} characters")));
    }
    Ok(by.trim().to_owned())
}

impl Said {
    /// # Errors
    /// The name of the person is missing or too long.
    pub(crate) fn new(action: IncidentAction, by: String) -> Result<Self> {
        Ok(Self { action, by: signature(by)? })
    }

    /// # Errors
    /// The name of the person is missing or too long.
    pub(crate) fn resolution(verdict: Option<Verdict>, by: String) -> Result<Self> {
        Self::new(verdict.map_or(IncidentAction::Resolve, IncidentAction::ResolveAs), by)
    }

    /// # Errors
    /// The note is not one line of text, or the name of the person is missing or too long.
    pub(crate) fn note(note: &str, by: String) -> Result<Self> {
        let by = signature(by)?;
        let control = note.chars().any(char::is_control);
        let note = words::line(note);
        let note = note.trim();
        if note.is_empty() || note.chars().count() > MAX_NOTE || control {
            return Err(ApiError::bad_request(format!("note: must be a line of 1 to {MAX_NOTE} characters")));
        }
        Ok(Self { action: IncidentAction::Note(note.to_owned()), by })
    }

    /// Whether the action is unnecessary or impossible in the incident's state.
    fn settled(&self, record: &IncidentRecord) -> Option<Result<()>> {
        let done = match self.action {
            IncidentAction::Unack => record.state == IncidentState::Open,
            IncidentAction::Resolve => record.state == IncidentState::Resolved,
            IncidentAction::ResolveAs(verdict) => {
                record.end.as_ref().is_some_and(|end| end.verdict == Some(verdict))
            }
            IncidentAction::Ack
            | IncidentAction::Escalate
            | IncidentAction::Reopen
            | IncidentAction::Note(_) => false,
        };
        if done {
            return Some(Ok(()));
        }
        if record.state != IncidentState::Resolved {
            return None;
        }
        let when = record.resolved_at.map(|at| format!(" at {at}")).unwrap_or_default();
        let id = &record.id;
        let left = match (&self.action, record.reopens_at()) {
            (IncidentAction::ResolveAs(_), Some(at)) => {
                format!("what it was can be said when it comes back, at {at}, and a note at any time")
            }
            (IncidentAction::ResolveAs(_), None) => {
                "what it was can be said until then, and a note at any time".to_owned()
            }
            (_, Some(at)) => format!("it still fires, and comes back at {at} unless it is over by then"),
            (_, None) => "nothing is left to be done about it".to_owned(),
        };
        let message = format!("incident {id} was resolved{when}: {left}");
        Some(Err(ApiError::conflict(message)))
    }
}

impl Api {
    /// Applies a person's action to an incident, and returns the incident when that is durable.
    pub(crate) async fn answer(&self, caller: &Caller, id: &str, said: Said) -> Result<IncidentView> {
        let incident = self.answered(caller, id, &said).await?;
        Ok(IncidentView { signed: Some(caller.signs(&said.by)), ..incident })
    }

    async fn answered(&self, caller: &Caller, id: &str, said: &Said) -> Result<IncidentView> {
        let record = match self.find(caller, id).await {
            Err(err) if err.status == StatusCode::NOT_FOUND => {
                return self.answer_unrecorded(caller, id, said).await?.ok_or(err);
            }
            found => found?,
        };
        let incident = record.id.clone();
        if matches!(said.action, IncidentAction::Note(_)) {
            hand_over(self, caller, &incident, said).await?;
            return Ok(record.into());
        }
        if let Some(settled) = said.settled(&record) {
            return settled.map(|()| record.into());
        }
        if let Some(record) = hand_over(self, caller, &incident, said).await? {
            return Ok((*record).into());
        }
        // The incident resolved between the lookup and the action.
        let record = self.find(caller, &incident).await?;
        let lost = || Err(ApiError::unavailable("what is known of the incident is being stored: ask again"));
        said.settled(&record).unwrap_or_else(lost).map(|()| record.into())
    }
}

impl Api {
    /// Applies an action to an incident whose page was sent from memory, because the store refuses
    /// writes. A limited token is refused if the store cannot confirm the incident's labels.
    async fn answer_unrecorded(
        &self,
        caller: &Caller,
        id: &str,
        said: &Said,
    ) -> Result<Option<IncidentView>> {
        let is_note = matches!(said.action, IncidentAction::Note(_));
        if is_note || caller.token_scope().is_some() || self.store.refusal_in_public().is_none() {
            return Ok(None);
        }
        Ok(hand_over(self, caller, id, said).await?.map(|record| (*record).into()))
    }
}

/// Passes the action to the runtime; returns when it is durable.
async fn hand_over(api: &Api, caller: &Caller, incident: &str, said: &Said) -> Result<Answer> {
    let (incident, action, word) = (incident.to_owned(), said.action.clone(), said.action.as_str());
    let (by, entry) = (caller.signs(&said.by), caller.audit(&said.by, word, &incident));
    tracing::info!(incident, by, word, "a person's word");
    Ok(api.runtime.ask(entry, |reply| Command::Act { incident, by, action, reply }).await?)
}

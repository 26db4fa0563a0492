//! What else people say of an incident, by HTTP: escalate it, give it back, note something.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use stepwatch_engine::incident::State as IncidentState;
use tokio::sync::oneshot;
use utoipa::ToSchema;

use super::Api;
use super::auth::Caller;
use super::doc::errors::{BadRequest, Broken, Conflict, NotFound, NotJson, TooLarge};
use super::doc::{examples, schema};
use super::error::ApiError;
use super::extract::{Named, Sent};
use super::incidents::{name, resolved};
use super::view::{By, IncidentView};
use crate::runtime::{Answer, Command};

/// Characters of a note.
const MAX_NOTE: usize = 1000;

type Result<T> = core::result::Result<T, ApiError>;

/// Something to be remembered with an incident, and by whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(examples::note))]
pub struct Note {
    #[schema(value_type = schema::Person)]
    pub by: String,
    #[schema(value_type = schema::Line)]
    pub note: String,
}

/// Tells the next level of an incident's policy now. Durable when it is answered.
#[utoipa::path(
    post,
    path = "/api/v1/incidents/{id}/escalate",
    operation_id = "escalateIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    request_body = By,
    responses(
        (status = 200, description = "As it is now; `level` is the one that is told", body = IncidentView),
        BadRequest, NotFound, Conflict, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn escalate(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Sent(body): Sent<By>,
) -> Result<Json<IncidentView>> {
    let said = name(body)?;
    let escalate = |incident, by, reply| Command::Escalate { incident, by, reply };
    answer(&api, &caller, &id, ("escalate", &said), escalate).await
}

/// Gives an incident back: its escalation begins again. Durable when it is answered; one that nobody took stays so.
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
    let said = name(body)?;
    let record = api.find(&caller, &id).await?;
    if record.state == IncidentState::Open {
        return Ok(Json(record.into()));
    }
    let unack = |incident, by, reply| Command::Unack { incident, by, reply };
    answer(&api, &caller, &record.id, ("unack", &said), unack).await
}

/// Notes something in an incident's history. Durable when it is answered.
#[utoipa::path(
    post,
    path = "/api/v1/incidents/{id}/notes",
    operation_id = "noteIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    request_body = Note,
    responses(
        (status = 200, description = "The incident", body = IncidentView),
        BadRequest, NotFound, Conflict, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn note(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Sent(Note { by, note }): Sent<Note>,
) -> Result<Json<IncidentView>> {
    let said = name(By { by })?;
    if note.trim().is_empty() || note.chars().count() > MAX_NOTE || note.chars().any(char::is_control) {
        return Err(ApiError::bad_request(format!("note: must be a line of 1 to {MAX_NOTE} characters")));
    }
    let what = note.trim().to_owned();
    let keep = |incident, by, reply| Command::Note { incident, by, what, reply };
    answer(&api, &caller, &id, ("note", &said), keep).await
}

/// Has the engine do what somebody wants of an incident that is not closed: the word, and who says it.
async fn answer(
    api: &Api,
    caller: &Caller,
    id: &str,
    (word, said): (&str, &str),
    command: impl FnOnce(String, String, oneshot::Sender<Answer>) -> Command,
) -> Result<Json<IncidentView>> {
    let record = api.find(caller, id).await?;
    if record.state == IncidentState::Resolved {
        return Err(resolved(&record));
    }
    let incident = record.id;
    let (by, entry) = (caller.signs(said), caller.audit(said, word, &incident));
    tracing::info!(incident, by, word, "a person's word");
    match api.ask(entry, |reply| command(incident.clone(), by, reply)).await? {
        Some(record) => Ok(Json((*record).into())),
        // It resolved between the look and the word.
        None => Err(resolved(&api.find(caller, &incident).await?)),
    }
}

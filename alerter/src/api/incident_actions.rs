//! What people say of an incident, by HTTP: they take it, give it back, close it, escalate it, note
//! something.
//!
//! All words go one way: found, judged by how the incident stands, handed to the runtime together
//! with who said it, and answered when they are durable.

use core::time::Duration;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use stepwatch_engine::incident::{IncidentRecord, State as IncidentState};
use stepwatch_wire::words;
use tokio::sync::oneshot;
use utoipa::ToSchema;

use super::Api;
use super::auth::Caller;
use super::doc::errors::{BadRequest, Broken, Conflict, NotFound, NotJson, TooLarge};
use super::doc::{examples, schema};
use super::error::ApiError;
use super::extract::{Named, Sent};
use super::view::{By, IncidentView};
use crate::audit::Entry;
use crate::runtime::{Answer, Command};

/// Characters of a note, and of the name of whoever says something.
const MAX_NOTE: usize = 1000;
const MAX_BY: usize = 100;
/// How long a word may take to become durable before the caller is told to ask again.
const DURABLE_WITHIN: Duration = Duration::from_secs(10);

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

/// A word about an incident, and who says it.
struct Said {
    word: &'static str,
    by: String,
    /// How the incident stands where nothing is left to be done.
    done: Option<IncidentState>,
}

/// Takes an incident: its escalation stops. Durable when it is answered.
#[utoipa::path(
    post,
    path = "/api/v1/incidents/{id}/ack",
    operation_id = "acknowledgeIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    request_body = By,
    responses(
        (status = 200, description = "As it is now; `acked_by` names whoever was first", body = IncidentView),
        BadRequest, NotFound, Conflict, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn ack(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Sent(body): Sent<By>,
) -> Result<Json<IncidentView>> {
    let ack = |incident, by, reply| Command::Ack { incident, by, reply };
    answer(&api, &caller, &id, Said::new("ack", body)?, ack).await
}

/// Gives an incident back: its escalation begins again. Durable when it is answered; one that
/// nobody took stays so.
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
    let unack = |incident, by, reply| Command::Unack { incident, by, reply };
    let said = Said::new("unack", body)?.unless(IncidentState::Open);
    answer(&api, &caller, &id, said, unack).await
}

/// Closes an incident by hand. Durable when it is answered.
///
/// One that still fires comes back at `reopens_at`, unless it is over by then: a silence keeps it
/// quiet.
#[utoipa::path(
    post,
    path = "/api/v1/incidents/{id}/resolve",
    operation_id = "resolveIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    request_body = By,
    responses(
        (status = 200, description = "As it is now", body = IncidentView),
        BadRequest, NotFound, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn resolve(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Sent(body): Sent<By>,
) -> Result<Json<IncidentView>> {
    let resolve = |incident, by, reply| Command::Resolve { incident, by, reply };
    let said = Said::new("resolve", body)?.unless(IncidentState::Resolved);
    answer(&api, &caller, &id, said, resolve).await
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
    let escalate = |incident, by, reply| Command::Escalate { incident, by, reply };
    answer(&api, &caller, &id, Said::new("escalate", body)?, escalate).await
}

/// Notes something in an incident's history, also after its end, when the account of it is written.
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
    let said = Said::new("note", By { by })?;
    let control = note.chars().any(char::is_control);
    let note = words::into_line(note);
    if note.trim().is_empty() || note.chars().count() > MAX_NOTE || control {
        return Err(ApiError::bad_request(format!("note: must be a line of 1 to {MAX_NOTE} characters")));
    }
    let what = note.trim().to_owned();
    let record = api.find(&caller, &id).await?;
    let (by, entry) = (caller.signs(&said.by), caller.audit(&said.by, said.word, &record.id));
    tracing::info!(incident = record.id, by, word = said.word, "a person's word");
    let incident = Box::new(record.clone());
    api.ask(entry, |reply| Command::Note { incident, by, what, reply }).await?;
    Ok(Json(record.into()))
}

impl Said {
    fn new(word: &'static str, By { by }: By) -> Result<Self> {
        let control = by.chars().any(char::is_control);
        let by = words::into_line(by);
        if by.trim().is_empty() || by.chars().count() > MAX_BY || control {
            return Err(ApiError::bad_request(format!("by: must be a name of 1 to {MAX_BY} characters")));
        }
        Ok(Self { word, by: by.trim().to_owned(), done: None })
    }

    fn unless(self, done: IncidentState) -> Self {
        Self { done: Some(done), ..self }
    }

    /// Whether it need not be done, or cannot be, of an incident that stands so.
    fn settled(&self, record: &IncidentRecord) -> Option<Result<()>> {
        if Some(record.state) == self.done {
            return Some(Ok(()));
        }
        if record.state != IncidentState::Resolved {
            return None;
        }
        let when = record.resolved_at.map(|at| format!(" at {at}")).unwrap_or_default();
        let id = &record.id;
        let left = record.reopens_at().map_or_else(
            || "nothing is left to be done about it".to_owned(),
            |at| format!("it still fires, and comes back at {at} unless it is over by then"),
        );
        let message = format!("incident {id} was resolved{when}: {left}");
        Some(Err(ApiError::conflict(message)))
    }
}

async fn answer(
    api: &Api,
    caller: &Caller,
    id: &str,
    said: Said,
    command: impl FnOnce(String, String, oneshot::Sender<Answer>) -> Command,
) -> Result<Json<IncidentView>> {
    let record = api.find(caller, id).await?;
    if let Some(settled) = said.settled(&record) {
        return settled.map(|()| Json(record.into()));
    }
    let incident = record.id;
    let (by, entry) = (caller.signs(&said.by), caller.audit(&said.by, said.word, &incident));
    tracing::info!(incident, by, word = said.word, "a person's word");
    if let Some(record) = api.ask(entry, |reply| command(incident.clone(), by, reply)).await? {
        return Ok(Json((*record).into()));
    }
    // It resolved between the look and the word.
    let record = api.find(caller, &incident).await?;
    let lost = || Err(ApiError::unavailable("what is known of the incident is being stored: ask again"));
    said.settled(&record).unwrap_or_else(lost).map(|()| Json(record.into()))
}

impl Api {
    /// Hands a person's word to the runtime and waits until it is durable, together with who said
    /// it.
    async fn ask(
        &self,
        entry: Entry,
        command: impl FnOnce(oneshot::Sender<Answer>) -> Command,
    ) -> Result<Answer> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Audited { entry: Box::new(entry), command: Box::new(command(reply)) };
        let stopping = || ApiError::unavailable("the alerter is stopping; ask again when it is back");
        let asked = async {
            self.runtime.commands.send(command).await.map_err(|_| stopping())?;
            answer.await.map_err(|_| stopping())
        };
        tokio::time::timeout(DURABLE_WITHIN, asked).await.unwrap_or_else(|_| {
            Err(ApiError::unavailable("taken, but not yet durable: the store is slow or refuses; look again"))
        })
    }
}

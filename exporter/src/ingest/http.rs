//! `POST /v1/events`: one event as JSON, or many as lines of it.
//!
//! Good lines of a bad body are kept; the answer names the line, the field and the reason of each
//! bad one, so that a person with curl can correct it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::{CONTENT_ENCODING, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use serde_json::json;
use stepwatch_kit::serve::Ends;
use stepwatch_wire::{Event, EventError, Value};

use super::event_rate::EventRate;
use super::launcher::Intake;
use crate::drops::Reason;
use crate::identity::peer;
use crate::origin::{Origin, Outcome};
use crate::reply;
use crate::roots::Roots;

/// Some four thousand steps.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Bad lines that an answer names.
const MAX_ERRORS: usize = 16;
/// What a user may have sent too much of before a body is refused.
const MAX_WAIT: Duration = Duration::from_secs(1);
const RETRY_AFTER_SECONDS: &str = "1";
/// Lines taken in before others get their turn.
const BURST: usize = 256;

#[derive(Debug, Clone)]
struct Door {
    intake: Intake,
    roots: Arc<Roots>,
}

pub(super) fn routes(intake: Intake, roots: Roots) -> Router {
    Router::new()
        .route("/v1/events", post(events))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Door { intake, roots: Arc::new(roots) })
}

#[derive(Debug, Default)]
struct Tally {
    accepted: u64,
    dropped: u64,
    rejected: u64,
    errors: Vec<(usize, EventError)>,
}

async fn events(
    State(Door { intake, roots }): State<Door>,
    ends: Option<Extension<Ends>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(error) => {
            intake.hub.drops().count(Reason::Body);
            let text = format!("{}; a body has at most {MAX_BODY_BYTES} bytes", error.body_text());
            return reply::error(error.status(), &text);
        }
    };
    if headers.get(CONTENT_ENCODING).is_some_and(|e| e != "identity") {
        return reply::error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send the body without a content-encoding");
    }
    let text = body.trim_ascii();
    if text.is_empty() {
        return StatusCode::NO_CONTENT.into_response();
    }
    let origin = Origin::Http(peer::voice_of(&roots, ends.map(|Extension(ends)| ends)).await);
    let principal = origin.principal();
    let rate = intake.rates.of(principal, Instant::now());
    if rate.wait(Instant::now()) > MAX_WAIT {
        intake.hub.drops().refuse(Reason::Rate, principal, 1);
        let text = "this user sends more events than are read; send the body again later";
        let answer = reply::error(StatusCode::TOO_MANY_REQUESTS, text);
        return ([(RETRY_AFTER, RETRY_AFTER_SECONDS)], answer).into_response();
    }
    let mut tally = Tally::default();
    // One value over several lines is one event, written for people.
    if !text.contains(&b'\n') || Value::parse(text).is_ok() {
        tally.take(&intake, &rate, &origin, (1, text));
    } else {
        for (i, line) in body.split(|b| *b == b'\n').enumerate() {
            let line = line.trim_ascii();
            if !line.is_empty() {
                tally.take(&intake, &rate, &origin, (i + 1, line));
            }
            if i % BURST == BURST - 1 {
                tokio::task::yield_now().await;
            }
        }
    }
    tally.answer()
}

impl Tally {
    fn take(&mut self, intake: &Intake, rate: &EventRate, origin: &Origin, (line, text): (usize, &[u8])) {
        let (outcome, _) = rate.measure(|| Event::parse(text).map(|event| intake.publish(origin, event)));
        match outcome {
            Ok(Outcome::Accepted) => self.accepted += 1,
            Ok(Outcome::Dropped(_)) => self.dropped += 1,
            Ok(Outcome::Rejected(error)) => self.reject(line, error),
            Err(error) => {
                intake.hub.drops().count(Reason::Malformed);
                self.reject(line, error);
            }
        }
    }

    fn reject(&mut self, line: usize, error: EventError) {
        self.rejected += 1;
        if self.errors.len() < MAX_ERRORS {
            self.errors.push((line, error));
        }
    }

    fn answer(&self) -> Response {
        let Some((line, first)) = self.errors.first() else {
            let body = json!({ "accepted": self.accepted, "dropped": self.dropped });
            return reply::json(StatusCode::ACCEPTED, &body);
        };
        let errors: Vec<_> = self
            .errors
            .iter()
            .map(|(line, e)| json!({ "line": line, "field": e.field, "reason": e.reason }))
            .collect();
        let body = json!({
            "error": format!("line {line}: {first}"),
            "accepted": self.accepted,
            "dropped": self.dropped,
            "rejected": self.rejected,
            "errors": errors,
        });
        reply::json(StatusCode::BAD_REQUEST, &body)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;
    use crate::principal::Principal;
    use crate::testing;

    #[tokio::test]
    async fn a_body_of_a_user_that_is_too_fast_is_refused_until_later() {
        let hub = testing::hub();
        let intake = Intake::new(hub.clone());
        let rate = intake.rates.of(Principal::Unknown, Instant::now());
        let post = async || {
            let request = Request::post("/v1/events").body(Body::from(r#"{"k":"hb","run":"r"}"#)).unwrap();
            routes(intake.clone(), Roots::default()).oneshot(request).await.unwrap()
        };
        assert_eq!(post().await.status(), StatusCode::ACCEPTED);
        rate.count(Instant::now(), Duration::from_hours(1));
        let refused = post().await;
        assert_eq!(
            (refused.status(), refused.headers()[RETRY_AFTER].as_bytes()),
            (StatusCode::TOO_MANY_REQUESTS, &b"1"[..])
        );
        assert_eq!(hub.drops().get(Reason::Rate), 1);
    }
}

//! `POST /v1/events`: one event as JSON, or one on each line.
//!
//! Good lines of a bad body are kept. The answer names the line, the field and the reason of each
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
use stepwatch_wire::{Event, EventError, MAX_EVENT_BYTES, Value};

use super::event_rate::EventRate;
use super::launcher::Intake;
use crate::drops::Reason;
use crate::identity::peer;
use crate::origin::{Origin, Outcome};
use crate::principal::Principal;
use crate::reply;
use crate::roots::Roots;

/// Enough for about four thousand steps.
const MAX_BODY_BYTES: usize = 1 << 20;
/// The most bad lines that an answer names.
const MAX_ERRORS: usize = 16;
/// More than the steps that fit into a body. Each line waits for its turn while the body is held.
const MAX_LINES: usize = 10_000;
/// A body whose lines are not all read by then is cut off, because its user sends too fast.
const READ_WITHIN: Duration = Duration::from_millis(1500);
const RETRY_AFTER_SECONDS: &str = "1";
/// Lines read before other tasks may run.
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
    /// The number of the first line that was not read, and how many were not.
    unread: Option<(usize, u64)>,
}

/// The lines of a body that were not read yet. If this exporter or the sender breaks the body off,
/// dropping this counts them as refused.
struct Unread<'a> {
    intake: &'a Intake,
    principal: Principal,
    lines: u64,
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        self.intake.hub.drops().refuse(Reason::Rate, self.principal, self.lines);
    }
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
    let Some(_place) = rate.request() else {
        intake.hub.drops().refuse(Reason::Rate, principal, 1);
        let text = "bodies of this user are still read; send this one again later";
        let answer = reply::error(StatusCode::TOO_MANY_REQUESTS, text);
        return ([(RETRY_AFTER, RETRY_AFTER_SECONDS)], answer).into_response();
    };
    if text.split(|byte| *byte == b'\n').nth(MAX_LINES).is_some() {
        intake.hub.drops().count(Reason::Body);
        let error = format!("a body has at most {MAX_LINES} lines");
        return reply::error(StatusCode::PAYLOAD_TOO_LARGE, &error);
    }
    let mut tally = Tally::default();
    // One value over several lines is one event, formatted for people.
    let is_one = || text.len() <= MAX_EVENT_BYTES && rate.measure(|| Value::parse(text).is_ok());
    if !text.contains(&b'\n') || is_one() {
        let mut unread = Unread { intake: &intake, principal, lines: 1 };
        let _turn = rate.turn().await;
        tally.take(&intake, &rate, &origin, (1, text));
        unread.lines = 0;
    } else {
        let deadline = tokio::time::Instant::now() + READ_WITHIN;
        let lines = || body.split(|b| *b == b'\n').map(<[u8]>::trim_ascii).enumerate();
        let lines = || lines().filter(|(_, line)| !line.is_empty());
        let mut unread = Unread { intake: &intake, principal, lines: lines().count() as u64 };
        for (n, (i, line)) in lines().enumerate() {
            // Each line takes a turn, as each packet of a connection does.
            let Ok(_turn) = tokio::time::timeout_at(deadline, rate.turn()).await else {
                tally.unread = Some((i + 1, unread.lines));
                break;
            };
            tally.take(&intake, &rate, &origin, (i + 1, line));
            unread.lines -= 1;
            if n % BURST == BURST - 1 {
                tokio::task::yield_now().await;
            }
        }
    }
    tally.answer()
}

impl Tally {
    fn take(&mut self, intake: &Intake, rate: &EventRate, origin: &Origin, (line, text): (usize, &[u8])) {
        let outcome = rate.measure(|| Event::parse(text).map(|event| intake.publish(origin, event)));
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
        let mut body = json!({ "accepted": self.accepted, "dropped": self.dropped });
        if let Some((line, first)) = self.errors.first() {
            let one = |(line, e): &(usize, EventError)| json!({ "line": line, "field": e.field, "reason": e.reason });
            body["error"] = format!("line {line}: {first}").into();
            body["rejected"] = self.rejected.into();
            body["errors"] = self.errors.iter().map(one).collect();
        }
        if let Some((line, unread)) = self.unread {
            let error = "events of this user come too fast";
            body["error"] = format!("{error}: send the {unread} lines from line {line} on again").into();
            body["unread_from_line"] = line.into();
            let answer = reply::json(StatusCode::TOO_MANY_REQUESTS, &body);
            return ([(RETRY_AFTER, RETRY_AFTER_SECONDS)], answer).into_response();
        }
        let is_good = self.errors.is_empty();
        reply::json(if is_good { StatusCode::ACCEPTED } else { StatusCode::BAD_REQUEST }, &body)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use futures_util::FutureExt as _;
    use tower::ServiceExt as _;

    use super::*;
    use crate::testing;

    #[tokio::test]
    async fn a_user_has_a_few_bodies_read_at_a_time() {
        let hub = testing::hub();
        let intake = Intake::new(hub.clone());
        let rate = intake.rates.of(Principal::Unknown, Instant::now());
        let post = async |body: String| {
            let request = Request::post("/v1/events").body(Body::from(body)).unwrap();
            routes(intake.clone(), Roots::default()).oneshot(request).await.unwrap()
        };
        let event = || r#"{"k":"hb","run":"r"}"#.to_owned();
        let turn = rate.turn().await;
        let mut waiting: Vec<_> = (0..8).map(|_| Box::pin(post(event()))).collect();
        assert!(waiting.iter_mut().all(|one| one.as_mut().now_or_never().is_none()), "for their turn");
        let refused = post(event()).await;
        let wait = refused.headers()[RETRY_AFTER].as_bytes();
        assert_eq!((refused.status(), wait), (StatusCode::TOO_MANY_REQUESTS, &b"1"[..]));
        assert_eq!(hub.drops().get(Reason::Rate), 1);
        drop(turn);
        for one in waiting {
            assert_eq!(one.await.status(), StatusCode::ACCEPTED);
        }
        let many = post("x\n".repeat(20_000)).await;
        assert_eq!(many.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    /// The rate uses the real clock, which hardly advances here. The waits of lines use the test's
    /// clock.
    #[tokio::test(start_paused = true)]
    async fn lines_that_do_not_get_their_turns_are_counted_and_sent_again() {
        let hub = testing::hub();
        let intake = Intake::new(hub.clone());
        let rate = intake.rates.of(Principal::Unknown, Instant::now());
        let lines: Vec<_> =
            (1..=5).map(|step| format!(r#"{{"k":"step","run":"r","step":{step}}}"#)).collect();
        let post = async || {
            let request = Request::post("/v1/events").body(Body::from(lines.join("\n\n"))).unwrap();
            routes(intake.clone(), Roots::default()).oneshot(request).await.unwrap()
        };
        // Each turn is 0.7 seconds away.
        rate.count(Instant::now(), Duration::from_millis(400));
        let answer = post().await;
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        let body = axum::body::to_bytes(answer.into_body(), 4096).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&body["accepted"], &body["unread_from_line"]), (&json!(2), &json!(5)), "{body}");
        assert_eq!(hub.drops().get(Reason::Rate), 3);
        // A client that disconnects has the rest counted as well.
        let mut given_up = Box::pin(post());
        assert!(given_up.as_mut().now_or_never().is_none());
        drop(given_up);
        assert_eq!(hub.drops().get(Reason::Rate), 8);
    }
}

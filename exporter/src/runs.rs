//! `GET /v1/runs`: every followed run, with the sources that report it and why they belong to this
//! run.
//!
//! All responses share one body, so that many readers that do not read hold only one.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde::Serialize;

use crate::hub::Hub;
use crate::identity::RunRow;
use crate::lock::Locked as _;

/// The path under which a running exporter serves its runs.
pub const RUNS: &str = "/v1/runs";

/// How often the body is rendered.
const MADE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
struct Runs {
    hub: Hub,
    body: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

#[derive(Serialize)]
struct Body<'a> {
    node: &'a str,
    runs: Vec<RunRow>,
}

pub fn routes(hub: Hub) -> Router {
    Router::new().route(RUNS, get(runs)).with_state(Runs { hub, body: Arc::default() })
}

async fn runs(State(runs): State<Runs>) -> Response {
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (kind, runs.body(Instant::now())).into_response()
}

impl Runs {
    /// The body of the last second, or a new one; an unchanged one is kept.
    fn body(&self, now: Instant) -> Bytes {
        let mut kept = self.body.locked();
        if let Some((at, body)) = &*kept
            && now.saturating_duration_since(*at) < MADE_EVERY
        {
            return body.clone();
        }
        let mut text = Vec::new();
        // Text and numbers can always be serialised.
        let _ = serde_json::to_writer(&mut text, &Body { node: self.hub.node(), runs: self.hub.runs() });
        text.push(b'\n');
        let same = kept.take().map(|(_, body)| body).filter(|body| *body == text);
        let body = same.unwrap_or_else(|| text.into_boxed_slice().into());
        *kept = Some((now, body.clone()));
        body
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_wire::Event;

    use super::*;
    use crate::origin::Origin;
    use crate::principal::Principal;
    use crate::testing;

    #[test]
    fn readers_share_one_body() {
        let runs = Runs { hub: testing::hub(), body: Arc::default() };
        let hello = format!(r#"{{"k":"hello","run":"r","run_why":"{}"}}"#, "w".repeat(7_000));
        runs.hub.publish(Origin::Http(Principal::User(1)), Event::parse(hello.as_bytes()).unwrap());
        let now = Instant::now();
        let first = runs.body(now);
        assert!(first.starts_with(b"{\"node\":\"n1\",\"runs\":[{\"run\":\"r\"") && first.len() < 600);
        let step = |n| runs.hub.publish(Origin::Http(Principal::User(1)), Event::step("r", n));
        assert_eq!(runs.body(now + MADE_EVERY).as_ptr(), first.as_ptr(), "nothing has changed");
        step(1);
        assert_eq!(runs.body(now + MADE_EVERY).as_ptr(), first.as_ptr());
        let next = runs.body(now + 2 * MADE_EVERY);
        assert!(next != first && next.windows(8).any(|w| w == b"\"step\":1"));
    }
}

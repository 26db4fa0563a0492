//! `POST /-/nvml/release` and `POST /-/nvml/acquire`: closes the driver so that a GPU can be reset
//! or partitioned, which the driver refuses while any process holds it open.

use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Deserialize;
use stepwatch_kit::config::Period;

use super::{MAX_RELEASE, Nvml, RELEASE};
use crate::reply;

/// How long the answer waits for a running call.
const WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    /// How long NVML stays released, such as `5m`.
    r#for: Option<String>,
}

pub fn routes(nvml: Nvml) -> Router {
    Router::new()
        .route("/-/nvml/release", post(release))
        .route("/-/nvml/acquire", post(acquire))
        .with_state(nvml)
}

async fn release(State(nvml): State<Nvml>, Query(query): Query<Release>) -> Response {
    let period = match query.r#for.as_deref().map(str::parse::<Period>) {
        None => RELEASE,
        Some(Ok(period)) if period.as_duration() <= MAX_RELEASE => period.as_duration(),
        Some(Ok(_)) => {
            let text = format!("for: at most {}", shown(MAX_RELEASE));
            return reply::error(StatusCode::BAD_REQUEST, &text);
        }
        Some(Err(why)) => return reply::error(StatusCode::BAD_REQUEST, &format!("for: {why}")),
    };
    let waiting = nvml.clone();
    let released = tokio::task::spawn_blocking(move || waiting.release(period, WAIT)).await;
    let back = shown(period);
    tracing::warn!(r#for = back, by = "POST /-/nvml/release", "NVML released");
    if released.unwrap_or(false) {
        return format!("released; taken back in {back}, or by POST /-/nvml/acquire\n").into_response();
    }
    let call = nvml.call().map_or_else(|| "a call".to_owned(), |call| call.to_string());
    let text = format!("still in {call}; NVML is released when that returns, and taken back in {back}");
    reply::error(StatusCode::GATEWAY_TIMEOUT, &text)
}

async fn acquire(State(nvml): State<Nvml>) -> &'static str {
    if nvml.acquire() {
        tracing::info!(by = "POST /-/nvml/acquire", "NVML taken back");
        "taken back\n"
    } else {
        "it was not released\n"
    }
}

fn shown(period: Duration) -> String {
    Period::millis(period.as_millis() as u64).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    async fn call(nvml: &Nvml, method: &str, path: &str) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let response = routes(nvml.clone()).oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn released_for_as_long_as_asked_and_taken_back() {
        let nvml = Nvml::default();
        let (status, text) = call(&nvml, "POST", "/-/nvml/release?for=5m").await;
        assert_eq!(
            (status, text.as_str()),
            (StatusCode::OK, "released; taken back in 5m, or by POST /-/nvml/acquire\n")
        );
        let left = nvml.released().unwrap().until - crate::clock::unix_now();
        assert!((0.0..=300.0).contains(&left), "{left}");
        assert_eq!(call(&nvml, "POST", "/-/nvml/acquire").await.1, "taken back\n");
        assert_eq!(call(&nvml, "POST", "/-/nvml/acquire").await.1, "it was not released\n");
        assert!(call(&nvml, "POST", "/-/nvml/release").await.1.contains("taken back in 15m"));
    }

    #[tokio::test]
    async fn what_nobody_can_have_meant() {
        let nvml = Nvml::default();
        for (path, part) in [
            ("/-/nvml/release?for=5", "as in 30s or 5m"),
            ("/-/nvml/release?for=2d", "at most 4h"),
            ("/-/nvml/release?fro=5m", "fro"),
        ] {
            let (status, text) = call(&nvml, "POST", path).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(call(&nvml, "GET", "/-/nvml/release").await.0, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(nvml.released(), None);
    }
}

//! The chart of an incident, as SVG and PNG.
//!
//! A browser may open an SVG as a document, so it is served under a policy that forbids loading,
//! scripts and framing.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::auth::Caller;
use super::doc::errors::{BadRequest, Broken, NotFound};
use super::error::ApiError;
use super::extract::{Asked, Named};
use super::state::Api;
use crate::chart::{Look, Size, Theme};
use crate::notify::hex;
use crate::pictures::RenderError;

const SVG: &str = "image/svg+xml";
const PNG: &str = "image/png";
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox";
/// Browsers revalidate each time, because the incident may have changed and the token may have been
/// revoked.
const CACHE_CONTROL: &str = "private, no-cache";
/// The length of an entity tag in bytes.
const TAG_BYTES: usize = 16;

type Result<T> = core::result::Result<T, ApiError>;

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChartQuery {
    #[param(inline)]
    theme: ThemeWanted,
    #[param(inline)]
    size: SizeWanted,
}

/// Which background.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ThemeWanted {
    #[default]
    Light,
    Dark,
}

/// All that is known, or one panel with large text for a small screen.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SizeWanted {
    #[default]
    Wide,
    Card,
}

impl ChartQuery {
    fn look(&self) -> Look {
        let theme = match self.theme {
            ThemeWanted::Light => Theme::Light,
            ThemeWanted::Dark => Theme::Dark,
        };
        let size = match self.size {
            SizeWanted::Wide => Size::Wide,
            SizeWanted::Card => Size::Card,
        };
        Look { size, theme }
    }
}

/// The chart of an incident.
///
/// Its signal with what was expected, the onset, the detection and the end, and other signals of
/// the run below. Of an incident that is over it stays as it was then.
#[utoipa::path(
    get,
    path = "/api/v1/incidents/{id}/chart.svg",
    operation_id = "getIncidentChart",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it"), ChartQuery),
    responses(
        (status = 200, description = "The chart", content((String = "image/svg+xml"))),
        (status = 304, description = "It is still the one with the given entity tag (`If-None-Match`)"),
        BadRequest, NotFound, Broken
    )
)]
pub(crate) async fn svg(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Asked(query): Asked<ChartQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let svg = api.chart(&caller, &id, query.look()).await?;
    let tag = tag(&svg, "s");
    Ok(if is_known(&headers, &tag) { unchanged(tag) } else { picture(SVG, tag, svg.into()) })
}

/// The chart as pixels, for a page.
pub(crate) async fn png(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Asked(query): Asked<ChartQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let svg = api.chart(&caller, &id, query.look()).await?;
    let tag = tag(&svg, "p");
    if is_known(&headers, &tag) {
        return Ok(unchanged(tag));
    }
    let png = api.charts.renderer.png(svg).await.map_err(|err| match err {
        RenderError::Busy => ApiError::unavailable(err.to_string()),
        err => ApiError { status: StatusCode::INTERNAL_SERVER_ERROR, message: err.to_string() },
    })?;
    Ok(picture(PNG, tag, png))
}

impl Api {
    async fn chart(&self, caller: &Caller, id: &str, look: Look) -> Result<String> {
        let record = self.find(caller, id).await?;
        let none = || {
            ApiError::not_found(format!("incident {:?} has no chart: nothing was seen of its run", record.id))
        };
        self.charts.svg(&record, look).await?.ok_or_else(none)
    }
}

fn tag(svg: &str, kind: &str) -> String {
    let digest = Sha256::digest(svg.as_bytes());
    format!("\"{kind}{}\"", hex(&digest[..TAG_BYTES]))
}

fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    known.flat_map(|value| value.split(',')).any(|value| value.trim().trim_start_matches("W/") == tag)
}

fn unchanged(tag: String) -> Response {
    let headers = [(header::ETAG, tag), (header::CACHE_CONTROL, CACHE_CONTROL.to_owned())];
    (StatusCode::NOT_MODIFIED, headers, Body::empty()).into_response()
}

fn picture(kind: &'static str, tag: String, body: Bytes) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY.to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CACHE_CONTROL, CACHE_CONTROL.to_owned()),
        (header::ETAG, tag),
    ];
    (headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use reqwest::Client;

    use crate::testing::{TestApp, wait_for};

    async fn get(app: &TestApp, path: &str, known: Option<&str>) -> reqwest::Response {
        let request = Client::new().get(format!("{}{path}", app.url));
        let request = known.into_iter().fold(request, |request, tag| request.header("if-none-match", tag));
        request.send().await.unwrap()
    }

    #[tokio::test]
    async fn a_chart_is_a_picture_and_nothing_else() {
        let app = TestApp::start().await;
        let id = app.page("llama").await;
        let path = format!("/api/v1/incidents/{id}/chart.svg");
        let answer = wait_for("the chart", async || {
            Some(get(&app, &path, None).await).filter(|answer| answer.status() == 200)
        })
        .await;
        let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), "image/svg+xml");
        assert_eq!(header("x-content-type-options"), "nosniff");
        let policy = header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && policy.ends_with("sandbox"), "{policy}");
        let tag = header("etag");
        let svg = answer.text().await.unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("llama"), "{svg}");

        let again = get(&app, &path, Some(&format!("\"other\", {tag}"))).await;
        assert_eq!((again.status().as_u16(), again.text().await.unwrap().as_str()), (304, ""));
        let dark = get(&app, &format!("{path}?theme=dark&size=card"), Some(&tag)).await;
        assert_eq!(dark.status(), 200, "another look is another picture");
        assert!(dark.text().await.unwrap().contains("#1a1d21"));
        assert_eq!(get(&app, &format!("{path}?theme=blue"), None).await.status(), 400);
        assert_eq!(get(&app, "/api/v1/incidents/nonsense/chart.svg", None).await.status(), 404);

        let page = format!("/incidents/{id}/chart");
        assert_eq!(get(&app, &format!("{page}.svg"), None).await.status(), 200);
        let png = get(&app, &format!("{page}.png"), None).await;
        assert_eq!(png.headers()["content-type"], "image/png");
        assert!(png.bytes().await.unwrap().starts_with(b"\x89PNG"));
    }

    #[tokio::test]
    async fn the_chart_of_what_is_over_outlives_a_restart() {
        let app = TestApp::start().await;
        let id = app.page("llama").await;
        let (status, body) = app
            .post(&format!("/api/v1/incidents/{id}/resolve"), "application/json", r#"{"by":"alice"}"#)
            .await;
        assert_eq!(status, 200, "{body}");
        let app = app.restart().await;
        let svg = wait_for("the chart", async || {
            let (status, body) = app.get(&format!("/api/v1/incidents/{id}/chart.svg")).await;
            (status == 200).then_some(body)
        })
        .await;
        assert!(svg.contains("RESOLVED"), "{svg}");
        let (_, account) = app.get(&format!("/api/v1/incidents/{id}/postmortem")).await;
        assert!(account.contains("(data:image/svg+xml;base64,"), "{account}");
    }
}

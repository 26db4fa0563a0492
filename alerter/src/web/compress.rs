//! Compresses pages with gzip for browsers that accept it: the page of thousands of nodes is half a
//! megabyte of HTML, which is slow to load on a phone.
//!
//! A page has the CSRF secret of its session next to text that a link can choose. Whoever observes
//! the compressed length of many such pages could find the secret (BREACH, 2013), so a page that
//! another site linked to is not compressed.

use std::io::Write as _;

use axum::body::{Body, HttpBody as _, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::assets::takes_gzip;
use crate::api::error::ApiError;

/// The sizes within which pages are compressed: smaller ones gain nothing, and larger ones take too
/// long.
const MIN: u64 = 1024;
const MAX: u64 = 8 << 20;

pub(super) async fn compress(request: Request, next: Next) -> Response {
    let wanted = takes_gzip(request.headers()) && !led_from_elsewhere(request.headers());
    let response = next.run(request).await;
    // A page is a complete body, so its size is known.
    let size = response.body().size_hint().exact().unwrap_or(0);
    if !wanted || !(MIN..=MAX).contains(&size) || !is_page(response.headers()) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(page) = to_bytes(body, MAX as usize).await else {
        return ApiError::unavailable("this page cannot be shown").into_response();
    };
    parts.headers.insert(VARY, HeaderValue::from_static("accept-encoding, sec-fetch-site"));
    let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    match encoder.write_all(&page).and_then(|()| encoder.finish()) {
        Ok(gzip) => {
            parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.remove(CONTENT_LENGTH);
            Response::from_parts(parts, Body::from(gzip))
        }
        Err(_) => Response::from_parts(parts, Body::from(page)),
    }
}

fn is_page(headers: &HeaderMap) -> bool {
    let html = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    html && !headers.contains_key(CONTENT_ENCODING)
}

/// Whether another site led to the page, by the browser's Fetch Metadata. A browser that sends none
/// is old, or uses no TLS, so that there is no secret to protect.
fn led_from_elsewhere(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none")
}

#[cfg(test)]
mod tests {
    use reqwest::header::{ACCEPT, ACCEPT_ENCODING};

    use crate::testing::TestApp;

    #[tokio::test]
    async fn a_page_is_small_unless_another_site_led_to_it() {
        let app = TestApp::start().await;
        let ask = async |path: &str, site: Option<&str>, coding: &str| {
            let request = reqwest::Client::new().get(format!("{}{path}", app.url));
            let mut request = request.header(ACCEPT, "text/html").header(ACCEPT_ENCODING, coding);
            if let Some(site) = site {
                request = request.header("sec-fetch-site", site);
            }
            let response = request.send().await.unwrap();
            let coding = response.headers().get("content-encoding").map(|c| c.to_str().unwrap().to_owned());
            (coding, response.bytes().await.unwrap())
        };
        let plain = ask("/", None, "identity").await;
        assert_eq!(plain.0, None);
        for (site, coding, gzip) in [
            (None, "gzip, br", true),
            (Some("none"), "gzip", true),
            (Some("same-origin"), "gzip", true),
            (Some("cross-site"), "gzip", false),
            (Some("same-site"), "gzip", false),
            (None, "br", false),
        ] {
            let (had, body) = ask("/", site, coding).await;
            assert_eq!(had.as_deref(), gzip.then_some("gzip"), "{site:?} {coding}");
            if gzip {
                let mut text = String::new();
                #[expect(clippy::disallowed_types, reason = "our own page")]
                let decoder = flate2::read::GzDecoder::new(&*body);
                let mut decoder = std::io::Read::take(decoder, 1 << 20);
                std::io::Read::read_to_string(&mut decoder, &mut text).unwrap();
                assert!(text.contains("</html>"), "{text}");
                assert!(body.len() < plain.1.len(), "{} of {}", body.len(), text.len());
            }
        }
        assert_eq!(ask("/api/v1/status", None, "gzip").await.0, None, "it is no page");
    }
}

//! The metrics page: encoded once as OpenMetrics, served in the format and encoding the scraper asks for.
//!
//! A page is immutable and its other forms (text 0.0.4, gzip) are derived the first time someone wants them, so
//! that a scrape costs a pointer and a copy to the socket.

mod negotiate;
pub mod read;
mod text_004;

use std::io::Write;
use std::sync::OnceLock;

use axum::body::Body;
use axum::http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use prometheus_client::registry::Registry;

use negotiate::Format;
pub use text_004::to_text_004;

const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const TEXT_004: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const END: &str = "# EOF\n";
/// Pages compress 10:1 at any level; the fast end costs a third of the CPU of the default.
const GZIP_LEVEL: u32 = 3;

/// One page in every form a scraper may ask for.
#[derive(Debug)]
pub struct Encoded {
    openmetrics: Bytes,
    openmetrics_gzip: OnceLock<Bytes>,
    text: OnceLock<Bytes>,
    text_gzip: OnceLock<Bytes>,
}

impl Encoded {
    /// A collector that fails leaves a page without its end: scrapers are answered 500, not half a page.
    pub fn from_registry(registry: &Registry) -> Self {
        let mut page = String::new();
        if let Err(err) = prometheus_client::encoding::text::encode(&mut page, registry) {
            tracing::error!(%err, "a collector could not be encoded");
        }
        Self::from_openmetrics(page)
    }

    /// `page` is a whole OpenMetrics exposition, `# EOF` included.
    pub fn from_openmetrics(page: String) -> Self {
        Self {
            openmetrics: page.into(),
            openmetrics_gzip: OnceLock::new(),
            text: OnceLock::new(),
            text_gzip: OnceLock::new(),
        }
    }

    pub fn openmetrics(&self) -> &str {
        // Made from a String and never changed.
        std::str::from_utf8(&self.openmetrics).unwrap_or_default()
    }

    fn is_whole(&self) -> bool {
        self.openmetrics.ends_with(END.as_bytes())
    }

    fn body(&self, format: Format, gzipped: bool) -> Bytes {
        let plain = match format {
            Format::OpenMetrics => &self.openmetrics,
            Format::Text004 => self.text.get_or_init(|| to_text_004(self.openmetrics()).into()),
        };
        let compressed = match format {
            Format::OpenMetrics => &self.openmetrics_gzip,
            Format::Text004 => &self.text_gzip,
        };
        if gzipped { compressed.get_or_init(|| gzip(plain)).clone() } else { plain.clone() }
    }
}

/// Answers a scrape: OpenMetrics 1.0.0 or text 0.0.4 by `Accept`, gzip only by `Accept-Encoding`.
pub fn respond(page: &Encoded, headers: &HeaderMap) -> Response {
    if !page.is_whole() {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the page could not be encoded; see the log\n")
            .into_response();
    }
    let format = negotiate::format(headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()));
    let gzipped = negotiate::accepts_gzip(
        headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok()),
    );
    let mut response = Response::new(Body::from(page.body(format, gzipped)));
    let content_type = match format {
        Format::OpenMetrics => OPENMETRICS,
        Format::Text004 => TEXT_004,
    };
    let out = response.headers_mut();
    out.insert(CONTENT_TYPE, content_type);
    out.insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
    if gzipped {
        out.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn gzip(plain: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 8), Compression::new(GZIP_LEVEL));
    // Writing to memory does not fail.
    let _ = encoder.write_all(plain);
    encoder.finish().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const PAGE: &str = "# HELP up_seconds Up.\n# TYPE up_seconds counter\nup_seconds_total 3\n# EOF\n";

    async fn scrape(page: &Encoded, accept: &str, encoding: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        headers.insert(ACCEPT_ENCODING, encoding.parse().unwrap());
        let response = respond(page, &headers);
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, axum::body::to_bytes(body, 1 << 20).await.unwrap().to_vec())
    }

    #[tokio::test]
    async fn each_form_has_its_type_and_text() {
        let page = Encoded::from_openmetrics(PAGE.into());
        let (_, headers, body) =
            scrape(&page, "application/openmetrics-text;version=1.0.0", "identity").await;
        assert_eq!(headers[CONTENT_TYPE], OPENMETRICS);
        assert_eq!(body, PAGE.as_bytes());
        let (_, headers, body) = scrape(&page, "*/*", "identity").await;
        assert_eq!(headers[CONTENT_TYPE], TEXT_004);
        assert!(headers.get(CONTENT_ENCODING).is_none());
        assert_eq!(body, to_text_004(PAGE).as_bytes());
    }

    #[tokio::test]
    async fn gzip_unpacks_to_the_same_page() {
        let page = Encoded::from_openmetrics(PAGE.into());
        let (_, headers, body) = scrape(&page, "text/plain", "deflate, gzip").await;
        assert_eq!(headers[CONTENT_ENCODING], "gzip");
        let mut text = String::new();
        flate2::bufread::MultiGzDecoder::new(&body[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, to_text_004(PAGE));
    }

    #[tokio::test]
    async fn a_page_without_its_end_is_not_served() {
        let page = Encoded::from_openmetrics("# TYPE a gauge\na 1\n".into());
        let (status, _, _) = scrape(&page, "*/*", "").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}

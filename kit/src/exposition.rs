//! The metrics page: built from blocks that are encoded once, and served in the format and encoding
//! that the scraper requests.
//!
//! A page is immutable. Each of its forms (OpenMetrics or text 0.0.4, gzip or not) is built on the
//! first request for it, so that a further scrape costs a pointer and a copy to the socket.

mod block;
mod negotiate;
pub mod read;
mod text_004;

use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use prometheus_client::registry::Registry;

pub use block::{Block, Head};
pub use negotiate::Form;
use negotiate::Format;
pub use text_004::to_text_004;

const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const TEXT_004: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const END: &str = "# EOF\n";

/// One metrics page in every form that a scraper may request.
#[derive(Debug)]
pub struct Encoded {
    blocks: Vec<Arc<Block>>,
    /// Whether every collector was encoded without an error.
    whole: bool,
    forms: [OnceLock<Bytes>; Form::ALL.len()],
}

impl Encoded {
    /// Encodes a registry. If a collector fails, scrapers get a 500 instead of half a page.
    pub fn from_registry(registry: &Registry) -> Self {
        Self::new(registry, Vec::new())
    }

    /// Encodes a registry, followed by `blocks`.
    pub fn new(registry: &Registry, mut blocks: Vec<Arc<Block>>) -> Self {
        let mut text = String::new();
        if let Err(err) = prometheus_client::encoding::text::encode(&mut text, registry) {
            tracing::error!(%err, "a collector could not be encoded");
        }
        let whole = text.ends_with(END);
        text.truncate(text.len() - if whole { END.len() } else { 0 });
        blocks.insert(0, Arc::new(Block::openmetrics(text)));
        blocks.push(Arc::new(Block::end()));
        Self { blocks, whole, forms: Default::default() }
    }

    /// Returns the page in this form, which is encoded on the first call.
    pub fn form(&self, form: Form) -> Bytes {
        let made = || -> Bytes {
            if form.gzip {
                block::gzip(self.blocks.iter().map(AsRef::as_ref), form.format).into()
            } else {
                self.plain(form.format).into()
            }
        };
        self.forms[form.index()].get_or_init(made).clone()
    }

    /// Returns the page as text 0.0.4, for people.
    pub fn text(&self) -> String {
        self.plain(Format::Text004)
    }

    fn plain(&self, format: Format) -> String {
        let length = self.blocks.iter().flat_map(|block| block.parts(format)).map(str::len).sum();
        let mut text = String::with_capacity(length);
        self.blocks.iter().flat_map(|block| block.parts(format)).for_each(|part| text.push_str(part));
        text
    }
}

/// Answers a scrape with the page in this form, or with 500 if the page is incomplete.
pub fn respond(page: &Encoded, form: Form) -> Response {
    if !page.whole {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the page could not be encoded; see the log\n")
            .into_response();
    }
    let mut response = Response::new(Body::from(page.form(form)));
    let content_type = match form.format {
        Format::OpenMetrics => OPENMETRICS,
        Format::Text004 => TEXT_004,
    };
    let out = response.headers_mut();
    out.insert(CONTENT_TYPE, content_type);
    out.insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
    if form.gzip {
        out.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

impl Form {
    /// The form that a request prefers: OpenMetrics 1.0.0 or text 0.0.4 by `Accept`, gzip only by
    /// `Accept-Encoding`.
    pub fn asked(headers: &HeaderMap) -> Self {
        let all = |name| headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        Self { format: negotiate::format(all(ACCEPT)), gzip: negotiate::accepts_gzip(all(ACCEPT_ENCODING)) }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::io::Read as _;

    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::DescriptorEncoder;

    use super::*;

    const HEAD: &str = "# HELP up_seconds Up.\n# TYPE up_seconds counter\n# UNIT up_seconds seconds\n";
    const LINES: &str = "up_seconds_total 3\n";
    const TEXT: &str = "# HELP up_seconds_total Up.\n# TYPE up_seconds_total counter\nup_seconds_total 3\n";

    fn page() -> Encoded {
        let block = Block::family(Arc::new(Head::new(HEAD.to_owned())), LINES.to_owned());
        Encoded::new(&Registry::default(), vec![Arc::new(block)])
    }

    async fn scrape(page: &Encoded, accept: &str, encoding: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        headers.insert(ACCEPT_ENCODING, encoding.parse().unwrap());
        let response = respond(page, Form::asked(&headers));
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, axum::body::to_bytes(body, 1 << 20).await.unwrap().to_vec())
    }

    #[tokio::test]
    async fn each_form_has_its_type_and_text() {
        let page = page();
        let (_, headers, body) =
            scrape(&page, "application/openmetrics-text;version=1.0.0", "identity").await;
        assert_eq!(headers[CONTENT_TYPE], OPENMETRICS);
        assert_eq!(body, format!("{HEAD}{LINES}{END}").as_bytes());
        let (_, headers, body) = scrape(&page, "*/*", "identity").await;
        assert_eq!(headers[CONTENT_TYPE], TEXT_004);
        assert!(headers.get(CONTENT_ENCODING).is_none());
        assert_eq!(body, TEXT.as_bytes());
        assert_eq!(page.text(), TEXT);
    }

    #[tokio::test]
    async fn gzip_unpacks_to_the_same_page() {
        let (_, headers, body) = scrape(&page(), "text/plain", "deflate, gzip").await;
        assert_eq!(headers[CONTENT_ENCODING], "gzip");
        let mut text = String::new();
        flate2::bufread::GzDecoder::new(&body[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, TEXT);
    }

    #[derive(Debug)]
    struct Broken;

    impl Collector for Broken {
        fn encode(&self, _: DescriptorEncoder<'_>) -> fmt::Result {
            Err(fmt::Error)
        }
    }

    #[tokio::test]
    async fn a_page_without_its_end_is_not_served() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Broken));
        let (status, _, _) = scrape(&Encoded::from_registry(&registry), "*/*", "").await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}

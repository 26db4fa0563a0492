//! Fetches the endpoint with one GET after the other, limited in time and size.

use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Url, redirect};
use stepwatch_kit::exposition::read::Dialect;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The most bytes of an exposition. That of a busy Ray agent has three MiB.
const MAX_PAGE_BYTES: usize = 8 << 20;
/// Larger expositions are read one at a time.
const SMALL_PAGE_BYTES: usize = 512 << 10;
static LARGE: Semaphore = Semaphore::const_new(1);
/// The most redirects: Python frameworks redirect `/metrics` to `/metrics/`.
const MAX_REDIRECTS: usize = 2;
const FORMATS: HeaderValue = HeaderValue::from_static(
    "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1",
);

#[derive(Debug)]
pub(super) struct Client {
    client: reqwest::Client,
    url: Url,
}

#[derive(Debug, Default)]
pub(super) struct Fetched {
    pub(super) text: String,
    pub(super) dialect: Dialect,
    /// Held while a large exposition is in memory.
    pub(super) room: Option<SemaphorePermit<'static>>,
}

impl Fetched {
    pub(super) fn is_large(&self) -> bool {
        self.room.is_some()
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("{0}")]
    Http(String),
    #[error("the page has more than {MAX_PAGE_BYTES} bytes")]
    TooLarge,
}

/// Parses a URL; the error says what is wrong with it.
pub(super) fn check(url: &str) -> Result<Url, String> {
    let url: Url = url.parse().map_err(|err| format!("is not a URL: {err}"))?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        other => Err(format!("must be http or https, not {other}")),
    }
}

/// A URL without parts that may be secret: the credentials and the query.
pub(super) fn shown(url: &str) -> String {
    let Ok(mut parsed) = check(url) else { return url.to_owned() };
    parsed.set_query(None);
    parsed.set_fragment(None);
    // Fails only for URLs that cannot have a user.
    let _ = (parsed.set_username(""), parsed.set_password(None));
    parsed.into()
}

impl Client {
    pub(super) fn new(url: &str, timeout: Duration) -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(timeout)
            .redirect(redirect::Policy::custom(within_origin))
            .default_headers(HeaderMap::from_iter([(ACCEPT, FORMATS)]))
            .build()
            .map_err(|err| err.to_string())?;
        Ok(Self { client, url: check(url)? })
    }

    pub(super) async fn fetch(&self) -> Result<Fetched, Failed> {
        let http = |err: reqwest::Error| Failed::Http(innermost(&err.without_url()));
        let mut response = self.client.get(self.url.clone()).send().await.map_err(http)?;
        if !response.status().is_success() {
            return Err(Failed::Http(format!("it answered {}", response.status())));
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|t| t.to_str().ok());
        let dialect = kind.map(Dialect::of_content_type).unwrap_or_default();
        let (mut bytes, mut room) = (Vec::new(), None);
        while let Some(chunk) = response.chunk().await.map_err(http)? {
            if bytes.len() + chunk.len() > MAX_PAGE_BYTES {
                return Err(Failed::TooLarge);
            }
            if room.is_none() && bytes.len() + chunk.len() > SMALL_PAGE_BYTES {
                // The semaphore is never closed.
                room = LARGE.acquire().await.ok();
            }
            bytes.extend_from_slice(&chunk);
        }
        let text =
            String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        Ok(Fetched { text, dialect, room })
    }
}

/// Follows redirects only to the same origin: any user of the node may serve the endpoint, and only
/// the configuration may name another address.
fn within_origin(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let from = attempt.previous();
    let same = from.first().is_some_and(|first| first.origin() == attempt.url().origin());
    if !same {
        attempt.error("it redirects to another address")
    } else if from.len() > MAX_REDIRECTS {
        attempt.error("it redirects again and again")
    } else {
        attempt.follow()
    }
}

/// The innermost cause of an error, such as "connection refused".
fn innermost(err: &dyn std::error::Error) -> String {
    err.source().map_or_else(|| err.to_string(), innermost)
}

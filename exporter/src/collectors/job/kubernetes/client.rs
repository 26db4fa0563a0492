//! Reads lists of the Kubernetes API, page after page, within a time and a size.

use std::error::Error;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::{ACCEPT, RETRY_AFTER};
use reqwest::{Certificate, Client, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use stepwatch_wire::words;

/// Objects of a page, and the most pages of a list.
const PAGE: &str = "500";
const MAX_PAGES: usize = 400;
/// The most bytes of a page. A pod with many containers has 64 KiB, and so has a node with many
/// annotations.
pub(super) const MAX_PAGE_BYTES: usize = 64 << 20;
/// The most bytes read, and characters kept, of a refusal.
const MAX_REFUSAL_BYTES: usize = 8 << 10;
const MAX_REFUSAL: usize = 160;
/// The most bytes of a token and of certificates.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// How often a page is asked for again because the server asks for a moment, and how long that is
/// at most. All that was read of a list would be asked for again otherwise.
const TRIES: usize = 4;
const MOMENT: Duration = Duration::from_secs(5);
/// The longest time for which the server may ask not to be asked.
const LONGEST_WAIT: Duration = Duration::from_mins(10);

#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("{0}")]
    File(String),
    #[error("{0}")]
    Connect(String),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the token is not accepted (401): {0}")]
    Unauthorized(String),
    #[error("the account may not (403): {0}")]
    Forbidden(String),
    #[error("the list was too old to go on with (410), again and again")]
    Gone,
    #[error("it asks to be left alone for {0:?}")]
    Throttled(Duration),
    #[error("it answered {0}: {1}")]
    Status(StatusCode, String),
    #[error("a page has more than {MAX_PAGE_BYTES} bytes, or a list more than {MAX_PAGES} pages")]
    TooLarge,
    #[error("not a list of Kubernetes: {0}")]
    Malformed(String),
}

impl Failed {
    /// The reason as the value of a label.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Connect(_) => "connect",
            Self::Timeout(_) => "timeout",
            Self::Unauthorized(_) => "unauthorized",
            Self::Forbidden(_) => "forbidden",
            Self::Gone => "gone",
            Self::Throttled(_) => "throttled",
            Self::Status(..) => "status",
            Self::TooLarge => "too_large",
            Self::Malformed(_) => "malformed",
        }
    }

    /// Whether the API does not answer. Otherwise it does, or this program lacks something.
    pub(super) fn is_silence(&self) -> bool {
        match self {
            // Not one whose certificate is of an authority that this program does not know.
            Self::Connect(why) => !why.contains("certificate"),
            Self::Timeout(_) => true,
            // Nobody can use an API whose store does not answer it.
            Self::Status(status, _) => status.is_server_error(),
            Self::File(_) | Self::Unauthorized(_) | Self::Forbidden(_) | Self::Gone => false,
            Self::Throttled(_) | Self::TooLarge | Self::Malformed(_) => false,
        }
    }

    pub(super) const REASONS: [&'static str; 10] = [
        "file",
        "connect",
        "timeout",
        "unauthorized",
        "forbidden",
        "gone",
        "throttled",
        "status",
        "too_large",
        "malformed",
    ];

    fn connect(error: reqwest::Error) -> Self {
        Self::Connect(innermost(&error.without_url()))
    }
}

/// Where the API is, and how one is admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) url: Url,
    pub(super) token_file: Option<PathBuf>,
    pub(super) ca_file: Option<PathBuf>,
}

/// A list that is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    /// What it is called in labels.
    pub(super) list: &'static str,
    pub(super) path: &'static str,
    pub(super) selector: &'static str,
    /// Whether the server may answer from its memory, which may be some seconds old. It reads its
    /// store otherwise, and there also all objects that the selector leaves out. From its memory it
    /// gives all of a list at once.
    pub(super) cached: bool,
}

/// Parses the address of an API; the error says what is wrong with it.
pub(super) fn check(url: &str, has_token: bool) -> Result<Url, String> {
    let url: Url = url.parse().map_err(|err| format!("is not a URL: {err}"))?;
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_matches(['[', ']']);
    let is_here = host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match url.scheme() {
        "https" if !host.is_empty() => Ok(url),
        "http" if has_token && !is_here => Err("must be https, because a token is sent".into()),
        "http" if !host.is_empty() => Ok(url),
        other => Err(format!("must be http or https, not {other}")),
    }
}

/// The API, for one pass: token and certificates are replaced while this program runs.
#[derive(Debug)]
pub(super) struct Api {
    client: Client,
    url: Url,
    token: Option<String>,
}

impl Api {
    pub(super) fn open(place: &Place) -> Result<Self, Failed> {
        // The token must reach only the configured server.
        let mut client = Client::builder().no_proxy().redirect(redirect::Policy::none());
        if let Some(file) = &place.ca_file {
            let certificates = Certificate::from_pem_bundle(&read(file)?).ok().filter(|all| !all.is_empty());
            let none = || Failed::File(format!("{} has no certificates", file.display()));
            client = client.tls_certs_only(certificates.ok_or_else(none)?);
        } else if place.url.scheme() == "http" {
            client = client.tls_certs_only([]);
        }
        let token = place.token_file.as_ref().map(|file| read(file)).transpose()?;
        let token = token.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
        Ok(Self { client: client.build().map_err(Failed::connect)?, url: place.url.clone(), token })
    }

    /// Reads all objects of a list, and passes each on. What was passed on counts only if the whole
    /// list was read: [`Failed::Gone`] in the middle asks for a new beginning.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        question: Question,
        take: &mut dyn FnMut(T),
    ) -> Result<(), Failed> {
        let mut next = String::new();
        for _ in 0..MAX_PAGES {
            let body = self.page(self.at(question, &next)).await?;
            let list: List<T> = serde_json::from_slice(&body).map_err(|e| {
                // Not what is written there, which may be a secret of a pod.
                Failed::Malformed(format!("at line {}, column {}", e.line(), e.column()))
            })?;
            if !list.kind.ends_with("List") {
                return Err(Failed::Malformed("another kind".into()));
            }
            list.items.into_iter().flatten().for_each(&mut *take);
            next = list.metadata.next.unwrap_or_default();
            if next.is_empty() {
                return Ok(());
            }
        }
        Err(Failed::TooLarge)
    }

    fn at(&self, question: Question, next: &str) -> Url {
        let mut url = self.url.clone();
        url.set_path(&format!("{}{}", self.url.path().trim_end_matches('/'), question.path));
        // What follows a page has its version.
        let version = if question.cached && next.is_empty() { "0" } else { "" };
        let pairs = [
            ("limit", PAGE),
            ("fieldSelector", question.selector),
            ("resourceVersion", version),
            ("continue", next),
        ];
        url.query_pairs_mut().extend_pairs(pairs.into_iter().filter(|(_, value)| !value.is_empty()));
        url
    }

    async fn page(&self, url: Url) -> Result<Vec<u8>, Failed> {
        let mut response = self.answer(&url).await?;
        for _ in 0..TRIES {
            let Some(moment) = moment(&response) else { break };
            tokio::time::sleep(moment).await;
            response = self.answer(&url).await?;
        }
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(Failed::connect)? {
            if body.len() + chunk.len() > MAX_PAGE_BYTES {
                return Err(Failed::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    async fn answer(&self, url: &Url) -> Result<Response, Failed> {
        let mut request = self.client.get(url.clone()).header(ACCEPT, "application/json");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        request.send().await.map_err(Failed::connect)
    }
}

/// How long the server asks to wait, if that is a moment.
fn moment(response: &Response) -> Option<Duration> {
    let is_busy =
        matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    retry_after(response).filter(|wait| is_busy && *wait <= MOMENT)
}

#[derive(Debug, Deserialize)]
struct List<T> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    /// `null` for an empty list.
    items: Option<Vec<T>>,
}

#[derive(Debug, Default, Deserialize)]
struct ListMeta {
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// What the server says when it refuses: an object `Status`, or anything.
#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
}

async fn refusal(mut response: Response) -> Failed {
    let (status, after) = (response.status(), retry_after(&response));
    let mut body = Vec::new();
    // The refusal counts, even if its text breaks off.
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_REFUSAL_BYTES {
            break;
        }
    }
    let parsed: Status = serde_json::from_slice(&body).unwrap_or_default();
    let text = if parsed.message.is_empty() { status.to_string() } else { parsed.message };
    let text = words::line(&text).chars().take(MAX_REFUSAL).collect();
    match (status, after) {
        (StatusCode::UNAUTHORIZED, _) => Failed::Unauthorized(text),
        (StatusCode::FORBIDDEN, _) => Failed::Forbidden(text),
        (StatusCode::GONE, _) => Failed::Gone,
        (StatusCode::TOO_MANY_REQUESTS, after) => Failed::Throttled(after.unwrap_or_default()),
        (StatusCode::SERVICE_UNAVAILABLE, Some(after)) => Failed::Throttled(after),
        (status, _) => Failed::Status(status, text),
    }
}

/// The seconds of `Retry-After`; its other form, a date, is not used by Kubernetes.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
}

fn read(file: &Path) -> Result<Vec<u8>, Failed> {
    use std::io::Read as _;
    let wrong = |why: String| Failed::File(format!("{}: {why}", file.display()));
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(|e| wrong(e.to_string()))?;
    opened.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(|e| wrong(e.to_string()))?;
    if bytes.is_empty() { Err(wrong("it is empty".into())) } else { Ok(bytes) }
}

/// The innermost cause of an error, such as "connection refused".
fn innermost(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_that_this_program_does_not_trust_is_not_silent() {
        let connect = |why: &str| Failed::Connect(why.into()).is_silence();
        assert!(connect("Connection refused (os error 111)") && connect("dns error"));
        assert!(!connect("invalid peer certificate: UnknownIssuer"));
        assert!(!Failed::Forbidden(String::new()).is_silence());
        let status = |code| Failed::Status(code, "etcdserver: request timed out".into()).is_silence();
        assert!(status(StatusCode::INTERNAL_SERVER_ERROR) && status(StatusCode::GATEWAY_TIMEOUT));
        assert!(!status(StatusCode::NOT_FOUND));
    }

    #[test]
    fn a_token_is_only_sent_where_nobody_listens() {
        for (url, has_token) in [
            ("https://10.0.0.1:443", true),
            ("http://127.0.0.1:8001", true),
            ("http://[::1]:8001", true),
            ("http://localhost:8001", true),
            ("http://10.0.0.1:8080", false),
        ] {
            assert!(check(url, has_token).is_ok(), "{url}");
        }
        assert_eq!(
            check("http://10.0.0.1:8080", true).unwrap_err(),
            "must be https, because a token is sent"
        );
        assert_eq!(check("ftp://10.0.0.1", false).unwrap_err(), "must be http or https, not ftp");
        assert!(check("10.0.0.1", false).unwrap_err().starts_with("is not a URL"));
    }
}

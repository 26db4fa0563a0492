//! The shared parts of all HTTP notifiers: one hardened client, and the classification of answers
//! and failures.

use std::error::Error as _;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, StatusCode};
use stepwatch_kit::config::Secret;

use super::attempt::{Failure, FailureClass};
use super::mistake::Mistake;
use super::text::{line, shorten};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The time limit of one request, including the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of a response: a small JSON object or an error page. The rest is not read.
const BODY_MAX: usize = 1 << 20;

/// The most characters of a response in an error.
const EXCERPT_MAX: usize = 200;

/// The shortest secret that is removed from errors: shorter ones would remove large parts of the
/// text.
const SECRET_MIN: usize = 6;

/// A client, and the secrets that must not appear in its errors.
#[derive(Debug)]
pub(crate) struct Http {
    client: Client,
    service: &'static str,
    secrets: Vec<Secret>,
}

/// A complete response with any status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Http {
    pub(crate) fn new(service: &'static str, secrets: Vec<Secret>) -> Result<Self, String> {
        let client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            // A redirect would carry secrets to a host that is not configured.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("stepwatch-alerter/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|err| format!("cannot prepare the HTTP client: {err}"))?;
        Ok(Self { client, service, secrets })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Sends a request and reads the response. An error means that there was none.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Answer, Failure> {
        let mut response = request.send().await.map_err(|err| self.unreachable(&err))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|err| self.unreachable(&err))? {
            let room = BODY_MAX - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == BODY_MAX {
                break;
            }
        }
        Ok(Answer { status, headers, body: body.into() })
    }

    /// Classifies a response that is not a success.
    pub(crate) fn refused(&self, answer: &Answer) -> Failure {
        let status = answer.status;
        let excerpt = line(&self.redact(&String::from_utf8_lossy(&answer.body)), EXCERPT_MAX);
        let sep = if excerpt.is_empty() { "" } else { ": " };
        let error = format!("{}: HTTP {status}{sep}{excerpt}", self.service);
        match status {
            StatusCode::TOO_MANY_REQUESTS => Failure::rate_limited(error, retry_after(&answer.headers)),
            // With a `Retry-After` this is a rate limit; overload does not show whether the service
            // acted first.
            StatusCode::SERVICE_UNAVAILABLE if retry_after(&answer.headers).is_some() => {
                let failure = Failure::rate_limited(error, retry_after(&answer.headers));
                Failure { ambiguous: true, ..failure }
            }
            // A gateway's response does not show whether the service acted.
            status if status.is_server_error() => Failure::transient(error, true),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY => Failure::transient(error, true),
            // A request with the same key is in progress.
            StatusCode::CONFLICT => Failure::transient(error, true),
            status if status.is_redirection() => Failure::permanent(format!(
                "{error} (redirects are not followed: configure the final address)"
            )),
            _ => Failure::permanent(error),
        }
    }

    /// An error with the service's own text, for a status without a specific meaning.
    pub(crate) fn failure(&self, class: FailureClass, ambiguous: bool, error: &str) -> Failure {
        let error = format!("{}: {}", self.service, shorten(&self.redact(error), 2 * EXCERPT_MAX));
        Failure { class, error, ambiguous, memory: None }
    }

    fn unreachable(&self, err: &reqwest::Error) -> Failure {
        let what = if err.is_connect() {
            "cannot connect"
        } else if err.is_timeout() {
            "no answer in time"
        } else if err.is_builder() {
            "cannot make the request"
        } else {
            "the connection broke"
        };
        // The outermost error contains the address, which may be a secret; the innermost is the
        // cause.
        let mut cause = err.source();
        while let Some(deeper) = cause.and_then(|c| c.source()) {
            cause = Some(deeper);
        }
        let cause = cause.map(|c| format!(": {c}")).unwrap_or_default();
        let class = if err.is_builder() { FailureClass::Permanent } else { FailureClass::Transient };
        // Without a connection, nothing was sent.
        self.failure(
            class,
            !err.is_connect() && !err.is_builder(),
            &line(&format!("{what}{cause}"), EXCERPT_MAX),
        )
    }

    /// Removes the secrets, because a service may echo the request.
    fn redact(&self, text: &str) -> String {
        redact(text, &self.secrets)
    }
}

/// Removes secrets from text, also in the encoded form of a header.
pub(crate) fn redact(text: &str, secrets: &[Secret]) -> String {
    let secrets = secrets.iter().map(Secret::expose).filter(|s| s.len() >= SECRET_MIN);
    let text = secrets.fold(text.to_owned(), |text, secret| text.replace(secret, "<secret>"));
    ["Basic ", "Bearer "].iter().fold(text, |text, scheme| without_credentials(&text, scheme))
}

/// Removes the credentials after the name of a scheme; too short ones are no credentials.
fn without_credentials(text: &str, scheme: &str) -> String {
    let mut parts = text.split(scheme);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let plain = |c: char| !(c.is_ascii_alphanumeric() || "+/=-_.~".contains(c));
        let end = part.find(plain).unwrap_or(part.len());
        let (credentials, rest) = part.split_at(end);
        out.push_str(scheme);
        out.push_str(if credentials.len() < SECRET_MIN { credentials } else { "<secret>" });
        out.push_str(rest);
    }
    out
}

/// Parses a base address from the configuration: http or https, without a query. The trailing slash
/// is removed.
pub(crate) fn base_url(key: &str, text: &str) -> Result<String, Mistake> {
    let url = url::Url::parse(text).map_err(|err| Mistake::at(key, err.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(Mistake::at(key, "must start with https:// (or http://)"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// The secrets in an address that is itself a secret: the address, and the parts that a server
/// could echo.
pub(crate) fn url_secrets(url: &Secret) -> Vec<Secret> {
    let mut secrets = vec![url.clone()];
    if let Ok(parsed) = url::Url::parse(url.expose()) {
        let path = parsed.path().to_owned();
        let query = parsed.query().map(str::to_owned);
        let whole = query.as_ref().map(|q| format!("{path}?{q}"));
        let user = parsed.password().map(str::to_owned);
        secrets.extend([whole, Some(path), query, user].into_iter().flatten().map(Secret::new));
    }
    secrets
}

/// The `Retry-After` header, in seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return (0.0..1e9).contains(&seconds).then(|| Duration::from_secs_f64(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
    let wait = date.as_millisecond() - jiff::Timestamp::now().as_millisecond();
    Some(Duration::from_millis(wait.max(0).unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &str)], body: &str) -> Answer {
        let headers = headers
            .iter()
            .map(|(name, value)| (reqwest::header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        Answer { status: StatusCode::from_u16(status).unwrap(), headers, body: body.to_owned().into() }
    }

    #[test]
    fn retry_after_in_seconds_or_as_a_date() {
        let after = |value: &str| retry_after(&answer(429, &[("retry-after", value)], "").headers);
        assert_eq!(after("30"), Some(Duration::from_secs(30)));
        assert_eq!(after("0.5"), Some(Duration::from_millis(500)));
        assert_eq!(after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert!(after("Fri, 31 Dec 2100 23:59:59 GMT").is_some_and(|d| d > Duration::from_secs(1_000_000)));
        for bad in ["", "-1", "soon", "NaN", "inf", "1e99"] {
            assert_eq!(after(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_overloaded_service_says_when_to_come_back() {
        let http = Http::new("webhook", Vec::new()).unwrap();
        let failure = http.refused(&answer(503, &[("retry-after", "30")], ""));
        let asked = FailureClass::RateLimited { retry_after: Some(Duration::from_secs(30)) };
        assert_eq!((failure.class, failure.ambiguous), (asked, true));
        assert_eq!(http.refused(&answer(503, &[], "")).class, FailureClass::Transient);
    }

    #[test]
    fn a_secret_that_is_echoed_is_not_shown() {
        let url = Secret::new("https://hooks.example.com/services/T0/B0/canary?key=canary2".into());
        let http = Http::new("webhook", url_secrets(&url)).unwrap();
        let echo = "Cannot POST /services/T0/B0/canary?key=canary2 at https://hooks.example.com/services/T0/B0/canary";
        let failure = http.refused(&answer(404, &[], echo));
        assert!(!failure.error.contains("canary"), "{}", failure.error);
        assert!(failure.error.starts_with("webhook: HTTP 404 Not Found: Cannot POST"), "{}", failure.error);
        let echo = "Basic auth: no Basic bWU6Y2FuYXJ5, no Bearer abc.def-123";
        let failure = http.refused(&answer(404, &[], echo));
        assert!(
            failure.error.ends_with("Basic auth: no Basic <secret>, no Bearer <secret>"),
            "{}",
            failure.error
        );
    }

    #[test]
    fn base_urls() {
        assert_eq!(base_url("api_url", "https://slack.com/api/"), Ok("https://slack.com/api".into()));
        for bad in ["slack.com", "ftp://slack.com", "file:///x", ""] {
            assert_eq!(base_url("api_url", bad).unwrap_err().key.as_deref(), Some("api_url"), "{bad}");
        }
    }
}

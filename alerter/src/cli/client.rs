//! The client of a running alerter.

use core::time::Duration;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stepwatch_kit::config::Secret;

use crate::api::auth::CLI_AGENT;
use crate::api::view::ErrorBody;
use crate::errors::innermost;
use crate::ingest::shown_url;

/// The request timeout: longer than the alerter takes to make an acknowledgement durable or give
/// up.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The most bytes of an answer.
const MAX_ANSWER: usize = 64 << 20;
/// The limits of a stream of events, which lasts at most an hour and sends a comment every ten
/// seconds.
const LONGEST_STREAM: Duration = Duration::from_hours(2);
const QUIET_STREAM: Duration = Duration::from_secs(30);

const USER_VARIABLE: &str = "STEPWATCH_USER";
const PASSWORD_VARIABLE: &str = "STEPWATCH_PASSWORD";
const TOKEN_VARIABLE: &str = "STEPWATCH_TOKEN_FILE";

/// Which alerter, and who asks: with a token, or as the user of STEPWATCH_USER and
/// STEPWATCH_PASSWORD.
#[derive(Debug, Clone, Args)]
pub(super) struct ClientArgs {
    /// The alerter to ask
    #[arg(long, env = "STEPWATCH_ALERTER_URL", default_value = "http://127.0.0.1:9766")]
    url: String,
    /// Certificates to trust, in PEM, instead of the system's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// A file with a token of the alerter's configuration
    #[arg(long, env = "STEPWATCH_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("--url {0:?} is not an http:// or https:// URL, as in http://127.0.0.1:9766")]
    Url(String),
    #[error("--ca-file {path}: {why}")]
    Ca { path: String, why: String },
    #[error("--token-file: {0}")]
    Token(String),
    #[error("cannot reach the alerter at {url}: {why} (--url says where it is)")]
    Unreachable { url: String, why: String },
    #[error("{0}")]
    Refused(String),
    #[error("{url} did not answer like a stepwatch-alerter: {why}")]
    Strange { url: String, why: String },
}

#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    base: url::Url,
    proof: Option<Proof>,
}

/// The credentials of the caller.
#[derive(Debug)]
enum Proof {
    Token(Secret),
    User(String, Secret),
}

impl ClientArgs {
    pub(super) fn client(&self) -> Result<Client, ClientError> {
        let bad = || ClientError::Url(typed(&self.url));
        let base = url::Url::parse(&self.url).ok().filter(url::Url::has_host).ok_or_else(bad)?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(bad());
        }
        let mut builder = crate::ingest::client_builder().user_agent(CLI_AGENT).timeout(TIMEOUT);
        if let Some(path) = &self.ca_file {
            let wrong = |why: String| ClientError::Ca { path: path.display().to_string(), why };
            let pem = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
            let certs = reqwest::Certificate::from_pem_bundle(&pem).map_err(|e| wrong(e.to_string()))?;
            builder = builder.tls_certs_only(certs);
        } else if base.scheme() == "http" {
            builder = builder.tls_certs_only([]);
        }
        let http = builder
            .build()
            .map_err(|e| ClientError::Strange { url: shown_url(base.as_str()), why: innermost(&e) })?;
        Ok(Client { http, base, proof: self.proof()? })
    }

    fn proof(&self) -> Result<Option<Proof>, ClientError> {
        if let Some(path) = &self.token_file {
            return Ok(Some(Proof::Token(Secret::read(path).map_err(ClientError::Token)?)));
        }
        let password = || Secret::new(std::env::var(PASSWORD_VARIABLE).unwrap_or_default());
        Ok(std::env::var(USER_VARIABLE).ok().map(|user| Proof::User(user, password())))
    }
}

/// The address as given, without a user and password.
fn typed(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

impl Client {
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, ClientError> {
        let mut url = self.url(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.send(self.http.get(url)).await
    }

    /// The body of an answer that is not JSON.
    pub(super) async fn text(&self, path: &[&str]) -> Result<String, ClientError> {
        let body = self.body(self.http.get(self.url(path))).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send(self.http.post(self.url(path)).json(body)).await
    }

    pub(super) async fn delete<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, ClientError> {
        self.send(self.http.delete(self.url(path))).await
    }

    /// The URL of a path. Each segment is escaped, so that an id cannot become a path.
    fn url(&self, path: &[&str]) -> url::Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "v1"]).extend(path);
        }
        url
    }

    async fn send<T: DeserializeOwned>(&self, request: reqwest::RequestBuilder) -> Result<T, ClientError> {
        let body = self.body(request).await?;
        let strange = |e: serde_json::Error| ClientError::Strange {
            url: shown_url(self.base.as_str()),
            why: e.to_string(),
        };
        serde_json::from_slice(&body).map_err(strange)
    }

    /// The events from now on, or since the event with this id.
    pub(super) async fn events(&self, last: Option<&str>) -> Result<EventReader, ClientError> {
        let request = self.http.get(self.url(&["events"])).timeout(LONGEST_STREAM);
        let request = match last {
            Some(id) => request.header("last-event-id", id),
            None => request,
        };
        let response = self.response(request).await?;
        Ok(EventReader { response, buffer: Vec::new(), url: shown_url(self.base.as_str()) })
    }

    /// The body of a successful answer.
    async fn body(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, ClientError> {
        let response = self.response(request).await?;
        whole(response, &shown_url(self.base.as_str())).await
    }

    /// A successful answer, before its body.
    async fn response(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, ClientError> {
        let url = shown_url(self.base.as_str());
        let request = match &self.proof {
            Some(Proof::Token(token)) => request.bearer_auth(token.expose()),
            Some(Proof::User(user, password)) => request.basic_auth(user, Some(password.expose())),
            None => request,
        };
        let lost = |e: reqwest::Error| unreachable(&url, &e);
        let response = request.send().await.map_err(lost)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = whole(response, &url).await?;
        Err(match serde_json::from_slice::<ErrorBody>(&body) {
            _ if status == reqwest::StatusCode::UNAUTHORIZED => ClientError::Refused(format!(
                "{url} asks who you are{}: give --token-file (or {TOKEN_VARIABLE}), or set {USER_VARIABLE} and {PASSWORD_VARIABLE}",
                if self.proof.is_some() { ", and does not know what was sent" } else { "" }
            )),
            Ok(answer) => ClientError::Refused(super::table::plain(&answer.error).into_owned()),
            Err(_) => ClientError::Strange { url, why: status.to_string() },
        })
    }
}

async fn whole(mut response: reqwest::Response, url: &str) -> Result<Vec<u8>, ClientError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|e| unreachable(url, &e))? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ANSWER {
            let why = format!("more than {MAX_ANSWER} bytes");
            return Err(ClientError::Strange { url: url.to_owned(), why });
        }
    }
    Ok(body)
}

fn unreachable(url: &str, error: &reqwest::Error) -> ClientError {
    ClientError::Unreachable { url: url.to_owned(), why: innermost(error) }
}

/// One Server-Sent Event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServerEvent {
    pub(super) name: String,
    pub(super) id: String,
    pub(super) data: String,
}

/// The events of one connection.
#[derive(Debug)]
pub(super) struct EventReader {
    response: reqwest::Response,
    buffer: Vec<u8>,
    url: String,
}

impl EventReader {
    /// The next event; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<ServerEvent>, ClientError> {
        loop {
            while let Some(block) = block(&mut self.buffer) {
                // A comment keeps the connection open and is no event.
                if let Some(event) = event(&block) {
                    return Ok(Some(event));
                }
            }
            let chunk = tokio::time::timeout(QUIET_STREAM, self.response.chunk()).await;
            let quiet = |_| ClientError::Unreachable {
                url: self.url.clone(),
                why: format!("nothing was heard for {} s", QUIET_STREAM.as_secs()),
            };
            let Some(chunk) = chunk.map_err(quiet)?.map_err(|e| unreachable(&self.url, &e))? else {
                return Ok(None);
            };
            self.buffer.extend_from_slice(&chunk);
            if self.buffer.len() > MAX_ANSWER {
                let why = format!("an event of more than {MAX_ANSWER} bytes");
                return Err(ClientError::Strange { url: self.url.clone(), why });
            }
        }
    }
}

/// Removes and returns the text before the first empty line.
fn block(buffer: &mut Vec<u8>) -> Option<String> {
    let end = memchr::memmem::find(buffer, b"\n\n")?;
    let rest = buffer.split_off(end + 2);
    let block = core::mem::replace(buffer, rest);
    Some(String::from_utf8_lossy(&block).into_owned())
}

fn event(block: &str) -> Option<ServerEvent> {
    let mut event = ServerEvent::default();
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut event.name),
            "id" => value.clone_into(&mut event.id),
            "data" => event.data.push_str(value),
            _ => {}
        }
    }
    (!event.name.is_empty()).then_some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_between_comments() {
        let mut buffer = b":\n\nevent: step\nid: 1-7\ndata: {}\n\nevent: incident\ndata: {\"a\"".to_vec();
        let comment = block(&mut buffer).unwrap();
        assert_eq!(event(&comment), None);
        let step = event(&block(&mut buffer).unwrap()).unwrap();
        assert_eq!((step.name.as_str(), step.id.as_str(), step.data.as_str()), ("step", "1-7", "{}"));
        assert_eq!(block(&mut buffer), None);
        buffer.extend_from_slice(b":1}\n\n");
        assert_eq!(event(&block(&mut buffer).unwrap()).unwrap().data, r#"{"a":1}"#);
        assert!(buffer.is_empty());
    }

    #[test]
    fn an_address_that_is_none_is_shown_as_it_was_typed_without_secrets() {
        for (given, shown) in [
            ("127.0.0.1:18200", "127.0.0.1:18200"),
            ("alerter", "alerter"),
            ("ftp://alerter/x", "ftp://alerter/x"),
            ("alice:secret@alerter:9766", "alerter:9766"),
            ("htp://alice:sec@ret@alerter:9766/?token=secret", "htp://alerter:9766/"),
        ] {
            let args = ClientArgs { url: given.into(), ca_file: None, token_file: None };
            let error = args.client().unwrap_err().to_string();
            assert!(error.starts_with(&format!("--url {shown:?} is not")), "{error}");
        }
    }
}

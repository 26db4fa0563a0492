//! Forwards requests to the replica that leads.
//!
//! A request waits while no replica leads, because one takes over within seconds: a person who
//! acknowledges a page during that time need not do it again. A request that may have reached a
//! leader is not repeated unless it only reads.

use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RETRY_AFTER, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{Stream, TryStreamExt as _, try_unfold};
use reqwest::Client;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::api::MAX_ALERTS_BODY;
use crate::store::Leader;

/// Marks a request that was forwarded, and the answer of a replica that does not lead.
const FORWARDED: HeaderName = HeaderName::from_static("stepwatch-forwarded");
const STANDS_BY: HeaderName = HeaderName::from_static("stepwatch-stands-by");

/// The longest wait for a leader. A lease and a start of the leader are shorter.
const HOLD_MAX: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_EVERY: Duration = Duration::from_millis(200);

/// Headers that belong to one connection.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

#[derive(Debug, Clone)]
struct Forward {
    client: Client,
    leader: watch::Receiver<Option<Leader>>,
}

/// A request that can be sent more than once.
struct Kept {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// The result of an attempt.
enum Sent {
    Answered(Response),
    /// The address is not that of a leader (any more), so nothing was done.
    NoLeader,
    /// The leader went away, and may have acted before.
    Lost(reqwest::Error),
    /// Another replica took over before the leader answered, which may have acted before.
    Replaced,
}

pub(super) fn router(leader: watch::Receiver<Option<Leader>>) -> io::Result<Router> {
    let client = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        // A network that was cut ends no connection.
        .tcp_user_timeout(HOLD_MAX)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .map_err(io::Error::other)?;
    Ok(Router::new().fallback(forward).with_state(Forward { client, leader }))
}

async fn forward(State(to): State<Forward>, request: Request) -> Response {
    if request.headers().contains_key(FORWARDED) {
        let mut answer = refused(StatusCode::SERVICE_UNAVAILABLE, "this replica does not lead\n");
        answer.headers_mut().insert(STANDS_BY, HeaderValue::from_static("1"));
        return answer;
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, MAX_ALERTS_BODY).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "the request is too large\n").into_response();
    };
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let kept = Kept { method: parts.method, path, headers: passed_on(&parts.headers), body };
    to.until_answered(&kept, Instant::now() + HOLD_MAX).await
}

impl Forward {
    async fn until_answered(mut self, kept: &Kept, deadline: Instant) -> Response {
        let reads = kept.method.is_safe();
        loop {
            let found = self.leader.wait_for(|l| l.as_ref().is_some_and(|leader| !leader.expired));
            let leader = match timeout_at(deadline, found).await {
                Ok(Ok(leader)) => leader.clone(),
                Ok(Err(_)) | Err(_) => None,
            };
            let Some(leader) = leader else {
                return refused(StatusCode::SERVICE_UNAVAILABLE, "no replica leads at the moment\n");
            };
            // A leader that is stopped or cut off does not answer, and its connection does not end.
            let sent = tokio::select! {
                sent = self.send(kept, &leader) => sent,
                () = replaced(self.leader.clone(), leader.clone()) => Sent::Replaced,
            };
            match sent {
                Sent::Answered(answer) => return answer,
                lost @ (Sent::Lost(_) | Sent::Replaced) if !reads => {
                    let err = if let Sent::Lost(err) = lost {
                        err.without_url().to_string()
                    } else {
                        "replaced".to_owned()
                    };
                    tracing::warn!(err, leader = leader.address, "the leader went away during a request");
                    let why =
                        "the replica that leads went away before it answered: it may or may not have acted\n";
                    return refused(StatusCode::BAD_GATEWAY, why);
                }
                Sent::NoLeader | Sent::Lost(_) | Sent::Replaced if Instant::now() >= deadline => {
                    return refused(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "the replica that leads is not reached\n",
                    );
                }
                Sent::NoLeader | Sent::Lost(_) | Sent::Replaced => sleep(RETRY_EVERY).await,
            }
        }
    }

    async fn send(&self, kept: &Kept, leader: &Leader) -> Sent {
        let url = format!("{}{}", leader.address, kept.path);
        let request = self.client.request(kept.method.clone(), url).headers(kept.headers.clone());
        let answer = match request.body(kept.body.clone()).send().await {
            Ok(answer) if answer.headers().contains_key(STANDS_BY) => return Sent::NoLeader,
            Ok(answer) => answer,
            Err(err) if err.is_connect() || err.is_builder() => return Sent::NoLeader,
            Err(err) => return Sent::Lost(err),
        };
        let (status, headers) = (answer.status(), kept_headers(answer.headers()));
        let ends = replaced(self.leader.clone(), leader.clone());
        let mut response = Response::new(until(ends, answer.bytes_stream()));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Sent::Answered(response)
    }
}

/// The headers of a request for the leader, which checks its credentials and its `Host`.
fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut headers = kept_headers(headers);
    headers.remove(CONTENT_LENGTH);
    headers.insert(FORWARDED, HeaderValue::from_static("1"));
    headers
}

/// The headers without those of one connection: the known ones, and those that `Connection` names.
fn kept_headers(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    let named = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    for name in named.flat_map(|names| names.split(',')).map(str::trim) {
        kept.remove(name);
    }
    for name in &HOP_BY_HOP {
        kept.remove(name);
    }
    kept
}

/// A body that breaks off when it `ends` before it is complete.
fn until(
    ends: impl Future<Output = ()> + Send + 'static,
    body: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
) -> Body {
    let parts = (Box::pin(body), Box::pin(ends));
    Body::from_stream(try_unfold(parts, |(mut body, mut ends)| async move {
        let chunk = tokio::select! {
            biased;
            chunk = body.try_next() => chunk.map_err(io::Error::other),
            () = &mut ends => Err(io::Error::other("another replica leads")),
        };
        chunk.map(|chunk| chunk.map(|chunk| (chunk, (body, ends))))
    }))
}

/// Resolves once another replica leads than `before`; never if that is not learned any more.
async fn replaced(mut now: watch::Receiver<Option<Leader>>, before: Leader) {
    let another = |now: &Leader| !now.expired && (&now.holder, now.epoch) != (&before.holder, before.epoch);
    if now.wait_for(|now| now.as_ref().is_some_and(another)).await.is_err() {
        core::future::pending::<()>().await;
    }
}

fn refused(status: StatusCode, why: &'static str) -> Response {
    (status, [(RETRY_AFTER, "1")], why).into_response()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn leader(epoch: i64, expired: bool) -> Leader {
        Leader { holder: format!("r{epoch}"), address: String::new(), epoch, expired }
    }

    #[tokio::test]
    async fn a_body_breaks_off_when_another_replica_leads() {
        let chunks = || futures_util::stream::iter([Ok(Bytes::from("a")), Ok(Bytes::from("b"))]);
        let whole = until(core::future::pending(), chunks());
        assert_eq!(axum::body::to_bytes(whole, 10).await.unwrap(), "ab");
        let stuck = futures_util::StreamExt::chain(chunks(), futures_util::stream::pending());
        let cut = until(core::future::ready(()), stuck);
        assert!(axum::body::to_bytes(cut, 10).await.is_err());
    }

    #[test]
    fn headers_of_one_connection_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Hop"),
            ("connection", "x-other"),
            ("x-hop", "1"),
            ("x-other", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("authorization", "Bearer t"),
            ("host", "pages.example.com"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let passed = passed_on(&headers);
        let mut names: Vec<&str> = passed.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "host", "stepwatch-forwarded"]);
    }

    /// An expired lease may be renewed, so its holder may still answer.
    #[tokio::test]
    async fn a_request_to_a_stopped_leader_ends_when_another_leads() {
        let (tell, leads) = watch::channel(Some(leader(1, false)));
        let mut waits = Box::pin(replaced(leads, leader(1, false)));
        assert_eq!(waits.as_mut().now_or_never(), None);
        for (now, ended) in [
            (Some(leader(1, true)), None),
            (None, None),
            (Some(leader(2, true)), None),
            (Some(leader(2, false)), Some(())),
        ] {
            tell.send_replace(now);
            assert_eq!(waits.as_mut().now_or_never(), ended);
        }
    }
}

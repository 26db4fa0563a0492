//! Makes one gRPC call over a local socket: a request with an empty message, a response with one
//! message, and the status in the trailers.
//!
//! hyper provides HTTP/2. gRPC adds a frame of five bytes and two headers, which takes less code
//! than a framework. The whole call has one deadline and the response a limit, because the server
//! may be slow, dead or another program.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, TE, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;

/// The bytes of a frame's header: one for compression, four for the length of the message.
const FRAME: usize = 5;
/// The most bytes of an answer: the most that gRPC for Go allows a kubelet by default.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// The most characters of the server's error message that are kept.
const MAX_MESSAGE: usize = 200;

#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    #[error("HTTP/2 failed")]
    Http(#[from] hyper::Error),
    #[error("the answer breaks off or is over {MAX_ANSWER_BYTES} bytes: {0}")]
    Body(String),
    #[error("HTTP status {0}")]
    Status(StatusCode),
    #[error("refused with code {code}: {message}")]
    Refused { code: u32, message: String },
    #[error("not an answer of gRPC: {0}")]
    Malformed(&'static str),
}

impl CallError {
    /// The reason as the value of a label.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Deadline(_) => "deadline",
            Self::Refused { .. } => "refused",
            Self::Http(_) | Self::Body(_) | Self::Status(_) | Self::Malformed(_) => "malformed",
        }
    }
}

/// Calls `method` (`/package.Service/Method`) with an empty request, and returns the response's
/// message.
pub(super) async fn call(socket: &Path, method: &str, deadline: Duration) -> Result<Bytes, CallError> {
    let answer = tokio::time::timeout(deadline, unary(socket, method, deadline)).await;
    answer.unwrap_or(Err(CallError::Deadline(deadline)))
}

async fn unary(socket: &Path, method: &str, deadline: Duration) -> Result<Bytes, CallError> {
    let stream = UnixStream::connect(socket).await.map_err(CallError::Connect)?;
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut client, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let request = Request::post(format!("http://localhost{method}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, concat!("stepwatch-exporter/", env!("CARGO_PKG_VERSION")))
        .header("grpc-timeout", format!("{}m", deadline.as_millis().clamp(1, 99_999_999)))
        .body(Full::new(Bytes::from_static(&[0; FRAME])))
        .map_err(|_| CallError::Malformed("a method that is no path"))?;
    let answer = async {
        let (head, body) = client.send_request(request).await?.into_parts();
        let is_grpc =
            head.headers.get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"application/grpc"));
        if head.status != StatusCode::OK {
            return Err(CallError::Status(head.status));
        }
        if !is_grpc {
            return Err(CallError::Malformed("another content type"));
        }
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|e| CallError::Body(e.to_string()))?;
        // An error without a message has its status in the headers.
        let trailers = body.trailers().filter(|t| t.contains_key("grpc-status")).unwrap_or(&head.headers);
        status(trailers)?;
        unframe(&body.to_bytes())
    };
    let answer = answer.await;
    driver.abort();
    answer
}

fn status(trailers: &HeaderMap) -> Result<(), CallError> {
    let text = |name| trailers.get(name).and_then(|v| v.to_str().ok());
    let code = text("grpc-status").and_then(|s| s.parse().ok());
    match code.ok_or(CallError::Malformed("no status"))? {
        0 => Ok(()),
        code => {
            let message = text("grpc-message").unwrap_or_default().chars().take(MAX_MESSAGE).collect();
            Err(CallError::Refused { code, message })
        }
    }
}

/// The message of a response.
fn unframe(body: &Bytes) -> Result<Bytes, CallError> {
    let Some(([compressed, length @ ..], message)) = body.split_first_chunk::<FRAME>() else {
        return Err(CallError::Malformed("no message"));
    };
    if *compressed != 0 {
        return Err(CallError::Malformed("a compressed message, which was not asked for"));
    }
    if u32::from_be_bytes(*length) as usize != message.len() {
        return Err(CallError::Malformed("a message whose length differs from its header"));
    }
    Ok(body.slice(FRAME..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames() {
        assert_eq!(unframe(&Bytes::from_static(b"\0\0\0\0\x02ab")).unwrap(), "ab");
        for bad in [&b"\0\0\0"[..], b"\0\0\0\0\x03ab", b"\x01\0\0\0\x02ab", b"\0\xff\xff\xff\xffab"] {
            assert!(unframe(&Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_none(bytes: Vec<u8>) {
            if let Ok(message) = unframe(&Bytes::from(bytes.clone())) {
                proptest::prop_assert_eq!(message.len() + FRAME, bytes.len());
            }
        }
    }
}

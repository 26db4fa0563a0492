//! OTLP over gRPC: two unary calls. A request is one message in a frame with a header of five
//! bytes. Its response is another, with the status in the trailers. This takes less code than a
//! framework for gRPC.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use http_body_util::{BodyExt as _, Full};
use prost::Message;

use super::{Arrival, Encoding, MAX_BODY_BYTES, Otlp, Posted, Refused, Signal};
use crate::reply;

pub(super) const METRICS: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
pub(super) const TRACES: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// The bytes of a frame's header: one for compression, four for the length of the message.
const FRAME: usize = 5;

/// Status codes of gRPC. A client retries for none of them.
#[derive(Debug, Clone, Copy)]
enum Code {
    Ok = 0,
    InvalidArgument = 3,
    /// A client retries for it only if the status gives a delay, and ours gives none.
    ResourceExhausted = 8,
    Unimplemented = 12,
}

pub(super) async fn receive(
    signal: Signal,
    State(otlp): State<Otlp>,
    from: Arrival,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let grpc = headers.get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"application/grpc"));
    if !grpc {
        return reply::error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send content-type application/grpc");
    }
    let Ok(body) = body else {
        otlp.refused(&Refused::TooLarge(String::new()));
        return failed(Code::ResourceExhausted, &format!("a request has at most {MAX_BODY_BYTES} bytes"));
    };
    let (gzip, message) = match unframe(&body, &headers) {
        Ok(framed) => framed,
        Err((code, why)) => {
            otlp.refused(&Refused::Malformed(why.to_owned()));
            return failed(code, why);
        }
    };
    let posted = Posted { signal, encoding: Encoding::Protobuf, gzip, body: message, from };
    match otlp.take_apart(posted).await {
        Ok(response) => answer(&response.encode_to_vec()),
        Err(Refused::Malformed(why)) => failed(Code::InvalidArgument, &why),
        Err(Refused::TooLarge(why)) => failed(Code::ResourceExhausted, &why),
    }
}

/// The one message of a request, and whether it is compressed.
fn unframe(body: &Bytes, headers: &HeaderMap) -> Result<(bool, Bytes), (Code, &'static str)> {
    let Some((head, message)) = body.split_first_chunk::<FRAME>() else {
        return Err((Code::InvalidArgument, "a message begins with five bytes"));
    };
    let [compressed, length @ ..] = *head;
    if u32::from_be_bytes(length) as usize != message.len() {
        return Err((Code::InvalidArgument, "a request is one message, of the length in its prefix"));
    }
    match (compressed, headers.get(&ENCODING).map(HeaderValue::as_bytes)) {
        (0, _) => Ok((false, body.slice(FRAME..))),
        (1, Some(b"gzip")) => Ok((true, body.slice(FRAME..))),
        (1, Some(_)) => Err((Code::Unimplemented, "only gzip is read")),
        _ => Err((Code::InvalidArgument, "a compressed message without grpc-encoding")),
    }
}

fn answer(message: &[u8]) -> Response {
    let mut framed = Vec::with_capacity(FRAME + message.len());
    framed.push(0);
    // A response is a few dozen bytes, so its length fits.
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(message);
    let mut trailers = HeaderMap::new();
    trailers.insert(STATUS, code(Code::Ok));
    let body = Full::from(framed).with_trailers(std::future::ready(Some(Ok(trailers))));
    headed(Response::new(Body::new(body)))
}

/// A response that is only a status, which is then sent in the headers.
fn failed(status: Code, why: &str) -> Response {
    let mut response = headed(Response::new(Body::empty()));
    let headers = response.headers_mut();
    headers.insert(STATUS, code(status));
    // Characters that a header may not have are left out.
    let plain: String = why.chars().filter(|c| matches!(c, ' '..='~') && *c != '%').collect();
    if let Ok(message) = HeaderValue::from_str(&plain) {
        headers.insert(MESSAGE, message);
    }
    response
}

fn headed(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity,gzip"));
    response
}

fn code(code: Code) -> HeaderValue {
    HeaderValue::from(code as u16)
}

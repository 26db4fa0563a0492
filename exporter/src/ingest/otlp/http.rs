//! OTLP over HTTP/1.1 and HTTP/2: binary protobuf or JSON, plain or gzip.

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use prost::Message;
use serde_json::json;

use super::proto::{self, Status};
use super::{Arrival, Encoding, MAX_BODY_BYTES, Otlp, Posted, Refused, Signal, grpc};

/// `google.rpc.Code::InvalidArgument`.
const INVALID_ARGUMENT: i32 = 3;

/// The routes of both signals over both transports.
pub fn routes(otlp: Otlp) -> Router {
    Router::new()
        .route("/v1/metrics", post(|s, p, h, b| receive(Signal::Metrics, s, p, h, b)))
        .route("/v1/traces", post(|s, p, h, b| receive(Signal::Traces, s, p, h, b)))
        .route(grpc::METRICS, post(|s, p, h, b| grpc::receive(Signal::Metrics, s, p, h, b)))
        .route(grpc::TRACES, post(|s, p, h, b| grpc::receive(Signal::Traces, s, p, h, b)))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(otlp)
}

async fn receive(
    signal: Signal,
    State(otlp): State<Otlp>,
    from: Arrival,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let Some(encoding) = Encoding::from_headers(&headers) else {
        let text = "send content-type application/x-protobuf or application/json";
        return refusal(Encoding::Json, StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    };
    let body = match body {
        Ok(body) => body,
        Err(error) => {
            otlp.refused(&Refused::TooLarge(String::new()));
            let text = format!("{}; a request has at most {MAX_BODY_BYTES} bytes", error.body_text());
            return refusal(encoding, error.status(), &text);
        }
    };
    let gzip = match headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity" | b"") => false,
        Some(b"gzip") => true,
        Some(_) => {
            let text = "send the body plain or with content-encoding gzip";
            return refusal(encoding, StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
        }
    };
    match otlp.take_apart(Posted { signal, encoding, gzip, body, from }).await {
        Ok(response) => {
            encoding.answer(StatusCode::OK, response.encode_to_vec(), || json_of(signal, &response))
        }
        Err(refused @ Refused::Malformed(_)) => {
            refusal(encoding, StatusCode::BAD_REQUEST, &refused.to_string())
        }
        Err(refused @ Refused::TooLarge(_)) => {
            refusal(encoding, StatusCode::PAYLOAD_TOO_LARGE, &refused.to_string())
        }
    }
}

impl Encoding {
    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        match kind.split(';').next()?.trim() {
            "application/x-protobuf" | "application/protobuf" => Some(Self::Protobuf),
            "application/json" => Some(Self::Json),
            _ => None,
        }
    }

    /// Writes a response in the encoding of its request.
    fn answer(
        self,
        status: StatusCode,
        bytes: Vec<u8>,
        json: impl FnOnce() -> serde_json::Value,
    ) -> Response {
        let (kind, body) = match self {
            Self::Protobuf => ("application/x-protobuf", bytes),
            Self::Json => ("application/json", json().to_string().into_bytes()),
        };
        (status, [(CONTENT_TYPE, HeaderValue::from_static(kind))], body).into_response()
    }
}

fn refusal(encoding: Encoding, status: StatusCode, text: &str) -> Response {
    let message = Status { code: INVALID_ARGUMENT, message: text.to_owned() };
    encoding.answer(
        status,
        message.encode_to_vec(),
        || json!({ "code": message.code, "message": message.message }),
    )
}

fn json_of(signal: Signal, response: &proto::Response) -> serde_json::Value {
    let rejected = match signal {
        Signal::Metrics => "rejectedDataPoints",
        Signal::Traces => "rejectedSpans",
    };
    match &response.partial_success {
        None => json!({}),
        Some(p) => {
            json!({ "partialSuccess": { rejected: p.rejected.to_string(), "errorMessage": p.error_message } })
        }
    }
}

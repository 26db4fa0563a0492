use std::io::Write as _;

use axum::Router;
use axum::body::Body;
use axum::http::{Request as HttpRequest, StatusCode};
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::BodyExt as _;
use proptest::prelude::*;
use prost::Message as _;
use serde_json::json;
use stepwatch_wire::Kind;
use tower::ServiceExt as _;

use super::*;
use crate::principal::Principal;
use crate::testing::{hub, published};

/// A request that Megatron-LM's instruments and the OpenTelemetry SDK made.
const MEGATRON: &[u8] = include_bytes!("../../../tests/data/otlp_metrics_request.pb");

fn router(hub: &Hub) -> Router {
    routes(Otlp::new(hub.clone(), &BTreeMap::new(), Roots::default()))
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(body).unwrap();
    gz.finish().unwrap()
}

async fn post(hub: &Hub, headers: &[(&str, &str)], body: impl Into<Body>) -> (StatusCode, Vec<u8>) {
    let mut request = HttpRequest::post("/v1/metrics");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = router(hub).oneshot(request.body(body.into()).unwrap()).await.unwrap();
    let status = response.status();
    (status, response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");
const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");

#[test]
fn megatron() {
    let events = events(Signal::Metrics, Encoding::Protobuf, MEGATRON).unwrap();
    assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Hello, Kind::Step]);
    let step = &events[1];
    assert_eq!((step.run.as_deref(), step.rank, step.step), (Some("123456"), Some(7), Some(5)));
    assert_eq!(step.extra["step_from"].as_str(), Some("durations"));
    for (name, value) in [
        ("loss", 2.3456),
        ("grad_norm", 0.87),
        ("lr", 3e-4),
        ("step_time", 4.2125),
        ("tflops_reported", 412.3),
        ("tokens_per_second", 996_244.1),
        ("skipped", 1.0),
        ("megatron.training.memory_allocated_gb", 61.2),
    ] {
        assert_eq!(step.m.get(name), Some(value), "{name}");
    }
    assert_eq!(step.m.len(), 8, "{:?}", step.m);
}

#[tokio::test]
async fn every_form_of_a_request_is_read() {
    for (headers, body) in [
        (vec![PROTOBUF], MEGATRON.to_vec()),
        (vec![PROTOBUF, ("content-encoding", "gzip")], gzip(MEGATRON)),
        (vec![PROTOBUF, ("content-encoding", "identity")], MEGATRON.to_vec()),
    ] {
        let hub = hub();
        let answer = post(&hub, &headers, body).await;
        assert_eq!(answer, (StatusCode::OK, vec![]), "an empty message: nothing was rejected");
        let last = published(&hub).pop().unwrap();
        assert_eq!((last.kind, last.m.get("loss")), (Kind::Step, Some(2.3456)));
    }
}

fn json_gauge(points: serde_json::Value) -> serde_json::Value {
    json!({"resourceMetrics": [{
        "resource": {"attributes": [
            {"key": "stepwatch.run", "value": {"stringValue": "j"}},
            {"key": "dl.rank", "value": {"intValue": "2"}},
            {"key": "list", "value": {"arrayValue": {"values": []}}},
        ]},
        "scopeMetrics": [{"scope": {}, "metrics": [{"name": "loss", "gauge": {"dataPoints": points}}]}],
        "schemaUrl": "x"
    }]})
}

#[tokio::test]
async fn json_is_read_and_answered_in_json() {
    let hub = hub();
    let step = json!([{"key": "step", "value": {"intValue": "12"}}]);
    let body =
        json_gauge(json!([{"timeUnixNano": "1795227416981889438", "asDouble": "NaN", "attributes": step}]));
    let (status, answer) = post(&hub, &[JSON], body.to_string()).await;
    assert_eq!((status, answer.as_slice()), (StatusCode::OK, &b"{}"[..]));
    let last = published(&hub).pop().unwrap();
    assert_eq!((last.run.as_deref(), last.rank, last.step), (Some("j"), Some(2), Some(12)));
    assert!(last.m.get("loss").unwrap().is_nan());
    assert!(last.ts.is_some_and(|ts| (ts - 1_795_227_416.98).abs() < 0.1));
}

#[tokio::test]
async fn what_is_wrong_is_refused_with_a_reason() {
    let hub = hub();
    let (status, body) = post(&hub, &[PROTOBUF], "not protobuf").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(!proto::Status::decode(body.as_slice()).unwrap().message.is_empty());
    let (status, body) = post(&hub, &[JSON], "{").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["message"].is_string());
    for (headers, status) in [
        (vec![], StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (vec![("content-type", "text/plain")], StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (vec![PROTOBUF, ("content-encoding", "zstd")], StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (vec![PROTOBUF, ("content-encoding", "gzip")], StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(post(&hub, &headers, MEGATRON).await.0, status, "{headers:?}");
    }
    assert!(published(&hub).is_empty());
}

#[tokio::test]
async fn bodies_are_bounded_before_and_after_inflation() {
    let hub = hub();
    let large = post(&hub, &[PROTOBUF], vec![0; MAX_BODY_BYTES + 1]).await;
    assert_eq!(large.0, StatusCode::PAYLOAD_TOO_LARGE);
    let bomb = gzip(&vec![0; MAX_INFLATED_BYTES as usize + 1]);
    assert!(bomb.len() < 100_000);
    let bomb = post(&hub, &[PROTOBUF, ("content-encoding", "gzip")], bomb).await;
    assert_eq!(bomb.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn what_is_over_a_limit_is_reported() {
    let hub = hub();
    let point =
        |i: u32| json!({"asDouble": 1.5, "attributes": [{"key": "i", "value": {"intValue": i.to_string()}}]});
    let many: Vec<_> = (0..600).map(point).collect();
    let (status, answer) = post(&hub, &[JSON], json_gauge(many.into()).to_string()).await;
    assert_eq!(status, StatusCode::OK);
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["partialSuccess"]["rejectedDataPoints"], "88");
}

#[test]
fn telemetry_that_is_not_of_training_makes_no_run() {
    let hub = hub();
    let otlp = Otlp::new(hub.clone(), &BTreeMap::new(), Roots::default());
    let mut body = json_gauge(json!([{"asDouble": 1.0}]));
    let from = &mut body["resourceMetrics"][0];
    from["resource"] = json!({"attributes": [{"key": "service.name", "value": {"stringValue": "web"}}]});
    let take = |body: &serde_json::Value| {
        otlp.take(Signal::Metrics, Encoding::Json, body.to_string().as_bytes(), None)
    };
    from["scopeMetrics"][0]["metrics"][0]["name"] = "http.server.duration".into();
    take(&body).unwrap();
    body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["name"] = "orders".into();
    take(&body).unwrap();
    assert!(published(&hub).is_empty());
    body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["name"] = "train.loss".into();
    take(&body).unwrap();
    assert_eq!(published(&hub).pop().unwrap().run.as_deref(), Some("web"));
}

/// Holds the lock that requests wait for: from when the first channel resolves until the second is
/// sent.
fn hold(otlp: &Otlp) -> (tokio::sync::oneshot::Receiver<()>, std::sync::mpsc::Sender<()>) {
    let (locked, is_locked) = tokio::sync::oneshot::channel();
    let (unlock, unlocks) = std::sync::mpsc::channel();
    let otlp = otlp.clone();
    std::thread::spawn(move || {
        let _state = otlp.0.state.locked();
        locked.send(()).unwrap();
        unlocks.recv().unwrap();
    });
    (is_locked, unlock)
}

/// A client that disconnects after the work has begun makes no room for more of it.
#[tokio::test]
async fn work_that_nobody_waits_for_keeps_its_turn() {
    let otlp = Otlp::new(hub(), &BTreeMap::new(), Roots::default());
    let body = Bytes::from(json_gauge(json!([{"asDouble": 1.0}])).to_string());
    let free = || otlp.0.turns.free();
    let (locked, unlock) = hold(&otlp);
    locked.await.unwrap();
    for taken in 1..=turns::MAX_DECODING {
        let (otlp, body) = (otlp.clone(), body.clone());
        let posted = Posted {
            signal: Signal::Metrics,
            encoding: Encoding::Json,
            gzip: false,
            body,
            from: Arrival::default(),
        };
        let given_up = tokio::spawn(async move { otlp.take_apart(posted).await });
        while free() != turns::MAX_DECODING - taken {
            tokio::task::yield_now().await;
        }
        given_up.abort();
        assert!(given_up.await.unwrap_err().is_cancelled());
        assert_eq!(free(), turns::MAX_DECODING - taken);
    }
    // A refusal in the meantime does not wait for it.
    otlp.refused(&Refused::Malformed("no message".to_owned()));
    unlock.send(()).unwrap();
    while free() != turns::MAX_DECODING {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_request_makes_few_ranks_known_at_once() {
    let (hub, mut owners) = (hub(), Owners::default());
    let asked = Asked {
        hub: &hub,
        ends: None,
        process: None,
        named: BTreeMap::new(),
        principal: Principal::Unknown,
        now: 1.0,
    };
    let who = |rank: u32| Who { run: "llama".into(), rank, ..Who::default() };
    let mut left = 2;
    let settled = [1, 2, 3, 1].map(|rank| owners.settle(&mut who(rank), &asked, &mut left));
    assert_eq!(settled, [true, true, false, true], "what is known costs nothing");
    assert!(owners.settle(&mut who(3), &asked, &mut 1), "the rest is known next time");
}

#[test]
fn points_with_labels() {
    let of = |points| {
        let body = json_gauge(points).to_string();
        events(Signal::Metrics, Encoding::Json, body.as_bytes()).unwrap().pop().unwrap()
    };
    let label = |v: &str| json!([{"key": "kind", "value": {"stringValue": v}}]);
    let one = of(json!([{"asDouble": 2.0, "attributes": label("lm")}]));
    assert_eq!(one.m.get("loss"), Some(2.0), "one that is alone is what its name says");
    let two = of(
        json!([{"asDouble": 2.0, "attributes": label("lm")}, {"asDouble": 3.0, "attributes": label("aux")}]),
    );
    assert_eq!(
        (two.m.get("loss"), two.m.get("loss{kind=lm}"), two.m.get("loss{kind=aux}")),
        (None, Some(2.0), Some(3.0))
    );
    let unset = of(json!([{"asDouble": 2.0, "flags": 1}, {"asInt": "7"}]));
    assert_eq!(unset.m.get("loss"), Some(7.0), "a point without a value is none");
}

#[test]
fn losses_as_events_of_spans() {
    let attr = |k: &str, v: serde_json::Value| json!({"key": k, "value": v});
    let step = || attr("nv.dl.training.step", json!({"intValue": "300"}));
    let objective = |name: &str, value: f64| {
        json!({"name": "nv.dl.training.objective", "timeUnixNano": "1795227416000000000", "attributes": [
            step(),
            attr("nv.dl.training.objective.name", json!({"stringValue": name})),
            attr("nv.dl.training.objective.value", json!({"doubleValue": value})),
            attr("nv.dl.measurement.domain", json!({"stringValue": "dp_mean"})),
        ]})
    };
    let numerics = json!({"name": "nv.dl.training.numerics", "attributes": [
        step(),
        attr("nv.dl.training.learning_rate", json!({"doubleValue": 1e-4})),
        attr("nv.dl.training.skipped_iterations", json!({"intValue": "2"})),
        attr("nv.dl.training.params_norm", json!({"doubleValue": 7000.5})),
    ]});
    let request = json!({"resourceSpans": [{
        "resource": {"attributes": [attr("nv.dl.job.uuid", json!({"stringValue": "job"})), attr("nv.dl.rank", json!({"intValue": 31}))]},
        "scopeSpans": [{"spans": [
            {"name": "nv.mlm.train.log", "events": [objective("lm loss", 1.5), objective("mtp_1 loss", 2.5), numerics]},
            {"name": "other", "events": [{"name": "exception"}]},
        ]}],
    }]});
    let body = request.to_string();
    let events = events(Signal::Traces, Encoding::Json, body.as_bytes()).unwrap();
    let step = &events[1];
    assert_eq!((step.run.as_deref(), step.rank, step.step), (Some("job"), Some(31), Some(300)));
    assert_eq!(step.ts, Some(1_795_227_416.0));
    for (name, value) in
        [("loss", 1.5), ("mtp_1 loss", 2.5), ("lr", 1e-4), ("skipped", 2.0), ("params_norm", 7000.5)]
    {
        assert_eq!(step.m.get(name), Some(value), "{name}");
    }
}

/// A call as gRPC frames it.
async fn call(hub: &Hub, encoding: Option<&str>, frame: Vec<u8>) -> (Option<String>, usize) {
    let mut request = HttpRequest::post(grpc::METRICS).header("content-type", "application/grpc");
    if let Some(encoding) = encoding {
        request = request.header("grpc-encoding", encoding);
    }
    let response = router(hub).oneshot(request.body(Body::from(frame)).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "errors of gRPC are in its own status");
    let headers = response.headers().clone();
    let body = response.into_body().collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    let status = trailers.get("grpc-status").or(headers.get("grpc-status"));
    (status.map(|s| s.to_str().unwrap().to_owned()), body.to_bytes().len())
}

fn frame(compressed: u8, message: &[u8]) -> Vec<u8> {
    [&[compressed][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

#[tokio::test]
async fn grpc_frames() {
    let ok = (Some("0".to_owned()), 5);
    for (encoding, body) in [
        (None, frame(0, MEGATRON)),
        (Some("gzip"), frame(1, &gzip(MEGATRON))),
        (Some("gzip"), frame(0, MEGATRON)),
    ] {
        let hub = hub();
        assert_eq!(call(&hub, encoding, body).await, ok);
        assert_eq!(published(&hub).pop().unwrap().m.get("loss"), Some(2.3456));
    }
    let hub = hub();
    for (encoding, body, status) in [
        (None, vec![], "3"),
        (None, frame(0, b"nonsense"), "3"),
        (None, frame(0, MEGATRON)[..40].to_vec(), "3"),
        (None, frame(1, &gzip(MEGATRON)), "3"),
        (Some("snappy"), frame(1, MEGATRON), "12"),
        (Some("gzip"), frame(1, &gzip(&vec![0; MAX_INFLATED_BYTES as usize + 1])), "8"),
        (None, frame(0, &vec![0; MAX_BODY_BYTES]), "8"),
    ] {
        assert_eq!(call(&hub, encoding, body).await, (Some(status.to_owned()), 0), "{status}");
    }
    assert!(published(&hub).is_empty());
}

fn check(events: &[Event]) {
    for event in events {
        let text = event.to_json();
        assert!(Event::parse_record(text.as_bytes()).is_ok() || text.len() > 8192, "{text}");
    }
}

proptest! {
    #[test]
    fn never_panics(bytes: Vec<u8>, text in "(?s).{0,100}") {
        for signal in [Signal::Metrics, Signal::Traces] {
            check(&events(signal, Encoding::Protobuf, &bytes).unwrap_or_default());
            check(&events(signal, Encoding::Json, text.as_bytes()).unwrap_or_default());
        }
    }

    #[test]
    fn survives_damage(damage in prop::collection::vec((0usize..2000, any::<u8>()), 1..8), cut in 0usize..2000) {
        let mut bytes = MEGATRON.to_vec();
        for (at, byte) in damage {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(cut.max(1));
        for signal in [Signal::Metrics, Signal::Traces] {
            check(&events(signal, Encoding::Protobuf, &bytes).unwrap_or_default());
        }
    }
}

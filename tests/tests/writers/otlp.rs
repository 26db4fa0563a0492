//! The OpenTelemetry SDK and its two exporters, on the exporter's own port and on one of
//! `ingest.otlp`.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;
use stepwatch_tests::{Exporter, exposition};
use stepwatch_wire::Kind;

use crate::seen::Seen;
use crate::writer::{Writer, has, python};

const MODULES: &[&str] = &[
    "opentelemetry.sdk.metrics",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.metric_exporter",
];

/// What differs between the ways of export.
struct Way {
    run: &'static str,
    protocol: &'static str,
    /// On the port of `ingest.otlp`, or on the exporter's own.
    own_port: bool,
    extra: &'static [(&'static str, &'static str)],
}

const WAYS: &[Way] = &[
    Way { run: "http", protocol: "http/protobuf", own_port: true, extra: &[] },
    Way {
        run: "gzip",
        protocol: "http/protobuf",
        own_port: false,
        extra: &[("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")],
    },
    Way { run: "grpc", protocol: "grpc", own_port: false, extra: &[] },
    Way {
        run: "grpc-own",
        protocol: "grpc",
        own_port: true,
        extra: &[("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")],
    },
    Way {
        run: "delta",
        protocol: "grpc",
        own_port: false,
        extra: &[("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")],
    },
];

fn start(way: &Way, dir: &Path, addr: SocketAddr) -> Writer {
    let mut script = python("otlp_writer.py", dir);
    let resource = format!(
        "nemo.run.id={run},service.name=megatron-training,service.instance.id={run}-rank7,dl.local_rank=3",
        run = way.run
    );
    script
        .env("OTEL_RESOURCE_ATTRIBUTES", resource)
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", way.protocol)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{addr}"))
        .envs(way.extra.iter().copied());
    Writer::start(script).unwrap()
}

/// An exporter with a port for OTLP beside its own.
async fn exporter(dir: &Path) -> (Exporter, SocketAddr) {
    let mut exporter =
        Exporter::start_with(&dir.join("exporter"), "otlp: [\"127.0.0.1:0\"]", "").await.unwrap();
    let line = exporter.daemon.logged(|line| line.contains("listening for OTLP")).await.unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    (exporter, line["addr"].as_str().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_arrive_by_every_way() {
    if !has(MODULES).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (exporter, otlp) = exporter(dir.path()).await;
    let seen = Seen::default();
    seen.follow(&exporter);
    for way in WAYS {
        let mut writer = start(way, dir.path(), if way.own_port { exporter.addr } else { otlp });
        writer.send("log 2.5 4.0").await.unwrap();
        writer.send("log 2.25 6.0").await.unwrap();
        // The SDK drops what is not a number: the gauge has no value, or its last one again.
        writer.send("log nan 5.0").await.unwrap();
        assert_eq!(writer.end().await.unwrap(), Some(0));
        let times = seen.steps(way.run, "step_time", 3).await;
        assert_eq!(times, [(1, 4.0), (2, 6.0), (3, 5.0)], "{}", way.run);
        assert_eq!(seen.column(way.run, "loss"), [(1, 2.5), (2, 2.25)], "{}", way.run);
        assert_eq!(seen.column(way.run, "skipped"), [(1, 1.0), (2, 1.0), (3, 1.0)], "{}", way.run);
        let steps = seen.events(Kind::Step, way.run);
        assert_eq!(steps[0].rank, Some(7));
        assert_eq!(steps[0].extra["step_from"].as_str(), Some("durations"));
        let hello = seen.event(Kind::Hello, way.run, |_| true).await;
        assert_eq!(hello.extra["framework"].as_str(), Some("megatron-training"));
    }
    let page = exporter.metrics().await.unwrap();
    assert_eq!(exposition::value(&page, "train_source_up", &[("source", "otlp")]), Some(1.0), "{page}");
    assert_eq!(exposition::value(&page, "train_source_dropped_total", &[("source", "otlp")]), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_that_are_given_are_those_steps() {
    if !has(MODULES).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (exporter, otlp) = exporter(dir.path()).await;
    let seen = Seen::default();
    seen.follow(&exporter);
    for (run, protocol) in [("given-http", "http/protobuf"), ("given-grpc", "grpc")] {
        let way = Way { run, protocol, own_port: false, extra: &[] };
        let mut writer = start(&way, dir.path(), otlp);
        writer.send("at 100 2.5").await.unwrap();
        writer.send("at 110 2.25").await.unwrap();
        writer.send("span 120 2.0").await.unwrap();
        writer.send("span 130 nan").await.unwrap();
        writer.end().await.unwrap();
        let losses = seen.steps(run, "loss", 4).await;
        assert_eq!(losses[..3], [(100, 2.5), (110, 2.25), (120, 2.0)]);
        assert!(losses[3].0 == 130 && losses[3].1.is_nan(), "an event of a span may be NaN: {losses:?}");
        assert_eq!(seen.column(run, "lr"), [(120, 3e-4), (130, 3e-4)]);
        assert!(seen.events(Kind::Step, run).iter().all(|e| !e.extra.contains_key("step_from")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sender_survives_a_kill_of_the_exporter() {
    if !has(MODULES).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut exporter = Exporter::start(&dir.path().join("exporter"), "").await.unwrap();
    let seen = Seen::default();
    seen.follow(&exporter);
    let way = &WAYS[0];
    let mut writer = start(way, dir.path(), exporter.addr);
    writer.send("log 2.5 4.0").await.unwrap();
    writer.send("log 2.25 4.0").await.unwrap();
    seen.steps(way.run, "loss", 2).await;
    exporter.daemon.kill().await.unwrap();
    exporter.restart().await.unwrap();
    seen.follow(&exporter);
    writer.send("log 2.0 4.0").await.unwrap();
    writer.send("log 1.75 8.0").await.unwrap();
    writer.end().await.unwrap();
    let losses = seen.steps(way.run, "loss", 4).await;
    assert_eq!(losses, [(1, 2.5), (2, 2.25), (3, 2.0), (4, 1.75)], "counted on, and nothing twice");
    let times = seen.column(way.run, "step_time");
    assert_eq!(times.last(), Some(&(4, 8.0)), "of what it took before, the mean of all steps is not used");
}

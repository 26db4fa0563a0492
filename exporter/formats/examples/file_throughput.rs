//! How fast event files are read: `cargo run --release -p stepwatch-formats --example
//! file_throughput`.
//!
//! Two files in memory, offered in pieces of 1 MiB as a tail does: the scalars of a Megatron run,
//! four to a step, and the same with a histogram of 30 KB at every step, which is passed over.

#![allow(clippy::print_stdout, reason = "it is what the example is for")]

use std::path::Path;
use std::time::Instant;

use stepwatch_formats::FileReader;

const STEPS: u64 = 200_000;
const PIECE: usize = 1024 * 1024;

fn varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn bytes(field: u8, data: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    varint(&mut out, data.len() as u64);
    out.extend_from_slice(data);
    out
}

fn masked_crc(data: &[u8]) -> [u8; 4] {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn record(out: &mut Vec<u8>, step: u64, value: &[u8]) {
    let mut event = vec![0x09];
    event.extend_from_slice(&(1.7e9 + step as f64).to_le_bytes());
    event.push(0x10);
    varint(&mut event, step);
    event.extend(bytes(5, &bytes(1, value)));
    let len = (event.len() as u64).to_le_bytes();
    out.extend([&len[..], &masked_crc(&len), &event, &masked_crc(&event)].concat());
}

fn scalar(tag: &str, value: f32) -> Vec<u8> {
    [bytes(1, tag.as_bytes()), [&[0x15][..], &value.to_le_bytes()].concat()].concat()
}

/// The file, and how many records are in it.
fn file(steps: u64, histogram: Option<&[u8]>) -> (Vec<u8>, u64) {
    let (mut out, mut records) = (Vec::new(), 0);
    for step in 1..=steps {
        let loss = 1.5 + 10.0 / step as f32;
        let tags = [
            ("lm loss", loss),
            ("grad-norm", 0.25 + loss),
            ("learning-rate", 3e-4),
            ("iteration-time", 1.25),
        ];
        for (tag, value) in tags {
            record(&mut out, step, &scalar(tag, value));
        }
        records += tags.len() as u64;
        if let Some(histogram) = histogram {
            record(&mut out, step, &[bytes(1, b"weights"), bytes(5, histogram)].concat());
            records += 1;
        }
    }
    (out, records)
}

fn measure(what: &str, (data, records): (Vec<u8>, u64)) {
    let Some(mut reader) = FileReader::new(Path::new("events.out.tfevents.1795226853.vm"), &[]) else {
        return;
    };
    let started = Instant::now();
    let (mut events, mut count, mut pending) = (Vec::new(), 0, Vec::new());
    for piece in data.chunks(PIECE) {
        pending.extend_from_slice(piece);
        let pushed = reader.push(&pending, false, &mut events);
        pending.drain(..pushed.consumed);
        count += events.len();
        events.clear();
    }
    reader.push(&pending, true, &mut events);
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{what}: {:.0} MB/s, {:.2} million records/s, {:.0} ns a record ({} events of {records} records)",
        data.len() as f64 / 1e6 / seconds,
        records as f64 / 1e6 / seconds,
        seconds * 1e9 / records as f64,
        count + events.len(),
    );
}

fn main() {
    measure("scalars", file(STEPS, None));
    measure("scalars and histograms", file(STEPS / 20, Some(&vec![7; 30_000])));
}

//! Remote write requests: small bodies that expand, endless series, a sample for every millisecond,
//! and runs that do not exist or belong to others.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use stepwatch_tests::remote_write::{Point, compressed, request};

use super::otlp::message;
use crate::attack::{Attack, Target, post};
use crate::stage::GENUINE;

pub(crate) const BOMBS: Attack = Attack::new("write-bombs", bombs);
pub(crate) const SERIES: Attack = Attack::new("write-series", |target| endless(target, unknown));
pub(crate) const WATCHED: Attack = Attack::new("write-watched", |target| endless(target, watched));
pub(crate) const SAMPLES: Attack = Attack::new("write-samples", samples);
pub(crate) const RUNS: Attack = Attack { pages: PAGES, ..Attack::new("write-runs", runs) };

/// The most pages about new runs: docs/incidents.md.
const PAGES: usize = 15;

const PATH: &str = "/api/v1/write";
const OF_1: &str = "content-type: application/x-protobuf\r\ncontent-encoding: snappy\r\n";
const OF_2: &str = "content-type: application/x-protobuf;proto=io.prometheus.write.v2.Request\r\n\
                    content-encoding: snappy\r\n";
const SENDERS: usize = 4;
/// The largest decompressed body, and the number of two-byte messages in it.
const DECOMPRESSED: usize = 16 << 20;
const EMPTY: usize = DECOMPRESSED / 2;
/// The numbers of empty samples and series just below the limits of a request.
const EMPTY_SAMPLES: usize = 199_999;
const EMPTY_SERIES: usize = 49_999;
const SYMBOLS: usize = 199_999;

const SERIES_OF_A_REQUEST: usize = 1_000;
/// The labels of a series in addition to its name, and the length of a long value in four-byte
/// characters, of which 256 are kept.
const LABELS: [&str; 11] =
    ["cluster", "instance", "job", "name", "namespace", "node", "pod", "rack", "region", "run", "zone"];
const WIDE: usize = 240;

/// The milliseconds that a sample may be old and ahead, less some time for sending it.
const OLD_MS: i64 = 240_000;
const AHEAD_MS: i64 = 540_000;

const RUNS_OF_A_REQUEST: usize = 100;

/// Sends a request and accepts any answer: a sender that must wait continues.
fn send(target: &Target, headers: &str, body: &[u8]) -> Option<u16> {
    post(target.alerter, PATH, headers, body)
}

/// Whether the alerter accepted the request, or may accept it later, as the attack intends.
fn is_taken(status: Option<u16>) -> bool {
    matches!(status, None | Some(204 | 503))
}

/// Runs `act` in several sender threads.
fn each_sender(act: impl Fn(usize) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    std::thread::scope(|threads| {
        let act = &act;
        let senders: Vec<_> = (0..SENDERS).map(|sender| threads.spawn(move || act(sender))).collect();
        senders.into_iter().try_for_each(|sender| {
            sender.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a sender panicked")))
        })
    })
}

/// The time by the alerter's clock, in milliseconds.
fn now_ms(target: &Target) -> anyhow::Result<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(i64::try_from(since.as_millis())? + 1000 * target.ahead)
}

fn bombs(target: &Target) -> anyhow::Result<()> {
    let series = |inner: &[u8]| message(1, &[message(1, &message(1, b"__name__")), inner.to_vec()].concat());
    let mut false_length = varint(DECOMPRESSED as u64);
    false_length.resize(DECOMPRESSED / 21, 0);
    let bodies = [
        (OF_1, compressed(&message(1, b"").repeat(EMPTY)), 400),
        (OF_1, compressed(&message(3, b"").repeat(EMPTY)), 204),
        (OF_1, compressed(&series(&message(2, b"").repeat(EMPTY_SAMPLES))), 400),
        (OF_1, compressed(&message(1, &message(4, b"").repeat(160)).repeat(EMPTY_SERIES)), 400),
        (OF_2, compressed(&message(4, b"").repeat(SYMBOLS)), 204),
        (OF_2, compressed(&message(9, b"").repeat(EMPTY)), 204),
        (OF_1, false_length, 400),
    ];
    for (headers, body, expected) in &bodies {
        let status = send(target, headers, body).context("the alerter does not answer")?;
        anyhow::ensure!(status == *expected, "{} bytes: {status} instead of {expected}", body.len());
    }
    each_sender(|_| {
        loop {
            for (headers, body, _) in &bodies {
                let _ = send(target, headers, body);
            }
        }
    })
}

/// Sends new series in every request.
fn endless(target: &Target, labels: fn(usize) -> Vec<(&'static str, String)>) -> anyhow::Result<()> {
    each_sender(|sender| {
        for first in (0..).step_by(SERIES_OF_A_REQUEST) {
            let numbers = (first..first + SERIES_OF_A_REQUEST).map(|n| n * SENDERS + sender);
            let sets: Vec<_> = numbers.map(labels).collect();
            let status = send(target, OF_1, &scrape(&sets, now_ms(target)?, |_| 1.0));
            anyhow::ensure!(first > 0 || is_taken(status), "new series: {status:?}");
        }
        Ok(())
    })
}

/// One sample of each series, all at one time.
fn scrape(sets: &[Vec<(&'static str, String)>], ts_ms: i64, value: impl Fn(&str) -> f64) -> Vec<u8> {
    let borrowed: Vec<Vec<(&str, &str)>> =
        sets.iter().map(|set| set.iter().map(|(name, text)| (*name, text.as_str())).collect()).collect();
    let value = |labels: &[(&str, &str)]| value(labels.first().map_or("", |(_, name)| name));
    let points: Vec<Point<'_>> =
        borrowed.iter().map(|labels| (labels.as_slice(), ts_ms, value(labels))).collect();
    request(&points)
}

/// The labels of a series that is not watched.
fn unknown(n: usize) -> Vec<(&'static str, String)> {
    let rest = LABELS.iter().map(|label| (*label, format!("{label}-{n}")));
    [("__name__", format!("container_{}", n % 50))].into_iter().chain(rest).collect()
}

/// The labels of a run's metric, with the longest names that are kept; the first label
/// distinguishes the series.
fn watched(n: usize) -> Vec<(&'static str, String)> {
    let wide = "\u{10330}".repeat(WIDE);
    let text = |label: &str| if label == "cluster" { n.to_string() } else { format!("{n}-{wide}") };
    let rest = LABELS.iter().map(|label| (*label, text(label)));
    [("__name__", "train_custom".to_owned())].into_iter().chain(rest).collect()
}

/// A request about one run with a sample of two series for every accepted millisecond: each looks
/// like a scrape.
fn samples(target: &Target) -> anyhow::Result<()> {
    let now = now_ms(target)?;
    let half = i64::midpoint(AHEAD_MS, OLD_MS);
    let points: Vec<u8> = (now - OLD_MS..now - OLD_MS + half)
        .step_by(4)
        .flat_map(|ts_ms| {
            let value = if ts_ms % 2 == 0 { 0.0 } else { 1.0 };
            let value = [&[1 << 3 | 1][..], &f64::to_le_bytes(value)].concat();
            message(2, &[value, vec![2 << 3], varint(ts_ms.cast_unsigned())].concat())
        })
        .collect();
    each_sender(|sender| {
        for n in 0.. {
            let run = format!("dense-{sender}-{n}");
            let series = |name: &str| {
                let labels = [("__name__", name), ("instance", run.as_str()), ("run", run.as_str())];
                let labels = labels.map(|(name, text)| {
                    message(1, &[message(1, name.as_bytes()), message(2, text.as_bytes())].concat())
                });
                message(1, &[labels.concat(), points.clone()].concat())
            };
            let body = [series("train_checkpoint_in_progress"), series("train_loss")].concat();
            let status = send(target, OF_1, &compressed(&body));
            anyhow::ensure!(n > 0 || is_taken(status), "samples: {status:?}");
        }
        Ok(())
    })
}

/// NaN of new runs, each from another instance, and of the genuine run from instances other than
/// its exporter, and samples that the exporter does not answer.
fn runs(target: &Target) -> anyhow::Result<()> {
    let set = |name: &str, run: &str, instance: &str, rank: &str| {
        let labels = [("__name__", name), ("instance", instance), ("rank", rank), ("run", run)];
        labels.map(|(label, text)| (label, text.to_owned())).to_vec()
    };
    for first in (0_usize..).step_by(RUNS_OF_A_REQUEST) {
        let mut sets = Vec::new();
        for n in first..first + RUNS_OF_A_REQUEST {
            for name in ["train_step", "train_loss", "train_grad_norm"] {
                let (run, instance) = (format!("invented-{n}"), format!("node{n}:9765"));
                sets.push(set(name, &run, &instance, "0"));
                let rank = if n % 2 == 0 { "" } else { "0" };
                sets.push(set(name, GENUINE, &instance, rank));
                sets.push(set(name, GENUINE, &target.exporter.to_string(), rank));
            }
        }
        sets.push(set("up", "", &target.exporter.to_string(), ""));
        let now = now_ms(target)?;
        for (ts_ms, step, loss, up) in [(now, 1.0, 2.0, 1.0), (now + 1, 2.0, f64::NAN, 0.0)] {
            let value = |name: &str| match name {
                "train_step" => step,
                "up" => up,
                _ => loss,
            };
            let status = send(target, OF_1, &scrape(&sets, ts_ms, value));
            anyhow::ensure!(first > 0 || is_taken(status), "new runs: {status:?}");
        }
    }
    Ok(())
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

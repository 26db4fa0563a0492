//! An exporter that lies to the alerter: a million runs, errors of other nodes, and a NaN of
//! another user's run. A second one sends records that need a hundred times their text in memory; a
//! third reports five hundred metrics in each of its runs; a fourth has the most runs allowed on
//! its node, and endless errors of its GPU.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::attack::{Attack, Target};
use crate::stage::GENUINE;

pub(crate) const ATTACK: Attack = Attack {
    pages: PAGES,
    records: RUNS * LIES,
    ..Attack::new("lying-exporter", |target| act(target, lies))
};
pub(crate) const NESTED: Attack = Attack::new("nested-records", |target| act(target, nested));
pub(crate) const SIGNALS: Attack = Attack::new("many-signals", |target| act(target, signals));
/// Endless faults of its own node.
pub(crate) const FAULTS: Attack =
    Attack { pages: 1, ..Attack::new("many-faults", |target| act(target, faults)) };

/// The most pages of one origin about new runs: docs/incidents.md.
const PAGES: usize = 15;
const RUNS: u64 = 1_000_000;
/// The number of records of each run.
const LIES: u64 = 5;
/// The number of runs for each error of the exporter's own node: the cost of such an error grows
/// with them.
const RUNS_OF_FAULT: u64 = 64;
const BATCH: u64 = 500;
/// The size of a record in bytes.
const RECORD: usize = 16 << 10;
/// The number of runs with many metrics, and the number of records of one step.
const RUNS_WITH_SIGNALS: u64 = 500;
const RECORDS_OF_STEP: u64 = 5;
const BOOT: &str = "0123456789abcdef";

fn act(target: &Target, batch: fn(&Target, u64) -> String) -> anyhow::Result<()> {
    act_by(target, 1, batch)
}

/// Serves the batches that `batch` creates from the number of their first item, until it returns an
/// empty one. An item is `records` records.
fn act_by(target: &Target, records: u64, batch: fn(&Target, u64) -> String) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let list = json!([{"targets": [listener.local_addr()?.to_string()]}]);
    let draft = target.dir.join("lying.draft");
    std::fs::write(&draft, list.to_string())?;
    std::fs::rename(draft, target.targets.join("lying.json"))?;
    for stream in listener.incoming() {
        // A reader that is cut off reconnects, and sends the position that it has read.
        let _ = answer(stream?, target, records, batch);
    }
    Ok(())
}

fn answer(
    mut stream: TcpStream,
    target: &Target,
    records: u64,
    batch: fn(&Target, u64) -> String,
) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut head = [0; 4096];
    let length = stream.read(&mut head)?;
    let asked = String::from_utf8_lossy(head.get(..length).unwrap_or_default()).into_owned();
    if !asked.contains("/v1/stream") {
        stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")?;
        return Ok(());
    }
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n")?;
    let cursor = asked.split_once(&format!("after={BOOT}:")).map(|(_, rest)| rest);
    let read = cursor.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok());
    let mut next = read.unwrap_or(0) / records;
    loop {
        let lines = batch(target, next);
        if lines.is_empty() {
            break;
        }
        stream.write_all(lines.as_bytes())?;
        next += BATCH;
    }
    // Until the reader closes the connection.
    stream.set_read_timeout(None)?;
    Ok(stream.read_exact(&mut [0])?)
}

fn lies(target: &Target, first: u64) -> String {
    (first..(first + BATCH).min(RUNS)).map(|n| lie(target, n)).collect::<Vec<_>>().concat()
}

fn nested(_: &Target, first: u64) -> String {
    let lines = (first..first + BATCH).map(|n| {
        let head = format!(r#"{{"c":"{BOOT}:{}","v":1,"k":"hb","run":"r","node":"nested","x":["#, n + 1);
        let values = vec![r#"{"":0}"#; (RECORD - head.len() - 3) / 7].join(",");
        format!("{head}{values}]}}\n")
    });
    lines.collect::<Vec<_>>().concat()
}

fn signals(target: &Target, first: u64) -> String {
    let ts = time(target);
    let lines = (first..first + BATCH).map(|n| {
        let (run, step) = (n % RUNS_WITH_SIGNALS, n / RUNS_WITH_SIGNALS / RECORDS_OF_STEP);
        let part = n / RUNS_WITH_SIGNALS % RECORDS_OF_STEP;
        let value = |i: u64| 1.0 + 0.01 * ((i * 7 + step * 31) % 17) as f64;
        let names = (part * 100..part * 100 + 100).map(|i| (format!("{i:0>120}"), json!(value(i))));
        let mut m: serde_json::Map<_, _> = names.collect();
        m.insert("loss".into(), 2.0.into());
        let run = format!("signals-{run}");
        let event = json!({
            "c": format!("{BOOT}:{}", n + 1), "v": 1, "k": "step", "ts": ts, "run": run, "rank": 0, "step": step, "m": m
        });
        format!("{event}\n")
    });
    lines.collect::<Vec<_>>().concat()
}

fn time(target: &Target) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs_f64() + target.ahead as f64
}

fn lie(target: &Target, n: u64) -> String {
    let ts = time(target);
    // A fault of its own node, and one of another.
    let (node, other) = ("lying", format!("invented-{n}"));
    let events = [
        json!({"k": "hello", "run": format!("lie-{n}"), "rank": 0, "world": 1, "node": node}),
        json!({"k": "step", "run": format!("lie-{n}"), "rank": 0, "step": 1, "m": {"loss": "NaN"}, "node": node}),
        xid(if n.is_multiple_of(RUNS_OF_FAULT) { node } else { &other }),
        json!({"k": "step", "run": GENUINE, "rank": 0, "step": 1_000_000 + n, "m": {"loss": "NaN"}, "node": other}),
        json!({"k": "step", "run": GENUINE, "rank": 0, "step": 1_000_000 + n, "m": {"loss": "NaN"}, "node": node}),
    ];
    let lines = events.into_iter().zip(n * LIES + 1..).map(|(event, seq)| record(event, seq, ts));
    lines.collect::<Vec<_>>().concat()
}

fn xid(node: &str) -> Value {
    json!({"k": "xid", "node": node, "code": 79, "level": "error", "gpu": "GPU-0", "text": "GPU has fallen off the bus"})
}

fn record(mut event: Value, seq: u64, ts: f64) -> String {
    if let Some(fields) = event.as_object_mut() {
        fields.insert("v".into(), 1.into());
        fields.insert("ts".into(), ts.into());
        fields.insert("c".into(), format!("{BOOT}:{seq}").into());
    }
    format!("{event}\n")
}

fn faults(target: &Target, first: u64) -> String {
    let (ts, node) = (time(target), "faulty");
    let lines = (first..first + BATCH).map(|n| {
        let step = n / BATCH;
        let of_run = json!({"k": "step", "run": format!("on-faulty-{}", n % BATCH), "rank": 0, "step": step, "m": {"loss": 2.5}, "node": node});
        // A step of every run, and then as many errors.
        let event = if step.is_multiple_of(2) { of_run } else { xid(node) };
        record(event, n + 1, ts)
    });
    lines.collect::<Vec<_>>().concat()
}

//! Logs made here byte by byte; logs of the real client are in `tests/binary.rs`.

use std::path::Path;

use proptest::prelude::*;
use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, MAX_EVENT_BYTES, Value};

use super::{BLOCK_BYTES, HEADER};
use crate::{FileReader, MAX_PENDING_BYTES, MAX_RECORD_BYTES, Pushed};

const BLOCK: usize = BLOCK_BYTES as usize;

fn varint(mut v: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
    out
}

fn bytes(field: u64, data: &[u8]) -> Vec<u8> {
    [&varint(field << 3 | 2)[..], &varint(data.len() as u64), data].concat()
}

fn item(key: &str, json: &str) -> Vec<u8> {
    let key: Vec<u8> = key.split('.').flat_map(|k| bytes(2, k.as_bytes())).collect();
    bytes(1, &[key, bytes(16, json.as_bytes())].concat())
}

fn history(items: &[(&str, &str)]) -> Vec<u8> {
    bytes(2, &items.iter().flat_map(|(k, v)| item(k, v)).collect::<Vec<_>>())
}

fn step(n: i64, loss: &str) -> Vec<u8> {
    let (n, ts) = (n.to_string(), format!("{}", 1.7e9 + n as f64));
    history(&[("_step", &n), ("_timestamp", &ts), ("train/loss", loss), ("perf.mfu", "0.4")])
}

fn run(name: &str, config: &[(&str, &str)]) -> Vec<u8> {
    let config: Vec<u8> = config.iter().flat_map(|(k, v)| item(k, v)).collect();
    bytes(17, &[bytes(1, b"1onpol40"), bytes(4, &config), bytes(8, name.as_bytes())].concat())
}

/// Writes records as LevelDB's log writer does.
fn log(records: &[Vec<u8>]) -> Vec<u8> {
    let mut out = HEADER.to_vec();
    for record in records {
        let (mut rest, mut first) = (&record[..], true);
        loop {
            let left = BLOCK - out.len() % BLOCK;
            if left < 7 {
                out.extend(vec![0; left]);
                continue;
            }
            let (data, after) = rest.split_at(rest.len().min(left - 7));
            let kind = match (first, after.is_empty()) {
                (true, true) => 1u8,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            let crc = crc32fast::hash(&[&[kind], data].concat());
            out.extend(crc.to_le_bytes());
            out.extend((data.len() as u16).to_le_bytes());
            out.push(kind);
            out.extend(data);
            (rest, first) = (after, false);
            if rest.is_empty() {
                break;
            }
        }
    }
    out
}

fn reader(head: &[u8]) -> FileReader {
    FileReader::new(Path::new("wandb/run-20261121_064132-1onpol40/run-1onpol40.wandb"), head).unwrap()
}

fn read(data: &[u8]) -> (Vec<Event>, Pushed) {
    let mut out = Vec::new();
    let pushed = reader(b"").push(data, true, &mut out);
    (out, pushed)
}

fn losses(events: &[Event]) -> Vec<(i64, f64)> {
    let steps = events.iter().filter(|e| e.kind == Kind::Step);
    steps.filter_map(|e| Some((e.step?, e.m.get("loss")?))).collect()
}

#[test]
fn a_run_from_hello_to_goodbye() {
    let alert = bytes(10, &[bytes(1, b"Low accuracy"), bytes(2, b"0.1"), bytes(3, b"WARN")].concat());
    let (events, pushed) = read(&log(&[
        run("sample-run", &[("lr", "0.1"), ("api_key", "\"secret\"")]),
        step(0, "2.5"),
        bytes(7, b"stats"),
        step(1, "NaN"),
        alert,
        step(2, "Infinity"),
        bytes(18, &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
    ]));
    assert!(pushed.bad_records + pushed.unmatched == 0 && pushed.stop.is_none());
    assert!(events.iter().all(|e| e.run.as_deref() == Some("1onpol40")));
    assert_eq!(events[0].extra["title"].as_str(), Some("sample-run"), "others may be shown under it too");
    let kinds: Vec<_> = events.iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [Kind::Hello, Kind::Step, Kind::Step, Kind::Event, Kind::Step, Kind::Bye]);
    assert_eq!(format!("{:?}", losses(&events)), "[(0, 2.5), (1, NaN), (2, inf)]");
    assert_eq!((events[1].ts, events[1].m.get("mfu_reported")), (Some(1.7e9), Some(0.4)));
    let alert = &events[3];
    assert_eq!((alert.name.as_deref(), alert.level.as_deref()), (Some("wandb_alert"), Some("warn")));
    assert_eq!((alert.text.as_deref(), alert.step), (Some("Low accuracy: 0.1"), Some(1)));
    assert_eq!((events[5].code, events[5].step), (Some(-1), Some(2)));
    assert!(!format!("{events:?}").contains("secret"));
}

/// Of each step: its loss, and what is missing of it.
fn missing(rows: impl IntoIterator<Item = Vec<u8>>) -> Vec<(i64, Option<f64>, Vec<String>)> {
    let rows: Vec<_> = [run("r", &[])].into_iter().chain(rows).collect();
    let (events, _) = read(&log(&rows));
    let steps = events.into_iter().filter(|e| e.kind == Kind::Step);
    steps.filter_map(|e| Some((e.step?, e.m.get("loss"), e.missing))).collect()
}

#[test]
fn a_number_that_turns_null_is_missing() {
    let lost = |n, what: &str| (n, None, vec![what.to_owned()]);
    let whole = |n: i64| step(n, "2.5");
    let found = missing((0..30).map(whole).chain([step(30, "null"), step(31, "null")]));
    assert_eq!(found[30..], [lost(30, "loss"), lost(31, "loss")]);
    assert!(found[..30].iter().all(|(_, loss, missing)| *loss == Some(2.5) && missing.is_empty()));
    let reward = |n: i64, value: &str| {
        history(&[("_step", &n.to_string()), ("train/loss", "2.5"), ("critic.rewards.mean", value)])
    };
    let found = missing((0..30).map(|n| reward(n, "0.5")).chain([reward(30, "null")]));
    assert_eq!(found[30].2, ["critic/rewards/mean"]);
}

#[test]
fn a_loss_with_a_name_of_its_own_is_the_loss() {
    let own = |n: i64, loss: &str| {
        history(&[("_step", &n.to_string()), ("train.diffusion_loss", loss), ("train.lr", "0.001")])
    };
    let found = missing((0..30).map(|n| own(n, "2.5")).chain([own(30, "NaN"), own(31, "null")]));
    assert!(found[..30].iter().all(|(_, loss, _)| *loss == Some(2.5)));
    assert!(found[30].1.is_some_and(f64::is_nan));
    assert_eq!(found[31], (31, None, vec!["loss".to_owned()]));
}

#[test]
fn a_configuration_describes_the_model() {
    let config = [
        ("transformers_version", "\"5.23.0\""),
        ("model/num_parameters", "8030261248"),
        ("num_hidden_layers", "32"),
        ("hidden_act", "\"silu\""),
        ("_name_or_path", "\"meta-llama/Llama-3-8B\""),
        ("bf16", "true"),
        ("trainer", r#"{"world_size": 16, "password": "secret"}"#),
    ];
    let (events, _) = read(&log(&[run("r", &config)]));
    let e = &events[0];
    let model = &e.extra["model"];
    assert_eq!(model.get("n_params").and_then(Value::as_f64), Some(8030261248.0));
    assert_eq!(model.get("num_hidden_layers").and_then(Value::as_f64), Some(32.0));
    assert_eq!(model.get("name").and_then(Value::as_str), Some("meta-llama/Llama-3-8B"));
    assert_eq!((e.extra["dtype"].as_str(), e.world), (Some("bf16"), Some(16)));
    assert_eq!(
        (e.extra["framework"].as_str(), e.extra["version"].as_str()),
        (Some("transformers"), Some("5.23.0"))
    );
    assert!(!e.extra.contains_key(hello::RESUMED));
}

#[test]
fn a_resumed_run_is_published_once_however_often_it_is_described() {
    let resumed = bytes(17, &[bytes(1, b"abc"), vec![0x90, 0x01, 0x01]].concat());
    let last = 7 + resumed.len();
    let data = log(&[resumed.clone(), resumed.clone(), step(5, "1.5"), resumed]);
    let is_resumed = |e: &Event| e.extra.get(hello::RESUMED) == Some(&Value::Bool(true));
    let (events, _) = read(&data);
    let hellos: Vec<_> = events.iter().filter(|e| e.kind == Kind::Hello).map(is_resumed).collect();
    assert_eq!(hellos, [true, false, false]);
    let mut later = reader(&data);
    let at = data.len() - last;
    later.resume(at as u64, Some(5));
    let mut out = Vec::new();
    later.push(&data[at..], true, &mut out);
    assert_eq!(out.iter().map(is_resumed).collect::<Vec<_>>(), [false]);
}

#[test]
fn the_step_is_the_trainer_s_own() {
    let row = |own: &str, n: &str, loss: &str| history(&[(own, n), ("_step", "1"), ("loss", loss)]);
    let (events, pushed) = read(&log(&[
        row("train/global_step", "10", "2.0"),
        history(&[("_step", "2"), ("memory", "5")]),
        row("train/global_step", "20", "1.5"),
    ]));
    assert_eq!((losses(&events), pushed.unmatched), (vec![(10, 2.0), (20, 1.5)], 1));
    let (events, _) = read(&log(&[row("trainer/global_step", "49", "2.0")]));
    assert_eq!(losses(&events), [(49, 2.0)]);
    let (events, _) = read(&log(&[bytes(2, &[item("loss", "1.5"), bytes(2, &[0x08, 7])].concat())]));
    assert_eq!(losses(&events), [(7, 1.5)], "the step beside the items");
}

#[test]
fn what_is_no_number_is_left_out() {
    let (events, _) = read(&log(&[history(&[
        ("_step", "1"),
        ("loss", "\"NaN\""),
        ("image", r#"{"_type": "image-file", "width": 5}"#),
        ("nested", r#"{"a": {"b": 1.5}, "text": "12"}"#),
        ("word", "\"12\""),
        ("list", "[1, 2]"),
    ])]));
    let m: Vec<_> = events[0].m.iter().map(|(n, v)| format!("{n}={v}")).collect();
    assert_eq!(m, ["loss=NaN", "nested/a/b=1.5"]);
}

/// Records of every length, over several blocks.
fn long_log() -> Vec<u8> {
    let padding = |n: usize| history(&[("_step", "0"), ("note", &format!("\"{}\"", "x".repeat(n)))]);
    let mut records = vec![run("long", &[])];
    for n in 1..=30 {
        records.push(padding(usize::try_from(n).unwrap() * 211 + 3000));
        records.push(step(n, &format!("{n}.5")));
    }
    records.push(padding(2 * BLOCK + 100));
    records.push(step(31, "31.5"));
    log(&records)
}

#[test]
fn nothing_is_lost_or_doubled_wherever_a_new_life_begins() {
    let data = long_log();
    assert!(data.len() > 5 * BLOCK);
    let want: Vec<_> = (1..=31).map(|n| (n, n as f64 + 0.5)).collect();
    for cut in (0..data.len()).step_by(997).chain([data.len()]) {
        let mut first = reader(b"");
        let mut events = Vec::new();
        first.push(&data[..cut], true, &mut events);
        let at = first.position();
        let mut second = reader(&data[..data.len().min(crate::HEAD_BYTES)]);
        second.resume(at, events.last().and_then(|e| e.step));
        second.push(&data[usize::try_from(at).unwrap()..], true, &mut events);
        assert_eq!(losses(&events), want, "cut at {cut}");
        assert!(events.iter().all(|e| e.run.as_deref() == Some("1onpol40")), "cut at {cut}");
    }
}

#[test]
fn damage_costs_the_rest_of_a_block() {
    let data = long_log();
    let mut bad = data.clone();
    bad[2 * BLOCK + 5000] ^= 1;
    let (events, pushed) = read(&bad);
    assert!(pushed.bad_records >= 1 && pushed.stop.is_none());
    let published = losses(&events);
    assert!(
        published.len() > 20 && published.len() < 31 && published.last() == Some(&(31, 31.5)),
        "{published:?}"
    );
}

#[test]
fn what_is_not_written_yet_is_waited_for() {
    let data = log(&[run("r", &[]), step(1, "1.5")]);
    for end in [0, 3, 7, 9, data.len() - 1] {
        let (mut r, mut events) = (reader(b""), Vec::new());
        let pushed = r.push(&data[..end], true, &mut events);
        r.push(&data[pushed.consumed..], false, &mut events);
        assert_eq!(losses(&events), [(1, 1.5)], "{end}");
    }
    let hole = [&data[..7], &[0; 100]].concat();
    let (mut r, mut events) = (reader(b""), Vec::new());
    let pushed = r.push(&hole, false, &mut events);
    assert_eq!((pushed.consumed, pushed.bad_records), (7, 0));
    r.push(&data[7..], false, &mut events);
    assert_eq!(losses(&events), [(1, 1.5)]);
}

#[test]
fn other_files_are_refused() {
    for head in [&b":W&B\xe1\xbe\x01 and more"[..], b"hello, world"] {
        let (events, pushed) = read(head);
        assert_eq!((events.len(), pushed.consumed), (0, head.len()));
        assert_eq!(pushed.stop, Some("it does not begin as a W&B log of version 0"));
    }
}

#[test]
fn a_long_record_is_dropped_and_its_bytes_are_not_kept() {
    let huge = history(&[("_step", "0"), ("note", &"x".repeat(MAX_RECORD_BYTES))]);
    let data = log(&[step(1, "1.5"), huge, step(2, "2.5")]);
    let (mut r, mut events, mut pending, mut oversized) = (reader(b""), Vec::new(), Vec::new(), 0);
    for piece in data.chunks(10_000) {
        pending.extend_from_slice(piece);
        let pushed = r.push(&pending, false, &mut events);
        pending.drain(..pushed.consumed);
        oversized += pushed.oversized;
        assert!(pending.len() <= BLOCK);
    }
    assert_eq!((losses(&events), oversized), (vec![(1, 1.5), (2, 2.5)], 1));
}

proptest! {
    #[test]
    fn mutated_logs_in_pieces(
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        sizes in proptest::collection::vec(1usize..5000, 1..20),
    ) {
        let mut data = log(&[run("r", &[("lr", "0.1")]), step(1, "1.5"), step(2, "2.5"), step(3, "3.5")]);
        for (at, with) in flips {
            let at = at.index(data.len());
            data[at] = with;
        }
        let (whole, _) = read(&data);
        let mut r = reader(&data);
        let (mut events, mut pending, mut rest) = (Vec::new(), Vec::new(), &data[..]);
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            rest = after;
            pending.extend_from_slice(piece);
            let pushed = r.push(&pending, rest.is_empty(), &mut events);
            prop_assert!(pushed.consumed <= pending.len());
            pending.drain(..pushed.consumed);
            prop_assert!(pending.len() < MAX_PENDING_BYTES);
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(losses(&events).len(), losses(&whole).len());
    }

    #[test]
    fn never_panics(data: Vec<u8>) {
        let (events, _) = read(&log(&[data]));
        prop_assert!(events.iter().all(|e| e.to_json().len() <= MAX_EVENT_BYTES));
    }

    #[test]
    fn never_panics_on_bytes(data: Vec<u8>) {
        read(&[HEADER, &data].concat());
    }
}

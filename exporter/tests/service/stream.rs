//! The stream of the real binary: complete, resumable, and out of reach of slow readers.
use std::io::Write as _;
use std::net::TcpStream;

use crate::support::{Exporter, Records, eventually};
use serde_json::Value;

fn start(extra: &str) -> (tempfile::TempDir, Exporter) {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(dir.path(), &format!("exposition: {{interval: 20ms}}\n{extra}"));
    (dir, exporter)
}

/// On an empty machine: no events of collectors come between.
fn start_in_the_void(extra: &str) -> (tempfile::TempDir, Exporter) {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start_on_tree(dir.path(), &format!("exposition: {{interval: 20ms}}\n{extra}"));
    (dir, exporter)
}

fn send(exporter: &Exporter, steps: std::ops::Range<i64>) {
    let lines: Vec<String> =
        steps.map(|s| format!(r#"{{"k":"step","run":"r","rank":0,"step":{s},"loss":2.5}}"#)).collect();
    for lines in lines.chunks(2_000) {
        // One user may not send all of them at once.
        eventually(|| "a body is taken".into(), || exporter.post(&lines.join("\n")).status == 202);
    }
}

fn steps(records: &mut Records, n: usize) -> Vec<Value> {
    (0..n).map(|_| records.find(|r| r["k"] == "step")).collect()
}

#[test]
fn every_step_in_order_to_every_reader() {
    let (_dir, exporter) = start("");
    let mut live = exporter.stream(None);
    send(&exporter, 0..500);
    let mut late = exporter.stream(None);
    for records in [&mut live, &mut late] {
        let got = steps(records, 500);
        assert!(got.iter().enumerate().all(|(i, r)| r["step"] == i as i64));
        assert_eq!((got[0]["node"].clone(), got[0]["attempt"].clone()), ("n1".into(), 0.into()));
        assert!(got[0]["ts"].as_f64().unwrap() > 1.7e9);
    }
    exporter.wait_for("stepwatch_exporter_stream_readers", 2.0);
    drop((live, late));
    exporter.wait_for("stepwatch_exporter_stream_readers", 0.0);
}

#[test]
fn a_cursor_resumes_where_it_was() {
    let (_dir, exporter) = start("");
    send(&exporter, 0..10);
    let cursor = steps(&mut exporter.stream(None), 4)[3]["c"].as_str().unwrap().to_owned();
    send(&exporter, 10..12);
    let rest = steps(&mut exporter.stream(Some(&cursor)), 8);
    assert_eq!((rest[0]["step"].clone(), rest[7]["step"].clone()), (4.into(), 11.into()));
    let bad = exporter.request("GET", "/v1/stream?after=nonsense", "");
    assert!(bad.status == 400 && bad.json()["error"].as_str().unwrap().contains("<boot>:<seq>"));
}

#[test]
fn what_fell_off_the_ring_is_one_gap_with_a_number() {
    let (dir, exporter) = start("stream: {max_records: 100}\n");
    send(&exporter, 0..1);
    let cursor = steps(&mut exporter.stream(None), 1)[0]["c"].as_str().unwrap().to_owned();
    send(&exporter, 1..300);
    let mut records = exporter.stream(Some(&cursor));
    let gap = records.next_record().unwrap();
    assert_eq!(gap["k"], "gap");
    // Events that the exporter itself published before have their own share of the ring.
    let lost = gap["lost"].as_i64().unwrap();
    assert!((199..210).contains(&lost), "{gap}");
    assert_eq!(records.next_record().unwrap()["step"], lost + 1);
    drop(records);
    // Where the stream was not kept, another start of the exporter cannot count what was lost of
    // the one before.
    assert!(exporter.stop().0);
    std::fs::remove_file(dir.path().join("stream.journal")).unwrap();
    let exporter = Exporter::start(dir.path(), "");
    send(&exporter, 300..301);
    let mut records = exporter.stream(Some(&cursor));
    let gap = records.next_record().unwrap();
    assert_eq!((gap["k"].clone(), gap["lost"].clone()), ("gap".into(), 0.into()));
    assert!(gap["text"].as_str().unwrap().contains("earlier start"));
    assert_eq!(steps(&mut records, 1)[0]["step"], 300);
}

#[test]
fn a_cursor_outlives_the_exporter() {
    let (dir, exporter) = start("");
    send(&exporter, 0..10);
    let cursor = steps(&mut exporter.stream(None), 8)[7]["c"].as_str().unwrap().to_owned();
    exporter.signal(rustix::process::Signal::KILL);
    drop(exporter);
    let exporter = Exporter::start(dir.path(), "");
    send(&exporter, 10..12);
    let rest = steps(&mut exporter.stream(Some(&cursor)), 4);
    let numbers: Vec<_> = rest.iter().map(|r| r["step"].as_i64().unwrap()).collect();
    assert_eq!(numbers, [8, 9, 10, 11], "nothing is lost, nothing is sent twice, and there is no gap");
    assert_eq!(exporter.page().get("stepwatch_exporter_stream_journal_failures_total"), Some(0.0));
}

#[test]
fn an_idle_stream_beats() {
    let (_dir, exporter) = start_in_the_void("stream: {heartbeat: 20ms}\n");
    let mut records = exporter.stream(None);
    for _ in 0..3 {
        let beat = records.next_record().unwrap();
        assert_eq!(
            (beat["k"].clone(), beat["run"].clone(), beat["node"].clone()),
            ("hb".into(), Value::Null, "n1".into())
        );
        assert!(beat["c"].as_str().unwrap().ends_with(":0"));
    }
}

#[test]
fn a_slow_reader_is_cut_off_and_the_rest_goes_on() {
    let (_dir, exporter) = start("stream: {slow_after: 500ms, max_records: 100000, max_bytes: 50000000}\n");
    let mut asleep = TcpStream::connect(exporter.addr).unwrap();
    asleep.write_all(b"GET /v1/stream HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    exporter.wait_for("stepwatch_exporter_stream_readers", 1.0);
    let mut awake = exporter.stream(None);
    // More than the buffers of two sockets hold.
    let reader = std::thread::spawn(move || steps(&mut awake, 60_000).len());
    send(&exporter, 0..60_000);
    assert_eq!(reader.join().unwrap(), 60_000);
    exporter.wait_for(r#"stepwatch_exporter_stream_cut_total{reason="slow"}"#, 1.0);
    exporter.wait_for("stepwatch_exporter_stream_readers", 0.0);
}

#[test]
fn readers_are_limited() {
    let (_dir, exporter) = start("stream: {max_readers: 1}\n");
    let _first = exporter.stream(None);
    exporter.wait_for("stepwatch_exporter_stream_readers", 1.0);
    assert_eq!(exporter.request("GET", "/v1/stream", "").status, 503);
    exporter.wait_for(r#"stepwatch_exporter_stream_cut_total{reason="refused"}"#, 1.0);
}

#[test]
fn a_stop_ends_the_stream() {
    let (_dir, exporter) = start_in_the_void("");
    let mut records = exporter.stream(None);
    send(&exporter, 0..1);
    assert_eq!(records.next_record().unwrap()["step"], 0);
    let began = std::time::Instant::now();
    assert!(exporter.stop().0);
    assert!(records.next_record().is_none());
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
}

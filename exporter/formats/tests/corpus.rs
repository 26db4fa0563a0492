//! Replays the fuzz corpus: whatever a fuzzer once broke stays mended without a fuzzer.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside the test functions")]

use std::path::Path;

use stepwatch_formats::{Reader, names};
use stepwatch_wire::Event;

fn read(log: &[u8], format: &str) -> Vec<Event> {
    let mut reader = Reader::new(Some(format)).unwrap();
    let mut events = Vec::new();
    for line in String::from_utf8_lossy(log).split('\n') {
        reader.line(line, &mut events);
    }
    let c = reader.counters();
    assert_eq!(c.lines, c.matched + c.ignored + c.unmatched);
    events
}

#[test]
fn corpus() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/reader");
    let mut files = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let (first, log) = bytes.split_first().unwrap();
        read(log, names()[usize::from(*first) % names().len()]);
        for format in names() {
            for e in read(log, format) {
                assert!(Event::parse(e.to_json().as_bytes()).is_ok(), "{}", e.to_json());
            }
        }
        files += 1;
    }
    assert!(files > 10, "the corpus is there");
}

//! Every framework's log is recognised as its own and as nobody else's.

use proptest::prelude::*;
use stepwatch_wire::{Event, Kind, MAX_EVENT_BYTES};

use crate::line_formats::FORMATS;
use crate::{LogReader, UnknownFormat};

/// Formats without a log here: the last resort, and a file that has checkpoints and no steps.
const ELSEWHERE: &[&str] = &["generic", "megatron-progress"];

/// Every log, and the format that must be found in it.
fn logs() -> Vec<(&'static str, &'static str)> {
    FORMATS.iter().flat_map(|f| f.samples.logs.iter().map(|text| (f.name, *text))).collect()
}

fn read(text: &str, format: Option<&str>) -> Result<(Vec<Event>, &'static str), UnknownFormat> {
    let mut reader = LogReader::new(format)?;
    let mut events = Vec::new();
    for line in text.lines() {
        reader.line(line, &mut events);
    }
    reader.rest(&mut events);
    Ok((events, reader.name()))
}

#[test]
fn every_format_has_a_log() {
    for f in FORMATS {
        assert_eq!(f.samples.logs.is_empty(), ELSEWHERE.contains(&f.name), "{}", f.name);
    }
}

#[test]
fn every_log_is_recognised_as_its_own() {
    for (format, text) in logs() {
        assert_eq!(read(text, None).unwrap().1, format, "{text:.200}");
    }
}

#[test]
fn no_log_is_read_by_another_format() {
    for f in FORMATS {
        // The last resort reads whatever has a step in it.
        let may = |other: &str| other == f.name || other == "generic" || f.samples.read_by.contains(&other);
        for other in FORMATS.iter().map(|other| other.name).filter(|other| !may(other)) {
            for text in f.samples.logs {
                let (events, _) = read(text, Some(other)).unwrap();
                let trained = events.iter().find(|e| matches!(e.kind, Kind::Step | Kind::Eval));
                assert!(trained.is_none(), "{other} reads {}: {trained:?}", f.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Lines of any logs in any order, cut and spliced: no format panics, and its events can be
    /// written and read again.
    #[test]
    fn mixed_and_broken_logs_stay_valid_events(
        picks in proptest::collection::vec((0..logs().len(), any::<usize>(), any::<usize>(), "[0-9.:=|,\\[\\] eE+-]{0,6}"), 1..12),
        format in 0..=FORMATS.len(),
    ) {
        let logs = logs();
        // One more than there are formats: `auto`.
        let mut reader = LogReader::new(FORMATS.get(format).map(|f| f.name)).unwrap();
        let mut events = Vec::new();
        for (log, line, at, splice) in &picks {
            let lines: Vec<&str> = logs[*log].1.lines().collect();
            let line = lines[line % lines.len()];
            let at = (0..=at % (line.len() + 1)).rev().find(|at| line.is_char_boundary(*at)).unwrap();
            reader.line(line, &mut events);
            reader.line(&format!("{}{splice}{}", &line[..at], &line[at..]), &mut events);
            reader.line(&line[..at], &mut events);
        }
        reader.rest(&mut events);
        let c = reader.counters();
        prop_assert_eq!(c.lines, c.matched + c.ignored + c.unmatched);
        for e in events {
            let json = e.to_json();
            if json.len() <= MAX_EVENT_BYTES {
                prop_assert!(Event::parse(json.as_bytes()).is_ok(), "{}", json);
            }
        }
    }
}

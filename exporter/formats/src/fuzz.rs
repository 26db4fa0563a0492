//! What the fuzz targets run, one function for each parser of outside bytes.
//!
//! Here and not in the targets, because most parsers are private to this crate, and because the
//! ordinary tests run the same functions over the corpora: whatever a fuzzer once broke stays
//! mended without a fuzzer. The module is there only in tests and with the feature `fuzz`, which
//! the targets ask for.

use stepwatch_wire::{Event, Value};

use crate::{LogReader, Rule, names, number, python};

/// Rules that logs of any kind are read by.
const RULES: &[(&str, bool)] = &[
    (r"(?P<step>\S+) (?P<loss>.*)", true),
    (r"^(?P<ts>[^|]*)\|(?P<step>\d+)/\d+\|(?P<loss>[^|]*)\|(?P<run>[^|]*)\|(?P<rank>.*)$", true),
    ("a", false),
];

/// The first byte chooses the format, the rest is the log.
pub fn reader(data: &[u8]) {
    let Some((first, log)) = data.split_first() else { return };
    let names = names();
    let name = names.get(usize::from(*first) % names.len()).copied();
    if let Ok(reader) = LogReader::new(name) {
        read(reader, log);
    }
}

/// The first byte chooses the rule, or 255 that the first line is one; the rest is the log.
pub fn rules(data: &[u8]) {
    let Some((first, log)) = data.split_first() else { return };
    if *first == u8::MAX {
        let text = String::from_utf8_lossy(log);
        let (pattern, log) = text.split_once('\n').unwrap_or((&text, ""));
        let made = LogReader::with_rule(&Rule { regex: Some(pattern.to_owned()), ..Rule::default() });
        made.into_iter().for_each(|reader| read(reader, log.as_bytes()));
        return;
    }
    let (pattern, is_regex) = RULES[usize::from(*first) % RULES.len()];
    let logfmt = [("step", "step"), ("loss", pattern), ("rank", "rank"), ("ts", "ts")];
    let rule = Rule {
        regex: is_regex.then(|| pattern.to_owned()),
        logfmt: (!is_regex).then(|| logfmt.map(|(ours, theirs)| (ours.to_owned(), theirs.to_owned())).into()),
        ..Rule::default()
    };
    LogReader::with_rule(&rule).into_iter().for_each(|reader| read(reader, log));
}

/// Numbers in text.
pub fn numbers(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for at in text.char_indices().map(|(i, _)| i).take(64) {
        let text = &text[at..];
        if let Some(n) = number::lex(text) {
            assert!(text.ends_with(n.rest), "what follows is the end");
            assert!(n.quantum.is_none_or(|q| q > 0.0 && q.is_finite()), "{n:?}");
        }
        let _ = (number::human(text), number::integer(text), number::after(text, ":"));
    }
}

/// Dicts as Python prints them.
pub fn dicts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some((_, rest)) = python::dict(&text) {
        assert!(text.ends_with(rest));
    }
}

/// JSON lines by every way to read them: our events, the frameworks', and keys that are given.
pub fn json(data: &[u8]) {
    if let Ok(v) = Value::parse(data) {
        let mut text = String::new();
        v.write(&mut text);
        assert!(Value::parse(text.as_bytes()).is_ok(), "what is written reads back: {text}");
    }
    if let Ok(reader) = LogReader::new(Some("jsonl")) {
        read(reader, data);
    }
    read(LogReader::with_keys([("step", "a.b"), ("loss", "l"), ("ts", "t"), ("rank", "r")]), data);
}

fn read(mut reader: LogReader, log: &[u8]) {
    let mut events = Vec::new();
    for line in String::from_utf8_lossy(log).split('\n') {
        reader.line(line, &mut events);
    }
    reader.rest(&mut events);
    let c = reader.counters();
    assert_eq!(c.lines, c.matched + c.ignored + c.unmatched);
    for e in events {
        let json = e.to_json();
        if json.len() <= stepwatch_wire::MAX_EVENT_BYTES {
            assert!(Event::parse(json.as_bytes()).is_ok(), "{json}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn replay(target: &str, run: fn(&[u8])) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        let mut files = 0;
        for entry in std::fs::read_dir(dir).unwrap() {
            run(&std::fs::read(entry.unwrap().path()).unwrap());
            files += 1;
        }
        assert!(files > 5, "the corpus of {target} is there");
    }

    #[test]
    fn corpora() {
        replay("reader", reader);
        replay("rules", rules);
        replay("numbers", numbers);
        replay("dicts", dicts);
        replay("json", json);
    }

    #[test]
    fn every_format_reads_every_log_of_the_corpus() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/reader");
        for entry in std::fs::read_dir(dir).unwrap() {
            let mut bytes = std::fs::read(entry.unwrap().path()).unwrap();
            for format in 0..names().len() {
                bytes[0] = format as u8;
                reader(&bytes);
            }
        }
    }
}

//! The first byte chooses the format, the rest is the log.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stepwatch_formats::{Reader, names};

fuzz_target!(|data: &[u8]| {
    let Some((first, log)) = data.split_first() else { return };
    let names = names();
    let mut reader = Reader::new(Some(names[usize::from(*first) % names.len()])).expect("a name from the list");
    let mut events = Vec::new();
    for line in String::from_utf8_lossy(log).split('\n') {
        reader.line(line, &mut events);
    }
    let c = reader.counters();
    assert_eq!(c.lines, c.matched + c.ignored + c.unmatched);
});

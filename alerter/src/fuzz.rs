//! The functions of the fuzz targets, one for each input of untrusted bytes; `alerter/fuzz` has the
//! targets and their corpora.
//!
//! This module is here because the parsers are private. An ordinary test runs the same functions
//! over the corpora, so that fixed bugs stay fixed without a fuzzer. It is compiled only in tests
//! and with the feature `fuzz`.

mod remote_write;

pub use remote_write::remote_write;

use stepwatch_engine::{AnyInput, Engine, SourceInput};
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::config::ResponderConfig;
use stepwatch_respond::effect::{Effect, Input};
use stepwatch_respond::external::PostedAlert;
use stepwatch_respond::oncall::Zone;
use stepwatch_respond::oncall::ical::Calendar;
use stepwatch_wire::MAX_RECORD_BYTES;

use crate::ingest::{LineSplitter, fuzz_groups};
use crate::{api, callbacks};

const NOW: Ts = Ts(1_795_227_416_000);
/// The most timers that may be due within one interval. An engine that sets the same timer
/// repeatedly exceeds it.
const MAX_TICKS: usize = 100_000;
/// The most occurrences of one event within ten years: one per minute.
const MAX_OCCURRENCES: usize = 6_000_000;

/// Feeds an exporter's stream, split into chunks at each byte 0xff, to the whole engine.
///
/// A line `~N` advances the time by N minutes; `!` closes the connection and `+` opens it again.
pub fn stream(data: &[u8]) {
    let mut engine = Running::new();
    let mut lines = LineSplitter::new(MAX_RECORD_BYTES);
    for chunk in data.split(|b| *b == 0xff) {
        lines.feed(chunk, |line| engine.line(line.unwrap_or_default()));
    }
    engine.check();
}

/// Posts alerts of another program. The accepted ones enter the engine, and time advances until all
/// have ended.
pub fn alerts(data: &[u8]) {
    let mut engine = Running::new();
    let alerts: Vec<PostedAlert> = api::fuzz_alerts(data, NOW);
    engine.handle(Input::Alerts { posted: &alerts });
    engine.pass(Span::secs(3600));
    engine.check();
}

/// Parses queries and silences of Alertmanager's API.
pub fn queries(data: &[u8]) {
    api::fuzz_queries(data);
}

/// Parses callbacks of Slack and PagerDuty, and their signature headers.
pub fn callbacks(data: &[u8]) {
    callbacks::fuzz(data);
}

/// Parses on-call calendars.
pub fn calendar(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(zone) = Zone::named("Europe/Berlin") else { return };
    let Ok(calendar) = Calendar::parse(&text, &zone) else { return };
    for event in calendar.events() {
        let _ = event.holds(NOW);
        let seen = event.occurrences(NOW, NOW + Span::secs(10 * 366 * 86_400)).take(MAX_OCCURRENCES).count();
        assert!(seen < MAX_OCCURRENCES, "an event occurs more than once a minute");
    }
}

/// Parses lists of exporters, as JSON and as YAML.
pub fn discovery(data: &[u8]) {
    fuzz_groups(&String::from_utf8_lossy(data));
}

/// An engine, its clock, and the runtime's handling of its effects.
struct Running {
    engine: Engine,
    now: Ts,
    out: Vec<Effect>,
}

impl Running {
    fn new() -> Self {
        let receivers = vec!["chat".into(), "pager".into()];
        let config =
            ResponderConfig { receivers, waking: vec!["pager".into()], ..ResponderConfig::default() };
        let mut running = Self { engine: Engine::new(config), now: NOW, out: Vec::new() };
        running.handle(SourceInput::SourceUp { source: "node1:9765", many_nodes: false });
        running
    }

    fn handle<'a>(&mut self, input: impl Into<AnyInput<'a>>) {
        self.engine.handle(self.now, input, &mut self.out);
        self.out.clear();
    }

    fn line(&mut self, line: &[u8]) {
        let source = "node1:9765";
        match line {
            [b'~', minutes, ..] => self.pass(Span::secs(60 * i64::from(*minutes))),
            [b'!', ..] => self.handle(SourceInput::SourceDown { source, reason: "connection refused" }),
            [b'+', ..] => self.handle(SourceInput::SourceUp { source, many_nodes: line.len() > 1 }),
            _ => {
                let Ok(mut event) = stepwatch_wire::Event::parse_record(line) else { return };
                event.clean();
                self.now = self.now + Span::millis(100);
                self.handle(SourceInput::Event { source, event: &event });
            }
        }
    }

    fn pass(&mut self, by: Span) {
        let until = self.now + by;
        let mut ticks = 0;
        while let Some((at, why)) = self.engine.next_deadline().filter(|(at, _)| *at <= until) {
            self.now = at.max(self.now);
            self.engine.tick(self.now, &mut self.out);
            self.out.clear();
            ticks += 1;
            assert!(ticks < MAX_TICKS, "{why} is due for ever");
        }
        self.now = until;
    }

    /// Checks that every open incident will notify again, and that the stored state can be read
    /// back.
    fn check(mut self) {
        self.pass(Span::secs(600));
        let flaws = self.engine.audit(self.now);
        assert!(flaws.is_empty(), "{flaws:?}");
        let parts = self.engine.take_dirty();
        let stored = parts.into_iter().filter_map(|(name, part)| Some((name, part?)));
        let (mut restored, unread) = Engine::restore(ResponderConfig::default(), stored);
        assert!(unread.is_empty(), "{unread:?}");
        restored.resume(self.now, &mut self.out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Target = fn(&[u8]);
    const TARGETS: &[(&str, Target)] = &[
        ("stream", stream),
        ("alerts", alerts),
        ("queries", queries),
        ("callbacks", callbacks),
        ("calendar", calendar),
        ("discovery", discovery),
        ("remote_write", remote_write),
    ];

    #[test]
    fn corpora() {
        for (name, target) in TARGETS {
            let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
            let files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
            assert!(files.len() > 2, "the corpus of {name} is there");
            files.iter().for_each(|file| target(&std::fs::read(file).unwrap()));
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>) {
            TARGETS.iter().for_each(|(_, target)| target(&bytes));
        }
    }
}

//! A log as a whole: strips each line, finds out which format it is written in, and counts.

use core::fmt;

use stepwatch_wire::{Event, Kind, Value};

use crate::clean::{self, MAX_JOINED_BYTES};
use crate::format::{self, FORMATS, Format, Line, Out, Outcome};
use crate::jsonl::Jsonl;
use crate::number::Resolution;
use crate::time::{self, Stamp};

/// Lines in a row that another format must read, while the current one reads none, to take its place.
const TAKEOVER: u32 = 3;
/// Events held back while another format is proving itself.
const MAX_HELD: usize = 16;
/// Entries of a key map.
pub const MAX_KEYS: usize = 64;

/// Reads the lines of one log.
///
/// With no format given, every format looks at every line until one reads a record. That one is trusted from
/// then on, but not for ever: when another reads several lines in a row of which the trusted one knew nothing
/// (a new job of another framework in the same file, or a first guess gone wrong), it takes over and loses none of them.
#[derive(Debug)]
pub struct Reader {
    candidates: Vec<Candidate>,
    /// Which candidate reads this log, as far as is known.
    current: Option<usize>,
    rival: Option<Rival>,
    resolution: Resolution,
    /// The pieces of a line that a container runtime cut, so far.
    joined: String,
    utc_offset: f64,
    local_stamp: Option<f64>,
    /// The goodbye, once the log has said it and no step came after it.
    ended: Option<Event>,
    counters: Counters,
}

/// Lines since the reader was made. `matched + ignored + unmatched == lines`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lines that were not blank; each drawing of a progress bar is one.
    pub lines: u64,
    pub matched: u64,
    pub ignored: u64,
    pub unmatched: u64,
}

/// The configured name is none of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownFormat(String);

#[derive(Debug)]
struct Candidate {
    name: &'static str,
    format: Box<dyn Format>,
}

/// A format that has begun to read what the current one cannot.
#[derive(Debug)]
struct Rival {
    candidate: usize,
    matches: u32,
    held: Vec<Event>,
}

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown log format {:?}; known are {}", self.0, format::names().join(", "))
    }
}

impl core::error::Error for UnknownFormat {}

impl Reader {
    /// `None` and `auto` find the format out.
    pub fn new(format: Option<&str>) -> Result<Self, UnknownFormat> {
        let wanted = format.filter(|f| *f != "auto");
        let candidates: Vec<_> = FORMATS
            .iter()
            .filter(|f| wanted.is_none_or(|w| w == f.name))
            .map(|f| Candidate { name: f.name, format: (f.new)() })
            .collect();
        match wanted {
            Some(w) if candidates.is_empty() => Err(UnknownFormat(w.chars().take(64).collect())),
            _ => Ok(Self::over(candidates, wanted.is_some())),
        }
    }

    /// JSON lines whose keys are told: ours (`step`, `ts`, `loss`, `grad_norm`, any metric) to theirs, dotted for nested objects.
    pub fn with_keys<'a>(keys: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let format = Box::new(Jsonl::with_keys(keys.into_iter().take(MAX_KEYS)));
        Self::over(vec![Candidate { name: "jsonl", format }], true)
    }

    fn over(candidates: Vec<Candidate>, settled: bool) -> Self {
        Self {
            candidates,
            current: settled.then_some(0),
            rival: None,
            resolution: Resolution::default(),
            joined: String::new(),
            utc_offset: 0.0,
            local_stamp: None,
            ended: None,
            counters: Counters::default(),
        }
    }

    /// Name of the format that reads this log; `auto` while none has read a line.
    pub fn name(&self) -> &'static str {
        self.current.and_then(|i| self.candidates.get(i)).map_or("auto", |c| c.name)
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How finely the metrics of this log are printed.
    pub fn resolution(&self) -> &Resolution {
        &self.resolution
    }

    /// Tells by how many seconds local time stamps of this log are ahead of UTC (0 if it is not told).
    pub fn set_utc_offset(&mut self, seconds: f64) {
        self.utc_offset = seconds;
    }

    /// The last time stamp without a zone that stood before a line, as if it were UTC. Whoever knows when that line was written
    /// can tell the zone from it.
    pub fn local_stamp(&self) -> Option<f64> {
        self.local_stamp
    }

    /// Goes on after `last_step`, which an earlier life of this reader has read.
    pub fn resume(&mut self, last_step: i64) {
        for c in &mut self.candidates {
            c.format.resume(last_step);
        }
    }

    /// Reads one line without its line ending, and appends what it says to `out`. A progress bar that redraws itself with `\r`
    /// may be one line or many. Of several records on one line the best outcome is returned.
    pub fn line(&mut self, line: &str, out: &mut Vec<Event>) -> Outcome {
        let plain = clean::strip_ansi(line);
        let mut best = Outcome::Ignored;
        for (i, segment) in clean::segments(&plain).enumerate() {
            let outcome = self.segment(segment, out);
            best = match (i, best, outcome) {
                (0, _, o) => o,
                (_, Outcome::Matched, _) | (_, _, Outcome::Matched) => Outcome::Matched,
                (_, Outcome::Ignored, _) | (_, _, Outcome::Ignored) => Outcome::Ignored,
                _ => Outcome::Unmatched,
            };
        }
        best
    }

    /// Nothing was appended for a while: appends what was gathered of a record of several lines.
    pub fn rest(&mut self, out: &mut Vec<Event>) {
        let first = out.len();
        if let Some(c) = self.current.and_then(|i| self.candidates.get_mut(i)) {
            c.format.rest(&mut Out::new(out, &mut self.resolution));
        }
        self.keep_ended(first, out);
    }

    fn segment(&mut self, segment: &str, out: &mut Vec<Event>) -> Outcome {
        if let Some((text, stamp)) = docker(segment) {
            return self.text(text.trim(), stamp, out);
        }
        let c = clean::strip(segment);
        if c.partial {
            let room = MAX_JOINED_BYTES.saturating_sub(self.joined.len());
            self.joined.extend(c.text.char_indices().take_while(|(i, _)| *i < room).map(|(_, ch)| ch));
            self.counters.lines += 1;
            self.counters.ignored += 1;
            return Outcome::Ignored;
        }
        if self.joined.is_empty() {
            return self.text(c.text, c.stamp, out);
        }
        let mut whole = core::mem::take(&mut self.joined);
        whole.push_str(c.text);
        let inner = clean::strip(&whole);
        self.text(inner.text, inner.stamp.or(c.stamp), out)
    }

    fn text(&mut self, text: &str, stamp: Option<Stamp>, out: &mut Vec<Event>) -> Outcome {
        if text.is_empty() {
            return Outcome::Ignored;
        }
        if let Some(Stamp::Local(s)) = stamp {
            self.local_stamp = Some(s);
        }
        let ts = stamp.map(|s| s.unix(self.utc_offset));
        let first = out.len();
        let outcome = self.probe(&Line { text, ts, utc_offset: self.utc_offset }, out);
        self.keep_ended(first, out);
        self.counters.lines += 1;
        match outcome {
            Outcome::Matched => self.counters.matched += 1,
            Outcome::Ignored => self.counters.ignored += 1,
            Outcome::Unmatched => self.counters.unmatched += 1,
        }
        outcome
    }

    /// Frameworks evaluate and save once more after they said that training is done. The last word about a run must stay
    /// the goodbye, or its silence would look like a hang.
    fn keep_ended(&mut self, first: usize, out: &mut Vec<Event>) {
        // Our own events say of which rank and run they are, and mean what they say.
        for e in out[first..].iter().filter(|e| e.rank.is_none() && e.run.is_none()) {
            match e.kind {
                Kind::Bye => self.ended = Some(e.clone()),
                Kind::Step => self.ended = None,
                _ => {}
            }
        }
        let last = out.get(first..).and_then(|new| new.last()).filter(|e| e.kind != Kind::Bye);
        if let (Some(bye), Some(last)) = (&self.ended, last) {
            out.push(Event { ts: last.ts, ..bye.clone() });
        }
    }

    /// Asks the current format, and the others if it does not know.
    fn probe(&mut self, line: &Line<'_>, out: &mut Vec<Event>) -> Outcome {
        let mut verdict = Outcome::Unmatched;
        if let Some(c) = self.current.and_then(|i| self.candidates.get_mut(i)) {
            verdict = c.format.line(line, &mut Out::new(out, &mut self.resolution));
            if verdict == Outcome::Matched {
                self.rival = None;
            }
            if verdict != Outcome::Unmatched {
                return verdict;
            }
        }
        for i in 0..self.candidates.len() {
            if Some(i) == self.current {
                continue;
            }
            let mut events = Vec::new();
            // Only whoever reads the log tells its resolution; while nobody does, the first may.
            let mut unused = Resolution::default();
            let resolution = if self.current.is_none() { &mut self.resolution } else { &mut unused };
            match self.candidates[i].format.line(line, &mut Out::new(&mut events, resolution)) {
                Outcome::Matched => return self.read_by(i, events, out),
                Outcome::Ignored if self.current.is_none() => verdict = Outcome::Ignored,
                _ => {}
            }
        }
        verdict
    }

    /// Candidate `i`, which is not the current one, has read a line.
    fn read_by(&mut self, i: usize, events: Vec<Event>, out: &mut Vec<Event>) -> Outcome {
        if self.current.is_none() {
            self.current = Some(i);
            out.extend(events);
            return Outcome::Matched;
        }
        let mut rival = match self.rival.take() {
            Some(r) if r.candidate == i => r,
            _ => Rival { candidate: i, matches: 0, held: Vec::new() },
        };
        rival.matches += 1;
        rival.held.extend(events);
        rival.held.truncate(MAX_HELD);
        if rival.matches >= TAKEOVER {
            self.current = Some(i);
            self.resolution = Resolution::default();
            out.append(&mut rival.held);
            return Outcome::Matched;
        }
        self.rival = Some(rival);
        Outcome::Unmatched
    }
}

/// Docker's json-file driver: `{"log":"text\n","stream":"stdout","time":"2026-…Z"}`.
fn docker(segment: &str) -> Option<(String, Option<Stamp>)> {
    let trimmed = segment.trim();
    if !trimmed.starts_with("{\"log\":") {
        return None;
    }
    let v = Value::parse(trimmed.as_bytes()).ok()?;
    let text = clean::strip_ansi(v.get("log")?.as_str()?).into_owned();
    let outer = v.get("time").and_then(Value::as_str).and_then(time::lead).map(|(s, _)| s);
    let c = clean::strip(&text);
    Some((c.text.to_owned(), c.stamp.or(outer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGATRON: &str =
        " iteration        7/     100 | elapsed time per iteration (ms): 10.0 | lm loss: 2.5E+00 |";

    fn auto() -> Reader {
        Reader::new(None).unwrap()
    }

    fn read(r: &mut Reader, lines: &[&str]) -> Vec<Event> {
        let mut out = Vec::new();
        for l in lines {
            r.line(l, &mut out);
        }
        out
    }

    #[test]
    fn names_are_checked() {
        assert!(Reader::new(Some("megatron")).is_ok_and(|r| r.name() == "megatron"));
        assert_eq!(Reader::new(Some("auto")).unwrap().name(), "auto");
        let e = Reader::new(Some("megatorn")).unwrap_err().to_string();
        assert!(e.starts_with("unknown log format \"megatorn\"; known are auto, megatron, jsonl"), "{e}");
    }

    #[test]
    fn locks_on_and_counts() {
        let mut r = auto();
        let events = read(&mut r, &["hello", "", MEGATRON, "time (ms) | forward: 1.0"]);
        assert_eq!((r.name(), events.len()), ("megatron", 1));
        assert_eq!(r.counters(), Counters { lines: 3, matched: 1, ignored: 1, unmatched: 1 });
        assert!((r.resolution().get("loss").unwrap() - 1e-1).abs() < 1e-9);
    }

    #[test]
    fn another_format_takes_over_and_loses_nothing() {
        let mut r = auto();
        let mut events = read(&mut r, &[MEGATRON, r#"{"step": 1, "loss": 1.5}"#, MEGATRON]);
        assert_eq!((r.name(), events.len()), ("megatron", 2));
        events = read(
            &mut r,
            &[
                r#"{"step": 1, "loss": 3.5}"#,
                "some noise",
                r#"{"step": 2, "loss": 2.5}"#,
                r#"{"step": 3, "loss": 1.5}"#,
            ],
        );
        assert_eq!(r.name(), "jsonl");
        assert_eq!(events.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn the_goodbye_is_the_last_word() {
        let mut r = auto();
        let kinds = |events: Vec<Event>| events.iter().map(|e| e.kind).collect::<Vec<_>>();
        let last = "validation loss at the end of training for val data | lm loss value: 2.0E+00 |";
        let events = read(&mut r, &[MEGATRON, "[after training is done] datetime: x", last, "noise"]);
        assert_eq!(kinds(events), [Kind::Step, Kind::Bye, Kind::Eval, Kind::Bye]);
        let events = read(&mut r, &[MEGATRON, last]);
        assert_eq!(kinds(events), [Kind::Step, Kind::Eval], "it trains again");
    }

    #[test]
    fn container_pieces_are_joined() {
        let stamp = "2026-05-29T03:52:45Z stdout";
        let (a, b) = MEGATRON.split_at(40);
        let mut r = auto();
        let events = read(&mut r, &[&format!("{stamp} P [default7]:{a}"), &format!("{stamp} F {b}")]);
        assert_eq!((events.len(), events[0].ts, events[0].step), (1, Some(1780026765.0), Some(7)));
        let log = format!(r#"{{"log":"{MEGATRON}\n","stream":"stdout","time":"2026-05-29T03:52:45.5Z"}}"#);
        let events = read(&mut auto(), &[&log]);
        assert_eq!((events[0].ts, events[0].step), (Some(1780026765.5), Some(7)));
    }

    #[test]
    fn a_piece_without_an_end_is_bounded() {
        let mut r = auto();
        let piece = format!("2026-05-29T03:52:45Z stdout P {}", "é".repeat(60_000));
        for _ in 0..4 {
            read(&mut r, &[&piece]);
        }
        assert!(r.joined.len() <= MAX_JOINED_BYTES + 1);
    }

    #[test]
    fn zones() {
        let mut r = auto();
        r.set_utc_offset(7200.0);
        let events = read(&mut r, &[&format!("[2026-05-29 05:52:45]{MEGATRON}")]);
        assert_eq!((events[0].ts, r.local_stamp()), (Some(1780026765.0), Some(1780033965.0)));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(lines: Vec<String>) {
            let mut r = auto();
            let mut out = Vec::new();
            for l in &lines {
                r.line(l, &mut out);
            }
            let c = r.counters();
            proptest::prop_assert_eq!(c.lines, c.matched + c.ignored + c.unmatched);
        }
    }
}

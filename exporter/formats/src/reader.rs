//! A log as a whole: strips each line, finds out which format it is written in, and counts.

mod origins;
mod rival;
#[cfg(test)]
mod tests;

use core::cell::Cell;
use core::fmt;

use stepwatch_wire::{Event, Kind};

use crate::absent::Absent;
use crate::clean::{self, Cleaned, KEPT_BYTES, MAX_JOINED_BYTES, Origin};
use crate::format::{Format, Line, Out, Outcome};
use crate::last_words::LastWords;
use crate::line_formats::jsonl::Jsonl;
use crate::line_formats::{self, Belief, FORMATS};
use crate::number::Resolution;
use crate::rule::{self, Rule, RuleError, Rules};
use crate::start_lines::StartLines;
use crate::time::Stamp;
use origins::{Origins, is_foreign};
use rival::Rival;

/// Entries of a key map.
pub const MAX_KEYS: usize = 64;

/// Reads the lines of one log.
///
/// With no format given, every format is tried on every line until one reads a record. That one is
/// trusted from then on, but not for ever: when another reads several lines in a row that the
/// trusted one did not match (a new job of another framework in the same file, or a wrong first
/// guess), it takes over and loses none of them. An engine, which prints beside the trainer that
/// uses it, gives way to the first record of a trainer; the last resort, which reads any line with
/// a step and a loss in it, is tried after all others even when it is trusted.
#[derive(Debug)]
pub struct LogReader {
    candidates: Vec<Candidate>,
    /// Which candidate reads this log, as far as is known.
    current: Option<usize>,
    /// It has read a record of training, and not only of a checkpoint or an end.
    proven: bool,
    rival: Option<Rival>,
    origins: Origins,
    resolution: Resolution,
    /// The pieces of a line that a container runtime cut, so far.
    joined: String,
    /// The rest of that line is dropped.
    joined_is_cut: bool,
    utc_offset: f64,
    local_stamp: Option<f64>,
    /// The goodbye, once the log has one and no step came after it.
    ended: Option<Event>,
    /// A candidate read the line that is looked at, trusted or not.
    read: bool,
    /// The line that is looked at only ended the record before it.
    only_ended: bool,
    last_words: LastWords,
    start_lines: StartLines,
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
    belief: Belief,
    absent: Absent,
}

impl Candidate {
    /// One that the configuration names.
    fn configured(name: &'static str, format: Box<dyn Format>) -> Self {
        Self { name, format, belief: Belief::Trainer, absent: Absent::default() }
    }
}

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown log format {:?}; known are {}", self.0, line_formats::names().join(", "))
    }
}

impl core::error::Error for UnknownFormat {}

impl LogReader {
    /// `None` and `auto` find the format out.
    pub fn new(format: Option<&str>) -> Result<Self, UnknownFormat> {
        let wanted = format.filter(|f| *f != "auto");
        let candidates: Vec<_> = FORMATS
            .iter()
            .filter(|f| wanted.is_none_or(|w| w == f.name))
            .map(|f| Candidate {
                name: f.name,
                format: (f.new)(),
                belief: if wanted.is_none() { f.belief } else { Belief::Trainer },
                absent: Absent::default(),
            })
            .collect();
        match wanted {
            Some(w) if candidates.is_empty() => Err(UnknownFormat(w.chars().take(64).collect())),
            _ => Ok(Self::over(candidates, wanted.is_some())),
        }
    }

    /// JSON lines whose keys are given: ours (`step`, `ts`, `loss`, `grad_norm`, any metric) to
    /// theirs, dotted for nested objects.
    pub fn with_keys<'a>(keys: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let format = Box::new(Jsonl::with_keys(keys.into_iter().take(MAX_KEYS)));
        Self::over(vec![Candidate::configured("jsonl", format)], true)
    }

    /// Lines that are read by a rule of the configuration.
    pub fn with_rule(rule: &Rule) -> Result<Self, RuleError> {
        Self::with_rules(core::slice::from_ref(rule))
    }

    /// Lines of several kinds, each with its own rule; the first that reads a line has it.
    pub fn with_rules(rules: &[Rule]) -> Result<Self, RuleError> {
        let format = Box::new(Rules::new(rules)?);
        Ok(Self::over(vec![Candidate::configured(rule::NAME, format)], true))
    }

    fn over(candidates: Vec<Candidate>, settled: bool) -> Self {
        Self {
            candidates,
            current: settled.then_some(0),
            proven: false,
            rival: None,
            origins: Origins::default(),
            resolution: Resolution::default(),
            joined: String::new(),
            joined_is_cut: false,
            utc_offset: 0.0,
            local_stamp: None,
            ended: None,
            read: false,
            only_ended: false,
            last_words: LastWords::default(),
            start_lines: StartLines::default(),
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

    /// Sets by how many seconds local time stamps of this log are ahead of UTC (0 by default).
    pub fn set_utc_offset(&mut self, seconds: f64) {
        self.utc_offset = seconds;
    }

    /// The last time stamp without a zone that preceded a line, as if it were UTC. The zone follows
    /// from it and the time at which that line was written.
    pub fn local_stamp(&self) -> Option<f64> {
        self.local_stamp
    }

    /// Goes on after `last_step`, which an earlier life of this reader has read.
    pub fn resume(&mut self, last_step: i64) {
        for c in &mut self.candidates {
            c.format.resume(last_step);
        }
    }

    /// Memory that the pieces of an unfinished line take, and unfinished records.
    pub fn pending_bytes(&self) -> usize {
        let records: usize = self.candidates.iter().map(|c| c.format.pending_bytes()).sum();
        self.joined.capacity() + records
    }

    /// Keeps only the beginning of an unfinished line. What comes of it is dropped to its end.
    pub fn give_up_pending(&mut self) {
        if self.joined.len() > KEPT_BYTES {
            self.joined.truncate(self.joined.floor_char_boundary(KEPT_BYTES));
            self.joined_is_cut = true;
        }
        self.joined.shrink_to(KEPT_BYTES);
        self.candidates.iter_mut().for_each(|c| c.format.give_up_pending());
    }

    /// Reads one line without its line ending, and appends its events to `out`. A progress bar that
    /// redraws itself with `\r` may be one line or many. Of several records on one line the best
    /// outcome is returned.
    pub fn line(&mut self, line: &str, out: &mut Vec<Event>) -> Outcome {
        let plain = clean::strip_ansi(line);
        let mut origin = Origin::default();
        let mut best = None;
        for segment in clean::segments(&plain) {
            let outcome = self.segment(segment, &mut origin, out);
            best = Some(best.map_or(outcome, |b: Outcome| b.better(outcome)));
        }
        best.unwrap_or(Outcome::Ignored)
    }

    /// Nothing was appended for a while: appends what was gathered of a record of several lines.
    pub fn rest(&mut self, out: &mut Vec<Event>) {
        let first = out.len();
        if let Some(c) = self.current.and_then(|i| self.candidates.get_mut(i)) {
            c.format.rest(&mut Out::of_part(out, &mut self.resolution, &mut c.absent));
        }
        self.keep_ended(first, out);
        self.origins.name(Origin::default(), &mut out[first..]);
    }

    fn segment(&mut self, segment: &str, origin: &mut Origin, out: &mut Vec<Event>) -> Outcome {
        if let Some(record) = clean::docker(segment) {
            if record.partial {
                return self.piece(&record.text);
            }
            let whole = self.whole(&record.text);
            let outcomes = clean::segments(&whole).map(|s| self.words(s, record.stamp, origin, out));
            return outcomes.reduce(Outcome::better).unwrap_or(Outcome::Ignored);
        }
        match clean::container(segment.trim_start()) {
            Some((_, piece, true)) => self.piece(piece),
            Some((stamp, rest, false)) if !self.joined.is_empty() => {
                let whole = self.whole(rest);
                self.words(&whole, Some(stamp), origin, out)
            }
            _ => self.words(segment, None, origin, out),
        }
    }

    /// Keeps a piece of a line until the rest comes.
    fn piece(&mut self, piece: &str) -> Outcome {
        let limit = if self.joined_is_cut { 0 } else { MAX_JOINED_BYTES };
        let room = limit.saturating_sub(self.joined.len());
        self.joined.extend(piece.char_indices().take_while(|(i, _)| *i < room).map(|(_, ch)| ch));
        self.counters.lines += 1;
        self.counters.ignored += 1;
        Outcome::Ignored
    }

    /// The pieces so far and the last one.
    fn whole(&mut self, last: &str) -> String {
        let mut whole = core::mem::take(&mut self.joined);
        if !core::mem::take(&mut self.joined_is_cut) {
            whole.push_str(last);
        }
        whole
    }

    fn words(
        &mut self,
        raw: &str,
        outer: Option<Stamp>,
        origin: &mut Origin,
        out: &mut Vec<Event>,
    ) -> Outcome {
        let c = clean::strip(raw);
        if c.text.is_empty() {
            return Outcome::Ignored;
        }
        *origin = c.origin.within(*origin);
        let stamp = c.stamp.or(outer);
        if let Some(Stamp::Local(s)) = stamp {
            self.local_stamp = Some(s);
        }
        let ts = stamp.map(|s| s.unix(self.utc_offset));
        let first = out.len();
        let inner = Cell::new(None);
        let line = Line { text: c.text, raw: raw.trim(), ts, utc_offset: self.utc_offset, inner: &inner };
        (self.read, self.only_ended) = (false, false);
        let mut outcome = self.probe(&line, *origin, out);
        let only_ended = self.only_ended;
        let unread = outcome == Outcome::Unmatched && !self.read || only_ended;
        if let Some(inner) = unread.then(|| clean::behind_logger(c.text)).flatten() {
            *origin = inner.origin.within(*origin);
            let message = self.message(&inner, &line, *origin, out);
            self.only_ended |= only_ended && message == Outcome::Unmatched;
            outcome = outcome.better(message);
        }
        self.local_stamp = inner.get().or(self.local_stamp);
        self.keep_ended(first, out);
        self.origins.seen(*origin, out, first);
        self.last_words.seen(&out[first..]);
        let is_record = outcome == Outcome::Matched && !self.only_ended;
        let lost = if is_record { None } else { self.last_words.read(&line) };
        if let Some(event) = lost {
            let said = out.len();
            out.push(event);
            self.keep_ended(said, out);
            // It is published for the run, by whichever process found it.
            self.origins.name(Origin::default(), &mut out[said..]);
            outcome = Outcome::Matched;
        }
        if let Some(event) = self.start_lines.read(&line) {
            let said = out.len();
            out.push(event);
            self.origins.name(Origin::default(), &mut out[said..]);
        }
        self.counters.lines += 1;
        match outcome {
            Outcome::Matched => self.counters.matched += 1,
            Outcome::Ignored => self.counters.ignored += 1,
            Outcome::Unmatched => self.counters.unmatched += 1,
        }
        outcome
    }

    /// Tries once more, with what is behind a logger's prefix.
    fn message(
        &mut self,
        inner: &Cleaned<'_>,
        line: &Line<'_>,
        origin: Origin,
        out: &mut Vec<Event>,
    ) -> Outcome {
        if let Some(Stamp::Local(s)) = inner.stamp {
            self.local_stamp = Some(s);
        }
        let ts = inner.stamp.map(|s| s.unix(self.utc_offset)).or(line.ts);
        self.probe(&Line { text: inner.text, ts, ..*line }, origin, out)
    }

    /// Frameworks evaluate and save once more after they logged that training is done. The last
    /// event of a run must stay the goodbye, or the silence after it would look like a hang.
    fn keep_ended(&mut self, first: usize, out: &mut Vec<Event>) {
        for e in &out[first..] {
            match e.kind {
                Kind::Bye if is_foreign(e) => self.ended = Some(e.clone()),
                Kind::Step => self.ended = None,
                _ => {}
            }
        }
        let last = out.get(first..).and_then(|new| new.last()).filter(|e| e.kind != Kind::Bye);
        if let (Some(bye), Some(last)) = (&self.ended, last) {
            out.push(Event { ts: last.ts, ..bye.clone() });
        }
    }

    /// Tries the current format, and the others if it does not match.
    fn probe(&mut self, line: &Line<'_>, origin: Origin, out: &mut Vec<Event>) -> Outcome {
        let mut verdict = Outcome::Unmatched;
        let trusted = self.current.filter(|i| self.belief(*i) == Belief::Trainer);
        if let Some(i) = trusted {
            let first = out.len();
            verdict = self.ask(i, line, origin, out);
            if verdict == Outcome::Matched {
                self.rival = None;
                self.proven |= trains(&out[first..]);
            }
            if verdict != Outcome::Unmatched {
                return verdict;
            }
        }
        for i in (0..self.candidates.len()).filter(|i| Some(*i) != trusted) {
            let mut events = Vec::new();
            match self.ask(i, line, origin, &mut events) {
                Outcome::Matched => {
                    self.read = true;
                    return self.read_by(i, events, out);
                }
                Outcome::Ignored if trusted.is_none() => verdict = Outcome::Ignored,
                _ => {}
            }
        }
        verdict
    }

    /// What candidate `i` makes of a line.
    fn ask(&mut self, i: usize, line: &Line<'_>, origin: Origin, out: &mut Vec<Event>) -> Outcome {
        let Some(candidate) = self.candidates.get_mut(i) else { return Outcome::Unmatched };
        // Only the format that reads the log sets its resolution; while there is none, a
        // framework's own grammar may.
        let sets_resolution = match self.current {
            Some(current) => current == i,
            None => candidate.belief != Belief::LastResort,
        };
        let mut unused = Resolution::default();
        let resolution = if sets_resolution { &mut self.resolution } else { &mut unused };
        let first = out.len();
        let mut collected = Out::new(out, resolution, Some(&mut candidate.absent));
        let outcome = candidate.format.line(line, &mut collected);
        self.only_ended = outcome == Outcome::Matched && collected.has_only_ended();
        self.origins.name(origin, &mut out[first..]);
        outcome
    }

    fn belief(&self, i: usize) -> Belief {
        self.candidates.get(i).map_or(Belief::LastResort, |c| c.belief)
    }

    /// Candidate `i`, which is not trusted as a trainer's own grammar is, has read a line.
    fn read_by(&mut self, i: usize, events: Vec<Event>, out: &mut Vec<Event>) -> Outcome {
        let belief = self.belief(i);
        let trusted = self.proven && self.current.is_some_and(|c| self.belief(c) == Belief::Trainer);
        let believed = match belief {
            Belief::Trainer | Belief::Engine => !trusted,
            Belief::LastResort => false,
        };
        if self.current == Some(i) {
            out.extend(events);
            return Outcome::Matched;
        }
        if believed {
            // A goodbye or a checkpoint is believed; but a log is recognised only by a record of
            // training.
            if self.current.is_none() || (belief == Belief::Trainer && trains(&events)) {
                self.trust(i, trains(&events));
            }
            out.extend(events);
            return Outcome::Matched;
        }
        let mut rival = Rival::after(self.rival.take(), i, belief, &events);
        if rival.takes(belief, trusted, events) {
            self.trust(i, true);
            out.append(&mut rival.held);
            return Outcome::Matched;
        }
        self.rival = Some(rival);
        Outcome::Unmatched
    }

    fn trust(&mut self, i: usize, proven: bool) {
        if self.current.is_some() {
            self.resolution = Resolution::default();
        }
        (self.current, self.proven, self.rival) = (Some(i), proven, None);
    }
}

fn trains(events: &[Event]) -> bool {
    events.iter().any(|e| matches!(e.kind, Kind::Step | Kind::Eval))
}

//! The extension point: a format and its input.

use core::cell::Cell;
use core::fmt;

use stepwatch_wire::names::{ckpt, metric};
use stepwatch_wire::{CkptPhase, Event, Kind, MAX_TEXT, Value};

use crate::absent::{self, Absent, Nothing};
use crate::number::{self, Resolution};
use crate::time::Stamp;

/// One framework's way of printing steps.
///
/// A format keeps O(1) state, reads any text without panicking, and would rather miss a line than
/// read a number into the wrong place: an uncertain line is [`Outcome::Unmatched`].
pub trait Format: fmt::Debug + Send {
    /// Reads one line and pushes its events.
    fn line(&mut self, line: &Line<'_>, out: &mut Out<'_>) -> Outcome;

    /// The last step read in an earlier life of the reader: formats that must count steps go on
    /// from there.
    fn resume(&mut self, last_step: i64) {
        let _ = last_step;
    }

    /// Memory that unfinished records take.
    fn pending_bytes(&self) -> usize {
        0
    }

    /// Passes over them.
    fn give_up_pending(&mut self) {}

    /// Nothing more has come for a while: publishes what was gathered of a record of several lines.
    fn rest(&mut self, out: &mut Out<'_>) {
        let _ = out;
    }
}

/// What a format made of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was a record of this format.
    Matched,
    /// It belongs to this framework and has no step: timers, banners, progress bars.
    Ignored,
    /// It means nothing to this format.
    Unmatched,
}

impl Outcome {
    /// The outcome of two records on one line.
    pub(crate) fn better(self, other: Self) -> Self {
        match (self, other) {
            (Self::Matched, _) | (_, Self::Matched) => Self::Matched,
            (Self::Ignored, _) | (_, Self::Ignored) => Self::Ignored,
            _ => Self::Unmatched,
        }
    }
}

/// A line as formats see it: without prefixes, colours, surrounding space or line ending. Never
/// empty.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    pub text: &'a str,
    /// The line with the prefixes that were taken off, as it is in the file.
    pub raw: &'a str,
    /// Unix seconds of the time stamp that stood before the text.
    pub ts: Option<f64>,
    /// Seconds that local time stamps of this log are ahead of UTC.
    pub(crate) utc_offset: f64,
    /// A stamp without a zone that a format found inside the line, as if it were UTC: the zone can
    /// be derived from it.
    pub(crate) inner: &'a Cell<Option<f64>>,
}

impl Line<'_> {
    /// Unix seconds of a stamp that a format found inside the line.
    pub(crate) fn unix(&self, stamp: Stamp) -> f64 {
        if let Stamp::Local(s) = stamp {
            self.inner.set(Some(s));
        }
        stamp.unix(self.utc_offset)
    }

    /// An event at the time of this line.
    pub(crate) fn event(&self, kind: Kind, step: Option<i64>) -> Event {
        Event { step, ts: self.ts, ..Event::new(kind) }
    }

    pub(crate) fn step(&self, step: i64) -> Event {
        self.event(Kind::Step, Some(step))
    }

    pub(crate) fn eval(&self, step: Option<i64>, name: &str) -> Event {
        Event { name: Some(name.to_owned()), ..self.event(Kind::Eval, step) }
    }

    pub(crate) fn checkpoint(&self, phase: CkptPhase, step: Option<i64>) -> Event {
        Event { ckpt: Some(phase), ..self.event(Kind::Ckpt, step) }
    }

    /// A stage of a checkpoint other than the save that blocks the step.
    pub(crate) fn stage(&self, stage: &str, phase: CkptPhase, step: Option<i64>) -> Event {
        let mut event = self.checkpoint(phase, step);
        event.extra.insert(ckpt::STAGE.into(), Value::Text(stage.into()));
        event
    }

    /// The job ended because it was done: silence after this is no hang.
    pub(crate) fn done(&self, step: Option<i64>) -> Event {
        Event { code: Some(0), ..self.event(Kind::Bye, step) }
    }
}

/// The longest that one stage of a checkpoint takes.
const MAX_STAGE_SECONDS: f64 = 30.0 * 86400.0;

/// Sets how long a stage of a checkpoint took, from the number that `text` starts with.
pub(crate) fn took(event: &mut Event, text: &str) {
    let seconds = number::lex(text).map(|n| n.value).filter(|s| (0.0..MAX_STAGE_SECONDS).contains(s));
    event.extra.extend(seconds.map(|s| ("seconds".into(), Value::Number(s))));
}

/// Sets where a checkpoint is.
pub(crate) fn at(event: &mut Event, path: &str) {
    event.extra.insert("path".into(), Value::Text(path.chars().take(MAX_TEXT).collect()));
}

/// Where a format puts what it read.
#[derive(Debug)]
pub struct Out<'a> {
    events: &'a mut Vec<Event>,
    resolution: &'a mut Resolution,
    absent: Option<&'a mut Absent>,
    /// More may come of the steps that are published.
    part: bool,
    /// Names of the step that is being read whose value is nothing.
    nothing: Vec<(String, Nothing)>,
    /// It is certainly a step, whatever it carries.
    certain: bool,
    /// The line is of something else, and only ended the record before it.
    only_ends: bool,
}

impl<'a> Out<'a> {
    /// Without `absent`, nothing counts as missing: the events are a part of a record, or are read
    /// again.
    pub(crate) fn new(
        events: &'a mut Vec<Event>,
        resolution: &'a mut Resolution,
        absent: Option<&'a mut Absent>,
    ) -> Self {
        Self {
            events,
            resolution,
            absent,
            part: false,
            nothing: Vec::new(),
            certain: false,
            only_ends: false,
        }
    }

    /// For what was gathered of a record, of which more may come.
    pub(crate) fn of_part(
        events: &'a mut Vec<Event>,
        resolution: &'a mut Resolution,
        absent: &'a mut Absent,
    ) -> Self {
        Self { part: true, ..Self::new(events, resolution, Some(absent)) }
    }

    /// Notes that the line is of something else, and only ended the record before it.
    pub(crate) fn only_ends(&mut self) {
        self.only_ends = true;
    }

    pub(crate) fn has_only_ended(&self) -> bool {
        self.only_ends
    }

    /// Events that were published.
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Forgets what was noted of a record that was not published.
    pub(crate) fn begins_record(&mut self) {
        self.nothing.clear();
    }

    /// Notes that the step which is being read has a name without a value.
    pub(crate) fn nothing(&mut self, name: &str, how: Nothing) {
        self.nothing.push((name.to_owned(), how));
    }

    /// Notes a text in place of a number, if it means that there is none.
    pub(crate) fn no_number(&mut self, name: &str, text: &str) {
        if absent::is_nothing(text) {
            self.nothing(name, Nothing::Null);
        }
    }

    /// Whether an event has a loss, or is a step whose loss is none.
    pub(crate) fn reports_loss(&self, event: &Event) -> bool {
        let none = event.kind == Kind::Step && self.has_nothing(Some(metric::LOSS));
        none || event.m.get(metric::LOSS).is_some()
    }

    /// Whether the log had a loss so far.
    pub(crate) fn had_loss(&self) -> bool {
        self.absent.as_ref().is_some_and(|a| a.has_reported_loss())
    }

    /// Whether a line like no other that reads as a step and has no loss is one all the same: its
    /// loss is none, or the log had losses before, and this one is only left out.
    pub(crate) fn may_lack_loss(&self, event: &Event) -> bool {
        self.reports_loss(event) || event.kind == Kind::Step && self.had_loss()
    }

    /// Whether a step lacks what all lines like it had so far, which makes it one of them. For
    /// lines that may be of something else; where it does not, no line like it is missed for long.
    pub(crate) fn has_lost(&mut self, event: &Event) -> bool {
        self.certain = self.absent.as_mut().is_some_and(|a| a.has_lost(event, &self.nothing));
        self.certain
    }

    /// The same, of a step with a single number.
    pub(crate) fn has_lost_alone(&mut self, event: &Event) -> bool {
        self.certain = self.absent.as_mut().is_some_and(|a| a.has_lost_alone(event, &self.nothing));
        self.certain
    }

    /// Whether the step which is being read has a name whose value is nothing: this one, or any.
    pub(crate) fn has_nothing(&self, name: Option<&str>) -> bool {
        self.nothing.iter().any(|(n, _)| name.is_none_or(|name| n == name))
    }

    /// Whether a step misses a number that it should carry.
    pub(crate) fn misses(&self, event: &Event) -> bool {
        self.absent.as_ref().is_some_and(|a| !a.missing(event, &self.nothing).is_empty())
    }

    /// Publishes an event, with the resolution of what it carries, and with what it misses.
    pub fn push(&mut self, mut event: Event) {
        let mut before = None;
        match (event.kind, &mut self.absent) {
            (_, Some(absent)) if self.part => absent.judge_part(&mut event, &self.nothing),
            (Kind::Step, Some(absent)) => {
                let nothing = core::mem::take(&mut self.nothing);
                before = event.step.and_then(|step| absent.proven_by(step));
                if core::mem::take(&mut self.certain) {
                    absent.judge_certain(&mut event, &nothing);
                } else {
                    absent.judge(&mut event, &nothing);
                }
            }
            (Kind::Hb, _) | (_, None) => {}
            (_, Some(absent)) => absent.interrupt(),
        }
        if matches!(event.kind, Kind::Step | Kind::Eval) {
            self.nothing.clear();
        }
        before.into_iter().for_each(|e| self.as_it_is(e));
        self.as_it_is(event);
    }

    /// Publishes a step, or what came late of one that was published (`given`) before.
    pub(crate) fn record(&mut self, event: Event, given: bool) {
        let part = self.part;
        self.part |= given;
        self.push(event);
        self.part = part;
    }

    /// Takes a line that has a step and nothing else, which may be one whose loss was left out.
    pub(crate) fn bare(&mut self, event: Event) -> Outcome {
        self.nothing.clear();
        let Some(events) = self.absent.as_mut().and_then(|a| a.bare(event)) else {
            return Outcome::Unmatched;
        };
        let outcome = if events.is_empty() { Outcome::Ignored } else { Outcome::Matched };
        events.into_iter().for_each(|e| self.as_it_is(e));
        outcome
    }

    /// Publishes an event that already has what is missing. No step is below 0: a trainer that
    /// counts one so has not begun.
    pub(crate) fn as_it_is(&mut self, mut event: Event) {
        if event.step.is_some_and(|step| step < 0) {
            if event.kind == Kind::Step {
                return;
            }
            event.step = None;
        }
        self.resolution.put_on(&mut event);
        self.events.push(event);
    }

    /// Reads the number that `text` starts with, divides it by `divisor` (units) and sets it in
    /// `event` as `name`. Text that is not a number sets nothing: absent is not zero. `None` and
    /// its like are noted.
    pub fn metric(&mut self, event: &mut Event, name: &str, text: &str, divisor: f64) -> Option<f64> {
        let Some(n) = number::lex(text) else {
            self.no_number(name, text);
            return None;
        };
        self.number(event, name, n.value / divisor, n.quantum.map(|q| q / divisor))
    }

    /// Sets a number whose printed resolution is known.
    pub(crate) fn number(
        &mut self,
        event: &mut Event,
        name: &str,
        value: f64,
        quantum: Option<f64>,
    ) -> Option<f64> {
        if let Some(quantum) = quantum {
            self.resolution.saw(name, quantum);
        }
        self.value(event, name, value)
    }

    /// Sets a number that was already read.
    pub fn value(&mut self, event: &mut Event, name: &str, value: f64) -> Option<f64> {
        if !event.m.set(name, value) {
            event.dropped += 1;
        }
        Some(value)
    }

    /// Notes the resolution of a number that was read elsewhere, from its shortest decimal form.
    pub fn resolution(&mut self, name: &str, value: f64) {
        if let Some(quantum) = number::quantum_of(value) {
            self.resolution.saw(name, quantum);
        }
    }
}

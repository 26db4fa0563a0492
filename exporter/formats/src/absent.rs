//! A number that a line should carry and does not: one rule for every format.
//!
//! Few writers print `nan`. orjson, and any strict JSON, writes `null`; text contains `None`;
//! others leave the field out. So a loss or a gradient norm that the run logged on lines of the
//! same kind, and that is null or absent on this one, is not finite: it goes into
//! [`Event::missing`].
//!
//! * Null (`null`, `None`) counts once two such lines in a row had the number, and then on lines of
//!   every kind until the number is there again. After a single number it counts once more such
//!   lines in a row were null than any loop leaves out between two reports. Where it is certain
//!   what the name means (the configuration maps it, or the line reads `loss None`) one line of any
//!   kind is enough.
//! * Every other metric counts too when it turns null: one that has a meaning here once two lines
//!   of the kind in a row had it, and one that is somebody's own, as a reward or the loss of a
//!   policy, once twenty had. It does not count when it is absent: trainers log most of them when
//!   they have them.
//! * Absent counts once the last twenty such lines had it, and only if the rest of the line is as
//!   it was: many loops log their first ten steps in full and then the loss of every tenth. A
//!   number that was absent and comes back must be there twenty times again.
//!
//! Lines are of one kind if they have the same names apart from these two, so evaluations and
//! summaries are of another. Where steps were skipped, nothing counts. After steps fell back, a
//! number must be there twenty times again before it is missed; what was `null` or a number before
//! is still known, because a run that resumes may be broken from its first step on. Of a run that
//! begins at the first step only the loss is still known: it may be another, which has no other
//! number of the one before.
//!
//! A line that has nothing but a step is a row of a table like any other; of other lines see
//! `bare.rs`. One with a single number beside the step may be of a schedule; of text it counts
//! where it can only be the next step ([`Absent::has_lost_alone`]).
//!
//! A grammar that knows its lines by more than their loss reads one without it once the log had a
//! loss ([`Absent::has_reported_loss`]). Where the rest of the line may be of something else, it is
//! a step only if it lacks what it should have ([`Absent::has_lost`]).

mod bare;
#[cfg(test)]
mod tests;

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

use crate::course::{Course, Move};
use bare::Bare;

/// The numbers that are watched: a run without them is lost.
const WATCHED: [&str; 2] = [metric::LOSS, metric::GRAD_NORM];
/// Lines in a row that had the number, after which `null` means something.
const KNOWN: u32 = 2;
/// And after which a line without it does.
const USUAL: u32 = 20;
/// Metrics that are not watched, of which it is known that they turned null on lines of one kind.
const MAX_OTHERS: usize = 32;
/// Bytes of the name of such a metric.
const MAX_OTHER_NAME: usize = 64;
/// Lines in a row with `null` after which one number before them is enough: loops report every
/// hundredth step at the rarest.
const PATIENT: u32 = 128;
/// Kinds of lines that are kept apart; the one that was seen longest ago makes room.
const MAX_KINDS: usize = 16;

/// What is printed where there is no number.
pub(crate) const WORDS: [&str; 5] = ["None", "null", "NULL", "N/A", "n/a"];

/// Whether a text starts with a word for nothing.
pub(crate) fn is_nothing(text: &str) -> bool {
    let behind = WORDS.iter().find_map(|w| text.trim_start().strip_prefix(w));
    behind.is_some_and(|b| !b.starts_with(|c: char| c.is_alphanumeric() || "_/.".contains(c)))
}

/// A name whose value is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nothing {
    /// As records write it.
    Null,
    /// It is certain what the name means.
    Certain,
}

/// What the lines of one log have carried.
#[derive(Debug, Default)]
pub struct Absent {
    kinds: Vec<LineKind>,
    /// Numbers of any line so far, of each that is watched.
    reported: [bool; WATCHED.len()],
    /// Missing since the last of them.
    lost: [bool; WATCHED.len()],
    course: Course,
    lines: u64,
    /// A record holds whatever was logged at the time, so that only `null` counts.
    only_nulls: bool,
    /// A row has a cell for each number, so that one in which all are empty counts.
    rows: bool,
    /// Of the step that is judged more may come.
    part: bool,
    bare: Bare,
}

#[derive(Debug, Default)]
struct LineKind {
    /// Of the names of everything else on the line.
    rest: u64,
    watched: [Watched; WATCHED.len()],
    /// Other metrics that were ever nothing on a line of this kind.
    others: Vec<Other>,
    /// The last line of this kind.
    line: u64,
    /// How many lines there were.
    lines: u32,
}

/// A metric that is not watched, on the lines of one kind: a number or nothing, or the line would
/// be of another kind.
#[derive(Debug)]
struct Other {
    name: String,
    /// Lines in a row that had it.
    there: u32,
    nulled: bool,
}

/// One number on the lines of one kind.
#[derive(Debug, Default, Clone, Copy)]
struct Watched {
    /// Lines in a row that had it, and in which it was `null` since then.
    there: u32,
    nulls: u32,
    /// Whether it was known when it was `null`, and when it was not there.
    nulled: bool,
    lost: bool,
}

impl Watched {
    /// After a restart, which may log something else: only what is logged as null still counts.
    fn begin_anew(&mut self) {
        (self.there, self.lost) = (self.there.min(KNOWN), false);
    }
}

impl Absent {
    /// Of files of scalars.
    pub(crate) fn of_records() -> Self {
        Self { only_nulls: true, ..Self::default() }
    }

    /// Of tables.
    pub fn of_rows() -> Self {
        Self { rows: true, ..Self::default() }
    }

    /// Whether any line so far had a loss.
    pub(crate) fn has_reported_loss(&self) -> bool {
        self.reported[0]
    }

    /// Whether a step lacks what every line like it has had. If it does not, it is one of those
    /// that do without, and none like it is missed until it was there often enough again.
    pub(crate) fn has_lost(&mut self, e: &Event, nothing: &[(String, Nothing)]) -> bool {
        let rest = rest(e, nothing);
        let lost = !self.find(e, nothing, rest, true).is_empty();
        let known = self.kinds.iter_mut().find(|kind| !lost && kind.rest == rest);
        for (w, name) in known.into_iter().flat_map(|kind| kind.watched.iter_mut().zip(WATCHED)) {
            if e.m.get(name).is_none() {
                w.there = 0;
            }
        }
        lost
    }

    /// As [`Self::has_lost`], of a step with a single number, as a schedule prints one: it must be
    /// the next of a log of one line a step, in which no such line was beside a step before.
    pub(crate) fn has_lost_alone(&mut self, e: &Event, nothing: &[(String, Nothing)]) -> bool {
        let next = e.step.is_some_and(|step| self.bare.is_next(step));
        let lost = self.has_lost(e, nothing) && next;
        if !lost {
            self.bare.idles();
        }
        lost
    }

    /// As [`Self::judge`], of a line that is certainly a step although nothing else may be on it.
    pub(crate) fn judge_certain(&mut self, e: &mut Event, nothing: &[(String, Nothing)]) {
        if let Some(step) = e.step.filter(|_| e.kind == Kind::Step) {
            self.judge_as(e, step, nothing, true);
        }
    }

    /// Sets what is missing from a step, of which `nothing` had no value.
    pub fn judge(&mut self, e: &mut Event, nothing: &[(String, Nothing)]) {
        let Some(step) = e.step.filter(|_| e.kind == Kind::Step) else { return };
        // A second row of a step is of something else, unless it is another rank's.
        let again = self.course.last() == Some(step) && e.rank.is_none();
        if self.rows && again && is_bare(e, nothing) {
            return;
        }
        self.judge_as(e, step, nothing, self.rows);
    }

    /// As [`Self::judge`], of a step of which more may come: only what it has as null is missing.
    pub(crate) fn judge_part(&mut self, e: &mut Event, nothing: &[(String, Nothing)]) {
        let says = !nothing.is_empty() || WATCHED.iter().any(|name| e.m.get(name).is_some());
        let Some(step) = e.step.filter(|_| says && e.kind == Kind::Step) else { return };
        let only_nulls = core::mem::replace(&mut self.only_nulls, true);
        self.part = true;
        self.judge_as(e, step, nothing, false);
        (self.only_nulls, self.part) = (only_nulls, false);
    }

    /// The step before `step` that this line proves to be one, see [`Self::bare`].
    pub(crate) fn proven_by(&mut self, step: i64) -> Option<Event> {
        let mut held = self.bare.line(step)?;
        let at = held.step?;
        self.judge_as(&mut held, at, &[], true);
        Some(held)
    }

    /// The log reported something other than a step.
    pub(crate) fn interrupt(&mut self) {
        self.bare.interrupt();
    }

    /// The event of a line that has a step and nothing else. `None` if it is not known to be one;
    /// empty while the next line must prove it.
    pub(crate) fn bare(&mut self, mut e: Event) -> Option<Vec<Event>> {
        let step = e.step?;
        if self.bare.is_held() {
            let held = self.proven_by(step)?;
            self.judge_as(&mut e, step, &[], true);
            return Some(vec![held, e]);
        }
        let rest = rest(&e, &[]);
        let gone = !self.find(&e, &[], rest, true).is_empty();
        if !gone || !self.bare.is_next(step) {
            self.bare.idles();
            return None;
        }
        let known = self.kinds.iter().any(|k| k.rest == rest && k.watched.iter().any(|w| w.lost));
        if !known {
            self.bare.hold(e);
            return Some(Vec::new());
        }
        self.bare.line(step);
        self.judge_as(&mut e, step, &[], true);
        Some(vec![e])
    }

    fn judge_as(&mut self, e: &mut Event, step: i64, nothing: &[(String, Nothing)], bare: bool) {
        let part = self.part;
        self.moved(step);
        let rest = rest(e, nothing);
        let found = self.find(e, nothing, rest, bare);
        let kind = self.kind(rest);
        for (w, name) in kind.watched.iter_mut().zip(WATCHED) {
            if e.m.get(name).is_some() {
                *w = Watched {
                    there: if w.nulled || w.lost { 1 } else { w.there.saturating_add(1) },
                    ..Watched::default()
                };
            } else if nothing.iter().any(|(n, _)| n == name) {
                (w.nulled, w.there) = (w.nulled || w.there >= KNOWN, 0);
                w.nulls = w.nulls.saturating_add(1);
            } else if !part {
                (w.lost, w.there) = (w.lost || w.there >= USUAL, 0);
            }
        }
        for (i, name) in WATCHED.iter().enumerate() {
            self.reported[i] |= e.m.get(name).is_some();
            self.lost[i] = e.m.get(name).is_none() && (self.lost[i] || found.contains(name));
        }
        let others = self.kind(rest).others(nothing);
        for name in found.into_iter().map(str::to_owned).chain(others) {
            if !e.missing.contains(&name) {
                e.missing.push(name);
            }
        }
    }

    /// What a step would be found to miss.
    pub(crate) fn missing(&self, e: &Event, nothing: &[(String, Nothing)]) -> Vec<&'static str> {
        self.find(e, nothing, rest(e, nothing), false)
    }

    /// `bare`: a line with nothing else on it counts.
    fn find(&self, e: &Event, nothing: &[(String, Nothing)], rest: u64, bare: bool) -> Vec<&'static str> {
        let is_reported = !e.m.is_empty() || bare && is_bare(e, nothing);
        if e.m.get(metric::SKIPPED).is_some_and(|n| n > 0.0) {
            return Vec::new();
        }
        let kind = self.kinds.iter().find(|k| k.rest == rest);
        let reported = |i: usize| self.reported[i];
        let missed = |i: usize| {
            let w = kind.map(|k| k.watched[i]).unwrap_or_default();
            match nothing.iter().find(|(n, _)| n == WATCHED[i]) {
                Some((_, Nothing::Certain)) => reported(i),
                Some((_, Nothing::Null)) => {
                    self.lost[i] || w.nulled || w.there >= KNOWN || reported(i) && w.nulls >= PATIENT
                }
                None if self.only_nulls || !is_reported => false,
                None => w.lost || w.there >= USUAL,
            }
        };
        let absent = (0..WATCHED.len()).filter(|i| e.m.get(WATCHED[*i]).is_none());
        absent.filter(|i| missed(*i)).map(|i| WATCHED[i]).collect()
    }

    fn moved(&mut self, step: i64) {
        self.lines += 1;
        let how = self.course.moves(step);
        if how == Move::On {
            return;
        }
        let mut kinds = std::mem::take(&mut self.kinds);
        kinds.iter_mut().for_each(|kind| kind.begin_anew(how));
        let loss = how == Move::Start;
        let reported = core::array::from_fn(|i| self.reported[i] && (!loss || WATCHED[i] == metric::LOSS));
        let Self { course, lines, only_nulls, rows, part, .. } = *self;
        *self = Self { kinds, reported, course, lines, only_nulls, rows, part, ..Self::default() };
    }

    fn kind(&mut self, rest: u64) -> &mut LineKind {
        let at = self.kinds.iter().position(|k| k.rest == rest).unwrap_or_else(|| {
            let new = LineKind { rest, ..LineKind::default() };
            if self.kinds.len() < MAX_KINDS {
                self.kinds.push(new);
                return self.kinds.len() - 1;
            }
            let oldest = (0..MAX_KINDS).min_by_key(|i| self.kinds[*i].line).unwrap_or(0);
            self.kinds[oldest] = new;
            oldest
        });
        self.kinds[at].line = self.lines;
        &mut self.kinds[at]
    }
}

impl LineKind {
    /// After a restart.
    fn begin_anew(&mut self, how: Move) {
        self.watched.iter_mut().for_each(Watched::begin_anew);
        if how == Move::Start {
            self.others.clear();
            self.lines = 0;
            let watched = self.watched.iter_mut().zip(WATCHED);
            watched.filter(|(_, name)| *name != metric::LOSS).for_each(|(w, _)| *w = Watched::default());
        }
    }

    /// Of metrics that are not watched, those that are nothing on a further line and were numbers.
    fn others(&mut self, nothing: &[(String, Nothing)]) -> Vec<String> {
        let judged = |name: &str| name.len() <= MAX_OTHER_NAME && !WATCHED.contains(&name);
        for (name, _) in nothing.iter().filter(|(name, _)| judged(name)) {
            if self.others.len() < MAX_OTHERS && self.others.iter().all(|o| o.name != *name) {
                self.others.push(Other { name: name.clone(), there: self.lines, nulled: false });
            }
        }
        self.lines = self.lines.saturating_add(1);
        for other in &mut self.others {
            if nothing.iter().any(|(name, _)| *name == other.name) {
                let usual = if metric::ALL.contains(&other.name.as_str()) { KNOWN } else { USUAL };
                (other.nulled, other.there) = (other.nulled || other.there >= usual, 0);
            } else {
                other.there = if other.nulled { 1 } else { other.there.saturating_add(1) };
                other.nulled = false;
            }
        }
        self.others.iter().filter(|o| o.nulled).map(|o| o.name.clone()).collect()
    }
}

/// Whether a line has a step and nothing else.
fn is_bare(e: &Event, nothing: &[(String, Nothing)]) -> bool {
    e.m.iter().all(|(name, _)| name == metric::EPOCH) && e.t.is_empty() && nothing.is_empty()
}

/// The names of a line apart from those that are watched, in any order, and apart from the tokens:
/// where they are counted, not every line gives those of its step.
fn rest(e: &Event, nothing: &[(String, Nothing)]) -> u64 {
    let numbers = e.m.iter().map(|(name, _)| name);
    let nothings = nothing.iter().map(|(name, _)| name.as_str());
    let names = numbers.chain(nothings).filter(|name| !WATCHED.contains(name) && *name != metric::TOKENS);
    let parts = e.t.iter().map(|(name, _)| hash(name).rotate_left(1));
    names.map(hash).chain(parts).fold(0, u64::wrapping_add)
}

/// FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

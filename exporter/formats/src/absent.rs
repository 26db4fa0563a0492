//! A number that a line should carry and does not: one rule for every format.
//!
//! Few writers print `nan`. orjson, and any strict JSON, writes `null`; a text says `None`; others leave the
//! field out. So a loss or a gradient norm that the run told on lines of the same kind, and that is nothing
//! or is not there on this one, is not finite: it goes into [`Event::missing`].
//!
//! * Nothing (`null`, `None`) counts once two such lines in a row had the number, and then on lines of every
//!   kind until it is there again. Where it is certain what the name means (the configuration tells it, or
//!   the line says `loss None`) one line of any kind is enough.
//! * Not there counts once the last twenty such lines had it, and only if the rest of the line is as it was:
//!   many loops log their first ten steps in full and then the loss of every tenth. A number that was away
//!   and comes back must be there twenty times again.
//!
//! Lines are of one kind if they have the same names apart from these two, so evaluations and summaries are
//! of another. Where steps were skipped, and after steps fell back, nothing counts.

use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Kind};

/// The numbers that are missed, which are those that say that a run is lost.
const WATCHED: [&str; 2] = [metric::LOSS, metric::GRAD_NORM];
/// Lines in a row that had the number, after which `null` means something.
const KNOWN: u32 = 2;
/// And after which a line without it does.
const USUAL: u32 = 20;
/// Kinds of lines that are told apart; the one that was seen longest ago makes room.
const MAX_KINDS: usize = 16;

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
    told: [bool; WATCHED.len()],
    /// Missing since the last of them.
    lost: [bool; WATCHED.len()],
    last_step: Option<i64>,
    /// The largest stride of the steps.
    stride: i64,
    lines: u64,
    /// A record holds whatever was logged at the time, so that only `null` says something.
    only_nulls: bool,
}

#[derive(Debug, Default)]
struct LineKind {
    /// Of the names of everything else on the line.
    rest: u64,
    watched: [Watched; WATCHED.len()],
    /// The last line of this kind.
    line: u64,
}

/// One number on the lines of one kind.
#[derive(Debug, Default, Clone, Copy)]
struct Watched {
    /// Lines in a row that had it.
    there: u32,
    /// Whether it was known when it was `null`, and when it was not there.
    nulled: bool,
    lost: bool,
}

impl Absent {
    /// Of files of scalars.
    pub(crate) fn of_records() -> Self {
        Self { only_nulls: true, ..Self::default() }
    }

    /// Says what is missing from a step, of which `nothing` had no value.
    pub fn judge(&mut self, e: &mut Event, nothing: &[(String, Nothing)]) {
        let Some(step) = e.step.filter(|_| e.kind == Kind::Step) else { return };
        self.moved(step);
        let rest = rest(e, nothing);
        let found = self.find(e, nothing, rest);
        let kind = self.kind(rest);
        for (w, name) in kind.watched.iter_mut().zip(WATCHED) {
            if e.m.get(name).is_some() {
                *w = Watched {
                    there: if w.nulled || w.lost { 1 } else { w.there.saturating_add(1) },
                    ..Watched::default()
                };
            } else if nothing.iter().any(|(n, _)| n == name) {
                (w.nulled, w.there) = (w.nulled || w.there >= KNOWN, 0);
            } else {
                (w.lost, w.there) = (w.lost || w.there >= USUAL, 0);
            }
        }
        for (i, name) in WATCHED.iter().enumerate() {
            self.told[i] |= e.m.get(name).is_some();
            self.lost[i] = e.m.get(name).is_none() && (self.lost[i] || found.contains(name));
        }
        for name in found {
            if e.missing.iter().all(|m| m != name) {
                e.missing.push(name.to_owned());
            }
        }
    }

    /// What a step would be found to miss.
    pub(crate) fn missing(&self, e: &Event, nothing: &[(String, Nothing)]) -> Vec<&'static str> {
        self.find(e, nothing, rest(e, nothing))
    }

    fn find(&self, e: &Event, nothing: &[(String, Nothing)], rest: u64) -> Vec<&'static str> {
        if e.m.get(metric::SKIPPED).is_some_and(|n| n > 0.0) {
            return Vec::new();
        }
        let kind = self.kinds.iter().find(|k| k.rest == rest);
        let told = |i: usize| self.told[i];
        let missed = |i: usize| {
            let w = kind.map(|k| k.watched[i]).unwrap_or_default();
            match nothing.iter().find(|(n, _)| n == WATCHED[i]) {
                Some((_, Nothing::Certain)) => told(i),
                Some((_, Nothing::Null)) => self.lost[i] || w.nulled || w.there >= KNOWN,
                None if self.only_nulls || e.m.is_empty() => false,
                None => w.lost || w.there >= USUAL,
            }
        };
        let absent = (0..WATCHED.len()).filter(|i| e.m.get(WATCHED[*i]).is_none());
        absent.filter(|i| missed(*i)).map(|i| WATCHED[i]).collect()
    }

    fn moved(&mut self, step: i64) {
        self.lines += 1;
        let by = self.last_step.map_or(0, |last| step.saturating_sub(last));
        // Lines of several ranks may be a few steps apart; a restart goes back further, and may log something
        // else.
        if by < 0 && by.unsigned_abs() > self.stride.unsigned_abs().saturating_mul(4) {
            *self = Self { lines: self.lines, only_nulls: self.only_nulls, ..Self::default() };
        }
        self.stride = self.stride.max(by);
        self.last_step = Some(step);
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

/// The names of a line apart from those that are watched, in any order.
fn rest(e: &Event, nothing: &[(String, Nothing)]) -> u64 {
    let numbers = e.m.iter().map(|(name, _)| name);
    let nothings = nothing.iter().map(|(name, _)| name.as_str());
    let names = numbers.chain(nothings).filter(|name| !WATCHED.contains(name));
    let parts = e.t.iter().map(|(name, _)| hash(name).rotate_left(1));
    names.map(hash).chain(parts).fold(0, u64::wrapping_add)
}

/// FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A line: its step, its numbers, and what has no value.
    type Line = (i64, Vec<&'static str>, Vec<&'static str>);

    fn missing(lines: &[Line]) -> Vec<(i64, Vec<String>)> {
        let mut absent = Absent::default();
        let mut found = Vec::new();
        for (step, numbers, nothing) in lines {
            let mut e = Event { step: Some(*step), ..Event::new(Kind::Step) };
            for name in numbers {
                e.m.set(name, 1.0);
            }
            let nothing: Vec<_> = nothing.iter().map(|n| ((*n).to_owned(), Nothing::Null)).collect();
            absent.judge(&mut e, &nothing);
            found.extend((!e.missing.is_empty()).then_some((*step, e.missing)));
        }
        found
    }

    fn full(steps: impl Iterator<Item = i64>) -> impl Iterator<Item = Line> {
        steps.map(|s| (s, vec!["loss", "grad_norm", "lr", "step_time"], vec![]))
    }

    fn of(name: &str, steps: &[i64]) -> Vec<(i64, Vec<String>)> {
        steps.iter().map(|s| (*s, vec![name.to_owned()])).collect()
    }

    #[test]
    fn a_number_that_turns_null_is_missing() {
        let null = |s| (s, vec!["grad_norm", "lr", "step_time"], vec!["loss"]);
        let lines: Vec<_> = full(1..3).chain([null(3), null(4)]).chain(full(5..6)).chain([null(6)]).collect();
        assert_eq!(missing(&lines), of("loss", &[3, 4]), "what comes back must be known again");
        let lines: Vec<_> = full(1..2).chain([null(2)]).collect();
        assert_eq!(missing(&lines), [], "one line is too early to tell");
        let both = (3, vec!["lr", "step_time"], vec!["loss", "grad_norm"]);
        let lines: Vec<_> = full(1..3).chain([both]).collect();
        assert_eq!(missing(&lines), [(3, vec!["loss".to_owned(), "grad_norm".to_owned()])]);
    }

    #[test]
    fn a_number_that_is_always_there_is_missed() {
        let without = |s| (s, vec!["lr", "step_time"], vec![]);
        let lines: Vec<_> =
            full(1..21).chain((21..24).map(without)).chain(full(24..25)).chain([without(25)]).collect();
        let both = vec!["loss".to_owned(), "grad_norm".to_owned()];
        assert_eq!(missing(&lines), (21..24).map(|s| (s, both.clone())).collect::<Vec<_>>());
        let lines: Vec<_> = full(1..20).chain([without(20)]).collect();
        assert_eq!(missing(&lines), [], "too early to tell");
    }

    #[test]
    fn lines_of_another_kind_miss_nothing() {
        let eval = |s| (s, vec!["acc", "runtime"], vec!["loss"]);
        let summary = |s| (s, vec!["train_runtime", "samples_per_second", "total_flos"], vec![]);
        let short = |s| (s, vec!["lr"], vec![]); // a schedule
        let lines: Vec<_> = full(1..50).chain([eval(50), summary(50), short(51)]).collect();
        assert_eq!(missing(&lines), []);
        let skipped = (50, vec!["lr", "step_time", "skipped"], vec![]);
        let usual = (1..50).map(|s| (s, vec!["loss", "lr", "step_time", "skipped"], vec![]));
        assert_eq!(missing(&usual.chain([skipped]).collect::<Vec<_>>()), [], "a skipped step has no loss");
        let restarted: Vec<_> = full(100..150).chain([(50, vec!["lr", "step_time"], vec![])]).collect();
        assert_eq!(missing(&restarted), [], "a new attempt may log something else");
    }

    proptest! {
        /// A number of every k-th line is never missed, however the others look.
        #[test]
        fn what_is_logged_seldom_is_not_missed(every in 2i64..40, first in 0i64..19, nulls: bool, lines in 50i64..300) {
            let line = |s: i64| -> Line {
                let there = s < first.min(if nulls { 1 } else { 19 }) || s % every == 0;
                let mut numbers = vec!["lr", "step_time", "tokens"];
                numbers.extend(there.then_some("loss"));
                (s, numbers, if nulls && !there { vec!["loss"] } else { vec![] })
            };
            let lines: Vec<_> = (0..lines).map(line).collect();
            prop_assert_eq!(missing(&lines), vec![]);
        }

        /// After enough whole lines the first line without the number is told, and none before.
        #[test]
        fn a_loss_that_is_gone_is_told_at_once(whole in 20i64..200, gone in 1i64..50, nulls: bool) {
            let without = (whole..whole + gone).map(|s| (s, vec!["lr", "grad_norm", "step_time"], if nulls { vec!["loss"] } else { vec![] }));
            let lines: Vec<Line> = full(0..whole).chain(without).collect();
            let steps: Vec<_> = missing(&lines).into_iter().map(|(s, _)| s).collect();
            prop_assert_eq!(steps, (whole..whole + gone).collect::<Vec<_>>());
        }

        #[test]
        fn never_panics(lines in proptest::collection::vec((any::<i64>(), any::<u8>(), any::<u8>()), 0..60)) {
            let names = ["loss", "grad_norm", "lr", "skipped", "a", "b", "c", "d"];
            let pick = |bits: u8| names.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, n)| *n).collect::<Vec<_>>();
            let lines: Vec<Line> = lines.into_iter().map(|(s, n, m)| (s, pick(n), pick(m & !n))).collect();
            for (step, missing) in missing(&lines) {
                let line = lines.iter().find(|(s, ..)| *s == step);
                prop_assert!(line.is_some() && !missing.is_empty());
            }
        }
    }
}

//! Signals of a run that are not in its samples: metrics of other names, and the results of
//! evaluations.
//!
//! Every signal is read once a step, from the lowest rank that reports it, in order of the steps,
//! like those of the samples.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::{Event, names::metric};

use super::align::Signal;
use super::values::is_own;
use crate::sample::{Eval, Reading};
use stepwatch_model::time::{Span, Ts};

/// The most signals of a run; further ones are counted and left out. Each run has room for the
/// first [`USUAL_SIGNALS`]; the runs of a source share its further room.
pub(crate) const MAX_SIGNALS: usize = 512;
pub(crate) const USUAL_SIGNALS: usize = 32;

/// How long the result that there is no room is reused.
const ROOM_HOLDS: Span = Span::secs(1);

/// Name of an evaluation whose event has no name.
const UNNAMED: &str = "eval";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Signals {
    ids: BTreeMap<String, u16>,
    at: Vec<Signal>,
    /// The room beyond [`USUAL_SIGNALS`], and when it was computed.
    #[serde(skip)]
    room: Option<(Ts, usize)>,
}

/// Step, time, attempt and rank of a report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) step: i64,
    pub(crate) ts: Ts,
    pub(crate) attempt: u32,
    pub(crate) rank: u32,
}

/// The number of values of an event that were not used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) over_limit: u64,
}

impl Signals {
    /// The number of signals beyond the usual room.
    pub(crate) fn beyond_usual(&self) -> usize {
        self.at.len().saturating_sub(USUAL_SIGNALS)
    }

    /// Whether the room must be computed for an event.
    pub(crate) fn asks_for_room(&self, now: Ts, e: &Event) -> bool {
        // A lack of room is remembered for a while, but room found earlier may be another run's by
        // now.
        let had_none = |(at, _): (Ts, usize)| now - at < ROOM_HOLDS && self.at.len() >= self.max();
        self.at.len() + e.m.len() >= USUAL_SIGNALS && !self.room.is_some_and(had_none)
    }

    /// Sets the room beyond the usual signals.
    pub(crate) fn has_room(&mut self, now: Ts, beyond_usual: usize) {
        self.room = Some((now, beyond_usual));
    }

    /// The custom metrics of a step report. A metric that is listed as missing was not finite:
    /// strict JSON writes NaN as `null`.
    pub(crate) fn readings<'e>(&mut self, p: Place, e: &'e Event, left: &mut Left) -> Vec<Reading<'e>> {
        let own = |name: &&String| is_own(name) && e.m.get(name).is_none();
        let missing = e.missing.iter().filter(own).map(|name| (name.as_str(), f64::NAN));
        let metrics = e.m.custom().chain(ours(e)).chain(missing);
        metrics
            .filter_map(|(name, value)| {
                let id = self.turn(name, p, left)?;
                let quantum = e.q.get(name).unwrap_or(0.0);
                Some(Reading { id, name, step: p.step, ts: p.ts, attempt: p.attempt, value, quantum })
            })
            .collect()
    }

    /// The loss of an evaluation.
    pub(crate) fn eval<'e>(&mut self, p: Place, e: &'e Event, left: &mut Left) -> Option<Eval<'e>> {
        let loss = e.m.get(metric::LOSS)?;
        let set = set_of(e);
        let id = self.turn(&series(set, metric::LOSS), p, left)?;
        let quantum = e.q.get(metric::LOSS).unwrap_or(0.0);
        Some(Eval { id, set, step: p.step, ts: p.ts, attempt: p.attempt, loss, quantum })
    }

    /// The other metrics of an evaluation: `eval/<set>/<metric>`.
    pub(crate) fn measured(&mut self, p: Place, e: &Event, left: &mut Left) -> Vec<(u16, String, f64, f64)> {
        let metrics = e.m.custom();
        metrics
            .filter_map(|(name, value)| {
                let series = series(set_of(e), name);
                let id = self.turn(&series, p, left)?;
                Some((id, series, value, e.q.get(name).unwrap_or(0.0)))
            })
            .collect()
    }

    /// Resets the signals, because the run restarted.
    pub(crate) fn restart(&mut self) {
        self.at.iter_mut().for_each(Signal::restart);
    }

    fn max(&self) -> usize {
        MAX_SIGNALS.min(USUAL_SIGNALS + self.room.map_or(0, |(_, room)| room))
    }

    /// The id of a series, if this report is its next one.
    fn turn(&mut self, name: &str, p: Place, left: &mut Left) -> Option<u16> {
        let id = match self.ids.get(name) {
            Some(id) => *id,
            None if self.at.len() >= self.max() => {
                left.over_limit += 1;
                return None;
            }
            None => {
                let id = self.at.len() as u16;
                self.ids.insert(name.to_owned(), id);
                self.at.push(Signal::default());
                id
            }
        };
        let signal = self.at.get_mut(usize::from(id))?;
        if !signal.takes(p.rank, p.step) {
            return None;
        }
        signal.moved(p.rank, p.step);
        Some(id)
    }
}

/// Built-in metrics that no detector of samples reads.
fn ours(e: &Event) -> impl Iterator<Item = (&str, f64)> {
    let name = metric::PARAMS_NORM;
    e.m.get(name).map(|value| (name, value)).into_iter()
}

/// The name of the evaluation set of an event.
pub(crate) fn set_of(e: &Event) -> &str {
    e.name.as_deref().filter(|name| !name.is_empty()).unwrap_or(UNNAMED)
}

fn series(set: &str, name: &str) -> String {
    if set == UNNAMED { format!("eval/{name}") } else { format!("eval/{set}/{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(step: i64, m: &[(&str, f64)]) -> Event {
        let mut e = Event::step("r", step);
        for (name, v) in m {
            e.m.set(name, *v);
        }
        e
    }

    fn place(rank: u32, step: i64) -> Place {
        Place { step, ts: Ts(step), attempt: 0, rank }
    }

    #[test]
    fn every_signal_is_heard_once_a_step_from_one_rank() {
        let (mut signals, mut left) = (Signals::default(), Left::default());
        let mut heard = |rank, step, m: &[(&str, f64)]| -> Vec<String> {
            let e = event(step, m);
            signals.readings(place(rank, step), &e, &mut left).iter().map(|r| r.name.to_owned()).collect()
        };
        assert_eq!(heard(0, 1, &[("loss", 2.0), ("reward", 1.0), ("kl", 0.1)]), ["reward", "kl"]);
        assert!(heard(0, 1, &[("reward", 1.0)]).is_empty(), "reported again");
        assert!(heard(3, 1, &[("reward", 1.0)]).is_empty(), "by another rank");
        assert_eq!(heard(0, 2, &[("reward", 1.0)]), ["reward"]);
        assert!(heard(3, 3, &[("reward", 1.0)]).is_empty(), "rank 0 reports it");
        assert_eq!(heard(3, 9, &[("reward", 1.0)]), ["reward"], "no more");
        assert!(heard(0, 5, &[("reward", 1.0)]).is_empty(), "out of order");
    }

    #[test]
    fn one_of_its_own_that_is_missing_is_no_number() {
        let (mut signals, mut left) = (Signals::default(), Left::default());
        let mut e = event(1, &[("kl", 0.1)]);
        e.missing = ["loss", "lr", "reward", "kl"].map(str::to_owned).to_vec();
        let readings = signals.readings(place(0, 1), &e, &mut left);
        let heard: Vec<_> = readings.iter().map(|r| (r.name, r.value.is_nan())).collect();
        assert_eq!(heard, [("kl", false), ("reward", true)]);
    }

    #[test]
    fn signals_are_limited_and_counted() {
        let over = |room: usize| {
            let (mut signals, mut left) = (Signals::default(), Left::default());
            signals.has_room(Ts(0), room);
            for i in 0..MAX_SIGNALS + 7 {
                let e = event(1, &[(&format!("m{i}"), 1.0)]);
                signals.readings(place(0, 1), &e, &mut left);
            }
            (signals.at.len(), signals.beyond_usual(), left.over_limit)
        };
        assert_eq!(over(MAX_SIGNALS), (MAX_SIGNALS, MAX_SIGNALS - USUAL_SIGNALS, 7));
        assert_eq!(over(10), (USUAL_SIGNALS + 10, 10, (MAX_SIGNALS + 7 - USUAL_SIGNALS - 10) as u64));
    }

    #[test]
    fn room_is_looked_for_until_there_is_none() {
        let mut signals = Signals::default();
        let few = event(1, &[("a", 1.0)]);
        assert!(!signals.asks_for_room(Ts(0), &few));
        let names: Vec<String> = (0..40).map(|n| format!("m{n}")).collect();
        let many = event(1, &names.iter().map(|name| (name.as_str(), 1.0)).collect::<Vec<_>>());
        assert!(signals.asks_for_room(Ts(0), &many));
        signals.has_room(Ts(0), 4);
        signals.readings(place(0, 1), &many, &mut Left::default());
        assert!(!signals.asks_for_room(Ts(999), &many), "all of it is taken");
        assert!(signals.asks_for_room(Ts(1000), &many));
    }

    #[test]
    fn an_evaluation_has_a_name() {
        let (mut signals, mut left) = (Signals::default(), Left::default());
        let mut e = event(5, &[("loss", 2.0), ("accuracy", 0.5)]);
        e.name = Some("c4".into());
        assert_eq!(signals.eval(place(0, 5), &e, &mut left).map(|e| (e.set, e.loss)), Some(("c4", 2.0)));
        assert_eq!(signals.measured(place(0, 5), &e, &mut left)[0].1, "eval/c4/accuracy");
        assert!(signals.eval(place(1, 5), &e, &mut left).is_none(), "every rank says so");
    }
}

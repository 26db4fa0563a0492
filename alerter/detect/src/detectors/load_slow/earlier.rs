//! Compares a load with the earlier loads of the run: one of one or two hosts, and one in which all
//! hosts are equally slow.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Config, Found, LEAST, Load, NAMED, places, read_at, waits};
use crate::detector::RunAt;
use crate::run::{Loads, RunState, median};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Num, Observation, Sentence, Suspect, clause};

/// The most earlier loads that are kept, and the fewest that say what is usual.
const KEPT: usize = 8;
const ENOUGH: usize = 2;
/// Places that read up to so many times as much as others read alike.
const ALIKE: f64 = 1.5;

/// A load after which the run made steps: what the middle one of its places took, from the last
/// start of all, and read, where all report that.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Past {
    secs: f64,
    bytes: Option<f64>,
    places: u32,
}

/// The last loads of the run, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct History(VecDeque<Past>);

/// A load, compared with those before it.
#[derive(Debug)]
pub(super) struct Earlier {
    pub(super) all: Vec<Load>,
    last_start: Ts,
    /// Seconds, and bytes a second where they are known, of a place in these earlier loads.
    usual: f64,
    usual_rate: Option<f64>,
    loads: usize,
    /// From how many seconds on a place is slow.
    limit: f64,
}

/// What the middle one of the places that have ended read, if all of these say it.
fn bytes_of(all: &[Load]) -> Option<f64> {
    let ended: Vec<&Load> = all.iter().filter(|one| one.since.is_none()).collect();
    let is_sized = !ended.is_empty() && ended.iter().all(|one| one.rate().is_some());
    is_sized.then(|| median(ended.iter().map(|one| one.bytes)))
}

/// From how many seconds on a place is slow.
fn limit(c: &Config, usual: f64) -> f64 {
    (c.times * usual).max(usual + c.ticket_lost.as_secs_f64().max(LEAST))
}

impl Past {
    fn is_like(&self, places: u32, bytes: Option<f64>) -> bool {
        match self.bytes.zip(bytes) {
            Some((had, has)) => had.max(has) <= ALIKE * had.min(has),
            None => self.places == places,
        }
    }

    fn rate(&self) -> Option<f64> {
        self.bytes.filter(|_| self.secs > 0.0).map(|bytes| bytes / self.secs)
    }
}

impl History {
    /// The run makes steps after this load.
    pub(super) fn add(&mut self, f: &RunState, loads: &Loads) {
        let Some((all, _)) = places(f, loads).filter(|(all, _)| all.iter().all(|one| one.since.is_none()))
        else {
            return;
        };
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        let secs = median(all.iter().map(|one| one.shared_secs));
        let places = u32::try_from(all.len()).unwrap_or(u32::MAX);
        self.0.push_back(Past { secs, bytes: bytes_of(&all), places });
    }

    /// Until when no place can be slow, whichever earlier loads are like this one. To compare goes
    /// through all ranks and their nodes.
    pub(super) fn late_at(&self, c: &Config, loads: &Loads) -> Option<Ts> {
        if self.0.len() < ENOUGH {
            return None;
        }
        let least = self.0.iter().map(|past| past.secs).min_by(f64::total_cmp)?;
        let began = loads.ranks().map(|(_, load)| load.began.now).min()?;
        Some(began + Span::from_secs_f64(limit(c, least)))
    }

    /// The load that goes on or has ended, if enough earlier ones are like it.
    pub(super) fn compare(&self, c: &Config, f: &RunState, loads: &Loads) -> Option<Earlier> {
        let (all, last_start) = places(f, loads)?;
        let (count, bytes) = (u32::try_from(all.len()).unwrap_or(u32::MAX), bytes_of(&all));
        let like: Vec<&Past> = self.0.iter().filter(|past| past.is_like(count, bytes)).collect();
        if like.len() < ENOUGH {
            return None;
        }
        let usual = median(like.iter().map(|past| past.secs));
        let rates: Vec<f64> = like.iter().filter_map(|past| past.rate()).collect();
        let usual_rate = (rates.len() == like.len()).then(|| median(rates.into_iter()));
        let limit = limit(c, usual);
        Some(Earlier { all, last_start, usual, usual_rate, loads: like.len(), limit })
    }
}

impl Earlier {
    fn took(&self, one: &Load, now: Ts) -> f64 {
        one.took_shared(now, self.last_start)
    }

    fn is_slow(&self, c: &Config, one: &Load, now: Ts) -> bool {
        let rates = one.rate().zip(self.usual_rate);
        self.took(one, now) >= self.limit && rates.is_none_or(|(rate, usual)| rate * c.times <= usual)
    }

    /// What is wrong with the load, if anything is.
    pub(super) fn found(&self, c: &Config, view: RunAt<'_>) -> Option<Found> {
        let RunAt { now, run: f } = view;
        let mut slow: Vec<&Load> = self.all.iter().filter(|one| self.is_slow(c, one, now)).collect();
        slow.sort_by(|a, b| self.took(b, now).total_cmp(&self.took(a, now)));
        let first = *slow.first()?;
        let took = self.took(first, now);
        let (count, places) = (slow.len(), self.all.len());
        let who = if count == 1 {
            clause!("{place}", place = first.target.clone())
        } else {
            clause!("{count} of {places} nodes", count, places)
        };
        let verb = match (first.since.is_some(), count) {
            (false, _) => "loaded the checkpoint in",
            (true, 1) => "has been loading the checkpoint for",
            (true, _) => "have been loading the checkpoint for",
        };
        let usual_rate = self
            .usual_rate
            .map(|rate| clause!(" at {gigabytes_per_second} GB/s", gigabytes_per_second = rate / 1e9));
        let statement = clause!(
            "{who} {verb} {took}{pace}, {usual}{usual_rate} is usual in {loads} earlier loads of the run",
            who,
            verb,
            took = Span::from_secs_f64(took),
            pace = read_at(first),
            usual = Span::from_secs_f64(self.usual),
            usual_rate,
            loads = self.loads,
        );
        let held = took - self.usual;
        // If all are slow, what they read from is to blame, and none of them.
        let is_all = count == places && places > 1;
        let storage = is_all.then(|| clause!("all are slow: look at the storage that it is read from"));
        let named: Vec<&Load> = if is_all { Vec::new() } else { slow.iter().take(NAMED).copied().collect() };
        let why = Sentence::from(statement).and_perhaps(storage).and(waits(f, held));
        let suspects = named.iter().map(|one| self.suspect(one, now)).collect();
        let why = named.iter().fold(why, |why, one| why.naming(one.target.clone()));
        Some(Found { held, why, value: took, expected: self.usual, suspects })
    }

    fn suspect(&self, one: &Load, now: Ts) -> Suspect {
        let seen = Observation::LoadsLonger {
            value: Num(self.took(one, now)),
            expected: Num(self.usual),
            runs: one.since.is_some(),
            rates: one.rate().zip(self.usual_rate).map(|(rate, usual)| [Num(rate), Num(usual)]),
        };
        Suspect::new(one.target.clone(), seen)
    }

    /// When a place that still loads is slow, and holds the run for so long.
    pub(super) fn due(&self, held: Span) -> Option<Ts> {
        let since = self.all.iter().filter_map(|one| one.since).min()?.max(self.last_start);
        let late = self.limit.max(self.usual + held.as_secs_f64());
        Some(since + Span::from_secs_f64(late) + Span::millis(1))
    }
}

//! The series that the operator watches by name. Nothing else is known of them.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::detectors::generic::{self, Said, Watched};
use crate::sample::Reading;
use crate::series::{SeriesName, SeriesReading};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Observation, Scope, Suspect, Target};

/// The most series watched at once; readings of further ones are counted and dropped.
const MAX_SERIES: usize = 1_000_000;
/// A series that was not read for this long is forgotten.
pub(super) const FORGET_AFTER: Span = Span::secs(3600);
/// How often series that must be forgotten are searched.
pub(super) const SWEEP_EVERY: Span = Span::secs(600);
/// The number of series in one stored part, and how often a part is stored at least. After a crash
/// the statistics lack the later readings; findings are stored at once.
pub(super) const CHUNK: usize = 64;
const KEEP_EVERY: Span = Span::secs(600);
/// The most other series named in an incident.
const NAMED: usize = 4;

#[derive(Debug, Default)]
pub(super) struct WatchedSeries {
    slots: Vec<Option<Slot>>,
    free: BTreeSet<u32>,
    by_text: BTreeMap<ByText, u32>,
    /// The slot of each series, by its id at the receiver.
    routes: Vec<Option<u32>>,
    /// The series that deviate, by the incident that they belong to.
    raised: BTreeMap<Scope, BTreeSet<u32>>,
    /// When each chunk was last stored.
    kept_at: Vec<Ts>,
    dropped: u64,
}

/// A watched series. It is stored in this form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Slot {
    name: Arc<SeriesName>,
    watched: Watched,
    /// The number of values, which serves as their step.
    count: i64,
    last: Ts,
}

/// The name of a series, ordered by its text.
#[derive(Debug, Clone)]
struct ByText(Arc<SeriesName>);

/// The result of a reading.
pub(super) struct Heard {
    pub(super) slot: u32,
    pub(super) name: Arc<SeriesName>,
    pub(super) said: Said,
}

impl Borrow<str> for ByText {
    fn borrow(&self) -> &str {
        &self.0.text
    }
}

impl PartialEq for ByText {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for ByText {}

impl PartialOrd for ByText {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByText {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.0.text.cmp(&other.0.text)
    }
}

/// The scope of a series' incident: its metric, and its run if it has one.
pub(super) fn scope_of(name: &SeriesName) -> Scope {
    let of_run = |run: &str| format!("{} of {run}", name.metric);
    Scope::Series(if name.run.is_empty() { name.metric.to_string() } else { of_run(&name.run) })
}

impl WatchedSeries {
    /// The slot of a reading's series. The name shows if the id at the receiver belongs to another
    /// series now.
    fn slot(&mut self, r: &SeriesReading, c: &generic::Config) -> Option<u32> {
        let at = r.id as usize;
        if let Some(slot) = self.routes.get(at).copied().flatten()
            && let Some(Some(known)) = self.slots.get(slot as usize)
            && (Arc::ptr_eq(&known.name, &r.name) || known.name.text == r.name.text)
        {
            return Some(slot);
        }
        let slot = match self.by_text.get(&*r.name.text) {
            Some(slot) => *slot,
            None => self.add(r, c)?,
        };
        if at >= self.routes.len() {
            // Ids at the receiver are consecutive, so that this is about as long as the slots.
            self.routes.resize((at + 1).min(MAX_SERIES), None);
        }
        *self.routes.get_mut(at)? = Some(slot);
        Some(slot)
    }

    fn add(&mut self, r: &SeriesReading, c: &generic::Config) -> Option<u32> {
        if self.free.is_empty() && self.slots.len() >= MAX_SERIES {
            self.dropped += 1;
            return None;
        }
        let slot = self.free.pop_first().unwrap_or(self.slots.len() as u32);
        let watched = Watched::new(Arc::clone(&r.name.text), c.watch_named(&r.name.metric), 0);
        self.put(slot, Slot { name: Arc::clone(&r.name), watched, count: 0, last: r.ts });
        Some(slot)
    }

    fn put(&mut self, slot: u32, known: Slot) {
        let at = slot as usize;
        if at >= self.slots.len() {
            self.free.extend(self.slots.len() as u32..slot);
            self.slots.resize_with(at + 1, || None);
        }
        self.free.remove(&slot);
        self.by_text.insert(ByText(Arc::clone(&known.name)), slot);
        if known.watched.raised {
            self.raised.entry(scope_of(&known.name)).or_default().insert(slot);
        }
        if let Some(place) = self.slots.get_mut(at) {
            *place = Some(known);
        }
    }

    pub(super) fn take(&mut self, r: &SeriesReading, c: &generic::Config) -> Option<Heard> {
        let slot = self.slot(r, c)?;
        let known = self.slots.get_mut(slot as usize)?.as_mut()?;
        known.count += 1;
        known.last = known.last.max(r.ts);
        let reading = Reading {
            id: 0,
            name: &known.name.text,
            step: known.count,
            ts: r.ts,
            attempt: 0,
            value: r.value,
            quantum: 0.0,
        };
        let said = known.watched.take(&reading, c.limits())?;
        Some(Heard { slot, name: Arc::clone(&known.name), said })
    }

    /// Whether the part of a slot has not been stored for long.
    pub(super) fn is_due(&mut self, now: Ts, slot: u32) -> bool {
        let chunk = slot as usize / CHUNK;
        if chunk >= self.kept_at.len() {
            self.kept_at.resize(chunk + 1, now);
        }
        let Some(kept_at) = self.kept_at.get_mut(chunk).filter(|at| now - **at >= KEEP_EVERY) else {
            return false;
        };
        *kept_at = now;
        true
    }

    /// Records whether a series deviates. Returns whether any series of its incident still does.
    pub(super) fn note(&mut self, scope: &Scope, slot: u32, raised: bool) -> bool {
        let out = self.raised.entry(scope.clone()).or_default();
        if raised {
            out.insert(slot);
        } else {
            out.remove(&slot);
        }
        let any = !out.is_empty();
        if !any {
            self.raised.remove(scope);
        }
        any
    }

    /// The other series that deviate in the same incident, as suspects.
    pub(super) fn beside(&self, scope: &Scope, slot: u32) -> Vec<Suspect> {
        let others = self.raised.get(scope).into_iter().flatten().filter(|other| **other != slot);
        let names = others.filter_map(|other| self.slots.get(*other as usize)?.as_ref());
        let suspect = |known: &Slot| {
            Suspect::new(Target::Signal { name: known.name.text.to_string() }, Observation::OutOfPlace)
        };
        names.take(NAMED).map(suspect).collect()
    }

    /// Forgets series that have not been read for long. Returns the parts that changed, and the
    /// incidents without a series, with the time of their last reading.
    pub(super) fn sweep(&mut self, now: Ts) -> (BTreeSet<u32>, Vec<(Scope, Ts)>) {
        let (mut chunks, mut over) = (BTreeSet::new(), Vec::new());
        for at in 0..self.slots.len() {
            let Some(place) = self.slots.get_mut(at) else { continue };
            let Some(known) = place.take_if(|known| now - known.last >= FORGET_AFTER) else { continue };
            let slot = at as u32;
            self.by_text.remove(&*known.name.text);
            self.free.insert(slot);
            chunks.insert((at / CHUNK) as u32);
            let scope = scope_of(&known.name);
            if known.watched.raised && !self.note(&scope, slot, false) {
                over.push((scope, known.last));
            }
        }
        (chunks, over)
    }

    /// The stored form of a chunk; `None` if all its series are forgotten.
    pub(super) fn part(&self, chunk: u32) -> Option<Vec<(u32, &impl Serialize)>> {
        let first = chunk as usize * CHUNK;
        let slots = self.slots.iter().enumerate().skip(first).take(CHUNK);
        let known: Vec<_> = slots.filter_map(|(at, slot)| Some((at as u32, slot.as_ref()?))).collect();
        (!known.is_empty()).then_some(known)
    }

    /// Restores a stored chunk.
    pub(super) fn restore(&mut self, bytes: &[u8]) -> Option<()> {
        let slots: Vec<(u32, Slot)> = stepwatch_model::stored::decode(bytes)?;
        for (slot, known) in slots.into_iter().filter(|(slot, _)| (*slot as usize) < MAX_SERIES) {
            self.put(slot, known);
        }
        Some(())
    }

    pub(super) fn configure(&mut self, c: &generic::Config) {
        for known in self.slots.iter_mut().flatten() {
            known.watched.configure(c.watch_named(&known.name.metric));
        }
    }

    /// The slot of a series by its id at the receiver.
    pub(super) fn route(&self, id: u32) -> Option<u32> {
        self.routes.get(id as usize).copied().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.by_text.len()
    }

    /// Readings of series beyond the limit.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

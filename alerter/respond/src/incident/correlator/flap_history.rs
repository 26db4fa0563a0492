//! The history of a fault between its incidents: how often it came back, and which kinds a person
//! closed by hand.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use stepwatch_model::{Cause, Change, Finding, Kind, Scope, Severity, Span, Subject, Ts};

/// How long a resolved incident counts against the next one of its subject.
pub(crate) const FLAP_MEMORY: Span = Span::secs(3600);

/// The state that is stored apart from the incidents.
#[derive(Debug, Clone, Default)]
pub(crate) struct FlapHistory {
    counter: u64,
    memory: BTreeMap<Subject, Memory>,
    /// The subjects of `memory` by age, so that expired entries are found without a full scan.
    by_age: BTreeSet<(Ts, Subject)>,
    /// Subjects whose memory changed since it was stored. Each memory has a row of its own, because
    /// a storm has thousands.
    changed: BTreeSet<Subject>,
    /// Incidents that ended before this time are unknown, because the stored state could not be
    /// read. `None` if all of them are known.
    known_since: Option<Ts>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Memory {
    subject: Subject,
    at: Ts,
    flaps: u32,
    /// Kinds that a person closed by hand while they still held. They are not notified until they
    /// clear or get worse.
    closed: BTreeMap<Kind, Severity>,
}

/// The stored form of everything but the memories. Older versions stored all memories here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FlapHistoryRow {
    counter: u64,
    memory: Vec<Memory>,
    known_since: Option<Ts>,
}

impl FlapHistory {
    /// A number that no incident had before.
    pub(super) fn next_number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Records that part of the stored state could not be read.
    pub(crate) fn lost(&mut self) {
        self.known_since = Some(Ts(i64::MAX));
    }

    /// Whether no incident of the subject that began at `since` or later can have ended already.
    pub(super) fn is_first_since(&mut self, now: Ts, subject: &Subject, since: Ts) -> bool {
        self.known_since = self.known_since.map(|at| at.min(now));
        since <= now
            && now - since < FLAP_MEMORY
            && self.known_since.is_none_or(|at| at < since)
            && self.memory.get(subject).is_none_or(|m| m.at < since)
    }

    /// The subjects whose memory changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Subject> {
        core::mem::take(&mut self.changed)
    }

    /// How often the subject was faulty within the last hour.
    pub(crate) fn flaps(&mut self, now: Ts, subject: &Subject) -> u32 {
        self.forget_old(now);
        let fresh = self.memory.get(subject).filter(|m| now - m.at < FLAP_MEMORY);
        fresh.map_or(0, |m| m.flaps + 1)
    }

    fn forget_old(&mut self, now: Ts) {
        while let Some((at, subject)) = self.by_age.pop_first() {
            if now - at < FLAP_MEMORY {
                self.by_age.insert((at, subject));
                return;
            }
            // A kind that a person closed is kept for as long as it is closed.
            if self.memory.get(&subject).is_some_and(|m| m.closed.is_empty()) {
                self.memory.remove(&subject);
                self.changed.insert(subject);
            }
        }
    }

    pub(crate) fn resolved(&mut self, now: Ts, subject: &Subject, flaps: u32) {
        self.of(now, subject).flaps = flaps;
    }

    /// When the subject was last known to be over; `None` if it never was or has expired.
    pub(crate) fn over_at(&self, subject: &Subject) -> Option<Ts> {
        self.memory.get(subject).map(|m| m.at)
    }

    pub(crate) fn close(&mut self, now: Ts, subject: &Subject, kind: Kind, severity: Severity) {
        self.of(now, subject).closed.insert(kind, severity);
    }

    fn of(&mut self, now: Ts, subject: &Subject) -> &mut Memory {
        let blank = || Memory { subject: subject.clone(), at: now, flaps: 0, closed: BTreeMap::new() };
        let memory = self.memory.entry(subject.clone()).or_insert_with(blank);
        self.by_age.remove(&(memory.at, subject.clone()));
        self.by_age.insert((now, subject.clone()));
        self.changed.insert(subject.clone());
        memory.at = now;
        memory
    }

    pub(crate) fn is_closed(&self, subject: &Subject, v: &Finding) -> bool {
        let closed = self.memory.get(subject).and_then(|m| m.closed.get(&v.kind));
        v.change != Change::Another && closed.is_some_and(|severity| v.severity <= *severity)
    }

    pub(crate) fn reopen(&mut self, subject: &Subject, kind: Kind) {
        if let Some(m) = self.memory.get_mut(subject)
            && m.closed.remove(&kind).is_some()
        {
            self.changed.insert(subject.clone());
            // Its `FLAP_MEMORY` may have passed: the next `forget_old` then removes it.
            self.by_age.insert((m.at, subject.clone()));
        }
    }

    /// Lets all kinds of a scope notify again, including those that a person closed by hand.
    pub(crate) fn reopen_all(&mut self, scope: &Scope) {
        for (subject, m) in of_scope(&mut self.memory, scope).filter(|(_, m)| !m.closed.is_empty()) {
            m.closed.clear();
            self.changed.insert(subject.clone());
            self.by_age.insert((m.at, subject.clone()));
        }
    }

    pub(crate) fn forget(&mut self, scope: &Scope) {
        let gone: Vec<Subject> = of_scope(&mut self.memory, scope).map(|(s, _)| s.clone()).collect();
        for subject in gone {
            if let Some(m) = self.memory.remove(&subject) {
                self.by_age.remove(&(m.at, subject.clone()));
            }
            self.changed.insert(subject);
        }
    }

    pub(crate) fn row(&self) -> FlapHistoryRow {
        FlapHistoryRow { counter: self.counter, memory: Vec::new(), known_since: self.known_since }
    }

    pub(crate) fn memory(&self, subject: &Subject) -> Option<&Memory> {
        self.memory.get(subject)
    }

    /// Restores the stored state.
    pub(crate) fn restore(&mut self, row: FlapHistoryRow) {
        self.counter = row.counter;
        self.known_since = row.known_since;
        for memory in row.memory {
            // The next write stores it in a row of its own.
            self.changed.insert(memory.subject.clone());
            self.remember(memory);
        }
    }

    pub(crate) fn remember(&mut self, memory: Memory) {
        self.by_age.insert((memory.at, memory.subject.clone()));
        self.memory.insert(memory.subject.clone(), memory);
    }
}

fn of_scope<'a>(
    memory: &'a mut BTreeMap<Subject, Memory>,
    scope: &'a Scope,
) -> impl Iterator<Item = (&'a Subject, &'a mut Memory)> {
    let first = Subject { scope: scope.clone(), cause: Cause::FIRST };
    memory.range_mut(first..).take_while(move |(subject, _)| subject.scope == *scope)
}

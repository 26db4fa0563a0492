//! What is remembered of a sickness between two incidents of it: how often it came back, and what a person closed by hand.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Scope, Subject};
use crate::time::{Span, Ts};
use crate::verdict::{Kind, Severity, Verdict};

/// How long a resolved incident counts against the next one of its subject.
pub(super) const FLAP_MEMORY: Span = Span::secs(3600);

/// What survives apart from the incidents themselves.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Ledger {
    pub(super) counter: u64,
    memory: Vec<Memory>,
    /// It is not as it was stored.
    #[serde(skip)]
    pub(crate) changed: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Memory {
    subject: Subject,
    at: Ts,
    flaps: u32,
    /// Kinds that a person closed by hand while they still held: quiet until they clear or get worse.
    closed: BTreeMap<Kind, Severity>,
}

impl Ledger {
    /// How often the subject was sick within the last hour.
    pub(super) fn flaps(&mut self, now: Ts, subject: &Subject) -> u32 {
        self.memory.retain(|m| now - m.at < FLAP_MEMORY || !m.closed.is_empty());
        let fresh = self.memory.iter().find(|m| m.subject == *subject && now - m.at < FLAP_MEMORY);
        fresh.map_or(0, |m| m.flaps + 1)
    }

    pub(super) fn resolved(&mut self, now: Ts, subject: &Subject, flaps: u32) {
        self.of(now, subject).flaps = flaps;
    }

    pub(super) fn close(&mut self, now: Ts, subject: &Subject, kind: Kind, severity: Severity) {
        self.of(now, subject).closed.insert(kind, severity);
    }

    fn of(&mut self, now: Ts, subject: &Subject) -> &mut Memory {
        let memory = &mut self.memory;
        let at = memory.iter().position(|m| m.subject == *subject).unwrap_or_else(|| {
            memory.push(Memory { subject: subject.clone(), at: now, flaps: 0, closed: BTreeMap::new() });
            memory.len() - 1
        });
        memory[at].at = now;
        &mut memory[at]
    }

    pub(super) fn is_closed(&self, subject: &Subject, v: &Verdict) -> bool {
        let closed = |m: &Memory| m.closed.get(&v.kind).is_some_and(|s| v.severity <= *s);
        self.memory.iter().any(|m| m.subject == *subject && closed(m))
    }

    pub(super) fn reopen(&mut self, subject: &Subject, kind: Kind) {
        for m in self.memory.iter_mut().filter(|m| m.subject == *subject) {
            self.changed |= m.closed.remove(&kind).is_some();
        }
    }

    /// It is judged afresh, whatever was closed by hand before.
    pub(super) fn reopen_all(&mut self, scope: &Scope) {
        for m in self.memory.iter_mut().filter(|m| m.subject.scope == *scope && !m.closed.is_empty()) {
            m.closed.clear();
            self.changed = true;
        }
    }

    pub(super) fn forget(&mut self, scope: &Scope) {
        let had = self.memory.len();
        self.memory.retain(|m| m.subject.scope != *scope);
        self.changed |= self.memory.len() != had;
    }
}

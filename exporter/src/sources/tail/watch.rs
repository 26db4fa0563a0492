//! Tracks whether a file's writers still run, and when to look for them again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::writers::{Process, Processes, Writer};

/// How often writers are looked up. All descriptors of the host are inspected only if no writer is
/// known.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Files without a writer on this host are looked up less and less often, up to [`LOOK_EVERY`]
/// times this.
const MAX_BACKOFF: u32 = 32;
/// A file that has not grown for this long is not searched for new writers.
const ACTIVE: Duration = Duration::from_mins(10);
/// The most writers of one file that are kept: a job's processes inherit its output.
const MAX_WRITERS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The processes that wrote to it at the last lookup.
    writers: BTreeSet<Process>,
    /// Whether any writer was seen since its end was last published.
    seen: bool,
    /// Whether an inspection of all processes found that none is left.
    gone: bool,
    looked: Option<Instant>,
    backoff: u32,
}

impl Watch {
    pub(super) fn resumed(writers: &[Process]) -> Self {
        Self { writers: writers.iter().copied().collect(), seen: !writers.is_empty(), ..Self::default() }
    }

    pub(super) fn writers(&self) -> Vec<Process> {
        self.writers.iter().copied().collect()
    }

    /// Whether a process is known to write to it.
    pub(super) fn is_written(&self) -> bool {
        !self.writers.is_empty()
    }

    /// Whether all its writers have exited.
    pub(super) fn is_orphaned(&self) -> bool {
        self.gone
    }

    /// Forgets the writers, because the end was published or the run continues.
    pub(super) fn begin_anew(&mut self) {
        *self = Self::default();
    }

    /// Removes writers that have exited. Returns whether to look for others.
    pub(super) fn wants_look(&mut self, now: Instant, grew: Option<Instant>, processes: &Processes) -> bool {
        self.writers.retain(|w| processes.runs(*w));
        if self.is_written() || self.gone {
            return false;
        }
        let active = grew.is_some_and(|at| now.saturating_duration_since(at) < ACTIVE);
        let due = self.looked.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY * self.backoff);
        self.seen || (active && due)
    }

    /// Records the writers of this file that an inspection of all processes found.
    pub(super) fn found(&mut self, now: Instant, writers: impl Iterator<Item = Writer>) {
        self.writers = writers.map(|w| w.process).take(MAX_WRITERS).collect();
        self.looked = Some(now);
        self.gone = self.seen && !self.is_written();
        self.seen |= self.is_written();
        self.backoff = if self.seen { 1 } else { (self.backoff * 2).clamp(1, MAX_BACKOFF) };
    }
}

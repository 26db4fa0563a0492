//! Whether a file's writers are still there: what is known of them, and when to look again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::writers::{Process, Processes, Writer};

/// How often writers are looked for. All descriptors of the host are looked at only when none is
/// known.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Files without a writer on this host are looked at less and less often, down to every
/// [`LOOK_EVERY`] times this.
const MAX_BACKOFF: u32 = 32;
/// A file that has not grown for this long is not looked at for new writers.
const ACTIVE: Duration = Duration::from_mins(10);
/// Writers of one file that are remembered: a job's processes inherit its output.
const MAX_WRITERS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Processes that wrote to it when last looked at.
    writers: BTreeSet<Process>,
    /// Some were seen, since its end was last published.
    seen: bool,
    /// That none is left was seen by a look at everything.
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

    /// A process writes to it, as far as is known.
    pub(super) fn is_written(&self) -> bool {
        !self.writers.is_empty()
    }

    /// All who wrote to it are gone.
    pub(super) fn is_orphaned(&self) -> bool {
        self.gone
    }

    /// Its end was published, or it has gone on: writers seen until now are of before.
    pub(super) fn begin_anew(&mut self) {
        *self = Self::default();
    }

    /// Forgets writers that are gone. Returns whether to look for others.
    pub(super) fn wants_look(&mut self, now: Instant, grew: Option<Instant>, processes: &Processes) -> bool {
        self.writers.retain(|w| processes.runs(*w));
        if self.is_written() || self.gone {
            return false;
        }
        let active = grew.is_some_and(|at| now.saturating_duration_since(at) < ACTIVE);
        let due = self.looked.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY * self.backoff);
        self.seen || (active && due)
    }

    /// A look at everything found these writers of this file, or none.
    pub(super) fn found(&mut self, now: Instant, writers: impl Iterator<Item = Writer>) {
        self.writers = writers.map(|w| w.process).take(MAX_WRITERS).collect();
        self.looked = Some(now);
        self.gone = self.seen && !self.is_written();
        self.seen |= self.is_written();
        self.backoff = if self.seen { 1 } else { (self.backoff * 2).clamp(1, MAX_BACKOFF) };
    }
}

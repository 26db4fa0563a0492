//! Detects that a job hangs, which no single poll can show.
//!
//! Ranks are normally apart while a job runs. The status word is `OK` for jobs that have been stuck
//! for an hour, and `MISMATCH` for healthy ones. A communicator hangs if some of its ranks have
//! launched what others have not, none of them has launched anything for a while, and the lagging
//! ones have done nothing in any other communicator either: a pipeline stage that is busy elsewhere
//! is late, not stuck.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::status::{Communicator, Format, Member, Status};

/// The number of polls that must agree.
const POLLS: u32 = 3;
/// The most communicators that are kept although the last answer did not contain them.
const MAX_KEPT: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Watch {
    communicators: BTreeMap<String, Apart>,
    processes: BTreeMap<u64, Still>,
}

/// The last status of a communicator whose ranks are apart.
#[derive(Debug)]
struct Apart {
    communicator: Communicator,
    still: Still,
}

/// A fingerprint, and since when it has not changed.
#[derive(Debug, Clone, Copy)]
struct Still {
    fingerprint: u64,
    since: Instant,
    seen: Instant,
    polls: u32,
}

/// A hanging communicator, and how long it has not moved.
#[derive(Debug)]
pub(super) struct Stuck<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) still: Duration,
}

impl Stuck<'_> {
    /// Orders first the one that the fewest ranks have not joined, because the rest wait for it.
    pub(super) fn order(&self) -> impl Ord + use<> {
        (self.communicator.lagging(), std::cmp::Reverse(self.communicator.size))
    }
}

impl Still {
    fn next(before: Option<&Self>, fingerprint: u64, now: Instant) -> Self {
        let same = before.filter(|b| b.fingerprint == fingerprint);
        same.map_or(Self { fingerprint, since: now, seen: now, polls: 1 }, |b| Self {
            seen: now,
            polls: b.polls.saturating_add(1),
            ..*b
        })
    }

    /// How long nothing has changed, if that is long enough. What happened after the last status is
    /// unknown.
    fn long(&self, after: Duration) -> Option<Duration> {
        Some(self.seen.saturating_duration_since(self.since))
            .filter(|long| self.polls >= POLLS && *long >= after)
    }
}

impl Watch {
    /// Takes in the answer of a poll.
    ///
    /// An answer in text does not name its job. So the answer of another job, without the
    /// communicators that lag here, may be taken for this one's. Counts only grow: a communicator
    /// that reappears with the same counts within `keep` has not moved in between.
    pub(super) fn take(&mut self, status: &Status, now: Instant, keep: Duration) {
        let processes = status.processes.iter();
        self.processes =
            processes.map(|(key, print)| (*key, Still::next(self.processes.get(key), *print, now))).collect();
        let mut before = std::mem::take(&mut self.communicators);
        for communicator in &status.communicators {
            let known = before.remove(&communicator.id);
            if communicator.lagging() > 0 {
                let still = Still::next(known.as_ref().map(|k| &k.still), communicator.fingerprint, now);
                let communicator = communicator.clone();
                self.communicators.insert(communicator.id.clone(), Apart { communicator, still });
            }
        }
        if status.format == Format::Text {
            let counted = |a: &Apart| a.communicator.apart().is_some();
            let fresh = |a: &Apart| now.saturating_duration_since(a.still.seen) <= keep;
            let kept = before.into_iter().filter(|(_, a)| counted(a) && fresh(a));
            self.communicators.extend(kept.take(MAX_KEPT));
        }
    }

    /// The communicators that hang.
    pub(super) fn stuck(&self, after: Duration) -> impl Iterator<Item = Stuck<'_>> {
        self.communicators.values().filter_map(move |Apart { communicator, still }| {
            let still = still.long(after)?;
            communicator.named().all(|m| self.is_still(m, after)).then_some(Stuck { communicator, still })
        })
    }

    /// Whether the process has not moved; true if it has no status.
    fn is_still(&self, member: &Member, after: Duration) -> bool {
        self.processes.get(&member.process()).is_none_or(|still| still.long(after).is_some())
    }
}

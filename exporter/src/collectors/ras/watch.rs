//! Whether a job hangs: what no single poll can tell.
//!
//! Ranks that are apart are normal while a job runs; the status word says `OK` of jobs that have been stuck for an hour, and `MISMATCH`
//! of ones that run well. A communicator hangs when some of its ranks have launched what others have not, none of them has launched
//! anything for a while, and those that lag have done nothing in any other communicator either: a stage of a pipeline that is busy
//! elsewhere is late, not stuck.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::status::{Communicator, Member, Status};

/// Polls that must agree.
const POLLS: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Watch {
    communicators: BTreeMap<String, Still>,
    processes: BTreeMap<u64, Still>,
}

/// What has not moved.
#[derive(Debug, Clone, Copy)]
struct Still {
    fingerprint: u64,
    since: Instant,
    polls: u32,
}

/// A communicator that hangs, and for how long it has not moved.
#[derive(Debug)]
pub(super) struct Stuck<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) still: Duration,
}

impl Still {
    fn next(before: Option<&Self>, fingerprint: u64, now: Instant) -> Self {
        let same = before.filter(|b| b.fingerprint == fingerprint);
        same.map_or(Self { fingerprint, since: now, polls: 1 }, |b| Self {
            polls: b.polls.saturating_add(1),
            ..*b
        })
    }

    /// For how long, if it is long enough.
    fn long(&self, now: Instant, after: Duration) -> Option<Duration> {
        Some(now.saturating_duration_since(self.since)).filter(|long| self.polls >= POLLS && *long >= after)
    }
}

impl Watch {
    /// Takes a poll in, and gives those that hang: the one that the fewest ranks have not joined first, because the rest wait for it.
    pub(super) fn look<'a>(&mut self, status: &'a Status, now: Instant, after: Duration) -> Vec<Stuck<'a>> {
        let processes = status.processes.iter();
        self.processes =
            processes.map(|(key, print)| (*key, Still::next(self.processes.get(key), *print, now))).collect();
        let lagging = status.communicators.iter().filter(|c| c.lagging() > 0);
        let next = lagging
            .clone()
            .map(|c| (c.id.clone(), Still::next(self.communicators.get(&c.id), c.fingerprint, now)));
        self.communicators = next.collect();
        let hangs = |communicator: &'a Communicator| {
            let still = self.communicators.get(&communicator.id)?.long(now, after)?;
            communicator
                .named()
                .all(|m| self.is_still(m, now, after))
                .then_some(Stuck { communicator, still })
        };
        let mut stuck: Vec<_> = lagging.filter_map(hangs).collect();
        stuck.sort_by_key(|s| (s.communicator.lagging(), std::cmp::Reverse(s.communicator.size)));
        stuck
    }

    /// A process that nothing is heard of does not move.
    fn is_still(&self, member: &Member, now: Instant, after: Duration) -> bool {
        self.processes.get(&member.process()).is_none_or(|still| still.long(now, after).is_some())
    }
}

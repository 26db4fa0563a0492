//! The status of a job from one poll, in either format: for each communicator, the distance between
//! its ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher as _};

/// The most ranks that are named of a communicator; further ones are only counted.
pub(super) const MAX_NAMED: usize = 16;
/// The most communicators of a job, enough for the largest of a cluster.
pub(super) const MAX_COMMUNICATORS: usize = 8192;
/// The most kinds of collectives: NCCL has eight.
pub(super) const MAX_COLLECTIVES: usize = 16;
/// The most bytes of a name; those of hosts are addresses.
const MAX_NAME: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Text,
}

/// The status of a job at one poll.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Status {
    pub(super) format: Format,
    pub(super) version: String,
    /// The communicators, the largest first.
    pub(super) communicators: Vec<Communicator>,
    pub(super) seconds: Option<f64>,
    pub(super) timeouts: u64,
    /// The address of the node with the lowest rank that answered; unknown in text.
    pub(super) first_host: Option<String>,
    /// For each [`Member::process`], a value that changes when it launches anything in any
    /// communicator; unknown in text.
    pub(super) processes: BTreeMap<u64, u64>,
    /// The job's numbers of nodes, processes and GPUs, as text gives them.
    pub(super) summary: String,
}

impl Status {
    /// The approximate memory in units of some hundred bytes.
    pub(super) fn weight(&self) -> usize {
        let of = |c: &Communicator| 1 + c.spreads.len() + c.named().count();
        self.communicators.iter().map(of).sum::<usize>() + self.processes.len() / 4
    }

    /// Whether both are about the same job. JSON names its communicators; for text, only the job's
    /// size can be compared. Process ids do not help, because each container counts its own.
    pub(super) fn is_of_same_job(&self, other: &Self) -> bool {
        let ids = |s: &Self| s.communicators.iter().map(|c| c.id.clone()).collect::<BTreeSet<_>>();
        let shared = || match (self.format, ids(self), ids(other)) {
            (Format::Text, ..) => true,
            (Format::Json, a, b) => (a.is_empty() && b.is_empty()) || !a.is_disjoint(&b),
        };
        self.format == other.format
            && self.version == other.version
            && self.summary == other.summary
            && shared()
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Communicator {
    pub(super) id: String,
    pub(super) size: u32,
    /// The progress of the ranks for each kind of collective.
    pub(super) spreads: BTreeMap<String, Spread>,
    /// Ranks from which RAS got no answer.
    pub(super) missing: Members,
    pub(super) dead: u64,
    /// The number of ranks with an error of NCCL.
    pub(super) errors: u64,
    /// A value that changes when any rank launches anything, or answers again.
    pub(super) fingerprint: u64,
}

/// The numbers of operations of one kind that ranks have launched.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Spread {
    pub(super) most: u64,
    pub(super) least: u64,
    /// Ranks that are behind the furthest one.
    pub(super) behind: Members,
}

/// A number of ranks, some of which are named.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Members {
    pub(super) count: u64,
    pub(super) named: Vec<Member>,
}

/// A rank, numbered within its communicator.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Member {
    pub(super) rank: u32,
    pub(super) host: String,
    pub(super) pid: Option<u32>,
    pub(super) gpu: Option<u32>,
}

impl Members {
    pub(super) fn add(&mut self, member: impl FnOnce() -> Member) {
        self.count += 1;
        if self.named.len() < MAX_NAMED {
            self.named.push(member());
        }
    }
}

impl Communicator {
    /// The collective whose ranks are apart: the one that the fewest ranks have not joined.
    pub(super) fn apart(&self) -> Option<(&str, &Spread)> {
        let apart = self.spreads.iter().filter(|(_, s)| s.behind.count > 0);
        apart.min_by_key(|(_, s)| s.behind.count).map(|(name, spread)| (&**name, spread))
    }

    /// The named ranks that the others wait for.
    pub(super) fn named(&self) -> impl Iterator<Item = &Member> {
        let behind = self.apart().map(|(_, spread)| &spread.behind.named);
        self.missing.named.iter().chain(behind.into_iter().flatten())
    }

    /// Drops the names for all collectives but the one whose ranks are apart.
    pub(super) fn forget_names(&mut self) {
        let apart = self.apart().map(|(name, _)| name.to_owned());
        for (name, spread) in &mut self.spreads {
            if apart.as_deref() != Some(name) {
                spread.behind.named = Vec::new();
            }
        }
    }

    /// The number of ranks that the others wait for.
    pub(super) fn lagging(&self) -> u64 {
        self.apart().map_or(0, |(_, spread)| spread.behind.count).max(self.missing.count)
    }
}

impl Member {
    /// Identifies its process across communicators.
    pub(super) fn process(&self) -> u64 {
        fingerprint((&self.host, self.pid))
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("rank {} on {}", self.rank, self.host);
        if let Some(gpu) = self.gpu {
            // Writing to a string cannot fail.
            let _ = write!(text, ", GPU {gpu}");
        }
        if let Some(pid) = self.pid {
            let _ = write!(text, ", process {pid}");
        }
        text
    }
}

/// A name, cut to [`MAX_NAME`] bytes.
pub(super) fn clipped(name: &str) -> String {
    name[..name.floor_char_boundary(MAX_NAME)].to_owned()
}

/// A hash that is equal for equal values within this process.
pub(super) fn fingerprint(of: impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

//! Why a report of a source is refused, and how many were.

/// Why a report of a source is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    OtherNode,
    NodeTaken,
    RankTaken,
    RankUnknown,
    NotOfRun,
    OtherUser,
    TooManyRuns,
    TooManyRanks,
    TooManyNodes,
}

impl Refusal {
    pub const ALL: [Self; 9] = [
        Self::OtherNode,
        Self::NodeTaken,
        Self::RankTaken,
        Self::RankUnknown,
        Self::NotOfRun,
        Self::OtherUser,
        Self::TooManyRuns,
        Self::TooManyRanks,
        Self::TooManyNodes,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::OtherNode => "other_node",
            Self::NodeTaken => "node_taken",
            Self::RankTaken => "rank_taken",
            Self::RankUnknown => "rank_unknown",
            Self::NotOfRun => "not_of_run",
            Self::OtherUser => "other_user",
            Self::TooManyRuns => "too_many_runs",
            Self::TooManyRanks => "too_many_ranks",
            Self::TooManyNodes => "too_many_nodes",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::OtherNode => "it names a node that is not its own",
            Self::NodeTaken => "another exporter reports its node",
            Self::RankTaken => "it names a rank that another exporter reports",
            Self::RankUnknown => "it names a rank that the run does not have",
            Self::NotOfRun => "it reports a run of which it has no rank",
            Self::OtherUser => "it names a run of another user",
            Self::TooManyRuns => "it names too many runs",
            Self::TooManyRanks => "it names too many ranks",
            Self::TooManyNodes => "there are too many nodes",
        }
    }
}

/// Reports of a source that were refused, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    counts: [u64; Refusal::ALL.len()],
    last: Option<Refusal>,
}

impl Refused {
    pub(super) fn count(&mut self, why: Refusal) {
        self.counts[why as usize] += 1;
        self.last = Some(why);
    }

    pub fn count_of(&self, why: Refusal) -> u64 {
        self.counts[why as usize]
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The reason of the last refusal.
    pub fn last(&self) -> Option<Refusal> {
        self.last
    }
}

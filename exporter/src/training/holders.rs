//! Finds the processes that hold the ranks of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::Training;

/// The most holders returned. The caller reads files of each and of its ancestors.
const MAX_HOLDERS: usize = 8;

impl Training {
    /// Processes that are connected as a rank, or that started such a one. Empty if the launcher or
    /// scheduler has counted more restarts than this exporter: the remaining processes are about to
    /// end.
    pub fn holders(&self, run: &str, rank: u32, restarts: Option<u32>) -> Vec<u32> {
        let Some(run) = self.runs.get(run) else { return Vec::new() };
        let Some(rank) = run.ranks.get(&rank) else { return Vec::new() };
        if restarts > Some(run.epoch.attempt).max(rank.restarts) {
            return Vec::new();
        }
        let connected = rank.process.filter(|_| !rank.connections.is_empty() && !rank.said_bye);
        let own = connected.map(|(pid, _)| pid);
        let launchers: BTreeSet<u32> = rank.launchers.values().flatten().copied().collect();
        own.into_iter().chain(launchers).take(MAX_HOLDERS).collect()
    }

    /// The last process of a rank.
    pub fn pid_of(&self, run: &str, rank: u32) -> Option<u32> {
        let now = self.runs.get(run).and_then(|run| run.ranks.get(&rank)?.pid);
        now.or_else(|| self.archive.runs.get(run)?.ranks.get(&rank)?.pid)
    }

    /// Whether the run was ever reported, also before a restart of this exporter.
    pub fn knows(&self, run: &str) -> bool {
        self.runs.contains_key(run) || self.archive.runs.contains_key(run)
    }

    /// Whether there may be a run beside this one, named as [`stepwatch_wire::run_name::beside`]
    /// does.
    pub fn has_beside(&self, run: &str) -> bool {
        let prefix = format!("{run}.");
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        self.runs.range::<str, _>(from).next().is_some_and(|(name, _)| name.starts_with(&prefix))
            || first_from(&self.archive.runs, &prefix).is_some_and(|name| name.starts_with(&prefix))
    }
}

fn first_from<'a, T>(of: &'a BTreeMap<String, T>, prefix: &str) -> Option<&'a String> {
    of.range::<str, _>((Bound::Included(prefix), Bound::Unbounded)).next().map(|(name, _)| name)
}

//! The state of runs that survives a restart of this exporter: attempts and last steps. Without it,
//! a trainer that went on meanwhile would look restarted, or a restarted one would look as if it
//! went on.
//!
//! The state is one small JSON file, replaced by a rename: a crash leaves the old or the new one. A
//! file that cannot be read is renamed and ignored. That costs attempt numbers, but never the
//! start.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::origin::Priority;
use crate::persisted_state;
use crate::principal::Principal;

const FILE: &str = "runs.json";
/// The most runs kept, and the most ranks of all of them. Above it, the user with the most ranks
/// loses the run with the oldest report.
const MAX_RUNS: usize = 1024;
const MAX_RANKS: usize = 16 * MAX_RUNS;
/// Seconds without reports after which a run is dropped.
const KEEP_SECONDS: f64 = 14.0 * 86_400.0;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PastRun {
    pub(super) attempt: u32,
    pub(super) heard: f64,
    /// The owner of the run.
    #[serde(default)]
    pub(super) owner: Principal,
    /// Whether root itself reported a step of this run.
    #[serde(default)]
    pub(super) settled: bool,
    /// Whether all its ranks sent `bye` with a good end, so that any user may take it over.
    #[serde(default)]
    pub(super) completed: bool,
    pub(super) ranks: BTreeMap<u32, PastRank>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PastRank {
    pub(super) attempt: u32,
    pub(super) step: i64,
    pub(super) lead: Priority,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<u32>,
}

/// The contents of the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Archive {
    pub(super) runs: BTreeMap<String, PastRun>,
}

impl Archive {
    /// Loads what an earlier process left in `dir`; empty if there is nothing.
    pub fn load(dir: &Path) -> Self {
        let path = dir.join(FILE);
        let text = match persisted_state::read(&path, u64::MAX) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Self::default(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read what is remembered of runs; attempts begin anew");
                return Self::default();
            }
        };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            let aside = path.with_extension("json.bad");
            tracing::warn!(path = %path.display(), aside = %aside.display(), %error, "what is remembered of runs is damaged; set aside, attempts begin anew");
            let _ = std::fs::rename(&path, &aside);
            Self::default()
        })
    }

    pub fn save(&self, dir: &Path) -> std::io::Result<()> {
        persisted_state::replace(&dir.join(FILE), &serde_json::to_vec(self)?)
    }

    pub(super) fn prune(&mut self, now: f64) {
        self.runs.retain(|_, run| now - run.heard < KEEP_SECONDS);
        let weight = |run: &PastRun| run.ranks.len().max(1);
        let mut of: BTreeMap<Principal, usize> = BTreeMap::new();
        for run in self.runs.values() {
            *of.entry(run.owner).or_default() += weight(run);
        }
        while self.runs.len() > MAX_RUNS || of.values().sum::<usize>() > MAX_RANKS {
            let Some((most, ranks)) = of.iter_mut().max_by_key(|(_, ranks)| **ranks) else { break };
            let theirs = self.runs.iter().filter(|(_, run)| run.owner == *most);
            let oldest = theirs.min_by(|a, b| a.1.heard.total_cmp(&b.1.heard));
            let Some(name) = oldest.map(|(name, _)| name.clone()) else { break };
            *ranks -= self.runs.remove(&name).map_or(0, |run| weight(&run));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Archive {
        let rank = PastRank { attempt: 2, step: 150, lead: Priority::Client, pid: Some(7) };
        let run = PastRun {
            attempt: 2,
            heard: 1000.0,
            owner: Principal::User(1000),
            settled: false,
            completed: false,
            ranks: [(3, rank)].into(),
        };
        Archive { runs: [("r".to_owned(), run)].into() }
    }

    #[test]
    fn saved_and_loaded_again() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Archive::load(dir.path()), Archive::default());
        sample().save(dir.path()).unwrap();
        assert_eq!(Archive::load(dir.path()), sample());
        assert!(!dir.path().join("runs.json.new").exists());
        use std::os::unix::fs::PermissionsExt as _;
        let path = dir.path().join(FILE);
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        Archive::load(dir.path());
        assert_eq!(mode(), 0o600, "of an earlier version");
    }

    #[test]
    fn a_damaged_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), b"{\"runs\":{\"r\":").unwrap();
        assert_eq!(Archive::load(dir.path()), Archive::default());
        assert!(dir.path().join("runs.json.bad").exists());
    }

    #[test]
    fn old_runs_are_forgotten_and_the_rest_is_bounded() {
        let mut a = sample();
        let run = a.runs["r"].clone();
        for i in 0..2000 {
            a.runs.insert(format!("n{i}"), PastRun { heard: 2e6 + f64::from(i), ..run.clone() });
        }
        a.prune(2e6 + 2000.0);
        assert_eq!(a.runs.len(), MAX_RUNS);
        assert!(a.runs.contains_key("n1999") && !a.runs.contains_key("r") && !a.runs.contains_key("n0"));
        a.runs.insert("other".into(), PastRun { heard: 1.9e6, owner: Principal::User(1001), ..run.clone() });
        a.prune(2e6 + 2000.0);
        assert!(a.runs.contains_key("other") && a.runs.len() == MAX_RUNS, "the one with the most forgets");
    }

    #[test]
    fn runs_of_many_ranks_are_bounded_by_their_ranks() {
        let mut a = sample();
        let run = a.runs["r"].clone();
        let many: BTreeMap<u32, PastRank> = (0..1024).map(|rank| (rank, run.ranks[&3].clone())).collect();
        for i in 0..100 {
            let large = PastRun { heard: 1001.0 + f64::from(i), owner: Principal::User(1001), ..run.clone() };
            a.runs.insert(format!("n{i}"), PastRun { ranks: many.clone(), ..large });
        }
        a.prune(2000.0);
        assert!(a.runs.contains_key("r") && a.runs.contains_key("n99") && !a.runs.contains_key("n84"));
        assert_eq!(a.runs.len(), 16, "of another user one, and fifteen that fit beside it");
    }
}

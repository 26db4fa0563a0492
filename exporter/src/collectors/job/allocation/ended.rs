//! Which jobs of Slurm are over on this node, as control groups show.

use std::collections::{BTreeSet, VecDeque};

/// The most ended jobs that are remembered.
const MAX_ENDED: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Ended {
    /// The jobs that control groups show now.
    shown: BTreeSet<String>,
    /// The jobs that they showed before, the newest last.
    over: VecDeque<String>,
}

impl Ended {
    /// Takes the jobs that control groups show now; `None` if it is unknown.
    pub(super) fn note(&mut self, shown: Option<BTreeSet<String>>) {
        let Some(shown) = shown else {
            self.shown.clear();
            self.over.clear();
            return;
        };
        self.over.retain(|id| !shown.contains(id));
        self.over.extend(self.shown.difference(&shown).cloned());
        let excess = self.over.len().saturating_sub(MAX_ENDED);
        self.over.drain(..excess);
        self.shown = shown;
    }

    /// Whether a job that a process names does not run here: it ran here before, or control groups
    /// show other jobs. A node where they show none may have a scheduler that makes none.
    pub(super) fn is_over(&self, id: &str) -> bool {
        !self.shown.contains(id) && (!self.shown.is_empty() || self.over.iter().any(|over| over == id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_job_is_over_once_its_group_is_gone() {
        let mut ended = Ended::default();
        ended.note(Some(shown(&[])));
        assert!(!ended.is_over("7"), "no group proves anything yet");
        ended.note(Some(shown(&["7"])));
        assert!(!ended.is_over("7") && ended.is_over("8"), "others are shown");
        ended.note(Some(shown(&[])));
        assert!(ended.is_over("7") && !ended.is_over("8"));
        ended.note(Some(shown(&["7"])));
        assert!(!ended.is_over("7"), "it was requeued");
        ended.note(None);
        assert!(!ended.is_over("7") && !ended.is_over("8"), "the groups are not read");
    }

    #[test]
    fn it_remembers_a_limited_number() {
        let mut ended = Ended::default();
        for i in 0..2 * MAX_ENDED {
            ended.note(Some(shown(&[&i.to_string()])));
        }
        ended.note(Some(shown(&[])));
        assert_eq!(ended.over.len(), MAX_ENDED);
        assert!(ended.is_over(&(2 * MAX_ENDED - 1).to_string()) && !ended.is_over("0"));
    }
}

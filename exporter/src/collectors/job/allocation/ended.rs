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

    /// Whether a job that a process in these control groups names does not run here: it ran here
    /// before, or control groups show other jobs. A node where they show none may have a scheduler
    /// that makes none. Nor do they show a job that has only processes here which its other nodes
    /// started over SSH, so a job that never ran here is not over for those.
    pub(super) fn is_over(&self, id: &str, groups: &str) -> bool {
        let shows_others = || !self.shown.is_empty() && !is_login(groups);
        !self.shown.contains(id) && (self.over.iter().any(|over| over == id) || shows_others())
    }
}

/// Whether a process is in a session of a user, or of SSH without such sessions.
fn is_login(groups: &str) -> bool {
    groups.split(['/', '\n']).any(|part| part == "user.slice" || part.starts_with("ssh"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of a container.
    const ELSEWHERE: &str = "0::/system.slice/docker-1.scope\n";

    fn shown(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_job_is_over_once_its_group_is_gone() {
        let mut ended = Ended::default();
        ended.note(Some(shown(&[])));
        assert!(!ended.is_over("7", ELSEWHERE), "no group proves anything yet");
        ended.note(Some(shown(&["7"])));
        assert!(!ended.is_over("7", ELSEWHERE) && ended.is_over("8", ELSEWHERE), "others are shown");
        ended.note(Some(shown(&[])));
        assert!(ended.is_over("7", ELSEWHERE) && !ended.is_over("8", ELSEWHERE));
        ended.note(Some(shown(&["7"])));
        assert!(!ended.is_over("7", ELSEWHERE), "it was requeued");
        ended.note(None);
        assert!(!ended.is_over("7", ELSEWHERE) && !ended.is_over("8", ELSEWHERE), "the groups are not read");
    }

    #[test]
    fn a_job_whose_processes_came_over_ssh_is_over_only_if_it_ran_here() {
        let mut ended = Ended::default();
        ended.note(Some(shown(&["7"])));
        ended.note(Some(shown(&["8"])));
        for groups in ["0::/user.slice/user-1001.slice/session-3.scope\n", "0::/system.slice/ssh.service\n"] {
            assert!(ended.is_over("7", groups) && !ended.is_over("9", groups), "{groups}");
        }
        assert!(ended.is_over("9", ELSEWHERE));
    }

    #[test]
    fn it_remembers_a_limited_number() {
        let mut ended = Ended::default();
        for i in 0..2 * MAX_ENDED {
            ended.note(Some(shown(&[&i.to_string()])));
        }
        ended.note(Some(shown(&[])));
        assert_eq!(ended.over.len(), MAX_ENDED);
        assert!(ended.is_over(&(2 * MAX_ENDED - 1).to_string(), ELSEWHERE) && !ended.is_over("0", ELSEWHERE));
    }
}

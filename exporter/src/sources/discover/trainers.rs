//! Finds the processes that train: those that compute on a GPU, and those in configured control
//! groups.
//!
//! NVML lists the processes that compute on NVIDIA GPUs, in any container. Without NVML, or while
//! it does not answer, every process that holds a GPU's device open counts; this needs no call to
//! the driver. Processes that hold a GPU for which NVML gives no list count as well, because faulty
//! GPUs are of most interest.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::nvml::{Computing, Nvml};
use crate::processes::{self, Tree};
use crate::roots::Roots;

/// The most control groups that match a pattern, together with those below them.
const MAX_GROUPS: usize = 4096;

/// The time limit of NVML, which other threads query too.
const WAIT: Duration = Duration::from_secs(2);

/// Finds training processes repeatedly.
#[derive(Debug)]
pub(super) struct Trainers {
    cgroups: Vec<String>,
    nvml: Nvml,
}

impl Trainers {
    pub(super) fn new(cgroups: &[String], nvml: Nvml) -> Self {
        Self { cgroups: cgroups.to_vec(), nvml }
    }

    pub(super) fn find(&self, roots: &Roots, tree: &Tree) -> BTreeSet<u32> {
        let holders = |of| tree.pids().filter(move |pid| processes::holds_gpu(roots, *pid, of));
        let mut found = match self.by_nvml(roots) {
            Some(Computing { mut pids, silent }) if !silent.is_empty() => {
                // A GPU of unknown number could be any of them.
                let known: Option<BTreeSet<u32>> = silent.into_iter().collect();
                pids.extend(holders(known.as_ref()));
                pids
            }
            Some(computing) => computing.pids,
            None => holders(None).collect(),
        };
        found.extend(self.cgroups.iter().flat_map(|pattern| by_cgroup(roots, pattern)));
        found.retain(|pid| tree.started(*pid).is_some());
        found
    }

    /// The processes by NVML; `None` without NVML, or if it does not answer.
    fn by_nvml(&self, roots: &Roots) -> Option<Computing> {
        self.nvml.ask(roots.nvml_library.as_deref(), WAIT, |session| session.computing().ok())?
    }
}

/// The processes in control groups that match `pattern`, and in the groups below them. The pattern
/// is relative to the mounted hierarchy, or an absolute path.
fn by_cgroup(roots: &Roots, pattern: &str) -> BTreeSet<u32> {
    let absolute =
        if pattern.starts_with('/') { pattern.into() } else { roots.sys("fs/cgroup").join(pattern) };
    let mut groups: Vec<_> =
        glob::glob(&absolute.to_string_lossy()).into_iter().flatten().flatten().take(MAX_GROUPS).collect();
    let (mut found, mut looked) = (BTreeSet::new(), 0);
    while let Some(group) = groups.pop().filter(|_| looked < MAX_GROUPS) {
        looked += 1;
        found.extend(members(&group));
        let within = fs::read_dir(&group).into_iter().flatten().flatten();
        groups.extend(within.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    found
}

fn members(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|l| l.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_and_those_within() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("fs/cgroup/system.slice/slurmstepd.scope/job_7");
        fs::create_dir_all(group.join("step_0/task_0")).unwrap();
        fs::write(group.join("cgroup.procs"), "").unwrap();
        fs::write(group.join("step_0/cgroup.procs"), "11\n").unwrap();
        fs::write(group.join("step_0/task_0/cgroup.procs"), "12\n13\n").unwrap();
        let roots = Roots { sysfs: dir.path().into(), ..Roots::default() };
        assert_eq!(by_cgroup(&roots, "system.slice/slurmstepd.scope/job_*"), [11, 12, 13].into());
        assert_eq!(by_cgroup(&roots, "nothing/*"), [].into());
        assert_eq!(by_cgroup(&roots, "a/***"), [].into(), "a pattern that cannot be read");
    }
}

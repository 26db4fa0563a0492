//! Finds jobs and their processes by the control groups that Slurm creates, without a query to
//! Slurm.
//!
//! Version 2 has `slurmstepd.scope/job_7/step_0/user/task_1`. Version 1 has
//! `slurm/uid_1000/job_7/step_0/task_1` once for every controller. All groups below that of a job
//! belong to it, at any depth. A group exists exactly as long as its job.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::roots::{self, Roots};

/// The paths of Slurm's jobs, relative to the cgroup mount: in version 2, in version 1, and in a
/// pod that runs a node of Slurm.
pub(super) const PATTERNS: &[&str] = &[
    "system.slice/*slurmstepd.scope/job_*",
    "*/slurm*/uid_*/job_*",
    "kubepods.slice/*/*/system.slice/*slurmstepd.scope/job_*",
    "kubepods.slice/*/*/*/system.slice/*slurmstepd.scope/job_*",
];

/// The most control groups of jobs, of all controllers together.
const MAX_GROUPS: usize = 2048;
/// The most groups below one job: steps and tasks.
const MAX_WITHIN: usize = 4096;
const MAX_PIDS: usize = 16_384;

/// The processes of one job on this node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) pids: BTreeSet<u32>,
    /// The processes in a step that has all of the job's devices on this node.
    pub(super) with_all: BTreeSet<u32>,
    pub(super) steps: BTreeSet<String>,
    /// The uid in a path of version 1.
    pub(super) uid: Option<u32>,
}

/// The jobs by id.
pub(super) fn find(roots: &Roots, patterns: &[String]) -> BTreeMap<String, Group> {
    let mut found: BTreeMap<String, Group> = BTreeMap::new();
    let mut left = MAX_GROUPS;
    for pattern in patterns {
        for dir in expand(roots, pattern).into_iter().take(left) {
            left -= 1;
            let Some(id) = job_of(&dir.to_string_lossy()).map(str::to_owned) else { continue };
            let group = found.entry(id).or_default();
            group.uid = group.uid.or_else(|| uid_of(&dir));
            walk(dir, group);
        }
    }
    found
}

/// Whether Slurm runs on this node, with or without jobs.
pub(super) fn is_here(roots: &Roots, patterns: &[String]) -> bool {
    let parents = patterns.iter().filter_map(|p| p.rsplit_once('/')).map(|(parent, _)| parent);
    // In version 1, the group of a user exists only while the user has jobs.
    let mut parents = parents.map(|p| p.strip_suffix("/uid_*").unwrap_or(p));
    parents.any(|parent| !expand(roots, parent).is_empty())
}

fn expand(roots: &Roots, pattern: &str) -> Vec<PathBuf> {
    let root = glob::Pattern::escape(&roots.sys("fs/cgroup").to_string_lossy());
    let pattern = if pattern.starts_with('/') { pattern.to_owned() } else { format!("{root}/{pattern}") };
    glob::glob(&pattern).into_iter().flatten().flatten().take(MAX_GROUPS).collect()
}

fn walk(job: PathBuf, group: &mut Group) {
    let mut dirs = vec![job];
    let mut looked = 0;
    while let Some(dir) = dirs.pop().filter(|_| looked < MAX_WITHIN) {
        looked += 1;
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        // This is the group of the daemon that supervises the step.
        if name == "slurm" {
            continue;
        }
        if let Some(step) = name.strip_prefix("step_") {
            group.steps.insert(step.to_owned());
        }
        let members = roots::read(&dir.join("cgroup.procs")).unwrap_or_default();
        let room = MAX_PIDS.saturating_sub(group.pids.len());
        let pids: Vec<u32> =
            members.lines().filter_map(|l| l.trim().parse::<u32>().ok()).take(room).collect();
        if has_all(&dir.to_string_lossy()) {
            group.with_all.extend(&pids);
        }
        group.pids.extend(pids);
        let within = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        dirs.extend(within.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    // The kernel lists processes of another pid namespace as 0.
    group.pids.remove(&0);
}

/// Whether a path is in a step that has all of the job's devices on this node: its script, or an
/// interactive shell. Other steps have only the devices that they were started with.
pub(super) fn has_all(path: &str) -> bool {
    path.split(['/', '\n']).any(|part| matches!(part, "step_batch" | "step_interactive"))
}

/// The job of a process, from its `/proc/PID/cgroup`.
pub(super) fn job_of_process(text: &str) -> Option<&str> {
    text.lines().find_map(|line| job_of(line.splitn(3, ':').nth(2)?))
}

/// The user of that job, if a path contains it.
pub(super) fn uid_of_process(text: &str) -> Option<u32> {
    let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.find_map(|path| {
        job_of(path)?;
        path.split('/').find_map(|part| part.strip_prefix("uid_"))?.parse().ok()
    })
}

/// The id in a path of Slurm. Other programs may also name groups `job_…`, and in a user's slice
/// of systemd the user chooses the names.
fn job_of(path: &str) -> Option<&str> {
    let parts = || path.split('/');
    if parts().any(|part| part == "user.slice") {
        return None;
    }
    let slurm = parts().position(|p| p.starts_with("slurm") || p.ends_with("slurmstepd.scope"))?;
    let id = parts().skip(slurm + 1).find_map(|p| p.strip_prefix("job_"))?;
    (!id.is_empty()
        && id.len() <= 32
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_+.-".contains(&b)))
    .then_some(id)
}

fn uid_of(dir: &Path) -> Option<u32> {
    dir.parent()?.file_name()?.to_str()?.strip_prefix("uid_")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns() -> Vec<String> {
        PATTERNS.iter().map(|p| (*p).to_owned()).collect()
    }

    fn tree(groups: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
        let dir = tempfile::tempdir().unwrap();
        for (group, procs) in groups {
            let path = dir.path().join("fs/cgroup").join(group);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("cgroup.procs"), procs).unwrap();
        }
        let roots = Roots { sysfs: dir.path().into(), ..Roots::default() };
        (dir, roots)
    }

    #[test]
    fn version_2() {
        let (_dir, roots) = tree(&[
            ("system.slice/slurmstepd.scope/job_1207/step_0/user/task_0", "100\n101\n"),
            ("system.slice/slurmstepd.scope/job_1207/step_0/slurm", "99\n"),
            ("system.slice/slurmstepd.scope/job_1207/step_batch/user/task_0", "90\n"),
            ("system.slice/n7_slurmstepd.scope/job_1300/step_extern/user/task_special", "200\n0\n"),
            ("system.slice/slurmstepd.scope/system", "5\n"),
            ("user.slice/job_9", "7\n"),
        ]);
        let found = find(&roots, &patterns());
        assert_eq!(found.keys().collect::<Vec<_>>(), ["1207", "1300"]);
        assert_eq!(found["1207"].pids, [90, 100, 101].into());
        assert_eq!(found["1207"].steps, ["0".to_owned(), "batch".into()].into());
        assert_eq!(found["1300"].pids, [200].into());
        assert!(is_here(&roots, &patterns()));
    }

    #[test]
    fn version_1_names_the_job_under_every_controller() {
        let (_dir, roots) = tree(&[
            ("memory/slurm/uid_1000/job_7/step_0/task_1", "11\n12\n"),
            ("devices/slurm/uid_1000/job_7/step_0", "11\n"),
            ("cpuset/slurm_n7/uid_1001/job_8/step_batch", "20\n"),
        ]);
        let found = find(&roots, &patterns());
        assert_eq!((found["7"].pids.clone(), found["7"].uid), ([11, 12].into(), Some(1000)));
        assert_eq!((found["8"].pids.clone(), found["8"].uid), ([20].into(), Some(1001)));
    }

    #[test]
    fn no_slurm() {
        let (_dir, roots) = tree(&[("system.slice/sshd.service", "1\n")]);
        assert!(find(&roots, &patterns()).is_empty() && !is_here(&roots, &patterns()));
        let (_dir, roots) = tree(&[("memory/slurm", "1\n")]);
        assert!(find(&roots, &patterns()).is_empty() && is_here(&roots, &patterns()), "idle, by version 1");
    }

    #[test]
    fn the_job_of_a_process() {
        let v1 = "12:pids:/user.slice\n4:memory:/slurm/uid_1000/job_7/step_0/task_1\n";
        let v2 = "0::/system.slice/slurmstepd.scope/job_1207/step_0/user/task_0\n";
        let pod = "0::/kubepods.slice/pod1/ctr/system.slice/slurmstepd.scope/job_3/step_batch\n";
        assert_eq!([v1, v2, pod].map(job_of_process), [Some("7"), Some("1207"), Some("3")]);
        assert_eq!(job_of_process("0::/user.slice/job_9/x"), None, "anybody's");
        assert_eq!(job_of_process("0::/slurm/job_a{b"), None);
        let own = "0::/user.slice/user-1001.slice/user@1001.service/slurmstepd.scope/job_1207/step_0";
        assert_eq!(job_of_process(own), None, "made by its user");
        assert_eq!((uid_of_process(v1), uid_of_process(v2)), (Some(1000), None));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String, at in 0usize..70, with: char) {
            let _ = job_of_process(&text);
            let line = "0::/system.slice/slurmstepd.scope/job_1207/step_0/user/task_0";
            let changed: String = line.chars().enumerate().map(|(i, c)| if i == at { with } else { c }).collect();
            if let Some(id) = job_of_process(&changed) {
                proptest::prop_assert!(id.len() <= 32 && !id.contains('/'));
            }
        }
    }
}

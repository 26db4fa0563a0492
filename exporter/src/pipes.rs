//! Finds the processes at the ends of pipes. A log behind `| tee` is written by a program that does
//! not belong to the run, but the process before it in the pipe does. Only standard input and
//! output are followed: other pipes of a process carry no log of another.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use crate::roots::Roots;

/// The most programs that pass a log on: `train.py | ts | tee log`.
const MAX_HOPS: usize = 4;
/// The most processes inspected in one pass.
const MAX_PROCESSES: usize = 32_768;

const INPUT: &[u32] = &[0];
const OUTPUT: &[u32] = &[1, 2];

/// The processes whose output this one reads, directly or through others.
pub(crate) fn before(roots: &Roots, pid: u32) -> BTreeSet<u32> {
    let writing =
        |pipe: &PathBuf| pids(roots).filter(|pid| pipes(roots, *pid, OUTPUT).any(|p| p == *pipe)).collect();
    along(pid, &writing, &|pid| pipes(roots, pid, INPUT).collect())
}

/// The processes that read each pipe as their input.
#[derive(Debug)]
pub(crate) struct Readers {
    pids: BTreeMap<PathBuf, Vec<u32>>,
}

impl Readers {
    /// Finds the readers among these processes.
    pub(crate) fn among(roots: &Roots, pids: impl Iterator<Item = u32>) -> Self {
        let mut found: BTreeMap<PathBuf, Vec<u32>> = BTreeMap::new();
        for pid in pids.take(MAX_PROCESSES) {
            for pipe in pipes(roots, pid, INPUT) {
                found.entry(pipe).or_default().push(pid);
            }
        }
        Self { pids: found }
    }

    /// The processes that read the output of this one, directly or through others.
    pub(crate) fn of_output(&self, roots: &Roots, pid: u32) -> BTreeSet<u32> {
        let reading = |pipe: &PathBuf| self.pids.get(pipe).cloned().unwrap_or_default();
        along(pid, &reading, &|pid| pipes(roots, pid, OUTPUT).collect())
    }
}

/// Whether the output of the process is a pipe.
pub(crate) fn has_output(roots: &Roots, pid: u32) -> bool {
    pipes(roots, pid, OUTPUT).next().is_some()
}

/// Follows pipes from one process to those at the `other` end, and further from there.
fn along(
    pid: u32,
    other: &dyn Fn(&PathBuf) -> Vec<u32>,
    pipes: &dyn Fn(u32) -> Vec<PathBuf>,
) -> BTreeSet<u32> {
    let (mut found, mut asked, mut now) = (BTreeSet::new(), BTreeSet::new(), vec![pid]);
    for _ in 0..MAX_HOPS {
        let fresh: BTreeSet<_> = now.drain(..).flat_map(pipes).filter(|p| asked.insert(p.clone())).collect();
        now.extend(fresh.iter().flat_map(other).filter(|at| *at != pid && found.insert(*at)));
    }
    found
}

fn pids(roots: &Roots) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(&roots.procfs).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).take(MAX_PROCESSES)
}

/// The pipes at these descriptors, in the kernel's notation `pipe:[4711]`.
fn pipes(roots: &Roots, pid: u32, descriptors: &[u32]) -> impl Iterator<Item = PathBuf> {
    let dir = roots.proc(format!("{pid}/fd"));
    let targets = descriptors.iter().filter_map(move |fd| fs::read_link(dir.join(fd.to_string())).ok());
    targets.filter(|target| target.to_str().is_some_and(|t| t.starts_with("pipe:[")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn pipes_are_followed_both_ways() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { procfs: dir.path().into(), ..Roots::default() };
        let tty = "/dev/pts/0";
        for (pid, input, output, errors) in [
            (10, tty, "pipe:[1]", "pipe:[1]"),
            (11, tty, "pipe:[1]", tty),
            (12, "pipe:[1]", "pipe:[2]", tty),
            (13, "pipe:[2]", tty, tty),
            (14, "pipe:[9]", tty, "pipe:[2]"),
            // These form a cycle.
            (20, "pipe:[5]", "pipe:[6]", tty),
            (21, "pipe:[6]", "pipe:[5]", tty),
        ] {
            let fd = dir.path().join(format!("{pid}/fd"));
            fs::create_dir_all(&fd).unwrap();
            for (n, target) in [input, output, errors].iter().enumerate() {
                symlink(target, fd.join(n.to_string())).unwrap();
            }
        }
        assert_eq!(before(&roots, 13), [10, 11, 12, 14].into());
        assert_eq!(before(&roots, 12), [10, 11].into());
        assert_eq!(before(&roots, 10), [].into(), "a terminal is no pipe");
        let readers = Readers::among(&roots, pids(&roots));
        assert_eq!(readers.of_output(&roots, 10), [12, 13].into());
        assert_eq!(readers.of_output(&roots, 13), [].into());
        assert!(has_output(&roots, 10) && !has_output(&roots, 13));
        assert_eq!(before(&roots, 20), [21].into());
        assert_eq!(before(&roots, 99), [].into());
    }
}

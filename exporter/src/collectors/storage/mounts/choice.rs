//! Chooses the mounts to query and their order, because not all of them can be queried.
//!
//! A query keeps a mount in use. A mount that an automounter removes when unused is not queried:
//! otherwise every home directory that was ever used would stay mounted. Such mounts are queried
//! only if the configuration names them, or if they hold checkpoints, which are in use anyway.

use std::path::PathBuf;

use super::table::{self, Automount, Mount};
use super::{Config, is_network};

/// The mounts that the configuration selects.
#[derive(Debug)]
pub(super) struct Wanted {
    types: Vec<glob::Pattern>,
    include: Vec<glob::Pattern>,
    exclude: Vec<glob::Pattern>,
}

/// The chosen file systems, each once.
#[derive(Debug)]
pub(super) struct Choice<'a> {
    /// The mounts to query, the most important first.
    pub(super) mounts: Vec<&'a Mount>,
    /// The number of mounts at the front that are expected to be watched.
    pub(super) expected: usize,
    /// The number of further mounts that are not queried, so that they can expire.
    pub(super) left_alone: usize,
}

impl Wanted {
    pub(super) fn new(config: &Config) -> Self {
        let patterns = |texts: &[String]| texts.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect();
        Self {
            types: patterns(&config.types),
            include: patterns(&config.include),
            exclude: patterns(&config.exclude),
        }
    }

    /// Chooses among all mounts; `used` are the directories of runs and logs.
    pub(super) fn choose<'a>(&self, all: &'a [Mount], used: &[PathBuf]) -> Choice<'a> {
        let any = |patterns: &[glob::Pattern], name: &str| patterns.iter().any(|p| p.matches(name));
        let wanted = |m: &&Mount| {
            let name = m.name();
            (is_network(&self.types, &m.fstype) || any(&self.include, &name)) && !any(&self.exclude, &name)
        };
        let named = |m: &Mount| {
            let holds = |dir: &PathBuf| dir.starts_with(&m.path);
            any(&self.include, &m.name()) || used.iter().any(holds)
        };
        let (asked, left): (Vec<&Mount>, Vec<&Mount>) =
            all.iter().filter(wanted).partition(|m| m.automount < Automount::Expires || named(m));
        let mut mounts = table::file_systems(asked);
        let known = |m: &&Mount| mounts.iter().any(|other| other.device == m.device);
        let left_alone = table::file_systems(left).into_iter().filter(|m| !known(m)).count();
        // Mounts near the root are shared by jobs; deep ones are volumes of single containers.
        // Otherwise the order is that of paths.
        let rank = |m: &&Mount| match (named(m), m.automount) {
            (true, _) => (0, 0),
            (false, Automount::No) => (1, m.path.components().count()),
            (false, _) => (2, m.path.components().count()),
        };
        mounts.sort_by_cached_key(rank);
        let expected = mounts.iter().filter(|m| rank(m).0 < 2).count();
        Choice { mounts, expected, left_alone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "22 1 259:1 / / rw - ext4 /dev/sda1 rw
        30 22 0:40 / /home rw - autofs auto.home rw,fd=6,pgrp=9,timeout=300,minproto=5,maxproto=5,indirect
        31 30 0:41 / /home/al rw - nfs4 srv:/home/al rw
        32 30 0:42 / /home/bo rw - nfs4 srv:/home/bo rw
        33 22 0:43 / /fsx rw - autofs systemd-1 rw,fd=7,pgrp=1,timeout=0,minproto=5,maxproto=5,direct
        34 33 0:44 / /fsx rw - lustre 10.0.0.1@tcp:/fsx rw
        35 22 0:45 / /pods/a/volume rw - nfs4 srv:/a rw
        36 22 0:46 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw
        37 30 0:46 / /home/s rw - lustre 10.0.0.1@tcp:/scratch rw
        38 22 0:47 / /dvs rw - dvs /dvs rw
";

    fn chosen(config: &Config, used: &[&str]) -> (Vec<String>, usize, usize) {
        let all = table::parse(TABLE.as_bytes());
        let used: Vec<PathBuf> = used.iter().map(PathBuf::from).collect();
        let choice = Wanted::new(config).choose(&all, &used);
        (choice.mounts.iter().map(|m| m.name()).collect(), choice.expected, choice.left_alone)
    }

    #[test]
    fn what_expires_is_left_alone_and_what_jobs_share_comes_first() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            chosen(&Config::default(), &[]),
            (names(&["/scratch", "/pods/a/volume", "/fsx"]), 2, 2),
            "al and bo; the third home is /scratch"
        );
        assert_eq!(
            chosen(&Config::default(), &["/home/bo/ckpt/llama", "/home/bob"]),
            (names(&["/home/bo", "/scratch", "/pods/a/volume", "/fsx"]), 3, 1)
        );
        let config = Config {
            include: vec!["/home/a*".into(), "/dvs".into()],
            exclude: vec!["/pods/*".into()],
            ..Config::default()
        };
        assert_eq!(chosen(&config, &[]), (names(&["/dvs", "/home/al", "/scratch", "/fsx"]), 3, 1));
    }
}

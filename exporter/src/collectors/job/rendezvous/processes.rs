//! The processes of this node that are ranks of a run, by the variables of their launchers, whether
//! or not they have reported anything.
//!
//! An environment changes only when a process executes another program. A launcher's child does so
//! at once, and a script after it has prepared the node. So each process is read when it is first
//! seen, and then ever more rarely for twenty minutes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::time::{Duration, Instant};

use stepwatch_wire::words;

use super::sockets::Master;
use crate::fair_share;
use crate::identity;
use crate::processes;
use crate::roots::Roots;

/// The most processes of a node that are looked at.
const MAX_PIDS: usize = 65_536;
/// The most processes that are read in one pass, and how long that may take; the rest waits for the
/// next one.
const MAX_NEW: usize = 1024;
const MAX_TIME: Duration = Duration::from_secs(2);
/// A process that is no rank is read again after 1, 2, 4 and so on passes, for the last time after
/// this many.
const LAST_LOOK: u16 = 128;
/// The most ranks that are remembered of a node, and of one user.
const MAX_RANKS: usize = 1024;
const MAX_OF_USER: usize = 256;
/// The most characters of a value.
const MAX_CHARS: usize = 255;

/// A launcher's variables: the rank, its number on the node, how many there are on the node, and in
/// all. The nearest launcher comes first: `torchrun` under `srun` sets its own.
#[derive(Debug)]
struct Launcher {
    rank: &'static str,
    local: &'static str,
    on_node: &'static str,
    world: &'static [&'static str],
    /// Variables without which the process is no rank.
    with: &'static [&'static str],
}

const LAUNCHERS: &[Launcher] = &[
    Launcher {
        rank: "RANK",
        local: "LOCAL_RANK",
        on_node: "LOCAL_WORLD_SIZE",
        world: &["WORLD_SIZE"],
        with: &["LOCAL_RANK"],
    },
    Launcher {
        rank: "OMPI_COMM_WORLD_RANK",
        local: "OMPI_COMM_WORLD_LOCAL_RANK",
        on_node: "OMPI_COMM_WORLD_LOCAL_SIZE",
        world: &["OMPI_COMM_WORLD_SIZE"],
        with: &[MASTER_ADDR],
    },
    // A pod of one rank. The launcher of several has these too, for the pod.
    Launcher { rank: "RANK", local: "", on_node: "", world: &["WORLD_SIZE"], with: &[MASTER_ADDR] },
    // Only a task of a step is a rank: the script of a job has no step.
    Launcher {
        rank: "SLURM_PROCID",
        local: "SLURM_LOCALID",
        on_node: "SLURM_STEP_TASKS_PER_NODE",
        world: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        with: &["SLURM_STEP_ID", MASTER_ADDR],
    },
];
const MASTER_ADDR: &str = "MASTER_ADDR";
const MASTER_PORT: &str = "MASTER_PORT";

/// What its environment says of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The index of the launcher.
    pub(super) launcher: usize,
    pub(super) rank: u32,
    pub(super) world: Option<u32>,
    pub(super) local_rank: Option<u32>,
    /// How many ranks the launcher starts on this node.
    pub(super) on_node: Option<u32>,
    pub(super) master: Option<Master>,
}

/// A process that is a rank.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Clock ticks after boot, and Unix seconds, at which it began.
    pub(super) ticks: u64,
    pub(super) began: f64,
    pub(super) uid: u32,
    /// The inode of its network namespace; 0 if unknown.
    pub(super) namespace: u64,
    /// The run, by the rule of names.
    pub(super) run: String,
    pub(super) place: Place,
}

#[derive(Debug)]
enum Seen {
    /// It was no rank so many passes ago. Another process of this pid has another inode.
    Other {
        passes: u16,
        inode: u64,
    },
    Rank(Box<Process>),
}

/// A process that was not read in time: it may be a rank.
#[derive(Debug)]
struct Unread;

/// The ranks that have a process now.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) ranks: Vec<Process>,
    /// Not all processes were read.
    is_part: bool,
    /// Users of processes that were not read in time, or that have too many.
    unsure: BTreeSet<u32>,
}

impl Found {
    /// Whether every rank of the user is found: a rank that is not has no process.
    pub(super) fn is_whole(&self, uid: u32) -> bool {
        !self.is_part && !self.unsure.contains(&uid)
    }
}

/// All processes that were seen in the last pass, by pid.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<u32, Seen>);

impl Known {
    pub(super) fn look(&mut self, roots: &Roots) -> Found {
        let entries = fs::read_dir(&roots.procfs).into_iter().flatten().flatten();
        let pids = entries
            .filter_map(|e| Some((e.file_name().to_str()?.parse::<u32>().ok()?, e.ino())))
            .take(MAX_PIDS);
        let mut before = core::mem::take(&mut self.0);
        let mut due = Vec::new();
        for (pid, inode) in pids {
            match before.remove(&pid) {
                Some(Seen::Rank(rank)) if processes::started(roots, pid) == Some(rank.ticks) => {
                    self.0.insert(pid, Seen::Rank(rank));
                }
                Some(Seen::Other { passes, inode: had }) if had == inode => {
                    let passes = passes.saturating_add(1);
                    self.0.insert(pid, Seen::Other { passes, inode });
                    if passes.is_power_of_two() && passes <= LAST_LOOK {
                        due.push((true, pid, inode));
                    }
                }
                _ => due.push((false, pid, inode)),
            }
        }
        let user = |(_, pid, _): &(bool, u32, u64)| processes::user(roots, *pid);
        let (due, left) = fair_share::fair(due, MAX_NEW, user, |(again, pid, _)| Reverse((*again, *pid)));
        let mut found = Found { is_part: left.iter().any(|(again, ..)| !again), ..Found::default() };
        let since = Instant::now();
        for (again, pid, inode) in due {
            if since.elapsed() >= MAX_TIME {
                found.is_part |= !again;
            } else if self.read(roots, pid, inode).is_err() {
                // It is read again in the next pass.
                self.0.remove(&pid);
                found.unsure.extend(processes::user(roots, pid));
            }
        }
        let ranks = self.0.values().filter_map(|seen| match seen {
            Seen::Rank(rank) => Some((**rank).clone()),
            Seen::Other { .. } => None,
        });
        found.ranks = ranks.collect();
        let users: BTreeSet<u32> = found.ranks.iter().map(|rank| rank.uid).collect();
        found.unsure.extend(users.into_iter().filter(|uid| !self.has_room(*uid)));
        found
    }

    fn read(&mut self, roots: &Roots, pid: u32, inode: u64) -> Result<(), Unread> {
        match Process::read(roots, pid)? {
            Some(rank) if self.has_room(rank.uid) => {
                self.0.insert(pid, Seen::Rank(Box::new(rank)));
            }
            _ => {
                self.0.entry(pid).or_insert(Seen::Other { passes: 0, inode });
            }
        }
        Ok(())
    }

    fn has_room(&self, uid: u32) -> bool {
        let ranks = || {
            self.0.values().filter_map(|seen| match seen {
                Seen::Rank(rank) => Some(rank.uid),
                Seen::Other { .. } => None,
            })
        };
        ranks().count() < MAX_RANKS && ranks().filter(|of| *of == uid).count() < MAX_OF_USER
    }
}

impl Process {
    /// `None` for a process that is no rank, may not be inspected, or has ended.
    fn read(roots: &Roots, pid: u32) -> Result<Option<Self>, Unread> {
        let environ = match processes::environ(roots, pid) {
            Ok(environ) => environ,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(Unread),
            Err(_) => return Ok(None),
        };
        let Some(place) = Place::parse(&environ) else { return Ok(None) };
        let namespace = fs::metadata(roots.proc(format!("{pid}/ns/net"))).map_or(0, |link| link.ino());
        let run = identity::named(roots, pid).ok_or(Unread)?.run;
        let lives = || {
            Some((
                processes::started(roots, pid)?,
                identity::started(roots, pid)?,
                processes::user(roots, pid)?,
            ))
        };
        Ok(lives().map(|(ticks, began, uid)| Self { pid, ticks, began, uid, namespace, run, place }))
    }
}

impl Place {
    /// Parses `/proc/PID/environ`. Only the variables named here are read, because the rest may
    /// hold secrets.
    pub(super) fn parse(environ: &[u8]) -> Option<Self> {
        let pairs = environ.split(|b| *b == 0).filter_map(|v| core::str::from_utf8(v).ok()?.split_once('='));
        let is_asked = |key: &str| {
            let of = |l: &Launcher| {
                [l.rank, l.local, l.on_node].contains(&key) || l.with.contains(&key) || l.world.contains(&key)
            };
            [MASTER_ADDR, MASTER_PORT].contains(&key) || LAUNCHERS.iter().any(of)
        };
        let env: BTreeMap<&str, &str> = pairs.filter(|(key, _)| !key.is_empty() && is_asked(key)).collect();
        let text = |key: &str| env.get(key).map(|v| v.trim()).filter(|v| !v.is_empty());
        let number = |key: &str| text(key)?.parse::<u32>().ok();
        let is_it = |l: &Launcher| l.with.iter().all(|key| text(key).is_some()) && number(l.rank).is_some();
        let launcher = LAUNCHERS.iter().position(is_it)?;
        let found = LAUNCHERS.get(launcher)?;
        let master = text(MASTER_ADDR).filter(|host| host.len() <= MAX_CHARS).and_then(|host| {
            let port = text(MASTER_PORT)?.parse().ok().filter(|port| *port > 0)?;
            Some(Master { host: words::line(host).into_owned(), port })
        });
        Some(Self {
            launcher,
            rank: number(found.rank)?,
            world: found.world.iter().find_map(|key| number(key)),
            local_rank: number(found.local),
            on_node: text(found.on_node).and_then(tasks),
            master,
        })
    }
}

/// The number on each node: `8`, or `8(x16)` of Slurm. `None` if it differs between nodes:
/// `8(x2),4`.
fn tasks(text: &str) -> Option<u32> {
    let number = text.strip_suffix(')').and_then(|text| text.split_once("(x")).map(|(number, _)| number);
    number.unwrap_or(text).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[&str]) -> Option<Place> {
        Place::parse(variables.join("\0").as_bytes())
    }

    #[test]
    fn the_nearest_launcher_says_which_rank_it_is() {
        let slurm = ["SLURM_PROCID=1", "SLURM_STEP_ID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=2"];
        let torchrun = ["RANK=9", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=8", "WORLD_SIZE=16"];
        let master = ["MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500", "SECRET=dummy"];
        let found = place(&[&slurm[..], &torchrun, &master].concat()).unwrap();
        let want = Place {
            launcher: 0,
            rank: 9,
            world: Some(16),
            local_rank: Some(1),
            on_node: Some(8),
            master: Some(Master { host: "10.0.0.1".into(), port: 29500 }),
        };
        assert_eq!(found, want);
        // The launcher on that node.
        let found = place(&[&slurm[..], &master].concat()).unwrap();
        assert_eq!((found.launcher, found.rank, found.world), (3, 1, Some(2)));
        assert_eq!(place(&["RANK=3", "WORLD_SIZE=4", "MASTER_ADDR=m"]).unwrap().launcher, 2, "a pod");
    }

    #[test]
    fn a_script_and_a_shell_are_no_ranks() {
        assert_eq!(place(&["SLURM_PROCID=0", "SLURM_NTASKS=8"]), None, "the script of a job");
        assert_eq!(place(&["HOME=/root", "RANK=x", "LOCAL_RANK=0"]), None);
        assert_eq!(place(&["RANK=0"]), None);
        let no_port = place(&["RANK=0", "LOCAL_RANK=0", "MASTER_ADDR=a", "MASTER_PORT=0"]).unwrap();
        assert_eq!(no_port.master, None);
    }

    #[test]
    fn tasks_of_a_step() {
        assert_eq!(["8", "8(x16)", "8(x2),4", ""].map(tasks), [Some(8), Some(8), None, None]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_an_environment(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let _ = Place::parse(&bytes);
        }
    }
}

//! The processes of this node that are ranks of a run, by the variables of their launchers, whether
//! or not they have reported anything.
//!
//! An environment changes only when a process executes another program, which a launcher's child
//! does at once. So each process is read when it is first seen and once more, and then remembered.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
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
/// How often a process is read that is no rank.
const LOOKS: u8 = 2;
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
    Other { looks: u8 },
    Rank(Box<Process>),
}

/// All processes that were seen in the last pass, by pid.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<u32, Seen>);

impl Known {
    /// The ranks that have a process now.
    pub(super) fn look(&mut self, roots: &Roots) -> Vec<Process> {
        let names = fs::read_dir(&roots.procfs).into_iter().flatten().flatten();
        let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut before = core::mem::take(&mut self.0);
        let mut new = Vec::new();
        for pid in pids.take(MAX_PIDS) {
            match before.remove(&pid) {
                Some(Seen::Rank(rank)) if processes::started(roots, pid) == Some(rank.ticks) => {
                    self.0.insert(pid, Seen::Rank(rank));
                }
                Some(Seen::Other { looks }) if looks >= LOOKS => {
                    self.0.insert(pid, Seen::Other { looks });
                }
                Some(Seen::Other { looks }) => new.push((pid, looks)),
                Some(Seen::Rank(_)) | None => new.push((pid, 0)),
            }
        }
        let user = |(pid, _): &(u32, u8)| processes::user(roots, *pid);
        let (new, _) = fair_share::fair(new, MAX_NEW, user, |(pid, _)| Reverse(*pid));
        let since = Instant::now();
        for (pid, looks) in new {
            if since.elapsed() >= MAX_TIME {
                break;
            }
            self.read(roots, pid, looks);
        }
        let ranks = self.0.values().filter_map(|seen| match seen {
            Seen::Rank(rank) => Some((**rank).clone()),
            Seen::Other { .. } => None,
        });
        ranks.collect()
    }

    fn read(&mut self, roots: &Roots, pid: u32, looks: u8) {
        let seen = match Process::read(roots, pid) {
            Some(rank) if self.has_room(rank.uid) => Seen::Rank(Box::new(rank)),
            _ => Seen::Other { looks: looks + 1 },
        };
        self.0.insert(pid, seen);
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
    fn read(roots: &Roots, pid: u32) -> Option<Self> {
        let environ = processes::environ(roots, pid).ok()?;
        let place = Place::parse(&environ)?;
        let ticks = processes::started(roots, pid)?;
        let namespace = fs::metadata(roots.proc(format!("{pid}/ns/net"))).map_or(0, |link| link.ino());
        let named = identity::named(roots, pid)?;
        Some(Self {
            pid,
            ticks,
            began: identity::started(roots, pid)?,
            uid: processes::user(roots, pid)?,
            namespace,
            run: named.run,
            place,
        })
    }
}

impl Place {
    /// Parses `/proc/PID/environ`. Only the variables named here are read, because the rest may hold
    /// secrets.
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

/// The number on each node: `8`, or `8(x16)` of Slurm. `None` if it differs between nodes: `8(x2),4`.
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

//! Processes of this host in `/proc`, as far as they may be inspected: their open files, working
//! directories and parents.
//!
//! A process may exit between two reads, and access to another user's may be denied; either is
//! `None`.

mod memory;
pub(crate) mod stat;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fair_share;
use crate::reach::View;
use crate::roots::{self, Roots};

use memory::Part;
pub(crate) use memory::time_elsewhere;

/// The most processes counted in one pass: the default limit of Linux.
const MAX_PIDS: usize = 4 << 20;
/// The most processes inspected in one pass.
const MAX_PROCESSES: usize = 32_768;
/// The most descriptors of one process that are inspected.
const MAX_DESCRIPTORS: usize = 4096;
/// Each is as long as its user makes it, and is read while others may wait.
const ENVIRON: Part = Part { name: "environ", most_bytes: 1 << 20, limit: Duration::from_millis(500) };
const CMDLINE: Part = Part { name: "cmdline", most_bytes: 64 << 10, ..ENVIRON };
const MAPS: Part = Part { name: "maps", most_bytes: 8 << 20, ..ENVIRON };
/// The most bytes of the name of a Kubernetes namespace.
const MAX_NAMESPACE_BYTES: u64 = 256;
/// The most generations that are followed up and down.
const MAX_GENERATIONS: usize = 8;

/// All processes with their parents.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// The parent and the start time by pid.
    processes: BTreeMap<u32, (u32, u64)>,
}

/// A file that a process has open.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpenFile {
    /// The path as this exporter would open it.
    pub(crate) path: PathBuf,
    /// Whether the file is the standard output or error of the process.
    pub(crate) standard: bool,
}

impl Tree {
    pub(crate) fn read(roots: &Roots) -> Self {
        let names = fs::read_dir(&roots.procfs).into_iter().flatten().flatten();
        let pids = names.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).take(MAX_PIDS);
        let (pids, _) =
            fair_share::fair(pids.collect(), MAX_PROCESSES, |pid| user(roots, *pid), |pid| Reverse(*pid));
        let known = pids.into_iter().filter_map(|pid| Some((pid, parent_and_start(roots, pid)?)));
        Self { processes: known.collect() }
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.processes.keys().copied()
    }

    /// The start time of the process in clock ticks after boot.
    pub(crate) fn started(&self, pid: u32) -> Option<u64> {
        self.processes.get(&pid).map(|(_, started)| *started)
    }

    /// The parent, its parent and so on, without init.
    pub(crate) fn ancestors(&self, pid: u32) -> Vec<u32> {
        let mut found = Vec::new();
        let mut at = pid;
        while let Some((parent, _)) =
            self.processes.get(&at).filter(|(p, _)| *p > 1 && found.len() < MAX_GENERATIONS)
        {
            found.push(*parent);
            at = *parent;
        }
        found
    }

    /// The children, their children and so on.
    pub(crate) fn descendants(&self, pid: u32) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        let mut generation = BTreeSet::from([pid]);
        for _ in 0..MAX_GENERATIONS {
            generation =
                self.processes.iter().filter(|(_, (p, _))| generation.contains(p)).map(|(c, _)| *c).collect();
            if generation.is_empty() {
                break;
            }
            found.extend(&generation);
        }
        found
    }
}

/// The parent and the start time in ticks: fields 4 and 22 of `/proc/PID/stat`. The command before
/// them may contain anything, brackets too.
fn parent_and_start(roots: &Roots, pid: u32) -> Option<(u32, u64)> {
    let stat = fs::read_to_string(roots.proc(pid.to_string()).join("stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X" | "x")).then_some(())?;
    Some((fields.next()?.parse().ok()?, fields.nth(17)?.parse().ok()?))
}

/// The start time in ticks of the process that has this pid now.
pub(crate) fn started(roots: &Roots, pid: u32) -> Option<u64> {
    parent_and_start(roots, pid).map(|(_, started)| started)
}

/// The environment; `Err` if it may not be read.
pub(crate) fn environ(roots: &Roots, pid: u32) -> std::io::Result<Vec<u8>> {
    memory::read(roots, pid, ENVIRON)
}

/// The command line, whose words are separated by zeros; `Err` if it may not be read.
pub(crate) fn cmdline(roots: &Roots, pid: u32) -> std::io::Result<Vec<u8>> {
    memory::read(roots, pid, CMDLINE)
}

/// The words of its command line; empty if it may not be read.
pub(crate) fn arguments(roots: &Roots, pid: u32) -> Vec<String> {
    let bytes = cmdline(roots, pid).unwrap_or_default();
    let words = bytes.split(|b| *b == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The list of the process's mappings; `Err` if it may not be read.
pub(crate) fn maps(roots: &Roots, pid: u32) -> std::io::Result<Vec<u8>> {
    memory::read(roots, pid, MAPS)
}

/// The user of a process; `None` if it has exited. The owner of its directory would be root for a
/// process that may not be inspected.
pub(crate) fn user(roots: &Roots, pid: u32) -> Option<u32> {
    uid(roots, pid, 1)
}

/// Whether the process runs as this user, or cannot be inspected.
pub(crate) fn may_be_of(roots: &Roots, pid: u32, uid: u32) -> bool {
    // The owner of the directory is the user of most processes, and quicker to read.
    let owner = fs::metadata(roots.proc(pid.to_string())).map(|meta| meta.uid());
    owner.is_ok_and(|owner| owner == uid) || user(roots, pid).is_none_or(|user| user == uid)
}

/// The real user of a process; `None` if it has exited.
fn real_user(roots: &Roots, pid: u32) -> Option<u32> {
    uid(roots, pid, 0)
}

fn uid(roots: &Roots, pid: u32, at: usize) -> Option<u32> {
    let status = roots::read(&roots.proc(format!("{pid}/status")))?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_ascii_whitespace().nth(at)?.parse().ok()
}

/// The working directory of the process, as this exporter would find it.
pub(crate) fn cwd(roots: &Roots, pid: u32) -> Option<PathBuf> {
    let dir = roots.proc(pid.to_string());
    Some(seen_from_here(roots, pid, &fs::read_link(dir.join("cwd")).ok()?))
}

/// Regular files that the process has open for writing. `left` is the number of descriptors that
/// may still be inspected.
pub(crate) fn written(roots: &Roots, pid: u32, left: &mut usize) -> Vec<OpenFile> {
    let dir = roots.proc(pid.to_string());
    let mut found = Vec::new();
    for entry in fs::read_dir(dir.join("fd")).into_iter().flatten().flatten().take(MAX_DESCRIPTORS.min(*left))
    {
        *left -= 1;
        let name = entry.file_name();
        let Some(target) = fs::read_link(entry.path()).ok().filter(|t| is_file_name(t)) else { continue };
        if !writes(&dir.join("fdinfo").join(&name)) {
            continue;
        }
        if fs::metadata(entry.path()).is_ok_and(|meta| meta.is_file()) {
            let path = seen_from_here(roots, pid, &target);
            found.push(OpenFile { path, standard: name == "1" || name == "2" });
        }
    }
    found.sort();
    found.dedup_by(|b, a| {
        a.path == b.path && {
            a.standard |= b.standard;
            true
        }
    });
    found
}

/// Whether the process has the device of a GPU open, as every process that computes on one does.
/// `of` restricts it to NVIDIA GPUs with these minor numbers. A process that only monitors GPUs
/// holds the driver, but not the memory that CUDA shares with them.
pub(crate) fn holds_gpu(roots: &Roots, pid: u32, of: Option<&BTreeSet<u32>>) -> bool {
    let devices: Vec<PathBuf> = open_devices(roots, pid).collect();
    let holds = |name: &str| devices.iter().any(|device| device.as_os_str() == name);
    let only_looks = holds("/dev/nvidiactl") && !holds("/dev/nvidia-uvm");
    let is_one = |device: &PathBuf| match of {
        Some(minors) => minor(device).is_some_and(|minor| minors.contains(&minor)),
        None => is_gpu(device),
    };
    !only_looks && devices.iter().any(is_one)
}

/// Minor numbers of the NVIDIA GPUs that the process has open.
pub(crate) fn open_gpus(roots: &Roots, pid: u32) -> BTreeSet<u32> {
    open_devices(roots, pid).filter_map(|device| minor(&device)).collect()
}

fn minor(device: &Path) -> Option<u32> {
    device.to_str()?.strip_prefix("/dev/nvidia")?.parse().ok()
}

/// The Kubernetes namespace of the process, from the file that the kubelet mounts into every
/// container.
pub(crate) fn namespace(roots: &Roots, pid: u32) -> Option<String> {
    const FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    let file = View::of_process(roots, pid)?.find(Path::new(FILE)).ok()?.open().ok()?;
    let mut text = String::new();
    file.take(MAX_NAMESPACE_BYTES).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn open_devices(roots: &Roots, pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(roots.proc(pid.to_string()).join("fd")).into_iter().flatten().flatten();
    let targets = entries.take(MAX_DESCRIPTORS).filter_map(|e| fs::read_link(e.path()).ok());
    targets.filter(|target| target.starts_with("/dev"))
}

fn is_gpu(device: &Path) -> bool {
    let Some(name) = device.to_str() else { return false };
    let numbered = name.strip_prefix("/dev/nvidia").or_else(|| name.strip_prefix("/dev/accel"));
    numbered.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) || name == "/dev/kfd"
}

/// Whether a target is not a socket, pipe, device or deleted file.
fn is_file_name(target: &Path) -> bool {
    let text = target.to_string_lossy();
    target.is_absolute()
        && !text.ends_with(" (deleted)")
        && !["/dev/", "/proc/", "/sys/"].iter().any(|p| text.starts_with(p))
}

/// Whether a descriptor may write, by the access mode in its octal flags.
fn writes(fdinfo: &Path) -> bool {
    let notes = fs::read_to_string(fdinfo).unwrap_or_default();
    let flags = notes
        .lines()
        .find_map(|l| l.strip_prefix("flags:"))
        .and_then(|f| u32::from_str_radix(f.trim(), 8).ok());
    flags.is_some_and(|f| f & 0o3 != 0)
}

/// The path from outside of the process's container, which is below its root.
pub(crate) fn seen_from_here(roots: &Roots, pid: u32, path: &Path) -> PathBuf {
    let dir = roots.proc(pid.to_string());
    let namespace = |dir: &Path| fs::read_link(dir.join("ns/mnt")).ok();
    let same = namespace(&dir).is_none_or(|theirs| namespace(&roots.proc("self")) == Some(theirs));
    if same { path.to_owned() } else { dir.join("root").join(path.strip_prefix("/").unwrap_or(path)) }
}

//! Finds the processes of this host that write to a followed file. Only they distinguish a log that
//! has ended from one that is idle.
//!
//! A process is a writer if it has the file open for writing, under any path, because a container
//! sees another path. The descriptors of a process may be inspected by its own user, or with
//! `CAP_SYS_PTRACE`. About other processes, and about writers on other nodes, nothing is known or
//! concluded.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The most processes inspected in one pass.
const MAX_PROCESSES: usize = 32_768;
/// The most descriptors inspected in one pass.
const MAX_DESCRIPTORS: usize = 262_144;
/// The bits of a descriptor's flags that show write access.
const ACCESS_MODE: u32 = 0o3;

/// A process. The start time distinguishes it from a later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) start: u64,
}

/// A process that writes to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Writer {
    /// The device and inode of the file.
    pub(super) file: (u64, u64),
    pub(super) process: Process,
}

/// The processes in a `/proc`.
#[derive(Debug, Clone)]
pub(super) struct Processes {
    procfs: PathBuf,
}

impl Processes {
    pub(super) fn new(procfs: &Path) -> Self {
        Self { procfs: procfs.to_owned() }
    }

    /// Whether the process still runs. A zombie has closed all its files, so it does not.
    pub(super) fn runs(&self, process: Process) -> bool {
        self.start_of(process.pid) == Some(process.start)
    }

    /// The start time in ticks since boot; `None` if the process has exited or is a zombie.
    fn start_of(&self, pid: u32) -> Option<u64> {
        let stat = fs::read_to_string(self.procfs.join(pid.to_string()).join("stat")).ok()?;
        // The name in brackets may contain anything, brackets included.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        (!matches!(state, "Z" | "X" | "x")).then_some(())?;
        fields.nth(18)?.parse().ok()
    }

    /// All processes that may write to one of these files, as far as this exporter may inspect
    /// them; `None` if there are too many, because then a missing writer proves nothing.
    pub(super) fn writers(&self, files: &BTreeSet<(u64, u64)>) -> Option<Vec<Writer>> {
        let inodes: BTreeSet<u64> = files.iter().map(|(_, ino)| *ino).collect();
        let mut found = Vec::new();
        let mut descriptors = 0;
        let pids = fs::read_dir(&self.procfs).ok()?.flatten();
        let pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        for (n, pid) in pids.enumerate() {
            if n >= MAX_PROCESSES {
                return None;
            }
            let dir = self.procfs.join(pid.to_string());
            let Ok(entries) = fs::read_dir(dir.join("fd")) else { continue };
            let before = found.len();
            for entry in entries.flatten() {
                descriptors += 1;
                if descriptors > MAX_DESCRIPTORS {
                    return None;
                }
                let file = writes_to(&dir, &entry.path(), &inodes).filter(|f| files.contains(f));
                if let Some(file) = file {
                    found.push((file, pid));
                }
            }
            // A process that exited meanwhile is no writer.
            if found.len() > before && self.start_of(pid).is_none() {
                found.truncate(before);
            }
        }
        let writer =
            |(file, pid)| Some(Writer { file, process: Process { pid, start: self.start_of(pid)? } });
        Some(found.into_iter().filter_map(writer).collect())
    }
}

/// The file that a descriptor may write to, if it is one of these inodes. A hung file system is not
/// accessed unless the kernel's data on the descriptor show that it may be one of these.
fn writes_to(process: &Path, descriptor: &Path, inodes: &BTreeSet<u64>) -> Option<(u64, u64)> {
    let target = fs::read_link(descriptor).ok()?;
    if !target.is_absolute() || target.starts_with("/dev") || target.starts_with("/proc") {
        return None; // sockets, pipes and devices
    }
    let notes = fs::read_to_string(process.join("fdinfo").join(descriptor.file_name()?)).ok()?;
    let note = |key: &str| notes.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':').map(str::trim));
    let flags = u32::from_str_radix(note("flags")?, 8).ok()?;
    if flags & ACCESS_MODE == 0 {
        return None;
    }
    // Kernels before 5.14 do not give the inode here.
    if let Some(ino) = note("ino").and_then(|i| i.parse::<u64>().ok()) {
        if !inodes.contains(&ino) {
            return None;
        }
    }
    let meta = fs::metadata(descriptor).ok()?;
    Some((meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn identity(path: &Path) -> (u64, u64) {
        let meta = fs::metadata(path).unwrap();
        (meta.dev(), meta.ino())
    }

    fn writers_of(files: &[(u64, u64)]) -> Vec<Writer> {
        Processes::new(Path::new("/proc")).writers(&files.iter().copied().collect()).unwrap()
    }

    #[test]
    fn a_process_that_has_the_file_open_for_writing_is_found_until_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.log");
        let log = fs::File::create(&path).unwrap();
        let reader = fs::File::open(&path).unwrap();
        let file = identity(&path);
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(log).spawn().unwrap();
        let found = writers_of(&[file]);
        assert_eq!(found.len(), 1, "not whoever reads, as this process does: {found:?}");
        assert_eq!((found[0].file, found[0].process.pid), (file, child.id()));
        fs::rename(&path, dir.path().join("run.log.1")).unwrap();
        assert_eq!(writers_of(&[file]), found, "under another name");
        let processes = Processes::new(Path::new("/proc"));
        assert!(processes.runs(found[0].process));
        child.stdin.take().unwrap().write_all(b"x").unwrap();
        // Until its parent waits for it, it is a zombie, which counts as exited.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while processes.runs(found[0].process) && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(!processes.runs(found[0].process));
        assert_eq!(writers_of(&[file]), []);
        child.wait().unwrap();
        drop(reader);
    }

    #[test]
    fn another_process_of_the_same_number_is_another() {
        let me = Process { pid: std::process::id(), start: 1 };
        assert!(!Processes::new(Path::new("/proc")).runs(me));
        assert!(!Processes::new(Path::new("/nowhere")).runs(me));
        assert_eq!(Processes::new(Path::new("/nowhere")).writers(&BTreeSet::new()), None);
    }

    #[test]
    fn a_kernel_that_does_not_give_the_inode() {
        let dir = tempfile::tempdir().unwrap();
        let (log, proc) = (dir.path().join("run.log"), dir.path().join("proc"));
        fs::write(&log, "x").unwrap();
        for (pid, flags) in [(7, "0100001"), (8, "0100000"), (9, "02102002")] {
            let dir = proc.join(pid.to_string());
            fs::create_dir_all(dir.join("fd")).unwrap();
            fs::create_dir_all(dir.join("fdinfo")).unwrap();
            std::os::unix::fs::symlink(&log, dir.join("fd/1")).unwrap();
            fs::write(dir.join("fdinfo/1"), format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t27\n")).unwrap();
            let state = if pid == 9 { "Z" } else { "S" };
            let rest = "1 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0";
            fs::write(dir.join("stat"), format!("{pid} (a) b) {state} {rest} 4711 0")).unwrap();
        }
        let found = Processes::new(&proc).writers(&[identity(&log)].into()).unwrap();
        let want = Writer { file: identity(&log), process: Process { pid: 7, start: 4711 } };
        assert_eq!(found, [want], "8 reads only, and 9 is a zombie");
    }
}

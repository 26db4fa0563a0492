//! Matches lines of the kernel log against the patterns.
//!
//! Nearly all lines match none, and a storm of them must cost nothing: the first byte selects the
//! few prefixes that are compared, and a text that may occur anywhere is searched with vector
//! instructions. No line is compared with a whole list.
//!
//! Every user can write to this log: the line of a crash begins with the name of the process (15
//! bytes of its choice, then `[pid]: segfault at ...`), and other lines contain the names of its
//! files and cgroups and its arguments. So a prefix is longer than such a name, and a text further
//! on must follow text that only a driver writes.

mod drivers;

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::nvidia::{self, Line};
use super::patterns::Pattern;

/// A recognised line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found<'a> {
    Nvidia(Line<'a>),
    Pattern(Pattern, Facts<'a>),
    /// The context of a kill that the next lines report.
    OomContext {
        pid: u32,
        cgroup: &'a str,
        constraint: &'a str,
    },
}

/// Further fields of a line; empty if it has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts<'a> {
    /// A disk, file system, server or interface.
    pub(super) device: &'a str,
    /// The PCI address as in the line.
    pub(super) pci: &'a str,
    pub(super) process: &'a str,
    pub(super) pid: Option<u32>,
    /// The network address of the device's server.
    pub(super) server: &'a str,
}

impl<'a> Facts<'a> {
    fn device(device: &'a str) -> Self {
        Self { device, ..Self::default() }
    }

    fn pci(pci: &'a str, device: &'a str) -> Self {
        Self { device, pci, ..Self::default() }
    }

    fn process(process: &'a str, pid: &str) -> Self {
        Self { process, pid: pid.parse().ok(), ..Self::default() }
    }
}

/// The most bytes of the name of a process (`TASK_COMM_LEN` without the terminator).
const MAX_NAME_BYTES: usize = 15;

/// The lines of a message that may be parsed. The name of a file can contain a newline, so later
/// lines are parsed only in messages of the NVIDIA driver, which has some of several lines.
pub(super) fn lines(message: &str) -> impl Iterator<Item = &str> {
    let mut lines = message.split('\n').filter(|line| !line.trim().is_empty()).peekable();
    let several = lines.peek().is_some_and(|first| first.starts_with("NVRM: ") && !is_of_process(first));
    lines.take(if several { usize::MAX } else { 1 })
}

/// Whether a line begins with the name and the pid of a process, `name[pid]` or `name (pid)`. Then
/// it is about that process, whatever the name contains.
fn is_of_process(line: &str) -> bool {
    (0..=MAX_NAME_BYTES).any(|at| {
        let rest = line.as_bytes().get(at..).unwrap_or_default();
        let (number, end) = match rest {
            [b'[', number @ ..] => (number, b']'),
            [b' ', b'(', number @ ..] => (number, b')'),
            _ => return false,
        };
        let digits = number.iter().take_while(|b| b.is_ascii_digit()).count();
        digits > 0 && number.get(digits) == Some(&end)
    })
}

/// The text after its leading number.
fn after_number(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (rest.len() < text.len()).then_some(rest)
}

/// Whether this may be the name of a disk, a file system's device or an interface.
fn is_device(name: &str) -> bool {
    let ordinary = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '!' | ':' | '+');
    !name.is_empty() && name.chars().all(ordinary)
}

/// Matches one line; `None` if no pattern matches.
pub(super) fn recognise(line: &str) -> Option<Found<'_>> {
    if is_of_process(line) {
        return nccl_segfault(line);
    }
    let plain = |pattern| Some(Found::Pattern(pattern, Facts::default()));
    let found = match line.as_bytes().first()? {
        b'N' => nvidia::nvrm(line).map(Found::Nvidia).or_else(|| lockup(line)),
        b'n' => nvidia::nvswitch(line)
            .map(Found::Nvidia)
            .or_else(|| nvme(line))
            .or_else(|| nfs(line))
            .or_else(|| peermem(line)),
        b'a' => drivers::amdgpu(line),
        b'b' => nvme(line).or_else(|| block_error(line)).or_else(|| drivers::bnxt(line)),
        b'c' => block_error(line),
        b'e' => peermem(line).or_else(|| drivers::efa(line)),
        b'E' => ext4(line).or_else(|| peermem(line)).or_else(|| drivers::edac(line)),
        b'i' => drivers::mlx5_completion(line),
        b'p' => drivers::pcieport(line),
        b'X' => xfs(line),
        b'B' => buffer(line).or_else(|| lockup(line)).or_else(|| oops(line)),
        b'U' | b'g' | b'k' => oops(line),
        b'G' => gpu_reset(line),
        b'I' => hung_task(line).or_else(|| block_error(line)),
        b'w' => lockup(line),
        b'r' if is_rcu_stall(line) => plain(Pattern::RcuStall),
        b'o' => oom_context(line),
        b'O' | b'M' => oom_kill(line),
        b'K' if line.starts_with("Kernel panic - not syncing: ") => plain(Pattern::Panic),
        b'K' => killed(line),
        b't' => hung_task(line),
        b'R' if line.starts_with("Remounting filesystem read-only") => plain(Pattern::FilesystemReadonly),
        b'L' => lustre(line).or_else(|| drivers::o2iblnd(line)),
        b'm' => drivers::mlx5(line).or_else(|| raid(line)).or_else(|| hardware(line)),
        b'{' | b'[' => hardware(line),
        _ => None,
    };
    found.or_else(|| anywhere(line))
}

macro_rules! finders {
    ($($name:ident $text:literal;)*) => {
        $(static $name: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new($text));)*
    };
}

finders! {
    AER "PCIe Bus Error: severity=";
    BANDWIDTH " Gb/s available PCIe bandwidth, limited by ";
    SEGFAULT "]: segfault at ";
    WATCHDOG "NETDEV WATCHDOG: ";
}

/// Matches patterns that follow the name of a driver and its device.
fn anywhere(line: &str) -> Option<Found<'_>> {
    let bytes = line.as_bytes();
    if let Some(at) = AER.find(bytes) {
        let (pci, said) = message_of_device(line)?;
        let severity = &line[at + AER.needle().len()..];
        let before = said.strip_suffix(severity)?.strip_suffix("PCIe Bus Error: severity=")?;
        let severity = severity.split(',').next().unwrap_or_default();
        let pattern = match () {
            () if !matches!(before, "" | "AER: " | "aer: ") => return None,
            () if severity.starts_with("Correct") => Pattern::AerCorrected,
            () if severity.contains("Non-Fatal") => Pattern::AerNonfatal,
            () => Pattern::AerFatal,
        };
        return Some(Found::Pattern(pattern, Facts::pci(pci, "")));
    }
    if BANDWIDTH.find(bytes).is_some() {
        let (pci, said) = message_of_device(line)?;
        let (rate, _) = said.split_once(" Gb/s available PCIe bandwidth, limited by ")?;
        let is_rate = rate.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        return is_rate.then(|| Found::Pattern(Pattern::PcieDegraded, Facts::pci(pci, "")));
    }
    if let Some(at) = WATCHDOG.find(bytes) {
        let (driver, said) = line.split_at(at);
        if !driver.is_empty() && !is_driver(driver.strip_suffix(": ")?) {
            return None;
        }
        let (about, said) = said[WATCHDOG.needle().len()..].split_once(": transmit queue ")?;
        if !after_number(said)?.starts_with(" timed out") {
            return None;
        }
        let (pci, netdev) = device_of(line);
        // Older kernels wrote the interface after the text, newer ones write the device before it.
        let netdev = match about.split_once(" (") {
            Some((named, _)) if netdev.is_empty() => named,
            None if about.strip_prefix("CPU: ").and_then(after_number) != Some("") => return None,
            _ => netdev,
        };
        if !is_device(netdev) {
            return None;
        }
        return Some(Found::Pattern(Pattern::NetdevWatchdog, Facts::pci(pci, netdev)));
    }
    None
}

/// Whether a text is only `<driver> <address>[ <interface>]`.
fn is_driver(words: &str) -> bool {
    words.split(' ').count() <= 3 && words.split(' ').all(|word| is_device(word) && !word.contains('/'))
}

/// The address and the message in `<driver> <address>: <message>`.
fn message_of_device(line: &str) -> Option<(&str, &str)> {
    let (driver, rest) = line.split_once(' ')?;
    let (pci, said) = rest.split_once(": ")?;
    (is_device(driver) && nvidia::address(pci).is_some()).then_some((pci, said))
}

/// Matches a crash in NCCL of the process at the beginning of the line.
fn nccl_segfault(line: &str) -> Option<Found<'_>> {
    let (process, pid) = line[..SEGFAULT.find(line.as_bytes())?].rsplit_once('[')?;
    let ours =
        line.contains(" in libnccl") && after_number(pid) == Some("") && process.len() <= MAX_NAME_BYTES;
    ours.then(|| Found::Pattern(Pattern::NcclSegfault, Facts::process(process, pid)))
}

/// Matches `GPU reset executed: GPU-3c6e8a4b, success: true`.
fn gpu_reset(line: &str) -> Option<Found<'_>> {
    let (gpu, outcome) = line.strip_prefix("GPU reset executed: ")?.split_once(',')?;
    let pattern = if outcome.contains("success: true") { Pattern::GpuReset } else { Pattern::GpuResetFailed };
    gpu.starts_with("GPU-").then(|| Found::Pattern(pattern, Facts::device(gpu)))
}

/// The PCI address and the interface in `<driver> <address>[ <interface>]: ...`; empty if missing.
fn device_of(line: &str) -> (&str, &str) {
    let mut words = line.splitn(4, ' ').skip(1);
    let pci = words.next().unwrap_or_default();
    let whole = pci.trim_end_matches(':');
    if nvidia::address(whole).is_none() {
        return ("", "");
    }
    let netdev = words.next().filter(|_| whole.len() == pci.len()).and_then(|w| w.strip_suffix(':'));
    (whole, netdev.unwrap_or_default())
}

/// Whether a line is like `rcu: INFO: rcu_preempt self-detected stall on CPU`.
fn is_rcu_stall(line: &str) -> bool {
    let said = line.strip_prefix("rcu: INFO: ").and_then(|rest| rest.split_once(' '));
    said.is_some_and(|(flavour, said)| {
        let stalls =
            ["self-detected stall on CPU", "detected stalls on CPUs", "detected expedited stalls on CPUs"];
        is_device(flavour) && stalls.iter().any(|stall| said.starts_with(stall))
    })
}

fn nvme(line: &str) -> Option<Found<'_>> {
    let rest = line.strip_prefix("nvme ").or_else(|| line.strip_prefix("block "))?;
    let (device, rest) = rest.split_once(": ")?;
    if !device.starts_with("nvme") || !is_device(device) {
        return None;
    }
    // `I/O 12 QID 3 timeout, ...`, `I/O tag 12 (100c) ... QID 3 timeout, ...`
    let request = rest.strip_prefix("I/O ").map(|rest| rest.strip_prefix("tag ").unwrap_or(rest));
    let pattern = match () {
        () if rest.starts_with("Disabling device after reset failure") => Pattern::NvmeDisabled,
        () if rest.starts_with("no available path - failing I/O") => Pattern::NvmeNoPath,
        () if request.and_then(after_number).is_some_and(|rest| rest.contains(" timeout, ")) => {
            Pattern::NvmeTimeout
        }
        () if rest.starts_with("controller is down; will reset") => Pattern::NvmeTimeout,
        () => return None,
    };
    Some(Found::Pattern(pattern, Facts::device(device)))
}

fn nfs(line: &str) -> Option<Found<'_>> {
    let (server, state) = line.strip_prefix("nfs: server ")?.split_once(' ')?;
    let pattern = match state.trim_end() {
        "OK" => Pattern::NfsOk,
        "not responding, timed out" => Pattern::NfsTimeout,
        s if s.starts_with("not responding") => Pattern::NfsStall,
        _ => return None,
    };
    Some(Found::Pattern(pattern, Facts::device(server)))
}

/// Matches `Lustre: fs-OST0001-osc-ffff9d8a: Connection to fs-OST0001 (at 10.0.0.1@tcp) was lost;
/// in progress operations ...`.
fn lustre(line: &str) -> Option<Found<'_>> {
    let (import, rest) =
        line.strip_prefix("Lustre: ")?.split_once(": ").filter(|(import, _)| !import.contains(' '))?;
    let pattern = match () {
        () if rest.starts_with("Connection to ") && rest.contains(" was lost; in progress") => {
            Pattern::LustreLost
        }
        () if rest.starts_with("Connection restored to ") => Pattern::LustreRestored,
        () => return None,
    };
    let server = rest.split_once(" (at ").and_then(|(_, at)| at.split(')').next()).unwrap_or_default();
    // The last part is a memory address, which differs for every mount.
    let device = import.rsplit_once('-').map_or(import, |(name, _)| name);
    // The import of the management server has no such part. Its return does not mean that the
    // targets at its address are back.
    let server = if device == import { "" } else { server };
    Some(Found::Pattern(pattern, Facts { server, ..Facts::device(device) }))
}

/// Matches `nvidia-peermem nv_get_p2p_free_callback:128 ERROR detected invalid context, ...`, also
/// without the prefix.
fn peermem(line: &str) -> Option<Found<'_>> {
    let (before, _) = line.split_once("ERROR detected invalid context, ")?;
    let ours = before.is_empty() || before.starts_with("nvidia") && is_driver(before.strip_suffix(' ')?);
    ours.then(|| Found::Pattern(Pattern::PeermemContext, Facts::default()))
}

fn ext4(line: &str) -> Option<Found<'_>> {
    if let Some(rest) = line.strip_prefix("EXT4-fs error (device ") {
        return Some(Found::Pattern(Pattern::FilesystemError, Facts::device(rest.split_once(')')?.0)));
    }
    let (device, rest) = line.strip_prefix("EXT4-fs (")?.split_once("): ").filter(|(d, _)| is_device(d))?;
    let pattern = match () {
        () if rest.starts_with("Remounting filesystem read-only") => Pattern::FilesystemReadonly,
        // Older kernels do not print the mode.
        () if rest.starts_with("re-mounted") && !rest.contains(" ro.") => Pattern::FilesystemWritable,
        () if rest.starts_with("mounted filesystem") || rest.starts_with("unmounting filesystem") => {
            Pattern::FilesystemMounted
        }
        () => return None,
    };
    Some(Found::Pattern(pattern, Facts::device(device)))
}

fn xfs(line: &str) -> Option<Found<'_>> {
    let (device, rest) = line.strip_prefix("XFS (")?.split_once("): ").filter(|(d, _)| is_device(d))?;
    let end = rest.trim_end_matches('.');
    let pattern = match () {
        () if end.ends_with("Shutting down filesystem")
            || rest.starts_with("Filesystem has been shut down") =>
        {
            Pattern::FilesystemShutdown
        }
        () if rest.starts_with("Mounting V") || rest.starts_with("Unmounting ") => Pattern::FilesystemMounted,
        () => return None,
    };
    Some(Found::Pattern(pattern, Facts::device(device)))
}

fn buffer(line: &str) -> Option<Found<'_>> {
    if let Some(rest) = line.strip_prefix("Buffer I/O error on dev ") {
        return Some(Found::Pattern(Pattern::DiskError, Facts::device(rest.split([',', ' ']).next()?)));
    }
    // `BTRFS: error (device sda1: state EA) ...`, `BTRFS info (device dm-2): ...`
    let (level, rest) = line.strip_prefix("BTRFS")?.split_once("(device ")?;
    let level = level.trim_start_matches(':').trim();
    if !level.bytes().all(|b| b.is_ascii_lowercase()) {
        return None;
    }
    let device = rest.split([':', ')', ' ']).next();
    let pattern = match () {
        () if rest.ends_with("forced readonly") => Pattern::FilesystemReadonly,
        () if rest.contains("): first mount of ") || rest.contains("): last unmount of ") => {
            Pattern::FilesystemMounted
        }
        () => return None,
    };
    Some(Found::Pattern(pattern, Facts::device(device.unwrap_or_default())))
}

fn raid(line: &str) -> Option<Found<'_>> {
    let (array, rest) = line.strip_prefix("md/raid")?.split_once(": Disk failure on ")?;
    if !is_device(array) {
        return None;
    }
    Some(Found::Pattern(Pattern::RaidFailure, Facts::device(rest.split([',', ' ']).next()?)))
}

/// Matches `mce: [Hardware Error]: CPU 4: Machine Check Exception: 5 Bank 7: ...` and `{1}[Hardware
/// Error]: event severity: fatal`.
///
/// Current errors are numbered. Those that the firmware kept over a reset (ACPI's BERT) are printed
/// once at boot, without a number.
fn hardware(line: &str) -> Option<Found<'_>> {
    let (head, rest) = line.split_once("[Hardware Error]: ")?;
    let number = head.strip_prefix('{').and_then(after_number);
    if !matches!(head, "" | "mce: ") && number != Some("}") {
        return None;
    }
    let pattern = match rest.strip_prefix("event severity: ") {
        Some("fatal" | "recoverable") if head.is_empty() => Pattern::CperPreviousBoot,
        Some(_) if head.is_empty() => return None,
        Some(s) if s.starts_with("corrected") => Pattern::CperCorrected,
        Some(s) if s.starts_with("recoverable") => Pattern::CperRecoverable,
        Some(s) if s.starts_with("fatal") => Pattern::CperFatal,
        Some(_) => return None,
        None if !matches!(head, "" | "mce: ") => return None,
        None if rest.starts_with("Machine check events logged") => Pattern::MceLogged,
        // The first wording is the kernel's, the other that of the decoder that replaces it on
        // AMD's CPUs.
        None if rest
            .strip_prefix("CPU ")
            .and_then(after_number)
            .is_some_and(|r| r.starts_with(": Machine Check Exception: "))
            || rest.starts_with("System Fatal error")
            || rest.starts_with("Uncorrected, software ") =>
        {
            Pattern::Mce
        }
        None => return None,
    };
    Some(Found::Pattern(pattern, Facts::default()))
}

/// Matches `I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) ...` of a disk. Empty drives and loop
/// devices fail every day.
fn block_error(line: &str) -> Option<Found<'_>> {
    let (what, rest) =
        line.strip_prefix("blk_update_request: ").unwrap_or(line).split_once(" error, dev ")?;
    let (device, _) = rest.split_once(", sector ")?;
    let disk =
        is_device(device) && ["nvme", "sd", "vd", "md", "dm-"].iter().any(|kind| device.starts_with(kind));
    (disk && matches!(what, "I/O" | "critical medium"))
        .then(|| Found::Pattern(Pattern::DiskError, Facts::device(device)))
}

/// Matches `INFO: task python3:4242 blocked for more than 122 seconds.`
fn hung_task(line: &str) -> Option<Found<'_>> {
    let line = line.strip_prefix("INFO: ").unwrap_or(line);
    let (task, rest) = line.strip_prefix("task ")?.split_once(" blocked ")?;
    let (process, pid) = task.rsplit_once(':')?;
    let rest = rest.strip_prefix("in I/O wait ").unwrap_or(rest).strip_prefix("for more than ")?;
    let facts = Facts::process(process, pid);
    let is_one = process.len() <= MAX_NAME_BYTES
        && facts.pid.is_some()
        && after_number(rest).is_some_and(|rest| rest.starts_with(" seconds"));
    is_one.then_some(Found::Pattern(Pattern::HungTask, facts))
}

/// Matches `watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4242]`.
fn lockup(line: &str) -> Option<Found<'_>> {
    let line = line.strip_prefix("NMI ").unwrap_or(line);
    let line = line.strip_prefix("watchdog: ").unwrap_or(line);
    if let Some(rest) = line.strip_prefix("BUG: soft lockup - CPU#").and_then(after_number) {
        let (_, task) = rest.strip_prefix(" stuck for ")?.rsplit_once('[')?;
        let (process, pid) = task.trim_end().trim_end_matches(']').rsplit_once(':').unwrap_or_default();
        return Some(Found::Pattern(Pattern::SoftLockup, Facts::process(process, pid)));
    }
    let cpu = line.strip_prefix("CPU").and_then(after_number).and_then(|rest| rest.strip_prefix(": "));
    cpu.unwrap_or(line)
        .starts_with("Watchdog detected hard LOCKUP on cpu")
        .then(|| Found::Pattern(Pattern::HardLockup, Facts::default()))
}

fn oops(line: &str) -> Option<Found<'_>> {
    // Each prefix is longer than the name of a process.
    let beginnings = [
        "BUG: unable to handle",
        "BUG: kernel NULL pointer dereference",
        "Unable to handle kernel",
        "general protection fault",
    ];
    let found = beginnings.iter().any(|b| line.starts_with(b)) || is_bug(line);
    found.then(|| Found::Pattern(Pattern::Oops, Facts::default()))
}

/// Whether a line is like `kernel BUG at mm/slub.c:305!`.
fn is_bug(line: &str) -> bool {
    let place = line.strip_prefix("kernel BUG at ").and_then(|at| at.strip_suffix('!'));
    place
        .and_then(|at| at.rsplit_once(':'))
        .is_some_and(|(file, number)| is_device(file) && after_number(number) == Some(""))
}

/// Matches `oom-kill:constraint=CONSTRAINT_MEMCG,...,task_memcg=/slurm/job_7,task=python3,pid=4242,
/// uid=1000`.
fn oom_context(line: &str) -> Option<Found<'_>> {
    let rest = line.strip_prefix("oom-kill:constraint=")?;
    let (constraint, rest) = rest.split_once(',')?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let pid = pid.split(',').next()?.parse().ok()?;
    let cgroup = task_cgroup(rest).unwrap_or_default();
    Some(Found::OomContext { pid, cgroup, constraint })
}

/// The cgroup in a text that ends with `,task_memcg=/slurm/job_7,task=python3`. Names of cgroups
/// also occur before that, and their owners choose them. If the field is ambiguous, the result is
/// `None`.
fn task_cgroup(text: &str) -> Option<&str> {
    const FIELD: &str = ",task_memcg=";
    let (before, rest) = text.split_once(FIELD)?;
    let name = rest.len().saturating_sub(",task=".len() + MAX_NAME_BYTES);
    let name = (name..rest.len()).find(|at| rest.get(*at..).is_some_and(|r| r.starts_with(",task=")))?;
    let cgroup = rest.get(..name)?;
    (!before.contains("task_memcg=") && !cgroup.contains("task_memcg=")).then_some(cgroup)
}

/// Matches `Memory cgroup out of memory: Killed process 4242 (python3) total-vm:...`.
fn oom_kill(line: &str) -> Option<Found<'_>> {
    let rest =
        line.strip_prefix("Out of memory").or_else(|| line.strip_prefix("Memory cgroup out of memory"))?;
    killed(rest.strip_prefix(" (oom_kill_allocating_task)").unwrap_or(rest).strip_prefix(": ")?)
}

/// Matches the second of two lines in which older kernels log a kill.
fn killed(line: &str) -> Option<Found<'_>> {
    let (pid, rest) = line.strip_prefix("Killed process ")?.split_once(" (")?;
    let process = rest.rsplit_once(") total-vm:").or_else(|| rest.split_once(')'))?.0;
    let facts = Facts::process(process, pid);
    (facts.pid.is_some() && after_number(pid) == Some("")).then_some(Found::Pattern(Pattern::OomKill, facts))
}

#[cfg(test)]
mod forged;
#[cfg(test)]
mod tests;

//! Which lines of the kernel log mean something.
//!
//! Nearly all mean nothing, and a storm of them must cost nothing: the first byte picks the few
//! beginnings that are compared, and what may stand anywhere in a line is searched for with vector
//! instructions. No line is matched against a list.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::nvidia::{self, Line};
use super::patterns::Pattern;

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found<'a> {
    Nvidia(Line<'a>),
    Pattern(Pattern, Facts<'a>),
    /// Of the kill that the next lines tell of.
    OomContext {
        pid: u32,
        cgroup: &'a str,
        constraint: &'a str,
    },
}

/// What a line says of it besides; empty where it says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts<'a> {
    /// A disk, a filesystem, a server, an interface.
    pub(super) device: &'a str,
    /// As the line writes it.
    pub(super) pci: &'a str,
    pub(super) process: &'a str,
    pub(super) pid: Option<u32>,
    /// Network address of the server that a device is at.
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

/// Reads one line; `None` of what means nothing to us.
pub(super) fn recognise(line: &str) -> Option<Found<'_>> {
    let plain = |pattern| Some(Found::Pattern(pattern, Facts::default()));
    let found = match line.as_bytes().first()? {
        b'N' => nvidia::nvrm(line).map(Found::Nvidia).or_else(|| lockup(line)),
        b'n' => nvidia::nvswitch(line)
            .map(Found::Nvidia)
            .or_else(|| nvme(line))
            .or_else(|| nfs(line))
            .or_else(|| peermem(line)),
        b'b' => nvme(line).or_else(|| block_error(line)),
        b'c' => block_error(line),
        b'e' | b'E' => ext4(line).or_else(|| peermem(line)),
        b'X' => xfs(line),
        b'B' => buffer(line).or_else(|| lockup(line)).or_else(|| oops(line)),
        b'U' | b'g' | b'k' => oops(line),
        b'I' => hung_task(line).or_else(|| block_error(line)),
        b'w' => lockup(line),
        b'r' => (line.starts_with("rcu: INFO: ")
            && (line.contains("stall on CPU") || line.contains("stalls on CPU")))
        .then_some(Found::Pattern(Pattern::RcuStall, Facts::default())),
        b'o' => oom_context(line),
        b'O' | b'M' => oom_kill(line),
        b'K' if line.starts_with("Kernel panic") => plain(Pattern::Panic),
        b'K' => killed(line),
        b't' => hung_task(line),
        b'R' if line.starts_with("Remounting filesystem read-only") => plain(Pattern::FilesystemReadonly),
        b'L' => lustre(line),
        b'm' => mlx5(line).or_else(|| raid(line)).or_else(|| hardware(line)),
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
    BANDWIDTH "available PCIe bandwidth, limited by";
    SEGFAULT "]: segfault at ";
    WATCHDOG "NETDEV WATCHDOG: ";
    RESET "GPU reset executed: GPU-";
    FABRIC "NVSwitch";
    MANAGER "abric";
    NVLINK "NVLink failure";
}

/// What follows on whatever a driver or a program calls itself.
fn anywhere(line: &str) -> Option<Found<'_>> {
    let bytes = line.as_bytes();
    if let Some(at) = AER.find(bytes) {
        let severity = &line[at + AER.needle().len()..];
        let severity = severity.split(',').next().unwrap_or_default();
        let pattern = match () {
            () if severity.starts_with("Correct") => Pattern::AerCorrected,
            () if severity.contains("Non-Fatal") => Pattern::AerNonfatal,
            () => Pattern::AerFatal,
        };
        return Some(Found::Pattern(pattern, Facts::pci(device_of(line).0, "")));
    }
    if BANDWIDTH.find(bytes).is_some() {
        return Some(Found::Pattern(Pattern::PcieDegraded, Facts::pci(device_of(line).0, "")));
    }
    if let Some(at) = SEGFAULT.find(bytes) {
        let (process, pid) = line[..at].rsplit_once('[')?;
        return line[at..]
            .contains(" in libnccl")
            .then(|| Found::Pattern(Pattern::NcclSegfault, Facts::process(process, pid)));
    }
    if let Some(at) = WATCHDOG.find(bytes) {
        let (pci, netdev) = device_of(line);
        // The kernel wrote the name of the interface after it, until it began to write the device
        // before it.
        let named = line[at + WATCHDOG.needle().len()..].split_once(" (").map_or("", |(name, _)| name);
        let netdev = if netdev.is_empty() { named } else { netdev };
        return Some(Found::Pattern(Pattern::NetdevWatchdog, Facts::pci(pci, netdev)));
    }
    if let Some(at) = RESET.find(bytes) {
        let (gpu, outcome) = line[at + RESET.needle().len() - "GPU-".len()..].split_once(',')?;
        let pattern =
            if outcome.contains("success: true") { Pattern::GpuReset } else { Pattern::GpuResetFailed };
        return Some(Found::Pattern(pattern, Facts::device(gpu)));
    }
    [&FABRIC, &MANAGER, &NVLINK].iter().any(|f| f.find(bytes).is_some()).then(|| fabric(line)).flatten()
}

/// Lines of fabric manager, where its log goes to the kernel's.
fn fabric(line: &str) -> Option<Found<'_>> {
    let pattern = match () {
        () if line.contains("detected NVSwitch fatal error") => Pattern::NvswitchFatal,
        () if line.contains("detected NVSwitch non-fatal error") => Pattern::NvswitchNonfatal,
        () if line.contains("topology mismatch") || line.contains("topology doesn't match") => {
            Pattern::FabricTopology
        }
        () if line.contains("NVLink failure") => Pattern::NvlinkFailure,
        () => return None,
    };
    Some(Found::Pattern(pattern, Facts::default()))
}

/// The PCI address and the interface in `<driver> <address>[ <interface>]: ...`, as far as they are
/// there.
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

fn mlx5(line: &str) -> Option<Found<'_>> {
    if !line.starts_with("mlx5_c") {
        return None;
    }
    let has = |text: &str| line.contains(text);
    let pattern = if has("Port module event") {
        match () {
            () if has("High Temperature") || has("high temperature") => Pattern::Mlx5ModuleHot,
            () if has("Cable unplugged") => Pattern::Mlx5CableUnplugged,
            () if has("error") => Pattern::Mlx5ModuleError,
            () => return None,
        }
    } else {
        match () {
            () if has("Detected insufficient power on the PCIe slot") => Pattern::Mlx5SlotPower,
            () if has("Will cause a leak of a command resource") => Pattern::Mlx5CommandLeak,
            () if has("device's health compromised") && has("reached miss count") => Pattern::Mlx5Health,
            () if has("unrecoverable hardware error") => Pattern::Mlx5Unrecoverable,
            () if has("TX timeout detected") => Pattern::Mlx5TxTimeout,
            () if has("RX timeout on channel") => Pattern::Mlx5RxTimeout,
            () if has("mlx5_cmd_out_err") && has("ACCESS_REG") && has("failed") => {
                Pattern::Mlx5AccessRegister
            }
            () if line.ends_with("Link up") => Pattern::Mlx5LinkUp,
            () if line.ends_with("Link down") => Pattern::Mlx5LinkDown,
            () => return None,
        }
    };
    let (pci, netdev) = device_of(line);
    Some(Found::Pattern(pattern, Facts::pci(pci, netdev)))
}

fn nvme(line: &str) -> Option<Found<'_>> {
    let rest = line.strip_prefix("nvme ").or_else(|| line.strip_prefix("block "))?;
    let (device, rest) = rest.split_once(": ")?;
    if !device.starts_with("nvme") {
        return None;
    }
    let pattern = match () {
        () if rest.contains("Disabling device after reset failure") => Pattern::NvmeDisabled,
        () if rest.contains("no available path - failing I/O") => Pattern::NvmeNoPath,
        () if rest.starts_with("I/O ") && rest.contains(" timeout, ") => Pattern::NvmeTimeout,
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

/// `Lustre: fs-OST0001-osc-ffff9d8a: Connection to fs-OST0001 (at 10.0.0.1@tcp) was lost; in
/// progress operations ...`
fn lustre(line: &str) -> Option<Found<'_>> {
    let (import, rest) = line.strip_prefix("Lustre: ")?.split_once(": ")?;
    let pattern = match () {
        () if rest.starts_with("Connection to ") && rest.contains(" was lost; in progress") => {
            Pattern::LustreLost
        }
        () if rest.starts_with("Connection restored to ") => Pattern::LustreRestored,
        () => return None,
    };
    let server = rest.split_once(" (at ").and_then(|(_, at)| at.split(')').next()).unwrap_or_default();
    // The last part is an address in memory, another one for every mount.
    let device = import.rsplit_once('-').map_or(import, |(name, _)| name);
    // That the management server is back, whose import has no such part, says nothing of the
    // targets at its address.
    let server = if device == import { "" } else { server };
    Some(Found::Pattern(pattern, Facts { server, ..Facts::device(device) }))
}

fn peermem(line: &str) -> Option<Found<'_>> {
    let ours = line.starts_with("nvidia") || line.starts_with("ERROR");
    let found = ours && line.contains("ERROR detected invalid context");
    found.then(|| Found::Pattern(Pattern::PeermemContext, Facts::default()))
}

fn ext4(line: &str) -> Option<Found<'_>> {
    if let Some(rest) = line.strip_prefix("EXT4-fs error (device ") {
        return Some(Found::Pattern(Pattern::FilesystemError, Facts::device(rest.split_once(')')?.0)));
    }
    let (device, rest) = line.strip_prefix("EXT4-fs (")?.split_once("): ")?;
    let pattern = match () {
        () if rest.starts_with("Remounting filesystem read-only") => Pattern::FilesystemReadonly,
        // Older kernels do not say how.
        () if rest.starts_with("re-mounted") && !rest.contains(" ro.") => Pattern::FilesystemWritable,
        () if rest.starts_with("mounted filesystem") || rest.starts_with("unmounting filesystem") => {
            Pattern::FilesystemMounted
        }
        () => return None,
    };
    Some(Found::Pattern(pattern, Facts::device(device)))
}

fn xfs(line: &str) -> Option<Found<'_>> {
    let (device, rest) = line.strip_prefix("XFS (")?.split_once("): ")?;
    let pattern = match () {
        () if rest.contains("Shutting down filesystem") || rest.contains("has been shut down") => {
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
    let rest = line.strip_prefix("BTRFS")?;
    let device = rest.split_once("(device ").and_then(|(_, r)| r.split([':', ')', ' ']).next());
    let pattern = match () {
        () if rest.contains("forced readonly") => Pattern::FilesystemReadonly,
        () if rest.contains("): first mount of ") || rest.contains("): last unmount of ") => {
            Pattern::FilesystemMounted
        }
        () => return None,
    };
    Some(Found::Pattern(pattern, Facts::device(device.unwrap_or_default())))
}

fn raid(line: &str) -> Option<Found<'_>> {
    let (_, rest) = line.strip_prefix("md/raid")?.split_once(": Disk failure on ")?;
    Some(Found::Pattern(Pattern::RaidFailure, Facts::device(rest.split([',', ' ']).next()?)))
}

/// `mce: [Hardware Error]: CPU 4: Machine Check Exception: 5 Bank 7: ...`, `{1}[Hardware Error]:
/// event severity: fatal`
///
/// Errors of now are numbered. Those that the firmware kept over a reset (ACPI's BERT) are printed
/// once, as the kernel boots, and are not.
fn hardware(line: &str) -> Option<Found<'_>> {
    let (head, rest) = line.split_once("[Hardware Error]: ")?;
    let pattern = match rest.strip_prefix("event severity: ") {
        Some("fatal" | "recoverable") if head.is_empty() => Pattern::CperPreviousBoot,
        Some(_) if head.is_empty() => return None,
        Some(s) if s.starts_with("corrected") => Pattern::CperCorrected,
        Some(s) if s.starts_with("recoverable") => Pattern::CperRecoverable,
        Some(s) if s.starts_with("fatal") => Pattern::CperFatal,
        Some(_) => return None,
        None if !matches!(head, "" | "mce: ") => return None,
        None if rest.starts_with("Machine check events logged") => Pattern::MceLogged,
        // The kernel's own words, and those of the decoder that speaks in its place where the CPU
        // is AMD's.
        None if rest.contains("Machine Check Exception")
            || rest.starts_with("System Fatal error")
            || rest.starts_with("Uncorrected, software ") =>
        {
            Pattern::Mce
        }
        None => return None,
    };
    Some(Found::Pattern(pattern, Facts::default()))
}

/// `INFO: task python3:4242 blocked for more than 122 seconds.`
/// `I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) ...`, of a disk: drives that nothing is in,
/// and loops, fail every day.
fn block_error(line: &str) -> Option<Found<'_>> {
    let (what, rest) =
        line.strip_prefix("blk_update_request: ").unwrap_or(line).split_once(" error, dev ")?;
    let device = rest.split([',', ' ']).next()?;
    let disk = ["nvme", "sd", "vd", "md", "dm-"].iter().any(|kind| device.starts_with(kind));
    (disk && matches!(what, "I/O" | "critical medium"))
        .then(|| Found::Pattern(Pattern::DiskError, Facts::device(device)))
}

fn hung_task(line: &str) -> Option<Found<'_>> {
    let line = line.strip_prefix("INFO: ").unwrap_or(line);
    let (task, rest) = line.strip_prefix("task ")?.split_once(" blocked ")?;
    let (process, pid) = task.rsplit_once(':')?;
    rest.contains("for more than").then(|| Found::Pattern(Pattern::HungTask, Facts::process(process, pid)))
}

/// `watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4242]`
fn lockup(line: &str) -> Option<Found<'_>> {
    if let Some((_, rest)) = line.split_once("soft lockup - CPU#") {
        let task = rest.rsplit_once('[').map_or("", |(_, task)| task.trim_end().trim_end_matches(']'));
        let (process, pid) = task.rsplit_once(':').unwrap_or_default();
        return Some(Found::Pattern(Pattern::SoftLockup, Facts::process(process, pid)));
    }
    line.contains("detected hard LOCKUP on cpu")
        .then(|| Found::Pattern(Pattern::HardLockup, Facts::default()))
}

fn oops(line: &str) -> Option<Found<'_>> {
    let beginnings = [
        "BUG: unable to handle",
        "BUG: kernel NULL pointer dereference",
        "Unable to handle kernel",
        "general protection fault",
        "kernel BUG at",
    ];
    beginnings.iter().any(|b| line.starts_with(b)).then(|| Found::Pattern(Pattern::Oops, Facts::default()))
}

/// `oom-kill:constraint=CONSTRAINT_MEMCG,...,task_memcg=/slurm/job_7,task=python3,pid=4242,
/// uid=1000`
fn oom_context(line: &str) -> Option<Found<'_>> {
    let rest = line.strip_prefix("oom-kill:constraint=")?;
    let (constraint, rest) = rest.split_once(',')?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let pid = pid.split(',').next()?.parse().ok()?;
    let cgroup =
        rest.split_once("task_memcg=").map_or("", |(_, r)| r.split_once(",task=").map_or(r, |(c, _)| c));
    Some(Found::OomContext { pid, cgroup, constraint })
}

/// `Memory cgroup out of memory: Killed process 4242 (python3) total-vm:...`
fn oom_kill(line: &str) -> Option<Found<'_>> {
    let rest =
        line.strip_prefix("Out of memory").or_else(|| line.strip_prefix("Memory cgroup out of memory"))?;
    killed(rest.split_once(": ")?.1)
}

/// Older kernels tell of the decision on a line of its own, and then of this.
fn killed(line: &str) -> Option<Found<'_>> {
    let (pid, rest) = line.strip_prefix("Killed process ")?.split_once(" (")?;
    let process = rest.split_once(") ").or_else(|| rest.split_once(')'))?.0;
    Some(Found::Pattern(Pattern::OomKill, Facts::process(process, pid)))
}

#[cfg(test)]
mod tests;

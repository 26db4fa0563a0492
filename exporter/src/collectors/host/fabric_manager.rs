//! The log of NVIDIA's fabric manager, which configures and monitors the NVSwitches of a node.
//!
//! The fabric manager writes to a file of its own (`LOG_FILE_NAME` of `fabricmanager.cfg`,
//! /var/log/fabricmanager.log by default), or with `LOG_USE_SYSLOG=1` to syslog, and never to the
//! kernel's log: NVIDIA's Fabric Manager User Guide, "Logging-Related Config Items". With syslog,
//! `log` is the file that the syslog daemon writes. The systemd journal is not read, because it is
//! a database in its own format. Another collector checks whether the service runs
//! ([`super::services`]).
//!
//! The messages are those of public reports: leptonai/gpud,
//! components/accelerator/nvidia/fabric-manager/log_matcher.go (NVSwitch errors, GPU handles) and
//! testdata/fabricmanager.log (the format of a line); NVIDIA/gpu-operator issue 610 and
//! akash-network/website ("Fabric Manager Version Mismatch") for a service that does not start.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use stepwatch_kit::config::Period;
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::link::Level;
use crate::origin::Origin;
use crate::persisted_state;
use crate::roots::{self, Roots};
use crate::samples::Samples;

pub const ABOUT: &str = "log of NVIDIA's fabric manager";
pub const NEEDS: &str = "/var/log/fabricmanager.log or what collectors.fabric_manager.log names; CAP_DAC_READ_SEARCH where it is root's; in a container, that of the host";
pub const COST: &str = "what was written since the last look";

pub static MESSAGES: Family = Family::counter(
    "gpu_fabric_manager_messages_total",
    "",
    &["message"],
    "Messages of fabric manager since the boot that mean trouble, by what they are; `error` is every other error",
);

pub static FAMILIES: &[&Family] = &[&MESSAGES];

/// The name under which the collector's state is saved.
const NAME: &str = "fabric_manager";
/// The most bytes of the log that are read at the first pass, and at each later one.
const MAX_BYTES: usize = 1 << 20;
/// Longer lines are skipped.
const MAX_LINE: usize = 4096;
/// The most characters of a line that are added to its event.
const MAX_MESSAGE: usize = 240;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// The log file of the fabric manager, or of the syslog daemon.
    pub log: PathBuf,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default()
            .period("interval", self.interval)
            .unless(self.log.is_absolute(), "log: must be an absolute path")
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(5),
            log: "/var/log/fabricmanager.log".into(),
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

macro_rules! messages {
    ($($message:ident $label:literal;)*) => {
        /// The meaning of a line.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Message { $($message,)* }

        impl Message {
            pub const ALL: &[Self] = &[$(Self::$message,)*];

            /// The value of the label `message`.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$message => $label,)* }
            }
        }
    };
}

messages! {
    NvswitchFatal "nvswitch_fatal";
    NvswitchNonfatal "nvswitch_non_fatal";
    // The GPU is not registered with the fabric.
    UnknownGpu "unknown_gpu";
    VersionMismatch "version_mismatch";
    // The node has none, or their driver is not loaded.
    NoNvswitch "no_nvswitch";
    Error "error";
}

impl Message {
    pub fn named(label: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|message| message.as_str() == label)
    }

    /// The level of the event and the beginning of its text; `None` if the line is only counted.
    fn report(self) -> Option<(Level, &'static str)> {
        match self {
            Self::NvswitchFatal => Some((Level::Error, "fabric manager found a fatal NVSwitch error")),
            Self::NvswitchNonfatal => {
                Some((Level::Warn, "fabric manager found an NVSwitch error that is not fatal"))
            }
            Self::UnknownGpu => Some((
                Level::Warn,
                "fabric manager does not know a GPU of a job: it is not in the NVLink fabric",
            )),
            Self::VersionMismatch => Some((
                Level::Error,
                "fabric manager does not start, because its version does not match that of the driver",
            )),
            Self::NoNvswitch | Self::Error => None,
        }
    }
}

/// A parsed line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line<'a> {
    message: Message,
    /// The local time of the node.
    time: Option<DateTime>,
    code: Option<u32>,
    /// The PCI address of the NVSwitch.
    pci: Option<String>,
    port: Option<u32>,
    text: &'a str,
}

/// Parses a line; `None` if it reports no trouble.
fn parse(line: &str) -> Option<Line<'_>> {
    let (time, level, text) = split(line)?;
    let after = |words: &str| text.split_once(words).map(|(_, rest)| rest);
    let number = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    let fatal = text.strip_prefix("detected NVSwitch fatal error ");
    let nonfatal = text.strip_prefix("detected NVSwitch non-fatal error ");
    let message = match () {
        () if fatal.is_some() => Message::NvswitchFatal,
        () if nonfatal.is_some() => Message::NvswitchNonfatal,
        () if text.starts_with("failed to find the GPU handle ") => Message::UnknownGpu,
        () if text.starts_with("fabric manager NVIDIA GPU driver interface version ")
            && text.contains(" match with driver version ") =>
        {
            Message::VersionMismatch
        }
        () if text
            .starts_with("request to query NVSwitch device information from NVSwitch driver failed") =>
        {
            Message::NoNvswitch
        }
        () if matches!(level, "ERROR" | "CRITICAL") => Message::Error,
        () => return None,
    };
    let pci = after("NVSwitch pci bus id ").and_then(|rest| rest.split(' ').next()).and_then(address);
    Some(Line {
        message,
        time,
        code: fatal.or(nonfatal).and_then(number),
        pci,
        port: after(" port ").and_then(number),
        text,
    })
}

/// The time, level and text of a line: `[Jul 23 2024 07:53:55] [ERROR] [tid 841] <text>`, or in
/// syslog `... nv-fabricmanager[4177]: <text>`, or the first within the second.
fn split(line: &str) -> Option<(Option<DateTime>, &str, &str)> {
    let line = line.trim_end();
    let line = match line.split_once("nv-fabricmanager[") {
        Some((_, rest)) => rest.split_once("]: ")?.1,
        None => line,
    };
    let Some((time, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] [")) else {
        // A syslog line without a level, or that of another program.
        return Some((None, "", line));
    };
    let (level, rest) = rest.split_once("] ")?;
    let text = match rest.strip_prefix("[tid ").and_then(|rest| rest.split_once("] ")) {
        Some((_, text)) => text,
        None => rest,
    };
    Some((DateTime::strptime("%b %d %Y %H:%M:%S", time).ok(), level, text))
}

/// Converts `00000000:86:00.0` to the form of sysfs.
fn address(text: &str) -> Option<String> {
    let short = text.strip_prefix("0000").filter(|rest| rest.len() == "0000:86:00.0".len()).unwrap_or(text);
    let well_formed = short.len() == "0000:86:00.0".len()
        && short.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'));
    well_formed.then(|| short.to_ascii_lowercase())
}

/// The state that survives a restart of this exporter.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Memory {
    boot: String,
    counts: BTreeMap<String, u64>,
    /// The file that was read, and the position in it.
    inode: u64,
    offset: u64,
}

#[derive(Debug)]
pub struct FabricManagerReader {
    config: Config,
    memory: Memory,
    /// Kept open, so that the rest of a renamed file is read.
    file: Option<File>,
    /// Whether events are published. At the first pass of a boot they are not, because they are
    /// old.
    publish: bool,
}

impl FabricManagerReader {
    pub fn new(config: &Config) -> Self {
        Self { config: config.clone(), memory: Memory::default(), file: None, publish: false }
    }

    /// Opens the file that now has the name, unless it is open already.
    fn follow(&mut self) -> io::Result<()> {
        let now = open(&self.config.log)?;
        let inode = now.metadata()?.ino();
        let same = match &self.file {
            Some(file) => file.metadata().is_ok_and(|open| open.ino() == inode),
            None => inode == self.memory.inode,
        };
        if !same {
            (self.memory.inode, self.memory.offset) = (inode, 0);
        }
        if !same || self.file.is_none() {
            self.file = Some(now);
        }
        Ok(())
    }

    /// The complete lines that were not read yet.
    fn read(&mut self) -> io::Result<String> {
        let Some(file) = &self.file else { return Ok(String::new()) };
        let length = file.metadata()?.len();
        if length < self.memory.offset {
            // The file was truncated, as by logrotate's `copytruncate`.
            self.memory.offset = 0;
        }
        let mut bytes = vec![0; MAX_BYTES.min((length - self.memory.offset) as usize)];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], self.memory.offset + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        bytes.truncate(filled);
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let whole = if whole == 0 && filled > MAX_LINE { filled } else { whole };
        bytes.truncate(whole);
        self.memory.offset += whole as u64;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Evaluates lines; those before `since` are of an earlier boot.
    fn take(&mut self, text: &str, since: Option<f64>) -> Vec<Event> {
        let mut first: BTreeMap<(Message, Option<String>), (Line<'_>, u64)> = BTreeMap::new();
        for line in text.lines().filter(|line| line.len() <= MAX_LINE).filter_map(parse) {
            let ts = line.time.and_then(unix);
            if since.is_some_and(|since| ts.is_none_or(|ts| ts < since)) {
                continue;
            }
            *self.memory.counts.entry(line.message.as_str().to_owned()).or_default() += 1;
            let key = (line.message, line.pci.clone());
            first.entry(key).and_modify(|(_, times)| *times += 1).or_insert((line, 1));
        }
        if !self.publish {
            return Vec::new();
        }
        first.into_values().filter_map(|(line, times)| event(&line, times)).collect()
    }
}

impl Collector for FabricManagerReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let log = &self.config.log;
        match open(log) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("there is no {}; in a container, mount that of the host", log.display());
                return Ok(Support::Unsupported(text));
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(CollectError::Other(format!(
                    "{} may not be read: give this program CAP_DAC_READ_SEARCH, or its group the right to read the log",
                    log.display()
                )));
            }
            Err(error) => return Err(CollectError::read(log, error)),
        }
        let boot = roots::read(&cx.roots.proc("sys/kernel/random/boot_id")).unwrap_or_default();
        let saved: Memory = persisted_state::load(cx.roots.state.as_deref(), NAME);
        self.publish = saved.boot == boot;
        self.memory = if self.publish { saved } else { Memory { boot, ..Memory::default() } };
        self.file = None;
        Ok(Support::Supported(log.display().to_string()))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let before = self.memory.clone();
        let log = self.config.log.clone();
        let failed = |error| CollectError::read(&log, error);
        let mut text = self.read().map_err(failed)?;
        self.follow().map_err(failed)?;
        let since = (!self.publish).then(|| booted(cx.roots).unwrap_or(0.0));
        if !self.publish {
            self.memory.offset = last_part(self.file.as_ref());
        }
        text += &self.read().map_err(failed)?;
        let events = self.take(&text, since);
        self.publish = true;
        for event in events {
            cx.hub.publish(Origin::Node, event);
        }
        for message in Message::ALL {
            let count = self.memory.counts.get(message.as_str()).copied().unwrap_or_default();
            out.set(&MESSAGES, &[message.as_str()], count);
        }
        if self.memory != before
            && let Err(error) = persisted_state::save(cx.roots.state.as_deref(), NAME, &self.memory)
        {
            cx.hub.state_not_saved();
            tracing::warn!(%error, "cannot remember how far the log of fabric manager was read");
        }
        Ok(())
    }
}

/// The offset of the last [`MAX_BYTES`] of a file. The first line from there is incomplete, and
/// matches no message.
fn last_part(file: Option<&File>) -> u64 {
    let length = file.and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len());
    length.saturating_sub(MAX_BYTES as u64)
}

/// Opens a regular file; a pipe of that name does not block.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// The Unix time when the node booted.
fn booted(roots: &Roots) -> Option<f64> {
    let stat = roots::read(&roots.proc("stat"))?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn unix(time: DateTime) -> Option<f64> {
    let zoned = time.to_zoned(TimeZone::system()).ok()?;
    Some(zoned.timestamp().as_second() as f64)
}

fn event(line: &Line<'_>, times: u64) -> Option<Event> {
    let (level, phrase) = line.message.report()?;
    let mut text = phrase.to_owned();
    if let Some(code) = line.code {
        let _ = write!(text, " (SXID {code})");
    }
    if let Some(pci) = &line.pci {
        let _ = write!(text, ", of NVSwitch {pci}");
    }
    if let Some(port) = line.port {
        let _ = write!(text, ", port {port}");
    }
    if times > 1 {
        let _ = write!(text, "; {times} times");
    }
    let mut event = Event {
        // The time zone of a container may differ from that of the log.
        ts: Some(unix_now()),
        name: Some(NodeCondition::FabricUnhealthy.name().to_owned()),
        code: Some(1),
        level: Some(level.as_str().to_owned()),
        text: Some(text),
        ..Event::new(Kind::Hw)
    };
    event.extra.insert("once".into(), Value::Bool(true));
    event.extra.insert("source".into(), Value::Text(NAME.to_owned()));
    if let Some(pci) = &line.pci {
        event.extra.insert("pci".into(), Value::Text(pci.clone()));
    }
    let said = line.text.chars().take(MAX_MESSAGE).collect();
    event.extra.insert("message".into(), Value::Text(said));
    Some(event)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::testing::Bench;

    // leptonai/gpud, components/accelerator/nvidia/fabric-manager (Apache-2.0).
    const FATAL: &str = "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33";
    const NONFATAL: &str = "[Jul 09 2024 18:14:07] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61";
    const HANDLE: &str = "[Sep 17 2024 06:01:46] [ERROR] [tid 1230079] failed to find the GPU handle 5410063385821516767 in the multicast team request setup 6130285411925746235.";
    const INFO: &str = "[Feb 25 2025 13:59:45] [INFO] [tid 1808] multicast group 0 is freed.";
    // NVIDIA/gpu-operator issue 610; akash-network/website, "Package Version Mismatch".
    const NOTHING: &str = "Nov 15 14:15:47 leon-NF5468M6 nv-fabricmanager[4177]: request to query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]";
    const MISMATCH: &str = "Nov 05 13:55:26 node1 nv-fabricmanager[104230]: fabric manager NVIDIA GPU driver interface version 550.127.05 don't match with driver version 550.120. Please update with matching NVIDIA driver package.";

    #[test]
    fn lines_of_public_reports() {
        let read = |line| parse(line).map(|l| (l.message, l.code, l.pci, l.port, l.time.is_some()));
        let switch = || Some("0000:86:00.0".to_owned());
        assert_eq!(read(FATAL), Some((Message::NvswitchFatal, Some(20034), switch(), Some(33), true)));
        assert_eq!(read(NONFATAL), Some((Message::NvswitchNonfatal, Some(12028), switch(), Some(61), true)));
        assert_eq!(read(HANDLE), Some((Message::UnknownGpu, None, None, None, true)));
        assert_eq!(read(NOTHING), Some((Message::NoNvswitch, None, None, None, false)));
        assert_eq!(read(MISMATCH), Some((Message::VersionMismatch, None, None, None, false)));
        let other = "[Jul 23 2024 07:53:55] [ERROR] [tid 841] something else";
        assert_eq!(read(other), Some((Message::Error, None, None, None, true)));
        let syslog = format!("Jul 23 07:53:55 n1 nv-fabricmanager[841]: {FATAL}");
        assert_eq!(read(&syslog), read(FATAL));
        for no in [
            INFO,
            "",
            "Message payload details:Team release request: Team Handle:99c9f23d49236386 Flags:0",
            "Nov 05 13:55:26 node1 sshd[1]: detected NVSwitch fatal error 1",
        ] {
            assert_eq!(parse(no), None, "{no}");
        }
        for message in Message::ALL {
            assert_eq!(Message::named(message.as_str()), Some(*message));
        }
    }

    struct Node {
        dir: tempfile::TempDir,
        bench: Bench,
    }

    impl Node {
        fn new(log: &[&str]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let at = |part: &str| dir.path().join(part);
            std::fs::create_dir_all(at("proc/sys/kernel/random")).unwrap();
            std::fs::create_dir_all(at("state")).unwrap();
            std::fs::write(at("proc/sys/kernel/random/boot_id"), "boot-1").unwrap();
            // The boot is between the first two errors above: Jul 15 2024.
            std::fs::write(at("proc/stat"), "cpu 1\nbtime 1721001600\n").unwrap();
            let roots = Roots { procfs: at("proc"), state: Some(at("state")), ..Roots::default() };
            let node = Self { dir, bench: Bench::new(roots) };
            node.log(log);
            node
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("fabricmanager.log")
        }

        fn log(&self, lines: &[&str]) {
            let mut file = File::options().create(true).append(true).open(self.path()).unwrap();
            lines.iter().for_each(|line| writeln!(file, "{line}").unwrap());
        }

        fn reader(&self) -> FabricManagerReader {
            let config = Config { log: self.path(), ..Config::default() };
            let mut reader = FabricManagerReader::new(&config);
            assert!(matches!(reader.probe(&self.bench.context()), Ok(Support::Supported(_))));
            reader
        }

        /// The counts of fatal, non-fatal and other errors.
        fn counts(&self, reader: &mut FabricManagerReader) -> [f64; 3] {
            let page = self.bench.collect(reader);
            ["nvswitch_fatal", "nvswitch_non_fatal", "error"].map(|of| page.get(&MESSAGES, &[of]).unwrap())
        }

        fn said(&self) -> Vec<String> {
            self.bench.published().into_iter().map(|event| event.text.unwrap()).collect()
        }
    }

    #[test]
    fn what_was_logged_since_the_boot_is_counted_and_what_is_new_is_published_once() {
        let node = Node::new(&[NONFATAL, FATAL, INFO]);
        let mut reader = node.reader();
        assert_eq!(node.counts(&mut reader), [1.0, 0.0, 0.0], "the other one is of an earlier boot");
        assert_eq!(node.said(), [""; 0], "nobody can do anything about it any more");
        node.log(&[FATAL, FATAL, MISMATCH]);
        assert_eq!(node.counts(&mut reader), [3.0, 0.0, 0.0]);
        let mismatch = "fabric manager does not start, because its version does not match that of the driver";
        let fatal = "fabric manager found a fatal NVSwitch error (SXID 20034), of NVSwitch 0000:86:00.0, port 33; 2 times";
        assert_eq!(node.said(), [fatal, mismatch]);
        // After a restart it continues at its position, with the lines written meanwhile.
        node.log(&[NONFATAL]);
        let mut reader = node.reader();
        assert_eq!(node.counts(&mut reader), [3.0, 1.0, 0.0]);
        assert_eq!(node.said().len(), 1);
        assert_eq!(node.counts(&mut reader), [3.0, 1.0, 0.0]);
        assert_eq!(node.said(), [""; 0]);
    }

    #[test]
    fn a_log_that_is_rotated_loses_no_line() {
        let node = Node::new(&[INFO]);
        let mut reader = node.reader();
        node.counts(&mut reader);
        node.log(&[FATAL]);
        std::fs::rename(node.path(), node.dir.path().join("fabricmanager.log.1")).unwrap();
        node.log(&[NONFATAL]);
        assert_eq!(node.counts(&mut reader), [1.0, 1.0, 0.0]);
        // The log is truncated, as by `copytruncate`.
        File::options().write(true).truncate(true).open(node.path()).unwrap();
        node.log(&[INFO]);
        assert_eq!(node.counts(&mut reader), [1.0, 1.0, 0.0]);
        // An incomplete line is not read yet.
        let mut file = File::options().append(true).open(node.path()).unwrap();
        write!(file, "{}", &FATAL[..60]).unwrap();
        assert_eq!(node.counts(&mut reader), [1.0, 1.0, 0.0]);
        writeln!(file, "{}", &FATAL[60..]).unwrap();
        assert_eq!(node.counts(&mut reader), [2.0, 1.0, 0.0]);
    }

    #[test]
    fn a_node_without_the_log_has_no_such_service() {
        let bench = Bench::new(Roots::default());
        let dir = tempfile::tempdir().unwrap();
        let mut reader = FabricManagerReader::new(&Config { log: dir.path().join("x"), ..Config::default() });
        assert!(matches!(reader.probe(&bench.context()), Ok(Support::Unsupported(_))));
        let mut reader = FabricManagerReader::new(&Config { log: dir.path().into(), ..Config::default() });
        assert!(reader.probe(&bench.context()).is_err(), "a directory is no log");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(line: String) {
            let _ = parse(&line);
        }

        #[test]
        fn mutations_never_panic(at in 0usize..140, with in "\\PC{0,3}") {
            let mut line: Vec<char> = FATAL.chars().collect();
            line.splice(at..=at, with.chars());
            let _ = parse(&line.into_iter().collect::<String>());
        }
    }
}

//! The wear and the warnings of NVMe drives, from the health log of each drive.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use stepwatch_kit::config::Period;
use stepwatch_sys::nvme::{self, HEALTH_BYTES};
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::condition::Conditions;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::link::Level;
use crate::roots::{self, Roots};
use crate::samples::Samples;

pub const ABOUT: &str = "wear and health of NVMe drives";
pub const NEEDS: &str = "/dev/nvme* and CAP_SYS_ADMIN; what is refused stands in disk_nvme_health_unreadable";
pub const COST: &str = "one command a drive every five minutes";

const CONTROLLER: &[&str] = &["controller"];

pub static WARNING: Family = Family::gauge(
    "disk_nvme_critical_warning",
    "",
    &["controller", "warning"],
    "What the drive warns of: 1 for what holds, 0 for the others",
);
pub static SPARE: Family = Family::gauge(
    "disk_nvme_available_spare_ratio",
    "",
    CONTROLLER,
    "Part of the drive's spare blocks that is left",
);
pub static SPARE_THRESHOLD: Family = Family::gauge(
    "disk_nvme_available_spare_threshold_ratio",
    "",
    CONTROLLER,
    "Part below which the drive warns that it has too few spare blocks",
);
pub static USED: Family = Family::gauge(
    "disk_nvme_endurance_used_ratio",
    "",
    CONTROLLER,
    "Part of the drive's endurance that its maker calls used; more than 1 is possible",
);
pub static MEDIA_ERRORS: Family = Family::counter(
    "disk_nvme_media_errors_total",
    "",
    CONTROLLER,
    "Data that the drive could not read or had written wrongly, over its life",
);
pub static ERROR_ENTRIES: Family = Family::counter(
    "disk_nvme_error_log_entries_total",
    "",
    CONTROLLER,
    "Entries of the drive's error log, over its life",
);
pub static READ: Family =
    Family::counter("disk_nvme_read_bytes_total", "bytes", CONTROLLER, "Bytes read, over the drive's life");
pub static WRITTEN: Family = Family::counter(
    "disk_nvme_written_bytes_total",
    "bytes",
    CONTROLLER,
    "Bytes written, over the drive's life",
);
pub static POWERED: Family = Family::counter(
    "disk_nvme_powered_seconds_total",
    "seconds",
    CONTROLLER,
    "Time that the drive was powered, over its life",
);
pub static UNSAFE_SHUTDOWNS: Family = Family::counter(
    "disk_nvme_unsafe_shutdowns_total",
    "",
    CONTROLLER,
    "How often the drive lost its power without notice",
);
pub static UNREADABLE: Family = Family::gauge(
    "disk_nvme_health_unreadable",
    "",
    CONTROLLER,
    "Drive whose health this exporter may not ask for (it needs CAP_SYS_ADMIN and /dev/nvme*); 1 while it is so",
);

pub static FAMILIES: &[&Family] = &[
    &WARNING,
    &SPARE,
    &SPARE_THRESHOLD,
    &USED,
    &MEDIA_ERRORS,
    &ERROR_ENTRIES,
    &READ,
    &WRITTEN,
    &POWERED,
    &UNSAFE_SHUTDOWNS,
    &UNREADABLE,
];

/// The most drives of one node.
const MAX_DRIVES: usize = 64;
/// The bytes of a data unit: 1000 sectors of 512 bytes.
const UNIT_BYTES: f64 = 512_000.0;
const HOUR_SECONDS: f64 = 3600.0;

/// Bits of the first byte (NVMe Base Specification 2.0, figure 208), whether the drive can no
/// longer be trusted with data, and the meaning.
const WARNINGS: [(u8, &str, bool, &str); 5] = [
    (0, "spare_low", false, "it has too few spare blocks"),
    (1, "temperature", false, "its temperature is outside its limits"),
    (2, "unreliable", true, "its reliability is degraded by errors of the media or of itself"),
    (3, "read_only", true, "it can only be read"),
    (4, "backup_failed", false, "the backup of its volatile memory has failed"),
];

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    /// The interval of queries, each of which is one command to the drive.
    pub interval: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, metrics: Metrics::default(), interval: Period::secs(300) }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_mins(1) }
}

/// The source of the health log, which tests replace.
trait Ask: Send + Debug {
    fn health(&self, device: &Path) -> io::Result<[u8; HEALTH_BYTES]>;
}

#[derive(Debug)]
struct Drives;

impl Ask for Drives {
    fn health(&self, device: &Path) -> io::Result<[u8; HEALTH_BYTES]> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        nvme::health(&File::from(rustix::fs::open(device, flags, Mode::empty())?))
    }
}

#[derive(Debug)]
pub struct NvmeReader {
    ask: Box<dyn Ask>,
    conditions: Conditions,
}

impl NvmeReader {
    pub fn new(_: &Config) -> Self {
        Self { ask: Box::new(Drives), conditions: Conditions::default() }
    }
}

/// The names of controllers, such as `nvme0`.
fn controllers(roots: &Roots) -> Vec<String> {
    let mut names = roots::list(&roots.sys("class/nvme")).unwrap_or_default();
    // A drive that is reached over a network is watched by its own machine.
    names.retain(|name| {
        let transport = roots::read(&roots.sys("class/nvme").join(name).join("transport"));
        transport.is_none_or(|transport| transport == "pcie")
    });
    names.truncate(MAX_DRIVES);
    names
}

impl Collector for NvmeReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        Ok(match controllers(cx.roots).len() {
            0 => Support::Unsupported("there is no NVMe drive".into()),
            drives => Support::Supported(format!("{drives} drives")),
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let names = controllers(cx.roots);
        for name in &names {
            match self.ask.health(&cx.roots.dev.join(name)) {
                Ok(page) => {
                    write(name, &page, out);
                    self.judge(cx, name, page[0]);
                }
                Err(error) => {
                    let refused =
                        matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound);
                    if refused {
                        out.set(&UNREADABLE, &[name], true);
                    }
                    tracing::debug!(controller = name, %error, "cannot ask the drive for its health");
                }
            }
        }
        for name in self.conditions.keys(NodeCondition::NvmeHealth) {
            if !names.contains(&name) {
                self.judge(cx, &name, 0);
            }
        }
        Ok(())
    }
}

impl NvmeReader {
    fn judge(&mut self, cx: &Context<'_>, name: &str, warnings: u8) {
        let held: Vec<_> = WARNINGS.iter().filter(|(bit, ..)| warnings >> bit & 1 == 1).collect();
        self.conditions.report(cx, NodeCondition::NvmeHealth, name, !held.is_empty(), || {
            let level =
                if held.iter().any(|(_, _, serious, _)| *serious) { Level::Error } else { Level::Warn };
            let said: Vec<&str> = held.iter().map(|(.., text)| *text).collect();
            let text = if said.is_empty() {
                format!("the drive {name} warns of nothing any more")
            } else {
                format!("the drive {name} warns: {}", said.join("; "))
            };
            let mut event = Event {
                ts: Some(unix_now()),
                level: Some(level.as_str().to_owned()),
                text: Some(text),
                ..Event::new(Kind::Hw)
            };
            event.extra.insert("device".into(), Value::Text(name.to_owned()));
            event
        });
    }
}

/// Writes the values. Offsets are those of figure 208 of the NVMe Base Specification 2.0; counts
/// have 128 bits.
fn write(name: &str, page: &[u8; HEALTH_BYTES], out: &mut Samples) {
    let byte = |at: usize| page.get(at).copied().unwrap_or_default();
    let count = |at: usize| {
        let bytes = page.get(at..at + 16).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0.0, |bytes| u128::from_le_bytes(bytes) as f64)
    };
    for (bit, warning, ..) in WARNINGS {
        out.set(&WARNING, &[name, warning], byte(0) >> bit & 1 == 1);
    }
    let ratio = |at: usize| f64::from(byte(at)) / 100.0;
    out.set(&SPARE, &[name], ratio(3));
    out.set(&SPARE_THRESHOLD, &[name], ratio(4));
    out.set(&USED, &[name], ratio(5));
    out.set(&READ, &[name], count(32) * UNIT_BYTES);
    out.set(&WRITTEN, &[name], count(48) * UNIT_BYTES);
    out.set(&POWERED, &[name], count(128) * HOUR_SECONDS);
    out.set(&UNSAFE_SHUTDOWNS, &[name], count(144));
    out.set(&MEDIA_ERRORS, &[name], count(160));
    out.set(&ERROR_ENTRIES, &[name], count(176));
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::lock::Locked as _;
    use crate::testing::Bench;

    #[derive(Debug, Clone)]
    struct Drive(Arc<Mutex<Result<[u8; HEALTH_BYTES], io::ErrorKind>>>);

    impl Ask for Drive {
        fn health(&self, device: &Path) -> io::Result<[u8; HEALTH_BYTES]> {
            assert!(device.ends_with("nvme0"), "{}", device.display());
            (*self.0.locked()).map_err(io::Error::from)
        }
    }

    /// The values of a drive in the documentation of `nvme smart-log`.
    fn page(warnings: u8) -> [u8; HEALTH_BYTES] {
        let mut page = [0; HEALTH_BYTES];
        page[..6].copy_from_slice(&[warnings, 0x3b, 0x01, 100, 10, 3]);
        page[48..56].copy_from_slice(&4_200_000u64.to_le_bytes());
        page[128..136].copy_from_slice(&8760u64.to_le_bytes());
        page[160..168].copy_from_slice(&2u64.to_le_bytes());
        page
    }

    fn node() -> (tempfile::TempDir, Bench, NvmeReader, Drive) {
        let dir = tempfile::tempdir().unwrap();
        for (name, transport) in [("nvme0", "pcie"), ("nvme1", "rdma")] {
            let path = dir.path().join("class/nvme").join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("transport"), format!("{transport}\n")).unwrap();
        }
        let bench = Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
        let drive = Drive(Arc::new(Mutex::new(Ok(page(0)))));
        let reader = NvmeReader { ask: Box::new(drive.clone()), conditions: Conditions::default() };
        (dir, bench, reader, drive)
    }

    #[test]
    fn a_drive_and_what_it_warns_of() {
        let (_dir, bench, mut reader, drive) = node();
        assert!(matches!(reader.probe(&bench.context()), Ok(Support::Supported(text)) if text == "1 drives"));
        let page_of = bench.collect(&mut reader);
        for (family, want) in [
            (&SPARE, 1.0),
            (&SPARE_THRESHOLD, 0.1),
            (&USED, 0.03),
            (&WRITTEN, 4_200_000.0 * 512_000.0),
            (&POWERED, 8760.0 * 3600.0),
            (&MEDIA_ERRORS, 2.0),
        ] {
            assert_eq!(page_of.get(family, &["nvme0"]), Some(want), "{}", family.name);
        }
        assert_eq!(page_of.get(&WARNING, &["nvme0", "read_only"]), Some(0.0));
        assert!(bench.published().is_empty());
        for (warnings, level, text) in [
            (0b0000_0001, "warn", "the drive nvme0 warns: it has too few spare blocks"),
            (0, "info", "the drive nvme0 warns of nothing any more"),
            (0b0000_1000, "error", "the drive nvme0 warns: it can only be read"),
        ] {
            *drive.0.locked() = Ok(page(warnings));
            bench.collect(&mut reader);
            let said: Vec<_> = bench.published().into_iter().map(|e| (e.level, e.text)).collect();
            assert_eq!(said, [(Some(level.to_owned()), Some(text.to_owned()))]);
        }
    }

    #[test]
    fn a_drive_that_may_not_be_asked() {
        let (_dir, bench, mut reader, drive) = node();
        *drive.0.locked() = Err(io::ErrorKind::PermissionDenied);
        let page = bench.collect(&mut reader);
        assert_eq!(page.get(&UNREADABLE, &["nvme0"]), Some(1.0));
        assert_eq!(page.rows(&SPARE).count(), 0);
    }

    proptest::proptest! {
        #[test]
        fn any_page(bytes in proptest::collection::vec(proptest::num::u8::ANY, HEALTH_BYTES)) {
            let mut out = Samples::default();
            write("nvme0", &bytes.try_into().unwrap(), &mut out);
            proptest::prop_assert!(out.iter().count() > 10);
        }
    }
}

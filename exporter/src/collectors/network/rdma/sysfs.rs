//! Reads the kernel's files of RDMA devices one by one.
//!
//! A failure is limited to its file: if the firmware refuses one counter of one port, only that
//! counter is lost. But a device on which most reads fail is quarantined after a few tries: on
//! ports that this host may not query, each refused read is a line in the kernel's log, hundreds a
//! second, for nothing.

use std::collections::BTreeMap;
use std::io;

use stepwatch_wire::words;

use crate::roots::Dir;

/// The number of consecutive passes in which most of a section fails before it is quarantined.
const STRIKES: u32 = 3;
/// Seconds of the first and of the longest quarantine; each is twice the previous one.
const FIRST_PAUSE: f64 = 60.0;
const LONGEST_PAUSE: f64 = 3600.0;
/// The most files in one directory of counters; no driver has as many.
const MAX_FILES: usize = 512;
/// The most sections whose failures are tracked: three for each port.
const MAX_SECTIONS: usize = 1024;

/// The result of reading one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reading<T> {
    Value(T),
    /// The device does not have it, or not in this state, which is no fault.
    Absent,
    /// The file exists but gives no value. That is no fault, but the firmware may log every read.
    Refused,
    Failed,
}

impl<T> Reading<T> {
    pub(super) fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Refused | Self::Failed => None,
        }
    }
}

/// Reads and parses a file. Text that does not parse, such as `N/A (no PMA)`, is an absent value.
fn read<T>(dir: &mut Dir, name: &str, parse: impl Fn(&str) -> Option<T>) -> Reading<T> {
    match dir.read_bytes(name) {
        Ok(bytes) => std::str::from_utf8(&bytes)
            .ok()
            .and_then(|t| parse(t.trim()))
            .map_or(Reading::Absent, Reading::Value),
        Err(error) => judge(&error),
    }
}

/// Classifies an error. `EINVAL` means that the management agent of a port did not reply: counters
/// of Broadcom's RoCE, and of switching ports of ConnectX-7, always give it although they are
/// healthy.
fn judge<T>(error: &io::Error) -> Reading<T> {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODATA) => Reading::Absent,
        Some(Errno::INVAL) => Reading::Refused,
        _ => Reading::Failed,
    }
}

/// The result of reading a section.
#[derive(Debug, Default)]
struct Tried<'a> {
    files: usize,
    /// The first file that gave no value, preferably one that failed.
    sample: Option<&'a str>,
    unanswered: usize,
    failed: usize,
}

impl<'a> Tried<'a> {
    fn note<T>(&mut self, name: &'a str, reading: &Reading<T>) {
        self.files += 1;
        let failed = matches!(reading, Reading::Failed);
        if failed || matches!(reading, Reading::Refused) {
            if self.sample.is_none() || failed && self.failed == 0 {
                self.sample = Some(name);
            }
            self.unanswered += 1;
            self.failed += usize::from(failed);
        }
    }
}

/// Parses `4: ACTIVE` into the number and the word.
pub(super) fn parse_state(text: &str) -> Option<(u32, String)> {
    let (id, word) = text.split_once(':')?;
    let word = words::line(word.trim()).chars().take(32).collect();
    Some((id.trim().parse().ok()?, word))
}

/// Parses `400 Gb/sec (4X NDR)` into bytes per second.
pub(super) fn parse_rate(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let gigabits: f64 = number.parse().ok()?;
    let known = unit.trim_start().starts_with("Gb/sec");
    (known && gigabits.is_finite() && gigabits > 0.0 && gigabits < 1e6).then_some(gigabits * 125e6)
}

/// Parses a counter; a device reports all ones if it has no value.
pub(super) fn parse_counter(text: &str) -> Option<u64> {
    text.parse().ok().filter(|count| *count != u64::MAX)
}

/// The files of one directory of counters, as far as they could be read.
#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) values: Vec<(String, u64)>,
}

/// The reads of a section that are allowed now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Permit {
    All,
    /// Only this file, to test whether it works again.
    One(String),
    Nothing,
}

/// Sections whose reads fail, by their path below the device's directory.
#[derive(Debug, Default)]
pub(super) struct Quarantine(BTreeMap<String, Guard>);

#[derive(Debug, Default)]
struct Guard {
    strikes: u32,
    /// Whether any of the files without a value failed.
    failed: bool,
    /// The end of the quarantine, if there is one.
    until: Option<f64>,
    pause: f64,
    /// A file that gave no value.
    sample: String,
}

impl Quarantine {
    pub(super) fn permit(&self, section: &str, now: f64) -> Permit {
        match self.0.get(section) {
            Some(Guard { until: Some(until), sample, .. }) if now >= *until => Permit::One(sample.clone()),
            Some(Guard { until: Some(_), .. }) => Permit::Nothing,
            _ => Permit::All,
        }
    }

    /// Records the result of reading a whole section, or its sample.
    fn note(&mut self, section: &str, now: f64, tried: &Tried<'_>) {
        let Some(sample) = tried.sample.filter(|_| tried.unanswered * 2 >= tried.files) else {
            if self.0.remove(section).is_some_and(|guard| guard.until.is_some()) {
                tracing::info!(section, "RDMA device can be read again");
            }
            return;
        };
        if !self.0.contains_key(section) && self.0.len() >= MAX_SECTIONS {
            return;
        }
        let guard = self.0.entry(section.to_owned()).or_default();
        guard.strikes += 1;
        guard.failed = tried.failed > 0;
        sample.clone_into(&mut guard.sample);
        if guard.strikes >= STRIKES {
            if guard.until.is_none() {
                tracing::warn!(
                    section,
                    files = tried.unanswered,
                    failed = tried.failed,
                    "reads of an RDMA device get no answer; it is left alone for a while, so that they do not flood the kernel's log"
                );
            }
            guard.pause =
                if guard.until.is_none() { FIRST_PAUSE } else { (guard.pause * 2.0).min(LONGEST_PAUSE) };
            guard.until = Some(now + guard.pause);
        }
    }

    /// Whether any section of the device is quarantined.
    pub(super) fn holds(&self, device: &str) -> bool {
        self.sections(device).next().is_some()
    }

    /// The sections of the device that are quarantined because they fail, such as
    /// `ports/1/counters`.
    pub(super) fn failing<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a str> {
        self.sections(device).filter(|(_, guard)| guard.failed).map(|(section, _)| section)
    }

    fn sections<'a>(&'a self, device: &'a str) -> impl Iterator<Item = (&'a str, &'a Guard)> {
        let of_device = move |(section, guard): (&'a String, &'a Guard)| {
            Some((section.strip_prefix(device)?.strip_prefix('/')?, guard))
        };
        self.0.iter().filter(|(_, guard)| guard.until.is_some()).filter_map(of_device)
    }

    /// Forgets the devices that are gone.
    pub(super) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|section, _| keep(section.split('/').next().unwrap_or_default()));
    }
}

/// Reads a directory of a device's counters, as far as the quarantine of `section` permits.
pub(super) fn counters(dir: &mut Dir, section: &str, now: f64, quarantine: &mut Quarantine) -> Section {
    let names = match quarantine.permit(section, now) {
        Permit::Nothing => return Section::default(),
        Permit::One(name) => vec![name],
        // A driver without these counters has no such directory.
        Permit::All => dir.names().map(<[String]>::to_vec).unwrap_or_default(),
    };
    let read = |name: String| {
        let reading = read(dir, &name, parse_counter);
        (name, reading)
    };
    let readings: Vec<_> = names.into_iter().take(MAX_FILES).map(read).collect();
    let mut tried = Tried::default();
    readings.iter().for_each(|(name, reading)| tried.note(name, reading));
    quarantine.note(section, now, &tried);
    Section { values: readings.into_iter().filter_map(|(name, r)| Some((name, r.value()?))).collect() }
}

/// The state of one port, as far as it could be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PortState {
    pub(super) state: Option<(u32, String)>,
    pub(super) physical: Option<(u32, String)>,
    /// The rate in bytes per second.
    pub(super) rate: Option<f64>,
}

impl PortState {
    /// Whether the port can pass traffic (4, active); `None` if it does not report its state.
    pub(super) fn up(&self) -> Option<bool> {
        self.state.as_ref().map(|(id, _)| *id == ACTIVE)
    }
}

const ACTIVE: u32 = 4;

/// Reads the state in the directory of the port, as far as the quarantine of `section` permits. If
/// a port was active and still is, its other values have not changed: it would have to go down for
/// that.
pub(super) fn port_state(
    dir: &mut Dir,
    before: &PortState,
    section: &str,
    now: f64,
    quarantine: &mut Quarantine,
) -> PortState {
    let permit = quarantine.permit(section, now);
    let permitted = |name: &str| match &permit {
        Permit::All => true,
        Permit::One(sample) => sample == name,
        Permit::Nothing => false,
    };
    let mut tried = Tried::default();
    let mut look = |name: &'static str| {
        let text = permitted(name).then(|| read(dir, name, |t| Some(t.to_owned())))?;
        tried.note(name, &text);
        text.value()
    };
    let state = look("state").and_then(|t| parse_state(&t));
    let up = |state: &Option<(u32, String)>| state.as_ref().is_some_and(|(id, _)| *id == ACTIVE);
    let (physical, rate) = if up(&state) && up(&before.state) {
        (before.physical.clone(), before.rate)
    } else {
        (look("phys_state").and_then(|t| parse_state(&t)), look("rate").and_then(|t| parse_rate(&t)))
    };
    if state.is_none() {
        dir.reopen();
    }
    if permit != Permit::Nothing {
        quarantine.note(section, now, &tried);
    }
    PortState { state, physical, rate }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_and_states() {
        for (text, gigabits) in [
            ("400 Gb/sec (4X NDR)", 400.0),
            ("2.5 Gb/sec (1X SDR)", 2.5),
            ("800 Gb/sec (4X XDR)", 800.0),
            ("100 Gb/sec", 100.0),
        ] {
            assert_eq!(parse_rate(text), Some(gigabits * 125e6), "{text}");
        }
        for text in [
            "",
            "0 Gb/sec (4X SDR)",
            "400",
            "400 Mb/sec",
            "-1 Gb/sec",
            "nan Gb/sec",
            "1e300 Gb/sec",
            "<unknown>",
        ] {
            assert_eq!(parse_rate(text), None, "{text}");
        }
        assert_eq!(parse_state("4: ACTIVE"), Some((4, "ACTIVE".into())));
        assert_eq!(parse_state("5: LinkUp"), Some((5, "LinkUp".into())));
        assert_eq!(parse_state("ACTIVE"), None);
        assert_eq!(
            ["18446744073709551614", "18446744073709551615", "N/A (no PMA)"].map(parse_counter),
            [Some(u64::MAX - 1), None, None]
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_costs_its_value_only() {
        let dir = tempfile::tempdir().unwrap();
        let counters_dir = dir.path().join("mlx5_0/ports/1/counters");
        std::fs::create_dir_all(counters_dir.join("a_directory_fails")).unwrap();
        for (name, text) in
            [("port_rcv_data", "7\n"), ("VL15_dropped", "N/A (no PMA)\n"), ("symbol_error", "0\n")]
        {
            std::fs::write(counters_dir.join(name), text).unwrap();
        }
        let mut quarantine = Quarantine::default();
        let mut folder = Dir::new(counters_dir);
        for now in 0..10 {
            let section = counters(&mut folder, "mlx5_0/ports/1/counters", f64::from(now), &mut quarantine);
            assert_eq!(section.values, [("port_rcv_data".to_owned(), 7), ("symbol_error".to_owned(), 0)]);
        }
        assert!(!quarantine.holds("mlx5_0"));
    }

    #[test]
    fn a_section_that_keeps_failing_is_left_alone_for_longer_and_longer_and_looked_at_with_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let section = "mlx5_0/ports/1/counters";
        let files = ["a", "b", "c"].map(|n| dir.path().join(section).join(n));
        // A directory cannot be read as a file, not even by root.
        files.iter().for_each(|f| std::fs::create_dir_all(f).unwrap());
        let mut quarantine = Quarantine::default();
        let mut folder = Dir::new(dir.path().join(section));
        let mut look = |now| counters(&mut folder, section, now, &mut quarantine).values.len();
        assert_eq!([0.0, 10.0, 20.0].map(&mut look), [0; 3]);
        assert!(quarantine.holds("mlx5_0") && !quarantine.holds("mlx5"));
        assert_eq!(quarantine.permit(section, 79.0), Permit::Nothing);
        assert_eq!(quarantine.permit(section, 80.0), Permit::One("a".into()));
        counters(&mut folder, section, 80.0, &mut quarantine);
        assert_eq!(quarantine.permit(section, 199.0), Permit::Nothing, "twice as long");
        for file in &files {
            std::fs::remove_dir(file).unwrap();
            std::fs::write(file, "1\n").unwrap();
        }
        let mut look = |now| counters(&mut folder, section, now, &mut quarantine).values.len();
        assert_eq!((look(150.0), look(200.0), look(210.0)), (0, 1, 3));
        assert!(!quarantine.holds("mlx5_0"));
    }

    fn tried(readings: &[(&'static str, Reading<u64>)]) -> Tried<'static> {
        let mut tried = Tried::default();
        readings.iter().for_each(|(name, reading)| tried.note(name, reading));
        tried
    }

    #[test]
    fn what_an_error_means() {
        use rustix::io::Errno;
        for (error, expected) in [
            (Errno::NOENT, Reading::Absent),
            (Errno::OPNOTSUPP, Reading::Absent),
            (Errno::NOSYS, Reading::Absent),
            (Errno::NODATA, Reading::Absent),
            (Errno::INVAL, Reading::Refused),
            (Errno::IO, Reading::Failed),
            (Errno::TIMEDOUT, Reading::Failed),
            (Errno::ACCESS, Reading::Failed),
            (Errno::ISDIR, Reading::Failed),
        ] {
            assert_eq!(judge::<u64>(&error.into()), expected, "{error}");
        }
    }

    #[test]
    fn who_has_no_answer_is_left_alone_and_does_not_fail() {
        let mut quarantine = Quarantine::default();
        let refused = tried(&[("a", Reading::Refused), ("b", Reading::Refused), ("c", Reading::Value(1))]);
        for now in [0.0, 1.0, 2.0] {
            quarantine.note("bnxt_re0/ports/1/counters", now, &refused);
        }
        assert!(quarantine.holds("bnxt_re0") && !quarantine.holds("bnxt_re"));
        assert_eq!(quarantine.failing("bnxt_re0").next(), None);
        assert_eq!(quarantine.permit("bnxt_re0/ports/1/counters", 62.0), Permit::One("a".into()));

        let failed = tried(&[("a", Reading::Refused), ("b", Reading::Failed)]);
        quarantine.note("bnxt_re0/ports/1/counters", 62.0, &failed);
        assert_eq!(quarantine.failing("bnxt_re0").collect::<Vec<_>>(), ["ports/1/counters"]);
        assert_eq!(quarantine.permit("bnxt_re0/ports/1/counters", 200.0), Permit::One("b".into()));
    }

    #[test]
    fn the_pause_has_a_limit() {
        let mut quarantine = Quarantine::default();
        let mut now = 0.0;
        let failed = tried(&[("f", Reading::Failed)]);
        for _ in 0..50 {
            quarantine.note("d/x", now, &failed);
            now += 10_000.0;
        }
        quarantine.note("d/x", now, &failed);
        assert_eq!(quarantine.permit("d/x", now + LONGEST_PAUSE), Permit::One("f".into()));
        quarantine.retain(|device| device != "d");
        assert_eq!(quarantine.permit("d/x", now), Permit::All);
    }

    proptest! {
        #[test]
        fn never_panics(text: String) {
            let _ = (parse_state(&text), parse_rate(&text), parse_counter(&text));
        }

        #[test]
        fn a_rate_reads_back(gigabits in 1u32..2000, width in 1u8..12, speed in "[A-Z]{3}") {
            let text = format!("{gigabits} Gb/sec ({width}X {speed})");
            prop_assert_eq!(parse_rate(&text), Some(f64::from(gigabits) * 125e6));
        }

        #[test]
        fn a_mutated_rate_is_positive_or_nothing(at in 0usize..19, byte in 0u8..128) {
            let mut text = b"400 Gb/sec (4X NDR)".to_vec();
            text[at] = byte;
            let text = String::from_utf8(text).unwrap();
            prop_assert!(parse_rate(&text).is_none_or(|r| r > 0.0 && r.is_finite()));
        }
    }
}

//! The tests that put load on a node (`check --active`): their names, their settings, and the file
//! with their last results, which the command writes and a collector publishes.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use stepwatch_kit::config::Period;

/// What the tests measure, in bytes a second.
pub const MEASURES: &[&str] = &[
    "disk_read",
    "disk_write",
    "memory_copy",
    "nccl_all_reduce",
    "nvbandwidth_d2d",
    "nvbandwidth_d2h",
    "nvbandwidth_h2d",
    "rdma_loopback",
];

/// The programs that they run.
pub const TOOLS: &[&str] = &["all_reduce_perf", "dcgmi", "fio", "ib_write_bw", "nvbandwidth"];

/// The variable in the environment of the tools, and of what they start: the process that tests,
/// and more.
pub(crate) const MARK: &str = "STEPWATCH_NODE_TEST";

/// The verdicts of a test as metrics name them.
pub const VERDICTS: &[&str] = &["ok", "measured", "not_run", "warning", "unknown", "unhealthy"];

/// The file in the state directory, and the most bytes of it.
const FILE: &str = "node-tests.json";
const MAX_BYTES: u64 = 1 << 20;
/// The most measurements that are kept of one test.
pub const MAX_MEASUREMENTS: usize = 256;

/// The bytes that may be written to all directories together.
const DISK_BYTES: std::ops::RangeInclusive<u64> = (1 << 20)..=(1 << 30);
const MAX_DISKS: usize = 16;
const BUDGETS: std::ops::RangeInclusive<Period> = Period::secs(1)..=Period::secs(6 * 3600);

/// `check:` of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckConfig {
    pub active: ActiveConfig,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActiveConfig {
    /// The time for all tests together.
    pub budget: Period,
    /// The level of `dcgmi diag`.
    pub dcgm_level: u8,
    /// Directories, such as that of the checkpoints, whose throughput is measured.
    pub disk: Vec<PathBuf>,
    /// The size of the files that are written to all of them together, read back and removed.
    pub disk_bytes: u64,
    /// What this kind of node reaches, in bytes a second, by measure, or by measure and device
    /// (`rdma_loopback@mlx5_4/1`) where the parts of a node differ.
    pub reference: BTreeMap<String, f64>,
    /// A value that is lower than its reference by more than this part is a warning, and a fault if
    /// it is lower by more than three times that, twice in a row.
    pub tolerance: f64,
    /// The paths of tools that are not found on PATH.
    pub tools: BTreeMap<String, PathBuf>,
}

impl Default for ActiveConfig {
    fn default() -> Self {
        Self {
            budget: Period::secs(120),
            dcgm_level: 1,
            disk: Vec::new(),
            disk_bytes: 1 << 30,
            reference: BTreeMap::new(),
            tolerance: 0.03,
            tools: BTreeMap::new(),
        }
    }
}

impl ActiveConfig {
    /// What a part of the node should reach: its own reference, or that of all parts.
    pub fn reference_of(&self, measure: &str, device: &str) -> Option<f64> {
        let own = self.reference.get(&format!("{measure}@{device}"));
        own.or_else(|| self.reference.get(measure)).copied()
    }

    /// Whether there is a reference of this measure, if only of one device.
    pub fn has_reference(&self, measure: &str) -> bool {
        self.reference.keys().any(|name| measure_of(name) == measure)
    }
}

/// The measure of a name of a reference.
fn measure_of(name: &str) -> &str {
    name.split_once('@').map_or(name, |(measure, _)| measure)
}

impl CheckConfig {
    /// The errors of the configuration, each after the path of its value.
    pub(crate) fn check(&self) -> Vec<String> {
        let active = &self.active;
        let mut wrong = Vec::new();
        let mut unless = |right: bool, mistake: String| {
            if !right {
                wrong.push(format!("check.active.{mistake}"));
            }
        };
        unless(BUDGETS.contains(&active.budget), "budget: must be from 1s to 6h".to_owned());
        unless((1..=2).contains(&active.dcgm_level), "dcgm_level: must be 1 or 2".to_owned());
        unless(
            DISK_BYTES.contains(&active.disk_bytes),
            "disk_bytes: must be from 1 MiB (1048576) to 1 GiB, for all directories together".to_owned(),
        );
        unless(active.disk.len() <= MAX_DISKS, format!("disk: at most {MAX_DISKS} directories"));
        unless(
            active.tolerance > 0.0 && active.tolerance < 1.0,
            "tolerance: must be between 0 and 1, such as 0.03".to_owned(),
        );
        for (i, dir) in active.disk.iter().enumerate() {
            unless(dir.is_absolute(), format!("disk[{i}]: must be an absolute path"));
        }
        for (name, value) in &active.reference {
            let known = MEASURES.contains(&measure_of(name)) && !name.ends_with('@');
            unless(
                known,
                format!("reference.{name}: nothing of this name is measured, only {}", MEASURES.join(", ")),
            );
            unless(
                value.is_finite() && *value > 0.0,
                format!("reference.{name}: must be bytes a second, such as 55e9"),
            );
        }
        for (name, path) in &active.tools {
            let known = TOOLS.contains(&name.as_str());
            unless(known, format!("tools.{name}: no test runs it, only {}", TOOLS.join(", ")));
            unless(path.is_absolute(), format!("tools.{name}: must be an absolute path"));
        }
        wrong
    }
}

/// A value that a test has measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// One of [`MEASURES`].
    pub measure: String,
    /// The part of the node: `gpu0`, `mlx5_0/1`, a directory; empty for the whole.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    pub bytes_per_second: f64,
    /// The configured reference, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<f64>,
}

/// A try of a test that said nothing about the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// The Unix time.
    pub ts: f64,
    /// `not_run` or `unknown`.
    pub verdict: String,
}

/// The last result of one test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestResult {
    /// The Unix time.
    pub ts: f64,
    /// One of [`VERDICTS`].
    pub verdict: String,
    /// The GPUs of the node at that time, such as `8 x NVIDIA H100 80GB HBM3`: nodes of one kind
    /// are compared.
    #[serde(default)]
    pub gpus: String,
    #[serde(default)]
    pub measurements: Vec<Measurement>,
    /// A later try, which said nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
}

impl TestResult {
    fn says_nothing(&self) -> bool {
        self.measurements.is_empty() && ["not_run", "unknown"].contains(&self.verdict.as_str())
    }
}

/// The last results of all tests of the node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    #[serde(default)]
    pub tests: BTreeMap<String, TestResult>,
}

impl Results {
    /// Adds a result. One that says nothing replaces no other: what was slow is as slow as before.
    pub fn add(&mut self, test: String, new: TestResult) {
        match self.tests.get_mut(&test) {
            Some(old) if new.says_nothing() && !old.says_nothing() => {
                old.attempt = Some(Attempt { ts: new.ts, verdict: new.verdict });
            }
            Some(old) => *old = new,
            None => {
                self.tests.insert(test, new);
            }
        }
    }

    /// Reads the file. Another user may own the directory: no link in it is followed, and no pipe
    /// waited for.
    pub fn load(state: &Path) -> io::Result<Self> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut text = Vec::new();
        let file =
            OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(state.join(FILE))?;
        file.take(MAX_BYTES).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Replaces the file. The exporter reads it as another user than the one who tests the node, so
    /// it is readable for all. Another user may own the directory, so that no link in it is
    /// followed.
    pub fn save(&self, state: &Path) -> io::Result<()> {
        let new = state.join(format!("{FILE}.new"));
        if let Err(error) = std::fs::remove_file(&new)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_data()?;
        std::fs::rename(&new, state.join(FILE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> CheckConfig {
        stepwatch_kit::config::parse("x.yml", text).unwrap()
    }

    #[test]
    fn mistakes_of_the_settings_are_named() {
        let text = "active: {budget: 0s, dcgm_level: 3, disk: [checkpoints], disk_bytes: 1, tolerance: 3.0, \
                    reference: {nvbandwidth_h2d: -1.0, speed: 1.0, disk_read@: 1.0}, \
                    tools: {nvbandwidth: nvbandwidth, iperf: /usr/bin/iperf}}";
        let wrong = parsed(text).check();
        for part in [
            "check.active.budget: must be from 1s to 6h",
            "check.active.dcgm_level: must be 1 or 2",
            "check.active.disk[0]: must be an absolute path",
            "check.active.disk_bytes: must be from 1 MiB",
            "check.active.reference.nvbandwidth_h2d: must be bytes a second",
            "check.active.reference.speed: nothing of this name is measured, only disk_read",
            "check.active.reference.disk_read@: nothing of this name is measured",
            "check.active.tolerance: must be between 0 and 1",
            "check.active.tools.nvbandwidth: must be an absolute path",
            "check.active.tools.iperf: no test runs it, only all_reduce_perf",
        ] {
            assert!(wrong.iter().any(|mistake| mistake.starts_with(part)), "{part} in {wrong:?}");
        }
        assert_eq!(wrong.len(), 10, "{wrong:?}");
        let config = parsed("active: {reference: {nvbandwidth_h2d: 55.0e9}, tools: {fio: /opt/fio}}");
        assert_eq!(config.check(), Vec::<String>::new());
        assert_eq!(config.active.reference["nvbandwidth_h2d"], 55e9);
    }

    #[test]
    fn parts_that_differ_have_references_of_their_own() {
        let config = parsed(
            "active: {reference: {rdma_loopback: 48.0e9, rdma_loopback@mlx5_4/1: 12e9, disk_read@/a: 3e9}}",
        );
        assert_eq!(config.check(), Vec::<String>::new());
        let of = |measure: &str, device: &str| config.active.reference_of(measure, device);
        assert_eq!(of("rdma_loopback", "mlx5_0/1"), Some(48e9));
        assert_eq!(of("rdma_loopback", "mlx5_4/1"), Some(12e9));
        assert_eq!((of("disk_read", "/a"), of("disk_read", "/b")), (Some(3e9), None));
        assert!(config.active.has_reference("disk_read") && !config.active.has_reference("disk_write"));
    }

    #[test]
    fn a_try_that_says_nothing_leaves_what_was_measured() {
        let result = |ts, verdict: &str, values: &[f64]| TestResult {
            ts,
            verdict: verdict.to_owned(),
            gpus: String::new(),
            measurements: values
                .iter()
                .map(|value| Measurement {
                    measure: "nccl_all_reduce".into(),
                    device: String::new(),
                    bytes_per_second: *value,
                    reference: None,
                })
                .collect(),
            attempt: None,
        };
        let mut results = Results::default();
        let mut add = |new| {
            results.add("nccl".to_owned(), new);
            results.tests["nccl"].clone()
        };
        assert_eq!(add(result(1.0, "not_run", &[])).verdict, "not_run", "there is no other");
        assert_eq!(add(result(2.0, "unhealthy", &[3e11])).ts, 2.0);
        let kept = add(result(3.0, "unknown", &[]));
        assert_eq!((kept.ts, kept.verdict.as_str(), kept.measurements.len()), (2.0, "unhealthy", 1));
        assert_eq!(kept.attempt, Some(Attempt { ts: 3.0, verdict: "unknown".to_owned() }));
        let mended = add(result(4.0, "ok", &[4e11]));
        assert_eq!((mended.ts, mended.attempt), (4.0, None));
        let partly = add(result(5.0, "unknown", &[3e11]));
        assert_eq!((partly.ts, partly.verdict.as_str()), (5.0, "unknown"), "what was measured is newer");
    }

    #[test]
    fn results_outlive_a_damaged_file_and_follow_no_link() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Results::load(dir.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "mine").unwrap();
        std::os::unix::fs::symlink(&precious, dir.path().join("node-tests.json.new")).unwrap();
        let measurement = Measurement {
            measure: "memory_copy".into(),
            device: String::new(),
            bytes_per_second: 1e10,
            reference: None,
        };
        let measurements = vec![measurement];
        let gpus = "8 x NVIDIA H100".to_owned();
        let result = TestResult { ts: 5.0, verdict: "ok".into(), gpus, measurements, attempt: None };
        let results = Results { tests: BTreeMap::from([("memory_bandwidth".to_owned(), result)]) };
        results.save(dir.path()).unwrap();
        assert_eq!(Results::load(dir.path()).unwrap(), results);
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "mine");
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(Results::load(dir.path()).is_err());
        results.save(dir.path()).unwrap();
        assert_eq!(Results::load(dir.path()).unwrap(), results);
        std::fs::rename(dir.path().join(FILE), &precious).unwrap();
        std::os::unix::fs::symlink(&precious, dir.path().join(FILE)).unwrap();
        assert!(Results::load(dir.path()).is_err(), "a link is not followed");
    }
}

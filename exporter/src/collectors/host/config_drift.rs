//! The setup of this node and of each run on it. It shows the one node with a different driver,
//! firmware, library, kernel setting or configuration file, before a week is spent on its
//! straggling.
//!
//! The settings of a node and those of a run are kept apart, because nodes are compared within a
//! run. Each has a fingerprint over all of them, which most comparisons need; the values name the
//! key that differs. They are short and plain, or a hash. Contents of files and possible secrets
//! never leave this node.

mod file;
mod firmware;
mod libraries;
mod node;
mod run;
mod scope;
mod value;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use stepwatch_kit::config::Period;
use stepwatch_wire::setting::topic;

use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::persisted_state;
use crate::processes::stat::read_stat;
use crate::samples::Samples;
use crate::training::TrainingProcess;
use run::Started;
use scope::Scope;
use value::Settings;

pub const ABOUT: &str =
    "how the node and its runs are set up: versions, settings, files, compared by fingerprint";
pub const NEEDS: &str =
    "/proc, /sys and files of the runs; CAP_SYS_PTRACE for the environment of other users' processes";
pub const COST: &str = "some dozens of small files, on change only where that shows";

pub static FINGERPRINT: Family = Family::gauge(
    "config_fingerprint_info",
    "",
    &["run", "fingerprint"],
    "Fingerprint of how the run is set up on this node, or with an empty run, the node itself; always 1",
);
pub static VALUE: Family = Family::gauge(
    "config_value_info",
    "",
    &["run", "key", "value"],
    "A setting of the run on this node, or with an empty run, of the node itself; a long one as its hash; always 1",
);
pub static CHANGES: Family = Family::counter(
    "config_changes_total",
    "",
    &["of"],
    "How often a setting changed, of the node since it is watched or of a run while it is on this node",
);
pub static LAST_CHANGE: Family = Family::gauge(
    "config_last_change_timestamp_seconds",
    "seconds",
    &["of"],
    "Unix time at which a setting was last seen to have changed",
);
pub static LEFT_OUT: Family = Family::gauge(
    "config_left_out",
    "",
    &["reason"],
    "Settings that are not published: too many, or of a name or value that could be that of a secret; and runs over the limit",
);
pub static UNREADABLE: Family = Family::gauge(
    "config_unreadable_processes",
    "",
    &[],
    "Training processes that this exporter may not look at: it needs CAP_SYS_PTRACE for those of others",
);

pub static FAMILIES: &[&Family] = &[&FINGERPRINT, &VALUE, &CHANGES, &LAST_CHANGE, &LEFT_OUT, &UNREADABLE];

/// The most settings of the node, or of one run, that are published.
const MAX_KEYS: usize = 224;
/// The most runs on one node.
const MAX_RUNS: usize = 8;
/// The most processes of one run that are compared.
const MAX_PROCESSES: usize = 64;
/// How long an ended run is kept, because it may return with another configuration.
const REMEMBER: Duration = Duration::from_hours(1);
/// The first wait before the libraries of a process are looked up again, which is doubled each
/// time, and the most lookups.
const LIBRARIES_AGAIN: Duration = Duration::from_mins(1);
const MAX_TRIES: u32 = 6;
const NAME: &str = "config_drift";

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// Whether to export the settings too, one series each; the stream always has them.
    pub values: bool,
    /// Further kernel settings, such as `net.core.busy_poll`.
    pub sysctls: Vec<String>,
    /// Files of this node whose hashes are compared.
    pub node_files: Vec<PathBuf>,
    /// Files of the run whose hashes are compared, beside those on its command line.
    pub run_files: Vec<PathBuf>,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(60),
            values: true,
            sysctls: Vec::new(),
            node_files: vec!["/etc/nccl.conf".into()],
            run_files: Vec::new(),
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(20) }
}

#[derive(Debug)]
pub struct ConfigDriftReader {
    config: Config,
    node: Scope,
    runs: BTreeMap<String, Run>,
    began: bool,
    node_changes: Changes,
    run_changes: Changes,
}

#[derive(Debug, Default)]
struct Changes {
    count: u64,
    last: Option<f64>,
}

/// A run, and the start of its processes here.
#[derive(Debug)]
struct Run {
    scope: Scope,
    /// The key is pid and start time; the value is `None` for a process that may not be inspected.
    processes: BTreeMap<(u32, u64), Option<Started>>,
    libraries: Libraries,
    seen: Instant,
}

#[derive(Debug, Default)]
struct Libraries {
    of: Option<(u32, u64)>,
    /// All libraries that this process was seen to load.
    loaded: Settings,
    found: Settings,
    tries: u32,
    next: Option<Instant>,
}

impl ConfigDriftReader {
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            node: Scope::default(),
            runs: BTreeMap::new(),
            began: false,
            node_changes: Changes::default(),
            run_changes: Changes::default(),
        }
    }

    fn look_at_node(&mut self, cx: &Context<'_>, now: Instant) -> usize {
        if !std::mem::replace(&mut self.began, true) {
            self.node = Scope::remembered(persisted_state::load(cx.roots.state.as_deref(), NAME));
        }
        let mut settings = node::settings(cx.roots, &self.config.sysctls);
        settings.extend(run::files_of(&self.config.node_files));
        let over = limit(&mut settings);
        if self.node.take(settings) {
            self.node_changes.note();
        }
        if self.node.report(cx, now, None) {
            let saved = persisted_state::save(cx.roots.state.as_deref(), NAME, self.node.settings());
            if let Err(error) = saved {
                tracing::warn!(%error, "cannot remember how this node is set up");
            }
        }
        over
    }

    /// Returns how many settings of a run are over the limit, and how many are left out as secrets.
    fn look_at_run(
        &mut self,
        cx: &Context<'_>,
        name: &str,
        processes: &[&TrainingProcess],
        now: Instant,
    ) -> [usize; 2] {
        let run = self.runs.entry(name.to_owned()).or_insert_with(|| Run::new(now));
        run.seen = now;
        run.read(cx, processes);
        let started: Vec<&Started> = run.processes.values().flatten().collect();
        let secret = started.iter().map(|s| s.secret).max().unwrap_or(0);
        let gpus = crate::gpus::addresses(cx.roots).len();
        let mut settings = run::settings(&started, &self.config.run_files, gpus);
        if started.is_empty() {
            return [0, secret];
        }
        run.libraries.look(cx, run.processes.keys().next().copied(), now);
        settings.extend(run.libraries.found.clone());
        let over = limit(&mut settings) + started.iter().map(|s| s.over).max().unwrap_or(0);
        if run.scope.take(settings) {
            self.run_changes.note();
        }
        let rank = processes.iter().filter_map(|p| p.rank.parse().ok()).min();
        run.scope.report(cx, now, rank.map(|rank: u32| (name, rank)));
        [over, secret]
    }
}

impl Collector for ConfigDriftReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let found = node::settings(cx.roots, &self.config.sysctls).len();
        if found == 0 {
            return Ok(Support::Unsupported("neither /proc nor /sys contains any setting".into()));
        }
        Ok(Support::Supported(format!("{found} settings of the node")))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let now = Instant::now();
        let mut left_out = [self.look_at_node(cx, now), 0];
        let training = cx.hub.processes(cx.roots);
        // The runs are in the order of the processes, in which users alternate.
        let mut runs: Vec<&str> = Vec::new();
        let mut by_run: BTreeMap<&str, Vec<&TrainingProcess>> = BTreeMap::new();
        for process in &training {
            let processes = by_run.entry(&process.run).or_default();
            if processes.is_empty() {
                runs.push(&process.run);
            }
            processes.push(process);
        }
        let too_many = runs.len().saturating_sub(MAX_RUNS);
        for run in runs.into_iter().take(MAX_RUNS) {
            let more = self.look_at_run(cx, run, by_run.get(run).map_or(&[][..], Vec::as_slice), now);
            left_out.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
        }
        self.runs.retain(|_, run| now.saturating_duration_since(run.seen) < REMEMBER);
        self.node.write("", self.config.values, out);
        let here = self.runs.iter().filter(|(_, run)| run.seen == now);
        here.clone().for_each(|(name, run)| run.scope.write(name, self.config.values, out));
        let unreadable = here.flat_map(|(_, run)| run.processes.values()).filter(|p| p.is_none()).count();
        for (of, changes) in [("node", &self.node_changes), ("run", &self.run_changes)] {
            out.set(&CHANGES, &[of], changes.count);
            out.maybe(&LAST_CHANGE, &[of], changes.last);
        }
        out.set(&UNREADABLE, &[], unreadable);
        for (reason, count) in [("limit", left_out[0]), ("secret", left_out[1]), ("runs", too_many)] {
            out.set(&LEFT_OUT, &[reason], count);
        }
        Ok(())
    }
}

impl Changes {
    fn note(&mut self) {
        self.count += 1;
        self.last = Some(crate::clock::unix_now());
    }
}

impl Run {
    fn new(now: Instant) -> Self {
        Self {
            scope: Scope::default(),
            processes: BTreeMap::new(),
            libraries: Libraries::default(),
            seen: now,
        }
    }

    /// Reads each process once.
    fn read(&mut self, cx: &Context<'_>, processes: &[&TrainingProcess]) {
        let mut kept = BTreeMap::new();
        for process in processes.iter().take(MAX_PROCESSES) {
            let Some(stat) = read_stat(cx.roots, process.pid) else { continue };
            let key = (process.pid, stat.start_ticks());
            let started = match self.processes.remove(&key) {
                Some(started) => started,
                None => match Started::read(cx.roots, process.pid) {
                    // It is read at another time.
                    Err(err) if err.kind() == ErrorKind::TimedOut => continue,
                    started => started.ok(),
                },
            };
            kept.insert(key, started);
        }
        self.processes = kept;
    }
}

impl Libraries {
    /// Looks up the libraries several times, because communication libraries are loaded late. Those
    /// of an earlier process stay until this one has NCCL.
    fn look(&mut self, cx: &Context<'_>, process: Option<(u32, u64)>, now: Instant) {
        let Some(process) = process else { return };
        if self.of != Some(process) {
            (self.of, self.tries, self.next) = (Some(process), 0, Some(now));
            self.loaded.clear();
        }
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.tries += 1;
        self.loaded.extend(libraries::versions(cx.roots, process.0).unwrap_or_default());
        let last = self.tries >= MAX_TRIES;
        self.next = (!last).then(|| now + LIBRARIES_AGAIN * 2u32.pow(self.tries - 1));
        if last || self.loaded.contains_key("nccl") || !self.found.contains_key("nccl") {
            self.found.clone_from(&self.loaded);
        }
    }
}

/// Keeps as many settings as are published, those that explain most. Returns the number of the
/// others.
fn limit(settings: &mut Settings) -> usize {
    let over = settings.len().saturating_sub(MAX_KEYS);
    if over > 0 {
        let mut names: Vec<String> = settings.keys().cloned().collect();
        names.sort_by_key(|name| topic(name));
        names.iter().skip(MAX_KEYS).for_each(|name| drop(settings.remove(name)));
    }
    over
}

#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    run::fuzz(bytes);
    libraries::fuzz(bytes);
}

#[cfg(test)]
mod tests;

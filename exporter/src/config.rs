//! The configuration file. Every key has a default, an error is shown with a caret, and a reload
//! logs the changes that need a restart.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use stepwatch_kit::config::{ConfigError, Period};
use stepwatch_kit::serve::{ListenAddr, WebHosts};

use crate::collector::{MIN_PERIOD, Mistakes};
use crate::collectors::CollectorsConfig;
use crate::ingest::IngestConfig;
use crate::node_tests::CheckConfig;
use crate::sources;
pub use crate::sources::SourceConfig;
use crate::stream::{Limits, StreamConfig};
use crate::training::Options;
use crate::training::mfu::Convention;
use crate::training::peaks;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub listen: ListenAddr,
    pub web: WebHosts,
    /// The name of this node in events; by default that of the environment or the host.
    pub node: Option<String>,
    pub ingest: IngestConfig,
    pub state_dir: PathBuf,
    pub sources: Vec<SourceConfig>,
    pub collectors: CollectorsConfig,
    pub gpu: GpuConfig,
    pub mfu: MfuConfig,
    pub runs: RunsConfig,
    pub stream: StreamLimits,
    pub exposition: ExpositionConfig,
    pub check: CheckConfig,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuConfig {
    /// The GPU model of this node, if the driver and the trainer give none or a wrong one. It
    /// selects the peak for MFU.
    pub name: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MfuConfig {
    /// The convention of a step's `mfu` in the stream; the metrics page has all conventions.
    pub convention: Convention,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunsConfig {
    /// A run without a process or reports for this long leaves the metrics page.
    pub forget_after: Period,
    /// How long a run stays after all its ranks have ended, so that it is scraped once more.
    pub linger: Period,
    pub max_runs: usize,
    /// The most new names of runs that one user may add in a minute, after a burst of 200.
    pub new_per_minute: u32,
    /// Patterns of run names that every user may report. Any other run may be reported only by the
    /// user who opened it, root and this exporter.
    pub shared: Vec<String>,
    /// The most ranks of one run.
    pub max_ranks: usize,
    /// The most custom metrics that are exported of one run.
    pub max_custom_metrics: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamLimits {
    pub max_records: usize,
    pub max_bytes: usize,
    pub max_readers: usize,
    /// The most readers of one address. Those with a password or a certificate are not counted.
    pub max_readers_per_address: usize,
    /// A reader that reads nothing for this long is disconnected.
    pub slow_after: Period,
    /// The interval of heartbeat records on an idle stream.
    pub heartbeat: Period,
    /// The journal that keeps the stream across a crash of this exporter; by default in memory,
    /// beside the ingest socket.
    pub journal: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExpositionConfig {
    /// The interval at which the exposition is rendered.
    pub interval: Period,
    pub max_series: usize,
}

/// The variable with the node's name, if the configuration has none.
const NODE_VARIABLE: &str = "STEPWATCH_NODE";
/// The default port of the exporter.
const PORT: &str = ":9765";

impl Default for Config {
    fn default() -> Self {
        Self {
            #[expect(clippy::unwrap_used, reason = "a constant that a test reads")]
            listen: PORT.parse().unwrap(),
            web: WebHosts::default(),
            node: None,
            ingest: IngestConfig::default(),
            state_dir: "/var/lib/stepwatch-exporter".into(),
            sources: Vec::new(),
            collectors: CollectorsConfig::default(),
            gpu: GpuConfig::default(),
            mfu: MfuConfig::default(),
            runs: RunsConfig::default(),
            stream: StreamLimits::default(),
            exposition: ExpositionConfig::default(),
            check: CheckConfig::default(),
        }
    }
}

impl Default for RunsConfig {
    fn default() -> Self {
        Self {
            forget_after: Period::secs(900),
            linger: Period::secs(60),
            max_runs: 64,
            new_per_minute: 60,
            shared: Vec::new(),
            max_ranks: 1024,
            max_custom_metrics: 256,
        }
    }
}

impl Default for StreamLimits {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            max_records: limits.records,
            max_bytes: limits.bytes,
            max_readers: 32,
            max_readers_per_address: 8,
            slow_after: Period::secs(10),
            heartbeat: Period::secs(5),
            journal: None,
        }
    }
}

impl Default for ExpositionConfig {
    fn default() -> Self {
        Self { interval: Period::secs(1), max_series: 20_000 }
    }
}

impl Config {
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&path.display().to_string(), &stepwatch_kit::config::read(path)?)
    }

    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        let config: Self = stepwatch_kit::config::parse(name, text)?;
        let wrong = config.check();
        if wrong.is_empty() { Ok(config) } else { Err(ConfigError::at_paths(name, text, wrong)) }
    }

    /// All errors that the types allow, each with the path of its value.
    fn check(&self) -> Vec<String> {
        let mut wrong = sources::check(&self.sources);
        wrong.extend(self.ingest.check().into_iter().map(|e| format!("ingest.{e}")));
        let empty = |p: &Path| p.as_os_str().is_empty();
        if self.ingest.socket.as_deref().is_some_and(empty) {
            wrong.push("ingest.socket: must be a path".to_owned());
        }
        if let Some(err) = self.gpu.name.as_deref().and_then(peaks::check_name) {
            wrong.push(format!("gpu.name: {err}"));
        }
        if empty(&self.state_dir) {
            wrong.push("state_dir: must be a directory".to_owned());
        }
        let positive = [
            ("ingest.max_connections", self.ingest.max_connections),
            ("runs.max_runs", self.runs.max_runs),
            ("runs.new_per_minute", self.runs.new_per_minute as usize),
            ("runs.max_ranks", self.runs.max_ranks),
            ("stream.max_records", self.stream.max_records),
            ("stream.max_bytes", self.stream.max_bytes),
            ("stream.max_readers", self.stream.max_readers),
            ("stream.max_readers_per_address", self.stream.max_readers_per_address),
            ("exposition.max_series", self.exposition.max_series),
        ];
        wrong.extend(
            positive.iter().filter(|(_, v)| *v == 0).map(|(key, _)| format!("{key}: must be at least 1")),
        );
        let short = [
            ("exposition.interval", self.exposition.interval),
            ("stream.slow_after", self.stream.slow_after),
            ("stream.heartbeat", self.stream.heartbeat),
        ];
        let too_short = |p: &Period| *p < MIN_PERIOD;
        wrong.extend(
            short
                .iter()
                .filter(|(_, p)| too_short(p))
                .map(|(key, _)| format!("{key}: must be at least {MIN_PERIOD}")),
        );
        wrong.extend(Mistakes::default().patterns("shared", &self.runs.shared).under("runs"));
        wrong.extend(self.collectors.check());
        wrong.extend(self.check.check());
        wrong
    }

    /// The name of this node in events.
    pub fn node_name(&self) -> String {
        // A container's own name is useless to an operator who drains nodes.
        let from_environment = || std::env::var(NODE_VARIABLE).ok().filter(|name| !name.is_empty());
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.node.clone().or_else(from_environment).unwrap_or_else(host)
    }

    pub fn training(&self) -> Options {
        let runs = &self.runs;
        Options {
            max_runs: runs.max_runs,
            new_per_minute: f64::from(runs.new_per_minute),
            shared: runs.shared.iter().filter_map(|pattern| glob::Pattern::new(pattern).ok()).collect(),
            max_ranks: runs.max_ranks,
            max_custom: runs.max_custom_metrics,
            forget_after: runs.forget_after.as_duration().as_secs_f64(),
            linger: runs.linger.as_duration().as_secs_f64(),
            convention: self.mfu.convention,
            gpu: self.gpu.name.clone(),
        }
    }

    pub fn ring(&self) -> Limits {
        Limits { records: self.stream.max_records, bytes: self.stream.max_bytes }
    }

    pub fn readers(&self) -> StreamConfig {
        StreamConfig {
            slow_after: self.stream.slow_after.into(),
            heartbeat: self.stream.heartbeat.into(),
            max_readers: self.stream.max_readers,
            max_readers_per_address: self.stream.max_readers_per_address,
        }
    }

    /// Keys in which `new` differs and that need a restart.
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let fixed = [
            ("listen", self.listen != new.listen),
            ("web", self.web != new.web),
            ("node", self.node != new.node),
            ("ingest", self.ingest != new.ingest),
            ("state_dir", self.state_dir != new.state_dir),
            ("stream", self.stream != new.stream),
        ];
        fixed.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: &str = r#"
listen: ":9765"
ingest: {socket: /run/stepwatch/ingest.sock}     # datagrams at ingest.dgram beside it
state_dir: /var/lib/stepwatch-exporter           # tail offsets, kmsg position
sources:
  - tail: {path: /logs/run.log, format: auto, run: llama-70b}
collectors:
  gpu: {enabled: true}                           # one key a collector
"#;

    #[test]
    fn mistakes_that_parse_are_shown_where_they_are() {
        let text =
            "state_dir: ''\nruns: {max_runs: 0}\nsources:\n  - tail: {path: /x.log, format: megatrn}\n";
        let shown = Config::parse("exporter.yml", text).unwrap_err().to_string();
        for part in ["exporter.yml:1:", "exporter.yml:2:", "exporter.yml:4:", "^", "megatron"] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
    }

    #[test]
    fn what_would_leave_a_run_without_mfu_is_a_mistake() {
        let text = "gpu: {name: H1000}\nsources:\n  - tail: {path: /x.log, dtype: bf17, gpu: H100}\n  - tail: {path: /x.log, gpu: B2000}\n";
        insta::assert_snapshot!(Config::parse("x.yml", text).unwrap_err().to_string(), @r#"
        x.yml:3:33: sources[0].tail.dtype: unknown number format "bf17"; known are bf16, bfloat16, fp16, float16, fp8, float8, tf32, fp32, float32
          |
        3 |   - tail: {path: /x.log, dtype: bf17, gpu: H100}
          |                                 ^^^^
        x.yml:4:31: sources[1].tail.gpu: no peak is known of "B2000", so there would be no MFU; known are H100, H200, B200, GB200, A100, L40S, MI300X, TPU v5p and others of their kind
          |
        4 |   - tail: {path: /x.log, gpu: B2000}
          |                               ^^^^^
        x.yml:1:13: gpu.name: no peak is known of "H1000", so there would be no MFU; known are H100, H200, B200, GB200, A100, L40S, MI300X, TPU v5p and others of their kind
          |
        1 | gpu: {name: H1000}
          |             ^^^^^
        "#);
        let good = "gpu: {name: H100 SXM}\nsources:\n  - tail: {path: /x.log, dtype: torch.bfloat16, gpu: NVIDIA H100 80GB HBM3}\n";
        assert!(Config::parse("x.yml", good).is_ok());
    }

    #[test]
    fn the_smallest_useful_file_and_the_empty_one() {
        let config = Config::parse("x.yml", SMALLEST).unwrap();
        assert_eq!(config.sources.len(), 1);
        let empty = Config::parse("x.yml", "").unwrap();
        assert_eq!(empty, Config::default());
        assert_eq!(
            Config { sources: Vec::new(), ingest: IngestConfig::default(), ..config },
            Config::default(),
            "the file says nothing that is not the default"
        );
    }

    #[test]
    fn mistakes_are_pointed_at() {
        let error = |text: &str| Config::parse("x.yml", text).unwrap_err().to_string();
        insta::assert_snapshot!(error("runs:\n  forget_afer: 5m\n"));
        insta::assert_snapshot!(error("mfu: {convention: palm}\n"));
        insta::assert_snapshot!(error(
            "exposition: {interval: 0s, max_series: 0}\ncollectors: {nic: {exclude: ['a[']}}\n"
        ));
    }

    #[test]
    fn no_collector_spins() {
        for entry in crate::collectors::COLLECTORS {
            let text = format!("collectors: {{{}: {{interval: 0s}}}}", entry.name);
            let error = Config::parse("x.yml", &text).unwrap_err().to_string();
            let explained = error.contains("must be at least 10ms");
            // The collector has no interval of its own, because it follows events.
            assert!(explained || error.contains("unknown field"), "{}: {error}", entry.name);
        }
        let counters = Config::parse("x.yml", "collectors: {rdma: {counters_interval: 0s}}").unwrap_err();
        assert!(counters.to_string().contains("must be at least 10ms"), "{counters}");
    }

    #[test]
    fn a_pattern_that_is_none_is_refused() {
        for setting in [
            "affinity: {exclude",
            "disk: {types",
            "disk: {include",
            "disk: {exclude",
            "job: {cgroups",
            "mounts: {types",
            "mounts: {include",
            "mounts: {exclude",
            "nic: {exclude",
            "nic: {ethtool",
            "pci: {exclude",
            "rdma: {include",
            "rdma: {exclude",
            "rdma: {management",
        ] {
            let text = format!("collectors: {{{setting}: ['a[']}}}}");
            let error = Config::parse("x.yml", &text).unwrap_err().to_string();
            assert!(error.contains("\"a[\" is not a pattern"), "{setting}: {error}");
        }
        let nested = "collectors:\n  job:\n    kubelet:\n      resources: ['a[']\n";
        let error = Config::parse("x.yml", nested).unwrap_err().to_string();
        assert!(error.starts_with("x.yml:4:") && error.contains("\"a[\" is not a pattern"), "{error}");
        assert!(error.contains('^'), "{error}");
    }

    #[test]
    fn what_takes_a_restart_is_named() {
        let a = Config::default();
        let b = Config::parse("x", "listen: ':1'\nstate_dir: /x\nruns: {max_runs: 2}").unwrap();
        assert_eq!(a.needs_restart(&b), ["listen", "state_dir"]);
        assert!(a.needs_restart(&a).is_empty());
    }
}

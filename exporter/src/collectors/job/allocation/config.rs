//! Settings of the collector of jobs.

use std::path::PathBuf;

use stepwatch_kit::config::Period;

use super::groups;
use crate::collector::Mistakes;
use crate::family_filter::Metrics;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// Patterns of the control groups of Slurm's jobs. They end in `job_*`, and are relative to the
    /// cgroup mount, or absolute.
    pub cgroups: Vec<String>,
    /// The directory in which a prolog writes one file for each GPU, named by its index in
    /// `nvidia-smi`, with one job a line.
    pub prolog_dir: Option<PathBuf>,
    pub kubelet: KubeletConfig,
    /// The most jobs at a time; further ones are left out and counted.
    pub max_jobs: usize,
}

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KubeletConfig {
    pub enabled: bool,
    pub socket: PathBuf,
    pub timeout: Period,
    /// Patterns with `*` of the resources that are GPUs.
    pub resources: Vec<String>,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default()
            .period("interval", self.interval)
            .period("kubelet.timeout", self.kubelet.timeout)
            .patterns("cgroups", &self.cgroups)
            .patterns("kubelet.resources", &self.kubelet.resources)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(15),
            cgroups: groups::PATTERNS.iter().map(|p| (*p).to_owned()).collect(),
            prolog_dir: None,
            kubelet: KubeletConfig::default(),
            max_jobs: 128,
        }
    }
}

impl Default for KubeletConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            socket: "/var/lib/kubelet/pod-resources/kubelet.sock".into(),
            timeout: Period::secs(5),
            resources: vec!["nvidia.com/*".into()],
        }
    }
}

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
    /// Which families are on the page.
    pub metrics: Metrics,
    pub interval: Period,
    /// Control groups of jobs of Slurm; patterns that end in `job_*`, relative to where control
    /// groups are mounted, or absolute.
    pub cgroups: Vec<String>,
    /// Directory in which a prolog leaves one file for each GPU, called by its index in
    /// `nvidia-smi`, with one job a line.
    pub prolog_dir: Option<PathBuf>,
    pub kubelet: KubeletConfig,
    /// Jobs at a time; those beyond are left out and counted.
    pub max_jobs: usize,
}

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KubeletConfig {
    pub enabled: bool,
    pub socket: PathBuf,
    pub timeout: Period,
    /// Names of resources that are GPUs; `*` stands for anything.
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

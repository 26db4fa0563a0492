//! The state of one node: what its exporter reports of its accelerators, links and kernel, whether
//! or not a run uses it. Detectors are in [`crate::detectors`].

pub(crate) mod conditions;
mod gpus;
mod jobs;
mod liveness;
pub(crate) mod messages;
pub mod peer_metrics;
pub(crate) mod starts;
mod state;
pub(crate) mod throughput;
pub(crate) mod words;

pub use conditions::{Condition, Conditions, Key, Level, Topic};
pub use gpus::{Gpu, Gpus, Reading, UsedEnergy};
pub(crate) use jobs::{Claim, Held};
pub use peer_metrics::PeerMetrics;
pub use state::NodeState;

use stepwatch_model::time::{Span, Ts};

/// A node that has not reported for this long is forgotten.
pub(crate) const FORGET_AFTER: Span = Span::secs(7 * 86_400);

/// A run with ranks on the node.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    pub run: String,
    /// The number of its ranks on this node.
    pub ranks: u32,
    pub last_step: Option<i64>,
    /// When its last step arrived, by our clock.
    pub last_progress: Ts,
    /// When it failed, if it has just done so.
    pub ended: Option<Ts>,
    /// The median over its other nodes of how close their GPUs come to their highest clock under
    /// load, and how many these are.
    pub peer_clock: Option<(f64, usize)>,
    /// XIDs that this node and other nodes of the run had within a minute, of those that a program
    /// can cause by itself.
    pub fails_alike: Vec<i64>,
}

/// A job that holds GPUs, on all of its nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct JobAt {
    /// `job 4711 of bob on slurm`.
    pub text: String,
    pub nodes: usize,
    pub gpus: usize,
    pub activity: Activity,
    /// A run of the job is live.
    pub is_live: bool,
    /// If none is live: the run of the job that ended last, and when.
    pub ended: Option<(String, Ts)>,
    /// When a node last joined or left it, as far as that was observed.
    pub changed_at: Ts,
}

/// Whether GPUs compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Some of the GPUs are not read.
    Unknown,
    /// At least one of the GPUs computes.
    Computes,
    Idle {
        since: Ts,
    },
}

/// The runs that use the node. The first is the one that is most likely hit first.
pub type Tenants<'a> = &'a [Tenant];

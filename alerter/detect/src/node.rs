//! What is known of one node: what its exporter reports of its accelerators, links and kernel,
//! whether or not a run uses it. Detectors are not here, but in [`crate::detectors`].

pub(crate) mod conditions;
mod gpus;
mod jobs;
mod liveness;
pub(crate) mod messages;
pub mod peer_metrics;
mod state;
pub(crate) mod words;

pub use conditions::{Condition, Conditions, Key, Level, Topic};
pub use gpus::{Gpu, Gpus, Reading, UsedEnergy};
pub(crate) use jobs::Claim;
pub use peer_metrics::PeerMetrics;
pub use state::NodeState;

use stepwatch_model::time::{Span, Ts};

/// A node that nothing was heard of for so long is gone.
pub(crate) const FORGET_AFTER: Span = Span::secs(7 * 86_400);

/// A run with ranks on the node.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    pub run: String,
    /// Ranks that it has here.
    pub ranks: u32,
    pub last_step: Option<i64>,
    /// When it last moved, by our clock.
    pub last_progress: Ts,
    /// When it failed, if it has just done so.
    pub ended: Option<Ts>,
    /// The median over its other nodes of how close their GPUs come to their highest clock under
    /// load, and how many these are.
    pub peer_clock: Option<(f64, usize)>,
    /// XIDs that both this node and others of the run had within a minute, of those that a program
    /// can bring upon itself.
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
    /// A run of it goes on.
    pub is_live: bool,
    /// Otherwise, its run that ended last, and when.
    pub ended: Option<(String, Ts)>,
    /// When a node came to it or left it last, as far as that was seen.
    pub changed_at: Ts,
}

/// Whether GPUs compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Some of them are not read.
    Unknown,
    /// At least one of them does.
    Computes,
    Idle {
        since: Ts,
    },
}

/// The runs that use the node, the one that most likely is hit first.
pub type Tenants<'a> = &'a [Tenant];

//! One node: what its exporter says of its accelerators, links and kernel, whether or not a run
//! uses it, and its detectors.

mod conditions;
mod gpus;
mod jobs;
mod liveness;
pub mod peer_metrics;
mod state;
pub(crate) mod words;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stepwatch_wire::{Event, Kind as EventKind};

pub use conditions::{Condition, Conditions, Key, Level, Topic};
pub use gpus::{Gpu, Gpus, Reading};
pub use peer_metrics::{PeerMetrics, Peers};
pub use state::NodeState;

use crate::detector::{DetectorsConfig, NodeDetectors};
use crate::run::Setup;
use stepwatch_model::Finding;
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

/// The runs that use the node, the one that most likely is hit first.
pub type Tenants<'a> = &'a [Tenant];

/// What came of an event.
#[derive(Debug, Default, PartialEq)]
pub struct News {
    /// A condition began, ended or got worse; a job came or went.
    pub changed: bool,
    /// A GPU was read.
    pub reading: bool,
    /// A setup that is now known in full.
    pub setup: Option<(Option<String>, Setup)>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Node {
    pub state: NodeState,
    detectors: NodeDetectors,
}

impl Node {
    pub fn new(name: &str, now: Ts, config: &Arc<DetectorsConfig>) -> Self {
        Self { state: NodeState::new(name, now), detectors: NodeDetectors::new(config) }
    }

    /// Takes one event of the node itself; `peers`: what is usual in the run that uses it.
    pub fn event(&mut self, now: Ts, e: &Event, peers: Option<&Peers>) -> News {
        let f = &mut self.state;
        f.heard(now, e);
        match (e.kind, e.name.as_deref()) {
            (EventKind::Xid | EventKind::Link | EventKind::Hw, _) => {
                let gpu = f.gpus.named(e);
                News { changed: f.conditions.take(now, e, &gpu), ..News::default() }
            }
            (EventKind::Health, Some("gpu")) => {
                let reading = f.gpus.take(now, e);
                let loaded = e
                    .extra
                    .get("gpu")
                    .and_then(stepwatch_wire::Value::as_str)
                    .and_then(|uuid| f.gpus.get(uuid));
                let loaded = loaded.is_some_and(|gpu| gpu.last.is_loaded());
                f.vitals.take(now, e, loaded, peers);
                News { reading, ..News::default() }
            }
            (EventKind::Health, Some("rdma")) => {
                News { reading: f.vitals.take(now, e, false, peers), ..News::default() }
            }
            (EventKind::Health, Some("job")) => News { changed: f.jobs.take(now, e), ..News::default() },
            (EventKind::Health, Some("config")) => News { setup: f.set_up(e), ..News::default() },
            _ => News::default(),
        }
    }

    pub fn configure(&mut self, config: &Arc<DetectorsConfig>) {
        self.detectors.configure(config);
    }

    /// Lets the detectors look.
    pub fn look(&mut self, now: Ts, tenants: Tenants<'_>, out: &mut Vec<Finding>) {
        self.state.age(now);
        self.detectors.look(now, &self.state, tenants, out);
    }

    pub fn deadline(&self) -> Ts {
        let forget = self.state.last_heard + FORGET_AFTER;
        self.detectors.deadline(&self.state).map_or(forget, |at| at.min(forget))
    }
}

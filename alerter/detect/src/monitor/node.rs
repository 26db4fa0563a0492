//! A watched node: its state and its detectors.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stepwatch_wire::names::{ras, rendezvous};
use stepwatch_wire::{Event, Kind as EventKind};

use crate::detector::NodeAt;
use crate::detectors::{DetectorsConfig, NodeDetectors};
use crate::node::messages::Messages;
use crate::node::{FORGET_AFTER, JobAt, NodeState, Tenants, UsedEnergy};
use crate::run::{Peers, Setup};
use stepwatch_model::Finding;
use stepwatch_model::time::Ts;

/// The effect of an event.
#[derive(Debug, Default, PartialEq)]
pub struct News {
    /// A condition began, ended or got worse; a job came or went.
    pub changed: bool,
    /// A GPU was read.
    pub reading: bool,
    /// The energy that the GPU used.
    pub used: Option<UsedEnergy>,
    /// A setup that is now complete.
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

    /// Handles an event of the node itself. `peers` is what is usual in the run that uses it.
    pub fn event(&mut self, now: Ts, e: &Event, peers: Option<&Peers>) -> News {
        let f = &mut self.state;
        f.heard(now, e);
        match (e.kind, e.name.as_deref()) {
            _ if Messages::is_one(e) => {
                f.messages.take(now, e);
                News::default()
            }
            (EventKind::Xid | EventKind::Link | EventKind::Hw, _) => {
                let gpu = f.gpus.named(e);
                News { changed: f.conditions.take(now, e, &gpu), ..News::default() }
            }
            (EventKind::Health, Some("gpu")) => {
                let reading = f.gpus.take(now, e);
                let used = f.gpus.meter(now, e);
                let loaded = e
                    .extra
                    .get("gpu")
                    .and_then(stepwatch_wire::Value::as_str)
                    .and_then(|uuid| f.gpus.get(uuid));
                let loaded = loaded.is_some_and(|gpu| gpu.last.is_loaded());
                f.peer_metrics.take(now, e, loaded, peers);
                News { reading, used, ..News::default() }
            }
            (EventKind::Health, Some("nic" | "disk")) => {
                f.throughput.take(now, e);
                News::default()
            }
            (EventKind::Health, Some("rdma")) => {
                f.throughput.take(now, e);
                News { reading: f.peer_metrics.take(now, e, false, peers), ..News::default() }
            }
            (EventKind::Health, Some("job")) => News { changed: f.jobs.take(now, e), ..News::default() },
            (EventKind::Health, Some(rendezvous::NAME | ras::NAME)) => {
                f.starts.take(now, e);
                News::default()
            }
            (EventKind::Health, Some("config")) => News { setup: f.set_up(e), ..News::default() },
            _ => News::default(),
        }
    }

    pub fn configure(&mut self, config: &Arc<DetectorsConfig>) {
        self.detectors.configure(config);
    }

    /// Runs the detectors.
    pub fn look(&mut self, now: Ts, tenants: Tenants<'_>, jobs: Option<&[JobAt]>, out: &mut Vec<Finding>) {
        self.state.age(now);
        let dollars_per_gpu_hour = self.detectors.dollars_per_gpu_hour();
        let view = NodeAt { now, node: &self.state, tenants, jobs, dollars_per_gpu_hour };
        self.detectors.look(view, out);
    }

    pub fn deadline(&self) -> Ts {
        let forget = self.state.last_heard + FORGET_AFTER;
        let due = [self.detectors.deadline(&self.state), self.state.messages.deadline()];
        due.into_iter().flatten().fold(forget, Ts::min)
    }
}

//! Detects a GPU or a port whose readings differ from those of the other nodes of its run: slower
//! clocks, a lower power limit or link speed, a higher temperature, more errors.
//!
//! [`crate::node::peer_metrics`] compares each reading with the median of the peers at that moment,
//! in robust standard deviations, and adds up the excess ([`crate::stats::drift`]). It takes about
//! six readings far out, or many that are out a little, and an excess that matters: 5 % of a clock,
//! 12 °C, five times the rate of errors at which one begins to look. A deviation that all devices
//! share is none.
//!
//! The finding warns early, and explains a slow run; the run that becomes slow is what pages. A
//! ticket at most.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::detector::{NodeAt, NodeDetector};
use crate::node::peer_metrics::Outlier;
use crate::node::{NodeState, words};
use stepwatch_model::time::Ts;
use stepwatch_model::{Change, Fact, Finding, Kind, Severity, Suspect, Target, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Sum of sigmas beyond 4, of 4 a reading at most, from which a reading is out of line. The
    /// default is the engineering limit of [`crate::stats::drift`].
    pub h: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, h: 24.0 }
    }
}

/// The most outliers named one by one.
const NAMED: usize = 3;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Peer {
    readings: u64,
    /// Device, and the reading that was reported as out of line.
    reported: BTreeSet<(String, String)>,
}

/// `GPU 3 (GPU-2f3c…)`, `mlx5_0/1`.
fn target(f: &NodeState, device: &str) -> Target {
    if device.starts_with("GPU-") {
        words::gpu_of(f, device, "")
    } else {
        Target::Link { node: f.name.clone(), name: device.to_owned(), medium: String::new() }
    }
}

pub(crate) fn suspect(f: &NodeState, o: &Outlier<'_>) -> Suspect {
    Suspect::new(target(f, o.device), o.seen())
}

fn report(view: NodeAt<'_>, out: &[Outlier<'_>]) -> Option<Finding> {
    let f = view.node;
    let worst = out.iter().max_by(|a, b| a.sign.drift.level().total_cmp(&b.sign.drift.level()))?;
    let mut v = view.finding(Kind::Peer, "peers", Change::Raise, Severity::Ticket);
    (v.value, v.expected) = (worst.sign.drift.excess(), 0.0);
    v.score = worst.sign.drift.level();
    let device = target(f, worst.device);
    v.why = clause!(
        "{device} of {node}: {seen}",
        device = Fact::Device(device.clone()),
        node = f.name.clone(),
        seen = &worst.seen(),
    )
    .into();
    v.why.name(device);
    if out.len() > 1 {
        v.why.add(clause!("{more} more readings of the node are out of line", more = out.len() - 1));
    }
    v.why.add(words::hit(view.now, view.node, view.tenants));
    v.suspects = out.iter().take(NAMED).map(|o| suspect(f, o)).collect();
    Some(v)
}

impl NodeDetector for Peer {
    type Config = Config;

    fn look(&mut self, c: &Config, view: NodeAt<'_>, out: &mut Vec<Finding>) {
        let NodeAt { now, node: f, tenants, .. } = view;
        let compared = !tenants.is_empty() || self.reported.is_empty();
        if !c.enabled || compared && self.readings == f.peer_metrics.readings {
            return;
        }
        self.readings = f.peer_metrics.readings;
        let key = |o: &Outlier<'_>| (o.device.to_owned(), o.peer_metric.words.to_owned());
        let far: Vec<Outlier<'_>> = f.peer_metrics.outliers().collect();
        let found: Vec<Outlier<'_>> = far
            .into_iter()
            .filter(|o| !tenants.is_empty() && f.peer_metrics.is_there(o.device))
            .filter(|o| {
                let far = o.sign.drift.sum() >= c.h && o.is_still();
                far && o.is_fresh(now) || self.reported.contains(&key(o))
            })
            .collect();
        let news = found.iter().any(|o| !self.reported.contains(&key(o)));
        let had = !self.reported.is_empty();
        if found.is_empty() && !had {
            return;
        }
        let had_reported = core::mem::replace(&mut self.reported, found.iter().map(key).collect());
        if news {
            out.extend(report(view, &found));
        } else if had && found.is_empty() {
            let mut v = view.finding(Kind::Peer, "peers", Change::Clear, Severity::Info);
            let gone = had_reported.iter().find(|(device, _)| !f.peer_metrics.is_there(device));
            v.why = match gone {
                _ if tenants.is_empty() => clause!(
                    "no run uses {node} any more: what it reads has no peers, and was not mended",
                    node = f.name.clone(),
                ),
                Some((device, _)) => words::not_there(f, target(f, device)),
                None => clause!("{node} reads as its peers do again", node = f.name.clone()),
            }
            .into();
            if let Some((device, _)) = gone.filter(|_| !tenants.is_empty()) {
                let read = f.peer_metrics.devices.get(device).map_or(now, |d| d.at);
                (v.change, v.ts) = (Change::Lapse, read);
            }
            out.push(v);
        }
    }

    fn deadline(&self, _: &Config, _: &NodeState) -> Option<Ts> {
        None
    }
}

//! The state of a node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::{Event, Value};

use super::conditions::Conditions;
use super::gpus::Gpus;
use super::jobs::Jobs;
use super::liveness::Liveness;
use super::messages::Messages;
use super::peer_metrics::PeerMetrics;
use super::starts::Starts;
use super::throughput::Throughput;
use crate::run::Setup;
use stepwatch_model::time::Ts;

/// The most keys kept of a setup.
const MAX_KEYS: usize = 256;
/// The most setups kept: that of the node, and those of the runs that it sees.
const MAX_SETUPS: usize = 8;
/// Fields of an event that are not keys of the setup.
const NO_KEYS: [&str; 4] = ["fingerprint", "part", "parts", "again"];

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeState {
    pub name: String,
    /// When the last event of the node itself arrived, by our clock.
    pub last_heard: Ts,
    pub(crate) heard: Liveness,
    /// When it was last stored.
    pub(crate) kept_at: Ts,
    pub conditions: Conditions,
    pub gpus: Gpus,
    /// The readings of its GPUs and ports, compared with the other nodes of the run.
    pub peer_metrics: PeerMetrics,
    /// How full its interfaces and disks are.
    pub(crate) throughput: Throughput,
    pub jobs: Jobs,
    /// Kernel messages that match no known pattern.
    pub(crate) messages: Messages,
    /// Runs that start on it.
    #[serde(skip)]
    pub(crate) starts: Starts,
    /// Setups by the run whose configuration they are; that of the node has an empty name.
    setups: BTreeMap<String, Assembly>,
}

/// A setup that is assembled from its parts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Assembly {
    setup: Setup,
    parts: Vec<u32>,
    whole: bool,
}

impl NodeState {
    pub fn new(name: &str, now: Ts) -> Self {
        Self {
            name: name.to_owned(),
            last_heard: now,
            heard: Liveness::default(),
            kept_at: now,
            conditions: Conditions::default(),
            gpus: Gpus::default(),
            peer_metrics: PeerMetrics::default(),
            throughput: Throughput::default(),
            jobs: Jobs::default(),
            messages: Messages::default(),
            starts: Starts::default(),
            setups: BTreeMap::new(),
        }
    }

    pub(crate) fn heard(&mut self, now: Ts, e: &Event) {
        self.last_heard = now;
        self.heard.hear(now);
        self.conditions.life(e.cursor.as_ref().map(|c| c.boot.as_str()), now);
        self.gpus.learn(e);
    }

    /// Ends or forgets what the node stopped publishing.
    pub(crate) fn age(&mut self, now: Ts) {
        self.conditions.age(now, &self.heard);
        self.messages.forget(now);
        self.jobs.age(self.conditions.born(), &self.heard);
    }

    /// Adds a part of a setup. Returns the setup when it is complete and new.
    pub(crate) fn set_up(&mut self, e: &Event) -> Option<(Option<String>, Setup)> {
        let fingerprint = e.extra.get("fingerprint").and_then(Value::as_str)?;
        let run = e.run.clone().unwrap_or_default();
        if !self.setups.contains_key(&run) && self.setups.len() >= MAX_SETUPS {
            let oldest = self.setups.keys().find(|name| !name.is_empty()).cloned();
            self.setups.remove(&oldest?);
        }
        let a = self.setups.entry(run.clone()).or_default();
        if a.setup.fingerprint != fingerprint {
            let setup =
                Setup { of_run: !run.is_empty(), fingerprint: fingerprint.to_owned(), keys: BTreeMap::new() };
            *a = Assembly { setup, ..Assembly::default() };
        }
        if a.whole {
            return None;
        }
        let number = |key: &str| e.extra.get(key).and_then(Value::as_f64).map_or(1, |n| n as u32);
        let part = number("part");
        if !a.parts.contains(&part) {
            a.parts.push(part);
        }
        for (key, value) in e.extra.iter().filter(|(key, _)| !NO_KEYS.contains(&key.as_str())) {
            if a.setup.keys.len() < MAX_KEYS {
                a.setup.keys.insert(key.clone(), plain(value));
            }
        }
        a.whole = a.parts.len() >= number("parts").max(1) as usize;
        a.whole.then(|| (Some(run).filter(|run| !run.is_empty()), a.setup.clone()))
    }

    /// The setup of the node, and those of a run's configuration as this node sees it, as far as
    /// they are known in full.
    pub(crate) fn setups_for<'a>(&'a self, run: &'a str) -> impl Iterator<Item = &'a Setup> {
        ["", run].into_iter().filter_map(|name| self.setups.get(name)).filter(|a| a.whole).map(|a| &a.setup)
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        other => {
            let mut text = String::new();
            other.write(&mut text);
            text
        }
    }
}

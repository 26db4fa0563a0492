//! The stored form of the monitor: a part for each run, node and source, among others.

use std::sync::Arc;

use stepwatch_model::Scope;
use stepwatch_model::stored::{StatePart, decode, encode};
use stepwatch_model::time::Ts;

use super::node::Node;
use super::run::Run;
use super::{Key, Monitor, run_deadline};
use crate::batches::Batches;
use crate::detectors::DetectorsConfig;
use crate::run::RunHour;

impl Monitor {
    /// The parts of the state that changed since the last call. They must be stored in one
    /// transaction with their findings.
    pub fn take_dirty(&mut self) -> Vec<StatePart> {
        let dirty = core::mem::take(&mut self.dirty);
        for key in &dirty {
            if let Key::Run(run) = key {
                if let Some(run) = self.runs.get_mut(run) {
                    run.noted.dirty = false;
                    let (hours, name) = (run.state.ledger.take_hours(), &run.state.name);
                    self.hours.extend(hours.into_iter().map(|hour| RunHour { run: name.clone(), hour }));
                }
            }
        }
        dirty.into_iter().map(|key| (key.name(), self.part(&key))).collect()
    }

    /// The accounts of complete hours. They must be stored in the transaction of the parts of the
    /// last `take_dirty`, which do not contain them any more. A later account of the same hour
    /// replaces it.
    pub fn take_hours(&mut self) -> Vec<RunHour> {
        core::mem::take(&mut self.hours)
    }

    fn part(&self, key: &Key) -> Option<Vec<u8>> {
        match key {
            Key::Batches => encode(&self.batches),
            Key::Node(name) => self.nodes.get(name).and_then(encode),
            Key::Run(name) => self.runs.get(name).and_then(encode),
            Key::Source(name) => self.sources.get(name).and_then(encode),
            Key::Baseline(key) => self.baselines.get(key).and_then(encode),
            Key::Series(chunk) => self.series.part(*chunk).as_ref().and_then(encode),
            Key::SeriesSweep => None,
            Key::KeptAccounts(run) => self.kept_accounts.get(run).and_then(encode),
            Key::Fleet => encode(&self.fleet),
            Key::GoodSetup(run) => self.good_setups.get(run).and_then(encode),
            Key::KeptSetup(run) => self.kept_setups.get(run).and_then(encode),
        }
    }

    /// Whether a part of this name is one of the monitor's.
    pub fn is_part(name: &str) -> bool {
        Key::parse(name).is_some()
    }

    /// Rebuilds a monitor from stored parts, exactly as it was. The second value names the parts
    /// that were left out because they are damaged or of another version.
    pub fn restore(
        config: Arc<DetectorsConfig>,
        parts: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> (Self, Vec<String>) {
        let mut monitor = Self::new(config);
        let mut unusable = Vec::new();
        for (name, bytes) in parts {
            if monitor.take_back(&name, &bytes).is_none() {
                match Key::parse(&name) {
                    Some(Key::Run(run)) => drop(monitor.unread.insert(Scope::Run(run))),
                    Some(Key::Node(node)) => drop(monitor.unread.insert(Scope::Node(node))),
                    _ => {}
                }
                unusable.push(name);
            }
        }
        monitor.place_all();
        (monitor, unusable)
    }

    fn take_back(&mut self, name: &str, bytes: &[u8]) -> Option<()> {
        match Key::parse(name)? {
            Key::Batches => self.batches = decode::<Batches>(bytes)?,
            Key::Run(name) => {
                let mut run: Run = decode(bytes)?;
                run.configure(&self.config);
                self.timers.set(&Key::Run(name.clone()), run_deadline(&run));
                self.runs.insert(name, run);
            }
            Key::Node(name) => {
                let mut node: Node = decode(bytes)?;
                node.configure(&self.config);
                self.timers.set(&Key::Node(name.clone()), Some(node.deadline()));
                self.nodes.insert(name, node);
            }
            Key::Source(name) => drop(self.sources.insert(name, decode(bytes)?)),
            Key::Baseline(key) => drop(self.baselines.insert(key, decode(bytes)?)),
            Key::Series(_) => self.series.restore(bytes)?,
            Key::SeriesSweep => {}
            Key::KeptAccounts(run) => drop(self.kept_accounts.insert(run, decode(bytes)?)),
            Key::Fleet => self.fleet = decode(bytes)?,
            Key::GoodSetup(run) => drop(self.good_setups.insert(run, decode(bytes)?)),
            Key::KeptSetup(run) => drop(self.kept_setups.insert(run, decode(bytes)?)),
        }
        Some(())
    }

    /// Rebuilds the state that is not stored from the state that is.
    fn place_all(&mut self) {
        for (name, run) in &self.runs {
            for node in run.state.nodes.keys() {
                self.placement.came(name, node);
            }
        }
        for (name, source) in &self.sources {
            self.speakers.note(name, source);
        }
        self.count_ranks();
        for (name, node) in &self.nodes {
            self.placement.set_clock(name, node.state.gpus.loaded_clock("").map(|(clock, _)| clock));
            self.placement.set_jobs(Ts::default(), name, node.state.jobs.described().map(|(job, _)| job));
            self.fabric.note(&node.state);
            self.kernel_messages.note(&node.state);
        }
    }
}

impl Key {
    fn name(&self) -> String {
        match self {
            Self::Batches => "batches".into(),
            Self::Node(name) => format!("node/{name}"),
            Self::Run(name) => format!("run/{name}"),
            Self::Source(name) => format!("source/{name}"),
            Self::Baseline(key) => format!("baseline/{key}"),
            Self::Series(chunk) => format!("series/{chunk}"),
            Self::SeriesSweep => "series_sweep".into(),
            Self::KeptAccounts(run) => format!("accounts/{run}"),
            Self::Fleet => "fleet".into(),
            Self::GoodSetup(run) => format!("good/{run}"),
            Self::KeptSetup(run) => format!("setup/{run}"),
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Some(match name.split_once('/') {
            Some(("node", node)) => Self::Node(node.to_owned()),
            Some(("run", run)) => Self::Run(run.to_owned()),
            Some(("source", source)) => Self::Source(source.to_owned()),
            Some(("baseline", key)) => Self::Baseline(key.to_owned()),
            Some(("series", chunk)) => Self::Series(chunk.parse().ok()?),
            Some(("accounts", run)) => Self::KeptAccounts(run.to_owned()),
            Some(("good", run)) => Self::GoodSetup(run.to_owned()),
            Some(("setup", run)) => Self::KeptSetup(run.to_owned()),
            None if name == "batches" => Self::Batches,
            None if name == "fleet" => Self::Fleet,
            _ => return None,
        })
    }
}

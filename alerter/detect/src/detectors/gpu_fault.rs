//! Detects a failed GPU: an XID of the kernel log, a GPU that is gone, memory that cannot be
//! repaired.
//!
//! The severity of an XID, and the advice, come from the exporter's catalogue and are part of the
//! event. It pages only if a run has ranks on the node at that moment; on an idle node it is a
//! ticket, and a run that is placed there later is no news of it. The XIDs of one failure (79, the
//! 45s that clean up after it, the GPU that is gone) are one condition, named by the worst that no
//! other caused.
//!
//! XIDs that the application can cause by itself (the last column of `wire/src/xid.csv`) are notes,
//! whatever their level, because a debug session makes hundreds. One GPU on which several runs fail
//! with 13 or 31 is suspect: a ticket. Where another GPU of the run has the same within a minute,
//! it is the program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::conditions::{Incident, Remedy};
use stepwatch_wire::xid::{self, Fault};

use super::faults::{Faults, Sort};
use crate::detector::{NodeAt, NodeDetector};
use crate::node::{Condition, Key, Level, NodeState, Topic};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Action, Clause, Finding, Kind, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// How long an XID counts after it was last seen, if nothing has to be repaired.
    pub quiet_after: Span,
    /// How long an XID counts that asks for a reset, a reboot or an inspection of the hardware.
    pub repair_within: Span,
    /// The number of runs that must fail on one GPU within a day, by what is usually their own
    /// fault, before the GPU is suspect.
    pub suspect_runs: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, quiet_after: Span::secs(600), repair_within: Span::secs(3600), suspect_runs: 3 }
    }
}

/// The most runs kept for a GPU, and the most GPUs.
const MAX_RUNS: usize = 16;
const MAX_GPUS: usize = 64;
const DAY: Span = Span::secs(86_400);
/// A bug of a program hits its GPUs within this time of each other.
const ALIKE: Span = Span::secs(60);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GpuFault {
    faults: Faults,
    /// Runs that failed on each GPU, and when.
    failed: BTreeMap<String, BTreeMap<String, Ts>>,
    /// Runs that have just failed on a GPU, with the XID and the time: their other GPUs may still
    /// have the same.
    fresh: BTreeMap<(String, String), (i64, Ts)>,
}

struct Rules<'a> {
    config: &'a Config,
    of: &'a GpuFault,
}

/// The XIDs that a program or a faulty GPU can cause, one for each GPU that had one within
/// [`ALIKE`].
pub(crate) fn lately(now: Ts, f: &NodeState) -> Vec<i64> {
    let here = f.conditions.iter().filter(|(key, c)| is_either(key) && now - c.last <= ALIKE);
    here.map(|(key, _)| key.number).collect()
}

impl GpuFault {
    /// Records which runs fail on which GPU.
    fn count(&mut self, view: NodeAt<'_>) {
        let NodeAt { now, node: f, tenants, .. } = view;
        if let Some(tenant) = tenants.first() {
            for (key, _) in f.conditions.iter().filter(|(key, c)| is_either(key) && c.last == now) {
                if self.fresh.len() < MAX_GPUS {
                    let of = (key.place.clone(), tenant.run.clone());
                    self.fresh.entry(of).or_insert((key.number, now));
                }
            }
        }
        self.failed.retain(|_, runs| {
            runs.retain(|_, at| now - *at < DAY);
            !runs.is_empty()
        });
        let mut alone = Vec::new();
        self.fresh.retain(|(gpu, run), (number, at)| {
            let is_same = |key: &Key, c: &Condition| {
                let near = c.last - *at <= ALIKE && *at - c.last <= ALIKE;
                is_either(key) && key.number == *number && key.place != *gpu && near
            };
            let here = f.conditions.iter().any(|(key, c)| is_same(key, c));
            let alike = here || tenants.iter().any(|t| t.fails_alike.contains(number));
            let due = now - *at >= ALIKE;
            if due && !alike {
                alone.push((gpu.clone(), run.clone(), *at));
            }
            !due && !alike
        });
        for (gpu, run, at) in alone {
            if !self.failed.contains_key(&gpu) && self.failed.len() >= MAX_GPUS {
                continue;
            }
            let runs = self.failed.entry(gpu).or_default();
            if runs.len() < MAX_RUNS {
                runs.insert(run, at);
            }
        }
    }

    fn runs(&self, gpu: &str) -> u32 {
        self.failed.get(gpu).map_or(0, BTreeMap::len) as u32
    }
}

/// Who can cause the condition, if it is an XID.
fn fault(key: &Key) -> Option<Fault> {
    let is_xid = key.topic == Topic::Xid && key.name == "xid";
    is_xid.then(|| u32::try_from(key.number).ok()).flatten().map(|code| xid::find(code).fault)
}

fn is_either(key: &Key) -> bool {
    fault(key) == Some(Fault::Either)
}

impl Rules<'_> {
    fn is_suspect(&self, key: &Key) -> bool {
        is_either(key) && self.of.runs(&key.place) >= self.config.suspect_runs
    }
}

impl Sort for Rules<'_> {
    const KIND: Kind = Kind::GpuFault;
    const SIGNAL: &'static str = "gpu";

    fn is_ours(&self, key: &Key) -> bool {
        key.topic == Topic::Xid
            || key.topic == Topic::Hw && key.row().is_some_and(|row| row.incident == Incident::GpuFault)
    }

    fn severity(&self, view: NodeAt<'_>, key: &Key, c: &Condition) -> Severity {
        if matches!(fault(key), Some(Fault::Program | Fault::Either)) {
            return if self.is_suspect(key) { Severity::Ticket } else { Severity::Info };
        }
        match c.level {
            Level::Error if !view.tenants.is_empty() => Severity::Page,
            Level::Error | Level::Warn => Severity::Ticket,
            Level::Info => Severity::Info,
        }
    }

    fn rises_at(&self, key: &Key, _: &Condition) -> Option<Ts> {
        let fresh = || self.of.fresh.iter().filter(|((gpu, _), _)| *gpu == key.place);
        is_either(key).then(|| fresh().map(|(_, (_, at))| *at + ALIKE).min()).flatten()
    }

    fn advice(&self, key: &Key, _: &Condition) -> Option<Clause> {
        let runs = || self.of.runs(&key.place);
        let failed = || clause!("{runs} runs failed on it within a day: test the GPU", runs = runs());
        self.is_suspect(key).then(failed)
    }

    fn lasts(&self, _: &Key, c: &Condition) -> Span {
        match c.action {
            None | Some(Action::Known(Remedy::None | Remedy::RestartApp)) => self.config.quiet_after,
            Some(_) => self.config.repair_within,
        }
    }
}

impl NodeDetector for GpuFault {
    type Config = Config;

    fn look(&mut self, c: &Config, view: NodeAt<'_>, out: &mut Vec<Finding>) {
        if !c.enabled {
            return;
        }
        self.count(view);
        let mut faults = core::mem::take(&mut self.faults);
        faults.look(&Rules { config: c, of: self }, view, out);
        self.faults = faults;
    }

    fn deadline(&self, c: &Config, f: &NodeState) -> Option<Ts> {
        self.faults.deadline(&Rules { config: c, of: self }, f)
    }
}

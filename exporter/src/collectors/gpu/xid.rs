//! XID errors as NVML reports them, for nodes where the kernel log is not read: in a container
//! without the right to it, or if the collector of the log is disabled.
//!
//! This is second best: NVML gives no text, and no errors from before the request. Counts and
//! events are those that the log would have given.

use std::collections::{BTreeMap, BTreeSet};

use stepwatch_wire::names::hw;
use stepwatch_wire::{Event, Kind, Value};

use super::families::EVENT_FAILURES;
use crate::collector::Context;
use crate::collectors::kernel::{MIG_XIDS, XIDS, catalogue};
use crate::drops::Reason;
use crate::nvml::{Heard, Xid};
use crate::origin::Origin;
use crate::samples::Samples;

/// The most kinds of errors that are counted, of all GPUs together.
const MAX_KINDS: usize = 1024;

/// The errors since this exporter was started.
#[derive(Debug, Default)]
pub(super) struct Xids {
    /// The key is UUID and code.
    counts: BTreeMap<(String, u32), u64>,
    /// The key is UUID, GPU instance, compute instance and code.
    mig: BTreeMap<(String, u32, Option<u32>, u32), u64>,
    /// GPUs for which NVML delivers events.
    heard: BTreeSet<String>,
    /// How often waiting for events failed; `None` if events are not awaited.
    failures: Option<u64>,
}

impl Xids {
    pub(super) fn take(&mut self, cx: &Context<'_>, heard: Heard) {
        *self.failures.get_or_insert(0) += heard.failures;
        self.hear(heard.gpus.iter().map(|id| id.uuid.as_str()));
        self.report(cx, heard.xids);
    }

    pub(super) fn report(&mut self, cx: &Context<'_>, xids: Vec<Xid>) {
        for xid in xids {
            let Ok(code) = u32::try_from(xid.code) else { continue };
            let gpu = xid.gpu.as_ref().map(|id| id.uuid.clone()).unwrap_or_default();
            let mut fits = true;
            if let Some(instance) = xid.gpu_instance {
                fits &= count(&mut self.mig, (gpu.clone(), instance, xid.compute_instance, code));
            }
            fits &= count(&mut self.counts, (gpu, code));
            if !fits {
                cx.hub.drops().count(Reason::Conditions);
            }
            cx.hub.publish(Origin::Node, event(&xid, code));
        }
    }

    /// Adds the GPUs for which NVML delivers events.
    pub(super) fn hear<'a>(&mut self, gpus: impl Iterator<Item = &'a str>) {
        for gpu in gpus {
            if !self.heard.contains(gpu) {
                self.heard.insert(gpu.to_owned());
            }
        }
    }

    /// Writes the counts, from zero as those of the log, because `increase()` misses a first value
    /// above zero.
    pub(super) fn write(&self, out: &mut Samples) {
        out.maybe(&EVENT_FAILURES, &[], self.failures);
        let of = |gpu: &str, code| self.counts.get(&(gpu.to_owned(), code)).copied().unwrap_or_default();
        for gpu in &self.heard {
            catalogue::all()
                .iter()
                .for_each(|x| out.set(&XIDS, &[gpu, &x.code.to_string()], of(gpu, x.code)));
        }
        let other = |gpu: &String, code: u32| !self.heard.contains(gpu) || !catalogue::knows(code);
        for ((gpu, code), count) in self.counts.iter().filter(|((gpu, code), _)| other(gpu, *code)) {
            out.set(&XIDS, &[gpu, &code.to_string()], *count);
        }
        for ((gpu, gi, ci, code), count) in &self.mig {
            let ci = ci.map(|ci| ci.to_string()).unwrap_or_default();
            out.set(&MIG_XIDS, &[gpu, &gi.to_string(), &ci, &code.to_string()], *count);
        }
    }
}

/// Counts an error; false if there are too many kinds.
fn count<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K) -> bool {
    let fits = counts.len() < MAX_KINDS || counts.contains_key(&key);
    if fits {
        *counts.entry(key).or_default() += 1;
    }
    fits
}

fn event(xid: &Xid, code: u32) -> Event {
    let known = catalogue::find(code);
    let pci = xid.gpu.as_ref().map_or("", |id| &id.pci);
    let of = if pci.is_empty() { "a GPU".to_owned() } else { format!("GPU {pci}") };
    let mut event = Event {
        name: Some("xid".into()),
        code: Some(code.into()),
        level: Some(known.level.as_str().into()),
        text: Some(format!("XID {code} ({}) of {of}: {}", known.name, known.hint)),
        ..Event::new(Kind::Xid)
    };
    let gpu = xid.gpu.as_ref().map_or("", |id| &id.uuid);
    let (known_as, hint, action) = (known.name, known.hint, known.action.as_str());
    for (key, value) in
        [(hw::KNOWN_AS, known_as), (hw::HINT, hint), ("action", action), ("gpu", gpu), ("pci", pci)]
    {
        if !value.is_empty() {
            event.extra.insert(key.into(), Value::Text(value.into()));
        }
    }
    for (key, value) in [("gi", xid.gpu_instance), ("ci", xid.compute_instance)] {
        if let Some(value) = value {
            event.extra.insert(key.into(), Value::Number(value.into()));
        }
    }
    event
}

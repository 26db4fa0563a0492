//! XID errors as NVML tells of them, where the kernel's log cannot be read: in a container without the right to it.
//!
//! Second best: NVML has no text, and of a burst it tells the last one. What is counted and told is what the log would have given.

use std::collections::BTreeMap;

use stepwatch_wire::{Event, Kind, Value};

use crate::collector::Context;
use crate::collectors::kernel::{XIDS, catalogue};
use crate::drops::Reason;
use crate::hub::Origin;
use crate::nvml::Xid;
use crate::samples::Samples;

/// Kinds of errors, of all GPUs together, that are counted.
const MAX_KINDS: usize = 1024;

/// What was told since this exporter was started, by UUID and code.
#[derive(Debug, Default)]
pub(super) struct Xids(BTreeMap<(String, u32), u64>);

impl Xids {
    pub(super) fn tell(&mut self, cx: &Context<'_>, xids: Vec<Xid>) {
        for xid in xids {
            let Ok(code) = u32::try_from(xid.code) else { continue };
            let gpu = xid.gpu.as_ref().map(|id| id.uuid.clone()).unwrap_or_default();
            let key = (gpu, code);
            if self.0.len() < MAX_KINDS || self.0.contains_key(&key) {
                *self.0.entry(key).or_default() += 1;
            } else {
                cx.hub.drops().count(Reason::Conditions);
            }
            cx.hub.publish(Origin::Node, event(&xid, code));
        }
    }

    pub(super) fn write(&self, out: &mut Samples) {
        for ((gpu, code), count) in &self.0 {
            out.set(&XIDS, &[gpu, &code.to_string()], *count);
        }
    }
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
    for (key, value) in [("action", known.action), ("gpu", gpu), ("pci", pci)] {
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

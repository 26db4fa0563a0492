//! Detects GPUs that block their callers: one with a call that does not return, and one that is set
//! aside because it answers too slowly.
//!
//! Both are one condition of that GPU. It begins with the call, and ends when the whole GPU was
//! read without a slow call. A call about no single GPU concerns the driver, and so does its
//! condition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use super::events::{Subject, Watcher};
use super::pass::{GpuReading, Reading};
use crate::clock::unix_now;
use crate::collector::Context;
use crate::nvml::{Aside, Call, Identity};

const NAME: NodeCondition = NodeCondition::NvmlStuck;

/// The state of the driver's answers.
pub(super) struct Driver {
    /// The call that takes too long now.
    pub(super) call: Option<Call>,
    /// Whether the last answer came without a slow call about the driver as a whole.
    pub(super) quick: bool,
}

impl Watcher {
    pub(super) fn unresponsive(
        &mut self,
        cx: &Context<'_>,
        Driver { call, quick }: Driver,
        reading: Option<&Reading>,
        seen: &BTreeMap<String, Arc<Identity>>,
    ) {
        let of = call.and_then(|call| whose(call, reading, seen));
        self.driver(cx, call.filter(|_| of.is_none()), quick);
        if let (Some(call), Some(id)) = (call, of) {
            self.waits(cx, id, Some(&hanging(call)), true);
        }
        let Some(reading) = reading else { return };
        for gpu in reading.gpus.iter().filter(|gpu| of.is_none_or(|id| id.uuid != gpu.id.uuid)) {
            self.waits(cx, &gpu.id, gpu.aside.as_ref(), false);
        }
        // A GPU that hangs now may never have been read.
        let hangs = |uuid: &String| of.is_some_and(|id| id.uuid == *uuid);
        let read = |uuid: &String| reading.gpus.iter().any(|gpu| gpu.id.uuid == *uuid);
        let gone = |uuid: &String| !uuid.is_empty() && !hangs(uuid) && !read(uuid);
        for uuid in self.conditions.keys(NAME).into_iter().filter(gone) {
            let id = seen.get(&uuid).cloned();
            let id = id.unwrap_or_else(|| Arc::new(Identity { uuid, ..Identity::default() }));
            self.waits(cx, &id, None, false);
        }
    }

    /// Reports whether a GPU blocks its callers; `runs` means that the same call still runs.
    fn waits(&mut self, cx: &Context<'_>, id: &Identity, why: Option<&Aside>, runs: bool) {
        let key = (NAME.name(), id.uuid.clone());
        let since = match why {
            Some(_) => Some(*self.since.entry(key).or_insert_with(Instant::now)),
            None => self.since.remove(&key),
        };
        self.conditions.report(cx, NAME, &id.uuid, why.is_some(), || {
            let who = Subject::of_gpu(id, unix_now());
            let text = match why {
                Some(why) if runs => format!(
                    "{} does not answer: {} has not returned for {:.0} s; its values are absent, and no GPU is read until it does",
                    who.name,
                    why.function,
                    why.took.as_secs_f64()
                ),
                Some(why) => format!(
                    "{} answers too slowly: {}; its values are absent, and it is asked for a sign of life now and then",
                    who.name,
                    why.why()
                ),
                None => format!(
                    "{} answers as quickly as it should again, after {:.0} s",
                    who.name,
                    since.map_or(0.0, |since| since.elapsed().as_secs_f64())
                ),
            };
            let mut event = who.event(Kind::Hw, "error", text);
            if let Some(why) = why {
                event.extra.insert("function".into(), Value::Text(why.function.into()));
            }
            event
        });
    }

    /// Reports whether the driver as a whole answers.
    fn driver(&mut self, cx: &Context<'_>, call: Option<Call>, quick: bool) {
        self.stuck = call.or(self.stuck);
        let Some(stuck) = self.stuck else { return };
        let holds = call.is_some() || !quick;
        self.conditions.report(cx, NAME, "", holds, || {
            let text = if holds {
                let call = call.map_or_else(|| stuck.function.to_owned(), |call| call.to_string());
                format!("The NVIDIA driver does not answer: in {call}; values of the GPUs are absent until it does")
            } else {
                let seconds = stuck.since.elapsed().as_secs_f64();
                format!("The NVIDIA driver answers again, after {seconds:.0} s in {}", stuck.function)
            };
            let mut event = Event { level: Some("error".into()), text: Some(text), ..Event::new(Kind::Hw) };
            event.extra.insert("function".into(), Value::Text(stuck.function.into()));
            event
        });
        if !holds {
            self.stuck = None;
        }
    }
}

/// The GPU of a call, from the last reading or else from the saved ones.
pub(super) fn whose<'a>(
    call: Call,
    reading: Option<&'a Reading>,
    seen: &'a BTreeMap<String, Arc<Identity>>,
) -> Option<&'a Arc<Identity>> {
    let index = call.gpu?;
    let read = reading.into_iter().flat_map(|reading| &reading.gpus).map(|gpu: &GpuReading| &gpu.id);
    read.chain(seen.values()).find(|id| id.index == index)
}

/// A running call, as the reason for setting its GPU aside.
pub(super) fn hanging(call: Call) -> Aside {
    let took = call.since.elapsed();
    Aside { function: call.function, took, spent: took, since: unix_now() }
}

//! Which checkpoints a watcher of their directory has seen, who also says when one is removed.
//!
//! One that was removed is none to go back to, unless it is in another directory too, or the run
//! uploads its checkpoints: what is removed here may be elsewhere.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use stepwatch_model::fingerprint;
use stepwatch_wire::names::ckpt;
use stepwatch_wire::{CkptPhase, Event, Value};

use super::checkpoints::Checkpoints;
use super::stages::{Stage, StageReport};

/// The most checkpoints that are remembered: more than are named, in several directories.
const SEEN_KEPT: usize = 64;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct OnDisk {
    /// Steps and fingerprints of the paths, the one seen first in front.
    seen: VecDeque<(i64, u64)>,
    uploads: bool,
}

/// Whether a watcher says that a checkpoint was removed.
pub(crate) fn is_gone(e: &Event) -> bool {
    e.extra.get(ckpt::GONE) == Some(&Value::Bool(true))
}

fn place(e: &Event) -> u64 {
    let path = e.extra.get(ckpt::PATH).and_then(Value::as_str).unwrap_or_default();
    fingerprint(core::iter::once((ckpt::PATH, path)))
}

impl Checkpoints {
    /// Takes a report of a stage. Who sees a directory says how much room is left there.
    pub(crate) fn note_on_disk(&mut self, r: &StageReport, e: &Event) {
        if r.stage == Stage::Upload && !r.seen {
            self.on_disk.get_or_insert_default().uploads = true;
        }
        let watched = r.seen && r.phase == CkptPhase::End && e.extra.contains_key(ckpt::FREE_BYTES);
        let Some(step) = r.step.filter(|_| watched) else { return };
        let (seen, one) = (&mut self.on_disk.get_or_insert_default().seen, (step, place(e)));
        seen.retain(|had| *had != one);
        if seen.len() == SEEN_KEPT {
            seen.pop_front();
        }
        seen.push_back(one);
    }

    /// A watcher says that a checkpoint was removed.
    pub(crate) fn gone(&mut self, e: &Event) {
        let Some(step) = e.step else { return };
        if let Some(on_disk) = &mut self.on_disk {
            let one = (step, place(e));
            on_disk.seen.retain(|had| *had != one);
            if on_disk.uploads || on_disk.seen.iter().any(|(had, _)| *had == step) {
                return;
            }
        }
        self.removed(step);
    }

    /// The checkpoints that are on disk, as a watcher says.
    pub(crate) fn on_disk(&self) -> Vec<i64> {
        let is_seen = |step: &i64| {
            let on_disk = self.on_disk.as_deref();
            on_disk.is_some_and(|on_disk| on_disk.seen.iter().any(|(had, _)| had == step))
        };
        self.steps.iter().copied().filter(is_seen).collect()
    }
}

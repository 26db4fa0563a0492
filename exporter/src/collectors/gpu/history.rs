//! Saves which GPUs this node has had. So it is noticed if a GPU or the driver is missing after a
//! reboot, or if memory errors happened while the exporter was down.
//!
//! A replacement GPU takes the slot of the previous one. A GPU that has been missing for two weeks
//! counts as removed on purpose, because it was reported for long enough.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::collector::Context;
use crate::nvml::Identity;
use crate::persisted_state;

/// The name of the saved state.
const STATE_NAME: &str = "gpu";
const FORGET_SECONDS: f64 = 14.0 * 86_400.0;
/// Seconds between saves if only times have changed.
const SAVE_SECONDS: f64 = 600.0;
/// The most GPUs kept; no node has as many.
const MAX_REMEMBERED: usize = 64;

#[derive(Debug, Default)]
pub(super) struct GpuHistory {
    /// The key is the UUID.
    gpus: BTreeMap<String, Arc<Identity>>,
    /// The Unix time in seconds when each was last seen.
    seen_at: BTreeMap<String, f64>,
    /// The lifetime count of uncorrected memory errors of each.
    uncorrected: BTreeMap<String, f64>,
    saved_at: f64,
    /// Whether there is anything new to save.
    news: bool,
    failing: bool,
}

/// The saved facts about a GPU.
#[derive(Debug, Serialize, Deserialize)]
#[serde(default)]
struct Remembered {
    uuid: String,
    index: u32,
    name: String,
    pci: String,
    seen_at: f64,
    uncorrected: Option<f64>,
}

impl Default for Remembered {
    fn default() -> Self {
        let text = String::new;
        // A file without the time is old.
        Self {
            uuid: text(),
            index: 0,
            name: text(),
            pci: text(),
            seen_at: f64::NEG_INFINITY,
            uncorrected: None,
        }
    }
}

impl GpuHistory {
    pub(super) fn load(now: f64, cx: &Context<'_>) -> Self {
        let remembered: Vec<Remembered> = persisted_state::load(cx.roots.state.as_deref(), STATE_NAME);
        let mut known = Self { saved_at: now, ..Self::default() };
        let recent = |r: &Remembered| !r.uuid.is_empty() && now - r.seen_at < FORGET_SECONDS;
        for r in remembered.into_iter().filter(recent).take(MAX_REMEMBERED) {
            known.seen_at.insert(r.uuid.clone(), r.seen_at);
            known.uncorrected.extend(r.uncorrected.map(|errors| (r.uuid.clone(), errors)));
            let Remembered { uuid, index, name, pci, .. } = r;
            let id = Identity { index, uuid: uuid.clone(), name, pci, ..Identity::default() };
            known.gpus.insert(uuid, Arc::new(id));
        }
        known
    }

    pub(super) fn gpus(&self) -> &BTreeMap<String, Arc<Identity>> {
        &self.gpus
    }

    /// Records the GPUs that the driver lists at Unix time `now`.
    pub(super) fn see<'a>(
        &mut self,
        now: f64,
        cx: &Context<'_>,
        gpus: impl Iterator<Item = &'a Arc<Identity>>,
    ) {
        let before: Vec<String> = self.gpus.keys().cloned().collect();
        for id in gpus {
            let slot = |other: &Identity| other.pci == id.pci && !id.pci.is_empty() && other.uuid != id.uuid;
            self.gpus.retain(|_, other| !slot(other));
            // A GPU that was too slow to report its address has not moved.
            if !id.pci.is_empty() || !self.gpus.contains_key(&id.uuid) {
                self.gpus.insert(id.uuid.clone(), Arc::clone(id));
            }
            self.seen_at.insert(id.uuid.clone(), now);
        }
        self.seen_at.retain(|uuid, at| self.gpus.contains_key(uuid) && now - *at < FORGET_SECONDS);
        self.gpus.retain(|uuid, _| self.seen_at.contains_key(uuid));
        self.uncorrected.retain(|uuid, _| self.gpus.contains_key(uuid));
        self.news |= !self.gpus.keys().eq(&before);
        if self.news || !(0.0..SAVE_SECONDS).contains(&(now - self.saved_at)) {
            self.save(now, cx);
        }
    }

    /// Records the lifetime count of a GPU's uncorrected memory errors. Returns the previous count.
    pub(super) fn count(&mut self, uuid: &str, errors: f64) -> Option<f64> {
        let before = self.uncorrected.insert(uuid.to_owned(), errors);
        self.news |= before != Some(errors);
        before
    }

    fn save(&mut self, now: f64, cx: &Context<'_>) {
        (self.saved_at, self.news) = (now, false);
        let remembered: Vec<Remembered> = self
            .gpus
            .values()
            .map(|id| Remembered {
                uuid: id.uuid.clone(),
                index: id.index,
                name: id.name.clone(),
                pci: id.pci.clone(),
                seen_at: self.seen_at.get(&id.uuid).copied().unwrap_or(now),
                uncorrected: self.uncorrected.get(&id.uuid).copied(),
            })
            .collect();
        let saved = persisted_state::save(cx.roots.state.as_deref(), STATE_NAME, &remembered);
        if let Err(error) = &saved
            && !self.failing
        {
            tracing::warn!(%error, "cannot save which GPUs this node has; a restart will not know");
        }
        self.failing = saved.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roots::Roots;
    use crate::testing::Bench;

    fn gpu(index: u32, slot: u32) -> Arc<Identity> {
        let (uuid, pci) = (format!("GPU-{index}"), format!("0000:{slot}b:00.0"));
        Arc::new(Identity { index, uuid, pci, name: "NVIDIA H100".into(), ..Identity::default() })
    }

    fn uuids(known: &GpuHistory) -> Vec<&str> {
        known.gpus().keys().map(String::as_str).collect()
    }

    #[test]
    fn remembered_over_a_restart_until_exchanged_or_gone_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let bench = Bench::new(Roots { state: Some(dir.path().into()), ..Roots::default() });
        let cx = bench.context();
        let mut known = GpuHistory::load(0.0, &cx);
        known.see(0.0, &cx, [gpu(0, 1), gpu(1, 2)].iter());
        let mut known = GpuHistory::load(10.0, &cx);
        assert_eq!(uuids(&known), ["GPU-0", "GPU-1"]);
        assert_eq!((known.count("GPU-0", 3.0), known.count("GPU-0", 4.0)), (None, Some(3.0)));
        known.see(11.0, &cx, [gpu(0, 1), gpu(1, 2)].iter());
        let mut known = GpuHistory::load(12.0, &cx);
        assert_eq!((known.count("GPU-0", 4.0), known.count("GPU-1", 1.0)), (Some(4.0), None));
        assert_eq!(known.gpus()["GPU-1"].pci, "0000:2b:00.0");
        known.see(20.0, &cx, [gpu(0, 1)].iter());
        assert_eq!(uuids(&known), ["GPU-0", "GPU-1"], "it is gone, and not forgotten");
        known.see(30.0, &cx, [gpu(0, 1), gpu(7, 2)].iter());
        assert_eq!(uuids(&known), ["GPU-0", "GPU-7"], "another one has its place");
        assert_eq!(uuids(&GpuHistory::load(40.0, &cx)), ["GPU-0", "GPU-7"]);
        known.see(FORGET_SECONDS + 30.0, &cx, [gpu(0, 1)].iter());
        assert_eq!(uuids(&known), ["GPU-0"]);
        assert!(uuids(&GpuHistory::load(3.0 * FORGET_SECONDS, &cx)).is_empty());
    }
}

//! XID errors as NVML reports them, for nodes where the kernel's log is not read: one set of events
//! with every GPU that supports them.
//!
//! A set with a lost GPU may return only that error, whichever GPU is awaited. So its pending
//! events are read, and it is created anew without that GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwatch_sys::nvml::{Nvml as Library, XidEvent, XidEvents};

use super::gpu::{Gpu, Identity, REFUSED_FOR};

/// The most XID errors that are read at a time; others wait.
const MAX_XIDS: usize = 64;
/// The wait before a GPU that could not be registered is retried, because a failure costs the
/// others their set.
const DEAF_FOR: Duration = Duration::from_mins(10);
/// The wait before a GPU that refused is retried: it may have lacked a permission that was given
/// since.
const MUTE_FOR: Duration = REFUSED_FOR;

/// An XID error from NVML, which has no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xid {
    pub gpu: Option<Arc<Identity>>,
    pub code: u64,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
}

/// The received events.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    pub xids: Vec<Xid>,
    /// The registered GPUs.
    pub gpus: Vec<Arc<Identity>>,
    /// How many times listening failed since the last request, so that errors may have been missed.
    pub failures: u64,
}

#[derive(Debug, Default)]
pub(super) struct XidListener {
    set: Option<XidEvents>,
    /// Indices of the GPUs in the set.
    within: BTreeSet<u32>,
    /// GPUs without such events or without permission for them, and since when.
    mute: BTreeMap<u32, Instant>,
    /// GPUs that could not be registered, and since when.
    deaf: BTreeMap<u32, Instant>,
    failures: u64,
}

impl XidListener {
    /// The pending errors. Then registers all GPUs that can be registered.
    pub(super) fn hear(&mut self, library: &Library, gpus: &mut [Gpu]) -> Heard {
        let events = self.take();
        let lost = |gpu: &Gpu| gpu.lost && self.within.contains(&gpu.id.index);
        if gpus.iter().any(lost) {
            self.forget();
        }
        // A GPU that returns is registered anew.
        let gone: Vec<u32> = gpus.iter().filter(|gpu| gpu.lost).map(|gpu| gpu.id.index).collect();
        let now = Instant::now();
        self.forgive(&gone, now);
        self.listen(library, gpus, now);
        let gpus = &*gpus;
        let by_index =
            |index: u32| gpus.iter().find(|gpu| gpu.id.index == index).map(|gpu| Arc::clone(&gpu.id));
        let xid = |event: XidEvent| Xid {
            gpu: event.gpu.and_then(by_index),
            code: event.xid,
            gpu_instance: event.gpu_instance,
            compute_instance: event.compute_instance,
        };
        Heard {
            xids: events.into_iter().map(xid).collect(),
            gpus: self.within.iter().filter_map(|index| by_index(*index)).collect(),
            failures: std::mem::take(&mut self.failures),
        }
    }

    /// The pending events. A set that failed delivers no more, so it is dropped.
    fn take(&mut self) -> Vec<XidEvent> {
        let mut events = Vec::new();
        let Some(set) = &mut self.set else { return events };
        while events.len() < MAX_XIDS {
            match set.poll() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot listen for XID errors; trying anew");
                    self.failures += 1;
                    self.forget();
                    break;
                }
            }
        }
        events
    }

    fn forget(&mut self) {
        self.set = None;
        self.within.clear();
    }

    fn forgive(&mut self, gone: &[u32], now: Instant) {
        for (those, time) in [(&mut self.deaf, DEAF_FOR), (&mut self.mute, MUTE_FOR)] {
            those
                .retain(|index, since| !gone.contains(index) && now.saturating_duration_since(*since) < time);
        }
    }

    /// Registers the GPUs that are not in the set. One that cannot be registered must not hide the
    /// others.
    fn listen(&mut self, library: &Library, gpus: &mut [Gpu], now: Instant) {
        let Self { within, mute, deaf, .. } = self;
        let is_new =
            |index: &u32| !within.contains(index) && !mute.contains_key(index) && !deaf.contains_key(index);
        let mut new: Vec<u32> =
            gpus.iter().filter(|gpu| gpu.may_be_asked()).map(|gpu| gpu.id.index).filter(is_new).collect();
        while let Some(index) = new.pop() {
            let Some(set) = self.set(library) else { return };
            let Some(gpu) = gpus.iter_mut().find(|gpu| gpu.id.index == index) else { continue };
            match gpu.listen(set) {
                Ok(()) => _ = self.within.insert(index),
                Err(error) if error.unsupported() => _ = self.mute.insert(index, now),
                Err(error) => {
                    tracing::warn!(%error, gpu = index, "cannot listen to a GPU for XID errors");
                    self.failures += 1;
                    self.deaf.insert(index, now);
                    // The set may be unusable after that, so all others go into a new one.
                    new.extend(std::mem::take(&mut self.within));
                    self.set = None;
                }
            }
        }
    }

    fn set(&mut self, library: &Library) -> Option<&mut XidEvents> {
        if self.set.is_none() {
            match XidEvents::new(library) {
                Ok(set) => self.set = Some(set),
                Err(error) => self.failures += u64::from(!error.unsupported()),
            }
        }
        self.set.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_left_out_for_ever() {
        let now = Instant::now();
        let said = |times: [u32; 2]| times.map(|index| (index, now)).into();
        let left_out = |xid_listener: &XidListener| {
            [&xid_listener.mute, &xid_listener.deaf]
                .map(|those| those.keys().copied().collect::<Vec<_>>())
                .concat()
        };
        let mut xid_listener =
            XidListener { mute: said([0, 1]), deaf: said([2, 3]), ..XidListener::default() };
        xid_listener.forgive(&[], now);
        assert_eq!(left_out(&xid_listener), [0, 1, 2, 3]);
        xid_listener.forgive(&[1, 3], now);
        assert_eq!(left_out(&xid_listener), [0, 2], "what is lost may come back as another");
        xid_listener.forgive(&[], now + DEAF_FOR);
        assert_eq!(left_out(&xid_listener), [0]);
        xid_listener.forgive(&[], now + MUTE_FOR);
        assert!(left_out(&xid_listener).is_empty(), "it may be given the permission");
    }
}

//! Tracks the running NVML call, the cost of calls so far, and the recent cost of each GPU.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use stepwatch_sys::nvml::Watch;

use crate::lock::Locked as _;

/// The time that slow calls may take: initialising GPUs that no other process holds takes seconds
/// each.
pub(super) const SLOW_CALL: Duration = Duration::from_mins(1);
pub(super) const SLOW_CALLS: &[&str] =
    &["dlopen", "nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlShutdown"];
/// The longest call is the longest of the last one to two windows.
const WINDOW: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub function: &'static str,
    /// The index of its GPU, if it concerns one.
    pub gpu: Option<u32>,
    pub since: Instant,
}

/// The cost of one function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    pub calls: u64,
    pub total: Duration,
    /// The longest recent call.
    pub longest: Duration,
}

/// The time of one GPU's calls since counting began, without calls that may be slow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    pub total: Duration,
    pub longest: Duration,
    /// The function that took longest.
    pub function: &'static str,
}

/// Written by the calling thread, read by all.
#[derive(Debug, Default)]
pub(super) struct Heartbeat(Mutex<Beat>);

#[derive(Debug, Default)]
struct Beat {
    call: Option<Call>,
    /// The cost by function, whose number is limited by the code.
    costs: BTreeMap<&'static str, Tally>,
    window: Option<Instant>,
    /// The key is the index of the GPU; `None` is the driver as a whole.
    spent: BTreeMap<Option<u32>, Spent>,
    /// The most that one GPU took before its count was reset.
    most: Option<(u32, Spent)>,
}

#[derive(Debug, Default)]
struct Tally {
    calls: u64,
    total: Duration,
    longest: Duration,
    longest_before: Duration,
}

impl Heartbeat {
    pub(super) fn call(&self) -> Option<Call> {
        self.0.locked().call
    }

    pub(super) fn costs(&self) -> Vec<(&'static str, Cost)> {
        let cost =
            |t: &Tally| Cost { calls: t.calls, total: t.total, longest: t.longest.max(t.longest_before) };
        self.0.locked().costs.iter().map(|(function, tally)| (*function, cost(tally))).collect()
    }

    /// Resets the count of one GPU, or of the driver as a whole.
    pub(super) fn count_anew(&self, gpu: Option<u32>) {
        let mut beat = self.0.locked();
        let Some(spent) = beat.spent.remove(&gpu) else { return };
        if let Some(gpu) = gpu
            && beat.most.is_none_or(|(_, most)| most.total < spent.total)
        {
            beat.most = Some((gpu, spent));
        }
    }

    pub(super) fn spent(&self, gpu: Option<u32>) -> Spent {
        self.0.locked().spent.get(&gpu).copied().unwrap_or_default()
    }

    /// The GPU whose calls take longest, or took longest before a reset. The running call counts as
    /// if it had ended.
    pub(super) fn slowest(&self) -> Option<(u32, Spent)> {
        let beat = self.0.locked();
        let mut spent = beat.spent.clone();
        if let Some(call) = beat.call {
            spent.entry(call.gpu).or_default().add(call.function, call.since.elapsed());
        }
        let of_gpus = spent.into_iter().filter_map(|(gpu, spent)| Some((gpu?, spent)));
        of_gpus.chain(beat.most).max_by_key(|(_, spent)| spent.total)
    }
}

impl Spent {
    fn add(&mut self, function: &'static str, took: Duration) {
        if SLOW_CALLS.contains(&function) && took < SLOW_CALL {
            return;
        }
        self.total += took;
        if took >= self.longest {
            (self.longest, self.function) = (took, function);
        }
    }
}

impl Watch for Heartbeat {
    fn begins(&self, function: &'static str, gpu: Option<u32>) {
        self.0.locked().call = Some(Call { function, gpu, since: Instant::now() });
    }

    fn ends(&self) {
        let mut beat = self.0.locked();
        let Some(call) = beat.call.take() else { return };
        let (now, took) = (Instant::now(), call.since.elapsed());
        if now.duration_since(*beat.window.get_or_insert(now)) >= WINDOW {
            beat.window = Some(now);
            for tally in beat.costs.values_mut() {
                tally.longest_before = std::mem::take(&mut tally.longest);
            }
        }
        let tally = beat.costs.entry(call.function).or_default();
        tally.calls += 1;
        tally.total += took;
        tally.longest = tally.longest.max(took);
        beat.spent.entry(call.gpu).or_default().add(call.function, took);
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.function)?;
        if let Some(gpu) = self.gpu {
            write!(f, " of GPU {gpu}")?;
        }
        write!(f, " for {:.0} s", self.since.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_that_runs_and_what_those_before_it_cost() {
        let beat = Heartbeat::default();
        beat.begins("nvmlInit_v2", None);
        assert_eq!(beat.call().unwrap().function, "nvmlInit_v2");
        beat.ends();
        assert_eq!(beat.call(), None);
        for _ in 0..2 {
            beat.begins("nvmlDeviceGetUUID", Some(3));
            assert!(beat.call().unwrap().to_string().starts_with("nvmlDeviceGetUUID of GPU 3 for 0 s"));
            beat.ends();
        }
        let costs = beat.costs();
        assert_eq!(
            costs.iter().map(|(f, c)| (*f, c.calls)).collect::<Vec<_>>(),
            [("nvmlDeviceGetUUID", 2), ("nvmlInit_v2", 1)]
        );
        assert!(costs.iter().all(|(_, c)| c.longest <= c.total));
    }

    #[test]
    fn what_a_gpu_cost_without_what_may_take_long() {
        let mut spent = Spent::default();
        spent.add("nvmlDeviceGetHandleByIndex_v2", Duration::from_secs(9));
        assert_eq!(spent, Spent::default(), "bringing it up");
        spent.add("nvmlDeviceGetUUID", Duration::from_secs(2));
        spent.add("nvmlDeviceGetName", Duration::from_secs(1));
        let (total, longest) = (Duration::from_secs(3), Duration::from_secs(2));
        assert_eq!(spent, Spent { total, longest, function: "nvmlDeviceGetUUID" });
        spent.add("nvmlDeviceGetHandleByIndex_v2", SLOW_CALL);
        assert_eq!((spent.longest, spent.function), (SLOW_CALL, "nvmlDeviceGetHandleByIndex_v2"));
        let beat = Heartbeat::default();
        for gpu in [Some(1), Some(2), None] {
            beat.begins("nvmlDeviceGetUUID", gpu);
            assert_eq!(beat.spent(gpu).function, "");
            assert_eq!(beat.slowest().is_some(), gpu.is_some() || !beat.costs().is_empty(), "it still runs");
            beat.ends();
        }
        beat.count_anew(Some(1));
        assert_eq!(
            [Some(1), Some(2), None].map(|gpu| beat.spent(gpu).function),
            ["", "nvmlDeviceGetUUID", "nvmlDeviceGetUUID"]
        );
    }
}

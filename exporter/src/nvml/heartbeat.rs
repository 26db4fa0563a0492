//! Which call into NVML runs now, since when, and what calls have cost so far.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use stepwatch_sys::nvml::Watch;

use crate::lock::Locked as _;

/// The longest call is the longest of the last one to two of these.
const WINDOW: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub function: &'static str,
    /// Index of the GPU it is of, where it is of one.
    pub gpu: Option<u32>,
    pub since: Instant,
}

/// What one function has cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    pub calls: u64,
    pub total: Duration,
    /// Of late.
    pub longest: Duration,
}

/// Written by the thread that calls, read by everybody.
#[derive(Debug, Default)]
pub(super) struct Heartbeat(Mutex<Beat>);

#[derive(Debug, Default)]
struct Beat {
    call: Option<Call>,
    /// By function, of which there are as many as the code names.
    costs: BTreeMap<&'static str, Tally>,
    window: Option<Instant>,
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
}

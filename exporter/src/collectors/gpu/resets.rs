//! Detects GPUs that were reset, or whose driver was reloaded: earlier faults are over.
//!
//! The driver logs no line about it. But a GPU's energy counter restarts at that moment, so a value
//! that is lower than before shows a reset, and limits how long ago it was. A reset counts as
//! curing earlier faults. If it is dated too early, a cured fault stays; if too late, a real fault
//! is hidden. So every uncertainty makes it earlier.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use super::events::Subject;
use super::families::{ENERGY, LAST_RESET, PERSISTENCE, POWER};
use super::pass::{GpuReading, Reading};
use crate::collector::Context;
use crate::origin::Origin;
use crate::persisted_state;
use crate::roots::{self, Roots};
use crate::samples::Samples;

/// The name of the saved state.
const STATE_NAME: &str = "gpu-resets";
/// Seconds between saves of the counters: the disk with that state may hang, and block the GPUs'
/// values.
const SAVE_SECONDS: f64 = 600.0;
/// The most GPUs kept; no node has as many.
const MAX_GPUS: usize = 64;
/// The tolerance of the counter. A smaller decrease is no reset.
const INEXACT_JOULES: f64 = 100.0;
/// The uncertainty of a reset's time.
const INEXACT_SECONDS: f64 = 5.0;
/// The least power of an idle data-centre GPU that is worth a reset. Smaller GPUs draw less, which
/// is measured.
const IDLE_WATTS: f64 = 40.0;

#[derive(Debug, Default)]
pub(super) struct Resets {
    /// The key is the UUID.
    gpus: BTreeMap<String, Gpu>,
    loaded: bool,
    saved_at: f64,
    failing: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Gpu {
    uuid: String,
    /// The last value of the energy counter.
    joules: f64,
    /// The Unix time of that value.
    at: f64,
    /// Unix time of the last reset.
    reset_at: Option<f64>,
    /// The least power in watts that was measured.
    watts: Option<f64>,
    /// Whether the driver unloads the state of an unused GPU, and may restart the count after that.
    #[serde(skip)]
    let_go: bool,
    /// A lower value, which must grow before it counts: a failing GPU may report any value.
    #[serde(skip)]
    lower: Option<f64>,
}

impl Resets {
    /// Evaluates the counters, publishes the GPUs whose counter restarted, and writes the time of
    /// each reset.
    pub(super) fn look(&mut self, cx: &Context<'_>, reading: &Reading) {
        let state = cx.roots.state.as_deref();
        if !std::mem::replace(&mut self.loaded, true) {
            let remembered: Vec<Gpu> = persisted_state::load(state, STATE_NAME);
            let known = remembered.into_iter().filter(|gpu| gpu.at <= reading.time);
            self.gpus = known.take(MAX_GPUS).map(|gpu| (gpu.uuid.clone(), gpu)).collect();
        }
        let mut news = false;
        for read in reading.gpus.iter().filter(|gpu| gpu.is_read()) {
            let uuid = &read.id.uuid;
            let Some(joules) = read.fast.get(&ENERGY, &[uuid]) else { continue };
            let power = read.fast.get(&POWER, &[uuid]);
            if self.gpus.len() >= MAX_GPUS && !self.gpus.contains_key(uuid) {
                self.forget_oldest();
            }
            let new = || Gpu { uuid: uuid.clone(), joules, at: read.time, ..Gpu::default() };
            let gpu = self.gpus.entry(uuid.clone()).or_insert_with(new);
            if let Some(persistence) = read.slow.as_ref().and_then(|slow| slow.get(&PERSISTENCE, &[uuid])) {
                gpu.let_go = persistence == 0.0;
            }
            if let Some(at) = gpu.take(joules, power, read.time, || booted(cx.roots, read.time)) {
                news = true;
                cx.hub.publish(Origin::Node, reset(read, at));
            }
        }
        if news || !(0.0..SAVE_SECONDS).contains(&(reading.time - self.saved_at)) {
            self.saved_at = reading.time;
            let remembered: Vec<&Gpu> = self.gpus.values().collect();
            let saved = persisted_state::save(state, STATE_NAME, &remembered);
            if let Err(error) = &saved
                && !self.failing
            {
                tracing::warn!(%error, "cannot save when GPUs were reset; a restart will not know");
            }
            self.failing = saved.is_err();
        }
    }

    /// Writes the time of the last reset of a GPU that is present.
    pub(super) fn write(&self, uuid: &str, out: &mut Samples) {
        out.maybe(&LAST_RESET, &[uuid], self.gpus.get(uuid).and_then(|gpu| gpu.reset_at));
    }

    fn forget_oldest(&mut self) {
        let oldest = self.gpus.values().min_by(|a, b| a.at.total_cmp(&b.at));
        if let Some(uuid) = oldest.map(|gpu| gpu.uuid.clone()) {
            self.gpus.remove(&uuid);
        }
    }
}

impl Gpu {
    /// The Unix time of the reset, if the counter has restarted.
    fn take(
        &mut self,
        joules: f64,
        power: Option<f64>,
        time: f64,
        booted: impl Fn() -> Option<f64>,
    ) -> Option<f64> {
        if let Some(power) = power.filter(|watts| *watts >= 1.0) {
            self.watts = Some(self.watts.map_or(power, |least| least.min(power)));
        }
        if joules + INEXACT_JOULES >= self.joules {
            (self.joules, self.at, self.lower) = (self.joules.max(joules), time, None);
            return None;
        }
        if self.lower.is_none_or(|lower| joules <= lower) {
            self.lower = Some(joules);
            return None;
        }
        // The longest time in which this energy can have been used.
        let seconds = joules / self.watts.map_or(IDLE_WATTS, |watts| watts.min(IDLE_WATTS));
        let estimated = (time - seconds - INEXACT_SECONDS).max(self.at);
        // A boot restarts the counter, and it is unknown whether it restarted again later.
        let reset_at =
            booted().filter(|booted| *booted > self.at).map_or(estimated, |booted| booted.min(estimated));
        (self.joules, self.at, self.lower) = (joules, time, None);
        if self.let_go {
            return None;
        }
        self.reset_at = Some(reset_at);
        self.reset_at
    }
}

/// The Unix time of the boot.
fn booted(roots: &Roots, now: f64) -> Option<f64> {
    let uptime: f64 = roots::read(&roots.proc("uptime"))?.split(' ').next()?.parse().ok()?;
    Some(now - uptime)
}

/// The event of a reset. It has the time of the reset, which may be long ago: later faults are not
/// over.
fn reset(gpu: &GpuReading, at: f64) -> Event {
    let who = Subject::of_gpu(&gpu.id, at);
    let mut event =
        who.event(Kind::Hw, "info", format!("{} was reset, or its driver was loaded anew", who.name));
    event.name = Some(NodeCondition::GpuReset.name().into());
    event.code = Some(1);
    event.extra.insert("once".into(), Value::Bool(true));
    event
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read, reading};
    use super::*;
    use crate::roots::Roots;
    use crate::testing::Bench;

    /// The times of the tests are after this one.
    const START: f64 = 1_700_000_000.0;

    /// A pass over a node with one GPU that reports this energy and power at this time.
    fn look(resets: &mut Resets, bench: &Bench, time: f64, joules: Option<f64>, watts: f64) -> Option<f64> {
        let mut gpu = read(0);
        let time = START + time;
        gpu.time = time;
        gpu.fast.maybe(&ENERGY, &["GPU-0"], joules);
        gpu.fast.set(&POWER, &["GPU-0"], watts);
        resets.look(&bench.context(), &Reading { time, ..reading(vec![gpu]) });
        let mut out = Samples::default();
        resets.write("GPU-0", &mut out);
        out.get(&LAST_RESET, &["GPU-0"]).map(|at| at - START)
    }

    fn remembering() -> (tempfile::TempDir, Bench) {
        let dir = tempfile::tempdir().unwrap();
        let roots =
            Roots { state: Some(dir.path().into()), procfs: dir.path().join("proc"), ..Roots::default() };
        std::fs::create_dir(&roots.procfs).unwrap();
        (dir, Bench::new(roots))
    }

    fn boot(dir: &tempfile::TempDir, uptime: f64) {
        std::fs::write(dir.path().join("proc/uptime"), format!("{uptime} 12.3\n")).unwrap();
    }

    #[test]
    fn a_counter_that_begins_anew_is_a_reset_once_it_grows() {
        let (_dir, bench) = remembering();
        let resets = &mut Resets::default();
        assert_eq!(look(resets, &bench, 1000.0, Some(5e6), 700.0), None);
        assert_eq!(look(resets, &bench, 1001.0, None, 700.0), None, "it does not answer");
        assert_eq!(look(resets, &bench, 1900.0, Some(0.0), 100.0), None, "zero joules mean nothing");
        assert_eq!(look(resets, &bench, 1901.0, Some(0.0), 100.0), None);
        assert!(bench.published().is_empty());
        let at = Some(1920.0 - 1500.0 / IDLE_WATTS - INEXACT_SECONDS);
        assert_eq!(look(resets, &bench, 1920.0, Some(1500.0), 100.0), at);
        let events = bench.published();
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].name.as_deref(), events[0].ts), (Some("gpu_reset"), at.map(|at| START + at)));
        assert_eq!(events[0].extra["gpu"], Value::Text("GPU-0".into()));
        assert_eq!(look(resets, &bench, 1921.0, Some(1600.0), 100.0), at);
        assert!(bench.published().is_empty(), "it was published before");
    }

    #[test]
    fn what_is_no_reset() {
        let (_dir, bench) = remembering();
        let resets = &mut Resets::default();
        for (time, joules) in
            [(1.0, 5e6), (2.0, 5e6 - 90.0), (3.0, 0.0), (4.0, 0.0), (5.0, 5e6 + 10.0), (6.0, 4e6)]
        {
            assert_eq!(look(resets, &bench, time, Some(joules), 100.0), None, "{time}");
        }
        assert_eq!(look(resets, &bench, 7.0, Some(5e6 + 20.0), 100.0), None, "it was a slip");
        assert!(bench.published().is_empty());
    }

    #[test]
    fn remembered_over_a_restart_and_found_after_a_pause() {
        let (_dir, bench) = remembering();
        look(&mut Resets::default(), &bench, 1000.0, Some(5e6), 100.0);
        let resets = &mut Resets::default();
        look(resets, &bench, 5000.0, Some(20_000.0), 100.0);
        let at = Some(5001.0 - 20_100.0 / IDLE_WATTS - INEXACT_SECONDS);
        assert_eq!(look(resets, &bench, 5001.0, Some(20_100.0), 100.0), at);
        let resets = &mut Resets::default();
        assert_eq!(look(resets, &bench, 5002.0, Some(20_200.0), 100.0), at);
        assert_eq!(bench.published().len(), 1);
    }

    /// The reset was at most 600 s ago, and the GPU idled for 500 of them.
    #[test]
    fn never_later_than_it_was_whatever_it_draws_now() {
        let (dir, bench) = remembering();
        let resets = &mut Resets::default();
        look(resets, &bench, 1000.0, Some(5e6), 75.0);
        look(resets, &bench, 4000.0, Some(75_850.0), 650.0);
        assert_eq!(look(resets, &bench, 4001.0, Some(76_500.0), 650.0), Some(4001.0 - 76_500.0 / 40.0 - 5.0));
        look(resets, &bench, 4100.0, Some(50_000.0), 10.0);
        assert_eq!(
            look(resets, &bench, 4101.0, Some(50_100.0), 10.0),
            Some(4001.0),
            "it was still well then"
        );

        boot(&dir, 600.0);
        look(resets, &bench, 5000.0, Some(1_000.0), 650.0);
        assert_eq!(
            look(resets, &bench, 5001.0, Some(1_650.0), 650.0),
            Some(4401.0),
            "the boot is what is known"
        );
        look(resets, &bench, 5050.0, Some(1_000.0), 40.0);
        assert_eq!(
            look(resets, &bench, 5051.0, Some(1_040.0), 40.0),
            Some(5001.0),
            "once more, before the eyes"
        );
    }

    #[test]
    fn a_driver_that_lets_go_of_idle_gpus_may_count_anew_without_a_reset() {
        let (_dir, bench) = remembering();
        let resets = &mut Resets::default();
        for (time, joules) in [(1000.0, 5e6), (2000.0, 10.0), (2001.0, 80.0), (2002.0, 150.0)] {
            let mut gpu = read(0);
            gpu.time = START + time;
            gpu.fast.set(&ENERGY, &["GPU-0"], joules);
            gpu.slow.get_or_insert_default().set(&PERSISTENCE, &["GPU-0"], 0u64);
            resets.look(&bench.context(), &Reading { time: START + time, ..reading(vec![gpu]) });
        }
        assert!(bench.published().is_empty());
        assert_eq!(look(resets, &bench, 2003.0, Some(220.0), 70.0), None);
    }

    #[test]
    fn only_so_many_are_remembered() {
        let (_dir, bench) = remembering();
        let mut resets = Resets::default();
        for index in 0..2 * MAX_GPUS as u32 {
            let mut gpu = read(index);
            gpu.time = 1000.0 + f64::from(index);
            gpu.fast.set(&ENERGY, &[&gpu.id.uuid], 1e6);
            resets.look(&bench.context(), &reading(vec![gpu]));
        }
        assert_eq!(resets.gpus.len(), MAX_GPUS);
        assert!(resets.gpus.contains_key("GPU-127") && !resets.gpus.contains_key("GPU-0"));
    }
}

//! The expected number of NVLinks that are up on a GPU: the configured one, or the most that a GPU
//! of its model in this node had. It is saved, so that links that are down after a reboot are
//! missed even if every GPU lacks the same ones.
//!
//! `events` publishes single links that go down while the exporter runs, and those that most other
//! GPUs have. A partitioned GPU is not checked: its instances use no NVLink, and its links may be
//! off.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use super::families::values_of;
use super::families::{EXPECTED_NVLINKS, MIG_INFO, NVLINK_UP};
use super::nvlink;
use super::pass::Reading;
use crate::collector::Context;
use crate::condition::Conditions;
use crate::link::pace::Pace;
use crate::nvml::Identity;
use crate::persisted_state;
use crate::samples::Samples;

/// The name of the saved state.
const STATE_NAME: &str = "nvlinks";
/// The most models of GPUs in one node.
const MAX_MODELS: usize = 16;
/// Links come up within this time after the driver is loaded and the fabric manager has started.
const MISSING_FOR: Duration = Duration::from_mins(1);
const MISSING: NodeCondition = NodeCondition::NvlinksMissing;

#[derive(Debug, Default)]
pub(super) struct ExpectedNvlinks {
    /// The configured number.
    given: Option<u32>,
    /// The most links that were up, by model.
    most: BTreeMap<String, Pace>,
    loaded: bool,
    failing: bool,
    conditions: Conditions,
    /// When each GPU began to have too few, by UUID.
    since: BTreeMap<String, Instant>,
}

impl ExpectedNvlinks {
    pub(super) fn new(given: Option<u32>) -> Self {
        Self { given, ..Self::default() }
    }

    /// Evaluates the values of the slow interval at Unix time `now`, and publishes missing links.
    pub(super) fn look(
        &mut self,
        now: f64,
        cx: &Context<'_>,
        reading: &Reading,
        slow: &BTreeMap<String, Samples>,
    ) {
        self.learn(now, cx, reading, slow);
        let usual = nvlink::usual(slow.values());
        for gpu in reading.gpus.iter().filter(|gpu| gpu.is_read()) {
            if let Some(slow) = slow.get(&gpu.id.uuid) {
                self.report(cx, &gpu.id, slow, &usual);
            }
        }
        self.since.retain(|uuid, _| slow.contains_key(uuid));
    }

    pub(super) fn write(&self, reading: &Reading, slow: &BTreeMap<String, Samples>, out: &mut Samples) {
        for gpu in reading.gpus.iter().filter(|gpu| gpu.is_read()) {
            let expected = slow.get(&gpu.id.uuid).and_then(|slow| self.expected(&gpu.id, slow));
            out.maybe(&EXPECTED_NVLINKS, &[&gpu.id.uuid], expected);
        }
    }

    /// The expected number; `None` for a GPU that never had a link, or is partitioned.
    fn expected(&self, id: &Identity, slow: &Samples) -> Option<f64> {
        let learned = || self.most.get(&id.name).map(Pace::best);
        let expected = self.given.map(f64::from).or_else(learned).filter(|links| *links > 0.0);
        expected.filter(|_| !partitioned(slow))
    }

    fn learn(&mut self, now: f64, cx: &Context<'_>, reading: &Reading, slow: &BTreeMap<String, Samples>) {
        if !std::mem::replace(&mut self.loaded, true) {
            self.most = persisted_state::load(cx.roots.state.as_deref(), STATE_NAME);
        }
        let before = self.most.clone();
        let mut most = BTreeMap::<&str, f64>::new();
        for gpu in reading.gpus.iter().filter(|gpu| gpu.is_read()) {
            let Some(slow) = slow.get(&gpu.id.uuid).filter(|slow| !partitioned(slow)) else { continue };
            if let Some(up) = up(slow) {
                let of_model = most.entry(&gpu.id.name).or_default();
                *of_model = of_model.max(up);
            }
        }
        for (model, up) in most {
            if self.most.len() < MAX_MODELS || self.most.contains_key(model) {
                self.most.entry(model.to_owned()).or_default().learn(now, up);
            }
        }
        if self.most == before {
            return;
        }
        let saved = persisted_state::save(cx.roots.state.as_deref(), STATE_NAME, &self.most);
        if let Err(error) = &saved
            && !self.failing
        {
            tracing::warn!(%error, "cannot save how many NVLinks the GPUs have; a restart will not know");
        }
        self.failing = saved.is_err();
    }

    fn report(&mut self, cx: &Context<'_>, id: &Identity, slow: &Samples, usual: &BTreeSet<String>) {
        let up = up(slow).unwrap_or(0.0);
        let expected = self.expected(id, slow).unwrap_or(0.0);
        let alone =
            values_of(slow, &NVLINK_UP).filter(|(labels, up)| *up == 0.0 && usual.contains(labels.get(1)));
        let missing = up + (alone.count() as f64) < expected;
        let since = missing.then(|| *self.since.entry(id.uuid.clone()).or_insert_with(Instant::now));
        if !missing {
            self.since.remove(&id.uuid);
        }
        let lasts = since.is_some_and(|since| since.elapsed() >= MISSING_FOR);
        self.conditions.report(cx, MISSING, &id.uuid, lasts, || {
            let Identity { index, uuid, pci, name, .. } = id;
            let who = format!("GPU {index} ({name}, {pci})");
            let text = if lasts {
                format!("{who} has {up:.0} NVLinks up, where {expected:.0} are expected")
            } else {
                format!("{who} lacks no NVLinks any more")
            };
            let mut event = Event { level: Some("warn".into()), text: Some(text), ..Event::new(Kind::Hw) };
            for (key, value) in [("gpu", uuid), ("pci", pci)] {
                event.extra.insert(key.into(), Value::Text(value.clone()));
            }
            event
        });
    }

    /// Moves all starts back in time, for tests.
    #[cfg(test)]
    fn age(&mut self) {
        self.since.values_mut().for_each(|since| *since -= MISSING_FOR);
    }
}

/// The number of links that are up; `None` for a GPU that reports no links.
fn up(slow: &Samples) -> Option<f64> {
    let up = |count: Option<f64>, (_, up): (_, f64)| Some(count.unwrap_or(0.0) + up);
    values_of(slow, &NVLINK_UP).fold(None, up)
}

fn partitioned(slow: &Samples) -> bool {
    values_of(slow, &MIG_INFO).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read, reading};
    use super::*;
    use crate::roots::Roots;
    use crate::testing::Bench;

    const DAY: f64 = 86_400.0;

    fn bench(dir: &tempfile::TempDir) -> Bench {
        Bench::new(Roots { state: Some(dir.path().into()), ..Roots::default() })
    }

    /// Four GPUs, each with this many of eighteen links up.
    fn gpus(up: u32) -> BTreeMap<String, Samples> {
        let of_gpu = |uuid: &str| {
            let mut slow = Samples::default();
            (0..18).for_each(|link| slow.set(&NVLINK_UP, &[uuid, &link.to_string()], link < up));
            slow
        };
        (0..4).map(|index| format!("GPU-{index}")).map(|uuid| (uuid.clone(), of_gpu(&uuid))).collect()
    }

    fn four() -> Reading {
        reading((0..4).map(read).collect())
    }

    fn expected(bundle: &ExpectedNvlinks, slow: &BTreeMap<String, Samples>) -> Option<f64> {
        let mut out = Samples::default();
        bundle.write(&four(), slow, &mut out);
        out.get(&EXPECTED_NVLINKS, &["GPU-1"])
    }

    #[test]
    fn links_that_all_gpus_lack_since_the_reboot_are_missed() {
        let dir = tempfile::tempdir().unwrap();
        let bench = bench(&dir);
        let mut bundle = ExpectedNvlinks::new(None);
        bundle.look(0.0, &bench.context(), &four(), &gpus(18));
        let mut bundle = ExpectedNvlinks::new(None);
        bundle.look(DAY, &bench.context(), &four(), &gpus(12));
        assert_eq!(expected(&bundle, &gpus(12)), Some(18.0));
        assert!(bench.published().is_empty(), "they may be coming up");
        bundle.age();
        bundle.look(DAY, &bench.context(), &four(), &gpus(12));
        let published = bench.published();
        assert_eq!((published.len(), published[1].name.as_deref()), (4, Some("nvlinks_missing")));
        assert_eq!(
            published[1].text.as_deref(),
            Some("GPU 1 (NVIDIA H100 80GB HBM3, 0000:1b:00.0) has 12 NVLinks up, where 18 are expected")
        );
        bundle.look(DAY, &bench.context(), &four(), &gpus(18));
        assert!(bench.published().iter().all(|e| e.code == Some(0)));
        // After more than two weeks, the lower number counts as intended.
        bundle.look(2.0 * DAY, &bench.context(), &four(), &gpus(12));
        bundle.look(17.0 * DAY, &bench.context(), &four(), &gpus(12));
        assert_eq!(expected(&bundle, &gpus(12)), Some(12.0));
    }

    #[test]
    fn what_is_given_is_expected_and_nothing_of_partitioned_gpus_or_those_without_links() {
        let bench = bench(&tempfile::tempdir().unwrap());
        let mut bundle = ExpectedNvlinks::new(None);
        let none = (0..4).map(|index| (format!("GPU-{index}"), Samples::default())).collect();
        bundle.look(0.0, &bench.context(), &four(), &none);
        assert_eq!(expected(&bundle, &none), None);
        let mut bundle = ExpectedNvlinks::new(Some(18));
        bundle.look(0.0, &bench.context(), &four(), &gpus(12));
        assert_eq!(expected(&bundle, &gpus(12)), Some(18.0));
        let mut slow = gpus(12);
        slow.get_mut("GPU-1").unwrap().set(&MIG_INFO, &["GPU-1", "1", "0", "1g.10gb", "MIG-1"], 1u64);
        assert_eq!(expected(&bundle, &slow), None);
    }

    #[test]
    fn a_gpu_that_lacks_links_of_the_others_is_reported_link_by_link() {
        let bench = bench(&tempfile::tempdir().unwrap());
        let mut bundle = ExpectedNvlinks::new(Some(18));
        let mut slow = gpus(18);
        slow.insert("GPU-1".into(), gpus(12).remove("GPU-1").unwrap());
        bundle.look(0.0, &bench.context(), &four(), &slow);
        bundle.age();
        bundle.look(0.0, &bench.context(), &four(), &slow);
        assert!(bench.published().is_empty());
    }
}

//! Detects NVLinks with errors: by the rate of each link's counters, and by its bit error ratio.
//!
//! The counters that indicate a fault differ by generation. On the fifth, one of the errors below
//! fails NVIDIA's own health check (NVIDIA/DCGM, `helper_health_check_nvlink5_error_counters` of
//! test_health.py). On earlier ones, replays are part of the protocol and only their rate matters.
//! A single recovery of a link is no error, but frequent recoveries indicate a bad link.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::families::{NVLINK_BER, NVLINK_ERRORS, NVLINK_RECOVERIES, NVLINK_UP, values_of};
use super::pass::{GpuReading, Reading};
use crate::collector::Context;
use crate::link::rates::{Limit, Rates};
use crate::link::{Level, Medium, Standing, State, Subject};
use crate::origin::Origin;
use crate::samples::Samples;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
/// The highest acceptable ratio of wrong symbols. IBTA sets this limit for a link, and NVIDIA's
/// ibdiagnet has it as its default.
pub(super) const MAX_BIT_ERROR_RATIO: f64 = 1e-12;
/// The most links kept: 64 GPUs with 36 each.
const MAX_LINKS: usize = 64 * 36;
/// The name under which recoveries of a link are limited, although they are no errors.
const RECOVERIES: &str = "link_recovery";

const CABLE: &str = "look at the connectors of the GPU and its baseboard or cable";
const LOST: &str = "packets were lost";

/// The kind of errors, the window in seconds, the most that are acceptable in it, and the meaning.
const LIMIT: &[(&str, f64, u64, &str)] = &[
    ("replay", 10.0 * MINUTE, 60, CABLE),
    ("recovery", 10.0 * MINUTE, 5, CABLE),
    // DCGM's limit is a hundred a second.
    ("crc", MINUTE, 6000, CABLE),
    ("crc_flit", MINUTE, 6000, CABLE),
    ("malformed_packet", HOUR, 0, LOST),
    ("buffer_overrun", HOUR, 0, LOST),
    ("receive", HOUR, 0, LOST),
    ("receive_general", HOUR, 0, LOST),
    ("receive_remote", HOUR, 0, "they were spoilt before they came over this link: look at its other end"),
    ("local_link_integrity", HOUR, 0, CABLE),
    ("link_recovery_failed", HOUR, 0, "the link went down and could not be trained again"),
    ("effective", HOUR, 0, "errors that the correction of the link left"),
    // NVSentinel's limit on InfiniBand, for a bit error ratio of 1e-12.
    ("symbol", HOUR, 120, CABLE),
    (RECOVERIES, HOUR, 5, "the link goes down for a moment and comes back"),
];

static LIMITS: LazyLock<Vec<Limit>> = LazyLock::new(|| {
    let limit = |&(kind, window, most, meaning): &(&str, f64, u64, &'static str)| {
        Limit::new(kind, window, most, Level::Warn, meaning)
    };
    LIMIT.iter().map(limit).collect()
});

#[derive(Debug, Default)]
pub(super) struct NvlinkErrors {
    /// The key is GPU and link.
    links: BTreeMap<(String, String), Link>,
}

#[derive(Debug, Default)]
struct Link {
    rates: Rates,
    standing: Standing,
}

impl NvlinkErrors {
    /// Evaluates the values of the slow interval at Unix time `now`, and publishes links that begin
    /// or cease to have errors.
    pub(super) fn look(
        &mut self,
        now: f64,
        cx: &Context<'_>,
        reading: &Reading,
        slow: &BTreeMap<String, Samples>,
    ) {
        let read = |gpu: &&GpuReading| gpu.is_read();
        for gpu in reading.gpus.iter().filter(read) {
            if let Some(slow) = slow.get(&gpu.id.uuid) {
                self.look_at(now, cx, gpu, slow);
            }
        }
        let there = |uuid: &str| reading.gpus.iter().any(|gpu| gpu.id.uuid == uuid);
        self.links.retain(|(uuid, _), _| there(uuid));
    }

    fn look_at(&mut self, now: f64, cx: &Context<'_>, gpu: &GpuReading, slow: &Samples) {
        for (labels, _) in values_of(slow, &NVLINK_UP) {
            let link = labels.get(1);
            let key = (gpu.id.uuid.clone(), link.to_owned());
            if self.links.len() >= MAX_LINKS && !self.links.contains_key(&key) {
                continue;
            }
            let known = self.links.entry(key).or_default();
            known.rates.take(now, &LIMITS, &counters(slow, link));
            let is = known.trouble(now, slow.get(&NVLINK_BER, &[&gpu.id.uuid, link]));
            let Some(change) = known.standing.report(now, State::Errors, is, "makes no errors any more")
            else {
                continue;
            };
            let name = format!("{}/nvlink{link}", gpu.id.uuid);
            let (uuid, pci) = (&gpu.id.uuid, &gpu.id.pci);
            let subject =
                Subject { medium: Medium::Nvlink, name: &name, netdev: "", pci, gpu: uuid, hint: "" };
            let mut event = subject.event(now, &change);
            let (index, model) = (gpu.id.index, &gpu.id.name);
            event.text = Some(format!("NVLink {link} of GPU {index} ({model}, {pci}) {}", change.text));
            cx.hub.publish(Origin::Node, event);
        }
    }
}

impl Link {
    /// The errors of the link now, and their level.
    fn trouble(&mut self, now: f64, bit_error_ratio: Option<f64>) -> Option<(Level, String)> {
        let excess = self.rates.excesses(now, &LIMITS);
        if let Some(excess) = excess.first() {
            return Some((excess.limit.level, excess.text()));
        }
        let ratio = bit_error_ratio.filter(|ratio| *ratio > MAX_BIT_ERROR_RATIO)?;
        let text = format!(
            "has errors: {ratio:e} of its symbols are wrong (a good link stays under {MAX_BIT_ERROR_RATIO:e}); {CABLE}"
        );
        Some((Level::Warn, text))
    }
}

/// The error counters of one link, by kind.
fn counters<'a>(slow: &'a Samples, link: &str) -> Vec<(&'a str, u64)> {
    let errors = values_of(slow, &NVLINK_ERRORS)
        .filter(|(labels, _)| labels.get(1) == link)
        .map(|(labels, count)| (labels.get(2), count as u64));
    let recoveries = values_of(slow, &NVLINK_RECOVERIES)
        .filter(|(labels, _)| labels.get(1) == link)
        .map(|(_, count)| (RECOVERIES, count as u64));
    errors.chain(recoveries).collect()
}

#[cfg(test)]
mod tests {
    use stepwatch_wire::{Event, Kind};

    use super::super::tests::{read, reading};
    use super::*;
    use crate::roots::Roots;
    use crate::testing::Bench;

    struct Stage {
        bench: Bench,
        errors: NvlinkErrors,
    }

    impl Stage {
        fn new() -> Self {
            Self { bench: Bench::new(Roots::default()), errors: NvlinkErrors::default() }
        }

        /// Evaluates these counts of link 30 of the first GPU at this time.
        fn look(&mut self, now: f64, write: impl FnOnce(&mut Samples)) -> Vec<Event> {
            let mut slow = Samples::default();
            slow.set(&NVLINK_UP, &["GPU-0", "30"], 1u64);
            write(&mut slow);
            let slow = BTreeMap::from([("GPU-0".to_owned(), slow)]);
            self.errors.look(now, &self.bench.context(), &reading(vec![read(0)]), &slow);
            self.bench.published()
        }

        fn count(&mut self, now: f64, kind: &str, count: u64) -> Vec<Event> {
            self.look(now, |slow| slow.set(&NVLINK_ERRORS, &["GPU-0", "30", kind], count))
        }
    }

    /// One of these errors fails the health check of NVIDIA/DCGM:
    /// `helper_health_check_nvlink5_error_counters` in testing/python3/tests/test_health.py.
    #[test]
    fn one_error_of_the_fifth_generation_is_one_too_many() {
        for kind in [
            "malformed_packet",
            "buffer_overrun",
            "receive",
            "receive_remote",
            "receive_general",
            "local_link_integrity",
            "link_recovery_failed",
            "effective",
        ] {
            let mut stage = Stage::new();
            assert!(stage.count(0.0, kind, 7).is_empty(), "what was there before is no news");
            assert!(stage.count(30.0, kind, 7).is_empty());
            let events = stage.count(60.0, kind, 8);
            let [event] = &events[..] else { panic!("{kind}: {events:?}") };
            assert_eq!((event.kind, event.name.as_deref()), (Kind::Link, Some("GPU-0/nvlink30")), "{kind}");
            assert_eq!((event.code, event.level.as_deref()), (Some(0), Some("warn")), "{kind}");
            assert_eq!(event.extra["state"].as_str(), Some("errors"));
            let text = event.text.as_deref().unwrap();
            let said = format!(
                "NVLink 30 of GPU 0 (NVIDIA H100 80GB HBM3, 0000:0b:00.0) has errors: {kind} rose by 1 within 60 min"
            );
            assert!(text.starts_with(&said), "{text}");
            assert!(stage.count(90.0, kind, 8).is_empty(), "said once");
            let events = stage.count(60.0 + HOUR, kind, 8);
            assert_eq!(events.iter().map(|e| e.code).collect::<Vec<_>>(), [Some(1)], "{kind}: it is over");
        }
    }

    #[test]
    fn a_link_that_recovers_is_no_error_until_it_does_so_again_and_again() {
        let mut stage = Stage::new();
        let mut recovered = |now: f64, count: u64| {
            stage.look(now, |slow| slow.set(&NVLINK_RECOVERIES, &["GPU-0", "30"], count)).len()
        };
        assert_eq!([recovered(0.0, 3), recovered(30.0, 4), recovered(60.0, 8)], [0, 0, 0]);
        assert_eq!(recovered(90.0, 9), 1, "six within an hour");
    }

    #[test]
    fn replays_are_part_of_the_protocol() {
        let mut stage = Stage::new();
        let counts: Vec<usize> =
            (0..8).map(|i| stage.count(f64::from(i) * 30.0, "replay", u64::from(i as u32)).len()).collect();
        assert_eq!(counts, [0; 8]);
        assert_eq!(stage.count(300.0, "replay", 100).len(), 1);
        assert!(stage.count(330.0, "transmit_discard", 1_000_000).is_empty(), "has no limit");
    }

    #[test]
    fn too_many_wrong_symbols() {
        let mut stage = Stage::new();
        let mut ratio = |now: f64, ratio: f64| {
            let events = stage.look(now, |slow| slow.set(&NVLINK_BER, &["GPU-0", "30"], ratio));
            events.iter().map(|e| e.text.clone().unwrap()).collect::<String>()
        };
        assert_eq!([ratio(0.0, 0.0), ratio(30.0, 1e-14)], ["", ""]);
        insta::assert_snapshot!(ratio(60.0, 3e-9), @"NVLink 30 of GPU 0 (NVIDIA H100 80GB HBM3, 0000:0b:00.0) has errors: 3e-9 of its symbols are wrong (a good link stays under 1e-12); look at the connectors of the GPU and its baseboard or cable");
        insta::assert_snapshot!(ratio(90.0, 1e-14), @"NVLink 30 of GPU 0 (NVIDIA H100 80GB HBM3, 0000:0b:00.0) makes no errors any more");
    }

    #[test]
    fn a_gpu_that_is_gone_is_forgotten() {
        let mut stage = Stage::new();
        stage.count(0.0, "effective", 0);
        assert_eq!(stage.errors.links.len(), 1);
        stage.errors.look(30.0, &stage.bench.context(), &reading(vec![read(1)]), &BTreeMap::new());
        assert!(stage.errors.links.is_empty());
    }
}

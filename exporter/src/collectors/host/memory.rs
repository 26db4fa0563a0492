//! Predicts when the node runs out of memory. A leaking data loader kills a rank only hours later,
//! and until then only the trend shows it.

use std::time::{Duration, Instant};

use stepwatch_kit::config::Period;
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::condition::Conditions;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::fill::{Fill, Rate};
use crate::link::Level;
use crate::roots::{self, Roots};
use crate::samples::Samples;

pub const ABOUT: &str = "when the memory of the node will be used up";
pub const NEEDS: &str = "/proc/meminfo; any user";
pub const COST: &str = "one small file";

pub static RATE: Family = Family::gauge(
    "kernel_memory_fill_bytes_per_second",
    "",
    &[],
    "How fast the available memory of the node is used up, over the window; negative when it is freed",
);
pub static FULL: Family = Family::gauge(
    "kernel_memory_full_seconds",
    "seconds",
    &[],
    "Time until the memory of the node is used up at the rate of the window; absent when it is not being used up",
);

pub static FAMILIES: &[&Family] = &[&RATE, &FULL];

/// The short window is one part in so many of the long one. It excludes growth at the start of a
/// run that has ended.
const SHORT: u32 = 6;
/// With a larger share of memory available, a node is not reported, however fast memory is used.
const PLENTY: f64 = 0.5;
/// A reported condition ends only when the memory would last this many times the horizon.
const HYSTERESIS: f64 = 1.5;
const GIB: f64 = (1u64 << 30) as f64;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// The window over which the rate is measured.
    pub window: Period,
    /// Memory that will be used up within this time is reported.
    pub horizon: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval).period("window", self.window)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(10),
            window: Period::secs(1800),
            horizon: Period::secs(1200),
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct MemoryReader {
    config: Config,
    long: Fill,
    short: Fill,
    conditions: Conditions,
}

impl MemoryReader {
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            long: Fill::default(),
            short: Fill::default(),
            conditions: Conditions::default(),
        }
    }

    fn pass(&mut self, cx: &Context<'_>, now: Instant, (total, available): (u64, u64), out: &mut Samples) {
        let used = total.saturating_sub(available);
        let window = Duration::from(self.config.window);
        let long = self.long.note(now, used, window);
        let short = self.short.note(now, used, window / SHORT);
        if let Some(rate) = long {
            out.set(&RATE, &[], rate.bytes_per_second);
            out.maybe(&FULL, &[], rate.lasts(available));
        }
        let trusted = |rate: Option<Rate>| rate.filter(|rate| rate.trusted)?.lasts(available);
        // Both windows must predict it, and the later time counts.
        let ends = trusted(long).zip(trusted(short)).map(|(long, short)| long.max(short));
        let held = self.conditions.holds(NodeCondition::MemoryFilling, "");
        let horizon = Duration::from(self.config.horizon).as_secs_f64() * if held { HYSTERESIS } else { 1.0 };
        let short_of_it = (available as f64) < total as f64 * PLENTY;
        let ends = ends.filter(|ends| short_of_it && *ends < horizon);
        let rate = long.map_or(0.0, |rate| rate.bytes_per_second);
        self.conditions.report(cx, NodeCondition::MemoryFilling, "", ends.is_some(), || {
            event(ends, available as f64, rate)
        });
    }
}

impl Collector for MemoryReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        Ok(match read(cx.roots) {
            Some((total, _)) => Support::Supported(format!("{:.0} GiB", total as f64 / GIB)),
            None => Support::Unsupported("/proc/meminfo does not say how much memory is available".into()),
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let Some(memory) = read(cx.roots) else {
            return Err(CollectError::Other("cannot read /proc/meminfo".into()));
        };
        self.pass(cx, Instant::now(), memory, out);
        Ok(())
    }
}

/// Total and available memory, in bytes.
fn read(roots: &Roots) -> Option<(u64, u64)> {
    let text = roots::read(&roots.proc("meminfo"))?;
    let kib = |key: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some((kib("MemTotal:")?.saturating_mul(1024), kib("MemAvailable:")?.saturating_mul(1024)))
}

fn event(ends: Option<f64>, available: f64, rate: f64) -> Event {
    let left = available / GIB;
    let text = match ends {
        Some(seconds) => format!(
            "the node is out of memory in {:.0} minutes at this rate: {left:.1} GiB are left, and {:.1} GiB a minute are used up",
            seconds / 60.0,
            rate * 60.0 / GIB
        ),
        None => format!("the memory of the node is not being used up any more: {left:.1} GiB are left"),
    };
    let mut event = Event {
        ts: Some(unix_now()),
        level: Some(Level::Warn.as_str().to_owned()),
        text: Some(text),
        ..Event::new(Kind::Hw)
    };
    event.extra.insert("bytes".into(), Value::Number(available));
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bench;

    const TOTAL: u64 = 1000 << 30;

    /// The events while this much memory is available, in GiB, at each minute.
    fn story(available: impl Fn(u64) -> u64, minutes: u64) -> Vec<(u64, i64, String)> {
        let bench = Bench::new(Roots::default());
        let mut reader = MemoryReader::new(&Config::default());
        let (start, mut said) = (Instant::now(), Vec::new());
        for minute in 0..minutes {
            let now = start + Duration::from_secs(minute * 60);
            let memory = (TOTAL, available(minute) << 30);
            reader.pass(&bench.context(), now, memory, &mut Samples::default());
            let events = bench.published().into_iter();
            said.extend(events.map(|e| (minute, e.code.unwrap(), e.text.unwrap())));
        }
        said
    }

    #[test]
    fn a_leak_is_reported_before_the_memory_is_used_up() {
        let said = story(|minute| 900 - 10 * minute, 75);
        let (minute, code, text) = &said[0];
        assert_eq!((*minute, *code), (71, 1), "19 minutes are left");
        let want = "the node is out of memory in 19 minutes at this rate: 190.0 GiB are left, and 10.0 GiB a minute are used up";
        assert_eq!(text, want);
        let said = story(|minute| if minute < 75 { 900 - 10 * minute } else { 800 }, 80);
        assert_eq!(
            said.iter().map(|(minute, code, _)| (*minute, *code)).collect::<Vec<_>>(),
            [(71, 1), (75, 0)]
        );
    }

    #[test]
    fn a_run_that_starts_is_no_leak() {
        let start = |minute: u64| 900u64.saturating_sub(100 * minute).max(100);
        assert_eq!(story(start, 120), []);
        // Nor is a job that fills memory periodically and frees it again.
        assert_eq!(story(|minute| if minute % 20 < 3 { 200 } else { 300 }, 240), []);
    }

    #[test]
    fn a_node() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { procfs: dir.path().into(), ..Roots::default() };
        assert_eq!(read(&roots), None);
        std::fs::write(
            dir.path().join("meminfo"),
            "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n",
        )
        .unwrap();
        assert_eq!(read(&roots), Some((1_024_000, 409_600)));
    }
}

//! The clock of the node: whether a daemon disciplines it, its possible error, and its clock
//! source.
//!
//! A node whose clock drifts writes logs that cannot be put in order, has its certificates refused,
//! and lines up wrongly with its peers. Only the kernel is queried, whose clock is set by chrony,
//! ntpd, timesyncd or a PTP daemon; no time server is queried.

use std::io;
use std::time::{Duration, Instant};

use stepwatch_kit::config::Period;
use stepwatch_sys::adjtimex::{self, Clock};
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::condition::Conditions;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::roots::{self, Roots};
use crate::samples::Samples;

pub const ABOUT: &str = "the clock: whether it is disciplined, and how far it may be off";
pub const NEEDS: &str = "the call adjtimex, which sets nothing; any user";
pub const COST: &str = "one call";

pub static SYNCED: Family = Family::gauge(
    "clock_synced",
    "",
    &[],
    "Whether the kernel reports that something disciplines its clock: a time daemon, or the host of a virtual machine; chrony without rtcsync does so without that report, and keeps the bound of the error low",
);
pub static OFFSET: Family = Family::gauge(
    "clock_offset_seconds",
    "seconds",
    &[],
    "What the time daemon found the clock to be off, and the kernel has yet to correct",
);
pub static MAX_ERROR: Family = Family::gauge(
    "clock_max_error_seconds",
    "seconds",
    &[],
    "Bound of the clock's error; it grows by half a millisecond a second while nothing disciplines the clock",
);
pub static ESTIMATED_ERROR: Family = Family::gauge(
    "clock_estimated_error_seconds",
    "seconds",
    &[],
    "The time daemon's estimate of the clock's error",
);
pub static FREQUENCY: Family = Family::gauge(
    "clock_frequency_adjustment_ratio",
    "ratio",
    &[],
    "How much faster than by itself the clock is made to run; more than 1.0005 or less than 0.9995 is a broken oscillator",
);
pub static TAI: Family = Family::gauge(
    "clock_tai_offset_seconds",
    "seconds",
    &[],
    "Difference of atomic time and the clock, if a daemon has set it",
);
pub static SOURCE: Family =
    Family::gauge("clock_source_info", "", &["source"], "What the kernel reads the time from; always 1");

pub static FAMILIES: &[&Family] =
    &[&SYNCED, &OFFSET, &MAX_ERROR, &ESTIMATED_ERROR, &FREQUENCY, &TAI, &SOURCE];

const UNSYNCED: NodeCondition = NodeCondition::ClockUnsynced;
/// The kernel raises the bound of the error by half a millisecond a second, from 16 s at boot. A
/// bound below this was set within the last 67 minutes. Daemons set it every 17 minutes at the
/// latest, unless they are configured to be slower.
const TENDED_SECONDS: f64 = 2.0;
/// If a daemon was seen to set the bound, the limit is twice the value before that, but at most
/// this.
const MAX_TENDED_SECONDS: f64 = 8.0;

/// Whether a daemon disciplines a clock that the kernel reports as undisciplined: chrony keeps that
/// flag set unless its configuration has `rtcsync`, and still keeps setting the bound of the error.
pub fn is_tended(max_error: f64) -> bool {
    max_error < TENDED_SECONDS
}

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// How long the clock must be undisciplined, or off by more than `max_offset`, to be reported.
    pub grace: Period,
    pub max_offset: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(10),
            grace: Period::secs(600),
            max_offset: Period::millis(100),
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(5) }
}

#[derive(Debug)]
pub struct ClockReader {
    config: Config,
    ask: fn() -> io::Result<Clock>,
    conditions: Conditions,
    /// Since when the clock has been undisciplined or too far off.
    since: Option<Instant>,
    /// The bound of the error at the last pass, and its value just before a daemon last set it.
    bound: Option<f64>,
    set_from: Option<f64>,
    /// Whether the clock is disciplined although the kernel does not report it.
    unreported: bool,
}

impl ClockReader {
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            ask: adjtimex::read,
            conditions: Conditions::default(),
            since: None,
            bound: None,
            set_from: None,
            unreported: false,
        }
    }

    /// Whether a daemon disciplines the clock, whatever the kernel reports.
    fn disciplined(&mut self, clock: &Clock) -> bool {
        let before = self.bound.replace(clock.max_error);
        if let Some(before) = before.filter(|b| clock.max_error < *b) {
            self.set_from = Some(before).filter(|b| *b * 2.0 <= MAX_TENDED_SECONDS);
        }
        let slow = self.set_from.is_some_and(|from| clock.max_error < from * 2.0);
        let unreported = !clock.synced && (is_tended(clock.max_error) || slow);
        if unreported && !self.unreported {
            tracing::info!(
                max_error = clock.max_error,
                "the kernel reports that nothing disciplines its clock, but something does: chrony without rtcsync?"
            );
        }
        self.unreported = unreported;
        clock.synced || unreported
    }

    fn judge(&mut self, cx: &Context<'_>, clock: &Clock, now: Instant) {
        let far = clock.offset.abs() > self.config.max_offset.as_duration().as_secs_f64();
        let disciplined = self.disciplined(clock);
        let fit = disciplined && !far;
        self.since = if fit { None } else { self.since.or(Some(now)) };
        let holds = self.since.is_some_and(|since| now - since >= self.config.grace.as_duration());
        self.conditions.report(cx, UNSYNCED, "", holds, || event(clock, disciplined, fit));
    }
}

fn event(clock: &Clock, disciplined: bool, fit: bool) -> Event {
    let text = if fit {
        "the clock is disciplined again".to_owned()
    } else if disciplined {
        format!("the clock is {:.3} s off and does not get closer", clock.offset.abs())
    } else {
        let bound = clock.max_error;
        format!(
            "nothing disciplines the clock: is chronyd, ntpd or timesyncd running? It may be {bound:.1} s off by now"
        )
    };
    let mut event =
        Event { ts: Some(unix_now()), level: Some("warn".into()), text: Some(text), ..Event::new(Kind::Hw) };
    event.extra.insert("offset_seconds".into(), Value::Number(clock.offset));
    event.extra.insert("max_error_seconds".into(), Value::Number(clock.max_error));
    event
}

/// The clock source in use.
pub fn source(roots: &Roots) -> Option<String> {
    roots::read(&roots.sys("devices/system/clocksource/clocksource0/current_clocksource"))
}

impl Collector for ClockReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        Ok(match (self.ask)() {
            Ok(_) => Support::Supported(format!(
                "clock source {}",
                source(cx.roots).as_deref().unwrap_or("unknown")
            )),
            Err(error) => Support::Unsupported(format!("the kernel does not report its clock: {error}")),
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        if let Some(source) = source(cx.roots) {
            out.set(&SOURCE, &[&source], 1u64);
        }
        let clock = (self.ask)().map_err(|e| CollectError::Other(format!("adjtimex: {e}")))?;
        out.set(&SYNCED, &[], clock.synced);
        out.set(&OFFSET, &[], clock.offset);
        out.set(&MAX_ERROR, &[], clock.max_error);
        out.set(&ESTIMATED_ERROR, &[], clock.estimated_error);
        out.set(&FREQUENCY, &[], clock.frequency_ratio);
        out.maybe(&TAI, &[], clock.tai_offset);
        self.judge(cx, &clock, Instant::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const GOOD: Clock = Clock {
        synced: true,
        offset: 0.000_02,
        max_error: 0.01,
        estimated_error: 0.000_1,
        frequency_ratio: 1.000_003,
        tai_offset: None,
    };

    #[test]
    fn what_the_kernel_reports_is_on_the_page() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("devices/system/clocksource/clocksource0");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("current_clocksource"), "tsc\n").unwrap();
        let bench = testing::Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
        let mut reader = ClockReader { ask: || Ok(GOOD), ..ClockReader::new(&Config::default()) };
        assert_eq!(reader.probe(&bench.context()).unwrap(), Support::Supported("clock source tsc".into()));
        let page = bench.collect(&mut reader);
        assert_eq!((page.get(&SYNCED, &[]), page.get(&MAX_ERROR, &[])), (Some(1.0), Some(0.01)));
        assert_eq!((page.get(&SOURCE, &["tsc"]), page.get(&TAI, &[])), (Some(1.0), None));
        reader.ask = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(matches!(reader.probe(&bench.context()), Ok(Support::Unsupported(_))));
        assert!(reader.collect(&bench.context(), &mut Samples::default()).is_err());
    }

    #[test]
    fn an_undisciplined_clock_is_published_after_a_grace_and_so_is_its_end() {
        let bench = testing::Bench::new(Roots::default());
        let mut reader = ClockReader::new(&Config::default());
        let start = Instant::now();
        let bad = Clock { synced: false, max_error: 16.0, ..GOOD };
        let far = Clock { offset: -0.4, ..GOOD };
        let mut at = |seconds, clock: &Clock| {
            reader.judge(&bench.context(), clock, start + Duration::from_secs(seconds));
            bench.published()
        };
        assert!(at(0, &bad).is_empty() && at(599, &far).is_empty());
        let [begun] = &at(600, &bad)[..] else { panic!() };
        assert_eq!((begun.name.as_deref(), begun.code), (Some(UNSYNCED.name()), Some(1)));
        assert!(begun.text.as_deref().unwrap().contains("16.0 s"), "{begun:?}");
        assert!(at(610, &far).is_empty());
        let [over] = &at(620, &GOOD)[..] else { panic!() };
        assert_eq!((over.code, over.level.as_deref()), (Some(0), Some("info")));
        assert!(at(630, &bad).is_empty(), "the grace begins anew");
    }

    /// When a clock is reported whose bound after so many seconds is `bound`.
    fn reported_at(bound: impl Fn(u64) -> f64, until: u64) -> Option<u64> {
        let bench = testing::Bench::new(Roots::default());
        let mut reader = ClockReader::new(&Config::default());
        let start = Instant::now();
        let mut passes = (0..until).step_by(10);
        passes.find(|seconds| {
            let clock = Clock { synced: false, max_error: bound(*seconds), ..GOOD };
            reader.judge(&bench.context(), &clock, start + Duration::from_secs(*seconds));
            !bench.published().is_empty()
        })
    }

    const GROWTH: f64 = 500e-6;

    #[test]
    fn chrony_without_rtcsync_disciplines_a_clock_that_the_kernel_calls_free() {
        for every in [64, 1024, 4096] {
            let bound = |seconds: u64| 0.02 + (seconds % every) as f64 * GROWTH;
            assert_eq!(reported_at(bound, 100_000), None, "set every {every} s");
        }
    }

    #[test]
    fn an_undisciplined_clock_is_reported_however_it_became_so() {
        assert_eq!(reported_at(|_| 16.0, 1_000), Some(600), "from boot on");
        let died = |seconds: u64| (0.02 + seconds as f64 * GROWTH).min(16.0);
        let reported = reported_at(died, 20_000);
        assert!(reported.is_some_and(|t| (4_000..5_000).contains(&t)), "{reported:?}");
        let slow = |seconds: u64| {
            let last = if seconds < 20_480 { seconds % 4096 } else { seconds - 16_384 };
            (0.02 + last as f64 * GROWTH).min(16.0)
        };
        let reported = reported_at(slow, 50_000);
        assert!(reported.is_some_and(|t| (24_000..26_000).contains(&t)), "{reported:?}");
        let lost = |seconds: u64| if seconds < 1_000 { 0.02 } else { 16.0 };
        assert_eq!(reported_at(lost, 5_000), Some(1_600), "the daemon lost its servers");
    }
}

//! Watches any other number that a run reports: a reward, an entropy, the load of experts, a
//! temperature. Only its name is known.
//!
//! Each series is judged by itself ([`crate::stats::series`]): medians of 8 values against their
//! level and trend, apart from what belongs to the hour and the day. A shift whose CUSUM is over
//! the bound and whose block is out by 6 sigmas and by `share` of the level is a ticket; below 6
//! sigmas it is an annotation. So is every shift of a series that had more than three tickets: such
//! a series moves by its nature.
//!
//! A series that had a number 20 times in a row and then has none 8 times in a row is a ticket
//! until it has one again. A series that has none now and then is annotated once.
//!
//! By default every series is watched except counters, clocks, the learning rate and statistics of
//! layers. Series of one run that shift together are one incident.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::detector::shared::Shared;
use crate::detector::{JudgedStep, StepDetector};
use crate::glob;
use crate::sample::{Extra, Reading};
use crate::stats::series::{Limits, News, Point, Series};
use stepwatch_model::{
    Change, Clause, Fact, Finding, Kind, Observation, Sentence, Severity, Suspect, Target, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Which series are watched, and how: the first that matches decides.
    pub watch: Vec<Watch>,
    /// Names of series that are not watched, even if `watch` matches them; `*` stands for anything.
    pub ignore: Vec<String>,
    /// Shift that makes a ticket, in sigmas, and as a share of the level. Of a normal distribution
    /// 2·10⁻⁹ lies beyond 6 sigmas on both sides. The share is an engineering limit.
    pub sigmas: f64,
    pub share: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// Names; `*` stands for anything.
    pub signals: Vec<String>,
    #[serde(default)]
    pub direction: Direction,
    /// The most that a shift may be.
    #[serde(default = "ticket")]
    pub severity: Severity,
}

/// Direction of shifts that are reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    #[default]
    Both,
    Up,
    Down,
}

const fn ticket() -> Severity {
    Severity::Ticket
}

/// Names of counts, clocks, settings, and signals of other detectors.
const NOT_WATCHED: &[&str] = &[
    "grad_norm/*",
    "grad_norm_shard/*",
    "act_rms/*",
    "act_absmax/*",
    "*epoch*",
    "*step*",
    "iter*",
    "*/iter*",
    "*_iter*",
    "*consumed*",
    "*total*",
    "*_count",
    "num_*",
    "*/num_*",
    "*tokens*",
    "*samples*",
    "*time*",
    "*second*",
    "*duration*",
    "*elapsed*",
    "*_ms",
    "eta",
    "*/eta",
    "lr*",
    "*/lr*",
    "*learning_rate*",
    "*progress*",
    "*percent_done*",
    "*batch_size*",
    "*max_mem*",
    "*peak_mem*",
];

impl Default for Config {
    fn default() -> Self {
        let everything =
            Watch { signals: vec!["*".to_owned()], direction: Direction::Both, severity: Severity::Ticket };
        Self {
            enabled: true,
            watch: vec![everything],
            ignore: NOT_WATCHED.iter().map(|name| (*name).to_owned()).collect(),
            sigmas: 6.0,
            share: 0.05,
        }
    }
}

/// The number of tickets of one series after which it is only annotated.
const MAX_TICKETS: u8 = 3;
/// The number of consecutive finite values after which a non-finite one is news, and the number of
/// non-finite ones that make a ticket: engineering limits.
const USUAL: u16 = 20;
const LOST: u16 = 8;
/// The most other series named in an incident.
const NAMED: usize = 4;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Generic {
    /// The series by id; `None` for one that is not watched.
    series: BTreeMap<u16, Option<Box<Watched>>>,
}

/// The state of one series.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Watched {
    name: Arc<str>,
    direction: Direction,
    severity: Severity,
    series: Series,
    attempt: u32,
    tickets: u8,
    pub(crate) raised: bool,
    /// The number of consecutive finite values.
    numbers: u16,
    /// The number of non-finite values since then.
    lost: u16,
}

/// The outcome of judging a value.
pub(crate) enum Said {
    News(Finding),
    Over(Clause),
}

impl Watched {
    pub(crate) fn new(name: Arc<str>, how: (Direction, Severity), attempt: u32) -> Self {
        Self {
            name,
            direction: how.0,
            severity: how.1,
            series: Series::default(),
            attempt,
            tickets: 0,
            raised: false,
            numbers: 0,
            lost: 0,
        }
    }

    pub(crate) fn configure(&mut self, (direction, severity): (Direction, Severity)) {
        (self.direction, self.severity) = (direction, severity);
    }

    pub(crate) fn take(&mut self, r: &Reading<'_>, limits: Limits) -> Option<Said> {
        if self.attempt != r.attempt {
            (self.attempt, self.lost) = (r.attempt, 0);
            self.series.restart();
            return core::mem::take(&mut self.raised).then(|| Said::Over(clause!("the run restarted")));
        }
        if let Some(said) = self.is_number(r) {
            return Some(said);
        }
        let point = Point { at: r.step, ts: r.ts, value: r.value, quantum: r.quantum };
        match self.series.add(point, limits)? {
            News::Shift { up, .. } if !self.direction.takes(up) => None,
            News::Shift { large, value, expected, z, onset, .. } => {
                let severity =
                    if large && self.tickets < MAX_TICKETS { self.severity } else { Severity::Info };
                let why = clause!(
                    "{series} is {now}, {before} before",
                    series = Fact::text(&*self.name),
                    now = value,
                    before = expected,
                );
                let mut v = finding(r, Change::Note, &self.name, why);
                (v.start_step, v.value, v.expected, v.score) = (onset, value, expected, z.abs());
                if severity > Severity::Info {
                    self.tickets += 1;
                    self.raised = true;
                    (v.change, v.severity) = (Change::Raise, severity);
                }
                Some(Said::News(v))
            }
            News::Over { accepted, value } => {
                let how = if accepted { "and stays there: taken as its new level" } else { "where it was" };
                let series = Fact::text(&*self.name);
                let why = clause!("{series} is {now}, {how}", series, now = value, how);
                core::mem::take(&mut self.raised).then_some(Said::Over(why))
            }
            News::NotANumber => {
                let series = Fact::text(&*self.name);
                let why = clause!("{series} is {now} and has been a number so far", series, now = r.value);
                Some(Said::News(finding(r, Change::Note, &self.name, why)))
            }
        }
    }
}

impl Watched {
    /// Checks whether the values are finite; returns a finding if that changed.
    fn is_number(&mut self, r: &Reading<'_>) -> Option<Said> {
        if r.value.is_finite() {
            let was_lost = core::mem::take(&mut self.lost) >= LOST;
            self.numbers = self.numbers.saturating_add(1);
            let over = was_lost && core::mem::take(&mut self.raised);
            let series = || Fact::text(&*self.name);
            return over.then(|| Said::Over(clause!("{series} is a number again", series = series())));
        }
        if core::mem::take(&mut self.numbers) >= USUAL {
            self.lost = 1;
        } else if self.lost > 0 {
            self.lost = self.lost.saturating_add(1);
        }
        if self.lost != LOST || self.raised || self.tickets >= MAX_TICKETS {
            return None;
        }
        (self.tickets, self.raised) = (self.tickets + 1, true);
        let why = clause!(
            "{series} is {now} for {values} values and was a number before",
            series = Fact::text(&*self.name),
            now = r.value,
            values = u32::from(LOST),
        );
        let mut v = finding(r, Change::Raise, &self.name, why);
        v.severity = self.severity;
        Some(Said::News(v))
    }
}

impl Config {
    pub(crate) fn limits(&self) -> Limits {
        Limits { sigmas: self.sigmas, share: self.share }
    }

    /// How a series that the operator named is watched. `ignore` does not apply to it.
    pub(crate) fn watch_named(&self, name: &str) -> (Direction, Severity) {
        let watch = self.watch.iter().find(|w| w.signals.iter().any(|pattern| glob::matches(pattern, name)));
        watch.map_or((Direction::Both, ticket()), |watch| (watch.direction, watch.severity))
    }

    fn watch_for(&self, name: &str) -> Option<&Watch> {
        if !self.enabled || self.ignore.iter().any(|pattern| glob::matches(pattern, name)) {
            return None;
        }
        self.watch.iter().find(|w| w.signals.iter().any(|pattern| glob::matches(pattern, name)))
    }
}

impl Direction {
    fn takes(self, up: bool) -> bool {
        match self {
            Self::Both => true,
            Self::Up => up,
            Self::Down => !up,
        }
    }
}

impl Generic {
    fn watched(&mut self, c: &Config, r: &Reading<'_>) -> Option<&mut Watched> {
        let watched = self.series.entry(r.id).or_insert_with(|| {
            let watch = c.watch_for(r.name)?;
            Some(Box::new(Watched::new(r.name.into(), (watch.direction, watch.severity), r.attempt)))
        });
        watched.as_deref_mut()
    }

    fn reading(&mut self, c: &Config, r: &Reading<'_>, out: &mut Vec<Finding>) {
        let limits = c.limits();
        let Some(w) = self.watched(c, r) else { return };
        match w.take(r, limits) {
            Some(Said::News(mut v)) => {
                if v.change == Change::Raise {
                    v.suspects = self.together(r.id);
                }
                out.push(v);
            }
            Some(Said::Over(why)) => self.clear(r, why, out),
            None => {}
        }
    }

    /// The incident of several series ends with the last of them.
    fn clear(&self, r: &Reading<'_>, why: impl Into<Sentence>, out: &mut Vec<Finding>) {
        if self.series.values().flatten().all(|w| !w.raised) {
            out.push(finding(r, Change::Clear, r.name, why));
        }
    }

    /// The other series that deviate now, as suspects.
    fn together(&self, id: u16) -> Vec<Suspect> {
        let others = self.series.iter().filter_map(|(other, w)| Some((other, w.as_ref()?)));
        let out = others.filter(|(other, w)| **other != id && w.raised).take(NAMED);
        out.map(|(_, w)| {
            Suspect::new(Target::Signal { name: String::from(&*w.name) }, Observation::OutOfPlace)
        })
        .collect()
    }
}

pub(crate) fn finding(r: &Reading<'_>, change: Change, signal: &str, why: impl Into<Sentence>) -> Finding {
    Finding {
        change,
        kind: Kind::Generic,
        severity: Severity::Info,
        signal: signal.to_owned().into(),
        step: r.step,
        ts: r.ts,
        start_step: r.step,
        value: r.value,
        expected: f64::NAN,
        score: 0.0,
        why: why.into(),
        suspects: Vec::new(),
    }
}

impl StepDetector for Generic {
    type Config = Config;

    /// A series that is watched in the same way keeps what it learned.
    fn configured(&mut self, c: &Config) {
        self.series.retain(|_, w| {
            let Some(w) = w else { return false };
            let Some(watch) = c.watch_for(&w.name) else { return w.raised };
            w.configure((watch.direction, watch.severity));
            true
        });
    }

    fn step(&mut self, _: &Config, _: &mut JudgedStep<'_>, _: &mut Shared) {}

    fn extra(&mut self, c: &Config, e: &Extra<'_>, _: &Shared, out: &mut Vec<Finding>) {
        if let Extra::Readings(readings) = e {
            if c.enabled {
                readings.iter().for_each(|r| self.reading(c, r, out));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{Noise, open, raised};
    use crate::sample::StepSample;
    use proptest::prelude::*;
    use stepwatch_model::time::Ts;

    fn findings_of(
        config: &Config,
        names: &[&'static str],
        n: i64,
        value: impl Fn(i64, usize) -> f64,
    ) -> Vec<Finding> {
        let (mut detector, mut shared, mut out) = (Generic::default(), Shared::default(), Vec::new());
        shared.observe(&StepSample::default());
        for step in 1..=n {
            let reading = |(i, name): (usize, &&'static str)| -> Reading<'static> {
                let value = value(step, i);
                Reading { id: i as u16, name, step, ts: Ts(2000 * step), attempt: 0, value, quantum: 0.0 }
            };
            let readings: Vec<Reading<'_>> = names.iter().enumerate().map(reading).collect();
            detector.extra(config, &Extra::Readings(&readings), &shared, &mut out);
        }
        out
    }

    fn noisy(seed: u64, step: i64, i: usize) -> f64 {
        Noise::new(seed ^ (step as u64 * 16 + i as u64)).normal()
    }

    #[test]
    fn a_shift_of_one_series_is_a_ticket_and_of_two_one_incident() {
        let value = |step: i64, i: usize| {
            10.0 + 0.2 * noisy(1, step, i) + if (1000..1400).contains(&step) { 4.0 } else { 0.0 }
        };
        let findings = findings_of(&Config::default(), &["reward", "kl"], 2000, value);
        let found = raised(&findings);
        assert!(
            found
                .iter()
                .all(|f| f.0 == Kind::Generic && f.1 == Severity::Ticket && (1007..1050).contains(&f.2)),
            "{found:?}"
        );
        assert_eq!(found.len(), 2);
        assert_eq!(findings.iter().filter(|v| v.change == Change::Clear).count(), 1, "{findings:?}");
        assert_eq!(findings[1].suspects[0].what(), "reward");
        assert!(
            findings[0].why.to_string().starts_with("reward is 14")
                && findings[0].why.to_string().contains(", 10"),
            "{}",
            findings[0].why
        );
        assert!((990..=1001).contains(&findings[0].start_step) && open(&findings).is_empty());
    }

    #[test]
    fn the_configuration_decides_what_is_watched_and_how_loudly() {
        let watch =
            |pattern: &str, direction, severity| Watch { signals: vec![pattern.into()], direction, severity };
        let config = Config {
            watch: vec![
                watch("reward*", Direction::Down, Severity::Page),
                watch("kl", Direction::Up, Severity::Info),
            ],
            ..Config::default()
        };
        let value =
            |step: i64, i: usize| 10.0 + 0.2 * noisy(2, step, i) + if step > 1000 { 4.0 } else { 0.0 };
        assert!(
            raised(&findings_of(&config, &["reward/mean", "kl", "other"], 1500, value)).is_empty(),
            "up, info, unknown"
        );
        let down = findings_of(&config, &["reward/mean"], 1500, |step, i| 20.0 - value(step, i));
        assert_eq!(raised(&down).iter().map(|f| f.1).collect::<Vec<_>>(), [Severity::Page]);
        let ignored = findings_of(
            &Config::default(),
            &["consumed_samples", "grad_norm/layers.3", "epoch"],
            1500,
            value,
        );
        assert!(ignored.is_empty(), "{ignored:?}");
    }

    #[test]
    fn a_series_that_keeps_jumping_falls_silent() {
        let findings = findings_of(&Config::default(), &["mode"], 40_000, |step, i| {
            0.1 * noisy(3, step, i) + if step / 1000 % 2 == 0 { 0.0 } else { 9.0 }
        });
        assert!((1..=3).contains(&raised(&findings).len()), "{}", raised(&findings).len());
        assert!(findings.len() < 100, "{}", findings.len());
    }

    #[test]
    fn what_is_no_number_any_more_is_noted_once() {
        let findings = findings_of(&Config::default(), &["kl"], 1000, |step, i| {
            if step > 500 && step % 3 == 0 { f64::NAN } else { 1.0 + 0.1 * noisy(4, step, i) }
        });
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!((findings[0].change, findings[0].step) == (Change::Note, 501) && findings[0].value.is_nan());
    }

    #[test]
    fn what_is_no_number_any_more_for_long_is_a_ticket() {
        let lost = |from: i64, to: i64| {
            findings_of(&Config::default(), &["reward"], 1000, move |step, i| {
                if (from..to).contains(&step) { f64::NAN } else { 1.0 + 0.1 * noisy(6, step, i) }
            })
        };
        let findings = lost(500, 600);
        assert_eq!(raised(&findings), [(Kind::Generic, Severity::Ticket, 507)]);
        assert!(open(&findings).is_empty(), "a number again");
        assert_eq!(raised(&lost(21, 1001)), [(Kind::Generic, Severity::Ticket, 28)]);
        assert!(raised(&lost(20, 1001)).is_empty(), "too few numbers before");
        assert!(raised(&lost(500, 507)).is_empty(), "a few");
    }

    #[test]
    fn the_state_of_a_series_is_small() {
        let (mut detector, mut out) = (Generic::default(), Vec::new());
        let empty = postcard::to_stdvec(&detector).unwrap().len();
        for step in 0..10_000 {
            let value = noisy(5, step, 0);
            let r = Reading {
                id: 0,
                name: "reward",
                step,
                ts: Ts(step * 60_000),
                attempt: 0,
                value,
                quantum: 0.0,
            };
            detector.reading(&Config::default(), &r, &mut out);
        }
        let bytes = postcard::to_stdvec(&detector).unwrap().len() - empty;
        assert!(bytes <= 512, "{bytes}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Twelve sorts of series that mean nothing, 12,000 values each: hardly one ticket in all.
        #[test]
        fn no_sort_of_series_floods(seed: u64) {
            let sorts =
                ["white", "ar", "walk", "falling", "rising", "heavy", "zero", "binary", "stairs", "wave", "decay", "integer"];
            let (mut ar, mut walk) = (0.0, 0.0);
            let mut noise = Noise::new(seed);
            let mut values = Vec::new();
            for t in 0..12_000 {
                let (n, u, t) = (noise.normal(), noise.uniform(), f64::from(t));
                ar = 0.98 * ar + n;
                walk += n;
                let heavy = n / (u + 0.01);
                let row = [n, ar, walk, 5.0 - 1e-4 * t, 1e-3 * t + n, heavy, 0.0, f64::from(u8::from(u < 0.1)),
                    (t / 3000.0).floor(), (t / 500.0).sin() + 0.1 * n, 3.0 * (t + 30.0).powf(-0.2) + 0.05 * n, (3.0 + n).round()];
                values.push(row);
            }
            let findings = findings_of(&Config::default(), &sorts, 12_000, |step, i| values[step as usize - 1][i]);
            let found: Vec<_> = findings.iter().filter(|v| v.change == Change::Raise).map(|v| (v.signal.clone(), v.step)).collect();
            let meant = found.iter().filter(|(signal, _)| signal != "stairs").count();
            prop_assert!(meant <= 1, "{:?}", found);
            prop_assert!(findings.len() < 60, "{}", findings.len());
        }
    }
}

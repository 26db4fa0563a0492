//! Measures how a detector's sensitivity changes its results on recorded runs: the same files are
//! replayed with different main settings.
//!
//! Each setting replays the whole alerter, because detectors share incidents; only announced
//! incidents count. In addition to the grid, one replay has the detector disabled. With labels,
//! these must be detected. Without labels, the target is what the present setting adds: incidents
//! that would be announced later or not at all without the detector.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use stepwatch_engine::EngineConfig;
use stepwatch_model::time::Span;
use stepwatch_model::{Cause, Severity};

use super::labels::{EARLY, LATE, LATE_PART, Label, Labels};
use super::replay::Replay;
use super::words;
use crate::config::sensitivity::Sensitivity;

/// The factors for each knob.
const FACTORS: [f64; 5] = [0.5, 0.7, 1.0, 1.4, 2.0];

/// One configuration of the grid.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) config: EngineConfig,
    pub(super) role: Role,
    /// The configuration keys and their values.
    pub(super) keys: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    Off,
    Now,
    Tried,
}

/// The result of one setting over all files.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Outcome {
    pub(super) setting: Role,
    #[serde(serialize_with = "as_map")]
    pub(super) keys: Vec<(String, String)>,
    pub(super) pages: usize,
    pub(super) tickets: usize,
    pub(super) pages_per_week: f64,
    pub(super) tickets_per_week: f64,
    /// The pages and tickets that belong to no label; absent without labels.
    pub(super) false_pages: Option<usize>,
    pub(super) false_tickets: Option<usize>,
    /// The number of targets that were announced, and of all targets.
    pub(super) found: usize,
    pub(super) of: usize,
    /// The median number of steps from the onset to the first announcement; absent if most targets
    /// were not announced.
    pub(super) median_delay_steps: Option<f64>,
    /// Whether no other setting has at most as many alarms, finds at least as much and is at least
    /// as fast.
    pub(super) best: bool,
    #[serde(skip)]
    /// The delay of each target in steps; infinite if it was not announced.
    delays: Vec<f64>,
}

#[derive(Debug)]
pub(super) struct Tune {
    pub(super) detector: &'static str,
    pub(super) settings: Vec<Setting>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) labelled: bool,
    lasted: f64,
}

/// A target that should be announced.
#[derive(Debug)]
struct Wanted {
    start: i64,
    end: i64,
    cause: Option<Cause>,
}

/// An announced incident.
#[derive(Debug, Clone, Copy)]
struct Announced {
    start: i64,
    opened: i64,
    end: i64,
    page: bool,
    cause: Cause,
}

impl Tune {
    /// Creates the grid; `None` if the list of sensitivities does not fit the settings.
    pub(super) fn new(of: &'static Sensitivity, base: &EngineConfig, labelled: bool) -> Option<Self> {
        let with = |detectors| EngineConfig { detectors: Arc::new(detectors), ..base.clone() };
        let mut settings =
            vec![Setting { config: with(of.off(&base.detectors)?), role: Role::Off, keys: Vec::new() }];
        let mut seen = BTreeSet::new();
        for factors in grid(of.knobs.len()) {
            let (detectors, keys) = of.turned(&base.detectors, &factors)?;
            let role = if detectors == *base.detectors { Role::Now } else { Role::Tried };
            // Two factors may give the same integer.
            if seen.insert(keys.clone()) {
                settings.push(Setting { config: with(detectors), role, keys });
            }
        }
        let outcomes = settings.iter().map(Outcome::for_setting).collect();
        Some(Self { detector: of.detector, settings, outcomes, labelled, lasted: 0.0 })
    }

    pub(super) fn replays(&self) -> Vec<Replay> {
        self.settings.iter().map(|s| Replay::new(s.config.clone())).collect()
    }

    /// Adds the results of the replays of one file, in the order of [`Tune::replays`].
    pub(super) fn add(&mut self, file: &str, replays: &[Replay], labels: Option<&Labels>) {
        let (Some(off), Some(first)) = (replays.first(), replays.last()) else { return };
        self.lasted += first.lasted().as_secs_f64();
        let now = self.settings.iter().position(|s| s.role == Role::Now);
        let (first_step, last_step) = first.steps();
        let sample = (last_step.saturating_sub(first_step) as f64 / first.samples().max(1) as f64).max(1.0);
        let labels: Option<Vec<&Label>> = labels.map(|l| l.of_file(file).collect());
        let known: Option<Vec<Wanted>> =
            labels.as_ref().map(|all| all.iter().map(|l| Wanted::from_label(l, last_step)).collect());
        let wanted: Vec<Wanted> = match (&labels, now.and_then(|i| replays.get(i))) {
            (Some(labels), _) => {
                labels.iter().filter(|l| l.counts()).map(|l| Wanted::from_label(l, last_step)).collect()
            }
            (None, Some(now)) => added(&announced(off), &announced(now), sample),
            (None, None) => Vec::new(),
        };
        for (outcome, replay) in self.outcomes.iter_mut().zip(replays) {
            outcome.add(&announced(replay), &wanted, known.as_deref(), sample);
        }
    }

    pub(super) fn finish(&mut self) {
        let weeks = words::weeks(std::iter::once(Span::from_secs_f64(self.lasted)));
        for o in &mut self.outcomes {
            let a_week = |n: usize| if weeks > 0.0 { n as f64 / weeks } else { 0.0 };
            (o.pages_per_week, o.tickets_per_week) = (a_week(o.pages), a_week(o.tickets));
            o.delays.sort_by(f64::total_cmp);
            let middle = o.delays.get(o.delays.len().saturating_sub(1) / 2).copied();
            o.median_delay_steps = middle.filter(|d| d.is_finite());
        }
        let all = self.outcomes.clone();
        for o in &mut self.outcomes {
            o.best = o.setting != Role::Off && !all.iter().any(|other| other.beats(o));
        }
    }

    pub(super) fn weeks(&self) -> f64 {
        words::weeks(std::iter::once(Span::from_secs_f64(self.lasted)))
    }
}

/// All combinations of factors.
fn grid(knobs: usize) -> Vec<Vec<f64>> {
    (0..knobs).fold(vec![Vec::new()], |grid, _| {
        let with = |row: &Vec<f64>, f: f64| row.iter().copied().chain([f]).collect();
        FACTORS.iter().flat_map(|f| grid.iter().map(move |row| with(row, *f))).collect()
    })
}

fn announced(replay: &Replay) -> Vec<Announced> {
    let announced = replay.incidents().filter(|r| r.severity > Severity::Info);
    announced
        .map(|r| Announced {
            start: r.start_step,
            opened: r.opened_step,
            end: r.end_step.unwrap_or(replay.steps().1),
            page: r.severity == Severity::Page,
            cause: r.cause,
        })
        .collect()
}

/// The incidents that would be announced later or not at all without the detector.
fn added(off: &[Announced], now: &[Announced], sample: f64) -> Vec<Wanted> {
    let wanted = now.iter().map(|a| (a, Wanted { start: a.start, end: a.end, cause: Some(a.cause) }));
    let new = wanted
        .filter(|(a, w)| !off.iter().any(|o| w.is(o, sample) && o.opened <= a.opened && o.page >= a.page));
    new.map(|(_, w)| w).collect()
}

impl Wanted {
    fn from_label(label: &Label, last_step: i64) -> Self {
        Self { start: label.start, end: label.end.unwrap_or(last_step), cause: None }
    }

    /// Whether this announcement is about the target.
    fn is(&self, a: &Announced, sample: f64) -> bool {
        let length = self.end.saturating_sub(self.start) as f64;
        let near = (LATE as f64 * sample).max(length / LATE_PART as f64) as i64;
        let from = self.start.saturating_sub((EARLY as f64 * sample) as i64);
        self.cause.is_none_or(|c| c == a.cause) && (from..=self.end.saturating_add(near)).contains(&a.opened)
    }
}

impl Outcome {
    fn for_setting(setting: &Setting) -> Self {
        Self {
            setting: setting.role,
            keys: setting.keys.clone(),
            pages: 0,
            tickets: 0,
            pages_per_week: 0.0,
            tickets_per_week: 0.0,
            false_pages: None,
            false_tickets: None,
            found: 0,
            of: 0,
            median_delay_steps: None,
            best: false,
            delays: Vec::new(),
        }
    }

    /// Adds the announcements of a file. `known` are its labels, if it has any.
    fn add(&mut self, all: &[Announced], wanted: &[Wanted], known: Option<&[Wanted]>, sample: f64) {
        let pages = all.iter().filter(|a| a.page).count();
        self.pages += pages;
        self.tickets += all.len() - pages;
        self.of += wanted.len();
        for w in wanted {
            let opened = all.iter().filter(|a| w.is(a, sample)).map(|a| a.opened).min();
            self.found += usize::from(opened.is_some());
            self.delays.push(opened.map_or(f64::INFINITY, |at| at.saturating_sub(w.start).max(0) as f64));
        }
        let Some(known) = known else { return };
        let belongs = |a: &Announced| known.iter().any(|w| w.is(a, sample));
        let wrong = |page| all.iter().filter(|a| a.page == page && !belongs(a)).count();
        *self.false_pages.get_or_insert(0) += wrong(true);
        *self.false_tickets.get_or_insert(0) += wrong(false);
    }

    /// The alarms that are a burden: those that are known to be false, or all of them.
    pub(super) fn noise(&self) -> (usize, usize) {
        (self.false_pages.unwrap_or(self.pages), self.false_tickets.unwrap_or(self.tickets))
    }

    fn beats(&self, other: &Self) -> bool {
        let delay = |o: &Self| o.median_delay_steps.unwrap_or(f64::INFINITY);
        let noise = |o: &Self| o.noise();
        let no_worse = noise(self).0 <= noise(other).0
            && noise(self).1 <= noise(other).1
            && self.found >= other.found
            && delay(self) <= delay(other);
        let better = noise(self) != noise(other) || self.found != other.found || delay(self) < delay(other);
        self.setting != Role::Off && no_worse && better
    }
}

fn as_map<S: serde::Serializer>(keys: &[(String, String)], s: S) -> Result<S::Ok, S::Error> {
    s.collect_map(keys.iter().map(|(k, v)| (k, v)))
}

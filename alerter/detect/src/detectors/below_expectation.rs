//! Detects a run that is slower than its owner expects of it, from its first minutes on.
//!
//! A run that never was fast enough has no faster past to be compared with. So `expect` in the
//! settings gives limits by the name of the run: floors of MFU and of tokens a second, and a
//! ceiling of the step time.
//! ```text
//! block = median of the last 32 steps within half a minute, or of one longer step
//! missed = share by which the median of the last 10 blocks misses the limit,
//!          less half a unit of its last printed digit
//! ticket: missed above 2 %;  over: missed below 0.8 %
//! page: also 10 % in every block of five minutes, or ten minutes of the run lost since the onset
//! ```
//! The first 20 steps and two minutes of an attempt are not judged, nor are steps of an evaluation
//! or a checkpoint. A restart begins anew with the ten blocks. Where `page_when_lost` and the price
//! of the run are known, a page has cost so many dollars instead.
//!
//! A run that becomes slower is found by [`super::mfu_droop`] too, which knows when it began. One
//! slow-down is one incident, and pages once: while that detector reports the run as severely, this
//! one says nothing. What is missed afterwards, it reports then.
//!
//! All limits are engineering limits: a person chose the number that they compare with, and medians
//! of ten medians are far from what single steps do by chance.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::lost_time::{Loss, Worth};
use crate::detector::draft::Draft;
use crate::detector::shared::{Shared, Source, Speed};
use crate::detector::{JudgedStep, StepDetector};
use crate::glob;
use crate::sample::{StepClass, StepSample};
use crate::stats::attempt::Attempts;
use crate::stats::latch::Latch;
use crate::stats::median::Window;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Share by which the limit is missed.
    pub ticket: f64,
    pub page: f64,
    /// Share of `ticket` that may be left when the incident ends.
    pub clear: f64,
    /// How long it must be missed by `page`, by the clock.
    pub page_after: Span,
    /// How much of the run's time must be lost, since the onset.
    pub page_lost: Span,
    /// Dollars lost since the onset that page, instead of `page`, `page_after` and `page_lost`,
    /// where the price of the run is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_when_lost: Option<f64>,
    /// What is expected of which runs; the first entry that matches decides. It is a setting of the
    /// whole alerter, not of its detectors.
    #[serde(skip)]
    pub expect: Vec<Expect>,
}

/// What is expected of some runs, at least one of the limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The name of a run; `*` stands for anything.
    pub run: String,
    /// The least MFU, as a ratio.
    pub mfu: Option<f64>,
    /// The least throughput, as the run reports it.
    pub tokens_per_second: Option<f64>,
    /// The most seconds of a step.
    pub step_time: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            ticket: 0.02,
            page: 0.10,
            clear: 0.4,
            page_after: Span::secs(300),
            page_lost: Span::secs(600),
            page_when_lost: None,
            expect: Vec::new(),
        }
    }
}

impl Config {
    fn worth(&self) -> Worth {
        Worth { after: self.page_after, lost: self.page_lost, dollars: self.page_when_lost }
    }
}

impl Expect {
    fn limit(&self, source: Source) -> Option<f64> {
        let limit = match source {
            Source::None => None,
            Source::Mfu => self.mfu,
            Source::Tokens => self.tokens_per_second,
            Source::StepTime => self.step_time,
        };
        limit.filter(|limit| limit.is_finite() && *limit > 0.0)
    }
}

/// The first steps of an attempt and their time, which are compilation and cold caches.
const WARM_UP_STEPS: i64 = 20;
const WARM_UP: Span = Span::secs(120);
/// The least time of a block, and the number of blocks that are judged: five minutes.
const BLOCK: Span = Span::secs(30);
const BLOCKS: usize = 10;
/// The most steps of a block: the last ones.
const STEPS: usize = 32;
/// A larger MFU is no ratio, but what a framework reports in its place.
const MOST_MFU: f64 = 1.0;
/// The signals that may have a limit, in the order of the watches.
const SOURCES: [Source; 3] = [Source::Mfu, Source::Tokens, Source::StepTime];

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct BelowExpectation {
    /// The place of the run's entry in `expect`. Not stored: it follows from the settings.
    #[serde(skip)]
    entry: Option<u16>,
    /// `None` as long as nothing is expected of the run.
    judged: Option<Box<Judged>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Judged {
    attempts: Attempts,
    /// The step and the time of the first sample of the attempt.
    began: Option<(i64, Ts)>,
    watches: [Watch; SOURCES.len()],
}

/// A signal against its limit. Values are logarithms that rise as the run slows.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Watch {
    latch: Latch,
    limit: f64,
    /// The steps of the block under way, the first of them, and when the block began.
    steps: Window<STEPS>,
    first: i64,
    began: Option<Ts>,
    /// The medians of the last blocks.
    blocks: Window<BLOCKS>,
    /// The first step that missed the limit, if the last block missed it.
    onset: Option<i64>,
    loss: Loss,
    #[serde(skip)]
    grain: f64,
}

/// The logarithm of a value of the signal that rises as the run slows.
fn slowness(source: Source, value: f64) -> f64 {
    match source {
        Source::None | Source::StepTime => value.ln(),
        Source::Mfu | Source::Tokens => -value.ln(),
    }
}

/// The signal in a sample, and the unit of its last printed digit.
fn read(source: Source, s: &StepSample) -> Option<(f64, f64)> {
    let (value, quantum) = match source {
        Source::None => return None,
        Source::Mfu => (s.mfu.filter(|mfu| *mfu <= MOST_MFU), s.q.mfu),
        Source::Tokens => (s.tokens_per_second, s.q.tokens_per_second),
        Source::StepTime => (s.step_time, s.q.step_time),
    };
    value.filter(|v| v.is_finite() && *v > 0.0).map(|v| (v, quantum))
}

impl BelowExpectation {
    /// Chooses what is expected of the run, by its name.
    pub(crate) fn named(&mut self, c: &Config, run: &str) {
        let at = c.expect.iter().position(|expect| glob::matches(&expect.run, run));
        self.entry = at.and_then(|at| u16::try_from(at).ok());
    }

    /// Ends what it reported, because nothing is expected of the run any more.
    fn stop(&mut self, step: &mut JudgedStep<'_>) {
        let Some(mut judged) = self.judged.take() else { return };
        for (source, watch) in SOURCES.into_iter().zip(&mut judged.watches) {
            watch.stop(source, step);
        }
    }
}

impl Judged {
    fn step(&mut self, c: &Config, expect: &Expect, step: &mut JudgedStep<'_>, speed: &Speed) {
        let s = step.sample;
        if self.attempts.restarted(s.attempt) {
            self.began = None;
            self.watches.iter_mut().for_each(Watch::restart);
        }
        let (first, since) = *self.began.get_or_insert((s.step, s.ts));
        let warm = s.step.saturating_sub(first) >= WARM_UP_STEPS && s.ts - since >= WARM_UP;
        let counts = warm && s.class == StepClass::Train && s.interval > 0;
        for (source, watch) in SOURCES.into_iter().zip(&mut self.watches) {
            let Some(limit) = expect.limit(source) else {
                watch.stop(source, step);
                continue;
            };
            watch.limit = slowness(source, limit);
            let Some((value, quantum)) = read(source, s).filter(|_| counts) else { continue };
            watch.grain = quantum / value;
            if let Some(block) = watch.add(s, slowness(source, value)) {
                watch.judge(c, source, block, step, speed);
            }
        }
    }
}

impl Watch {
    fn restart(&mut self) {
        self.steps.clear();
        self.blocks.clear();
        self.began = None;
    }

    /// Ends what it reported, because the signal has no limit any more.
    fn stop(&mut self, source: Source, step: &mut JudgedStep<'_>) {
        if self.latch.clear() {
            step.clear(self.finding(source, clause!("nothing is expected of this signal any more")));
        }
        if self.began.is_some() {
            *self = Self::default();
        }
    }

    /// Adds a step. Gives the median of the block that it ends.
    fn add(&mut self, s: &StepSample, slowness: f64) -> Option<f64> {
        let Some(began) = self.began.map(|began| began.min(s.ts)) else {
            // This step lies before the block.
            self.began = Some(s.ts);
            self.loss.begin(s.ts);
            return None;
        };
        self.began = Some(began);
        if self.steps.is_empty() {
            self.first = s.step;
        }
        self.steps.push(slowness);
        if s.ts - began < BLOCK {
            return None;
        }
        let median = self.steps.median();
        self.steps.clear();
        self.began = Some(s.ts);
        self.blocks.push(median);
        Some(median)
    }

    /// The share by which a level misses the limit; negative if it is better.
    fn missed(&self, source: Source, level: f64) -> f64 {
        let rise = level - self.limit - 0.5 * self.grain;
        if source == Source::StepTime { rise.exp_m1() } else { -(-rise).exp_m1() }
    }

    fn judge(&mut self, c: &Config, source: Source, block: f64, step: &mut JudgedStep<'_>, speed: &Speed) {
        let (now, dollars_per_hour) = (step.sample.ts, speed.dollars_per_hour);
        let (missed, lately) = (self.missed(source, self.blocks.median()), self.missed(source, block));
        let below = self.blocks.is_full() && missed > c.ticket;
        let counts = lately > c.ticket || below || self.latch.is_raised();
        self.onset = if counts { self.onset.or(Some(self.first)) } else { None };
        self.loss.block(now, block - self.limit, counts, lately >= c.page, dollars_per_hour);
        if below {
            let pages = self.loss.is_page(&c.worth(), now, dollars_per_hour > 0.0);
            let severity = if pages { Severity::Page } else { Severity::Ticket };
            // The same slow-down may be reported already, against the run's own past.
            if speed.slow < Some(severity) && self.latch.raise(severity) {
                step.raise(self.finding(source, self.sentence(source, missed)), severity);
            }
        } else if self.blocks.is_full() && missed <= c.clear * c.ticket && self.latch.clear() {
            let now = source.value(self.blocks.median());
            let why = clause!("{signal} is {now}, as expected", signal = source.signal(), now);
            step.clear(self.finding(source, why));
            self.loss.over();
            self.onset = None;
        }
    }

    fn sentence(&self, source: Source, missed: f64) -> Sentence {
        let (bound, side) = match source {
            Source::StepTime => ("at most", "more"),
            Source::None | Source::Mfu | Source::Tokens => ("at least", "less"),
        };
        Sentence::from(clause!(
            "{signal} is {now} in the median of five minutes, and {bound} {limit} is expected of this run: {missed} % \
             {side}, since step {since_step}",
            signal = source.signal(),
            now = source.value(self.blocks.median()),
            bound,
            limit = source.value(self.limit),
            missed = Fact::percent(missed, 1),
            side,
            since_step = Fact::Step(self.onset.unwrap_or(self.first)),
        ))
        .and_perhaps(self.loss.words())
    }

    fn finding(&self, source: Source, why: impl Into<Sentence>) -> Draft {
        let level = self.blocks.median();
        Draft {
            kind: Kind::BelowExpectation,
            signal: source.signal(),
            start_step: self.onset.unwrap_or(self.first),
            value: source.value(level),
            expected: source.value(self.limit),
            score: self.missed(source, level),
            why: why.into(),
        }
    }
}

impl StepDetector for BelowExpectation {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let entry = self.entry.filter(|_| c.enabled).and_then(|at| c.expect.get(usize::from(at)));
        match entry {
            Some(expect) => self.judged.get_or_insert_default().step(c, expect, step, &shared.speed),
            None => self.stop(step),
        }
    }
}

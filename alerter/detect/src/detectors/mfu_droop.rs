//! Detects lasting slow-downs: `mfu_droop` grows slowly, `throughput_drop` comes at once.
//!
//! Medians of 8 steps of ln(step time), or of minus ln(throughput), against the level that this run
//! usually holds, kept across restarts, so a run that comes back slower is seen.
//! ```text
//! ref, s = bounded-influence level and scale of block medians
//!          (rate 1/32; a tenth of it while suspicious, a fiftieth while slow)
//! rise = median of the last 3 block medians − ref;  σ = scale of a single step within its block
//! S = clip(S + clip((b − ref − δ/2)/s, ±4), 0, 3h),  δ = 2 %
//! alarm: S > h and rise ≥ max(least, k·s, k·σ/2)
//! ticket: least 2 %, k = 3.5, none of the three better than 0.5 of the worst, and a minute lost
//! page: least 10 % for five minutes, k = 4.5, and the last no better than 0.8; or ten minutes lost
//! ```
//! (Page's CUSUM on block medians; up to half of a block may be pauses.) The least effect does most
//! of the work against autocorrelation. `s` holds the slow wander of a shared cluster, σ the noise
//! of the host; a slow-down that has lasted 16 blocks needs two less of either. Three blocks below
//! the reference lower it at once: it follows a run that gets faster. A slow step is often followed
//! by a few that recover from it: hence the last condition. The first 64 samples judge nothing, a
//! ticket of the first 256 needs the k of a page, and after them the reference is taken anew:
//! clocks, caches and expert routers settle.
//!
//! Who is notified follows from what the slow-down costs. The time lost is the sum over the blocks
//! since its onset of their duration times `1 − exp(ref − b)`. A ticket has lost `ticket_lost`. A
//! page is `page` slower for `page_after`, or has lost `page_lost`; a run that is younger than that
//! has been slow for a quarter of its life. Where `page_when_lost` and the price of the run are
//! known, a page has cost so many dollars instead. Of lines that cover many steps, 6 in a row
//! that differ little stand for their blocks: 24 of them may take an hour.
//!
//! A droop that ends in a restart and grows again is one fault: from the third cycle on it stays
//! one incident until a whole cycle passes without it. The finding gives its cost: a step of t
//! seconds that grows by a share g within L steps loses `L·t·g/2` seconds a cycle, and half of that
//! where the run is restarted twice as often.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::lost_time::{Loss, Worth};
use crate::detector::draft::Draft;
use crate::detector::shared::{PRINTED, Shared, Source, Speed, Standard};
use crate::detector::{JudgedStep, StepDetector};
use crate::expectation::Expectation;
use crate::sample::{StepSample, rounding};
use crate::stats::block::Block;
use crate::stats::cusum::Cusum;
use crate::stats::latch::Latch;
use crate::stats::median::Window;
use crate::stats::robust::Robust;
use crate::stats::trend;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Bound of the CUSUM, in scales of a block: two blocks at the cap of 4 pass 6. By Siegmund's
    /// formula independent normal blocks do so once in 8·10⁵ blocks where their scale is 1 %, and
    /// more seldom where it is smaller.
    pub h: f64,
    /// Share by which the usual step has become slower, at least: engineering limits.
    pub ticket: f64,
    pub page: f64,
    /// The same in scales of the noise, and how many fewer do when it lasts. The median of three
    /// independent normal blocks has 0.67 of their scale, so 3.5 and 4.5 are 5.2 and 6.7 of its
    /// own: 9·10⁻⁸ and 9·10⁻¹² of a normal distribution lie above. The 1.5 and 2.5 that do when it
    /// lasts leave 1.3 % and 9·10⁻⁵; 16 blocks in a row do the rest.
    pub ticket_sigmas: f64,
    pub page_sigmas: f64,
    pub lasting_sigmas: f64,
    /// Share of the slow-down that may be left when the incident ends.
    pub clear: f64,
    /// How much of the run's time must be lost, since the onset.
    pub ticket_lost: Span,
    pub page_lost: Span,
    /// How long it must be slower by `page`, by the clock: with short steps many blocks are only a
    /// moment.
    pub page_after: Span,
    /// Dollars lost since the onset that page, instead of `page`, `page_after` and `page_lost`,
    /// where `cost_per_gpu_hour` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_when_lost: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            h: 6.0,
            ticket: 0.02,
            page: 0.10,
            ticket_sigmas: 3.5,
            page_sigmas: 4.5,
            lasting_sigmas: 2.0,
            clear: 0.4,
            ticket_lost: Span::secs(60),
            page_lost: Span::secs(600),
            page_after: Span::secs(300),
            page_when_lost: None,
        }
    }
}

/// Half of the smallest slow-down that is detected.
const DRIFT: f64 = 0.01;
/// Largest score of one block, in scales, so that none alone can alarm.
const CAP: f64 = 4.0;
/// Smallest scale of a block: step times are printed with three digits.
const FLOOR: f64 = 0.0025;
/// Scale before there is any experience.
const FIRST_SCALE: f64 = 0.005;
/// Weight of a block in what is usual, in the long run.
const RATE: f64 = 1.0 / 32.0;
/// Further weight of a block that is faster than usual: the reference is what the run can do.
const DOWN: f64 = 1.0 / 8.0;
/// Weight of a block while it may be slow, and while it is: what is lost is measured by what was
/// usual before, for hours.
const WHILE_SUSPICIOUS: f64 = 0.1;
const WHILE_SLOW: f64 = 0.02;
/// The number of blocks at the start that are not representative: compilation, cold caches.
const SKIPPED: u32 = 2;
/// Blocks before the first judgement.
const YOUNG: u32 = 8;
/// Blocks after which the usual level is taken anew, because a cold machine has another one.
const SETTLED: u32 = 32;
/// The number of blocks between two measurements of the run's speed for other runs.
const MEASURED: u32 = 32;
/// Blocks that make a slow-down a lasting one.
const LASTING: u32 = 16;
/// Share of the worst of the last blocks, of the peak, that makes an end a sudden one. This and the
/// next six are engineering limits: they describe the course of a slow-down, which chance alone
/// does not begin.
const SUDDEN: f64 = 0.7;
/// Share of the worst block below which it is getting better by itself.
const RECOVERING: f64 = 0.8;
/// Share of it that all of the last blocks must have: two blocks may share one short burst.
const HOLDS: f64 = 0.5;
/// Blocks that a level must hold.
const HELD: usize = 3;
/// Growth of a cycle, at least, and cycles that make a sawtooth.
const CYCLE: f64 = 0.04;
const CYCLES: u32 = 3;
/// A line of so many steps varies less than a step, and comes seldom.
const SPARSE: i64 = 3;
/// Slow lines in a row that page, where lines are sparse.
const SLOW_LINES: u32 = 6;
/// How far they may differ, in logarithms: what differs more is no level, but stalls or a restart.
/// An engineering limit.
const STEADY: f64 = 0.25;
/// Share of the noise of a single step that the median of a block has, with some room: of 8
/// independent normal values it is 0.41.
const OF_SIGMA: f64 = 0.5;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MfuDroop {
    latch: Latch,
    source: Source,
    held: [f32; HELD],
    blocks: u32,
    level: Robust<HELD>,
    /// Scale of a single step within its block.
    sigma: f64,
    cusum: Cusum,
    history: Window<32>,
    kind: Kind,
    onset: i64,
    peak: f64,
    better: u32,
    slow_for: u32,
    loss: Loss,
    /// Used if lines are sparse.
    lines: Option<Box<SlowLines>>,
    #[serde(skip)]
    grain: f64,
    /// `None` until there was a cycle.
    cycles: Option<Box<Cycles>>,
}

/// Lines in a row that are slow enough for a page, each of many steps.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct SlowLines {
    n: u32,
    /// The step of the first of them.
    onset: i64,
    /// When the line before the first of them was written, and the last.
    since: Ts,
    last: Ts,
    /// The lowest and the highest of them.
    low: f64,
    high: f64,
}

/// Droops that end with a restart.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Cycles {
    n: u32,
    /// Step of the last cure, and steps from cure to cure.
    cured: i64,
    length: i64,
    growth: f64,
    /// Share of the growth that was gone after the cure.
    recovery: f64,
}

impl Default for MfuDroop {
    fn default() -> Self {
        Self {
            latch: Latch::default(),
            source: Source::None,
            held: [0.0; HELD],
            blocks: 0,
            level: Robust::default(),
            sigma: 0.0,
            slow_for: 0,
            loss: Loss::default(),
            lines: None,
            grain: 0.0,
            cusum: Cusum::default(),
            history: Window::default(),
            kind: Kind::MfuDroop,
            onset: 0,
            peak: 0.0,
            better: 0,
            cycles: None,
        }
    }
}

impl MfuDroop {
    fn block(&mut self, c: &Config, step: &mut JudgedStep<'_>, b: Block, speed: &Speed) {
        self.grain = speed.now.map_or(0.0, |timing| timing.grain);
        self.held.rotate_left(1);
        self.held[HELD - 1] = b.median as f32;
        self.blocks = self.blocks.saturating_add(1);
        if self.blocks <= SKIPPED {
            self.loss.block(step.sample.ts, 0.0, false, false, 0.0);
            return;
        }
        let spread =
            if self.blocks > SKIPPED + 1 { b.sigma.min(2.5 * self.sigma.max(FLOOR)) } else { b.sigma };
        self.sigma += (spread - self.sigma) * RATE.max(1.0 / f64::from(self.blocks - SKIPPED));
        if self.blocks <= SKIPPED + HELD as u32 {
            self.level.update(b.median, RATE, FIRST_SCALE.max(self.floor()));
            self.loss.block(step.sample.ts, 0.0, false, false, 0.0);
            return;
        }
        self.history.push(b.median);
        let score = ((b.median - self.reference() - DRIFT) / self.level.scale()).clamp(-CAP, CAP);
        self.cusum.add(b.first, score, 0.0, 3.0 * c.h);
        let above = b.median - self.reference();
        let (counts, pages) = (self.cusum.value() > 0.0 || self.latch.is_raised(), above >= c.page.ln_1p());
        self.loss.block(step.sample.ts, above, counts, pages, speed.dollars_per_hour);
        self.judge(c, step, b, speed.dollars_per_hour > 0.0);
        self.learn(c, b);
    }

    /// The level that the run usually holds, and as far on both sides of it as a ticket is; farther
    /// where single steps vary more.
    pub(crate) fn expectation(&self, c: &Config) -> Option<(Source, Expectation)> {
        if !c.enabled || self.source == Source::None || self.blocks < YOUNG {
            return None;
        }
        let noise = self.level.scale().max(self.sigma);
        let room = c.ticket.ln_1p().max(c.ticket_sigmas * noise);
        let at = |slower: f64| self.source.value(self.reference() + slower);
        let (a, b) = (at(-room), at(room));
        Some((self.source, Expectation { expected: at(0.0), low: a.min(b), high: a.max(b) }))
    }

    fn rise(&self) -> f64 {
        crate::stats::median::median(&mut self.held.clone()) - self.reference()
    }

    fn reference(&self) -> f64 {
        self.level.location()
    }

    /// The speed that the run holds, every `MEASURED` blocks.
    fn settled(&self) -> Option<Standard> {
        let due = self.blocks > SETTLED && self.blocks.is_multiple_of(MEASURED);
        due.then(|| Standard { source: self.source, slowness: self.reference(), runs: 1 })
    }

    /// The smallest scale of a block.
    fn floor(&self) -> f64 {
        FLOOR.max(rounding(self.grain))
    }

    fn learn(&mut self, c: &Config, b: Block) {
        let slow = b.median - self.reference() > c.ticket;
        let suspicious = slow || self.latch.is_raised() || self.cusum.value() > 0.5 * c.h;
        let alarm = self.latch.is_raised() || self.cusum.value() > c.h;
        let weight = if slow && alarm {
            WHILE_SLOW
        } else if suspicious {
            WHILE_SUSPICIOUS
        } else {
            1.0
        };
        self.level.update_weighted(b.median, RATE, self.floor(), weight);
        if b.median < self.reference() {
            self.level.pull(b.median, DOWN);
        }
        let faster = self.reference() - 2.5 * self.level.scale();
        if self.held.iter().all(|h| f64::from(*h) < faster) {
            self.level.anchor(self.floor());
        }
        // A slow-down that already costs time is not warm-up.
        let costs = self.latch.is_raised() || (self.cusum.value() > c.h && self.rise() > c.ticket);
        if self.blocks == SETTLED && !costs {
            self.level.set(self.history.median(), self.level.scale());
            self.cusum.reset();
        }
    }

    /// The severity of a rise; `None` if it is not reported.
    fn severity(&self, c: &Config, rise: f64, b: Block, now: Ts, priced: bool) -> Option<Severity> {
        if self.blocks < YOUNG || self.cusum.value() <= c.h {
            return None;
        }
        let less = if self.slow_for >= LASTING { c.lasting_sigmas } else { 0.0 };
        // A level from a few blocks of a machine that still warms up is too inexact for small
        // rises.
        let ticket_sigmas = if self.blocks <= SETTLED { c.page_sigmas } else { c.ticket_sigmas };
        let noise = self.level.scale().max(OF_SIGMA * self.sigma);
        let printed = PRINTED * self.grain;
        let reaches =
            |least: f64, sigmas: f64| rise >= least.ln_1p().max((sigmas - less) * noise).max(printed);
        let left = b.median - self.reference() + self.half_grain();
        if !reaches(c.ticket, ticket_sigmas) || !(self.holds() || self.latch.is_raised()) {
            None
        } else if reaches(c.ticket, c.page_sigmas)
            && left >= RECOVERING * self.worst()
            && self.loss.is_page(&self.worth(c, now), now, priced)
        {
            Some(Severity::Page)
        } else {
            self.loss.is_ticket(c.ticket_lost).then_some(Severity::Ticket)
        }
    }

    fn worth(&self, c: &Config, now: Ts) -> Worth {
        let after = c.page_after.min(self.loss.of_life(now));
        Worth { after, lost: c.page_lost, dollars: c.page_when_lost }
    }

    /// The worst of the last blocks, against the reference.
    fn worst(&self) -> f64 {
        f64::from(self.held.iter().copied().fold(f32::MIN, f32::max)) - self.reference()
    }

    /// Whether the slow-down was there in all of the last blocks.
    fn holds(&self) -> bool {
        let best = f64::from(self.held.iter().copied().fold(f32::MAX, f32::min)) - self.reference();
        best + self.half_grain() >= HOLDS * self.worst()
    }

    /// The rounding error of a printed block.
    fn half_grain(&self) -> f64 {
        0.5 * self.grain
    }

    fn judge(&mut self, c: &Config, step: &mut JudgedStep<'_>, b: Block, priced: bool) {
        let rise = self.rise();
        self.slow_for = if rise > c.ticket { self.slow_for.saturating_add(1) } else { 0 };
        if let Some(severity) = self.severity(c, rise, b, step.sample.ts, priced) {
            self.peak = self.peak.max(rise);
            self.better = 0;
            self.publish(step, b.median, rise, severity);
        } else if self.latch.is_raised() {
            self.maybe_clear(c, step, b);
        } else {
            self.peak = 0.0;
        }
    }

    /// Evaluates a line of many steps: a page need not wait for blocks of them.
    fn line(&mut self, c: &Config, step: &mut JudgedStep<'_>, level: f64, priced: bool) {
        let now = step.sample.ts;
        let rise = level - self.reference();
        let noise = self.level.scale().max(self.sigma);
        let least = c.page.ln_1p().max(c.ticket_sigmas * noise).max(PRINTED * self.grain);
        let young = self.blocks < YOUNG;
        let lines = self.lines.get_or_insert_default();
        let before = core::mem::replace(&mut lines.last, now);
        if young || rise < least {
            lines.n = 0;
            return;
        }
        (lines.low, lines.high) = (lines.low.min(level), lines.high.max(level));
        if lines.n == 0 || lines.high - lines.low > STEADY {
            let (onset, last) = (step.sample.step, lines.last);
            **lines = SlowLines { n: 0, onset, since: before, last, low: level, high: level };
        }
        lines.n += 1;
        let lasts = lines.n >= SLOW_LINES && now - lines.since >= c.page_after;
        let by_dollars = priced && c.page_when_lost.is_some();
        if lasts && !by_dollars && self.latch.severity() != Some(Severity::Page) {
            self.peak = self.peak.max(rise);
            self.better = 0;
            self.publish(step, level, rise, Severity::Page);
        }
    }

    /// Reports a slow-down. `level` is the present level, `rise` its distance from the reference.
    fn publish(&mut self, step: &mut JudgedStep<'_>, level: f64, rise: f64, severity: Severity) {
        let fresh = !self.latch.is_raised();
        if !self.latch.raise(severity) {
            return;
        }
        if fresh {
            let lines = self.lines.as_deref().map(|lines| lines.onset);
            self.onset = match lines {
                Some(onset) if self.cusum.value() <= 0.0 => onset,
                _ => self.cusum.onset(),
            };
            let rises: Vec<f64> = self.history.iter().map(|b| b - self.reference()).collect();
            self.kind = if trend::is_step(&rises) { Kind::ThroughputDrop } else { Kind::MfuDroop };
        }
        step.raise(self.finding(level, self.sentence(rise)), severity);
    }

    fn sentence(&self, rise: f64) -> Sentence {
        let how = if self.kind == Kind::ThroughputDrop { "at once" } else { "bit by bit" };
        Sentence::from(clause!(
            "the usual step became {slower} % slower {how} since step {since_step}: {signal} is {now} where it was {before}",
            slower = Fact::percent(rise.exp_m1(), 1),
            how,
            since_step = Fact::Step(self.onset),
            signal = self.source.signal(),
            now = self.source.value(rise + self.reference()),
            before = self.source.value(self.reference()),
        ))
        .and_perhaps(self.loss.words())
    }

    fn habit(&self) -> Sentence {
        let c = self.cycles.as_deref().cloned().unwrap_or_default();
        let growth = c.growth.exp_m1();
        let price = match self.source {
            Source::StepTime => {
                let lost = c.length as f64 * self.reference().exp() * growth / 2.0;
                clause!(
                    "it costs about {lost_seconds} s a cycle, half of which a restart in the middle would save: worth it if a \
                     restart takes less",
                    lost_seconds = lost,
                )
            }
            _ => clause!("it costs about {cost} % of the time", cost = Fact::percent(growth / 2.0, 1)),
        };
        Sentence::from(clause!(
            "for the {times}rd time the usual step grew {slower} % slower and {cured} % of that was cured at once, about every \
             {steps} steps: a restart cures it, for a while",
            times = c.n,
            slower = Fact::percent(growth, 0),
            cured = Fact::percent(c.recovery.clamp(0.0, 1.0), 0),
            steps = c.length,
        ))
        .and(price)
    }

    fn maybe_clear(&mut self, c: &Config, step: &mut JudgedStep<'_>, b: Block) {
        self.peak = self.peak.max(self.rise());
        let gone = b.median - self.reference() < c.clear * self.peak.max(c.ticket);
        self.better = if gone { self.better + 1 } else { 0 };
        if self.better == 1 && self.worst() > SUDDEN * self.peak && self.count_cure(step.sample, b) {
            step.raise(self.finding(b.median, self.habit()), Severity::Ticket);
        }
        if self.better >= 2 {
            self.cusum.reset();
        }
        let wait = |c: &Cycles| if c.n >= CYCLES { c.length * 3 / 2 } else { 0 };
        let waited = |c: &Cycles| step.sample.step.saturating_sub(c.cured) >= wait(c);
        let over = self.cycles.as_deref().is_none_or(waited);
        if self.better >= 2 && over && self.latch.clear() {
            self.loss.over();
            let why = clause!("the usual step is back at {now}", now = self.source.value(b.median));
            step.clear(self.finding(b.median, why));
            self.peak = 0.0;
        }
    }

    /// Counts a slope that ended suddenly, mostly by a restart. True when there are enough of them
    /// for a sawtooth.
    fn count_cure(&mut self, s: &StepSample, b: Block) -> bool {
        let left = b.median - self.reference();
        if self.kind != Kind::MfuDroop || self.peak < CYCLE {
            return false;
        }
        let c = self.cycles.get_or_insert_default();
        let length = s.step.saturating_sub(c.cured);
        let regular = c.n < 2 || (length / 2 < c.length && c.length / 2 < length);
        c.n = if regular { c.n + 1 } else { 1 };
        // The cycle began at the level after the cure, which may be below the usual level.
        let growth = self.peak - left.min(0.0);
        (c.length, c.cured, c.growth, c.recovery) = (length, s.step, growth, (self.peak - left) / growth);
        c.n == CYCLES
    }

    fn finding(&self, level: f64, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind: self.kind,
            signal: self.source.signal(),
            start_step: self.onset,
            value: self.source.value(level),
            expected: self.source.value(self.reference()),
            score: self.rise() / self.level.scale(),
            why: why.into(),
        }
    }
}

impl StepDetector for MfuDroop {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        shared.speed.slow = None;
        if !c.enabled {
            return;
        }
        let source = shared.speed.source();
        if source != self.source {
            *self = Self { source, ..Self::default() };
        }
        if let Some(timing) = shared.speed.now.filter(|_| step.sample.interval >= SPARSE) {
            self.line(c, step, timing.seconds.ln(), shared.speed.dollars_per_hour > 0.0);
        }
        if let Some(block) = shared.speed.block {
            self.block(c, step, block, &shared.speed);
            shared.speed.settled = self.settled();
        }
        shared.speed.slow = self.latch.severity();
    }
}

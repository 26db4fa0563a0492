//! Lasting slow-downs: `mfu_droop` creeps, `throughput_drop` comes at once.
//!
//! Medians of 8 steps of ln(step time), or of minus ln(throughput), against the level that this run usually holds, kept across
//! restarts, so a run that comes back slower is seen.
//! ```text
//! ref, s = bounded-influence level and scale of block medians (rate 1/32; a tenth of it while suspicious)
//! rise = median of the last 3 block medians − ref;  σ = scale of a single step within its block
//! S = clip(S + clip((b − ref − δ/2)/s, ±4), 0, 3h),  δ = 2 %;  alarm: S > h and rise ≥ max(least, k·s, k·σ)
//! ticket: least 2 %, k = 3;  page: least 4 %, k = 5, and the last block no better than 0.8 of the worst
//! ```
//! (Page's CUSUM on block medians; up to half of a block may be pauses.) The least effect does most of the work against
//! autocorrelation. `s` holds the slow wander of a shared cluster, σ the noise of the host; a slow-down that has lasted 16 blocks needs
//! two less of either. Three blocks below the reference lower it at once: it follows a run that gets faster. A slow step is often followed by a
//! few that recover from it: hence the last condition. The first 64 samples judge nothing, and after 256 the reference is taken anew: clocks,
//! caches and expert routers settle.
//!
//! A droop that ends in a restart and grows again is one fault: from the third cycle on it stays one incident until a
//! whole cycle passes without it.

use core::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::shared::{Shared, Source};
use crate::detector::StepDetector;
use crate::message::number;
use crate::sample::StepSample;
use crate::stats::block::Block;
use crate::stats::cusum::Cusum;
use crate::stats::latch::Latch;
use crate::stats::median::Window;
use crate::stats::robust::Robust;
use crate::stats::trend;
use crate::verdict::{Kind, Severity, Verdict};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Bound of the CUSUM.
    pub h: f64,
    /// Share by which the usual step has become slower, at least.
    pub ticket: f64,
    pub page: f64,
    /// The same in scales of the noise, and how many fewer do when it lasts.
    pub ticket_sigmas: f64,
    pub page_sigmas: f64,
    pub lasting_sigmas: f64,
    /// Share of the slow-down that may be left when the incident ends.
    pub clear: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            h: 6.0,
            ticket: 0.02,
            page: 0.04,
            ticket_sigmas: 3.0,
            page_sigmas: 5.0,
            lasting_sigmas: 2.0,
            clear: 0.4,
        }
    }
}

/// Half of the smallest slow-down worth noticing.
const DRIFT: f64 = 0.01;
const CAP: f64 = 4.0;
/// Smallest scale of a block: step times are printed with three digits.
const FLOOR: f64 = 0.0025;
/// Scale before there is any experience.
const FIRST_SCALE: f64 = 0.005;
/// Weight of a block in what is usual, in the long run.
const RATE: f64 = 1.0 / 32.0;
/// Blocks at the start that are no measure of anything: compilation, cold caches.
const SKIPPED: u32 = 2;
/// Blocks before the first judgement.
const YOUNG: u32 = 8;
/// Blocks after which the usual level is taken anew: that of a cold machine is not it.
const SETTLED: u32 = 32;
/// Blocks that make a slow-down a lasting one.
const LASTING: u32 = 16;
/// Share of the worst block below which it is getting better by itself.
const RECOVERING: f64 = 0.8;
/// Blocks that a level must hold.
const HELD: usize = 3;
/// Cycles that make a sawtooth.
const CYCLES: u32 = 3;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MfuDroop {
    config: Config,
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
    cycles: Cycles,
}

/// Droops that a restart cures.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Cycles {
    n: u32,
    /// Step of the last cure, and steps from cure to cure.
    cured: i64,
    length: i64,
    growth: f64,
}

impl MfuDroop {
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            latch: Latch::default(),
            source: Source::None,
            held: [0.0; HELD],
            blocks: 0,
            level: Robust::default(),
            sigma: 0.0,
            slow_for: 0,
            cusum: Cusum::default(),
            history: Window::default(),
            kind: Kind::MfuDroop,
            onset: 0,
            peak: 0.0,
            better: 0,
            cycles: Cycles::default(),
        }
    }

    pub fn configure(&mut self, config: &Config) {
        self.config = config.clone();
    }

    fn block(&mut self, s: &StepSample, b: Block, out: &mut Vec<Verdict>) {
        self.held.rotate_left(1);
        self.held[HELD - 1] = b.median as f32;
        self.blocks = self.blocks.saturating_add(1);
        if self.blocks <= SKIPPED {
            return;
        }
        let spread =
            if self.blocks > SKIPPED + 1 { b.sigma.min(2.5 * self.sigma.max(FLOOR)) } else { b.sigma };
        self.sigma += (spread - self.sigma) * RATE.max(1.0 / f64::from(self.blocks - SKIPPED));
        if self.blocks <= SKIPPED + HELD as u32 {
            self.level.update(b.median, RATE, FIRST_SCALE);
            return;
        }
        self.history.push(b.median);
        let score = ((b.median - self.reference() - DRIFT) / self.level.scale()).clamp(-CAP, CAP);
        self.cusum.add(b.first, score, 0.0, 3.0 * self.config.h);
        self.judge(s, b, out);
        self.learn(b);
    }

    fn rise(&self) -> f64 {
        crate::stats::median::median(&mut self.held.clone()) - self.reference()
    }

    fn reference(&self) -> f64 {
        self.level.location()
    }

    fn learn(&mut self, b: Block) {
        let slow = b.median - self.reference() > self.config.ticket;
        let suspicious = slow || self.latch.is_raised() || self.cusum.value() > 0.5 * self.config.h;
        self.level.update_weighted(b.median, RATE, FLOOR, if suspicious { 0.1 } else { 1.0 });
        let faster = self.reference() - 2.5 * self.level.scale();
        if self.held.iter().all(|h| f64::from(*h) < faster) {
            self.level.anchor(FLOOR);
        }
        if self.blocks == SETTLED && self.latch.severity() != Some(Severity::Page) {
            self.level.set(self.history.median(), self.level.scale());
            self.cusum.reset();
        }
    }

    /// How loudly a rise must be told.
    fn severity(&self, rise: f64, b: Block) -> Option<Severity> {
        let c = &self.config;
        if self.blocks < YOUNG || self.cusum.value() <= c.h {
            return None;
        }
        let less = if self.slow_for >= LASTING { c.lasting_sigmas } else { 0.0 };
        let noise = self.level.scale().max(self.sigma);
        let reaches = |least: f64, sigmas: f64| rise >= least.ln_1p().max((sigmas - less) * noise);
        let recovering = b.median - self.reference() < RECOVERING * self.worst();
        if reaches(c.page, c.page_sigmas) && !recovering {
            Some(Severity::Page)
        } else if reaches(c.ticket, c.ticket_sigmas) {
            Some(Severity::Ticket)
        } else {
            None
        }
    }

    /// The worst of the last blocks, against the reference.
    fn worst(&self) -> f64 {
        f64::from(self.held.iter().copied().fold(f32::MIN, f32::max)) - self.reference()
    }

    fn judge(&mut self, s: &StepSample, b: Block, out: &mut Vec<Verdict>) {
        let rise = self.rise();
        self.slow_for = if rise > self.config.ticket { self.slow_for.saturating_add(1) } else { 0 };
        if let Some(severity) = self.severity(rise, b) {
            self.peak = self.peak.max(rise);
            self.better = 0;
            self.tell(s, b, severity, out);
        } else if self.latch.is_raised() {
            self.maybe_clear(s, b, out);
        } else {
            self.peak = 0.0;
        }
    }

    fn tell(&mut self, s: &StepSample, b: Block, severity: Severity, out: &mut Vec<Verdict>) {
        let fresh = !self.latch.is_raised();
        if !self.latch.raise(severity) {
            return;
        }
        if fresh {
            self.onset = self.cusum.onset();
            let history: Vec<f64> = self.history.iter().collect();
            self.kind = if trend::is_step(&history) { Kind::ThroughputDrop } else { Kind::MfuDroop };
        }
        out.push(self.finding(b.median, self.sentence()).raise(s, severity));
    }

    fn sentence(&self) -> String {
        let slower = self.rise().exp_m1() * 100.0;
        let how = if self.kind == Kind::ThroughputDrop { "at once" } else { "bit by bit" };
        let mut text = format!(
            "the usual step became {slower:.1} % slower {how} since step {}: {} is {} where it was {}",
            self.onset,
            self.source.signal(),
            number(self.source.value(self.rise() + self.reference())),
            number(self.source.value(self.reference()))
        );
        if self.cycles.n >= CYCLES {
            let _ = write!(
                text,
                "; it has grown back after each of {} restarts, by {:.0} % in about {} steps: a restart cures it, for a while",
                self.cycles.n,
                self.cycles.growth.exp_m1() * 100.0,
                self.cycles.length
            );
        }
        text
    }

    fn maybe_clear(&mut self, s: &StepSample, b: Block, out: &mut Vec<Verdict>) {
        let gone = b.median - self.reference() < self.config.clear * self.peak.max(self.config.ticket);
        self.better = if gone { self.better + 1 } else { 0 };
        if self.better == 2 {
            self.count_cycle(s);
            self.cusum.reset();
        }
        let wait =
            if self.cycles.n >= CYCLES { self.cycles.cured + self.cycles.length * 3 / 2 } else { i64::MIN };
        if self.better >= 2 && s.step >= wait && self.latch.clear() {
            let why = format!("the usual step is back at {}", number(self.source.value(b.median)));
            out.push(self.finding(b.median, why).clear(s));
            self.peak = 0.0;
        }
    }

    /// A slope that ended at once was cured by something, mostly a restart.
    fn count_cycle(&mut self, s: &StepSample) {
        let c = &mut self.cycles;
        if self.kind != Kind::MfuDroop || self.peak < self.config.page {
            return;
        }
        let length = s.step - c.cured;
        let regular = c.length == 0 || (length < 2 * c.length && c.length < 2 * length);
        c.n = if regular { c.n + 1 } else { 1 };
        (c.length, c.cured, c.growth) = (length, s.step, self.peak);
    }

    fn finding(&self, level: f64, why: String) -> Finding {
        Finding {
            kind: self.kind,
            signal: self.source.signal(),
            start_step: self.onset,
            value: self.source.value(level),
            expected: self.source.value(self.reference()),
            score: self.rise() / self.level.scale(),
            why,
        }
    }
}

impl StepDetector for MfuDroop {
    fn step(&mut self, s: &StepSample, shared: &mut Shared, out: &mut Vec<Verdict>) {
        if !self.config.enabled {
            return;
        }
        let source = shared.speed.source();
        if source != self.source {
            *self = Self { source, ..Self::new(&self.config) };
        }
        if let Some(block) = shared.speed.block {
            self.block(s, block, out);
        }
    }
}

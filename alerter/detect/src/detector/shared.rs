//! Facts about a sample that several detectors need, computed once: the usual step time and its
//! pauses, whether the learning rate is still warming up, and recent excursions of gradient and
//! loss.

use serde::{Deserialize, Serialize};

use super::beginning::{Beginning, StartedOver};
use crate::sample::{StepClass, StepSample};
use crate::stats::attempt::Attempts;
use crate::stats::block::{Block, Blocks};
use crate::stats::median::median;
use crate::stats::season::Season;
use stepwatch_model::Severity;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Shared {
    pub speed: Speed,
    pub schedule: Schedule,
    pub coupling: Coupling,
    pub loss: LossScale,
    pub beginning: Beginning,
    attempt: u32,
    /// Logarithm of the sample's gradient norm, where that is a positive number.
    #[serde(skip)]
    pub log_norm: f64,
    /// The sample is the first of a new attempt.
    #[serde(skip)]
    pub restarted: bool,
    /// The new attempt began at an earlier step than the last one had reached, or the run started
    /// over.
    #[serde(skip)]
    pub rewound: bool,
    started: bool,
}

impl Shared {
    pub fn observe(&mut self, s: &StepSample) {
        self.restarted = self.started && s.attempt != self.attempt;
        self.attempt = s.attempt;
        self.beginning.observe(s);
        self.rewound = self.restarted && s.step <= self.schedule.step || self.started_over().is_some();
        if self.restarted {
            self.coupling = Coupling::default();
        }
        // Zero is what trainers print when they do not compute the norm.
        self.log_norm = s.grad_norm.filter(|g| g.is_finite() && *g > 0.0).map_or(f64::NAN, f64::ln);
        self.schedule.observe(s, self.restarted || !self.started);
        self.loss.observe(s);
        self.speed.observe(s);
        self.started = true;
    }

    /// The new beginning from scratch that was detected since the last sample.
    pub fn started_over(&self) -> Option<StartedOver> {
        self.beginning.started_over()
    }
}

/// The number of printed units by which a value must differ: a difference of one may be rounding.
pub const PRINTED: f64 = 1.5;
/// A step this many times the usual one is a pause, not a slow step: an engineering limit.
pub const PAUSE: f64 = 1.5;
/// Blocks whose median is the usual step time.
const LEVEL_BLOCKS: usize = 3;

/// The usual step time: the median of the last three block medians, in logarithms.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Speed {
    source: Source,
    blocks: Blocks,
    levels: [f32; LEVEL_BLOCKS],
    n_levels: u8,
    usual_seconds: f64,
    /// The season of its pauses; `None` until there was one.
    season: Option<Box<Season>>,
    attempts: Attempts,
    last_step: Option<i64>,
    /// The price of all GPUs of the run; 0 if no price is set or their number is unknown.
    #[serde(skip)]
    pub dollars_per_hour: f64,
    /// The step time that earlier runs of this configuration held, if the engine has it.
    pub standard: Option<Standard>,
    /// The speed of this run, each time that it is measured.
    #[serde(skip)]
    pub settled: Option<Standard>,
    /// This sample, if it carried a step time of a training step.
    #[serde(skip)]
    pub now: Option<Timing>,
    /// The block that this sample finished.
    #[serde(skip)]
    pub block: Option<Block>,
    /// How severely the run was reported to be slower than it was; `None` if it is not, or after a
    /// restart of ours until its next sample.
    #[serde(skip)]
    pub slow: Option<Severity>,
}

/// The usual slowness of runs of one configuration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Standard {
    pub source: Source,
    pub slowness: f64,
    /// The number of runs that it was learned from.
    pub runs: u32,
}

/// The signal that speed is judged by: the first of these that the run reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Source {
    #[default]
    None,
    Mfu,
    Tokens,
    StepTime,
}

impl Source {
    pub fn signal(self) -> &'static str {
        match self {
            Self::None | Self::StepTime => "step_time",
            Self::Tokens => "tokens_per_second",
            Self::Mfu => "mfu",
        }
    }

    /// The signal's value from the logarithm that rises as the run slows.
    pub fn value(self, slowness: f64) -> f64 {
        match self {
            Self::None | Self::StepTime => slowness.exp(),
            Self::Tokens | Self::Mfu => (-slowness).exp(),
        }
    }

    /// The best signal of a sample, what rises as the run slows, and how fine that is.
    fn best_of(s: &StepSample) -> Option<(Self, f64, f64)> {
        let usable = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
        if let Some(v) = usable(s.step_time) {
            Some((Self::StepTime, v, s.q.step_time / v))
        } else if let Some(v) = usable(s.tokens_per_second) {
            Some((Self::Tokens, v.recip(), s.q.tokens_per_second / v))
        } else {
            usable(s.mfu).map(|v| (Self::Mfu, v.recip(), s.q.mfu / v))
        }
    }
}

/// One timed training step.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Seconds of a step, or the inverse of the throughput.
    pub seconds: f64,
    /// Times the usual step; `None` until there is one.
    pub ratio: Option<f64>,
    /// Share by which two neighbouring values differ, as they are printed.
    pub grain: f64,
    /// A pause that was expected: it returns at a fixed gap, or stands at a round step where
    /// trainers evaluate and save.
    pub expected_pause: bool,
}

impl Speed {
    fn observe(&mut self, s: &StepSample) {
        (self.now, self.block, self.settled) = (None, None, None);
        let best = Source::best_of(s).filter(|(source, ..)| s.interval > 0 && *source >= self.source);
        let Some((source, seconds, grain)) = best else { return };
        if self.attempts.restarted(s.attempt) {
            self.blocks.clear();
            self.season = None;
            self.last_step = None;
        }
        if source > self.source {
            let (attempts, standard) = (self.attempts.clone(), self.standard);
            let dollars_per_hour = self.dollars_per_hour;
            *self = Self { source, attempts, dollars_per_hour, standard, ..Self::default() };
        }
        let interval = self.last_step.map_or(s.interval, |last| s.step.saturating_sub(last)).max(1);
        let first = self.last_step.is_none();
        self.last_step = Some(s.step);
        if first || s.class != StepClass::Train {
            return; // compilation, loading, or a pause that the trainer declared
        }
        let ratio = (self.n_levels > 0).then(|| seconds / self.usual_seconds);
        let expected_pause =
            ratio.filter(|r| *r > PAUSE).is_some_and(|r| self.is_expected(s.step, r - 1.0, interval));
        self.now = Some(Timing { seconds, ratio, grain, expected_pause });
        self.block = self.blocks.add(s.step, seconds.ln());
        if let Some(b) = self.block {
            self.levels.rotate_left(1);
            self.levels[LEVEL_BLOCKS - 1] = b.median as f32;
            self.n_levels = (self.n_levels + 1).min(LEVEL_BLOCKS as u8);
            self.usual_seconds = self.usual().exp();
        }
    }

    fn is_expected(&mut self, step: i64, size: f64, interval: i64) -> bool {
        self.season.get_or_insert_default().add(step, size, interval).is_some() || is_round(step, interval)
    }

    /// Slowness of the usual step; NaN before the first block.
    fn usual(&self) -> f64 {
        let mut levels = self.levels;
        median(&mut levels[LEVEL_BLOCKS - usize::from(self.n_levels)..])
    }

    pub fn source(&self) -> Source {
        self.source
    }
}

/// Round numbers at which trainers evaluate and save.
const ROUND: [i64; 6] = [250, 500, 1000, 2500, 5000, 10_000];
/// Logged steps per round one, at least: with fewer, any pause would stand beside a round step.
const ROUND_SHARE: i64 = 50;

/// Whether an evaluation or a checkpoint would happen at or just before this step.
fn is_round(step: i64, interval: i64) -> bool {
    let round = ROUND.into_iter().find(|r| *r >= interval.saturating_mul(ROUND_SHARE));
    step > 1 && round.is_some_and(|r| step.rem_euclid(r) <= interval.min(r / ROUND_SHARE).min(1))
}

/// The kind of number that the loss is, and the size of a nat in it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LossScale {
    /// Mean size of the first losses.
    first: f64,
    last: f64,
    n: u32,
    /// How far a loss is from the one before.
    moves: f32,
    /// Losses that were below zero, lately.
    negative: f32,
}

impl LossScale {
    /// Losses from which the first level of a run is taken.
    const FIRST: u32 = 4;
    /// Share of what a nat was worth at first that it is worth at least, however small the loss.
    const OF_FIRST: f64 = 0.25;
    /// Share of losses below zero that makes it no loss that falls.
    const SIGNED: f32 = 0.02;
    /// Usual moves that are as much as a nat, of a loss of either sign. The mean difference of two
    /// independent normal values is 1.13 sigmas, so these are 14 sigmas of a loss.
    const MOVES: f64 = 12.0;

    fn observe(&mut self, s: &StepSample) {
        let Some(loss) = s.loss.filter(|v| v.is_finite()) else { return };
        self.n = self.n.saturating_add(1);
        let n = f64::from(self.n);
        if self.n <= Self::FIRST {
            self.first += (loss.abs() - self.first) / n;
        }
        let rate = (1.0 / 256.0_f64).max(1.0 / n);
        let moved = if self.n == 1 { 0.0 } else { (loss - self.last).abs() };
        let cut = if self.n < 16 { moved } else { moved.min(4.0 * f64::from(self.moves)) };
        self.moves += ((cut - f64::from(self.moves)) * rate) as f32;
        self.last = loss;
        self.negative += (f32::from(u8::from(loss < 0.0)) - self.negative) * rate as f32;
    }

    /// Whether the loss is below zero now and then, as in reinforcement learning. It then has no
    /// trend and no zero, only a spread.
    pub fn is_signed(&self) -> bool {
        self.negative > Self::SIGNED
    }

    /// How much a nat is worth at this level: the loss of a language model that has learned
    /// something lies between 2 and 6. Below and above it may be anything, in any unit, and rises
    /// are judged relative to the level; of a loss that fell to nothing, relative to where it
    /// began.
    pub fn nat(&self, level: f64) -> f64 {
        let worth = |level: f64| (level / 2.0).min(1.0).max(level / 6.0);
        let nat = worth(level.abs()).max(Self::OF_FIRST * worth(self.first).min(1.0));
        if self.is_signed() { nat.max(Self::MOVES * f64::from(self.moves)) } else { nat }
    }
}

/// Samples in a row without a rise that end the warm-up of the learning rate.
const FLAT: u8 = 3;

/// The position of the run in its learning-rate schedule.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Schedule {
    lr: Option<f64>,
    flat: u8,
    /// The step at which the warm-up was over.
    over_at: Option<i64>,
    first_step: i64,
    step: i64,
}

impl Schedule {
    /// Steps that count as warm-up when the trainer logs no learning rate.
    pub const UNKNOWN_WARM_UP: i64 = 300;

    fn observe(&mut self, s: &StepSample, first: bool) {
        if first {
            *self = Self { first_step: s.step, ..Self::default() };
        }
        self.step = s.step;
        if let Some(lr) = s.lr.filter(|lr| lr.is_finite()) {
            let rising = self.lr.is_none_or(|before| lr > before * (1.0 + 1e-6));
            if self.flat < FLAT {
                self.flat = if rising { 0 } else { self.flat + 1 };
                self.over_at = (self.flat == FLAT).then_some(s.step);
            }
            self.lr = Some(lr);
        }
    }

    /// Whether losses and gradients have not yet found their level at this step.
    pub fn warming_up(&self) -> bool {
        match self.lr {
            Some(_) => self.over_at.is_none_or(|over| self.step < over),
            None => self.step - self.first_step < Self::UNKNOWN_WARM_UP,
        }
    }
}

/// Steps within which a gradient spike and a loss excursion are one event.
pub const COUPLED: i64 = 20;

/// Recent excursions of gradient and loss, each for the detector of the other: a spike of both is
/// worse than either.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Coupling {
    /// Step of the last gradient hit.
    grad_hit: Option<i64>,
    /// Loss CUSUM over its bound, and the steps for which it stands.
    loss_heat: f64,
    heat_from: i64,
    heat_to: i64,
}

impl Coupling {
    pub fn grad_hit(&mut self, step: i64) {
        self.grad_hit = Some(step);
    }

    /// `interval`: steps between two losses.
    pub fn set_loss_heat(&mut self, step: i64, interval: i64, heat: f64) {
        self.loss_heat = heat;
        (self.heat_from, self.heat_to) =
            (step.saturating_sub(COUPLED), step.saturating_add(interval.max(COUPLED)));
    }

    /// Whether the loss is halfway to an alarm near this step.
    pub fn loss_is_hot(&self, step: i64) -> bool {
        self.loss_heat > 0.5 && (self.heat_from..=self.heat_to).contains(&step)
    }

    /// `interval`: steps between two losses, which may be more than the two would otherwise be
    /// apart.
    pub fn grad_spiked_before(&self, step: i64, interval: i64) -> bool {
        let apart = self.grad_hit.map(|hit| step.saturating_sub(hit));
        apart.is_some_and(|apart| (0..=interval.max(COUPLED)).contains(&apart))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_ends_when_the_rate_stops_rising_and_stays_ended() {
        let mut sched = Schedule::default();
        let mut at = |step: i64, lr: f64| {
            sched
                .observe(&StepSample { step, lr: Some(lr), interval: 1, ..StepSample::default() }, step == 0);
            sched.warming_up()
        };
        assert!((0..100).all(|i| at(i, i as f64 * 1e-5)));
        (100..110).for_each(|i| {
            at(i, 1e-3);
        });
        assert!(!at(110, 1e-3) && !at(111, 1e-2), "a later rise is a fault, not a warm-up");
    }

    #[test]
    fn round_steps_scale_with_the_logging_interval() {
        assert!(is_round(1000, 1) && is_round(501, 1) && !is_round(3300, 1) && !is_round(1, 1));
        assert!(is_round(5000, 100) && !is_round(38_500, 100));
    }
}

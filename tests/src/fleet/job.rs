//! One training run: the duration of its steps on every rank, and the reasons.
//!
//! Steps are synchronous. A rank reads its batch and computes; then all wait for the slowest,
//! exchange gradients and update. So all ranks have the same step time, and differ only before the
//! wait.

use std::ops::Range;

use super::layout::GPUS;
use super::noise::Noise;

/// The shares of a step.
const DATA: f64 = 0.02;
const COMPUTE: f64 = 0.80;
const COMM: f64 = 0.10;
const OPTIM: f64 = 0.03;
/// The permanent differences of healthy ranks, and those from step to step.
const LOTTERY: f64 = 0.008;
const JITTER: f64 = 0.006;
/// The rate of random interruptions of a healthy rank, per step.
const HICCUP: f64 = 1e-6;
/// The amplitude of the throughput's daily cycle with the outside temperature.
const DIURNAL: f64 = 0.005;
const DAY: f64 = 86_400.0;

pub(super) const EVAL_EVERY: i64 = 900;
pub(super) const CKPT_EVERY: i64 = 300;
const FIRST_STEP: i64 = 20_000;
/// The deviation of the loss of one rank's batch from the mean, in nats.
const OWN_BATCH: f64 = 0.04;
/// The share of steps in which a corrupt GPU computes wrong values.
const CORRUPTS: f64 = 0.4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// The run hangs: live ranks wait in a collective.
    Stuck,
    /// There is no process.
    Down,
}

/// What a trainer measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// All parts, including the wait for others.
    Detailed,
    /// The computation by the GPU's own clock, without the wait.
    Coarse,
}

/// How the model is distributed over the ranks, and so which rank knows the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spread {
    /// Every rank has its own batch, and reports its loss; gradients are equal only after the
    /// exchange (FSDP, DDP).
    Data,
    /// Tensors over the GPUs of a node, layers over stages, data over the rest. The loss is known
    /// only at the end of the pipeline, as the mean of all; a non-finite value is detected on the
    /// rank that computed it, before the exchange (Megatron).
    Pipeline,
}

/// The cause of slowness.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Effect {
    /// These ranks compute longer by `factor`, which is reached over `ramp` steps.
    Compute { ranks: Range<usize>, factor: f64, ramp: f64 },
    /// These ranks wait for data, on a share of the steps.
    Data { ranks: Range<usize>, seconds: f64, share: f64 },
    /// The exchange takes longer, on a share of the steps.
    Comm { seconds: f64, share: f64 },
    /// Ranks pause at random for garbage collection, longer each time.
    Pauses { chance: f64, seconds: f64, growth: f64 },
}

/// The cause of wrong training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numeric {
    /// Gradients explode, and the loss follows and recovers; `rank` is the one that read the bad
    /// data, if it is a single one.
    Spike { rank: Option<usize> },
    /// The loss does not recover.
    Diverge,
    /// One rank computes wrong values at times, which spread with the gradients.
    Corrupt { rank: usize },
    /// One rank computes a non-finite value once; from the next step on, no rank has a finite one.
    Poison { rank: usize },
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) name: &'static str,
    /// The node of every 8 ranks.
    pub(super) slots: Vec<usize>,
    pub(super) stages: usize,
    pub(super) style: Style,
    pub(super) spread: Spread,
    pub(super) base: f64,
    pub(super) state: State,
    /// A number that rises with everything that cancels a planned step.
    pub(super) epoch: u32,
    pub(super) attempt: u32,
    pub(super) step: i64,
    pub(super) saved: i64,
    pub(super) began: i64,
    pub(super) alive: Vec<bool>,
    pub(super) effects: Vec<(Effect, i64)>,
    pub(super) numeric: Option<(Numeric, i64)>,
    /// A single large gradient, and a single long step.
    pub(super) blip: f64,
    pub(super) hiccup: f64,
    /// Whether the run has a fault, during which no other one occurs.
    pub(super) faulty: bool,
    /// A rank that hangs outside a collective, and the phase that it reports.
    pub(super) apart: Option<(usize, &'static str)>,
    /// The rank whose own loss deviates in this step, and by how much.
    struck: Option<(usize, f64)>,
    pub(super) noise: Noise,
    /// The seconds of the present step, for every rank.
    pub(super) data: Vec<f32>,
    pub(super) compute: Vec<f32>,
    /// The reported step time, including the pause before the step, as for a trainer that measures
    /// from step to step.
    pub(super) step_time: f64,
    together: f64,
    offset: Vec<f32>,
    stage_factor: Vec<f64>,
    drift: f64,
    loss_drift: f64,
}

impl Job {
    pub(super) fn new(name: &'static str, slots: Vec<usize>, base: f64, mut noise: Noise) -> Self {
        let ranks = slots.len() * GPUS;
        let spread = if noise.chance(0.5) { Spread::Data } else { Spread::Pipeline };
        let fits =
            |s: &usize| spread == Spread::Pipeline && slots.len().is_multiple_of(*s) && slots.len() / s >= 2;
        let stages = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        let mut job = Self {
            name,
            stages,
            style: if noise.chance(0.5) { Style::Detailed } else { Style::Coarse },
            spread,
            base,
            state: State::Running,
            epoch: 0,
            attempt: 0,
            step: FIRST_STEP,
            saved: FIRST_STEP,
            began: FIRST_STEP,
            alive: vec![true; ranks],
            effects: Vec::new(),
            numeric: None,
            blip: 1.0,
            hiccup: 0.0,
            faulty: false,
            apart: None,
            struck: None,
            data: vec![0.0; ranks],
            compute: vec![0.0; ranks],
            step_time: base,
            together: base,
            offset: Vec::new(),
            stage_factor: Vec::new(),
            drift: 0.0,
            loss_drift: 0.0,
            slots,
            noise: noise.fork(),
        };
        job.offset = (0..ranks).map(|_| job.lottery()).collect();
        job.balance(None);
        job
    }

    fn lottery(&mut self) -> f32 {
        (1.0 + LOTTERY * self.noise.normal()) as f32
    }

    /// Distributes layers over stages as evenly as possible: the first has the embedding, the last
    /// the logits.
    pub(super) fn balance(&mut self, heavy: Option<(usize, f64)>) {
        let last = self.stages - 1;
        self.stage_factor = (0..self.stages)
            .map(|s| match s {
                0 if last > 0 => 1.01,
                s if s == last && last > 0 => 1.03,
                _ => 1.0,
            })
            .collect();
        if let Some((stage, factor)) = heavy {
            self.stage_factor[stage] *= factor;
        }
    }

    pub(super) fn ranks(&self) -> usize {
        self.alive.len()
    }

    /// The first rank of the last stage, which has the loss.
    pub(super) fn leader(&self) -> usize {
        self.ranks() / self.stages * (self.stages - 1)
    }

    /// Puts another node into a slot.
    pub(super) fn seat(&mut self, slot: usize, node: usize) {
        self.slots[slot] = node;
        for rank in slot * GPUS..(slot + 1) * GPUS {
            self.offset[rank] = self.lottery();
        }
    }

    /// Begins a step at `now` after a pause; returns its duration.
    pub(super) fn plan(&mut self, now: f64, pause: f64) -> f64 {
        let per_stage = self.ranks() / self.stages;
        self.drift = 0.98 * self.drift + 0.001 * self.noise.normal();
        let weather = 1.0 + self.drift + DIURNAL * (core::f64::consts::TAU * now / DAY).sin();
        for rank in 0..self.ranks() {
            let stage = self.stage_factor[rank / per_stage];
            let jitter = 1.0 + JITTER * self.noise.normal();
            let compute = self.base * COMPUTE * stage * weather * jitter * f64::from(self.offset[rank]);
            self.compute[rank] = compute as f32;
            self.data[rank] = (self.base * DATA * (1.0 + 0.3 * self.noise.unit())) as f32;
        }
        if self.noise.chance(HICCUP * self.ranks() as f64) {
            let rank = self.noise.index(self.alive.len());
            self.compute[rank] *= self.noise.between(1.03, 1.2) as f32;
        }
        let comm = self.suffer() + self.base * COMM * (1.0 + 0.03 * self.noise.normal());
        let slowest = self.data.iter().zip(&self.compute).map(|(d, c)| d + c).fold(0.0_f32, f32::max);
        self.together = f64::from(slowest) + comm + self.base * OPTIM + core::mem::take(&mut self.hiccup);
        self.step_time = self.together + pause;
        self.step_time
    }

    /// Applies the effects; returns the additional seconds of the exchange.
    fn suffer(&mut self) -> f64 {
        let mut comm = 0.0;
        for (effect, since) in core::mem::take(&mut self.effects) {
            let age = (self.step - since) as f64;
            match &effect {
                Effect::Compute { ranks, factor, ramp } => {
                    let grown = 1.0 + (factor - 1.0) * ((age + 1.0) / ramp.max(1.0)).min(1.0);
                    self.compute[ranks.clone()].iter_mut().for_each(|c| *c *= grown as f32);
                }
                Effect::Data { ranks, seconds, share } if self.noise.chance(*share) => {
                    for rank in ranks.clone() {
                        self.data[rank] += (seconds * (1.0 + 0.15 * self.noise.normal()).max(0.2)) as f32;
                    }
                }
                Effect::Comm { seconds, share } if self.noise.chance(*share) => {
                    comm += seconds * (1.0 + 0.1 * self.noise.normal()).max(0.2);
                }
                Effect::Pauses { chance, seconds, growth } => {
                    // The number of pausing ranks in a step is nearly Poisson; one more or less
                    // does not slow the step.
                    let many = (chance * self.ranks() as f64 + self.noise.unit()) as usize;
                    for _ in 0..many {
                        let rank = self.noise.index(self.alive.len());
                        let pause = (seconds + growth * age) * (1.0 + 0.2 * self.noise.normal());
                        self.compute[rank] += pause.max(0.0) as f32;
                    }
                }
                _ => {}
            }
            self.effects.push((effect, since));
        }
        comm
    }

    /// The seconds of a rank in each part of the step: data, compute, exchange and wait, update.
    pub(super) fn parts(&self, rank: usize) -> [f64; 4] {
        let (data, compute, optim) =
            (f64::from(self.data[rank]), f64::from(self.compute[rank]), self.base * OPTIM);
        [data, compute, (self.together - data - compute - optim).max(0.0), optim]
    }

    /// The loss and gradient norm of the ending step.
    pub(super) fn learn(&mut self) -> (f64, f64) {
        self.loss_drift = 0.9 * self.loss_drift + 0.006 * self.noise.normal();
        let loss = 1.7 + 6.0 * (self.step as f64).powf(-0.35) + self.loss_drift;
        let grad = 0.35 * (0.08 * self.noise.normal()).exp() * core::mem::replace(&mut self.blip, 1.0);
        self.struck = None;
        let Some((numeric, since)) = self.numeric else { return (loss, grad) };
        let age = (self.step - since) as f64;
        match numeric {
            Numeric::Spike { rank } if age <= 40.0 => {
                self.struck = rank.filter(|_| age == 0.0).map(|rank| (rank, 4.0));
                let grown = 4.0_f64.powf(age.min(5.0)) * (-(age - 5.0).max(0.0) / 5.0).exp();
                let lost = 2.9 * ((age - 3.0) / 2.0).clamp(0.0, 1.0) * (-(age - 6.0).max(0.0) / 8.0).exp();
                (loss + lost, grad * grown.max(1.0))
            }
            Numeric::Spike { .. } => (loss, grad),
            Numeric::Diverge => (loss + (0.04 * age).min(4.0), grad * (1.0 + 0.6 * age).min(60.0)),
            Numeric::Corrupt { rank } => {
                // At once, and then at times; the effect stays in the weights.
                let now = age == 0.0 || self.noise.chance(CORRUPTS);
                let off = self.noise.between(0.5, 3.0);
                self.struck = now.then_some((rank, off));
                (loss + (0.02 * age).min(3.0), grad * if now { 6.0 * (1.0 + off) } else { 1.5 })
            }
            Numeric::Poison { rank } if age == 0.0 => {
                self.struck = Some((rank, f64::NAN));
                (loss, f64::NAN)
            }
            Numeric::Poison { .. } => (f64::NAN, f64::NAN),
        }
    }

    /// The loss of a rank's own batch, if ranks have and log one.
    pub(super) fn own_loss(&self, rank: usize, loss: f64, noise: &mut Noise) -> Option<f64> {
        let off = self.struck.filter(|(struck, _)| *struck == rank).map_or(0.0, |(_, off)| off);
        (self.spread == Spread::Data).then(|| loss + OWN_BATCH * noise.normal() + off)
    }
}

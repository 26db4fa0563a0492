//! One training run: how long its steps take on every rank, and why.
//!
//! Steps are synchronous. A rank reads its batch and computes; then all wait for the slowest,
//! exchange gradients and update. So the step time is everyone's, and ranks differ only in what
//! they did before they waited.

use std::ops::Range;

use super::layout::GPUS;
use super::noise::Noise;

/// Shares of a step.
const DATA: f64 = 0.02;
const COMPUTE: f64 = 0.80;
const COMM: f64 = 0.10;
const OPTIM: f64 = 0.03;
/// How unlike each other healthy ranks are, for good and from step to step.
const LOTTERY: f64 = 0.008;
const JITTER: f64 = 0.006;
/// How often a healthy rank is interrupted for no reason, in steps.
const HICCUP: f64 = 1e-6;
/// The throughput follows the temperature outside.
const DIURNAL: f64 = 0.005;
const DAY: f64 = 86_400.0;

pub(super) const EVAL_EVERY: i64 = 900;
pub(super) const CKPT_EVERY: i64 = 300;
const FIRST_STEP: i64 = 20_000;
/// How far the loss of one rank's batch is from that of all, in nats.
const OWN_BATCH: f64 = 0.04;
/// Share of its steps that a GPU which computes nonsense does so in.
const CORRUPTS: f64 = 0.4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// It hangs: ranks that are alive wait in a collective.
    Stuck,
    /// No process is there.
    Down,
}

/// What a trainer times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Every part, the wait for others among them.
    Detailed,
    /// Computation by the GPU's own clock; nothing of the wait.
    Coarse,
}

/// How the model is spread over the ranks, and so which rank has what of the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spread {
    /// Every rank has a batch of its own, and reports the loss of that; gradients are one only
    /// after they were exchanged (FSDP, DDP).
    Data,
    /// Tensors over the GPUs of a node, layers over stages, data over what is left. The loss is
    /// known where the pipeline ends, and only as the mean of all; what is not finite is caught
    /// on the rank that computed it, before it is exchanged (Megatron).
    Pipeline,
}

/// What makes it slow.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Effect {
    /// These ranks compute longer by `factor`, reached over `ramp` steps.
    Compute { ranks: Range<usize>, factor: f64, ramp: f64 },
    /// These ranks wait for data, on a share of the steps.
    Data { ranks: Range<usize>, seconds: f64, share: f64 },
    /// Exchanging takes longer, on a share of the steps.
    Comm { seconds: f64, share: f64 },
    /// Any rank stops for a collection of garbage now and then, longer each time.
    Pauses { chance: f64, seconds: f64, growth: f64 },
}

/// What is wrong with what it learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numeric {
    /// Gradients explode, the loss follows and comes back; the rank that read the bad data, if it
    /// was one alone.
    Spike { rank: Option<usize> },
    /// It never comes back.
    Diverge,
    /// One rank computes nonsense now and then, and it spreads with the gradients.
    Corrupt { rank: usize },
    /// One rank computes something that is no number, once: from the next step on no rank has any.
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
    /// Raised by whatever makes a planned step void.
    pub(super) epoch: u32,
    pub(super) attempt: u32,
    pub(super) step: i64,
    pub(super) saved: i64,
    pub(super) began: i64,
    pub(super) alive: Vec<bool>,
    pub(super) effects: Vec<(Effect, i64)>,
    pub(super) numeric: Option<(Numeric, i64)>,
    /// A gradient that is large once, and a step that is long once.
    pub(super) blip: f64,
    pub(super) hiccup: f64,
    /// Something is wrong with it: nothing else befalls it meanwhile.
    pub(super) faulty: bool,
    /// Rank that hangs elsewhere than in a collective, and the phase that it reports.
    pub(super) apart: Option<(usize, &'static str)>,
    /// Whose own loss is off in this step, and by how much.
    struck: Option<(usize, f64)>,
    pub(super) noise: Noise,
    /// Seconds of the step that is under way, of every rank.
    pub(super) data: Vec<f32>,
    pub(super) compute: Vec<f32>,
    /// Of the step as it is reported: with the pause before it, as a trainer that times from step
    /// to step sees it.
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

    /// Layers are spread over stages as evenly as they can be: the first has the embedding, the
    /// last the logits.
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

    /// Another node takes a place.
    pub(super) fn seat(&mut self, slot: usize, node: usize) {
        self.slots[slot] = node;
        for rank in slot * GPUS..(slot + 1) * GPUS {
            self.offset[rank] = self.lottery();
        }
    }

    /// Begins a step at `now`, after a pause; how long it will take.
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

    /// Lets the effects work; seconds that the exchange takes longer.
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
                    // How many ranks pause in a step is nearly Poisson; one more or less makes no
                    // slower step.
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

    /// Seconds of a rank in each part of the step: data, compute, exchange and wait, update.
    pub(super) fn parts(&self, rank: usize) -> [f64; 4] {
        let (data, compute, optim) =
            (f64::from(self.data[rank]), f64::from(self.compute[rank]), self.base * OPTIM);
        [data, compute, (self.together - data - compute - optim).max(0.0), optim]
    }

    /// Loss and gradient norm of the step that ends.
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
                // At once, and then now and then; what it did stays in the weights.
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

    /// The loss of a rank's own batch, where the ranks have one each and log it.
    pub(super) fn own_loss(&self, rank: usize, loss: f64, noise: &mut Noise) -> Option<f64> {
        let off = self.struck.filter(|(struck, _)| *struck == rank).map_or(0.0, |(_, off)| off);
        (self.spread == Spread::Data).then(|| loss + OWN_BATCH * noise.normal() + off)
    }
}

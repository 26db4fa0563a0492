//! Many ranks report the same step; the detectors want one sample a step, as early as possible.
//!
//! One rank leads: the lowest that reports a loss or gradient norm. Its report makes the sample at once, so a spike
//! waits for nobody. While no rank has reported a loss, a step is judged when the next one begins. A non-finite value of any
//! other rank is passed on too, whenever it comes.

use serde::{Deserialize, Serialize};
use stepwatch_wire::{Event, names::metric};

use crate::sample::{StepClass, StepSample};
use crate::time::Ts;

use super::derived_step_time;

/// What a step report is, given what the rank reported before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    Next,
    /// The first rank to come back after a restart.
    Restarted,
    /// A further report of the rank's last step: another source of it, or a resend.
    Again,
    Duplicate,
    Stale,
}

/// Steps the leader may miss before another rank leads.
const LEADER_PATIENCE: u32 = 3;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Align {
    leader: Option<u32>,
    leader_missed: u32,
    /// The last step that became a sample, and its time if the report told it.
    last: Option<(i64, Option<Ts>)>,
    /// A step that waits for the leader, or for its end.
    pending: Option<Pending>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Pending {
    step: i64,
    ts: Ts,
    /// The report told its time; otherwise it is that of its arrival.
    told: bool,
    rank: u32,
    values: Values,
}

/// The signals of one report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Values {
    loss: Option<f64>,
    grad_norm: Option<f64>,
    lr: Option<f64>,
    loss_scale: Option<f64>,
    skipped: Option<f64>,
    loss_missing: bool,
    step_time: Option<f64>,
    tokens_per_second: Option<f64>,
    mfu: Option<f64>,
}

impl Values {
    fn of(e: &Event) -> Self {
        let mut v = Self { loss_missing: e.missing.iter().any(|m| m == metric::LOSS), ..Self::default() };
        let mut tokens = None;
        let mut reported = None;
        for (name, x) in e.m.iter() {
            match name {
                metric::LOSS => v.loss = Some(x),
                metric::GRAD_NORM => v.grad_norm = Some(x),
                metric::LR => v.lr = Some(x),
                metric::LOSS_SCALE => v.loss_scale = Some(x),
                metric::SKIPPED => v.skipped = Some(x),
                metric::STEP_TIME => v.step_time = Some(x),
                metric::TOKENS_PER_SECOND => v.tokens_per_second = Some(x),
                metric::TOKENS_PER_SECOND_PER_GPU => tokens = Some(x),
                metric::MFU => v.mfu = Some(x),
                metric::MFU_REPORTED | metric::TFLOPS_REPORTED => reported = Some(x),
                _ => {}
            }
        }
        // Per GPU or per job, by our MFU or the framework's: a droop is judged relative to itself.
        v.tokens_per_second = v.tokens_per_second.or(tokens);
        v.mfu = v.mfu.or(reported);
        v
    }

    /// Takes from `other` what is absent here.
    fn fill(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.loss, other.loss),
            (&mut self.grad_norm, other.grad_norm),
            (&mut self.lr, other.lr),
            (&mut self.loss_scale, other.loss_scale),
            (&mut self.skipped, other.skipped),
            (&mut self.step_time, other.step_time),
            (&mut self.tokens_per_second, other.tokens_per_second),
            (&mut self.mfu, other.mfu),
        ] {
            *mine = mine.or(theirs);
        }
        self.loss_missing = (self.loss_missing || other.loss_missing) && self.loss.is_none();
    }

    fn leads(&self) -> bool {
        self.loss.is_some() || self.grad_norm.is_some() || self.loss_missing
    }

    fn nonfinite(&self) -> bool {
        [self.loss, self.grad_norm].into_iter().flatten().any(|v| !v.is_finite())
    }
}

impl Align {
    /// Takes a rank's report of a step that is new to that rank; pushes the samples it completes. A sample with `interval` 0
    /// adds to a step already judged.
    pub(super) fn take(&mut self, at: Ts, rank: u32, step: i64, e: &Event, out: &mut Vec<StepSample>) {
        let (values, told) = (Values::of(e), e.ts.is_some());
        let judged = self.last.is_some_and(|(last, _)| step <= last);
        if values.nonfinite() && (judged || !self.accepts_leader(rank)) && self.leader != Some(rank) {
            out.push(nonfinite_only(step, at, values));
        }
        if judged {
            return;
        }
        if let Some(p) = self.pending.take_if(|p| p.step < step) {
            self.leader_missed += u32::from(self.leader.is_some());
            self.emit(p.step, p.ts, p.told, p.values, out);
        }
        let leads = values.leads() && self.accepts_leader(rank);
        match &mut self.pending {
            // Without a leader nobody knows who will report the loss: wait for the step to end.
            _ if leads => {
                self.pending = None;
                self.leader = Some(rank);
                self.leader_missed = 0;
                self.emit(step, at, told, values, out);
            }
            Some(p) => {
                if values.leads() && !p.values.leads() || rank < p.rank && !p.values.leads() {
                    (p.rank, p.values) = (rank, values);
                }
            }
            None => self.pending = Some(Pending { step, ts: at, told, rank, values }),
        }
    }

    /// Takes a further report of the rank's last step: what a log adds to a client that sends no loss. A step already judged is
    /// not judged again.
    pub(super) fn again(&mut self, step: i64, rank: u32, e: &Event, out: &mut Vec<StepSample>) {
        let Some(p) = self.pending.as_mut().filter(|p| p.step == step && p.rank == rank) else { return };
        p.values.fill(&Values::of(e));
        if p.values.leads() && self.accepts_leader(rank) {
            if let Some(p) = self.pending.take() {
                self.leader = Some(rank);
                self.leader_missed = 0;
                self.emit(p.step, p.ts, p.told, p.values, out);
            }
        }
    }

    pub(super) fn restart(&mut self) {
        self.pending = None;
        self.last = None;
        self.leader_missed = 0;
    }

    fn accepts_leader(&self, rank: u32) -> bool {
        match self.leader {
            None => true,
            Some(leader) => rank <= leader || self.leader_missed >= LEADER_PATIENCE,
        }
    }

    fn emit(&mut self, step: i64, at: Ts, told: bool, mut values: Values, out: &mut Vec<StepSample>) {
        let interval = self.last.map_or(1, |(last, _)| step - last).max(1);
        if values.step_time.is_none() && values.tokens_per_second.is_none() && values.mfu.is_none() {
            let before = self.last.and_then(|(_, before)| before).filter(|_| told);
            values.step_time = before.and_then(|before| derived_step_time(before, at, interval));
        }
        self.last = Some((step, told.then_some(at)));
        out.push(sample(step, at, interval, values));
    }
}

/// News that nobody may miss, from a rank that does not lead.
fn nonfinite_only(step: i64, at: Ts, values: Values) -> StepSample {
    let bad = |v: Option<f64>| v.filter(|v| !v.is_finite());
    let values = Values { loss: bad(values.loss), grad_norm: bad(values.grad_norm), ..Values::default() };
    sample(step, at, 0, values)
}

fn sample(step: i64, ts: Ts, interval: i64, v: Values) -> StepSample {
    StepSample {
        step,
        ts,
        attempt: 0,
        interval,
        class: StepClass::Train,
        loss: v.loss,
        grad_norm: v.grad_norm,
        lr: v.lr,
        loss_scale: v.loss_scale,
        skipped: v.skipped,
        loss_missing: v.loss_missing,
        step_time: v.step_time,
        tokens_per_second: v.tokens_per_second,
        mfu: v.mfu,
    }
}

//! The detectors of runs and nodes. Each has one file with its config and defaults, its formula
//! with the source, and its tests, and one line in the list below.

mod faults;
mod layers;
mod lost_time;
mod reported;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use crate::detector::shared::{Shared, Speed};
use crate::detector::{ClockDetector, JudgedStep, NodeAt, NodeDetector, RunAt, StepDetector};
use crate::expectation::Expectations;
use crate::node::NodeState;
use crate::registry::detectors;
use crate::run::{EnergyConfig, RunState};
use crate::sample::{Extra, StepSample};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use stepwatch_model::Finding;
use stepwatch_model::time::Ts;

detectors! {
    step {
        nonfinite: nonfinite::Nonfinite,
        lost_progress: lost_progress::LostProgress,
        loss_spike: loss_spike::LossSpike,
        loss_shift: loss_shift::LossShift,
        early_divergence: early_divergence::EarlyDivergence,
        learning: learning::Learning,
        grad_spike: grad_spike::GradSpike,
        grad_level_shift: grad_level_shift::GradLevelShift,
        mfu_droop: mfu_droop::MfuDroop,
        slow_start: slow_start::SlowStart,
        below_expectation: below_expectation::BelowExpectation,
        stall: stall::Stall,
        gc_tail: gc_tail::GcTail,
        step_time_jitter: step_time_jitter::StepTimeJitter,
        mfu_implausible: mfu_implausible::MfuImplausible,
        eval_gap: eval_gap::EvalGap,
        data_wait: data_wait::DataWait,
        activation_shift: activation_shift::ActivationShift,
        generic: generic::Generic,
        lr_coupling: lr_coupling::LrCoupling,
        layer_grad: layer_grad::LayerGrad,
    }
    clock {
        hang: hang::Hang,
        rank_dead: rank_dead::RankDead,
        ckpt_stale: ckpt_stale::CkptStale,
        ckpt_slow: ckpt_slow::CkptSlow,
        ckpt_cost: ckpt_cost::CkptCost,
        ckpt_upload: ckpt_upload::CkptUpload,
        ckpt_size: ckpt_size::CkptSize,
        ckpt_room: ckpt_room::CkptRoom,
        load_slow: load_slow::LoadSlow,
        eval_missing: eval_missing::EvalMissing,
        source_lost: source_lost::SourceLost,
        user_alert: user_alert::UserAlert,
        failure_reports: failure_reports::FailureReports,
        config_drift: config_drift::ConfigDrift,
        straggler: straggler::Straggler,
        first_failure: first_failure::FirstFailure,
        rank_loss: rank_loss::RankLoss,
        restart_loop: restart_loop::RestartLoop,
    }
    node {
        gpu_fault: gpu_fault::GpuFault,
        link_fault: link_fault::LinkFault,
        node_fault: node_fault::NodeFault,
        throttle: throttle::Throttle,
        ecc_trend: ecc_trend::EccTrend,
        peer: peer::Peer,
        gpu_waste: gpu_waste::GpuWaste,
    }
}

impl Detectors {
    /// Chooses the settings that are for this run alone, by its name.
    pub(crate) fn named(&mut self, run: &str) {
        self.below_expectation.named(&self.config.below_expectation, run);
    }

    /// What a save costs, once some were counted.
    pub(crate) fn save_cost(&self) -> Option<ckpt_cost::UsualSave> {
        self.ckpt_cost.usual()
    }

    /// The expected values of the next sample.
    pub fn expectations(&self) -> Expectations {
        let (c, shared) = (&self.config, &self.shared);
        Expectations {
            loss: self.loss_spike.expectation(&c.loss_spike, &shared.loss),
            grad_norm: self.grad_spike.expectation(&c.grad_spike),
            speed: self.mfu_droop.expectation(&c.mfu_droop),
        }
    }
}

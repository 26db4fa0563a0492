//! The list of the detectors of runs and nodes: the one line that registers each.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, NodeDetector, StepDetector};
use crate::detectors::shared::{Shared, Speed};
use crate::node::{NodeState, Tenants};
use crate::run::RunState;
use crate::sample::{Extra, StepSample};
use stepwatch_model::Finding;
use stepwatch_model::time::Ts;

/// One line a detector: its module under `detectors/` holds `Config`, and the detector itself; both
/// with serde and `Default`. Settings are the engine's, state is the run's: what a thousand runs
/// share is neither kept nor stored a thousand times.
macro_rules! detectors {
    (
        step { $($field:ident: $module:ident::$ty:ident,)* }
        clock { $($cfield:ident: $cmodule:ident::$cty:ident,)* }
        node { $($nfield:ident: $nmodule:ident::$nty:ident,)* }
    ) => {
        /// Settings of every detector; every key has a default.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct DetectorsConfig {
            $(pub $field: crate::detectors::$module::Config,)*
            $(pub $cfield: crate::detectors::$cmodule::Config,)*
            $(pub $nfield: crate::detectors::$nmodule::Config,)*
        }

        /// The state of every detector of one run.
        #[derive(Debug, Clone, Default, Serialize, Deserialize)]
        pub struct Detectors {
            #[serde(skip)]
            config: Arc<DetectorsConfig>,
            shared: Shared,
            $($field: crate::detectors::$module::$ty,)*
            $($cfield: crate::detectors::$cmodule::$cty,)*
        }

        impl Detectors {
            pub fn new(config: &Arc<DetectorsConfig>) -> Self {
                Self { config: Arc::clone(config), ..Self::default() }
            }

            /// Bytes that each keeps of a run, apart from what it keeps only now and then on the heap.
            pub fn sizes() -> Vec<(&'static str, usize)> {
                vec![
                    ("shared", size_of::<Shared>()),
                    $((stringify!($field), size_of::<crate::detectors::$module::$ty>()),)*
                    $((stringify!($cfield), size_of::<crate::detectors::$cmodule::$cty>()),)*
                ]
            }

            /// Takes over changed settings without forgetting what was learned.
            pub fn configure(&mut self, config: &Arc<DetectorsConfig>) {
                self.config = Arc::clone(config);
                $(self.$field.configured(&config.$field);)*
            }

            pub fn step(&mut self, s: &StepSample, out: &mut Vec<Finding>) {
                self.shared.observe(s);
                $(self.$field.step(&self.config.$field, s, &mut self.shared, out);)*
            }

            pub fn extra(&mut self, e: &Extra<'_>, out: &mut Vec<Finding>) {
                $(self.$field.extra(&self.config.$field, e, &self.shared, out);)*
            }

            pub fn speed(&self) -> &Speed {
                &self.shared.speed
            }

            pub fn speed_mut(&mut self) -> &mut Speed {
                &mut self.shared.speed
            }

            pub fn look(&mut self, now: Ts, run: &RunState, out: &mut Vec<Finding>) {
                $(self.$cfield.look(&self.config.$cfield, now, run, out);)*
            }

            pub fn deadline(&self, run: &RunState) -> Option<Ts> {
                let mut first: Option<Ts> = None;
                $(
                    if let Some(at) = self.$cfield.deadline(&self.config.$cfield, run) {
                        first = Some(first.map_or(at, |had| had.min(at)));
                    }
                )*
                first
            }
        }

        /// The state of every detector of one node.
        #[derive(Debug, Clone, Default, Serialize, Deserialize)]
        pub struct NodeDetectors {
            #[serde(skip)]
            config: Arc<DetectorsConfig>,
            $($nfield: crate::detectors::$nmodule::$nty,)*
        }

        impl NodeDetectors {
            pub fn new(config: &Arc<DetectorsConfig>) -> Self {
                Self { config: Arc::clone(config), ..Self::default() }
            }

            pub fn configure(&mut self, config: &Arc<DetectorsConfig>) {
                self.config = Arc::clone(config);
            }

            pub fn look(&mut self, now: Ts, node: &NodeState, tenants: Tenants<'_>, out: &mut Vec<Finding>) {
                $(self.$nfield.look(&self.config.$nfield, now, node, tenants, out);)*
            }

            pub fn deadline(&self, node: &NodeState) -> Option<Ts> {
                [$(self.$nfield.deadline(&self.config.$nfield, node)),*].into_iter().flatten().min()
            }
        }
    };
}

detectors! {
    step {
        nonfinite: nonfinite::Nonfinite,
        loss_spike: loss_spike::LossSpike,
        loss_shift: loss_shift::LossShift,
        learning: learning::Learning,
        grad_spike: grad_spike::GradSpike,
        grad_level_shift: grad_level_shift::GradLevelShift,
        mfu_droop: mfu_droop::MfuDroop,
        slow_start: slow_start::SlowStart,
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
        source_lost: source_lost::SourceLost,
        user_alert: user_alert::UserAlert,
        torchelastic_error: torchelastic_error::TorchelasticError,
        flight_recorder_dump: flight_recorder_dump::FlightRecorderDump,
        launcher_dead: launcher_dead::LauncherDead,
        config_drift: config_drift::ConfigDrift,
        straggler: straggler::Straggler,
        first_failure: first_failure::FirstFailure,
        rank_loss: rank_loss::RankLoss,
    }
    node {
        gpu_fault: gpu_fault::GpuFault,
        link_fault: link_fault::LinkFault,
        node_fault: node_fault::NodeFault,
        throttle: throttle::Throttle,
        ecc_trend: ecc_trend::EccTrend,
        peer: peer::Peer,
    }
}

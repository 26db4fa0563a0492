//! The detectors of runs and nodes, and the one list that registers them.

use serde::{Deserialize, Serialize};

use crate::detectors::shared::{Shared, Speed};
use crate::node::{NodeFacts, Tenants};
use crate::run::Facts;
use crate::sample::{Extra, StepSample};
use crate::time::Ts;
use crate::verdict::Verdict;

/// A detector of one run's steps. O(1) state, no clock: everything it knows is in `self` and in the samples.
pub trait StepDetector {
    /// Takes the next sample of the run. Steps rise within an attempt; a new attempt may start lower. `shared` holds what is already
    /// known of this sample, and what the detectors listed before have found in it.
    fn step(&mut self, s: &StepSample, shared: &mut Shared, out: &mut Vec<Verdict>);

    /// Takes what is told beside the samples; most detectors have no use for it.
    fn extra(&mut self, _e: &Extra<'_>, _shared: &Shared, _out: &mut Vec<Verdict>) {}
}

/// A detector of what does not happen: it looks at the whole run when time passes.
pub trait ClockDetector {
    /// Judges the run as it is at `now`; called when its deadline is due and when the run changed in a way that matters.
    fn look(&mut self, now: Ts, run: &Facts, out: &mut Vec<Verdict>);

    /// When it wants to look next if nothing else happens.
    fn deadline(&self, run: &Facts) -> Option<Ts>;
}

/// A detector of one node, whether or not a run uses it.
pub trait NodeDetector {
    /// Judges the node as it is at `now`; called when something new was read of it and when its deadline is due.
    fn look(&mut self, now: Ts, node: &NodeFacts, tenants: Tenants<'_>, out: &mut Vec<Verdict>);

    /// When it wants to look next if nothing else happens.
    fn deadline(&self, node: &NodeFacts) -> Option<Ts>;
}

/// One line a detector: its module under `detectors/` holds `Config` (serde, `Default`), and the detector itself (serde state),
/// built by `new(&Config)` and told of a reload by `configure(&Config)`.
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
        #[derive(Debug, Clone, Serialize, Deserialize)]
        pub struct Detectors {
            shared: Shared,
            $($field: crate::detectors::$module::$ty,)*
            $($cfield: crate::detectors::$cmodule::$cty,)*
        }

        impl Detectors {
            pub fn new(config: &DetectorsConfig) -> Self {
                Self {
                    shared: Shared::default(),
                    $($field: crate::detectors::$module::$ty::new(&config.$field),)*
                    $($cfield: crate::detectors::$cmodule::$cty::new(&config.$cfield),)*
                }
            }

            /// Takes over changed settings without forgetting what was learned.
            pub fn configure(&mut self, config: &DetectorsConfig) {
                $(self.$field.configure(&config.$field);)*
                $(self.$cfield.configure(&config.$cfield);)*
            }

            pub fn step(&mut self, s: &StepSample, out: &mut Vec<Verdict>) {
                self.shared.observe(s);
                $(self.$field.step(s, &mut self.shared, out);)*
            }

            pub fn extra(&mut self, e: &Extra<'_>, out: &mut Vec<Verdict>) {
                $(self.$field.extra(e, &self.shared, out);)*
            }

            pub fn speed(&self) -> &Speed {
                &self.shared.speed
            }

            pub fn speed_mut(&mut self) -> &mut Speed {
                &mut self.shared.speed
            }

            pub fn look(&mut self, now: Ts, run: &Facts, out: &mut Vec<Verdict>) {
                $(self.$cfield.look(now, run, out);)*
            }

            pub fn deadline(&self, run: &Facts) -> Option<Ts> {
                [$(self.$cfield.deadline(run)),*].into_iter().flatten().min()
            }
        }

        /// The state of every detector of one node.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        pub struct NodeDetectors {
            $($nfield: crate::detectors::$nmodule::$nty,)*
        }

        impl NodeDetectors {
            pub fn new(config: &DetectorsConfig) -> Self {
                Self { $($nfield: crate::detectors::$nmodule::$nty::new(&config.$nfield),)* }
            }

            pub fn configure(&mut self, config: &DetectorsConfig) {
                $(self.$nfield.configure(&config.$nfield);)*
            }

            pub fn look(&mut self, now: Ts, node: &NodeFacts, tenants: Tenants<'_>, out: &mut Vec<Verdict>) {
                $(self.$nfield.look(now, node, tenants, out);)*
            }

            pub fn deadline(&self, node: &NodeFacts) -> Option<Ts> {
                [$(self.$nfield.deadline(node)),*].into_iter().flatten().min()
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

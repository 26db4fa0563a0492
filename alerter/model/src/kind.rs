//! Severities, causes and kinds of incidents: the words that scripts, routes and dashboards match
//! on.

use serde::{Deserialize, Serialize};

/// Ordered: `page` wakes someone, `ticket` is for the day, `info` is an annotation of which nobody
/// is notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Info,
    Ticket,
    Page,
}

impl Severity {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Ticket => "ticket",
            Self::Page => "page",
        }
    }
}

/// The broad subject of an incident. A run has at most one open incident per cause. So a gradient
/// explosion, the loss spike that follows and the final NaN are one page and one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Loss and gradients.
    Numerics,
    /// The run makes steps, but slower than before.
    Speed,
    /// The run makes no steps.
    Progress,
    Checkpoint,
    /// Reports of the run are not received.
    Telemetry,
    /// Accelerators, and the links between them.
    Hardware,
    Config,
    /// A person or the training script reported it.
    User,
    /// A host, apart from its accelerators and links: storage, clock, memory, kernel.
    Node,
    /// A metric whose meaning only its owner knows.
    Signal,
    /// The alerter itself, or a storm of incidents that is reported as one.
    Alerting,
    /// A condition that another program watches.
    External,
}

impl Cause {
    /// The first cause in their order.
    pub const FIRST: Self = Self::Numerics;

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Numerics => "numerics",
            Self::Speed => "speed",
            Self::Progress => "progress",
            Self::Checkpoint => "checkpoint",
            Self::Telemetry => "telemetry",
            Self::Hardware => "hardware",
            Self::Config => "config",
            Self::User => "user",
            Self::Node => "node",
            Self::Signal => "signal",
            Self::Alerting => "alerting",
            Self::External => "external",
        }
    }
}

/// What an acknowledgement of a kind covers. A person who acknowledged one kind is not notified of
/// another kind of the same class, because both are the usual course of one fault. An acknowledged
/// [`Self::Lost`] also covers an [`Self::Excursion`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The loss may recover by itself.
    Excursion,
    /// The loss does not recover by itself.
    Lost,
    /// The run goes on at another level.
    Level,
    /// The run learns too little.
    Learning,
    /// The evaluation loss diverges from the training loss.
    Gap,
    /// Single steps are long.
    Pause,
    /// The step time varies.
    Uneven,
    /// Restarts do not help. An acknowledged [`Self::Loop`] covers all kinds of its cause: each
    /// restart brings them back.
    Loop,
    /// The kind has no class of its own: all such kinds of a cause are one class.
    OfCause,
}

/// The advice that a kind may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Go back to a checkpoint from before the onset.
    RollBack,
    /// Restart the run, if the restart pays back.
    Restart,
    /// Drain the node of the first suspect at the next checkpoint; the advice has the cost until
    /// then.
    DrainNode,
    /// Like [`Self::DrainNode`] without the cost, or inspect what the nodes share.
    DrainAtCheckpoint,
    /// The remedy for a run that stands still, or for the hardware under it.
    ByCause,
}

/// What else is known of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The onset is the step whose batch caused it: another run may spike at the same data.
    Batch,
    /// The same within a few steps of the onset, because the level of a loss lags.
    NearBatch,
    /// The gradients of single layers may explain it.
    Layers,
    /// A planned restart of the run looks the same.
    Restart,
    /// It is about one GPU or port.
    Device,
}

macro_rules! kinds {
    ($($name:ident $text:literal $cause:ident $class:ident $precedence:literal $advice:ident $title:literal [$($mark:ident)*];)*) => {
        /// Kinds of incident. The text forms are a contract: scripts, routes and dashboards match
        /// on them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Kind { $($name),* }

        impl Kind {
            pub const ALL: &[Self] = &[$(Self::$name),*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            pub fn cause(self) -> Cause {
                match self { $(Self::$name => Cause::$cause),* }
            }

            /// Whether the incident is about the alerter itself, and not about what it watches.
            pub fn is_of_alerter(self) -> bool {
                self.cause() == Cause::Alerting
            }

            /// Whether another program watches the condition.
            pub fn is_external(self) -> bool {
                self.cause() == Cause::External
            }

            /// What an acknowledgement of this kind covers.
            pub fn class(self) -> Class {
                match self { $(Self::$name => Class::$class),* }
            }

            /// Of two kinds of one severity, the higher number names the incident. A consequence
            /// ranks above its first sign (divergence above a spike), and broken hardware above the
            /// run that waits for it.
            pub fn precedence(self) -> u8 {
                match self { $(Self::$name => $precedence),* }
            }

            /// The advice that this kind may get.
            pub fn advice(self) -> Advice {
                match self { $(Self::$name => Advice::$advice),* }
            }

            pub fn has(self, mark: Mark) -> bool {
                match self { $(Self::$name => [$(Mark::$mark),*].contains(&mark)),* }
            }

            /// The page of `docs/runbooks/` that explains it.
            pub fn runbook(self) -> String {
                format!("{}.md", self.as_str())
            }

            /// A short human name for titles.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title),* }
            }
        }
    };
}

kinds! {
//  kind, name, cause, class, precedence, advice, title, [marks]
    Nonfinite          "nonfinite"              Numerics   Lost      6 RollBack          "NaN or infinity" [Batch Layers];
    GradSpike          "grad_spike"             Numerics   Excursion 1 ByCause           "gradient spike" [Batch Layers];
    GradInstability    "grad_instability"       Numerics   Excursion 3 RollBack          "unstable gradients" [Layers];
    GradLevelShift     "grad_level_shift"       Numerics   Level     0 ByCause           "gradient level shift" [];
    LossSpike          "loss_spike"             Numerics   Excursion 4 RollBack          "loss spike" [NearBatch Layers];
    Divergence         "divergence"             Numerics   Lost      5 RollBack          "divergence" [NearBatch Layers];
    LostProgress       "lost_progress"          Numerics   Level     5 RollBack          "progress lost" [];
    LossShift          "loss_shift"             Numerics   Level     2 RollBack          "loss level shift" [];
    Plateau            "plateau"                Numerics   Learning  0 ByCause           "loss plateau" [];
    NoLearning         "no_learning"            Numerics   Learning  0 ByCause           "no learning" [];
    MfuDroop           "mfu_droop"              Speed      OfCause   1 Restart           "MFU droop" [];
    ThroughputDrop     "throughput_drop"        Speed      OfCause   2 Restart           "throughput drop" [];
    GcTail             "gc_tail"                Speed      Uneven    0 Restart           "growing slow-step tail" [];
    StepTimeJitter     "step_time_jitter"       Speed      Uneven    0 ByCause           "step time jitter" [];
    Stall              "stall"                  Speed      Pause     0 ByCause           "stalled step" [Restart];
    Straggler          "straggler"              Speed      OfCause   0 DrainNode         "straggler" [];
    Hang               "hang"                   Progress   OfCause   3 ByCause           "hang" [Restart];
    EvalGap            "eval_gap"               Numerics   Gap       0 ByCause           "eval gap" [];
    CkptStale          "ckpt_stale"             Checkpoint OfCause   1 ByCause           "stale checkpoint" [];
    SourceLost         "source_lost"            Telemetry  OfCause   0 ByCause           "source lost" [Restart];
    FirstFailure       "first_failure"          Progress   OfCause   0 ByCause           "first failure" [];
    RankDead           "rank_dead"              Progress   OfCause   4 ByCause           "dead rank" [Restart];
    RestartLoop        "restart_loop"           Progress   Loop      5 ByCause           "restart loop" [];
    GpuFault           "gpu_fault"              Hardware   OfCause   9 ByCause           "GPU fault" [Device];
    LinkFault          "link_fault"             Hardware   OfCause   8 ByCause           "link fault" [Device];
    GpuWaste           "gpu_waste"              Config     OfCause   0 ByCause           "wasted GPUs" [];
    ConfigDrift        "config_drift"           Config     OfCause   3 ByCause           "config drift" [];
    MfuImplausible     "mfu_implausible"        Config     OfCause   0 ByCause           "implausible MFU" [];
    UserAlert          "user_alert"             User       OfCause   0 ByCause           "alert of the training script" [];
    TorchelasticError  "torchelastic_error"     Progress   OfCause   0 ByCause           "error of a rank" [];
    FlightRecorderDump "flight_recorder_dump"   Progress   OfCause   0 ByCause           "collective that did not end" [];
    LauncherDead       "launcher_dead"          Progress   OfCause   0 ByCause           "dead launcher" [];
    Throttle           "throttle"               Hardware   OfCause   1 DrainAtCheckpoint "slow GPU" [];
    EccTrend           "ecc_trend"              Hardware   OfCause   0 DrainAtCheckpoint "rising memory errors" [];
    Peer               "peer"                   Hardware   OfCause   0 DrainAtCheckpoint "unlike its peers" [];
    NodeFault          "node_fault"             Node       OfCause   7 ByCause           "node fault" [];
    SlowStart          "slow_start"             Speed      OfCause   0 ByCause           "slow start" [];
    BelowExpectation   "below_expectation"      Speed      OfCause   0 ByCause           "below expectation" [];
    LrCoupling         "lr_coupling"            Numerics   Learning  0 ByCause           "learning rate too high" [];
    DataWait           "data_wait"              Speed      OfCause   3 ByCause           "waiting for data" [];
    CkptSlow           "ckpt_slow"              Checkpoint OfCause   0 ByCause           "slow checkpoint" [];
    CkptCost           "ckpt_cost"              Checkpoint OfCause   0 ByCause           "costly checkpoints" [];
    CkptUpload         "ckpt_upload"            Checkpoint OfCause   0 ByCause           "checkpoint upload lag" [];
    CkptSize           "ckpt_size"              Checkpoint OfCause   0 ByCause           "incomplete checkpoint" [];
    CkptRoom           "ckpt_room"              Checkpoint OfCause   1 ByCause           "no room for checkpoints" [];
    LoadSlow           "load_slow"              Checkpoint OfCause   1 ByCause           "slow load of a checkpoint" [];
    EvalMissing        "eval_missing"           Telemetry  OfCause   0 ByCause           "missing evaluations" [];
    LayerGrad          "layer_grad"             Numerics   Excursion 0 ByCause           "gradient of a layer" [];
    ActivationShift    "activation_shift"       Numerics   Excursion 0 ByCause           "activations of a layer" [];
    RankLoss           "rank_loss"              Numerics   Excursion 0 ByCause           "loss of one rank" [];
    Generic            "generic"                Signal     OfCause   0 ByCause           "signal out of place" [];
    AlertStorm         "alert_storm"            Alerting   OfCause   0 ByCause           "alert storm" [];
    AlerterFault       "alerter_fault"          Alerting   OfCause   0 ByCause           "fault of the alerter" [];
    PrometheusAlert    "prometheus_alert"       External   OfCause   0 ByCause           "Prometheus alert" [];
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_kind_has_its_runbook() {
        let runbooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runbooks");
        for kind in Kind::ALL {
            assert!(runbooks.join(kind.runbook()).is_file(), "{kind:?}");
        }
    }

    #[test]
    fn each_kind_is_in_the_table_of_kinds_with_its_cause() {
        let table = include_str!("../../../docs/kinds.md");
        for kind in Kind::ALL {
            let (name, cause) = (format!("`{}`", kind.as_str()), format!("`{}`", kind.cause().as_str()));
            let is_row = |line: &str| {
                let mut cells = line.split('|').skip(1);
                cells.next().is_some_and(|kinds| kinds.contains(&name))
                    && cells.next().is_some_and(|causes| causes.contains(&cause))
            };
            assert!(table.lines().any(is_row), "{name} with {cause}");
        }
    }
}

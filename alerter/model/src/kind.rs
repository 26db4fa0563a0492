//! How bad, what about, and which kind: the words that scripts, routes and dashboards match on.

use serde::{Deserialize, Serialize};

/// Ordered: `page` wakes someone, `ticket` is for the day, `info` is an annotation that is told to
/// nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Info,
    Ticket,
    Page,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Ticket => "ticket",
            Self::Page => "page",
        }
    }
}

/// What an incident is about, coarsely. A run has at most one open incident a cause, so that a
/// gradient explosion, the loss spike it leads to and the NaN that ends it are one page and one
/// thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Loss and gradients.
    Numerics,
    /// The run moves, slower than it did.
    Speed,
    /// The run does not move.
    Progress,
    Checkpoint,
    /// We cannot see the run.
    Telemetry,
    /// Accelerators, and the links between them.
    Hardware,
    Config,
    /// A person or the training script said so.
    User,
    /// A host, apart from its accelerators and links: storage, clock, memory, kernel.
    Node,
    /// A number that only its owner knows the meaning of.
    Signal,
    /// The alerter itself, or so many incidents that they are one.
    Alerting,
    /// What another program watches.
    External,
}

impl Cause {
    /// The least of all, in their order.
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

macro_rules! kinds {
    ($($name:ident $text:literal $cause:ident $title:literal;)*) => {
        /// Kinds of incident. The text forms are a contract: scripts, routes and dashboards match on them.
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

            /// A short human name for titles.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title),* }
            }
        }
    };
}

kinds! {
    Nonfinite "nonfinite" Numerics "NaN or infinity";
    GradSpike "grad_spike" Numerics "gradient spike";
    GradInstability "grad_instability" Numerics "unstable gradients";
    GradLevelShift "grad_level_shift" Numerics "gradient level shift";
    LossSpike "loss_spike" Numerics "loss spike";
    Divergence "divergence" Numerics "divergence";
    LossShift "loss_shift" Numerics "loss level shift";
    Plateau "plateau" Numerics "loss plateau";
    NoLearning "no_learning" Numerics "no learning";
    MfuDroop "mfu_droop" Speed "MFU droop";
    ThroughputDrop "throughput_drop" Speed "throughput drop";
    GcTail "gc_tail" Speed "growing slow-step tail";
    StepTimeJitter "step_time_jitter" Speed "step time jitter";
    Stall "stall" Speed "stalled step";
    Straggler "straggler" Speed "straggler";
    Hang "hang" Progress "hang";
    EvalGap "eval_gap" Numerics "eval gap";
    CkptStale "ckpt_stale" Checkpoint "stale checkpoint";
    SourceLost "source_lost" Telemetry "source lost";
    FirstFailure "first_failure" Progress "first failure";
    RankDead "rank_dead" Progress "dead rank";
    GpuFault "gpu_fault" Hardware "GPU fault";
    LinkFault "link_fault" Hardware "link fault";
    ConfigDrift "config_drift" Config "config drift";
    MfuImplausible "mfu_implausible" Config "implausible MFU";
    UserAlert "user_alert" User "alert of the training script";
    TorchelasticError "torchelastic_error" Progress "error of a rank";
    FlightRecorderDump "flight_recorder_dump" Progress "collective that did not end";
    LauncherDead "launcher_dead" Progress "dead launcher";
    Throttle "throttle" Hardware "slow GPU";
    EccTrend "ecc_trend" Hardware "rising memory errors";
    Peer "peer" Hardware "unlike its peers";
    NodeFault "node_fault" Node "node fault";
    SlowStart "slow_start" Speed "slow start";
    LrCoupling "lr_coupling" Numerics "learning rate too high";
    DataWait "data_wait" Speed "waiting for data";
    CkptSlow "ckpt_slow" Checkpoint "slow checkpoint";
    LayerGrad "layer_grad" Numerics "gradient of a layer";
    ActivationShift "activation_shift" Numerics "activations of a layer";
    RankLoss "rank_loss" Numerics "loss of one rank";
    Generic "generic" Signal "signal out of place";
    AlertStorm "alert_storm" Alerting "alert storm";
    AlerterFault "alerter_fault" Alerting "fault of the alerter";
    PrometheusAlert "prometheus_alert" External "Prometheus alert";
}

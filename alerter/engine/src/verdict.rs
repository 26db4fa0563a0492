//! What a detector says, in the vocabulary that incidents, messages and `backtest` share.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::time::Ts;

/// Ordered: `page` wakes someone, `ticket` is for the day, `info` is an annotation that is told to nobody.
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

/// What an incident is about, coarsely. A run has at most one open incident a cause, so that a gradient explosion,
/// the loss spike it leads to and the NaN that ends it are one page and one thread.
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
    pub(crate) const FIRST: Self = Self::Numerics;

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

/// Someone or something to look at first, with the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suspect {
    /// `rank 17`, `node gpu-042`, `data batch at step 31215`.
    pub what: String,
    pub why: String,
}

/// What happened to a condition that a detector watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// It holds: opens an incident, or updates one (a higher severity raises it).
    Raise,
    /// It holds of something else too, of which whoever knows what was said before knows nothing: another GPU, another port.
    Another,
    /// There is more of the same, which is worth a word and no second call.
    More,
    /// It no longer holds.
    Clear,
    /// It happened and is already over: an incident that opens and resolves at once.
    Note,
    /// Nothing has been heard of it since [`Verdict::ts`], so that it counts as over; nobody said that it is.
    Lapse,
}

impl Change {
    /// It holds.
    pub fn raises(self) -> bool {
        self == Self::Raise || self.says_more()
    }

    /// It does not hold any more, as far as is known.
    pub fn ends(self) -> bool {
        matches!(self, Self::Clear | Self::Lapse)
    }

    /// It held before, of less.
    pub fn says_more(self) -> bool {
        matches!(self, Self::Another | Self::More)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub change: Change,
    pub kind: Kind,
    pub severity: Severity,
    /// The signal it was seen in: `loss`, `grad_norm`, `step_time`, ...
    pub signal: Cow<'static, str>,
    /// The last step the detector had been fed.
    pub step: i64,
    pub ts: Ts,
    /// Estimated onset.
    pub start_step: i64,
    pub value: f64,
    pub expected: f64,
    /// How far out, in the detector's own unit (mostly robust sigmas or CUSUM over its bound).
    pub score: f64,
    /// One sentence a person can act on, with numbers.
    pub why: String,
    pub suspects: Vec<Suspect>,
}

impl Verdict {
    /// What it is about, without the circumstances.
    pub fn what(&self) -> &str {
        self.why.split("; ").next().unwrap_or_default()
    }
}

//! Evidence against a target.

use serde::{Deserialize, Serialize, Serializer};

use crate::elsewhere::Elsewhere;
use crate::fault::Fault;
use crate::kind::Kind;
use crate::number::Num;
use crate::target::{Place, Target};
use crate::time::{Span, Ts};

/// One observation, and its weights in the ranking.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Evidence {
    pub observation: Observation,
    /// The target of the observation if it is not the suspect itself, such as a GPU of the
    /// suspected node.
    pub of: Option<Target>,
    /// When the observation began, by the alerter's clock. `None` if it was not ranked.
    pub since: Option<Ts>,
    /// The strength: 1 for a reported fact, ln(1 + S/h) for a statistic S with the bound h. `None`
    /// if it was not ranked.
    pub strength: Option<Num>,
    /// The score of the suspect, stored with the last piece of evidence that counted.
    pub score: Option<Num>,
}

/// An observed number, the expected one, and their unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measure {
    pub value: Num,
    pub expected: Option<Num>,
    pub unit: &'static str,
}

/// A setting with another value than before; `None` if it is not set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingChange {
    pub key: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// The attempt that was good last: it made many steps at its usual speed, without an incident about
/// its numbers or its speed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastGood {
    Run {
        run: String,
    },
    /// An earlier attempt of the run.
    Attempt {
        attempt: u32,
    },
    /// The same attempt, before its setup changed.
    Before,
}

/// How a process failed, as far as its last log lines show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Course {
    Broke,
    /// The process had no last log lines.
    Silent,
    /// The process failed because another one had failed.
    Followed,
}

/// Why hardware slows a GPU down, if many nodes may share the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slowed {
    Power,
    Heat,
}

/// The stage of a checkpoint that is at work while the run makes steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaveStage {
    Write,
    Upload,
}

/// The part of a node through which its saves go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SavePart {
    Interface,
    Disk,
}

/// What was observed or reported. The fields `words` and `reason` have unchanged text of other
/// programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Observation {
    /// The rank's last step is `step`; the others made a later one.
    StoppedEarly {
        step: i64,
        others: i64,
    },
    NoHeartbeat {
        seconds: u32,
    },
    AllStopped {
        ranks: u64,
        step: i64,
    },
    Died {
        at: Ts,
        words: String,
        course: Course,
    },
    FailedFirst {
        at: Ts,
        words: String,
        course: Course,
    },
    /// A launcher or a file reported the failure of a rank.
    Reported {
        words: String,
        course: Course,
    },
    ExporterSilent {
        since: Ts,
        reason: String,
    },
    ExporterLost {
        source: String,
        reason: String,
    },
    SourceLost {
        reason: String,
    },
    /// The node's ranks reported nothing when the other ranks began to die.
    RanksSilent,
    NodeSilent {
        lasts: Span,
    },
    /// The rank has computed `value` times as long as the `others` of its stage since a step.
    ComputesLonger {
        value: Num,
        others: u32,
        stage: Option<u32>,
        since_step: i64,
    },
    /// Many ranks are slow in the same way.
    UnevenWork,
    /// The slowest rank changes from step to step.
    SlowestRotates,
    /// The stage's ranks compute `value` times as long as those of the other stages.
    StageSlower {
        stage: u32,
        value: Num,
    },
    /// The loss of one rank differs. `times` is the number of steps in which it did, if they were
    /// weighed.
    OwnLoss {
        step: i64,
        value: Num,
        expected: Num,
        others: u32,
        times: Option<u32>,
    },
    /// The rank waits for data; `value` is a share of the compute time of a step.
    WaitsForData {
        since_step: i64,
        value: Num,
    },
    AllWaitForData {
        value: Num,
        expected: Num,
    },
    StepsWaitForData,
    CheckpointOpen,
    CheckpointSlower,
    /// The checkpoint was loaded in `value` seconds, by the others in `expected`; `runs`: it is
    /// still being loaded. `rates` are in bytes a second: its own, or the highest that it may have
    /// while it is being loaded, and the usual one.
    LoadsLonger {
        value: Num,
        expected: Num,
        runs: bool,
        rates: Option<[Num; 2]>,
    },
    /// Steps take `value` seconds in the windows of a stage and `expected` outside: so in `slower`
    /// of the last `windows`.
    SlowerWhileSaving {
        stage: SaveStage,
        value: Num,
        expected: Num,
        slower: u32,
        windows: u32,
    },
    /// Steps took `expected` seconds before the last `saves` saves and take `value` after them, and
    /// longer after each of them than before it.
    EachSaveSlower {
        saves: u32,
        value: Num,
        expected: Num,
    },
    /// A part of `nodes` of `known` nodes is used to `value` of what it can while `saving` nodes
    /// save at once, and usually to `expected`.
    FullWhileSaving {
        part: SavePart,
        nodes: u64,
        known: u64,
        saving: u32,
        value: Num,
        expected: Num,
    },
    /// Each rank saves `value` bytes a second while `nodes` save at once, and `expected` while
    /// `fewer` do.
    SlowerTogether {
        nodes: u32,
        fewer: u32,
        value: Num,
        expected: Num,
    },
    SetUpDifferently {
        key: String,
    },
    /// A key of the setup differs. `on` has the nodes with each value, if it is unknown which is
    /// right.
    Setting {
        key: String,
        value: String,
        expected: String,
        on: Option<[Vec<String>; 2]>,
    },
    /// A setting differs from that of the last good attempt, and explains the finding.
    ChangedSinceGood {
        change: SettingChange,
        good: LastGood,
    },
    /// Further differences from the last good attempt. `more` were left out.
    AlsoDifferent {
        changes: Vec<SettingChange>,
        more: u32,
        good: LastGood,
    },
    /// The ranks on the nodes where a setting has `value` compute longer in a step than those on
    /// the others, where it is `expected`; the medians, and how long the step of all takes.
    SettingComputesLonger {
        key: String,
        value: String,
        expected: String,
        nodes: u64,
        others: u64,
        seconds: Num,
        usual: Num,
        step: Option<Num>,
    },
    Fault {
        fault: Fault,
        slowed: Option<Slowed>,
    },
    /// A reading differs from those of the peers. `mean`: `value` is the average since that began.
    Reading {
        metric: String,
        value: Num,
        expected: Num,
        unit: ReadingUnit,
        mean: bool,
    },
    /// A GPU runs at a slow clock. Clocks are in hertz, power in watts, temperature in degrees
    /// Celsius; `reasons` are the driver's.
    SlowClock {
        value: Num,
        expected: Num,
        reasons: Vec<String>,
        temperature: Option<Num>,
        power: Option<[Num; 2]>,
        slowed: Option<Slowed>,
    },
    RowsRemapped {
        rows: Num,
        uncorrectable: bool,
    },
    MemoryErrors {
        value: Num,
        expected: Num,
    },
    IdleInCollective,
    WorksInCollective,
    /// `places` of all nodes share the evidence that `first` had first.
    Shared {
        places: u64,
        nodes: u64,
        first: Place,
        evidence: Vec<Evidence>,
    },
    NoFault {
        nodes: u64,
    },
    NothingStandsOut {
        ranks: u64,
        devices: u64,
    },
    SpikedElsewhere(Elsewhere),
    RateChanged {
        step: i64,
        value: Num,
        expected: Num,
        before: i64,
    },
    /// A layer deviates since a step. `together` layers began at that step; `out` of `layers`
    /// deviate.
    LayerOut {
        signal: String,
        value: Num,
        expected: Num,
        since_step: i64,
        together: u64,
        out: u64,
        layers: u64,
    },
    OutOfPlace,
    LowestEvaluation {
        name: String,
    },
    AlertFires {
        alert: String,
    },
    /// One incident of a storm.
    Incident {
        id: String,
        kind: Kind,
    },
    /// Links of several nodes went down at once. `nodes` has the nodes that are named, `total`
    /// their number.
    LinksDown {
        nodes: Vec<String>,
        total: u64,
        at_least: bool,
        words: String,
    },
    /// Text of another source, unchanged.
    Stated {
        words: String,
    },
    /// So many ranks have not said hello, while those of `there` have.
    RanksMissing {
        missing: u64,
        there: u64,
    },
    /// The rank has not begun the process group, unlike the `others`.
    LateInInit {
        others: u64,
    },
    /// The job has the node, and no rank of the run has said hello there.
    NoRankOnNode {
        job: String,
    },
    /// The node has no process of so many of its ranks, and processes of `there` others.
    NoProcess {
        missing: u64,
        there: u64,
    },
    /// So many ranks have a process on the node and have not said hello, while `there` have.
    ProcessSilent {
        ranks: u64,
        there: u64,
    },
    /// The node is not connected to the place where the ranks meet, unlike others.
    NotConnected {
        master: String,
        link: MasterLink,
        lasts: Span,
    },
    /// Ranks meet at the node, and none of `nodes` others gets an answer from it.
    MasterUnreached {
        master: String,
        nodes: u64,
    },
    /// NCCL's RAS gets no answer from the rank, of `ranks`. The host is empty if it is unknown.
    NoRasAnswer {
        host: String,
        ranks: u64,
    },
    /// A job is over on its node, and these training processes of it are left. The user is empty if
    /// unknown.
    ProcessesLeft {
        job: String,
        user: String,
        pids: Vec<u32>,
    },
}

/// What a node that is not connected to the master of its run has instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MasterLink {
    /// It tries to connect, and gets no answer.
    Unanswered,
    /// It does not even try, or is refused.
    Nothing,
}

/// The unit of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadingUnit {
    PerSecond,
    Celsius,
    Gigahertz,
    Watts,
    GigabitsPerSecond,
}

impl ReadingUnit {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PerSecond => "a second",
            Self::Celsius => "°C",
            Self::Gigahertz => "GHz",
            Self::Watts => "W",
            Self::GigabitsPerSecond => "Gbit/s",
        }
    }
}

impl Course {
    /// Order in the search for the first failure: 0 broke, 2 followed.
    pub fn rank(self) -> u8 {
        self as u8
    }
}

impl Slowed {
    const REASONS: [(&str, Self); 2] = [("power_brake", Self::Power), ("thermal", Self::Heat)];

    /// The first reason of NVML's names in a driver's reasons that explains the slow-down.
    pub fn first<S: AsRef<str>>(reasons: &[S]) -> Option<Self> {
        let is_among = |name: &str| reasons.iter().any(|reason| reason.as_ref().contains(name));
        Self::REASONS.into_iter().find(|(name, _)| is_among(name)).map(|(_, slowed)| slowed)
    }
}

impl From<Observation> for Evidence {
    fn from(observation: Observation) -> Self {
        Self { observation, of: None, since: None, strength: None, score: None }
    }
}

impl Evidence {
    /// Whether this is the same observation of the same target, whatever the weights. If a piece
    /// has no target or score of its own, a piece that has them contains it.
    pub(crate) fn is_known_from(&self, had: &Self) -> bool {
        let tenth = |score: Num| (10.0 * score.0).round();
        self.observation == had.observation
            && (self.of.is_none() || self.of == had.of)
            && self.score.is_none_or(|s| had.score.is_some_and(|h| tenth(s) == tenth(h)))
    }

    /// Whether this piece has the same place in a chain of evidence.
    pub(crate) fn is_like(&self, had: &Self) -> bool {
        self.of == had.of && self.score.is_none() == had.score.is_none() && self.is_known_from(had)
    }
}

impl Observation {
    /// Why hardware slows a GPU down.
    pub fn slowed(&self) -> Option<Slowed> {
        match self {
            Self::Fault { slowed, .. } | Self::SlowClock { slowed, .. } => *slowed,
            _ => None,
        }
    }

    /// How the process failed, by its last log lines.
    pub fn course(&self) -> Course {
        match self {
            Self::Died { course, .. } | Self::FailedFirst { course, .. } | Self::Reported { course, .. } => {
                *course
            }
            _ => Course::Broke,
        }
    }

    /// The measured number of the observation, if it has one.
    pub fn measure(&self) -> Option<Measure> {
        let of = |value: Num, expected: Option<Num>, unit| Some(Measure { value, expected, unit });
        let steps = |n: i64| Num(n as f64);
        match self {
            Self::StoppedEarly { step, others } => of(steps(*step), Some(steps(*others)), "step"),
            Self::NoHeartbeat { seconds } => of(Num(f64::from(*seconds)), None, "s"),
            Self::NodeSilent { lasts } => of(Num(lasts.as_secs_f64()), None, "s"),
            Self::ComputesLonger { value, .. } | Self::StageSlower { value, .. } => {
                of(*value, Some(Num(1.0)), "ratio")
            }
            Self::SettingComputesLonger { seconds, usual, .. } => of(*seconds, Some(*usual), "s"),
            Self::OwnLoss { value, expected, .. } => of(*value, Some(*expected), "loss"),
            Self::WaitsForData { value, .. } => of(*value, None, "ratio"),
            Self::AllWaitForData { value, expected }
            | Self::LoadsLonger { value, expected, .. }
            | Self::SlowerWhileSaving { value, expected, .. }
            | Self::EachSaveSlower { value, expected, .. } => of(*value, Some(*expected), "s"),
            Self::FullWhileSaving { value, expected, .. } => of(*value, Some(*expected), "ratio"),
            Self::SlowerTogether { value, expected, .. } => of(*value, Some(*expected), "bytes a second"),
            Self::Reading { value, expected, unit, .. } => of(*value, Some(*expected), unit.as_str()),
            Self::SlowClock { value, expected, .. } => of(*value, Some(*expected), "Hz"),
            Self::RowsRemapped { rows, .. } => of(*rows, None, "rows"),
            Self::MemoryErrors { value, expected } => of(*value, Some(*expected), "errors an hour"),
            Self::Shared { places, nodes, .. } => of(Num(*places as f64), Some(Num(*nodes as f64)), "nodes"),
            Self::RateChanged { value, expected, .. } => of(*value, Some(*expected), "learning rate"),
            Self::LayerOut { value, expected, .. } => of(*value, Some(*expected), ""),
            Self::LinksDown { total, .. } => of(Num(*total as f64), None, "nodes"),
            Self::RanksMissing { missing, .. } | Self::NoProcess { missing, .. } => {
                of(Num(*missing as f64), None, "ranks")
            }
            Self::ProcessSilent { ranks, .. } => of(Num(*ranks as f64), None, "ranks"),
            Self::NotConnected { lasts, .. } => of(Num(lasts.as_secs_f64()), None, "s"),
            Self::MasterUnreached { nodes, .. } => of(Num(*nodes as f64), None, "nodes"),
            _ => None,
        }
    }
}

/// The human-readable form has the words and the number; the engine's state has only the fields.
impl Serialize for Evidence {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Stored<'a> {
            observation: &'a Observation,
            of: &'a Option<Target>,
            since: Option<Ts>,
            strength: Option<Num>,
            score: Option<Num>,
        }
        #[derive(Serialize)]
        struct Shown<'a> {
            observation: &'a Observation,
            #[serde(skip_serializing_if = "Option::is_none")]
            of: &'a Option<Target>,
            words: String,
            #[serde(flatten)]
            measure: Option<Measure>,
            #[serde(skip_serializing_if = "Option::is_none")]
            since: Option<Ts>,
            #[serde(skip_serializing_if = "Option::is_none")]
            strength: Option<Num>,
            #[serde(skip_serializing_if = "Option::is_none")]
            score: Option<Num>,
        }
        let Self { observation, of, since, strength, score } = self;
        let (since, strength, score) = (*since, *strength, *score);
        if s.is_human_readable() {
            let (words, measure) = (observation.to_string(), observation.measure());
            Shown { observation, of, words, measure, since, strength, score }.serialize(s)
        } else {
            Stored { observation, of, since, strength, score }.serialize(s)
        }
    }
}

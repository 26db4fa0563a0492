//! The state of the run and the nodes that a finding is about.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Needs, Origin, PassedOver, SaveInterval, Scope, Severity, Span, Spoilt, Target, Ts};

/// Names and values of labels: of a run, an incident or an alert.
pub type Labels = BTreeMap<String, String>;

/// Links that go down within this time of the first of them share a switch.
pub const LINKS_AT_ONCE: Span = Span::secs(60);
/// The most nodes kept whose links went down at once.
pub const MAX_NODES_AT_ONCE: usize = 256;
/// The number of nodes with the same fault from which the cause is what they share.
pub const SHARED_NODES: usize = 3;

/// The run or node that a finding is about, and what is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Context {
    pub scope: Scope,
    /// The affected run; without a name if there is none.
    pub run: RunSummary,
    /// The nodes of the run, or the node.
    pub nodes: BTreeSet<String>,
    /// When the run or node was last known to be healthy.
    pub well_at: Ts,
    /// For a node: all nodes whose links went down with its own, including itself. Empty if that
    /// may be coincidence.
    pub fabric: BTreeSet<String>,
    /// For a run: its nodes whose exporters do not answer.
    pub lost: BTreeSet<String>,
    /// The lost nodes whose reports ended as the run stopped.
    pub dark: BTreeSet<String>,
    /// For a node: the GPU or port that the finding is about, whatever the ranking suspects.
    pub device: Option<Target>,
    /// For alerts of other programs: those that began to fire since the last finding, and those
    /// that ended. Each has the fingerprint of its labels without the severity, and its severity.
    pub came: Vec<(u64, Severity)>,
    pub went: Vec<(u64, Severity)>,
    /// The reporter of the finding, if it is known.
    pub origin: Option<Origin>,
    /// Whether it shares only the labels of `group_by` with the incident that it joins.
    pub apart: bool,
    /// For a node: whether runs of several users are on it, so that it belongs to none of them.
    pub shared: bool,
    /// For a node: the run on it that has been known for longest, also if the node is shared.
    pub oldest: Option<OldestRun>,
}

/// A run that uses a node, and when the run was first reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldestRun {
    pub name: String,
    pub since: Ts,
}

impl Context {
    pub fn new(scope: Scope, run: RunSummary, nodes: BTreeSet<String>, well_at: Ts) -> Self {
        let none = BTreeSet::new;
        Self {
            scope,
            run,
            nodes,
            well_at,
            fabric: none(),
            lost: none(),
            dark: none(),
            device: None,
            came: Vec::new(),
            went: Vec::new(),
            origin: None,
            apart: false,
            shared: false,
            oldest: None,
        }
    }

    pub fn is_node(&self) -> bool {
        matches!(self.scope, Scope::Node(_))
    }
}

/// Facts about the run for messages; kept with the incident, which may outlive the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    pub name: String,
    /// `None` if nothing shows it for sure.
    pub gpus: Option<u32>,
    pub nodes: u32,
    pub attempt: u32,
    pub last_step: Option<i64>,
    pub checkpoint_step: Option<i64>,
    pub checkpoint_at: Option<Ts>,
    /// Steps of the last checkpoints that the run has reached, oldest first.
    pub saved: Vec<i64>,
    /// Those that were seen on disk by one who says when a checkpoint is removed.
    pub on_disk: Vec<i64>,
    /// The checkpoints that nobody should go back to, oldest first: those that do not count as
    /// saved, and those of `saved` with a bad evaluation.
    pub flawed: Vec<PassedOver>,
    /// What spoils what is saved since its onset, as long as it holds; of several, the first.
    pub spoilt: Option<Spoilt>,
    /// The steps that a report of a step stands for.
    pub report_steps: i64,
    /// Seconds of a step.
    pub step_secs: Option<f64>,
    /// Seconds that the attempt took to get going.
    pub start_secs: f64,
    /// Seconds of work since the last checkpoint, which a crash would lose.
    pub unsaved: f64,
    /// The largest value of `unsaved`, just before the next checkpoint ends; 0 if it is unknown.
    pub unsaved_at_most: f64,
    /// Seconds for which a save usually blocks the steps.
    pub save_secs: Option<f64>,
    pub saves: Saves,
    /// How often it saves, and should; `None` until what a save costs is known.
    pub save_interval: Option<Box<SaveInterval>>,
    /// The same of a run that fails now: at least as often as it did so far, also if it failed at
    /// the same step again.
    pub failing_interval: Option<Box<SaveInterval>>,
    /// The labels that the run declared.
    pub labels: Labels,
    pub needs: Needs,
}

/// What the saves of a run are doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Saves {
    #[default]
    Idle,
    /// A save is running, or what the last one saved is being written or uploaded.
    Running,
    /// The last one failed.
    Failing,
    /// A file system of one of the nodes does not answer, so that a save may never end.
    Stuck,
}

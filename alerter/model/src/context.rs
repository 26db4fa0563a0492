//! What is known of the run and the nodes that a finding is about.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Needs, Origin, Scope, Severity, Span, Target, Ts};

/// Names to values, of a run, an incident or an alert.
pub type Labels = BTreeMap<String, String>;

/// Links that go down within this time of the first of them share a switch.
pub const LINKS_AT_ONCE: Span = Span::secs(60);
/// Nodes kept of those whose links went down at once.
pub const MAX_NODES_AT_ONCE: usize = 256;
/// If so many nodes have the same fault, the cause is what they share.
pub const SHARED_NODES: usize = 3;

/// The run or node that a finding is about, and what is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Context {
    pub scope: Scope,
    /// The run that is hit; without a name if none is.
    pub run: RunSummary,
    /// The nodes of the run, or the node.
    pub nodes: BTreeSet<String>,
    /// When it was last known to be healthy.
    pub well_at: Ts,
    /// Of a node: all nodes whose links went down with its own, itself among them; empty if that
    /// may be coincidence.
    pub fabric: BTreeSet<String>,
    /// Of a run: its nodes whose exporters do not answer.
    pub lost: BTreeSet<String>,
    /// Those of them that fell silent as the run stopped.
    pub dark: BTreeSet<String>,
    /// Of a node: the GPU or port that the finding is about, whatever suspects the ranking finds.
    pub device: Option<Target>,
    /// Of alerts of other programs: those that began to fire since the last finding, and those that
    /// ended, by their labels without the severity, and how severe they were.
    pub came: Vec<(u64, Severity)>,
    pub went: Vec<(u64, Severity)>,
    /// Who reported it first.
    pub origin: Option<Origin>,
    /// It has no more in common with the incident that it joins than the labels of `group_by`.
    pub apart: bool,
    /// Of a node: runs of several users are on it, and it is none of theirs alone.
    pub shared: bool,
    /// Of a node: the run that has been known for longest of those that use it, also where it is
    /// shared.
    pub oldest: Option<OldestRun>,
}

/// A run that uses a node, and when it was first heard of.
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
    pub gpus: u32,
    pub nodes: u32,
    pub attempt: u32,
    pub last_step: Option<i64>,
    pub checkpoint_step: Option<i64>,
    pub checkpoint_at: Option<Ts>,
    /// Steps of the last checkpoints, oldest first.
    pub saved: Vec<i64>,
    /// Seconds of a step.
    pub step_secs: Option<f64>,
    /// Seconds that the attempt took to get going.
    pub start_secs: f64,
    /// Seconds of work since then, which a crash would lose.
    pub unsaved: f64,
    /// The same at worst, just before the next checkpoint ends; 0 while that is not known.
    pub unsaved_at_most: f64,
    /// What the run declared of itself.
    pub labels: Labels,
    pub needs: Needs,
}

//! Whom a verdict is about.

use std::collections::BTreeSet;

use super::Scope;
use super::book::MAX_SUSPECTS;
use super::origin::Origin;
use crate::message::RunSummary;
use crate::time::Ts;
use crate::verdict::{Cause, Kind, Target, Verdict};

/// Whom a verdict is about, and what there is to know of them.
#[derive(Debug, Clone)]
pub(crate) struct Party {
    pub(crate) scope: Scope,
    /// The run that is hit; without a name if none is.
    pub(crate) run: RunSummary,
    /// The nodes of the run, or the node.
    pub(crate) nodes: BTreeSet<String>,
    /// When it was last known to be well.
    pub(crate) well_at: Ts,
    /// Of a node: all whose links went down with its own, itself among them; none if that is no
    /// more than chance.
    pub(crate) fabric: BTreeSet<String>,
    /// Of a run: its nodes whose exporters do not answer.
    pub(crate) lost: BTreeSet<String>,
    /// Those of them that fell silent as the run stopped.
    pub(crate) dark: BTreeSet<String>,
    /// Of a node: the GPU or port that it has something to say of, whoever is suspected when that
    /// is weighed.
    pub(crate) device: Option<Target>,
    /// Of alerts of other programs: those that came since they were looked at before, by what makes
    /// each one.
    pub(crate) came: Vec<u64>,
    /// Who told of it first.
    pub(crate) origin: Option<Origin>,
    /// It has no more in common with the incident that it joins than the labels of `group_by`.
    pub(crate) apart: bool,
}

impl Party {
    pub(crate) fn new(scope: Scope, run: RunSummary, nodes: BTreeSet<String>, well_at: Ts) -> Self {
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
            origin: None,
            apart: false,
        }
    }

    /// The nodes that are sick themselves.
    pub(super) fn sick(&self, v: &Verdict) -> Vec<String> {
        let sick = match &self.scope {
            Scope::Node(node) => return vec![node.clone()],
            Scope::Alert(_) => &self.nodes,
            Scope::Run(_) if v.kind == Kind::SourceLost => &self.lost,
            Scope::Run(_) if v.kind.cause() == Cause::Progress => &self.dark,
            _ => return Vec::new(),
        };
        sick.iter().take(MAX_SUSPECTS).cloned().collect()
    }

    pub(super) fn is_node(&self) -> bool {
        matches!(self.scope, Scope::Node(_))
    }
}

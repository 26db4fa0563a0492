//! The messages from detection to response. They can be stored and sent, so that the two halves can
//! be separate processes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Context, Finding, Kind, RunSummary, Scope, Ts};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Detected {
    Finding {
        context: Box<Context>,
        finding: Box<Finding>,
    },
    /// A new attempt of the run began: what a person resolved before may be raised again.
    RunRestarted {
        run: String,
    },
    /// The attempt of the run that began at `attempt_at` makes steps.
    RunResumed {
        run: String,
        attempt_at: Ts,
    },
    /// The run announced a planned restart, with its duration in seconds if it gave one.
    RestartPlanned {
        run: String,
        seconds: Option<f64>,
        reason: String,
        last_progress: Ts,
    },
    /// The run ended well. `heirs` maps its nodes to the runs that still use them; a run without a
    /// name stands for runs of other users.
    RunEnded {
        run: String,
        by_hand: bool,
        heirs: BTreeMap<String, RunSummary>,
    },
    /// A run that was assumed to stand still reported again.
    HeardAgain {
        run: String,
    },
    /// A run or node was dropped because nothing was reported of it for too long.
    Forgotten {
        scope: Scope,
        heard_at: Ts,
    },
}

impl Detected {
    pub fn finding(context: &Context, finding: &Finding) -> Self {
        Self::Finding { context: Box::new(context.clone()), finding: Box::new(finding.clone()) }
    }
}

/// Questions of the response half to the detection half about runs and nodes.
pub trait Directory {
    /// Whether a node of this name is known.
    fn knows_node(&self, node: &str) -> bool;
    /// The run that is busy on a node; if there are several, the one with most ranks there. `None`
    /// if they belong to several users, because any user may claim any number of ranks.
    fn run_on(&self, node: &str) -> Option<String>;
    /// The run that exporters saw in this job of a scheduler. What the run itself declares is not
    /// used.
    fn run_of_job(&self, job: &str) -> Option<String>;
    fn summary(&self, now: Ts, run: &str) -> Option<RunSummary>;
    /// When a run was first reported.
    fn first_seen(&self, run: &str) -> Option<Ts>;
}

/// The state of the open incidents of a run. The response half sends it to the detection half on
/// every change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIncidents {
    pub run: String,
    /// Whether a person is notified of an incident of this run; `None` if none is open.
    pub notified: Option<bool>,
    /// Why the run stands still or is slow; `None` if it does neither.
    pub standstill_or_slowness: Option<Kind>,
    /// Whether an incident about its loss or its gradients is open.
    pub numerics: bool,
}

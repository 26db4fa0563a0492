//! What the detecting half passes to the responding half. It can be stored and sent, so that the
//! two need not be one process.

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
    /// A new attempt of the run, which began then, makes steps.
    RunResumed {
        run: String,
        attempt_at: Ts,
    },
    /// The run announced that it restarts on purpose, and for how many seconds if it gave that.
    RestartPlanned {
        run: String,
        seconds: Option<f64>,
        reason: String,
        last_progress: Ts,
    },
    /// The run ended well; `heirs`: of its nodes, the runs that use them still. One without a name
    /// stands for runs of other users.
    RunEnded {
        run: String,
        by_hand: bool,
        heirs: BTreeMap<String, RunSummary>,
    },
    /// A run that was taken to stand still is heard of again.
    HeardAgain {
        run: String,
    },
    /// A run or node was not reported for so long that it is forgotten.
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

/// Questions of the responding half about runs and nodes.
pub trait Directory {
    /// Whether anything is known of a node of this name.
    fn knows_node(&self, node: &str) -> bool;
    /// The run that is busy on a node; of several the one with most ranks there. None if these are
    /// of several users: any of them may claim as many ranks as it likes.
    fn run_on(&self, node: &str) -> Option<String>;
    /// The run that exporters saw in this job of a scheduler. What a run declares of itself does
    /// not count.
    fn run_of_job(&self, job: &str) -> Option<String>;
    fn summary(&self, now: Ts, run: &str) -> Option<RunSummary>;
    /// When a run was first heard of.
    fn first_seen(&self, run: &str) -> Option<Ts>;
}

/// The state of the open incidents of a run that the responding half feeds back on every change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIncidents {
    pub run: String,
    /// Whether a person is notified of one by its name; `None` if none is open.
    pub notified: Option<bool>,
    /// Why the run stands still, or is slow, if it does.
    pub standstill_or_slowness: Option<Kind>,
}

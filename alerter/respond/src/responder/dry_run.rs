//! Opens an incident that does not exist, to see who would be notified of it.

use super::Responder;
use crate::effect::Effect;
use crate::effect::Tx;
use stepwatch_model::{Change, Context, Finding, Kind, Labels, RunSummary, Scope, Severity, Ts, clause};

/// The incident of a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DryRun<'a> {
    /// The run that it hits.
    pub run: &'a str,
    /// The node that is faulty, if one is.
    pub node: Option<&'a str>,
    pub kind: Kind,
    pub severity: Severity,
    /// GPUs of the run, which determine the cost per hour; `None` if they are not known.
    pub gpus: Option<u32>,
    /// What the run declared. It is not about a node.
    pub labels: &'a Labels,
}

impl Responder {
    /// Opens the incident as the finding of a detector would.
    pub fn dry_run(&mut self, now: Ts, what: &DryRun<'_>, out: &mut Vec<Effect>) {
        let labels = if what.node.is_none() { what.labels.clone() } else { Labels::new() };
        let run = RunSummary {
            name: what.run.to_owned(),
            gpus: what.gpus,
            nodes: 1,
            labels,
            ..RunSummary::default()
        };
        let scope = match what.node {
            Some(node) => Scope::Node(node.to_owned()),
            None => Scope::Run(what.run.to_owned()),
        };
        let nodes = what.node.map(str::to_owned).into_iter().collect();
        let finding = Finding {
            change: Change::Raise,
            kind: what.kind,
            severity: what.severity,
            signal: "simulation".into(),
            step: 0,
            ts: now,
            start_step: 0,
            value: f64::NAN,
            expected: f64::NAN,
            score: 0.0,
            why: clause!("a simulation: nothing is wrong").into(),
            suspects: Vec::new(),
        };
        self.manager.finding(&mut Tx::new(now, out), &Context::new(scope, run, nodes, now), &finding);
        self.settle();
    }
}

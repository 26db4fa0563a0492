//! For which run the time counts for which a job holds its GPUs: from when it was given them until
//! it left its nodes.
//!
//! Several runs may share a job: one after another, or beside each other. Then nobody knows which
//! GPUs each of them holds before it begins and after it has ended. So that time counts for the
//! last run that began, until another one begins, and for no run before its first report.

use stepwatch_model::time::Ts;
use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Value};

use super::run::Run;
use super::{Key, Monitor};
use crate::node::Held;

fn word<'a>(event: &'a Event, key: &str) -> Option<&'a str> {
    event.extra.get(key).and_then(Value::as_str)
}

/// When an event happened, by the clock of its node, unless that is ahead.
fn at(now: Ts, event: &Event) -> Ts {
    event.ts.map_or(now, Ts::from_secs_f64).min(now)
}

impl Monitor {
    /// A process says hello in a job. Other runs of the job on its node hold nothing from then on
    /// but what they use.
    pub(super) fn joins_job(&mut self, now: Ts, name: &str, event: &Event) {
        let named = word(event, hello::JOB).zip(event.node.as_deref());
        let is_shared = named.is_some_and(|(job, node)| self.pass_on(at(now, event), name, job, node));
        if let Some(run) = self.runs.get_mut(name) {
            run.shares_job = is_shared;
        }
    }

    /// Whether another run is, or was, in the job on the node.
    fn pass_on(&mut self, at: Ts, name: &str, job: &str, node: &str) -> bool {
        let is_in = |of: &&String| self.runs.get(*of).is_some_and(|run| run.state.ledger.is_in(job));
        let others: Vec<String> =
            self.placement.on(node).filter(|of| *of != name).filter(is_in).cloned().collect();
        for other in &others {
            if let Some(run) = self.runs.get_mut(other) {
                run.pass_on(at);
                self.dirty.insert(Key::Run(other.clone()));
            }
        }
        let ever = self.nodes.get(node).into_iter().flat_map(|node| node.state.jobs.runs_ever(job));
        let mut forgotten = ever.filter(|of| *of != name && self.kept_accounts.contains_key(*of));
        !others.is_empty() || forgotten.next().is_some()
    }

    /// A job that held its place on a node has given it back.
    pub(super) fn job_left(&mut self, now: Ts, node: &str, event: &Event, held: &Held) {
        let is_its = |name: &&String| self.runs.get(*name).is_some_and(|run| is_job_of(held, run));
        let runs: Vec<String> = self.placement.on(node).filter(is_its).cloned().collect();
        for name in runs {
            let freed = held.is_allocation && !self.holds_more(&name, &held.id);
            if let Some(run) = self.runs.get_mut(&name) {
                run.released(at(now, event), freed);
                self.dirty.insert(Key::Run(name));
            }
        }
    }

    /// Whether a node of a run still has its job, or a pod of it.
    fn holds_more(&self, name: &str, job: &str) -> bool {
        let nodes = self.runs.get(name).into_iter().flat_map(|run| run.state.nodes.keys());
        let mut nodes = nodes.filter_map(|node| self.nodes.get(node));
        nodes.any(|node| node.state.jobs.holds_for(job, name))
    }

    /// A pod was given a node. The run has all of its GPUs once the last of its pods has its node.
    pub(super) fn pod_given(&mut self, node: &str, pod: &str, at: Ts) {
        let Some(here) = self.nodes.get_mut(node) else { return };
        if here.state.jobs.was_given(pod, at) {
            self.dirty.insert(Key::Node(node.to_owned()));
        }
        let claim = here.state.jobs.claim(pod);
        let runs = claim.map(|claim| claim.runs.clone()).unwrap_or_default();
        for name in runs {
            let given = self.given_to(&name);
            if let Some((run, given)) = self.runs.get_mut(&name).zip(given) {
                run.given(given);
                self.dirty.insert(Key::Run(name));
            }
        }
    }

    /// When the last pod of a run was given its node, if that is known of all of them: the run's
    /// processes are all placed, and its pods have a GPU at least for each.
    fn given_to(&self, name: &str) -> Option<Ts> {
        let run = &self.runs.get(name)?.state;
        run.nodes_heard()?;
        let used = |of: &str| {
            let is_known = self.runs.get(of).is_some_and(|run| !run.state.ledger.is_empty());
            is_known || self.kept_accounts.contains_key(of)
        };
        let (mut last, mut gpus) = (None, 0);
        for node in run.nodes.keys() {
            let (at, more) = self.nodes.get(node)?.state.jobs.given_to(name, used)?;
            (last, gpus) = (last.max(Some(at)), gpus + more);
        }
        last.filter(|_| run.world.is_some_and(|world| gpus >= world as usize))
    }
}

/// Whether a job is that of a run: the run names it, or was the only one that was seen in it. A run
/// in pods names none of them.
fn is_job_of(held: &Held, run: &Run) -> bool {
    let ledger = &run.state.ledger;
    let is_only = held.runs.iter().eq([&run.state.name]);
    ledger.is_in(&held.id) || is_only && (held.is_pod || !ledger.names_job())
}

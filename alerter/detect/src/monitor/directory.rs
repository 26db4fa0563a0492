//! What the responder asks about runs and nodes.

use stepwatch_model::time::Ts;
use stepwatch_model::{Directory, RunSummary};

use super::Monitor;
use super::run::Run;
use super::users::{claim_of_owner, of_several_users};
use crate::node::Claim;

impl Directory for Monitor {
    fn knows_node(&self, node: &str) -> bool {
        self.nodes.contains_key(node) || self.placement.on(node).next().is_some()
    }

    fn run_on(&self, node: &str) -> Option<String> {
        let runs = self.placement.on(node).filter_map(|name| self.runs.get(name));
        let busy: Vec<&Run> = runs.filter(|run| run.state.ended.is_none()).collect();
        let most = busy.iter().max_by_key(|run| run.state.nodes.get(node).copied());
        most.filter(|_| !of_several_users(busy.iter().copied())).map(|run| run.state.name.clone())
    }

    fn run_of_job(&self, job: &str) -> Option<String> {
        let claims: Vec<&Claim> = self.nodes.values().filter_map(|node| node.state.jobs.claim(job)).collect();
        let uid = claim_of_owner(&claims)?.uid;
        let named = claims.iter().filter(|claim| claim.uid == uid).flat_map(|claim| &claim.runs);
        let live = named.filter_map(|name| self.runs.get(name)).filter(|run| run.state.ended.is_none());
        let mut live: Vec<&Run> = live.collect();
        // Programs of root may be in the job of a user, and are none of that user's runs.
        let is_own = |run: &&Run| run.reporters.uid == uid;
        if live.iter().any(is_own) {
            live.retain(is_own);
        }
        let one = live.first().filter(|_| !of_several_users(live.iter().copied()));
        one.map(|run| run.state.name.clone())
    }

    fn summary(&self, now: Ts, run: &str) -> Option<RunSummary> {
        self.runs.get(run).map(|run| self.summary_of(now, run))
    }

    fn first_seen(&self, run: &str) -> Option<Ts> {
        self.runs.get(run).map(Run::known_since)
    }
}

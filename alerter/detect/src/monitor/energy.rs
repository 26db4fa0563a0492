//! Attributes the energy that a GPU used to a run.

use super::nodes::users;
use super::run::Run;
use super::{Key, Monitor, NO_RUN};
use crate::node::UsedEnergy;
use stepwatch_model::time::Ts;

impl Monitor {
    /// Counts the energy of a GPU for the run that uses it. Energy without a certain user is not
    /// counted.
    pub(super) fn count_energy(&mut self, now: Ts, node: &str, used: &UsedEnergy) {
        let Some(name) = self.user_of(now, node, &used.gpu).map(|run| run.state.name.clone()) else { return };
        let energy = self.config.energy.of_gpu(used.joules, used.lasted);
        if let Some(run) = self.runs.get_mut(&name) {
            run.state.ledger.used(energy);
            self.dirty.insert(Key::Run(name));
        }
    }

    fn user_of(&self, now: Ts, node: &str, gpu: &str) -> Option<&Run> {
        let state = &self.nodes.get(node)?.state;
        let mut here = users(&self.placement, &self.runs, now, node);
        here.retain(|run| run.state.ended.is_none() && run.state.name != NO_RUN);
        let jobs: Vec<_> = state.jobs.with_gpus().collect();
        match jobs.iter().find(|job| job.gpus.iter().any(|held| held == gpu)) {
            Some(job) if !job.runs.is_empty() => here.retain(|run| job.runs.contains(&run.state.name)),
            // A trainer that is only known from a log belongs to no known job.
            Some(_) if jobs.len() == 1 => {}
            None if jobs.is_empty() => here.retain(|run| has_all_gpus(run, node, state.gpus.count())),
            _ => return None,
        }
        match here.as_slice() {
            [run] => Some(run),
            _ => None,
        }
    }
}

/// Whether the ranks of a run take all GPUs of a node. If only some ranks report, the size of the
/// run decides.
fn has_all_gpus(run: &Run, node: &str, gpus: usize) -> bool {
    let Some(world) = run.state.world else { return false };
    let reported: u32 = run.state.nodes.values().sum();
    let here = run.state.nodes.get(node).copied().unwrap_or_default();
    let ranks = if reported >= world { here } else { world };
    (ranks as usize).saturating_mul(run.state.gpus_each() as usize) >= gpus
}

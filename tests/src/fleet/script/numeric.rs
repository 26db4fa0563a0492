//! Faults that make the training wrong.

use super::{Culprit, Do, Kind, Numeric, Victim, World};
use crate::fleet::job::Spread;
use crate::fleet::layout::GPUS;

impl World {
    pub(super) fn numeric(&mut self, kind: Kind, v: Victim) {
        let seconds = self.noise.between(120.0, 300.0);
        let numeric = match kind {
            Kind::Sdc => {
                self.note(kind, v, self.this_gpu(v), seconds);
                let poison = self.noise.chance(0.5);
                if poison && self.jobs[v.job].spread == Spread::Pipeline {
                    return self.caught(v, seconds);
                }
                if poison { Numeric::Poison { rank: v.rank() } } else { Numeric::Corrupt { rank: v.rank() } }
            }
            Kind::DataSpike => {
                self.note(kind, v, Culprit::Recipe, seconds);
                Numeric::Spike { rank: self.noise.chance(0.5).then(|| v.rank()) }
            }
            _ => {
                self.note(kind, v, Culprit::Recipe, seconds);
                Numeric::Diverge
            }
        };
        let since = self.jobs[v.job].step + 1;
        self.jobs[v.job].numeric = Some((numeric, since));
        let swap = (kind == Kind::Sdc).then_some(v.slot);
        self.in_secs(seconds, Do::Stop { job: v.job, seconds: 60.0, swap });
    }

    /// Megatron checks the loss at the end of the pipeline and the gradients of every rank before
    /// the exchange, and aborts. A forward fault is detected at the last stage of the replica, by
    /// all GPUs that share its tensors; a backward fault first where it occurred, then at the
    /// stages before.
    fn caught(&mut self, v: Victim, down: f64) {
        self.freeze(v.job);
        let (step, stages) = (self.jobs[v.job].step + 1, self.jobs[v.job].stages);
        let replicas = self.jobs[v.job].slots.len() / stages;
        let (stage, replica) = (v.slot / replicas, v.slot % replicas);
        let forward = self.noise.chance(0.5);
        let (seen, what) = if forward {
            (vec![stages - 1], "found NaN in local forward loss calculation")
        } else {
            (
                (0..=stage).rev().collect(),
                "found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication collective",
            )
        };
        for (i, stage) in seen.into_iter().enumerate() {
            let slot = stage * replicas + replica;
            let node = self.nodes[self.jobs[v.job].slots[slot]].name.clone();
            for gpu in 0..GPUS {
                let rank = slot * GPUS + gpu;
                let text = format!(
                    "RuntimeError: Rank {rank}, node {node}, device {gpu}, iteration {step}: Unexpected result nan (message='{what}')"
                );
                let after = 0.12 * i as f64 + self.noise.between(0.0, 0.03);
                self.die(v.job, rank, after, Some(&text));
            }
        }
        self.aftermath(v, down, true);
    }
}

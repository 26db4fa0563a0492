//! The run goes on, and what it learns is wrong.

use super::{Culprit, Do, Kind, Numeric, Victim, World};

impl World {
    pub(super) fn numeric(&mut self, kind: Kind, v: Victim) {
        let seconds = self.noise.between(120.0, 300.0);
        let (numeric, culprit) = match kind {
            Kind::Sdc => (Numeric::Corrupt { rank: v.rank() as u32 }, self.this_gpu(v)),
            Kind::DataSpike => (Numeric::Spike, Culprit::Recipe),
            _ => (Numeric::Diverge, Culprit::Recipe),
        };
        self.note(kind, v, culprit, seconds);
        let since = self.jobs[v.job].step + 1;
        self.jobs[v.job].numeric = Some((numeric, since));
        let swap = (kind == Kind::Sdc).then_some(v.slot);
        self.in_secs(seconds, Do::Stop { job: v.job, seconds: 60.0, swap });
    }
}

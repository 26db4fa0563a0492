//! The last load of a checkpoint, rank by rank.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;
use stepwatch_wire::CkptPhase;

use super::stages::StageReport;

/// The most ranks that are followed.
const RANKS_KEPT: usize = 4096;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Loads {
    ranks: BTreeMap<u32, RankLoad>,
    /// When a rank reported last, by our clock.
    last: Ts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankLoad {
    /// Since when it loads, by our clock and by its own; none once it has ended.
    open: Option<(Ts, Ts)>,
    /// How long it took, and how much it read.
    pub(crate) secs: Option<f64>,
    pub(crate) bytes: Option<f64>,
}

impl RankLoad {
    /// Since when it loads, by our clock.
    pub(crate) fn since(&self) -> Option<Ts> {
        self.open.map(|(now, _)| now)
    }
}

impl Loads {
    pub(crate) fn ranks(&self) -> impl Iterator<Item = (u32, &RankLoad)> {
        self.ranks.iter().map(|(rank, load)| (*rank, load))
    }

    /// When a rank reported last.
    pub(crate) fn last(&self) -> Ts {
        self.last
    }

    /// Takes a report. `progress`: when the run made its last step.
    pub(super) fn take(&mut self, r: &StageReport, progress: Ts) {
        // What was loaded before a step is another load.
        if r.phase == CkptPhase::Start && self.last < progress {
            self.ranks.clear();
        }
        if self.ranks.len() >= RANKS_KEPT && !self.ranks.contains_key(&r.rank) {
            return;
        }
        self.last = self.last.max(r.now);
        let load = self.ranks.entry(r.rank).or_default();
        match r.phase {
            CkptPhase::Start => *load = RankLoad { open: Some((r.now, r.at)), ..RankLoad::default() },
            CkptPhase::End => {
                let paired = load.open.take().map(|(_, at)| (r.at - at).as_secs_f64());
                load.secs = r.secs.or(paired).map(|secs| secs.max(0.0)).or(load.secs);
                load.bytes = r.bytes.or(load.bytes);
            }
            CkptPhase::Fail => {
                self.ranks.remove(&r.rank);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stages::Stage;
    use super::*;
    use CkptPhase::{End, Fail, Start};

    fn take(loads: &mut Loads, phase: CkptPhase, rank: u32, secs: i64, progress: i64) {
        let at = Ts(1000 * secs);
        let stage = Stage::Load;
        let r = StageReport {
            stage,
            phase,
            step: None,
            rank,
            now: at,
            at,
            secs: None,
            bytes: Some(8e9),
            seen: false,
        };
        loads.take(&r, Ts(1000 * progress));
    }

    fn secs(loads: &Loads) -> Vec<(u32, Option<f64>)> {
        loads.ranks().map(|(rank, load)| (rank, load.secs)).collect()
    }

    #[test]
    fn each_rank_has_its_own_time_until_the_run_has_made_steps() {
        let mut loads = Loads::default();
        for (phase, rank, at) in [(Start, 0, 10), (Start, 1, 12), (End, 0, 40), (Start, 2, 41), (Fail, 2, 42)]
        {
            take(&mut loads, phase, rank, at, 5);
        }
        assert_eq!(secs(&loads), [(0, Some(30.0)), (1, None)]);
        assert_eq!(loads.ranks().find_map(|(_, load)| load.since()), Some(Ts(12_000)));
        take(&mut loads, Start, 1, 50, 5);
        take(&mut loads, End, 1, 60, 5);
        assert_eq!(secs(&loads), [(0, Some(30.0)), (1, Some(10.0))], "it was interrupted");
        take(&mut loads, Start, 1, 900, 800);
        assert_eq!((secs(&loads), loads.last()), (vec![(1, None)], Ts(900_000)));
    }

    #[test]
    fn only_so_many_ranks_are_followed() {
        let mut loads = Loads::default();
        (0..5000).for_each(|rank| take(&mut loads, Start, rank, 10, 5));
        assert_eq!(loads.ranks.len(), 4096);
    }
}

//! The last load of a checkpoint, rank by rank.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_model::time::{Span, Ts};
use stepwatch_wire::CkptPhase;

use super::stages::StageReport;

/// The most ranks that are followed.
const RANKS_KEPT: usize = 4096;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Loads {
    ranks: BTreeMap<u32, RankLoad>,
    /// When a rank reported last, by our clock, and how many reports came.
    last: Ts,
    reports: u64,
    /// When the first rank ended, by our clock.
    first_end: Option<Ts>,
    /// When the start of the run began that they are part of, by our clock, if it was seen.
    start: Option<Ts>,
}

/// A moment by our clock and by that of the rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Moment {
    pub(crate) now: Ts,
    pub(crate) at: Ts,
}

impl Moment {
    fn of(r: &StageReport) -> Self {
        Self { now: r.now, at: r.at }
    }

    /// The same so many seconds earlier.
    fn before(self, secs: f64) -> Self {
        let ago = Span::from_secs_f64(secs.max(0.0));
        Self { now: self.now.earlier(ago), at: self.at.earlier(ago) }
    }

    /// The later one by each clock.
    pub(crate) fn later(self, other: Self) -> Self {
        Self { now: self.now.max(other.now), at: self.at.max(other.at) }
    }
}

/// The last load of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankLoad {
    pub(crate) began: Moment,
    /// None while it loads.
    pub(crate) ended: Option<Moment>,
    /// How much it read.
    pub(crate) bytes: Option<f64>,
    /// The number of loads of the rank in this start: the model, then what else it keeps.
    pub(crate) ordinal: u32,
}

impl Loads {
    pub(crate) fn ranks(&self) -> impl Iterator<Item = (u32, &RankLoad)> {
        self.ranks.iter().map(|(rank, load)| (*rank, load))
    }

    /// When a rank reported last.
    pub(crate) fn last(&self) -> Ts {
        self.last
    }

    pub(crate) fn reports(&self) -> u64 {
        self.reports
    }

    /// When the first rank ended, by our clock. It may be one that loads again since.
    pub(crate) fn first_end(&self) -> Option<Ts> {
        self.first_end
    }

    pub(crate) fn start(&self) -> Option<Ts> {
        self.start
    }

    /// Takes a report. `progress`: when the run made its last step. `start`: when its start began,
    /// if it is in one.
    pub(super) fn take(&mut self, r: &StageReport, progress: Ts, start: Option<Ts>) {
        let begins = r.phase == CkptPhase::Start;
        // What was loaded before a step, or in another start, is another load.
        if begins && (self.last < progress || start.is_some_and(|start| self.last < start)) {
            self.ranks.clear();
            (self.first_end, self.start) = (None, None);
        }
        self.start = start.or(self.start);
        if self.ranks.len() >= RANKS_KEPT && !self.ranks.contains_key(&r.rank) {
            return;
        }
        self.last = self.last.max(r.now);
        self.reports = self.reports.wrapping_add(1);
        let now = Moment::of(r);
        match (r.phase, self.ranks.get_mut(&r.rank)) {
            (CkptPhase::Start, had) => {
                let had = had.filter(|had| start.is_none_or(|start| had.began.now >= start));
                // One that has not ended was interrupted.
                let earlier = had.map_or(0, |had| had.ordinal.saturating_sub(u32::from(had.ended.is_none())));
                let ordinal = earlier.saturating_add(1);
                self.ranks.insert(r.rank, RankLoad { began: now, ended: None, bytes: None, ordinal });
            }
            (CkptPhase::End, Some(load)) => {
                if load.ended.is_none() {
                    load.began.at = r.secs.map_or(load.began, |secs| now.before(secs)).at;
                    load.ended = Some(now);
                }
                load.bytes = r.bytes.or(load.bytes);
            }
            (CkptPhase::End, None) => {
                let Some(secs) = r.secs else { return };
                let (began, ended, bytes) = (now.before(secs), Some(now), r.bytes);
                self.ranks.insert(r.rank, RankLoad { began, ended, bytes, ordinal: 1 });
            }
            (CkptPhase::Fail, _) => {
                self.ranks.remove(&r.rank);
            }
        }
        if r.phase == CkptPhase::End {
            self.first_end.get_or_insert(r.now);
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
        loads.take(&r, Ts(1000 * progress), None);
    }

    fn secs(loads: &Loads) -> Vec<(u32, Option<f64>)> {
        let took = |load: &RankLoad| Some((load.ended?.at - load.began.at).as_secs_f64());
        loads.ranks().map(|(rank, load)| (rank, took(load))).collect()
    }

    #[test]
    fn each_rank_has_its_own_time_until_the_run_has_made_steps() {
        let mut loads = Loads::default();
        for (phase, rank, at) in [(Start, 0, 10), (Start, 1, 12), (End, 0, 40), (Start, 2, 41), (Fail, 2, 42)]
        {
            take(&mut loads, phase, rank, at, 5);
        }
        assert_eq!(secs(&loads), [(0, Some(30.0)), (1, None)]);
        assert_eq!((loads.first_end(), loads.reports()), (Some(Ts(40_000)), 5));
        take(&mut loads, Start, 1, 50, 5);
        take(&mut loads, End, 1, 60, 5);
        assert_eq!(secs(&loads), [(0, Some(30.0)), (1, Some(10.0))], "it was interrupted");
        let ordinals = |loads: &Loads| loads.ranks().map(|(_, load)| load.ordinal).collect::<Vec<_>>();
        assert_eq!(ordinals(&loads), [1, 1]);
        take(&mut loads, Start, 0, 70, 5);
        assert_eq!(ordinals(&loads), [2, 1], "another load of this start");
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

//! A table of all ranks of a run over the last minutes.
//!
//! A column is one snapshot of all ranks: how much longer each computed than the ranks with the
//! same work. The engine keeps only what its decisions need; the columns are kept here for the
//! pages.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use stepwatch_detect::Run;
use stepwatch_engine::Engine;
use stepwatch_model::time::{Span, Ts};

use crate::run_history::RunHistory;

/// The interval between two columns of a run.
pub const LOOK_EVERY: Span = Span::secs(5);
/// The most columns of a run, which cover 10 minutes.
pub const COLUMNS: usize = 120;
/// The most ranks of a run that have columns; further ranks are only in the list.
pub const MAX_RANKS: usize = 8_192;
/// The most cells of all columns of all runs, 32 MiB. Further runs have no columns.
const MAX_CELLS: usize = 16 << 20;
/// The most runs that get a column in one pass, so that the loop is not delayed.
const LOOKS_A_PASS: usize = 100;
/// The cell of a rank that did not report. Other cells are in thousandths.
const UNKNOWN: i16 = i16::MIN;

/// The state of a rank. Times are those of the alerter's clock.
#[derive(Debug, Clone, PartialEq)]
pub struct RankSnapshot {
    pub rank: u32,
    pub node: Option<String>,
    pub local_rank: Option<u32>,
    pub stage: Option<u32>,
    pub last_step: Option<i64>,
    pub last_seen: Ts,
    /// The rank has not followed a restart.
    pub stale: bool,
    pub done: bool,
    /// How much longer the rank computes than its peers, as a share; and the same relative to its
    /// usual value.
    pub excess: Option<f64>,
    pub rise: Option<f64>,
    /// The seconds that the rank computes in a step.
    pub compute_seconds: Option<f64>,
}

/// One snapshot of the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub at: Ts,
    pub step: i64,
    /// The excess of each rank in thousandths, by rank number.
    excess: Box<[i16]>,
}

#[derive(Debug, Clone, Default)]
pub struct RankTable {
    pub ranks: Vec<RankSnapshot>,
    pub columns: VecDeque<Arc<Column>>,
    /// The attempts and checkpoints of the run at the same time.
    pub history: RunHistory,
}

impl Column {
    fn new(at: Ts, step: i64, run: &Run) -> Self {
        let members = &run.state.compute_times.members;
        let len = members.last_key_value().map_or(0, |(rank, _)| *rank as usize + 1).min(MAX_RANKS);
        let mut excess = vec![UNKNOWN; len].into_boxed_slice();
        for (rank, member) in members {
            if let Some(cell) = excess.get_mut(*rank as usize) {
                *cell = thousandths(f64::from(member.excess).exp_m1());
            }
        }
        Self { at, step, excess }
    }

    /// How much longer a rank computed than its peers, as a share.
    pub fn excess(&self, rank: u32) -> Option<f64> {
        let cell = self.excess.get(rank as usize).copied().filter(|cell| *cell != UNKNOWN)?;
        Some(f64::from(cell) / 1000.0)
    }

    fn cells(&self) -> usize {
        self.excess.len()
    }
}

fn thousandths(share: f64) -> i16 {
    let bounded = (share * 1000.0).round().clamp(f64::from(i16::MIN + 1), f64::from(i16::MAX));
    if bounded.is_nan() { UNKNOWN } else { bounded as i16 }
}

impl RankTable {
    fn list(run: &Run) -> Vec<RankSnapshot> {
        let sections = &run.state.compute_times;
        let of = |(rank, r): (&u32, &stepwatch_detect::run::Rank)| {
            let member = sections.members.get(rank);
            let group = member.and_then(|m| sections.groups.get(&m.stage));
            let excess = member.map(|m| f64::from(m.excess).exp_m1());
            let compute_seconds = group.zip(member).map(|(g, m)| g.secs * f64::from(m.excess).exp());
            RankSnapshot {
                rank: *rank,
                node: r.node.clone(),
                local_rank: r.local_rank,
                stage: r.stage,
                last_step: r.last_step,
                last_seen: r.last_seen,
                stale: r.stale,
                done: r.done,
                excess,
                rise: member.map(|m| m.rise()),
                compute_seconds,
            }
        };
        run.state.ranks.iter().map(of).collect()
    }
}

/// The tables of all runs, renewed every few seconds.
#[derive(Debug, Default)]
pub struct RankTables {
    tables: BTreeMap<String, (Ts, Arc<RankTable>)>,
    cells: usize,
    /// The number of columns that were dropped for lack of room.
    pub dropped: u64,
}

impl RankTables {
    /// Adds columns to the runs that are due, and returns the tables of all.
    pub fn renew(&mut self, now: Ts, engine: &Engine) -> Arc<BTreeMap<String, Arc<RankTable>>> {
        let gone: Vec<String> =
            self.tables.keys().filter(|name| engine.run(name).is_none()).cloned().collect();
        for name in gone {
            if let Some((_, table)) = self.tables.remove(&name) {
                self.cells -= table.columns.iter().map(|c| c.cells()).sum::<usize>();
            }
        }
        let due = |run: &&Run| {
            let made = self.tables.get(&run.state.name);
            made.is_none_or(|(at, _)| now - *at >= LOOK_EVERY && run.state.last_heard >= *at)
        };
        let due: Vec<&Run> = engine.runs().filter(due).take(LOOKS_A_PASS).collect();
        for run in due {
            self.look(now, run);
        }
        let all = self.tables.iter().map(|(name, (_, table))| (name.clone(), Arc::clone(table)));
        Arc::new(all.collect())
    }

    fn look(&mut self, now: Ts, run: &Run) {
        let (_, table) = self.tables.entry(run.state.name.clone()).or_default();
        let mut columns = table.columns.clone();
        let step = run.state.compute_times.last;
        if let Some(step) = step.filter(|step| columns.back().is_none_or(|c| c.step != *step)) {
            let column = Column::new(now, step, run);
            if columns.len() >= COLUMNS {
                self.cells -= columns.pop_front().map_or(0, |c| c.cells());
            }
            if self.cells + column.cells() <= MAX_CELLS {
                self.cells += column.cells();
                columns.push_back(Arc::new(column));
            } else {
                self.dropped += 1;
            }
        }
        let table =
            Arc::new(RankTable { ranks: RankTable::list(run), columns, history: RunHistory::from_run(run) });
        self.tables.insert(run.state.name.clone(), (now, table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_thousandths_and_knows_who_is_missing() {
        let excess = [thousandths(0.0123), UNKNOWN, thousandths(99.0), thousandths(f64::NAN)];
        let column = Column { at: Ts(0), step: 0, excess: excess.into() };
        assert_eq!(column.excess(0), Some(0.012));
        assert_eq!((column.excess(1), column.excess(3), column.excess(9)), (None, None, None));
        assert_eq!(column.excess(2), Some(32.767));
    }
}

//! The sizes of the complete checkpoints of an attempt, and the space that was free beside each.
//!
//! Checkpoints are of one sort if their stage, the world size and their path without its digits are
//! the same. A run may write full checkpoints and models alone by turns, under one path: so the
//! sizes that recur are learned, and not one usual size. Each rank may report its part, or each the
//! whole: so only checkpoints that equally many ranks reported are compared, by the sum.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;
use stepwatch_wire::names::ckpt;
use stepwatch_wire::{CkptPhase, Event, Value};

use super::stages::{Stage, StageReport};

/// The most sorts that are kept, the most sizes of each, and the most readings of free space after
/// a checkpoint. A run may write its checkpoints to several places by turns.
const SORTS_KEPT: usize = 16;
const CLASSES_KEPT: usize = 8;
pub(crate) const ENDS_KEPT: usize = 8;
/// Ranks from this number on are not counted.
const RANKS_KEPT: u32 = 4096;
/// Sizes that differ by no more than this share are one size: compressed checkpoints vary by a few
/// per cent. An engineering limit.
const ALIKE: f64 = 0.1;
/// Checkpoints of sizes that recur from which these are known, and the share of all checkpoints
/// that they must be: of a run whose sizes are random nothing is known. Engineering limits.
const KNOWN: u32 = 4;
const OF_ALL: f64 = 0.75;
/// Weight of the last checkpoint in the mean of a size.
const RATE: f64 = 0.25;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sizes {
    /// The one that was reported last is the last one.
    sorts: Vec<Sort>,
}

/// Checkpoints between which only the step differs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sort {
    key: u64,
    open: Reports,
    /// How many ranks usually report the size of one; 0 until that is known.
    ranks: u32,
    /// How many ranks reported the last one, if these were fewer.
    fewer: u32,
    classes: Vec<Class>,
    judged: Option<Judged>,
    /// The lowest rank that reports the free space; only its readings are kept.
    reporter: Option<u32>,
    /// The free space when the save began that has not ended, and after the last ones that ended.
    began: Option<Room>,
    ends: VecDeque<Room>,
    /// The least free space with which a save began that then ended, and after which one ended.
    enough_to_begin: Option<f64>,
    enough_after: Option<f64>,
}

/// The sizes that ranks reported of one checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Reports {
    step: Option<i64>,
    ranks: BTreeSet<u32>,
    bytes: f64,
}

/// A size, and how many checkpoints had it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Class {
    bytes: f64,
    n: u32,
}

/// A checkpoint whose size is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Judged {
    pub(crate) sort: u64,
    pub(crate) step: i64,
    pub(crate) bytes: f64,
    /// The number of ranks whose reports add up to this size.
    pub(crate) ranks: u32,
    /// The next larger size that recurs, if the checkpoint has a smaller one that was never seen.
    pub(crate) usual: Option<f64>,
    /// How many checkpoints had this size, with this one.
    pub(crate) seen: u32,
}

/// The free space that one rank reported when a save began or a stage ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Room {
    pub(crate) at: Ts,
    pub(crate) step: i64,
    pub(crate) begins: bool,
    pub(crate) free: f64,
    pub(crate) bytes: Option<f64>,
}

impl Class {
    fn is_like(&self, bytes: f64) -> bool {
        are_alike(self.bytes, bytes)
    }
}

/// Whether two sizes are one size.
pub(crate) fn are_alike(known: f64, bytes: f64) -> bool {
    (bytes - known).abs() <= ALIKE * known
}

/// How many checkpoints had these sizes.
fn count<'a>(classes: impl Iterator<Item = &'a Class>) -> u32 {
    classes.fold(0, |sum: u32, class| sum.saturating_add(class.n))
}

impl Sort {
    /// The last checkpoint whose size is known.
    pub(crate) fn judged(&self) -> Option<&Judged> {
        self.judged.as_ref()
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// The free space after the last checkpoints, oldest first.
    pub(crate) fn ends(&self) -> &VecDeque<Room> {
        &self.ends
    }

    /// The last reading of the free space.
    pub(crate) fn last_room(&self) -> Option<Room> {
        self.began.or_else(|| self.ends.back().copied())
    }

    /// Whether the free space is reported when a save begins, and not only when one has ended.
    pub(crate) fn tells_beginnings(&self) -> bool {
        self.enough_to_begin.is_some()
    }

    /// The least free space that was seen to be enough at such a moment.
    pub(crate) fn enough(&self, begins: bool) -> Option<f64> {
        if begins { self.enough_to_begin } else { self.enough_after }
    }

    fn sized(&mut self, step: i64, rank: u32, bytes: f64) {
        if self.open.step.is_some_and(|open| step < open) {
            return; // the rest of an earlier one comes late
        }
        if self.open.step != Some(step) {
            self.close();
            self.open = Reports { step: Some(step), ..Reports::default() };
        }
        if rank >= RANKS_KEPT || !self.open.ranks.insert(rank) {
            return;
        }
        self.open.bytes += bytes;
        let (bytes, ranks) = (self.open.bytes, self.open.ranks.len() as u32);
        if ranks == self.ranks {
            let usual = self.usual_above(bytes);
            let seen = self.learn(bytes);
            self.judged = Some(Judged { sort: self.key, step, bytes, ranks, usual, seen });
        }
    }

    /// Learns how many ranks report: no more reports come of the open checkpoint.
    fn close(&mut self) {
        let ranks = self.open.ranks.len() as u32;
        if ranks == self.ranks || ranks == 0 {
            self.fewer = 0;
        } else if ranks > self.ranks || ranks == self.fewer {
            (self.ranks, self.fewer) = (ranks, 0);
            self.classes.clear();
            self.learn(self.open.bytes);
        } else {
            self.fewer = ranks;
        }
    }

    /// The next larger size that recurs, if this one was never seen.
    fn usual_above(&self, bytes: f64) -> Option<f64> {
        let recurs = |class: &&Class| class.n > 1;
        let (known, all) = (count(self.classes.iter().filter(recurs)), count(self.classes.iter()));
        let is_known = known >= KNOWN && f64::from(known) >= OF_ALL * f64::from(all);
        if !is_known || self.classes.iter().any(|class| class.is_like(bytes)) {
            return None;
        }
        let larger = self.classes.iter().filter(recurs).map(|class| class.bytes).filter(|had| *had > bytes);
        larger.min_by(f64::total_cmp)
    }

    /// Counts a checkpoint of this size. Returns how many had it.
    fn learn(&mut self, bytes: f64) -> u32 {
        if let Some(class) = self.classes.iter_mut().find(|class| class.is_like(bytes)) {
            class.n = class.n.saturating_add(1);
            class.bytes += RATE * (bytes - class.bytes);
            return class.n;
        }
        if self.classes.len() == CLASSES_KEPT {
            let rarest = self.classes.iter().enumerate().min_by_key(|(_, class)| class.n);
            if let Some(at) = rarest.map(|(at, _)| at) {
                self.classes.remove(at);
            }
        }
        self.classes.push(Class { bytes, n: 1 });
        1
    }

    fn room(&mut self, rank: u32, room: Room) {
        if self.reporter.is_none_or(|known| rank < known) {
            self.reporter = Some(rank);
            self.ends.clear();
            self.began = None;
            (self.enough_to_begin, self.enough_after) = (None, None);
        }
        if self.reporter != Some(rank) || self.ends.back().is_some_and(|had| had.step == room.step) {
            return;
        }
        if room.begins {
            // Of several reports of one save the first was before it.
            if self.began.is_none_or(|had| had.step != room.step) {
                self.began = Some(room);
            }
            return;
        }
        let least = |enough: Option<f64>, had: Option<Room>| {
            let free = had.map(|had| had.free);
            enough.into_iter().chain(free).min_by(f64::total_cmp)
        };
        let began = self.began.take_if(|had| had.step <= room.step);
        self.enough_to_begin = least(self.enough_to_begin, began.filter(|had| had.step == room.step));
        self.enough_after = least(self.enough_after, self.ends.back().copied());
        if self.ends.len() == ENDS_KEPT {
            self.ends.pop_front();
        }
        self.ends.push_back(room);
    }

    /// How many checkpoints are known of it.
    fn checkpoints(&self) -> u32 {
        count(self.classes.iter()).max(self.ends.len() as u32)
    }
}

impl Sizes {
    /// The sort that was reported last.
    pub(crate) fn last(&self) -> Option<&Sort> {
        self.sorts.last()
    }

    pub(super) fn take(&mut self, r: &StageReport, e: &Event, world: Option<u32>) {
        let Some(step) = r.step.filter(|_| r.phase != CkptPhase::Fail) else { return };
        let free = e.extra.get(ckpt::FREE_BYTES).and_then(Value::as_f64);
        let free = free.filter(|free| free.is_finite() && *free >= 0.0);
        let begins = r.phase == CkptPhase::Start;
        // Whoever looks at a directory finds a checkpoint after it has begun.
        let free = free.filter(|_| !(begins && r.seen));
        let bytes = r.bytes.filter(|_| !begins);
        if free.is_none() && bytes.is_none() {
            return;
        }
        let path = e.extra.get("path").and_then(Value::as_str).unwrap_or_default();
        let key = key((r.stage, r.seen), world, path);
        if begins && !self.knows(key) {
            return; // it may never have a size
        }
        let sort = self.sort(key);
        if let Some(bytes) = bytes {
            sort.sized(step, r.rank, bytes);
        }
        // The space is that before a stage which writes, or after one.
        if let Some(free) = free {
            sort.room(r.rank, Room { at: r.now, step, begins, free, bytes });
        }
    }

    pub(crate) fn knows(&self, key: u64) -> bool {
        self.sorts.iter().any(|sort| sort.key == key)
    }

    /// The sort of this key, as the last one. It may take the place of the one of which the fewest
    /// checkpoints are known, the oldest of these.
    fn sort(&mut self, key: u64) -> &mut Sort {
        let known = self.sorts.iter().position(|sort| sort.key == key);
        let sort = match known {
            Some(at) => self.sorts.remove(at),
            None => Sort { key, ..Sort::default() },
        };
        if self.sorts.len() == SORTS_KEPT {
            let rarest = self.sorts.iter().enumerate().min_by_key(|(_, sort)| sort.checkpoints());
            if let Some(at) = rarest.map(|(at, _)| at) {
                self.sorts.remove(at);
            }
        }
        let at = self.sorts.len();
        self.sorts.push(sort);
        &mut self.sorts[at]
    }

    /// A new attempt may save in another way, but to the same file system.
    pub(super) fn restarted(&mut self) {
        for sort in &mut self.sorts {
            *sort = Sort {
                key: sort.key,
                reporter: sort.reporter,
                ends: core::mem::take(&mut sort.ends),
                enough_to_begin: sort.enough_to_begin,
                enough_after: sort.enough_after,
                ..Sort::default()
            };
        }
    }
}

/// FNV-1a over all that is the same for checkpoints of one sort.
fn key((stage, seen): (Stage, bool), world: Option<u32>, path: &str) -> u64 {
    let plain = path.bytes().filter(|byte| !byte.is_ascii_digit());
    let sort = world.unwrap_or(0).to_le_bytes().into_iter().chain([stage as u8, u8::from(seen)]);
    sort.chain(plain)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of checkpoints of one rank, in the order of their steps. Returns what was known of the
    /// last one.
    fn after(sizes: &[f64]) -> (Option<f64>, u32) {
        let mut sort = Sort::default();
        for (step, bytes) in (1..).zip(sizes) {
            sort.sized(step, 0, *bytes);
        }
        sort.judged().map_or((None, 0), |judged| (judged.usual, judged.seen))
    }

    #[test]
    fn a_size_that_was_never_seen_is_smaller_than_one_that_recurs() {
        assert_eq!(after(&[100.0, 100.0, 100.0, 100.0, 60.0]), (Some(100.0), 1));
        assert_eq!(after(&[100.0, 100.0, 100.0, 60.0]), (None, 1), "four are needed");
        assert_eq!(after(&[100.0, 103.0, 97.0, 101.0, 92.0]).0, None, "compressed");
        assert_eq!(after(&[100.0, 100.0, 100.0, 100.0, 300.0]).0, None, "larger");
    }

    #[test]
    fn sizes_that_recur_are_usual() {
        let turns = [100.0, 14.0, 100.0, 14.0, 100.0, 14.0];
        assert_eq!(after(&turns), (None, 3));
        let with = |last: f64| after(&turns.iter().copied().chain([last]).collect::<Vec<_>>()).0;
        assert_eq!((with(60.0), with(7.0)), (Some(100.0), Some(14.0)));
        assert_eq!(after(&[10.0, 90.0, 40.0, 70.0, 20.0, 130.0, 50.0, 5.0]).0, None, "random sizes");
    }

    #[test]
    fn only_checkpoints_that_equally_many_ranks_reported_are_compared() {
        let mut sort = Sort::default();
        let mut save = |step: i64, ranks: core::ops::Range<u32>, bytes: f64| {
            ranks.for_each(|rank| sort.sized(step, rank, bytes));
            sort.judged().map(|judged| (judged.step, judged.bytes, judged.usual))
        };
        for step in 1..=5 {
            save(step, 0..4, 10.0);
        }
        assert_eq!(save(6, 0..3, 10.0), Some((5, 40.0, None)), "a rank is late or silent");
        assert_eq!(save(7, 0..4, 5.0), Some((7, 20.0, Some(40.0))));
        assert_eq!(save(6, 3..4, 10.0), Some((7, 20.0, Some(40.0))), "of an earlier one");
        save(8, 0..2, 10.0);
        save(9, 0..2, 10.0);
        assert_eq!(save(10, 0..2, 10.0), Some((10, 20.0, None)), "fewer ranks from here on");
    }

    #[test]
    fn a_sort_has_one_stage_world_and_path() {
        let of = |stage, world, path| key((stage, false), world, path);
        let plain = of(Stage::Save, Some(8), "/ckpt/step_100");
        assert_eq!(plain, of(Stage::Save, Some(8), "/ckpt/step_2000"));
        for other in [
            of(Stage::Durable, Some(8), "/ckpt/step_100"),
            of(Stage::Save, Some(16), "/ckpt/step_100"),
            of(Stage::Save, Some(8), "/ckpt/model_100"),
        ] {
            assert_ne!(plain, other);
        }
    }

    #[test]
    fn the_sort_with_the_fewest_checkpoints_makes_room() {
        let mut sizes = Sizes::default();
        for step in 1..=6 {
            (0..5).for_each(|key| sizes.sort(key).sized(step, 0, 100.0));
        }
        assert!(sizes.sorts.iter().all(|sort| sort.judged().is_some_and(|judged| judged.seen == 6)));
        (100..200).for_each(|key| sizes.sort(key).sized(1, 0, 100.0));
        let known: Vec<u64> = sizes.sorts.iter().map(|sort| sort.key).collect();
        assert_eq!((known.len(), &known[..5], known.last()), (16, &[0, 1, 2, 3, 4][..], Some(&199)));
    }

    fn report(phase: CkptPhase, seen: bool) -> StageReport {
        let (stage, now) = (Stage::Save, Ts(1000));
        StageReport { stage, phase, step: Some(1), rank: 0, now, at: now, secs: None, bytes: None, seen }
    }

    #[test]
    fn a_start_alone_makes_no_sort_and_one_that_was_seen_late_tells_no_space() {
        let mut e = Event::new(stepwatch_wire::Kind::Ckpt);
        e.extra.insert(ckpt::FREE_BYTES.into(), Value::Number(5e9));
        let mut sizes = Sizes::default();
        sizes.take(&report(CkptPhase::Start, false), &e, Some(8));
        assert!(sizes.last().is_none());
        for seen in [false, true] {
            let mut ended = report(CkptPhase::End, seen);
            sizes.take(&ended, &e, Some(8));
            (ended.phase, ended.step) = (CkptPhase::Start, Some(2));
            sizes.take(&ended, &e, Some(8));
            let last = sizes.last().and_then(Sort::last_room).map(|room| (room.step, room.begins));
            assert_eq!(last, Some(if seen { (1, false) } else { (2, true) }));
        }
    }

    #[test]
    fn the_lowest_rank_reports_the_space() {
        let mut sort = Sort::default();
        let mut read = |rank: u32, step: i64, begins: bool, free: f64| {
            sort.room(rank, Room { at: Ts(step), step, begins, free, bytes: None });
            (sort.ends.len(), sort.enough(true), sort.enough(false))
        };
        assert_eq!(read(3, 1, false, 90.0), (1, None, None));
        assert_eq!(read(0, 1, false, 80.0), (1, None, None));
        assert_eq!(read(3, 2, false, 10.0), (1, None, None));
        assert_eq!(read(0, 2, true, 80.0), (1, None, None));
        assert_eq!(read(0, 2, true, 60.0), (1, None, None), "it is being written");
        assert_eq!(read(0, 2, false, 70.0), (2, Some(80.0), Some(80.0)));
        assert_eq!(read(0, 2, false, 60.0), (2, Some(80.0), Some(80.0)), "said twice");
        assert_eq!(read(0, 3, false, 60.0), (3, Some(80.0), Some(70.0)));
    }
}

//! Compares the compute time of each rank in a step with that of ranks that do the same work.
//!
//! The time of a synchronous step is the same for all ranks, because all wait for the slowest. The
//! time spent in compute sections is not. Ranks of one pipeline stage are peers: the excess of rank
//! i in a step is `r = ln(t / median of its stage)`, measured in the robust standard deviation of
//! its peers. This is taken from the faster half alone: where a stage has two hosts, a slow host is
//! half of its ranks. The median is the lower one of two, so that the slower of two ranks is the
//! one that is out of line.
//!
//! Chips of one kind differ by a per cent or two for good, so a comparison with the peers alone
//! shows little. Compared with the usual excess of the same rank, a rise of 2 % is news:
//! [`BaselineShare`] follows the excess of each rank, and what the steps of all ranks together lose
//! to the slowest rank.
//!
//! Reports of a step come in any order, and some never: a step is judged when every rank that
//! usually reports has, or when four later ones have begun. O(ranks) a step, some 110 bytes a rank.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Metrics};

use crate::stats::baseline_share::BaselineShare;
use crate::stats::drift::Drift;
use crate::stats::hit_window::HitWindow;
use crate::stats::median::{MAD_TO_SIGMA, Window};
use crate::stats::rotation::Rotation;

/// The most steps that wait for their ranks.
const OPEN: usize = 4;
/// The number of steps after which a rank without reports is not waited for, and is forgotten.
const PATIENCE: u64 = 8;
const FORGET: u64 = 256;
/// The most stages that are distinguished; ranks of further stages are one group.
const MAX_STAGES: u32 = 256;
/// The number of steps in the windows of a group.
pub const SEEN: usize = 32;
/// Smallest scale of `ln` of a rank's compute time over that of its peers: ranks of one model
/// differ by half a per cent in their kernels alone.
const FLOOR: f64 = 0.0075;
/// Weight of a step in the mean excess of a rank.
const WEIGHT: f32 = 0.1;
/// The standard error of the median of `SEEN` readings, in their standard deviations:
/// √(π/2)/√32.
const MEDIAN_ERROR: f64 = 0.22;
/// Sigmas beyond which a rank is out of line: of a normal distribution 10⁻⁹ lies above, so 4,096
/// ranks have one such reading in 250,000 steps, a week of steps of 2.4 s.
const FAR: f64 = 6.0;
/// Words in the names of step parts in which a rank computes, and words of parts with similar names
/// in which it waits for others.
const COMPUTES: [&str; 5] = ["fwd", "bwd", "forward", "backward", "compute"];
const WAITS: [&str; 8] = ["recv", "send", "comm", "reduce", "gather", "sync", "wait", "barrier"];

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RankComputeTimes {
    open: VecDeque<Open>,
    /// The number of ranks that a step waits for.
    awaited: usize,
    pub members: BTreeMap<u32, Member>,
    /// The groups by pipeline stage; ranks that do not report their stage belong to stage 0.
    pub groups: BTreeMap<u32, Group>,
    /// The number of steps evaluated.
    pub judged: u64,
    pub last: Option<i64>,
    /// The number of reports of steps that had already been evaluated.
    pub late: u64,
    /// Median over the ranks of the seconds in compute sections, and of those that wait for data.
    pub compute: Level,
    pub data: Level,
    /// All stages together: what a step loses to its slowest rank, and which that is.
    pub slowest: Slowest,
}

/// What the steps lose to their slowest rank.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Slowest {
    /// The loss of the last steps, as a share of their time.
    pub lost: Window<SEEN>,
    pub usual: BaselineShare,
    pub turns: Rotation,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Open {
    step: i64,
    reports: Vec<Report>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Report {
    rank: u32,
    compute: f32,
    data: f32,
    gc: f32,
    /// The cost of attention in this step, if the trainer reports it; else NaN.
    load: f32,
}

/// One rank among its peers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Member {
    pub stage: u32,
    /// The number of steps in which it was evaluated; `seen` is the last of all steps that was one
    /// of them.
    pub steps: u32,
    seen: u64,
    /// Mean excess: `ln` of its time over that of its peers.
    pub excess: f32,
    /// Detects since which step it deviates.
    pub drift: Drift,
    /// The same for its wait for data, as a share of the compute time of its peers.
    pub waits: Drift,
    /// The steps in which it was more than 10 % and more than 5 % slower than its peers, and far
    /// out.
    pub slow: HitWindow,
    pub slower: HitWindow,
    /// Its usual excess.
    pub usual: BaselineShare,
}

/// The ranks of one stage together.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Group {
    pub ranks: u32,
    /// The usual excess of its slowest rank.
    pub worst: f32,
    /// The mean of the median compute times, in seconds.
    pub secs: f64,
    /// Standard deviation of the mean excesses of its ranks.
    pub spread: f32,
    /// Of the last steps: how much slower the slowest rank was, as a ratio and in seconds; in
    /// sigmas; the share of garbage collection in that; and how closely the time follows the
    /// work.
    pub peak: Window<SEEN>,
    pub lost: Window<SEEN>,
    pub sigmas: Window<SEEN>,
    pub gc: Window<SEEN>,
    pub follows_load: Window<SEEN>,
    slowest: Rotation,
}

/// The usual value of a quantity, and the recent one.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Level {
    pub usual: f64,
    pub lately: f64,
    pub n: u32,
}

impl Level {
    fn add(&mut self, x: f64) {
        if !x.is_finite() {
            return;
        }
        self.n = self.n.saturating_add(1);
        let all = 1.0 / f64::from(self.n);
        self.lately += all.max(0.25) * (x - self.lately);
        // A value far above the usual is bounded, so that it does not become the usual before it
        // is compared.
        let bounded = if self.n > 20 { x.min(1.5 * self.usual) } else { x };
        self.usual += all.max(0.01) * (bounded - self.usual);
    }

    pub fn rise(&self) -> f64 {
        self.lately - self.usual
    }
}

impl Member {
    /// How much more it exceeds its peers than it usually does.
    pub fn rise(&self) -> f64 {
        if self.usual.is_known() { f64::from(self.excess) - self.usual.level() } else { 0.0 }
    }

    /// The step at which it began to deviate: far at once, or a little for long.
    pub fn onset(&self) -> i64 {
        if self.drift.is_out() { self.drift.onset() } else { self.usual.since() }
    }
}

impl Group {
    /// Share of the time that the last steps lost to their slowest rank.
    pub fn lost(&self) -> f64 {
        self.peak.iter().sum::<f64>() / self.peak.len().max(1) as f64
    }

    /// How evenly the ranks take turns as the slowest, and how often the slowest stays the same.
    pub fn rotation(&self) -> (f64, f64) {
        self.slowest.rotation(self.ranks)
    }
}

impl Slowest {
    /// How much more is lost than usually, and the standard deviation of that.
    pub fn rise(&self) -> (f64, f64) {
        let (lost, spread) = self.lost.location_scale();
        let rise = if self.usual.is_known() { lost - self.usual.level() } else { 0.0 };
        (rise, MEDIAN_ERROR * spread)
    }
}

impl RankComputeTimes {
    /// The standard deviation of how much more or less than usually the ranks of a stage exceed
    /// each other.
    pub fn spread_of_rises(&self, stage: u32) -> f64 {
        let peers = self.members.values().filter(|m| m.stage == stage);
        let mut rises: Vec<f32> = peers.map(|m| m.rise().abs() as f32).collect();
        MAD_TO_SIGMA * lower_median(&mut rises)
    }

    /// Takes a rank's report; true if a step was judged.
    pub(crate) fn take(&mut self, rank: u32, stage: Option<u32>, step: i64, e: &Event) -> bool {
        let Some(report) = Report::from_event(rank, e) else { return false };
        if let Some(behind) = self.last.map(|last| last.saturating_sub(step)).filter(|b| *b >= 0) {
            self.late += 1;
            // A node that is followed only now reports after the known ones each time: from the
            // next step on, it is waited for. A log that is read from its beginning is not.
            if behind < PATIENCE as i64 {
                self.meet(rank, stage);
            }
            return false;
        }
        self.meet(rank, stage);
        let at = self.open.partition_point(|o| o.step < step);
        if self.open.get(at).is_none_or(|o| o.step != step) {
            self.open.insert(at, Open { step, reports: Vec::with_capacity(self.members.len()) });
        }
        let reports = &mut self.open[at].reports;
        if reports.last().is_some_and(|r| r.rank >= rank) && reports.iter().any(|r| r.rank == rank) {
            return false; // another source of the same rank
        }
        reports.push(report);
        self.close()
    }

    /// Registers a rank, for which steps wait until it has not reported for long.
    fn meet(&mut self, rank: u32, stage: Option<u32>) {
        let judged = self.judged;
        let m = self.members.entry(rank).or_insert_with(|| {
            self.awaited += 1;
            Member { seen: judged, ..Member::default() }
        });
        self.awaited += usize::from(judged - m.seen >= PATIENCE);
        m.stage = stage.unwrap_or(0).min(MAX_STAGES);
        m.seen = judged;
    }

    /// Resets the state, because the run restarted and its ranks may be on other nodes.
    pub(crate) fn restarted(&mut self) {
        *self = Self { judged: self.judged, late: self.late, ..Self::default() };
    }

    fn close(&mut self) -> bool {
        let mut closed = false;
        while let Some(first) = self.open.front() {
            // At first it is not known how many ranks report.
            let full = self.last.is_some() && first.reports.len() >= self.awaited;
            if self.open.len() <= OPEN && !full {
                break;
            }
            if let Some(done) = self.open.pop_front() {
                self.judge(done);
                closed = true;
            }
        }
        closed
    }

    fn judge(&mut self, mut done: Open) {
        self.last = Some(done.step);
        self.judged += 1;
        done.reports.sort_unstable_by_key(|r| r.rank);
        let mut stages: BTreeMap<u32, Vec<Report>> = BTreeMap::new();
        for r in &done.reports {
            let stage = self.members.get(&r.rank).map_or(0, |m| m.stage);
            stages.entry(stage).or_default().push(*r);
        }
        if self.groups.len() > stages.len() && done.reports.len() >= self.members.len() {
            self.groups.retain(|stage, _| stages.contains_key(stage));
        }
        let mut slowest: Option<(f64, u32)> = None;
        for (stage, reports) in stages {
            let group = self.groups.entry(stage).or_default();
            // If too few ranks report, there is nothing to compare with.
            if reports.len() < 2 || reports.len() * 2 < group.ranks as usize {
                continue;
            }
            group.ranks = group.ranks.max(reports.len() as u32);
            let worst = judge_group(done.step, group, &reports, &mut self.members);
            slowest = [slowest, worst].into_iter().flatten().max_by(|a, b| a.0.total_cmp(&b.0));
        }
        if let Some((lost, rank)) = slowest {
            self.slowest.usual.add(done.step, lost);
            self.slowest.lost.push(lost);
            self.slowest.turns.took(rank);
        }
        let of = |part: fn(&Report) -> f32| {
            let mut all: Vec<f32> = done.reports.iter().map(part).filter(|v| v.is_finite()).collect();
            lower_median(&mut all)
        };
        let (compute, data) = (of(|r| r.compute), of(|r| r.data));
        self.compute.add(compute);
        self.data.add(data);
        let judged = self.judged;
        self.awaited = self.members.values().filter(|m| judged - m.seen < PATIENCE).count();
        if judged.is_multiple_of(FORGET) {
            self.members.retain(|_, m| judged - m.seen < FORGET);
            for (stage, group) in &mut self.groups {
                group.ranks = self.members.values().filter(|m| m.stage == *stage).count() as u32;
            }
        }
    }

    /// The stage that computes longest, against the one that is typical of the others, once both
    /// are known.
    pub fn longest_stage(&self) -> Option<(u32, f64)> {
        let known: Vec<(u32, f64)> =
            self.groups.iter().filter(|(_, g)| g.peak.len() >= SEEN / 2).map(|(s, g)| (*s, g.secs)).collect();
        let (stage, secs) = *known.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let mut others: Vec<f32> =
            known.iter().filter(|(s, _)| *s != stage).map(|(_, secs)| *secs as f32).collect();
        let usual = lower_median(&mut others);
        (usual > 0.0).then(|| (stage, secs / usual))
    }
}

/// Finds a rank that waits for data longer than the others. A wait that all ranks share is
/// attributed to none.
fn compare_waits(step: i64, compute: f64, reports: &[Report], members: &mut BTreeMap<u32, Member>) {
    let mut data: Vec<f32> = reports.iter().map(|r| r.data).filter(|v| v.is_finite()).collect();
    let usual = lower_median(&mut data);
    data.iter_mut().for_each(|v| *v = (f64::from(*v) - usual).abs() as f32);
    let sigma = (MAD_TO_SIGMA * lower_median(&mut data) / compute).max(FLOOR);
    for r in reports.iter().filter(|r| r.data.is_finite()) {
        if let Some(m) = members.get_mut(&r.rank) {
            m.waits.add(step, (f64::from(r.data) - usual) / compute, sigma);
        }
    }
}

/// Returns what the step lost to the slowest rank, as a share of its time, and that rank.
fn judge_group(
    step: i64,
    group: &mut Group,
    reports: &[Report],
    members: &mut BTreeMap<u32, Member>,
) -> Option<(f64, u32)> {
    let mut secs: Vec<f32> = reports.iter().map(|r| r.compute).collect();
    let median = lower_median(&mut secs);
    let sigma = (MAD_TO_SIGMA * faster_half(&mut secs, median)).max(FLOOR);
    let mut means = Vec::with_capacity(reports.len());
    group.worst = 0.0;
    for r in reports {
        let Some(m) = members.get_mut(&r.rank) else { continue };
        let excess = (f64::from(r.compute) / median).ln();
        m.steps = m.steps.saturating_add(1);
        m.excess += WEIGHT.max(1.0 / m.steps as f32) * (excess as f32 - m.excess);
        m.drift.add(step, excess, sigma);
        m.slow.push(excess > 1.10f64.ln() && excess > FAR * sigma);
        m.slower.push(excess > 1.05f64.ln());
        m.usual.add(step, excess);
        group.worst = group.worst.max(m.usual.level() as f32);
        means.push(m.excess.abs());
    }
    compare_waits(step, median, reports, members);
    group.spread = (MAD_TO_SIGMA * lower_median(&mut means)).max(FLOOR) as f32;
    let n = group.peak.len() as f64 + 1.0;
    group.secs += (1.0 / n).max(0.05) * (median - group.secs);
    let slowest = reports.iter().max_by(|a, b| a.compute.total_cmp(&b.compute).then(b.rank.cmp(&a.rank)));
    let slowest = slowest?;
    let lost = f64::from(slowest.compute) - median;
    group.peak.push(lost / median);
    group.lost.push(lost);
    group.sigmas.push((f64::from(slowest.compute) / median).ln() / sigma);
    group.gc.push(if lost > 0.0 { (f64::from(slowest.gc) / lost).min(1.0) } else { 0.0 });
    if let Some(r) = correlation(reports) {
        group.follows_load.push(r);
    }
    group.slowest.took(slowest.rank);
    Some((lost / median, slowest.rank))
}

impl Report {
    fn from_event(rank: u32, e: &Event) -> Option<Self> {
        let compute = seconds(&e.t, computes).filter(|secs| *secs > 0.0)?;
        let load = e.m.get(metric::SEQLEN_SQUARED_SUM).map_or(f32::NAN, |v| v as f32);
        let data = seconds(&e.t, |name| name.contains("data") || name.contains("batch") && !computes(name));
        let gc = seconds(&e.t, |name| name == "gc" || name == "garbage_collection");
        Some(Self { rank, compute, data: data.unwrap_or(f32::NAN), gc: gc.unwrap_or(0.0), load })
    }
}

/// Whether a rank computes, and does not wait for others, in a step part of this name.
fn computes(name: &str) -> bool {
    COMPUTES.iter().any(|part| name.contains(part)) && !WAITS.iter().any(|part| name.contains(part))
}

/// The sum of the wanted parts. If other parts refine a name (`forward_compute` beside
/// `forward_backward`), only these count.
fn seconds(t: &Metrics, wanted: impl Fn(&str) -> bool) -> Option<f32> {
    let found = || t.iter().filter(|(name, v)| wanted(name) && v.is_finite() && *v >= 0.0);
    let refined = found().any(|(name, _)| name.ends_with("compute"));
    let taken = found().filter(|(name, _)| !refined || name.ends_with("compute"));
    taken.map(|(_, v)| v as f32).reduce(|a, b| a + b)
}

/// How far below the median the middle one of the faster ranks is. Slow ranks, though they be
/// nearly half of all, do not widen it.
fn faster_half(secs: &mut [f32], median: f64) -> f64 {
    let quarter = (secs.len() - 1) / 4;
    (median / f64::from(*secs.select_nth_unstable_by(quarter, f32::total_cmp).1)).ln().abs()
}

/// The median, the lower one of two in the middle.
fn lower_median(values: &mut [f32]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let at = (values.len() - 1) / 2;
    f64::from(*values.select_nth_unstable_by(at, f32::total_cmp).1)
}

/// The correlation between the time of a rank and its work, over the ranks. `None` if the work is
/// unknown or the same for all.
fn correlation(reports: &[Report]) -> Option<f64> {
    let known =
        || reports.iter().filter(|r| r.load.is_finite()).map(|r| (f64::from(r.load), f64::from(r.compute)));
    let n = known().count() as f64;
    if n < 4.0 {
        return None;
    }
    let (sx, sy) = known().fold((0.0, 0.0), |(x, y), (a, b)| (x + a / n, y + b / n));
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (x, y) in known() {
        xx += (x - sx) * (x - sx);
        yy += (y - sy) * (y - sy);
        xy += (x - sx) * (y - sy);
    }
    let r = xy / (xx * yy).sqrt();
    r.is_finite().then_some(r)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(times: &mut RankComputeTimes, rank: u32, step: i64) {
        let mut e = Event::step("r", step);
        assert!(e.t.set("fwd_bwd", 1.0));
        times.take(rank, None, step, &e);
    }

    /// The exporter of the first node is connected first, and its records always come first.
    #[test]
    fn a_node_that_is_followed_later_is_waited_for() {
        let mut times = RankComputeTimes::default();
        (0..20).for_each(|step| report(&mut times, 0, step));
        for step in 20..60 {
            (0..4).for_each(|rank| report(&mut times, rank, step));
        }
        assert_eq!(times.members.len(), 4);
        assert!(times.members.values().all(|m| m.steps >= 35), "{:?}", times.members);
        assert_eq!((times.late, times.groups[&0].ranks), (3, 4));
    }

    #[test]
    fn a_log_that_is_read_from_its_beginning_is_not_waited_for() {
        let mut times = RankComputeTimes::default();
        (0..100).for_each(|step| report(&mut times, 0, step));
        for step in 100..120 {
            report(&mut times, 0, step);
            report(&mut times, 1, step - 90);
        }
        assert_eq!((times.members.len(), times.last), (1, Some(119)));
    }
}

//! Finds the ranks that are slow, and whether the slowest rank changes. It keeps no state of its
//! own.

use std::collections::{BTreeMap, BTreeSet};

use super::config::Config;
use crate::run::rank_compute_time::{Group, Member, RankComputeTimes};

/// Steps of the short and the long look, and how many of them must be slow. Engineering limits: a
/// rank that is slow in every second step, independently, has 5 of 8 in 36 % of the looks and 24 of
/// 32 in 0.35 %.
const SHORT: u32 = 8;
const SHORT_SLOW: u32 = 5;
const LONG: u32 = 32;
const LONG_SLOW: u32 = 24;
/// Robust standard deviations of the ranks' mean excess: 10⁻⁹ of a normal distribution lies above
/// 6, so none of thousands of ranks is out of line by chance.
pub(super) const FAR: f32 = 6.0;
/// The same for the time that the steps lose to their slowest rank.
const CLEAR: f64 = 6.0;
/// The number of steps from which it is known how the slowest rank changes.
const PICTURE: usize = 16;
/// It rotates above this normalised entropy of who was slowest, and below this share of steps in
/// which the slowest stayed the same: engineering limits. Of 8 equal ranks the slowest stays the
/// same in 12.5 % of the steps.
const EVENLY: f64 = 0.6;
const REPEATS: f64 = 0.2;
/// The share of the limit at which the incident ends.
pub(super) const HYSTERESIS: f64 = 0.4;

/// Time that is lost to whichever rank is slowest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rotation<'a> {
    /// The stage that loses it, if it is a single one.
    pub stage: Option<u32>,
    pub group: &'a Group,
    pub lost: f64,
}

fn is_slow(c: &Config, m: &Member, g: &Group) -> bool {
    let far = m.excess > FAR * g.spread;
    let over = |ratio: f64| f64::from(m.excess) > ratio.ln();
    let soon = m.steps >= SHORT && m.slow.count_last(SHORT) >= SHORT_SLOW && over(c.ratio);
    let later = m.steps >= LONG && m.slower.count_last(LONG) >= LONG_SLOW && over(c.ticket_ratio);
    far && (soon || later)
}

/// Whether it has become slower than it was, and slower than the slowest of its peers. `spread` is
/// the spread of the rises of its peers.
fn has_slowed(c: &Config, m: &Member, g: &Group, spread: impl FnOnce() -> f64) -> bool {
    let rises = m.usual.has_risen() && m.rise() > c.rise;
    rises && cost(m, g) > 0.5 * c.rise && m.rise() > f64::from(FAR) * spread()
}

/// Whether its cost is worth a page.
pub(super) fn is_costly(c: &Config, m: &Member, g: &Group) -> bool {
    f64::from(m.excess) > c.ratio.ln() || cost(m, g) > c.page_rise
}

/// The share of the time that the steps lose to it beyond what they already lost to the slowest of
/// its peers, or to this rank before.
fn cost(m: &Member, g: &Group) -> f64 {
    f64::from(m.excess - g.worst)
}

/// The ranks that are slow now, or were reported as slow and still are.
pub(super) fn persistent(c: &Config, s: &RankComputeTimes, named: &BTreeSet<u32>) -> BTreeSet<u32> {
    // Computed once a stage, and only if needed, because it takes all ranks of the stage.
    let mut spreads: BTreeMap<u32, f64> = BTreeMap::new();
    let mut is_slow_now = |m: &Member, g: &Group| {
        let spread = || *spreads.entry(m.stage).or_insert_with(|| s.spread_of_rises(m.stage));
        is_slow(c, m, g) || has_slowed(c, m, g, spread)
    };
    let slow = s.members.iter().filter(|(rank, m)| {
        let held = named.contains(rank) && (m.slower.count_last(SHORT) > 0 || m.usual.holds());
        held || s.groups.get(&m.stage).is_some_and(|g| is_slow_now(m, g))
    });
    slow.map(|(rank, _)| *rank).collect()
}

/// The share of the time that is lost to whichever rank is slowest. A lower limit applies if it was
/// reported.
pub(super) fn rotating<'a>(c: &Config, s: &'a RankComputeTimes, known: bool) -> Option<Rotation<'a>> {
    let bound = if known { HYSTERESIS } else { 1.0 };
    let rotates =
        |n: usize, (evenness, repeats): (f64, f64)| n >= PICTURE && evenness > EVENLY && repeats < REPEATS;
    let losses =
        || s.groups.iter().map(|(stage, group)| Rotation { stage: Some(*stage), group, lost: group.lost() });
    let most = |a: &Rotation<'_>, b: &Rotation<'_>| a.lost.total_cmp(&b.lost);
    let far =
        losses().filter(|r| r.lost > bound * c.rotating && rotates(r.group.peak.len(), r.group.rotation()));
    far.max_by(most).or_else(|| {
        let all = &s.slowest;
        let (rise, error) = all.rise();
        let risen = if known { all.usual.holds() } else { all.usual.has_risen() };
        let clear = rise > bound * c.rise && rise > bound * CLEAR * error;
        let turns = rotates(all.turns.len(), all.turns.rotation(s.members.len() as u32));
        let group = losses().max_by(most).filter(|_| risen && clear && turns)?.group;
        Some(Rotation { stage: None, group, lost: all.lost.median() })
    })
}

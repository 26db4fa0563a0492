//! How many nodes save, write or upload at once, and how fast each rank then is.
//!
//! Storage that many nodes share gives each of them less the more they are: where twice as many
//! nodes at once are half as fast each, the storage or the way to it is what limits them, and not
//! the node.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::save_windows::keep;
use crate::stats::median::median;
use stepwatch_model::time::{Span, Ts};

/// The most spells of saving that are kept.
const SPELLS: usize = 8;
/// Spells of many nodes, and of few, that make a comparison.
const EACH: usize = 2;
/// How many times as many nodes are many, and the share of a fall as 1/n that counts: engineering
/// limits.
const MANY: f64 = 2.0;
const FALL: f64 = 0.75;

/// A time in which any node saved, by our clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spell {
    pub(crate) since: Ts,
    /// `None` while it lasts.
    pub(crate) until: Option<Ts>,
    /// The most nodes at once.
    pub(crate) nodes: u32,
}

/// A spell that is over.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Rate {
    nodes: u32,
    /// Of one rank, in bytes a second.
    rate: f32,
}

/// The spells of saving of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavingNodes {
    last: Option<Spell>,
    /// The one before it: of one that has just begun nothing is read yet.
    before: Option<Spell>,
    /// Ranks began since their nodes were counted last with one that ended.
    rises: bool,
    /// What ranks moved in the present spell, and the seconds that each of them took.
    bytes: f64,
    secs: f64,
    rates: VecDeque<Rate>,
}

/// What a rank moves in a second when many nodes save at once, and when few do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SharedRate {
    pub(crate) nodes: u32,
    pub(crate) rate: f64,
    pub(crate) fewer: u32,
    pub(crate) rate_of_fewer: f64,
}

impl SavingNodes {
    /// A rank moved so many bytes.
    pub(super) fn moved(&mut self, bytes: f64, took: Span) {
        if took > Span::ZERO {
            self.bytes += bytes;
            self.secs += took.as_secs_f64();
        }
    }

    /// A rank began to save, or ended, and so many nodes were counted. `is_open`: any rank saves
    /// since.
    pub(super) fn follow(&mut self, now: Ts, began: bool, nodes: u32, is_open: bool) {
        self.rises = began;
        match &mut self.last {
            Some(spell) if spell.until.is_none() => {
                spell.nodes = spell.nodes.max(nodes);
                if !is_open {
                    spell.until = Some(now);
                    let nodes = spell.nodes;
                    self.close(nodes);
                }
            }
            last if is_open && nodes > 0 => {
                self.before = last.replace(Spell { since: now, until: None, nodes });
                (self.bytes, self.secs) = (0.0, 0.0);
            }
            _ => {}
        }
    }

    /// Whether more nodes may save than were counted.
    pub(super) fn rises(&self) -> bool {
        self.rises
    }

    fn close(&mut self, nodes: u32) {
        if self.secs > 0.0 {
            let rate = (self.bytes / self.secs) as f32;
            keep(&mut self.rates, Rate { nodes, rate }, SPELLS);
        }
    }

    /// The last spell and the one before it.
    pub(crate) fn spells(&self) -> impl Iterator<Item = Spell> {
        self.last.into_iter().chain(self.before)
    }

    /// Whether ranks are slower the more nodes save at once.
    pub(crate) fn shared_rate(&self) -> Option<SharedRate> {
        let most = self.rates.iter().map(|spell| spell.nodes).max()?;
        let is_many = |spell: &&Rate| MANY * f64::from(spell.nodes) > f64::from(most);
        let of = |spells: Vec<Rate>| {
            let mut nodes: Vec<f32> = spells.iter().map(|spell| spell.nodes as f32).collect();
            let mut rates: Vec<f32> = spells.iter().map(|spell| spell.rate).collect();
            (spells.len() >= EACH).then(|| (median(&mut nodes), median(&mut rates)))
        };
        let (nodes, rate) = of(self.rates.iter().filter(is_many).copied().collect())?;
        let few = self.rates.iter().filter(|spell| !is_many(spell)).copied().collect();
        let (fewer, rate_of_fewer) = of(few).filter(|(fewer, _)| *fewer >= 1.0)?;
        let falls = rate_of_fewer / rate >= FALL * nodes / fewer;
        falls.then_some(SharedRate { nodes: nodes as u32, rate, fewer: fewer as u32, rate_of_fewer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A spell of so many nodes, each of whose ranks writes a gigabyte in so many seconds.
    fn spell(s: &mut SavingNodes, at: &mut i64, nodes: u32, secs: i64) {
        for n in 1..=nodes {
            s.follow(Ts(*at), true, n, true);
        }
        for left in (0..nodes).rev() {
            s.moved(1e9, Span::secs(secs));
            s.follow(Ts(*at + 1000 * secs), false, left, left > 0);
        }
        *at += 1_000_000;
    }

    #[test]
    fn ranks_that_share_what_there_is_are_slower_the_more_they_are() {
        let (mut s, mut at) = (SavingNodes::default(), 0);
        for secs in [10, 12] {
            spell(&mut s, &mut at, 16, 4 * secs);
            assert_eq!(s.shared_rate(), None);
            spell(&mut s, &mut at, 4, secs);
        }
        let found = s.shared_rate().expect("four times as many are a quarter as fast");
        assert_eq!((found.nodes, found.fewer), (16, 4));
        assert!((found.rate_of_fewer / found.rate - 4.0).abs() < 0.1, "{found:?}");
        let spell = |since, until, nodes| Spell { since: Ts(since), until: Some(Ts(until)), nodes };
        let last = [spell(3_000_000, 3_012_000, 4), spell(2_000_000, 2_048_000, 16)];
        assert_eq!(s.spells().collect::<Vec<_>>(), last);
    }

    #[test]
    fn ranks_that_are_as_fast_alone_share_nothing() {
        let (mut s, mut at) = (SavingNodes::default(), 0);
        for nodes in [16, 4, 16, 4, 16, 16, 16, 16, 16] {
            spell(&mut s, &mut at, nodes, 10);
        }
        assert_eq!((s.shared_rate(), s.rates.len()), (None, SPELLS));
    }
}

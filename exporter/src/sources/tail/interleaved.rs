//! Steps of several trainers in one log.
//!
//! Nothing in such a log says whose a line is. A step is taken for the next of the trainer whose
//! last step is the nearest below. One of them is followed, and the steps of the others are left
//! out: to the hub each would be a restart. A value that is not finite is kept, as the next step of
//! the one that is followed, because whoever's it is must hear of it.

use std::collections::BTreeMap;

use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

/// Ranks of one file that are told apart; of more, nothing is left out.
const MAX_RANKS: usize = 1024;
/// After so many steps of others in a row, they are followed: the trainer went back, ended, or is
/// much slower than they are.
const IN_A_ROW: u32 = 8;

/// The steps of each rank, while several trainers write a log.
#[derive(Debug, Default)]
pub(super) struct Interleaved {
    /// What the log is of; another one begins anew.
    run: Option<String>,
    ranks: BTreeMap<u32, Rank>,
}

#[derive(Debug, Clone, Copy)]
struct Rank {
    /// Last steps of the trainer that is followed, and of the others.
    followed: i64,
    other: Option<i64>,
    /// Steps of the others since.
    in_a_row: u32,
    /// The last step that was not left out, and whether it was one that is not finite.
    kept: i64,
    sick: bool,
}

impl Interleaved {
    /// Whether an event is left out. One of another trainer that is not finite becomes the next
    /// step of the one that is followed instead.
    pub(super) fn leaves_out(&mut self, event: &mut Event) -> bool {
        let Some(step) = event.step else { return false };
        if self.run != event.run {
            *self = Self { run: event.run.clone(), ranks: BTreeMap::new() };
        }
        let sick = is_sick(event);
        let first = Rank { followed: step, other: None, in_a_row: 0, kept: step, sick };
        let number = event.rank.unwrap_or(0);
        let Some(rank) = self.ranks.get_mut(&number) else {
            if self.ranks.len() < MAX_RANKS {
                self.ranks.insert(number, first);
            }
            return false;
        };
        if rank.is_followed(step) {
            (rank.followed, rank.in_a_row) = (step, 0);
            return !rank.keeps(step, sick);
        }
        rank.in_a_row += 1;
        if rank.in_a_row >= IN_A_ROW {
            *rank = Rank { other: Some(rank.followed), ..first };
            return false;
        }
        rank.other = Some(step);
        // One is enough until the one that is followed comes by.
        if !sick || rank.sick {
            return true;
        }
        let next = rank.kept.saturating_add(1);
        event.step = Some(next);
        !rank.keeps(next, sick)
    }
}

impl Rank {
    /// Whether a step is the next one of the trainer that is followed.
    fn is_followed(&self, step: i64) -> bool {
        let nearer = self.other.is_some_and(|other| other > self.followed && step > other);
        step > self.followed && !nearer
    }

    /// Keeps a step that rises.
    fn keeps(&mut self, step: i64, sick: bool) -> bool {
        let rises = step > self.kept;
        if rises {
            (self.kept, self.sick) = (step, sick);
        }
        rises
    }
}

/// Whether a value of the loss or the gradients is not finite, or missing.
fn is_sick(event: &Event) -> bool {
    let lost = |name: &str| {
        event.m.get(name).is_some_and(|v| !v.is_finite()) || event.missing.iter().any(|m| m == name)
    };
    [metric::LOSS, metric::GRAD_NORM].iter().any(|name| lost(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nan(step: i64) -> Event {
        let mut event = Event::step("r", step);
        event.m.set(metric::LOSS, f64::NAN);
        event
    }

    /// The steps that are kept; a negative one is of a loss that is not finite.
    fn kept(of: &mut Interleaved, steps: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let event = |step: i64| if step < 0 { nan(-step) } else { Event::step("r", step) };
        let mut events: Vec<Event> = steps.into_iter().map(event).collect();
        events.retain_mut(|event| !of.leaves_out(event));
        events.iter().filter_map(|event| event.step).collect()
    }

    #[test]
    fn one_trainer_is_followed() {
        let mut of = Interleaved::default();
        assert_eq!(kept(&mut of, [300, 0, 301, 1, 302, 2, 3, 303]), [300, 301, 302, 303]);
        assert_eq!(kept(&mut of, [4, 310, 20, 360]), [310, 360], "with lines further apart");
        let mut of = Interleaved::default();
        assert_eq!(kept(&mut of, [5, 5, 6, 6, 7, 7]), [5, 6, 7], "the same step of both");
    }

    #[test]
    fn a_trainer_that_is_much_slower_is_not_followed_for_long() {
        let slow = (0..20).flat_map(|n| [1000 + n].into_iter().chain(20 * n..20 * n + 20));
        let kept = kept(&mut Interleaved::default(), slow);
        assert_eq!(kept[..3], [1000, 7, 8]);
        assert!(kept[1..].is_sorted() && kept.len() == 394, "{kept:?}");
    }

    #[test]
    fn a_trainer_that_is_left_alone_or_went_back_is_followed() {
        let steps = kept(&mut Interleaved::default(), core::iter::once(300).chain(4..100));
        assert_eq!(steps, core::iter::once(300).chain(11..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_value_that_is_not_finite_is_kept() {
        let mut of = Interleaved::default();
        assert_eq!(kept(&mut of, [300, 1, -2]), [300, 301], "no restart");
        assert_eq!(kept(&mut of, [-3, 301]), [0; 0], "one is enough, and no step comes twice");
        assert_eq!(kept(&mut of, [302, -4, 303, 304]), [302, 303, 304]);
        let mut event = Event { missing: vec![metric::LOSS.into()], ..Event::step("r", 5) };
        assert!(!of.leaves_out(&mut event));
        assert_eq!(event.step, Some(305));
        assert_eq!(kept(&mut Interleaved::default(), [300, 1, -301, 2, 302]), [300, 301, 302]);
    }

    #[test]
    fn another_run_begins_anew() {
        let mut of = Interleaved::default();
        assert_eq!(kept(&mut of, [300, 1]), [300]);
        assert!(!of.leaves_out(&mut Event::step("next", 1)));
    }

    #[test]
    fn ranks_are_apart() {
        let mut of = Interleaved::default();
        let event = |rank, step| Event { rank: Some(rank), ..Event::step("r", step) };
        assert!([(0, 7), (1, 7), (0, 8), (1, 8)].into_iter().all(|(r, s)| !of.leaves_out(&mut event(r, s))));
        assert!(of.leaves_out(&mut event(1, 3)));
    }
}

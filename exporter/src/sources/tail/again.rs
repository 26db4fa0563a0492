//! Recognises lines that are read again after a crash.
//!
//! The position is saved after the events were published, so a crash in between reads them again.
//! The hub still knows the last step of every rank, so to it a step read again looks like a job
//! that went back to an earlier checkpoint. The difference: steps read again rise from the saved
//! one to the last one of the hub.

use std::collections::BTreeMap;

use stepwatch_wire::Event;

/// The most ranks of one file that are tracked; steps of further ones may repeat.
const MAX_RANKS: usize = 1024;

/// Recognises events that were published before the position was saved.
#[derive(Debug, Default)]
pub(super) struct Again {
    /// The last step at the saved position; `None` if nothing was resumed.
    saved: Option<i64>,
    ranks: BTreeMap<u32, Rank>,
}

#[derive(Debug, Clone, Copy)]
struct Rank {
    /// Steps up to this one were published; `None` after the first new one.
    through: Option<i64>,
    last: i64,
}

impl Again {
    pub(super) fn resumed(saved: Option<i64>) -> Self {
        Self { saved, ranks: BTreeMap::new() }
    }

    /// Whether events may be read again.
    pub(super) fn is_watching(&self) -> bool {
        self.saved.is_some()
    }

    /// Whether this event was published before. `published` is called once a rank, before any of
    /// its events is published.
    pub(super) fn is(&mut self, event: &Event, published: impl FnOnce(u32) -> Option<i64>) -> bool {
        let (Some(saved), Some(step)) = (self.saved, event.step) else { return false };
        let number = event.rank.unwrap_or(0);
        if !self.ranks.contains_key(&number) && self.ranks.len() >= MAX_RANKS {
            return false;
        }
        let rank = self
            .ranks
            .entry(number)
            .or_insert_with(|| Rank { through: published(number).filter(|p| *p > saved), last: i64::MIN });
        let again = rank.through.is_some_and(|through| (rank.last..=through).contains(&step));
        if !again {
            rank.through = None;
        }
        rank.last = step;
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(saved: Option<i64>, published: Option<i64>, steps: &[i64]) -> Vec<i64> {
        let mut again = Again::resumed(saved);
        steps.iter().copied().filter(|s| !again.is(&Event::step("r", *s), |_| published)).collect()
    }

    #[test]
    fn skips_what_was_published_and_nothing_else() {
        assert_eq!(run(Some(10), Some(13), &[11, 12, 13, 14, 15]), [14, 15]);
        assert_eq!(run(Some(10), Some(10), &[11, 12]), [11, 12], "saved after all was published");
        assert_eq!(run(Some(10), None, &[11, 12]), [11, 12], "the hub knows nothing");
        assert_eq!(run(None, Some(13), &[11, 12]), [11, 12], "a file that was never read");
        assert_eq!(
            run(Some(10), Some(13), &[5, 6]),
            [0; 0],
            "a job that went back in that moment is not distinguished"
        );
        assert_eq!(run(Some(10), Some(13), &[11, 12, 5, 6]), [5, 6], "unless it shows");
        assert_eq!(run(Some(10), Some(13), &[11, 14, 12, 13]), [14, 12, 13], "once new, new for good");
    }

    #[test]
    fn ranks_are_apart() {
        let mut again = Again::resumed(Some(10));
        let mut is = |rank, step| {
            let event = Event { rank: Some(rank), ..Event::step("r", step) };
            again.is(&event, |r| Some(if r == 0 { 12 } else { 11 }))
        };
        assert_eq!([is(0, 11), is(1, 11), is(0, 12), is(1, 12)], [true, true, true, false]);
    }
}

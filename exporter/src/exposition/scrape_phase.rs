//! Decides when to render: at every tick while the rhythm of the scrapes is unknown, and otherwise
//! a moment before the next scrape.
//!
//! A Prometheus that scrapes every 15 seconds sees one exposition in 15, so the others need not be
//! rendered. A request at another time, such as from `curl`, waits a millisecond or two for one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The most scrapers that are distinguished if they scrape in turn, as a pair of Prometheus servers
/// does.
const SCRAPERS: usize = 6;
/// The most scrapes that are kept.
const REMEMBERED: usize = 2 * SCRAPERS + 1;
/// The greatest age of a served exposition, and the longest delay of work that is done when
/// rendering.
const OLDEST: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct ScrapePhase {
    /// The time between two ticks.
    interval: Duration,
    made: Instant,
    /// Whether a tick has passed since without rendering.
    left_out: bool,
    /// The times of requests, the last one last.
    asked: VecDeque<Instant>,
}

impl ScrapePhase {
    /// Begins at `now` with the first exposition.
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, made: now, left_out: false, asked: VecDeque::with_capacity(REMEMBERED) }
    }

    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// Records that rendering succeeded or failed. After a failure, the next request does not wait
    /// for another attempt.
    pub(super) fn made(&mut self, now: Instant) {
        (self.made, self.left_out) = (now, false);
    }

    /// Records a request. Returns whether the last exposition is as new as without skipped ticks.
    /// If one is late because the machine is busy, the request does not wait.
    pub(super) fn ask(&mut self, now: Instant) -> bool {
        if self.asked.len() == REMEMBERED {
            self.asked.pop_front();
        }
        self.asked.push_back(now);
        !self.left_out || now.saturating_duration_since(self.made) <= self.ahead()
    }

    /// Whether to render at this tick: a scrape may come before the next one, or the rhythm is
    /// unknown.
    pub(super) fn due(&mut self, now: Instant) -> bool {
        let due = self.expected(now);
        self.left_out |= !due;
        due
    }

    fn expected(&self, now: Instant) -> bool {
        let old = now.saturating_duration_since(self.made) + self.ahead() > OLDEST;
        old || self.next().is_none_or(|next| now + self.ahead() >= next)
    }

    /// When the next request is expected, if scrapes have a rhythm: a pattern that repeats after as
    /// many requests as there are scrapers.
    fn next(&self) -> Option<Instant> {
        (1..=SCRAPERS).find_map(|scrapers| {
            let first = self.asked.len().checked_sub(2 * scrapers + 1)?;
            let asked = self.asked.iter().skip(first);
            let rounds =
                asked.clone().zip(asked.skip(scrapers)).map(|(a, b)| b.saturating_duration_since(*a));
            let (shortest, longest) = (rounds.clone().min()?, rounds.max()?);
            let alike = longest.saturating_sub(shortest) <= self.interval;
            let of_next = self.asked.get(self.asked.len() - scrapers)?;
            alike.then(|| *of_next + shortest)
        })
    }

    /// A tick and a half, so that the tick before a scrape is not skipped if the scrape is a little
    /// early.
    fn ahead(&self) -> Duration {
        self.interval * 3 / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// How many expositions are rendered in a minute of ticks, their greatest age when requested at
    /// these seconds, and how many requests waited.
    fn minute(asked: impl Fn(u32) -> bool) -> (usize, u32, usize) {
        let start = Instant::now();
        let mut rhythm = ScrapePhase::new(SECOND, start);
        let (mut pages, mut oldest, mut waited, mut made) = (0, 0, 0, 0);
        for second in 0..240 {
            let now = start + SECOND * second;
            if rhythm.due(now) {
                rhythm.made(now);
                made = second;
                pages += usize::from(second >= 180);
            }
            // The request is between two ticks.
            let now = now + SECOND / 2;
            if asked(second) {
                if !rhythm.ask(now) {
                    rhythm.made(now);
                    made = second;
                    (pages, waited) =
                        (pages + usize::from(second >= 180), waited + usize::from(second >= 180));
                }
                oldest = if second >= 180 { oldest.max(second - made) } else { 0 };
            }
        }
        (pages, oldest, waited)
    }

    #[test]
    fn pages_are_made_where_they_are_asked_for() {
        assert_eq!(minute(|_| false), (60, 0, 0), "nobody knows");
        assert_eq!(minute(|_| true), (60, 0, 0), "every second");
        assert_eq!(minute(|s| s % 15 == 7), (8, 0, 0), "as a Prometheus does");
        assert_eq!(minute(|s| s % 15 == 7 || s % 15 == 10), (16, 0, 0), "as two do");
        assert_eq!(minute(|s| s % 15 == 7 || s % 60 == 10), (9, 0, 1), "who is seldom there waits");
        assert_eq!(minute(|s| s % 60 == 7).1, 0);
        assert!(minute(|s| s % 60 == 7).0 <= 8, "nor is the page forgotten");
    }

    #[test]
    fn who_comes_at_another_time_waits_for_a_page() {
        let start = Instant::now();
        let mut rhythm = ScrapePhase::new(SECOND, start);
        for i in 1..4 {
            rhythm.made(start + SECOND * (15 * i));
            assert!(rhythm.ask(start + SECOND * (15 * i)));
        }
        assert!(!rhythm.due(start + SECOND * 50) && !rhythm.ask(start + SECOND * 52));
        rhythm.made(start + SECOND * 52);
        assert!(rhythm.due(start + SECOND * 53), "and from then on the rhythm is not known");
        rhythm.made(start + SECOND * 58);
        assert!(rhythm.ask(start + SECOND * 64), "the thread is late; no page was left out");
    }
}

//! When a page is worth making: at every tick of the interval while the rhythm of the scrapes is
//! not known, and a moment before the next scrape when it is.
//!
//! A Prometheus that comes every 15 seconds sees one page in 15. The others need not be made. A
//! request at another time, as from a person with `curl`, waits a millisecond or two for one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Most scrapers that are distinguished where they scrape in turns, as a pair of Prometheus servers
/// does.
const SCRAPERS: usize = 6;
/// Scrapes that are remembered.
const REMEMBERED: usize = 2 * SCRAPERS + 1;
/// No page that is served is older, and nothing that happens as a page is made waits longer.
const OLDEST: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct ScrapePhase {
    /// Time between two ticks.
    interval: Duration,
    made: Instant,
    /// A tick has passed since, and no page was made.
    left_out: bool,
    /// When it was asked for, the last one last.
    asked: VecDeque<Instant>,
}

impl ScrapePhase {
    /// A page was made now, the first.
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, made: now, left_out: false, asked: VecDeque::with_capacity(REMEMBERED) }
    }

    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// A page was made, or could not be: the next request does not wait for another attempt.
    pub(super) fn made(&mut self, now: Instant) {
        (self.made, self.left_out) = (now, false);
    }

    /// A request came. Returns whether the last page is as new as it would be if none had been left
    /// out. A page that is late because the machine is busy is not waited for.
    pub(super) fn ask(&mut self, now: Instant) -> bool {
        if self.asked.len() == REMEMBERED {
            self.asked.pop_front();
        }
        self.asked.push_back(now);
        !self.left_out || now.saturating_duration_since(self.made) <= self.ahead()
    }

    /// Whether to make a page at this tick: a scrape may come before the next one, or the rhythm of
    /// the scrapes is not known.
    pub(super) fn due(&mut self, now: Instant) -> bool {
        let due = self.expected(now);
        self.left_out |= !due;
        due
    }

    fn expected(&self, now: Instant) -> bool {
        let old = now.saturating_duration_since(self.made) + self.ahead() > OLDEST;
        old || self.next().is_none_or(|next| now + self.ahead() >= next)
    }

    /// When the next request is expected, where scrapes come in a rhythm: a pattern that repeats
    /// after as many requests as there are scrapers.
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

    /// A tick and a half: the tick before the scrape is then never left out because the scrape is a
    /// little early.
    fn ahead(&self) -> Duration {
        self.interval * 3 / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// How many pages are made in a minute of ticks, and how old they are at most when they are
    /// asked for at these seconds.
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
            // Between two ticks.
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

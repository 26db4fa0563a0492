//! One series of values from any source: a run's steps, a scrape every quarter of a minute, or a
//! column of a file. Its only clock is that of its values.
//!
//! Medians of 8 values, less what belongs to the hour and the day ([`super::calendar`]), are judged
//! by [`super::level`]. A shift is reported once, and is over when the level is back or has stayed
//! for 64 blocks.

use serde::{Deserialize, Serialize};

use super::block::{Block, Blocks};
use super::calendar::Calendar;
use super::hit_window::HitWindow;
use super::level::Level;
use crate::sample::rounding;
use stepwatch_model::time::{Span, Ts};

/// Bound of the CUSUMs: by Siegmund's formula, k = 0.5, one false alarm of independent normal
/// blocks in 10⁶ (8·10⁶ values).
const H: f64 = 12.0;
/// Smallest scale of a block: a share of its level, and the rounding of its printer.
const FLOOR: f64 = 2e-3;
/// The same as a share of the spread within a block: the median of 8 independent normal values has
/// 0.41 of it.
const OF_SPREAD: f64 = 0.3;
/// Steps of the printer by which a value must differ to differ at all.
const PRINTED: f64 = 1.5;
/// Sigmas below which a shift is not reported, and within which it is over: 0.27 % and 4.6 % of a
/// normal distribution lie beyond them on both sides.
const LEAST: f64 = 3.0;
const BACK: f64 = 2.0;
/// Blocks until its level is accepted: an engineering limit, 512 values.
const ACCEPT: u32 = 64;
/// Values that were all numbers before one that is none is news.
const SOUND: u32 = 64;
/// A calendar is kept from this age on.
const DAY: Span = Span::secs(6 * 3600);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Series {
    blocks: Blocks,
    level: Level,
    calendar: Option<Box<Calendar>>,
    began: Option<Ts>,
    /// Standard deviation of the values within a block.
    spread: f64,
    numbers: u32,
    broken: bool,
    shift: Option<Shift>,
    recent: HitWindow,
}

/// A shift that was reported.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Shift {
    expected: f64,
    size: f64,
    blocks: u32,
}

/// A value of a series.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// Where it stands, by whatever the caller counts.
    pub at: i64,
    pub ts: Ts,
    pub value: f64,
    /// How finely it was printed.
    pub quantum: f64,
}

/// What a shift must be to be large.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub sigmas: f64,
    /// Of the level.
    pub share: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum News {
    Shift {
        up: bool,
        large: bool,
        value: f64,
        expected: f64,
        z: f64,
        onset: i64,
    },
    /// The shift is over; accepted: by being usual now.
    Over {
        accepted: bool,
        value: f64,
    },
    /// The first value that is none.
    NotANumber,
}

impl Series {
    pub fn add(&mut self, point: Point, limits: Limits) -> Option<News> {
        let Point { at, ts, value, quantum } = point;
        if !value.is_finite() {
            let news = self.numbers >= SOUND && !self.broken;
            self.broken = true;
            return news.then_some(News::NotANumber);
        }
        self.numbers = self.numbers.saturating_add(1);
        let began = *self.began.get_or_insert(ts);
        let (mut share, mut doubt) = (0.0, 0.0);
        if ts - began >= DAY {
            let calendar = self.calendar.get_or_insert_with(Default::default);
            share = calendar.share(ts);
            doubt = if share == 0.0 { 0.0 } else { calendar.doubt(ts) };
            calendar.add(ts, value);
        }
        let block = self.blocks.add(at, value - share)?;
        self.spread += (block.sigma - self.spread) / 16.0;
        if self.level.is_warm() && doubt > LEAST * self.level.scale() {
            return None;
        }
        self.judge(block, share, quantum, limits)
    }

    fn judge(&mut self, block: Block, share: f64, quantum: f64, limits: Limits) -> Option<News> {
        let x = block.median;
        let floor = (FLOOR * x.abs()).max(rounding(quantum)).max(OF_SPREAD * self.spread);
        let value = x + share;
        if let Some(s) = &mut self.shift {
            s.blocks += 1;
            self.level.hold(x);
            let back = (x - s.expected).abs() < (BACK * self.level.scale()).max(0.3 * s.size.abs());
            self.recent.push(back);
            let (back, accepted) = (self.recent.count_last(3) >= 2, s.blocks >= ACCEPT);
            if back || accepted {
                let level = s.expected;
                self.shift = None;
                if back {
                    self.level.go_on(level);
                } else {
                    self.level.accept();
                }
                return Some(News::Over { accepted: !back, value });
            }
            return None;
        }
        let r = self.level.add(block.first, x, floor, H)?;
        let up = r.up > 1.0;
        let out = if up { r.d } else { -r.d };
        if !(up || r.down > 1.0) || out < LEAST * self.level.scale() || out < PRINTED * quantum {
            return None;
        }
        let large = r.z.abs() > limits.sigmas && out > limits.share * r.expected.abs();
        self.shift = Some(Shift { expected: r.expected, size: r.d, blocks: 0 });
        self.recent.clear();
        Some(News::Shift { up, large, value, expected: r.expected + share, z: r.z, onset: r.onset })
    }

    /// What was usual is learned again; the hour of the day is what it was.
    pub fn restart(&mut self) {
        let calendar = self.calendar.take();
        *self = Self { calendar, began: self.began, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::Noise;

    const LIMITS: Limits = Limits { sigmas: 6.0, share: 0.05 };

    /// The large shifts of a series with a value a minute, after `skip` days.
    fn large(days: i64, skip: i64, value: impl Fn(i64) -> f64) -> Vec<i64> {
        let (mut series, mut noise) = (Series::default(), Noise::new(9));
        let minutes = days * 1440;
        (0..minutes)
            .filter(|i| {
                let ts = Ts(1_795_219_200_000 + i * 60_000);
                let value = value(*i) + 0.3 * noise.normal();
                let news = series.add(Point { at: *i, ts, value, quantum: 0.0 }, LIMITS);
                matches!(news, Some(News::Shift { large: true, .. })) && *i >= skip * 1440
            })
            .collect()
    }

    #[test]
    fn a_working_day_is_learned_and_a_different_one_is_news() {
        let office = |minute: i64| if (480..1080).contains(&(minute % 1440)) { 60.0 } else { 40.0 };
        let usual = large(21, 7, office);
        assert!(usual.len() <= 2, "{usual:?}");
        let fault = large(21, 7, |m| office(m) + if m > 18 * 1440 { 15.0 } else { 0.0 });
        assert!(fault.iter().any(|at| (18 * 1440..18 * 1440 + 60).contains(at)), "{fault:?}");
    }

    #[test]
    fn the_unit_of_what_it_is_counted_by_does_not_matter() {
        let run = |scale: i64| {
            let (mut series, mut noise) = (Series::default(), Noise::new(4));
            (0..2000)
                .filter_map(|i| {
                    let value = noise.normal() + if i > 1000 { 9.0 } else { 0.0 };
                    series.add(Point { at: i * scale, ts: Ts(i), value, quantum: 0.0 }, LIMITS).map(|_| i)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1000));
        assert!(!run(1).is_empty());
    }
}

//! The values of a signal by step, in bounded memory.
//!
//! If a track becomes too long, neighbours are joined: each [`Point`] then represents several
//! samples and keeps the lowest and the highest, so that a spike of one sample stays visible in a
//! year of training. [`columns`] reduces the points again to the width of a picture.

/// The most points of one track.
pub const MAX_POINTS: usize = 65_536;
/// The number of points before the newest in which a late report of another rank is placed.
const LOOK_BACK: usize = 64;

/// Neighbouring samples of one attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub from: i64,
    pub to: i64,
    /// The number of restarts: steps are comparable only within one attempt.
    pub attempt: u32,
    /// The lowest finite value; above `high` if no sample was finite.
    pub low: f64,
    pub high: f64,
    /// The last finite value.
    pub last: f64,
    pub samples: u32,
    pub nonfinite: u32,
}

#[derive(Debug, Clone, Default)]
pub struct Track {
    points: Vec<Point>,
    attempt: u32,
    /// The number of samples per point, less one.
    joined: u32,
    /// The rank whose steps define the points; the values of others only widen them.
    lead: Option<u32>,
}

/// The values that are drawn at one position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Column {
    /// The position of its last step, from 0 to the width.
    pub x: f64,
    /// The position of its first step.
    pub begins: f64,
    pub attempt: u32,
    pub low: f64,
    pub high: f64,
    pub last: f64,
    pub samples: u32,
    pub nonfinite: u32,
}

impl Point {
    fn single(step: i64, attempt: u32, value: f64) -> Self {
        let mut point = Self {
            from: step,
            to: step,
            attempt,
            low: f64::INFINITY,
            high: f64::NEG_INFINITY,
            last: f64::NAN,
            samples: 0,
            nonfinite: 0,
        };
        point.widen(value);
        point.last = if value.is_finite() { value } else { f64::NAN };
        point
    }

    fn widen(&mut self, value: f64) {
        self.samples = self.samples.saturating_add(1);
        if value.is_finite() {
            (self.low, self.high) = (self.low.min(value), self.high.max(value));
        } else {
            self.nonfinite = self.nonfinite.saturating_add(1);
        }
    }

    fn join(&mut self, next: &Self) {
        (self.from, self.to) = (self.from.min(next.from), self.to.max(next.to));
        self.attempt = next.attempt;
        (self.low, self.high) = (self.low.min(next.low), self.high.max(next.high));
        if next.last.is_finite() {
            self.last = next.last;
        }
        self.samples = self.samples.saturating_add(next.samples);
        self.nonfinite = self.nonfinite.saturating_add(next.nonfinite);
    }
}

impl Track {
    /// Adds a sample. The first rank leads: if its step falls back, the run was restarted.
    pub fn push(&mut self, rank: u32, step: i64, value: f64) {
        let lead = *self.lead.get_or_insert(rank) == rank;
        let Some(last) = self.points.last_mut() else {
            self.points.push(Point::single(step, self.attempt, value));
            return;
        };
        if step == last.to {
            return last.widen(value);
        }
        if step < last.to && !lead {
            return self.late(step, value);
        }
        if step < last.to {
            self.attempt = self.attempt.saturating_add(1);
        }
        let point = Point::single(step, self.attempt, value);
        if last.attempt == self.attempt && last.samples <= self.joined {
            last.join(&point);
        } else {
            self.points.push(point);
            self.shrink();
        }
    }

    fn late(&mut self, step: i64, value: f64) {
        let mut tail = self.points.iter_mut().rev().take(LOOK_BACK);
        if let Some(point) = tail.find(|p| (p.from..=p.to).contains(&step)) {
            point.widen(value);
        }
    }

    /// Joins pairs of neighbours if there are too many points, also across attempts, so that the
    /// limit holds for a run that restarts at every step.
    fn shrink(&mut self) {
        if self.points.len() <= MAX_POINTS {
            return;
        }
        self.joined = self.joined.saturating_mul(2).saturating_add(1);
        let mut joined: Vec<Point> = Vec::with_capacity(MAX_POINTS / 2 + 1);
        let mut open = false;
        for point in self.points.drain(..) {
            if let Some(last) = joined.last_mut().filter(|_| open) {
                last.join(&point);
            } else {
                joined.push(point);
            }
            open = !open;
        }
        self.points = joined;
    }

    pub fn points(&self) -> &[Point] {
        &self.points
    }
}

/// Joins the points in each cell of the picture. Only the order within a cell is lost: the lowest
/// and the highest value of every cell are kept, and the number of non-finite values.
pub fn columns(points: &[Point], steps: (i64, i64), width: f64, cell: f64) -> Vec<Column> {
    let (from, to) = (steps.0 as f64, steps.1 as f64);
    let span = (to - from).max(1.0);
    let mut columns: Vec<Column> = Vec::new();
    let mut last_cell = None;
    for p in points.iter().filter(|p| p.to >= steps.0 && p.from <= steps.1) {
        let place = |step: i64| ((step as f64 - from) / span).clamp(0.0, 1.0) * width;
        let (begins, x) = (place(p.from), place(p.to));
        let key = ((x / cell) as usize, p.attempt);
        if let Some(column) = columns.last_mut().filter(|_| last_cell == Some(key)) {
            (column.low, column.high) = (column.low.min(p.low), column.high.max(p.high));
            if p.last.is_finite() {
                column.last = p.last;
            }
            column.samples = column.samples.saturating_add(p.samples);
            column.nonfinite = column.nonfinite.saturating_add(p.nonfinite);
            continue;
        }
        last_cell = Some(key);
        let Point { attempt, low, high, last, samples, nonfinite, .. } = *p;
        columns.push(Column { x, begins, attempt, low, high, last, samples, nonfinite });
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn track(values: impl IntoIterator<Item = (i64, f64)>) -> Track {
        let mut track = Track::default();
        values.into_iter().for_each(|(step, v)| track.push(0, step, v));
        track
    }

    #[test]
    fn a_spike_survives_any_length() {
        let n = 20 * MAX_POINTS as i64;
        let spike = |step| if step == 777_777 { 99.0 } else { 1.0 };
        let long = track((0..n).map(|step| (step, spike(step))));
        assert!(long.points().len() <= MAX_POINTS);
        assert_eq!(long.points().iter().map(|p| u64::from(p.samples)).sum::<u64>(), n as u64);
        let drawn = columns(long.points(), (0, n), 800.0, 2.0);
        assert!(drawn.len() <= 401, "{}", drawn.len());
        assert_eq!(drawn.iter().filter(|c| c.high == 99.0).count(), 1);
    }

    #[test]
    fn a_restart_begins_a_new_attempt_and_another_rank_does_not() {
        let mut track = track([(1, 1.0), (2, 2.0), (3, 3.0)]);
        track.push(7, 2, 9.0);
        track.push(7, 3, 0.5);
        assert_eq!(track.points().len(), 3);
        assert_eq!((track.points()[1].high, track.points()[1].last), (9.0, 2.0));
        track.push(0, 2, 5.0);
        let attempts: Vec<u32> = track.points().iter().map(|p| p.attempt).collect();
        assert_eq!(attempts, [0, 0, 0, 1]);
    }

    #[test]
    fn what_is_not_a_number_is_kept_apart() {
        let track = track([(1, 1.0), (2, f64::NAN), (3, f64::INFINITY)]);
        let drawn = columns(track.points(), (1, 3), 1.0, 9.0);
        assert_eq!((drawn.len(), drawn[0].low, drawn[0].high, drawn[0].nonfinite), (1, 1.0, 1.0, 2));
    }

    proptest! {
        #[test]
        fn columns_keep_every_extreme(
            samples in prop::collection::vec((any::<i64>(), any::<f64>(), 0u32..3), 0..300),
            window in (any::<i64>(), any::<i64>()),
            width in 1.0f64..2000.0,
        ) {
            let mut track = Track::default();
            for (step, value, rank) in &samples {
                track.push(*rank, *step, *value);
            }
            let steps = (window.0.min(window.1), window.0.max(window.1));
            let drawn = columns(track.points(), steps, width, 2.0);
            prop_assert!(drawn.iter().all(|c| (0.0..=width).contains(&c.x)));
            let inside = || track.points().iter().filter(|p| p.to >= steps.0 && p.from <= steps.1);
            let highest = |all: &mut dyn Iterator<Item = f64>| all.fold(f64::NEG_INFINITY, f64::max);
            prop_assert_eq!(highest(&mut inside().map(|p| p.high)), highest(&mut drawn.iter().map(|c| c.high)));
            prop_assert_eq!(
                inside().map(|p| p.nonfinite).sum::<u32>(),
                drawn.iter().map(|c| c.nonfinite).sum::<u32>()
            );
        }
    }
}

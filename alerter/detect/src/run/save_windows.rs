//! How long steps take while checkpoints are written or uploaded, and otherwise.
//!
//! A window is the time in which a stage after the blocking save is at work. A step that overlaps
//! one by more than half is inside, and one that overlaps none is outside. Steps with a blocking
//! save or an evaluation are neither. A window is compared once it is over, and steps outside have
//! followed it:
//! ```text
//! base = the larger one of the medians of the steps outside before the window and after it
//! rise = (median inside) / base − 1
//! z    = rise / (1.25·σ·√(1/n inside + 1/n outside)), ±4 at most
//! ```
//! 1.25/√n of σ is the standard error of a median. The base is the slower side, so that neither a
//! slow-down that lasts nor one that began before makes a window slow. Steps count as slower in
//! windows when, of the last 8 windows, at least 4, all but one rose, by 2 % in the median, and the
//! mean of z is above 2.5. Without steps outside there is nothing to compare with: a run that
//! uploads all the time has no window.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::save_stairs::Stairs;
use crate::stats::median::{MAD_TO_SIGMA, median};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Observation, SaveStage};

/// The most steps kept of each side, and the most windows.
const KEPT: usize = 32;
const WINDOWS: usize = 8;
/// The steps outside that end a window, and that must lie before it.
const OUTSIDE: usize = 8;
/// The fewest steps of a window.
const INSIDE: usize = 3;
/// The windows from which it is known whether steps are slower in them.
const KNOWN: usize = 4;
/// The mean z. That of 4 independent normal windows is above 2.5 in 3·10⁻⁷, and less often than
/// that, because the base is the slower side.
const SIGMAS: f64 = 2.5;
/// The same of fewer windows, which are a hint: an engineering limit.
const HINT: f64 = 3.5;
/// The largest z of one window, so that none alone counts for all.
const CAP: f64 = 4.0;
/// The least rise, and the smallest σ: engineering limits.
const LEAST: f64 = 0.02;
pub(super) const FLOOR: f64 = 0.0025;
/// Standard error of a median, in standard errors of a mean.
pub(super) const OF_MEDIAN: f64 = 1.25;
const STAGES: [SaveStage; 2] = [SaveStage::Write, SaveStage::Upload];

/// A line of steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepTime {
    /// When the last of them ended, by the clock of the event.
    pub(crate) at: Ts,
    /// Seconds of one step.
    pub(crate) secs: f64,
    pub(crate) steps: i64,
}

/// The last time in which a stage was at work, by the clock of the events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Busy {
    since: Option<Ts>,
    until: Option<Ts>,
}

/// A window that is over, in seconds of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Compared {
    inside: f32,
    outside: f32,
    z: f32,
    /// Share of the time of the steps since the window before that lay in it.
    covers: f32,
}

/// What steps take in the windows of a stage and outside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slowing {
    pub(crate) stage: SaveStage,
    /// Seconds of a step.
    pub(crate) inside: f64,
    pub(crate) outside: f64,
    pub(crate) windows: u32,
    /// The windows in which steps took longer.
    pub(crate) slower: u32,
    /// The mean z.
    pub(crate) z: f64,
    /// Share of the time of the run that is of such windows.
    pub(crate) covers: f64,
    rise: f64,
}

/// The step times of the current attempt by windows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SaveWindows {
    /// By [`SaveStage`], like all pairs here.
    busy: [Busy; 2],
    /// The run says when it begins to write or upload.
    is_told: bool,
    /// Steps outside before the window, inside, and outside after it.
    before: VecDeque<f32>,
    inside: [VecDeque<f32>; 2],
    after: VecDeque<f32>,
    /// The number of steps inside, and seconds of the steps outside since the window before.
    steps: [f64; 2],
    outside_secs: f64,
    recent: [VecDeque<Compared>; 2],
    /// How many windows were compared, and the mean share by which all steps took longer for the
    /// first four.
    compared: [u32; 2],
    first: [f32; 2],
    /// Seconds that all windows cost beyond their base.
    slowed: f64,
    stairs: Stairs,
}

impl Busy {
    fn overlap(&self, from: Ts, to: Ts) -> Span {
        let Some(since) = self.since else { return Span::ZERO };
        let until = self.until.unwrap_or(to).min(to);
        (until - since.max(from)).max(Span::ZERO)
    }

    fn is_open(&self) -> bool {
        self.since.is_some() && self.until.is_none()
    }
}

impl Compared {
    /// Steps inside against those outside, each in order of time.
    fn of(inside: &VecDeque<f32>, outside: &[&VecDeque<f32>]) -> Self {
        let sides = outside.iter().map(|side| (location_scale(side), side.len()));
        let ((base, sigma), n) = sides.fold(((0.0, 0.0), OUTSIDE), |((base, widest), n), ((m, s), len)| {
            ((f64::max(base, m), f64::max(widest, s / m)), n.min(len))
        });
        let middle = location_scale(inside).0;
        let error = OF_MEDIAN * sigma.max(FLOOR) * (1.0 / inside.len() as f64 + 1.0 / n as f64).sqrt();
        let z = ((middle / base - 1.0) / error).clamp(-CAP, CAP);
        Self { inside: middle as f32, outside: base as f32, z: z as f32, covers: 0.0 }
    }

    fn rise(&self) -> f64 {
        f64::from(self.inside) / f64::from(self.outside) - 1.0
    }
}

impl Slowing {
    fn of(stage: SaveStage, windows: &[Compared]) -> Self {
        let middle = |value: fn(&Compared) -> f64| {
            let mut all: Vec<f32> = windows.iter().map(|window| value(window) as f32).collect();
            median(&mut all)
        };
        let z = windows.iter().map(|window| f64::from(window.z)).sum::<f64>();
        Self {
            stage,
            inside: middle(|window| f64::from(window.inside)),
            outside: middle(|window| f64::from(window.outside)),
            windows: windows.len() as u32,
            slower: windows.iter().filter(|window| window.z > 0.0).count() as u32,
            z: z / windows.len().max(1) as f64,
            covers: middle(|window| f64::from(window.covers)),
            rise: middle(Compared::rise),
        }
    }

    /// Share by which steps take longer inside.
    pub(crate) fn rise(&self) -> f64 {
        self.rise
    }

    /// What was observed of the steps.
    pub(crate) fn observation(&self) -> Observation {
        Observation::SlowerWhileSaving {
            stage: self.stage,
            value: self.inside.into(),
            expected: self.outside.into(),
            slower: self.slower,
            windows: self.windows,
        }
    }

    pub(crate) fn is_sure(&self) -> bool {
        let most = self.slower + 1 >= self.windows && self.windows as usize >= KNOWN;
        most && self.z >= SIGMAS && self.rise >= LEAST
    }

    /// Few windows, each of them far slower than its sides.
    fn is_hint(&self) -> bool {
        let all = self.windows > 0 && self.slower == self.windows && (self.windows as usize) < KNOWN;
        all && self.z >= HINT && self.rise >= LEAST
    }
}

impl SaveWindows {
    /// A stage is at work from then on.
    pub(super) fn begin(&mut self, stage: SaveStage, at: Ts, is_told: bool) {
        self.is_told |= is_told;
        let busy = &mut self.busy[stage as usize];
        if !busy.is_open() {
            *busy = Busy { since: Some(at), until: None };
        }
    }

    pub(super) fn end(&mut self, stage: SaveStage, at: Ts) {
        let busy = &mut self.busy[stage as usize];
        if busy.is_open() {
            busy.until = Some(at);
        }
    }

    pub(super) fn is_told(&self) -> bool {
        self.is_told
    }

    /// Whether the stage is at work.
    pub(crate) fn is_open(&self, stage: SaveStage) -> bool {
        self.open_since(stage).is_some()
    }

    /// Since when the stage is at work, by the clock of the events.
    pub(crate) fn open_since(&self, stage: SaveStage) -> Option<Ts> {
        let busy = self.busy[stage as usize];
        busy.since.filter(|_| busy.is_open())
    }

    /// The share by which all steps took longer for the first windows of the attempt, once the last
    /// ones are others.
    pub(crate) fn longer_at_first(&self, stage: SaveStage) -> Option<f64> {
        let are_others = self.compared[stage as usize] as usize >= KNOWN + WINDOWS;
        are_others.then(|| f64::from(self.first[stage as usize]))
    }

    /// The save of another step ended.
    pub(super) fn saved(&mut self) {
        self.stairs.saved();
    }

    /// Takes plain steps of training.
    pub(super) fn step(&mut self, s: StepTime) {
        let whole = Span::from_secs_f64(s.secs * s.steps as f64);
        let [write, upload] = self.busy.map(|busy| busy.overlap(s.at.earlier(whole), s.at));
        let stage = if upload >= write { SaveStage::Upload } else { SaveStage::Write };
        let longest = write.max(upload);
        if longest == Span::ZERO {
            self.outside(s);
        } else if longest.0.saturating_mul(2) > whole.0 {
            // Too few steps lie between this window and the one before: the two are one.
            self.after.clear();
            keep(&mut self.inside[stage as usize], s.secs as f32, KEPT);
            self.steps[stage as usize] += s.steps as f64;
        }
    }

    fn outside(&mut self, s: StepTime) {
        self.stairs.step(s.secs);
        self.outside_secs += s.secs * s.steps as f64;
        if self.inside.iter().all(VecDeque::is_empty) {
            return keep(&mut self.before, s.secs as f32, KEPT);
        }
        keep(&mut self.after, s.secs as f32, KEPT);
        if self.after.len() >= OUTSIDE {
            self.close();
        }
    }

    /// Compares the window, which is over.
    fn close(&mut self) {
        let after = core::mem::take(&mut self.after);
        let before = core::mem::replace(&mut self.before, after);
        let (inside, steps) = (core::mem::take(&mut self.inside), core::mem::take(&mut self.steps));
        let outside_secs = core::mem::take(&mut self.outside_secs);
        if before.len() < OUTSIDE {
            return;
        }
        let times = |stage: usize| steps[stage] * location_scale(&inside[stage]).0;
        let known = (0..STAGES.len()).filter(|stage| !inside[*stage].is_empty());
        let all = outside_secs + known.map(times).sum::<f64>();
        for (stage, taken) in inside.iter().enumerate().filter(|(_, taken)| taken.len() >= INSIDE) {
            let mut compared = Compared::of(taken, &[&before, &self.before]);
            compared.covers = (times(stage) / all) as f32;
            self.slowed += steps[stage] * f64::from(compared.outside) * compared.rise();
            if self.compared[stage] < KNOWN as u32 {
                self.first[stage] += compared.covers * compared.rise() as f32 / KNOWN as f32;
            }
            self.compared[stage] = self.compared[stage].saturating_add(1);
            keep(&mut self.recent[stage], compared, WINDOWS);
        }
    }

    /// Seconds by which the steps in all windows of the attempt took longer. Chance alone makes
    /// them a little more or less than none.
    pub(crate) fn slowed(&self) -> f64 {
        self.slowed
    }

    /// The stage in whose windows steps surely take longer; the slower one of two.
    pub(crate) fn slowing(&self) -> Option<Slowing> {
        Self::slowest(|stage| self.recent[stage as usize].iter().copied().collect(), Slowing::is_sure)
    }

    /// The same of few windows, with the one that is not over.
    pub(crate) fn hint(&self) -> Option<Slowing> {
        Self::slowest(|stage| self.with_open(stage), Slowing::is_hint)
    }

    fn slowest(
        windows: impl Fn(SaveStage) -> Vec<Compared>,
        counts: fn(&Slowing) -> bool,
    ) -> Option<Slowing> {
        let of = |stage: SaveStage| Slowing::of(stage, &windows(stage));
        STAGES.into_iter().map(of).filter(counts).max_by(|a, b| a.rise.total_cmp(&b.rise))
    }

    fn with_open(&self, stage: SaveStage) -> Vec<Compared> {
        let inside = &self.inside[stage as usize];
        let open = inside.len() >= INSIDE && self.before.len() >= OUTSIDE;
        let open = open.then(|| Compared { covers: 1.0, ..Compared::of(inside, &[&self.before]) });
        self.recent[stage as usize].iter().copied().chain(open).collect()
    }

    /// The rises at the last saves, if the steps took longer after each of them.
    pub(crate) fn stairs(&self) -> &Stairs {
        &self.stairs
    }
}

/// Median and robust standard deviation; NaN without values.
pub(super) fn location_scale(times: &VecDeque<f32>) -> (f64, f64) {
    let mut all: Vec<f32> = times.iter().copied().collect();
    let middle = median(&mut all);
    all.iter_mut().for_each(|time| *time = (f64::from(*time) - middle).abs() as f32);
    (middle, MAD_TO_SIGMA * median(&mut all))
}

pub(super) fn keep<T>(ring: &mut VecDeque<T>, value: T, most: usize) {
    if ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that makes steps one after the other, and numbers for noise.
    struct Bench {
        windows: SaveWindows,
        now: Ts,
        seed: u64,
    }

    impl Bench {
        fn new() -> Self {
            Self { windows: SaveWindows::default(), now: Ts(1_000_000), seed: 7 }
        }

        /// Between -1 and 1.
        fn noise(&mut self) -> f64 {
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.seed >> 33) as f64 / f64::from(1u32 << 30) - 1.0
        }

        /// Steps of about so many seconds, with noise of 1 %.
        fn steps(&mut self, n: usize, secs: f64) -> &mut Self {
            for _ in 0..n {
                let secs = secs * (1.0 + 0.01 * self.noise());
                self.now = self.now + Span::from_secs_f64(secs);
                self.windows.step(StepTime { at: self.now, secs, steps: 1 });
            }
            self
        }

        fn window(&mut self, stage: SaveStage, n: usize, secs: f64) -> &mut Self {
            self.windows.begin(stage, self.now, true);
            self.steps(n, secs);
            self.windows.end(stage, self.now);
            self
        }
    }

    #[test]
    fn steps_that_are_slower_in_each_upload_are_known_after_four() {
        let mut b = Bench::new();
        for n in 0..4 {
            assert_eq!(b.windows.slowing(), None, "{n} windows");
            b.steps(40, 2.0).window(SaveStage::Upload, 10, 2.2);
        }
        assert_eq!(b.windows.slowing(), None, "the last is not compared yet");
        b.steps(8, 2.0);
        let found = b.windows.slowing().expect("it is slower");
        assert_eq!((found.stage, found.windows, found.slower), (SaveStage::Upload, 4, 4));
        assert!((found.rise() - 0.1).abs() < 0.01 && (found.inside - 2.2).abs() < 0.02, "{found:?}");
        // 22 s of 80 s and 22 s.
        assert!((found.covers - 0.215).abs() < 0.03, "{found:?}");
        // Four windows with ten steps of 0.2 s each.
        assert!((b.windows.slowed() - 8.0).abs() < 0.7, "{}", b.windows.slowed());
    }

    #[test]
    fn a_write_and_an_upload_that_follows_at_once_are_told_apart() {
        let mut b = Bench::new();
        for _ in 0..5 {
            b.steps(40, 2.0).window(SaveStage::Write, 8, 2.01).steps(3, 2.0);
            b.window(SaveStage::Upload, 8, 2.5);
        }
        let found = b.steps(8, 2.0).windows.slowing().expect("uploads are slower");
        assert_eq!((found.stage, found.windows), (SaveStage::Upload, 5));
    }

    #[test]
    fn noise_and_windows_like_the_rest_say_nothing() {
        let mut b = Bench::new();
        for _ in 0..200 {
            b.steps(30, 2.0).window(SaveStage::Upload, 10, 2.0);
            assert_eq!((b.windows.slowing(), b.windows.hint()), (None, None));
        }
        assert!(b.windows.slowed().abs() < 40.0, "{} of 4000 s", b.windows.slowed());
    }

    #[test]
    fn a_slow_down_that_lasts_or_lies_before_is_not_of_the_window() {
        let mut b = Bench::new();
        for n in 0..8 {
            // The run slows down for good as a window begins.
            let secs = 2.0 * 1.05_f64.powi(n);
            b.steps(40, secs).window(SaveStage::Upload, 10, 1.05 * secs);
        }
        assert_eq!(b.steps(8, 3.0).windows.slowing(), None);
    }

    #[test]
    fn windows_that_cover_nearly_all_the_time_have_nothing_to_be_compared_with() {
        let mut b = Bench::new();
        b.steps(40, 2.0);
        for _ in 0..20 {
            b.window(SaveStage::Upload, 60, 2.4).steps(4, 2.0);
        }
        assert_eq!((b.windows.slowing(), b.windows.slowed()), (None, 0.0));
    }

    #[test]
    fn one_window_is_a_hint_while_it_is_open() {
        let mut b = Bench::new();
        b.steps(40, 2.0);
        b.windows.begin(SaveStage::Upload, b.now, true);
        b.steps(10, 2.6);
        let hint = b.windows.hint().expect("far slower than before");
        assert_eq!((hint.windows, hint.slower), (1, 1));
        assert!(b.windows.is_open(SaveStage::Upload) && b.windows.slowing().is_none());
        assert!((hint.rise() - 0.3).abs() < 0.02, "{hint:?}");
    }

    #[test]
    fn a_step_that_lies_in_a_window_by_less_than_half_is_on_no_side() {
        let mut b = Bench::new();
        b.steps(20, 2.0);
        b.windows.begin(SaveStage::Write, b.now, true);
        b.windows.end(SaveStage::Write, b.now + Span::millis(600));
        b.windows.step(StepTime { at: b.now + Span::secs(2), secs: 2.0, steps: 1 });
        assert_eq!((b.windows.before.len(), b.windows.inside[0].len()), (20, 0));
        b.windows.step(StepTime { at: b.now + Span::secs(1), secs: 1.0, steps: 1 });
        assert_eq!((b.windows.before.len(), b.windows.inside[0].len()), (20, 1));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut b = Bench::new();
        for _ in 0..40 {
            b.steps(100, 2.0).window(SaveStage::Write, 100, 2.0);
        }
        let w = &b.windows;
        assert!(w.before.len() <= KEPT && w.inside.iter().all(|inside| inside.len() <= KEPT));
        assert!(w.recent.iter().all(|recent| recent.len() <= WINDOWS));
        let stored = postcard::to_stdvec(w).unwrap().len();
        assert!(stored < 1200, "{stored} bytes");
    }
}

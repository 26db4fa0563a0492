//! Keeps how the loss of a run began, to detect that the run started over from scratch: a trainer
//! that finds no checkpoint begins anew, often while its step counter goes on.
//!
//! Losses are compared by their logarithms, in segments of the lines since the start: line 0, line
//! 1, lines 2 and 3, 4 to 7 and so on. `fall` is the logarithm of the first loss over the current
//! one. A line near the first loss is a candidate. It started over if the segments from there on
//! resemble those of the beginning, for 8 lines and until the loss has fallen by a part of `fall`.
//! A spike is back too soon for that, and a divergence does not fall.
//!
//! The shares of `fall` and the numbers of lines are engineering limits.

use serde::{Deserialize, Serialize};

use crate::sample::StepSample;
use stepwatch_model::Span;
use stepwatch_model::time::Ts;

/// Segments that are kept: 2,048 lines.
const SEGMENTS: usize = 12;
/// The last of the segments of 8 lines.
const EIGHT_LINES: usize = 3;
/// Lines after which a run has something to lose.
const MIN_LINES: u32 = 64;
/// The `fall` from which a jump back can be distinguished from noise: the loss has come down by a
/// third.
const MIN_FALL: f64 = 0.4;
/// The least `fall` in mean differences of neighbouring lines. The mean difference of two
/// independent normal values is 1.13 sigmas, so this is 9 sigmas of a line.
const MOVES: f64 = 8.0;
/// Shares of `fall`: what a candidate may be below and above the first loss, what a segment may be
/// apart from its counterpart, what the loss must have come down by, and must still be above.
const BELOW: f64 = 0.12;
const ABOVE: f64 = 0.3;
const APART: f64 = 0.15;
const DOWN: f64 = 0.3;
const LEFT: f64 = 0.15;
/// Weight of a line in the current loss, and of a difference in their mean.
const RATE: f64 = 1.0 / 3.0;
const MOVE_RATE: f64 = 1.0 / 16.0;

/// A new beginning of the run that was detected at a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StartedOver {
    /// The first step of the new beginning.
    pub step: i64,
    pub loss: f64,
    /// The loss before it.
    pub lost: f64,
    /// Steps and time since the beginning before.
    pub steps: i64,
    pub took: Span,
    /// Lines that resemble those of that beginning.
    pub lines: u32,
    /// The steps are counted anew, as in a deliberate start without a checkpoint.
    pub recounts: bool,
}

/// The segments of the losses' logarithms, of which the current one is summed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Course {
    lines: u32,
    sum: f64,
    count: u32,
}

impl Course {
    /// The segment that this line completes, and its mean.
    fn push(&mut self, log: f64) -> Option<(usize, f64)> {
        self.lines += 1;
        (self.sum, self.count) = (self.sum + log, self.count + 1);
        // Segments end with lines 1, 2, 4, 8, ...
        self.lines.is_power_of_two().then(|| {
            let mean = self.sum / f64::from(self.count);
            (self.sum, self.count) = (0.0, 0);
            (self.lines.trailing_zeros() as usize, mean)
        })
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Beginning(Option<Box<State>>);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct State {
    /// The loss of the run is not positive, or its start was not seen.
    unknown: bool,
    course: Course,
    means: Vec<f32>,
    /// Where the current beginning was, and the last line.
    step: i64,
    ts: Ts,
    last_step: i64,
    last_ts: Ts,
    attempt: u32,
    level: f64,
    last: f64,
    moves: f64,
    candidate: Option<Candidate>,
    #[serde(skip)]
    over: Option<StartedOver>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Candidate {
    course: Course,
    step: i64,
    ts: Ts,
    log: f64,
    level: f64,
    fall: f64,
    before_step: i64,
    before_ts: Ts,
    recounts: bool,
}

impl Beginning {
    /// The new beginning that was detected since the last sample.
    pub fn started_over(&self) -> Option<StartedOver> {
        self.0.as_ref()?.over
    }

    /// Drops the new beginning because its detector is off, so that the loss detectors report it.
    pub fn ignore(&mut self) {
        if let Some(state) = &mut self.0 {
            state.over = None;
        }
    }

    pub fn observe(&mut self, s: &StepSample) {
        self.ignore();
        let Some(loss) = s.loss.filter(|loss| loss.is_finite() && s.interval > 0 && !s.adds) else { return };
        let state = self.0.get_or_insert_default();
        // A counter that stood far from zero at the first line belongs to a run that went on.
        let went_on = state.course.lines == 1 && state.step > (s.step - state.step).abs().max(1);
        if loss <= 0.0 || went_on {
            **state = State { unknown: true, ..State::default() };
        }
        if !state.unknown {
            state.over = state.take(s, loss.ln());
        }
    }
}

impl State {
    fn take(&mut self, s: &StepSample, log: f64) -> Option<StartedOver> {
        if self.course.lines == 0 {
            (self.step, self.ts, self.attempt) = (s.step, s.ts, s.attempt);
            (self.level, self.last) = (log, log);
        }
        let rewinds = s.attempt != self.attempt && s.step <= self.last_step;
        let before = (self.last_step, self.last_ts);
        (self.last_step, self.last_ts, self.attempt) = (s.step, s.ts, s.attempt);
        if let Some(candidate) = self.candidate.take_if(|_| rewinds) {
            self.level = candidate.level;
        }
        if self.candidate.is_none() && self.begins_again(log) {
            self.candidate = Some(Candidate {
                course: Course::default(),
                step: s.step,
                ts: s.ts,
                log,
                level: self.level,
                fall: f64::from(self.means[0]) - self.level,
                before_step: before.0,
                before_ts: before.1,
                recounts: rewinds,
            });
        }
        let Some(candidate) = &mut self.candidate else {
            self.level += RATE * (log - self.level);
            self.moves += MOVE_RATE * ((log - self.last).abs() - self.moves);
            self.last = log;
            if self.means.len() < SEGMENTS {
                let done = self.course.push(log);
                self.means.extend(done.map(|(_, mean)| mean as f32));
            }
            return None;
        };
        let (at, mean) = candidate.course.push(log)?;
        match candidate.judge(at, mean, self.means.get(at).copied()) {
            Some(true) => Some(self.begin(log)?),
            Some(false) => {
                self.candidate = None;
                (self.level, self.last) = (log, log);
                None
            }
            None => None,
        }
    }

    /// Whether a line may be the first of another beginning.
    fn begins_again(&self, log: f64) -> bool {
        let Some(first) = self.means.first().map(|first| f64::from(*first)) else { return false };
        let fall = first - self.level;
        let is_near = log > first - BELOW * fall && log < first + ABOVE * fall;
        self.course.lines >= MIN_LINES && fall > MIN_FALL.max(MOVES * self.moves) && is_near
    }

    /// Begins anew at the candidate, which is the start for the next comparison.
    fn begin(&mut self, log: f64) -> Option<StartedOver> {
        let c = self.candidate.take()?;
        let over = StartedOver {
            step: c.step,
            loss: c.log.exp(),
            lost: c.level.exp(),
            steps: c.before_step - self.step,
            took: c.before_ts - self.ts,
            lines: c.course.lines,
            recounts: c.recounts,
        };
        (self.step, self.ts) = (c.step, c.ts);
        (self.level, self.last) = (log, log);
        Some(over)
    }
}

impl Candidate {
    /// Whether it is another beginning; `None` as long as that is open.
    fn judge(&self, at: usize, mean: f64, began: Option<f32>) -> Option<bool> {
        let Some(began) = began.map(f64::from) else { return Some(false) };
        // The first segments are of a line each, and may be of other steps than at the beginning.
        if (mean - began).abs() > APART * self.fall && at > 1 {
            return Some(false);
        }
        if at > 0 && mean < self.level + LEFT * self.fall {
            return Some(false);
        }
        (at >= EIGHT_LINES && mean < self.log - DOWN * self.fall).then_some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::Noise;
    use proptest::prelude::*;

    fn lines(losses: impl IntoIterator<Item = f64>, every: i64) -> Vec<StepSample> {
        let line = |(i, loss)| StepSample {
            step: i as i64 * every,
            ts: Ts(i as i64 * every * 2000),
            interval: every,
            loss: Some(loss),
            ..StepSample::default()
        };
        losses.into_iter().enumerate().map(line).collect()
    }

    fn course(seed: u64, n: usize, half: f64) -> Vec<f64> {
        let mut noise = Noise::new(seed);
        let at = |i: usize| 2.5 + 8.4 * (-(i as f64) / half).exp() + 0.9 * (-(i as f64) / 1500.0).exp();
        (0..n).map(|i| at(i) + 0.03 * noise.normal()).collect()
    }

    fn over(samples: &[StepSample]) -> Vec<StartedOver> {
        let mut beginning = Beginning::default();
        let seen = |s| {
            beginning.observe(s);
            beginning.started_over()
        };
        samples.iter().filter_map(seen).collect()
    }

    #[test]
    fn a_run_that_begins_anew_while_its_counter_goes_on() {
        for (half, every) in [(120.0, 1), (12.0, 10), (3.0, 100)] {
            let losses = [course(1, 900, half), course(2, 900, half)].concat();
            let found = over(&lines(losses, every));
            assert_eq!(found.len(), 1, "{half}: {found:?}");
            let StartedOver { step, lost, steps, took, recounts, .. } = found[0];
            assert_eq!((step, steps, recounts), (900 * every, 899 * every, false));
            assert_eq!(took, Span(899 * every * 2000));
            assert!((lost - 3.0).abs() < 0.2, "{lost}");
        }
    }

    #[test]
    fn each_time_it_begins_anew_what_was_done_since_the_last_is_lost() {
        let losses = [course(1, 500, 40.0), course(2, 300, 40.0), course(3, 300, 40.0)].concat();
        let found = over(&lines(losses, 1));
        assert_eq!(found.iter().map(|o| (o.step, o.steps)).collect::<Vec<_>>(), [(500, 499), (800, 299)]);
    }

    #[test]
    fn a_counter_that_begins_anew_is_told_apart() {
        let mut run = lines(course(1, 500, 40.0), 1);
        let again = lines(course(2, 500, 40.0), 1);
        let later = |s: StepSample| StepSample { attempt: 1, ts: Ts(s.ts.0 + 1_000_000), ..s };
        run.extend(again.into_iter().map(later));
        let found = over(&run);
        assert_eq!(found.len(), 1);
        assert!(found[0].recounts && found[0].step == 0 && found[0].steps == 499, "{found:?}");
    }

    #[test]
    fn what_is_no_other_beginning() {
        let usual = course(1, 2000, 120.0);
        let with = |rise: &dyn Fn(usize) -> f64| {
            let risen = |(i, loss): (usize, &f64)| if i < 1000 { *loss } else { loss + rise(i - 1000) };
            over(&lines(usual.iter().enumerate().map(risen), 1))
        };
        assert_eq!(with(&|_| 0.0), []);
        assert_eq!(with(&|i| if i == 0 { 8.5 } else { 0.0 }), [], "one bad batch");
        assert_eq!(with(&|i| 8.5 * (-(i as f64) / 5.0).exp()), [], "a spike");
        assert_eq!(with(&|_| 8.5), [], "a divergence");
        assert_eq!(with(&|_| 4.0), [], "to another level");
        // Noise contains such lines now and then.
        let mut noise = Noise::new(5);
        let noisy = |i: usize| (0.5 * noise.normal()).exp() + 2.0 * (-(i as f64) / 20.0).exp();
        assert_eq!(over(&lines((0..4000).map(noisy), 1)), []);
        // A run of which the start was not seen, and one of which the loss is not positive.
        let again = [course(1, 900, 40.0), course(2, 900, 40.0)].concat();
        let later = |s: StepSample| StepSample { step: s.step + 5000, ..s };
        assert_eq!(over(&lines(again.clone(), 1).into_iter().map(later).collect::<Vec<_>>()), []);
        assert_eq!(over(&lines(again.into_iter().map(|loss| loss - 3.5), 1)), []);
    }

    proptest! {
        #[test]
        fn a_run_that_goes_on_never_began_anew(seed: u64, half in 2.0f64..200.0, every in 1i64..200) {
            prop_assert_eq!(over(&lines(course(seed, 1500, half), every)), []);
        }
    }
}

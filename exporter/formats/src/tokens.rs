//! Tokens of one step, from what a log says of them.
//!
//! Some trainers print the tokens of a step and some those of all steps so far, many of them under
//! the same name `tokens`. Which it is shows from one line to the next: a counter only rises, by
//! about its first value at first, or by the same each time, and has gained as much in each step
//! before. Until that is known nothing is reported, because a counter that is taken for the tokens
//! of a step is wrong without limit.

#[cfg(test)]
mod tests;

use stepwatch_wire::Event;
use stepwatch_wire::names::metric;

/// No trainer takes so many tokens in one step.
const MAX_OF_STEP: f64 = 3e8;
/// How far a second value may be from twice the first.
const ABOUT: f64 = 0.25;
/// How far two increments that are equal may be apart.
const EVEN: f64 = 0.01;
/// By what factor the tokens so far may differ from the steps so far times what a step gains, as
/// they do where the batch grew.
const GROWN: f64 = 4.0;
/// Lines in a row that rose, or by the same, after which it is a counter.
const RISES: u32 = 5;
/// Lines in a row with the same rounded value, after which it is none.
const EQUALS: u32 = 20;
/// The same of an exact value that looked like a counter, as a batch that was doubled does.
const STAYS: u32 = 3;
/// What a rounded counter must have gained, in units of its last digit, to be exact enough.
const QUANTA: f64 = 20.0;

/// A counter of all tokens so far: step and value of the record before.
#[derive(Debug, Default)]
pub(crate) struct TokenCounter(Option<(i64, f64)>);

impl TokenCounter {
    /// The tokens of one step, on average since the record before.
    pub(crate) fn of_step(&mut self, step: i64, now: f64) -> Option<f64> {
        self.of_rounded(step, now, 0.0)
    }

    /// As [`Self::of_step`], of a counter whose last digit stands for `quantum`.
    fn of_rounded(&mut self, step: i64, now: f64, quantum: f64) -> Option<f64> {
        let before = self.0.filter(|(s, n)| *s < step && *n <= now);
        if before.is_some_and(|(_, then)| now - then < QUANTA * quantum) {
            return None;
        }
        self.0 = Some((step, now));
        let (s, then) = before.filter(|(_, then)| *then < now)?;
        Some((now - then) / step.saturating_sub(s) as f64)
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum What {
    #[default]
    Unknown,
    OfStep,
    /// Of all steps so far.
    SoFar,
}

/// Tokens under a name that does not say what they are of.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    what: What,
    counter: TokenCounter,
    last: Option<(i64, f64)>,
    /// What the last line gained for each step.
    gain: Option<f64>,
    /// Lines in a row that rose, that rose by the same, and that stayed.
    rises: u32,
    evens: u32,
    equals: u32,
}

impl Tokens {
    /// Makes the tokens of an event those of its step, or takes them away.
    pub(crate) fn settle(&mut self, e: &mut Event) {
        let (Some(step), Some(now)) = (e.step, e.m.get(metric::TOKENS)) else { return };
        match self.of_step(step, now, None) {
            Some(tokens) => drop(e.m.set(metric::TOKENS, tokens)),
            None => drop(e.m.remove(metric::TOKENS)),
        }
    }

    /// The tokens of a step, from what its line says.
    pub(crate) fn of_step(&mut self, step: i64, now: f64, quantum: Option<f64>) -> Option<f64> {
        if !now.is_finite() {
            return None;
        }
        let quantum = quantum.filter(|q| *q > 1.0).unwrap_or(0.0);
        match self.last {
            None if now > MAX_OF_STEP => self.what = What::SoFar,
            None => {}
            Some((before, then)) if before < step => self.judge((before, then), (step, now), quantum > 0.0),
            // Another rank's line.
            Some((before, _)) if before == step => {}
            // After a restart.
            Some(_) => self.begin_anew(self.what),
        }
        self.last = Some((step, now));
        let counted = self.counter.of_rounded(step, now, quantum);
        match self.what {
            What::Unknown => None,
            What::OfStep => Some(now),
            What::SoFar => counted,
        }
    }

    fn judge(&mut self, (before, then): (i64, f64), (step, now): (i64, f64), rounded: bool) {
        let gained = now - then;
        if now > MAX_OF_STEP {
            self.what = What::SoFar;
        }
        if gained < 0.0 {
            // A counter may begin again with a process.
            let counts = self.what == What::SoFar;
            self.begin_anew(if counts { What::Unknown } else { What::OfStep });
            return;
        }
        if gained == 0.0 {
            (self.gain, self.rises, self.evens) = (None, 0, 0);
            self.equals = self.equals.saturating_add(1);
            let enough = match self.what {
                // Its digits may not have changed yet.
                What::SoFar if rounded => return,
                What::SoFar => STAYS,
                _ if rounded => EQUALS,
                What::Unknown | What::OfStep => 1,
            };
            if self.equals >= enough {
                self.what = What::OfStep;
            }
            return;
        }
        let gain = gained / step.saturating_sub(before) as f64;
        let even = self.gain.is_some_and(|before| (gain / before - 1.0).abs() < EVEN);
        let first = self.rises == 0 && self.equals == 0;
        let doubled = first && (gained / then - 1.0).abs() < ABOUT;
        self.rises = self.rises.saturating_add(1);
        self.evens = if even { self.evens.saturating_add(1) } else { 0 };
        (self.gain, self.equals) = (Some(gain), 0);
        let so_far = now / (gain * step as f64);
        let fits = so_far > 1.0 / GROWN && so_far < GROWN;
        let counts = match self.what {
            What::Unknown => doubled || fits && (even || self.rises >= RISES),
            What::OfStep => fits && self.evens >= RISES,
            What::SoFar => true,
        };
        if counts {
            self.what = What::SoFar;
        }
    }

    fn begin_anew(&mut self, what: What) {
        let counter = core::mem::take(&mut self.counter);
        *self = Self { what, counter, ..Self::default() };
    }
}

//! Detects loss spikes, divergence and lasting shifts.
//!
//! A bounded-influence baseline that follows a falling loss faster than a rising one, and a CUSUM
//! on its scores (Page 1954; Huber 1981):
//! ```text
//! d = L − m,  z = d/s / max(1, q/2.5),  u = 1/10 while suspicious, else 1
//! m += a·u·clip(d, −8s, 2s),  s += (min(|d|, 2.5s)/0.787 − s)/40
//! q = running 98 % quantile of d/s
//! S = clip(S + min(z, cap) − 2.5, 0, 4h),  f += (L − f)/3,  best = least f so far
//! alarm: S > h, d > rise, f > best + rise
//! ```
//! a = 1/20 upwards and 1/5 downwards, h = 16. A loss that falls fast leaves its baseline behind by
//! more than its noise: s counts for no more than twice the scale of the changes of d, which a
//! trend does not touch (von Neumann, "Distribution of the ratio of the mean square successive
//! difference", 1941). The cap keeps one bad batch from alarming, `best` the convexity of early
//! training, and q the heavy tail of a small batch. A rise is measured in nats where the loss is a
//! cross-entropy of usual size, and relative to the level where it is not ([`LossScale::nat`]), so
//! small and large losses are judged alike.
//!
//! * ticket: the alarm at a rise of 0.15, or one sample 0.8 above its baseline (z > 15);
//! * page: the alarm at a rise of 0.45. Where lines are 3 or more steps apart, two of three samples
//!   0.45 above (z > 6), or S > 2h with one such among the last 16 and the loss still more than
//!   halfway from a ticket to a page; and half the z makes a single one a ticket, for what one line
//!   in many shows is not alone;
//! * `divergence` (page): it has not come back after 200 samples;
//! * `loss_shift` (note): it has settled on a slightly higher level, or stayed for 2,000 samples;
//!   the baseline starts again from there.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::{LossScale, PRINTED, Shared};
use crate::detector::{JudgedStep, StepDetector};
use crate::expectation::Expectation;
use crate::sample::{StepSample, rounding};
use crate::stats::attempt::Attempts;
use crate::stats::cadence::{Beat, Cadence};
use crate::stats::cusum::Cusum;
use crate::stats::hit_window::HitWindow;
use crate::stats::latch::Latch;
use crate::stats::median::Window;
use stepwatch_model::{Clause, Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Bound of the CUSUM, in sigmas. A shift passes 16 after three samples at the cap. By
    /// Siegmund's formula independent normal samples practically never do (once in 10³⁶): the
    /// margin is for heavy tails and for samples that resemble their neighbours.
    pub h: f64,
    /// Rises above the baseline, in nats (see [`LossScale::nat`]). Engineering limits and no
    /// quantiles: what a loss must have lost to be worth a ticket or a page. The recordings of
    /// `BENCHMARKS.md` measure what they find and what they report in vain.
    pub ticket_rise: f64,
    pub page_rise: f64,
    /// A single sample that is a ticket, in nats and in sigmas. Of a normal distribution 4·10⁻⁵¹
    /// lies above 15 sigmas: the bound is for heavy tails.
    pub single_rise: f64,
    pub single_z: f64,
    /// Samples after which a loss that has not come back counts as diverged, and after which its
    /// level is accepted.
    pub diverged_after: u32,
    pub accept_after: u32,
    /// Calm samples that end the incident.
    pub clear_after: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            h: 16.0,
            ticket_rise: 0.15,
            page_rise: 0.45,
            single_rise: 0.8,
            single_z: 15.0,
            diverged_after: 200,
            accept_after: 2000,
            clear_after: 10,
        }
    }
}

/// Weight of a sample above the baseline, and of one below it: a falling loss must not leave the
/// baseline behind.
const RATE: f64 = 1.0 / 20.0;
const FALL_RATE: f64 = 1.0 / 5.0;
const SCALE_RATE: f64 = 1.0 / 40.0;
/// CUSUM drift, and the largest score of one sample, in sigmas: 0.6 % of a normal distribution lies
/// above the drift.
const DRIFT: f64 = 2.5;
const CAP: f64 = 8.0;
/// The cap where samples are [`SPARSE`] steps apart: two samples at the cap pass h = 16, where the
/// other cap needs three.
const SPARSE_CAP: f64 = 12.0;
const SPARSE: i64 = 3;
/// The delay, in samples, with which a growing scale takes effect.
const LAG: u32 = 16;
/// Samples that a high one counts for where samples are sparse and the alarm is twice as strong.
const SPARSE_HIGH: u32 = 16;
/// Score of a sample that, with another of the last three, pages where samples are sparse: 10⁻⁹ of
/// a normal distribution lies above 6 sigmas.
const SPARSE_Z: f64 = 6.0;
/// Weight of a change from one sample to the next in the scale of changes, and how many of those
/// scales the noise may be: an engineering limit. Of independent samples both scales are one.
const CHANGE_RATE: f64 = 1.0 / 16.0;
const CHANGES: f64 = 2.0;
/// Smallest scale, relative to the level.
const FLOOR: f64 = 0.002;
/// Samples that start the baseline, and samples before the first judgement.
const WARM: usize = 10;
const QUIET: u32 = 30;
const SPARSE_QUIET: u32 = 64;
/// Samples in a row off the baseline by 3 sigmas, without a rise, that make it move at once. An
/// engineering limit: of independent normal samples one row in 3·10³⁴ lies so above it.
const MOVED: u32 = 12;
/// The 98 % quantile of a normal, and the same with some room.
const NORMAL_TAIL: f64 = 2.05;
const TAIL_SIGMAS: f64 = 2.5;
/// Keeps a quantile of 98 % in balance with steps of 1.1: `1.1^(−0.02/0.98)`.
const TAIL_DECAY: f64 = 0.998_057;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LossSpike {
    warm: Window<WARM>,
    m: f64,
    s: f64,
    /// The last deviation, and the scale of its changes.
    last_d: f64,
    changes: f64,
    /// Upper quantile of the deviations in scales: the heavy tail that this run lives with.
    q: f64,
    /// The baseline of 16 to 32 samples ago: an anomaly must not raise its own limit.
    before: [Before; 2],
    n: u32,
    f: f64,
    best: f64,
    cusum: Cusum,
    spike: Latch,
    diverged: Latch,
    high: HitWindow,
    cadence: Cadence,
    attempts: Attempts,
    onset: i64,
    peak: f64,
    /// The expected loss and its noise when the episode began.
    expected: f64,
    sigma: f64,
    /// The loss at or below which the episode is over.
    home: f64,
    open_for: u32,
    calm: u32,
    below: u32,
    above: u32,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Before {
    m: f64,
    s: f64,
    q: f64,
}

impl Before {
    const UNKNOWN: Self = Self { m: f64::NEG_INFINITY, s: f64::INFINITY, q: f64::INFINITY };
}

/// A loss against its baseline.
struct Reading {
    loss: f64,
    d: f64,
    z: f64,
    unit: f64,
    sparse: bool,
    /// Steps between two losses.
    interval: i64,
    /// How finely the loss is printed.
    quantum: f64,
}

impl Reading {
    /// A rise of this many nats, or as much as rounding can explain.
    fn rise(&self, nats: f64) -> f64 {
        (nats * self.unit).max(PRINTED * self.quantum)
    }

    /// The smallest scale at a level.
    fn floor(&self, level: f64) -> f64 {
        floor(level, self.quantum)
    }
}

fn floor(level: f64, quantum: f64) -> f64 {
    (FLOOR * level.abs()).max(rounding(quantum)).max(f64::MIN_POSITIVE)
}

impl Default for LossSpike {
    fn default() -> Self {
        Self {
            warm: Window::default(),
            m: 0.0,
            s: 0.0,
            last_d: 0.0,
            changes: 0.0,
            q: 0.0,
            before: [Before::UNKNOWN; 2],
            n: 0,
            f: 0.0,
            best: 0.0,
            cusum: Cusum::default(),
            spike: Latch::default(),
            diverged: Latch::default(),
            high: HitWindow::default(),
            cadence: Cadence::default(),
            attempts: Attempts::default(),
            onset: 0,
            peak: 0.0,
            expected: 0.0,
            sigma: 0.0,
            home: 0.0,
            open_for: 0,
            calm: 0,
            below: 0,
            above: 0,
        }
    }
}

impl LossSpike {
    /// The baseline, and how far above it the alarm begins to count: as much as a ticket must be,
    /// and more where the noise is larger.
    pub(crate) fn expectation(&self, c: &Config, scale: &LossScale) -> Option<Expectation> {
        if !c.enabled || self.n < QUIET {
            return None;
        }
        let room = (c.ticket_rise * scale.nat(self.m)).max(DRIFT * self.sigma(0.0));
        Some(Expectation { expected: self.m, low: self.m - room, high: self.m + room })
    }

    /// Starts the baseline from the first samples; true once it stands.
    fn warm_up(&mut self, loss: f64, quantum: f64) -> bool {
        if self.n as usize >= WARM {
            return true;
        }
        self.warm.push(loss);
        self.n += 1;
        if self.n as usize == WARM {
            let (m, s) = self.warm.location_scale();
            (self.m, self.f, self.best) = (m, m, m);
            self.s = s.max(floor(m, quantum));
            (self.last_d, self.changes) = (0.0, self.s);
            self.q = NORMAL_TAIL;
        }
        false
    }

    /// Forgets the baseline; an open episode keeps what it was compared with.
    fn start_again(&mut self) {
        self.n = 0;
        self.warm.clear();
        self.before = [Before::UNKNOWN; 2];
        self.cusum.reset();
        self.high.clear();
    }

    fn read(&self, beat: Beat, loss: f64, quantum: f64, scale: &LossScale) -> Reading {
        let (d, interval) = (loss - self.m, beat.interval);
        let z = d / self.sigma(quantum);
        Reading { loss, d, z, unit: scale.nat(self.m), sparse: interval >= SPARSE, interval, quantum }
    }

    fn sigma(&self, quantum: f64) -> f64 {
        let Before { s, q, .. } = self.before[0];
        self.s.min(s).min(CHANGES * self.changes).max(floor(self.m, quantum))
            * (self.q.min(q) / TAIL_SIGMAS).max(1.0)
    }

    fn update(&mut self, c: &Config, s: &StepSample, r: &Reading) {
        let hot = self.cusum.value() > 0.5 * c.h;
        let suspicious = r.d > 0.0 && (hot || self.spike.is_raised());
        let weight = if suspicious { 0.1 } else { 1.0 };
        let a = if r.d > 0.0 { RATE } else { FALL_RATE }.max(1.0 / f64::from(self.n + 1));
        self.m += a * weight * r.d.clamp(-8.0 * self.s, 2.0 * self.s);
        let floor = r.floor(self.m);
        let scale_rate = weight * SCALE_RATE.max(1.0 / f64::from(self.n + 1));
        self.s = (self.s + scale_rate * (r.d.abs().min(2.5 * self.s) / 0.787 - self.s)).max(floor);
        let change = (r.d - self.last_d).abs() / core::f64::consts::SQRT_2;
        let rate = weight * CHANGE_RATE.max(1.0 / f64::from(self.n + 1));
        self.changes =
            (self.changes + rate * (change.min(2.5 * self.changes) / 0.787 - self.changes)).max(floor);
        self.last_d = r.d;
        // Stochastic approximation of a quantile, in steps of a tenth.
        let outlier = r.d > self.q * self.s;
        if !(outlier && suspicious) {
            self.q = (self.q * if outlier { 1.1 } else { TAIL_DECAY }).max(NORMAL_TAIL);
        }
        let cap = if r.sparse { SPARSE_CAP } else { CAP };
        if self.n.is_multiple_of(LAG) {
            self.before = [self.before[1], Before { m: self.m, s: self.s, q: self.q }];
        }
        self.cusum.add(s.step, r.z.min(cap), DRIFT, 4.0 * c.h);
        self.f += (r.loss - self.f) / 3.0;
        // The best is raised slowly, so that an old record which is never met again does not count
        // for ever.
        self.best = self.f.min(self.best + 1e-5 * self.best.abs());
        self.high.push(r.d > r.rise(c.page_rise) && r.z > SPARSE_Z);
        self.n = self.n.saturating_add(1);
        self.recover(c, r);
    }

    /// A loss that fell at once, as on a learning-rate drop or another data mix, takes the baseline
    /// along; so does one that merely stopped falling.
    fn recover(&mut self, c: &Config, r: &Reading) {
        let risen = self.f > self.best + r.rise(c.ticket_rise);
        self.below = if r.z < -3.0 { self.below + 1 } else { 0 };
        self.above = if r.z > 3.0 && !risen { self.above + 1 } else { 0 };
        if self.below >= MOVED || self.above >= MOVED {
            (self.below, self.above) = (0, 0);
            self.m = self.f;
            self.cusum.reset();
        }
    }

    fn judge(&self, c: &Config, r: &Reading) -> Option<(Severity, Clause)> {
        let above = |nats: f64| r.d > r.rise(nats) && self.f > self.best + r.rise(nats.min(c.ticket_rise));
        let alarm = self.cusum.value() > c.h;
        let persists = if r.sparse {
            let lasts = self.cusum.value() > 2.0 * c.h && self.high.count_last(SPARSE_HIGH) > 0;
            let near = above(0.5 * (c.ticket_rise + c.page_rise));
            (self.high.count_last(3) >= 2 || lasts && near) && self.n > SPARSE_QUIET
        } else {
            alarm && above(c.page_rise)
        };
        let single_z = if r.sparse { 0.5 * c.single_z } else { c.single_z };
        let (now, usual, over) = (r.loss, r.loss - r.d, r.d);
        let since_step = Fact::Step(self.onset);
        if persists {
            let why = clause!(
                "loss {now} is {over} above its usual {usual} and has been rising since step {since_step}",
                now,
                over,
                usual,
                since_step,
            );
            Some((Severity::Page, why))
        } else if r.d > r.rise(c.single_rise) && r.z > single_z {
            let why = clause!("loss jumped to {now}, {over} above its usual {usual}", now, over, usual);
            Some((Severity::Ticket, why))
        } else if alarm && above(c.ticket_rise) {
            let why = clause!(
                "loss {now} creeps away from its usual {usual}: {over} above it, since step {since_step}",
                now,
                usual,
                over,
                since_step,
            );
            Some((Severity::Ticket, why))
        } else {
            None
        }
    }

    fn finding(&self, c: &Config, kind: Kind, r: &Reading, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind,
            signal: "loss",
            start_step: self.onset,
            value: r.loss,
            expected: if self.spike.is_raised() { self.expected } else { r.loss - r.d },
            score: self.cusum.value() / c.h,
            why: why.into(),
        }
    }

    fn publish(&mut self, c: &Config, step: &mut JudgedStep<'_>, r: &Reading, shared: &Shared) {
        if !self.spike.is_raised() {
            self.onset = if self.cusum.value() > 0.0 { self.cusum.onset() } else { step.sample.step };
        }
        let Some((severity, why)) = self.judge(c, r) else { return };
        let mut why = Sentence::from(why);
        self.calm = 0;
        if !self.spike.is_raised() {
            (self.expected, self.sigma) = (r.loss - r.d, r.d / r.z);
            // A few low samples just before the episode are not a level to return to.
            self.home = self.expected.max(self.before[0].m);
            (self.open_for, self.peak) = (0, r.loss);
        }
        if self.spike.raise(severity) {
            if shared.coupling.grad_spiked_before(step.sample.step, r.interval) {
                why.add(clause!("the gradient spiked just before"));
            }
            step.raise(self.finding(c, Kind::LossSpike, r, why), severity);
        }
    }

    /// Continues an open episode: it ends, counts as divergence, or its level is accepted.
    fn follow(&mut self, c: &Config, step: &mut JudgedStep<'_>, r: &Reading) {
        if !self.spike.is_raised() {
            return;
        }
        self.open_for += 1;
        self.peak = self.peak.max(r.loss);
        let over = self.f - self.home;
        let back = over < r.rise(0.5 * c.ticket_rise).max(DRIFT * self.sigma);
        self.calm = if back { self.calm + 1 } else { 0 };
        if self.calm >= c.clear_after {
            let (now, samples) = (self.f, self.open_for);
            let why = Sentence::from(clause!("loss is back at {now} after {samples} samples", now, samples))
                .and(clause!("it peaked at {peak}", peak = self.peak));
            self.close(step, r, why);
        } else if self.open_for >= c.diverged_after && over < r.rise(c.ticket_rise)
            || self.open_for >= c.accept_after
        {
            self.accept(c, step, r);
        } else if self.open_for == c.diverged_after && self.diverged.raise(Severity::Page) {
            let why = clause!(
                "loss has not come back in {samples} samples: {now} where it was {before}",
                samples = self.open_for,
                now = self.f,
                before = self.expected,
            );
            let advice = clause!(
                "roll back to a checkpoint before step {since_step}",
                since_step = Fact::Step(self.onset)
            );
            let why = Sentence::from(why).and(advice);
            self.spike.raise(Severity::Page);
            step.raise(self.finding(c, Kind::Divergence, r, why), Severity::Page);
        }
    }

    /// The loss has settled higher than it was: the baseline starts there.
    fn accept(&mut self, c: &Config, step: &mut JudgedStep<'_>, r: &Reading) {
        let why = clause!(
            "loss stays at {now}, {over} above what it was: taken as the new level",
            now = self.f,
            over = self.f - self.expected,
        );
        step.note(self.finding(c, Kind::LossShift, r, why.clone()));
        (self.m, self.best) = (self.f, self.f);
        self.close(step, r, why);
    }

    fn close(&mut self, step: &mut JudgedStep<'_>, r: &Reading, why: impl Into<Sentence>) {
        let why = why.into();
        for (latch, kind) in [(&mut self.spike, Kind::LossSpike), (&mut self.diverged, Kind::Divergence)] {
            if latch.clear() {
                let finding = Draft {
                    kind,
                    signal: "loss",
                    start_step: self.onset,
                    value: r.loss,
                    expected: self.expected,
                    score: 0.0,
                    why: why.clone(),
                };
                step.clear(finding);
            }
        }
        self.cusum.reset();
        self.high.clear();
        self.calm = 0;
    }
}

impl StepDetector for LossSpike {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let s = step.sample;
        let Some(loss) = s.loss.filter(|v| v.is_finite()) else { return };
        if !c.enabled || s.interval == 0 {
            return;
        }
        let beat = self.cadence.add(s.step, s.interval);
        let restarted = self.attempts.restarted(s.attempt);
        let anew = restarted || shared.started_over().is_some();
        if anew {
            // A restart ends the open episode.
            let r = self.read(beat, loss, s.q.loss, &shared.loss);
            let why = if restarted { clause!("the run restarted") } else { clause!("the run started over") };
            self.close(step, &r, why);
        }
        if anew || beat.changed {
            self.start_again();
        }
        if !self.warm_up(loss, s.q.loss) {
            return;
        }
        let r = self.read(beat, loss, s.q.loss, &shared.loss);
        self.update(c, s, &r);
        shared.coupling.set_loss_heat(s.step, r.interval, self.cusum.value() / c.h);
        if self.n > QUIET {
            self.publish(c, step, &r, shared);
            self.follow(c, step, &r);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{healthy, judge, open, pages, raised};
    use proptest::prelude::*;

    /// Adds `rise(i)` to the loss from sample `at` on.
    fn raise_loss(run: &mut [StepSample], at: usize, rise: impl Fn(f64) -> f64) {
        for (i, s) in run[at..].iter_mut().enumerate() {
            s.loss = s.loss.map(|v| v + rise(i as f64));
        }
    }

    #[test]
    fn a_bump_pages_within_four_steps_once_and_clears() {
        let mut run = healthy(51, 900);
        raise_loss(&mut run, 600, |i| (-i / 12.0).exp());
        let findings = judge(&run);
        let found = pages(&findings);
        assert_eq!(found.len(), 1, "{findings:?}");
        assert!(found[0].0 == Kind::LossSpike && found[0].1 <= 604, "{found:?}");
        assert!(open(&findings).is_empty());
    }

    #[test]
    fn a_loss_that_does_not_come_back_is_a_divergence_then_a_new_level() {
        let mut run = healthy(52, 3000);
        raise_loss(&mut run, 500, |_| 0.8);
        let findings = judge(&run);
        assert!(
            pages(&findings).iter().any(|(k, step)| *k == Kind::Divergence && *step < 720),
            "{findings:?}"
        );
        assert!(findings.iter().any(|v| v.kind == Kind::LossShift), "{findings:?}");
        assert!(open(&findings).is_empty(), "accepted in the end: {findings:?}");
    }

    #[test]
    fn a_slow_divergence_does_not_take_the_baseline_along() {
        let mut run = healthy(53, 800);
        raise_loss(&mut run, 500, |i| 0.01 * i);
        assert!(pages(&judge(&run)).iter().any(|(_, step)| *step < 560));
    }

    #[test]
    fn a_rollback_ends_it() {
        let mut run = healthy(54, 900);
        raise_loss(&mut run, 600, |_| 1.5);
        let again: Vec<_> =
            healthy(54, 900).split_off(550).into_iter().map(|s| StepSample { attempt: 1, ..s }).collect();
        run.truncate(650);
        run.extend(again);
        let findings = judge(&run);
        assert_eq!(pages(&findings).iter().filter(|(k, _)| *k == Kind::LossSpike).count(), 1, "{findings:?}");
        assert!(open(&findings).is_empty(), "{findings:?}");
    }

    #[test]
    fn early_training_is_quiet() {
        for seed in 0..20 {
            let mut run = healthy(seed, 400);
            for s in &mut run {
                s.loss = s.loss.map(|v| v + 8.0 * (-(s.step as f64) / 15.0).exp());
            }
            assert!(raised(&judge(&run)).is_empty(), "{seed}");
        }
    }

    proptest! {
        #[test]
        fn one_bad_batch_is_a_ticket_at_most(seed: u64, at in 60usize..580, rise in 0.0f64..1e6) {
            let mut run = healthy(seed, 600);
            run[at].loss = run[at].loss.map(|v| v + rise);
            let findings = judge(&run);
            prop_assert!(pages(&findings).is_empty(), "{findings:?}");
            prop_assert!(rise < 1.0 || raised(&findings) == [(Kind::LossSpike, Severity::Ticket, at as i64 + 1)], "{findings:?}");
        }

        #[test]
        fn small_and_large_losses_are_judged_alike(seed: u64, exponent in prop_oneof![-20i32..-4, 6i32..20]) {
            // Both scales lie outside the usual range of a cross-entropy, on the same side.
            let at = |exponent: i32| {
                let mut run = healthy(seed, 500);
                raise_loss(&mut run, 300, |i| (-i / 12.0).exp());
                run.iter_mut().for_each(|s| s.loss = s.loss.map(|v| v * f64::from(exponent).exp2()));
                raised(&judge(&run)).into_iter().filter(|(k, ..)| *k != Kind::NoLearning).collect::<Vec<_>>()
            };
            prop_assert_eq!(at(exponent), at(if exponent < 0 { -3 } else { 5 }));
        }
    }
}

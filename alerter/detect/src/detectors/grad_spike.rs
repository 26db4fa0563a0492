//! Gradient-norm spikes, run-ups and instability.
//!
//! The input is x = ln(grad norm), compared with a bounded-influence baseline
//! ([`crate::stats::robust`], rate 1/200), so the alarms do not depend on the unit of the norm. A
//! *hit* is z > 5 and more than twice the baseline, a *spike* z > 8 and more than three times.
//!
//! Isolated spikes are normal: 16 healthy GPT-2-class runs hold 64 of them in 290,621 steps. So
//! * a lone spike is a note;
//! * a page needs persistence (4 hits of 16 samples, or 2 above 100x), a run-up (3 rises in a row,
//!   each 2x or more: BLOOM-176B rose 0.24, 0.95, 2.4, 15.9, 145, 960 before its loss jumped;
//!   BigScience chronicles, 2022-04-12), or a spike within 20 steps of a loss excursion;
//! * two spikes of 16, or a lone hit of 6x or of z > 8 where only every 10th step or fewer is
//!   logged (what one sample in ten shows is not alone), are a ticket;
//! * excursions widen the scale they are judged by: a run that has them every few samples would
//!   hide them. So hits are counted a second time, in scales of the lower half
//!   ([`crate::stats::lower`]), which they do not widen. 4 of those in 16 samples, between which it
//!   comes back as often, are a ticket, and a page if one of them is a spike besides (a level that
//!   drifts does not come back);
//! * `grad_instability`: hits come far more often than they used to. With an exponential memory of
//!   128 samples, 3.5 hits and 5 times the run's own long-term rate are a ticket, 5 hits a page.
//!
//! While the learning rate warms up, gradients are still finding their level: what would page is a
//! ticket.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::{PRINTED, Shared};
use crate::detector::{JudgedStep, StepDetector};
use crate::expectation::Expectation;
use crate::sample::{StepSample, rounding};
use crate::stats::attempt::Attempts;
use crate::stats::cadence::Cadence;
use crate::stats::hit_window::HitWindow;
use crate::stats::latch::Latch;
use crate::stats::lower::LowerScale;
use crate::stats::robust::{Deviation, Robust};
use stepwatch_model::{Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// A hit: sigmas of ln(norm), and times the baseline. Of a normal distribution 3·10⁻⁷ lies
    /// above 5 sigmas.
    pub hit_z: f64,
    pub hit_ratio: f64,
    /// A spike, likewise: of a normal distribution 6·10⁻¹⁶ lies above 8 sigmas.
    pub spike_z: f64,
    pub spike_ratio: f64,
    /// A spike that counts for more. All ratios are engineering limits: the run-up of BLOOM-176B
    /// rose by 2.5 to 9 a step.
    pub large_ratio: f64,
    pub extreme_ratio: f64,
    /// Hits of the last 16 samples that page. If spikes come independently and as often as in those
    /// 16 runs, 4·10⁻¹² of the windows hold 4 of them, and 6·10⁻⁶ hold the 2 that are a ticket.
    pub page_hits: u32,
    /// Rises in a row that page, each by `hit_ratio` or more: an engineering limit, from
    /// BLOOM-176B.
    pub run_up: u32,
    /// Hits within a memory of 128 samples: 4 whole ones, and 6, because they fade. At the rate of
    /// spikes of those 16 runs a Poisson count has 4 with a chance of 3·10⁻⁸.
    pub unstable_ticket: f64,
    pub unstable_page: f64,
    /// Times the run's own long-term rate of hits. Where that is just low enough for a ticket, 0.7
    /// hits in the memory, a Poisson count has 4 with a chance of 0.6 %; for a page, 1 hit and 6,
    /// it is 0.06 %.
    pub unstable_ratio: f64,
    /// Samples without a hit that end the incident.
    pub clear_after: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            hit_z: 5.0,
            hit_ratio: 2.0,
            spike_z: 8.0,
            spike_ratio: 3.0,
            large_ratio: 6.0,
            extreme_ratio: 100.0,
            page_hits: 4,
            run_up: 3,
            unstable_ticket: 3.5,
            unstable_page: 5.0,
            unstable_ratio: 5.0,
            clear_after: 16,
        }
    }
}

/// Weight of a sample in the baseline, in the long run.
const RATE: f64 = 1.0 / 200.0;
/// Samples that start the baseline.
const WARM: usize = 16;
/// Smallest scale: norms are printed with two or three digits.
const FLOOR: f64 = 0.02;
/// Window of the votes, in samples.
const WINDOW: u32 = 16;
/// If only every 10th step or fewer is logged, a lone spike stands for several.
const SPARSE: i64 = 10;
/// Memory of the rate of hits, and of its long-term mean.
const MEMORY: f64 = 128.0;
const LONG_MEMORY: f64 = 4096.0;
/// Scales of the lower half within which a sample is no excursion: 2.3 % of a normal distribution
/// lie above 2.
const BACK: f64 = 2.0;
/// Samples out of place after which the level is taken as new.
const NEW_LEVEL: u32 = 64;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GradSpike {
    base: Robust<WARM>,
    lower: LowerScale,
    spike: Latch,
    unstable: Latch,
    hits: HitWindow,
    spikes: HitWindow,
    large: HitWindow,
    extreme: HitWindow,
    /// Hits in scales of the lower half, and samples that are back where they belong.
    upward: HitWindow,
    back: HitWindow,
    /// Rises in a row, and the norm before the first of them.
    rises: u32,
    before: f64,
    last: f64,
    cadence: Cadence,
    attempts: Attempts,
    /// The episode: first hit, and the highest norm with its step and baseline.
    onset: i64,
    peak: f64,
    peak_step: i64,
    peak_expected: f64,
    since_hit: u32,
    /// Samples since a hit of either kind.
    quiet: u32,
    rate: f64,
    long_rate: f64,
    out_of_place: u32,
}

/// A gradient norm against its baseline.
struct Reading {
    norm: f64,
    /// Logarithm of the baseline.
    location: f64,
    dev: Deviation,
    /// In scales of the lower half.
    upward: f64,
    interval: i64,
    /// How finely the norm is printed.
    quantum: f64,
}

impl Reading {
    fn expected(&self) -> f64 {
        self.location.exp()
    }

    /// Whether it is above its baseline by more than rounding can explain.
    fn printed(&self) -> bool {
        self.norm - self.expected() > PRINTED * self.quantum
    }

    fn is_above(&self, z: f64, ratio: f64) -> bool {
        self.dev.z > z && self.dev.d > ratio.ln() && self.printed()
    }
}

impl Default for GradSpike {
    fn default() -> Self {
        Self {
            base: Robust::default(),
            lower: LowerScale::default(),
            spike: Latch::default(),
            unstable: Latch::default(),
            hits: HitWindow::default(),
            spikes: HitWindow::default(),
            large: HitWindow::default(),
            extreme: HitWindow::default(),
            upward: HitWindow::default(),
            back: HitWindow::default(),
            rises: 0,
            before: 0.0,
            last: 0.0,
            cadence: Cadence::default(),
            attempts: Attempts::default(),
            onset: 0,
            peak: 0.0,
            peak_step: 0,
            peak_expected: 0.0,
            since_hit: u32::MAX,
            quiet: u32::MAX,
            rate: 0.0,
            long_rate: 0.0,
            out_of_place: 0,
        }
    }
}

impl GradSpike {
    /// The baseline, and from where on a norm is a hit; as far below it in logarithms.
    pub(crate) fn expectation(&self, c: &Config) -> Option<Expectation> {
        if !c.enabled || !self.base.is_warm() {
            return None;
        }
        let room = (c.hit_z * self.base.scale()).max(c.hit_ratio.ln());
        let at = |log: f64| (self.base.location() + log).exp();
        Some(Expectation { expected: at(0.0), low: at(-room), high: at(room) })
    }

    fn is_hit(c: &Config, r: &Reading) -> bool {
        r.is_above(c.hit_z, c.hit_ratio)
    }

    fn is_spike(c: &Config, r: &Reading) -> bool {
        r.is_above(c.spike_z, c.spike_ratio)
    }

    /// The smallest scale.
    fn floor(&self, norm: f64, quantum: f64) -> f64 {
        if quantum == 0.0 {
            return FLOOR;
        }
        let level = if self.base.is_warm() { norm.min(self.base.location().exp()) } else { norm };
        FLOOR.max(rounding(quantum) / level)
    }

    fn count_rises(&mut self, c: &Config, norm: f64) {
        if self.last > 0.0 && norm >= self.last * c.hit_ratio {
            if self.rises == 0 {
                self.before = self.last;
            }
            self.rises += 1;
        } else {
            self.rises = 0;
        }
        self.last = norm;
    }

    fn is_upward_hit(c: &Config, r: &Reading) -> bool {
        r.upward > c.hit_z && r.dev.d > c.hit_ratio.ln() && r.printed()
    }

    /// Counts the sample; true if it is a hit of either kind.
    fn vote(&mut self, c: &Config, s: &StepSample, r: &Reading) -> bool {
        let (hit, spike, upward) = (Self::is_hit(c, r), Self::is_spike(c, r), Self::is_upward_hit(c, r));
        self.hits.push(hit);
        self.spikes.push(spike);
        self.large.push(hit && (r.dev.d > c.large_ratio.ln() || r.dev.z > c.spike_z));
        self.extreme.push(spike && r.dev.d > c.extreme_ratio.ln());
        self.upward.push(upward);
        self.back.push(r.upward < BACK);
        let decay = 1.0 - 1.0 / MEMORY;
        // A run-up is one jump, however long it lasts.
        let jump = f64::from(u8::from(hit && self.since_hit > 0));
        self.rate = self.rate * decay + jump;
        let n = f64::from(self.base.count()).clamp(MEMORY, LONG_MEMORY);
        self.long_rate += (jump - self.long_rate) / n;
        self.since_hit = if hit { 0 } else { self.since_hit.saturating_add(1) };
        if !hit && !upward {
            self.quiet = self.quiet.saturating_add(1);
            return false;
        }
        if self.quiet > WINDOW && !self.spike.is_raised() {
            (self.onset, self.peak) = (s.step, 0.0);
        }
        if r.norm > self.peak {
            (self.peak, self.peak_step, self.peak_expected) = (r.norm, s.step, r.expected());
        }
        self.quiet = 0;
        true
    }

    /// The severity of the last samples taken together, and the sentence for it.
    fn judge(
        &self,
        c: &Config,
        s: &StepSample,
        r: &Reading,
        shared: &Shared,
    ) -> Option<(Severity, Sentence)> {
        let (hits, spikes) = (self.hits.count_last(WINDOW), self.spikes.count_last(WINDOW));
        let extreme = self.extreme.count_last(WINDOW);
        let spike = Self::is_spike(c, r);
        let (now, times, usual) = (r.norm, r.dev.d.exp(), r.expected());
        let ticket_or = |page: bool| if page { Severity::Page } else { Severity::Ticket };
        if spike && self.rises >= c.run_up {
            let why = clause!(
                "grad norm rose {samples} samples in a row to {now}, {times}x its usual {usual}",
                samples = self.rises,
                now,
                times,
                usual,
            );
            let why = Sentence::from(why).and(clause!("a loss spike usually follows"));
            return Some((Severity::Page, why));
        }
        if spike && shared.coupling.loss_is_hot(s.step) {
            let why = clause!(
                "grad norm {now} is {times}x its usual {usual}, and the loss is rising with it",
                now,
                times,
                usual,
            );
            return Some((Severity::Page, why.into()));
        }
        let upward = self.upward.count_last(WINDOW);
        let crowded = upward >= c.page_hits && self.back.count_last(WINDOW) >= c.page_hits;
        let persistent = hits >= c.page_hits || extreme >= 2 || (crowded && spikes > 0);
        // A run-up in progress is reported once, when it is certain.
        let rising = self.rises + 1 == c.run_up;
        if persistent || crowded || (spikes >= 2 && !rising) {
            let why = clause!(
                "grad norm above {limit}x its usual {usual} in {high} of the last {samples} samples, now {now} ({times}x)",
                limit = c.hit_ratio,
                usual,
                high = hits.max(upward),
                samples = WINDOW,
                now,
                times,
            );
            return Some((ticket_or(persistent), why.into()));
        }
        if self.large.count_last(1) == 1 && r.interval >= SPARSE {
            let step = Fact::Step(s.step);
            let why = clause!(
                "grad norm {now} is {times}x its usual {usual} at step {step}",
                now,
                times,
                usual,
                step
            );
            let interval = r.interval;
            let rest = clause!("with one step in {interval} logged, it is hardly the only one", interval);
            return Some((Severity::Ticket, Sentence::from(why).and(rest)));
        }
        None
    }

    fn judge_rate(&self, c: &Config, shared: &Shared) -> Option<Severity> {
        // The hits that the long-term rate would put into the memory.
        let usual = self.long_rate * MEMORY;
        if shared.schedule.warming_up() || self.rate < c.unstable_ratio * usual {
            return None;
        }
        if self.rate >= c.unstable_page {
            Some(Severity::Page)
        } else if self.rate >= c.unstable_ticket {
            Some(Severity::Ticket)
        } else {
            None
        }
    }

    fn finding(&self, kind: Kind, r: &Reading, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind,
            signal: "grad_norm",
            start_step: self.onset,
            value: r.norm,
            expected: r.expected(),
            score: r.dev.z,
            why: why.into(),
        }
    }

    fn publish(&mut self, c: &Config, step: &mut JudgedStep<'_>, r: &Reading, shared: &Shared) {
        let judged = self.judge(c, step.sample, r, shared).and_then(|(severity, why)| match severity {
            // Gradients have not found their level: what would page later is a ticket now.
            Severity::Page if shared.schedule.warming_up() => Some((Severity::Ticket, why)),
            _ if shared.schedule.warming_up() => None,
            _ => Some((severity, why)),
        });
        if let Some((severity, why)) = judged {
            if self.spike.raise(severity) {
                step.raise(self.finding(Kind::GradSpike, r, why), severity);
            }
        }
        if let Some(severity) = self.judge_rate(c, shared) {
            if self.unstable.raise(severity) {
                let why = clause!(
                    "grad norm jumps ever more often: {jumps} jumps above {limit}x within about {samples} samples, \
                     {jumps_before} before",
                    jumps = self.rate.round(),
                    limit = c.hit_ratio,
                    samples = MEMORY,
                    jumps_before = (self.long_rate * MEMORY).round(),
                );
                let why = Sentence::from(why).and(clause!("now {now}", now = r.norm));
                step.raise(self.finding(Kind::GradInstability, r, why), severity);
            }
        }
    }

    /// Ends the incidents that are over, and notes a lone spike once no other has followed it.
    fn settle(&mut self, c: &Config, step: &mut JudgedStep<'_>, r: &Reading) {
        if self.since_hit == WINDOW && !self.spike.is_raised() && self.spikes.count_last(WINDOW + 1) > 0 {
            let why = clause!(
                "grad norm {peak} at step {step}, {times}x its usual {usual}, and back at once",
                peak = self.peak,
                step = Fact::Step(self.peak_step),
                times = self.peak / self.peak_expected,
                usual = self.peak_expected,
            );
            let mut f = self.finding(Kind::GradSpike, r, why);
            (f.value, f.expected) = (self.peak, self.peak_expected);
            f.score = (self.peak / self.peak_expected).ln() / self.base.scale();
            step.note(f);
        }
        if self.quiet >= c.clear_after && self.spike.clear() {
            let samples = self.quiet;
            let why = clause!("grad norm back at {now} for {samples} samples", now = r.norm, samples);
            step.clear(self.finding(Kind::GradSpike, r, why));
        }
        if self.rate < 0.4 * c.unstable_ticket && self.unstable.clear() {
            let why = clause!("grad norm steady again at {now}", now = r.expected());
            step.clear(self.finding(Kind::GradInstability, r, why));
        }
    }

    /// Ends open incidents because a new attempt begins.
    fn close(&mut self, step: &mut JudgedStep<'_>, r: &Reading) {
        (self.since_hit, self.quiet) = (u32::MAX, u32::MAX);
        for (was, kind) in
            [(self.spike.clear(), Kind::GradSpike), (self.unstable.clear(), Kind::GradInstability)]
        {
            if was {
                step.clear(self.finding(kind, r, clause!("the run restarted")));
            }
        }
    }

    fn learn(&mut self, x: f64, floor: f64) {
        if let Some(dev) = self.base.deviation(x) {
            let rate = RATE.max(1.0 / f64::from(self.base.count() + 1));
            self.lower.update(dev.d, self.base.scale(), rate, floor);
        }
        self.base.update(x, RATE, floor);
    }

    /// A level that stays is the new baseline; wild swings are not a level.
    fn follow_level(&mut self, r: &Reading) {
        self.out_of_place = if r.dev.d > 1.5 * self.base.scale() { self.out_of_place + 1 } else { 0 };
        if self.out_of_place >= NEW_LEVEL {
            self.out_of_place = 0;
            self.base.anchor(FLOOR);
        }
    }
}

impl StepDetector for GradSpike {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let s = step.sample;
        // Zero is what trainers print when they do not compute the norm.
        let Some(norm) = s.grad_norm.filter(|g| g.is_finite() && *g > 0.0) else { return };
        if !c.enabled || s.interval == 0 {
            return;
        }
        let beat = self.cadence.add(s.step, s.interval);
        if beat.changed {
            (self.base, self.lower) = (Robust::default(), LowerScale::default());
        }
        let restarted = self.attempts.restarted(s.attempt);
        if restarted {
            self.rises = 0;
            self.last = 0.0;
        }
        self.count_rises(c, norm);
        let x = shared.log_norm;
        if let Some(dev) = self.base.deviation(x) {
            let location = self.base.location();
            let (upward, interval) = (self.lower.sigmas(dev.d), beat.interval);
            let r = Reading { norm, location, dev, upward, interval, quantum: s.q.grad_norm };
            if restarted {
                self.close(step, &r);
            }
            if self.vote(c, s, &r) {
                if self.since_hit == 0 {
                    shared.coupling.grad_hit(s.step);
                }
                self.publish(c, step, &r, shared);
            }
            self.settle(c, step, &r);
            self.follow_level(&r);
        }
        self.learn(x, self.floor(norm, s.q.grad_norm));
    }
}

//! Detects a run that is slow from its first step, for which it has no baseline of its own: a slow
//! node in the new set, a link that came up at half its speed, another library.
//!
//! Runs that do the same work on as many ranks hold much the same step time. The engine remembers
//! what they held ([`Standard`]) by their work (`monitor/baselines.rs`), whatever their variables
//! and versions; a run whose medians of 8 steps all lie 2 % above it, and 3.5 sigmas of a single
//! step, in each of the last three blocks, is a ticket. Only the beginning is judged: of what comes
//! later the run has its own reference ([`super::mfu_droop`]). Its first four minutes are not:
//! kernels are tuned and caches of data fill, on another day from another state.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::{PRINTED, Shared, Standard};
use crate::detector::{JudgedStep, StepDetector};
use crate::stats::block::Block;
use crate::stats::latch::Latch;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Share by which the usual step is slower than that of earlier runs, at least.
    pub ticket: f64,
    /// The same in sigmas of a single step. The median of 8 independent normal steps has 0.41 of
    /// them, so 3.5 are 8 standard deviations of a block: what is meant is a real difference
    /// between runs, not chance.
    pub sigmas: f64,
    /// Share of the slow-down that may be left when the incident ends.
    pub clear: f64,
    /// How long it must have lasted, by the clock.
    pub ticket_after: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, ticket: 0.02, sigmas: 3.5, clear: 0.4, ticket_after: Span::secs(60) }
    }
}

/// The number of blocks that must agree.
const HELD: usize = 3;
/// The number of blocks at the start that are not representative: compilation, cold caches.
const YOUNG: u32 = 8;
/// The time at the start that is not representative either.
const WARM_UP: Span = Span::secs(240);
/// The number of blocks after which the start is over, and its least time: short steps are many.
const GROWN: u32 = 64;
const GROWN_UP: Span = Span::secs(900);
/// Weight of a block in the noise, in the long run.
const RATE: f64 = 1.0 / 32.0;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SlowStart {
    latch: Latch,
    held: [f32; HELD],
    blocks: u32,
    /// Scale of a single step within its block.
    sigma: f32,
    first_step: i64,
    /// When the first block ended.
    began: Ts,
    since: Option<Ts>,
}

impl SlowStart {
    fn learn(&mut self, now: Ts, b: Block) {
        if self.blocks == 0 {
            (self.first_step, self.began) = (b.first, now);
        }
        self.blocks = self.blocks.saturating_add(1);
        self.held.rotate_left(1);
        self.held[HELD - 1] = b.median as f32;
        let sigma = f64::from(self.sigma);
        let spread = if self.blocks > HELD as u32 { b.sigma.min(2.5 * sigma) } else { b.sigma };
        self.sigma = (sigma + (spread - sigma) * RATE.max(1.0 / f64::from(self.blocks))) as f32;
    }

    /// Whether what the run does now is its start.
    fn starts(&self, now: Ts) -> bool {
        let life = now - self.began;
        let is_young = self.blocks <= GROWN || life <= GROWN_UP;
        self.blocks >= YOUNG && life >= WARM_UP && is_young
    }

    fn judge(&mut self, c: &Config, step: &mut JudgedStep<'_>, standard: Standard, grain: f64) {
        let above = |held: f32| f64::from(held) - standard.slowness;
        let least = c.ticket.ln_1p().max(c.sigmas * f64::from(self.sigma)).max(PRINTED * grain);
        let slow = self.held.iter().all(|h| above(*h) >= least);
        self.since = if slow { self.since.or(Some(step.sample.ts)) } else { None };
        let lasted = self.since.is_some_and(|since| step.sample.ts - since >= c.ticket_after);
        let rise = above(crate::stats::median::median(&mut self.held.clone()) as f32);
        if lasted && self.starts(step.sample.ts) && self.latch.raise(Severity::Ticket) {
            step.raise(finding(standard, self.first_step, rise, sentence(standard, rise)), Severity::Ticket);
        }
        let gone = self.held.iter().all(|h| above(*h) < c.clear * c.ticket);
        if gone && self.latch.clear() {
            let why = clause!("the usual step is what runs of this configuration need");
            step.clear(finding(standard, self.first_step, rise, why));
        }
    }
}

fn sentence(standard: Standard, rise: f64) -> Sentence {
    let value = |slowness| standard.source.value(slowness);
    let others = match standard.runs {
        1 => clause!("the run before it"),
        runs => clause!("the {runs} runs before it", runs),
    };
    Sentence::from(clause!(
        "{slower} % slower from the start than {others} with this configuration and size: {signal} is {now} where it was \
         {before}",
        slower = Fact::percent(rise.exp_m1(), 1),
        others,
        signal = standard.source.signal(),
        now = value(standard.slowness + rise),
        before = value(standard.slowness),
    ))
    .and(clause!("look for a slow node or link, or other software"))
}

fn finding(standard: Standard, start_step: i64, rise: f64, why: impl Into<Sentence>) -> Draft {
    Draft {
        kind: Kind::SlowStart,
        signal: standard.source.signal(),
        start_step,
        value: standard.source.value(standard.slowness + rise),
        expected: standard.source.value(standard.slowness),
        score: rise,
        why: why.into(),
    }
}

impl StepDetector for SlowStart {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let Some(block) = shared.speed.block.filter(|_| c.enabled) else { return };
        self.learn(step.sample.ts, block);
        let standard = shared.speed.standard.filter(|standard| standard.source == shared.speed.source());
        let judged = self.starts(step.sample.ts) || self.latch.is_raised();
        if let Some(standard) = standard.filter(|_| judged) {
            let grain = shared.speed.now.map_or(0.0, |timing| timing.grain);
            self.judge(c, step, standard, grain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detector::shared::Source;
    use crate::detectors::Detectors;
    use crate::detectors::testing::{healthy, open, raised};
    use stepwatch_model::Finding;

    /// A run of `seconds` a step, and of others from step 500 on, where runs before it held 2.
    fn run(seconds: f64, later: f64) -> Vec<Finding> {
        run_by(1, 1000, |step| if step < 500 { seconds } else { later })
    }

    /// A run whose steps arrive so many times as fast as every two seconds.
    fn run_by(faster: i64, steps: i64, seconds: impl Fn(i64) -> f64) -> Vec<Finding> {
        let standard = Standard { source: Source::StepTime, slowness: 2f64.ln(), runs: 3 };
        let mut detectors = Detectors::default();
        detectors.speed_mut().standard = Some(standard);
        let mut out = Vec::new();
        let run = healthy(121, steps);
        let first = run[0].ts;
        for mut s in run {
            s.step_time = s.step_time.map(|t| t * seconds(s.step) / 2.0);
            s.ts = Ts(first.0 + (s.ts - first).0 / faster);
            detectors.step(&s, &mut out);
        }
        out
    }

    #[test]
    fn a_run_that_begins_slow_is_a_ticket_until_it_is_not() {
        let findings = run(2.08, 2.0);
        assert!(
            matches!(raised(&findings)[..], [(Kind::SlowStart, Severity::Ticket, 150..180)]),
            "{findings:?}"
        );
        let why = &findings[0].why;
        assert!(why.to_string().contains("slower from the start than the 3 runs before it"), "{why}");
        assert!(open(&findings).is_empty(), "{findings:?}");
    }

    #[test]
    fn caches_that_are_cold_for_minutes_are_no_ticket() {
        let findings = run_by(1, 1000, |step| if step < 140 { 2.3 } else { 2.0 });
        assert!(findings.iter().all(|v| v.kind != Kind::SlowStart), "{findings:?}");
    }

    #[test]
    fn a_run_of_short_steps_is_judged_as_long() {
        // 512 steps of a quarter of a second are over before the caches are warm.
        let findings = run_by(8, 2500, |_| 2.08);
        let slow: Vec<i64> = findings.iter().filter(|v| v.kind == Kind::SlowStart).map(|v| v.step).collect();
        assert!(matches!(slow[..], [1150..1400]), "{findings:?}");
    }

    #[test]
    fn as_fast_or_faster_is_nothing_and_later_is_another_matter() {
        assert!(run(2.02, 2.0).is_empty() && run(1.8, 1.8).is_empty());
        let findings = run(2.0, 2.2);
        assert!(raised(&findings).iter().all(|(k, ..)| *k == Kind::ThroughputDrop), "{findings:?}");
    }
}

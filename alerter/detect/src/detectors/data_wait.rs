//! Detects time that steps wait for their data.
//!
//! The longest wait of any rank counts, as a share of that rank's step: in synchronous training the
//! others wait with it. A block is the median of 8 steps. The rise above the run's own usual share
//! (bounded influence, 1/50 a block) is tested by a CUSUM of the excess over half of `rise`, in
//! sigmas of a block (Page 1954, h by Siegmund's formula for one false alarm in a million blocks).
//! A ticket needs both the CUSUM and the rise above their limits for `ticket_after`. A wait that
//! was there from the beginning is reported once, when its share is above `level` after 256 steps:
//! it costs money, but is not a fault.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Measured;
use crate::detector::shared::Shared;
use crate::detector::{JudgedStep, StepDetector};
use crate::sample::{Extra, Parts};
use crate::stats::block::Blocks;
use crate::stats::cusum::Cusum;
use crate::stats::hit_window::HitWindow;
use crate::stats::latch::Latch;
use crate::stats::robust::Robust;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{
    Change, Clause, Fact, Finding, Kind, Observation, Sentence, Severity, Suspect, Target, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Names of the parts of a step that wait for data.
    pub parts: Vec<String>,
    /// Share of the step by which the wait must have risen: an engineering limit.
    pub rise: f64,
    /// Share of the step that is reported even if it was always so: an engineering limit.
    pub level: f64,
    /// How long it must last, by the clock.
    pub ticket_after: Span,
}

impl Default for Config {
    fn default() -> Self {
        let parts = [
            "data",
            "dataloader",
            "data_loading",
            "data_wait",
            "data_time",
            "batch-generator",
            "fetching_batch",
        ];
        Self {
            enabled: true,
            parts: parts.map(str::to_owned).to_vec(),
            rise: 0.05,
            level: 0.3,
            ticket_after: Span::secs(60),
        }
    }
}

/// The number of steps by which ranks may be apart: a step is evaluated when one this many steps
/// later is reported.
const SLOTS: usize = 8;
/// Blocks that start the usual share, and the weight of one in the long run.
const WARM: usize = 8;
const RATE: f64 = 1.0 / 50.0;
/// Smallest scale of a block, as a share of the step.
const FLOOR: f64 = 0.005;
/// Bound of the CUSUM in sigmas of a block: `ln(2k²·ARL₀ + 1)/2k − 1.166`, k = 0.5, ARL₀ = 10⁶.
const H: f64 = 12.0;
/// No block weighs more than this, so that one alone cannot alarm.
const CAP: f64 = 5.0;
/// Blocks after which a wait that was always there is reported.
const SETTLED: u32 = 32;
/// The share of the rise below which the incident ends.
const CLEAR: f64 = 0.4;
/// The number of the last 32 steps in which one rank must have waited longest to be a suspect.
/// One of two equal ranks does in 0.35 % of the windows by chance, one of four in 4·10⁻⁹.
const SAME_RANK: u32 = 24;
/// The factor by which its wait must exceed that of the next rank, so that the others wait for it:
/// an engineering limit.
const ALONE: f64 = 1.5;

/// `None` while the trainer of the run reports no waits.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DataWait(Option<Box<Waits>>);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Waits {
    slots: [Waited; SLOTS],
    newest: i64,
    attempt: u32,
    blocks: Blocks,
    /// Step time of the last block, to convert shares to seconds.
    step_time: f64,
    base: Robust<WARM>,
    cusum: Cusum,
    n: u32,
    /// The rank that waited longest last, and how often it did before.
    longest: u32,
    same: HitWindow,
    several: bool,
    rising: Latch,
    level: Latch,
    since: Option<Ts>,
}

/// The longest wait of a step.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Waited {
    step: i64,
    ts: Ts,
    share: f64,
    /// The longest wait of another rank.
    second: f64,
    step_time: f64,
    rank: u32,
    /// The slot has a step.
    present: bool,
    /// Several ranks reported their waits.
    several: bool,
}

impl Waited {
    fn from_parts(p: &Parts<'_>, wait: f64, step_time: f64) -> Self {
        Self {
            step: p.step,
            ts: p.ts,
            share: (wait / step_time).min(1.0),
            second: 0.0,
            step_time,
            rank: p.rank,
            present: true,
            several: false,
        }
    }
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            slots: [Waited::default(); SLOTS],
            newest: i64::MIN,
            attempt: 0,
            blocks: Blocks::default(),
            step_time: 0.0,
            base: Robust::default(),
            cusum: Cusum::default(),
            n: 0,
            longest: 0,
            same: HitWindow::default(),
            several: false,
            rising: Latch::default(),
            level: Latch::default(),
            since: None,
        }
    }
}

impl Waits {
    fn take(&mut self, c: &Config, attempt: u32, new: Waited, out: &mut Vec<Finding>) {
        if attempt != self.attempt {
            self.restart(attempt);
        }
        if new.step <= self.newest.saturating_sub(SLOTS as i64) {
            return; // too late: its step was judged without it
        }
        let at = new.step.rem_euclid(SLOTS as i64) as usize;
        if self.slots[at].present && self.slots[at].step == new.step {
            let w = &mut self.slots[at];
            if w.rank == new.rank {
                return;
            }
            w.several = true;
            if new.share > w.share || new.share == w.share && new.rank < w.rank {
                w.second = w.share;
                (w.share, w.step_time, w.rank) = (new.share, new.step_time, new.rank);
            } else {
                w.second = w.second.max(new.share);
            }
            return;
        }
        let from = self.newest.max(new.step.saturating_sub(SLOTS as i64 * 2));
        for step in from.saturating_add(1)..=new.step {
            let slot = &mut self.slots[step.rem_euclid(SLOTS as i64) as usize];
            let old = core::mem::take(slot);
            if old.present {
                self.judge(c, &old, out);
            }
        }
        self.newest = self.newest.max(new.step);
        self.slots[at] = new;
    }

    fn restart(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.slots = [Waited::default(); SLOTS];
        self.newest = i64::MIN;
        self.blocks.clear();
    }

    fn judge(&mut self, c: &Config, w: &Waited, out: &mut Vec<Finding>) {
        let alone = w.several && w.share > ALONE * w.second;
        self.same.push(w.rank == self.longest && alone);
        (self.longest, self.several) = (w.rank, w.several);
        self.step_time = w.step_time;
        let Some(block) = self.blocks.add(w.step, w.share) else { return };
        self.n = self.n.saturating_add(1);
        let share = block.median;
        if self.base.is_warm() {
            let (usual, scale) = (self.base.location(), self.base.scale());
            let excess = (share - usual - 0.5 * c.rise) / scale;
            self.cusum.add(block.first, excess.min(CAP), 0.5, 3.0 * H);
            self.judge_rise(c, w, Measured { value: share, expected: usual }, out);
        }
        self.judge_level(c, w, out);
        if self.cusum.value() < 0.5 * H {
            self.base.update(share, RATE, FLOOR);
        }
    }

    fn judge_rise(&mut self, c: &Config, w: &Waited, m: Measured, out: &mut Vec<Finding>) {
        let (share, usual) = (m.value, m.expected);
        let up = self.cusum.value() > H && share - usual > c.rise;
        if !up && !self.rising.is_raised() {
            self.since = None;
            return;
        }
        let since = *self.since.get_or_insert(w.ts);
        if up && w.ts - since >= c.ticket_after && self.rising.raise(Severity::Ticket) {
            let why = clause!(
                "steps wait {wait_seconds} of {step_seconds} s for data, {usual} % before: {lost} % of the run's time is \
                 lost to it",
                wait_seconds = share * self.step_time,
                step_seconds = self.step_time,
                usual = Fact::percent(usual, 0),
                lost = Fact::percent(share - usual, 0),
            );
            let why = Sentence::from(why).and_perhaps(self.whom());
            out.push(self.finding(w, Change::Raise, m, why));
        }
        if share - usual < CLEAR * c.rise && self.rising.clear() {
            self.cusum.reset();
            let why =
                clause!("steps wait {share} % of their time for data again", share = Fact::percent(share, 0));
            self.clear(w, m, why, out);
        }
    }

    fn judge_level(&mut self, c: &Config, w: &Waited, out: &mut Vec<Finding>) {
        let usual = self.base.location();
        let m = Measured { value: usual, expected: 0.0 };
        if self.n == SETTLED
            && usual > c.level
            && !self.rising.is_raised()
            && self.level.raise(Severity::Ticket)
        {
            let why = clause!(
                "steps wait {wait_seconds} of {step_seconds} s for data, and have since the run began: without the wait it \
                 would be done {share} % sooner",
                wait_seconds = usual * self.step_time,
                step_seconds = self.step_time,
                share = Fact::percent(usual, 0),
            );
            out.push(self.finding(w, Change::Raise, m, why));
        } else if usual < 0.8 * c.level && self.level.clear() {
            let why = clause!("steps wait {share} % of their time for data", share = Fact::percent(usual, 0));
            self.clear(w, m, why, out);
        }
    }

    /// Two conditions of one kind: the last one to end ends the incident.
    fn clear(&self, w: &Waited, m: Measured, why: impl Into<Sentence>, out: &mut Vec<Finding>) {
        if !self.rising.is_raised() && !self.level.is_raised() {
            out.push(self.finding(w, Change::Clear, m, why));
        }
    }

    /// Names the rank that the others wait for, if it is always the same. The ranking of suspects
    /// finds the cause.
    fn whom(&self) -> Option<Clause> {
        let times = self.same.count_last(32);
        (self.several && times >= SAME_RANK).then(|| {
            clause!("rank {rank} waits longest, in {times} of the last 32 steps", rank = self.longest, times)
        })
    }

    fn finding(&self, w: &Waited, change: Change, m: Measured, why: impl Into<Sentence>) -> Finding {
        let raises = change == Change::Raise;
        Finding {
            change,
            kind: Kind::DataWait,
            severity: if raises { Severity::Ticket } else { Severity::Info },
            signal: "data_wait".into(),
            step: w.step,
            ts: w.ts,
            start_step: if self.rising.is_raised() { self.cusum.onset() } else { w.step },
            value: m.value,
            expected: m.expected,
            score: self.cusum.value() / H,
            why: why.into(),
            suspects: if raises && self.whom().is_none() { vec![loading()] } else { Vec::new() },
        }
    }
}

/// Seconds that the rank waited; the longest of its parts, because one may lie within another.
fn wait(c: &Config, p: &Parts<'_>) -> Option<f64> {
    let waits = p.seconds.iter().filter(|(name, _)| c.parts.iter().any(|part| part == name));
    waits.map(|(_, secs)| secs).filter(|secs| secs.is_finite() && *secs >= 0.0).reduce(f64::max)
}

fn loading() -> Suspect {
    Suspect::new(Target::DataLoading, Observation::StepsWaitForData)
}

impl StepDetector for DataWait {
    type Config = Config;

    fn step(&mut self, _: &Config, _: &mut JudgedStep<'_>, _: &mut Shared) {}

    fn extra(&mut self, c: &Config, e: &Extra<'_>, _: &Shared, out: &mut Vec<Finding>) {
        let Extra::Parts(p) = e else { return };
        let step_time = p.step_time.filter(|t| t.is_finite() && *t > 0.0 && c.enabled);
        if let Some(new) = step_time.and_then(|t| Some(Waited::from_parts(p, wait(c, p)?, t))) {
            self.0.get_or_insert_default().take(c, p.attempt, new, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::Detectors;
    use crate::detectors::testing::{Noise, open, raised};
    use proptest::prelude::*;
    use stepwatch_wire::Metrics;

    /// Steps of two seconds on four ranks, whose waits `wait` gives by step and rank; reported in
    /// this order of ranks.
    fn waiting(seed: u64, n: i64, order: [u32; 4], wait: impl Fn(i64, u32) -> f64) -> Vec<Finding> {
        let mut detectors = Detectors::default();
        let mut out = Vec::new();
        for step in 1..=n {
            for rank in order {
                // The same whatever the order.
                let mut noise = Noise::new(seed ^ (step as u64 * 64 + u64::from(rank)));
                let secs = (wait(step, rank) + 0.01 * noise.normal()).max(0.0);
                let seconds = Metrics::from_iter([("data", secs), ("fwd_bwd", 1.5)]);
                let p = Parts {
                    step,
                    ts: Ts(2000 * step),
                    attempt: 0,
                    rank,
                    step_time: Some(2.0),
                    seconds: &seconds,
                };
                detectors.extra(&Extra::Parts(p), &mut out);
            }
        }
        out
    }

    const IN_ORDER: [u32; 4] = [0, 1, 2, 3];

    #[test]
    fn a_loader_that_falls_behind_is_a_ticket_with_its_arithmetic() {
        let findings =
            waiting(
                1,
                1600,
                IN_ORDER,
                |step, rank| if rank == 2 && (800..1200).contains(&step) { 0.5 } else { 0.04 },
            );
        let found = raised(&findings);
        assert_eq!(found.len(), 1, "{findings:?}");
        assert!(
            (Kind::DataWait, Severity::Ticket) == (found[0].0, found[0].1)
                && (808..870).contains(&found[0].2)
        );
        assert!(open(&findings).is_empty());
        let v = &findings[0];
        assert!(
            v.why.to_string().contains("of the run's time is lost to it; rank 2 waits longest")
                && v.why.to_string().contains("of 2 s for data, 3 % before"),
            "{}",
            v.why
        );
        assert!((790..=808).contains(&v.start_step), "{v:?}");
    }

    #[test]
    fn a_wait_from_the_beginning_is_reported_once() {
        let findings = waiting(2, 3000, IN_ORDER, |_, _| 0.9);
        assert_eq!(raised(&findings).len(), 1, "{findings:?}");
        assert!(findings[0].why.to_string().contains("since the run began"), "{}", findings[0].why);
    }

    #[test]
    fn single_waits_and_small_ones_are_nobodys_ticket() {
        assert!(waiting(3, 3000, IN_ORDER, |step, _| if step % 7 == 0 { 1.5 } else { 0.04 }).is_empty());
        assert!(waiting(4, 3000, IN_ORDER, |step, _| if step > 1500 { 0.1 } else { 0.04 }).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn the_order_of_ranks_changes_nothing(seed: u64, order in Just(vec![0u32, 1, 2, 3]).prop_shuffle()) {
            let wait = |step: i64, rank: u32| if rank == 1 && step > 500 { 0.6 } else { 0.05 };
            let order: [u32; 4] = order.try_into().unwrap();
            prop_assert_eq!(waiting(seed, 900, order, wait), waiting(seed, 900, IN_ORDER, wait));
        }

        #[test]
        fn a_steady_wait_is_silent(seed: u64, wait in 0.0f64..0.4) {
            prop_assert!(waiting(seed, 2000, IN_ORDER, |_, _| wait).is_empty());
        }
    }
}

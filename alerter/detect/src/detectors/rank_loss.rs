//! Detects a rank whose own loss deviates from those of the other ranks at the same step. Before
//! the gradients spread the error to all ranks, this is the only sign of which rank computed wrong
//! results.
//!
//! [`crate::run::rank_loss`] finds the strays. A single stray is a note, as context for what may
//! follow: most often it is a batch that any GPU would fail at. The same rank out of line in
//! `repeats` steps of the last 256, on another batch each time and more often than any other rank,
//! is a ticket: silent data corruption looks like that (Dixit et al., "Silent data corruptions at
//! scale", 2021; 6 of the 419 interruptions of Llama 3), and the run goes on learning from it.
//! Replaying the batch on another GPU decides.
//!
//! It needs ranks that report their own losses, as a loop with a client on every rank does; where
//! only the mean is reported there is nothing to compare. A ticket at most: the loss of the run is
//! what pages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::RunState;
use crate::run::rank_loss::Stray;
use stepwatch_model::time::Ts;
use stepwatch_model::{Change, Finding, Kind, Observation, Sentence, Severity, Suspect, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Steps of the last 256 in which one rank is out of line that make a ticket: an engineering
    /// limit. What makes a stray is in [`crate::run::rank_loss`].
    pub repeats: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, repeats: 3 }
    }
}

/// The number of steps for which a stray counts, and after which the incident is over.
pub(crate) const MEMORY: i64 = 256;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RankLoss {
    /// The last stray that was evaluated.
    seen: Option<(i64, u32)>,
    raised: Option<Severity>,
}

/// The rank that deviated most often (of several, the one that did first), its first stray, and in
/// how many steps.
pub(crate) fn worst(f: &RunState) -> Option<(Stray, u32)> {
    let since = f.last_step?.saturating_sub(MEMORY);
    let mut ranks: BTreeMap<u32, (Stray, u32)> = BTreeMap::new();
    for s in f.rank_losses.strays(since) {
        ranks.entry(s.rank).or_insert((*s, 0)).1 += 1;
    }
    ranks.into_values().min_by_key(|(s, times)| (core::cmp::Reverse(*times), s.step, s.rank))
}

/// The stray as an observation.
pub(crate) fn seen(s: &Stray, times: Option<u32>) -> Observation {
    Observation::OwnLoss {
        step: s.step,
        value: s.loss.into(),
        expected: s.others.into(),
        others: s.ranks.saturating_sub(1),
        times,
    }
}

impl RankLoss {
    fn raise(&mut self, c: &Config, view: RunAt<'_>, s: &Stray, times: u32) -> Finding {
        let again = times >= c.repeats;
        let severity = if again { Severity::Ticket } else { Severity::Info };
        self.raised = Some(self.raised.map_or(severity, |had| had.max(severity)));
        let place = view.run.rank_target(s.rank);
        let rest = if again {
            clause!(
                ", and it was out of line in {times} steps, with another batch each time: it may compute wrongly without any \
                 error; replay a batch on another GPU, and take the node out if it differs",
                times,
            )
        } else {
            clause!(": its batch, or its GPU")
        };
        let why = clause!("{rank}: {seen}{rest}", rank = place.clone(), seen = &seen(s, None), rest);
        let mut v = finding(view, Change::Raise, severity, why);
        (v.step, v.start_step) = (s.step, s.step);
        (v.value, v.expected, v.score) = (s.loss, s.others, f64::from(times));
        v.suspects = vec![Suspect::new(place, seen(s, None))];
        v
    }
}

impl ClockDetector for RankLoss {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        if !c.enabled {
            return;
        }
        let f = view.run;
        let last = f.rank_losses.last_stray();
        if let Some((s, times)) = worst(f).filter(|_| last.is_some() && last != self.seen) {
            self.seen = last;
            return out.push(self.raise(c, view, &s, times));
        }
        let gone = last.is_none_or(|(step, _)| f.last_step.is_some_and(|now| now > step + MEMORY));
        if gone && self.raised.take().is_some() {
            let why = clause!("the losses of the ranks agree again");
            out.push(finding(view, Change::Clear, Severity::Info, why));
        }
    }

    fn deadline(&self, _: &Config, _: &RunState) -> Option<Ts> {
        None
    }
}

fn finding(view: RunAt<'_>, change: Change, severity: Severity, why: impl Into<Sentence>) -> Finding {
    Finding { why: why.into(), ..view.finding(Kind::RankLoss, "loss", change, severity) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::Noise;
    use crate::monitor::Run;
    use proptest::prelude::*;
    use std::sync::Arc;
    use stepwatch_wire::Event;

    /// The findings about a run whose ranks report these losses.
    fn judge(ranks: u32, steps: i64, loss: &dyn Fn(i64, u32) -> f64) -> Vec<Finding> {
        let mut run = Run::new("r", Ts(0), &Arc::default());
        let (mut noise, mut out) = (Noise::new(7), Vec::new());
        for step in 1..=steps {
            for rank in 0..ranks {
                let mut e = Event::step("r", step);
                (e.rank, e.ts) = (Some(rank), Some(2.0 * step as f64));
                e.m.set("loss", loss(step, rank) + 0.04 * noise.normal());
                run.event(Ts(2000 * step), "n:1", &e, &mut out);
            }
        }
        out.retain(|v| v.kind == Kind::RankLoss);
        out
    }

    #[test]
    fn one_stray_is_a_note_and_the_same_rank_again_and_again_a_ticket() {
        let once = judge(16, 600, &|step, rank| if (step, rank) == (50, 3) { 4.0 } else { 2.0 });
        let said: Vec<_> = once.iter().map(|v| (v.change, v.severity, v.step)).collect();
        assert_eq!(said, [(Change::Raise, Severity::Info, 50), (Change::Clear, Severity::Info, 307)]);
        let again = judge(16, 100, &|step, rank| if rank == 3 && step % 20 == 10 { 3.5 } else { 2.0 });
        let ticket = again.iter().find(|v| v.severity == Severity::Ticket).unwrap();
        assert!(ticket.step <= 50 && ticket.suspects[0].what().starts_with("rank 3"), "{ticket:?}");
        assert!(ticket.why.to_string().contains("3 steps"), "{}", ticket.why);
    }

    #[test]
    fn batches_that_are_hard_for_whoever_gets_them_are_nobody_s_fault() {
        let hard = |step: i64, rank: u32| {
            if step % 10 == 0 && i64::from(rank) == step / 10 % 16 { 5.0 } else { 2.0 }
        };
        let said = judge(16, 160, &hard);
        assert!(!said.is_empty() && said.iter().all(|v| v.severity == Severity::Info));
    }

    #[test]
    fn what_all_report_alike_says_nothing() {
        assert_eq!(judge(1, 300, &|step, _| if step == 100 { f64::NAN } else { 2.0 }), []);
        assert_eq!(judge(16, 300, &|step, _| if step > 100 { 9.0 } else { 2.0 }), []);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn the_unit_of_the_loss_is_nothing(unit in 0.5f64..20.0) {
            let loss = |step: i64, rank: u32| unit * if rank == 3 && step % 20 == 10 { 4.0 } else { 2.0 };
            let said = judge(8, 100, &loss);
            prop_assert!(said.iter().any(|v| v.severity == Severity::Ticket));
        }
    }
}

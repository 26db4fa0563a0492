//! What speaks against going back to a checkpoint that was written: it is not complete, one of its
//! stages failed, it was saved while something spoilt the state of the run, or its evaluation is
//! bad.
//!
//! What spoils the state is what does not heal by itself: a divergence, numbers that are not
//! finite, and signs of silent data corruption (a rank whose loss is out of line again and again,
//! or a step that Megatron computed twice with two results). Everything that is saved from its
//! onset on is spoilt, until it ends or the run goes back to before it.
//!
//! An evaluation is bad if its loss is not finite, or above those of the evaluations before it by
//! more than these differ.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use stepwatch_model::{Finding, Flaw, Kind, PassedOver, Severity};

use super::checkpoints::{Checkpoints, median};
use super::stages::Stages;

/// The event of Megatron's rerun state machine: the same input gave another result.
pub(crate) const RERUN_MISMATCH: &str = "rerun_mismatch";
/// The most evaluations that are kept.
const EVALS_KEPT: usize = 32;
/// The evaluations that one is compared with, and the fewest.
const COMPARED: usize = 5;
const FEWEST: usize = 3;
/// The least share by which the loss of a bad evaluation is above the others: an engineering limit.
const LEAST: f64 = 0.02;

/// Something that spoils what is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Trouble {
    Found(Kind),
    Rerun,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Trust {
    /// One of a sort, with the step of its onset.
    troubles: Vec<(Trouble, i64)>,
    /// The evaluation set that was reported first, and its losses by step, oldest first.
    set: Option<u16>,
    evals: VecDeque<(i64, f64)>,
}

/// Whether the state of a run is spoilt while the kind holds.
fn spoils(kind: Kind) -> bool {
    matches!(kind, Kind::Nonfinite | Kind::Divergence | Kind::RankLoss)
}

/// From which severity on. A ticket about numbers that are not finite says that steps were skipped,
/// and these spoil nothing.
fn spoils_at(kind: Kind) -> Severity {
    if kind == Kind::Nonfinite { Severity::Page } else { Severity::Ticket }
}

impl Trust {
    fn began(&mut self, trouble: Trouble, onset: i64) {
        match self.troubles.iter_mut().find(|(known, _)| *known == trouble) {
            Some((_, had)) => *had = onset.min(*had),
            None => self.troubles.push((trouble, onset)),
        }
    }

    fn onset(&self) -> Option<i64> {
        self.troubles.iter().map(|(_, onset)| *onset).min()
    }

    /// The loss of the evaluation of a checkpoint, or of the nearest after it, and the usual one
    /// before, if it is bad.
    fn bad_evaluation(&self, step: i64) -> Option<Flaw> {
        let at = self.evals.iter().position(|(of, _)| *of >= step)?;
        let (of, loss) = *self.evals.get(at)?;
        let before = self.evals.iter().take(at).map(|(_, loss)| *loss).filter(|loss| loss.is_finite());
        let before: Vec<f64> = before.collect();
        let last = before.get(before.len().saturating_sub(COMPARED)..)?;
        let usual = median(last.iter().copied());
        let flaw = Flaw::BadEvaluation { step: of, loss: loss.into(), before: usual.into() };
        if !loss.is_finite() {
            return (!last.is_empty()).then_some(flaw);
        }
        let (low, high) =
            last.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (v.min(low), v.max(high)));
        let margin = (high - low).max(LEAST * high.abs());
        (last.len() >= FEWEST && loss > high + margin).then_some(flaw)
    }
}

impl Stages {
    /// The checkpoints that do not count, and why.
    fn unfit(&self) -> impl Iterator<Item = PassedOver> {
        self.steps.iter().filter(|one| !one.counted).map(|one| {
            let why = if one.has_failed() { Flaw::Failed } else { Flaw::Incomplete };
            PassedOver { step: one.step, why }
        })
    }
}

impl Checkpoints {
    /// Takes note of what was found of the run.
    pub(crate) fn note_trouble(&mut self, found: &[Finding]) {
        for v in found.iter().filter(|v| spoils(v.kind)) {
            let trouble = Trouble::Found(v.kind);
            if v.change.raises() && v.severity >= spoils_at(v.kind) {
                self.trust.get_or_insert_default().began(trouble, v.start_step);
            } else if let Some(trust) = self.trust.as_mut().filter(|_| v.change.ends()) {
                trust.troubles.retain(|(known, _)| *known != trouble);
            }
        }
    }

    /// A step gave another result when it was computed again.
    pub(crate) fn mismatched(&mut self, step: i64) {
        self.trust.get_or_insert_default().began(Trouble::Rerun, step);
    }

    /// The onset of what spoils the checkpoints since.
    pub(crate) fn spoilt_from(&self) -> Option<i64> {
        self.trust.as_ref()?.onset()
    }

    /// Another attempt begins at this step. If it went back to before the trouble, it left the
    /// spoilt checkpoints behind.
    pub(crate) fn went_back_to(&mut self, step: i64) {
        let Some(trust) = &mut self.trust else { return };
        let left = trust.onset().filter(|onset| step <= *onset);
        trust.troubles.retain(|(trouble, _)| left.is_none() && *trouble != Trouble::Rerun);
        if let Some(onset) = left {
            self.steps.retain(|saved| *saved < onset);
        }
    }

    pub(crate) fn evaluated(&mut self, set: u16, step: i64, loss: f64) {
        let trust = self.trust.get_or_insert_default();
        if *trust.set.get_or_insert(set) != set {
            return;
        }
        // After a roll-back, steps are evaluated again.
        trust.evals.retain(|(had, _)| *had < step);
        if trust.evals.len() == EVALS_KEPT {
            trust.evals.pop_front();
        }
        trust.evals.push_back((step, loss));
    }

    /// The checkpoints that nobody should go back to, oldest first, whatever else is wrong.
    pub(crate) fn flawed(&self) -> Vec<PassedOver> {
        let is_whole =
            |flawed: &PassedOver| flawed.why == Flaw::Incomplete && self.steps.contains(&flawed.step);
        let unfit = self.stages().into_iter().flat_map(Stages::unfit).filter(|flawed| !is_whole(flawed));
        let bad = self.steps.iter().filter_map(|step| {
            let why = self.trust.as_ref()?.bad_evaluation(*step)?;
            Some(PassedOver { step: *step, why })
        });
        let mut all: Vec<PassedOver> = unfit.chain(bad).collect();
        all.sort_by_key(|flawed| flawed.step);
        all.dedup_by_key(|flawed| flawed.step);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [i64; 0] = [];

    fn evaluated(losses: &[(i64, f64)]) -> Checkpoints {
        let mut c = Checkpoints::default();
        losses.iter().for_each(|(step, loss)| c.evaluated(0, *step, *loss));
        c.steps.extend([100, 200, 300, 400, 500]);
        c
    }

    fn steps(c: &Checkpoints) -> Vec<i64> {
        c.flawed().iter().map(|flawed| flawed.step).collect()
    }

    #[test]
    fn a_checkpoint_is_as_good_as_its_evaluation_or_the_nearest_after_it() {
        let falling = [(100, 2.4), (200, 2.3), (300, 2.25), (400, 2.2)];
        assert_eq!(steps(&evaluated(&falling)), NONE, "the last one was not evaluated");
        let mut losses = falling.to_vec();
        losses.push((500, 2.61));
        let c = evaluated(&losses);
        let why = Flaw::BadEvaluation { step: 500, loss: 2.61.into(), before: 2.3.into() };
        assert_eq!(c.flawed(), [PassedOver { step: 500, why }]);
        losses.pop();
        losses.push((500, 2.59));
        assert_eq!(steps(&evaluated(&losses)), NONE, "2.4, and as much as the others differ");
        let seldom = [(50, 2.4), (150, 2.3), (250, 2.25), (450, 3.5)];
        assert_eq!(steps(&evaluated(&seldom)), [300, 400], "450 is the nearest after both");
    }

    #[test]
    fn a_loss_that_is_not_finite_is_bad_and_few_evaluations_show_nothing_else() {
        assert_eq!(steps(&evaluated(&[(100, 2.4), (200, f64::NAN), (300, 2.3), (400, 2.2)])), [200]);
        assert_eq!(steps(&evaluated(&[(100, 2.4), (200, 2.3), (300, 9.0)])), NONE);
        let mut c = evaluated(&[(100, 2.4), (200, 2.3), (300, 2.25), (400, 9.0)]);
        c.evaluated(1, 500, 70.0);
        assert_eq!(steps(&c), [400], "another set has other losses");
        c.evaluated(0, 350, 2.2);
        assert_eq!(steps(&c), NONE, "the run went back");
    }

    #[test]
    fn what_is_saved_in_trouble_is_left_behind_with_a_step_before_it() {
        let mut c = evaluated(&[]);
        c.mismatched(350);
        c.mismatched(420);
        assert_eq!(c.spoilt_from(), Some(350));
        c.went_back_to(301);
        assert_eq!((c.spoilt_from(), c.steps.make_contiguous().to_vec()), (None, vec![100, 200, 300]));
        let mut c = evaluated(&[]);
        c.trust.get_or_insert_default().began(Trouble::Found(Kind::Divergence), 350);
        c.went_back_to(401);
        assert_eq!((c.spoilt_from(), c.steps.len()), (Some(350), 5), "it went on from a spoilt one");
    }
}

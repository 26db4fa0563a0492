//! What speaks against going back to a checkpoint that was written: it is not complete, one of its
//! stages failed, it could not be loaded, it was saved while something spoilt the state of the run,
//! or its evaluation is bad.
//!
//! What spoils the state is what does not heal by itself: a divergence, a loss or a gradient norm
//! that is not finite, and a rank whose loss is out of line again and again, as with silent data
//! corruption. Steps that are skipped, and a loss that stands still, leave the weights as they are.
//! Everything that is saved from its onset on is spoilt, until the run goes back to before the
//! onset, or the trouble is seen to end in the attempt that showed it last. That a detector begins
//! anew with an attempt is no end. Corrupted weights do not heal at all, and those that are not
//! finite show at once: an attempt that makes steps without them has none. A divergence that does
//! not come back in many reports of a later attempt is over, or is what the run goes on with.
//!
//! An evaluation is bad if its loss is not finite, or above those of the evaluations before it by
//! more than these differ.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use stepwatch_model::{Finding, Flaw, Kind, PassedOver, Severity, Spoiler, Spoilt};

use super::checkpoints::{Checkpoints, median};
use super::stages::Stages;

/// The most evaluations that are kept.
const EVALS_KEPT: usize = 32;
/// The evaluations that one is compared with, and the fewest.
const COMPARED: usize = 5;
const FEWEST: usize = 3;
/// Steps of a new attempt without the trouble after which its numbers are known to be finite: an
/// engineering limit.
const FINITE: u64 = 64;
/// Reports of a later attempt without a divergence after which it is over: an engineering limit.
const CALM: u64 = 500;
/// The least share by which the loss of a bad evaluation is above the others: an engineering limit.
const LEAST: f64 = 0.02;

/// Something that spoils what is saved, and the last attempt that showed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Trouble {
    spoilt: Spoilt,
    attempt: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Trust {
    /// One of a sort.
    troubles: Vec<Trouble>,
    /// The evaluation set that was reported first, and its losses by step, oldest first.
    set: Option<u16>,
    evals: VecDeque<(i64, f64)>,
}

/// What the finding is about, if that may spoil the state of a run.
fn spoiler(v: &Finding) -> Option<Spoiler> {
    match v.kind {
        Kind::Nonfinite => matches!(&*v.signal, "loss" | "grad_norm").then_some(Spoiler::Nonfinite),
        Kind::Divergence => Some(Spoiler::Divergence),
        Kind::RankLoss => Some(Spoiler::RankLoss),
        _ => None,
    }
}

/// Whether what is found spoils the state. A loss that is constant or zero is finite.
fn spoils(v: &Finding) -> bool {
    if v.kind == Kind::Nonfinite {
        return v.severity == Severity::Page && !v.value.is_finite();
    }
    v.severity >= Severity::Ticket
}

impl Trust {
    /// A later onset of what has not ended is not the onset.
    fn began(&mut self, by: Spoiler, onset: i64, attempt: u32) {
        match self.troubles.iter_mut().find(|known| known.spoilt.by == by) {
            Some(had) => (had.spoilt.onset, had.attempt) = (onset.min(had.spoilt.onset), attempt),
            None => self.troubles.push(Trouble { spoilt: Spoilt { by, onset }, attempt }),
        }
    }

    fn ended(&mut self, by: Spoiler, attempt: u32) {
        let heals = by != Spoiler::RankLoss;
        self.troubles.retain(|t| !(heals && t.spoilt.by == by && t.attempt == attempt));
    }

    /// The first of what spoils the state.
    fn first(&self) -> Option<Spoilt> {
        self.troubles.iter().map(|t| t.spoilt).min_by_key(|spoilt| spoilt.onset)
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
    /// Takes note of what was found of the run in this attempt, which has made so many reports.
    pub(crate) fn note_trouble(&mut self, found: &[Finding], attempt: u32, steps: u64) {
        for v in found {
            let Some(by) = spoiler(v) else { continue };
            if v.change.raises() && spoils(v) {
                self.trust.get_or_insert_default().began(by, v.start_step, attempt);
            } else if let Some(trust) = self.trust.as_mut().filter(|_| v.change.ends()) {
                trust.ended(by, attempt);
            }
        }
        let is_over = |t: &Trouble| match t.spoilt.by {
            _ if t.attempt == attempt => false,
            Spoiler::Nonfinite => steps >= FINITE,
            Spoiler::Divergence => steps >= CALM,
            Spoiler::RankLoss => false,
        };
        self.trust.iter_mut().for_each(|trust| trust.troubles.retain(|t| !is_over(t)));
    }

    /// What spoils the checkpoints since its onset.
    pub(crate) fn spoilt(&self) -> Option<Spoilt> {
        self.trust.as_ref()?.first()
    }

    /// Another attempt begins at this step. It left the later checkpoints behind, and the trouble
    /// that began since.
    pub(crate) fn went_back_to(&mut self, step: i64) {
        if let Some(trust) = &mut self.trust {
            trust.troubles.retain(|t| step > t.spoilt.onset);
            // They are of weights that the run has left behind, and judge no new checkpoint.
            trust.evals.retain(|(at, _)| *at < step);
        }
        self.drop_steps(|saved| saved >= step);
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

    /// The last checkpoint, if ranks have not ended their part of its blocking save. A run that
    /// makes steps again had waited for them, whatever was heard of it.
    fn half_saved(&self) -> Option<PassedOver> {
        let step = self.last_step.filter(|_| self.work <= 0.0)?;
        let why = Flaw::Incomplete;
        self.stages()?.is_half_saved(step).then_some(PassedOver { step, why })
    }

    /// The checkpoints that nobody should go back to, oldest first, whatever else is wrong.
    pub(crate) fn flawed(&self) -> Vec<PassedOver> {
        let is_whole =
            |flawed: &PassedOver| flawed.why == Flaw::Incomplete && self.steps.contains(&flawed.step);
        let unfit = self.stages().into_iter().flat_map(Stages::unfit).filter(|flawed| !is_whole(flawed));
        let unread = self.stages().and_then(Stages::failed_load).filter(|step| self.steps.contains(step));
        let unread = unread.map(|step| PassedOver { step, why: Flaw::LoadFailed });
        let bad = self.steps.iter().filter_map(|step| {
            let why = self.trust.as_ref()?.bad_evaluation(*step)?;
            Some(PassedOver { step: *step, why })
        });
        let mut all: Vec<PassedOver> = unfit.chain(self.half_saved()).chain(unread).chain(bad).collect();
        all.sort_by_key(|flawed| flawed.step);
        all.dedup_by_key(|flawed| flawed.step);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Stage, StageReport};
    use stepwatch_model::time::Ts;
    use stepwatch_model::{Change, Sentence};
    use stepwatch_wire::CkptPhase;

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
        let diverged = |onset| found(Kind::Divergence, "loss", Change::Raise, onset, 9.0);
        c.note_trouble(&[diverged(350), diverged(420)], 0, 500);
        assert_eq!(c.spoilt(), Some(Spoilt { by: Spoiler::Divergence, onset: 350 }));
        c.went_back_to(301);
        assert_eq!((c.spoilt(), c.steps.make_contiguous().to_vec()), (None, vec![100, 200, 300]));
        let mut c = evaluated(&[]);
        c.note_trouble(&[diverged(350)], 0, 500);
        c.went_back_to(401);
        let kept = c.steps.make_contiguous().to_vec();
        assert_eq!((onset(&c), kept), (Some(350), vec![100, 200, 300, 400]), "it went on from a spoilt one");
    }

    #[test]
    fn an_evaluation_that_the_run_left_behind_judges_no_new_checkpoint() {
        let mut c = evaluated(&[(100, 2.4), (200, 2.3), (300, 2.25), (500, 9.0)]);
        assert_eq!(steps(&c), [400, 500]);
        c.went_back_to(301);
        c.saved(Some(400));
        assert_eq!(steps(&c), NONE, "only the old weights were evaluated at step 500");
    }

    #[test]
    fn a_checkpoint_that_could_not_be_loaded_is_passed_over_until_it_is() {
        let report = |phase, rank| StageReport {
            stage: Stage::Load,
            phase,
            step: Some(500),
            rank,
            now: Ts(9),
            at: Ts(9),
            secs: None,
            bytes: None,
            seen: false,
        };
        let mut c = evaluated(&[]);
        let mut load = |phase, rank| {
            c.loaded(&report(phase, rank), Ts(0), None);
            c.flawed()
        };
        let unread = [PassedOver { step: 500, why: Flaw::LoadFailed }];
        assert!(load(CkptPhase::Start, 0).is_empty() && load(CkptPhase::Start, 1).is_empty());
        assert_eq!(load(CkptPhase::Fail, 0), unread);
        assert_eq!(load(CkptPhase::End, 1), unread, "the part of another rank was whole");
        assert!(load(CkptPhase::End, 0).is_empty(), "another load, of which only the end was reported");
        assert_eq!(load(CkptPhase::Fail, 0), unread);
        assert!(load(CkptPhase::Start, 0).is_empty(), "it is loaded again");
    }

    /// A rank reports the blocking save of step 600.
    fn save(c: &mut Checkpoints, (phase, rank, at): (CkptPhase, u32, i64)) {
        let (stage, step, now) = (Stage::Save, Some(600), Ts(at));
        let r = StageReport { stage, phase, step, rank, now, at: now, secs: None, bytes: None, seen: false };
        match phase {
            CkptPhase::Start => c.save_began(&r),
            CkptPhase::End => c.save_ended(&r),
            CkptPhase::Fail => c.save_failed(&r, false, "disk full"),
        }
    }

    #[test]
    fn a_save_that_one_rank_has_ended_is_not_whole_while_another_saves() {
        use CkptPhase::{End, Start};
        let mut c = evaluated(&[]);
        [(Start, 0, 1), (Start, 1, 1), (End, 0, 2)].into_iter().for_each(|report| save(&mut c, report));
        assert_eq!(c.flawed(), [PassedOver { step: 600, why: Flaw::Incomplete }]);
        save(&mut c, (End, 1, 3));
        assert!(c.flawed().is_empty(), "all have ended it");
        let mut c = evaluated(&[]);
        [(Start, 0, 1), (Start, 1, 1), (End, 0, 2)].into_iter().for_each(|report| save(&mut c, report));
        c.worked(1.0);
        assert!(c.flawed().is_empty(), "the run goes on");
    }

    #[test]
    fn a_save_that_failed_on_one_rank_is_none_to_go_back_to() {
        use CkptPhase::{End, Fail, Start};
        let (begin, late) = ((Start, 0, 1), (Start, 1, 1));
        for story in [
            [begin, late, (End, 0, 2), (Fail, 1, 3)],
            [begin, late, (Fail, 1, 2), (End, 0, 3)],
            [begin, (Fail, 0, 2), late, (End, 1, 3)],
        ] {
            let mut c = evaluated(&[]);
            story.into_iter().for_each(|report| save(&mut c, report));
            assert_eq!(c.flawed(), [PassedOver { step: 600, why: Flaw::Failed }], "{story:?}");
            assert!(!c.steps.contains(&600) && c.last_step != Some(600), "{story:?}");
            // It is saved again.
            [(Start, 0, 9), (Start, 1, 9), (End, 0, 10), (End, 1, 10)]
                .into_iter()
                .for_each(|report| save(&mut c, report));
            assert!(c.flawed().is_empty() && c.steps.contains(&600), "{story:?}");
        }
    }

    fn found(kind: Kind, signal: &'static str, change: Change, onset: i64, value: f64) -> Finding {
        let severity = if change == Change::Raise { Severity::Page } else { Severity::Info };
        Finding {
            change,
            kind,
            severity,
            signal: signal.into(),
            step: onset,
            ts: Ts(0),
            start_step: onset,
            value,
            expected: 2.0,
            score: 1.0,
            why: Sentence::default(),
            suspects: Vec::new(),
        }
    }

    fn onset(c: &Checkpoints) -> Option<i64> {
        c.spoilt().map(|spoilt| spoilt.onset)
    }

    #[test]
    fn a_restart_ends_no_trouble_and_moves_no_onset() {
        let nan = |change, onset| found(Kind::Nonfinite, "loss", change, onset, f64::NAN);
        let mut c = Checkpoints::default();
        c.note_trouble(&[nan(Change::Raise, 41)], 0, 41);
        c.went_back_to(46);
        c.note_trouble(&[nan(Change::Clear, 41), nan(Change::Raise, 46)], 1, 1);
        assert_eq!(onset(&c), Some(41), "checkpoint 45 is spoilt");
        c.note_trouble(&[nan(Change::Clear, 46)], 1, 30);
        assert_eq!(onset(&c), None, "it was seen to end");
        c.note_trouble(&[nan(Change::Raise, 80)], 1, 40);
        c.note_trouble(&[nan(Change::Clear, 80)], 2, 63);
        assert_eq!(onset(&c), Some(80));
        c.note_trouble(&[], 2, 64);
        assert_eq!(onset(&c), None, "the weights of the next attempt are finite");
    }

    #[test]
    fn a_divergence_that_a_later_attempt_goes_on_without_is_over() {
        let mut c = evaluated(&[]);
        c.note_trouble(&[found(Kind::Divergence, "loss", Change::Raise, 350, 9.0)], 0, 400);
        c.went_back_to(401);
        c.note_trouble(&[], 1, 499);
        assert_eq!(onset(&c), Some(350));
        c.note_trouble(&[], 1, 500);
        assert_eq!(onset(&c), None);
    }

    #[test]
    fn corrupted_weights_do_not_heal() {
        let rank = |change| found(Kind::RankLoss, "loss", change, 41, 9.0);
        let mut c = Checkpoints::default();
        c.note_trouble(&[rank(Change::Raise)], 0, 300);
        c.note_trouble(&[rank(Change::Clear)], 0, 600);
        c.went_back_to(500);
        c.note_trouble(&[], 1, 5000);
        assert_eq!(onset(&c), Some(41));
        c.went_back_to(41);
        assert_eq!(onset(&c), None);
    }

    #[test]
    fn what_leaves_the_weights_as_they_are_spoils_nothing() {
        for (signal, value) in [
            ("loss", 0.0),
            ("loss", 2.5),
            ("loss_scale", 1.0),
            ("skipped_iterations", 0.4),
            ("my/metric", f64::NAN),
        ] {
            let mut c = Checkpoints::default();
            c.note_trouble(&[found(Kind::Nonfinite, signal, Change::Raise, 41, value)], 0, 41);
            assert_eq!(onset(&c), None, "{signal} {value}");
        }
        let mut c = Checkpoints::default();
        c.note_trouble(&[found(Kind::Nonfinite, "grad_norm", Change::Raise, 41, f64::INFINITY)], 0, 41);
        assert_eq!(onset(&c), Some(41));
    }

    #[test]
    fn the_last_two_checkpoints_before_an_onset_are_kept_however_many_follow() {
        let mut c = evaluated(&[]);
        c.note_trouble(&[found(Kind::Divergence, "loss", Change::Raise, 350, 9.0)], 0, 400);
        (6..40).for_each(|n| c.saved(Some(100 * n)));
        let kept = c.steps.make_contiguous().to_vec();
        assert_eq!(kept, [200, 300, 3400, 3500, 3600, 3700, 3800, 3900]);
    }
}

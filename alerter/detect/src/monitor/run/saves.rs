//! The checkpoints that a run reports: blocking saves, the stages after them, and loads.

use std::collections::BTreeSet;

use stepwatch_model::time::{Span, Ts};
use stepwatch_wire::names::ckpt;
use stepwatch_wire::{CkptPhase, Edge, Event, Value};

use super::{ClassMark, Run};
use crate::run::{AttemptBounds, Declared, SaveReport, Stage, StageReport, StartPhase, is_gone};

/// A checkpoint that is this much older than the attempt was found on disk.
const BEFORE_US: Span = Span::secs(60);

impl Run {
    pub(super) fn checkpoint(&mut self, now: Ts, at: Ts, e: &Event) {
        if is_gone(e) {
            return self.state.checkpoints.gone(e);
        }
        let SaveReport { secs, bytes } = SaveReport::from_event(e);
        let (stage, phase) = (Stage::from_event(e), e.ckpt.unwrap_or(CkptPhase::End));
        let seen = e.extra.get(ckpt::SEEN) == Some(&Value::Bool(true));
        let rank = e.rank.unwrap_or(0);
        let r = StageReport { stage, phase, step: e.step, rank, now, at, secs, bytes, seen };
        if stage != Stage::Load && !self.is_before_us(at) {
            let sized = StageReport { step: r.step.or(self.state.last_step), ..r };
            self.state.checkpoints.measured(&sized, e, self.state.world);
        }
        let mut follows = stage;
        match stage {
            Stage::Load => {
                if let Some(starting) = &mut self.state.starting {
                    let edge = if phase == CkptPhase::Start { Edge::Begin } else { Edge::End };
                    starting.goes_through(StartPhase::Load, edge, at, secs);
                }
                let progress = self.state.last_progress;
                let start = self.state.starting.as_ref().map(|starting| starting.since);
                if let Some(lasted) = self.state.checkpoints.loaded(&r, progress, start) {
                    self.state.ledger.declared(Declared::Loading, at, lasted);
                }
            }
            _ if seen => follows = self.seen(&r, e),
            Stage::Save => self.save(&r, e),
            // These block no step, so they explain no slow one.
            Stage::Write | Stage::Upload | Stage::Durable => self.later_stage(&r, e),
        }
        if let Some(path) = e.extra.get(ckpt::PATH).and_then(Value::as_str) {
            let step = e.step.or(self.state.last_step.filter(|_| stage == Stage::Save));
            self.state.checkpoints.note_path(stage, step, path);
        }
        self.state.checkpoints.note_on_disk(&r, e);
        if stage != Stage::Load && !self.is_before_us(at) {
            self.follow(&StageReport { stage: follows, ..r });
        }
    }

    fn later_stage(&mut self, r: &StageReport, e: &Event) {
        let first_step = self.state.attempts.first_step;
        let attempt = AttemptBounds { is_after: self.is_before_us(r.at), first_step };
        self.state.checkpoints.later_stage(r, attempt, why(e));
    }

    /// Whoever looks at the disk saw a checkpoint begin, whole, or given up. A run that reports
    /// nothing but that may wait for its saves. Returns the stage that it is taken for.
    fn seen(&mut self, r: &StageReport, e: &Event) -> Stage {
        let asynchronous = self.state.checkpoints.is_asynchronous();
        let is_reported = self.state.checkpoints.is_reported(r.step);
        let is_old = self.is_before_us(r.at);
        match r.phase {
            // One of an earlier attempt is not in progress.
            CkptPhase::Start if asynchronous || is_reported || is_old => {}
            CkptPhase::Start | CkptPhase::End if !asynchronous => {
                // How long the steps waited for it is what the trainer says.
                let secs = r.secs.filter(|_| !is_reported);
                self.save(&StageReport { stage: Stage::Save, secs, ..*r }, e);
                return Stage::Save;
            }
            CkptPhase::Start | CkptPhase::End => self.later_stage(r, e),
            CkptPhase::Fail => {
                self.later_stage(r, e);
                if !asynchronous {
                    self.state.checkpoints.in_progress = None;
                }
            }
        }
        r.stage
    }

    /// Follows which nodes save at once, and when.
    fn follow(&mut self, r: &StageReport) {
        let f = &mut self.state;
        let Some(stages) = f.checkpoints.stages_mut() else { return };
        let ranks = stages.counted_with(r).filter_map(|rank| f.ranks.get(&rank)?.node.as_deref());
        let nodes = ranks.collect::<BTreeSet<&str>>().len() as u32;
        stages.follow(r, nodes);
    }

    fn is_before_us(&self, at: Ts) -> bool {
        // A checkpoint after a step of this attempt is not older than the attempt, only received
        // late.
        let is_late = self.state.last_step_at.is_some_and(|step| at >= step);
        !is_late && at + BEFORE_US < self.state.attempt_at
    }

    fn save(&mut self, r: &StageReport, e: &Event) {
        let is_old = self.is_before_us(r.at);
        let step = r.step.or(self.state.last_step);
        let c = &mut self.state.checkpoints;
        if is_old && e.ckpt == Some(CkptPhase::End) {
            return c.found_saved(r);
        }
        self.class = self.class.max(Some(ClassMark::Checkpoint));
        match r.phase {
            CkptPhase::Start => c.save_began(&StageReport { step, ..*r }),
            CkptPhase::End => {
                let measured = c.in_progress.map(|since| r.now - since);
                let lasted = r.secs.map(Span::from_secs_f64).or(measured);
                c.save_ended(&StageReport { step, ..*r });
                if let Some(lasted) = lasted {
                    self.state.ledger.declared(Declared::Saving, r.at, lasted);
                }
            }
            CkptPhase::Fail => c.save_failed(r, is_old, why(e)),
        }
    }
}

fn why(e: &Event) -> &str {
    e.text.as_deref().unwrap_or("the trainer reported a failure")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::run::SavingNodes;

    #[test]
    fn all_nodes_that_save_are_counted_however_many_ranks_they_have() {
        let mut run = Run::new("r", Ts(0), &Arc::default());
        let mut out = Vec::new();
        for phase in ["start", "end"] {
            for rank in 0..800 {
                let node = rank / 8;
                let event = format!(
                    r#"{{"k":"ckpt","run":"r","rank":{rank},"node":"n{node}","stage":"write","phase":"{phase}","step":100}}"#
                );
                let e = Event::parse(event.as_bytes()).unwrap();
                run.event(Ts(1000), &format!("n{node}:1"), &e, &mut out);
            }
        }
        let stages = run.state.checkpoints.stages().unwrap();
        let spells: Vec<_> = stages.saving_nodes().flat_map(SavingNodes::spells).collect();
        assert_eq!(
            spells.iter().map(|spell| (spell.nodes, spell.until)).collect::<Vec<_>>(),
            [(100, Some(Ts(1000)))]
        );
    }
}

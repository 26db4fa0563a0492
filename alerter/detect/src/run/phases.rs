//! The phases that a run declares, and what their names mean.

use stepwatch_model::time::{Span, Ts};

use super::ledger::Declared;
use super::{Phase, RunState};
use crate::sample::StepClass;

/// The most phases kept for a run.
const MAX_PHASES: usize = 32;

/// The state of the ledger during a declared phase.
pub(crate) fn declared(name: &str) -> Option<Declared> {
    let lower = name.to_ascii_lowercase();
    let loads = ["load", "restor"].iter().any(|word| lower.contains(word)) && !lower.contains("loader");
    match phase_class(name) {
        _ if loads && !lower.contains("data") => Some(Declared::Loading),
        Some(StepClass::Checkpoint) => Some(Declared::Saving),
        Some(StepClass::Eval) => Some(Declared::Evaluating),
        _ => None,
    }
}

/// The class of the steps around a declared phase.
pub(crate) fn phase_class(name: &str) -> Option<StepClass> {
    let lower = name.to_ascii_lowercase();
    if lower.contains("ckpt") || lower.contains("checkpoint") || lower.contains("save") {
        Some(StepClass::Checkpoint)
    } else if lower.contains("eval") || lower.contains("valid") || lower == "val" || lower == "test" {
        Some(StepClass::Eval)
    } else {
        None
    }
}

impl RunState {
    pub(crate) fn phase_begin(&mut self, at: Ts, name: &str, rank: u32) {
        if !self.phases.contains_key(name) && self.phases.len() >= MAX_PHASES {
            return;
        }
        let p = self.phases.entry(name.to_owned()).or_default();
        p.open.get_or_insert(at);
        p.ranks.insert(rank);
    }

    /// Ends a phase of a rank. Returns the length of the phase once the last rank has left it.
    pub(crate) fn phase_end(&mut self, at: Ts, name: &str, rank: u32) -> Option<Span> {
        let p = self.phases.get_mut(name)?;
        p.ranks.remove(&rank);
        let since = p.open.take_if(|_| p.ranks.is_empty())?;
        p.longest = p.longest.max((at - since).as_secs_f64());
        Some(at - since)
    }

    /// The open phase that explains a pause best, if any.
    pub fn open_phase(&self) -> Option<(&str, &Phase, Ts)> {
        if self.phases.is_empty() {
            return None; // asked for at every step
        }
        let (name, phase) =
            self.phases.iter().filter(|(_, p)| p.open.is_some()).max_by_key(|(_, p)| p.open)?;
        Some((name, phase, phase.open?))
    }
}

//! The phases that a run declares.

use stepwatch_model::time::{Span, Ts};

use super::{Phase, RunState};

/// The most phases kept for a run.
const MAX_PHASES: usize = 32;

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

    /// Forgets the open phases: the processes that were in them are gone.
    pub(crate) fn close_phases(&mut self) {
        self.phases.values_mut().for_each(|p| {
            p.open = None;
            p.ranks.clear();
        });
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

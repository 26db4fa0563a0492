//! How a rank spends its time: the parts of each step (`t`), and phases with a beginning and an
//! end.

use std::collections::BTreeMap;

use stepwatch_wire::names::start;
use stepwatch_wire::{Edge, Metrics, clip_name};

/// The most distinct phase names of one rank, and the most bytes of all of them; later ones are
/// dropped.
const MAX_PHASES: usize = 32;
const MAX_NAMES_BYTES: usize = 1024;

/// Names under which trainers report waiting for the next batch.
const DATA_WAIT: &[&str] = &["data", "data_wait", "data_time", "data_loading", "dataloader"];

#[derive(Debug, Clone, Default)]
pub(super) struct Phases {
    by_name: BTreeMap<Box<str>, Phase>,
    /// The share of the last step that was spent waiting for data.
    pub(super) data_wait: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Phase {
    pub(super) seconds: f64,
    /// The Unix time since which the phase is active.
    pub(super) since: Option<f64>,
}

impl Phases {
    /// Records the parts of a step that took `step_time` seconds.
    pub(super) fn step(&mut self, parts: &Metrics, step_time: Option<f64>) {
        // The report of a step is the end of the start, and of what looks like one later on.
        for name in start::ALL {
            if let Some(phase) = self.by_name.get_mut(*name) {
                phase.since = None;
            }
        }
        for (name, seconds) in parts.iter() {
            if seconds.is_finite() && seconds >= 0.0 {
                if let Some(phase) = self.named(name) {
                    phase.seconds += seconds;
                }
            }
        }
        let wait = DATA_WAIT.iter().find_map(|name| parts.get(name));
        if let (Some(wait), Some(total)) = (wait, step_time.filter(|t| *t > 0.0)) {
            self.data_wait = Some((wait / total).clamp(0.0, 1.0));
        }
    }

    /// Records the beginning or end of a phase; false if there is no room for another name.
    pub(super) fn edge(&mut self, name: &str, edge: Edge, ts: f64) -> bool {
        let Some(phase) = self.named(name) else { return false };
        match edge {
            // A second beginning without an end means that the first end was lost, and with it the
            // duration.
            Edge::Begin => phase.since = Some(ts),
            Edge::End => {
                if let Some(since) = phase.since.take() {
                    phase.seconds += (ts - since).max(0.0);
                }
            }
        }
        true
    }

    /// Ends all phases, because the process has exited.
    pub(super) fn end_all(&mut self) {
        for phase in self.by_name.values_mut() {
            phase.since = None;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Phase)> {
        self.by_name.iter().map(|(name, phase)| (name.as_ref(), *phase))
    }

    fn named(&mut self, name: &str) -> Option<&mut Phase> {
        let name = clip_name(name);
        if !self.by_name.contains_key(name) {
            let bytes: usize = self.by_name.keys().map(|name| name.len()).sum();
            if self.by_name.len() >= MAX_PHASES || bytes + name.len() > MAX_NAMES_BYTES {
                return None;
            }
            self.by_name.insert(name.into(), Phase::default());
        }
        self.by_name.get_mut(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_adds_up_and_data_wait_is_a_share_of_the_step() {
        let mut phases = Phases::default();
        let parts = Metrics::from_iter([("data", 0.5), ("fwd_bwd", 1.5), ("odd", f64::NAN), ("back", -1.0)]);
        phases.step(&parts, Some(2.0));
        phases.step(&parts, Some(2.0));
        assert_eq!(phases.data_wait, Some(0.25));
        let seconds: Vec<_> = phases.iter().map(|(n, p)| (n.to_owned(), p.seconds)).collect();
        assert_eq!(seconds, [("data".to_owned(), 1.0), ("fwd_bwd".to_owned(), 3.0)]);
    }

    #[test]
    fn the_start_is_over_when_a_step_is_reported() {
        let mut phases = Phases::default();
        phases.edge("first_step", Edge::Begin, 10.0);
        phases.edge("init", Edge::Begin, 10.0);
        phases.edge("rendezvous", Edge::Begin, 10.0);
        phases.edge("load", Edge::Begin, 10.0);
        phases.step(&Metrics::default(), None);
        let open: Vec<_> = phases.iter().filter(|(_, p)| p.since.is_some()).map(|(n, _)| n).collect();
        assert_eq!(open, ["load"]);
    }

    #[test]
    fn edges_measure_and_mark() {
        let mut phases = Phases::default();
        phases.edge("eval", Edge::Begin, 10.0);
        assert_eq!(phases.iter().next().map(|(_, p)| p.since), Some(Some(10.0)));
        phases.edge("eval", Edge::End, 14.0);
        phases.edge("eval", Edge::End, 99.0);
        assert_eq!(phases.iter().next().map(|(_, p)| (p.seconds, p.since)), Some((4.0, None)));
        for i in 0..100 {
            phases.edge(&format!("p{i}"), Edge::Begin, 0.0);
        }
        assert_eq!(phases.iter().count(), MAX_PHASES);
        let mut phases = Phases::default();
        for i in 0..100 {
            phases.edge(&format!("{i:0300}"), Edge::Begin, 0.0);
        }
        // Only their beginnings are equal.
        assert_eq!(phases.iter().count(), 1);
        for i in 0..100 {
            phases.edge(&format!("{i:0128}"), Edge::Begin, 0.0);
        }
        assert_eq!(phases.iter().map(|(name, _)| name.len()).sum::<usize>(), MAX_NAMES_BYTES);
    }
}

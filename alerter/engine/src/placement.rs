//! Which runs have ranks on which node, and how fast the GPUs of a run are: what is known of runs and nodes together.
//!
//! Nothing of it is stored: it follows from the runs and the nodes.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(crate) struct Placement {
    runs: BTreeMap<String, BTreeSet<String>>,
    /// By run and node: the median share of their highest clock that its GPUs at work have.
    clocks: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Placement {
    /// A run came to a node; true if it was not there.
    pub(crate) fn came(&mut self, run: &str, node: &str) -> bool {
        match self.runs.get_mut(node) {
            Some(runs) => runs.insert(run.to_owned()),
            None => self.runs.insert(node.to_owned(), BTreeSet::from([run.to_owned()])).is_none(),
        }
    }

    pub(crate) fn left(&mut self, run: &str, node: &str) {
        if let Some(runs) = self.runs.get_mut(node) {
            runs.remove(run);
            if runs.is_empty() {
                self.runs.remove(node);
            }
        }
        if let Some(clocks) = self.clocks.get_mut(run) {
            clocks.remove(node);
            if clocks.is_empty() {
                self.clocks.remove(run);
            }
        }
    }

    /// The runs with ranks on a node.
    pub(crate) fn on(&self, node: &str) -> impl Iterator<Item = &String> {
        self.runs.get(node).into_iter().flatten()
    }

    pub(crate) fn set_clock(&mut self, node: &str, clock: Option<f64>) {
        for run in self.runs.get(node).into_iter().flatten() {
            match (self.clocks.get_mut(run), clock) {
                (Some(clocks), Some(clock)) => drop(clocks.insert(node.to_owned(), clock)),
                (Some(clocks), None) => drop(clocks.remove(node)),
                (None, Some(clock)) => {
                    self.clocks.insert(run.clone(), BTreeMap::from([(node.to_owned(), clock)]));
                }
                (None, None) => {}
            }
        }
    }

    /// The median over the nodes of a run without one of them, and how many these are.
    pub(crate) fn clock_beside(&self, run: &str, node: &str) -> Option<(f64, usize)> {
        let others = self.clocks.get(run)?.iter().filter(|(name, _)| *name != node);
        let mut clocks: Vec<f64> = others.map(|(_, clock)| *clock).collect();
        let (at, n) = (clocks.len() / 2, clocks.len());
        (n > 0).then(|| (*clocks.select_nth_unstable_by(at, f64::total_cmp).1, n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_come_and_go() {
        let mut p = Placement::default();
        assert!(p.came("a", "n1") && p.came("a", "n2") && p.came("b", "n2") && !p.came("a", "n2"));
        p.left("a", "n1");
        p.came("a", "n3");
        let on = |p: &Placement, node: &str| p.on(node).cloned().collect::<Vec<_>>();
        assert_eq!((on(&p, "n1"), on(&p, "n2")), (vec![], vec!["a".into(), "b".into()]));
        p.set_clock("n2", Some(0.5));
        p.set_clock("n3", Some(0.9));
        assert_eq!(p.clock_beside("a", "n2"), Some((0.9, 1)));
        assert_eq!(p.clock_beside("b", "n2"), None);
        p.left("a", "n2");
        p.left("a", "n3");
        assert_eq!((on(&p, "n2"), on(&p, "n3")), (vec!["b".to_owned()], vec![]));
        assert_eq!((p.clocks.len(), p.runs.len()), (1, 1), "nothing is left behind");
    }
}

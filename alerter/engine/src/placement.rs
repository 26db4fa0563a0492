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
    /// Takes over where a run is; gives the nodes that are new to it.
    pub(crate) fn moved(&mut self, run: &str, nodes: &BTreeMap<String, u32>) -> Vec<String> {
        let had = self.clocks.entry(run.to_owned()).or_default();
        had.retain(|node, _| nodes.contains_key(node));
        for (_, runs) in self.runs.iter_mut().filter(|(node, _)| !nodes.contains_key(*node)) {
            runs.remove(run);
        }
        let mut new = Vec::new();
        for node in nodes.keys() {
            match self.runs.get_mut(node) {
                Some(runs) if runs.contains(run) => continue,
                Some(runs) => drop(runs.insert(run.to_owned())),
                None => drop(self.runs.insert(node.clone(), BTreeSet::from([run.to_owned()]))),
            }
            new.push(node.clone());
        }
        self.runs.retain(|_, runs| !runs.is_empty());
        new
    }

    pub(crate) fn gone(&mut self, run: &str) {
        self.moved(run, &BTreeMap::new());
        self.clocks.remove(run);
    }

    /// The runs with ranks on a node.
    pub(crate) fn on(&self, node: &str) -> impl Iterator<Item = &String> {
        self.runs.get(node).into_iter().flatten()
    }

    pub(crate) fn set_clock(&mut self, node: &str, clock: Option<f64>) {
        for run in self.runs.get(node).into_iter().flatten() {
            let Some(clocks) = self.clocks.get_mut(run) else { continue };
            match clock {
                Some(clock) => drop(clocks.insert(node.to_owned(), clock)),
                None => drop(clocks.remove(node)),
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

    fn nodes(names: &[&str]) -> BTreeMap<String, u32> {
        names.iter().map(|n| ((*n).to_owned(), 8)).collect()
    }

    #[test]
    fn runs_come_and_go() {
        let mut p = Placement::default();
        assert_eq!(p.moved("a", &nodes(&["n1", "n2"])), ["n1", "n2"]);
        assert_eq!(p.moved("b", &nodes(&["n2"])), ["n2"]);
        assert_eq!(p.moved("a", &nodes(&["n2", "n3"])), ["n3"]);
        let on = |p: &Placement, node: &str| p.on(node).cloned().collect::<Vec<_>>();
        assert_eq!((on(&p, "n1"), on(&p, "n2")), (vec![], vec!["a".into(), "b".into()]));
        p.set_clock("n2", Some(0.5));
        p.set_clock("n3", Some(0.9));
        assert_eq!(p.clock_beside("a", "n2"), Some((0.9, 1)));
        assert_eq!(p.clock_beside("b", "n2"), None);
        p.gone("a");
        assert_eq!((on(&p, "n2"), on(&p, "n3")), (vec!["b".to_owned()], vec![]));
    }
}

//! Keeps which runs have ranks on which node, how fast the GPUs of a run are, and which nodes a job
//! has.
//!
//! It is not stored, because it follows from the runs and the nodes.

use std::collections::{BTreeMap, BTreeSet};

use stepwatch_model::time::{Span, Ts};

/// How often exporters read their GPUs: a look sooner finds nothing new about a job.
const LOOK_EVERY: Span = Span::secs(10);

#[derive(Debug, Default)]
pub(crate) struct Placement {
    runs: BTreeMap<String, BTreeSet<String>>,
    clocks: BTreeMap<String, Clocks>,
    jobs: Jobs,
}

/// Jobs that hold GPUs, by what they are called.
#[derive(Debug, Default)]
struct Jobs {
    nodes: BTreeMap<String, Nodes>,
    by_node: BTreeMap<String, Vec<String>>,
    /// When the jobs of which a node is the first were last looked at.
    looked: BTreeMap<String, Ts>,
}

#[derive(Debug, Default)]
struct Nodes {
    names: BTreeSet<String>,
    /// When a node last came or left.
    changed_at: Ts,
}

/// The median share of their highest clock that the GPUs at work on each node of a run have.
#[derive(Debug, Default)]
struct Clocks {
    by_node: BTreeMap<String, f64>,
    /// The same in order, because the median is needed at every reading of each of thousands of
    /// nodes.
    sorted: Vec<f64>,
}

impl Clocks {
    fn set(&mut self, node: &str, clock: f64) {
        match self.by_node.get_mut(node) {
            Some(had) if had.total_cmp(&clock).is_eq() => return,
            Some(had) => {
                let old = core::mem::replace(had, clock);
                self.unsort(old);
            }
            None => {
                self.by_node.insert(node.to_owned(), clock);
            }
        }
        self.sorted.insert(self.rank(clock), clock);
    }

    fn remove(&mut self, node: &str) {
        if let Some(old) = self.by_node.remove(node) {
            self.unsort(old);
        }
    }

    fn unsort(&mut self, clock: f64) {
        let at = self.rank(clock);
        if at < self.sorted.len() {
            self.sorted.remove(at);
        }
    }

    /// The number of clocks that are lower.
    fn rank(&self, clock: f64) -> usize {
        self.sorted.partition_point(|c| c.total_cmp(&clock).is_lt())
    }

    /// The upper median without a node, and of how many.
    fn median_without(&self, node: &str) -> Option<(f64, usize)> {
        let own = self.by_node.get(node).map(|clock| self.rank(*clock));
        let n = self.sorted.len() - usize::from(own.is_some());
        let at = n / 2 + usize::from(own.is_some_and(|own| own <= n / 2));
        (n > 0).then_some((*self.sorted.get(at)?, n))
    }
}

impl Placement {
    /// Records that a run came to a node; true if it was not there.
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
            if clocks.by_node.is_empty() {
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
                (Some(clocks), Some(clock)) => clocks.set(node, clock),
                (Some(clocks), None) => clocks.remove(node),
                (None, Some(clock)) => self.clocks.entry(run.clone()).or_default().set(node, clock),
                (None, None) => {}
            }
        }
    }

    /// Sets which jobs hold GPUs of a node.
    pub(crate) fn set_jobs<'a>(&mut self, now: Ts, node: &str, jobs: impl Iterator<Item = &'a str>) {
        let Jobs { nodes, by_node, looked } = &mut self.jobs;
        let jobs: Vec<String> = jobs.map(str::to_owned).collect();
        let had = by_node.remove(node).unwrap_or_default();
        for job in had.iter().filter(|job| !jobs.contains(job)) {
            if let Some(had) = nodes.get_mut(job) {
                had.names.remove(node);
                had.changed_at = now;
                if had.names.is_empty() {
                    nodes.remove(job);
                }
            }
        }
        for job in jobs.iter().filter(|job| !had.contains(job)) {
            let had = nodes.entry(job.clone()).or_default();
            had.names.insert(node.to_owned());
            had.changed_at = now;
        }
        // The next evaluation must not wait.
        looked.remove(node);
        if !jobs.is_empty() {
            by_node.insert(node.to_owned(), jobs);
        }
    }

    /// The jobs that hold GPUs of a node.
    pub(crate) fn jobs_on(&self, node: &str) -> impl Iterator<Item = &str> {
        self.jobs.by_node.get(node).into_iter().flatten().map(String::as_str)
    }

    /// The nodes of a job, in the order of their names.
    pub(crate) fn nodes_of(&self, job: &str) -> impl Iterator<Item = &String> {
        self.jobs.nodes.get(job).into_iter().flat_map(|nodes| &nodes.names)
    }

    /// When a node last came to a job or left it.
    pub(crate) fn job_changed_at(&self, job: &str) -> Ts {
        self.jobs.nodes.get(job).map(|nodes| nodes.changed_at).unwrap_or_default()
    }

    /// Whether the jobs of a node are to be looked at again: that goes through all nodes of a job.
    pub(crate) fn looks_at_jobs(&mut self, now: Ts, node: &str) -> bool {
        let Jobs { by_node, looked, .. } = &mut self.jobs;
        if !by_node.contains_key(node) {
            looked.remove(node);
            return true;
        }
        let is_due = looked.get(node).is_none_or(|at| now - *at >= LOOK_EVERY);
        if is_due {
            looked.insert(node.to_owned(), now);
        }
        is_due
    }

    /// The median over the nodes of a run without one of them, and how many these are.
    pub(crate) fn clock_beside(&self, run: &str, node: &str) -> Option<(f64, usize)> {
        self.clocks.get(run)?.median_without(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_median_is_that_of_the_others(
            settings in proptest::collection::vec((0u8..12, proptest::option::weighted(0.8, 0u8..6)), 1..60),
            without in 0u8..12,
        ) {
            let (mut clocks, mut plain) = (Clocks::default(), BTreeMap::new());
            for (node, clock) in settings {
                if let Some(clock) = clock.map(f64::from) {
                    clocks.set(&node.to_string(), clock);
                    plain.insert(node, clock);
                } else {
                    clocks.remove(&node.to_string());
                    plain.remove(&node);
                }
            }
            let mut others: Vec<f64> = plain.iter().filter(|(n, _)| **n != without).map(|(_, c)| *c).collect();
            others.sort_by(f64::total_cmp);
            let want = others.get(others.len() / 2).map(|median| (*median, others.len()));
            prop_assert_eq!(clocks.median_without(&without.to_string()), want);
        }
    }

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

    #[test]
    fn jobs_come_and_go() {
        let mut p = Placement::default();
        p.set_jobs(Ts(1), "n2", ["1", "2"].into_iter());
        p.set_jobs(Ts(2), "n1", ["1"].into_iter());
        let nodes = |p: &Placement, job: &str| p.nodes_of(job).cloned().collect::<Vec<_>>();
        assert_eq!((nodes(&p, "1"), nodes(&p, "2")), (vec!["n1".into(), "n2".into()], vec!["n2".into()]));
        assert_eq!((p.job_changed_at("1"), p.job_changed_at("2")), (Ts(2), Ts(1)));
        p.set_jobs(Ts(3), "n2", ["2"].into_iter());
        assert_eq!((p.job_changed_at("1"), p.job_changed_at("2")), (Ts(3), Ts(1)));
        p.set_jobs(Ts(4), "n1", [].into_iter());
        assert_eq!((nodes(&p, "1"), nodes(&p, "2")), (vec![], vec!["n2".into()]));
        assert_eq!(p.jobs_on("n2").collect::<Vec<_>>(), ["2"]);
    }
}

//! Publishes events for readers of the event stream.

use std::sync::Arc;

use stepwatch_model::time::Ts;

use super::Runtime;
use super::view::RuntimeSnapshot;
use crate::events::{NodeNews, STEP_EVERY, StepNews};
use crate::node_snapshot::NodeSnapshot;

impl Runtime {
    /// Publishes the runs that stepped and the nodes that changed since the last snapshot.
    pub(super) fn publish_events(&mut self, now: Ts, view: &RuntimeSnapshot) {
        // A reader that reconnects does not need old steps.
        if self.happened.has_readers() {
            self.publish_steps(now, view);
        }
        self.publish_nodes(view);
    }

    fn publish_steps(&mut self, now: Ts, view: &RuntimeSnapshot) {
        let routing = self.read_model.routing();
        if self.stepped.len() > 2 * view.runs.len() + 16 {
            self.stepped.clear(); // runs that are forgotten
        }
        for run in &view.runs {
            let Some(step) = run.last_step else { continue };
            let before = self.stepped.get(&run.run);
            if before.is_some_and(|(at, had)| *had == step || now - *at < STEP_EVERY) {
                continue;
            }
            self.stepped.insert(run.run.clone(), (now, step));
            self.happened.step(StepNews {
                run: run.run.clone(),
                labels: routing.labels(run),
                attempt: run.attempt,
                step,
                at: run.last_step_at,
                signals: self.series.latest(&run.run),
            });
        }
    }

    fn publish_nodes(&self, view: &RuntimeSnapshot) {
        let before = self.views.get();
        let mut old = before.nodes.iter().peekable();
        for node in &*view.nodes {
            while old.next_if(|had| had.node < node.node).is_some() {}
            let had = old.next_if(|had| had.node == node.node);
            if had.is_none_or(|had| is_news(had, node)) {
                self.happened.node(self.node_news(node, view));
            }
        }
    }

    fn node_news(&self, node: &NodeSnapshot, view: &RuntimeSnapshot) -> NodeNews {
        let routing = self.read_model.routing();
        let found = node.runs.iter().filter_map(|name| view.runs.iter().find(|run| run.run == *name));
        let (runs, labels) = found.map(|run| (run.run.clone(), routing.labels(run))).unzip();
        let (worst, silent) = (node.worst(), node.silent);
        NodeNews { node: node.node.clone(), worst, silent, runs, labels }
    }
}

fn is_news(had: &Arc<NodeSnapshot>, node: &Arc<NodeSnapshot>) -> bool {
    let state = |node: &NodeSnapshot| (node.worst(), node.silent);
    !Arc::ptr_eq(had, node) && (state(had) != state(node) || had.runs != node.runs)
}

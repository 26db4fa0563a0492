//! The engine's view of sources: which runs and nodes each reports, and which sources answer.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::refusal::Refused;
use super::run::Run;
use super::{Key, Monitor};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Detected, NO_RUN};

/// How long a source that reports nothing of a run still counts as one of its sources.
const FEEDS_FOR: Span = Span::secs(900);

/// A source, and the runs that it reports. When it is lost, nothing is known of them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Source {
    pub(super) runs: BTreeSet<String>,
    /// The nodes whose events it sent: one, unless other exporters send through it.
    pub(super) nodes: BTreeSet<String>,
    /// The source answers again after an interruption, and may be on another node now.
    #[serde(skip)]
    pub(super) anew: bool,
    /// The source answers, as far as is known.
    #[serde(skip)]
    pub(super) answers: bool,
    /// By the configuration, other exporters send their events through it.
    #[serde(skip)]
    pub(super) many_nodes: bool,
    /// It owns the node that it names; `displaced` if another source took the node over.
    #[serde(skip)]
    pub(super) owns: bool,
    #[serde(skip)]
    pub(super) displaced: bool,
    /// Start of the exporter that answers there, as its cursor identifies it.
    #[serde(skip)]
    pub(super) boot: String,
    /// When its last record arrived.
    #[serde(skip)]
    pub(super) heard_at: Ts,
    /// The times at which it named another node than before.
    #[serde(skip)]
    pub(super) moves: Vec<Ts>,
    /// The number of ranks that it reports, over all runs.
    #[serde(skip)]
    pub(super) ranks: u32,
    /// The number of runs of other users that it reports steps of, and about which people were
    /// notified.
    #[serde(skip)]
    pub(super) disputes: u32,
    #[serde(skip)]
    pub(super) looked_for_room: Ts,
    #[serde(skip)]
    pub(super) refused: Refused,
}

/// The sources that report each node. Not stored, because it follows from the sources.
#[derive(Debug, Default)]
pub(super) struct Speakers(BTreeMap<String, BTreeSet<String>>);

impl Source {
    /// The node that it reports, if it reports only one.
    pub(super) fn node(&self) -> Option<&String> {
        self.nodes.first().filter(|_| self.nodes.len() == 1)
    }
}

impl Speakers {
    pub(super) fn note(&mut self, source: &str, s: &Source) {
        for node in &s.nodes {
            self.0.entry(node.clone()).or_default().insert(source.to_owned());
        }
    }

    pub(super) fn of_node(&self, node: &str) -> impl Iterator<Item = &String> {
        self.0.get(node).into_iter().flatten()
    }

    fn forget(&mut self, source: &str, nodes: &BTreeSet<String>) {
        for node in nodes {
            if self.0.get_mut(node).is_some_and(|of| of.remove(source) && of.is_empty()) {
                self.0.remove(node);
            }
        }
    }
}

impl Monitor {
    /// Records that a source reports a run.
    pub(super) fn feeds(&mut self, source: &str, name: &str) {
        if !self.sources.get(source).is_some_and(|s| s.runs.contains(name)) {
            self.sources.entry(source.to_owned()).or_default().runs.insert(name.to_owned());
            self.dirty.insert(Key::Source(source.to_owned()));
        }
    }

    /// Records which node a source reports. At most two nodes are kept, because only one or several
    /// matters. An address may later belong to another machine.
    pub(super) fn speaks_for(&mut self, source: &str, node: &str) {
        let known = |s: &Source| s.answers && !s.anew && (s.nodes.contains(node) || s.nodes.len() > 1);
        if self.sources.get(source).is_some_and(known) {
            return;
        }
        let s = self.sources.entry(source.to_owned()).or_default();
        let mut about = s.nodes.clone();
        self.speakers.forget(source, &about);
        if core::mem::take(&mut s.anew) {
            s.nodes.clear();
        }
        s.answers = true;
        if s.nodes.len() < 2 {
            s.nodes.insert(node.to_owned());
        }
        self.speakers.note(source, s);
        self.dirty.insert(Key::Source(source.to_owned()));
        about.insert(node.to_owned());
        about.iter().for_each(|node| self.hear_of(node));
    }

    /// Marks a source as a recording of many exporters, so that it may report any node and run.
    pub fn speaks_for_many(&mut self, source: &str) {
        self.sources.entry(source.to_owned()).or_default().many_nodes = true;
    }

    /// Records that a source answers, and whether it may report more than its own node.
    pub(super) fn is_up(&mut self, now: Ts, source: &str, many_nodes: bool) {
        let s = self.sources.entry(source.to_owned()).or_default();
        (s.many_nodes, s.heard_at) = (many_nodes, now);
        self.answers(source, true);
    }

    /// Records whether a source answers.
    pub(super) fn answers(&mut self, source: &str, answers: bool) {
        let Some(s) = self.sources.get_mut(source) else { return };
        s.anew |= answers;
        s.answers = answers;
        for node in s.nodes.clone() {
            self.hear_of(&node);
        }
    }

    pub(super) fn forget_source(&mut self, source: &str) {
        if let Some(s) = self.sources.remove(source) {
            self.speakers.forget(source, &s.nodes);
            self.owners.retain(|_, owner| owner != source);
            s.nodes.iter().for_each(|node| self.hear_of(node));
        }
        self.dirty.insert(Key::Source(source.to_owned()));
    }

    /// Records in the runs of a node whether another source reports the node, while one does not
    /// answer. A source of many nodes does not count: it answers also when they are gone.
    fn hear_of(&mut self, node: &str) {
        let speakers = self.speakers.0.get(node).into_iter().flatten().filter_map(|s| self.sources.get(s));
        let (mut speaks, mut silent) = (false, false);
        for s in speakers {
            speaks |= s.answers && s.node().is_some();
            silent |= !s.answers;
        }
        for name in self.placement.on(node).map(String::as_str).chain([NO_RUN]) {
            let Some(run) = self.runs.get_mut(name) else { continue };
            if speaks && silent {
                run.state.heard_elsewhere.insert(node.to_owned());
            } else {
                run.state.heard_elsewhere.remove(node);
            }
        }
    }

    pub(super) fn each_run_of(
        &mut self,
        now: Ts,
        source: &str,
        out: &mut Vec<Detected>,
        act: impl Fn(&mut Run),
    ) {
        let mut fed = self.sources.get(source).map(|s| s.runs.clone()).unwrap_or_default();
        // A source of a node that a run has left for good, or whose run is over, does not count.
        fed.retain(|name| self.runs.get(name).is_some_and(|r| r.state.is_fed_by(source, now, FEEDS_FOR)));
        // The loss of a source that feeds no run is reported under `NO_RUN`. Once it feeds a run,
        // its loss is reported of that run.
        self.runs.entry(NO_RUN.to_owned()).or_insert_with(|| Run::new(NO_RUN, now, &self.config));
        for name in &fed {
            self.with_run(now, name, out, |run, findings| {
                act(run);
                run.look(now, findings);
            });
        }
        let idle = fed.is_empty();
        self.with_run(now, NO_RUN, out, |run, findings| {
            if idle {
                act(run)
            } else {
                run.state.source_gone(source)
            }
            run.look(now, findings);
        });
    }
}

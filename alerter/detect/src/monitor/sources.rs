//! The engine's side of sources: which runs and nodes each tells of, and which of them answer.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::admission::Refused;
use super::run::Run;
use super::{Key, Monitor};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Detected, NO_RUN};

/// How long a source that sent nothing of a run still counts as one of its own.
const FEEDS_FOR: Span = Span::secs(900);

/// Which runs a source feeds: when it is lost, they are blind.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Source {
    pub(super) runs: BTreeSet<String>,
    /// The nodes whose events came over it: one, unless others send theirs to it.
    pub(super) nodes: BTreeSet<String>,
    /// It answered anew, and may have another node by now.
    #[serde(skip)]
    pub(super) anew: bool,
    /// It answers, as far as is known.
    #[serde(skip)]
    pub(super) answers: bool,
    /// The configuration says that others send theirs to it.
    #[serde(skip)]
    pub(super) many_nodes: bool,
    /// The node that it names is its own; or was, until another source took it over.
    #[serde(skip)]
    pub(super) owns: bool,
    #[serde(skip)]
    pub(super) displaced: bool,
    /// Of the exporter that answers there.
    #[serde(skip)]
    pub(super) boot: String,
    /// When it last said anything.
    #[serde(skip)]
    pub(super) heard_at: Ts,
    /// When it named another node than before.
    #[serde(skip)]
    pub(super) moves: Vec<Ts>,
    /// Ranks that it reports, of all runs.
    #[serde(skip)]
    pub(super) ranks: u32,
    /// Runs of other users that it reports steps of, of which people were told.
    #[serde(skip)]
    pub(super) disputes: u32,
    #[serde(skip)]
    pub(super) looked_for_room: Ts,
    #[serde(skip)]
    pub(super) refused: Refused,
}

/// By node, the sources that tell of it. Not stored: it follows from the sources.
#[derive(Debug, Default)]
pub(super) struct Speakers(BTreeMap<String, BTreeSet<String>>);

impl Source {
    /// The node that it speaks for, if it speaks for one only.
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

    pub(super) fn of(&self, node: &str) -> impl Iterator<Item = &String> {
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
    /// Remembers that a source tells of a run.
    pub(super) fn feeds(&mut self, source: &str, name: &str) {
        if !self.sources.get(source).is_some_and(|s| s.runs.contains(name)) {
            self.sources.entry(source.to_owned()).or_default().runs.insert(name.to_owned());
            self.dirty.insert(Key::Source(source.to_owned()));
        }
    }

    /// Remembers of which node a source tells; of more than two there is no need to know. An
    /// address may be given to another machine.
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

    /// A source is a recording of many, and not one exporter.
    pub fn speaks_for_many(&mut self, source: &str) {
        self.sources.entry(source.to_owned()).or_default().many_nodes = true;
    }

    /// Takes note that a source answers, and whether it speaks for more than its own node.
    pub(super) fn is_up(&mut self, now: Ts, source: &str, many_nodes: bool) {
        let s = self.sources.entry(source.to_owned()).or_default();
        (s.many_nodes, s.heard_at) = (many_nodes, now);
        self.answers(source, true);
    }

    /// Takes note that a source answers, or does not.
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

    /// Lets the runs of a node know whether another source speaks for it than one that does not
    /// answer. One that others send theirs to answers also when they are gone.
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
        // A node that a run has left for good, or whose run is over, is nobody's eyes any more.
        fed.retain(|name| self.runs.get(name).is_some_and(|r| r.state.is_fed_by(source, now, FEEDS_FOR)));
        // A source that feeds no run is still somebody's node; once it feeds one, that run speaks
        // for it.
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

//! Whose a file is: what is put on every event of it.

use std::path::Path;
use std::sync::Arc;

use stepwatch_wire::Event;

use super::{TailConfig, name};

/// What the configuration and the path say about every event of the file.
pub(super) struct Labels {
    pub(super) path: Arc<Path>,
    /// The path as the name of a source.
    pub(super) source: Arc<str>,
    run: Option<String>,
    fallback_run: String,
    /// What those who write it are of.
    owner: Option<String>,
    rank: Option<u32>,
    node: Option<String>,
    /// What a trainer would have said when it began.
    hello: Option<Event>,
    /// Whose the last event was.
    pub(super) last: Option<(String, Option<u32>)>,
}

impl Labels {
    pub(super) fn new(config: &TailConfig, path: &Path) -> Self {
        Self {
            path: path.into(),
            source: path.to_string_lossy().into(),
            run: config.run.clone(),
            fallback_run: config.found.clone().unwrap_or_else(|| name::run_of(path)),
            owner: None,
            rank: config.rank,
            node: config.node.clone(),
            hello: config.hello(),
            last: None,
        }
    }

    /// The run and the rank of events that name none.
    pub(super) fn default_run(&self) -> (&str, u32) {
        (self.own(), self.rank.unwrap_or(0))
    }

    /// The run of what names none.
    fn own(&self) -> &str {
        self.run.as_deref().or(self.owner.as_deref()).unwrap_or(&self.fallback_run)
    }

    /// Nothing but its path says whose it is.
    pub(super) fn is_named_by_path(&self) -> bool {
        self.own() == self.fallback_run
    }

    /// Puts it to another run, and returns what it was of.
    pub(super) fn own_by(&mut self, run: Option<String>) -> String {
        let before = self.own().to_owned();
        self.owner = run;
        before
    }

    pub(super) fn put_on(&self, event: &mut Event) {
        if self.run.is_some() || event.run.is_none() {
            event.run = Some(self.own().to_owned());
        }
        event.rank = self.rank.or(event.rank);
        if self.node.is_some() {
            event.node.clone_from(&self.node);
        }
    }

    pub(super) fn remember(&mut self, event: &Event) {
        let Some(run) = &event.run else { return };
        let same = self.last.as_ref().is_some_and(|(last, rank)| last == run && *rank == event.rank);
        if !same {
            self.last = Some((run.clone(), event.rank));
        }
    }

    /// There is something to say of runs.
    pub(super) fn introduces(&self) -> bool {
        self.hello.is_some()
    }

    /// What must be known of the run of this event before it, if `greet` says so.
    pub(super) fn hello(&self, event: &Event, greet: impl FnOnce(&str) -> bool) -> Option<Event> {
        let (hello, run) = (self.hello.as_ref()?, event.run.as_ref()?);
        greet(run).then(|| Event {
            ts: event.ts,
            run: event.run.clone(),
            rank: event.rank,
            node: event.node.clone(),
            ..hello.clone()
        })
    }
}

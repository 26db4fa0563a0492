//! The labels of a file: the run, rank and other fields that every event of it gets.

use std::path::Path;
use std::sync::Arc;

use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind};

use super::{TailConfig, name};

/// The labels from the configuration and the path.
pub(super) struct Labels {
    pub(super) path: Arc<Path>,
    /// The path as the name of a source.
    pub(super) source: Arc<str>,
    run: Option<String>,
    fallback_run: String,
    /// The run of the processes that write the log.
    owner: Option<String>,
    /// Whether the rule gave the name. Then a name in a file of records does not count.
    ruled: bool,
    rank: Option<u32>,
    node: Option<String>,
    /// The `hello` that a trainer would have sent when it began.
    hello: Option<Event>,
    /// The run and rank of the last event.
    pub(super) last: Option<(String, Option<u32>)>,
    /// The model that the file itself described.
    said: Option<Event>,
    /// Whether the label must be published again, because it was read before a restart.
    repeat: bool,
    /// Whether the label is not saved yet.
    news: bool,
}

impl Labels {
    pub(super) fn new(config: &TailConfig, path: &Path) -> Self {
        Self {
            path: path.into(),
            source: path.to_string_lossy().into(),
            run: config.run.clone(),
            fallback_run: config.found.clone().unwrap_or_else(|| name::run_of(path)),
            owner: None,
            ruled: false,
            rank: config.rank,
            node: config.node.clone(),
            hello: config.hello(),
            last: None,
            said: None,
            repeat: false,
            news: false,
        }
    }

    /// Restores the model that was published before a restart, as [`Self::said`] returned it.
    pub(super) fn repeat(&mut self, said: Option<&str>) {
        self.said = said.and_then(|text| Event::parse(text.as_bytes()).ok());
        self.repeat = self.said.is_some();
    }

    pub(super) fn said(&self) -> Option<String> {
        self.said.as_ref().map(Event::to_json)
    }

    /// The model to publish again before this event: it is the first since a restart, or its run
    /// has been forgotten.
    pub(super) fn said_before(
        &mut self,
        first: Option<&Event>,
        follows: impl FnOnce(&str) -> bool,
    ) -> Option<Event> {
        let (first, said) = (first?, self.said.as_ref()?);
        let known = first.run.as_deref().is_some_and(follows);
        let again = std::mem::take(&mut self.repeat) || !known;
        again.then(|| Event { ts: first.ts, run: first.run.clone(), ..said.clone() })
    }

    /// Forgets the published model, because it belongs to another run.
    pub(super) fn forget_model(&mut self) {
        (self.said, self.repeat, self.news) = (None, false, true);
    }

    /// Whether there is something to save. The call resets it.
    pub(super) fn has_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// The run and the rank of events that name none.
    pub(super) fn default_run(&self) -> (&str, u32) {
        (self.own(), self.rank.unwrap_or(0))
    }

    /// The run of events that name none.
    fn own(&self) -> &str {
        self.run.as_deref().or(self.owner.as_deref()).unwrap_or(&self.fallback_run)
    }

    /// Whether the run is known only from the path.
    pub(super) fn is_named_by_path(&self) -> bool {
        !self.ruled && self.own() == self.fallback_run
    }

    /// Sets the run of the file, and returns the previous one.
    pub(super) fn own_by(&mut self, run: Option<String>, ruled: bool) -> String {
        let before = self.own().to_owned();
        (self.owner, self.ruled) = (run, ruled);
        before
    }

    /// Whether the configuration names the run.
    pub(super) fn is_configured(&self) -> bool {
        self.run.is_some()
    }

    /// Sets run, rank and node of an event. Returns true if the file named a node, which only the
    /// configuration may. `records` means a tracker's file, whose name for the run is only for
    /// people.
    pub(super) fn put_on(&self, event: &mut Event, records: bool) -> bool {
        if self.run.is_some() || event.run.is_none() || (records && self.ruled) {
            event.run = Some(self.own().to_owned());
        }
        event.rank = self.rank.or(event.rank);
        let foreign = event.node.take().is_some_and(|node| Some(&node) != self.node.as_ref());
        event.node.clone_from(&self.node);
        foreign
    }

    pub(super) fn remember(&mut self, event: &Event) {
        let tells = ["model", hello::SAVES].iter().any(|key| event.extra.contains_key(*key));
        if event.kind == Kind::Hello && tells {
            (self.said, self.news, self.repeat) = (Some(event.clone()), true, false);
        }
        let Some(run) = &event.run else { return };
        let same = self.last.as_ref().is_some_and(|(last, rank)| last == run && *rank == event.rank);
        if !same {
            self.last = Some((run.clone(), event.rank));
        }
    }

    /// Whether runs have a `hello` to publish.
    pub(super) fn introduces(&self) -> bool {
        self.hello.is_some()
    }

    /// The `hello` that must come before this event, if `greet` requires one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tracker_calls_a_run_counts_where_the_rule_does_not() {
        let mut labels = Labels::new(&TailConfig::for_path(Path::new("x")), Path::new("/w/run-a1b2.wandb"));
        let named = |labels: &Labels, own: Option<&str>, records| {
            let mut event = Event { run: own.map(str::to_owned), ..Event::step("", 1) };
            labels.put_on(&mut event, records);
            event.run.unwrap()
        };
        assert_eq!([named(&labels, Some("lucky-3"), true), named(&labels, None, true)], ["lucky-3", "a1b2"]);
        labels.own_by(Some("a1b2".into()), false);
        assert_eq!(named(&labels, Some("lucky-3"), true), "lucky-3");
        labels.own_by(Some("train-7".into()), true);
        assert_eq!(
            [named(&labels, Some("lucky-3"), true), named(&labels, None, true)],
            ["train-7", "train-7"]
        );
        assert_eq!(named(&labels, Some("given"), false), "given", "a line that names its run");
    }
}

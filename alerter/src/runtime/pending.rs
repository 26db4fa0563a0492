//! The decisions of the engine that the store does not have yet.

use core::{fmt, mem};
use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use stepwatch_detect::Run;
use stepwatch_detect::run::{RunHour, Totals};
use stepwatch_engine::{Engine, StatePart};
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Effect, TimelineEntry};
use stepwatch_respond::external::Firing;
use stepwatch_wire::Cursor;
use tokio::sync::oneshot;

use crate::audit::Entry;
use crate::events::Events;
use crate::metrics::{Name, ReceiverLabel, RuntimeMetrics};
use crate::read_model::ReadModel;
use crate::store::{self, Commit, Store};
use crate::templates::Templates;

/// What the names of the parts of runs begin with.
const RUN: &str = "run/";

/// The next transaction. A later value of a part or a cursor replaces an earlier one; effects only
/// accumulate.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub effects: Vec<Effect>,
    /// Whether the state of the streams and the cursors must be stored too, because records caused
    /// effects. Otherwise they stay unchanged in the store, so that a person's answer does not wait
    /// for them.
    pub whole: bool,
    /// The number of effects that the metrics have counted.
    pub counted: usize,
    /// The number of effects whose messages have their final text.
    pub(super) dressed: usize,
    /// The number of effects that were checked for pages that cannot wait for the store.
    pub(super) handed: usize,
    /// The number of effects after the last reduction.
    pub(super) compacted: usize,
    pub cursors: BTreeMap<String, Cursor>,
    /// The outcomes of messages that the engine has processed.
    pub reported: Vec<String>,
    /// The audit entries of commands.
    pub audit: Vec<Entry>,
    /// The accounted hours of runs.
    pub hours: Vec<RunHour>,
    /// Alerts that were sent again.
    pub seen: Vec<Firing>,
    held: Vec<Held>,
    state: BTreeMap<String, Option<Vec<u8>>>,
    /// What is accounted of the runs in `state`; `None` for a run that is forgotten.
    totals: BTreeMap<String, Option<Totals>>,
    /// What is accounted of all runs in the store.
    stored_totals: BTreeMap<String, Totals>,
    under_way: Option<UnderWay>,
}

/// A commit in progress.
struct UnderWay {
    writing: BoxFuture<'static, store::Result<()>>,
    commit: Arc<Commit>,
    totals: BTreeMap<String, Option<Totals>>,
    seen: Vec<Firing>,
    held: Vec<Held>,
    whole: bool,
    /// The same numbers as in [`Pending`], for the effects of this commit.
    counted: usize,
    dressed: usize,
    handed: usize,
}

/// An answer that waits until its effects are durable.
struct Held(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

impl Pending {
    /// Whether the changes must be stored now, because a request waits for them or a person is
    /// notified.
    pub(super) fn is_urgent(&self) -> bool {
        let history = |effect: &Effect| matches!(effect, Effect::Incident(_) | Effect::Timeline(_));
        !self.effects.iter().all(history)
            || !self.held.is_empty()
            || !self.reported.is_empty()
            || !self.audit.is_empty()
    }

    /// Sends the answer when all pending changes are durable.
    pub(super) fn hold<T: Send + 'static>(&mut self, reply: oneshot::Sender<T>, answer: T) {
        // The caller may no longer wait; the command is done nevertheless.
        self.held.push(Held(Box::new(move || drop(reply.send(answer)))));
    }

    /// Makes the pending changes urgent, although nobody waits for them.
    pub(super) fn hurry(&mut self) {
        self.held.push(Held(Box::new(|| ())));
    }

    /// Takes parts of the state, and what is accounted of their runs.
    pub(super) fn absorb_state(&mut self, parts: Vec<StatePart>, engine: &Engine) {
        let runs = parts.iter().filter_map(|(part, _)| part.strip_prefix(RUN));
        let totals = |run: &str| engine.run(run).map(|run| run.state.ledger.totals());
        self.totals.extend(runs.map(|run| (run.to_owned(), totals(run))));
        self.state.extend(parts);
    }

    /// Takes what is accounted of the runs of an engine that was restored from the store.
    pub(super) fn know_stored(&mut self, engine: &Engine) {
        let totals = |run: &Run| (run.state.name.clone(), run.state.ledger.totals());
        self.stored_totals = engine.runs().map(totals).collect();
    }

    /// What is accounted of a run in the store.
    pub(super) fn stored_totals(&self, run: &str) -> Totals {
        self.stored_totals.get(run).cloned().unwrap_or_default()
    }

    /// Applies the receivers' templates to messages, once: a retried commit has the same text.
    pub(super) fn dress(&mut self, templates: &Templates, metrics: &RuntimeMetrics) {
        let mut notes = Vec::new();
        for effect in &mut self.effects[self.dressed..] {
            let Effect::Notify(n) = effect else { continue };
            for failed in templates.dress(n) {
                let (template, error) = (&failed.template, &failed.error);
                tracing::warn!(
                    incident = n.incident,
                    receiver = n.receiver,
                    template,
                    error,
                    "a template failed; the built-in text is sent"
                );
                metrics
                    .template_failures
                    .get_or_create(&ReceiverLabel { receiver: Name(n.receiver.as_str().into()) })
                    .inc();
                let what = format!("template {template} failed, so that the built-in text is sent: {error}");
                notes.push(Effect::Timeline(TimelineEntry::new(
                    &n.incident,
                    n.message.at,
                    &n.receiver,
                    what,
                )));
            }
        }
        self.effects.extend(notes);
        self.dressed = self.effects.len();
    }

    /// Begins a commit. Later changes wait for the next one.
    pub(super) fn begin_commit(&mut self, store: &Store, at: Ts) {
        let commit = Arc::new(Commit {
            effects: mem::take(&mut self.effects),
            state: mem::take(&mut self.state).into_iter().collect(),
            cursors: if self.whole { mem::take(&mut self.cursors).into_iter().collect() } else { Vec::new() },
            reported: mem::take(&mut self.reported),
            audit: mem::take(&mut self.audit),
            hours: mem::take(&mut self.hours),
            at,
        });
        let (store, writes) = (store.clone(), Arc::clone(&commit));
        self.under_way = Some(UnderWay {
            writing: async move { store.commit(&writes).await }.boxed(),
            commit,
            totals: mem::take(&mut self.totals),
            seen: mem::take(&mut self.seen),
            held: mem::take(&mut self.held),
            whole: mem::take(&mut self.whole),
            counted: mem::take(&mut self.counted),
            dressed: mem::take(&mut self.dressed),
            handed: mem::take(&mut self.handed),
        });
        self.compacted = 0;
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Resolves when the commit in progress ends.
    pub(super) async fn written(&mut self) -> store::Result<()> {
        match &mut self.under_way {
            Some(under_way) => under_way.writing.as_mut().await,
            None => std::future::pending().await,
        }
    }

    /// Handles the end of a commit: sends the answers, or restores the changes for another commit.
    /// Returns whether it was whole.
    pub(super) fn end_commit(&mut self, kept: bool, read_model: &ReadModel, happened: &Events) -> bool {
        let Some(under_way) = self.under_way.take() else { return false };
        let UnderWay { writing, commit, totals, seen, held, whole, counted, dressed, handed } = under_way;
        drop(writing);
        if kept {
            read_model.apply(&commit.effects);
            happened.apply(&commit.effects);
            read_model.saw(seen);
            for (run, totals) in totals {
                match totals {
                    Some(totals) => drop(self.stored_totals.insert(run, totals)),
                    None => drop(self.stored_totals.remove(&run)),
                }
            }
            for held in held {
                (held.0)();
            }
            return whole;
        }
        let commit = Arc::unwrap_or_clone(commit);
        let all = commit.effects.len();
        let both = |before: usize, after: usize| if before < all { before } else { all + after };
        self.counted = both(counted, self.counted);
        self.dressed = both(dressed, self.dressed);
        self.handed = both(handed, self.handed);
        prepend(&mut self.effects, commit.effects);
        prepend(&mut self.reported, commit.reported);
        prepend(&mut self.audit, commit.audit);
        prepend(&mut self.hours, commit.hours);
        prepend(&mut self.seen, seen);
        prepend(&mut self.held, held);
        for (part, value) in commit.state {
            self.state.entry(part).or_insert(value);
        }
        for (run, of_run) in totals {
            self.totals.entry(run).or_insert(of_run);
        }
        for (source, cursor) in commit.cursors {
            self.cursors.entry(source).or_insert(cursor);
        }
        whole
    }

    /// The decisions that are not known to be durable, and the index of the first one that was not
    /// checked for pages that cannot wait.
    pub(super) fn unkept(&self) -> (impl Iterator<Item = &Effect> + Clone, usize) {
        let under_way = self.under_way.as_ref();
        let first: &[Effect] = under_way.map_or(&[], |u| &u.commit.effects);
        let handed = under_way.map_or(0, |u| u.handed);
        let handed = if handed < first.len() { handed } else { first.len() + self.handed };
        (first.iter().chain(&self.effects), handed)
    }

    /// Marks all effects as checked.
    pub(super) fn all_handed(&mut self) {
        self.handed = self.effects.len();
        if let Some(under_way) = &mut self.under_way {
            under_way.handed = under_way.commit.effects.len();
        }
    }
}

fn prepend<T>(to: &mut Vec<T>, mut first: Vec<T>) {
    first.append(to);
    *to = first;
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnderWay").field("commit", &self.commit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_engine::{EngineConfig, SourceInput};
    use stepwatch_respond::config::ResponderConfig;
    use stepwatch_wire::Event;

    use super::*;
    use crate::clock::Clock;
    use crate::testing::step;

    fn config() -> EngineConfig {
        EngineConfig::from(ResponderConfig::default())
    }

    /// Prometheus takes a counter that goes back for one that began at zero.
    #[tokio::test]
    async fn what_is_accounted_of_a_run_is_that_of_the_last_commit() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("alerter.db")).await.unwrap();
        let (read_model, happened) = (ReadModel::new(Clock::start(None)), Events::new(0));
        let (mut engine, mut pending) = (Engine::new(config()), Pending::default());
        let judge = |engine: &mut Engine, run: &str, steps: std::ops::RangeInclusive<i64>| {
            for n in steps {
                let event = Event::parse(step(1, run, n).trim().as_bytes()).unwrap();
                let input = SourceInput::Event { source: "node1:9765", event: &event };
                engine.handle(Ts(1_795_000_000_000 + 10_000 * n), input, &mut Vec::new());
            }
            engine.run(run).unwrap().state.ledger.totals().total()
        };
        let begin = |pending: &mut Pending, engine: &mut Engine| {
            let parts = engine.take_dirty();
            pending.absorb_state(parts, engine);
            pending.begin_commit(&store, Ts(0));
        };
        let stored = |pending: &Pending| ["r", "quiet"].map(|run| pending.stored_totals(run).total());

        let quiet = judge(&mut engine, "quiet", 1..=5);
        assert!(judge(&mut engine, "r", 6..=10) > 0.0 && quiet > 0.0);
        begin(&mut pending, &mut engine);
        pending.end_commit(false, &read_model, &happened);
        assert_eq!(stored(&pending), [0.0, 0.0], "the store has nothing");
        let begun = judge(&mut engine, "r", 11..=15);
        begin(&mut pending, &mut engine);
        assert!(judge(&mut engine, "r", 16..=20) > begun);
        pending.written().await.unwrap();
        pending.end_commit(true, &read_model, &happened);
        assert_eq!(stored(&pending), [begun, quiet], "as of the beginning of the commit");

        let (restored, unusable) = Engine::restore(config(), store.load_state().await.unwrap());
        assert!(unusable.is_empty());
        pending.know_stored(&restored);
        assert_eq!(stored(&pending), [begun, quiet], "a restart does not go back");
    }
}

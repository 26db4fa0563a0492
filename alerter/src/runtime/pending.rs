//! What the engine has decided and the store does not yet have.

use core::fmt;
use std::collections::BTreeMap;

use stepwatch_engine::StatePart;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Effect, TimelineEntry};
use stepwatch_respond::external::Firing;
use stepwatch_wire::Cursor;
use tokio::sync::oneshot;

use crate::audit::Entry;
use crate::metrics::{Name, ReceiverLabel, RuntimeMetrics};
use crate::read_model::ReadModel;
use crate::store::{self, Commit, Store};
use crate::templates::Templates;

/// One transaction to be. A later word on a part or a cursor replaces an earlier one; effects only
/// add up.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub effects: Vec<Effect>,
    /// The state of the streams and the cursors must be stored with it: something that they said
    /// has led to something. Otherwise they stand where they stood, and nobody who waits for an
    /// answer waits for them.
    pub whole: bool,
    /// How many of the effects the metrics have seen.
    pub counted: usize,
    /// How many of them have the words that they will be sent with.
    pub(super) dressed: usize,
    /// How many of them have been looked at for pages that cannot wait for the store.
    pub(super) handed: usize,
    /// How many were left when they were last made fewer.
    pub(super) compacted: usize,
    pub cursors: BTreeMap<String, Cursor>,
    /// Outcomes of messages that the engine has taken note of.
    pub reported: Vec<String>,
    /// Who asked for what.
    pub audit: Vec<Entry>,
    /// Alerts that were told again.
    pub seen: Vec<Firing>,
    held: Vec<Held>,
    state: BTreeMap<String, Option<Vec<u8>>>,
}

/// An answer to be given when what it answers is durable.
struct Held(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

impl Pending {
    /// Somebody waits for it, or must hear of it.
    pub(super) fn is_urgent(&self) -> bool {
        !self.effects.is_empty()
            || !self.held.is_empty()
            || !self.reported.is_empty()
            || !self.audit.is_empty()
    }

    /// Answers when all that is pending now is durable.
    pub(super) fn hold<T: Send + 'static>(&mut self, reply: oneshot::Sender<T>, answer: T) {
        // Whoever asked may have gone away; what was asked is done.
        self.held.push(Held(Box::new(move || drop(reply.send(answer)))));
    }

    /// What is pending must not wait for the periodic commit, though nobody waits for it.
    pub(super) fn hurry(&mut self) {
        self.held.push(Held(Box::new(|| ())));
    }

    pub(super) fn absorb_state(&mut self, parts: Vec<StatePart>) {
        self.state.extend(parts);
    }

    /// Gives the messages the words of their receivers, once: a store that refuses is given the
    /// same again.
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
                notes.push(Effect::Timeline(TimelineEntry {
                    incident: n.incident.clone(),
                    at: n.message.at,
                    actor: n.receiver.clone(),
                    what: format!("template {template} failed, so that the built-in text is sent: {error}"),
                }));
            }
        }
        self.effects.extend(notes);
        self.dressed = self.effects.len();
    }

    /// Makes it durable and answers those who wait. On an error nothing is lost and nobody is
    /// answered.
    pub(super) async fn commit(
        &mut self,
        store: &Store,
        read_model: &ReadModel,
        at: Ts,
    ) -> store::Result<()> {
        let commit = Commit {
            effects: core::mem::take(&mut self.effects),
            state: core::mem::take(&mut self.state).into_iter().collect(),
            cursors: if self.whole {
                core::mem::take(&mut self.cursors).into_iter().collect()
            } else {
                Vec::new()
            },
            reported: core::mem::take(&mut self.reported),
            audit: core::mem::take(&mut self.audit),
            at,
        };
        let done = store.commit(&commit).await;
        if done.is_err() {
            self.effects = commit.effects;
            self.state = commit.state.into_iter().collect();
            self.cursors.extend(commit.cursors);
            self.reported = commit.reported;
            self.audit = commit.audit;
            return done;
        }
        (self.counted, self.dressed, self.handed, self.compacted, self.whole) = (0, 0, 0, 0, false);
        read_model.apply(&commit.effects);
        read_model.saw(core::mem::take(&mut self.seen));
        for held in self.held.drain(..) {
            (held.0)();
        }
        Ok(())
    }
}

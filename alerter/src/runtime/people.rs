//! Commands of people to the runtime, and their answers when the effects are durable.

use std::time::Duration;

use stepwatch_respond::effect::{Effect, IncidentAction, Input, Notification};
use stepwatch_respond::external::PostedAlert;
use stepwatch_respond::message::Message;
use tokio::sync::oneshot;

use super::{AlertBatch, Answer, Command, Heard, Runtime, RuntimeHandle};
use crate::audit::Entry;

/// The time limit for effects to become durable, after which the answer asks the person to check
/// again.
const DURABLE_WITHIN: Duration = Duration::from_secs(10);

/// The reason why a command was not confirmed as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// The alerter is stopping; the command was not applied.
    Stopping,
    /// The command is applied, but the store is slow or refuses writes.
    NotDurable,
}

impl RuntimeHandle {
    /// Sends a command of a person with its audit entry to the runtime, and waits for the answer.
    pub(crate) async fn ask<T>(
        &self,
        entry: Entry,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Unanswered> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Audited { entry: Box::new(entry), command: Box::new(command(reply)) };
        let sent = async { self.commands.send(command).await.map_err(drop) };
        durable(sent, answer).await
    }

    /// Sends alerts of another program to the runtime, and waits until what is new in them is
    /// durable.
    pub(crate) async fn post_alerts(
        &self,
        alerts: Vec<PostedAlert>,
        entry: Entry,
    ) -> Result<Heard, Unanswered> {
        let (reply, answer) = oneshot::channel();
        let batch = AlertBatch { alerts, entry: Some(Box::new(entry)), reply };
        let sent = async { self.alerts.send(batch).await.map_err(drop) };
        durable(sent, answer).await
    }
}

/// Waits for the queue and for the answer within one time limit: a full queue is a slow store too.
async fn durable<T>(
    sent: impl Future<Output = Result<(), ()>>,
    answer: oneshot::Receiver<T>,
) -> Result<T, Unanswered> {
    let asked = async {
        sent.await.map_err(|()| Unanswered::Stopping)?;
        answer.await.map_err(|_| Unanswered::Stopping)
    };
    tokio::time::timeout(DURABLE_WITHIN, asked).await.unwrap_or(Err(Unanswered::NotDurable))
}

impl Runtime {
    pub(super) fn command(&mut self, command: Command) {
        let now = self.clock.now();
        match command {
            Command::Act { incident, by, action, reply } => self.act(&incident, &by, &action, reply),
            Command::Outside(command) => self.outside(command),
            Command::Override(command) => self.override_schedule(command),
            Command::Calendar { schedule, text } => {
                let input = Input::Calendar { schedule: &schedule, text: text.as_deref() };
                self.engine.handle(now, input, &mut self.pending.effects);
                if text.is_some() {
                    self.pending.hurry();
                }
            }
            Command::Own { check, severity, fault } => {
                let input = Input::Own { check: &check, severity, fault: fault.as_deref() };
                self.engine.handle(now, input, &mut self.pending.effects);
            }
            Command::Replicas { differing } => {
                let input = Input::Replicas { differing: &differing };
                self.engine.handle(now, input, &mut self.pending.effects);
            }
            Command::Audited { entry, command } => return self.audited(*entry, *command),
            Command::Reword { notification, reply } => return self.reword(*notification, reply),
            Command::Ping { reply } => {
                let _ = reply.send(());
                return;
            }
            Command::Reconfigure { config, templates, reply } => {
                self.templates = templates;
                self.read_model.reroute(config.responder.clone());
                self.engine.reconfigure(*config);
                self.engine.reconsider(now, &mut self.pending.effects);
                self.warn_of_void_overrides();
                self.pending.whole = true;
                let _ = reply.send(());
            }
        }
        self.schedule.changed();
    }

    /// Answers with the current text in the receiver's templates, when the changes behind it are
    /// durable. While messages are sent from memory, it answers at once.
    fn reword(&mut self, mut n: Notification, reply: oneshot::Sender<Option<Message>>) {
        let words = self.engine.reword(self.clock.now(), &n).map(|message| {
            n.message = message;
            // The template error was reported when the message was first rendered.
            self.templates.dress(&mut n);
            n.message
        });
        if self.pending.is_urgent() && !self.store.refuses_long() {
            self.pending.hold(reply, words);
        } else {
            let _ = reply.send(words);
        }
    }

    fn act(&mut self, id: &str, by: &str, action: &IncidentAction, reply: oneshot::Sender<Answer>) {
        let mut before = self.engine.incident(id).cloned().map(Box::new);
        if matches!(action, IncidentAction::Reopen) {
            before = self.engine.resolved_still_firing().find(|r| r.id == id).cloned().map(Box::new);
        }
        // A note may be added to a resolved incident.
        if before.is_none() && !matches!(action, IncidentAction::Note(_)) {
            let _ = reply.send(None);
            return;
        }
        let known = self.pending.effects.len();
        let input = Input::Act { incident: id, by, action };
        self.engine.handle(self.clock.now(), input, &mut self.pending.effects);
        let after = self.pending.effects[known..].iter().rev().find_map(|e| match e {
            Effect::Incident(record) if record.id == id => Some(record.clone()),
            _ => None,
        });
        self.pending.hold(reply, after.or(before));
    }
}

//! What people want of the runtime, and what it answers when that is durable.

use stepwatch_engine::effect::{Effect, Input, Notification};
use stepwatch_engine::message::Message;
use stepwatch_engine::time::Ts;
use tokio::sync::oneshot;

use super::{Answer, Command, Runtime};

impl Runtime {
    pub(super) fn command(&mut self, command: Command) {
        let now = self.clock.now();
        match command {
            Command::Ack { incident, by, reply } => {
                let input = Input::Ack { incident: &incident, by: &by };
                self.person(now, &incident, input, reply);
            }
            Command::Resolve { incident, by, reply } => {
                let input = Input::Resolve { incident: &incident, by: &by };
                self.person(now, &incident, input, reply);
            }
            Command::Outside(command) => self.outside(command),
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
            Command::Escalate { incident, by, reply } => {
                let input = Input::Escalate { incident: &incident, by: &by };
                self.person(now, &incident, input, reply);
            }
            Command::Unack { incident, by, reply } => {
                let input = Input::Unack { incident: &incident, by: &by };
                self.person(now, &incident, input, reply);
            }
            Command::Note { incident, by, what, reply } => {
                let input = Input::Note { incident: &incident.id, by: &by, what: &what };
                self.engine.handle(now, input, &mut self.pending.effects);
                self.pending.replies.push((reply, incident));
            }
            Command::Audited { entry, command } => return self.audited(*entry, *command),
            Command::Reword { notification, reply } => return self.reword(*notification, reply),
            Command::Ping { reply } => {
                let _ = reply.send(());
                return;
            }
            Command::Reconfigure { config, templates, reply } => {
                self.templates = templates;
                self.read_model.reroute((*config).clone());
                self.engine.reconfigure(*config);
                self.engine.reconsider(now, &mut self.pending.effects);
                self.pending.whole = true;
                let _ = reply.send(());
            }
        }
        self.schedule.changed();
    }

    /// In the words of its receiver, when what they tell of is durable.
    fn reword(&mut self, mut n: Notification, reply: oneshot::Sender<Option<Message>>) {
        let words = self.engine.reword(self.clock.now(), &n).map(|message| {
            n.message = message;
            // A template that fails was told of when the message was first put into words.
            self.templates.dress(&mut n);
            n.message
        });
        if self.pending.is_urgent() {
            self.pending.hold(reply, words);
        } else {
            let _ = reply.send(words);
        }
    }

    fn person(&mut self, now: Ts, id: &str, input: Input<'_>, reply: oneshot::Sender<Answer>) {
        let Some(before) = self.engine.incident(id).cloned() else {
            let _ = reply.send(None);
            return;
        };
        let known = self.pending.effects.len();
        self.engine.handle(now, input, &mut self.pending.effects);
        let after = self.pending.effects[known..].iter().rev().find_map(|e| match e {
            Effect::Incident(record) if record.id == id => Some(record.clone()),
            _ => None,
        });
        self.pending.replies.push((reply, after.unwrap_or_else(|| Box::new(before))));
    }
}

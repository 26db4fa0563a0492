//! What a receiver is sent, and who need not be rung for it.

use super::Dispatcher;
use super::targets::Recipient;
use crate::config::ResponderConfig;
use crate::effect::{Action, Notification};
use crate::incident::State;
use crate::incident::open::Incident;
use crate::incident::report::View;
use crate::message::{self, About, Message, Reason, Status, Why};
use stepwatch_model::{Reporter, Scope, Severity, Ts};

/// What somebody is sent, and why.
#[derive(Debug, Clone, Copy)]
pub(in crate::incident) struct Word<'a> {
    pub(in crate::incident) action: Action,
    pub(in crate::incident) why: &'a Why,
}

impl Dispatcher {
    /// What a receiver is sent of an incident, which has taken note of it.
    pub(in crate::incident) fn notification(
        &self,
        view: View<'_>,
        i: &Incident,
        to: Recipient,
        word: Word<'_>,
    ) -> Notification {
        let Recipient { receiver, users, path } = to;
        let id = &i.record.id;
        let seq = i.lanes.get(&receiver).map_or(0, |lane| lane.seq);
        let slack_ids = users.iter().filter_map(|name| self.oncall.user(name)?.slack_id.clone()).collect();
        let reporter = i.origin.as_ref().map(|origin| &origin.reporter);
        Notification {
            incident: id.clone(),
            seq,
            action: word.action,
            idem_key: format!("{id}/{receiver}/{seq}"),
            page: i.record.severity == Severity::Page,
            users,
            slack_ids,
            path,
            despite_suppression: i.record.suppression.is_some(),
            left_to: None,
            source: reporter.map(Reporter::source).unwrap_or_default(),
            reporter: reporter.map(ToString::to_string).unwrap_or_default(),
            message: i.message(view, word),
            receiver,
        }
    }
}

impl Incident {
    /// What is to be said of it as it is now.
    pub(in crate::incident) fn message(&self, view: View<'_>, word: Word<'_>) -> Message {
        let status = match word.action {
            Action::Resolve => Status::Resolved,
            _ if self.record.state == State::Acknowledged => Status::Acknowledged,
            _ => Status::Firing,
        };
        let alert = self.subjects.iter().find_map(|subject| match &subject.scope {
            Scope::Alert(condition) => view.external.spokesman(&condition.key),
            _ => None,
        });
        let alert = alert.map(AsRef::as_ref);
        let about = About { record: &self.record, run: &self.summary, alert, holds: self.holds() };
        message::compose(view.now, about, status, word.why, view.config)
    }

    /// Who goes on about the call that this receiver had, if calling it once more rings nobody:
    /// nobody has answered since, and it is about the same.
    pub(in crate::incident) fn left_to<'a>(
        &self,
        config: &'a ResponderConfig,
        receiver: &str,
        why: &Why,
    ) -> Option<&'a String> {
        let again = [
            Reason::Escalated,
            Reason::Repeated,
            Reason::StillFiring,
            Reason::ReceiverFailed,
            Reason::SilenceEnded,
            Reason::InhibitionEnded,
        ];
        let lane = self.lanes.get(receiver)?;
        let stands = lane.seq > 0 && !lane.answered && again.contains(&why.because);
        config.repeated_by.get(receiver).filter(|_| stands)
    }

    /// Those who were notified of it and are `wanted`.
    pub(in crate::incident) fn notified(&self, wanted: impl Fn(&String) -> bool) -> Vec<Recipient> {
        let lanes = self.lanes.iter().filter(|(receiver, _)| wanted(receiver));
        lanes.map(|(receiver, lane)| Recipient::known(receiver.clone(), lane.users.clone())).collect()
    }

    /// Takes note of what a receiver is sent now.
    pub(in crate::incident) fn note_sent(&mut self, now: Ts, to: &Recipient, word: Word<'_>) {
        self.told_at = Some(now);
        let severity = self.record.severity;
        let lane = self.lanes.entry(to.receiver.clone()).or_default();
        lane.seq += 1;
        lane.paged |= word.action == Action::Trigger && severity == Severity::Page;
        let news = word.action == Action::Update && word.why.because != Reason::Unacknowledged;
        lane.answered = word.action == Action::Ack || lane.answered && news;
        if !to.users.is_empty() {
            lane.users.clone_from(&to.users);
        }
    }
}

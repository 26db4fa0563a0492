//! Composes notifications, and finds the receivers whose own service repeats a call.

use super::Dispatcher;
use super::targets::Recipient;
use crate::config::ResponderConfig;
use crate::effect::{Action, Notification};
use crate::incident::State;
use crate::incident::open::Incident;
use crate::incident::report::View;
use crate::message::{self, About, Message, Reason, Status, Why};
use stepwatch_model::{Reporter, Scope, Severity, Ts};

/// The action and the reason of a notification.
#[derive(Debug, Clone, Copy)]
pub(in crate::incident) struct Word<'a> {
    pub(in crate::incident) action: Action,
    pub(in crate::incident) why: &'a Why,
}

impl Dispatcher {
    /// Builds the notification of an incident to a receiver. The incident must have recorded it in
    /// the receiver's lane before, with `note_sent`.
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
    /// Composes the message about the incident as it is now.
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

    /// The service that repeats the receiver's last call by itself, so that no further call is
    /// needed: nobody has answered since, and the call is about the same.
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

    /// The receivers that were notified of it and for which `wanted` holds.
    pub(in crate::incident) fn notified(&self, wanted: impl Fn(&String) -> bool) -> Vec<Recipient> {
        let lanes = self.lanes.iter().filter(|(receiver, _)| wanted(receiver));
        lanes.map(|(receiver, lane)| Recipient::known(receiver.clone(), lane.users.clone())).collect()
    }

    /// Records in the receiver's lane what is sent to it now.
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

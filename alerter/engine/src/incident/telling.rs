//! Who is told of an incident, when, and again.

use super::State;
use super::book::{Book, by_actor, timeline};
use super::escalation::{Due, Ladder};
use crate::cause;
use crate::effect::{Action, Effect, Notification};
use crate::message::{self, Status};
use crate::time::{Span, Ts};
use crate::verdict::Severity;

/// A verdict about a step this long ago is read from a backlog, whose end may tell that it is over.
const LATE: Span = Span::secs(120);
/// How long such news waits for the end of the backlog before anyone is told.
const BACKLOG: Span = Span::secs(10);
/// The reason of the first message.
pub(super) const NEW: &str = "new incident";

impl Book {
    /// Tells the people of its route, from the first level on. Nobody is told of an annotation.
    pub(super) fn announce(&mut self, now: Ts, id: &str, at: Ts, reason: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        if i.record.severity == Severity::Info {
            return;
        }
        let from = if now - at > LATE { now + BACKLOG } else { now };
        if let Some(advice) = cause::advise(&i.record, &i.summary, self.config.cost_per_gpu_hour) {
            out.push(timeline(now, id, format!("what to do: {advice}")));
        }
        i.ladder = Some(Ladder::new(from, self.router.levels(&self.config, &i.record)));
        self.climb(now, id, reason, out);
    }

    /// Notifies every level that is due.
    fn climb(&mut self, now: Ts, id: &str, reason: &str, out: &mut Vec<Effect>) {
        while let Some(i) = self.open.get_mut(id) {
            let page = i.record.severity == Severity::Page;
            let Some(due) = i.ladder.as_mut().and_then(|l| l.due(now, page)) else { break };
            let told = due.level > i.record.level || due.repeat > 0;
            let reason = if i.record.level == 0 || !told {
                reason.to_owned()
            } else {
                due.reason(i.record.opened_at, now)
            };
            self.tell(now, id, due, &reason, out);
        }
        if let Some(i) = self.open.get_mut(id) {
            i.record.next_at = i.ladder.as_ref().and_then(Ladder::next_at);
        }
    }

    /// Tells one level.
    pub(super) fn tell(&mut self, now: Ts, id: &str, due: Due, reason: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        i.record.level = due.level;
        let what = format!("level {} notified ({}): {reason}", due.level, due.notify.join(", "));
        out.push(timeline(now, id, what));
        for receiver in due.notify {
            self.send(now, id, &receiver, Action::Trigger, reason, out);
        }
    }

    fn send(
        &mut self,
        now: Ts,
        id: &str,
        receiver: &str,
        action: Action,
        reason: &str,
        out: &mut Vec<Effect>,
    ) {
        let Some(i) = self.open.get_mut(id) else { return };
        let lane = i.lanes.entry(receiver.to_owned()).or_default();
        lane.seq += 1;
        let seq = lane.seq;
        let status = match action {
            Action::Resolve => Status::Resolved,
            _ if i.record.state == State::Acknowledged => Status::Acknowledged,
            _ => Status::Firing,
        };
        out.push(Effect::Notify(Box::new(Notification {
            incident: id.to_owned(),
            receiver: receiver.to_owned(),
            seq,
            action,
            idem_key: format!("{id}/{receiver}/{seq}"),
            page: i.record.severity == Severity::Page,
            message: message::compose(now, &i.record, &i.summary, status, reason, &self.config),
        })));
    }

    /// News for everyone who was told of the incident.
    pub(super) fn tell_all(
        &mut self,
        now: Ts,
        id: &str,
        action: Action,
        reason: &str,
        out: &mut Vec<Effect>,
    ) {
        let receivers: Vec<String> =
            self.open.get(id).map(|i| i.lanes.keys().cloned().collect()).unwrap_or_default();
        for receiver in receivers {
            self.send(now, id, &receiver, action, reason, out);
        }
    }

    /// What was over before anyone was told is told to nobody.
    pub(super) fn climb_if_it_holds(&mut self, now: Ts, id: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        if i.record.level == 0 && i.raised.is_empty() {
            i.ladder = None;
            i.record.next_at = None;
            out.push(timeline(now, id, "over before the backlog was read: nobody was told".into()));
            return;
        }
        let reason = if i.record.level == 0 { NEW } else { "still firing" };
        self.climb(now, id, reason, out);
    }

    /// A receiver will never take it: the next level is due now.
    pub(crate) fn failed(
        &mut self,
        now: Ts,
        id: &str,
        receiver: &str,
        action: Action,
        error: &str,
        out: &mut Vec<Effect>,
    ) {
        out.push(by_actor(now, id, receiver, format!("{} failed for good: {error}", action.as_str())));
        let Some(i) = self.open.get_mut(id) else { return };
        if action != Action::Trigger || i.record.state != State::Open {
            return;
        }
        if i.ladder.as_mut().is_some_and(|l| l.hurry(now)) {
            self.climb(now, id, "escalated", out);
        } else {
            // Nobody left above: everyone who has not been told yet.
            let told: Vec<String> = i.lanes.keys().cloned().collect();
            for other in self.config.receivers.clone() {
                if !told.contains(&other) {
                    self.send(
                        now,
                        id,
                        &other,
                        Action::Trigger,
                        &format!("{receiver} could not be reached: {error}"),
                        out,
                    );
                }
            }
        }
        self.finish(id, out);
    }
}

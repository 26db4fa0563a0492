//! The actions of people: acknowledge, unacknowledge, escalate, resolve, reopen and note.

use super::State;
use super::dispatcher::escalation::{Ladders, Pace};
use super::manager::Manager;
use super::open::Incident;
use crate::effect::{Action, IncidentAction, Tx, by_actor};
use crate::message::{Reason, Why};
use stepwatch_model::Ts;

impl Manager {
    pub(crate) fn act(&mut self, tx: &mut Tx<'_>, id: &str, by: &str, action: &IncidentAction) {
        match action {
            IncidentAction::Ack => self.ack(tx, id, by),
            IncidentAction::Unack => self.unack(tx, id, by),
            IncidentAction::Resolve => self.resolve_by_hand(tx, id, by, None),
            IncidentAction::ResolveAs(verdict) => self.resolve_by_hand(tx, id, by, Some(*verdict)),
            IncidentAction::Escalate => self.escalate(tx, id, by),
            IncidentAction::Reopen => self.reopen_by_hand(tx, id, by),
            IncidentAction::Note(what) => tx.out.push(by_actor(tx.now, id, by, what.clone())),
        }
    }

    pub(super) fn ack(&mut self, tx: &mut Tx<'_>, id: &str, by: &str) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id).filter(|i| i.record.state != State::Acknowledged) else { return };
        i.record.state = State::Acknowledged;
        i.record.acked_by = Some(by.to_owned());
        i.record.acked_at = Some(now);
        if let Some(named) = &mut i.record.named {
            (named.more, named.new) = (named.more + named.new, 0);
        }
        if let Some(tally) = &mut i.storm {
            tally.taken = tally.total;
        }
        i.stop();
        let after = now - i.record.opened_at;
        tx.out.push(by_actor(now, id, by, format!("acknowledged after {after}; escalation stops")));
        let words = format!("acknowledged by {by} after {after}");
        self.notify_all(tx, id, Action::Ack, Why::new(Reason::Acknowledged, words));
        self.ack_members(tx, id, by);
        self.finish(id, tx.out);
    }

    /// Removes the acknowledgement. Escalation resumes where it stopped, one wait later.
    fn unack(&mut self, tx: &mut Tx<'_>, id: &str, by: &str) {
        let now = tx.now;
        if self.open.get(id).is_none_or(|i| i.record.state != State::Acknowledged) {
            return;
        }
        self.find_ways(now, id);
        let Some(i) = self.open.get_mut(id) else { return };
        let pace = Pace::of(i, &self.config);
        i.record.reopen();
        i.ladders.resume(now, pace);
        i.record.next_at = i.ladders.next_at();
        tx.out.push(by_actor(now, id, by, "no longer acknowledged; escalation goes on".into()));
        let words = format!("no longer acknowledged ({by})");
        let why = Why { by: Some(by.to_owned()), ..Why::new(Reason::Unacknowledged, words) };
        self.notify_all(tx, id, Action::Update, why);
        self.finish(id, tx.out);
    }

    /// Notifies the next level now, or the last one again. An acknowledgement ends: the person has
    /// passed the incident on.
    fn escalate(&mut self, tx: &mut Tx<'_>, id: &str, by: &str) {
        let now = tx.now;
        self.find_ways(now, id);
        let Some(i) = self.open.get_mut(id) else { return };
        tx.out.push(by_actor(now, id, by, "asked for the next level".into()));
        i.record.reopen();
        let level = i.ladders.next_level().unwrap_or(i.ladders.last_level());
        if !i.ladders.hurry(now) {
            i.ladders.force(now);
        }
        let why = Why::new(Reason::Escalated, format!("escalated to level {level} by {by}"));
        self.climb(tx, id, &why);
        self.finish(id, tx.out);
    }

    /// Finds the ways of an incident that was stored without ladders, or that was to notify nobody.
    fn find_ways(&mut self, now: Ts, id: &str) {
        self.relabel(id);
        let Some(i) = self.open.get_mut(id).filter(|i| i.ladders.is_empty()) else { return };
        i.ladders = Ladders::new(now, self.dispatcher.ways(&self.config, &i.record.labels));
    }

    /// Notifies people from the first level again, because the acknowledgement has expired.
    pub(super) fn ack_expired(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id) else { return };
        let by = i.record.acked_by.clone().unwrap_or_default();
        let since = now - i.record.acked_at.unwrap_or(now);
        i.record.reopen();
        let words = format!("acknowledged by {by} {since} ago and not over");
        tx.out.push(by_actor(now, id, "engine", format!("{words}: notified anew")));
        self.announce(tx, id, now, &Why::new(Reason::AckExpired, words));
        self.finish(id, tx.out);
    }
}

impl Incident {
    /// Stops the escalation until something changes the incident.
    pub(super) fn stop(&mut self) {
        self.ladders.stop();
        self.record.next_at = None;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::Responder;
    use crate::config::{Level, Policy, ResponderConfig, Route};
    use crate::effect::{Action, Effect, IncidentAction, Input};
    use crate::incident::State;
    use crate::responder::NoDirectory;
    use stepwatch_model::{Change, Context, Finding, Kind, RunSummary, Scope, Severity, Span, Ts, clause};

    const NOW: Ts = Ts(1_795_227_416_000);

    /// A page of which the first of two levels was notified.
    fn paged() -> (Responder, String) {
        let level =
            |after, to: &str| Level { after: Span::secs(after), notify: vec![to.into()], ..Level::default() };
        let levels = vec![level(0, "chat"), level(300, "phone")];
        let config = ResponderConfig {
            receivers: vec!["chat".into(), "phone".into()],
            policies: vec![Policy { name: "p".into(), levels }],
            routes: vec![Route { policy: Some("p".into()), ..Route::default() }],
            ..ResponderConfig::default()
        };
        let (mut responder, mut out) = (Responder::new(config), Vec::new());
        let run = RunSummary { name: "r".into(), gpus: Some(8), ..RunSummary::default() };
        let context = Context::new(Scope::Run("r".into()), run, BTreeSet::new(), NOW);
        let finding = Finding {
            change: Change::Raise,
            kind: Kind::Nonfinite,
            severity: Severity::Page,
            signal: "loss".into(),
            step: 2,
            ts: NOW,
            start_step: 2,
            value: f64::NAN,
            expected: 2.5,
            score: 0.0,
            why: clause!("loss is NaN").into(),
            suspects: Vec::new(),
        };
        responder.judge(NOW, &context, &finding, &mut out);
        let id = responder.open_incidents().next().unwrap().id.clone();
        (responder, id)
    }

    fn notified(responder: &mut Responder, now: Ts, input: Input<'_>) -> Vec<(String, Action, String)> {
        let mut out = Vec::new();
        responder.handle(now, input, &NoDirectory, &mut out);
        let notified = |effect| match effect {
            Effect::Notify(n) => Some((n.receiver, n.action, n.message.reason)),
            _ => None,
        };
        out.into_iter().filter_map(notified).collect()
    }

    #[test]
    fn a_person_escalates_without_waiting() {
        let (mut responder, id) = paged();
        let now = NOW + Span::secs(10);
        let got = notified(
            &mut responder,
            now,
            Input::Act { incident: &id, by: "slack:U1 (ann)", action: &IncidentAction::Escalate },
        );
        assert_eq!(got, [("phone".into(), Action::Trigger, "escalated to level 2 by slack:U1 (ann)".into())]);
        // There is no higher level: the last level is notified again.
        let got = notified(
            &mut responder,
            now,
            Input::Act { incident: &id, by: "ann", action: &IncidentAction::Escalate },
        );
        assert_eq!(got.iter().map(|t| t.0.as_str()).collect::<Vec<_>>(), ["phone"]);
        assert!(responder.incident(&id).unwrap().next_at.is_some(), "it goes on by itself");
    }

    #[test]
    fn whoever_took_it_may_pass_it_on() {
        let (mut responder, id) = paged();
        notified(&mut responder, NOW, Input::Act { incident: &id, by: "ann", action: &IncidentAction::Ack });
        let got = notified(
            &mut responder,
            NOW,
            Input::Act { incident: &id, by: "ann", action: &IncidentAction::Escalate },
        );
        assert_eq!(got.iter().map(|t| t.0.as_str()).collect::<Vec<_>>(), ["phone"]);
        let record = responder.incident(&id).unwrap();
        assert_eq!((record.state, record.level, &record.acked_by), (State::Open, 2, &None));
    }

    #[test]
    fn an_answer_taken_back_lets_escalation_go_on() {
        let (mut responder, id) = paged();
        assert!(
            notified(
                &mut responder,
                NOW,
                Input::Act { incident: &id, by: "pd", action: &IncidentAction::Unack }
            )
            .is_empty(),
            "nobody had it"
        );
        notified(&mut responder, NOW, Input::Act { incident: &id, by: "ann", action: &IncidentAction::Ack });
        assert_eq!(responder.incident(&id).unwrap().next_at, None);
        let got = notified(
            &mut responder,
            NOW,
            Input::Act { incident: &id, by: "pagerduty:ann", action: &IncidentAction::Unack },
        );
        assert_eq!(got, [("chat".into(), Action::Update, "no longer acknowledged (pagerduty:ann)".into())]);
        assert_eq!(responder.incident(&id).unwrap().next_at, Some(NOW + Span::secs(300)));
        assert!(
            notified(
                &mut responder,
                NOW,
                Input::Act { incident: &id, by: "x", action: &IncidentAction::Note("y".into()) }
            )
            .is_empty()
        );
    }
}

//! What people do with an incident besides taking and closing it.

use super::State;
use super::book::{Book, by_actor};
use super::escalation::Ladder;
use crate::effect::{Action, Effect};
use crate::time::Ts;
use crate::verdict::Severity;

impl Book {
    /// The next level is told now. Whoever had taken the incident has passed it on.
    pub(crate) fn escalate(&mut self, now: Ts, id: &str, by: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id) else { return };
        let page = i.record.severity == Severity::Page;
        i.record.state = State::Open;
        (i.record.acked_by, i.record.acked_at) = (None, None);
        let (record, ladder) = (i.record.clone(), i.ladder.take());
        let mut ladder = ladder.unwrap_or_else(|| {
            Ladder::above(now, self.router.levels(&self.config, &record), record.level, page)
        });
        let due = if ladder.hurry(now) { ladder.due(now, page) } else { ladder.last_again(now, page) };
        if let Some(i) = self.open.get_mut(id) {
            i.record.next_at = ladder.next_at();
            i.ladder = Some(ladder);
        }
        out.push(by_actor(now, id, by, "asked for the next level".into()));
        if let Some(due) = due {
            let reason = format!("escalated to level {} by {by}", due.level);
            self.tell(now, id, due, &reason, out);
        }
        self.finish(id, out);
    }

    /// Nobody has it any more. Escalation goes on where it stopped, one wait later.
    pub(crate) fn unack(&mut self, now: Ts, id: &str, by: &str, out: &mut Vec<Effect>) {
        let Some(i) = self.open.get_mut(id).filter(|i| i.record.state == State::Acknowledged) else { return };
        let page = i.record.severity == Severity::Page;
        i.record.state = State::Open;
        (i.record.acked_by, i.record.acked_at) = (None, None);
        let record = i.record.clone();
        let ladder = Ladder::above(now, self.router.levels(&self.config, &record), record.level, page);
        if let Some(i) = self.open.get_mut(id) {
            i.record.next_at = ladder.next_at();
            i.ladder = Some(ladder);
        }
        out.push(by_actor(now, id, by, "no longer acknowledged; escalation goes on".into()));
        self.tell_all(now, id, Action::Update, &format!("no longer acknowledged ({by})"), out);
        self.finish(id, out);
    }

    /// Kept in the history of an open incident.
    pub(crate) fn note(&mut self, now: Ts, id: &str, by: &str, what: &str, out: &mut Vec<Effect>) {
        if self.open.contains_key(id) {
            out.push(by_actor(now, id, by, what.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_wire::Event;

    use crate::Engine;
    use crate::config::{EngineConfig, Level, Policy, Route};
    use crate::effect::{Action, Effect, Input};
    use crate::incident::State;
    use crate::time::{Span, Ts};

    const NOW: Ts = Ts(1_795_227_416_000);

    /// A page that the first of two levels was told of.
    fn paged() -> (Engine, String) {
        let level = |after, to: &str| Level { after: Span::secs(after), notify: vec![to.into()], repeat: 0 };
        let levels = vec![level(0, "chat"), level(300, "phone")];
        let config = EngineConfig {
            receivers: vec!["chat".into(), "phone".into()],
            policies: vec![Policy { name: "p".into(), levels }],
            routes: vec![Route { matchers: Vec::new(), policy: Some("p".into()), notify: Vec::new() }],
            ..EngineConfig::default()
        };
        let (mut engine, mut out) = (Engine::new(config), Vec::new());
        for line in [
            r#"{"k":"step","run":"r","rank":0,"world":8,"step":1,"m":{"loss":2.5}}"#,
            r#"{"k":"step","run":"r","rank":0,"world":8,"step":2,"m":{"loss":"NaN"}}"#,
        ] {
            let event = Event::parse(line.as_bytes()).unwrap();
            engine.handle(NOW, Input::Event { source: "n:1", event: &event }, &mut out);
        }
        let id = engine.open_incidents().next().unwrap().id.clone();
        (engine, id)
    }

    fn told(engine: &mut Engine, now: Ts, input: Input<'_>) -> Vec<(String, Action, String)> {
        let mut out = Vec::new();
        engine.handle(now, input, &mut out);
        let told = |effect| match effect {
            Effect::Notify(n) => Some((n.receiver, n.action, n.message.reason)),
            _ => None,
        };
        out.into_iter().filter_map(told).collect()
    }

    #[test]
    fn a_person_escalates_without_waiting() {
        let (mut engine, id) = paged();
        let now = NOW + Span::secs(10);
        let got = told(&mut engine, now, Input::Escalate { incident: &id, by: "slack:U1 (ann)" });
        assert_eq!(got, [("phone".into(), Action::Trigger, "escalated to level 2 by slack:U1 (ann)".into())]);
        // Nobody is above: the last level is told again.
        let got = told(&mut engine, now, Input::Escalate { incident: &id, by: "ann" });
        assert_eq!(got.iter().map(|t| t.0.as_str()).collect::<Vec<_>>(), ["phone"]);
        assert!(engine.incident(&id).unwrap().next_at.is_some(), "it goes on by itself");
    }

    #[test]
    fn whoever_took_it_may_pass_it_on() {
        let (mut engine, id) = paged();
        told(&mut engine, NOW, Input::Ack { incident: &id, by: "ann" });
        let got = told(&mut engine, NOW, Input::Escalate { incident: &id, by: "ann" });
        assert_eq!(got.iter().map(|t| t.0.as_str()).collect::<Vec<_>>(), ["phone"]);
        let record = engine.incident(&id).unwrap();
        assert_eq!((record.state, record.level, &record.acked_by), (State::Open, 2, &None));
    }

    #[test]
    fn an_answer_taken_back_lets_escalation_go_on() {
        let (mut engine, id) = paged();
        assert!(told(&mut engine, NOW, Input::Unack { incident: &id, by: "pd" }).is_empty(), "nobody had it");
        told(&mut engine, NOW, Input::Ack { incident: &id, by: "ann" });
        assert_eq!(engine.incident(&id).unwrap().next_at, None);
        let got = told(&mut engine, NOW, Input::Unack { incident: &id, by: "pagerduty:ann" });
        assert_eq!(got, [("chat".into(), Action::Update, "no longer acknowledged (pagerduty:ann)".into())]);
        assert_eq!(engine.incident(&id).unwrap().next_at, Some(NOW + Span::secs(300)));
        assert!(told(&mut engine, NOW, Input::Note { incident: &id, by: "x", what: "y" }).is_empty());
    }
}

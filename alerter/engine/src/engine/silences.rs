//! The engine's side of silences: who asks for one, when it begins and ends, and whom it keeps
//! quiet.

use stepwatch_wire::{Event, Value};

use super::{Engine, Key};
use crate::effect::Effect;
use crate::incident::{IncidentRecord, State};
use crate::silence::{Due, Phase, Plan, Refusal, Silence, Silences, Wanted, planned};
use crate::time::{Span, Ts};

impl Engine {
    pub fn silences(&self) -> &Silences {
        &self.book.silences
    }

    /// What a wish for a silence comes to, or why it is refused; `fresh` is an id that no silence
    /// has.
    pub fn plan_silence(&self, now: Ts, wanted: Wanted, fresh: &str) -> Result<Plan, Refusal> {
        self.book.silences.plan(wanted, fresh, now)
    }

    /// Takes back what was stored, before the engine is told anything.
    pub fn restore_silences(&mut self, now: Ts, stored: impl IntoIterator<Item = Silence>) {
        for silence in stored {
            let id = silence.id.clone();
            self.book.silences.put(silence);
            self.wait_for_silence(now, &id);
        }
    }

    pub(super) fn silence(&mut self, now: Ts, plan: &Plan, out: &mut Vec<Effect>) {
        if let Some(old) = &plan.replaces {
            self.book.silences.expire(old, now);
            self.keep_silence(now, old, out);
        }
        self.book.silences.put(plan.silence.clone());
        self.keep_silence(now, &plan.silence.id, out);
        self.book.reconsider(now, out);
    }

    pub(super) fn expire_silence(&mut self, now: Ts, id: &str, out: &mut Vec<Effect>) {
        if self.book.silences.expire(id, now).is_some() {
            self.keep_silence(now, id, out);
            self.book.reconsider(now, out);
        }
    }

    /// Something is due about a silence, or was while we were away.
    pub(super) fn tick_silence(&mut self, now: Ts, id: &str, out: &mut Vec<Effect>) {
        match self.book.silences.due(id, now) {
            Some(Due::Remind) => {
                if self.book.remind_of_silence(now, id, out) {
                    self.book.silences.mark_reminded(id, now);
                    return self.keep_silence(now, id, out);
                }
            }
            Some(Due::Forget) => self.book.silences.forget(id),
            Some(Due::Begins | Due::Ends) | None => self.book.reconsider(now, out),
        }
        self.wait_for_silence(now, id);
    }

    fn keep_silence(&mut self, now: Ts, id: &str, out: &mut Vec<Effect>) {
        if let Some(silence) = self.book.silences.get(id) {
            out.push(Effect::Silence(Box::new(silence.clone())));
        }
        self.wait_for_silence(now, id);
    }

    fn wait_for_silence(&mut self, now: Ts, id: &str) {
        let next = self.book.silences.next(id, now).map(|(at, _)| at);
        self.timers.set(&Key::Silence(id.to_owned()), next);
    }

    /// A run says that it is about to be restarted on purpose, for how long and why.
    pub(super) fn planned_restart(&mut self, now: Ts, run: &str, event: &Event, out: &mut Vec<Effect>) {
        if event.name.as_deref() != Some(planned::EVENT) {
            return;
        }
        let Some(facts) = self.runs.get(run).map(|r| &r.facts) else { return };
        let max = self.book.silences.config().max_planned_restart;
        let seconds = event.extra.get("seconds").and_then(Value::as_f64).filter(|s| s.is_finite());
        let length = seconds.map_or(max, |s| Span::from_secs_f64(s.clamp(0.0, max.as_secs_f64())));
        let reason = event.text.as_deref().unwrap_or_default();
        if let Some(silence) = self.book.silences.planned(run, length, reason, facts.last_progress, now) {
            self.silence(now, &Plan { silence, replaces: None }, out);
        }
    }

    /// A run that makes steps in a new attempt is back: what it planned is over.
    pub(super) fn back_from_restart(&mut self, now: Ts, run: &str, out: &mut Vec<Effect>) {
        let Some(planned) = self.book.silences.planned_of(run).filter(|s| s.phase(now) == Phase::Active)
        else {
            return;
        };
        let (id, since) = (planned.id.clone(), planned.starts_at);
        let back = |f: &crate::run::Facts| f.attempt_at > since && f.last_progress > f.attempt_at;
        if self.runs.get(run).is_some_and(|r| back(&r.facts)) {
            self.expire_silence(now, &id, out);
        }
    }

    /// A silence may be of one incident only: when the last that it matches resolves, it is over.
    pub(super) fn expire_on_resolve(&mut self, now: Ts, from: usize, out: &mut Vec<Effect>) {
        if out.len() == from || !self.book.silences.any_expires_on_resolve() {
            return;
        }
        let resolved = |e: &Effect| match e {
            Effect::Incident(r) if r.state == State::Resolved => Some((**r).clone()),
            _ => None,
        };
        let gone: Vec<IncidentRecord> = out.iter().skip(from).filter_map(resolved).collect();
        for record in gone {
            let ended: Vec<String> = self
                .book
                .silences
                .all()
                .filter(|s| s.expire_on_resolve && s.phase(now) == Phase::Active && s.matches(&record.labels))
                .filter(|s| {
                    let mut fire = self.open_incidents().chain(self.resolved_still_firing());
                    !fire.any(|record| s.matches(&record.labels))
                })
                .map(|s| s.id.clone())
                .collect();
            for id in ended {
                self.expire_silence(now, &id, out);
            }
        }
    }
}

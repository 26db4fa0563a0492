//! Silences: who asks for one, when it begins and ends, and whom it keeps
//! quiet.

use super::{Key, Responder};
use crate::effect::Effect;
use crate::incident::{IncidentRecord, State};
use crate::silence::{Due, Phase, Plan, Refusal, Silence, Silences, Wanted};
use stepwatch_model::{Span, Ts};

impl Responder {
    pub fn silences(&self) -> &Silences {
        &self.manager.silences
    }

    /// What a wish for a silence comes to, or why it is refused; `fresh` is an id that no silence
    /// has.
    pub fn plan_silence(&self, now: Ts, wanted: Wanted, fresh: &str) -> Result<Plan, Refusal> {
        self.manager.silences.plan(wanted, fresh, now)
    }

    /// Takes back what was stored, before the engine is told anything.
    pub fn restore_silences(&mut self, now: Ts, stored: impl IntoIterator<Item = Silence>) {
        for silence in stored {
            let id = silence.id.clone();
            self.manager.silences.put(silence);
            self.wait_for_silence(now, &id);
        }
    }

    pub(super) fn silence(&mut self, now: Ts, plan: &Plan, out: &mut Vec<Effect>) {
        if let Some(old) = &plan.replaces {
            self.manager.silences.expire(old, now);
            self.keep_silence(now, old, out);
        }
        self.manager.silences.put(plan.silence.clone());
        self.keep_silence(now, &plan.silence.id, out);
        self.manager.reconsider(now, out);
    }

    pub(super) fn expire_silence(&mut self, now: Ts, id: &str, out: &mut Vec<Effect>) {
        if self.manager.silences.expire(id, now).is_some() {
            self.keep_silence(now, id, out);
            self.manager.reconsider(now, out);
        }
    }

    /// Something is due about a silence, or was while we were away.
    pub(super) fn tick_silence(&mut self, now: Ts, id: &str, out: &mut Vec<Effect>) {
        match self.manager.silences.due(id, now) {
            Some(Due::Remind) => {
                if self.manager.remind_of_silence(now, id, out) {
                    self.manager.silences.mark_reminded(id, now);
                    return self.keep_silence(now, id, out);
                }
            }
            Some(Due::Forget) => self.manager.silences.forget(id),
            Some(Due::Begins | Due::Ends) | None => self.manager.reconsider(now, out),
        }
        self.wait_for_silence(now, id);
    }

    fn keep_silence(&mut self, now: Ts, id: &str, out: &mut Vec<Effect>) {
        if let Some(silence) = self.manager.silences.get(id) {
            out.push(Effect::Silence(Box::new(silence.clone())));
        }
        self.wait_for_silence(now, id);
    }

    fn wait_for_silence(&mut self, now: Ts, id: &str) {
        let next = self.manager.silences.next(id, now).map(|(at, _)| at);
        self.timers.set(&Key::Silence(id.to_owned()), next);
    }

    /// A run says that it is about to be restarted on purpose, for how long and why.
    pub(super) fn planned_restart(
        &mut self,
        now: Ts,
        run: &str,
        seconds: Option<f64>,
        (reason, last_progress): (&str, Ts),
        out: &mut Vec<Effect>,
    ) {
        let max = self.manager.silences.config().max_planned_restart;
        let length = seconds.map_or(max, |s| Span::from_secs_f64(s.clamp(0.0, max.as_secs_f64())));
        if let Some(silence) = self.manager.silences.planned(run, length, reason, last_progress, now) {
            self.silence(now, &Plan { silence, replaces: None }, out);
        }
    }

    /// A run that makes steps in a new attempt is back: what it planned is over.
    pub(super) fn back_from_restart(&mut self, now: Ts, run: &str, attempt_at: Ts, out: &mut Vec<Effect>) {
        let planned = self.manager.silences.planned_of(run);
        let Some(planned) = planned.filter(|s| s.phase(now) == Phase::Active && attempt_at > s.starts_at)
        else {
            return;
        };
        let id = planned.id.clone();
        self.expire_silence(now, &id, out);
    }

    /// A silence may be of one incident only: when the last that it matches resolves, it is over.
    pub(super) fn expire_on_resolve(&mut self, now: Ts, from: usize, out: &mut Vec<Effect>) {
        if out.len() == from || !self.manager.silences.any_expires_on_resolve() {
            return;
        }
        let resolved = |e: &Effect| match e {
            Effect::Incident(r) if r.state == State::Resolved => Some((**r).clone()),
            _ => None,
        };
        let gone: Vec<IncidentRecord> = out.iter().skip(from).filter_map(resolved).collect();
        for record in gone {
            let ended: Vec<String> = self
                .manager
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

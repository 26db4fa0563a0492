//! Handles silences: requests, begins, ends, and reminders.

use super::{Key, Responder};
use crate::effect::Effect;
use crate::effect::Tx;
use crate::incident::{IncidentRecord, State};
use crate::silence::{Due, Phase, Plan, Refusal, Silence, Silences, Wanted};
use stepwatch_model::{Span, Ts};

impl Responder {
    pub fn silences(&self) -> &Silences {
        self.manager.suppressor.silences()
    }

    /// Plans a requested silence, or returns why it is refused. `fresh` is an id that no silence
    /// has.
    pub fn plan_silence(&self, now: Ts, wanted: Wanted, fresh: &str) -> Result<Plan, Refusal> {
        self.manager.suppressor.silences().plan(wanted, fresh, now)
    }

    /// Restores stored silences. Must be called before the engine gets any input.
    pub fn restore_silences(&mut self, now: Ts, stored: impl IntoIterator<Item = Silence>) {
        for mut silence in stored {
            if silence.is_spent(now) {
                silence.unload();
            }
            let id = silence.id.clone();
            self.manager.suppressor.silences_mut().put(silence);
            self.wait_for_silence(now, &id);
        }
        self.forget_crowded_out(now);
    }

    /// Forgets ended silences above the limit. Silences that end by themselves stay within the
    /// limits of those that have not ended, so that a check at each change is enough.
    fn forget_crowded_out(&mut self, now: Ts) {
        for id in self.manager.suppressor.silences_mut().forget_crowded_out(now) {
            self.wait_for_silence(now, &id);
        }
    }

    pub(super) fn silence(&mut self, tx: &mut Tx<'_>, plan: &Plan) {
        let now = tx.now;
        if let Some(old) = &plan.replaces {
            self.manager.suppressor.silences_mut().expire(old, now);
            self.keep_silence(tx, old);
        }
        self.manager.suppressor.silences_mut().put(plan.silence.clone());
        self.keep_silence(tx, &plan.silence.id);
        self.manager.reconsider(tx);
    }

    pub(super) fn expire_silence(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        if self.manager.suppressor.silences_mut().expire(id, now).is_some() {
            self.keep_silence(tx, id);
            self.manager.reconsider(tx);
        }
    }

    /// Handles what is due about a silence, or became due while the alerter was down.
    pub(super) fn tick_silence(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        match self.manager.suppressor.silences().due(id, now) {
            Some(Due::Remind) => {
                if self.manager.remind_of_silence(tx, id) {
                    self.manager.suppressor.silences_mut().mark_reminded(id, now);
                    return self.keep_silence(tx, id);
                }
            }
            Some(Due::Forget) => self.manager.suppressor.silences_mut().forget(id),
            Some(Due::Ends) => {
                self.manager.suppressor.silences_mut().unload(id);
                self.manager.reconsider(tx);
            }
            Some(Due::Begins) | None => self.manager.reconsider(tx),
        }
        self.wait_for_silence(now, id);
    }

    fn keep_silence(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        if let Some(silence) = self.manager.suppressor.silences().get(id) {
            tx.out.push(Effect::Silence(Box::new(silence.clone())));
        }
        self.wait_for_silence(now, id);
        self.forget_crowded_out(now);
    }

    fn wait_for_silence(&mut self, now: Ts, id: &str) {
        let next = self.manager.suppressor.silences().next(id, now).map(|(at, _)| at);
        self.timers.set(&Key::Silence(id.to_owned()), next);
    }

    /// Handles a run's announcement of a planned restart, with its length and reason.
    pub(super) fn planned_restart(
        &mut self,
        tx: &mut Tx<'_>,
        run: &str,
        seconds: Option<f64>,
        (reason, last_progress): (&str, Ts),
    ) {
        let now = tx.now;
        let max = self.manager.suppressor.silences().config().max_planned_restart;
        let length = seconds.map_or(max, |s| Span::from_secs_f64(s.clamp(0.0, max.as_secs_f64())));
        let silences = self.manager.suppressor.silences_mut();
        if let Some(silence) = silences.planned(run, length, reason, last_progress, now) {
            self.silence(tx, &Plan { silence, replaces: None });
        }
    }

    /// Ends the silence of a planned restart, because the run makes steps in a new attempt.
    pub(super) fn back_from_restart(&mut self, tx: &mut Tx<'_>, run: &str, attempt_at: Ts) {
        let now = tx.now;
        let planned = self.manager.suppressor.silences().planned_of(run);
        let Some(planned) = planned.filter(|s| s.phase(now) == Phase::Active && attempt_at > s.starts_at)
        else {
            return;
        };
        let id = planned.id.clone();
        self.expire_silence(tx, &id);
    }

    /// Ends silences that end when the last incident that they match resolves.
    pub(super) fn expire_on_resolve(&mut self, tx: &mut Tx<'_>, from: usize) {
        let now = tx.now;
        if tx.out.len() == from || !self.manager.suppressor.silences().any_expires_on_resolve() {
            return;
        }
        let resolved = |e: &Effect| match e {
            Effect::Incident(r) if r.state == State::Resolved => Some((**r).clone()),
            _ => None,
        };
        let gone: Vec<IncidentRecord> = tx.out.iter().skip(from).filter_map(resolved).collect();
        for record in gone {
            let ended: Vec<String> = self
                .silences()
                .all()
                .filter(|s| s.expire_on_resolve && s.phase(now) == Phase::Active && s.matches(&record.labels))
                .filter(|s| {
                    let mut fire = self.open_incidents().chain(self.resolved_still_firing());
                    !fire.any(|record| s.matches(&record.labels))
                })
                .map(|s| s.id.clone())
                .collect();
            for id in ended {
                self.expire_silence(tx, &id);
            }
        }
    }
}

//! Composes the parts: findings become incidents, incidents notifications, and deadlines calls to
//! their owner.

mod alerts;
mod dry_run;
mod overrides;
mod silences;
mod state;

use crate::effect::Tx;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepwatch_model::{Cause, Detected, Directory, RunIncidents, Scope, Subject, Ts, timers::Timers};

use crate::config::ResponderConfig;
use crate::effect::by_actor;
use crate::effect::{Action, Effect, Input, Notification};
use crate::incident::IncidentRecord;
use crate::incident::audit::Flaw;
use crate::incident::delivery_failure::Undelivered;
use crate::incident::manager::Manager;
use crate::message::{Message, Why};
use crate::oncall::OnCall;

pub use dry_run::DryRun;

#[derive(Debug, Default)]
pub struct Responder {
    manager: Manager,
    timers: Timers<Key>,
    dirty: BTreeSet<Key>,
    /// The runs of each incident, as of the last feedback to the monitor.
    runs: BTreeMap<String, BTreeSet<String>>,
    /// Runs whose incidents changed since the last feedback.
    changed_runs: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// The next external alert to end.
    Alerts,
    Calendar(String),
    Storms,
    Incident(String),
    FlapHistory,
    Memory(Subject),
    Silence(String),
}

impl Responder {
    pub fn new(config: ResponderConfig) -> Self {
        Self { manager: Manager::new(config), ..Self::default() }
    }

    /// Handles what `stepwatch-detect` detected at one moment.
    pub fn detected(&mut self, now: Ts, what: &[Detected], out: &mut Vec<Effect>) {
        if what.is_empty() {
            return;
        }
        let before = out.len();
        what.iter().for_each(|what| self.take(&mut Tx::new(now, out), what));
        self.manager.explain_others(&mut Tx::new(now, out));
        self.manager.note_answers(&mut Tx::new(now, out), before);
        self.expire_on_resolve(&mut Tx::new(now, out), before);
        self.settle();
    }

    fn take(&mut self, tx: &mut Tx<'_>, what: &Detected) {
        match what {
            Detected::Finding { context, finding } => {
                // The monitor assumes that a raised finding has an open incident until the feedback
                // says otherwise.
                if let Scope::Run(run) = &context.scope
                    && finding.change.raises()
                {
                    self.changed_runs.insert(run.clone());
                }
                self.manager.finding(tx, context, finding);
            }
            Detected::RunRestarted { run } => self.manager.run_restarted(run),
            Detected::RunResumed { run, attempt_at } => self.back_from_restart(tx, run, *attempt_at),
            Detected::RestartPlanned { run, seconds, reason, last_progress } => {
                self.planned_restart(tx, run, *seconds, (reason, *last_progress));
            }
            Detected::RunEnded { run, by_hand, heirs } => {
                self.manager.run_ended(tx, run, *by_hand, heirs);
            }
            Detected::HeardAgain { run } => self.manager.heard_again(tx, run),
            Detected::Forgotten { scope, heard_at } => self.manager.forgotten(tx, scope, *heard_at),
        }
    }

    /// Handles one input that happened at `now`.
    pub fn handle(&mut self, now: Ts, input: Input<'_>, directory: &impl Directory, out: &mut Vec<Effect>) {
        let before = out.len();
        match input {
            Input::Act { incident, by, action } => {
                self.manager.act(&mut Tx::new(now, out), incident, by, action)
            }
            Input::Own { check, severity, fault } => {
                self.manager.own(&mut Tx::new(now, out), check, severity, fault)
            }
            Input::Store { fault, recorded } => self.manager.store(&mut Tx::new(now, out), fault, recorded),
            Input::Replicas { differing } => self.manager.replicas(&mut Tx::new(now, out), differing),
            Input::Delivered { incident, receiver, action } => {
                out.push(by_actor(now, incident, receiver, format!("{} delivered", action.as_str())));
                self.manager.taken(&mut Tx::new(now, out), incident, receiver);
            }
            Input::AllReached => self.manager.all_reached(&mut Tx::new(now, out)),
            Input::Calendar { schedule, text } => self.calendar(now, schedule, text),
            Input::Unreached { incident, receiver, waited, error } => {
                let what = Undelivered { incident, receiver, error };
                self.manager.unreached(&mut Tx::new(now, out), what, waited);
            }
            Input::PutOff { incident, receiver, wait, error } => {
                let what = Undelivered { incident, receiver, error };
                self.manager.put_off(&mut Tx::new(now, out), what, wait);
            }
            Input::Failed { incident, receiver, action, error } => {
                let what = Undelivered { incident, receiver, error };
                self.manager.failed(&mut Tx::new(now, out), what, action);
            }
            Input::Silence { plan } => self.silence(&mut Tx::new(now, out), plan),
            Input::ExpireSilence { id } => self.expire_silence(&mut Tx::new(now, out), id),
            Input::Override { record } => self.put_override(&mut Tx::new(now, out), record),
            Input::Alerts { posted } => self.take_alerts(&mut Tx::new(now, out), posted, directory),
        }
        self.manager.explain_others(&mut Tx::new(now, out));
        self.manager.note_answers(&mut Tx::new(now, out), before);
        self.expire_on_resolve(&mut Tx::new(now, out), before);
        self.settle();
    }

    /// Handles the first deadline that is due at `now`; false if none is. Thousands of incidents
    /// may be due at once, so the caller can do other work between two calls.
    pub fn tick_one(&mut self, now: Ts, directory: &impl Directory, out: &mut Vec<Effect>) -> bool {
        let Some(key) = self.timers.pop_due(now) else { return false };
        let before = out.len();
        match &key {
            Key::Alerts => self.tick_alerts(&mut Tx::new(now, out), directory),
            Key::Silence(id) => self.tick_silence(&mut Tx::new(now, out), id),
            Key::Incident(id) => self.manager.tick(&mut Tx::new(now, out), id),
            Key::Calendar(_) | Key::Storms | Key::FlapHistory | Key::Memory(_) => {}
        }
        if let Key::Incident(id) = &key {
            self.manager.touched.push(id.clone());
        }
        self.manager.explain_others(&mut Tx::new(now, out));
        self.manager.note_answers(&mut Tx::new(now, out), before);
        self.expire_on_resolve(&mut Tx::new(now, out), before);
        self.settle();
        true
    }

    /// Re-arms the incidents that changed and marks them for storing.
    fn settle(&mut self) {
        for id in core::mem::take(&mut self.manager.touched) {
            self.note_runs(&id);
            let key = Key::Incident(id);
            if let Key::Incident(id) = &key {
                self.timers.set(&key, self.manager.deadline(id).map(|(at, _)| at));
            }
            self.dirty.insert(key);
            self.dirty.extend([Key::FlapHistory, Key::Storms]);
        }
        self.dirty
            .extend(self.manager.correlator.flap_history_mut().take_changed().into_iter().map(Key::Memory));
    }

    /// Marks the runs of an incident for feedback: those that it is about now, and was about
    /// before.
    fn note_runs(&mut self, id: &str) {
        let runs = self.manager.runs_of(id);
        self.changed_runs.extend(runs.iter().cloned());
        let had = if runs.is_empty() { self.runs.remove(id) } else { self.runs.insert(id.to_owned(), runs) };
        self.changed_runs.extend(had.into_iter().flatten());
    }

    /// The state of the incidents of all runs that changed since the last call.
    pub fn take_run_incidents(&mut self) -> impl Iterator<Item = RunIncidents> {
        let runs = core::mem::take(&mut self.changed_runs).into_iter();
        runs.map(|run| RunIncidents {
            notified: self.manager.correlator.is_notified_of(&self.manager.open, &run),
            numerics: self.manager.correlator.is_about(&self.manager.open, &run, Cause::Numerics),
            standstill_or_slowness: self.manager.correlator.standstill_or_slowness(&self.manager.open, &run),
            run,
        })
    }

    /// Whether [`Self::take_run_incidents`] would return anything.
    pub fn has_run_incidents(&self) -> bool {
        !self.changed_runs.is_empty()
    }

    /// When [`Self::tick_one`] must be called next, and why.
    pub fn next_deadline(&self) -> Option<(Ts, &'static str)> {
        let (at, key) = self.timers.first()?;
        let why = match key {
            Key::Incident(id) => self.manager.deadline(id).map_or("incident", |(_, why)| why),
            Key::Silence(_) => "a silence",
            _ => "the end of an alert",
        };
        Some((at, why))
    }

    /// Replaces the configuration; open incidents keep their level.
    pub fn reconfigure(&mut self, config: ResponderConfig) {
        // The stored text of a calendar that is no longer configured is removed.
        self.dirty.extend(self.manager.dispatcher.oncall().known_calendars().into_iter().map(Key::Calendar));
        self.manager.configure(config);
        self.settle();
    }

    /// The current text of a message that waited; `None` if it is sent as it is: an
    /// acknowledgement, or an end.
    pub fn reword(&self, now: Ts, n: &Notification) -> Option<Message> {
        let why = Why::new(n.message.because, n.message.reason.clone());
        let news = matches!(n.action, Action::Trigger | Action::Update);
        self.manager.words(now, &n.incident, n.action, &why).filter(|_| news)
    }

    /// Invariants of incidents that are violated. There are none unless this program has a bug.
    pub fn audit(&self, now: Ts) -> Vec<Flaw> {
        self.manager.audit(now, |id| self.timers.of(&Key::Incident(id.to_owned())))
    }

    /// Open pages of teams without receivers, of which nobody else may be notified either.
    pub fn homeless(&self) -> Vec<String> {
        let homeless = self.manager.open.values().filter(|i| i.is_homeless());
        homeless.map(|i| i.record.id.clone()).collect()
    }

    /// Repairs incidents with flaws, so that people are notified again.
    pub fn mend(&mut self, now: Ts, flaws: &[Flaw]) {
        for flaw in flaws {
            self.manager.mend(now, &flaw.incident);
        }
        self.settle();
    }

    /// Checks what suppresses each open incident, after silences or the configuration changed.
    pub fn reconsider(&mut self, now: Ts, out: &mut Vec<Effect>) {
        self.manager.reconsider(&mut Tx::new(now, out));
        self.settle();
    }

    /// Handles the loss of the stored state of these runs and nodes.
    pub fn unread(&mut self, now: Ts, unread: &BTreeSet<Scope>, out: &mut Vec<Effect>) {
        if unread.is_empty() {
            return;
        }
        self.manager.unread(&mut Tx::new(now, out), unread);
        self.manager.explain_others(&mut Tx::new(now, out));
        self.settle();
    }

    /// The runs for which a standstill is raised, and when the incident opened.
    pub fn standstills(&self) -> impl Iterator<Item = (&str, Ts)> {
        self.manager.standstills()
    }

    pub fn config(&self) -> &ResponderConfig {
        &self.manager.config
    }

    /// Incidents that are not resolved.
    pub fn open_incidents(&self) -> impl Iterator<Item = &IncidentRecord> {
        self.manager.open.values().map(|i| &i.record)
    }

    /// Incidents that a person resolved and that still fire. They reopen unless they are over by
    /// then.
    pub fn resolved_still_firing(&self) -> impl Iterator<Item = &IncidentRecord> {
        self.manager.closed.iter().map(|(_, i)| &i.record)
    }

    /// Whether an incident is open, or will reopen unless it is over by then.
    pub fn holds(&self, id: &str) -> bool {
        self.manager.open.contains_key(id) || self.manager.closed.get(id).is_some()
    }

    pub fn open_count(&self) -> usize {
        self.manager.open.len()
    }

    pub fn incident(&self, id: &str) -> Option<&IncidentRecord> {
        self.manager.open.get(id).map(|i| &i.record)
    }

    /// Reads a calendar. A text that is not a calendar changes nothing; the caller has reported
    /// that.
    fn calendar(&mut self, now: Ts, schedule: &str, text: Option<&str>) {
        let oncall = self.manager.dispatcher.oncall_mut();
        let taken = match text {
            Some(text) => oncall.read_calendar(schedule, text, now).is_ok(),
            None => oncall.calendar_stands(schedule, now),
        };
        if taken {
            self.dirty.insert(Key::Calendar(schedule.to_owned()));
        }
    }

    /// Takes over the on-call state of another responder, including calendars.
    pub fn adopt_oncall(&mut self, oncall: &OnCall) {
        *self.manager.dispatcher.oncall_mut() = oncall.clone();
    }

    /// The on-call state.
    pub fn oncall(&self) -> &Arc<OnCall> {
        self.manager.dispatcher.oncall()
    }
}

/// Shortcuts for tests of incidents.
#[cfg(test)]
impl Responder {
    /// Handles a finding as if a detector had raised it.
    pub(crate) fn judge(
        &mut self,
        now: Ts,
        context: &stepwatch_model::Context,
        v: &stepwatch_model::Finding,
        out: &mut Vec<Effect>,
    ) {
        self.manager.finding(&mut Tx::new(now, out), context, v);
        self.settle();
    }

    pub(crate) fn manager(&mut self) -> &mut Manager {
        &mut self.manager
    }
}

/// A directory that knows nothing.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoDirectory;

#[cfg(test)]
impl Directory for NoDirectory {
    fn knows_node(&self, _: &str) -> bool {
        false
    }

    fn run_on(&self, _: &str) -> Option<String> {
        None
    }

    fn run_of_job(&self, _: &str) -> Option<String> {
        None
    }

    fn summary(&self, _: Ts, _: &str) -> Option<stepwatch_model::RunSummary> {
        None
    }

    fn first_seen(&self, _: &str) -> Option<Ts> {
        None
    }
}

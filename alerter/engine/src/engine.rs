//! Composition only: inputs to runs, verdicts to incidents, incidents to notifications, deadlines
//! to whoever set them.

mod admission;
mod alerts;
mod nodes;
#[cfg(test)]
mod probe;
mod rehearsal;
mod silences;
mod sources;
mod standards;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepwatch_wire::{Event, Kind as EventKind};

use crate::batches::{Batches, Elsewhere};
use crate::changes::{Before, Changes, RunChange};
use crate::config::EngineConfig;
use crate::effect::{Action, Effect, Input, Notification};
use crate::fabric::Fabric;
use crate::incident::audit::Flaw;
use crate::incident::book::{Book, Party, by_actor};
use crate::incident::{IncidentRecord, Scope, Subject};
use crate::message::{Message, Why};
use crate::node::Node;
use crate::oncall::OnCall;
use crate::placement::Placement;
use crate::run::{FORGET_AFTER, Run};
use crate::time::{Span, Ts};
use crate::timers::Timers;
use crate::verdict::{Observation, Suspect, Target, Verdict};

/// The name under which sources that feed no run are watched.
pub const NO_RUN: &str = "-";
/// Runs watched at once; events of further ones are counted and dropped.
const MAX_RUNS: usize = 100_000;
/// How long an ended run is remembered: someone may still ask, and a launcher may restart it.
const KEEP_ENDED: Span = Span::secs(3600);
/// A run is looked at no more often than this when nothing happens.
const LOOK_AGAIN: Span = Span::millis(10);

pub use admission::{Refusal, Refused};
pub use rehearsal::Rehearsal;
use sources::{Source, Speakers};
pub use state::StatePart;

#[derive(Debug, Default)]
pub struct Engine {
    runs: BTreeMap<String, Run>,
    nodes: BTreeMap<String, Node>,
    placement: Placement,
    fabric: Fabric,
    sources: BTreeMap<String, Source>,
    speakers: Speakers,
    /// By node, the source whose own it is. Not stored: the sources say so again.
    owners: BTreeMap<String, String>,
    /// When room was last looked for among all runs.
    looked_for_room: Ts,
    book: Book,
    /// Where runs spiked in their data.
    batches: Batches,
    timers: Timers<Key>,
    dirty: BTreeSet<Key>,
    dropped_runs: u64,
    dropped_nodes: u64,
    standards: BTreeMap<String, standards::Held>,
    dropped_standards: u64,
    scratch: Vec<Verdict>,
    changes: Changes,
    /// Runs and nodes whose stored state could not be read.
    unread: BTreeSet<Scope>,
    /// Runs that stood still when what was known of them was lost.
    unmoved: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// All that others tell of: the next of them to end.
    Alerts,
    Batches,
    Calendar(String),
    Storms,
    Incident(String),
    Ledger,
    Memory(Subject),
    Node(String),
    Run(String),
    Silence(String),
    Source(String),
    Standard(String),
}

impl Engine {
    pub fn new(config: EngineConfig) -> Self {
        Self { book: Book::new(config), ..Self::default() }
    }

    /// Feeds one input that happened at `now`.
    pub fn handle(&mut self, now: Ts, input: Input<'_>, out: &mut Vec<Effect>) {
        let before = out.len();
        match input {
            Input::Event { source, event } => self.event(now, source, event, out),
            Input::SourceUp { source, many_nodes } => {
                self.is_up(now, source, many_nodes);
                self.each_run_of(now, source, out, |run| run.facts.source_up(now, source))
            }
            Input::SourceDown { source, reason } => {
                self.answers(source, false);
                let node = self.sources.get(source).and_then(Source::node).cloned();
                let node = node.as_deref();
                self.each_run_of(now, source, out, |run| run.facts.source_down(now, source, node, reason));
            }
            Input::SourceGone { source } => {
                self.each_run_of(now, source, out, |run| run.facts.source_gone(source));
                self.forget_source(source);
            }
            Input::Ack { incident, by } => self.book.ack(now, incident, by, out),
            Input::Resolve { incident, by } => self.book.resolve_by_hand(now, incident, by, out),
            Input::Escalate { incident, by } => self.book.escalate(now, incident, by, out),
            Input::Unack { incident, by } => self.book.unack(now, incident, by, out),
            Input::Note { incident, by, what } => out.push(by_actor(now, incident, by, what.to_owned())),
            Input::Own { check, severity, fault } => self.book.own(now, check, severity, fault, out),
            Input::Delivered { incident, receiver, action } => {
                out.push(by_actor(now, incident, receiver, format!("{} delivered", action.as_str())));
            }
            Input::Calendar { schedule, text } => self.calendar(now, schedule, text),
            Input::Unreached { incident, receiver, waited, error } => {
                self.book.unreached(now, incident, receiver, waited, error, out);
            }
            Input::PutOff { incident, receiver, wait, error } => {
                self.book.put_off(now, incident, receiver, wait, error, out);
            }
            Input::Failed { incident, receiver, action, error } => {
                self.book.failed(now, incident, receiver, action, error, out);
            }
            Input::Silence { plan } => self.silence(now, plan, out),
            Input::ExpireSilence { id } => self.expire_silence(now, id, out),
            Input::Alerts { told } => self.take_alerts(now, told, out),
        }
        self.book.explain_others(now, out);
        self.expire_on_resolve(now, before, out);
        self.settle();
    }

    fn event(&mut self, now: Ts, source: &str, event: &Event, out: &mut Vec<Effect>) {
        if !self.admits(now, source, event, out) {
            return;
        }
        if matches!(event.kind, EventKind::Xid | EventKind::Link | EventKind::Hw | EventKind::Health) {
            return self.node_event(now, event, out);
        }
        let Some(name) = event.run.as_deref() else { return };
        // Nearly all events are steps of runs that are known: one look-up serves them.
        let ended = match event.kind {
            EventKind::Step => self.take(now, name, source, event, out),
            _ => None,
        };
        let Some(ended) = ended.or_else(|| self.introduce(now, name, source, event, out)) else { return };
        if event.kind == EventKind::Step {
            self.back_from_restart(now, name, out);
        }
        if (ended || event.kind == EventKind::Step) && !self.unmoved.is_empty() && self.unmoved.remove(name) {
            self.book.heard_again(now, name, out);
        }
        if ended {
            self.end_of_run(now, name, out);
        }
    }

    /// Lets a run take an event; whether it is over, if it is known.
    fn take(
        &mut self,
        now: Ts,
        name: &str,
        source: &str,
        event: &Event,
        out: &mut Vec<Effect>,
    ) -> Option<bool> {
        self.with_run(now, name, out, |run, verdicts| run.event(now, source, event, verdicts))
    }

    /// The same for an event of a run that may be new, or say more than a step.
    fn introduce(
        &mut self,
        now: Ts,
        name: &str,
        source: &str,
        event: &Event,
        out: &mut Vec<Effect>,
    ) -> Option<bool> {
        if !self.runs.contains_key(name) {
            if event.kind == EventKind::Bye {
                return None;
            }
            self.runs.insert(name.to_owned(), Run::new(name, now, &self.book.config.detectors));
            self.told_by(source, name, event);
        }
        if event.kind == EventKind::Event {
            self.planned_restart(now, name, event, out);
        }
        self.take(now, name, source, event, out)
    }

    /// A run that ended well takes its incidents with it.
    fn end_of_run(&mut self, now: Ts, name: &str, out: &mut Vec<Effect>) {
        let ended = self.runs.get(name).and_then(|r| r.facts.ended.as_ref());
        if let Some(by_hand) = ended.filter(|e| e.well() && !e.silent && e.at == now).map(|e| e.by_hand()) {
            let heirs = self.heirs(now, name);
            self.book.run_ended(now, name, by_hand, &heirs, out);
        }
    }

    /// Lets `act` change a run, and carries its verdicts to the incidents; whether it is over, if
    /// it is known.
    fn with_run(
        &mut self,
        now: Ts,
        name: &str,
        out: &mut Vec<Effect>,
        act: impl FnOnce(&mut Run, &mut Vec<Verdict>),
    ) -> Option<bool> {
        let run = self.runs.get_mut(name)?;
        let mut verdicts = core::mem::take(&mut self.scratch);
        let (attempt, before) = (run.facts.attempt, Before::of(run));
        act(run, &mut verdicts);
        self.changes.note(now, &before, run);
        let ended = run.facts.ended.is_some();
        let (again, moved) = (run.facts.attempt != attempt, !run.facts.moved.is_empty());
        // Most events are steps like the one before.
        if !again && !moved && !run.wants_standard() && verdicts.is_empty() {
            self.scratch = verdicts;
            note_run(&mut self.timers, &mut self.dirty, now, name, run);
            return Some(ended);
        }
        if again {
            self.book.run_restarted(name);
        }
        if moved {
            self.place(now, name);
        }
        self.measure(now, name);
        if !verdicts.is_empty() {
            self.judge_run(now, name, &mut verdicts, out);
            verdicts.clear();
        }
        self.scratch = verdicts;
        if let Some(run) = self.runs.get_mut(name) {
            note_run(&mut self.timers, &mut self.dirty, now, name, run);
        }
        Some(ended)
    }

    fn judge_run(&mut self, now: Ts, name: &str, verdicts: &mut [Verdict], out: &mut Vec<Effect>) {
        let Some(run) = self.runs.get(name) else { return };
        let f = &run.facts;
        let owned = |node: &str| node.to_owned();
        let party = Party {
            lost: f.out_of_reach().into_iter().map(owned).collect(),
            dark: f.dark().into_iter().map(|(node, _)| owned(node)).collect(),
            origin: Some(run.origin()),
            ..Party::new(
                Scope::Run(name.to_owned()),
                self.summary(now, run),
                f.nodes.keys().cloned().collect(),
                f.last_progress,
            )
        };
        for v in verdicts {
            self.explain(now, name, v);
            self.remember_batch(now, name, v);
            self.book.verdict(now, &party, v, out);
        }
    }

    /// A spike at data that made others spike is told as that.
    fn remember_batch(&mut self, now: Ts, name: &str, v: &mut Verdict) {
        let Some(run) = self.runs.get(name) else { return };
        let Some(stretch) = run.facts.batch_size.of(v, run.facts.interval) else { return };
        let attempt = run.facts.attempt;
        let elsewhere = self.batches.elsewhere(&stretch, name, attempt);
        if !elsewhere.is_empty() {
            let words = elsewhere.words();
            v.suspects.insert(
                0,
                Suspect::new(Target::Batch { step: v.start_step }, Observation::SpikedElsewhere(elsewhere)),
            );
            v.why.add(format_args!("so did {words} at the same place in the data"));
        }
        if self.batches.remember(now, stretch, name, attempt) {
            self.dirty.insert(Key::Batches);
        }
    }

    /// What changed of the runs since somebody asked.
    pub fn take_changes(&mut self) -> Vec<RunChange> {
        self.changes.take()
    }

    /// Which other runs, or attempts of this one, spiked at the data of `step`.
    pub fn spiked_elsewhere(&self, run: &str, step: i64) -> Elsewhere {
        let found = self.runs.get(run);
        found.map_or_else(Elsewhere::default, |r| {
            self.batches.elsewhere(&r.facts.batch_size.at(step), run, r.facts.attempt)
        })
    }

    /// Runs what is due at `now`.
    pub fn tick(&mut self, now: Ts, out: &mut Vec<Effect>) {
        while self.tick_one(now, out) {}
    }

    /// Runs the first of what is due at `now`; false if nothing is. Thousands of incidents may be
    /// due at once, and whoever has something else to do meanwhile need not wait for all of
    /// them.
    pub fn tick_one(&mut self, now: Ts, out: &mut Vec<Effect>) -> bool {
        let Some(key) = self.timers.pop_due(now) else { return false };
        let before = out.len();
        match &key {
            Key::Alerts => self.tick_alerts(now, out),
            Key::Silence(id) => self.tick_silence(now, id, out),
            Key::Incident(id) => self.book.tick(now, id, out),
            Key::Run(name) => self.tick_run(now, name, out),
            Key::Node(name) => self.tick_node(now, name, out),
            Key::Batches
            | Key::Calendar(_)
            | Key::Storms
            | Key::Ledger
            | Key::Memory(_)
            | Key::Source(_)
            | Key::Standard(_) => {}
        }
        if let Key::Incident(id) = &key {
            self.book.touched.push(id.clone());
        }
        self.book.explain_others(now, out);
        self.expire_on_resolve(now, before, out);
        self.settle();
        true
    }

    fn tick_run(&mut self, now: Ts, name: &str, out: &mut Vec<Effect>) {
        if let Some(run) = self.runs.get_mut(name) {
            run.noted.timer = None;
        }
        if self.runs.get(name).is_some_and(|r| now >= forget_at(r)) {
            return self.forget_run(now, name, out);
        }
        // A timer whose deadline has moved is of no meaning: it would not have fired in an engine that was
        // restored meanwhile.
        if let Some(at) = self.runs.get(name).and_then(run_deadline).filter(|at| *at > now) {
            self.timers.set_earlier(&Key::Run(name.to_owned()), Some(at));
            return;
        }
        self.with_run(now, name, out, |run, verdicts| run.look(now, verdicts));
    }

    /// Re-arms the incidents that changed and marks them for storing.
    fn settle(&mut self) {
        for id in core::mem::take(&mut self.book.touched) {
            let key = Key::Incident(id);
            if let Key::Incident(id) = &key {
                self.timers.set(&key, self.book.deadline(id).map(|(at, _)| at));
            }
            self.dirty.insert(key);
            self.dirty.extend([Key::Ledger, Key::Storms]);
        }
        self.dirty.extend(core::mem::take(&mut self.book.ledger.changed).into_iter().map(Key::Memory));
    }

    /// When `tick` must be called next, and why.
    pub fn next_deadline(&self) -> Option<(Ts, &'static str)> {
        let (at, key) = self.timers.first()?;
        let why = match key {
            Key::Incident(id) => self.book.deadline(id).map_or("incident", |(_, why)| why),
            Key::Node(_) => "a node's clock",
            Key::Silence(_) => "a silence",
            Key::Alerts => "the end of an alert",
            _ => "a run's clock",
        };
        Some((at, why))
    }

    /// Replaces the configuration; open incidents keep their level.
    pub fn reconfigure(&mut self, config: EngineConfig) {
        for (name, run) in &mut self.runs {
            run.configure(&config.detectors);
            self.timers.set_earlier(&Key::Run(name.clone()), run_deadline(run));
        }
        for (name, node) in &mut self.nodes {
            node.configure(&config.detectors);
            self.timers.set_earlier(&Key::Node(name.clone()), Some(node.deadline()));
        }
        // What is stored of a calendar that nobody asks for any more goes with it.
        self.dirty.extend(self.book.oncall.known_calendars().into_iter().map(Key::Calendar));
        self.book.configure(config);
        self.settle();
    }

    /// What a message that waited is to say now; `None` if it is to be sent as it is: an answer,
    /// and what is over.
    pub fn reword(&self, now: Ts, n: &Notification) -> Option<Message> {
        let why = Why::new(n.message.because, n.message.reason.clone());
        let news = matches!(n.action, Action::Trigger | Action::Update);
        self.book.words(now, &n.incident, n.action, &why).filter(|_| news)
    }

    /// Open incidents of which nobody would ever hear again: there are none, unless this program is
    /// wrong.
    pub fn audit(&self, now: Ts) -> Vec<Flaw> {
        self.book.audit(now, |id| self.timers.of(&Key::Incident(id.to_owned())))
    }

    /// Open pages of teams that name nobody, where nobody else may be told of them either.
    pub fn homeless(&self) -> Vec<String> {
        self.book.homeless()
    }

    /// Sees to it that those people are told all the same.
    pub fn mend(&mut self, now: Ts, flaws: &[Flaw]) {
        for flaw in flaws {
            self.book.mend(now, &flaw.incident);
        }
        self.settle();
    }

    /// Silences or the configuration changed: looks again at what hides each open incident.
    pub fn reconsider(&mut self, now: Ts, out: &mut Vec<Effect>) {
        self.book.reconsider(now, out);
        self.settle();
    }

    /// Tells a restored engine that it was blind until `now`: silence before it counts against
    /// nobody.
    pub fn resume(&mut self, now: Ts, out: &mut Vec<Effect>) {
        let unread = core::mem::take(&mut self.unread);
        if !unread.is_empty() {
            self.book.unread(now, &unread, out);
            self.book.explain_others(now, out);
            self.settle();
        }
        // Nobody has lost anything while nobody listened.
        self.sources.values_mut().for_each(|s| s.heard_at = now);
        self.wait_for_steps(now);
        for (name, run) in &mut self.runs {
            run.facts.resume(now);
            run.noted.timer = run_deadline(run);
            self.timers.set(&Key::Run(name.clone()), run.noted.timer);
        }
    }

    /// Finds the runs of which nothing is known but that they stood still. They are remembered, so
    /// that their end is heard, or that they are never heard again.
    fn wait_for_steps(&mut self, now: Ts) {
        for (name, told) in self.book.standstills() {
            if !self.runs.contains_key(name) {
                self.runs.insert(name.to_owned(), Run::new(name, now, &self.book.config.detectors));
                self.dirty.insert(Key::Run(name.to_owned()));
            }
            let unknown = |run: &Run| run.facts.total_steps == 0 && told < run.facts.first_seen;
            if self.runs.get(name).is_some_and(unknown) {
                self.unmoved.insert(name.to_owned());
            }
        }
    }

    /// Incidents that are not resolved.
    pub fn open_incidents(&self) -> impl Iterator<Item = &IncidentRecord> {
        self.book.open.values().map(|i| &i.record)
    }

    /// Incidents that a person resolved and that still fire: they come back unless they are over
    /// before.
    pub fn resolved_still_firing(&self) -> impl Iterator<Item = &IncidentRecord> {
        self.book.closed.iter().map(|(_, i)| &i.record)
    }

    /// Whether an incident is open, or comes back unless it is over before.
    pub fn holds(&self, id: &str) -> bool {
        self.book.open.contains_key(id) || self.book.closed.get(id).is_some()
    }

    pub fn open_count(&self) -> usize {
        self.book.open.len()
    }

    pub fn incident(&self, id: &str) -> Option<&IncidentRecord> {
        self.book.open.get(id).map(|i| &i.record)
    }

    /// What is not a calendar changes nothing: whoever reads it has looked at it before.
    fn calendar(&mut self, now: Ts, schedule: &str, text: Option<&str>) {
        let oncall = Arc::make_mut(&mut self.book.oncall);
        let taken = match text {
            Some(text) => oncall.read_calendar(schedule, text, now).is_ok(),
            None => oncall.calendar_stands(schedule, now),
        };
        if taken {
            self.dirty.insert(Key::Calendar(schedule.to_owned()));
        }
    }

    /// Who is on call when.
    pub fn oncall(&self) -> &Arc<OnCall> {
        &self.book.oncall
    }

    /// The runs that are watched.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.values().filter(|r| r.facts.name != NO_RUN)
    }

    /// Every node that spoke for itself.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Events of runs beyond the limit.
    pub fn dropped_runs(&self) -> u64 {
        self.dropped_runs
    }

    /// Numbers of series beyond the limit of their run, of the runs that are watched.
    pub fn dropped_signals(&self) -> u64 {
        self.runs.values().map(|r| r.counters.signals_over_limit).sum()
    }

    /// Spikes whose place in the data was forgotten for want of room.
    pub fn forgotten_batches(&self) -> u64 {
        self.batches.forgotten()
    }

    /// Events of nodes beyond the limit.
    pub fn dropped_nodes(&self) -> u64 {
        self.dropped_nodes
    }
}

/// A run changed: it is to be stored, and looked at when its deadline comes. Both are noted already
/// of nearly every run that steps.
fn note_run(timers: &mut Timers<Key>, dirty: &mut BTreeSet<Key>, now: Ts, name: &str, run: &mut Run) {
    // A deadline that lies behind us was looked at just now.
    let next = run_deadline(run).map(|at| at.max(now + LOOK_AGAIN));
    let sooner = next.filter(|at| run.noted.timer.is_none_or(|set| *at < set));
    if sooner.is_none() && run.noted.dirty {
        return;
    }
    let key = Key::Run(name.to_owned());
    if sooner.is_some() {
        timers.set_earlier(&key, sooner);
        run.noted.timer = sooner;
    }
    dirty.insert(key);
    run.noted.dirty = true;
}

fn forget_at(run: &Run) -> Ts {
    match &run.facts.ended {
        Some(e) if e.well() => e.at + KEEP_ENDED,
        _ => run.facts.last_heard + FORGET_AFTER,
    }
}

fn run_deadline(run: &Run) -> Option<Ts> {
    if run.facts.name == NO_RUN {
        return run.deadline();
    }
    Some(run.deadline().map_or_else(|| forget_at(run), |at| at.min(forget_at(run))))
}

//! Runs, nodes and the sources that report them. The monitor passes inputs and due deadlines to the
//! runs and nodes, and collects their findings.

mod admission;
mod allocations;
mod baselines;
mod directory;
mod energy;
mod jobs;
mod kept_accounts;
mod node;
mod nodes;
mod outages;
mod owners;
mod refusal;
mod run;
mod save_interval;
mod scraped;
mod series;
mod setups;
mod sources;
mod state;
mod users;
mod watched_series;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepwatch_model::time::{Span, Ts};
use stepwatch_model::timers::Timers;
use stepwatch_model::{
    Cause, Context, Detected, Elsewhere, Finding, Kind, NO_RUN, Observation, RunIncidents, Scope, Suspect,
    Target, clause,
};
use stepwatch_wire::names::pod;
use stepwatch_wire::{Event, Kind as EventKind, Value};

use crate::batches::Batches;
use crate::changes::{Before, Changes, RunChange};
use crate::detectors::DetectorsConfig;
use crate::expectation::JudgedSample;
use crate::fabric::Fabric;
use crate::kernel_messages::KernelMessages;
use crate::placement::Placement;
use crate::run::{FORGET_AFTER, Fleet, KeptAccounts, KnownSetup, PLANNED_RESTART, RunHour, look_is_due};
use crate::series::SeriesReading;

/// Runs watched at once; events of further ones are counted and dropped.
const MAX_RUNS: usize = 100_000;
/// How long an ended run is remembered: someone may still ask, and a launcher may restart it.
const KEEP_ENDED: Span = Span::secs(3600);
/// Judged samples that wait to be taken; more are counted and dropped.
const MAX_JUDGED: usize = 16_384;
/// A run is looked at no more often than this when nothing happens.
const LOOK_AGAIN: Span = Span::millis(10);

pub use node::{News, Node};
pub use refusal::{Refusal, Refused};
pub use run::{Counters, Run};
pub use scraped::SCRAPED;
use sources::{Source, Speakers};

/// What comes from the sources.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A record of a source's stream, in order.
    Event { source: &'a str, event: &'a Event },
    /// The source answers (again).
    /// `many_nodes`: the configuration allows it to report other nodes too.
    SourceUp { source: &'a str, many_nodes: bool },
    /// The connection to the source failed or ended.
    SourceDown { source: &'a str, reason: &'a str },
    /// The source left the configuration or the discovery files: it is not lost, it is gone.
    SourceGone { source: &'a str },
    /// Values of series of other programs that are watched by their names.
    Readings { readings: &'a [SeriesReading] },
}

/// A record of a source's stream, as it came in.
#[derive(Debug, Clone, Copy)]
struct Record<'a> {
    now: Ts,
    source: &'a str,
    event: &'a Event,
}

#[derive(Debug, Default)]
pub struct Monitor {
    config: Arc<DetectorsConfig>,
    runs: BTreeMap<String, Run>,
    nodes: BTreeMap<String, Node>,
    placement: Placement,
    fabric: Fabric,
    /// Not stored: it follows from the nodes.
    kernel_messages: KernelMessages,
    sources: BTreeMap<String, Source>,
    speakers: Speakers,
    /// By node, the source that owns it. Not stored: the sources report their nodes again.
    owners: BTreeMap<String, String>,
    /// When room was last looked for among all runs.
    looked_for_room: Ts,
    /// By run, what is known of its open incidents. Not stored: it is fed back again.
    incidents: BTreeMap<String, RunIncidents>,
    /// Where runs spiked in their data.
    batches: Batches,
    timers: Timers<Key>,
    dirty: BTreeSet<Key>,
    dropped_runs: u64,
    dropped_nodes: u64,
    baselines: BTreeMap<String, baselines::Baseline>,
    series: watched_series::WatchedSeries,
    dropped_baselines: u64,
    /// By run: how the last good attempt was set up, and how runs were that are forgotten.
    good_setups: BTreeMap<String, Arc<KnownSetup>>,
    kept_setups: BTreeMap<String, Arc<KnownSetup>>,
    dropped_setups: u64,
    /// By run, of those that are forgotten.
    kept_accounts: BTreeMap<String, KeptAccounts>,
    dropped_accounts: u64,
    /// Failures of all runs.
    fleet: Fleet,
    /// Hours of runs that are over, and those of runs that are forgotten.
    hours: Vec<RunHour>,
    scratch: Vec<Finding>,
    /// Somebody takes the judged samples.
    records: bool,
    judged: Vec<JudgedSample>,
    dropped_judged: u64,
    changes: Changes,
    /// Runs and nodes whose stored state could not be read.
    unread: BTreeSet<Scope>,
    /// Runs that stood still when what was known of them was lost.
    unmoved: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Batches,
    Node(String),
    Run(String),
    Source(String),
    Baseline(String),
    /// A part of the series that are watched by their names.
    Series(u32),
    /// Only a timer.
    SeriesSweep,
    KeptAccounts(String),
    /// The failures of all runs.
    Fleet,
    GoodSetup(String),
    KeptSetup(String),
}

impl Monitor {
    pub fn new(config: Arc<DetectorsConfig>) -> Self {
        Self { config, ..Self::default() }
    }

    /// Takes one input that happened at `now`.
    pub fn handle(&mut self, now: Ts, input: Input<'_>, out: &mut Vec<Detected>) {
        match input {
            Input::Event { source, event } => self.event(Record { now, source, event }, out),
            Input::SourceUp { source, many_nodes } => {
                self.is_up(now, source, many_nodes);
                self.each_run_of(now, source, out, |run| run.state.source_up(now, source))
            }
            Input::SourceDown { source, reason } => {
                self.answers(source, false);
                let node = self.sources.get(source).and_then(Source::node).cloned();
                let node = node.as_deref();
                self.each_run_of(now, source, out, |run| run.state.source_down(now, source, node, reason));
            }
            Input::SourceGone { source } => {
                self.each_run_of(now, source, out, |run| run.state.source_gone(source));
                self.forget_source(source);
            }
            Input::Readings { readings } => self.readings(now, readings, out),
        }
    }

    /// Takes note of what became of the incidents of a run.
    pub fn learn(&mut self, incidents: RunIncidents) {
        let none = incidents.notified.is_none() && incidents.standstill_or_slowness.is_none();
        if none && !incidents.numerics {
            self.incidents.remove(&incidents.run);
        } else {
            self.incidents.insert(incidents.run.clone(), incidents);
        }
    }

    fn event(&mut self, record: Record<'_>, out: &mut Vec<Detected>) {
        let Record { now, event, .. } = record;
        if !self.admits(record, out) {
            return;
        }
        if let Some(about) = Self::other_node(event) {
            return self.outage(record, about, out);
        }
        if event.kind == EventKind::Health && event.name.as_deref() == Some(pod::NAME) {
            return self.pod(record, out);
        }
        if matches!(event.kind, EventKind::Xid | EventKind::Link | EventKind::Hw | EventKind::Health) {
            return self.node_event(now, event, out);
        }
        let Some(name) = event.run.as_deref() else { return };
        // Nearly all events are steps of runs that are known: one look-up serves them.
        let ended = match event.kind {
            EventKind::Step => self.take(record, name, out),
            _ => None,
        };
        let Some(ended) = ended.or_else(|| self.introduce(record, name, out)) else { return };
        if (ended || event.kind == EventKind::Step) && !self.unmoved.is_empty() && self.unmoved.remove(name) {
            out.push(Detected::HeardAgain { run: name.to_owned() });
        }
        if ended {
            self.end_of_run(now, name, out);
        }
    }

    /// Lets a run take a record. Gives whether the run is over, if the run is known.
    fn take(&mut self, record: Record<'_>, name: &str, out: &mut Vec<Detected>) -> Option<bool> {
        let Record { now, source, event } = record;
        self.with_run(now, name, out, |run, findings| run.event(now, source, event, findings))
    }

    /// The same where the run may be new, or the event may be more than a step.
    fn introduce(&mut self, record: Record<'_>, name: &str, out: &mut Vec<Detected>) -> Option<bool> {
        let event = record.event;
        if !self.runs.contains_key(name) {
            if event.kind == EventKind::Bye {
                return None;
            }
            self.begin_run(record.now, name);
            self.note_reporter(record, name);
            self.make_room_for_signals(record, name);
        }
        if event.kind == EventKind::Event {
            self.planned_restart(name, event, out);
        }
        if event.kind == EventKind::Hello {
            self.joins_job(record.now, name, event);
        }
        self.take(record, name, out)
    }

    /// A run that ended well takes its incidents with it.
    fn end_of_run(&mut self, now: Ts, name: &str, out: &mut Vec<Detected>) {
        let ended = self.runs.get(name).and_then(|r| r.state.ended.as_ref());
        if let Some(by_hand) = ended.filter(|e| e.well() && !e.silent && e.at == now).map(|e| e.by_hand()) {
            let heirs = self.heirs(now, name);
            out.push(Detected::RunEnded { run: name.to_owned(), by_hand, heirs });
        }
    }

    /// Lets `act` change a run, and carries its findings to the incidents; whether it is over, if
    /// it is known.
    fn with_run(
        &mut self,
        now: Ts,
        name: &str,
        out: &mut Vec<Detected>,
        act: impl FnOnce(&mut Run, &mut Vec<Finding>),
    ) -> Option<bool> {
        let run = self.runs.get_mut(name)?;
        let mut findings = core::mem::take(&mut self.scratch);
        let (attempt, steps) = (run.state.attempt, run.state.attempt_steps);
        let before = Before::from_run(&run.state);
        let stood = !run.state.steps_since_restart();
        run.recording.on = self.records;
        act(run, &mut findings);
        collect(&mut self.judged, &mut self.dropped_judged, run);
        self.changes.note(now, &before, &run.state);
        if run.note_found(&findings, &mut self.fleet) {
            self.dirty.insert(Key::Fleet);
        }
        let ended = run.state.ended.is_some();
        let resumed = (stood && run.state.steps_since_restart()).then_some(run.state.attempt_at);
        let (again, moved) = (run.state.attempt != attempt, !run.state.moved.is_empty());
        let looks = look_is_due(steps, run.state.attempt_steps);
        let measures = run.wants_standard() || run.wants_starts();
        // Most events are steps like the one before.
        if !again && !moved && !looks && !measures && findings.is_empty() {
            self.scratch = findings;
            note_run(&mut self.timers, &mut self.dirty, now, name, run);
            out.extend(resumed.map(|attempt_at| resumed_of(name, attempt_at)));
            return Some(ended);
        }
        if again {
            out.push(Detected::RunRestarted { run: name.to_owned() });
        }
        if moved {
            self.place(now, name);
        }
        self.measure(now, name);
        if looks {
            self.look_at_setup(now, name, &mut findings);
        }
        self.compare_start(name);
        if !findings.is_empty() {
            self.judge_run(now, name, &mut findings, out);
            findings.clear();
        }
        self.scratch = findings;
        out.extend(resumed.map(|attempt_at| resumed_of(name, attempt_at)));
        if let Some(run) = self.runs.get_mut(name) {
            note_run(&mut self.timers, &mut self.dirty, now, name, run);
        }
        Some(ended)
    }

    fn judge_run(&mut self, now: Ts, name: &str, findings: &mut [Finding], out: &mut Vec<Detected>) {
        let Some(run) = self.runs.get(name) else { return };
        let f = &run.state;
        let owned = |node: &str| node.to_owned();
        let context = Context {
            lost: f.out_of_reach().into_iter().map(owned).collect(),
            dark: f.dark().into_iter().map(|(node, _)| owned(node)).collect(),
            origin: Some(run.origin()),
            ..Context::new(
                Scope::Run(name.to_owned()),
                self.summary_of(now, run),
                f.nodes.keys().cloned().collect(),
                f.last_progress,
            )
        };
        for v in findings {
            self.explain(now, name, v);
            self.remember_batch(now, name, v);
            self.note_raised(name, v);
            self.note_numerics(name, v);
            out.push(Detected::finding(&context, v));
        }
    }

    /// Adds to a spike the other runs and attempts that spiked at the same data.
    fn remember_batch(&mut self, now: Ts, name: &str, v: &mut Finding) {
        let Some(run) = self.runs.get(name) else { return };
        let Some(stretch) = run.state.batch_size.stretch_of(v, run.state.interval) else { return };
        let attempt = run.state.attempt;
        let elsewhere = self.batches.elsewhere(&stretch, name, attempt);
        if !elsewhere.is_empty() {
            let others = elsewhere.clause();
            v.suspects.insert(
                0,
                Suspect::new(Target::Batch { step: v.start_step }, Observation::SpikedElsewhere(elsewhere)),
            );
            v.why.add(clause!("so did {others} at the same place in the data", others));
        }
        if self.batches.remember(now, stretch, name, attempt) {
            self.dirty.insert(Key::Batches);
        }
    }

    /// Until it is fed back, what was just found is known of the run's incidents.
    fn note_raised(&mut self, run: &str, v: &Finding) {
        let rank = |kind: Kind| match kind.cause() {
            Cause::Progress => Some((0, kind)),
            Cause::Speed => Some((1, kind)),
            _ => None,
        };
        let Some(new) = rank(v.kind).filter(|_| v.change.raises()) else { return };
        let known = self.incidents.entry(run.to_owned()).or_default();
        run.clone_into(&mut known.run);
        if known.standstill_or_slowness.and_then(rank).is_none_or(|had| new < had) {
            known.standstill_or_slowness = Some(v.kind);
        }
    }

    /// A run announces that it is about to be restarted on purpose, for how long and why.
    fn planned_restart(&self, name: &str, event: &Event, out: &mut Vec<Detected>) {
        if event.name.as_deref() != Some(PLANNED_RESTART) {
            return;
        }
        let Some(run) = self.runs.get(name) else { return };
        let seconds = event.extra.get("seconds").and_then(Value::as_f64).filter(|s| s.is_finite());
        out.push(Detected::RestartPlanned {
            run: name.to_owned(),
            seconds,
            reason: event.text.clone().unwrap_or_default(),
            last_progress: run.state.last_progress,
        });
    }

    /// Keeps the samples of all runs, as they are judged, until [`Self::take_judged`].
    pub fn record_judged(&mut self) {
        self.records = true;
    }

    /// The samples that were judged since the last call, in order.
    pub fn take_judged(&mut self) -> impl Iterator<Item = JudgedSample> + '_ {
        self.judged.drain(..)
    }

    /// Judged samples that nobody took in time.
    pub fn dropped_judged(&self) -> u64 {
        self.dropped_judged
    }

    /// The changes of the runs since the last call.
    pub fn take_changes(&mut self) -> Vec<RunChange> {
        self.changes.take()
    }

    /// Which other runs, or attempts of this one, spiked at the data of `step`.
    pub fn spiked_elsewhere(&self, run: &str, step: i64) -> Elsewhere {
        let found = self.runs.get(run);
        found.map_or_else(Elsewhere::default, |r| {
            self.batches.elsewhere(&r.state.batch_size.at(step), run, r.state.attempt)
        })
    }

    /// Runs the first of what is due at `now`; false if nothing is.
    pub fn tick_one(&mut self, now: Ts, out: &mut Vec<Detected>) -> bool {
        let Some(key) = self.timers.pop_due(now) else { return false };
        match &key {
            Key::Run(name) => self.tick_run(now, name, out),
            Key::Node(name) => self.tick_node(now, name, out),
            Key::SeriesSweep => self.sweep_series(now, out),
            Key::Batches
            | Key::Source(_)
            | Key::Baseline(_)
            | Key::KeptAccounts(_)
            | Key::Series(_)
            | Key::Fleet
            | Key::GoodSetup(_)
            | Key::KeptSetup(_) => {}
        }
        true
    }

    fn tick_run(&mut self, now: Ts, name: &str, out: &mut Vec<Detected>) {
        if let Some(run) = self.runs.get_mut(name) {
            run.noted.timer = None;
        }
        if self.runs.get(name).is_some_and(|r| now >= forget_at(r)) {
            return self.forget_run(now, name, out);
        }
        // A timer whose deadline has moved is ignored: it would not have fired in an engine that
        // was restored meanwhile.
        if let Some(at) = self.runs.get(name).and_then(run_deadline).filter(|at| *at > now) {
            self.timers.set_earlier(&Key::Run(name.to_owned()), Some(at));
            return;
        }
        self.with_run(now, name, out, |run, findings| run.look(now, findings));
    }

    /// When [`Self::tick_one`] must be called next, and why.
    pub fn next_deadline(&self) -> Option<(Ts, &'static str)> {
        let (at, key) = self.timers.first()?;
        let why = match key {
            Key::Node(_) => "a node's clock",
            Key::SeriesSweep => "a look at the series",
            _ => "a run's clock",
        };
        Some((at, why))
    }

    /// Replaces the settings of the detectors.
    pub fn reconfigure(&mut self, config: Arc<DetectorsConfig>) {
        for (name, run) in &mut self.runs {
            run.configure(&config);
            self.timers.set_earlier(&Key::Run(name.clone()), run_deadline(run));
        }
        for (name, node) in &mut self.nodes {
            node.configure(&config);
            self.timers.set_earlier(&Key::Node(name.clone()), Some(node.deadline()));
        }
        self.series.configure(&config.generic);
        self.config = config;
    }

    /// Resumes a restored monitor that received nothing until `now`: silence before `now` does not
    /// count as silence of a run or source. `standstills`: the runs with an open incident of a
    /// standstill, and since when it is open.
    pub fn resume<'a>(&mut self, now: Ts, standstills: impl Iterator<Item = (&'a str, Ts)>) {
        // No source is lost for the time in which the monitor did not run.
        self.sources.values_mut().for_each(|s| s.heard_at = now);
        self.wait_for_steps(now, standstills);
        self.resume_series(now);
        for (name, run) in &mut self.runs {
            run.state.resume(now);
            run.noted.timer = run_deadline(run);
            self.timers.set(&Key::Run(name.clone()), run.noted.timer);
        }
    }

    /// The runs and nodes whose stored state could not be read.
    pub fn take_unread(&mut self) -> BTreeSet<Scope> {
        core::mem::take(&mut self.unread)
    }

    /// Finds the runs of which only the standstill is known. They are remembered, so that their
    /// incident ends when they step again, end, or are never heard of again.
    fn wait_for_steps<'a>(&mut self, now: Ts, standstills: impl Iterator<Item = (&'a str, Ts)>) {
        for (name, opened) in standstills {
            if !self.runs.contains_key(name) {
                self.begin_run(now, name);
                self.dirty.insert(Key::Run(name.to_owned()));
            }
            let unknown = |run: &Run| run.state.total_steps == 0 && opened < run.state.first_seen;
            if self.runs.get(name).is_some_and(unknown) {
                self.unmoved.insert(name.to_owned());
            }
        }
    }

    /// The runs that are watched.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.values().filter(|r| r.state.name != NO_RUN)
    }

    pub fn run(&self, name: &str) -> Option<&Run> {
        self.runs.get(name).filter(|r| r.state.name != NO_RUN)
    }

    /// The runs that have ranks on a node.
    pub fn runs_on(&self, node: &str) -> impl Iterator<Item = &str> {
        self.placement.on(node).map(String::as_str)
    }

    /// Every node that an exporter reported.
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
    // A deadline in the past was handled just now.
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

/// Takes the samples that a run has just been given.
fn collect(judged: &mut Vec<JudgedSample>, dropped: &mut u64, run: &mut Run) {
    if run.recording.samples.is_empty() {
        return;
    }
    let room = MAX_JUDGED - judged.len();
    *dropped += run.recording.samples.len().saturating_sub(room) as u64;
    judged.extend(run.recording.samples.drain(..).take(room));
}

fn resumed_of(run: &str, attempt_at: Ts) -> Detected {
    Detected::RunResumed { run: run.to_owned(), attempt_at }
}

fn forget_at(run: &Run) -> Ts {
    match &run.state.ended {
        Some(e) if e.well() => e.at + KEEP_ENDED,
        _ => run.state.last_heard + FORGET_AFTER,
    }
}

fn run_deadline(run: &Run) -> Option<Ts> {
    if run.state.name == NO_RUN {
        return run.deadline();
    }
    Some(run.deadline().map_or_else(|| forget_at(run), |at| at.min(forget_at(run))))
}

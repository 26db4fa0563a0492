//! Training state: every run that this node receives events of, merged from all its sources.
//!
//! Time is an argument, and events to publish are the output, so all of it is tested without a
//! clock or a socket. It keeps no history beyond a few minutes of extremes: the stream and
//! Prometheus do.

mod admission;
mod archive;
mod checkpoint;
mod death;
mod epoch;
pub mod families;
mod gauge;
mod gpus;
mod histogram;
mod holders;
mod join;
mod logged;
mod metric_dedup;
pub mod mfu;
mod nonfinite;
pub mod peaks;
mod phases;
mod rank;
mod role;
mod run;
mod sanitize;
mod stale;
#[cfg(test)]
mod tests;
mod user_limits;
mod window;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use stepwatch_wire::{Event, EventError, Kind};

pub use archive::Archive;
pub use checkpoint::CheckpointPlace;
pub use death::ProcessFate;
pub use families::FAMILIES;

use crate::drops::{Drops, Reason};
use crate::origin::{Origin, Outcome};
use crate::principal::{Principal, in_turn};
use logged::Logged;
use mfu::Convention;
use rank::Rank;
use role::Role;
use run::{Context, Gpu, Run, Stepped};
use user_limits::{LoggedRefusals, Newcomers};

#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub max_runs: usize,
    /// The most new names of runs that one user may add in a minute.
    pub new_per_minute: f64,
    /// Patterns of run names that every user may report.
    pub shared: Vec<glob::Pattern>,
    pub max_ranks: usize,
    pub max_custom: usize,
    /// Seconds without reports after which a run or a rank leaves the metrics page.
    pub forget_after: f64,
    /// Seconds that a run stays after all its ranks have ended: long enough to be scraped once
    /// more.
    pub linger: f64,
    pub convention: Convention,
    /// The GPU of this node, if the operator configured it.
    pub gpu: Option<String>,
}

#[derive(Debug)]
pub struct Training {
    options: Options,
    runs: BTreeMap<Arc<str>, Run>,
    archive: Archive,
    /// The Unix time of each run's last report to an earlier process of this exporter.
    heard_before: BTreeMap<String, f64>,
    /// The GPU that the driver reports.
    detected_gpu: Option<String>,
    drops: Arc<Drops>,
    /// Whether a run or an attempt began, so that the state has to be saved at once.
    urgent: bool,
    /// Whether the excess of runs was logged. Reset when there are fewer runs.
    logged_full: bool,
    newcomers: Newcomers,
    logged_refusals: LoggedRefusals,
    logged: Logged,
}

/// The state of a run that commands and the API show.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Life {
    pub attempt: u32,
    pub step: Option<i64>,
    pub owner: Principal,
    /// How many events of other principals were refused.
    pub refused: BTreeMap<Principal, u64>,
}

/// The greatest age in seconds of the saved state when the exporter is killed.
const SAVED_WITHIN_SECONDS: f64 = 2.0;

/// A training process, for the collectors of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingProcess {
    pub pid: u32,
    /// The user that connected.
    pub uid: u32,
    pub run: String,
    pub rank: String,
}

impl Training {
    pub fn new(options: Options, archive: Archive, drops: Arc<Drops>) -> Self {
        Self {
            options,
            runs: BTreeMap::new(),
            heard_before: archive.runs.iter().map(|(name, run)| (name.clone(), run.heard)).collect(),
            archive,
            detected_gpu: None,
            drops,
            urgent: false,
            logged_full: false,
            newcomers: Newcomers::default(),
            logged_refusals: LoggedRefusals::default(),
            logged: Logged::default(),
        }
    }

    pub fn set_options(&mut self, options: Options) {
        self.options = options;
        self.find_peaks();
    }

    pub fn set_detected_gpu(&mut self, gpu: Option<String>) {
        if self.detected_gpu != gpu {
            self.detected_gpu = gpu;
            self.find_peaks();
        }
    }

    fn find_peaks(&mut self) {
        let gpu = Gpu { configured: self.options.gpu.as_deref(), detected: self.detected_gpu.as_deref() };
        self.runs.values_mut().for_each(|run| run.find_peak(gpu));
    }

    pub fn lives(&self) -> BTreeMap<String, Life> {
        let life = |run: &Run| Life {
            attempt: run.epoch.attempt,
            step: run.step.map(|(_, step)| step),
            owner: run.owner,
            refused: run.refused.clone(),
        };
        self.runs.values().map(|run| (run.name.to_string(), life(run))).collect()
    }

    /// The runs that `principal` may report.
    pub fn runs_of(&self, principal: Principal, now: f64) -> Vec<String> {
        let may = |run: &&Arc<str>| self.not_theirs(run, principal, Kind::Step, now).is_none();
        let names = self.runs.keys().filter(may);
        names.map(ToString::to_string).collect()
    }

    pub fn follows(&self, run: &str) -> bool {
        self.runs.contains_key(run)
    }

    /// Takes in an event. `out` receives the events to publish, in order.
    pub fn apply(&mut self, now: f64, origin: &Origin, mut event: Event, out: &mut Vec<Event>) -> Outcome {
        if let Err(why) = may_say(&event, origin) {
            return Outcome::Rejected(why);
        }
        let repaired = sanitize::repair(&mut event, now);
        self.drops.add(Reason::Timestamp, repaired.times);
        self.drops.add(Reason::Absurd, repaired.values);
        let Some(name) = event.run.clone() else {
            return without_run(event, now, out);
        };
        let principal = origin.principal();
        if let Err(reason) = self.admit(&name, event.kind, principal, now) {
            return self.refused(&name, principal, (event.kind, reason), now);
        }
        let options = &self.options;
        let context = context(options, self.detected_gpu.as_deref(), origin, now);
        let number = event.rank.unwrap_or(0);
        let limit = if self.has_room_for_rank(&name, number) { options.max_ranks } else { 0 };
        let Some(run) = self.runs.get_mut(name.as_str()) else { return self.dropped(Reason::Runs) };
        run.heard = now;
        run.world = event.world.or(run.world);
        let before = run.owner;
        run.owner = admission::owner_after(before, run.settled, principal, event.kind).unwrap_or(before);
        if before != run.owner && event.kind != Kind::Hello && run.ranks.contains_key(&number) {
            out.push(of_run(run.hello_again(&name, number), run.owner, now));
        }
        let owner = run.owner;
        if run::only_describes(&event, context.source) {
            run.describe(&event, context);
            return Outcome::Accepted;
        }
        let Some(rank) = run.rank(number, limit, now) else {
            self.leave_out(&name, principal, (Reason::Ranks, 1), now);
            return Outcome::Dropped(Reason::Ranks);
        };
        if event.kind == Kind::Bye && !rank.is_goodbye(origin, &mut event) {
            return self.dropped(Reason::Duplicate);
        }
        rank.hear(origin, &event, now);
        match event.kind {
            Kind::Hello => run.hello(&event, context),
            Kind::Step => {
                let stepped = run.step(&mut event, context);
                run.settled |= stepped.dropped.is_none() && run.owner.is_trusted() && is_of_root(origin);
                self.leave_out(&name, principal, (Reason::Custom, stepped.custom_dropped), now);
                if let Err(outcome) = self.stepped(stepped, owner, now, out) {
                    return outcome;
                }
            }
            Kind::Eval => run.eval(&event),
            Kind::Ckpt => run.checkpoints.apply(&event, number, event.ts.unwrap_or(now).min(now)),
            Kind::Phase => phase(rank, &event, now),
            Kind::Bye if event.rank.is_none() => run.ended(&event),
            Kind::Bye
            | Kind::Hb
            | Kind::Event
            | Kind::Xid
            | Kind::Link
            | Kind::Hw
            | Kind::Health
            | Kind::Gap => {}
        }
        event.attempt = event.attempt.or_else(|| self.attempt_of(&name, number));
        out.push(of_run(event, owner, now));
        Outcome::Accepted
    }

    fn attempt_of(&self, run: &str, rank: u32) -> Option<u32> {
        let rank = self.runs.get(run)?.ranks.get(&rank)?;
        Some(rank.epoch.attempt)
    }

    /// Counts the outcome of a step and publishes the event that precedes it. An error means that
    /// nothing of the step is left to publish.
    fn stepped(
        &mut self,
        stepped: Stepped,
        owner: Principal,
        now: f64,
        out: &mut Vec<Event>,
    ) -> Result<(), Outcome> {
        self.drops.add(Reason::Repeated, stepped.repeated);
        if let Some(reason) = stepped.dropped {
            return Err(self.dropped(reason));
        }
        if let Some(restart) = stepped.restart {
            self.urgent = true;
            let Event { run, rank, step, text, .. } = &restart;
            if self.logged.has_room(now) {
                tracing::info!(run, rank, step, text, "restart");
            }
            out.push(of_run(restart, owner, now));
        }
        if stepped.silent { Err(Outcome::Accepted) } else { Ok(()) }
    }

    fn dropped(&self, reason: Reason) -> Outcome {
        self.drops.count(reason);
        Outcome::Dropped(reason)
    }

    fn forget(&mut self, name: &Arc<str>, now: f64) {
        if let Some(run) = self.runs.remove(name) {
            self.archive.runs.insert(name.to_string(), run.past());
            if self.logged.has_room(now) {
                tracing::info!(run = %name, "the run ended or fell silent, and leaves the page");
            }
        }
    }

    /// Records a closed connection. Ranks that reported only through it and sent no `bye` are dead.
    pub fn closed(&mut self, now: f64, connection: u64, process: ProcessFate, out: &mut Vec<Event>) {
        for run in self.runs.values_mut() {
            for (number, rank) in &mut run.ranks {
                if rank.launchers.remove(&connection).is_some() {
                    let mut death = death::launcher_dead(rank, *number);
                    (death.run, death.world) = (Some(run.name.to_string()), run.world);
                    if self.logged.has_room(now) {
                        tracing::warn!(run = %run.name, rank = number, "launcher dead");
                    }
                    out.push(of_run(death, run.owner, now));
                    continue;
                }
                if !rank.connections.remove(&connection) || !rank.connections.is_empty() || rank.said_bye {
                    continue;
                }
                rank.phases.end_all();
                run.checkpoints.abandon(*number);
                run.deaths += 1;
                let mut death = death::rank_dead(rank, *number, process);
                death.run = Some(run.name.to_string());
                death.world = run.world;
                if self.logged.has_room(now) {
                    tracing::warn!(run = %run.name, rank = number, text = death.text, "rank dead");
                }
                out.push(of_run(death, run.owner, now));
            }
        }
    }

    /// Records a connection closed for another one: its process lives, and may report by other
    /// ways.
    pub fn left(&mut self, connection: u64) {
        for rank in self.runs.values_mut().flat_map(|run| run.ranks.values_mut()) {
            rank.launchers.remove(&connection);
            rank.connections.remove(&connection);
        }
    }

    /// Forgets runs and ranks that have ended, or have not reported for too long.
    pub fn expire(&mut self, now: f64) {
        let (forget, linger) =
            (self.options.forget_after, self.options.linger.min(self.options.forget_after));
        let over = |run: &Run| {
            let keep = if run.is_over() { linger } else { forget };
            !run.is_connected() && now - run.heard > keep
        };
        let ended: Vec<_> = self.runs.values().filter(|r| over(r)).map(|r| Arc::clone(&r.name)).collect();
        ended.iter().for_each(|name| self.forget(name, now));
        self.logged_full &= self.runs.len() >= self.options.max_runs;
        for run in self.runs.values_mut() {
            run.ranks.retain(|_, r| !r.connections.is_empty() || now - r.heard <= forget);
        }
    }

    /// The state to keep across a restart of this exporter.
    pub fn archive(&mut self, now: f64) -> Archive {
        self.urgent = false;
        for run in self.runs.values() {
            self.archive.runs.insert(run.name.to_string(), run.past());
        }
        self.archive.prune(now);
        self.archive.clone()
    }

    pub fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// The last known step of a rank, from this process of the exporter or an earlier one.
    pub fn last_step(&self, run: &str, rank: u32) -> Option<i64> {
        match self.runs.get(run) {
            Some(run) => run.last_step(rank),
            None => self.archive.runs.get(run)?.ranks.get(&rank).map(|r| r.step),
        }
    }

    /// Whether a process that was alive at `beat` may have died without a report reaching this
    /// exporter, before or after a restart.
    pub fn missed(&self, run: &str, rank: u32, pid: u32, beat: f64) -> bool {
        let rank = self.runs.get(run).and_then(|r| r.ranks.get(&rank));
        let spoke = rank.is_some_and(|r| r.connected_once && r.pid == Some(pid));
        // A running exporter sees connections close. The time of the last report is saved a little
        // later.
        !spoke && self.heard_before.get(run).is_none_or(|heard| beat > heard + SAVED_WITHIN_SECONDS)
    }

    /// The directory into which each run writes its checkpoints.
    pub fn checkpoints(&self) -> Vec<CheckpointPlace> {
        self.runs.values().map(|run| run.checkpoints.place(&run.name, run.owner)).collect()
    }

    /// Processes of this node that hold a connection for a rank. Users alternate, so that a caller
    /// that takes only the first ones skips no user.
    pub fn processes(&self) -> Vec<TrainingProcess> {
        let ranks = self.runs.values().flat_map(|run| run.ranks.values().map(move |rank| (run, rank)));
        let here = ranks.filter(|(_, rank)| !rank.connections.is_empty());
        in_turn(here.filter_map(|(run, rank)| {
            let ((pid, uid), rank) = (rank.process?, rank.label.to_string());
            Some((run.owner, TrainingProcess { pid, uid, run: run.name.to_string(), rank }))
        }))
    }
}

fn context<'a>(
    options: &'a Options,
    detected_gpu: Option<&'a str>,
    origin: &'a Origin,
    now: f64,
) -> Context<'a> {
    Context {
        now,
        source: origin.priority(),
        name: origin.name(),
        pid: origin.pid(),
        convention: options.convention,
        max_custom: options.max_custom,
        gpu: Gpu { configured: options.gpu.as_deref(), detected: detected_gpu },
    }
}

impl Rank {
    fn hear(&mut self, origin: &Origin, event: &Event, now: f64) {
        let kind = event.kind;
        self.heard = now;
        self.said_bye = kind == Kind::Bye;
        self.completed = self.said_bye && event.code == Some(0);
        if let Origin::Peer(peer) = origin {
            match Role::of(event) {
                Role::Trainer => {
                    self.connected_once = true;
                    self.connections.insert(peer.connection);
                    self.process = peer.pid.map(|pid| (pid, peer.uid));
                    // A hello is compared with the previous process, so it does not set the pid
                    // here.
                    if kind != Kind::Hello {
                        self.pid = peer.pid.or(self.pid);
                    }
                }
                Role::Launcher if kind == Kind::Bye => drop(self.launchers.remove(&peer.connection)),
                Role::Launcher => drop(self.launchers.insert(peer.connection, peer.pid)),
                Role::Command => {}
            }
        }
        if kind == Kind::Bye {
            self.phases.end_all();
        }
        if let (Kind::Hello | Kind::Hb | Kind::Bye, Some(dropped)) = (kind, event.extra.get("dropped")) {
            self.client_dropped = dropped.as_f64().or(self.client_dropped);
        }
    }
}

fn phase(rank: &mut Rank, event: &Event, now: f64) {
    if let (Some(name), Some(edge)) = (&event.name, event.edge) {
        rank.phases.edge(name, edge, event.ts.unwrap_or(now).min(now));
    }
}

/// Whether the sender is a trainer of root itself. Root's logs, the lines that its launcher reads
/// and the telemetry that it forwards come from trainers of any user.
fn is_of_root(origin: &Origin) -> bool {
    matches!(origin, Origin::Peer(_) | Origin::Datagram(_) | Origin::Http(_))
        && origin.principal().uid().is_some()
        && origin.principal().is_trusted()
}

/// Rejects events that only the exporter publishes, and numbers that no step has.
fn may_say(event: &Event, origin: &Origin) -> Result<(), EventError> {
    let refused = |field: &str, reason: &str| Err(EventError { field: field.into(), reason: reason.into() });
    match event.kind {
        Kind::Gap => refused("k", "gap is written by the exporter alone"),
        Kind::Xid | Kind::Link | Kind::Hw | Kind::Health if *origin != Origin::Node => {
            refused("k", &format!("{} is published by the exporter alone", event.kind.as_str()))
        }
        _ if event.step.is_some_and(|step| step < 0) => refused("step", "must be an integer of at least 0"),
        _ => Ok(()),
    }
}

/// Takes in an event without a run. Those of the node and free text need none; training events do.
fn without_run(event: Event, now: f64, out: &mut Vec<Event>) -> Outcome {
    if needs_run(event.kind) {
        return Outcome::Rejected(EventError { field: "run".into(), reason: "is required".into() });
    }
    out.push(stamped(event, now));
    Outcome::Accepted
}

/// Whether an event of this kind needs a run.
pub fn needs_run(kind: Kind) -> bool {
    match kind {
        Kind::Step | Kind::Eval | Kind::Ckpt | Kind::Phase | Kind::Hello | Kind::Bye | Kind::Gap => true,
        Kind::Hb | Kind::Event | Kind::Xid | Kind::Link | Kind::Hw | Kind::Health => false,
    }
}

/// Completes an event of a run with the user who owns the run. A reader that missed or refused
/// `hello` learns the user from the first step.
fn of_run(event: Event, owner: Principal, now: f64) -> Event {
    Event { uid: owner.uid(), ..stamped(event, now) }
}

fn stamped(event: Event, now: f64) -> Event {
    Event { ts: event.ts.or(Some(now)), ..event }
}

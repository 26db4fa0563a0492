//! The main loop, which owns the clock and the engine.
//!
//! All input reaches the engine here: batches of stream records, outcomes of messages, commands of
//! people, new configurations, and the passing of time. The engine's decisions become durable
//! before they have any effect outside:
//!
//! * Effects, their state, and the cursors of the streams are stored in one transaction (principle
//!   3), so that after a kill exactly the records that were not yet stored are read again.
//! * If the store refuses writes, the commit is retried while the effects wait in memory, and the
//!   loop does not wait for a commit that takes longer than 10 s. When the store has refused for 10
//!   s, pages are sent from memory (`fail_open`). When too many effects wait and history was
//!   already dropped for them, intake stops: the exporters keep the records, and the clock that
//!   would report their silence as a hang stops too.
//!
//! * Commands of people come first, and other work is done in small portions. So a person waits for
//!   one portion and one commit, regardless of the other work.
//!
//! The loop does no I/O except for the store. Requests wait for it only if they change something.

mod auditor;
mod commit;
mod fail_open;
mod happened;
mod outside;
mod overrides;
mod pending;
mod people;
mod queue;
pub(crate) mod recording;
mod recovery;
#[cfg(test)]
mod tests;
mod view;
mod writes;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepwatch_detect::changes::RunChange;
use stepwatch_engine::{Engine, EngineConfig, SourceInput};
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_model::Severity;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Differing, Effect, Input, Notification, TimelineEntry};
use stepwatch_respond::incident::{End, Ended, IncidentRecord, State};
use stepwatch_respond::message::Message;
use stepwatch_wire::{Cursor, Kind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::audit::Entry;
use crate::clock::{Clock, wall};
use crate::events::Events;
use crate::metrics::{KindLabel, RuntimeMetrics, Word};
use crate::node_snapshot::NodeSnapshots;
use crate::outbox::{Feedback, Outcome};
use crate::rank_table::RankTables;
use crate::read_model::ReadModel;
use crate::series::{SeriesTable, keeper};
use crate::store::FAIL_OPEN_AFTER;
use crate::store::{self, Filter, Store};
use crate::templates::Templates;
use auditor::Auditor;
pub use outside::{AlertBatch, Heard, Outside, Silenced, fresh_id};
pub use overrides::{Overridden, OverrideCommand};
use pending::Pending;
pub use people::Unanswered;
pub use queue::{Feed, News, Taken};
pub(crate) use queue::{PART_BYTES, Queue, Share};
pub use stepwatch_respond::effect::IncidentAction;
pub use view::{RuntimeSnapshot, Views};
pub use writes::WriteBatch;

/// The interval at which state and cursors without effects are stored, which is the amount that is
/// read again after a power failure.
const COMMIT_EVERY: Duration = Duration::from_secs(2);
/// The interval at which changes of incidents that notify nobody are stored. The loop waits for a
/// commit, and a run whose incidents change constantly must not occupy it.
const HISTORY_EVERY: Duration = Duration::from_millis(250);
/// The greatest age of the data that the API shows.
const PUBLISH_EVERY: Duration = Duration::from_millis(500);
/// The time limit of one portion of work, after which the loop checks for commands of people.
const PORTION: Duration = Duration::from_millis(10);
/// The most batches of records, and outcomes of messages, of one portion.
const FEEDS_A_PASS: usize = 64;
const OUTCOMES_A_PASS: usize = 64;
/// The approximate number of alerts in one commit.
const ALERTS_A_PASS: usize = 1024;
/// The most effects that wait for the store, which take a few megabytes.
const MAX_PENDING_EFFECTS: usize = 10_000;
/// The delay of a pass from which this process was stopped or its disk stalled, so that the silence
/// of runs is not evidence.
const BLIND_AFTER: Duration = Duration::from_secs(10);
/// The most commands of people that wait.
const QUEUE_COMMANDS: usize = 64;
/// The most requests with alerts that wait; further senders wait too.
const QUEUE_ALERTS: usize = 32;

/// A command to the runtime. It is answered when its effects are durable.
#[derive(Debug)]
pub enum Command {
    Act {
        incident: String,
        by: String,
        action: IncidentAction,
        reply: oneshot::Sender<Answer>,
    },
    Outside(Outside),
    /// About overrides of on-call schedules.
    Override(OverrideCommand),
    /// The state of a check of this alerter: its fault, or `None`.
    Own {
        check: String,
        severity: Severity,
        fault: Option<String>,
    },
    /// Replicas that have differed from this one for long; none if all agree.
    Replicas {
        differing: Vec<Differing>,
    },
    /// The calendar of a schedule; without a text, it is unchanged.
    Calendar {
        schedule: String,
        text: Option<String>,
    },
    /// A command of a person, with the audit entry that is stored with its effects.
    Audited {
        entry: Box<Entry>,
        command: Box<Self>,
    },
    /// Requests the current text of a message that waited.
    Reword {
        notification: Box<Notification>,
        reply: oneshot::Sender<Option<Message>>,
    },
    /// Answered by a working loop.
    Ping {
        reply: oneshot::Sender<()>,
    },
    Reconfigure {
        config: Box<EngineConfig>,
        templates: Arc<Templates>,
        reply: oneshot::Sender<()>,
    },
}

/// The incident after the action; `None` if no such incident is open.
pub type Answer = Option<Box<IncidentRecord>>;

/// Access to a running runtime.
#[derive(Debug, Clone)]
pub struct RuntimeHandle {
    pub commands: mpsc::Sender<Command>,
    pub alerts: mpsc::Sender<AlertBatch>,
    pub views: Arc<Views>,
    pub read_model: Arc<ReadModel>,
    pub series: Arc<SeriesTable>,
    pub events: Arc<Events>,
    pub metrics: RuntimeMetrics,
    /// The engine's clock.
    pub clock: Clock,
}

/// The loop and its state.
#[derive(Debug)]
pub struct Runtime {
    engine: Engine,
    store: Store,
    clock: Clock,
    commands: mpsc::Receiver<Command>,
    alerts: mpsc::Receiver<AlertBatch>,
    feeds: mpsc::Receiver<Feed>,
    writes: mpsc::Receiver<WriteBatch>,
    feedback: mpsc::Receiver<Feedback>,
    changes: mpsc::Sender<RunChange>,
    pending: Pending,
    templates: Arc<Templates>,
    /// The number of effects waiting for the store at which intake stops.
    max_pending: usize,
    /// The incidents known as open or about to reopen, to detect new ones.
    open: BTreeSet<String>,
    /// One counter per kind of event, in the order of the kinds.
    events: Vec<prometheus_client::metrics::counter::Counter>,
    metrics: RuntimeMetrics,
    views: Arc<Views>,
    read_model: Arc<ReadModel>,
    series: Arc<SeriesTable>,
    happened: Arc<Events>,
    /// The time and number of each run's last published step event.
    stepped: BTreeMap<String, (Ts, i64)>,
    /// Copies of the nodes and ranks, for readers.
    nodes: NodeSnapshots,
    ranks: RankTables,
    schedule: Schedule,
    auditor: Auditor,
}

/// The times at which the loop acts without input.
#[derive(Debug)]
struct Schedule {
    last_pass: Instant,
    /// When the last commit began.
    commit_began: Instant,
    /// When state or cursors that changed since the last commit are stored.
    commit_due: Option<Instant>,
    publish_due: Option<Instant>,
    /// When the database file is checked next.
    look_due: Instant,
    /// When the commit is retried after a refusal, and the pause before it.
    retry: Option<(Instant, Duration)>,
    /// The reason for the refusal that was last logged.
    refused_for: String,
}

/// The other ends of the runtime's queues.
#[derive(Debug)]
pub struct Inputs {
    pub feeds: mpsc::Receiver<Feed>,
    pub writes: mpsc::Receiver<WriteBatch>,
    pub feedback: mpsc::Receiver<Feedback>,
    /// The queue for changes of runs.
    pub changes: mpsc::Sender<RunChange>,
    /// The templates of messages, applied before they are stored.
    pub templates: Arc<Templates>,
}

impl Runtime {
    /// Restores the engine from the store. The cursors are the positions at which the streams
    /// continue.
    pub async fn restore(
        store: Store,
        config: EngineConfig,
        inputs: Inputs,
        metrics: RuntimeMetrics,
    ) -> store::Result<(Self, RuntimeHandle, BTreeMap<String, Cursor>)> {
        let clock = Clock::start(store.resume_recorded().await?);
        let cursors = store.load_cursors().await?.into_iter().collect();
        let (mut engine, unusable) = Engine::restore(config.clone(), store.load_state().await?);
        for part in &unusable {
            tracing::warn!(%part, "stored state of another version, or damaged: it is learned again");
        }
        metrics.state_discarded.inc_by(unusable.len() as u64);
        engine.record_judged();
        let series = keeper::restore(&store).await?;
        let happened = Arc::new(Events::new(wall().0.unsigned_abs()));
        let (sender, commands) = mpsc::channel(QUEUE_COMMANDS);
        let (alert_sender, alerts) = mpsc::channel(QUEUE_ALERTS);
        let views = Arc::new(Views::default());
        let read_model = Arc::new(ReadModel::new(clock.clone()));
        let handle = RuntimeHandle {
            commands: sender,
            alerts: alert_sender,
            views: Arc::clone(&views),
            read_model: Arc::clone(&read_model),
            series: Arc::clone(&series),
            events: Arc::clone(&happened),
            metrics: metrics.clone(),
            clock: clock.clone(),
        };
        read_model.reroute(config.responder.clone());
        let of_kind = |k: &Kind| metrics.events.get_or_create(&KindLabel { kind: Word(k.as_str()) }).clone();
        let events = Kind::ALL.iter().map(of_kind).collect();
        let known = engine.open_incidents().chain(engine.resolved_still_firing());
        let open: BTreeSet<String> = known.map(|r| r.id.clone()).collect();
        happened.know_open(open.iter().cloned());
        tracing::info!(open = open.len(), runs = engine.runs().count(), "restored");
        let mut runtime = Self {
            engine,
            store,
            clock,
            commands,
            alerts,
            feeds: inputs.feeds,
            writes: inputs.writes,
            feedback: inputs.feedback,
            changes: inputs.changes,
            pending: Pending::default(),
            templates: inputs.templates,
            max_pending: MAX_PENDING_EFFECTS,
            open,
            events,
            metrics,
            views,
            read_model,
            series,
            happened,
            stepped: BTreeMap::new(),
            nodes: NodeSnapshots::default(),
            ranks: RankTables::default(),
            schedule: Schedule::new(),
            auditor: Auditor::new(),
        };
        runtime.pending.know_stored(&runtime.engine);
        runtime.recall().await?;
        runtime.close_orphans().await?;
        runtime.note_recovery().await;
        runtime.publish();
        Ok((runtime, handle, cursors))
    }

    /// Closes incidents that are open in the store but unknown to the engine, whose state had
    /// another version; otherwise they would stay open forever. People are notified again of
    /// conditions that still hold.
    async fn close_orphans(&mut self) -> store::Result<()> {
        let unresolved =
            Filter { unresolved: true, and_firing: true, limit: Some(u32::MAX), ..Filter::default() };
        let now = self.clock.now();
        for mut record in self.store.incidents(&unresolved).await? {
            if self.engine.holds(&record.id) {
                continue;
            }
            tracing::warn!(
                incident = record.id,
                "its state is lost: closed; if it still holds, people are notified anew"
            );
            let what =
                "closed: the state behind it could not be read; if it still holds, people are notified anew"
                    .to_owned();
            let entry = TimelineEntry::new(&record.id, now, "alerter", what);
            // An incident that a person resolved ended at that time.
            record.resolved_at = record.resolved_at.or(Some(now));
            (record.state, record.next_at) = (State::Resolved, None);
            let unknown =
                End { how: Ended::Stale, by: None, silent_since: None, reopens_at: None, verdict: None };
            record.end.get_or_insert(unknown).reopens_at = None;
            self.open.insert(record.id.clone());
            self.pending.effects.extend([Effect::Timeline(entry), Effect::Incident(Box::new(record))]);
        }
        Ok(())
    }

    /// Runs until `shutdown`, and stores everything before it returns.
    pub async fn run(mut self, shutdown: Shutdown) {
        // Reading starts now, so the time until here is no silence of a run.
        let now = self.clock.now();
        self.engine.resume(now, &mut self.pending.effects);
        self.schedule.last_pass = Instant::now();
        loop {
            let wake = self.wake_at();
            let room = self.has_room();
            // The branches are in order of importance: a command of a person must not wait for the
            // records of a fleet.
            tokio::select! {
                biased;
                () = shutdown.wait() => break,
                done = self.pending.written(), if self.pending.is_under_way() => self.committed(done),
                Some(command) = self.commands.recv() => self.listen(command),
                // At shutdown the readers stop first, while messages in flight still report their
                // outcomes.
                Some(feedback) = self.feedback.recv(), if room => self.outcomes(feedback),
                Some(batch) = self.alerts.recv(), if room => {
                    self.take_alerts(batch);
                    self.judge_what_waits();
                }
                Some(batch) = self.writes.recv(), if room => {
                    self.take_writes(batch);
                    self.judge_what_waits();
                }
                Some(feed) = self.feeds.recv(), if room => self.judge(feed),
                () = tokio::time::sleep_until(wake) => {}
            }
            self.pass_time();
            self.settle().await;
        }
        self.last_commit().await;
    }

    /// Whether there is room for more effects, so that a store that refuses writes does not exhaust
    /// the memory.
    fn has_room(&self) -> bool {
        self.pending.effects.len() < self.max_pending
    }

    /// Evaluates one portion of records between alerts and samples, so that these do not stop the
    /// monitoring of runs.
    fn judge_what_waits(&mut self) {
        if let Ok(feed) = self.feeds.try_recv() {
            self.judge(feed);
        }
    }

    /// Evaluates one portion of stream records, which begins with `feed`.
    fn judge(&mut self, feed: Feed) {
        let started = Instant::now();
        let known = self.pending.effects.len();
        self.judge_one(feed);
        for _ in 1..FEEDS_A_PASS {
            if started.elapsed() >= PORTION {
                break;
            }
            let Ok(feed) = self.feeds.try_recv() else { break };
            self.judge_one(feed);
        }
        // The effects must be stored together with their state.
        self.pending.whole |= self.pending.effects.len() > known;
        self.record_series(self.clock.now());
        self.metrics.engine_seconds.observe(started.elapsed().as_secs_f64());
        self.schedule.changed();
    }

    fn judge_one(&mut self, feed: Feed) {
        let now = self.clock.now();
        let source = feed.source.as_ref();
        match feed.news {
            News::Events(events) => {
                for event in &events {
                    self.events[event.kind as usize].inc();
                    if event.kind == Kind::Step {
                        self.metrics.steps.inc();
                    }
                    self.engine.handle(now, SourceInput::Event { source, event }, &mut self.pending.effects);
                }
                if let Some(cursor) = events.into_iter().rev().find_map(|e| e.cursor) {
                    self.pending.cursors.insert(source.to_owned(), cursor);
                }
            }
            News::Up { many_nodes } => {
                let input = SourceInput::SourceUp { source, many_nodes };
                self.engine.handle(now, input, &mut self.pending.effects);
            }
            News::Down { reason } => {
                let input = SourceInput::SourceDown { source, reason: &reason };
                self.engine.handle(now, input, &mut self.pending.effects);
            }
            News::Gone => {
                self.engine.handle(now, SourceInput::SourceGone { source }, &mut self.pending.effects)
            }
        }
    }

    /// Applies all waiting commands of people in one commit.
    fn listen(&mut self, command: Command) {
        self.command(command);
        for _ in 1..QUEUE_COMMANDS {
            let Ok(command) = self.commands.try_recv() else { return };
            self.command(command);
        }
    }

    fn outcomes(&mut self, feedback: Feedback) {
        self.outcome(feedback);
        for _ in 1..OUTCOMES_A_PASS {
            let Ok(feedback) = self.feedback.try_recv() else { return };
            self.outcome(feedback);
        }
    }

    /// Applies one portion of the waiting alerts, which begins with `batch`.
    fn take_alerts(&mut self, batch: AlertBatch) {
        let started = Instant::now();
        let mut taken = batch.alerts.len();
        self.apply_alerts(batch);
        while taken < ALERTS_A_PASS && started.elapsed() < PORTION {
            let Ok(batch) = self.alerts.try_recv() else { break };
            taken += batch.alerts.len();
            self.apply_alerts(batch);
        }
        self.schedule.changed();
    }

    fn outcome(&mut self, feedback: Feedback) {
        let now = self.clock.now();
        let Feedback { idem_key, incident, receiver, action, outcome } = feedback;
        if store::is_report(&incident) {
            // A report belongs to no incident, so the engine has nothing to do.
            self.pending.reported.push(idem_key);
            return self.schedule.changed();
        }
        let (incident, receiver) = (incident.as_str(), receiver.as_str());
        let input = match &outcome {
            Outcome::Delivered => Input::Delivered { incident, receiver, action },
            Outcome::Failed { error } => Input::Failed { incident, receiver, action, error },
            Outcome::Unreached { waited, error } => {
                Input::Unreached { incident, receiver, waited: *waited, error }
            }
            Outcome::PutOff { wait, error } => Input::PutOff { incident, receiver, wait: *wait, error },
            Outcome::AllReached => Input::AllReached,
        };
        self.engine.handle(now, input, &mut self.pending.effects);
        // A page in flight will report another outcome.
        if matches!(outcome, Outcome::Delivered | Outcome::Failed { .. }) {
            self.pending.reported.push(idem_key);
        }
        self.schedule.changed();
    }

    /// Runs the engine's due timers.
    fn pass_time(&mut self) {
        let late = core::mem::replace(&mut self.schedule.last_pass, Instant::now()).elapsed();
        let now = self.clock.now();
        self.metrics.clock_behind.set(self.clock.behind());
        // Intake has stopped because the store refuses writes: silence proves nothing, and
        // decisions of timers could not be stored.
        if !self.has_room() {
            return;
        }
        if late > BLIND_AFTER {
            tracing::warn!(
                late_seconds = late.as_secs(),
                "this process stood still; silence meanwhile counts against no run"
            );
            self.engine.resume(now, &mut self.pending.effects);
        }
        if self.engine.next_deadline().is_some_and(|(at, _)| at <= now) {
            let (started, known) = (Instant::now(), self.pending.effects.len());
            while self.engine.tick_one(now, &mut self.pending.effects) && started.elapsed() < PORTION {}
            self.pending.whole |= self.pending.effects.len() > known;
            self.schedule.changed();
        }
        self.audit(now);
    }

    /// Commits what is urgent, and what has waited long enough.
    async fn settle(&mut self) {
        let now = Instant::now();
        self.make_room();
        self.fail_open();
        if self.pending.is_under_way() || self.schedule.retry.is_some_and(|(at, _)| now < at) {
            return;
        }
        let deaf = !self.has_room();
        let commit_due = self.schedule.commit_due.is_some_and(|at| now >= at);
        let history_due = self.history_due().is_some_and(|at| now >= at);
        if self.pending.is_urgent() || commit_due || history_due || self.schedule.retry.is_some() {
            self.pending.whole |= commit_due;
            self.count_incidents();
            self.commit(FAIL_OPEN_AFTER).await;
        }
        if deaf && self.has_room() {
            tracing::info!("the store takes commits again; reading on");
            let now = self.clock.now();
            self.engine.resume(now, &mut self.pending.effects);
        }
        if self.schedule.publish_due.is_some_and(|at| Instant::now() >= at) {
            self.publish();
        }
    }

    /// When pending changes of incidents are stored; `None` if there are none.
    fn history_due(&self) -> Option<Instant> {
        (!self.pending.effects.is_empty()).then(|| self.schedule.commit_began + HISTORY_EVERY)
    }

    fn wake_at(&mut self) -> Instant {
        let now = Instant::now();
        let mut at = self.schedule.look_due.min(now + COMMIT_EVERY);
        if let (true, Some((deadline, _))) = (self.has_room(), self.engine.next_deadline()) {
            self.clock.now();
            at = at.min(now + self.clock.until(deadline));
        }
        let s = &self.schedule;
        let retry = s.retry.map(|(at, _)| at);
        let opens = self.store.refused_for().and_then(|time| FAIL_OPEN_AFTER.checked_sub(time));
        let opens = opens.filter(|left| !left.is_zero()).map(|left| now + left);
        // While the store refuses writes, only the retry commits; during a commit, nothing does.
        let under_way = self.pending.is_under_way();
        let retry = retry.filter(|_| !under_way);
        let usual = retry.is_none() && !under_way;
        let history = self.history_due().filter(|_| usual);
        [history, s.commit_due.filter(|_| usual), s.publish_due.filter(|_| usual), retry, opens]
            .into_iter()
            .flatten()
            .fold(at, Instant::min)
    }
}

impl Schedule {
    fn new() -> Self {
        Self {
            last_pass: Instant::now(),
            commit_began: Instant::now(),
            commit_due: None,
            publish_due: None,
            look_due: Instant::now(),
            retry: None,
            refused_for: String::new(),
        }
    }

    /// Schedules a commit and a snapshot after a change.
    fn changed(&mut self) {
        let now = Instant::now();
        self.commit_due.get_or_insert(now + COMMIT_EVERY);
        self.publishes();
    }

    /// Schedules a snapshot.
    fn publishes(&mut self) {
        self.publish_due.get_or_insert(Instant::now() + PUBLISH_EVERY);
    }
}

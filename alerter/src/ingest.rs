//! Reads events from exporters: the targets, and a task for each.
//!
//! Discovery finds the targets; [`Ingest`] starts and stops a reader for each; every reader puts
//! its batches into one bounded queue that the runtime drains. This module does not depend on runs:
//! the engine interprets the records.

mod discovery;
mod exporters;
mod groups;
mod guard;
mod kept;
mod lines;
mod loss;
mod name;
mod status;
mod stream;
mod target;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use stepwatch_kit::log_throttle::LogThrottle;
use stepwatch_wire::Cursor;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

#[cfg(any(test, feature = "fuzz"))]
pub(crate) use discovery::fuzz as fuzz_groups;
pub(crate) use exporters::client_builder;
pub use exporters::{BasicAuth, Exporters, Nodes, Scheme, Tls};
pub use kept::KeptLists;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use lines::LineSplitter;
pub use status::{SourceSnapshot, SourceTable};
pub use target::Target;
pub(crate) use target::shown_url;

use crate::metrics::{IngestMetrics, Name, SourceLabel};
use crate::runtime::{Command, Feed, News, Queue, Share, Taken};
use discovery::{Found, Hearers, Provider, Watch};
use exporters::Connection;
use status::SourceStatus;
use stream::{Puller, StreamLimits};

/// The most batches that wait for the runtime, in addition to their room (`room.rs`); beyond it,
/// the readers wait.
pub const QUEUE_BATCHES: usize = 256;

/// The most cursors kept of removed targets, so that a target that returns resumes where it
/// stopped.
const MAX_PARKED: usize = 20_000;

/// The interval between two checks of the target files.
const FILE_POLL: Duration = Duration::from_secs(5);

/// A checked set of sources with their connections ready, so that applying it cannot fail.
#[derive(Debug)]
pub struct Plan(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    fixed: Vec<Target>,
    providers: Vec<(Provider, Duration)>,
    connection: Arc<Connection>,
}

/// Times that tests shorten.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IngestLimits {
    pub stream: StreamLimits,
    pub file_poll: Duration,
    pub loss_believed_after: Duration,
}

/// The readers of all sources. Dropping it stops them.
#[derive(Debug)]
pub struct Ingest {
    plans: mpsc::Sender<Plan>,
    table: SourceTable,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Default for IngestLimits {
    fn default() -> Self {
        let loss_believed_after = loss::BELIEVED_AFTER;
        Self { stream: StreamLimits::default(), file_poll: FILE_POLL, loss_believed_after }
    }
}

impl Plan {
    /// Validates the entries. The errors have every mistake, each with the name of its entry.
    pub fn new(entries: &[Exporters]) -> Result<Self, Vec<String>> {
        let mut errors = Vec::new();
        let mut plan = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            let mut wrong = Vec::new();
            entry.check(&mut wrong);
            match entry.connection() {
                Ok(connection) if wrong.is_empty() => plan.push(Entry::new(entry, connection)),
                // `check` has already reported an entry that cannot connect.
                _ => errors.extend(wrong.into_iter().map(|e| format!("sources[{i}].exporters: {e}"))),
            }
        }
        if errors.is_empty() { Ok(Self(plan)) } else { Err(errors) }
    }
}

impl Entry {
    fn new(e: &Exporters, connection: Connection) -> Self {
        let refresh = Duration::from_millis(e.refresh.0.max(1) as u64);
        let mut providers = Vec::new();
        // The interval of file checks is not configurable.
        providers.extend(e.file_sd.iter().map(|p| (Provider::FileSd(p.clone()), refresh)));
        providers.extend(e.http_sd.iter().map(|u| (Provider::HttpSd(u.clone()), refresh)));
        providers.extend(e.dns.iter().map(|n| (Provider::Dns(n.clone()), refresh)));
        let fixed = e.fixed.iter().filter_map(|t| Target::parse(t).ok()).collect();
        Self { fixed, providers, connection: Arc::new(connection) }
    }
}

impl Ingest {
    /// Starts reading. `cursors` has the read position of each source in the stored state, and
    /// `kept` the last targets of each list. `commands` receives faults about lists that lose many
    /// targets.
    pub fn start(
        plan: Plan,
        (cursors, kept): (BTreeMap<String, Cursor>, KeptLists),
        out: mpsc::Sender<Feed>,
        commands: mpsc::Sender<Command>,
        metrics: IngestMetrics,
    ) -> Self {
        Self::with_limits(plan, (cursors, kept), (out, commands), metrics, IngestLimits::default())
    }

    pub(crate) fn with_limits(
        plan: Plan,
        (cursors, kept): (BTreeMap<String, Cursor>, KeptLists),
        (out, commands): (mpsc::Sender<Feed>, mpsc::Sender<Command>),
        metrics: IngestMetrics,
        limits: IngestLimits,
    ) -> Self {
        // One waiting plan is enough, because reloads happen one at a time.
        let (plans, inbox) = mpsc::channel(1);
        let (table, stop) = (SourceTable::default(), CancellationToken::new());
        let manager = Manager {
            entries: Vec::new(),
            found: BTreeMap::new(),
            watchers: JoinSet::new(),
            readers: BTreeMap::new(),
            unclaimed: cursors.keys().cloned().collect(),
            parked: cursors,
            kept,
            table: table.clone(),
            limits,
            out,
            commands,
            queue: Queue::default(),
            metrics,
        };
        let task = tokio::spawn(manager.run(plan, inbox, stop.clone()));
        Self { plans, table, stop, task }
    }

    pub fn table(&self) -> SourceTable {
        self.table.clone()
    }

    /// Applies another set of sources; targets in both continue without interruption.
    pub async fn apply(&self, plan: Plan) {
        let _ = self.plans.send(plan).await;
    }

    /// Stops all readers, and returns when they have stopped.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Owns the readers.
struct Manager {
    entries: Vec<Entry>,
    /// Sources of an earlier process that are not yet confirmed as targets.
    found: BTreeMap<Provider, (BTreeSet<Target>, bool)>,
    watchers: JoinSet<()>,
    readers: BTreeMap<Target, StreamReader>,
    /// Sources of an earlier process that have not been found as targets yet.
    unclaimed: BTreeSet<String>,
    /// The last targets of lists from before this process, until the lists are watched.
    parked: BTreeMap<String, Cursor>,
    /// Starts the providers of `plan` in place of the present ones. A provider in both keeps its
    /// last answer.
    kept: KeptLists,
    table: SourceTable,
    limits: IngestLimits,
    out: mpsc::Sender<Feed>,
    commands: mpsc::Sender<Command>,
    queue: Queue,
    metrics: IngestMetrics,
}

struct StreamReader {
    stop: CancellationToken,
    task: JoinHandle<()>,
    connection: Arc<ArcSwap<Connection>>,
    status: Arc<SourceStatus>,
}

impl Manager {
    async fn run(mut self, plan: Plan, mut plans: mpsc::Receiver<Plan>, stop: CancellationToken) {
        let (found_tx, mut found) = mpsc::channel(16);
        self.adopt(plan, &found_tx);
        loop {
            tokio::select! {
                () = self.reconcile() => {}
                () = stop.cancelled() => break,
            }
            tokio::select! {
                () = stop.cancelled() => break,
                Some(plan) = plans.recv() => self.adopt(plan, &found_tx),
                Some(Found { provider, targets, complete }) = found.recv() => {
                    self.found.insert(provider, (targets, complete));
                }
            }
        }
        self.watchers.shutdown().await;
        self.readers.values().for_each(|r| r.stop.cancel());
        for reader in core::mem::take(&mut self.readers).into_values() {
            let _ = reader.task.await;
        }
    }

    /// Starts the providers of `plan` in place of the present ones. The last answer of a provider
    /// that stays remains in force.
    fn adopt(&mut self, plan: Plan, found_tx: &mpsc::Sender<Found>) {
        self.entries = plan.0;
        self.watchers.abort_all();
        self.watchers = JoinSet::new();
        let wanted: BTreeMap<_, _> = self.entries.iter().flat_map(|e| &e.providers).cloned().collect();
        // A reload accepts the lists as they are now. If the queue is full, the ticket stays for a
        // person to close.
        for provider in self.found.keys() {
            let _ = self.commands.try_send(provider.own(None));
        }
        self.found.retain(|provider, _| wanted.contains_key(provider));
        let hearers = Hearers {
            found: found_tx.clone(),
            commands: self.commands.clone(),
            table: self.table.clone(),
            metrics: self.metrics.clone(),
            keeper: self.kept.keeper(),
        };
        let mut lists = BTreeMap::new();
        for (provider, refresh) in wanted {
            let list = provider.list_name(&lists);
            lists.insert(provider.clone(), list.clone());
            let period =
                if matches!(provider, Provider::FileSd(_)) { self.limits.file_poll } else { refresh };
            let (believed_after, kept) = (self.limits.loss_believed_after, self.kept.take(&list));
            let watch = Watch { period, believed_after, list, kept };
            self.watchers.spawn(provider.watch(watch, hearers.clone()));
        }
        self.kept.forget_but(lists.into_values().collect());
    }

    /// Starts and stops readers until they match the targets. It may be cancelled at any await and
    /// run again.
    async fn reconcile(&mut self) {
        let targets = self.targets();
        let left: Vec<_> = self.readers.keys().filter(|t| !targets.contains_key(*t)).cloned().collect();
        for target in left {
            self.retire(&target).await;
        }
        for (target, connection) in targets {
            self.unclaimed.remove(target.name().as_ref());
            match self.readers.get(&target) {
                Some(reader) => reader.connection.store(connection),
                None => self.engage(target, connection),
            }
        }
        self.metrics.sources.set(self.readers.len() as i64);
        // Once every list is complete, a source of an earlier process that is in none of them was
        // removed in the meantime.
        let providers = self.entries.iter().flat_map(|e| &e.providers);
        if providers.into_iter().all(|(p, _)| self.found.get(p).is_some_and(|(_, complete)| *complete)) {
            while let Some(source) = self.unclaimed.pop_first() {
                self.gone(source.as_str().into()).await;
            }
        }
    }

    /// The targets and their connections. If several entries have a target, the first one defines
    /// its connection.
    fn targets(&self) -> BTreeMap<Target, Arc<Connection>> {
        let mut all = BTreeMap::new();
        for entry in &self.entries {
            let found = entry.providers.iter().filter_map(|(p, _)| self.found.get(p)).flat_map(|(t, _)| t);
            for target in entry.fixed.iter().chain(found) {
                all.entry(target.clone()).or_insert_with(|| Arc::clone(&entry.connection));
            }
        }
        all
    }

    fn engage(&mut self, target: Target, connection: Arc<Connection>) {
        let cursor = self.parked.remove(target.name().as_ref());
        let status = Arc::new(SourceStatus::new(Arc::clone(target.name()), cursor));
        self.table.insert(Arc::clone(target.name()), Arc::clone(&status));
        let connection = Arc::new(ArcSwap::new(connection));
        let puller = Puller {
            target: target.clone(),
            connection: Arc::clone(&connection),
            status: Arc::clone(&status),
            limits: self.limits.stream,
            out: self.out.clone(),
            share: Share::new(&self.queue),
            metrics: self.metrics.clone(),
            gaps: LogThrottle::default(),
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(puller.run(stop.clone()));
        self.readers.insert(target, StreamReader { stop, task, connection, status });
    }

    async fn retire(&mut self, target: &Target) {
        let Some(reader) = self.readers.get_mut(target) else { return };
        reader.stop.cancel();
        let _ = (&mut reader.task).await;
        let cursor = reader.status.cursor();
        self.readers.remove(target);
        self.table.remove(target.name());
        self.metrics.source_up.remove(&SourceLabel { source: Name(Arc::clone(target.name())) });
        if let Some(cursor) = cursor.filter(|_| self.parked.len() < MAX_PARKED) {
            self.parked.insert(target.name().to_string(), cursor);
        }
        tracing::info!(source = %target, "the exporter is no longer a target");
        self.gone(Arc::clone(target.name())).await;
    }

    async fn gone(&self, source: Arc<str>) {
        let _ = self.out.send(Feed { source, news: News::Gone, room: Taken::default() }).await;
    }
}

//! The whole service, which `stepwatch-alerter run` and in-process tests start.
//!
//! The start order is configuration, store, port, outbox, engine, readers. Each can fail; until the
//! port is bound, the start has no effect. The stop order is the reverse: readers first, so that
//! nothing new is decided, then open requests and messages, and the runtime last, because it stores
//! their outcomes.

mod http;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use prometheus_client::registry::Registry;
use rustix::process::Signal;
use stepwatch_detect::changes::RunChange;
use stepwatch_kit::admin::{BY_SIGNAL, ReloadRequest};
use stepwatch_kit::config::ConfigError;
use stepwatch_kit::logging::LogControl;
use stepwatch_kit::serve::{self, ListenAddr};
use stepwatch_kit::shutdown::{Shutdown, Trigger};
use stepwatch_kit::web_config::WebConfig;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::oncall::OverridePhase;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use self::http::{administer, callbacks, gate, limits, router, warn_if_open};
use crate::api::Api;
use crate::api::auth::Gate;
use crate::api::oncall_overrides::sleeps_through;
use crate::audit::{self, AuditLog, Door, Entry};
use crate::bulkhead::Bulkhead;
use crate::calendars::Calendars;
use crate::callbacks::Callbacks;
use crate::changes;
use crate::clock::wall;
use crate::config::{Config, File};
use crate::errors::chain;
use crate::ingest::{self, Ingest, KeptLists};
use crate::ledger_metrics::LedgerMetrics;
use crate::metrics::{ConfigMetrics, Metrics, PROGRAM};
use crate::openapi;
use crate::outbox::unopened::Unopened;
use crate::outbox::{self, Outbox, OutboxHandle};
use crate::pictures::{self, Charts, PictureMetrics};
use crate::remote_write::{QUEUE_WRITES, RemoteWrite};
use crate::replica::{self, Leading, Members, ReplicaMetrics, Standby};
use crate::reporter::{self, Reporter};
use crate::runtime::{Command, Inputs, Runtime, RuntimeHandle, WriteBatch};
use crate::series::exposed::SeriesMetrics;
use crate::series::{SeriesTable, keeper};
use crate::store::{PostgresPlan, Store, StoreError, resolved};
use crate::watchdog::Watchdog;

/// The most message outcomes that wait for the runtime.
const QUEUE_FEEDBACK: usize = 256;
/// Interval between two deletions of old incidents.
const PRUNE_EVERY: Duration = Duration::from_hours(1);

#[derive(Debug, Clone)]
pub struct Options {
    pub config: PathBuf,
    /// The listen address that replaces the one in the configuration.
    pub listen: Option<ListenAddr>,
    pub web_config: Option<PathBuf>,
    /// Accept a database that is empty or differs from the last one.
    pub new_store: bool,
    /// How long other replicas may take the lease before this one.
    pub stand_back: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the store does not open")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("serving HTTP failed")]
    Serve(#[from] std::io::Error),
    #[error("{0} ended unexpectedly; see the log")]
    Died(&'static str),
    #[error(
        "this replica leads no more: it was stopped or cut off for too long, or the database lost commits; it starts anew"
    )]
    Superseded,
}

/// Why a service ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to stop.
    Stopped,
    /// It was asked to let another replica lead.
    HandedOver,
}

/// A started service.
#[derive(Debug)]
pub struct App {
    addr: SocketAddr,
    options: Options,
    /// The configuration file in force.
    file: File,
    store: Store,
    ingest: Ingest,
    calendars: Calendars,
    outbox: OutboxHandle,
    remote_write: RemoteWrite,
    runtime: RuntimeHandle,
    runtime_task: JoinHandle<()>,
    runtime_stop: Trigger,
    reports: watch::Sender<Arc<reporter::Plan>>,
    server: JoinHandle<std::io::Result<()>>,
    reloads: mpsc::Receiver<ReloadRequest>,
    metrics: ConfigMetrics,
    gate: Gate,
    audit: AuditLog,
    handovers: mpsc::Receiver<()>,
    members: Members,
    replica_metrics: ReplicaMetrics,
    /// Stops everything except the runtime, which runs until the end.
    stop: Trigger,
    stopping: Shutdown,
}

impl App {
    /// Starts the service, which runs as soon as this returns; [`App::run`] keeps it running. If
    /// the store prevents the start, people are notified first.
    pub async fn start(options: Options, log: LogControl) -> Result<Self, StartError> {
        let (_trigger, never) = Shutdown::manual();
        let started = Self::start_unless(options, log, &never).await?;
        started.ok_or_else(|| StartError::Io(std::io::Error::other("asked to stop")))
    }

    /// Starts the service. With PostgreSQL, this waits until this replica leads; `None` if it is
    /// asked to stop before.
    pub async fn start_unless(
        options: Options,
        log: LogControl,
        shutdown: &Shutdown,
    ) -> Result<Option<Self>, StartError> {
        let mut config = Config::load(&options.config)?;
        let web = options.web_config.as_deref().map(WebConfig::load).transpose()?;
        config.log_warnings();
        if let Some(plan) = config.postgres.take() {
            return Box::pin(Self::start_replica(config, plan, web, options, log, shutdown)).await;
        }
        let unopened = Unopened {
            database: resolved(config.file.storage.sqlite()),
            engine: config.engine.clone(),
            receivers: config.receivers.clone(),
            templates: Arc::clone(&config.templates),
        };
        let started = Box::pin(Self::start_as(config, web, options, log)).await;
        if let Err(StartError::Store(err)) = &started {
            unopened.notify(err, wall()).await;
        }
        started.map(Some)
    }

    async fn start_replica(
        config: Config,
        plan: PostgresPlan,
        web: Option<WebConfig>,
        options: Options,
        log: LogControl,
        shutdown: &Shutdown,
    ) -> Result<Option<Self>, StartError> {
        let listener =
            serve::bind(options.listen.as_ref().unwrap_or(&config.file.listen)).await?.into_std()?;
        let of = |listener: std::net::TcpListener| TcpListener::from_std(listener);
        let standby = Standby::start(&config, plan, of(listener.try_clone()?)?, web.clone(), log.clone())?;
        let stop = standby.stopper();
        let check = || {
            Config::load(&options.config).map(|config| config.file.digest()).map_err(|err| err.to_string())
        };
        let led = standby.lead(options.stand_back, check, shutdown).await;
        let Some(mut leading) = led.inspect_err(|_| stop.fire())? else { return Ok(None) };
        // The file may have changed since this replica began to wait.
        let config = Config::load(&options.config).unwrap_or_else(|err| {
            tracing::error!(%err, "the configuration has a mistake: the one of the start is used");
            config
        });
        leading.replica.config = config.file.digest();
        // The start reads all that the database has, which may take longer than the lease lasts.
        let renewing = tokio::spawn(replica::renew(leading.store.clone()));
        let app = Self::start_on(leading.store.clone(), of(listener)?, config, web, options, log);
        let app = Box::pin(app).await;
        // From now on, new connections are those of the leader.
        stop.fire();
        let app = app.inspect_err(|_| renewing.abort())?;
        app.keep_leading(leading);
        Ok(Some(app))
    }

    /// Follows the other replicas.
    fn keep_leading(&self, leading: Leading) {
        let Leading { store, database, replica } = leading;
        let (metrics, commands) = (self.replica_metrics.clone(), self.runtime.commands.clone());
        let own = replica::Own { database, replica, epoch: store.epoch(), metrics, commands };
        tokio::spawn(self.members.clone().follow(own, self.stopping.clone()));
    }

    async fn start_as(
        config: Config,
        web: Option<WebConfig>,
        options: Options,
        log: LogControl,
    ) -> Result<Self, StartError> {
        let store = Store::open_as(config.file.storage.sqlite(), options.new_store).await?;
        let listener = serve::bind(options.listen.as_ref().unwrap_or(&config.file.listen)).await?;
        Box::pin(Self::start_on(store, listener, config, web, options, log)).await
    }

    async fn start_on(
        store: Store,
        listener: TcpListener,
        config: Config,
        web: Option<WebConfig>,
        options: Options,
        log: LogControl,
    ) -> Result<Self, StartError> {
        let addr = listener.local_addr()?;
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let (members, replica_metrics) = (Members::default(), ReplicaMetrics::register(&mut registry));
        let ((stop, stopping), (runtime_stop, runtime_stopping)) = (Shutdown::manual(), Shutdown::manual());
        let (outcomes, feedback) = mpsc::channel(QUEUE_FEEDBACK);
        let (change_sender, changed) = mpsc::channel(changes::QUEUE);
        let (feed_sender, feeds) = mpsc::channel(ingest::QUEUE_BATCHES);
        let (write_sender, writes) = mpsc::channel(QUEUE_WRITES);
        let inputs = Inputs { feeds, writes, feedback, changes: change_sender, templates: config.templates };
        let (runtime, handle, cursors) =
            Runtime::restore(store.clone(), config.engine, inputs, metrics.runtime.clone()).await?;
        publish(&handle, config.shown, &store, &mut registry, &stopping);
        let charts = charts(&store, &handle, &mut registry);
        let how = watching(&handle, &charts, config.watchdog);
        let outbox = Outbox::start_with(store.clone(), config.receivers, outcomes, stopping.clone(), how);
        outbox.metrics.register(&mut registry);
        let known = (cursors, KeptLists::load(&store).await?);
        let (commands, counts) = (handle.commands.clone(), metrics.ingest.clone());
        let ingest = Ingest::start(config.plan, known, feed_sender, commands, counts);
        let calendars = Calendars::start(config.calendars, handle.clone(), metrics.calendars.clone());
        let remote_write = start_remote_write(&config.file, write_sender, &metrics, &stopping);
        let runtime_task = tokio::spawn(runtime.run(runtime_stopping));
        let audit = AuditLog::new(store.clone(), config.file.audit.clone(), metrics.runtime.audit.clone());
        let gate = gate(config.keyring, config.oidc, &audit, &metrics, web.as_ref(), &config.file);
        warn_if_open(addr, &config.file, web.as_ref());
        let limits = limits(&gate, &config.file, &mut registry);
        let bulkhead = Bulkhead::registered(&mut registry, PROGRAM);
        let callbacks = callbacks(&store, &handle, &outbox, &metrics, &audit);
        start_sidelines(&store, &callbacks, &outbox, &metrics, changed, &stopping);
        start_pictures(&charts, judging(&handle), &outbox, &stopping);
        let (admin, reloads) = administer(&store, log);
        let document = openapi::text().map_err(std::io::Error::from)?;
        let (kept, sources, writing) = (store.clone(), ingest.table(), remote_write.clone());
        let api = Api::new(kept, handle.clone(), sources, charts, writing, registry, document);
        let api = Arc::new(api.with_roster(members.roster()));
        let (handover, handovers) = replica::handover(members.clone());
        let router = router(&api, &gate, &outbox, &callbacks, bulkhead, admin.router().merge(handover));
        let server = tokio::spawn(serve::serve(listener, router, limits, web, stopping.clone()));
        tokio::spawn(prune(store.clone(), config.file.storage.retention, audit.clone(), stopping.clone()));
        let app = Self {
            reports: start_reports(&config.file, &store, &handle, &stopping),
            addr,
            options,
            file: config.file,
            store,
            ingest,
            calendars,
            outbox,
            remote_write,
            runtime: handle,
            runtime_task,
            runtime_stop,
            server,
            reloads,
            metrics: metrics.config,
            gate,
            audit,
            handovers,
            members,
            replica_metrics,
            stop,
            stopping,
        };
        app.note_reload(true);
        Ok(app)
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Runs until `shutdown` or until a part fails; then stops everything in order. A partial
    /// service is worse than none: the supervisor restarts it without loss.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<Ended, RunError> {
        let (mut served, mut ended) = (None, Ended::Stopped);
        let store = self.store.clone();
        self.warn_of_sleepers();
        loop {
            tokio::select! {
                () = shutdown.wait() => break,
                () = store.superseded() => {
                    self.stop.fire();
                    return Err(RunError::Superseded);
                }
                Some(()) = self.handovers.recv() => {
                    ended = Ended::HandedOver;
                    break;
                }
                Some(request) = self.reloads.recv() => {
                    let done = self.reload().await;
                    self.note_reload(done.is_ok());
                    if request.by == BY_SIGNAL {
                        self.audit.write(self.signalled(&done)).await;
                    }
                    let _ = request.reply.send(done);
                }
                done = &mut self.server => {
                    served = Some(done);
                    break;
                }
                _ = &mut self.runtime_task => {
                    self.stop.fire();
                    return Err(RunError::Died("the runtime"));
                }
            }
        }
        let early = served.is_some();
        tracing::info!("stopping: readers, then requests and messages on their way, then the engine");
        self.ingest.stop().await;
        self.calendars.stop();
        self.runtime.events.close();
        self.stop.fire();
        self.outbox.stopped().await;
        let served = match served {
            Some(served) => served,
            None => self.server.await,
        };
        self.runtime_stop.fire();
        let ran = self.runtime_task.await;
        keeper::write_all(&self.store, &self.runtime.series, self.runtime.clock.now()).await;
        self.store.close().await;
        tracing::info!("stopped");
        served.map_err(|_| RunError::Died("the HTTP server"))??;
        ran.map_err(|_| RunError::Died("the runtime"))?;
        if early { Err(RunError::Died("the HTTP server")) } else { Ok(ended) }
    }

    /// Applies the current file, or changes nothing and returns the reason.
    async fn reload(&mut self) -> Result<(), String> {
        let config = Config::load(&self.options.config).map_err(|e| e.to_string())?;
        let fixed = [
            ("listen", config.file.listen != self.file.listen),
            ("web", config.file.web != self.file.web),
            ("storage", config.file.storage != self.file.storage),
        ];
        let changed: Vec<_> = fixed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect();
        if !changed.is_empty() {
            let keys = changed.join(" and ");
            return Err(format!("{keys} changed, which takes a restart; nothing was reloaded"));
        }
        config.log_warnings();
        // The engine must not name a receiver before the outbox has it.
        self.outbox.replace(config.receivers);
        self.outbox.watch(config.watchdog);
        let (reply, done) = oneshot::channel();
        let command =
            Command::Reconfigure { config: Box::new(config.engine), templates: config.templates, reply };
        let stopping = || "the alerter is stopping".to_owned();
        self.runtime.commands.send(command).await.map_err(|_| stopping())?;
        done.await.map_err(|_| stopping())?;
        self.runtime.read_model.show(config.shown);
        self.ingest.apply(config.plan).await;
        self.calendars.apply(config.calendars);
        self.reports.send_replace(Arc::new(config.file.reports()));
        self.remote_write.configure(config.file.remote_write.clone());
        self.gate.replace(config.keyring, config.oidc, config.file.external_url.as_deref());
        self.audit.configure(config.file.audit.clone());
        self.members.reloaded(config.file.digest());
        self.file = config.file;
        self.warn_of_sleepers();
        tracing::info!("configuration reloaded");
        Ok(())
    }

    /// The audit entry of a signal. For requests, the handler writes its own entry.
    fn signalled(&self, done: &Result<(), String>) -> Entry {
        let entry = Entry::new(Door::Signal, "", "reload", &self.options.config.display().to_string());
        match done {
            Ok(()) => entry,
            Err(why) => entry.saying(why).came_to(audit::Outcome::Failed),
        }
    }

    /// Warns of overrides by which pages wake nobody, because this configuration lacks the pager of
    /// a person. Such an override is refused when it is made.
    fn warn_of_sleepers(&self) {
        let (read_model, now) = (&self.runtime.read_model, self.runtime.clock.now());
        let (routing, overrides) = (read_model.routing(), read_model.overrides());
        for record in overrides.all().filter(|record| record.phase(now) != OverridePhase::Over) {
            for cover in &record.covers {
                if let Some(way) = sleeps_through(&routing, &record.schedule, &cover.user) {
                    tracing::warn!(
                        id = record.id,
                        schedule = record.schedule,
                        user = cover.user,
                        %way,
                        by = record.created_by,
                        "an override of who is on call wakes nobody: pages go to its schedule, and no receiver of \
                         the person wakes anybody"
                    );
                }
            }
        }
    }

    fn note_reload(&self, good: bool) {
        self.metrics.reload_successful.set(good.into());
        if good {
            self.metrics.reload_timestamp.set(wall().as_secs_f64());
        }
    }

    /// Triggers when the service begins to stop.
    pub fn stopping(&self) -> Shutdown {
        self.stopping.clone()
    }
}

impl Config {
    fn log_warnings(&self) {
        for warning in &self.warnings {
            tracing::warn!(config = %self.path.display(), %warning, "configuration");
        }
    }
}

/// Turns a limit on the size of files (`LimitFSIZE=`) into a write error, as on a full disk. By
/// default, the signal would end the process.
pub(crate) fn survive_limits() -> std::io::Result<()> {
    // The first handler disables the signal's default action for the rest of the process.
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
}

/// Publishes the configuration and the series, and starts to store the series.
fn publish(
    handle: &RuntimeHandle,
    configuration: String,
    store: &Store,
    registry: &mut Registry,
    stopping: &Shutdown,
) {
    handle.read_model.show(configuration);
    let views = Arc::clone(&handle.views);
    let live = move || {
        let view = views.get();
        view.runs.iter().filter(|run| run.ended.is_none()).map(|run| run.run.clone()).collect()
    };
    SeriesMetrics::register(&handle.series, Box::new(live), registry);
    LedgerMetrics::register(Arc::clone(&handle.views), registry);
    let (series, clock) = (Arc::clone(&handle.series), handle.clock.clone());
    tokio::spawn(keeper::keep(store.clone(), series, clock, stopping.clone()));
}

/// Opens the remote write endpoint, and starts the timer for incomplete scrapes.
fn start_remote_write(
    file: &File,
    out: mpsc::Sender<WriteBatch>,
    metrics: &Metrics,
    stopping: &Shutdown,
) -> RemoteWrite {
    let remote_write = RemoteWrite::new(file.remote_write.clone(), out, metrics.remote_write.clone());
    tokio::spawn(remote_write.clone().tick(stopping.clone()));
    remote_write
}

/// Starts the tasks that run next to delivery: callbacks, and run changes to receivers.
fn start_sidelines(
    store: &Store,
    callbacks: &Callbacks,
    outbox: &OutboxHandle,
    metrics: &Metrics,
    changed: mpsc::Receiver<RunChange>,
    stopping: &Shutdown,
) {
    tokio::spawn(callbacks.clone().listen(stopping.clone()));
    let dropped = metrics.runtime.changes_dropped.clone();
    let receivers = outbox.receivers();
    tokio::spawn(changes::deliver(store.clone(), changed, receivers, dropped, stopping.clone()));
}

/// Checks whether the engine's loop responds.
fn alive(runtime: &RuntimeHandle) -> Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync> {
    let commands = runtime.commands.clone();
    Arc::new(move || {
        let (commands, (reply, answer)) = (commands.clone(), oneshot::channel());
        Box::pin(async move { commands.send(Command::Ping { reply }).await.is_ok() && answer.await.is_ok() })
    })
}

/// Asks the engine's loop for the current text of a message.
fn reword(runtime: &RuntimeHandle) -> outbox::Reword {
    let commands = runtime.commands.clone();
    Arc::new(move |notification| {
        let (commands, (reply, answer)) = (commands.clone(), oneshot::channel());
        Box::pin(async move {
            commands.send(Command::Reword { notification: Box::new(notification), reply }).await.ok()?;
            answer.await.ok()?
        })
    })
}

/// The charts of the incidents in the store, drawn from the series of the runs.
fn charts(store: &Store, handle: &RuntimeHandle, registry: &mut Registry) -> Charts {
    let metrics = PictureMetrics::default();
    metrics.register(registry);
    Charts::new(store.clone(), Arc::<SeriesTable>::clone(&handle.series), metrics)
}

/// Starts the task that keeps charts and adds them to conversations.
fn start_pictures(charts: &Charts, clock: Judging, outbox: &OutboxHandle, stopping: &Shutdown) {
    let taken = Arc::new(Notify::new());
    tokio::spawn(pictures::keep(charts.clone(), Arc::clone(&clock), Arc::clone(&taken), stopping.clone()));
    let receivers = outbox.receivers();
    tokio::spawn(pictures::show(charts.clone(), receivers, clock, taken, stopping.clone()));
}

/// Starts the task that sends scheduled reports; the sender that is returned replaces the
/// schedules.
fn start_reports(
    file: &File,
    store: &Store,
    handle: &RuntimeHandle,
    stopping: &Shutdown,
) -> watch::Sender<Arc<reporter::Plan>> {
    let reporter = Reporter { store: store.clone(), views: Arc::clone(&handle.views) };
    let (plans, plan) = watch::channel(Arc::new(file.reports()));
    tokio::spawn(reporter::keep(reporter, plan, judging(handle), stopping.clone()));
    plans
}

/// The engine's clock: deadlines are compared with the clock that set them.
type Judging = Arc<dyn Fn() -> Ts + Send + Sync>;

fn judging(handle: &RuntimeHandle) -> Judging {
    let clock = handle.clock.clone();
    Arc::new(move || clock.now())
}

/// Draws the chart of an incident for a message that includes it.
fn draw_chart(charts: &Charts) -> outbox::DrawChart {
    let charts = charts.clone();
    Arc::new(move |incident| {
        let charts = charts.clone();
        Box::pin(async move { charts.picture(&incident).await })
    })
}

/// The outbox's clock, and the watchdog that gets its heartbeats.
fn watching(handle: &RuntimeHandle, charts: &Charts, watchdog: Arc<Watchdog>) -> outbox::Options {
    outbox::Options {
        clock: judging(handle),
        draw_chart: draw_chart(charts),
        watchdog,
        alive: alive(handle),
        reword: reword(handle),
        ..outbox::Options::default()
    }
}

/// Deletes incidents that ended longer ago than the retention, and old audit entries.
async fn prune(store: Store, retention: Span, audit: AuditLog, stopping: Shutdown) {
    loop {
        let before = Ts(wall().0.saturating_sub(retention.0));
        match store.prune(before).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "forgot incidents older than storage.retention"),
            Err(err) => tracing::warn!(err = chain(&err), "cannot forget old incidents; trying again later"),
        }
        audit.prune().await;
        tokio::select! {
            () = stopping.wait() => return,
            () = tokio::time::sleep(PRUNE_EVERY) => {}
        }
    }
}

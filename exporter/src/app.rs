//! The exporter as a whole: built from a configuration, run until shutdown, and reloaded meanwhile.
//!
//! `main` and in-process tests start it in the same way. All errors of a start occur in
//! [`App::bind`], before the first event is taken in.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use stepwatch_kit::admin::{Admin, ReloadRequest};
use stepwatch_kit::exposition::{self, Form};
use stepwatch_kit::logging::LogControl;
use stepwatch_kit::serve::{self, Authenticated, Ends, Hosts, ListenAddr, ServeMetrics};
use stepwatch_kit::shutdown::{Shutdown, Trigger};
use stepwatch_kit::web_config::WebConfig;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::clock::unix_now;
use crate::collector::Access;
use crate::collectors::COLLECTORS;
use crate::collectors::kernel::catalogue;
use crate::commands::reference;
use crate::config::{Config, SourceConfig};
use crate::exposition::{Contents, Exposition};
use crate::hub::{Hub, Keep, Parts};
use crate::identity::peer;
use crate::ingest::kubeflow::Kubeflow;
use crate::ingest::otlp::Otlp;
use crate::ingest::{self, Intake, Sockets};
use crate::nvml::Nvml;
use crate::roots::{self, Roots};
use crate::schedule::Schedule;
use crate::sources::Surroundings;
use crate::stream::{self, StreamState};
use crate::training::Archive;
use crate::{nvml, reply, runs, sources, state};

/// The name of the stream's journal, in the directory of the ingest socket.
const JOURNAL: &str = "stream.journal";

/// The start is complete by then: every collector has read its expensive values once, and every
/// source has begun.
const SETTLED: Duration = Duration::from_secs(10);
/// How often code that has not run lately is released from memory. Code that runs every second is
/// back within one, for some hundred page faults.
const LET_GO_EVERY: Duration = Duration::from_mins(1);

/// How long a shutdown waits for the NVIDIA driver.
const NVML_WAIT: Duration = Duration::from_secs(2);

/// The origin of the configuration, also for every reload.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// The configuration file; without one, all defaults apply.
    pub file: Option<PathBuf>,
    /// Options of the command line that override the file.
    pub listen: Option<ListenAddr>,
    pub roots: Roots,
    /// The configuration file of TLS and authentication.
    pub web: Option<PathBuf>,
}

impl Setup {
    pub fn config(&self) -> Result<Config, stepwatch_kit::config::ConfigError> {
        let mut config = self.file.as_deref().map_or_else(|| Ok(Config::default()), Config::load)?;
        if let Some(listen) = &self.listen {
            config.listen = listen.clone();
        }
        catalogue::extend(config.collectors.kernel.xids.as_deref());
        Ok(config)
    }
}

/// The exporter with its ports and sockets bound.
#[derive(Debug)]
pub struct App {
    setup: Setup,
    config: Config,
    web: Option<WebConfig>,
    listener: TcpListener,
    /// The listeners of `ingest.otlp`.
    otlp: Vec<TcpListener>,
    kubeflow: Kubeflow,
    sockets: Sockets,
}

impl App {
    /// Binds the ports and the sockets.
    pub async fn bind(setup: Setup, config: Config) -> anyhow::Result<Self> {
        let web = setup.web.as_deref().map(WebConfig::load).transpose()?;
        let listener = serve::bind(&config.listen)
            .await
            .with_context(|| format!("cannot listen on {}", config.listen))?;
        let mut otlp = Vec::with_capacity(config.ingest.otlp.len());
        for (i, addr) in config.ingest.otlp.iter().enumerate() {
            otlp.push(serve::bind(addr).await.with_context(|| {
                format!("ingest.otlp[{i}]: is a collector of OpenTelemetry running here already?")
            })?);
        }
        let kubeflow = Kubeflow::new(&config.ingest.kubeflow)?;
        let sockets = Sockets::bind(&config.ingest.path())?;
        Ok(Self { setup, config, web, listener, otlp, kubeflow, sockets })
    }

    pub fn addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Runs until `shutdown`, then drains and saves.
    pub async fn run(self, log: LogControl, shutdown: Shutdown) -> anyhow::Result<()> {
        let Self { mut setup, config, web, listener, otlp: otlp_ports, kubeflow, sockets } = self;
        let persistent = state::prepare(&config.state_dir);
        setup.roots.state = persistent.then(|| config.state_dir.clone());
        let hub = hub(&config, keep(&setup, &config))?;
        let (sockets, _files) = sockets.into_parts();
        let nvml = Nvml::default();
        let intake = Intake::new(hub.clone());
        let counts = ingest::serve(sockets, &intake, config.ingest.max_connections, &shutdown);
        let contents = contents(&setup, &config, (&hub, &nvml), counts, &shutdown);
        let (admin, reloads) = Admin::new(log);
        let latch = admin.latch("the first page");
        let pages = Arc::new(Exposition::start(Arc::clone(&contents), config.exposition.interval.into())?);
        latch.open();
        if !persistent {
            hub.state_not_saved();
        }
        let saving = persistent
            .then(|| tokio::spawn(state::keep(hub.clone(), config.state_dir.clone(), shutdown.clone())));
        let otlp = Otlp::new(hub.clone(), &config.ingest.metrics, setup.roots.clone());
        let kubeflow = kubeflow.routes(&hub, &setup.roots, &config.ingest.metrics, &shutdown);
        let events = ingest::routes(intake, otlp.clone(), &setup.roots);
        let live =
            Live::new(setup, config, (hub.clone(), nvml.clone()), Arc::clone(&contents), Arc::clone(&pages));
        let router = router((&hub, &nvml), events, &contents, pages, &admin).merge(kubeflow);
        let limits = live.limits();
        tokio::spawn(reload_on_request(live, reloads, shutdown.clone()));
        tokio::spawn(give_back());
        tokio::spawn(let_go());
        for port in otlp_ports {
            let limits = serve::Limits { purpose: Some("OTLP"), ..limits.clone() };
            let routes = ingest::otlp::routes(otlp.clone());
            tokio::spawn(serve::serve(port, routes, limits, web.clone(), shutdown.clone()));
        }
        serve::serve(listener, router, limits, web, shutdown).await?;
        if let Some(saving) = saving {
            saving.await?;
        }
        nvml.close(NVML_WAIT);
        Ok(())
    }
}

/// The configuration of the stream's journal. This process alone owns the socket beside it, so also
/// the journal.
fn keep(setup: &Setup, config: &Config) -> Option<Keep> {
    let beside = || config.ingest.path().with_file_name(JOURNAL);
    let journal = config.stream.journal.clone().unwrap_or_else(beside);
    let kernel_boot = roots::read(&setup.roots.proc("sys/kernel/random/boot_id"))?;
    Some(Keep { journal, kernel_boot })
}

/// Creates a hub with a new boot id and the saved state of runs.
fn hub(config: &Config, keep: Option<Keep>) -> anyhow::Result<Hub> {
    let mut boot = [0; 8];
    getrandom::fill(&mut boot).context("no randomness for the boot id")?;
    Ok(Hub::new(Parts {
        node: config.node_name(),
        boot: hex::encode(boot),
        ring: config.ring(),
        training: config.training(),
        archive: Archive::load(&config.state_dir),
        keep,
    }))
}

/// The access that collectors are given.
fn access(setup: &Setup, hub: &Hub, nvml: &Nvml) -> Access {
    Access {
        roots: Arc::new(setup.roots.clone()),
        hub: hub.clone(),
        nvml: nvml.clone(),
        families: reference::families,
    }
}

fn contents(
    setup: &Setup,
    config: &Config,
    (hub, nvml): (&Hub, &Nvml),
    counts: Arc<ingest::Counts>,
    shutdown: &Shutdown,
) -> Arc<Contents> {
    let schedule = Schedule::start(COLLECTORS, &config.collectors, &access(setup, hub, nvml));
    schedule.wait_first_pass();
    Arc::new(Contents {
        hub: hub.clone(),
        stream: StreamState::new(
            Arc::clone(hub.ring()),
            hub.node().to_owned(),
            config.readers(),
            setup.roots.state.clone(),
            shutdown.clone(),
        ),
        ingest: counts,
        collectors: ArcSwap::from_pointee(schedule),
        serve: ServeMetrics::default(),
        max_series: AtomicUsize::new(config.exposition.max_series),
        started: unix_now(),
    })
}

/// One exposition of a new process, for `--once`.
pub fn once(setup: &Setup, config: &Config) -> anyhow::Result<String> {
    let (_trigger, shutdown) = Shutdown::manual();
    let contents =
        contents(setup, config, (&hub(config, None)?, &Nvml::default()), Arc::default(), &shutdown);
    Ok(crate::exposition::once(&contents).text())
}

fn router(
    (hub, nvml): (&Hub, &Nvml),
    events: Router,
    contents: &Contents,
    pages: Arc<Exposition>,
    admin: &Admin,
) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics).with_state(pages))
        .merge(events)
        .merge(stream::routes(contents.stream.clone()))
        .merge(admin.router().merge(nvml::routes::routes(nvml.clone())).layer(from_fn(operators_only)))
        .merge(runs::routes(hub.clone()))
        .fallback(|uri: Uri| async move {
            reply::error(StatusCode::NOT_FOUND, &format!("there is no {}", uri.path()))
        })
        .method_not_allowed_fallback(|uri: Uri| async move {
            let text = format!("{} takes another method", uri.path());
            reply::error(StatusCode::METHOD_NOT_ALLOWED, &text)
        })
}

/// Allows changes of this program's operation only to root and the exporter's own user over
/// loopback, and to authenticated clients, because any user of the node can reach loopback.
async fn operators_only(request: Request, next: Next) -> Response {
    let authenticated = request.extensions().get::<Authenticated>().is_some();
    if request.method().is_safe() || authenticated {
        return next.run(request).await;
    }
    let ends = request.extensions().get::<Ends>().copied();
    let ends = ends.filter(|ends| ends.peer.ip().to_canonical().is_loopback());
    if peer::voice_at_our_port(ends).await.is_trusted() {
        return next.run(request).await;
    }
    let text = "ask from this machine as root or as the user of this program (sudo curl localhost), or configure \
                users or client certificates by --web.config.file";
    reply::error(StatusCode::FORBIDDEN, text)
}

async fn metrics(State(pages): State<Arc<Exposition>>, headers: HeaderMap) -> Response {
    let form = Form::asked(&headers);
    let page = pages.last(form).await;
    exposition::respond(&page, form)
}

async fn index() -> impl IntoResponse {
    Html(include_str!("index.html"))
}

/// The parts that a reload changes.
struct Live {
    setup: Setup,
    config: Config,
    hub: Hub,
    nvml: Nvml,
    contents: Arc<Contents>,
    pages: Arc<Exposition>,
    sources: Vec<(SourceConfig, Trigger)>,
}

impl Live {
    fn new(
        setup: Setup,
        config: Config,
        (hub, nvml): (Hub, Nvml),
        contents: Arc<Contents>,
        pages: Arc<Exposition>,
    ) -> Self {
        let sources = config.sources.clone();
        let mut live = Self { setup, config, hub, nvml, contents, pages, sources: Vec::new() };
        live.run_sources(&sources);
        live
    }

    fn limits(&self) -> serve::Limits {
        serve::Limits {
            metrics: self.contents.serve.clone(),
            // gRPC needs it.
            http2: true,
            // By then the stream itself has dropped the reader and counted it.
            stall_timeout: self.config.stream.slow_after.as_duration() * 2,
            // Each route with a body has a limit of its own, and counts larger bodies.
            body_bytes: usize::MAX,
            // The least that holds a large body of each of two clients at once. With one decoded
            // request, the connections and a full stream, the exporter stays within 64 MiB.
            bodies_in_flight: 12 << 20,
            user_of: peer::user_of_connection,
            hosts: Hosts::new(&self.config.web, None),
            ..serve::Limits::default()
        }
    }

    /// Applies all of the new configuration, or none of it.
    fn reload(&mut self) -> Result<(), String> {
        let new = self.setup.config().map_err(|e| e.to_string())?;
        let fixed = self.config.needs_restart(&new);
        if !fixed.is_empty() {
            return Err(format!("{} cannot change without a restart; nothing was changed", fixed.join(", ")));
        }
        self.hub.set_options(new.training());
        self.pages.set_interval(new.exposition.interval.into());
        self.contents.max_series.store(new.exposition.max_series, Ordering::Relaxed);
        if new.collectors != self.config.collectors {
            let access = access(&self.setup, &self.hub, &self.nvml);
            let schedule = Schedule::start(COLLECTORS, &new.collectors, &access);
            self.contents.collectors.store(Arc::new(schedule));
        }
        self.run_sources(&new.sources);
        self.config = new;
        Ok(())
    }

    /// Runs exactly these sources; one that is already running is kept.
    fn run_sources(&mut self, wanted: &[SourceConfig]) {
        for (_, trigger) in self.sources.extract_if(.., |(running, _)| !wanted.contains(running)) {
            trigger.fire();
        }
        let around = Surroundings {
            hub: self.hub.clone(),
            nvml: self.nvml.clone(),
            roots: self.setup.roots.clone(),
            state_dir: self.config.state_dir.clone(),
        };
        for config in wanted {
            if self.sources.iter().all(|(running, _)| running != config) {
                let (trigger, shutdown) = Shutdown::manual();
                sources::start(std::slice::from_ref(config), &around, &shutdown);
                self.sources.push((config.clone(), trigger));
            }
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.run_sources(&[]);
    }
}

async fn reload_on_request(mut live: Live, mut requests: mpsc::Receiver<ReloadRequest>, shutdown: Shutdown) {
    loop {
        let request = tokio::select! {
            () = shutdown.wait() => return,
            request = requests.recv() => request,
        };
        let Some(request) = request else { return };
        // The client may have disconnected; the reload remains in effect.
        let _ = request.reply.send(live.reload());
        tokio::spawn(give_back());
    }
}

/// Releases memory that only the start needs: a configuration is read by a megabyte of code that is
/// idle afterwards.
async fn give_back() {
    tokio::time::sleep(SETTLED).await;
    trim();
}

/// Releases code that is seldom needed later, such as that of a reload, a storm of errors, or a
/// large request.
async fn let_go() {
    loop {
        tokio::time::sleep(LET_GO_EVERY).await;
        trim();
    }
}

fn trim() {
    stepwatch_heap::trim();
    // Tests of builds with debug assertions distinguish memory from code by the size of mapped
    // code.
    if !cfg!(debug_assertions) {
        stepwatch_sys::code::let_go();
    }
}

//! One of several alerters on one PostgreSQL.
//!
//! One replica leads: it follows the exporters, decides, sends messages and answers requests. The
//! others stand by: they forward every request to the leader, and one of them takes the lease once
//! the leader gives it up or lets it expire. So an answer that any replica accepted was stored by
//! the leader, and an alert that Prometheus posts to all of them arrives at one engine.

mod doors;
mod forward;
mod members;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use prometheus_client::registry::Registry;
use stepwatch_kit::admin::{Admin, ReloadRequest};
use stepwatch_kit::build_info;
use stepwatch_kit::exposition;
use stepwatch_kit::logging::LogControl;
use stepwatch_kit::serve::{self, Hosts, Limits};
use stepwatch_kit::shutdown::{Shutdown, Trigger};
use stepwatch_kit::web_config::WebConfig;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::api::MAX_ALERTS_BODY;
use crate::bulkhead;
use crate::config::Config;
use crate::errors::chain;
use crate::metrics::PROGRAM;
use crate::signed_paths;
use crate::store::{Leader, Postgres, PostgresPlan, Replica, Store, StoreError};

use self::doors::Doors;
pub(crate) use members::{Members, Own, ReplicaMetrics};

/// The interval at which a standby looks for the lease.
const POLL_EVERY: Duration = Duration::from_millis(250);
/// The wait after a failure of the database.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// How long the replica that hands over leaves the lease to the others.
pub(crate) const STAND_BACK: Duration = Duration::from_secs(10);
/// The interval of renewals of the lease, and of announcements.
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// A replica that does not lead yet.
#[derive(Debug)]
pub(crate) struct Standby {
    plan: PostgresPlan,
    replica: Replica,
    /// The present leader, as far as the database can be read.
    leader: watch::Sender<Option<Leader>>,
    reloads: mpsc::Receiver<ReloadRequest>,
    /// Ends the forwarding of requests.
    stop: Trigger,
}

/// The rights of a leader.
#[derive(Debug)]
pub(crate) struct Leading {
    pub store: Store,
    pub database: Postgres,
    pub replica: Replica,
}

impl Standby {
    /// Begins to forward requests to the leader.
    pub(crate) fn start(
        config: &Config,
        plan: PostgresPlan,
        listener: TcpListener,
        web: Option<WebConfig>,
        log: LogControl,
    ) -> std::io::Result<Self> {
        let addr = listener.local_addr()?;
        let tls = web.as_ref().is_some_and(WebConfig::is_tls);
        let replica = Replica {
            id: name()?,
            address: plan.advertise_url.clone().unwrap_or_else(|| own_address(addr, tls)),
            version: build_info::VERSION.to_owned(),
            config: config.file.digest(),
        };
        let (leader, follow) = watch::channel(None);
        let (admin, reloads) = Admin::new(log);
        let known = follow.clone();
        let admin = admin.needing(move || {
            let known = known.borrow().as_ref().is_some_and(|leader: &Leader| !leader.expired);
            (!known).then(|| "a replica to lead".to_owned())
        });
        let mut registry = Registry::default();
        build_info::register(&mut registry, PROGRAM);
        ReplicaMetrics::register(&mut registry).standby();
        let registry = Arc::new(registry);
        let metrics = axum::routing::get(async move |headers: HeaderMap| {
            let page = exposition::Encoded::from_registry(&registry);
            exposition::respond(&page, exposition::Form::asked(&headers))
        });
        let doors = Doors::new(config, web.as_ref());
        let own = doors.protect(Router::new().route("/metrics", metrics).merge(admin.router()));
        let router = forward::router(follow)?.merge(own);
        let (stop, stopping) = Shutdown::manual();
        let limits = Limits {
            purpose: Some("requests to the replica that leads"),
            signed_paths: signed_paths::ALL,
            never_413: &[bulkhead::REMOTE_WRITE],
            pass: Some(doors.pass()),
            body_bytes: MAX_ALERTS_BODY,
            hosts: Hosts::new(&config.file.web, config.file.external_url.as_deref()),
            ..Limits::default()
        };
        tokio::spawn(serve::serve(listener, router, limits, web, stopping));
        Ok(Self { plan, replica, leader, reloads, stop })
    }

    /// Waits until this replica has the lease; `None` if it is asked to stop before. `check` reads
    /// the configuration and returns its digest.
    pub(crate) async fn lead(
        mut self,
        stand_back: Duration,
        check: impl Fn() -> Result<String, String>,
        shutdown: &Shutdown,
    ) -> Result<Option<Leading>, StoreError> {
        let first = tokio::time::Instant::now() + stand_back;
        let (mut database, mut failing, mut announce_at) = (None, false, tokio::time::Instant::now());
        loop {
            let now = tokio::time::Instant::now();
            let announces = now >= announce_at;
            let opening = database.is_none();
            let done = tokio::select! {
                done = self.try_to_lead(&mut database, announces, now >= first) => done,
                // Another replica may be changing the schema for minutes.
                () = shutdown.wait(), if opening => Ok(None),
            };
            if announces && done.is_ok() {
                announce_at = now + RENEW_EVERY;
            }
            let pause = match done {
                Ok(Some(leading)) => return Ok(Some(leading)),
                Ok(None) => {
                    failing = false;
                    POLL_EVERY
                }
                Err(err @ (StoreError::Newer { .. } | StoreError::Migrate { .. })) => return Err(err),
                Err(err) => {
                    if !core::mem::replace(&mut failing, true) {
                        tracing::error!(err = chain(&err), "cannot read the database; trying again");
                    }
                    self.leader.send_replace(None);
                    RETRY_EVERY
                }
            };
            tokio::select! {
                () = shutdown.wait() => {
                    if let Some(database) = &database {
                        let _ = database.withdraw(&self.replica).await;
                    }
                    self.stop.fire();
                    return Ok(None);
                }
                Some(request) = self.reloads.recv() => {
                    // The configuration is read when this replica takes over.
                    let checked = check().map(|digest| self.replica.config = digest);
                    let _ = request.reply.send(checked);
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn try_to_lead(
        &self,
        database: &mut Option<Postgres>,
        announces: bool,
        may_take: bool,
    ) -> Result<Option<Leading>, StoreError> {
        let database = match database {
            Some(database) => database,
            None => database.insert(Postgres::open(&self.plan).await?),
        };
        let leader = database.leader().await?;
        if announces {
            database.announce(&self.replica).await?;
        }
        let free = leader.as_ref().is_none_or(|leader| leader.expired);
        self.leader.send_if_modified(|known| core::mem::replace(known, leader.clone()) != leader);
        if !free || !may_take {
            return Ok(None);
        }
        let Some(store) = database.lead(&self.replica).await? else { return Ok(None) };
        tracing::info!(epoch = store.epoch(), "this replica leads");
        // Requests that wait for a leader are forwarded to this process, once it serves them.
        self.leader.send_replace(Some(Leader {
            holder: self.replica.id.clone(),
            address: self.replica.address.clone(),
            epoch: store.epoch().unwrap_or_default(),
            expired: false,
        }));
        Ok(Some(Leading { store, database: database.clone(), replica: self.replica.clone() }))
    }

    /// Ends the forwarding. Requests that wait for a leader get the answer of this replica.
    pub(crate) fn stopper(&self) -> Trigger {
        self.stop.clone()
    }
}

/// `POST /-/handover`: lets another replica lead, such as before maintenance of this machine.
pub(crate) fn handover(members: Members) -> (Router, mpsc::Receiver<()>) {
    let (ask, asked) = mpsc::channel(1);
    let hand_over = async move || {
        if !members.has_another() {
            return (StatusCode::CONFLICT, "no other replica is running\n");
        }
        // A second request asks for the same.
        let _ = ask.try_send(());
        (StatusCode::ACCEPTED, "another replica takes over\n")
    };
    (Router::new().route("/-/handover", axum::routing::post(hand_over)), asked)
}

/// Renews the lease until it is given up or lost, even if nothing is decided. That includes the
/// stop of the service, which still sends what is on its way and stores the outcomes.
pub(crate) async fn renew(store: Store) {
    loop {
        tokio::select! {
            () = store.superseded() => return,
            () = tokio::time::sleep(RENEW_EVERY) => {}
        }
        if let Err(err) = store.renew().await {
            tracing::warn!(err = chain(&err), "cannot renew the lease");
        }
    }
}

/// A random name of this process.
fn name() -> std::io::Result<String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(hex::encode(bytes))
}

/// The name of this machine and the port, which other machines of a network usually reach.
fn own_address(addr: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    let host = if addr.ip().is_unspecified() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        match addr {
            SocketAddr::V4(v4) => v4.ip().to_string(),
            SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
        }
    };
    format!("{scheme}://{host}:{}", addr.port())
}

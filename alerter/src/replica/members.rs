//! The list of all replicas, and what differs between them.

mod drift;

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stepwatch_kit::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::RENEW_EVERY;
use crate::errors::chain;
use crate::metrics::PROGRAM;
use crate::runtime::Command;
use crate::store::{Announced, Postgres, Replica, Roster};
use drift::Drift;

/// What the leader knows of all replicas.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members {
    roster: Roster,
    /// The digest of the configuration after a reload, until it is announced.
    reloaded: Arc<Mutex<Option<String>>>,
}

/// The leader, whose members are followed.
#[derive(Debug)]
pub(crate) struct Own {
    pub database: Postgres,
    pub replica: Replica,
    pub epoch: Option<i64>,
    pub metrics: ReplicaMetrics,
    /// The engine, which is told what differs for long.
    pub commands: mpsc::Sender<Command>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ReplicaMetrics {
    leader: Gauge,
    replicas: Gauge,
    epoch: Gauge,
    differing: Gauge,
}

impl ReplicaMetrics {
    /// Registers the metrics, as of the only alerter on its database.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix(PROGRAM);
        let m = Self::default();
        m.leader.set(1);
        m.replicas.set(1);
        registry.register("leader", "Whether this replica leads: it decides and sends", m.leader.clone());
        registry.register("replicas", "Replicas on the same database that are running", m.replicas.clone());
        registry.register(
            "lease_epoch",
            "The number of the lease under which this replica leads; each take-over raises it",
            m.epoch.clone(),
        );
        registry.register(
            "replicas_differing",
            "Running replicas whose configuration or version differs from that of the leader",
            m.differing.clone(),
        );
        m
    }

    /// The metrics of a replica that does not lead.
    pub(crate) fn standby(&self) {
        self.leader.set(0);
        self.replicas.set(0);
    }
}

impl Members {
    pub(crate) fn roster(&self) -> Roster {
        self.roster.clone()
    }

    /// Has another digest of the configuration announced.
    pub(crate) fn reloaded(&self, digest: String) {
        *self.reloaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(digest);
    }

    fn take_reloaded(&self) -> Option<String> {
        self.reloaded.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether another replica is running, which could take over.
    pub(crate) fn has_another(&self) -> bool {
        self.roster.all().iter().filter(|member| member.announced.running).count() > 1
    }

    /// Announces the leader and follows the other replicas, until the service stops.
    pub(crate) async fn follow(self, mut own: Own, stopping: Shutdown) {
        own.metrics.epoch.set(own.epoch.unwrap_or_default());
        let mut drift = Drift::default();
        loop {
            if let Some(digest) = self.take_reloaded() {
                own.replica.config = digest;
            }
            match self.look(&own).await {
                Ok(all) => {
                    if let Some(differing) = drift.news(&all, &own.replica, Instant::now()) {
                        // An engine that has stopped is told nothing.
                        let _ = own.commands.send(Command::Replicas { differing }).await;
                    }
                }
                Err(err) => tracing::debug!(err = chain(&err), "cannot read the list of replicas"),
            }
            tokio::select! {
                () = stopping.wait() => break,
                () = tokio::time::sleep(RENEW_EVERY) => {}
            }
        }
        let _ = own.database.withdraw(&own.replica).await;
    }

    async fn look(&self, leader: &Own) -> crate::store::Result<Vec<Announced>> {
        let Own { database, replica: own, metrics, .. } = leader;
        database.announce(own).await?;
        let all = database.replicas().await?;
        let before = self.roster.replace(own, &all);
        let running = || all.iter().filter(|member| member.running).map(|member| &member.replica);
        let differing = || running().filter(|replica| own.differs_from(replica));
        metrics.replicas.set(running().count() as i64);
        metrics.differing.set(differing().count() as i64);
        for replica in differing().filter(|r| !before.iter().any(|seen| seen.announced.replica == **r)) {
            let Replica { address, version, config, .. } = replica;
            tracing::warn!(address, version, config, "a replica differs from the leader");
        }
        Ok(all)
    }
}

//! The list of all replicas, and what differs between them.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stepwatch_kit::shutdown::Shutdown;

use super::RENEW_EVERY;
use crate::errors::chain;
use crate::metrics::PROGRAM;
use crate::store::{Announced, Postgres, Replica};

/// What the leader knows of all replicas.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members {
    known: Arc<Mutex<Vec<Announced>>>,
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
    /// The replicas that were heard of lately.
    pub(crate) fn all(&self) -> Vec<Announced> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether another replica is running, which could take over.
    pub(crate) fn has_another(&self) -> bool {
        self.all().iter().filter(|member| member.running).count() > 1
    }

    /// Announces the leader and follows the other replicas, until the service stops.
    pub(crate) async fn follow(
        self,
        database: Postgres,
        own: Replica,
        epoch: Option<i64>,
        metrics: ReplicaMetrics,
        stopping: Shutdown,
    ) {
        metrics.epoch.set(epoch.unwrap_or_default());
        loop {
            match self.look(&database, &own, &metrics).await {
                Ok(()) => {}
                Err(err) => tracing::debug!(err = chain(&err), "cannot read the list of replicas"),
            }
            tokio::select! {
                () = stopping.wait() => break,
                () = tokio::time::sleep(RENEW_EVERY) => {}
            }
        }
        let _ = database.withdraw(&own).await;
    }

    async fn look(
        &self,
        database: &Postgres,
        own: &Replica,
        metrics: &ReplicaMetrics,
    ) -> crate::store::Result<()> {
        database.announce(own).await?;
        let all = database.replicas().await?;
        let running = || all.iter().filter(|member| member.running);
        let differs = |r: &Replica| r.config != own.config || r.version != own.version;
        metrics.replicas.set(running().count() as i64);
        metrics.differing.set(running().filter(|member| differs(&member.replica)).count() as i64);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for member in running().filter(|member| differs(&member.replica)) {
            if !known.iter().any(|before| before.replica == member.replica) {
                let Replica { address, version, config, .. } = &member.replica;
                tracing::warn!(address, version, config, "a replica differs from the leader");
            }
        }
        *known = all;
        Ok(())
    }
}

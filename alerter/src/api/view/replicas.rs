//! Replicas of the alerter.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::When;
use crate::api::doc::examples;
use crate::store::Seen;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::replicas))]
pub struct ReplicaList {
    /// The number of the lease under which the leader writes; each take-over raises it. `null` with
    /// SQLite.
    pub epoch: Option<i64>,
    /// When the leader began to lead.
    pub leads_since: When,
    /// Those that were heard of within ten minutes; none with SQLite.
    pub replicas: Vec<ReplicaView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaView {
    /// Where the other replicas reach it.
    pub address: String,
    pub version: String,
    /// A digest of its configuration.
    pub configuration: String,
    pub leads: bool,
    /// Whether it was heard of within 15 seconds.
    pub running: bool,
    /// Whether its configuration or version is not that of the leader.
    pub differs: bool,
}

/// The leader of several replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaderView {
    /// Where the other replicas reach it; empty until it has read the list of replicas.
    pub address: String,
    /// The number of its lease.
    pub epoch: i64,
    /// How many replicas run.
    pub replicas: usize,
    /// How many of them differ from the leader in configuration or version.
    pub differing: usize,
}

impl From<Seen> for ReplicaView {
    fn from(seen: Seen) -> Self {
        let Seen { announced, leads, differs } = seen;
        Self {
            address: announced.replica.address,
            version: announced.replica.version,
            configuration: announced.replica.config,
            leads,
            running: announced.running,
            differs,
        }
    }
}

//! The origins of events, their senders, and their outcomes.

use std::sync::Arc;

use stepwatch_wire::EventError;

use crate::drops::Reason;
use crate::principal::Principal;

/// The origin of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A connection of the ingest socket.
    Peer(Peer),
    Datagram(Principal),
    Http(Principal),
    /// A source that reports for the trainer: a tailed file, telemetry meant for other systems, the
    /// output of a command.
    Source {
        via: Via,
        /// The name within its kind, the same for all its reports: a path, an endpoint. Steps that
        /// go backwards are attributed to a source by it.
        name: Arc<str>,
        priority: Priority,
        /// The sender, who must be allowed to report the run.
        principal: Principal,
    },
    /// This exporter itself, such as a collector.
    Node,
}

/// The exactness of a source. If two report the same step, the smaller one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// The trainer itself, by socket or HTTP.
    Client,
    /// A file of records, which keeps every digit: JSONL, TensorBoard, W&B, CSV.
    File,
    /// Measurements of the trainer for other systems, as of an interval: OTLP, statsd, a Prometheus
    /// endpoint.
    Telemetry,
    /// A log for people.
    Log,
}

/// The path by which an event came in; the label of [`crate::hub::EVENTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    Seqpacket,
    Datagram,
    Http,
    Tail,
    Node,
    Otlp,
    Kubeflow,
    Scrape,
    Statsd,
    /// The output of a command that the launcher runs.
    Launcher,
    /// Heartbeat pages in shared memory.
    Heartbeat,
    /// Watched directories of checkpoints.
    Checkpoints,
    /// Processes found on this node.
    Discover,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The number of the connection since this exporter started.
    pub connection: u64,
    /// The pid from the kernel; unknown across a pid namespace.
    pub pid: Option<u32>,
    pub uid: u32,
}

/// The outcome of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    Dropped(Reason),
    /// The event is invalid, for this reason.
    Rejected(EventError),
}

impl Via {
    /// All of them in the order of declaration.
    pub const ALL: [Self; 13] = [
        Self::Seqpacket,
        Self::Datagram,
        Self::Http,
        Self::Tail,
        Self::Node,
        Self::Otlp,
        Self::Kubeflow,
        Self::Scrape,
        Self::Statsd,
        Self::Launcher,
        Self::Heartbeat,
        Self::Checkpoints,
        Self::Discover,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seqpacket => "seqpacket",
            Self::Datagram => "datagram",
            Self::Http => "http",
            Self::Tail => "tail",
            Self::Node => "node",
            Self::Otlp => "otlp",
            Self::Kubeflow => "kubeflow",
            Self::Scrape => "scrape",
            Self::Statsd => "statsd",
            Self::Launcher => "launcher",
            Self::Heartbeat => "heartbeat",
            Self::Checkpoints => "checkpoints",
            Self::Discover => "discover",
        }
    }
}

impl Origin {
    pub fn source(via: Via, name: &Arc<str>, priority: Priority) -> Self {
        Self::Source { via, name: Arc::clone(name), priority, principal: Principal::Exporter }
    }

    /// A source that forwards the reports of another process.
    pub fn said_by(via: Via, name: &Arc<str>, priority: Priority, principal: Principal) -> Self {
        Self::Source { via, name: Arc::clone(name), priority, principal }
    }

    /// The sender, who must be allowed to report the run.
    pub fn principal(&self) -> Principal {
        match self {
            Self::Peer(peer) => Principal::from_uid(Some(peer.uid)),
            Self::Datagram(principal) | Self::Http(principal) | Self::Source { principal, .. } => *principal,
            Self::Node => Principal::Exporter,
        }
    }

    pub fn priority(&self) -> Priority {
        match self {
            Self::Source { priority, .. } => *priority,
            Self::Peer(_) | Self::Datagram(_) | Self::Http(_) | Self::Node => Priority::Client,
        }
    }

    /// The name of the source; `None` is the trainer itself.
    pub fn name(&self) -> Option<&Arc<str>> {
        match self {
            Self::Source { name, .. } => Some(name),
            Self::Peer(_) | Self::Datagram(_) | Self::Http(_) | Self::Node => None,
        }
    }

    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Peer(peer) => peer.pid,
            Self::Datagram(_) | Self::Http(_) | Self::Source { .. } | Self::Node => None,
        }
    }

    pub fn via(&self) -> Via {
        match self {
            Self::Peer(_) => Via::Seqpacket,
            Self::Datagram(_) => Via::Datagram,
            Self::Http(_) => Via::Http,
            Self::Source { via, .. } => *via,
            Self::Node => Via::Node,
        }
    }
}

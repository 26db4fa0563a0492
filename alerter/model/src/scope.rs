//! The subject of a finding, and where the finding comes from.

use core::fmt;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Cause, Ts};

/// The name of the run under which sources that feed no run are watched.
pub const NO_RUN: &str = "-";

/// The subject of a finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Run(String),
    /// A node, regardless of the runs on it.
    Node(String),
    /// This alerter; the name says what is wrong with it.
    Own(String),
    /// A storm of incidents for the same people; the name is their route.
    Storm(String),
    /// Alerts of other programs that form one condition.
    Alert(AlertScope),
    /// A metric of another program that is watched under its own name, and its run.
    Series(String),
}

/// What alerts of one condition have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AlertScope {
    /// A readable and unique name of the condition: `DiskFull of llama-70b`.
    pub key: String,
    /// The labels to which the senders of these alerts are limited. They have no access to other
    /// values.
    pub within: BTreeMap<String, String>,
}

/// One cause in one scope: at most one incident of it is open.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Subject {
    pub scope: Scope,
    pub cause: Cause,
}

/// Where an incident comes from. Floods are counted and rolled up for each origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub reporter: Reporter,
    /// For a run: when it was first reported.
    pub since: Option<Ts>,
}

/// The first reporter of an incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reporter {
    /// An exporter, and the user who owns the run there if the exporter reports the user.
    Exporter { source: String, uid: Option<u32> },
    /// A program that posts alerts, by the name of its token if that is limited to some runs or
    /// teams. Empty for all others.
    Sender { token: String },
}

impl Scope {
    pub fn name(&self) -> &str {
        match self {
            Self::Run(name) | Self::Node(name) | Self::Own(name) | Self::Storm(name) | Self::Series(name) => {
                name
            }
            Self::Alert(condition) => &condition.key,
        }
    }
}

impl Origin {
    pub fn of_exporter(source: String, uid: Option<u32>) -> Self {
        Self { reporter: Reporter::Exporter { source, uid }, since: None }
    }

    pub fn from_sender(token: &str) -> Self {
        Self { reporter: Reporter::Sender { token: token.to_owned() }, since: None }
    }

    /// Sets when the run was first reported.
    pub fn since(self, since: Ts) -> Self {
        Self { since: Some(since), ..self }
    }
}

impl Reporter {
    /// The party responsible for the reports: an exporter for all users of its node.
    pub fn source(&self) -> String {
        match self {
            Self::Exporter { source, .. } => format!("exporter {source}"),
            Self::Sender { .. } => self.to_string(),
        }
    }
}

impl fmt::Display for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exporter { source, uid: Some(uid) } => write!(f, "user {uid} of exporter {source}"),
            Self::Exporter { source, uid: None } => write!(f, "exporter {source}"),
            Self::Sender { token } if token.is_empty() => f.write_str("other programs"),
            Self::Sender { token } => write!(f, "token {token}"),
        }
    }
}

impl Subject {
    /// Whether the subject is a run that stands still.
    pub fn is_standstill(&self) -> bool {
        self.cause == Cause::Progress && matches!(self.scope, Scope::Run(_))
    }
}

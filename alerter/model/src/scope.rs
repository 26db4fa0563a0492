//! What a finding is about, and where it comes from.

use core::fmt;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Cause, Ts};

/// The run under which sources that feed no run are watched.
pub const NO_RUN: &str = "-";

/// What a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Run(String),
    /// A node, whichever run uses it.
    Node(String),
    /// This alerter, by what is wrong with it.
    Own(String),
    /// Many incidents of the same people, by their route.
    Storm(String),
    /// Alerts of other programs that are one condition.
    Alert(AlertScope),
    /// A metric of another program that is watched by its name alone, and the run that it is of.
    Series(String),
}

/// What alerts of other programs have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AlertScope {
    /// Readable, and of this condition alone: `DiskFull of llama-70b`.
    pub key: String,
    /// Labels that limit those who post them: of what has others they have no say.
    pub within: BTreeMap<String, String>,
}

/// One cause in one scope: at most one incident of it is open.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Subject {
    pub scope: Scope,
    pub cause: Cause,
}

/// Where an incident comes from. A flood from one origin is counted, and rolled up, by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub reporter: Reporter,
    /// Of a run: when it was first heard of.
    pub since: Option<Ts>,
}

/// Who reported it first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reporter {
    /// An exporter, and the user who owns the run there, where the exporter reports the user.
    Exporter { source: String, uid: Option<u32> },
    /// A program that posts alerts: by the name of its token, where that is limited to some runs or
    /// teams; empty of all others.
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

    /// Of a run that is known since then.
    pub fn since(self, since: Ts) -> Self {
        Self { since: Some(since), ..self }
    }
}

impl Reporter {
    /// Who answers for it: an exporter for all users of its node.
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
    /// A run that stands still.
    pub fn is_standstill(&self) -> bool {
        self.cause == Cause::Progress && matches!(self.scope, Scope::Run(_))
    }
}

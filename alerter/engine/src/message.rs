//! A message for a person, independent of the channel that carries it.

use serde::{Deserialize, Serialize};

use crate::time::Ts;
use crate::verdict::{Kind, Severity};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Firing,
    Acknowledged,
    Resolved,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub incident: String,
    pub run: String,
    pub kind: Kind,
    pub severity: Severity,
    pub status: Status,
    /// At most 150 characters: fits a Slack header and a phone's lock screen.
    pub title: String,
    /// One or two sentences: what happened, with the numbers.
    pub summary: String,
    /// Labelled lines in the order of interest: since, value against expected, suspect, last good checkpoint, cost, ...
    pub facts: Vec<Fact>,
    /// Why this message was sent now: `first`, `escalated to level 2: no answer for 5m`, `resolved after 12m`, ...
    pub reason: String,
    pub links: Vec<Link>,
    pub started_at: Ts,
    pub at: Ts,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    pub label: String,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    pub text: String,
    pub href: String,
}

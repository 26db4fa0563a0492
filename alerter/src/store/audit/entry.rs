//! One entry of the audit log.

use core::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;

use crate::clock::wall;
use crate::notify::line;

/// The most characters of an actor, a target, and the details.
const MAX_TEXT: usize = 300;
/// The most characters of a subject; OpenID Connect allows no more.
const MAX_SUBJECT: usize = 255;

/// The interface through which a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Door {
    Api,
    /// Our own command line, over the API.
    Cli,
    /// The Alertmanager API.
    Alertmanager,
    Slack,
    PagerDuty,
    /// The operating endpoints: `/-/`.
    Operator,
    /// A signal, from the same machine.
    Signal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Done,
    /// Allowed, but there was nothing left to do.
    Unchanged,
    /// Not allowed, not signed, malformed, or about something that does not exist.
    Refused,
    /// An error of the alerter.
    Failed,
}

/// One entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub at: Ts,
    /// `api:NAME`, `user:NAME`, `oidc:NAME`, or `slack:U123 (alice)`; the name in the request if
    /// requests need no token.
    pub actor: String,
    pub door: Door,
    /// The action: `ack`, `resolve`, `silence`, `expire`, `alerts`, `reload`, ...
    pub action: String,
    /// The id of an incident or silence, or a path.
    pub target: String,
    pub outcome: Outcome,
    /// The client's address, or that of the nearest proxy.
    pub remote: Option<IpAddr>,
    pub detail: String,
}

impl Door {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Cli => "cli",
            Self::Alertmanager => "alertmanager",
            Self::Slack => "slack",
            Self::PagerDuty => "pagerduty",
            Self::Operator => "operator",
            Self::Signal => "signal",
        }
    }
}

impl Outcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl Entry {
    /// Creates an entry for an action that is about to happen. External text is reduced to one line
    /// of printable characters.
    pub fn new(door: Door, actor: &str, action: &str, target: &str) -> Self {
        Self {
            at: wall(),
            actor: line(actor, MAX_TEXT),
            door,
            action: action.to_owned(),
            target: line(target, MAX_TEXT),
            outcome: Outcome::Done,
            remote: None,
            detail: String::new(),
        }
    }

    pub fn from(self, remote: Option<IpAddr>) -> Self {
        Self { remote, ..self }
    }

    /// Names the OpenID provider's identifier of the person who acts, before any other details.
    pub fn of_subject(self, subject: &str) -> Self {
        Self { detail: format!("subject {}", line(subject, MAX_SUBJECT)), ..self }
    }

    /// Adds details.
    pub fn saying(self, detail: &str) -> Self {
        if self.detail.is_empty() {
            return Self { detail: line(detail, MAX_TEXT), ..self };
        }
        if detail.is_empty() {
            return self;
        }
        Self { detail: line(&format!("{}: {detail}", self.detail), MAX_TEXT), ..self }
    }

    pub fn came_to(self, outcome: Outcome) -> Self {
        Self { outcome, ..self }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { actor, door, action, target, outcome, .. } = self;
        write!(f, "{action} {target} by {actor} ({}): {}", door.as_str(), outcome.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_outside_is_one_printable_line() {
        let e =
            Entry::new(Door::Slack, "slack:U1 (a\nb\u{202e})", "ack", &"x".repeat(5000)).saying("a\r\n\tb");
        assert!(!e.actor.contains(['\n', '\u{202e}']) && e.target.chars().count() <= MAX_TEXT, "{e:?}");
        assert_eq!(e.detail, "a  b");
        let of =
            |detail: &str| Entry::new(Door::Api, "", "ack", "").of_subject("00u1\n").saying(detail).detail;
        assert_eq!(of(""), "subject 00u1");
        assert_eq!(of("why\n"), "subject 00u1: why");
        assert_eq!(of(&"x".repeat(5000)).chars().count(), MAX_TEXT);
    }
}

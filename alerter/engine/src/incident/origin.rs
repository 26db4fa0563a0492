//! Where an incident comes from. A flood from one origin is counted, and rolled up, by itself.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::book::{Incident, Party};
use super::{Scope, Subject};
use crate::time::{Span, Ts};
use crate::verdict::Severity;

/// A page of a run that was first heard of longer ago than this is told by its name in every storm.
const KNOWN_AFTER: Span = Span::secs(600);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) teller: Teller,
    /// Of a run: when it was first heard of.
    pub(crate) since: Option<Ts>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Teller {
    /// The exporter that told of it first, and whose the run is there, where the exporter says so.
    Exporter { source: String, uid: Option<u32> },
    /// Programs that bring alerts of their own.
    Others,
}

impl Origin {
    pub(crate) fn of_exporter(source: String, uid: Option<u32>) -> Self {
        Self { teller: Teller::Exporter { source, uid }, since: None }
    }

    pub(crate) fn of_others() -> Self {
        Self { teller: Teller::Others, since: None }
    }

    /// Of a run that is known since then.
    pub(crate) fn since(self, since: Ts) -> Self {
        Self { since: Some(since), ..self }
    }
}

impl fmt::Display for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exporter { source, uid: Some(uid) } => write!(f, "user {uid} of exporter {source}"),
            Self::Exporter { source, uid: None } => write!(f, "exporter {source}"),
            Self::Others => f.write_str("other programs"),
        }
    }
}

impl Incident {
    /// A page of a run is that of a run, whatever it is part of.
    pub(super) fn follow_origin(&mut self, party: &Party) {
        if matches!(party.scope, Scope::Run(_)) && self.origin.as_ref().is_none_or(|o| o.since.is_none()) {
            self.origin.clone_from(&party.origin);
        }
    }

    /// It pages of a run that was there before any flood that it could be part of.
    pub(super) fn is_page_of_known_run(&self, now: Ts) -> bool {
        let since = self.origin.as_ref().and_then(|origin| origin.since);
        let pages = |(subject, _): &(Subject, _)| matches!(subject.scope, Scope::Run(_));
        let of_run = self.raised.iter().any(|(key, severity)| pages(key) && *severity == Severity::Page);
        of_run && since.is_some_and(|since| now - since > KNOWN_AFTER)
    }
}

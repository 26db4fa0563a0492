//! An open incident: what it is about, who was notified of it, and what holds it open.

use super::dispatcher::escalation::Ladders;
use super::dispatcher::lane::{Lane, News};
use super::suppressor::storm::Tally;
use super::{IncidentRecord, State, SuppressionReason};
use crate::matcher::Labels;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use stepwatch_model::{
    Cause, Context, Finding, Kind, OldestRun, Origin, RunSummary, Scope, Severity, Span, Subject, Ts,
};

/// The most suspects, and the most nodes, that an incident keeps.
pub(super) const MAX_SUSPECTS: usize = 8;

/// The open incidents by id.
pub(crate) type Open = BTreeMap<String, Incident>;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Incident {
    pub(crate) record: IncidentRecord,
    pub(crate) summary: RunSummary,
    /// The subjects that it covers: the one it was opened for, and those that share its fault.
    pub(super) subjects: BTreeSet<Subject>,
    pub(super) raised: BTreeMap<(Subject, Kind), Severity>,
    /// Every kind that was ever raised in it, by its subject.
    pub(super) known: BTreeMap<Subject, BTreeSet<Kind>>,
    /// When a finding about a node last opened or updated it.
    pub(super) node_at: Option<Ts>,
    /// When it resolves if nothing comes back.
    pub(super) resolve_at: Option<Ts>,
    pub(super) ladders: Ladders,
    pub(super) lanes: BTreeMap<String, Lane>,
    /// When a notification about it was last sent.
    pub(super) told_at: Option<Ts>,
    pub(super) news: Option<News>,
    /// It has been counted towards a storm since it was announced.
    pub(super) counted: bool,
    /// People have been notified that it flaps.
    pub(super) flapping: bool,
    /// A person stopped the run that it hit, so that what is left need not page anybody.
    pub(super) calm: bool,
    /// The counts of its members, if it is a storm.
    pub(super) storm: Option<Tally>,
    /// Runs and nodes that have paged in it. An acknowledgement covers these.
    pub(super) paged: BTreeSet<Scope>,
    /// When each kind was last reported that counts as over because its reports stopped.
    pub(super) silent: BTreeMap<(Subject, Kind), Ts>,
    /// All external alerts that were ever part of it, by identity.
    pub(super) alerts: BTreeMap<u64, KnownAlert>,
    /// Its run ended, and it resolves soon if nobody answers.
    pub(super) outlived_its_run: bool,
    /// Runs of several users used its node. It belongs to none of them, whichever run comes later.
    pub(super) shared: bool,
    pub(crate) origin: Option<Origin>,
    /// For an incident of a node: the run that has been known longest of those that use it.
    pub(super) oldest: Option<OldestRun>,
}

/// What the person who has the incident knows of an external alert in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownAlert {
    /// The highest severity that it had.
    pub(super) severity: Severity,
    /// When it ended, or became less severe.
    pub(super) over: Option<Ts>,
}

impl KnownAlert {
    /// Whether an alert of this severity is already known. One that was over for `hold` counts as
    /// new.
    pub(super) fn covers(self, now: Ts, severity: Severity, hold: Span) -> bool {
        self.severity >= severity && self.over.is_none_or(|at| now - at < hold)
    }
}

impl Incident {
    pub(super) fn new(record: IncidentRecord, summary: RunSummary, subjects: BTreeSet<Subject>) -> Self {
        Self {
            record,
            summary,
            subjects,
            raised: BTreeMap::new(),
            known: BTreeMap::new(),
            node_at: None,
            resolve_at: None,
            ladders: Ladders::default(),
            lanes: BTreeMap::new(),
            told_at: None,
            news: None,
            counted: false,
            flapping: false,
            calm: false,
            storm: None,
            paged: BTreeSet::new(),
            silent: BTreeMap::new(),
            alerts: BTreeMap::new(),
            outlived_its_run: false,
            shared: false,
            origin: None,
            oldest: None,
        }
    }
}

impl Incident {
    pub(super) fn is_acknowledged(&self) -> bool {
        self.record.state == State::Acknowledged
    }

    /// Whether it is silenced and not acknowledged. Such an incident inhibits no other.
    pub(super) fn is_silenced_and_unanswered(&self) -> bool {
        self.record.suppressed_as(SuppressionReason::Silenced).is_some() && !self.is_acknowledged()
    }

    /// Whether all who posted it may act on something with these labels: a token that may post
    /// alerts of some runs only must not suppress the incidents of others.
    pub(super) fn has_a_say(&self, labels: &Labels) -> bool {
        self.subjects.iter().all(|subject| super::has_a_say(subject, labels))
    }
}

/// The nodes that are at fault themselves.
pub(super) fn faulty(context: &Context, v: &Finding) -> Vec<String> {
    let faulty = match &context.scope {
        Scope::Node(node) => return vec![node.clone()],
        Scope::Alert(_) | Scope::Series(_) => &context.nodes,
        Scope::Run(_) if v.kind == Kind::SourceLost => &context.lost,
        Scope::Run(_) if v.kind.cause() == Cause::Progress => &context.dark,
        _ => return Vec::new(),
    };
    faulty.iter().take(MAX_SUSPECTS).cloned().collect()
}

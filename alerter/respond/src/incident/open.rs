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

/// Suspects kept an incident, and nodes.
pub(super) const MAX_SUSPECTS: usize = 8;

/// By their ids.
pub(crate) type Open = BTreeMap<String, Incident>;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Incident {
    pub(crate) record: IncidentRecord,
    pub(crate) summary: RunSummary,
    /// What it answers for: what it was opened for, and what turned out to be the same fault.
    pub(super) subjects: BTreeSet<Subject>,
    pub(super) raised: BTreeMap<(Subject, Kind), Severity>,
    /// Every kind that was ever raised in it, by its subject.
    pub(super) known: BTreeMap<Subject, BTreeSet<Kind>>,
    /// When a node last had something new to say in it.
    pub(super) node_at: Option<Ts>,
    /// When it resolves if nothing comes back.
    pub(super) resolve_at: Option<Ts>,
    pub(super) ladders: Ladders,
    pub(super) lanes: BTreeMap<String, Lane>,
    /// When anybody was last notified of it.
    pub(super) told_at: Option<Ts>,
    pub(super) news: Option<News>,
    /// Since it was announced it has been counted among those that may make a storm.
    pub(super) counted: bool,
    /// That it comes and goes was notified.
    pub(super) flapping: bool,
    /// A person stopped the run that it hit: what is left of it is nobody's emergency.
    pub(super) calm: bool,
    /// What it counts, if it stands for many.
    pub(super) storm: Option<Tally>,
    /// Runs and nodes that have paged in it: whoever acknowledged it knows of these.
    pub(super) paged: BTreeSet<Scope>,
    /// Of what counts as over because nothing was reported of it any more: when it was last
    /// reported.
    pub(super) silent: BTreeMap<(Subject, Kind), Ts>,
    /// The alerts of other programs that were ever in it, by their identity.
    pub(super) alerts: BTreeMap<u64, KnownAlert>,
    /// Its run ended, and it waits whether anybody answers.
    pub(super) outlived_its_run: bool,
    /// Its node was used by runs of several users: it is none of theirs, whoever is there later.
    pub(super) shared: bool,
    pub(crate) origin: Option<Origin>,
    /// Of a node: the run that was there first.
    pub(super) oldest: Option<OldestRun>,
}

/// What whoever has an incident in hand knows of an alert in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownAlert {
    /// The highest it had.
    pub(super) severity: Severity,
    /// When it ended, or became less severe.
    pub(super) over: Option<Ts>,
}

impl KnownAlert {
    /// Whether an alert of this severity is what is known. One that was over for the hold is not.
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

    /// It is silenced, and nobody has it: it explains no other incident.
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

//! Open incidents as version 4 stored them: an upgrade must lose no page that nobody has answered, and no answer.
//!
//! What a run learned is learned again; what a person did is not done again.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::book::Incident;
use super::escalation::Ladders;
use super::{IncidentRecord, State, Subject};
use crate::config::Level;
use crate::matcher::Labels;
use crate::message::RunSummary;
use crate::route::Way;
use crate::time::{Span, Ts};
use crate::verdict::{Cause, Kind, Severity, Suspect};

#[derive(Debug, Deserialize)]
pub(crate) struct IncidentV4 {
    record: RecordV4,
    summary: SummaryV4,
    subjects: BTreeSet<Subject>,
    raised: BTreeMap<(Subject, Kind), Severity>,
    node_at: Option<Ts>,
    resolve_at: Option<Ts>,
    ladder: Option<LadderV4>,
    lanes: BTreeMap<String, u32>,
}

#[derive(Debug, Deserialize)]
struct RecordV4 {
    id: String,
    run: String,
    nodes: Vec<String>,
    cause: Cause,
    kind: Kind,
    severity: Severity,
    state: State,
    signal: String,
    start_step: i64,
    opened_step: i64,
    detected_step: i64,
    end_step: Option<i64>,
    #[serde(with = "stepwatch_wire::num::any")]
    value: f64,
    #[serde(with = "stepwatch_wire::num::any")]
    expected: f64,
    #[serde(with = "stepwatch_wire::num::any")]
    score: f64,
    summary: String,
    suspects: Vec<Suspect>,
    opened_at: Ts,
    resolved_at: Option<Ts>,
    acked_by: Option<String>,
    acked_at: Option<Ts>,
    level: u32,
    next_at: Option<Ts>,
    flaps: u32,
}

#[derive(Debug, Deserialize)]
struct SummaryV4 {
    name: String,
    gpus: u32,
    nodes: u32,
    attempt: u32,
    last_step: Option<i64>,
    checkpoint_step: Option<i64>,
    checkpoint_at: Option<Ts>,
    saved: Vec<i64>,
    step_secs: Option<f64>,
    start_secs: f64,
    unsaved: f64,
    unsaved_at_most: f64,
}

#[derive(Debug, Deserialize)]
struct LadderV4 {
    levels: Vec<LevelV4>,
    at: usize,
    repeats: u32,
    next: Option<Ts>,
    reminders: u32,
}

#[derive(Debug, Deserialize)]
struct LevelV4 {
    after: Span,
    notify: Vec<String>,
    repeat: u32,
}

impl From<IncidentV4> for Incident {
    fn from(old: IncidentV4) -> Self {
        let mut incident = Self::new(old.record.into(), old.summary.into(), old.subjects);
        for (subject, kind) in old.raised.keys() {
            incident.known.entry(subject.clone()).or_default().insert(*kind);
        }
        incident.raised = old.raised;
        incident.remember_pages();
        incident.node_at = old.node_at;
        incident.resolve_at = old.resolve_at;
        incident.ladders = old.ladder.map(Ladders::from).unwrap_or_default();
        for (receiver, seq) in old.lanes {
            incident.lanes.entry(receiver).or_default().seq = seq;
        }
        incident
    }
}

impl From<LadderV4> for Ladders {
    fn from(old: LadderV4) -> Self {
        let level =
            |l: LevelV4| Level { after: l.after, notify: l.notify, repeat: l.repeat, ..Level::default() };
        let levels = old.levels.into_iter().map(level).collect();
        let way = Way { route: "as it was".into(), because: String::new(), policy: None, levels };
        Self::at(way, old.at, old.repeats, old.next, old.reminders)
    }
}

impl From<SummaryV4> for RunSummary {
    fn from(old: SummaryV4) -> Self {
        Self {
            name: old.name,
            gpus: old.gpus,
            nodes: old.nodes,
            attempt: old.attempt,
            last_step: old.last_step,
            checkpoint_step: old.checkpoint_step,
            checkpoint_at: old.checkpoint_at,
            saved: old.saved,
            step_secs: old.step_secs,
            start_secs: old.start_secs,
            unsaved: old.unsaved,
            unsaved_at_most: old.unsaved_at_most,
            ..Self::default()
        }
    }
}

impl From<RecordV4> for IncidentRecord {
    fn from(old: RecordV4) -> Self {
        Self {
            id: old.id,
            run: old.run,
            nodes: old.nodes,
            cause: old.cause,
            kind: old.kind,
            severity: old.severity,
            state: old.state,
            signal: old.signal,
            start_step: old.start_step,
            opened_step: old.opened_step,
            detected_step: old.detected_step,
            end_step: old.end_step,
            value: old.value,
            expected: old.expected,
            score: old.score,
            summary: old.summary,
            suspects: old.suspects,
            opened_at: old.opened_at,
            resolved_at: old.resolved_at,
            acked_by: old.acked_by,
            acked_at: old.acked_at,
            level: old.level,
            next_at: old.next_at,
            flaps: old.flaps,
            labels: Labels::new(),
            quiet: None,
            end: None,
            named: None,
        }
    }
}

//! The JSON types of the API. The server writes them, and our command line reads them.
//!
//! Times are RFC 3339 in UTC with milliseconds. Non-finite numbers are the strings `NaN`,
//! `Infinity`, `-Infinity`, as in events.

mod detail;
mod facts;
mod overrides;
mod replicas;
mod silences;

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;
use stepwatch_model::{Cause, Kind, Severity, Suspect};
use stepwatch_respond::effect::{Action, Path, TimelineEntry};
use stepwatch_respond::incident::{
    End, Ended, IncidentRecord, State, Suppression, SuppressionReason, Verdict,
};
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::message::Reason;
use stepwatch_wire::num;
use utoipa::ToSchema;

use super::doc::{examples, schema};
use crate::ingest;
use crate::postmortem::Impact;
use crate::run_snapshot::RunSnapshot;
pub use crate::save_interval::SaveIntervalView;
use crate::series::Latest;
pub use crate::state_time::StateTime;
use crate::store::{Delivery, DeliveryState};
pub use crate::when::When;
pub(super) use crate::when::instant;
pub use detail::IncidentDetail;
pub(crate) use detail::LastSent;
pub use facts::Facts;
pub use overrides::{CoverView, OverrideList, OverrideView, OverrideWish, SwapWish, TurnWish};
pub use replicas::{LeaderView, ReplicaList, ReplicaView};
pub use silences::{PreviewView, SilenceList, SilenceView, WishView};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IncidentList {
    pub incidents: Vec<IncidentView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::incident))]
pub struct IncidentView {
    pub id: String,
    /// Empty for a node that no run uses.
    pub run: String,
    /// Nodes that are faulty themselves, the first suspect first.
    #[serde(default)]
    pub nodes: Vec<String>,
    #[schema(value_type = schema::Kind)]
    pub kind: Kind,
    #[schema(value_type = schema::Cause)]
    pub cause: Cause,
    #[schema(value_type = schema::Severity)]
    pub severity: Severity,
    #[schema(value_type = schema::IncidentState)]
    pub state: State,
    pub signal: String,
    /// What is wrong, in a few words: the title of the kind, or the name of another program's
    /// alert.
    #[serde(default)]
    pub title: String,
    pub summary: String,
    /// The facts of the summary by name.
    #[serde(default)]
    #[schema(value_type = schema::Facts)]
    pub facts: Facts,
    pub start_step: i64,
    pub opened_step: i64,
    pub detected_step: i64,
    pub end_step: Option<i64>,
    #[serde(with = "num::any")]
    #[schema(value_type = schema::Number)]
    pub value: f64,
    #[serde(with = "num::any")]
    #[schema(value_type = schema::Number)]
    pub expected: f64,
    #[serde(with = "num::any")]
    #[schema(value_type = schema::Number)]
    pub score: f64,
    #[schema(value_type = Vec<schema::Suspect>)]
    pub suspects: Vec<Suspect>,
    pub opened_at: When,
    pub resolved_at: Option<When>,
    pub acked_by: Option<String>,
    pub acked_at: Option<When>,
    /// Escalation level reached, from 1; 0 before anyone was notified.
    pub level: u32,
    pub next_escalation_at: Option<When>,
    pub flaps: u32,
    /// The labels that routes and silences match.
    #[serde(default)]
    #[schema(value_type = schema::Labels)]
    pub labels: Labels,
    /// Why it notifies nobody, while it does not.
    #[serde(default)]
    pub suppression: Option<SuppressionView>,
    /// How it ended, once it is resolved.
    #[serde(default)]
    #[schema(value_type = Option<schema::Ended>)]
    pub ended: Option<Ended>,
    /// The person who resolved it.
    #[serde(default)]
    pub resolved_by: Option<String>,
    /// What that person says that it was: real, noise (true, and not worth a message), or false.
    #[serde(default)]
    #[schema(value_type = Option<schema::Verdict>)]
    pub resolved_as: Option<Verdict>,
    /// If it is stale: the time of the last data about it.
    #[serde(default)]
    pub silent_since: Option<When>,
    /// A person resolved it and it still fires: when it opens again, unless it is over by then.
    #[serde(default)]
    pub reopens_at: Option<When>,
    /// In the answer to an action: the name of the person in the history. After an acknowledgement
    /// it differs from `acked_by` if another person was faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<String>,
}

/// Why an open incident notifies nobody.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SuppressionView {
    #[schema(value_type = schema::SuppressionReason)]
    pub why: SuppressionReason,
    /// The id of the silence, or of the incident.
    pub by: String,
    pub until: Option<When>,
    pub words: String,
}

/// The post-mortem of an incident: the facts, the measured costs, and the text for people to
/// complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PostmortemView {
    #[serde(flatten)]
    pub incident: IncidentDetail,
    pub impact: Impact,
    pub markdown: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::timeline))]
pub struct TimelineView {
    pub at: When,
    pub actor: String,
    pub what: String,
    /// Why nobody is notified from then on, where the entry records that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suppressed: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    pub text: String,
    pub href: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::delivery))]
pub struct DeliveryView {
    pub key: String,
    pub receiver: String,
    pub seq: u32,
    #[schema(value_type = schema::Action)]
    pub action: Action,
    pub page: bool,
    #[schema(value_type = schema::DeliveryState)]
    pub state: DeliveryState,
    pub attempts: u32,
    pub created_at: When,
    pub next_at: Option<When>,
    pub done_at: Option<String>,
    pub error: Option<String>,
    /// The users that it is for, where the receiver is shared.
    #[serde(default)]
    pub users: Vec<String>,
    /// The title of the message, and why it was sent: for programs, and in words.
    #[serde(default)]
    pub title: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema::Reason>)]
    pub because: Option<Reason>,
    #[serde(default)]
    pub reason: Option<String>,
    /// Why this receiver was chosen; absent where the receiver was notified before.
    #[serde(default)]
    pub path: Option<PathView>,
    /// The number of the call within its incident and class (page, ticket), where it notified
    /// somebody, from 1; and what goes on about an earlier call, where this one notifies nobody
    /// anew.
    #[serde(default)]
    pub ring: Option<u32>,
    #[serde(default)]
    pub left_to: Option<String>,
}

/// Why this receiver was notified, at this time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PathView {
    /// The place of the route in the configuration, and the matchers that chose it.
    pub route: String,
    pub matched: String,
    pub policy: Option<String>,
    /// From 1; 0 if the receiver is notified because another could not be.
    pub level: u32,
    /// How often this level had been notified before.
    pub again: u32,
    /// The items of the level that led to this receiver, and how.
    pub chosen: Vec<String>,
    /// Conditions that were evaluated and held, and silences that were compared.
    pub asked: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    pub runs: Vec<RunView>,
    /// Runs beyond the limit of one answer.
    pub hidden: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::run))]
pub struct RunView {
    pub run: String,
    pub attempt: u32,
    pub last_step: Option<i64>,
    pub last_step_at: Option<When>,
    pub last_step_age_seconds: Option<f64>,
    pub last_heard_at: When,
    pub steps: u64,
    pub world: Option<u32>,
    pub ranks: usize,
    pub sources: Vec<String>,
    pub lost_sources: Vec<String>,
    pub last_checkpoint_step: Option<i64>,
    pub duplicate_steps: u64,
    pub stale_steps: u64,
    /// Exit code, once the run is over.
    pub ended: Option<i64>,
    #[serde(default)]
    pub signals: Vec<SignalValue>,
    /// The share of its time in which it made steps that it keeps, at its usual speed.
    #[serde(default)]
    pub goodput: Option<f64>,
    /// Where its time went: the states that it was in.
    #[serde(default)]
    pub time: Vec<StateTime>,
    /// How often it saves, and how often it should; absent until what a save costs is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_interval: Option<SaveIntervalView>,
}

/// How a signal of a run stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SignalValue {
    pub signal: String,
    /// Its last step.
    pub step: i64,
    /// The last value that was finite, and what the detectors expected.
    pub value: Option<f64>,
    pub expected: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SourceList {
    pub sources: Vec<SourceView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::source))]
pub struct SourceView {
    pub source: String,
    pub up: bool,
    pub since: When,
    pub error: Option<String>,
    pub cursor: Option<String>,
    pub last_record_at: Option<When>,
    pub records: u64,
    pub malformed_records: u64,
    pub gaps: u64,
    pub lost_records: u64,
    /// Records that were refused: about nodes, ranks and runs that are not its own, or too many;
    /// and the reason of the last.
    #[serde(default)]
    pub refused_records: u64,
    #[serde(default)]
    pub refused: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::status))]
pub struct Status {
    pub version: String,
    pub revision: String,
    pub started_at: When,
    /// Of all exporters; not for a token that is limited to some runs or teams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources_up: Option<usize>,
    /// Those that the caller may see.
    pub runs: usize,
    /// Those that the caller may see.
    pub open_incidents: usize,
    /// Effects that are not durable yet; absent for a token with limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_effects: Option<usize>,
    pub store: StoreState,
    /// When the engine runs next without new input, and why; absent for a token with limits.
    pub next_deadline_at: Option<When>,
    pub next_deadline: Option<String>,
    /// Which replica leads; absent with SQLite, and for a token with limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<LeaderView>,
}

/// Whether the store accepts writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum StoreState {
    #[serde(rename = "ok")]
    Ok,
    #[serde(rename = "refuses commits")]
    Refuses,
}

/// The body of every answer that is not 2xx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    pub error: String,
}

/// The person who resolves, and what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(examples::resolution))]
pub struct Resolution {
    #[schema(value_type = schema::Person)]
    pub by: String,
    /// Real, noise (true, and not worth a message), or false. Kept with the incident.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Verdict>)]
    pub verdict: Option<Verdict>,
}

/// The person who acknowledges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(examples::by))]
pub struct By {
    #[schema(value_type = schema::Person)]
    pub by: String,
}

impl IncidentView {
    /// The subject of the incident: `llama-70b`, `gpu-042`, `llama-70b on gpu-042`.
    pub fn place(&self) -> String {
        stepwatch_respond::message::place(&self.run, &self.nodes)
    }

    /// The state in one or a few words.
    pub fn standing(&self) -> &'static str {
        match self.state {
            State::Open => "open",
            State::Acknowledged => "acknowledged",
            State::Resolved if self.reopens_at.is_some() => "resolved by hand, still firing",
            State::Resolved if self.ended == Some(Ended::Stale) => "stale",
            State::Resolved => "resolved",
        }
    }

    /// How the incident ended, in words that follow `resolved`.
    pub fn how_it_ended(&self) -> String {
        let (by, silent_since) = (self.resolved_by.clone(), self.silent_since.map(|at| at.0));
        let verdict = self.resolved_as;
        let end = self.ended.map(|how| End { how, by, silent_since, reopens_at: None, verdict });
        end.map(|end| end.words()).unwrap_or_default()
    }
}

impl From<IncidentRecord> for IncidentView {
    fn from(r: IncidentRecord) -> Self {
        let (end, resolved) = (r.end.as_ref(), r.state == State::Resolved);
        Self {
            ended: end.map(|end| end.how),
            resolved_by: end.and_then(|end| end.by.clone()),
            resolved_as: end.and_then(|end| end.verdict),
            silent_since: end.and_then(|end| end.silent_since).map(When),
            reopens_at: r.reopens_at().map(When),
            title: r.title(),
            id: r.id,
            run: r.run,
            nodes: r.nodes,
            kind: r.kind,
            cause: r.cause,
            severity: r.severity,
            state: r.state,
            signal: r.signal,
            // The circumstances of the summary no longer hold once the incident is over.
            summary: if resolved { r.summary.what() } else { r.summary.to_string() },
            facts: facts::facts(r.summary.clauses().take(if resolved { 1 } else { usize::MAX })),
            start_step: r.start_step,
            opened_step: r.opened_step,
            detected_step: r.detected_step,
            end_step: r.end_step,
            value: r.value,
            expected: r.expected,
            score: r.score,
            suspects: r.suspects,
            opened_at: When(r.opened_at),
            resolved_at: r.resolved_at.map(When),
            acked_by: r.acked_by,
            acked_at: r.acked_at.map(When),
            level: r.level,
            // If the incident is suppressed, this is the time of the next check of the suppression.
            next_escalation_at: r.next_at.filter(|_| r.suppression.is_none()).map(When),
            flaps: r.flaps,
            labels: r.labels,
            suppression: r.suppression.map(Into::into),
            signed: None,
        }
    }
}

impl From<Suppression> for SuppressionView {
    fn from(s: Suppression) -> Self {
        Self { why: s.why, by: s.by, until: s.until.map(When), words: s.words }
    }
}

impl From<TimelineEntry> for TimelineView {
    fn from(t: TimelineEntry) -> Self {
        Self { at: When(t.at), actor: t.actor, what: t.what, suppressed: t.suppressed }
    }
}

impl From<Delivery> for DeliveryView {
    fn from(d: Delivery) -> Self {
        Self {
            key: d.idem_key,
            receiver: d.receiver,
            seq: d.seq,
            action: d.action,
            page: d.page,
            state: d.state,
            attempts: d.attempts,
            created_at: When(d.created_at),
            next_at: d.next_at.map(When),
            done_at: d.done_at,
            error: d.error,
            users: d.users,
            title: d.message.as_ref().map(|m| m.title.clone()),
            because: d.message.as_ref().map(|m| m.because),
            reason: d.message.map(|m| m.reason),
            path: d.path.map(Into::into),
            ring: d.ring.filter(|_| d.left_to.is_none()),
            left_to: d.left_to,
        }
    }
}

impl From<Path> for PathView {
    fn from(p: Path) -> Self {
        let Path { route, matched, policy, level, again, chosen, asked } = p;
        Self { route, matched, policy, level, again, chosen, asked }
    }
}

impl From<Latest> for SignalValue {
    fn from(latest: Latest) -> Self {
        let Latest { signal, step, value, expectation } = latest;
        Self { signal, step, value, expected: expectation.map(|e| e.expected) }
    }
}

impl RunView {
    pub(super) fn from_snapshot(r: &RunSnapshot, now: Ts, signals: Vec<Latest>) -> Self {
        Self {
            run: r.run.clone(),
            attempt: r.attempt,
            last_step: r.last_step,
            last_step_at: r.last_step_at.map(When),
            last_step_age_seconds: r.last_step_at.map(|at| (now - at).as_secs_f64().max(0.0)),
            last_heard_at: When(r.last_heard),
            steps: r.steps,
            world: r.world,
            ranks: r.ranks,
            sources: r.sources.clone(),
            lost_sources: r.lost_sources.clone(),
            last_checkpoint_step: r.last_checkpoint_step,
            duplicate_steps: r.duplicates,
            stale_steps: r.stale,
            ended: r.ended,
            signals: signals.into_iter().map(SignalValue::from).collect(),
            goodput: r.totals.goodput(),
            time: StateTime::all(&r.totals),
            save_interval: r.save_interval_view(),
        }
    }
}

impl From<ingest::SourceSnapshot> for SourceView {
    fn from(s: ingest::SourceSnapshot) -> Self {
        Self {
            source: s.source.to_string(),
            up: s.up,
            since: When(s.since),
            error: s.error,
            cursor: s.cursor.map(|c| c.to_string()),
            last_record_at: s.last_record.map(When),
            records: s.records,
            malformed_records: s.malformed,
            gaps: s.gaps,
            lost_records: s.lost,
            refused_records: 0,
            refused: None,
        }
    }
}

impl SourceView {
    /// Adds the engine's refusals of the source's records.
    #[must_use]
    pub fn judged(self, refused: Option<&(u64, &'static str)>) -> Self {
        let Some((count, why)) = refused else { return self };
        Self { refused_records: *count, refused: Some((*why).to_owned()), ..self }
    }
}

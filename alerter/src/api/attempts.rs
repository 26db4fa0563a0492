//! The attempts of a run by HTTP: the start, end and end reason of each, its changes, and its
//! checkpoints.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use stepwatch_detect::run::{
    Aspect, Attempt, AttemptEnd, Difference, Differences, KnownSetup, Outcome, SinceGood, StartPart,
    StartPhase, StartUp, StartUsual, Written,
};
use stepwatch_model::LastGood;
use utoipa::ToSchema;

use super::auth::Caller;
use super::checkpoint_stages::CheckpointStagesView;
use super::doc::errors::NotFound;
use super::doc::examples;
use super::error::ApiError;
use super::extract::Named;
use super::state::Api;
use super::view::When;
use crate::run_history::{CurrentAttempt, RunHistory, StartSoFar, USED};

/// The attempts and checkpoints of a run, the latest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::attempts))]
pub struct HistoryView {
    pub run: String,
    pub attempts: Vec<AttemptView>,
    pub checkpoints: Vec<CheckpointView>,
    /// The stages of the last checkpoints of this attempt.
    #[serde(default)]
    pub stages: Vec<CheckpointStagesView>,
    /// The last load of a checkpoint.
    #[serde(default)]
    pub load: Option<CheckpointStagesView>,
    /// How the last attempt is set up.
    pub setup: Vec<SettingView>,
    /// What is different from the last good attempt; `null` if nothing is, or none is known.
    #[serde(default)]
    pub since_good: Option<SinceGoodView>,
    /// Where the run stood when it was forgotten; `null` while it is watched.
    #[serde(default)]
    pub forgotten: Option<ForgottenView>,
    /// The start that has not come to its first step; `null` if there is none.
    #[serde(default)]
    pub starting: Option<StartingView>,
}

/// The differences from the last good attempt, what explains most first.
///
/// A good attempt made 256 steps in eight minutes or more with one setup, at its usual speed and
/// without an incident about its speed or its numbers. A setup that may have changed them lasted an
/// hour. If the run has none, it is compared with the last good run of the same user that does the
/// same work, or else has a like name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SinceGoodView {
    /// The run of the good attempt, and its number.
    pub run: String,
    pub attempt: Option<u32>,
    pub at: When,
    pub changes: Vec<ChangeView>,
    /// Changes beyond the limit.
    pub changes_hidden: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForgottenView {
    pub last_heard_at: When,
    pub attempt: u32,
    pub last_step: Option<i64>,
    pub steps: u64,
    pub ranks: u32,
}

/// A start that has not come to its first step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StartingView {
    /// When its first process said hello, or its launcher began.
    pub since: When,
    /// The ranks that said hello.
    pub ranks: u64,
    /// How many ranks the job has, as far as it says so.
    #[serde(default)]
    pub world: Option<u32>,
    /// The ranks that have not said hello while most have; the first 64.
    #[serde(default)]
    pub missing: Vec<u32>,
    /// The parts that it has had.
    pub start: Vec<StartPartView>,
}

/// A part of the time from the submission of a job to the first step. The parts of an attempt
/// exclude each other and add up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StartPartView {
    pub phase: StartPhaseView,
    pub began_at: When,
    pub ended_at: When,
    /// Less than between the two, if other parts lie within.
    pub seconds: f64,
    /// The median of the attempts before it or, if it is the first, of earlier runs of this
    /// configuration and size.
    pub usual_seconds: Option<f64>,
}

/// A part of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartPhaseView {
    /// From the submission of the job until it was given its nodes.
    Queue,
    /// The launchers of the nodes wait for each other.
    Rendezvous,
    /// Until the last container started: the image and the mounts.
    Image,
    /// Until the last process began: prolog, image, mounts, launcher.
    Launch,
    /// Until the last process said hello.
    UntilHello,
    /// The checkpoint is loaded.
    Load,
    Compile,
    /// The ranks make their process group or communicator.
    Init,
    FirstStep,
    /// Nothing is known of this time.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    /// From 0.
    pub attempt: u32,
    /// When its first step arrived.
    pub began_at: When,
    /// `null` while it goes on.
    pub ended_at: Option<When>,
    pub first_step: Option<i64>,
    pub last_step: Option<i64>,
    pub end: Option<EndView>,
    /// In what it is set up differently from the attempt before.
    pub changes: Vec<ChangeView>,
    /// Changes beyond the limit.
    pub changes_hidden: u32,
    /// How it came to its first step; empty if that was not seen.
    pub start: Vec<StartPartView>,
}

/// Why an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndView {
    pub how: HowView,
    /// The rank that failed first.
    pub place: Option<String>,
    pub code: Option<i64>,
    /// Its last words, or those of the program that saw it end.
    pub text: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HowView {
    Failed,
    Exited,
    /// Its log ended, without a word.
    LogEnded,
    /// The next attempt began, and nobody reported an end.
    NotReported,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeView {
    pub of: AspectView,
    pub name: String,
    /// `null` where it was not there.
    pub before: Option<String>,
    pub after: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct SettingView {
    pub of: AspectView,
    pub name: String,
    pub value: String,
}

/// A part of how a run is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AspectView {
    /// Processes and nodes.
    Size,
    /// A node that runs it.
    Node,
    /// What the trainer declared in words.
    Declared,
    /// Its environment, script and files.
    Run,
    /// Drivers, firmware and kernels of its nodes.
    Host,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointView {
    pub at: When,
    pub step: Option<i64>,
    /// How long it took, and its size, where that is known.
    pub seconds: Option<f64>,
    pub bytes: Option<f64>,
    pub outcome: OutcomeView,
    /// Why it failed.
    pub why: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeView {
    Saved,
    /// It was on disk before the attempt began.
    Found,
    Failed,
}

/// The attempts of a run: its steps, why each ended, what changed, and its last checkpoints.
///
/// The last 16 attempts and 32 checkpoints, and the stages of the last 16 checkpoints of this
/// attempt, as they were a few seconds ago. What changed is known as far as a trainer declares it
/// in `hello` and exporters report how nodes and runs are set up. Of a run that is forgotten, only
/// how it was set up is kept.
#[utoipa::path(
    get,
    path = "/api/v1/runs/{run}/attempts",
    operation_id = "listAttempts",
    tag = "state",
    params(("run" = String, Path, description = "The name of the run")),
    responses((status = 200, description = "The attempts", body = HistoryView), NotFound)
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(run): Named,
) -> Result<Json<HistoryView>, ApiError> {
    api.require_run(&caller, &run)?;
    Ok(Json(api.history_of(&run)))
}

impl Api {
    /// The history of a run that the caller may see.
    pub(crate) fn history_of(&self, run: &str) -> HistoryView {
        let views = self.runtime.views.get();
        if let Some(table) = views.ranks.get(run) {
            return HistoryView::new(run, &table.history);
        }
        let kept = views.kept_setups.get(run).map(|kept| HistoryView::forgotten(kept));
        kept.unwrap_or_else(|| HistoryView { run: run.to_owned(), ..HistoryView::default() })
    }
}

fn settings<'a>(all: impl Iterator<Item = (&'a Aspect, &'a String, &'a String)>) -> Vec<SettingView> {
    all.map(|(of, name, value)| SettingView { of: (*of).into(), name: name.clone(), value: value.clone() })
        .collect()
}

impl HistoryView {
    fn new(run: &str, history: &RunHistory) -> Self {
        let current = history.current.iter().map(AttemptView::from);
        let mut attempts: Vec<AttemptView> =
            current.chain(history.past.iter().rev().map(AttemptView::from)).collect();
        for attempt in &mut attempts {
            if let Some(usual) = history.usual_starts.get(&attempt.attempt) {
                attempt.start.iter_mut().for_each(|part| part.compare(usual));
            }
        }
        Self {
            run: run.to_owned(),
            attempts,
            starting: history.starting.as_ref().map(StartingView::from),
            checkpoints: history.checkpoints.iter().rev().map(CheckpointView::from).collect(),
            setup: settings(history.setup.iter().map(|(of, name, value)| (of, name, value))),
            since_good: history.since_good.as_ref().map(|since| SinceGoodView::new(run, since)),
            forgotten: None,
            stages: history.stages.iter().rev().map(CheckpointStagesView::from).collect(),
            load: history.load.as_ref().map(CheckpointStagesView::from),
        }
    }

    /// What is left of a run that is not watched any more.
    fn forgotten(kept: &KnownSetup) -> Self {
        let nodes = kept.setup.nodes().map(|node| SettingView {
            of: AspectView::Node,
            name: node.to_owned(),
            value: USED.to_owned(),
        });
        let mut setup = settings(kept.setup.values.iter().map(|((of, name), value)| (of, name, value)));
        setup.extend(nodes);
        Self {
            run: kept.run.clone(),
            setup,
            forgotten: Some(ForgottenView {
                last_heard_at: When(kept.at),
                attempt: kept.attempt,
                last_step: kept.last_step,
                steps: kept.steps,
                ranks: kept.ranks,
            }),
            ..Self::default()
        }
    }
}

impl SinceGoodView {
    fn new(of: &str, since: &SinceGood) -> Self {
        let (run, attempt) = match &since.good {
            LastGood::Run { run } => (run.clone(), None),
            LastGood::Attempt { attempt } => (of.to_owned(), Some(*attempt)),
            LastGood::Before => (of.to_owned(), None),
        };
        let changes = since.list.iter().map(ChangeView::from).collect();
        Self { run, attempt, at: When(since.at), changes, changes_hidden: since.more }
    }
}

impl StartPartView {
    fn compare(&mut self, usual: &StartUsual) {
        self.usual_seconds = usual.ms_of(self.phase.into()).map(seconds);
    }
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1e3
}

impl From<&StartPart> for StartPartView {
    fn from(part: &StartPart) -> Self {
        Self {
            phase: part.phase.into(),
            began_at: When(part.began),
            ended_at: When(part.ended),
            seconds: seconds(part.ms),
            usual_seconds: None,
        }
    }
}

impl From<&StartSoFar> for StartingView {
    fn from(s: &StartSoFar) -> Self {
        let mut start: Vec<StartPartView> = s.parts.iter().map(StartPartView::from).collect();
        if let Some(usual) = &s.usual {
            start.iter_mut().for_each(|part| part.compare(usual));
        }
        let (since, ranks) = (When(s.since), s.ranks as u64);
        Self { since, ranks, world: s.world, missing: s.missing.clone(), start }
    }
}

impl StartPhaseView {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Rendezvous => "rendezvous",
            Self::Image => "image",
            Self::Launch => "launch of the processes",
            Self::UntilHello => "until hello",
            Self::Load => "load of the checkpoint",
            Self::Compile => "compilation",
            Self::Init => "process group",
            Self::FirstStep => "first step",
            Self::Unknown => "unknown",
        }
    }
}

/// Both directions of one table.
macro_rules! start_phases {
    ($($phase:ident)*) => {
        impl From<StartPhase> for StartPhaseView {
            fn from(phase: StartPhase) -> Self {
                match phase {
                    $(StartPhase::$phase => Self::$phase,)*
                }
            }
        }

        impl From<StartPhaseView> for StartPhase {
            fn from(phase: StartPhaseView) -> Self {
                match phase {
                    $(StartPhaseView::$phase => Self::$phase,)*
                }
            }
        }
    };
}

start_phases! { Queue Rendezvous Image Launch UntilHello Load Compile Init FirstStep Unknown }

fn start_of(start: Option<&StartUp>) -> Vec<StartPartView> {
    start.map(|start| start.parts.iter().map(StartPartView::from).collect()).unwrap_or_default()
}

impl EndView {
    /// The event in one line for people.
    pub(crate) fn words(&self) -> String {
        let place = self.place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
        let text = self.text.as_deref().filter(|text| !text.is_empty());
        match (self.how, self.code) {
            (HowView::LogEnded, _) => "its log ended without a word".to_owned(),
            (HowView::NotReported, _) => "no end was reported".to_owned(),
            (_, Some(0)) => "it ended".to_owned(),
            (_, Some(code)) => {
                let after = text.map(|text| format!(": {text}")).unwrap_or_default();
                format!("{place}ended with code {code}{after}")
            }
            (_, None) => format!("{place}{}", text.unwrap_or("failed")),
        }
    }
}

impl AspectView {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Node => "nodes",
            Self::Declared => "declared",
            Self::Run => "run",
            Self::Host => "hosts",
        }
    }
}

impl From<Aspect> for AspectView {
    fn from(of: Aspect) -> Self {
        match of {
            Aspect::Size => Self::Size,
            Aspect::Node => Self::Node,
            Aspect::Declared => Self::Declared,
            Aspect::Run => Self::Run,
            Aspect::Host => Self::Host,
        }
    }
}

impl From<&Difference> for ChangeView {
    fn from(d: &Difference) -> Self {
        let Difference { of, name, before, after } = d.clone();
        Self { of: of.into(), name, before, after }
    }
}

fn changes(all: &Differences) -> Vec<ChangeView> {
    all.list.iter().map(ChangeView::from).collect()
}

impl From<&AttemptEnd> for EndView {
    fn from(end: &AttemptEnd) -> Self {
        let of = |how| Self { how, place: None, code: None, text: None };
        match end {
            AttemptEnd::Failed { place, text } => {
                Self { place: Some(place.to_string()), text: Some(text.clone()), ..of(HowView::Failed) }
            }
            AttemptEnd::Exited { code, text } => {
                Self { code: Some(*code), text: text.clone(), ..of(HowView::Exited) }
            }
            AttemptEnd::Silent => of(HowView::LogEnded),
            AttemptEnd::Unreported => of(HowView::NotReported),
        }
    }
}

impl From<&Attempt> for AttemptView {
    fn from(a: &Attempt) -> Self {
        Self {
            attempt: a.number,
            began_at: When(a.began),
            ended_at: Some(When(a.ended)),
            first_step: a.first_step,
            last_step: a.last_step,
            end: Some(EndView::from(&a.end)),
            changes: changes(&a.changes),
            changes_hidden: a.changes.more,
            start: start_of(a.start.as_deref()),
        }
    }
}

impl From<&CurrentAttempt> for AttemptView {
    fn from(a: &CurrentAttempt) -> Self {
        let end = a.ended.as_ref().map(|ended| {
            let how = if ended.silent { HowView::LogEnded } else { HowView::Exited };
            EndView { how, place: None, code: Some(ended.code), text: ended.text.clone() }
        });
        Self {
            attempt: a.number,
            began_at: When(a.began),
            ended_at: a.ended.as_ref().map(|ended| When(ended.at)),
            first_step: a.first_step,
            last_step: a.last_step,
            end,
            changes: changes(&a.changes),
            changes_hidden: a.changes.more,
            start: start_of(a.start.as_deref()),
        }
    }
}

impl From<&Written> for CheckpointView {
    fn from(w: &Written) -> Self {
        let (outcome, why) = match &w.outcome {
            Outcome::Saved => (OutcomeView::Saved, None),
            Outcome::Found => (OutcomeView::Found, None),
            Outcome::Failed(why) => (OutcomeView::Failed, Some(why.clone())),
        };
        Self { at: When(w.at), step: w.step, seconds: w.secs, bytes: w.bytes, outcome, why }
    }
}

#[cfg(test)]
mod tests;

//! The attempts of a run by HTTP: the start, end and end reason of each, its changes, and its
//! checkpoints.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use stepwatch_detect::run::{Aspect, Attempt, AttemptEnd, Difference, Differences, Outcome, Written};
use utoipa::ToSchema;

use super::auth::Caller;
use super::checkpoint_stages::CheckpointStagesView;
use super::doc::errors::NotFound;
use super::doc::examples;
use super::error::ApiError;
use super::extract::Named;
use super::state::Api;
use super::view::When;
use crate::run_history::{CurrentAttempt, RunHistory};

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
/// in `hello` and exporters report how nodes and runs are set up.
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
        let table = self.runtime.views.get().ranks.get(run).cloned();
        let history = table.map(|table| HistoryView::new(run, &table.history));
        history.unwrap_or_else(|| HistoryView { run: run.to_owned(), ..HistoryView::default() })
    }
}

impl HistoryView {
    fn new(run: &str, history: &RunHistory) -> Self {
        let current = history.current.iter().map(AttemptView::from);
        Self {
            run: run.to_owned(),
            attempts: current.chain(history.past.iter().rev().map(AttemptView::from)).collect(),
            checkpoints: history.checkpoints.iter().rev().map(CheckpointView::from).collect(),
            stages: history.stages.iter().rev().map(CheckpointStagesView::from).collect(),
            load: history.load.as_ref().map(CheckpointStagesView::from),
            setup: history
                .setup
                .iter()
                .map(|(of, name, value)| SettingView {
                    of: (*of).into(),
                    name: name.clone(),
                    value: value.clone(),
                })
                .collect(),
        }
    }
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

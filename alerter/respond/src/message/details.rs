//! The contents of a message as data, for templates, programs and the report that is written later.
//!
//! This is a contract: fields are added, never changed or removed. Unknown values are absent, and
//! all numbers are finite.

use serde::{Deserialize, Serialize};

use super::{advice, value_against_expected};
use crate::config::ResponderConfig;
use crate::incident_record::IncidentRecord;
use crate::plan;
use crate::rollback;
use stepwatch_model::{Cause, Plan, RunSummary, Suspect, Ts};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Details {
    pub cause: Option<Cause>,
    pub evidence: Evidence,
    /// The suspects, the most likely first.
    pub suspects: Vec<Suspect>,
    pub run: RunDetails,
    pub checkpoint: Option<Checkpoint>,
    pub cost: Option<Cost>,
    /// The advice as a sentence.
    pub advice: Option<String>,
    /// The advice as data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<Plan>>,
    /// Levels of its policies that were notified, from 1.
    pub level: u32,
    /// How often the condition returned.
    pub returns: u32,
    pub acknowledged_by: Option<String>,
    /// Who removed the acknowledgement, if the message is about that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unacknowledged_by: Option<String>,
}

/// The measurement behind the incident.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    pub signal: String,
    pub value: Option<f64>,
    pub expected: Option<f64>,
    /// How far the value is outside its limits, in the unit of its detector.
    pub score: Option<f64>,
    /// Value and expectation in the signal's own unit.
    pub text: String,
    /// The step of the onset; `announced_step` is that of the announcement. Absent without steps.
    pub step: Option<i64>,
    pub announced_step: Option<i64>,
}

/// The run that is hit, as it was when the message was composed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunDetails {
    pub name: String,
    /// Absent if nothing shows it for sure. Earlier messages have 0 where there was no run.
    pub gpus: Option<u32>,
    pub nodes: u32,
    pub attempt: u32,
    pub last_step: Option<i64>,
    /// The usual seconds of a step.
    pub step_seconds: Option<f64>,
    /// Seconds that the attempt took to start.
    pub start_seconds: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// Absent if only the time of the checkpoint is known.
    pub step: Option<i64>,
    pub at: Ts,
    pub age_seconds: f64,
    /// The checkpoint was written after the numbers went bad, and must not be trusted.
    pub after_onset: bool,
    /// The checkpoint to go back to, if one is known. It is an earlier one if something is wrong
    /// with the last.
    pub good_step: Option<i64>,
    /// Seconds of work since then, which a crash would lose.
    pub unsaved_seconds: f64,
}

/// In dollars. Absent if the number of GPUs is unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    pub per_gpu_hour: f64,
    pub per_hour: f64,
    /// The cost since the incident opened.
    pub so_far: f64,
}

impl Details {
    pub(super) fn of(now: Ts, r: &IncidentRecord, run: &RunSummary, config: &ResponderConfig) -> Self {
        let plan = plan::plan(r, run, config.cost_per_gpu_hour);
        Self {
            cause: Some(r.cause),
            evidence: Evidence::of(r),
            suspects: r.suspects.clone(),
            run: RunDetails::of(run),
            checkpoint: Checkpoint::of(now, r, run),
            cost: Cost::of(now, r, run, config),
            advice: plan.as_ref().map(advice),
            plan: plan.map(Box::new),
            level: r.level,
            returns: r.flaps,
            acknowledged_by: r.acked_by.clone(),
            unacknowledged_by: None,
        }
    }
}

impl Evidence {
    fn of(r: &IncidentRecord) -> Self {
        let steps = r.has_steps();
        Self {
            signal: r.signal.clone(),
            value: finite(r.value),
            expected: finite(r.expected),
            score: finite(r.score),
            text: value_against_expected(r).unwrap_or_default(),
            step: steps.then_some(r.start_step),
            announced_step: steps.then_some(r.opened_step),
        }
    }
}

impl RunDetails {
    /// The number of GPUs, if it was known.
    pub fn known_gpus(&self) -> Option<u32> {
        self.gpus.filter(|gpus| *gpus > 0)
    }

    fn of(run: &RunSummary) -> Self {
        Self {
            name: run.name.clone(),
            gpus: run.gpus,
            nodes: run.nodes,
            attempt: run.attempt,
            last_step: run.last_step,
            step_seconds: run.step_secs.and_then(finite),
            start_seconds: finite(run.start_secs),
        }
    }
}

impl Checkpoint {
    fn of(now: Ts, r: &IncidentRecord, run: &RunSummary) -> Option<Self> {
        let at = run.checkpoint_at.filter(|_| r.costs_a_run())?;
        Some(Self {
            step: run.checkpoint_step,
            at,
            age_seconds: (now - at).as_secs_f64(),
            after_onset: run.checkpoint_step.is_some_and(|step| rollback::is_after_onset(r, run, step)),
            good_step: rollback::choose(r, run).checkpoint,
            unsaved_seconds: finite(run.unsaved).unwrap_or_default(),
        })
    }
}

impl Cost {
    fn of(now: Ts, r: &IncidentRecord, run: &RunSummary, config: &ResponderConfig) -> Option<Self> {
        let per_gpu_hour = config.cost_per_gpu_hour.filter(|_| r.costs_a_run())?;
        let per_hour = per_gpu_hour * f64::from(run.gpus?);
        let hours = (now - r.opened_at).as_secs_f64() / 3600.0;
        Some(Self { per_gpu_hour, per_hour, so_far: per_hour * hours })
    }
}

fn finite(v: f64) -> Option<f64> {
    v.is_finite().then_some(v)
}

//! The cost of an incident: time, GPU hours, money, and lost work.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Span;
use stepwatch_model::{Cause, Class};
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_respond::message::{Details, number};
use utoipa::ToSchema;

use super::Account;
use crate::markdown::Table;

/// The effect of an incident on a run while it lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Way {
    /// The run stands still.
    Stalled,
    /// This share of the time is lost.
    Slowed(f64),
    /// The work of the run is worthless and is repeated.
    Spoiled,
    /// The run continues normally.
    None,
}

/// The costs of an incident, as far as they were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Impact {
    pub lasted_seconds: f64,
    /// Of the run, in the first message about it; none where that was not known.
    pub gpus: Option<u32>,
    pub gpu_hours: Option<f64>,
    pub dollars_per_gpu_hour: Option<f64>,
    /// The price of `gpu_hours`.
    pub dollars: Option<f64>,
    pub lost: Vec<Loss>,
    /// What a restart from the last checkpoint would lose, in words.
    pub at_risk: Option<String>,
}

/// Time of the run that was lost for certain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Loss {
    pub what: String,
    pub seconds: f64,
    /// None where the number of GPUs was not known.
    pub gpu_hours: Option<f64>,
    pub dollars: Option<f64>,
    pub how: String,
}

/// What the GPUs of a run cost while an incident lasts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Cost {
    pub gpus: u32,
    pub dollars_per_hour: f64,
    /// Since it opened, until it was resolved.
    pub dollars: f64,
}

impl Impact {
    /// The cost of an incident. `None` if the price or the number of GPUs is unknown, if the
    /// incident costs no run anything, and before the first message, which has both numbers.
    pub fn cost(&self, record: &IncidentRecord) -> Option<Cost> {
        let (rate, gpus) = self.dollars_per_gpu_hour.zip(self.gpus).filter(|_| record.costs_a_run())?;
        let dollars = self.dollars.unwrap_or_default();
        Some(Cost { gpus, dollars_per_hour: rate * f64::from(gpus), dollars })
    }

    pub(super) fn from_account(a: &Account<'_>) -> Self {
        let lasted_seconds = a.lasted().as_secs_f64();
        let Some(first) = a.first() else {
            let (gpus, gpu_hours, dollars, lost) = (None, None, None, Vec::new());
            return Self {
                lasted_seconds,
                gpus,
                gpu_hours,
                dollars_per_gpu_hour: None,
                dollars,
                lost,
                at_risk: None,
            };
        };
        let last = a.last().unwrap_or(first);
        let gpus = first.run.known_gpus();
        let rate = first.cost.as_ref().map(|c| c.per_gpu_hour);
        let hours = |seconds: f64| gpus.map(|gpus| f64::from(gpus) * seconds / 3600.0);
        let dollars = |seconds: f64| rate.zip(hours(seconds)).map(|(rate, hours)| rate * hours);
        let loss = |(what, seconds, how): (&str, f64, String)| Loss {
            what: what.to_owned(),
            seconds,
            gpu_hours: hours(seconds),
            dollars: dollars(seconds),
            how,
        };
        Self {
            lasted_seconds,
            gpus,
            gpu_hours: hours(lasted_seconds),
            dollars_per_gpu_hour: rate,
            dollars: dollars(lasted_seconds),
            lost: lost(a, first, last).into_iter().map(loss).collect(),
            at_risk: at_risk(a, first, last),
        }
    }
}

pub(super) fn write(out: &mut String, a: &Account<'_>) {
    out.push_str("## Impact\n\n");
    let mut t = Table::new(&["", ""]);
    t.row(["Lasted", &a.lasted().to_string()]);
    let impact = Impact::from_account(a);
    let known = impact.gpus.zip(impact.gpu_hours);
    if let Some((gpus, hours)) = known {
        t.row(["GPU hours while it lasted", &format!("{} ({})", number(hours), super::count(gpus, "GPU"))]);
        match (impact.dollars_per_gpu_hour, impact.dollars) {
            (Some(rate), Some(dollars)) => {
                t.row(["Cost of these", &format!("${dollars:.2} (at ${rate:.2} a GPU hour)")]);
            }
            _ => t.row(["Cost of these", "no price is set (cost_per_gpu_hour)"]),
        }
    }
    if a.first().is_some() {
        losses(&mut t, &impact);
    }
    t.write(out);
    if known.is_none() {
        let of = match a.messages().next() {
            _ if a.record.run.is_empty() => "No run was on it",
            Some(_) => "The size of the run was not known",
            None => "Nobody was notified of it",
        };
        let _ = writeln!(out, "{of}, so that it is not recorded how many GPUs it concerned.\n");
    }
}

fn losses(t: &mut Table, impact: &Impact) {
    let (gpus, rate) = (impact.gpus, impact.dollars_per_gpu_hour);
    for loss in &impact.lost {
        t.row([&loss.what, &amount(loss.seconds, gpus, rate, &loss.how)]);
    }
    match impact.lost.as_slice() {
        [] => t.row(["Goodput lost", "none that was measured: the run went on"]),
        [_] => {}
        all => {
            let total = all.iter().map(|loss| loss.seconds).sum();
            t.row(["Goodput lost in all", &amount(total, gpus, rate, "")]);
        }
    }
    if let Some(risk) = &impact.at_risk {
        t.row(["Work since the last checkpoint", risk]);
    }
}

/// An amount of time, with its value in GPU hours and dollars if the number of GPUs is known.
fn amount(seconds: f64, gpus: Option<u32>, rate: Option<f64>, how: &str) -> String {
    let worth = gpus.map_or_else(String::new, |gpus| {
        let hours = f64::from(gpus) * seconds / 3600.0;
        let dollars = rate.map(|rate| format!(" = ${:.2}", rate * hours)).unwrap_or_default();
        format!(" = {} GPU hours{dollars}", number(hours))
    });
    let how = if how.is_empty() { String::new() } else { format!(": {how}") };
    format!("{} of the run{worth}{how}", Span::from_secs_f64(seconds))
}

/// The losses that are certain, in seconds of the run.
fn lost(a: &Account<'_>, first: &Details, last: &Details) -> Vec<(&'static str, f64, String)> {
    let lasted = a.lasted().as_secs_f64();
    let mut lost = Vec::new();
    match loss(a.record, first) {
        Way::Stalled => {
            let before = silent(a.record, first);
            let how = match before {
                0.0 => "no step was made while it lasted".to_owned(),
                secs => format!(
                    "no step was made, also in the {} before it was announced",
                    Span::from_secs_f64(secs)
                ),
            };
            lost.push(("Stalled", lasted + before, how));
        }
        Way::Slowed(part) => {
            lost.push(("Slowed down", lasted * part, format!("{:.0} % of the time it lasted", 100.0 * part)));
        }
        Way::Spoiled => {
            lost.push((
                "Trained in vain",
                lasted,
                "what is trained after the onset is worth nothing".to_owned(),
            ));
        }
        // Of a GPU that failed, for example: the run goes on before the GPU is repaired.
        Way::None => {
            let stood = a.record.standstill.map(|s| s.lasted(a.record.resolved_at.unwrap_or(a.now)));
            if let Some(secs) = stood.map(Span::as_secs_f64).filter(|secs| *secs > 0.0) {
                lost.push(("Stalled", secs, "no step was made for that part of the time".to_owned()));
            }
        }
    }
    if last.run.attempt > first.run.attempt {
        if let Some(again) = trained_again(a.record, first, last) {
            lost.push(("Trained again", again.0, again.1));
        }
        if let Some(start) = last.run.start_seconds.or(first.run.start_seconds).filter(|s| *s > 0.0) {
            let times = last.run.attempt - first.run.attempt;
            lost.push(("Starting again", start * f64::from(times), super::count(times, "restart")));
        }
    }
    lost
}

/// The steps from the checkpoint to the run's last step, if the run was restarted.
fn trained_again(r: &IncidentRecord, first: &Details, last: &Details) -> Option<(f64, String)> {
    let from = first.checkpoint.as_ref().and_then(|c| c.step)?;
    let stood = first.run.last_step.unwrap_or(r.opened_step).max(r.opened_step);
    let secs = first.run.step_seconds.or(last.run.step_seconds)?;
    let steps = (stood - from).max(0);
    Some((steps as f64 * secs, format!("{steps} steps, from checkpoint {from} to step {stood}")))
}

/// The loss by a restart from the last checkpoint, if it is unknown whether there was one.
fn at_risk(a: &Account<'_>, first: &Details, last: &Details) -> Option<String> {
    if last.run.attempt > first.run.attempt {
        return None;
    }
    let checkpoint = first.checkpoint.as_ref()?;
    let r = a.record;
    let (Some(step), Some(secs)) = (checkpoint.step, first.run.step_seconds) else {
        return Some(format!(
            "taken {} before the first message",
            Span::from_secs_f64(checkpoint.age_seconds)
        ));
    };
    let stood = first.run.last_step.unwrap_or(r.opened_step);
    let steps = (stood - step).max(0);
    let gpus = first.run.known_gpus();
    let rate = first.cost.as_ref().map(|c| c.per_gpu_hour);
    let doubt = if checkpoint.after_onset {
        "; it holds the numbers that went bad, so that an earlier one is needed"
    } else {
        ""
    };
    let how = format!("lost if the run was restarted from it{doubt}");
    Some(format!("{steps} steps (from {step} to {stood}), {}", amount(steps as f64 * secs, gpus, rate, &how)))
}

pub(super) fn loss(r: &IncidentRecord, first: &Details) -> Way {
    let e = &first.evidence;
    match (r.cause, r.kind) {
        (Cause::Progress, _) => Way::Stalled,
        (Cause::Speed, _) => match (e.signal.as_str(), e.value, e.expected) {
            ("step_time", Some(v), Some(usual)) if v > usual && usual > 0.0 => Way::Slowed(1.0 - usual / v),
            ("mfu" | "tokens_per_second", Some(v), Some(usual)) if v < usual && usual > 0.0 => {
                Way::Slowed(1.0 - v.max(0.0) / usual)
            }
            ("data_wait", Some(v), Some(usual)) if v > usual => Way::Slowed((v - usual).clamp(0.0, 1.0)),
            _ => Way::None,
        },
        (_, kind) if kind.class() == Class::Lost => Way::Spoiled,
        _ => Way::None,
    }
}

/// The time for which the run had been silent when that was reported.
fn silent(r: &IncidentRecord, first: &Details) -> f64 {
    let stands = r.cause == Cause::Progress && first.evidence.signal == "step";
    first.evidence.value.filter(|v| stands && v.is_finite()).unwrap_or(0.0).max(0.0)
}

/// The time from the onset to the detection, if it is known.
pub(super) fn unseen(a: &Account<'_>) -> Option<String> {
    let r = a.record;
    let first = a.first()?;
    let secs = silent(r, first);
    if secs > 0.0 {
        return Some(format!("{} of silence", Span::from_secs_f64(secs)));
    }
    if r.run.is_empty() || r.start_step > r.opened_step {
        return None;
    }
    let steps = r.opened_step - r.start_step;
    let took = first.run.step_seconds.map(|s| format!(" = {}", Span::from_secs_f64(s * steps as f64)));
    Some(format!("{steps} steps{}", took.unwrap_or_default()))
}

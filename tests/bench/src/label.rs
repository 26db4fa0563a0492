//! What is known of a recording: which steps are wrong, how, and who should have been notified.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// The file of labels, beside the recordings.
pub const FILE: &str = "labels.json";

/// What a person would have done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    /// Nothing: benign.
    Info,
    /// Looked within a day.
    Warn,
    /// Acted now.
    Page,
}

/// Steps, both inclusive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Label {
    #[serde(rename = "cls")]
    pub class: String,
    pub start: i64,
    pub end: i64,
    pub severity: Urgency,
}

/// The fault that was injected into a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Injected {
    pub fault: String,
    pub size: f64,
    pub seed: u64,
    /// The clean series that it was injected into.
    pub base: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    pub events: Vec<Label>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub injected: Option<Injected>,
}

/// By the name of the recording, without its extension.
pub type Truths = BTreeMap<String, Truth>;

/// Which alarms match a label: the right people would have looked at the right signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    Nonfinite,
    Grad,
    Loss,
    /// Gradients and loss go together: whoever is notified of either looks at both.
    Numerics,
    Speed,
    Progress,
    Checkpoint,
    Any,
}

impl Family {
    pub fn from_class(class: &str) -> Self {
        match class {
            "nan" => Self::Nonfinite,
            "grad_inf" | "grad_explosion" | "grad_spike" | "grad_regime" => Self::Grad,
            "loss_spike" | "loss_blip" | "loss_bump" | "loss_shift" | "divergence" | "nolearn"
            | "noisy_loss" | "overfit" | "plateau" | "constant_loss" => Self::Loss,
            "grad_runup" => Self::Numerics,
            "throughput_shift" | "droop" | "sawtooth_droop" | "gc_tail_growth" | "variance_burst"
            | "stall" | "restart" | "restart_or_ckpt" | "improve" | "straggler" | "data_wait" => Self::Speed,
            "hang" => Self::Progress,
            "slow_checkpoint" => Self::Checkpoint,
            _ => Self::Any,
        }
    }

    /// Whether an incident of this kind matches a label of the family.
    pub fn covers(self, kind: &str) -> bool {
        match self {
            Self::Nonfinite => kind == "nonfinite",
            Self::Grad => matches!(
                kind,
                "grad_spike"
                    | "grad_level_shift"
                    | "grad_instability"
                    | "layer_grad"
                    | "nonfinite"
                    | "divergence"
            ),
            Self::Loss => matches!(
                kind,
                "loss_spike"
                    | "divergence"
                    | "loss_shift"
                    | "plateau"
                    | "no_learning"
                    | "eval_gap"
                    | "lr_coupling"
                    | "nonfinite"
            ),
            Self::Numerics => Self::Grad.covers(kind) || Self::Loss.covers(kind),
            Self::Speed => matches!(
                kind,
                "mfu_droop"
                    | "throughput_drop"
                    | "step_time_jitter"
                    | "straggler"
                    | "stall"
                    | "hang"
                    | "gc_tail"
                    | "data_wait"
                    | "slow_start"
                    | "below_expectation"
            ),
            Self::Progress => matches!(kind, "hang" | "stall" | "rank_dead"),
            Self::Checkpoint => {
                matches!(
                    kind,
                    "ckpt_slow"
                        | "ckpt_cost"
                        | "ckpt_stale"
                        | "ckpt_upload"
                        | "ckpt_size"
                        | "ckpt_room"
                        | "load_slow"
                        | "stall"
                )
            }
            Self::Any => true,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nonfinite => "nonfinite",
            Self::Grad => "grad",
            Self::Loss => "loss",
            Self::Numerics => "numerics",
            Self::Speed => "speed",
            Self::Progress => "progress",
            Self::Checkpoint => "checkpoint",
            Self::Any => "any",
        }
    }
}

pub fn read(path: &Path) -> anyhow::Result<Truths> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} holds no labels", path.display()))
}

pub fn write(path: &Path, truths: &Truths) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(truths)?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_it_writes() {
        let event = Label { class: "nan".into(), start: 3, end: 9, severity: Urgency::Page };
        let injected = Injected { fault: "nan".into(), size: 2.0, seed: 7, base: "synthetic".into() };
        let truths = Truths::from([("a".into(), Truth { events: vec![event], injected: Some(injected) })]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        write(&path, &truths).unwrap();
        assert_eq!(read(&path).unwrap(), truths);
    }

    #[test]
    fn a_gradient_explosion_is_no_matter_of_speed() {
        assert!(Family::from_class("grad_explosion").covers("grad_spike"));
        assert!(!Family::from_class("grad_explosion").covers("mfu_droop"));
        assert!(!Family::from_class("droop").covers("loss_spike"));
        assert!(Family::from_class("resume").covers("anything"));
    }
}

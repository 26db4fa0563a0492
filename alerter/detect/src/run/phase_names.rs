//! What the names of declared phases mean.

use super::ledger::Declared;
use crate::sample::StepClass;

/// The state of the ledger during a declared phase.
pub(crate) fn declared(name: &str) -> Option<Declared> {
    let lower = name.to_ascii_lowercase();
    let loads = ["load", "restor"].iter().any(|word| lower.contains(word)) && !lower.contains("loader");
    match phase_class(name) {
        _ if loads && !lower.contains("data") => Some(Declared::Loading),
        Some(StepClass::Checkpoint) => Some(Declared::Saving),
        Some(StepClass::Eval) => Some(Declared::Evaluating),
        _ => None,
    }
}

/// The class of the steps around a declared phase.
pub(crate) fn phase_class(name: &str) -> Option<StepClass> {
    let lower = name.to_ascii_lowercase();
    if lower.contains("ckpt") || lower.contains("checkpoint") || lower.contains("save") {
        Some(StepClass::Checkpoint)
    } else if lower.contains("eval") || lower.contains("valid") || lower == "val" || lower == "test" {
        Some(StepClass::Eval)
    } else {
        None
    }
}

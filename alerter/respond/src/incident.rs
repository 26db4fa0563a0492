//! Incidents: groups findings into incidents, notifies people, and records their answers.

pub mod audit;
mod closed;
pub(crate) mod correlator;
pub(crate) mod delivery_failure;
mod dispatch;
pub(crate) mod dispatcher;
mod due;
mod finding;
mod id;
mod link_faults;
pub(crate) mod manager;
mod open;
mod operator_actions;
mod origin;
mod partial_resolve;
mod record;
mod renotify_policy;
mod reopen;
mod report;
mod resolution;
mod rolled_up;
mod self_monitoring;
mod suppression;
pub(crate) mod suppressor;
#[cfg(test)]
mod tests;
mod transition;

pub use crate::incident_record::{
    End, Ended, IncidentRecord, Named, Standstill, State, Suppression, SuppressionReason, Verdict,
};
pub use crate::labels;
use crate::matcher::Labels;
use stepwatch_model::{Scope, Subject};
pub use suppressor::inhibition;

/// Whether the reporter of a subject may act on incidents with these labels. A token for external
/// alerts may be limited to some labels.
pub(crate) fn has_a_say(subject: &Subject, labels: &Labels) -> bool {
    match &subject.scope {
        Scope::Alert(condition) => {
            condition.within.iter().all(|(name, value)| labels.get(name).is_some_and(|v| v == value))
        }
        _ => true,
    }
}

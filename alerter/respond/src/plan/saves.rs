//! When to save: now, because the hardware under the run is failing, or at another interval.

use crate::incident_record::{IncidentRecord, State};
use stepwatch_model::{Kind, Need, Plan, PlanCost, Remedy, RunSummary, Saves, Severity};
use stepwatch_wire::conditions;

/// Unsaved work that is worth a save before hardware fails: so many seconds, and so many times what
/// the save costs, because the fault may never stop the run. Engineering limits.
const UNSAVED: f64 = 120.0;
const UNSAVED_SAVES: f64 = 5.0;
/// The kinds for which the interval of saves matters: saves that cost much or come late, and ends
/// that lost work.
const CONCERNED: [Kind; 5] =
    [Kind::CkptCost, Kind::CkptStale, Kind::CkptSlow, Kind::RestartLoop, Kind::RankDead];

/// Puts a save before everything else while hardware fails under a run that still makes steps.
pub(super) fn save_first(
    r: &IncidentRecord,
    run: &RunSummary,
    plan: Option<Plan>,
    cost: &PlanCost,
) -> Option<Plan> {
    let Some(save) = save_now(r, run) else { return plan };
    let Plan { remedies, cost } = plan.unwrap_or_else(|| Plan { remedies: Vec::new(), cost: cost.clone() });
    let after = remedies.into_iter().map(|remedy| match remedy {
        Remedy::Restart { .. } => Remedy::RestartSaved,
        remedy => remedy,
    });
    // A restart from what is saved now does no step again.
    let cost = PlanCost { steps_redone: None, redo_seconds: None, ..cost };
    Some(Plan { remedies: [save].into_iter().chain(after).collect(), cost })
}

/// `None` unless a save would keep work from a fault, and would keep it well: not if the run stands
/// or saves, if saves fail, or if what is saved may be wrong.
fn save_now(r: &IncidentRecord, run: &RunSummary) -> Option<Remedy> {
    let moves = run.last_step.is_some() && !run.needs.stands;
    let can_save = run.checkpoint_at.is_some() && run.saves == Saves::Idle && run.spoilt_from.is_none();
    if r.state == State::Resolved || !moves || !can_save || !is_failing(r, run) {
        return None;
    }
    let least = run.save_secs.map_or(UNSAVED, |secs| UNSAVED.max(UNSAVED_SAVES * secs));
    let (unsaved_seconds, save_seconds) = (run.unsaved, run.save_secs);
    (unsaved_seconds >= least).then_some(Remedy::SaveNow { unsaved_seconds, save_seconds })
}

/// Whether the hardware may stop the run later. A fault that stops it at once leaves no time.
fn is_failing(r: &IncidentRecord, run: &RunSummary) -> bool {
    let needs: Vec<&Need> = r.nodes.iter().filter_map(|node| run.needs.nodes.get(node)).collect();
    let is_lost = |need: &&Need| match need {
        Need::Repair { sure, action, .. } => *sure && *action > conditions::Remedy::DrainReset,
        Need::Gone => true,
        Need::Memory { .. } | Need::Link { .. } => false,
    };
    if needs.iter().any(is_lost) {
        return false;
    }
    match r.kind {
        Kind::EccTrend | Kind::LinkFault => true,
        // A program may cause an XID.
        Kind::GpuFault => !needs.is_empty() || r.severity == Severity::Page,
        // Most faults of a node stop no run.
        Kind::NodeFault => !needs.is_empty(),
        _ => false,
    }
}

/// Adds the interval that costs least, where the present one is far from it.
pub(super) fn with_interval(
    r: &IncidentRecord,
    run: &RunSummary,
    plan: Option<Plan>,
    cost: PlanCost,
) -> Option<Plan> {
    let is_wanted = CONCERNED.contains(&r.kind) && r.state != State::Resolved && run.saves != Saves::Failing;
    let interval = run.save_interval.as_ref().filter(|interval| is_wanted && interval.is_far_off());
    let Some(interval) = interval else { return plan };
    let mut plan = plan.unwrap_or_else(|| Plan { remedies: Vec::new(), cost });
    plan.remedies.push(Remedy::SaveEvery(interval.clone()));
    Some(plan)
}

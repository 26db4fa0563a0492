//! When to save: now, because the hardware under the run is failing, or at another interval.

use crate::incident_record::{IncidentRecord, State};
use stepwatch_model::{
    Kind, Need, Observation, Plan, PlanCost, Remedy, RunSummary, SaveInterval, Saves, Severity, Suspect,
    Target, Topic,
};
use stepwatch_wire::conditions;

/// Unsaved work that is worth a save before hardware fails: so many seconds, and so many times what
/// the save costs, because the fault may never stop the run. Engineering limits.
const UNSAVED: f64 = 120.0;
const UNSAVED_SAVES: f64 = 5.0;
/// The kinds for which the interval of saves matters: saves that cost much or come late, and ends
/// that lost work.
const CONCERNED: [Kind; 5] =
    [Kind::CkptCost, Kind::CkptStale, Kind::CkptSlow, Kind::RestartLoop, Kind::RankDead];
/// Those of a run that fails: a longer interval would lose more to the next failure.
const FAILS: [Kind; 2] = [Kind::RestartLoop, Kind::RankDead];

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
/// or is over, if it saves or has just saved, if saves fail or may hang, or if what is saved may be
/// wrong.
fn save_now(r: &IncidentRecord, run: &RunSummary) -> Option<Remedy> {
    let moves = run.last_step.is_some() && !run.needs.stands && !run.needs.done;
    let can_save = run.checkpoint_at.is_some() && run.saves == Saves::Idle && run.spoilt.is_none();
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
    let rules_out = |need: &&Need| match need {
        Need::Repair { sure, action, .. } => *sure && *action > conditions::Remedy::DrainReset,
        // Want of memory is no fault of hardware, and a save takes more of it.
        Need::Gone | Need::Memory { .. } => true,
        Need::Link { .. } => false,
    };
    if needs.iter().any(rules_out) {
        return false;
    }
    match r.kind {
        Kind::EccTrend => true,
        Kind::LinkFault => {
            let of_link = |need: &&Need| matches!(need, Need::Link { .. } | Need::Repair { .. });
            needs.iter().any(of_link) || r.suspects.iter().any(is_failing_link)
        }
        // A program may cause an XID.
        Kind::GpuFault => !needs.is_empty() || r.severity == Severity::Page,
        // Most faults of a node stop no run.
        Kind::NodeFault => !needs.is_empty(),
        _ => false,
    }
}

/// Whether it is a link that is down, flaps or makes errors. A slow one stops no run, and most that
/// are Ethernet are for management.
fn is_failing_link(suspect: &Suspect) -> bool {
    let Target::Link { medium, .. } = &suspect.target else { return false };
    let fails = |seen: &Observation| {
        let Observation::Fault { fault, .. } = seen else { return false };
        fault.topic == Topic::Link && matches!(fault.state.as_str(), "down" | "drop" | "flap" | "errors")
    };
    !medium.is_empty() && medium != "ethernet" && suspect.observations().any(fails)
}

/// Adds the interval that costs least, where the present one is far from it.
pub(super) fn with_interval(
    r: &IncidentRecord,
    run: &RunSummary,
    plan: Option<Plan>,
    cost: PlanCost,
) -> Option<Plan> {
    let can_save = !matches!(run.saves, Saves::Failing | Saves::Stuck);
    let is_wanted = CONCERNED.contains(&r.kind) && r.state != State::Resolved && can_save;
    let fails = FAILS.contains(&r.kind);
    let of_run = if fails { &run.failing_interval } else { &run.save_interval };
    let slows = |remedy: &Remedy| matches!(remedy, Remedy::LimitSaves | Remedy::StaggerSaves);
    let is_slowed = plan.as_ref().is_some_and(|plan| plan.remedies.iter().any(slows));
    let fits = |interval: &&SaveInterval| {
        let is_shorter = interval.best_seconds < interval.interval_seconds;
        // Saves that slow the steps would slow them more often.
        let is_refused = if is_shorter { is_slowed } else { fails };
        is_wanted && interval.is_far_off() && !is_refused
    };
    let Some(interval) = of_run.as_deref().filter(fits) else { return plan };
    let mut plan = plan.unwrap_or_else(|| Plan { remedies: Vec::new(), cost });
    plan.remedies.push(Remedy::SaveEvery(Box::new(interval.clone())));
    Some(plan)
}

#[cfg(test)]
mod tests {
    use stepwatch_model::{
        FailureRate, FailureSource, Fault, Flaw, Needs, PassedOver, SaveCost, SaveStage, Spoiler, Spoilt,
        Storage, Ts,
    };

    use super::super::plan;
    use super::super::tests::{advise, gpu, record, run};
    use super::*;

    /// A run with two hours of work since its last checkpoint, whose saves take 40 s.
    fn unsaved() -> RunSummary {
        RunSummary { unsaved: 7200.0, save_secs: Some(40.0), checkpoint_at: Some(Ts(0)), ..run() }
    }

    fn fault(kind: Kind, need: Option<Need>) -> (IncidentRecord, RunSummary) {
        let mut r = record(kind, "xid", 1.0, 0.0, gpu("n1", 3));
        r.nodes = vec!["n1".into()];
        let nodes = need.map(|need| ("n1".to_owned(), need)).into_iter().collect();
        (r, RunSummary { needs: Needs { nodes, ..Needs::default() }, ..unsaved() })
    }

    fn diverged(onset: i64) -> Spoilt {
        Spoilt { by: Spoiler::Divergence, onset }
    }

    /// A ticket about a link in this state.
    fn link(medium: &str, state: &str) -> (IncidentRecord, RunSummary) {
        let mut flap = fault(Kind::LinkFault, None);
        let port = Target::Link { node: "n1".into(), name: "mlx5_0/1".into(), medium: medium.into() };
        let seen = Observation::Fault { fault: Fault::new(Topic::Link, "mlx5_0/1", 0, state), slowed: None };
        (flap.0.severity, flap.0.suspects) = (Severity::Ticket, vec![Suspect::new(port, seen)]);
        flap
    }

    fn repair(action: conditions::Remedy, sure: bool) -> Need {
        Need::Repair { sure, action, gpu: "GPU 3 (GPU-2f)".into() }
    }

    fn said((r, run): &(IncidentRecord, RunSummary)) -> String {
        advise(r, run, Some(2.5)).unwrap_or_default()
    }

    const SAVE: &str = "save now: 2h of 512 GPUs, 1024 GPU hours ($2560) are not saved, and a save costs 40s of 512 GPUs, \
                        5.689 GPU hours ($14)";

    #[test]
    fn work_is_saved_before_failing_hardware_stops_the_run() {
        let later = repair(conditions::Remedy::DrainReset, true);
        let drain = ", then drain n1 at the next checkpoint (the last is 10000), then reset GPU 3 (GPU-2f)";
        assert_eq!(said(&fault(Kind::GpuFault, Some(later))), format!("{SAVE}{drain}"));
        let unsure = repair(conditions::Remedy::RebootNode, false);
        let reboot = ", then drain n1 and reboot it, then restart from that checkpoint";
        assert_eq!(said(&fault(Kind::GpuFault, Some(unsure))), format!("{SAVE}{reboot}"));
        let mut trend = fault(Kind::EccTrend, None);
        trend.0.severity = Severity::Ticket;
        assert_eq!(said(&trend), format!("{SAVE}, then drain n1 at the next checkpoint (the last is 10000)"));
        let mut flap = link("infiniband", "flap");
        assert_eq!(said(&flap), SAVE);
        flap.1.gpus = None;
        assert_eq!(said(&flap), "save now: 2h of the run are not saved, and a save costs 40s of the run");
    }

    #[test]
    fn a_save_is_not_advised_where_it_is_of_no_use() {
        let good = || link("infiniband", "flap");
        assert_eq!(said(&good()), SAVE);
        let not = |change: &dyn Fn(&mut IncidentRecord, &mut RunSummary), why: &str| {
            let mut changed = good();
            change(&mut changed.0, &mut changed.1);
            assert_eq!(said(&changed), "", "{why}");
        };
        not(&|_, run| run.needs.stands = true, "the run stands");
        not(&|_, run| run.unsaved = 199.0, "a save has just ended: five saves are more");
        not(&|_, run| run.needs.done = true, "the run is done");
        not(&|_, run| run.saves = Saves::Running, "a save is running");
        not(&|_, run| run.saves = Saves::Failing, "saves fail");
        not(&|_, run| run.saves = Saves::Stuck, "a save may never end");
        not(&|_, run| run.spoilt = Some(diverged(10_400)), "what is saved may be wrong");
        not(&|_, run| run.checkpoint_at = None, "nobody saw it save");
        not(&|r, _| r.state = State::Resolved, "the fault is over");
        not(&|r, _| r.kind = Kind::NodeFault, "a full disk stops no run");
        for (medium, state) in [("ethernet", "down"), ("", "errors"), ("infiniband", "degraded")] {
            assert_eq!(said(&link(medium, state)), "", "{medium} {state}");
        }
        let mut needed = link("", "down");
        needed.1.needs.nodes.insert("n1".into(), Need::Link { name: "mlx5_0/1".into() });
        assert_eq!(said(&needed), SAVE, "the run needs it");
        let lost = fault(Kind::GpuFault, Some(repair(conditions::Remedy::RebootNode, true)));
        assert!(!said(&lost).contains("save now"), "the GPU is lost: {}", said(&lost));
        let full = fault(Kind::NodeFault, Some(Need::Memory { cgroup: String::new() }));
        assert!(!said(&full).contains("save now"), "a save takes more memory: {}", said(&full));
    }

    #[test]
    fn a_run_that_is_done_is_neither_saved_nor_restarted() {
        let mut done = fault(Kind::GpuFault, Some(repair(conditions::Remedy::DrainReset, true)));
        (done.1.needs.stands, done.1.needs.done) = (true, true);
        assert_eq!(said(&done), "drain n1 and reset GPU 3 (GPU-2f)");
    }

    fn far_off(source: FailureSource, between: f64) -> Option<Box<SaveInterval>> {
        saving_every(500.0, source, between)
    }

    fn saving_every(interval: f64, source: FailureSource, between: f64) -> Option<Box<SaveInterval>> {
        let saves = SaveCost {
            seconds: 30.0,
            measured: 8,
            interval,
            lag: 0.0,
            saves_counted: 1.0,
            step_seconds: Some(4.0),
        };
        SaveInterval::of(saves, FailureRate { seconds_between: between, source }).map(Box::new)
    }

    #[test]
    fn a_better_interval_is_advised_with_what_it_is_from_and_what_it_saves() {
        let costly = record(Kind::CkptCost, "checkpoint_share", 0.06, 0.05, Target::Switch);
        let own = FailureSource::Own { failures: 5 };
        let mut run = RunSummary { save_interval: far_off(own, 21_600.0), ..run() };
        let say = |run: &RunSummary| advise(&costly, run, Some(2.5)).unwrap_or_default();
        let save = "save every 280 steps (18m 38s) instead of every 125 steps (8m 20s): a save costs 30s, and a failure is \
                    expected every 6h (from 5 of this run); saves and lost work cost 5.1 % of the time instead of 6.8 %";
        assert_eq!(say(&run), format!("{save}, which saves 198.9 GPU hours a day ($497)"));
        run.gpus = None;
        assert_eq!(say(&run), save);
        let one = run.save_interval.clone().map(|i| SaveInterval { saves_measured: 1, ..*i });
        let said = say(&RunSummary { save_interval: one.map(Box::new), ..run.clone() });
        assert!(said.contains("a save costs 30s (from the only one that was measured), and"), "{said}");
        run.save_interval = far_off(FailureSource::Assumed { nodes: 1 }, 22_800_000.0);
        let assumed = "save every 3600 steps (4h) instead of every 125 steps (8m 20s): a save costs 30s, and a failure is \
                       expected every 263d 21h (assumed: 3.789 in 1000 node-days, as with Llama 3, for 1 node); saves and lost work cost \
                       0.2 % of the time instead of 5.7 %; it is the longest that is advised until failures of this run are known";
        assert_eq!(say(&run), assumed);
    }

    #[test]
    fn an_interval_is_advised_where_it_matters_and_only_if_it_is_far_off() {
        let own = FailureSource::Own { failures: 5 };
        let far = RunSummary { save_interval: far_off(own, 21_600.0), ..run() };
        let has = |kind: Kind, run: &RunSummary| {
            let r = record(kind, "process", 1.0, 0.0, Target::rank(1, Some("n1")));
            let remedies = plan(&r, run, None).unwrap_or_default().remedies;
            remedies.iter().any(|remedy| matches!(remedy, Remedy::SaveEvery(_)))
        };
        for kind in CONCERNED {
            assert_eq!(has(kind, &far), !FAILS.contains(&kind), "{kind:?}");
        }
        assert!(!has(Kind::Hang, &far));
        assert!(!has(Kind::CkptCost, &RunSummary { saves: Saves::Failing, ..far.clone() }));
        // 500 s are more than half of the best, 580 s.
        let near = RunSummary { save_interval: far_off(own, 6000.0), ..run() };
        assert!(!has(Kind::CkptCost, &near));
    }

    #[test]
    fn a_run_that_fails_is_not_told_to_save_less_often() {
        let own = FailureSource::Own { failures: 4 };
        let say = |kind: Kind, interval: Option<Box<SaveInterval>>| {
            let r = record(kind, "process", 1.0, 0.0, Target::rank(1, Some("n1")));
            let run = RunSummary { failing_interval: interval, ..run() };
            let remedies = plan(&r, &run, None).unwrap_or_default().remedies;
            remedies.iter().any(|remedy| matches!(remedy, Remedy::SaveEvery(_)))
        };
        for kind in FAILS {
            assert!(!say(kind, far_off(own, 21_600.0)), "{kind:?}: every 1118 s instead of 500 s");
            assert!(say(kind, saving_every(5000.0, own, 6000.0)), "{kind:?}: every 580 s");
        }
        assert!(!say(Kind::CkptCost, saving_every(5000.0, own, 6000.0)), "that run does not fail");
    }

    #[test]
    fn saves_that_slow_the_steps_are_not_to_come_more_often() {
        let storage = Target::Storage(Storage::OfCheckpoints);
        let slower = Observation::SlowerWhileSaving {
            stage: SaveStage::Upload,
            value: 4.4.into(),
            expected: 4.0.into(),
            slower: 8,
            windows: 8,
        };
        let mut costly = record(Kind::CkptCost, "checkpoint_share", 0.06, 0.05, storage.clone());
        costly.suspects = vec![Suspect::new(storage, slower)];
        let own = FailureSource::Own { failures: 5 };
        let remedies = |save_interval: Option<Box<SaveInterval>>| {
            let run = RunSummary { save_interval, ..run() };
            plan(&costly, &run, None).unwrap_or_default().remedies.len()
        };
        assert_eq!(remedies(saving_every(5000.0, own, 6000.0)), 1, "more often");
        assert_eq!(remedies(far_off(own, 21_600.0)), 2, "less often");
    }

    /// The last checkpoints of the run are 9000, 9500 and 10000.
    #[test]
    fn a_checkpoint_to_go_back_to_is_whole_good_and_from_before_the_onset() {
        let diverges = record(Kind::Divergence, "loss", 5.0, 2.0, Target::Recipe { step: 9_800 });
        let bad = Flaw::BadEvaluation { step: 9_600, loss: 3.5.into(), before: 2.1.into() };
        let flawed = |step, why| PassedOver { step, why };
        let mut run = run();
        run.flawed = vec![flawed(9_500, bad), flawed(9_700, Flaw::Incomplete), flawed(10_400, Flaw::Failed)];
        let want = "roll back to checkpoint 9000 and skip the batches of steps 9800 to 10020: 1500 steps are done again, 1h 40m of 512 GPUs \
                    ($2133); 1 later checkpoint is from after the onset; checkpoint 9500 is bad: the first evaluation \
                    after it, at step 9600, has a loss of 3.5, and 2.1 was usual before; checkpoint 9700 is not complete";
        assert_eq!(advise(&diverges, &run, Some(2.5)).unwrap_or_default(), want);
        run.flawed.insert(0, flawed(9_000, Flaw::Failed));
        let stop = "stop and look: no good checkpoint from before the onset is known";
        assert_eq!(advise(&diverges, &run, Some(2.5)).unwrap_or_default(), stop);
    }

    /// The run diverges at step 9800, and is evaluated at step 10000.
    #[test]
    fn an_evaluation_from_after_the_onset_says_nothing_of_an_earlier_checkpoint() {
        let diverges = record(Kind::Divergence, "loss", 5.0, 2.0, Target::Recipe { step: 9_800 });
        let bad = Flaw::BadEvaluation { step: 10_000, loss: 3.5.into(), before: 2.1.into() };
        let flawed = [9_000, 9_500, 10_000].map(|step| PassedOver { step, why: bad });
        let run = RunSummary { flawed: flawed.to_vec(), ..run() };
        let want = "roll back to checkpoint 9500 and skip the batches of steps 9800 to 10020: 1000 steps are done again, 1h 6m of 512 GPUs \
                    ($1422); 1 later checkpoint is from after the onset";
        assert_eq!(advise(&diverges, &run, Some(2.5)).unwrap_or_default(), want);
    }

    #[test]
    fn a_checkpoint_from_within_the_report_of_the_onset_may_keep_it() {
        let diverges = record(Kind::Divergence, "loss", 5.0, 2.0, Target::Recipe { step: 9_800 });
        let said =
            |report_steps| advise(&diverges, &RunSummary { report_steps, ..run() }, None).unwrap_or_default();
        assert!(said(300).starts_with("roll back to checkpoint 9500 "), "{}", said(300));
        let (back, later) =
            ("roll back to checkpoint 9000 ", "; 2 later checkpoints are from after the onset");
        assert!(said(301).starts_with(back) && said(301).ends_with(later), "{}", said(301));
    }

    #[test]
    fn a_run_that_started_over_is_restarted_and_keeps_its_batches() {
        let over = record(Kind::LostProgress, "loss", 9.0, 2.0, Target::Recipe { step: 9_800 });
        let want = "restart from checkpoint 9500: 1000 steps are done again, 1h 6m of 512 GPUs; 1 later checkpoint is from after the onset";
        assert_eq!(advise(&over, &run(), None).unwrap_or_default(), want);
    }

    #[test]
    fn a_restart_is_not_from_a_checkpoint_that_could_not_be_loaded() {
        let hangs = record(Kind::Hang, "step", 700.0, 60.0, gpu("gpu-7", 3));
        let unread = PassedOver { step: 10_000, why: Flaw::LoadFailed };
        let run = RunSummary { flawed: vec![unread], ..run() };
        let said = advise(&hangs, &run, None).unwrap_or_default();
        let want = "restart from checkpoint 9500: 1000 steps are done again, 1h 6m of 512 GPUs; checkpoint 10000 could not be loaded";
        assert!(said.ends_with(want), "{said}");
    }

    #[test]
    fn an_older_checkpoint_that_nobody_watches_may_be_gone() {
        let diverges = record(Kind::Divergence, "loss", 5.0, 2.0, Target::Recipe { step: 9_800 });
        let unseen = RunSummary { on_disk: vec![9_000], ..run() };
        let said = advise(&diverges, &unseen, None).unwrap_or_default();
        let want = "roll back to checkpoint 9500 (if it is still on disk) and skip the batches of steps 9800 to 10020: 1000";
        assert!(said.starts_with(want), "{said}");
        let hangs = record(Kind::Hang, "step", 700.0, 60.0, gpu("gpu-7", 3));
        let said = advise(&hangs, &unseen, None).unwrap_or_default();
        assert!(
            said.contains("restart from checkpoint 10000: 500"),
            "no framework removes the newest: {said}"
        );
    }

    #[test]
    fn a_restart_is_not_from_a_checkpoint_that_was_saved_in_trouble() {
        let hangs = record(Kind::Hang, "step", 700.0, 60.0, gpu("gpu-7", 3));
        let mut run = run();
        let want = |from: &str| {
            format!(
                "take the stacks of all ranks, then restart from checkpoint {from}; standing still costs $1280 an hour"
            )
        };
        run.spoilt = Some(diverged(9_800));
        let before = "9500: 1000 steps are done again, 1h 6m of 512 GPUs ($1422); 1 later checkpoint is from after the loss diverged at step 9800";
        assert_eq!(advise(&hangs, &run, Some(2.5)).unwrap_or_default(), want(before));
        run.spoilt = None;
        let bad = Flaw::BadEvaluation { step: 10_000, loss: 3.5.into(), before: 2.1.into() };
        run.flawed =
            vec![PassedOver { step: 10_000, why: bad }, PassedOver { step: 10_300, why: Flaw::Failed }];
        let last = "10000: 500 steps are done again, 33m 20s of 512 GPUs ($711); checkpoint 10300 failed";
        assert_eq!(
            advise(&hangs, &run, Some(2.5)).unwrap_or_default(),
            want(last),
            "nothing is wrong with the loss"
        );
    }
}

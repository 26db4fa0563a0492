//! Plans what to do about an incident, with the figures that support it.
//!
//! A plan uses only known figures: the checkpoints of the run, the length of its steps and of its
//! start, and the price of a GPU. Unknown figures are left out of a plan, and there is no plan if
//! there is nothing to choose. `message::advice` writes the sentence for it.

mod saves;

use crate::incident_record::{IncidentRecord, State};
use crate::rollback;
use stepwatch_model::{
    Action, Advice, Cause, FirstFailure, Forecast, Kind, Need, Needs, Observation, Plan, PlanCost, Remedy,
    RunSummary, SHARED_NODES, SavePart, Severity, Suspect, Target, When, slow_down,
};
use stepwatch_wire::conditions;

/// Batches after the onset that are skipped too: the least number that PaLM skipped.
const SKIP: i64 = 200;
/// Seconds within which a restart must pay back to be worth its risk, and within which a slope is
/// extrapolated.
const WORTHWHILE: f64 = 7.0 * 86_400.0;
/// The shares of lost speed that a forecast may name, and the least steps for a slope.
const LEVELS: [f64; 5] = [0.1, 0.2, 0.3, 0.4, 0.5];
const SLOPE_STEPS: i64 = 100;

/// The plan for an incident; `None` if there is nothing to choose.
pub(crate) fn plan(r: &IncidentRecord, run: &RunSummary, rate: Option<f64>) -> Option<Plan> {
    if r.severity == Severity::Info || r.run.is_empty() {
        return None;
    }
    let cost = PlanCost { gpus: run.gpus, dollars_per_gpu_hour: rate, ..PlanCost::default() };
    let plan = saves::save_first(r, run, of_kind(r, run, cost.clone()), &cost);
    saves::with_interval(r, run, plan, cost)
}

/// The plan by the kind of the incident.
fn of_kind(r: &IncidentRecord, run: &RunSummary, cost: PlanCost) -> Option<Plan> {
    if let Some(plan) = of_saves(r, &cost) {
        return Some(plan);
    }
    match r.kind.advice() {
        Advice::RollBack => known_batch(r, &cost).or_else(|| roll_back(r, run, cost)),
        Advice::Restart => match (shared(r), node(r)) {
            (Some(what), _) => {
                let inspect = Remedy::Inspect { target: what.clone() };
                Some(one(inspect, PlanCost { speed_lost: speed_lost(r), ..cost }))
            }
            (None, Some(node)) => Some(drain_later(r, run, node, cost)),
            (None, None) => restart(r, run, cost),
        },
        Advice::DrainNode => node(r).map(|node| drain_later(r, run, node, cost)),
        Advice::DrainAtCheckpoint => Some(match shared(r) {
            Some(what) => one(Remedy::Inspect { target: what.clone() }, cost),
            None => one(drain(run, node(r)?), cost),
        }),
        Advice::ByCause => match r.cause {
            // An incident that is over needs no restart.
            Cause::Progress | Cause::Hardware
                if r.severity == Severity::Page && r.state != State::Resolved =>
            {
                stopped(r, run, cost)
            }
            _ => None,
        },
    }
}

fn one(remedy: Remedy, cost: PlanCost) -> Plan {
    Plan { remedies: vec![remedy], cost }
}

/// The first suspect that is no setting: a plan is for places, and a setting may stand before the
/// place that was measured.
fn first(r: &IncidentRecord) -> Option<&Suspect> {
    r.suspects.iter().find(|s| !matches!(s.target, Target::Setting { .. } | Target::Setup))
}

/// The node of the first suspect, if it is one; without suspects, the first faulty node.
fn node(r: &IncidentRecord) -> Option<&str> {
    first(r).map_or_else(|| r.nodes.first().map(String::as_str), |first| first.target.on_node())
}

/// The shared component that is the first suspect, if there is one.
fn shared(r: &IncidentRecord) -> Option<&Target> {
    let first = &first(r)?.target;
    // Tickets of single nodes were not ranked together.
    let of_power = || r.suspects.iter().all(|s| s.observations().any(|o| o.slowed().is_some()));
    let many = r.kind == Kind::Throttle && r.nodes.len() >= SHARED_NODES && of_power();
    if first.is_shared() { Some(first) } else { many.then_some(&Target::Power) }
}

/// A plan to go on: the same batch did this before, and training went on.
fn known_batch(r: &IncidentRecord, cost: &PlanCost) -> Option<Plan> {
    let batch = r.suspects.iter().find(|s| matches!(s.target, Target::Batch { .. }))?;
    (r.severity < Severity::Page).then(|| one(Remedy::Leave { batch: batch.clone() }, cost.clone()))
}

/// A plan for saves that slow the run, if these are the first suspect.
fn of_saves(r: &IncidentRecord, cost: &PlanCost) -> Option<Plan> {
    let lost = match r.kind {
        // Its value is the share of the time.
        Kind::CkptCost => Some(r.value),
        Kind::MfuDroop | Kind::ThroughputDrop | Kind::BelowExpectation => speed_lost(r),
        _ => return None,
    };
    let (mut slower, mut together) = (false, false);
    for seen in first(r)?.observations() {
        slower |= matches!(seen, Observation::SlowerWhileSaving { .. });
        together |= matches!(
            seen,
            Observation::FullWhileSaving { part: SavePart::Interface, .. }
                | Observation::SlowerTogether { .. }
        );
    }
    let limit = slower.then_some(Remedy::LimitSaves);
    let remedies: Vec<Remedy> = limit.into_iter().chain(together.then_some(Remedy::StaggerSaves)).collect();
    (!remedies.is_empty()).then(|| Plan { remedies, cost: PlanCost { speed_lost: lost, ..cost.clone() } })
}

fn roll_back(r: &IncidentRecord, run: &RunSummary, cost: PlanCost) -> Option<Plan> {
    let last = run.last_step?;
    let choice = rollback::choose(r, run);
    let Some(checkpoint) = choice.checkpoint else {
        let stop = Remedy::Stop { saved: !run.saved.is_empty() };
        return (r.severity == Severity::Page).then(|| one(stop, cost));
    };
    // It did not load its checkpoint, and no batch is to blame.
    if r.kind == Kind::LostProgress {
        return Some(restart_from(choice, run, cost));
    }
    let rollback::Choice { may_be_gone, later, spoilt, passed_over, .. } = choice;
    let roll_back = Remedy::RollBack {
        checkpoint,
        skip_from: r.start_step,
        skip_to: (r.detected_step + SKIP).min(r.start_step + 2 * SKIP).max(r.start_step),
        if_it_stays: r.kind == Kind::LossSpike,
        later_checkpoints: later,
        spoilt,
        may_be_gone,
        passed_over,
    };
    Some(one(roll_back, redone(last - checkpoint, run, cost)))
}

fn restart_from(choice: rollback::Choice, run: &RunSummary, cost: PlanCost) -> Plan {
    let rollback::Choice { checkpoint, may_be_gone, later, spoilt, passed_over } = choice;
    let cost = match (checkpoint, run.last_step) {
        (Some(saved), Some(last)) => redone((last - saved).max(0), run, cost),
        _ => cost,
    };
    let checkpoint = checkpoint.filter(|_| run.last_step.is_some());
    let restart = Remedy::Restart { checkpoint, later_checkpoints: later, spoilt, may_be_gone, passed_over };
    one(restart, cost)
}

/// Adds the steps that are done again to the cost.
fn redone(steps: i64, run: &RunSummary, cost: PlanCost) -> PlanCost {
    let redo_seconds = run.step_secs.map(|secs| steps as f64 * secs);
    PlanCost { steps_redone: Some(steps), redo_seconds, ..cost }
}

/// The share of its speed that the run has lost.
fn speed_lost(r: &IncidentRecord) -> Option<f64> {
    let slower = slow_down(&r.signal, r.value, r.expected);
    (slower.is_finite() && slower > 1.0).then(|| 1.0 - 1.0 / slower)
}

/// Adds the cost of a restart that cures the loss of speed.
fn cured(lost: f64, run: &RunSummary, cost: PlanCost) -> PlanCost {
    let now = restart_seconds(run);
    PlanCost {
        speed_lost: Some(lost),
        restart_seconds: now,
        start_seconds: now.map(|_| run.start_secs),
        pays_back_seconds: now.map(|now| now / lost),
        ..cost
    }
}

/// Seconds that a restart costs now: the steps since the last checkpoint, and the start.
fn restart_seconds(run: &RunSummary) -> Option<f64> {
    let done = (run.last_step? - run.checkpoint_step?).max(0) as f64;
    Some(done * run.step_secs? + run.start_secs)
}

fn restart(r: &IncidentRecord, run: &RunSummary, cost: PlanCost) -> Option<Plan> {
    let lost = speed_lost(r)?;
    let cost = PlanCost { forecast: forecast(r, run, lost), ..cured(lost, run, cost) };
    cost.pays_back_seconds.filter(|back| *back <= WORTHWHILE)?;
    Some(one(Remedy::TryRestart, cost))
}

/// Extrapolates a gradual slow-down. A step that became `g` times longer within n steps does so
/// again within the next n. A share L of the speed is lost when a step takes `1/(1 − L)` times as
/// long as before.
fn forecast(r: &IncidentRecord, run: &RunSummary, lost: f64) -> Option<Forecast> {
    let steps = r.detected_step.saturating_sub(r.start_step);
    if r.kind != Kind::MfuDroop || steps < SLOPE_STEPS {
        return None;
    }
    let longer = |share: f64| 1.0 / (1.0 - share) - 1.0;
    let slope = longer(lost) / steps as f64;
    let next = LEVELS.into_iter().find(|level| *level > 1.25 * lost)?;
    let seconds = (longer(next) - longer(lost)) / slope * run.step_secs?;
    (seconds < WORTHWHILE).then_some(Forecast { steps, speed_lost: next, seconds })
}

fn drain(run: &RunSummary, node: &str) -> Remedy {
    Remedy::DrainNode { node: node.to_owned(), last_checkpoint: run.checkpoint_step }
}

fn drain_later(r: &IncidentRecord, run: &RunSummary, node: &str, cost: PlanCost) -> Plan {
    let cost = match speed_lost(r) {
        Some(lost) => cured(lost, run, cost),
        None => cost,
    };
    one(drain(run, node), cost)
}

/// The plan for a run that stands still, or whose hardware will stop it.
fn stopped(r: &IncidentRecord, run: &RunSummary, cost: PlanCost) -> Option<Plan> {
    let known = &run.needs;
    let stands = known.stands || r.cause == Cause::Progress;
    let first = if let Some(what) = shared(r) {
        Some(Remedy::Inspect { target: what.clone() })
    } else if let Some((node, need)) = needed(r, known) {
        let node = node.to_owned();
        Some(match need {
            Need::Memory { .. } if !stands => return None,
            Need::Memory { cgroup } => Remedy::LimitMemory { node, cgroup: cgroup.clone() },
            // The run continues until then.
            Need::Repair { action, gpu, .. } if *action == conditions::Remedy::DrainReset && !stands => {
                let when = When::NextCheckpoint { last: run.checkpoint_step };
                return Some(one(Remedy::ResetGpu { node, gpu: gpu.clone(), when }, cost));
            }
            Need::Repair { action, gpu, .. } => {
                let action = match action {
                    conditions::Remedy::DrainReset => conditions::Remedy::ResetGpu,
                    action => *action,
                };
                Remedy::from_action(&Action::Known(action), &node, gpu)?
            }
            Need::Link { name } => Remedy::CheckLink { node, link: name.clone() },
            Need::Gone => Remedy::CheckHost { node },
        })
    } else if let Some(FirstFailure { place, words }) = known.ended.clone().filter(|_| stands) {
        Some(Remedy::InspectFailure { place, words })
    } else {
        (r.kind == Kind::Hang).then_some(Remedy::TakeStacks)
    };
    if r.kind == Kind::RestartLoop || known.done {
        // Another restart alone does not help, and a run that is done needs none.
        return first.map(|first| one(first, cost));
    }
    if !stands && first.as_ref().is_none_or(|first| matches!(first, Remedy::Inspect { .. })) {
        return first.map(|first| one(first, cost));
    }
    let Plan { remedies, cost } = restart_from(rollback::choose(r, run), run, cost);
    let remedies = first.into_iter().chain(remedies).collect();
    Some(Plan { remedies, cost: PlanCost { stands, ..cost } })
}

/// What the first suspect needs. A suspect that is surely broken takes precedence.
fn needed<'a>(r: &'a IncidentRecord, known: &'a Needs) -> Option<(&'a str, &'a Need)> {
    let own = r.suspects.is_empty().then(|| r.nodes.first()).flatten().map(String::as_str);
    // A suspect that is no node has no known need, but still counts as the first.
    let suspected = r.suspects.iter().map(|s| s.target.on_node().unwrap_or_default());
    let places: Vec<&str> = suspected.chain(own).collect();
    let of = |node: &&'a str| Some((*node, known.nodes.get(*node)?));
    let broken = |(_, need): &(&str, &Need)| matches!(need, Need::Repair { sure: true, .. });
    let sure = places.iter().filter_map(of).find(broken);
    let first = places.first().and_then(of).filter(|(_, need)| {
        // A repair that can wait for the next drain did not end a rank whose log gives another
        // cause.
        let waits = matches!(need, Need::Repair { sure: false, .. });
        !(waits && known.ended.as_ref().is_some_and(|e| e.words.is_some()))
    });
    sure.or(first)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use stepwatch_model::{Num, Observation, SaveStage, Slowed, Storage, Unit};

    const NOBODY: Target = Target::Fleet(Unit::Nodes);

    pub(super) fn gpu(node: &str, index: u32) -> Target {
        Target::Gpu { node: node.into(), index: Some(index), uuid: "GPU-2f".into(), pci: String::new() }
    }

    fn slow(slowed: Option<Slowed>) -> Observation {
        Observation::SlowClock {
            value: 8e8.into(),
            expected: 1.6e9.into(),
            reasons: Vec::new(),
            temperature: None,
            power: None,
            slowed,
        }
    }

    pub(super) fn run() -> RunSummary {
        RunSummary {
            name: "llama".into(),
            gpus: Some(512),
            last_step: Some(10_500),
            checkpoint_step: Some(10_000),
            saved: vec![9_000, 9_500, 10_000],
            on_disk: vec![9_000, 9_500, 10_000],
            step_secs: Some(4.0),
            start_secs: 120.0,
            ..RunSummary::default()
        }
    }

    /// The sentence of a message for the plan.
    pub(super) fn advise(r: &IncidentRecord, run: &RunSummary, rate: Option<f64>) -> Option<String> {
        plan(r, run, rate).map(|plan| crate::message::advice(&plan))
    }

    #[test]
    fn a_setting_before_a_node_keeps_the_drain() {
        let mut r = record(Kind::Straggler, "compute_time", 4.4, 4.0, Target::node("n7"));
        let alone = plan(&r, &run(), None);
        assert!(alone.as_ref().is_some_and(|plan| {
            plan.remedies
                .iter()
                .any(|remedy| matches!(remedy, Remedy::DrainNode { node, .. } if node == "n7"))
        }));
        let key = Target::Setting { key: "torch".into() };
        r.suspects.insert(0, Suspect::new(key, Observation::OutOfPlace));
        assert_eq!(plan(&r, &run(), None), alone);
    }

    #[test]
    fn a_restart_is_weighed_against_what_it_cures() {
        let r = record(Kind::MfuDroop, "step_time", 4.4, 4.0, NOBODY);
        let cost = plan(&r, &run(), Some(2.5)).unwrap_or_default().cost;
        assert_eq!((cost.restart_seconds, cost.start_seconds), (Some(2120.0), Some(120.0)));
        assert_eq!(cost.dollars(2120.0).map(f64::round), Some(754.0));
        assert_eq!(cost.pays_back_seconds.map(f64::round), Some(23_320.0));
        assert_eq!(cost.speed_lost.map(|lost| (1000.0 * lost).round()), Some(91.0));
    }

    /// What steps take while checkpoints are uploaded.
    const UPLOADS: Observation = Observation::SlowerWhileSaving {
        stage: SaveStage::Upload,
        value: Num(4.4),
        expected: Num(4.0),
        slower: 8,
        windows: 8,
    };

    #[test]
    fn uploads_that_slow_the_run_are_limited_and_saves_at_once_are_staggered() {
        let storage = Target::Storage(Storage::OfCheckpoints);
        let mut r = record(Kind::CkptCost, "checkpoint_share", 0.06, 0.05, storage.clone());
        r.severity = Severity::Ticket;
        assert_eq!(plan(&r, &run(), Some(2.5)), None, "it is not known that steps are slower");
        r.suspects = vec![Suspect::new(storage.clone(), UPLOADS)];
        let limit = "limit the bandwidth of uploads and writes, or give them an interface of their own";
        // 6 % of 512 GPUs at $2.50 for 24 hours.
        let costs = ": it costs 6 % of 512 GPUs, $1843 a day";
        assert_eq!(advise(&r, &run(), Some(2.5)), Some(format!("{limit}{costs}")));
        let full = Observation::FullWhileSaving {
            part: SavePart::Interface,
            nodes: 60,
            known: 64,
            saving: 64,
            value: Num(0.93),
            expected: Num(0.2),
        };
        r.suspects[0].join(Suspect::new(storage.clone(), full));
        let both = format!("{limit}, then let the nodes save one after another, or fewer at once{costs}");
        assert_eq!(advise(&r, &run(), Some(2.5)), Some(both));
        let mut r = record(Kind::MfuDroop, "step_time", 4.4, 4.0, storage.clone());
        r.suspects = vec![Suspect::new(storage, UPLOADS)];
        assert_eq!(
            advise(&r, &run(), Some(2.5)),
            Some(format!("{limit}: it costs 9.1 % of 512 GPUs, $2793 a day"))
        );
    }

    #[test]
    fn a_slope_says_where_it_leads_and_a_jump_does_not() {
        let mut r = record(Kind::MfuDroop, "step_time", 4.4, 4.0, NOBODY);
        (r.start_step, r.detected_step) = (9_000, 10_000);
        // 10 % longer in 1000 steps; 20 % lost is 25 % longer: 1500 steps of 4 s from here.
        let said = advise(&r, &run(), Some(2.5)).unwrap_or_default();
        assert!(
            said.contains("it took 1000 steps to lose 9.1 %, and at this slope 20 % is lost in 1h 40m;"),
            "{said}"
        );
        r.start_step = 9_950;
        assert!(!advise(&r, &run(), Some(2.5)).unwrap_or_default().contains("slope"), "50 steps are none");
        (r.start_step, r.kind) = (9_000, Kind::ThroughputDrop);
        assert!(!advise(&r, &run(), Some(2.5)).unwrap_or_default().contains("slope"));
    }

    pub(super) fn record(
        kind: Kind,
        signal: &str,
        value: f64,
        expected: f64,
        suspect: Target,
    ) -> IncidentRecord {
        IncidentRecord {
            run: "llama".into(),
            signal: signal.into(),
            start_step: 9_800,
            opened_step: 9_810,
            detected_step: 9_820,
            value,
            expected,
            score: 1.0,
            suspects: vec![Suspect::new(suspect, Observation::OutOfPlace)],
            ..IncidentRecord::new("x".into(), stepwatch_model::time::Ts(0), kind, Severity::Page)
        }
    }

    #[test]
    fn each_says_what_it_costs() {
        for (record, want) in [
            (
                record(Kind::Divergence, "loss", 5.0, 2.0, Target::Recipe { step: 9_800 }),
                "roll back to checkpoint 9500 and skip the batches of steps 9800 to 10020: 1000 steps are done again, 1h 6m of 512 GPUs \
                 ($1422); 1 later checkpoint is from after the onset",
            ),
            (
                record(Kind::MfuDroop, "step_time", 4.4, 4.0, NOBODY),
                "it costs 9.1 % of 512 GPUs, $116 an hour; if a restart cures it, one now costs 35m 20s of 512 GPUs ($754) and pays back in \
                 6h 28m; right after the next checkpoint it costs 2m",
            ),
            (
                record(Kind::Hang, "step", 700.0, 60.0, gpu("gpu-7", 3)),
                "take the stacks of all ranks, then restart from checkpoint 10000: 500 steps are done again, 33m 20s of 512 GPUs ($711); \
                 standing still costs $1280 an hour",
            ),
        ] {
            assert_eq!(advise(&record, &run(), Some(2.5)).unwrap_or_default(), want);
        }
    }

    /// An action can use a plan without parsing a sentence.
    #[test]
    fn a_plan_is_data() {
        let r = record(Kind::Divergence, "loss", 5.0, 2.0, Target::Recipe { step: 9_800 });
        let roll_back = plan(&r, &run(), Some(2.5)).unwrap_or_default();
        let json = serde_json::to_value(&roll_back).unwrap();
        let want = serde_json::json!([{"roll_back": {
            "checkpoint": 9_500, "skip_from": 9_800, "skip_to": 10_020, "if_it_stays": false,
            "later_checkpoints": 1,
        }}]);
        assert_eq!(json["remedies"], want);
        assert_eq!(json["cost"]["steps_redone"], 1000);
        assert_eq!(json["cost"]["redo_seconds"], 4000.0);
        assert_eq!(json["cost"]["speed_lost"], serde_json::Value::Null);
        assert_eq!(serde_json::from_value::<Plan>(json).unwrap(), roll_back);
        let mut r = record(Kind::Hang, "step", 700.0, 60.0, gpu("gpu-7", 3));
        r.start_step = 10_500;
        let Plan { remedies, cost } = plan(&r, &run(), None).unwrap_or_default();
        let restart = Remedy::Restart {
            checkpoint: Some(10_000),
            later_checkpoints: 0,
            spoilt: None,
            may_be_gone: false,
            passed_over: Vec::new(),
        };
        assert_eq!(remedies, [Remedy::TakeStacks, restart]);
        assert!(cost.stands && cost.dollars(3600.0).is_none());
    }

    const FROM: &str = "restart from checkpoint 10000: 500 steps are done again, 33m 20s of 512 GPUs ($711)";
    const STANDS: &str = "; standing still costs $1280 an hour";

    fn repair(action: &str, sure: bool) -> Need {
        let action = conditions::Remedy::parse(action).unwrap();
        Need::Repair { sure, action, gpu: "GPU 3 (GPU-2f)".into() }
    }

    fn ended(words: Option<&str>) -> FirstFailure {
        FirstFailure { place: Target::rank(1, Some("n1")), words: words.map(Into::into) }
    }

    /// The advice for `suspects` on `n1` that has this need.
    fn said(
        kind: Kind,
        suspects: &[Target],
        need: Option<Need>,
        ended: Option<FirstFailure>,
        stands: bool,
    ) -> String {
        let mut r = record(kind, "process", 1.0, 0.0, NOBODY);
        let suspect = |what: &Target| Suspect::new(what.clone(), Observation::OutOfPlace);
        r.suspects = suspects.iter().map(suspect).collect();
        r.nodes = vec!["n1".into()];
        let nodes: BTreeMap<_, _> = need.map(|need| ("n1".to_owned(), need)).into_iter().collect();
        let run = RunSummary { needs: Needs { stands, nodes, ended, done: false }, ..run() };
        advise(&r, &run, Some(2.5)).unwrap_or_default()
    }

    #[test]
    fn a_node_is_drained_for_what_is_its_own() {
        let dead = |need, words| {
            said(Kind::RankDead, &[Target::rank(1, Some("n1"))], need, Some(ended(words)), true)
        };
        let bug = Some("exited with code 1: ValueError: x");
        let look = format!(
            "look at what ended rank 1 on n1 (exited with code 1: ValueError: x), then {FROM}{STANDS}"
        );
        assert_eq!(dead(None, bug), look);
        assert_eq!(dead(Some(repair("drain_reset", false)), bug), look, "there is no hurry");
        assert_eq!(dead(None, None), format!("look at the log of rank 1 on n1, then {FROM}{STANDS}"));
        let reset = format!("drain n1 and reset GPU 3 (GPU-2f), then {FROM}{STANDS}");
        for need in [repair("reset_gpu", true), repair("drain_reset", true)] {
            assert_eq!(dead(Some(need), bug), reset);
        }
        assert_eq!(dead(Some(repair("drain_reset", false)), None), reset);
        let killed = Need::Memory { cgroup: "/slurm/job_77".into() };
        let less = "let the job use less memory on n1 or raise the limit of /slurm/job_77, then ";
        assert_eq!(dead(Some(killed), None), format!("{less}{FROM}{STANDS}"));
        let gone = format!("see whether the host n1 is up, and drain it if it is not, then {FROM}{STANDS}");
        assert_eq!(dead(Some(Need::Gone), None), gone);
        let elsewhere = said(
            Kind::Hang,
            &[Target::rank(1, Some("n2")), Target::node("n1")],
            Some(Need::Gone),
            None,
            true,
        );
        assert_eq!(elsewhere, format!("take the stacks of all ranks, then {FROM}{STANDS}"));
        let broken = said(
            Kind::Hang,
            &[Target::rank(1, Some("n2")), Target::node("n1")],
            Some(repair("reboot_node", true)),
            None,
            true,
        );
        assert_eq!(broken, format!("drain n1 and reboot it, then {FROM}{STANDS}"));
    }

    #[test]
    fn a_run_that_moves_does_not_stand_still() {
        let fault = |need| said(Kind::GpuFault, &[gpu("n1", 3)], need, None, false);
        let later = "drain n1 at the next checkpoint (the last is 10000), then reset GPU 3 (GPU-2f)";
        assert_eq!(fault(Some(repair("drain_reset", true))), later);
        assert_eq!(fault(Some(repair("reboot_node", true))), format!("drain n1 and reboot it, then {FROM}"));
        assert_eq!(fault(None), "", "the fault says it itself");
        assert_eq!(
            said(Kind::LinkFault, &[Target::Switch, Target::node("n1")], None, None, false),
            format!("look at the {}", Target::Switch)
        );
    }

    #[test]
    fn what_nodes_share_is_looked_at_and_none_is_drained() {
        let mut r = record(Kind::ThroughputDrop, "step_time", 8.0, 4.0, Target::Power);
        r.nodes = vec!["n1".into(), "n2".into()];
        let look = format!("look at the {}: it costs 50 % of 512 GPUs, $640 an hour", Target::Power);
        assert_eq!(advise(&r, &run(), Some(2.5)).unwrap_or_default(), look);
        r.suspects[0].target = NOBODY;
        assert!(!advise(&r, &run(), Some(2.5)).unwrap_or_default().contains("drain"));
        let mut r = record(Kind::Throttle, "sm_clock", f64::NAN, f64::NAN, gpu("n1", 0));
        r.nodes = vec!["n1".into(), "n2".into(), "n3".into()];
        r.suspects[0].evidence = vec![slow(Some(Slowed::Power)).into()];
        assert_eq!(
            advise(&r, &run(), Some(2.5)).unwrap_or_default(),
            format!("look at the {}", Target::Power)
        );
        r.suspects[0].evidence = vec![slow(None).into()];
        assert!(
            advise(&r, &run(), Some(2.5)).unwrap_or_default().starts_with("drain n1 at the next checkpoint")
        );
        let port = Target::Link { node: "n1".into(), name: "mlx5_0/1".into(), medium: String::new() };
        let link = said(Kind::Hang, &[Target::Switch, port], None, None, true);
        assert_eq!(link, format!("look at the {}, then {FROM}{STANDS}", Target::Switch));
    }
}
